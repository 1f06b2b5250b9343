//! A store that injects faults into chosen calls.

use crate::block_store::{
    BlockReader, BlockStore, BlockWriter, Capacity, DeviceErrors, InPlaceCounts, Patch, QuarantinePlace, Quarantined, Receipt,
};
use std::sync::{Arc, Mutex, PoisonError};
use weft_types::{BlockId, BlockMeta, Error, Reaction, Result, Span, crc32c};

/// The kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// [`BlockStore::create`].
    Create,
    /// [`BlockWriter::write_at`].
    Write,
    /// [`BlockWriter::finish`].
    Finish,
    /// [`BlockStore::open`].
    Open,
    /// [`BlockReader::read_at`].
    Read,
    /// [`BlockStore::patch`].
    Patch,
    /// [`BlockStore::remove`].
    Remove,
}

/// A call that is about to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The kind of the call.
    pub kind: CallKind,
    /// The block.
    pub block: BlockId,
    /// The bytes that are read or written.
    pub bytes: Span,
}

/// A fault to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call does nothing and fails with this reaction.
    Fail(Reaction),
    /// Flips this bit of the bytes written or read, and reports success.
    FlipBit(u64),
    /// Writes only this many bytes, and then fails with [`Reaction::Fatal`].
    Short(usize),
}

type Choose = dyn FnMut(&Call) -> Option<Fault> + Send;

/// Wraps a store. A function chooses for each call whether it passes or fails.
pub struct FaultStore {
    inner: Arc<dyn BlockStore>,
    faults: Faults,
}

impl FaultStore {
    /// Calls `choose` before each call.
    pub fn new(inner: Arc<dyn BlockStore>, choose: impl FnMut(&Call) -> Option<Fault> + Send + 'static) -> Self {
        Self { inner, faults: Faults(Arc::new(Mutex::new(choose))) }
    }

    /// Injects the fault into one call of `kind`, after `passed` calls of that kind have passed. All other calls pass.
    pub fn nth(inner: Arc<dyn BlockStore>, kind: CallKind, passed: u64, fault: Fault) -> Self {
        let mut left = Some(passed);
        Self::new(inner, move |call| {
            if call.kind != kind {
                return None;
            }
            let now = left == Some(0);
            left = left.and_then(|left| left.checked_sub(1));
            now.then_some(fault)
        })
    }
}

impl BlockStore for FaultStore {
    fn create(&self, meta: &BlockMeta) -> Result<Box<dyn BlockWriter>> {
        self.faults.on_plain(CallKind::Create, meta.id)?;
        let inner = self.inner.create(meta)?;
        Ok(Box::new(FaultWriter { inner, faults: self.faults.clone(), block: meta.id }))
    }

    fn open(&self, id: BlockId) -> Result<Arc<dyn BlockReader>> {
        self.faults.on_plain(CallKind::Open, id)?;
        let inner = self.inner.open(id)?;
        Ok(Arc::new(FaultReader { inner, faults: self.faults.clone() }))
    }

    fn patch(&self, patch: &Patch<'_>) -> Result<Receipt> {
        self.faults.on_plain(CallKind::Patch, patch.id)?;
        self.inner.patch(patch)
    }

    fn remove(&self, id: BlockId) -> Result<bool> {
        self.faults.on_plain(CallKind::Remove, id)?;
        self.inner.remove(id)
    }

    fn list_after(&self, after: Option<BlockId>, blocks_max: usize) -> Result<Vec<BlockId>> {
        self.inner.list_after(after, blocks_max)
    }

    fn quarantine(&self, id: BlockId, reason: &str, since_ms: Option<u64>) -> Result<()> {
        self.inner.quarantine(id, reason, since_ms)
    }

    fn quarantined(&self) -> Quarantined {
        self.inner.quarantined()
    }

    fn quarantine_places(&self) -> Result<Vec<QuarantinePlace>> {
        self.inner.quarantine_places()
    }

    fn delete_quarantined(&self, place: &str) -> Result<()> {
        self.inner.delete_quarantined(place)
    }

