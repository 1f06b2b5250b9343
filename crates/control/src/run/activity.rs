//! What moves at each node, over all plans that run.
//!
//! Transfers that share a full link can starve each other: TCP gives some of many streams nothing for seconds, and new ones find no room even
//! to connect. Then each end of such a link sees the other one stand still, although both work as fast as their links allow. So a node is not
//! to blame for a link that stands still while other links of the node move, or while the other end has many that do.

use crate::Time;
use std::{collections::BTreeMap, time::Duration};
use weft_types::NodeId;

/// So many links of a node in one direction can fill its network link: fewer leave each of them enough.
const MANY_LINKS: u32 = 8;

/// What moves at each node. There is one entry for each node that took part in a plan since it registered.
#[derive(Debug, Default)]
pub struct Activity(BTreeMap<NodeId, Seen>);

/// What is known of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// When it was last heard of, by a heartbeat or by a report on any of its tasks.
    pub heard_at: Option<Time>,
    /// What it receives.
    pub receives: Way,
    /// What it sends.
    pub sends: Way,
}

/// One direction at a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Way {
    /// The links of all plans that run.
    pub links: u32,
    /// When bytes last moved on any of them.
    pub moved_at: Option<Time>,
}

/// How many links a task has in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ends {
    /// Links on which it receives.
    pub receives: u32,
    /// Links on which it sends.
    pub sends: u32,
}

impl Activity {
    /// A task with these links begins at a node.
    pub fn begin(&mut self, node: NodeId, ends: Ends) {
        let seen = self.0.entry(node).or_default();
        seen.receives.links = seen.receives.links.saturating_add(ends.receives);
        seen.sends.links = seen.sends.links.saturating_add(ends.sends);
    }

    /// The task has ended.
    pub fn end(&mut self, node: NodeId, ends: Ends) {
        if let Some(seen) = self.0.get_mut(&node) {
            seen.receives.links = seen.receives.links.saturating_sub(ends.receives);
            seen.sends.links = seen.sends.links.saturating_sub(ends.sends);
        }
    }

    /// A node was heard of.
    pub fn heard(&mut self, node: NodeId, now: Time) {
        self.0.entry(node).or_default().heard_at = Some(now);
    }

    /// A node has reported on a task: whether that has received and sent more since the last report.
    pub fn moved(&mut self, node: NodeId, received: bool, sent: bool, now: Time) {
        let seen = self.0.entry(node).or_default();
        seen.heard_at = Some(now);
        for (way, has_moved) in [(&mut seen.receives, received), (&mut seen.sends, sent)] {
            if has_moved {
                way.moved_at = Some(now);
            }
        }
    }

    /// Forgets what a node moved before it restarted, or a node that was removed.
    pub fn forget(&mut self, node: NodeId) {
        if let Some(seen) = self.0.get_mut(&node) {
            (seen.heard_at, seen.receives.moved_at, seen.sends.moved_at) = (None, None, None);
        }
        self.0.retain(|id, seen| *id != node || seen.receives.links + seen.sends.links > 0);
    }

    /// What is known of these nodes.
    pub fn of(&self, nodes: impl Iterator<Item = NodeId>) -> BTreeMap<NodeId, Seen> {
        nodes.filter_map(|node| Some((node, *self.0.get(&node)?))).collect()
    }
}

impl Seen {
    /// Whether it may be slow only because its network link is full: it has many links, and bytes moved on some of them within this time.
    pub fn is_full(&self, within: Duration, now: Time) -> bool {
        [self.receives, self.sends].iter().any(|way| way.is_full(within, now))
    }

    /// Whether it was heard of within this time.
    pub fn is_heard(&self, within: Duration, now: Time) -> bool {
        self.heard_at.is_some_and(|at| now - at < within)
    }

    /// Whether bytes moved within this time in each direction in which a task has links.
    pub(super) fn moves(&self, ends: Ends, within: Duration, now: Time) -> bool {
        let ways = [(ends.receives, self.receives), (ends.sends, self.sends)];
        ways.iter().all(|(links, way)| *links == 0 || way.moves(within, now))
    }

    /// Whether it has no other links than those of a task with these.
    pub(super) fn has_only(&self, ends: Ends) -> bool {
        self.receives.links <= ends.receives && self.sends.links <= ends.sends
    }
}

impl Way {
    /// Whether the node's network link may be full in this direction.
    pub(super) fn is_full(self, within: Duration, now: Time) -> bool {
        self.links >= MANY_LINKS && self.moves(within, now)
    }

    fn moves(self, within: Duration, now: Time) -> bool {
        self.moved_at.is_some_and(|at| now - at < within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_many_links_of_which_some_move_may_be_full() {
        let (node, second) = (NodeId(1), Duration::from_secs(1));
        let at = |ms| Time::after(Duration::from_millis(ms));
        let (mut activity, hub) = (Activity::default(), Ends { receives: MANY_LINKS - 1, sends: 0 });
        let seen = |activity: &Activity| activity.of([node, NodeId(9)].into_iter()).remove(&node).unwrap();
        activity.begin(node, hub);
        activity.moved(node, true, false, at(100));
        assert!(!seen(&activity).is_full(second, at(200)), "few links leave each of them enough");
        activity.begin(node, Ends { receives: 1, sends: 1 });
        assert!(seen(&activity).is_full(second, at(1_000)) && !seen(&activity).is_full(second, at(1_100)), "now none moves");
        activity.moved(node, false, true, at(1_100));
        assert!(!seen(&activity).is_full(second, at(1_100)), "one link does not fill it");
        assert!(seen(&activity).moves(Ends { receives: 0, sends: 1 }, second, at(1_200)));
        assert!(!seen(&activity).moves(Ends { receives: 1, sends: 1 }, second, at(1_200)));
        assert!(seen(&activity).has_only(Ends { receives: MANY_LINKS, sends: 1 }) && !seen(&activity).has_only(hub));
        activity.end(node, hub);
        assert_eq!((seen(&activity).receives.links, seen(&activity).sends.links), (1, 1));
        activity.heard(node, at(3_000));
        assert!(seen(&activity).is_heard(second, at(3_999)) && !seen(&activity).is_heard(second, at(4_000)));
        activity.forget(node);
        assert_eq!(
            seen(&activity),
            Seen { receives: Way { links: 1, moved_at: None }, sends: Way { links: 1, moved_at: None }, heard_at: None }
        );
        activity.end(node, Ends { receives: 1, sends: 1 });
        activity.forget(node);
        assert!(activity.of([node].into_iter()).is_empty());
    }
}
