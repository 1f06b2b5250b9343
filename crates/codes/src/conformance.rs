//! What every code is held to. A new code gets its tests by one call: `conformance::check(code)`.
//!
//! All erasure patterns of up to m+1 blocks are tried where there are at most ten blocks, and a seeded sample above that. The
//! judge of what is recoverable is the rank of the surviving rows; the judge of what is right are the bytes of a stripe that
//! was encoded one multiplication at a time.

use crate::{Ask, Code, Recipe, SubBlock, mds::combinations, parse, random::Random};
use weft_gf::{Combination, field};

/// All patterns are tried up to this many blocks.
const EXHAUSTIVE_BLOCKS_MAX: usize = 10;

/// Bytes of a sub-block: one, and two that are a multiple of nothing.
const SUB_BLOCK_BYTES: [usize; 3] = [1, 37, 131];

/// What a code did wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {problem}")]
pub struct Violation {
    /// The code's spec.
    pub code: String,
    /// What is wrong.
    pub problem: String,
}

/// Everything: that the registry knows the code by its spec, and [`check_recipes`].
pub fn check(code: &dyn Code) -> Result<(), Violation> {
    let violation = |problem: String| Violation { code: code.spec(), problem };
    let read_back = parse(&code.spec()).map_err(|error| violation(error.to_string()))?;
    if (read_back.spec(), read_back.generator()) != (code.spec(), code.generator()) {
        return Err(violation("its spec reads back as another code".to_owned()));
    }
    check_recipes(code)
}

/// That the code is what it says, and that its recipes give the right bytes for all that can be recovered, and none for the rest.
pub fn check_recipes(code: &dyn Code) -> Result<(), Violation> {
    let mut suite = Suite::new(code);
    let outcome = suite.shape().and_then(|()| suite.patterns());
    outcome.map_err(|problem| Violation { code: code.spec(), problem })
}

struct Suite<'a> {
    code: &'a dyn Code,
    random: Random,
    /// Stripes of different sizes: sub-block `index·α + s` of each.
    stripes: Vec<Vec<Vec<u8>>>,
    /// Buffers that results go to; never cleaned, as those of an agent are not.
    dirty: Vec<Vec<u8>>,
}

impl<'a> Suite<'a> {
    fn new(code: &'a dyn Code) -> Self {
        let mut random = Random(0x5eed);
        let stripes = SUB_BLOCK_BYTES.iter().map(|len| encode(code, *len, &mut random)).collect();
        Self { code, random, stripes, dirty: Vec::new() }
    }

    /// Sizes, and that the first k·α rows are the identity.
    fn shape(&self) -> Result<(), String> {
        let (k, n, alpha) = (self.code.k(), self.code.n(), self.code.alpha());
        let generator = self.code.generator();
        ensure(k >= 1 && n > k && n <= 255 && alpha >= 1, || format!("k = {k}, n = {n}, α = {alpha} make no code"))?;
        ensure((generator.rows(), generator.cols()) == (n * alpha, k * alpha) && generator.is_valid(), || {
            format!("the generator is {}×{}, or not valid", generator.rows(), generator.cols())
        })?;
        let systematic = |row: usize| generator.row(row) == [(row as u32, row as u32, 1)];
        ensure((0..k * alpha).all(systematic), || "it is not systematic".to_owned())?;
        let tolerance = self.code.tolerance();
        ensure(tolerance <= self.code.m(), || format!("it tolerates {tolerance} losses with {} parity blocks", self.code.m()))
    }

    /// Every pattern, or a sample of them; the tolerance is exact where all were tried.
    fn patterns(&mut self) -> Result<(), String> {
        let (n, most, tolerance) = (self.code.n(), self.code.m() + 1, self.code.tolerance());
        let mut refused_at = usize::MAX;
        for pattern in self.choose_patterns(n, most) {
            let recoverable = self.survivors_rank(&pattern) == self.code.k() * self.code.alpha();
            if !recoverable {
                refused_at = refused_at.min(pattern.len());
            }
            ensure(recoverable || pattern.len() > tolerance, || {
                format!("it says it tolerates any {tolerance}, but not {pattern:?}")
            })?;
            self.pattern(&pattern, recoverable)?;
        }
        let exact = n > EXHAUSTIVE_BLOCKS_MAX || refused_at == tolerance + 1;
        ensure(exact, || format!("it tolerates more than the {tolerance} that it says"))
    }

