//! Checks: whether a stripe's blocks are consistent. Every block adds its part of a parity check, as helpers do in a repair, and the sum
//! must be zero. A check computes either a random combination that finds any single wrong block, or all rows: see [`check_rows`].
//!
//! Absent blocks are left out. So a check also finds out which block is wrong: the one without which the others are consistent.

pub(crate) mod chain;
mod parity;

use crate::{
    LaneBuilder, Named, Request,
    patterns::{CheckKey, identity},
    region::{self, Delivery, Region},
    repair::{Helper, Repair, diagonal},
    request::{Turn, Vertices},
};
use weft_gf::SparseMatrix;
use weft_plan::{Lane, Plan, Source, WantKind};
use weft_types::{Error, Party, Result};

pub use parity::check_rows;

/// A scheme that adds up blocks' parts of a parity check.
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
    let (code, checker, rows) = (request.code, delivery.party, delivery.sub_blocks.len());
    let is_first_rows = delivery.sub_blocks.iter().map(|row| usize::from(*row)).eq(0..rows);
    if delivery.kind != WantKind::Check || !is_first_rows {
        let message = "a check must want rows of the parity check, counted from 0, and nothing else";
        return Err(Error::invalid(message).party(checker));
    }
    // A party with several blocks adds them up first.
    let mut blocks: Vec<(Party, Vec<u8>)> = Vec::new();
    for index in code.stored() {
        let Some(holder) = region.holder(index, &[checker]) else { continue };
        match blocks.iter_mut().find(|(party, _)| *party == holder) {
            Some((_, own)) => own.push(index),
            None => blocks.push((holder, vec![index])),
        }
    }
    blocks.sort_by_key(|(party, _)| region.holders.iter().position(|(_, holder)| holder == party));
    let helpers = blocks.into_iter().map(|(party, own)| Ok((vertices.of(party)?, own))).collect::<Result<Vec<_>>>()?;
    let key = CheckKey {
        code: code.spec(),
        scheme: identity(scheme.name(), scheme),
        window: request.run.window,
        helpers: helpers.clone(),
        checker: vertices.of(checker)?,
        rows,
        seed: request.seed,
    };
    let make = || {
        let held: Vec<u8> = helpers.iter().flat_map(|(_, own)| own.iter().copied()).collect();
        let refused = |error: Error| error.party(checker);
        let combine = parity::combinations(code, &held, rows, request.seed).map_err(refused)?;
        let combine = combine.select_cols(&parity::columns(code, &held)).into();
        let wanted = region::wanted(&[delivery]);
        let requestors = region::requestors(&[delivery], &wanted, vertices)?;
        let sum = Repair {
            rows,
            helpers: helpers.into_iter().map(|(vertex, own)| helper(request, vertex, own)).collect(),
            combine,
            requestors,
        };
        scheme.build(&sum)?.iter_mut().map(|lane| lane.finish(request.run.window)).collect()
    };
    match request.patterns {
        Some(patterns) => patterns.check(key, make),
        None => make(),
    }
}

/// Reads these blocks.
fn helper(request: &Request<'_>, vertex: u16, blocks: Vec<u8>) -> Helper {
    let alpha = request.code.alpha();
    let sub_blocks: Vec<u16> = (0..=u16::MAX).take(alpha).collect();
    let one = SparseMatrix::identity(alpha);
    let compute = blocks.iter().fold(SparseMatrix::zero(0, 0), |compute, _| diagonal(&compute, &one));
    let sources = blocks.into_iter().map(|index| Source::Block { index, sub_blocks: sub_blocks.clone() }).collect();
    Helper { vertex, sources, compute }
}
