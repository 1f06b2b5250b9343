//! Measures every code: encoding, decoding as many lost blocks as it tolerates, and rebuilding one block.
//!
//! All runs use the same stripe of one cell a block, so a stripe that fits into the caches stays there. The references take turns
//! in the same rounds: rs(10,4) with the same cell by weft and by ISA-L, and a copy and a sum of two buffers of the size of the code's
//! working set.

use crate::{
    KIB, MIB, TURN_BYTES,
    arena::Arena,
    contestants::{Contestant, Encoder, Job, xor},
    median,
    subject::{Subject, Task},
};
use serde::Serialize;
use std::{error::Error, hint::black_box, time::Instant};

/// The code that all others are compared with.
const REFERENCE: &str = "rs(10,4)";

/// Bytes of a cell; larger if a code's sub-blocks would be too short.
pub const CELL_LENS: [usize; 2] = [64 * KIB, MIB];

/// A sub-block is at least a page.
const SUB_BLOCK_BYTES_MIN: usize = 4 * KIB;

/// Sub-blocks are whole cache lines.
const LINE_BYTES: usize = 64;

/// Figures in GiB/s: of the data for encoding and decoding, of the rebuilt block for repair.
#[derive(Serialize, Clone, Copy)]
pub struct Speeds {
    pub encode: f64,
    /// The first blocks are lost, as many as the code tolerates.
    pub decode: f64,
    /// Block 0 is rebuilt by the code's first recipe; includes the helpers' work and the combination.
    pub repair: f64,
}

/// The number of sums of two sub-blocks, for work that consists of sums only.
#[derive(Serialize)]
pub struct Xors {
    pub encode: usize,
    /// The ratio of the encoding time to the time of as many sums at the speed of `xor`.
    pub encode_ratio: f64,
    pub repair: usize,
    pub repair_ratio: f64,
}

#[derive(Serialize)]
pub struct CodeRow {
    pub spec: String,
    pub alpha: usize,
    pub cell_len: usize,
    pub speeds: Speeds,
    /// The reference by weft, with the same cell and in the same rounds.
    pub rs_10_4: Speeds,
    /// Encoding of the reference by ISA-L.
    pub isal_rs_10_4: f64,
    /// Bytes copied, and bytes of sums of two buffers; buffers of the size of the code's working set.
    pub memcpy: f64,
    pub xor: f64,
    pub xors: Option<Xors>,
}

/// The contestants of a row.
#[derive(Clone, Copy)]
enum Turn {
    Own(Task),
    Rs(Task),
    Isal,
    Memcpy,
    Xor,
}

const TURNS: [Turn; 9] = [
    Turn::Own(Task::Encode),
    Turn::Own(Task::Decode),
    Turn::Own(Task::Repair),
    Turn::Rs(Task::Encode),
    Turn::Rs(Task::Decode),
    Turn::Rs(Task::Repair),
    Turn::Isal,
    Turn::Memcpy,
    Turn::Xor,
];

/// The subjects and buffers of a row.
struct Bout {
    own: Subject,
    rs: Subject,
    isal: Encoder,
    isal_arena: Arena,
    copied: Arena,
    summed: Arena,
}

/// The measured codes: the sizes that the file of each family lists.
pub fn specs() -> impl Iterator<Item = &'static str> {
    weft_codes::FAMILIES.iter().flat_map(|family| family.measured).copied()
}

/// The cell lengths for a code: [`CELL_LENS`], enlarged for sub-blocks of at least a page and of whole cache lines.
pub fn cell_lens(spec: &str) -> Result<Vec<usize>, Box<dyn Error>> {
    let alpha = weft_codes::parse(spec)?.alpha();
    let mut lens = CELL_LENS.map(|said| said.max(alpha * SUB_BLOCK_BYTES_MIN).next_multiple_of(alpha * LINE_BYTES)).to_vec();
    lens.dedup();
    Ok(lens)
}

/// One row: all contestants take turns, round by round.
pub fn measure(spec: &str, cell_len: usize, rounds: usize) -> Result<CodeRow, Box<dyn Error>> {
    let mut bout = Bout::new(spec, cell_len)?;
    let mut seconds = TURNS.map(|_| Vec::with_capacity(rounds));
    for _ in 0..rounds {
        for (turn, seconds) in TURNS.into_iter().zip(&mut seconds) {
            let repeats = (TURN_BYTES / bout.touched(turn)).max(1);
            // An untimed run refills the caches after the previous contestant.
            bout.run(turn);
            let start = Instant::now();
            (0..repeats).for_each(|_| bout.run(turn));
            seconds.push(start.elapsed().as_secs_f64() / repeats as f64);
        }
    }
    let mut seconds = seconds.into_iter().map(median);
    let seconds: [f64; TURNS.len()] = std::array::from_fn(|_| seconds.next().unwrap_or(f64::NAN));
    Ok(bout.row(seconds))
}

