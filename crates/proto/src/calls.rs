//! The calls of the control plane: who may make each call, and how long its message may be.
//!
//! Both follow from the connection's certificate and the call's headers. So a call that is not allowed is refused before its message is
//! read, and an allowed call gets no more memory than it needs.

use crate::{
    budget::{Arriving, Budget, Charge, identity},
    connections::{Call, Connection},
    log_rate::LogRate,
    metrics::CallMeter,
    rpc::MESSAGE_BYTES_MAX,
    security::Peer,
    status::to_status,
    v1::{
        agent_server::{Agent, AgentServer},
        membership_server::{Membership, MembershipServer},
        weft_server::{Weft, WeftServer},
    },
};
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::{Future, ready},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::time::Instant;
use tonic::{Status, body::Body, server::NamedService};
use tower::{ServiceExt, util::BoxCloneSyncService};
use weft_types::{Error, Result};

/// Who may make a call. On a connection without TLS, anyone may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Callers {
    Coordinator,
    Agents,
    Clients,
    /// Clients, and agents with a delegation. The call's handler checks that the delegation covers this call.
    Delegates,
}

/// The header with the delegation of an agent that acts as a client. Older versions know this name, so it must not change.
pub(crate) const DELEGATION: &str = "weft-delegation";

/// The default limit of a call's message, bytes. The largest such messages name an object (1 KiB) or up to 1024 nodes (6 bytes each).
const SMALL: usize = 64 << 10;
/// Up to 1024 disks with their paths (4 KiB each), and up to 1024 findings of corrupt bytes.
const DISKS: usize = 8 << 20;
/// A task (8 MiB), and the recorded checksums of the blocks that it reads or stores: 4 bytes for each MiB.
const TASK: usize = MESSAGE_BYTES_MAX;
/// The record of a seal (6 MiB) twice: as the message, and with the homes of up to 255 blocks.
const SEALED: usize = MESSAGE_BYTES_MAX;
/// Up to 1000 names of objects, each with a bucket (63 bytes) and a key (1 KiB).
const NAMES: usize = 2 << 20;
/// Up to 100,000 blocks of less than 20 bytes each.
const BLOCKS: usize = 4 << 20;
/// The checksums of all blocks of a stripe (255 of up to 16 KiB), and the errors of its links (255 of up to 8 KiB).
const STRIPE: usize = 8 << 20;
/// The errors of a plan's links, up to 8 KiB each: a client has a link to each of up to 254 helpers, in each lane.
const ERRORS: usize = 4 << 20;

