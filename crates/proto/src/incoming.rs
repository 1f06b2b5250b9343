//! Accepts connections and authenticates their peers, many at a time, so that a slow handshake delays no other
//! connection.

use crate::{
    handshakes::Handshakes,
    net::{BoxStream, Listen},
    security::{Peer, Security},
};
use std::time::Duration;
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinError, JoinSet},
    time::Instant,
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
/// The shortest time between two log lines about handshakes that were closed for others.
const CROWDED_SAID_EVERY: Duration = Duration::from_secs(10);

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
    let mut crowded = Crowded::default();
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
                    let handshake = under_way.spawn(handshake(stream, address.clone(), security.clone()));
                    if let Some(oldest) = handshakes.begin(handshake, &address) {
                        oldest.abort();
                        crowded.say(&address);
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

/// Logs handshakes that were closed for others, at a limited rate: a flood must not fill the log.
#[derive(Default)]
struct Crowded {
    since_said: u64,
    said: Option<Instant>,
}

impl Crowded {
    fn say(&mut self, address: &str) {
        self.since_said += 1;
        if self.said.is_none_or(|said| said.elapsed() >= CROWDED_SAID_EVERY) {
            tracing::warn!(%address, closed = self.since_said, "closed the oldest handshakes: too many are in progress");
            *self = Self { since_said: 0, said: Some(Instant::now()) };
        }
    }
}

/// `None`: the connection was refused.
async fn handshake(stream: BoxStream, address: String, security: Security) -> Option<Accepted> {
    match security.accept(stream).await {
        Ok((stream, peer)) => Some(Accepted { stream, peer, address }),
        Err(error) => {
            tracing::warn!(%address, %error, "refused a connection");
            None
        }
    }
}
