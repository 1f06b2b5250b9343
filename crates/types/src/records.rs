//! What is known of stripes, of whom they belong to and of where their blocks are: plain values, which the metadata keeps and decisions
//! are made by.

use crate::{BlockId, NodeId, Seq, Span, StripeId, StripeLayout};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// Ranges of bytes that are kept of a corrupt block; one with more of them counts as corrupt as a whole. Each of them costs a plan
/// around it another lane, with buffers at everybody in it.
pub const CORRUPT_RANGES_MAX: usize = 16;

/// Copies of a data block, at most, with the coded one.
pub const REPLICAS_MAX: u8 = 16;

/// Counts the leaders that the cluster had. A change is made in the name of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// A disk, numbered by the metadata from 1 and never reused. Agents know the disk by its id, which they drew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DiskNumber(pub u32);

/// A put, numbered from 1 over the whole cluster and never reused. It is also the version of the object that the put makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UploadId(pub u64);

/// The key of a put: drawn at random when the put begins, and checked in every later call, so that other clients cannot change the put.
/// `Debug` hides it, and it is not logged.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct PutKey(pub u64);

impl PutKey {
    /// The key of puts of earlier versions: no key is checked for them.
    pub const NONE: Self = Self(0);

    /// Whether a writer that shows this may go on with the put that has this key.
    pub fn admits(self, shown: Self) -> bool {
        self == Self::NONE || self == shown
    }
}

impl fmt::Debug for PutKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::NONE { "PutKey::NONE" } else { "PutKey(..)" })
    }
}

/// Whether a node was heard of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeState {
    /// It was.
    Up,
    /// Not for too long.
    Down,
}

/// What must not hold more blocks of a stripe than its code tolerates to lose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureDomain {
    /// A node: racks are not looked at.
    Node,
    /// A rack, where there are racks enough.
    Rack,
}

/// When a put is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ack {
    /// How many blocks of a stripe may still be missing; 0: none, all are durable.
    pub missing_max: u32,
}

/// The name of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    /// The bucket.
    pub bucket: String,
    /// The key in the bucket.
    pub key: String,
}

/// Where a block is, or is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Home {
    /// The node.
    pub node: NodeId,
    /// The disk.
    pub disk: DiskNumber,
}

/// What is known of a block, whatever its node's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum BlockState {
    /// It was durable when it was last heard of.
    Ok,
    /// Some of its bytes are not what they were.
    Corrupt,
    /// It is not there.
    Missing,
}

/// A block of a stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlacedBlock {
    /// The generation that counts.
    pub generation: u32,
    /// The highest generation that was ever allocated of any copy of the block: also of copies that are gone.
    pub generation_high_water: u32,
    /// Where it is.
    pub home: Home,
    /// What is known of it.
    pub state: BlockState,
    /// Which copy of the block it is. It is packed beside the rest: the first version of what is packed knew none.
    #[serde(skip)]
    pub copy: u8,
}

/// Whom a stripe belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A put under way: nobody sees it.
    Upload(UploadId),
    /// The object of that version.
    Object(UploadId),
}

/// A stripe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StripeRecord {
    /// Its number in the cluster.
    pub id: StripeId,
    /// Whose it is.
    pub owner: Owner,
    /// Its number in the object, from 0.
    pub number: u64,
    /// Whether its blocks have been written.
    pub ended: bool,
    /// Which updates it has.
    pub seq: Seq,
    /// Its layout.
    pub layout: StripeLayout,
    /// Its blocks, by index: of each its first copy. Whoever reads may have put another in its place. A data block without bytes is not
    /// here, unless an earlier version stored it: it is known to be zeros.
    pub blocks: BTreeMap<u8, PlacedBlock>,
    /// The other copies, each with its index, in order of index and copy.
    pub copies: Vec<(u8, PlacedBlock)>,
    /// CRC32C of each MiB of each block, by index; empty until it has ended.
    pub checksums: Vec<Vec<u32>>,
    /// The bytes of corrupt blocks that are corrupt, by index and copy. A corrupt block that is not here is corrupt as a whole.
    pub corrupt: BTreeMap<(u8, u8), Vec<Span>>,
    /// Its put was acknowledged before all its blocks were durable: those that are missing are on their way, or are to be rebuilt.
    pub incomplete: bool,
}

impl StripeRecord {
    /// Every block that some node has, or is to have: those by index first, and then the other copies.
    pub fn all(&self) -> impl Iterator<Item = (u8, &PlacedBlock)> {
        self.firsts().chain(self.copies.iter().map(|(index, placed)| (*index, placed)))
    }

    /// The first copy of each, by index.
    pub fn firsts(&self) -> impl Iterator<Item = (u8, &PlacedBlock)> {
        self.blocks.iter().map(|(index, placed)| (*index, placed))
    }

    /// Where a block is, its first copy.
    pub fn home_of(&self, index: u8) -> Option<Home> {
        self.blocks.get(&index).map(|placed| placed.home)
    }

