//! What all parts of an agent share.

use crate::{
    AgentConfig, Limits, Seams,
    admission::{Admission, capacity},
    convert,
    corruption::Findings,
    disks::Disks,
    partial::Partials,
    reception::Reception,
    removal::Bounds,
    speed,
    spool::Spools,
    state::StateFile,
    tasks::Tasks,
    throttle::Throttles,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};
use tokio::sync::{Semaphore, watch};
use weft_engine::{Buffers, classes::Capacity};
use weft_proto::{LinkKey, Pool, PoolLimits, Security};
use weft_types::{ClassLimits, ClusterId, Error, NodeId, Reaction, Result};

/// What is kept of the memory that blocks are read to, bytes: enough for some slices of each of many readers.
const READ_MEMORY_BYTES: usize = 16 << 20;

/// What all parts of an agent share.
pub(crate) struct Node {
    pub(crate) config: AgentConfig,
    pub(crate) seams: Seams,
    pub(crate) security: Security,
    pub(crate) state: Arc<StateFile>,
    /// The cluster, once it is known.
    pub(crate) cluster: watch::Sender<Option<ClusterId>>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) partials: Arc<Partials>,
    pub(crate) reception: Arc<Reception>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) findings: Arc<Findings>,
    /// What blocks are read to.
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) tasks: Tasks,
    pub(crate) throttles: Throttles,
    /// What stages take in for each row that they make, as it was measured at the start; 0: it is not known.
    pub(crate) coding_bytes_per_s: u64,
    /// Whoever sends or receives a probe.
    pub(crate) probing: Arc<Semaphore>,
    /// Whoever converts a stripe.
    pub(crate) converting: Arc<Semaphore>,
    /// Where their stripes wait that are too much for memory.
    pub(crate) spools: Arc<Spools>,
    /// What the cluster bounds, as the coordinator said last.
    cluster_limits: Mutex<ClassLimits>,
    /// True, or gone, when the agent stops.
    pub(crate) stopping: watch::Receiver<bool>,
    registration: RwLock<Option<Arc<Registration>>>,
    disks: RwLock<Option<Arc<Disks>>>,
    random: Mutex<StdRng>,
}

/// What the coordinator said when the agent registered.
#[derive(Debug, Clone)]
pub(crate) struct Registration {
    pub(crate) cluster: ClusterId,
    pub(crate) node: NodeId,
    pub(crate) epoch: u64,
    pub(crate) link_key: LinkKey,
    pub(crate) heartbeat: Duration,
}

impl Node {
    pub(crate) fn new(config: AgentConfig, seams: Seams, stopping: watch::Receiver<bool>) -> Result<Arc<Self>> {
        config.validate()?;
        let security = config.security()?;
        let state = Arc::new(StateFile::open(&config.state_dir)?);
        let known = state.get().cluster;
        if let (Some(known), Some(named)) = (known, config.cluster)
            && known != named
        {
            return Err(Error::invalid(format!(
                "{} belongs to a node of cluster {known}, and the configuration names cluster {named}",
                config.state_dir.display()
            )));
        }
        let random = Mutex::new(StdRng::seed_from_u64(seams.seed));
        let limits = config.limits.clone();
        Ok(Arc::new(Self {
            cluster: watch::Sender::new(known.or(config.cluster)),
            admission: Admission::new(&limits),
            partials: Partials::new(&limits),
            reception: Reception::new(&limits),
            pool: Arc::new(Pool::new(Arc::clone(&seams.net), security.clone(), PoolLimits::default())),
            findings: Arc::default(),
            buffers: Buffers::within(READ_MEMORY_BYTES),
            tasks: Tasks::default(),
            throttles: Throttles::new(&config.throttle),
            coding_bytes_per_s: speed::coding_bytes_per_s(&config.throttle),
            probing: Arc::new(Semaphore::new(1)),
            converting: Arc::new(Semaphore::new(convert::at_once(&limits))),
            spools: Arc::default(),
            cluster_limits: Mutex::default(),
            registration: RwLock::default(),
            disks: RwLock::default(),
            config,
            seams,
            security,
            state,
            stopping,
            random,
        }))
    }

