//! One pass of a job over its items: when the next item starts, when the pass is over, and its result.

use super::{Again, Passed};
use weft_types::{Error, JobState, Result};

/// A pass. Items start one after another; several run concurrently and end in any order.
#[derive(Debug)]
pub struct Pass {
    concurrency: usize,
    under_way: usize,
    all_begun: bool,
    failed: Option<Error>,
    again: Again,
}

impl Pass {
    /// With at most this many concurrent items.
    pub fn new(concurrency: usize) -> Self {
        Self { concurrency, under_way: 0, all_begun: false, failed: None, again: Again::InVain }
    }

    /// Whether the next item, if any, may start while this state is requested.
    pub fn begins(&self, asked: JobState) -> bool {
        asked == JobState::Running && !self.all_begun && self.failed.is_none() && self.under_way < self.concurrency
    }

    /// Whether no item is running.
    pub fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// Takes the next item, or `None` if there are no more. If the lookup failed, no further item starts, and the
    /// running ones finish first.
    pub fn next<T>(&mut self, item: Result<Option<T>>) -> Option<T> {
        match item {
            Ok(Some(item)) => {
                self.under_way += 1;
                return Some(item);
            }
            Ok(None) => self.all_begun = true,
            Err(error) => self.failed = Some(error),
        }
        None
    }

    /// An item has ended.
    pub fn ended(&mut self, again: Again) {
        self.under_way = self.under_way.saturating_sub(1);
        self.again = self.again.max(again);
    }

    /// The result, once no item is running and none starts.
    pub fn over(self) -> Result<(Passed, Again)> {
        match self.failed {
            Some(error) => Err(error),
            None => Ok((if self.all_begun { Passed::All } else { Passed::Stopped }, self.again)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use JobState::{Paused, Running};

    #[test]
    fn concurrency_is_bounded_and_a_pause_lets_items_end() {
        let mut pass = Pass::new(2);
        assert!(pass.is_idle() && pass.begins(Running) && !pass.begins(Paused));
        assert_eq!([pass.next(Ok(Some(1))), pass.next(Ok(Some(2)))], [Some(1), Some(2)]);
        assert!(!pass.begins(Running), "two items are running");
        pass.ended(Again::Perhaps);
        assert!(pass.begins(Running) && !pass.begins(Paused) && !pass.is_idle());
        pass.ended(Again::InVain);
        assert!(pass.is_idle());
        assert_eq!(pass.over(), Ok((Passed::Stopped, Again::Perhaps)), "there may be more");
    }

    #[test]
    fn a_pass_is_complete_when_there_is_no_next_item() {
        let mut pass = Pass::new(9);
        pass.next(Ok(Some(())));
        assert_eq!(pass.next::<()>(Ok(None)), None);
        assert!(!pass.begins(Running) && !pass.is_idle());
        pass.ended(Again::MadeWay);
        assert_eq!(pass.over(), Ok((Passed::All, Again::MadeWay)));
    }

    #[test]
    fn a_failed_lookup_ends_a_pass_once_running_items_have_ended() {
        let mut pass = Pass::new(9);
        pass.next(Ok(Some(())));
        pass.next::<()>(Err(Error::retry("the metadata is unavailable")));
        assert!(!pass.begins(Running) && !pass.is_idle());
        pass.ended(Again::InVain);
        assert_eq!(pass.over(), Err(Error::retry("the metadata is unavailable")));
    }
}
