//! How a stripe of a put ends: the agents' receipts are compared with the checksums that the writer made of all blocks; what is missing
//! is rebuilt elsewhere from what has been stored, and only where that is not enough, the writer sends again the data that is missing.

use super::{
    late_blocks::{self, Arrived, LateStripe},
    learn_of, prepare, simpler, start, touched,
    under_way::{EarlierPlans, Key, Sending},
};
use crate::{
    options,
    rebuild::{self, Rebuilder, shares::Shares},
    shared::Shared,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use weft_codes::SharedCode;
use weft_control::{
    capacity::Wanted,
    options::WriteOptions,
    placement::{self, Ask, NOTHING},
    put,
    rebuild::{Lost, Purpose, RebuiltBlock, Request},
    recovery,
    run::{End, Report},
    view::NodeView,
};
use weft_meta::{EndStripe, NewRepair, UploadRecord};
use weft_proto::{status::decode_error, v1};
use weft_types::{
    BlockState, Error, FailureDomain, Home, NodeId, Party, PlacedBlock, Reaction, Result, StageTimes, StripeRecord, TaskTraffic,
    UploadId,
};

/// What came of a plan.
pub(super) struct PlanEnd {
    /// What the client is to do next; none: the stripe has ended.
    pub(super) again: Option<(Sending, v1::ClientTask)>,
    /// What the agents moved for it, and to rebuild what it did not bring.
    pub(super) traffic: TaskTraffic,
    /// What the agents' stages of it spent their time on.
    pub(super) stages: Vec<v1::StageReport>,
}

/// Ends the stripe whose plan the client has done; or what the client is to do next.
pub(super) async fn end(shared: &Arc<Shared>, id: UploadId, sending: Sending, asked: &v1::EndStripeRequest) -> Result<PlanEnd> {
    let upload = touched(shared, id).await?;
    let name = &upload.new.name;
    let Sending { stripe, options, handle, report, levels, before, .. } = sending;
    let mut complaints = BTreeSet::new();
    for error in asked.errors.iter().filter_map(|bytes| decode_error(bytes)) {
        tracing::warn!(object = %name, stripe = asked.number, %error, "a client could not send everything");
        complaints.extend(error.party.and_then(put::node_of));
    }
    // An agent may be busy with its disk for as long as a stall takes.
    handle.client_done(Duration::from_millis(u64::from(shared.config.stall_ms).saturating_add(shared.config.failure_grace_ms)));
    let code = shared.code(&upload.new.code)?;
    let all: Vec<u8> = (0..=u8::MAX).take(stripe.blocks.len()).collect();
    let EarlierPlans { checksums, missing: earlier, failed: mut failed_before, plans, again: blocks } = match before {
        None => EarlierPlans { checksums: sent_checksums(&stripe, &asked.sent), again: all, ..EarlierPlans::default() },
        Some(before) => *before,
    };
    let view = shared.members.view();
    // The stripe, with a copy of each block in its place that has come, and the blocks of which none has.
    let arrived_by = |report: &Report| {
        let (mut stripe, mut missing) = ((*stripe).clone(), earlier.clone());
        put::note_stored(&mut stripe, &checksums, report);
        for (index, why) in put::received(&stripe, &blocks, &checksums, report, &view) {
            match why {
                Some(why) => missing.insert(index, why),
                None => missing.remove(&index),
            };
        }
        (stripe, missing)
    };
    let missing_max = upload.new.ack.missing_max;
    let is_enough = |stripe: &StripeRecord, missing: &BTreeMap<u8, String>| {
        recovery::is_enough(&code, stripe, &checksums, &missing.keys().copied().collect::<Vec<u8>>(), missing_max)
    };
    let may_end = |report: &Report| {
        let (stripe, missing) = arrived_by(report);
        missing_max > 0 && is_enough(&stripe, &missing)
    };
    let arrived =
        late_blocks::wait(shared, (stripe.id, id), report, &handle, may_end).await.map_err(|error| error.object(name))?;
    let (report, following) = match arrived {
        Arrived::All(report) => (report, None),
        Arrived::Enough(report, following) => (report, Some(following)),
    };
    let (stripe, missing) = arrived_by(&report);
    let (traffic, stages) = (report.traffic(), stages(shared, &report, &levels));
    if let Some(following) = following {
        let left = LateStripe { object: name.clone(), stripe: stripe.clone(), checksums: checksums.clone() };
        let ending = StripeEnd { shared, upload: &upload, code: &code, stripe, checksums, missing, failed: failed_before };
        ending.commit().await?;
        let learner = Arc::clone(shared);
        following.go_on(shared, left, move |report| drop(learn(&learner, report, &complaints)));
        return Ok(PlanEnd { again: None, traffic, stages });
    }
    failed_before.extend(learn(shared, &report, &complaints));
    if report.held_up.is_some() {
        learn_of(shared, id, |learnt| learnt.held_up += 1).await;
    }
    // Data come from the writer itself: who stored something else got them right.
    let data = missing.keys().filter(|index| usize::from(**index) < code.k() && put::is_known(&checksums, **index));
    failed_before.extend(data.filter_map(|index| put::stored_at(&stripe, *index, &report).map(|(node, _)| node)));
    let enough = is_enough(&stripe, &missing);
    let ending = StripeEnd { shared, upload: &upload, code: &code, stripe, checksums, missing, failed: failed_before };
    let ended = PlanEnd { again: None, traffic, stages };
    if enough { ending.with_copies(&report, ended).await } else { ending.mend(&report, &options, plans, ended).await }
}

/// What the agents' stages spent their time on.
fn stages(shared: &Shared, report: &Report, levels: &BTreeMap<(NodeId, u32, u32), u32>) -> Vec<v1::StageReport> {
    let stage = |node: NodeId, times: &StageTimes| {
        let level = levels.get(&(node, times.lane.into(), times.stage.into())).copied().unwrap_or(0);
        v1::StageReport { party: shared.members.name(node), level, times: Some((*times).into()) }
    };
    report.nodes.iter().flat_map(|(id, node)| node.stages.iter().map(|times| stage(*id, times))).collect()
}

/// Who has waited for somebody for this part of a stall when a plan ended has failed for that.
const WAIT_SHARE: u32 = 4;

/// Who failed in a plan that has ended. Those of whom the writer complained too are avoided for a while.
fn learn(shared: &Shared, report: &Report, complaints: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
    let failed = put::who_failed(report, complaints, shared.config.stall_ms / WAIT_SHARE);
    complaints.intersection(&failed).for_each(|node| shared.members.suspect(*node));
    failed
}

/// A stripe that is to end.
struct StripeEnd<'a> {
    shared: &'a Arc<Shared>,
    upload: &'a UploadRecord,
    code: &'a SharedCode,
    stripe: StripeRecord,
    checksums: Vec<Option<Vec<u32>>>,
    missing: BTreeMap<u8, String>,
    failed: BTreeSet<NodeId>,
}

