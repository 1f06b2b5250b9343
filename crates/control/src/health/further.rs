//! How many further losses of blocks a stripe survives.

use std::collections::BTreeMap;
use weft_codes::{Code, SharedCode, combinations, shortened};

/// The most cached answers. There are few: each is for a code and a set of lost blocks.
const KNOWN_MAX: usize = 4_096;

/// The most work for one answer, in products of an elimination; a few tenths of a second.
const PRODUCTS_MAX: usize = 200_000_000;

/// Computes how many further losses stripes survive, and caches the answers.
#[derive(Debug, Default)]
pub struct FurtherLosses {
    known: BTreeMap<(String, usize, Vec<u8>), Option<usize>>,
}

impl FurtherLosses {
    /// The number of further blocks that a stripe can lose, in any combination, and still be read. `None`: it cannot be read.
    ///
    /// Only the first `dimension` data blocks have bytes. `lost` lists the blocks that cannot be read, ascending. For a code that is not
    /// MDS and has very many blocks, the answer may be lower than the true number.
    pub fn of(&mut self, code: &SharedCode, dimension: usize, lost: &[u8]) -> Option<usize> {
        let key = (code.spec(), dimension, lost.to_vec());
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let survived = further_losses(shortened(code, dimension).as_ref(), lost);
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(key, survived);
        survived
    }
}

/// A set of blocks suffices if its generator rows have the rank of all data. For an MDS code, any set with as many blocks as there are data
/// blocks suffices. For other codes, larger and larger sets of further losses are tried until one is fatal.
fn further_losses(code: &dyn Code, lost: &[u8]) -> Option<usize> {
    let stored = code.stored();
    let left: Vec<u8> = stored.iter().copied().filter(|index| !lost.contains(index)).collect();
    let spare = left.len().checked_sub(code.dimension())?;
    if code.tolerance() == code.m() {
        return Some(spare);
    }
    if !suffice(code, &left) {
        return None;
    }
    let unknown = code.dimension() * code.alpha();
    let products = (left.len() * code.alpha()).saturating_mul(unknown).saturating_mul(unknown);
    let mut tries = PRODUCTS_MAX / products.max(1);
    let sure = code.tolerance().saturating_sub(stored.len() - left.len());
    for size in sure + 1..=spare {
        for dropped in combinations(left.len(), size) {
            let is_left = |at: &usize| dropped.binary_search(at).is_err();
            let rest: Vec<u8> = (0..left.len()).filter(is_left).map(|at| left[at]).collect();
            if tries == 0 || !suffice(code, &rest) {
                return Some(size - 1);
            }
            tries -= 1;
        }
    }
    Some(spare)
}

fn suffice(code: &dyn Code, blocks: &[u8]) -> bool {
    let alpha = code.alpha();
    let rows: Vec<usize> = blocks.iter().flat_map(|index| (0..alpha).map(move |s| usize::from(*index) * alpha + s)).collect();
    code.generator().select_rows(&rows).to_dense().rank() == code.dimension() * alpha
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_codes::{Ask, SubBlock, parse};

    /// Whether the code's recipes recover all data without these blocks.
    fn is_recoverable(code: &dyn Code, lost: &[u8]) -> bool {
        let data = (0..code.dimension() as u8)
            .flat_map(|index| (0..code.alpha() as u16).map(move |sub_block| SubBlock { index, sub_block }));
        let available = code.stored().into_iter().filter(|index| !lost.contains(index)).collect();
        code.recipes(&Ask { wanted: data.collect(), available, read_anyway: Vec::new() }).is_ok()
    }

    /// Whether the stripe survives every set of this many further losses.
    fn survives(code: &dyn Code, lost: &[u8], further: usize) -> bool {
        let left: Vec<u8> = code.stored().into_iter().filter(|index| !lost.contains(index)).collect();
        combinations(left.len(), further).all(|more| {
            let more = more.into_iter().map(|at| left[at]);
            is_recoverable(code, &lost.iter().copied().chain(more).collect::<Vec<_>>())
        })
    }

    #[test]
    fn after_any_losses_the_number_is_what_the_recipes_allow() {
        let cases = [
            ("rs(4,2)", vec![4, 1]),
            ("xor(3)", vec![3, 2]),
            ("replication(3)", vec![1]),
            ("lrc(4,2,2)", vec![4, 3, 1]),
            ("butterfly(4)", vec![4, 2]),
            ("clay(4,2)", vec![4, 3]),
            ("hsrc(7,3)", vec![3, 2]),
        ];
        for (spec, dimensions) in cases {
            let code = parse(spec).unwrap();
            let mut answers = FurtherLosses::default();
            for dimension in dimensions {
                let part = shortened(&code, dimension);
                let stored = part.stored();
                for count in 0..=code.m() + 1 {
                    for lost in combinations(stored.len(), count) {
                        let lost: Vec<u8> = lost.into_iter().map(|at| stored[at]).collect();
                        let answer = answers.of(&code, dimension, &lost);
                        let at_least = answer.is_none_or(|further| survives(part.as_ref(), &lost, further));
                        let no_more = match answer {
                            None => !is_recoverable(part.as_ref(), &lost),
                            Some(further) if lost.len() + further == stored.len() => true,
                            Some(further) => !survives(part.as_ref(), &lost, further + 1),
                        };
                        assert!(at_least && no_more, "{spec} with {dimension} data blocks, lost {lost:?}: {answer:?}");
                        assert_eq!(answers.of(&code, dimension, &lost), answer, "remembered");
                    }
                }
            }
        }
    }

    #[test]
    fn the_number_depends_on_which_blocks_are_lost() {
        let mut answers = FurtherLosses::default();
        let mut of = |spec: &str, lost: &[u8]| {
            let code = parse(spec).unwrap();
            answers.of(&code, code.k(), lost)
        };
        assert_eq!([of("rs(10,4)", &[]), of("rs(10,4)", &[0, 13]), of("rs(10,4)", &[0, 1, 2, 3, 4])], [Some(4), Some(2), None]);
        // Blocks 0, 1 and their parity 4 form a local group, 2, 3 and 5 the other; 6 and 7 are global.
        assert_eq!([of("lrc(4,2,2)", &[]), of("lrc(4,2,2)", &[0, 2]), of("lrc(4,2,2)", &[0, 1])], [Some(3), Some(2), Some(1)]);
        assert_eq!(
            [of("lrc(4,2,2)", &[0, 2, 6]), of("lrc(4,2,2)", &[0, 2, 4, 5]), of("lrc(4,2,2)", &[0, 1, 6, 7])]
                .map(|it| it.is_some()),
            [true, true, false]
        );
    }

    #[test]
    fn a_very_wide_code_gets_a_lower_bound_in_bounded_time() {
        let code = parse("hsrc(250,8)").unwrap();
        let further = FurtherLosses::default().of(&code, code.k(), &[3]).unwrap();
        assert!(further + 1 >= code.tolerance(), "{further}");
    }
}
