//! Checks that the outputs are exactly what is wanted, each position once: a Patch that is applied twice corrupts.

use crate::{Job, Place, Plan, Refusal, Rule, Sink, SliceSet, Want, WantKind, limits};
use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    rc::Rc,
};
use weft_types::{Party, Span};

/// An output: its kind, party, block and sub-block (for a Check: the row).
pub(super) type Key = (WantKind, Party, u8, u16);

/// A block at a party, as one kind of output: its sub-blocks are usually produced together.
type Block = (WantKind, Party, u8);

/// The positions of each output, normalized. They are kept only for jobs that change held blocks.
pub(super) struct Tiles {
    tiles: BTreeMap<Key, Rc<Vec<Span>>>,
}

/// A sink: its lane, its stage, and the sub-blocks.
type Emitted<'a> = (u32, u32, Cow<'a, [u16]>);

impl Tiles {
    /// Collects the plan's outputs, and refuses duplicate, unwanted and missing ones.
    pub(super) fn check(plan: &Plan, job: &Job) -> Result<Self, Refusal> {
        let emitted = emitted(plan)?;
        let mut wanted: Vec<(Block, &Want)> =
            job.wants.iter().map(|want| ((want.kind, want.party, want_index(want)), want)).collect();
        wanted.retain(|(_, want)| !want.sub_blocks.is_empty());
        // Stable: the sinks and the wants of a block stay in order.
        wanted.sort_by_key(|(block, _)| *block);
        let is_kept = !job.changed.is_empty() && !job.holds.is_empty();
        let mut unions = Unions { plan, known: HashMap::new(), budget: limits::TILED_SLICES_MAX };
        let (mut tiles, mut lacking) = (BTreeMap::new(), Vec::new());
        let gives = |lane: u32, span: Span| {
            let slices = plan.slice_set(lane as usize);
            (slices.step, slices.hull()) == (1, span)
        };
        for sinks in emitted.chunk_by(|a, b| a.0 == b.0) {
            let (kind, party, index) = sinks[0].0;
            let first = wanted.partition_point(|(other, _)| *other < sinks[0].0);
            let wants = &wanted[first..first + wanted[first..].partition_point(|(other, _)| *other == sinks[0].0)];
            let all = together(sinks, wants);
            // One lane gives exactly what is wanted, slice by slice.
            if let (Some(_), false, [(_, (lane, ..))], [(_, want)]) = (all, is_kept, sinks, wants)
                && gives(*lane, want.span)
            {
                continue;
            }
            for (sub_block, (from, spans)) in by_sub_block(sinks, wants, all.is_some()) {
                let (key, want) = ((kind, party, index, sub_block), Span::normalize(spans));
                if from.is_empty() {
                    lacking.push((key, want));
                    continue;
                }
                let spans = unions.of(&key, &from)?;
                compare(plan, &key, &from, &spans, &want)?;
                if is_kept {
                    let same = all.unwrap_or(std::slice::from_ref(&sub_block));
                    tiles.extend(same.iter().map(|sub_block| ((key.0, key.1, key.2, *sub_block), Rc::clone(&spans))));
                }
            }
        }
        let is_emitted = |block: &Block| emitted.binary_search_by_key(block, |(other, _)| *other).is_ok();
        let never = wanted.chunk_by(|a, b| a.0 == b.0).filter(|wants| !is_emitted(&wants[0].0)).map(|wants| {
            let (kind, party, index) = wants[0].0;
            let lowest = wants.iter().flat_map(|(_, want)| &want.sub_blocks).min().copied().unwrap_or_default();
            let spans = wants.iter().filter(|(_, want)| want.sub_blocks.contains(&lowest)).map(|(_, want)| want.span);
            ((kind, party, index, lowest), Span::normalize(spans.collect()))
        });
        let mut lacking: Vec<(Key, Vec<Span>)> =
            lacking.into_iter().chain(never).filter(|(_, spans)| !spans.is_empty()).collect();
        lacking.sort_unstable();
        match lacking.first() {
            Some((key, spans)) => Err(missing(key, spans[0])),
            None => Ok(Self { tiles }),
        }
    }

