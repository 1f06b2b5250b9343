//! The testbed: its links carry their rates, results have the documented form, and nothing is left behind, however it ends. Needs root,
//! `ip` and `tc`, and prints why it is skipped without them; `objects` needs none of these.

#[path = "../common/mod.rs"]
mod common;
mod life;
mod objects;
mod updates;

use common::weft_path;
use serde_json::Value;
use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::fd::AsFd as _,
    process::{Command, Output},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// One test at a time: a machine can carry only so many links, and tests check for leftovers.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why testbeds cannot be created here, if they cannot.
fn skipped() -> bool {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|it| std::os::unix::fs::MetadataExt::uid(&it) == 0);
    let has = |tool: &str| Command::new(tool).arg("-V").output().is_ok();
    let can_make = || {
        let name = format!("weft-try-{}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output().is_ok_and(|it| it.status.success());
        made && Command::new("ip").args(["netns", "del", &name]).status().is_ok_and(|it| it.success())
    };
    let why = match () {
        () if !is_root => "this is not root",
        () if !has("ip") || !has("tc") => "there is no `ip` or no `tc`",
        () if !can_make() => "network namespaces cannot be made here",
        () => return false,
    };
    eprintln!("skipped: {why}");
    true
}

fn weft(args: &[&str]) -> Output {
    Command::new(weft_path()).args(args).output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn namespaces() -> BTreeSet<String> {
    let listed = Command::new("ip").args(["netns", "list"]).output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    text.lines().filter_map(|line| line.split_whitespace().next()).map(ToOwned::to_owned).collect()
}

/// The prefix of a testbed's namespaces. Other programs may have testbeds too, so it looks for this one's directory.
fn prefix(dir: &str) -> String {
    let entries = std::fs::read_dir("/run/weft-testbeds").unwrap().map(|entry| entry.unwrap());
    let entry = entries.into_iter().find(|entry| std::fs::read_to_string(entry.path()).unwrap().trim_end() == dir).unwrap();
    format!("weft-{}-", entry.file_name().to_str().unwrap())
}

#[test]
fn without_its_tools_it_says_plainly_what_it_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let ended = Command::new(weft_path())
        .args(["testbed", "up", "--nodes", "3", "--dir"])
        .arg(dir.path().join("bed"))
        .env("PATH", dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(4), "{said}");
    assert!(said.contains("needs root") || said.contains("needs `ip`"), "{said}");
    for (args, hint) in [
        (&["--link", "fast"][..], "800kbit"),
        (&["--limit", "node-99:*=1mbit"], "named from node-01 on"),
        (&["--slow", "node-01:memory=1MiB"], "coding"),
        (&["--rack-link", "10mbit"], "--racks"),
    ] {
        let bed = dir.path().join("other");
        let ended = weft(&[&["testbed", "up", "--nodes", "3", "--dir", bed.to_str().unwrap()][..], args].concat());
        assert!(!bed.exists(), "{args:?}: invalid options create nothing");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && (said.contains(hint) || said.contains("needs")), "{args:?}: {said}");
    }
}

#[test]
fn a_line_that_a_rack_shares_is_found_and_planned_with() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("bed");
    let dir = dir.to_str().unwrap();
    let links = ["--racks", "2", "--link", "100mbit", "--rack-link", "20mbit", "--no-check"];
    json(&weft(&[&["--json", "testbed", "up", "--nodes", "4", "--dir", dir][..], &links].concat()));
    let run = |args: &[&str]| weft(&[&["testbed", "run", "--dir", dir, "--", "weft"][..], args].concat());
    let file = root.path().join("file");
    std::fs::write(&file, vec![7; 4 << 20]).unwrap();
    let chosen = || {
        let said = run(&["put", file.to_str().unwrap(), "default/file", "--code", "rs(2,2)", "--scheme", "auto", "--explain"]);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        said.lines().find(|line| line.contains("chosen")).unwrap_or(&said).trim().to_owned()
    };
    assert!(chosen().starts_with("mist"), "without measurements, mist is expected: {}", chosen());
    assert!(run(&["link", "probe"]).status.success());
    let known = json(&run(&["--json", "link", "ls"]));
    for rack in ["rack-1", "rack-2"] {
        let line =
            known["racks"].as_array().unwrap().iter().find(|line| line["rack"] == rack).unwrap_or_else(|| panic!("{known}"));
        for way in ["up_bytes_per_s", "down_bytes_per_s"] {
            let rate = line[way].as_f64().unwrap();
            assert!((0.5..=3.0).contains(&(rate / 1e6)), "{rack}, {way}: {rate}");
        }
    }
    assert!(chosen().starts_with("direct"), "{}", chosen());
    assert!(weft(&["testbed", "down", "--dir", dir]).status.success());
}

