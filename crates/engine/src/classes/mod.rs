//! Foreground before repair before scrub: which task a node admits ([`Admission`]), and whose turn it is at a disk or
//! an uplink ([`Turns`]).
//!
//! Both are pure: no clock, no socket, no waiting. The caller passes in the time, so an agent and a simulator decide
//! alike. They are in this crate and not in `control` because each node decides for itself, and this is the lowest
//! crate shared by all agents that knows classes and neither the wire nor disks.

mod admission;
mod turns;

pub use admission::{Admission, Capacity, Demand};
pub use turns::{Ticket, Turns};

use std::ops::{Index, IndexMut};
use weft_plan::Class;

/// The least share of a node's resources that is reserved for each lower class, percent, unless its limit is lower.
pub const KEPT_PERCENT: u32 = 5;

/// The most bytes that a repair or scrub task reads, writes or sends in one turn. A foreground task waits for at most
/// [`TURNS_MAX`] of these.
pub const FRAME_BYTES_MAX: u64 = 256 << 10;

/// Frames of lower classes that may pass one disk or uplink at the same time.
pub const TURNS_MAX: usize = 2;

/// How many of `bytes` bytes of a class pass in one turn.
pub fn frame_bytes(class: Class, bytes: u64) -> u64 {
    if class == Class::Foreground { bytes } else { bytes.min(FRAME_BYTES_MAX) }
}

/// One value for each class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ByClass<T>([T; 3]);

/// The classes that give way, in order of precedence.
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
