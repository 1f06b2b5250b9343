//! The coordinator's calls to an agent, over gRPC.

use crate::{
    content, convert,
    disks::{Disks, Released},
    keep, limit,
    node::Node,
    probe, update_calls,
    updates::fence::Fence,
    wire,
};
use std::{sync::Arc, time::Duration};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use weft_proto::{
    decode_task, to_status,
    v1::{
        CancelReply, CancelRequest, CheckBlocksReply, CheckBlocksRequest, CheckedBlock, CloseBlockReply, CloseBlockRequest,
        ConvertEvent, ConvertStripeRequest, InspectBlockReply, InspectBlockRequest, KeepBlockReply, KeepBlockRequest,
        ListBlocksReply, ListBlocksRequest, OpenBlockReply, OpenBlockRequest, OpenReply, OpenRequest, QuarantineReply,
        QuarantineRequest, ReceiveProbeReply, ReceiveProbeRequest, ReleaseQuarantineReply, ReleaseQuarantineRequest, RemoveReply,
        RemoveRequest, SealBlockReply, SealBlockRequest, SendProbeReply, SendProbeRequest, SetLimitReply, SetLimitRequest,
        SettleBlockReply, SettleBlockRequest, StartRequest, TaskEvent, agent_server::Agent,
    },
};
use weft_types::{BlockId, Cause, Error, GarbageReason, PlanId, Reaction, Result};

/// The service.
pub(crate) struct Service(pub(crate) Arc<Node>);

/// The most blocks in one request.
const REMOVED_BLOCKS_MAX: usize = 100_000;
/// The most blocks that one call checks: it opens each of them.
const CHECKED_BLOCKS_MAX: usize = 1_000;

impl Service {
    async fn open_task(&self, request: Request<OpenRequest>) -> Result<OpenReply> {
        let request = request.into_inner();
        let task = decode_task(&request.task)?;
        let memory_bytes = self.0.tasks.open(&self.0, task, request).await?;
        Ok(OpenReply { memory_bytes })
    }

    async fn start_task(&self, request: Request<StartRequest>) -> Result<ReceiverStream<Result<TaskEvent, Status>>> {
        let StartRequest { plan, epoch, open, pages } = request.into_inner();
        self.0.obey(epoch).await?;
        let plan = PlanId(plan);
        if let Some(open) = open {
            let task = decode_task(&open.task)?;
            if task.plan != plan {
                return Err(Error::invalid(format!("the task belongs to plan {}, not to plan {plan}", task.plan)));
            }
            self.0.tasks.open(&self.0, task, open).await?;
        }
        Ok(ReceiverStream::new(self.0.tasks.start(&self.0, plan, pages)?))
    }

    async fn convert(&self, request: Request<ConvertStripeRequest>) -> Result<ReceiverStream<Result<ConvertEvent, Status>>> {
        let request = request.into_inner();
        self.0.obey(request.epoch).await?;
        // The registration tells the limit on conversions.
        self.0.registration()?;
        Ok(ReceiverStream::new(convert::start(&self.0, request).await?))
    }

    async fn limit(&self, request: Request<SetLimitRequest>) -> Result<SetLimitReply> {
        let SetLimitRequest { epoch, limit } = request.into_inner();
        self.0.obey(epoch).await?;
        let disks = self.0.disks()?;
        self.0.limit.apply(epoch, &limit.unwrap_or_default(), &self.0.throttles, &disks);
        Ok(SetLimitReply { lines: limit::lines(&self.0.throttles, &disks) })
    }

    async fn cancel_task(&self, request: Request<CancelRequest>) -> Result<CancelReply> {
        let CancelRequest { plan, epoch, wait } = request.into_inner();
        self.0.obey(epoch).await?;
        self.0.tasks.cancel(PlanId(plan), wait).await;
        Ok(CancelReply {})
    }

    async fn remove_blocks(&self, request: Request<RemoveRequest>) -> Result<RemoveReply> {
        let request = request.into_inner();
        let blocks = self.doomed(request.epoch, &request.incarnation, request.high_water, &request.blocks).await?;
        let (disks, node) = (self.0.disks()?, Arc::clone(&self.0));
        let (opening, reason) = (Duration::from_millis(request.opening_ms), GarbageReason::by_name(&request.reason));
        let remove = move || Ok(disks.remove(&blocks, reason, opening, &node.partials, &node.bounds()));
        let removal = self.0.seams.disk_mode.run_boxed(remove).await?;
        self.0.updates.hub.removed(removal.gone.iter().copied()).await;
        let waits = |error: &&Error| error.reaction == Reaction::Unavailable;
        Ok(RemoveReply {
            removed: removal.removed,
            quarantined: removal.quarantined,
            gone: removal.gone.iter().map(wire::encode).collect(),
            kept: told(&removal.kept),
            waiting: removal.kept.iter().filter(waits).count() as u32,
        })
    }

