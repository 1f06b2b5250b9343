//! A crash, as a kill and as a loss of power, before every step that changes the disk. Afterwards the block is complete
//! or absent, and it is there if it was acknowledged.
//!
//! A kill leaves the files as they are at that moment. A loss of power may also lose what was not synced: the content
//! of a file becomes shorter or zeros, and a rename in an unsynced directory is undone, each independently of the
//! others.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use weft_store::{BlockStore, LocalStore, NewDisk, Step, Steps, conformance, verify};
use weft_types::{BlockMeta, ClusterId, Reaction, Result, crc32c};

const CLUSTER: ClusterId = ClusterId(0xc1);
const NEW: NewDisk = NewDisk { disk_id: 0xd15c, created_ms: 1_700_000_000_000 };
const LEN: u64 = 3 * 4096 + 100;

fn meta() -> BlockMeta {
    conformance::block(CLUSTER, 1, LEN)
}

fn put(store: &dyn BlockStore) -> Result<()> {
    let bytes = conformance::pattern(LEN);
    let mut writer = store.create(&meta())?;
    writer.write_at(0, &bytes[..8192])?;
    writer.write_at(8192, &bytes[8192..])?;
    writer.finish(Some(&[crc32c(&bytes)])).map(drop)
}

/// Copies the disk before each step, and fails a chosen one.
#[derive(Debug, Default)]
struct Watch {
    dir: PathBuf,
    copies: Option<PathBuf>,
    steps: Mutex<Vec<Step>>,
    fail: Option<(usize, io::ErrorKind)>,
}

