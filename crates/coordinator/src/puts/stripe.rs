//! The start of a put's stripe: the shell around [`StripeBegin`], which decides. Allocates, plans, opens and starts.

use super::{learn_of, request, simplest, under_way::Sending};
use crate::{
    compute::{compute, compute_among},
    in_flight::Moving,
    meter::PlanKind,
    options,
    shared::Shared,
    sign::{self, Signed},
    supervise::{self, IsSpare},
};
use rand::{SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, iter, sync::Arc, time::Duration};
use weft_codes::SharedCode;
use weft_control::{
    options::WriteOptions,
    placement::Placed,
    planning::{self, Writing},
    put::{
        self, SentStripe, Site, StripeBegin,
        begin::{Action, Event},
        upload::Lesson,
    },
    run::{Levels, OnFailure, StallPolicy},
};
use weft_meta::{Leftovers, NewStripe, UploadRecord};
use weft_proto::v1;
use weft_types::{BlockId, Error, Home, Party, Result, Seq, StripeId, StripeLayout, StripeRecord, UploadId};

/// Takes the place of a stripe's number in the turn to allocate.
const ALLOCATION: u64 = u64::MAX;

/// Allocates a stripe, starts its plan, and returns the client's part. Busy agents are tried `attempts` times.
pub(super) async fn begin_stripe(
    shared: &Arc<Shared>,
    upload: &UploadRecord,
    code: &SharedCode,
    layout: StripeLayout,
    number: u64,
    options: WriteOptions,
    attempts: u32,
) -> Result<(Sending, v1::ClientTask)> {
    let name = &upload.new.name;
    let full = layout.layout.full_stripe(layout.k, layout.m);
    let mut turn = None;
    // A conversion sends stripes in any order and waits for space for each, so it allocates nothing ahead.
    let (ahead, following) = if upload.new.replaces.is_some() {
        (None, Vec::new())
    } else {
        // One call of a put at a time allocates: otherwise one could allocate ahead a stripe that another is sending
        // already.
        turn = Some(shared.puts.turn((upload.id, ALLOCATION)).await);
        shared.puts.with(upload.id, |put| (put.ahead().take(number), put.ahead().following(number, layout, full)))
    };
    // Released unless it is sent as allocated.
    let mut unopened = ahead.as_ref().map(|stripe| stripe.id);
    let machine = StripeBegin::new(request(shared, upload.id, &upload.new, code), layout, options.clone());
    let mut machine = machine.allocated(ahead).with_following(following.clone());
    let layouts: Vec<StripeLayout> = iter::once(layout).chain(following).collect();
    let (mut event, mut begun, mut estimate) = (Event::Begin, None, None);
    loop {
        let mut answer = None;
        for action in place_next(shared, upload.id, &mut machine, event, &options, &mut estimate).await {
            match action {
                Action::Warn(warning) => tracing::warn!(object = %name, stripe = number, "{warning}"),
                Action::Simplest(error) => simplest(shared, upload, number, &error).await,
                Action::Allocate(placed) => {
                    let stripes = new_stripes(number, &layouts, &placed);
                    let allocated = allocate(shared, upload, stripes, unopened.take(), placed).await;
                    drop(turn.take());
                    answer = Some(Event::Allocated(allocated.map(Box::new)));
                }
                Action::Send(sent) => {
                    drop(turn.take());
                    unopened = None;
                    // A plan must not count its own stripe's estimate. It counts itself as soon as it is signed.
                    drop(estimate.take());
                    let prepared = prepare(shared, upload, code, *sent);
                    let started = match prepared {
                        Ok(prepared) => start(shared, upload, code, prepared, attempts).await,
                        Err(error) => Err(error),
                    };
                    answer = Some(Event::Started(started.map(|started| begun = Some(started))));
                }
                Action::End(Err(error)) => return Err(error),
                Action::End(Ok(())) => return begun.ok_or_else(|| Error::fatal("internal error: a stripe was not started")),
            }
        }
        event = answer.ok_or_else(|| Error::fatal("internal error: the start of a stripe waits for nothing"))?;
    }
}

