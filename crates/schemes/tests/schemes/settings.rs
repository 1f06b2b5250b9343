//! Schemes with one name and different settings are different schemes, also for the cache.

use crate::world::{World, block, spare};
use weft_codes::Recipe;
use weft_plan::{Job, Sink, Source, WantKind};
use weft_schemes::{
    LaneBuilder, Named, Patterns, Request, Scheme,
    repair::{Repair, RepairScheme},
};
use weft_types::Result;

/// Every helper sends to the requestor, over links of this rank, by the recipe of this number.
#[derive(Debug)]
struct Ranked {
    rank: u32,
    recipe: usize,
}

impl Named for Ranked {
    fn name(&self) -> &'static str {
        "ranked"
    }

    fn summary(&self) -> &'static str {
        "a scheme with settings"
    }
}

impl RepairScheme for Ranked {
    fn build(&self, repair: &Repair) -> Result<Vec<LaneBuilder>> {
        let (mut lane, mut sources) = (LaneBuilder::default(), Vec::new());
        for helper in &repair.helpers {
            let link = lane.link(helper.compute.rows());
            lane.stage(helper.vertex, helper.sources.clone(), helper.compute.clone(), vec![Sink::Link(link)]);
            sources.push(Source::Link(link));
        }
        lane.deliver(repair.requestors[0].vertex, sources, &repair.combine, &repair.requestors);
        lane.rank(|_| self.rank);
        Ok(vec![lane])
    }

    fn choose<'a>(&self, recipes: &'a [Recipe]) -> Option<&'a Recipe> {
        recipes.get(self.recipe).or(recipes.last())
    }
}

#[test]
fn caches_distinguish_settings() {
    for spec in ["rs(4,2)", "lrc(4,2,2)", "hitchhiker-xor(4,2)"] {
        let world = World::whole(spec, 64);
        let job =
            Job { holds: world.holds_without(&[0]), wants: vec![world.want(WantKind::Store, spare(0), 0)], ..Job::default() };
        let (stores, patterns) = ([(spare(0), block(0, 2))], Patterns::new(1 << 20));
        let request = world.request(&job, &stores, &[], 8);
        for (rank, recipe) in [(1, 0), (2, 0), (1, 1), (2, 1)] {
            let scheme = Ranked { rank, recipe };
            let plan = weft_schemes::plan(&request, Scheme::Repair(&scheme)).unwrap();
            world.prove(&plan, &job);
            let known = Request { patterns: Some(&patterns), ..request };
            assert_eq!(weft_schemes::plan(&known, Scheme::Repair(&scheme)), Ok(plan), "{spec}: {scheme:?}");
        }
    }
}
