//! Encoding, repairing and decoding plain files, without a cluster.
//!
//! `DIR/block-000`, `DIR/block-001`, … are the raw bytes of the blocks; `DIR/manifest.json` says what they are. Whatever is read is
//! checked against recorded checksums first, whatever is written is checked before it takes its name.

mod blocks;
mod files;
mod manifest;
mod plans;

pub(crate) use blocks::Health;
use manifest::{FileRecord, Geometry, Manifest};

use crate::progress::Progress;
use blocks::{NewBlock, Scan, positions_of, scan_all, sync_dir};
use files::{Files, Named, Target};
use plans::Spans;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    fs::{File, TryLockError},
    path::Path,
};
use weft_codes::SharedCode;
use weft_types::{Error, Result, Span};

/// Sizes that were asked for, bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) block: Option<u64>,
    pub(crate) cell: Option<u64>,
}

/// What encoding did.
#[derive(Debug, Serialize)]
pub(crate) struct Encoded {
    pub(crate) code: String,
    pub(crate) file_size: u64,
    pub(crate) sha256: String,
    pub(crate) block_size: u64,
    pub(crate) cell_size: u64,
    pub(crate) stripes: u64,
    pub(crate) blocks: usize,
    pub(crate) bytes_stored: u64,
    pub(crate) seconds: f64,
}

/// What repairing did.
#[derive(Debug, Serialize)]
pub(crate) struct Repaired {
    pub(crate) repaired: Vec<RepairedBlock>,
    /// The blocks that were read to rebuild others.
    pub(crate) helpers: Vec<u8>,
    /// What was read of the helpers, after all blocks had been checked.
    pub(crate) bytes_read: u64,
    /// What the helpers handed over: in a cluster, what would have crossed the network.
    pub(crate) bytes_moved: u64,
    /// What was read beforehand, to see which blocks are good.
    pub(crate) bytes_checked: u64,
    pub(crate) seconds: f64,
}

/// A block that was rebuilt.
#[derive(Debug, Serialize)]
pub(crate) struct RepairedBlock {
    pub(crate) index: u8,
    pub(crate) file: String,
    pub(crate) was: Health,
    pub(crate) reason: String,
    pub(crate) size: u64,
    pub(crate) bytes_rebuilt: u64,
}

/// What decoding did.
#[derive(Debug, Serialize)]
pub(crate) struct Decoded {
    pub(crate) file_size: u64,
    pub(crate) sha256: String,
    /// Data blocks of which something was rebuilt on the way.
    pub(crate) rebuilt: Vec<u8>,
    pub(crate) bytes_read: u64,
    pub(crate) seconds: f64,
}

/// What the blocks are found to be.
#[derive(Debug, Serialize)]
pub(crate) struct Verified {
    pub(crate) code: String,
    pub(crate) file_size: u64,
    pub(crate) ok: bool,
    /// Whether everything can be had in spite of what is wrong.
    pub(crate) recoverable: bool,
    pub(crate) blocks: Vec<VerifiedBlock>,
}

/// What a block is found to be.
#[derive(Debug, Serialize)]
pub(crate) struct VerifiedBlock {
    pub(crate) index: u8,
    pub(crate) file: String,
    pub(crate) size: u64,
    pub(crate) health: Health,
    pub(crate) reason: String,
}

