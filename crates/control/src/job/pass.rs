//! One pass of a job over what there is to do: when the next item of it begins, when the pass is over, and what came of it.

use super::{Again, Passed};
use weft_types::{Error, JobState, Result};

/// A pass. Items begin one after another, several are under way at a time, and they end in any order.
#[derive(Debug)]
pub struct Pass {
    concurrency: usize,
    under_way: usize,
    all_begun: bool,
    failed: Option<Error>,
    again: Again,
}

impl Pass {
    /// With so many items under way at a time, at most.
    pub fn new(concurrency: usize) -> Self {
        Self { concurrency, under_way: 0, all_begun: false, failed: None, again: Again::InVain }
    }

    /// Whether the next item is to begin, if there is one, while the job is asked to be in this state.
    pub fn begins(&self, asked: JobState) -> bool {
        asked == JobState::Running && !self.all_begun && self.failed.is_none() && self.under_way < self.concurrency
    }

    /// Whether nothing of it is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// An item has begun, or there is none any more. If that could not be looked up, nothing else begins: what is under way ends first, and
    /// is not lost for this.
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

    /// What came of it, once nothing is under way and nothing begins.
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
    fn so_many_are_under_way_and_a_pause_lets_them_end() {
        let mut pass = Pass::new(2);
        assert!(pass.is_idle() && pass.begins(Running) && !pass.begins(Paused));
        assert_eq!([pass.next(Ok(Some(1))), pass.next(Ok(Some(2)))], [Some(1), Some(2)]);
        assert!(!pass.begins(Running), "two are under way");
        pass.ended(Again::Perhaps);
        assert!(pass.begins(Running) && !pass.begins(Paused) && !pass.is_idle());
        pass.ended(Again::InVain);
        assert!(pass.is_idle());
        assert_eq!(pass.over(), Ok((Passed::Stopped, Again::Perhaps)), "there may be more");
    }

    #[test]
    fn all_was_tried_when_there_is_no_next_one() {
        let mut pass = Pass::new(9);
        pass.next(Ok(Some(())));
        assert_eq!(pass.next::<()>(Ok(None)), None);
        assert!(!pass.begins(Running) && !pass.is_idle());
        pass.ended(Again::MadeWay);
        assert_eq!(pass.over(), Ok((Passed::All, Again::MadeWay)));
    }

    #[test]
    fn what_cannot_be_looked_up_ends_a_pass_once_the_others_have_ended() {
        let mut pass = Pass::new(9);
        pass.next(Ok(Some(())));
        pass.next::<()>(Err(Error::retry("the metadata are away")));
        assert!(!pass.begins(Running) && !pass.is_idle());
        pass.ended(Again::InVain);
        assert_eq!(pass.over(), Err(Error::retry("the metadata are away")));
    }
}
