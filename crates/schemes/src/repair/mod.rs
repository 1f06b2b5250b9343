//! Repair and reads: lost blocks are computed from others, present ones are read.

mod conventional;
mod pipeline;
mod ppr;

use crate::{
    LaneBuilder, Request, Requestor, read,
    region::{self, Delivery, Region},
    request::Vertices,
};
use weft_codes::{Ask, Recipe, SubBlock};
use weft_gf::{Factored, SparseMatrix};
use weft_plan::{Considered, Lane, Plan, Source, cost, predict};
use weft_types::{Error, Party, Result};

/// Every repair scheme, in the order in which they are shown.
pub const SCHEMES: &[&dyn RepairScheme] = &[&conventional::Conventional, &ppr::Ppr, &pipeline::Pipeline];

/// A way to bring helpers' shares together at the requestors.
pub trait RepairScheme: std::fmt::Debug + Sync {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// What it does, in a line.
    fn summary(&self) -> &'static str;

    /// Adds the stages that bring what the helpers send, weighed, to the requestors. It fails only if it adds up partial sums,
    /// and the repair has none.
    fn build(&self, repair: &Repair, lane: &mut LaneBuilder) -> Result<()>;

    /// Which of a code's recipes suits it: the one with the fewest helpers, as for sums every helper costs the same however
    /// little it reads, and then the one that reads least.
    fn choose<'a>(&self, recipes: &'a [Recipe]) -> Option<&'a Recipe> {
        recipes.iter().min_by_key(|recipe| (recipe.helpers.len(), recipe.sub_blocks_read()))
    }

    /// Whether helpers send what they read rather than sums: then blocks that are wanted and present come along with the help,
    /// and what is sent serves both.
    fn sends_plain_blocks(&self) -> bool {
        false
    }
}

/// What a scheme is given: who can add what, and who needs the sum.
#[derive(Debug)]
pub struct Repair {
    /// The rows of the sum.
    pub rows: usize,
    /// The helpers in the order of preference, each vertex once.
    pub helpers: Vec<Helper>,
    /// The sum: one row for each of `rows`, one column for each sub-block that is sent, helper after helper.
    pub combine: Factored,
    /// Who needs which rows; at least one. The first can send to the others.
    pub requestors: Vec<Requestor>,
}

/// What one vertex reads and sends.
#[derive(Debug)]
pub struct Helper {
    /// Its vertex.
    pub vertex: u16,
    /// The blocks that it reads.
    pub sources: Vec<Source>,
    /// What it sends, if it sends no sum: one row for each sub-block sent, one column for each read.
    pub compute: SparseMatrix,
}

impl Repair {
    /// What each helper adds to the sum, in their order: one row for each of the sum, one column for each sub-block read.
    pub fn shares(&self) -> Result<Vec<SparseMatrix>> {
        let shares = weft_codes::shares(&self.combine, self.helpers.iter().map(|helper| &helper.compute));
        shares.ok_or_else(|| {
            Error::invalid("what this code combines is too large for partial sums: choose the scheme 'conventional'")
        })
    }
}

/// What a user says who leaves the choice of the scheme to [`choose_plan`].
pub const AUTO: &str = "auto";

/// The plan for a job of the scheme of that name, or, for [`AUTO`], of that which is predicted to be the quickest on its network,
/// and of equally quick ones of that which moves least; and what was considered, the chosen first.
pub fn choose_plan(request: &Request<'_>, scheme: &str) -> Result<(Plan, Vec<Considered>)> {
    let schemes = if scheme == AUTO { SCHEMES.to_vec() } else { vec![by_name(scheme)?] };
    let mut refused = None;
    let mut plans: Vec<(Plan, Considered)> = Vec::with_capacity(schemes.len());
    for scheme in schemes {
        match plan_repair(request, scheme) {
            Ok(plan) => {
                let (cost, seconds) = (cost(&plan)?, predict(&plan, request.network)?);
                let (moved_bytes, read_bytes) = (cost.moved_bytes(), cost.read_bytes());
                plans.push((plan, Considered { scheme: scheme.name().to_owned(), moved_bytes, read_bytes, seconds }));
            }
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    plans.sort_by(|(_, a), (_, b)| a.seconds.total_cmp(&b.seconds).then(a.moved_bytes.cmp(&b.moved_bytes)));
    let considered = plans.iter().map(|(_, considered)| considered.clone()).collect();
    let best = plans.into_iter().next().map(|(plan, _)| plan);
    best.map(|plan| (plan, considered)).ok_or_else(|| refused.unwrap_or_else(|| Error::fatal("there is no repair scheme")))
}

/// Whether there is a scheme of that name, or the choice is left open.
pub fn check_name(scheme: &str) -> Result<()> {
    if scheme == AUTO { Ok(()) } else { by_name(scheme).map(drop) }
}

/// The scheme of that name.
pub fn by_name(name: &str) -> Result<&'static dyn RepairScheme> {
    let known = || SCHEMES.iter().map(|scheme| scheme.name()).collect::<Vec<_>>().join(", ");
    let found = SCHEMES.iter().copied().find(|scheme| scheme.name() == name);
    found.ok_or_else(|| Error::invalid(format!("there is no repair scheme '{name}'; there are: {AUTO}, {}", known())))
}

/// A plan for a job that wants blocks stored or delivered, from what is there.
///
/// A block with so many holes that a plan around each of them would be too large counts as lost, that with the most first.
pub fn plan_repair(request: &Request<'_>, scheme: &dyn RepairScheme) -> Result<Plan> {
    request.check()?;
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

fn plan_regions(request: &Request<'_>, scheme: &dyn RepairScheme, regions: &[Region]) -> Result<Plan> {
    let mut planner = Planner { request, scheme, vertices: Vertices::default(), lanes: Vec::new() };
    regions.iter().try_for_each(|region| planner.region(region))?;
    request.plan(planner.vertices, planner.lanes)
}

struct Planner<'a> {
    request: &'a Request<'a>,
    scheme: &'a dyn RepairScheme,
    vertices: Vertices,
    lanes: Vec<Lane>,
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
            self.lanes.push(read::lane(region.span, self.request.run.window, holder, &these, &mut self.vertices)?);
        }
        Ok(())
    }

    /// The lane that computes what these deliveries want; the first one's party is the hub.
    fn repair(&mut self, region: &Region, deliveries: &[&Delivery]) -> Result<()> {
        let wanted = region::wanted(deliveries);
        let readers: Vec<Party> = deliveries.iter().map(|delivery| delivery.party).collect();
        let recipe = self.recipe(region, &wanted, &readers)?;
        let (helpers, combine) = self.helpers(region, &recipe, &readers)?;
        let requestors = region::requestors(deliveries, &wanted, &mut self.vertices)?;
        let mut lane = LaneBuilder::default();
        self.scheme.build(&Repair { rows: wanted.len(), helpers, combine, requestors }, &mut lane)?;
        self.lanes.push(lane.finish(region.span, self.request.run.window)?);
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

/// The two matrices on the diagonal of a larger one.
fn diagonal(a: &SparseMatrix, b: &SparseMatrix) -> SparseMatrix {
    a.beside(&SparseMatrix::zero(a.rows(), b.cols())).stack(&SparseMatrix::zero(b.rows(), a.cols()).beside(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_scheme_is_told_which_there_are() {
        assert_eq!(by_name("pipeline").unwrap().name(), "pipeline");
        let message = by_name("pigeon").unwrap_err().to_string();
        assert_eq!(message, "there is no repair scheme 'pigeon'; there are: auto, conventional, ppr, pipeline");
    }
}