#[test]
fn a_testbed_comes_up_is_used_and_goes_also_after_a_crash() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("bed");
    let dir = dir.to_str().unwrap();
    // No check here, because other tests slow down the machine's links.
    let up = json(&weft(&["--json", "testbed", "up", "--nodes", "4", "--link", "100mbit", "--no-check", "--dir", dir]));
    assert_eq!(up["settings"]["link"], "100mbit");
    let prefix = prefix(dir);
    let ours = || -> Vec<String> { namespaces().into_iter().filter(|name| name.starts_with(&prefix)).collect() };
    assert_eq!(ours().len(), 6, "a hub, an outside, and four nodes: {:?}", ours());
    let listed = json(&weft(&["--json", "testbed", "ls"]));
    assert!(listed.as_array().unwrap().iter().any(|it| it.as_str() == Some(dir)), "{listed}");

    let file = root.path().join("file");
    std::fs::write(&file, vec![7; 300_000]).unwrap();
    let run = |args: &[&str]| weft(&[&["testbed", "run", "--dir", dir, "--", "weft", "--json"][..], args].concat());
    json(&run(&["put", file.to_str().unwrap(), "default/file", "--code", "rs(2,1)"]));
    assert_eq!(json(&run(&["stat", "default/file"]))["size"], 300_000);
    let repaired = json(&run(&["repair", "object", "default/file", "--block", "0"]));
    assert_eq!(repaired["blocks"].as_array().unwrap().len(), 1);

    // Killing its processes does not remove its network.
    let pids = Command::new("ip").args(["netns", "pids", &format!("{prefix}01")]).output().unwrap();
    for pid in String::from_utf8(pids.stdout).unwrap().split_whitespace() {
        assert!(Command::new("kill").args(["-9", pid]).status().unwrap().success());
    }
    let down = weft(&["testbed", "down", "--dir", dir]);
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    assert!(ours().is_empty(), "{:?}", ours());
    assert!(!json(&weft(&["--json", "testbed", "ls"])).as_array().unwrap().iter().any(|it| it.as_str() == Some(dir)));
}

/// The bytes of the busiest link do not depend on how busy the machine is, but its time does.
#[test]
fn blocks_of_two_nodes_that_were_lost_together_are_rebuilt_over_no_link_more_than_it_must_carry() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let args = ["--json", "bench", "node", "--lost", "2", "--code", "rs(2,2)", "--nodes", "8", "--scheme", "pipeline"];
    let size = ["--blocks", "24", "--block-size", "256KiB", "--link", "50mbit", "--runs", "1"];
    let report = json(&weft(&[&args[..], &size].concat()));
    let row = &report["results"][0];
    let of = |what: &str| row[what].as_f64().unwrap_or_else(|| panic!("no {what}: {report}"));
    let stripes: Vec<u64> = row["stripes"].as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).collect();
    assert_eq!((of("blocks") as u64, stripes.len()), (stripes[0] + 2 * stripes[1], 2), "{report}");
    assert!(of("blocks") >= 24.0 && of("median_s") > 0.0, "{report}");
    let over = of("busiest_s") / of("bound_s");
    assert!((0.97..2.0).contains(&over), "{over}: {report}");
    assert!(report["settings"]["lost"] == 2 && row["select"] == "boost" && row["scheme"] == "pipeline", "{report}");
}

