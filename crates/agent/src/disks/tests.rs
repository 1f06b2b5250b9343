//! Disks that fail or are missing, and the removal of blocks from disks.

use super::*;
use crate::{
    Limits, LocalDisks,
    line::Passage,
    state::{Memory, StateFile},
};
use rand::{SeedableRng, rngs::StdRng};
use std::collections::BTreeSet;
use weft_plan::{Class, Precedence};
use weft_proto::DiskMode;
use weft_store::conformance;
use weft_types::{ClusterId, PlanId, Span};

const CLUSTER: ClusterId = ClusterId(3);

fn open(paths: &[PathBuf], known_ids: &BTreeMap<String, String>) -> Disks {
    let known = Memory { disks: known_ids.clone(), ..Memory::default() };
    Disks::open(paths, &known, CLUSTER, &LocalDisks, &mut StdRng::seed_from_u64(1), 0).ok().unwrap()
}

fn put(disks: &Disks, disk: usize, stripe: u64) -> BlockId {
    put_of(5000, disks, disk, stripe)
}

fn put_of(len: u64, disks: &Disks, disk: usize, stripe: u64) -> BlockId {
    let meta = conformance::block(CLUSTER, stripe, len);
    let mut writer = disks.0[disk].store().ok().unwrap().create(&meta).unwrap();
    writer.write_at(0, &conformance::pattern(len)).unwrap();
    writer.finish(None).unwrap();
    meta.id
}

fn remove(disks: &Disks, partials: &Partials, blocks: &[BlockId]) -> (u32, Vec<BlockId>, Vec<Reaction>) {
    let scratch = tempfile::tempdir().unwrap();
    let (limits, state) = (Limits::default(), StateFile::open(scratch.path()).unwrap());
    let bounds = Bounds { limits: &limits, state: &state, now_ms: 0 };
    let removal = disks.remove(blocks, GarbageReason::Removed, Duration::ZERO, partials, &bounds);
    let Removal { removed, gone, kept, .. } = removal;
    (removed, gone, kept.iter().map(|error| error.reaction).collect())
}

#[tokio::test]
async fn a_block_being_written_is_kept_and_delays_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let (disks, partials) = (open(&[dir.path().join("a")], &BTreeMap::new()), Partials::new(&Limits::default()));
    let (number, store) = disks.by_id(disks.0[0].id()).unwrap();
    let meta = conformance::block(CLUSTER, 1, 5000);
    let claim = partials.claim(PlanId(1), number, store.as_ref(), &meta).ok().unwrap();
    claim.write_at(0, &conformance::pattern(5000)).unwrap();
    let other = put(&disks, 0, 2);
    assert_eq!(remove(&disks, &partials, &[meta.id, other]), (1, vec![other], vec![Reaction::Retry]));
    claim.commit(None).unwrap().unwrap();
    // The block is committed but still claimed: if it were reported as gone, it would stay there forever.
    assert_eq!(remove(&disks, &partials, &[meta.id]), (0, vec![], vec![Reaction::Retry]));
    drop(claim);
    assert_eq!(remove(&disks, &partials, &[meta.id]), (1, vec![meta.id], vec![]));
    assert_eq!(store.list().unwrap(), []);
}

#[tokio::test]
async fn blocks_that_may_be_on_an_unusable_disk_are_neither_missing_nor_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (paths, partials) = (["a", "b"].map(|name| dir.path().join(name)), Partials::new(&Limits::default()));
    let disks = open(&paths, &BTreeMap::new());
    let (here, there) = (put(&disks, 1, 1), put(&disks, 0, 2));
    let known = disks.ids();
    drop(disks);
    std::fs::rename(&paths[0], dir.path().join("away")).unwrap();
    std::fs::create_dir(&paths[0]).unwrap();

    let disks = open(&paths, &known);
    assert_eq!(std::fs::read_dir(&paths[0]).unwrap().count(), 0, "the mount point of an unmounted disk was formatted");
    assert_eq!((disks.0[0].report().failed, &disks.ids()), (true, &known));
    assert_eq!(disks.open_block(there).err().unwrap().reaction, Reaction::Replan);
    assert!(disks.open_block(here).is_ok());
    assert_eq!(remove(&disks, &partials, &[there, here]), (1, vec![here], vec![Reaction::Replan]));
    drop(disks);

    std::fs::remove_dir(&paths[0]).unwrap();
    std::fs::rename(dir.path().join("away"), &paths[0]).unwrap();
    let disks = open(&paths, &known);
    assert_eq!(disks.open_block(here).err().unwrap().reaction, Reaction::NotFound);
    assert_eq!(remove(&disks, &partials, &[there, here]), (1, vec![there, here], vec![]));
}

