//! The rates of nodes' links and disks relative to each other, so that times are balanced and not bytes.

use super::repair::{Assignment, Load, Repair};
use std::collections::BTreeMap;

/// The speed of the fastest links.
pub(super) const FULL: u64 = 1_000;

/// The speeds of nodes' links, by number, in both directions, and of their disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Speeds {
    up: Vec<u64>,
    down: Vec<u64>,
    /// Of the disks of each node together; empty if none is limited.
    disks: Vec<Option<u64>>,
    racks: Racks,
}

/// The direction of a load. Disks have one for both: what they write, they do not read meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
    Disk,
}

impl Direction {
    pub(super) fn of(self, load: &Load) -> u64 {
        match self {
            Self::Down => load.down,
            Self::Up => load.up,
            Self::Disk => load.disk,
        }
    }
}

impl Speeds {
    /// The same for so many nodes.
    pub fn even(nodes: usize) -> Self {
        Self { up: vec![FULL; nodes], down: vec![FULL; nodes], disks: Vec::new(), racks: Racks::default() }
    }

    /// From rates in bytes a second, upload and download of each node. A rate of 0 or less counts as very slow.
    pub fn of(rates: &[(f64, f64)]) -> Self {
        Self::with_racks(rates, Vec::new(), &[])
    }

    /// Likewise, with the rack of each node, and the rates out of each rack and into it, where they are limited.
    pub fn with_racks(rates: &[(f64, f64)], rack_of: Vec<u32>, racks: &[(Option<f64>, Option<f64>)]) -> Self {
        let best = best(rates);
        let speed = |rate: f64| match best > 0.0 {
            true => ((rate / best * FULL as f64).round() as u64).clamp(1, FULL),
            false => FULL,
        };
        let of_rack = |rate: Option<f64>| speed_of_shared(rate, best);
        Self {
            up: rates.iter().map(|(up, _)| speed(*up)).collect(),
            down: rates.iter().map(|(_, down)| speed(*down)).collect(),
            disks: Vec::new(),
            racks: Racks::new(rack_of, racks.iter().map(|(up, down)| (of_rack(*up), of_rack(*down))).collect()),
        }
    }

    /// Likewise, with the rates of each node's disks together, where they are known; the others count as unlimited. `rates`: those of links,
    /// as above.
    #[must_use]
    pub fn and_disks(mut self, rates: &[(f64, f64)], of_disks: &[Option<f64>]) -> Self {
        let best = best(rates);
        self.disks = of_disks.iter().map(|rate| speed_of_shared(*rate, best)).collect();
        if self.disks.iter().all(Option::is_none) {
            self.disks.clear();
        }
        self
    }

    /// Whether the disks of any node are limited.
    pub fn disks_are_limited(&self) -> bool {
        !self.disks.is_empty()
    }

    /// A load without what does not matter: disks, where none is limited. Vertices are equal if these are equal.
    pub(super) fn seen(&self, load: Load) -> Load {
        if self.disks_are_limited() { load } else { Load::of_links(load.up, load.down) }
    }

    /// The directions that matter.
    pub(super) fn directions(&self) -> impl Iterator<Item = Direction> {
        let disk = self.disks_are_limited().then_some(Direction::Disk);
        [Direction::Down, Direction::Up].into_iter().chain(disk)
    }

    /// The time in which the disks of these nodes together carry so many bytes, in bytes that the fastest link carries in it; 0 if those of
    /// any are not limited.
    pub(super) fn time_of_disks(&self, nodes: impl IntoIterator<Item = u32>, bytes: u64) -> f64 {
        let together: Option<u64> = nodes.into_iter().map(|node| self.disks.get(node as usize).copied().flatten()).sum();
        together.filter(|speed| *speed > 0).map_or(0.0, |speed| bytes as f64 * FULL as f64 / speed as f64)
    }

    /// The racks whose links are limited.
    pub fn racks(&self) -> &Racks {
        &self.racks
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.up.len()
    }

    /// The speed of a node's uplink, downlink or disks; `None`: not limited.
    pub(super) fn at(&self, direction: Direction, node: usize) -> Option<u64> {
        let of_link = |all: &[u64]| Some(all.get(node).copied().unwrap_or(FULL));
        match direction {
            Direction::Up => of_link(&self.up),
            Direction::Down => of_link(&self.down),
            Direction::Disk => self.disks.get(node).copied().flatten(),
        }
    }

    /// The time of these bytes on a link or on disks, in bytes that the fastest link carries in it.
    pub(super) fn time(&self, direction: Direction, node: usize, bytes: u64) -> u64 {
        self.at(direction, node).map_or(0, |speed| bytes.saturating_mul(FULL).div_ceil(speed))
    }

    /// The bytes that a link or disks carry in this time.
    pub(super) fn bytes(&self, direction: Direction, node: usize, time: u64) -> u64 {
        let carried = |speed: u64| (u128::from(time) * u128::from(speed) / u128::from(FULL)) as u64;
        self.at(direction, node).map_or(u64::MAX, carried)
    }

    /// The time of the busiest of a node's directions, in bytes that the fastest link carries in it.
    pub fn busier(&self, node: usize, load: &Load) -> u64 {
        self.directions().map(|direction| self.time(direction, node, direction.of(load))).max().unwrap_or(0)
    }

    /// The least speed, for bounds.
    pub(super) fn time_max(&self, bytes: u64) -> u64 {
        let slowest = self.up.iter().chain(&self.down).chain(self.disks.iter().flatten()).min().copied().unwrap_or(FULL);
        bytes.saturating_mul(FULL).div_ceil(slowest)
    }
}

