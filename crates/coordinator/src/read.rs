//! Reads: a plan that brings ranges of a stripe's data blocks to a client, and rebuilds what is lost.

pub(crate) mod under_way;

use crate::{
    compute::compute,
    delegations::Delegation,
    membership,
    meter::{OpenRead, PlanKind},
    options,
    shared::Shared,
    show, sign,
    supervise::{self, IsSpare},
    tasks,
    updates::{at_nodes, settle},
    validate,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;
use under_way::Reading;
use weft_control::{
    planning::Range,
    read::{self, Action, Event, PlanRequest, PlannedRead, Read, Request},
    run::{OnFailure, StallPolicy},
    view::View,
};
use weft_meta::ObjectRecord;
use weft_proto::{status::decode_error, v1};
use weft_types::{CHECKSUM_UNIT_LEN, Error, NodeId, PAGE_LEN, PlanId, Reaction, Result, Span, StripeRecord, UploadId};

/// The most ranges of one request.
const RANGES_MAX: usize = 4096;
/// The most checksum units whose pages an answer contains: 1 MiB of checksums.
const UNITS_MAX: usize = 1024;

/// An object and one of its stripes.
type Found = (ObjectRecord, StripeRecord);

/// Plans a read and, unless it is only explained, opens and starts it. A client that can read an open stripe at its nodes gets no plan for it.
pub(crate) async fn read_stripe(
    shared: &Arc<Shared>,
    asked: v1::ReadStripeRequest,
    delegation: Option<&Delegation>,
) -> Result<v1::ReadStripeReply> {
    let (mut object, mut found) = find(shared, &asked).await?;
    let ranges = ranges(&found, &asked.ranges).map_err(|error| error.object(&object.name))?;
    // What a conversion reads must be in the metadata.
    let may_stay_open = asked.at_nodes && asked.errors.is_empty() && delegation.is_none();
    let at_nodes = if may_stay_open { at_nodes::at_nodes(shared, &found, &ranges).await? } else { None };
    if !asked.explain {
        if at_nodes.is_some() {
            shared.meter.open_read(OpenRead::Nodes);
            return Ok(v1::ReadStripeReply { at_nodes, ..v1::ReadStripeReply::default() });
        }
        (object, found) = settled(shared, &asked, (object, found)).await?;
    }
    let place = |error: Error| error.object(&object.name);
    let code = shared.code(&object.code)?;
    let options = options::of_read(shared, &asked).map_err(place)?;
    if !asked.errors.is_empty() {
        let blamed = shared.reads.verdict(PlanId(asked.failed_plan), found.id, delegation, shared.config.failure_grace_ms).await;
        // With what the agents have since reported about their blocks.
        found = find_settled(shared, &asked).await?.1;
        let errors = asked.errors.iter().filter_map(|bytes| decode_error(bytes));
        let errors: Vec<Error> = errors.filter(|error| delegation.is_none() || read::is_about(error, &found)).collect();
        for error in &errors {
            tracing::warn!(object = %object.name, %error, "a read failed");
            // Only agents' own reports are recorded in the metadata.
            let (node, block) = read::avoided(error, &found, blamed);
            node.into_iter()
                .for_each(|node| shared.members.suspect_because(node, &format!("a client reports: {}", error.message)));
            block.into_iter().for_each(|block| shared.members.suspect_block(block));
        }
        let blocks = shared.reads.blocks(PlanId(asked.failed_plan), delegation);
        for block in compute(|| read::doubted(&code, &found, &errors, &blocks, &shared.members.view())) {
            tracing::info!(object = %object.name, %block, "a block was rebuilt wrong: reads do without this helper for a while");
            shared.members.suspect_block(block);
        }
    }
    let delegate = delegation.map(|delegation| delegation.node);
    let (slice_bytes, stripe) = (shared.config.slice_len.0, found);
    let read = Read::new(Request { code, stripe, ranges, options, slice_bytes, delegate });
    if asked.explain {
        let view = shared.members.view();
        let ask = read.ask(&view, &mut *shared.rng());
        let reply = plan(shared, &ask, &view).and_then(|planned| reply(&planned, None));
        return explained(at_nodes, reply).map_err(place);
    }
    until_started(shared, &asked, read, delegation).await.map_err(place)
}

/// Plans, opens and starts the read of ranges of a stripe that was just looked up as part of an object.
pub(crate) async fn begin_with(
    shared: &Arc<Shared>,
    object: &v1::ObjectReply,
    asked: v1::BeginRead,
    (stripe, ranges): (StripeRecord, Vec<Range>),
) -> Result<v1::BegunRead> {
    let number = stripe.number;
    if asked.at_nodes
        && let Some(at_nodes) = at_nodes::at_nodes(shared, &stripe, &ranges).await?
    {
        shared.meter.open_read(OpenRead::Nodes);
        let reply = v1::ReadStripeReply { at_nodes: Some(at_nodes), ..v1::ReadStripeReply::default() };
        return Ok(v1::BegunRead { number, reply: Some(reply) });
    }
    // It must be looked up again, once it is settled.
    settle::require(shared, stripe.id)?;
    let asked = v1::ReadStripeRequest {
        bucket: object.bucket.clone(),
        key: object.key.clone(),
        version: object.version,
        number,
        scheme: asked.scheme,
        slice_len: asked.slice_len,
        slice_auto: asked.slice_auto,
        ..v1::ReadStripeRequest::default()
    };
    let (code, options) = (shared.code(&object.code)?, options::of_read(shared, &asked)?);
    let request = Request { code, stripe, ranges, options, slice_bytes: shared.config.slice_len.0, delegate: None };
    let reply = until_started(shared, &asked, Read::new(request), None).await?;
    Ok(v1::BegunRead { number, reply: Some(reply) })
}

/// Makes plans until one runs. `asked` is for looking the stripe up again.
async fn until_started(
    shared: &Arc<Shared>,
    asked: &v1::ReadStripeRequest,
    mut read: Read,
    delegation: Option<&Delegation>,
) -> Result<v1::ReadStripeReply> {
    // A client does not send the number of its attempts; that there was one is known.
    let resumed = u32::from(!asked.errors.is_empty());
    let (mut event, mut started) = (Event::Begin, None);
    loop {
        let view = shared.members.view();
        let actions = read.on(event, &view, &mut *shared.rng());
        let mut answer = None;
        for action in actions {
            match action {
                Action::Suspect(node) => shared.members.suspect(node),
                Action::Plan(ask) => answer = Some(Event::Planned(plan(shared, &ask, &view).map(Box::new))),
                Action::Start(planned) => {
                    let begun = begin(shared, planned, resumed, delegation).await;
                    let tell = |error: &Error| {
                        let v1::ReadStripeRequest { bucket, key, number, .. } = asked;
                        tracing::info!(object = %format_args!("{bucket}/{key}"), stripe = number, %error, "a read did not start");
                    };
                    let begun = begun.inspect_err(tell);
                    answer = Some(Event::Started(begun.map(|reply| started = Some(reply))));
                }
                Action::LookUp => answer = Some(Event::LookedUp(find_settled(shared, asked).await.map(|(_, stripe)| stripe))),
                Action::End(Err(error)) => return Err(error),
                Action::End(Ok(())) => return started.ok_or_else(|| Error::fatal("internal error: a read was not started")),
            }
        }
        event = answer.ok_or_else(|| Error::fatal("internal error: a read waits for nothing"))?;
    }
}

/// The client ends a plan. Its outcome stays known for a moment: see [`Reads::verdict`].
pub(crate) fn end_read(shared: &Shared, asked: &v1::EndReadRequest, delegation: Option<&Delegation>) {
    shared.reads.end(PlanId(asked.plan), delegation, Duration::from_millis(shared.config.failure_grace_ms));
}

/// The stripe as it can be read: what is open for updates is settled first.
async fn find_settled(shared: &Arc<Shared>, asked: &v1::ReadStripeRequest) -> Result<Found> {
    let found = find(shared, asked).await?;
    settled(shared, asked, found).await
}

async fn settled(shared: &Arc<Shared>, asked: &v1::ReadStripeRequest, (object, stripe): Found) -> Result<Found> {
    match settle::if_open(shared, stripe.id).await.map_err(|error| error.object(&object.name))? {
        true => {
            shared.meter.open_read(OpenRead::Settled);
            find(shared, asked).await
        }
        false => Ok((object, stripe)),
    }
}

async fn find(shared: &Shared, asked: &v1::ReadStripeRequest) -> Result<Found> {
    let name = validate::object(&asked.bucket, &asked.key)?;
    let found = match asked.version {
        0 => shared.meta.object(&name).await,
        version => shared.meta.object_of(UploadId(version)).await,
    };
    let object = found.map_err(|error| shared.meta_error(error).object(&name))?;
    if object.name != name {
        return Err(Error::not_found(format!("{name} has no version {}", asked.version)).object(&name));
    }
    let page = shared.meta.stripes(object.version, asked.number, 1).await.map_err(|error| shared.meta_error(error))?;
    let stripe = page.items.into_iter().next().filter(|stripe| stripe.number == asked.number);
    let Some(stripe) = stripe else {
        // The object may have been replaced or removed since.
        shared.meta.object_of(object.version).await.map_err(|error| shared.meta_error(error).object(&name))?;
        let (number, stripes) = (asked.number, object.stripes);
        return Err(Error::invalid(format!("there is no stripe {number}: the object has {stripes} stripes")).object(&name));
    };
    Ok((object, stripe))
}

/// The requested ranges, block by block, without overlaps.
fn ranges(stripe: &StripeRecord, asked: &[v1::BlockRange]) -> Result<Vec<Range>> {
    if asked.is_empty() || asked.len() > RANGES_MAX {
        return Err(Error::invalid(format!("a read may have 1 to {RANGES_MAX} ranges, not {}", asked.len())));
    }
    let mut by_block: BTreeMap<u8, Vec<Span>> = BTreeMap::new();
    for range in asked {
        let index = u8::try_from(range.index).ok().filter(|index| u32::from(*index) < stripe.layout.k);
        let index = index.ok_or_else(|| {
            Error::invalid(format!(
                "block {} is not a data block: those are 0 to {}",
                range.index,
                stripe.layout.k.saturating_sub(1)
            ))
        })?;
        let len = stripe.layout.block_len(index.into());
        if range.start >= range.end || range.end > len {
            return Err(Error::invalid(format!(
                "bytes {}..{} of block {index} do not exist: it has {len}",
                range.start, range.end
            )));
        }
        by_block.entry(index).or_default().push(Span::new(range.start, range.end));
    }
    let merged = |(index, spans): (u8, Vec<Span>)| Span::normalize(spans).into_iter().map(move |bytes| Range { index, bytes });
    Ok(by_block.into_iter().flat_map(merged).collect())
}

fn plan(shared: &Shared, ask: &PlanRequest, view: &View) -> Result<PlannedRead> {
    let frame = |ask: &PlanRequest, slice_len| {
        let stripe = ask.stripe();
        (shared.run(ask.precedence(), &stripe.layout.layout, slice_len), shared.draw_client())
    };
    let plan = || shared.meter.plan(PlanKind::Read, || ask.plan(view, &shared.network_of_helpers(), &shared.known, frame));
    // A plain read is planned faster than the thread could be handed over.
    if ask.is_plain(view) { plan() } else { compute(plan) }
}

/// Opens and starts a read, and supervises it while the client receives data.
async fn begin(
    shared: &Arc<Shared>,
    read: Box<PlannedRead>,
    resumed: u32,
    delegation: Option<&Delegation>,
) -> Result<v1::ReadStripeReply> {
    let (plan, stripe) = (&read.planned.plan, &read.stripe);
    let agent = delegation.map_or("", |delegation| &delegation.agent);
    let sign = || sign::sign(shared, &read.planned, stripe, &BTreeMap::new(), agent);
    let mut signed = if read.rebuilt.is_empty() { sign() } else { compute(sign) }?;
    let client = signed.client.take().ok_or_else(|| Error::fatal("internal error: a read's plan has no task for the client"))?;
    for home in read.in_part().into_iter().filter_map(|index| stripe.home_of(index)) {
        signed.agents.entry(home.node).and_modify(|task| task.tells_pages = true);
    }
    let (id, mut reply) = (signed.id, reply(&read, Some(client))?);
    let streams = supervise::open(shared, &signed, shared.config.open_attempts_max).await?;
    let (running, handle) = supervise::start(shared, signed, streams, OnFailure::EndAll).await;
    let mut running = running.all_started().await?;
    reply.pages = pages(std::mem::take(&mut running.pages), stripe);
    if !read.rebuilt.is_empty() && delegation.is_none() {
        // What clients have rebuilt again and again is repaired first.
        shared.health.lock().tally.read(stripe.id, shared.started.now());
    }
    let (seq, stripe, blocks) = (stripe.seq.clone(), stripe.id, read.read());
    let slice_bytes = plan.binding.slice_len.saturating_mul(read.stripe.layout.layout.alpha.into());
    let stall = shared.stall_after(slice_bytes, resumed).map(|stall_timeout| {
        let shared = Arc::clone(shared);
        let is_spare: IsSpare<'_> = Box::new(move |node| read.is_spare(node, &shared.members.view()));
        (StallPolicy::of_chain(stall_timeout), is_spare)
    });
    let (watcher, blames) = (Arc::clone(shared), Arc::new(AtomicBool::new(false)));
    let (found, ended) = (Arc::clone(&blames), Arc::<OnceLock<Instant>>::default());
    let ends = Arc::clone(&ended);
    let watching = tasks::start(async move {
        let report = running.finish(|_, _| {}, stall).await;
        found.store(report.blame.is_some(), Ordering::Relaxed);
        membership::note_bad_blocks(&watcher, &report, &seq).await;
        let _only_once = ends.set(Instant::now());
    });
    shared.reads.begin(id, Reading { stripe, blocks, delegation: delegation.cloned(), handle, watching, blames, ended });
    Ok(reply)
}

/// How a read would be done. One at the nodes of an open stripe needs no plan, so it is explained also if too much is lost for one. A wrong
/// request stays an error.
fn explained(at_nodes: Option<v1::ReadAtNodes>, planned: Result<v1::ReadStripeReply>) -> Result<v1::ReadStripeReply> {
    let is_request_right = |error: &Error| !matches!(error.reaction, Reaction::InvalidInput);
    let reply = match planned {
        Err(error) if at_nodes.is_some() && is_request_right(&error) => v1::ReadStripeReply::default(),
        planned => planned?,
    };
    Ok(v1::ReadStripeReply { at_nodes, ..reply })
}

fn reply(read: &PlannedRead, task: Option<v1::ClientTask>) -> Result<v1::ReadStripeReply> {
    let blocks: BTreeSet<u8> = read.delivers.iter().map(|range| range.index).collect();
    let range = |range: &Range| v1::BlockRange { index: range.index.into(), start: range.bytes.start, end: range.bytes.end };
    let plan = if task.is_none() { read.planned.json()? } else { Vec::new() };
    Ok(v1::ReadStripeReply {
        task,
        checksums: blocks.iter().map(|index| show::checksums(&read.stripe, *index)).collect(),
        rebuilt: read.rebuilt.iter().map(|index| u32::from(*index)).collect(),
        plan,
        delivers: read.delivers.iter().map(range).collect(),
        pages: Vec::new(),
        at_nodes: None,
        data_len: read.stripe.layout.data_len,
    })
}

/// The pages that a node reports of its own blocks, as far as they fit in an answer.
fn pages(told: Vec<(NodeId, v1::UnitPages)>, stripe: &StripeRecord) -> Vec<v1::UnitPages> {
    let is_own = |node: NodeId, pages: &v1::UnitPages| {
        let home = u8::try_from(pages.index).ok().and_then(|index| stripe.home_of(index));
        home.is_some_and(|home| home.node == node) && pages.checksums.len() as u64 <= CHECKSUM_UNIT_LEN / PAGE_LEN
    };
    told.into_iter().filter(|(node, pages)| is_own(*node, pages)).map(|(_, pages)| pages).take(UNITS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{BlockState, DiskNumber, Home, Layout, Owner, PlacedBlock, Seq, StripeId, StripeLayout};

    #[test]
    fn a_read_at_nodes_is_explained_also_if_no_plan_can_be_made() {
        let plan = || v1::ReadStripeReply { plan: vec![1], ..v1::ReadStripeReply::default() };
        let none = || Error::unavailable("too much is lost");
        let at_nodes = v1::ReadAtNodes { term: 7, ..v1::ReadAtNodes::default() };
        assert_eq!(explained(None, Ok(plan())), Ok(plan()));
        assert_eq!(explained(None, Err(none())), Err(none()));
        let both = explained(Some(at_nodes.clone()), Ok(plan())).unwrap();
        assert_eq!((both.at_nodes.as_ref(), &both.plan[..]), (Some(&at_nodes), &[1][..]));
        let only = explained(Some(at_nodes.clone()), Err(none())).unwrap();
        assert!(only.at_nodes.as_ref() == Some(&at_nodes) && only.plan.is_empty());
        let wrong = || Error::invalid("no scheme of this name");
        // After a restart, the coordinator says that nodes may come back.
        let later = Err(Error::retry("nodes are coming back"));
        assert_eq!(explained(Some(at_nodes.clone()), later).unwrap().at_nodes, Some(at_nodes.clone()));
        assert_eq!(explained(Some(at_nodes), Err(wrong())), Err(wrong()));
    }

    #[test]
    fn a_nodes_page_checksums_count_only_for_its_own_blocks_and_are_bounded() {
        let home = |node| Home { node: NodeId(node), disk: DiskNumber(node) };
        let place =
            |node| PlacedBlock { generation: 1, generation_high_water: 1, home: home(node), state: BlockState::Ok, copy: 0 };
        let stripe = StripeRecord {
            id: StripeId(1),
            owner: Owner::Object(UploadId(1)),
            number: 0,
            ended: true,
            seq: Seq::default(),
            layout: StripeLayout {
                layout: Layout { block_len: 1 << 30, cell_len: 1 << 30, alpha: 1 },
                k: 2,
                m: 1,
                data_len: 2 << 30,
            },
            blocks: (0..3).map(|index| (index, place(u32::from(index) + 1))).collect(),
            copies: Vec::new(),
            checksums: Vec::new(),
            kept: Default::default(),
            corrupt: Default::default(),
            incomplete: false,
        };
        let told = |node, index, unit, len| (NodeId(node), v1::UnitPages { index, unit, checksums: vec![7; len] });
        let some =
            [told(1, 0, 5, 256), told(2, 0, 6, 256), told(2, 1, 7, 257), told(2, 1, 8, 1), told(3, 300, 9, 1), told(4, 3, 9, 1)];
        let kept: Vec<(u32, u32)> = pages(some.to_vec(), &stripe).iter().map(|pages| (pages.index, pages.unit)).collect();
        assert_eq!(kept, [(0, 5), (1, 8)]);
        let many = (0..2000).map(|unit| told(1, 0, unit, 1)).collect();
        assert_eq!(pages(many, &stripe).len(), UNITS_MAX);
    }
}
