//! Reads: a plan that brings ranges of a stripe's data blocks to a client, around what is lost.

pub(crate) mod under_way;

use crate::{delegations::Delegation, membership, options, shared::Shared, show, sign, supervise, validate};
use rand::Rng;
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
use weft_codes::SharedCode;
use weft_control::{
    options::RepairOptions,
    planning::{self, Range, Readable, Way},
    run::{OnFailure, StallPolicy},
};
use weft_meta::ObjectRecord;
use weft_plan::Class;
use weft_proto::{status::decode_error, v1};
use weft_types::{BlockId, BlockState, Error, Party, PlanId, Reaction, Result, Span, StripeRecord, UploadId};

/// Ranges of one request, at most.
const RANGES_MAX: usize = 4096;
/// How often a read is planned anew because somebody could not be asked.
const PLANS_MAX: usize = 8;
/// Plans a read; unless it is only to be explained, opens and starts it.
pub(crate) async fn read_stripe(
    shared: &Arc<Shared>,
    asked: v1::ReadStripeRequest,
    delegation: Option<&Delegation>,
) -> Result<v1::ReadStripeReply> {
    let (object, mut found) = find(shared, &asked).await?;
    let place = |error: Error| error.object(&object.name);
    let code = shared.code(&object.code)?;
    let ranges = ranges(&found, &asked.ranges).map_err(place)?;
    let options = options::of_read(shared, &asked).map_err(place)?;
    if !asked.errors.is_empty() {
        let blamed = shared.reads.verdict(PlanId(asked.failed_plan), found.id, delegation, shared.config.failure_grace_ms).await;
        // With what the agents have said by now of their own blocks.
        found = find(shared, &asked).await?.1;
        for error in asked.errors.iter().filter_map(|bytes| decode_error(bytes)) {
            if delegation.is_none() || is_about(&error, &found) {
                avoid(shared, &object, &found, &error, blamed);
            }
        }
    }
    // A client does not say how often it has come; that it has is known.
    let resumed = u32::from(!asked.errors.is_empty());
    let mut plans = 0;
    loop {
        plans += 1;
        // An agent to which a conversion was delegated reads what it has itself, where that is as good.
        let draw = |node| if delegation.is_some_and(|delegation| delegation.node == node) { 0 } else { shared.rng().random() };
        let view = shared.members.view();
        let stripe = view.serving(found.clone(), |block, _| view.is_suspect_block(block), draw);
        let planned = plan(shared, &code, &stripe, &ranges, &options, delegation).map_err(place)?;
        if asked.explain {
            return reply(&stripe, planned, None).map_err(place);
        }
        match begin(shared, &code, &stripe, &planned, resumed, delegation).await {
            Ok(task) => return reply(&stripe, planned, Some(task)).map_err(place),
            // Whoever could not be asked is suspect by now, a bad block is known as one: the next plan goes around it.
            Err(error) if error.reaction == Reaction::Replan && plans < PLANS_MAX => {
                tracing::info!(object = %object.name, stripe = asked.number, %error, "a read is planned anew");
                // For a bad block its whole node need not be avoided: the block is.
                if let (Some(Party::Node(node)), None) = (error.party, error.block) {
                    shared.members.suspect(node);
                }
                found = find(shared, &asked).await?.1;
            }
            Err(error) => return Err(place(error)),
        }
    }
}

/// The client is done with a plan. What became of it stays known for a moment: see [`Reads::verdict`].
pub(crate) fn end_read(shared: &Shared, asked: &v1::EndReadRequest, delegation: Option<&Delegation>) {
    shared.reads.end(PlanId(asked.plan), delegation, Duration::from_millis(shared.config.failure_grace_ms));
}

struct PlannedRead {
    planned: planning::Planned,
    delivers: Vec<Range>,
    rebuilt: Vec<u8>,
}

