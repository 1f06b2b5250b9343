//! Cuts the positions of a job into regions, in each of which the same is wanted and available.

use crate::{Requestor, request::Vertices};
use std::collections::{BTreeMap, HashMap};
use weft_codes::SubBlock;
use weft_gf::SparseMatrix;
use weft_plan::{Job, Sink, WantKind};
use weft_types::{Error, Party, Result, Span};

/// The most regions of a job: each has its own lane, with buffers at all its parties.
const REGIONS_MAX: usize = 512;

/// The job without the block that has the most holes in the wanted range; `None` if no block has any.
pub(crate) fn without_the_most_holes(job: &Job) -> Option<Job> {
    let wanted = Span::normalize(job.wants.iter().map(|want| want.span).collect());
    let mut held: BTreeMap<(Party, u8), Vec<Span>> = BTreeMap::new();
    for hold in &job.holds {
        held.entry((hold.party, hold.block.index)).or_default().push(hold.span);
    }
    let holes = |spans: Vec<Span>| -> usize {
        let spans = Span::normalize(spans);
        wanted.iter().map(|wanted| wanted.subtract(&spans).len()).sum()
    };
    let (most, worst) = held.into_iter().map(|(key, spans)| (holes(spans), key)).max()?;
    (most > 0).then(|| {
        let kept = job.holds.iter().filter(|hold| (hold.party, hold.block.index) != worst).cloned();
        Job { holds: kept.collect(), ..job.clone() }
    })
}

/// A range of positions with the same wants and holders.
#[derive(Debug, Clone)]
pub(crate) struct Region {
    /// The positions.
    pub(crate) span: Span,
    /// What is wanted.
    pub(crate) deliveries: Vec<Delivery>,
    /// The holder of each block, the preferred first.
    pub(crate) holders: Vec<(u8, Party)>,
}

/// The sub-blocks of a block that a party wants; or the rows of a check, as those of block 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) party: Party,
    pub(crate) kind: WantKind,
    pub(crate) index: u8,
    /// Ascending, each once.
    pub(crate) sub_blocks: Vec<u16>,
}

/// The regions of a job in which something is wanted, ascending.
pub(crate) fn cut(job: &Job, prefer: &[Party]) -> Result<Vec<Region>> {
    let wanted = Span::normalize(job.wants.iter().map(|want| want.span).collect());
    let spans = job.wants.iter().map(|want| want.span).chain(job.holds.iter().map(|hold| hold.span));
    // Sub-blocks usually change together.
    let spans = spans.chain(job.changed.chunk_by(|a, b| a.span == b.span).map(|changes| changes[0].span));
    let mut edges: Vec<u64> = spans.filter(|span| !span.is_empty()).flat_map(|span| [span.start, span.end]).collect();
    edges.sort_unstable();
    edges.dedup();
    let within = |span: &Span| {
        wanted.get(wanted.partition_point(|wanted| wanted.end < span.end)).is_some_and(|wanted| wanted.contains(*span))
    };
    let pieces: Vec<Span> = edges.windows(2).map(|pair| Span::new(pair[0], pair[1])).filter(within).collect();
    if pieces.len() > REGIONS_MAX {
        let message = format!("the job's wants form {} separate pieces: at most {REGIONS_MAX} are allowed", pieces.len());
        return Err(Error::unavailable(message));
    }
    let parties = parties(job);
    let region = |span| Region { span, deliveries: deliveries(job, &parties, span), holders: holders(job, prefer, span) };
    Ok(pieces.into_iter().map(region).collect())
}

impl Region {
    /// The holder that should read a block for `readers`: one of them, otherwise the preferred.
    pub(crate) fn holder(&self, index: u8, readers: &[Party]) -> Option<Party> {
        let mut all = self.holders.iter().filter(|(held, _)| *held == index).map(|(_, party)| *party);
        let preferred = all.clone().next();
        all.find(|party| readers.contains(party)).or(preferred)
    }

    /// The available blocks, the preferred first.
    pub(crate) fn available(&self) -> Vec<u8> {
        let mut available = Vec::with_capacity(self.holders.len());
        for (index, _) in &self.holders {
            if !available.contains(index) {
                available.push(*index);
            }
        }
        available
    }
}