/// Service, call, who may make it, and the longest message, bytes.
const CALLS: [(&str, &str, Callers, usize); 71] = [
    ("weft.v1.Membership", "Register", Callers::Agents, DISKS),
    ("weft.v1.Membership", "Heartbeat", Callers::Agents, DISKS),
    ("weft.v1.Membership", "FindOpenStripes", Callers::Agents, BLOCKS),
    ("weft.v1.Agent", "Open", Callers::Coordinator, TASK),
    ("weft.v1.Agent", "Start", Callers::Coordinator, TASK),
    ("weft.v1.Agent", "Cancel", Callers::Coordinator, SMALL),
    ("weft.v1.Agent", "Remove", Callers::Coordinator, BLOCKS),
    ("weft.v1.Agent", "ListBlocks", Callers::Coordinator, SMALL),
    ("weft.v1.Agent", "CheckBlocks", Callers::Coordinator, SMALL),
    ("weft.v1.Agent", "Quarantine", Callers::Coordinator, BLOCKS),
    ("weft.v1.Agent", "ReleaseQuarantine", Callers::Coordinator, SMALL),
    ("weft.v1.Agent", "SendProbe", Callers::Coordinator, SMALL),
    ("weft.v1.Agent", "ReceiveProbe", Callers::Coordinator, SMALL),
    ("weft.v1.Agent", "SetLimit", Callers::Coordinator, SMALL),
    ("weft.v1.Agent", "ConvertStripe", Callers::Coordinator, SMALL),
    ("weft.v1.Agent", "OpenBlock", Callers::Coordinator, SEALED),
    ("weft.v1.Agent", "SealBlock", Callers::Coordinator, SEALED),
    ("weft.v1.Agent", "SettleBlock", Callers::Coordinator, SMALL),
    ("weft.v1.Agent", "CloseBlock", Callers::Coordinator, SMALL),
    ("weft.v1.Agent", "KeepBlock", Callers::Coordinator, TASK),
    ("weft.v1.Agent", "InspectBlock", Callers::Coordinator, SMALL),
    ("weft.v1.Weft", "Status", Callers::Clients, SMALL),
    ("weft.v1.Weft", "Health", Callers::Clients, SMALL),
    ("weft.v1.Weft", "SetAutoRepair", Callers::Clients, SMALL),
    ("weft.v1.Weft", "GetRepairLimit", Callers::Clients, SMALL),
    ("weft.v1.Weft", "SetRepairLimit", Callers::Clients, SMALL),
    ("weft.v1.Weft", "CreatePolicy", Callers::Clients, SMALL),
    ("weft.v1.Weft", "ListPolicies", Callers::Clients, SMALL),
    ("weft.v1.Weft", "RemovePolicy", Callers::Clients, SMALL),
    ("weft.v1.Weft", "SetDefaultPolicy", Callers::Clients, SMALL),
    ("weft.v1.Weft", "CreateBucket", Callers::Clients, SMALL),
    ("weft.v1.Weft", "ListBuckets", Callers::Clients, SMALL),
    ("weft.v1.Weft", "RemoveBucket", Callers::Clients, SMALL),
    ("weft.v1.Weft", "ListObjects", Callers::Clients, SMALL),
    ("weft.v1.Weft", "StatObject", Callers::Delegates, SMALL),
    ("weft.v1.Weft", "RemoveObject", Callers::Clients, SMALL),
    ("weft.v1.Weft", "RemoveObjects", Callers::Clients, NAMES),
    ("weft.v1.Weft", "BeginPut", Callers::Clients, SMALL),
    ("weft.v1.Weft", "PutStripe", Callers::Delegates, SMALL),
    ("weft.v1.Weft", "EndStripe", Callers::Delegates, STRIPE),
    ("weft.v1.Weft", "CommitPut", Callers::Clients, SMALL),
    ("weft.v1.Weft", "KeepPut", Callers::Delegates, SMALL),
    ("weft.v1.Weft", "AbortPut", Callers::Clients, SMALL),
    ("weft.v1.Weft", "ReadStripe", Callers::Delegates, ERRORS),
    ("weft.v1.Weft", "EndRead", Callers::Delegates, ERRORS),
    ("weft.v1.Weft", "OpenForUpdates", Callers::Clients, SMALL),
    ("weft.v1.Weft", "ExplainUpdate", Callers::Clients, SMALL),
    ("weft.v1.Weft", "BeginAppend", Callers::Clients, SMALL),
    ("weft.v1.Weft", "EndAppend", Callers::Clients, SMALL),
    ("weft.v1.Weft", "GiveUpAppend", Callers::Clients, SMALL),
    ("weft.v1.Weft", "RepairObject", Callers::Clients, SMALL),
    ("weft.v1.Weft", "CoolObject", Callers::Clients, SMALL),
    ("weft.v1.Weft", "ListLinks", Callers::Clients, SMALL),
    ("weft.v1.Weft", "ProbeLinks", Callers::Clients, SMALL),
    ("weft.v1.Weft", "RepairNode", Callers::Clients, SMALL),
    ("weft.v1.Weft", "ExplainRepairNode", Callers::Clients, SMALL),
    ("weft.v1.Weft", "Convert", Callers::Clients, SMALL),
    ("weft.v1.Weft", "ListJobs", Callers::Clients, SMALL),
    ("weft.v1.Weft", "GetJob", Callers::Clients, SMALL),
    ("weft.v1.Weft", "ChangeJob", Callers::Clients, SMALL),
    ("weft.v1.Weft", "ListGarbage", Callers::Clients, SMALL),
    ("weft.v1.Weft", "ReleaseGarbage", Callers::Clients, SMALL),
    ("weft.v1.Weft", "RemoveNode", Callers::Clients, SMALL),
    ("weft.v1.Weft", "ForgetDisk", Callers::Clients, SMALL),
    ("weft.v1.Weft", "Drain", Callers::Clients, SMALL),
    ("weft.v1.Weft", "ExplainDrain", Callers::Clients, SMALL),
    ("weft.v1.Weft", "Space", Callers::Clients, SMALL),
    ("weft.v1.Weft", "ListDamage", Callers::Clients, SMALL),
    ("weft.v1.Weft", "Balance", Callers::Clients, SMALL),
    ("weft.v1.Weft", "Scrub", Callers::Clients, SMALL),
    ("weft.v1.Weft", "ExplainBalance", Callers::Clients, SMALL),
];

