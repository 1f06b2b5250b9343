//! The compared jobs and the contestants.

use crate::arena::Stripe;
use erasure_isa_l_sys::{ec_encode_data, ec_init_tables};
use std::{hint::black_box, ptr};
use weft_gf::{Combination, Kernel, Matrix, SparseMatrix, field};

/// The maximum number of data blocks, and of parity blocks, of a job.
const BLOCKS_MAX: usize = 12;

/// A matrix to apply.
pub struct Job {
    pub name: String,
    matrix: Matrix,
}

impl Job {
    pub fn all() -> Vec<Self> {
        let hop = Self { name: "hop".to_owned(), matrix: Matrix::from_fn(1, 2, |_, c| [1, 0x8e][c]) };
        vec![Self::encode(10, 4), Self::encode(6, 3), Self::encode(12, 4), hop]
    }

    /// The parity rows of the Cauchy generator: 1/(i ^ j) for parity block i and data block j.
    pub fn encode(k: usize, m: usize) -> Self {
        let matrix = Matrix::from_fn(m, k, |r, c| field::inv(((k + r) ^ c) as u8).unwrap_or(0));
        Self { name: format!("rs({k},{m})"), matrix }
    }

    pub fn k(&self) -> usize {
        self.matrix.cols()
    }

    pub fn m(&self) -> usize {
        self.matrix.rows()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contestant {
    Weft,
    /// Outputs bypass the caches.
    WeftStreaming,
    IsaL,
    /// Copies each data block over a parity block: reads and writes as much as encoding.
    Memcpy,
    /// The data blocks are read and nothing is written.
    Read,
}

impl Contestant {
    pub const ALL: [Self; 5] = [Self::Weft, Self::WeftStreaming, Self::IsaL, Self::Memcpy, Self::Read];
}

/// A job, prepared for all contestants.
pub struct Encoder {
    pub job: Job,
    weft: Combination,
    oracle: Combination,
    isal_tables: Vec<u8>,
}

impl Encoder {
    pub fn new(job: Job) -> Self {
        let sparse = SparseMatrix::from(&job.matrix);
        let mut coefficients: Vec<u8> = (0..job.m()).flat_map(|row| job.matrix.row(row).to_vec()).collect();
        let mut isal_tables = vec![0; 32 * job.k() * job.m()];
        // SAFETY: the matrix has m rows of k coefficients, and the tables take 32 bytes for each.
        unsafe { ec_init_tables(job.k() as i32, job.m() as i32, coefficients.as_mut_ptr(), isal_tables.as_mut_ptr()) };
        Self { weft: Combination::new(&sparse), oracle: Combination::with_kernel(Kernel::Naive, &sparse), job, isal_tables }
    }

    pub fn run(&self, contestant: Contestant, stripe: &mut Stripe<'_>) {
        match contestant {
            Contestant::Weft => self.weft.apply(&stripe.data, &mut stripe.parity),
            Contestant::WeftStreaming => self.weft.apply_streaming(&stripe.data, &mut stripe.parity),
            Contestant::IsaL => self.run_isal(stripe),
            Contestant::Memcpy => {
                let rows = stripe.parity.len();
                for (block, data) in stripe.data.iter().enumerate() {
                    stripe.parity[block % rows].copy_from_slice(data);
                }
            }
            Contestant::Read => stripe.data.iter().for_each(|block| read(block)),
        }
    }

    fn run_isal(&self, stripe: &mut Stripe<'_>) {
        let len = stripe.parity.first().map_or(0, |block| block.len());
        let mut data = [ptr::null_mut(); BLOCKS_MAX];
        let mut parity = [ptr::null_mut(); BLOCKS_MAX];
        data.iter_mut().zip(&stripe.data).for_each(|(to, block)| *to = block.as_ptr().cast_mut());
        parity.iter_mut().zip(&mut stripe.parity).for_each(|(to, block)| *to = block.as_mut_ptr());
        // SAFETY: k data and m parity blocks of `len` bytes, and tables made for k and m; data is only read.
        unsafe {
            ec_encode_data(
                len as i32,
                self.job.k() as i32,
                self.job.m() as i32,
                self.isal_tables.as_ptr().cast_mut(),
                data.as_mut_ptr(),
                parity.as_mut_ptr(),
            );
        }
    }

    /// Checks that all contestants produce the oracle's bytes.
    pub fn check(&self, stripe: &mut Stripe<'_>) -> Result<(), String> {
        let block_len = stripe.data[0].len();
        let mut wanted = vec![vec![0; block_len]; self.job.m()];
        self.oracle.apply(&stripe.data, &mut wanted.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        for contestant in [Contestant::Weft, Contestant::WeftStreaming, Contestant::IsaL] {
            stripe.parity.iter_mut().for_each(|block| block.fill(0xa5));
            self.run(contestant, stripe);
            if stripe.parity.iter().zip(&wanted).any(|(block, wanted)| **block != wanted[..]) {
                return Err(format!("{contestant:?} gives other bytes than the oracle for {} of {block_len}", self.job.name));
            }
        }
        Ok(())
    }
}

/// `sum = a ^ b` for slices of equal length, as fast as the machine can.
pub fn xor(a: &[u8], b: &[u8], sum: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the instructions are there.
        return unsafe { xor_avx512(a, b, sum) };
    }
    xor_words(a, b, sum);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn xor_avx512(a: &[u8], b: &[u8], sum: &mut [u8]) {
    xor_words(a, b, sum);
}

/// Compilers turn this into wide loads.
#[inline(always)]
fn xor_words(a: &[u8], b: &[u8], sum: &mut [u8]) {
    let (a, b) = (a.as_chunks::<512>().0, b.as_chunks::<512>().0);
    for ((sum, a), b) in sum.as_chunks_mut::<512>().0.iter_mut().zip(a).zip(b) {
        for ((sum, a), b) in sum.as_chunks_mut::<64>().0.iter_mut().zip(a.as_chunks::<64>().0).zip(b.as_chunks::<64>().0) {
            *sum = std::array::from_fn(|at| a[at] ^ b[at]);
        }
    }
}

/// Reads all words. The result does not matter, but the compiler must not remove the reads.
fn read(block: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the instructions are there.
        return unsafe { read_avx512(block) };
    }
    black_box(sum(block));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn read_avx512(block: &[u8]) {
    black_box(sum(block));
}

/// Compilers turn this into wide loads and independent sums.
#[inline(always)]
fn sum(block: &[u8]) -> u64 {
    let mut sums = [0u64; 64];
    for chunk in block.as_chunks::<512>().0 {
        for (sum, word) in sums.iter_mut().zip(chunk.as_chunks::<8>().0) {
            *sum ^= u64::from_ne_bytes(*word);
        }
    }
    sums.iter().fold(0, |all, sum| all ^ sum)
}
