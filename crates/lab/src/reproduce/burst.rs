//! Points that are faster than their link bound, and how much of it the shapers' bursts can explain.
//!
//! The bound fills a chain link by link, at the links' rate. But a shaper that was idle passes [`BURST_BYTES`] at once: the first link
//! of a path saves one burst, and each following link saves what the first slice would have waited for, at most a burst.

use super::{Figure, Links, Point, Report, Setup, Updating, tables::scale};
use crate::{
    bench::{DIRECT, repair::Case},
    testbed::BURST_BYTES,
};
use weft_types::{AutoSize, Result};

/// A point that is faster than its bound.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Faster {
    /// Its place and scheme.
    pub(super) label: String,
    /// Seconds less than the bound.
    pub(super) saved_s: f64,
    /// The same relative to the bound.
    pub(super) part: f64,
    /// The most that bursts can save, seconds; None: unknown for this scheme.
    pub(super) burst_s: Option<f64>,
}

/// The points of a figure whose median is less than their bound.
pub(super) fn faster(figure: &Figure, report: &Report) -> Result<Vec<Faster>> {
    let scale = scale(figure, report)?;
    let (setups, rate) = ((figure.setups)(scale)?, scale.link.bits_per_s());
    let of = |point: &Point| {
        let saved_s = point.outcome.bound_s? - point.outcome.median_s;
        let is_this = |(x, case): &&(Option<String>, Case)| *x == point.x && case.label == point.outcome.scheme;
        let of_setup = |setup: &Setup| setup.cases.iter().find(is_this).and_then(|(_, case)| burst_s(setup, case, rate));
        (saved_s > 0.0).then(|| Faster {
            label: point.x.as_ref().map_or_else(String::new, |x| format!("{x} ")) + &point.outcome.scheme,
            saved_s,
            part: saved_s / (saved_s + point.outcome.median_s),
            burst_s: setups.iter().find_map(of_setup),
        })
    };
    Ok(report.results.iter().filter_map(of).collect())
}

/// The most that the shapers' bursts can save a repair, in seconds, on links of this rate.
fn burst_s(setup: &Setup, case: &Case, bits_per_s: f64) -> Option<f64> {
    if matches!(setup.links, Links::Updated(_)) {
        return of_update(setup, bits_per_s);
    }
    let k = weft_codes::parse(&setup.code).ok()?.k();
    let transfers = match case.scheme.as_str() {
        DIRECT | "conventional" => 1.0,
        "ppr" => ((k + 1) as f64).log2().ceil(),
        "pipeline" | "cyclic" => k as f64,
        _ => return None,
    };
    let (first, others) = match &setup.links {
        Links::Even => (bits_per_s, bits_per_s),
        // One of the links is the requestor's.
        Links::Edge(rate) => (rate.bits_per_s(), bits_per_s),
        Links::Places(matrix, _) => {
            let slowest = matrix.rates.iter().flatten().map(|rate| rate.bits_per_s()).fold(f64::INFINITY, f64::min);
            (slowest, slowest)
        }
        Links::Node(_) | Links::Written(_) | Links::Updated(_) => return None,
    };
    let slice_len = match case.slice_len {
        AutoSize::Bytes(size) => size.0 as f64,
        AutoSize::Auto => return None,
    };
    Some(8.0 * (BURST_BYTES / first + (transfers - 1.0) * slice_len.min(BURST_BYTES) / others))
}

/// The most that bursts can save an update: each transfer of the longest way, at the slowest link.
fn of_update(setup: &Setup, bits_per_s: f64) -> Option<f64> {
    let Links::Updated(Updating { places, .. }) = &setup.links else { return None };
    let transfers = weft_codes::parse(&setup.code).ok()?.m() as f64;
    let rates = places.iter().flat_map(|matrix| matrix.rates.iter().flatten()).map(|rate| rate.bits_per_s());
    Some(8.0 * transfers * BURST_BYTES / rates.fold(if places.is_some() { f64::INFINITY } else { bits_per_s }, f64::min))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{PAPERS, Scale, ecpipe, report::read},
        *,
    };
    use std::path::Path;

    /// The first burst of the chain, and the wait for a slice at each of the nine other links.
    #[test]
    fn a_chain_saves_a_burst_and_a_slice_on_each_further_link() {
        let figure = ecpipe::PAPER.figure("6a").unwrap();
        let scale = Scale { link: "200mbit".parse().unwrap(), block_len: 16 << 20, quick: false };
        let setup = &(figure.setups)(scale).unwrap()[0];
        let of = |x: Option<&str>, scheme: &str| {
            let (_, case) = setup.cases.iter().find(|(at, case)| at.as_deref() == x && case.scheme == scheme).unwrap();
            (burst_s(setup, case, 200e6).unwrap() * 1e4).round() / 10.0
        };
        assert_eq!((of(None, DIRECT), of(None, "ppr")), (5.2, 21.0));
        assert_eq!((of(Some("32KiB"), "pipeline"), of(Some("1MiB"), "cyclic")), (17.0, 52.4));
    }

    /// Nothing in the docs is faster than links and bursts allow.
    #[test]
    fn no_measured_point_saves_more_than_bursts_can() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/figures");
        for paper in PAPERS {
            for figure in paper.figures {
                let report = read(paper, figure, &dir).unwrap().unwrap();
                for Faster { label, saved_s, burst_s, .. } in faster(figure, &report).unwrap() {
                    assert!(burst_s.is_some_and(|burst_s| saved_s <= burst_s), "{} {label}: {saved_s} {burst_s:?}", figure.name);
                }
            }
        }
    }
}
