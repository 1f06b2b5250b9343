//! The way of the deltas of updates in place: over which tree of nodes they travel from the node of a data block to those
//! that patch a block, and from which length on. Updates are not asked about one by one, so one way serves many of them.
//!
//! The plans are for a stripe whose blocks consist of the bytes of one update: that shows how long it takes, wherever in
//! the blocks these bytes are.

use super::{Planned, sub_blocks, verified, wrong};
use crate::{
    known::Known,
    options::{UpdateWay, slice_overhead_s},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_codes::SharedCode;
use weft_plan::{Considered, Job, Network, Plan, Rule};
use weft_schemes::{
    Kind, Named as _, Request, Run, Scheme, answering, by_name, choose_of,
    update::{Pipeline, Star, overwrite_at},
    update_slice_size,
};
use weft_types::{
    BlockId, Error, FRAME_PAYLOAD_BYTES_MAX, Layout, NodeId, Party, Reaction, Result, StripeRecord, UPDATE_BYTES_MAX,
    UPDATE_BYTES_USUAL,
};

/// How deltas travel without a route: the node with the change sends them to all nodes at the same time.
const STRAIGHT: Star = Star { concurrent: true };
/// The most bytes of a frame.
const FRAME_BYTES: u64 = FRAME_PAYLOAD_BYTES_MAX as u64;
/// The slices for which the path is chosen that then determines their length.
const FIRST_SLICE: u64 = 64 << 10;
/// What a delta takes for each further node on its way besides its bytes, seconds. Links' rates do not tell it.
const HOP_S: f64 = 1e-3;
/// A way with several hops is taken if it needs at most this share of the time of going straight.
const WORTH: f64 = 0.95;
/// Shorter updates always go straight, unless the scheme is named: their time is that of the messages.
const FROM_BYTES_MIN: u64 = 8 << 10;

/// How the deltas of a stripe's updates may travel.
#[derive(Debug, Clone, Copy)]
pub struct Updating<'a> {
    /// The stripe.
    pub stripe: &'a StripeRecord,
    /// Its blocks that take part.
    pub members: &'a [BlockId],
    /// What the client chose.
    pub way: &'a UpdateWay,
    /// The known network.
    pub network: &'a Network,
    /// The caches.
    pub known: &'a Known,
    /// The frame of the plans.
    pub run: Run,
}

/// The way of the deltas of updates that a data block's node leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateRoute {
    /// The data block's index.
    pub index: u8,
    /// The scheme's name.
    pub scheme: String,
    /// The sender and the receiver of each hop, as blocks, in the order in which each node sends.
    pub hops: Vec<(BlockId, BlockId)>,
    /// Whether a node sends over one link at a time, and only when it has received everything.
    pub in_turn: bool,
    /// Bytes that are sent at once.
    pub slice_len: u64,
    /// It is for updates from this length on; 0: for all.
    pub from_bytes: u64,
}

/// How an update of a certain length travels, and how else it could.
#[derive(Debug, Clone)]
pub struct Weighed {
    /// Its plan, with all plans that were considered; of these, the chosen one is the first.
    pub planned: Planned,
    /// The hops of the plan. Without a route for such updates, they go straight from one node to all.
    pub hops: Vec<(BlockId, BlockId)>,
    /// Whether nodes send in turn.
    pub in_turn: bool,
    /// Bytes that are sent at once.
    pub slice_len: u64,
    /// The route for updates of this block, which may be for longer ones.
    pub route: Option<UpdateRoute>,
}

/// All that determines the routes of a stripe's updates, but for the numbers of its blocks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RouteKey {
    code: String,
    dimension: usize,
    /// The members' indexes, copies and nodes.
    members: Vec<(u8, u8, NodeId)>,
    way: UpdateWay,
    /// The rates between their nodes, their racks and the racks' lines, roughly.
    rates: Vec<u64>,
    racks: Vec<Option<String>>,
}

/// A route; blocks are places in the list of members.
#[derive(Debug, Clone)]
pub(crate) struct Drawn {
    index: u8,
    scheme: &'static str,
    hops: Vec<(usize, usize)>,
    in_turn: bool,
    slice_len: u64,
    from_bytes: u64,
}

/// A way that was planned for an update of a certain length. Its plan is not proved yet.
struct Made {
    scheme: &'static str,
    plan: Plan,
    job: Job,
    considered: Considered,
    hops: Vec<(usize, usize)>,
    in_turn: bool,
    slice_len: u64,
}

/// A stripe's nodes and the code, as the plans need them.
struct Stage<'a> {
    updating: &'a Updating<'a>,
    code: SharedCode,
    holders: Vec<(Party, BlockId)>,
}

