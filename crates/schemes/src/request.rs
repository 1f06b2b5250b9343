//! The request to a scheme, and the plan around its lanes.

use crate::{Paths, Patterns, Select};
use std::collections::BTreeMap;
use weft_codes::Code;
use weft_plan::{Binding, BoundBlock, CodeView, Job, Lane, Network, Plan, Precedence, Shape, Sink, Source, WantKind};
use weft_types::{BlockId, Error, Party, PlanId, Result, Seq, Span, StripeLayout};

/// The default number of slices that may wait at each end of a link.
pub(crate) const WINDOW_SLICES: u32 = 4;
/// With small slices, the window holds this many bytes: several slices are read, sent and received together.
const WINDOW_BYTES: u64 = 128 << 10;
const WINDOW_SLICES_MAX: u32 = 32;

/// The most lanes of a plan.
pub(crate) const LANES_MAX: usize = 4096;

/// A job and its context.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The stripe's code.
    pub code: &'a dyn Code,
    /// The layout of the stripe, which determines the lengths of its blocks.
    pub stripe: StripeLayout,
    /// The stripe's updates.
    pub seq: &'a Seq,
    /// What is available, and what is wanted.
    pub job: &'a Job,
    /// The new blocks allocated for the job's stores: one for each block that a party stores.
    pub stores: &'a [(Party, BlockId)],
    /// The preferred helpers, best first; others come after them, in the order of the job's holds.
    pub prefer: &'a [Party],
    /// The rates of the links between parties, for path selection and comparison of schemes.
    pub network: &'a Network,
    /// Which possible helpers help, and in which order.
    pub select: Select,
    /// Over how many paths a lost block is repaired.
    pub paths: Paths,
    /// From which a check draws the combination that it computes.
    pub seed: u64,
    /// How the plan runs.
    pub run: Run,
    /// The cache of known patterns.
    pub patterns: Option<&'a Patterns>,
}

/// The view of a code that verification needs; `spec` is the code's spec.
pub fn code_view<'a>(code: &'a dyn Code, spec: &'a str) -> CodeView<'a> {
    CodeView { spec, k: code.k(), n: code.n(), alpha: code.alpha(), generator: code.generator(), tolerance: code.tolerance() }
}

/// Lanes that take turns at the same positions, slice by slice: each could do all of them.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) span: Span,
    pub(crate) lanes: Vec<Lane>,
}

/// How a plan runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The run's id.
    pub id: PlanId,
    /// The epoch of the coordinator that makes the plan.
    pub epoch: u64,
    /// The plan's precedence: its class, and its priority within the class.
    pub precedence: Precedence,
    /// Positions in a slice.
    pub slice_len: u64,
    /// Slices that may wait at each end of a link.
    pub window: u32,
}

impl Run {
    /// With the default window.
    pub fn new(id: PlanId, epoch: u64, precedence: impl Into<Precedence>, slice_len: u64) -> Self {
        Self { id, epoch, precedence: precedence.into(), slice_len, window: WINDOW_SLICES }
    }

    /// With the window for cells of this many sub-blocks: a larger one if slices of all of them together are small.
    #[must_use]
    pub fn of_sub_blocks(self, alpha: u32) -> Self {
        let slice_bytes = self.slice_len.saturating_mul(alpha.into()).max(1);
        let window = (WINDOW_BYTES / slice_bytes).clamp(WINDOW_SLICES.into(), WINDOW_SLICES_MAX.into()) as u32;
        Self { window, ..self }
    }
}

/// The vertices of a plan: its parties in order of appearance, so that stripes with the same losses have one shape.
#[derive(Debug, Default)]
pub(crate) struct Vertices(Vec<Party>);

impl Vertices {
    /// The vertex of a party.
    pub(crate) fn of(&mut self, party: Party) -> Result<u16> {
        let vertex = self.0.iter().position(|known| *known == party).unwrap_or_else(|| {
            self.0.push(party);
            self.0.len() - 1
        });
        u16::try_from(vertex).map_err(|_| Error::invalid("a plan has at most 65536 parties"))
    }

    /// The party of a vertex.
    pub(crate) fn party(&self, vertex: u16) -> Option<Party> {
        self.0.get(usize::from(vertex)).copied()
    }
}

/// Equal links: which of two plans is faster does not depend on their rate.
static ALIKE: Network = Network::uniform(1e9);

/// The value for a stripe that was never updated.
static FIRST: Seq = Seq::FIRST;

