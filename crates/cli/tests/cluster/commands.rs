//! What commands do and refuse on a healthy cluster.

use crate::harness::{Cluster, Running, Setup, bytes, path, weft, weft_command};
use serde_json::Value;
use std::{fs, io::Write as _, process::Stdio};

/// Six nodes in three racks.
fn small() -> Cluster {
    Setup { racks: 3, ..Setup::nodes(6) }.up()
}

/// A file of that size: its path and content.
fn data(cluster: &Cluster, name: &str, len: usize) -> (String, Vec<u8>) {
    let content = bytes(len, len as u64);
    (path(&cluster.write(name, &content)).to_owned(), content)
}

#[test]
fn what_is_stored_survives_down_and_up() {
    let cluster = Setup { racks: 3, disks_per_node: 2, ..Setup::nodes(7) }.up();
    let status = cluster.json(&["cluster", "status"]);
    let nodes = status["nodes"].as_array().unwrap();
    assert_eq!((nodes.len(), status["insecure"].as_bool()), (7, Some(false)));
    assert!(nodes.iter().all(|node| node["state"] == "up" && node["disks"].as_array().unwrap().len() == 2));
    let racks: std::collections::BTreeSet<&str> = nodes.iter().map(|node| node["rack"].as_str().unwrap()).collect();
    assert_eq!(racks.len(), 3);

    cluster.weft(["bucket", "create", "photos"]).ok();
    let (file, content) = data(&cluster, "cat.jpg", 3_000_000);
    let put = ["put", &file, "photos/cat.jpg", "--code", "rs(4,2)", "--block-size", "256KiB", "--cell-size", "64KiB"];
    assert_eq!(cluster.json(&put)["stripes"], 3);
    cluster.expect("photos/cat.jpg", &content, &[]);

    let up_again = cluster.weft(["cluster", "up", "--nodes", "7"]).ok();
    assert!(up_again.text().contains("7 of 7 nodes are up"), "{}", up_again.text());
    cluster.weft(["cluster", "up", "--nodes", "8"]).refused(2, &["has 7 nodes, not 8"]);
    let pid = cluster.pid("coordinator");
    cluster.weft(["cluster", "down", "node-99"]).refused(3, &["'node-99'", "weft node ls"]);
    assert_eq!(cluster.json(&["cluster", "down", "node-02", "node-03"])["stopped"], 2);
    cluster.wait_for_state(&["node-02", "node-03"], "down");
    cluster.up().ok();
    assert_eq!(cluster.json(&["cluster", "down"])["stopped"], 8);
    assert!(!std::path::Path::new(&format!("/proc/{pid}/exe")).exists(), "the coordinator is still running");
    cluster.weft(["ls", "photos"]).refused(4, &["is the cluster up?"]);
    cluster.weft(["cluster", "up"]).ok();
    cluster.expect("photos/cat.jpg", &content, &[]);
}

#[test]
fn links_are_measured_and_shown() {
    let cluster = small();
    let probed = cluster.json(&["link", "probe", "--from", "node-01"]);
    let links = probed["links"].as_array().unwrap();
    assert_eq!(links.len(), 5, "{probed}");
    assert!(links.iter().all(|link| link["from_name"] == "node-01" && link["bytes_per_s"].as_f64().unwrap() > 1e6), "{probed}");
    assert!(cluster.json(&["link", "ls"])["links"].as_array().unwrap().len() >= 5);
    let matrix = cluster.weft(["link", "probe"]).ok();
    assert!(matrix.text().lines().count() >= 7 && matrix.text().contains("Mbit/s, from row to column"), "{}", matrix.text());
    assert!(cluster.weft(["link", "ls"]).ok().text().contains("overhead per slice"));
    cluster.weft(["link", "probe", "--to", "node-77"]).refused(3, &["there is no node 'node-77'"]);
    cluster.weft(["link", "probe", "--from", "node-01", "--to", "node-01"]).refused(2, &["no link between these nodes"]);
    cluster.take_down(&["node-03"]);
    cluster.weft(["link", "probe", "--from", "node-01", "--to", "node-03"]).refused(4, &["node-03 is down"]);
}

