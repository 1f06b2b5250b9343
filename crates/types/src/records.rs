//! Stripes, their owners, and the homes of their blocks: plain values, which the metadata stores and decisions use.

use crate::{BlockId, NodeId, Seq, Span, StripeId, StripeLayout};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// The most corrupt ranges that are stored for a block; a block with more counts as corrupt as a whole. Each range adds
/// a lane to every plan that avoids it, with buffers at all its parties.
pub const CORRUPT_RANGES_MAX: usize = 16;

/// The most copies of a data block, including the coded one.
pub const REPLICAS_MAX: u8 = 16;

/// Counts the leaders that the cluster has had. Every change names the leader's epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// A disk, numbered by the metadata from 1 and never reused. Agents identify the disk by the id that they drew for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DiskNumber(pub u32);

/// A put, numbered from 1 in the whole cluster and never reused. It is also the version of the object that the put
/// creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UploadId(pub u64);

/// The key of a put: drawn at random when the put begins, and checked in every later call, so that other clients cannot change the put.
/// `Debug` hides it, and it is not logged.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct PutKey(pub u128);

impl PutKey {
    /// The key of puts from earlier versions, for which no key is checked.
    pub const NONE: Self = Self(0);

    /// The key in a message: 16 bytes. No other length is a key.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        bytes.try_into().map_or(Self::NONE, |bytes| Self(u128::from_be_bytes(bytes)))
    }

    /// The key's bytes, for messages and the metadata.
    pub fn to_bytes(self) -> Vec<u8> {
        self.0.to_be_bytes().to_vec()
    }

    /// Whether a writer with this key may continue the put.
    pub fn admits(self, shown: Self) -> bool {
        self == Self::NONE || self == shown
    }
}

impl fmt::Debug for PutKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::NONE { "PutKey::NONE" } else { "PutKey(..)" })
    }
}

/// What the metadata has on a node or on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Blocks of stripes, lost ones too.
    pub blocks: u64,
    /// Blocks of puts and repairs that have not ended.
    pub allocations: u64,
}

/// The blocks of a node that was lost, or silent for this long, are checked when it comes back, milliseconds.
pub const LONG_AWAY_MS: u64 = 600_000;

/// The recorded state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeState {
    /// It sends heartbeats.
    Up,
    /// It is silent, and may only be restarting.
    Down,
    /// It was silent for so long that its blocks are rebuilt elsewhere. It may still come back.
    Lost,
}

impl NodeState {
    /// Its name, in the metadata and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Lost => "lost",
        }
    }

    /// The state with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        [Self::Up, Self::Down, Self::Lost].into_iter().find(|state| state.name() == name)
    }
}

/// The unit of placement: none may hold more blocks of a stripe than the code tolerates to lose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureDomain {
    /// A node; racks do not matter.
    Node,
    /// A rack, if there are enough racks.
    Rack,
}

/// Whether bytes of the objects of a policy may be changed in place, and appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum UpdatesInPlace {
    /// They may.
    #[default]
    Allowed,
    /// An object is only replaced as a whole.
    Refused,
}

impl UpdatesInPlace {
    /// All of them, the default first.
    pub const ALL: [Self; 2] = [Self::Allowed, Self::Refused];

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Refused => "refused",
        }
    }
}

/// When a put is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ack {
    /// How many blocks of a stripe may still be missing; 0: all must be durable.
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

/// The current or future place of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Home {
    /// The node.
    pub node: NodeId,
    /// The disk.
    pub disk: DiskNumber,
}

/// The recorded state of a block, whatever its node's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum BlockState {
    /// It was durable at the last report.
    Ok,
    /// Some of its bytes are wrong.
    Corrupt,
    /// It does not exist.
    Missing,
}

/// A block of a stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlacedBlock {
    /// The current generation.
    pub generation: u32,
    /// The highest generation that was ever allocated to any copy of the block, including removed copies.
    pub generation_high_water: u32,
    /// Its home.
    pub home: Home,
    /// Its recorded state.
    pub state: BlockState,
    /// The copy's number. It is packed separately, because version 1 of the packed form had no copies.
    #[serde(skip)]
    pub copy: u8,
}

/// The owner of a stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A running put: the stripe is invisible.
    Upload(UploadId),
    /// The object with this version.
    Object(UploadId),
}

