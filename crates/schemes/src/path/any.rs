//! If all links are fast enough, any helpers in any order work, and preference decides.

use super::Weights;

/// Selects `helpers` candidates from as few racks besides the requestor's as possible, preferring the first ones;
/// ordered rack by rack, with the requestor's own at the end. There must be enough candidates.
pub(super) fn preferred(weights: &Weights, helpers: usize) -> Vec<usize> {
    let (racks, home) = (&weights.racks[..weights.count()], weights.racks[weights.count()]);
    // The most candidates from `start` on in these racks and in `more` of the others.
    let room = |open: &[usize], more: usize, start: usize| -> usize {
        let mut sizes = vec![0usize; weights.count() + 1];
        racks[start..].iter().for_each(|rack| sizes[*rack] += 1);
        let known: usize = open.iter().chain([&home]).map(|rack| std::mem::take(&mut sizes[*rack])).sum();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        known + sizes.iter().take(more).sum::<usize>()
    };
    let foreign_max = (0..weights.count()).find(|most| room(&[], *most, 0) >= helpers).unwrap_or(weights.count());
    let (mut open, mut order): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::with_capacity(helpers));
    for (at, rack) in racks.iter().enumerate() {
        if order.len() == helpers {
            break;
        }
        let opens = *rack != home && !open.contains(rack);
        open.extend(opens.then_some(*rack));
        // A new rack must leave room for enough others.
        let fits = open.len() <= foreign_max && order.len() + 1 + room(&open, foreign_max - open.len(), at + 1) >= helpers;
        if fits {
            order.push(at);
        } else if opens {
            open.pop();
        }
    }
    order.sort_by_key(|at| (racks[*at] == home, open.iter().position(|rack| *rack == racks[*at])));
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::{Form, Graph, subsets::Table};
    use rand::{Rng, SeedableRng, rngs::StdRng};

    #[test]
    fn the_choice_matches_a_search_over_all_sets() {
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..300 {
            let count = random.random_range(2..=9usize);
            let helpers = random.random_range(1..=count);
            let mut weights = Weights::new(count);
            let racks: Vec<Option<u8>> =
                (0..=count).map(|_| Some(random.random_range(0..4)).filter(|rack| *rack > 0 || count % 2 == 0)).collect();
            weights.set_racks(&racks);
            let searched = Table::new(count).pick(&Graph::new(&weights, Form::Chain, 0.0), helpers).unwrap();
            let order = preferred(&weights, helpers);
            assert_eq!(weights.crossings(&order), weights.crossings(&searched), "{racks:?}");
            assert_eq!(order, searched, "{racks:?}");
        }
    }
}