#[test]
fn objects_come_and_go() {
    let cluster = small();
    let (file, content) = data(&cluster, "data", 1_500_000);
    let sizes = ["--code", "rs(3,2)", "--block-size", "128KiB", "--cell-size", "32KiB"];
    cluster.weft([&["put", &file, "default/a/b c"][..], &sizes].concat()).ok();
    cluster.weft([&["put", &file, "plain"][..], &sizes].concat()).ok();
    cluster.expect("plain", &content, &[]);
    for (range, expected) in [
        ("0-0", &content[..1]),
        ("1000-400000", &content[1000..=400_000]),
        ("1499999-", &content[1_499_999..]),
        ("-7", &content[1_499_993..]),
    ] {
        cluster.expect("default/a/b c", expected, &["--range", range]);
    }
    cluster.weft(["get", "default/plain", "-", "--range", "1500000-1500001"]).refused(2, &["its 1500000 bytes are 0-1499999"]);

    let keys = |listed: Value| -> Vec<String> {
        listed.as_array().unwrap().iter().map(|object| object["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(keys(cluster.json(&["ls", "default", "--recursive"])), ["a/b c", "plain"]);
    assert_eq!(keys(cluster.json(&["ls", "default/a/"])), ["a/b c"]);
    cluster.weft(["rm", "default/a/b c"]).ok();
    assert_eq!(keys(cluster.json(&["ls", "default"])), ["plain"]);
    cluster.weft(["get", "default/a/b c", "-"]).refused(3, &["there is no object"]);

    let (empty, nothing) = data(&cluster, "empty", 0);
    cluster.weft(["put", &empty, "default/empty", "--code", "rs(3,2)"]).ok();
    cluster.expect("default/empty", &nothing, &[]);
    cluster.weft(["get", "default/empty", "-", "--range", "0-0"]).refused(2, &["it is empty"]);
    cluster.weft(["rm", "default/empty"]).ok();

    // A second put replaces the first.
    let (other, other_content) = data(&cluster, "other", 77);
    cluster.weft([&["put", &other, "plain"][..], &sizes].concat()).ok();
    cluster.expect("plain", &other_content, &[]);
    cluster.weft(["bucket", "rm", "default"]).refused(2, &["default"]);
    cluster.weft(["rm", "plain"]).ok();
    cluster.weft(["bucket", "rm", "default"]).ok();
}

#[test]
fn pipes_go_in_and_out() {
    let cluster = small();
    let content = bytes(2_000_003, 9);
    let put = ["put", "-", "default/piped", "--code", "rs(3,2)", "--block-size", "256KiB", "--cell-size", "4KiB"];
    let mut putting = cluster.start(put, Stdio::piped());
    putting.child().stdin.take().unwrap().write_all(&content).unwrap();
    putting.end().ok();
    let got = cluster.weft(["get", "default/piped", "-"]).ok();
    assert!(got.stdout == content);
    assert!(got.stderr.contains("default/piped"), "the report goes to stderr");
}

#[test]
fn what_is_fetched_goes_through_links_and_pipes_and_replaces_files_only() {
    let cluster = small();
    let content = bytes(1_000_003, 4);
    cluster.put("data", &content, &["--code", "rs(3,2)", "--block-size", "256KiB", "--cell-size", "4KiB"]).ok();
    let [link, file, fifo] = ["link", "target", "fifo"].map(|name| cluster.file(name));
    std::os::unix::fs::symlink(&file, &link).unwrap();
    cluster.weft(["get", "data", path(&link)]).ok();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && fs::read(&file).unwrap() == content);

    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let reading = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs::read(fifo).unwrap()
    });
    cluster.weft(["get", "data", path(&fifo)]).ok();
    assert!(reading.join().unwrap() == content);
    assert!(!fs::symlink_metadata(&fifo).unwrap().is_file());
    cluster
        .weft(["get", "data", path(&cluster.file("no/dir/out"))])
        .refused(3, &["no/dir/out: the directory ", "does not exist"]);
}

