//! The agent's membership in the cluster: it registers, sends heartbeats, and registers again when the coordinator no
//! longer knows it.

use crate::{
    disks::{Disks, hold_rates},
    limit,
    node::{Node, Registration},
    updates::Coordinator,
};
use rand::Rng;
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tonic::transport::Channel;
use weft_proto::{
    LinkKey, PROTOCOL, Peer, from_status,
    rpc::{connect, membership_client, with_deadline},
    v1::{self, HeartbeatReply, HeartbeatRequest, RegisterReply, RegisterRequest, membership_client::MembershipClient},
};
use weft_types::{ClassLimits, ClusterId, Error, NodeId, Reaction, Result};

/// The addresses at which others reach the agent.
pub(crate) struct Addresses {
    pub(crate) data: String,
    pub(crate) control: String,
    /// Empty if it serves no metrics.
    pub(crate) metrics: String,
}

/// How long a heartbeat waits for the figures of disks, which are usually there at once.
pub(crate) const LOOK_PATIENCE: Duration = Duration::from_millis(250);
const CALL_DEADLINE: Duration = Duration::from_secs(5);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(3);
/// After this many unanswered heartbeats the agent tries another coordinator.
const FAILURES_MAX: u32 = 3;

/// Registers and stays registered until the agent stops. Returns early only on a fatal error.
pub(crate) async fn stay(node: Arc<Node>, addresses: Addresses) -> Result<()> {
    let mut pause = PAUSE_MIN;
    let mut complaint = String::new();
    for coordinator in node.config.coordinators.iter().cycle() {
        match register(&node, &addresses, coordinator).await {
            Ok((client, settled)) => {
                (pause, complaint) = (PAUSE_MIN, String::new());
                let lost = heartbeats(&node, client, settled).await;
                tracing::warn!(%coordinator, error = %lost, "lost the connection to the coordinator");
            }
            Err(Failure::Fatal(error)) => return Err(error),
            Err(Failure::Passing(error)) if error.message != complaint => {
                tracing::warn!(%coordinator, %error, "cannot register with the coordinator");
                complaint = error.message;
            }
            Err(Failure::Passing(_)) => {}
        }
        // Many agents lose their coordinator at the same moment. The random pause keeps them from all returning at the
        // same moment.
        sleep(pause.mul_f64(node.draw(|random| random.random_range(0.5..1.0)))).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
    Ok(())
}

/// Why a registration failed.
enum Failure {
    /// A later attempt may succeed.
    Passing(Error),
    /// The agent must stop.
    Fatal(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Passing(error)
    }
}

/// Also returns how many disks had been opened before.
async fn register(
    node: &Arc<Node>,
    addresses: &Addresses,
    coordinator: &str,
) -> Result<(MembershipClient<Channel>, usize), Failure> {
    let channel = connect(Arc::clone(&node.seams.net), &node.security, coordinator, &Peer::Coordinator).await?;
    let mut client = membership_client(channel);
    let mut joined = false;
    loop {
        let settled = node.disks().map_or(0, |disks| disks.settled());
        let asked = request(node, addresses).await?;
        let told: BTreeSet<String> = asked.disks.iter().map(|disk| disk.id.clone()).collect();
        let reply = call(client.register(with_deadline(asked, CALL_DEADLINE))).await?;
        let registration = accept(node, &reply).await?;
        // The journals of the disks are opened at the coordinator's time.
        node.updates.hub.time.told(reply.now_ms);
        if let Ok(disks) = node.disks() {
            // Before it can take a task. An older coordinator has no limit.
            node.limit.apply(registration.epoch, &reply.limit.unwrap_or_default(), &node.throttles, &disks);
            node.sort_disks(&disks, &told, &reply.aside).await?;
            tracing::info!(node = %registration.node, epoch = registration.epoch, %coordinator, "registered");
            begin_updates(node, &registration, &client);
            node.set_registration(registration);
            return Ok((client, settled));
        }
        if joined {
            return Err(Error::fatal("internal error: the disks are missing after they were opened").into());
        }
        // The disks can be opened only now that the cluster is known. A second registration then reports them.
        node.open_disks(registration.cluster).await.map_err(Failure::Fatal)?;
        joined = true;
    }
}

/// Tells the coordinator and its key to what serves updates. The journals of the disks that serve are open already.
fn begin_updates(node: &Node, registration: &Registration, client: &MembershipClient<Channel>) {
    let hub = &node.updates.hub;
    let (node, epoch) = (registration.node.0, registration.epoch);
    hub.asker.registered(Coordinator { calls: client.clone(), node, epoch });
    hub.registered(registration.link_key.clone());
    // Its metadata may have been restored from a copy that does not know that they are open.
    hub.asker.ask(hub.fence.open_blocks());
}

async fn request(node: &Arc<Node>, addresses: &Addresses) -> Result<RegisterRequest> {
    let known = node.state.get();
    let disks = match node.disks() {
        Ok(disks) => {
            // The size of a disk that has never answered is not known.
            disks.look(node.seams.disk_mode, CALL_DEADLINE).await;
            reported(node, &disks)
        }
        Err(_) => Vec::new(),
    };
    let cluster = *node.cluster.borrow();
    Ok(RegisterRequest {
        protocol: Some(PROTOCOL.into()),
        cluster: cluster.map(|cluster| cluster.to_string()).unwrap_or_default(),
        node: known.node.map_or(0, |node| node.0),
        name: node.config.name.clone(),
        rack: node.config.rack.clone(),
        zone: node.config.zone.clone(),
        data_address: addresses.data.clone(),
        control_address: addresses.control.clone(),
        disks,
        highest_epoch: known.epoch,
        incarnation: known.incarnation,
        high_water: known.high_water,
        coding_bytes_per_s: node.coding_bytes_per_s,
        metrics_address: addresses.metrics.clone(),
        updates_ms: node.updates.hub.time.highest_ms(),
        keeps_aside: true,
    })
}

/// Checks the coordinator's reply and makes it durable before the agent acts on it.
async fn accept(node: &Arc<Node>, reply: &RegisterReply) -> Result<Registration> {
    let cluster: ClusterId = reply.cluster.parse().map_err(Error::invalid)?;
    if let Some(ours) = *node.cluster.borrow()
        && ours != cluster
    {
        return Err(Error::invalid(format!("the coordinator belongs to cluster {cluster}, this node to cluster {ours}")));
    }
    let speaks = u32::from(PROTOCOL.oldest)..=u32::from(PROTOCOL.newest);
    if !speaks.contains(&reply.protocol) {
        return Err(Error::invalid(format!(
            "the coordinator requires protocol version {}, but this agent speaks version {PROTOCOL}",
            reply.protocol
        )));
    }
    let link_key = LinkKey::from_slice(&reply.link_key)?;
    node.obey(reply.epoch).await?;
    let known = node.state.get();
    if !known.incarnation.is_empty() && known.incarnation != reply.incarnation {
        tracing::warn!(
            known = %known.incarnation, new = %reply.incarnation,
            "the metadata has another incarnation: this node removes no blocks at its request"
        );
    }
    let (id, incarnation) = (NodeId(reply.node), reply.incarnation.clone());
    let state = Arc::clone(&node.state);
    let remember = move || {
        state.update(|memory| {
            memory.node = Some(id);
            if memory.incarnation.is_empty() {
                memory.incarnation = incarnation;
            }
        })
    };
    node.seams.disk_mode.run_boxed(remember).await?;
    let heartbeat = Duration::from_millis(u64::from(reply.heartbeat_interval_ms.clamp(10, 60_000)));
    Ok(Registration { cluster, node: id, epoch: reply.epoch, link_key, heartbeat })
}

/// Sends heartbeats. Returns the reason why they no longer reach the coordinator.
async fn heartbeats(node: &Arc<Node>, mut client: MembershipClient<Channel>, settled: usize) -> Error {
    let registration = match node.registration() {
        Ok(registration) => registration,
        Err(error) => return error,
    };
    let mut beats = interval(registration.heartbeat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failures = 0;
    loop {
        beats.tick().await;
        // Only a registration tells a new disk, and the size of one.
        if node.disks().is_ok_and(|disks| disks.settled() > settled) {
            return Error::not_found("a disk has been opened since the registration: registering again");
        }
        match heartbeat(node, &registration, &mut client).await {
            Ok(()) => failures = 0,
            Err(error) if error.reaction == Reaction::NotFound => return error,
            Err(error) => {
                failures += 1;
                if failures >= FAILURES_MAX {
                    return error;
                }
            }
        }
    }
}

async fn heartbeat(node: &Arc<Node>, registration: &Registration, client: &mut MembershipClient<Channel>) -> Result<()> {
    let disks = node.disks()?;
    let limited_ms = limit::limited(&node.throttles, &disks).as_millis() as u64;
    save_state(node);
    disks.look(node.seams.disk_mode, LOOK_PATIENCE).await;
    let (disks, fsyncs) = (reported(node, &disks), disks.fsyncs());
    let corrupt = node.findings.report();
    let request = HeartbeatRequest {
        node: registration.node.0,
        epoch: registration.epoch,
        disks,
        corrupt: corrupt.clone(),
        memory_used_bytes: node.admission.memory_used_bytes(),
        memory_budget_bytes: node.config.limits.memory_budget.0,
        fsyncs,
        limited_ms,
    };
    let HeartbeatReply { epoch, limits, now_ms } = call(client.heartbeat(with_deadline(request, CALL_DEADLINE))).await?;
    node.findings.told(&corrupt);
    node.updates.hub.time.told(now_ms);
    if epoch != registration.epoch {
        return Err(Error::not_found(format!("the coordinator's epoch changed from {} to {epoch}", registration.epoch)));
    }
    node.keep_within(limits.map(ClassLimits::from).unwrap_or_default());
    Ok(())
}

fn reported(node: &Node, disks: &Disks) -> Vec<v1::Disk> {
    let mut reports = disks.report(node.disk_timeout());
    hold_rates(&mut reports, node.throttles.disk_rate());
    reports
}

/// Saves the high-water mark of stripes if it has grown, unless that is still under way. Nothing waits for it: a heartbeat must not depend on a
/// disk.
fn save_state(node: &Arc<Node>) {
    let Ok(turn) = Arc::clone(&node.saving).try_acquire_owned() else { return };
    let node = Arc::clone(node);
    tokio::spawn(async move {
        let state = Arc::clone(&node.state);
        // The thread that saves keeps the turn.
        let saved = node.seams.disk_mode.run_boxed(move || state.update(|_| ()).map(|()| drop(turn))).await;
        if let Err(error) = saved
            && let Some(left_out) = node.failures.admit("state", &error.message)
        {
            tracing::warn!(%error, left_out, "cannot save the agent's state");
        }
    });
}

/// A call's answer, or an error when its deadline passes.
async fn call<T>(answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>) -> Result<T> {
    match timeout(CALL_DEADLINE, answer).await {
        Ok(Ok(reply)) => Ok(reply.into_inner()),
        Ok(Err(status)) => Err(from_status(&status)),
        Err(_) => Err(Error::retry(format!("the coordinator did not answer within {CALL_DEADLINE:?}"))),
    }
}
