//! Checks one stripe: the shell around [`StripeCheck`], which decides.

use crate::{blocks, compute::compute, membership, meter::PlanKind, options, shared::Shared, sign, supervise, updates::settle};
use futures::future::join_all;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_codes::SharedCode;
use weft_control::{
    findings::{DOUBTFUL_FROM, Finding, Verdict, is_current},
    planning::{self, Checking, Depth, Planned},
    run::{OnFailure, Report},
    scrub::{Action, End, Event, Outcome, StripeCheck, Summed},
};
use weft_meta::MetaError;
use weft_plan::Class;
use weft_types::{BlockId, BlockState, Error, Home, Owner, Reaction, Result, Seq, StripeId, StripeRecord};

/// Attempts to open a plan at agents that are busy: a scrub has time.
const OPEN_ATTEMPTS: u32 = 4;

/// Checks a stripe, and records what is wrong with it.
pub(crate) async fn check(shared: &Arc<Shared>, id: StripeId) -> Outcome {
    let (mut check, code) = match begin(shared, id).await {
        Ok(Some(begun)) => begun,
        Ok(None) => return Outcome { end: End::Gone, ..Outcome::default() },
        Err(error) => return Outcome { end: End::Again(error), ..Outcome::default() },
    };
    let (mut event, mut moved_bytes) = (Event::Begin, 0);
    loop {
        let action = check.on(event, &shared.members.view());
        event = match action {
            Action::Look(blocks) => {
                let seq = &check.stripe().seq;
                let look = |(block, home)| async move {
                    (block, settled(shared, home, (block, seq), look(shared, home, block).await).await)
                };
                Event::Seen(join_all(blocks.into_iter().map(look)).await)
            }
            Action::Read(block, home) => {
                let units = check.stripe().layout.checksum_units(block.index.into());
                let read = read(shared, home, block, units).await;
                Event::Seen(vec![(block, settled(shared, home, (block, &check.stripe().seq), read).await)])
            }
            Action::Sum { left_out, full } => {
                Event::Summed(sum(shared, &code, check.stripe(), (&left_out[..], full), &mut moved_bytes).await)
            }
            Action::End(outcome) => return Outcome { moved_bytes, ..outcome },
        }
    }
}

/// The stripe and its code, if it is one of an object.
async fn begin(shared: &Arc<Shared>, id: StripeId) -> Result<Option<(StripeCheck, SharedCode)>> {
    settle::if_open(shared, id).await?;
    let found = async {
        let stripe = shared.meta.stripe(id).await?;
        let Owner::Object(version) = stripe.owner else { return Ok(None) };
        Ok::<_, MetaError>(Some((stripe, shared.meta.object_of(version).await?)))
    };
    let (stripe, object) = match found.await {
        Ok(Some(found)) => found,
        Ok(None) | Err(MetaError::NotFound(_)) => return Ok(None),
        Err(error) => return Err(shared.meta_error(error)),
    };
    let code = shared.code(&object.code)?;
    Ok(Some((StripeCheck::new(object.name.to_string(), stripe, code.m() > 0), code)))
}

/// Reads a block again in which something was found, and records what is wrong with it. Fails if that cannot be said now.
pub(crate) async fn look_again(shared: &Shared, block: BlockId) -> Result<Verdict> {
    let found = shared.meta.find_stripes(vec![block.stripe]).await.map_err(|error| shared.meta_error(error))?;
    let Some(stripe) = found.first() else { return Ok(Verdict::Obsolete) };
    let placed = stripe.find(block.index, block.copy).filter(|placed| placed.generation == block.generation);
    let Some(home) = placed.map(|placed| placed.home) else { return Ok(Verdict::Obsolete) };
    let read = read(shared, home, block, stripe.layout.checksum_units(block.index.into())).await;
    match settled(shared, home, (block, &stripe.seq), read).await {
        Verdict::Unknown(why) => Err(Error::retry(why)),
        verdict => Ok(verdict),
    }
}

async fn look(shared: &Shared, home: Home, block: BlockId) -> Result<Verdict> {
    let answer = blocks::asked(shared, home.node, &disk_id(shared, home)?, &[block]).await?;
    Ok(answer.into_iter().next().map_or_else(|| Verdict::Unknown("no answer".to_owned()), |(_, verdict)| verdict))
}

async fn read(shared: &Shared, home: Home, block: BlockId, units: u64) -> Result<Verdict> {
    blocks::read(shared, home, &disk_id(shared, home)?, block, units).await
}

fn disk_id(shared: &Shared, home: Home) -> Result<String> {
    let view = shared.members.view();
    let disk = view.disk(home).map(|disk| disk.id.to_string());
    disk.ok_or_else(|| Error::retry(format!("{} no longer has its disk", view.name(home.node))))
}

