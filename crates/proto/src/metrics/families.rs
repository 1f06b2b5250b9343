//! Families of metrics, and their figures at one moment as text.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder, NoLabelSet, text},
    metrics::{MetricType, histogram},
    registry::{Registry, Unit},
};
use std::{collections::BTreeMap, fmt, time::Duration};
use weft_types::{Error, Result};

/// What a daemon reports under one name. Declared once: the exposition and the reference page are made from it.
#[derive(Debug)]
pub struct Family {
    /// Its name, with the unit and without the `_total` of counters.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// The names of its labels. Their values are few, and never names of objects.
    pub labels: &'static [&'static str],
    /// What it is, for an operator; one sentence or more.
    pub help: &'static str,
}

/// The kinds of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, from zero at the daemon's start.
    Counter,
    /// The value now.
    Gauge,
    /// A distribution: `_count`, `_sum`, and `_bucket` with an upper bound `le`.
    Histogram,
}

impl Family {
    /// A counter.
    pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Counter, labels, help }
    }

    /// A gauge.
    pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, labels, help }
    }

    /// A histogram of seconds.
    pub const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Histogram, labels, help }
    }

    /// The name in queries.
    pub fn full_name(&self) -> String {
        if self.kind == Kind::Counter { format!("{}_total", self.name) } else { self.name.to_owned() }
    }

    /// The name without its unit, and the unit if it ends with one.
    fn name_and_unit(&self) -> (&str, Option<Unit>) {
        let units = [("_bytes", Unit::Bytes), ("_seconds", Unit::Seconds)];
        let known = units.into_iter().find_map(|(end, unit)| Some((self.name.strip_suffix(end)?, Some(unit))));
        known.unwrap_or((self.name, None))
    }

    fn metric_type(&self) -> MetricType {
        match self.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        }
    }
}

/// A distribution of times, in seconds. Clones count together.
#[derive(Debug, Clone)]
pub struct Histogram(histogram::Histogram);

impl Histogram {
    /// With buckets that end at these numbers of seconds.
    pub fn new(ends: &[f64]) -> Self {
        Self(histogram::Histogram::new(ends.iter().copied()))
    }

    /// Counts something that took this long.
    pub fn observe(&self, time: Duration) {
        self.0.observe(time.as_secs_f64());
    }
}

/// A figure.
#[derive(Debug, Clone)]
pub enum Value {
    /// A number of things or bytes.
    Whole(u64),
    /// Seconds, or a share.
    Real(f64),
    /// A distribution.
    Times(Histogram),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<Duration> for Value {
    fn from(value: Duration) -> Self {
        Self::Real(value.as_secs_f64())
    }
}

impl From<Histogram> for Value {
    fn from(value: Histogram) -> Self {
        Self::Times(value)
    }
}

/// A figure, and the values of its labels.
type Labelled = (Vec<String>, Value);

/// The figures of a daemon at one moment. A family without figures has its description only.
#[derive(Debug)]
pub struct Figures {
    groups: &'static [&'static [Family]],
    by_name: BTreeMap<&'static str, Vec<Labelled>>,
}

impl Figures {
    /// None yet, of the families in these groups.
    pub fn of(groups: &'static [&'static [Family]]) -> Self {
        Self { groups, by_name: BTreeMap::new() }
    }

    /// Adds a figure. `labels` are the values of the family's labels, in their order.
    ///
    /// # Panics
    /// If no family has this name and as many labels, which is a mistake in the caller that any scrape shows.
    pub fn add<const N: usize>(&mut self, name: &'static str, labels: [&str; N], value: impl Into<Value>) {
        let is_declared = self.groups.iter().copied().flatten().any(|family| family.name == name && family.labels.len() == N);
        assert!(is_declared, "no family {name} with {N} labels is declared");
        self.by_name.entry(name).or_default().push((labels.map(str::to_owned).to_vec(), value.into()));
    }

    /// The text of an exposition, as OpenMetrics 1.0.
    pub fn text(self) -> Result<String> {
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register_collector(Box::new(self));
        text::encode(&mut text, &registry).map_err(|error| Error::fatal(format!("cannot write metrics: {error}")))?;
        Ok(text)
    }
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in self.groups.iter().copied().flatten() {
            let (name, unit) = family.name_and_unit();
            let mut metric = encoder.encode_descriptor(name, family.help, unit.as_ref(), family.metric_type())?;
            for (labels, value) in self.by_name.get(family.name).into_iter().flatten() {
                let labels: Vec<(&str, &str)> = family.labels.iter().copied().zip(labels.iter().map(String::as_str)).collect();
                encode(metric.encode_family(&labels.as_slice())?, family.kind, value)?;
            }
        }
        Ok(())
    }
}

