//! Connections to the file.

use crate::{MetaError, Result};
use rusqlite::Connection;
use std::{path::Path, time::Duration};

/// The longest wait for another process's transaction.
const BUSY_TIMEOUT_MS: u64 = 5_000;
/// Statements that stay prepared.
const STATEMENTS_MAX: usize = 128;

/// Opens the file; creates it if there is none.
pub(super) fn connect(path: &Path) -> Result<Connection> {
    let connection =
        Connection::open(path).map_err(|error| MetaError::Storage(format!("cannot open {}: {error}", path.display())))?;
    connection.busy_timeout(Duration::from_millis(BUSY_TIMEOUT_MS))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(connection)
}
