//! From stripes to jobs and plans. This module says what is wanted of which stripe; the schemes decide how. Every plan
//! is verified before it is returned.

mod check;
mod update;

use crate::{
    in_flight::Lines,
    known::Known,
    options::RepairOptions,
    view::{Standing, View},
};
use std::collections::{BTreeMap, BTreeSet};
use weft_codes::{Ask, SharedCode, SubBlock, shortened};
use weft_plan::{Change, Considered, Hold, Input, Job, Network, Plan, Refusal, Want, WantKind};
use weft_schemes::{AUTO, Kind, Request, Run, Scheme, Select, by_name, choose, choose_quickly, code_view, simplest};
use weft_types::{
    AutoSize, BlockId, CHECKSUM_UNIT_LEN, Error, NodeId, PAGE_LEN, Party, Result, Seq, Span, StripeLayout, StripeRecord,
};

pub use check::{Checking, Depth, check};
pub(crate) use update::{Drawn, RouteKey};
pub use update::{UpdateRoute, Updating, Weighed, weigh_update};

/// A verified plan and its job.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// The job that it answers.
    pub job: Job,
    /// The schemes that were compared.
    pub considered: Vec<Considered>,
    /// The bytes that it moves, by line.
    pub lines: Lines,
}

/// A block's new home.
#[derive(Debug, Clone)]
pub struct Target {
    /// The node.
    pub node: NodeId,
    /// The block.
    pub block: BlockId,
    /// The positions that are still missing.
    pub missing: Vec<Span>,
}

/// Bytes of a data block that a reader wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The block's index.
    pub index: u8,
    /// Its bytes.
    pub bytes: Span,
}

/// How lost blocks are rebuilt.
#[derive(Debug, Clone, Copy)]
pub struct Way<'a> {
    /// The options.
    pub options: &'a RepairOptions,
    /// The known network.
    pub network: &'a Network,
    /// The preferred helpers, best first.
    pub prefer: &'a [Party],
    /// The caches.
    pub known: &'a Known,
}

impl<'a> Way<'a> {
    fn request(
        &self,
        code: &'a SharedCode,
        stripe: &'a StripeRecord,
        job: &'a Job,
        stores: &'a [(Party, BlockId)],
        run: Run,
    ) -> Request<'a> {
        let Way { options: RepairOptions { select, paths, .. }, network, prefer, known } = *self;
        let (select, paths, patterns) = (*select, *paths, Some(&known.patterns));
        let (code, layout, seq) = (code.as_ref(), stripe.layout, &stripe.seq);
        Request { code, stripe: layout, seq, job, stores, prefer, network, select, paths, seed: 0, run, patterns }
    }

    /// The chosen plan, and the schemes that were compared. An automatic slice length is fitted to the links of the
    /// path, if that is predicted to be faster.
    fn choose(&self, request: &Request<'_>, scheme: &str) -> Result<(Plan, Vec<Considered>)> {
        // An automatic slice length needs the chosen path, which only a comparison returns.
        let is_fitted = |scheme: Scheme<'_>| self.options.slice_len == AutoSize::Auto && scheme.has_paths();
        let is_weighed = self.options.explained || scheme == AUTO || is_fitted(by_name(Kind::of(request.job), scheme)?);
        let (plan, mut considered) = if is_weighed { choose(request, scheme)? } else { choose_quickly(request, scheme)? };
        let path = considered.first().and_then(|chosen| Some((chosen, chosen.paths.first()?)));
        let fitted = path.and_then(|(chosen, path)| {
            let slice_len = self.options.slice_positions_on(path, &request.stripe, request.network)?;
            let run = Run { slice_len, ..request.run }.of_sub_blocks(request.stripe.layout.alpha);
            let request = Request { run, ..*request };
            let (plan, fitted) = choose(&request, &chosen.scheme).ok()?;
            Some((plan, fitted.into_iter().next().filter(|fitted| fitted.seconds < chosen.seconds)?))
        });
        Ok(match fitted {
            Some((fitted_plan, fitted)) => {
                considered[0] = fitted;
                (fitted_plan, considered)
            }
            None => (plan, considered),
        })
    }
}

