//! The conformance suite for codes. One call tests a new code: `conformance::check(code)`.
//!
//! It tries all erasure patterns of up to m+1 blocks for codes of at most ten blocks, and a seeded sample for larger
//! codes: whole blocks in every order, and some sub-blocks, with any preference and any blocks read anyway.
//! Recoverability is judged by the rank of the surviving rows; correctness is judged by the bytes of a stripe that was
//! encoded one multiplication at a time.

use crate::{Ask, Code, Recipe, SubBlock, choose::moved, mds::combinations, parse, random::Random};
use std::collections::BTreeSet;
use weft_gf::{Combination, Factored, field};

/// All patterns are tried up to this many blocks.
const EXHAUSTIVE_BLOCKS_MAX: usize = 10;

/// Bytes of a sub-block: one, and two lengths without alignment.
const SUB_BLOCK_BYTES: [usize; 3] = [1, 37, 131];

/// The effort beyond one question for every pattern, in coefficients of recipes: a few seconds without optimisation.
const EFFORT_COEFFICIENTS: usize = 20_000_000;

/// The approximate number of questions for each pattern.
const ASKS_PER_PATTERN: usize = 12;

/// How a code violates the contract.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {problem}")]
pub struct Violation {
    /// The code's spec.
    pub code: String,
    /// The violation.
    pub problem: String,
}

/// Runs all tests: the registry must know the code by its spec, and [`check_recipes`] must pass.
pub fn check(code: &dyn Code) -> Result<(), Violation> {
    let violation = |problem: String| Violation { code: code.spec(), problem };
    let read_back = parse(&code.spec()).map_err(|error| violation(error.to_string()))?;
    if (read_back.spec(), read_back.generator()) != (code.spec(), code.generator()) {
        return Err(violation("its spec parses as another code".to_owned()));
    }
    check_recipes(code)
}

/// Checks that the code is consistent, that it encodes according to its generator, and that its recipes give the right
/// bytes for everything recoverable and none for the rest.
pub fn check_recipes(code: &dyn Code) -> Result<(), Violation> {
    let mut suite = Suite::new(code);
    let outcome = suite.shape().and_then(|()| suite.encoding()).and_then(|()| suite.patterns());
    outcome.map_err(|problem| Violation { code: code.spec(), problem })
}

struct Suite<'a> {
    code: &'a dyn Code,
    random: Random,
    /// Stripes of different sizes: sub-block `index·α + s` of each.
    stripes: Vec<Vec<Vec<u8>>>,
    /// Buffers for results; they are never cleared, like those of an agent.
    dirty: Vec<Vec<u8>>,
    /// One in this many optional questions is asked: 1 except for codes with very many sub-blocks.
    one_in: usize,
}

impl<'a> Suite<'a> {
    fn new(code: &'a dyn Code) -> Self {
        let mut random = Random(0x5eed);
        let stripes = SUB_BLOCK_BYTES.iter().map(|len| encode(code, *len, &mut random)).collect();
        Self { code, random, stripes, dirty: Vec::new(), one_in: 1 }
    }

    /// Sizes, and the identity in the first k·α rows.
    fn shape(&self) -> Result<(), String> {
        let (k, n, alpha) = (self.code.k(), self.code.n(), self.code.alpha());
        let generator = self.code.generator();
        ensure(k >= 1 && n > k && n <= 255 && alpha >= 1, || format!("k = {k}, n = {n}, α = {alpha} do not form a code"))?;
        ensure((generator.rows(), generator.cols()) == (n * alpha, k * alpha) && generator.is_valid(), || {
            format!("the generator is {}×{}, or not valid", generator.rows(), generator.cols())
        })?;
        let dimension = self.code.dimension();
        ensure((1..=k).contains(&dimension), || format!("its dimension is {dimension} with {k} data blocks"))?;
        let systematic = |row: usize| match row < dimension * alpha {
            true => generator.row(row) == [(row as u32, row as u32, 1)],
            false => generator.row(row).is_empty(),
        };
        ensure((0..k * alpha).all(systematic), || "it is not systematic".to_owned())?;
        let tolerance = self.code.tolerance();
        ensure(tolerance <= self.code.m(), || format!("it tolerates {tolerance} losses with {} parity blocks", self.code.m()))
    }

