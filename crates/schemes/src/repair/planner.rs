//! From a job to the plan of a scheme: region by region, who helps by which recipe, and what is only read.

use super::{Helper, Repair, RepairScheme, Walk, diagonal, routes::Routes};
use crate::{
    Paths, Request, Run, Select, read,
    region::{self, Delivery, Region},
    request::Vertices,
};
use weft_codes::{Ask, Recipe, SubBlock};
use weft_gf::Factored;
use weft_plan::{ChosenPath, Lane, Plan, Source};
use weft_types::{Error, Party, Result};

/// A plan for a job that wants blocks stored or delivered, from what is there.
///
/// A block with so many holes that a plan around each of them would be too large counts as lost, that with the most first.
pub fn plan_repair(request: &Request<'_>, scheme: &dyn RepairScheme) -> Result<Plan> {
    plan(request, scheme).map(|(plan, _)| plan)
}

/// The plan, and the paths that it takes, as far as they are chains or cycles.
pub(super) fn plan(request: &Request<'_>, scheme: &dyn RepairScheme) -> Result<(Plan, Vec<ChosenPath>)> {
    request.check()?;
    let paths = request.paths;
    if !matches!(paths, Paths::Auto | Paths::Count(1)) {
        if scheme.walk() != Walk::Chain {
            let name = scheme.name();
            return Err(Error::invalid(format!("the scheme '{name}' has one path: chains of 'pipeline' can be several")));
        }
        if !matches!(request.select, Select::Best | Select::Ordered) {
            return Err(Error::invalid("several paths are searched for: select helpers by 'best' or 'ordered'"));
        }
    }
    let first = match region::cut(request.job, request.prefer) {
        Ok(regions) => return plan_regions(request, scheme, &regions),
        Err(too_many) => too_many,
    };
    let mut fewer = region::without_the_most_holes(request.job);
    while let Some(job) = fewer {
        if let Ok(regions) = region::cut(&job, request.prefer) {
            let request = Request { job: &job, ..*request };
            return plan_regions(&request, scheme, &regions).map_err(|_| first);
        }
        fewer = region::without_the_most_holes(&job);
    }
    Err(first)
}

fn plan_regions(request: &Request<'_>, scheme: &dyn RepairScheme, regions: &[Region]) -> Result<(Plan, Vec<ChosenPath>)> {
    let (vertices, lanes, chosen) = (Vertices::default(), Vec::new(), Vec::new());
    let mut planner = Planner { request, scheme, vertices, lanes, chosen };
    regions.iter().try_for_each(|region| planner.region(region))?;
    Ok((request.plan(planner.vertices, planner.lanes)?, planner.chosen))
}

