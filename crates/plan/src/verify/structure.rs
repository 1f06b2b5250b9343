//! All parts of the proof except the algebra.

use super::tiling::{Tiles, gap, range};
use crate::{
    BoundBlock, Change, CodeView, Hold, Job, Place, Plan, Refusal, Rule, Sink, SliceSet, Source, WantKind, executor::check_lane,
    limits,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use weft_types::{BlockId, Layout, Party, Span};

/// For each lane, the columns of the generator that change in it, ascending.
pub(super) type Changes = Vec<Vec<usize>>;

/// The rules of the shape except the algebra; they depend on no party, block, position or job.
pub(super) fn check_shape(plan: &Plan, code: &CodeView<'_>) -> Result<(), Refusal> {
    limits::check_plan(plan)?;
    code.check()?;
    if plan.shape.code != code.spec {
        return refuse(Rule::Binding, format!("it is for the code {}, not {}", plan.shape.code, code.spec));
    }
    for (number, lane) in plan.shape.lanes.iter().enumerate() {
        check_lane(plan, number)?;
        if lane.window == 0 || lane.window > limits::WINDOW_SLICES_MAX {
            let message = format!("a window of {} slices is invalid: use 1 to {}", lane.window, limits::WINDOW_SLICES_MAX);
            return Err(Refusal::new(Rule::Lane, message).at(Place::lane(number)));
        }
        check_ports(plan, code, number)?;
        check_turns(plan, number)?;
    }
    Ok(())
}

/// Checks that a party that sends over one link at a time has an order for them. Otherwise chance decides how long the
/// plan takes.
fn check_turns(plan: &Plan, number: usize) -> Result<(), Refusal> {
    let lane = &plan.shape.lanes[number];
    if !plan.shape.in_turn {
        return Ok(());
    }
    let mut turns: HashMap<(u16, u32), usize> = HashMap::new();
    for (at, link) in lane.links.iter().enumerate() {
        let from = usize::from(link.from);
        if let Some(other) = turns.insert((lane.stages[from].vertex, link.rank), at) {
            let message = format!("links {other} and {at} have the same turn: the party must send over one link at a time");
            return Err(Refusal::new(Rule::Turns, message).at(Place::stage(plan, number, from)));
        }
    }
    Ok(())
}

/// The rules of the binding and the job, for a valid shape of that code: parties, holds, tiling, generations, no mixed
/// stripe, placement and tolerance.
pub(super) fn check_binding(plan: &Plan, code: &CodeView<'_>, job: &Job) -> Result<Changes, Refusal> {
    limits::check_binding(plan)?;
    limits::check_job(job)?;
    check_parties(plan, code)?;
    let named = Named::new(plan, job)?;
    check_job(plan, code, job)?;
    let held = Held::new(job);
    check_stores(plan, job)?;
    let mut changes = Vec::with_capacity(plan.shape.lanes.len());
    let mut ends = Ends { plan, named: &named, held: &held, found: vec![None; named.blocks.len()] };
    for number in 0..plan.shape.lanes.len() {
        check_slices(plan, number)?;
        ends.check(number)?;
        changes.push(changed_columns(plan, code, job, number)?);
    }
    check_reach(plan, code, job)?;
    let tiles = Tiles::check(plan, job)?;
    check_mixed(plan, code, job, &held, &tiles)?;
    check_placement(job)?;
    check_tolerance(code, job)?;
    Ok(changes)
}

fn refuse<T>(rule: Rule, message: impl std::fmt::Display) -> Result<T, Refusal> {
    Err(Refusal::new(rule, message))
}

/// The positions of the blocks that parties hold, ascending; those of one block at one party are adjacent.
struct Held {
    spans: Vec<(Party, BlockId, Span)>,
}

impl Held {
    fn new(job: &Job) -> Self {
        let mut spans: Vec<_> = job.holds.iter().map(|hold| (hold.party, hold.block, hold.span)).collect();
        spans.sort_unstable();
        Self { spans }
    }

    /// Whether `party` holds `block` for all positions of the slices; otherwise why not.
    fn check(&self, party: Party, block: BlockId, slices: &SliceSet) -> Result<(), String> {
        let first = self.spans.partition_point(|(who, other, _)| (*who, *other) < (party, block));
        let own = || self.spans[first..].iter().take_while(|(who, other, _)| (*who, *other) == (party, block));
        if own().next().is_none() {
            let other = self.spans.iter().find(|(who, other, _)| *who == party && other.index == block.index);
            return match other {
                Some((_, other, _)) => Err(format!("{party} holds {other}, not {block}")),
                None => Err(format!("{party} does not hold block {}", block.index)),
            };
        }
        let (mut from, hull) = (0, slices.hull());
        for span in own().map(|(.., span)| *span).chain([Span::new(hull.end, hull.end)]) {
            if let Some(slice) = slices.touching(Span::new(from, span.start)) {
                return Err(format!("{party} does not hold all of positions {} of {block}", range(slice)));
            }
            from = from.max(span.end);
        }
        Ok(())
    }
}

fn check_parties(plan: &Plan, code: &CodeView<'_>) -> Result<(), Refusal> {
    let binding = &plan.binding;
    let Layout { block_len, cell_len, alpha } = binding.layout;
    Layout::new(block_len, cell_len, alpha).map_err(|error| Refusal::new(Rule::Binding, error.message))?;
    if alpha as usize != code.alpha {
        return refuse(
            Rule::Binding,
            format!("its layout has {alpha} sub-blocks in a cell, but {} has {}", code.spec, code.alpha),
        );
    }
    if binding.spans.len() != plan.shape.lanes.len() {
        let (spans, lanes) = (binding.spans.len(), plan.shape.lanes.len());
        return refuse(Rule::Binding, format!("it has positions for {spans} lanes, but {lanes} lanes"));
    }
    if !binding.seq.fits(code.k) {
        let counts = binding.seq.counts().len();
        return refuse(Rule::Binding, format!("it counts the updates of {counts} data blocks, but {} has {}", code.spec, code.k));
    }
    if binding.slice_len == 0 {
        return refuse(Rule::Binding, "its slices have no position");
    }
    let mut parties = binding.parties.clone();
    parties.sort_unstable();
    if let Some(twice) = parties.windows(2).find(|pair| pair[0] == pair[1]) {
        return refuse(Rule::Binding, format!("two vertices are {}", twice[0]));
    }
    let mut bound = binding.blocks.iter().chain(&binding.stores);
    let first = bound.clone().next().map(|block| block.id.stripe);
    bound.clone().try_for_each(|block| check_block(plan, code, block))?;
    if bound.any(|block| Some(block.id.stripe) != first) {
        return refuse(Rule::Binding, "its blocks belong to several stripes");
    }
    Ok(())
}

fn check_block(plan: &Plan, code: &CodeView<'_>, block: &BoundBlock) -> Result<(), Refusal> {
    let BoundBlock { vertex, id, len } = block;
    if usize::from(*vertex) >= plan.binding.parties.len() {
        return refuse(Rule::Binding, format!("block {id} is bound to vertex {vertex}, which has no party"));
    }
    if usize::from(id.index) >= code.n {
        return refuse(Rule::Binding, format!("block {id} is bound, but {} has only {} blocks", code.spec, code.n));
    }
    if *len > plan.binding.layout.block_len {
        return refuse(Rule::Binding, format!("block {id} has {len} bytes, the layout only {}", plan.binding.layout.block_len));
    }
    Ok(())
}

fn check_job(plan: &Plan, code: &CodeView<'_>, job: &Job) -> Result<(), Refusal> {
    let positions = Span::new(0, plan.binding.layout.positions());
    for Change { index, sub_block, span } in &job.changed {
        if usize::from(*index) >= code.k || usize::from(*sub_block) >= code.alpha || !positions.contains(*span) {
            let where_ = format!("sub-block {sub_block} of block {index}, positions {}", range(*span));
            return refuse(Rule::Job, format!("it changes {where_}, which is not data of the stripe"));
        }
    }
    if let Some(hold) = job.holds.iter().find(|hold| usize::from(hold.block.index) >= code.n) {
        let message = format!("{} holds {}, but {} has only {} blocks", hold.party, hold.block, code.spec, code.n);
        return refuse(Rule::Job, message);
    }
    if let Some(input) = job.inputs.iter().find(|input| usize::from(input.index) >= code.k) {
        return refuse(Rule::Job, format!("it has an input for block {}, which is not a data block", input.index));
    }
    Ok(())
}

/// Checks that a stored block is a new generation, at one place.
fn check_stores(plan: &Plan, job: &Job) -> Result<(), Refusal> {
    let block = |id: &BlockId| (id.stripe, id.index, id.copy);
    let mut held: Vec<_> = job.holds.iter().map(|hold| (block(&hold.block), hold.block.generation)).collect();
    held.sort_unstable();
    let mut stored: Vec<BlockId> = plan.binding.stores.iter().map(|store| store.id).collect();
    for id in &stored {
        let before = &held[..held.partition_point(|(other, _)| *other <= block(id))];
        let newest = before.last().filter(|(other, _)| *other == block(id)).map_or(0, |(_, generation)| *generation);
        if id.generation <= newest {
            return refuse(Rule::Binding, format!("block {id} cannot be stored: generation {newest} already exists"));
        }
    }
    stored.sort_unstable();
    match stored.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => refuse(Rule::Binding, format!("block {} would be stored at two places", twice[0])),
        None => Ok(()),
    }
}