#[tokio::test]
async fn two_blocks_with_the_same_name_are_neither_read_nor_removed() {
    let dir = tempfile::tempdir().unwrap();
    let disks = open(&["a", "b"].map(|name| dir.path().join(name)), &BTreeMap::new());
    let id = put(&disks, 0, 1);
    assert_eq!(put(&disks, 1, 1), id);
    let error = disks.open_block(id).err().unwrap();
    assert!(error.reaction == Reaction::Corrupt && error.message.contains("two blocks of this name"), "{error}");
    assert_eq!(remove(&disks, &Partials::new(&Limits::default()), &[id]), (0, vec![], vec![Reaction::Corrupt]));
    assert_eq!(disks.list(None, None, 0).unwrap().0, [id, id]);
}

#[tokio::test]
async fn unexpected_blocks_are_quarantined_for_days_and_then_deleted_within_a_daily_limit() {
    let dir = tempfile::tempdir().unwrap();
    let disks = open(&["a", "b"].map(|name| dir.path().join(name)), &BTreeMap::new());
    let partials = Partials::new(&Limits::default());
    let limits = Limits { quarantine_ms: 1000, removed_blocks_per_day: 3, removed_percent_per_day: 0, ..Limits::default() };
    let state = StateFile::open(&dir.path().join("state")).unwrap();
    let at = |now_ms| Bounds { limits: &limits, state: &state, now_ms };
    let orphans = [put(&disks, 0, 1), put(&disks, 0, 2), put(&disks, 1, 3)];
    let kept = put(&disks, 0, 4);
    let nowhere = BlockId { generation: 9, ..kept };

    let (number, store) = disks.by_id(disks.0[0].id()).unwrap();
    let writing = partials.claim(PlanId(1), number, store.as_ref(), &conformance::block(CLUSTER, 5, 5000)).ok().unwrap();
    let busy = conformance::block(CLUSTER, 5, 5000).id;
    let (moved, why) = disks.quarantine(&[orphans[0], orphans[1], orphans[2], nowhere, busy], &partials, &at(5000));
    assert_eq!((moved, why.len(), why[0].block, why[0].reaction), (3, 1, Some(busy), Reaction::Retry), "{why:?}");
    drop(writing);
    assert_eq!(disks.list(None, None, 0).unwrap().0, [kept]);
    let told = |disk: usize| (disks.0[disk].report().quarantined_blocks, disks.0[disk].report().quarantined_bytes);
    assert_eq!((told(0), told(1)), ((2, 10_000), (1, 5000)));
    for (number, disk) in disks.0.iter().enumerate() {
        assert_eq!(disks.list(Some(disk.id()), None, 1).unwrap(), if number == 0 { (vec![kept], true) } else { (vec![], false) });
    }

    disks.clear_quarantine(&at(6000));
    assert_eq!(told(0), (2, 10_000), "not yet");
    disks.clear_quarantine(&at(6001));
    assert_eq!((told(0), told(1)), ((1, 5000), (0, 0)), "two were moved today, and three may be taken away");
    let (moved, why) = disks.quarantine(&[kept], &partials, &at(6001));
    assert!(moved == 0 && why[0].message.contains("to remove more now"), "{why:?}");
    assert!(disks.open_block(kept).is_ok());
}

/// 20 blocks on one disk, of 5000 bytes each.
struct Filled {
    dir: tempfile::TempDir,
    disks: Disks,
    blocks: Vec<BlockId>,
    state: StateFile,
}

impl Filled {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disks = open(&[dir.path().join("a")], &BTreeMap::new());
        let blocks = (1..=20).map(|stripe| put(&disks, 0, stripe)).collect();
        let state = StateFile::open(&dir.path().join("state")).unwrap();
        Self { dir, disks, blocks, state }
    }

    fn remove(&self, reason: GarbageReason, limits: &Limits) -> Removal {
        let bounds = Bounds { limits, state: &self.state, now_ms: 5000 };
        self.disks.remove(&self.blocks, reason, Duration::ZERO, &Partials::new(limits), &bounds)
    }

    fn left(&self) -> (usize, u64) {
        (self.disks.list(None, None, 0).unwrap().0.len(), self.disks.0[0].report().quarantined_blocks)
    }
}

