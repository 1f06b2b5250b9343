//! Reads a directory of blocks, rebuilds what is lost, and decodes the file.

use super::{
    blocks::{Health, NewBlock, Scan, lock, positions_of, scan_all, sync_dir},
    files::{Files, Named, Target, sha256_of, temporary_beside},
    manifest::{BlockRecord, FileRecord, Geometry, Manifest},
    plans::{self, Proved, Spans},
};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
};
use weft_cli::{files::io_error, progress::Progress};
use weft_client::Destination;
use weft_codes::SharedCode;
use weft_types::{Error, Reaction, Result, Span};

/// A directory of blocks, all of them checked.
#[derive(Debug)]
pub(crate) struct Stored {
    dir: PathBuf,
    manifest: Manifest,
    code: SharedCode,
    geometry: Geometry,
    scans: Vec<Scan>,
    /// Readable positions, by block. Bytes beyond the end of a block are known to be zero, even if the block is lost.
    good: Spans,
    /// Positions that cannot be read.
    lost: Spans,
    quiet: bool,
}

/// The result of a repair.
#[derive(Debug, Serialize)]
pub(crate) struct Repaired {
    pub(crate) repaired: Vec<RepairedBlock>,
    /// The blocks that were read to rebuild others.
    pub(crate) helpers: Vec<u8>,
    /// Bytes read from the helpers, after all blocks had been checked.
    pub(crate) bytes_read: u64,
    /// Bytes that the helpers sent: in a cluster, the network traffic.
    pub(crate) bytes_moved: u64,
    /// Bytes read before the repair, to check all blocks.
    pub(crate) bytes_checked: u64,
    pub(crate) seconds: f64,
}

/// A rebuilt block.
#[derive(Debug, Serialize)]
pub(crate) struct RepairedBlock {
    pub(crate) index: u8,
    pub(crate) file: String,
    pub(crate) was: Health,
    pub(crate) reason: String,
    pub(crate) size: u64,
    pub(crate) bytes_rebuilt: u64,
}

/// The result of decoding.
#[derive(Debug, Serialize)]
pub(crate) struct Decoded {
    pub(crate) file_size: u64,
    pub(crate) sha256: String,
    /// Data blocks that were rebuilt, completely or in part.
    pub(crate) rebuilt: Vec<u8>,
    pub(crate) bytes_read: u64,
    pub(crate) seconds: f64,
}

/// The result of a check.
#[derive(Debug, Serialize)]
pub(crate) struct Verified {
    pub(crate) code: String,
    pub(crate) file_size: u64,
    pub(crate) ok: bool,
    /// Whether all data can be recovered.
    pub(crate) recoverable: bool,
    pub(crate) blocks: Vec<VerifiedBlock>,
}

/// The state of a block.
#[derive(Debug, Serialize)]
pub(crate) struct VerifiedBlock {
    pub(crate) index: u8,
    pub(crate) file: String,
    pub(crate) size: u64,
    pub(crate) health: Health,
    pub(crate) reason: String,
}

impl Stored {
    /// Reads the manifest and every block.
    pub(crate) fn open(dir: &Path, quiet: bool) -> Result<Self> {
        let (manifest, code, geometry) = Manifest::read(dir)?;
        let scans = scan_all(dir, &manifest, quiet)?;
        let span = geometry.stripe.coded_span();
        let (mut good, mut lost) = (Spans::new(), Spans::new());
        for (index, scan) in scans.iter().enumerate() {
            let bad = positions_of(&geometry, &scan.bad);
            good.insert(index as u8, span.subtract(&bad));
            lost.insert(index as u8, bad);
        }
        good.retain(|_, spans| !spans.is_empty());
        lost.retain(|_, spans| !spans.is_empty());
        Ok(Self { dir: dir.to_owned(), manifest, code, geometry, scans, good, lost, quiet })
    }