    /// What the coordinator said; until it has said anything, nothing can be done for it.
    pub(crate) fn registration(&self) -> Result<Arc<Registration>> {
        let registration = self.registration.read().unwrap_or_else(PoisonError::into_inner).clone();
        registration.ok_or_else(|| Error::retry("the agent has not registered yet"))
    }

    pub(crate) fn set_registration(&self, registration: Registration) {
        *self.registration.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(registration));
    }

    /// The disks; before the cluster is known they cannot be opened.
    pub(crate) fn disks(&self) -> Result<Arc<Disks>> {
        let disks = self.disks.read().unwrap_or_else(PoisonError::into_inner).clone();
        disks.ok_or_else(|| Error::retry("the agent's disks are not open yet"))
    }

    /// Opens the disks, which are the cluster's from then on.
    pub(crate) async fn open_disks(self: &Arc<Self>, cluster: ClusterId) -> Result<()> {
        let node = Arc::clone(self);
        let open = move || {
            let mut random = StdRng::seed_from_u64(node.draw(|random| random.random()));
            let now_ms = node.seams.clock.now_ms();
            let (known, opener) = (node.state.get(), node.seams.disks.as_ref());
            let disks = Disks::open(&node.config.disks, &known, cluster, opener, &mut random, now_ms)?;
            // What was not saved of the high-water mark before a crash lies on the disks.
            node.state.note_stripe(disks.highest_stripe()?);
            node.state.update(|memory| {
                memory.cluster = Some(cluster);
                memory.disks = disks.ids();
            })?;
            Ok(disks)
        };
        let disks = self.seams.disk_mode.run(open).await?;
        *self.disks.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(disks));
        self.cluster.send_replace(Some(cluster));
        Ok(())
    }

    /// How much may be taken away of its disks now.
    pub(crate) fn bounds(&self) -> Bounds<'_> {
        Bounds { limits: &self.config.limits, state: &self.state, now_ms: self.seams.clock.now_ms() }
    }

    /// Its limits, where the cluster's are not lower.
    pub(crate) fn limits(&self) -> Limits {
        let (own, cluster) = (self.config.limits.clone(), *self.cluster_limits());
        let Capacity { repair_percent, scrub_percent, .. } = capacity(&own).within(&cluster);
        Limits { repair_percent, scrub_percent, ..own }
    }

    /// The cluster has these limits from now on: the lower of these and its own hold.
    pub(crate) fn keep_within(&self, cluster: ClassLimits) {
        let mut known = self.cluster_limits();
        if *known == cluster {
            return;
        }
        match cluster.check() {
            Ok(()) => tracing::info!(limits = ?cluster, "the cluster's limits are others now"),
            Err(error) => return tracing::debug!(%error, "the cluster's limits make no sense: those before hold"),
        }
        *known = cluster;
        self.admission.keep_within(&self.config.limits, &cluster);
        self.throttles.keep_within(&cluster);
    }

    fn cluster_limits(&self) -> MutexGuard<'_, ClassLimits> {
        self.cluster_limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses the word of an epoch that has ended, and remembers a new one, durably, before anything is done on its word.
    pub(crate) async fn obey(&self, epoch: u64) -> Result<()> {
        let known = self.state.get().epoch;
        if epoch < known {
            return Err(Error::new(Reaction::Fatal, format!("epoch {epoch} has ended: this node obeys epoch {known}")));
        }
        if epoch > known {
            let state = Arc::clone(&self.state);
            self.seams.disk_mode.run(move || state.update(|memory| memory.epoch = memory.epoch.max(epoch))).await?;
        }
        Ok(())
    }

    /// Something at random, from the seed.
    pub(crate) fn draw<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut self.random.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns when the agent stops.
    pub(crate) async fn stopped(&self) {
        let mut stopping = self.stopping.clone();
        // An error: the agent is gone without a word.
        let _gone = stopping.wait_for(|stopping| *stopping).await.is_err();
    }
}