#[tokio::test]
async fn expected_garbage_is_limited_by_bytes_and_unexpected_garbage_is_quarantined() {
    let few = Limits { removed_blocks_per_day: 3, removed_percent_per_day: 0, ..Limits::default() };
    for reason in GarbageReason::ALL.into_iter().filter(|reason| reason.is_meant()) {
        let filled = Filled::new();
        let removal = filled.remove(reason, &few);
        assert_eq!((removal.removed, removal.quarantined, removal.gone.len(), filled.left()), (20, 0, 20, (0, 0)));
    }
    let filled = Filled::new();
    let removal = filled.remove(GarbageReason::Unexpected, &few);
    assert_eq!((removal.removed, removal.quarantined, removal.gone.len(), filled.left()), (0, 3, 3, (17, 3)));
    assert!(removal.kept.len() == 17 && removal.kept.iter().all(|error| error.reaction == Reaction::Unavailable));
    assert!(removal.kept[0].message.contains("to remove more now"), "{}", removal.kept[0]);
    let reason = std::fs::read_to_string(filled.dir.path().join("a/quarantine/s1-b000-c0-g1.1/reason")).unwrap();
    assert!(reason.contains("without a known reason"), "{reason}");

    // Each block takes two pages, and one for its sidecar; the last block may exceed the bound.
    let bytes = Limits { freed_bytes_per_hour: ByteSize(7 * 12_288 + 1), freed_percent_per_hour: 0, ..Limits::default() };
    let removal = filled.remove(GarbageReason::Removed, &bytes);
    assert_eq!((removal.removed, removal.gone.len(), filled.left()), (8, 3 + 8, (9, 3)));
    assert!(removal.kept.len() == 9 && removal.kept[0].reaction == Reaction::Unavailable, "{:?}", removal.kept);
    assert!(removal.kept[0].message.contains("freed_percent_per_hour"), "{}", removal.kept[0]);
}

#[tokio::test]
async fn only_blocks_that_were_reported_as_gone_and_were_not_there_are_remembered_as_given_up() {
    const GIVEN_UP_MAX: u64 = 65_536;
    let filled = Filled::new();
    let opening = Duration::from_secs(60);
    let limits = Limits { removed_blocks_per_day: 3, removed_percent_per_day: 0, ..Limits::default() };
    let partials = Partials::new(&limits);
    let bounds = Bounds { limits: &limits, state: &filled.state, now_ms: 5000 };
    let remove = |blocks: &[BlockId], reason| filled.disks.remove(blocks, reason, opening, &partials, &bounds);
    let (_, store) = filled.disks.by_id(filled.disks.0[0].id()).unwrap();
    let claim = |stripe| partials.claim(PlanId(1), 0, store.as_ref(), &conformance::block(CLUSTER, stripe, 5000)).map(drop);

    let removal = remove(&filled.blocks, GarbageReason::Unexpected);
    assert_eq!((removal.quarantined, removal.kept.len()), (3, 17));
    assert_eq!(claim(20).unwrap_err().reaction, Reaction::InvalidInput, "the block is still there, and was not given up");

    let nowhere = |stripe| conformance::block(CLUSTER, stripe, 5000).id;
    let many: Vec<BlockId> = (100..100 + GIVEN_UP_MAX).map(nowhere).collect();
    assert_eq!(remove(&many, GarbageReason::Removed).gone.len(), many.len());
    let full = remove(&[nowhere(50), filled.blocks[19], many[0]], GarbageReason::Removed);
    assert_eq!(
        (full.removed, full.gone),
        (1, vec![filled.blocks[19], many[0]]),
        "a complete block waits for those that were not there"
    );
    assert_eq!(full.kept[0].reaction, Reaction::Retry, "{:?}", full.kept);
    assert_eq!((full.kept.len(), full.kept[0].block), (1, Some(nowhere(50))));
    for late in [100, 100 + GIVEN_UP_MAX - 1] {
        assert_eq!(claim(late).unwrap_err().reaction, Reaction::Replan, "the node forgot that the block was given up");
    }
    claim(50).unwrap();
}

