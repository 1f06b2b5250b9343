//! The service for agents: registration and heartbeats.

use crate::{
    limit,
    members::{self, Session},
    moved::{self, state::Aside},
    shared::Shared,
    tasks,
    updates::tell,
    validate,
};
use std::sync::Arc;
use tonic::{Request, Response, Status, async_trait};
pub(crate) use weft_control::findings::Finding;
use weft_control::{findings::Judged, members::Heartbeat, run::Report};
use weft_meta::{Bad, Marked, MetaError, NewDisk, NewNode};
use weft_proto::{PROTOCOL, Peer, ProtocolRange, net::host, rpc, to_status, v1};
use weft_types::{BlockId, BlockState, ClassLimits, Error, NodeId, NodeState, Result, Seq, Span};

/// The most disks of a node.
const DISKS_MAX: usize = 1024;
/// The most corrupt blocks of one heartbeat; the agent reports the others again.
const CORRUPT_MAX: usize = 1024;
/// The most bytes of an agent's address or path.
const TEXT_BYTES_MAX: usize = 4096;

/// The message for metadata that are behind a node: the reason and what to do.
const OLD_COPY: &str =
    "the metadata is an old copy; start the coordinator on the newest one (docs/operations.md, \"An old copy of the metadata\")";

/// The service for agents.
pub(crate) struct MembershipService {
    shared: Arc<Shared>,
}

impl MembershipService {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    async fn registered(&self, caller: &rpc::Caller, asked: v1::RegisterRequest) -> Result<v1::RegisterReply> {
        let shared = &self.shared;
        let theirs: ProtocolRange = asked.protocol.unwrap_or_default().into();
        let protocol =
            PROTOCOL.agree(theirs).map_err(|error| Error { message: format!("agent {}: {error}", asked.name), ..error })?;
        let mut new = self.checked(&caller.peer, &asked)?;
        self.require_newest_metadata(&asked).await?;
        shared.updates_heard(&asked.name, asked.updates_ms);
        let recording = shared.members.recording.lock().await;
        let aside = if asked.keeps_aside { moved::sort(shared, &mut new, &asked.disks) } else { Vec::new() };
        let disks = new.disks.clone();
        let registered = shared.meta.register_node(shared.epoch, new, shared.now_ms()).await;
        // Also after an error: what it changes may have been recorded.
        let refreshed = moved::refresh_if_taken(shared, &disks).await;
        let record = registered.map_err(|error| shared.meta_error(error))?;
        refreshed?;
        let link_key = members::draw_link_key(&mut shared.rng());
        let expected = if shared.security.is_insecure() { Peer::Anonymous } else { Peer::Agent(record.name.to_string()) };
        let net = Arc::clone(&shared.net);
        let channel = rpc::connect_lazy(net, &shared.security, &record.control_address, &expected)?;
        let reply = v1::RegisterReply {
            cluster: shared.cluster.id.to_string(),
            node: record.id.0,
            epoch: shared.epoch.0,
            link_key: link_key.as_bytes().to_vec(),
            heartbeat_interval_ms: shared.config.heartbeat_interval_ms,
            incarnation: shared.cluster.incarnation.clone(),
            protocol: protocol.into(),
            limit: Some(limit::of_registration(shared, record.id)),
            now_ms: shared.updates_now_ms(),
            aside: aside.iter().map(Aside::told).collect(),
        };
        let node = record.id;
        tracing::info!(node = %record.name, id = %node, rack = %record.rack, disks = disks.len(), "a node registered");
        for it in &reply.aside {
            tracing::warn!(node = %record.name, why = %it.why, "a node keeps a disk aside that another one had");
        }
        shared.stragglers().forget(record.id);
        shared.activity().forget(record.id);
        let (host, metrics_address) = (host(&caller.address), asked.metrics_address);
        let name = record.name.to_string();
        let registered_ms = shared.now_ms();
        let session = Session { link_key, channel, record, host, metrics_address, protocol, registered_ms };
        shared.members.registered(session, &asked.disks, asked.coding_bytes_per_s);
        shared.moved.registered((node, &name), aside, !asked.disks.is_empty());
        moved::tell_taken(shared, &name, &disks);
        drop(recording);
        Ok(reply)
    }

