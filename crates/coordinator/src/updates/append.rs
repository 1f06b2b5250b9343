//! Appends: bytes behind the end of an object are written in place, in its last stripe, and become part of it in one transaction when all of them are durable.
//!
//! The row of the object says which append began last. Only that one gets leases to write, and only that one ends. One that begins after another that did not
//! end settles the stripe first, so no update of the other comes later. So does the first one after a coordinator has started on a stripe that was open before.

use super::{settle, tell::node_of};
use crate::{shared::Shared, show, validate};
use std::sync::Arc;
use weft_control::updates::{self, room};
use weft_meta::{BeginAppend, BegunAppend, EndAppend, ObjectRecord};
use weft_proto::{GROWTH_SINCE, v1};
use weft_types::{BlockId, Error, ObjectName, Reaction, Result, StripeRecord, UploadId};

/// For how long no other append begins unless this one is renewed, ms.
const HOLD_MS: u64 = 10_000;

/// Begins an append, renews it, or tells what it would find.
pub(crate) async fn begin(shared: &Arc<Shared>, asked: v1::BeginAppendRequest) -> Result<v1::BeginAppendReply> {
    let name = validate::object(&asked.bucket, &asked.key)?;
    let place = |error: Error| error.object(&name);
    if !asked.explain && !(1..=i64::MAX as u64).contains(&asked.append) {
        return Err(place(Error::invalid(format!("{} is no number for an append: draw one from 1 to 2^63-1", asked.append))));
    }
    require_allowed(shared, &name).await?;
    let object = shared.meta.object(&name).await.map_err(|error| shared.meta_error(error))?;
    let last = last_stripe(shared, &object).await.map_err(place)?;
    require_at(&object, asked.at).map_err(place)?;
    require_room(&object, &last, asked.bytes).map_err(place)?;
    if asked.explain {
        return described(shared, object, 0).await;
    }
    let now_ms = shared.updates_now_ms();
    let (append, at, renews, until_ms) = (asked.append, asked.at, asked.renews, now_ms.saturating_add(HOLD_MS));
    let begin = BeginAppend { name: name.clone(), append, at, renews, now_ms, until_ms };
    match shared.meta.begin_append(shared.epoch, begin).await.map_err(|error| shared.meta_error(error))? {
        BegunAppend::Begun { object, fences } => {
            if !renews {
                let last = last_stripe(shared, &object).await.map_err(place)?;
                // These metadata may be an older copy, which does not know of an append whose writer has a lease.
                if fences || shared.updates.has_unknown_leases(last.id) {
                    settle::if_open(shared, last.id).await.map_err(place)?;
                }
            }
            described(shared, object, HOLD_MS).await
        }
        BegunAppend::Busy { until_ms } => {
            let s = until_ms.saturating_sub(now_ms).div_ceil(1000);
            Err(place(Error::retry(format!(
                "another append to the object is under way, or was interrupted: try again, in {s} s at the latest"
            ))))
        }
        BegunAppend::Moved(object) => Err(place(require_at(&object, at).err().unwrap_or_else(replaced))),
        BegunAppend::Lost => Err(place(replaced())),
    }
}

/// Makes what an append has written part of the object.
pub(crate) async fn end(shared: &Shared, asked: v1::EndAppendRequest) -> Result<v1::ObjectReply> {
    let name = validate::object(&asked.bucket, &asked.key)?;
    let v1::EndAppendRequest { append, version, from, to, .. } = asked;
    let end = EndAppend { name: name.clone(), version: UploadId(version), append, from, to };
    let ended = shared.meta.end_append(shared.epoch, end).await;
    let object = ended.map_err(|error| shared.meta_error(error).object(&name))?;
    tracing::info!(object = %name, from, to, "extended");
    Ok(show::object(object))
}

/// The writer of an append gives up.
pub(crate) async fn give_up(shared: &Shared, asked: v1::GiveUpAppendRequest) -> Result<v1::Empty> {
    let name = validate::object(&asked.bucket, &asked.key)?;
    let given_up = shared.meta.give_up_append(shared.epoch, name, asked.append).await;
    given_up.map(|()| v1::Empty {}).map_err(|error| shared.meta_error(error))
}