fn encode(mut metric: MetricEncoder<'_>, kind: Kind, value: &Value) -> fmt::Result {
    match (kind, value) {
        (Kind::Counter, Value::Whole(value)) => metric.encode_counter::<NoLabelSet, _, f64>(value, None),
        (Kind::Counter, Value::Real(value)) => metric.encode_counter::<NoLabelSet, _, f64>(value, None),
        (Kind::Gauge, Value::Whole(value)) => metric.encode_gauge(value),
        (Kind::Gauge, Value::Real(value)) => metric.encode_gauge(value),
        (Kind::Histogram, Value::Times(Histogram(times))) => times.encode(metric),
        (Kind::Histogram, _) | (_, Value::Times(_)) => Err(fmt::Error),
    }
}

/// The table of some families for the reference page, in Markdown.
pub fn page(families: &[Family]) -> String {
    let row = |family: &Family| {
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        format!("| `{}` | {kind} | {} | {} |\n", family.full_name(), labels.join(", "), family.help.replace('|', "\\|"))
    };
    format!("| Name | Kind | Labels | Meaning |\n| --- | --- | --- | --- |\n{}", families.iter().map(row).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILIES: &[&[Family]] = &[&[
        Family::counter("weft_moved_bytes", &["class", "disk"], "Bytes moved."),
        Family::gauge("weft_nodes", &[], "Nodes."),
        Family::histogram("weft_call_seconds", &["method"], "Calls."),
        Family::counter("weft_nothing", &[], "Never happens."),
    ]];

    #[test]
    fn figures_are_written_as_openmetrics() {
        let times = Histogram::new(&[0.1, 1.0]);
        times.observe(Duration::from_millis(50));
        times.observe(Duration::from_secs(3));
        let mut figures = Figures::of(FAMILIES);
        figures.add("weft_nodes", [], 3usize);
        figures.add("weft_moved_bytes", ["repair", "/srv/\"a\"\n\\b"], 7u64);
        figures.add("weft_moved_bytes", ["scrub", "/srv/b"], u64::MAX);
        figures.add("weft_call_seconds", ["Get"], times);
        let text = figures.text().unwrap();
        let expected = "\
# HELP weft_moved_bytes Bytes moved.
# TYPE weft_moved_bytes counter
# UNIT weft_moved_bytes bytes
weft_moved_bytes_total{class=\"repair\",disk=\"/srv/\\\"a\\\"\\n\\\\b\"} 7
weft_moved_bytes_total{class=\"scrub\",disk=\"/srv/b\"} 18446744073709551615
# HELP weft_nodes Nodes.
# TYPE weft_nodes gauge
weft_nodes 3
# HELP weft_call_seconds Calls.
# TYPE weft_call_seconds histogram
# UNIT weft_call_seconds seconds
weft_call_seconds_sum{method=\"Get\"} 3.05
weft_call_seconds_count{method=\"Get\"} 2
weft_call_seconds_bucket{le=\"0.1\",method=\"Get\"} 1
weft_call_seconds_bucket{le=\"1.0\",method=\"Get\"} 1
weft_call_seconds_bucket{le=\"+Inf\",method=\"Get\"} 2
# HELP weft_nothing Never happens.
# TYPE weft_nothing counter
# EOF
";
        assert_eq!(text, expected);
    }

    #[test]
    #[should_panic(expected = "no family weft_nodes with 1 labels")]
    fn a_figure_without_its_family_is_refused() {
        Figures::of(FAMILIES).add("weft_nodes", ["up"], 1u64);
    }
}
