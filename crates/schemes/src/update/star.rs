//! An update as a star: the writer sends the delta to every node that patches a block. One hop; the writer's link
//! carries the delta once for each of them. It is the baseline for pipelined updates (*cross-rack pipelined updates*).

use super::{Update, UpdateScheme};
use crate::{LaneBuilder, Named, lane::Share};
use weft_gf::SparseMatrix;
use weft_plan::Source;

/// The star update.
#[derive(Debug)]
pub(crate) struct Star;

impl Named for Star {
    fn name(&self) -> &'static str {
        "star"
    }

    fn summary(&self) -> &'static str {
        "the writer sends what changed to every node that patches its block"
    }
}

impl UpdateScheme for Star {
    fn build(&self, update: &Update, lane: &mut LaneBuilder) {
        let all = SparseMatrix::identity(update.changed);
        let share = |home: &super::Patched| match home.vertex == update.writer {
            true => Share { rows: home.patches.clone(), sinks: Some(home.sinks.clone()) },
            false => Share { rows: all.clone(), sinks: None },
        };
        let shares = update.homes.iter().map(share).collect();
        let links = lane.share_out(update.writer, update.inputs.clone(), &all.clone().into(), shares);
        for (home, link) in update.homes.iter().zip(links) {
            if let Some(link) = link {
                lane.stage(home.vertex, vec![Source::Link(link)], home.patches.clone(), home.sinks.clone());
            }
        }
    }
}
