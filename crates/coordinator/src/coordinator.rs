//! Starts and stops a coordinator.

use crate::{
    auto_drain,
    came_back::{self, state::Checks},
    claims::Claims,
    completion,
    config::{self, CoordinatorConfig},
    delegations::Delegations,
    disk_health::state::DiskHealth,
    healer::{self, state::Healer},
    health::{self, state::Health},
    in_flight::InFlight,
    jobs::{self, control::Jobs},
    limit::{self, state::Limit},
    links,
    members::Members,
    membership::{self, MembershipService},
    meter::Meter,
    metrics::Source,
    moved::{follow, state::Moves},
    orphans,
    puts::under_way::Puts,
    read::under_way::Reads,
    scrub::{self, state::Scrub},
    service::WeftService,
    shared::{Shared, wait_for_stop},
    silence::{self, SilenceFile},
    started::Started,
    sweep, tasks,
    updates::{pass, state::Updates},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, atomic::AtomicU32},
    time::Duration,
};
use tokio::{sync::watch, task::JoinHandle};
use weft_control::known::Known;
use weft_meta::{Meta, MetaMode, NewCluster, SqliteMeta};
use weft_plan::ProofKey;
use weft_proto::{LogCauses, Net, metrics::Server, rpc};
use weft_types::{Clock, ClusterId, Error, Result, Seed};

/// How often the coordinator checks for silent nodes.
const LOOK_INTERVAL_MS: u64 = 250;

/// A coordinator's dependencies on the outside, which a simulation replaces.
#[derive(Clone)]
pub struct Seams {
    /// The network.
    pub net: Arc<dyn Net>,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
    /// The seed of all random numbers.
    pub seed: Seed,
    /// Where metadata transactions run.
    pub meta_mode: MetaMode,
}

/// A running coordinator. Dropping it stops it.
#[derive(Debug)]
pub struct Coordinator {
    address: String,
    cluster: ClusterId,
    epoch: u64,
    stop: watch::Sender<bool>,
    serving: JoinHandle<Result<()>>,
}

impl Coordinator {
    /// Opens the metadata, begins a new epoch, and serves agents and clients.
    pub async fn start(config: CoordinatorConfig, seams: Seams) -> Result<Self> {
        Self::begin(config, seams).await.map(|(coordinator, _)| coordinator)
    }

