//! The tables, as text and as JSON.

use serde::Serialize;
use std::{fmt, fs, thread};

#[derive(Serialize)]
pub struct Report {
    pub machine: Machine,
    pub rounds: usize,
    pub hops: Vec<Hop>,
    pub objects: Vec<Object>,
    pub minio: Vec<Beside>,
    /// Of the comparison with MinIO.
    pub conditions: Vec<Condition>,
}

#[derive(Serialize)]
pub struct Machine {
    cpu: String,
    cores: usize,
}

/// CPU time of a hop of a repair chain.
#[derive(Serialize)]
pub struct Hop {
    pub tls: bool,
    pub slice_len: usize,
    pub hop_cpu_s_per_gib: f64,
    /// CPU time of a relay that only copies, without TLS.
    pub relay_cpu_s_per_gib: f64,
    pub ratio: f64,
}

/// A put, a get, or the copy that it is compared with.
#[derive(Serialize)]
pub struct Object {
    pub job: &'static str,
    pub way: &'static str,
    pub seconds: f64,
    /// Relative to the object's bytes, not to the moved bytes.
    pub mib_per_s: f64,
    /// The sum over all processes.
    pub cpu_seconds: f64,
    /// Relative to the copy whose files are fsynced.
    pub time_ratio: f64,
    pub cpu_ratio: f64,
}

/// The figures of one contestant for a job, beside MinIO.
#[derive(Serialize)]
pub struct Beside {
    pub job: String,
    pub way: &'static str,
    pub seconds: f64,
    /// Median of the ratios of each round to MinIO's time in that round.
    pub time_ratio: f64,
    /// NaN in rows of percentiles, like all following fields.
    pub client_cpu_s: f64,
    pub server_cpu_s: f64,
    pub client_peak_mib: f64,
}

/// A condition under which figures were measured.
#[derive(Serialize)]
pub struct Condition {
    pub name: String,
    pub text: String,
}

impl Machine {
    pub fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| cpuinfo.lines().find(|line| line.starts_with(name)).and_then(|line| line.split(": ").nth(1));
        let (name, family) = (field("model name").unwrap_or("unknown"), field("cpu family").unwrap_or("?"));
        let cpu = format!("{name} (family {family}, model {})", field("model\t").unwrap_or("?"));
        Self { cpu, cores: thread::available_parallelism().map_or(1, usize::from) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, cores } = &self.machine;
        writeln!(f, "{cpu}, {cores} cores; medians of {} rounds", self.rounds)?;
        if !self.hops.is_empty() {
            writeln!(f, "\nOne hop of a repair chain: CPU seconds for each GiB through it\n")?;
            writeln!(f, "slices   security   weft's hop  bare relay   ratio")?;
        }
        for Hop { tls, slice_len, hop_cpu_s_per_gib, relay_cpu_s_per_gib, ratio } in &self.hops {
            let (kib, security) = (slice_len >> 10, if *tls { "TLS" } else { "insecure" });
            writeln!(f, "{kib:>3} KiB  {security:<10} {hop_cpu_s_per_gib:>10.2} {relay_cpu_s_per_gib:>11.2} {ratio:>6.2}x")?;
        }
        if !self.objects.is_empty() {
            writeln!(f, "\n1 GiB on 16 agents under rs(10,4); ratios to the copy that is fsynced\n")?;
            writeln!(f, "job  way                   seconds   MiB/s   ratio   CPU s   ratio")?;
        }
        for Object { job, way, seconds, mib_per_s, cpu_seconds, time_ratio, cpu_ratio } in &self.objects {
            writeln!(
                f,
                "{job:<4} {way:<21} {seconds:>7.2} {mib_per_s:>7.0} {time_ratio:>6.2}x {cpu_seconds:>7.2} {cpu_ratio:>6.2}x"
            )?;
        }
        if !self.minio.is_empty() {
            writeln!(f, "\n1 GiB on six drives or agents, 4 data and 2 parity blocks; ratios to MinIO in the same round\n")?;
            writeln!(
                f,
                "job                       way                   ms   ratio   CPU s: client  servers   peak MiB of the client"
            )?;
        }
        for Beside { job, way, seconds, time_ratio, client_cpu_s, server_cpu_s, client_peak_mib } in &self.minio {
            write!(f, "{job:<25} {way:<15} {:>8.1} {time_ratio:>6.2}x", seconds * 1e3)?;
            if client_cpu_s.is_finite() {
                write!(f, " {client_cpu_s:>15.2} {server_cpu_s:>8.2} {client_peak_mib:>10.0}")?;
            }
            writeln!(f)?;
        }
        if !self.conditions.is_empty() {
            writeln!(f, "\nconditions:")?;
        }
        self.conditions.iter().try_for_each(|Condition { name, text }| writeln!(f, "- {name}: {text}"))
    }
}