    fn capacity(&self) -> Result<Capacity> {
        self.inner.capacity()
    }

    fn failed(&self) -> Option<String> {
        self.inner.failed()
    }

    fn fsyncs(&self) -> u64 {
        self.inner.fsyncs()
    }

    fn in_place(&self) -> InPlaceCounts {
        self.inner.in_place()
    }

    fn errors(&self) -> DeviceErrors {
        self.inner.errors()
    }

    fn forget_cached_sidecar(&self, id: BlockId) {
        self.inner.forget_cached_sidecar(id);
    }
}

struct FaultWriter {
    inner: Box<dyn BlockWriter>,
    faults: Faults,
    block: BlockId,
}

impl BlockWriter for FaultWriter {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let span = Span::new(offset, offset.saturating_add(bytes.len() as u64));
        match self.faults.on(CallKind::Write, self.block, span) {
            None => self.inner.write_at(offset, bytes),
            Some(Fault::Fail(reaction)) => Err(injected(reaction, self.block)),
            Some(Fault::FlipBit(bit)) => {
                let mut bytes = bytes.to_vec();
                flip(&mut bytes, bit);
                self.inner.write_at(offset, &bytes)
            }
            Some(Fault::Short(len)) => {
                self.inner.write_at(offset, &bytes[..len.min(bytes.len())])?;
                Err(injected(Reaction::Fatal, self.block))
            }
        }
    }

    fn missing(&self) -> Vec<Span> {
        self.inner.missing()
    }

    fn finish(self: Box<Self>, expected_checksums: Option<&[u32]>) -> Result<Receipt> {
        self.faults.on_plain(CallKind::Finish, self.block)?;
        self.inner.finish(expected_checksums)
    }
}

struct FaultReader {
    inner: Arc<dyn BlockReader>,
    faults: Faults,
}

impl BlockReader for FaultReader {
    fn meta(&self) -> &BlockMeta {
        self.inner.meta()
    }

    fn units(&self) -> &[u32] {
        self.inner.units()
    }

    fn pages(&self) -> &[u32] {
        self.inner.pages()
    }

    fn is_interrupted(&self) -> bool {
        self.inner.is_interrupted()
    }

    fn stored_len(&self) -> Result<u64> {
        self.inner.stored_len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<u32> {
        let block = self.meta().id;
        match self.faults.on(CallKind::Read, block, Span::new(offset, offset.saturating_add(buf.len() as u64))) {
            None => self.inner.read_at(offset, buf),
            Some(Fault::Fail(reaction)) => Err(injected(reaction, block)),
            Some(Fault::FlipBit(bit)) => {
                self.inner.read_at(offset, buf)?;
                flip(buf, bit);
                // Simulates a disk that changed both the bytes and their checksum: only a checksum kept elsewhere
                // detects it.
                Ok(crc32c(buf))
            }
            Some(Fault::Short(_)) => Err(injected(Reaction::Fatal, block)),
        }
    }

    fn forget_cached(&self, bytes: Span) {
        self.inner.forget_cached(bytes);
    }
}

#[derive(Clone)]
struct Faults(Arc<Mutex<Choose>>);

impl Faults {
    fn on(&self, kind: CallKind, block: BlockId, bytes: Span) -> Option<Fault> {
        let mut choose = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        choose(&Call { kind, block, bytes })
    }

    /// A call that moves no bytes can only fail as a whole.
    fn on_plain(&self, kind: CallKind, block: BlockId) -> Result<()> {
        match self.on(kind, block, Span::new(0, 0)) {
            None => Ok(()),
            Some(Fault::Fail(reaction)) => Err(injected(reaction, block)),
            Some(Fault::FlipBit(_) | Fault::Short(_)) => Err(injected(Reaction::Fatal, block)),
        }
    }
}

fn injected(reaction: Reaction, block: BlockId) -> Error {
    Error::new(reaction, "injected fault").block(block)
}

fn flip(bytes: &mut [u8], bit: u64) {
    if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
        *byte ^= 1 << (bit % 8);
    }
}
