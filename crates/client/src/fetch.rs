//! Fetches a range of one stripe's data, with as many plans as it takes to route around failures.
//!
//! Bytes count only after a check: a whole checksum unit by the checksum in the metadata; a part of a unit of a block that was read by
//! the checksums of the unit's pages, which the node sends and which must combine to the recorded one. The next plan is requested for
//! what is still missing; if parts of units could not be checked, for whole units.

use crate::{
    client::Shared,
    open_read::{self, AtNodes},
    pages::Pages,
    place::Place,
    ports::{OpenTask, Work},
    progress::Meter,
    sums::UnitSums,
};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use weft_plan::{Sink, Source, Task, link_id};
use weft_proto::{
    status::encode_error,
    v1::{BlockChecksums, BlockRange, EndReadRequest, ReadStripeReply, ReadStripeRequest},
};
use weft_types::{AutoSize, BlockId, CHECKSUM_UNIT_LEN, Error, Party, PlanId, Result, Rows, Span, StripeId, StripeLayout};

/// A range of one stripe's data to fetch.
pub(crate) struct Window {
    pub(crate) stripe: Arc<StripePlace>,
    /// The range in the stripe's data, bytes.
    pub(crate) data: Span,
    /// A plan for it that runs already.
    pub(crate) begun: Option<Begun>,
}

/// A stripe of an object.
pub(crate) struct StripePlace {
    pub(crate) bucket: String,
    pub(crate) key: String,
    pub(crate) version: u64,
    pub(crate) scheme: String,
    pub(crate) slice_len: Option<AutoSize>,
    /// The stripe's number in the object.
    pub(crate) number: u64,
    pub(crate) id: StripeId,
    /// The offset of its data in the object.
    pub(crate) offset: u64,
    pub(crate) layout: StripeLayout,
    /// The first copy of each block, and its generation.
    pub(crate) blocks: BTreeMap<u32, (u8, u32)>,
}

/// What a get encountered.
#[derive(Debug, Default)]
pub(crate) struct Met {
    pub(crate) rebuilt: BTreeSet<BlockId>,
    pub(crate) errors: Vec<Error>,
    pub(crate) plans: u64,
}

/// Most errors of failed plans that are kept and reported to the coordinator.
const ERRORS_MAX: usize = 64;

impl StripePlace {
    pub(crate) fn block(&self, index: u32) -> BlockId {
        let (copy, generation) = self.blocks.get(&index).copied().unwrap_or_default();
        BlockId { stripe: self.id, index: index as u8, copy, generation }
    }

    /// The ranges of its data blocks that hold the range `data` of its data.
    pub(crate) fn ranges(&self, data: Span) -> BTreeMap<u32, Vec<Span>> {
        self.layout.data_ranges(data).map(|(index, range)| (index, vec![range])).collect()
    }

    pub(crate) fn request(&self, missing: &BTreeMap<u32, Vec<Span>>, failed: &Failed, explain: bool) -> ReadStripeRequest {
        let range = |index: u32, span: &Span| {
            let unit = if failed.unchecked { CHECKSUM_UNIT_LEN } else { 1 };
            let end = span.end.next_multiple_of(unit).min(self.layout.block_len(index));
            BlockRange { index, start: span.start / unit * unit, end }
        };
        ReadStripeRequest {
            bucket: self.bucket.clone(),
            key: self.key.clone(),
            version: self.version,
            number: self.number,
            ranges: missing.iter().flat_map(|(index, spans)| spans.iter().map(|span| range(*index, span))).collect(),
            scheme: self.scheme.clone(),
            errors: failed.errors.iter().map(encode_error).collect(),
            failed_plan: failed.plan.map_or(0, |plan| plan.0),
            explain,
            slice_len: crate::repair::slice_len(self.slice_len),
            slice_auto: self.slice_len == Some(AutoSize::Auto),
            at_nodes: false,
        }
    }

