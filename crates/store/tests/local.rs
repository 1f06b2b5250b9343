//! The store in a directory, on the real file system.

use rustix::io::ReadWriteFlags;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use weft_store::{
    BlockStore, CallKind, DeviceErrors, Fault, FaultStore, Image, LocalStore, NewDisk, Patch, QuarantinePlace, Quarantined,
    SIDECAR_VERSION, SimFiles, conformance, verify,
};
use weft_types::{BlockMeta, ClusterId, Error, Reaction, Seq, Span, crc32c};

const CLUSTER: ClusterId = ClusterId(0xc1);
const NEW: NewDisk = NewDisk { disk_id: 0xd15c, created_ms: 1_700_000_000_000 };

fn open(dir: &Path) -> LocalStore {
    LocalStore::open(dir, CLUSTER, NEW).unwrap()
}

fn refused(dir: &Path, cluster: ClusterId) -> Error {
    LocalStore::open(dir, cluster, NEW).expect_err("the directory was opened")
}

/// Puts a block and returns its bytes.
fn put(store: &LocalStore, stripe: u64, len: u64) -> (BlockMeta, Vec<u8>) {
    let (meta, bytes) = (conformance::block(CLUSTER, stripe, len), conformance::pattern(len));
    let mut writer = store.create(&meta).unwrap();
    writer.write_at(0, &bytes).unwrap();
    writer.finish(None).unwrap();
    (meta, bytes)
}

#[test]
fn the_local_store_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let mut number = 0;
    conformance::check(CLUSTER, || {
        number += 1;
        open(&dir.path().join(number.to_string()))
    });
}

#[test]
fn the_local_store_updates_blocks_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut number = 0;
    conformance::check_patches(CLUSTER, || {
        number += 1;
        FaultStore::new(Arc::new(open(&dir.path().join(number.to_string()))), |_| None)
    });
}

#[test]
fn the_local_store_conforms_on_simulated_files() {
    let mut seed = 0;
    let mut simulated = || {
        seed += 1;
        LocalStore::open_on(Arc::new(SimFiles::new(seed)), Path::new("/disk"), CLUSTER, NEW).unwrap()
    };
    conformance::check(CLUSTER, &mut simulated);
    conformance::check_patches(CLUSTER, simulated);
}

#[test]
fn directories_of_one_file_system_are_known_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| open(&dir.path().join(name)).capacity().unwrap());
    assert!(one.file_system != 0 && one.file_system == other.file_system, "{one:?} {other:?}");
    if let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm") {
        assert_ne!(open(elsewhere.path()).capacity().unwrap().file_system, one.file_system);
    }
}

#[test]
fn a_disk_keeps_its_identity_and_its_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let (meta, bytes) = put(&open(dir.path()), 4097, 10_000);
    let again = LocalStore::open(dir.path(), CLUSTER, NewDisk { disk_id: 1, created_ms: 1 }).unwrap();
    assert_eq!(again.disk_id(), NEW.disk_id);
    assert_eq!(again.recovered().blocks, 1);
    assert_eq!(again.list().unwrap(), [meta.id]);
    assert_eq!(fs::read(dir.path().join("blocks/040/s4097-b000-c0-g1")).unwrap(), bytes, "a payload is a plain file");
}

/// A disk of format version 1: each stripe has a directory of its own, until the numbers wrap around.
#[test]
fn a_disk_of_version_1_stays_unchanged_and_usable() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let text = fs::read_to_string(dir.path().join("disk")).unwrap();
    let body = text[..text.find("crc32c").unwrap()].replace("weft-disk 2", "weft-disk 1");
    let label = format!("{body}crc32c {:08x}\n", crc32c(body.as_bytes()));
    fs::write(dir.path().join("disk"), &label).unwrap();
    let store = open(dir.path());
    let ids = [65, 4097].map(|stripe| put(&store, stripe, 10_000).0.id);
    for name in ["blocks/001/s4097-b000-c0-g1", "blocks/041/s65-b000-c0-g1"] {
        assert!(dir.path().join(name).exists(), "{name}");
    }
    drop(store);
    let store = open(dir.path());
    assert_eq!((store.recovered().blocks, store.list().unwrap()), (2, ids.to_vec()));
    assert!(ids.iter().all(|id| store.open(*id).is_ok()));
    assert_eq!(fs::read_to_string(dir.path().join("disk")).unwrap(), label);
}