#[test]
fn lost_blocks_are_read_around_and_rebuilt_by_every_scheme() {
    let cluster = Setup { racks: 3, ..Setup::nodes(9) }.up();
    let (file, content) = data(&cluster, "data", 2_500_000);
    let sizes = ["--code", "rs(4,3)", "--block-size", "1MiB", "--cell-size", "64KiB"];
    let explained = cluster.weft([&["put", &file, "default/data", "--explain", "--json"][..], &sizes].concat()).ok();
    proves(&cluster, explained.text());
    assert_eq!(cluster.json(&["ls", "default"]), serde_json::json!([]), "--explain stored an object");
    cluster.weft([&["put", &file, "default/data"][..], &sizes].concat()).ok();
    let schemes = ["conventional", "ppr", "pipeline"];

    // One node dies: reads route around it at once, before the coordinator notices.
    let holders: Vec<String> = cluster.blocks("default/data").into_iter().map(|block| block.node).collect();
    cluster.kill(&holders[1]);
    assert_eq!(cluster.expect("default/data", &content, &["--scheme", "pipeline"])["rebuilt"][0], "s1-b001-c0-g1");
    cluster.take_down(&[&holders[2]]);
    cluster.wait_for_state(&[&holders[1]], "down");
    for scheme in schemes {
        let told = cluster.expect("default/data", &content, &["--scheme", scheme]);
        assert_eq!(told["rebuilt"], serde_json::json!(["s1-b001-c0-g1", "s1-b002-c0-g1"]), "{scheme}");
        let explained = cluster.weft(["get", "default/data", "-", "--scheme", scheme, "--explain", "--json"]).ok();
        proves(&cluster, explained.text());
    }
    cluster.weft(["get", "default/data", "-", "--scheme", "pigeon"]).refused(2, &["conventional, ppr, pipeline"]);

    let explained = cluster.weft(["repair", "object", "default/data", "--explain", "--json"]).ok();
    proves(&cluster, explained.text());
    assert_eq!(states(&cluster, "default/data")[..3], ["ok", "down", "down"]);
    for (block, scheme) in [("1", "ppr"), ("2", "pipeline")] {
        let repaired = cluster.json(&["repair", "object", "default/data", "--block", block, "--scheme", scheme]);
        assert_eq!(
            (&repaired["blocks"][0]["index"].to_string(), &repaired["blocks"][0]["generation"]),
            (&block.to_owned(), &2.into())
        );
    }
    assert_eq!(states(&cluster, "default/data"), ["ok"; 7]);
    assert_eq!(cluster.expect("default/data", &content, &[])["rebuilt"], serde_json::json!([]));
    assert_eq!(cluster.json(&["repair", "object", "default/data"])["blocks"], serde_json::json!([]));
    assert_eq!(cluster.weft(["repair", "object", "default/data", "--explain", "--json"]).ok().text(), "");
}

fn proves(cluster: &Cluster, plans: &str) {
    let saved = cluster.write("plan.json", plans.as_bytes());
    assert!(weft(["plan", "verify", path(&saved)]).ok().text().contains("proved"));
    assert!(weft(["plan", "show", path(&saved)]).ok().text().contains("rs(4,3)"));
}

#[test]
fn a_bucket_is_not_taken_for_a_key_and_warnings_are_told() {
    let cluster = Setup { racks: 2, ..Setup::nodes(4) }.up();
    let policy = cluster.json(&["policy", "show", "default"]);
    assert_eq!((&policy["code"], &policy["failure_domain"]), (&"rs(2,2)".into(), &"rack".into()), "{policy}");
    cluster.weft(["bucket", "create", "photos"]).ok();
    let file = cluster.write("cat.jpg", &bytes(300_000, 5));
    cluster.weft(["put", path(&file), "photos"]).refused(2, &["photos/cat.jpg", "default/photos"]);
    for command in [&["get", "photos", "out"][..], &["rm", "photos"], &["stat", "photos"], &["repair", "object", "photos"]] {
        cluster.weft(command).refused(2, &["photos/KEY", "default/photos"]);
    }
    cluster.weft(["put", path(&file), "default/photos"]).ok();

    let put = ["put", path(&file), "photos/cat", "--code", "rs(2,1)", "--block-size", "64KiB", "--cell-size", "4KiB"];
    let told = cluster.weft(put).ok();
    assert!(told.stderr.starts_with("warning: ") && told.stderr.contains("rack"), "{}", told.stderr);
    let told = cluster.json(&put);
    assert!(told["warnings"][0].as_str().is_some_and(|it| it.contains("rack")), "{told}");
    let made = cluster.weft(["policy", "create", "wide", "--code", "rs(10,4)"]).ok();
    assert!(made.stderr.contains("warning: rs(10,4)") && made.stderr.contains("14"), "{}", made.stderr);
    let bucket = cluster.json(&["bucket", "create", "w", "--policy", "wide"]);
    assert!(bucket["warnings"][0].as_str().is_some_and(|it| it.contains("14")), "{bucket}");
    weft(["cluster", "down", "--cluster", "127.0.0.1:99"]).refused(2, &["127.0.0.1:99", "--dir DIR"]);
}

