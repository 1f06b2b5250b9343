//! `weft write --append`, and writes beyond the end of an object.

use crate::harness::{Cluster, Setup, bytes, path, wait_for};
use std::{
    io::Write as _,
    process::Stdio,
    thread::{scope, sleep},
    time::Duration,
};

/// A stripe holds 2 MiB.
const CODING: [&str; 6] = ["--code", "rs(4,2)", "--block-size", "512KiB", "--cell-size", "64KiB"];
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Small, so that it is made soon.
const JOURNAL: [(&str, &str); 1] = [("WEFT_AGENT_LIMITS__UPDATE_JOURNAL", "128MiB")];

fn size(cluster: &Cluster) -> u64 {
    cluster.json(&["stat", "data"])["size"].as_u64().expect("a size")
}

#[test]
fn bytes_are_appended_until_the_last_stripe_is_full() {
    let cluster = Setup::nodes(8).with(&JOURNAL).up();
    let mut content = bytes(2 * MIB + 300 * KIB + 7, 1);
    cluster.put("data", &content, &CODING).ok();
    let room = 4 * MIB - content.len();
    let new = |len: usize, seed: u64| (bytes(len, seed), cluster.write("new", &bytes(len, seed)));

    let (_, file) = new(50_000, 2);
    let plan = cluster.json(&["write", path(&file), "data", "--append", "--explain"]);
    assert_eq!((&plan["offset"], &plan["appended_bytes"]), (&content.len().into(), &50_000.into()));
    assert_eq!((&plan["stripes"][0]["number"], size(&cluster)), (&1.into(), content.len() as u64));

    // Short and long ones, in cells and across them.
    for (len, seed) in [(1, 3), (50_000, 4), (100, 5), (700 * KIB, 6)] {
        let (more, file) = new(len, seed);
        let wrote = cluster.json(&["write", path(&file), "data", "--append"]);
        assert_eq!((&wrote["offset"], &wrote["bytes"]), (&content.len().into(), &len.into()));
        assert_eq!(wrote["appended_bytes"], wrote["bytes"]);
        content.extend_from_slice(&more);
        assert_eq!(size(&cluster), content.len() as u64);
        cluster.expect("data", &content, &[]);
    }
    // A write over the end overwrites and appends.
    let (more, file) = new(80_000, 7);
    let from = content.len() - 30_000;
    let wrote = cluster.json(&["write", path(&file), "data", "--offset", &from.to_string()]);
    assert_eq!((&wrote["offset"], &wrote["bytes"]), (&from.into(), &80_000.into()));
    assert_eq!(wrote["appended_bytes"], 50_000);
    content.truncate(from);
    content.extend_from_slice(&more);
    cluster.expect("data", &content, &[]);
    cluster.expect("data", &content[from + 29_000..from + 31_000], &["--range", &format!("{}-{}", from + 29_000, from + 30_999)]);

    // From a pipe, whose length is not known.
    for (seed, over) in [(8, None), (9, Some(3_000))] {
        let from = (content.len() - over.unwrap_or(0)).to_string();
        let place = if over.is_some() { vec!["--offset", &from] } else { vec!["--append"] };
        let mut piped = cluster.start([&["write", "-", "data"][..], &place].concat(), Stdio::piped());
        let more = bytes(10_000, seed);
        piped.child().stdin.take().expect("a pipe").write_all(&more).expect("it reads");
        piped.end().ok();
        content.truncate(content.len() - over.unwrap_or(0));
        content.extend_from_slice(&more);
        cluster.expect("data", &content, &[]);
    }

    // What does not fit changes nothing, and the message says what fits.
    let left = room - (content.len() - (2 * MIB + 300 * KIB + 7));
    let (_, file) = new(left + 1, 10);
    let fits = format!("{left} can be appended");
    cluster.weft(["write", path(&file), "data", "--append"]).refused(2, &[&fits, "Put the object again"]);
    cluster.weft(["write", path(&file), "data", "--append", "--explain"]).refused(2, &[&fits]);
    cluster.weft(["write", path(&file), "data", "--offset", &(content.len() - 5).to_string()]).ok();
    let (more, _) = new(left + 1, 10);
    content.truncate(content.len() - 5);
    content.extend_from_slice(&more);
    let gap = (content.len() + 1).to_string();
    cluster.weft(["write", path(&file), "data", "--offset", &gap]).refused(2, &["must not leave a gap"]);
    cluster.expect("data", &content, &[]);
    let (more, file) = new(4 * MIB - content.len(), 11);
    cluster.weft(["write", path(&file), "data", "--append"]).ok();
    content.extend_from_slice(&more);
    cluster.weft(["write", path(&file), "data", "--append"]).refused(2, &["0 can be appended"]);

    // All blocks are as long as they must be, and those of lost nodes are rebuilt so.
    let victim = cluster.blocks("data")[0].node.clone();
    cluster.take_down(&[&victim]);
    cluster.expect("data", &content, &[]);
    cluster.up().ok();
    // The read has settled the stripe without it.
    cluster.weft(["repair", "object", "data"]).ok();
    let scrub = cluster.json(&["scrub"]);
    assert_eq!((&scrub["state"], &scrub["lacking_blocks"]), (&"done".into(), &0.into()), "{scrub}");
    cluster.expect("data", &content, &[]);
}

