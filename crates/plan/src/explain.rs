//! A plan in readable form: which party reads and sends what, how much it is, and how long it should take.

use crate::{BoundBlock, Class, Cost, Lane, Network, Plan, Refusal, Sink, Source, Stage, cost, executor::check_lane, predict};
use std::fmt::Write;
use weft_types::{Party, human_bytes};

/// The most lanes that are drawn in full; others get one line each.
const LANES_DRAWN_MAX: usize = 4;
/// The most lanes that are listed at all.
const LANES_LISTED_MAX: usize = 32;

/// The duration of a plan, and its network.
#[derive(Debug, Clone, PartialEq)]
pub struct Takes {
    /// The predicted time, seconds.
    pub seconds: f64,
    /// The network in words, as they follow "on".
    pub on: String,
    /// The time of one block over one link, seconds, if all links are equal.
    pub one_block_s: Option<f64>,
}

impl Takes {
    /// The prediction for equal links of this rate.
    pub fn on_links_of(bytes_per_s: f64, plan: &Plan) -> Result<Self, Refusal> {
        let seconds = predict(plan, &Network::uniform(bytes_per_s))?;
        let one_block_s = Some(plan.binding.layout.block_len as f64 / bytes_per_s);
        Ok(Self { seconds, on: format!("links of {}/s", human_bytes(bytes_per_s as u64)), one_block_s })
    }
}

/// The plan as text, with times and rates if `takes` is given.
pub fn explain(plan: &Plan, takes: Option<&Takes>) -> Result<String, Refusal> {
    explain_with(plan, takes, &Party::to_string)
}

/// The plan as text, with names for its parties, such as the names of nodes.
pub fn explain_with(plan: &Plan, takes: Option<&Takes>, names: &dyn Fn(&Party) -> String) -> Result<String, Refusal> {
    let cost = cost(plan)?;
    let seconds = takes.map(|takes| takes.seconds);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = head(&mut text, plan);
    for (number, lane) in plan.shape.lanes.iter().enumerate() {
        let _ = match number {
            _ if number < LANES_DRAWN_MAX => draw_lane(&mut text, (plan, names), number, seconds)?,
            _ if number < LANES_LISTED_MAX => {
                let gap = if number == LANES_DRAWN_MAX { "\n" } else { "" };
                writeln!(text, "{gap}{}", one_line((plan, names), number, lane))
            }
            _ if number == LANES_LISTED_MAX => {
                writeln!(text, "… and {} more lanes", plan.shape.lanes.len() - LANES_LISTED_MAX)
            }
            _ => Ok(()),
        };
    }
    let _ = table(&mut text, &cost, names);
    let _ = sum_up(&mut text, &cost, takes);
    Ok(text)
}

/// The plan as a graph in the Graphviz language.
pub fn to_dot(plan: &Plan) -> Result<String, Refusal> {
    crate::cost::check(plan)?;
    let mut dot = String::from("digraph plan {\n  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\"];\n");
    for (number, lane) in plan.shape.lanes.iter().enumerate() {
        let _ = writeln!(dot, "  subgraph cluster_{number} {{\n    label=\"{}\";", lane_name(plan, number, lane));
        for (at, stage) in lane.stages.iter().enumerate() {
            let _ = writeln!(dot, "    l{number}s{at} [label=\"{}\\n{}\"];", party(plan, stage), does(plan, stage));
        }
        let positions = plan.slice_set(number).positions();
        for link in &lane.links {
            let bytes = human_bytes(positions * u64::from(link.width));
            let _ = writeln!(dot, "    l{number}s{} -> l{number}s{} [label=\"{bytes}\"];", link.from, link.to);
        }
        dot.push_str("  }\n");
    }
    dot.push_str("}\n");
    Ok(dot)
}

fn head(text: &mut String, plan: &Plan) -> std::fmt::Result {
    let binding = &plan.binding;
    let what = match plan.class {
        Class::Foreground => "foreground",
        Class::Repair => "repair",
        Class::Scrub => "scrub",
    };
    let stripe = binding.blocks.iter().chain(&binding.stores).map(|block| block.id.stripe).next();
    let of = stripe.map(|stripe| format!(" of stripe {stripe}")).unwrap_or_default();
    let lanes = plan.shape.lanes.len();
    let lanes = if lanes == 1 { String::new() } else { format!(", {lanes} lanes") };
    // The plan may come from a file with terminal control codes in it.
    let code: String = plan.shape.code.chars().filter(|c| !c.is_control()).collect();
    writeln!(text, "Plan {} ({what}){of}, {code}{lanes}", plan.id)?;
    let alpha = binding.layout.alpha;
    let subs = if alpha == 1 { String::new() } else { format!(" in {alpha} sub-blocks") };
    let (block, slice) = (human_bytes(binding.layout.block_len), human_bytes(binding.slice_len.saturating_mul(alpha.into())));
    let turns = if plan.shape.in_turn { "; each party sends over one link at a time" } else { "" };
    writeln!(text, "Blocks of {block}{subs}, sent in slices of {slice}{turns}")
}

