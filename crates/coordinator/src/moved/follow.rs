//! Works on moved disks: calls nodes whose disks can be taken over now, and lets blocks follow their disks.

use super::{
    is_unusable, judged, owner_of, refresh,
    state::{Following, State},
};
use crate::{rebuild::owner::Of, shared::Shared};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::{
    sync::MutexGuard,
    time::{MissedTickBehavior, timeout},
};
use weft_control::{
    crowding::{self, Racks},
    moved::{Step, Walked, is_copy, is_lost_there},
};
use weft_meta::{FollowDisk, FollowedBlocks, MetaError};
use weft_types::{BlockId, DiskNumber, Error, Home, NodeId, Result, StripeId, StripeRecord, counted};

/// How often to look.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Blocks that one transaction moves.
const BLOCKS_PER_STEP: u32 = 256;
/// Steps for one disk before the next has its turn.
const STEPS_PER_LOOK: usize = 40;
/// The pause between two steps, which leaves time for other work of the metadata.
const STEP_PAUSE: Duration = Duration::from_millis(20);
/// How long a write in place waits for the agent that a disk was moved to. It has a few seconds to take the disk in before its first heartbeat.
const JOIN_PATIENCE: Duration = Duration::from_secs(5);

/// Works for as long as it runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        call(&shared);
        follow_all(&shared).await;
    }
}

/// Calls the nodes of which a disk can be taken over now.
fn call(shared: &Shared) {
    let mut state = shared.moved.lock();
    let State { aside, called, copies, .. } = &mut *state;
    let now = shared.started.now();
    aside.retain(|node, _| shared.members.has(*node));
    for (node, disks) in aside {
        let name = shared.members.name(*node);
        for it in disks {
            it.open_since = if is_unusable(&it.disk) { None } else { it.open_since.or(Some(now)) };
            let key = (name.clone(), it.disk.id.clone());
            if let Some((owner, record)) = owner_of(shared, &it.disk.id) {
                if is_lost_there(&owner, &record) {
                    copies.remove(&key);
                } else if it.open_since.is_some_and(|since| is_copy(&owner, &record, now.since(since))) {
                    copies.insert(key.clone());
                }
            }
            let copy = copies.contains(&key);
            if copy && !it.copy {
                // Its agent remembers it, also for the next coordinator.
                called.insert(*node);
            }
            match judged(shared, &name, &it.disk, copy) {
                Some(Err(why)) => it.why = why,
                // It may have been forgotten where it was.
                Some(Ok(_)) | None => drop(called.insert(*node)),
            }
        }
    }
}

async fn follow_all(shared: &Shared) {
    let moved: BTreeMap<DiskNumber, Home> = moved(shared).map(|from| (from.disk, from)).collect();
    shared.moved.lock().follows.retain(|number, _| moved.contains_key(number));
    for from in moved.into_values() {
        if let Err(error) = follow(shared, from).await {
            with(shared, from, |it| it.follow.failed(shared.started.now()));
            let node = shared.members.name(from.node);
            if let Some(left_out) = shared.failures.admit(&node, &error.message) {
                tracing::warn!(%node, disk = from.disk.0, %error, left_out, "blocks cannot follow their disk to another node yet");
            }
        }
    }
}

/// The places where moved disks were.
fn moved(shared: &Shared) -> impl Iterator<Item = Home> {
    shared.members.statuses().into_iter().flat_map(|status| {
        let node = status.record.id;
        status.record.disks.into_iter().filter_map(move |disk| disk.moved_to.map(|_| Home { node, disk: disk.number }))
    })
}

fn with<T>(shared: &Shared, from: Home, change: impl FnOnce(&mut Following) -> T) -> T {
    change(shared.moved.lock().follows.entry(from.disk).or_default())
}

/// Some steps for the blocks of a disk.
async fn follow(shared: &Shared, from: Home) -> Result<()> {
    for _ in 0..STEPS_PER_LOOK {
        let Some((after, unchecked)) = with(shared, from, |it| it.follow.next(shared.started.now())) else { return Ok(()) };
        if !step(shared, from, after, unchecked).await? {
            return Ok(());
        }
        tokio::time::sleep(STEP_PAUSE).await;
    }
    Ok(())
}

