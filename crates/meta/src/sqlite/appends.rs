//! Appends: the row of an object says which one began last, so that no other one ends.

use super::{SqliteMeta, objects, policies, rows};
use crate::{AppendMeta, BeginAppend, BegunAppend, EndAppend, MetaError, ObjectRecord, Result};
use async_trait::async_trait;
use rusqlite::{OptionalExtension, Transaction};
use weft_types::{Epoch, ObjectName, Owner, UploadId};

/// The hold of a writer that has given up: it is over, and the writer must be fenced.
const GIVEN_UP: u64 = 1;

#[async_trait]
impl AppendMeta for SqliteMeta {
    async fn begin_append(&self, epoch: Epoch, begin: BeginAppend) -> Result<BegunAppend> {
        self.write(epoch, move |tx| begin_in(tx, begin)).await
    }

    async fn append_of(&self, version: UploadId) -> Result<u64> {
        let sql = "SELECT append FROM objects WHERE version = ?1";
        let find = move |tx: &Transaction<'_>| tx.prepare_cached(sql)?.query_row([version.0], |row| row.get(0)).optional();
        self.read(move |tx| Ok(find(tx)?.unwrap_or(0))).await
    }

    async fn end_append(&self, epoch: Epoch, end: EndAppend) -> Result<ObjectRecord> {
        self.write(epoch, move |tx| end_in(tx, end)).await
    }

    async fn give_up_append(&self, epoch: Epoch, name: ObjectName, append: u64) -> Result<()> {
        let sql =
            "UPDATE objects SET append_until_ms = ?4 WHERE bucket = ?1 AND key = ?2 AND append = ?3 AND append_until_ms > 0";
        self.write(epoch, move |tx| {
            tx.prepare_cached(sql)?.execute((&name.bucket, &name.key, append, GIVEN_UP))?;
            Ok(())
        })
        .await
    }

    async fn updates_refused_by(&self, bucket: String) -> Result<Option<String>> {
        self.read(move |tx| policies::updates_refused_by(tx, &bucket)).await
    }
}

/// The append of an object that began last, until when it holds the object, and the append that ended last.
fn last(tx: &Transaction<'_>, version: UploadId) -> Result<(u64, u64, u64)> {
    let sql = "SELECT append, append_until_ms, append_ended FROM objects WHERE version = ?1";
    Ok(tx.prepare_cached(sql)?.query_row([version.0], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?)
}

fn begin_in(tx: &Transaction<'_>, begin: BeginAppend) -> Result<BegunAppend> {
    let BeginAppend { name, append, at, renews, now_ms, until_ms } = begin;
    if append == 0 {
        return Err(MetaError::Refused("an append has a number above 0".into()));
    }
    let object = objects::get(tx, &name)?;
    let (before, held_until_ms, ended) = last(tx, object.version)?;
    let is_under_way = before == append && held_until_ms > GIVEN_UP;
    if ended == append || (renews && !is_under_way) {
        return Ok(BegunAppend::Lost);
    }
    // A hold that lasts much longer than one that begins now was given before the clock was set back: it is over, and its writer is fenced. One that was given
    // a moment later, while this request waited, lasts a little longer.
    let longest_ms = until_ms.saturating_add(until_ms.saturating_sub(now_ms));
    let holds = (now_ms.saturating_add(1)..=longest_ms).contains(&held_until_ms);
    if before != append && holds {
        return Ok(BegunAppend::Busy { until_ms: held_until_ms });
    }
    if at.is_some_and(|at| at != object.size) {
        return Ok(BegunAppend::Moved(object));
    }
    let sql = "UPDATE objects SET append = ?2, append_until_ms = ?3 WHERE version = ?1";
    tx.prepare_cached(sql)?.execute((object.version.0, append, until_ms))?;
    Ok(BegunAppend::Begun { object, fences: held_until_ms > 0 })
}

fn end_in(tx: &Transaction<'_>, end: EndAppend) -> Result<ObjectRecord> {
    let EndAppend { name, version, append, from, to } = end;
    if append == 0 {
        return Err(MetaError::Refused("an append has a number above 0".into()));
    }
    let object = objects::get(tx, &name)?;
    let conflict =
        |why: &str| Err(MetaError::Conflict(format!("{why}: what was written behind the end of {name} is not part of it")));
    if object.version != version {
        return conflict("the object was overwritten or converted");
    }
    let (last, _, ended) = last(tx, version)?;
    // A repeated request; others may have begun since. The size of a version never falls.
    if ended == append && to <= object.size {
        return Ok(object);
    }
    if last != append {
        return conflict("another append has begun since");
    }
    if object.size != from || to < from {
        return conflict("the object has another size");
    }
    let stripe = rows::stripes_of(tx, Owner::Object(version), object.stripes.saturating_sub(1), 1)?.pop();
    let holds = stripe.map_or(0, |stripe| stripe.object_offset().saturating_add(stripe.layout.data_len));
    if to > holds {
        return Err(MetaError::Refused(format!("the stripes of {name} hold {holds} bytes, so it cannot have {to}")));
    }
    // A conversion that has read the object before starts again.
    let sql =
        "UPDATE objects SET size = ?2, append_until_ms = 0, append_ended = append, updates = updates + 1 WHERE version = ?1";
    tx.prepare_cached(sql)?.execute((version.0, to))?;
    Ok(ObjectRecord { size: to, ..object })
}
