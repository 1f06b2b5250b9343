//! The errors of metadata transactions.

use weft_types::{Epoch, Error, NodeId, Party, Reaction};

/// The result of a metadata transaction. After an error, none of its changes happened.
pub type Result<T, E = MetaError> = std::result::Result<T, E>;

/// Why a metadata transaction failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// Another coordinator leads now.
    #[error("this coordinator led in epoch {}, but another one leads now in epoch {}: this one must stop", .held.0, .current.0)]
    StaleLeader {
        /// The epoch that the caller holds.
        held: Epoch,
        /// The current epoch.
        current: Epoch,
    },
    /// The database was written by a newer weft.
    #[error("the metadata has schema {found}, but this weft reads schemas up to {known}: use a newer weft")]
    NewerSchema {
        /// The schema of the database.
        found: u32,
        /// The newest schema that this build reads.
        known: u32,
    },
    /// A record does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The request is invalid in the current state; the message says what is valid.
    #[error("{0}")]
    Refused(String),
    /// A concurrent change made the request obsolete.
    #[error("{0}")]
    Conflict(String),
    /// A node or disk that was chosen for a block takes none any more: another node is needed.
    #[error("{message}")]
    Closed {
        /// The node.
        node: NodeId,
        /// Why.
        message: String,
    },
    /// The database was busy for too long.
    #[error("the metadata database is busy: {0}")]
    Busy(String),
    /// The database is inconsistent, or its disk fails.
    #[error("the metadata database failed: {0}")]
    Storage(String),
}

impl From<MetaError> for Error {
    fn from(error: MetaError) -> Self {
        let reaction = match &error {
            MetaError::StaleLeader { .. } | MetaError::NewerSchema { .. } | MetaError::Storage(_) => Reaction::Fatal,
            MetaError::NotFound(_) => Reaction::NotFound,
            MetaError::Refused(_) => Reaction::InvalidInput,
            MetaError::Conflict(_) | MetaError::Closed { .. } => Reaction::Replan,
            MetaError::Busy(_) => Reaction::Retry,
        };
        match error {
            MetaError::Closed { node, .. } => Self::new(reaction, error).party(Party::Node(node)),
            error => Self::new(reaction, error),
        }
    }
}

impl From<rusqlite::Error> for MetaError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
        match error.sqlite_error_code() {
            Some(DatabaseBusy | DatabaseLocked) => Self::Busy(error.to_string()),
            _ if matches!(error, rusqlite::Error::ToSqlConversionFailure(_)) => {
                Self::Refused(format!("a number is out of range: {error}"))
            }
            _ => Self::Storage(error.to_string()),
        }
    }
}