    async fn release(&self, request: Request<ReleaseQuarantineRequest>) -> Result<ReleaseQuarantineReply> {
        let ReleaseQuarantineRequest { epoch, incarnation, high_water, blocks_max } = request.into_inner();
        if blocks_max > 0 {
            self.doomed(epoch, &incarnation, high_water, &[]).await?;
        }
        let (disks, node) = (self.0.disks()?, Arc::clone(&self.0));
        let blocks_max = (blocks_max as usize).min(REMOVED_BLOCKS_MAX);
        let release = move || Ok(disks.release_quarantine(blocks_max, &node.config.limits));
        let Released { freed_blocks, freed_bytes, disks, kept } = self.0.seams.disk_mode.run_boxed(release).await?;
        Ok(ReleaseQuarantineReply { disks, freed_blocks, freed_bytes, kept: told(&kept) })
    }

    async fn quarantine_blocks(&self, request: Request<QuarantineRequest>) -> Result<QuarantineReply> {
        let request = request.into_inner();
        let blocks = self.doomed(request.epoch, &request.incarnation, request.high_water, &request.blocks).await?;
        let (disks, node) = (self.0.disks()?, Arc::clone(&self.0));
        let quarantine = move || {
            let (moved, kept) = disks.quarantine(&blocks, &node.partials, &node.bounds());
            let open = blocks.into_iter().filter(|block| node.updates.hub.fence.disk_of(*block).is_some());
            let is_gone = |block: &BlockId| disks.open_block(*block).is_err_and(|error| error.reaction == Reaction::NotFound);
            Ok((moved, kept, open.filter(is_gone).collect::<Vec<_>>()))
        };
        let (moved, kept, gone) = self.0.seams.disk_mode.run_boxed(quarantine).await?;
        self.0.updates.hub.removed(gone).await;
        Ok(QuarantineReply { moved, kept: told(&kept) })
    }

    /// The blocks that a request asks to remove, if its sender may remove blocks.
    async fn doomed(&self, epoch: u64, incarnation: &str, high_water: u64, blocks: &[Vec<u8>]) -> Result<Vec<BlockId>> {
        self.0.obey(epoch).await?;
        let known = self.0.state.get();
        if incarnation != known.incarnation {
            return Err(Error::invalid(format!(
                "this node removes no blocks for metadata incarnation '{incarnation}': it obeys incarnation '{}'",
                known.incarnation
            )));
        }
        if high_water < known.high_water {
            return Err(Error::invalid(format!(
                "this node removes no blocks for metadata whose highest stripe is {high_water}: it has seen stripe {}",
                known.high_water
            )));
        }
        if blocks.len() > REMOVED_BLOCKS_MAX {
            return Err(Error::invalid(format!(
                "the request names {} blocks: at most {REMOVED_BLOCKS_MAX} are allowed",
                blocks.len()
            )));
        }
        blocks.iter().map(|id| wire::decode("block", id)).collect()
    }

    async fn list(&self, request: Request<ListBlocksRequest>) -> Result<ListBlocksReply> {
        let ListBlocksRequest { after, limit, disk } = request.into_inner();
        let after = if after.is_empty() { None } else { Some(wire::decode::<BlockId>("block", &after)?) };
        let disks = self.0.disks()?;
        let list = move || disks.list((!disk.is_empty()).then_some(disk.as_str()), after, limit as usize);
        let (blocks, more) = self.0.seams.disk_mode.run_boxed(list).await?;
        Ok(ListBlocksReply { blocks: blocks.iter().map(wire::encode).collect(), more })
    }

