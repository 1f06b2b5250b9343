//! The slice length, compared with an independent model of the paper's formulas.

use serde_json::Value;
use weft_schemes::{best_slice, slice_size};

/// Eq. (9): the time in seconds.
fn seconds(len: u64, slice: u64, links: &[f64], overhead: f64) -> f64 {
    let one = |link: f64| (overhead + slice as f64) / link;
    let slowest = links.iter().copied().fold(f64::INFINITY, f64::min);
    (len.div_ceil(slice) - 1) as f64 * one(slowest) + links.iter().map(|link| one(*link)).sum::<f64>()
}

#[test]
fn the_slice_sizes_match_the_model() {
    let vectors: Value = serde_json::from_str(include_str!("data/topo_cpu.json")).unwrap();
    let cases = vectors["cases"].as_array().unwrap();
    for case in cases {
        let number = |name: &str| case[name].as_f64().unwrap();
        let path: Vec<usize> = case["maxmin_path"].as_array().unwrap().iter().map(|at| at.as_u64().unwrap() as usize).collect();
        let links: Vec<f64> = path.windows(2).map(|pair| case["bw_Bps"][pair[0]][pair[1]].as_f64().unwrap()).collect();
        let (len, overhead) = (number("l") as u64, number("alpha"));
        let slice = best_slice(len, &links, overhead, number("w") as u64);
        assert_eq!(slice as f64, number("c_eq14"), "{case}");
        let takes = seconds(len, slice, &links, overhead);
        assert!((takes - number("T_eq9_at_c14")).abs() < 1e-6, "{takes}: {case}");
        // An integer number of slices is a little better, most of all for small blocks with few slices.
        assert!(takes < number("T_eq9_best") * 1.02, "{takes}: {case}");
    }
    let rows = vectors["table2"]["rows"].as_array().unwrap();
    for row in rows {
        let links: Vec<f64> = row["links_mbps"].as_array().unwrap().iter().map(|mbps| mbps.as_f64().unwrap() * 125e3).collect();
        assert_eq!(best_slice(32 << 20, &links, 200.0, 8) as f64, row["c_eq14"].as_f64().unwrap(), "{row}");
    }
    assert_eq!((cases.len(), rows.len()), (10, 4));
}

#[test]
fn slices_of_chains_are_whole_pages_within_bounds() {
    let (block, gigabit) = (64 << 20, [125e6; 10]);
    assert_eq!(slice_size(block, &gigabit, 0.0), 4096, "without overhead, slices are as short as possible");
    assert_eq!(slice_size(block, &gigabit, 1.0), 1 << 20);
    assert_eq!(slice_size(block, &gigabit[..1], 20e-6), 1 << 20, "one link needs no slices");
    let slice = slice_size(block, &gigabit, 20e-6);
    assert!(slice.is_multiple_of(4096) && (128 << 10..148 << 10).contains(&slice), "{slice}");
    assert!(slice_size(block, &gigabit, 80e-6) > slice && slice_size(block / 4, &gigabit, 20e-6) < slice);
    assert_eq!(slice_size(5000, &gigabit, 1.0), 8192, "a slice is no longer than the block's pages");
    assert_eq!(slice_size(block, &[], 20e-6), 1 << 20);
    assert_eq!(slice_size(block, &[0.0, 1e6], 20e-6) % 4096, 0);
}
