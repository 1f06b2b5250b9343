//! Tables of all points of a figure, beside the claims of its paper's text.

use super::{Figure, Links, Report, Scale, Table, find};
use crate::bench::Outcome;
use weft_schemes::disseminate::{Topology, Upstream};
use weft_types::{Error, Result};

/// Runs that differ by more than this part of their median do not settle a point.
const SPREAD: f64 = 0.05;

/// All tables of a figure, as Markdown.
pub(super) fn tables(figure: &Figure, report: &Report) -> Result<String> {
    figure.tables.iter().map(|of| Ok(format!("\n{}", table(figure, report, *of)?))).collect()
}

fn table(figure: &Figure, report: &Report, table: Table) -> Result<String> {
    let places = figure.places(&report.results);
    let outcome = |scheme: &str, x: &str| find(&report.results, scheme, Some(x)).map(|point| &point.outcome);
    let of_outcome = |cell: &dyn Fn(&Outcome) -> Option<String>, scheme: &str, x: &str| outcome(scheme, x).and_then(cell);
    Ok(match table {
        Table::OverBound(schemes) => {
            let cell = |scheme: &str, x: &str| of_outcome(&over_bound, scheme, x);
            let note = format!(
                "\\* The runs differ by more than {:.0} % of their median: too few to settle this point.",
                SPREAD * 100.0
            );
            let text = grid(&format!("median to link bound, by {}", figure.x), &places, schemes, &cell);
            if text.contains('*') { format!("{text}\n{note}\n") } else { text }
        }
        Table::BusiestLink(schemes) => {
            let rate = report.settings.testbed.link.map(|link| link.goodput_bytes_per_s());
            let blocks = |it: &Outcome| {
                let blocks = it.bound_s? * rate? / report.settings.block_size.0 as f64;
                Some(format!("{:.1}", blocks).trim_end_matches(".0").to_owned())
            };
            let cell = |scheme: &str, x: &str| of_outcome(&blocks, scheme, x);
            grid(&format!("blocks over the busiest link, by {}", figure.x), &places, schemes, &cell)
        }
        Table::Topologies(schemes) => {
            let scale = scale(figure, report)?;
            let setups = (figure.setups)(scale)?;
            let cell = |scheme: &str, x: &str| {
                let has = |cases: &[(Option<String>, crate::bench::repair::Case)]| {
                    cases.iter().any(|(at, case)| at.as_deref() == Some(x) && case.label == scheme)
                };
                let setup = setups.iter().find(|setup| matches!(setup.links, Links::Written(_)) && has(&setup.cases))?;
                topology(&setup.code)
            };
            grid(
                &format!("levels, blocks moved, receivers that send as much as the writer, by {}", figure.x),
                &places,
                schemes,
                &cell,
            )
        }
    })
}

/// The scale at which a report was measured.
pub(super) fn scale(figure: &Figure, report: &Report) -> Result<Scale> {
    let asked = &report.settings;
    let link = asked.link.or(asked.testbed.link).map_or_else(|| figure.link.parse().map_err(Error::invalid), Ok)?;
    Ok(Scale { link, block_len: asked.block_size.0, quick: asked.quick })
}

/// One row a scheme, one column a place; missing values are dashes. Schemes without any value have no row.
fn grid(title: &str, places: &[String], schemes: &[&str], cell: &dyn Fn(&str, &str) -> Option<String>) -> String {
    let mut text = format!("| {title} | {} |\n| --- |{}\n", places.join(" | "), " --: |".repeat(places.len()));
    for scheme in schemes {
        let cells: Vec<Option<String>> = places.iter().map(|x| cell(scheme, x)).collect();
        if cells.iter().any(Option::is_some) {
            let cells: Vec<String> = cells.into_iter().map(|it| it.unwrap_or_else(|| "-".to_owned())).collect();
            text.push_str(&format!("| {scheme} | {} |\n", cells.join(" | ")));
        }
    }
    text
}

fn over_bound(it: &Outcome) -> Option<String> {
    let mark = if (it.max_s - it.min_s) / it.median_s > SPREAD { " \\*" } else { "" };
    Some(format!("{:.2}{mark}", it.median_s / it.bound_s?))
}

/// What mist does for a code: its levels, the blocks that it moves, and how many receivers send as much as the writer.
fn topology(code: &str) -> Option<String> {
    let code = weft_codes::parse(code).ok()?;
    let topology = Topology::of_code(code.as_ref(), None);
    let moved = topology.sub_blocks_sent() as f64 / code.alpha() as f64;
    let levels = topology.receivers.iter().map(|receiver| receiver.level).max()?;
    let by_writer = topology.receivers.iter().filter(|receiver| receiver.upstream == Upstream::Writer).count() as f64;
    let full = topology.loads().iter().filter(|load| load.blocks_out > by_writer - 1e-6).count();
    Some(format!("{levels}, {moved:.1}, {full}").replace(".0,", ","))
}
