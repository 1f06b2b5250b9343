//! A coordinator that makes plans with the real schemes and remembers its calls.

use crate::{CLUSTER, agents::Agents, open_reads, updates};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::task::JoinHandle;
use tonic::{Request, Response, Status};
use weft_codes::SharedCode;
use weft_engine::Outcome;
use weft_plan::{Change, Class, Hold, Input, Job, Plan, Want, WantKind, cut};
use weft_proto::{
    crc32c, encode_task,
    status::encode_error,
    to_status,
    v1::{self, weft_server::Weft, *},
};
use weft_schemes::{Kind, Run, by_name};
use weft_types::{
    BlockId, CHECKSUM_UNIT_LEN, Error, Layout, NodeId, PAGE_LEN, Party, PlanId, Result, Span, StripeId, StripeLayout,
};

const SLICE_LEN: u64 = 32 << 10;
const READER: Party = Party::Client(7);

pub(crate) struct Coordinator {
    agents: Arc<Agents>,
    pub(crate) state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    next: u64,
    uploads: BTreeMap<u64, Object>,
    objects: BTreeMap<(String, String), Object>,
    running: BTreeMap<u64, Vec<(NodeId, JoinHandle<Outcome>)>>,
    pub(crate) aborted: Vec<u64>,
    /// Calls of StatObject, ReadStripe and EndRead, in this order of arrival.
    pub(crate) calls: Vec<&'static str>,
    /// Starts no read with StatObject, as coordinators before that field.
    pub(crate) is_old: bool,
    /// Sends no page checksums for units that are read in part.
    pub(crate) tells_no_pages: bool,
    /// Knows no checksums of blocks that are rebuilt.
    pub(crate) forgets_rebuilt: bool,
    /// Answers Busy to this many more calls of ReadStripe.
    pub(crate) busy: u32,
    committed: BTreeMap<u64, ObjectReply>,
    /// After this many more calls of ReadStripe, `b/k` is the object stored as `b/new`, or is removed if there is none.
    pub(crate) replaced_after: Option<u32>,
    /// … with the same bytes.
    pub(crate) is_conversion: bool,
    /// Executes this many more calls of EndStripe and CommitPut, but answers with an error.
    pub(crate) answers_lost: u32,
    /// Nodes that a client reported to wait for.
    pub(crate) complaints: Vec<u32>,
    /// Errors that clients reported at the end of their stripes.
    pub(crate) errors: usize,
}

#[derive(Clone)]
struct Object {
    version: u64,
    written: u64,
    bucket: String,
    key: String,
    code: String,
    layout: Layout,
    stripes: BTreeMap<u64, StoredStripe>,
}

#[derive(Clone)]
struct StoredStripe {
    id: StripeId,
    layout: StripeLayout,
    homes: Vec<NodeId>,
    units: Vec<Vec<u32>>,
}

impl State {
    pub(crate) fn replace(&mut self) {
        let Some(left) = self.replaced_after else { return };
        self.replaced_after = left.checked_sub(1);
        if left == 0 {
            let name = |key: &str| ("b".to_string(), key.to_string());
            let before = self.objects.remove(&name("k"));
            if let Some(object) = self.objects.remove(&name("new")) {
                let written = before.filter(|_| self.is_conversion).map_or(object.version, |before| before.written);
                self.objects.insert(name("k"), Object { key: "k".into(), written, ..object });
            }
        }
    }
}

impl StoredStripe {
    fn block(&self, index: usize) -> BlockId {
        BlockId { stripe: self.id, index: index as u8, copy: 0, generation: 1 }
    }

    fn parties(&self) -> impl Iterator<Item = (Party, BlockId)> {
        self.homes.iter().enumerate().map(|(index, node)| (Party::Node(*node), self.block(index)))
    }
}

impl Coordinator {
    pub(crate) fn new(agents: Arc<Agents>) -> Self {
        Self { agents, state: Mutex::default() }
    }

    fn number(&self) -> u64 {
        let mut state = self.state.lock().unwrap();
        state.next += 1;
        state.next
    }

