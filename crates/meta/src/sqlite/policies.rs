//! Policies and buckets.

use crate::{BucketRecord, MetaError, PolicyRecord, Result};
use rusqlite::{OptionalExtension, Row, Transaction};
use weft_types::{Ack, FailureDomain, UpdatesInPlace, counted};

const POLICY: &str = "name, code, block_len, cell_len, failure_domain, ack_missing_max, is_default, replicas, updates";
const BUCKET: &str = "name, policy, created_ms, (SELECT count(*) FROM objects WHERE bucket = name)";

pub(super) fn create(tx: &Transaction<'_>, policy: &PolicyRecord) -> Result<()> {
    if find(tx, &policy.name)?.is_some() {
        let name = &policy.name;
        return Err(MetaError::Refused(format!("the policy {name} already exists: remove it first, or choose another name")));
    }
    if policy.is_default {
        tx.execute("UPDATE policies SET is_default = 0", [])?;
    }
    tx.execute(
        &format!("INSERT INTO policies ({POLICY}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"),
        (
            &policy.name,
            &policy.code,
            policy.block_len,
            policy.cell_len,
            domain_text(policy.failure_domain),
            policy.ack.missing_max,
            policy.is_default,
            policy.replicas,
            policy.updates.name(),
        ),
    )?;
    Ok(())
}

pub(super) fn list(tx: &Transaction<'_>) -> Result<Vec<PolicyRecord>> {
    let mut statement = tx.prepare_cached(&format!("SELECT {POLICY} FROM policies ORDER BY name"))?;
    let policies = statement.query_map([], policy_row)?;
    Ok(policies.collect::<Result<_, _>>()?)
}

pub(super) fn remove(tx: &Transaction<'_>, name: &str) -> Result<()> {
    let policy = find(tx, name)?.ok_or_else(|| no_policy(name))?;
    if policy.is_default {
        return Err(MetaError::Refused(format!("the policy {name} is the default: make another policy the default first")));
    }
    let user = tx.query_row("SELECT name FROM buckets WHERE policy = ?1 ORDER BY name LIMIT 1", [name], |row| row.get(0));
    if let Some::<String>(bucket) = user.optional()? {
        return Err(MetaError::Refused(format!("the policy {name} is in use by the bucket {bucket}")));
    }
    tx.execute("DELETE FROM policies WHERE name = ?1", [name])?;
    Ok(())
}

pub(super) fn set_default(tx: &Transaction<'_>, name: &str) -> Result<()> {
    find(tx, name)?.ok_or_else(|| no_policy(name))?;
    tx.execute("UPDATE policies SET is_default = 0", [])?;
    tx.execute("UPDATE policies SET is_default = 1 WHERE name = ?1", [name])?;
    Ok(())
}

pub(super) fn create_bucket(tx: &Transaction<'_>, name: &str, policy: Option<&str>, now_ms: u64) -> Result<BucketRecord> {
    if find_bucket(tx, name)?.is_some() {
        return Err(MetaError::Refused(format!("the bucket {name} already exists")));
    }
    let policy = match policy {
        Some(policy) => find(tx, policy)?.ok_or_else(|| no_policy(policy))?,
        None => tx
            .query_row(&format!("SELECT {POLICY} FROM policies WHERE is_default = 1"), [], policy_row)
            .optional()?
            .ok_or_else(|| MetaError::Refused("there is no default policy: name a policy for the bucket".into()))?,
    };
    tx.execute("INSERT INTO buckets VALUES (?1, ?2, ?3)", (name, &policy.name, now_ms))?;
    Ok(BucketRecord { name: name.to_owned(), policy: policy.name, created_ms: now_ms, objects: 0 })
}

/// Changes a bucket's policy.
pub(super) fn set_policy_of(tx: &Transaction<'_>, bucket: &str, policy: &str) -> Result<()> {
    find(tx, policy)?.ok_or_else(|| no_policy(policy))?;
    match tx.execute("UPDATE buckets SET policy = ?2 WHERE name = ?1", [bucket, policy])? {
        0 => Err(no_bucket(bucket)),
        _ => Ok(()),
    }
}

pub(super) fn bucket_and_policy(tx: &Transaction<'_>, name: &str) -> Result<(BucketRecord, PolicyRecord)> {
    let bucket = find_bucket(tx, name)?.ok_or_else(|| no_bucket(name))?;
    let policy = find(tx, &bucket.policy)?.ok_or_else(|| no_policy(&bucket.policy))?;
    Ok((bucket, policy))
}