/// Decides what is next. The expected transfers of a stripe count as soon as it is placed, so that each concurrent
/// stripe sees those before it. The transfers of its plan are known later.
async fn place_next(
    shared: &Shared,
    upload: UploadId,
    machine: &mut StripeBegin,
    event: Event,
    options: &WriteOptions,
    estimate: &mut Option<Moving>,
) -> Vec<Action> {
    let _one_at_a_time = shared.puts.placing.lock().await;
    drop(shared.puts.take_announced(upload));
    drop(estimate.take());
    let places = machine.places(&event);
    let next = || with_site(shared, options, |site| machine.on(event, site));
    // The consequences of an answer are computed quickly.
    let actions = if places { compute_among(shared.members.count(), next) } else { next() };
    if let Some(Action::Allocate(placed)) = actions.last() {
        let homes = placed.first().map(|placed| placed.homes.as_slice()).unwrap_or_default();
        let lines = options::announced(options, shared, homes, machine.layout().block_len(0));
        *estimate = Some(shared.in_flight.announce(lines));
    }
    actions
}

pub(super) fn with_site<T>(shared: &Shared, options: &WriteOptions, act: impl FnOnce(&mut Site<'_>) -> T) -> T {
    // Placement takes time and must not hold the shared random generator.
    let mut rng = StdRng::seed_from_u64(shared.draw_seed());
    let (view, speeds) = (shared.members.view(), shared.members.coding_bytes_per_s());
    let coding = |node| speeds.get(&node).copied().unwrap_or(0.0);
    let network = |writer| options::write_network(options, shared, writer);
    act(&mut Site { view: &view, coding_bytes_per_s: &coding, network: &network, rng: &mut rng })
}

/// Allocates a stripe and those that follow it. Gives up an earlier, unopened allocation of it.
async fn allocate(
    shared: &Shared,
    upload: &UploadRecord,
    stripes: Vec<NewStripe>,
    unopened: Option<StripeId>,
    placed: Vec<Placed>,
) -> Result<StripeRecord> {
    let number = stripes.first().map_or(0, |stripe| stripe.number);
    let garbage_not_before_ms = shared.now_ms().saturating_add(shared.config.stall_ms.into());
    let leftovers = Leftovers { unopened: unopened.into_iter().collect(), garbage_not_before_ms };
    let allocated = shared.meta.allocate_stripes(shared.epoch, upload.id, stripes, leftovers).await;
    let allocated = allocated.map_err(|error| shared.meta_error(error))?;
    count_blocks(shared, &allocated);
    let stripe = shared.puts.with(upload.id, |put| {
        put.ahead().allocated(allocated);
        put.ahead().take(number)
    });
    // A client got the warnings when it began its put.
    let warnings = placed.into_iter().next().map(|placed| placed.warnings).unwrap_or_default();
    if shared.puts.learnt(upload.id).warns(upload.new.replaces.is_some(), &warnings) {
        tracing::warn!(object = %upload.new.name, stripe = number, ?warnings, "a conversion puts too many blocks of a stripe into one rack");
        learn_of(shared, upload.id, Lesson::Warned).await;
    }
    stripe.ok_or_else(|| Error::fatal("no stripe was allocated").object(&upload.new.name))
}

/// A stripe's plan that is ready to be opened.
pub(super) struct Prepared {
    sent: Box<SentStripe>,
    plan: weft_plan::Plan,
    signed: Signed,
}

/// Makes the plan that brings blocks of a stripe from its writer to their homes. In the first such plan the writer
/// computes the checksums of all blocks.
pub(super) fn prepare(shared: &Arc<Shared>, upload: &UploadRecord, code: &SharedCode, sent: SentStripe) -> Result<Prepared> {
    compute(|| planned(shared, upload, code, sent))
}

fn planned(shared: &Arc<Shared>, upload: &UploadRecord, code: &SharedCode, sent: SentStripe) -> Result<Prepared> {
    let (stripe, options) = (&sent.stripe, &sent.options);
    let placed: Vec<(BlockId, Home)> = sent.brings().collect();
    let stores: Vec<(Party, BlockId)> = placed.iter().map(|(block, home)| (Party::Node(home.node), *block)).collect();
    let make = || plan(shared, code, (&stripe.layout, &stripe.seq), &stores, options, sent.is_first());
    let planned = shared.meter.plan(PlanKind::Write, make)?;
    let view = shared.members.view();
    let mut orders = BTreeMap::new();
    for (block, home) in placed {
        let order = sign::store_order(shared, code, &upload.new.name, upload.id, stripe, block, home, &view)?;
        orders.insert(block, order);
    }
    let signed = sign::sign(shared, &planned, stripe, &orders, &options.agent)?;
    Ok(Prepared { sent: Box::new(sent), plan: planned.plan, signed })
}

/// Opens, with up to `attempts` attempts, and starts a stripe's plan. Returns the client's part.
pub(super) async fn start(
    shared: &Arc<Shared>,
    upload: &UploadRecord,
    code: &SharedCode,
    prepared: Prepared,
    attempts: u32,
) -> Result<(Sending, v1::ClientTask)> {
    let Prepared { sent, plan, mut signed } = prepared;
    let client = signed.client.take().ok_or_else(|| Error::fatal("internal error: a put's plan has no task for the client"))?;
    let streams = supervise::open(shared, &signed, attempts).await?;
    let (running, handle) = supervise::start(shared, signed, streams, OnFailure::GoOn).await;
    let running = running.all_started().await?;
    let levels = Levels::of(&plan);
    let stall = stall(shared, upload, code, &sent.stripe, (&plan, &levels));
    let report = tokio::spawn(running.finish(|_, _| {}, stall));
    let (plan, handle) = (plan.id, Arc::new(handle));
    Ok((Sending { plan, sent, handle, report, levels }, client))
}

/// How long receivers wait for a node that delays them, and whether another node could take its block.
fn stall(
    shared: &Arc<Shared>,
    upload: &UploadRecord,
    code: &SharedCode,
    stripe: &StripeRecord,
    (plan, levels): (&weft_plan::Plan, &Levels),
) -> Option<(StallPolicy, IsSpare<'static>)> {
    let slice_bytes = plan.binding.slice_len.saturating_mul(stripe.layout.layout.alpha.into());
    let stall_timeout = shared.stall_after(slice_bytes, shared.puts.learnt(upload.id).held_up())?;
    let links_timeout = Duration::from_millis(shared.config.stall_ms.into());
    let policy = StallPolicy::of_put(stall_timeout, links_timeout, levels, upload.new.ack.missing_max);
    let (request, stripe, shared) = (request(shared, upload.id, &upload.new, code), stripe.clone(), Arc::clone(shared));
    let is_spare = move |_| request.has_spare(&stripe, &shared.members.view(), &mut *shared.rng());
    Some((policy, Box::new(is_spare)))
}

fn plan(
    shared: &Shared,
    code: &SharedCode,
    (layout, seq): (&StripeLayout, &Seq),
    stores: &[(Party, BlockId)],
    options: &WriteOptions,
    whole: bool,
) -> Result<planning::Planned> {
    let run = shared.run(options.precedence(), &layout.layout, options.slice_positions(&layout.layout));
    let writer = shared.draw_client();
    let network = options::write_network(options, shared, writer);
    let writing = Writing { writer, seq, stores, whole, scheme: &options.scheme, network: &network, known: &shared.known };
    planning::write(code, layout, &writing, run)
}

pub(super) fn explain(
    shared: &Shared,
    code: &SharedCode,
    layout: &StripeLayout,
    homes: &[Home],
    options: &WriteOptions,
) -> Result<Vec<u8>> {
    let block = |(index, copy)| BlockId { stripe: StripeId(0), index, copy, generation: 1 };
    let named = put::named(homes, layout);
    let stores: Vec<(Party, BlockId)> = named.map(|(name, home)| (Party::Node(home.node), block(name))).collect();
    compute(|| plan(shared, code, (layout, &Seq::FIRST), &stores, options, true)?.json())
}

/// Stripes from `number` on, to be allocated.
pub(super) fn new_stripes(number: u64, layouts: &[StripeLayout], placed: &[Placed]) -> Vec<NewStripe> {
    let new = |((number, layout), placed): ((u64, &StripeLayout), &Placed)| {
        let homes = placed.homes.clone();
        NewStripe { number, layout: *layout, homes }
    };
    (number..).zip(layouts).zip(placed).map(new).collect()
}

/// Counts blocks on their nodes as soon as they are allocated.
pub(super) fn count_blocks(shared: &Shared, stripes: &[StripeRecord]) {
    for stripe in stripes {
        let homes: Vec<Home> = stripe.all().map(|(_, placed)| placed.home).collect();
        shared.members.add_blocks(&homes, stripe.layout.block_len(0));
    }
}