impl Updating<'_> {
    /// The routes for updates of each data block; none where going straight is best, where only one node patches a block, or where planning
    /// fails: updates need no routes. `failed` gets the block and the error of each failure, once for each network.
    /// Planning can take seconds: call it outside of async threads. It ends early when `is_late`; then the blocks whose turn has not come have none.
    pub fn routes(&self, code: &SharedCode, is_late: impl Fn() -> bool, mut failed: impl FnMut(u8, &Error)) -> Vec<UpdateRoute> {
        let Some(stage) = Stage::of(self, code) else { return Vec::new() };
        let data = self.members.iter().filter(|block| block.copy == 0 && usize::from(block.index) < stage.code.k());
        let mut drawn: Vec<Drawn> = Vec::new();
        for block in data.take_while(|_| !is_late()) {
            match stage.draw(block.index) {
                Ok(route) => drawn.extend(route),
                // Plans of this code are too large to be proved, and it takes long to find that out.
                Err(error) if error.reaction == Reaction::Unavailable => break,
                Err(error) => failed(block.index, &error),
            }
        }
        let (drawn, key): (Arc<[Drawn]>, _) = (drawn.into(), stage.key());
        let weight = drawn.iter().map(|drawn| drawn.hops.len() + 1).sum::<usize>() + key.rates.len();
        self.known.routes.put(key, Arc::clone(&drawn), weight);
        drawn.iter().map(|drawn| stage.named(drawn)).collect()
    }

    /// The routes, if they were planned for this network.
    pub fn known_routes(&self, code: &SharedCode) -> Option<Vec<UpdateRoute>> {
        // Without homes that are known, there are none.
        let Some(stage) = Stage::of(self, code) else { return Some(Vec::new()) };
        let drawn = self.known.routes.get(&stage.key(), |_| true)?;
        Some(drawn.iter().map(|drawn| stage.named(drawn)).collect())
    }
}

/// How an update of so many bytes of a data block would travel. It can take seconds: call it outside of async threads.
pub fn weigh_update(code: &SharedCode, updating: &Updating<'_>, index: u8, bytes: u64) -> Result<Weighed> {
    let none = || Error::retry("some of the stripe's nodes are not known, or hold several of its blocks");
    let stage = Stage::of(updating, code).ok_or_else(none)?;
    if usize::from(index) >= stage.code.k() {
        return Err(Error::invalid(format!("{} has no data block {index}", stage.code.spec())));
    }
    if !updating.members.iter().any(|block| (block.index, block.copy) == (index, 0)) {
        return Err(Error::retry(format!("data block {index} is lost, and not rebuilt yet")));
    }
    let bytes = bytes.clamp(1, UPDATE_BYTES_MAX);
    let drawn = stage.draw(index)?;
    let straight = stage.made(index, Scheme::Update(&STRAIGHT), bytes, FIRST_SLICE)?;
    let mut all: Vec<Made> = Vec::new();
    let chosen = match &drawn {
        Some(drawn) if drawn.from_bytes <= bytes => {
            let chosen = stage.with_scheme(drawn.scheme, |scheme| stage.made(index, scheme, bytes, drawn.slice_len))??;
            if updating.way.is_left_open() {
                all.push(straight);
            }
            chosen
        }
        _ => straight,
    };
    if updating.way.is_left_open() {
        for scheme in answering(Kind::Update).filter(|it| ![chosen.scheme, STRAIGHT.name()].contains(&it.name())) {
            all.push(stage.fitted(index, scheme, bytes)?);
        }
        all.sort_by(|a, b| a.considered.seconds.total_cmp(&b.considered.seconds));
    }
    let considered = [&chosen].into_iter().chain(&all).map(|made| made.considered.clone()).collect();
    let planned = Planned { considered, ..stage.proved(&chosen)? };
    let Made { hops, in_turn, slice_len, .. } = chosen;
    let route = drawn.as_ref().map(|drawn| stage.named(drawn));
    Ok(Weighed { planned, hops: stage.blocks(&hops), in_turn, slice_len, route })
}

impl<'a> Stage<'a> {
    /// `None` if a member's home is not known, or if a node has several: then its way to itself would need a rule.
    fn of(updating: &'a Updating<'a>, code: &SharedCode) -> Option<Self> {
        let stripe = updating.stripe;
        let holder = |block: &BlockId| {
            let placed = stripe.find(block.index, block.copy).filter(|placed| placed.generation == block.generation)?;
            Some((Party::Node(placed.home.node), *block))
        };
        let holders: Vec<(Party, BlockId)> = updating.members.iter().map(holder).collect::<Option<_>>()?;
        let parties: BTreeSet<Party> = holders.iter().map(|(party, _)| *party).collect();
        let code = updating.known.shortened(code, stripe.dimension());
        (parties.len() == holders.len()).then_some(Self { updating, code, holders })
    }