#[test]
fn fsyncs_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    assert!(store.fsyncs() > 0, "its label");
    let counts = |change: &mut dyn FnMut()| {
        let before = store.fsyncs();
        change();
        store.fsyncs() - before
    };
    assert_eq!(counts(&mut || drop(put(&store, 1, 10_000))), 4, "a sidecar, a payload, a new directory and its parent");
    assert_eq!(counts(&mut || drop(put(&store, 63, 10_000))), 3, "neighbouring stripes share a directory");
    let id = put(&store, 64, 10_000).0.id;
    assert_eq!(counts(&mut || assert!(store.remove(id).unwrap())), 1);
    assert_eq!(counts(&mut || assert!(store.open(id).is_err())), 0);

    let id = put(&store, 64, 10_000).0.id;
    let patch = |images: &[Image<'_>], count: u64| {
        let seq = Seq::new(1, vec![count, 0]);
        store.patch(&Patch { id, images, seq, data_len: 10_000 }).unwrap();
    };
    let image = |offset| Image { offset, bytes: &[7; 4096] };
    assert_eq!(counts(&mut || patch(&[image(0)], 1)), 5, "the disk's version twice, a payload, a new sidecar, its directory");
    assert_eq!(counts(&mut || patch(&[image(0), image(4096)], 2)), 2, "a payload and a sidecar");
    assert_eq!(counts(&mut || patch(&[], 3)), 1, "a sidecar");
    assert_eq!(counts(&mut || patch(&[], 3)), 0, "it is repeated");
}

#[test]
fn errors_of_the_device_are_counted_and_wrong_bytes_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (meta, _) = put(&store, 1, 10_000);
    let payload = store.payload_path(meta.id);
    let read = || store.open(meta.id).and_then(|block| block.read_at(0, &mut [0; 4096]));
    read().unwrap();
    fs::write(&payload, vec![7; 10_000]).unwrap();
    assert_eq!(read().unwrap_err().reaction, Reaction::Corrupt);
    assert_eq!(store.errors(), DeviceErrors::default());
    // A directory can be opened and not read.
    fs::remove_file(&payload).unwrap();
    fs::create_dir(&payload).unwrap();
    for times in 1..3 {
        assert_eq!(read().unwrap_err().reaction, Reaction::Fatal);
        assert_eq!(store.errors(), DeviceErrors { reads: times, writes: 0 });
    }
}

