//! Pooled connections: reused if they ended cleanly, and never an obstacle when they are dead.

use super::{Cluster, agent, hello, listen, net};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use weft_proto::{FrameStream, Incoming, LinkReceiver, LinkSender, Peer, Pool, PoolLimits, Security};
use weft_types::{Error, Span};

const STALL: Duration = Duration::from_secs(10);
const SLICE: Span = Span { start: 0, end: 5 };

/// Accepts connections, receives up to `links_per_connection` links on each, and counts the connections.
async fn receive_all(mut incoming: Incoming, connections: Arc<AtomicUsize>, links_per_connection_max: usize) {
    while let Some(accepted) = incoming.next().await {
        connections.fetch_add(1, SeqCst);
        tokio::spawn(async move {
            let mut frames = FrameStream::new(accepted.stream);
            for _ in 0..links_per_connection_max {
                let Ok(hello) = frames.read_hello().await else { return };
                if hello.link == 404 {
                    return frames.refuse_hello(hello.link, &Error::not_found("no such link")).await.unwrap();
                }
                frames.accept_hello(&hello).await.unwrap();
                let mut receiver = LinkReceiver::new(frames, hello.link, 1, STALL);
                assert_eq!(receiver.receive(SLICE).await.unwrap(), "slice");
                receiver.end().await.unwrap();
                frames = receiver.into_frames().unwrap();
            }
        });
    }
}

async fn send(pool: &Pool, address: &str, peer: &Peer, link: u32) -> weft_types::Result<()> {
    let frames = pool.open(address, peer, &hello(link)).await?;
    let mut sender = LinkSender::new(frames, link, 1, STALL);
    sender.send(SLICE, b"slice").await?;
    sender.end().await?;
    pool.put_back(address, peer, sender.into_frames().unwrap());
    Ok(())
}

async fn start(security: Security, links_per_connection_max: usize) -> (String, Arc<AtomicUsize>) {
    let (address, incoming) = listen(security).await;
    let connections = Arc::new(AtomicUsize::new(0));
    tokio::spawn(receive_all(incoming, connections.clone(), links_per_connection_max));
    (address, connections)
}

#[tokio::test]
async fn a_connection_is_reused() {
    let cluster = Cluster::new(1);
    for secured in [false, true] {
        let security = |peer: &Peer| if secured { cluster.security(peer) } else { Security::Insecure };
        let (address, connections) = start(security(&agent("a")), usize::MAX).await;
        let pool = Pool::new(net(), security(&Peer::Client), PoolLimits::default());
        for link in 0..5 {
            send(&pool, &address, &agent("a"), link).await.unwrap();
        }
        assert_eq!((connections.load(SeqCst), pool.idle_count()), (1, 1));
    }
}

#[tokio::test]
async fn a_pooled_connection_that_was_closed_causes_no_failure() {
    let cluster = Cluster::new(1);
    for secured in [false, true] {
        let security = |peer: &Peer| if secured { cluster.security(peer) } else { Security::Insecure };
        let (address, connections) = start(security(&agent("a")), 1).await;
        let pool = Pool::new(net(), security(&Peer::Client), PoolLimits::default());
        for link in 0..5 {
            send(&pool, &address, &agent("a"), link).await.unwrap();
            // The close may be noticed before the next use or only by it.
            tokio::time::sleep(Duration::from_millis(u64::from(link % 2) * 20)).await;
        }
        assert_eq!(connections.load(SeqCst), 5);
    }
}

#[tokio::test]
async fn a_refusal_is_reported_and_not_retried() {
    let (address, connections) = start(Security::Insecure, usize::MAX).await;
    let pool = Pool::new(net(), Security::Insecure, PoolLimits::default());
    send(&pool, &address, &agent("a"), 1).await.unwrap();
    let Err(error) = pool.open(&address, &agent("a"), &hello(404)).await else { panic!("the Hello must be refused") };
    assert_eq!(error.reaction, weft_types::Reaction::NotFound);
    assert!(error.message.contains("no such link") && error.message.contains("agent a"), "{error}");
    assert_eq!((connections.load(SeqCst), pool.idle_count()), (1, 0));
}

#[tokio::test]
async fn pooled_connections_are_bounded_in_number_and_age() {
    let (address, connections) = start(Security::Insecure, usize::MAX).await;
    let limits = PoolLimits { idle_per_peer_max: 2, idle_age_max: Duration::from_millis(100), ..PoolLimits::default() };
    let pool = Arc::new(Pool::new(net(), Security::Insecure, limits));
    let mut opened = Vec::new();
    for link in 0..4 {
        let mut sender = LinkSender::new(pool.open(&address, &agent("a"), &hello(link)).await.unwrap(), link, 1, STALL);
        sender.send(SLICE, b"slice").await.unwrap();
        sender.end().await.unwrap();
        opened.push(sender.into_frames().unwrap());
    }
    for frames in opened {
        pool.put_back(&address, &agent("a"), frames);
    }
    assert_eq!((connections.load(SeqCst), pool.idle_count()), (4, 2));
    tokio::time::sleep(Duration::from_millis(150)).await;
    send(&pool, &address, &agent("a"), 9).await.unwrap();
    assert_eq!(connections.load(SeqCst), 5, "a connection was reused after it had been idle for too long");
}

#[tokio::test]
async fn a_peer_that_does_not_answer_is_given_up() {
    let listener = net().listen("127.0.0.1:0").await.unwrap();
    let address = listener.local_address().unwrap();
    let limits = PoolLimits { answer_timeout: Duration::from_millis(100), ..PoolLimits::default() };
    let pool = Pool::new(net(), Security::Insecure, limits);
    let Err(error) = pool.open(&address, &agent("a"), &hello(1)).await else { panic!("the dial must fail") };
    assert!(error.message.contains("100 ms"), "{error}");
}