/// The states of the blocks of an object's first stripe.
fn states(cluster: &Cluster, key: &str) -> Vec<String> {
    let blocks = cluster.blocks(key);
    blocks.iter().filter(|block| block.stripe == blocks[0].stripe).map(|block| block.state.clone()).collect()
}

#[test]
fn what_makes_no_sense_is_refused_and_nothing_is_written() {
    let cluster = small();
    let (file, _) = data(&cluster, "data", 5000);
    let put = |options: &[&str]| cluster.weft([&["put", &file, "default/data"], options].concat());
    put(&["--code", "raid(5)"]).refused(2, &["there is no code 'raid'"]);
    // The code needs seven nodes once there are more than four cells of data.
    let (more, _) = data(&cluster, "more", 20_000);
    let small_cells = ["--code", "rs(5,2)", "--block-size", "4KiB", "--cell-size", "4KiB"];
    cluster.weft([&["put", &more, "default/data"], &small_cells[..]].concat()).refused(6, &["rs(5,2)", "7 different nodes"]);
    put(&["--code", "rs(3,2)", "--block-size", "1MiB", "--cell-size", "768KiB"]).refused(2, &["does not divide the block size"]);
    put(&["--code", "rs(3,2)", "--block-size", "0"]).refused(2, &["greater than zero"]);
    put(&["--code", "rs(3,2)", "--block-size", "1000000TiB"]).refused(2, &["too large"]);
    cluster.weft(["put", &file, "nowhere/data"]).refused(3, &["nowhere"]);
    cluster.weft(["put", "/no/such/file", "default/data"]).refused(3, &["/no/such/file"]);
    cluster.weft(["put", &file, "/"]).refused(2, &["is not an object name"]);
    cluster.weft(["bucket", "create", "a/b"]).refused(2, &["a/b"]);
    cluster.weft(["bucket", "create", "default"]).refused(2, &["default"]);
    cluster.weft(["bucket", "create", "other", "--policy", "nobody"]).refused(3, &["nobody"]);
    cluster.weft(["policy", "create", "wide", "--code", "rs(3,2)", "--ack", "tolerate=3"]).refused(2, &["tolerates 2"]);
    cluster.weft(["repair", "object", "default/nothing"]).refused(3, &["nothing"]);
    assert_eq!(cluster.json(&["ls", "default"]), serde_json::json!([]));
    assert!(cluster.files().is_empty(), "a block was written");
}

