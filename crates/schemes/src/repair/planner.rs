//! From a job to the plan of a scheme: region by region, which helpers use which recipe, and what is only read.

use super::{
    Helper, Repair, RepairScheme, Walk, diagonal,
    routes::{Known, Routes},
};
use crate::{
    Paths, Request, Run, Select,
    patterns::{self, LanesKey},
    read,
    region::{self, Delivery, Region},
    request::{Turn, Vertices},
};
use std::sync::Arc;
use weft_codes::{Ask, Recipe, SubBlock};
use weft_gf::Factored;
use weft_plan::{ChosenPath, Lane, Plan, Source};
use weft_types::{Error, Party, Result};

/// The plan for a job that stores or delivers blocks from available ones, and its paths, if they are chains or cycles.
/// The cache `known` must be for the same network.
///
/// If the plan would be too large because of the holes in blocks, the block with the most holes counts as lost, and so
/// on.
pub(crate) fn plan(request: &Request<'_>, scheme: &dyn RepairScheme, known: &mut Known) -> Result<(Plan, Vec<ChosenPath>)> {
    request.check()?;
    let paths = request.paths;
    // Blocks that are only copied have no path.
    if scheme.rebuilds() && !matches!(paths, Paths::Auto | Paths::Count(1)) {
        if scheme.walk() != Walk::Chain {
            let name = scheme.name();
            return Err(Error::invalid(format!(
                "the scheme '{name}' supports only one path: choose a chain scheme for several paths"
            )));
        }
        if !matches!(request.select, Select::Best | Select::Ordered) {
            return Err(Error::invalid("several paths need path selection: select helpers by 'best' or 'ordered'"));
        }
    }
    let first = match region::cut(request.job, request.prefer) {
        Ok(regions) => return plan_regions(request, scheme, &regions, known),
        Err(too_many) => too_many,
    };
    let mut fewer = region::without_the_most_holes(request.job);
    while let Some(job) = fewer {
        if let Ok(regions) = region::cut(&job, request.prefer) {
            let request = Request { job: &job, ..*request };
            return plan_regions(&request, scheme, &regions, known).map_err(|_| first);
        }
        fewer = region::without_the_most_holes(&job);
    }
    Err(first)
}

fn plan_regions(
    request: &Request<'_>,
    scheme: &dyn RepairScheme,
    regions: &[Region],
    known: &mut Known,
) -> Result<(Plan, Vec<ChosenPath>)> {
    let (vertices, turns, chosen) = (Vertices::default(), Vec::new(), Vec::new());
    let mut planner =
        Planner { request, scheme, identity: patterns::identity(scheme.name(), scheme), vertices, turns, chosen, known };
    regions.iter().try_for_each(|region| planner.region(region))?;
    Ok((request.plan(planner.vertices, planner.turns)?, planner.chosen))
}

struct Planner<'a> {
    request: &'a Request<'a>,
    scheme: &'a dyn RepairScheme,
    identity: Arc<str>,
    vertices: Vertices,
    turns: Vec<Turn>,
    /// The chosen paths, each once.
    chosen: Vec<ChosenPath>,
    known: &'a mut Known,
}