#[tokio::test]
async fn a_quarantine_is_deleted_for_lack_of_space_or_on_request() {
    let filled = Filled::new();
    let limits = Limits { quarantine_free_percent: 0, ..Limits::default() };
    assert_eq!(filled.remove(GarbageReason::Unexpected, &limits).quarantined, 20);
    let damaged = put(&filled.disks, 0, 21);
    filled.disks.0[0].store().ok().unwrap().quarantine(damaged, "a test", None).unwrap();
    let relieve = |limits: &Limits| {
        filled.disks.relieve(&Bounds { limits, state: &filled.state, now_ms: 5001 });
        filled.left().1
    };
    assert_eq!(relieve(&limits), 21, "no disk is short of space");
    // No disk can have this much free space.
    let short = Limits {
        quarantine_free_percent: 101,
        freed_bytes_per_hour: ByteSize(5 * 12_288),
        freed_percent_per_hour: 0,
        ..limits.clone()
    };
    assert_eq!((relieve(&short), relieve(&short)), (16, 16), "quarantined blocks were freed faster than others");

    let told = filled.disks.release_quarantine(0, &limits);
    let day_ms = 24 * 60 * 60 * 1000;
    let left = |blocks: u64| {
        let at_ms = if blocks == 0 { 0 } else { 5000 + 7 * day_ms };
        let disk = filled.disks.0[0].id().to_owned();
        let (first_deleted_ms, last_deleted_ms, damaged_blocks, damaged_bytes) = (at_ms, at_ms, 1, 5000);
        let bytes = blocks * 5000;
        [v1::QuarantinedDisk { disk, blocks, bytes, first_deleted_ms, last_deleted_ms, damaged_blocks, damaged_bytes }]
    };
    assert_eq!((told.freed_blocks, told.disks.as_slice()), (0, &left(15)[..]));
    let released = filled.disks.release_quarantine(10, &limits);
    assert_eq!((released.freed_blocks, released.freed_bytes, released.disks.as_slice()), (10, 50_000, &left(5)[..]));
    let released = filled.disks.release_quarantine(10, &limits);
    assert_eq!((released.freed_blocks, released.disks.as_slice()), (5, &left(0)[..]));
    assert_eq!(filled.left(), (0, 1), "the damaged block was deleted");
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_being_opened_fails_only_when_its_opening_stands_still() {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| dir.path().join(name));
    let first = open(&paths, &BTreeMap::new());
    let (here, known) = (put(&first, 0, 7), first.ids());
    drop(first);
    let known = Memory { disks: known, ..Memory::default() };
    let disks = Disks::new(&paths, &known);
    let found = |number| {
        let new = weft_store::NewDisk { disk_id: 1, created_ms: 0 };
        disks.open_one(number, new, &known, CLUSTER, &LocalDisks).ok().unwrap()
    };
    assert_eq!((found(0).highest_stripe, disks.0[0].progress.load(std::sync::atomic::Ordering::Relaxed)), (7, 1));
    disks.join(0, found(0));
    assert_eq!(disks.settled(), 1);
    assert!(disks.open_block(here).is_ok(), "the first disk serves");
    let told = || disks.report(TIMEOUT).into_iter().map(|it| (it.failed, it.silent_ms)).next_back().unwrap();
    for second in 1..=100 {
        tokio::time::advance(Duration::from_secs(1)).await;
        disks.0[1].progress.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(told(), (false, if second < 2 { 0 } else { second * 1000 }), "it goes on");
    }
    let missing = conformance::block(CLUSTER, 9, 5000).id;
    assert_eq!(disks.open_block(missing).err().unwrap().reaction, Reaction::Replan, "it may be there");
    assert_eq!(disks.list(None, None, 0).unwrap_err().reaction, Reaction::Replan);
    tokio::time::advance(Duration::from_secs(59)).await;
    assert!(!told().0);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(told().0, "it stands still");
    disks.join_late(1, found(1));
    assert_eq!((told(), disks.settled()), ((false, 0), 2));
    assert_eq!(disks.open_block(missing).err().unwrap().reaction, Reaction::NotFound);
}

