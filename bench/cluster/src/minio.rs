//! Puts and gets of 1 GiB beside MinIO, both with four data and two parity blocks on this machine: six agents, six drives.
//!
//! Contestants take turns in every round, and the order of turns alternates between rounds. One command is one process on both sides.
//! A turn ends when the background work that it caused has ended, so none of it runs in another's turn.

use crate::{
    Result, Run,
    cluster::Cluster,
    conditions, cpu, median,
    minio_server::{DATA_DRIVES, DRIVES, Minio},
    objects,
    report::{Beside, Condition},
};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

const CODE: &str = "rs(4,2)";
const SMALL_BYTES: usize = 4096;
pub const SMALL_READS: usize = 200;
pub const BUCKET: &str = "measured";
/// The key of the large object. Every round overwrites it.
const OBJECT: &str = "large";
/// The jobs of one contestant, in this order. Then a node or drive is removed, and the gets are repeated.
const GETS: [(&str, bool); 2] = [("get, discarded", false), ("get, to a file", true)];
/// By default, weft keeps the blocks of replaced objects for a minute, in case they are being read. Here they go at once, so that a
/// turn can wait for it.
const REMOVED_AT_ONCE: [(&str, u64); 2] = [("GARBAGE_GRACE_MS", 0), ("SWEEP_INTERVAL_MS", 1000)];
/// The longest wait for the background work of a turn.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);
/// A server that uses less CPU time than this in one look does no work.
const IDLE_CPU_S: f64 = 0.02;
const IDLE_LOOK: Duration = Duration::from_millis(250);

/// A server with its client, and its figures so far.
struct Contestant<'a> {
    way: &'static str,
    server: Server<'a>,
    figures: Vec<(String, Figure)>,
    /// Turns after which background work went on for longer than the wait for it.
    unsettled: usize,
}

enum Server<'a> {
    Weft(Cluster<'a>),
    Minio(Minio<'a>),
}

#[derive(Default)]
struct Figure {
    seconds: Vec<f64>,
    client_cpu: Vec<f64>,
    server_cpu: Vec<f64>,
    client_bytes: u64,
}

/// Measures all contestants, and says under which conditions. WEFT_MINIO and WEFT_MINIO_CLIENT name MinIO and its client.
pub fn measure(run: &Run) -> Result<(Vec<Beside>, Vec<Condition>)> {
    let binary = |name| env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("{name} is not set: use `make bench-minio`"));
    let (server, client) = (binary("WEFT_MINIO")?, binary("WEFT_MINIO_CLIENT")?);
    let data = run.dir.join("object-data");
    objects::make_data(&data)?;
    let minio = Minio::start(run, &server, client)?;
    let mut conditions = conditions::of(run, &minio, &server)?;
    let mut contestants = vec![Contestant::new("MinIO, HTTP", Server::Minio(minio))];
    let settings = REMOVED_AT_ONCE.map(|(name, value)| (name, value.to_string()));
    for (way, insecure) in [("weft --insecure", true), ("weft, TLS", false)] {
        let cluster = Cluster::up(run, &format!("minio-{insecure}"), DRIVES as u32, insecure, &settings)?;
        cluster.weft(&["bucket", "create", BUCKET, "--json"])?;
        contestants.push(Contestant::new(way, Server::Weft(cluster)));
    }
    for round in 0..run.rounds {
        eprintln!("minio: round {} of {}", round + 1, run.rounds);
        let mut order = in_turn(&mut contestants, round);
        order.iter_mut().try_for_each(|contestant| contestant.put(run, &data))?;
        for (job, to_file) in GETS {
            order.iter_mut().try_for_each(|contestant| contestant.get(run, job, to_file, &data))?;
        }
        order.iter_mut().try_for_each(|contestant| contestant.small_reads(run))?;
    }
    for contestant in &mut contestants {
        let text = contestant.server.lose_one()?;
        conditions.push(Condition { name: format!("degraded gets, {}", contestant.way), text });
        contestant.read_once(run)?;
    }
    for round in 0..run.rounds {
        eprintln!("minio: degraded round {} of {}", round + 1, run.rounds);
        for (job, to_file) in GETS {
            let job = format!("degraded {job}");
            let mut order = in_turn(&mut contestants, round);
            order.iter_mut().try_for_each(|contestant| contestant.get(run, &job, to_file, &data))?;
        }
    }
    conditions.extend(contestants.iter().map(Contestant::unsettled));
    Ok((rows(&contestants), conditions))
}

