//! The state that all parts of an agent share.

use crate::{
    AgentConfig, Limits, Seams,
    admission::{Admission, capacity},
    convert,
    corruption::Findings,
    disks::{Disks, Found, JournalledDisk},
    limit::Limit,
    meter::Meter,
    partial::Partials,
    reception::Reception,
    removal::Bounds,
    speed,
    spool::Spools,
    state::StateFile,
    tasks::Tasks,
    throttle::Throttles,
    updates::{Host, Hub},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};
use tokio::{
    sync::{Semaphore, watch},
    task::{JoinError, JoinHandle},
    time::{Instant, sleep, timeout_at},
};
use weft_engine::{Buffers, classes::Capacity};
use weft_proto::{LinkKey, LogCauses, Pool, PoolLimits, Security, v1};
use weft_store::NewDisk;
use weft_types::{ClassLimits, ClusterId, Error, NodeId, Reaction, Result};

/// How long a start waits for all disks to open. Less than the time after which a silent node counts as down.
const OPENING_PATIENCE: Duration = Duration::from_secs(4);

/// How often a disk that took longer is opened if it is refused then, and the pause before.
const LATE_TRIES_MAX: u32 = 30;
const LATE_PAUSE: Duration = Duration::from_secs(1);

/// The most memory that the buffer pool keeps for reuse, bytes: some slices for each of many readers.
const READ_MEMORY_BYTES: usize = 16 << 20;

/// The state that all parts of an agent share.
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
    /// The buffers for bytes read from blocks.
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) tasks: Tasks,
    pub(crate) throttles: Throttles,
    /// What is counted for metrics and for nothing else.
    pub(crate) meter: Meter,
    /// Input bytes a second of a stage, for each output row, measured at start-up; 0 if unknown.
    pub(crate) coding_bytes_per_s: u64,
    /// Held by a probe that sends or receives.
    pub(crate) probing: Arc<Semaphore>,
    /// Held while the state is saved in the background.
    pub(crate) saving: Arc<Semaphore>,
    /// Held by each conversion.
    pub(crate) converting: Arc<Semaphore>,
    /// Disk space for stripes under conversion that do not fit in memory.
    pub(crate) spools: Arc<Spools>,
    /// Updates in place.
    pub(crate) updates: Arc<Host>,
    /// The cluster's limits, as the coordinator last sent them.
    cluster_limits: Mutex<ClassLimits>,
    /// The limit on all classes below foreground.
    pub(crate) limit: Limit,
    /// Why tasks fail, to say each now and then.
    pub(crate) failures: LogCauses,
    /// True, or closed, when the agent stops.
    pub(crate) stopping: watch::Receiver<bool>,
    registration: RwLock<Option<Arc<Registration>>>,
    disks: RwLock<Option<Arc<Disks>>>,
    random: Mutex<StdRng>,
}