/// The sub-blocks that these deliveries want, each once, by block.
pub(crate) fn wanted(deliveries: &[&Delivery]) -> Vec<SubBlock> {
    let of = |delivery: &&Delivery| {
        let index = delivery.index;
        delivery.sub_blocks.clone().into_iter().map(move |sub_block| SubBlock { index, sub_block })
    };
    let mut wanted: Vec<SubBlock> = deliveries.iter().flat_map(of).collect();
    wanted.sort_unstable();
    wanted.dedup();
    wanted
}

/// The parties of these deliveries as requestors of `wanted` rows, in order of appearance.
pub(crate) fn requestors(deliveries: &[&Delivery], wanted: &[SubBlock], vertices: &mut Vertices) -> Result<Vec<Requestor>> {
    let mut parties: Vec<Party> = Vec::new();
    for delivery in deliveries {
        if !parties.contains(&delivery.party) {
            parties.push(delivery.party);
        }
    }
    let requestor = |party: Party| {
        let own: Vec<&Delivery> = deliveries.iter().copied().filter(|delivery| delivery.party == party).collect();
        let rows: Vec<SubBlock> = self::wanted(&own);
        let sinks = own.iter().map(|delivery| sink(delivery)).collect();
        let out: Vec<SubBlock> = own.iter().flat_map(|delivery| self::wanted(&[delivery])).collect();
        let spread = out.iter().enumerate().filter_map(|(r, out)| Some((r, rows.binary_search(out).ok()?, 1)));
        let spread = SparseMatrix::new(out.len(), rows.len(), spread).unwrap_or_else(|| SparseMatrix::zero(0, 0));
        let rows = rows.iter().filter_map(|row| wanted.binary_search(row).ok()).collect();
        Ok(Requestor { vertex: vertices.of(party)?, rows, sinks, spread })
    };
    parties.into_iter().map(requestor).collect()
}

/// The sink of a delivery.
pub(crate) fn sink(delivery: &Delivery) -> Sink {
    let (index, sub_blocks) = (delivery.index, delivery.sub_blocks.clone());
    match delivery.kind {
        WantKind::Store => Sink::Store { index, sub_blocks },
        WantKind::Patch => Sink::Patch { index, sub_blocks },
        WantKind::Output => Sink::Output { index, sub_blocks },
        WantKind::Check => Sink::Check { width: sub_blocks.len() as u32 },
    }
}

/// The place of each party in the order of the job's wants.
fn parties(job: &Job) -> HashMap<Party, usize> {
    let mut places: HashMap<Party, usize> = HashMap::new();
    for want in &job.wants {
        let next = places.len();
        places.entry(want.party).or_insert(next);
    }
    places
}

/// Everything wanted at all positions of `span`: one delivery for each party, kind and block. Parties are in the order
/// of the job's wants, regardless of their numbers, so that jobs that differ only in numbers have plans of one shape.
fn deliveries(job: &Job, places: &HashMap<Party, usize>, span: Span) -> Vec<Delivery> {
    let mut all: BTreeMap<(Option<usize>, Party, WantKind, u8), Vec<u16>> = BTreeMap::new();
    for want in job.wants.iter().filter(|want| want.span.contains(span)) {
        let index = if want.kind == WantKind::Check { 0 } else { want.index };
        let place = places.get(&want.party).copied();
        all.entry((place, want.party, want.kind, index)).or_default().extend(&want.sub_blocks);
    }
    let delivery = |((_, party, kind, index), mut sub_blocks): ((Option<usize>, Party, WantKind, u8), Vec<u16>)| {
        if !sub_blocks.is_sorted_by(|a, b| a < b) {
            sub_blocks.sort_unstable();
            sub_blocks.dedup();
        }
        Delivery { party, kind, index, sub_blocks }
    };
    all.into_iter().map(delivery).filter(|delivery| !delivery.sub_blocks.is_empty()).collect()
}

fn holders(job: &Job, prefer: &[Party], span: Span) -> Vec<(u8, Party)> {
    let mut holders: Vec<(u8, Party)> = Vec::new();
    for hold in job.holds.iter().filter(|hold| hold.span.contains(span)) {
        let holder = (hold.block.index, hold.party);
        if !holders.contains(&holder) {
            holders.push(holder);
        }
    }
    // Stable: holders without a preference stay in the job's order.
    holders.sort_by_cached_key(|(_, party)| prefer.iter().position(|preferred| preferred == party).unwrap_or(prefer.len()));
    holders
}