fn check_slices(plan: &Plan, number: usize) -> Result<(), Refusal> {
    let lane = &plan.shape.lanes[number];
    let wrong = |message: String| Err(Refusal::new(Rule::Lane, message).at(Place::lane(number)));
    let (span, positions) = (plan.span(number), plan.binding.layout.positions());
    if span.is_empty() || span.end > positions {
        return wrong(format!("positions {} are outside a block's 0..{positions}", range(span)));
    }
    if plan.slice_set(number).is_empty() {
        return wrong(format!("no slice: first {}, step {}, of positions {}", lane.first, lane.step, range(span)));
    }
    Ok(())
}

/// A vertex, and the index of a block.
type Port = (u16, u8);

/// The blocks that the plan and its job name, by the ports' references, ascending.
struct Named {
    inputs: Vec<(Party, u8)>,
    blocks: Vec<(Port, BlockId)>,
    stores: Vec<(Port, BlockId)>,
}

impl Named {
    fn new(plan: &Plan, job: &Job) -> Result<Self, Refusal> {
        let mut inputs: Vec<_> = job.inputs.iter().map(|input| (input.party, input.index)).collect();
        inputs.sort_unstable();
        Ok(Self { inputs, blocks: by_port(&plan.binding.blocks)?, stores: by_port(&plan.binding.stores)? })
    }