/// Likewise: a drained node's blocks are copied or rebuilt elsewhere while it serves, and come back when its drain ends.
#[test]
fn blocks_of_a_drained_node_leave_over_no_link_more_than_it_must_carry() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let args = ["--json", "bench", "node", "--drain", "--code", "rs(2,2)", "--nodes", "8", "--blocks", "12"];
    let report = json(&weft(&[&args[..], &["--block-size", "256KiB", "--link", "50mbit", "--runs", "1"]].concat()));
    let row = &report["results"][0];
    let of = |what: &str| row[what].as_f64().unwrap_or_else(|| panic!("no {what}: {report}"));
    assert!(of("blocks") >= 12.0 && row["stripes"][0] == row["blocks"] && row["scheme"] == "auto", "{report}");
    let over = of("busiest_s") / of("bound_s");
    assert!((0.5..2.0).contains(&over) && report["settings"]["drained"] == true, "{over}: {report}");
}

/// Runs a function in a namespace; its sockets stay there afterwards.
fn within<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> T {
    let entered = || {
        let namespace = std::fs::File::open(format!("/run/netns/{namespace}")).unwrap();
        rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(rustix::thread::LinkNameSpaceType::Network)).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(entered).join().unwrap())
}

/// The bytes per second that a node sends to each of these concurrently, after the first second.
fn received_at_once(from: &str, to: &[String]) -> Vec<f64> {
    let connect = |to: &String| {
        let shown = Command::new("ip").args(["-n", to, "-4", "-o", "addr", "show", "dev", "eth0"]).output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        let address = shown.split_whitespace().find_map(|word| word.strip_suffix("/16")).unwrap().to_owned();
        let listener = within(to, || TcpListener::bind((address.as_str(), 0)).unwrap());
        let sending = within(from, || TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        (sending, listener.accept().unwrap().0)
    };
    let connected: Vec<(TcpStream, TcpStream)> = to.iter().map(connect).collect();
    std::thread::scope(|scope| {
        let receiving = connected.into_iter().map(|(mut sending, mut receiving)| {
            // Until no receiver is left.
            scope.spawn(move || while sending.write_all(&[0; 16 << 10]).is_ok() {});
            scope.spawn(move || {
                receiving.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                let (begin, mut buffer) = (Instant::now(), [0; 16 << 10]);
                while begin.elapsed() < Duration::from_secs(1) {
                    assert!(receiving.read(&mut buffer).unwrap() > 0);
                }
                let (begin, mut bytes) = (Instant::now(), 0);
                while begin.elapsed() < Duration::from_secs(2) {
                    bytes += receiving.read(&mut buffer).unwrap();
                }
                bytes as f64 / begin.elapsed().as_secs_f64()
            })
        });
        receiving.collect::<Vec<_>>().into_iter().map(|it| it.join().unwrap()).collect()
    })
}

#[test]
fn peers_with_rates_of_their_own_share_what_their_sender_has() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("bed");
    let dir = dir.to_str().unwrap();
    let up = ["--json", "testbed", "up", "--nodes", "3", "--link", "100mbit", "--no-check", "--dir", dir];
    let limits = ["node-01:*=24mbit", "node-01:node-02=20mbit", "node-01:node-03=20mbit"];
    json(&weft(&[&up[..], &limits.map(|limit| ["--limit", limit]).concat()].concat()));
    let prefix = prefix(dir);
    let [from, second, third] = [1, 2, 3].map(|node| format!("{prefix}{node:02}"));
    let alone = received_at_once(&from, std::slice::from_ref(&second))[0];
    let both = received_at_once(&from, &[second, third]);
    let down = weft(&["testbed", "down", "--dir", dir]);
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    // Of each 1514 bytes, 1448 are payload. The machine may make the links slower than configured.
    let mbit = |bytes_per_s: f64| bytes_per_s * 8e-6 * 1514.0 / 1448.0;
    assert!((14.0..20.6).contains(&mbit(alone)), "{alone} bytes/s to one");
    assert!((17.0..24.7).contains(&mbit(both.iter().sum())), "{both:?} bytes/s to two");
    assert!(both.iter().all(|one| mbit(*one) > 7.0), "one connection takes the whole link: {both:?} bytes/s");
}

