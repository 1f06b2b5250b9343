//! Copies are dropped when the data have cooled down: what is left is what the code needs, whole, and spread over the racks as well
//! as the copies allow it.

use crate::shared::Shared;
use std::collections::{BTreeMap, BTreeSet};
use weft_codes::SharedCode;
use weft_control::view::{Standing, View};
use weft_meta::{MetaError, ObjectRecord};
use weft_proto::v1;
use weft_types::{BlockId, BlockState, Error, FailureDomain, NodeId, ObjectName, PlacedBlock, Result, StripeRecord};

/// Stripes that are looked at together.
const STRIPES_PER_PAGE: u32 = 256;
/// How often a stripe is looked at again that others are changing.
const TRIES_MAX: usize = 4;

/// Drops all copies of an object's blocks but one of each. Stripe by stripe, each in one transaction; who is interrupted begins again.
///
/// What is kept is good and on nodes that are up, parity too: copies are what a stripe without them could be rebuilt of. What becomes
/// of the others does not matter then, also where their nodes are away.
pub(crate) async fn cool(shared: &Shared, name: &ObjectName) -> Result<v1::CoolReply> {
    // Who has not come back yet may have what is to be kept.
    shared.until_nodes_are_back().await;
    let object = shared.meta.object(name).await.map_err(|error| shared.meta_error(error))?;
    let (_, policy) = shared.meta.bucket(&name.bucket).await.map_err(|error| shared.meta_error(error))?;
    let code = shared.code(&object.code)?;
    let failure_domain = policy.failure_domain;
    let mut cooling = Cooling { shared, object, code, failure_domain, stripes: 0, reply: v1::CoolReply::default() };
    match cooling.run().await {
        Ok(()) => {
            tracing::info!(object = %name, blocks = cooling.reply.blocks, bytes = cooling.reply.bytes, "copies were dropped");
            Ok(cooling.reply)
        }
        Err(error) => Err(cooling.with_what_was_done(error).object(name)),
    }
}

/// An object whose copies are dropped.
struct Cooling<'a> {
    shared: &'a Shared,
    object: ObjectRecord,
    code: SharedCode,
    failure_domain: FailureDomain,
    /// Of which something was dropped.
    stripes: u64,
    reply: v1::CoolReply,
}