    fn may_lose_answer(&self) -> std::result::Result<(), Status> {
        let mut state = self.state.lock().unwrap();
        match state.answers_lost.checked_sub(1) {
            None => Ok(()),
            Some(left) => {
                state.answers_lost = left;
                Err(Status::unavailable("the connection broke"))
            }
        }
    }

    /// Opens and starts the agents' shares; the client's is returned.
    fn start(&self, plan: &Plan) -> ClientTask {
        let mut running = Vec::new();
        let mut client = ClientTask::default();
        for (vertex, party) in (0u16..).zip(&plan.binding.parties) {
            let task = cut(plan, vertex);
            match party {
                Party::Node(node) => running.push((*node, tokio::spawn(self.agents.clone().run(*node, task)))),
                Party::Client(_) => {
                    let peer = |link: &weft_plan::TaskLink| {
                        let Party::Node(node) = link.peer else { panic!("a client's links lead to agents") };
                        let node = self.agents.node(node);
                        LinkPeer { link: link.id(), address: node.address.clone(), token: vec![0; 32], name: node.name.clone() }
                    };
                    let peers = task.links.iter().map(peer).collect();
                    client = ClientTask { task: encode_task(&task).unwrap(), peers, stall_ms: 5000, extra_stall_ms: 0 };
                }
            }
        }
        self.state.lock().unwrap().running.insert(plan.id.0, running);
        client
    }

    fn plan_put(&self, upload: u64, number: u64, data_len: u64) -> Result<(Plan, StripeLayout)> {
        let id = StripeId(self.number());
        let alive = self.agents.nodes.iter().map(|node| node.id).filter(|node| !self.agents.is_dead(*node));
        let mut state = self.state.lock().unwrap();
        let object = state.uploads.get_mut(&upload).ok_or_else(|| Error::not_found("no such upload"))?;
        let code: SharedCode = weft_codes::parse(&object.code).unwrap();
        let (k, m) = (code.k() as u32, code.m() as u32);
        let layout = StripeLayout { layout: object.layout, k, m, data_len };
        let stripe = StoredStripe { id, layout, homes: alive.take(code.n()).collect(), units: Vec::new() };
        if stripe.homes.len() < code.n() {
            return Err(Error::unavailable("too few nodes"));
        }
        let span = layout.coded_span();
        let stores: Vec<(Party, BlockId)> = stripe.parties().collect();
        let want = |(party, block): &(Party, BlockId)| {
            let (kind, party, index) = (WantKind::Store, *party, block.index);
            Want { kind, party, index, sub_blocks: vec![0], span }
        };
        // The writer computes the checksums of all blocks.
        let sums = stores.iter().map(|(_, block)| Want { kind: WantKind::Output, ..want(&(READER, *block)) });
        let job = Job {
            inputs: (0..k as u8).map(|index| Input { party: READER, index }).collect(),
            changed: (0..k as u8).map(|index| Change { index, sub_block: 0, span }).collect(),
            wants: stores.iter().map(want).chain(sums).collect(),
            ..Job::default()
        };
        let run = Run::new(PlanId(id.0), 1, Class::Foreground, SLICE_LEN);
        let request = weft_schemes::Request::new(code.as_ref(), layout, &job, run);
        let request = weft_schemes::Request { stores: &stores, ..request };
        let plan = weft_schemes::plan(&request, by_name(Kind::Write, "direct")?)?;
        object.stripes.insert(number, stripe);
        Ok((plan, layout))
    }

