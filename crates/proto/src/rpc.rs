//! gRPC over [`Net`] and [`Security`]: one way to serve and one way to call, with the limits and keep-alives of every
//! channel.

pub use crate::calls::{Bounded, Services};
use crate::{
    calls::DELEGATION,
    connections::{CONTROL_PLANE, Connection, Connections},
    incoming::Incoming,
    net::{BoxStream, Listen, Net},
    security::{Peer, Security},
    v1::{
        agent_client::AgentClient,
        agent_server::{Agent, AgentServer},
        membership_client::MembershipClient,
        membership_server::{Membership, MembershipServer},
        weft_client::WeftClient,
        weft_server::{Weft, WeftServer},
    },
};
use hyper_util::rt::TokioIo;
use std::{
    future::Future,
    io,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{
    Request,
    transport::{Channel, Endpoint, Server},
};
use weft_types::{Error, Reaction, Result};

/// The largest message of the control plane, bytes.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// The most concurrent conversions of one agent, which leaves room for other tasks.
pub const CONVERSIONS_PER_AGENT_MAX: u32 = 4;
/// The deadline of EndStripe, within which blocks that nodes have lost are rebuilt.
pub const END_STRIPE_TIMEOUT: Duration = Duration::from_secs(600);
/// The interval of keep-alive pings, also on an idle connection: otherwise a black-holed one would never recover.
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// A connection is closed when a ping stays unanswered for this long.
pub const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long connecting may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long running calls may take after the server was stopped.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(3);

/// The caller: an extension of every request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The caller's identity from its certificate.
    pub peer: Peer,
    /// The caller's address.
    pub address: String,
}

/// The caller of a request.
pub fn caller<T>(request: &Request<T>) -> Caller {
    let known = request.extensions().get::<Connection>().map(|connection| connection.caller.clone());
    known.unwrap_or_else(|| Caller { peer: Peer::Anonymous, address: String::new() })
}

/// The number of the caller's delegation; `None` if it acts for itself. A value that is not a number counts as none.
pub fn delegation<T>(request: &Request<T>) -> Option<u64> {
    let header = request.metadata().get(DELEGATION)?;
    Some(header.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// Adds a delegation of the coordinator to a request.
pub fn delegated<T>(mut request: Request<T>, delegation: u64) -> Request<T> {
    request.metadata_mut().insert(DELEGATION, delegation.into());
    request
}

/// A request that must be answered within `deadline`; the server gets the deadline too.
pub fn with_deadline<T>(message: T, deadline: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(deadline);
    request
}

/// Serves until `shutdown`; then running calls have [`SHUTDOWN_GRACE`] to end.
pub async fn serve(
    services: Services,
    listener: Box<dyn Listen>,
    security: Security,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<()> {
    serve_until(services, listener, security, pin!(shutdown)).await
}

/// The server is compiled once, not once for each type of `shutdown`.
async fn serve_until(
    services: Services,
    listener: Box<dyn Listen>,
    security: Security,
    shutdown: Pin<&mut (dyn Future<Output = ()> + Send)>,
) -> Result<()> {
    let (is_insecure, connections) = (security.is_insecure(), Connections::new(CONTROL_PLANE));
    let incoming = ReceiverStream::new(Incoming::start(listener, security).into_receiver());
    let incoming = incoming.filter_map(move |accepted| connections.admit(accepted)).map(Ok::<_, io::Error>);
    let (stopping, stopped) = tokio::sync::oneshot::channel();
    let signal = async move {
        shutdown.await;
        let _late = stopping.send(());
    };
    let grace_over = async {
        match stopped.await {
            Ok(()) => tokio::time::sleep(SHUTDOWN_GRACE).await,
            Err(_) => std::future::pending().await,
        }
    };
    let server = Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .max_concurrent_streams(services.calls_per_connection_max());
    let service = tower::service_fn(move |request| services.answer(request, is_insecure));
    tokio::select! {
        biased;
        served = server.serve_with_incoming_shutdown(service, incoming, signal) =>
            served.map_err(|error| Error::fatal(format!("cannot serve the control plane: {}", innermost(&error)))),
        () = grace_over => Ok(()),
    }
}

/// A connected channel to `expected` at `address`; it reconnects automatically.
pub async fn connect(net: Arc<dyn Net>, security: &Security, address: &str, expected: &Peer) -> Result<Channel> {
    let endpoint = endpoint(address)?;
    if security.is_insecure() {
        probe(net.as_ref(), address, expected).await?;
    }
    connecting(endpoint, net, security, address, expected).await.map_err(|error| match find_error(&error) {
        Some(ours) => ours,
        None => Error::retry(format!("{expected} at {address}: {}", innermost(&error))),
    })
}

type Connecting = Pin<Box<dyn Future<Output = std::result::Result<Channel, tonic::transport::Error>> + Send>>;

/// Boxed, the transport is compiled here, as for [`connect_lazy`], and not again in the crates that call [`connect`].
fn connecting(endpoint: Endpoint, net: Arc<dyn Net>, security: &Security, address: &str, expected: &Peer) -> Connecting {
    let connector = connector(net, security, address, expected);
    Box::pin(async move { endpoint.connect_with_connector(connector).await })
}

/// Sends the HTTP/2 preface and waits for the first byte. If a TLS server answers, HTTP/2 itself would report only that
/// the stream was closed.
async fn probe(net: &dyn Net, address: &str, expected: &Peer) -> Result<()> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const EMPTY_SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    let mut stream = Security::Insecure.dial(net, address, expected).await?;
    let answer = async {
        stream.write_all(&[PREFACE, EMPTY_SETTINGS].concat()).await?;
        stream.read_u8().await
    };
    let failed = |error: String| Error::retry(format!("{expected} at {address}: {error}"));
    match tokio::time::timeout(CONNECT_TIMEOUT, answer).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
            Err(Error { reaction: Reaction::InvalidInput, ..failed(error.to_string()) })
        }
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed(format!("no answer within {CONNECT_TIMEOUT:?}"))),
    }
}