/// The coordinator's reply to the last registration.
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
                "{} belongs to a node of cluster {known}, but the configuration names cluster {named}",
                config.state_dir.display()
            )));
        }
        let random = Mutex::new(StdRng::from_seed(seams.seed.0));
        let limits = config.limits.clone();
        let (cluster, findings) = (watch::Sender::new(known.or(config.cluster)), Arc::default());
        let dials = (Arc::clone(&seams.net), security.clone());
        let hub = Hub::new(&config.name, cluster.subscribe(), dials, Arc::clone(&seams.clock), Arc::clone(&findings));
        Ok(Arc::new(Self {
            updates: Arc::new(Host::new(hub, seams.disk_mode, limits.update_journal)),
            cluster,
            admission: Admission::new(&limits),
            partials: Partials::new(&limits),
            reception: Reception::new(&limits),
            pool: Arc::new(Pool::new(Arc::clone(&seams.net), security.clone(), PoolLimits::default())),
            findings,
            buffers: Buffers::within(READ_MEMORY_BYTES),
            tasks: Tasks::default(),
            throttles: Throttles::new(&config.throttle),
            meter: Meter::default(),
            coding_bytes_per_s: speed::coding_bytes_per_s(&config.throttle),
            probing: Arc::new(Semaphore::new(1)),
            saving: Arc::new(Semaphore::new(1)),
            converting: Arc::new(Semaphore::new(convert::at_once(&limits))),
            spools: Arc::default(),
            cluster_limits: Mutex::default(),
            limit: Limit::default(),
            failures: LogCauses::default(),
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

    /// The last registration. Fails until the agent has registered, because it can serve no coordinator before.
    pub(crate) fn registration(&self) -> Result<Arc<Registration>> {
        let registration = self.registration.read().unwrap_or_else(PoisonError::into_inner).clone();
        registration.ok_or_else(|| Error::retry("the agent has not registered yet"))
    }

    pub(crate) fn set_registration(&self, registration: Registration) {
        *self.registration.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(registration));
    }

    /// The disks. They can be opened only after the cluster is known.
    pub(crate) fn disks(&self) -> Result<Arc<Disks>> {
        let disks = self.disks.read().unwrap_or_else(PoisonError::into_inner).clone();
        disks.ok_or_else(|| Error::retry("the agent's disks are not open yet"))
    }

    /// After this time without an answer, a disk counts as failed.
    pub(crate) fn disk_timeout(&self) -> Duration {
        Duration::from_millis(self.config.limits.disk_timeout_ms)
    }

    /// Opens the disks, which belong to the cluster from then on. Those that take too long join later.
    pub(crate) async fn open_disks(self: &Arc<Self>, cluster: ClusterId) -> Result<()> {
        let disks = Arc::new(Disks::new(&self.config.disks, &self.state.get()));
        let opening: Vec<_> = (0..disks.count()).map(|number| self.open_disk(&disks, number, cluster)).collect();
        let (until, mut late) = (Instant::now() + OPENING_PATIENCE, Vec::new());
        for (number, mut opening) in opening.into_iter().enumerate() {
            match timeout_at(until, &mut opening).await {
                Ok(found) => self.has_opened(&disks, number, found)?,
                Err(_) => late.push((number, opening)),
            }
        }
        let (state, mut ids) = (Arc::clone(&self.state), disks.ids());
        ids.extend(disks.marked_ids());
        let remember = move || {
            state.update(|memory| {
                memory.cluster = Some(cluster);
                memory.disks = ids;
            })
        };
        self.seams.disk_mode.run_boxed(remember).await?;
        *self.disks.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&disks));
        self.cluster.send_replace(Some(cluster));
        for (number, opening) in late {
            let disk = disks.path(number).display();
            tracing::warn!(%disk, "a disk takes long to open, or hangs: the other disks serve without it");
            tokio::spawn(Arc::clone(self).join_late(Arc::clone(&disks), (number, cluster), opening));
        }
        Ok(())
    }

    /// Opens a disk in the background.
    fn open_disk(self: &Arc<Self>, disks: &Arc<Disks>, number: usize, cluster: ClusterId) -> JoinHandle<Result<Found>> {
        let new = NewDisk { disk_id: self.draw(|random| random.random()), created_ms: self.seams.clock.now_ms() };
        let (node, disks) = (Arc::clone(self), Arc::clone(disks));
        tokio::spawn(async move {
            let (opener, of) = (Arc::clone(&node), Arc::clone(&disks));
            let open = move || of.open_one(number, new, &opener.state.get(), cluster, opener.seams.disks.as_ref());
            let found = node.seams.disk_mode.run_boxed(open).await?;
            Ok(node.open_journal(number, &disks, found).await)
        })
    }

    /// Opens the journal of updates of a disk, as often as it takes. The blocks that are open for updates must be known before a task can read
    /// them, so the disk does not join before.
    async fn open_journal(&self, number: usize, disks: &Disks, found: Found) -> Found {
        let journalled = || found.journalled(disks.path(number)).filter(|_| !disks.is_aside(number));
        match self.start_journal(number, journalled).await {
            true => found,
            false => Found::unused(),
        }
    }

    /// Opens the journal of updates of a disk for as long as there is one. Returns false if the agent stops.
    async fn start_journal(&self, number: usize, disk: impl Fn() -> Option<JournalledDisk>) -> bool {
        let start = || disk().map(|disk| self.updates.start_disk(number, disk, self.draw(|random| random.random())));
        self.until_done("cannot open a journal of updates: the disk is not used until it can be opened", start).await
    }

    /// Tries something again and again until it succeeds, or `attempt` says that it is not needed any more; logs each new reason why it does
    /// not. Returns false if the agent stops.
    async fn until_done<F: Future<Output = Result<()>>>(&self, fails: &str, attempt: impl Fn() -> Option<F>) -> bool {
        let mut complaint = String::new();
        while let Some(tried) = attempt() {
            let done = tokio::select! {
                biased;
                () = self.stopped() => return false,
                done = tried => done,
            };
            match done {
                Ok(()) => return true,
                Err(error) if error.message != complaint => {
                    tracing::error!(%error, "{fails}");
                    complaint = error.message;
                }
                Err(_) => {}
            }
            tokio::select! {
                biased;
                () = self.stopped() => return false,
                () = sleep(LATE_PAUSE) => {}
            }
        }
        true
    }

    /// Keeps disks aside that the coordinator names, and takes in those that this node did not know and that are its own by the coordinator's
    /// word. `told`: the ids of the disks that it was asked about. Those that take too long join later.
    pub(crate) async fn sort_disks(
        self: &Arc<Self>,
        disks: &Arc<Disks>,
        told: &BTreeSet<String>,
        aside: &[v1::AsideDisk],
    ) -> Result<()> {
        disks.note_copies(told, aside);
        let aside = aside.iter().map(|disk| (disk.id.clone(), disk.why.clone())).collect();
        let joining = disks.sort(told, &aside);
        // After a restart they wait for the coordinator's word. Also those of before: they may not be marked yet, and nothing is written twice.
        let (state, marked) = (Arc::clone(&self.state), disks.marked_ids());
        if !marked.is_empty() {
            self.seams.disk_mode.run_boxed(move || state.update(|memory| memory.disks.extend(marked))).await?;
        }
        let until = Instant::now() + OPENING_PATIENCE;
        let join = |number| tokio::spawn(Arc::clone(self).join_own(Arc::clone(disks), number));
        let joining: Vec<_> = joining.into_iter().map(|number| (number, join(number))).collect();
        for (number, joining) in joining {
            if timeout_at(until, joining).await.is_err() {
                tracing::warn!(disk = %disks.path(number).display(), "a disk takes long to join: the other disks serve without it");
            }
        }
        Ok(())
    }

    /// A disk that this node did not know joins.
    async fn join_own(self: Arc<Self>, disks: Arc<Disks>, number: usize) {
        if self.start_journal(number, || disks.joining(number)).await {
            let take_in = || disks.joining(number).map(|_| self.take_in(&disks, number));
            self.until_done("a disk that was used before cannot join: trying again and again", take_in).await;
        }
    }

    /// Takes a disk in whose journal is open.
    async fn take_in(&self, disks: &Disks, number: usize) -> Result<()> {
        let (path, id) = (disks.path(number).display().to_string(), disks.id(number).to_owned());
        let state = Arc::clone(&self.state);
        // Before it is used: without its id, an empty mount point could later be taken for a new disk.
        self.seams.disk_mode.run_boxed(move || state.update(|memory| drop(memory.disks.insert(path, id)))).await?;
        disks.joined(number);
        tracing::info!(disk = %disks.path(number).display(), "took a disk in that was used before");
        Ok(())
    }

    fn has_opened(&self, disks: &Disks, number: usize, found: Result<Result<Found>, JoinError>) -> Result<()> {
        let found = found.map_err(|error| Error::fatal(format!("the opening of a disk was aborted: {error}")))??;
        // A crash may have lost the latest high-water mark. The stripe numbers on the disks restore it.
        self.state.note_stripe(found.highest_stripe);
        disks.join(number, found);
        Ok(())
    }

    /// A disk that hung when the agent started joins when it answers.
    async fn join_late(
        self: Arc<Self>,
        disks: Arc<Disks>,
        (number, cluster): (usize, ClusterId),
        mut opening: JoinHandle<Result<Found>>,
    ) {
        let mut tries = 1;
        let found = loop {
            let found = tokio::select! {
                biased;
                () = self.stopped() => return,
                found = &mut opening => found,
            };
            let found = found.unwrap_or_else(|error| Err(Error::fatal(format!("the opening was aborted: {error}"))));
            // A process that was killed while the disk hung keeps it locked until it can end.
            if found.is_ok() || tries == LATE_TRIES_MAX {
                break found;
            }
            tries += 1;
            sleep(LATE_PAUSE).await;
            opening = self.open_disk(&disks, number, cluster);
        };
        let mut found = found.unwrap_or_else(Found::failed);
        let node = Arc::clone(&self);
        let join = move || {
            node.state.note_stripe(found.highest_stripe);
            let id = found.id().filter(|_| !disks.is_aside(number)).map(str::to_owned);
            let disk = disks.path(number).display().to_string();
            if let Some(id) = id {
                // Before it is used: without its id, an empty mount point could later be taken for a new disk.
                match node.state.update(|memory| drop(memory.disks.insert(disk.clone(), id))) {
                    Ok(()) => tracing::warn!(disk, "a disk that took long has been opened"),
                    Err(error) => found = Found::failed(error),
                }
            }
            disks.join_late(number, found);
            Ok(())
        };
        if let Err(error) = self.seams.disk_mode.run_boxed(join).await {
            tracing::error!(%error, "a disk that was opened late cannot be used");
        }
    }

    /// What limits removals from the disks now.
    pub(crate) fn bounds(&self) -> Bounds<'_> {
        Bounds { limits: &self.config.limits, state: &self.state, now_ms: self.seams.clock.now_ms() }
    }

    /// The node's limits, lowered to the cluster's where those are lower.
    pub(crate) fn limits(&self) -> Limits {
        let (own, cluster) = (self.config.limits.clone(), *self.cluster_limits());
        let Capacity { repair_percent, scrub_percent, .. } = capacity(&own).within(&cluster);
        Limits { repair_percent, scrub_percent, ..own }
    }

    /// Applies the cluster's limits; the lower of these and the node's own apply.
    pub(crate) fn keep_within(&self, cluster: ClassLimits) {
        let mut known = self.cluster_limits();
        if *known == cluster {
            return;
        }
        match cluster.check() {
            Ok(()) => tracing::info!(limits = ?cluster, "applied new limits of the cluster"),
            Err(error) => return tracing::debug!(%error, "the cluster's limits are invalid: keeping the previous ones"),
        }
        *known = cluster;
        self.admission.keep_within(&self.config.limits, &cluster);
        self.throttles.keep_within(&cluster);
    }

    fn cluster_limits(&self) -> MutexGuard<'_, ClassLimits> {
        self.cluster_limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many conversions run.
    pub(crate) fn conversions(&self) -> usize {
        convert::at_once(&self.config.limits).saturating_sub(self.converting.available_permits())
    }

    /// Refuses an epoch that has ended, and makes a new one durable before the agent acts on it.
    pub(crate) async fn obey(&self, epoch: u64) -> Result<()> {
        let known = self.state.get().epoch;
        if epoch < known {
            return Err(Error::new(Reaction::Fatal, format!("epoch {epoch} has ended: this node obeys epoch {known}")));
        }
        if epoch > known {
            let state = Arc::clone(&self.state);
            self.seams.disk_mode.run_boxed(move || state.update(|memory| memory.epoch = memory.epoch.max(epoch))).await?;
        }
        Ok(())
    }

    /// Draws from the seeded random numbers.
    pub(crate) fn draw<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut self.random.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns when the agent stops.
    pub(crate) async fn stopped(&self) {
        let mut stopping = self.stopping.clone();
        // An error means that the sender was dropped: the agent has ended.
        let _gone = stopping.wait_for(|stopping| *stopping).await.is_err();
    }
}
