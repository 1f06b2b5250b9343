//! Authentication: mutual TLS over any network, or none if an operator has chosen so explicitly.
//!
//! Both ends prove their identity by certificates of the cluster's own authority; the dialling end also states which
//! peer it expects. A wrong peer (another cluster, another agent, one without TLS) gives an error that names the
//! difference.

use crate::{
    certs::CertificateFiles,
    der,
    net::{BoxStream, Net},
};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName,
        pem::{self, PemObject},
    },
    server::WebPkiClientVerifier,
};
use std::{
    fmt, io,
    os::unix::fs::PermissionsExt,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use weft_types::{Error, Reaction, Result};

/// How connections are secured. Cheap to clone.
#[derive(Clone)]
pub enum Security {
    /// Mutually authenticated TLS 1.3.
    Tls(Arc<Tls>),
    /// Plain text; every peer is [`Peer::Anonymous`].
    Insecure,
}

/// A process's own certificate, and the authority that it trusts.
pub struct Tls {
    client: TlsConnector,
    server: TlsAcceptor,
}

/// The identity of the other end of a connection, from its certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// The coordinator.
    Coordinator,
    /// The agent of this name.
    Agent(String),
    /// A client.
    Client,
    /// Unknown: the connection is not secured.
    Anonymous,
}

/// How long a TLS handshake may take.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may take at the accepting end, where it occupies one of a limited number of places.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(2);

const AGENT_SUFFIX: &str = ".agent.weft";

impl Peer {
    /// The DNS name in the peer's certificate.
    pub fn dns_name(&self) -> Option<String> {
        match self {
            Self::Coordinator => Some("coordinator.weft".into()),
            Self::Agent(name) => Some(format!("{name}{AGENT_SUFFIX}")),
            Self::Client => Some("client.weft".into()),
            Self::Anonymous => None,
        }
    }

    /// Whether the peer is the coordinator, or the connection is not secured.
    pub fn may_coordinate(&self) -> bool {
        matches!(self, Self::Coordinator | Self::Anonymous)
    }

    /// Whether the peer is the agent `name`, or the connection is not secured.
    pub fn may_be_agent(&self, name: &str) -> bool {
        match self {
            Self::Agent(proved) => proved == name,
            other => *other == Self::Anonymous,
        }
    }

    fn from_dns_name(name: &str) -> Option<Self> {
        match name {
            "coordinator.weft" => Some(Self::Coordinator),
            "client.weft" => Some(Self::Client),
            other => other.strip_suffix(AGENT_SUFFIX).map(|agent| Self::Agent(agent.to_string())),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator => f.write_str("the coordinator"),
            Self::Agent(name) => write!(f, "agent {name}"),
            Self::Client => f.write_str("a client"),
            Self::Anonymous => f.write_str("an unauthenticated peer"),
        }
    }
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_insecure() { "Insecure" } else { "Tls" })
    }
}

impl Security {
    /// TLS with the certificate, key and authority in `files`.
    pub fn load(files: &CertificateFiles) -> Result<Self> {
        let provider = Arc::new(provider());
        let mut roots = RootCertStore::empty();
        for certificate in read_certificates(&files.authority)? {
            roots.add(certificate).map_err(|error| unusable(&files.authority, error))?;
        }
        let roots = Arc::new(roots);
        let chain = read_certificates(&files.certificate)?;
        require_private(&files.key)?;
        let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| match error {
            pem::Error::NoItemsFound => unusable(&files.key, "it contains no private key"),
            error => unusable(&files.key, error),
        })?;

        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(cannot_set_up)?
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(|error| unusable(&files.certificate, error))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build().map_err(cannot_set_up)?;
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(cannot_set_up)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| unusable(&files.certificate, error))?;
        Ok(Self::Tls(Arc::new(Tls { client: without_resumption(client), server: without_tickets(server) })))
    }

    /// Whether it is [`Security::Insecure`].
    pub fn is_insecure(&self) -> bool {
        matches!(self, Self::Insecure)
    }

    /// Connects to `address` and checks that the peer is `expected`.
    pub async fn dial(&self, net: &dyn Net, address: &str, expected: &Peer) -> Result<BoxStream> {
        let place = |message: String| Error::replan(format!("{expected} at {address}: {message}"));
        let stream = net.connect(address).await.map_err(|error| place(format!("cannot connect: {}", plain(&error))))?;
        let Self::Tls(tls) = self else { return Ok(Box::new(PlainStream::new(stream))) };

        let name = expected.dns_name().ok_or_else(|| Error::fatal("a TLS connection needs a named peer"))?;
        let name = ServerName::try_from(name)
            .map_err(|_| Error::invalid(format!("the name of '{expected}' is not valid in a certificate")))?;
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.client.connect(name, stream)).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            Ok(Err(error)) => {
                let (reaction, message) = explain_handshake(&error);
                Err(Error { reaction, ..place(message) })
            }
            Err(_) => Err(place(format!("no TLS handshake within {HANDSHAKE_TIMEOUT:?}"))),
        }
    }

    /// Secures an accepted connection and identifies its peer.
    pub async fn accept(&self, stream: BoxStream) -> Result<(BoxStream, Peer)> {
        let Self::Tls(tls) = self else { return Ok((Box::new(PlainStream::new(stream)), Peer::Anonymous)) };
        match tokio::time::timeout(ACCEPT_TIMEOUT, tls.server.accept(stream)).await {
            Ok(Ok(stream)) => {
                let peer = peer_of(stream.get_ref().1.peer_certificates())?;
                Ok((Box::new(stream), peer))
            }
            Ok(Err(error)) => {
                let (reaction, message) = explain_handshake(&error);
                Err(Error::new(reaction, message))
            }
            Err(_) => Err(Error::invalid(format!("no TLS handshake within {ACCEPT_TIMEOUT:?}"))),
        }
    }
}