/// A channel to `expected` at `address` that connects on first use.
pub fn connect_lazy(net: Arc<dyn Net>, security: &Security, address: &str, expected: &Peer) -> Result<Channel> {
    Ok(endpoint(address)?.connect_with_connector_lazy(connector(net, security, address, expected)))
}

/// A client of the coordinator's service for clients.
pub fn weft_client(channel: Channel) -> WeftClient<Channel> {
    WeftClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// A client of an agent's service.
pub fn agent_client(channel: Channel) -> AgentClient<Channel> {
    AgentClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// A client of the coordinator's service for agents.
pub fn membership_client(channel: Channel) -> MembershipClient<Channel> {
    MembershipClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The coordinator's service for clients.
pub fn weft_server<S: Weft>(service: S) -> WeftServer<S> {
    WeftServer::new(service).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// An agent's service for the coordinator.
pub fn agent_server<S: Agent>(service: S) -> AgentServer<S> {
    AgentServer::new(service).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The coordinator's service for agents.
pub fn membership_server<S: Membership>(service: S) -> MembershipServer<S> {
    MembershipServer::new(service).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

fn endpoint(address: &str) -> Result<Endpoint> {
    // The connector does the TLS, if any: HTTP/2 sees a plain connection.
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|_| Error::invalid(format!("'{address}' is not a valid address: use host:port")))?;
    Ok(endpoint
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_timeout(CONNECT_TIMEOUT))
}

type Dialing = Pin<Box<dyn Future<Output = Result<TokioIo<BoxStream>>> + Send>>;

fn connector(
    net: Arc<dyn Net>,
    security: &Security,
    address: &str,
    expected: &Peer,
) -> impl tower::Service<http::Uri, Response = TokioIo<BoxStream>, Error = Error, Future = Dialing> + Send + 'static {
    let (security, address, expected) = (security.clone(), address.to_string(), expected.clone());
    tower::service_fn(move |_| {
        let (net, security, address, expected) = (net.clone(), security.clone(), address.clone(), expected.clone());
        let dialing: Dialing = Box::pin(async move { security.dial(net.as_ref(), &address, &expected).await.map(TokioIo::new) });
        dialing
    })
}

/// The weft error that another error wraps.
pub(crate) fn find_error(error: &(dyn std::error::Error + 'static)) -> Option<Error> {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(ours) = error.downcast_ref::<Error>() {
            return Some(ours.clone());
        }
        at = error.source();
    }
    None
}

/// The innermost cause: the outer errors say only that something failed.
pub(crate) fn innermost<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    let mut at = error;
    while let Some(source) = at.source() {
        at = source;
    }
    at
}
