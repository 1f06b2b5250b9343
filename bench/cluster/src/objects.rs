//! Puts and healthy gets of 1 GiB on sixteen agents, beside copying as many bytes over as many loopback connections.

use crate::{Result, Run, cluster::Cluster, copy, median, report::Object};
use std::{env, fs, fs::File, hint::black_box, io::Write as _, path::Path, process::Command};

const MIB: usize = 1 << 20;
const OBJECT_MIB: usize = 1024;
const CODE: &str = "rs(10,4)";
const K: &str = "10";
const N: &str = "14";
const NODES: u32 = 16;
/// More than any contestant writes.
const FRESH_BYTES: usize = 2048 * MIB;
const PAGE_LEN: usize = 4096;

/// One way to move the bytes, with its figures so far.
struct Contestant {
    job: &'static str,
    way: &'static str,
    seconds: Vec<f64>,
    cpu_seconds: Vec<f64>,
}

/// Measures puts and gets, with and without TLS.
pub fn measure(run: &Run) -> Result<Vec<Object>> {
    let data = run.dir.join("object-data");
    make_data(&data)?;
    let mut clusters = Vec::new();
    for (insecure, put_way) in [(true, "weft --insecure"), (false, "weft, TLS")] {
        eprintln!("objects: a cluster of {NODES}, {put_way}");
        let cluster = Cluster::up(run, &format!("objects-{insecure}"), NODES, insecure, &[])?;
        cluster.weft(&["bucket", "create", "measured", "--json"])?;
        clusters.push((cluster, Contestant::new("put", put_way), Contestant::new("get", put_way)));
    }
    let mut copies = [
        (Contestant::new("put", "copy, thrown away"), [K, N, "nothing"]),
        (Contestant::new("put", "copy, files fsynced"), [K, N, "files"]),
        (Contestant::new("get", "copy, thrown away"), [K, K, "nothing"]),
        (Contestant::new("get", "copy, a file fsynced"), [K, K, "one-file"]),
    ];
    for round in 1..=run.rounds {
        eprintln!("objects: round {round} of {}", run.rounds);
        for (contestant, words) in &mut copies {
            contestant.copy(run, &data, words)?;
        }
        for (cluster, put, get) in &mut clusters {
            put_and_get(run, cluster, put, get, &data, round)?;
        }
    }
    let weft = clusters.into_iter().flat_map(|(_, put, get)| [put, get]);
    let all: Vec<Contestant> = weft.chain(copies.into_iter().map(|(contestant, _)| contestant)).collect();
    Ok(["put", "get"].into_iter().flat_map(|job| rows(job, &all)).collect())
}

/// Puts the object, gets it back, and compares.
fn put_and_get(
    run: &Run,
    cluster: &Cluster<'_>,
    put: &mut Contestant,
    get: &mut Contestant,
    data: &Path,
    round: usize,
) -> Result<()> {
    let (object, back) = (format!("measured/object-{round}"), run.dir.join("object-back"));
    let (data_word, back_word) = (data.to_string_lossy(), back.to_string_lossy());
    let jobs =
        [(put, vec!["put", &data_word, &object, "--code", CODE, "--json"]), (get, vec!["get", &object, &back_word, "--json"])];
    for (contestant, words) in jobs {
        touch_memory();
        let before = cluster.cpu()?;
        let done = cluster.weft(&words)?;
        contestant.seconds.push(done.seconds);
        contestant.cpu_seconds.push(done.cpu_seconds + cluster.cpu()? - before);
    }
    let mut compare = Command::new("cmp");
    compare.arg(data).arg(&back);
    run.finish(compare)?;
    Ok(fs::remove_file(back)?)
}

/// Writes pseudo-random bytes, which cannot be compressed. Afterwards they are in the page cache and on the disk, so no
/// writeback disturbs the measurement.
pub fn make_data(path: &Path) -> Result<()> {
    let mut file = File::create(path)?;
    let (mut state, mut bytes) = (0x9e37_79b9_7f4a_7c15_u64, vec![0; MIB]);
    for _ in 0..OBJECT_MIB {
        for word in bytes.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all(&bytes)?;
    }
    Ok(file.sync_all()?)
}

/// Uses as much memory as a turn may need, and frees it. In a virtual machine the first use of a page costs far more than any
/// later one: without this, a turn would be faster if an earlier one had freed pages.
pub fn touch_memory() {
    let mut memory = vec![0_u8; FRESH_BYTES];
    memory.chunks_mut(PAGE_LEN).for_each(|page| page[0] = 1);
    black_box(&memory);
}

impl Contestant {
    fn new(job: &'static str, way: &'static str) -> Self {
        Self { job, way, seconds: Vec::new(), cpu_seconds: Vec::new() }
    }

    fn copy(&mut self, run: &Run, data: &Path, [parts, connections, sink]: &[&str; 3]) -> Result<()> {
        let dir = run.dir.join("copies");
        fs::create_dir(&dir)?;
        touch_memory();
        let mut command = Command::new(env::current_exe()?);
        command.arg(copy::COMMAND).arg(data).args([parts, connections, sink]).arg(&dir);
        let done = run.finish(command)?;
        self.seconds.push(done.seconds);
        self.cpu_seconds.push(done.cpu_seconds);
        Ok(fs::remove_dir_all(dir)?)
    }
}

/// The rows of one job. Ratios are relative to the copy that makes its bytes durable, as weft does.
fn rows(job: &str, all: &[Contestant]) -> Vec<Object> {
    let of_job: Vec<&Contestant> = all.iter().filter(|contestant| contestant.job == job).collect();
    let durable = of_job.iter().find(|contestant| contestant.way.ends_with("fsynced"));
    let (copy_seconds, copy_cpu) =
        durable.map_or((f64::NAN, f64::NAN), |it| (median(it.seconds.clone()), median(it.cpu_seconds.clone())));
    let row = |it: &&Contestant| {
        let (seconds, cpu_seconds) = (median(it.seconds.clone()), median(it.cpu_seconds.clone()));
        Object {
            job: it.job,
            way: it.way,
            seconds,
            mib_per_s: OBJECT_MIB as f64 / seconds,
            cpu_seconds,
            time_ratio: seconds / copy_seconds,
            cpu_ratio: cpu_seconds / copy_cpu,
        }
    };
    of_job.iter().map(row).collect()
}
