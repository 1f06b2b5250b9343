use super::*;
use crate::{
    SubBlock, conformance,
    draft::test_support::{ask, is_right, whole},
    mds::combinations,
    parse,
};

#[test]
fn all_conform() {
    for k in 2..=K_MAX {
        conformance::check(parse(&format!("butterfly({k})")).unwrap().as_ref()).unwrap();
    }
}

#[test]
fn any_two_blocks_can_be_lost() {
    for k in 7..=K_MAX {
        let code = Butterfly::new(k);
        for pair in combinations(k + 2, 2) {
            let ask = ask(&code, &[pair[1] as u8, pair[0] as u8]);
            let recipes = code.recipes(&ask).unwrap();
            assert_eq!(recipes.len(), 1);
            assert_eq!(recipes[0].sub_blocks_read(), k * code.alpha());
            assert!(is_right(&code, &ask, &recipes[0]), "butterfly({k}) without {pair:?}");
        }
    }
}

#[test]
fn one_block_is_repaired_from_half_of_each_other() {
    for k in 2..=K_MAX {
        let code = Butterfly::new(k);
        for lost in 0..code.n() as u8 {
            let ask = ask(&code, &[lost]);
            let recipe = &code.recipes(&ask).unwrap()[0];
            let reads = if lost == code.butterfly() { k * code.alpha() } else { (k + 1) * code.alpha() / 2 };
            assert_eq!((recipe.sub_blocks_sent() * 2, recipe.sub_blocks_read()), ((k + 1) * code.alpha(), reads), "{k}, {lost}");
            assert!(recipe.helpers.iter().all(|helper| helper.compute.rows() * 2 == code.alpha()), "{k}, {lost}");
            assert!(is_right(&code, &ask, recipe), "{k}, {lost}");
        }
    }
}

#[test]
fn encoding_is_the_generator_with_fewer_sums() {
    for k in 2..=K_MAX {
        let code = Butterfly::new(k);
        let parity: Vec<usize> = (k * code.alpha()..code.n() * code.alpha()).collect();
        let rows = code.generator().select_rows(&parity);
        let encode = code.encode();
        let xors = |terms: usize, rows: usize| terms - rows;
        let taken = xors(encode.steps().terms().len(), encode.steps().rows());
        let least = 2 * code.alpha() * (k - 1);
        assert!(2 * taken <= 3 * least, "k = {k}: {taken} XORs, where {least} are enough");
        if k == 8 {
            assert_eq!((taken, least, xors(rows.terms().len(), rows.rows())), (2176, 1792, 3584));
        }
        assert_eq!(encode.flatten(usize::MAX).unwrap(), rows, "k = {k}");
    }
}

#[test]
fn repairing_some_sub_blocks_reads_less() {
    let code = Butterfly::new(5);
    for lost in 0..code.n() as u8 {
        for sub_block in 0..code.alpha() as u16 {
            let mut ask = ask(&code, &[lost]);
            ask.wanted = vec![SubBlock { index: lost, sub_block }];
            let recipes = code.recipes(&ask).unwrap();
            assert!(recipes.iter().all(|recipe| is_right(&code, &ask, recipe)));
            if lost != code.butterfly() {
                assert_eq!((recipes[0].sub_blocks_read(), recipes[0].sub_blocks_sent()), (5, 5), "not one row of the rest");
            }
        }
    }
}

#[test]
fn rows_cost_no_more_if_the_other_data_is_read_anyway() {
    let code = Butterfly::new(6);
    let mut ask = ask(&code, &[2]);
    ask.read_anyway = vec![0, 1, 3, 4, 5];
    let recipes = code.recipes(&ask).unwrap();
    let more = |recipe: &Recipe| {
        let more = recipe.helpers.iter().filter(|helper| !ask.read_anyway.contains(&helper.index));
        more.map(|helper| (helper.index, helper.compute.rows())).collect::<Vec<_>>()
    };
    assert_eq!(recipes.iter().map(more).collect::<Vec<_>>(), [vec![(6, 16), (7, 16)], vec![(6, 32)]]);
    // If the blocks are wanted themselves, the recipe by rows needs fewer helpers and comes first.
    let whole = (0..6).flat_map(|index| whole(&code, index)).collect();
    let ask = Ask { wanted: whole, read_anyway: Vec::new(), ..ask };
    let recipes = code.recipes(&ask).unwrap();
    assert_eq!(recipes[0].helpers.iter().map(|helper| helper.index).collect::<Vec<_>>(), [0, 1, 3, 4, 5, 6]);
    assert_eq!(recipes[0].sub_blocks_sent(), 6 * 32);
    assert!(recipes.iter().all(|recipe| is_right(&code, &ask, recipe)));
}

#[test]
fn invalid_parameters_are_refused() {
    for spec in ["butterfly(1)", "butterfly(11)", "butterfly(0)"] {
        let message = parse(spec).map(|code| code.spec()).unwrap_err().to_string();
        assert!(message.contains("from 2 to 10"), "{message}");
    }
}
