//! Corrupt blocks on disks.

use crate::harness::{Block, Cluster, Setup, bytes, path, texts, wait_for};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};
use weft_store::Sidecar;
use weft_types::crc32c;

const CODING: [&str; 6] = ["--code", "rs(4,2)", "--block-size", "1MiB", "--cell-size", "64KiB"];

#[test]
fn damage_on_a_disk_is_found_named_read_around_and_mended() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage, &str, &str); 5] = [
        ("flipped", |payload| flip(payload, 5000), "corrupt", "page 1"),
        ("truncated", |payload| cut(payload, 300_000), "corrupt", "ends at 300000"),
        ("deleted", |payload| fs::remove_file(payload).unwrap(), "missing", "none of the node's disks"),
        ("sidecar-flipped", |payload| flip(&sidecar(payload), 40), "corrupt", "sidecar"),
        ("sidecar-deleted", |payload| fs::remove_file(sidecar(payload)).unwrap(), "corrupt", "sidecar"),
    ];
    let cluster = Setup::nodes(8).up();
    for (number, (key, damage, state, says)) in damages.into_iter().enumerate() {
        let content = bytes(4 << 20, number as u64);
        cluster.put(key, &content, &CODING).ok();
        let victim = cluster.blocks(key)[number % 4].clone();
        damage(&cluster.payload(&victim));

        let got = cluster.expect(key, &content, &[]);
        assert_eq!(texts(&got["rebuilt"]), victim.file_name(), "{key}: {got}");
        let named = format!("block {}: ", victim.file_name());
        let said = |text: &str| text.lines().any(|line| line.contains(&victim.file_name()) && line.contains(says));
        wait_for(&format!("{key} to be named in the log"), || said(&cluster.log("coordinator")));
        if key == "flipped" {
            let errors = texts(&got["errors"]);
            assert!(errors.contains(&named) && errors.contains(says), "{key}: the report does not name the failure: {got}");
            assert!(said(&cluster.log(&victim.node)));
        }
        let stat = cluster.blocks(key);
        let states: Vec<&str> = stat.iter().map(|block| block.state.as_str()).filter(|state| *state != "ok").collect();
        assert_eq!(states, [state], "{key}");

        let repaired = cluster.weft(["repair", "object", key, "--json"]).ok().json();
        assert_eq!(
            (&repaired["blocks"][0]["index"], repaired["blocks"].as_array().map(Vec::len)),
            (&victim.index.into(), Some(1))
        );
        let after = cluster.blocks(key)[victim.index].clone();
        assert_eq!((after.state.as_str(), after.generation), ("ok", victim.generation + 1), "{key}");
        assert!(fs::read(cluster.payload(&after)).unwrap() == block_of(&content, victim.index), "{key}");
        assert_eq!(texts(&cluster.expect(key, &content, &[])["rebuilt"]), "", "{key}");
        wait_for("the corrupt block to be removed", || !is_on(&cluster, &victim));
    }
}

#[test]
fn one_command_rebuilds_all_that_objects_lack() {
    let cluster = Setup::nodes(8).up();
    let keys = ["o0", "o1", "o2"];
    let content = bytes(4 << 20, 3);
    keys.iter().for_each(|key| drop(cluster.put(key, &content, &CODING).ok()));
    // A block of one object is corrupt, and all objects with blocks on a node lack these.
    let blocks = cluster.blocks(keys[0]);
    flip(&cluster.payload(&blocks[1]), 5000);
    cluster.expect(keys[0], &content, &[]);
    let down = &blocks[2].node;
    cluster.take_down(&[down]);
    let lacking = keys.iter().filter(|key| cluster.blocks(key).iter().any(|block| block.node == *down)).count();
    wait_for("all of it to be listed, the most endangered first", || {
        let listed = cluster.weft(["check", "--json"]).json();
        let (objects, first) = (listed["objects"].as_array().map(Vec::len), &listed["objects"][0]);
        objects == Some(lacking)
            && first["object"] == "default/o0"
            && [&first["corrupt"], &first["on_down_nodes"], &first["further_losses"]] == [1, 1, 0]
    });
    cluster.weft(["check"]).code(9);
    let repaired = cluster.weft(["check", "--repair", "--json"]).ok().json();
    assert_eq!(
        (&repaired["repaired_blocks"], &repaired["failures"]),
        (&(lacking + 1).into(), &serde_json::json!([])),
        "{repaired}"
    );
    assert_eq!(cluster.weft(["check"]).ok().text(), "no object lacks a block\n");
    for key in keys {
        assert_eq!(texts(&cluster.expect(key, &content, &[])["rebuilt"]), "", "{key}");
    }
}

