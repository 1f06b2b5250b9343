//! Writes of new data: the writer has data blocks, and nodes store what the code makes of them.
//!
//! *Mist* is J. Li, B. Li and B. Li, *Mist: Efficient Dissemination of Erasure-coded Data in Data Centers* (IEEE Transactions on
//! Emerging Topics in Computing): the sections named in the files of this folder are its.

mod assign;
mod direct;
mod grow;
mod mist;
mod topology;

use crate::{
    LaneBuilder, Named, Request, Requestor,
    region::{self, Delivery, Region},
    request::Vertices,
};
use weft_codes::{Code, SubBlock};
use weft_gf::Factored;
use weft_plan::{Lane, Plan, Sink, Source};
use weft_types::{Error, Party, Result};

pub use assign::{Candidate, Racks, assign};
pub(crate) use direct::Direct;
pub use mist::Mist;
pub use topology::{Edge, Load, Receiver, Topology, Upstream};

/// A way to bring new blocks to the nodes that store them.
pub trait WriteScheme: Named {
    /// Adds the stages that bring every home its rows.
    fn build(&self, write: &Write<'_>, lane: &mut LaneBuilder) -> Result<()>;

    /// Who sends how much to whom, where each of a code's blocks is stored once: by their indexes.
    fn edges(&self, code: &dyn Code) -> Vec<Edge> {
        (0..code.n()).map(|to| Edge { from: None, to, blocks: 1.0 }).collect()
    }
}

/// What a scheme is given: what the writer has, what is wanted of it, and by whom.
#[derive(Debug)]
pub struct Write<'a> {
    /// The code.
    pub code: &'a dyn Code,
    /// The writer's vertex.
    pub writer: u16,
    /// The data blocks that it can put in.
    pub data: Vec<u8>,
    /// Every sub-block that somebody wants, each once, ascending.
    pub wanted: Vec<SubBlock>,
    /// Who wants which.
    pub homes: Vec<Home>,
}

/// Somebody to whom something is brought.
#[derive(Debug)]
pub struct Home {
    /// It wants rows of [`Write::wanted`].
    pub requestor: Requestor,
    /// The index and the copy of the whole block that it stores, if that is all that it wants.
    pub block: Option<(u8, u8)>,
    /// It stands on the writer's machine, and others do not: what the writer gives it loads no link.
    pub is_near: bool,
}

impl Write<'_> {
    /// Some of what is wanted, over those data sub-blocks that it is made of, which must be put in.
    pub fn encoded(&self, wanted: &[usize]) -> Result<(Vec<Source>, Factored)> {
        let alpha = self.code.alpha();
        let row = |at: &usize| usize::from(self.wanted[*at].index) * alpha + usize::from(self.wanted[*at].sub_block);
        let rows = self.code.encode().after_sources().select_rows(&wanted.iter().map(row).collect::<Vec<_>>());
        let cols = rows.sources_used();
        let mut inputs: Vec<Source> = Vec::new();
        for col in &cols {
            let (needed, sub_block) = ((col / alpha) as u8, (col % alpha) as u16);
            match inputs.last_mut() {
                Some(Source::Input { index, sub_blocks, .. }) if *index == needed => sub_blocks.push(sub_block),
                _ => inputs.push(Source::Input { index: needed, sub_blocks: vec![sub_block], delta: false }),
            }
            if !self.data.contains(&needed) {
                return Err(Error::invalid(format!("data block {needed} is needed and not put in")));
            }
        }
        Ok((inputs, rows.select_cols(&cols)))
    }
}

/// A plan for a job that wants blocks of new data stored. All inputs are one party's.
pub(crate) fn plan(request: &Request<'_>, scheme: &dyn WriteScheme) -> Result<Plan> {
    request.check()?;
    let writer = request.job.inputs.first().ok_or_else(|| Error::invalid("nobody puts in any data"))?.party;
    if let Some(other) = request.job.inputs.iter().find(|input| input.party != writer) {
        return Err(Error::invalid("all new data must come from one writer").party(other.party));
    }
    let (mut vertices, mut lanes) = (Vertices::default(), Vec::new());
    for region in region::cut(request.job, request.prefer)? {
        lanes.push(vec![lane(request, scheme, writer, &region, &mut vertices)?]);
    }
    request.plan(vertices, lanes)
}

fn lane(
    request: &Request<'_>,
    scheme: &dyn WriteScheme,
    writer: Party,
    region: &Region,
    vertices: &mut Vertices,
) -> Result<Lane> {
    let deliveries: Vec<&Delivery> = region.deliveries.iter().collect();
    let wanted = region::wanted(&deliveries);
    let data = request.job.inputs.iter().map(|input| input.index).collect();
    let is_near = |party: Party| request.network.host_of_both(writer, party).is_some();
    let all_near = request.stores.iter().all(|(party, _)| is_near(*party));
    let from = vertices.of(writer)?;
    let requestors = region::requestors(&deliveries, &wanted, vertices)?;
    let home = |requestor: Requestor| {
        let is_near = !all_near && vertices.party(requestor.vertex).is_some_and(is_near);
        let stored = match requestor.sinks.as_slice() {
            [Sink::Store { index, sub_blocks }] if sub_blocks.len() == request.code.alpha() => Some(*index),
            _ => None,
        };
        let id = stored.and_then(|index| request.store(vertices.party(requestor.vertex)?, index));
        Home { requestor, block: id.map(|id| (id.index, id.copy)), is_near }
    };
    let homes = requestors.into_iter().map(home).collect();
    let mut lane = LaneBuilder::default();
    scheme.build(&Write { code: request.code, writer: from, data, wanted, homes }, &mut lane)?;
    lane.finish(region.span, request.run.window)
}
