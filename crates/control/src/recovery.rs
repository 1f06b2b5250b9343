//! Whether the available blocks of a stripe suffice to rebuild the others.

use crate::{planning, view::View};
use weft_codes::SharedCode;
use weft_types::{Error, Reaction, StripeRecord};

/// Whether a stripe may be acknowledged without these blocks: there are no more than `missing_max`, their checksums are
/// known, and they can be rebuilt from the others.
pub fn is_enough(
    code: &SharedCode,
    stripe: &StripeRecord,
    checksums: &[Option<Vec<u32>>],
    missing: &[u8],
    missing_max: u32,
) -> bool {
    let is_known = |index: &u8| checksums.get(usize::from(*index)).is_some_and(Option::is_some);
    missing.len() <= missing_max as usize && missing.iter().all(is_known) && is_recoverable(code, stripe, missing)
}

/// Whether blocks can be rebuilt from all others.
pub fn is_recoverable(code: &SharedCode, stripe: &StripeRecord, missing: &[u8]) -> bool {
    let stored: Vec<u8> = stripe.blocks.keys().copied().filter(|index| !missing.contains(index)).collect();
    let wanted: Vec<_> = missing.iter().map(|index| (*index, stripe.layout.coded_span())).collect();
    planning::unrecoverable(code, stripe, &stored, &wanted).is_none()
}

/// A stripe whose data cannot be read now.
#[derive(Debug, Clone)]
pub struct Unreadable {
    /// Blocks that cannot be read, ascending.
    pub blocks: Vec<u8>,
    /// The reason.
    pub why: Error,
    /// Whether it cannot be read even if all nodes are up.
    pub is_lost: bool,
}

/// Why a stripe cannot be acknowledged; `None` if it can.
pub fn unreadable(code: &SharedCode, stripe: StripeRecord, view: &View) -> Option<Error> {
    let Unreadable { why: error, is_lost, .. } = unreadable_now(code, stripe, view)?;
    let (reaction, why) = match is_lost {
        false => (Reaction::Retry, "because blocks that are needed to read it are on nodes that are down"),
        true => (error.reaction, "because too many blocks were lost since it was sent"),
    };
    Some(Error { reaction, message: format!("the stripe cannot be acknowledged, {why}: {}", error.message), ..error })
}

/// Why a stripe's data cannot be read now; `None` if it can.
pub fn unreadable_now(code: &SharedCode, stripe: StripeRecord, view: &View) -> Option<Unreadable> {
    let (blocks, why) = too_many_lost(code, stripe.clone(), view)?;
    let mut all_back = view.clone();
    all_back.nodes.values_mut().for_each(|node| node.up = true);
    Some(Unreadable { blocks, why, is_lost: too_many_lost(code, stripe, &all_back).is_some() })
}