    fn has_store(&self, port: Port) -> bool {
        self.stores.binary_search_by_key(&port, |(port, _)| *port).is_ok()
    }
}

fn by_port(blocks: &[BoundBlock]) -> Result<Vec<(Port, BlockId)>, Refusal> {
    let mut ports: Vec<_> = blocks.iter().map(|block| ((block.vertex, block.id.index), block.id)).collect();
    ports.sort_unstable();
    match ports.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some([((vertex, index), _), _]) => refuse(Rule::Binding, format!("vertex {vertex} has two blocks of index {index}")),
        _ => Ok(ports),
    }
}

/// Checks that ports name sub-blocks of the code, each once.
fn check_ports(plan: &Plan, code: &CodeView<'_>, number: usize) -> Result<(), Refusal> {
    for (at, stage) in plan.shape.lanes[number].stages.iter().enumerate() {
        let sources = stage.sources.iter().filter_map(|source| match source {
            Source::Link(_) => None,
            Source::Block { index, sub_blocks } | Source::Input { index, sub_blocks, .. } => Some((*index, sub_blocks)),
        });
        let sinks = stage.sinks.iter().filter_map(|sink| match sink {
            Sink::Link(_) | Sink::Check { .. } => None,
            Sink::Output { index, sub_blocks } | Sink::Patch { index, sub_blocks } | Sink::Store { index, sub_blocks } => {
                Some((*index, sub_blocks))
            }
        });
        for (index, sub_blocks) in sources.chain(sinks) {
            check_sub_blocks(code, index, sub_blocks)
                .map_err(|message| Refusal::new(Rule::Shape, message).at(Place::stage(plan, number, at)))?;
        }
    }
    Ok(())
}

