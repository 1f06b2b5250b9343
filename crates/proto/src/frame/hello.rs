//! How the dialling end says what a connection carries next: one link of a plan, or updates in place.

use super::{FrameError, FrameStream, Kind, peer_error};
use crate::{
    status::encode_error,
    token::{LinkToken, TOKEN_LEN},
    version::{PROTOCOL, ProtocolRange},
};
use bytes::{Buf, BufMut, BytesMut};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use weft_types::{ClusterId, Error, Party, PlanId, Result};

/// Optional features of the protocol: none yet.
const FEATURES: u64 = 0;

/// The direction of a link's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// The dialling end sends.
    Push,
    /// The dialling end receives.
    Pull,
}

/// The first message of the dialling end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The cluster.
    pub cluster: ClusterId,
    /// The plan.
    pub plan: PlanId,
    /// The link's number in it.
    pub link: u32,
    /// The sender on the link.
    pub from: Party,
    /// The receiver.
    pub to: Party,
    /// Which of them dials.
    pub direction: Direction,
    /// The link's token.
    pub token: LinkToken,
}

/// The first message of a connection that carries updates in place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdatesHello {
    /// The cluster.
    pub cluster: ClusterId,
    /// The name of the agent that dials; `None`: a client dials. A certificate must agree with it.
    pub from: Option<String>,
    /// The name of the agent that accepts.
    pub to: String,
}

/// What a connection carries next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opening {
    /// One link of a plan.
    Link(Hello),
    /// Updates, until it is closed.
    Updates(UpdatesHello),
}

impl<S: AsyncRead + AsyncWrite + Unpin> FrameStream<S> {
    /// Announces the link that the connection carries next.
    pub async fn send_hello(&mut self, hello: &Hello) -> Result<(), FrameError> {
        let mut payload = version_fields();
        payload.put_slice(&encode_hello(hello)?);
        self.write_control(Kind::Hello, hello.link, &payload).await
    }

    /// Announces that the connection carries updates from now on.
    pub(crate) async fn send_updates_hello(&mut self, hello: &UpdatesHello) -> Result<(), FrameError> {
        let mut payload = version_fields();
        payload.put_slice(&encode_hello(hello)?);
        self.write_control(Kind::Updates, 0, &payload).await
    }

    /// Accepts updates.
    pub(crate) async fn accept_updates(&mut self) -> Result<(), FrameError> {
        self.write_control(Kind::HelloAck, 0, &version_fields()).await
    }

    /// Waits for what the connection carries next. There is no time limit until the first byte, because a kept connection may be idle for
    /// long. A peer with another protocol version gets an error that says so.
    pub async fn read_opening(&mut self) -> Result<Opening, FrameError> {
        self.begin_frame().await?;
        let mut payload = BytesMut::new();
        let header = self.read_frame(&mut payload).await?;
        if !matches!(header.kind, Kind::Hello | Kind::Updates) {
            return Err(FrameError::Unexpected(format!("received a {:?} frame instead of a Hello", header.kind)));
        }
        let theirs = take_version_fields(&mut payload)?;
        if let Err(error) = PROTOCOL.agree(theirs) {
            self.refuse_hello(header.link, &error).await?;
            return Err(FrameError::OtherVersion(error));
        }
        if header.kind == Kind::Updates {
            return decode_hello(&payload).map(Opening::Updates);
        }
        let hello: Hello = decode_hello(&payload)?;
        if hello.link != header.link {
            return Err(FrameError::Unexpected("the Hello's header names another link".into()));
        }
        Ok(Opening::Link(hello))
    }

    /// Waits for the next Hello, as [`read_opening`](Self::read_opening) does; updates are refused.
    pub async fn read_hello(&mut self) -> Result<Hello, FrameError> {
        match self.read_opening().await? {
            Opening::Link(hello) => Ok(hello),
            Opening::Updates(_) => Err(FrameError::Unexpected("received an announcement of updates instead of a Hello".into())),
        }
    }

    /// Accepts a Hello.
    pub async fn accept_hello(&mut self, hello: &Hello) -> Result<(), FrameError> {
        self.write_control(Kind::HelloAck, hello.link, &version_fields()).await
    }

    /// Refuses a Hello because of `error`. The connection cannot be used afterwards.
    pub async fn refuse_hello(&mut self, link: u32, error: &Error) -> Result<(), FrameError> {
        let mut payload = version_fields();
        payload.put_slice(&encode_error(error));
        self.write_control(Kind::HelloAck, link, &payload).await
    }

    /// Waits for the answer to a Hello. A refusal is [`FrameError::Peer`].
    pub async fn read_hello_ack(&mut self, link: u32) -> Result<(), FrameError> {
        let mut payload = BytesMut::new();
        let header = self.read_frame(&mut payload).await?;
        if header.kind == Kind::Error {
            return Err(FrameError::Peer(peer_error(&payload)));
        }
        if header.kind != Kind::HelloAck || header.link != link {
            let (kind, number) = (header.kind, header.link);
            return Err(FrameError::Unexpected(format!(
                "received a {kind:?} frame of link {number} instead of link {link}'s HelloAck"
            )));
        }
        let theirs = take_version_fields(&mut payload)?;
        if let Err(error) = PROTOCOL.agree(theirs) {
            return Err(FrameError::OtherVersion(error));
        }
        if payload.is_empty() { Ok(()) } else { Err(FrameError::Peer(peer_error(&payload))) }
    }
}

const VERSION_FIELDS_LEN: usize = 12;

/// The fields with which Hello and HelloAck begin in every version; they must never change.
fn version_fields() -> Vec<u8> {
    let mut fields = Vec::with_capacity(VERSION_FIELDS_LEN + 128);
    fields.put_u16_le(PROTOCOL.oldest);
    fields.put_u16_le(PROTOCOL.newest);
    fields.put_u64_le(FEATURES);
    fields
}

fn take_version_fields(payload: &mut BytesMut) -> Result<ProtocolRange, FrameError> {
    if payload.len() < VERSION_FIELDS_LEN {
        return Err(FrameError::Unexpected("a Hello or HelloAck has no version".into()));
    }
    let range = ProtocolRange { oldest: payload.get_u16_le(), newest: payload.get_u16_le() };
    let _features = payload.get_u64_le();
    Ok(range)
}

fn encode_hello(hello: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    postcard::to_allocvec(hello).map_err(|_| FrameError::Unexpected("cannot encode the Hello".into()))
}

fn decode_hello<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, FrameError> {
    postcard::from_bytes(payload).map_err(|_| FrameError::Unexpected("cannot decode the Hello".into()))
}

impl Serialize for LinkToken {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LinkToken {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <[u8; TOKEN_LEN]>::deserialize(deserializer).map(Self)
    }
}