    async fn end_put(&self, request: EndStripeRequest) -> Result<()> {
        let running = self.state.lock().unwrap().running.remove(&request.plan).unwrap_or_default();
        for (_, agent) in running {
            agent.await.unwrap();
        }
        let mut state = self.state.lock().unwrap();
        let upload = state.uploads.get_mut(&request.upload).ok_or_else(|| Error::not_found("no such upload"))?;
        let stripe = upload.stripes.get_mut(&request.number).unwrap();
        let blocks = self.agents.blocks.lock().unwrap();
        let stored: Vec<Option<Vec<u32>>> = (stripe.parties().zip(&stripe.homes))
            .map(|((_, block), node)| blocks.get(&(*node, block)))
            .map(|bytes| bytes.map(|bytes| bytes.chunks(CHECKSUM_UNIT_LEN as usize).map(crc32c).collect()))
            .collect();
        for (index, units) in stored.iter().enumerate() {
            let sent = request.sent.iter().find(|sent| sent.index as usize == index).map(|sent| &sent.checksums);
            if units.is_some() {
                assert_eq!(sent, units.as_ref(), "block {index} was stored with other bytes than were sent");
            }
        }
        let missing = stored.iter().filter(|units| units.is_none()).count();
        if missing > 0 {
            // Sent bytes may not have been received: a node may die with them in its sockets.
            assert_eq!(request.sent.len(), stored.len(), "the checksums of the lost blocks are missing");
            return Err(Error::replan(format!("{missing} blocks are missing")));
        }
        assert!(request.errors.is_empty(), "{} errors, and nothing is missing", request.errors.len());
        stripe.units = stored.into_iter().flatten().collect();
        Ok(())
    }

    fn start_stripe(&self, upload: u64, number: u64, data_len: u64) -> Result<PutStripeReply> {
        let (plan, layout) = self.plan_put(upload, number, data_len)?;
        Ok(PutStripeReply { task: Some(self.start(&plan)), layout: postcard::to_allocvec(&layout).unwrap() })
    }

    fn commit(&self, upload: u64, size: u64) -> Result<ObjectReply> {
        let mut state = self.state.lock().unwrap();
        if let Some(committed) = state.committed.get(&upload) {
            return Ok(committed.clone());
        }
        let object = state.uploads.get(&upload).cloned().ok_or_else(|| Error::not_found("no such upload"))?;
        if object.stripes.values().any(|stripe| stripe.units.is_empty()) {
            return Err(Error::invalid("a stripe has not ended"));
        }
        let reply = self.reply(&object);
        assert_eq!(reply.size, size);
        state.uploads.remove(&upload);
        state.committed.insert(upload, reply.clone());
        state.objects.insert((object.bucket.clone(), object.key.clone()), object);
        Ok(reply)
    }

    /// The read that a client asks for with StatObject.
    fn begin_read(&self, object: &Object, asked: &BeginRead, page: Range<u64>) -> Option<BegunRead> {
        let size: u64 = object.stripes.values().map(|stripe| stripe.layout.data_len).sum();
        let (start, end) = match asked.last {
            Some(count) => (size.saturating_sub(count), size),
            None => (asked.start, asked.end.unwrap_or(size).min(size)),
        };
        let full = object.layout.block_len * u64::from(object.stripes.get(&0)?.layout.k);
        let number = start / full;
        let layout = object.stripes.get(&number).filter(|_| page.contains(&number))?.layout;
        let part = Span::new(start % full, (end - number * full).min(layout.data_len));
        if part.is_empty() || part.len() > asked.bytes_max {
            return None;
        }
        let request = ReadStripeRequest {
            bucket: object.bucket.clone(),
            key: object.key.clone(),
            version: object.version,
            number,
            ranges: layout
                .data_ranges(part)
                .map(|(index, range)| BlockRange { index, start: range.start, end: range.end })
                .collect(),
            scheme: asked.scheme.clone(),
            at_nodes: asked.at_nodes,
            ..ReadStripeRequest::default()
        };
        if let Some(reply) = self.at_nodes(&request) {
            return Some(BegunRead { number, reply: Some(reply) });
        }
        let (plan, reply) = self.plan_read(&request).ok()?;
        Some(BegunRead { number, reply: Some(ReadStripeReply { task: Some(self.start(&plan)), ..reply }) })
    }

    /// Waits until the agents' shares of all reads have ended. The client ends those of failed reads.
    pub(crate) async fn reads_ended(&self) {
        let running = std::mem::take(&mut self.state.lock().unwrap().running);
        for (node, agent) in running.into_values().flatten() {
            let ended = tokio::time::timeout(Duration::from_secs(3), agent).await;
            assert!(ended.is_ok(), "a plan was left open at {node}");
        }
    }