impl Cooling<'_> {
    async fn run(&mut self) -> Result<()> {
        let (shared, mut from) = (self.shared, 0);
        loop {
            let page = shared.meta.stripes(self.object.version, from, STRIPES_PER_PAGE).await;
            let page = page.map_err(|error| shared.meta_error(error))?;
            for stripe in page.items {
                from = stripe.number.saturating_add(1);
                self.stripe(stripe).await?;
            }
            if !page.more {
                break;
            }
        }
        // Of one that was replaced meanwhile there are no stripes any more.
        let now = shared.meta.object(&self.object.name).await.map_err(|error| shared.meta_error(error))?;
        if now.version != self.object.version {
            return Err(Error::replan("it was replaced while its copies were dropped: what is there now still has its own"));
        }
        Ok(())
    }

    async fn stripe(&mut self, mut stripe: StripeRecord) -> Result<()> {
        let (shared, mut tries) = (self.shared, 0);
        while !stripe.copies.is_empty() {
            let id = stripe.id;
            let view = shared.members.view();
            let kept = self.choose(&view, &stripe)?;
            let keep = kept.iter().map(|(index, placed)| stripe.id_of(*index, placed)).collect();
            match shared.meta.drop_copies(shared.epoch, id, keep, shared.garbage_not_before_ms()).await {
                Ok(_) => {
                    self.count(&stripe);
                    self.warn(&view, &stripe, &kept);
                    return Ok(());
                }
                // A repair was faster, or something was found to be bad.
                Err(MetaError::Conflict(_)) if tries < TRIES_MAX => tries += 1,
                Err(error) => return Err(shared.meta_error(error)),
            }
            stripe = shared.meta.stripe(id).await.map_err(|error| shared.meta_error(error))?;
        }
        Ok(())
    }

    /// What is kept of a stripe, or why nothing of it may be dropped.
    fn choose<'a>(&self, view: &'a View, stripe: &'a StripeRecord) -> Result<Vec<(u8, &'a PlacedBlock)>> {
        let (number, name) = (stripe.number, &self.object.name);
        let kept = keep(view, stripe, |block| view.is_suspect_block(block)).map_err(|index| {
            let copies: Vec<&PlacedBlock> = stripe.all().filter(|(at, _)| *at == index).map(|(_, placed)| placed).collect();
            let copy = |placed: &&PlacedBlock| {
                let (node, why) = (self.shared.members.name(placed.home.node), why_not(view, stripe, index, placed));
                let which = if copies.len() < 2 { String::new() } else { format!("copy {} ", placed.copy) };
                format!("{which}on {node}: {}", why.unwrap_or_default())
            };
            let copies = copies.iter().map(copy).collect::<Vec<_>>().join(", ");
            Error::unavailable(format!(
                "block {index} of stripe {number} is not whole ({copies}): nothing of the stripe is dropped before all that its code \
                 needs is good and on nodes that are up; `weft repair object {name}` rebuilds it"
            ))
        })?;
        if self.shared.puts.late_blocks.has_stripe(stripe.id) {
            let message =
                format!("copies of stripe {number} are still being sent by its put: nothing of it is dropped meanwhile");
            return Err(Error::unavailable(message));
        }
        Ok(kept)
    }

    fn count(&mut self, stripe: &StripeRecord) {
        self.stripes += 1;
        self.reply.blocks += stripe.copies.len() as u64;
        let bytes = stripe.copies.iter().map(|(index, _)| stripe.layout.block_len((*index).into()));
        self.reply.bytes = self.reply.bytes.saturating_add(bytes.sum());
    }

    /// Says it where a rack is left with more than the code tolerates to lose. With the copies it was none of anybody's concern.
    fn warn(&mut self, view: &View, stripe: &StripeRecord, kept: &[(u8, &PlacedBlock)]) {
        let mut racks: BTreeMap<&str, usize> = BTreeMap::new();
        kept.iter().for_each(|(_, placed)| *racks.entry(rack(view, placed.home.node)).or_default() += 1);
        let (code, tolerance, name) = (self.code.spec(), self.code.tolerance(), &self.object.name);
        let too_full = |(_, blocks): &(&str, usize)| self.failure_domain == FailureDomain::Rack && *blocks > tolerance;
        for (rack, blocks) in racks.into_iter().filter(too_full) {
            let warning = format!(
                "rack {rack} is left with {blocks} blocks of a stripe and {code} tolerates the loss of {tolerance}: to lose the rack is \
                 to lose data; `weft stat {name}` shows what is where, `weft repair object {name} --block N --to NODE` moves a block"
            );
            tracing::warn!(object = %name, stripe = stripe.number, "{warning}");
            if !self.reply.warnings.contains(&warning) {
                self.reply.warnings.push(warning);
            }
        }
    }

    /// The error of a stripe, and what had been dropped of those before it.
    fn with_what_was_done(&self, error: Error) -> Error {
        let (blocks, stripes) = (self.reply.blocks, self.stripes);
        if blocks == 0 {
            return error;
        }
        Error { message: format!("{}; {blocks} blocks of {stripes} stripes were dropped before", error.message), ..error }
    }
}

/// Why a block cannot be kept, if it cannot. A node that failed somebody a moment ago is up all the same.
fn why_not(view: &View, stripe: &StripeRecord, index: u8, placed: &PlacedBlock) -> Option<&'static str> {
    match (placed.state, view.standing_of(stripe, index, placed)) {
        (BlockState::Missing, _) if stripe.incomplete => Some("still coming"),
        (_, Standing::Lost(why)) => Some(why),
        (BlockState::Corrupt, _) => Some("corrupt in part"),
        _ => None,
    }
}