#[test]
fn a_benchmark_has_the_one_form() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let args = ["bench", "repair", "--json", "--code", "rs(2,1)", "--block-size", "1MiB", "--link", "100mbit"];
    let schemes = "direct,conventional,ppr,pipeline";
    let report = json(&weft(&[&args[..], &["--schemes", schemes, "--runs", "1"]].concat()));
    assert!(report["machine"]["cores"].as_u64().unwrap() > 0);
    assert_eq!(report["settings"]["code"], "rs(2,1)");
    let names: Vec<&str> = report["results"].as_array().unwrap().iter().map(|it| it["scheme"].as_str().unwrap()).collect();
    assert_eq!(names, ["direct", "conventional", "ppr", "ppr-sliced", "pipeline"]);
    for result in report["results"].as_array().unwrap() {
        for field in ["median_s", "min_s", "max_s", "bound_s", "ratio"] {
            assert!(result[field].as_f64().unwrap() > 0.0, "{field}: {result}");
        }
        assert!((0.0..=1.0).contains(&result["cpu_idle"].as_f64().unwrap()), "{result}");
        assert_eq!(result["runs"], 1);
        // No run is faster than its links, except for bursts of 128 KiB at each end of a link, for 1 MiB here. How much slower it is
        // depends on the machine.
        assert!(result["median_s"].as_f64().unwrap() > 0.97 * 0.75 * result["bound_s"].as_f64().unwrap(), "{result}");
    }
    let moved = |name: usize| report["results"][name]["bytes_moved"].as_u64().unwrap();
    assert_eq!([moved(0), moved(1), moved(4)], [1 << 20, 2 << 20, 2 << 20]);
}

#[test]
fn what_fails_half_way_is_measured_in_the_same_form() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let refused = weft(&["bench", "faults", "--code", "rs(2,1)"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("recovers only 1 lost block"), "{said}");
    let args = ["bench", "faults", "--code", "rs(2,2)", "--places", "1", "--block-size", "4MiB", "--link", "20mbit", "--json"];
    let report = json(&weft(&args));
    let results = report["results"].as_array().unwrap();
    let names: Vec<&str> = results.iter().map(|it| it["scheme"].as_str().unwrap()).collect();
    let expected = ["undisturbed", "helper 1 killed", "requestor killed", "helper 1 stalls", "requestor stalls"];
    assert_eq!(names[..5], expected);
    assert_eq!(names[5..], ["helper 1: a flipped bit", "helper 1: block cut short"]);
    for result in results {
        assert!(result["median_s"].as_f64().unwrap() > 0.0 && result["ratio"].as_f64().unwrap() > 0.0, "{result}");
        assert!((0.0..=1.0).contains(&result["cpu_idle"].as_f64().unwrap()) && result["runs"] == 1, "{result}");
        let (name, resumed) = (result["scheme"].as_str().unwrap(), result["resumed"].as_u64().unwrap());
        match name {
            "undisturbed" => assert_eq!(resumed, 0),
            // Bytes that a helper has already passed to the kernel still arrive; for such a small block these may be all.
            "helper 1 killed" | "helper 1 stalls" => {}
            _ => assert!(resumed > 0, "{result}"),
        }
    }
    assert!(report["warnings"].is_array(), "{report}");
}

