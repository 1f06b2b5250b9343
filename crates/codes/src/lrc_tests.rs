use super::*;
use crate::{conformance, generator_hash, info, parse};

#[test]
fn they_conform() {
    for spec in ["lrc(1,1,1)", "lrc(4,2,1)", "lrc(4,4,1)", "lrc(3,1,3)", "lrc(6,2,2)", "lrc(4,2,3)", "lrc(6,3,1)", "lrc(2,2,5)"] {
        conformance::check(parse(spec).unwrap().as_ref()).unwrap();
    }
    for spec in
        ["lrc(12,2,2)", "lrc(4,2,6)", "lrc(9,3,3)", "lrc(12,3,3)", "lrc(20,2,4)", "lrc(60,4,2)", "lrc(100,2,2)", "lrc(240,12,3)"]
    {
        conformance::check(parse(spec).unwrap().as_ref()).unwrap();
    }
}

#[test]
fn data_and_local_parities_are_repaired_within_their_group() {
    for (k, l, g) in [(4, 2, 1), (6, 2, 2), (12, 2, 2), (4, 2, 6), (9, 3, 3), (60, 4, 2)] {
        let info = info(&Lrc::new(k, l, g)).unwrap();
        assert!(
            info.blocks[..k + l].iter().all(|block| (block.blocks_read, block.blocks_moved) == ((k / l) as f64, (k / l) as f64))
        );
        assert!(info.blocks[k + l..].iter().all(|block| block.blocks_moved == k as f64));
    }
}

fn helpers(wanted: &[u8], lost: &[u8], read_anyway: &[u8]) -> Vec<u8> {
    let code = Lrc::new(6, 2, 2);
    let wanted = wanted.iter().map(|index| SubBlock { index: *index, sub_block: 0 }).collect();
    let available = (0..code.n() as u8).filter(|index| !lost.contains(index)).collect();
    let ask = Ask { wanted, available, read_anyway: read_anyway.to_vec() };
    let mut helpers: Vec<u8> = code.recipes(&ask).unwrap()[0].helpers.iter().map(|helper| helper.index).collect();
    helpers.sort_unstable();
    helpers
}

#[test]
fn repair_stays_local_if_possible_and_prefers_blocks_read_anyway() {
    assert_eq!(helpers(&[0], &[0], &[]), [1, 2, 6]);
    assert_eq!(helpers(&[0], &[0, 3, 4, 7], &[]), [1, 2, 6], "losses elsewhere do not matter");
    assert_eq!(helpers(&[7], &[7, 0], &[]), [3, 4, 5]);
    assert_eq!(helpers(&[0, 7], &[7, 0], &[]), [1, 2, 3, 4, 5, 6], "two groups");
    assert_eq!(helpers(&[0], &[0, 1], &[]).len(), 6, "the group alone is not enough");
    assert_eq!(helpers(&[0], &[0, 6], &[]).len(), 6);
    assert_eq!(helpers(&[0], &[0], &[1, 2, 3, 4, 5, 8]), [1, 2, 3, 4, 5, 8], "the global parity is read anyway");
    assert_eq!(helpers(&[0], &[0], &[3, 4, 5]), [1, 2, 6]);
}

/// Whether any code with these groups could recover a pattern: the unknowns that no local equation covers must be at
/// most as many as the remaining globals.
fn possible(code: &Lrc, is_lost: impl Fn(usize) -> bool) -> bool {
    let (k, l, g, size) = (code.k, code.l, code.g, code.k / code.l);
    let excess = |group: usize| {
        let unknown = (group * size..(group + 1) * size).filter(|index| is_lost(*index)).count();
        unknown.saturating_sub(usize::from(!is_lost(k + group)))
    };
    (0..l).map(excess).sum::<usize>() <= (0..g).filter(|global| !is_lost(k + l + global)).count()
}

#[test]
fn codes_declared_maximally_recoverable_are() {
    let by_subgroups = [(4, 2, 1), (4, 2, 2), (6, 2, 2), (6, 3, 2), (4, 4, 2), (8, 4, 1), (10, 2, 2), (9, 3, 2)];
    let drawn = [(4, 2, 3), (6, 2, 3), (6, 3, 3), (8, 2, 3), (9, 3, 3), (4, 2, 6), (5, 5, 1), (4, 1, 3)];
    for (k, l, g) in by_subgroups.into_iter().chain(drawn) {
        let code = Lrc::new(k, l, g);
        for pattern in 1usize..1 << code.n() {
            let is_lost = |index: usize| pattern >> index & 1 == 1;
            let left: Vec<usize> = (0..code.n()).filter(|index| !is_lost(*index)).collect();
            let recovered = left.len() >= k && code.generator.select_rows(&left).to_dense().rank() == k;
            assert_eq!(recovered, possible(&code, is_lost), "lrc({k},{l},{g}) without {pattern:#b}");
        }
    }
}

/// The subgroups of any two groups share only zero, even with the maximum number of groups.
#[test]
fn subgroups_share_only_zero() {
    for l in [2, 3, 17] {
        let k = 15 * l;
        let element = globals(k, l, 1);
        let sums = |group: usize| {
            let members = move || (0..15).map(move |at| 15 * group + at);
            let element = &element;
            members().flat_map(move |a| members().map(move |b| (a, b))).map(move |(a, b)| match a == b {
                true => element.get(0, a),
                false => element.get(0, a) ^ element.get(0, b),
            })
        };
        let mut owner = [None; 256];
        for group in 0..l {
            for sum in sums(group) {
                assert_ne!(sum, 0);
                assert_eq!(*owner[usize::from(sum)].get_or_insert(group), group, "l = {l}: {sum} belongs to two groups");
            }
        }
    }
}

#[test]
fn drawn_coefficients_never_change() {
    for (k, l, g, hash) in [
        (4, 2, 6, 0xed3f_6d63_8532_16b4),
        (6, 2, 3, 0xfb47_56d3_b57a_e79b),
        (12, 3, 3, 0xf075_12ac_6319_f93a),
        (100, 2, 2, 0x689b_c668_45b5_d9e5),
    ] {
        assert_eq!(
            generator_hash(&Lrc::new(k, l, g)),
            hash,
            "the hash of lrc({k},{l},{g}) is stored on disks and must never change"
        );
    }
}

#[test]
fn values_out_of_range_are_refused_and_valid_ones_named() {
    for (spec, says) in [
        ("lrc(0,2,2)", "each must be at least 1"),
        ("lrc(6,0,2)", "each must be at least 1"),
        ("lrc(6,2,0)", "each must be at least 1"),
        ("lrc(200,50,6)", "k+l+g is 256: it must be at most 255"),
        ("lrc(7,2,2)", "use lrc(6,2,2) or lrc(8,2,2)"),
        ("lrc(1,2,2)", "use lrc(2,2,2)"),
    ] {
        let error = parse(spec).map(|code| code.spec()).unwrap_err().to_string();
        assert!(error.contains(says), "{spec}: {error}");
    }
}
