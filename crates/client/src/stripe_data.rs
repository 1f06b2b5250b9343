//! The data of a stripe of a put: in memory, in the file that is stored, or in a file to which a pipe was spooled.

use crate::{calls::Random, client::Shared};
use bytes::{Bytes, BytesMut};
use rustix::{
    fs::{Mode, OFlags},
    io::{Errno, ReadWriteFlags},
};
use std::{
    fs::File,
    io::{self, IoSliceMut},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::Arc,
};
use tokio::io::{AsyncRead, AsyncReadExt};
use weft_engine::Buffers;
use weft_proto::DiskMode;
use weft_types::{Error, Result, Span, StripeLayout};

/// The data of one stripe.
#[derive(Clone)]
pub(crate) struct StripeData {
    pub(crate) len: u64,
    bytes: Origin,
}

#[derive(Clone)]
enum Origin {
    Memory(Bytes),
    File { file: Arc<File>, start: u64, mode: DiskMode },
}

/// Bytes of a pipe that are read and spooled at once.
const SPOOL_BYTES: usize = 1 << 20;
/// The most bytes that are read on a thread that must not block. They must be in the page cache.
const CACHED_BYTES_MAX: usize = 1 << 20;

impl StripeData {
    /// `len` bytes of a file.
    pub(crate) fn in_file(file: Arc<File>, start: u64, len: u64, mode: DiskMode) -> Self {
        Self { len, bytes: Origin::File { file, start, mode } }
    }

    /// Reads up to `len_max` bytes from a pipe; bytes beyond `memory_bytes_max` go to a file. Empty: the pipe has ended.
    pub(crate) async fn read(
        reader: &mut (impl AsyncRead + Unpin),
        len_max: u64,
        memory_bytes_max: usize,
        spool: &Spool,
    ) -> Result<Self> {
        let mut memory = BytesMut::new();
        while (memory.len() as u64) < len_max.min(memory_bytes_max as u64) {
            let room = (len_max.min(memory_bytes_max as u64) as usize - memory.len()).min(SPOOL_BYTES);
            if read_some(reader, &mut memory, room).await? == 0 {
                return Ok(Self { len: memory.len() as u64, bytes: Origin::Memory(memory.freeze()) });
            }
        }
        if memory.len() as u64 == len_max {
            return Ok(Self { len: len_max, bytes: Origin::Memory(memory.freeze()) });
        }
        let mut file = spool.create().await?;
        let mut len = 0;
        loop {
            let chunk = memory.split().freeze();
            let offset = len;
            len += chunk.len() as u64;
            file = spool.write(file, offset, chunk).await?;
            let room = (len_max - len).min(SPOOL_BYTES as u64) as usize;
            if room == 0 || read_some(reader, &mut memory, room).await? == 0 {
                return Ok(Self { len, bytes: Origin::File { file: Arc::new(file), start: 0, mode: spool.mode } });
            }
        }
    }

    /// A range of the data.
    pub(crate) async fn bytes(&self, range: Span) -> Result<Bytes> {
        match &self.bytes {
            Origin::Memory(bytes) => Ok(bytes.slice(range.start as usize..range.end as usize)),
            Origin::File { file, start, mode } => {
                let (file, start) = (file.clone(), *start + range.start);
                let read = move || {
                    let mut bytes = vec![0; range.len() as usize];
                    file.read_exact_at(&mut bytes, start).map_err(cannot_read)?;
                    Ok(bytes.into())
                };
                mode.run(read).await
            }
        }
    }

    /// The sub-blocks of data block `index` at the positions of `slice`, one after another; zeros beyond the block's end. Bytes that are
    /// not contiguous in memory are assembled in one of `buffers`.
    pub(crate) async fn rows(
        &self,
        layout: StripeLayout,
        index: u32,
        sub_blocks: &[u16],
        slice: Span,
        buffers: &Arc<Buffers>,
    ) -> Result<Bytes> {
        let rows_len = sub_blocks.len() * slice.len() as usize;
        let mut pieces = Vec::new();
        let mut at = 0;
        for sub_block in sub_blocks {
            for extent in layout.layout.extents(u32::from(*sub_block), slice) {
                pieces_of(&layout, index, extent.offset, extent.len, at, &mut pieces);
                at += extent.len as usize;
            }
        }
        match &self.bytes {
            Origin::Memory(bytes) => match pieces.as_slice() {
                // The usual case needs no copy.
                [piece] if piece.len == rows_len => {
                    Ok(bytes.slice(piece.data_offset as usize..piece.data_offset as usize + rows_len))
                }
                _ => put_together(buffers, rows_len, &pieces, |data_offset, into| {
                    let from = data_offset as usize;
                    into.copy_from_slice(&bytes[from..from + into.len()]);
                    Ok(())
                }),
            },
            Origin::File { file, start, mode } => {
                // A call on a blocking thread costs more than copying a slice from the page cache.
                if *mode == DiskMode::Pool && rows_len <= CACHED_BYTES_MAX {
                    let cached = |data_offset, into: &mut [u8]| read_cached(file, start + data_offset, into);
                    if let Ok(rows) = put_together(buffers, rows_len, &pieces, cached) {
                        return Ok(rows);
                    }
                }
                let (file, start, buffers) = (file.clone(), *start, Arc::clone(buffers));
                let read = move || {
                    put_together(&buffers, rows_len, &pieces, |data_offset, into| {
                        file.read_exact_at(into, start + data_offset).map_err(cannot_read)
                    })
                };
                mode.run(read).await
            }
        }
    }
}