    /// `encode` must give the parity blocks of the generator.
    fn encoding(&mut self) -> Result<(), String> {
        let (data, encode) = (self.code.k() * self.code.alpha(), self.code.encode());
        let sizes = (encode.rows(), encode.cols());
        ensure(sizes == (self.code.m() * self.code.alpha(), data), || format!("it encodes by a {}×{} map", sizes.0, sizes.1))?;
        for at in 0..self.stripes.len() {
            let sources: Vec<&[u8]> = self.stripes[at][..data].iter().map(Vec::as_slice).collect();
            let right: Vec<&[u8]> = self.stripes[at][data..].iter().map(Vec::as_slice).collect();
            let same = run(&encode, &sources, &mut self.dirty, &right);
            ensure(same, || "it does not encode according to its generator".to_owned())?;
        }
        Ok(())
    }

    /// Every pattern or a sample; if all were tried, the tolerance must be exact.
    fn patterns(&mut self) -> Result<(), String> {
        let (n, most, tolerance) = (self.code.stored().len(), self.code.m() + 1, self.code.tolerance());
        let patterns = self.choose_patterns(most);
        let coefficients = self.coefficients() * patterns.len() * ASKS_PER_PATTERN;
        self.one_in = coefficients.div_ceil(EFFORT_COEFFICIENTS).max(1);
        let mut refused_at = usize::MAX;
        for pattern in patterns {
            let recoverable = self.is_recoverable(&pattern, &pattern);
            if !recoverable {
                refused_at = refused_at.min(pattern.len());
            }
            ensure(recoverable || pattern.len() > tolerance, || {
                format!("it declares a tolerance of {tolerance}, but {pattern:?} cannot be recovered")
            })?;
            self.pattern(&pattern, recoverable)?;
        }
        // A shortened code may not need the blocks that are essential for the full code.
        let is_short = self.code.dimension() < self.code.k();
        let exact = n > EXHAUSTIVE_BLOCKS_MAX || is_short || refused_at == tolerance + 1;
        ensure(exact, || format!("it tolerates more than its declared {tolerance}"))
    }

    /// The coefficients of the recipe for as many blocks as there are parity blocks.
    fn coefficients(&self) -> usize {
        let alpha = self.code.alpha();
        self.code.m() * alpha * self.code.k() * alpha
    }

    fn choose_patterns(&mut self, most: usize) -> Vec<Vec<u8>> {
        let blocks = self.code.stored();
        let (n, most) = (blocks.len(), most.min(blocks.len()));
        let as_blocks = |pattern: Vec<usize>| pattern.into_iter().map(|at| blocks[at]).collect();
        if n <= EXHAUSTIVE_BLOCKS_MAX {
            return (1..=most).flat_map(|lost| combinations(n, lost)).map(as_blocks).collect();
        }
        let samples = (EFFORT_COEFFICIENTS / (20 * self.coefficients())).clamp(2, 40);
        let mut patterns: Vec<Vec<u8>> = blocks.iter().take(4 * samples).map(|index| vec![*index]).collect();
        for lost in [2, 3, most / 2, most - 1, most] {
            for _ in 0..samples {
                let mut all = blocks.clone();
                self.random.shuffle(&mut all);
                all.truncate(lost.clamp(1, most));
                all.sort_unstable();
                patterns.push(all);
            }
        }
        patterns
    }

    /// Whether the wanted lost blocks are combinations of the others: whether their rows are combinations of the
    /// remaining parity rows, in the columns of the lost data.
    fn is_recoverable(&self, lost: &[u8], wanted: &[u8]) -> bool {
        let (k, n, alpha) = (self.code.k(), self.code.n(), self.code.alpha());
        let rows_of = |index: usize| index * alpha..(index + 1) * alpha;
        let is_lost = |index: &usize| lost.contains(&(*index as u8));
        let unknown: Vec<usize> = (0..k).filter(is_lost).flat_map(rows_of).collect();
        let left: Vec<usize> = (k..n).filter(|index| !is_lost(index)).flat_map(rows_of).collect();
        if wanted.len() == lost.len() && left.len() < unknown.len() {
            return false;
        }
        let rank = |rows: &[usize]| self.code.generator().select_rows(rows).select_cols(&unknown).to_dense().rank();
        let wanted: Vec<usize> = wanted.iter().flat_map(|index| rows_of(usize::from(*index))).collect();
        let known = rank(&left);
        known == unknown.len() || known == rank(&[left, wanted].concat())
    }

