//! Opens stripes for clients, and gives them sessions and tokens.

use super::{
    append,
    inspect::ready,
    opening::{Opened, open_blocks},
    routes,
    settle::{self, Demand, found, settle_now},
    state::Phase,
    tell::{describe, homes_of, node_of},
};
use crate::{
    moved::follow::follow_stripe,
    rebuild::{owner::Of, shares::Shares},
    shared::Shared,
    tasks, validate,
};
use rand::Rng;
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::sync::oneshot;
use weft_control::rebuild::lost_blocks;
use weft_meta::{ObjectRecord, OpenStripe, TermRecord, TermState};
use weft_proto::{GROWTH_SINCE, ROUTES_SINCE, UpdateRights, v1};
use weft_types::{
    BlockId, BlockState, Error, Reaction, Result, StripeId, StripeRecord, UPDATE_BYTES_MAX, UPDATE_BYTES_USUAL, UploadId,
    human_bytes,
};
use weft_update::{Sealed, Session};

/// How long a client waits for the rebuild of a stripe's blocks before it asks again.
const REBUILD_WITHIN: Duration = Duration::from_secs(5);

/// Opens a stripe for updates if it is not open, and gives the client what it needs to request them.
pub(crate) async fn open_for_updates(shared: &Arc<Shared>, asked: v1::OpenForUpdatesRequest) -> Result<v1::OpenForUpdatesReply> {
    let way = asked.way.as_ref().map(|way| routes::way(Some(way))).transpose()?;
    let (object, stripe) = named(shared, &asked.bucket, &asked.key, (asked.version, asked.number)).await?;
    let (id, place) = (stripe.id, |error: Error| error.object(&object.name));
    let session = asked.session.map(|it| Session { number: it.number, ends_at_ms: it.ends_at_ms });
    append::require_allowed(shared, &object.name).await?;
    append::require_begun(shared, &object, &stripe, asked.append).await?;
    let reaches = if asked.append == 0 { 0 } else { asked.reaches };
    let (sealed, stripe) = opened(shared, id, (asked.failed_term, reaches)).await.map_err(place)?;
    // Another append begins before it fences this one: if it has not begun now, it fences this term.
    append::require_begun(shared, &object, &stripe, asked.append).await?;
    shared.updates.touch(id, shared.idle_at());
    let code = shared.code(&object.code).map_err(place)?;
    let routes = routes::routes(shared, &code, (&stripe, &sealed.members), way.as_ref()).await;
    reply(shared, &stripe, &sealed, session).map(|reply| v1::OpenForUpdatesReply { routes, ..reply }).map_err(place)
}

/// A stripe of an object, by its version and by its number in the object.
pub(super) async fn named(
    shared: &Shared,
    bucket: &str,
    key: &str,
    (version, number): (u64, u64),
) -> Result<(ObjectRecord, StripeRecord)> {
    let name = validate::object(bucket, key)?;
    let object = shared.meta.object_of(UploadId(version)).await.map_err(|error| shared.meta_error(error).object(&name))?;
    if object.name != name {
        return Err(Error::not_found(format!("{name} has no version {version}")).object(&name));
    }
    let page = shared.meta.stripes(object.version, number, 1).await.map_err(|error| shared.meta_error(error).object(&name))?;
    let stripe = page.items.into_iter().next().filter(|stripe| stripe.number == number);
    let stripes = object.stripes;
    let none = || Error::invalid(format!("there is no stripe {number}: the object has {stripes} stripes")).object(&name);
    Ok((object, stripe.ok_or_else(none)?))
}

/// The record of an open stripe in which updates can end, as far as known. It holds at least `reaches` bytes of the object.
async fn opened(shared: &Arc<Shared>, id: StripeId, (failed_term, reaches): (u64, u64)) -> Result<(Arc<Sealed>, StripeRecord)> {
    let is_failed = |record: &TermRecord| failed_term != 0 && failed_term == record.term.sealed.term;
    let open = open_record(shared, id).await?;
    if let Some(record) = open.filter(|record| !is_failed(record)) {
        let stripe = stripe(shared, id).await?;
        if stripe.layout.data_len >= reaches {
            return Ok((Arc::clone(&record.term.sealed), stripe));
        }
    }
    shared.until_nodes_are_back().await;
    let (shared, failed) = (Arc::clone(shared), failed_term);
    // It is not interrupted when the client goes away.
    let work = async move {
        seal_failed(&shared, id, failed).await?;
        let Ok(_claim) = tokio::time::timeout(REBUILD_WITHIN, shared.claims.claim(id)).await else {
            return Err(Error::retry("the stripe's lost blocks are being rebuilt: try again"));
        };
        let _turn = shared.updates.turns.claim(id).await;
        open_in_turn(&shared, id, reaches).await
    };
    tasks::to_the_end("a stripe was not opened for updates", work).await
}