    /// The positions at which any of these outputs is produced, normalized.
    pub(super) fn any_of(&self, keys: &[Key]) -> Rc<Vec<Span>> {
        let mut found = keys.iter().filter_map(|key| self.tiles.get(key));
        match (found.next(), found.next()) {
            (None, _) => Rc::default(),
            (Some(spans), None) => spans.clone(),
            (Some(first), Some(second)) => {
                let all = [first, second].into_iter().chain(found).flat_map(|spans| spans.iter().copied());
                Rc::new(Span::normalize(all.collect()))
            }
        }
    }
}

fn want_index(want: &Want) -> u8 {
    if want.kind == WantKind::Check { 0 } else { want.index }
}

/// The sub-blocks of a block, if all of its sinks and wants name the same ones in the same order.
fn together<'a>(sinks: &'a [(Block, Emitted<'_>)], wants: &[(Block, &Want)]) -> Option<&'a [u16]> {
    let (_, (.., first)) = sinks.first()?;
    let same = sinks[1..].iter().all(|(_, (.., sub_blocks))| sub_blocks == first);
    (same && wants.iter().all(|(_, want)| want.sub_blocks[..] == **first)).then_some(first)
}

/// Lanes and stages, and positions.
type BySubBlock = BTreeMap<u16, (Vec<(u32, u32)>, Vec<Span>)>;

/// For every sub-block that sinks or wants name: the lanes and stages that give it, and where it is wanted. If all are
/// together, the first stands for all of them.
fn by_sub_block(sinks: &[(Block, Emitted<'_>)], wants: &[(Block, &Want)], together: bool) -> BySubBlock {
    let looked_at = if together { 1 } else { usize::MAX };
    let mut found = BySubBlock::new();
    for (_, (lane, stage, sub_blocks)) in sinks {
        for sub_block in sub_blocks.iter().take(looked_at) {
            found.entry(*sub_block).or_default().0.push((*lane, *stage));
        }
    }
    for (_, want) in wants {
        for sub_block in want.sub_blocks.iter().take(looked_at) {
            found.entry(*sub_block).or_default().1.push(want.span);
        }
    }
    found
}

/// The positions of sets of lanes: most outputs share them.
struct Unions<'a> {
    plan: &'a Plan,
    known: HashMap<Vec<u32>, Rc<Vec<Span>>>,
    /// The slices that may still be examined one by one.
    budget: u64,
}

impl Unions<'_> {
    /// All positions at which an output comes from these lanes and stages.
    fn of(&mut self, key: &Key, from: &[(u32, u32)]) -> Result<Rc<Vec<Span>>, Refusal> {
        let lanes: Vec<u32> = from.iter().map(|(lane, _)| *lane).collect();
        if let Some(spans) = self.known.get(&lanes) {
            return Ok(Rc::clone(spans));
        }
        let sets: Vec<SliceSet> = lanes.iter().map(|lane| self.plan.slice_set(*lane as usize)).collect();
        let spans = Rc::new(union(&sets, &mut self.budget).map_err(|failure| failure.refusal(self.plan, key, from))?);
        self.known.insert(lanes, Rc::clone(&spans));
        Ok(spans)
    }
}

/// The sinks of all output blocks, block by block, those of a block in order.
fn emitted(plan: &Plan) -> Result<Vec<(Block, Emitted<'_>)>, Refusal> {
    let mut emitted = Vec::new();
    for (number, lane) in plan.shape.lanes.iter().enumerate() {
        let mut rows: HashMap<Party, u16> = HashMap::new();
        for (at, stage) in lane.stages.iter().enumerate() {
            let party = plan.binding.parties[usize::from(stage.vertex)];
            for sink in &stage.sinks {
                let (kind, index, sub_blocks) = match sink {
                    Sink::Link(_) => continue,
                    Sink::Store { index, sub_blocks } => (WantKind::Store, *index, Cow::from(sub_blocks)),
                    Sink::Patch { index, sub_blocks } => (WantKind::Patch, *index, Cow::from(sub_blocks)),
                    Sink::Output { index, sub_blocks } => (WantKind::Output, *index, Cow::from(sub_blocks)),
                    Sink::Check { width } => {
                        let row = rows.entry(party).or_default();
                        let end = u16::try_from(*width).ok().and_then(|width| row.checked_add(width));
                        let end = end.ok_or_else(|| {
                            Refusal::new(Rule::Limits, "the checks have too many rows").at(Place::stage(plan, number, at))
                        })?;
                        (WantKind::Check, 0, (std::mem::replace(row, end)..end).collect())
                    }
                };
                emitted.push(((kind, party, index), (number as u32, at as u32, sub_blocks)));
            }
        }
    }
    emitted.sort_by_key(|(block, _)| *block);
    Ok(emitted)
}

fn compare(plan: &Plan, key: &Key, from: &[(u32, u32)], spans: &[Span], want: &[Span]) -> Result<(), Refusal> {
    for span in spans {
        if let Some(extra) = gap(want, *span) {
            let lane = |at: &&(u32, u32)| plan.slice_set(at.0 as usize).touching(extra).is_some();
            let (lane, stage) = from.iter().find(lane).copied().unwrap_or_default();
            let message = format!("{} is produced for positions {}, which the job does not require", name(key), range(extra));
            return Err(Refusal::new(Rule::Tiling, message).at(Place::stage(plan, lane as usize, stage as usize)));
        }
    }
    match want.iter().find_map(|span| gap(spans, *span)) {
        Some(gap) => Err(missing(key, gap)),
        None => Ok(()),
    }
}

fn missing(key: &Key, gap: Span) -> Refusal {
    Refusal::new(Rule::Tiling, format!("{} is not produced for positions {}, which the job requires", name(key), range(gap)))
}

fn name(key: &Key) -> String {
    let (kind, party, index, sub_block) = key;
    match kind {
        WantKind::Check => format!("row {sub_block} of the check at {party}"),
        WantKind::Store => format!("block {index} (sub-block {sub_block}) to be stored at {party}"),
        WantKind::Patch => format!("block {index} (sub-block {sub_block}) to be patched at {party}"),
        WantKind::Output => format!("block {index} (sub-block {sub_block}) to be delivered to {party}"),
    }
}

pub(super) fn range(span: Span) -> String {
    format!("{}..{}", span.start, span.end)
}

/// The first part of `span` that the normalized `spans` do not cover.
pub(super) fn gap(spans: &[Span], span: Span) -> Option<Span> {
    if span.is_empty() {
        return None;
    }
    let at = spans.partition_point(|one| one.end <= span.start);
    let next = |at: usize| spans.get(at).map_or(u64::MAX, |one| one.start);
    match spans.get(at) {
        // Normalized spans do not touch, so the position after one is uncovered up to the next.
        Some(one) if one.start <= span.start => (one.end < span.end).then(|| Span::new(one.end, span.end.min(next(at + 1)))),
        _ => Some(Span::new(span.start, span.end.min(next(at)))),
    }
}

enum Failure {
    Twice(Span),
    TooMany,
}

impl Failure {
    fn refusal(self, plan: &Plan, key: &Key, from: &[(u32, u32)]) -> Refusal {
        match self {
            Self::Twice(span) => {
                let touches = |lane: u32| plan.slice_set(lane as usize).touching(span);
                let mut all = from.iter().filter(|(lane, _)| touches(*lane).is_some());
                let (lane, stage) = all.nth(1).copied().unwrap_or_default();
                let message = format!("{} is produced twice for positions {}", name(key), range(span));
                Refusal::new(Rule::Tiling, message).at(Place::stage(plan, lane as usize, stage as usize))
            }
            Self::TooMany => {
                let max = limits::TILED_SLICES_MAX;
                Refusal::new(Rule::Limits, format!("its lanes interleave in more than {max} slices: use larger slices"))
            }
        }
    }
}

/// The union of sets of slices, normalized, if no two of them overlap.
///
/// Lanes that take turns over one span (every `step`-th slice each) together form one span. Slices are examined one by
/// one only where some of the lanes have not begun yet.
fn union(sets: &[SliceSet], budget: &mut u64) -> Result<Vec<Span>, Failure> {
    let mut turns: BTreeMap<(Span, u32, u64), Vec<u32>> = BTreeMap::new();
    for set in sets {
        turns.entry((set.span, set.step, set.slice_len)).or_default().push(set.first);
    }
    let mut spans = Vec::new();
    for ((span, step, slice_len), mut firsts) in turns {
        let set = |first: u32, step: u32| SliceSet { span, first, step, slice_len };
        firsts.sort_unstable_by_key(|first| (first % step.max(1), *first));
        if let Some(pair) = firsts.windows(2).find(|pair| step == 0 || pair[0] % step == pair[1] % step) {
            return Err(Failure::Twice(set(pair[1], step).slice(0)));
        }
        let all_turns = firsts.len() == step as usize;
        let last = firsts.iter().copied().max().unwrap_or_default();
        if all_turns {
            spans.push(set(last, 1).hull());
        }
        for first in firsts {
            let alone = set(first, step);
            let count = if all_turns { u64::from((last - first).div_ceil(step)) } else { alone.count() };
            *budget = budget.checked_sub(count).ok_or(Failure::TooMany)?;
            spans.extend((0..count.min(alone.count())).map(|at| alone.slice(at)));
        }
    }
    spans.retain(|span| !span.is_empty());
    spans.sort_unstable();
    match spans.windows(2).find(|pair| pair[1].start < pair[0].end) {
        Some(pair) => Err(Failure::Twice(pair[0].intersect(pair[1]))),
        None => Ok(Span::normalize(spans)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unions_agree_with_a_walk_over_the_positions() {
        let set = |start, end, first, step, slice_len| SliceSet { span: Span::new(start, end), first, step, slice_len };
        let cases = [
            vec![set(0, 40, 0, 1, 7)],
            vec![set(0, 40, 0, 3, 7), set(0, 40, 1, 3, 7), set(0, 40, 2, 3, 7)],
            vec![set(0, 40, 3, 3, 4), set(0, 40, 1, 3, 4), set(0, 40, 8, 3, 4)],
            vec![set(0, 40, 0, 2, 7), set(0, 40, 0, 2, 7)],
            vec![set(0, 40, 0, 2, 7), set(0, 40, 4, 2, 7), set(0, 40, 1, 2, 7)],
            vec![set(0, 40, 0, 2, 5), set(5, 10, 0, 1, 5), set(15, 20, 0, 1, 5)],
            vec![set(0, 20, 0, 1, 5), set(19, 40, 0, 1, 5)],
        ];
        for sets in cases {
            let mut times = [0; 50];
            for slice in sets.iter().flat_map(|set| (0..set.count()).map(|at| set.slice(at))) {
                (slice.start..slice.end).for_each(|x| times[x as usize] += 1);
            }
            match union(&sets, &mut 1000) {
                Err(Failure::Twice(span)) => assert!((span.start..span.end).all(|x| times[x as usize] > 1), "{sets:?}"),
                Err(Failure::TooMany) => panic!("{sets:?} are few"),
                Ok(spans) => {
                    for x in 0..50 {
                        let inside = spans.iter().any(|span| span.start <= x && x < span.end);
                        assert_eq!(times[x as usize], i32::from(inside), "{sets:?} at {x}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_tebibyte_in_tiny_slices_costs_nothing() {
        let span = Span::new(0, 1 << 40);
        let sets: Vec<SliceSet> = (0..9).map(|first| SliceSet { span, first, step: 9, slice_len: 1 }).collect();
        assert!(matches!(union(&sets, &mut 8), Ok(spans) if spans == [span]));
        assert!(matches!(union(&sets[1..], &mut 1000), Err(Failure::TooMany)));
    }

    #[test]
    fn gaps_are_found() {
        let spans = [Span::new(2, 5), Span::new(7, 9)];
        let found = |start, end| gap(&spans, Span::new(start, end)).map(|gap| (gap.start, gap.end));
        assert_eq!(found(2, 5), None);
        assert_eq!(found(0, 5), Some((0, 2)));
        assert_eq!(found(3, 9), Some((5, 7)));
        assert_eq!(found(8, 12), Some((9, 12)));
        assert_eq!(found(9, 12), Some((9, 12)));
        assert_eq!(found(4, 4), None);
    }
}
