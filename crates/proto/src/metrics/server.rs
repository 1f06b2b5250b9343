//! Serves metrics over plain HTTP. There is no authentication: the default address is reachable from the same machine only.
//!
//! A connection carries one request and lives for a bounded time, so a scraper can hold nothing for long.

use super::families::Figures;
use crate::net::{BoxStream, Listen, Net, host};
use async_trait::async_trait;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{convert::Infallible, net::IpAddr, sync::Arc, time::Duration};
use tokio::{
    sync::{Mutex, Semaphore},
    task::JoinSet,
    time::timeout,
};
use weft_types::{Error, Result};

/// The address that stands for no metrics.
pub const OFF: &str = "off";
/// The default: any free port of the loopback address, so that any number of daemons can run on one machine.
pub const ANY_PORT: &str = "127.0.0.1:0";

const PATH: &str = "/metrics";
/// Connections at the same time. Further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 16;
/// How long a connection may last, from its start to the end of the answer.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a client may take to send its request. One that connects and sends nothing must not keep others waiting for long.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(1);
/// How long the figures may take: a disk may hang.
const SCRAPE_TIME_MAX: Duration = Duration::from_secs(5);
/// The longest request line with its headers, bytes; the least that hyper allows.
const HEADER_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 32;
/// The delay before the next accept after one failed, for example because file descriptors ran out.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A daemon whose figures can be read.
#[async_trait]
pub trait Scraped: Send + Sync + 'static {
    /// The figures now.
    async fn figures(&self) -> Result<Figures>;
}

/// A listener for scrapes.
pub struct Server {
    listener: Box<dyn Listen>,
    address: String,
}

/// Refuses a setting that is neither `off` nor `host:port`.
pub fn check_address(setting: &str) -> Result<()> {
    let port = setting.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    if setting == OFF || matches!(port, Some(Ok(_))) {
        return Ok(());
    }
    Err(Error::invalid(format!("metrics is '{setting}': use host:port, for example {ANY_PORT} for any free port, or {OFF}")))
}

impl Server {
    /// Listens on `setting`; `None` if it is [`OFF`].
    pub async fn listen(net: &dyn Net, setting: &str) -> Result<Option<Self>> {
        check_address(setting)?;
        if setting == OFF {
            return Ok(None);
        }
        let failed = |error| Error::invalid(format!("cannot listen for metrics on {setting}: {error}"));
        let listener = net.listen(setting).await.map_err(failed)?;
        let address = listener.local_address().map_err(failed)?;
        if host(&address).parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()) {
            tracing::info!(%address, "serving metrics");
        } else {
            tracing::warn!(%address, "serving metrics without authentication: any client that can connect to this address can read them");
        }
        Ok(Some(Self { listener, address }))
    }

    /// Its address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Serves until `stopped`.
    pub async fn serve(self, source: Arc<dyn Scraped>, stopped: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = stopped => {}
            () = self.accept_all(source) => {}
        }
    }

    async fn accept_all(self, source: Arc<dyn Scraped>) {
        let (room, one_at_a_time) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), Arc::new(Mutex::new(())));
        let mut connections = JoinSet::new();
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
            while connections.try_join_next().is_some() {}
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let (source, turn) = (Arc::clone(&source), Arc::clone(&one_at_a_time));
                    connections.spawn(async move {
                        // A client that is slow is cut off.
                        let _ended = timeout(CONNECTION_TIME_MAX, answer_one(stream, source, turn)).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection for metrics");
                    tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                }
            }
        }
    }
}

async fn answer_one(stream: BoxStream, source: Arc<dyn Scraped>, turn: Arc<Mutex<()>>) {
    let service = service_fn(|request: Request<Incoming>| {
        let (source, turn) = (Arc::clone(&source), Arc::clone(&turn));
        async move { Ok::<_, Infallible>(answer(&request, source.as_ref(), &turn).await) }
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(HEADER_BYTES_MAX).max_headers(HEADERS_MAX);
    http.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIME_MAX);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a scrape ended early");
    }
}

async fn answer(request: &Request<Incoming>, source: &dyn Scraped, turn: &Mutex<()>) -> Response<String> {
    if request.uri().path() != PATH {
        return plain(StatusCode::NOT_FOUND, format!("there is only {PATH} here\n"));
    }
    if request.method() != Method::GET {
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "use GET\n".to_owned());
        refused.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET"));
        return refused;
    }
    let scrape = async {
        // However many ask, the daemon does this work once at a time.
        let _turn = turn.lock().await;
        source.figures().await?.text()
    };
    let late = |_| Err(Error::retry(format!("the figures were not known within {SCRAPE_TIME_MAX:?}")));
    match timeout(SCRAPE_TIME_MAX, scrape).await.unwrap_or_else(late) {
        Ok(text) => typed(StatusCode::OK, text, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        Err(error) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

fn plain(status: StatusCode, text: String) -> Response<String> {
    typed(status, text, "text/plain; charset=utf-8")
}

fn typed(status: StatusCode, text: String, kind: &'static str) -> Response<String> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests;
