//! What a part of a conversion waits for: the job tells it for as long as it waits, and no longer.

use crate::lasting::Control;

/// Somebody who may have to wait. Dropped, he waits no more.
pub(super) struct Waits<'a> {
    control: &'a Control,
    told: String,
}

impl<'a> Waits<'a> {
    pub(super) fn new(control: &'a Control) -> Self {
        Self { control, told: String::new() }
    }

    /// Tells what he waits for.
    pub(super) fn tell(&mut self, why: String) {
        self.control.live().progress.last_error.clone_from(&why);
        self.told = why;
    }

    /// He waits no more. What others have told since stays.
    pub(super) fn over(&mut self) {
        let told = std::mem::take(&mut self.told);
        let last_error = &mut self.control.live().progress.last_error;
        if !told.is_empty() && *last_error == told {
            last_error.clear();
        }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.over();
    }
}
