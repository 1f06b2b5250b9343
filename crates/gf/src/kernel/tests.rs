//! Compares every kernel that runs on this machine with the oracle.

use super::{Combination, Kernel, add_scaled, even_parts, mirror::Arrangement, runs};
use crate::{
    Matrix, SparseMatrix,
    field::{self, mul},
};
use proptest::prelude::*;
use std::ops::Range;

/// A seeded source of bytes.
struct Bytes(u64);

impl Bytes {
    fn next(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 56) as u8
    }

    fn vec(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next()).collect()
    }
}

#[derive(Debug, Clone, Copy)]
enum How {
    Apply,
    Stream,
    Accumulate,
}

const HOWS: [How; 3] = [How::Apply, How::Stream, How::Accumulate];

/// The result by definition, byte by byte.
fn expected(matrix: &SparseMatrix, sources: &[&[u8]], before: &[Vec<u8>], how: How) -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> = match how {
        How::Accumulate => before.to_vec(),
        How::Apply | How::Stream => before.iter().map(|row| vec![0; row.len()]).collect(),
    };
    for (r, c, coefficient) in matrix.terms() {
        for (sum, byte) in out[*r as usize].iter_mut().zip(sources[*c as usize]) {
            *sum ^= mul(*coefficient, *byte);
        }
    }
    out
}

/// Applies the matrix with every kernel to unaligned slices, in dirty buffers with guard bytes.
fn check(matrix: &SparseMatrix, len: usize, seed: u64) {
    let mut bytes = Bytes(seed);
    let offsets: Vec<usize> = (0..matrix.cols() + matrix.rows()).map(|_| usize::from(bytes.next() % 67)).collect();
    let sources: Vec<Vec<u8>> = (0..matrix.cols()).map(|c| bytes.vec(offsets[c] + len)).collect();
    let sources: Vec<&[u8]> = sources.iter().zip(&offsets).map(|(source, offset)| &source[*offset..]).collect();
    for how in HOWS {
        let before: Vec<Vec<u8>> = (0..matrix.rows()).map(|_| bytes.vec(len)).collect();
        let expected = expected(matrix, &sources, &before, how);
        for kernel in Kernel::available() {
            // For half of the seeds all outputs have the same alignment, so streaming is used.
            let offset = |r: usize| if seed.is_multiple_of(2) { 3 } else { offsets[matrix.cols() + r] };
            let mut buffers: Vec<Vec<u8>> = (0..matrix.rows()).map(|_| vec![0xa5; 64 + 67 + len + 64]).collect();
            let starts: Vec<usize> =
                buffers.iter().enumerate().map(|(r, buffer)| buffer.as_ptr().align_offset(64) + offset(r)).collect();
            for (r, buffer) in buffers.iter_mut().enumerate() {
                buffer[starts[r]..starts[r] + len].copy_from_slice(&before[r]);
            }
            let mut out: Vec<&mut [u8]> =
                buffers.iter_mut().zip(&starts).map(|(buffer, start)| &mut buffer[*start..*start + len]).collect();
            let combination = Combination::with_kernel(kernel, matrix);
            match how {
                How::Apply => combination.apply(&sources, &mut out),
                How::Stream => combination.apply_streaming(&sources, &mut out),
                How::Accumulate => combination.accumulate(&sources, &mut out),
            }
            for (r, buffer) in buffers.iter().enumerate() {
                let (start, end) = (starts[r], starts[r] + len);
                assert!(buffer[start..end] == expected[r][..], "{kernel} {how:?} row {r} len {len} seed {seed} {matrix:?}");
                let guards = buffer[..start].iter().chain(&buffer[end..]);
                assert!(guards.copied().all(|byte| byte == 0xa5), "{kernel} {how:?} wrote beyond row {r}, seed {seed}");
            }
        }
    }
}

/// A random matrix in which about `density` of 256 elements are not zero; all of them are one if `ones`.
fn random(rows: usize, cols: usize, density: u16, ones: bool, bytes: &mut Bytes) -> SparseMatrix {
    SparseMatrix::from(&Matrix::from_fn(rows, cols, |_, _| {
        let present = u16::from(bytes.next()) < density;
        let value = bytes.next().max(1);
        u8::from(present) * if ones { 1 } else { value }
    }))
}

#[test]
fn every_product() {
    let all: Vec<u8> = (0..=255).collect();
    for kernel in Kernel::available() {
        for coefficient in 0..=255u8 {
            let matrix = SparseMatrix::new(1, 1, [(0, 0, coefficient)]).unwrap();
            let mut out = [0x5a; 256];
            Combination::with_kernel(kernel, &matrix).apply(&[&all], &mut [&mut out]);
            for x in 0..=255u8 {
                assert_eq!(out[usize::from(x)], mul(coefficient, x), "{kernel}: {coefficient}·{x}");
            }
        }
    }
}

#[test]
fn every_length_of_tails() {
    let mut bytes = Bytes(1);
    for len in 0..=300 {
        check(&random(4, 10, 256, false, &mut bytes), len, 2 * len as u64);
        check(&random(3, 5, 128, false, &mut bytes), len, 2 * len as u64 + 1);
        check(&SparseMatrix::new(1, 2, [(0, 0, 1), (0, 1, 0x8e)]).unwrap(), len, len as u64);
        check(&random(1, 7, 256, true, &mut bytes), len, len as u64);
    }
}

