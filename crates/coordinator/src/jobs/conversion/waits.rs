//! What a part of a conversion waits for: the job tells it for as long as it waits, and no longer.

use crate::jobs::Control;

/// Somebody who may have to wait. Dropped, he waits no more.
pub(super) struct Waits<'a> {
    control: &'a Control,
    number: u64,
}

impl<'a> Waits<'a> {
    pub(super) fn new(control: &'a Control) -> Self {
        let mut live = control.live();
        live.waiters += 1;
        Self { control, number: live.waiters }
    }

    /// Tells what he waits for. An error may say itself that it "waits for" something.
    pub(super) fn tell(&mut self, what: &str) {
        let what = what.strip_prefix("waits for ").unwrap_or(what).to_owned();
        self.control.live().waits_for.insert(self.number, what);
    }

    /// He waits no more.
    pub(super) fn over(&self) {
        self.control.live().waits_for.remove(&self.number);
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.over();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::Live;
    use tokio::sync::watch;
    use weft_control::job::Job;
    use weft_types::{JobProgress, JobState};

    #[test]
    fn who_waits_says_so_for_as_long_as_he_does_and_hides_no_failure() {
        let progress = JobProgress { last_error: "it failed".into(), ..JobProgress::default() };
        let live = Live::new(Job::new(JobState::Running, progress, "")).into();
        let control = Control { state: watch::Sender::new(JobState::Running), live };
        let told = || control.live().waits();
        let [mut one, mut other, mut third] = [(); 3].map(|()| Waits::new(&control));
        one.tell("waits for space: a");
        other.tell("node-01");
        third.tell("node-01");
        assert_eq!(told(), ["node-01", "space: a"]);
        one.over();
        other.tell("node-02");
        assert_eq!(told(), ["node-01", "node-02"]);
        drop((other, third));
        assert_eq!((told().len(), control.live().job.progress().last_error.as_str()), (0, "it failed"));
    }
}
