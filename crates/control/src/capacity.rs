//! The free space that conversions leave on disks. During a conversion both forms of an object need space, and agents
//! free the old form only at their removal rate. If new blocks filled the disks up to the users' own reserve, every put
//! would stop until then.

use crate::{
    placement::{self, Ask, NOTHING},
    reserve::{self, Share},
    view::{DiskView, NodeView, View},
};
use rand::{SeedableRng as _, rngs::StdRng};
use std::collections::BTreeSet;
use weft_codes::SharedCode;
use weft_types::{
    ByteSize, Cause, Error, FailureDomain, NodeId, RebuildReserve, Result, StripeLayout,
    conversion::{SPOOLED_BEYOND_BYTES, kept_free_bytes},
};

/// An empty set of nodes.
static NOBODY: BTreeSet<NodeId> = BTreeSet::new();

/// The space that a conversion needs.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// The stripe's code.
    pub code: &'a SharedCode,
    /// The unit of placement.
    pub failure_domain: FailureDomain,
    /// The number of blocks to place, including copies of data; each goes to a different node.
    pub count: usize,
    /// Bytes of each block.
    pub bytes: u64,
    /// Bytes of the stripe if its writer may have to spool all of it to a disk; otherwise 0.
    pub spooled_bytes: u64,
    /// Nodes that hold other blocks of the stripe.
    pub held: &'a [NodeId],
    /// Nodes that get no block for other reasons.
    pub avoid: &'a BTreeSet<NodeId>,
}

impl<'a> Wanted<'a> {
    /// For a whole stripe.
    pub fn stripe(code: &'a SharedCode, replicas: u8, failure_domain: FailureDomain, stripe: &StripeLayout) -> Self {
        let (data, blocks) = (stripe.data_blocks() as usize, stripe.blocks().count());
        let count = placement::nodes_needed(data, blocks, replicas);
        Self { code, failure_domain, count, bytes: stripe.block_len(0), spooled_bytes: 0, held: &[], avoid: &NOBODY }
    }

    /// Adds the space that the writer may need to spool the stripe.
    pub fn spooled(self, data_len: u64) -> Self {
        Self { spooled_bytes: if data_len > SPOOLED_BEYOND_BYTES { data_len } else { 0 }, ..self }
    }

    /// The warning about racks if these nodes get no block either. Copies ignore racks.
    fn crowded(&self, view: &View, without: &BTreeSet<NodeId>) -> Option<String> {
        let (code, avoid) = (self.code.spec(), self.avoid | without);
        let ask = Ask {
            code: &code,
            count: self.count.min(self.code.n()),
            tolerance: self.code.tolerance(),
            failure_domain: self.failure_domain,
            held: self.held,
            avoid: &avoid,
            named: false,
            load: &NOTHING,
            bytes: 0,
            kept: Share::NONE,
        };
        // The number of blocks in a rack does not depend on the random numbers.
        let placed = placement::place(view, &ask, &mut StdRng::seed_from_u64(0)).ok()?;
        placed.warnings.into_iter().next()
    }
}

/// The free space that must remain on each disk that takes a block of a conversion.
#[derive(Debug, Clone, Copy)]
pub struct KeptFree {
    /// Free space that puts leave too, bytes.
    pub reserve_bytes: u64,
    /// What puts leave besides, to rebuild the largest node.
    pub rebuild: RebuildReserve,
    /// Further free space for puts, percent of the disk.
    pub percent: u32,
}

impl KeptFree {
    /// Whether a node has a disk that can take a block of this length and keep the required free space; `of` gives a
    /// disk's free bytes. The disk with the most free space counts, because blocks are placed there.
    fn has_room(self, node: &NodeView, bytes: u64, share: Share, of: impl Fn(&DiskView) -> u64) -> bool {
        let kept = |disk: &DiskView| {
            kept_free_bytes(disk.total_bytes, self.reserve_bytes, self.percent).saturating_add(share.of(disk.total_bytes))
        };
        node.disks.iter().any(|disk| disk.takes_blocks() && of(disk) >= kept(disk).saturating_add(bytes))
    }

