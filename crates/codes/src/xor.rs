//! One parity block, the sum of all data blocks: any one block is the sum of the others.
//!
//! The single parity check code. It equals `rs(k,1)` with a row of ones, but needs no GF(2^8): all coefficients are
//! ones, and k may be as large as a stripe allows. HDFS's `XOR-2-1-1024k` is `xor(2)`.

use crate::{Arguments, Code, Family, SharedCode, SpecError};
use std::sync::Arc;
use weft_gf::{Matrix, SparseMatrix};

/// The specs of these codes.
pub(crate) const FAMILY: Family = Family {
    name: "xor",
    usage: "xor(k), with k from 1 to 254",
    summary: "One parity block, the XOR of k data blocks",
    advice: "Choose it if it is enough to survive one loss at a time, on few and reliable disks.",
    measured: &["xor(10)"],
    build,
};

/// A stripe has at most 255 blocks.
const DATA_BLOCKS_MAX: usize = 254;

/// The single parity check code.
#[derive(Debug)]
pub(crate) struct Xor {
    k: usize,
    generator: SparseMatrix,
}

impl Code for Xor {
    fn spec(&self) -> String {
        format!("xor({})", self.k)
    }

    fn k(&self) -> usize {
        self.k
    }

    fn m(&self) -> usize {
        1
    }

    fn alpha(&self) -> usize {
        1
    }

    fn generator(&self) -> &SparseMatrix {
        &self.generator
    }

    fn tolerance(&self) -> usize {
        1
    }
}

fn build(arguments: &Arguments<'_>) -> Result<SharedCode, SpecError> {
    let [k] = arguments.numbers(FAMILY.usage, &[])?;
    if !(1..=DATA_BLOCKS_MAX).contains(&k) {
        return Err(arguments.wrong(FAMILY.usage, format!("k is {k}: it must be from 1 to {DATA_BLOCKS_MAX}")));
    }
    let generator = SparseMatrix::identity(k).stack(&SparseMatrix::from(&Matrix::from_fn(1, k, |_, _| 1)));
    Ok(Arc::new(Xor { k, generator }))
}

#[cfg(test)]
mod tests {
    use crate::{conformance, info, parse};

    #[test]
    fn it_conforms_and_reads_k_blocks_to_repair_one() {
        for k in [1, 2, 3, 9, 10, 254] {
            let code = parse(&format!("xor({k})")).unwrap();
            conformance::check(code.as_ref()).unwrap();
            assert!(info(code.as_ref()).unwrap().blocks.iter().all(|block| block.blocks_moved == k as f64));
        }
    }

    #[test]
    fn values_out_of_range_are_refused_and_the_range_named() {
        for spec in ["xor(0)", "xor(255)"] {
            let error = parse(spec).map(|code| code.spec()).unwrap_err().to_string();
            assert!(error.contains("from 1 to 254"), "{error}");
        }
    }
}
