//! `weft status` on real processes: levels, exit codes, and what a person sees.

use crate::harness::{Ended, Setup, bytes, wait_for};

#[test]
fn the_status_follows_nodes_that_go_down_and_return() {
    let cluster = Setup::nodes(3).up();
    cluster.put("data", &bytes(30_000, 1), &["--code", "rs(2,1)", "--cell-size", "4KiB"]).ok();
    let wait_for_code = |code: i32| -> Ended {
        let mut last = None;
        // On a busy machine, a second call may find another state.
        wait_for(&format!("`weft status` to exit with {code}"), || {
            last.insert(cluster.weft(["status"])).status.code() == Some(code)
        });
        last.unwrap()
    };
    let seen = wait_for_code(0);
    assert!(seen.text().starts_with("healthy\n") && seen.text().contains("1 further loss"), "{}", seen.text());
    assert!(!cluster.weft(["stat", "data"]).ok().text().contains("cannot be read"));
    assert_eq!(cluster.weft(["check"]).ok().text(), "no object lacks a block\n");
    let space = cluster.json(&["df"]);
    let sum = |of: &str| space[of].as_array().unwrap().iter().map(|it| it["total_bytes"].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("nodes"), space["nodes"].as_array().unwrap().len()), (sum("racks"), 3));
    assert_eq!((&space["buckets"][0]["bucket"], &space["buckets"][0]["data_bytes"]), (&"default".into(), &30_000.into()));
    let policy = &space["policies"][0];
    assert!(policy["is_default"] == true && (policy["fits_bytes"].as_u64() > Some(0) || policy["why"].is_string()), "{policy}");
    let racks = cluster.weft(["df", "--by", "rack"]).ok();
    assert!(racks.text().contains("rack") && !racks.text().contains("policy"), "{}", racks.text());

    cluster.take_down(&["node-01"]);
    let seen = wait_for_code(9);
    assert!(seen.text().starts_with("at risk\n") && seen.text().contains("node-01"), "{}", seen.text());
    let lacking = cluster.weft(["check", "default"]);
    let says = lacking.text().contains("default/data")
        && lacking.text().contains("0 further losses")
        && lacking.text().contains("1 on nodes that are down");
    assert!(lacking.status.code() == Some(9) && says, "{}", lacking.text());
    cluster.weft(["check", "nowhere"]).refused(3, &["nowhere"]);
    cluster.weft(["check", "default/nothing"]).refused(3, &["there is no object nothing in the bucket default"]);

    cluster.take_down(&["node-02"]);
    let seen = wait_for_code(4);
    assert!(seen.text().starts_with("data unavailable\n") && seen.text().contains("default/data"), "{}", seen.text());
    let seen = cluster.weft(["status", "--json"]).json();
    assert_eq!((seen["level"].as_str(), seen["stripes"]["unreadable"].as_u64()), (Some("unavailable"), Some(1)), "{seen}");
    assert_eq!(seen["stripes"]["lost"], 0, "no block is lost for good: {seen}");
    let stat = cluster.weft(["stat", "data"]);
    assert!(String::from_utf8_lossy(&stat.stdout).contains("cannot be read"), "{}", String::from_utf8_lossy(&stat.stdout));

    cluster.up().ok();
    wait_for_code(0);
}