    /// The calls since this was last called.
    pub(crate) fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.state.lock().unwrap().calls)
    }

    /// If the stripe is open for updates.
    fn at_nodes(&self, request: &ReadStripeRequest) -> Option<ReadStripeReply> {
        let state = self.state.lock().unwrap();
        let stripe = state.objects.get(&(request.bucket.clone(), request.key.clone()))?.stripes.get(&request.number)?;
        let home = |range: &BlockRange| (stripe.homes[range.index as usize], stripe.block(range.index as usize));
        let homes: Vec<(NodeId, BlockId)> = request.ranges.iter().map(home).collect();
        let at_nodes = open_reads::at_nodes(&self.agents, &homes, request.at_nodes)?;
        Some(ReadStripeReply { at_nodes: Some(at_nodes), ..ReadStripeReply::default() })
    }

    fn plan_read(&self, request: &ReadStripeRequest) -> Result<(Plan, ReadStripeReply)> {
        let id = PlanId(self.number());
        let mut state = self.state.lock().unwrap();
        if state.busy > 0 {
            state.busy -= 1;
            return Err(Error::retry("busy"));
        }
        state.replace();
        let object = state.objects.get(&(request.bucket.clone(), request.key.clone()));
        let object = object.filter(|object| object.version == request.version);
        let object = object.ok_or_else(|| Error::not_found("no such version of the object"))?;
        let (code, stripe) = (weft_codes::parse(&object.code).unwrap(), &object.stripes[&request.number]);
        let span = stripe.layout.coded_span();
        let here = |node: NodeId| !self.agents.is_dead(node);
        let holds = stripe.parties().zip(&stripe.homes).filter(|(_, node)| here(**node));
        let holds: Vec<Hold> = holds.map(|((party, block), _)| Hold { party, block, span }).collect();
        let rebuilt = |index: u32| !here(stripe.homes[index as usize]);
        let widened = |range: &BlockRange| {
            let unit = if rebuilt(range.index) { CHECKSUM_UNIT_LEN } else { PAGE_LEN };
            let end = (range.end.div_ceil(unit) * unit).min(stripe.layout.block_len(range.index));
            BlockRange { index: range.index, start: range.start / unit * unit, end }
        };
        let mut delivers: Vec<BlockRange> = request.ranges.iter().map(widened).collect();
        // Widened ranges of one block may have become one.
        delivers.dedup();
        let want = |range: &BlockRange| Want {
            kind: WantKind::Output,
            party: READER,
            index: range.index as u8,
            sub_blocks: vec![0],
            span: Span::new(range.start, (range.end.div_ceil(PAGE_LEN) * PAGE_LEN).min(span.end)),
        };
        let job = Job { holds, wants: delivers.iter().map(want).collect(), ..Job::default() };
        let run = Run::new(id, 1, Class::Foreground, SLICE_LEN);
        let asked = weft_schemes::Request::new(code.as_ref(), stripe.layout, &job, run);
        let scheme = if request.scheme.is_empty() { "pipeline" } else { &request.scheme };
        let plan = weft_schemes::plan(&asked, by_name(Kind::Read, scheme)?)?;
        let mut indices: Vec<u32> = delivers.iter().map(|range| range.index).collect();
        indices.dedup();
        let units = |index: &u32| {
            let is_unknown = state.forgets_rebuilt && rebuilt(*index);
            let checksums = if is_unknown { Vec::new() } else { stripe.units[*index as usize].clone() };
            BlockChecksums { index: *index, checksums, id: Vec::new() }
        };
        let reply = ReadStripeReply {
            task: None,
            checksums: indices.iter().map(units).collect(),
            rebuilt: indices.iter().copied().filter(|index| rebuilt(*index)).collect(),
            plan: plan.shape.code.clone().into_bytes(),
            pages: if state.tells_no_pages { Vec::new() } else { self.pages(stripe, &delivers) },
            delivers,
            at_nodes: None,
            data_len: 0,
        };
        Ok((plan, reply))
    }

    /// As agents report them: for the units in which a range begins or ends.
    fn pages(&self, stripe: &StoredStripe, ranges: &[BlockRange]) -> Vec<UnitPages> {
        let blocks = self.agents.blocks.lock().unwrap();
        let edges = ranges.iter().flat_map(|range| [range.start, range.end].map(|at| (range.index, at)));
        let pages = edges.filter_map(|(index, at)| {
            let at_node = (stripe.homes[index as usize], stripe.block(index as usize));
            let unit = blocks[&at_node].chunks(CHECKSUM_UNIT_LEN as usize).nth((at / CHECKSUM_UNIT_LEN) as usize)?;
            let checksums = unit.chunks(PAGE_LEN as usize).map(crc32c).collect();
            Some(UnitPages { index, unit: (at / CHECKSUM_UNIT_LEN) as u32, checksums })
        });
        pages.collect()
    }

    fn reply(&self, object: &Object) -> ObjectReply {
        let block = |(index, node): (usize, &NodeId)| PlacedBlock {
            index: index as u32,
            generation: 1,
            node: node.0,
            ..PlacedBlock::default()
        };
        let mut offset = 0;
        let stripes = object.stripes.values().map(|stripe| {
            offset += stripe.layout.data_len;
            Stripe {
                id: stripe.id.0,
                offset: offset - stripe.layout.data_len,
                layout: postcard::to_allocvec(&stripe.layout).unwrap(),
                seq: None,
                blocks: stripe.homes.iter().enumerate().map(block).collect(),
                copies: Vec::new(),
            }
        });
        let stripes: Vec<Stripe> = stripes.collect();
        let (bucket, key) = (object.bucket.clone(), object.key.clone());
        ObjectReply {
            bucket,
            key,
            version: object.version,
            written: object.written,
            size: offset,
            code: object.code.clone(),
            stripe_count: stripes.len() as u64,
            stripes,
            ..ObjectReply::default()
        }
    }
}

