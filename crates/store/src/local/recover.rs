//! Puts a disk in order when it is opened, and lists what is on it.

use super::disk::{Disk, SIDECAR_SUFFIX, cannot_open, remove_if_there, shard_name};
use super::reader::read_sidecar;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use weft_types::{BlockId, Error, Reaction, Result};

/// What was found when a disk was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Blocks that are whole, as far as their sidecars say.
    pub blocks: u64,
    /// Files of blocks that were being written when the process ended, removed.
    pub temporaries_removed: u64,
    /// Sidecars of blocks that had not been committed or had been removed, removed.
    pub sidecars_removed: u64,
    /// Blocks with no sidecar or a broken one, and why.
    pub quarantined: Vec<(BlockId, String)>,
}

pub(super) fn recover(disk: &Disk) -> Result<Recovered> {
    let mut found = Recovered::default();
    let temporary_dir = disk.temporary_dir();
    for name in names(&temporary_dir)? {
        remove(&temporary_dir.join(name))?;
        found.temporaries_removed += 1;
    }
    for shard in shards(disk)? {
        let blocks = shard_blocks(disk, shard)?;
        for id in blocks.payloads.iter().copied() {
            match check_sidecar(disk, id)? {
                None => found.blocks += 1,
                Some(reason) => {
                    disk.quarantine_claimed(id, &reason, None).map_err(|error| error.block(id))?;
                    found.quarantined.push((id, reason));
                }
            }
        }
        // The payload's name is what makes a block exist.
        for id in blocks.sidecars.difference(&blocks.payloads) {
            remove(&disk.sidecar_path(*id))?;
            found.sidecars_removed += 1;
        }
    }
    tracing::info!(disk = %disk.dir.display(), ?found, "disk opened");
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

/// Why the block's sidecar is no good; an error where that cannot be said of the sidecar.
fn check_sidecar(disk: &Disk, id: BlockId) -> Result<Option<String>> {
    match read_sidecar(&disk.sidecar_path(id), id, disk.label.cluster) {
        Ok(Some(_)) => Ok(None),
        Ok(None) => Ok(Some("it has no sidecar".to_owned())),
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
    for name in names(&dir)? {
        let (stem, set) = match name.strip_suffix(SIDECAR_SUFFIX) {
            Some(stem) => (stem, &mut found.sidecars),
            None => (name.as_str(), &mut found.payloads),
        };
        match stem.parse::<BlockId>() {
            Ok(id) if disk.shard(id) == number => _ = set.insert(id),
            _ => tracing::warn!(file = %dir.join(&name).display(), "a file that is none of ours is left alone"),
        }
    }
    Ok(found)
}

/// The shards that there are, ascending.
fn shards(disk: &Disk) -> Result<BTreeSet<u64>> {
    let number = |name: &String| u64::from_str_radix(name, 16).ok().filter(|number| shard_name(*number) == *name);
    Ok(names(&disk.blocks_dir())?.iter().filter_map(number).collect())
}

/// Names in a directory; those that are not text are none of ours.
fn names(dir: &Path) -> Result<Vec<String>> {
    let failed = |error| cannot_open(dir, "it cannot be listed", &error);
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

fn remove(path: &Path) -> Result<(), Error> {
    remove_if_there(path).map_err(|error| cannot_open(path, "it cannot be removed", &error))
}
