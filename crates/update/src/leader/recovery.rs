//! A leader after a restart, and during a seal.
//!
//! A restarted leader takes a new incarnation and asks every block of the stripe. Each answers when it durably refuses the earlier
//! ones, so the reports say all that these will ever have done. Then the leader decides what they left; numbers go on above all that
//! anybody has seen.

use super::{Leader, Phase, State, Update};
use crate::{
    block::{Config, NotRun, Told},
    locks::{Holder, Locks},
    mutation::{Rule, dropped},
    participant::Participant,
    rule::decide,
    types::{Claim, Crcs, Incarnation, Message, Outcome, Record, Report, UpdateId},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_types::BlockId;

impl Leader {
    /// After a restart of the node, or for a block that comes from elsewhere.
    pub(crate) fn restart(config: Config, participant: &Participant) -> Self {
        let (me, opened, least) = (config.me, participant.opened, participant.least(config.me.index));
        let is_of_term = (least.generation, least.opened) == (me.generation, opened);
        let starts = if is_of_term { least.starts + 1 } else { 1 };
        let mut it = Self {
            config,
            incarnation: Incarnation { generation: me.generation, opened, starts },
            state: State::Waiting { is_restarted: true },
            locks: Locks::default(),
            updates: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            actions: Vec::new(),
        };
        if participant.is_open() || dropped(Rule::SealDecides) {
            it.recover(participant);
        }
        it
    }

    fn recover(&mut self, participant: &Participant) {
        self.state = State::Recovering(BTreeMap::new());
        self.send_queries(participant.members.clone(), participant);
    }

    pub(super) fn send_queries(&mut self, to: Vec<BlockId>, participant: &Participant) {
        let stamp = self.stamp(participant);
        for block in to {
            self.send(block, Message::Query { stamp });
        }
    }

    /// A block has answered.
    pub(crate) fn reported(&mut self, from: BlockId, term: u64, report: Report, participant: &mut Participant, now_ms: u64) {
        let State::Recovering(reports) = &mut self.state else { return };
        if term != participant.term || !participant.members.contains(&from) {
            return;
        }
        reports.entry(from).or_insert(report);
        let heard = if dropped(Rule::AllReport) { reports.len() + 1 } else { reports.len() };
        if heard < participant.members.len() {
            return;
        }
        let reports = std::mem::take(reports);
        self.state = State::Active;
        self.take_over(&reports, participant, now_ms);
    }

    /// Decides everything that is left.
    fn take_over(&mut self, reports: &BTreeMap<BlockId, Report>, participant: &mut Participant, now_ms: u64) {
        let stream = self.stream();
        for report in reports.values() {
            participant.learn(&report.outcomes, &report.floors, now_ms);
            if let Some(number) = report.numbers.get(&stream).filter(|_| !dropped(Rule::NumbersFollowReports)) {
                self.locks.skip_to(*number);
            }
        }
        let records: BTreeMap<UpdateId, Arc<Record>> =
            reports.values().flat_map(|report| &report.records).map(|(id, (record, _))| (*id, record.clone())).collect();
        let is_refused = |report: &Report, id: &UpdateId| !matches!(report.records.get(id), Some((_, Claim::Held(_))));
        // Locks first: the watermark must not pass what is undecided.
        let (mut committed, mut aborted) = (Vec::new(), Vec::new());
        for record in records.values() {
            let Some(part) = record.part(stream) else { continue };
            let is_led_here = record.lead().stream == stream;
            let is_decided = reports.values().all(|report| is_refused(report, &record.id));
            if is_decided && is_led_here && participant.outcome(record.id).is_none() {
                // Only others knew: a repeated request must not run it again.
                participant.learn(&BTreeMap::from([(record.id, decide(record, reports))]), &BTreeMap::new(), now_ms);
            }
            if is_decided || (is_led_here && record.term < participant.term && !dropped(Rule::SealDecides)) {
                continue;
            }
            if is_led_here || participant.is_undecided(record.id) {
                let lead = record.lead();
                let lead_number = if is_led_here { 0 } else { lead.number };
                let (id, lead, incarnation) = (record.id, lead.stream, lead.incarnation);
                let holder = Holder { id, lead, incarnation, lead_number, span: part.span };
                self.locks.restore(holder, part.number);
            }
            match is_led_here.then(|| decide(record, reports)) {
                Some(Outcome::Committed) => committed.push(record.clone()),
                Some(Outcome::Aborted) => aborted.push(record.clone()),
                None => {}
            }
        }
        for record in aborted {
            let phase = Phase::Aborting { record: record.clone(), refused: BTreeSet::new() };
            let update = Update { writes: Vec::new(), parts: record.parts.clone(), crcs: Crcs::new(), phase };
            self.updates.insert(record.id, update);
            self.abort(record, participant);
        }
        for record in committed {
            self.committed(&record, participant);
        }
        self.go_on(participant);
    }

    /// A seal is under way: it decides whatever is undecided, and nothing begins.
    pub(crate) fn wait_for_seal(&mut self) {
        let is_restarted = !matches!(self.state, State::Active | State::Waiting { is_restarted: false });
        self.state = State::Waiting { is_restarted };
    }

    /// The block is not part of the stripe any more: nothing is left to decide here. Clients ask the coordinator for their outcomes.
    pub(crate) fn fenced(&mut self) {
        self.wait_for_seal();
        self.updates.clear();
        self.locks = Locks::default();
    }

    /// The outcomes of the seal are known, so all that was prepared before has ended.
    pub(crate) fn opened(&mut self, participant: &Participant, numbers_in_use: u64) {
        for (id, update) in std::mem::take(&mut self.updates) {
            let told = match (&update.phase, participant.outcome(id)) {
                (Phase::Locking, _) => Told::NotRun(NotRun::Retry),
                (_, Some(Outcome::Committed)) => Told::Committed,
                _ => Told::Aborted,
            };
            self.tell(id, told);
        }
        let over: Vec<Holder> = self.locks.holders().collect();
        for holder in over {
            self.locks.release(holder.id);
        }
        self.locks.skip_to(numbers_in_use);
        match self.state {
            State::Waiting { is_restarted: false } | State::Active => self.state = State::Active,
            State::Waiting { .. } | State::Recovering(_) => self.recover(participant),
        }
    }
}