#[test]
fn nothing_is_written_to_the_mount_point_of_a_missing_disk() {
    let dir = tempfile::tempdir().unwrap();
    for place in [dir.path().join("no directory"), dir.path().to_owned()] {
        let error = LocalStore::open_existing(&place, CLUSTER).unwrap_err();
        assert!(error.reaction == Reaction::Fatal && error.message.contains("is it mounted?"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "something was written there");
    }
    drop(open(dir.path()));
    assert_eq!(LocalStore::open_existing(dir.path(), CLUSTER).unwrap().disk_id(), NEW.disk_id);
}

#[test]
fn a_directory_that_is_not_a_disk_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.tex"), "x").unwrap();
    let error = refused(dir.path(), CLUSTER);
    assert_eq!(error.reaction, Reaction::InvalidInput);
    assert!(error.message.contains("thesis.tex"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was written there");

    let disk = dir.path().join("disk1");
    drop(open(&disk));
    let error = refused(&disk, ClusterId(0xc2));
    assert_eq!(error.reaction, Reaction::InvalidInput);
    assert!(error.message.contains(&CLUSTER.to_string()) && error.message.contains(&ClusterId(0xc2).to_string()), "{error}");

    let label = fs::read_to_string(disk.join("disk")).unwrap();
    fs::write(disk.join("disk"), label.replace("weft-disk 2", "weft-disk 4")).unwrap();
    assert_eq!(refused(&disk, CLUSTER).reaction, Reaction::InvalidInput, "a newer format");
    for byte in 0..label.len() {
        let mut flipped = label.clone().into_bytes();
        flipped[byte] ^= 1;
        fs::write(disk.join("disk"), &flipped).unwrap();
        refused(&disk, CLUSTER);
    }
    fs::write(disk.join("disk"), label).unwrap();
    open(&disk);
}

#[test]
fn a_flipped_byte_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (meta, bytes) = put(&store, 1, 10_000);
    let path = store.payload_path(meta.id);
    for byte in [0, 4095, 4096, 8191, 8192, 9999] {
        let mut rotten = bytes.clone();
        rotten[byte] ^= 0x10;
        fs::write(&path, &rotten).unwrap();
        let page = Span::new(byte as u64 / 4096 * 4096, (byte as u64 / 4096 * 4096 + 4096).min(10_000));
        let reader = store.open(meta.id).unwrap();
        let error = reader.read_at(0, &mut vec![0; 10_000]).unwrap_err();
        assert_eq!((error.reaction, error.block), (Reaction::Corrupt, Some(meta.id)));
        assert!(error.message.contains(&format!("bytes {}..{}", page.start, page.end)), "{error}");
        assert!(reader.read_at(byte as u64, &mut [0]).is_err(), "a read of one byte checks its page");
        assert!(reader.read_cached(0, &mut vec![0; 10_000]).is_none(), "a read from the page cache was not checked");
        assert_eq!(verify(&*reader).unwrap(), [page]);
        for other in (0..10_000u64).step_by(4096).filter(|start| *start != page.start) {
            reader.read_at(other, &mut [0; 100]).unwrap();
        }
    }
    fs::write(&path, &bytes[..5000]).unwrap();
    let reader = store.open(meta.id).unwrap();
    let error = reader.read_at(4096, &mut [0; 10]).unwrap_err();
    assert_eq!(error.reaction, Reaction::Corrupt);
    assert!(error.message.contains("the file ends at 5000"), "{error}");
    assert!(reader.read_cached(4096, &mut [0; 10]).is_none(), "half a page was accepted");
    assert_eq!(verify(&*reader).unwrap(), [Span::new(4096, 10_000)]);
}

#[test]
fn cached_bytes_are_read_without_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (meta, bytes) = put(&store, 1, 300_000);
    // Not every file system can tell whether a page is cached.
    let payload = fs::File::open(store.payload_path(meta.id)).unwrap();
    let can_tell = rustix::io::preadv2(&payload, &mut [std::io::IoSliceMut::new(&mut [0])], 0, ReadWriteFlags::NOWAIT).is_ok();
    let reader = store.open(meta.id).unwrap();
    for (start, len) in [(0, 4096), (1000, 200_000), (299_999, 1), (290_000, 20_000)] {
        let mut read = vec![0xaa; len];
        assert_eq!(reader.read_cached(start as u64, &mut read).is_some(), can_tell, "{len} bytes from {start} on");
        let inside = &bytes[start..(start + len).min(bytes.len())];
        assert!(!can_tell || (read.starts_with(inside) && read[inside.len()..].iter().all(|byte| *byte == 0)));
    }
    if can_tell && !is_in_memory(dir.path()) {
        reader.forget_cached(Span::new(0, 300_000));
        assert!(reader.read_cached(0, &mut [0; 4096]).is_none(), "it is read from the disk");
        reader.read_at(0, &mut [0; 4096]).unwrap();
        assert!(reader.read_cached(0, &mut [0; 4096]).is_some());
    }
}

/// A file system in memory has nothing below its cache.
fn is_in_memory(dir: &Path) -> bool {
    rustix::fs::statfs(dir).unwrap().f_type as u64 == 0x0102_1994
}

