//! The table, as text and as JSON.

use serde::Serialize;
use std::{fmt, fs, thread};
use weft_gf::Kernel;

#[derive(Serialize)]
pub struct Report {
    pub machine: Machine,
    /// The version of ISA-L that is linked.
    pub isal: &'static str,
    pub rounds: usize,
    pub rows: Vec<Row>,
}

#[derive(Serialize)]
pub struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
}

/// Figures in GiB of data a second.
#[derive(Serialize)]
pub struct Row {
    job: String,
    block_len: usize,
    warm: bool,
    weft: f64,
    weft_streaming: f64,
    isal: f64,
    memcpy: f64,
    read: f64,
    /// Of the better of weft's two, the one a caller would choose here, to ISA-L.
    ratio: f64,
}

impl Machine {
    pub fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| cpuinfo.lines().find(|line| line.starts_with(name)).and_then(|line| line.split(": ").nth(1));
        let cpu = format!(
            "{} (family {}, model {})",
            field("model name").unwrap_or("unknown"),
            field("cpu family").unwrap_or("?"),
            field("model\t").unwrap_or("?")
        );
        Self { cpu, cores: thread::available_parallelism().map_or(1, usize::from), kernel: Kernel::best().to_string() }
    }
}

impl Row {
    /// From figures in the contestants' order.
    pub fn new(job: &str, block_len: usize, warm: bool, figures: [f64; 5]) -> Self {
        let [weft, weft_streaming, isal, memcpy, read] = figures;
        let ratio = weft.max(weft_streaming) / isal;
        Self { job: job.to_owned(), block_len, warm, weft, weft_streaming, isal, memcpy, read, ratio }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, cores, kernel } = &self.machine;
        writeln!(f, "{cpu}, {cores} cores; kernel {kernel}; ISA-L {}; one core, medians of {} rounds", self.isal, self.rounds)?;
        writeln!(f, "GiB/s of data; ratio: the better of weft's two to ISA-L\n")?;
        writeln!(f, "job       block     caches    weft  streaming   ISA-L  memcpy    read   ratio")?;
        for row in &self.rows {
            writeln!(
                f,
                "{:<9} {:>5} KiB  {:<6} {:>7.1} {:>10.1} {:>7.1} {:>7.1} {:>7.1} {:>6.2}x",
                row.job,
                row.block_len >> 10,
                if row.warm { "warm" } else { "cold" },
                row.weft,
                row.weft_streaming,
                row.isal,
                row.memcpy,
                row.read,
                row.ratio
            )?;
        }
        Ok(())
    }
}