impl StripeEnd<'_> {
    /// Whether something is missing of which nobody knows what it should be.
    fn unknown(&self) -> bool {
        self.missing.keys().any(|index| !put::is_known(&self.checksums, *index))
    }

    /// Too much is missing: it is rebuilt of what has been stored or, where that is not enough, sent again.
    async fn mend(mut self, report: &Report, options: &WriteOptions, plans: u32, ended: PlanEnd) -> Result<PlanEnd> {
        let (shared, name, number) = (self.shared, &self.upload.new.name, self.stripe.number);
        let missing: Vec<u8> = self.missing.keys().copied().collect();
        tracing::warn!(object = %name, stripe = number, reasons = ?self.missing.values(), "blocks of a put were not stored");
        // If a block's checksums are not known, nobody could say whether it was rebuilt right: all is sent again, to others.
        if self.unknown() {
            return Err(self.give_up(report));
        }
        if !recovery::is_recoverable(self.code, &self.stripe, &missing) {
            if plans >= shared.config.resumes_max {
                return Err(self.give_up(report));
            }
            let before = EarlierPlans { plans: plans + 1, ..self.before() };
            return match self.send_again(options, before).await {
                Ok(again) => Ok(PlanEnd { again: Some(again), ..ended }),
                Err(error) => {
                    tracing::warn!(object = %name, stripe = number, %error, "nor can what is missing be sent again");
                    Err(self.give_up(report))
                }
            };
        }
        let moved = match self.rebuild().await {
            Ok(moved) => moved,
            // What had been stored may have been lost since: the writer still has everything.
            Err(error) if goes_again(&error) && (self.has_lost_more() || self.could_go_elsewhere()) => {
                tracing::warn!(object = %name, stripe = number, %error, "nor can what is missing be rebuilt");
                let given_up = self.give_up(report);
                let message = format!("{}; nor could they be rebuilt: {}", given_up.message, error.message);
                return Err(Error { message, ..given_up });
            }
            Err(error) => {
                // Why it had to be rebuilt is what a person can mend.
                let reasons: Vec<&str> = self.missing.values().map(String::as_str).collect();
                return Err(Error { message: format!("{}; {}", reasons.join("; "), error.message), ..error });
            }
        };
        self.with_copies(report, PlanEnd { traffic: ended.traffic + moved, ..ended }).await
    }

    /// Ends the stripe when all copies of its blocks are there, too, which may come later only where blocks may.
    async fn with_copies(mut self, report: &Report, ended: PlanEnd) -> Result<PlanEnd> {
        let moved = match self.upload.new.ack.missing_max {
            0 => self.complete_copies().await,
            _ => Ok(TaskTraffic::default()),
        };
        match moved {
            Ok(moved) => self.commit().await.map(|()| PlanEnd { traffic: ended.traffic + moved, ..ended }),
            Err(error) if !self.has_lost_more() => Err(error),
            Err(error) => {
                let (name, number) = (&self.upload.new.name, self.stripe.number);
                tracing::warn!(object = %name, stripe = number, %error, "copies of blocks cannot be made");
                let message = format!("copies of blocks of stripe {number} cannot be made: {}", error.message);
                Err(Error { message, ..self.give_up(report) })
            }
        }
    }

    /// Whether a node that had stored its block is gone, or failed somebody since.
    fn has_lost_more(&self) -> bool {
        let view = self.shared.members.view();
        let stored = (0..=u8::MAX).zip(&self.stripe.blocks).filter(|(index, _)| !self.missing.contains_key(index));
        let is_good = |node: &NodeView| node.up && !node.is_suspect();
        stored.map(|(_, placed)| placed.home.node).any(|node| !view.node(node).is_some_and(is_good))
    }

    /// Whether there are nodes for all of the stripe without those that failed: the writer still has everything, and who could not help to
    /// rebuild it may have been blamed for a moment only.
    fn could_go_elsewhere(&self) -> bool {
        let view = self.shared.members.view();
        view.nodes.values().filter(|node| node.up && !self.failed.contains(&node.id)).count() >= self.code.n()
    }

    /// The stripe is to be sent again, all of it, to others.
    fn give_up(&self, report: &Report) -> Error {
        let reasons: Vec<&str> = self.missing.values().map(String::as_str).collect();
        let message = format!("too few blocks of stripe {} were stored: {}", self.stripe.number, reasons.join("; "));
        suspect_failed(self.shared, report);
        Error::replan(message).object(&self.upload.new.name)
    }

    fn before(&self) -> EarlierPlans {
        let data = |index: &&u8| usize::from(**index) < self.code.k();
        let again = self.missing.keys().filter(data).copied().collect();
        let (checksums, missing, failed) = (self.checksums.clone(), self.missing.clone(), self.failed.clone());
        EarlierPlans { checksums, missing, failed, plans: 0, again }
    }

    /// The writer sends the data that is missing again: all else can be made of it.
    async fn send_again(&mut self, options: &WriteOptions, mut before: EarlierPlans) -> Result<(Sending, v1::ClientTask)> {
        let (mut options, mut homeless, mut failures) = (options.clone(), before.again.clone(), 0);
        loop {
            if !homeless.is_empty()
                && let Err(error) = self.place_again(&homeless).await
            {
                // There is no node for it: what else is missing, of those that can still store it, may be enough to be acknowledged.
                let stays = |index: &u8| {
                    let home = self.stripe.blocks.get(usize::from(*index)).map(|placed| placed.home.node);
                    home.is_some_and(|node| !self.failed.contains(&node))
                };
                let others: Vec<u8> = self.missing.keys().copied().filter(stays).collect();
                if failures > 0 || others.is_empty() {
                    return Err(error);
                }
                before.again = others;
                self.place_again(&before.again).await?;
            }
            tracing::info!(object = %self.upload.new.name, stripe = self.stripe.number, blocks = ?before.again, "sent again");
            let (shared, stripe, earlier) = (self.shared, self.stripe.clone(), Some(Box::new(before.clone())));
            let started = match prepare(shared, self.upload, self.code, stripe, &options, &before.again, earlier) {
                Ok(prepared) => start(shared, self.upload, self.code, prepared).await,
                Err(error) => Err(error),
            };
            match (started, failures) {
                // A receiver that makes its block of many others needs more memory than some node has.
                (Err(error), _) if error.reaction == Reaction::InvalidInput && options.is_left_open() => {
                    options = simpler(shared, self.upload, self.stripe.number, options, &error).await;
                    homeless.clear();
                    continue;
                }
                // Somebody could not be asked: what was to go there goes elsewhere.
                (Err(Error { reaction: Reaction::Replan, party: Some(Party::Node(node)), .. }), failures)
                    if failures < self.shared.config.resumes_max =>
                {
                    self.failed.insert(node);
                    let is_there =
                        |index: &u8| self.stripe.blocks.get(usize::from(*index)).is_some_and(|it| it.home.node == node);
                    homeless = before.again.iter().copied().filter(is_there).collect();
                }
                (started, _) => return started,
            }
            failures += 1;
        }
    }

    /// Allocates blocks anew: where they were, unless that node failed.
    async fn place_again(&mut self, blocks: &[u8]) -> Result<()> {
        let (shared, layout) = (self.shared, self.stripe.layout);
        let home = |index: &u8| self.stripe.blocks.get(usize::from(*index)).map(|placed| placed.home);
        let stays = |home: &Home| !self.failed.contains(&home.node);
        let mut homes: Vec<Option<Home>> = blocks.iter().map(|index| home(index).filter(stays)).collect();
        let held: Vec<NodeId> = self.stripe.all().map(|(_, placed)| placed.home).filter(stays).map(|home| home.node).collect();
        let (spec, count) = (self.code.spec(), homes.iter().filter(|home| home.is_none()).count());
        let avoid = self.avoided(count, &held, self.upload.new.failure_domain)?;
        let ask = Ask {
            code: &spec,
            count,
            tolerance: self.code.tolerance(),
            failure_domain: self.upload.new.failure_domain,
            held: &held,
            avoid: &avoid,
            named: false,
            load: &NOTHING,
            bytes: layout.block_len(0).saturating_add(shared.config.disk_reserve.0),
        };
        let mut found = placement::place(&shared.members.view(), &ask, &mut *shared.rng())?.homes.into_iter();
        homes.iter_mut().filter(|home| home.is_none()).for_each(|home| *home = found.next());
        for (index, home) in blocks.iter().zip(homes.into_iter().flatten()) {
            let expires_ms = shared.lease_end_ms();
            let copy = self.stripe.blocks.get(usize::from(*index)).map_or(0, |placed| placed.copy);
            let new = NewRepair { stripe: self.stripe.id, index: *index, copy, home, upload: Some(self.upload.id), expires_ms };
            let block = shared.meta.allocate_repair(shared.epoch, new).await.map_err(|error| shared.meta_error(error))?;
            shared.members.add_blocks(&[home], layout.block_len((*index).into()));
            if let Some(placed) = self.stripe.blocks.get_mut(usize::from(*index)) {
                *placed = PlacedBlock { generation: block.generation, home, ..*placed };
            }
        }
        Ok(())
    }

    /// Who gets none of so many further blocks: who failed and, where it is a conversion's stripe, who has only left what puts need.
    fn avoided(&self, count: usize, held: &[NodeId], failure_domain: FailureDomain) -> Result<BTreeSet<NodeId>> {
        if self.upload.new.replaces.is_none() {
            return Ok(self.failed.clone());
        }
        let whole = Wanted::stripe(self.code, self.upload.new.replicas, failure_domain, &self.stripe.layout);
        let full = self.shared.without_capacity(&Wanted { count, held, avoid: &self.failed, ..whole })?;
        Ok(&self.failed | &full)
    }

    /// Makes what is missing from what has been stored, elsewhere; what was moved for that.
    async fn rebuild(&mut self) -> Result<TaskTraffic> {
        let copy = |index: u8| self.stripe.blocks.get(usize::from(index)).map_or(0, |placed| placed.copy);
        self.rebuild_these(self.missing.keys().map(|index| (*index, copy(*index))).collect()).await
    }

    /// Makes the copies that are missing of what is there, elsewhere; what was moved for that.
    async fn complete_copies(&mut self) -> Result<TaskTraffic> {
        let lacking = |(_, placed): &&(u8, PlacedBlock)| placed.state != BlockState::Ok;
        let lacking: Vec<(u8, u8)> =
            self.stripe.copies.iter().filter(lacking).map(|(index, placed)| (*index, placed.copy)).collect();
        if lacking.is_empty() {
            return Ok(TaskTraffic::default());
        }
        tracing::warn!(object = %self.upload.new.name, stripe = self.stripe.number, ?lacking, "copies of a put were not stored");
        self.rebuild_these(lacking).await
    }

    /// Makes blocks, by index and copy, from what has been stored, elsewhere.
    async fn rebuild_these(&mut self, blocks: Vec<(u8, u8)>) -> Result<TaskTraffic> {
        let mut readable = self.stripe.clone();
        for (index, placed) in (0..=u8::MAX).zip(&mut readable.blocks) {
            // The blocks that were stored are as good as those of a visible stripe.
            placed.state = if self.missing.contains_key(&index) { BlockState::Missing } else { BlockState::Ok };
        }
        let stays = |(index, placed): &(u8, &PlacedBlock)| !blocks.contains(&(*index, placed.copy));
        let held: Vec<NodeId> = self.stripe.all().filter(stays).map(|(_, placed)| placed.home.node).collect();
        // Copies go wherever there is a node.
        let failure_domain = if self.stripe.copies.is_empty() { self.upload.new.failure_domain } else { FailureDomain::Node };
        let avoid = self.avoided(blocks.len(), &held, failure_domain)?;
        let checksums = |index: u8| self.checksums.get(usize::from(index)).cloned().flatten();
        let lost = blocks.into_iter().map(|(index, copy)| Lost { index, copy, checksums: checksums(index) });
        let (shared, upload, options) = (self.shared, self.upload, options::usual_repair(self.shared));
        let named = (self.code, &upload.new.name);
        let request = rebuild::request(shared, named, readable, lost.collect(), &options, upload.new.failure_domain);
        let request = Request { purpose: Purpose::Put, avoid, ..request };
        let rebuilder = Rebuilder { shared, version: upload.id, upload: Some(upload.id), shares: &Shares::default() };
        let rebuilt = rebuilder.run(request, |_| {}).await?;
        for RebuiltBlock { block, home, checksums } in rebuilt.blocks {
            let known = self.checksums.get_mut(usize::from(block.index));
            if let (Some(placed), Some(known)) = (self.stripe.find_mut(block.index, block.copy), known) {
                *placed = PlacedBlock { generation: block.generation, home, state: BlockState::Ok, ..*placed };
                *known = Some(checksums);
            }
            self.missing.remove(&block.index);
        }
        Ok(rebuilt.traffic)
    }

    /// Writes down that the stripe has ended, and what of it is missing for now.
    async fn commit(self) -> Result<()> {
        let Self { shared, upload, mut stripe, checksums, missing, .. } = self;
        let name = &upload.new.name;
        for (index, placed) in (0..=u8::MAX).zip(&mut stripe.blocks) {
            placed.state = if missing.contains_key(&index) { BlockState::Missing } else { BlockState::Ok };
        }
        stripe.put_first(|_, _, placed| placed.copy);
        let blocks = stripe.all().map(|(_, placed)| (placed.generation, placed.home, placed.state)).collect();
        let garbage_not_before_ms = shared.now_ms().saturating_add(shared.config.stall_ms.into());
        let checksums = put::whole_checksums(&stripe, checksums).map_err(|error| error.object(name))?;
        let end = EndStripe { upload: upload.id, stripe: stripe.id, blocks, checksums, garbage_not_before_ms };
        let ended = shared.meta.end_stripe(shared.epoch, end).await.map_err(|error| shared.meta_error(error).object(name))?;
        if ended.incomplete {
            shared.puts.late_blocks.has_left();
        }
        Ok(())
    }
}

