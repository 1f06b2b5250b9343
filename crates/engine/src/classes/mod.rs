//! Foreground before repair before scrub: who is admitted at a node ([`Admission`]), and whose turn it is at a disk or an uplink
//! ([`Turns`]).
//!
//! Both are pure: no clock, no socket, no waiting. The time is passed in, so that an agent and a simulator decide alike. They are
//! here, and not in `control`, since they are decided at each node, and this is the lowest crate that agents share with no wire and
//! no disk in it and that knows what a class is.

mod admission;
mod turns;

pub use admission::{Admission, Capacity, Demand};
pub use turns::{Ticket, Turns};

use std::ops::{Index, IndexMut};
use weft_plan::Class;

/// Each lower class keeps at least this part of a node's resources, percent, unless its limit is lower.
pub const KEPT_PERCENT: u32 = 5;

/// What tasks of repair and scrub read, write or send at once, bytes. A foreground task waits for at most [`TURNS_MAX`] of these.
pub const FRAME_BYTES_MAX: u64 = 256 << 10;

/// Frames of lower classes that pass one disk or uplink at a time.
pub const TURNS_MAX: usize = 2;

/// How many of so many bytes of a class pass at once.
pub fn frame_bytes(class: Class, bytes: u64) -> u64 {
    if class == Class::Foreground { bytes } else { bytes.min(FRAME_BYTES_MAX) }
}

/// Something of each class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ByClass<T>([T; 3]);

/// The classes that give way, first those that go first.
const LOWER: [Class; 2] = [Class::Repair, Class::Scrub];

impl<T> Index<Class> for ByClass<T> {
    type Output = T;
    fn index(&self, class: Class) -> &T {
        &self.0[class as usize]
    }
}

impl<T> IndexMut<Class> for ByClass<T> {
    fn index_mut(&mut self, class: Class) -> &mut T {
        &mut self.0[class as usize]
    }
}
