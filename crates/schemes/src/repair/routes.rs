//! Which helpers, in which order, over how many paths: applies path selection to the network and job of a region.

use super::Walk;
use crate::{
    Paths, Request, Select,
    path::{self, Route, Weights},
    random,
    region::{Delivery, Region},
};
use std::{borrow::Cow, collections::BTreeMap};
use weft_codes::SubBlock;
use weft_plan::{ChosenPath, Network};
use weft_types::{Party, Span};

/// Routes for earlier regions, schemes and numbers of paths on the same network, most of which are identical.
pub(crate) type Known = BTreeMap<Question, Option<Route>>;

/// Everything that determines a route, besides the network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Question {
    is_cycle: bool,
    /// The possible helpers, the preferred first, and how many of them are needed.
    parties: Vec<Party>,
    helpers: usize,
    /// What share of the result each requestor gets, as bits of the number.
    ends: Vec<(Party, u64)>,
    own_end: Option<Party>,
    /// The existing paths.
    taken: Vec<Vec<Party>>,
}

/// The selection for one region; see [`Self::select`].
pub(super) struct Routes<'a> {
    request: &'a Request<'a>,
    walk: Walk,
    region: &'a Region,
    /// What share of the result each requestor gets.
    targets: Vec<(Party, f64)>,
    /// A requestor that helps: it is the end of every chain.
    own_end: Option<Party>,
    /// The possible helpers that want nothing themselves, the preferred first.
    candidates: Vec<Party>,
    /// How many of them a code needs of which any k blocks suffice.
    helpers: usize,
    /// What earlier paths leave of the network.
    network: Cow<'a, Network>,
    uses: Uses,
    found: Vec<Found>,
    /// The last selected route, and its parties.
    selected: Option<(Vec<Party>, Route)>,
}

/// The number of paths over each line.
#[derive(Debug, Default)]
struct Uses {
    up: BTreeMap<Party, f64>,
    down: BTreeMap<Party, f64>,
    rack_up: BTreeMap<String, f64>,
    rack_down: BTreeMap<String, f64>,
}

/// A selected path.
struct Found {
    /// The helpers in their order.
    order: Vec<Party>,
    exact: Option<bool>,
}

impl<'a> Routes<'a> {
    pub(super) fn new(
        request: &'a Request<'a>,
        walk: Walk,
        region: &'a Region,
        deliveries: &[&Delivery],
        wanted: &[SubBlock],
    ) -> Self {
        let mut targets: Vec<(Party, f64)> = Vec::new();
        for delivery in deliveries {
            let share = delivery.sub_blocks.len() as f64 / wanted.len().max(1) as f64;
            match targets.iter_mut().find(|(party, _)| *party == delivery.party) {
                Some((_, shares)) => *shares += share,
                None => targets.push((delivery.party, share)),
            }
        }
        let is_reader = |party: &Party| targets.iter().any(|(reader, _)| reader == party);
        let mut candidates: Vec<Party> = Vec::with_capacity(region.holders.len());
        for (_, party) in region.holders.iter().filter(|(_, party)| !is_reader(party)) {
            if !candidates.contains(party) {
                candidates.push(*party);
            }
        }
        let local = region.available().into_iter().filter(|index| region.holders.iter().any(|(i, p)| i == index && is_reader(p)));
        let helpers = request.code.dimension().saturating_sub(local.count()).min(candidates.len());
        // As in a chain: the first requestor is at the very end, so the one before it sends to the last.
        let own_end = targets.iter().rev().map(|(party, _)| *party).find(|party| region.holders.iter().any(|(_, p)| p == party));
        let (network, uses, found) = (Cow::Borrowed(request.network), Uses::default(), Vec::new());
        Self { request, walk, region, targets, own_end, candidates, helpers, network, uses, found, selected: None }
    }

    /// The region with its holders in the order in which a code must take them: for a path in addition to the earlier
    /// ones.
    pub(super) fn select(&mut self, known: &mut Known) -> Region {
        let order = match self.request.select {
            Select::AsPreferred | Select::Ordered => self.candidates.clone(),
            Select::Random { seed } => random::shuffled(&self.candidates, seed),
            Select::Best => self.best(known),
        };
        self.reordered(self.region, &order)
    }

