//! Rebuilds lost blocks without a person: the shell around [`weft_control::healer`], which decides.
//!
//! One task judges the nodes and works on the stripes, several at a time. It keeps no list: the tally of stripes with bad blocks is its
//! queue, so the next coordinator continues.

pub(crate) mod crowded;
mod reports;
mod schedule;
pub(crate) mod state;
pub(crate) mod stripe;

use crate::{limit, membership, shared::Shared};
use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use reports::Reports;
use schedule::Schedule;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use stripe::Worker;
use tokio::time::MissedTickBehavior;
use weft_control::{
    healer::{self, Ended, Judgement, Policy, Scope},
    health::Urgency,
    members::MemberStatus,
    schedule::Ticket,
    view::View,
};
use weft_proto::v1;
use weft_types::{Home, NodeId, Result, StripeId};

/// How often the nodes are judged.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How the work on a stripe ended; without a ticket if no rebuild was started.
type Done = (Option<Ticket>, (StripeId, Ended));

/// Heals the cluster for as long as it runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    shared.until_nodes_are_back().await;
    let worker = Worker::new(&shared);
    let (mut schedule, mut under_way) = (Schedule::new(&worker), FuturesUnordered::new());
    // At most one batch. Meanwhile, the repairs of the batch before it go on.
    let mut looked_up = FuturesUnordered::new();
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut usable, mut reports, mut done) = (BTreeSet::new(), Reports::default(), Vec::new());
    loop {
        let looks = tokio::select! {
            biased;
            // First, so that it comes to its turn however many stripes end.
            _ = look.tick() => {
                judge(&shared).await;
                if tidy(&shared, &mut usable) || under_way.is_empty() && looked_up.is_empty() {
                    schedule.begin_again();
                }
                schedule.urge(&shared.health.lock().tally);
                reports.look(&shared);
                true
            }
            Some(batch) = looked_up.next() => {
                done.extend(schedule.add(batch).into_iter().map(|ended| (None, ended)));
                false
            }
            Some(ended) = under_way.next() => {
                done.push(ended);
                while let Some(Some(ended)) = under_way.next().now_or_never() {
                    done.push(ended);
                }
                false
            }
        };
        end(&shared, &mut schedule, &mut done);
        let concurrency = healer::concurrency(&shared.members.view());
        // While the last ones of a batch wait for their links, the next one is looked up.
        if looked_up.is_empty() && (looks || schedule.waiting() < concurrency / 2) {
            let (next, scope) = next(&shared, 2 * concurrency);
            if !next.is_empty() {
                looked_up.push(schedule::look_up(&worker, next, scope));
            }
        }
        while under_way.len() < concurrency
            && let Some((ticket, planned)) = schedule.start()
        {
            let (worker, scope) = (&worker, shared.healer.lock().judgement.scope.clone());
            let stripe = planned.stripe;
            under_way.push(async move { (Some(ticket), (stripe, worker.stripe(planned, &scope).await)) }.boxed());
        }
        shared.healer.lock().under_way = under_way.len();
    }
}

/// The work on these stripes has ended.
fn end(shared: &Shared, schedule: &mut Schedule<'_>, done: &mut Vec<Done>) {
    let (mut state, now) = (shared.healer.lock(), shared.started.now());
    for (ticket, (stripe, ended)) in done.drain(..) {
        ticket.into_iter().for_each(|ticket| schedule.ended(ticket));
        state.queue.ended(stripe, ended, now);
    }
}

/// Judges the nodes, and declares some of them lost.
pub(crate) async fn judge(shared: &Shared) {
    let _turn = shared.healer.judging.lock().await;
    judge_in_turn(shared).await;
}

async fn judge_in_turn(shared: &Shared) {
    let (nodes, coming_back, now) = (shared.members.statuses(), shared.members.are_coming_back(), shared.started.now());
    let (judgement, is_recorded) = {
        let mut state = shared.healer.lock();
        let policy = Policy { on: state.on, lost_after: Duration::from_millis(shared.config.lost_after_ms) };
        (state.judge.judge(&nodes, coming_back, policy, now), !state.recording.rests(&(), now))
    };
    if is_recorded {
        declare(shared, &judgement.declared).await;
    }
    shared.healer.lock().judgement = judgement;
}

/// Declares nodes lost. If the metadata cannot be written, waits longer and longer before it tries again.
async fn declare(shared: &Shared, nodes: &[NodeId]) {
    for node in nodes {
        let (name, silent_ms) = (shared.members.name(*node), shared.config.lost_after_ms);
        match membership::declare_lost(shared, *node).await {
            Ok(is_lost) => {
                shared.healer.lock().recording.done(&());
                if is_lost {
                    tracing::warn!(node = %name, silent_ms, "a node is lost: its blocks are rebuilt on other nodes");
                }
            }
            Err(error) => {
                let (times, _) = shared.healer.lock().recording.failed((), String::new(), shared.started.now());
                match times {
                    1 => tracing::error!(node = %name, %error, "cannot record that a node is lost, trying again and again"),
                    _ => tracing::debug!(node = %name, %error, times, "cannot record that a node is lost"),
                }
                return;
            }
        }
    }
}

