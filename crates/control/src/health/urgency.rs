//! In which order stripes are rebuilt.

use std::cmp::Reverse;

/// How urgent it is to rebuild a stripe. The lowest is first: it survives the fewest further losses; among these, it is read most.
///
/// Reads are only told apart by powers of four: so that stripes that are read about equally often can start in the order that suits the
/// links, and one more read changes no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Urgency {
    further: usize,
    heat: Reverse<u32>,
}

impl Urgency {
    /// Of a stripe that survives so many further losses, and was read so many times lately. One that cannot be read comes last.
    pub fn of(further: Option<usize>, reads: u32) -> Self {
        Self { further: further.unwrap_or(usize::MAX), heat: Reverse((u32::BITS - reads.leading_zeros()).div_ceil(2)) }
    }

    /// The same, but of the reads only whether there are any.
    pub fn roughly(self) -> Self {
        Self { heat: Reverse(self.heat.0.min(1)), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_further_losses_come_first_then_more_reads() {
        let of = Urgency::of;
        let order = [
            of(Some(0), u32::MAX),
            of(Some(0), 0),
            of(Some(1), 16),
            of(Some(1), 15),
            of(Some(1), 3),
            of(Some(1), 0),
            of(Some(2), 1 << 20),
            of(None, 99),
            of(None, 0),
        ];
        assert!(order.is_sorted_by(|one, next| one < next), "{order:?}");
        assert_eq!([of(Some(1), 1), of(Some(1), 4)], [of(Some(1), 3), of(Some(1), 15)], "about as many");
        assert_eq!(of(Some(1), 1).roughly(), of(Some(1), 1000).roughly());
        assert!(of(Some(0), 0).roughly() < of(Some(1), 9).roughly() && of(Some(1), 9).roughly() < of(Some(1), 0).roughly());
    }
}
