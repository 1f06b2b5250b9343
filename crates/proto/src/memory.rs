//! A network within one process, on tokio's clock: tests run whole clusters on it without a socket.

use crate::net::{BoxStream, Listen, Net};
use async_trait::async_trait;
use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{Mutex as AsyncMutex, mpsc};

/// The bytes that one direction of a connection buffers: as much as a socket's buffers grow to on Linux.
const BUFFER_BYTES: usize = 4 << 20;
/// Connections that may wait to be accepted.
const BACKLOG_MAX: usize = 1024;
/// The first port that is assigned for port 0.
const FREE_PORTS: u16 = 32_768;

/// The network as one host sees it. Clones are the same host; hosts created by [`MemoryNet::host`] share the network.
///
/// ```
/// # use weft_proto::{MemoryNet, Net};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// let net = MemoryNet::default();
/// let listener = net.listen("127.0.0.1:0").await?;
/// let address = listener.local_address()?;
/// let other = net.host("127.0.0.2");
/// let (_ours, accepted) = tokio::try_join!(other.connect(&address), listener.accept())?;
/// assert!(accepted.1.starts_with("127.0.0.2:"));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct MemoryNet {
    host: String,
    network: Arc<Mutex<Network>>,
}

#[derive(Debug)]
struct Network {
    listeners: BTreeMap<SocketAddr, mpsc::Sender<Arrival>>,
    next_port: u16,
}

/// A connection and the address of its other end.
type Arrival = (BoxStream, String);

impl Default for MemoryNet {
    /// The host 127.0.0.1 of a new network.
    fn default() -> Self {
        let network = Network { listeners: BTreeMap::new(), next_port: FREE_PORTS };
        Self { host: "127.0.0.1".to_owned(), network: Arc::new(Mutex::new(network)) }
    }
}

impl MemoryNet {
    /// The same network, seen from another address.
    #[must_use]
    pub fn host(&self, address: &str) -> Self {
        Self { host: address.to_owned(), network: Arc::clone(&self.network) }
    }

    fn lock(&self) -> MutexGuard<'_, Network> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Network {
    fn free_port(&mut self) -> u16 {
        loop {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(FREE_PORTS);
            let is_taken = self.listeners.iter().any(|(address, listener)| address.port() == port && !listener.is_closed());
            if !is_taken {
                return port;
            }
        }
    }
}

fn parse(address: &str) -> io::Result<SocketAddr> {
    address.parse().map_err(|_| io::Error::new(ErrorKind::InvalidInput, format!("{address} is not an IP address with a port")))
}

#[async_trait]
impl Net for MemoryNet {
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        let to = parse(address)?;
        let (listener, from) = {
            let mut network = self.lock();
            (network.listeners.get(&to).cloned(), format!("{}:{}", self.host, network.free_port()))
        };
        let refused = || io::Error::new(ErrorKind::ConnectionRefused, format!("no process listens on {address}"));
        let (ours, theirs) = tokio::io::duplex(BUFFER_BYTES);
        listener.ok_or_else(refused)?.send((Box::new(theirs), from)).await.map_err(|_| refused())?;
        Ok(Box::new(ours))
    }

    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listen>> {
        let mut address = parse(address)?;
        let (sender, arrivals) = mpsc::channel(BACKLOG_MAX);
        let mut network = self.lock();
        if address.port() == 0 {
            address.set_port(network.free_port());
        }
        if network.listeners.get(&address).is_some_and(|listener| !listener.is_closed()) {
            return Err(io::Error::new(ErrorKind::AddrInUse, format!("{address} is in use")));
        }
        network.listeners.insert(address, sender);
        Ok(Box::new(Listener { address, arrivals: AsyncMutex::new(arrivals) }))
    }
}

#[derive(Debug)]
struct Listener {
    address: SocketAddr,
    arrivals: AsyncMutex<mpsc::Receiver<Arrival>>,
}

#[async_trait]
impl Listen for Listener {
    async fn accept(&self) -> io::Result<(BoxStream, String)> {
        let arrival = self.arrivals.lock().await.recv().await;
        arrival.ok_or_else(|| io::Error::new(ErrorKind::BrokenPipe, "the network was dropped"))
    }

    fn local_address(&self) -> io::Result<String> {
        Ok(self.address.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test]
    async fn a_listener_is_reached_and_a_closed_one_is_not() {
        let net = MemoryNet::default();
        let listener = net.listen("127.0.0.1:0").await.unwrap();
        let address = listener.local_address().unwrap();
        assert_eq!(net.listen(&address).await.err().unwrap().kind(), ErrorKind::AddrInUse);
        let (mut ours, (mut theirs, from)) = tokio::try_join!(net.connect(&address), listener.accept()).unwrap();
        assert!(from.starts_with("127.0.0.1:") && from != address, "{from}");
        ours.write_all(b"weft").await.unwrap();
        drop(ours);
        let mut read = Vec::new();
        theirs.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, b"weft");
        assert!(theirs.write_all(b"too late").await.is_err());

        drop(listener);
        assert_eq!(net.connect(&address).await.err().unwrap().kind(), ErrorKind::ConnectionRefused);
        assert!(net.listen(&address).await.is_ok(), "its address is free again");
        assert_eq!(net.connect("nowhere").await.err().unwrap().kind(), ErrorKind::InvalidInput);
    }
}
