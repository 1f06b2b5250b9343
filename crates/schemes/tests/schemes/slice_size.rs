//! The slice length, compared with an independent model of the paper's formulas.

use serde_json::Value;
use weft_schemes::{best_slice, region_of_interest, slice_size, update_slice_size};

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

#[test]
fn all_slices_of_the_region_of_interest_are_about_as_good_as_the_best() {
    for (len, hops, overhead, more) in
        [(16 << 20, 3, 200.0, 0.05), (64 << 20, 10, 200.0, 0.01), (1 << 20, 2, 60.0, 0.2), (1 << 20, 1, 200.0, 0.02)]
    {
        let (low, high) = region_of_interest(len, hops, overhead, more);
        // Eq. (9) with any number of slices, for links of a byte a second.
        let takes = |slice: f64| (len as f64 / slice - 1.0 + hops as f64) * (overhead + slice);
        let best = takes(best_slice(len, &vec![1.0; hops], overhead, 1) as f64);
        assert!(0.0 < low && low < high && high <= len as f64);
        assert!((takes(low) / best - 1.0 - more).abs() < 1e-4, "{low}: {}", takes(low) / best);
        assert!(high == len as f64 || (takes(high) / best - 1.0 - more).abs() < 1e-4, "{high}: {}", takes(high) / best);
        for part in 0..=10 {
            let slice = low * (high / low).powf(f64::from(part) / 10.0);
            assert!(takes(slice) < best * (1.0 + more + 1e-6), "{slice}");
        }
    }
    // The paper finds 4 KiB to 512 KiB for three racks, blocks of 16, 32 and 64 MiB, and an overhead of 200 bytes.
    for mib in [16, 32, 64] {
        let (low, high) = region_of_interest(mib << 20, 3, 200.0, 0.07);
        assert!(low < 4096.0 && high > 524_288.0, "{mib} MiB: {low} to {high}");
    }
    assert_eq!(region_of_interest(1 << 20, 3, 0.0, 0.0).0, 0.0, "without overhead, slices can be as short as wanted");
}

#[test]
fn an_updates_slice_is_in_the_region_of_interest() {
    let (block, equal) = (64 << 20, [125e6; 4]);
    assert_eq!(update_slice_size(block, &equal, 20e-6), slice_size(block, &equal, 20e-6), "equal links are the worst case");
    // One slow link: much longer slices would be a little better.
    let (slow, overhead_s) = ([1e6, 125e6, 125e6, 125e6], 1e-3);
    let slice = update_slice_size(8 << 20, &slow, overhead_s);
    assert!(slice < slice_size(8 << 20, &slow, overhead_s) && slice.is_multiple_of(4096), "{slice}");
    let least = seconds(8 << 20, slice_size(8 << 20, &slow, overhead_s), &slow, 1000.0);
    assert!(seconds(8 << 20, slice, &slow, 1000.0) < least * 1.05);
    assert_eq!(update_slice_size(block, &[], 20e-6), 1 << 20);
    assert_eq!(update_slice_size(5000, &equal, 1.0), 4096);
}
