//! The end of a put's stripe: the shell around [`weft_control::put`], which decides. The agents' receipts are compared
//! with the writer's checksums of all blocks.

use super::{
    commit, commit_of, committed,
    late_blocks::{Arrived, Bringing},
    learn_of, request, simplest,
    stripe::{prepare, start},
    touched,
    under_way::{Key, Sending},
};
use crate::{
    rebuild::{Rebuilder, shares::Shares},
    shared::Shared,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use weft_codes::SharedCode;
use weft_control::{
    put::{
        Action, Ended, Event, StripeEnd, World,
        upload::{self, EndedAlready, Lesson},
    },
    run::{Levels, Report},
};
use weft_meta::{EndStripe, MetaError, NewRepair, ObjectRecord, UploadRecord};
use weft_proto::{status::decode_error, v1};
use weft_types::{BlockId, BlockState, Error, Home, NodeId, Party, Result, StageTimes, StripeRecord, TaskTraffic};

/// The result of a plan.
pub(super) struct PlanEnd {
    /// What the client must do next; `None` if the stripe has ended.
    pub(super) again: Option<(Sending, v1::ClientTask)>,
    /// The agents' traffic for it, including rebuilds.
    pub(super) traffic: TaskTraffic,
    /// How long the agents' stages spent on what.
    pub(super) stages: Vec<v1::StageReport>,
    /// The object, if the put was committed with the stripe.
    pub(super) object: Option<ObjectRecord>,
}

/// Ends the stripe whose plan the client has finished, or returns what the client must do next.
pub(super) async fn end(shared: &Arc<Shared>, key: Key, sending: Sending, asked: &v1::EndStripeRequest) -> Result<PlanEnd> {
    let upload = touched(shared, key.0).await?;
    let name = &upload.new.name;
    let Sending { mut sent, handle, report, levels, .. } = sending;
    let mut complaints = BTreeSet::new();
    for error in asked.errors.iter().filter_map(|bytes| decode_error(bytes)) {
        tracing::warn!(object = %name, stripe = asked.number, %error, "a client could not send all of a stripe");
        complaints.extend(error.party.and_then(Party::node));
    }
    // An agent may be busy with its disk for the time of a stall.
    let stall = shared.stall(sent.options.precedence().class);
    handle.client_done(stall + Duration::from_millis(shared.config.failure_grace_ms));
    sent.take_checksums(asked.sent.iter().map(|block| (block.index, block.checksums.clone())));
    let ending = Ending { shared, upload: &upload, code: shared.code(&upload.new.code)? };
    let request = request(shared, upload.id, &upload.new, &ending.code);
    let bringing = Bringing::new(request.clone(), sent, complaints.clone(), handle, report);
    let arrived = bringing.wait(shared).await.map_err(|error| error.object(name))?;
    let Arrived { sent, report, late } = arrived;
    let stages = stages(shared, &report, &levels);
    let event = Event::Begin { report, early: late.is_some(), complaints };
    let ended = ending.run(StripeEnd::new(request, *sent).with_put(asked.commit_size), event).await;
    if let Some(late) = late {
        late.stripe_ended(shared, ended.is_ok()).await;
    }
    let (Ended { traffic, .. }, again, object) = ended?;
    Ok(PlanEnd { again, traffic, stages, object })
}

/// How long the agents' stages spent on what.
fn stages(shared: &Shared, report: &Report, levels: &Levels) -> Vec<v1::StageReport> {
    let stage = |node: NodeId, times: &StageTimes| v1::StageReport {
        party: shared.members.name(node),
        level: levels.level(node, times),
        times: Some((*times).into()),
    };
    report.nodes.iter().flat_map(|(id, node)| node.stages.iter().map(|times| stage(*id, times))).collect()
}

/// A stripe of a put that is ending.
struct Ending<'a> {
    shared: &'a Arc<Shared>,
    upload: &'a UploadRecord,
    code: SharedCode,
}

