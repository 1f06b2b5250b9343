//! How many losses beyond the tolerance a code recovers: all patterns of a number of lost blocks, or a sample of them, decided by rank.

use crate::{Code, mds::combinations, random::Random};
use weft_gf::Matrix;

/// What a code recovers of the losses of one number of blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Losses {
    /// Lost blocks.
    pub lost: usize,
    /// All ways to lose so many blocks; `None`: more than 2^64.
    pub patterns: Option<u64>,
    /// The patterns that were decided: all, or a sample.
    pub tried: u64,
    /// How many of these are recovered.
    pub recovered: u64,
    /// The seed of the sample; `None` if all patterns were decided, so the numbers are exact.
    pub seed: Option<u64>,
}

/// Numbers of lost blocks beyond the tolerance that are examined.
const COUNTS_MAX: usize = 8;
/// The most work for exact numbers, in all, and for the samples of one number of lost blocks: steps of elimination.
const EXACT_WORK_MAX: u64 = 200_000_000;
const SAMPLE_WORK_MAX: u64 = 10_000_000;
/// What a pattern costs beside its elimination.
const PATTERN_WORK: u64 = 256;
const SAMPLES_MAX: u64 = 10_000;
/// A smaller sample says too little.
const SAMPLES_MIN: u64 = 100;
const SEED: u64 = 1;

/// The numbers of lost blocks above the tolerance and up to m, one by one; with more than m lost, too few blocks are left. Ends early
/// after a number of which no pattern is recovered, because then none of more is; after the first `COUNTS_MAX`; and where even a sample
/// would take too long. Empty for codes that recover any m blocks. The time is bounded for every code, and the result always the same.
pub fn losses(code: &dyn Code) -> Vec<Losses> {
    let (mut all, mut work_left) = (Vec::new(), EXACT_WORK_MAX);
    if code.tolerance() >= code.m() {
        return all;
    }
    let parities = Parities::new(code);
    for lost in (code.tolerance() + 1..=code.m()).take(COUNTS_MAX) {
        let each = parities.work(lost);
        let patterns = binomial(code.n(), lost);
        let total = patterns.and_then(|patterns| patterns.checked_mul(each)).filter(|total| *total <= work_left);
        let found = match (patterns, total) {
            (Some(tried), Some(total)) => {
                work_left -= total;
                let recovered = combinations(code.n(), lost).filter(|pattern| parities.recover(pattern)).count() as u64;
                Losses { lost, patterns, tried, recovered, seed: None }
            }
            _ => {
                let tried = (SAMPLE_WORK_MAX / each).min(SAMPLES_MAX);
                if tried < SAMPLES_MIN {
                    break;
                }
                let recovered = sample(code.n(), lost, tried).filter(|pattern| parities.recover(pattern)).count() as u64;
                Losses { lost, patterns, tried, recovered, seed: Some(SEED) }
            }
        };
        let is_last = found.recovered == 0 && found.seed.is_none();
        all.push(found);
        if is_last {
            break;
        }
    }
    all
}

/// Patterns of `lost` of n blocks, each as likely as another.
fn sample(n: usize, lost: usize, count: u64) -> impl Iterator<Item = Vec<usize>> {
    let (mut random, mut blocks) = (Random(SEED), (0..n).collect::<Vec<usize>>());
    (0..count).map(move |_| {
        random.shuffle(&mut blocks);
        blocks[..lost].to_vec()
    })
}

/// The ways to choose `size` of n; `None` if there are more than 2^64.
fn binomial(n: usize, size: usize) -> Option<u64> {
    let mut ways = 1u128;
    for at in 0..size.min(n - size) {
        ways = ways.checked_mul((n - at) as u128)? / (at + 1) as u128;
        u64::try_from(ways).ok()?;
    }
    u64::try_from(ways).ok()
}

/// The parity rows of a code's generator: mα × kα.
struct Parities {
    rows: Matrix,
    k: usize,
    alpha: usize,
}

impl Parities {
    fn new(code: &dyn Code) -> Self {
        let (k, alpha) = (code.k(), code.alpha());
        let parities: Vec<usize> = (k * alpha..code.n() * alpha).collect();
        Self { rows: code.generator().select_rows(&parities).to_dense(), k, alpha }
    }

    /// The most steps of one elimination with so many lost blocks.
    fn work(&self, lost: usize) -> u64 {
        let columns = (lost.min(self.k) * self.alpha) as u64;
        columns.saturating_mul(columns).saturating_mul(self.rows.rows() as u64).saturating_add(PATTERN_WORK)
    }

    /// Whether the remaining parities determine the lost data: the remaining data is known, and lost parities are computed again.
    fn recover(&self, lost: &[usize]) -> bool {
        let sub_blocks = |block: usize| block * self.alpha..(block + 1) * self.alpha;
        let columns: Vec<usize> = lost.iter().copied().filter(|block| *block < self.k).flat_map(sub_blocks).collect();
        let is_left = |row: &usize| !lost.contains(&(self.k + row / self.alpha));
        let rows: Vec<usize> = (0..self.rows.rows()).filter(is_left).collect();
        if rows.len() < columns.len() {
            return false;
        }
        Matrix::from_fn(rows.len(), columns.len(), |row, column| self.rows.get(rows[row], columns[column])).rank()
            == columns.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ask, SubBlock, parse};

