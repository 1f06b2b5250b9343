//! The agent as a whole: what it starts, and how it stops.

use crate::{
    AgentConfig, Seams,
    admission::Admission,
    membership::{self, Addresses},
    metrics::Source,
    node::Node,
    service::Service,
    updates,
};
use futures::future::BoxFuture;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use weft_proto::{
    Incoming, Listen,
    metrics::Server,
    rpc::{self, Services},
};
use weft_types::{Error, NodeId, Result};

/// A running agent.
///
/// Dropping it has the effect of `kill -9`: open connections, tasks and partial blocks are abandoned.
pub struct Agent {
    node: Arc<Node>,
    services: JoinSet<Result<()>>,
    stop: Stopper,
    data_address: String,
    control_address: String,
    metrics_address: Option<String>,
}

/// A handle that stops an agent.
#[derive(Debug, Clone)]
pub struct Stopper(watch::Sender<bool>);

impl Stopper {
    /// Signals the agent to stop.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// Reports the memory of a running agent's tasks.
#[derive(Clone)]
pub struct MemoryGauge(Arc<Admission>);

impl MemoryGauge {
    /// Memory that tasks have reserved, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.0.memory_used_bytes()
    }
}

const HOUSEKEEPING: Duration = Duration::from_secs(1);
const UPDATES_TICK: Duration = Duration::from_millis(200);
/// The longest interval between two checks of the quarantine.
const QUARANTINE_LOOK_MAX: Duration = Duration::from_secs(600);
/// The time between two measurements of how fast a disk reads, and before the first one.
const MEASURE_EVERY: Duration = Duration::from_secs(600);
/// The time between two checks of whether a disk with quarantined blocks is short of space.
const SPACE_LOOK: Duration = Duration::from_secs(60);

impl Agent {
    /// Opens the disks, listens, and starts to register with the coordinator. Fails at once on problems that an
    /// operator must fix; an unreachable coordinator is not one of them.
    pub async fn start(config: AgentConfig, seams: Seams) -> Result<Self> {
        let (stop, stopping) = watch::channel(false);
        let node = Node::new(config, seams, stopping)?;
        if node.security.is_insecure() {
            tracing::warn!("insecure = true: this agent accepts every connection without authentication");
        }
        let known = *node.cluster.borrow();
        if let Some(cluster) = known {
            node.open_disks(cluster).await?;
        }
        let data = listen(&node, &node.config.data_listen).await?;
        let control = listen(&node, &node.config.control_listen).await?;
        let data_address = advertised(&node.config.data_advertise, "data_advertise", data.as_ref())?;
        let control_address = advertised(&node.config.control_advertise, "control_advertise", control.as_ref())?;
        tracing::info!(data = %data_address, control = %control_address, "listening");
        let metrics = Server::listen(node.seams.net.as_ref(), &node.config.metrics).await?;
        let metrics_address = metrics.as_ref().map(|metrics| metrics.address().to_owned());

        let (mut services, calls) = (JoinSet::new(), Services::new().with(rpc::agent_server(Service(Arc::clone(&node)))));
        if let Some(metrics) = metrics {
            begin(&mut services, serve_metrics(Arc::clone(&node), metrics, Source::new(Arc::clone(&node), calls.meters())));
        }
        begin(&mut services, serve_data(Arc::clone(&node), data));
        begin(&mut services, serve_control(Arc::clone(&node), control, calls));
        begin(&mut services, keep_tasks(Arc::clone(&node)));
        begin(&mut services, keep_partials(Arc::clone(&node)));
        begin(&mut services, keep_quarantine(Arc::clone(&node)));
        begin(&mut services, keep_updates(Arc::clone(&node)));
        begin(&mut services, ask_about_updates(Arc::clone(&node)));
        begin(&mut services, measure_disks(Arc::clone(&node)));
        let addresses = Addresses {
            data: data_address.clone(),
            control: control_address.clone(),
            metrics: metrics_address.clone().unwrap_or_default(),
        };
        begin(&mut services, stay_registered(Arc::clone(&node), addresses));
        Ok(Self { node, services, stop: Stopper(stop), data_address, control_address, metrics_address })
    }

    /// The address on which the agent accepts data connections.
    pub fn data_address(&self) -> &str {
        &self.data_address
    }