/// The rate of the fastest link.
fn best(rates: &[(f64, f64)]) -> f64 {
    rates.iter().flat_map(|(up, down)| [*up, *down]).filter(|rate| rate.is_finite()).fold(0.0, f64::max)
}

/// The speed of what may be faster than the fastest link, because many share it; `None`: not limited.
fn speed_of_shared(rate: Option<f64>, best: f64) -> Option<u64> {
    Some((rate? / best * FULL as f64).round().clamp(1.0, 1e9) as u64).filter(|_| best > 0.0)
}

/// The speeds out of a rack and into it; `None`: not limited.
type RackSpeeds = (Option<u64>, Option<u64>);

/// The racks of nodes, and how fast their links are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Racks {
    /// Of each node; empty if no rack's links are limited.
    of: Vec<u32>,
    /// Of each rack.
    pub(super) speeds: Vec<RackSpeeds>,
}

impl Racks {
    pub(super) fn new(of: Vec<u32>, speeds: Vec<RackSpeeds>) -> Self {
        match speeds.iter().any(|(up, down)| up.or(*down).is_some()) {
            true => Self { of, speeds },
            false => Self::default(),
        }
    }

    /// Whether links of racks are limited.
    pub fn are_limited(&self) -> bool {
        !self.of.is_empty()
    }

    /// How many there are, if their links are limited; otherwise 0.
    pub fn count(&self) -> usize {
        self.speeds.len()
    }

    pub(super) fn at(&self, node: u32) -> usize {
        self.of.get(node as usize).map_or(0, |rack| *rack as usize)
    }

    /// Orders the places of each part by rack, with those in the rack of the destination at the end.
    pub(super) fn group(&self, repair: &Repair, places: &mut [u32]) {
        let helpers = repair.parts.split_last().map_or(&[][..], |(_, helpers)| helpers);
        let first: usize = helpers.iter().map(|part| part.vertices.len()).sum();
        let Some(root) = places.get(first).map(|node| self.at(*node)) else { return };
        let mut begin = 0;
        for part in helpers {
            let end = begin + part.vertices.len();
            places[begin..end].sort_by_key(|node| (self.at(*node) == root, self.at(*node), *node));
            begin = end;
        }
    }

    /// What the links of each rack carry under an assignment.
    pub fn loads(&self, repair: &Repair, assignment: &Assignment) -> BTreeMap<u32, Load> {
        let (places, mut loads): (Vec<u32>, BTreeMap<u32, Load>) = (assignment.concat(), BTreeMap::new());
        for edge in repair.edges.iter().filter(|_| self.are_limited()) {
            let (from, to) = (self.at(places[edge.from]), self.at(places[edge.to]));
            if from != to {
                loads.entry(from as u32).or_default().up += edge.bytes;
                loads.entry(to as u32).or_default().down += edge.bytes;
            }
        }
        loads
    }

    /// The time in which the links of all racks together carry so many bytes, in bytes that the fastest link of a node carries in it.
    pub fn time_of_all(&self, bytes: f64) -> f64 {
        let together = |of: fn(&RackSpeeds) -> Option<u64>| -> Option<u64> { self.speeds.iter().map(of).sum() };
        let time = |speed: Option<u64>| speed.filter(|speed| *speed > 0).map_or(0.0, |speed| bytes * FULL as f64 / speed as f64);
        time(together(|(up, _)| *up)).max(time(together(|(_, down)| *down)))
    }

    /// The time of a rack's busier link, in bytes that the fastest link of a node carries in it.
    pub fn busier(&self, rack: u32, load: &Load) -> u64 {
        let (up, down) = self.speeds.get(rack as usize).copied().unwrap_or_default();
        let time = |bytes: u64, speed: Option<u64>| speed.map_or(0, |speed| bytes.saturating_mul(FULL).div_ceil(speed));
        time(load.up, up).max(time(load.down, down))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_carry_what_is_read_and_written_and_are_unlimited_where_they_are_not_known() {
        let rates = [(100.0, 100.0), (100.0, 100.0)];
        let speeds = Speeds::of(&rates).and_disks(&rates, &[Some(25.0), None]);
        let load = Load { up: 30, down: 10, disk: 10 };
        assert_eq!([0, 1].map(|node| speeds.busier(node, &load)), [40, 30]);
        assert_eq!(speeds.bytes(Direction::Disk, 0, 40), 10);
        assert_eq!((speeds.bytes(Direction::Disk, 1, 0), speeds.time(Direction::Disk, 1, 10)), (u64::MAX, 0));
        assert_eq!((speeds.time_of_disks([0], 10), speeds.time_of_disks([0, 1], 10)), (40.0, 0.0));
        assert_eq!(Speeds::of(&rates).and_disks(&rates, &[None, None]), Speeds::even(2));
        let fast = Speeds::of(&rates).and_disks(&rates, &[Some(400.0), None]);
        assert_eq!(fast.time(Direction::Disk, 0, 40), 10, "disks may be faster than links");
    }

    #[test]
    fn times_are_relative_to_the_fastest_link() {
        let speeds = Speeds::of(&[(100.0, 50.0), (10.0, 0.0)]);
        assert_eq!(speeds.busier(0, &Load::of_links(30, 10)), 30);
        assert_eq!(speeds.busier(0, &Load::of_links(30, 20)), 40);
        assert_eq!(speeds.busier(1, &Load::of_links(30, 0)), 300);
        assert_eq!((speeds.bytes(Direction::Up, 1, 305), speeds.bytes(Direction::Down, 0, 9)), (30, 4));
        assert_eq!(Speeds::of(&[(f64::INFINITY, f64::INFINITY)]), Speeds::even(1), "unknown rates are equal");
    }
}
