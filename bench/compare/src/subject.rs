//! A prepared code: encodes, decodes and rebuilds blocks of one stripe, by the maps and recipes that a cluster runs.

use crate::arena::Arena;
use std::{error::Error, ops::Range};
use weft_codes::{Ask, Code, Recipe, SharedCode, SubBlock};
use weft_gf::{Combination, Kernel, SparseMatrix};

/// A code with a stripe of one cell a block.
pub struct Subject {
    pub code: SharedCode,
    pub cell_len: usize,
    /// Computes the parity blocks from the data.
    pub encode: Work,
    /// Computes the first blocks, as many as may be lost, from the others.
    pub decode: Work,
    /// Computes block 0 from the others.
    pub repair: Work,
    /// The stripe, followed by room for the results and for the helpers' sub-blocks.
    arena: Arena,
}

/// The computation of blocks from others: first the helpers' part, then the combination.
pub struct Work {
    helpers: Vec<Helper>,
    inputs: Vec<Input>,
    combine: Combination,
    /// The computed blocks.
    blocks: Vec<usize>,
    /// The total number of sums of two sub-blocks, if the work consists of sums only.
    pub xors: Option<usize>,
}

/// A helper that does not send exactly what it reads.
struct Helper {
    reads: Vec<Place>,
    compute: Combination,
    /// The rows of the helpers' room that it sends.
    sends: Range<usize>,
}

/// The place of a sub-block: its block, and its number in the block.
type Place = (usize, usize);

enum Input {
    Read(Place),
    Sent(usize),
}

/// The work that a subject can do.
#[derive(Clone, Copy, PartialEq)]
pub enum Task {
    Encode,
    Decode,
    Repair,
}

impl Subject {
    /// Prepares a stripe of bytes that do not repeat, with the oracle's parity, and checks all work against it.
    pub fn new(spec: &str, cell_len: usize) -> Result<Self, Box<dyn Error>> {
        let code = weft_codes::parse(spec)?;
        let (encode, decode) = (Work::encode(code.as_ref()), Work::recover(code.as_ref(), code.tolerance())?);
        let repair = Work::recover(code.as_ref(), 1)?;
        let spare = code.m().max(code.tolerance()) + decode.sent().max(repair.sent()).div_ceil(code.alpha());
        let arena = Arena::for_blocks(code.n() + spare, cell_len);
        let mut subject = Self { code, cell_len, encode, decode, repair, arena };
        subject.write_parity();
        subject.check()?;
        Ok(subject)
    }

    /// The bytes of the stripe's data.
    pub fn data_len(&self) -> usize {
        self.code.k() * self.cell_len
    }

    pub fn run(&mut self, task: Task) {
        let Self { code, cell_len, encode, decode, repair, arena } = self;
        let work = match task {
            Task::Encode => encode,
            Task::Decode => decode,
            Task::Repair => repair,
        };
        let mut blocks = arena.blocks(*cell_len);
        let (stripe, spare) = blocks.split_at_mut(code.n());
        work.run(stripe, spare, *cell_len / code.alpha());
    }

    /// Computes the parity blocks from the generator's rows, with the simplest kernel that is not too slow.
    fn write_parity(&mut self) {
        let (code, sub_len) = (&self.code, self.cell_len / self.code.alpha());
        let parity: Vec<usize> = (code.k() * code.alpha()..code.n() * code.alpha()).collect();
        let oracle = Combination::with_kernel(Kernel::Scalar, &code.generator().select_rows(&parity));
        let mut blocks = self.arena.blocks(self.cell_len);
        let (data, rest) = blocks.split_at_mut(code.k());
        let sources: Vec<&[u8]> = data.iter().flat_map(|block| block.chunks_exact(sub_len)).collect();
        let mut out: Vec<&mut [u8]> = rest[..code.m()].iter_mut().flat_map(|block| block.chunks_exact_mut(sub_len)).collect();
        oracle.apply(&sources, &mut out);
    }