    fn choose_patterns(&mut self, n: usize, most: usize) -> Vec<Vec<u8>> {
        let as_blocks = |pattern: Vec<usize>| pattern.into_iter().map(|index| index as u8).collect();
        if n <= EXHAUSTIVE_BLOCKS_MAX {
            return (1..=most).flat_map(|lost| combinations(n, lost)).map(as_blocks).collect();
        }
        // Fewer of the large ones: solving costs the cube of k·α.
        let samples = (1_600 / (self.code.k() * self.code.alpha()).max(1)).clamp(4, 60);
        let singles = (0..n.min(4 * samples)).map(|index| vec![index as u8]);
        let mut patterns: Vec<Vec<u8>> = singles.collect();
        for lost in [2, 3, most / 2, most - 1, most] {
            for _ in 0..samples {
                let mut all: Vec<u8> = (0..n).map(|index| index as u8).collect();
                self.random.shuffle(&mut all);
                all.truncate(lost.clamp(1, most));
                all.sort_unstable();
                patterns.push(all);
            }
        }
        patterns
    }

    fn survivors_rank(&self, pattern: &[u8]) -> usize {
        let (n, alpha) = (self.code.n(), self.code.alpha());
        let rows: Vec<usize> = (0..n * alpha).filter(|row| !pattern.contains(&((row / alpha) as u8))).collect();
        self.code.generator().select_rows(&rows).to_dense().rank()
    }

    /// The pattern's blocks, wanted together in every order (or some orders, where there are many), and each alone.
    fn pattern(&mut self, pattern: &[u8], recoverable: bool) -> Result<(), String> {
        let available: Vec<u8> = (0..self.code.n()).map(|index| index as u8).filter(|index| !pattern.contains(index)).collect();
        for order in self.orders(pattern) {
            let mut preference = available.clone();
            self.random.shuffle(&mut preference);
            let ask = self.ask(&order, &preference);
            match self.code.recipes(&ask) {
                Ok(recipes) => {
                    ensure(recoverable, || format!("it gives a recipe for {pattern:?}, which cannot be recovered"))?;
                    self.recipes(&ask, &recipes)?;
                }
                Err(refusal) => {
                    ensure(!recoverable, || format!("it refuses {pattern:?}, which can be recovered"))?;
                    ensure(refusal.lost == pattern && refusal.available == available, || {
                        format!("its refusal of {pattern:?} does not name it: {refusal}")
                    })?;
                }
            }
        }
        if !recoverable {
            return Ok(());
        }
        for index in pattern {
            let mut ask = self.ask(&[*index], &available);
            ask.read_anyway = available.iter().copied().take(self.code.k() / 2).collect();
            self.recoverable(&ask)?;
        }
        // A wanted block may be there, anywhere among the others: it is read.
        let mut wanted = pattern.to_vec();
        wanted.push(available[(self.random.next() % available.len() as u64) as usize]);
        self.random.shuffle(&mut wanted);
        self.recoverable(&self.ask(&wanted, &available))
    }

    fn recoverable(&mut self, ask: &Ask) -> Result<(), String> {
        let recipes = self.code.recipes(ask).map_err(|refusal| refusal.to_string())?;
        self.recipes(ask, &recipes)
    }

    fn ask(&self, wanted: &[u8], available: &[u8]) -> Ask {
        let of = |index: &u8| {
            let index = *index;
            (0..self.code.alpha()).map(move |s| SubBlock { index, sub_block: s as u16 })
        };
        Ask { wanted: wanted.iter().flat_map(of).collect(), available: available.to_vec(), read_anyway: Vec::new() }
    }

    fn orders(&mut self, pattern: &[u8]) -> Vec<Vec<u8>> {
        if pattern.len() <= 3 {
            return permutations(pattern);
        }
        let mut orders = vec![pattern.to_vec(), pattern.iter().rev().copied().collect()];
        let mut shuffled = pattern.to_vec();
        self.random.shuffle(&mut shuffled);
        orders.push(shuffled);
        orders
    }

    fn recipes(&mut self, ask: &Ask, recipes: &[Recipe]) -> Result<(), String> {
        ensure(!recipes.is_empty(), || "it gives no recipe and no refusal".to_owned())?;
        for recipe in recipes {
            self.recipe_is_well_formed(ask, recipe)?;
            self.recipe_is_right(ask, recipe)?;
        }
        Ok(())
    }

