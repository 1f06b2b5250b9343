//! Which stripes lack blocks, and which objects they belong to. The stripes are those of the tally, so nothing else is read.

use crate::{health, shared::Shared};
use std::collections::BTreeMap;
use weft_control::health::BadBlocks;
use weft_meta::MetaError;
use weft_proto::v1;
use weft_types::{ObjectName, Owner, Result, StripeId, UploadId};

/// Stripes of the tally that one call looks at.
const STRIPES_PER_CALL: usize = 512;

/// A page of them.
pub(crate) async fn list(shared: &Shared, asked: &v1::ListDamageRequest) -> Result<v1::ListDamageReply> {
    require_there(shared, asked).await.map_err(|error| shared.meta_error(error))?;
    let after = (asked.after_stripe > 0).then_some(StripeId(asked.after_stripe));
    let (found, counting) = {
        let health = shared.health.lock();
        (health.tally.lacking(after, STRIPES_PER_CALL), health.survey.is_counting())
    };
    let next_after = found.last().filter(|_| found.len() == STRIPES_PER_CALL).map_or(0, |(stripe, _)| stripe.0);
    let ids = found.iter().map(|(stripe, _)| *stripe).collect();
    let records = shared.meta.find_stripes(ids).await.map_err(|error| shared.meta_error(error))?;
    let records: BTreeMap<StripeId, _> = records.into_iter().map(|record| (record.id, record)).collect();
    let view = shared.members.view();
    let mut names: BTreeMap<UploadId, Option<ObjectName>> = BTreeMap::new();
    let mut stripes = Vec::new();
    for (id, condition) in found {
        let Some(record) = records.get(&id) else { continue };
        let Owner::Object(version) = record.owner else { continue };
        // It was repaired, and the tally does not know yet.
        if BadBlocks::of(record, &view).is_whole() {
            continue;
        }
        let name = match names.get(&version) {
            Some(known) => known.clone(),
            None => {
                let name = match shared.meta.object_of(version).await {
                    Ok(object) => Some(object.name),
                    // The object was removed in the meantime.
                    Err(MetaError::NotFound(_)) => None,
                    Err(error) => return Err(shared.meta_error(error)),
                };
                names.entry(version).or_insert(name).clone()
            }
        };
        let is_asked = |name: &ObjectName| {
            (asked.bucket.is_empty() || name.bucket == asked.bucket) && (asked.key.is_empty() || name.key == asked.key)
        };
        let Some(name) = name.filter(is_asked) else { continue };
        let losses = |further: Option<usize>| further.map(|further| u32::try_from(further).unwrap_or(u32::MAX));
        stripes.push(v1::DamagedStripe {
            bucket: name.bucket,
            key: name.key,
            number: record.number,
            further_losses: losses(condition.now),
            further_losses_with_all_nodes: losses(condition.with_all_nodes),
            blocks: Some(health::bad_blocks(condition.blocks)),
        });
    }
    Ok(v1::ListDamageReply { stripes, next_after, counting })
}

/// Fails if the bucket or object does not exist.
async fn require_there(shared: &Shared, asked: &v1::ListDamageRequest) -> std::result::Result<(), MetaError> {
    let (bucket, key) = (asked.bucket.clone(), asked.key.clone());
    match (bucket.is_empty(), key.is_empty()) {
        (true, _) => Ok(()),
        (false, true) => shared.meta.bucket(&bucket).await.map(drop),
        (false, false) => shared.meta.object(&ObjectName { bucket, key }).await.map(drop),
    }
}