    /// The region again, with a recipe's helpers in their final order. `None` if earlier paths leave no links for
    /// another one.
    pub(super) fn order(&mut self, region: Region, used: &[Party], known: &mut Known) -> Option<Region> {
        let mut helpers: Vec<Party> = Vec::new();
        for (_, party) in region.holders.iter().filter(|(_, party)| used.contains(party) && self.candidates.contains(party)) {
            if !helpers.contains(party) {
                helpers.push(*party);
            }
        }
        let is_ordered = matches!(self.request.select, Select::Best | Select::Ordered) && self.walk != Walk::Hub;
        let (mut order, mut exact) = (helpers.clone(), None);
        if is_ordered && !helpers.is_empty() {
            let selected = self.selected.take().filter(|(selected, _)| selected.iter().all(|party| helpers.contains(party)));
            let is_settled = |(parties, route): &(Vec<Party>, Route)| parties.len() == helpers.len() && route.exact;
            let is_best = selected.as_ref().is_none_or(|(_, route)| route.exact);
            let route = match selected.filter(is_settled) {
                Some((parties, route)) => Some((parties, route)),
                None => self.route(&helpers, helpers.len(), known).map(|route| (chosen(&helpers, &route), route)),
            };
            if let Some((parties, route)) = route {
                if route.weight.is_infinite() && !self.found.is_empty() {
                    return None;
                }
                // A code may have chosen other helpers than selected: then only the order of these is known to be best.
                exact = Some(route.exact && is_best);
                order = parties;
            }
        }
        self.take(&order);
        let region = self.reordered(&region, &order);
        self.found.push(Found { order, exact });
        Some(region)
    }

    /// All candidates, those on the best path first.
    fn best(&mut self, known: &mut Known) -> Vec<Party> {
        // Prefers nodes that are on no path yet.
        self.candidates.sort_by_key(|party| self.found.iter().any(|found| found.order.contains(party)));
        let candidates = self.candidates.clone();
        if self.walk == Walk::Hub {
            let mut all: Vec<(f64, Party)> = candidates.into_iter().map(|party| (self.end(party, 1.0), party)).collect();
            all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
            return all.into_iter().map(|(_, party)| party).collect();
        }
        let route = self.route(&candidates, self.helpers, known);
        self.selected = route.map(|route| (chosen(&candidates, &route), route));
        let mut first = self.selected.as_ref().map(|(parties, _)| parties.clone()).unwrap_or_default();
        let rest = candidates.into_iter().filter(|party| !first.contains(party)).collect::<Vec<_>>();
        first.extend(rest);
        first
    }

    /// The best route through this many of these parties, on what earlier paths leave of the network.
    fn route(&self, parties: &[Party], helpers: usize, known: &mut Known) -> Option<Route> {
        let is_cycle = self.walk == Walk::Cycle && helpers > 2;
        let question = Question {
            is_cycle,
            parties: parties.to_vec(),
            helpers,
            ends: self.targets.iter().map(|(party, share)| (*party, share.to_bits())).collect(),
            own_end: self.own_end,
            taken: self.found.iter().map(|found| found.order.clone()).collect(),
        };
        if let Some(route) = known.get(&question) {
            return route.clone();
        }
        // In a cycle, each chain brings its part to the requestor.
        let weights = self.weigh(parties, if is_cycle { (helpers - 1) as f64 } else { 1.0 });
        let route = if is_cycle { path::cycle(&weights, helpers) } else { path::path(&weights, helpers) };
        known.insert(question, route.clone());
        route
    }