    /// Fails if the agent has seen stripes that this metadata does not know: the metadata is an old copy and would
    /// assign their numbers again.
    async fn require_newest_metadata(&self, asked: &v1::RegisterRequest) -> Result<()> {
        let known = self.shared.meta.cluster().await.map_err(|error| self.shared.meta_error(error))?;
        if asked.incarnation != known.incarnation || asked.high_water <= known.stripes_high_water {
            return Ok(());
        }
        tracing::error!(node = %asked.name, seen = asked.high_water, known = known.stripes_high_water, "this metadata is an old copy");
        Err(Error::invalid(format!(
            "node {} has seen stripe {}, but this metadata knows only {}: {OLD_COPY}",
            asked.name, asked.high_water, known.stripes_high_water
        )))
    }

    /// Fails if the agent is not what it claims to be, or has obeyed another database.
    fn checked(&self, caller: &Peer, asked: &v1::RegisterRequest) -> Result<NewNode> {
        let shared = &self.shared;
        validate::name("node", &asked.name)?;
        validate::label("rack", &asked.rack)?;
        validate::label("zone", &asked.zone)?;
        if !caller.may_be_agent(&asked.name) {
            return Err(Error::invalid(format!(
                "{caller} cannot register as node {}: its certificate has another name",
                asked.name
            )));
        }
        let ours = shared.cluster.id.to_string();
        if !asked.cluster.is_empty() && asked.cluster != ours {
            return Err(Error::invalid(format!(
                "node {} belongs to cluster {}, but this is cluster {ours}: give it a new directory or the right coordinator",
                asked.name, asked.cluster
            )));
        }
        if asked.incarnation == shared.cluster.incarnation && asked.highest_epoch > shared.epoch.0 {
            return Err(Error::invalid(format!(
                "node {} has obeyed epoch {}, but this coordinator leads in epoch {}: {OLD_COPY}",
                asked.name, asked.highest_epoch, shared.epoch
            )));
        }
        if asked.node == 0 && shared.members.is_name_up(&asked.name) {
            return Err(Error::invalid(format!("a node named {} is already up: choose another name", asked.name)));
        }
        let texts =
            asked.disks.iter().flat_map(|disk| [&disk.id, &disk.path]).chain([&asked.data_address, &asked.control_address]);
        let mut texts = texts.map(|text| text.len());
        let is_wrong = texts.any(|len| len == 0 || len > TEXT_BYTES_MAX) || asked.metrics_address.len() > TEXT_BYTES_MAX;
        if asked.disks.len() > DISKS_MAX || is_wrong {
            return Err(Error::invalid(format!(
                "node {}: its addresses, and the ids and paths of its disks (at most {DISKS_MAX}), must have 1 to {TEXT_BYTES_MAX} bytes",
                asked.name
            )));
        }
        let disk = |disk: &v1::Disk| NewDisk {
            id: disk.id.clone(),
            path: disk.path.clone(),
            total_bytes: disk.total_bytes,
            failed: disk.failed,
            taken_from: None,
        };
        Ok(NewNode {
            id: (asked.node != 0).then_some(NodeId(asked.node)),
            name: asked.name.clone(),
            rack: asked.rack.clone(),
            zone: asked.zone.clone(),
            data_address: asked.data_address.clone(),
            control_address: asked.control_address.clone(),
            disks: asked.disks.iter().map(disk).collect(),
        })
    }

    async fn heard(&self, caller: &Peer, told: v1::HeartbeatRequest) -> Result<v1::HeartbeatReply> {
        let shared = &self.shared;
        let node = NodeId(told.node);
        let name = shared.members.name(node);
        let again = || Error::not_found(format!("{name} is not registered with this coordinator: register again"));
        // A node that was removed hears why when it registers.
        if told.epoch != shared.epoch.0 || !shared.members.has(node) {
            return Err(again());
        }
        if !caller.may_be_agent(&name) {
            return Err(Error::invalid(format!("{caller} cannot send heartbeats for node {name}")));
        }
        shared.limit.waited(node, told.limited_ms, shared.started.now());
        let mut heard = shared.members.heartbeat(node, &told.disks, told.fsyncs).ok_or_else(again)?;
        shared.activity().heard(node, shared.started.now());
        shared.moved.heard((node, &name), &told.disks);
        let recorded = self.record(node, &mut heard).await;
        heard.disks.iter().for_each(|(disk, failed)| shared.members.disk_not_recorded(node, *disk, *failed));
        recorded?;
        for corrupt in told.corrupt.iter().take(CORRUPT_MAX) {
            let Ok(block) = postcard::from_bytes::<BlockId>(&corrupt.block) else { continue };
            let bytes = Span::new(corrupt.first_byte, corrupt.first_byte.saturating_add(corrupt.len_bytes));
            mark(shared, node, block, &Finding::Corrupt(vec![bytes]), &corrupt.message).await?;
        }
        if shared.moved.is_called(node) {
            return Err(Error::not_found(format!("{name} keeps a disk aside of which there is news: register again")));
        }
        let limits = Some(shared.config.limits).filter(|limits| *limits != ClassLimits::default());
        Ok(v1::HeartbeatReply {
            epoch: shared.epoch.0,
            limits: limits.map(v1::ClassLimits::from),
            now_ms: shared.updates_now_ms(),
        })
    }
}

