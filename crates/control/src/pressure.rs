//! When blocks move from fuller disks to emptier ones without a person: before puts find no room on some nodes although others have plenty.

use crate::{
    Time,
    reserve::Share,
    view::{DiskView, View},
};
use std::time::Duration;
use weft_types::NodeId;

/// A disk is nearly full if puts may fill less than this share of it, percent.
const NEARLY_FULL_PERCENT: u64 = 10;
/// Moving blocks helps if puts may fill at least this share of all disks together, percent. It is well above the other share, so that the
/// disks that get blocks are not nearly full themselves afterwards.
const ROOM_PERCENT: u64 = 20;
/// So long after a balance has begun by itself, none begins again: if that one could not help, or a person has cancelled it, neither would the
/// next.
const AGAIN_AFTER: Duration = Duration::from_secs(6 * 3_600);

/// Says when to balance.
#[derive(Debug, Default)]
pub struct Pressure {
    begun: Option<Time>,
}

/// A disk that is nearly full while others have room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pressed {
    /// Its node.
    pub node: NodeId,
    /// Its directory.
    pub path: String,
    /// What puts may still fill of it, percent.
    pub left_percent: u64,
    /// What they may still fill of all disks together, percent.
    pub mean_percent: u64,
}

impl Pressure {
    /// The disk because of which a balance should begin now. `kept`: what puts leave free of each disk; `reserve_bytes` besides.
    pub fn pressed(&self, view: &View, kept: Share, reserve_bytes: u64, now: Time) -> Option<Pressed> {
        if view.coming_back || self.begun.is_some_and(|begun| now.since(begun) < AGAIN_AFTER) {
            return None;
        }
        let left = |disk: &DiskView| disk.free_bytes.saturating_sub(kept.of(disk.total_bytes)).saturating_sub(reserve_bytes);
        let percent = |part: u128, whole: u128| u64::try_from(part * 100 / whole.max(1)).unwrap_or(u64::MAX);
        let usable = view.usable_disks();
        let sum = |of: &dyn Fn(&DiskView) -> u64| {
            let each = usable.iter().map(|(_, disk, sharers)| u128::from(of(disk) / sharers));
            each.sum::<u128>()
        };
        let mean_percent = percent(sum(&left), sum(&|disk| disk.total_bytes));
        if mean_percent < ROOM_PERCENT {
            return None;
        }
        let one = |(node, disk, _): &(NodeId, &DiskView, u64)| Pressed {
            node: *node,
            path: disk.path.to_string(),
            left_percent: percent(left(disk).into(), disk.total_bytes.into()),
            mean_percent,
        };
        usable.iter().map(one).filter(|it| it.left_percent < NEARLY_FULL_PERCENT).min_by_key(|it| (it.left_percent, it.node))
    }

    /// A balance has begun for that reason.
    pub fn begun(&mut self, now: Time) {
        self.begun = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures::view, reserve};
    use weft_types::RebuildReserve;

    /// Four nodes, of whose disks so many percent are free.
    fn free(percent: [u64; 4]) -> View {
        let mut view = view(4, &[]);
        for (node, percent) in view.nodes.values_mut().zip(percent) {
            node.disks[0].free_bytes = node.disks[0].total_bytes / 100 * percent;
        }
        view
    }

    fn pressed(view: &View) -> Option<u32> {
        Pressure::default().pressed(view, Share::NONE, 0, Time::default()).map(|it| it.node.0)
    }

    #[test]
    fn a_disk_that_is_nearly_full_moves_blocks_if_others_have_room() {
        assert_eq!(pressed(&free([40, 9, 30, 8])), Some(4), "the fullest is named");
        assert_eq!(pressed(&free([40, 11, 30, 12])), None);
        assert_eq!(pressed(&free([25, 5, 25, 20])), None, "the others have no room either");
        let mut one_file_system = free([5, 90, 90, 90]);
        one_file_system.nodes.values_mut().for_each(|node| node.disks[0].file_system = 7);
        one_file_system.nodes.values_mut().for_each(|node| node.disks[0].free_bytes = node.disks[0].total_bytes / 20);
        assert_eq!(pressed(&one_file_system), None);
        let mut drained = free([40, 9, 30, 50]);
        drained.nodes.get_mut(&NodeId(2)).unwrap().disks[0].draining = true;
        assert_eq!(pressed(&drained), None, "its blocks leave anyway");
        let mut unknown = free([40, 50, 30, 50]);
        let disk = &mut unknown.nodes.get_mut(&NodeId(2)).unwrap().disks[0];
        (disk.total_bytes, disk.free_bytes) = (0, 0);
        assert_eq!(pressed(&unknown), None, "its agent has started, and the disk has not answered yet");
        let coming_back = View { coming_back: true, ..free([40, 9, 30, 8]) };
        assert_eq!(pressed(&coming_back), None);
    }

    #[test]
    fn what_is_kept_for_repair_is_not_there_for_puts() {
        let view = free([90, 30, 90, 90]);
        let kept = reserve::share(RebuildReserve::Percent(25), &view, 2);
        let pressed = Pressure::default().pressed(&view, kept, 0, Time::default()).unwrap();
        assert_eq!((pressed.node, pressed.left_percent, pressed.mean_percent), (NodeId(2), 4, 49));
        assert_eq!(super::tests::pressed(&view), None);
    }

    #[test]
    fn it_is_not_begun_again_at_once() {
        let (view, mut pressure) = (free([40, 9, 30, 8]), Pressure::default());
        let at = |hours: u64| Time::after(Duration::from_secs(hours * 3_600));
        let is_pressed = |pressure: &Pressure, hours| pressure.pressed(&view, Share::NONE, 0, at(hours)).is_some();
        assert!(is_pressed(&pressure, 1));
        pressure.begun(at(1));
        assert!(!is_pressed(&pressure, 2) && is_pressed(&pressure, 7));
    }
}
