//! The operator's handbook: the commands of every page run as they stand, on a cluster of real processes.

use crate::harness::{Cluster, wait_for, weft_command};
use std::{collections::BTreeSet, env, fs, path::PathBuf, process::Command};

/// The pages, but for the index, each with its test.
macro_rules! pages {
    ($($test:ident: $page:literal),* $(,)?) => {
        $(#[test]
        fn $test() {
            walk($page);
        })*

        const PAGES: &[&str] = &[$($page),*];
    };
}

pages! {
    nodes_are_added: "grow.md",
    a_node_is_taken_out_of_service: "shrink.md",
    a_disk_is_replaced: "replace-a-disk.md",
    a_disk_is_moved: "move-a-disk.md",
    a_node_that_is_gone_is_replaced: "replace-a-node.md",
    a_rack_is_replaced: "replace-a-rack.md",
    weft_is_upgraded: "upgrade-weft.md",
    the_metadata_is_backed_up_and_restored: "back-up-and-restore.md",
    disks_that_are_nearly_full_get_room: "nearly-full.md",
    a_slow_node_is_looked_at: "slow-node.md",
    a_corrupt_block_is_repaired: "corrupt-block.md",
}

fn handbook() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/handbook"))
}

/// The commands of a page: its blocks in the language `sh`, without their indentation in lists.
fn commands(page: &str) -> String {
    let text = fs::read_to_string(handbook().join(page)).expect("a page of the handbook");
    let (mut commands, mut indent) = (String::new(), None);
    for line in text.lines() {
        match (indent, line.trim_start()) {
            (None, "```sh") => indent = Some(line.len() - "```sh".len()),
            (Some(_), "```") => indent = None,
            (Some(indent), _) => commands += &format!("{}\n", line.get(indent..).unwrap_or_default()),
            (None, _) => {}
        }
    }
    commands
}

/// Runs the commands of the index, which make the cluster, and then those of a page. Each must succeed.
fn walk(page: &str) {
    let cluster = Cluster::new(&[("WEFT_COORDINATOR_AUTO_REPAIR", "true"), ("WEFT_COORDINATOR_DOWN_AFTER_MS", "4000")]);
    // After a change of disks, stripes are counted again for a moment.
    let status = "for try in $(seq 50); do weft status && break; test $try -lt 50; sleep 0.2; done";
    let lines = commands("README.md") + &commands(page);
    let lines: Vec<&str> = lines.lines().map(|line| if line == "weft status" { status } else { line }).collect();
    let script = cluster.write("walk", (lines.join("\n") + "\n").as_bytes());
    let program = PathBuf::from(weft_command().get_program());
    let path = env::join_paths(
        [program.parent().expect("a directory").to_owned()]
            .into_iter()
            .chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())),
    );
    let mut shell = Command::new("sh");
    shell.arg("-eux").arg(&script).current_dir(cluster.dir().parent().expect("its directory"));
    for (name, _) in env::vars().filter(|(name, _)| name.starts_with("WEFT_")) {
        shell.env_remove(name);
    }
    shell.envs(cluster.settings()).env("PATH", path.expect("no colon in it"));
    let walked = shell.output().expect("a shell");
    let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(walked.status.success(), "{page}: {}\n{}\n{}", walked.status, told(&walked.stdout), told(&walked.stderr));
    wait_for("the cluster to be healthy", || cluster.weft(["status"]).status.code() == Some(0));
}

#[test]
fn every_page_is_in_the_index_and_runs() {
    let pages: BTreeSet<&str> = PAGES.iter().copied().collect();
    let there = fs::read_dir(handbook()).expect("the handbook").map(|entry| entry.expect("a page").file_name());
    let there: BTreeSet<String> =
        there.map(|name| name.into_string().expect("UTF-8")).filter(|name| name != "README.md").collect();
    assert_eq!(there.iter().map(String::as_str).collect::<BTreeSet<_>>(), pages);
    let index = fs::read_to_string(handbook().join("README.md")).expect("the index");
    assert!(pages.iter().all(|page| index.contains(&format!("| [{page}]({page}) |")) && !commands(page).is_empty()));
}