/// All contestants, in the order of this round.
fn in_turn<'a, 'b>(contestants: &'b mut [Contestant<'a>], round: usize) -> Vec<&'b mut Contestant<'a>> {
    let mut order: Vec<_> = contestants.iter_mut().collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

impl<'a> Contestant<'a> {
    fn new(way: &'static str, server: Server<'a>) -> Self {
        Self { way, server, figures: Vec::new(), unsettled: 0 }
    }

    fn figure(&mut self, job: &str) -> &mut Figure {
        let at = self.figures.iter().position(|(known, _)| known == job).unwrap_or_else(|| {
            self.figures.push((job.to_owned(), Figure::default()));
            self.figures.len() - 1
        });
        &mut self.figures[at].1
    }

    /// Puts the object. MinIO writes past the page cache and weft through it, so an uncounted get then brings both into the cache.
    fn put(&mut self, run: &Run, data: &Path) -> Result<()> {
        objects::touch_memory();
        self.timed(run, "put", |server| server.put(data, OBJECT))?;
        self.settle(run)?;
        self.read_once(run)
    }

    fn read_once(&mut self, run: &Run) -> Result<()> {
        run.finish(self.server.get(OBJECT, None))?;
        self.settle(run)
    }

    fn get(&mut self, run: &Run, job: &str, to_file: bool, data: &Path) -> Result<()> {
        let back = run.dir.join("object-back");
        objects::touch_memory();
        self.timed(run, job, |server| server.get(OBJECT, to_file.then_some(back.as_path())))?;
        if to_file {
            let mut compare = Command::new("cmp");
            compare.arg(data).arg(&back);
            run.finish(compare)?;
            fs::remove_file(back)?;
        }
        self.settle(run)
    }

    /// Waits until the turn's background work has ended, and writes what is still dirty in the page cache.
    fn settle(&mut self, run: &Run) -> Result<()> {
        let begin = Instant::now();
        while !self.server.is_settled()? {
            if begin.elapsed() >= SETTLED_WITHIN {
                self.unsettled += 1;
                break;
            }
        }
        run.finish(Command::new("sync"))?;
        Ok(())
    }

    fn unsettled(&self) -> Condition {
        let text = match self.unsettled {
            0 => "all of it had ended before the next turn".to_owned(),
            turns => format!("it had not ended {} s after {turns} turns", SETTLED_WITHIN.as_secs()),
        };
        Condition { name: format!("background work, {}", self.way), text }
    }

    fn timed(&mut self, run: &Run, job: &str, command: impl FnOnce(&Server<'_>) -> Command) -> Result<()> {
        let before = self.server.cpu()?;
        let done = run.finish(command(&self.server))?;
        let server_cpu = self.server.cpu()? - before;
        let figure = self.figure(job);
        figure.seconds.push(done.seconds);
        figure.client_cpu.push(done.cpu_seconds);
        figure.server_cpu.push(server_cpu);
        figure.client_bytes = figure.client_bytes.max(done.peak_bytes);
        Ok(())
    }

    /// Reads in sequence in one process. Each of the two percentiles has its own row.
    fn small_reads(&mut self, run: &Run) -> Result<()> {
        let (p50, p99) = self.server.small_reads()?;
        self.figure("4 KiB read, p50").seconds.push(p50 / 1e3);
        self.figure("4 KiB read, p99").seconds.push(p99 / 1e3);
        self.settle(run)
    }
}

impl Server<'_> {
    fn put(&self, file: &Path, key: &str) -> Command {
        match self {
            Self::Weft(cluster) => {
                let mut command = cluster.command(&["put"]);
                command.arg(file).args([&format!("{BUCKET}/{key}"), "--code", CODE, "--json"]);
                command
            }
            Self::Minio(minio) => {
                let mut command = minio.command(&["put"]);
                command.arg(file).arg(key);
                command
            }
        }
    }

    fn get(&self, key: &str, to: Option<&Path>) -> Command {
        let to = to.unwrap_or(Path::new("/dev/null"));
        match self {
            Self::Weft(cluster) => {
                let mut command = cluster.command(&["get", &format!("{BUCKET}/{key}")]);
                command.arg(to).arg("--json");
                command
            }
            Self::Minio(minio) => {
                let mut command = minio.command(&["get", key]);
                command.arg(to);
                command
            }
        }
    }

    /// The median and the 99th percentile in milliseconds. Both sides do the same in one process: put and get one object to warm up,
    /// put all objects, get each of them once, and remove them.
    fn small_reads(&self) -> Result<(f64, f64)> {
        let (size, count) = (SMALL_BYTES.to_string(), SMALL_READS.to_string());
        match self {
            Self::Weft(cluster) => {
                let words = ["bench", "objects", "--size", &size, "--count", &count, "--clients", "1", "--code", CODE];
                let report = cluster.ask(&words)?;
                let get = report["results"].as_array().and_then(|all| all.iter().find(|it| it["phase"] == "get"));
                let ms =
                    |name: &str| get.and_then(|it| it[name].as_f64()).ok_or_else(|| format!("the report has no {name} of get"));
                Ok((ms("p50_ms")?, ms("p99_ms")?))
            }
            Self::Minio(minio) => {
                let output = minio.client(&["objects", &size, &count])?;
                let mut values = output.split_whitespace().map(str::parse::<f64>);
                let mut next = || values.next().ok_or("the client printed no percentiles")?.map_err(|_| "no number");
                Ok((next()?, next()?))
            }
        }
    }

    /// Whether no background work is left; takes the time of one look.
    fn is_settled(&self) -> Result<bool> {
        if let Self::Minio(minio) = self {
            minio.empty_trash()?;
        }
        let before = self.cpu()?;
        thread::sleep(IDLE_LOOK);
        let is_idle = self.cpu()? - before <= IDLE_CPU_S;
        Ok(is_idle
            && match self {
                Self::Weft(cluster) => cluster.garbage_blocks()? == 0,
                Self::Minio(_) => true,
            })
    }

    /// CPU seconds that all its processes have used so far.
    fn cpu(&self) -> Result<f64> {
        match self {
            Self::Weft(cluster) => cluster.cpu(),
            Self::Minio(minio) => cpu::of(minio.pid()),
        }
    }

    /// Removes a node or a drive that holds data of the large object, so gets must decode. Says which, and how much it held.
    fn lose_one(&mut self) -> Result<String> {
        match self {
            Self::Weft(cluster) => {
                let (name, held, stripes) = cluster.agent_with_most_data(BUCKET, OBJECT, DATA_DRIVES)?;
                cluster.lose_agent(&name)?;
                Ok(format!("without {name}, which held a data block of {held} of the object's {stripes} stripes"))
            }
            Self::Minio(minio) => {
                let drive = minio.lose_data_drive(OBJECT)?;
                Ok(format!("without drive {drive}, which held a data shard of the whole object"))
            }
        }
    }
}

/// One row for each job, with all contestants.
fn rows(contestants: &[Contestant<'_>]) -> Vec<Beside> {
    let mut rows = Vec::new();
    for (job, minio) in contestants.first().map(|it| it.figures.as_slice()).unwrap_or_default() {
        for contestant in contestants {
            let Some((_, figure)) = contestant.figures.iter().find(|(known, _)| known == job) else { continue };
            rows.push(Beside {
                job: job.clone(),
                way: contestant.way,
                seconds: median(figure.seconds.clone()),
                time_ratio: median(figure.seconds.iter().zip(&minio.seconds).map(|(own, minio)| own / minio).collect()),
                client_cpu_s: median(figure.client_cpu.clone()),
                server_cpu_s: median(figure.server_cpu.clone()),
                client_peak_mib: figure.client_bytes as f64 / f64::from(1 << 20),
            });
        }
    }
    rows
}
