//! `--explain`: shows plans without running them.

use serde::de::IgnoredAny;
use weft_cli::{
    exit::Exit,
    names::with_names,
    output::{Output, print},
};
use weft_client::api;
use weft_plan::{ChosenPath, Considered, Job, Plan, Saved, Takes, human_time};
use weft_types::{Error, Result, counted, human_bytes};

/// Links of 1 Gbit/s: the default for predicted times.
pub(super) const LINK_BYTES_PER_S: f64 = 125e6;

/// Plans shown in full as text.
const SHOWN_MAX: usize = 1;

/// Two plans count as equally fast if the slower takes at most this many times as long.
const ALIKE: f64 = 1.001;

/// Shows a plan with its predicted time on links of that rate: as text, or with `--json` in its saved form.
pub(super) fn show(plan: &Plan, job: &Job, considered: &[Considered], bytes_per_s: f64, output: Output) -> Result<Exit> {
    let takes = Takes::on_links_of(bytes_per_s, plan)?;
    let text =
        if output.json { weft_plan::to_json(plan, job, considered)? } else { text(plan, considered, &takes, MEASURED, &[])? };
    print(&text).map(|()| Exit::Ok)
}

/// The same for a plan that was made and predicted for given links.
pub(super) fn show_made(plan: &Plan, job: &Job, considered: &[Considered], takes: &Takes, output: Output) -> Result<Exit> {
    let text =
        if output.json { weft_plan::to_json(plan, job, considered)? } else { text(plan, considered, takes, &takes.on, &[])? };
    print(&text).map(|()| Exit::Ok)
}

/// The links for which a coordinator compares schemes.
pub(super) const MEASURED: &str =
    "the links as last measured (a link without a measurement counts as the median of the others, or as 1 Gbit/s)";

/// A plan and the alternatives, which were compared for `links`.
fn text(plan: &Plan, considered: &[Considered], takes: &Takes, links: &str, nodes: &[api::Node]) -> Result<String> {
    let text = weft_plan::explain_with(plan, Some(takes), &|party| with_names(&party.to_string(), nodes))?;
    Ok(match is_told(considered) {
        true => format!("{}\n\n{}", text.trim_end(), with_names(&considered_text(considered, links, MOVES_LESS), nodes)),
        false => text,
    })
}

/// What the coordinator predicted for its plan from what it knows of the links.
fn predicted(plan: &Plan, considered: &[Considered]) -> Result<Takes> {
    match considered.first() {
        Some(chosen) => Ok(Takes { seconds: chosen.seconds, on: "the links as last measured".to_owned(), one_block_s: None }),
        None => Ok(Takes::on_links_of(LINK_BYTES_PER_S, plan)?),
    }
}

/// Shows plans that the coordinator made: with `--json` all of them in their saved form, one after another; as text, with the
/// names of their nodes.
pub(super) fn show_saved(saved: &[Vec<u8>], warnings: &[String], nodes: &[api::Node], output: Output) -> Result<Exit> {
    output.warn(warnings);
    let mut texts = Vec::new();
    for json in saved {
        let json = std::str::from_utf8(json).map_err(|_| Error::fatal("the coordinator's plan is not text"))?;
        if output.json {
            texts.push(json.trim_end().to_owned());
        } else if texts.len() < SHOWN_MAX {
            let Saved { plan, considered, .. } = weft_plan::from_json(json)?;
            texts.push(text(&plan, &considered, &predicted(&plan, &considered)?, MEASURED, nodes)?);
        }
    }
    match saved.len().checked_sub(texts.len()) {
        _ if saved.is_empty() && !output.json => texts.push("nothing to move".to_owned()),
        Some(more) if more > 0 => {
            let plans = counted(more as u64, "more plan");
            texts.push(format!("… and {plans}, one for each stripe: --json shows all of them"));
        }
        _ => {}
    }
    // No plan is no JSON, and not an empty line.
    if texts.is_empty() { Ok(Exit::Ok) } else { print(&texts.join("\n")).map(|()| Exit::Ok) }
}

/// Shows how stripes are read. One that is open for updates has no plan, unless it is settled first: that one is shown with `--json` only.
pub(super) fn show_read(stripes: Vec<api::ReadStripeReply>, nodes: &[api::Node], output: Output) -> Result<Exit> {
    let (plans, open) = parts_of(stripes, output.json);
    if output.json {
        return show_saved(&plans, &open, nodes, output);
    }
    open.iter().try_for_each(|line| print(line))?;
    if plans.is_empty() && !open.is_empty() { Ok(Exit::Ok) } else { show_saved(&plans, &[], nodes, output) }
}

