//! `--explain`: plans, shown and not run.

use crate::{
    exit::Exit,
    names::legend,
    output::{Output, print},
};
use serde::de::IgnoredAny;
use weft_client::api;
use weft_plan::{ChosenPath, Considered, Job, Network, Plan, Saved, human_time};
use weft_types::{Error, Result, human_bytes};

/// Links of 1 Gbit/s: times are predicted for them unless told otherwise.
pub(super) const LINK_BYTES_PER_S: f64 = 125e6;

/// Plans that are shown in full, as text.
const SHOWN_MAX: usize = 1;

/// Shows a plan: as text, or with `--json` as it is saved.
pub(super) fn show(plan: &Plan, job: &Job, considered: &[Considered], network: &Network, output: Output) -> Result<Exit> {
    let mut text =
        if output.json { weft_plan::to_json(plan, job, considered)? } else { weft_plan::explain(plan, Some(network))? };
    if !output.json && is_told(considered) {
        text = format!("{}\n\n{}", text.trim_end(), considered_text(considered));
    }
    print(&text).map(|()| Exit::Ok)
}

/// Shows plans that the coordinator made, as it saved them: with `--json` all of them, one after another.
/// As text, with the names of the nodes in them.
pub(super) fn show_saved(saved: &[Vec<u8>], warnings: &[String], nodes: &[api::Node], output: Output) -> Result<Exit> {
    for warning in warnings {
        output.warn(warning);
    }
    let mut texts = Vec::new();
    for json in saved {
        let json = std::str::from_utf8(json).map_err(|_| Error::fatal("the coordinator's plan is not text"))?;
        if output.json {
            texts.push(json.trim_end().to_owned());
        } else if texts.len() < SHOWN_MAX {
            let Saved { plan, considered, .. } = weft_plan::from_json(json)?;
            let mut text = weft_plan::explain(&plan, Some(&Network::uniform(LINK_BYTES_PER_S)))?;
            if is_told(&considered) {
                text = format!("{}\n\n{}", text.trim_end(), considered_text(&considered));
            }
            if let Some(legend) = legend(&text, nodes) {
                text = format!("{}\n\n{legend}", text.trim_end());
            }
            texts.push(text);
        }
    }
    match saved.len().checked_sub(texts.len()) {
        _ if saved.is_empty() && !output.json => texts.push("nothing would have to be moved".to_owned()),
        Some(more) if more > 0 => texts.push(format!("… and {more} more plans, one for each stripe: --json shows them all")),
        _ => {}
    }
    print(&texts.join("\n")).map(|()| Exit::Ok)
}

/// Whether there was a choice: of schemes, or of helpers.
fn is_told(considered: &[Considered]) -> bool {
    considered.len() > 1 || considered.iter().any(|considered| !considered.paths.is_empty())
}

/// A path, its slowest link, and whether there is a better one.
fn path_text(path: &ChosenPath) -> String {
    let ChosenPath { parties, bottleneck: (from, to), bytes_per_s, exact } = path;
    let names: Vec<String> = parties.iter().map(ToString::to_string).collect();
    let known = match exact {
        Some(true) => "no order of helpers has a quicker one",
        Some(false) => "found by a bounded search: there may be a better one",
        None => "as it was asked for: no better one was looked for",
    };
    let rate = human_bytes(*bytes_per_s as u64);
    format!("{}\n    slowest link: {from} → {to}, {rate}/s ({known})", names.join(" → "))
}

/// The schemes among which one was chosen.
fn considered_text(considered: &[Considered]) -> String {
    let mut text = "Schemes considered, for the links as they are known (1 Gbit/s where none was measured):".to_owned();
    for (at, Considered { scheme, moved_bytes, read_bytes, seconds, paths }) in considered.iter().enumerate() {
        let (time, read, moved) = (human_time(*seconds), human_bytes(*read_bytes), human_bytes(*moved_bytes));
        let several = if paths.len() > 1 { format!("   over {} paths", paths.len()) } else { String::new() };
        let chosen = if at == 0 { "   chosen: the quickest" } else { "" };
        text.push_str(&format!("\n  {scheme:<13}  takes {time:>8}   reads {read:>10}   moves {moved:>10}{several}{chosen}"));
    }
    for path in considered.first().iter().flat_map(|chosen| &chosen.paths) {
        text.push_str(&format!("\n  path: {}", path_text(path)));
    }
    text.push('\n');
    text
}

/// The plans of a file, which may have several one after another.
pub(super) fn read_saved(text: &str) -> Result<Vec<Saved>> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let (mut saved, mut start) = (Vec::new(), 0);
    while let Some(value) = values.next() {
        value.map_err(|error| Error::invalid(format!("not a saved plan: {error}")))?;
        let end = values.byte_offset();
        saved.push(weft_plan::from_json(text.get(start..end).unwrap_or_default())?);
        start = end;
    }
    if saved.is_empty() {
        return Err(Error::invalid("not a saved plan: it is empty"));
    }
    Ok(saved)
}