/// Encodes `file` into `dir`, which must not hold a manifest yet.
pub(crate) fn encode(code: &SharedCode, sizes: Sizes, file: &Path, dir: &Path, quiet: bool) -> Result<Encoded> {
    let object = Named::open(file)?;
    let before = object.file.metadata().map_err(|error| io_error(file, "look at", &error))?;
    if !before.is_file() {
        return Err(Error::invalid(format!("{} is not a plain file", file.display())));
    }
    let geometry = Geometry::new(code, before.len(), sizes.block, sizes.cell)?;
    let plan = (before.len() > 0).then(|| plans::encode(code, &geometry)).transpose()?;

    std::fs::create_dir_all(dir).map_err(|error| io_error(dir, "create", &error))?;
    let manifest_path = dir.join(manifest::NAME);
    if manifest_path.exists() {
        return Err(Error::invalid(format!("{} exists: choose a directory that holds no blocks yet", manifest_path.display())));
    }
    let stored = (0..geometry.stripe.n()).map(|index| geometry.stripe.block_len(index)).sum();
    let progress = Progress::new("encoding", stored, quiet);
    let sha256 = sha256_of(&object, before.len())?;
    let new = encode_blocks(&geometry, plan.as_ref(), object, dir, &progress)?;
    let after = std::fs::metadata(file).map_err(|error| io_error(file, "look at", &error))?;
    // Blocks of a file that was written to meanwhile would not belong together.
    if (after.len(), after.modified().ok()) != (before.len(), before.modified().ok()) {
        return Err(Error::retry(format!("{} was changed while it was encoded: nothing was kept", file.display())));
    }
    let mut units = Vec::new();
    for (index, block) in new {
        units.push(block.units(geometry.stripe.block_len(index.into()))?);
        block.place()?;
    }
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let record = FileRecord { name, size: before.len(), sha256: sha256.clone() };
    write_whole(&manifest_path, Manifest::new(code, &geometry, record, units).to_json()?.as_bytes())?;
    sync_dir(dir)?;
    Ok(Encoded {
        code: code.spec(),
        file_size: before.len(),
        sha256,
        block_size: geometry.block_size,
        cell_size: geometry.cell_size,
        stripes: geometry.stripes,
        blocks: code.n(),
        bytes_stored: stored,
        seconds: progress.finish(),
    })
}

fn encode_blocks(
    geometry: &Geometry,
    plan: Option<&weft_plan::Plan>,
    object: Named,
    dir: &Path,
    progress: &Progress,
) -> Result<BTreeMap<u8, NewBlock>> {
    let new = |index: u8| Ok((index, NewBlock::create(dir, index, geometry.stripe.block_len(index.into()), &[])?));
    let new = (0..geometry.stripe.n() as u8).map(new).collect::<Result<_>>()?;
    let (blocks, read) = (BTreeMap::new(), BTreeMap::new());
    let mut files = Files { geometry, object: Some(object), blocks, target: Target::Blocks(new), progress, read };
    if let Some(plan) = plan {
        plans::run(plan, &mut files)?;
    }
    match files.target {
        Target::Blocks(new) => Ok(new),
        Target::Object(_) => Err(Error::fatal("no blocks came out")),
    }
}

/// Rebuilds whatever is missing or corrupt in `dir`.
pub(crate) fn repair(dir: &Path, quiet: bool) -> Result<Repaired> {
    let (manifest, code, geometry) = Manifest::read(dir)?;
    let _lock = lock(dir)?;
    let scans = scan_all(dir, &manifest, quiet)?;
    let checked = manifest.blocks.iter().map(|block| block.size).sum();
    let damaged: Vec<u8> = (0..scans.len() as u8).filter(|index| scans[usize::from(*index)].health != Health::Ok).collect();
    let (good, lost) = good_and_lost(&geometry, &scans);
    let plan = if lost.is_empty() {
        None
    } else {
        Some(plans::rebuild(&code, &geometry, &lost, &good).map_err(|error| too_much(error, &manifest, &code, &scans))?)
    };
    let total = lost.values().flatten().map(|span| span.len() * u64::from(geometry.stripe.layout.alpha)).sum();
    let progress = Progress::new("repairing", total, quiet);
    let new = |index: &u8| {
        let record = &manifest.blocks[usize::from(*index)];
        let scan = &scans[usize::from(*index)];
        let keep = if scan.health == Health::Missing { Vec::new() } else { Span::new(0, record.size).subtract(&scan.bad) };
        Ok((*index, NewBlock::create(dir, *index, record.size, &keep)?))
    };
    let new = damaged.iter().map(new).collect::<Result<BTreeMap<_, _>>>()?;
    let mut files = Files {
        geometry: &geometry,
        object: None,
        blocks: open_blocks(dir, &scans)?,
        target: Target::Blocks(new),
        progress: &progress,
        read: BTreeMap::new(),
    };
    if let Some(plan) = &plan {
        plans::run(plan, &mut files)?;
    }
    let Target::Blocks(new) = files.target else { return Err(Error::fatal("no blocks came out")) };
    for (index, block) in &new {
        let record = &manifest.blocks[usize::from(*index)];
        if block.units(record.size)? != record.crc32c {
            let helpers: Vec<_> = files.read.keys().collect();
            return Err(Error::corrupt(format!(
                "{} as rebuilt from blocks {helpers:?} is not what was recorded; it was thrown away",
                record.file
            )));
        }
    }
    let repaired = damaged.iter().map(|index| repaired_block(&manifest, &scans, *index)).collect();
    for block in new.into_values() {
        block.place()?;
    }
    sync_dir(dir)?;
    Ok(Repaired {
        repaired,
        helpers: files.read.keys().copied().collect(),
        bytes_read: files.read.values().sum(),
        bytes_moved: plan.as_ref().map_or(0, plans::bytes_moved),
        bytes_checked: checked,
        seconds: progress.finish(),
    })
}