fn lane_name(plan: &Plan, number: usize, lane: &Lane) -> String {
    let (span, slices) = (plan.span(number), plan.slice_set(number));
    let turn = match lane.step {
        1 => String::new(),
        step => format!(", one slice in {step} from slice {} on", lane.first),
    };
    format!("Lane {number}: positions {}..{}{turn}, {} slices", span.start, span.end, slices.count())
}

fn party(plan: &Plan, stage: &Stage) -> Party {
    // The caller has checked that every vertex has a party.
    plan.binding.parties.get(usize::from(stage.vertex)).copied().unwrap_or(Party::Client(0))
}

/// A stage's operation in words.
fn does(plan: &Plan, stage: &Stage) -> String {
    let generation = |blocks: &[BoundBlock], index: u8| {
        let bound = blocks.iter().find(|block| (block.vertex, block.id.index) == (stage.vertex, index));
        bound
            .map(|BoundBlock { id, .. }| match id.copy {
                0 => format!(" (generation {})", id.generation),
                copy => format!(" (copy {copy}, generation {})", id.generation),
            })
            .unwrap_or_default()
    };
    let part = |sub_blocks: &[u16]| match (plan.binding.layout.alpha as usize, sub_blocks.len()) {
        (alpha, some) if some < alpha => format!("{some} of {alpha} sub-blocks of "),
        _ => String::new(),
    };
    let mut words: Vec<String> = Vec::new();
    let mut put_in: Vec<String> = Vec::new();
    for source in &stage.sources {
        match source {
            Source::Link(_) => {}
            Source::Block { index, sub_blocks } => {
                let bound = plan.binding.blocks.iter().find(|block| (block.vertex, block.id.index) == (stage.vertex, *index));
                let copy = bound.map(|block| block.id.copy).filter(|copy| *copy > 0).map(|copy| format!(" (copy {copy})"));
                words.push(format!("reads {}block {index}{}", part(sub_blocks), copy.unwrap_or_default()));
            }
            Source::Input { index, sub_blocks, delta } => {
                put_in.push(format!("{}{}{index}", part(sub_blocks), if *delta { "changes of " } else { "" }));
            }
        }
    }
    match put_in.as_slice() {
        [] => {}
        [one] => words.push(format!("puts in block {one}")),
        more => words.push(format!("puts in blocks {}", more.join(", "))),
    }
    let links = stage.sources.iter().filter(|source| matches!(source, Source::Link(_))).count();
    let copies =
        stage.matrix.as_matrix().is_some_and(|m| m.terms().len() == m.rows() && m.terms().iter().all(|term| term.2 == 1));
    if !copies && stage.sources.len() > 1 {
        words.push(if links == 1 && stage.sources.len() == 2 { "adds it to the sum".into() } else { "combines".into() });
    } else if !copies {
        words.push("multiplies".into());
    }
    for sink in &stage.sinks {
        match sink {
            Sink::Link(_) => {}
            Sink::Store { index, sub_blocks } => {
                words.push(format!("stores {}block {index}{}", part(sub_blocks), generation(&plan.binding.stores, *index)));
            }
            Sink::Patch { index, sub_blocks } => words.push(format!("patches {}block {index}", part(sub_blocks))),
            Sink::Output { index, sub_blocks } if put_in.is_empty() => {
                words.push(format!("takes delivery of {}block {index}", part(sub_blocks)));
            }
            Sink::Output { .. } => {}
            Sink::Check { width } => words.push(format!("checks that {width} sums are zero")),
        }
    }
    let summed = stage.sinks.iter().filter(|sink| matches!(sink, Sink::Output { .. })).count();
    if !put_in.is_empty() && summed > 0 {
        words.push(format!("sums up {summed} blocks"));
    }
    if words.is_empty() {
        words.push("passes it on".into());
    }
    words.join(", ")
}

/// A plan with the names of its parties.
type Named<'a> = (&'a Plan, &'a dyn Fn(&Party) -> String);

fn one_line((plan, names): Named<'_>, number: usize, lane: &Lane) -> String {
    let ins = |at: usize| lane.links.iter().filter(|link| usize::from(link.to) == at).count();
    let first = (0..lane.stages.len()).filter(|at| ins(*at) == 0);
    let path = is_chain(lane).then(|| {
        let mut at = first.clone().next();
        let mut path = Vec::new();
        while let Some(stage) = at {
            path.push(names(&party(plan, &lane.stages[stage])));
            at = lane.links.iter().find(|link| usize::from(link.from) == stage).map(|link| usize::from(link.to));
        }
        path.join(" → ")
    });
    let path = path.unwrap_or_else(|| format!("{} parties, {} links", lane.stages.len(), lane.links.len()));
    format!("{}: {path}", lane_name(plan, number, lane))
}

