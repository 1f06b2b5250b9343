use super::*;
use crate::{conformance, parse};

#[test]
fn every_shape_up_to_ten_blocks_and_some_larger_ones_conform() {
    for k in 1..=9 {
        for m in 1..=10 - k {
            conformance::check(&ReedSolomon::new(k, m, ParityMatrix::Cauchy)).unwrap();
        }
    }
    for spec in ["rs(10,4)", "rs(12,4)", "rs(4,12)", "rs(1,20)", "rs(60,1)", "rs(1,254)", "rs(254,1)", "rs(128,20)"] {
        conformance::check(parse(spec).unwrap().as_ref()).unwrap();
    }
    for (k, m) in [(1, 1), (5, 1), (4, 2), (6, 4), (10, 4), (12, 20), (250, 5)] {
        let spec = format!("rs({k},{m},matrix=jerasure)");
        conformance::check(parse(&spec).unwrap().as_ref()).unwrap();
    }
    for (k, m) in [(4, 2), (5, 5), (10, 4), (21, 4), (4, 21), (100, 3), (3, 100)] {
        let spec = format!("rs({k},{m},matrix=vandermonde)");
        conformance::check(parse(&spec).unwrap().as_ref()).unwrap();
    }
}

#[test]
fn vandermonde_is_refused_exactly_where_it_is_not_mds() {
    for k in 1..=40 {
        for m in 1..=40 {
            let mds = k.min(m) <= 3 || (m == 4 && k <= 21) || (k == 4 && m <= 21) || (k, m) == (5, 5);
            let refused = parse(&format!("rs({k},{m},matrix=vandermonde)")).err();
            assert_eq!(refused.is_none(), mds, "rs({k},{m})");
            let Some(SpecError::NotMds { lost, .. }) = refused else { continue };
            // The witness is correct: without these m blocks, the rest does not span the data.
            let code = ReedSolomon::new(k, m, ParityMatrix::Vandermonde);
            let left: Vec<usize> = (0..k + m).filter(|index| !lost.contains(&(*index as u8))).collect();
            assert_eq!(left.len(), k, "{lost:?}");
            assert!(code.generator.select_rows(&left).to_dense().rank() < k, "rs({k},{m}) survives {lost:?}");
        }
    }
}

#[test]
fn small_vandermonde_matrices_are_mds_as_the_proof_says() {
    for (k, m) in [(100, 2), (40, 3), (3, 40), (2, 253)] {
        assert_eq!(singular_minor(&ParityMatrix::Vandermonde.rows(k, m)), None, "rs({k},{m})");
    }
}

/// The systematic matrix by elimination, column by column, as Jerasure makes it.
#[test]
fn jerasures_rows_match_elimination() {
    for (k, m) in [(1, 1), (1, 4), (2, 2), (6, 3), (9, 4), (10, 11), (60, 20)] {
        let point = |row: usize, col: usize| match row {
            _ if row == k + m - 1 => u8::from(col == k - 1),
            _ => (0..col).fold(1, |power, _| field::mul(power, row as u8)),
        };
        let extended = Matrix::from_fn(k + m, k, point);
        let top = extended.select_rows(&(0..k).collect::<Vec<_>>()).inverse().unwrap();
        let bottom = extended.select_rows(&(k..k + m).collect::<Vec<_>>()).times(&top);
        let ratio = |a: u8, b: u8| field::mul(a, field::inv(b).unwrap());
        let by_column = Matrix::from_fn(m, k, |row, col| ratio(bottom.get(row, col), bottom.get(0, col)));
        let scaled = Matrix::from_fn(m, k, |row, col| ratio(by_column.get(row, col), by_column.get(row, 0)));
        assert_eq!(ParityMatrix::Jerasure.rows(k, m), scaled, "rs({k},{m})");
    }
    for (k, m) in [(4, 4), (12, 3), (3, 12), (30, 2), (2, 30)] {
        assert_eq!(singular_minor(&ParityMatrix::Jerasure.rows(k, m)), None, "rs({k},{m}) is MDS, as the proof says");
    }
}

#[test]
fn the_refusal_names_a_pattern_and_an_alternative() {
    let message = parse("rs(10,5,matrix=vandermonde)").map(|code| code.spec()).unwrap_err().to_string();
    assert!(message.starts_with("rs(10,5,matrix=vandermonde) would lose data: blocks [0, 3, 5, 12, 13]"), "{message}");
    assert!(message.contains("use rs(10,5)"), "{message}");
}

#[test]
fn the_rows_of_a_refused_matrix_are_isa_ls_too() {
    let golden: serde_json::Value = serde_json::from_str(include_str!("../tests/data/rs.json")).unwrap();
    let golden = golden["codes"].as_array().unwrap().iter().find(|code| code["mds"] == false).unwrap();
    let code = ReedSolomon::new(6, 5, ParityMatrix::Vandermonde);
    let rows = code.generator.to_dense();
    for (row, hex) in golden["generator"].as_array().unwrap().iter().enumerate() {
        let ours: String = rows.row(row).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(ours, *hex, "row {row}");
    }
    let minor = vandermonde_witness(6, 5).unwrap();
    let bad = &golden["singular_minor"];
    assert_eq!(
        (serde_json::json!(minor.rows), serde_json::json!(minor.cols)),
        (bad["parity_rows"].clone(), bad["data_cols"].clone())
    );
    let lost = golden["decodes"].as_array().unwrap().iter().find(|decode| decode["decodable"] == false).unwrap()["lost"].clone();
    assert_eq!(serde_json::json!(minor.lost(6, 5)), lost);
}
