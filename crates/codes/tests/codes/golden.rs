//! Compares every code with vectors from an independent model: the same generator, blocks, repairs, decodes and
//! updates, byte by byte.
//!
//! A file in `data/` holds the records of one family (schema 1). Bytes are in hex or, if there are many, as their
//! SHA-256 and length. All values are in the order of blocks and sub-blocks:
//!
//! | key | content |
//! | --- | --- |
//! | `k`, `n`, `alpha`, `sub_chunk_bytes` | sizes; the last is the bytes of a sub-block |
//! | `data`, `data_blob` | the name of the data's seed, and the data: SHA-256 of `seed:0`, `seed:1`, … concatenated and cut to length |
//! | `generator` or `generator_sha256` | the rows of the generator, nα of kα coefficients |
//! | `blocks` | the n blocks |
//! | `repairs` | for one lost block: the helpers, the most bytes that they read and move, and the block (`expect`) |
//! | `decodes` | for several lost blocks: whether they can be recovered, and which k others suffice (`survivors_used`) |
//! | `pairs` | for each block, the pairs of others whose sum it is |
//! | `undecodable` | all unrecoverable patterns of up to m blocks, for codes that are not MDS |
//! | `update` | how blocks change when one of them does |

use serde_json::Value;
use sha2::{Digest, Sha256};
use weft_codes::{Ask, Recipe, SharedCode, SpecError, SubBlock, parse};
use weft_gf::{Combination, Factored, SparseMatrix};

#[test]
fn reed_solomon() {
    check(include_str!("../data/rs.json"), 12, |record| {
        let matrix = match record["params"]["construction"].as_str().unwrap() {
            "isal_cauchy1" => "cauchy",
            "isal_vandermonde" => "vandermonde",
            "jerasure_reed_sol_van" => "jerasure",
            other => panic!("{other}"),
        };
        format!("rs({},{},matrix={matrix})", record["k"], parity_blocks(record))
    });
}

#[test]
fn local_reconstruction() {
    check(include_str!("../data/lrc.json"), 5, |record| {
        let of = &record["params"];
        format!("lrc({},{},{})", of["k"], of["l"], of["g"])
    });
}

#[test]
fn butterfly() {
    check(include_str!("../data/butterfly.json"), 4, |record| format!("butterfly({})", record["k"]));
}

#[test]
fn msr() {
    check(include_str!("../data/pm_msr.json"), 4, |record| {
        format!("msr({},{},d={})", record["k"], parity_blocks(record), record["params"]["d"])
    });
}

#[test]
fn rotated_reed_solomon() {
    check(include_str!("../data/rotated_rs.json"), 3, |record| {
        let of = &record["params"];
        format!("rotated-rs({},{},r={})", of["k"], of["m"], of["r"])
    });
}

#[test]
fn hitchhiker() {
    check(include_str!("../data/hitchhiker.json"), 2, |record| {
        let of = &record["params"];
        format!("hitchhiker-{}({},{})", of["variant"].as_str().unwrap(), of["k"], of["m"])
    });
}

#[test]
fn homomorphic_self_repairing() {
    check(include_str!("../data/hsrc.json"), 4, |record| {
        let of = &record["params"];
        format!("hsrc({},{},d={})", of["n"], of["k"], of["d"])
    });
}

#[test]
fn clay() {
    check(include_str!("../data/clay.json"), 3, |record| {
        format!("clay({},{},d={})", record["k"], parity_blocks(record), record["params"]["d"])
    });
}

/// Compares every record of a file with the code whose spec `spec` makes from it; the file has `records` records.
fn check(file: &str, records: usize, spec: impl Fn(&Value) -> String) {
    let file: Value = serde_json::from_str(file).unwrap();
    assert_eq!((file["schema"].as_u64(), list(&file["codes"]).len()), (Some(1), records));
    for record in list(&file["codes"]) {
        let spec = spec(record);
        if record["mds"] == false {
            let refusal = parse(&spec).map(|code| code.spec());
            assert!(matches!(refusal, Err(SpecError::NotMds { .. })), "{spec}: {refusal:?}");
            continue;
        }
        let golden = Golden::new(record, parse(&spec).unwrap());
        golden.generator();
        golden.blocks();
        golden.repairs();
        golden.decodes();
        golden.pairs();
        golden.undecodable();
        golden.update();
    }
}