    /// The address on which the agent accepts gRPC calls.
    pub fn control_address(&self) -> &str {
        &self.control_address
    }

    /// The address of its metrics, if it serves them.
    pub fn metrics_address(&self) -> Option<&str> {
        self.metrics_address.as_deref()
    }

    /// The node's number; `None` before its first registration.
    pub fn node(&self) -> Option<NodeId> {
        self.node.registration().ok().map(|registration| registration.node)
    }

    /// Memory that the tasks have reserved, in bytes.
    pub fn memory_used_bytes(&self) -> u64 {
        self.node.admission.memory_used_bytes()
    }

    /// A handle that reports [`memory_used_bytes`](Self::memory_used_bytes) while the agent runs.
    pub fn memory_gauge(&self) -> MemoryGauge {
        MemoryGauge(Arc::clone(&self.node.admission))
    }

    /// A handle that stops the agent.
    pub fn stopper(&self) -> Stopper {
        self.stop.clone()
    }

    /// Runs until the agent is stopped or fails.
    pub async fn run(mut self) -> Result<()> {
        let mut ended = Ok(());
        while let Some(service) = self.services.join_next().await {
            let service = service.unwrap_or_else(|error| Err(Error::fatal(format!("a part of the agent ended: {error}"))));
            if let Err(error) = service
                && ended.is_ok()
            {
                tracing::error!(%error, "the agent stops after a fatal error");
                ended = Err(error);
            }
            // When one part ends, the others must stop.
            self.stop.stop();
        }
        let state = Arc::clone(&self.node.state);
        ended.and(self.node.seams.disk_mode.run_boxed(move || state.update(|_| ())).await)
    }

    /// Stops the agent and waits until it has stopped.
    pub async fn shutdown(self) -> Result<()> {
        self.stop.stop();
        self.run().await
    }
}

async fn listen(node: &Node, address: &str) -> Result<Box<dyn Listen>> {
    let listening = node.seams.net.listen(address).await;
    listening.map_err(|error| Error::invalid(format!("cannot listen on {address}: {error}")))
}

/// The address that others dial to reach a listener; `setting` is the configuration key that overrides it.
fn advertised(named: &Option<String>, setting: &str, listener: &dyn Listen) -> Result<String> {
    let bound =
        || listener.local_address().map_err(|error| Error::fatal(format!("cannot read a listener's own address: {error}")));
    let address = named.clone().map_or_else(bound, Ok)?;
    // Peers that dial an unspecified address would reach themselves.
    if address.parse::<std::net::SocketAddr>().is_ok_and(|address| address.ip().is_unspecified()) {
        return Err(Error::invalid(format!(
            "peers cannot dial {address}: set {setting} = \"host:port\" to the address at which they reach this agent"
        )));
    }
    Ok(address)
}

/// Begins a service. It is boxed because the runtime's code around a task is compiled once for each type of future.
fn begin(services: &mut JoinSet<Result<()>>, service: impl Future<Output = Result<()>> + Send + 'static) {
    let service: BoxFuture<'static, Result<()>> = Box::pin(service);
    services.spawn(service);
}

async fn serve_data(node: Arc<Node>, listener: Box<dyn Listen>) -> Result<()> {
    let incoming = Incoming::start(listener, node.security.clone());
    let reception = Arc::clone(&node.reception);
    tokio::select! {
        biased;
        () = node.stopped() => Ok(()),
        () = reception.serve(incoming, Arc::clone(&node.updates.hub)) => Err(Error::fatal("the data port was closed")),
    }
}

async fn serve_metrics(node: Arc<Node>, server: Server, source: Source) -> Result<()> {
    server.serve(Arc::new(source), node.stopped()).await;
    Ok(())
}

async fn serve_control(node: Arc<Node>, listener: Box<dyn Listen>, services: Services) -> Result<()> {
    let security = node.security.clone();
    rpc::serve(services, listener, security, async move { node.stopped().await }).await
}

async fn stay_registered(node: Arc<Node>, addresses: Addresses) -> Result<()> {
    tokio::select! {
        biased;
        () = node.stopped() => Ok(()),
        ended = membership::stay(Arc::clone(&node), addresses) => ended,
    }
}