    async fn check(&self, request: Request<CheckBlocksRequest>) -> Result<CheckBlocksReply> {
        let CheckBlocksRequest { blocks, disk, read } = request.into_inner();
        if blocks.len() > CHECKED_BLOCKS_MAX {
            return Err(Error::invalid(format!(
                "{} blocks in one call: at most {CHECKED_BLOCKS_MAX} are possible",
                blocks.len()
            )));
        }
        let blocks = blocks.iter().map(|block| wire::decode::<BlockId>("block", block)).collect::<Result<Vec<_>>>()?;
        if let Some(read) = read {
            let [id] = blocks[..] else {
                return Err(Error::invalid(format!("{} blocks to read in one call: only one is possible", blocks.len())));
            };
            return Ok(CheckBlocksReply { blocks: vec![content::check(&self.0, disk, id, read).await?] });
        }
        let disks = self.0.disks()?;
        let fence = self.0.updates.hub.fence.clone();
        let check = move || Ok(blocks.into_iter().map(|id| checked(&disks, &fence, &disk, id)).collect());
        Ok(CheckBlocksReply { blocks: self.0.seams.disk_mode.run_boxed(check).await? })
    }
}

/// The states of a block in an answer.
pub(crate) const UNKNOWN: u32 = 0;
pub(crate) const THERE: u32 = 1;
const ABSENT: u32 = 2;
pub(crate) const DAMAGED: u32 = 3;

/// The state of a block in an answer.
pub(crate) fn checked(disks: &Disks, fence: &Fence, disk: &str, id: BlockId) -> CheckedBlock {
    // What a block contains that is open for updates changes meanwhile.
    let _reading = match fence.read(id) {
        Ok(reading) => reading,
        Err(error) => return CheckedBlock { state: UNKNOWN, why: error.message, ..CheckedBlock::default() },
    };
    let opened = disks.open_block(id).and_then(|(_, reader)| {
        let (there, len) = (reader.stored_len()?, reader.meta().len());
        let is_short = || Error::corrupt(format!("its file ends at {there} of {len} bytes"));
        if there < len { Err(is_short()) } else { Ok(reader.units().to_vec()) }
    });
    // A block that its own disk lacks is not on another one that cannot be used or read.
    let is_lacking =
        || disks.by_id(disk).is_ok_and(|(_, store)| store.open(id).is_err_and(|it| it.reaction == Reaction::NotFound));
    let (state, checksums, why) = match opened.map_err(|error| (state_of(&error), error.message)) {
        Ok(checksums) => (THERE, checksums, String::new()),
        Err((UNKNOWN, _)) if is_lacking() => (ABSENT, Vec::new(), "its disk does not have it".to_owned()),
        Err((state, why)) => (state, Vec::new(), why),
    };
    CheckedBlock { state, checksums, why, ..CheckedBlock::default() }
}

/// The state of a block that cannot be opened.
fn state_of(error: &Error) -> u32 {
    match (error.reaction, error.cause) {
        (Reaction::NotFound, _) => ABSENT,
        // It may be right, and the disk not in order.
        (Reaction::Corrupt, Some(Cause::Unreadable)) => UNKNOWN,
        (Reaction::Corrupt, _) => DAMAGED,
        _ => UNKNOWN,
    }
}

/// Why blocks were kept; empty if none were.
fn told(kept: &[Error]) -> String {
    kept.first().map(|first| format!("kept {} blocks, the first because {first}", kept.len())).unwrap_or_default()
}

fn answer<T>(result: Result<T>) -> Result<Response<T>, Status> {
    result.map(Response::new).map_err(|error| to_status(&error))
}

#[tonic::async_trait]
impl Agent for Service {
    async fn open(&self, request: Request<OpenRequest>) -> Result<Response<OpenReply>, Status> {
        answer(self.open_task(request).await)
    }

    type StartStream = ReceiverStream<Result<TaskEvent, Status>>;

    async fn start(&self, request: Request<StartRequest>) -> Result<Response<Self::StartStream>, Status> {
        answer(self.start_task(request).await)
    }

    type ConvertStripeStream = ReceiverStream<Result<ConvertEvent, Status>>;

    async fn convert_stripe(
        &self,
        request: Request<ConvertStripeRequest>,
    ) -> Result<Response<Self::ConvertStripeStream>, Status> {
        answer(self.convert(request).await)
    }