#[test]
fn every_shape_of_a_pass() {
    let mut bytes = Bytes(2);
    for rows in 0..=8 {
        for cols in 0..=20 {
            check(&random(rows, cols, 256, false, &mut bytes), 333, rows as u64 * 100 + cols as u64);
        }
    }
    check(&random(20, 40, 256, false, &mut bytes), 1111, 1);
    check(&random(1, 40, 256, true, &mut bytes), 1111, 2);
}

#[test]
fn pieces_of_the_length_are_seamless() {
    let mut bytes = Bytes(3);
    for len in [4096, 65_536, 100_003] {
        check(&random(5, 18, 240, false, &mut bytes), len, len as u64);
        check(&random(6, 12, 60, false, &mut bytes), len, len as u64 + 1);
        check(&random(6, 12, 100, true, &mut bytes), len, len as u64);
    }
}

#[test]
fn generators_with_their_identity() {
    let generator = Matrix::identity(10).stack(&cauchy(10..14, 0..10));
    check(&SparseMatrix::from(&generator), 1000, 4);
}

/// 1/(i + j) for these rows and columns.
fn cauchy(rows: Range<usize>, cols: Range<usize>) -> Matrix {
    Matrix::from_fn(rows.len(), cols.len(), |r, c| field::inv(((rows.start + r) ^ (cols.start + c)) as u8).unwrap())
}

#[test]
fn cauchy_matrices_of_every_size_are_computed_by_their_mirrors() {
    for k in 1..=18 {
        for m in 1..=6 {
            for first in 0..4 {
                let matrix = SparseMatrix::from(&cauchy(first + k..first + k + m, first..first + k));
                check(&matrix, 777, (k * 100 + m * 10 + first) as u64);
            }
        }
    }
}

#[test]
fn mirrors_are_found_in_any_order_of_rows_and_columns() {
    let mut bytes = Bytes(6);
    let matrix = cauchy(12..16, 0..12);
    for seed in 0..50 {
        let mut shuffled = |len: usize| {
            let mut order: Vec<(u8, usize)> = (0..len).map(|index| (bytes.next(), index)).collect();
            order.sort_unstable();
            order.into_iter().map(|(_, index)| index).collect::<Vec<_>>()
        };
        let matrix = matrix.select_rows(&shuffled(4)).select_cols(&shuffled(12));
        assert_eq!(Arrangement::of(&matrix).map(|found| found.products()), Some(27));
        check(&SparseMatrix::from(&matrix), 200, seed);
    }
    let products = |matrix: &Matrix| Arrangement::of(matrix).map(|found| found.products());
    assert_eq!(products(&cauchy(10..14, 0..10)), Some(24));
    assert_eq!(products(&cauchy(6..9, 0..6)), Some(15));
    assert_eq!(products(&Matrix::from_fn(4, 10, |r, c| (r * 10 + c + 2) as u8)), None);
}

#[test]
fn rows_with_the_same_sources_are_fused_and_others_are_not() {
    let shapes = |matrix: &Matrix| -> Vec<(usize, usize)> {
        runs(&SparseMatrix::from(matrix)).iter().map(|run| (run.rows.len(), run.sources.len())).collect()
    };
    assert_eq!(shapes(&Matrix::from_fn(4, 10, |r, c| (r * 10 + c + 2) as u8)), [(4, 10)]);
    assert_eq!(shapes(&Matrix::from_fn(4, 8, |r, c| if r / 2 == c / 4 { 7 } else { 0 })), [(2, 4), (2, 4)]);
    assert_eq!(shapes(&Matrix::identity(3)), [(1, 1); 3]);
    assert_eq!(shapes(&Matrix::zero(2, 3)), [(1, 0); 2]);
    let parts: Vec<usize> = even_parts(&[0; 17], 16).map(<[usize]>::len).collect();
    assert_eq!(parts, [8, 9]);
}

#[test]
#[should_panic(expected = "sources as long as the outputs")]
fn sources_of_another_length_are_refused() {
    Combination::new(&SparseMatrix::identity(1)).apply(&[&[1, 2]], &mut [&mut [0]]);
}

#[test]
fn names_go_both_ways() {
    for kernel in Kernel::ALL {
        assert_eq!(kernel.to_string().parse(), Ok(kernel));
    }
    let unknown = Kernel::named("fast").unwrap_err().to_string();
    assert!(unknown.starts_with("no such kernel (available: naive, scalar"), "{unknown}");
    for kernel in Kernel::ALL.into_iter().filter(|kernel| !kernel.is_available()) {
        assert!(Kernel::named(&kernel.to_string()).is_err());
    }
    assert!(Kernel::available().contains(&Kernel::best()));
}

#[test]
fn scaled_rows_are_added() {
    let mut bytes = Bytes(5);
    for len in [0, 1, 15, 16, 100] {
        let (src, dst, factor) = (bytes.vec(len), bytes.vec(len), bytes.next());
        let mut sum = dst.clone();
        add_scaled(&mut sum, &src, factor);
        assert!((0..len).all(|i| sum[i] == dst[i] ^ mul(factor, src[i])));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_matrix_any_length(
        rows in 0usize..=8,
        cols in 0usize..=40,
        density in prop_oneof![Just(256u16), 20u16..250],
        ones in prop::bool::weighted(0.2),
        len in prop_oneof![0usize..300, 300usize..9000],
        seed: u64,
    ) {
        check(&random(rows, cols, density, ones, &mut Bytes(seed)), len, seed);
    }
}