/// Records what is wrong with a block of a stripe that contained these updates. What cannot be recorded, or is in doubt, cannot be said now.
async fn settled(shared: &Shared, home: Home, (block, seq): (BlockId, &Seq), said: Result<Verdict>) -> Verdict {
    let verdict = match said {
        Ok(verdict) => verdict,
        Err(error) => return Verdict::Unknown(format!("{}: {}", shared.members.name(home.node), error.message)),
    };
    let is_bad_now = async || {
        let now = blocks::stripes_of(shared, &[block]).await?;
        let now = now.get(&block.stripe);
        if now.is_some_and(|stripe| stripe.seq != *seq) {
            return Err(Error::retry("its stripe was updated meanwhile"));
        }
        Ok::<_, Error>(now.is_some_and(|stripe| is_there_and_bad(stripe, home, block)))
    };
    let (finding, why) = match &verdict {
        Verdict::Wrong(finding, why) => (finding, why),
        // A node also reports what it finds by itself, which may be recorded first.
        Verdict::Obsolete if is_bad_now().await == Ok(true) => {
            return Verdict::Wrong(Finding::Lost(BlockState::Corrupt), "another read has found it bad".to_owned());
        }
        _ => return verdict,
    };
    let recorded = async {
        // Corrupt pages show that the disk answers.
        if matches!(finding, Finding::Lost(_)) {
            require_believable(shared, home, block).await?;
        }
        membership::mark_planned(shared, home.node, block, finding, why, seq).await?;
        is_bad_now().await
    };
    match recorded.await {
        Ok(true) => verdict,
        // It was rebuilt meanwhile, after another read had found the same.
        Ok(false) if *finding != Finding::Lost(BlockState::Missing) => verdict,
        // It may have been moved or removed meanwhile.
        Ok(false) => Verdict::Obsolete,
        Err(error) => Verdict::Unknown(error.message),
    }
}

/// Whether a block is the stripe's on this disk, and known to be bad.
fn is_there_and_bad(stripe: &StripeRecord, home: Home, block: BlockId) -> bool {
    let placed = stripe.find(block.index, block.copy);
    placed.is_some_and(|placed| placed.generation == block.generation && placed.home == home)
        && !is_current(stripe, home.node, block)
}

/// Fails if none of the disk's blocks is right: it may not be mounted, or not read for a while.
async fn require_believable(shared: &Shared, home: Home, block: BlockId) -> Result<()> {
    let page = shared.meta.blocks_on(home, None, 2 * DOUBTFUL_FROM as u32).await.map_err(|error| shared.meta_error(error))?;
    let sample: BTreeSet<BlockId> = page.items.into_iter().chain([block]).collect();
    let sample: Vec<BlockId> = sample.into_iter().collect();
    let verdicts = blocks::asked(shared, home.node, &disk_id(shared, home)?, &sample).await?;
    if shared.scrub.is_in_doubt(home, &verdicts, shared.started.now()) {
        let (name, disk) = (shared.members.name(home.node), shared.members.view().disk(home).map(|disk| disk.path.to_string()));
        let message =
            format!("disk {} of {name} has none of its blocks as they were written: is it mounted?", disk.unwrap_or_default());
        return Err(Error::retry(message));
    }
    Ok(())
}

/// Adds up the parity check of a stripe, and records the blocks that its nodes find bad. Adds what it sends to `moved_bytes`.
async fn sum(
    shared: &Arc<Shared>,
    code: &SharedCode,
    stripe: &StripeRecord,
    (left_out, full): (&[u8], bool),
    moved_bytes: &mut u64,
) -> Summed {
    let mut said: BTreeMap<BlockId, Error> = BTreeMap::new();
    let planned = match planned(shared, code, stripe, left_out, full) {
        Ok(planned) => planned,
        // There are too few blocks for a check, or its matrices are too large to be proved, as those of a code with very many sub-blocks.
        Err(error) => {
            tracing::debug!(stripe = %stripe.id, %error, "no parity check can be planned");
            return Summed::Unable;
        }
    };
    let summed = summed(shared, &planned, stripe).await;
    *moved_bytes = moved_bytes.saturating_add(summed.as_ref().map_or(0, |report| report.traffic().sent_bytes));
    let error = match summed {
        Err(error) => {
            said.extend(error.block.map(|block| (block, error.clone())));
            error
        }
        Ok(report) if !report.any_failed() => return Summed::Zero(planned.job.holds.iter().map(|hold| hold.block).collect()),
        Ok(report) => {
            let findings = report.nodes.iter().flat_map(|(id, node)| node.findings(*id));
            said.extend(findings.map(|(block, _, error)| (block, error.clone())));
            membership::note_bad_blocks(shared, &report, &stripe.seq).await;
            match report.inconsistency().filter(|_| said.is_empty()) {
                Some(error) => return Summed::NotZero(error.message.clone()),
                None => Error { reaction: Reaction::Retry, ..report.cause() },
            }
        }
    };
    match shared.meta.find_stripes(vec![stripe.id]).await {
        Ok(mut now) => Summed::Failed { error, now: now.pop().map(Box::new), said },
        Err(error) => Summed::Failed { error: shared.meta_error(error), now: Some(Box::new(stripe.clone())), said },
    }
}

/// The plan of a check. All stripes of a pass have one seed, so that they share the shapes of their plans.
fn planned(shared: &Shared, code: &SharedCode, stripe: &StripeRecord, left_out: &[u8], full: bool) -> Result<Planned> {
    let network = shared.network_of_helpers();
    let slice_len = options::usual_repair(shared).slice_positions(&stripe.layout, &network);
    let run = shared.run(Class::Scrub.into(), &stripe.layout.layout, slice_len);
    let depth = if full { Depth::Full } else { Depth::Routine { seed: shared.scrub.seed() } };
    let checking = Checking { depth, left_out, network: &network, known: &shared.known };
    let plan = || planning::check(code, stripe, &shared.members.view(), &checking, run);
    compute(|| shared.meter.plan(PlanKind::Check, plan))
}

/// The reports of the nodes about a parity check.
async fn summed(shared: &Arc<Shared>, planned: &Planned, stripe: &StripeRecord) -> Result<Report> {
    let signed = compute(|| sign::sign(shared, planned, stripe, &BTreeMap::new(), ""))?;
    let streams = supervise::open(shared, &signed, OPEN_ATTEMPTS).await?;
    let (running, _client) = supervise::start(shared, signed, streams, OnFailure::EndAll).await;
    Ok(running.finish(|_, _| {}, None).await)
}
