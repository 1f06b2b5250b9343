//! From a file to blocks.

use super::{
    blocks::{NewBlock, lock, sync_dir},
    files::{Files, Named, Target, is_stdin, sha256_of, temporary_beside},
    manifest::{self, FileRecord, Geometry, Manifest, block_name},
    plans::{self, Proved},
};
use serde::Serialize;
use std::{collections::BTreeMap, fs::File, path::Path};
use weft_cli::{files::io_error, interrupt, progress::Progress};
use weft_codes::SharedCode;
use weft_types::{Error, Result};

/// The requested sizes, bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) block: Option<u64>,
    pub(crate) cell: Option<u64>,
}

/// The result of encoding.
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

/// Encodes `file` into `dir`, which must hold no blocks yet.
pub(crate) fn encode(code: &SharedCode, sizes: Sizes, file: &Path, dir: &Path, quiet: bool) -> Result<Encoded> {
    let object = Named::open_or_stdin(file)?;
    let before = object.file.metadata().map_err(|error| io_error(file, "access", &error))?;
    if !before.is_file() {
        return Err(Error::invalid(format!("{} is not a regular file", file.display())));
    }
    let geometry = Geometry::new(code, before.len(), sizes.block, sizes.cell)?;
    let plan = (before.len() > 0).then(|| plans::encode(code, &geometry)).transpose()?;

    let made = MadeDir::make(dir)?;
    let _lock = lock(dir)?;
    refuse_blocks(dir, geometry.stripe.n() as u8)?;
    let stored = (0..geometry.stripe.n()).map(|index| geometry.stripe.block_len(index)).sum();
    let progress = Progress::new("encoding", stored, quiet);
    let sha256 = sha256_of(&object, 0..before.len())?;
    let new = encode_blocks(&geometry, plan.as_ref(), object, dir, &progress)?;
    let units =
        new.iter().map(|(index, block)| block.units(geometry.stripe.block_len((*index).into()))).collect::<Result<_>>()?;
    let after = match is_stdin(file) {
        true => Ok(before.clone()),
        false => std::fs::metadata(file).map_err(|error| io_error(file, "access", &error)),
    }?;
    // Blocks of a file that changed during encoding do not belong together.
    if (after.len(), after.modified().ok()) != (before.len(), before.modified().ok()) {
        return Err(Error::retry(format!(
            "{} changed while it was encoded; nothing was written: run the command again",
            file.display()
        )));
    }
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let record = FileRecord { name, size: before.len(), sha256: sha256.clone() };
    let manifest = Manifest::new(code, &geometry, record, units).to_json()?;
    interrupt::check()?;
    place_all(dir, new, &manifest)?;
    made.keep();
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

/// A directory that is removed again if it did not exist before and is still empty.
struct MadeDir<'a>(Option<&'a Path>);

impl<'a> MadeDir<'a> {
    fn make(dir: &'a Path) -> Result<Self> {
        let is_new = !dir.exists();
        std::fs::create_dir_all(dir).map_err(|error| io_error(dir, "create", &error))?;
        Ok(Self(is_new.then_some(dir)))
    }

    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for MadeDir<'_> {
    fn drop(&mut self) {
        if let Some(dir) = self.0 {
            // Best effort: a directory that is not empty must stay.
            let _ = std::fs::remove_dir(dir);
        }
    }
}

/// Files with the names of blocks or of a manifest belong to an earlier encode.
fn refuse_blocks(dir: &Path, n: u8) -> Result<()> {
    let path = dir.join(manifest::NAME);
    if path.exists() {
        return Err(Error::invalid(format!("{} exists: choose a directory without blocks", path.display())));
    }
    let path = (0..n).map(|index| dir.join(block_name(index))).find(|path| path.symlink_metadata().is_ok());
    path.map_or(Ok(()), |path| {
        Err(Error::invalid(format!(
            "{} exists without a {}: remove it if it is left from a killed encode, or choose another directory",
            path.display(),
            manifest::NAME
        )))
    })
}

/// Gives the blocks their names and writes the manifest, or leaves nothing.
fn place_all(dir: &Path, new: BTreeMap<u8, NewBlock>, manifest: &str) -> Result<()> {
    let mut placed = Vec::new();
    let place = |(index, block): (u8, NewBlock)| {
        block.place()?;
        placed.push(dir.join(block_name(index)));
        Ok(())
    };
    let done = new.into_iter().try_for_each(place);
    let done = done.and_then(|()| write_whole(&dir.join(manifest::NAME), manifest.as_bytes()));
    if done.is_err() {
        for path in placed {
            // Best effort: the earlier error is the one to report.
            let _ = std::fs::remove_file(path);
        }
    }
    done.and_then(|()| sync_dir(dir))
}

fn encode_blocks(
    geometry: &Geometry,
    plan: Option<&Proved>,
    object: Named,
    dir: &Path,
    progress: &Progress,
) -> Result<BTreeMap<u8, NewBlock>> {
    let new = |index: u8| Ok((index, NewBlock::create(dir, index, geometry.stripe.block_len(index.into()), &[])?));
    let new = (0..geometry.stripe.n() as u8).map(new).collect::<Result<_>>()?;
    let (blocks, read) = (BTreeMap::new(), BTreeMap::new());
    let mut files = Files { geometry, object: Some(object), blocks, target: Target::Blocks(new), progress, read };
    if let Some(plan) = plan {
        plan.run(&mut files)?;
    }
    match files.target {
        Target::Blocks(new) => Ok(new),
        Target::Object(_) => Err(Error::fatal("the plan produced no blocks")),
    }
}

/// The plan that would encode a file; None if the file is empty.
pub(crate) fn explain_encode(code: &SharedCode, sizes: Sizes, file: &Path) -> Result<Option<Proved>> {
    if is_stdin(file) {
        return Err(Error::invalid("--explain needs the size of FILE: pass a file, not -"));
    }
    let metadata = std::fs::metadata(file).map_err(|error| io_error(file, "access", &error))?;
    let geometry = Geometry::new(code, metadata.len(), sizes.block, sizes.cell)?;
    (metadata.len() > 0).then(|| plans::encode(code, &geometry)).transpose()
}

/// Writes a small file atomically.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = temporary_beside(path);
    let written = std::fs::write(&temporary, bytes).and_then(|()| File::open(&temporary)?.sync_all());
    written.and_then(|()| std::fs::rename(&temporary, path)).map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        io_error(path, "write", &error)
    })
}