impl Callers {
    fn admit(self, peer: &Peer, is_delegated: bool, is_insecure: bool) -> Result<()> {
        let (may, needed) = match (self, peer) {
            (_, Peer::Anonymous) => (is_insecure, "known: use a certificate"),
            (Self::Coordinator, peer) => (*peer == Peer::Coordinator, "the coordinator"),
            (Self::Agents, peer) => (matches!(peer, Peer::Agent(_)), "an agent: use an agent's certificate"),
            (Self::Delegates, Peer::Agent(_)) => (is_delegated, "a client, and has no delegation: use a client's certificate"),
            (Self::Clients | Self::Delegates, peer) => (*peer == Peer::Client, "a client: use a client's certificate"),
        };
        if may { Ok(()) } else { Err(Error::invalid(format!("{peer} is not {needed}"))) }
    }
}

/// A service whose messages can be bounded.
pub trait Bounded {
    /// The most concurrent calls on one connection.
    const CALLS_PER_CONNECTION_MAX: u32;

    /// The same service with messages of at most `request_bytes_max` bytes.
    #[must_use]
    fn bounded(self, request_bytes_max: usize) -> Self;
}

impl<S: Weft> Bounded for WeftServer<S> {
    /// Enough for a program that puts 64 objects at once: two stripes and a lease renewal each. Calls beyond the limit wait at the client;
    /// a lease renewal must not wait there behind `EndStripe` calls that wait for a node.
    const CALLS_PER_CONNECTION_MAX: u32 = 256;

    fn bounded(self, request_bytes_max: usize) -> Self {
        self.max_decoding_message_size(request_bytes_max)
    }
}

impl<S: Membership> Bounded for MembershipServer<S> {
    /// An agent makes its calls one after another.
    const CALLS_PER_CONNECTION_MAX: u32 = 64;

    fn bounded(self, request_bytes_max: usize) -> Self {
        self.max_decoding_message_size(request_bytes_max)
    }
}

impl<S: Agent> Bounded for AgentServer<S> {
    /// Each running task has one call in progress, over the coordinator's single connection. The agent's admission bounds their number.
    const CALLS_PER_CONNECTION_MAX: u32 = 1024;

    fn bounded(self, request_bytes_max: usize) -> Self {
        self.max_decoding_message_size(request_bytes_max)
    }
}

/// The calls of all services of one listener, by path.
#[derive(Clone, Default)]
pub struct Services {
    by_path: BTreeMap<String, Offered>,
    calls_per_connection_max: u32,
    refused: Arc<LogRate>,
    budget: Budget,
}

/// A call of a service.
#[derive(Clone)]
struct Offered {
    callers: Callers,
    service: Service,
    meter: Arc<CallMeter>,
}

type Service = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Infallible>;
type Answering = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

impl Services {
    /// No service yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a service: [`weft_server`](crate::rpc::weft_server), [`agent_server`](crate::rpc::agent_server) or
    /// [`membership_server`](crate::rpc::membership_server).
    #[must_use]
    pub fn with<S>(mut self, service: S) -> Self
    where
        S: tower::Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
        S: NamedService + Bounded + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
    {
        for (_, call, callers, request_bytes_max) in CALLS.into_iter().filter(|(name, ..)| *name == S::NAME) {
            let service = BoxCloneSyncService::new(service.clone().bounded(request_bytes_max));
            let meter = Arc::new(CallMeter::of(S::NAME, call));
            self.by_path.insert(format!("/{}/{call}", S::NAME), Offered { callers, service, meter });
        }
        self.calls_per_connection_max = self.calls_per_connection_max.max(S::CALLS_PER_CONNECTION_MAX);
        self
    }