/// Forgets what is no longer needed. If disks have come or gone, what waits is tried again. Returns whether they have.
fn tidy(shared: &Shared, usable: &mut BTreeSet<Home>) -> bool {
    let now = usable_disks(&shared.members.view());
    let mut health = shared.health.lock();
    let mut state = shared.healer.lock();
    let (scope, queue) = (state.judgement.scope.clone(), &mut state.queue);
    queue.tidy(&health.tally, &scope, shared.started.now());
    let changed = now != *usable;
    if changed {
        *usable = now;
        queue.try_again();
        health.crowded.try_again();
    }
    changed
}

fn usable_disks(view: &View) -> BTreeSet<Home> {
    let up = view.nodes.values().filter(|node| node.up);
    let disks = up.flat_map(|node| node.disks.iter().map(move |disk| (node.id, disk)));
    disks.filter(|(_, disk)| disk.takes_blocks()).map(|(node, disk)| Home { node, disk: disk.number }).collect()
}

/// The stripes to schedule now, each with its urgency, and how far repair goes. At most `places` are chosen at the same time.
fn next(shared: &Shared, places: usize) -> (Vec<(StripeId, Urgency)>, Scope) {
    let health = shared.health.lock();
    let mut state = shared.healer.lock();
    let scope = state.judgement.scope.clone();
    let next = state.queue.next(&health.tally, &scope, places, shared.started.now());
    (next.into_iter().map(|stripe| (stripe, health.tally.urgency(stripe))).collect(), scope)
}

/// Turns repair without a person on or off. Blocks that are being rebuilt are finished.
pub(crate) async fn set(shared: &Shared, asked: &v1::AutoRepair) -> Result<()> {
    let _turn = shared.healer.judging.lock().await;
    let set = shared.meta.set_auto_repair(shared.epoch, asked.on).await;
    set.map_err(|error| shared.meta_error(error))?;
    shared.healer.lock().on = asked.on;
    tracing::warn!(on = asked.on, "changed whether lost blocks are rebuilt without a person");
    judge_in_turn(shared).await;
    Ok(())
}

/// What the cluster does about its bad blocks.
pub(crate) fn show(shared: &Shared) -> v1::Healing {
    let statuses = shared.members.statuses();
    let returned = statuses.iter().filter(|it| it.up && it.record.came_back).filter_map(|it| returned(shared, it)).collect();
    let names: BTreeMap<NodeId, String> = statuses.into_iter().map(|it| (it.record.id, it.record.name.to_string())).collect();
    let (limit, least_ms) = (limit::text(shared), limit::least_ms(shared, None));
    let health = shared.health.lock();
    let state = shared.healer.lock();
    let (Judgement { scope, guard, silent, .. }, queue) = (&state.judgement, &state.queue);
    let (left, progress) = (queue.left(&health.tally, scope), queue.progress());
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let silent_node = |(node, lost_in): &(NodeId, Duration)| {
        let name = names.get(node).cloned().unwrap_or_default();
        v1::SilentNode { node: node.0, name, lost_in_ms: ms(*lost_in) }
    };
    v1::Healing {
        on: state.on,
        stopped: if let Scope::Nothing(stop) = scope { stop.text() } else { String::new() },
        guard: guard.as_ref().map(|guard| guard.text()).unwrap_or_default(),
        silent: silent.iter().map(silent_node).collect(),
        stripes_left: left,
        stripes_under_way: u32::try_from(state.under_way).unwrap_or(u32::MAX),
        stripes_done: progress.stripes,
        done: Some(v1::JobAmount { blocks: progress.done.blocks, bytes: progress.done.bytes }),
        remaining_ms: progress.remaining(left, shared.started.now()).map(ms).max(least_ms.filter(|_| left > 0)),
        limit,
        waiting: queue.waiting(&health.tally, scope).into_iter().map(waiting).collect(),
        crowded_stripes: health.crowded.count(),
        returned,
    }
}

/// How far the check of a node that came back is; `None` if nothing of it can be checked now.
fn returned(shared: &Shared, it: &MemberStatus) -> Option<v1::ReturnedNode> {
    let (checked, bad) = shared.came_back.of(it.record.id)?;
    let blocks = it.disks.values().map(|disk| disk.blocks).sum();
    Some(v1::ReturnedNode { node: it.record.id.0, name: it.record.name.to_string(), blocks, checked, bad })
}

fn waiting(it: healer::Waiting) -> v1::WaitingStripes {
    v1::WaitingStripes { wait: it.wait.name().to_owned(), stripes: it.stripes, why: it.why }
}
