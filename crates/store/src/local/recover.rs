//! Recovers a disk when it is opened, and lists its blocks.

use super::device::cannot_open;
use super::disk::{Disk, SIDECAR_SUFFIX, remove_if_there, shard_name};
use super::reader::read_sidecar;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_types::{BlockId, Error, Reaction, Result};

/// What recovery found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Blocks whose sidecars are valid.
    pub blocks: u64,
    /// Removed files of blocks that were being written when the process ended.
    pub temporaries_removed: u64,
    /// Removed sidecars of blocks that were never committed or had been removed.
    pub sidecars_removed: u64,
    /// Blocks without a valid sidecar, and why.
    pub quarantined: Vec<(BlockId, String)>,
}

pub(super) fn recover(disk: &Disk, checked: &AtomicU64) -> Result<Recovered> {
    let mut found = Recovered::default();
    let temporary_dir = disk.temporary_dir();
    for name in names(disk, &temporary_dir)? {
        remove(disk, &temporary_dir.join(name))?;
        found.temporaries_removed += 1;
    }
    for shard in shards(disk)? {
        let blocks = shard_blocks(disk, shard)?;
        for id in blocks.payloads.iter().copied() {
            checked.fetch_add(1, Ordering::Relaxed);
            match check_sidecar(disk, id)? {
                None => found.blocks += 1,
                Some(reason) => {
                    disk.quarantine_claimed(id, &reason, None).map_err(|error| error.block(id))?;
                    found.quarantined.push((id, reason));
                }
            }
        }
        // A block exists only if its payload has its name.
        for id in blocks.sidecars.difference(&blocks.payloads) {
            remove(disk, &disk.sidecar_path(*id))?;
            found.sidecars_removed += 1;
        }
    }
    tracing::info!(disk = %disk.dir.display(), ?found, "opened a disk");
    Ok(found)
}

pub(super) fn list_after(disk: &Disk, after: Option<BlockId>, blocks_max: usize) -> Result<Vec<BlockId>> {
    let mut list = Vec::new();
    for number in shards(disk)? {
        if after.is_some_and(|after| number < disk.shard(after)) {
            continue;
        }
        let ids = shard_blocks(disk, number)?.payloads.into_iter();
        // The order is that of (shard, block).
        let ids = ids.filter(|id| after.is_none_or(|after| (disk.shard(after), after) < (number, *id)));
        list.extend(ids.take(blocks_max - list.len()));
        if list.len() == blocks_max {
            break;
        }
    }
    Ok(list)
}

/// Why the block's sidecar is invalid, if it is; an error if the sidecar cannot be judged.
fn check_sidecar(disk: &Disk, id: BlockId) -> Result<Option<String>> {
    match read_sidecar(disk, id) {
        Ok(Some(_)) => Ok(None),
        Ok(None) => Ok(Some("the block has no sidecar".to_owned())),
        Err(error) if error.reaction == Reaction::Corrupt => Ok(Some(error.message)),
        Err(error) => Err(error.block(id)),
    }
}

struct ShardBlocks {
    payloads: BTreeSet<BlockId>,
    sidecars: BTreeSet<BlockId>,
}

fn shard_blocks(disk: &Disk, number: u64) -> Result<ShardBlocks> {
    let dir = disk.blocks_dir().join(shard_name(number));
    let mut found = ShardBlocks { payloads: BTreeSet::new(), sidecars: BTreeSet::new() };
    for name in names(disk, &dir)? {
        let (stem, set) = match name.strip_suffix(SIDECAR_SUFFIX) {
            Some(stem) => (stem, &mut found.sidecars),
            None => (name.as_str(), &mut found.payloads),
        };
        match stem.parse::<BlockId>() {
            Ok(id) if disk.shard(id) == number => _ = set.insert(id),
            _ => tracing::warn!(file = %dir.join(&name).display(), "ignored a file that does not belong to weft"),
        }
    }
    Ok(found)
}

/// The existing shards, ascending.
fn shards(disk: &Disk) -> Result<BTreeSet<u64>> {
    let number = |name: &String| u64::from_str_radix(name, 16).ok().filter(|number| shard_name(*number) == *name);
    Ok(names(disk, &disk.blocks_dir())?.iter().filter_map(number).collect())
}

/// The names in a directory; names that are not UTF-8 do not belong to weft.
fn names(disk: &Disk, dir: &Path) -> Result<Vec<String>> {
    let names = disk.device.files.names(dir).map_err(|error| cannot_open(dir, "cannot list it", &error))?;
    Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
}

fn remove(disk: &Disk, path: &Path) -> Result<(), Error> {
    remove_if_there(&*disk.device.files, path).map_err(|error| cannot_open(path, "cannot remove it", &error))
}