/// A record, and its code.
struct Golden<'a> {
    record: &'a Value,
    code: SharedCode,
    spec: String,
    /// Sub-block `index·α + s` of the stripe; the first k·α are the data.
    stripe: Vec<Vec<u8>>,
}

impl<'a> Golden<'a> {
    fn new(record: &'a Value, code: SharedCode) -> Self {
        let spec = code.spec();
        let sizes = ["k", "n", "alpha"].map(|key| number(&record[key]));
        assert_eq!(sizes, [code.k(), code.n(), code.alpha()], "{spec}");
        if let Some(units) = record["any_u_units_decode"].as_u64() {
            assert_eq!(code.tolerance(), code.n() - units as usize, "{spec}");
        }
        if record["mds"] == true {
            assert_eq!(code.tolerance(), code.m(), "{spec}");
        }
        let sub_block_bytes = number(&record["sub_chunk_bytes"]);
        let data = seeded(record["data"].as_str().unwrap(), code.k() * code.alpha() * sub_block_bytes);
        assert!(is(&record["data_blob"], &data), "{spec}: the data");
        let data: Vec<Vec<u8>> = data.chunks(sub_block_bytes).map(<[u8]>::to_vec).collect();
        let stripe = times(&code.generator().clone().into(), &data);
        Self { record, code, spec, stripe }
    }

    fn generator(&self) {
        let dense = self.code.generator().to_dense();
        let rows = || (0..dense.rows()).map(|row| dense.row(row));
        if let Some(golden) = self.record["generator"].as_array() {
            assert!(rows().eq(golden.iter().map(hex)), "{}: {dense:?}", self.spec);
        }
        if let Some(golden) = self.record["generator_sha256"].as_str() {
            assert_eq!(sha256(&rows().collect::<Vec<_>>().concat()), golden, "{}", self.spec);
        }
    }

    /// Both the generator and `encode` must give these blocks.
    fn blocks(&self) {
        let golden = list(&self.record["blocks"]);
        assert_eq!(golden.len(), self.code.n(), "{}", self.spec);
        for (index, golden) in golden.iter().enumerate() {
            assert!(is(golden, &self.block(index as u8)), "{}: block {index}", self.spec);
        }
        let (data, parity) = self.stripe.split_at(self.code.k() * self.code.alpha());
        assert!(times(&self.code.encode(), data) == parity, "{}: encode", self.spec);
    }

    /// Repairs from exactly the helpers in the record, and from all available blocks.
    fn repairs(&self) {
        let repairs = list(&self.record["repairs"]);
        assert!(!repairs.is_empty());
        for repair in repairs {
            let lost = number(&repair["lost"]) as u8;
            // A helper is a number, or an object with its reads.
            let helpers = list(&repair["helpers"]).iter().map(|helper| helper.get("node").unwrap_or(helper));
            let helpers: Vec<u8> = helpers.map(|helper| number(helper) as u8).collect();
            assert!(is(&repair["expect"], &self.block(lost)), "{}: block {lost}", self.spec);
            for available in [helpers, self.all_but(&[lost])] {
                let recipe = self.recover(&[lost], &available).unwrap_or_else(|| panic!("{}: block {lost}", self.spec));
                let len = self.stripe[0].len();
                let (read, moved) = (recipe.sub_blocks_read() * len, recipe.sub_blocks_sent() * len);
                let (read_max, moved_max) = (number(&repair["bytes_read"]), number(&repair["bytes_moved"]));
                assert!(
                    read <= read_max && moved <= moved_max,
                    "{}: block {lost} from {available:?} reads {read} and moves {moved} bytes, not {read_max} and {moved_max}",
                    self.spec
                );
            }
        }
    }

    fn decodes(&self) {
        for decode in self.record["decodes"].as_array().into_iter().flatten() {
            let lost = indices(&decode["lost"]);
            let decodable = decode["decodable"] == true;
            assert_eq!(self.recover(&lost, &self.all_but(&lost)).is_some(), decodable, "{} without {lost:?}", self.spec);
            if decodable {
                let survivors = indices(&decode["survivors_used"]);
                let recipe = self.recover(&lost, &survivors);
                assert!(recipe.is_some(), "{}: {lost:?} from {survivors:?}", self.spec);
            }
        }
    }

    fn pairs(&self) {
        for (lost, pairs) in self.record["pairs"].as_object().into_iter().flatten() {
            for pair in list(pairs) {
                let recipe = self.recover(&[lost.parse().unwrap()], &indices(pair)).unwrap();
                assert_eq!(recipe.sub_blocks_sent(), 2, "{}: block {lost} from {pair}", self.spec);
            }
        }
    }