/// The term of a stripe that takes updates.
pub(super) async fn open_record(shared: &Shared, id: StripeId) -> Result<Option<TermRecord>> {
    let record = shared.meta.stripe_term(id).await.map_err(|error| shared.meta_error(error))?;
    Ok(record.filter(TermRecord::takes_updates))
}

async fn stripe(shared: &Shared, id: StripeId) -> Result<StripeRecord> {
    shared.meta.stripe(id).await.map_err(|error| shared.meta_error(error))
}

/// If updates do not end in this term, settles the stripe without the blocks that do not answer, and begins to rebuild them.
async fn seal_failed(shared: &Arc<Shared>, id: StripeId, failed_term: u64) -> Result<()> {
    if failed_term == 0 {
        return Ok(());
    }
    {
        let _turn = shared.updates.turns.claim(id).await;
        let record = open_record(shared, id).await?;
        if record.is_none_or(|record| record.term.sealed.term != failed_term) {
            return Ok(());
        }
        tracing::info!(stripe = %id, term = failed_term, "updates of a stripe do not end: settles it, without blocks that do not answer");
        settle_now(shared, id, Demand::Request).await?;
    }
    let (shared, (begun, has_begun)) = (Arc::clone(shared), oneshot::channel());
    tasks::start(async move {
        let _claim = shared.claims.claim(id).await;
        // Its caller may no longer wait.
        let _gone = begun.send(());
        let rebuilt = rebuild(&shared, id).await;
        rebuilt.unwrap_or_else(
            |error| tracing::warn!(stripe = %id, %error, "cannot rebuild blocks of a stripe that is updated yet"),
        );
    });
    // It is opened again after that.
    let _waits_for_another = tokio::time::timeout(REBUILD_WITHIN, has_begun).await;
    Ok(())
}

/// Rebuilds the lost blocks of a stripe at once.
async fn rebuild(shared: &Arc<Shared>, id: StripeId) -> Result<()> {
    settle::if_open(shared, id).await?;
    let stripe = stripe(shared, id).await?;
    let lost = lost_blocks(&stripe, &shared.members.view(), &[]);
    if lost.is_empty() {
        return Ok(());
    }
    let of = Of::owner(shared.meta.as_ref(), stripe.owner).await.map_err(|error| shared.meta_error(error))?;
    of.rebuild(shared, (stripe, lost), &Shares::default(), |request| request, |_| {}).await.map(drop)
}

/// Opens a stripe whose turn it is. One that holds fewer bytes than `reaches` is settled, and grows when it is opened again.
async fn open_in_turn(shared: &Arc<Shared>, id: StripeId, reaches: u64) -> Result<(Arc<Sealed>, StripeRecord)> {
    loop {
        let record = shared.meta.stripe_term(id).await.map_err(|error| shared.meta_error(error))?;
        let record = match record {
            Some(record) if record.takes_updates() => {
                let stripe = stripe(shared, id).await?;
                if stripe.layout.data_len >= reaches {
                    return Ok((Arc::clone(&record.term.sealed), stripe));
                }
                settle_now(shared, id, Demand::Request).await?;
                continue;
            }
            Some(record) if record.state == TermState::Opening && !record.term.is_open() && record.term.unaware.is_empty() => {
                record
            }
            // A seal is under way, or blocks are not closed.
            Some(record) if record.state.is_open() => {
                settle_now(shared, id, Demand::Request).await?;
                continue;
            }
            before => {
                if before.as_ref().is_some_and(|before| before.state == TermState::Settled) {
                    settle_now(shared, id, Demand::Request).await?;
                }
                begin(shared, id, reaches).await?
            }
        };
        let stripe = stripe(shared, id).await?;
        match open_blocks(shared, &stripe, &record).await? {
            Opened::All => {
                let marked = shared.meta.mark_open(shared.epoch, id, record.term.term).await;
                marked.map_err(|error| shared.meta_error(error))?;
                shared.updates.opens.fetch_add(1, Relaxed);
                tracing::info!(stripe = %id, term = record.term.term, "opened a stripe for updates");
            }
            // No block is left out for that.
            Opened::Busy(_, _, error) => return Err(error),
            Opened::None(error) => {
                settle_now(shared, id, Demand::Request).await?;
                return Err(error);
            }
            Opened::Without(blocks) => {
                settle_now(shared, id, Demand::Request).await?;
                return Err(Error::retry(format!("{} blocks of the stripe could not be opened: try again", blocks.len())));
            }
        }
    }
}

