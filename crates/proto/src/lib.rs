//! What crosses the wire, versioned: the control plane (gRPC), the data plane (frames), who may talk (TLS, tokens), and the
//! seam through which everybody reaches the network.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`net`] | the network as everybody sees it: connect, listen, accept |
//! | [`security`], [`certs`] | mutual TLS over any network; who the other end is |
//! | [`v1`], [`rpc`], [`status`] | the control plane: messages, servers and channels, errors |
//! | [`conversion`] | what coordinator and agents have to agree on of conversions |
//! | [`frame`], [`link`], [`pool`] | the data plane: frames, one link of a plan, connections that are kept |
//! | [`token`], [`task`] | the right to use a link; a task as bytes |

pub mod certs;
pub mod conversion;
mod der;
pub mod frame;
pub mod incoming;
pub mod link;
mod memory;
pub mod net;
pub mod pool;
pub mod rpc;
pub mod security;
pub mod status;
pub mod task;
pub mod token;
mod version;

pub use frame::{Direction, FrameError, FrameStream, Hello};
pub use incoming::{Accepted, Incoming};
pub use link::{LinkReceiver, LinkSender};
pub use memory::MemoryNet;
pub use net::{BoxStream, Listen, Net, Stream, TcpNet};
pub use pool::{Pool, PoolLimits};
pub use security::{Peer, Security};
pub use status::{from_status, to_status};
pub use task::{decode_task, encode_task};
pub use token::{LinkKey, LinkRights, LinkToken};
pub use version::{PROTOCOL, ProtocolRange};

/// The control plane's messages and services, generated from `proto/weft.proto` by `make bless`. They are kept in the repository, so
/// that a build needs neither a generator nor the time that it takes; a test holds them to their source.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    include!("generated/weft.v1.rs");
}

impl std::ops::Add for v1::TaskTraffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            read_bytes: self.read_bytes.saturating_add(other.read_bytes),
            written_bytes: self.written_bytes.saturating_add(other.written_bytes),
            sent_bytes: self.sent_bytes.saturating_add(other.sent_bytes),
            received_bytes: self.received_bytes.saturating_add(other.received_bytes),
        }
    }
}

/// The CRC32C of `bytes`, as frames, pages and checksum units carry it.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The CRC32C of what `crc` is the CRC32C of, followed by `bytes`; that of nothing is 0.
pub fn crc32c_continued(crc: u32, bytes: &[u8]) -> u32 {
    // A finished CRC32C is the register with all its bits flipped.
    let mut digest = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

/// The CRC32C of two runs of bytes, one after the other, from the CRC32C of each and the length of the second.
pub fn crc32c_joined(first: u32, second: u32, second_len: u64) -> u32 {
    let algorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
    crc_fast::checksum_combine(algorithm, u64::from(first), u64::from(second), second_len) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_goes_on_where_it_stopped() {
        let bytes: Vec<u8> = (0..100_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for cut in [0, 1, 7, 4096, 65_536, 99_999, 100_000] {
            let (first, second) = bytes.split_at(cut);
            assert_eq!(crc32c_continued(crc32c(first), second), crc32c(&bytes), "cut at {cut}");
            assert_eq!(crc32c_joined(crc32c(first), crc32c(second), second.len() as u64), crc32c(&bytes), "cut at {cut}");
        }
        assert_eq!(crc32c_continued(0, b"123456789"), 0xe306_9283);
    }
}
