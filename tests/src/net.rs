//! The simulated network.

use crate::Trace;
use async_trait::async_trait;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turmoil::{
    Sim,
    net::{TcpListener, TcpStream},
};
use weft_proto::{BoxStream, Listen, Net};

/// The network between all hosts. Clones are the same network.
#[derive(Clone, Default)]
pub struct Network {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    cut: BTreeSet<(String, String)>,
    held: BTreeSet<(String, String)>,
    /// From the first host to the second, nothing passes.
    one_way: BTreeSet<(String, String)>,
    /// Open connections, oldest first.
    open: BTreeMap<u64, Open>,
    next: u64,
    /// The host that is being crashed.
    dying: Option<String>,
}

struct Open {
    host: String,
    stream: Slot,
}

/// Emptied when the connection's host crashes.
type Slot = Arc<Mutex<Option<TcpStream>>>;

/// The network as one host sees it.
#[derive(Clone)]
pub struct SimNet {
    host: String,
    network: Network,
    trace: Trace,
}

/// How long connecting may take, as in the real network.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

impl Network {
    /// The network as `host` sees it.
    pub fn of(&self, host: &str, trace: &Trace) -> SimNet {
        SimNet { host: host.to_string(), network: self.clone(), trace: trace.clone() }
    }

    /// Cuts the network between two hosts. Data in transit is lost, so that open connections stay dead even after the
    /// network is repaired.
    pub fn cut(&self, sim: &Sim<'_>, one: &str, other: &str) {
        sim.partition(one, other);
        self.lock().cut.insert(pair(one, other));
    }

    /// Holds all traffic between two hosts; [`Network::heal`] delivers it.
    pub fn hold(&self, sim: &Sim<'_>, one: &str, other: &str) {
        sim.hold(one, other);
        self.lock().held.insert(pair(one, other));
    }

    /// Cuts the network in one direction.
    pub fn cut_one_way(&self, sim: &Sim<'_>, from: &str, to: &str) {
        sim.partition_oneway(from, to);
        self.lock().one_way.insert((from.to_owned(), to.to_owned()));
    }

    /// Repairs the network between two hosts.
    pub fn heal(&self, sim: &Sim<'_>, one: &str, other: &str) {
        sim.release(one, other);
        let mut state = self.lock();
        state.one_way.remove(&(one.to_owned(), other.to_owned()));
        state.one_way.remove(&(other.to_owned(), one.to_owned()));
        state.cut.remove(&pair(one, other));
        state.held.remove(&pair(one, other));
    }

    fn is_cut(&self, one: &str, other: &str) -> bool {
        let state = self.lock();
        state.cut.contains(&pair(one, other)) || state.one_way.contains(&(one.to_owned(), other.to_owned()))
    }

    /// Kills everything that runs on a host; its connections end. [`Sim::bounce`] starts it again.
    ///
    /// The order in which the runtime drops tasks depends on the number of tasks ever spawned by the process. To make
    /// the seed determine the order, the first connection that is dropped drops all others too, oldest first.
    pub fn crash(&self, sim: &mut Sim<'_>, host: &str, trace: &Trace) {
        self.lock().dying = Some(host.to_string());
        trace.muted(|| sim.crash(host));
        self.lock().dying = None;
    }

    /// Runs `deed` while nothing that a host sends reaches the others.
    pub fn silently<'a>(&self, sim: &mut Sim<'a>, host: &str, others: &[&str], deed: impl FnOnce(&mut Sim<'a>)) {
        let whole = |other: &&&str| {
            let (state, pair) = (self.lock(), pair(host, other));
            let is_one_way = state.one_way.iter().any(|(from, to)| self::pair(from, to) == pair);
            !state.cut.contains(&pair) && !state.held.contains(&pair) && !is_one_way
        };
        let others: Vec<&str> = others.iter().filter(whole).copied().collect();
        others.iter().for_each(|other| sim.partition(host, *other));
        deed(sim);
        others.iter().for_each(|other| sim.repair(host, *other));
    }

    fn opened(&self, host: &str, stream: TcpStream) -> (u64, Slot) {
        let stream = Arc::new(Mutex::new(Some(stream)));
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.open.insert(number, Open { host: host.to_string(), stream: Arc::clone(&stream) });
        (number, stream)
    }

