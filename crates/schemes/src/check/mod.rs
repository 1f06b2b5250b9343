//! Checks: whether a stripe's blocks are consistent. If a code's generator is [I; P], its parity check is [P | I]: the
//! product with all blocks is zero at every position. Every block adds its share, as helpers do in a repair, and the
//! sum must be zero.

pub(crate) mod chain;

use crate::{
    LaneBuilder, Named, Request,
    region::{self, Delivery, Region},
    repair::{Helper, Repair, diagonal},
    request::{Turn, Vertices},
};
use weft_gf::SparseMatrix;
use weft_plan::{Lane, Plan, Source, WantKind};
use weft_types::{Error, Party, Result};

/// A scheme that adds up all blocks' parts of a parity check.
pub trait CheckScheme: Named {
    /// The lanes that bring the sum to the checking party, which is the only requestor. They take turns, slice by
    /// slice.
    fn build(&self, check: &Repair) -> Result<Vec<LaneBuilder>>;
}

/// The plan for a job that checks a stripe, for one or several parties, each of which checks all of it.
pub(crate) fn plan(request: &Request<'_>, scheme: &dyn CheckScheme) -> Result<Plan> {
    request.check()?;
    let (mut vertices, mut turns) = (Vertices::default(), Vec::new());
    for region in region::cut(request.job, request.prefer)? {
        for delivery in &region.deliveries {
            let lanes = lanes(request, scheme, &region, delivery, &mut vertices)?;
            turns.push(Turn { span: region.span, lanes });
        }
    }
    request.plan(vertices, turns)
}

fn lanes(
    request: &Request<'_>,
    scheme: &dyn CheckScheme,
    region: &Region,
    delivery: &Delivery,
    vertices: &mut Vertices,
) -> Result<Vec<Lane>> {
    let (code, checker) = (request.code, delivery.party);
    let rows = code.m() * code.alpha();
    if delivery.kind != WantKind::Check || delivery.sub_blocks.len() != rows {
        let (spec, message) = (code.spec(), "a check must want all rows of the parity check and nothing else");
        return Err(Error::invalid(format!("{message}: {spec} has {rows}")).party(checker));
    }
    // A party with several blocks adds them up first.
    let mut blocks: Vec<(Party, Vec<u8>)> = Vec::new();
    for index in code.stored() {
        let span = region.span;
        let absent = || Error::unavailable(format!("block {index} is missing at positions {}..{}", span.start, span.end));
        let holder = region.holder(index, &[checker]).ok_or_else(absent)?;
        match blocks.iter_mut().find(|(party, _)| *party == holder) {
            Some((_, own)) => own.push(index),
            None => blocks.push((holder, vec![index])),
        }
    }
    blocks.sort_by_key(|(party, _)| region.holders.iter().position(|(_, holder)| holder == party));
    let wanted = region::wanted(&[delivery]);
    let (mut helpers, mut columns) = (Vec::with_capacity(blocks.len()), Vec::with_capacity(code.n() * code.alpha()));
    for (party, own) in blocks {
        let sub_blocks: Vec<u16> = (0..=u16::MAX).take(code.alpha()).collect();
        let mut compute = SparseMatrix::zero(0, 0);
        for index in &own {
            compute = diagonal(&compute, &SparseMatrix::identity(code.alpha()));
            columns.extend((0..code.alpha()).map(|s| usize::from(*index) * code.alpha() + s));
        }
        let sources = own.into_iter().map(|index| Source::Block { index, sub_blocks: sub_blocks.clone() }).collect();
        helpers.push(Helper { vertex: vertices.of(party)?, sources, compute });
    }
    let parities: Vec<usize> = (code.k() * code.alpha()..code.n() * code.alpha()).collect();
    let check = code.generator().select_rows(&parities).beside(&SparseMatrix::identity(rows));
    let requestors = region::requestors(&[delivery], &wanted, vertices)?;
    let sum = Repair { rows, helpers, combine: check.select_cols(&columns).into(), requestors };
    scheme.build(&sum)?.iter_mut().map(|lane| lane.finish(request.run.window)).collect()
}
