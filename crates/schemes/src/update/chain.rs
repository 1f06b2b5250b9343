//! A pipelined update (*cross-rack pipelined updates*): the delta goes along a chain of the nodes that patch a block,
//! and each patches its own. No link carries the delta more than once; d nodes take 1 + (d−1)/s of the time of one hop,
//! for s slices.

use super::{Update, UpdateScheme};
use crate::{LaneBuilder, Named, lane::Share};
use weft_gf::SparseMatrix;
use weft_plan::Source;

/// The pipelined update.
#[derive(Debug)]
pub(crate) struct Chain;

impl Named for Chain {
    fn name(&self) -> &'static str {
        "chain"
    }

    fn summary(&self) -> &'static str {
        "what changed passes along a chain of the nodes that patch their blocks, slice by slice"
    }
}

impl UpdateScheme for Chain {
    fn build(&self, update: &Update, lane: &mut LaneBuilder) {
        let all = SparseMatrix::identity(update.changed);
        let (own, others): (Vec<_>, Vec<_>) = update.homes.iter().partition(|home| home.vertex == update.writer);
        let mut sources = update.inputs.clone();
        // The writer comes first; it may patch a block itself.
        let stands = std::iter::once((update.writer, own)).chain(others.iter().map(|home| (home.vertex, vec![*home])));
        for (at, (vertex, patched)) in stands.enumerate() {
            let patch = |home: &&super::Patched| Share { rows: home.patches.clone(), sinks: Some(home.sinks.clone()) };
            let mut shares: Vec<Share> = patched.iter().map(patch).collect();
            if at < others.len() {
                shares.push(Share { rows: all.clone(), sinks: None });
            }
            let links = lane.share_out(vertex, sources, &all.clone().into(), shares);
            sources = links.into_iter().flatten().map(Source::Link).collect();
        }
    }
}
