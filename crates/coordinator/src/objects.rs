//! Looks up, lists and removes objects, for clients.

use crate::{read, shared::Shared, show, validate};
use std::{sync::Arc, time::Duration};
use weft_control::read::first_part;
use weft_meta::{Listed, Listing, ObjectRecord};
use weft_proto::{status::encode_error, v1};
use weft_types::{Error, ObjectName, Result, Span};

/// The most objects and folders in one answer, and the default.
const OBJECTS_PER_PAGE_MAX: u32 = 1_000;
/// The most objects that one call removes.
const REMOVED_PER_CALL_MAX: usize = 1_000;
/// After this time a call answers with what it has removed: its caller asks again for the rest, and gets an answer within its deadline.
const REMOVAL_TIME_MAX: Duration = Duration::from_secs(5);
/// With so many stripes a transaction of removals ends: other changes, such as puts, wait for it.
const STRIPES_PER_REMOVAL: u64 = 256;

/// An object with a page of its stripes. If `reading` asks for it, also starts the read of a stripe of this page; if the read cannot be
/// started, the caller learns the reason from its next call.
pub(crate) async fn stat(
    shared: &Arc<Shared>,
    asked: &v1::StatObjectRequest,
    reading: Option<v1::BeginRead>,
) -> Result<v1::ObjectReply> {
    let name = validate::object(&asked.bucket, &asked.key)?;
    let mut object = look_up_one(shared, &name).await?;
    loop {
        let (version, mut first) = (object.version, None);
        let range = reading.as_ref().map(|reading| (range_of(reading, object.size), reading.bytes_max));
        let page = show::object_page(shared, object, asked.from_stripe, asked.stripes_max, |stripe| {
            let part = range.and_then(|(range, bytes_max)| first_part(stripe, range, bytes_max));
            first = first.take().or_else(|| part.map(|part| (stripe.clone(), part)));
        });
        let mut page = page.await?;
        if page.stripes.is_empty() && asked.from_stripe < page.stripe_count {
            // Its stripes disappeared during the lookup: the object was replaced or removed.
            object = look_up_one(shared, &name).await?;
            if object.version == version {
                return Ok(page);
            }
            continue;
        }
        if let (Some(reading), Some(first)) = (reading, first) {
            page.read = read::begin_with(shared, &page, reading, first).await.ok();
        }
        return Ok(page);
    }
}

async fn look_up_one(shared: &Shared, name: &ObjectName) -> Result<ObjectRecord> {
    shared.meta.object(name).await.map_err(|error| shared.meta_error(error))
}

/// The bytes that a read asks for, of an object of `size` bytes.
fn range_of(asked: &v1::BeginRead, size: u64) -> Span {
    match asked.last {
        Some(count) => Span::new(size.saturating_sub(count), size),
        None => Span::new(asked.start, asked.end.unwrap_or(size).min(size)),
    }
}

/// A page of the objects of a bucket.
pub(crate) async fn list(shared: &Shared, asked: v1::ListObjectsRequest) -> Result<v1::ListObjectsReply> {
    validate::name("bucket", &asked.bucket)?;
    let limit = if asked.limit == 0 { OBJECTS_PER_PAGE_MAX } else { asked.limit.min(OBJECTS_PER_PAGE_MAX) };
    let query = Listing { prefix: asked.prefix, delimiter: asked.delimiter, after: asked.after, limit };
    let page = shared.meta.listing(&asked.bucket, query).await.map_err(|error| shared.meta_error(error))?;
    let mut reply = v1::ListObjectsReply { more: page.more, ..v1::ListObjectsReply::default() };
    for listed in page.items {
        match listed {
            Listed::Object(object) => reply.objects.push(show::entry(object)),
            Listed::Folder(folder) => reply.folders.push(folder),
        }
    }
    Ok(reply)
}

/// Removes an object.
pub(crate) async fn remove(shared: &Shared, asked: &v1::ObjectName) -> Result<v1::Empty> {
    let name = validate::object(&asked.bucket, &asked.key)?;
    let object = shared.meta.remove_object(shared.epoch, &name, shared.garbage_not_before_ms()).await;
    tell(&object.map_err(|error| shared.meta_error(error))?);
    Ok(v1::Empty {})
}

/// Removes objects, or tells what would be removed: a result for each, in the same order. Objects of very many stripes take long, so the
/// answer may end before the last name, but not before the first.
pub(crate) async fn remove_many(shared: &Shared, asked: &v1::RemoveObjectsRequest) -> Result<v1::RemoveObjectsReply> {
    if asked.names.len() > REMOVED_PER_CALL_MAX {
        let count = asked.names.len();
        return Err(Error::invalid(format!(
            "a call removes at most {REMOVED_PER_CALL_MAX} objects, not {count}: make several calls"
        )));
    }
    let names: Vec<Result<ObjectName>> = asked.names.iter().map(|name| validate::object(&name.bucket, &name.key)).collect();
    let valid: Vec<ObjectName> = names.iter().flatten().cloned().collect();
    let removed = if asked.dry_run { look_up(shared, valid).await } else { remove_valid(shared, valid).await };
    let mut removed = removed.into_iter();
    // Ends at the first valid name without a result.
    let results = names.into_iter().map_while(|name| match name {
        Ok(_) => removed.next(),
        Err(error) => Some(Err(error)),
    });
    Ok(v1::RemoveObjectsReply { objects: results.map(removed_object).collect() })
}

/// What a removal would find.
async fn look_up(shared: &Shared, names: Vec<ObjectName>) -> Vec<Result<ObjectRecord>> {
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        found.push(shared.meta.object(&name).await.map_err(|error| shared.meta_error(error)));
    }
    found
}

/// Removes objects, some in each transaction. What was removed before a transaction failed stays removed, so the failure is the result of
/// the rest only.
async fn remove_valid(shared: &Shared, names: Vec<ObjectName>) -> Vec<Result<ObjectRecord>> {
    let (mut results, begun) = (Vec::with_capacity(names.len()), shared.started.elapsed());
    while results.len() < names.len() && (results.is_empty() || shared.started.elapsed() < begun + REMOVAL_TIME_MAX) {
        // Each object has a stripe, or counts as one.
        let next = names.iter().skip(results.len()).take(STRIPES_PER_REMOVAL as usize).cloned().collect();
        let removed = shared.meta.remove_objects(shared.epoch, next, STRIPES_PER_REMOVAL, shared.garbage_not_before_ms()).await;
        match removed {
            Ok(removed) if removed.is_empty() => break,
            Ok(removed) => {
                removed.iter().flatten().for_each(tell);
                results.extend(removed.into_iter().map(|removed| removed.map_err(|error| shared.meta_error(error))));
            }
            Err(error) => {
                let error = shared.meta_error(error);
                results.resize_with(names.len(), || Err(error.clone()));
            }
        }
    }
    results
}

fn removed_object(removed: Result<ObjectRecord>) -> v1::RemovedObject {
    match removed {
        Ok(object) => v1::RemovedObject { error: Vec::new(), version: object.version.0, size: object.size },
        Err(error) => v1::RemovedObject { error: encode_error(&error), ..v1::RemovedObject::default() },
    }
}

fn tell(object: &ObjectRecord) {
    tracing::info!(object = %object.name, version = %object.version, "removed");
}
