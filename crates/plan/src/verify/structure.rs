//! Everything of the proof that is not algebra.

use super::tiling::{Tiles, gap, range};
use crate::{
    BoundBlock, Change, CodeView, Job, Place, Plan, Refusal, Rule, Sink, SliceSet, Source, WantKind, executor::check_lane, limits,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use weft_types::{BlockId, Layout, Party, Span};

/// For each lane, the columns of the generator that change in it, ascending.
pub(super) type Changes = Vec<Vec<usize>>;

/// The rules of the shape that are not algebra: they depend on no party, no block, no position and no job.
pub(super) fn check_shape(plan: &Plan, code: &CodeView<'_>) -> Result<(), Refusal> {
    limits::check_plan(plan)?;
    code.check()?;
    if plan.shape.code != code.spec {
        return refuse(Rule::Binding, format!("it is for the code {}, not {}", plan.shape.code, code.spec));
    }
    for (number, lane) in plan.shape.lanes.iter().enumerate() {
        check_lane(plan, number)?;
        if lane.window == 0 || lane.window > limits::WINDOW_SLICES_MAX {
            let message = format!("a window of {} slices; 1 to {} are possible", lane.window, limits::WINDOW_SLICES_MAX);
            return Err(Refusal::new(Rule::Lane, message).at(Place::lane(number)));
        }
        check_ports(plan, code, number)?;
    }
    Ok(())
}

/// The rules of the binding and the job, for a shape of that code that keeps its own: who is who, who holds what, tiling, generations,
/// that no stripe is mixed, placement and tolerance.
pub(super) fn check_binding(plan: &Plan, code: &CodeView<'_>, job: &Job) -> Result<Changes, Refusal> {
    limits::check_binding(plan)?;
    limits::check_job(job)?;
    check_parties(plan, code)?;
    check_job(plan, code, job)?;
    let held = Held::new(job);
    check_stores(plan, job)?;
    let named = Named::new(plan, job);
    let mut changes = Vec::with_capacity(plan.shape.lanes.len());
    for number in 0..plan.shape.lanes.len() {
        check_slices(plan, number)?;
        check_ends(plan, &named, &held, number)?;
        changes.push(changed_columns(plan, code, job, number)?);
    }
    let tiles = Tiles::check(plan, job)?;
    check_mixed(plan, code, job, &held, &tiles)?;
    check_placement(job)?;
    check_tolerance(code, job)?;
    Ok(changes)
}

fn refuse<T>(rule: Rule, message: impl std::fmt::Display) -> Result<T, Refusal> {
    Err(Refusal::new(rule, message))
}

/// Which positions of which blocks the parties hold, normalized.
struct Held {
    spans: HashMap<(Party, BlockId), Vec<Span>>,
}

impl Held {
    fn new(job: &Job) -> Self {
        let mut spans: HashMap<(Party, BlockId), Vec<Span>> = HashMap::new();
        for hold in &job.holds {
            spans.entry((hold.party, hold.block)).or_default().push(hold.span);
        }
        Self { spans: spans.into_iter().map(|(key, spans)| (key, Span::normalize(spans))).collect() }
    }

    /// Whether `party` holds `block` for all positions of the slices; else, why not.
    fn check(&self, party: Party, block: BlockId, slices: &SliceSet) -> Result<(), String> {
        let Some(spans) = self.spans.get(&(party, block)) else {
            let others = self.spans.keys().filter(|(who, other)| *who == party && other.index == block.index);
            return match others.map(|(_, other)| *other).min() {
                Some(other) => Err(format!("{party} holds {other}, not {block}")),
                None => Err(format!("{party} does not hold block {}", block.index)),
            };
        };
        let (mut from, hull) = (0, slices.hull());
        for span in spans.iter().copied().chain([Span::new(hull.end, hull.end)]) {
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
        return refuse(Rule::Binding, format!("its layout has {alpha} sub-blocks a cell, {} has {}", code.spec, code.alpha));
    }
    if binding.spans.len() != plan.shape.lanes.len() {
        let (spans, lanes) = (binding.spans.len(), plan.shape.lanes.len());
        return refuse(Rule::Binding, format!("it names the positions of {spans} lanes, and has {lanes}"));
    }
    if !binding.seq.fits(code.k) {
        let counts = binding.seq.counts().len();
        return refuse(Rule::Binding, format!("it counts the updates of {counts} data blocks, and {} has {}", code.spec, code.k));
    }
    if binding.slice_len == 0 {
        return refuse(Rule::Binding, "its slices have no position");
    }
    let mut parties = HashSet::new();
    if let Some(twice) = binding.parties.iter().find(|party| !parties.insert(**party)) {
        return refuse(Rule::Binding, format!("two vertices are {twice}"));
    }
    let mut stripes = BTreeSet::new();
    for blocks in [&binding.blocks, &binding.stores] {
        let mut seen = HashSet::new();
        for block in blocks {
            check_block(plan, code, block)?;
            stripes.insert(block.id.stripe);
            if !seen.insert((block.vertex, block.id.index)) {
                return refuse(Rule::Binding, format!("vertex {} has two blocks of index {}", block.vertex, block.id.index));
            }
        }
    }
    if stripes.len() > 1 {
        return refuse(Rule::Binding, "its blocks are of several stripes");
    }
    Ok(())
}

fn check_block(plan: &Plan, code: &CodeView<'_>, block: &BoundBlock) -> Result<(), Refusal> {
    let BoundBlock { vertex, id, len } = block;
    if usize::from(*vertex) >= plan.binding.parties.len() {
        return refuse(Rule::Binding, format!("block {id} is bound to vertex {vertex}, which is no party"));
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
            return refuse(Rule::Job, format!("it changes {where_}, which is no data of the stripe"));
        }
    }
    if let Some(hold) = job.holds.iter().find(|hold| usize::from(hold.block.index) >= code.n) {
        let message = format!("{} holds {}, but {} has only {} blocks", hold.party, hold.block, code.spec, code.n);
        return refuse(Rule::Job, message);
    }
    if let Some(input) = job.inputs.iter().find(|input| usize::from(input.index) >= code.k) {
        return refuse(Rule::Job, format!("it has an input for block {}, which is no data block", input.index));
    }
    Ok(())
}

/// A stored block is a new generation, at one place.
fn check_stores(plan: &Plan, job: &Job) -> Result<(), Refusal> {
    let mut newest: HashMap<(weft_types::StripeId, u8, u8), u32> = HashMap::new();
    for id in job.holds.iter().map(|hold| hold.block) {
        let newest = newest.entry((id.stripe, id.index, id.copy)).or_default();
        *newest = id.generation.max(*newest);
    }
    let mut stored = HashSet::new();
    for BoundBlock { id, .. } in &plan.binding.stores {
        let newest = newest.get(&(id.stripe, id.index, id.copy)).copied().unwrap_or_default();
        if id.generation <= newest {
            return refuse(Rule::Binding, format!("block {id} is to be stored, but generation {newest} is there already"));
        }
        if !stored.insert(*id) {
            return refuse(Rule::Binding, format!("block {id} is to be stored at two places"));
        }
    }
    Ok(())
}

fn check_slices(plan: &Plan, number: usize) -> Result<(), Refusal> {
    let lane = &plan.shape.lanes[number];
    let wrong = |message: String| Err(Refusal::new(Rule::Lane, message).at(Place::lane(number)));
    let (span, positions) = (plan.span(number), plan.binding.layout.positions());
    if span.is_empty() || span.end > positions {
        return wrong(format!("positions {} are not of a block: 0..{positions} are", range(span)));
    }
    if plan.slice_set(number).is_empty() {
        return wrong(format!("no slice: first {}, step {}, of positions {}", lane.first, lane.step, range(span)));
    }
    Ok(())
}

/// What the plan and its job name, by how ports refer to it.
struct Named {
    inputs: HashSet<(Party, u8)>,
    blocks: HashMap<(u16, u8), BlockId>,
    stores: HashMap<(u16, u8), BlockId>,
}

impl Named {
    fn new(plan: &Plan, job: &Job) -> Self {
        let inputs = job.inputs.iter().map(|input| (input.party, input.index)).collect();
        Self { inputs, blocks: by_port(&plan.binding.blocks), stores: by_port(&plan.binding.stores) }
    }
}

/// That ports name sub-blocks of the code, each once.
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

/// That every party has what its stages read and patch, and new generations for what they store.
fn check_ends(plan: &Plan, named: &Named, held: &Held, number: usize) -> Result<(), Refusal> {
    let slices = plan.slice_set(number);
    let Named { inputs, blocks, stores } = named;
    // Many stages may read one block, and a block may have many holes.
    let mut found_held: HashSet<(u16, u8)> = HashSet::new();
    for (at, stage) in plan.shape.lanes[number].stages.iter().enumerate() {
        let wrong = |rule, message: String| Refusal::new(rule, message).at(Place::stage(plan, number, at));
        let Some(party) = plan.binding.parties.get(usize::from(stage.vertex)).copied() else {
            return Err(wrong(Rule::Binding, format!("vertex {} is no party", stage.vertex)));
        };
        let mut check_held = |index: u8, what: &str| {
            if found_held.contains(&(stage.vertex, index)) {
                return Ok(());
            }
            let bound = blocks.get(&(stage.vertex, index));
            let id = bound.ok_or_else(|| wrong(Rule::Binding, format!("block {index} is to be {what}, but not bound")))?;
            held.check(party, *id, &slices).map_err(|message| wrong(Rule::Holds, message))?;
            found_held.insert((stage.vertex, index));
            Ok(())
        };
        for source in &stage.sources {
            match source {
                Source::Link(_) => {}
                Source::Block { index, .. } => check_held(*index, "read")?,
                Source::Input { index, .. } if inputs.contains(&(party, *index)) => {}
                Source::Input { index, .. } => {
                    return Err(wrong(Rule::Holds, format!("{party} has no new bytes of block {index} to put in")));
                }
            }
        }
        for sink in &stage.sinks {
            match sink {
                Sink::Link(_) | Sink::Check { .. } | Sink::Output { .. } => {}
                Sink::Patch { index, .. } => check_held(*index, "patched")?,
                Sink::Store { index, .. } if stores.contains_key(&(stage.vertex, *index)) => {}
                Sink::Store { index, .. } => {
                    return Err(wrong(Rule::Binding, format!("block {index} is to be stored, but has no new generation")));
                }
            }
        }
    }
    Ok(())
}

fn by_port(blocks: &[BoundBlock]) -> HashMap<(u16, u8), BlockId> {
    blocks.iter().map(|block| ((block.vertex, block.id.index), block.id)).collect()
}

fn check_sub_blocks(code: &CodeView<'_>, index: u8, sub_blocks: &[u16]) -> Result<(), String> {
    let mut seen = HashSet::new();
    if usize::from(index) >= code.n || sub_blocks.iter().any(|sub_block| usize::from(*sub_block) >= code.alpha) {
        return Err(format!("sub-blocks {sub_blocks:?} of block {index} do not exist in {}", code.spec));
    }
    if sub_blocks.is_empty() || !sub_blocks.iter().all(|sub_block| seen.insert(*sub_block)) {
        return Err(format!("sub-blocks {sub_blocks:?} of block {index}: at least one, and none twice"));
    }
    Ok(())
}

/// The columns that change in a lane. Either all of a lane's positions change or none: the proof runs each lane once.
fn changed_columns(plan: &Plan, code: &CodeView<'_>, job: &Job, number: usize) -> Result<Vec<usize>, Refusal> {
    let slices = plan.slice_set(number);
    let mut columns = BTreeSet::new();
    for Change { index, sub_block, span } in &job.changed {
        if slices.touching(*span).is_none() {
            continue;
        }
        if !span.contains(slices.hull()) {
            let message = format!("only positions {} of block {index} change: a lane must end where a change does", range(*span));
            return Err(Refusal::new(Rule::Straddles, message).at(Place::lane(number)));
        }
        columns.insert(usize::from(*index) * code.alpha + usize::from(*sub_block));
    }
    Ok(columns.into_iter().collect())
}

/// Every held block that a change reaches is patched, or stored anew (here or elsewhere: the old generation is fenced then).
fn check_mixed(plan: &Plan, code: &CodeView<'_>, job: &Job, held: &Held, tiles: &Tiles) -> Result<(), Refusal> {
    let mut changed: BTreeMap<u32, Vec<Span>> = BTreeMap::new();
    for Change { index, sub_block, span } in &job.changed {
        changed.entry(u32::from(*index) * code.alpha as u32 + u32::from(*sub_block)).or_default().push(*span);
    }
    if changed.is_empty() {
        return Ok(());
    }
    let changed: BTreeMap<u32, Vec<Span>> = changed.into_iter().map(|(column, spans)| (column, Span::normalize(spans))).collect();
    let mut holds: Vec<_> = held.spans.iter().collect();
    holds.sort_unstable_by_key(|(key, _)| **key);
    for ((party, block), spans) in holds {
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

/// Nobody gets a second block of the stripe.
fn check_placement(job: &Job) -> Result<(), Refusal> {
    let mut has: BTreeMap<Party, BTreeSet<u8>> = BTreeMap::new();
    for hold in &job.holds {
        has.entry(hold.party).or_default().insert(hold.block.index);
    }
    for want in job.wants.iter().filter(|want| want.kind == WantKind::Store) {
        has.entry(want.party).or_default().insert(want.index);
    }
    for want in job.wants.iter().filter(|want| want.kind == WantKind::Store) {
        if has.get(&want.party).is_some_and(|blocks| blocks.len() > 1) {
            return refuse(Rule::Placement, format!("{} would hold blocks {:?} of one stripe", want.party, has[&want.party]));
        }
    }
    Ok(())
}

/// What changes can still be read back when as many blocks are lost as the code tolerates to lose, or fewer.
fn check_tolerance(code: &CodeView<'_>, job: &Job) -> Result<(), Refusal> {
    let changed = Span::normalize(job.changed.iter().map(|change| change.span).collect());
    if changed.is_empty() {
        return Ok(());
    }
    let mut has: BTreeMap<u8, Vec<Span>> = BTreeMap::new();
    for hold in &job.holds {
        has.entry(hold.block.index).or_default().push(hold.span);
    }
    for want in job.wants.iter().filter(|want| want.kind == WantKind::Store) {
        has.entry(want.index).or_default().push(want.span);
    }
    let mut events = Vec::new();
    let mut absent = code.stored().filter(|index| !has.contains_key(index)).count();
    for spans in has.into_values() {
        let spans = Span::normalize(spans);
        let gaps = changed.iter().flat_map(|change| change.subtract(&spans));
        events.extend(gaps.flat_map(|gap| [(gap.start, 1i8), (gap.end, -1)]));
    }
    events.push((changed[0].start, 0));
    // Ends come before starts: a gap that ends where another begins does not meet it.
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