    fn key(&self) -> RouteKey {
        let Updating { network, way, .. } = *self.updating;
        let parties: Vec<Party> = self.holders.iter().map(|(party, _)| *party).collect();
        let pairs = parties.iter().flat_map(|from| parties.iter().map(move |to| (*from, *to)));
        let mut rates: Vec<f64> = pairs.filter(|(from, to)| from != to).map(|(from, to)| network.between(from, to)).collect();
        rates.extend(parties.iter().flat_map(|party| [network.up(*party), network.down(*party)]));
        rates.push(network.slice_overhead_s);
        let racks: Vec<Option<String>> = parties.iter().map(|party| network.racks.get(party).cloned()).collect();
        let line = |known: &BTreeMap<String, f64>, rack: &String| known.get(rack).copied().unwrap_or(f64::INFINITY);
        for rack in racks.iter().flatten() {
            rates.extend([line(&network.rack_up_bytes_per_s, rack), line(&network.rack_down_bytes_per_s, rack)]);
        }
        let node = |party: &Party| if let Party::Node(node) = party { *node } else { NodeId(0) };
        RouteKey {
            code: self.code.spec(),
            dimension: self.code.dimension(),
            members: self.holders.iter().map(|(party, block)| (block.index, block.copy, node(party))).collect(),
            way: way.clone(),
            rates: rates.into_iter().map(rough).collect(),
            racks,
        }
    }

