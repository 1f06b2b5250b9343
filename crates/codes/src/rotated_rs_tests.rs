use super::*;
use crate::{conformance, info, parse};

fn ask(code: &dyn Code, wanted: &[(u8, u16)], lost: &[u8], read_anyway: &[u8]) -> (usize, Vec<u8>) {
    let wanted = wanted.iter().map(|(index, sub_block)| SubBlock { index: *index, sub_block: *sub_block }).collect();
    let available = (0..code.n() as u8).filter(|index| !lost.contains(index)).collect();
    let ask = Ask { wanted, available, read_anyway: read_anyway.to_vec() };
    let recipe = code.recipes(&ask).unwrap().remove(0);
    (choose::moved(&ask, &recipe).0, recipe.helpers.iter().map(|helper| helper.index).collect())
}

#[test]
fn it_conforms() {
    for spec in
        ["rotated-rs(1,1)", "rotated-rs(4,2)", "rotated-rs(6,3)", "rotated-rs(3,5)", "rotated-rs(5,5,r=4)", "rotated-rs(7,1)"]
    {
        conformance::check(parse(spec).unwrap().as_ref()).unwrap();
    }
    for spec in
        ["rotated-rs(12,4)", "rotated-rs(12,3,r=8)", "rotated-rs(8,4,r=4)", "rotated-rs(10,2,r=16)", "rotated-rs(3,20,r=4)"]
    {
        conformance::check(parse(spec).unwrap().as_ref()).unwrap();
    }
}

#[test]
fn it_is_refused_exactly_where_the_vandermonde_matrix_is() {
    for k in 1..=8 {
        for m in 1..=8 {
            let refused = parse(&format!("rotated-rs({k},{m})")).err();
            let vandermonde = parse(&format!("rs({k},{m},matrix=vandermonde)")).err();
            assert_eq!(refused.is_some(), vandermonde.is_some(), "({k},{m})");
            let Some(SpecError::NotMds { lost, .. }) = refused else { continue };
            let code = RotatedRs::new(k, m, 2).unwrap();
            let left: Vec<usize> = (0..2 * (k + m)).filter(|row| !lost.contains(&((row / 2) as u8))).collect();
            assert_eq!(lost.len(), m);
            assert!(code.generator.select_rows(&left).to_dense().rank() < 2 * k, "({k},{m}) survives {lost:?}");
        }
    }
}

/// Two parities share about half of the rows that they need.
#[test]
fn a_data_block_is_rebuilt_from_less_than_k_blocks() {
    for (spec, blocks) in [("rotated-rs(6,3)", 4.0), ("rotated-rs(4,2)", 3.0), ("rotated-rs(12,4)", 7.5)] {
        let code = parse(spec).unwrap();
        let info = info(code.as_ref()).unwrap();
        assert!(info.blocks[..code.k()].iter().all(|block| block.blocks_moved == blocks), "{spec}");
        assert!(info.blocks[code.k()..].iter().all(|block| block.blocks_moved == code.k() as f64), "{spec}");
    }
    let info = info(parse("rotated-rs(12,3,r=8)").unwrap().as_ref()).unwrap();
    assert!(info.blocks[..12].iter().all(|block| block.blocks_moved <= 9.0), "{:?}", info.blocks[0]);
}

#[test]
fn blocks_read_anyway_determine_the_equation() {
    let code = parse("rotated-rs(6,3)").unwrap();
    assert_eq!(ask(code.as_ref(), &[(0, 0)], &[0], &[]).0, 6, "one row needs one equation");
    // If the rest of the data is read anyway, only a parity's row is missing.
    assert_eq!(ask(code.as_ref(), &[(0, 0)], &[0], &[1, 2, 3, 4, 5]).0, 1);
    assert_eq!(ask(code.as_ref(), &[(0, 0), (0, 1)], &[0], &[1, 2, 3, 4, 5]).0, 2);
    let (moved, helpers) = ask(code.as_ref(), &[(0, 1)], &[0], &[1, 2, 3, 4, 5, 8]);
    assert_eq!((moved, helpers.contains(&8)), (0, true));
    // Parities 0 and 1 share reads, so losing parity 2 costs nothing; parities 1 and 2 share none.
    assert_eq!(ask(code.as_ref(), &[(0, 0), (0, 1)], &[0, 8], &[]).0, 8);
    assert_eq!(ask(code.as_ref(), &[(0, 0), (0, 1)], &[0, 6], &[]).0, 10);
    // With two lost data blocks, no single equation suffices: the needed parts of k blocks are read.
    assert!(ask(code.as_ref(), &[(0, 0)], &[0, 1], &[]).0 <= 12);
}

#[test]
fn values_out_of_range_are_refused_and_the_range_named() {
    for (spec, says) in [
        ("rotated-rs(0,3)", "at least 1"),
        ("rotated-rs(6,0)", "at least 1"),
        ("rotated-rs(200,56)", "at most 255"),
        ("rotated-rs(6,3,r=3)", "a power of two from 2 to 32"),
        ("rotated-rs(6,3,r=1)", "a power of two from 2 to 32"),
        ("rotated-rs(6,3,r=64)", "a power of two from 2 to 32"),
        ("rotated-rs(6,3,r=x)", "a power of two from 2 to 32"),
        ("rotated-rs(10,5)", "would lose data"),
    ] {
        let error = parse(spec).map(|code| code.spec()).unwrap_err().to_string();
        assert!(error.contains(says), "{spec}: {error}");
    }
}