impl<'a> Request<'a> {
    /// For a stripe without updates, with nothing to store and no preferred helper, over equal links, with one path for
    /// each lost block.
    ///
    /// ```
    /// # use weft_plan::{Class, Job};
    /// # use weft_schemes::{Paths, Request, Run};
    /// # use weft_types::{Layout, PlanId, StripeLayout};
    /// # fn example(code: &dyn weft_codes::Code, stripe: StripeLayout, job: &Job) {
    /// let run = Run::new(PlanId(1), 1, Class::Repair, 64 << 10);
    /// let request = Request { paths: Paths::Count(2), ..Request::new(code, stripe, job, run) };
    /// # }
    /// ```
    pub fn new(code: &'a dyn Code, stripe: StripeLayout, job: &'a Job, run: Run) -> Self {
        let (select, paths) = (Select::default(), Paths::Count(1));
        Self {
            code,
            stripe,
            seq: &FIRST,
            job,
            stores: &[],
            prefer: &[],
            network: &ALIKE,
            select,
            paths,
            seed: 0,
            run,
            patterns: None,
        }
    }
}

impl Request<'_> {
    /// Refuses invalid requests, which come from users' commands or from metadata.
    pub(crate) fn check(&self) -> Result<()> {
        let (code, stripe) = (self.code, &self.stripe);
        let shape = (stripe.k as usize, stripe.m as usize, stripe.layout.alpha as usize);
        if shape != (code.k(), code.m(), code.alpha()) {
            return Err(Error::invalid(format!(
                "the stripe's layout is for (k, m, α) = {shape:?}, which does not match {}",
                code.spec()
            )));
        }
        if self.run.slice_len == 0 || self.run.window == 0 {
            return Err(Error::invalid("slice length and window must be greater than zero"));
        }
        let positions = stripe.layout.positions();
        for want in &self.job.wants {
            if want.span.end > positions {
                let span = want.span;
                return Err(Error::invalid(format!(
                    "positions {}..{} are wanted, but a block has {positions}",
                    span.start, span.end
                )));
            }
            // A check belongs to no block: it has rows.
            if want.kind == WantKind::Check {
                continue;
            }
            if usize::from(want.index) >= code.n() {
                return Err(Error::invalid(format!(
                    "{} has no block {}: its blocks are 0 to {}",
                    code.spec(),
                    want.index,
                    code.n() - 1
                )));
            }
            if want.sub_blocks.iter().any(|s| usize::from(*s) >= code.alpha()) {
                return Err(Error::invalid(format!(
                    "sub-blocks {:?} are wanted, but a block has {}",
                    want.sub_blocks,
                    code.alpha()
                )));
            }
            if want.kind == WantKind::Store && self.store(want.party, want.index).is_none() {
                let message = format!("no block was allocated for the store of block {}", want.index);
                return Err(Error::invalid(message).party(want.party));
            }
        }
        Ok(())
    }

    /// The party that puts in all data.
    pub(crate) fn writer(&self) -> Result<Party> {
        let writer = self.job.inputs.first().ok_or_else(|| Error::invalid("no party puts in data"))?.party;
        match self.job.inputs.iter().find(|input| input.party != writer) {
            Some(other) => Err(Error::invalid("all new data must come from one writer").party(other.party)),
            None => Ok(writer),
        }
    }

    /// The writer's inputs: these columns of the generator, ascending, as new bytes or as deltas.
    pub(crate) fn inputs(&self, columns: &[usize], delta: bool) -> Result<Vec<Source>> {
        let alpha = self.code.alpha();
        let mut inputs: Vec<Source> = Vec::new();
        for column in columns {
            let (needed, sub_block) = ((column / alpha) as u8, (column % alpha) as u16);
            match inputs.last_mut() {
                Some(Source::Input { index, sub_blocks, .. }) if *index == needed => sub_blocks.push(sub_block),
                _ => inputs.push(Source::Input { index: needed, sub_blocks: vec![sub_block], delta }),
            }
            if !self.job.inputs.iter().any(|input| input.index == needed) {
                return Err(Error::invalid(format!("data block {needed} is needed, but it is not an input")));
            }
        }
        Ok(inputs)
    }

    /// The plan of these turns.
    pub(crate) fn plan(&self, vertices: Vertices, turns: Vec<Turn>) -> Result<Plan> {
        let (spans, lanes) = self.merge(turns).into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
        if lanes.len() > LANES_MAX {
            let message = format!(
                "the available blocks have too many holes: the plan would have {} lanes, at most {LANES_MAX}",
                lanes.len()
            );
            return Err(Error::invalid(message));
        }
        let binding = Binding { spans, ..self.bind(vertices.0, &lanes)? };
        let shape = Shape { code: self.code.spec(), lanes, in_turn: false };
        let Run { id, epoch, precedence: Precedence { class, priority }, .. } = self.run;
        Ok(Plan { shape, binding, id, epoch, class, priority })
    }

    fn bind(&self, parties: Vec<Party>, lanes: &[Lane]) -> Result<Binding> {
        let (mut blocks, mut stores) = (BTreeMap::new(), BTreeMap::new());
        let len = |id: &BlockId| self.stripe.block_len(id.index.into());
        for stage in lanes.iter().flat_map(|lane| &lane.stages) {
            let (vertex, party) = (stage.vertex, parties[usize::from(stage.vertex)]);
            let absent = |index: u8| Error::invalid(format!("the party does not have block {index}")).party(party);
            let held = |index: u8| {
                let hold = self.job.holds.iter().find(|hold| hold.party == party && hold.block.index == index);
                hold.map(|hold| hold.block).ok_or_else(|| absent(index))
            };
            for source in &stage.sources {
                if let Source::Block { index, .. } = source {
                    let id = held(*index)?;
                    blocks.insert((vertex, *index), BoundBlock { vertex, id, len: len(&id) });
                }
            }
            for sink in &stage.sinks {
                match sink {
                    Sink::Store { index, .. } => {
                        let id = self.store(party, *index).ok_or_else(|| absent(*index))?;
                        stores.insert((vertex, *index), BoundBlock { vertex, id, len: len(&id) });
                    }
                    Sink::Patch { index, .. } => {
                        let id = held(*index)?;
                        blocks.insert((vertex, *index), BoundBlock { vertex, id, len: len(&id) });
                    }
                    Sink::Link(_) | Sink::Output { .. } | Sink::Check { .. } => {}
                }
            }
        }
        let (blocks, stores) = (blocks.into_values().collect(), stores.into_values().collect());
        let (seq, slice_len) = (self.seq.clone(), self.run.slice_len);
        Ok(Binding { parties, spans: Vec::new(), blocks, stores, layout: self.stripe.layout, seq, slice_len })
    }

    /// Merges lanes of adjacent regions that do the same, except where a change begins or ends. Lanes that take turns
    /// get their parts, each at least one slice.
    fn merge(&self, turns: Vec<Turn>) -> Vec<(Span, Lane)> {
        let changes = |at: u64| self.job.changed.iter().any(|change| change.span.start == at || change.span.end == at);
        let mut merged: Vec<Turn> = Vec::with_capacity(turns.len());
        for turn in turns {
            let start = turn.span.start;
            let alike = |(a, b): (&Lane, &Lane)| (&a.stages, &a.links) == (&b.stages, &b.links);
            let same = |other: &&mut Turn| {
                let lanes = (&other.lanes, &turn.lanes);
                other.span.end == start && lanes.0.len() == lanes.1.len() && lanes.0.iter().zip(lanes.1).all(alike)
            };
            match merged.iter_mut().rev().find(same).filter(|_| !changes(start)) {
                Some(before) => before.span.end = turn.span.end,
                None => merged.push(turn),
            }
        }
        let lanes = |Turn { span, mut lanes }: Turn| {
            let slices = span.len().div_ceil(self.run.slice_len);
            lanes.truncate(usize::try_from(slices).unwrap_or(usize::MAX));
            let step = lanes.len() as u32;
            (0..).zip(lanes).map(move |(first, lane)| (span, Lane { first, step, ..lane }))
        };
        merged.into_iter().flat_map(lanes).collect()
    }

    pub(crate) fn store(&self, party: Party, index: u8) -> Option<BlockId> {
        self.stores.iter().find(|(at, id)| (*at, id.index) == (party, index)).map(|(_, id)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_plan::Class;

    #[test]
    fn the_window_is_larger_for_small_slices_and_smaller_for_many_sub_blocks() {
        let window = |slice_len, alpha| Run::new(PlanId(1), 1, Class::Repair, slice_len).of_sub_blocks(alpha).window;
        assert_eq!((window(4 << 10, 1), window(32 << 10, 1), window(1 << 20, 1)), (32, 4, 4));
        assert_eq!((window(4 << 10, 4), window(4 << 10, 256)), (8, 4));
    }
}
