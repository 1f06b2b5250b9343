//! Opens a task: checks it, opens its blocks, starts its new blocks, reserves its resources, and registers the
//! connections that it expects. If one step fails, nothing remains.

use crate::{
    admission::Permit,
    block_source::OpenBlock,
    disks::Disks,
    line::Passage,
    link::{Dial, Unconnected, Way},
    node::{Node, Registration},
    ports::TaskPorts,
    reception::{Expected, Guest, Guests},
    store_sink::Target,
    traffic::Traffic,
    wire,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};
use tokio::sync::oneshot;
use weft_engine::classes::Demand;
use weft_plan::{Class, Sink, Source, Task, TaskLink};
use weft_proto::{
    Direction, Hello, LinkRights, LinkToken, Peer, Stall,
    token::task_hash,
    v1::{LinkPeer, OpenRequest, ReadSpec, StoreSpec},
};
use weft_store::BlockReader;
use weft_types::{BlockId, BlockMeta, Error, Party, Result, Span};

/// A task that is ready to start.
pub(crate) struct OpenTask {
    pub(crate) task: Task,
    pub(crate) ports: TaskPorts,
    pub(crate) traffic: Arc<Traffic>,
    /// Dropped last: the resources are released after everything that uses them.
    pub(crate) permit: Permit,
    _guests: Guests,
}

/// A link fails when nothing moves on it for this long, unless the coordinator sets another time.
const STALL_DEFAULT_MS: u32 = 30_000;

/// Opens the task that the request carries.
pub(crate) async fn open(node: &Arc<Node>, task: Task, request: OpenRequest) -> Result<OpenTask> {
    let registration = node.registration()?;
    if !request.registration.is_empty() && request.registration != registration.link_key.id() {
        // Either the request is late, or the reply to the newest registration is. A late request never becomes valid:
        // this process does not know what was removed before it started, and an old task must not bring a removed block
        // back.
        return Err(Error::retry("the task was planned for another registration of this node"));
    }
    task.validate()?;
    let me = Party::Node(registration.node);
    if task.party != me {
        return Err(Error::invalid(format!("a task of {} was sent to {me}", task.party)));
    }
    refuse_foreign_ports(&task)?;
    node.obey(task.epoch).await?;
    let disks = node.disks()?;
    let specs = store_specs(&request.stores, &registration, &task)?;
    let recorded = recorded_checksums(&request.reads)?;

    let stall_ms = if request.stall_ms == 0 { STALL_DEFAULT_MS } else { request.stall_ms };
    let stall = Stall::of_task(stall_ms, request.extra_stall_ms, node.limit.extra_stall(task.precedence().class));
    let traffic = Arc::new(node.meter.of(task.precedence().class).traffic.of_task());
    let ends = LinkEnds { node, registration: &registration, task: &task, task_bytes: &request.task, stall, traffic: &traffic };
    let (links, guests) = ends.make(&request.peers)?;

    let (opening, task_of_blocks, traffic_of_blocks) = (Arc::clone(node), task.clone(), Arc::clone(&traffic));
    let opened =
        node.seams.disk_mode.run(move || open_blocks(&opening, &disks, &task_of_blocks, specs, &recorded, &traffic_of_blocks));
    let (permit, blocks, targets) = opened.await?;
    let (slice_len, disk_mode, throttles) = (task.slice_len, node.seams.disk_mode, node.throttles.clone());
    let of = task.precedence();
    let ports = TaskPorts { slice_len, disk_mode, blocks, targets, links: Mutex::new(links), throttles, of };
    let guests = node.reception.expect(task.plan, guests);
    Ok(OpenTask { task, ports, traffic, permit, _guests: guests })
}

/// Refuses ports that an agent does not have, before it reserves anything.
fn refuse_foreign_ports(task: &Task) -> Result<()> {
    for stage in task.lanes.iter().flat_map(|lane| &lane.stages) {
        if stage.sources.iter().any(|source| matches!(source, Source::Input { .. })) {
            return Err(Error::invalid("an agent has no new data as an input: only a client has"));
        }
        if stage.sinks.iter().any(|sink| matches!(sink, Sink::Output { .. } | Sink::Patch { .. })) {
            return Err(Error::invalid(
                "an agent cannot deliver to a reader, and this version changes blocks in place without plans",
            ));
        }
    }
    Ok(())
}

/// A block to store, as the coordinator describes it.
struct Spec {
    meta: BlockMeta,
    expected_checksums: Option<Vec<u32>>,
    disk: String,
}

