//! Probes of links between real agents.

use crate::cluster::{Cluster, Options, Stripe, node};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;
use weft_agent::{Limits, Throttle};
use weft_proto::{
    LinkRights, Peer, from_status,
    token::{probe_hash, task_hash},
    v1::{ReceiveProbeReply, ReceiveProbeRequest, SendProbeRequest},
};
use weft_types::{ByteSize, Error, NodeId, Party, PlanId, Reaction, Result};

const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);

/// The requests to both ends of a probe.
#[derive(Clone)]
struct Asked {
    from: NodeId,
    to: NodeId,
    send: SendProbeRequest,
    receive: ReceiveProbeRequest,
}

impl Asked {
    fn new(cluster: &Cluster, plan: u64, from: NodeId, to: NodeId) -> Self {
        let (sender, receiver) = (cluster.coordinator.member(from).unwrap(), cluster.coordinator.member(to).unwrap());
        let (epoch, task_hash) = (cluster.coordinator.epoch(), probe_hash());
        let rights = LinkRights { epoch, plan: PlanId(plan), link: 0, from: Party::Node(from), to: Party::Node(to), task_hash };
        let send = SendProbeRequest {
            plan,
            epoch,
            registration: sender.key.id().to_vec(),
            only_idle: false,
            to: to.0,
            name: receiver.request.name,
            address: receiver.request.data_address,
            token: receiver.key.issue(&rights).0.to_vec(),
        };
        let registration = receiver.key.id().to_vec();
        let receive =
            ReceiveProbeRequest { plan, epoch, registration, only_idle: false, from: from.0, name: sender.request.name };
        Self { from, to, send, receive }
    }

    async fn sent(&self, cluster: &Cluster) -> Result<()> {
        let sent = cluster.call(self.from).await.send_probe(self.send.clone()).await;
        sent.map(drop).map_err(|status| from_status(&status))
    }

    async fn received(&self, cluster: &Cluster) -> Result<ReceiveProbeReply> {
        let received = cluster.call(self.to).await.receive_probe(self.receive.clone()).await;
        received.map(tonic::Response::into_inner).map_err(|status| from_status(&status))
    }

    /// Runs the probe. Each attempt has its own plan number, as the coordinator's probes have, so it cannot take a connection that a
    /// cancelled attempt left behind.
    async fn run(&self, cluster: &Cluster) -> Result<ReceiveProbeReply> {
        Ok(self.done(cluster).await?.1)
    }

    /// Like [`run`](Self::run); also returns the attempt that succeeded.
    async fn done(&self, cluster: &Cluster) -> Result<(Self, ReceiveProbeReply)> {
        self.attempts(cluster, |last| {
            let SendProbeRequest { plan, token, .. } = Self::new(cluster, last.send.plan + 1_000, last.from, last.to).send;
            let receive = ReceiveProbeRequest { plan, ..last.receive.clone() };
            Self { send: SendProbeRequest { plan, token, ..last.send.clone() }, receive, ..*last }
        })
        .await
    }

    /// Runs the probe with its own token on every attempt, for probes that must be refused.
    async fn run_with_its_right(&self, cluster: &Cluster) -> Result<ReceiveProbeReply> {
        Ok(self.attempts(cluster, Self::clone).await?.1)
    }

    /// Retries while a node is still busy with a probe that was cancelled.
    async fn attempts(&self, cluster: &Cluster, next: impl Fn(&Self) -> Self) -> Result<(Self, ReceiveProbeReply)> {
        let both = async {
            let mut attempt = self.clone();
            loop {
                match tokio::try_join!(attempt.received(cluster), attempt.sent(cluster)) {
                    Err(error) if error.message.contains("another probe") => tokio::time::sleep(Duration::from_millis(10)).await,
                    other => return other.map(|(reply, ())| (attempt, reply)),
                }
                attempt = next(&attempt);
            }
        };
        tokio::time::timeout(Duration::from_secs(10), both).await.unwrap()
    }
}

