//! The stages of an update: each node patches its blocks and passes on what nodes after it need.

use super::{Home, Routes, Update, Writer};
use crate::LaneBuilder;
use std::collections::{BTreeMap, HashMap};
use weft_gf::SparseMatrix;
use weft_plan::{Sink, Source};

/// A link, and the changed sub-blocks that it carries.
type Carried = (u16, Vec<usize>);

/// What reaches a node and leaves it.
#[derive(Debug, Default, Clone)]
struct Node {
    ins: Vec<Carried>,
    outs: Vec<Carried>,
}

/// Adds the stages of all writers and homes.
/// If parties send in turn, each sends in the order of its hops.
pub(super) fn build(update: &Update<'_>, routes: &Routes, in_turn: bool, lane: &mut LaneBuilder) {
    let mut homes = vec![Node::default(); update.homes.len()];
    let (mut ranks, mut sent): (Vec<u32>, BTreeMap<u16, u32>) = (Vec::new(), BTreeMap::new());
    let mut writers: Vec<Vec<Carried>> = Vec::with_capacity(update.writers.len());
    for (writer, hops) in update.writers.iter().zip(&routes.hops) {
        // What each home needs, and the homes after it.
        let own = |home: &Home| home.needs.iter().copied().filter(|need| writer.columns.binary_search(need).is_ok()).collect();
        let mut needs: Vec<Vec<usize>> = update.homes.iter().map(own).collect();
        for hop in hops.iter().rev() {
            if let Some(from) = hop.from {
                let more = needs[hop.to].clone();
                needs[from].extend(more);
                needs[from].sort_unstable();
                needs[from].dedup();
            }
        }
        let mut outs = Vec::new();
        for hop in hops {
            let columns = needs[hop.to].clone();
            let carried = (lane.link(columns.len()), columns);
            let sender = hop.from.map_or(writer.vertex, |from| update.homes[from].vertex);
            let rank = sent.entry(sender).or_default();
            ranks.push(*rank);
            *rank += 1;
            homes[hop.to].ins.push(carried.clone());
            hop.from.map_or(&mut outs, |from| &mut homes[from].outs).push(carried);
        }
        writers.push(outs);
    }
    lane.rank(|link| ranks.get(link).copied().filter(|_| in_turn).unwrap_or(0));
    for (writer, outs) in update.writers.iter().zip(&writers) {
        let home = update.homes.iter().position(|home| home.vertex == writer.vertex);
        let patches = home.filter(|at| homes[*at].ins.is_empty()).map(|at| &update.homes[at]);
        if patches.is_some() || !outs.is_empty() {
            stage(lane, writer.vertex, (writer.inputs.clone(), writer.columns.clone()), patches, outs);
        }
    }
    for (home, node) in update.homes.iter().zip(&homes).filter(|(_, node)| !node.ins.is_empty()) {
        let mut sources: Vec<Source> = node.ins.iter().map(|(link, _)| Source::Link(*link)).collect();
        let mut columns: Vec<usize> = node.ins.iter().flat_map(|(_, columns)| columns.clone()).collect();
        // A writer that gets others' deltas, too.
        if let Some(Writer { inputs, columns: own, .. }) = update.writers.iter().find(|writer| writer.vertex == home.vertex) {
            sources.extend(inputs.clone());
            columns.extend(own);
        }
        stage(lane, home.vertex, (sources, columns), Some(home), &node.outs);
    }
}

/// A stage that gets these changed sub-blocks from these sources.
fn stage(
    lane: &mut LaneBuilder,
    vertex: u16,
    (sources, columns): (Vec<Source>, Vec<usize>),
    patches: Option<&Home>,
    outs: &[Carried],
) {
    let place: HashMap<usize, usize> = columns.iter().enumerate().map(|(at, column)| (*column, at)).collect();
    let (mut sinks, mut matrix) = (Vec::new(), SparseMatrix::zero(0, columns.len()));
    for (link, carried) in outs {
        sinks.push(Sink::Link(*link));
        let rows: Vec<usize> = carried.iter().filter_map(|column| place.get(column).copied()).collect();
        matrix = matrix.stack(&SparseMatrix::identity(columns.len()).select_rows(&rows));
    }
    if let Some(home) = patches {
        sinks.extend(home.sinks.iter().cloned());
        matrix = matrix.stack(&home.patches.select_cols(&columns));
    }
    lane.stage(vertex, sources, matrix, sinks);
}
