//! How a connection for updates begins.

use super::{HeadMax, UpdateReader, UpdateWriter};
use crate::{
    frame::{FrameError, FrameStream, PEER_TIMEOUT, UpdatesHello},
    net::Net,
    security::{Peer, Security},
};
use weft_types::{Error, Result};

/// Connects to the agent `hello.to` at `address` and announces updates.
pub async fn dial(
    net: &dyn Net,
    security: &Security,
    address: &str,
    hello: &UpdatesHello,
    head_max: HeadMax,
) -> Result<(UpdateReader, UpdateWriter)> {
    let expected = Peer::Agent(hello.to.clone());
    let place = |error: Error| Error { message: format!("{expected} at {address}: {}", error.message), ..error };
    let mut frames = FrameStream::new(security.dial(net, address, &expected).await?);
    let greet = async {
        frames.set_stall(PEER_TIMEOUT);
        frames.send_updates_hello(hello).await?;
        frames.read_hello_ack(0).await
    };
    greet.await.map_err(|error| place(error.into()))?;
    let (read, write) = frames.split();
    Ok((UpdateReader::new(read, head_max), UpdateWriter::new(write)))
}

/// Accepts an announcement of updates if the peer is who it says.
pub async fn accept(
    mut frames: FrameStream,
    hello: &UpdatesHello,
    peer: &Peer,
    head_max: HeadMax,
) -> Result<(UpdateReader, UpdateWriter), FrameError> {
    let is_true = match &hello.from {
        Some(name) => peer.may_be_agent(name),
        None => matches!(peer, Peer::Client | Peer::Anonymous),
    };
    if !is_true {
        let named = hello.from.clone().map_or(Peer::Client, Peer::Agent);
        let error = Error::invalid(format!("expected {named}, but {peer} connected"));
        frames.refuse_hello(0, &error).await?;
        return Err(FrameError::Unexpected(format!("refused: {error}")));
    }
    frames.accept_updates().await?;
    frames.set_stall(PEER_TIMEOUT);
    let (read, write) = frames.split();
    Ok((UpdateReader::new(read, head_max), UpdateWriter::new(write)))
}
