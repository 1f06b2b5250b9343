//! A loss of power at every call that changes the disk, on simulated files that lose any part of what is not synced.

use std::path::Path;
use std::sync::Arc;
use weft_store::{BlockStore, Image, LocalStore, NewDisk, Patch, SimFiles, conformance, verify};
use weft_types::{BlockMeta, ClusterId, PAGE_LEN, Reaction, Result, Seq, Span};

const CLUSTER: ClusterId = ClusterId(0xc1);
const NEW: NewDisk = NewDisk { disk_id: 0xd15c, created_ms: 1_700_000_000_000 };

fn open(files: &SimFiles) -> Result<LocalStore> {
    LocalStore::open_on(Arc::new(files.clone()), Path::new("/disk"), CLUSTER, NEW)
}

/// Runs `work` with a crash after each number of calls, with several seeds, and then `check` on the disk after the restart. `check` is
/// told whether `work` succeeded.
fn crashes(before: impl Fn(&LocalStore), work: impl Fn(&LocalStore) -> Result<()>, check: impl Fn(&SimFiles, bool, &str)) {
    for calls in 0.. {
        let mut is_done = false;
        for seed in 0..8 {
            let files = SimFiles::new(seed * 1000 + calls);
            let store = open(&files).unwrap();
            before(&store);
            files.crash_after(calls);
            let result = work(&store);
            is_done = !files.is_crashed();
            drop(store);
            // Sometimes only the process is killed.
            if seed % 4 == 3 {
                files.kill()
            } else {
                files.restart()
            }
            check(&files, result.is_ok(), &format!("{calls} calls, seed {seed}"));
        }
        if is_done {
            assert!(calls > 1);
            return;
        }
    }
}

fn put(store: &LocalStore, meta: &BlockMeta) -> Result<()> {
    let mut writer = store.create(meta)?;
    writer.write_at(0, &conformance::pattern(meta.len()))?;
    writer.finish(None).map(drop)
}

const LEN: u64 = 3 * PAGE_LEN + 100;

fn meta() -> BlockMeta {
    conformance::block(CLUSTER, 1, LEN)
}

/// Whether the block is there; if so, it is whole.
fn is_whole(store: &LocalStore, case: &str) -> bool {
    match store.open(meta().id) {
        Ok(reader) => {
            assert_eq!((reader.meta(), verify(&*reader).unwrap()), (&meta(), vec![]), "{case}");
            let mut read = vec![0; LEN as usize];
            reader.read_at(0, &mut read).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert!(read == conformance::pattern(LEN), "{case}");
            assert_eq!(store.list().unwrap(), [meta().id], "{case}");
            true
        }
        Err(error) => {
            assert_eq!((error.reaction, store.list().unwrap().len()), (Reaction::NotFound, 0), "{case}: {error}");
            false
        }
    }
}

#[test]
fn a_block_is_whole_or_absent_and_there_once_it_is_finished() {
    let check = |files: &SimFiles, is_acknowledged: bool, case: &str| {
        let store = open(files).unwrap_or_else(|error| panic!("{case}: {error}"));
        let is_there = is_whole(&store, case);
        assert!(is_there || !is_acknowledged, "{case}: a finished block is gone");
        if !is_there {
            put(&store, &meta()).unwrap_or_else(|error| panic!("{case}: writing it again: {error}"));
        }
        // What is listed stays, whatever happens next.
        drop(store);
        files.restart();
        assert!(is_whole(&open(files).unwrap(), case), "{case}");
    };
    crashes(|_| (), |store| put(store, &meta()), check);
}

#[test]
fn a_removed_block_is_gone() {
    let check = |files: &SimFiles, is_acknowledged: bool, case: &str| {
        let store = open(files).unwrap_or_else(|error| panic!("{case}: {error}"));
        let is_there = is_whole(&store, case);
        assert!(!is_there || !is_acknowledged, "{case}: a removed block is back");
        assert_eq!(store.quarantined().blocks, 0, "{case}: it was quarantined as broken");
        drop(store);
        files.restart();
        assert_eq!(is_whole(&open(files).unwrap(), case), is_there, "{case}");
    };
    crashes(|store| put(store, &meta()).unwrap(), |store| store.remove(meta().id).map(drop), check);
}

