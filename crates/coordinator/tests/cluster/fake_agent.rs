//! An agent that stores nothing. Tests set its answers, and it records the calls.

use crate::{
    updating::{Step, Updating},
    world::World,
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use weft_proto::{LinkKey, Net, PROTOCOL, ProtocolRange, Security, decode_task, rpc, to_status, v1};
use weft_types::{BlockId, Error, Party};

/// An agent that stores nothing. It is up until it is dropped.
pub(crate) struct FakeAgent {
    asked: Arc<Asked>,
    _tasks: JoinSet<()>,
}

/// The calls it received, and its answers.
#[derive(Default)]
pub(crate) struct Asked(Mutex<Told>);

#[derive(Default)]
pub(crate) struct Told {
    /// How often it was asked to open a task.
    pub(crate) opens: usize,
    /// How often it was asked to start one that is open.
    pub(crate) starts: usize,
    /// It answers that it is busy.
    pub(crate) busy: bool,
    /// It answers that it can never take such a task.
    pub(crate) refuses: bool,
    /// It answers that it can never take a task with links to other nodes; how often it did.
    pub(crate) refuses_linked: bool,
    pub(crate) refused: usize,
    /// It answers nothing when it is to open a task.
    pub(crate) hangs: bool,
    /// The limits that it was told.
    pub(crate) limits: Vec<v1::LowerLimit>,
    /// What it was asked to remove, call by call.
    pub(crate) removals: Vec<v1::RemoveRequest>,
    /// How long each removal takes.
    pub(crate) removes_for: Duration,
    /// Blocks whose removal it does not confirm.
    pub(crate) keeps: BTreeSet<BlockId>,
    /// Blocks whose removal it confirms without being asked.
    pub(crate) says_gone: Vec<BlockId>,
    /// Of which blocks it was asked to keep what is right.
    pub(crate) kept: Vec<v1::KeepBlockRequest>,
    /// The next task that it is to open finds this block corrupt.
    pub(crate) finds_corrupt: Option<BlockId>,
    /// The blocks that it finds damaged when it is asked. Without these, it checks none.
    pub(crate) damaged: Option<BTreeSet<BlockId>>,
    /// By which of a coordinator's times it has judged sessions.
    pub(crate) updates_ms: u64,
    /// Its number, and the key of its registration.
    pub(crate) node: u32,
    pub(crate) link_key: Option<LinkKey>,
    /// Its blocks that were opened for updates.
    pub(crate) updating: Updating,
    /// The protocol that it speaks, if not the newest.
    pub(crate) protocol: Option<u16>,
    /// It lists the disk of the agent of this name, too.
    pub(crate) lists: Option<String>,
    /// It sends no heartbeats.
    pub(crate) is_silent: bool,
    /// The last task that it was to open, with the blocks that it stores.
    pub(crate) last: Option<v1::OpenRequest>,
}

impl FakeAgent {
    /// Registers an agent of that name, with one disk.
    pub(crate) async fn start(world: &World, name: &str) -> Self {
        Self::start_with(world, name, Arc::default()).await
    }

    /// The same for an agent of an earlier version.
    pub(crate) async fn start_speaking(world: &World, name: &str, protocol: u16) -> Self {
        let asked = Arc::<Asked>::default();
        asked.told().protocol = Some(protocol);
        Self::start_with(world, name, asked).await
    }

    /// The node of another agent that was dropped comes back.
    pub(crate) async fn back(world: &World, name: &str, asked: Arc<Asked>) -> Self {
        Self::start_with(world, name, asked).await
    }

    async fn start_with(world: &World, name: &str, asked: Arc<Asked>) -> Self {
        let listener = world.net.listen("127.0.0.1:0").await.unwrap();
        let address = listener.local_address().unwrap();
        let services = rpc::Services::new().with(rpc::agent_server(Service(Arc::clone(&asked))));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            rpc::serve(services, listener, Security::Insecure, std::future::pending()).await.unwrap();
        });
        let mut member = world.bare_member().await;
        let disk = |of: &str| {
            let (id, path) = (format!("disk-of-{of}"), format!("/{of}"));
            v1::Disk { id, path, total_bytes: 1 << 40, free_bytes: 1 << 39, ..v1::Disk::default() }
        };
        let moved = asked.told().lists.as_deref().map(disk);
        let disks: Vec<v1::Disk> = std::iter::once(disk(name)).chain(moved).collect();
        let (node, updates_ms, protocol) = {
            let told = asked.told();
            let protocol = told.protocol.map_or(PROTOCOL, |newest| ProtocolRange { newest, ..PROTOCOL });
            (told.node, told.updates_ms, protocol)
        };
        let mut request = v1::RegisterRequest {
            node,
            updates_ms,
            protocol: Some(protocol.into()),
            name: name.into(),
            rack: name.into(),
            zone: "z".into(),
            data_address: address.clone(),
            control_address: address,
            disks: disks.clone(),
            keeps_aside: disks.len() > 1,
            ..v1::RegisterRequest::default()
        };
        let registered = member.register(request.clone()).await.unwrap().into_inner();
        request.node = registered.node;
        let mut heartbeat = asked.heartbeat(&registered, disks);
        let told = Arc::clone(&asked);
        tasks.spawn(async move {
            loop {
                while told.told().is_silent {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                // Another coordinator may lead.
                let is_gone = member.heartbeat(heartbeat.clone()).await.is_err();
                if is_gone && let Ok(registered) = member.register(request.clone()).await {
                    heartbeat = told.heartbeat(&registered.into_inner(), heartbeat.disks);
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Self { asked, _tasks: tasks }
    }

    /// What it knows, to come back with it.
    pub(crate) fn known(&self) -> Arc<Asked> {
        Arc::clone(&self.asked)
    }

    pub(crate) fn asked(&self) -> MutexGuard<'_, Told> {
        self.asked.0.lock().unwrap()
    }
}

impl Asked {
    fn heartbeat(&self, registered: &v1::RegisterReply, disks: Vec<v1::Disk>) -> v1::HeartbeatRequest {
        let mut told = self.0.lock().unwrap();
        (told.node, told.link_key) = (registered.node, Some(LinkKey::from_slice(&registered.link_key).unwrap()));
        v1::HeartbeatRequest { node: registered.node, epoch: registered.epoch, disks, ..Default::default() }
    }

    /// Waits while calls of this step are not answered, and refuses those of an earlier coordinator.
    async fn turn(&self, step: Step, epoch: u64) -> Result<MutexGuard<'_, Told>, Status> {
        self.0.lock().unwrap().updating.came(step, epoch);
        while self.0.lock().unwrap().updating.hangs_at == Some(step) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let told = self.0.lock().unwrap();
        told.updating.obeys(epoch).map_err(|error| to_status(&error))?;
        Ok(told)
    }

    async fn open(&self, request: &v1::OpenRequest) -> Result<(), Status> {
        let hangs = {
            let mut told = self.0.lock().unwrap();
            told.opens += 1;
            told.hangs
        };
        while hangs && self.0.lock().unwrap().hangs {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let task = decode_task(&request.task).unwrap();
        let mut told = self.0.lock().unwrap();
        told.last = Some(request.clone());
        if let Some(block) = told.finds_corrupt.take_if(|block| task.blocks.iter().any(|read| read.id == *block)) {
            return Err(to_status(&Error::corrupt("other checksums than the recorded ones").block(block)));
        }
        told.updating.task(&task.blocks).map_err(|error| to_status(&error))?;
        for read in &request.reads {
            let block = postcard::from_bytes(&read.id).unwrap();
            told.updating.compare(block, &read.checksums).map_err(|error| to_status(&error))?;
        }
        let linked = task.links.iter().any(|link| matches!(link.peer, Party::Node(_)));
        if told.refuses || told.refuses_linked && linked {
            told.refused += 1;
            return Err(to_status(&Error::invalid("the task needs more memory than there is")));
        }
        if told.busy { Err(to_status(&Error::retry("busy"))) } else { Ok(()) }
    }
}

impl Asked {
    pub(crate) fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap()
    }
}

impl Told {
    /// The blocks that each call was to remove.
    pub(crate) fn removed(&self) -> Vec<Vec<BlockId>> {
        self.removals.iter().map(|request| blocks_of(&request.blocks)).collect()
    }
}

pub(crate) fn blocks_of(ids: &[Vec<u8>]) -> Vec<BlockId> {
    ids.iter().map(|id| postcard::from_bytes(id).unwrap()).collect()
}

struct Service(Arc<Asked>);

#[tonic::async_trait]
impl v1::agent_server::Agent for Service {
    async fn open(&self, request: Request<v1::OpenRequest>) -> Result<Response<v1::OpenReply>, Status> {
        self.0.open(request.get_ref()).await.map(|()| Response::new(v1::OpenReply::default()))
    }

    type StartStream = ReceiverStream<Result<v1::TaskEvent, Status>>;

    async fn start(&self, request: Request<v1::StartRequest>) -> Result<Response<Self::StartStream>, Status> {
        match &request.get_ref().open {
            Some(open) => self.0.open(open).await?,
            None => self.0.0.lock().unwrap().starts += 1,
        }
        let (events, stream) = tokio::sync::mpsc::channel(1);
        if request.get_ref().pages {
            let event = Some(v1::task_event::Event::Started(v1::TaskStarted::default()));
            events.try_send(Ok(v1::TaskEvent { event })).unwrap();
        }
        // The stream ends when its receiver is dropped.
        tokio::spawn(async move { events.closed().await });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    type ConvertStripeStream = ReceiverStream<Result<v1::ConvertEvent, Status>>;

    async fn convert_stripe(&self, _: Request<v1::ConvertStripeRequest>) -> Result<Response<Self::ConvertStripeStream>, Status> {
        Err(to_status(&Error::retry("it converts nothing")))
    }

    async fn open_block(&self, request: Request<v1::OpenBlockRequest>) -> Result<Response<v1::OpenBlockReply>, Status> {
        let request = request.into_inner();
        let mut told = self.0.turn(Step::Open, request.epoch).await?;
        told.updating.open(&request).map(Response::new).map_err(|error| to_status(&error))
    }

    async fn seal_block(&self, request: Request<v1::SealBlockRequest>) -> Result<Response<v1::SealBlockReply>, Status> {
        let request = request.into_inner();
        let step = if request.stripe.is_none() { Step::Seal } else { Step::Sealed };
        let mut told = self.0.turn(step, request.epoch).await?;
        told.updating.seal(&request).map(Response::new).map_err(|error| to_status(&error))
    }

    async fn settle_block(&self, request: Request<v1::SettleBlockRequest>) -> Result<Response<v1::SettleBlockReply>, Status> {
        let request = request.into_inner();
        let mut told = self.0.turn(Step::Settle, request.epoch).await?;
        told.updating.settle(&request).map(Response::new).map_err(|error| to_status(&error))
    }

    async fn close_block(&self, request: Request<v1::CloseBlockRequest>) -> Result<Response<v1::CloseBlockReply>, Status> {
        let request = request.into_inner();
        let mut told = self.0.turn(Step::Close, request.epoch).await?;
        told.updating.close(&request).map(Response::new).map_err(|error| to_status(&error))
    }

    async fn keep_block(&self, request: Request<v1::KeepBlockRequest>) -> Result<Response<v1::KeepBlockReply>, Status> {
        let mut told = self.0.0.lock().unwrap();
        told.kept.push(request.into_inner());
        if told.updating.is_old {
            return Err(Status::unimplemented("it is of an earlier version"));
        }
        Ok(Response::new(v1::KeepBlockReply::default()))
    }

    async fn inspect_block(&self, request: Request<v1::InspectBlockRequest>) -> Result<Response<v1::InspectBlockReply>, Status> {
        let request = request.into_inner();
        let told = self.0.turn(if request.ready { Step::Ready } else { Step::Inspect }, request.epoch).await?;
        if told.updating.is_old {
            return Err(Status::unimplemented("it is of an earlier version"));
        }
        told.updating.inspect(&request).map(Response::new).map_err(|error| to_status(&error))
    }

    async fn set_limit(&self, request: Request<v1::SetLimitRequest>) -> Result<Response<v1::SetLimitReply>, Status> {
        let hangs = {
            let mut told = self.0.0.lock().unwrap();
            let hangs = told.hangs;
            told.limits.extend(request.into_inner().limit.filter(|_| !hangs));
            hangs
        };
        if hangs {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(v1::SetLimitReply::default()))
    }

    async fn cancel(&self, _: Request<v1::CancelRequest>) -> Result<Response<v1::CancelReply>, Status> {
        Ok(Response::new(v1::CancelReply::default()))
    }

    async fn remove(&self, request: Request<v1::RemoveRequest>) -> Result<Response<v1::RemoveReply>, Status> {
        let request = request.into_inner();
        let blocks = blocks_of(&request.blocks);
        let removes_for = {
            let mut told = self.0.0.lock().unwrap();
            told.removals.push(request);
            told.removes_for
        };
        tokio::time::sleep(removes_for).await;
        let told = self.0.0.lock().unwrap();
        let (kept, mut gone): (Vec<BlockId>, Vec<BlockId>) = blocks.into_iter().partition(|id| told.keeps.contains(id));
        gone.extend(&told.says_gone);
        let reply = v1::RemoveReply {
            removed: 0,
            gone: gone.iter().map(|id| postcard::to_allocvec(id).unwrap()).collect(),
            kept: if kept.is_empty() { String::new() } else { format!("{} blocks are kept", kept.len()) },
            ..v1::RemoveReply::default()
        };
        Ok(Response::new(reply))
    }

    async fn list_blocks(&self, _: Request<v1::ListBlocksRequest>) -> Result<Response<v1::ListBlocksReply>, Status> {
        Ok(Response::new(v1::ListBlocksReply::default()))
    }

    async fn check_blocks(&self, request: Request<v1::CheckBlocksRequest>) -> Result<Response<v1::CheckBlocksReply>, Status> {
        let told = self.0.0.lock().unwrap();
        let Some(damaged) = &told.damaged else { return Ok(Response::new(v1::CheckBlocksReply::default())) };
        let check = |block: BlockId| {
            if damaged.contains(&block) {
                let corrupt = vec![v1::SpanMessage { start: 0, end: 4096 }];
                return v1::CheckedBlock { state: 3, corrupt, why: "its checksum".into(), ..v1::CheckedBlock::default() };
            }
            let read = vec![told.updating.checksum_of(block)];
            v1::CheckedBlock { state: 1, checksums: read.clone(), read, ..v1::CheckedBlock::default() }
        };
        let blocks = blocks_of(&request.get_ref().blocks).into_iter().map(check).collect();
        Ok(Response::new(v1::CheckBlocksReply { blocks }))
    }

    async fn quarantine(&self, _: Request<v1::QuarantineRequest>) -> Result<Response<v1::QuarantineReply>, Status> {
        Ok(Response::new(v1::QuarantineReply::default()))
    }

    async fn release_quarantine(
        &self,
        _: Request<v1::ReleaseQuarantineRequest>,
    ) -> Result<Response<v1::ReleaseQuarantineReply>, Status> {
        Err(Status::unimplemented("it is of an earlier version"))
    }

    async fn send_probe(&self, _: Request<v1::SendProbeRequest>) -> Result<Response<v1::SendProbeReply>, Status> {
        Err(to_status(&Error::retry("busy")))
    }

    async fn receive_probe(&self, _: Request<v1::ReceiveProbeRequest>) -> Result<Response<v1::ReceiveProbeReply>, Status> {
        Err(to_status(&Error::retry("busy")))
    }
}