/// Checks that every party has what its stages read and patch, and new generations for what they store.
struct Ends<'a> {
    plan: &'a Plan,
    named: &'a Named,
    held: &'a Held,
    /// The lane for which each bound block was last found to be held: many stages may read one block, and it may have
    /// many holes.
    found: Vec<Option<usize>>,
}

impl Ends<'_> {
    fn check(&mut self, lane: usize) -> Result<(), Refusal> {
        let (plan, named) = (self.plan, self.named);
        let slices = plan.slice_set(lane);
        for (at, stage) in plan.shape.lanes[lane].stages.iter().enumerate() {
            let wrong = |(rule, message): (Rule, String)| Refusal::new(rule, message).at(Place::stage(plan, lane, at));
            let Some(party) = plan.binding.parties.get(usize::from(stage.vertex)).copied() else {
                return Err(wrong((Rule::Binding, format!("vertex {} has no party", stage.vertex))));
            };
            let mut held =
                |index: u8, what: &str| self.check_held((stage.vertex, index), party, what, (lane, &slices)).map_err(wrong);
            for source in &stage.sources {
                match source {
                    Source::Link(_) => {}
                    Source::Block { index, .. } => held(*index, "read")?,
                    Source::Input { index, .. } if named.inputs.binary_search(&(party, *index)).is_ok() => {}
                    Source::Input { index, .. } => {
                        return Err(wrong((Rule::Holds, format!("{party} has no new bytes of block {index} to put in"))));
                    }
                }
            }
            for sink in &stage.sinks {
                match sink {
                    Sink::Link(_) | Sink::Check { .. } | Sink::Output { .. } => {}
                    Sink::Patch { index, .. } => held(*index, "patched")?,
                    Sink::Store { index, .. } if named.has_store((stage.vertex, *index)) => {}
                    Sink::Store { index, .. } => {
                        return Err(wrong((Rule::Binding, format!("block {index} is stored, but has no new generation"))));
                    }
                }
            }
        }
        Ok(())
    }

    fn check_held(
        &mut self,
        port: Port,
        party: Party,
        what: &str,
        (lane, slices): (usize, &SliceSet),
    ) -> Result<(), (Rule, String)> {
        let bound = self.named.blocks.binary_search_by_key(&port, |(port, _)| *port);
        let at = bound.map_err(|_| (Rule::Binding, format!("block {} is {what}, but not bound", port.1)))?;
        if self.found[at] != Some(lane) {
            self.held.check(party, self.named.blocks[at].1, slices).map_err(|message| (Rule::Holds, message))?;
            self.found[at] = Some(lane);
        }
        Ok(())
    }
}

