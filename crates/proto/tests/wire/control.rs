//! The control plane over the same network and the same security.

use super::{Cluster, agent, net};
use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status, transport::Channel};
use weft_proto::rpc::{self, MESSAGE_BYTES_MAX, Services};
use weft_proto::v1::{
    FindOpenStripesReply, FindOpenStripesRequest, HeartbeatReply, HeartbeatRequest, RegisterReply, RegisterRequest,
    membership_server::Membership,
};
use weft_proto::{BoxStream, Listen, MemoryNet, Net, PROTOCOL, Peer, Security, from_status, to_status};
use weft_types::{Error, NodeId, Party, Reaction};

/// Records registrations; refuses unknown versions; answers a heartbeat of node n after n seconds.
#[derive(Default)]
struct Members {
    registered: Mutex<Vec<Peer>>,
}

#[tonic::async_trait]
impl Membership for Members {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<RegisterReply>, Status> {
        let theirs = request.get_ref().protocol.unwrap_or_default();
        let protocol = PROTOCOL.agree(theirs.into()).map_err(|error| to_status(&error))?;
        self.registered.lock().unwrap().push(rpc::caller(&request).peer);
        Ok(Response::new(RegisterReply { node: 7, protocol: u32::from(protocol), ..RegisterReply::default() }))
    }

    async fn heartbeat(&self, request: Request<HeartbeatRequest>) -> Result<Response<HeartbeatReply>, Status> {
        let node = request.get_ref().node;
        if node == 0 {
            return Err(to_status(&Error::not_found("register again").party(Party::Node(NodeId(9)))));
        }
        tokio::time::sleep(Duration::from_secs(u64::from(node))).await;
        Ok(Response::new(HeartbeatReply::default()))
    }

    async fn find_open_stripes(&self, _: Request<FindOpenStripesRequest>) -> Result<Response<FindOpenStripesReply>, Status> {
        Ok(Response::new(FindOpenStripesReply::default()))
    }
}

struct Running {
    members: Arc<Members>,
    address: String,
    stop: oneshot::Sender<()>,
    served: tokio::task::JoinHandle<weft_types::Result<()>>,
}

async fn start(security: Security, address: &str) -> Running {
    start_on(net().as_ref(), security, address).await
}

async fn start_on(net: &dyn Net, security: Security, address: &str) -> Running {
    let listener = net.listen(address).await.unwrap();
    let address = listener.local_address().unwrap();
    let members = Arc::new(Members::default());
    let service = weft_proto::v1::membership_server::MembershipServer::from_arc(members.clone());
    let (stop, stopped) = oneshot::channel();
    let served = tokio::spawn(async move {
        let stopped = async { stopped.await.unwrap_or_default() };
        rpc::serve(Services::new().with(service), listener, security, stopped).await
    });
    Running { members, address, stop, served }
}

async fn channel(security: &Security, address: &str) -> weft_types::Result<Channel> {
    rpc::connect(net(), security, address, &Peer::Coordinator).await
}

fn register() -> RegisterRequest {
    RegisterRequest { protocol: Some(PROTOCOL.into()), ..RegisterRequest::default() }
}

#[tokio::test]
async fn calls_identify_their_caller_and_errors_are_transferred_completely() {
    let cluster = Cluster::new(1);
    let running = start(cluster.security(&Peer::Coordinator), "127.0.0.1:0").await;
    let channel = channel(&cluster.security(&agent("a")), &running.address).await.unwrap();
    let mut client = rpc::membership_client(channel.clone());
    let reply = client.register(rpc::with_deadline(register(), Duration::from_secs(5))).await.unwrap();
    assert_eq!((reply.get_ref().node, reply.get_ref().protocol), (7, u32::from(PROTOCOL.newest)));
    assert_eq!(*running.members.registered.lock().unwrap(), [agent("a")]);

    let status = client.heartbeat(HeartbeatRequest::default()).await.unwrap_err();
    assert_eq!(from_status(&status), Error::not_found("register again").party(Party::Node(NodeId(9))));

    let status = client.register(RegisterRequest::default()).await.unwrap_err();
    assert_eq!(from_status(&status).reaction, Reaction::InvalidInput, "an unknown version was accepted");

    let status = rpc::agent_client(channel).cancel(weft_proto::v1::CancelRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unimplemented, "{status}");
}