    /// The same of all, to be changed.
    pub fn all_mut(&mut self) -> impl Iterator<Item = (u8, &mut PlacedBlock)> {
        let firsts = self.blocks.iter_mut().map(|(index, placed)| (*index, placed));
        firsts.chain(self.copies.iter_mut().map(|(index, placed)| (*index, placed)))
    }

    /// A copy of a block.
    pub fn find(&self, index: u8, copy: u8) -> Option<&PlacedBlock> {
        self.all().find(|(at, placed)| *at == index && placed.copy == copy).map(|(_, placed)| placed)
    }

    /// The same, to be changed.
    pub fn find_mut(&mut self, index: u8, copy: u8) -> Option<&mut PlacedBlock> {
        self.all_mut().find(|(at, placed)| *at == index && placed.copy == copy).map(|(_, placed)| placed)
    }

    /// Another copy of a block, if there is one, stands for it in [`blocks`](Self::blocks) from now on: the one with the least key.
    /// Among equals the one that stands there stays.
    pub fn put_first<K: Ord>(&mut self, key: impl Fn(&Self, u8, &PlacedBlock) -> K) {
        let keys: Vec<K> = self.copies.iter().map(|(index, placed)| key(self, *index, placed)).collect();
        let mut firsts: BTreeMap<u8, K> = self.firsts().map(|(index, placed)| (index, key(self, index, placed))).collect();
        for ((index, copy), own) in self.copies.iter_mut().zip(keys) {
            let (Some(first), Some(key)) = (self.blocks.get_mut(index), firsts.get_mut(index)) else { continue };
            if own < *key {
                std::mem::swap(first, copy);
                *key = own;
            }
        }
        self.copies.sort_unstable_by_key(|(index, placed)| (*index, placed.copy));
    }

    /// The number of data blocks that have bytes or are stored. The data blocks after them are zeros.
    pub fn dimension(&self) -> usize {
        let data = self.blocks.keys().rfind(|index| u32::from(**index) < self.layout.k);
        data.map_or(0, |last| usize::from(*last) + 1).max(self.layout.data_blocks() as usize)
    }

    /// The bytes of a block that are corrupt while the others can be read; none for a block that is whole, or lost as a whole.
    pub fn corrupt_bytes(&self, index: u8) -> &[Span] {
        self.blocks.get(&index).map_or(&[], |placed| self.corrupt_of(index, placed.copy))
    }

    /// The same of any copy.
    pub fn corrupt_of(&self, index: u8, copy: u8) -> &[Span] {
        self.corrupt.get(&(index, copy)).map(Vec::as_slice).unwrap_or_default()
    }

    /// The blocks, by index and copy, that its put has left for later, and that are not there yet.
    pub fn on_their_way(&self) -> Vec<(u8, u8)> {
        let missing = self.all().filter(|(_, block)| self.incomplete && block.state == BlockState::Missing);
        missing.map(|(index, block)| (index, block.copy)).collect()
    }

    /// Whether any copy of a block is not there.
    pub fn lacks_any(&self) -> bool {
        self.all().any(|(_, block)| block.state == BlockState::Missing)
    }

    /// Where its data begins in the object, bytes: every stripe before it is full.
    pub fn object_offset(&self) -> u64 {
        self.number.saturating_mul(self.layout.layout.block_len).saturating_mul(u64::from(self.layout.k))
    }

    /// The block of an index in the generation that counts.
    pub fn block_id(&self, index: u8) -> Option<BlockId> {
        let placed = self.blocks.get(&index)?;
        Some(self.id_of(index, placed))
    }

    /// A copy of a block in the generation that counts.
    pub fn id_of(&self, index: u8, placed: &PlacedBlock) -> BlockId {
        BlockId { stripe: self.id, index, copy: placed.copy, generation: placed.generation }
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.bucket, self.key)
    }
}

/// Which nodes help where more could than are needed (ECPipe, section 3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HelperSelect {
    /// Those that have not helped for the longest time.
    Lru,
    /// At random.
    Random,
    /// Those of the smallest numbers: the paper's baseline.
    Index,
}

impl HelperSelect {
    /// All of them, the usual one first.
    pub const ALL: [Self; 3] = [Self::Lru, Self::Random, Self::Index];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Random => "random",
            Self::Index => "index",
        }
    }
}

/// A node. What is seen of it at one moment shares the names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRecord {
    /// Its number.
    pub id: NodeId,
    /// What the operator calls it.
    pub name: Arc<str>,
    /// Its rack.
    pub rack: Arc<str>,
    /// Its zone.
    pub zone: String,
    /// Where it takes data connections.
    pub data_address: String,
    /// Where it takes calls.
    pub control_address: String,
    /// The last transition that was written.
    pub state: NodeState,
    /// All disks that it ever had, by number.
    pub disks: Vec<DiskRecord>,
}

/// A disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskRecord {
    /// Its number.
    pub number: DiskNumber,
    /// What its agent calls it.
    pub id: Arc<str>,
    /// Where it is mounted.
    pub path: Arc<str>,
    /// Its size.
    pub total_bytes: u64,
    /// It failed, or its agent no longer has it.
    pub failed: bool,
}
