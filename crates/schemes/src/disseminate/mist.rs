//! Dissemination over several levels (*Mist*): the writer sends only as much as the data, and receivers compute the rest from what others
//! received. The [`Topology`] decides which receiver gets what from where; this module creates its stages, with the coefficients of the
//! code's recipes.

use super::{
    Home, Write, WriteScheme,
    topology::{Edge, Receiver, Topology, Upstream, whole},
};
use crate::{LaneBuilder, Named, lane::Share};
use std::collections::BTreeMap;
use weft_codes::{Ask, Code, HelperShare, Recipe};
use weft_gf::{Factored, SparseMatrix};
use weft_plan::Source;
use weft_types::{Error, Result};

/// The mist scheme.
#[derive(Debug, Default)]
pub struct Mist {
    /// x (§4.2): blocks of each receiver's capacity that are reserved for narrow repairs. `None`: the value that moves
    /// least.
    pub reserve: Option<usize>,
}

impl Named for Mist {
    fn name(&self) -> &'static str {
        "mist"
    }

    fn summary(&self) -> &'static str {
        "the writer sends the data, and receivers compute the parities from what they received, level by level"
    }
}

impl WriteScheme for Mist {
    fn build(&self, write: &Write<'_>, lane: &mut LaneBuilder) -> Result<()> {
        // The writer serves a home itself if the home is the writer, wants something other than one whole block, or is
        // on the writer's machine and would otherwise receive more than its block from others.
        let mut homes: BTreeMap<(u8, u8), &Home> = BTreeMap::new();
        for home in write.homes.iter().filter(|home| home.requestor.vertex != write.writer) {
            let is_data = |(index, _): &(u8, u8)| usize::from(*index) < write.request.code.k();
            if let Some(block) = home.block.filter(|block| !home.is_near || is_data(block)) {
                homes.entry(block).or_insert(home);
            }
        }
        let topology = Topology::new(write.request.code, &homes.keys().copied().collect::<Vec<_>>(), self.reserve);
        let homes = topology.receivers.iter().map(|receiver| homes[&(receiver.index, receiver.copy)]).collect();
        Stages::new(write, &topology.receivers, homes)?.build(lane)
    }

    fn edges(&self, code: &dyn Code) -> Vec<Edge> {
        let topology = Topology::of_code(code, self.reserve);
        let index = |at: usize| usize::from(topology.receivers[at].index);
        let named = |edge: Edge| Edge { from: edge.from.map(index), to: index(edge.to), ..edge };
        topology.edges().into_iter().map(named).collect()
    }
}

/// The input of the stages, by the receivers' places.
struct Stages<'a> {
    write: &'a Write<'a>,
    receivers: &'a [Receiver],
    homes: Vec<&'a Home>,
    /// The receivers that each one sends to.
    sends_to: Vec<Vec<usize>>,
    /// How receivers compute their block: their own block first, then those that they compute for others.
    recipes: Vec<Option<Recipe>>,
    /// The incoming links of each, with their senders; `None` for the writer.
    links: Vec<Vec<(Option<usize>, u16)>>,
}

impl<'a> Stages<'a> {
    fn new(write: &'a Write<'a>, receivers: &'a [Receiver], homes: Vec<&'a Home>) -> Result<Self> {
        let mut sends_to = vec![Vec::new(); receivers.len()];
        for (to, receiver) in receivers.iter().enumerate() {
            match &receiver.upstream {
                Upstream::Writer => {}
                Upstream::Receiver(from) => sends_to[*from].push(to),
                Upstream::Helpers(helpers) => helpers.iter().for_each(|(from, _)| sends_to[*from].push(to)),
            }
        }
        let links = vec![Vec::new(); receivers.len()];
        let mut stages = Self { write, receivers, homes, sends_to, recipes: Vec::new(), links };
        stages.recipes = (0..receivers.len()).map(|at| stages.recipe(at)).collect::<Result<_>>()?;
        Ok(stages)
    }

    fn recipe(&self, at: usize) -> Result<Option<Recipe>> {
        let Upstream::Helpers(helpers) = &self.receivers[at].upstream else { return Ok(None) };
        let made = std::iter::once(self.receivers[at].index).chain(self.made(at));
        let wanted = made.flat_map(|index| whole(self.write.request.code, index)).collect();
        let available = helpers.iter().map(|(from, _)| self.receivers[*from].index).collect();
        let recipes = self.write.request.code.recipes(&Ask { wanted, available, read_anyway: Vec::new() });
        let recipes =
            recipes.map_err(|refusal| Error::fatal(format!("internal error: a receiver cannot compute its block: {refusal}")))?;
        Ok(recipes.into_iter().next())
    }

