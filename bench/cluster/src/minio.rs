//! Puts and gets of 1 GiB beside MinIO, both with four data and two parity blocks on this machine: six agents, six drives.
//!
//! Contestants take turns in every round, and the order of turns alternates between rounds. One command is one process on both sides.

use crate::{Result, Run, cluster::Cluster, cpu, median, objects, report::Beside};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

const CODE: &str = "rs(4,2)";
const DRIVES: usize = 6;
const ADDRESS: &str = "127.0.0.1:19871";
const SMALL_BYTES: usize = 4096;
const SMALL_READS: usize = 200;
/// The key of the large object. Every round overwrites it, so all of it stays in the page cache.
const OBJECT: &str = "large";
const SMALL: &str = "small";
/// The jobs of one contestant, in this order. Then a node or drive is removed, and the gets are repeated.
const GETS: [(&str, bool); 2] = [("get, discarded", false), ("get, to a file", true)];
const READY_WITHIN: Duration = Duration::from_secs(10);

/// A server with its client, and its figures so far.
struct Contestant<'a> {
    way: &'static str,
    server: Server<'a>,
    figures: Vec<(String, Figure)>,
}

enum Server<'a> {
    Weft(Cluster<'a>),
    Minio(Minio<'a>),
}

/// A MinIO server. Dropping it stops it.
struct Minio<'a> {
    run: &'a Run,
    client: PathBuf,
    dir: PathBuf,
    child: Child,
}

#[derive(Default)]
struct Figure {
    seconds: Vec<f64>,
    client_cpu: Vec<f64>,
    server_cpu: Vec<f64>,
    client_bytes: u64,
}

/// Measures all contestants. WEFT_MINIO and WEFT_MINIO_CLIENT name MinIO and its client.
pub fn measure(run: &Run) -> Result<Vec<Beside>> {
    let binary = |name| env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("{name} is not set: use `make bench-minio`"));
    let (server, client) = (binary("WEFT_MINIO")?, binary("WEFT_MINIO_CLIENT")?);
    let (data, small) = (run.dir.join("object-data"), run.dir.join("small-data"));
    objects::make_data(&data)?;
    fs::write(&small, vec![7; SMALL_BYTES])?;
    let mut contestants = vec![Contestant::new("MinIO, HTTP", Server::Minio(Minio::start(run, &server, client)?))];
    for (way, insecure) in [("weft --insecure", true), ("weft, TLS", false)] {
        let cluster = Cluster::up(run, &format!("minio-{insecure}"), DRIVES as u32, insecure, &[])?;
        cluster.weft(&["bucket", "create", "measured", "--json"])?;
        contestants.push(Contestant::new(way, Server::Weft(cluster)));
    }
    for round in 0..run.rounds {
        eprintln!("minio: round {} of {}", round + 1, run.rounds);
        let mut order: Vec<&mut Contestant<'_>> = contestants.iter_mut().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        order.iter_mut().try_for_each(|contestant| contestant.put(run, &data, &small))?;
        for (job, to_file) in GETS {
            order.iter_mut().try_for_each(|contestant| contestant.get(run, job, to_file, &data))?;
        }
        order.iter_mut().try_for_each(|contestant| contestant.small_reads())?;
    }
    contestants.iter_mut().try_for_each(|contestant| contestant.server.lose_one())?;
    for round in 0..run.rounds {
        eprintln!("minio: degraded round {} of {}", round + 1, run.rounds);
        let mut order: Vec<&mut Contestant<'_>> = contestants.iter_mut().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for (job, to_file) in GETS {
            let job = format!("degraded {job}");
            order.iter_mut().try_for_each(|contestant| contestant.get(run, &job, to_file, &data))?;
        }
    }
    Ok(rows(&contestants))
}

impl<'a> Contestant<'a> {
    fn new(way: &'static str, server: Server<'a>) -> Self {
        Self { way, server, figures: Vec::new() }
    }

    fn figure(&mut self, job: &str) -> &mut Figure {
        let at = self.figures.iter().position(|(known, _)| known == job).unwrap_or_else(|| {
            self.figures.push((job.to_owned(), Figure::default()));
            self.figures.len() - 1
        });
        &mut self.figures[at].1
    }