impl Planner<'_> {
    fn region(&mut self, region: &Region) -> Result<()> {
        let (present, lost): (Vec<&Delivery>, Vec<&Delivery>) =
            region.deliveries.iter().partition(|delivery| region.holder(delivery.index, &[]).is_some());
        let mut reads = present;
        for group in groups(&lost) {
            let hub = group[0].party;
            let along = |read: &&Delivery| self.scheme.sends_plain_blocks() && read.party == hub;
            let (along, rest): (Vec<&Delivery>, Vec<&Delivery>) = reads.into_iter().partition(along);
            reads = rest;
            self.repair(region, &[group, along].concat())?;
        }
        while let Some(first) = reads.first().copied() {
            let same = |read: &&Delivery| (read.party, read.index) == (first.party, first.index);
            let (these, rest): (Vec<&Delivery>, Vec<&Delivery>) = reads.into_iter().partition(same);
            reads = rest;
            let holder = region.holder(first.index, &[first.party]).unwrap_or(first.party);
            let lanes = vec![read::lane(self.request.run.window, holder, &these, &mut self.vertices)?];
            self.turns.push(Turn { span: region.span, lanes });
        }
        Ok(())
    }

    /// The lanes that compute what these deliveries want; the first delivery's party is the hub.
    fn repair(&mut self, region: &Region, deliveries: &[&Delivery]) -> Result<()> {
        let wanted = region::wanted(deliveries);
        let readers: Vec<Party> = deliveries.iter().map(|delivery| delivery.party).collect();
        let Run { slice_len, .. } = self.request.run;
        let paths = match self.request.paths {
            // Each path needs a slice of its own.
            Paths::Count(paths) => u64::from(paths).clamp(1, region.span.len().div_ceil(slice_len).max(1)),
            Paths::Auto => 1,
        };
        let mut routes = Routes::new(self.request, self.scheme.walk(), region, deliveries, &wanted);
        let mut built = Vec::new();
        for _ in 0..paths {
            let region = routes.select(self.known);
            let recipe = self.recipe(&region, &wanted, &readers)?;
            let used: Vec<Party> = recipe.helpers.iter().filter_map(|share| region.holder(share.index, &readers)).collect();
            let Some(region) = routes.order(region, &used, self.known) else { break };
            built.push(self.lanes(&region, &recipe, deliveries, &wanted, &readers)?);
        }
        let chosen = routes.chosen();
        self.chosen.extend(chosen.into_iter().filter(|path| !self.chosen.contains(path)).collect::<Vec<_>>());
        let turns = built.into_iter().zip(routes.shares(region.span, slice_len));
        self.turns.extend(turns.map(|(lanes, span)| Turn { span, lanes }));
        Ok(())
    }

    /// The lanes that combine a recipe's shares, from the cache if possible.
    fn lanes(
        &mut self,
        region: &Region,
        recipe: &Arc<Recipe>,
        deliveries: &[&Delivery],
        wanted: &[SubBlock],
        readers: &[Party],
    ) -> Result<Vec<Lane>> {
        let helpers = self.stands(region, recipe, readers)?;
        let wants = deliveries.iter().map(|delivery| {
            let Delivery { party, kind, index, sub_blocks } = delivery;
            Ok((self.vertices.of(*party)?, *kind, *index, sub_blocks.clone()))
        });
        let wants = wants.collect::<Result<Vec<_>>>()?;
        let (scheme, window, vertices) = (self.scheme, self.request.run.window, &mut self.vertices);
        let mut make = || {
            let (helpers, combine) = joined(recipe, &helpers);
            let requestors = region::requestors(deliveries, wanted, vertices)?;
            let mut lanes = scheme.build(&Repair { rows: wanted.len(), helpers, combine, requestors })?;
            lanes.iter_mut().map(|lane| lane.finish(window)).collect()
        };
        let Some(patterns) = self.request.patterns else { return make() };
        let stands = helpers.iter().map(|(at, vertex)| (recipe.helpers[*at].index, *vertex)).collect();
        let key =
            LanesKey { recipe: Arc::as_ptr(recipe).addr(), scheme: Arc::clone(&self.identity), window, helpers: stands, wants };
        patterns.lanes(recipe, key, make)
    }

    fn recipe(&self, region: &Region, wanted: &[SubBlock], readers: &[Party]) -> Result<Arc<Recipe>> {
        let available = region.available();
        // A requestor's own blocks need not be sent; blocks that are read in this region anyway are in memory there.
        let local = |index: &u8| region.holders.iter().any(|(held, party)| held == index && readers.contains(party));
        let read = |index: &u8| region.deliveries.iter().any(|delivery| delivery.index == *index);
        let mut read_anyway: Vec<u8> = available.iter().copied().filter(local).collect();
        read_anyway.extend(available.iter().copied().filter(|index| read(index) && !local(index)));
        let ask = Ask { wanted: wanted.to_vec(), available, read_anyway };
        let (code, scheme) = (self.request.code, self.scheme);
        let chosen = patterns::recipe(self.request.patterns, (code, &self.identity), &ask, |recipes| scheme.choose(recipes));
        let chosen = chosen.map_err(|refusal| {
            let span = region.span;
            Error::unavailable(format!("{refusal} (positions {}..{})", span.start, span.end))
        })?;
        chosen.ok_or_else(|| Error::fatal(format!("internal error: {} gave no recipe", code.spec())))
    }

    /// The recipe's helpers, by their index in it, and their vertices, ordered by preference.
    fn stands(&mut self, region: &Region, recipe: &Recipe, readers: &[Party]) -> Result<Vec<(usize, u16)>> {
        let mut stands: Vec<(usize, usize, u16)> = Vec::with_capacity(recipe.helpers.len());
        for (at, share) in recipe.helpers.iter().enumerate() {
            let party = region.holder(share.index, readers);
            let party = party
                .ok_or_else(|| Error::fatal(format!("internal error: block {} helps, but no party holds it", share.index)))?;
            let place = region.holders.iter().position(|(_, holder)| *holder == party).unwrap_or(usize::MAX);
            stands.push((place, at, self.vertices.of(party)?));
        }
        // Around a hub the order does not matter: the lane is the same for any preference.
        match self.scheme.walk() {
            Walk::Hub => stands.sort_by_key(|(_, at, _)| recipe.helpers[*at].index),
            _ => stands.sort_by_key(|(place, ..)| *place),
        }
        Ok(stands.into_iter().map(|(_, at, vertex)| (at, vertex)).collect())
    }
}