    /// What a disk keeps free besides the reserve, for messages.
    fn beside(self, share: Share) -> String {
        let rebuild = match share.is_none() {
            true => String::new(),
            false => format!(" and the {share} that puts leave free to rebuild the largest node (rebuild_reserve)"),
        };
        format!("the {} % of a disk that conversions leave to puts (conversion_free_percent){rebuild}", self.percent)
    }

    /// The nodes that lack the space for a block of a conversion.
    ///
    /// Returns [`Reaction::Retry`](weft_types::Reaction) if the conversion must wait for space: too few nodes have
    /// enough, or the rest would leave a crowded rack. A lack of nodes as such is not an error here; placement reports
    /// it.
    pub fn without_room(self, view: &View, wanted: &Wanted<'_>) -> Result<BTreeSet<NodeId>> {
        let Wanted { count, bytes, held, avoid, .. } = *wanted;
        let is_asked = |node: &&NodeView| !held.contains(&node.id) && !avoid.contains(&node.id);
        let is_usable = |node: &&NodeView| node.up && node.takes_blocks();
        let now = |disk: &DiskView| disk.free_bytes;
        let share = reserve::share(self.rebuild, view, wanted.code.n());
        let (roomy, full): (Vec<_>, Vec<_>) =
            view.nodes.values().filter(is_asked).filter(is_usable).partition(|node| self.has_room(node, bytes, share, now));
        let usable = roomy.len() + full.len();
        let (block, reserve, beside) = (ByteSize(bytes), ByteSize(self.reserve_bytes), self.beside(share));
        let is_too_small = |node: &&&NodeView| !self.has_room(node, bytes, share, |disk| disk.total_bytes);
        let never: BTreeSet<NodeId> = full.iter().filter(is_too_small).map(|node| node.id).collect();
        let waits = |why: String| {
            Error::retry(format!(
                "waits for space: {} of {usable} nodes have less than {block} and {reserve} free in addition to {beside}, and {why}; \
                 the space of removed blocks becomes free at the rate that limits.freed_percent_per_hour of the agents allows",
                full.len()
            ))
        };
        if roomy.len() < count && usable >= count {
            if usable - never.len() < count {
                return Err(Error::unavailable(format!(
                    "a stripe needs {count} nodes, but the disks of {} of {usable} are too small for a block of {block} and {reserve} \
                     in addition to {beside}",
                    never.len()
                ))
                .cause(Cause::NoSpace));
            }
            return Err(waits(format!("a stripe needs {count} nodes")));
        }
        self.require_spool(view, share, wanted.spooled_bytes)?;
        let full: BTreeSet<NodeId> = full.iter().map(|node| node.id).collect();
        match wanted.crowded(view, &full) {
            Some(crowded) if wanted.crowded(view, &never).is_none() => Err(waits(format!("without these nodes {crowded}"))),
            _ => Ok(full),
        }
    }