    fn put(&mut self, run: &Run, data: &Path, small: &Path) -> Result<()> {
        objects::touch_memory();
        self.timed(run, "put", |server| server.put(data, OBJECT))?;
        let command = self.server.put(small, SMALL);
        run.finish(command)?;
        Ok(())
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
        Ok(())
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
    fn small_reads(&mut self) -> Result<()> {
        let (p50, p99) = self.server.small_reads()?;
        self.figure("4 KiB read, p50").seconds.push(p50 / 1e3);
        self.figure("4 KiB read, p99").seconds.push(p99 / 1e3);
        Ok(())
    }
}

impl Server<'_> {
    fn put(&self, file: &Path, key: &str) -> Command {
        match self {
            Self::Weft(cluster) => {
                let mut command = cluster.command(&["put"]);
                command.arg(file).args([&format!("measured/{key}"), "--code", CODE, "--json"]);
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
                let mut command = cluster.command(&["get", &format!("measured/{key}")]);
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

    /// The median and the 99th percentile in milliseconds.
    fn small_reads(&self) -> Result<(f64, f64)> {
        match self {
            Self::Weft(cluster) => {
                let (size, count) = (SMALL_BYTES.to_string(), SMALL_READS.to_string());
                let words = ["bench", "objects", "--size", &size, "--count", &count, "--clients", "1", "--code", CODE];
                let report = cluster.ask(&words)?;
                let get = report["results"].as_array().and_then(|all| all.iter().find(|it| it["phase"] == "get"));
                let ms =
                    |name: &str| get.and_then(|it| it[name].as_f64()).ok_or_else(|| format!("the report has no {name} of get"));
                Ok((ms("p50_ms")?, ms("p99_ms")?))
            }
            Self::Minio(minio) => {
                let done = minio.run.finish(minio.command(&["reads", SMALL, &SMALL_READS.to_string()]))?;
                let mut values = done.output.split_whitespace().map(str::parse::<f64>);
                let mut next = || values.next().ok_or("the client printed no percentiles")?.map_err(|_| "no number");
                Ok((next()?, next()?))
            }
        }
    }

    /// CPU seconds that all its processes have used so far.
    fn cpu(&self) -> Result<f64> {
        match self {
            Self::Weft(cluster) => cluster.cpu(),
            Self::Minio(minio) => cpu::of(minio.child.id()),
        }
    }

    /// Removes a node or a drive.
    fn lose_one(&mut self) -> Result<()> {
        match self {
            Self::Weft(cluster) => cluster.lose_agent(),
            Self::Minio(minio) => Ok(fs::rename(minio.dir.join("drive1"), minio.dir.join("gone"))?),
        }
    }
}

impl<'a> Minio<'a> {
    fn start(run: &'a Run, server: &Path, client: PathBuf) -> Result<Self> {
        let dir = run.dir.join("minio");
        let drives: Vec<PathBuf> = (1..=DRIVES).map(|number| dir.join(format!("drive{number}"))).collect();
        drives.iter().try_for_each(fs::create_dir_all)?;
        let mut command = Command::new(server);
        command.args(["server", "--quiet", "--address", ADDRESS]).args(&drives);
        // MinIO accepts directories of one file system as drives only for tests.
        command.envs([("MINIO_CI_CD", "1"), ("MINIO_STORAGE_CLASS_STANDARD", "EC:2"), ("MINIO_BROWSER", "off")]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let minio = Self { run, client, dir, child };
        let mut waited = Duration::ZERO;
        while run.finish(minio.command(&["make-bucket"])).is_err() {
            if waited >= READY_WITHIN {
                return Err("MinIO did not become ready".into());
            }
            thread::sleep(Duration::from_millis(500));
            waited += Duration::from_millis(500);
        }
        Ok(minio)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.client);
        command.arg(ADDRESS).args(words);
        command
    }
}

impl Drop for Minio<'_> {
    fn drop(&mut self) {
        if self.child.kill().and_then(|()| self.child.wait()).is_err() {
            eprintln!("weft-measure: MinIO, process {}, was not stopped", self.child.id());
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