impl MembershipService {
    /// Records the changes that a heartbeat told, and takes the disks out whose state is recorded.
    async fn record(&self, node: NodeId, heard: &mut Heartbeat) -> Result<()> {
        let (shared, name) = (&self.shared, self.shared.members.name(node));
        if let Some(since_ms) = heard.came_up {
            let _recording = shared.members.recording.lock().await;
            let written = shared.meta.set_node_state(shared.epoch, node, NodeState::Up, since_ms).await;
            written.map_err(|error| shared.meta_error(error))?;
            shared.members.came_up(node, since_ms);
            tracing::info!(node = %name, "a node is up again");
        }
        while let Some((disk, failed)) = heard.disks.last().copied() {
            let written = shared.meta.set_disk_failed(shared.epoch, disk, failed).await;
            written.map_err(|error| shared.meta_error(error))?;
            tracing::warn!(node = %name, disk = disk.0, failed, "a disk changed its state");
            heard.disks.pop();
        }
        Ok(())
    }
}

/// Marks nodes as down that were silent for too long, in the metadata too.
pub(crate) async fn take_down_silent(shared: &Shared) {
    for node in shared.members.take_down_silent() {
        let _recording = shared.members.recording.lock().await;
        if shared.members.is_up(node.id) {
            continue;
        }
        match shared.meta.set_node_state(shared.epoch, node.id, NodeState::Down, node.since_ms).await {
            Ok(()) => {
                tracing::warn!(node = %node.name, id = %node.id, silent_ms = shared.config.down_after_ms, "a node is down");
            }
            Err(error) => {
                let error = shared.meta_error(error);
                shared.members.not_recorded(node.id);
                if let Some(left_out) = shared.failures.admit(&node.name, &error) {
                    tracing::error!(node = %node.name, %error, left_out, "cannot record that a node is down, trying again and again");
                }
            }
        }
    }
}

/// Declares a node lost if it is down. Returns whether it is lost now.
pub(crate) async fn declare_lost(shared: &Shared, node: NodeId) -> Result<bool> {
    if shared.members.view().node(node).is_none_or(|node| node.up || node.lost) {
        return Ok(false);
    }
    let _recording = shared.members.recording.lock().await;
    // The metadata come first: a node that registers meanwhile is not lost there, and then not here either.
    let written = shared.meta.set_node_state(shared.epoch, node, NodeState::Lost, shared.now_ms()).await;
    written.map_err(|error| shared.meta_error(error))?;
    Ok(!shared.members.declare_lost(&[node]).is_empty())
}

/// Records that a node has found its block bad in a plan for a stripe with these updates. If it was updated since, the plan compared the block
/// with what it contained before: that proves nothing.
pub(crate) async fn mark_planned(
    shared: &Shared,
    node: NodeId,
    block: BlockId,
    finding: &Finding,
    cause: &str,
    seq: &Seq,
) -> Result<()> {
    record_bad(shared, node, block, finding, (cause, Some(seq))).await
}

/// Records that a node has found its block bad, and logs it.
pub(crate) async fn mark(shared: &Shared, node: NodeId, block: BlockId, finding: &Finding, cause: &str) -> Result<()> {
    record_bad(shared, node, block, finding, (cause, None)).await
}