    async fn set_limit(&self, request: Request<SetLimitRequest>) -> Result<Response<SetLimitReply>, Status> {
        answer(self.limit(request).await)
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<CancelReply>, Status> {
        answer(self.cancel_task(request).await)
    }

    async fn remove(&self, request: Request<RemoveRequest>) -> Result<Response<RemoveReply>, Status> {
        answer(self.remove_blocks(request).await)
    }

    async fn list_blocks(&self, request: Request<ListBlocksRequest>) -> Result<Response<ListBlocksReply>, Status> {
        answer(self.list(request).await)
    }

    async fn check_blocks(&self, request: Request<CheckBlocksRequest>) -> Result<Response<CheckBlocksReply>, Status> {
        answer(self.check(request).await)
    }

    async fn quarantine(&self, request: Request<QuarantineRequest>) -> Result<Response<QuarantineReply>, Status> {
        answer(self.quarantine_blocks(request).await)
    }

    async fn release_quarantine(
        &self,
        request: Request<ReleaseQuarantineRequest>,
    ) -> Result<Response<ReleaseQuarantineReply>, Status> {
        answer(self.release(request).await)
    }

    async fn open_block(&self, request: Request<OpenBlockRequest>) -> Result<Response<OpenBlockReply>, Status> {
        answer(update_calls::open(&self.0, request.into_inner()).await)
    }

    async fn seal_block(&self, request: Request<SealBlockRequest>) -> Result<Response<SealBlockReply>, Status> {
        answer(update_calls::seal(&self.0, request.into_inner()).await)
    }

    async fn settle_block(&self, request: Request<SettleBlockRequest>) -> Result<Response<SettleBlockReply>, Status> {
        answer(update_calls::settle(&self.0, request.into_inner()).await)
    }

    async fn close_block(&self, request: Request<CloseBlockRequest>) -> Result<Response<CloseBlockReply>, Status> {
        answer(update_calls::close(&self.0, request.into_inner()).await)
    }

    async fn keep_block(&self, request: Request<KeepBlockRequest>) -> Result<Response<KeepBlockReply>, Status> {
        answer(keep::keep(&self.0, request.into_inner()).await)
    }

    async fn inspect_block(&self, request: Request<InspectBlockRequest>) -> Result<Response<InspectBlockReply>, Status> {
        answer(update_calls::inspect(&self.0, request.into_inner()).await)
    }

    async fn send_probe(&self, request: Request<SendProbeRequest>) -> Result<Response<SendProbeReply>, Status> {
        let request = request.into_inner();
        answer(probe::send(&self.0, request).await)
    }

    async fn receive_probe(&self, request: Request<ReceiveProbeRequest>) -> Result<Response<ReceiveProbeReply>, Status> {
        let request = request.into_inner();
        answer(probe::receive(&self.0, request).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LocalDisks, state::Memory};
    use rand::{SeedableRng as _, rngs::StdRng};
    use weft_store::conformance;
    use weft_types::ClusterId;

    const CLUSTER: ClusterId = ClusterId(3);
    const LEN: u64 = 5000;

    #[tokio::test]
    async fn a_block_is_wrong_if_its_file_is_short_and_unknown_if_it_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let (paths, random) = ([dir.path().to_owned()], &mut StdRng::seed_from_u64(1));
        let disks = Disks::open(&paths, &Memory::default(), CLUSTER, &LocalDisks, random, 0).ok().unwrap();
        let id = disks.ids()[&dir.path().display().to_string()].clone();
        let meta = conformance::block(CLUSTER, 1, LEN);
        let mut writer = disks.by_id(&id).unwrap().1.create(&meta).unwrap();
        writer.write_at(0, &conformance::pattern(LEN)).unwrap();
        let units = writer.finish(None).unwrap().units;
        let fence = Fence::default();
        let state = |block: BlockId| checked(&disks, &fence, &id, block);
        assert_eq!(state(meta.id), CheckedBlock { state: 1, checksums: units, ..CheckedBlock::default() });
        assert_eq!(state(BlockId { generation: 9, ..meta.id }).state, 2);
        fence.opened(meta.id, 0);
        assert!(state(meta.id).state == 0 && state(meta.id).why.contains("open for updates"));
        fence.close(meta.id);
        let mut shards = std::fs::read_dir(dir.path().join("blocks")).unwrap();
        let file = shards.next().unwrap().unwrap().path().join(meta.id.to_string());
        std::fs::File::options().write(true).open(file).unwrap().set_len(LEN - 1).unwrap();
        let short = state(meta.id);
        assert_eq!((short.state, &*short.why), (3, "its file ends at 4999 of 5000 bytes"));
        assert_eq!(state_of(&Error::corrupt("cannot read it").cause(Cause::Unreadable)), 0);
        assert_eq!(state_of(&Error::corrupt("the sidecar belongs to another block")), 3);
    }
}
