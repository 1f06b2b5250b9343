//! Accepts connections and authenticates their peers, many at a time, so that a slow handshake delays no other
//! connection.

use crate::{
    net::{BoxStream, Listen},
    security::{Peer, Security},
};
use std::time::Duration;
use tokio::{sync::mpsc, task::JoinSet};

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

/// Handshakes that may be running, or finished and not yet taken.
const HANDSHAKES_MAX: usize = 256;
/// How long a listener pauses after an error, for example after a lack of file descriptors.
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
    let mut handshakes = JoinSet::new();
    loop {
        tokio::select! {
            // In a fixed order, so that a simulation is determined by its seed.
            biased;
            () = sender.closed() => return,
            Some(_) = handshakes.join_next(), if !handshakes.is_empty() => {}
            accepted = listener.accept(), if handshakes.len() < HANDSHAKES_MAX => match accepted {
                Ok((stream, address)) => {
                    handshakes.spawn(handshake(stream, address, security.clone(), sender.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                }
            },
        }
    }
}

async fn handshake(stream: BoxStream, address: String, security: Security, sender: mpsc::Sender<Accepted>) {
    match security.accept(stream).await {
        Ok((stream, peer)) => {
            // No receiver is left: the listener is being closed.
            let _closed = sender.send(Accepted { stream, peer, address }).await;
        }
        Err(error) => tracing::warn!(%address, %error, "refused a connection"),
    }
}