fn says(result: Result<impl std::fmt::Debug>, part: &str) -> Error {
    let error = result.unwrap_err();
    assert!(error.message.contains(part), "{part} is not in: {error}");
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_are_measured_both_ways_and_a_throttled_one_shows() {
    let throttle = Throttle { network_bytes_per_s: Some(ByteSize(1 << 20)), ..Throttle::default() };
    for tls in [true, false] {
        let throttles = BTreeMap::from([(2, throttle.clone())]);
        let cluster = Cluster::start(Options { tls, throttles, ..Options::agents(2) }).await;
        for plan in [1, 2] {
            let quick = Asked::new(&cluster, plan, ONE, TWO).run(&cluster).await.unwrap();
            assert!(quick.bytes_per_s > 4.0 * f64::from(1 << 20), "{quick:?}");
            assert!(quick.slice_overhead_s.is_some_and(|seconds| (0.0..0.01).contains(&seconds)), "{quick:?}");
        }
        let slow = Asked::new(&cluster, 3, TWO, ONE).run(&cluster).await.unwrap();
        // The throttle's burst is not counted. On a loaded machine the measure may be lower.
        assert!((0.5..1.2).contains(&(slow.bytes_per_s / f64::from(1 << 20))), "{slow:?}");
        assert_eq!((cluster.agents[&1].memory_used_bytes(), cluster.agents[&2].memory_used_bytes()), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_needs_a_token_and_each_token_is_valid_once() {
    let limits = Limits { parked_ms: 100, ..Limits::default() };
    let cluster = Cluster::start(Options { tls: true, limits, ..Options::agents(3) }).await;
    let good = Asked::new(&cluster, 1, ONE, TWO);
    let token = |plan: u64, from: NodeId, hash: [u8; 32]| {
        let (from, to) = (Party::Node(from), Party::Node(TWO));
        let rights = LinkRights { epoch: 1, plan: PlanId(plan), link: 0, from, to, task_hash: hash };
        cluster.coordinator.member(TWO).unwrap().key.issue(&rights).0.to_vec()
    };
    let wrong =
        [token(2, ONE, probe_hash()), token(1, NodeId(3), probe_hash()), token(1, ONE, task_hash(b"a task")), vec![0; 32]];
    for token in wrong {
        let mut forged = good.clone();
        forged.send.token = token;
        says(forged.run_with_its_right(&cluster).await, "token");
    }
    // A node other than the expected one, with the right token and its own certificate.
    let stranger = Asked { from: NodeId(3), ..good.clone() };
    let mut named = stranger.clone();
    named.send.registration = cluster.coordinator.member(NodeId(3)).unwrap().key.id().to_vec();
    says(named.run_with_its_right(&cluster).await, "expected agent node-01");
    says(stranger.sent(&cluster).await, "another registration");

    let (good, _) = good.done(&cluster).await.unwrap();
    says(good.sent(&cluster).await, "is not open");
    let next = Asked::new(&cluster, 2, ONE, TWO);
    let replayed = Asked { send: SendProbeRequest { token: good.send.token.clone(), ..next.send.clone() }, ..next.clone() };
    says(replayed.run_with_its_right(&cluster).await, "token");
    next.run(&cluster).await.unwrap();

    let mut call = cluster.coordinator.call_with(cluster.security(&Peer::Client), ONE).await;
    let error = from_status(&call.send_probe(good.send.clone()).await.unwrap_err());
    assert!(error.message.contains("is not the coordinator"), "{error}");
    assert!(cluster.agents.values().all(|agent| agent.memory_used_bytes() == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_runs_one_probe_at_a_time_and_never_waits_forever() {
    let mut cluster = Cluster::start(Options::agents(3)).await;
    let [a, b] = [Asked::new(&cluster, 1, ONE, TWO), Asked::new(&cluster, 2, NodeId(3), TWO)];
    let begin = Instant::now();
    let (alone, second) = tokio::join!(a.received(&cluster), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        b.received(&cluster).await
    });
    assert_eq!(says(second, "busy: another probe").reaction, Reaction::Retry);
    says(alone, "no probe arrived within");
    assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
    b.run(&cluster).await.unwrap();

    // With `only_idle`, a node that runs a task is not probed.
    let stripe = Stripe::new(1, "rs(1,1)", 1 << 20, 1 << 20);
    let request = cluster.coordinator.tasks(&stripe.write_plan(), &stripe)[&node(0)].clone();
    cluster.call(ONE).await.open(request).await.unwrap();
    let mut idle = Asked::new(&cluster, 3, ONE, TWO);
    idle.send.only_idle = true;
    assert_eq!(says(idle.run(&cluster).await, "busy: the node runs tasks").reaction, Reaction::Retry);
    Asked::new(&cluster, 4, ONE, TWO).run(&cluster).await.unwrap();

    let dead = Asked::new(&cluster, 5, ONE, TWO);
    cluster.kill_agent(2).await;
    let begin = Instant::now();
    let error = says(dead.sent(&cluster).await, "node-02");
    assert!(begin.elapsed() < Duration::from_secs(6), "{error} after {:?}", begin.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_measurement_disturbed_by_another_task_is_discarded() {
    // A probe then takes at least half a second.
    let throttle = Throttle { network_bytes_per_s: Some(ByteSize(2 << 20)), ..Throttle::default() };
    let cluster = Cluster::start(Options { throttles: BTreeMap::from([(1, throttle)]), ..Options::agents(3) }).await;
    let stripe = Stripe::new(1, "rs(1,1)", 1 << 20, 1 << 20);
    let (plan, idle) = (stripe.write_plan(), |plan| {
        let mut asked = Asked::new(&cluster, plan, ONE, TWO);
        (asked.send.only_idle, asked.receive.only_idle) = (true, true);
        asked
    });
    for busy in [ONE, TWO] {
        let number = &mut 0;
        let told = async {
            loop {
                *number += 1;
                let asked = idle(u64::from(busy.0) * 100 + *number);
                let begun = async {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    let request = cluster.coordinator.tasks(&plan, &stripe)[&Party::Node(busy)].clone();
                    cluster.call(busy).await.open(request).await.unwrap();
                };
                let (sent, received, ()) = tokio::join!(asked.sent(&cluster), asked.received(&cluster), begun);
                cluster.cancel(busy, plan.id).await;
                // On a loaded machine the task may have started after the probe had ended.
                match if busy == ONE { sent.err() } else { received.err() } {
                    Some(told) => return told,
                    None => continue,
                }
            }
        };
        let told = tokio::time::timeout(Duration::from_secs(20), told).await.unwrap();
        assert!(told.reaction == Reaction::Retry && told.message.contains("the node runs tasks"), "{busy}: {told}");
    }
    idle(3).run(&cluster).await.unwrap();
}
