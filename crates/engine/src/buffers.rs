//! Reusable buffers for slices: a stage in steady state allocates nothing.

use bytes::Bytes;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// In debug builds, fills a buffer before it is used, so that a kernel that leaves a byte unwritten shows in every
/// test.
const POISON: u8 = 0xA5;
/// The most buffers that a pool of mixed sizes keeps, because `take` scans all of them.
const WITHIN_KEPT_MAX: usize = 256;

/// Buffers start at a cache line. The allocator places large ones 16 bytes after a page boundary. On some processors
/// (`rep movsb` on AMD Zen 3), copying whole pages there, as file reads do, takes up to eight times as long.
const ALIGNMENT: usize = 64;

/// A pool of buffers. The memory of unused buffers is bounded here; the queues of the sinks bound the number in use.
#[derive(Debug)]
pub struct Buffers {
    free: Mutex<Free>,
    kept_max: usize,
    kept_bytes_max: usize,
}

/// Unused buffers, the least recently used first.
#[derive(Debug, Default)]
struct Free {
    buffers: VecDeque<Memory>,
    bytes: usize,
}

/// The memory of a buffer.
#[derive(Debug, Default)]
struct Memory {
    bytes: Vec<u8>,
    /// The offset of the first byte that is used.
    start: usize,
}

impl Buffers {
    /// An empty pool for buffers of one size; it keeps at most `kept_max` of them.
    pub fn new(kept_max: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::default(), kept_max, kept_bytes_max: usize::MAX })
    }

    /// An empty pool for buffers of mixed sizes; it keeps at most `kept_bytes_max` bytes, in at most 256 buffers.
    pub fn within(kept_bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::default(), kept_max: WITHIN_KEPT_MAX, kept_bytes_max })
    }

    /// A buffer of `len` bytes with unspecified content.
    pub fn take(self: &Arc<Self>, len: usize) -> Buffer {
        let mut memory = self.lock().take(len).unwrap_or_else(|| Memory::new(len));
        if cfg!(debug_assertions) {
            memory.bytes.fill(POISON);
        }
        Buffer { memory, len, home: Arc::clone(self) }
    }

    fn keep(&self, memory: Memory) {
        if memory.len() > self.kept_bytes_max || self.kept_max == 0 {
            return;
        }
        let mut dropped = Vec::new();
        let mut free = self.lock();
        while free.buffers.len() >= self.kept_max || free.bytes > self.kept_bytes_max - memory.len() {
            let Some(oldest) = free.buffers.pop_front() else { break };
            free.bytes -= oldest.len();
            dropped.push(oldest);
        }
        free.bytes = free.bytes.saturating_add(memory.len());
        free.buffers.push_back(memory);
        // Unmapping takes time, so the lock is released first.
        drop(free);
        drop(dropped);
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Free {
    /// The most recently used buffer that fits, because its memory is most likely in the processor's caches. A buffer
    /// more than twice as long is left to other callers, because its unused part is not counted.
    fn take(&mut self, len: usize) -> Option<Memory> {
        let fits = self.buffers.iter().rposition(|memory| (len..=len.saturating_mul(2)).contains(&memory.len()))?;
        let memory = self.buffers.remove(fits)?;
        self.bytes -= memory.len();
        Some(memory)
    }
}

impl Memory {
    fn new(len: usize) -> Self {
        let bytes = vec![0; len.saturating_add(ALIGNMENT - 1)];
        let start = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT - 1);
        Self { bytes, start }
    }

    /// The usable bytes.
    fn len(&self) -> usize {
        self.bytes.len().saturating_sub(ALIGNMENT - 1)
    }
}

/// A buffer that returns to its pool when the last reference is dropped.
#[derive(Debug)]
pub struct Buffer {
    memory: Memory,
    len: usize,
    home: Arc<Buffers>,
}

impl Buffer {
    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes[self.memory.start..][..self.len]
    }

    /// Makes the buffer read-only and shareable.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory.bytes[self.memory.start..][..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.keep(std::mem::take(&mut self.memory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_return_to_the_pool_when_the_last_reader_drops_them() {
        let buffers = Buffers::new(1);
        let mut first = buffers.take(8);
        first.bytes_mut().fill(1);
        let frozen = first.freeze();
        let address = frozen.as_ptr();
        let reader = frozen.clone();
        drop(frozen);
        assert_ne!(buffers.take(8).freeze().as_ptr(), address, "a buffer was reused while it is being read");
        assert_eq!(reader, vec![1; 8]);
        drop(buffers.take(8));
        drop(reader);
        assert!(buffers.lock().buffers.len() == 1, "more than kept_max are kept");
    }

    #[test]
    fn the_kept_bytes_of_all_sizes_are_bounded() {
        let buffers = Buffers::within(100);
        let out: Vec<Buffer> = [60, 30, 50].map(|len| buffers.take(len)).into();
        drop(out);
        let kept = |buffers: &Buffers| {
            let free = buffers.lock();
            let lens: Vec<usize> = free.buffers.iter().map(Memory::len).collect();
            assert_eq!(free.bytes, lens.iter().sum::<usize>());
            lens
        };
        assert_eq!(kept(&buffers), [30, 50], "the least recently used buffer is freed first");
        let held = buffers.take(14);
        assert_eq!(kept(&buffers), [30, 50], "much longer buffers are not used");
        drop(held);
        let fifty = buffers.take(50).freeze().as_ptr();
        assert_eq!(buffers.take(40).freeze().as_ptr(), fifty);
        assert_eq!(kept(&buffers), [30, 14, 50]);
        drop(buffers.take(101));
        assert_eq!(kept(&buffers), [30, 14, 50], "a buffer larger than the limit is not kept");
    }

    #[test]
    fn buffers_begin_at_a_cache_line() {
        let buffers = Buffers::new(8);
        let taken: Vec<Buffer> = [1, 63, 4096, 256 << 10, 1 << 20].map(|len| buffers.take(len)).into();
        assert!(taken.iter().all(|buffer| buffer.as_ref().as_ptr().addr().is_multiple_of(ALIGNMENT)));
    }

    #[test]
    fn a_shorter_slice_gets_a_shorter_buffer_of_the_same_memory() {
        let buffers = Buffers::new(2);
        let address = buffers.take(64).freeze().as_ptr();
        let shorter = buffers.take(33).freeze();
        assert_eq!((shorter.as_ptr(), shorter.len()), (address, 33));
    }
}
