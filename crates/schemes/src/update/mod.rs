//! Updates in place: each party with new data puts in its deltas (new XOR old), and every node with a dependent block
//! patches it with the block's own coefficients. Agents do not run such plans as tasks: they take the way of the deltas
//! from the plan, and the update protocol says when a block is patched.
//!
//! A scheme says over which tree of nodes the deltas of each writer travel. Everything else is the same for all of them
//! (`lanes`): each node patches its blocks and passes on the sub-blocks that nodes after it need, and no others.

pub(crate) mod chain;
mod hops;
mod lanes;
mod overwrite;
pub(crate) mod pipeline;
pub(crate) mod star;
pub(crate) mod tree;

pub use chain::Chain;
pub use hops::{Hop, Routes};
pub use overwrite::{overwrite, overwrite_at};
pub use pipeline::Pipeline;
pub use star::Star;
pub use tree::Tree;

use crate::{
    LaneBuilder, Named, Request, considered,
    region::{self, Region},
    request::{Turn, Vertices},
};
use weft_gf::SparseMatrix;
use weft_plan::{ChosenPath, Considered, Network, Plan, Sink, Source, WantKind};
use weft_types::{Error, FRAME_PAYLOAD_BYTES_MAX, Party, Result, Span};

/// A scheme that brings deltas to the nodes that patch their blocks.
pub trait UpdateScheme: Named {
    /// The hops of each writer's deltas.
    fn routes(&self, update: &Update<'_>) -> Routes;

    /// Whether each party sends over one link at a time, and each link carries everything in a single slice. This is how
    /// the literature's star and tree work.
    fn sends_in_turn(&self) -> bool {
        false
    }
}

/// The input of a scheme: what changed, and which homes patch what.
#[derive(Debug)]
pub struct Update<'a> {
    /// The request, for its network and its selection.
    pub request: &'a Request<'a>,
    /// The parties that put in deltas, each once.
    pub writers: Vec<Writer>,
    /// What each home patches, the preferred first, each vertex once.
    pub homes: Vec<Home>,
}

/// A party with new data.
#[derive(Debug)]
pub struct Writer {
    /// Its party.
    pub party: Party,
    /// Its vertex.
    pub vertex: u16,
    /// The deltas that it puts in.
    pub inputs: Vec<Source>,
    /// Their sub-blocks, by their places among all that change; ascending.
    pub columns: Vec<usize>,
}

/// The patches of one vertex.
#[derive(Debug)]
pub struct Home {
    /// Its party.
    pub party: Party,
    /// Its vertex.
    pub vertex: u16,
    /// The blocks that it patches.
    pub sinks: Vec<Sink>,
    /// What the sinks get: one row for each of their sub-blocks, one column for each changed sub-block.
    pub patches: SparseMatrix,
    /// The changed sub-blocks on which its blocks depend, ascending; at least one.
    pub needs: Vec<usize>,
}

impl Update<'_> {
    /// The homes to which a writer's deltas must travel, the preferred first. Its own is not among them.
    pub fn concerned(&self, writer: &Writer) -> Vec<usize> {
        let depends = |home: &Home| home.needs.iter().any(|need| writer.columns.binary_search(need).is_ok());
        (0..self.homes.len()).filter(|at| self.homes[*at].vertex != writer.vertex && depends(&self.homes[*at])).collect()
    }

    /// The network between the parties.
    pub fn network(&self) -> &Network {
        self.request.network
    }

    /// The rack of a party, as the name of a place: a party without a rack is at a place of its own.
    pub(crate) fn place(&self, party: Party) -> Place<'_> {
        self.network().racks.get(&party).map_or(Place::Alone(party), |rack| Place::Rack(rack))
    }
}

/// Where a party is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    Rack(&'a str),
    Alone(Party),
}

/// The plan for a job that patches stored blocks.
pub(crate) fn plan(request: &Request<'_>, scheme: &dyn UpdateScheme) -> Result<Plan> {
    Ok(routed(request, scheme)?.0)
}

/// The plan of one scheme, and what is predicted for it.
pub(crate) fn consider(request: &Request<'_>, scheme: &dyn UpdateScheme) -> Result<(Plan, Considered)> {
    let (plan, paths) = routed(request, scheme)?;
    let considered = considered::weigh(&plan, scheme.name(), paths, request.network)?;
    Ok((plan, considered))
}

/// The plan, and its paths.
fn routed(request: &Request<'_>, scheme: &dyn UpdateScheme) -> Result<(Plan, Vec<ChosenPath>)> {
    request.check()?;
    let (mut vertices, mut turns, mut paths) = (Vertices::default(), Vec::new(), Vec::<ChosenPath>::new());
    let regions = region::cut(request.job, request.prefer)?;
    let longest = regions.iter().map(|region| region.span.len()).max().unwrap_or(0);
    let in_turn = scheme.sends_in_turn() || is_one_slice(request, longest);
    for region in regions {
        let update = update(request, &region, &mut vertices)?;
        let routes = scheme.routes(&update);
        paths.extend(routes.path.clone().filter(|path| !paths.contains(path)));
        let mut lane = LaneBuilder::default();
        lanes::build(&update, &routes, in_turn, &mut lane);
        turns.push(Turn { span: region.span, lanes: vec![lane.finish(request.run.window)?] });
    }
    let mut plan = request.plan(vertices, turns)?;
    if in_turn {
        plan.shape.in_turn = true;
        plan.binding.slice_len = longest.max(1);
    }
    Ok((plan, paths))
}

