//! The repair of a whole node: which of its blocks are rebuilt, how, and what a failure means for the job.
//!
//! The blocks to rebuild are those that the metadata has on the node's disks at any moment; a rebuilt block is no
//! longer among them. Helpers and targets are chosen over all blocks ([`crate::schedule`]), and each block is rebuilt like
//! any other ([`crate::rebuild`]).

use crate::{
    job::{Again, Job},
    rebuild::{Answers, Destination, Lost, Needed, Rebuilt, Request, moved_bytes},
    schedule::{STRIPES_PER_NODE, Scheduled, Starting},
    view::{Standing, View},
};
use std::time::Duration;
use weft_types::{
    Error, HelperSelect, Home, LeftBlock, NodeId, NodeRepair, ObjectName, Owner, Result, StripeId, StripeRecord, UploadId,
};

/// The reason if blocks are left that no attempt reported.
pub const LEFT_UNSAID: &str = "blocks came to the node or were lost during the repair: repair the node again";

/// The most plans that an explained repair reports.
pub const EXPLAINED_MAX: usize = 256;

/// The most blocks of the node that an explained repair looks at, to find those with which the repair would begin.
pub const EXPLAINED_BLOCKS_MAX: usize = 65_536;

/// The most repairs that are explained at the same time: each takes some megabytes, and the metadata's time.
pub const EXPLAINED_AT_ONCE_MAX: usize = 2;

/// Stripes that are repaired at a time if nothing else is asked for and no schedule decides: a few keep the links of many
/// nodes busy; more would take memory on all of these and time from readers.
const CONCURRENCY: u32 = 4;

/// A block of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Its stripe.
    pub stripe: StripeId,
    /// The stripe's number in its object.
    pub number: u64,
    /// Its index.
    pub index: u8,
    /// Which copy it is.
    pub copy: u8,
    /// Its length.
    pub bytes: u64,
}

/// The outcome for one block.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is durable on another node.
    Rebuilt,
    /// It is no longer on the node or no longer lost: there is nothing to do.
    Gone,
    /// It could not be rebuilt.
    Left(Error),
}

impl Block {
    /// The block of a stripe on a disk.
    pub fn on(stripe: &StripeRecord, home: Home) -> Option<Self> {
        let (index, placed) = stripe.all().find(|(_, placed)| placed.home == home)?;
        let bytes = stripe.layout.block_len(index.into());
        Some(Self { stripe: stripe.id, number: stripe.number, index, copy: placed.copy, bytes })
    }

    /// The bytes of it that have moved at this progress of its plan.
    pub fn moved_bytes(&self, thousandths: u64) -> u64 {
        moved_bytes(self.bytes, thousandths)
    }
}

/// Whether a repair can start: blocks of the node may be lost, and the target nodes are up. `down_after`: how long a
/// node that has just died still counts as up.
pub fn check(repair: &NodeRepair, view: &View, down_after: Duration) -> Result<()> {
    let known = |id: NodeId| {
        view.node(id).ok_or_else(|| Error::not_found(format!("there is no node {id}: `weft node ls` lists the nodes")))
    };
    let node = known(repair.node)?;
    if node.up && !repair.force && !node.disks.iter().any(|disk| disk.failed) {
        let (name, seconds) = (&node.name, down_after.as_millis().div_ceil(1000));
        return Err(Error::invalid(format!(
            "{name} is up and its blocks can be read: nothing is lost. A node that has just died counts as down after \
             {seconds} s. To rebuild the blocks of a node that is up on other nodes, pass --force (stop its agent first, \
             or new blocks may still be placed there)"
        )));
    }
    for to in &repair.to {
        let node = known(*to)?;
        if !node.up {
            return Err(Error::invalid(format!("{} is down: choose target nodes that are up", node.name)));
        }
    }
    Ok(())
}

/// Whether a block of the node must be rebuilt: it is lost, or the node is being emptied.
pub fn is_wanted(repair: &NodeRepair, stripe: &StripeRecord, block: Block, view: &View) -> bool {
    let is_lost = |placed| matches!(view.standing_of(stripe, block.index, placed), Standing::Lost(_));
    repair.force || stripe.find(block.index, block.copy).is_some_and(is_lost)
}

/// The object whose block must be rebuilt, by the stripe's current state, which others may have changed. `None` if
/// there is nothing to do.
pub fn object_of(repair: &NodeRepair, stripe: &StripeRecord, block: Block, view: &View) -> Result<Option<UploadId>> {
    let is_there = stripe.find(block.index, block.copy).is_some_and(|placed| placed.home.node == repair.node);
    if !is_there || !is_wanted(repair, stripe, block, view) {
        return Ok(None);
    }
    visible(stripe).map(Some)
}

