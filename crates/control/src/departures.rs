//! Whether a node or disk that is gone for good can be forgotten; if not, what holds it and which command helps.
//!
//! Nothing that the metadata still needs may be forgotten: a block of a stripe, even a lost one, until it is rebuilt
//! elsewhere. The transaction that forgets the node or disk checks the same again.

use crate::members::MemberStatus;
use std::time::Duration;
use weft_types::{DiskRecord, Error, Held, JobRecord, NodeState, Result, counted};

/// Whether a node can be removed. `down_after`: how long a node that has just died still counts as up.
pub fn check_node(node: &MemberStatus, held: Held, jobs: &[JobRecord], down_after: Duration) -> Result<()> {
    let (id, name, seconds) = (node.record.id, &node.record.name, down_after.as_millis().div_ceil(1000));
    if node.up {
        return Err(Error::invalid(format!(
            "{name} is up: only a node that is gone for good can be removed. To retire it, move its blocks to \
             other nodes with `weft node drain {name}`, and stop its agent; {seconds} s later it counts as down"
        )));
    }
    if node.record.state == NodeState::Up {
        return Err(Error::retry(format!("{name} was up a moment ago: try again when it counts as down, in {seconds} s")));
    }
    if let Some(job) = jobs.iter().find(|job| !job.state.has_ended() && job.work.names(id)) {
        let (job, kind, state) = (job.id, job.work.kind(), job.state.name());
        return Err(Error::invalid(format!(
            "{name} takes part in job {job} ({kind}), which is {state}: wait for its end with `weft job wait {job}`, or cancel it \
             with `weft job cancel {job}`"
        )));
    }
    check_held(&format!("{name} holds"), name, held)
}

/// Whether a disk is forgotten without a person as soon as nothing is left of it: it was drained for good, and is no longer there.
pub fn is_over(node: &MemberStatus, disk: &DiskRecord) -> bool {
    disk.retired && node.up && !node.disks.get(&disk.number).is_some_and(|state| state.listed || state.blocks > 0)
}

/// Whether a disk can be forgotten.
pub fn check_disk(node: &MemberStatus, disk: &DiskRecord, held: Held) -> Result<()> {
    let (name, path) = (&node.record.name, &disk.path);
    if !node.up {
        return Err(Error::unavailable(format!(
            "{name} is down, so it is not known whether it still has {path}: start its agent without this disk, or remove the node \
             if it is gone for good (`weft node remove {name}`)"
        )));
    }
    if node.disks.get(&disk.number).is_some_and(|disk| disk.listed) {
        let state = if disk.failed { "failed" } else { "in use" };
        return Err(Error::invalid(format!(
            "{path} of {name} is {state} and its agent still lists it: remove it from `disks` in the agent's settings and restart the \
             agent first"
        )));
    }
    check_held(&format!("{path} of {name} held"), name, held)
}

