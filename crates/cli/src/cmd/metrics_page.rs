//! Generates `docs/metrics.md`, the reference of all metrics, from their definitions.

use super::settings_page::require_fresh;
use std::collections::BTreeSet;
use weft_proto::metrics::{CALLS, Family, Kind, page};

/// The page's text. A table is a line with its name in braces.
const PAGE: &str = include_str!("metrics_page.md");

fn table(name: &str) -> &'static [Family] {
    match name {
        "agent" => weft_agent::METRICS,
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
    for family @ Family { name, kind, labels, help } in ["agent", "calls"].into_iter().flat_map(table) {
        assert!(names.insert(name), "{name} is declared twice");
        assert!(name.starts_with("weft_") && name.bytes().all(|letter| letter.is_ascii_lowercase() || letter == b'_'), "{name}");
        assert!(!name.ends_with("_total") && !name.ends_with("_count"), "{name}: the exposition adds suffixes");
        for unit in ["ms", "us", "millis", "kib", "mib", "percent"] {
            assert!(name.split('_').all(|word| word != unit), "{name} is not in base units");
        }
        assert!(*kind != Kind::Histogram || name.ends_with("_seconds"), "{name}");
        assert!(help.ends_with('.') && !help.contains('\n') && help.is_ascii(), "{name}: {help}");
        // Objects, buckets, stripes, blocks and clients are not bounded in number.
        const BOUNDED: [&str; 15] = [
            "class",
            "code",
            "direction",
            "disk",
            "method",
            "node",
            "operation",
            "outcome",
            "queue",
            "rack",
            "reaction",
            "service",
            "state",
            "version",
            "zone",
        ];
        assert!(labels.iter().all(|label| BOUNDED.contains(label)), "{name}: {labels:?}: is their number bounded?");
        assert!(!family.full_name().is_empty());
    }
}
