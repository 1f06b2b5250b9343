//! Appends: what is written behind the end of an object, and becomes part of it when all of it is durable.

use crate::{ObjectRecord, Result};
use async_trait::async_trait;
use weft_types::{Epoch, ObjectName, UploadId};

/// The beginning of an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeginAppend {
    /// The object.
    pub name: ObjectName,
    /// The append's number, which its writer has drawn: 1 to 2^63-1.
    pub append: u64,
    /// The size that the object must have; `None`: any.
    pub at: Option<u64>,
    /// Whether the append must have begun before.
    pub renews: bool,
    /// The time, milliseconds since 1970.
    pub now_ms: u64,
    /// Until then no other append begins. The hold of an earlier append that lasts more than twice as long is none: the clock was set back since.
    pub until_ms: u64,
}

/// The answer to [`BeginAppend`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BegunAppend {
    /// It has begun. No other one may end from now on, unless it begins after this one.
    Begun {
        /// The object.
        object: ObjectRecord,
        /// Whether an earlier append did not end: its writer must be fenced, because its updates may still be on their way.
        fences: bool,
    },
    /// Another one is under way until then.
    Busy {
        /// Milliseconds since 1970.
        until_ms: u64,
    },
    /// The object has another size.
    Moved(ObjectRecord),
    /// It was renewed, but another append has begun since; or it has ended.
    Lost,
}

/// The end of an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndAppend {
    /// The object.
    pub name: ObjectName,
    /// Its version.
    pub version: UploadId,
    /// The append's number.
    pub append: u64,
    /// The object's size until now.
    pub from: u64,
    /// From now on.
    pub to: u64,
}

/// The metadata of appends. Each method is one transaction, as those of [`Meta`](crate::Meta).
#[async_trait]
pub trait AppendMeta: Send + Sync {
    /// Begins an append, or renews it.
    async fn begin_append(&self, epoch: Epoch, begin: BeginAppend) -> Result<BegunAppend>;
    /// The number of the append of an object's version that began last; 0: there was none, or no such version.
    async fn append_of(&self, version: UploadId) -> Result<u64>;
    /// Makes what an append has written part of the object. A conflict if another one has begun since, or if the object has another version or size. Succeeds if
    /// it has ended so already, and no other one has ended since. Refused if the object's last stripe does not contain so many bytes.
    async fn end_append(&self, epoch: Epoch, end: EndAppend) -> Result<ObjectRecord>;
    /// The writer of an append gives up: another one may begin at once, and fences it. Nothing happens if it is not under way.
    async fn give_up_append(&self, epoch: Epoch, name: ObjectName, append: u64) -> Result<()>;
    /// The policy of a bucket, if it refuses updates in place.
    async fn updates_refused_by(&self, bucket: String) -> Result<Option<String>>;
}