impl Steps for Watch {
    fn before(&self, step: Step) -> io::Result<()> {
        let mut steps = self.steps.lock().unwrap();
        if let Some(copies) = &self.copies {
            copy_tree(&self.dir, &copies.join(steps.len().to_string()));
        }
        steps.push(step);
        match self.fail {
            Some((number, kind)) if number + 1 == steps.len() => Err(kind.into()),
            _ => Ok(()),
        }
    }
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// Runs `before` and then `work` on a disk. Returns the steps of `work` with a copy of the disk before each, and one at
/// the end.
fn watched(root: &Path, before: fn(&LocalStore), work: fn(&LocalStore)) -> Vec<(Option<Step>, PathBuf)> {
    let (dir, copies) = (root.join("live"), root.join("copies"));
    before(&LocalStore::open(&dir, CLUSTER, NEW).unwrap());
    let watch = Arc::new(Watch { dir: dir.clone(), copies: Some(copies.clone()), ..Watch::default() });
    let store = LocalStore::open_with_steps(&dir, CLUSTER, NEW, watch.clone()).unwrap();
    work(&store);
    let steps = watch.steps.lock().unwrap().clone();
    copy_tree(&dir, &copies.join(steps.len().to_string()));
    let path = |i: usize| copies.join(i.to_string());
    let mut crashes: Vec<_> = steps.iter().enumerate().map(|(i, step)| (Some(*step), path(i))).collect();
    crashes.push((None, path(steps.len())));
    crashes
}

/// Opens the disk after a crash. Returns whether the block is there; if so, checks every byte.
fn survives(dir: &Path, case: &str) -> bool {
    let store = LocalStore::open(dir, CLUSTER, NEW).unwrap_or_else(|error| panic!("{case}: {error}"));
    let there = match store.list().unwrap().as_slice() {
        [] => false,
        [id] => *id == meta().id,
        more => panic!("{case}: {more:?}"),
    };
    if there {
        let reader = store.open(meta().id).unwrap();
        let mut read = vec![0; LEN as usize];
        reader.read_at(0, &mut read).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert!(read == conformance::pattern(LEN) && *reader.meta() == meta(), "{case}");
        assert_eq!(verify(&*reader).unwrap(), [], "{case}");
    } else {
        assert_eq!(store.open(meta().id).err().map(|error| error.reaction), Some(Reaction::NotFound), "{case}");
        assert_eq!(files(&dir.join("blocks")), [] as [PathBuf; 0], "{case}");
        put(&store).unwrap_or_else(|error| panic!("{case}: writing it again: {error}"));
    }
    assert_eq!(files(&dir.join("tmp")), [] as [PathBuf; 0], "{case}");
    there
}

/// The states in which a loss of power may leave a file that was not synced.
fn losses(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    let half = bytes.len() / 2;
    let mut torn = bytes.clone();
    torn[half..].fill(0);
    vec![bytes.clone(), bytes[..half].to_vec(), torn, Vec::new()]
}

#[test]
fn a_crash_at_any_step_of_a_write_leaves_no_block_or_the_right_one() {
    let root = tempfile::tempdir().unwrap();
    let crashes = watched(root.path(), |_| (), |store| put(store).unwrap());
    let position = |step: Step| crashes.iter().position(|crash| crash.0 == Some(step)).unwrap();
    let order =
        [Step::WriteSidecar, Step::SyncSidecar, Step::RenameSidecar, Step::SyncPayload, Step::RenamePayload, Step::SyncDirectory];
    assert!(order.map(position).is_sorted(), "{crashes:?}");
    let name = meta().id.to_string();
    let mut cases = 0;
    for (at, (step, disk)) in crashes.iter().enumerate() {
        // The step at `at` had not started; all earlier ones were complete.
        let done = |step: Step| at > position(step);
        let acknowledged = step.is_none();
        let place = |renamed: bool, name: &str| disk.join(if renamed { "blocks/000" } else { "tmp" }).join(name);
        let payload = (name.clone(), Step::SyncPayload, Step::RenamePayload);
        let sidecar = (format!("{name}.meta"), Step::SyncSidecar, Step::RenameSidecar);
        // For each of the two files: its possible content, and its possible name.
        let variants = [payload, sidecar].map(|(name, sync, rename)| {
            let now = place(done(rename), &name);
            if !now.exists() {
                return vec![None];
            }
            let contents = if done(sync) { vec![fs::read(&now).unwrap()] } else { losses(&now) };
            let undone = done(rename) && !done(Step::SyncDirectory);
            let places = if undone { vec![now, place(false, &name)] } else { vec![now] };
            let pairs = contents
                .into_iter()
                .flat_map(|content| places.clone().into_iter().map(move |place| Some((place, content.clone()))));
            pairs.collect()
        });
        for payload in &variants[0] {
            for sidecar in &variants[1] {
                let case = format!("crash {at} before {step:?}, case {cases}");
                cases += 1;
                let crashed = root.path().join(format!("crashed-{cases}"));
                copy_tree(disk, &crashed);
                for file in files(&crashed.join("blocks")).into_iter().chain(files(&crashed.join("tmp"))) {
                    fs::remove_file(file).unwrap();
                }
                for (path, content) in payload.iter().chain(sidecar) {
                    fs::write(crashed.join(path.strip_prefix(disk).unwrap()), content).unwrap();
                }
                let there = survives(&crashed, &case);
                assert!(there || !acknowledged, "{case}: an acknowledged block is gone");
                assert!(!there || done(Step::RenamePayload), "{case}: a block exists before its commit");
            }
        }
    }
    assert!(cases >= 50, "only {cases} states were tested");
}

#[test]
fn a_crash_at_any_step_of_a_removal_leaves_the_block_or_none() {
    let root = tempfile::tempdir().unwrap();
    let crashes = watched(root.path(), |store| put(store).unwrap(), |store| assert!(store.remove(meta().id).unwrap()));
    let there: Vec<bool> = crashes.iter().map(|(step, disk)| survives(disk, &format!("before {step:?}"))).collect();
    assert_eq!((there[0], there[1], there.last()), (true, false, Some(&false)), "{crashes:?}");
    for (_, disk) in crashes {
        assert_eq!(files(&disk.join("quarantine")), [] as [PathBuf; 0], "a removed block was quarantined as broken");
    }
}

#[test]
fn a_crash_at_any_step_of_a_quarantine_loses_nothing() {
    let root = tempfile::tempdir().unwrap();
    let put_whole = |store: &LocalStore| put(store).unwrap();
    let crashes = watched(root.path(), put_whole, |store| store.quarantine(meta().id, "a test", Some(7)).unwrap());
    for (step, disk) in crashes {
        let place = disk.join("quarantine").join(format!("{}.1", meta().id));
        if !survives(&disk, &format!("before {step:?}")) {
            assert_eq!(fs::read(place.join("payload")).unwrap(), conformance::pattern(LEN), "{step:?}");
            assert!(fs::read(place.join("sidecar")).is_ok_and(|bytes| weft_store::Sidecar::decode(&bytes).is_ok()), "{step:?}");
            assert!(fs::read_to_string(place.join("reason")).unwrap().contains("a test"));
        }
    }
}

/// Runs the put with step `number` failing; `None` if there is no such step.
fn put_with_failure(dir: &Path, number: usize, kind: io::ErrorKind) -> Option<(Step, LocalStore, weft_types::Error)> {
    let watch = Arc::new(Watch { fail: Some((number, kind)), ..Watch::default() });
    let store = LocalStore::open_with_steps(dir, CLUSTER, NEW, watch.clone()).unwrap();
    let result = put(&store);
    let step = *watch.steps.lock().unwrap().get(number)?;
    Some((step, store, result.expect_err("a step failed without an error")))
}

#[test]
fn a_full_disk_at_any_step_is_reported_and_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    for number in 0.. {
        let dir = root.path().join(number.to_string());
        let Some((step, store, error)) = put_with_failure(&dir, number, io::ErrorKind::StorageFull) else { break };
        assert_eq!(error.block, Some(meta().id), "{step:?}");
        if matches!(step, Step::SyncPayload | Step::SyncSidecar | Step::SyncDirectory) {
            assert_eq!(error.reaction, Reaction::Fatal, "{step:?}");
            continue;
        }
        assert_eq!(error.reaction, Reaction::Unavailable, "{step:?}: {error}");
        assert!(error.message.contains("the disk is full"), "{error}");
        assert_eq!((store.failed(), store.errors().writes), (None, 0), "{step:?}");
        assert_eq!([files(&dir.join("tmp")), files(&dir.join("blocks"))].concat(), [] as [PathBuf; 0], "{step:?}");
        put(&store).unwrap_or_else(|error| panic!("after {step:?}, with room again: {error}"));
    }
}