    /// Exactly these patterns are refused.
    fn undecodable(&self) {
        let Some(golden) = self.record["undecodable"].as_array() else { return };
        let mut golden: Vec<Vec<u8>> = golden.iter().map(indices).collect();
        let patterns = (1..1u64 << self.code.n()).filter(|pattern| pattern.count_ones() as usize <= self.code.m());
        let patterns = patterns.map(|pattern| (0..self.code.n() as u8).filter(|index| pattern >> index & 1 == 1).collect());
        let mut refused: Vec<Vec<u8>> =
            patterns.filter(|lost: &Vec<u8>| self.recover(lost, &self.all_but(lost)).is_none()).collect();
        golden.sort();
        refused.sort();
        assert_eq!(refused, golden, "{}", self.spec);
    }

    /// A block changes by its coefficient times the delta.
    fn update(&self) {
        let Some(update) = self.record.get("update") else { return };
        let (dense, delta) = (self.code.generator().to_dense(), hex(&update["delta"]));
        let changed = indices(&update["nodes"]);
        assert_eq!(changed.len(), list(&update["blocks_after"]).len());
        for (index, golden) in changed.iter().zip(list(&update["blocks_after"])) {
            let coefficient = dense.get(usize::from(*index), number(&update["node"]));
            let coefficient = SparseMatrix::new(1, 1, [(0, 0, coefficient)]).unwrap();
            let mut after = self.block(*index);
            Combination::new(&coefficient).accumulate(&[&delta], &mut [after.as_mut_slice()]);
            assert!(is(golden, &after), "{}: block {index} after an update", self.spec);
        }
    }

    /// Runs the best recipe for whole blocks and checks its result; `None` if it is refused.
    fn recover(&self, lost: &[u8], available: &[u8]) -> Option<Recipe> {
        let alpha = self.code.alpha();
        let sub_blocks =
            |index: &u8| (0..alpha as u16).map(|sub_block| SubBlock { index: *index, sub_block }).collect::<Vec<_>>();
        let wanted = lost.iter().flat_map(sub_blocks).collect();
        let ask = Ask { wanted, available: available.to_vec(), read_anyway: Vec::new() };
        let recipe = self.code.recipes(&ask).ok()?.remove(0);
        let row = |index: u8, sub_block: u16| &self.stripe[usize::from(index) * alpha + usize::from(sub_block)];
        let mut sent = Vec::new();
        for helper in &recipe.helpers {
            assert!(available.contains(&helper.index));
            let read: Vec<Vec<u8>> = helper.reads.iter().map(|s| row(helper.index, *s).clone()).collect();
            sent.extend(times(&helper.compute.clone().into(), &read));
        }
        let expected = ask.wanted.iter().map(|wanted| row(wanted.index, wanted.sub_block));
        assert!(times(&recipe.combine, &sent).iter().eq(expected), "{}: {lost:?} from {available:?}", self.spec);
        Some(recipe)
    }

    fn block(&self, index: u8) -> Vec<u8> {
        let alpha = self.code.alpha();
        self.stripe[usize::from(index) * alpha..][..alpha].concat()
    }

    fn all_but(&self, lost: &[u8]) -> Vec<u8> {
        (0..self.code.n() as u8).filter(|index| !lost.contains(index)).collect()
    }
}

fn parity_blocks(record: &Value) -> usize {
    number(&record["n"]) - number(&record["k"])
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn indices(value: &Value) -> Vec<u8> {
    list(value).iter().map(|index| number(index) as u8).collect()
}

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// Whether these are the bytes of a value, or match its digest.
fn is(value: &Value, bytes: &[u8]) -> bool {
    match value.get("hex") {
        Some(text) => hex(text) == bytes,
        None => value["sha256"] == sha256(bytes) && number(&value["len"]) == bytes.len(),
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn seeded(seed: &str, len: usize) -> Vec<u8> {
    let blocks = (0..len.div_ceil(32)).flat_map(|counter| Sha256::digest(format!("{seed}:{counter}")));
    blocks.take(len).collect()
}

fn times(matrix: &Factored, sources: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let len = sources[0].len();
    let mut out = vec![vec![0x5a; len]; matrix.rows()];
    let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
    Combination::factored(matrix).apply(&sources, &mut out.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
    out
}
