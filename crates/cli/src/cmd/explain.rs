//! `--explain`: plans, shown and not run.

use serde::de::IgnoredAny;
use weft_cli::{
    exit::Exit,
    names::legend,
    output::{Output, print},
};
use weft_client::api;
use weft_plan::{ChosenPath, Considered, Job, Plan, Saved, Takes, human_time};
use weft_types::{Error, Result, human_bytes};

/// Links of 1 Gbit/s: times are predicted for them unless told otherwise.
pub(super) const LINK_BYTES_PER_S: f64 = 125e6;

/// Plans that are shown in full, as text.
const SHOWN_MAX: usize = 1;

/// Plans of which one takes at most this many times as long as another are shown to take the same.
const ALIKE: f64 = 1.001;

/// Shows a plan, with the time that it takes on links of so many bytes a second: as text, or with `--json` as it is saved.
pub(super) fn show(plan: &Plan, job: &Job, considered: &[Considered], bytes_per_s: f64, output: Output) -> Result<Exit> {
    let text = if output.json {
        weft_plan::to_json(plan, job, considered)?
    } else {
        text(plan, considered, &Takes::on_links_of(bytes_per_s, plan)?)?
    };
    print(&text).map(|()| Exit::Ok)
}

/// A plan, and what else was considered.
fn text(plan: &Plan, considered: &[Considered], takes: &Takes) -> Result<String> {
    let text = weft_plan::explain(plan, Some(takes))?;
    Ok(if is_told(considered) { format!("{}\n\n{}", text.trim_end(), considered_text(considered)) } else { text })
}

/// What the coordinator predicted for a plan that it chose, by all that it knows of the links.
fn predicted(plan: &Plan, considered: &[Considered]) -> Result<Takes> {
    match considered.first() {
        Some(chosen) => Ok(Takes { seconds: chosen.seconds, on: "the links as they are known".to_owned(), one_block_s: None }),
        None => Ok(Takes::on_links_of(LINK_BYTES_PER_S, plan)?),
    }
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
            let mut text = text(&plan, &considered, &predicted(&plan, &considered)?)?;
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
fn path_text(path: &ChosenPath, is_first: bool) -> String {
    let ChosenPath { parties, bottleneck: (from, to), bytes_per_s, exact } = path;
    let names: Vec<String> = parties.iter().map(ToString::to_string).collect();
    let known = match exact {
        Some(true) if is_first => "no order of helpers has a quicker one",
        Some(true) => "on what the paths before it leave, no order of helpers has a quicker one",
        Some(false) => "found by a bounded search: there may be a better one",
        None => "as it was asked for: no better one was looked for",
    };
    let rate = human_bytes(*bytes_per_s as u64);
    format!("{}\n    slowest link: {from} → {to}, {rate}/s by itself ({known})", names.join(" → "))
}

/// The schemes among which one was chosen.
fn considered_text(considered: &[Considered]) -> String {
    let mut text = "Schemes considered, for the links as they are known (one that was not measured counts as the median of the \
                    others, or as 1 Gbit/s):"
        .to_owned();
    let least = considered.iter().map(|it| it.seconds).fold(f64::INFINITY, f64::min);
    let chosen = match considered {
        [chosen, _, ..] if chosen.seconds <= least * ALIKE => "   chosen: the quickest",
        [_, _, ..] => "   chosen: hardly slower than the quickest, and moves less",
        _ => "",
    };
    for (at, Considered { scheme, moved_bytes, read_bytes, seconds, paths }) in considered.iter().enumerate() {
        let (time, read, moved) = (human_time(*seconds), human_bytes(*read_bytes), human_bytes(*moved_bytes));
        let several = if paths.len() > 1 { format!("   over {} paths", paths.len()) } else { String::new() };
        let chosen = if at == 0 { chosen } else { "" };
        text.push_str(&format!("\n  {scheme:<13}  takes {time:>8}   reads {read:>10}   moves {moved:>10}{several}{chosen}"));
    }
    for (at, path) in considered.first().iter().flat_map(|chosen| &chosen.paths).enumerate() {
        text.push_str(&format!("\n  path: {}", path_text(path, at == 0)));
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