    /// The weights of the links between these parties for one byte of the sum, if each chain brings one of `parts`
    /// parts.
    fn weigh(&self, parties: &[Party], parts: f64) -> Weights {
        let mut weights = Weights::new(parties.len());
        for (at, from) in parties.iter().enumerate() {
            for (other, to) in parties.iter().enumerate().filter(|(other, _)| *other != at) {
                weights.set_link(at, other, self.network.between(*from, *to).recip());
            }
            weights.set_end(at, self.end(*from, parts));
        }
        let last = self.own_end.or_else(|| self.targets.first().map(|(party, _)| *party));
        let stands = parties.iter().copied().map(Some).chain([last]);
        let racks: Vec<Option<&String>> = stands.map(|party| self.network.racks.get(&party?)).collect();
        weights.set_racks(&racks);
        weights
    }

    /// The time in which a helper gives the requestors their shares, if it brings one of `parts` parts. The requestors'
    /// downlinks carry everything, from all helpers; so does the helper's uplink, because it forwards what it does not
    /// deliver.
    fn end(&self, from: Party, parts: f64) -> f64 {
        let network = &self.network;
        let one = |to: Party, share: f64| (share / parts / network.between(from, to)).max(share / network.down(to));
        if let Some(own) = self.own_end {
            return one(own, 1.0).max(network.up(from).recip());
        }
        let all: f64 = self.targets.iter().map(|(_, share)| share).sum();
        let up = (parts - 1.0 + all) / parts / network.up(from);
        self.targets.iter().map(|(to, share)| one(*to, *share)).fold(up, f64::max)
    }

    /// A holder's place in the order; parties that want something themselves come first, because their blocks need not
    /// be sent.
    fn reordered(&self, region: &Region, order: &[Party]) -> Region {
        let place = |party: &Party| match order.iter().position(|other| other == party) {
            Some(at) => 1 + at,
            None if self.candidates.contains(party) => 1 + order.len(),
            None => 0,
        };
        let mut region = region.clone();
        region.holders.sort_by_cached_key(|(_, party)| place(party));
        region
    }

    /// The links of a path, including those to the requestors.
    fn links(&self, order: &[Party]) -> Vec<(Party, Party)> {
        let mut links: Vec<(Party, Party)> = order.windows(2).map(|pair| (pair[0], pair[1])).collect();
        let ends: Vec<Party> = self.own_end.map_or_else(|| self.targets.iter().map(|(to, _)| *to).collect(), |own| vec![own]);
        match (self.walk, order.last(), order.first()) {
            (Walk::Cycle, Some(last), Some(first)) if order.len() > 2 => {
                links.push((*last, *first));
                // No chain ends at the last helper but one.
                let last_ones = order.iter().enumerate().filter(|(at, _)| at + 2 != order.len());
                links.extend(last_ones.flat_map(|(_, from)| ends.iter().map(move |to| (*from, *to))));
            }
            (_, Some(last), _) => links.extend(ends.into_iter().map(|to| (*last, to))),
            _ => {}
        }
        links
    }

    /// Reduces the lines of a path for the next one to a half, a third, and so on; its links are not available at all.
    fn take(&mut self, order: &[Party]) {
        if !matches!(self.request.paths, Paths::Count(2..)) {
            return;
        }
        let full = self.request.network;
        let mut network = self.network.as_ref().clone();
        for (from, to) in self.links(order) {
            let share = |used: &mut BTreeMap<Party, f64>, party: Party, all: f64| {
                let uses = used.entry(party).or_insert(0.0);
                *uses += 1.0;
                all / (*uses + 1.0)
            };
            network.up_bytes_per_s.insert(from, share(&mut self.uses.up, from, full.up(from)));
            network.down_bytes_per_s.insert(to, share(&mut self.uses.down, to, full.down(to)));
            let (leaves, enters) = full.crosses(from, to);
            for (rack, used, rates, left) in [
                (leaves, &mut self.uses.rack_up, &full.rack_up_bytes_per_s, &mut network.rack_up_bytes_per_s),
                (enters, &mut self.uses.rack_down, &full.rack_down_bytes_per_s, &mut network.rack_down_bytes_per_s),
            ] {
                if let Some((rack, rate)) = rack.and_then(|rack| Some((rack, rates.get(rack)?))) {
                    let uses = used.entry(rack.to_owned()).or_insert(0.0);
                    *uses += 1.0;
                    left.insert(rack.to_owned(), rate / (*uses + 1.0));
                }
            }
            network.pair_bytes_per_s.insert((from, to), 0.0);
        }
        self.network = Cow::Owned(network);
    }

