//! Authentication, and the errors of refused peers.

use super::{Cluster, agent, listen, net};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weft_proto::{Incoming, MemoryNet, Net, Peer, Security};
use weft_types::{Error, Reaction, Result};

/// What each end learns about the other, if `dialing` expects `expected` and `accepting` answers.
async fn meet(dialing: &Security, expected: &Peer, accepting: &Security) -> (Result<()>, Result<Peer>) {
    let network = net();
    let listener = network.listen("127.0.0.1:0").await.unwrap();
    let address = listener.local_address().unwrap();
    let dial = async {
        let mut stream = dialing.dial(network.as_ref(), &address, expected).await?;
        // With TLS 1.3, only the first read shows whether the other end accepted our certificate.
        stream.write_all(b"ping").await.map_err(Error::fatal)?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.map_err(Error::fatal)?;
        Ok(())
    };
    let accept = async {
        let (stream, _) = listener.accept().await.unwrap();
        let (mut stream, peer) = accepting.accept(stream).await?;
        let mut question = [0; 4];
        stream.read_exact(&mut question).await.map_err(Error::fatal)?;
        stream.write_all(b"pong").await.map_err(Error::fatal)?;
        stream.flush().await.map_err(Error::fatal)?;
        Ok(peer)
    };
    tokio::time::timeout(Duration::from_secs(20), async { tokio::join!(dial, accept) }).await.expect("a handshake hangs")
}

#[tokio::test]
async fn both_ends_authenticate_each_other() {
    let cluster = Cluster::new(1);
    for (dialing, accepting) in [(Peer::Client, Peer::Coordinator), (Peer::Client, agent("a")), (agent("a"), agent("b-7"))] {
        let (dialled, accepted) = meet(&cluster.security(&dialing), &accepting, &cluster.security(&accepting)).await;
        assert_eq!((dialled, accepted), (Ok(()), Ok(dialing)));
    }
    let (dialled, accepted) = meet(&Security::Insecure, &agent("a"), &Security::Insecure).await;
    assert_eq!((dialled, accepted), (Ok(()), Ok(Peer::Anonymous)));
}

#[tokio::test]
async fn another_cluster_is_refused_by_both() {
    let (one, two) = (Cluster::new(1), Cluster::new(2));
    let (dialled, accepted) = meet(&one.security(&Peer::Client), &agent("a"), &two.security(&agent("a"))).await;
    for error in [dialled.unwrap_err(), accepted.unwrap_err()] {
        assert!(error.message.contains("another cluster") && error.reaction == Reaction::InvalidInput, "{error}");
    }
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_refused() {
    // The dialling end trusts the right authority, but shows a certificate of another.
    let (one, two) = (Cluster::new(1), Cluster::new(2));
    one.security(&Peer::Client);
    two.security(&Peer::Client);
    let mut files = two.files(&Peer::Client);
    files.authority = one.files(&Peer::Client).authority;
    let intruder = Security::load(&files).unwrap();
    let (dialled, accepted) = meet(&intruder, &agent("a"), &one.security(&agent("a"))).await;
    assert!(dialled.is_err());
    let error = accepted.unwrap_err();
    assert!(error.message.contains("another cluster"), "{error}");
}

#[tokio::test]
async fn another_peer_at_the_address_is_detected() {
    let cluster = Cluster::new(1);
    let (dialled, _) = meet(&cluster.security(&Peer::Client), &agent("a"), &cluster.security(&agent("b"))).await;
    let error = dialled.unwrap_err();
    assert!(error.message.contains("belongs to another peer") && error.message.contains("agent a"), "{error}");
}

#[tokio::test]
async fn tls_and_plain_text_name_each_other() {
    let cluster = Cluster::new(1);
    let (dialled, accepted) = meet(&Security::Insecure, &agent("a"), &cluster.security(&agent("a"))).await;
    assert!(dialled.unwrap_err().message.contains("speaks TLS"));
    assert!(accepted.unwrap_err().message.contains("does not speak TLS"));

    let (dialled, accepted) = meet(&cluster.security(&Peer::Client), &agent("a"), &Security::Insecure).await;
    assert!(dialled.unwrap_err().message.contains("TLS"));
    assert!(accepted.unwrap_err().message.contains("speaks TLS"));
}

#[tokio::test]
async fn a_silent_peer_is_given_up_and_delays_no_other() {
    let cluster = Cluster::new(1);
    let (address, mut incoming) = listen(cluster.security(&agent("a"))).await;
    let network = net();
    let silent = network.connect(&address).await.unwrap();
    let client = cluster.security(&Peer::Client);
    let expected = agent("a");
    let (dialled, accepted) = tokio::join!(client.dial(network.as_ref(), &address, &expected), incoming.next());
    assert!(dialled.is_ok());
    assert_eq!(accepted.unwrap().peer, Peer::Client);

    let mut silent = silent;
    let mut byte = [0];
    let read =
        tokio::time::timeout(Duration::from_secs(15), silent.read(&mut byte)).await.expect("the connection was not closed");
    assert!(matches!(read, Ok(0) | Err(_)));
}

#[tokio::test(start_paused = true)]
async fn many_silent_connections_of_one_host_delay_no_other() {
    let cluster = Cluster::new(1);
    let network = MemoryNet::default();
    let listener = network.listen("10.0.0.1:7400").await.unwrap();
    let mut incoming = Incoming::start(listener, cluster.security(&agent("a")));
    let intruder = network.host("10.0.0.66");
    let mut silent = Vec::new();
    for _ in 0..1000 {
        silent.push(intruder.connect("10.0.0.1:7400").await.unwrap());
    }
    let (client, expected) = (cluster.security(&Peer::Client), agent("a"));
    // A client on the intruder's machine can connect, too.
    for host in ["10.0.0.7", "10.0.0.66"] {
        let net = network.host(host);
        let meet = async { tokio::join!(client.dial(&net, "10.0.0.1:7400", &expected), incoming.next()) };
        let (dialled, accepted) =
            tokio::time::timeout(Duration::from_secs(1), meet).await.expect("the handshake waits for the silent connections");
        assert!(dialled.is_ok() && accepted.unwrap().address.starts_with(host));
    }
    // After two seconds the listener closes the remaining silent connections.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    for stream in &mut silent {
        let read = tokio::time::timeout(Duration::from_millis(1), stream.read_u8()).await;
        assert!(read.expect("a silent connection is still held").is_err());
    }
}

#[tokio::test]
async fn an_address_without_a_listener_is_reported_at_once() {
    let listener = net().listen("127.0.0.1:0").await.unwrap();
    let address = listener.local_address().unwrap();
    drop(listener);
    let Err(error) = Security::Insecure.dial(net().as_ref(), &address, &agent("a")).await else { panic!("the dial must fail") };
    assert!(
        error.message.contains(&address) && error.message.contains("refused") && error.reaction == Reaction::Replan,
        "{error}"
    );
}

#[test]
fn files_that_are_not_certificates_are_named() {
    let cluster = Cluster::new(1);
    cluster.security(&Peer::Client);
    let files = cluster.files(&Peer::Client);
    for broken in [&files.authority, &files.certificate, &files.key] {
        let kept = std::fs::read(broken).unwrap();
        std::fs::write(broken, "nothing").unwrap();
        let error = Security::load(&files).unwrap_err();
        assert!(error.message.contains(&broken.display().to_string()), "{error}");
        std::fs::write(broken, kept).unwrap();
    }
    assert!(Security::load(&files).is_ok());
    assert!(cluster.path().join("ca-key.pem").exists());
}