impl Planned {
    /// The plan in the JSON form that `weft plan` reads.
    pub fn json(&self) -> Result<Vec<u8>> {
        weft_plan::to_json(&self.plan, &self.job, &self.considered).map(String::into_bytes)
    }
}

/// A write: the writer has a stripe's data, and these blocks are to be stored.
#[derive(Debug, Clone, Copy)]
pub struct Writing<'a> {
    /// The writer.
    pub writer: Party,
    /// The stripe's updates.
    pub seq: &'a Seq,
    /// The party that stores each block.
    pub stores: &'a [(Party, BlockId)],
    /// True for a whole stripe: the writer computes the checksums of all blocks, including those that other nodes
    /// compute from what it sends, so no node is trusted. False if some blocks are sent again as they were.
    pub whole: bool,
    /// The scheme's name, or `auto`.
    pub scheme: &'a str,
    /// The known network.
    pub network: &'a Network,
    /// The caches.
    pub known: &'a Known,
}

/// A plan with which a client that has the data writes blocks of a stripe; every home stores its block.
pub fn write(code: &SharedCode, stripe: &StripeLayout, writing: &Writing<'_>, run: Run) -> Result<Planned> {
    let Writing { writer, seq, stores, whole, scheme, network, known } = *writing;
    let code = &known.shortened(code, stripe.data_blocks() as usize);
    let span = stripe.coded_span();
    let all = sub_blocks(code);
    let data = 0..code.dimension() as u8;
    let change = |index: u8| all.iter().map(move |sub_block| Change { index, sub_block: *sub_block, span });
    let want = |kind, party, index| Want { kind, party, index, sub_blocks: all.clone(), span };
    let stored = stores.iter().map(|(party, block)| want(WantKind::Store, *party, block.index));
    let summed = stripe.blocks().filter(|_| whole).map(|index| want(WantKind::Output, writer, index));
    let job = Job {
        inputs: data.clone().map(|index| Input { party: writer, index }).collect(),
        changed: data.filter(|_| whole).flat_map(change).collect(),
        wants: stored.chain(summed).collect(),
        ..Job::default()
    };
    let (select, patterns) = (Select::AsPreferred, Some(&known.patterns));
    let request = Request { seq, stores, network, select, patterns, ..Request::new(code.as_ref(), *stripe, &job, run) };
    // A named scheme is not compared with others, because a put plans every stripe. Data that does not reach all blocks
    // is sent by the simplest scheme, because there is little to distribute.
    let is_short = code.dimension() < code.k();
    let scheme = if is_short { simplest(Kind::Write)?.name() } else { scheme };
    let (plan, considered) = choose_quickly(&request, scheme)?;
    Ok(Planned { considered, ..proved(plan, job, code, (network, known))? })
}

/// A plan with which a client reads ranges of data blocks from the blocks in `available`, rebuilding the others.
pub fn read(
    code: &SharedCode,
    stripe: &StripeRecord,
    available: &[u8],
    ranges: &[Range],
    reader: Party,
    way: &Way<'_>,
    run: Run,
) -> Result<Planned> {
    let code = &way.known.shortened(code, stripe.dimension());
    let all = sub_blocks(code);
    let wants = ranges.iter().filter(|range| !range.bytes.is_empty()).map(|range| Want {
        kind: WantKind::Output,
        party: reader,
        index: range.index,
        sub_blocks: all.clone(),
        span: positions(&stripe.layout, range.bytes),
    });
    let job = Job { holds: holds(stripe, available), wants: wants.collect(), ..Job::default() };
    let request = way.request(code, stripe, &job, &[], run);
    // For blocks that are available, all schemes give the same plan.
    let is_there = rebuilt(stripe, available, ranges).is_empty();
    let scheme = if is_there { simplest(Kind::Read)?.name() } else { &way.options.scheme };
    let (plan, considered) = way.choose(&request, scheme)?;
    Ok(Planned { considered, ..proved(plan, job, code, (way.network, way.known))? })
}

