//! Calls and links on the simulated network. They end when a host crashes or is cut off, and work again afterwards. The
//! same seed gives the same events in the same order.

use std::{error::Error, sync::Arc, time::Duration};
use tonic::{Request, Response, Status};
use turmoil::Sim;
use weft_proto::rpc::{self, Services};
use weft_proto::v1::{
    FindOpenStripesReply, FindOpenStripesRequest, HeartbeatReply, HeartbeatRequest, RegisterReply, RegisterRequest,
    membership_client::MembershipClient, membership_server::Membership,
};
use weft_proto::{
    Accepted, Direction, FrameStream, Hello, Incoming, LinkReceiver, LinkSender, LinkToken, Net, Peer, Pool, PoolLimits,
    Security, crc32c,
};
use weft_tests::{Network, SimClock, Trace};
use weft_types::{ClusterId, NodeId, Party, PlanId, Span};

const STALL: Duration = Duration::from_secs(2);
const CALL_DEADLINE: Duration = Duration::from_secs(2);
const SLICES: u64 = 6;
const SLICE_LEN: u64 = 40_000;

struct Members;

#[tonic::async_trait]
impl Membership for Members {
    async fn register(&self, _: Request<RegisterRequest>) -> Result<Response<RegisterReply>, Status> {
        Err(Status::unimplemented("not used by this test"))
    }

    async fn heartbeat(&self, request: Request<HeartbeatRequest>) -> Result<Response<HeartbeatReply>, Status> {
        Ok(Response::new(HeartbeatReply { epoch: request.get_ref().epoch + 1, ..HeartbeatReply::default() }))
    }

    async fn find_open_stripes(&self, _: Request<FindOpenStripesRequest>) -> Result<Response<FindOpenStripesReply>, Status> {
        Err(Status::unimplemented("not used by this test"))
    }
}

/// Answers calls, and receives links one after another on each connection.
async fn serve(net: Arc<dyn Net>, trace: Trace) -> Result<(), Box<dyn Error>> {
    let links = Incoming::start(net.listen("server:1").await?, Security::Insecure);
    tokio::spawn(receive_all(links, trace));
    let services = Services::new().with(rpc::membership_server(Members));
    Ok(rpc::serve(services, net.listen("server:2").await?, Security::Insecure, std::future::pending()).await?)
}

async fn receive_all(mut incoming: Incoming, trace: Trace) {
    while let Some(Accepted { stream, address, .. }) = incoming.next().await {
        let trace = trace.clone();
        tokio::spawn(async move {
            let received = receive_links(FrameStream::new(stream), &trace).await;
            trace.event("server", format_args!("links from {address} ended: {}", received.unwrap_err()));
        });
    }
}

/// Receives links until the connection breaks.
async fn receive_links(mut frames: FrameStream, trace: &Trace) -> Result<(), weft_types::Error> {
    loop {
        let hello = frames.read_hello().await?;
        frames.accept_hello(&hello).await?;
        let mut receiver = LinkReceiver::new(frames, hello.link, 1, STALL);
        let mut all = Vec::new();
        for slice in slices() {
            all.extend_from_slice(&receiver.receive(slice).await?);
        }
        receiver.end().await?;
        assert_eq!(all, payload(hello.link), "link {} delivered other bytes", hello.link);
        trace.event("server", format_args!("link {} brought {:08x}", hello.link, crc32c(&all)));
        frames = receiver.into_frames().ok_or_else(|| weft_types::Error::fatal("a link that ended well keeps its connection"))?;
    }
}

fn slices() -> impl Iterator<Item = Span> {
    (0..SLICES).map(|slice| Span::new(slice * SLICE_LEN, (slice + 1) * SLICE_LEN))
}

fn payload(link: u32) -> Vec<u8> {
    let period: Vec<u8> = (0..256).map(|at| (at * 7 + link * 13) as u8).collect();
    let mut all = period.repeat((SLICES * SLICE_LEN).div_ceil(256) as usize);
    all.truncate((SLICES * SLICE_LEN) as usize);
    all
}

fn hello(link: u32) -> Hello {
    let (from, to) = (Party::Client(3), Party::Node(NodeId(4)));
    Hello { cluster: ClusterId(1), plan: PlanId(2), link, from, to, direction: Direction::Push, token: LinkToken([5; 32]) }
}

async fn send_link(pool: &Pool, link: u32) -> Result<(), weft_types::Error> {
    let peer = Peer::Agent("server".into());
    let mut sender = LinkSender::new(pool.open("server:1", &peer, &hello(link)).await?, link, 1, STALL);
    let payload = payload(link);
    for slice in slices() {
        sender.send(slice, &payload[slice.start as usize..slice.end as usize]).await?;
    }
    sender.end().await?;
    if let Some(frames) = sender.into_frames() {
        pool.put_back("server:1", &peer, frames);
    }
    Ok(())
}