/// Checks that a check reads every block that is held at its positions: the algebra judges only blocks that are read.
fn check_reach(plan: &Plan, code: &CodeView<'_>, job: &Job) -> Result<(), Refusal> {
    for (number, lane) in plan.shape.lanes.iter().enumerate() {
        let sinks = || lane.stages.iter().flat_map(|stage| &stage.sinks);
        if !sinks().any(|sink| matches!(sink, Sink::Check { .. })) {
            continue;
        }
        let sources = lane.stages.iter().flat_map(|stage| &stage.sources);
        let read: BTreeSet<u8> =
            sources.filter_map(|source| if let Source::Block { index, .. } = source { Some(*index) } else { None }).collect();
        let stored: BTreeSet<u8> = code.stored().collect();
        let slices = plan.slice_set(number);
        let is_left_out = |hold: &&Hold| {
            let index = hold.block.index;
            !read.contains(&index) && stored.contains(&index) && slices.touching(hold.span).is_some()
        };
        if let Some(Hold { party, block, .. }) = job.holds.iter().find(is_left_out) {
            let message =
                format!("the check leaves out block {}, which {party} holds and which could be wrong undetected", block.index);
            return Err(Refusal::new(Rule::Check, message).at(Place::lane(number)));
        }
    }
    Ok(())
}

fn check_sub_blocks(code: &CodeView<'_>, index: u8, sub_blocks: &[u16]) -> Result<(), String> {
    if usize::from(index) >= code.n || sub_blocks.iter().any(|sub_block| usize::from(*sub_block) >= code.alpha) {
        return Err(format!("sub-blocks {sub_blocks:?} of block {index} do not exist in {}", code.spec));
    }
    let is_twice = || {
        let mut seen = HashSet::new();
        !sub_blocks.iter().all(|sub_block| seen.insert(*sub_block))
    };
    if sub_blocks.is_empty() || !sub_blocks.is_sorted_by(|a, b| a < b) && is_twice() {
        return Err(format!("sub-blocks {sub_blocks:?} of block {index} are invalid: at least one, and none twice"));
    }
    Ok(())
}

/// The columns that change in a lane. All of a lane's positions must change or none, because the proof runs each lane
/// once.
fn changed_columns(plan: &Plan, code: &CodeView<'_>, job: &Job, number: usize) -> Result<Vec<usize>, Refusal> {
    let slices = plan.slice_set(number);
    let (hull, mut columns) = (slices.hull(), Vec::new());
    // Sub-blocks usually change together.
    for changes in job.changed.chunk_by(|a, b| a.span == b.span) {
        let span = changes[0].span;
        if slices.touching(span).is_none() {
            continue;
        }
        if !span.contains(hull) {
            let (index, range) = (changes[0].index, range(span));
            let message = format!("only positions {range} of block {index} change: a lane must end where a change does");
            return Err(Refusal::new(Rule::Straddles, message).at(Place::lane(number)));
        }
        columns.extend(changes.iter().map(|change| usize::from(change.index) * code.alpha + usize::from(change.sub_block)));
    }
    columns.sort_unstable();
    columns.dedup();
    Ok(columns)
}