/// A stripe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StripeRecord {
    /// Its number in the cluster.
    pub id: StripeId,
    /// Its owner.
    pub owner: Owner,
    /// Its number in the object, from 0.
    pub number: u64,
    /// Whether its blocks have been written.
    pub ended: bool,
    /// Its updates.
    pub seq: Seq,
    /// Its layout.
    pub layout: StripeLayout,
    /// The first copy of each block, by index; a reader may have put another copy in its place. An empty data block is
    /// missing here, unless an earlier version stored it: it is known to be zeros.
    pub blocks: BTreeMap<u8, PlacedBlock>,
    /// The other copies with their indexes, in the order of index and copy.
    pub copies: Vec<(u8, PlacedBlock)>,
    /// The CRC32C of each MiB of each block, by index; empty until the stripe has ended.
    pub checksums: Vec<Vec<u32>>,
    /// By index, of blocks without checksums that were left out of updates in place: the CRC32C of each MiB that no update has changed.
    pub kept: BTreeMap<u8, Vec<Option<u32>>>,
    /// The corrupt bytes of corrupt blocks, by index and copy. A corrupt block without an entry is corrupt as a whole.
    pub corrupt: BTreeMap<(u8, u8), Vec<Span>>,
    /// Whether its put was acknowledged before all its blocks were durable: the missing blocks are on their way or will
    /// be rebuilt.
    pub incomplete: bool,
}

impl StripeRecord {
    /// Every block that a node has or will have: first copies by index, then the other copies.
    pub fn all(&self) -> impl Iterator<Item = (u8, &PlacedBlock)> {
        self.firsts().chain(self.copies.iter().map(|(index, placed)| (*index, placed)))
    }

    /// The first copy of each block, by index.
    pub fn firsts(&self) -> impl Iterator<Item = (u8, &PlacedBlock)> {
        self.blocks.iter().map(|(index, placed)| (*index, placed))
    }

    /// The recorded checksums of a block; `None` if they are unknown: its last copy was lost while it was updated in place, and is not rebuilt yet.
    pub fn checksums_of(&self, index: u8) -> Option<&[u32]> {
        let recorded = self.checksums.get(usize::from(index)).map(Vec::as_slice);
        recorded.filter(|recorded| !recorded.is_empty() || self.layout.block_len(index.into()) == 0)
    }

    /// What is known of the CRC32C of each MiB of a block: all if they are recorded, else what is kept. Empty: nothing.
    pub fn known_units(&self, index: u8) -> Vec<Option<u32>> {
        match self.checksums_of(index) {
            Some(recorded) => recorded.iter().copied().map(Some).collect(),
            None => self.kept.get(&index).cloned().unwrap_or_default(),
        }
    }

    /// What is [kept](Self::kept) of a copy that is missing.
    pub fn kept_of(&self, index: u8, copy: u8) -> Option<&[Option<u32>]> {
        let is_missing = self.find(index, copy).is_some_and(|placed| placed.state == BlockState::Missing);
        self.kept.get(&index).filter(|_| is_missing).map(Vec::as_slice)
    }

    /// Whether this generation may be an earlier one of a block that is missing at the same node, with bytes that are still right.
    pub fn may_keep(&self, block: BlockId, node: NodeId) -> bool {
        let placed = self.find(block.index, block.copy).filter(|placed| placed.state == BlockState::Missing);
        let is_earlier = placed.is_some_and(|placed| placed.home.node == node && placed.generation != block.generation);
        is_earlier && !self.incomplete && !self.known_units(block.index).is_empty()
    }

    /// The home of a block's first copy.
    pub fn home_of(&self, index: u8) -> Option<Home> {
        self.blocks.get(&index).map(|placed| placed.home)
    }

    /// All blocks, mutable.
    pub fn all_mut(&mut self) -> impl Iterator<Item = (u8, &mut PlacedBlock)> {
        let firsts = self.blocks.iter_mut().map(|(index, placed)| (*index, placed));
        firsts.chain(self.copies.iter_mut().map(|(index, placed)| (*index, placed)))
    }

    /// A copy of a block.
    pub fn find(&self, index: u8, copy: u8) -> Option<&PlacedBlock> {
        self.all().find(|(at, placed)| *at == index && placed.copy == copy).map(|(_, placed)| placed)
    }

    /// A copy of a block, mutable.
    pub fn find_mut(&mut self, index: u8, copy: u8) -> Option<&mut PlacedBlock> {
        self.all_mut().find(|(at, placed)| *at == index && placed.copy == copy).map(|(_, placed)| placed)
    }

    /// Puts the copy of each block with the lowest key in its place in [`blocks`](Self::blocks). Of equal copies the
    /// current one stays.
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

    /// The number of data blocks that are not empty or are stored. The data blocks after them are zeros.
    pub fn dimension(&self) -> usize {
        let data = self.blocks.keys().rfind(|index| u32::from(**index) < self.layout.k);
        data.map_or(0, |last| usize::from(*last) + 1).max(self.layout.data_blocks() as usize)
    }

    /// The corrupt bytes of a partly readable block; empty for a block that is good, or lost as a whole.
    pub fn corrupt_bytes(&self, index: u8) -> &[Span] {
        self.blocks.get(&index).map_or(&[], |placed| self.corrupt_of(index, placed.copy))
    }

    /// The same for any copy.
    pub fn corrupt_of(&self, index: u8, copy: u8) -> &[Span] {
        self.corrupt.get(&(index, copy)).map(Vec::as_slice).unwrap_or_default()
    }