/// Sends links and makes calls until the simulation has run for `run_for`, and records the outcome of each.
async fn call(net: Arc<dyn Net>, trace: Trace, run_for: Duration) -> Result<(), Box<dyn Error>> {
    let limits = PoolLimits { answer_timeout: STALL, ..PoolLimits::default() };
    let pool = Pool::new(Arc::clone(&net), Security::Insecure, limits);
    let channel = rpc::connect_lazy(net, &Security::Insecure, "server:2", &Peer::Coordinator)?;
    let mut client: MembershipClient<_> = rpc::membership_client(channel);
    let mut number = 0;
    while turmoil::elapsed() < run_for {
        number += 1;
        let sent = send_link(&pool, number).await;
        trace.event("client", format_args!("link {number}: {}", sent.map_or_else(|error| error.to_string(), |()| "sent".into())));
        let request = HeartbeatRequest { epoch: u64::from(number), ..HeartbeatRequest::default() };
        let answered = tokio::time::timeout(CALL_DEADLINE, client.heartbeat(rpc::with_deadline(request, CALL_DEADLINE))).await;
        let answered = match answered {
            Ok(Ok(reply)) if reply.get_ref().epoch == u64::from(number) + 1 => "answered".to_string(),
            Ok(Ok(reply)) => format!("wrong: {reply:?}"),
            Ok(Err(status)) => format!("failed: {}", status.message()),
            Err(_) => "failed: no answer".into(),
        };
        trace.event("client", format_args!("call {number}: {answered}"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// A change to the network during its use, and the millisecond at which it happens.
type Happening = (u64, fn(&mut Sim<'_>, &Network, &Trace));

fn run(seed: u64, run_for: Duration, happenings: &[Happening]) -> Trace {
    let trace = Trace::default();
    trace.capture(|| {
        let network = Network::default();
        let mut sim = turmoil::Builder::new()
            .rng_seed(seed)
            .epoch(SimClock::start())
            .simulation_duration(run_for + Duration::from_secs(60))
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(20))
            .tcp_capacity(256)
            .build();
        let (net, traced) = (network.of("server", &trace), trace.clone());
        sim.host("server", move || serve(Arc::new(net.clone()), traced.clone()));
        sim.client("client", call(Arc::new(network.of("client", &trace)), trace.clone(), run_for));
        let mut happenings = happenings.iter().peekable();
        while !sim.step().unwrap() {
            trace.set_now(sim.elapsed());
            while let Some((_, happen)) = happenings.next_if(|(at, _)| Duration::from_millis(*at) <= sim.elapsed()) {
                happen(&mut sim, &network, &trace);
            }
        }
    });
    trace
}

/// The number of the client's links and calls between two times that succeeded, or that failed.
fn outcomes(trace: &Trace, from_ms: u64, to_ms: u64, good: bool) -> usize {
    let in_time =
        |line: &&str| line.trim_start().split(' ').next().is_some_and(|ms| (from_ms..to_ms).contains(&ms.parse().unwrap()));
    let text = trace.text();
    let client = text.lines().filter(in_time).filter(|line| line.contains(" client "));
    client
        .filter(|line| {
            (line.contains(": sent") || line.contains(": answered")) == good
                && (line.contains("client       link") || line.contains("client       call"))
        })
        .count()
}

#[test]
fn calls_and_links_run_in_an_order_given_by_the_seed() {
    let run_for = Duration::from_secs(3);
    let trace = run(1, run_for, &[]);
    assert!(outcomes(&trace, 0, 3_000, true) >= 20 && outcomes(&trace, 0, 3_000, false) == 0, "{}", trace.tail(40));
    assert_eq!(run(1, run_for, &[]).difference(&trace), None);
    assert_ne!(run(2, run_for, &[]).hash(), trace.hash(), "the seed has no effect");
}

#[test]
fn a_crash_ends_running_calls_and_no_later_ones() {
    let happenings: [Happening; 2] =
        [(1_000, |sim, network, trace| network.crash(sim, "server", trace)), (2_000, |sim, _, _| sim.bounce("server"))];
    for seed in 0..8 {
        let trace = run(seed, Duration::from_secs(12), &happenings);
        // A crashed host is silent: a connection attempt waits until the host is back, or for the timeout.
        assert!(outcomes(&trace, 1_000, 2_100, false) > 0, "{}", trace.text());
        assert_eq!(outcomes(&trace, 1_050, 2_000, true), 0, "{}", trace.text());
        assert!(outcomes(&trace, 9_000, 12_000, true) > 0 && outcomes(&trace, 9_000, 12_000, false) == 0, "{}", trace.tail(100));
        assert_eq!(run(seed, Duration::from_secs(12), &happenings).difference(&trace), None);
    }
}

#[test]
fn a_network_partition_is_detected_and_survived() {
    let happenings: [Happening; 2] = [
        (1_000, |sim, network, _| network.cut(sim, "client", "server")),
        (9_000, |sim, network, _| network.heal(sim, "client", "server")),
    ];
    for seed in 0..8 {
        let trace = run(seed, Duration::from_secs(30), &happenings);
        assert_eq!(outcomes(&trace, 1_050, 9_000, true), 0, "{}", trace.text());
        assert!(outcomes(&trace, 1_050, 9_000, false) >= 2, "{}", trace.text());
        // Only its keep-alive tells a channel that its connection was cut.
        assert!(
            outcomes(&trace, 25_000, 30_000, true) > 0 && outcomes(&trace, 25_000, 30_000, false) == 0,
            "{}",
            trace.tail(200)
        );
        assert_eq!(run(seed, Duration::from_secs(30), &happenings).difference(&trace), None);
    }
}

#[test]
fn a_short_delay_fails_nothing() {
    let happenings: [Happening; 2] = [
        (1_000, |sim, network, _| network.hold(sim, "client", "server")),
        (2_500, |sim, network, _| network.heal(sim, "client", "server")),
    ];
    let trace = run(3, Duration::from_secs(5), &happenings);
    assert_eq!(outcomes(&trace, 1_100, 2_500, true), 0, "{}", trace.text());
    assert_eq!(outcomes(&trace, 0, 5_000, false), 0, "{}", trace.text());
    assert!(outcomes(&trace, 2_500, 5_000, true) > 0);
    assert_eq!(run(3, Duration::from_secs(5), &happenings).difference(&trace), None);
}
