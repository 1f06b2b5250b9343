//! From a file to blocks.

use super::{
    blocks::{NewBlock, sync_dir},
    files::{Files, Named, Target},
    io_error,
    manifest::{self, FileRecord, Geometry, Manifest},
    plans::{self, Proved},
    sha256_of, temporary_beside,
};
use crate::progress::Progress;
use serde::Serialize;
use std::{collections::BTreeMap, fs::File, path::Path};
use weft_codes::SharedCode;
use weft_types::{Error, Result};

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
    let sha256 = sha256_of(&object, 0..before.len())?;
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
        Target::Object(_) => Err(Error::fatal("no blocks came out")),
    }
}

/// The plan by which a file would be encoded; none, if it is empty.
pub(crate) fn explain_encode(code: &SharedCode, sizes: Sizes, file: &Path) -> Result<Option<Proved>> {
    let metadata = std::fs::metadata(file).map_err(|error| io_error(file, "look at", &error))?;
    let geometry = Geometry::new(code, metadata.len(), sizes.block, sizes.cell)?;
    (metadata.len() > 0).then(|| plans::encode(code, &geometry)).transpose()
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
