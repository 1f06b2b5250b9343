//! Updates in place by schemes, over shaped links.

use super::{alone, common::weft_path, json, skipped, weft};
use serde_json::Value;
use std::process::Command;

const MIB: u64 = 1 << 20;

/// The measurement; `None`: there is no disk for it here.
fn bench(args: &[&str]) -> Option<Value> {
    let usual = [
        "bench",
        "update",
        "--json",
        "--block-size",
        "4MiB",
        "--write-size",
        "1MiB",
        "--link",
        "50mbit",
        "--runs",
        "1",
        "--schemes",
    ];
    on_disk(&[&usual[..], args].concat())
}

/// What a command prints whose disks are beside the compiled tests: the tests' own directory may be in memory.
fn on_disk(args: &[&str]) -> Option<Value> {
    let output = Command::new(weft_path()).args(args).env("TMPDIR", env!("CARGO_TARGET_TMPDIR")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("is in memory: set TMPDIR") {
        eprintln!("skipped: {said}");
        return None;
    }
    Some(json(&output))
}

fn of(result: &Value, what: &str) -> f64 {
    result[what].as_f64().unwrap_or_else(|| panic!("no {what}: {result}"))
}

#[test]
fn each_scheme_takes_its_time_and_the_stripe_has_what_was_written() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let Some(report) = bench(&["direct,star,tree,pipeline", "--racks", "2", "--sync-ms", "1"]) else { return };
    let settings = &report["settings"];
    assert_eq!(
        (&settings["code"], &settings["direct_code"], &settings["racks"]),
        (&"rs(4,2)".into(), &"rs(4,1)".into(), &2.into())
    );
    assert_eq!(
        (&settings["testbed"]["racks"], &settings["testbed"]["nodes"], &settings["sync_ms"]),
        (&6.into(), &6.into(), &1.0.into())
    );
    assert!(settings["clients"][0].as_str().unwrap().starts_with("node-") && settings["file_system"] != "tmpfs", "{settings}");
    let results = report["results"].as_array().unwrap();
    let names: Vec<&str> = results.iter().map(|it| it["scheme"].as_str().unwrap()).collect();
    assert_eq!(names, ["direct", "star", "tree", "pipeline"]);
    let theory = results.iter().map(|it| of(it, "theory")).collect::<Vec<_>>();
    assert_eq!(theory, [1.0, 2.0, 2.0, 1.0 + 1.0 / 16.0]);
    for result in results {
        assert_eq!(result["times_s"].as_array().unwrap().len(), 1, "{result}");
        assert!(of(result, "ratio") > 0.0 && (0.0..=1.0).contains(&of(result, "cpu_idle")), "{result}");
        // No run is faster than its links, except for bursts of 128 KiB at each end of the links on the way, for 1 MiB each.
        assert!(of(result, "median_s") > 0.7 * of(result, "bound_s"), "{result}");
    }
    // Whatever the scheme, each parity gets the delta once; how much is sent again depends on how busy the machine is.
    let moved = |at: usize| results[at]["bytes_moved"].as_u64().unwrap();
    assert!(moved(0) >= MIB && [1, 2, 3].iter().all(|at| moved(*at) >= 2 * MIB), "{report}");
}

#[test]
fn several_blocks_and_stripes_are_updated_at_once() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let Some(report) = bench(&["star,pipeline", "--code", "rs(2,2)", "--concurrent", "2", "--stripes", "2"]) else { return };
    assert_eq!(report["settings"]["clients"].as_array().unwrap().len(), 4);
    for result in report["results"].as_array().unwrap() {
        assert!(result["theory"].is_null() && result["bound_s"].is_null() && of(result, "median_s") > 0.0, "{result}");
        assert!(result["bytes_moved"].as_u64().unwrap() >= 8 * MIB, "four deltas, each to two nodes: {result}");
    }
}