/// What is typed on a cluster with the object default/data, the exit code, and parts of the answer.
const WRONG: &[(&str, i32, &[&str])] = &[
    ("put file", 2, &["weft put FILE BUCKET/KEY"]),
    ("put file nobucket/x", 3, &["there is no bucket nobucket", "`weft bucket create nobucket`"]),
    ("put dir default/x", 2, &["dir is a directory", "--recursive"]),
    ("put --recursive file default/x", 2, &["file is not a directory", "without --recursive"]),
    ("put --from dir default/x", 2, &["cannot read dir: it is a directory, not a file"]),
    ("put file default/x --code rs(9,9)", 6, &["rs(9,9)", "6 of 6 nodes are up"]),
    ("put file default/x --code rs(3,2) --block-size 9TiB", 2, &["9TiB is too large", "at most 4GiB"]),
    ("put file default/x --scheme magic", 2, &["'magic'", "auto, direct, mist"]),
    ("put file default/x --ack none", 2, &["'none' is not an ack rule", "k+N"]),
    ("put file default/x --parallel 0", 2, &["the range is 1 to 64"]),
    ("get default/none out", 3, &["there is no object none", "`weft ls default`"]),
    ("get default/data dir", 2, &["dir is a directory"]),
    ("get default/data none/out", 3, &["cannot write none/out: the directory none does not exist"]),
    ("get default/data /dev/full", 7, &["cannot write: No space left on device"]),
    ("get default/data out --scheme magic", 2, &["'magic'", "pipeline"]),
    ("get default/data out --range 9000-", 2, &["outside the object", "0-4999"]),
    ("ls none", 3, &["there is no bucket none"]),
    ("ls default --limit 0", 2, &["'0' for '--limit <N>' (it must be at least 1)"]),
    ("rm default/none", 3, &["there is no object none"]),
    ("rm --recursive default", 2, &["--yes", "--dry-run"]),
    ("bucket rm default", 2, &["holds 1 object: remove"]),
    ("policy create p --code rs(3,2) --ack k+9", 2, &["rs(3,2) has k+2 blocks, not k+9"]),
    ("policy rm default", 2, &["make another policy the default"]),
    ("policy convert default --to none", 3, &["there is no policy none"]),
    ("policy heat default/data --replicas 99", 2, &["at most 16"]),
    ("repair object default/data --block 9", 2, &["there is no block 9", "blocks 0 to 4"]),
    ("repair object default/data --block 0 --to nobody", 3, &["'nobody'", "`weft node ls`"]),
    ("repair object default/data --block 0 --paths 0", 2, &["'0' is not a number of paths"]),
    ("repair node node-01", 2, &["node-01 is up", "--force"]),
    ("job cancel 99", 3, &["there is no job 99", "`weft job ls`"]),
    ("node remove node-01", 2, &["node-01 is up", "stop its agent"]),
    ("node disk forget node-01 nodisk", 3, &["'nodisk'", "`weft node disk ls node-01`"]),
    ("node garbage release nobody", 3, &["'nobody'"]),
    ("metadata backup dir", 2, &["dir already exists"]),
    ("metadata backup none/copy", 3, &["none/copy: there is no directory none"]),
];

#[test]
fn wrong_names_numbers_and_paths_are_answered_with_what_to_do() {
    let cluster = small();
    let here = cluster.dir().parent().unwrap().to_owned();
    let (_, content) = data(&cluster, "file", 5000);
    cluster.put("data", &content, &["--code", "rs(3,2)", "--cell-size", "4KiB"]).ok();
    fs::create_dir(here.join("dir")).unwrap();
    let before = cluster.files();
    for (typed, code, says) in WRONG {
        let args: Vec<&str> = typed.split(' ').collect();
        let ended = cluster.start_in(&here, &args, Stdio::null()).end();
        assert_eq!(ended.status.code(), Some(*code), "{typed}: {}", ended.stderr);
        let ended = ended.refused(*code, says);
        assert!(!ended.stderr.contains("os error"), "{typed}: {}", ended.stderr);
    }
    assert_eq!(cluster.files(), before, "a block was written or removed");
    assert!(!here.join("out").exists());
    cluster.expect("data", &content, &[]);
}

#[test]
fn policies_are_what_buckets_carry() {
    let cluster = small();
    let create = ["policy", "create", "thin", "--code", "RS-3-2-4k", "--block-size", "64KiB", "--failure-domain", "node"];
    let thin = cluster.json(&create);
    assert_eq!((&thin["code"], &thin["cell_size"]), (&"rs(3,2)".into(), &4096.into()));
    assert_eq!(cluster.json(&["policy", "show", "thin"]), thin);
    cluster.weft(["bucket", "create", "b", "--policy", "thin"]).ok();
    let (file, content) = data(&cluster, "data", 100_000);
    let stored = cluster.json(&["put", &file, "b/data"]);
    assert_eq!((&stored["code"], &stored["block_size"]), (&"rs(3,2)".into(), &65_536.into()));
    cluster.expect("b/data", &content, &[]);
    cluster.weft(["policy", "rm", "thin"]).refused(2, &["thin"]);
    // A new default is for new buckets; the answer says which buckets keep theirs, and how to change that.
    let says = "thin is the default policy: new buckets use it\nbuckets that keep their policy: default (default)\n\
                `weft policy convert default --to thin` gives";
    let told = cluster.weft(["policy", "default", "thin"]).ok();
    assert!(told.text().starts_with(says), "{}", told.text());
    cluster.weft(["bucket", "create", "new"]).ok();
    let policy_of = |name: &str| {
        let buckets = cluster.json(&["bucket", "ls"]);
        buckets.as_array().unwrap().iter().find(|it| it["name"] == name).unwrap()["policy"].clone()
    };
    assert_eq!([policy_of("new"), policy_of("default")], ["thin", "default"]);
    cluster.weft(["policy", "convert", "default", "--to", "thin", "--wait"]).ok();
    assert_eq!(policy_of("default"), "thin");
    assert_eq!(cluster.json(&["policy", "default", "thin"])["other_buckets"], serde_json::json!([]));
    let wide = ["policy", "create", "wide", "--code", "rs(4,2)", "--default"];
    let told = cluster.weft(wide).ok();
    assert!(told.text().contains("keep their policy: b (thin), default (thin), new (thin)"), "{}", told.text());
    cluster.weft(["policy", "default", "thin"]).ok();
    let policies = cluster.json(&["policy", "ls"]);
    let default: Vec<&Value> = policies.as_array().unwrap().iter().filter(|policy| policy["default"] == true).collect();
    assert_eq!((default.len(), &default[0]["name"]), (1, &"thin".into()));
}