    /// The rate of each path beside the others, bytes a second.
    fn rates(&self) -> Vec<f64> {
        let full = self.request.network;
        let uses = |used: &BTreeMap<Party, f64>, party: &Party| used.get(party).copied().unwrap_or(1.0);
        let line = |rack: Option<&str>, rates: &BTreeMap<String, f64>, used: &BTreeMap<String, f64>| {
            let rate = rack.and_then(|rack| Some(rates.get(rack)? / used.get(rack)?));
            rate.unwrap_or(f64::INFINITY)
        };
        let rate = |(from, to): (Party, Party)| {
            let lines = (full.up(from) / uses(&self.uses.up, &from)).min(full.down(to) / uses(&self.uses.down, &to));
            let (leaves, enters) = full.crosses(from, to);
            let out = line(leaves, &full.rack_up_bytes_per_s, &self.uses.rack_up);
            let into = line(enters, &full.rack_down_bytes_per_s, &self.uses.rack_down);
            full.between(from, to).min(lines).min(out).min(into)
        };
        self.found.iter().map(|found| self.links(&found.order).into_iter().map(rate).fold(f64::INFINITY, f64::min)).collect()
    }

    /// The part of a span for each path, in proportion to its rate: whole slices.
    pub(super) fn shares(&self, span: Span, slice_len: u64) -> Vec<Span> {
        let rates = self.rates();
        if rates.len() < 2 {
            return vec![span];
        }
        let all: f64 = rates.iter().sum();
        let even = !(all > 0.0 && all.is_finite());
        let slices = span.len().div_ceil(slice_len);
        let count = rates.len() as u64;
        let (mut start, mut sum) = (0u64, 0.0);
        let mut shares = Vec::with_capacity(rates.len());
        for (at, rate) in (0u64..).zip(&rates) {
            sum += if even { 1.0 / count as f64 } else { rate / all };
            // Each path gets at least one slice, and leaves one for each path after it.
            let end = ((slices as f64 * sum).round() as u64).clamp(start + 1, slices - (count - 1 - at));
            let end_at = if at + 1 == count { span.end } else { span.start + end * slice_len };
            shares.push(Span::new(span.start + start * slice_len, end_at));
            start = end;
        }
        shares
    }

    /// Descriptions of the paths, if the scheme uses paths.
    pub(super) fn chosen(&self) -> Vec<ChosenPath> {
        if matches!(self.walk, Walk::Hub | Walk::Tree) {
            return Vec::new();
        }
        let full = self.request.network;
        let chosen = |found: &Found| {
            let links = self.links(&found.order);
            let is_cycle = self.walk == Walk::Cycle && found.order.len() > 2;
            let quickness = |link: &(Party, Party)| {
                let rate = full.between(link.0, link.1);
                // Each end carries its part; the requestor's downlink carries all of them.
                let is_end = is_cycle && self.targets.iter().any(|(party, _)| *party == link.1);
                if is_end { (rate * (found.order.len() - 1) as f64).min(full.down(link.1)) } else { rate }
            };
            let bottleneck = links.iter().copied().min_by(|a, b| quickness(a).total_cmp(&quickness(b)))?;
            let ends = self.own_end.into_iter().chain(self.targets.iter().map(|(party, _)| *party));
            let parties = found.order.iter().copied().chain(ends.take(1)).collect();
            let bytes_per_s = Some(full.between(bottleneck.0, bottleneck.1)).filter(|rate| rate.is_finite()).unwrap_or(0.0);
            Some(ChosenPath { parties, bottleneck, bytes_per_s, exact: found.exact })
        };
        self.found.iter().filter_map(chosen).collect()
    }
}

/// The parties of a route, in its order.
fn chosen(parties: &[Party], route: &Route) -> Vec<Party> {
    route.order.iter().map(|at| parties[*at]).collect()
}
