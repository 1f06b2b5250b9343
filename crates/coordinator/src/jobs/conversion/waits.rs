//! What part of a conversion waits for: the shell around [`weft_control::conversion::waits`].

use crate::jobs::Control;

/// A part that may have to wait. Dropping it ends its wait.
pub(super) struct Waits<'a> {
    control: &'a Control,
    number: u64,
}

impl<'a> Waits<'a> {
    pub(super) fn new(control: &'a Control) -> Self {
        let number = control.live().waits.number();
        Self { control, number }
    }

    /// Reports what it waits for.
    pub(super) fn tell(&self, what: &str) {
        self.control.live().waits.tell(self.number, what);
    }

    /// Ends the wait.
    pub(super) fn over(&self) {
        self.control.live().waits.over(self.number);
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.over();
    }
}