/// The operating system's message without its number.
fn plain(error: &std::io::Error) -> String {
    error.to_string().split(" (os error").next().unwrap_or_default().to_owned()
}

/// Prefers the fastest cipher: both ends are weft, and 128 bits suffice.
fn provider() -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites = vec![
        aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
        aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
        aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    provider
}

/// Connections are pooled, so resumption would save little. Without it, every connection proves its identity.
fn without_resumption(mut config: ClientConfig) -> TlsConnector {
    config.resumption = rustls::client::Resumption::disabled();
    TlsConnector::from(Arc::new(config))
}

fn without_tickets(mut config: ServerConfig) -> TlsAcceptor {
    config.send_tls13_tickets = 0;
    TlsAcceptor::from(Arc::new(config))
}

pub(crate) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates = certificates.map_err(|error| unusable(path, error))?;
    if certificates.is_empty() {
        return Err(unusable(path, "it contains no certificate"));
    }
    Ok(certificates)
}

/// Refuses a private key that other users may read: they could use its identity.
pub(crate) fn require_private(key: &Path) -> Result<()> {
    let mode = std::fs::metadata(key).map_err(|error| unusable(key, error))?.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let key = key.display();
    Err(Error::invalid(format!(
        "cannot use {key}: users other than its owner can read this private key (mode {mode:03o}): chmod 600 {key}"
    )))
}

fn unusable(path: &Path, error: impl fmt::Display) -> Error {
    if !path.exists() {
        return Error::not_found(format!("cannot use {}: there is no such file", path.display()));
    }
    Error::invalid(format!("cannot use {}: {error}", path.display()))
}

fn cannot_set_up(error: impl fmt::Display) -> Error {
    Error::fatal(format!("cannot set up TLS: {error}"))
}

fn peer_of(certificates: Option<&[CertificateDer<'_>]>) -> Result<Peer> {
    let certificate = certificates.and_then(<[_]>::first).ok_or_else(|| Error::invalid("the peer sent no certificate"))?;
    let names = der::dns_names(certificate);
    let [name] = names.as_slice() else {
        return Err(Error::invalid(format!("the peer's certificate has {} names instead of one", names.len())));
    };
    let peer = Peer::from_dns_name(name).ok_or_else(|| {
        Error::invalid(format!("the peer's certificate is for {name}, which is neither a coordinator nor an agent nor a client"))
    })?;
    // rustls's parser must agree with ours about the name.
    let parsed = rustls::server::ParsedCertificate::try_from(certificate).map_err(cannot_set_up)?;
    let server_name = ServerName::try_from(name.as_str()).map_err(cannot_set_up)?;
    rustls::client::verify_server_name(&parsed, &server_name)
        .map_err(|_| Error::invalid(format!("the peer's certificate is not for {name}")))?;
    Ok(peer)
}

/// Explains a failed handshake to an operator, and whether a retry can help.
fn explain_handshake(error: &io::Error) -> (Reaction, String) {
    use rustls::Error as Tls;
    let invalid = |message: &str| (Reaction::InvalidInput, message.to_string());
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Tls>()) {
        Some(Tls::InvalidMessage(_)) => {
            invalid("it does not speak TLS, which this side requires: was it started with --insecure?")
        }
        Some(Tls::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            invalid("its certificate is not from this cluster's authority: it belongs to another cluster")
        }
        Some(Tls::InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. })) => {
            (Reaction::InvalidInput, format!("its certificate belongs to another peer: {error}"))
        }
        Some(Tls::AlertReceived(
            AlertDescription::UnknownCA | AlertDescription::DecryptError | AlertDescription::BadCertificate,
        )) => invalid("it refuses this side's certificate: it belongs to another cluster"),
        Some(Tls::AlertReceived(AlertDescription::CertificateRequired) | Tls::NoCertificatesPresented) => {
            invalid("the peer sent no certificate, but one is required")
        }
        Some(other) => (Reaction::InvalidInput, format!("the TLS handshake failed: {other}")),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            (Reaction::Replan, "it closed the connection during the TLS handshake: is it down, or running without TLS?".into())
        }
        None => (Reaction::Replan, format!("the connection broke during the TLS handshake: {error}")),
    }
}

/// Plain text that recognises a TLS peer by its first byte, so that the error can name the mistake.
struct PlainStream {
    inner: BoxStream,
    seen_first_byte: bool,
}

impl PlainStream {
    fn new(inner: BoxStream) -> Self {
        Self { inner, seen_first_byte: false }
    }
}

/// The types of the two TLS records that can come first: alert and handshake. No plain-text message of weft starts with
/// them.
const TLS_FIRST_BYTES: [u8; 2] = [0x15, 0x16];

fn speaks_tls() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the peer speaks TLS, but this side runs with --insecure")
}

impl AsyncRead for PlainStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        if !self.seen_first_byte
            && let Poll::Ready(Ok(())) = polled
            && let Some(first) = buf.filled().get(before)
        {
            if TLS_FIRST_BYTES.contains(first) {
                return Poll::Ready(Err(speaks_tls()));
            }
            self.seen_first_byte = true;
        }
        polled
    }
}

impl AsyncWrite for PlainStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