    /// The wanted parts of a piece of a block, each at its offset in the object.
    fn split(&self, index: u32, offset: u64, piece: &Bytes, wanted: Span, writes: &mut Vec<(u64, Bytes)>) {
        let part = wanted.intersect(Span::new(offset, offset + piece.len() as u64));
        let (mut from, cell_len) = (part.start, self.layout.layout.cell_len);
        while from < part.end {
            let to = ((from / cell_len + 1) * cell_len).min(part.end);
            let bytes = piece.slice((from - offset) as usize..(to - offset) as usize);
            writes.push((self.offset + self.layout.offset_of(index, from), bytes));
            from = to;
        }
    }

    fn place(&self, error: Error) -> Error {
        error.object(format_args!("{}/{}", self.bucket, self.key))
    }
}

/// Fetches a window into a place.
pub(crate) async fn fetch(
    shared: &Arc<Shared>,
    window: Window,
    place: Arc<Place>,
    meter: &Meter,
    met: &Mutex<Met>,
) -> Result<()> {
    let Window { stripe, data, mut begun } = window;
    let mut missing = stripe.ranges(data);
    let (mut failed, mut fruitless) = (Failed::default(), 0);
    while !missing.is_empty() {
        let before = len_of(&missing);
        let begun = match begun.take() {
            Some(begun) => Ok(begun),
            None => {
                let at_nodes = failed.is_none() && shared.config.reads_open_stripes && open_read::is_short(&missing);
                Begun::ask(shared, ReadStripeRequest { at_nodes, ..stripe.request(&missing, &failed, false) }).await
            }
        };
        let begun = match begun {
            Ok(Begun::AtNodes(at_nodes)) => {
                match at_nodes.read(shared, &stripe, &missing).await {
                    Ok(arrived) => return put(arrived, &stripe, &place, meter).await.map_err(|error| stripe.place(error)),
                    // The stripe is settled for the next attempt.
                    Err(error) => tracing::debug!(%error, "an open stripe is not read at its nodes"),
                }
                failed.at_nodes = true;
                continue;
            }
            Ok(Begun::Plan(begun)) => Ok(begun),
            Err(error) => Err(error),
        };
        let outcome = match begun {
            Ok(begun) => attempt(*begun, &stripe, &missing, place.clone(), meter, met).await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(tried) => {
                missing = tried.missing;
                if !missing.is_empty() && tried.errors.is_empty() && !tried.unchecked {
                    return Err(stripe.place(Error::fatal("the coordinator's plan delivers less than was requested")));
                }
                note(met, &tried.errors);
                failed = Failed { plan: Some(tried.plan), errors: tried.errors, unchecked: tried.unchecked, ..failed };
            }
            // Retry with another plan: a node may be back by then.
            Err(error) if shared.may_try_again(&error) => failed = Failed { plan: None, errors: vec![error], ..failed },
            Err(error) => return Err(stripe.place(error)),
        }
        if len_of(&missing) < before {
            fruitless = 0;
            continue;
        }
        fruitless += 1;
        if fruitless >= shared.config.limits.attempts_max {
            let cause =
                failed.errors.into_iter().next().unwrap_or_else(|| Error::unavailable("no bytes arrived that can be checked"));
            return Err(stripe.place(cause));
        }
        tokio::time::sleep(shared.random.pause(fruitless)).await;
    }
    Ok(())
}

/// Puts what was read at the nodes where it belongs.
async fn put(arrived: Vec<open_read::Arrived>, stripe: &StripePlace, place: &Place, meter: &Meter) -> Result<()> {
    let mut writes = Vec::new();
    for (index, offset, bytes) in &arrived {
        stripe.split(*index, *offset, bytes, Span::new(0, u64::MAX), &mut writes);
    }
    let written: u64 = writes.iter().map(|(_, piece)| piece.len() as u64).sum();
    place.write(writes).await?;
    meter.add(written);
    Ok(())
}

/// Why a plan failed, so the next one avoids the cause.
#[derive(Default)]
pub(crate) struct Failed {
    plan: Option<PlanId>,
    errors: Vec<Error>,
    /// As in [`Tried`].
    unchecked: bool,
    /// The stripe could not be read at its nodes.
    at_nodes: bool,
}

impl Failed {
    fn is_none(&self) -> bool {
        self.plan.is_none() && self.errors.is_empty() && !self.at_nodes
    }
}

