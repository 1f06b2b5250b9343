//! Measures the coding speed of this machine.

use crate::Throttle;
use tokio::time::Instant;
use weft_engine::CodingSample;

/// The best of several rounds counts, because other load only slows a round down. All rounds together take less than 1
/// ms.
const ROUNDS: usize = 8;
const RUNS_A_ROUND: usize = 4;

/// Input bytes a second of a stage, for each output row, limited by the throttle. 0 if unknown, for example when the
/// clock stands still.
pub(crate) fn coding_bytes_per_s(throttle: &Throttle) -> u64 {
    let mut sample = CodingSample::default();
    let mut round = || {
        let begin = Instant::now();
        let bytes: u64 = (0..RUNS_A_ROUND).map(|_| sample.run()).sum();
        let seconds = begin.elapsed().as_secs_f64();
        if seconds > 0.0 { (bytes as f64 / seconds) as u64 } else { 0 }
    };
    let measured = (0..ROUNDS).map(|_| round()).max().unwrap_or(0);
    match throttle.coding_bytes_per_s {
        Some(most) if measured == 0 || measured > most.0 => most.0,
        _ => measured,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::ByteSize;

    #[tokio::test]
    async fn the_coding_speed_is_that_of_the_machine_or_of_the_throttle() {
        let measured = coding_bytes_per_s(&Throttle::default());
        assert!(measured > 1 << 20, "{measured} bytes a second");
        let throttle = Throttle { coding_bytes_per_s: Some(ByteSize(1 << 20)), ..Throttle::default() };
        assert_eq!(coding_bytes_per_s(&throttle), 1 << 20);
    }

    #[tokio::test(start_paused = true)]
    async fn the_speed_is_unknown_if_the_clock_does_not_advance() {
        assert_eq!(coding_bytes_per_s(&Throttle::default()), 0);
    }
}
