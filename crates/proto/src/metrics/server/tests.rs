use super::*;
use crate::{MemoryNet, metrics::Family};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::Instant,
};

const FAMILIES: &[&[Family]] = &[&[Family::gauge("weft_answer", &[], "The answer.")]];

/// Takes so long to find out, and counts how many ask at the same time.
struct Source {
    takes: Duration,
    asking: AtomicUsize,
}

#[async_trait]
impl Scraped for Source {
    async fn figures(&self) -> Result<Figures> {
        assert_eq!(self.asking.fetch_add(1, Ordering::Relaxed), 0, "two scrapes at the same time");
        tokio::time::sleep(self.takes).await;
        self.asking.fetch_sub(1, Ordering::Relaxed);
        let mut figures = Figures::of(FAMILIES);
        figures.add("weft_answer", [], 42u64);
        Ok(figures)
    }
}

/// A network with a daemon, and its address.
async fn daemon(takes: Duration) -> (MemoryNet, String) {
    let net = MemoryNet::default();
    let server = Server::listen(&net, ANY_PORT).await.unwrap().unwrap();
    let address = server.address().to_owned();
    let source = Source { takes, asking: AtomicUsize::new(0) };
    tokio::spawn(server.serve(Arc::new(source), std::future::pending()));
    (net, address)
}

/// All that is answered to these bytes until the connection ends.
async fn told(net: &MemoryNet, address: &str, request: &str) -> String {
    let mut stream = net.connect(address).await.unwrap();
    // It may be cut off before it has sent everything.
    let _cut_off = stream.write_all(request.as_bytes()).await;
    let mut answer = String::new();
    let _cut_off = stream.read_to_string(&mut answer).await;
    answer
}

#[tokio::test(start_paused = true)]
async fn only_get_metrics_is_answered() {
    let (net, address) = daemon(Duration::ZERO).await;
    let answer = told(&net, &address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("content-type: application/openmetrics-text"),
        "{answer}"
    );
    assert!(
        answer.ends_with("\r\n\r\n# HELP weft_answer The answer.\n# TYPE weft_answer gauge\nweft_answer 42\n# EOF\n"),
        "{answer}"
    );
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
        ("GET /metrics/../etc HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "405"),
        ("nonsense\r\n\r\n", "400"),
    ] {
        let answer = told(&net, &address, request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && !answer.contains("weft_answer"), "{request}: {answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_are_bounded_in_size_number_and_time() {
    let (net, address) = daemon(Duration::ZERO).await;
    let many: String = (0..40).map(|number| format!("X-{number}: y\r\n")).collect();
    for headers in [format!("X: {}\r\n", "y".repeat(HEADER_BYTES_MAX)), many] {
        let answer = told(&net, &address, &format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{headers}\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
    // Silent callers take all places for a short time.
    let begin = Instant::now();
    let mut silent = Vec::new();
    for _ in 0..2 * CONNECTIONS_MAX {
        silent.push(net.connect(&address).await.unwrap());
    }
    let answer = told(&net, &address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(answer.contains("weft_answer 42"), "{answer}");
    let waited = begin.elapsed();
    assert!(waited >= 2 * REQUEST_TIME_MAX && waited < 3 * REQUEST_TIME_MAX, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn one_scrape_at_a_time_and_a_late_one_fails() {
    let (net, address) = daemon(Duration::from_secs(1)).await;
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    let all = asked_together(&net, &address, request, 3).await;
    assert!(all.iter().all(|answer| answer.contains("weft_answer 42")), "{all:?}");

    let (net, address) = daemon(Duration::from_secs(60)).await;
    let answer = told(&net, &address, request).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("not known within 5s"), "{answer}");
}

async fn asked_together(net: &MemoryNet, address: &str, request: &'static str, times: usize) -> Vec<String> {
    let mut asking = JoinSet::new();
    for _ in 0..times {
        let (net, address) = (net.clone(), address.to_owned());
        asking.spawn(async move { told(&net, &address, request).await });
    }
    asking.join_all().await
}

#[tokio::test]
async fn the_setting_is_an_address_or_off() {
    let net = MemoryNet::default();
    assert!(Server::listen(&net, OFF).await.unwrap().is_none());
    for wrong in ["", "on", "127.0.0.1", ":9100", "127.0.0.1:many"] {
        let error = Server::listen(&net, wrong).await.err().unwrap();
        assert!(error.message.contains("use host:port"), "{error}");
    }
    let taken = Server::listen(&net, "127.0.0.1:9100").await.unwrap();
    let error = Server::listen(&net, "127.0.0.1:9100").await.err().unwrap();
    assert!(error.message.contains("cannot listen for metrics on 127.0.0.1:9100"), "{error}");
    drop(taken);
}
