//! Random numbers that a seed determines, so that the same request has the same plan.

/// Draws from a seed (splitmix64).
pub(crate) fn draws(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// A permutation determined by the seed (Fisher and Yates).
pub(crate) fn shuffled<T: Clone>(all: &[T], seed: u64) -> Vec<T> {
    let mut shuffled = all.to_vec();
    let mut draw = draws(seed);
    for last in (1..shuffled.len()).rev() {
        shuffled.swap(last, (draw() % (last as u64 + 1)) as usize);
    }
    shuffled
}