    /// The blocks, by index and copy, that its put left for later and that are still missing.
    pub fn on_their_way(&self) -> Vec<(u8, u8)> {
        let missing = self.all().filter(|(_, block)| self.incomplete && block.state == BlockState::Missing);
        missing.map(|(index, block)| (index, block.copy)).collect()
    }

    /// Whether any copy of a block is missing.
    pub fn lacks_any(&self) -> bool {
        self.all().any(|(_, block)| block.state == BlockState::Missing)
    }

    /// The offset of its data in the object, bytes: all stripes before it are full.
    pub fn object_offset(&self) -> u64 {
        self.number.saturating_mul(self.layout.layout.block_len).saturating_mul(u64::from(self.layout.k))
    }

    /// The current generation of a block's first copy.
    pub fn block_id(&self, index: u8) -> Option<BlockId> {
        let placed = self.blocks.get(&index)?;
        Some(self.id_of(index, placed))
    }

    /// The current generation of a copy.
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

/// Which nodes help in the repair of a node and which get its blocks, if there is a choice, and when each block's turn
/// comes. Stored by its number: new ones come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HelperSelect {
    /// Those that have not helped for the longest time, each with a time of its own (ECPipe, §3.3).
    Lru,
    /// At random.
    Random,
    /// Those with the lowest numbers: ECPipe's baseline.
    Index,
    /// Balanced over all links, and started as links have room.
    Boost,
    /// Only balanced.
    Balance,
    /// At random, but started as links have room.
    Schedule,
    /// Those that have not taken part for the longest time, all nodes of a stripe with the same time: RepairBoost's
    /// second baseline.
    LruStripe,
    /// Balanced, one stripe after another.
    Sequential,
    /// Balanced, and started where links have carried least: RepairBoost's way for unequal links.
    Polling,
}

impl HelperSelect {
    /// All of them, the default first.
    pub const ALL: [Self; 9] = [
        Self::Boost,
        Self::Balance,
        Self::Schedule,
        Self::Polling,
        Self::Sequential,
        Self::Lru,
        Self::LruStripe,
        Self::Random,
        Self::Index,
    ];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Random => "random",
            Self::Index => "index",
            Self::Boost => "boost",
            Self::Balance => "balance",
            Self::Schedule => "schedule",
            Self::LruStripe => "lru-stripe",
            Self::Sequential => "sequential",
            Self::Polling => "polling",
        }
    }
}

/// What a job minimises if it may choose the scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Prefer {
    /// The time of the whole job: the load of the busiest link.
    #[default]
    Whole,
    /// The time of each block.
    Time,
    /// The bytes that are moved.
    Traffic,
}

impl Prefer {
    /// All of them, the default first.
    pub const ALL: [Self; 3] = [Self::Whole, Self::Time, Self::Traffic];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Time => "time",
            Self::Traffic => "traffic",
        }
    }
}

/// A node. All views of it share the names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRecord {
    /// Its number.
    pub id: NodeId,
    /// Its name, chosen by the operator.
    pub name: Arc<str>,
    /// Its rack.
    pub rack: Arc<str>,
    /// Its zone.
    pub zone: String,
    /// Its address for data connections.
    pub data_address: String,
    /// Its address for gRPC calls.
    pub control_address: String,
    /// The last recorded state.
    pub state: NodeState,
    /// Since when, milliseconds since 1970. Of a node that is down: when it was last heard.
    pub since_ms: u64,
    /// Whether it came back after it was lost or away for long, and its blocks have not been checked since.
    pub came_back: bool,
    /// Whether it is being drained: its blocks move to other nodes, and it gets no new ones.
    pub draining: bool,
    /// All disks that it has ever had, by number.
    pub disks: Vec<DiskRecord>,
}

impl NodeRecord {
    /// Whether its blocks must be checked if it comes back now.
    pub fn is_long_away(&self, now_ms: u64) -> bool {
        match self.state {
            NodeState::Up => false,
            NodeState::Down => now_ms.saturating_sub(self.since_ms) >= LONG_AWAY_MS,
            NodeState::Lost => true,
        }
    }
}

/// A disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskRecord {
    /// Its number.
    pub number: DiskNumber,
    /// The id that its agent reports.
    pub id: Arc<str>,
    /// Its directory.
    pub path: Arc<str>,
    /// Its size, in bytes.
    pub total_bytes: u64,
    /// Whether it failed, or its agent no longer has it.
    pub failed: bool,
    /// Whether it is being drained, apart from its node: its blocks move elsewhere, and it gets no new ones.
    pub draining: bool,
    /// Whether a drain of it was ended: none begins without a person.
    pub kept: bool,
    /// Whether it is drained for good: it is forgotten when nothing is left of it and its agent no longer lists it.
    pub retired: bool,
    /// If it was moved to another node: where it is now. What is left here are the blocks that have not followed it. Its id ends with its
    /// number then, because the disk has the id.
    pub moved_to: Option<Home>,
}