    fn closed(&self, number: u64, host: &str) {
        let mut state = self.lock();
        if state.dying.as_deref() == Some(host) {
            for open in state.open.values().filter(|open| open.host == host) {
                drop(lock(&open.stream).take());
            }
        }
        state.open.remove(&number);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// A poisoned lock is safe to use: each change is one assignment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pair(one: &str, other: &str) -> (String, String) {
    let (one, other) = (one.to_string(), other.to_string());
    if one <= other { (one, other) } else { (other, one) }
}

impl SimNet {
    async fn dial(&self, address: &str) -> io::Result<TcpStream> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidInput, format!("'{address}' is not a valid address: use host:port"));
        let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        let port: u16 = port.parse().map_err(|_| wrong())?;
        if self.network.is_cut(&self.host, host) {
            // The simulation would refuse at once; a network that drops everything does not.
            std::future::pending::<()>().await;
        }
        TcpStream::connect((host, port)).await
    }
}

#[async_trait]
impl Net for SimNet {
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {CONNECT_TIMEOUT:?}"));
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, self.dial(address)).await.map_err(timed_out).flatten();
        match connected {
            Ok(stream) => {
                let name = format!("{} -> {address}", stream.local_addr()?.port());
                Ok(Box::new(Watched::new(stream, name, self)))
            }
            Err(error) => {
                self.trace.event(&self.host, format_args!("no connection to {address}: {error}"));
                Err(error)
            }
        }
    }

    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listen>> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidInput, format!("'{address}' is not a valid address: use host:port"));
        let port: u16 = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).ok_or_else(wrong)?;
        let listener = TcpListener::bind(("0.0.0.0", port)).await?;
        let address = format!("{}:{}", self.host, listener.local_addr()?.port());
        self.trace.event(&self.host, format_args!("listens on {address}"));
        Ok(Box::new(SimListener { listener, address, net: self.clone() }))
    }
}

struct SimListener {
    listener: TcpListener,
    address: String,
    net: SimNet,
}

#[async_trait]
impl Listen for SimListener {
    async fn accept(&self) -> io::Result<(BoxStream, String)> {
        let (stream, peer) = self.listener.accept().await?;
        let host = turmoil::reverse_lookup(peer.ip()).unwrap_or_else(|| peer.ip().to_string());
        let peer = format!("{host}:{}", peer.port());
        let name = format!("{} <- {peer}", self.address);
        Ok((Box::new(Watched::new(stream, name, &self.net)), peer))
    }

    fn local_address(&self) -> io::Result<String> {
        Ok(self.address.clone())
    }
}

/// A connection that records every write, end and failure in the trace, but not the length of writes: HTTP/2 compresses
/// headers, including the machine's date, to lengths that vary from day to day.
struct Watched {
    number: u64,
    stream: Slot,
    name: String,
    net: SimNet,
}

impl Watched {
    fn new(stream: TcpStream, name: String, net: &SimNet) -> Self {
        net.trace.event(&net.host, format_args!("{name} open"));
        let (number, stream) = net.network.opened(&net.host, stream);
        Self { number, stream, name, net: net.clone() }
    }

    fn poll<T>(&self, poll: impl FnOnce(Pin<&mut TcpStream>) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match lock(&self.stream).as_mut() {
            Some(stream) => poll(Pin::new(stream)),
            None => Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
        }
    }

    fn note<T>(&self, what: &str, polled: &Poll<io::Result<T>>) {
        match polled {
            Poll::Ready(Ok(_)) => self.net.trace.event(&self.net.host, format_args!("{} {what}", self.name)),
            Poll::Ready(Err(error)) => self.net.trace.event(&self.net.host, format_args!("{} {what}: {error}", self.name)),
            Poll::Pending => {}
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = self.poll(|stream| stream.poll_read(cx, buf));
        if polled.is_ready() && buf.filled().len() == before {
            self.note("end", &polled);
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = self.poll(|stream| stream.poll_write(cx, buf));
        self.note("write", &polled);
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.poll(|stream| stream.poll_shutdown(cx));
        self.note("shutdown", &polled);
        polled
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.net.network.closed(self.number, &self.net.host);
    }
}