#[test]
fn a_sidecar_is_read_from_the_disk_after_its_cache_was_let_go() {
    // Its page checksums take more than a page.
    const LEN: u64 = 8 << 20;
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut meta = conformance::block(CLUSTER, 1, LEN);
    (meta.stripe.layout.block_len, meta.stripe.layout.cell_len) = (LEN, LEN);
    let mut writer = store.create(&meta).unwrap();
    writer.write_at(0, &conformance::pattern(LEN)).unwrap();
    writer.finish(None).unwrap();
    let path = store.sidecar_path(meta.id);
    let len = fs::metadata(&path).unwrap().len();
    assert!(len > 4096, "{len}");
    let cached = |at: u64| {
        let file = fs::File::open(&path).unwrap();
        let mut byte = [0];
        rustix::io::preadv2(&file, &mut [std::io::IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT).is_ok()
    };
    drop(store.open(meta.id).unwrap());
    // Not every file system can tell whether a page is cached.
    if !cached(0) || is_in_memory(dir.path()) {
        return;
    }
    // It was synced when the block was written, so that all of it can go.
    store.forget_cached_sidecar(meta.id);
    assert!(!cached(0) && !cached(len - 1));
    store.open(meta.id).unwrap();
    assert!(cached(0) && cached(len - 1));
    store.forget_cached_sidecar(conformance::block(CLUSTER, 2, 5000).id);
}

#[test]
fn a_long_block_that_was_just_written_is_read_from_the_page_cache() {
    const LEN: usize = 24 << 20;
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (mut meta, bytes) = (conformance::block(CLUSTER, 1, LEN as u64), conformance::pattern(LEN as u64));
    (meta.stripe.layout.block_len, meta.stripe.layout.cell_len) = (LEN as u64, LEN as u64);
    let mut writer = store.create(&meta).unwrap();
    for (at, part) in bytes.chunks(1 << 20).enumerate() {
        writer.write_at((at as u64) << 20, part).unwrap();
    }
    writer.finish(None).unwrap();
    let cached = |id, at: u64| {
        let payload = fs::File::open(store.payload_path(id)).unwrap();
        let mut page = [0; 4096];
        rustix::io::preadv2(&payload, &mut [std::io::IoSliceMut::new(&mut page)], at, ReadWriteFlags::NOWAIT).is_ok()
    };
    let pages = (0..LEN as u64).step_by(4096);
    let (all, there) = (pages.clone().count(), pages.filter(|at| cached(meta.id, *at)).count());
    // Not every file system can tell whether a page is cached.
    let can_tell = cached(put(&store, 2, 10_000).0.id, 0);
    assert!(!can_tell || there > all / 2, "{there} of {all} pages");
}

/// What a quarantined block's directory holds: reason, payload, sidecar.
fn quarantined(dir: &Path, name: &str) -> (String, Vec<u8>, Option<Vec<u8>>) {
    let place = dir.join("quarantine").join(name);
    let reason = fs::read_to_string(place.join("reason")).unwrap();
    (reason, fs::read(place.join("payload")).unwrap(), fs::read(place.join("sidecar")).ok())
}

#[test]
fn opening_a_disk_recovers_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let blocks: Vec<_> = (1..=6).map(|stripe| put(&store, stripe, stripe * 5000)).collect();
    let payload = |i: usize| store.payload_path(blocks[i].0.id);
    let sidecar = |i: usize| store.sidecar_path(blocks[i].0.id);
    fs::remove_file(payload(1)).unwrap();
    fs::remove_file(sidecar(2)).unwrap();
    let mut rotten = fs::read(sidecar(3)).unwrap();
    rotten[30] ^= 1;
    fs::write(sidecar(3), &rotten).unwrap();
    fs::copy(sidecar(0), sidecar(4)).unwrap();
    fs::write(dir.path().join("tmp/s9-b000-c0-g1"), "half a block").unwrap();
    // A block in the directory of another shard.
    let foreign = [payload(0).with_file_name("notes.txt"), payload(0).with_file_name("s64-b000-c0-g1")];
    for path in &foreign {
        fs::write(path, "a foreign file").unwrap();
    }
    drop(store);

    let store = open(dir.path());
    let found = store.recovered();
    assert_eq!((found.blocks, found.temporaries_removed, found.sidecars_removed), (2, 1, 1));
    let reasons: Vec<&str> = found.quarantined.iter().map(|(_, reason)| reason.as_str()).collect();
    let expected = [
        "the block has no sidecar",
        "the sidecar is damaged: its checksum is wrong",
        "the sidecar belongs to block s1-b000-c0-g1",
    ];
    assert_eq!(reasons, expected);
    assert_eq!(store.list().unwrap(), [blocks[0].0.id, blocks[5].0.id]);
    assert!(foreign.iter().all(|path| path.exists()), "a foreign file was removed");
    assert_eq!(quarantined(dir.path(), "s3-b000-c0-g1.1").1, blocks[2].1);
    let (reason, payload, sidecar) = quarantined(dir.path(), "s4-b000-c0-g1.1");
    assert_eq!(reason, "s4-b000-c0-g1: the sidecar is damaged: its checksum is wrong\n");
    assert_eq!((payload, sidecar), (blocks[3].1.clone(), Some(rotten)));
    assert!(!dir.path().join("tmp/s9-b000-c0-g1").exists());
    put(&store, 2, 4096);
    drop(store);
    let quiet = open(dir.path());
    assert_eq!((quiet.recovered().blocks, quiet.recovered().quarantined.len()), (3, 0));
    assert_eq!(quiet.quarantined(), Quarantined { blocks: 3, bytes: 3 * 5000 + 4 * 5000 + 5 * 5000 });
}

