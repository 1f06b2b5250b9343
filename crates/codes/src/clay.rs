//! Clay codes: any k of k+m blocks suffice, and a single lost block is repaired from 1/(d−k+1) of each of d others,
//! which compute nothing: they read only what they send.
//!
//! Vajha, Ramkumar, Puranik, Kini, Lobo, Sasidharan, Kumar, Barg, Ye, Narayanamurthy, Hussain and Nandi, *Clay Codes: Moulding
//! MDS Codes to Yield an MSR Code* (FAST 2018).
//!
//! **Construction** (§3). q = d−k+1. The n = k+m blocks, with ν virtual ones of zeros between data and parity so that q divides
//! n+ν, stand on a grid: block g of n+ν at x = g mod q, y = ⌊g/q⌋, in t = (n+ν)/q sections y. A block has α = q^t sub-blocks, one
//! for each layer z = (z_0, …, z_{t−1}); as a number, z_0 is the most significant digit. Where `z_y ≠ x`, sub-block z of (x, y)
//! and sub-block z* = z(z_y → x) of (z_y, y) are partners. The blocks hold the coupled sub-blocks C; the uncoupled ones are
//!
//! ```text
//! U(x, y; z) = C(x, y; z)                                 if z_y = x
//!              C(x, y; z) + γ·C(z_y, y; z(z_y → x))       otherwise, with γ = 2
//! ```
//!
//! and in every layer U is a word of one Reed–Solomon code of k+ν data and m parity blocks (rs's Cauchy matrix). For a pair of
//! partners with C, U and C*, U*: `C = U + γC*`, `U = (1+γ²)C + γU*`, and `(1+γ²)C = U + γU*`.
//!
//! **Decoding** (§4; encoding is decoding without the parity blocks). With m blocks unknown, layers are taken in the order of their
//! intersection score, the number of unknown blocks with `z_y = x`. In a layer the U of a known block comes from C and C*; or, if its
//! partner is unknown, from C and U*, which a layer whose score is less by one has given. Then the Reed–Solomon code gives the U of
//! the unknown blocks. In the end pairs give C.
//!
//! **Repair** of block (x₀, y₀) (§5, and appendix A for d < n−1). Helpers send the layers with `z_{y₀} = x₀`, 1/q of all. In these layers
//! the U of all of section y₀ are unknown, and those of the n−1−d blocks that do not help: together m. Layers are taken as in decoding;
//! partners outside section y₀ lie in layers that are sent too. The block's sub-blocks of these layers are its U. The others are partners
//! of those that the rest of the section sends: `C(x₀, y₀; z*) = (U + C)/γ`. So all blocks of section y₀ must help; the others are chosen
//! freely. If they cannot, or if several blocks are lost, any k blocks decode.
//!
//! All maps use the U as temporaries, and are never one matrix. If only some sub-blocks are wanted, unneeded
//! temporaries and reads are dropped.

use crate::{
    Arguments, Ask, Code, Family, NotRecoverable, Recipe, SharedCode, SpecError, SubBlock,
    draft::{self, Situation},
};
use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
};
use weft_gf::{Factored, FactoredBuilder, Matrix, SparseMatrix, field};

/// The specs of these codes.
pub(crate) const FAMILY: Family = Family {
    name: "clay",
    usage: "clay(k,m) or clay(k,m,d=helpers), with m at least 2, k+m at most 20, and d from k+1 to k+m-1 (the default)",
    summary: "Clay: one lost block is repaired from 1/(d-k+1) of each of d others, which read no more than they send",
    advice: "Choose it if repair traffic is the bottleneck and disks handle short reads well. It has the overhead and tolerance \
            of `rs`, and a repair reads and sends the least possible. It needs long cells and much computation.",
    measured: &["clay(5,3,d=6)", "clay(4,2)", "clay(10,4)", "clay(10,4,d=12)"],
    build,
};

/// With more, a block could have more than 2,187 sub-blocks.
const BLOCKS_MAX: usize = 20;

/// γ, which couples partners. γ² must not be 1.
const GAMMA: u8 = 2;
/// 1/γ.
const GAMMA_INVERSE: u8 = inverse(GAMMA);
/// 1+γ².
const DETERMINANT: u8 = 1 ^ field::mul(GAMMA, GAMMA);