/// Fails if the policy of the object's bucket refuses updates in place.
pub(super) async fn require_allowed(shared: &Shared, name: &ObjectName) -> Result<()> {
    let refused = shared.meta.updates_refused_by(name.bucket.clone()).await.map_err(|error| shared.meta_error(error))?;
    refused.map_or(Ok(()), |policy| {
        let bucket = &name.bucket;
        let message = format!(
            "the policy {policy} of bucket {bucket} refuses writes in place and appends (updates refused): put the object as a whole, or convert the bucket to a \
             policy that allows them"
        );
        Err(Error::invalid(message).object(name))
    })
}

/// Fails if an append that writes to this stripe is not the last one that began. 0: it is no append.
pub(super) async fn require_begun(shared: &Shared, object: &ObjectRecord, stripe: &StripeRecord, append: u64) -> Result<()> {
    if append == 0 {
        return Ok(());
    }
    if stripe.number + 1 != object.stripes {
        let last = object.stripes.saturating_sub(1);
        return Err(Error::invalid(format!("an append writes to the last stripe, which is {last}")).object(&object.name));
    }
    let last = shared.meta.append_of(object.version).await.map_err(|error| shared.meta_error(error))?;
    if last == append { Ok(()) } else { Err(replaced().object(&object.name)) }
}

/// How many bytes a stripe must hold so that an append reaches `reaches`, if it must grow. Fails if its blocks cannot.
pub(super) fn growth(shared: &Shared, stripe: &StripeRecord, members: &[BlockId], reaches: u64) -> Result<Option<u64>> {
    let Some(data_len) = updates::growth(&stripe.layout, reaches)? else { return Ok(None) };
    let mut sessions = members.iter().filter_map(|block| shared.members.session(node_of(stripe, block)?));
    if let Some(old) = sessions.find(|session| session.protocol < GROWTH_SINCE) {
        let name = &old.record.name;
        let message = format!("agent {name} is of an earlier version, whose blocks cannot grow: upgrade it before you append");
        return Err(Error::unavailable(message));
    }
    updates::require_space(stripe, members, data_len, (&shared.members.view(), shared.config.disk_reserve.0))?;
    Ok(Some(data_len))
}

fn replaced() -> Error {
    Error::not_found("another append has begun since: what this one has written is not part of the object")
}

async fn last_stripe(shared: &Shared, object: &ObjectRecord) -> Result<StripeRecord> {
    let number = object.stripes.checked_sub(1).ok_or_else(|| Error::invalid("the object is empty: put it instead"))?;
    let page = shared.meta.stripes(object.version, number, 1).await.map_err(|error| shared.meta_error(error))?;
    page.items.into_iter().next().ok_or_else(|| Error::retry("the object was replaced: try again"))
}

fn require_at(object: &ObjectRecord, at: Option<u64>) -> Result<()> {
    let size = object.size;
    match at.filter(|at| *at != size) {
        Some(at) => Err(Error::new(
            Reaction::InvalidInput,
            format!("the object has {size} bytes by now, not {at}: something else was appended, or it was replaced"),
        )),
        None => Ok(()),
    }
}

fn require_room(object: &ObjectRecord, last: &StripeRecord, bytes: u64) -> Result<()> {
    let (size, room) = (object.size, room(&last.layout, last.object_offset(), object.size));
    if room > 0 && bytes <= room {
        return Ok(());
    }
    let (blocks, k) = (last.layout.data_blocks(), last.layout.k);
    let why = match blocks < k {
        true => format!("the last stripe has bytes in {blocks} of {k} data blocks only"),
        false => "the last stripe ends there".to_owned(),
    };
    let what = if bytes > 0 { format!("{bytes} bytes do not fit") } else { "nothing fits".to_owned() };
    Err(Error::invalid(format!(
        "{what} behind the {size} bytes of the object: {room} can be appended, because {why}. Put the object again with all its bytes, or what is left as an \
         object of its own"
    )))
}

/// An object with its last stripe.
async fn described(shared: &Shared, object: ObjectRecord, lasts_ms: u64) -> Result<v1::BeginAppendReply> {
    let last = object.stripes.saturating_sub(1);
    let object = show::object_page(shared, object, last, 1, |_| {}).await?;
    if object.stripes.is_empty() {
        return Err(Error::retry("the object was replaced: try again"));
    }
    Ok(v1::BeginAppendReply { object: Some(object), lasts_ms })
}
