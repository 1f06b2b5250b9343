//! A short run of the fuzzer's entries: seeds, earlier findings, and a bounded number of mutations.

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};
use weft_fuzz_entries::{ENTRIES, Entry, seeds};

/// Mutated inputs for each entry.
const CHANGED: usize = 4_000;

#[test]
fn seeds_and_found_inputs_pass() {
    for (name, entry) in ENTRIES {
        let seeds = seeds(name).unwrap();
        assert!(!seeds.is_empty());
        assert!(seeds.iter().all(|seed| pass(name, entry, seed)), "a seed of {name} is invalid");
        found(name).iter().for_each(|input| _ = pass(name, entry, input));
    }
}

#[test]
fn changed_seeds_pass() {
    for (name, entry) in ENTRIES {
        let mut random = StdRng::seed_from_u64(name.len() as u64);
        let seeds = [seeds(name).unwrap(), found(name), vec![Vec::new()]].concat();
        let mut input = Vec::new();
        for number in 0..CHANGED {
            // Several mutations accumulate before the next seed.
            if number % 8 == 0 {
                input = seeds.choose(&mut random).unwrap().clone();
            }
            change(&mut input, seeds.choose(&mut random).unwrap(), &mut random);
            pass(name, entry, &input);
        }
    }
}

fn pass(name: &str, entry: Entry, input: &[u8]) -> bool {
    let passed = catch_unwind(AssertUnwindSafe(|| entry(input)));
    passed.unwrap_or_else(|_| panic!("{name} fails with {:?}", String::from_utf8_lossy(input)))
}

/// Inputs that once made an entry fail.
fn found(name: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/found").join(name);
    let Ok(files) = fs::read_dir(dir) else { return Vec::new() };
    files.map(|file| fs::read(file.unwrap().path()).unwrap()).collect()
}

/// Words that formats give a meaning to, and numbers at which arithmetic overflows.
const WORDS: [&[u8]; 8] =
    [b"\0", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x80", b"-1", b"18446744073709551615", b"null", b"[]", b"1e999"];

fn change(input: &mut Vec<u8>, other: &[u8], random: &mut StdRng) {
    let at = random.random_range(0..=input.len());
    let end = random.random_range(at..=input.len().min(at + 64));
    match random.random_range(0..7) {
        0 => input.truncate(at),
        1 => drop(input.drain(at..end)),
        2 => drop(input.splice(at..at, input[at..end].to_vec())),
        3 => drop(input.splice(at..end, WORDS.choose(random).unwrap().iter().copied())),
        4 => {
            let from = random.random_range(0..=other.len());
            drop(input.splice(at..end, other[from..other.len().min(from + 64)].iter().copied()));
        }
        5 if at < input.len() => input[at] ^= 1 << random.random_range(0..8),
        _ if at < input.len() => input[at] = random.random(),
        _ => input.push(random.random()),
    }
}