/// Records that a stripe is being opened, and that it grows if it holds fewer bytes than `reaches`.
async fn begin(shared: &Arc<Shared>, id: StripeId, reaches: u64) -> Result<TermRecord> {
    let record = shared.meta.stripe_term(id).await.map_err(|error| shared.meta_error(error))?;
    let (mut stripe, code) = found(shared, id).await?.ok_or_else(|| Error::not_found(format!("stripe {id} no longer exists")))?;
    if follow_stripe(shared, &stripe).await? {
        stripe = self::stripe(shared, id).await?;
    }
    let (members, holds) = ready(shared, (&stripe, &code), record.as_ref()).await?;
    let grows_to = append::growth(shared, &stripe, &members, reaches)?.max(grown(shared, &stripe, &members, holds));
    let before = record.map(|record| record.term);
    let (now_ms, garbage_not_before_ms) = (shared.updates_now_ms(), shared.garbage_not_before_ms());
    let homes = homes_of(&stripe, &members);
    let good = stripe.all().filter(|(_, placed)| placed.state == BlockState::Ok);
    let left_out = good.map(|(index, placed)| stripe.id_of(index, placed)).filter(|block| !members.contains(block));
    shared.updates.silent.left_out(shared, &stripe, left_out);
    let open = OpenStripe { stripe: id, before, members, now_ms, garbage_not_before_ms, grows_to };
    // From here on nothing plans for it without settling it.
    shared.updates.opens(id, homes, shared.started.now());
    shared.updates.set(id, Phase::Open, shared.idle_at());
    match shared.meta.open_stripe(shared.epoch, open).await {
        Ok(record) => {
            shared.updates.begins(id);
            Ok(record)
        }
        Err(error) => {
            // Whatever is stored, it was not opened here.
            settle_now(shared, id, Demand::Request).await?;
            let error = shared.meta_error(error);
            Err(if error.reaction == Reaction::Replan { Error { reaction: Reaction::Retry, ..error } } else { error })
        }
    }
}

/// How many bytes of its object a stripe holds by its blocks, if these are more than recorded: they grew when it was opened before, and that was not
/// recorded, or these metadata are an older copy.
fn grown(shared: &Shared, stripe: &StripeRecord, members: &[BlockId], holds: u64) -> Option<u64> {
    let session = |block: &BlockId| shared.members.session(node_of(stripe, block)?);
    let grows = |block: &BlockId| session(block).is_some_and(|session| session.protocol >= GROWTH_SINCE);
    (holds > stripe.layout.data_len && members.iter().all(grows)).then_some(holds)
}

fn reply(shared: &Shared, stripe: &StripeRecord, sealed: &Sealed, asked: Option<Session>) -> Result<v1::OpenForUpdatesReply> {
    let now_ms = shared.updates_now_ms();
    let session = shared.updates.sessions().lease(asked, now_ms, || shared.rng().random())?;
    let Session { number, ends_at_ms } = session;
    let (update_bytes_max, update_bytes_why) = update_limit(shared, stripe, &sealed.members);
    // Only the node of the coded block of a data block leads its updates.
    let leads = sealed.members.iter().filter(|block| block.copy == 0 && u32::from(block.index) < stripe.layout.k);
    let token = |block: &BlockId| {
        let key = shared.members.session(node_of(stripe, block)?)?.link_key;
        let rights = UpdateRights { block: *block, term: sealed.term, session: number, ends_at_ms };
        Some(v1::UpdateToken { index: block.index.into(), token: key.issue_update(&rights).0.to_vec() })
    };
    Ok(v1::OpenForUpdatesReply {
        stripe: Some(describe(shared, stripe, sealed)?),
        session: Some(v1::UpdateSession { number, ends_at_ms }),
        lasts_ms: ends_at_ms.saturating_sub(now_ms),
        tokens: leads.filter_map(token).collect(),
        routes: Vec::new(),
        update_bytes_max,
        update_bytes_why,
    })
}

/// The most bytes of an update that all of these blocks' nodes take, and why not more; 0: no bound is known. A node that is down does not count.
fn update_limit(shared: &Shared, stripe: &StripeRecord, members: &[BlockId]) -> (u64, String) {
    let of_agent = |block: &BlockId| {
        let session = shared.members.session(node_of(stripe, block)?)?;
        let is_earlier = session.protocol < ROUTES_SINCE;
        is_earlier.then(|| (UPDATE_BYTES_USUAL, format!("agent {} is of an earlier version", session.record.name)))
    };
    let of_journal = |block: &BlockId| {
        let home = stripe.find(block.index, block.copy)?.home;
        let bytes = shared.updates.update_bytes_max(home).filter(|bytes| *bytes < UPDATE_BYTES_MAX)?;
        let (most, agent) = (human_bytes(bytes), shared.members.name(home.node));
        Some((bytes, format!("a journal of agent {agent} takes {most} at most, by the `limits.update_journal` of its creation")))
    };
    let limits = members.iter().flat_map(|block| [of_agent(block), of_journal(block)]).flatten();
    limits.min_by_key(|(bytes, _)| *bytes).unwrap_or_default()
}