#[test]
fn a_quarantined_block_is_in_one_place() {
    let check = |files: &SimFiles, is_acknowledged: bool, case: &str| {
        let store = open(files).unwrap_or_else(|error| panic!("{case}: {error}"));
        let is_there = is_whole(&store, case);
        let quarantined = store.quarantined();
        assert_eq!(u64::from(is_there) + quarantined.blocks, 1, "{case}");
        assert!(!is_acknowledged || !is_there, "{case}");
        assert!(is_there || quarantined.bytes == LEN, "{case}: {quarantined:?}");
        for place in store.quarantine_places().unwrap() {
            store.delete_quarantined(&place.name).unwrap();
        }
        drop(store);
        files.restart();
        let store = open(files).unwrap();
        assert_eq!((store.quarantined().blocks, is_whole(&store, case)), (0, is_there), "{case}");
    };
    crashes(|store| put(store, &meta()).unwrap(), |store| store.quarantine(meta().id, "a test", Some(7)), check);
}

#[test]
fn a_disk_is_created_or_can_be() {
    for calls in 0.. {
        let files = SimFiles::new(calls);
        files.crash_after(calls);
        let is_created = open(&files).is_ok();
        files.restart();
        put(&open(&files).unwrap_or_else(|error| panic!("{calls} calls: {error}")), &meta()).unwrap();
        if is_created {
            break;
        }
    }
}

const PATCHED_LEN: u64 = 250 * PAGE_LEN + 100;

/// A block of a stripe of k data blocks: of 200, so that the state takes several sectors, or of 2. Its page checksums are in three sectors.
fn patched(k: u32) -> BlockMeta {
    let mut meta = conformance::block(CLUSTER, 1, PATCHED_LEN);
    meta.stripe.k = k;
    meta
}

/// An update: which pages it changes, and how long the block is afterwards.
#[derive(Clone)]
struct Update {
    k: u32,
    count: u64,
    spans: Vec<Span>,
    len: u64,
}

impl Update {
    fn new(count: u64, pages: &[(u64, u64)], len: u64) -> Self {
        let span = |(first, end): &(u64, u64)| Span::new(first * PAGE_LEN, (end * PAGE_LEN).min(len));
        Self { k: 200, count, spans: pages.iter().map(span).collect(), len }
    }

    fn seq(&self) -> Seq {
        Seq::new(1, vec![u64::MAX - 10 + self.count; self.k as usize])
    }

    /// What the block contains afterwards.
    fn applied(&self, before: &[u8]) -> Vec<u8> {
        let mut bytes = before.to_vec();
        bytes.resize(self.len as usize, 0);
        self.spans.iter().for_each(|span| bytes[span.start as usize..span.end as usize].fill(self.count as u8));
        bytes
    }

    fn run(&self, store: &LocalStore) -> Result<()> {
        let content = vec![self.count as u8; self.len as usize];
        let image = |span: &Span| Image { offset: span.start, bytes: &content[..span.len() as usize] };
        let images: Vec<Image<'_>> = self.spans.iter().map(image).collect();
        store.patch(&Patch { id: patched(self.k).id, images: &images, seq: self.seq(), data_len: self.len }).map(drop)
    }
}

/// What each page may be: as before, as after if the update is there, or unreadable. Returns whether the update is there.
fn is_old_or_new(store: &LocalStore, before: &[u8], update: &Update, case: &str) -> bool {
    let reader = store.open(patched(update.k).id).unwrap_or_else(|error| panic!("{case}: {error}"));
    let after = update.applied(before);
    let is_there = reader.meta().seq == update.seq();
    let expected = if is_there { &after } else { before };
    assert_eq!(reader.meta().len(), expected.len() as u64, "{case}");
    assert!(!is_there || !reader.is_interrupted(), "{case}");
    for (number, page) in expected.chunks(PAGE_LEN as usize).enumerate() {
        let mut read = vec![0; page.len()];
        match reader.read_at(number as u64 * PAGE_LEN, &mut read) {
            Ok(_) => assert!(read == page, "{case}: page {number}"),
            Err(error) => assert!(error.reaction == Reaction::Corrupt && !is_there, "{case}: page {number}: {error}"),
        }
    }
    is_there
}