async fn record_bad(
    shared: &Shared,
    node: NodeId,
    block: BlockId,
    finding: &Finding,
    (cause, planned): (&str, Option<&Seq>),
) -> Result<()> {
    let stripe = match shared.meta.stripe(block.stripe).await {
        Ok(stripe) => Some(stripe),
        Err(MetaError::NotFound(_)) => None,
        Err(error) => return Err(shared.meta_error(error)),
    };
    let Judged { avoid, mark } = finding.judged(stripe.as_ref(), node, block);
    let stripe_seq = stripe.as_ref().map(|stripe| stripe.seq.clone());
    let home = stripe.as_ref().and_then(|stripe| stripe.find(block.index, block.copy).map(|placed| placed.home));
    let is_missing = *finding == Finding::Lost(BlockState::Missing);
    if planned.is_some_and(|planned| stripe_seq.is_some_and(|now| now != *planned)) {
        tracing::debug!(%block, node = %shared.members.name(node), cause, "a plan from before an update found a block bad");
        return Ok(());
    }
    if *finding == Finding::Lost(BlockState::Corrupt)
        && let Some(stripe) = &stripe
        && tell::is_newer(shared, stripe, block).await?
    {
        shared.updates.doubt(block.stripe, shared.started.now());
        return Ok(());
    }
    if avoid {
        shared.members.suspect_block(block);
    }
    let bad = match mark {
        None => return Ok(()),
        Some(Finding::Lost(state)) => Bad::Lost(state),
        Some(Finding::Corrupt(bytes)) => Bad::Corrupt(bytes),
    };
    let marked = shared.meta.mark_found(shared.epoch, block, bad, planned.cloned()).await;
    let marked = marked.map_err(|error| shared.meta_error(error))?;
    if marked == Marked::Open {
        shared.updates.keep(block);
    }
    if marked == Marked::Changed {
        if let Some(home) = home.filter(|_| !is_missing) {
            shared.disk_health.note_bad(home.disk, block, shared.started.now());
        }
        let node = shared.members.name(node);
        match shared.failures.admit(&node, cause) {
            Some(left_out) => {
                tracing::error!(%block, %node, ?finding, cause, left_out, "found a bad block: reads rebuild it until it is replaced");
            }
            None => tracing::debug!(%block, %node, ?finding, cause, "found a bad block"),
        }
    }
    Ok(())
}

#[async_trait]
impl v1::membership_server::Membership for MembershipService {
    async fn register(&self, request: Request<v1::RegisterRequest>) -> Result<Response<v1::RegisterReply>, Status> {
        let (caller, asked) = (rpc::caller(&request), request.into_inner());
        let (service, peer) = (Self::new(Arc::clone(&self.shared)), caller.peer.clone());
        // To its end, also if the agent hangs up: after half of it, this coordinator would not know what the metadata has.
        let registered = async move { service.registered(&caller, asked).await };
        let reply = tasks::to_the_end("the coordinator failed during the call", registered).await;
        let logged = |error: Error| {
            tracing::warn!(caller = %peer, %error, "refused a registration");
            to_status(&error)
        };
        reply.map(Response::new).map_err(logged)
    }

    async fn heartbeat(&self, request: Request<v1::HeartbeatRequest>) -> Result<Response<v1::HeartbeatReply>, Status> {
        let caller = rpc::caller(&request).peer;
        let reply = self.heard(&caller, request.into_inner()).await;
        reply.map(Response::new).map_err(|error| to_status(&error))
    }

    async fn find_open_stripes(
        &self,
        request: Request<v1::FindOpenStripesRequest>,
    ) -> Result<Response<v1::FindOpenStripesReply>, Status> {
        let (shared, caller) = (&self.shared, rpc::caller(&request).peer);
        let asked = request.into_inner();
        let (node, name) = (NodeId(asked.node), shared.members.name(NodeId(asked.node)));
        let found = async {
            if asked.epoch != shared.epoch.0 || !shared.members.has(node) {
                return Err(Error::not_found(format!("{name} is not registered with this coordinator: register again")));
            }
            if !caller.may_be_agent(&name) {
                return Err(Error::invalid(format!("{caller} cannot ask for node {name}")));
            }
            tell::find_open(shared, &asked.blocks, asked.open).await
        };
        let found = found.await.map(|stripes| Response::new(v1::FindOpenStripesReply { stripes }));
        found.map_err(|error| to_status(&error))
    }
}

/// Records the blocks that agents of a plan for a stripe with these updates found bad or missing.
pub(crate) async fn note_bad_blocks(shared: &Shared, report: &Report, seq: &Seq) {
    for (id, node) in &report.nodes {
        for (block, finding, error) in node.findings(*id) {
            if let Err(error) = mark_planned(shared, *id, block, &finding, &error.message, seq).await {
                tracing::error!(%block, %error, "cannot record a bad block");
            }
        }
    }
}
