//! Buffers for slices, used again and again: a stage in its stride allocates nothing.

use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};

/// What a buffer is filled with before it is used, in debug builds: a kernel that leaves a byte unwritten shows in every test.
const POISON: u8 = 0xA5;

/// Buffers that are used again. What it keeps is bounded; how many are out is bounded by the queues of the sinks that hold them.
#[derive(Debug)]
pub struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
    kept_max: usize,
    kept_bytes_max: usize,
}

impl Buffers {
    /// None yet; it will keep so many, of whatever size: for buffers of one size.
    pub fn new(kept_max: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::default(), kept_max, kept_bytes_max: usize::MAX })
    }

    /// None yet; it will keep so many bytes: for buffers of all sizes.
    pub fn within(kept_bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::default(), kept_max: usize::MAX, kept_bytes_max })
    }

    /// A buffer of `len` bytes, whatever is in them.
    pub fn take(self: &Arc<Self>, len: usize) -> Buffer {
        let mut bytes = self.free_one(len).unwrap_or_else(|| vec![0; len]);
        if cfg!(debug_assertions) {
            bytes.fill(POISON);
        }
        Buffer { bytes, len, home: Arc::clone(self) }
    }

    /// The one that was used last of those that are long enough: its memory is the likeliest to be in the processor's caches.
    fn free_one(&self, len: usize) -> Option<Vec<u8>> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = free.iter().rposition(|bytes| bytes.len() >= len)?;
        Some(free.remove(fits))
    }

    /// Those that were not used for the longest time go first.
    fn keep(&self, bytes: Vec<u8>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(bytes);
        let mut kept_bytes: usize = free.iter().map(Vec::len).sum();
        let is_too_much = |count: usize, bytes: usize| count > self.kept_max || bytes > self.kept_bytes_max;
        let count = free.len();
        let dropped = free.iter().enumerate().take_while(|(at, bytes)| {
            let is_dropped = is_too_much(count - at, kept_bytes);
            kept_bytes -= if is_dropped { bytes.len() } else { 0 };
            is_dropped
        });
        let dropped = dropped.count();
        free.drain(..dropped);
    }
}

/// A buffer that goes back where it came from when nobody looks at it any more.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    len: usize,
    home: Arc<Buffers>,
}

impl Buffer {
    /// Its bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    /// From now on it is only read, by as many as like.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.keep(std::mem::take(&mut self.bytes));
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
        assert!(buffers.free.lock().unwrap().len() == 1, "no more than kept_max are kept");
    }

    #[test]
    fn of_all_sizes_no_more_bytes_are_kept_than_are_said() {
        let buffers = Buffers::within(100);
        let address = |len| buffers.take(len).freeze().as_ptr();
        let out: Vec<Buffer> = [60, 30, 50].map(|len| buffers.take(len)).into();
        drop(out);
        let kept = |buffers: &Buffers| buffers.free.lock().unwrap().iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(kept(&buffers), [30, 50], "the first to come back is the first to go");
        let fifty = address(40);
        assert_eq!((address(50), kept(&buffers)), (fifty, vec![30, 50]));
        drop(buffers.take(101));
        assert_eq!(kept(&buffers), [0; 0], "one that is too large by itself is not kept");
    }

    #[test]
    fn a_shorter_slice_gets_a_shorter_buffer_of_the_same_memory() {
        let buffers = Buffers::new(2);
        let address = buffers.take(64).freeze().as_ptr();
        let shorter = buffers.take(3).freeze();
        assert_eq!((shorter.as_ptr(), shorter.len()), (address, 3));
    }
}
