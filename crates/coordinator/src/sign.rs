//! From a verified plan to the messages for each party: its task, the other ends of its links, and the tokens for them.

use crate::{in_flight::Moving, limit, members::Session, shared::Shared};
use std::collections::BTreeMap;
use weft_codes::SharedCode;
use weft_control::{planning::Planned, run::Ends, view::View};
use weft_plan::Task;
use weft_proto::{LinkRights, encode_task, token::task_hash, v1};
use weft_types::{BlockId, BlockMeta, Error, Home, NodeId, ObjectName, Party, PlanId, Result, Seq, StripeRecord, UploadId};

/// A plan that is ready to be opened.
pub(crate) struct Signed {
    pub(crate) id: PlanId,
    pub(crate) agents: BTreeMap<NodeId, SignedTask>,
    /// Whether an agent of it dials another, which must have opened its task by then.
    pub(crate) agents_dial: bool,
    /// The client's part, if a client takes part.
    pub(crate) client: Option<v1::ClientTask>,
    /// The updates that the stripe contains by the record that it was planned with.
    pub(crate) seq: Seq,
    /// Counts as running as long as it is kept.
    pub(crate) moving: Moving,
}

/// One agent's part.
pub(crate) struct SignedTask {
    pub(crate) session: Session,
    pub(crate) open: v1::OpenRequest,
    /// Whether its first event contains the pages of the checksum units that it reads in part.
    pub(crate) tells_pages: bool,
    /// Bytes that arrive over its links if nothing fails.
    pub(crate) incoming_bytes: u64,
    /// Bytes over all its links then, in and out.
    pub(crate) link_bytes: u64,
    /// Its links.
    pub(crate) ends: Ends,
}

/// An agent's instructions for a block that it stores.
pub(crate) struct StoreOrder {
    pub(crate) meta: BlockMeta,
    /// The checksums that it must have, if known.
    pub(crate) expected_checksums: Vec<u32>,
    /// The disk's id at its agent.
    pub(crate) disk: String,
}

/// An agent's instructions for a block that it stores.
#[expect(clippy::too_many_arguments, reason = "a sidecar contains all of this")]
pub(crate) fn store_order(
    shared: &Shared,
    code: &SharedCode,
    object: &ObjectName,
    version: UploadId,
    stripe: &StripeRecord,
    block: BlockId,
    home: Home,
    view: &View,
) -> Result<StoreOrder> {
    let disk = view
        .disk(home)
        .ok_or_else(|| Error::replan("the block's disk no longer exists").party(Party::Node(home.node)).block(block))?;
    let meta = BlockMeta {
        cluster: shared.cluster.id,
        id: block,
        object: object.to_string(),
        version: version.0,
        object_offset: stripe.object_offset(),
        code: code.spec(),
        generator_hash: weft_codes::generator_hash(code.as_ref()),
        stripe: stripe.layout,
        seq: stripe.seq.clone(),
    };
    Ok(StoreOrder { meta, expected_checksums: Vec::new(), disk: disk.id.to_string() })
}

/// Cuts a stripe's plan into tasks and signs its links. `client` is the name of the agent that acts as the plan's
/// client; empty if none does.
pub(crate) fn sign(
    shared: &Shared,
    planned: &Planned,
    stripe: &StripeRecord,
    orders: &BTreeMap<BlockId, StoreOrder>,
    client: &str,
) -> Result<Signed> {
    let plan = &planned.plan;
    weft_plan::check_for_agents(plan)?;
    let mut cuts: BTreeMap<Party, Cut> = BTreeMap::new();
    for (vertex, party) in (0..=u16::MAX).zip(&plan.binding.parties) {
        let task = weft_plan::cut(plan, vertex);
        let bytes = encode_task(&task)?;
        let session = match party {
            Party::Node(node) => Some(session(shared, *node)?),
            Party::Client(_) => None,
        };
        let name = session.as_ref().map_or_else(|| client.to_owned(), |session: &Session| session.record.name.to_string());
        cuts.insert(*party, Cut { hash: task_hash(&bytes), bytes, task, session, name });
    }
    let extra_stall_ms = limit::state::ms(shared.limit.extra_stall(plan.class));
    let stall_ms = shared.config.stall_ms.saturating_add(extra_stall_ms);
    let moving = shared.in_flight.begin(planned.lines.clone(), plan.class);
    let (seq, agents_dial) = (stripe.seq.clone(), agents_dial(&cuts));
    let mut signed = Signed { id: plan.id, agents: BTreeMap::new(), agents_dial, client: None, seq, moving };
    for (party, cut) in &cuts {
        let peers = cut.task.links.iter().map(|link| peer(*party, cut, link, &cuts)).collect::<Result<Vec<_>>>()?;
        match (party, &cut.session) {
            (Party::Node(node), Some(session)) => {
                let stores = cut.task.stores.iter().map(|block| store_spec(block.id, orders)).collect::<Result<Vec<_>>>()?;
                let task = cut.bytes.clone();
                let registration = session.link_key.id().to_vec();
                let reads = cut.task.blocks.iter().map(|block| read_spec(block.id, stripe)).collect::<Result<Vec<_>>>()?;
                let open = v1::OpenRequest { task, peers, stores, stall_ms, registration, reads, extra_stall_ms };
                let (incoming_bytes, link_bytes) = (bytes_over(&cut.task, |link| !link.sends), bytes_over(&cut.task, |_| true));
                let sends = cut.task.links.iter().filter(|link| link.sends).count() as u32;
                let ends = Ends { receives: cut.task.links.len() as u32 - sends, sends };
                let session = session.clone();
                signed.agents.insert(*node, SignedTask { session, open, tells_pages: false, incoming_bytes, link_bytes, ends });
            }
            _ => signed.client = Some(v1::ClientTask { task: cut.bytes.clone(), peers, stall_ms, extra_stall_ms }),
        }
    }
    Ok(signed)
}

