//! What crosses the wire, versioned: the control plane (gRPC), the data plane (frames), who may talk (TLS, tokens), and the
//! seam through which everybody reaches the network.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`net`] | the network as everybody sees it: connect, listen, accept |
//! | [`security`], [`certs`] | mutual TLS over any network; who the other end is |
//! | [`v1`], [`rpc`], [`status`] | the control plane: messages, servers and channels, errors |
//! | [`frame`], [`link`], [`pool`] | the data plane: frames, one link of a plan, connections that are kept |
//! | [`token`], [`task`] | the right to use a link; a task as bytes |

pub mod certs;
mod der;
pub mod frame;
pub mod incoming;
pub mod link;
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
pub use net::{BoxStream, Listen, Net, Stream, TcpNet};
pub use pool::{Pool, PoolLimits};
pub use security::{Peer, Security};
pub use status::{from_status, to_status};
pub use task::{decode_task, encode_task};
pub use token::{LinkKey, LinkRights, LinkToken};
pub use version::{PROTOCOL, ProtocolRange};

/// The control plane's messages and services, generated from `proto/weft.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("weft.v1");
}

/// The CRC32C of `bytes`, as frames, pages and checksum units carry it.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The CRC32C of two runs of bytes, one after the other, from the CRC32C of each and the length of the second.
pub fn crc32c_joined(first: u32, second: u32, second_len: u64) -> u32 {
    let algorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
    crc_fast::checksum_combine(algorithm, u64::from(first), u64::from(second), second_len) as u32
}
