//! Generates `docs/metrics.md`, the reference of all metrics, from their definitions.

use super::settings_page::require_fresh;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};
use weft_proto::metrics::{CALLS, Family, Kind, page};

/// The page's text. A table is a line with its name in braces.
const PAGE: &str = include_str!("metrics_page.md");

fn table(name: &str) -> &'static [Family] {
    match name {
        "agent" => weft_agent::METRICS,
        "coordinator" => weft_coordinator::METRICS,
        "calls" => CALLS,
        _ => panic!("there is no table {name}"),
    }
}

#[test]
fn the_metrics_page_matches_the_definitions() {
    let line = |line: &str| match line.strip_prefix('{').and_then(|line| line.strip_suffix('}')) {
        Some(name) => page(table(name)),
        None => format!("{line}\n"),
    };
    require_fresh("docs/metrics.md", &PAGE.lines().map(line).collect::<String>());
}

#[test]
fn names_follow_the_conventions() {
    let mut names = BTreeSet::new();
    for family @ Family { name, kind, labels, help } in ["agent", "coordinator", "calls"].into_iter().flat_map(table) {
        assert!(names.insert(name), "{name} is declared twice");
        assert!(name.starts_with("weft_") && name.bytes().all(|letter| letter.is_ascii_lowercase() || letter == b'_'), "{name}");
        assert!(!name.ends_with("_total") && !name.ends_with("_count"), "{name}: the exposition adds suffixes");
        for unit in ["ms", "us", "millis", "kib", "mib", "percent"] {
            assert!(name.split('_').all(|word| word != unit), "{name} is not in base units");
        }
        assert!(*kind != Kind::Histogram || name.ends_with("_seconds"), "{name}");
        assert!(help.ends_with('.') && !help.contains('\n') && help.is_ascii(), "{name}: {help}");
        // Objects, buckets, stripes, blocks and clients are not bounded in number.
        const BOUNDED: [&str; 25] = [
            "cache",
            "class",
            "code",
            "direction",
            "disk",
            "further_losses",
            "job",
            "kind",
            "level",
            "method",
            "node",
            "operation",
            "outcome",
            "pass",
            "queue",
            "rack",
            "reaction",
            "result",
            "scheme",
            "service",
            "state",
            "trouble",
            "version",
            "wait",
            "zone",
        ];
        assert!(labels.iter().all(|label| BOUNDED.contains(label)), "{name}: {labels:?}: is their number bounded?");
        assert!(!family.full_name().is_empty());
    }
}

/// The alert rules and the example of a scrape configuration.
fn rules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus")
}

#[test]
fn alerts_are_about_metrics_that_exist() {
    let families: Vec<&Family> = ["agent", "coordinator", "calls"].into_iter().flat_map(table).collect();
    let known: BTreeSet<String> = families.iter().map(|family| family.full_name()).collect();
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    for file in ["weft.rules.yml", "weft.rules.test.yml"] {
        let text = std::fs::read_to_string(rules().join(file)).unwrap();
        let used: BTreeSet<&str> = text.split(|letter| !is_name(letter)).filter(|word| word.starts_with("weft_")).collect();
        assert!(!used.is_empty());
        for name in used {
            assert!(known.contains(name), "{file} uses {name}, which is no metric");
        }
    }
}

/// promtool is part of Prometheus (Debian's package `prometheus`).
#[test]
fn prometheus_accepts_the_rules_and_each_alert_fires_when_it_should() {
    if let Err(error) = Command::new("promtool").arg("--version").output() {
        eprintln!("skipped: the alert rules were not tested: promtool: {error}");
        return;
    }
    for args in
        [["check", "rules", "weft.rules.yml"], ["check", "config", "prometheus.yml"], ["test", "rules", "weft.rules.test.yml"]]
    {
        let ended = Command::new("promtool").args(args).current_dir(rules()).output().unwrap();
        let [out, error] = [&ended.stdout, &ended.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(ended.status.success(), "promtool {}: {out}{error}", args.join(" "));
    }
    // Each alert has a test in which it fires.
    let [rules, tests] =
        ["weft.rules.yml", "weft.rules.test.yml"].map(|file| std::fs::read_to_string(rules().join(file)).unwrap());
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 8, "{alerts:?}");
    for alert in alerts {
        let fires = format!("alertname: {alert}\n        exp_alerts:");
        assert!(tests.contains(&fires), "no test lets {alert} fire");
    }
}
