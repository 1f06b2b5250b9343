//! Buffers for slices, used again and again: a stage in its stride allocates nothing.

use bytes::Bytes;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What a buffer is filled with before it is used, in debug builds: a kernel that leaves a byte unwritten shows in every test.
const POISON: u8 = 0xA5;
/// Buffers of all sizes that are kept, whatever bytes they have: all are looked at where one is wanted.
const WITHIN_KEPT_MAX: usize = 256;

/// Buffers begin at a cache line. What the allocator gives for large ones begins 16 bytes behind the start of a page; to copy whole pages
/// there, as reads of files do, takes up to eight times as long on some processors (`rep movsb` on AMD Zen 3).
const ALIGNMENT: usize = 64;

/// Buffers that are used again. What it keeps is bounded; how many are out is bounded by the queues of the sinks that hold them.
#[derive(Debug)]
pub struct Buffers {
    free: Mutex<Free>,
    kept_max: usize,
    kept_bytes_max: usize,
}

/// Buffers that are not in use. The first was not used for the longest time.
#[derive(Debug, Default)]
struct Free {
    buffers: VecDeque<Memory>,
    bytes: usize,
}

/// The memory of a buffer.
#[derive(Debug, Default)]
struct Memory {
    bytes: Vec<u8>,
    /// The first byte that is used.
    start: usize,
}

impl Buffers {
    /// None yet; it will keep so many, of whatever size: for buffers of one size.
    pub fn new(kept_max: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::default(), kept_max, kept_bytes_max: usize::MAX })
    }

    /// None yet; it will keep so many bytes, in no more than 256 buffers: for buffers of all sizes.
    pub fn within(kept_bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::default(), kept_max: WITHIN_KEPT_MAX, kept_bytes_max })
    }

    /// A buffer of `len` bytes, whatever is in them.
    pub fn take(self: &Arc<Self>, len: usize) -> Buffer {
        let mut memory = self.lock().take(len).unwrap_or_else(|| Memory::new(len));
        if cfg!(debug_assertions) {
            memory.bytes.fill(POISON);
        }
        Buffer { memory, len, home: Arc::clone(self) }
    }

    /// Lets go of what it keeps.
    pub fn forget(&self) {
        let _forgotten = std::mem::take(&mut *self.lock());
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
        // The system takes its time to unmap them: without the lock.
        drop(free);
        drop(dropped);
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Free {
    /// The one that was used last, as its memory is the likeliest to be in the processor's caches. One that is more than twice as long
    /// is left to others, since the rest of it is not counted.
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

    /// Bytes that can be used.
    fn len(&self) -> usize {
        self.bytes.len().saturating_sub(ALIGNMENT - 1)
    }
}

/// A buffer that goes back where it came from when nobody looks at it any more.
#[derive(Debug)]
pub struct Buffer {
    memory: Memory,
    len: usize,
    home: Arc<Buffers>,
}

impl Buffer {
    /// Its bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes[self.memory.start..][..self.len]
    }

    /// From now on it is only read, by as many as like.
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
    fn buffers_come_back_when_the_last_reader_lets_go() {
        let buffers = Buffers::new(1);
        let mut first = buffers.take(8);
        first.bytes_mut().fill(1);
        let frozen = first.freeze();
        let address = frozen.as_ptr();
        let reader = frozen.clone();
        drop(frozen);
        assert_ne!(buffers.take(8).freeze().as_ptr(), address, "a buffer was used while somebody reads it");
        assert_eq!(reader, vec![1; 8]);
        drop(buffers.take(8));
        drop(reader);
        assert!(buffers.lock().buffers.len() == 1, "no more than kept_max are kept");
    }

    #[test]
    fn of_all_sizes_no_more_bytes_are_kept_than_are_said() {
        let buffers = Buffers::within(100);
        let out: Vec<Buffer> = [60, 30, 50].map(|len| buffers.take(len)).into();
        drop(out);
        let kept = |buffers: &Buffers| {
            let free = buffers.lock();
            let lens: Vec<usize> = free.buffers.iter().map(Memory::len).collect();
            assert_eq!(free.bytes, lens.iter().sum::<usize>());
            lens
        };
        assert_eq!(kept(&buffers), [30, 50], "the first to come back is the first to go");
        let held = buffers.take(14);
        assert_eq!(kept(&buffers), [30, 50], "much longer ones are left to others");
        drop(held);
        let fifty = buffers.take(50).freeze().as_ptr();
        assert_eq!(buffers.take(40).freeze().as_ptr(), fifty);
        assert_eq!(kept(&buffers), [30, 14, 50]);
        drop(buffers.take(101));
        assert_eq!(kept(&buffers), [30, 14, 50], "one that is too large by itself is not kept");
        buffers.forget();
        assert_eq!(kept(&buffers), [0; 0]);
    }

    #[test]
    fn they_begin_at_a_cache_line() {
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
