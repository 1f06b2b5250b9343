//! `weft plan` and `--explain`, with the real binary.

use crate::common::{bytes, weft};
use serde_json::Value;
use std::path::PathBuf;
use tempfile::TempDir;

/// A saved plan that rebuilds block 2 of an rs(3,2).
fn saved() -> (TempDir, PathBuf, Value) {
    let scratch = TempDir::new().unwrap();
    let [file, dir, plan] = ["file", "blocks", "plan.json"].map(|name| scratch.path().join(name));
    std::fs::write(&file, bytes(100_000, 3)).unwrap();
    let (file, dir) = (file.to_str().unwrap(), dir.to_str().unwrap());
    weft(["code", "encode", "--code", "rs(3,2)", file, dir]).ok();
    let lost = scratch.path().join("blocks/block-002");
    std::fs::remove_file(&lost).unwrap();
    let json = weft(["code", "repair", dir, "--explain", "--json"]).ok();
    assert!(!lost.exists(), "--explain did something");
    std::fs::write(&plan, &json.stdout).unwrap();
    (scratch, plan, json.json())
}

#[test]
fn explained_plans_are_shown_and_proved() {
    let (_scratch, plan, json) = saved();
    let plan = plan.to_str().unwrap();
    assert!(weft(["plan", "verify", plan]).ok().stdout.starts_with("proved"));
    assert_eq!(weft(["plan", "verify", plan, "--json"]).ok().json()["verified"], true);
    let shown = weft(["plan", "show", plan]).ok().stdout;
    assert!(shown.contains("rs(3,2)") && shown.contains("takes delivery of block 2"), "{shown}");
    // Three blocks of 33,334 bytes through one link.
    assert!(shown.contains("should take 800 µs on links of 119.2 MiB/s"), "{shown}");
    let timed = weft(["plan", "show", plan, "--bandwidth", "1MiB"]).ok().stdout;
    assert!(timed.contains("should take 95.4 ms on links of 1.0 MiB/s"), "{timed}");
    assert!(weft(["plan", "show", plan, "--dot"]).ok().stdout.starts_with("digraph"));
    assert_eq!(weft(["plan", "show", plan, "--json"]).ok().json(), json);
}

#[test]
fn encoding_and_decoding_are_explained_too() {
    let scratch = TempDir::new().unwrap();
    let [file, dir] = ["file", "blocks"].map(|name| scratch.path().join(name).to_str().unwrap().to_owned());
    std::fs::write(&file, bytes(1000, 4)).unwrap();
    let explained = weft(["code", "encode", "--code", "rs(3,2)", "--explain", &file, &dir]).ok().stdout;
    assert!(explained.contains("stores block 4"), "{explained}");
    assert!(!scratch.path().join("blocks").exists());
    weft(["code", "encode", "--code", "rs(3,2)", &file, &dir]).ok();
    assert!(weft(["code", "decode", "--explain", &dir, "out"]).ok().stdout.contains("takes delivery of block 0"));
    assert_eq!(weft(["code", "repair", "--explain", &dir]).ok().stdout, "nothing to move\n");
}

#[test]
fn a_plan_that_was_changed_is_refused_and_the_stage_named() {
    let (_scratch, path, json) = saved();
    let mut wrong = json;
    let stages = wrong["plan"]["shape"]["lanes"][0]["stages"].as_array_mut().unwrap();
    let last = stages.iter_mut().rfind(|stage| stage["sources"].as_array().unwrap().len() > 1).unwrap();
    let term = &mut last["matrix"]["terms"][0][2];
    *term = Value::from(term.as_u64().unwrap() ^ 1);
    std::fs::write(&path, wrong.to_string()).unwrap();
    let path = path.to_str().unwrap();
    weft(["plan", "verify", path]).refused(5, "the plan is refused: ");
    let verdict = weft(["plan", "verify", path, "--json"]);
    assert_eq!((verdict.code, &verdict.json()["verified"]), (5, &Value::from(false)));
    assert_eq!(verdict.json()["rule"], "algebra");
}

