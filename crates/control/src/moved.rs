//! Disks that are moved from one node to another with their blocks: whether a node may take a disk over that another one had, and how the
//! blocks follow.
//!
//! A disk can be in one node only, so its blocks may be served by the new node as soon as it is certain that the old one does not have it any
//! more: it has registered without the disk, or it is down. While it is up and lists the disk, or has just fallen silent, the disk is kept
//! aside. A disk that both nodes have at the same time is a copy, and is not taken over when the other node goes down.

use crate::{Time, members::MemberStatus};
use std::time::Duration;
use weft_types::{BlockId, DiskRecord, Home, NodeState};

/// What an agent says of a disk that another node had.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The name of the agent's node.
    pub node: &'a str,
    /// The directory of the disk there.
    pub path: &'a str,
    /// Whether it cannot be used there.
    pub failed: bool,
    /// Whether both nodes have had it at the same time ([`is_copy`]).
    pub copy: bool,
}

/// What an agent says may be this old when it is heard.
const HEARD_LATE: Duration = Duration::from_secs(5);

/// Whether the owner has the disk too, so that one of the two is a copy. `open_for`: how long the other node has had it open. A node that has just
/// stopped still counts as up, so only what it has said since then is proof.
pub fn is_copy(owner: &MemberStatus, disk: &DiskRecord, open_for: Duration) -> bool {
    let has_it = owner.disks.get(&disk.number).is_some_and(|state| state.listed && state.silent_for.is_zero());
    owner.up && has_it && !disk.failed && open_for > owner.silent_for + HEARD_LATE
}

/// Whether the owner cannot use the disk any more: then the other one may be the disk itself.
pub fn is_lost_there(owner: &MemberStatus, disk: &DiskRecord) -> bool {
    owner.up && disk.failed && owner.disks.get(&disk.number).is_some_and(|state| state.listed)
}

/// Where the metadata have a disk that a node may take over. Otherwise why it may not yet, and what to do. `down_after`: how long a node that
/// has fallen silent still counts as up.
pub fn judge(owner: &MemberStatus, disk: &DiskRecord, claim: Claim<'_>, down_after: Duration) -> Result<Home, String> {
    let (name, id, own_path, Claim { node, path, failed, copy }) = (&owner.record.name, &disk.id, &disk.path, claim);
    let has_it = owner.disks.get(&disk.number).is_some_and(|state| state.listed);
    let belongs = format!("{path} is the disk {id} of {name}");
    if failed {
        return Err(format!(
            "{belongs}, and {node} cannot use it: put it back, or take it out of `disks` and have its blocks rebuilt with \
             `weft node disk replace {name} {id}`"
        ));
    }
    if owner.up && has_it {
        return Err(format!(
            "{belongs}, which is up and lists it as {own_path}: take it out of `disks` in the settings of the agent of {name}, and restart that \
             agent; `weft node disk ls {name}` shows the disk as gone then"
        ));
    }
    if copy && !owner.up {
        return Err(format!(
            "{belongs}, and both nodes have had it at the same time: one of the two is a copy; take that out of `disks` in the settings of its \
             agent, and start both agents; if {name} is gone for good and this is the disk itself, restart the agent of {node} without it, and \
             then with it again"
        ));
    }
    if !owner.up && owner.record.state == NodeState::Up {
        let seconds = down_after.as_millis().div_ceil(1000);
        return Err(format!(
            "{belongs}, which has just fallen silent or has not registered yet: it counts as down after {seconds} s (`weft node ls`), or start \
             its agent without the disk"
        ));
    }
    Ok(Home { node: owner.record.id, disk: disk.number })
}

/// How long blocks that could not follow rest before they are looked at again; longer after a long walk on which none has followed.
const REST: Duration = Duration::from_secs(10);
const REST_MAX: Duration = Duration::from_secs(300);
/// The rest after such a walk, in times of its length.
const REST_FACTOR: u32 = 20;

/// The walk over the blocks of a disk that was moved, which follow it; again and again while some are left where it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Follow {
    after: Option<BlockId>,
    /// Whether blocks have followed that have not been marked as to be checked. Unknown of what an earlier coordinator has moved.
    unchecked: bool,
    moved: u64,
    stayed: u64,
    /// When the first step of this walk was made.
    began: Option<Time>,
    rests_until: Option<Time>,
}

/// What a step has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Step {
    /// Blocks that have followed.
    pub moved: u64,
    /// Blocks that could not.
    pub stayed: u64,
    /// The last block that was looked at.
    pub last: Option<BlockId>,
    /// Whether there are more behind it.
    pub more: bool,
}

/// The end of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walked {
    /// Blocks that have followed.
    pub moved: u64,
    /// Blocks that stay where they were for now.
    pub stayed: u64,
}

impl Default for Follow {
    fn default() -> Self {
        Self { after: None, unchecked: true, moved: 0, stayed: 0, began: None, rests_until: None }
    }
}

impl Follow {
    /// Behind which block the next step begins, and whether blocks that moved before it have not been marked; `None` if it rests.
    pub fn next(&self, now: Time) -> Option<(Option<BlockId>, bool)> {
        self.rests_until.is_none_or(|until| until <= now).then_some((self.after, self.unchecked))
    }

    /// A step has been made. At the end of a walk, returns what it did if that was anything.
    pub fn came(&mut self, step: Step, now: Time) -> Option<Walked> {
        self.moved += step.moved;
        self.stayed += step.stayed;
        self.unchecked |= step.moved > 0;
        let began = *self.began.get_or_insert(now);
        if step.more {
            self.after = step.last;
            return None;
        }
        let walked = Walked { moved: self.moved, stayed: self.stayed };
        let rest = if walked.moved > 0 { REST } else { now.since(began).saturating_mul(REST_FACTOR).clamp(REST, REST_MAX) };
        *self = Self { unchecked: false, rests_until: Some(now + rest), ..Self::default() };
        (walked.moved > 0).then_some(walked)
    }