/// Of each block of a stripe one that is whole: so that the fullest rack has as few of them as it can, and otherwise from trusted
/// nodes, the first copy first. Or the block of which there is none. What somebody could not read a moment ago, though nothing is
/// known to be wrong with it, is kept only where there is no other.
fn keep<'a>(
    view: &'a View,
    stripe: &'a StripeRecord,
    doubted: impl Fn(BlockId) -> bool,
) -> Result<Vec<(u8, &'a PlacedBlock)>, u8> {
    let mut options: Vec<Vec<(&str, &PlacedBlock)>> = Vec::with_capacity(stripe.blocks.len());
    for index in (0..=u8::MAX).take(stripe.blocks.len()) {
        let copies = stripe.all().filter(|(at, placed)| *at == index && why_not(view, stripe, index, placed).is_none());
        let mut whole: Vec<_> = copies.map(|(_, placed)| (doubted(stripe.id_of(index, placed)), placed)).collect();
        let is_suspect = |placed: &PlacedBlock| view.standing_of(stripe, index, placed) == Standing::Suspect;
        whole.sort_by_key(|(doubted, placed)| (*doubted, is_suspect(placed), placed.copy));
        let all_doubted = whole.first().ok_or(index)?.0;
        whole.retain(|(doubted, _)| *doubted == all_doubted);
        options.push(whole.into_iter().map(|(_, placed)| (rack(view, placed.home.node), placed)).collect());
    }
    let all = 0..options.len();
    let fits = |most| {
        let mut racks = Racks { options: &options, most, kept: BTreeMap::new() };
        all.clone().all(|at| racks.take(at, &mut BTreeSet::new())).then_some(racks.kept)
    };
    let racks = (1..=options.len()).find_map(fits).unwrap_or_default();
    let mut kept: Vec<(u8, &PlacedBlock)> =
        racks.into_values().flatten().map(|(at, placed)| (u8::try_from(at).unwrap_or(u8::MAX), placed)).collect();
    kept.sort_unstable_by_key(|(index, _)| *index);
    Ok(kept)
}

fn rack(view: &View, node: NodeId) -> &str {
    view.node(node).map_or("", |node| &node.rack)
}

/// Racks that are filled with blocks, none with more than `most`: a matching, found by augmenting paths.
struct Racks<'a, 'v> {
    /// For each block the copies that may be kept, by their racks.
    options: &'a [Vec<(&'v str, &'v PlacedBlock)>],
    most: usize,
    kept: BTreeMap<&'v str, Vec<(usize, &'v PlacedBlock)>>,
}