#[test]
fn a_file_that_is_not_a_plan_is_refused() {
    let (scratch, path, _) = saved();
    let other = scratch.path().join("other.json");
    let text = std::fs::read_to_string(&path).unwrap();
    for (content, says) in [("[]", "not a saved plan"), ("", "not a saved plan"), ("{\"weft_plan\": 9}", "the plan has format 9")]
    {
        std::fs::write(&other, content).unwrap();
        weft(["plan", "verify", other.to_str().unwrap()]).refused(2, says);
        weft(["plan", "show", other.to_str().unwrap()]).refused(2, says);
    }
    std::fs::write(&other, text.replace("rs(3,2)", "raid(3,2)")).unwrap();
    weft(["plan", "verify", other.to_str().unwrap()]).refused(2, "there is no code 'raid'");
    std::fs::write(&other, [b'{', 0xff, b'}']).unwrap();
    weft(["plan", "verify", other.to_str().unwrap()]).refused(2, "the file is not text");
    weft(["plan", "verify", "/no/such/plan"]).refused(3, "it does not exist");
}

#[test]
fn updates_are_planned_by_every_scheme() {
    let scratch = TempDir::new().unwrap();
    let links = scratch.path().join("regions.csv");
    // Table 2 of the paper on pipelined updates.
    let table = "from/to,California,Ohio,Oregon,Canada\nCalifornia,998.2,183.0,259.2,47.15\nOhio,91.55,999.0,72.1,153.0\n\
                 Oregon,201.0,69.3,997.8,78.9\nCanada,69.5,162.5,71.9,998.4\n";
    std::fs::write(&links, table).unwrap();
    let links = links.to_str().unwrap();
    let update = ["plan", "update", "--code", "rs(9,3)", "--block", "0", "--block-size", "32MiB"];
    let asked = |more: &[&str]| weft(update.iter().chain(more));
    // Block 0 is in California; the parities are in Ohio, Oregon and Canada.
    let auto = asked(&["--links", links]).ok().stdout;
    for (scheme, takes) in [("star", "8.20 s"), ("concurrent-star", "5.70 s"), ("tree", "3.22 s"), ("pipeline", "3.41 s")] {
        let is_told = |line: &&str| line.trim_start().starts_with(&format!("{scheme} ")) && line.contains(&format!(" {takes} "));
        assert_eq!(auto.lines().filter(is_told).count(), 1, "{scheme}: {auto}");
    }
    assert!(auto.contains("Schemes considered, for the links of ") && auto.contains("chosen: the fastest"), "{auto}");
    let pipeline = asked(&["--links", links, "--scheme", "pipeline"]).ok().stdout;
    assert!(pipeline.contains("path: n1 → n11 → n12 → n10") && pipeline.contains("(no other order is faster)"), "{pipeline}");
    let worst = asked(&["--links", links, "--scheme", "pipeline", "--path", "worst"]).ok().stdout;
    assert!(worst.contains("should take 5.7") && worst.contains("n1 → n12"), "{worst}");
    assert!(asked(&["--links", links, "--path", "tabu", "--seed", "3"]).ok().stdout.contains("should take 3.41 s"));
    let star = asked(&["--scheme", "star"]).ok().stdout;
    assert!(
        star.contains("each party sends over one link at a time") && star.contains("3.00 times as long as sending"),
        "{star}"
    );
    // The saved plan is shown and proved like others.
    let json = asked(&["--json"]).ok();
    let plan = scratch.path().join("plan.json");
    std::fs::write(&plan, &json.stdout).unwrap();
    assert!(weft(["plan", "verify", plan.to_str().unwrap()]).ok().stdout.starts_with("proved"));
    assert_eq!(weft(["plan", "show", plan.to_str().unwrap(), "--json"]).ok().json(), json.json());
    asked(&["--scheme", "pigeon"])
        .refused(2, "there is no update scheme 'pigeon': use auto, star, concurrent-star, tree, pipeline");
    asked(&["--scheme", "star", "--path", "worst"]).refused(2, "--path worst is only for --scheme pipeline");
    asked(&["--path", "north"]).refused(2, "'north' is no order of racks");
    asked(&["--links", "/no/such/file"]).refused(3, "it does not exist");
    weft(["plan", "update", "--code", "rs(9,3)", "--block", "9"]).refused(2, "the data blocks of rs(9,3) are 0 to 8");
}