/// The result of one plan.
struct Tried {
    plan: PlanId,
    missing: BTreeMap<u32, Vec<Span>>,
    errors: Vec<Error>,
    /// Parts of checksum units arrived that cannot be checked: the next plan fetches whole units.
    unchecked: bool,
}

async fn attempt(
    begun: BegunPlan,
    stripe: &Arc<StripePlace>,
    missing: &BTreeMap<u32, Vec<Span>>,
    place: Arc<Place>,
    meter: &Meter,
    met: &Mutex<Met>,
) -> Result<Tried> {
    let BegunPlan { open, reply, mut reading } = begun;
    {
        let mut met = met.lock().unwrap_or_else(PoisonError::into_inner);
        met.plans += 1;
        met.rebuilt.extend(reply.rebuilt.iter().map(|index| stripe.block(*index)));
    }
    let arrivals = Arc::new(Arrivals::new(stripe.clone(), missing, (&reply, &open.task), place, meter.clone())?);
    let (outcome, _) = open.run(&reading.shared, &Work::Get(arrivals.clone())).await;
    if let Some(error) = arrivals.failed_here() {
        return Err(error);
    }
    let mut tried = arrivals.judge(reading.plan, missing);
    tried.errors.extend(outcome.errors);
    tried.errors.truncate(ERRORS_MAX);
    reading.errors = tried.errors.iter().map(encode_error).collect();
    reading.has_ended = tried.errors.is_empty() && tried.missing.is_empty();
    Ok(tried)
}

/// How the coordinator lets a client read.
pub(crate) enum Begun {
    Plan(Box<BegunPlan>),
    /// The stripe is open for updates.
    AtNodes(AtNodes),
}

/// A plan that runs for a read, and waits for this client. Dropping it ends it.
pub(crate) struct BegunPlan {
    open: OpenTask,
    reply: ReadStripeReply,
    reading: Reading,
}

impl Begun {
    /// What the coordinator answered.
    pub(crate) fn new(shared: &Arc<Shared>, mut reply: ReadStripeReply) -> Result<Self> {
        if let Some(at_nodes) = reply.at_nodes.take() {
            return AtNodes::new(at_nodes).map(Self::AtNodes);
        }
        let open = OpenTask::new(reply.task.take())?;
        let reading = Reading { shared: shared.clone(), plan: open.task.plan, errors: Vec::new(), has_ended: false };
        Ok(Self::Plan(Box::new(BegunPlan { open, reply, reading })))
    }

    async fn ask(shared: &Arc<Shared>, request: ReadStripeRequest) -> Result<Self> {
        let asked = shared.calls.ask(request, |mut client, request| async move { client.read_stripe(request).await });
        Self::new(shared, asked.await?)
    }
}

fn note(met: &Mutex<Met>, errors: &[Error]) {
    let mut met = met.lock().unwrap_or_else(PoisonError::into_inner);
    let room = ERRORS_MAX.saturating_sub(met.errors.len());
    met.errors.extend(errors.iter().take(room).cloned());
}

fn len_of(ranges: &BTreeMap<u32, Vec<Span>>) -> u64 {
    ranges.values().flatten().map(|span| span.len()).sum()
}

/// A plan that the coordinator keeps open for this read. If it delivered everything, its agents end it, and the coordinator learns that
/// from them; otherwise the client reports its end.
struct Reading {
    shared: Arc<Shared>,
    plan: PlanId,
    errors: Vec<Vec<u8>>,
    has_ended: bool,
}

impl Drop for Reading {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let request = EndReadRequest { plan: self.plan.0, errors: std::mem::take(&mut self.errors) };
        let calls = self.shared.calls.clone();
        self.shared.background.start(async move {
            let ended = calls.ask(request, |mut client, request| async move { client.end_read(request).await }).await;
            if let Err(error) = ended {
                tracing::debug!(%error, "could not tell the coordinator that a read has ended; the plan's deadline ends it");
            }
        });
    }
}