#[test]
fn a_quarantined_block_keeps_its_time_over_a_restart_and_is_deleted_completely() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let [one, two, three] = [1, 2, 3].map(|stripe| put(&store, stripe, 5000).0.id);
    store.quarantine(one, "it is not in the metadata", Some(1_700_000_000_000)).unwrap();
    store.quarantine(two, "it is not in the metadata", Some(1_700_000_000_000)).unwrap();
    drop(store);
    let store = open(dir.path());
    let place = |stripe| dir.path().join(format!("quarantine/s{stripe}-b000-c0-g1.1"));
    assert_eq!(fs::read_to_string(place(1).join("since-ms")).unwrap(), "1700000000000\n");
    store.quarantine(three, "it is not in the metadata", Some(1_600_000_000_000)).unwrap();
    // An unreadable time counts as no time.
    fs::write(place(2).join("since-ms"), "soon").unwrap();
    let there = |stripe, since_ms| QuarantinePlace { name: format!("s{stripe}-b000-c0-g1.1"), since_ms, bytes: 5000 };
    let old = store.quarantine_places().unwrap();
    assert_eq!(old, [there(3, Some(1_600_000_000_000)), there(1, Some(1_700_000_000_000)), there(2, None)], "the oldest first");
    store.delete_quarantined(&old[0].name).unwrap();
    fs::write(place(1).join("notes"), "a person's").unwrap();
    store.delete_quarantined(&old[1].name).unwrap();
    let left: Vec<_> = fs::read_dir(place(1)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["notes"]);
    assert_eq!((store.failed(), store.quarantined()), (None, Quarantined { blocks: 1, bytes: 5000 }));
}

/// A downgrade must not quarantine the blocks that a newer program wrote.
#[test]
fn a_sidecar_of_a_newer_version_does_not_count_as_broken() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (meta, bytes) = put(&store, 1, 5000);
    let (payload, sidecar) = (store.payload_path(meta.id), store.sidecar_path(meta.id));
    drop(store);
    let mut newer = fs::read(&sidecar).unwrap();
    newer[8] = SIDECAR_VERSION as u8 + 1;
    let body_len = newer.len() - 4;
    let sum = crc32c(&newer[..body_len]);
    newer[body_len..].copy_from_slice(&sum.to_le_bytes());
    fs::write(&sidecar, newer).unwrap();
    let error = refused(dir.path(), CLUSTER);
    assert_eq!(error.reaction, Reaction::Fatal);
    assert!(error.message.contains("version 4, but this program reads versions up to 3"), "{error}");
    assert_eq!(fs::read(payload).unwrap(), bytes);
}

#[test]
fn faults_are_injected_as_configured() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<LocalStore> = Arc::new(open(dir.path()));
    let meta = conformance::block(CLUSTER, 1, 8192);
    let bytes = conformance::pattern(8192);
    let units = [crc32c(&bytes)];
    let write = |store: &FaultStore| {
        let mut writer = store.create(&meta)?;
        for (start, part) in (0..).step_by(4096).zip(bytes.chunks(4096)) {
            writer.write_at(start, part)?;
        }
        writer.finish(Some(&units))
    };
    let faulty = |kind, passed, fault| FaultStore::nth(disk.clone(), kind, passed, fault);
    let reaction = |kind, passed, fault| write(&faulty(kind, passed, fault)).unwrap_err().reaction;
    assert_eq!(reaction(CallKind::Create, 0, Fault::Fail(Reaction::Unavailable)), Reaction::Unavailable);
    assert_eq!(reaction(CallKind::Write, 1, Fault::Short(100)), Reaction::Fatal);
    assert_eq!(reaction(CallKind::Write, 1, Fault::FlipBit(77)), Reaction::Corrupt, "the expected checksum detects it");
    assert_eq!(reaction(CallKind::Finish, 0, Fault::Fail(Reaction::Fatal)), Reaction::Fatal);
    assert_eq!(disk.list().unwrap(), [], "a failed write left a block");
    let store = faulty(CallKind::Write, 2, Fault::Fail(Reaction::Fatal));
    write(&store).unwrap();

    let store = faulty(CallKind::Read, 1, Fault::FlipBit(8));
    let reader = store.open(meta.id).unwrap();
    let mut read = [0; 2];
    for expected in [[bytes[0], bytes[1]], [bytes[0], bytes[1] ^ 1], [bytes[0], bytes[1]]] {
        reader.read_at(0, &mut read).unwrap();
        assert_eq!(read, expected);
    }
    let (images, seq) = ([Image { offset: 0, bytes: &bytes[..4096] }], Seq::new(1, vec![1, 0]));
    let patch = Patch { id: meta.id, images: &images, seq, data_len: 8192 };
    assert!(faulty(CallKind::Patch, 0, Fault::Fail(Reaction::Retry)).patch(&patch).is_err());
    assert_eq!(disk.open(meta.id).unwrap().meta(), &meta);
    assert!(faulty(CallKind::Patch, 1, Fault::Fail(Reaction::Retry)).patch(&patch).is_ok());
    assert!(faulty(CallKind::Remove, 0, Fault::Fail(Reaction::Retry)).remove(meta.id).is_err());
    assert!(disk.open(meta.id).is_ok());
}