impl Ending<'_> {
    /// Carries out what is decided. Returns the result; if data is sent again, the client's task; and the object, if
    /// the put was committed.
    async fn run(
        &self,
        mut machine: StripeEnd,
        mut event: Event,
    ) -> Result<(Ended, Option<(Sending, v1::ClientTask)>, Option<ObjectRecord>)> {
        let (shared, name) = (self.shared, &self.upload.new.name);
        let (mut started, mut object, stripe) = (None, None, machine.sent().stripe.clone());
        loop {
            let view = shared.members.view();
            let actions = machine.on(event, &mut World { view: &view, rng: &mut *shared.rng() });
            let mut answer = None;
            for action in actions {
                match action {
                    Action::Warn(warning) => tracing::warn!(object = %name, stripe = stripe.number, "{warning}"),
                    Action::Suspect(node) => shared.members.suspect(node),
                    Action::StoredWrong(block, node) => {
                        let node = shared.members.name(node);
                        tracing::error!(object = %name, %block, node, "a node stored other bytes than the writer sent");
                    }
                    Action::HeldUp => learn_of(shared, self.upload.id, Lesson::HeldUp).await,
                    Action::Simplest(error) => simplest(shared, self.upload, stripe.number, &error).await,
                    Action::Rebuild(request) => {
                        let shares = Shares::default();
                        let rebuilder = Rebuilder { shared, version: self.upload.id, shares: &shares };
                        answer = Some(Event::Rebuilt(rebuilder.run(*request, |_| {}).await));
                    }
                    Action::Allocate { index, copy, home } => {
                        answer = Some(Event::Allocated(self.allocate(&stripe, (index, copy), home).await));
                    }
                    Action::Send(sent) => {
                        tracing::info!(object = %name, stripe = stripe.number, blocks = ?sent.blocks(), "a writer sends blocks of a stripe again");
                        let begun = match prepare(shared, self.upload, &self.code, *sent) {
                            Ok(prepared) => {
                                start(shared, self.upload, &self.code, prepared, shared.config.open_attempts_max).await
                            }
                            Err(error) => Err(error),
                        };
                        answer = Some(Event::Started(begun.map(|begun| started = Some(begun))));
                    }
                    Action::Commit { blocks, checksums, put_bytes } => {
                        let committed = self.commit(&stripe, (blocks, checksums), put_bytes).await;
                        answer = Some(Event::Committed(committed.map(|committed| object = committed)));
                    }
                    Action::End(ended) => {
                        return ended.map(|ended| {
                            let started = started.filter(|_| ended.again);
                            (ended, started, object)
                        });
                    }
                }
            }
            event = answer.ok_or_else(|| Error::fatal("internal error: a stripe's end waits for nothing"))?;
        }
    }

    async fn allocate(&self, stripe: &StripeRecord, (index, copy): (u8, u8), home: Home) -> Result<BlockId> {
        let (shared, upload, expires_ms) = (self.shared, Some(self.upload.id), self.shared.lease_end_ms());
        let new = NewRepair { stripe: stripe.id, index, copy, home, upload, term: None, expires_ms };
        let block = shared.meta.allocate_repair(shared.epoch, new).await.map_err(|error| shared.meta_error(error))?;
        shared.members.add_blocks(&[home], stripe.layout.block_len(index.into()));
        Ok(block)
    }

    /// Records that the stripe has ended, and which blocks are missing for now. With `put_bytes`, the object's size,
    /// also commits the put.
    async fn commit(
        &self,
        stripe: &StripeRecord,
        (blocks, checksums): (Vec<Stored>, Vec<Vec<u32>>),
        put_bytes: Option<u64>,
    ) -> Result<Option<ObjectRecord>> {
        let (shared, upload) = (self.shared, self.upload);
        let garbage_not_before_ms = shared.now_ms().saturating_add(shared.config.stall_ms.into());
        let end = EndStripe { upload: upload.id, stripe: stripe.id, blocks, checksums, garbage_not_before_ms };
        let commit = put_bytes.map(|size| commit_of(shared, upload.id, size));
        let ended = shared.meta.end_stripe(shared.epoch, end, commit).await;
        let (ended, object) = ended.map_err(|error| shared.meta_error(error).object(&upload.new.name))?;
        if ended.incomplete {
            shared.puts.late_blocks.has_left();
        }
        if let Some(object) = &object {
            committed(shared, object);
        }
        Ok(object)
    }
}

/// A block at the end of its stripe: generation, home, and state.
type Stored = (u32, Home, BlockState);

/// The answer for a stripe that is not being sent.
pub(super) async fn ended_already(
    shared: &Arc<Shared>,
    (upload, number): Key,
    commit_size: Option<u64>,
) -> Result<v1::EndStripeReply> {
    let found = shared.meta.upload_stripe(upload, number).await;
    let (stripe, missing) = match found {
        Ok(stripe) => (Some(stripe), None),
        Err(error @ MetaError::NotFound(_)) => (None, Some(error)),
        Err(error) => return Err(shared.meta_error(error)),
    };
    match upload::ended_already(upload, number, stripe.as_ref(), commit_size) {
        EndedAlready::Ended => Ok(v1::EndStripeReply::default()),
        EndedAlready::SendAgain(error) => Err(error),
        EndedAlready::Commit(size) => {
            let asked = v1::CommitPutRequest { upload: upload.0, size, ..v1::CommitPutRequest::default() };
            let object = Some(commit(shared, asked).await?);
            Ok(v1::EndStripeReply { object, ..v1::EndStripeReply::default() })
        }
        EndedAlready::Gone => Err(missing
            .map_or_else(|| Error::fatal("internal error: a put both exists and does not"), |error| shared.meta_error(error))),
    }
}