    /// The pattern's blocks, wanted together in every order (or some orders, if there are many), each alone, and parts
    /// of them.
    fn pattern(&mut self, pattern: &[u8], recoverable: bool) -> Result<(), String> {
        let available: Vec<u8> = self.code.stored().into_iter().filter(|index| !pattern.contains(index)).collect();
        for (at, order) in self.orders(pattern).into_iter().enumerate() {
            if at == 0 || self.now() {
                let mut ask = self.ask(&order, &available);
                self.random.shuffle(&mut ask.available);
                self.answer(&ask, recoverable)?;
            }
        }
        for index in pattern {
            if pattern.len() > 1 && self.now() {
                let recoverable = recoverable || self.is_recoverable(pattern, &[*index]);
                let mut ask = self.ask(&[*index], &available);
                ask.read_anyway = available.iter().copied().take(self.code.dimension() / 2).collect();
                self.answer(&ask, recoverable)?;
            }
        }
        if recoverable && !available.is_empty() && self.now() {
            // A wanted block may be available, anywhere among the others: it is read.
            let mut wanted = pattern.to_vec();
            wanted.push(available[self.random.below(available.len())]);
            self.random.shuffle(&mut wanted);
            self.answer(&self.ask(&wanted, &available), true)?;
        }
        if recoverable && !available.is_empty() && self.now() {
            let ask = self.partial_ask(pattern, &available);
            self.answer(&ask, true)?;
        }
        Ok(())
    }

    /// Whether an optional question is asked.
    fn now(&mut self) -> bool {
        self.random.below(self.one_in) == 0
    }

    fn ask(&self, wanted: &[u8], available: &[u8]) -> Ask {
        let of = |index: &u8| {
            let index = *index;
            (0..self.code.alpha()).map(move |s| SubBlock { index, sub_block: s as u16 })
        };
        Ask { wanted: wanted.iter().flat_map(of).collect(), available: available.to_vec(), read_anyway: Vec::new() }
    }

    /// Some sub-blocks of the pattern's blocks, and possibly of an available one, in any order, with any blocks read
    /// anyway.
    fn partial_ask(&mut self, pattern: &[u8], available: &[u8]) -> Ask {
        let there = available[self.random.below(available.len())];
        let mut ask = self.ask(&[pattern, &[there]].concat(), available);
        self.random.shuffle(&mut ask.wanted);
        ask.wanted.truncate(1 + self.random.below(ask.wanted.len()));
        self.random.shuffle(&mut ask.available);
        ask.read_anyway = ask.available[..self.random.below(available.len() + 1)].to_vec();
        self.random.shuffle(&mut ask.available);
        ask
    }

    fn orders(&mut self, pattern: &[u8]) -> Vec<Vec<u8>> {
        if pattern.len() <= 3 {
            return permutations(pattern);
        }
        let mut shuffled = pattern.to_vec();
        self.random.shuffle(&mut shuffled);
        vec![shuffled, pattern.iter().rev().copied().collect(), pattern.to_vec()]
    }

    /// Expects correct recipes, the first of which moves least; or a refusal that names the unrecoverable blocks.
    fn answer(&mut self, ask: &Ask, recoverable: bool) -> Result<(), String> {
        let lost: BTreeSet<u8> = ask.wanted.iter().map(|at| at.index).filter(|index| !ask.available.contains(index)).collect();
        let recipes = match self.code.recipes(ask) {
            Ok(recipes) => recipes,
            Err(refusal) => {
                ensure(!recoverable, || format!("it refuses {lost:?} from {:?}, which can be recovered", ask.available))?;
                let mut available = ask.available.clone();
                available.sort_unstable();
                let named = refusal.lost.iter().eq(&lost) && refusal.available == available;
                return ensure(named, || format!("its refusal of {lost:?} does not name it: {refusal}"));
            }
        };
        ensure(recoverable, || format!("it gives a recipe for {lost:?} from {:?}, which cannot be recovered", ask.available))?;
        ensure(!recipes.is_empty(), || "it gives no recipe and no refusal".to_owned())?;
        for recipe in &recipes {
            self.recipe_is_well_formed(ask, recipe)?;
            self.recipe_is_right(ask, recipe)?;
        }
        let least = recipes.iter().map(|recipe| moved(ask, recipe)).min();
        ensure(least == Some(moved(ask, &recipes[0])), || format!("another recipe for {lost:?} moves less than the first"))?;
        let all = self.code.k() * self.code.alpha();
        let extra = moved(ask, &recipes[0]).0;
        ensure(extra <= all, || format!("{extra} sub-blocks are sent for {lost:?}, although all data has {all}"))
    }