/// The object that a stripe belongs to.
pub fn visible(stripe: &StripeRecord) -> Result<UploadId> {
    match stripe.owner {
        Owner::Object(version) => Ok(version),
        _ => {
            let id = stripe.id;
            Err(Error::unavailable(format!(
                "stripe {id} belongs to an object that is still being put: repair the node again later"
            )))
        }
    }
}

/// The lost block, for the repair of the node. Other lost blocks of the stripe stay as they are: their nodes may
/// return, and they belong to those nodes' repairs.
pub fn lost(stripe: &StripeRecord, block: Block) -> Vec<Lost> {
    vec![Lost::of(stripe, block.index, block.copy)]
}

/// A rebuild with the options of the node's repair, by the nodes and the scheme of the schedule, if it has any for it.
pub fn request(repair: &NodeRepair, mut rebuild: Request, scheduled: Option<Scheduled>) -> Request {
    if let Some(scheduled) = &scheduled {
        rebuild.options.scheme.clone_from(&scheduled.scheme);
    }
    Request {
        helpers: Some(repair.select),
        scheduled,
        to: Destination::Among(repair.to.iter().copied().collect()),
        // The blocks of a node that is still up must not return to it.
        avoid: repair.force.then_some(repair.node).into_iter().collect(),
        needed: if repair.force { Needed::Always } else { Needed::WhileLost },
        answers: Answers::default(),
        ..rebuild
    }
}

/// The default for stripes that are repaired at a time; 0: as many as the schedule starts.
pub fn usual_concurrency(select: HelperSelect) -> u32 {
    match Starting::of(select) {
        Starting::ByShares | Starting::Polling => 0,
        Starting::InOrder => CONCURRENCY,
        Starting::OneByOne => 1,
    }
}

/// The most stripes that are repaired at a time in a cluster with so many nodes.
pub fn concurrency(repair: &NodeRepair, nodes: usize) -> usize {
    match repair.concurrency {
        0 => STRIPES_PER_NODE * nodes.max(1),
        asked => asked as usize,
    }
}

/// The outcome for a block whose rebuild has ended.
pub fn outcome(rebuilt: Result<Rebuilt>, object: &ObjectName) -> Outcome {
    let left = match rebuilt {
        // The node came back.
        Ok(rebuilt) if rebuilt.blocks.is_empty() && rebuilt.left.is_empty() => return Outcome::Gone,
        Ok(rebuilt) => rebuilt.left.into_iter().next().map(|(_, reason)| Error::unavailable(reason)),
        Err(error) => Some(error),
    };
    left.map_or(Outcome::Rebuilt, |error| Outcome::Left(error.object(object)))
}