/// Writes the file that was encoded to `out`, around whatever is missing or corrupt.
pub(crate) fn decode(dir: &Path, out: &Path, quiet: bool) -> Result<Decoded> {
    let (manifest, code, geometry) = Manifest::read(dir)?;
    if out.is_dir() {
        return Err(Error::invalid(format!("{} is a directory: name a file", out.display())));
    }
    let scans = scan_all(dir, &manifest, quiet)?;
    let (good, lost) = good_and_lost(&geometry, &scans);
    let span = geometry.stripe.coded_span();
    let size = manifest.file.size;
    let data = |index: u8| (index, vec![span]);
    let wanted: Spans = (0..code.k() as u8).filter(|index| geometry.stripe.block_len((*index).into()) > 0).map(data).collect();
    let plan = if size == 0 {
        None
    } else {
        Some(plans::rebuild(&code, &geometry, &wanted, &good).map_err(|error| too_much(error, &manifest, &code, &scans))?)
    };
    let progress = Progress::new("decoding", size, quiet);
    let temporary = temporary_beside(out);
    let target = File::options().read(true).write(true).create(true).truncate(true).open(&temporary);
    let file = target.map_err(|error| io_error(&temporary, "create", &error))?;
    let target = Named { file, path: temporary.clone() };
    let blocks = open_blocks(dir, &scans)?;
    let written = write_object(&manifest, &geometry, plan.as_ref(), blocks, target, &progress)
        .and_then(|read| std::fs::rename(&temporary, out).map(|()| read).map_err(|error| io_error(out, "replace", &error)));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    let bytes_read = written?;
    let rebuilt = lost.keys().copied().filter(|index| usize::from(*index) < code.k()).collect();
    let sha256 = manifest.file.sha256;
    Ok(Decoded { file_size: size, sha256, rebuilt, bytes_read, seconds: progress.finish() })
}

/// Compares every block with what was recorded.
pub(crate) fn verify(dir: &Path, quiet: bool) -> Result<Verified> {
    let (manifest, code, geometry) = Manifest::read(dir)?;
    let scans = scan_all(dir, &manifest, quiet)?;
    let (good, lost) = good_and_lost(&geometry, &scans);
    let recoverable = lost.is_empty() || plans::rebuild(&code, &geometry, &lost, &good).is_ok();
    let block = |(record, scan): (&manifest::BlockRecord, &Scan)| VerifiedBlock {
        index: record.index,
        file: record.file.clone(),
        size: record.size,
        health: scan.health,
        reason: scan.reason.clone(),
    };
    Ok(Verified {
        code: manifest.code.clone(),
        file_size: manifest.file.size,
        ok: scans.iter().all(|scan| scan.health == Health::Ok),
        recoverable,
        blocks: manifest.blocks.iter().zip(&scans).map(block).collect(),
    })
}

/// CRC32C.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// What the operating system said, with the path, sorted by what can be done about it.
pub(crate) fn io_error(path: &Path, what: &str, error: &std::io::Error) -> Error {
    use std::io::ErrorKind;
    let path = path.display();
    match error.kind() {
        ErrorKind::NotFound => Error::not_found(format!("cannot {what} {path}: it does not exist")),
        ErrorKind::PermissionDenied | ErrorKind::IsADirectory | ErrorKind::NotADirectory | ErrorKind::InvalidInput => {
            Error::invalid(format!("cannot {what} {path}: {error}"))
        }
        _ => Error::fatal(format!("cannot {what} {path}: {error}")),
    }
}

