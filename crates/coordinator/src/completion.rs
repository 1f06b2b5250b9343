//! Completes stripes that were acknowledged before all their blocks were durable: rebuilds the blocks that did not
//! arrive, as a repair would. The metadata records these stripes, so the next coordinator continues with them.

use crate::{
    pages::STRIPES_PER_PAGE,
    rebuild::{owner::Of, shares::Shares},
    shared::Shared,
};
use futures::{StreamExt as _, stream};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use weft_control::{rebuild::Lost, walk::Walk};
use weft_meta::{Meta, MetaError};
use weft_types::{Error, Result, StripeId, StripeRecord};

/// Stripes that are completed at the same time.
const CONCURRENCY: usize = 2;
/// Stripes are looked up after each one that was left incomplete, and at least this often.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
const LOOK_PAUSE: Duration = Duration::from_millis(250);

/// Completes stripes for as long as it runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut changes = shared.puts.late_blocks.changes();
    shared.until_nodes_are_back().await;
    loop {
        changes.mark_unchanged();
        if let Err(error) = look(&shared).await {
            tracing::warn!(%error, "cannot look up incomplete stripes");
        }
        // Several stripes may end at the same time.
        tokio::time::sleep(LOOK_PAUSE).await;
        let latest = shared.started.now() + LOOK_INTERVAL;
        let next = shared.completion().next(latest);
        tokio::select! {
            biased;
            Ok(()) = changes.changed() => {}
            () = tokio::time::sleep_until(shared.started.instant(next)) => {}
        }
    }
}

/// Tries each due stripe once.
async fn look(shared: &Arc<Shared>) -> Result<()> {
    let (mut walk, mut seen) = (Walk::new(None, |stripe: &StripeRecord| Some(stripe.id)), BTreeSet::new());
    while let Some(after) = walk.next() {
        let page = shared.meta.incomplete_stripes(after, STRIPES_PER_PAGE).await;
        let page = page.map_err(|error| shared.meta_error(error))?;
        walk.came(&page.items, page.more);
        seen.extend(page.items.iter().map(|stripe| stripe.id));
        let due = page.items.into_iter().filter(|it| shared.completion().is_due(&it.id, shared.started.now()));
        stream::iter(due).for_each_concurrent(CONCURRENCY, |stripe| complete(shared, stripe)).await;
    }
    shared.completion().retain(|stripe| seen.contains(stripe));
    Ok(())
}

async fn complete(shared: &Arc<Shared>, stripe: StripeRecord) {
    let (id, number) = (stripe.id, stripe.number);
    // A running plan records the blocks that it brings before it ends.
    if shared.puts.late_blocks.has_stripe(id) {
        return;
    }
    let _claim = shared.claims.claim(id).await;
    let completed = match lacking(shared.meta.as_ref(), id).await {
        Ok(Some(stripe)) => rebuild(shared, stripe).await,
        Ok(None) => Ok(()),
        Err(error) => Err(shared.meta_error(error)),
    };
    match completed {
        Ok(()) => shared.completion().done(&id),
        Err(error) => {
            let object = error.object.clone().unwrap_or_default();
            let why = Error { object: None, ..error.clone() }.to_string();
            let (times, pause) = shared.completion().failed(id, why, shared.started.now());
            let again_ms = pause.as_millis();
            if times == 1 {
                tracing::warn!(object, stripe = number, %error, again_ms, "cannot complete a stripe, trying again later");
            } else {
                tracing::debug!(object, stripe = number, %error, again_ms, times, "cannot complete a stripe yet");
            }
        }
    }
}