type Answer<T> = std::result::Result<Response<T>, Status>;

fn answer<T>(result: Result<T>) -> Answer<T> {
    result.map(Response::new).map_err(|error| to_status(&error))
}

#[tonic::async_trait]
impl Weft for Coordinator {
    type ExplainRepairNodeStream = Self::RepairObjectStream;
    type RepairObjectStream = tokio_stream::Iter<std::vec::IntoIter<std::result::Result<RepairEvent, Status>>>;

    async fn status(&self, _: Request<StatusRequest>) -> Answer<StatusReply> {
        answer(Ok(StatusReply { cluster: CLUSTER.to_string(), ..StatusReply::default() }))
    }

    async fn health(&self, _: Request<Empty>) -> Answer<HealthReply> {
        answer(Ok(HealthReply::default()))
    }

    async fn begin_put(&self, request: Request<BeginPutRequest>) -> Answer<BeginPutReply> {
        let request = request.into_inner();
        if request.bucket == "none" {
            return answer(Err(Error::not_found("there is no bucket 'none'")));
        }
        let code = if request.code.is_empty() { "rs(4,2)".to_string() } else { request.code };
        let parsed = weft_codes::parse(&code).unwrap();
        let (block_len, cell_len) = (request.block_len.max(PAGE_LEN), request.cell_len);
        let cell_len = if cell_len == 0 { block_len } else { cell_len };
        let layout = Layout::new(block_len, cell_len, 1).unwrap();
        let upload = self.number();
        let (bucket, key) = (request.bucket, request.key);
        let object =
            Object { version: upload, written: upload, bucket, key, code: code.clone(), layout, stripes: BTreeMap::new() };
        self.state.lock().unwrap().uploads.insert(upload, object);
        let (k, m) = (parsed.k() as u32, parsed.m() as u32);
        let full = u64::from(k) * block_len;
        let first = request.start.then(|| self.start_stripe(upload, 0, request.size_hint.min(full)).ok()).flatten();
        answer(Ok(BeginPutReply { upload, code, block_len, cell_len, k, m, first, ..BeginPutReply::default() }))
    }

    async fn put_stripe(&self, request: Request<PutStripeRequest>) -> Answer<PutStripeReply> {
        let request = request.into_inner();
        answer(self.start_stripe(request.upload, request.number, request.data_len))
    }