    /// Rebuilds missing and corrupt blocks.
    pub(crate) fn repair(&self) -> Result<Repaired> {
        let _lock = lock(&self.dir)?;
        let plan = self.plan_repair()?;
        let total = self.lost.values().flatten().map(|span| span.len() * u64::from(self.geometry.stripe.layout.alpha)).sum();
        let progress = Progress::new("repairing", total, self.quiet);
        let new = self.damaged().map(|(record, scan)| Ok((record.index, self.new_block(record, scan)?)));
        let new = new.collect::<Result<BTreeMap<_, _>>>()?;
        let (new, read) = match self.run(plan.as_ref(), Target::Blocks(new), &progress)? {
            (Target::Blocks(new), read) => (new, read),
            (Target::Object(_), _) => return Err(Error::fatal("the plan produced no blocks")),
        };
        for (record, _) in self.damaged() {
            let units = new.get(&record.index).map(|block| block.units(record.size)).transpose()?;
            if units.as_ref() != Some(&record.crc32c) {
                let (file, helpers) = (&record.file, read.keys().collect::<Vec<_>>());
                let message = format!(
                    "{file}, rebuilt from blocks {helpers:?}, does not match its checksums; the rebuilt block was discarded"
                );
                return Err(Error::corrupt(message));
            }
        }
        new.into_values().try_for_each(NewBlock::place)?;
        sync_dir(&self.dir)?;
        Ok(Repaired {
            repaired: self.damaged().map(|(record, scan)| RepairedBlock::new(record, scan)).collect(),
            helpers: read.keys().copied().collect(),
            bytes_read: read.values().sum(),
            bytes_moved: plan.as_ref().map_or(Ok(0), Proved::bytes_moved)?,
            bytes_checked: self.manifest.blocks.iter().map(|block| block.size).sum(),
            seconds: progress.finish(),
        })
    }

    /// Writes the encoded file to `out`, and rebuilds missing and corrupt parts.
    pub(crate) fn decode(&self, out: &Path) -> Result<Decoded> {
        let Destination::File(out) = &Destination::of(out)? else {
            return Err(Error::invalid(format!("{} is not a regular file: pass a regular file as OUT", out.display())));
        };
        let plan = self.plan_decode()?;
        let FileRecord { size, sha256, .. } = self.manifest.file.clone();
        let progress = Progress::new("decoding", size, self.quiet);
        let temporary = temporary_beside(out);
        let written = self.write_object(plan.as_ref(), &temporary, &progress).and_then(|read| {
            std::fs::rename(&temporary, out).map_err(|error| io_error(out, "replace", &error))?;
            Ok(read)
        });
        if written.is_err() {
            // Best effort: the earlier error is the one to report.
            let _ = std::fs::remove_file(&temporary);
        }
        let is_data = |index: &u8| usize::from(*index) < self.code.k();
        let rebuilt = self.lost.keys().copied().filter(is_data).collect();
        Ok(Decoded { file_size: size, sha256, rebuilt, bytes_read: written?.values().sum(), seconds: progress.finish() })
    }

    /// The state of every block.
    pub(crate) fn verify(&self) -> Verified {
        let block = |(record, scan): (&BlockRecord, &Scan)| VerifiedBlock {
            index: record.index,
            file: record.file.clone(),
            size: record.size,
            health: scan.health,
            reason: scan.reason.clone(),
        };
        Verified {
            code: self.manifest.code.clone(),
            file_size: self.manifest.file.size,
            ok: self.damaged().next().is_none(),
            recoverable: self.plan_repair().is_ok(),
            blocks: self.manifest.blocks.iter().zip(&self.scans).map(block).collect(),
        }
    }

    /// The plan that rebuilds missing and corrupt bytes; None if there are none.
    pub(crate) fn plan_repair(&self) -> Result<Option<Proved>> {
        (!self.lost.is_empty()).then(|| self.plan(&self.lost)).transpose()
    }

