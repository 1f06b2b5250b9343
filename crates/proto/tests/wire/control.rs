//! The control plane over the same network and the same security.

use super::{Cluster, agent, net};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status, transport::Channel};
use weft_proto::rpc::{self, MESSAGE_BYTES_MAX, Services};
use weft_proto::v1::{HeartbeatReply, HeartbeatRequest, RegisterReply, RegisterRequest, membership_server::Membership};
use weft_proto::{PROTOCOL, Peer, Security, from_status, to_status};
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
}

struct Running {
    members: Arc<Members>,
    address: String,
    stop: oneshot::Sender<()>,
    served: tokio::task::JoinHandle<weft_types::Result<()>>,
}

async fn start(security: Security, address: &str) -> Running {
    let listener = net().listen(address).await.unwrap();
    let address = listener.local_address().unwrap();
    let members = Arc::new(Members::default());
    let service = weft_proto::v1::membership_server::MembershipServer::from_arc(members.clone())
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
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
async fn calls_know_their_caller_and_errors_cross_whole() {
    let cluster = Cluster::new(1);
    let running = start(cluster.security(&Peer::Coordinator), "127.0.0.1:0").await;
    let channel = channel(&cluster.security(&agent("a")), &running.address).await.unwrap();
    let mut client = rpc::membership_client(channel.clone());
    let reply = client.register(rpc::with_deadline(register(), Duration::from_secs(5))).await.unwrap();
    assert_eq!((reply.get_ref().node, reply.get_ref().protocol), (7, 3));
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
    let fits = RegisterRequest { name: "n".repeat(MESSAGE_BYTES_MAX / 2), ..register() };
    assert!(client.register(fits).await.is_ok(), "the refused message broke the channel");
}

#[tokio::test]
async fn a_channel_finds_a_restarted_server_by_itself() {
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
async fn calls_that_do_not_end_do_not_keep_a_server_up() {
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