    /// Also returns its state.
    pub(crate) async fn begin(config: CoordinatorConfig, seams: Seams) -> Result<(Self, Arc<Shared>)> {
        config.check()?;
        let security = config.security()?;
        if security.is_insecure() {
            tracing::warn!(
                "insecure = true: connections are neither encrypted nor authenticated; anyone who can reach the port has all rights"
            );
        }
        let mut rng = StdRng::from_seed(seams.seed.0);
        let meta = open_meta(&config, &seams, &mut rng)?;
        let listener = (seams.net.listen(&config.listen).await)
            .map_err(|error| Error::fatal(format!("cannot listen on {}: {error}", config.listen)))?;
        let address = listener.local_address().map_err(|error| Error::fatal(format!("cannot listen: {error}")))?;
        let metrics = Server::listen(seams.net.as_ref(), &config.metrics).await?;
        // Only the process that holds the port may lead: a second one that is started by mistake must not replace the
        // first.
        let epoch = meta.become_leader().await?;
        let cluster = meta.cluster().await?;
        if let Some(asked) = config.cluster.filter(|asked| *asked != cluster.id) {
            let (dir, id) = (config.dir.display(), cluster.id);
            return Err(Error::invalid(format!(
                "{dir} belongs to cluster {id}, but this coordinator is configured for cluster {asked}"
            )));
        }
        let (started, (stop, stopped)) = (Started::now_is_the_start(), watch::channel(false));
        let (mut nodes, now_ms) = (meta.nodes().await?, seams.clock.now_ms());
        let lost_after = Duration::from_millis(config.lost_after_ms);
        weft_control::healer::resume(&mut nodes, silence::read(&config.dir).as_ref(), now_ms, lost_after);
        let members = Members::new(
            nodes,
            (started, now_ms),
            Duration::from_millis(config.down_after_ms),
            Duration::from_millis(config.suspect_ms),
        );
        members.set_blocks(&meta.blocks_per_disk().await?);
        let shared = Arc::new(Shared {
            meta: Arc::new(meta),
            epoch,
            net: seams.net,
            security: security.clone(),
            clock: seams.clock,
            members,
            links: Mutex::default(),
            stragglers: Mutex::default(),
            activity: Mutex::default(),
            in_flight: InFlight::new(started),
            puts: Puts::default(),
            completion: Mutex::default(),
            reads: Reads::default(),
            jobs: Jobs::default(),
            delegations: Delegations::default(),
            health: Health::default(),
            healer: Healer::new(cluster.auto_repair),
            disk_health: DiskHealth::default(),
            limit: Limit::new(cluster.repair_limit),
            came_back: Checks::default(),
            moved: Moves::default(),
            scrub: Scrub::default(),
            claims: Claims::default(),
            updates: Updates::default(),
            failures: LogCauses::default(),
            started,
            stop: stop.clone(),
            known: Known::new(proof_key(seams.seed)),
            meter: Meter::default(),
            metrics_address: metrics.as_ref().map(|metrics| metrics.address().to_owned()).unwrap_or_default(),
            rng: Mutex::new(rng),
            plans: AtomicU32::new(1),
            codes: Mutex::new(BTreeMap::new()),
            cluster,
            config,
        });
        pass::resume(&shared).await?;
        tracing::info!(cluster = %shared.cluster.id, %epoch, %address, "leading");
        tasks::start_until_stopped(stopped.clone(), watch_nodes(Arc::clone(&shared)));
        tasks::start_until_stopped(stopped.clone(), sweep::run(Arc::clone(&shared)));
        tasks::start_until_stopped(stopped.clone(), completion::run(Arc::clone(&shared)));
        tasks::start_until_stopped(stopped.clone(), orphans::run(Arc::clone(&shared)));
        tasks::start_until_stopped(stopped.clone(), links::run(Arc::clone(&shared)));
        tasks::start_until_stopped(stopped.clone(), health::run(Arc::clone(&shared)));
        tasks::start_until_stopped(stopped.clone(), healer::run(Arc::clone(&shared)));
        tasks::start_until_stopped(stopped.clone(), healer::crowded::run(Arc::clone(&shared)));
        tasks::start_until_stopped(stopped.clone(), auto_drain::run(Arc::clone(&shared)));
        tasks::start_until_stopped(stopped.clone(), came_back::run(Arc::clone(&shared)));
        tasks::start_until_stopped(stopped.clone(), follow::run(Arc::clone(&shared)));
        tasks::start_until_stopped(stopped.clone(), scrub::run(Arc::clone(&shared)));
        tasks::start_until_stopped(stopped.clone(), limit::run(Arc::clone(&shared)));
        tasks::start_until_stopped(stopped.clone(), pass::run(Arc::clone(&shared)));
        jobs::go_on(&shared).await?;
        tasks::start_until_stopped(stopped.clone(), jobs::pressure::run(Arc::clone(&shared)));
        let services = rpc::Services::new()
            .with(rpc::membership_server(MembershipService::new(Arc::clone(&shared))))
            .with(rpc::weft_server(WeftService::new(Arc::clone(&shared))));
        if let Some(metrics) = metrics {
            let source = Arc::new(Source { shared: Arc::clone(&shared), calls: services.meters() });
            tokio::spawn(metrics.serve(source, wait_for_stop(stopped.clone())));
        }
        let cluster = shared.cluster.id;
        let serving = tokio::spawn(rpc::serve(services, listener, security, wait_for_stop(stopped)));
        Ok((Self { address, cluster, epoch: epoch.0, stop, serving }, shared))
    }

    /// Its address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The cluster.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The epoch in which it leads.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Waits until it ends on its own, because another coordinator leads or it can no longer serve.
    pub async fn ended(&mut self) -> Result<()> {
        (&mut self.serving).await.unwrap_or_else(|error| Err(Error::fatal(format!("the coordinator failed: {error}"))))
    }

    /// Stops it; running calls have a moment to finish.
    pub async fn shutdown(mut self) -> Result<()> {
        self.stop.send_replace(true);
        self.ended().await
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

/// A separate key: no value that is sent to others is drawn from the same numbers.
fn proof_key(seed: Seed) -> ProofKey {
    ProofKey::new(StdRng::from_seed(seed.with_label(*b"proofkey").0).random())
}

fn open_meta(config: &CoordinatorConfig, seams: &Seams, rng: &mut StdRng) -> Result<SqliteMeta> {
    config::make_dir(&config.dir)?;
    let new = NewCluster {
        id: config.cluster.unwrap_or_else(|| ClusterId(rng.random())),
        incarnation: rng.random(),
        policies: vec![config.first_policy()?],
        created_ms: seams.clock.now_ms(),
        auto_repair: config.auto_repair,
    };
    Ok(SqliteMeta::open(&config.metadata_file(), seams.meta_mode, &new)?)
}

/// Marks silent nodes as down, in the metadata too, and records how long they have been silent.
async fn watch_nodes(shared: Arc<Shared>) {
    let mut silence = SilenceFile::default();
    let mut look = tokio::time::interval(Duration::from_millis(LOOK_INTERVAL_MS));
    loop {
        look.tick().await;
        membership::take_down_silent(&shared).await;
        silence.look(&shared);
    }
}