#[tokio::test]
async fn a_disk_that_another_node_had_serves_only_when_the_coordinator_agrees() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["own", "moved"].map(|name| dir.path().join(name));
    let before = open(&paths, &BTreeMap::new());
    let (own, moved) = (put(&before, 0, 1), put(&before, 1, 2));
    let (id, mut known) = (before.0[1].id().to_owned(), before.ids());
    drop(before);
    // The disk was in another node, so this one does not know it.
    known.remove(&paths[1].display().to_string());
    let known = Memory { disks: known, ..Memory::default() };
    let disks = Arc::new(Disks::new(&paths, &known));
    for number in [0, 1] {
        let new = weft_store::NewDisk { disk_id: 1, created_ms: 0 };
        let found = disks.open_one(number, new, &known, CLUSTER, &LocalDisks).ok().unwrap();
        assert_eq!((found.id().is_some(), found.journalled(&paths[number]).is_some()), (number == 0, number == 0));
        disks.join(number, found);
    }
    let look = |block| disks.open_block(block).map(|(number, _)| number).map_err(|error| error.reaction);
    assert_eq!((look(own), look(moved)), (Ok(0), Err(Reaction::Replan)), "it is not known whose it is");
    assert_eq!((disks.ids(), disks.journalled().count()), (known.disks.clone(), 1));
    let marked = BTreeMap::from([(paths[1].display().to_string(), format!("aside-{id}"))]);
    assert_eq!(disks.marked_ids(), marked, "no new disk is created in its mount point");
    disks.look(DiskMode::Inline, Duration::from_secs(9)).await;
    let told = disks.report(Duration::from_secs(60));
    assert!(told.len() == 2 && told[1].id == id && !told[1].failed && told[1].total_bytes > 0, "{told:?}");

    let ids: BTreeSet<String> = told.into_iter().map(|disk| disk.id).collect();
    let why = || BTreeMap::from([(id.clone(), "its node is up".to_owned())]);
    assert!(disks.sort(&ids, &why()).is_empty());
    assert_eq!(look(moved), Err(Reaction::NotFound), "its blocks are not this node's");
    assert_eq!((disks.list(None, None, 9).unwrap().0, disks.report_own(Duration::from_secs(60)).len()), (vec![own], 1));
    let refused = disks.by_id(&id).err().unwrap();
    assert!(refused.message.contains("no usable disk"), "{refused}");

    assert_eq!(disks.sort(&ids, &BTreeMap::new()), [1]);
    assert!(disks.joining(1).is_some() && look(moved) == Err(Reaction::Replan), "its journal is not open yet");
    // It is kept aside again before it could join.
    disks.sort(&ids, &why());
    disks.joined(1);
    assert!(disks.joining(1).is_none() && look(moved) == Err(Reaction::NotFound));
    disks.sort(&ids, &BTreeMap::new());
    disks.joined(1);
    assert_eq!((look(moved), disks.ids().len(), disks.sort(&ids, &BTreeMap::new())), (Ok(1), 2, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_cannot_join_for_long_counts_as_failed() {
    let dir = tempfile::tempdir().unwrap();
    let disks = Arc::new(open(&[dir.path().join("a")], &BTreeMap::new()));
    disks.look(DiskMode::Inline, Duration::from_secs(9)).await;
    let failed = || disks.report(Duration::from_secs(60))[0].failed;
    *disks.0[0].standing() = Standing::Joining(Instant::now());
    let ids = BTreeSet::from([disks.0[0].id().to_owned()]);
    tokio::time::advance(Duration::from_secs(59)).await;
    assert!(!failed());
    assert!(disks.sort(&ids, &BTreeMap::new()).is_empty(), "it goes on");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(failed());
    disks.joined(0);
    assert!(!failed());
}

#[test]
fn no_new_disk_is_created_where_one_was_kept_aside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    std::fs::create_dir(&path).unwrap();
    let ids = BTreeMap::from([(path.display().to_string(), "aside-9f".to_owned())]);
    let known = Memory { disks: ids.clone(), ..Memory::default() };
    let disks = Disks::new(&[path], &known);
    let new = weft_store::NewDisk { disk_id: 1, created_ms: 0 };
    disks.join(0, disks.open_one(0, new, &known, CLUSTER, &LocalDisks).ok().unwrap());
    assert!(disks.report(Duration::from_secs(60)).is_empty(), "it has no id");
    assert_eq!((disks.ids(), disks.marked_ids()), (BTreeMap::new(), ids));
}

#[tokio::test]
async fn a_disk_is_measured_by_blocks_that_are_not_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let disks = Arc::new(open(&[dir.path().join("a")], &BTreeMap::new()));
    let rate = || disks.0[0].rate.bytes_per_s();
    put(&disks, 0, 1);
    disks.measure(DiskMode::Pool).await;
    assert_eq!(rate(), 0, "too few bytes");
    let blocks: Vec<BlockId> = (2..5).map(|stripe| put_of(4 << 20, &disks, 0, stripe)).collect();
    let readers: Vec<_> = blocks.iter().map(|id| disks.open_block(*id).unwrap().1).collect();
    let forget = || readers.iter().for_each(|reader| reader.forget_cached(Span::new(0, 4 << 20)));
    let cached = || {
        let pages = readers.iter().flat_map(|reader| (0..4u64).map(move |mib| (reader, mib << 20)));
        pages.filter(|(reader, at)| reader.read_cached(*at, &mut [0; 4096]).is_some()).count()
    };
    forget();
    disks.measure(DiskMode::Inline).await;
    assert_eq!(rate(), 0, "a simulation has no disks");
    let reader = Passage::new(disks.line(0), Precedence::of(Class::Foreground));
    let turn = reader.turn().await;
    disks.measure(DiskMode::Pool).await;
    assert_eq!(rate(), 0, "a reader is there");
    drop(turn);
    // Whether they can be cold: a file system in memory says nothing of a disk. The kernel may read what is looked for, and does not forget what
    // it still reads, so this takes several attempts.
    let mut can_be_cold = false;
    for _ in 0..50 {
        forget();
        can_be_cold = can_be_cold || cached() == 0;
        tokio::time::sleep(Duration::from_millis(20)).await;
        forget();
        disks.measure(DiskMode::Pool).await;
        if rate() > 0 {
            break;
        }
    }
    assert!(rate() > 0 || !can_be_cold);
    disks.look(DiskMode::Inline, Duration::from_secs(1)).await;
    let mut reports = disks.report(Duration::from_secs(60));
    assert_eq!(reports[0].bytes_per_s, rate());
    hold_rates(&mut reports, Some(ByteSize(1000)));
    assert_eq!(reports[0].bytes_per_s, 1000);
}