    async fn end_stripe(&self, request: Request<EndStripeRequest>) -> Answer<EndStripeReply> {
        let request = request.into_inner();
        let (upload, commit_size) = (request.upload, request.commit_size);
        self.state.lock().unwrap().errors += request.errors.len();
        let mut ended = match self.state.lock().unwrap().committed.get(&upload).cloned() {
            Some(object) => Ok(Some(object)),
            None => Err(Error::not_found("not committed")),
        };
        if ended.is_err() {
            ended = self.end_put(request).await.and_then(|()| commit_size.map(|size| self.commit(upload, size)).transpose());
        }
        self.may_lose_answer()?;
        answer(ended.map(|object| EndStripeReply { object, ..EndStripeReply::default() }))
    }

    async fn commit_put(&self, request: Request<CommitPutRequest>) -> Answer<ObjectReply> {
        let request = request.into_inner();
        let committed = self.commit(request.upload, request.size);
        self.may_lose_answer()?;
        answer(committed)
    }

    async fn keep_put(&self, request: Request<KeepPutRequest>) -> Answer<KeepPutReply> {
        self.state.lock().unwrap().complaints.extend(request.into_inner().waits_for);
        answer(Ok(KeepPutReply::default()))
    }

    async fn abort_put(&self, request: Request<AbortPutRequest>) -> Answer<Empty> {
        let upload = request.into_inner().upload;
        let mut state = self.state.lock().unwrap();
        state.uploads.remove(&upload);
        state.aborted.push(upload);
        answer(Ok(Empty {}))
    }

    async fn stat_object(&self, request: Request<StatObjectRequest>) -> Answer<ObjectReply> {
        let StatObjectRequest { bucket, key, from_stripe, read, .. } = request.into_inner();
        let (object, is_old) = {
            let mut state = self.state.lock().unwrap();
            state.calls.push("StatObject");
            (state.objects.get(&(bucket, key)).cloned(), state.is_old)
        };
        answer(object.ok_or_else(|| Error::not_found("no such object")).map(|object| {
            // Pages of two stripes.
            let mut reply = self.reply(&object);
            let page = from_stripe..from_stripe + 2;
            reply.stripes = reply.stripes.into_iter().skip(page.start as usize).take(2).collect();
            reply.read = read.filter(|_| !is_old).and_then(|read| self.begin_read(&object, &read, page));
            reply
        }))
    }

    async fn read_stripe(&self, request: Request<ReadStripeRequest>) -> Answer<ReadStripeReply> {
        let request = request.into_inner();
        self.state.lock().unwrap().calls.push("ReadStripe");
        if let Some(reply) = self.at_nodes(&request) {
            return answer(Ok(reply));
        }
        answer(self.plan_read(&request).map(|(plan, reply)| {
            let task = (!request.explain).then(|| self.start(&plan));
            ReadStripeReply { task, ..reply }
        }))
    }

    async fn end_read(&self, request: Request<EndReadRequest>) -> Answer<Empty> {
        let running = self.state.lock().unwrap().running.remove(&request.into_inner().plan);
        running.into_iter().flatten().for_each(|(_, agent)| agent.abort());
        self.state.lock().unwrap().calls.push("EndRead");
        answer(Ok(Empty {}))
    }

    async fn list_objects(&self, request: Request<ListObjectsRequest>) -> Answer<ListObjectsReply> {
        let request = request.into_inner();
        let state = self.state.lock().unwrap();
        let fits = |(bucket, key): &(String, String)| {
            *bucket == request.bucket && key.starts_with(&request.prefix) && *key > request.after
        };
        // Pages of two objects, whatever was requested.
        let mut keys = state.objects.keys().filter(|name| fits(name)).map(|(_, key)| key.clone());
        let objects: Vec<_> = keys.by_ref().take(2).map(|key| ObjectEntry { key, ..ObjectEntry::default() }).collect();
        let more = keys.next().is_some();
        answer(Ok(ListObjectsReply { objects, more, ..ListObjectsReply::default() }))
    }

    async fn remove_object(&self, request: Request<ObjectName>) -> Answer<Empty> {
        let ObjectName { bucket, key } = request.into_inner();
        let removed = self.state.lock().unwrap().objects.remove(&(bucket, key));
        answer(removed.map(|_| Empty {}).ok_or_else(|| Error::not_found("no such object")))
    }