/// A Clay code.
#[derive(Debug)]
pub(crate) struct Clay {
    k: usize,
    m: usize,
    d: usize,
    grid: Grid,
    generator: OnceLock<SparseMatrix>,
}

impl Code for Clay {
    fn spec(&self) -> String {
        let Self { k, m, d, .. } = self;
        if *d == k + m - 1 { format!("clay({k},{m})") } else { format!("clay({k},{m},d={d})") }
    }

    fn k(&self) -> usize {
        self.k
    }

    fn m(&self) -> usize {
        self.m
    }

    fn alpha(&self) -> usize {
        self.grid.layers
    }

    fn generator(&self) -> &SparseMatrix {
        self.generator.get_or_init(|| {
            let parities = self.encode().flatten(usize::MAX).unwrap_or_else(|| unreachable!("no limit is set"));
            SparseMatrix::identity(self.k * self.alpha()).stack(&parities)
        })
    }

    fn tolerance(&self) -> usize {
        self.m
    }

    fn encode(&self) -> Factored {
        let parities: Vec<u8> = (self.k as u8..self.n() as u8).collect();
        let wanted: Vec<SubBlock> = parities.iter().flat_map(|index| self.whole(*index)).collect();
        self.decode(self.k, &parities, &wanted)
    }

    fn recipes(&self, ask: &Ask) -> Result<Vec<Recipe>, NotRecoverable> {
        let Situation { order, lost } = &Situation::of(self, ask)?;
        let mut maps = Vec::new();
        let repair = match lost[..] {
            [lost] => self.helpers(lost, order).map(|helpers| (lost, helpers)),
            _ => None,
        };
        // Repairing a whole block moves less than decoding it, unless many blocks are read anyway.
        let is_best = |lost: u8| {
            let sub_blocks: BTreeSet<u16> = ask.wanted.iter().map(|wanted| wanted.sub_block).collect();
            let is_alone = ask.wanted.iter().all(|wanted| wanted.index == lost);
            ask.read_anyway.is_empty() && is_alone && sub_blocks.len() == self.alpha()
        };
        if repair.as_ref().is_none_or(|(lost, _)| !is_best(*lost)) {
            let helpers = &order[..order.len().min(self.k)];
            let spared = (0..self.n() as u8).filter(|index| !helpers.contains(index));
            maps.push(self.decode(self.n(), &if lost.is_empty() { Vec::new() } else { spared.collect() }, &ask.wanted));
        }
        if let Some((lost, helpers)) = repair {
            maps.push(self.repair(lost, &helpers, &ask.wanted));
        }
        let recipes = maps.iter().map(|map| draft::recipe(order, self.n(), self.alpha(), &[], map));
        Ok(draft::cheapest_first(ask, recipes.collect()))
    }
}

impl Clay {
    fn new(k: usize, m: usize, d: usize) -> Self {
        Self { k, m, d, grid: Grid::new(k, m, d - k + 1), generator: OnceLock::new() }
    }

    fn whole(&self, index: u8) -> impl Iterator<Item = SubBlock> + use<> {
        (0..self.alpha() as u16).map(move |sub_block| SubBlock { index, sub_block })
    }

    /// d blocks that can repair one: the others of its section, and then the first ones of `order`.
    fn helpers(&self, lost: u8, order: &[u8]) -> Option<Vec<u8>> {
        let section = |index: u8| self.grid.node(index) / self.grid.q;
        let others = (0..self.n() as u8).filter(|index| *index != lost && section(*index) == section(lost));
        let mut helpers: Vec<u8> = others.collect();
        if !helpers.iter().all(|index| order.contains(index)) {
            return None;
        }
        let rest = order.iter().filter(|index| section(**index) != section(lost));
        helpers.extend(rest.take(self.d - helpers.len()));
        (helpers.len() == self.d).then_some(helpers)
    }