/// The plans to be shown, and a line for each stripe that is read at its nodes. Of such a stripe there may be no plan.
fn parts_of(stripes: Vec<api::ReadStripeReply>, json: bool) -> (Vec<Vec<u8>>, Vec<String>) {
    let (mut plans, mut open, all) = (Vec::new(), Vec::new(), stripes.len());
    for (stripe, at) in stripes.into_iter().zip(1..) {
        if let Some(at_nodes) = &stripe.at_nodes {
            let names: Vec<&str> = at_nodes.blocks.iter().map(|at| at.name.as_str()).collect();
            let which = if all > 1 { format!("stripe {at} of {all} is ") } else { String::new() };
            open.push(format!("{which}open for updates: read at its data nodes ({})", names.join(", ")));
        }
        if stripe.at_nodes.is_none() || json && !stripe.plan.is_empty() {
            plans.push(stripe.plan);
        }
    }
    (plans, open)
}

/// Whether there was a choice of schemes or of helpers.
pub(super) fn is_told(considered: &[Considered]) -> bool {
    considered.len() > 1 || considered.iter().any(|considered| !considered.paths.is_empty())
}

/// A path, its slowest link, and whether a better one exists.
fn path_text(path: &ChosenPath, is_first: bool) -> String {
    let ChosenPath { parties, bottleneck: (from, to), bytes_per_s, exact } = path;
    let names: Vec<String> = parties.iter().map(ToString::to_string).collect();
    let known = match exact {
        Some(true) if is_first => "no other order is faster",
        Some(true) => "with the links that earlier paths leave, no other order is faster",
        Some(false) => "found by a bounded search: a better one may exist",
        None => "as requested; no search for a better one",
    };
    let rate = human_bytes(*bytes_per_s as u64);
    format!("{}\n    slowest link: {from} → {to}, {rate}/s on its own ({known})", names.join(" → "))
}

/// Why a repair was chosen that is not the fastest.
const MOVES_LESS: &str = "about as fast as the fastest, and moves less";

/// The schemes that were considered; `otherwise`: why one was chosen that is not the fastest.
pub(super) fn considered_text(considered: &[Considered], links: &str, otherwise: &str) -> String {
    let mut text = format!("Schemes considered, for {links}:");
    let least = considered.iter().map(|it| it.seconds).fold(f64::INFINITY, f64::min);
    let chosen = match considered {
        [chosen, _, ..] if chosen.seconds <= least * ALIKE => "   chosen: the fastest".to_owned(),
        [_, _, ..] => format!("   chosen: {otherwise}"),
        _ => String::new(),
    };
    for (at, Considered { scheme, moved_bytes, read_bytes, seconds, paths }) in considered.iter().enumerate() {
        let (time, read, moved) = (human_time(*seconds), human_bytes(*read_bytes), human_bytes(*moved_bytes));
        let several = if paths.len() > 1 { format!("   over {} paths", paths.len()) } else { String::new() };
        let chosen = if at == 0 { &chosen[..] } else { "" };
        text.push_str(&format!("\n  {scheme:<15}  takes {time:>8}   reads {read:>10}   moves {moved:>10}{several}{chosen}"));
    }
    for (at, path) in considered.first().iter().flat_map(|chosen| &chosen.paths).enumerate() {
        text.push_str(&format!("\n  path: {}", path_text(path, at == 0)));
    }
    text.push('\n');
    text
}

/// What to do about a file that is no plan.
const PASS: &str = "pass what a command printed with --explain --json";
/// A schedule among plans.
#[derive(serde::Deserialize)]
struct Schedule {
    #[serde(rename = "schedule")]
    _schedule: IgnoredAny,
}

/// The plans of a file, which can hold several one after another.
pub(super) fn read_saved(text: &str) -> Result<Vec<Saved>> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let (mut saved, mut start) = (Vec::new(), 0);
    while let Some(value) = values.next() {
        value.map_err(|error| Error::invalid(format!("not a saved plan: {error}; {PASS}")))?;
        let end = values.byte_offset();
        let value = text.get(start..end).unwrap_or_default();
        // The schedule of a node's repair precedes its plans.
        if serde_json::from_str::<Schedule>(value).is_err() {
            saved.push(weft_plan::from_json(value)?);
        }
        start = end;
    }
    if saved.is_empty() {
        return Err(Error::invalid(format!("not a saved plan: it is empty; {PASS}")));
    }
    Ok(saved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stripe_that_is_read_at_its_nodes_may_have_no_plan() {
        let at_node = |name: &str| api::ReadAtNode { name: name.into(), ..api::ReadAtNode::default() };
        let at_nodes = Some(api::ReadAtNodes { blocks: vec![at_node("a"), at_node("b")], ..api::ReadAtNodes::default() });
        let stripe =
            |at_nodes, plan: &[u8]| api::ReadStripeReply { at_nodes, plan: plan.to_vec(), ..api::ReadStripeReply::default() };
        let stripes = || vec![stripe(at_nodes.clone(), b""), stripe(at_nodes.clone(), b"1"), stripe(None, b"2")];
        let (plans, open) = parts_of(stripes(), true);
        assert_eq!(plans, [b"1".to_vec(), b"2".to_vec()]);
        assert_eq!(open[0], "stripe 1 of 3 is open for updates: read at its data nodes (a, b)");
        assert_eq!((parts_of(stripes(), false).0, open.len()), (vec![b"2".to_vec()], 2));
    }
}