    async fn remove_objects(&self, request: Request<RemoveObjectsRequest>) -> Answer<RemoveObjectsReply> {
        let RemoveObjectsRequest { names, dry_run } = request.into_inner();
        let mut state = self.state.lock().unwrap();
        // Two objects a call, whatever was requested.
        let objects = names.into_iter().take(2).map(|ObjectName { bucket, key }| {
            let name = (bucket, key);
            let found = if dry_run { state.objects.contains_key(&name) } else { state.objects.remove(&name).is_some() };
            let error = if found { Vec::new() } else { encode_error(&Error::not_found("no such object")) };
            RemovedObject { error, ..RemovedObject::default() }
        });
        answer(Ok(RemoveObjectsReply { objects: objects.collect() }))
    }

    async fn repair_object(&self, request: Request<RepairObjectRequest>) -> Answer<Self::RepairObjectStream> {
        let request = request.into_inner();
        assert_eq!((request.blocks.len(), request.scheme.as_str(), &request.to_nodes[..]), (0, "ppr", &[3][..]));
        let done = v1::repair_event::Event::Done(RepairDone { resumed: 1, ..RepairDone::default() });
        let failed = to_status(&Error::unavailable("then it failed"));
        answer(Ok(tokio_stream::iter(vec![Ok(RepairEvent { event: Some(done) }), Err(failed)])))
    }

    type ProbeLinksStream = tokio_stream::Iter<std::vec::IntoIter<std::result::Result<ProbeEvent, Status>>>;

    async fn list_links(&self, _: Request<ListLinksRequest>) -> Answer<ListLinksReply> {
        answer(Ok(ListLinksReply::default()))
    }

    async fn probe_links(&self, request: Request<ProbeLinksRequest>) -> Answer<Self::ProbeLinksStream> {
        let ProbeLinksRequest { from, to } = request.into_inner();
        let event = ProbeEvent { total: 1, from: from[0], to: to[0], ..ProbeEvent::default() };
        answer(Ok(tokio_stream::iter(vec![Ok(event), Err(to_status(&Error::unavailable("then it failed")))])))
    }

    async fn create_policy(&self, request: Request<Policy>) -> Answer<Policy> {
        answer(Ok(request.into_inner()))
    }

    async fn list_policies(&self, _: Request<ListPoliciesRequest>) -> Answer<ListPoliciesReply> {
        answer(Ok(ListPoliciesReply::default()))
    }

    async fn remove_policy(&self, _: Request<Name>) -> Answer<Empty> {
        answer(Ok(Empty {}))
    }

    async fn set_default_policy(&self, _: Request<Name>) -> Answer<Empty> {
        answer(Ok(Empty {}))
    }

    async fn get_repair_limit(&self, _: Request<Empty>) -> Answer<RepairLimitReply> {
        Ok(Response::new(RepairLimitReply::default()))
    }

    async fn set_repair_limit(&self, _: Request<RepairLimit>) -> Answer<RepairLimitReply> {
        Ok(Response::new(RepairLimitReply::default()))
    }

    async fn set_auto_repair(&self, _: Request<AutoRepair>) -> Answer<Empty> {
        answer(Ok(Empty {}))
    }

    async fn create_bucket(&self, request: Request<Bucket>) -> Answer<Bucket> {
        answer(Ok(request.into_inner()))
    }

    async fn list_buckets(&self, _: Request<Empty>) -> Answer<ListBucketsReply> {
        answer(Ok(ListBucketsReply::default()))
    }

    async fn remove_bucket(&self, _: Request<Name>) -> Answer<Empty> {
        answer(Ok(Empty {}))
    }

    async fn open_for_updates(&self, request: Request<v1::OpenForUpdatesRequest>) -> Answer<v1::OpenForUpdatesReply> {
        let request = request.into_inner();
        let name = (request.bucket.clone(), request.key.clone());
        let object = self.state.lock().unwrap().objects[&name].clone();
        if object.version != request.version {
            return answer(Err(Error::not_found("there is no such version")));
        }
        let stripe = &object.stripes[&request.number];
        let blocks = (0..stripe.layout.data_blocks() as usize).map(|index| (stripe.homes[index], stripe.block(index)));
        answer(updates::open(&self.agents, &blocks.collect::<Vec<_>>(), request))
    }