#[test]
fn puts_are_measured_from_outside_and_from_nodes_and_are_gone_afterwards() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let bed = root.path().join("bed");
    let bed = bed.to_str().unwrap();
    let links = ["--nodes", "3", "--link", "100mbit", "--outside-link", "100mbit"];
    json(&weft(&[&["--json", "testbed", "up", "--no-check", "--dir", bed][..], &links].concat()));
    let args = ["bench", "put", "--json", "--cluster", bed, "--code", "rs(2,1)", "--size", "2MiB", "--slice-size", "64KiB"];
    let bench = |more: &[&str]| json(&weft(&[&args[..], more].concat()));
    let report = bench(&["--schemes", "direct,mist,mist@block", "--runs", "1"]);
    assert_eq!((&report["settings"]["size"], &report["settings"]["block_size"]), (&"2MiB".into(), &"1MiB".into()));
    assert_eq!(report["settings"]["testbed"]["outside_link"], "100mbit");
    let results = report["results"].as_array().unwrap();
    let names: Vec<&str> = results.iter().map(|it| it["scheme"].as_str().unwrap()).collect();
    assert_eq!(names, ["direct", "mist", "mist@block"]);
    let moved: Vec<u64> = results.iter().map(|it| it["bytes_moved"].as_u64().unwrap() >> 20).collect();
    assert_eq!(
        moved,
        [3, 4, 4],
        "MiB: direct moves three blocks; mist moves two from the writer, and two between nodes for the third"
    );
    for result in results {
        let bound_s = result["bound_s"].as_f64().unwrap();
        // 2 MiB of data, of which TCP carries 1448 bytes in each 1514.
        let expected = f64::from(2 << 20) * 8.0 / 100e6 * 1514.0 / 1448.0;
        assert!((bound_s / expected - 1.0).abs() < 0.01, "{bound_s}");
        // Bursts can be faster: 128 KiB at each end of a link, and the writer has one link.
        assert!(result["median_s"].as_f64().unwrap() > 0.85 * bound_s, "{result}");
    }
    // Over the outside link it would take much longer now.
    let slow = ["--link", "100mbit", "--outside-link", "2mbit"];
    assert!(weft(&[&["testbed", "shape", "--dir", bed][..], &slow].concat()).status.success());
    let report = bench(&["--schemes", "direct", "--runs", "1", "--writers", "2"]);
    let direct = &report["results"][0];
    assert_eq!((direct["bytes_moved"].as_u64().unwrap() >> 20, direct["ratio"].as_f64()), (6, Some(1.0)));
    assert!(direct["median_s"].as_f64().unwrap() < 0.5 * direct["bound_s"].as_f64().unwrap(), "{direct}");

    // The benchmark leaves no objects behind.
    let listed = weft(&["testbed", "run", "--dir", bed, "--", "weft", "--json", "ls", "bench"]);
    assert_eq!(json(&listed).as_array().map(Vec::len), Some(0), "{}", String::from_utf8_lossy(&listed.stdout));
    assert!(weft(&["testbed", "down", "--dir", bed]).status.success());
}

/// The nodes' uplinks suffice for one writer but not for eight, so auto uses mist for one writer and direct for eight.
#[test]
fn writers_that_begin_at_once_keep_out_of_each_others_way() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let args = [
        "--json",
        "bench",
        "put",
        "--code",
        "rs(4,4)",
        "--size",
        "4MiB",
        "--slice-size",
        "64KiB",
        "--link",
        "20mbit",
        "--runs",
        "1",
    ];
    for (writers, quicker) in [("1", true), ("8", false)] {
        // With mist the ratio would be 0.57 for one writer and 2.7 for eight. If other programs use the processors, the times say nothing
        // about links: then it is measured again.
        let is_shown = (0..ATTEMPTS).any(|_| {
            let report = json(&weft(&[&args[..], &["--schemes", "direct,auto", "--writers", writers]].concat()));
            let of = |at: usize, what: &str| report["results"][at][what].as_f64().unwrap();
            let (moved, seconds) = (of(1, "bytes_moved") / of(0, "bytes_moved"), of(1, "median_s") / of(0, "median_s"));
            assert_eq!(moved > 1.5, quicker, "{writers}: {report}");
            let is_idle = of(0, "cpu_idle").min(of(1, "cpu_idle")) > IDLE;
            assert!(!is_idle || seconds < if quicker { 0.8 } else { 1.5 }, "{writers}: {report}");
            is_idle
        });
        if !is_shown {
            println!("not checked: the times of {writers} writers, because the processors were busy {ATTEMPTS} times");
        }
    }
}