fn crash_updates(earlier: Vec<Update>, update: Update) {
    for k in [2, 200] {
        let of_k = |update: &Update| Update { k, ..update.clone() };
        crash_updates_of(earlier.iter().map(of_k).collect(), of_k(&update));
    }
}

fn crash_updates_of(earlier: Vec<Update>, update: Update) {
    let before = earlier.iter().fold(conformance::pattern(PATCHED_LEN), |bytes, earlier| earlier.applied(&bytes));
    let check = |files: &SimFiles, is_acknowledged: bool, case: &str| {
        // The redo is interrupted, too.
        for redone_calls in [3, 0, 5, 1, 2, 6, 4] {
            let store = open(files).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!(store.quarantined().blocks, 0, "{case}: {:?}", store.recovered());
            let is_there = is_old_or_new(&store, &before, &update, case);
            assert!(is_there || !is_acknowledged, "{case}: an update is lost");
            files.crash_after(redone_calls);
            let _redone = update.run(&store);
            drop(store);
            files.restart();
        }
        let store = open(files).unwrap();
        update.run(&store).unwrap_or_else(|error| panic!("{case}: {error}"));
        drop(store);
        files.restart();
        let store = open(files).unwrap();
        assert!(is_old_or_new(&store, &before, &update, case), "{case}");
        // And the next one.
        let next = Update { count: update.count + 1, ..update.clone() };
        next.run(&store).unwrap();
        assert!(is_old_or_new(&store, &update.applied(&before), &next, case));
    };
    let prepare = |store: &LocalStore| {
        put(store, &patched(update.k)).unwrap();
        earlier.iter().for_each(|earlier| earlier.run(store).unwrap());
    };
    crashes(prepare, |store| update.run(store), check);
}

#[test]
fn the_bytes_of_patches_are_counted_with_their_sidecars() {
    let store = open(&SimFiles::new(1)).unwrap();
    put(&store, &patched(2)).unwrap();
    assert_eq!(store.in_place().patched_bytes, 0, "a put is no update");
    let update = |count: u64| Update { k: 2, ..Update::new(count, &[(0, 2)], PATCHED_LEN) };
    update(1).run(&store).unwrap();
    let first = store.in_place().patched_bytes;
    assert!(first > 2 * PAGE_LEN, "{first}");
    update(2).run(&store).unwrap();
    let second = store.in_place().patched_bytes - first;
    // Two pages, the sector with their checksums, and the state.
    assert!((2 * PAGE_LEN + 1024..3 * PAGE_LEN).contains(&second), "{second}");
    assert_eq!(store.in_place().journal_bytes, 0);
}

#[test]
fn a_first_update_that_is_interrupted_can_be_repeated() {
    crash_updates(vec![], Update::new(1, &[(0, 2), (130, 131), (250, 251)], PATCHED_LEN));
}

#[test]
fn a_later_update_that_is_interrupted_can_be_repeated() {
    let len = PATCHED_LEN;
    let earlier = vec![Update::new(1, &[(5, 6)], len), Update::new(2, &[(0, 1), (249, 251)], len)];
    crash_updates(earlier, Update::new(3, &[(1, 3), (124, 125), (248, 251)], len));
}

#[test]
fn an_update_that_makes_the_block_longer_can_be_repeated() {
    let (len, longer) = (PATCHED_LEN, 400 * PAGE_LEN + 7);
    crash_updates(vec![Update::new(1, &[(5, 6)], len)], Update::new(2, &[(0, 1), (250, 401)], longer));
}

#[test]
fn an_update_of_counts_alone_can_be_repeated() {
    let len = PATCHED_LEN;
    crash_updates(vec![Update::new(1, &[(5, 6)], len)], Update::new(2, &[], len));
}