    async fn explain_update(&self, request: Request<v1::ExplainUpdateRequest>) -> Answer<v1::ExplainUpdateReply> {
        answer(Ok(updates::explain(&self.agents, request.into_inner())))
    }

    async fn begin_append(&self, _: Request<v1::BeginAppendRequest>) -> Answer<v1::BeginAppendReply> {
        answer(Err(Error::invalid("this one appends nothing")))
    }

    async fn end_append(&self, _: Request<v1::EndAppendRequest>) -> Answer<v1::ObjectReply> {
        answer(Err(Error::invalid("this one appends nothing")))
    }

    async fn give_up_append(&self, _: Request<v1::GiveUpAppendRequest>) -> Answer<v1::Empty> {
        answer(Ok(v1::Empty {}))
    }

    async fn cool_object(&self, _: Request<v1::ObjectName>) -> Answer<v1::CoolReply> {
        answer(Ok(v1::CoolReply::default()))
    }

    async fn repair_node(&self, _: Request<RepairNodeRequest>) -> Answer<v1::Job> {
        answer(Err(Error::invalid("this one has no jobs")))
    }

    async fn convert(&self, _: Request<v1::ConvertRequest>) -> Answer<v1::Job> {
        answer(Err(Error::invalid("this one has no jobs")))
    }

    async fn explain_repair_node(&self, _: Request<RepairNodeRequest>) -> Answer<Self::ExplainRepairNodeStream> {
        answer(Err(Error::invalid("this one has no jobs")))
    }

    async fn list_jobs(&self, _: Request<Empty>) -> Answer<ListJobsReply> {
        answer(Ok(ListJobsReply::default()))
    }

    async fn get_job(&self, request: Request<JobRequest>) -> Answer<v1::Job> {
        answer(Err(Error::not_found(format!("there is no job {}", request.into_inner().id))))
    }

    async fn change_job(&self, request: Request<ChangeJobRequest>) -> Answer<v1::Job> {
        answer(Err(Error::not_found(format!("there is no job {}", request.into_inner().id))))
    }

    async fn remove_node(&self, request: Request<v1::RemoveNodeRequest>) -> Answer<v1::DepartureReply> {
        answer(Err(Error::not_found(format!("there is no node {}", request.into_inner().node))))
    }

    async fn scrub(&self, _: Request<v1::ScrubRequest>) -> Answer<v1::Job> {
        answer(Err(Error::invalid("this coordinator has no jobs")))
    }

    async fn balance(&self, _: Request<v1::BalanceRequest>) -> Answer<v1::Job> {
        answer(Err(Error::invalid("this coordinator has no jobs")))
    }

    async fn explain_balance(&self, _: Request<v1::BalanceRequest>) -> Answer<v1::BalancePlan> {
        answer(Ok(v1::BalancePlan::default()))
    }

    async fn list_damage(&self, _: Request<v1::ListDamageRequest>) -> Answer<v1::ListDamageReply> {
        answer(Ok(v1::ListDamageReply::default()))
    }

    async fn space(&self, _: Request<v1::Empty>) -> Answer<v1::SpaceReply> {
        answer(Ok(v1::SpaceReply::default()))
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Answer<v1::DrainReply> {
        answer(Err(Error::not_found(format!("there is no node {}", NodeId(request.into_inner().node)))))
    }

    async fn explain_drain(&self, request: Request<v1::DrainRequest>) -> Answer<v1::DrainPlan> {
        answer(Err(Error::not_found(format!("there is no node {}", NodeId(request.into_inner().node)))))
    }

    async fn forget_disk(&self, request: Request<v1::ForgetDiskRequest>) -> Answer<v1::DepartureReply> {
        answer(Err(Error::not_found(format!("there is no disk {}", request.into_inner().disk))))
    }

    async fn list_garbage(&self, _: Request<v1::ListGarbageRequest>) -> Answer<v1::ListGarbageReply> {
        Ok(Response::new(v1::ListGarbageReply::default()))
    }

    async fn release_garbage(&self, _: Request<v1::ReleaseGarbageRequest>) -> Answer<v1::ReleaseGarbageReply> {
        Ok(Response::new(v1::ReleaseGarbageReply::default()))
    }
}
