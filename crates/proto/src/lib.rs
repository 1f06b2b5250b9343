//! Everything on the wire, versioned: the control plane (gRPC), the data plane (frames), authentication (TLS, tokens), and the interface to
//! the network.
//!
//! | module | content |
//! | --- | --- |
//! | [`net`] | the interface to the network: connect, listen, accept |
//! | [`security`], [`certs`] | mutual TLS over any network; the identity of the other end |
//! | [`v1`], [`rpc`], [`status`] | the control plane: messages, servers and channels, errors |
//! | [`frame`], [`link`], [`pool`] | the data plane: frames, one link of a plan, kept connections |
//! | [`updates`] | the data plane: updates in place |
//! | [`token`], [`task`] | the right to use a link; the encoding of a task |
//! | [`update_codec`] | the encoding of the update protocol's messages |
//! | [`metrics`] | what a daemon counts, and how Prometheus reads it |
//! | [`conversion`] | the interface between an agent and its converter |

mod budget;
mod calls;
pub mod certs;
mod connections;
pub mod conversion;
mod der;
mod disk_mode;
pub mod frame;
mod handshakes;
pub mod incoming;
pub mod link;
mod log_rate;
mod memory;
pub mod metrics;
pub mod net;
pub mod pool;
pub mod rpc;
mod secret;
pub mod security;
mod stall;
pub mod status;
pub mod task;
pub mod token;
pub mod update_codec;
pub mod updates;
mod version;

pub use connections::{Connections, Held, Shares};
pub use conversion::{Conversion, ConversionLimits, Converter, NodeLink};
pub use disk_mode::{DiskDelay, DiskMode};
pub use frame::{Direction, FrameError, FrameStream, Hello, Opening, UpdatesHello};
pub use incoming::{Accepted, Incoming};
pub use link::{LinkReceiver, LinkSender, SliceMemory};
pub use log_rate::{LogCauses, LogRate};
pub use memory::MemoryNet;
pub use net::{BoxStream, Listen, Net, Stream, TcpNet};
pub use pool::{Pool, PoolLimits};
pub use security::{Peer, Security};
pub use stall::{ExtraStall, Stall};
pub use status::{from_status, to_status};
pub use task::{decode_task, encode_task};
pub use token::{LinkKey, LinkRights, LinkToken, ReadRights, UpdateRights};
pub use update_codec::{decode_message, decode_sealed, encode_message, encode_sealed};
pub use version::{GROWTH_SINCE, OPEN_READS_SINCE, PROTOCOL, ProtocolRange, ROUTES_SINCE};
pub use weft_types::{crc32c, crc32c_continued, crc32c_joined};

/// The control plane's messages and services, generated from `proto/weft.proto` by `make bless`. The repository
/// contains the generated code, so that a build needs no generator; a test compares it with its source.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    include!("generated/weft.v1.rs");
}

impl From<weft_types::StageTimes> for v1::StageTimes {
    fn from(times: weft_types::StageTimes) -> Self {
        let weft_types::StageTimes { lane, stage, read_us, wait_us, combine_us, send_us, write_us } = times;
        Self { lane: lane.into(), stage: stage.into(), read_us, wait_us, combine_us, send_us, write_us }
    }
}

impl From<weft_types::ClassLimits> for v1::ClassLimits {
    fn from(limits: weft_types::ClassLimits) -> Self {
        let weft_types::ClassLimits { repair_percent, scrub_percent, repair_bytes_per_s, scrub_bytes_per_s } = limits;
        let [repair_bytes_per_s, scrub_bytes_per_s] = [repair_bytes_per_s, scrub_bytes_per_s].map(|rate| rate.map(|rate| rate.0));
        Self { repair_percent, scrub_percent, repair_bytes_per_s, scrub_bytes_per_s }
    }
}

impl From<v1::ClassLimits> for weft_types::ClassLimits {
    fn from(limits: v1::ClassLimits) -> Self {
        let v1::ClassLimits { repair_percent, scrub_percent, repair_bytes_per_s, scrub_bytes_per_s } = limits;
        let [repair_bytes_per_s, scrub_bytes_per_s] =
            [repair_bytes_per_s, scrub_bytes_per_s].map(|rate| rate.map(weft_types::ByteSize));
        Self { repair_percent, scrub_percent, repair_bytes_per_s, scrub_bytes_per_s }
    }
}

impl From<weft_types::TaskTraffic> for v1::TaskTraffic {
    fn from(traffic: weft_types::TaskTraffic) -> Self {
        let weft_types::TaskTraffic { read_bytes, written_bytes, sent_bytes, received_bytes } = traffic;
        Self { read_bytes, written_bytes, sent_bytes, received_bytes }
    }
}

impl From<v1::TaskTraffic> for weft_types::TaskTraffic {
    fn from(traffic: v1::TaskTraffic) -> Self {
        let v1::TaskTraffic { read_bytes, written_bytes, sent_bytes, received_bytes } = traffic;
        Self { read_bytes, written_bytes, sent_bytes, received_bytes }
    }
}

impl std::ops::Add for v1::TaskTraffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        (weft_types::TaskTraffic::from(self) + other.into()).into()
    }
}
