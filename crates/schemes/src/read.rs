//! Plain reads: an available block goes from its holder to the party that wants it; to a disk, this is a move.

use crate::{
    LaneBuilder,
    region::{self, Delivery},
    request::Vertices,
};
use weft_gf::SparseMatrix;
use weft_plan::{Lane, Source};
use weft_types::{Party, Result};

/// One lane that brings `deliveries`, all of one party and one block, from `holder`.
pub(crate) fn lane(window: u32, holder: Party, deliveries: &[&Delivery], vertices: &mut Vertices) -> Result<Lane> {
    let wanted = region::wanted(deliveries);
    let index = wanted.first().map_or(0, |first| first.index);
    let sub_blocks = wanted.iter().map(|wanted| wanted.sub_block).collect();
    let from = vertices.of(holder)?;
    let requestors = region::requestors(deliveries, &wanted, vertices)?;
    let mut lane = LaneBuilder::default();
    lane.deliver(from, vec![Source::Block { index, sub_blocks }], &SparseMatrix::identity(wanted.len()).into(), &requestors);
    lane.finish(window)
}