/// Counts the outcome for a block. Returns whether another attempt may succeed.
pub fn take(job: &mut Job, block: Block, outcome: Outcome) -> Again {
    let error = match outcome {
        Outcome::Rebuilt => {
            job.done(block.bytes);
            return Again::InVain;
        }
        Outcome::Gone => return Again::InVain,
        Outcome::Left(error) => error,
    };
    let object = error.object.clone().unwrap_or_default();
    job.left(block.bytes, error, |reason| {
        let reason = if block.copy == 0 { reason } else { format!("copy {}: {reason}", block.copy) };
        LeftBlock { object, stripe: block.number, index: block.index, reason }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{BLOCK_LEN, home, stripe, view};
    use weft_types::{Amount, JobProgress, JobState, PlacedBlock, Prefer, Reaction};

    fn repair(force: bool) -> NodeRepair {
        NodeRepair {
            node: NodeId(2),
            select: HelperSelect::Lru,
            prefer: Prefer::default(),
            to: vec![NodeId(8)],
            scheme: String::new(),
            concurrency: 2,
            slice_len: 0,
            force,
        }
    }

    fn object() -> ObjectName {
        ObjectName { bucket: "b".into(), key: "k".into() }
    }

    #[test]
    fn a_node_without_losses_is_repaired_only_by_force_and_only_to_nodes_that_are_up() {
        let check = |force, view: &View| {
            let checked = check(&repair(force), view, Duration::from_millis(4_001));
            checked.map_err(|error| (error.reaction, error.message))
        };
        let (up, down) = (view(8, &[]), view(8, &[2]));
        let (reaction, message) = check(false, &up).unwrap_err();
        assert!(
            reaction == Reaction::InvalidInput && message.contains("node-2 is up") && message.contains("after 5 s"),
            "{message}"
        );
        let mut failing = up.clone();
        failing.nodes.get_mut(&NodeId(2)).unwrap().disks[0].failed = true;
        for (force, view) in [(true, &up), (false, &down), (false, &failing)] {
            assert_eq!(check(force, view), Ok(()));
        }
        let (reaction, message) = check(false, &view(8, &[2, 8])).unwrap_err();
        assert!(reaction == Reaction::InvalidInput && message.starts_with("node-8 is down"), "{message}");
        for there in [1, 7] {
            assert_eq!(check(true, &view(there, &[])).unwrap_err().0, Reaction::NotFound, "it has {there} nodes");
        }
    }

    #[test]
    fn a_block_is_found_by_its_disk_and_copies_are_blocks_too() {
        let mut stripe = stripe();
        stripe.copies = vec![(0, PlacedBlock { home: home(9), copy: 1, ..stripe.blocks[&0] })];
        let on = |node| Block::on(&stripe, home(node)).map(|block| (block.index, block.copy, block.bytes));
        assert_eq!([on(2), on(9), on(7)], [Some((1, 0, BLOCK_LEN)), Some((0, 1, BLOCK_LEN)), None]);
        let block = Block::on(&stripe, home(2)).unwrap();
        assert_eq!([0, 500, 1000].map(|part| block.moved_bytes(part)), [0, BLOCK_LEN / 2, BLOCK_LEN]);
    }

    #[test]
    fn lost_blocks_are_rebuilt_and_with_force_all_blocks() {
        let (stripe, up, down) = (stripe(), view(8, &[]), view(8, &[2]));
        let block = Block::on(&stripe, home(2)).unwrap();
        let object_of = |force, view| object_of(&repair(force), &stripe, block, view);
        assert_eq!(object_of(false, &down), Ok(Some(UploadId(3))));
        assert_eq!((object_of(false, &up), object_of(true, &up)), (Ok(None), Ok(Some(UploadId(3)))));
    }

    #[test]
    fn blocks_repaired_by_others_are_skipped_and_those_of_running_puts_are_left() {
        let (mut stripe, down) = (stripe(), view(8, &[2]));
        let block = Block::on(&stripe, home(2)).unwrap();
        stripe.find_mut(1, 0).unwrap().home = home(7);
        assert_eq!(object_of(&repair(true), &stripe, block, &down), Ok(None));
        stripe.find_mut(1, 0).unwrap().home = home(2);
        stripe.owner = Owner::Upload(UploadId(4));
        let error = object_of(&repair(false), &stripe, block, &down).unwrap_err();
        assert!(error.message.contains("still being put"), "{error}");
        stripe.blocks.remove(&1);
        assert_eq!(object_of(&repair(true), &stripe, block, &down), Ok(None));
    }

    #[test]
    fn a_failed_block_is_named_with_its_object_and_retried_if_that_may_help() {
        let (mut job, block) = (Job::new(JobState::Running, JobProgress::default(), LEFT_UNSAID), Block::on(&stripe(), home(2)));
        let block = Block { copy: 1, number: 4, ..block.unwrap() };
        let left = |why: &str| Rebuilt { left: vec![((1, 0), why.to_owned())], ..Rebuilt::default() };
        let new = weft_types::BlockId { stripe: stripe().id, index: 1, copy: 1, generation: 2 };
        let new = crate::rebuild::RebuiltBlock { block: new, home: home(7), checksums: Vec::new() };
        let outcomes = [
            (outcome(Ok(Rebuilt { blocks: vec![new], ..Rebuilt::default() }), &object()), Again::InVain),
            (outcome(Ok(Rebuilt::default()), &object()), Again::InVain),
            (Outcome::Gone, Again::InVain),
            (outcome(Ok(left("too many blocks are lost")), &object()), Again::InVain),
            (outcome(Err(Error::replan("a node went down")), &object()), Again::Perhaps),
        ];
        for (outcome, again) in outcomes {
            assert_eq!(take(&mut job, block, outcome), again);
        }
        let amount = |blocks| Amount { blocks, bytes: blocks * BLOCK_LEN };
        let progress = job.progress();
        assert_eq!((progress.done, progress.left), (amount(1), amount(2)));
        let reason = "copy 1: too many blocks are lost".to_owned();
        assert_eq!(progress.left_blocks[0], LeftBlock { object: "b/k".into(), stripe: 4, index: 1, reason });
        assert_eq!(progress.last_error, "b/k: a node went down");
    }
}
