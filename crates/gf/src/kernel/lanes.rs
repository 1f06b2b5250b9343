//! The loop that all SIMD kernels share: one pass over the sources, with the sums of all rows in registers.
//!
//! Where a kernel asks for it, the loop is unrolled over the sources by a const generic, so that each source has a load
//! instruction of its own: hardware prefetchers identify streams by the instruction that reads them.

#![allow(unsafe_code)]
// A row, a source and a vector each index several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::{
    mirror::Mirror,
    pass::{PASS_SOURCES_MAX, Pass},
};
use std::{array, marker::PhantomData, ptr};

/// Vectors of one instruction set.
///
/// # Safety
/// All functions need the implementation's instruction set. Pointers must be valid for the bytes that the function
/// names; only [`Lanes::stream`] needs alignment.
pub(super) trait Lanes {
    /// A vector of bytes.
    type Vector: Copy;
    /// A vector of source bytes, prepared for products.
    type Source: Copy;
    /// The stored form of a coefficient.
    type Constant;
    /// A coefficient in registers.
    type Factor: Copy;

    /// Bytes of a vector.
    const BYTES: usize;

    unsafe fn zero() -> Self::Vector;
    /// Reads [`Lanes::BYTES`] bytes.
    unsafe fn load(from: *const u8) -> Self::Vector;
    /// Writes [`Lanes::BYTES`] bytes.
    unsafe fn store(to: *mut u8, vector: Self::Vector);
    /// Writes [`Lanes::BYTES`] bytes past the caches; `to` must be a multiple of [`Lanes::BYTES`].
    unsafe fn stream(to: *mut u8, vector: Self::Vector);
    /// Makes streamed bytes visible before later writes.
    unsafe fn fence();
    unsafe fn source(vector: Self::Vector) -> Self::Source;
    unsafe fn factor(constant: &Self::Constant) -> Self::Factor;
    unsafe fn xor(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `sum ^ factor · source`.
    unsafe fn add_product(sum: Self::Vector, source: Self::Source, factor: Self::Factor) -> Self::Vector;

    /// Reads `len` < [`Lanes::BYTES`] bytes, padded with zeros.
    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> Self::Vector {
        let mut padded = [0u8; VECTOR_BYTES_MAX];
        // SAFETY: the caller guarantees `len` bytes at `from`; `padded` holds a whole vector, which is more.
        unsafe {
            from.copy_to_nonoverlapping(padded.as_mut_ptr(), len);
            Self::load(padded.as_ptr())
        }
    }

    /// Writes the first `len` < [`Lanes::BYTES`] bytes.
    #[inline(always)]
    unsafe fn store_part(to: *mut u8, vector: Self::Vector, len: usize) {
        let mut padded = [0u8; VECTOR_BYTES_MAX];
        // SAFETY: `padded` holds a whole vector; the caller guarantees `len` bytes at `to`.
        unsafe {
            Self::store(padded.as_mut_ptr(), vector);
            to.copy_from_nonoverlapping(padded.as_ptr(), len);
        }
    }
}

/// The widest vector of any kernel.
const VECTOR_BYTES_MAX: usize = 64;

/// Sums without products, on the vectors of `L`.
pub(super) struct Xor<L>(PhantomData<L>);

// SAFETY (all blocks): forwarded: the caller keeps the trait's contract.
impl<L: Lanes> Lanes for Xor<L> {
    type Vector = L::Vector;
    type Source = L::Vector;
    type Constant = ();
    type Factor = ();

    const BYTES: usize = L::BYTES;