/// Whether slices hold all of these positions, and more than a frame: nodes pass on such a slice when it has arrived as a whole. Shorter ones
/// travel in one frame anyway.
fn is_one_slice(request: &Request<'_>, positions: u64) -> bool {
    let slice_len = request.run.slice_len;
    slice_len >= positions && slice_len.saturating_mul(request.code.alpha() as u64) > FRAME_PAYLOAD_BYTES_MAX as u64
}

fn update<'a>(request: &'a Request<'a>, region: &Region, vertices: &mut Vertices) -> Result<Update<'a>> {
    let (code, changed) = (request.code, changed(request, region.span)?);
    if let Some(delivery) = region.deliveries.iter().find(|delivery| delivery.kind != WantKind::Patch) {
        return Err(Error::invalid("an update must want only patches").party(delivery.party));
    }
    let mut parties: Vec<Party> = Vec::new();
    for delivery in &region.deliveries {
        if !parties.contains(&delivery.party) {
            parties.push(delivery.party);
        }
    }
    parties.sort_by_key(|party| region.holders.iter().position(|(_, holder)| holder == party));
    let writers = writers(request, region, &changed, vertices)?;
    let home = |party: Party| {
        let own: Vec<_> = region.deliveries.iter().filter(|delivery| delivery.party == party).collect();
        let rows = own.iter().flat_map(|own| own.sub_blocks.iter().map(move |s| (own.index, *s)));
        let rows: Vec<usize> = rows.map(|(index, s)| usize::from(index) * code.alpha() + usize::from(s)).collect();
        let patches = code.generator().select_rows(&rows).select_cols(&changed);
        let mut needs: Vec<usize> = patches.terms().iter().map(|(_, column, _)| *column as usize).collect();
        needs.sort_unstable();
        needs.dedup();
        if needs.is_empty() {
            // A patch of zeros must come from somewhere.
            needs.push(0);
        }
        let sinks = own.iter().map(|own| region::sink(own)).collect();
        Ok(Home { party, vertex: vertices.of(party)?, sinks, patches, needs })
    };
    let homes = parties.into_iter().map(home).collect::<Result<Vec<_>>>()?;
    Ok(Update { request, writers, homes })
}

/// The parties that put in the changed columns. Of several that could, a party that patches the block itself is taken:
/// its own delta need not travel.
fn writers(request: &Request<'_>, region: &Region, changed: &[usize], vertices: &mut Vertices) -> Result<Vec<Writer>> {
    let alpha = request.code.alpha();
    let mut writers: Vec<Writer> = Vec::new();
    for (place, column) in changed.iter().enumerate() {
        let (index, sub_block) = ((column / alpha) as u8, (column % alpha) as u16);
        let inputs = || request.job.inputs.iter().filter(|input| input.index == index).map(|input| input.party);
        let patches = |party: &Party| region.deliveries.iter().any(|own| (own.party, own.index) == (*party, index));
        let none = || Error::invalid(format!("data block {index} is needed, but it is not an input"));
        let party = inputs().find(patches).or_else(|| inputs().next()).ok_or_else(none)?;
        let at = match writers.iter().position(|writer| writer.party == party) {
            Some(at) => at,
            None => {
                writers.push(Writer { party, vertex: vertices.of(party)?, inputs: Vec::new(), columns: Vec::new() });
                writers.len() - 1
            }
        };
        writers[at].columns.push(place);
        match writers[at].inputs.last_mut() {
            Some(Source::Input { index: last, sub_blocks, .. }) if *last == index => sub_blocks.push(sub_block),
            _ => writers[at].inputs.push(Source::Input { index, sub_blocks: vec![sub_block], delta: true }),
        }
    }
    Ok(writers)
}

/// The columns of the generator that change at these positions, ascending.
fn changed(request: &Request<'_>, span: Span) -> Result<Vec<usize>> {
    let here = request.job.changed.iter().filter(|change| change.span.contains(span));
    let mut changed: Vec<usize> =
        here.map(|change| usize::from(change.index) * request.code.alpha() + usize::from(change.sub_block)).collect();
    changed.sort_unstable();
    changed.dedup();
    match (changed.last(), request.code.k() * request.code.alpha()) {
        (None, _) => Err(Error::invalid(format!("nothing changes at positions {}..{}", span.start, span.end))),
        (Some(last), columns) if *last >= columns => Err(Error::invalid("only data blocks can change")),
        _ => Ok(changed),
    }
}