fn write_object(
    manifest: &Manifest,
    geometry: &Geometry,
    plan: Option<&weft_plan::Plan>,
    blocks: BTreeMap<u8, Named>,
    target: Named,
    progress: &Progress,
) -> Result<u64> {
    let read = BTreeMap::new();
    let mut files = Files { geometry, object: None, blocks, target: Target::Object(target), progress, read };
    if let Some(plan) = plan {
        plans::run(plan, &mut files)?;
    }
    let Target::Object(target) = files.target else { return Err(Error::fatal("no file came out")) };
    if sha256_of(&target, manifest.file.size)? != manifest.file.sha256 {
        return Err(Error::corrupt("the decoded file's SHA-256 is not what was recorded; it was thrown away"));
    }
    target.file.sync_all().map_err(|error| io_error(&target.path, "flush", &error))?;
    Ok(files.read.values().sum())
}

/// Positions that can be read and positions that cannot, by block. Beyond its end a block is known to be zero.
fn good_and_lost(geometry: &Geometry, scans: &[Scan]) -> (Spans, Spans) {
    let span = geometry.stripe.coded_span();
    let (mut good, mut lost) = (Spans::new(), Spans::new());
    for (index, scan) in scans.iter().enumerate() {
        let bad = positions_of(geometry, &scan.bad);
        let rest = span.subtract(&bad);
        if !rest.is_empty() {
            good.insert(index as u8, rest);
        }
        if !bad.is_empty() {
            lost.insert(index as u8, bad);
        }
    }
    (good, lost)
}

fn too_much(error: Error, manifest: &Manifest, code: &SharedCode, scans: &[Scan]) -> Error {
    if error.reaction != weft_types::Reaction::Unavailable {
        return error;
    }
    let of = |health: Health| {
        let blocks = manifest.blocks.iter().zip(scans).filter(|(_, scan)| scan.health == health);
        blocks.map(|(block, _)| block.file.as_str()).collect::<Vec<_>>().join(", ")
    };
    let (missing, corrupt) = (of(Health::Missing), of(Health::Corrupt));
    let says = [("missing", missing), ("corrupt", corrupt)];
    let says: Vec<String> =
        says.into_iter().filter(|(_, blocks)| !blocks.is_empty()).map(|(what, blocks)| format!("{what}: {blocks}")).collect();
    let (spec, tolerance) = (code.spec(), code.tolerance());
    Error::unavailable(format!(
        "too much is lost ({}): {spec} recovers any {tolerance} blocks; bring back more of them ({})",
        says.join("; "),
        error.message
    ))
}

fn repaired_block(manifest: &Manifest, scans: &[Scan], index: u8) -> RepairedBlock {
    let (record, scan) = (&manifest.blocks[usize::from(index)], &scans[usize::from(index)]);
    RepairedBlock {
        index,
        file: record.file.clone(),
        was: scan.health,
        reason: scan.reason.clone(),
        size: record.size,
        bytes_rebuilt: scan.bad.iter().map(|span| span.len()).sum(),
    }
}

fn open_blocks(dir: &Path, scans: &[Scan]) -> Result<BTreeMap<u8, Named>> {
    let there = (0..scans.len()).filter(|index| scans[*index].health != Health::Missing).map(|index| index as u8);
    there.map(|index| Ok((index, Named::open(&dir.join(manifest::block_name(index)))?))).collect()
}

fn sha256_of(named: &Named, size: u64) -> Result<String> {
    use std::os::unix::fs::FileExt as _;
    let (mut hash, mut buffer, mut at) = (Sha256::new(), vec![0; 1 << 20], 0);
    while at < size {
        let piece = &mut buffer[..(size - at).min(1 << 20) as usize];
        named.file.read_exact_at(piece, at).map_err(|error| io_error(&named.path, "read", &error))?;
        hash.update(&*piece);
        at += piece.len() as u64;
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Nobody else may repair the same directory at the same time.
fn lock(dir: &Path) -> Result<File> {
    let path = dir.join(manifest::NAME);
    let file = File::open(&path).map_err(|error| io_error(&path, "open", &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(Error::retry(format!("another weft is at work in {}: wait for it to end", dir.display())))
        }
        Err(TryLockError::Error(error)) => Err(io_error(&path, "lock", &error)),
    }
}

fn temporary_beside(path: &Path) -> std::path::PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(format!(".{name}.weft-{}.tmp", std::process::id()))
}

/// Writes a small file so that it is there whole or not at all.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = temporary_beside(path);
    let written = std::fs::write(&temporary, bytes).and_then(|()| File::open(&temporary)?.sync_all());
    written.and_then(|()| std::fs::rename(&temporary, path)).map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        io_error(path, "write", &error)
    })
}