    /// The route for updates of a data block, if there is one.
    fn draw(&self, index: u8) -> Result<Option<Drawn>> {
        let way = self.updating.way;
        let straight = |bytes: u64| self.made(index, Scheme::Update(&STRAIGHT), bytes, FIRST_SLICE);
        if way.scheme == STRAIGHT.name() || straight(UPDATE_BYTES_USUAL)?.hops.len() < 2 {
            return Ok(None);
        }
        let drawn = |made: Made, from_bytes: u64| -> Result<Option<Drawn>> {
            self.proved(&made)?;
            let Made { scheme, hops, in_turn, slice_len, .. } = made;
            Ok(Some(Drawn { index, scheme, hops, in_turn, slice_len, from_bytes }))
        };
        if !way.is_left_open() {
            let made = self.with_scheme(&way.scheme, |scheme| self.fitted(index, scheme, UPDATE_BYTES_USUAL))??;
            return drawn(made, 0);
        }
        for bytes in [UPDATE_BYTES_USUAL, UPDATE_BYTES_MAX] {
            let others = answering(Kind::Update).filter(|scheme| scheme.name() != STRAIGHT.name());
            let mut best: Option<(Scheme<'_>, Made)> = None;
            for scheme in others {
                let made = self.fitted(index, scheme, bytes)?;
                if best.as_ref().is_none_or(|(_, best)| made.considered.seconds < best.considered.seconds) {
                    best = Some((scheme, made));
                }
            }
            let Some((scheme, made)) = best else { return Ok(None) };
            if made.considered.seconds > WORTH * straight(bytes)?.considered.seconds {
                continue;
            }
            // Longer updates gain more: it is worth it from some length on.
            let (mut least, mut most) = (FROM_BYTES_MIN, bytes);
            while least < most {
                let middle = least << ((most / least).ilog2() / 2);
                match self.made(index, scheme, middle, made.slice_len)?.considered.seconds
                    <= WORTH * straight(middle)?.considered.seconds
                {
                    true => most = middle,
                    false => least = middle * 2,
                }
            }
            return drawn(made, most);
        }
        Ok(None)
    }

    /// The named scheme; a pipeline takes the path that the client chose.
    fn with_scheme<T>(&self, name: &str, then: impl FnOnce(Scheme<'_>) -> T) -> Result<T> {
        let pipeline = Pipeline { path: Some(self.updating.way.path) };
        Ok(if name == pipeline.name() { then(Scheme::Update(&pipeline)) } else { then(by_name(Kind::Update, name)?) })
    }

    /// The plan of a scheme with slices that suit its path, unless their length is given.
    fn fitted(&self, index: u8, scheme: Scheme<'_>, bytes: u64) -> Result<Made> {
        let Updating { network, way, .. } = *self.updating;
        if let Some(slice_len) = way.slice_len {
            return self.made(index, scheme, bytes, slice_len);
        }
        let first = self.made(index, scheme, bytes, FIRST_SLICE)?;
        let Some(path) = first.considered.paths.first() else { return Ok(first) };
        let links: Vec<f64> = path.parties.windows(2).map(|pair| network.between(pair[0], pair[1])).collect();
        let again = self.made(index, scheme, bytes, update_slice_size(bytes, &links, slice_overhead_s(network)))?;
        Ok(if again.considered.seconds < first.considered.seconds { again } else { first })
    }

    /// The plan of a scheme for an update of so many bytes of a data block.
    fn made(&self, index: u8, scheme: Scheme<'_>, bytes: u64, slice_len: u64) -> Result<Made> {
        let Updating { network, run, .. } = *self.updating;
        let (code, alpha) = (&self.code, self.code.alpha() as u64);
        let len = bytes.max(1).next_multiple_of(alpha);
        // A slice is all bytes, or travels in one frame.
        let slice_len = if slice_len < len { slice_len.min(FRAME_BYTES) } else { slice_len };
        let layout = Layout::new(len, len, alpha as u32)?;
        let changed: Vec<(u8, u16)> = sub_blocks(code).into_iter().map(|sub_block| (index, sub_block)).collect();
        let job = overwrite_at(code.as_ref(), layout, &changed, &self.holders);
        let slice_positions = (slice_len / alpha).clamp(1, layout.positions());
        let run = Run { slice_len: slice_positions, ..run }.of_sub_blocks(alpha as u32);
        let stripe = layout.full_stripe(code.k() as u32, (code.n() - code.k()) as u32);
        let request = Request { network, ..Request::new(code.as_ref(), stripe, &job, run) };
        let (plan, considered) = choose_of(&request, [scheme])?;
        let (hops, in_turn) = (self.hops(&plan)?, plan.shape.in_turn);
        let none = || Error::fatal("internal error: a plan was not weighed");
        let mut considered = considered.into_iter().next().ok_or_else(none)?;
        considered.seconds += HOP_S * f64::from(steps(&hops, in_turn).saturating_sub(1));
        // Nodes that send in turn send everything at once, but not in one frame.
        let slice_len = if in_turn { self.updating.way.slice_len.unwrap_or(FRAME_BYTES).min(FRAME_BYTES) } else { slice_len };
        Ok(Made { scheme: scheme.name(), plan, job, considered, hops, in_turn, slice_len })
    }

    /// Proves a plan.
    fn proved(&self, made: &Made) -> Result<Planned> {
        let Updating { network, known, .. } = *self.updating;
        verified(made.plan.clone(), made.job.clone(), &self.code, (network, known)).map_err(|refusal| match refusal.rule {
            Rule::Limits => Error::unavailable(format!("no update of {} can be proved: {refusal}", self.code.spec())),
            _ => wrong(&refusal),
        })
    }

    /// The hops of a plan, as places of members.
    fn hops(&self, plan: &Plan) -> Result<Vec<(usize, usize)>> {
        let wrong = || Error::fatal("internal error: the plan of an update is not one tree of nodes");
        let [lane] = &plan.shape.lanes[..] else { return Err(wrong()) };
        let place = |stage: u16| {
            let vertex = lane.stages.get(usize::from(stage))?.vertex;
            let party = plan.binding.parties.get(usize::from(vertex))?;
            self.holders.iter().position(|(holder, _)| holder == party)
        };
        lane.links.iter().map(|link| place(link.from).zip(place(link.to)).ok_or_else(wrong)).collect()
    }

    fn blocks(&self, hops: &[(usize, usize)]) -> Vec<(BlockId, BlockId)> {
        hops.iter().filter_map(|(from, to)| Some((self.holders.get(*from)?.1, self.holders.get(*to)?.1))).collect()
    }

    fn named(&self, drawn: &Drawn) -> UpdateRoute {
        let Drawn { index, scheme, ref hops, in_turn, slice_len, from_bytes } = *drawn;
        UpdateRoute { index, scheme: scheme.to_owned(), hops: self.blocks(hops), in_turn, slice_len, from_bytes }
    }
}

/// A rate with two significant digits, as bits. Measured rates always change a little, and the routes stay as good.
fn rough(rate: f64) -> u64 {
    if !rate.is_normal() {
        return rate.to_bits();
    }
    let unit = 10f64.powi(rate.abs().log10().floor() as i32 - 1);
    ((rate / unit).round() * unit).to_bits()
}

/// How many transfers follow one another until the last node has the first byte.
fn steps(hops: &[(usize, usize)], in_turn: bool) -> u32 {
    // When each node can send next.
    let mut free: BTreeMap<usize, u32> = BTreeMap::new();
    for (from, to) in hops {
        let sent = free.entry(*from).or_default();
        let arrives = *sent + 1;
        if in_turn {
            *sent = arrives;
        }
        free.insert(*to, arrives);
    }
    free.into_values().max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