impl<'v> Racks<'_, 'v> {
    /// Finds a rack for a block; who is there already may have to go to another, but to none of those that were asked.
    fn take(&mut self, at: usize, asked: &mut BTreeSet<&'v str>) -> bool {
        for (rack, placed) in &self.options[at] {
            if !asked.insert(rack) {
                continue;
            }
            let here = self.kept.entry(rack).or_default();
            if here.len() < self.most {
                here.push((at, placed));
                return true;
            }
            let others: Vec<usize> = here.iter().map(|(other, _)| *other).collect();
            // Who goes leaves its place.
            if let Some(place) = others.into_iter().position(|other| self.take(other, asked)) {
                self.kept.entry(rack).or_default()[place] = (at, placed);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weft_control::view::{DiskView, NodeView};
    use weft_types::{DiskNumber, Home, Layout, Owner, Seq, Span, StripeId, StripeLayout, UploadId};

    /// Nodes 1, 2, … in these racks.
    fn view(racks: &[&str]) -> View {
        let node = |(number, rack): (u32, &&str)| {
            let number_of_disk = DiskNumber(number);
            let disk = DiskView {
                number: number_of_disk,
                id: String::new(),
                path: String::new(),
                total_bytes: 1,
                free_bytes: 1,
                failed: false,
                blocks: 0,
            };
            let (id, rack) = (NodeId(number), (*rack).to_owned());
            (id, NodeView { id, name: String::new(), rack, up: true, suspect_for: Duration::ZERO, disks: vec![disk] })
        };
        View { nodes: (1..).zip(racks).map(node).collect(), ..View::default() }
    }

    /// A stripe of rs(2,1), its blocks on nodes 1 to 3 and second copies of its data on 4 and 5.
    fn stripe() -> StripeRecord {
        let layout = StripeLayout { layout: Layout::new(8192, 4096, 1).unwrap(), k: 2, m: 1, data_len: 16384 };
        let placed = |node, copy| PlacedBlock {
            generation: 1,
            generation_high_water: 1,
            home: Home { node: NodeId(node), disk: DiskNumber(node) },
            state: BlockState::Ok,
            copy,
        };
        StripeRecord {
            id: StripeId(1),
            owner: Owner::Object(UploadId(1)),
            number: 0,
            ended: true,
            seq: Seq::default(),
            layout,
            blocks: (1..=3).map(|node| placed(node, 0)).collect(),
            checksums: Vec::new(),
            corrupt: BTreeMap::new(),
            incomplete: false,
            copies: vec![(0, placed(4, 1)), (1, placed(5, 1))],
        }
    }

    fn suspect(view: &mut View, node: u32) {
        view.nodes.get_mut(&NodeId(node)).unwrap().suspect_for = Duration::from_secs(9);
    }

    /// The nodes whose blocks are kept, or the block that keeps copies from being dropped.
    fn kept(view: &View, stripe: &StripeRecord) -> Result<Vec<u32>, u8> {
        let kept = keep(view, stripe, |_| false)?;
        assert!(kept.iter().map(|(index, _)| *index).eq(0..3));
        Ok(kept.iter().map(|(_, placed)| placed.home.node.0).collect())
    }

    #[test]
    fn what_is_kept_is_spread_over_the_racks() {
        let stripe = stripe();
        assert_eq!(
            kept(&view(&["a", "b", "c", "b", "c"]), &stripe),
            Ok(vec![1, 2, 3]),
            "the first copies, where nothing else counts"
        );
        // Who took a and c without a look at what is still to come would have two in one of them.
        let mut view = view(&["a", "a", "c", "b", "c"]);
        assert_eq!(kept(&view, &stripe), Ok(vec![4, 2, 3]));
        suspect(&mut view, 4);
        assert_eq!(kept(&view, &stripe), Ok(vec![4, 2, 3]), "that is for a moment, and racks are for good");
        view.nodes.get_mut(&NodeId(4)).unwrap().up = false;
        assert_eq!(kept(&view, &stripe), Ok(vec![1, 2, 3]), "two in a rack are as few as may be, whichever");
    }

    #[test]
    fn trusted_nodes_are_kept_where_racks_are_equal() {
        let (mut view, stripe) = (view(&["a", "b", "c", "a", "b"]), stripe());
        suspect(&mut view, 1);
        assert_eq!(kept(&view, &stripe), Ok(vec![4, 2, 3]));
        suspect(&mut view, 4);
        suspect(&mut view, 3);
        assert_eq!(kept(&view, &stripe), Ok(vec![1, 2, 3]), "all of them are up");
        let doubted = keep(&view, &stripe, |block| (block.index, block.copy) == (0, 0)).unwrap();
        assert_eq!(doubted[0].1.home.node, NodeId(4), "somebody could not read the first copy");
    }

    #[test]
    fn a_copy_with_holes_is_not_kept_however_good_its_node() {
        let (mut view, mut stripe) = (view(&["a", "b", "c", "a", "b"]), stripe());
        suspect(&mut view, 4);
        stripe.blocks[0].state = BlockState::Corrupt;
        stripe.corrupt.insert((0, 0), vec![Span::new(0, 4096)]);
        assert_eq!(kept(&view, &stripe), Ok(vec![4, 2, 3]));
        stripe.copies[0].1.state = BlockState::Missing;
        assert_eq!(kept(&view, &stripe), Err(0), "half a block is not kept either");
    }

    #[test]
    fn parity_that_cannot_be_read_keeps_all_copies() {
        let mut view = view(&["a", "b", "c", "a", "b"]);
        view.nodes.get_mut(&NodeId(3)).unwrap().disks[0].failed = true;
        assert_eq!(kept(&view, &stripe()), Err(2));
    }
}