#[tokio::test]
async fn a_deadline_ends_a_call_and_a_large_message_is_refused() {
    let running = start(Security::Insecure, "127.0.0.1:0").await;
    let channel = channel(&Security::Insecure, &running.address).await.unwrap();
    let mut client = rpc::membership_client(channel);
    let slow = HeartbeatRequest { node: 60, ..HeartbeatRequest::default() };
    let status = client.heartbeat(rpc::with_deadline(slow, Duration::from_millis(100))).await.unwrap_err();
    assert_eq!(from_status(&status).reaction, Reaction::Retry, "{status}");

    let large = RegisterRequest { name: "n".repeat(MESSAGE_BYTES_MAX + 1), ..register() };
    assert!(client.register(large).await.is_err());
    let fits = RegisterRequest { name: "n".repeat(MESSAGE_BYTES_MAX / 4), ..register() };
    assert!(client.register(fits).await.is_ok(), "the channel was lost with the refused message");
}

#[tokio::test]
async fn a_refused_certificate_sends_no_message() {
    let cluster = Cluster::new(1);
    let running = start(cluster.security(&Peer::Coordinator), "127.0.0.1:0").await;
    let mut client = rpc::membership_client(channel(&cluster.security(&Peer::Client), &running.address).await.unwrap());
    for len in [1, MESSAGE_BYTES_MAX / 2] {
        let status = client.register(RegisterRequest { name: "n".repeat(len), ..register() }).await.unwrap_err();
        let error = from_status(&status);
        assert!(error.reaction == Reaction::InvalidInput && error.message.contains("a client is not an agent"), "{len}: {error}");
    }
    assert!(running.members.registered.lock().unwrap().is_empty());
}

/// A connection that has made a call.
async fn registered(security: &Security, address: &str) -> weft_types::Result<Channel> {
    let channel = channel(security, address).await?;
    let asked = rpc::with_deadline(register(), Duration::from_secs(5));
    rpc::membership_client(channel.clone()).register(asked).await.map(|_| channel).map_err(|status| from_status(&status))
}

#[tokio::test]
async fn an_agent_cannot_use_up_all_connections() {
    let cluster = Cluster::new(1);
    let running = start(cluster.security(&Peer::Coordinator), "127.0.0.1:0").await;
    let (greedy, other) = (cluster.security(&agent("a")), cluster.security(&agent("b")));
    let mut held = Vec::new();
    let refused = loop {
        match registered(&greedy, &running.address).await {
            Ok(channel) => held.push(channel),
            Err(error) => break error,
        }
        assert!(held.len() < 100, "one agent can open any number of connections");
    };
    assert_eq!(refused.reaction, Reaction::Retry, "{refused}");
    registered(&other, &running.address).await.unwrap();
    // The server notices the end of a connection a little later.
    held.pop();
    let again = async { while registered(&greedy, &running.address).await.is_err() {} };
    tokio::time::timeout(Duration::from_secs(10), again).await.expect("the closed connection still counts");
}

