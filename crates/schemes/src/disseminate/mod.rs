//! Writes of new data: the writer has data blocks, and nodes store the blocks of the code.
//!
//! *Mist* is J. Li, B. Li and B. Li, *Mist: Efficient Dissemination of Erasure-coded Data in Data Centers* (IEEE Transactions
//! on Emerging Topics in Computing). Section numbers in this folder refer to it.

mod assign;
pub(crate) mod direct;
mod grow;
mod mist;
mod topology;

use crate::{
    LaneBuilder, Named, Request, Requestor,
    patterns::{WriteKey, identity},
    region::{self, Delivery, Region},
    request::{Turn, Vertices},
};
use weft_codes::{Code, SubBlock};
use weft_gf::Factored;
use weft_plan::{Lane, Plan, Sink, Source, WantKind};
use weft_types::{Party, Result};

pub use assign::{Candidate, Racks, assign};
pub use mist::Mist;
pub use topology::{Edge, Load, Receiver, Topology, Upstream};

/// A scheme that brings new blocks to the nodes that store them.
pub trait WriteScheme: Named {
    /// Adds the stages that bring every home its rows.
    fn build(&self, write: &Write<'_>, lane: &mut LaneBuilder) -> Result<()>;

    /// The transfers if each of a code's blocks is stored once, by block index.
    fn edges(&self, code: &dyn Code) -> Vec<Edge> {
        (0..code.n()).map(|to| Edge { from: None, to, blocks: 1.0 }).collect()
    }
}

/// The input of a scheme: what the writer has, what is wanted, and by which parties.
#[derive(Debug)]
pub struct Write<'a> {
    /// The request, with its code.
    pub request: &'a Request<'a>,
    /// The writer's vertex.
    pub writer: u16,
    /// Every sub-block that a home wants, each once, ascending.
    pub wanted: Vec<SubBlock>,
    /// The homes, and what each wants.
    pub homes: Vec<Home>,
}

/// A receiver of new blocks.
#[derive(Debug)]
pub struct Home {
    /// The rows of [`Write::wanted`] that it wants.
    pub requestor: Requestor,
    /// The index and the copy of the whole block that it stores, if it wants nothing else.
    pub block: Option<(u8, u8)>,
    /// Whether it alone is on the writer's machine: what the writer sends it uses no link.
    pub is_near: bool,
}

impl Write<'_> {
    /// Some of the wanted sub-blocks, as combinations of the data sub-blocks that they need, which must be inputs.
    pub fn encoded(&self, wanted: &[usize]) -> Result<(Vec<Source>, Factored)> {
        let alpha = self.request.code.alpha();
        let row = |at: &usize| usize::from(self.wanted[*at].index) * alpha + usize::from(self.wanted[*at].sub_block);
        let rows = self.request.code.encode().after_sources().select_rows(&wanted.iter().map(row).collect::<Vec<_>>());
        let cols = rows.sources_used();
        Ok((self.request.inputs(&cols, false)?, rows.select_cols(&cols)))
    }
}

/// The plan for a job that stores blocks of new data. All inputs must belong to one party.
pub(crate) fn plan(request: &Request<'_>, scheme: &dyn WriteScheme) -> Result<Plan> {
    request.check()?;
    let writer = request.writer()?;
    let (mut vertices, mut turns) = (Vertices::default(), Vec::new());
    for region in region::cut(request.job, request.prefer)? {
        let lanes = vec![lane(request, scheme, writer, &region, &mut vertices)?];
        turns.push(Turn { span: region.span, lanes });
    }
    request.plan(vertices, turns)
}

fn lane(
    request: &Request<'_>,
    scheme: &dyn WriteScheme,
    writer: Party,
    region: &Region,
    vertices: &mut Vertices,
) -> Result<Lane> {
    let is_near = |party: Party| request.network.host_of_both(writer, party).is_some();
    let all_near = request.stores.iter().all(|(party, _)| is_near(*party));
    let is_near = |party: Party| !all_near && is_near(party);
    let copy = |party: Party, index: u8| request.store(party, index).map(|id| id.copy);
    let from = vertices.of(writer)?;
    let want = |delivery: &Delivery| {
        let Delivery { party, kind, index, sub_blocks } = delivery;
        let stored = (*kind == WantKind::Store).then(|| copy(*party, *index)).flatten();
        Ok(((vertices.of(*party)?, *kind, *index, sub_blocks.clone()), stored, is_near(*party)))
    };
    let key = WriteKey {
        code: request.code.spec(),
        scheme: identity(scheme.name(), scheme),
        window: request.run.window,
        writer: from,
        inputs: request.job.inputs.iter().map(|input| input.index).collect(),
        wants: region.deliveries.iter().map(want).collect::<Result<_>>()?,
    };
    let mut make = || {
        let deliveries: Vec<&Delivery> = region.deliveries.iter().collect();
        let wanted = region::wanted(&deliveries);
        let requestors = region::requestors(&deliveries, &wanted, vertices)?;
        let home = |requestor: Requestor| {
            let party = vertices.party(requestor.vertex);
            let block = match (party, requestor.sinks.as_slice()) {
                (Some(party), [Sink::Store { index, sub_blocks }]) if sub_blocks.len() == request.code.alpha() => {
                    copy(party, *index).map(|copy| (*index, copy))
                }
                _ => None,
            };
            Home { requestor, block, is_near: party.is_some_and(is_near) }
        };
        let homes = requestors.into_iter().map(home).collect();
        let (write, mut lane) = (Write { request, writer: from, wanted, homes }, LaneBuilder::default());
        scheme.build(&write, &mut lane)?;
        lane.finish(request.run.window)
    };
    match request.patterns {
        Some(patterns) => patterns.write(key, make),
        None => make(),
    }
}