fn check_held(what: &str, name: &str, held: Held) -> Result<()> {
    let Held { blocks, allocations } = held;
    if blocks > 0 {
        return Err(Error::invalid(format!(
            "{what} {} that no other node has yet: `weft repair node {name}` rebuilds them on other nodes",
            counted(blocks, "block")
        )));
    }
    if allocations > 0 {
        return Err(Error::retry(format!(
            "{what} {} of puts or repairs that have not ended: try again when they have; interrupted ones are given up within minutes",
            counted(allocations, "block")
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures, members::DiskState};
    use std::collections::BTreeMap;
    use weft_types::{
        Conversion, DiskNumber, HelperSelect, JobId, JobProgress, JobState, JobWork, NodeId, NodeRecord, NodeRepair, Reaction,
    };

    /// Node 3, with one disk.
    fn status(up: bool, state: NodeState, listed: bool) -> MemberStatus {
        let disk = DiskRecord {
            number: DiskNumber(4),
            id: "d".into(),
            path: "/srv/a".into(),
            total_bytes: 9,
            failed: true,
            draining: false,
            kept: false,
            retired: false,
            moved_to: None,
        };
        MemberStatus {
            record: NodeRecord { name: "far".into(), state, disks: vec![disk], ..fixtures::member(3, "", None).record },
            up,
            silent_for: Duration::ZERO,
            state_for: Duration::ZERO,
            disks: BTreeMap::from([(DiskNumber(4), DiskState { listed, ..DiskState::default() })]),
            ..fixtures::member(3, "", None)
        }
    }

    fn job(work: JobWork, state: JobState) -> JobRecord {
        JobRecord { id: JobId(5), work, state, progress: JobProgress::default(), created_ms: 0, changed_ms: 0 }
    }

    fn repair(node: u32, to: &[u32]) -> JobWork {
        let (node, to) = (NodeId(node), to.iter().map(|id| NodeId(*id)).collect());
        let (select, scheme) = (HelperSelect::Lru, String::new());
        JobWork::RepairNode(NodeRepair {
            node,
            select,
            prefer: weft_types::Prefer::default(),
            to,
            scheme,
            concurrency: 1,
            slice_len: 0,
            force: false,
        })
    }

    fn conversion() -> JobWork {
        let (bucket, policy) = ("b".into(), "p".into());
        JobWork::Convert(Conversion { bucket, key: None, policy, concurrency: 1, bytes_per_s: 0 })
    }

    const NOTHING: Held = Held { blocks: 0, allocations: 0 };

    #[test]
    fn a_node_is_removed_if_it_is_down_and_nothing_needs_it() {
        let down = status(false, NodeState::Down, false);
        let check =
            |node: &MemberStatus, held, jobs: &[JobRecord]| match check_node(node, held, jobs, Duration::from_millis(4_500)) {
                Ok(()) => (None, String::new()),
                Err(error) => (Some(error.reaction), error.message),
            };
        let holds = |blocks, allocations| Held { blocks, allocations };
        for jobs in [
            vec![],
            vec![job(conversion(), JobState::Running), job(repair(2, &[4]), JobState::Running)],
            vec![job(repair(3, &[]), JobState::Failed), job(repair(2, &[3]), JobState::Cancelled)],
        ] {
            assert_eq!(check(&down, NOTHING, &jobs).0, None, "{jobs:?}");
        }
        let running = [job(repair(3, &[]), JobState::Running)];
        let target = [job(repair(2, &[4, 3]), JobState::Paused)];
        for (node, held, jobs, reaction, says) in [
            (&status(true, NodeState::Up, true), NOTHING, &[][..], Reaction::InvalidInput, "far is up"),
            (&status(false, NodeState::Up, true), NOTHING, &[], Reaction::Retry, "counts as down, in 5 s"),
            (
                &down,
                holds(1, 1),
                &[],
                Reaction::InvalidInput,
                "far holds 1 block that no other node has yet: `weft repair node far`",
            ),
            (&down, holds(0, 2), &[], Reaction::Retry, "far holds 2 blocks of puts or repairs that have not ended"),
            // While its repair runs, it makes no sense to start another.
            (&down, holds(9, 0), &running, Reaction::InvalidInput, "job 5 (repair-node), which is running: wait"),
            (&down, NOTHING, &target, Reaction::InvalidInput, "which is paused: wait for its end with `weft job wait 5`"),
        ] {
            let (found, message) = check(node, held, jobs);
            assert!(found == Some(reaction) && message.contains(says), "not '{says}': {found:?} {message}");
        }
    }

    #[test]
    fn a_disk_that_was_drained_for_good_is_forgotten_when_its_agent_no_longer_lists_it() {
        let mut gone = status(true, NodeState::Up, false);
        assert!(!is_over(&gone, &gone.record.disks[0]), "nobody said so");
        gone.record.disks[0].retired = true;
        assert!(is_over(&gone, &gone.record.disks[0]));
        for node in [
            MemberStatus { up: false, ..gone.clone() },
            MemberStatus { disks: [(DiskNumber(4), DiskState { listed: true, ..DiskState::default() })].into(), ..gone.clone() },
            MemberStatus { disks: [(DiskNumber(4), DiskState { blocks: 1, ..DiskState::default() })].into(), ..gone.clone() },
        ] {
            assert!(!is_over(&node, &node.record.disks[0]), "{node:?}");
        }
    }

    #[test]
    fn a_disk_is_forgotten_if_its_agent_no_longer_lists_it_and_it_held_nothing() {
        let check = |node: &MemberStatus, held| match check_disk(node, &node.record.disks[0], held) {
            Ok(()) => (None, String::new()),
            Err(error) => (Some(error.reaction), error.message),
        };
        assert_eq!(check(&status(true, NodeState::Up, false), NOTHING).0, None);
        let mut healthy = status(true, NodeState::Up, true);
        healthy.record.disks[0].failed = false;
        let one = Held { blocks: 1, allocations: 0 };
        for (node, held, reaction, says) in [
            (&status(false, NodeState::Down, false), NOTHING, Reaction::Unavailable, "`weft node remove far`"),
            (
                &status(true, NodeState::Up, true),
                NOTHING,
                Reaction::InvalidInput,
                "/srv/a of far is failed and its agent still lists",
            ),
            (&healthy, NOTHING, Reaction::InvalidInput, "/srv/a of far is in use"),
            (&status(true, NodeState::Up, false), one, Reaction::InvalidInput, "/srv/a of far held 1 block"),
            (
                &status(true, NodeState::Up, false),
                Held { blocks: 0, allocations: 1 },
                Reaction::Retry,
                "1 block of puts or repairs",
            ),
        ] {
            let (found, message) = check(node, held);
            assert!(found == Some(reaction) && message.contains(says), "not '{says}': {found:?} {message}");
        }
    }
}
