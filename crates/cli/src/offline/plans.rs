//! The plans of offline work: made by the same schemes as a cluster's, verified before a byte moves, and run over files.

use super::{
    files::{Files, SELF, block_id, holder},
    manifest::Geometry,
};
use std::collections::BTreeMap;
use weft_codes::SharedCode;
use weft_plan::{Change, Class, CodeView, Hold, Input, Job, Plan, Refusal, Want, WantKind};
use weft_schemes::{Kind, Request, Run, Select, simplest};
use weft_types::{Error, PlanId, Result, Span};

/// A verified plan with its job.
#[derive(Debug)]
pub(crate) struct Proved {
    pub(crate) plan: Plan,
    pub(crate) job: Job,
}

/// Encodes all blocks from the file.
pub(crate) fn encode(code: &SharedCode, geometry: &Geometry) -> Result<Proved> {
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
    let plan = weft_schemes::plan(&request, simplest(Kind::Write)?)?;
    Proved::new(plan, code, job)
}

/// Computes the positions `wanted` of blocks from the positions `good`, both by block.
pub(crate) fn rebuild(code: &SharedCode, geometry: &Geometry, wanted: &Spans, good: &Spans) -> Result<Proved> {
    let all = sub_blocks(code);
    let len = |index: u8| geometry.stripe.block_len(index.into());
    // Short blocks first: bytes beyond their end need not be read.
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
    let plan = weft_schemes::plan(&request, simplest(Kind::Repair)?)?;
    Proved::new(plan, code, job)
}

/// Positions, by block.
pub(crate) type Spans = BTreeMap<u8, Vec<Span>>;

impl Proved {
    fn new(plan: Plan, code: &SharedCode, job: Job) -> Result<Self> {
        // A refusal means that a scheme has a bug: report it instead of running the plan.
        prove(&plan, code, &job).map_err(|refusal| Error::fatal(format!("the scheme's plan is refused: {refusal}")))?;
        Ok(Self { plan, job })
    }

    /// Runs it over files in bounded memory.
    pub(crate) fn run(&self, files: &mut Files<'_>) -> Result<()> {
        weft_plan::eval(&self.plan, files)
    }

    /// Bytes sent over its links.
    pub(crate) fn bytes_moved(&self) -> Result<u64> {
        Ok(weft_plan::cost(&self.plan)?.moved_bytes())
    }
}

/// Verifies that a plan does its job with a code.
pub(crate) fn prove(plan: &Plan, code: &SharedCode, job: &Job) -> std::result::Result<(), Refusal> {
    let spec = code.spec();
    let (k, n, alpha, generator, tolerance) = (code.k(), code.n(), code.alpha(), code.generator(), code.tolerance());
    weft_plan::verify(plan, CodeView { spec: &spec, k, n, alpha, generator, tolerance }, job)
}

fn request<'a>(
    code: &'a SharedCode,
    geometry: &Geometry,
    job: &'a Job,
    stores: &'a [(weft_types::Party, weft_types::BlockId)],
) -> Request<'a> {
    let slice_len = geometry.stripe.layout.positions();
    let run = Run::new(PlanId(1), 0, Class::Foreground, slice_len);
    Request { stores, select: Select::AsPreferred, ..Request::new(code.as_ref(), geometry.stripe, job, run) }
}

fn sub_blocks(code: &SharedCode) -> Vec<u16> {
    (0..code.alpha() as u16).collect()
}