struct Planner<'a> {
    request: &'a Request<'a>,
    scheme: &'a dyn RepairScheme,
    vertices: Vertices,
    /// Those that take turns together.
    lanes: Vec<Vec<Lane>>,
    /// The paths that were chosen, each once.
    chosen: Vec<ChosenPath>,
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
            self.lanes.push(vec![read::lane(region.span, self.request.run.window, holder, &these, &mut self.vertices)?]);
        }
        Ok(())
    }

    /// The lanes that compute what these deliveries want; the first one's party is the hub.
    fn repair(&mut self, region: &Region, deliveries: &[&Delivery]) -> Result<()> {
        let wanted = region::wanted(deliveries);
        let readers: Vec<Party> = deliveries.iter().map(|delivery| delivery.party).collect();
        let Run { slice_len, window, .. } = self.request.run;
        let paths = match self.request.paths {
            // Each needs a slice of its own.
            Paths::Count(paths) => u64::from(paths).clamp(1, region.span.len().div_ceil(slice_len).max(1)),
            Paths::Auto => 1,
        };
        let mut routes = Routes::new(self.request, self.scheme.walk(), region, deliveries, &wanted);
        let mut built = Vec::new();
        for _ in 0..paths {
            let region = routes.select();
            let recipe = self.recipe(&region, &wanted, &readers)?;
            let used: Vec<Party> = recipe.helpers.iter().filter_map(|share| region.holder(share.index, &readers)).collect();
            let region = routes.order(region, &used);
            let (helpers, combine) = self.helpers(&region, &recipe, &readers)?;
            let requestors = region::requestors(deliveries, &wanted, &mut self.vertices)?;
            built.push(self.scheme.build(&Repair { rows: wanted.len(), helpers, combine, requestors })?);
        }
        let chosen = routes.chosen();
        self.chosen.extend(chosen.into_iter().filter(|path| !self.chosen.contains(path)).collect::<Vec<_>>());
        for (mut lanes, span) in built.into_iter().zip(routes.shares(region.span, slice_len)) {
            let lanes = lanes.iter_mut().map(|lane| lane.finish(span, window)).collect::<Result<Vec<_>>>()?;
            self.lanes.push(lanes);
        }
        Ok(())
    }

    fn recipe(&self, region: &Region, wanted: &[SubBlock], readers: &[Party]) -> Result<Recipe> {
        let available = region.available();
        // What a requestor has itself need not be sent; what somebody reads in this region anyway is in memory there.
        let local = |index: &u8| region.holders.iter().any(|(held, party)| held == index && readers.contains(party));
        let read = |index: &u8| region.deliveries.iter().any(|delivery| delivery.index == *index);
        let mut read_anyway: Vec<u8> = available.iter().copied().filter(local).collect();
        read_anyway.extend(available.iter().copied().filter(|index| read(index) && !local(index)));
        let ask = Ask { wanted: wanted.to_vec(), available, read_anyway };
        let recipes = self.request.code.recipes(&ask).map_err(|refusal| {
            let span = region.span;
            Error::unavailable(format!("{refusal} (positions {}..{})", span.start, span.end))
        })?;
        let chosen = self.scheme.choose(&recipes).cloned();
        chosen.ok_or_else(|| Error::fatal(format!("{} gave no recipe", self.request.code.spec())))
    }

    /// The recipe's helpers by vertex, the preferred first, and how what they send is combined: a party that holds two blocks
    /// helps once.
    fn helpers(&mut self, region: &Region, recipe: &Recipe, readers: &[Party]) -> Result<(Vec<Helper>, Factored)> {
        // Each with its place in the order, and the columns of what it sends.
        let mut helpers: Vec<(usize, Vec<usize>, Helper)> = Vec::with_capacity(recipe.helpers.len());
        let mut first = 0;
        for share in &recipe.helpers {
            let party = region.holder(share.index, readers);
            let party = party.ok_or_else(|| Error::fatal(format!("block {} helps, but nobody has it", share.index)))?;
            let vertex = self.vertices.of(party)?;
            let source = Source::Block { index: share.index, sub_blocks: share.reads.clone() };
            let sent = first..first + share.compute.rows();
            first = sent.end;
            match helpers.iter_mut().find(|(.., helper)| helper.vertex == vertex) {
                Some((_, columns, helper)) => {
                    helper.sources.push(source);
                    helper.compute = diagonal(&helper.compute, &share.compute);
                    columns.extend(sent);
                }
                None => {
                    let place = region.holders.iter().position(|(_, holder)| *holder == party).unwrap_or(usize::MAX);
                    helpers.push((
                        place,
                        sent.collect(),
                        Helper { vertex, sources: vec![source], compute: share.compute.clone() },
                    ));
                }
            }
        }
        helpers.sort_by_key(|(place, ..)| *place);
        let columns: Vec<usize> = helpers.iter().flat_map(|(_, columns, _)| columns.iter().copied()).collect();
        Ok((helpers.into_iter().map(|(.., helper)| helper).collect(), recipe.combine.select_cols(&columns)))
    }
}

/// Who is served together. Nodes can pass on to others what they got, and so all are served together if there is one;
/// clients only receive, and each is served by itself otherwise.
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
