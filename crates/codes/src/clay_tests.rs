use super::*;
use crate::{
    conformance,
    draft::test_support::{ask, is_right},
    parse,
};

#[test]
fn small_ones_and_some_larger_ones_conform() {
    for (k, m) in [(1, 2), (2, 2), (3, 2), (4, 2), (5, 2), (1, 3), (2, 3), (3, 3), (5, 3), (1, 4), (2, 4)] {
        for d in k + 1..k + m {
            conformance::check(&Clay::new(k, m, d)).unwrap();
        }
    }
    for spec in ["clay(10,4)", "clay(10,4,d=12)", "clay(16,4)"] {
        conformance::check(parse(spec).unwrap().as_ref()).unwrap();
    }
}

/// By definition, the uncoupled rows of the generator in each layer are a codeword of the layer's code.
#[test]
fn every_layer_is_a_codeword() {
    for (k, m, d) in [(4, 2, 5), (5, 3, 6), (5, 3, 7), (3, 4, 4), (3, 4, 5), (3, 5, 6), (4, 6, 6)] {
        let code = Clay::new(k, m, d);
        let (grid, generator) = (&code.grid, code.generator().to_dense());
        let coupled = |node: usize, layer: usize| grid.coupled(node, layer).map(|(row, _)| generator.row(row));
        for layer in 0..grid.layers {
            let uncoupled = Matrix::from_fn(grid.nodes, generator.cols(), |node, col| {
                let at = |node, layer| coupled(node, layer).map_or(0, |row| row[col]);
                let (x, y) = (node % grid.q, node / grid.q);
                let weight = grid.q.pow((grid.nodes / grid.q - 1 - y) as u32);
                let digit = layer / weight % grid.q;
                let partner = (digit != x).then(|| at(y * grid.q + digit, layer - digit * weight + x * weight));
                at(node, layer) ^ field::mul(2, partner.unwrap_or(0))
            });
            let data: Vec<usize> = (0..grid.nodes - m).collect();
            assert_eq!(grid.layer_code.times(&uncoupled.select_rows(&data)), uncoupled, "{}, layer {layer}", code.spec());
        }
    }
}

#[test]
fn one_block_is_repaired_from_an_equal_part_of_d_others() {
    for (k, m) in [(4, 2), (5, 3), (6, 4), (3, 5), (9, 3), (2, 6), (10, 4)] {
        for d in k + 1..k + m {
            let code = Clay::new(k, m, d);
            for lost in 0..code.n() as u8 {
                let ask = ask(&code, &[lost]);
                let recipes = code.recipes(&ask).unwrap();
                let part = code.alpha() / (d - k + 1);
                assert_eq!((recipes.len(), recipes[0].helpers.len()), (1, d), "{} {lost}", code.spec());
                assert!(recipes[0].helpers.iter().all(|helper| helper.reads.len() == part && helper.compute.rows() == part));
                assert!(code.alpha() > 81 || is_right(&code, &ask, &recipes[0]), "{} {lost}", code.spec());
            }
        }
    }
}

#[test]
fn helpers_outside_the_section_are_chosen_by_preference() {
    let code = Clay::new(5, 3, 6);
    let mut ask = ask(&code, &[3]);
    // Sections are {0,1} {2,3} {4,5} {6,7}: 2 must help.
    ask.available = vec![7, 5, 6, 1, 4, 0, 2];
    let helpers = |ask: &Ask| {
        let recipes = code.recipes(ask).unwrap();
        assert!(recipes.iter().all(|recipe| is_right(&code, ask, recipe)));
        recipes[0].helpers.iter().map(|helper| helper.index).collect::<Vec<_>>()
    };
    assert_eq!(helpers(&ask), [7, 5, 6, 1, 4, 2]);
    ask.available = vec![7, 5, 6, 1, 4, 0];
    assert_eq!(helpers(&ask), [7, 5, 6, 1, 4], "decoded");
    ask.available = vec![2, 7, 5, 6, 1];
    assert_eq!(helpers(&ask), [2, 7, 5, 6, 1], "decoded");
    // Decoding needs only blocks that are read anyway.
    ask.available = vec![7, 5, 6, 1, 4, 0, 2];
    ask.read_anyway = vec![0, 1, 2, 4, 6];
    assert_eq!(helpers(&ask), [0, 1, 2, 4, 6]);
}

#[test]
fn repairing_some_sub_blocks_reads_less() {
    let code = Clay::new(4, 3, 5);
    for lost in 0..code.n() as u8 {
        let mut ask = ask(&code, &[lost]);
        let all = code.recipes(&ask).unwrap()[0].sub_blocks_read();
        for sub_block in 0..code.alpha() as u16 {
            ask.wanted = vec![SubBlock { index: lost, sub_block }];
            let recipes = code.recipes(&ask).unwrap();
            assert!(recipes[0].sub_blocks_read() < all);
            assert!(recipes.iter().all(|recipe| is_right(&code, &ask, recipe)), "block {lost}, sub-block {sub_block}");
        }
    }
}

/// α = 1,024: instead of a dense matrix of 4,096 × 16,384, encoding takes some hundred thousand products.
#[test]
fn large_ones_are_sparse() {
    let code = Clay::new(16, 4, 19);
    assert_eq!(code.alpha(), 1024);
    assert!(code.encode().steps().terms().len() < 200_000, "{}", code.encode().steps().terms().len());
    assert!(code.generator().terms().len() < 400_000, "{}", code.generator().terms().len());
    for lost in [0, 15, 19] {
        let recipe = code.recipes(&ask(&code, &[lost])).unwrap().remove(0);
        assert_eq!((recipe.sub_blocks_read(), recipe.sub_blocks_sent()), (19 * 256, 19 * 256));
        assert!(recipe.combine.steps().terms().len() < 50_000, "{}", recipe.combine.steps().terms().len());
    }
}

#[test]
fn the_spec_contains_d_unless_all_other_blocks_help() {
    for (spec, canonical) in [("clay(10,4)", "clay(10,4)"), ("clay(10,4,d=13)", "clay(10,4)"), ("Clay(5,3,d=6)", "clay(5,3,d=6)")]
    {
        assert_eq!(parse(spec).unwrap().spec(), canonical);
    }
}

#[test]
fn invalid_parameters_are_refused() {
    for (spec, says) in [
        ("clay(0,4)", "m at least 2"),
        ("clay(4,1)", "m at least 2"),
        ("clay(17,4)", "k+m at most 20"),
        ("clay(4,3,d=4)", "d must be from k+1 = 5 to k+m-1 = 6"),
        ("clay(4,3,d=7)", "d = 7 helpers"),
        ("clay(4,3,d=+5)", "'+5' is not a number of helpers"),
    ] {
        let message = parse(spec).map(|code| code.spec()).unwrap_err().to_string();
        assert!(message.contains(says), "{message}");
    }
}
