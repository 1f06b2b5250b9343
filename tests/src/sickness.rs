//! Failing disks: unreadable sectors, bits that flip on the way to the disk or on it, and failing syncs. The seed
//! determines which calls are affected.

use crate::Trace;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use weft_store::{Call, CallKind, Fault, Step, Steps};
use weft_types::{BlockId, Reaction};

/// A kind of disk fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ailment {
    /// A read fails, as for an unreadable sector.
    ReadError,
    /// A bit of written data flips before its checksum is computed.
    FlippedOnTheWay,
    /// A bit on the disk flips.
    FlippedAtRest,
    /// A sync fails, and the disk with it.
    FailedSync,
}

impl Ailment {
    /// One in this many calls is affected.
    fn one_in(self) -> u32 {
        match self {
            Self::ReadError => 3,
            Self::FlippedOnTheWay => 6,
            Self::FlippedAtRest => 2,
            Self::FailedSync => 24,
        }
    }
}

/// What a disk does from some moment on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Illness {
    /// It has no free space.
    Full,
    /// Each sync fails, and the disk with it.
    Broken,
    /// It returns other bytes than were written, with checksums that match them.
    Lying,
    /// It stores other bytes than it was given.
    Spoiling,
}

/// The hosts with failing disks, and the faults so far. Clones share the state.
#[derive(Clone)]
pub struct Sickness(Arc<Mutex<Inner>>);

struct Inner {
    random: StdRng,
    sick: BTreeSet<String>,
    ill: BTreeSet<(String, Illness)>,
    /// The host that last opened a block, and the one that last created one.
    roles: Roles,
    befell: BTreeMap<Ailment, usize>,
    spoiled: BTreeSet<(PathBuf, BlockId)>,
    trace: Trace,
}

impl Sickness {
    /// Without any fault.
    pub fn new(seed: u64, trace: &Trace) -> Self {
        let (sick, ill, befell, spoiled) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
        let (random, roles, trace) = (StdRng::seed_from_u64(seed ^ 0xbad_d15c), Roles::default(), trace.clone());
        Self(Arc::new(Mutex::new(Inner { random, sick, ill, roles, befell, spoiled, trace })))
    }

    /// A host's disks start to fail.
    pub(crate) fn begin(&self, host: &str) {
        self.lock().sick.insert(host.to_owned());
    }

    /// A host's disks stop failing; spoiled blocks stay spoiled.
    pub(crate) fn end(&self, host: &str) {
        let mut inner = self.lock();
        inner.sick.remove(host);
        inner.ill.retain(|(ill, _)| ill != host);
    }

    /// All disks of a host have this illness from now on.
    pub(crate) fn fall_ill(&self, host: &str, illness: Illness) {
        self.lock().ill.insert((host.to_owned(), illness));
    }

    pub(crate) fn is_ill(&self, host: &str, illness: Illness) -> bool {
        self.lock().ill.contains(&(host.to_owned(), illness))
    }

    /// A host has opened a block, or created one.
    pub(crate) fn moved(&self, host: &str, creates: bool) {
        let mut inner = self.lock();
        let roles = &mut inner.roles;
        *if creates { &mut roles.destination } else { &mut roles.helper } = Some(host.to_owned());
    }

    /// The hosts that moved blocks last.
    pub fn roles(&self) -> Roles {
        self.lock().roles.clone()
    }

    /// How often each kind of fault has happened.
    pub fn befell(&self) -> BTreeMap<Ailment, usize> {
        self.lock().befell.clone()
    }

    /// Blocks whose bytes differ from what was written, by their disks' directories.
    pub fn spoiled(&self) -> BTreeSet<(PathBuf, BlockId)> {
        self.lock().spoiled.clone()
    }

    /// Whether this call is affected.
    fn befalls(&self, host: &str, ailment: Ailment) -> bool {
        let mut inner = self.lock();
        if !inner.sick.contains(host) || !inner.random.random_ratio(1, ailment.one_in()) {
            return false;
        }
        *inner.befell.entry(ailment).or_default() += 1;
        inner.trace.event(host, format_args!("-- {ailment:?}"));
        true
    }