/// Returns whether there is more to do at once.
async fn step(shared: &Shared, from: Home, after: Option<BlockId>, unchecked: bool) -> Result<bool> {
    // A registration may move the disk on, and a check of the new node's blocks may just end.
    let recording = shared.members.recording.lock().await;
    let Some(to) = shared.members.moved_to(from).filter(|to| !is_joining(shared, to.node)) else { return Ok(false) };
    let next = FollowDisk { from, after, limit: BLOCKS_PER_STEP, unchecked, only: None };
    let FollowedBlocks { moved, stayed, last, more, complete } = match shared.meta.follow_disk(shared.epoch, next).await {
        // The call of before may have been completed although it failed.
        Err(MetaError::NotFound(_)) => FollowedBlocks { complete: true, ..FollowedBlocks::default() },
        followed => followed.map_err(|error| shared.meta_error(error))?,
    };
    let step = Step { moved: moved.len() as u64, stayed, last, more };
    if !more {
        if unchecked || step.moved > 0 {
            shared.came_back.begin_again(to.node);
        }
        refresh(shared).await?;
    }
    drop(recording);
    let crowded = if step.moved > 0 { crowded(shared, moved, (from, to)).await? } else { 0 };
    let (walked, crowded) = with(shared, from, |it| {
        it.crowded += crowded;
        let walked = it.follow.came(step, shared.started.now());
        (walked, if more { 0 } else { std::mem::take(&mut it.crowded) })
    });
    if let Some(walked) = walked {
        tell(shared, (from, to), walked, crowded);
    }
    if complete {
        tracing::info!(disk = from.disk.0, node = %shared.members.name(from.node), "nothing is left where a moved disk was: it is forgotten there");
    }
    Ok(more)
}

/// Lets the blocks of a stripe follow their disks at once, where their turn has not come: they are about to be given up as lost. Returns whether
/// any has. The caller asks the new node for them: after the first walk, only it finds that one is not there.
pub(crate) async fn follow_stripe(shared: &Shared, stripe: &StripeRecord) -> Result<bool> {
    let blocks = stripe.all().map(|(index, placed)| (placed.home, stripe.id_of(index, placed)));
    let moved: Vec<(Home, BlockId)> = blocks.filter(|(from, _)| shared.members.moved_to(*from).is_some()).collect();
    let mut has_moved = false;
    for (from, block) in moved {
        let _recording = recording_joined(shared, from).await?;
        let step = FollowDisk { from, after: None, limit: 1, unchecked: false, only: Some(block) };
        has_moved |= match shared.meta.follow_disk(shared.epoch, step).await {
            // It has followed just now, and nothing is left there.
            Err(MetaError::NotFound(_)) => true,
            followed => !followed.map_err(|error| shared.meta_error(error))?.moved.is_empty(),
        };
    }
    Ok(has_moved)
}

/// Takes `recording` once the agent that a disk was moved to knows that the disk is its own: until then it would say that blocks are not there.
async fn recording_joined(shared: &Shared, from: Home) -> Result<MutexGuard<'_, ()>> {
    let joined = async {
        loop {
            // A registration may be about to end.
            let recording = shared.members.recording.lock().await;
            if shared.members.moved_to(from).is_none_or(|to| !is_joining(shared, to.node)) {
                return recording;
            }
            drop(recording);
            tokio::time::sleep(STEP_PAUSE).await;
        }
    };
    let late = |_| Error::retry("a node is still taking a disk with a block of the stripe in, which was moved to it: try again");
    timeout(JOIN_PATIENCE, joined).await.map_err(late)
}

/// Whether a node has taken a disk over and its agent may not know it yet. One that is down does not answer anyway.
fn is_joining(shared: &Shared, node: NodeId) -> bool {
    shared.members.is_up(node) && shared.moved.lock().joining.contains(&shared.members.name(node))
}

fn tell(shared: &Shared, (from, to): (Home, Home), Walked { moved, stayed }: Walked, crowded: usize) {
    let [from, node] = [from.node, to.node].map(|node| shared.members.name(node));
    tracing::info!(%node, %from, moved, stayed, "blocks have followed their disk to another node");
    if stayed > 0 {
        let blocks = counted(stayed, "block");
        tracing::warn!(
            %node, %from,
            "{blocks} of a moved disk count as lost: the new node has other blocks of their stripes, their stripes are open for updates, or they \
             were missing before. What does not follow later is rebuilt"
        );
    }
    if crowded > 0 {
        let rack = shared.members.view().node(to.node).map(|node| node.rack.to_string()).unwrap_or_default();
        tracing::warn!(%node, %rack, stripes = crowded, "since a disk was moved, stripes have more blocks in a rack than their code tolerates to \
             lose; the cluster moves them out while nothing is lost");
    }
}

/// How many of these stripes have too many blocks in a rack.
async fn crowded(shared: &Shared, moved: Vec<StripeId>, (from, to): (Home, Home)) -> Result<usize> {
    let view = shared.members.view();
    let rack = |home: Home| view.node(home.node).map(|node| &node.rack);
    if rack(from) == rack(to) {
        return Ok(0);
    }
    let (racks, mut crowded) = (Racks::of(&view), 0);
    for stripe in shared.meta.find_stripes(moved).await.map_err(|error| shared.meta_error(error))? {
        let of = match Of::owner(shared.meta.as_ref(), stripe.owner).await {
            Err(MetaError::NotFound(_)) => continue,
            found => found.map_err(|error| shared.meta_error(error))?,
        };
        let tolerance = shared.code(&of.code)?.tolerance();
        crowded += usize::from(!crowding::excess(&stripe, tolerance, of.failure_domain, &racks, &view).is_empty());
    }
    Ok(crowded)
}