/// A plan that rebuilds lost blocks at new homes.
pub fn rebuild(
    code: &SharedCode,
    stripe: &StripeRecord,
    available: &[u8],
    targets: &[Target],
    way: &Way<'_>,
    run: Run,
) -> Result<Planned> {
    let code = &way.known.shortened(code, stripe.dimension());
    let all = sub_blocks(code);
    let want = |target: &Target, span: Span| Want {
        kind: WantKind::Store,
        party: Party::Node(target.node),
        index: target.block.index,
        sub_blocks: all.clone(),
        span,
    };
    let wants = targets.iter().flat_map(|target| target.missing.iter().map(|span| want(target, *span)));
    let job = Job { holds: holds(stripe, available), wants: wants.collect(), ..Job::default() };
    let stores: Vec<(Party, BlockId)> = targets.iter().map(|target| (Party::Node(target.node), target.block)).collect();
    let request = way.request(code, stripe, &job, &stores, run);
    let (plan, considered) = way.choose(&request, &way.options.scheme)?;
    Ok(Planned { considered, ..proved(plan, job, code, (way.network, way.known))? })
}

/// The bytes that the plan delivers for a wanted range: whole pages of a block that is read; whole checksum units of
/// one that is rebuilt, so that it can be checked; and never beyond the block's end.
pub fn widened(stripe: &StripeLayout, range: Range, rebuilt: bool) -> Range {
    let len = stripe.block_len(range.index.into());
    // With several sub-blocks, a range of bytes is a range of positions only if it consists of whole cells.
    let unit = if stripe.layout.alpha > 1 { stripe.layout.cell_len } else { PAGE_LEN };
    let unit = if rebuilt { lcm(unit, CHECKSUM_UNIT_LEN) } else { unit };
    let (start, end) = (range.bytes.start.min(len), range.bytes.end.min(len));
    let bytes = match start < end {
        true => Span::new(start / unit * unit, end.div_ceil(unit).saturating_mul(unit).min(len)),
        false => Span::new(start, start),
    };
    Range { index: range.index, bytes }
}

/// The blocks that must be rebuilt, at least in part, to read these ranges.
pub fn rebuilt(stripe: &StripeRecord, available: &[u8], ranges: &[Range]) -> BTreeSet<u8> {
    let is_rebuilt = |range: &&Range| {
        let read = positions(&stripe.layout, widened(&stripe.layout, **range, false).bytes);
        !available.contains(&range.index) || holes(stripe, range.index).iter().any(|hole| !hole.intersect(read).is_empty())
    };
    ranges.iter().filter(is_rebuilt).map(|range| range.index).collect()
}

/// The positions of ranges of blocks.
pub fn wanted(stripe: &StripeRecord, ranges: &[Range]) -> Vec<(u8, Span)> {
    ranges.iter().map(|range| (range.index, positions(&stripe.layout, range.bytes))).collect()
}

/// The blocks that are absent at the first positions where the wanted data cannot be recovered from the available
/// blocks. `None` if all of it can be recovered.
pub fn unrecoverable(code: &SharedCode, stripe: &StripeRecord, available: &[u8], wanted: &[(u8, Span)]) -> Option<Vec<u8>> {
    let code = &shortened(code, stripe.dimension());
    let holes: BTreeMap<u8, Vec<Span>> = available.iter().map(|index| (*index, holes(stripe, *index))).collect();
    let spans = wanted.iter().map(|(_, span)| span).chain(holes.values().flatten());
    let edges: BTreeSet<u64> = spans.filter(|span| !span.is_empty()).flat_map(|span| [span.start, span.end]).collect();
    let meets = |span: &Span, piece: Span| !span.intersect(piece).is_empty();
    let lacking_at = |piece: Span| {
        let whole = |(_, holes): &(&u8, &Vec<Span>)| !holes.iter().any(|hole| meets(hole, piece));
        let available: Vec<u8> = holes.iter().filter(whole).map(|(index, _)| *index).collect();
        let of = |index: u8| sub_blocks(code).into_iter().map(move |sub_block| SubBlock { index, sub_block });
        let here = wanted.iter().filter(|(index, span)| meets(span, piece) && !available.contains(index));
        let here: BTreeSet<u8> = here.map(|(index, _)| *index).collect();
        let ask = Ask { wanted: here.iter().copied().flat_map(of).collect(), available, read_anyway: Vec::new() };
        let is_had = here.is_empty() || code.recipes(&ask).is_ok();
        let absent = stripe.blocks.keys().copied().filter(|index| !ask.available.contains(index));
        (!is_had).then(|| absent.collect())
    };
    let edges: Vec<u64> = edges.into_iter().collect();
    edges.windows(2).find_map(|pair| lacking_at(Span::new(pair[0], pair[1])))
}