async fn find(shared: &Shared, asked: &v1::ReadStripeRequest) -> Result<(ObjectRecord, StripeRecord)> {
    let name = validate::object(&asked.bucket, &asked.key)?;
    let found = match asked.version {
        0 => shared.meta.object(&name).await,
        version => shared.meta.object_of(UploadId(version)).await,
    };
    let object = found.map_err(|error| shared.meta_error(error).object(&name))?;
    if object.name != name {
        return Err(Error::not_found(format!("version {} is not one of {name}", asked.version)).object(&name));
    }
    let page = shared.meta.stripes(object.version, asked.number, 1).await.map_err(|error| shared.meta_error(error))?;
    let stripe = page.items.into_iter().next().filter(|stripe| stripe.number == asked.number);
    let Some(stripe) = stripe else {
        // It may have been replaced or removed since it was looked up.
        shared.meta.object_of(object.version).await.map_err(|error| shared.meta_error(error).object(&name))?;
        let (number, stripes) = (asked.number, object.stripes);
        return Err(Error::invalid(format!("there is no stripe {number}: the object has {stripes}")).object(&name));
    };
    Ok((object, stripe))
}

/// The ranges that are asked for, block by block, without overlaps.
fn ranges(stripe: &StripeRecord, asked: &[v1::BlockRange]) -> Result<Vec<Range>> {
    if asked.is_empty() || asked.len() > RANGES_MAX {
        return Err(Error::invalid(format!("1 to {RANGES_MAX} ranges can be read at once, not {}", asked.len())));
    }
    let mut by_block: BTreeMap<u8, Vec<Span>> = BTreeMap::new();
    for range in asked {
        let index = u8::try_from(range.index).ok().filter(|index| u32::from(*index) < stripe.layout.k);
        let index = index.ok_or_else(|| {
            Error::invalid(format!("block {} is not a data block: 0 to {} are", range.index, stripe.layout.k.saturating_sub(1)))
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

/// Whether an error is about nothing but a stripe and who has its blocks.
fn is_about(error: &Error, stripe: &StripeRecord) -> bool {
    let is_home = |node| stripe.all().any(|(_, placed)| placed.home.node == node);
    let is_party = |party| matches!(party, Party::Node(node) if is_home(node));
    error.block.is_none_or(|block| block.stripe == stripe.id) && error.party.is_none_or(is_party)
}

/// What a client complains of is avoided for a while, unless agents have said already who is to blame: for a bad block the block, and
/// not its whole node. Only agents' own words are written down.
fn avoid(shared: &Shared, object: &ObjectRecord, stripe: &StripeRecord, error: &Error, blamed: bool) {
    tracing::warn!(object = %object.name, %error, "a read failed");
    match (error.reaction, error.party) {
        (Reaction::Retry, _) | (_, None | Some(Party::Client(_))) => {}
        (Reaction::Corrupt, _) if error.block.is_some() => {}
        (_, Some(Party::Node(_))) if blamed => {}
        (_, Some(Party::Node(node))) => shared.members.suspect(node),
    }
    // Of a block that is known to be corrupt, it is known what can be read.
    let known = |block: &BlockId| {
        let placed = stripe.find(block.index, block.copy);
        stripe.id == block.stripe && placed.is_some_and(|placed| placed.state != BlockState::Ok)
    };
    if let Some(block) = error.block.filter(|block| !known(block)) {
        shared.members.suspect_block(block);
    }
}

fn plan(
    shared: &Shared,
    code: &SharedCode,
    stripe: &StripeRecord,
    ranges: &[Range],
    options: &RepairOptions,
    delegation: Option<&Delegation>,
) -> Result<PlannedRead> {
    let class = if delegation.is_some() { Class::Repair } else { Class::Foreground };
    let view = shared.members.view();
    let readable = planning::readable(stripe, &view);
    let Readable { good, suspect, lost } = &readable;
    let network = shared.network_of_helpers();
    let attempt = |available: &[u8]| {
        let rebuilt = planning::rebuilt(stripe, available, ranges);
        let delivers = widen(stripe, ranges, &rebuilt);
        let slice_len = if rebuilt.is_empty() {
            weft_control::options::usual_slice_positions(&stripe.layout.layout, shared.config.slice_len.0)
        } else {
            options.slice_positions(&stripe.layout, &network)
        };
        let prefer = planning::preference(stripe, available, &view, stripe.layout.k as usize, None);
        let run = shared.run(class, stripe.seq, &stripe.layout.layout, slice_len);
        let planned = planning::read(
            code,
            stripe,
            available,
            &delivers,
            shared.draw_client(),
            &Way { options, network: &network, prefer: &prefer },
            run,
        )?;
        Ok::<_, Error>(PlannedRead { planned, delivers, rebuilt: rebuilt.into_iter().collect() })
    };
    // Of one data block every block is a copy: who has one itself reads that.
    let is_own =
        |index: &u8| stripe.blocks.get(usize::from(*index)).map(|placed| placed.home.node) == delegation.map(|it| it.node);
    if let Some(own) = good.iter().copied().find(is_own).filter(|_| code.k() == 1)
        && let Ok(planned) = attempt(&[own])
    {
        return Ok(planned);
    }
    // Rather from those that failed a moment ago than not at all; but from as few as will do. Two of whom each was blamed for a link
    // between them are both suspect, and with one of them it works.
    let all: Vec<u8> = good.iter().chain(suspect).copied().collect();
    let mut planned = attempt(good);
    for count in good.len() + 1..=all.len() {
        match planned {
            Err(error) if error.reaction == Reaction::Unavailable => planned = attempt(&all[..count]),
            other => return other,
        }
    }
    planned.map_err(|error| match error.reaction {
        Reaction::Unavailable => {
            let rebuilt = planning::rebuilt(stripe, &all, ranges);
            let wanted = planning::wanted(stripe, &widen(stripe, ranges, &rebuilt));
            let absent = planning::unrecoverable(code, stripe, &all, &wanted).unwrap_or_default();
            let lost = planning::why_absent(stripe, &absent, lost, "unknown");
            view.lacking_nodes(planning::too_many_lost(code, stripe, &lost, &view))
        }
        _ => error,
    })
}

/// Widens the ranges to what can be read and checked; those that come to overlap become one.
fn widen(stripe: &StripeRecord, ranges: &[Range], rebuilt: &BTreeSet<u8>) -> Vec<Range> {
    let mut by_block: BTreeMap<u8, Vec<Span>> = BTreeMap::new();
    for range in ranges {
        let wide = planning::widened(&stripe.layout, *range, rebuilt.contains(&range.index));
        by_block.entry(range.index).or_default().push(wide.bytes);
    }
    let merged = |(index, spans): (u8, Vec<Span>)| Span::normalize(spans).into_iter().map(move |bytes| Range { index, bytes });
    by_block.into_iter().flat_map(merged).collect()
}

/// Opens and starts a read, and watches over it while the client takes its share.
async fn begin(
    shared: &Arc<Shared>,
    code: &SharedCode,
    stripe: &StripeRecord,
    read: &PlannedRead,
    resumed: u32,
    delegation: Option<&Delegation>,
) -> Result<v1::ClientTask> {
    let plan = &read.planned.plan;
    let mut signed =
        sign::sign(shared, &read.planned, stripe, &BTreeMap::new(), delegation.map_or("", |delegation| &delegation.agent))?;
    let client = signed.client.take().ok_or_else(|| Error::fatal("a read's plan has no part for the client"))?;
    let id = signed.id;
    supervise::open(shared, &signed).await?;
    let (running, handle) = supervise::start(shared, signed, OnFailure::EndAll).await;
    let running = running.all_started().await?;
    let slice_bytes = plan.binding.slice_len.saturating_mul(stripe.layout.layout.alpha.into());
    let stall_policy = shared.stall_after(slice_bytes, resumed).map(|still| {
        let (shared, code, stripe) = (Arc::clone(shared), Arc::clone(code), stripe.clone());
        let wanted = planning::wanted(&stripe, &read.delivers);
        let is_spare = move |node| {
            let view = shared.members.view();
            let stripe = view.serving(stripe.clone(), |_, home| home == node, |_| 0);
            let readable = planning::readable(&stripe, &view);
            let is_elsewhere = |index: &u8| stripe.blocks.get(usize::from(*index)).is_some_and(|placed| placed.home.node != node);
            let all = readable.good.iter().chain(&readable.suspect).copied();
            planning::unrecoverable(&code, &stripe, &all.filter(is_elsewhere).collect::<Vec<u8>>(), &wanted).is_none()
        };
        StallPolicy::of_chain(still, is_spare)
    });
    let (watcher, blames) = (Arc::clone(shared), Arc::new(AtomicBool::new(false)));
    let (found, ended) = (Arc::clone(&blames), Arc::<OnceLock<Instant>>::default());
    let ends = Arc::clone(&ended);
    let watching = tokio::spawn(async move {
        let report = running.finish(|_, _| {}, stall_policy).await;
        found.store(report.blame.is_some(), Ordering::Relaxed);
        membership::note_bad_blocks(&watcher, &report).await;
        let _only_once = ends.set(Instant::now());
    });
    shared.reads.begin(id, Reading { stripe: stripe.id, delegation: delegation.cloned(), handle, watching, blames, ended });
    Ok(client)
}

fn reply(stripe: &StripeRecord, read: PlannedRead, task: Option<v1::ClientTask>) -> Result<v1::ReadStripeReply> {
    let blocks: BTreeSet<u8> = read.delivers.iter().map(|range| range.index).collect();
    let range = |range: &Range| v1::BlockRange { index: range.index.into(), start: range.bytes.start, end: range.bytes.end };
    // A plain read's plan says nothing that its ranges do not say.
    let plan = if task.is_none() || !read.rebuilt.is_empty() { read.planned.json()? } else { Vec::new() };
    Ok(v1::ReadStripeReply {
        task,
        checksums: blocks.iter().map(|index| show::checksums(stripe, *index)).collect(),
        rebuilt: read.rebuilt.iter().map(|index| u32::from(*index)).collect(),
        plan,
        delivers: read.delivers.iter().map(range).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{DiskNumber, Home, Layout, NodeId, Owner, PlacedBlock, StripeId, StripeLayout};

    #[test]
    fn who_is_on_an_errand_may_complain_of_its_stripe_only() {
        let layout = Layout { block_len: 1 << 20, cell_len: 1 << 20, alpha: 1 };
        let placed = |node, copy| PlacedBlock {
            generation: 1,
            generation_high_water: 1,
            home: Home { node: NodeId(node), disk: DiskNumber(node) },
            state: BlockState::Ok,
            copy,
        };
        let stripe = StripeRecord {
            id: StripeId(7),
            owner: Owner::Object(UploadId(1)),
            number: 0,
            ended: true,
            seq: 0,
            layout: StripeLayout { layout, k: 1, m: 1, data_len: 1 << 20 },
            blocks: vec![placed(1, 0), placed(2, 0)],
            copies: vec![(0, placed(4, 1))],
            checksums: Vec::new(),
            corrupt: BTreeMap::new(),
            incomplete: false,
        };
        let block = |stripe| BlockId { stripe: StripeId(stripe), index: 0, copy: 0, generation: 1 };
        let [own, of_copy, other] = [2, 4, 3].map(|node| Party::Node(NodeId(node)));
        let error = || Error::replan("it failed");
        let about =
            [error(), error().party(own), error().party(of_copy), error().block(block(7)), error().block(block(7)).party(own)];
        assert!(about.iter().all(|error| is_about(error, &stripe)));
        let not = [error().party(other), error().block(block(8)), error().block(block(8)).party(own)];
        assert!(!not.iter().any(|error| is_about(error, &stripe)));
    }
}
