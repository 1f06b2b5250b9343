//! The plan that adds up the parity check of a stripe.

use crate::{in_flight::Lines, known::Known, planning::Planned};
use weft_codes::SharedCode;
use weft_plan::{Hold, Job, Network, Want, WantKind};
use weft_schemes::{Kind, Request, Run, choose_quickly, code_view, simplest};
use weft_types::{Error, Party, PlacedBlock, Result, StripeRecord};

/// A plan that checks the first copies of all blocks of a stripe against each other, at all positions: their shares of the parity check pass
/// along a chain of their nodes, and the last one checks that the sum is zero. Every node reads its block to the end.
pub fn sum(code: &SharedCode, stripe: &StripeRecord, network: &Network, known: &Known, run: Run) -> Result<Planned> {
    let code = &known.shortened(code, stripe.dimension());
    let (span, rows) = (stripe.layout.coded_span(), code.m() * code.alpha());
    let held = |(index, placed): (u8, &PlacedBlock)| Hold {
        party: Party::Node(placed.home.node),
        block: stripe.id_of(index, placed),
        span,
    };
    let holds: Vec<Hold> = stripe.firsts().map(held).collect();
    // Each stripe another one, so that no node has more of the work.
    let at = usize::try_from(stripe.id.0).unwrap_or_default() % holds.len().max(1);
    let party =
        holds.get(at).map(|hold| hold.party).ok_or_else(|| Error::invalid("a stripe without blocks cannot be checked"))?;
    let sub_blocks = (0..=u16::MAX).take(rows).collect();
    let want = Want { kind: WantKind::Check, party, index: 0, sub_blocks, span };
    let job = Job { holds, wants: vec![want], ..Job::default() };
    let request = Request { seq: &stripe.seq, network, ..Request::new(code.as_ref(), stripe.layout, &job, run) };
    let (plan, considered) = choose_quickly(&request, simplest(Kind::Check)?.name())?;
    let wrong = |refusal| Error::fatal(format!("a scheme made a wrong plan, which was not run: {refusal}"));
    known.proofs.verify(&plan, code_view(code.as_ref(), &code.spec()), &job).map_err(wrong)?;
    let lines: Lines = weft_plan::moved(&plan, network).map_err(wrong)?;
    Ok(Planned { plan, job, considered, lines })
}