pub(super) fn buckets(tx: &Transaction<'_>) -> Result<Vec<BucketRecord>> {
    let mut statement = tx.prepare_cached(&format!("SELECT {BUCKET} FROM buckets ORDER BY name"))?;
    let buckets = statement.query_map([], bucket_row)?;
    Ok(buckets.collect::<Result<_, _>>()?)
}

pub(super) fn remove_bucket(tx: &Transaction<'_>, name: &str) -> Result<()> {
    let bucket = find_bucket(tx, name)?.ok_or_else(|| no_bucket(name))?;
    if bucket.objects > 0 {
        return Err(MetaError::Refused(format!(
            "the bucket {name} holds {}: remove them first",
            counted(bucket.objects, "object")
        )));
    }
    if tx.query_row("SELECT 1 FROM uploads WHERE bucket = ?1", [name], |_| Ok(())).optional()?.is_some() {
        return Err(MetaError::Refused(format!("puts into the bucket {name} are running: try again when they have ended")));
    }
    tx.execute("DELETE FROM buckets WHERE name = ?1", [name])?;
    Ok(())
}

/// Fails if a bucket does not exist.
pub(super) fn require_bucket(tx: &Transaction<'_>, name: &str) -> Result<()> {
    // Does not read the whole record: its count of objects would be computed for every put and look-up.
    let found: Option<u8> =
        tx.prepare_cached("SELECT 1 FROM buckets WHERE name = ?1")?.query_row([name], |row| row.get(0)).optional()?;
    found.map(drop).ok_or_else(|| no_bucket(name))
}

pub(super) fn domain_text(domain: FailureDomain) -> &'static str {
    match domain {
        FailureDomain::Node => "node",
        FailureDomain::Rack => "rack",
    }
}

/// The schema admits no other text.
pub(super) fn domain_of(text: &str) -> FailureDomain {
    if text == "node" { FailureDomain::Node } else { FailureDomain::Rack }
}

/// The schema admits no other text.
fn updates_of(text: &str) -> UpdatesInPlace {
    UpdatesInPlace::ALL.into_iter().find(|updates| updates.name() == text).unwrap_or_default()
}

/// The policy of a bucket, if it refuses updates in place.
pub(super) fn updates_refused_by(tx: &Transaction<'_>, bucket: &str) -> Result<Option<String>> {
    let sql = "SELECT policies.name FROM buckets JOIN policies ON policies.name = buckets.policy
               WHERE buckets.name = ?1 AND policies.updates = 'refused'";
    Ok(tx.prepare_cached(sql)?.query_row([bucket], |row| row.get(0)).optional()?)
}

fn find(tx: &Transaction<'_>, name: &str) -> Result<Option<PolicyRecord>> {
    let sql = format!("SELECT {POLICY} FROM policies WHERE name = ?1");
    Ok(tx.prepare_cached(&sql)?.query_row([name], policy_row).optional()?)
}

fn find_bucket(tx: &Transaction<'_>, name: &str) -> Result<Option<BucketRecord>> {
    let sql = format!("SELECT {BUCKET} FROM buckets WHERE name = ?1");
    Ok(tx.prepare_cached(&sql)?.query_row([name], bucket_row).optional()?)
}

fn policy_row(row: &Row<'_>) -> rusqlite::Result<PolicyRecord> {
    Ok(PolicyRecord {
        name: row.get(0)?,
        code: row.get(1)?,
        block_len: row.get(2)?,
        cell_len: row.get(3)?,
        failure_domain: domain_of(&row.get::<_, String>(4)?),
        ack: Ack { missing_max: row.get(5)? },
        is_default: row.get(6)?,
        replicas: row.get(7)?,
        updates: updates_of(&row.get::<_, String>(8)?),
    })
}

fn bucket_row(row: &Row<'_>) -> rusqlite::Result<BucketRecord> {
    Ok(BucketRecord { name: row.get(0)?, policy: row.get(1)?, created_ms: row.get(2)?, objects: row.get(3)? })
}

fn no_policy(name: &str) -> MetaError {
    MetaError::NotFound(format!("there is no policy {name}: `weft policy ls` lists the policies"))
}

fn no_bucket(name: &str) -> MetaError {
    MetaError::NotFound(format!(
        "there is no bucket {name}: `weft bucket ls` lists the buckets, and `weft bucket create {name}` creates it"
    ))
}