/// Drops tasks that were never started.
async fn keep_tasks(node: Arc<Node>) -> Result<()> {
    let unstarted = Duration::from_millis(node.config.limits.unstarted_ms);
    keep(node, move |node| node.tasks.expire(unstarted)).await
}

/// Drops unused partial blocks.
async fn keep_partials(node: Arc<Node>) -> Result<()> {
    keep(node, |node| node.partials.expire()).await
}

/// Clears the quarantine of the disks.
async fn keep_quarantine(node: Arc<Node>) -> Result<()> {
    let between_looks = Duration::from_millis(node.config.limits.quarantine_ms).clamp(HOUSEKEEPING, QUARANTINE_LOOK_MAX);
    let next = Mutex::new((Instant::now(), Instant::now()));
    keep(node, move |node| {
        let (now, Ok(disks)) = (Instant::now(), node.disks()) else { return };
        let (looks, looks_at_space) = {
            let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
            let is_due = (now >= next.0, now >= next.1);
            *next = (if is_due.0 { now + between_looks } else { next.0 }, if is_due.1 { now + SPACE_LOOK } else { next.1 });
            is_due
        };
        if looks {
            disks.clear_quarantine(&node.bounds());
        }
        if looks_at_space {
            disks.relieve(&node.bounds());
        }
    })
    .await
}

/// Lets blocks that are open for updates send again what was not answered.
async fn keep_updates(node: Arc<Node>) -> Result<()> {
    let mut ticks = interval(UPDATES_TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = node.stopped() => return Ok(()),
            _ = ticks.tick() => node.updates.hub.tick(),
        }
    }
}

/// Asks the coordinator about stripes that are open for updates, and sets damaged journals aside.
async fn ask_about_updates(node: Arc<Node>) -> Result<()> {
    let mend = async {
        // They end with it.
        let mut mending = JoinSet::new();
        loop {
            sleep(HOUSEKEEPING).await;
            while mending.try_join_next().is_some() {}
            if let Ok(disks) = node.disks() {
                node.updates.mend(&disks, &mut mending);
            }
        }
    };
    tokio::select! {
        biased;
        () = node.stopped() => {}
        () = updates::ask_coordinator(Arc::clone(&node.updates.hub)) => {}
        () = mend => {}
    }
    Ok(())
}

/// Measures now and then how fast the disks read.
async fn measure_disks(node: Arc<Node>) -> Result<()> {
    let measure = async {
        loop {
            sleep(MEASURE_EVERY).await;
            // A measurement would not keep to a throttle of the disks. Each counts with its part of that.
            if let Ok(disks) = node.disks()
                && node.throttles.disk_rate().is_none()
            {
                disks.measure(node.seams.disk_mode).await;
            }
        }
    };
    tokio::select! {
        biased;
        () = node.stopped() => {}
        () = measure => {}
    }
    Ok(())
}

/// Does some housekeeping again and again. A disk that hangs holds up only what has to do with it.
async fn keep(node: Arc<Node>, work: impl Fn(&Node) + Send + Sync + 'static) -> Result<()> {
    let (mut ticks, work) = (interval(HOUSEKEEPING), Arc::new(work));
    loop {
        tokio::select! {
            biased;
            () = node.stopped() => return Ok(()),
            _ = ticks.tick() => {}
        }
        let (housekeeper, work) = (Arc::clone(&node), Arc::clone(&work));
        let done = node.seams.disk_mode.run_boxed(move || {
            work(&housekeeper);
            Ok(())
        });
        tokio::select! {
            biased;
            () = node.stopped() => return Ok(()),
            done = done => done?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_proto::{Net, TcpNet};

    #[tokio::test]
    async fn an_unspecified_address_is_not_advertised() {
        let net = TcpNet::default();
        let anywhere = net.listen("0.0.0.0:0").await.unwrap();
        let error = advertised(&None, "data_advertise", anywhere.as_ref()).unwrap_err();
        assert!(error.message.contains("data_advertise = \"host:port\""), "{error}");
        assert_eq!(advertised(&Some("node-1:7401".into()), "data_advertise", anywhere.as_ref()), Ok("node-1:7401".to_owned()));
        let here = net.listen("127.0.0.1:0").await.unwrap();
        assert!(advertised(&None, "data_advertise", here.as_ref()).unwrap().starts_with("127.0.0.1:"));
    }
}
