//! What a part of a conversion waits for: the shell around [`weft_control::conversion::waits`].

use crate::jobs::Control;

/// A part that may have to wait. Dropped, it waits no more.
pub(super) struct Waits<'a> {
    control: &'a Control,
    number: u64,
}

impl<'a> Waits<'a> {
    pub(super) fn new(control: &'a Control) -> Self {
        let number = control.live().waits.number();
        Self { control, number }
    }

    /// Tells what it waits for.
    pub(super) fn tell(&self, what: &str) {
        self.control.live().waits.tell(self.number, what);
    }

    /// It waits no more.
    pub(super) fn over(&self) {
        self.control.live().waits.over(self.number);
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.over();
    }
}
