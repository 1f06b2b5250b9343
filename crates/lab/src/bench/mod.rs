//! What all benchmarks share: repetitions, the machine's description, and the common form of results.

pub(crate) mod check;
pub(crate) mod faults;
pub(crate) mod healing;
pub(crate) mod in_place;
pub(crate) mod lost;
pub(crate) mod node;
pub(crate) mod objects;
pub(crate) mod place;
pub(crate) mod put;
pub(crate) mod reads;
pub(crate) mod repair;
pub(crate) mod scrub;
pub(crate) mod update;
pub(crate) mod update_bound;
pub(crate) mod update_cost;
mod update_home;
pub(crate) mod update_way;
pub(crate) mod usage;
pub(crate) mod writer;

use serde::{Deserialize, Serialize};
use std::{fs, time::Duration};
use tokio::time::Instant;
use weft_cli::{session::Session, table::columns};
use weft_client::api;
use weft_types::{Error, Result};

/// The results of a benchmark. All `weft bench` commands print this form.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report<S, R = Outcome> {
    pub(crate) machine: Machine,
    pub(crate) settings: S,
    pub(crate) results: Vec<R>,
    /// Warnings that a reader needs to judge the results.
    pub(crate) warnings: Vec<String>,
}

/// The machine that it ran on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) kernel: String,
}

/// The results of one scheme.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) scheme: String,
    pub(crate) median_s: f64,
    pub(crate) min_s: f64,
    pub(crate) max_s: f64,
    pub(crate) runs: usize,
    /// Bytes that agents sent to each other and received from writers, in the median run.
    pub(crate) bytes_moved: u64,
    /// The least time that the links allow; None: the links are not known.
    pub(crate) bound_s: Option<f64>,
    /// The fraction of time in which the processors were idle; near 0, the processors were measured and not the links.
    pub(crate) cpu_idle: f64,
    /// The median relative to that of a direct send in the same benchmark.
    pub(crate) ratio: Option<f64>,
    /// The time of each run, in their order. Older results lack them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) times_s: Vec<f64>,
}

/// One run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) seconds: f64,
    pub(crate) bytes_moved: u64,
    pub(crate) cpu_idle: f64,
}

/// The baseline of all repairs.
pub(crate) const DIRECT: &str = "direct";
/// A node that was started or stopped must be in its new state within this time.
const NODES_TIMEOUT: Duration = Duration::from_secs(30);
/// With less idle time than this fraction, the processors may have limited the result.
pub(crate) const IDLE_MIN: f64 = 0.10;

impl Machine {
    /// This machine.
    pub(crate) fn this() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let cpu = read("/proc/cpuinfo");
        let (name, family, model) = (field(&cpu, "model name"), field(&cpu, "cpu family"), field(&cpu, "model\t"));
        let kib = field(&read("/proc/meminfo"), "MemTotal");
        Self {
            processor: format!("{name} (family {family}, model {model})"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (processor, cores, memory) = (&self.processor, self.cores, weft_types::human_bytes(self.memory_bytes));
        write!(f, "{processor}, {cores} cores, {memory}, Linux {}", self.kernel)
    }
}

/// Measures how idle the processors are.
#[derive(Debug)]
pub(crate) struct IdleMeter {
    idle: u64,
    all: u64,
}

impl IdleMeter {
    /// Starts to measure.
    pub(crate) fn begin() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let ticks: Vec<u64> =
            stat.lines().next().unwrap_or_default().split_whitespace().skip(1).filter_map(|tick| tick.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal; guest time is part of user.
        let idle = ticks.iter().skip(3).take(2).sum();
        Self { idle, all: ticks.iter().take(8).sum() }
    }

    /// The idle fraction, 0 to 1.
    pub(crate) fn share(&self) -> f64 {
        let now = Self::begin();
        let (idle, all) = (now.idle.saturating_sub(self.idle), now.all.saturating_sub(self.all));
        if all == 0 { 0.0 } else { idle as f64 / all as f64 }
    }
}

impl Outcome {
    /// From at least one run.
    pub(crate) fn of(scheme: String, samples: &[Sample], bound_s: Option<f64>) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let at = |index: usize| sorted.get(index).map_or(f64::NAN, |sample| sample.seconds);
        let seconds: Vec<f64> = sorted.iter().map(|sample| sample.seconds).collect();
        let (middle, median_s) = (sorted.len() / 2, median(&seconds).unwrap_or(f64::NAN));
        let idle: f64 = sorted.iter().map(|sample| sample.cpu_idle).sum();
        Self {
            scheme,
            median_s,
            min_s: at(0),
            max_s: at(sorted.len().saturating_sub(1)),
            runs: sorted.len(),
            bytes_moved: sorted.get(middle).map_or(0, |sample| sample.bytes_moved),
            bound_s,
            cpu_idle: idle / sorted.len().max(1) as f64,
            ratio: None,
            times_s: samples.iter().map(|sample| sample.seconds).collect(),
        }
    }
}

