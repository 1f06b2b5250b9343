use super::*;
use crate::{
    conformance,
    draft::test_support::{ask, is_right, whole},
    parse,
};

#[test]
fn every_shape_up_to_seven_blocks_and_some_larger_ones_conform() {
    for (k, m) in (2..=4).flat_map(|k| (k - 1..=7 - k).map(move |m| (k, m))) {
        for d in 2 * k - 2..k + m {
            conformance::check(&ProductMatrix::new(k, m, d).unwrap()).unwrap();
        }
    }
    for spec in ["msr(4,4)", "msr(5,4)", "msr(3,5,d=6)", "msr(4,8,d=8)", "msr(4,8,d=10)", "msr(7,6)"] {
        conformance::check(parse(spec).unwrap().as_ref()).unwrap();
    }
}

#[test]
fn any_d_helpers_send_one_sub_block_each() {
    let code = parse("msr(4,8,d=8)").unwrap();
    let code = code.as_ref();
    let mut ask = ask(code, &[3]);
    ask.available = vec![11, 0, 10, 1, 9, 2, 8, 4, 7, 5, 6];
    let recipes = code.recipes(&ask).unwrap();
    let helpers = |recipe: &Recipe| recipe.helpers.iter().map(|helper| helper.index).collect::<Vec<_>>();
    assert_eq!(recipes.iter().map(helpers).collect::<Vec<_>>(), [&ask.available[..8], &ask.available[..4]]);
    assert_eq!((recipes[0].sub_blocks_sent(), recipes[0].sub_blocks_read()), (8, 8 * 5), "8/5 of a block, from 8 blocks read");
    assert!(recipes.iter().all(|recipe| is_right(code, &ask, recipe)));
    // A wanted block is sent unchanged, and nothing more.
    ask.wanted.extend(whole(code, 9));
    let recipes = code.recipes(&ask).unwrap();
    assert_eq!((recipes[0].helpers[0].index, recipes[0].helpers[0].compute.rows()), (9, 5));
    assert_eq!(recipes[0].sub_blocks_sent(), 5 + 7);
    assert!(recipes.iter().all(|recipe| is_right(code, &ask, recipe)));
    // If many blocks are read anyway, conventional repair sends less.
    ask.read_anyway = vec![0, 1, 2];
    let recipe = &code.recipes(&ask).unwrap()[0];
    assert_eq!(helpers(recipe), [9, 0, 1, 2]);
    // Seven helpers are too few.
    ask.available.truncate(7);
    ask.read_anyway.clear();
    let recipes = code.recipes(&ask).unwrap();
    assert_eq!(recipes.iter().map(helpers).collect::<Vec<_>>(), [[9, 11, 0, 10]]);
}

#[test]
fn the_spec_contains_d_unless_all_other_blocks_help() {
    for (spec, canonical) in [("msr(4,4)", "msr(4,4)"), ("msr(4,4,d=7)", "msr(4,4)"), ("MSR(4, 4, D=6)", "msr(4,4,d=6)")] {
        assert_eq!(parse(spec).unwrap().spec(), canonical);
    }
}

#[test]
fn invalid_parameters_are_refused() {
    for (spec, says) in [
        ("msr(1,3)", "m at least 1"),
        ("msr(4,0)", "m at least 1"),
        ("msr(200,100)", "k+m at most 255"),
        ("msr(10,4)", "d must be from 2k-2 = 18 to k+m-1 = 13"),
        ("msr(4,4,d=5)", "d must be from 2k-2 = 6 to k+m-1 = 7"),
        ("msr(4,4,d=8)", "d = 8 helpers"),
        ("msr(4,4,d=x)", "d = 'x' is not a number of helpers"),
        ("msr(4,100)", "d-k+1 = 100 sub-blocks are too many: at most 32"),
        ("msr(4,90,d=18)", "not enough points with different powers of 15 for 106 blocks"),
        ("msr(4,4,e=6)", "unknown parameter 'e'"),
    ] {
        let message = parse(spec).map(|code| code.spec()).unwrap_err().to_string();
        assert!(message.contains(says), "{message}");
    }
}