    fn recipe_is_well_formed(&self, ask: &Ask, recipe: &Recipe) -> Result<(), String> {
        let alpha = self.code.alpha();
        let sent = recipe.sub_blocks_sent();
        let combine = &recipe.combine;
        ensure((combine.rows(), combine.cols()) == (ask.wanted.len(), sent), || {
            format!("R is {}×{} for {} wanted and {sent} sent", combine.rows(), combine.cols(), ask.wanted.len())
        })?;
        let unused = (0..sent).find(|col| !combine.steps().terms().iter().any(|term| term.1 as usize == *col));
        ensure(unused.is_none(), || format!("nobody needs what is sent as {unused:?}"))?;
        for (at, helper) in recipe.helpers.iter().enumerate() {
            let (index, reads, compute) = (helper.index, &helper.reads, &helper.compute);
            let twice = recipe.helpers[..at].iter().any(|earlier| earlier.index == index);
            ensure(!twice && ask.available.contains(&index), || format!("helper {index} is not available, or helps twice"))?;
            let ascending = reads.windows(2).all(|pair| pair[0] < pair[1]) && reads.iter().all(|s| usize::from(*s) < alpha);
            ensure(ascending && !reads.is_empty(), || format!("helper {index} reads {reads:?}"))?;
            ensure(compute.cols() == reads.len() && compute.rows() > 0 && compute.is_valid(), || {
                format!("helper {index} computes {}×{} of {reads:?}", compute.rows(), compute.cols())
            })?;
        }
        Ok(())
    }

    /// Runs the recipe as a star (S_h, then R) and as a sum of shares, into dirty buffers.
    fn recipe_is_right(&mut self, ask: &Ask, recipe: &Recipe) -> Result<(), String> {
        let alpha = self.code.alpha();
        let shares = recipe.shares();
        for stripe in &self.stripes {
            let len = stripe.first().map_or(0, Vec::len);
            let reads = |at: usize| -> Vec<&[u8]> {
                let helper = &recipe.helpers[at];
                helper.reads.iter().map(|s| stripe[usize::from(helper.index) * alpha + usize::from(*s)].as_slice()).collect()
            };
            let mut sent = Vec::new();
            for (at, helper) in recipe.helpers.iter().enumerate() {
                let mut out = vec![vec![0xa5; len]; helper.compute.rows()];
                Combination::new(&helper.compute).apply(&reads(at), &mut slices(&mut out, len));
                sent.append(&mut out);
            }
            let sent: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
            let right: Vec<&[u8]> =
                ask.wanted.iter().map(|w| stripe[usize::from(w.index) * alpha + usize::from(w.sub_block)].as_slice()).collect();
            let wrong = |out: &[Vec<u8>]| out.iter().zip(&right).any(|(out, right)| out[..len] != **right);

            let longest = SUB_BLOCK_BYTES.iter().copied().max().unwrap_or(0);
            self.dirty.resize(self.dirty.len().max(right.len()), vec![0xff; longest]);
            let out = &mut self.dirty[..right.len()];
            Combination::factored(&recipe.combine).apply(&sent, &mut slices(out, len));
            ensure(!wrong(out), || format!("the recipe for {:?} from {:?} gives wrong bytes", ask.wanted, ask.available))?;

            let Some(shares) = &shares else { continue };
            out.iter_mut().for_each(|out| out.fill(0));
            for (at, share) in shares.iter().enumerate() {
                Combination::new(share).accumulate(&reads(at), &mut slices(out, len));
            }
            ensure(!wrong(out), || format!("the shares for {:?} from {:?} add up to wrong bytes", ask.wanted, ask.available))?;
        }
        Ok(())
    }
}

fn slices(buffers: &mut [Vec<u8>], len: usize) -> Vec<&mut [u8]> {
    buffers.iter_mut().map(|buffer| &mut buffer[..len]).collect()
}

/// A stripe of random data, coded one multiplication at a time.
fn encode(code: &dyn Code, len: usize, random: &mut Random) -> Vec<Vec<u8>> {
    let data: Vec<Vec<u8>> = (0..code.generator().cols()).map(|_| (0..len).map(|_| random.next() as u8).collect()).collect();
    let row = |row: usize| {
        let mut out = vec![0; len];
        for (_, col, coefficient) in code.generator().row(row) {
            for (out, byte) in out.iter_mut().zip(&data[*col as usize]) {
                *out ^= field::mul(*coefficient, *byte);
            }
        }
        out
    };
    (0..code.generator().rows()).map(row).collect()
}

fn permutations(of: &[u8]) -> Vec<Vec<u8>> {
    if of.len() <= 1 {
        return vec![of.to_vec()];
    }
    let with_first = |at: usize| {
        let mut rest = of.to_vec();
        let first = rest.remove(at);
        permutations(&rest).into_iter().map(move |tail| [&[first], tail.as_slice()].concat())
    };
    (0..of.len()).flat_map(with_first).collect()
}

fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(problem()) }
}

#[cfg(test)]
#[path = "conformance_tests.rs"]
mod tests;