#[test]
fn of_two_that_append_at_the_same_time_both_do_one_after_the_other() {
    const EACH: usize = 12;
    let cluster = Setup::nodes(6).with(&JOURNAL).up();
    let start = bytes(300 * KIB, 1);
    cluster.put("data", &start, &CODING).ok();
    let file = |writer: u8| cluster.write(&format!("of{writer}"), &[writer; 5_000]);
    let files = [file(1), file(2)];
    scope(|scope| {
        for file in &files {
            let cluster = &cluster;
            scope.spawn(move || {
                for _ in 0..EACH {
                    cluster.weft(["write", path(file), "data", "--append"]).ok();
                }
            });
        }
    });
    let out = cluster.file("out");
    cluster.weft(["get", "data", path(&out)]).ok();
    let content = std::fs::read(&out).expect("it is there");
    assert!(content.starts_with(&start) && content.len() == start.len() + 2 * EACH * 5_000, "{} bytes", content.len());
    let whole = content[start.len()..].chunks(5_000).filter(|chunk| chunk.iter().all(|byte| *byte == chunk[0])).count();
    assert_eq!(whole, 2 * EACH, "appended bytes are mixed");
}

#[test]
fn a_coordinator_that_is_killed_before_an_append_ends_shows_nothing_of_it() {
    let cluster = Setup::nodes(6).with(&JOURNAL).up();
    let mut content = bytes(300 * KIB, 1);
    cluster.put("data", &content, &CODING).ok();
    let new = bytes(MIB, 2);
    let file = cluster.write("new", &new);
    let mut killed_within = 0;
    for pause_ms in [20, 60, 120, 200, 300] {
        let before = content.len();
        if before + new.len() > 2 * MIB {
            break;
        }
        let append = cluster.start(["write", path(&file), "data", "--append", "--timeout", "60s"], Stdio::null());
        sleep(Duration::from_millis(pause_ms));
        cluster.kill("coordinator");
        cluster.up().ok();
        let ended = append.end();
        wait_for("the coordinator", || cluster.weft(["stat", "data"]).status.success());
        let now = size(&cluster) as usize;
        if ended.status.success() {
            content.extend_from_slice(&new);
        } else {
            killed_within += 1;
            if now > before {
                content.extend_from_slice(&new);
            }
        }
        assert_eq!(now, content.len(), "a part is visible: {}", ended.stderr);
        cluster.expect("data", &content, &[]);
    }
    assert!(content.len() > 300 * KIB || killed_within > 0);
    // Whatever was left behind the end is overwritten.
    let more = bytes(1000, 3);
    cluster.weft(["write", path(&cluster.write("more", &more)), "data", "--append"]).ok();
    content.extend_from_slice(&more);
    cluster.expect("data", &content, &[]);
}

#[test]
fn a_policy_can_refuse_writes_in_place() {
    let cluster = Setup::nodes(6).with(&JOURNAL).up();
    let made = cluster.json(&["policy", "create", "archive", "--code", "rs(4,2)", "--updates", "refused"]);
    assert_eq!(
        (&made["updates"], &cluster.json(&["policy", "show", "archive"])["updates"]),
        (&"refused".into(), &"refused".into())
    );
    cluster.weft(["bucket", "create", "kept", "--policy", "archive"]).ok();
    let content = bytes(100_000, 1);
    cluster.put("kept/data", &content, &[]).ok();
    let file = cluster.write("new", &[1; 10]);
    for place in [&["--offset", "5"][..], &["--append"], &["--offset", "0", "--explain"]] {
        let refused = cluster.weft([&["write", path(&file), "kept/data"][..], place].concat());
        refused.refused(2, &["the policy archive of bucket kept refuses"]);
    }
    cluster.expect("kept/data", &content, &[]);
}