    /// Fails unless some disk can spool a whole stripe.
    fn require_spool(self, view: &View, share: Share, bytes: u64) -> Result<()> {
        let any = |of: fn(&DiskView) -> u64| view.nodes.values().any(|node| node.up && self.has_room(node, bytes, share, of));
        // If no node is up, space is not the problem.
        if bytes == 0 || view.up_count() == 0 || any(|disk| disk.free_bytes) {
            return Ok(());
        }
        let (stripe, reserve) = (ByteSize(bytes), ByteSize(self.reserve_bytes));
        let beside = format!("{stripe} and {reserve} in addition to {}", self.beside(share));
        Err(match any(|disk| disk.total_bytes) {
            true => Error::retry(format!(
                "waits for space: the agent that writes a stripe may have to spool it to a disk, but no disk of any node has {beside} free"
            )),
            false => Error::unavailable(format!(
                "the agent that writes a stripe may have to spool it to a disk, but every disk of every node is too small for {beside}"
            )),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::Arc, time::Duration};
    use weft_types::{DiskNumber, Reaction};

    const KEPT: KeptFree = KeptFree { reserve_bytes: 20, rebuild: RebuildReserve::Off, percent: 10 };

    /// Nodes with these free bytes of 1000, in alternating racks.
    fn view(free: &[u64], racks: u32) -> View {
        let node = |(id, free): (u32, &u64)| {
            let (number, path) = (DiskNumber(id), Arc::<str>::from(""));
            let disk = DiskView {
                number,
                id: path.clone(),
                path,
                total_bytes: 1000,
                free_bytes: *free,
                file_system: 0,
                failed: false,
                draining: false,
                blocks: 0,
                bytes_per_s: 0,
            };
            let (name, rack) = (id.to_string().into(), format!("r{}", id % racks).into());
            (
                NodeId(id),
                NodeView { id: NodeId(id), name, rack, up: true, lost: false, suspect_for: Duration::ZERO, disks: vec![disk] },
            )
        };
        View { nodes: (1..).zip(free).map(node).collect(), ..View::default() }
    }

    /// Two blocks of five bytes, on different nodes.
    fn two_of(code: &SharedCode) -> Wanted<'_> {
        let (failure_domain, held, avoid) = (FailureDomain::Node, &[], &NOBODY);
        Wanted { code, failure_domain, count: 2, bytes: 5, spooled_bytes: 0, held, avoid }
    }

    fn numbers(nodes: BTreeSet<NodeId>) -> Vec<u32> {
        nodes.into_iter().map(|node| node.0).collect()
    }

    #[test]
    fn a_conversion_leaves_a_share_of_each_disk_and_waits_if_too_few_nodes_have_more() {
        let code = weft_codes::parse("rs(1,1)").unwrap();
        let wanted = two_of(&code);
        let without =
            |free: &[u64], count, bytes| KEPT.without_room(&view(free, 1), &Wanted { count, bytes, ..wanted }).map(numbers);
        assert_eq!(without(&[125, 124, 1000], 2, 5), Ok(vec![2]), "to the byte");
        let waits = without(&[125, 124, 24], 2, 5).unwrap_err();
        assert_eq!(waits.reaction, Reaction::Retry);
        assert!(waits.message.starts_with("waits for space: 2 of 3 nodes have less than 5 and 20 free"), "{waits}");
        assert_eq!(without(&[125, 124], 3, 5), Ok(vec![2]), "too few nodes for another reason than space");
        assert_eq!(KeptFree { percent: 0, ..KEPT }.without_room(&view(&[25, 25], 1), &wanted), Ok(BTreeSet::new()));
        // A block that would not fit on an empty disk is not waited for.
        assert_eq!(without(&[1000, 24], 2, 880).unwrap_err().reaction, Reaction::Retry);
        let never = without(&[1000, 24], 2, 881).unwrap_err();
        assert_eq!(never.reaction, Reaction::Unavailable);
        assert!(never.message.contains("the disks of 2 of 2 are too small"), "{never}");
    }

    #[test]
    fn a_conversion_also_leaves_what_puts_leave_to_rebuild_the_largest_node() {
        let code = weft_codes::parse("rs(1,1)").unwrap();
        let wanted = Wanted { count: 3, ..two_of(&code) };
        let kept = KeptFree { rebuild: RebuildReserve::Auto, ..KEPT };
        // A quarter of 1000 on four nodes.
        assert_eq!(kept.without_room(&view(&[375, 374, 375, 375], 1), &wanted).map(numbers), Ok(vec![2]));
        let waits = kept.without_room(&view(&[375, 374, 374, 375], 1), &wanted).unwrap_err();
        assert!(waits.message.contains("(conversion_free_percent) and the 25.0 % that puts leave free"), "{waits}");
        assert_eq!(KEPT.without_room(&view(&[125; 4], 1), &wanted).map(numbers), Ok(vec![]));
    }

    #[test]
    fn a_node_that_is_unreachable_or_holds_a_block_has_no_room() {
        let code = weft_codes::parse("rs(1,1)").unwrap();
        let wanted = two_of(&code);
        let (view, one) = (view(&[500, 500, 100], 1), NodeId(1));
        assert_eq!(KEPT.without_room(&view, &wanted).map(numbers), Ok(vec![3]));
        let avoid = BTreeSet::from([one]);
        for wanted in [Wanted { avoid: &avoid, ..wanted }, Wanted { held: &[one], ..wanted }] {
            let waits = KEPT.without_room(&view, &wanted).unwrap_err();
            assert!(waits.reaction == Reaction::Retry && waits.message.contains("1 of 2 nodes"), "{waits}");
            let fits = KEPT.without_room(&view, &Wanted { count: 1, ..wanted }).map(numbers);
            assert_eq!(fits, Ok(vec![3]), "one more node has room");
        }
    }

    #[test]
    fn a_stripe_to_be_spooled_waits_for_a_disk_with_room() {
        let spool = |free: &[u64], bytes| KEPT.require_spool(&view(free, 1), Share::NONE, bytes).map_err(|error| error.reaction);
        assert_eq!(spool(&[100, 520, 100], 400), Ok(()), "to the byte");
        assert_eq!(spool(&[100, 519, 100], 400), Err(Reaction::Retry));
        assert_eq!(spool(&[100, 100], 880), Err(Reaction::Retry));
        assert_eq!(spool(&[1000, 1000], 881), Err(Reaction::Unavailable), "it would not fit on an empty disk");
        assert_eq!((spool(&[0, 0], 0), spool(&[], 5)), (Ok(()), Ok(())));
        // Since some agent may have too little memory for it.
        let code = weft_codes::parse("rs(1,1)").unwrap();
        let wanted = Wanted { count: 1, ..two_of(&code) };
        let spooled = |data_len| KEPT.without_room(&view(&[500], 1), &wanted.spooled(data_len)).map_err(|error| error.reaction);
        assert_eq!((spooled(1 << 20), spooled((1 << 20) + 1)), (Ok(BTreeSet::new()), Err(Reaction::Unavailable)));
    }

    #[test]
    fn a_conversion_waits_rather_than_overfill_a_rack() {
        let code = weft_codes::parse("rs(6,3)").unwrap();
        let whole = Wanted {
            code: &code,
            failure_domain: FailureDomain::Rack,
            count: 9,
            bytes: 5,
            spooled_bytes: 0,
            held: &[],
            avoid: &NOBODY,
        };
        // Three racks of five; in the third, only this many nodes have room.
        let roomy =
            |in_last: u32| (1..=15).map(|id| if id % 3 != 2 || id / 3 < in_last { 500 } else { 100 }).collect::<Vec<u64>>();
        let without = |free: &[u64], wanted: &Wanted<'_>| KEPT.without_room(&view(free, 3), wanted).map(|full| full.len());
        assert_eq!(without(&roomy(5), &whole), Ok(0));
        assert_eq!(without(&roomy(3), &whole), Ok(2), "three of each rack are enough");
        let waits = without(&roomy(2), &whole).unwrap_err();
        assert_eq!(waits.reaction, Reaction::Retry);
        assert!(
            waits.message.starts_with("waits for space: 3 of 15 nodes") && waits.message.contains("gets 4 blocks"),
            "{waits}"
        );
        assert_eq!(without(&roomy(0), &Wanted { failure_domain: FailureDomain::Node, ..whole }), Ok(5), "racks do not matter");
        // Copies need nodes, but not racks.
        assert_eq!(without(&roomy(3), &Wanted { count: 13, ..whole }), Ok(2));
        // Here a rack gets too many blocks for another reason than space.
        let two_racks = KEPT.without_room(&view(&[500, 500, 500, 500, 500, 500, 500, 500, 500, 500, 100], 2), &whole);
        assert_eq!(two_racks.map(numbers), Ok(vec![11]));
        // It does not wait for space that can never become free.
        let too_small = Wanted { bytes: 480, ..whole };
        let mut view = view(&roomy(5), 3);
        for disk in view.nodes.values_mut().filter(|node| &*node.rack == "r2").flat_map(|node| &mut node.disks) {
            (disk.total_bytes, disk.free_bytes) = (400, 400);
        }
        view.nodes.values_mut().filter(|node| &*node.rack != "r2").for_each(|node| node.disks[0].free_bytes = 1000);
        assert_eq!(KEPT.without_room(&view, &too_small).map(|full| full.len()), Ok(5));
    }
}
