//! Objects of all sizes, whole and in parts, also after all processes were killed at once.

use crate::harness::{Setup, bytes, path};
use std::{fs, io::Write as _, process::Stdio};

const CELL: usize = 4096;
const BLOCK: usize = 64 << 10;
const STRIPE: usize = 4 * BLOCK;
const CODING: [&str; 6] = ["--code", "RS-4-2-4k", "--block-size", "64KiB", "--cell-size", "4KiB"];

#[test]
fn every_size_comes_back_whole_and_in_parts_even_after_all_were_killed() {
    let setup = Setup { disks_per_node: 2, ..Setup::nodes(7) };
    let cluster = setup.up();
    let large = 3 * STRIPE + 12_345;
    let sizes = [0, 1, CELL - 1, CELL, CELL + 1, 4 * CELL + 1, BLOCK, STRIPE - 1, STRIPE, STRIPE + 1, large];
    for size in sizes {
        let content = bytes(size, size as u64);
        let stored = cluster.put(&format!("file-{size}"), &content, &CODING).ok().json();
        assert_eq!(
            (stored["size"].as_u64(), stored["stripes"].as_u64()),
            (Some(size as u64), Some(size.div_ceil(STRIPE) as u64))
        );
        let mut piped = cluster.start(["put", "-", &format!("pipe-{size}")].iter().chain(&CODING), Stdio::piped());
        piped.child().stdin.take().expect("a pipe").write_all(&content).expect("it reads all");
        piped.end().ok();
    }
    let disks = |node: &str| {
        (0..2).filter(|disk| files_below(&cluster.dir().join(format!("nodes/{node}/disk-{disk}/blocks"))) > 0).count()
    };
    assert!(cluster.nodes().iter().all(|node| disks(node) == 2), "a disk has no blocks");

    let everybody: Vec<String> = cluster.nodes().into_iter().chain(["coordinator".to_owned()]).collect();
    everybody.iter().for_each(|name| cluster.kill(name));
    cluster.up().ok();
    for size in sizes {
        let content = bytes(size, size as u64);
        cluster.expect(&format!("file-{size}"), &content, &[]);
        cluster.expect(&format!("pipe-{size}"), &content, &[]);
    }

    // The same ranges from all blocks, and with one block lost.
    let key = format!("file-{large}");
    let content = bytes(large, large as u64);
    for lost in [false, true] {
        if lost {
            cluster.kill(&cluster.blocks(&key)[1].node);
        }
        for (first, last) in
            [(0, 0), (CELL - 1, CELL), (CELL, 2 * CELL - 1), (STRIPE - 1, STRIPE), (5, large - 1), (large - 1, large - 1)]
        {
            let range = format!("{first}-{last}");
            cluster.expect(&key, &content[first..=last], &["--range", &range]);
        }
        cluster.expect(&key, &content[STRIPE + 7..], &["--range", &format!("{}-", STRIPE + 7)]);
        cluster.expect(&key, &content[large - 9000..], &["--range", "-9000"]);
        cluster.expect(&key, &content[large - 1..], &["--range", &format!("{}-{large}", large - 1)]);
    }
    let out = cluster.file("out");
    for (key, range) in [(key.as_str(), format!("{large}-{large}")), (&key, "7-6".into()), ("file-0", "0-0".into())] {
        cluster.weft(["get", key, path(&out), "--range", &range]).refused(2, &["range"]);
        assert!(!out.exists(), "a file was written for {range}");
    }
}

fn files_below(dir: &std::path::Path) -> usize {
    let entries = fs::read_dir(dir).expect("a directory").map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { files_below(&path) } else { 1 }).sum()
}
