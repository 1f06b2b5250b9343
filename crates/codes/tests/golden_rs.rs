//! Reed–Solomon against vectors from an independent model: the same generator, blocks, repairs, decodes and updates, byte by byte.

use serde_json::Value;
use weft_codes::{Ask, Code, Recipe, SharedCode, SubBlock, parse};
use weft_gf::{Combination, SparseMatrix};

/// The golden codes that are codes for us: one is not MDS, and refused.
fn golden() -> Vec<(Value, SharedCode)> {
    let file: Value = serde_json::from_str(include_str!("data/rs.json")).unwrap();
    let codes = file["codes"].as_array().unwrap().iter().filter(|code| code["mds"] == true);
    let codes: Vec<_> = codes
        .map(|code| {
            let spec = format!("rs({},{},matrix={})", code["k"], code["m"], code["matrix"].as_str().unwrap());
            (code.clone(), parse(&spec).unwrap())
        })
        .collect();
    assert_eq!(codes.len(), 7);
    codes
}

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn indices(value: &Value) -> Vec<u8> {
    value.as_array().unwrap().iter().map(|index| index.as_u64().unwrap() as u8).collect()
}

fn blocks(code: &Value) -> Vec<Vec<u8>> {
    code["blocks"].as_array().unwrap().iter().map(hex).collect()
}

fn times(matrix: &SparseMatrix, sources: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let len = sources[0].len();
    let mut out = vec![vec![0x5a; len]; matrix.rows()];
    let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
    Combination::new(matrix).apply(&sources, &mut out.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
    out
}

fn recipe(code: &dyn Code, wanted: &[u8], available: &[u8]) -> Recipe {
    let wanted = wanted.iter().map(|index| SubBlock { index: *index, sub_block: 0 }).collect();
    code.recipes(&Ask { wanted, available: available.to_vec(), read_anyway: Vec::new() }).unwrap().remove(0)
}

/// What the helpers send under plain reads, in order.
fn sent(recipe: &Recipe, blocks: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let sends = recipe.helpers.iter().map(|helper| {
        assert_eq!((helper.reads.as_slice(), &helper.compute), (&[0][..], &SparseMatrix::identity(1)));
        blocks[usize::from(helper.index)].clone()
    });
    sends.collect()
}

#[test]
fn generators_and_blocks() {
    for (golden, code) in golden() {
        let dense = code.generator().to_dense();
        let rows: Vec<Vec<u8>> = golden["generator"].as_array().unwrap().iter().map(hex).collect();
        assert_eq!((0..dense.rows()).map(|row| dense.row(row).to_vec()).collect::<Vec<_>>(), rows, "{}", code.spec());
        let data: Vec<Vec<u8>> = hex(&golden["data"]).chunks(16).map(<[u8]>::to_vec).collect();
        assert_eq!(times(code.generator(), &data), blocks(&golden), "{}", code.spec());
    }
}

#[test]
fn repairs() {
    for (golden, code) in golden() {
        let blocks = blocks(&golden);
        for repair in golden["repairs"].as_array().unwrap() {
            let (lost, helpers) = (repair["lost"].as_u64().unwrap() as u8, indices(&repair["helpers"]));
            let recipe = recipe(code.as_ref(), &[lost], &helpers);
            assert_eq!(recipe.helpers.iter().map(|helper| helper.index).collect::<Vec<_>>(), helpers);
            assert_eq!(
                recipe.combine.as_matrix().unwrap().to_dense().row(0),
                hex(&repair["coefficients"]),
                "{} of {lost}",
                code.spec()
            );
            assert_eq!(times(recipe.combine.as_matrix().unwrap(), &sent(&recipe, &blocks)), [hex(&repair["expect"])]);
            assert_eq!((recipe.sub_blocks_read() * 16) as u64, repair["bytes_read"].as_u64().unwrap());
            assert_eq!((recipe.sub_blocks_sent() * 16) as u64, repair["bytes_moved"].as_u64().unwrap());
        }
    }
}

#[test]
fn decodes() {
    for (golden, code) in golden() {
        let blocks = blocks(&golden);
        for decode in golden["decodes"].as_array().unwrap() {
            let lost = indices(&decode["lost"]);
            let left: Vec<u8> = (0..code.n() as u8).filter(|index| !lost.contains(index)).collect();
            let recipe = recipe(code.as_ref(), &lost, &left);
            let used: Vec<u8> = recipe.helpers.iter().map(|helper| helper.index).collect();
            assert_eq!(used, indices(&decode["survivors_used"]), "{} without {lost:?}", code.spec());
            let expected: Vec<Vec<u8>> = lost.iter().map(|index| blocks[usize::from(*index)].clone()).collect();
            assert_eq!(times(recipe.combine.as_matrix().unwrap(), &sent(&recipe, &blocks)), expected);
        }
    }
}

/// A parity block changes by its coefficient times the delta.
#[test]
fn updates() {
    for (golden, code) in golden() {
        let before = blocks(&golden);
        let (update, dense) = (&golden["update"], code.generator().to_dense());
        let column = update["index"].as_u64().unwrap() as usize;
        let changed = update["blocks"].as_array().unwrap();
        assert_eq!(changed.len(), 1 + code.m());
        for block in changed {
            let index = block["index"].as_u64().unwrap() as usize;
            let coefficient = SparseMatrix::new(1, 1, [(0, 0, dense.get(index, column))]).unwrap();
            let mut after = before[index].clone();
            Combination::new(&coefficient).accumulate(&[&hex(&update["delta"])], &mut [after.as_mut_slice()]);
            assert_eq!(after, hex(&block["after"]), "{} block {index}", code.spec());
        }
    }
}