    fn check(&mut self) -> Result<(), String> {
        for (task, what) in [(Task::Encode, "encodes"), (Task::Decode, "decodes"), (Task::Repair, "rebuilds")] {
            self.arena.blocks(self.cell_len)[self.code.n()..].iter_mut().for_each(|block| block.fill(0xa5));
            self.run(task);
            let wanted = match task {
                Task::Encode => &self.encode.blocks,
                Task::Decode => &self.decode.blocks,
                Task::Repair => &self.repair.blocks,
            };
            let blocks = self.arena.blocks(self.cell_len);
            if wanted.iter().zip(&blocks[self.code.n()..]).any(|(index, found)| blocks[*index] != *found) {
                return Err(format!("{} {what} other bytes than the oracle, cell {}", self.code.spec(), self.cell_len));
            }
        }
        Ok(())
    }
}

impl Work {
    fn encode(code: &dyn Code) -> Self {
        let map = code.encode();
        let inputs = (0..code.k()).flat_map(|block| (0..code.alpha()).map(move |s| Input::Read((block, s)))).collect();
        let blocks = (code.k()..code.n()).collect();
        Self { helpers: Vec::new(), inputs, combine: Combination::factored(&map), blocks, xors: xors(map.steps()) }
    }

    /// The recovery of the first `lost` blocks from all others, by the code's first recipe.
    fn recover(code: &dyn Code, lost: usize) -> Result<Self, Box<dyn Error>> {
        let sub_block = |index, s| SubBlock { index: index as u8, sub_block: s as u16 };
        let wanted = (0..lost).flat_map(|index| (0..code.alpha()).map(move |s| sub_block(index, s))).collect();
        let available = (lost..code.n()).map(|index| index as u8).collect();
        let recipes = code.recipes(&Ask { wanted, available, read_anyway: Vec::new() })?;
        let recipe = recipes.first().ok_or("a code without a recipe")?;
        Ok(Self::of(recipe, (0..lost).collect()))
    }

    fn of(recipe: &Recipe, blocks: Vec<usize>) -> Self {
        let (mut helpers, mut inputs, mut sent) = (Vec::new(), Vec::new(), 0);
        let mut sums = xors(recipe.combine.steps());
        for helper in &recipe.helpers {
            let reads: Vec<Place> = helper.reads.iter().map(|s| (usize::from(helper.index), usize::from(*s))).collect();
            if helper.compute == SparseMatrix::identity(reads.len()) {
                inputs.extend(reads.into_iter().map(Input::Read));
                continue;
            }
            let sends = sent..sent + helper.compute.rows();
            sent = sends.end;
            inputs.extend(sends.clone().map(Input::Sent));
            sums = sums.zip(xors(&helper.compute)).map(|(all, own)| all + own);
            helpers.push(Helper { reads, compute: Combination::new(&helper.compute), sends });
        }
        Self { helpers, inputs, combine: Combination::factored(&recipe.combine), blocks, xors: sums }
    }

    /// The number of sub-blocks that helpers compute.
    fn sent(&self) -> usize {
        self.helpers.last().map_or(0, |helper| helper.sends.end)
    }

    /// Results go to the first spare blocks, the helpers' sub-blocks to the last ones.
    fn run(&self, stripe: &[&mut [u8]], spare: &mut [&mut [u8]], sub_len: usize) {
        let (out, room) = spare.split_at_mut(self.blocks.len());
        let read = |(block, s): Place| &stripe[block][s * sub_len..(s + 1) * sub_len];
        let mut room = room.iter_mut().rev().flat_map(|block| block.chunks_exact_mut(sub_len));
        let mut sent: Vec<&[u8]> = Vec::with_capacity(self.sent());
        for helper in &self.helpers {
            let sources: Vec<&[u8]> = helper.reads.iter().map(|place| read(*place)).collect();
            let mut rows: Vec<&mut [u8]> = room.by_ref().take(helper.sends.len()).collect();
            helper.compute.apply(&sources, &mut rows);
            sent.extend(rows.into_iter().map(|row| &*row));
        }
        let input = |input: &Input| match input {
            Input::Read(place) => read(*place),
            Input::Sent(row) => sent[*row],
        };
        let sources: Vec<&[u8]> = self.inputs.iter().map(input).collect();
        let mut out: Vec<&mut [u8]> = out.iter_mut().flat_map(|block| block.chunks_exact_mut(sub_len)).collect();
        self.combine.apply(&sources, &mut out);
    }
}

/// The number of sums of two in a map without products: in each row, one less than its terms.
fn xors(map: &SparseMatrix) -> Option<usize> {
    let sums = (0..map.rows()).map(|row| map.row(row).len().saturating_sub(1)).sum();
    map.terms().iter().all(|term| term.2 == 1).then_some(sums)
}
