//! Buffers for slices, used again and again: a stage in its stride allocates nothing.

use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};

/// What a buffer is filled with before it is used, in debug builds: a kernel that leaves a byte unwritten shows in every test.
const POISON: u8 = 0xA5;

/// Buffers of one size. It keeps at most `kept_max` of them; how many are out is bounded by the queues of the sinks that hold
/// them.
#[derive(Debug)]
pub struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
    kept_max: usize,
}

impl Buffers {
    /// None yet.
    pub fn new(kept_max: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::new(Vec::new()), kept_max })
    }

    /// A buffer of `len` bytes, whatever is in them.
    pub fn take(self: &Arc<Self>, len: usize) -> Buffer {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // One that is too short is not extended: that would copy what nobody needs.
        let mut bytes = free.filter(|bytes| bytes.len() >= len).unwrap_or_else(|| vec![0; len]);
        if cfg!(debug_assertions) {
            bytes.fill(POISON);
        }
        Buffer { bytes, len, home: Arc::clone(self) }
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
        let mut free = self.home.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < self.home.kept_max {
            free.push(std::mem::take(&mut self.bytes));
        }
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
    fn a_shorter_slice_gets_a_shorter_buffer_of_the_same_memory() {
        let buffers = Buffers::new(2);
        let address = buffers.take(64).freeze().as_ptr();
        let shorter = buffers.take(3).freeze();
        assert_eq!((shorter.as_ptr(), shorter.len()), (address, 3));
    }
}