/// What one plan delivers.
pub(crate) struct Arrivals {
    stripe: Arc<StripePlace>,
    blocks: BTreeMap<u32, Arriving>,
    place: Arc<Place>,
    meter: Meter,
    /// A local failure: no other plan would help.
    failed_here: Mutex<Option<Error>>,
}

struct Arriving {
    /// The block and its copy.
    block: BlockId,
    /// The missing bytes. Nothing else is written to the place, so checked bytes are not overwritten.
    wanted: Vec<Span>,
    rebuilt: bool,
    /// The node that sends it, if it is read.
    sender: Option<Party>,
    /// The recorded checksum of each unit.
    recorded: Vec<u32>,
    pages: Pages,
    /// Units whose page checksums do not combine to the recorded checksum.
    wrong_pages: BTreeSet<u64>,
    sums: Mutex<UnitSums>,
}

impl Arrivals {
    fn new(
        stripe: Arc<StripePlace>,
        missing: &BTreeMap<u32, Vec<Span>>,
        (reply, task): (&ReadStripeReply, &Task),
        place: Arc<Place>,
        meter: Meter,
    ) -> Result<Self> {
        let senders = senders(task);
        let recorded: BTreeMap<u32, &BlockChecksums> = reply.checksums.iter().map(|block| (block.index, block)).collect();
        let indices: BTreeSet<u32> = missing
            .keys()
            .copied()
            .chain(reply.delivers.iter().map(|range| range.index))
            .chain(reply.rebuilt.iter().copied())
            .collect();
        // The last stripe may have grown since it was looked up: what is recorded is about longer blocks.
        let data_len = if reply.data_len == 0 { stripe.layout.data_len } else { reply.data_len };
        let layout = StripeLayout { data_len, ..stripe.layout };
        let mut blocks = BTreeMap::new();
        for index in indices.into_iter().filter(|index| *index < stripe.layout.n()) {
            let rebuilt = reply.rebuilt.contains(&index);
            let (recorded, block) = match recorded.get(&index) {
                Some(told) => (told.checksums.clone(), postcard::from_bytes(&told.id).unwrap_or_else(|_| stripe.block(index))),
                None => (Vec::new(), stripe.block(index)),
            };
            // A block that was lost while it was updated in place has no recorded checksums until it is rebuilt: see StripeRecord::checksums_of.
            let is_unknown = rebuilt && recorded.is_empty();
            if !is_unknown && recorded.len() as u64 != layout.checksum_units(index) {
                return Err(Error::fatal("the coordinator sent no checksums for a block of a read").block(stripe.block(index)));
            }
            let sender = senders.get(&index).copied().filter(|_| !rebuilt);
            let len = layout.block_len(index);
            let told = reply.pages.iter().filter(|pages| pages.index == index && !rebuilt);
            let mut wrong_pages = BTreeSet::new();
            let told = told.map(|pages| (pages.unit, pages.checksums.as_slice()));
            let pages = Pages::new(len, &recorded, told, |unit| {
                wrong_pages.insert(unit);
            });
            let wanted = missing.get(&index).cloned().unwrap_or_default();
            let sums = Mutex::new(UnitSums::new(len));
            blocks.insert(index, Arriving { block, wanted, rebuilt, sender, recorded, pages, wrong_pages, sums });
        }
        Ok(Self { stripe, blocks, place, meter, failed_here: Mutex::new(None) })
    }

    /// Takes pieces of a block, each at its offset in the block.
    pub(crate) async fn take(&self, index: u32, pieces: Vec<(u64, Rows)>) -> Result<()> {
        let Some(arriving) = self.blocks.get(&index) else {
            return Err(Error::fatal("the plan delivered a block that was not requested").block(self.stripe.block(index)));
        };
        let mut writes = Vec::new();
        for (offset, piece) in &pieces {
            for wanted in &arriving.wanted {
                self.stripe.split(index, *offset, piece.bytes(), *wanted, &mut writes);
            }
        }
        let written: u64 = writes.iter().map(|(_, piece)| piece.len() as u64).sum();
        if let Err(error) = self.place.write(writes).await {
            *lock(&self.failed_here) = Some(error.clone());
            return Err(error);
        }
        self.meter.add(written);
        let mut sums = lock(&arriving.sums);
        for (offset, piece) in &pieces {
            sums.add_rows(*offset, piece);
        }
        Ok(())
    }

