//! r equal copies, as a code like any other: k = 1 and m = r−1 parity blocks, each the data itself.
//!
//! The repetition code: MDS, with the highest overhead and the cheapest repair. All plans, updates and checks for codes
//! work for copies as well.

use crate::{Arguments, Code, Family, SharedCode, SpecError};
use std::sync::Arc;
use weft_gf::{Matrix, SparseMatrix};

/// The specs of these codes.
pub(crate) const FAMILY: Family = Family {
    name: "replication",
    usage: "replication(r), with r from 2 to 255",
    summary: "r identical copies: any one of them suffices",
    advice: "Choose it for small or hot data. Every copy serves reads and a repair reads one block, but it stores the data r \
            times.",
    measured: &["replication(3)"],
    build,
};

/// A stripe has at most 255 blocks.
const COPIES_MAX: usize = 255;

/// The repetition code.
#[derive(Debug)]
pub(crate) struct Replication {
    copies: usize,
    generator: SparseMatrix,
}

impl Code for Replication {
    fn spec(&self) -> String {
        format!("replication({})", self.copies)
    }

    fn k(&self) -> usize {
        1
    }

    fn m(&self) -> usize {
        self.copies - 1
    }

    fn alpha(&self) -> usize {
        1
    }

    fn generator(&self) -> &SparseMatrix {
        &self.generator
    }

    fn tolerance(&self) -> usize {
        self.copies - 1
    }
}

fn build(arguments: &Arguments<'_>) -> Result<SharedCode, SpecError> {
    let [copies] = arguments.numbers(FAMILY.usage, &[])?;
    if !(2..=COPIES_MAX).contains(&copies) {
        return Err(arguments.wrong(FAMILY.usage, format!("r is {copies}: it must be from 2 to {COPIES_MAX}")));
    }
    Ok(Arc::new(Replication { copies, generator: SparseMatrix::from(&Matrix::from_fn(copies, 1, |_, _| 1)) }))
}

#[cfg(test)]
mod tests {
    use crate::{Ask, SubBlock, conformance, info, parse};

    #[test]
    fn it_conforms_and_reads_one_copy_to_repair_any_number() {
        for copies in [2, 3, 10, 11, 255] {
            let code = parse(&format!("replication({copies})")).unwrap();
            conformance::check(code.as_ref()).unwrap();
            assert!(info(code.as_ref()).unwrap().blocks.iter().all(|block| block.blocks_moved == 1.0));
        }
        let wanted = [0, 3].map(|index| SubBlock { index, sub_block: 0 }).to_vec();
        let ask = Ask { wanted, available: vec![4, 1, 2], read_anyway: vec![2] };
        let recipe = parse("replication(5)").unwrap().recipes(&ask).unwrap().remove(0);
        assert_eq!(recipe.helpers.iter().map(|helper| helper.index).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn values_out_of_range_are_refused_and_the_range_named() {
        for spec in ["replication(0)", "replication(1)", "replication(256)"] {
            let error = parse(spec).map(|code| code.spec()).unwrap_err().to_string();
            assert!(error.contains("from 2 to 255"), "{error}");
        }
    }
}