    /// What is counted of each call, for metrics.
    pub fn meters(&self) -> Vec<Arc<CallMeter>> {
        self.by_path.values().map(|offered| Arc::clone(&offered.meter)).collect()
    }

    /// The most concurrent calls on one connection.
    pub(crate) fn calls_per_connection_max(&self) -> u32 {
        self.calls_per_connection_max
    }

    /// Handles a call, or refuses it with a gRPC status.
    pub(crate) fn answer(&self, request: http::Request<Body>, is_insecure: bool) -> Answering {
        let path = request.uri().path();
        let Some(Offered { callers, service, meter }) = self.by_path.get(path) else {
            let path: String = path.chars().take(80).collect();
            return refused(&Status::unimplemented(format!("there is no call {path} here")));
        };
        let connection = request.extensions().get::<Connection>();
        let peer = connection.map_or(&Peer::Anonymous, |connection| &connection.caller.peer);
        let address = connection.map_or("", |connection| &connection.caller.address);
        if let Err(error) = callers.admit(peer, request.headers().contains_key(DELEGATION), is_insecure) {
            if let Some(left_out) = self.refused.admit() {
                tracing::warn!(%path, address, %error, left_out, "refused a call");
            }
            meter.failed(error.reaction);
            return refused(&to_status(&error));
        }
        let charge = match self.budget.call(identity(peer, address), request.headers()) {
            Ok(charge) => charge,
            Err(error) => {
                meter.failed(error.reaction);
                return refused(&to_status(&error));
            }
        };
        let call = connection.map(Connection::call);
        let answering = service.clone().oneshot(request.map(|body| Body::new(Arriving::new(body, Arc::clone(&charge)))));
        let (meter, begin) = (Arc::clone(meter), Instant::now());
        Box::pin(async move {
            let answer = answering.await?;
            meter.answered(begin.elapsed(), Status::from_header_map(answer.headers()).as_ref());
            Ok::<_, Infallible>(answer.map(|body| Body::new(Answer { body, _call: call, _charge: charge })))
        })
    }
}

fn refused(status: &Status) -> Answering {
    Box::pin(ready(Ok(status.clone().into_http())))
}

/// An answer. While it exists, its connection is not idle, and its call takes memory.
struct Answer {
    body: Body,
    _call: Option<Call>,
    _charge: Arc<Charge>,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{from_status, v1};
    use std::{collections::BTreeSet, time::Duration};
    use tonic::{Request, Response};
    use weft_types::Reaction;

    #[test]
    fn the_table_has_every_call() {
        let mut service = "";
        let mut defined = BTreeSet::new();
        for line in include_str!("../proto/weft.proto").lines() {
            let mut words = line.split([' ', '(']).filter(|word| !word.is_empty());
            match (words.next(), words.next()) {
                (Some("service"), Some(name)) => service = name,
                (Some("rpc"), Some(call)) => drop(defined.insert(format!("weft.v1.{service}/{call}"))),
                _ => {}
            }
        }
        let listed: BTreeSet<String> = CALLS.iter().map(|(service, call, ..)| format!("{service}/{call}")).collect();
        assert_eq!(listed, defined);
    }

    #[test]
    fn a_certificate_allows_only_some_calls() {
        let peers = [Peer::Coordinator, Peer::Agent("a".into()), Peer::Client, Peer::Anonymous];
        let may = |callers: Callers, is_delegated, is_insecure| {
            peers.each_ref().map(|peer| callers.admit(peer, is_delegated, is_insecure).is_ok())
        };
        for is_delegated in [false, true] {
            assert_eq!(may(Callers::Coordinator, is_delegated, false), [true, false, false, false]);
            assert_eq!(may(Callers::Agents, is_delegated, false), [false, true, false, false]);
            assert_eq!(may(Callers::Clients, is_delegated, false), [false, false, true, false]);
            assert_eq!(may(Callers::Delegates, is_delegated, false), [false, is_delegated, true, false]);
        }
        for callers in [Callers::Coordinator, Callers::Agents, Callers::Clients, Callers::Delegates] {
            assert!(callers.admit(&Peer::Anonymous, false, true).is_ok());
        }
    }