fn is_chain(lane: &Lane) -> bool {
    let count = |of: fn(&crate::Link) -> u16, at: usize| lane.links.iter().filter(|link| usize::from(of(link)) == at).count();
    let slim = |at| count(|link| link.from, at) <= 1 && count(|link| link.to, at) <= 1;
    lane.stages.len() <= 1 + lane.links.len() && lane.stages.len() <= 256 && (0..lane.stages.len()).all(slim)
}

/// Draws a lane: a chain hop by hop, any other lane stage by stage with each stage's inputs below it.
fn draw_lane(text: &mut String, named: Named<'_>, number: usize, seconds: Option<f64>) -> Result<std::fmt::Result, Refusal> {
    let order = check_lane(named.0, number)?;
    Ok(draw(text, named, number, &order, seconds))
}

fn draw(text: &mut String, (plan, names): Named<'_>, number: usize, order: &[usize], seconds: Option<f64>) -> std::fmt::Result {
    let lane = &plan.shape.lanes[number];
    let positions = plan.slice_set(number).positions();
    let name = |stage: usize| names(&party(plan, &lane.stages[stage]));
    let wide = (0..lane.stages.len()).map(|stage| name(stage).chars().count()).max().unwrap_or(0);
    let amount = |link: u16| {
        let bytes = positions * u64::from(lane.links[usize::from(link)].width);
        match seconds {
            Some(seconds) if seconds.is_finite() && seconds > 0.0 => {
                format!("{} at {}/s", human_bytes(bytes), human_bytes((bytes as f64 / seconds) as u64))
            }
            _ => human_bytes(bytes),
        }
    };
    writeln!(text, "\n{}", lane_name(plan, number, lane))?;
    let chain = is_chain(lane);
    for at in order {
        let stage = &lane.stages[*at];
        if !chain {
            for source in &stage.sources {
                let Source::Link(link) = source else { continue };
                let from = name(usize::from(lane.links[usize::from(*link)].from));
                writeln!(text, "  {from:wide$} ──{}──▶ {}", amount(*link), name(*at))?;
            }
        }
        writeln!(text, "  {:wide$} {}", name(*at), does(plan, stage))?;
        if chain {
            for sink in &stage.sinks {
                let Sink::Link(link) = sink else { continue };
                let to = name(usize::from(lane.links[usize::from(*link)].to));
                writeln!(text, "  {:wide$} ──{}──▶ {to}", name(*at), amount(*link))?;
            }
        }
    }
    Ok(())
}

fn table(text: &mut String, cost: &Cost, names: &dyn Fn(&Party) -> String) -> std::fmt::Result {
    let bytes = |bytes: u64| if bytes == 0 { "–".to_string() } else { human_bytes(bytes) };
    let mut rows = vec![["", "reads", "receives", "sends", "writes"].map(String::from)];
    rows.extend(cost.parties.iter().map(|share| {
        let read_and_written = (bytes(share.read_bytes), bytes(share.written_bytes));
        [names(&share.party), read_and_written.0, bytes(share.down_bytes), bytes(share.up_bytes), read_and_written.1]
    }));
    let moved = bytes(cost.moved_bytes());
    rows.push(["in all".into(), bytes(cost.read_bytes()), moved.clone(), moved, bytes(cost.written_bytes())]);
    let wide = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..5).map(wide).collect();
    writeln!(text)?;
    for row in &rows {
        write!(text, "  {:<1$}", row[0], widths[0])?;
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            write!(text, "  {cell:>width$}")?;
        }
        writeln!(text)?;
    }
    Ok(())
}

fn sum_up(text: &mut String, cost: &Cost, takes: Option<&Takes>) -> std::fmt::Result {
    let hops = if cost.hops == 1 { "1 hop".into() } else { format!("{} hops", cost.hops) };
    writeln!(text)?;
    let Some(Takes { seconds, on, one_block_s }) = takes else {
        return writeln!(text, "{hops}; how long it takes depends on the network.");
    };
    if !seconds.is_finite() {
        return writeln!(text, "{hops}; it never ends, because one of its links has no bandwidth.");
    }
    write!(text, "{hops}; should take {} on {on}", human_time(*seconds))?;
    if let Some(one) = one_block_s.filter(|one| *one > 0.0 && one.is_finite()) {
        write!(text, ": {:.2} times as long as sending one block", seconds / one)?;
    }
    writeln!(text, ".")
}

/// A time for display.
pub fn human_time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.2} s"),
        s => format!("{:.1} min", s / 60.0),
    }
}