    #[inline(always)]
    unsafe fn zero() -> L::Vector {
        unsafe { L::zero() }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> L::Vector {
        unsafe { L::load(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, vector: L::Vector) {
        unsafe { L::store(to, vector) }
    }

    #[inline(always)]
    unsafe fn stream(to: *mut u8, vector: L::Vector) {
        unsafe { L::stream(to, vector) }
    }

    #[inline(always)]
    unsafe fn fence() {
        unsafe { L::fence() }
    }

    #[inline(always)]
    unsafe fn source(vector: L::Vector) -> L::Vector {
        vector
    }

    #[inline(always)]
    unsafe fn factor(_: &()) {}

    #[inline(always)]
    unsafe fn xor(a: L::Vector, b: L::Vector) -> L::Vector {
        unsafe { L::xor(a, b) }
    }

    #[inline(always)]
    unsafe fn add_product(sum: L::Vector, source: L::Vector, _: ()) -> L::Vector {
        unsafe { L::xor(sum, source) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> L::Vector {
        unsafe { L::load_part(from, len) }
    }

    #[inline(always)]
    unsafe fn store_part(to: *mut u8, vector: L::Vector, len: usize) {
        unsafe { L::store_part(to, vector, len) }
    }
}

/// How the sums over whole vectors are computed.
///
/// # Safety
/// As for [`Slices`].
pub(super) trait Body<L: Lanes, const M: usize> {
    /// Vectors of each slice that a step takes.
    const DEPTH: usize;

    /// Whether it fits a pass with this many sources, quads and pairs.
    fn fits(sources: usize, quads: usize, pairs: usize) -> bool;

    /// `DEPTH` vectors of each row.
    unsafe fn step(slices: &Slices<L, M>, at: usize, stream: bool);
}

/// Instead of a number for which loops are unrolled: ordinary loops for any number.
pub(super) const ANY: usize = usize::MAX;

/// Source by source, `K` of them or [`ANY`].
pub(super) struct Plain<const K: usize>;

// SAFETY (both): forwarded.
impl<L: Lanes, const K: usize, const M: usize> Body<L, M> for Plain<K> {
    const DEPTH: usize = 2;

    #[inline(always)]
    fn fits(sources: usize, _: usize, _: usize) -> bool {
        K == ANY || K == sources
    }

    #[inline(always)]
    unsafe fn step(slices: &Slices<L, M>, at: usize, stream: bool) {
        unsafe { slices.sum_up::<K, 2>(at, stream) }
    }
}

/// The constants of a pass.
#[derive(Clone, Copy)]
pub(super) struct Constants<'a, L: Lanes> {
    /// One for each source and row.
    pub(super) plain: &'a [L::Constant],
    /// The matrix's mirror structure, if any, and its constants.
    pub(super) mirror: Option<(Mirror<'a>, &'a [L::Constant])>,
}

/// A pass, source by source in ordinary loops.
///
/// # Safety
/// The instruction set of `L` must be there.
#[inline(always)]
pub(super) unsafe fn run_rolled<L: Lanes>(pass: &mut Pass<'_, '_>, constants: Constants<'_, L>) {
    // SAFETY: the caller's.
    unsafe {
        match pass.outs.len() {
            1 => run::<L, Plain<ANY>, 1>(pass, constants),
            2 => run::<L, Plain<ANY>, 2>(pass, constants),
            3 => run::<L, Plain<ANY>, 3>(pass, constants),
            4 => run::<L, Plain<ANY>, 4>(pass, constants),
            rows => unreachable!("a pass of {rows} rows"),
        }
    }
}

/// A pass for `M` rows.
///
/// # Safety
/// The instruction set of `L` must be there.
#[inline(always)]
pub(super) unsafe fn run<L: Lanes, B: Body<L, M>, const M: usize>(pass: &mut Pass<'_, '_>, constants: Constants<'_, L>) {
    const { assert!(L::BYTES <= VECTOR_BYTES_MAX) };
    let (count, len) = (pass.sources.len(), pass.outs[0].len());
    assert!(count <= PASS_SOURCES_MAX, "the pass's sources");
    assert!(pass.outs.len() == M && constants.plain.len() == count * M, "the pass's shape");
    assert!(pass.sources.iter().all(|source| source.len() == len), "sources of one length");
    assert!(pass.outs.iter().all(|out| out.len() == len), "outputs of one length");
    let (quads, pairs, mirrored) = match constants.mirror {
        None => (0, 0, &[][..]),
        Some((mirror, constants)) => {
            assert!(mirror.constants(count, M) == Some(constants.len()), "the constants of quads, pairs and single sources");
            (mirror.quads, mirror.pairs, constants)
        }
    };
    assert!(B::fits(count, quads, pairs), "a body that is made for the pass");
    let mut slices = Slices::<L, M> {
        from: [ptr::null(); PASS_SOURCES_MAX],
        to: array::from_fn(|m| pass.outs[m].as_mut_ptr()),
        plain: constants.plain.as_ptr(),
        mirrored: mirrored.as_ptr(),
        count,
        quads,
        pairs,
        add: pass.add,
    };
    slices.from.iter_mut().zip(pass.sources).for_each(|(from, source)| *from = source.as_ptr());
    let aligned = if pass.stream { aligned_head::<L, M>(&slices.to, len) } else { None };
    let mut at = aligned.unwrap_or(0);
    // SAFETY: all slices hold `len` bytes, and there are constants for all sources and rows, as checked above; no step
    // reads or writes beyond `len`. Outputs are exclusive borrows, so they overlap neither each other nor a source.
    unsafe {
        if at > 0 {
            slices.part(0, at);
        }
        while len - at >= B::DEPTH * L::BYTES {
            B::step(&slices, at, aligned.is_some());
            at += B::DEPTH * L::BYTES;
        }
        while len - at >= L::BYTES {
            slices.sum_up::<ANY, 1>(at, aligned.is_some());
            at += L::BYTES;
        }
        if at < len {
            slices.part(at, len - at);
        }
        if aligned.is_some() {
            L::fence();
        }
    }
}

/// The bytes before all outputs are aligned for streaming; `None` if they never are at the same time.
fn aligned_head<L: Lanes, const M: usize>(to: &[*mut u8; M], len: usize) -> Option<usize> {
    let head = to[0].align_offset(L::BYTES);
    let alike = to.iter().all(|out| out.align_offset(L::BYTES) == head);
    (alike && head <= len).then_some(head)
}

/// The memory of a pass.
pub(super) struct Slices<L: Lanes, const M: usize> {
    from: [*const u8; PASS_SOURCES_MAX],
    to: [*mut u8; M],
    /// Constants, `M` for each source.
    plain: *const L::Constant,
    /// Constants of quads, pairs and single sources.
    mirrored: *const L::Constant,
    /// The number of sources, which must match the quads and pairs.
    pub(super) count: usize,
    pub(super) quads: usize,
    pub(super) pairs: usize,
    add: bool,
}

// SAFETY (all blocks): the caller guarantees that the named bytes are inside all slices, that there are `count` sources
// with `M` constants each, and that the instruction set is available.
impl<L: Lanes, const M: usize> Slices<L, M> {
    /// A vector of source `k`.
    #[inline(always)]
    pub(super) unsafe fn load(&self, k: usize, at: usize) -> L::Vector {
        unsafe { L::load(self.from.as_ptr().wrapping_add(k).read().wrapping_add(at)) }
    }

    /// One of the constants of quads, pairs and single sources.
    #[inline(always)]
    pub(super) unsafe fn mirrored(&self, index: usize) -> L::Factor {
        unsafe { L::factor(&*self.mirrored.wrapping_add(index)) }
    }

    /// The initial value of row `m`.
    #[inline(always)]
    unsafe fn begin(&self, m: usize, at: usize) -> L::Vector {
        unsafe { if self.add { L::load(self.to[m].wrapping_add(at)) } else { L::zero() } }
    }

    /// Writes a vector of row `m`.
    #[inline(always)]
    unsafe fn write(&self, m: usize, at: usize, sum: L::Vector, stream: bool) {
        let to = self.to[m].wrapping_add(at);
        unsafe { if stream { L::stream(to, sum) } else { L::store(to, sum) } }
    }

    /// Writes a vector of row `m` whose sum started at zero.
    #[inline(always)]
    pub(super) unsafe fn finish(&self, m: usize, at: usize, sum: L::Vector, stream: bool) {
        unsafe { self.write(m, at, L::xor(sum, self.begin(m, at)), stream) }
    }

    /// `D` vectors of each row, over `K` sources or [`ANY`].
    #[inline(always)]
    unsafe fn sum_up<const K: usize, const D: usize>(&self, at: usize, stream: bool) {
        unsafe {
            let mut sums = [[L::zero(); D]; M];
            for m in 0..M {
                for d in 0..D {
                    sums[m][d] = self.begin(m, at + d * L::BYTES);
                }
            }
            if K == ANY {
                for k in 0..self.count {
                    self.add_source(&mut sums, k, at);
                }
            } else {
                // Unrolled by hand, because the compiler may not unroll a loop.
                macro_rules! unrolled {
                    ($($k:literal)*) => { $(if $k < K { self.add_source(&mut sums, $k, at); })* };
                }
                unrolled!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            }
            for m in 0..M {
                for d in 0..D {
                    self.write(m, at + d * L::BYTES, sums[m][d], stream);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn add_source<const D: usize>(&self, sums: &mut [[L::Vector; D]; M], k: usize, at: usize) {
        unsafe {
            let mut source = [L::source(L::zero()); D];
            for d in 0..D {
                source[d] = L::source(self.load(k, at + d * L::BYTES));
            }
            for m in 0..M {
                let factor = L::factor(&*self.plain.wrapping_add(k * M + m));
                for d in 0..D {
                    sums[m][d] = L::add_product(sums[m][d], source[d], factor);
                }
            }
        }
    }

    /// A tail shorter than a vector.
    #[inline(always)]
    unsafe fn part(&self, at: usize, len: usize) {
        unsafe {
            let mut sums = [L::zero(); M];
            if self.add {
                for m in 0..M {
                    sums[m] = L::load_part(self.to[m].wrapping_add(at), len);
                }
            }
            for k in 0..self.count {
                let source = L::source(L::load_part(self.from[k].wrapping_add(at), len));
                for m in 0..M {
                    sums[m] = L::add_product(sums[m], source, L::factor(&*self.plain.wrapping_add(k * M + m)));
                }
            }
            for m in 0..M {
                L::store_part(self.to[m].wrapping_add(at), sums[m], len);
            }
        }
    }
}
