//! Bit rot is found and repaired while clients read and write, on real processes.

use crate::harness::{Cluster, Setup, bytes, path, wait_for};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::unix::fs::FileExt,
    path::PathBuf,
    process::Stdio,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
};
use weft_types::BlockId;

const OBJECTS: usize = 200;
const FLIPS: usize = 1000;
const CODING: [&str; 6] = ["--code", "rs(4,2)", "--block-size", "16KiB", "--cell-size", "4KiB"];
/// The least puts and writes in place, however fast the scrub is.
const CHANGES_MIN: usize = 6;
/// Disks with so many bad blocks would be drained.
const HEALS: [(&str, &str); 2] = [("WEFT_COORDINATOR_AUTO_REPAIR", "true"), ("WEFT_COORDINATOR_DRAIN_FAILING_DISKS", "off")];
/// Two blocks of many stripes are wrong, so no node may count as down because the machine is busy. A small journal is made soon.
const CALM: [(&str, &str); 2] = [("WEFT_COORDINATOR_DOWN_AFTER_MS", "30000"), ("WEFT_AGENT_LIMITS__UPDATE_JOURNAL", "128MiB")];

/// Flips random bytes of two blocks of each stripe, which is as much as its code can lose. Returns the files.
fn rot(cluster: &Cluster) -> BTreeSet<PathBuf> {
    let mut stripes: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
    for file in cluster.files() {
        if let Some(block) = file.file_name().and_then(|name| name.to_str()?.parse::<BlockId>().ok()) {
            stripes.entry(block.stripe.0).or_default().push(file);
        }
    }
    assert_eq!(stripes.len(), OBJECTS);
    let random = bytes(FLIPS * 8, 5);
    let (mut damaged, mut flips) = (BTreeSet::new(), random.chunks_exact(8));
    'all: loop {
        for (stripe, blocks) in &stripes {
            let Some(draw) = flips.next().map(|it| u64::from_le_bytes(it.try_into().unwrap())) else { break 'all };
            let victim = &blocks[(stripe + draw % 2) as usize % blocks.len()];
            let file = File::options().read(true).write(true).open(victim).unwrap();
            let at = (draw >> 8) % file.metadata().unwrap().len();
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            // Never back to what it was.
            file.write_all_at(&[byte[0].wrapping_add(1)], at).unwrap();
            damaged.insert(victim.clone());
        }
    }
    damaged
}

/// Stores objects in the bucket `live` and overwrites them in place, until it is stopped. Each is read after its change. Returns what they contain.
fn change(cluster: &Cluster, stop: &AtomicBool) -> Vec<Vec<u8>> {
    let mut live: Vec<Vec<u8>> = Vec::new();
    for step in 0.. {
        if step >= CHANGES_MIN && stop.load(Relaxed) {
            break;
        }
        let new = step % 3 == 0;
        let number = if new { live.len() } else { step * 5 % live.len() };
        let (name, seed) = (format!("live/o{number}"), (1_000 + step) as u64);
        if new {
            let content = bytes(40_000, seed);
            cluster.put(&name, &content, &CODING).ok();
            live.push(content);
        } else {
            let (content, offset) = (bytes(9_000, seed), step * 7_919 % 31_000);
            let file = cluster.write("change", &content);
            cluster.weft(["write", path(&file), &name, "--offset", &offset.to_string()]).ok();
            live[number][offset..offset + content.len()].copy_from_slice(&content);
        }
        let got = cluster.weft(["get", &name, "-"]).ok();
        assert!(got.stdout == live[number], "{name}: wrong bytes were read after change {step}");
    }
    live
}

/// Ends the load also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_thousand_flipped_bytes_are_found_in_one_pass_and_repaired_while_clients_read_and_write() {
    let cluster = Setup { racks: 1, ..Setup::nodes(8) }.with(&HEALS).with(&CALM).up();
    let contents: Vec<Vec<u8>> = (0..OBJECTS).map(|number| bytes(40_000, number as u64)).collect();
    let dir = cluster.file("objects");
    fs::create_dir(&dir).unwrap();
    for (number, content) in contents.iter().enumerate() {
        fs::write(dir.join(format!("o{number}")), content).unwrap();
    }
    cluster.weft(["put", "--recursive", path(&dir), "default/rot"].iter().chain(&CODING)).ok();
    cluster.weft(["bucket", "create", "live"]).ok();
    let damaged = rot(&cluster);
    assert!(damaged.len() > OBJECTS, "{}", damaged.len());

    let (stop, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (report, live) = thread::scope(|scope| {
        let changes = scope.spawn(|| change(&cluster, &stop));
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                let number = reads.fetch_add(1, Relaxed) * 7 % OBJECTS;
                let got = cluster.weft(["get", &format!("default/rot/o{number}"), "-"]).ok();
                assert!(got.stdout == contents[number], "o{number}: wrong bytes were read");
            }
        });
        let load = Stop(&stop);
        let ended = cluster.start(["scrub", "default", "--concurrency", "16", "--json"], Stdio::null()).end();
        let code = ended.status.code();
        // All that was damaged is replaced, whether the scrub or a read found it.
        wait_for("all damaged blocks to be replaced", || damaged.iter().all(|file| !file.exists()));
        wait_for("no object to lack a block", || cluster.weft(["check"]).status.code() == Some(0));
        drop(load);
        assert!(matches!(code, Some(0 | 8 | 9)), "{code:?}: {}", ended.stderr);
        (serde_json::from_slice::<serde_json::Value>(&ended.stdout).unwrap(), changes.join().unwrap())
    });
    assert_eq!(
        (&report["state"], &report["stripes"], &report["inconsistent_stripes"]),
        (&"done".into(), &OBJECTS.into(), &0.into())
    );
    let (wrong, found) = (&report["wrong"][0], report["wrong_blocks"].as_u64().unwrap());
    // Reads find some of them first.
    assert!(found as usize <= damaged.len() && found as usize > damaged.len() / 8, "{found} of {}", damaged.len());
    assert!(
        wrong["object"].as_str().unwrap().starts_with("default/rot/o") && wrong["node"].as_str().unwrap().starts_with("node-")
    );
    assert!(reads.load(Relaxed) > 3);

    let again = cluster.weft(["scrub", "default/rot/o7"]).ok().text().to_owned();
    assert!(
        again.contains("scrub of default/rot/o7: done, 1 of 1 stripes checked") && again.contains("nothing wrong"),
        "{again}"
    );
    let all = cluster.weft(["scrub", "--json"]).ok().json();
    assert_eq!(
        (&all["wrong_blocks"], &all["lacking_blocks"], &all["stripes"]),
        (&0.into(), &0.into(), &(OBJECTS + live.len()).into()),
        "{all}"
    );
    for (number, content) in live.iter().enumerate().step_by(3) {
        cluster.expect(&format!("live/o{number}"), content, &[]);
    }
    for (number, content) in contents.iter().enumerate().step_by(40) {
        cluster.expect(&format!("default/rot/o{number}"), content, &[]);
    }
    cluster.weft(["scrub", "nowhere"]).refused(3, &["nowhere"]);
    cluster.weft(["scrub", "--node", "node-99"]).refused(3, &["node-99"]);
    let told = cluster.weft(["status"]).code(8);
    assert!(told.text().contains("scrub: ") && told.text().contains("is failing"), "{}", told.text());
}