fn store_specs(stores: &[StoreSpec], registration: &Registration, task: &Task) -> Result<BTreeMap<u8, Spec>> {
    let mut specs = BTreeMap::new();
    for store in stores {
        let meta: BlockMeta = wire::decode("block's description", &store.meta)?;
        let (id, units) = (meta.id, &store.expected_checksums);
        let wrong = |what: &str| Err(Error::invalid(what).block(id));
        if meta.cluster != registration.cluster {
            return wrong("the block belongs to another cluster");
        }
        let Some(block) = task.stores.iter().find(|block| block.id == id) else {
            return wrong("the task does not store this block");
        };
        if meta.stripe.layout != task.layout || meta.len() != block.len || meta.seq != task.seq {
            return wrong("the block's description and the task do not agree");
        }
        let units_due = meta.stripe.checksum_units(u32::from(id.index));
        if !units.is_empty() && units.len() as u64 != units_due {
            return wrong("the number of checksums does not match the block's length");
        }
        // An empty block has no checksums, and there is nothing to compare.
        let expected_checksums = (!units.is_empty()).then(|| units.clone());
        specs.insert(id.index, Spec { meta, expected_checksums, disk: store.disk.clone() });
    }
    match task.stores.iter().find(|block| specs.get(&block.id.index).is_none_or(|spec| spec.meta.id != block.id)) {
        Some(block) => Err(Error::invalid("the task stores this block, but the request does not describe it").block(block.id)),
        None => Ok(specs),
    }
}

/// The recorded checksums of the blocks to read, one for each MiB.
type Recorded = BTreeMap<BlockId, Vec<u32>>;

fn recorded_checksums(reads: &[ReadSpec]) -> Result<Recorded> {
    let known = reads.iter().filter(|read| !read.checksums.is_empty());
    known.map(|read| Ok((wire::decode("block", &read.id)?, read.checksums.clone()))).collect()
}

/// Refuses a block whose sidecar does not match the recorded checksums: it is an older version, or payload and sidecar
/// were changed together. Every page is compared with the sidecar when it is read, and so with the record.
fn require_recorded(reader: &dyn BlockReader, id: BlockId, recorded: &Recorded) -> Result<()> {
    let Some(units) = recorded.get(&id).filter(|units| *units != reader.units()) else { return Ok(()) };
    let first = units.iter().zip(reader.units()).position(|(recorded, found)| recorded != found);
    let first = first.unwrap_or(units.len().min(reader.units().len()));
    let message = format!(
        "the block's checksums differ from the recorded ones from unit {first} on: payload and sidecar were changed together"
    );
    let error = Error::corrupt(message).block(id);
    tracing::error!(%error, "found a block that differs from the one that was written");
    Err(error)
}

type Blocks = (Permit, BTreeMap<u8, OpenBlock>, BTreeMap<u8, Arc<Target>>);

/// Opens the blocks to read, then reserves resources, then starts the blocks to store. A task that is not admitted
/// writes to no disk.
fn open_blocks(
    node: &Arc<Node>,
    disks: &Disks,
    task: &Task,
    specs: BTreeMap<u8, Spec>,
    recorded: &Recorded,
    traffic: &Arc<Traffic>,
) -> Result<Blocks> {
    let of = task.precedence();
    let mut demand = Demand { memory_bytes: task.memory_bytes(), connections: task.links.len() as u32, blocks: BTreeMap::new() };
    let mut blocks = BTreeMap::new();
    for block in &task.blocks {
        let in_use = Arc::new(node.updates.hub.fence.read(block.id)?);
        if of.class == Class::Scrub {
            disks.forget_sidecar(block.id);
        }
        let (disk, reader) = disks.open_block(block.id)?;
        let meta = reader.meta();
        if meta.stripe.layout != task.layout {
            return Err(Error::invalid("the block's layout differs from the task's").block(block.id));
        }
        // It grew after the metadata were copied that the coordinator has, or is an earlier version.
        if meta.len() != block.len {
            let (has, wanted) = (meta.len(), block.len);
            return Err(Error::corrupt(format!("the block has {has} bytes, and not {wanted} as recorded")).block(block.id));
        }
        require_recorded(reader.as_ref(), block.id, recorded)?;
        *demand.blocks.entry(disk).or_default() += 1;
        let (passage, served) = (Passage::new(disks.line(disk), of), Arc::clone(&disks.served(disk).reads));
        let (layout, traffic, findings) = (task.layout, Arc::clone(traffic), Arc::clone(&node.findings));
        let buffers = Arc::clone(&node.buffers);
        let (id, corrupt) = (block.id, Arc::default());
        blocks.insert(
            id.index,
            OpenBlock { id, reader, layout, traffic, findings, corrupt, passage, served, buffers, _in_use: in_use },
        );
    }
    let mut stores = Vec::new();
    for (index, spec) in specs {
        let (disk, store) = disks.by_id(&spec.disk).map_err(|error| error.block(spec.meta.id))?;
        *demand.blocks.entry(disk).or_default() += 1;
        stores.push((index, spec, disk, store));
    }
    let permit = node.admission.admit(of, demand)?;
    if of.class == Class::Scrub {
        // What the page cache has of a block says nothing about the disk.
        blocks.values().for_each(|block: &OpenBlock| block.reader.forget_cached(Span::new(0, block.reader.meta().len())));
    }
    let mut targets = BTreeMap::new();
    for (index, spec, disk, store) in stores {
        let claim = node.partials.claim(task.plan, disk, store.as_ref(), &spec.meta)?;
        let stores_it = |sink: &&Sink| matches!(sink, Sink::Store { index: stored, .. } if *stored == index);
        let stages = task.lanes.iter().flat_map(|lane| &lane.stages);
        let sinks = stages.flat_map(|stage| stage.sinks.iter().filter(stores_it)).count();
        let at = (Passage::new(disks.line(disk), of), Arc::clone(&disks.served(disk).syncs));
        targets.insert(index, Arc::new(Target::new(claim, spec.expected_checksums, sinks, Arc::clone(traffic), at)));
        node.state.note_stripe(spec.meta.id.stripe.0);
    }
    Ok((permit, blocks, targets))
}

