//! Status says of every stripe that is not at full strength what becomes of it: it is being rebuilt, or what it waits for is named.
//!
//! What an object lacks and what the cluster's status says are asked one after the other, and the status follows the metadata a little later.
//! So only what both say again and again is compared.

use super::{BUCKET, Story};
use std::collections::BTreeMap;
use weft_client::api::HealthReply;
use weft_tests::Failure;

/// Status may be late for so many comparisons, about half a second.
const LATE_MAX: u32 = 1;

/// The stripes that lack blocks: index, copy, generation, node and state of each bad block.
type Lacking = BTreeMap<u64, Vec<(u32, u32, u32, u32, String)>>;

/// The comparisons so far.
#[derive(Default)]
pub(super) struct Named {
    /// What the last ones were about, if status did not say it, and how many these are.
    late: (Lacking, u32),
    /// How many comparisons were about some stripe.
    pub(super) compared: usize,
}

impl Story {
    /// Compares once.
    pub(super) async fn check_named(&mut self) -> Result<(), Failure> {
        let (Some(mut lacking), Ok(health)) = (self.lacking().await, self.client.health().await) else { return Ok(()) };
        let Some(after) = self.lacking().await else { return Ok(()) };
        lacking.retain(|stripe, bad| after.get(stripe) == Some(bad));
        self.named.compared += usize::from(!lacking.is_empty());
        // Of those that were late before, the ones that still are; otherwise it begins anew.
        let (mut late, times) = std::mem::take(&mut self.named.late);
        late.retain(|stripe, bad| lacking.get(stripe) == Some(bad));
        let (late, times) = match self.unsaid(&late, &health).await {
            Some(_) => (late, times),
            None => (lacking, 0),
        };
        let Some(unsaid) = self.unsaid(&late, &health).await else { return Ok(()) };
        if times == LATE_MAX {
            return Err(Failure(format!("{unsaid}: these lack blocks: {late:?}, and status says {health:?}")));
        }
        self.named.late = (late, times + 1);
        Ok(())
    }

    /// `None` if it cannot be asked.
    async fn lacking(&self) -> Option<Lacking> {
        let mut lacking = Lacking::new();
        for key in self.known.objects.keys() {
            for stripe in self.client.stat(BUCKET, key).await.ok()?.stripes {
                let bad = stripe.blocks.iter().chain(&stripe.copies).filter(|block| block.state != "ok");
                let bad: Vec<_> = bad.map(|it| (it.index, it.copy, it.generation, it.node, it.state.clone())).collect();
                if !bad.is_empty() {
                    lacking.insert(stripe.id, bad);
                }
            }
        }
        Some(lacking)
    }

    /// What status does not say of these stripes.
    async fn unsaid(&self, lacking: &Lacking, health: &HealthReply) -> Option<String> {
        let healing = health.healing.clone().unwrap_or_default();
        if health.counting || lacking.is_empty() {
            return None;
        }
        if health.stripes_with_bad_blocks < lacking.len() as u64 {
            return Some("status counts too few stripes with bad blocks".into());
        }
        if !healing.stopped.is_empty() {
            return None;
        }
        let down: Vec<u32> = self.nodes().await.iter().filter(|node| node.state == "down").map(|node| node.id).collect();
        let is_silent = |node: &u32| down.contains(node);
        let silent = |bad: &(u32, u32, u32, u32, String)| bad.4 == "down" && is_silent(&bad.3);
        if let Some((.., node, _)) =
            lacking.values().flatten().find(|bad| silent(bad) && !healing.silent.iter().any(|it| it.node == bad.3))
        {
            return Some(format!("status does not name n{node}, which is silent"));
        }
        let due = lacking.values().filter(|bad| !bad.iter().all(silent)).count() as u64;
        let said = healing.stripes_left + healing.waiting.iter().map(|it| it.stripes).sum::<u64>() + health.unreadable_stripes;
        (said < due).then(|| format!("{due} stripes are to be rebuilt, and status knows of {said}"))
    }
}