    struct Members;

    #[tonic::async_trait]
    impl Membership for Members {
        async fn register(&self, _: Request<v1::RegisterRequest>) -> Result<Response<v1::RegisterReply>, Status> {
            Err(Status::aborted("it was let in"))
        }

        async fn heartbeat(&self, _: Request<v1::HeartbeatRequest>) -> Result<Response<v1::HeartbeatReply>, Status> {
            Err(Status::aborted("it was let in"))
        }

        async fn find_open_stripes(
            &self,
            _: Request<v1::FindOpenStripesRequest>,
        ) -> Result<Response<v1::FindOpenStripesReply>, Status> {
            Err(Status::aborted("it was let in"))
        }
    }

    /// A message of which only the first bytes arrive.
    struct Begun(Option<Bytes>);

    impl http_body::Body for Begun {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
            self.0.take().map_or(Poll::Pending, |bytes| Poll::Ready(Some(Ok(http_body::Frame::data(bytes)))))
        }
    }

    #[tokio::test]
    async fn a_call_is_refused_before_its_message_is_read() {
        let services = Services::new().with(MembershipServer::new(Members));
        let call = |path: &str, peer: Peer| {
            let mut request = http::Request::post(path).body(Body::new(Begun(None))).unwrap();
            request.extensions_mut().insert(Connection::of(peer, "10.0.0.1:1".into()));
            let answering = services.answer(request, false);
            async move {
                let answer = tokio::time::timeout(Duration::from_millis(100), answering).await;
                answer
                    .ok()
                    .map(|answer| Status::from_header_map(answer.unwrap_or_else(|never| match never {}).headers()).unwrap())
            }
        };
        let refused = call("/weft.v1.Membership/Register", Peer::Client).await.expect("the refusal waited for the message");
        assert!(refused.message().contains("a client is not an agent"), "{refused}");
        assert!(call("/weft.v1.Membership/Register", Peer::Anonymous).await.is_some());
        assert_eq!(call("/weft.v1.Weft/Status", Peer::Client).await.unwrap().code(), tonic::Code::Unimplemented);
        assert!(
            call("/weft.v1.Membership/Register", Peer::Agent("a".into())).await.is_none(),
            "the call was answered without its message"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn messages_that_do_not_end_take_a_bounded_memory_for_a_bounded_time() {
        let services = Services::new().with(MembershipServer::new(Members));
        let begin = |name: &str| {
            // The prefix of a gRPC message announces a byte more than arrives.
            let mut bytes = vec![0; DISKS - 4];
            bytes[1..5].copy_from_slice(&(DISKS as u32 - 8).to_be_bytes());
            let mut request =
                http::Request::post("/weft.v1.Membership/Register").body(Body::new(Begun(Some(bytes.into())))).unwrap();
            request.extensions_mut().insert(Connection::of(Peer::Agent(name.into()), "10.0.0.1:1".into()));
            let answering = services.answer(request, false);
            tokio::spawn(async move {
                let answer =
                    tokio::time::timeout(Duration::from_secs(100), answering).await.expect("the call waits for its message");
                let answer = answer.unwrap_or_else(|never| match never {});
                from_status(&Status::from_header_map(answer.headers()).unwrap())
            })
        };
        // Eight of the longest messages fit into the share of an agent, but for their calls.
        let mut held: Vec<_> = (0..7).map(|_| begin("a")).collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let refused = begin("a").await.unwrap();
        assert!(refused.reaction == Reaction::Retry && refused.message.contains("take too much memory"), "{refused}");
        let other = begin("b");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!other.is_finished() && held.iter().all(|held| !held.is_finished()));

        held.remove(0).abort();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let next = begin("a");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!next.is_finished(), "the bytes of a call that ended still count");
        let since = Instant::now();
        for late in [held, vec![other, next]].into_iter().flatten() {
            let late = late.await.unwrap();
            assert!(late.reaction == Reaction::Retry && late.message.contains("did not arrive"), "{late}");
        }
        assert!(since.elapsed() <= Duration::from_secs(60));
    }
}
