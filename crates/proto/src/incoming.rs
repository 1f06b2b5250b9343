//! Accepts connections and authenticates their peers, many at a time, so that a slow handshake delays no other
//! connection.

use crate::{
    handshakes::Handshakes,
    log_rate::LogRate,
    net::{BoxStream, Listen},
    security::{Peer, Security},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinError, JoinSet},
};

/// A connection with an authenticated peer.
pub struct Accepted {
    /// The connection.
    pub stream: BoxStream,
    /// The peer.
    pub peer: Peer,
    /// The peer's address.
    pub address: String,
}

/// The connections that a listener accepts. Dropping it stops the listener.
pub struct Incoming {
    accepted: mpsc::Receiver<Accepted>,
}

/// The delay before the next accept after one failed, for example because file descriptors ran out.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

impl Incoming {
    /// Starts to accept connections on `listener`.
    pub fn start(listener: Box<dyn Listen>, security: Security) -> Self {
        let (sender, accepted) = mpsc::channel(1);
        tokio::spawn(accept_all(listener, security, sender));
        Self { accepted }
    }

    /// The next connection.
    pub async fn next(&mut self) -> Option<Accepted> {
        self.accepted.recv().await
    }

    pub(crate) fn into_receiver(self) -> mpsc::Receiver<Accepted> {
        self.accepted
    }
}

async fn accept_all(listener: Box<dyn Listen>, security: Security, sender: mpsc::Sender<Accepted>) {
    let (mut under_way, mut handshakes) = (JoinSet::new(), Handshakes::<AbortHandle>::default());
    let (closed, refused) = (LogRate::default(), Arc::new(LogRate::default()));
    loop {
        tokio::select! {
            // In a fixed order, so that a simulation is determined by its seed.
            biased;
            () = sender.closed() => return,
            Some(ended) = under_way.join_next_with_id(), if !under_way.is_empty() => {
                let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
                handshakes.end(|handshake| handshake.id() == id);
                if let Ok((_, Some(accepted))) = ended && sender.send(accepted).await.is_err() {
                    return;
                }
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    let handshake = under_way.spawn(handshake(stream, address.clone(), security.clone(), Arc::clone(&refused)));
                    if let Some(oldest) = handshakes.begin(handshake, &address) {
                        oldest.abort();
                        if let Some(left_out) = closed.admit() {
                            tracing::warn!(%address, left_out, "closed the oldest handshake: too many are in progress");
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                }
            },
        }
    }
}

/// `None`: the connection was refused.
async fn handshake(stream: BoxStream, address: String, security: Security, refused: Arc<LogRate>) -> Option<Accepted> {
    match security.accept(stream).await {
        Ok((stream, peer)) => Some(Accepted { stream, peer, address }),
        Err(error) => {
            if let Some(left_out) = refused.admit() {
                tracing::warn!(%address, %error, left_out, "refused a connection");
            }
            None
        }
    }
}