struct Cut {
    task: Task,
    bytes: Vec<u8>,
    hash: [u8; 32],
    /// `None` for a client.
    session: Option<Session>,
    /// The agent's name; empty for a client that is not an agent.
    name: String,
}

/// The description of the other end of one of `party`'s links.
fn peer(party: Party, cut: &Cut, link: &weft_plan::TaskLink, cuts: &BTreeMap<Party, Cut>) -> Result<v1::LinkPeer> {
    let other = cuts.get(&link.peer).ok_or_else(|| Error::fatal("internal error: a link has no other end").party(party))?;
    let name = other.name.clone();
    let (mut address, mut token) = (String::new(), Vec::new());
    if dials(cut, link, other) {
        let acceptor =
            other.session.as_ref().ok_or_else(|| Error::fatal("internal error: a link connects two clients").party(party))?;
        let (from, to) = if link.sends { (party, link.peer) } else { (link.peer, party) };
        let rights = LinkRights { epoch: cut.task.epoch, plan: cut.task.plan, link: link.id(), from, to, task_hash: other.hash };
        token = acceptor.link_key.issue(&rights).0.to_vec();
        address = acceptor.record.data_address.clone();
    }
    Ok(v1::LinkPeer { link: link.id(), address, token, name })
}

/// Whether an agent dials another one.
fn agents_dial(cuts: &BTreeMap<Party, Cut>) -> bool {
    let mut agents = cuts.values().filter(|cut| cut.session.is_some());
    agents.any(|cut| cut.task.links.iter().any(|link| matches!(link.peer, Party::Node(_))))
}

/// A client always dials; between agents the sender dials.
fn dials(cut: &Cut, link: &weft_plan::TaskLink, other: &Cut) -> bool {
    match (&cut.session, &other.session) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(_), Some(_)) => link.sends,
    }
}

fn session(shared: &Shared, node: NodeId) -> Result<Session> {
    let session = shared.members.session(node);
    session.ok_or_else(|| Error::replan(format!("{} went down", shared.members.name(node))).party(Party::Node(node)))
}

fn store_spec(block: BlockId, orders: &BTreeMap<BlockId, StoreOrder>) -> Result<v1::StoreSpec> {
    let order =
        orders.get(&block).ok_or_else(|| Error::fatal("internal error: a block to store has no description").block(block))?;
    order.spec()
}

impl StoreOrder {
    /// The message.
    pub(crate) fn spec(&self) -> Result<v1::StoreSpec> {
        let meta = postcard::to_allocvec(&self.meta)
            .map_err(|error| Error::fatal(format!("cannot encode a block's description: {error}")).block(self.meta.id))?;
        Ok(v1::StoreSpec { meta, expected_checksums: self.expected_checksums.clone(), disk: self.disk.clone() })
    }
}

/// The recorded checksums of a block that is read. There are none until its stripe has ended.
fn read_spec(block: BlockId, stripe: &StripeRecord) -> Result<v1::ReadSpec> {
    let id = postcard::to_allocvec(&block)
        .map_err(|error| Error::fatal(format!("cannot encode a block's id: {error}")).block(block))?;
    Ok(v1::ReadSpec { id, checksums: stripe.checksums.get(usize::from(block.index)).cloned().unwrap_or_default() })
}

/// Bytes over some of a task's links if nothing fails.
fn bytes_over(task: &Task, some: impl Fn(&weft_plan::TaskLink) -> bool) -> u64 {
    let positions = |lane: u16| {
        let lanes = task.lanes.iter().filter(|candidate| candidate.lane == lane);
        lanes.flat_map(|lane| lane.slices(task.slice_len)).map(weft_types::Span::len).sum::<u64>()
    };
    let links = task.links.iter().filter(|link| some(link));
    links.map(|link| u64::from(link.width).saturating_mul(positions(link.lane))).fold(0, u64::saturating_add)
}
