//! Who may talk: mutually authenticated TLS over any network, or nothing at all where an operator said so by name.
//!
//! The two ends prove who they are by certificates of the cluster's own authority; the one who dials also says whom it
//! expects. A wrong end (another cluster, another agent, one without TLS) gives an error that says which it is.

use crate::{
    certs::CertificateFiles,
    der,
    net::{BoxStream, Net},
};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
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
    /// Plain text, and everybody is [`Peer::Anonymous`].
    Insecure,
}

/// What a process proves itself with, and what it accepts as proof.
pub struct Tls {
    client: TlsConnector,
    server: TlsAcceptor,
}

/// Who is at the other end of a connection, as its certificate says.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// The coordinator.
    Coordinator,
    /// The agent of this name.
    Agent(String),
    /// A client.
    Client,
    /// Somebody, over a connection that is not secured.
    Anonymous,
}

/// A TLS handshake that is not done after this long has failed, for the one who dials: its connection may have waited to be accepted.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// … and for the one who accepts, which holds a place for it.
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

    /// Whether the connection is either with the coordinator or not secured at all.
    pub fn may_coordinate(&self) -> bool {
        matches!(self, Self::Coordinator | Self::Anonymous)
    }

    /// Whether the connection is either with the agent `name` or not secured at all.
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
            Self::Anonymous => f.write_str("somebody unknown"),
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
        let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unusable(&files.key, error))?;

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

    /// Connects to `address`, where `expected` must answer.
    pub async fn dial(&self, net: &dyn Net, address: &str, expected: &Peer) -> Result<BoxStream> {
        let place = |message: String| Error::replan(format!("{expected} at {address}: {message}"));
        let stream = net.connect(address).await.map_err(|error| place(format!("cannot connect: {error}")))?;
        let Self::Tls(tls) = self else { return Ok(Box::new(PlainStream::new(stream))) };

        let name = expected.dns_name().ok_or_else(|| Error::fatal("a TLS connection is with somebody"))?;
        let name =
            ServerName::try_from(name).map_err(|_| Error::invalid(format!("'{expected}' has a name that no certificate has")))?;
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.client.connect(name, stream)).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            Ok(Err(error)) => {
                let (reaction, message) = explain_handshake(&error);
                Err(Error { reaction, ..place(message) })
            }
            Err(_) => Err(place(format!("no TLS handshake within {HANDSHAKE_TIMEOUT:?}"))),
        }
    }

    /// Takes a connection that was accepted: who is it?
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

/// The fast cipher first: both ends are ours, and 128 bits are enough.
fn provider() -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites = vec![
        aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
        aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
        aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    provider
}

/// Connections are pooled, so that resumption would save little; without it each connection's proof is its own.
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
        return Err(unusable(path, "there is no certificate in it"));
    }
    Ok(certificates)
}

/// Refuses a private key that others than its owner may read: they would be whoever it says.
pub(crate) fn require_private(key: &Path) -> Result<()> {
    let mode = std::fs::metadata(key).map_err(|error| unusable(key, error))?.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let key = key.display();
    Err(Error::invalid(format!(
        "cannot use {key}: others than its owner can read this private key (mode {mode:03o}): chmod 600 {key}"
    )))
}

fn unusable(path: &Path, error: impl fmt::Display) -> Error {
    Error::invalid(format!("cannot use {}: {error}", path.display()))
}

fn cannot_set_up(error: impl fmt::Display) -> Error {
    Error::fatal(format!("cannot set up TLS: {error}"))
}

fn peer_of(certificates: Option<&[CertificateDer<'_>]>) -> Result<Peer> {
    let certificate = certificates.and_then(<[_]>::first).ok_or_else(|| Error::invalid("the peer showed no certificate"))?;
    let names = der::dns_names(certificate);
    let [name] = names.as_slice() else {
        return Err(Error::invalid(format!("the peer's certificate has {} names: one is needed", names.len())));
    };
    let peer = Peer::from_dns_name(name)
        .ok_or_else(|| Error::invalid(format!("the peer's certificate is for {name}: no coordinator, agent or client")))?;
    // The verifier's own parser must agree with ours about the name.
    let parsed = rustls::server::ParsedCertificate::try_from(certificate).map_err(cannot_set_up)?;
    let server_name = ServerName::try_from(name.as_str()).map_err(cannot_set_up)?;
    rustls::client::verify_server_name(&parsed, &server_name)
        .map_err(|_| Error::invalid(format!("the peer's certificate is not for {name}")))?;
    Ok(peer)
}

/// What a failed handshake means for an operator, and whether trying again can help.
fn explain_handshake(error: &io::Error) -> (Reaction, String) {
    use rustls::Error as Tls;
    let invalid = |message: &str| (Reaction::InvalidInput, message.to_string());
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Tls>()) {
        Some(Tls::InvalidMessage(_)) => {
            invalid("it does not speak TLS, which this side requires: was it started with --insecure?")
        }
        Some(Tls::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            invalid("its certificate is not of this cluster's authority: it belongs to another cluster")
        }
        Some(Tls::InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. })) => {
            (Reaction::InvalidInput, format!("its certificate is somebody else's: {error}"))
        }
        Some(Tls::AlertReceived(
            AlertDescription::UnknownCA | AlertDescription::DecryptError | AlertDescription::BadCertificate,
        )) => invalid("it refuses this side's certificate: it belongs to another cluster"),
        Some(Tls::AlertReceived(AlertDescription::CertificateRequired) | Tls::NoCertificatesPresented) => {
            invalid("a certificate was asked for, and none was shown")
        }
        Some(other) => (Reaction::InvalidInput, format!("the TLS handshake failed: {other}")),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            (Reaction::Replan, "it closed the connection during the TLS handshake: is it without TLS, or gone?".into())
        }
        None => (Reaction::Replan, format!("the connection broke during the TLS handshake: {error}")),
    }
}

/// Plain text that recognises a peer who speaks TLS by its first byte, so that the mistake is named and not a riddle.
struct PlainStream {
    inner: BoxStream,
    seen_first_byte: bool,
}

impl PlainStream {
    fn new(inner: BoxStream) -> Self {
        Self { inner, seen_first_byte: false }
    }
}

/// The types of the two TLS records that can come first: an alert, or a handshake. Nothing of ours begins with either.
const TLS_FIRST_BYTES: [u8; 2] = [0x15, 0x16];

fn speaks_tls() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the peer speaks TLS, and this side was told to be --insecure")
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