    /// The wanted sub-blocks, from the first `sources` blocks except those in `unknown`, which are m blocks or none.
    fn decode(&self, sources: usize, unknown: &[u8], wanted: &[SubBlock]) -> Factored {
        let grid = &self.grid;
        let mut uncoupling = Uncoupling::new(grid, sources);
        let unknown: Vec<usize> = unknown.iter().map(|index| grid.node(*index)).collect();
        if !unknown.is_empty() {
            uncoupling.run(&unknown, (0..grid.layers).collect());
        }
        let result = |wanted: &SubBlock| {
            let (node, layer) = (grid.node(wanted.index), usize::from(wanted.sub_block));
            if !unknown.contains(&node) {
                return sum([(grid.coupled(node, layer), 1)]);
            }
            let own = uncoupling.at(node, layer);
            match grid.partner(node, layer) {
                None => sum([(own, 1)]),
                Some((partner, at)) if unknown.contains(&partner) => {
                    let factor = inverse(DETERMINANT);
                    sum([(own, factor), (uncoupling.at(partner, at), field::mul(GAMMA, factor))])
                }
                Some((partner, at)) => sum([(own, 1), (grid.coupled(partner, at), GAMMA)]),
            }
        };
        let results: Vec<_> = wanted.iter().map(result).collect();
        uncoupling.finish(&results)
    }

    /// The wanted sub-blocks of one lost block and of others, from d helpers.
    fn repair(&self, lost: u8, helpers: &[u8], wanted: &[SubBlock]) -> Factored {
        let grid = &self.grid;
        let lost = grid.node(lost);
        let (x, y) = (lost % grid.q, lost / grid.q);
        let aloof = (0..self.n() as u8).filter(|index| !helpers.contains(index)).map(|index| grid.node(index));
        let section = y * grid.q..(y + 1) * grid.q;
        let unknown: Vec<usize> = section.clone().chain(aloof.filter(|node| !section.contains(node))).collect();
        let mut uncoupling = Uncoupling::new(grid, self.n());
        uncoupling.run(&unknown, (0..grid.layers).filter(|layer| grid.digit(*layer, y) == x).collect());
        let result = |wanted: &SubBlock| {
            let (node, layer) = (grid.node(wanted.index), usize::from(wanted.sub_block));
            match grid.partner(node, layer) {
                _ if node != lost => sum([(grid.coupled(node, layer), 1)]),
                None => sum([(uncoupling.at(lost, layer), 1)]),
                Some((partner, at)) => {
                    sum([(uncoupling.at(partner, at), GAMMA_INVERSE), (grid.coupled(partner, at), GAMMA_INVERSE)])
                }
            }
        };
        let results: Vec<_> = wanted.iter().map(result).collect();
        uncoupling.finish(&results)
    }
}

/// The grid of blocks, and which of their sub-blocks are partners. A node is a block or a virtual one.
#[derive(Debug)]
struct Grid {
    k: usize,
    q: usize,
    /// ν.
    virtual_blocks: usize,
    /// n+ν.
    nodes: usize,
    /// α.
    layers: usize,
    /// The weight of each digit y.
    weights: Vec<usize>,
    /// The rows of the layers' code: identity over Cauchy, n+ν × k+ν.
    layer_code: Matrix,
}

impl Grid {
    fn new(k: usize, m: usize, q: usize) -> Self {
        let nodes = (k + m).next_multiple_of(q);
        let (virtual_blocks, sections) = (nodes - k - m, nodes / q);
        let weights: Vec<usize> = (0..sections).rev().map(|exponent| q.pow(exponent as u32)).collect();
        let data = k + virtual_blocks;
        // A row is never a column here, so the inverse exists.
        let cauchy = |row: usize, col: usize| inverse((data + row) as u8 ^ col as u8);
        let layer_code = Matrix::identity(data).stack(&Matrix::from_fn(m, data, cauchy));
        Self { k, q, virtual_blocks, nodes, layers: q.pow(sections as u32), weights, layer_code }
    }

    fn node(&self, index: u8) -> usize {
        let index = usize::from(index);
        if index < self.k { index } else { index + self.virtual_blocks }
    }

    fn digit(&self, layer: usize, section: usize) -> usize {
        layer / self.weights[section] % self.q
    }

    /// The partner of a node's sub-block: its node and layer.
    fn partner(&self, node: usize, layer: usize) -> Option<(usize, usize)> {
        let (x, y) = (node % self.q, node / self.q);
        let digit = self.digit(layer, y);
        (digit != x).then(|| (y * self.q + digit, layer + x * self.weights[y] - digit * self.weights[y]))
    }

    /// C, in the columns of recipes: `index·α + layer`; `None`, for zero, if the block is virtual.
    fn coupled(&self, node: usize, layer: usize) -> Term {
        let index = match node.checked_sub(self.k) {
            None => node,
            Some(after) => self.k + after.checked_sub(self.virtual_blocks)?,
        };
        Some((index * self.layers + layer, 1))
    }
}