/// Whether a stripe of which blocks could not be rebuilt may be stored if all of it is sent again, to others: it was a matter of what
/// stood, and not of what was asked.
fn goes_again(error: &Error) -> bool {
    let is_too_much_for_a_node = error.reaction == Reaction::InvalidInput && matches!(error.party, Some(Party::Node(_)));
    is_too_much_for_a_node || matches!(error.reaction, Reaction::Unavailable | Reaction::Replan | Reaction::Retry)
}

/// Nodes that did not end their share are avoided for a while.
fn suspect_failed(shared: &Shared, report: &Report) {
    let broken = |end: &Option<End>| matches!(end, Some(End::Broken(_) | End::GivenUp));
    for (node, _) in report.nodes.iter().filter(|(_, report)| broken(&report.end)) {
        shared.members.suspect(*node);
    }
}

/// The client's checksums of the blocks that it sent whole, as many as each block's length asks for.
fn sent_checksums(stripe: &StripeRecord, sent: &[v1::BlockChecksums]) -> Vec<Option<Vec<u32>>> {
    let mut checksums: Vec<Option<Vec<u32>>> = vec![None; stripe.blocks.len()];
    for block in sent {
        let fits = block.checksums.len() as u64 == stripe.layout.checksum_units(block.index);
        if let Some(slot) = checksums.get_mut(block.index as usize).filter(|_| fits) {
            *slot = Some(block.checksums.clone());
        }
    }
    checksums
}

/// An end that is told again after its answer was lost is no error; a stripe that went down with an earlier coordinator is begun
/// anew.
pub(super) async fn ended_already(shared: &Shared, (upload, number): Key) -> Result<v1::EndStripeReply> {
    match shared.meta.upload_stripe(upload, number).await {
        Ok(stripe) if stripe.ended => Ok(v1::EndStripeReply::default()),
        Ok(_) => Err(Error::replan(format!("stripe {number} of put {upload} is not under way any more: send it again"))),
        Err(error) => Err(shared.meta_error(error)),
    }
}