#[test]
fn without_certificates_only_where_it_is_said() {
    let open = Setup { insecure: true, ..Setup::nodes(5) }.up();
    assert_eq!(open.json(&["cluster", "status"])["insecure"], true);
    let file = fs::read_to_string(open.dir().join("weft.toml")).unwrap();
    let address = file.lines().find_map(|line| line.strip_prefix("coordinator = ")).unwrap().trim_matches('"').to_owned();
    weft(["--cluster", &address, "node", "ls"]).refused(2, &["--insecure if the cluster was started without TLS"]);
    weft(["--cluster", &address, "--insecure", "node", "ls"]).ok();

    let closed = small();
    let certificates = closed.dir().join("certificates");
    let certificates = certificates.to_str().unwrap();
    weft(["--cluster", &address, "--certificates", certificates, "node", "ls"]).refused(2, &["does not speak TLS"]);
    let closed_file = fs::read_to_string(closed.dir().join("weft.toml")).unwrap();
    let address = closed_file.lines().find_map(|line| line.strip_prefix("coordinator = ")).unwrap().trim_matches('"').to_owned();
    weft(["--cluster", &address, "--certificates", certificates, "node", "ls"]).ok();
    assert!(!weft(["--cluster", &address, "--insecure", "node", "ls"]).status.success());
    // Of a cluster that a file names, the file says whether it uses TLS, and the certificates unless others are named.
    let (closed_dir, open_dir) = (closed.dir(), open.dir());
    let (dir, none) = (closed_dir.to_str().unwrap(), open_dir.to_str().unwrap());
    weft(["--cluster", dir, "--insecure", "node", "ls"]).refused(2, &["uses TLS", "leave out --insecure"]);
    weft(["--cluster", dir, "--certificates", certificates, "node", "ls"]).ok();
    weft(["--cluster", dir, "--certificates", "/nowhere", "node", "ls"]).refused(3, &["--certificates /nowhere"]);
    assert!(!weft(["--cluster", dir, "--certificates", none, "node", "ls"]).status.success(), "it has no certificates");
    weft(["--cluster", none, "--certificates", certificates, "node", "ls"]).ok();
}

#[test]
fn a_demo_leaves_nothing_behind() {
    let scratch = tempfile::TempDir::new().unwrap();
    let file = scratch.path().join("file");
    fs::write(&file, bytes(20_000_000, 5)).unwrap();
    let tmp = scratch.path().join("tmp");
    fs::create_dir(&tmp).unwrap();
    let mut command = weft_command();
    command.args(["demo", "--json", "--file"]).arg(&file).env("TMPDIR", &tmp);
    let report = Running::start(command, Stdio::null()).end().ok().json();
    assert_eq!((&report["same"], report["reads"].as_array().unwrap().len()), (&true.into(), 4));
    let predicted = |at: usize| report["reads"][at]["part_on_gigabit_seconds"].as_f64().unwrap();
    assert!(predicted(1) > 9.0 * predicted(0) && predicted(3) < 1.5 * predicted(0), "{report}");
    assert_eq!(fs::read_dir(&tmp).unwrap().count(), 0, "the demo left files behind");
    weft(["demo", "--file", "/dev/null"]).refused(2, &["too small"]);
}