/// A column and its coefficient; or zero.
type Term = Option<(usize, u8)>;

/// The sum of some terms, each times its factor.
fn sum<const N: usize>(terms: [(Term, u8); N]) -> Vec<(usize, u8)> {
    terms.into_iter().filter_map(|(term, factor)| scaled(term, factor)).collect()
}

fn scaled(term: Term, factor: u8) -> Term {
    term.map(|(col, coefficient)| (col, field::mul(coefficient, factor)))
}

/// The known uncoupled sub-blocks.
struct Uncoupling<'a> {
    grid: &'a Grid,
    builder: FactoredBuilder,
    /// U of a node's layer, at node·α + layer.
    uncoupled: Vec<Term>,
}

impl<'a> Uncoupling<'a> {
    fn new(grid: &'a Grid, sources: usize) -> Self {
        let builder = FactoredBuilder::new(sources * grid.layers);
        Self { grid, builder, uncoupled: vec![None; grid.nodes * grid.layers] }
    }

    /// Uncouples these layers, in which the U of m nodes are unknown. The partners of the others must be in these
    /// layers too.
    fn run(&mut self, unknown: &[usize], mut layers: Vec<usize>) {
        let grid = self.grid;
        let known: Vec<usize> = (0..grid.nodes).filter(|node| !unknown.contains(node)).collect();
        let code = |nodes: &[usize]| grid.layer_code.select_rows(nodes);
        let inverse = code(&known).inverse().unwrap_or_else(|| unreachable!("any k+ν of a Cauchy code suffice"));
        let decode = code(unknown).times(&inverse);
        layers.sort_by_cached_key(|layer| unknown.iter().filter(|node| grid.partner(**node, *layer).is_none()).count());
        for layer in layers {
            let of_layer: Vec<Term> = known.iter().map(|node| self.uncouple(*node, layer, unknown)).collect();
            for (row, node) in unknown.iter().enumerate() {
                let terms = of_layer.iter().zip(decode.row(row)).filter_map(|(term, factor)| scaled(*term, *factor));
                let col = self.builder.temporary(terms.collect());
                self.uncoupled[node * grid.layers + layer] = Some((col, 1));
            }
        }
    }

    /// U of a known node.
    fn uncouple(&mut self, node: usize, layer: usize, unknown: &[usize]) -> Term {
        let grid = self.grid;
        let own = grid.coupled(node, layer);
        let Some((partner, at)) = grid.partner(node, layer) else { return own };
        let (own, other) = match unknown.contains(&partner) {
            true => (scaled(own, DETERMINANT), scaled(self.at(partner, at), GAMMA)),
            false => (own, scaled(grid.coupled(partner, at), GAMMA)),
        };
        match (own, other) {
            (Some(own), Some(other)) => Some((self.builder.temporary(vec![own, other]), 1)),
            (one, None) | (None, one) => one,
        }
    }

    fn at(&self, node: usize, layer: usize) -> Term {
        self.uncoupled[node * self.grid.layers + layer]
    }

    fn finish(self, results: &[Vec<(usize, u8)>]) -> Factored {
        self.builder.finish(results).unwrap_or_else(|| unreachable!("temporaries are defined before their use"))
    }
}

/// The inverse of a non-zero element.
const fn inverse(of: u8) -> u8 {
    match field::inv(of) {
        Some(inverse) => inverse,
        None => unreachable!(),
    }
}

fn build(arguments: &Arguments<'_>) -> Result<SharedCode, SpecError> {
    let [k, m] = arguments.numbers(FAMILY.usage, &["d"])?;
    let wrong = |problem: String| arguments.wrong(FAMILY.usage, problem);
    if k < 1 || m < 2 || k.saturating_add(m) > BLOCKS_MAX {
        return Err(wrong(format!(
            "k = {k} and m = {m} are invalid: k must be at least 1, m at least 2, and k+m at most {BLOCKS_MAX}"
        )));
    }
    let d = draft::helpers(arguments, FAMILY.usage, k + m - 1)?;
    if !(k + 1..k + m).contains(&d) {
        return Err(wrong(format!("d = {d} helpers is invalid: d must be from k+1 = {} to k+m-1 = {}", k + 1, k + m - 1)));
    }
    Ok(Arc::new(Clay::new(k, m, d)))
}

#[cfg(test)]
#[path = "clay_tests.rs"]
mod tests;