impl Bout {
    fn new(spec: &str, cell_len: usize) -> Result<Self, Box<dyn Error>> {
        let (own, rs) = (Subject::new(spec, cell_len)?, Subject::new(REFERENCE, cell_len.next_multiple_of(LINE_BYTES))?);
        let isal_arena = Arena::for_blocks(rs.code.n(), rs.cell_len);
        let isal = Encoder::new(Job::encode(rs.code.k(), rs.code.m()));
        let working_set = own.code.n() * own.cell_len;
        let [copied, summed] = [2, 3].map(|parts| Arena::for_blocks(parts, working_set / parts));
        Ok(Self { own, rs, isal, isal_arena, copied, summed })
    }

    /// The bytes that a turn's figure is based on.
    fn counted(&self, turn: Turn) -> usize {
        let of = |subject: &Subject, task: Task| if task == Task::Repair { subject.cell_len } else { subject.data_len() };
        match turn {
            Turn::Own(task) => of(&self.own, task),
            Turn::Rs(task) => of(&self.rs, task),
            Turn::Isal => self.rs.data_len(),
            Turn::Memcpy => self.part_len(2),
            Turn::Xor => self.part_len(3),
        }
    }

    /// The approximate number of bytes that a turn touches: turns are so short that the scheduler seldom interrupts them.
    fn touched(&self, turn: Turn) -> usize {
        match turn {
            Turn::Own(_) => self.own.data_len(),
            Turn::Rs(_) | Turn::Isal => self.rs.data_len(),
            Turn::Memcpy | Turn::Xor => self.counted(turn),
        }
    }

    /// The length of one of `parts` parts of the code's working set.
    fn part_len(&self, parts: usize) -> usize {
        self.own.code.n() * self.own.cell_len / parts
    }

    fn run(&mut self, turn: Turn) {
        let (half, third) = (self.part_len(2), self.part_len(3));
        match turn {
            Turn::Own(task) => self.own.run(task),
            Turn::Rs(task) => self.rs.run(task),
            Turn::Isal => {
                let (k, m) = (self.rs.code.k(), self.rs.code.m());
                for mut stripe in self.isal_arena.stripes(k, m, self.rs.cell_len, 1) {
                    self.isal.run(Contestant::IsaL, black_box(&mut stripe));
                }
            }
            Turn::Memcpy => {
                if let [from, to, ..] = &mut self.copied.blocks(half)[..] {
                    black_box(to).copy_from_slice(black_box(from));
                }
            }
            Turn::Xor => {
                if let [a, b, sum, ..] = &mut self.summed.blocks(third)[..] {
                    xor(black_box(a), black_box(b), black_box(sum));
                }
            }
        }
    }

    /// A row from the seconds of the turns, in the order of [`TURNS`].
    fn row(&self, seconds: [f64; TURNS.len()]) -> CodeRow {
        let at = |place: usize| self.counted(TURNS[place]) as f64 / (1u64 << 30) as f64 / seconds[place];
        let speeds = |first: usize| Speeds { encode: at(first), decode: at(first + 1), repair: at(first + 2) };
        let Subject { code, cell_len, encode, repair, .. } = &self.own;
        let sub_gib = (*cell_len / code.alpha()) as f64 / (1u64 << 30) as f64;
        let ratio = |seconds: f64, sums: usize| seconds / (sums as f64 * sub_gib / at(8));
        let xors = encode.xors.zip(repair.xors).filter(|(encode, repair)| *encode > 0 && *repair > 0).map(|(encode, repair)| {
            Xors { encode, encode_ratio: ratio(seconds[0], encode), repair, repair_ratio: ratio(seconds[2], repair) }
        });
        CodeRow {
            spec: code.spec(),
            alpha: code.alpha(),
            cell_len: *cell_len,
            speeds: speeds(0),
            rs_10_4: speeds(3),
            isal_rs_10_4: at(6),
            memcpy: at(7),
            xor: at(8),
            xors,
        }
    }
}