/// Needs no root.
#[test]
fn small_writes_are_measured_beside_copies_with_what_they_cost() {
    let _alone = alone();
    let tmp = tempfile::tempdir().unwrap();
    let mut command = Command::new(weft_path());
    command.args(["bench", "update", "--code", "rs(2,1)", "--size", "1MiB", "--depth", "1,4", "--time", "1s", "--json"]);
    command.env("TMPDIR", tmp.path()).env("WEFT_AGENT_LIMITS__UPDATE_JOURNAL", "32MiB");
    let found = json(&command.env_remove("WEFT_CLUSTER").env_remove("WEFT_INSECURE").output().unwrap());
    let settings = &found["settings"];
    assert_eq!((&settings["beside"], &settings["blocks_concerned"]), (&"replication(3)".into(), &2.into()), "{settings}");
    let rows = found["results"].as_array().unwrap();
    let named: Vec<(&str, u64)> =
        rows.iter().filter_map(|row| Some((row["code"].as_str()?, row["depth"].as_u64().unwrap()))).collect();
    assert_eq!(named, [("rs(2,1)", 1), ("replication(3)", 1), ("rs(2,1)", 4), ("replication(3)", 4)]);
    let (measured, bounds) = rows.split_at(4);
    for (number, row) in measured.iter().enumerate() {
        let cost = &row["cost"];
        assert!(of(row, "per_s") > 0.0 && of(row, "p50_over_bound") > 0.0, "{row}");
        assert!(cost["updates"].as_u64() >= row["count"].as_u64(), "{row}");
        // A change and its page are journalled, and the page is written, at each node; pages that changed several times are written once.
        assert!(of(cost, "syncs_per_update") > 0.0 && of(cost, "bytes_per_byte") > of(row, "blocks_concerned"), "{row}");
        assert_eq!(row["ratio"].is_null(), number % 2 == 1, "{row}");
    }
    assert!(of(&measured[0]["cost"], "syncs_per_update") >= 1.0, "one at a time shares no sync: {}", measured[0]);
    let threads: Vec<u64> = bounds.iter().map(|row| row["blocks_concerned"].as_u64().unwrap()).collect();
    assert_eq!(threads, [2, 3], "{found}");
    assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 0, "something was left");
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_is_made() {
    for (args, hint) in [
        (&["--schemes", "mist"][..], "mist"),
        (&["--schemes", "star", "--racks", "2", "--code", "rs(4,3)"], "--racks is 3"),
        (&["--schemes", "star", "--depth", "4"], "--depth"),
        (&["--schemes", "star", "--beside", "off"], "--beside"),
        (&["--link", "50mbit"], "--schemes"),
        (&["--runs", "2"], "--schemes"),
    ] {
        let ended = weft(&[&["bench", "update"][..], args].concat());
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.code() == Some(2) && said.contains(hint), "{args:?}: {said}");
    }
}

#[test]
fn figures_and_the_table_of_updates_are_written() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("figures");
    let args = [
        "--json",
        "reproduce",
        "cpu",
        "--quick",
        "--block-size",
        "64KiB",
        "--runs",
        "1",
        "--figure",
        "9",
        "--table",
        "3",
        "--out",
    ];
    let Some(reports) = on_disk(&[&args[..], &[out.to_str().unwrap()]].concat()) else { return };
    let results = reports[0]["results"].as_array().unwrap();
    for racks in ["1", "2", "3", "4"] {
        let here: Vec<&Value> = results.iter().filter(|it| it["x"] == racks).collect();
        assert_eq!(here.len(), 4, "{reports}");
        for point in here {
            assert!(
                of(point, "median_s") > 0.0 && of(point, "bound_s") > 0.0 && point["times_s"].as_array().unwrap().len() == 1,
                "{point}"
            );
        }
    }
    assert_eq!(reports[1]["results"].as_array().unwrap().len(), 132);
    let page = std::fs::read_to_string(out.join("reproduce.md")).unwrap();
    assert!(
        page.contains("| 75.7 % |") && page.contains("cpu-9.svg") && page.contains("Table 3: Paths by tabu search"),
        "{page}"
    );
    assert!(std::fs::read(out.join("cpu-9.svg")).unwrap().starts_with(b"<svg"));
}
