//! The migrations, and the initial rows of a cluster.

use super::policies;
use crate::{MetaError, NewCluster, Result};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

/// Number n of the list makes schema n+1 of schema n. Never change one that was released: add the next.
const MIGRATIONS: [&str; 23] = [
    include_str!("schema_1.sql"),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
    include_str!("schema_4.sql"),
    include_str!("schema_5.sql"),
    include_str!("schema_6.sql"),
    include_str!("schema_7.sql"),
    include_str!("schema_8.sql"),
    include_str!("schema_9.sql"),
    include_str!("schema_10.sql"),
    include_str!("schema_11.sql"),
    include_str!("schema_12.sql"),
    include_str!("schema_13.sql"),
    include_str!("schema_14.sql"),
    include_str!("schema_15.sql"),
    include_str!("schema_16.sql"),
    include_str!("schema_17.sql"),
    include_str!("schema_18.sql"),
    include_str!("schema_19.sql"),
    include_str!("schema_20.sql"),
    include_str!("schema_21.sql"),
    include_str!("schema_22.sql"),
    include_str!("schema_23.sql"),
];

/// The newest schema that this build reads.
pub(super) const SCHEMA: u32 = MIGRATIONS.len() as u32;

/// Migrates the database to [`SCHEMA`], in one transaction. Fails if its schema is newer.
pub(super) fn migrate(connection: &mut Connection) -> Result<()> {
    if version(connection)? == SCHEMA {
        return Ok(());
    }
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have migrated it first.
    let found = version(&tx)?;
    if found > SCHEMA {
        return Err(MetaError::NewerSchema { found, known: SCHEMA });
    }
    tx.execute_batch("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL) STRICT")?;
    for sql in MIGRATIONS.iter().skip(found as usize) {
        tx.execute_batch(sql)?;
    }
    tx.execute("DELETE FROM schema_version", [])?;
    tx.execute("INSERT INTO schema_version VALUES (?1)", [SCHEMA])?;
    tx.commit()?;
    tracing::info!(from = found, to = SCHEMA, "migrated the metadata to a new schema");
    Ok(())
}

/// Creates the cluster's row and first policies if there is no cluster yet.
pub(super) fn create_cluster(connection: &mut Connection, new: &NewCluster) -> Result<()> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if tx.query_row("SELECT 1 FROM cluster", [], |_| Ok(())).optional()?.is_none() {
        tx.execute(
            "INSERT INTO cluster (one, id, incarnation, epoch, nodes_high_water, disks_high_water, stripes_high_water, uploads_high_water,
             created_ms, auto_repair) VALUES (1, ?1, ?2, 0, 0, 0, 0, 0, ?3, ?4)",
            (new.id.to_string(), format!("{:032x}", new.incarnation), new.created_ms, new.auto_repair),
        )?;
        for policy in &new.policies {
            policies::create(&tx, policy)?;
        }
    }
    Ok(tx.commit()?)
}

fn version(connection: &Connection) -> Result<u32> {
    let exists = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'schema_version'";
    if connection.query_row(exists, [], |_| Ok(())).optional()?.is_none() {
        return Ok(0);
    }
    let version = connection.query_row("SELECT version FROM schema_version", [], |row| row.get(0)).optional()?;
    Ok(version.unwrap_or(0))
}