/// Builds rows from pieces; `read` writes each piece from its offset in the stripe's data. The buffer is reused, so places without a
/// piece are zeroed.
fn put_together<E>(
    buffers: &Arc<Buffers>,
    rows_len: usize,
    pieces: &[Piece],
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<Bytes, E> {
    let mut buffer = buffers.take(rows_len);
    let rows = buffer.bytes_mut();
    let mut written = 0;
    for piece in pieces {
        // Pieces come in the order of the rows.
        rows[written..piece.at].fill(0);
        written = piece.at + piece.len;
        read(piece.data_offset, &mut rows[piece.at..written])?;
    }
    rows[written..].fill(0);
    Ok(buffer.freeze())
}

/// Reads from the page cache only, or fails.
fn read_cached(file: &File, offset: u64, into: &mut [u8]) -> io::Result<()> {
    let read = rustix::io::preadv2(file, &mut [IoSliceMut::new(into)], offset, ReadWriteFlags::NOWAIT)?;
    if read == into.len() { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
}

/// A run of a stripe's data, and its place in a row.
pub(crate) struct Piece {
    pub(crate) data_offset: u64,
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// The runs of the stripe's data that form `len` bytes of a block, cell by cell, up to the block's end.
pub(crate) fn pieces_of(layout: &StripeLayout, index: u32, offset: u64, len: u64, at: usize, pieces: &mut Vec<Piece>) {
    let end = (offset + len).min(layout.block_len(index));
    let mut from = offset;
    while from < end {
        let cell_end = (from / layout.layout.cell_len + 1) * layout.layout.cell_len;
        let to = cell_end.min(end);
        let data_offset = layout.offset_of(index, from);
        let (at, len) = (at + (from - offset) as usize, (to - from) as usize);
        match pieces.last_mut() {
            Some(last) if last.data_offset + last.len as u64 == data_offset && last.at + last.len == at => last.len += len,
            _ => pieces.push(Piece { data_offset, at, len }),
        }
        from = to;
    }
}

async fn read_some(reader: &mut (impl AsyncRead + Unpin), into: &mut BytesMut, room: usize) -> Result<usize> {
    let before = into.len();
    into.resize(before + room, 0);
    let read = reader.read(&mut into[before..]).await.map_err(cannot_read)?;
    into.truncate(before + read);
    Ok(read)
}

fn cannot_read(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::invalid("the file was truncated while it was read"),
        _ => Error::fatal(format!("cannot read the data: {error}")),
    }
}

/// Files for data of a pipe that does not fit into memory: files without a name, which disappear with the process.
pub(crate) struct Spool {
    pub(crate) dir: std::path::PathBuf,
    pub(crate) mode: DiskMode,
    pub(crate) random: Random,
}

impl Spool {
    pub(crate) fn of(shared: &Shared) -> Self {
        let config = &shared.config;
        Self { dir: config.spool_dir.clone(), mode: config.disk_mode, random: shared.random.clone() }
    }

    async fn create(&self) -> Result<File> {
        let (dir, number) = (self.dir.clone(), self.random.number());
        let create = move || match without_name(&dir) {
            // The file system does not support unnamed files.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let path = dir.join(format!(".weft-spool-{number:016x}"));
                named_and_removed(&path).map_err(|error| cannot_spool(&path, error))
            }
            opened => opened.map_err(|error| cannot_spool(&dir, error.into())),
        };
        self.mode.run(create).await
    }

    async fn write(&self, file: File, offset: u64, bytes: Bytes) -> Result<File> {
        let dir = self.dir.clone();
        let write = move || {
            file.write_all_at(&bytes, offset).map_err(|error| cannot_spool(&dir, error))?;
            Ok(file)
        };
        self.mode.run(write).await
    }
}

/// A file without a name: no other process can ever open it.
fn without_name(dir: &Path) -> Result<File, Errno> {
    let flags = OFlags::TMPFILE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

fn named_and_removed(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

fn cannot_spool(path: &Path, error: io::Error) -> Error {
    Error::fatal(format!("cannot spool to {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use weft_types::Layout;

    fn spool(dir: &Path) -> Spool {
        Spool { dir: dir.to_path_buf(), mode: DiskMode::Inline, random: Random::seeded(1) }
    }

    #[tokio::test]
    async fn a_spool_never_has_a_name_and_only_its_owner_can_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let changed = || std::fs::metadata(dir.path()).unwrap().modified().unwrap();
        let before = changed();
        let spool = spool(dir.path());
        let file = spool.create().await.unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        if without_name(dir.path()).is_ok() {
            assert_eq!(changed(), before, "it had a name for a moment");
        }
        let named = named_and_removed(&dir.path().join("named")).unwrap();
        assert_eq!((named.metadata().unwrap().mode() & 0o777, std::fs::read_dir(dir.path()).unwrap().count()), (0o600, 0));
        let file = spool.write(file, 0, Bytes::from("weft")).await.unwrap();
        let mut read = [0; 4];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"weft");
        let error = self::spool(Path::new("/no/such/dir")).create().await.unwrap_err();
        assert!(error.message.contains("/no/such/dir"), "{error}");
    }

    #[tokio::test]
    async fn rows_are_the_same_from_memory_and_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let data: Vec<u8> = (0..90u8).collect();
        // The buffer's old content must not show beyond the end of the data.
        let buffers = Buffers::new(1);
        let dirty = |len| buffers.take(len).bytes_mut().fill(0xFF);
        for (cell_len, alpha, data_len) in [(8, 1, 90u64), (32, 1, 90), (8, 2, 90), (8, 4, 61), (32, 1, 33)] {
            let layout = StripeLayout { layout: Layout::new(32, cell_len, alpha).unwrap(), k: 3, m: 2, data_len };
            let mut in_memory = &data[..data_len as usize];
            let in_memory = StripeData::read(&mut in_memory, 96, 1000, &spool(dir.path())).await.unwrap();
            let mut spooled = &data[..data_len as usize];
            let spooled = StripeData::read(&mut spooled, 96, 5, &spool(dir.path())).await.unwrap();
            assert!(matches!(in_memory.bytes, Origin::Memory(_)) && matches!(spooled.bytes, Origin::File { .. }));
            assert_eq!((in_memory.len, spooled.len), (data_len, data_len));
            let sub_blocks: Vec<u16> = (0..alpha as u16).collect();
            for index in 0..3 {
                // The definition: byte by byte.
                let mut block = [0; 32];
                for offset in 0..data_len {
                    let (at, within) = layout.locate(offset);
                    if at == index {
                        block[within as usize] = data[offset as usize];
                    }
                }
                for (start, end) in [(0, 32 / u64::from(alpha)), (3, 7)] {
                    let slice = Span::new(start, end);
                    let extents = sub_blocks.iter().flat_map(|sub_block| layout.layout.extents(u32::from(*sub_block), slice));
                    let expected: Vec<u8> =
                        extents.flat_map(|extent| block[extent.offset as usize..][..extent.len as usize].to_vec()).collect();
                    for from in [&in_memory, &spooled] {
                        dirty(100);
                        assert_eq!(from.rows(layout, index, &sub_blocks, slice, &buffers).await.unwrap(), expected);
                    }
                }
            }
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a spool file has a name");
    }

    #[tokio::test]
    async fn a_pipe_is_cut_into_stripes() {
        let dir = tempfile::tempdir().unwrap();
        for memory in [3, 10, 100] {
            let mut pipe = &[7u8; 25][..];
            let mut lens = Vec::new();
            loop {
                let stripe = StripeData::read(&mut pipe, 10, memory, &spool(dir.path())).await.unwrap();
                if stripe.len == 0 {
                    break;
                }
                lens.push(stripe.len);
            }
            assert_eq!(lens, [10, 10, 5]);
        }
    }

    #[tokio::test]
    async fn a_file_that_shrinks_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [1; 50]).unwrap();
        let stripe = StripeData::in_file(Arc::new(File::open(&path).unwrap()), 0, 96, DiskMode::Inline);
        let layout = StripeLayout { layout: Layout::new(32, 32, 1).unwrap(), k: 3, m: 2, data_len: 96 };
        let buffers = Buffers::new(1);
        assert!(stripe.rows(layout, 0, &[0], Span::new(0, 32), &buffers).await.is_ok());
        let from_cache = StripeData::in_file(Arc::new(File::open(&path).unwrap()), 0, 96, DiskMode::Pool);
        assert_eq!(from_cache.rows(layout, 0, &[0], Span::new(0, 32), &buffers).await.unwrap(), [1; 32].as_slice());
        for stripe in [stripe, from_cache] {
            let error = stripe.rows(layout, 1, &[0], Span::new(0, 32), &buffers).await.unwrap_err();
            assert!(error.message.contains("truncated"), "{error}");
        }
    }
}