    /// The plan that decodes the file; None if the file is empty.
    pub(crate) fn plan_decode(&self) -> Result<Option<Proved>> {
        let stripe = self.geometry.stripe;
        let has_bytes = |index: &u8| stripe.block_len(u32::from(*index)) > 0;
        let data = (0..self.code.k() as u8).filter(has_bytes);
        let wanted: Spans = data.map(|index| (index, vec![stripe.coded_span()])).collect();
        (!wanted.is_empty()).then(|| self.plan(&wanted)).transpose()
    }

    fn plan(&self, wanted: &Spans) -> Result<Proved> {
        plans::rebuild(&self.code, &self.geometry, wanted, &self.good).map_err(|error| match error.reaction {
            Reaction::Unavailable => self.too_much(&error),
            _ => error,
        })
    }

    fn too_much(&self, error: &Error) -> Error {
        let of = |health: Health, what: &str| {
            let blocks = self.damaged().filter(|(_, scan)| scan.health == health);
            let blocks: Vec<&str> = blocks.map(|(record, _)| record.file.as_str()).collect();
            (!blocks.is_empty()).then(|| format!("{what}: {}", blocks.join(", ")))
        };
        let says: Vec<String> = [of(Health::Missing, "missing"), of(Health::Corrupt, "corrupt")].into_iter().flatten().collect();
        let (says, spec, tolerance, why) = (says.join("; "), self.code.spec(), self.code.tolerance(), &error.message);
        Error::unavailable(format!(
            "too many blocks are lost ({says}): {spec} recovers any {tolerance} lost blocks; restore some of the block files ({why})"
        ))
    }

    /// Missing and corrupt blocks.
    fn damaged(&self) -> impl Iterator<Item = (&BlockRecord, &Scan)> {
        self.manifest.blocks.iter().zip(&self.scans).filter(|(_, scan)| scan.health != Health::Ok)
    }

    fn new_block(&self, record: &BlockRecord, scan: &Scan) -> Result<NewBlock> {
        let keep = if scan.health == Health::Missing { Vec::new() } else { Span::new(0, record.size).subtract(&scan.bad) };
        NewBlock::create(&self.dir, record.index, record.size, &keep)
    }

    fn write_object(&self, plan: Option<&Proved>, path: &Path, progress: &Progress) -> Result<BTreeMap<u8, u64>> {
        let target = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let file = target.map_err(|error| io_error(path, "create", &error))?;
        file.set_len(self.manifest.file.size).map_err(|error| io_error(path, "write", &error))?;
        let target = Target::Object(Named { file, path: path.to_owned() });
        let (Target::Object(target), read) = self.run(plan, target, progress)? else {
            return Err(Error::fatal("the plan produced no file"));
        };
        let FileRecord { size, sha256, .. } = &self.manifest.file;
        if sha256_of(&target, 0..*size)? != *sha256 {
            return Err(Error::corrupt(
                "the SHA-256 of the decoded file does not match the recorded one; the output was discarded",
            ));
        }
        target.file.sync_all().map_err(|error| io_error(path, "flush", &error))?;
        Ok(read)
    }

    /// Runs a plan over the block files; returns the bytes read from each block.
    fn run(&self, plan: Option<&Proved>, target: Target, progress: &Progress) -> Result<(Target, BTreeMap<u8, u64>)> {
        let there = self.manifest.blocks.iter().zip(&self.scans).filter(|(_, scan)| scan.health != Health::Missing);
        let blocks = there.map(|(record, _)| Ok((record.index, Named::open(&self.dir.join(&record.file))?)));
        let blocks = blocks.collect::<Result<_>>()?;
        let (geometry, read) = (&self.geometry, BTreeMap::new());
        let mut files = Files { geometry, object: None, blocks, target, progress, read };
        if let Some(plan) = plan {
            plan.run(&mut files)?;
        }
        Ok((files.target, files.read))
    }
}

impl RepairedBlock {
    fn new(record: &BlockRecord, scan: &Scan) -> Self {
        Self {
            index: record.index,
            file: record.file.clone(),
            was: scan.health,
            reason: scan.reason.clone(),
            size: record.size,
            bytes_rebuilt: scan.bad.iter().map(|span| span.len()).sum(),
        }
    }
}
