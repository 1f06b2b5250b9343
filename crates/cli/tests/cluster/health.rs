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

    cluster.take_down(&["node-01"]);
    let seen = wait_for_code(9);
    assert!(seen.text().starts_with("at risk\n") && seen.text().contains("node-01"), "{}", seen.text());

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
