//! The table, as text and as JSON.

use crate::codes::CodeRow;
use serde::Serialize;
use std::{fmt, fs, thread};
use weft_gf::Kernel;

#[derive(Serialize)]
pub struct Report {
    pub machine: Machine,
    /// The version of the linked ISA-L.
    pub isal: &'static str,
    pub rounds: usize,
    pub rows: Vec<Row>,
    pub codes_rounds: usize,
    pub codes: Vec<CodeRow>,
}

#[derive(Serialize)]
pub struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
}

/// Figures in GiB of data per second.
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
    /// The ratio of weft's better kernel mode, which a caller would choose here, to ISA-L.
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
    /// A row from figures in the contestants' order.
    pub fn new(job: &str, block_len: usize, warm: bool, figures: [f64; 5]) -> Self {
        let [weft, weft_streaming, isal, memcpy, read] = figures;
        let ratio = weft.max(weft_streaming) / isal;
        Self { job: job.to_owned(), block_len, warm, weft, weft_streaming, isal, memcpy, read, ratio }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, cores, kernel } = &self.machine;
        writeln!(f, "{cpu}, {cores} cores; kernel {kernel}; ISA-L {}; one core", self.isal)?;
        if !self.rows.is_empty() {
            self.write_kernels(f)?;
        }
        if !self.codes.is_empty() {
            self.write_codes(f)?;
        }
        Ok(())
    }
}

impl Report {
    fn write_kernels(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "medians of {} rounds, GiB/s of data; ratio: the better of weft's two to ISA-L\n", self.rounds)?;
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

    fn write_codes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\nCodes, GiB/s: encode and decode of data, repair of the block; (ratio to weft's rs(10,4) of the same cell)"
        )?;
        writeln!(f, "isal: its rs(10,4); memcpy, xor: over the code's working set. xors: (time to that of as many XORs)\n")?;
        write!(f, "code                       a      cell          encode          decode          repair")?;
        writeln!(f, "    isal  memcpy     xor  xors: encode          repair")?;
        for row in &self.codes {
            let CodeRow { speeds, rs_10_4, .. } = row;
            write!(f, "{:<24} {:>3} {:>5} KiB", row.spec, row.alpha, row.cell_len >> 10)?;
            for (own, rs) in [(speeds.encode, rs_10_4.encode), (speeds.decode, rs_10_4.decode), (speeds.repair, rs_10_4.repair)] {
                write!(f, " {own:>6.1} ({:>5.2}x)", own / rs)?;
            }
            write!(f, " {:>7.1} {:>7.1} {:>7.1}", row.isal_rs_10_4, row.memcpy, row.xor)?;
            if let Some(xors) = &row.xors {
                write!(f, "  {:>5} ({:>4.2}x)", xors.encode, xors.encode_ratio)?;
                write!(f, "  {:>5} ({:>4.2}x)", xors.repair, xors.repair_ratio)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