/// The current record of a stripe, if blocks of it must be rebuilt. They may have arrived while the stripe waited for
/// its turn.
async fn lacking(meta: &dyn Meta, id: StripeId) -> Result<Option<StripeRecord>, MetaError> {
    match meta.stripe(id).await {
        Ok(stripe) => Ok((!stripe.on_their_way().is_empty()).then_some(stripe)),
        Err(MetaError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Rebuilds the missing blocks of a stripe.
async fn rebuild(shared: &Arc<Shared>, stripe: StripeRecord) -> Result<()> {
    let missing = stripe.on_their_way();
    let of = match Of::owner(shared.meta.as_ref(), stripe.owner).await {
        // Its put was just committed, removed or aborted; if the stripe still exists, it gets another turn.
        Err(MetaError::NotFound(_)) => return Ok(()),
        of => of.map_err(|error| shared.meta_error(error))?,
    };
    let (number, lost) = (stripe.number, missing.iter().map(|(index, copy)| Lost::of(&stripe, *index, *copy)).collect());
    let rebuilt = of.rebuild(shared, (stripe, lost), &Shares::default(), |request| request, |_| {}).await?;
    match rebuilt.left.into_iter().next() {
        Some(((index, _), why)) => Err(of.place(Error::unavailable(format!("block {index}: {why}")))),
        None => {
            tracing::info!(object = %of.name, stripe = number, blocks = ?missing, "completed a stripe that ended early");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_meta::{EndStripe, Leftovers, MetaMode, NewCluster, NewNode, NewStripe, NewUpload, PolicyRecord, SqliteMeta};
    use weft_types::{
        Ack, BlockState, ClusterId, DiskNumber, FailureDomain, Home, Layout, ObjectName, PutKey, StripeLayout, UpdatesInPlace,
    };

    #[tokio::test]
    async fn a_stripe_whose_blocks_have_arrived_in_time_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { block_len: 4096, cell_len: 4096, alpha: 1 };
        let (code, ack, failure_domain) = ("xor(2)".to_owned(), Ack { missing_max: 1 }, FailureDomain::Node);
        let (block_len, cell_len, replicas, updates, is_default) = (4096, 4096, 1, UpdatesInPlace::Allowed, true);
        let policy = PolicyRecord {
            name: "p".into(),
            code: code.clone(),
            block_len,
            cell_len,
            failure_domain,
            ack,
            replicas,
            updates,
            is_default,
        };
        let new = NewCluster { id: ClusterId(7), incarnation: 9, policies: vec![policy], created_ms: 1, auto_repair: true };
        let meta = SqliteMeta::open(&dir.path().join("metadata.sqlite"), MetaMode::Inline, &new).unwrap();
        let epoch = meta.become_leader().await.unwrap();
        meta.create_bucket(epoch, "b", None, 1).await.unwrap();
        let mut homes = Vec::new();
        for number in 1..=3 {
            let disk = weft_meta::NewDisk {
                id: format!("d{number}"),
                path: "/d".into(),
                total_bytes: 1 << 20,
                failed: false,
                taken_from: None,
            };
            let (name, rack, zone) = (format!("n{number}"), "r".to_owned(), "z".to_owned());
            let (data_address, control_address) = (format!("{number}"), format!("{number}"));
            let node = NewNode { id: None, name, rack, zone, data_address, control_address, disks: vec![disk] };
            let node = meta.register_node(epoch, node, 1).await.unwrap();
            homes.push(Home { node: node.id, disk: DiskNumber(number) });
        }
        let (name, replaces) = (ObjectName { bucket: "b".into(), key: "k".into() }, None);
        let new = NewUpload {
            name,
            code,
            layout,
            failure_domain,
            ack,
            replicas,
            created_ms: 1,
            expires_ms: 9,
            replaces,
            key: PutKey::NONE,
        };
        let upload = meta.begin_put(epoch, new, Vec::new()).await.unwrap().0.id;
        let layout = StripeLayout { layout, k: 2, m: 1, data_len: 8192 };
        let new = NewStripe { number: 0, layout, homes: homes.clone() };
        let stripe = meta.allocate_stripes(epoch, upload, vec![new], Leftovers::default()).await.unwrap()[0].id;
        let states = [BlockState::Ok, BlockState::Ok, BlockState::Missing];
        let blocks = homes.into_iter().zip(states).map(|(home, state)| (1, home, state)).collect();
        let end = EndStripe { upload, stripe, blocks, checksums: vec![vec![1]; 3], garbage_not_before_ms: 1 };
        let (ended, _) = meta.end_stripe(epoch, end, None).await.unwrap();

        assert_eq!(lacking(&meta, stripe).await, Ok(Some(ended.clone())));
        meta.mark_block(epoch, ended.block_id(2).unwrap(), BlockState::Ok).await.unwrap();
        assert_eq!(lacking(&meta, stripe).await, Ok(None), "an outdated lookup must not count");
        meta.abort_put(epoch, upload, Leftovers::default()).await.unwrap();
        assert_eq!(lacking(&meta, stripe).await, Ok(None), "the stripe is not needed any more");
    }
}