/// How often a measurement is tried while the processors are busy with other things.
const ATTEMPTS: u32 = 5;
/// With less idle time, the processors were measured and not the links.
const IDLE: f64 = 0.10;

#[test]
fn a_figure_is_measured_again_and_written_in_all_its_forms() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("figures");
    let args = ["--json", "reproduce", "ecpipe", "--figure", "6a", "--quick", "--block-size", "64KiB", "--runs", "1", "--out"];
    let reports = json(&weft(&[&args[..], &[out.to_str().unwrap()]].concat()));
    let report = &reports[0];
    assert_eq!((&report["settings"]["figure"], &report["settings"]["quick"]), (&Value::from("6a"), &Value::from(true)));
    let results = report["results"].as_array().unwrap();
    for scheme in ["direct", "conventional", "ppr", "pipeline", "cyclic"] {
        let of_scheme: Vec<&Value> = results.iter().filter(|it| it["scheme"] == scheme).collect();
        let expected = if ["pipeline", "cyclic"].contains(&scheme) { 5 } else { 1 };
        assert_eq!(of_scheme.len(), expected, "slices of 4 to 64 KiB: {of_scheme:?}");
        for result in of_scheme {
            assert!(result["median_s"].as_f64().unwrap() > 0.0 && result["bound_s"].as_f64().unwrap() > 0.0, "{result}");
        }
    }
    let written = |ending: &str| std::fs::read(out.join(format!("ecpipe-6a.{ending}"))).unwrap();
    assert_eq!(written("csv").split(|byte| *byte == b'\n').count(), results.len() + 2);
    assert_eq!(serde_json::from_slice::<Value>(&written("json")).unwrap(), *report);
    assert!(written("svg").starts_with(b"<svg") && written("png").starts_with(b"\x89PNG"));
    let page = std::fs::read_to_string(out.join("reproduce.md")).unwrap();
    assert!(page.contains("90.9 %") && page.contains("ecpipe-6a.svg"), "{page}");

    // Traffic is the same on every machine and matches the paper's text.
    let args = ["--json", "reproduce", "mist", "--figure", "13", "--quick", "--size", "64KiB", "--out"];
    let reports = json(&weft(&[&args[..], &[out.to_str().unwrap()]].concat()));
    let results = reports[0]["results"].as_array().unwrap();
    let moved = |scheme: &str, x: &str| {
        let point = results.iter().find(|it| it["scheme"] == scheme && it["x"] == x).unwrap();
        point["bytes_moved"].as_f64().unwrap()
    };
    assert_eq!(moved("RS", "mist") / moved("RS", "direct"), 2.0);
    let less = ["LRC", "MSR, d = 8", "MSR, d = 10"].map(|code| 100.0 * (1.0 - moved(code, "mist") / moved("RS", "mist")));
    assert_eq!(less.map(|percent| format!("{percent:.1}")), ["4.2", "15.0", "21.4"]);
    let page = std::fs::read_to_string(out.join("reproduce.md")).unwrap();
    assert!(page.contains("| 21.4 % | 21.4 % |") && page.contains("mist-13.svg"), "{page}");

    for (args, code) in [(&["--figure", "9"][..], 2), (&["--figure", "6a", "--block-size", "5000"], 2), (&[], 2)] {
        let ended = weft(&[&["reproduce", "ecpipe"][..], args].concat());
        assert_eq!(ended.status.code(), Some(code), "{args:?}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}
