//! The plans of offline work: made by the same schemes as a cluster's, verified before a byte is touched, and run over files.

use super::{
    Geometry,
    files::{Files, SELF, block_id, holder},
};
use std::collections::BTreeMap;
use weft_codes::SharedCode;
use weft_plan::{Change, Class, CodeView, Hold, Input, Job, Plan, Want, WantKind};
use weft_schemes::{Request, Run, disseminate, plan_repair, plan_write, repair};
use weft_types::{Error, PlanId, Result, Span};

/// All blocks, from the file.
pub(crate) fn encode(code: &SharedCode, geometry: &Geometry) -> Result<Plan> {
    let span = geometry.stripe.coded_span();
    let all = sub_blocks(code);
    let data = 0..code.k() as u8;
    let changed = data.clone().flat_map(|index| all.iter().map(move |sub_block| Change { index, sub_block: *sub_block, span }));
    let want = |index| Want { kind: WantKind::Store, party: holder(index), index, sub_blocks: all.clone(), span };
    let job = Job {
        holds: Vec::new(),
        inputs: data.clone().map(|index| Input { party: SELF, index }).collect(),
        changed: changed.collect(),
        wants: (0..code.n() as u8).map(want).collect(),
    };
    let stores: Vec<_> = (0..code.n() as u8).map(|index| (holder(index), block_id(index))).collect();
    let request = request(code, geometry, &job, &stores);
    proved(plan_write(&request, disseminate::by_name("direct")?)?, code, &job)
}

/// The positions `wanted` of blocks, from what `good` says is there: both by block.
pub(crate) fn rebuild(code: &SharedCode, geometry: &Geometry, wanted: &Spans, good: &Spans) -> Result<Plan> {
    let all = sub_blocks(code);
    let len = |index: u8| geometry.stripe.block_len(index.into());
    // Short blocks first: what is not there need not be read.
    let mut order: Vec<u8> = good.keys().copied().collect();
    order.sort_by_key(|index| (len(*index), *index));
    let hold = |index: &u8| {
        let of = |span: &Span| Hold { party: holder(*index), block: block_id(*index), span: *span };
        good[index].iter().map(of).collect::<Vec<_>>()
    };
    let want = |(index, spans): (&u8, &Vec<Span>)| {
        let (index, sub_blocks) = (*index, all.clone());
        let of =
            move |span: &Span| Want { kind: WantKind::Output, party: SELF, index, sub_blocks: sub_blocks.clone(), span: *span };
        spans.iter().map(of).collect::<Vec<_>>()
    };
    let job =
        Job { holds: order.iter().flat_map(hold).collect(), wants: wanted.iter().flat_map(want).collect(), ..Job::default() };
    let request = request(code, geometry, &job, &[]);
    proved(plan_repair(&request, repair::by_name("conventional")?)?, code, &job)
}

/// Positions, by block.
pub(crate) type Spans = BTreeMap<u8, Vec<Span>>;

/// Runs a verified plan over files, in bounded memory.
pub(crate) fn run(plan: &Plan, files: &mut Files<'_>) -> Result<()> {
    weft_plan::eval(plan, files)
}

/// What a plan sends over its links, bytes.
pub(crate) fn bytes_moved(plan: &Plan) -> u64 {
    let lane = |lane: &weft_plan::Lane| {
        let width: u64 = lane.links.iter().map(|link| u64::from(link.width)).sum();
        width * lane.slice_set(plan.binding.slice_len).positions()
    };
    plan.shape.lanes.iter().map(lane).sum()
}

/// What a code is to a plan's proof.
pub(crate) fn prove(plan: &Plan, code: &SharedCode, job: &Job) -> Result<()> {
    let view = CodeView {
        spec: &code.spec(),
        k: code.k(),
        n: code.n(),
        alpha: code.alpha(),
        generator: code.generator(),
        tolerance: code.tolerance(),
    };
    weft_plan::verify(plan, view, job).map_err(Error::from)
}

fn proved(plan: Plan, code: &SharedCode, job: &Job) -> Result<Plan> {
    // We made it ourselves: a refusal is a defect of a scheme, and better told than run.
    prove(&plan, code, job).map_err(|error| Error::fatal(error.message)).map(|()| plan)
}

fn request<'a>(
    code: &'a SharedCode,
    geometry: &Geometry,
    job: &'a Job,
    stores: &'a [(weft_types::Party, weft_types::BlockId)],
) -> Request<'a> {
    let slice_len = geometry.stripe.layout.positions();
    let run = Run::new(PlanId(1), 0, Class::Foreground, slice_len);
    Request { code: code.as_ref(), stripe: geometry.stripe, job, stores, prefer: &[], run }
}

fn sub_blocks(code: &SharedCode) -> Vec<u16> {
    (0..code.alpha() as u16).collect()
}
