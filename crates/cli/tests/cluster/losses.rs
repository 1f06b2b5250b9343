//! As many losses as the code tolerates, and one more.

use crate::harness::{Setup, bytes, path, texts};

#[test]
fn up_to_m_losses_are_read_and_rebuilt_by_every_scheme_and_one_more_is_named() {
    let schemes = ["conventional", "ppr", "pipeline"];
    let cluster = Setup::nodes(11).up();
    // The second stripe is short: its blocks have different lengths, some of them 0.
    let content = bytes((4 << 20) + 70_000, 6);
    cluster.put("data", &content, &["--code", "rs(4,3)", "--block-size", "1MiB", "--cell-size", "64KiB"]).ok();
    for losses in 1..=3 {
        let blocks = cluster.blocks("data");
        let lost: Vec<&str> = [1, 5, 2][..losses].iter().map(|index| blocks[*index].node.as_str()).collect();
        cluster.take_down(&lost);
        for scheme in schemes {
            let got = cluster.expect("data", &content, &["--scheme", scheme]);
            assert!(texts(&got["rebuilt"]).contains(&blocks[1].file_name()), "{losses} losses, {scheme}: {got}");
        }
        let scheme = schemes[losses - 1];
        let repaired = cluster.weft(["repair", "object", "data", "--scheme", scheme, "--json"]).ok().json();
        let lost_of_all_stripes = blocks.iter().filter(|block| lost.contains(&block.node.as_str())).count();
        assert_eq!(repaired["blocks"].as_array().map(Vec::len), Some(lost_of_all_stripes), "{losses} losses: {repaired}");
        let after = cluster.blocks("data");
        assert!(after.iter().all(|block| block.state == "ok" && !lost.contains(&block.node.as_str())), "{after:?}");
        assert_eq!(texts(&cluster.expect("data", &content, &[])["rebuilt"]), "");
        cluster.up().ok();
    }

    // Four nodes of the first stripe, and as few as possible of the second, which must stay readable.
    let blocks = cluster.blocks("data");
    let (mut lost, second) = (blocks[..7].to_vec(), &blocks[7..]);
    lost.sort_by_key(|block| second.iter().any(|other| other.node == block.node));
    lost.truncate(4);
    cluster.take_down(&lost.iter().map(|block| block.node.as_str()).collect::<Vec<_>>());
    let names: Vec<String> =
        lost.iter().map(|block| format!("{} on {}: its node is down", block.file_name(), block.node)).collect();
    let says: Vec<&str> = names.iter().map(String::as_str).chain(["default/data", "rs(4,3) tolerates the loss of 3"]).collect();
    let out = cluster.file("out");
    for scheme in schemes {
        cluster.weft(["get", "data", path(&out), "--scheme", scheme]).refused(4, &says);
        cluster.weft(["repair", "object", "data", "--scheme", scheme]).refused(4, &says);
    }
    assert!(!out.exists());
    let ended = cluster.weft(["get", "data", path(&out), "--json"]).refused(4, &says);
    let error: serde_json::Value = serde_json::from_str(&ended.stderr).expect("one object");
    assert_eq!((&error["error"]["kind"], &error["error"]["exit_code"]), (&"unavailable".into(), &4.into()));
    // The rest can still be read.
    cluster.expect("data", &content[4 << 20..], &["--range", &format!("{}-", 4 << 20)]);
    // Once the nodes are back, everything can be read.
    cluster.up().ok();
    cluster.expect("data", &content, &[]);
}