/// Each connection carries one long message, whose call takes a while.
#[tokio::test(start_paused = true)]
async fn a_caller_with_too_long_messages_is_refused_and_repeats_them_later() {
    let cluster = Cluster::new(1);
    let net = Arc::new(MemoryNet::default());
    let running = start_on(net.as_ref(), cluster.security(&Peer::Coordinator), "127.0.0.1:7401").await;
    let client = async |name: &str| {
        let security = cluster.security(&agent(name));
        let connecting = rpc::connect(net.clone(), &security, &running.address, &Peer::Coordinator);
        rpc::membership_client(connecting.await.unwrap())
    };
    let heartbeat = || {
        let disk = weft_proto::v1::Disk { path: "d".repeat(7 << 20), ..Default::default() };
        HeartbeatRequest { node: 30, disks: vec![disk], ..HeartbeatRequest::default() }
    };
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..9 {
        let mut client = client("a").await;
        calls.spawn(async move { client.heartbeat(heartbeat()).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let mut greedy = client("a").await;
    let refused = from_status(&greedy.heartbeat(heartbeat()).await.unwrap_err());
    assert!(refused.reaction == Reaction::Retry && refused.message.contains("too much memory"), "{refused}");
    client("b").await.register(register()).await.unwrap();
    for call in calls.join_all().await {
        call.unwrap();
    }
    greedy.heartbeat(heartbeat()).await.unwrap();
}

/// A network that counts the connections over it.
struct Counting(MemoryNet, AtomicU32);

#[tonic::async_trait]
impl Net for Counting {
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        self.1.fetch_add(1, Relaxed);
        self.0.connect(address).await
    }

    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listen>> {
        self.0.listen(address).await
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_and_one_with_a_long_call_is_not() {
    let cluster = Cluster::new(1);
    let net = Arc::new(Counting(MemoryNet::default(), AtomicU32::new(0)));
    let running = start_on(net.as_ref(), cluster.security(&Peer::Coordinator), "127.0.0.1:7400").await;
    let security = cluster.security(&agent("a"));
    let connecting = rpc::connect(net.clone(), &security, &running.address, &Peer::Coordinator);
    let mut client = rpc::membership_client(connecting.await.unwrap());
    let long = HeartbeatRequest { node: 3600, ..HeartbeatRequest::default() };
    client.heartbeat(long).await.unwrap();
    tokio::time::sleep(Duration::from_secs(300)).await;
    client.register(register()).await.unwrap();
    assert_eq!(net.1.load(Relaxed), 1, "a connection in use was closed");
    tokio::time::sleep(Duration::from_secs(900)).await;
    client.register(register()).await.unwrap();
    assert_eq!(net.1.load(Relaxed), 2, "an idle connection was kept");
}

#[tokio::test]
async fn a_channel_reconnects_to_a_restarted_server() {
    let cluster = Cluster::new(1);
    let security = cluster.security(&Peer::Coordinator);
    let running = start(security.clone(), "127.0.0.1:0").await;
    let mut client = rpc::membership_client(channel(&cluster.security(&agent("a")), &running.address).await.unwrap());
    client.register(register()).await.unwrap();
    running.stop.send(()).unwrap();
    running.served.await.unwrap().unwrap();

    let status = client.register(rpc::with_deadline(register(), Duration::from_secs(2))).await.unwrap_err();
    let error = from_status(&status);
    assert!(error.reaction == Reaction::Retry && error.message.contains(&running.address), "{error}");

    let again = start(security, &running.address).await;
    client.register(rpc::with_deadline(register(), Duration::from_secs(5))).await.unwrap();
    assert_eq!(*again.members.registered.lock().unwrap(), [agent("a")]);
}

#[tokio::test]
async fn another_cluster_and_plain_text_are_named() {
    let (one, two) = (Cluster::new(1), Cluster::new(2));
    let running = start(one.security(&Peer::Coordinator), "127.0.0.1:0").await;
    let error = channel(&two.security(&Peer::Client), &running.address).await.unwrap_err();
    assert!(error.message.contains("another cluster"), "{error}");

    let error = channel(&Security::Insecure, &running.address).await.unwrap_err();
    assert!(error.message.contains("speaks TLS") && error.reaction == Reaction::InvalidInput, "{error}");

    let plain = start(Security::Insecure, "127.0.0.1:0").await;
    let error = channel(&one.security(&Peer::Client), &plain.address).await.unwrap_err();
    assert!(error.message.contains("TLS"), "{error}");
    assert!(rpc::connect_lazy(net(), &Security::Insecure, "no address", &Peer::Coordinator).is_err());
}

#[tokio::test]
async fn unfinished_calls_do_not_keep_a_server_running() {
    let running = start(Security::Insecure, "127.0.0.1:0").await;
    let mut client = rpc::membership_client(channel(&Security::Insecure, &running.address).await.unwrap());
    let calling =
        tokio::spawn(async move { client.heartbeat(HeartbeatRequest { node: 3600, ..HeartbeatRequest::default() }).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    running.stop.send(()).unwrap();
    let served = tokio::time::timeout(2 * rpc::SHUTDOWN_GRACE, running.served).await.expect("the server is still up");
    served.unwrap().unwrap();
    calling.abort();
}
