//! What can go wrong with the metadata.

use weft_types::{Epoch, Error, Reaction};

/// The result of a metadata transaction. An error means that nothing of it happened.
pub type Result<T, E = MetaError> = std::result::Result<T, E>;

/// Why a metadata transaction did not happen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// Another coordinator leads by now.
    #[error("this coordinator led in epoch {} and another one leads in epoch {} now: it must stop", .held.0, .current.0)]
    StaleLeader {
        /// The epoch that the caller holds.
        held: Epoch,
        /// The epoch that is.
        current: Epoch,
    },
    /// The database was written by a newer weft.
    #[error(
        "the metadata has schema {found} and this weft knows schemas up to {known}: use the weft that wrote it, or a newer one"
    )]
    NewerSchema {
        /// The schema of the database.
        found: u32,
        /// The newest that this build knows.
        known: u32,
    },
    /// It does not exist.
    #[error("{0}")]
    NotFound(String),
    /// What was asked makes no sense as things stand; the message says what would.
    #[error("{0}")]
    Refused(String),
    /// Somebody else was faster: what the caller had seen has changed.
    #[error("{0}")]
    Conflict(String),
    /// The database was busy for too long.
    #[error("the metadata is busy: {0}")]
    Busy(String),
    /// The database says what cannot be, or its disk fails.
    #[error("the metadata cannot be used: {0}")]
    Storage(String),
}

impl From<MetaError> for Error {
    fn from(error: MetaError) -> Self {
        let reaction = match &error {
            MetaError::StaleLeader { .. } | MetaError::NewerSchema { .. } | MetaError::Storage(_) => Reaction::Fatal,
            MetaError::NotFound(_) => Reaction::NotFound,
            MetaError::Refused(_) => Reaction::InvalidInput,
            MetaError::Conflict(_) => Reaction::Replan,
            MetaError::Busy(_) => Reaction::Retry,
        };
        Self::new(reaction, error)
    }
}

impl From<rusqlite::Error> for MetaError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
        match error.sqlite_error_code() {
            Some(DatabaseBusy | DatabaseLocked) => Self::Busy(error.to_string()),
            _ if matches!(error, rusqlite::Error::ToSqlConversionFailure(_)) => {
                Self::Refused(format!("a number that no record has: {error}"))
            }
            _ => Self::Storage(error.to_string()),
        }
    }
}