    /// The fault of a call to a disk of `host`, if any.
    pub(crate) fn fault(&self, host: &str, call: &Call) -> Option<Fault> {
        match call.kind {
            CallKind::Read if self.is_ill(host, Illness::Lying) => Some(Fault::FlipBit(3)),
            CallKind::Write if self.is_ill(host, Illness::Spoiling) => Some(Fault::FlipBit(3)),
            // The error that the store reports for an unreadable sector.
            CallKind::Read if self.befalls(host, Ailment::ReadError) => Some(Fault::Fail(Reaction::Corrupt)),
            CallKind::Write if self.befalls(host, Ailment::FlippedOnTheWay) => {
                let bits = call.bytes.len().saturating_mul(8).max(1);
                Some(Fault::FlipBit(self.lock().random.random_range(0..bits)))
            }
            _ => None,
        }
    }

    /// Flips a bit of a block's payload, if this call is affected.
    pub(crate) fn rot(&self, host: &str, disk: &Path, id: BlockId, payload: &Path) {
        let len = fs::metadata(payload).map_or(0, |metadata| metadata.len());
        if len == 0 || !self.befalls(host, Ailment::FlippedAtRest) {
            return;
        }
        let mut inner = self.lock();
        inner.spoiled.insert((disk.to_owned(), id));
        inner.flip(payload, len);
    }

    /// Flips a bit of this block, or of any, below a directory of disks. Does nothing if there is none.
    pub(crate) fn flip(&self, host: &str, dir: &Path, block: Option<BlockId>) {
        let mut found = Vec::new();
        find_blocks(dir, block, &mut found);
        found.sort();
        let mut inner = self.lock();
        if let Some((id, payload)) = found.choose(&mut inner.random) {
            let len = fs::metadata(payload).map_or(0, |metadata| metadata.len());
            inner.trace.event(host, format_args!("-- a bit of {id} flips"));
            inner.flip(payload, len);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Flips a bit of a file of this length.
    fn flip(&mut self, payload: &Path, len: u64) {
        let (at, bit) = (self.random.random_range(0..len), self.random.random_range(0..8u32));
        let file = fs::File::options().read(true).write(true).open(payload).expect("its length is known");
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("it is that long");
        file.write_all_at(&[byte[0] ^ 1 << bit], at).expect("it is that long");
    }
}

/// The payloads of durable blocks below a directory; `only`: of this block.
fn find_blocks(dir: &Path, only: Option<BlockId>, found: &mut Vec<(BlockId, PathBuf)>) {
    for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match name.parse::<BlockId>() {
            Ok(id) if only.is_none_or(|only| only == id) && fs::metadata(&path).is_ok_and(|it| it.len() > 0) => {
                found.push((id, path));
            }
            Err(_) if path.is_dir() && !["tmp", "quarantine"].contains(&name) => find_blocks(&path, only, found),
            _ => {}
        }
    }
}

/// The hosts that moved blocks last: during a repair, one of its helpers and one of its destinations.
#[derive(Debug, Clone, Default)]
pub struct Roles {
    /// The host that last opened a block.
    pub helper: Option<String>,
    /// The host that last created a block.
    pub destination: Option<String>,
}

/// The steps of one host's disks.
pub(crate) struct SickSteps {
    pub(crate) host: String,
    pub(crate) sickness: Sickness,
}

impl fmt::Debug for SickSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SickSteps").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Steps for SickSteps {
    fn before(&self, step: Step) -> io::Result<()> {
        let sync = matches!(step, Step::SyncPayload | Step::SyncSidecar | Step::SyncDirectory);
        let is_broken = self.sickness.is_ill(&self.host, Illness::Broken);
        if sync && (is_broken || self.sickness.befalls(&self.host, Ailment::FailedSync)) {
            return Err(io::Error::other("injected sync failure"));
        }
        Ok(())
    }
}