#[test]
fn an_agent_remembers_that_a_disk_that_it_keeps_aside_is_a_copy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let id = open(std::slice::from_ref(&path), &BTreeMap::new()).0[0].id().to_owned();
    let opened = |marks: &BTreeMap<String, String>| {
        let known = Memory { disks: marks.clone(), ..Memory::default() };
        let disks = Disks::new(std::slice::from_ref(&path), &known);
        let new = weft_store::NewDisk { disk_id: 1, created_ms: 0 };
        disks.join(0, disks.open_one(0, new, &known, CLUSTER, &LocalDisks).ok().unwrap());
        disks
    };
    let marks = |mark: &str| BTreeMap::from([(path.display().to_string(), mark.to_owned())]);
    let is_copy = |disks: &Disks| disks.report(Duration::from_secs(60))[0].copy;
    let ids = BTreeSet::from([id.clone()]);
    let disks = opened(&BTreeMap::new());
    assert_eq!((is_copy(&disks), disks.marked_ids()), (false, marks(&format!("aside-{id}"))));
    disks.note_copies(&ids, &[v1::AsideDisk { id: id.clone(), copy: true, ..v1::AsideDisk::default() }]);
    let copy = marks(&format!("aside-copy-{id}"));
    assert_eq!((is_copy(&disks), disks.marked_ids()), (true, copy.clone()));
    drop(disks);
    let disks = opened(&copy);
    assert_eq!((is_copy(&disks), disks.marked_ids()), (true, copy));
    disks.note_copies(&ids, &[]);
    assert_eq!((is_copy(&disks), disks.marked_ids()), (false, marks(&format!("aside-{id}"))));
    drop(disks);
    assert!(!is_copy(&opened(&marks("aside-copy-9f"))), "another disk is in its place");
}

#[test]
fn an_answer_says_nothing_of_a_disk_that_was_opened_after_the_question() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let id = open(std::slice::from_ref(&path), &BTreeMap::new()).0[0].id().to_owned();
    let marks = BTreeMap::from([(path.display().to_string(), format!("aside-copy-{id}"))]);
    let known = Memory { disks: marks.clone(), ..Memory::default() };
    let disks = Disks::new(std::slice::from_ref(&path), &known);
    let told: BTreeSet<String> = disks.report(Duration::from_secs(60)).into_iter().map(|disk| disk.id).collect();
    assert!(told.is_empty(), "it is still being opened");
    let new = weft_store::NewDisk { disk_id: 1, created_ms: 0 };
    disks.join_late(0, disks.open_one(0, new, &known, CLUSTER, &LocalDisks).ok().unwrap());
    disks.note_copies(&told, &[]);
    assert!(disks.sort(&told, &BTreeMap::new()).is_empty());
    assert_eq!((disks.marked_ids(), disks.report(Duration::from_secs(60))[0].copy), (marks, true));
    assert_eq!(*disks.0[0].standing(), Standing::Unknown);
}