    /// By the recipes of the code, which a code may compute in another way.
    fn by_recipes(code: &dyn Code, lost: &[usize]) -> bool {
        let all = |index: usize| (0..code.alpha() as u16).map(move |sub_block| SubBlock { index: index as u8, sub_block });
        let wanted = lost.iter().copied().flat_map(all).collect();
        let available = (0..code.n()).filter(|index| !lost.contains(index)).map(|index| index as u8).collect();
        code.recipes(&Ask { wanted, available, read_anyway: Vec::new() }).is_ok()
    }

    #[test]
    fn every_loss_of_a_small_code_is_counted_as_its_recipes_decide() {
        for spec in ["lrc(4,2,2)", "lrc(4,2,1)", "lrc(6,2,2)", "hsrc(7,3)", "rotated-rs(4,2)", "rs(4,2)", "butterfly(4)"] {
            let code = parse(spec).unwrap();
            let found = losses(code.as_ref());
            let is_mds = code.tolerance() == code.m();
            assert_eq!(found.is_empty(), is_mds, "{spec}");
            for it in found {
                let all: Vec<Vec<usize>> = combinations(code.n(), it.lost).collect();
                let recovered = all.iter().filter(|lost| by_recipes(code.as_ref(), lost)).count() as u64;
                let exact = Losses { recovered, patterns: Some(all.len() as u64), tried: all.len() as u64, seed: None, ..it };
                assert_eq!(it, exact, "{spec}");
            }
        }
    }

    /// What a maximally recoverable code of l groups recovers: the globals suffice for what each group lost beyond one block.
    fn by_counting(k: usize, l: usize, g: usize, lost: usize) -> u64 {
        let group_of = |block: usize| if block < k { block / (k / l) } else { block - k };
        let suffices = |pattern: &Vec<usize>| {
            let (mut of_groups, mut needed) = (vec![0usize; l], 0);
            for block in pattern {
                if *block < k + l { of_groups[group_of(*block)] += 1 } else { needed += 1 }
            }
            needed + of_groups.iter().map(|lost| lost.saturating_sub(1)).sum::<usize>() <= g
        };
        combinations(k + l + g, lost).filter(suffices).count() as u64
    }

    /// Azure's (6,2,2) recovers 86 % of the losses of four blocks (C. Huang et al., USENIX ATC 2012, section 2).
    #[test]
    fn local_codes_recover_as_much_as_counting_says() {
        let of = |spec: &str| {
            losses(parse(spec).unwrap().as_ref()).iter().map(|it| (it.lost, it.recovered, it.tried)).collect::<Vec<_>>()
        };
        assert_eq!(of("lrc(6,2,2)"), [(4, 180, 210)]);
        for (spec, k, l, g) in [("lrc(6,2,2)", 6, 2, 2), ("lrc(12,2,2)", 12, 2, 2), ("lrc(4,2,2)", 4, 2, 2)] {
            of(spec).iter().for_each(|(lost, recovered, _)| assert_eq!(*recovered, by_counting(k, l, g, *lost), "{spec} {lost}"));
        }
        // Not maximally recoverable: a few patterns less than by counting.
        assert_eq!(of("lrc(12,4,4)"), [(6, 38_641, 38_760), (7, 72_760, 77_520), (8, 77_278, 125_970)]);
        assert_eq!([6, 7, 8].map(|lost| by_counting(12, 4, 4, lost)), [38_648, 72_832, 77_456]);
    }

    /// Where there are too many patterns, a sample comes close, and the time stays bounded.
    #[test]
    fn a_sample_is_close_to_what_is_exact() {
        let code = parse("lrc(6,2,2)").unwrap();
        let parities = Parities::new(code.as_ref());
        let recovered =
            sample(code.n(), 4, SAMPLES_MAX).filter(|lost| parities.recover(lost)).count() as f64 / SAMPLES_MAX as f64;
        assert!((recovered - 180.0 / 210.0).abs() < 0.02, "{recovered}");
        for spec in ["hsrc(250,8)", "lrc(200,4,8)", "lrc(120,10,20)"] {
            let Ok(code) = parse(spec) else { panic!("{spec}") };
            let found = losses(code.as_ref());
            assert!(found.len() <= COUNTS_MAX && found.iter().all(|it| it.recovered <= it.tried), "{found:?}");
            assert!(found.iter().any(|it| it.seed == Some(SEED)), "{spec}: {found:?}");
            assert_eq!(found, losses(code.as_ref()));
        }
    }

    #[test]
    fn binomials_are_counted_up_to_64_bits() {
        assert_eq!(
            [binomial(20, 8), binomial(5, 0), binomial(5, 5), binomial(250, 123)],
            [Some(125_970), Some(1), Some(1), None]
        );
        assert_eq!(binomial(67, 33), Some(14_226_520_737_620_288_370));
        assert_eq!(binomial(68, 34), None);
    }
}
