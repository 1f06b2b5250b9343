use super::*;
use crate::{conformance, info, parse};

#[test]
fn they_conform() {
    for (k, m) in [(1, 2), (2, 2), (4, 2), (3, 3), (5, 3), (2, 5), (6, 4), (5, 5)] {
        conformance::check(&Hitchhiker::new(k, m, Variant::Xor).unwrap()).unwrap();
        if k > 1 {
            conformance::check(&Hitchhiker::new(k, m, Variant::XorPlus).unwrap()).unwrap();
        }
    }
    for spec in ["hitchhiker-xor(10,4)", "hitchhiker-xor+(10,4)", "hitchhiker-xor+(12,4)", "hitchhiker-xor(11,3)"] {
        conformance::check(parse(spec).unwrap().as_ref()).unwrap();
    }
}

/// The sub-blocks needed to rebuild each block.
fn rebuilding(spec: &str) -> Vec<f64> {
    info(parse(spec).unwrap().as_ref()).unwrap().blocks.iter().map(|block| 2.0 * block.blocks_moved).collect()
}

#[test]
fn a_data_block_is_repaired_from_k_blocks_and_its_group() {
    assert_eq!(rebuilding("hitchhiker-xor(10,4)"), [[13.; 6].as_slice(), &[14.; 4], &[20.; 4]].concat());
    assert_eq!(rebuilding("hitchhiker-xor+(10,4)"), [[13.; 10].as_slice(), &[20.; 4]].concat());
    assert_eq!(rebuilding("hitchhiker-xor+(11,3)"), [[16.; 10].as_slice(), &[13.], &[22.; 3]].concat());
    assert_eq!(rebuilding("hitchhiker-xor(4,2)"), [8.; 6]);
    assert_eq!(rebuilding("hitchhiker-xor+(4,2)"), [7., 7., 7., 5., 8., 8.]);
}

fn moved(code: &dyn Code, wanted: &[(u8, u16)], lost: &[u8], read_anyway: &[u8]) -> usize {
    let wanted = wanted.iter().map(|(index, sub_block)| SubBlock { index: *index, sub_block: *sub_block }).collect();
    let available = (0..code.n() as u8).filter(|index| !lost.contains(index)).collect();
    let ask = Ask { wanted, available, read_anyway: read_anyway.to_vec() };
    choose::moved(&ask, &code.recipes(&ask).unwrap()[0]).0
}

#[test]
fn other_parity_blocks_replace_a_lost_one() {
    for spec in ["hitchhiker-xor(10,4)", "hitchhiker-xor+(10,4)"] {
        let code = parse(spec).unwrap();
        let both = [(4, A), (4, B)];
        assert_eq!(moved(code.as_ref(), &both, &[4, 11], &[]), 13, "{spec}: the lost parity is not needed");
        assert_eq!(moved(code.as_ref(), &both, &[4, 10], &[]), 16, "{spec}: b comes from parity 1 without its group");
        assert_eq!(moved(code.as_ref(), &both, &[4, 12], &[]), 20, "{spec}: the only parity that carries it is lost");
        assert_eq!(moved(code.as_ref(), &[(4, A)], &[4], &[]), 10, "{spec}: one sub-block is plain Reed-Solomon");
        assert_eq!(moved(code.as_ref(), &[(4, B)], &[4], &[]), 10, "{spec}");
        assert_eq!(moved(code.as_ref(), &both, &[4], &[0, 1, 2, 3, 5, 6, 7, 8, 9]), 2, "{spec}: all other data is read anyway");
    }
    let plus = parse("hitchhiker-xor+(10,4)").unwrap();
    let last = [(9, A), (9, B)];
    assert_eq!(moved(plus.as_ref(), &last, &[9, 12], &[]), 15, "a group's sum is read block by block");
    assert_eq!(moved(plus.as_ref(), &last, &[9, 11], &[]), 20, "the recipe needs parity 1");
}

#[test]
fn they_are_refused_exactly_where_the_vandermonde_matrix_is() {
    for k in 2..=8 {
        for m in 2..=8 {
            for variant in [Variant::Xor, Variant::XorPlus] {
                let code = Hitchhiker::new(k, m, variant).unwrap();
                let refused = parse(&code.spec()).err();
                let vandermonde = parse(&format!("rs({k},{m},matrix=vandermonde)")).err();
                assert_eq!(refused.is_some(), vandermonde.is_some(), "({k},{m})");
                let Some(SpecError::NotMds { lost, .. }) = refused else { continue };
                let left: Vec<usize> = (0..2 * (k + m)).filter(|row| !lost.contains(&((row / 2) as u8))).collect();
                assert_eq!(lost.len(), m);
                assert!(code.generator.select_rows(&left).to_dense().rank() < 2 * k, "{} survives {lost:?}", code.spec());
            }
        }
    }
}

#[test]
fn values_out_of_range_are_refused_and_the_range_named() {
    for (spec, says) in [
        ("hitchhiker-xor(0,4)", "at least 1"),
        ("hitchhiker-xor+(1,4)", "at least 2"),
        ("hitchhiker-xor(10,1)", "at least 2"),
        ("hitchhiker-xor+(252,4)", "at most 255"),
        ("hitchhiker-xor(10,5)", "would lose data"),
    ] {
        let error = parse(spec).map(|code| code.spec()).unwrap_err().to_string();
        assert!(error.contains(says), "{spec}: {error}");
    }
}
