//! When the receivers of a put hold it up.

use crate::{shared::Shared, supervise::IsSpare};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use weft_codes::SharedCode;
use weft_control::{
    placement::{self, Ask},
    run::StallPolicy,
    view::NodeView,
};
use weft_meta::UploadRecord;
use weft_types::{NodeId, Party, StripeRecord};

/// How many links the input of each stage has come over: by node, lane and stage.
pub(super) fn levels(plan: &weft_plan::Plan) -> BTreeMap<(NodeId, u32, u32), u32> {
    let mut levels = BTreeMap::new();
    for (number, lane) in (0..).zip(&plan.shape.lanes) {
        let mut of = vec![0u32; lane.stages.len()];
        // A link makes the level at its end one more than at its beginning; no way is longer than there are stages.
        for _ in 0..lane.stages.len() {
            for link in &lane.links {
                let from = of.get(usize::from(link.from)).copied().unwrap_or(0);
                if let Some(to) = of.get_mut(usize::from(link.to)) {
                    *to = from.saturating_add(1).max(*to);
                }
            }
        }
        for ((at, stage), level) in (0..).zip(&lane.stages).zip(of) {
            if let Some(Party::Node(node)) = plan.binding.parties.get(usize::from(stage.vertex)) {
                levels.insert((*node, number, at), level);
            }
        }
    }
    levels
}

/// How long receivers wait for one of them that holds them up, and whether another node could take its block. A disk may be busy with other
/// puts: a receiver that says so has longer, and still less than it takes the writer to give up all receivers that wait for it.
pub(super) fn stall(
    shared: &Arc<Shared>,
    upload: &UploadRecord,
    code: &SharedCode,
    stripe: &StripeRecord,
    plan: &weft_plan::Plan,
) -> Option<(StallPolicy, IsSpare<'static>)> {
    let slice_bytes = plan.binding.slice_len.saturating_mul(stripe.layout.layout.alpha.into());
    let stall_timeout = shared.stall_after(slice_bytes, shared.puts.learnt(upload.id).held_up())?;
    let disk_timeout = stall_timeout.max(Duration::from_millis(u64::from(shared.config.stall_ms) / 4));
    let homes: BTreeSet<NodeId> = stripe.all().map(|(_, placed)| placed.home.node).collect();
    let (spec, bytes) = (code.spec(), stripe.layout.block_len(0).saturating_add(shared.config.disk_reserve.0));
    let (shared, failure_domain, tolerance) = (Arc::clone(shared), upload.new.failure_domain, code.tolerance());
    let is_spare: IsSpare<'static> = Box::new(move |_| {
        let (held, avoid, load) = (&[], &homes, &placement::NOTHING);
        let ask = Ask { code: &spec, count: 1, tolerance, failure_domain, held, avoid, named: false, load, bytes };
        let view = shared.members.view();
        // Only a node that is not suspect counts as a replacement.
        let is_trusted = |node: &NodeView| node.up && !node.is_suspect() && !homes.contains(&node.id);
        view.nodes.values().any(is_trusted) && placement::place(&view, &ask, &mut *shared.rng()).is_ok()
    });
    // All links come from the writer: no receiver waits for another.
    let one_by_one = levels(plan).values().all(|level| *level <= 1);
    let failed_max = upload.new.ack.missing_max as usize;
    Some((StallPolicy { stall_timeout, disk_timeout, to_the_last: true, one_by_one, failed_max }, is_spare))
}