/// Checks that every held block that a change reaches is patched, or stored again (here or elsewhere; the old
/// generation is then fenced).
fn check_mixed(plan: &Plan, code: &CodeView<'_>, job: &Job, held: &Held, tiles: &Tiles) -> Result<(), Refusal> {
    if job.changed.is_empty() || held.spans.is_empty() {
        return Ok(());
    }
    let mut changed: BTreeMap<u32, Vec<Span>> = BTreeMap::new();
    for Change { index, sub_block, span } in &job.changed {
        changed.entry(u32::from(*index) * code.alpha as u32 + u32::from(*sub_block)).or_default().push(*span);
    }
    let changed: BTreeMap<u32, Vec<Span>> = changed.into_iter().map(|(column, spans)| (column, Span::normalize(spans))).collect();
    for holds in held.spans.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        let (party, block, _) = &holds[0];
        let spans = Span::normalize(holds.iter().map(|(.., span)| *span).collect());
        for sub_block in (0..code.alpha).map(|sub_block| sub_block as u16) {
            let reached = code.row(block.index, sub_block).iter().filter_map(|(_, column, _)| changed.get(column)).flatten();
            let reached = Span::normalize(reached.copied().collect());
            if reached.is_empty() {
                continue;
            }
            let mut keys = vec![(WantKind::Patch, *party, block.index, sub_block)];
            let newer = plan.binding.stores.iter().filter(|store| (store.id.index, store.id.copy) == (block.index, block.copy));
            keys.extend(
                newer.map(|store| (WantKind::Store, plan.binding.parties[usize::from(store.vertex)], block.index, sub_block)),
            );
            let written = tiles.any_of(&keys);
            let mut here = reached.iter().flat_map(|change| spans.iter().map(|span| span.intersect(*change)));
            if let Some(gap) = here.find_map(|span| gap(&written, span)) {
                let what = format!("sub-block {sub_block} of block {} at {party} would keep its old value", block.index);
                return refuse(Rule::Mixed, format!("the stripe would be mixed: {what} for positions {}", range(gap)));
            }
        }
    }
    Ok(())
}

/// Checks that no party gets a second block of the stripe.
fn check_placement(job: &Job) -> Result<(), Refusal> {
    let stored = || job.wants.iter().filter(|want| want.kind == WantKind::Store).map(|want| (want.party, want.index));
    let mut has: Vec<(Party, u8)> = job.holds.iter().map(|hold| (hold.party, hold.block.index)).chain(stored()).collect();
    has.sort_unstable();
    has.dedup();
    for (party, _) in stored() {
        let first = has.partition_point(|(other, _)| *other < party);
        let blocks = || has[first..].iter().take_while(|(other, _)| *other == party).map(|(_, index)| *index);
        if blocks().nth(1).is_some() {
            let blocks: BTreeSet<u8> = blocks().collect();
            return refuse(Rule::Placement, format!("{party} would hold blocks {blocks:?} of one stripe"));
        }
    }
    Ok(())
}

/// Checks that changed data stays readable after the loss of any blocks that the code tolerates.
fn check_tolerance(code: &CodeView<'_>, job: &Job) -> Result<(), Refusal> {
    let changed = Span::normalize(job.changed.iter().map(|change| change.span).collect());
    if changed.is_empty() {
        return Ok(());
    }
    let stored = job.wants.iter().filter(|want| want.kind == WantKind::Store).map(|want| (want.index, want.span));
    let mut has: Vec<(u8, Span)> = job.holds.iter().map(|hold| (hold.block.index, hold.span)).chain(stored).collect();
    has.sort_unstable();
    let is_there = |index: &u8| has.binary_search_by_key(index, |(other, _)| *other).is_ok();
    let mut absent = code.stored().filter(|index| !is_there(index)).count();
    let (mut events, all) = (Vec::new(), Span::new(changed[0].start, changed[changed.len() - 1].end));
    for spans in has.chunk_by(|a, b| a.0 == b.0) {
        if spans.iter().any(|(_, span)| span.contains(all)) {
            continue;
        }
        let spans = Span::normalize(spans.iter().map(|(_, span)| *span).collect());
        let gaps = changed.iter().flat_map(|change| change.subtract(&spans));
        events.extend(gaps.flat_map(|gap| [(gap.start, 1i8), (gap.end, -1)]));
    }
    events.push((changed[0].start, 0));
    // Ends sort before starts: a gap that ends where another begins does not overlap it.
    events.sort_unstable();
    for (position, step) in events {
        absent = absent.saturating_add_signed(step.into());
        if absent > code.tolerance {
            let (spec, tolerance) = (code.spec, code.tolerance);
            let message = format!("{absent} blocks would be lost from position {position}; {spec} tolerates {tolerance}");
            return refuse(Rule::Tolerance, message);
        }
    }
    Ok(())
}
