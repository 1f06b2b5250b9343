//! Arithmetic on a lane's slices, without iterating over them.

use weft_types::Span;

/// The slices `first`, `first + step`, … of a span, each of `slice_len` positions except the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SliceSet {
    /// The positions that are cut into slices.
    pub span: Span,
    /// The first slice's number.
    pub first: u32,
    /// The distance to the next slice.
    pub step: u32,
    /// Positions in a slice.
    pub slice_len: u64,
}

impl SliceSet {
    /// The number of slices.
    pub fn count(&self) -> u64 {
        self.count_below(self.span.end)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// The number of positions in all slices.
    pub fn positions(&self) -> u64 {
        self.positions_below(u64::MAX)
    }

    /// The number of positions in the slices below `bound`.
    pub fn positions_below(&self, bound: u64) -> u64 {
        let bound = bound.min(self.span.end);
        let Some(last) = self.count_below(bound).checked_sub(1) else { return 0 };
        let rest = u128::from(bound) - self.start(last);
        (u128::from(last) * u128::from(self.slice_len) + rest.min(u128::from(self.slice_len))) as u64
    }

    /// From the first slice's start to the last one's end; empty if there are none.
    pub fn hull(&self) -> Span {
        match self.count().checked_sub(1) {
            Some(last) => Span::new(self.slice(0).start, self.slice(last).end),
            None => Span::new(self.span.start, self.span.start),
        }
    }

    /// The first slice that has a position in `range`.
    pub fn touching(&self, range: Span) -> Option<Span> {
        let range = range.intersect(self.hull());
        if range.is_empty() {
            return None;
        }
        let number = (range.start - self.span.start) / self.slice_len;
        let at = number.saturating_sub(u64::from(self.first)).div_ceil(u64::from(self.step));
        let slice = (at < self.count()).then(|| self.slice(at))?;
        (slice.start < range.end).then_some(slice)
    }

    /// The slices as few spans: a single one if every slice is in the set.
    pub fn runs(&self) -> impl Iterator<Item = Span> + use<> {
        let (set, whole) = (*self, self.step == 1);
        let count = if whole { self.count().min(1) } else { self.count() };
        (0..count).map(move |at| if whole { set.hull() } else { set.slice(at) })
    }

    /// The slice at index `at` of the set, which must exist.
    pub(crate) fn slice(&self, at: u64) -> Span {
        let start = self.start(at) as u64;
        Span::new(start, start.saturating_add(self.slice_len).min(self.span.end))
    }

    fn start(&self, at: u64) -> u128 {
        let number = u128::from(self.first) + u128::from(at) * u128::from(self.step);
        u128::from(self.span.start) + number * u128::from(self.slice_len)
    }

    fn count_below(&self, bound: u64) -> u64 {
        let stride = u128::from(self.step) * u128::from(self.slice_len);
        let rest = u128::from(bound).saturating_sub(self.start(0));
        if stride == 0 { 0 } else { rest.div_ceil(stride) as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_agrees_with_a_walk_over_the_slices() {
        for (start, end) in [(0, 0), (0, 1), (3, 40), (5, 38), (9, 3)] {
            for (first, step, slice_len) in
                [(0, 1, 1), (0, 1, 7), (1, 3, 4), (2, 2, 5), (9, 1, 9), (0, 0, 3), (0, 1, 0), (0, 4, 50)]
            {
                let set = SliceSet { span: Span::new(start, end), first, step, slice_len };
                let walked: Vec<Span> = crate::Slices::new(set.span, first, step, slice_len).collect();
                assert_eq!(set.count(), walked.len() as u64, "{set:?}");
                assert_eq!(set.positions(), walked.iter().map(|slice| slice.len()).sum::<u64>());
                assert_eq!(Span::normalize(set.runs().collect()), Span::normalize(walked.clone()));
                for x in 0..45 {
                    let below = walked.iter().map(|slice| slice.intersect(Span::new(0, x)).len()).sum::<u64>();
                    assert_eq!(set.positions_below(x), below, "{set:?} below {x}");
                    for y in x..45 {
                        let range = Span::new(x, y);
                        let found = walked.iter().find(|slice| !slice.intersect(range).is_empty()).copied();
                        assert_eq!(set.touching(range), found, "{set:?} touching {range:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn huge_numbers_do_not_overflow() {
        let set = SliceSet { span: Span::new(0, u64::MAX), first: u32::MAX, step: u32::MAX, slice_len: u64::MAX };
        assert!(set.is_empty());
        let set = SliceSet { span: Span::new(u64::MAX - 1, u64::MAX), first: 0, step: 1, slice_len: u64::MAX };
        assert_eq!((set.count(), set.positions(), set.hull()), (1, 1, set.span));
    }
}