    fn recipe_is_well_formed(&self, ask: &Ask, recipe: &Recipe) -> Result<(), String> {
        let alpha = self.code.alpha();
        let sent = recipe.sub_blocks_sent();
        let combine = &recipe.combine;
        ensure((combine.rows(), combine.cols()) == (ask.wanted.len(), sent), || {
            format!("R is {}×{} for {} wanted and {sent} sent", combine.rows(), combine.cols(), ask.wanted.len())
        })?;
        let used: BTreeSet<u32> = combine.steps().terms().iter().map(|term| term.1).collect();
        // A block of zeros has one helper, whose contribution is empty.
        let unused = (0..sent as u32).find(|col| !used.contains(col) && (sent > 1 || !used.is_empty()));
        ensure(unused.is_none(), || format!("the sent sub-blocks {unused:?} are not needed"))?;
        for (at, helper) in recipe.helpers.iter().enumerate() {
            let (index, reads, compute) = (helper.index, &helper.reads, &helper.compute);
            let twice = recipe.helpers[..at].iter().any(|earlier| earlier.index == index);
            ensure(!twice && ask.available.contains(&index), || format!("helper {index} is not available or occurs twice"))?;
            let ascending = reads.windows(2).all(|pair| pair[0] < pair[1]) && reads.iter().all(|s| usize::from(*s) < alpha);
            ensure(ascending && !reads.is_empty(), || format!("helper {index} reads {reads:?}"))?;
            ensure(compute.cols() == reads.len() && compute.rows() > 0 && compute.is_valid(), || {
                format!("helper {index} computes {}×{} of {reads:?}", compute.rows(), compute.cols())
            })?;
            let used: BTreeSet<u32> = compute.terms().iter().map(|term| term.1).collect();
            ensure(used.len() == reads.len(), || format!("helper {index} reads {reads:?}, but does not need all of it"))?;
        }
        Ok(())
    }

    /// Runs the recipe as a star (S_h, then R) and as a sum of shares, into dirty buffers, and counts the bytes read
    /// and sent.
    fn recipe_is_right(&mut self, ask: &Ask, recipe: &Recipe) -> Result<(), String> {
        let alpha = self.code.alpha();
        let stripe = &self.stripes[self.random.below(SUB_BLOCK_BYTES.len())];
        let row = |index: u8, sub_block: u16| stripe[usize::from(index) * alpha + usize::from(sub_block)].as_slice();
        let len = stripe.first().map_or(0, Vec::len);
        let mut sent: Vec<Vec<u8>> = Vec::new();
        let mut bytes_read = 0;
        for helper in &recipe.helpers {
            let reads: Vec<&[u8]> = helper.reads.iter().map(|s| row(helper.index, *s)).collect();
            bytes_read += reads.iter().map(|read| read.len()).sum::<usize>();
            let mut out = vec![vec![0xa5; len]; helper.compute.rows()];
            Combination::new(&helper.compute).apply(&reads, &mut slices(&mut out, len));
            sent.append(&mut out);
        }
        let bytes_sent: usize = sent.iter().map(Vec::len).sum();
        ensure((bytes_read, bytes_sent) == (recipe.sub_blocks_read() * len, recipe.sub_blocks_sent() * len), || {
            format!("a recipe reads {bytes_read} and sends {bytes_sent} bytes, unlike its declared cost")
        })?;
        let sent: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
        let right: Vec<&[u8]> = ask.wanted.iter().map(|wanted| row(wanted.index, wanted.sub_block)).collect();
        let same = run(&recipe.combine, &sent, &mut self.dirty, &right);
        ensure(same, || format!("the recipe for {:?} from {:?} gives wrong bytes", ask.wanted, ask.available))?;

        let Some(shares) = recipe.shares() else { return Ok(()) };
        let out = &mut self.dirty[..right.len()];
        out.iter_mut().for_each(|out| out.fill(0));
        for (helper, share) in recipe.helpers.iter().zip(&shares) {
            let reads: Vec<&[u8]> = helper.reads.iter().map(|s| row(helper.index, *s)).collect();
            Combination::new(share).accumulate(&reads, &mut slices(out, len));
        }
        let same = out.iter().zip(&right).all(|(out, right)| out[..len] == **right);
        ensure(same, || format!("the shares for {:?} from {:?} add up to wrong bytes", ask.wanted, ask.available))
    }
}

/// Whether the map gives the right result, in buffers with old content.
fn run(map: &Factored, sources: &[&[u8]], dirty: &mut Vec<Vec<u8>>, right: &[&[u8]]) -> bool {
    let longest = SUB_BLOCK_BYTES.iter().copied().max().unwrap_or(0);
    dirty.resize(dirty.len().max(right.len()), vec![0xff; longest]);
    let (out, len) = (&mut dirty[..right.len()], right.first().map_or(0, |right| right.len()));
    Combination::factored(map).apply(sources, &mut slices(out, len));
    out.iter().zip(right).all(|(out, right)| out[..len] == **right)
}

fn slices(buffers: &mut [Vec<u8>], len: usize) -> Vec<&mut [u8]> {
    buffers.iter_mut().map(|buffer| &mut buffer[..len]).collect()
}

/// A stripe of random data, encoded one multiplication at a time.
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