/// The blocks that are absent if a stripe's data cannot be read from those that are available now, and why; `None` if it can.
fn too_many_lost(code: &SharedCode, stripe: StripeRecord, view: &View) -> Option<(Vec<u8>, Error)> {
    let stripe = view.serving(stripe, |_, _| false, |_| 0);
    let readable = planning::readable(&stripe, view);
    let available: Vec<u8> = readable.good.into_iter().chain(readable.suspect).collect();
    let data: Vec<_> = (0..stripe.dimension() as u8).map(|index| (index, stripe.layout.coded_span())).collect();
    let absent = planning::unrecoverable(code, &stripe, &available, &data)?;
    let lost = planning::why_absent(&stripe, &absent, &readable.lost, "it cannot be read");
    Some((absent, planning::too_many_lost(code, &stripe, &lost, view)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{DiskView, NodeView};
    use std::{collections::BTreeMap, sync::Arc, time::Duration};
    use weft_types::{BlockState, DiskNumber, Home, Layout, NodeId, Owner, PlacedBlock, Seq, StripeId, StripeLayout, UploadId};

    fn stripe(code: &SharedCode) -> StripeRecord {
        let (k, m) = (code.k() as u32, code.m() as u32);
        let layout = StripeLayout { layout: Layout::new(8192, 4096, 1).unwrap(), k, m, data_len: 8192 * u64::from(k) };
        let home = |node| Home { node: NodeId(node), disk: DiskNumber(node) };
        let placed =
            |node| PlacedBlock { generation: 1, generation_high_water: 1, home: home(node), state: BlockState::Missing, copy: 0 };
        StripeRecord {
            id: StripeId(1),
            owner: Owner::Upload(UploadId(1)),
            number: 0,
            ended: false,
            seq: Seq::default(),
            layout,
            blocks: (0..=u8::MAX).zip((1..=k + m).map(placed)).collect(),
            checksums: Vec::new(),
            kept: BTreeMap::new(),
            corrupt: BTreeMap::new(),
            incomplete: false,
            copies: Vec::new(),
        }
    }

    #[test]
    fn a_stripe_is_acknowledged_only_if_missing_blocks_can_be_rebuilt() {
        let enough = |spec: &str, missing: &[u8], missing_max| {
            let code = weft_codes::parse(spec).unwrap();
            let stripe = stripe(&code);
            is_enough(&code, &stripe, &vec![Some(vec![7]); stripe.blocks.len()], missing, missing_max)
        };
        assert!(enough("rs(4,2)", &[], 0) && enough("rs(4,2)", &[3], 1) && enough("rs(4,2)", &[0, 5], 2));
        assert!(!enough("rs(4,2)", &[3], 0) && !enough("rs(4,2)", &[0, 5], 1), "more blocks are missing than allowed");
        // Two blocks of a local group and both global parities are missing: k blocks are left, but they do not suffice.
        assert!(enough("lrc(4,2,2)", &[0, 4, 6], 4) && enough("lrc(4,2,2)", &[4, 5, 6, 7], 4));
        assert!(!enough("lrc(4,2,2)", &[0, 1, 6, 7], 4), "as many blocks as required, but they do not suffice");
    }

    #[test]
    fn a_node_that_is_down_is_waited_for_and_a_lost_block_is_not() {
        let code = weft_codes::parse("rs(4,2)").unwrap();
        let mut stripe = stripe(&code);
        stripe.blocks.values_mut().for_each(|placed| placed.state = BlockState::Ok);
        stripe.find_mut(2, 0).unwrap().state = BlockState::Missing;
        let acknowledged = |down: &[u32], failed: &[u32]| {
            let node = |id: u32| {
                let (number, path) = (DiskNumber(id), Arc::<str>::from(""));
                let failed = failed.contains(&id);
                let disk = DiskView {
                    number,
                    id: path.clone(),
                    path,
                    total_bytes: 9,
                    free_bytes: 9,
                    file_system: 0,
                    failed,
                    draining: false,
                    blocks: 1,
                    bytes_per_s: 0,
                };
                let (name, rack, up) = (id.to_string().into(), "r".into(), !down.contains(&id));
                (
                    NodeId(id),
                    NodeView { id: NodeId(id), name, rack, up, lost: false, suspect_for: Duration::ZERO, disks: vec![disk] },
                )
            };
            let view = View { nodes: (1..=6).map(node).collect(), ..View::default() };
            unreadable(&code, stripe.clone(), &view).map_or(Ok(()), |error| Err(error.reaction))
        };
        assert_eq!((acknowledged(&[1], &[]), acknowledged(&[], &[1])), (Ok(()), Ok(())));
        assert_eq!(acknowledged(&[1, 4], &[]), Err(Reaction::Retry));
        assert_eq!(acknowledged(&[1], &[4]), Err(Reaction::Retry), "one block suffices");
        assert_eq!(acknowledged(&[], &[1, 4]), Err(Reaction::Unavailable));
        assert_eq!(acknowledged(&[1], &[4, 5]), Err(Reaction::Unavailable), "one block would not suffice");
    }

    #[test]
    fn a_block_with_unknown_checksums_cannot_be_missing() {
        let code = weft_codes::parse("rs(4,2)").unwrap();
        let (stripe, mut checksums) = (stripe(&code), vec![Some(vec![7]); 6]);
        checksums[5] = None;
        assert!(is_enough(&code, &stripe, &checksums, &[4], 2) && !is_enough(&code, &stripe, &checksums, &[5], 2));
    }
}
