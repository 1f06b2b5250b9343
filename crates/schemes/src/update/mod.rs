//! Updates in place: the party with new data puts in the delta (new XOR old), and every node with a dependent block
//! patches it with the block's own coefficients. Agents refuse to patch until they have a journal, so such plans run
//! only in memory.

pub(crate) mod chain;
pub(crate) mod star;

use crate::{
    LaneBuilder, Named, Request, region,
    request::{Turn, Vertices},
};
use weft_gf::SparseMatrix;
use weft_plan::{Plan, Sink, Source, WantKind};
use weft_types::{Error, Party, Result, Span};

/// A scheme that brings deltas to the nodes that patch their blocks.
pub trait UpdateScheme: Named {
    /// Adds the stages that bring every home its patches.
    fn build(&self, update: &Update, lane: &mut LaneBuilder);
}

/// The input of a scheme: what changed, and which homes patch what.
#[derive(Debug)]
pub struct Update {
    /// The writer's vertex.
    pub writer: u16,
    /// The deltas that the writer puts in.
    pub inputs: Vec<Source>,
    /// Their sub-blocks: everything that changes.
    pub changed: usize,
    /// What each home patches, the preferred first, each vertex once.
    pub homes: Vec<Patched>,
}

/// The patches of one vertex.
#[derive(Debug)]
pub struct Patched {
    /// Its vertex.
    pub vertex: u16,
    /// The blocks that it patches.
    pub sinks: Vec<Sink>,
    /// What the sinks get: one row for each of their sub-blocks, one column for each changed sub-block.
    pub patches: SparseMatrix,
}

/// The plan for a job that patches stored blocks. All deltas must belong to one party.
pub(crate) fn plan(request: &Request<'_>, scheme: &dyn UpdateScheme) -> Result<Plan> {
    request.check()?;
    let writer = request.writer()?;
    let (mut vertices, mut turns) = (Vertices::default(), Vec::new());
    for region in region::cut(request.job, request.prefer)? {
        let changed = changed(request, region.span)?;
        let mut parties: Vec<Party> = Vec::new();
        for delivery in &region.deliveries {
            if delivery.kind != WantKind::Patch {
                return Err(Error::invalid("an update must want only patches").party(delivery.party));
            }
            if !parties.contains(&delivery.party) {
                parties.push(delivery.party);
            }
        }
        parties.sort_by_key(|party| region.holders.iter().position(|(_, holder)| holder == party));
        let from = vertices.of(writer)?;
        let home = |party: Party| {
            let own: Vec<_> = region.deliveries.iter().filter(|delivery| delivery.party == party).collect();
            let alpha = request.code.alpha();
            let rows = own.iter().flat_map(|own| own.sub_blocks.iter().map(move |s| (own.index, *s)));
            let rows: Vec<usize> = rows.map(|(index, s)| usize::from(index) * alpha + usize::from(s)).collect();
            let patches = request.code.generator().select_rows(&rows).select_cols(&changed);
            let sinks = own.iter().map(|own| region::sink(own)).collect();
            Ok(Patched { vertex: vertices.of(party)?, sinks, patches })
        };
        let homes = parties.into_iter().map(home).collect::<Result<Vec<_>>>()?;
        let inputs = request.inputs(&changed, true)?;
        let mut lane = LaneBuilder::default();
        scheme.build(&Update { writer: from, inputs, changed: changed.len(), homes }, &mut lane);
        turns.push(Turn { span: region.span, lanes: vec![lane.finish(request.run.window)?] });
    }
    request.plan(vertices, turns)
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