/// The median; None if there are no values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// The smallest of the ascending values that is not below this percentage of all.
pub(crate) fn percentile(ascending: &[f64], percent: usize) -> f64 {
    ascending.get((ascending.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Waits until all nodes of these names are in the expected state.
pub(crate) async fn until_nodes<S: AsRef<str>>(session: &Session, names: &[S], are: impl Fn(&api::Node) -> bool) -> Result<()> {
    let until = Instant::now() + NODES_TIMEOUT;
    loop {
        let nodes = session.client.status().await?.nodes;
        let is = |name: &str| nodes.iter().any(|node| node.name == name && are(node));
        match names.iter().find(|name| !is(name.as_ref())) {
            None => return Ok(()),
            Some(name) if Instant::now() > until => {
                let name = name.as_ref();
                return Err(Error::fatal(format!("{name} did not reach the expected state within {NODES_TIMEOUT:?}")));
            }
            Some(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Relates each median to that of `base`.
pub(crate) fn compare(results: &mut [Outcome], base: &str) {
    let base = results.iter().find(|outcome| outcome.scheme == base).map(|outcome| outcome.median_s);
    for outcome in results {
        outcome.ratio = base.map(|base| outcome.median_s / base);
    }
}

/// The results as text.
pub(crate) fn results(outcomes: &[Outcome], base: &str) -> String {
    results_beside(outcomes, base, ["link bound", "/ bound"])
}

/// The same, with names for the bound and the ratio to it.
pub(crate) fn results_beside(outcomes: &[Outcome], base: &str, bound: [&str; 2]) -> String {
    results_with(outcomes, base, bound, None)
}

/// The same, with an additional column.
pub(crate) fn results_with(
    outcomes: &[Outcome],
    base: &str,
    [bound_is, over_bound]: [&str; 2],
    own: Option<(&str, Vec<String>)>,
) -> String {
    let row = |(at, it): (usize, &Outcome)| {
        let seconds = |seconds: f64| format!("{seconds:.3} s");
        let spread = format!("{:.3} .. {:.3}", it.min_s, it.max_s);
        let bound = it.bound_s.map_or_else(|| "-".to_owned(), seconds);
        let over = it.bound_s.map_or_else(|| "-".to_owned(), |bound| format!("{:.3} x", it.median_s / bound));
        let ratio = it.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3} x"));
        let (moved, idle) = (weft_types::human_bytes(it.bytes_moved), format!("{:.0} %", it.cpu_idle * 100.0));
        let row = [it.scheme.clone(), seconds(it.median_s), spread, ratio, bound, over, moved, idle];
        row.into_iter().chain(own.as_ref().and_then(|(_, cells)| cells.get(at).cloned()))
    };
    let beside = format!("/ {base}");
    let heading = ["scheme", "median", "min .. max", &beside, bound_is, over_bound, "moved", "CPU idle"];
    let heading = heading.into_iter().chain(own.as_ref().map(|(name, _)| *name));
    columns(heading, &[1, 2, 3, 4, 5, 6, 7, 8], outcomes.iter().enumerate().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_that_of_the_runs_and_its_ratio_is_to_the_base() {
        let samples = |seconds: &[f64]| -> Vec<Sample> {
            seconds.iter().map(|seconds| Sample { seconds: *seconds, bytes_moved: 7, cpu_idle: 0.5 }).collect()
        };
        let mut results = [
            Outcome::of("direct".to_owned(), &samples(&[2.0, 9.0, 1.0]), Some(1.5)),
            Outcome::of("chain".to_owned(), &samples(&[4.0, 2.0]), None),
        ];
        compare(&mut results, "direct");
        let of = |it: &Outcome| (it.median_s, it.min_s, it.max_s, it.runs, it.ratio);
        assert_eq!(of(&results[0]), (2.0, 1.0, 9.0, 3, Some(1.0)));
        assert_eq!(of(&results[1]), (3.0, 2.0, 4.0, 2, Some(1.5)));
    }

    #[test]
    fn idle_processors_are_seen() {
        let meter = IdleMeter::begin();
        std::thread::sleep(std::time::Duration::from_millis(60));
        assert!((0.0..=1.0).contains(&meter.share()));
        assert!(Machine::this().cores > 0 && Machine::this().memory_bytes > 1 << 20);
    }
}