/// Bytes that were changed together with their checksums look correct on the disk. The node compares them with the metadata before it
/// reads them.
#[test]
fn wrong_bytes_with_the_right_page_checksums_are_never_handed_out_or_kept() {
    let cluster = Setup::nodes(8).up();
    let content = bytes(4 << 20, 7);
    for (key, forged) in [("data-block", 1), ("parity-block", 4)] {
        cluster.put(key, &content, &CODING).ok();
        let blocks = cluster.blocks(key);
        forge(&cluster.payload(&blocks[forged]));
        // The object survives one more lost block, but not two.
        cluster.take_down(&[blocks[0].node.as_str()]);
        for scheme in ["conventional", "ppr", "pipeline"] {
            let got = cluster.expect(key, &content, &["--scheme", scheme]);
            assert!(texts(&got["rebuilt"]).contains(&blocks[0].file_name()), "{got}");
        }
        cluster.take_down(&[blocks[2].node.as_str()]);
        let before = cluster.files();
        let name = blocks[forged].file_name();
        let lost = [key, "lost 3 blocks", &name, "corrupt"];
        for scheme in ["conventional", "ppr", "pipeline"] {
            let out = cluster.file("out");
            cluster.weft(["get", key, path(&out), "--scheme", scheme]).refused(4, &lost);
            assert!(!out.exists(), "wrong bytes were returned");
        }
        cluster.weft(["repair", "object", key, "--block", "0", "--scheme", "pipeline"]).refused(4, &lost);
        let after = cluster.blocks(key);
        assert_eq!((after[0].generation, after[0].state.as_str()), (1, "down"), "a wrong block was committed");
        assert_eq!(after[forged].state, "corrupt");
        wait_for("the blocks of the failed repair to be removed", || cluster.files().len() == before.len());
        cluster.up().ok();
        assert_eq!(cluster.weft(["repair", "object", key, "--json"]).ok().json()["blocks"][0]["index"], forged);
        cluster.expect(key, &content, &[]);
        cluster.weft(["rm", key]).ok();
    }
}

fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

fn cut(path: &Path, len: u64) {
    File::options().write(true).open(path).unwrap().set_len(len).unwrap();
}

fn sidecar(payload: &Path) -> PathBuf {
    payload.with_file_name(format!("{}.meta", payload.file_name().unwrap().to_str().unwrap()))
}

/// Changes a byte of a block, and all its checksums on the disk to match.
fn forge(payload: &Path) {
    flip(payload, 70_000);
    let pages = fs::read(payload).unwrap().chunks(4096).map(crc32c).collect();
    let honest = Sidecar::decode(&fs::read(sidecar(payload)).unwrap()).unwrap();
    let forged = Sidecar::new(honest.meta().clone(), pages).unwrap();
    assert_ne!(forged, honest);
    fs::write(sidecar(payload), forged.encode().unwrap()).unwrap();
}

/// A data block of an object of one stripe.
fn block_of(content: &[u8], index: usize) -> Vec<u8> {
    content.chunks(64 << 10).skip(index).step_by(4).flatten().copied().collect()
}

fn is_on(cluster: &Cluster, block: &Block) -> bool {
    cluster.files_of(&block.node).iter().any(|path| path.file_name().is_some_and(|name| *name == *block.file_name()))
}