#[test]
fn any_other_failure_fails_the_disk_for_writes() {
    let root = tempfile::tempdir().unwrap();
    let mut steps = Vec::new();
    for number in 0.. {
        let dir = root.path().join(number.to_string());
        let kept = conformance::block(CLUSTER, 2, 0);
        let fresh = LocalStore::open(&dir, CLUSTER, NEW).unwrap();
        fresh.create(&kept).unwrap().finish(None).unwrap();
        drop(fresh);
        let Some((step, store, error)) = put_with_failure(&dir, number, io::ErrorKind::Other) else { break };
        steps.push(step);
        assert_eq!(error.reaction, Reaction::Fatal, "{step:?}");
        assert!(store.failed().is_some_and(|why| why.contains(&format!("{step:?}"))), "{step:?}");
        let refused = [put(&store), store.remove(kept.id).map(drop), store.quarantine(kept.id, "x", None)];
        for result in refused {
            assert_eq!(result.map_err(|error| error.reaction), Err(Reaction::Fatal), "{step:?}");
        }
        assert!(store.open(kept.id).is_ok(), "an existing block can still be read");
        assert_eq!(store.errors().writes, 1, "{step:?}");
    }
    assert!(steps.contains(&Step::SyncPayload) && steps.contains(&Step::SyncDirectory), "{steps:?}");
}
