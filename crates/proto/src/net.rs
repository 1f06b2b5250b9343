//! The interface to the network. All connections go through [`Net`], so that a whole cluster can also run on a
//! simulated network.

use async_trait::async_trait;
use std::{io, net::SocketAddr, time::Duration};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// A network.
///
/// ```
/// # use weft_proto::{Net, TcpNet};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// let net = TcpNet::default();
/// let listener = net.listen("127.0.0.1:0").await?;
/// let address = listener.local_address()?;
/// let (_ours, _theirs) = tokio::try_join!(net.connect(&address), listener.accept())?;
/// # Ok(()) }
/// ```
#[async_trait]
pub trait Net: Send + Sync {
    /// Connects to `address`, `host:port`.
    async fn connect(&self, address: &str) -> io::Result<BoxStream>;

    /// Listens on `address`, `host:port`; port 0 picks a free one.
    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listen>>;
}

/// Accepts connections.
#[async_trait]
pub trait Listen: Send + Sync {
    /// The next connection, and its peer's address.
    async fn accept(&self) -> io::Result<(BoxStream, String)>;

    /// The address of the listener, in a form that others can dial.
    fn local_address(&self) -> io::Result<String>;
}

/// A bidirectional byte stream.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Any stream.
pub type BoxStream = Box<dyn Stream>;

/// The machine's own TCP, without Nagle's algorithm and with keep-alive.
#[derive(Debug, Clone)]
pub struct TcpNet {
    /// How long connecting may take.
    pub connect_timeout: Duration,
}

/// Connections that may wait to be accepted.
const BACKLOG_MAX: u32 = 1024;

impl Default for TcpNet {
    fn default() -> Self {
        Self { connect_timeout: Duration::from_secs(5) }
    }
}

#[async_trait]
impl Net for TcpNet {
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        let connecting = async {
            let mut last = None;
            let candidates: Vec<SocketAddr> = tokio::net::lookup_host(address).await?.collect();
            // Each address gets its share of the time, so that one that does not answer leaves time for the others.
            let share = self.connect_timeout / candidates.len().max(1) as u32;
            for candidate in candidates {
                match tokio::time::timeout(share, connect_one(candidate)).await {
                    Ok(Ok(stream)) => return Ok(Box::new(stream) as BoxStream),
                    Ok(Err(error)) => last = Some(error),
                    Err(_) => last = Some(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {share:?}"))),
                }
            }
            Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address")))
        };
        let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {:?}", self.connect_timeout));
        tokio::time::timeout(self.connect_timeout, connecting).await.map_err(timed_out)?
    }

    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listen>> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for candidate in tokio::net::lookup_host(address).await? {
            match listen_on(candidate) {
                Ok(listener) => return Ok(Box::new(listener)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// The host of an address `host:port`, in any notation.
pub fn host(address: &str) -> String {
    match address.parse::<SocketAddr>() {
        Ok(address) => address.ip().to_canonical().to_string(),
        Err(_) => address.rsplit_once(':').map_or(address, |(host, _)| host).to_owned(),
    }
}

async fn connect_one(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket_for(address)?;
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    // Accepted connections inherit keep-alive from the listener.
    let socket = socket_for(address)?;
    // Lets a restarted daemon reuse its port while connections of its predecessor linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG_MAX)
}

fn socket_for(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_keepalive(true)?;
    Ok(socket)
}

#[async_trait]
impl Listen for TcpListener {
    async fn accept(&self) -> io::Result<(BoxStream, String)> {
        let (stream, peer) = TcpListener::accept(self).await?;
        stream.set_nodelay(true)?;
        Ok((Box::new(stream), peer.to_string()))
    }

    fn local_address(&self) -> io::Result<String> {
        self.local_addr().map(|address| address.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_recognised_in_any_notation_of_its_address() {
        assert_eq!(["10.0.0.5:41", "[::ffff:10.0.0.5]:42"].map(host), ["10.0.0.5", "10.0.0.5"]);
        assert_eq!(["[fd00::1]:1", "somewhere:7", ""].map(host), ["fd00::1", "somewhere", ""]);
    }
}