/// The ends of a task's links, by the links' numbers in the plan.
type Links = BTreeMap<u32, Unconnected>;

/// Creates the ends of a task's links.
struct LinkEnds<'a> {
    node: &'a Arc<Node>,
    registration: &'a Registration,
    task: &'a Task,
    task_bytes: &'a [u8],
    stall: Stall,
    traffic: &'a Arc<Traffic>,
}

impl LinkEnds<'_> {
    fn make(&self, peers: &[LinkPeer]) -> Result<(Links, Vec<(u32, Expected)>)> {
        let peers: BTreeMap<u32, &LinkPeer> = peers.iter().map(|peer| (peer.link, peer)).collect();
        let windows: BTreeMap<u16, u32> = self.task.lanes.iter().map(|lane| (lane.lane, lane.window)).collect();
        let (mut links, mut guests) = (BTreeMap::new(), Vec::new());
        for link in &self.task.links {
            let id = link.id();
            let peer =
                peers.get(&id).ok_or_else(|| Error::invalid(format!("the request does not name the peer of link {id}")))?;
            let way = match link.peer {
                Party::Node(_) if link.sends => Way::Dial(self.dial(link, peer)?),
                Party::Node(_) | Party::Client(_) => {
                    let (arrived, arrival) = oneshot::channel();
                    guests.push((id, self.expect(link, peer, arrived)?));
                    Way::Accept(arrival)
                }
            };
            let window = windows.get(&link.lane).map_or(1, |window| *window as usize);
            let throttles = &self.node.throttles;
            let line = if link.sends { &throttles.uplink } else { &throttles.downlink };
            let line = Passage::new(line, self.task.precedence());
            let (link, traffic) = (link.clone(), Arc::clone(self.traffic));
            links.insert(id, Unconnected { link, way, stall: self.stall.clone(), window, traffic, line });
        }
        Ok((links, guests))
    }

    fn dial(&self, link: &TaskLink, peer: &LinkPeer) -> Result<Dial> {
        let hello = Hello {
            cluster: self.registration.cluster,
            plan: self.task.plan,
            link: link.id(),
            from: self.task.party,
            to: link.peer,
            direction: Direction::Push,
            token: LinkToken::from_slice(&peer.token)?,
        };
        let (pool, address) = (Arc::clone(&self.node.pool), peer.address.clone());
        Ok(Dial { pool, address, peer: Peer::Agent(peer.name.clone()), hello })
    }

    fn expect(&self, link: &TaskLink, peer: &LinkPeer, arrived: oneshot::Sender<crate::reception::Arrival>) -> Result<Expected> {
        let (me, other) = (self.task.party, link.peer);
        let (from, to) = if link.sends { (me, other) } else { (other, me) };
        // Between agents the sender dials; a client always dials.
        let direction = if link.sends { Direction::Pull } else { Direction::Push };
        let rights = LinkRights {
            epoch: self.task.epoch,
            plan: self.task.plan,
            link: link.id(),
            from,
            to,
            task_hash: task_hash(self.task_bytes),
        };
        let peer = match other {
            Party::Client(_) if peer.name.is_empty() => Peer::Client,
            // An agent may stand in for a client.
            Party::Client(_) => Peer::Agent(peer.name.clone()),
            Party::Node(_) if peer.name.is_empty() => {
                return Err(Error::invalid(format!("the request does not name {other}")).link(link.id(), 0));
            }
            Party::Node(_) => Peer::Agent(peer.name.clone()),
        };
        let guest = Guest { rights, key: self.registration.link_key.clone(), direction, peer };
        Ok(Expected { guest, arrived })
    }
}