/// What the helpers do, each vertex once, and how their output is combined: a party with two blocks helps once.
fn joined(recipe: &Recipe, stands: &[(usize, u16)]) -> (Vec<Helper>, Factored) {
    let mut firsts = vec![0];
    firsts.extend(recipe.helpers.iter().scan(0, |first, share| {
        *first += share.compute.rows();
        Some(*first)
    }));
    // Each with the columns of its output.
    let mut helpers: Vec<(Vec<usize>, Helper)> = Vec::with_capacity(stands.len());
    for (at, vertex) in stands {
        let share = &recipe.helpers[*at];
        let source = Source::Block { index: share.index, sub_blocks: share.reads.clone() };
        let sent = firsts[*at]..firsts[*at + 1];
        match helpers.iter_mut().find(|(_, helper)| helper.vertex == *vertex) {
            Some((columns, helper)) => {
                helper.sources.push(source);
                helper.compute = diagonal(&helper.compute, &share.compute);
                columns.extend(sent);
            }
            None => {
                let helper = Helper { vertex: *vertex, sources: vec![source], compute: share.compute.clone() };
                helpers.push((sent.collect(), helper));
            }
        }
    }
    let columns: Vec<usize> = helpers.iter().flat_map(|(columns, _)| columns.iter().copied()).collect();
    (helpers.into_iter().map(|(_, helper)| helper).collect(), recipe.combine.select_cols(&columns))
}

/// The parties that are served together. Nodes can forward what they received, so all are served together if there is a
/// node. Clients only receive, so otherwise each is served separately.
fn groups<'a>(lost: &[&'a Delivery]) -> Vec<Vec<&'a Delivery>> {
    let is_node = |delivery: &&&Delivery| matches!(delivery.party, Party::Node(_));
    let nodes = lost.iter().filter(is_node).copied();
    let clients = lost.iter().filter(|delivery| !is_node(delivery)).copied();
    if nodes.clone().next().is_some() {
        return vec![nodes.chain(clients).collect()];
    }
    let mut groups: Vec<Vec<&Delivery>> = Vec::new();
    for delivery in clients {
        match groups.iter_mut().find(|group| group[0].party == delivery.party) {
            Some(group) => group.push(delivery),
            None => groups.push(vec![delivery]),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Scheme, answering};
    use weft_plan::{Class, Hold, Job, Want, WantKind};
    use weft_types::{BlockId, Layout, NodeId, PlanId, Span, StripeId, StripeLayout};

    #[test]
    fn regions_with_the_same_candidates_are_searched_once() {
        let code = weft_codes::parse("rs(4,3)").unwrap();
        let (block_len, requestor) = (1 << 12, Party::Node(NodeId(100)));
        let block = |index| BlockId { stripe: StripeId(1), index, copy: 0, generation: 1 };
        // Block 1 has a hole in every other one of 200 pieces.
        let holds = (1..7u8).flat_map(|index| {
            let spans = if index == 1 {
                (0..100).map(|at| Span::new(at * 20, at * 20 + 10)).collect()
            } else {
                vec![Span::new(0, block_len)]
            };
            spans.into_iter().map(move |span| Hold { party: Party::Node(NodeId(index.into())), block: block(index), span })
        });
        let want = Want { kind: WantKind::Store, party: requestor, index: 0, sub_blocks: vec![0], span: Span::new(0, block_len) };
        let job = Job { holds: holds.collect(), wants: vec![want], ..Job::default() };
        let stripe = StripeLayout { layout: Layout::new(block_len, block_len, 1).unwrap(), k: 4, m: 3, data_len: 4 * block_len };
        let run = Run::new(PlanId(1), 1, Class::Repair, 2);
        let request = Request { stores: &[(requestor, block(0))], ..Request::new(code.as_ref(), stripe, &job, run) };
        let mut known = Known::new();
        for scheme in answering(Kind::Repair) {
            let Scheme::Repair(scheme) = scheme else { panic!("{scheme:?} repairs") };
            let (plan, _) = plan(&request, scheme, &mut known).unwrap();
            assert!(plan.shape.lanes.len() >= 200, "{}", scheme.name());
        }
        assert_eq!(known.len(), 4, "a chain and a cycle, each with block 1 and without it");
    }
}