    /// The blocks that a receiver computes for others, in the order in which it sends them.
    fn made(&self, at: usize) -> impl Iterator<Item = u8> {
        let index = self.receivers[at].index;
        let given = move |to: &&usize| self.receivers[**to].upstream == Upstream::Receiver(at);
        self.sends_to[at].iter().filter(given).map(|to| self.receivers[*to].index).filter(move |made| *made != index)
    }

    fn build(mut self, lane: &mut LaneBuilder) -> Result<()> {
        self.writer(lane)?;
        for at in 0..self.receivers.len() {
            self.receiver(at, lane);
        }
        Ok(())
    }

    /// The writer's stage, and those of homes outside the topology.
    fn writer(&mut self, lane: &mut LaneBuilder) -> Result<()> {
        let write = self.write;
        let at = |home: &Home| self.homes.iter().position(|other| std::ptr::eq(*other, home));
        let served = write.homes.iter().map(|home| (home, at(home)));
        let served: Vec<(&Home, Option<usize>)> =
            served.filter(|(_, at)| at.is_none_or(|at| self.receivers[at].upstream == Upstream::Writer)).collect();
        let mut needed: Vec<usize> = served.iter().flat_map(|(home, _)| home.requestor.rows.iter().copied()).collect();
        needed.sort_unstable();
        needed.dedup();
        let (inputs, sum) = write.encoded(&needed)?;
        let all = SparseMatrix::identity(needed.len());
        let rows = |home: &Home| {
            let place = |row: &usize| needed.partition_point(|needed| needed < row);
            all.select_rows(&home.requestor.rows.iter().map(place).collect::<Vec<_>>())
        };
        let shares = served.iter().map(|(home, _)| home.requestor.share(write.writer, &rows(home))).collect();
        let links = lane.share_out(write.writer, inputs, &sum, shares);
        for ((home, at), link) in served.into_iter().zip(links) {
            match (at, link) {
                (_, None) => {}
                (Some(at), Some(link)) => self.links[at].push((None, link)),
                (None, Some(link)) => lane.receive(&home.requestor, vec![Source::Link(link)]),
            }
        }
        Ok(())
    }

    /// A receiver's stage: it stores its block, and sends.
    fn receiver(&mut self, at: usize, lane: &mut LaneBuilder) {
        let (alpha, requestor) = (self.write.request.code.alpha(), &self.homes[at].requestor);
        let (sources, sum) = match &self.recipes[at] {
            Some(recipe) => {
                let link = |share: &HelperShare| {
                    let from = |from: &Option<usize>| from.is_some_and(|from| self.receivers[from].index == share.index);
                    self.links[at].iter().find(|(of, _)| from(of)).map(|(_, link)| Source::Link(*link))
                };
                (recipe.helpers.iter().filter_map(link).collect(), recipe.combine.clone())
            }
            None => {
                let links = self.links[at].iter().map(|(_, link)| Source::Link(*link)).collect();
                (links, Factored::from(SparseMatrix::identity(alpha)))
            }
        };
        let all = SparseMatrix::identity(sum.rows());
        let own: Vec<usize> = (0..alpha).collect();
        let mut shares = vec![requestor.share(requestor.vertex, &all.select_rows(&own))];
        let (mut receives, mut made) = (Vec::new(), alpha);
        for to in self.sends_to[at].iter().copied() {
            let index = self.receivers[at].index;
            let rows = match &self.recipes[to] {
                Some(recipe) => {
                    // A helper that the recipe does not need sends nothing.
                    let Some(share) = recipe.helpers.iter().find(|share| share.index == index) else { continue };
                    let reads: Vec<usize> = share.reads.iter().map(|sub_block| usize::from(*sub_block)).collect();
                    share.compute.times_sparse(&all.select_rows(&reads))
                }
                None if self.receivers[to].index == index => all.select_rows(&own),
                None => {
                    made += alpha;
                    all.select_rows(&(made - alpha..made).collect::<Vec<_>>())
                }
            };
            shares.push(Share { rows, sinks: None });
            receives.push(to);
        }
        let links = lane.share_out(requestor.vertex, sources, &sum, shares);
        for (to, link) in receives.into_iter().zip(links.into_iter().flatten()) {
            self.links[to].push((Some(at), link));
        }
    }
}