    /// A step failed: it is tried again after a while.
    pub fn failed(&mut self, now: Time) {
        self.rests_until = Some(now + REST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures::member, members::DiskState};
    use weft_types::{DiskNumber, NodeId, StripeId};

    const DOWN_AFTER: Duration = Duration::from_millis(4_500);

    fn disk() -> DiskRecord {
        DiskRecord {
            number: DiskNumber(7),
            id: "9f".into(),
            path: "/srv/a".into(),
            total_bytes: 9,
            failed: false,
            draining: false,
            kept: false,
            retired: false,
            moved_to: None,
        }
    }

    fn owner(silent: Option<(NodeState, u64)>, listed: bool) -> MemberStatus {
        let state = DiskState { listed, ..DiskState::default() };
        MemberStatus { disks: [(DiskNumber(7), state)].into(), ..member(3, "", silent) }
    }

    fn judged(owner: &MemberStatus, failed: bool) -> Result<Home, String> {
        judge(owner, &disk(), Claim { node: "node-5", path: "/mnt/old", failed, copy: false }, DOWN_AFTER)
    }

    #[test]
    fn a_disk_is_taken_over_when_its_old_node_does_not_have_it_any_more() {
        let home = Ok(Home { node: NodeId(3), disk: DiskNumber(7) });
        assert_eq!(judged(&owner(None, false), false), home, "it registered without the disk");
        for state in [NodeState::Down, NodeState::Lost] {
            // What it listed before says nothing.
            assert_eq!(judged(&owner(Some((state, 60)), true), false), home);
        }
    }

    #[test]
    fn until_then_it_is_kept_aside_and_the_reason_says_what_to_do() {
        for (owner, failed, says) in [
            (owner(None, true), false, "node-3, which is up and lists it as /srv/a: take it out of `disks`"),
            (owner(Some((NodeState::Up, 2)), true), false, "it counts as down after 5 s"),
            // The coordinator has just started.
            (owner(Some((NodeState::Up, 2)), false), false, "has not registered yet"),
            (owner(None, false), true, "node-5 cannot use it: put it back, or"),
        ] {
            let why = judged(&owner, failed).unwrap_err();
            assert!(why.starts_with("/mnt/old is the disk 9f of node-3, ") && why.contains(says), "not '{says}': {why}");
        }
    }

    #[test]
    fn a_copy_is_not_taken_over_while_its_owner_is_down() {
        let seconds = Duration::from_secs;
        let up = owner(None, true);
        assert!(is_copy(&up, &disk(), seconds(6)) && !is_copy(&up, &disk(), seconds(5)));
        let silent = MemberStatus { silent_for: seconds(3), ..owner(None, true) };
        assert!(!is_copy(&silent, &disk(), seconds(8)), "it may have stopped before");
        assert!(!is_copy(&owner(None, false), &disk(), seconds(60)));
        let failed = DiskRecord { failed: true, ..disk() };
        assert!(!is_copy(&up, &failed, seconds(60)) && is_lost_there(&up, &failed) && !is_lost_there(&up, &disk()));

        let claim = Claim { node: "node-5", path: "/mnt/old", failed: false, copy: true };
        let judged = |owner: &MemberStatus| judge(owner, &disk(), claim, DOWN_AFTER);
        for state in [NodeState::Up, NodeState::Down, NodeState::Lost] {
            let why = judged(&owner(Some((state, 60)), true)).unwrap_err();
            assert!(why.contains("one of the two is a copy"), "{why}");
            assert!(why.ends_with("restart the agent of node-5 without it, and then with it again"), "{why}");
        }
        assert!(judged(&up).unwrap_err().contains("which is up and lists it"));
        assert!(judged(&owner(None, false)).is_ok(), "it registered without the disk");
    }

    #[test]
    fn the_walk_goes_on_behind_the_last_block_and_marks_what_it_moved_at_its_end() {
        let block = |stripe| Some(BlockId { stripe: StripeId(stripe), index: 0, copy: 0, generation: 1 });
        let at = |seconds| Time::after(Duration::from_secs(seconds));
        let step = |moved, stayed, last, more| Step { moved, stayed, last, more };
        let mut follow = Follow::default();
        // An earlier coordinator may have moved blocks that were not marked.
        assert_eq!(follow.next(at(0)), Some((None, true)));
        assert_eq!(follow.came(step(0, 0, None, true), at(0)), None, "records of garbage");
        assert_eq!(follow.came(step(2, 1, block(5), true), at(0)), None);
        assert_eq!(follow.next(at(0)), Some((block(5), true)));
        follow.failed(at(0));
        assert_eq!((follow.next(at(9)), follow.next(at(10))), (None, Some((block(5), true))));
        assert_eq!(follow.came(step(1, 0, block(8), false), at(10)), Some(Walked { moved: 3, stayed: 1 }));
        assert_eq!((follow.next(at(19)), follow.next(at(20))), (None, Some((None, false))));
        assert_eq!(follow.came(step(0, 1, block(5), true), at(20)), None);
        assert_eq!(follow.came(step(0, 1, block(8), false), at(22)), None, "nothing new");
        assert_eq!((follow.next(at(61)), follow.next(at(62))), (None, Some((None, false))), "20 times as long as it took");
    }
}