/// Why blocks are absent: lost, corrupt in these ranges, or another reason.
pub fn why_absent(
    stripe: &StripeRecord,
    absent: &[u8],
    lost: &[(u8, &'static str)],
    otherwise: &'static str,
) -> Vec<(u8, String)> {
    let why = |index: &u8| match lost.iter().find(|(lost, _)| lost == index) {
        Some((_, why)) => (*why).to_owned(),
        None if stripe.corrupt_bytes(*index).is_empty() => otherwise.to_owned(),
        None => {
            let ranges = stripe.corrupt_bytes(*index).iter().map(|bytes| format!("{}..{}", bytes.start, bytes.end));
            format!("corrupt at bytes {}", ranges.collect::<Vec<_>>().join(" and "))
        }
    };
    absent.iter().map(|index| (*index, why(index))).collect()
}

/// A stripe's blocks by whether they can be read.
pub struct Readable {
    /// Blocks without known problems.
    pub good: Vec<u8>,
    /// Blocks that may be readable; the longest-suspect nodes come first.
    pub suspect: Vec<u8>,
    /// Blocks that cannot be read, and why.
    pub lost: Vec<(u8, &'static str)>,
}

/// Sorts a stripe's blocks by whether they can be read.
pub fn readable(stripe: &StripeRecord, view: &View) -> Readable {
    let mut readable = Readable { good: Vec::new(), suspect: Vec::new(), lost: Vec::new() };
    for index in stripe.blocks.keys().copied() {
        let suspect = stripe.block_id(index).is_some_and(|block| view.is_suspect_block(block));
        match view.standing(stripe, index) {
            Standing::Lost(why) => readable.lost.push((index, why)),
            Standing::Suspect => readable.suspect.push(index),
            Standing::Good if suspect => readable.suspect.push(index),
            Standing::Good => readable.good.push(index),
        }
    }
    let node = |index: &u8| stripe.home_of(*index).and_then(|home| view.node(home.node));
    readable.suspect.sort_by_key(|index| node(index).map(|node| node.suspect_for));
    readable
}

/// The error that names the lost blocks and why, and the code's tolerance.
pub fn too_many_lost(code: &SharedCode, stripe: &StripeRecord, lost: &[(u8, String)], view: &View) -> Error {
    let place = |(index, why): &(u8, String)| {
        let node = stripe.home_of(*index).map(|home| home.node);
        let name = node.and_then(|node| view.node(node)).map_or("", |node| &*node.name);
        let block = stripe.block_id(*index).map(|id| id.to_string()).unwrap_or_default();
        format!("block {index} ({block} on {name}: {why})")
    };
    let lost: Vec<String> = lost.iter().map(place).collect();
    let (spec, tolerance, count) = (code.spec(), code.tolerance(), lost.len());
    Error::unavailable(format!(
        "stripe {} has lost {count} blocks, but {spec} tolerates the loss of {tolerance}: {}",
        stripe.number,
        lost.join(", ")
    ))
}

/// The order of helpers for a requestor in `rack`. Nodes of its rack are chosen first and come last in the chain, next
/// to the requestor. The others are grouped by rack, so that a chain crosses racks as seldom as possible.
pub fn preference(stripe: &StripeRecord, available: &[u8], view: &View, k: usize, rack: Option<&str>) -> Vec<Party> {
    let nodes = available.iter().filter_map(|index| Some(stripe.home_of(*index)?.node));
    let mut helpers: Vec<NodeId> = nodes.filter(|node| view.node(*node).is_some()).collect();
    helpers.sort_unstable_by_key(|node| nearness(*node, view, rack));
    in_chain(helpers, view, k, rack)
}

/// The first k selected nodes, in the chain order of [`preference`]; then the others.
pub fn in_chain(mut selected: Vec<NodeId>, view: &View, k: usize, rack: Option<&str>) -> Vec<Party> {
    let rest = selected.split_off(k.min(selected.len()));
    selected.sort_unstable_by_key(|node| std::cmp::Reverse(nearness(*node, view, rack)));
    selected.into_iter().chain(rest).map(Party::Node).collect()
}

/// Lower is nearer.
fn nearness<'a>(node: NodeId, view: &'a View, rack: Option<&str>) -> (bool, &'a str, NodeId) {
    let own = view.node(node).map_or("", |node| &*node.rack);
    (Some(own) != rack, own, node)
}

/// All positions of a byte range of a block, as aligned by [`widened`].
fn positions(stripe: &StripeLayout, bytes: Span) -> Span {
    let coded = stripe.coded_span();
    if stripe.layout.alpha == 1 {
        let end = bytes.end.div_ceil(PAGE_LEN) * PAGE_LEN;
        return Span::new(bytes.start, end.min(coded.end));
    }
    let (cell, sub) = (stripe.layout.cell_len, stripe.layout.sub_len());
    Span::new(bytes.start / cell * sub, bytes.end.div_ceil(cell) * sub).intersect(coded)
}

fn proved(plan: Plan, job: Job, code: &SharedCode, of: (&Network, &Known)) -> Result<Planned> {
    verified(plan, job, code, of).map_err(|refusal| wrong(&refusal))
}

/// The plan comes from our own schemes, so a refusal is a bug in one of them; report it instead of running the plan.
fn wrong(refusal: &Refusal) -> Error {
    Error::fatal(format!("a scheme made a wrong plan, which was not run: {refusal}"))
}

fn verified(plan: Plan, job: Job, code: &SharedCode, (network, known): (&Network, &Known)) -> Result<Planned, Refusal> {
    known.proofs.verify(&plan, code_view(code.as_ref(), &code.spec()), &job)?;
    let lines = weft_plan::moved(&plan, network)?;
    Ok(Planned { plan, job, considered: Vec::new(), lines })
}

fn homes(stripe: &StripeRecord) -> impl Iterator<Item = (Party, BlockId)> + '_ {
    let home = |(index, placed): (u8, &weft_types::PlacedBlock)| (Party::Node(placed.home.node), stripe.id_of(index, placed));
    stripe.firsts().map(home)
}

fn holds(stripe: &StripeRecord, available: &[u8]) -> Vec<Hold> {
    let whole = stripe.layout.coded_span();
    let held = homes(stripe).filter(|(_, block)| available.contains(&block.index));
    let spans = |(party, block): (Party, BlockId)| {
        let spans = whole.subtract(&holes(stripe, block.index));
        spans.into_iter().map(move |span| Hold { party, block, span })
    };
    held.flat_map(spans).collect()
}

/// The positions at which a block is corrupt: whole pages of its sub-blocks, the unit of checking.
fn holes(stripe: &StripeRecord, index: u8) -> Vec<Span> {
    holes_of(stripe, stripe.corrupt_bytes(index))
}

/// The same, for these corrupt bytes of a block.
pub(crate) fn holes_of(stripe: &StripeRecord, corrupt: &[Span]) -> Vec<Span> {
    let coded = stripe.layout.coded_span();
    let pages = |span: Span| Span::new(span.start / PAGE_LEN * PAGE_LEN, span.end.next_multiple_of(PAGE_LEN)).intersect(coded);
    let corrupt = corrupt.iter().flat_map(|bytes| stripe.layout.layout.positions_of(*bytes));
    Span::normalize(corrupt.map(pages).collect())
}

fn sub_blocks(code: &SharedCode) -> Vec<u16> {
    (0..code.alpha() as u16).collect()
}

fn lcm(a: u64, b: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (a / gcd(a, b).max(1)).saturating_mul(b)
}

#[cfg(test)]
mod tests;