    fn failed_here(&self) -> Option<Error> {
        lock(&self.failed_here).clone()
    }

    /// Which bytes passed the check, and which are still missing.
    fn judge(&self, plan: PlanId, missing: &BTreeMap<u32, Vec<Span>>) -> Tried {
        let mut tried = Tried { plan, missing: BTreeMap::new(), errors: Vec::new(), unchecked: false };
        for (index, spans) in missing {
            let Some(arriving) = self.blocks.get(index) else {
                tried.missing.insert(*index, spans.clone());
                continue;
            };
            let sums = lock(&arriving.sums);
            let checked = arriving.check(&sums);
            tried.errors.extend(checked.errors);
            tried.unchecked |= checked.unchecked;
            let left: Vec<Span> = spans.iter().flat_map(|span| span.subtract(&checked.good)).collect();
            let written: u64 =
                spans.iter().flat_map(|span| sums.arrived().into_iter().map(move |run| span.intersect(run).len())).sum();
            let kept: u64 = spans.iter().map(|span| span.len()).sum::<u64>() - left.iter().map(|span| span.len()).sum::<u64>();
            if written > kept {
                self.meter.take_back(written - kept);
            }
            if !left.is_empty() {
                tried.missing.insert(*index, left);
            }
        }
        tried
    }
}

/// The result of checking a block.
struct Checked {
    good: Vec<Span>,
    errors: Vec<Error>,
    /// As in [`Tried`].
    unchecked: bool,
}

impl Arriving {
    fn check(&self, sums: &UnitSums) -> Checked {
        let pages = |unit: &u64| format!("the page checksums of unit {unit} do not combine to the recorded checksum");
        // Other bytes that a plan delivers, because it reads whole pages or units, are not checked: the get does not use them.
        let is_wanted = |span: Span| self.wanted.iter().any(|wanted| !wanted.intersect(span).is_empty());
        let wrong = self.wrong_pages.iter().filter(|unit| is_wanted(sums.unit_span(**unit)));
        let mut checked =
            Checked { good: Vec::new(), errors: wrong.map(|unit| self.corrupt(pages(unit))).collect(), unchecked: false };
        for (run, found) in sums.runs().filter(|(run, _)| is_wanted(*run)) {
            let unit = run.start / CHECKSUM_UNIT_LEN;
            let is_whole = run == sums.unit_span(unit);
            let recorded = if is_whole { self.recorded.get(unit as usize).copied() } else { self.pages.checksum(run) };
            match recorded {
                Some(recorded) if recorded == found => checked.good.push(run),
                Some(_) if is_whole => {
                    checked.errors.push(self.corrupt(format!("unit {unit} arrived with a wrong checksum")));
                }
                Some(_) => {
                    let bytes = format!("bytes {}..{}", run.start, run.end);
                    checked.errors.push(self.corrupt(format!("{bytes} arrived with a wrong page checksum")));
                }
                // Its helpers have passed the checksums on their disks.
                None if self.rebuilt && self.recorded.is_empty() => checked.good.push(run),
                None => checked.unchecked |= !self.rebuilt,
            }
        }
        checked.good = Span::normalize(checked.good);
        checked
    }

    fn corrupt(&self, message: String) -> Error {
        let error = Error::corrupt(message).block(self.block);
        match self.sender {
            Some(sender) => error.party(sender),
            None => error,
        }
    }
}

/// The nodes that send unchanged blocks.
fn senders(task: &Task) -> BTreeMap<u32, Party> {
    let stages = task.lanes.iter().flat_map(|lane| lane.stages.iter().map(move |stage| (lane.lane, stage)));
    let sender = |(lane, stage): (u16, &weft_plan::TaskStage)| match (&stage.sources[..], &stage.sinks[..]) {
        ([Source::Link(link)], [Sink::Output { index, .. }]) => {
            let id = link_id(lane, *link);
            Some((u32::from(*index), task.links.iter().find(|link| link.id() == id)?.peer))
        }
        _ => None,
    };
    stages.filter_map(sender).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
