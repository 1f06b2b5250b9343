//! How many links each stage of a put's plan is from its writer.

use std::collections::BTreeMap;
use weft_plan::{Link, Plan};
use weft_types::{NodeId, Party, StageTimes};

/// The number of links from the writer to each stage: by node, lane and stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Levels(BTreeMap<(NodeId, u32, u32), u32>);

impl Levels {
    /// The levels of a plan.
    pub fn of(plan: &Plan) -> Self {
        let mut levels = BTreeMap::new();
        for (number, lane) in (0..).zip(&plan.shape.lanes) {
            for ((at, stage), level) in (0..).zip(&lane.stages).zip(of_lane(lane.stages.len(), &lane.links)) {
                if let Some(Party::Node(node)) = plan.binding.parties.get(usize::from(stage.vertex)) {
                    levels.insert((*node, number, at), level);
                }
            }
        }
        Self(levels)
    }

    /// The level of the stage that these times belong to.
    pub fn level(&self, node: NodeId, stage: &StageTimes) -> u32 {
        self.0.get(&(node, stage.lane.into(), stage.stage.into())).copied().unwrap_or(0)
    }

    /// Whether all links come from the writer, so that no receiver waits for another.
    pub fn are_one(&self) -> bool {
        self.0.values().all(|level| *level <= 1)
    }
}

/// The levels of a lane's stages. A link's end is one level above its beginning; no path is longer than the number of
/// stages.
fn of_lane(stages: usize, links: &[Link]) -> Vec<u32> {
    let mut levels = vec![0u32; stages];
    for _ in 0..stages {
        for link in links {
            let from = levels.get(usize::from(link.from)).copied().unwrap_or(0);
            if let Some(to) = levels.get_mut(usize::from(link.to)) {
                *to = from.saturating_add(1).max(*to);
            }
        }
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        known::Known,
        planning::{self, Writing},
    };
    use proptest::prelude::*;
    use weft_plan::{Class, Network, ProofKey};
    use weft_schemes::Run;
    use weft_types::{BlockId, Layout, PlanId, Seq, StripeId, StripeLayout};

    fn links(ends: &[(u16, u16)]) -> Vec<Link> {
        ends.iter().map(|(from, to)| Link { from: *from, to: *to, width: 1, rank: 0 }).collect()
    }

    /// A put of rs(4,4) to nodes 0 to 7.
    fn levels(scheme: &str) -> Levels {
        let code = weft_codes::parse("rs(4,4)").unwrap();
        let layout = StripeLayout { layout: Layout::new(1 << 20, 1 << 20, 1).unwrap(), k: 4, m: 4, data_len: 4 << 20 };
        let block = |index| BlockId { stripe: StripeId(1), index, copy: 0, generation: 1 };
        let stores: Vec<(Party, BlockId)> = (0..8).map(|index| (Party::Node(NodeId(index.into())), block(index))).collect();
        let (network, known, writer) = (Network::uniform(1e8), Known::new(ProofKey::PUBLIC), Party::Client(1));
        let writing =
            Writing { writer, seq: &Seq::FIRST, stores: &stores, whole: true, scheme, network: &network, known: &known };
        let run = Run::new(PlanId(1), 1, Class::Foreground, 16 << 10);
        Levels::of(&planning::write(&code, &layout, &writing, run).unwrap().plan)
    }

    #[test]
    fn levels_match_the_scheme() {
        let (direct, mist) = (levels("direct"), levels("mist"));
        assert!(direct.are_one() && !mist.are_one());
        let of = |levels: &Levels| levels.0.values().copied().collect::<std::collections::BTreeSet<u32>>();
        assert_eq!((of(&direct), of(&mist)), ([1].into(), [1, 2].into()), "the writer itself does not count");
        let ((node, lane, stage), level) = mist.0.iter().max_by_key(|(_, level)| **level).unwrap();
        let told = StageTimes { lane: *lane as u16, stage: *stage as u16, ..StageTimes::default() };
        assert_eq!((mist.level(*node, &told), mist.level(NodeId(99), &told)), (*level, 0));
    }

    #[test]
    fn the_longest_path_counts_in_any_order_of_the_links() {
        assert_eq!(of_lane(3, &links(&[])), [0, 0, 0]);
        assert_eq!(of_lane(4, &links(&[(2, 3), (1, 2), (0, 1)])), [0, 1, 2, 3]);
        assert_eq!(of_lane(4, &links(&[(0, 3), (0, 1), (1, 2), (2, 3)])), [0, 1, 2, 3]);
        assert_eq!(of_lane(3, &links(&[(0, 1), (0, 2), (0, 9)])), [0, 1, 1]);
    }

    proptest! {
        #[test]
        fn a_stage_is_one_behind_the_farthest_that_sends_to_it(ends in proptest::collection::vec((0..9u16, 0..9u16), 0..20)) {
            // From lower to higher numbers, so there is no circle.
            let ends: Vec<(u16, u16)> = ends.into_iter().filter(|(from, to)| from != to).map(|(a, b)| (a.min(b), a.max(b))).collect();
            let levels = of_lane(9, &links(&ends));
            for stage in 0..9u16 {
                let before = ends.iter().filter(|(_, to)| *to == stage).map(|(from, _)| levels[usize::from(*from)] + 1);
                prop_assert_eq!(levels[usize::from(stage)], before.max().unwrap_or(0));
            }
        }
    }
}
