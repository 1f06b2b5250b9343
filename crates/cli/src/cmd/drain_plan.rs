//! `weft node drain --explain`: what a drain would do.

use super::{healing::duration, node_drain::Draining};
use serde::Serialize;
use std::fmt::Write as _;
use weft_cli::table::table;
use weft_client::api;
use weft_types::{NodeId, counted, human_bytes};

/// What a drain would do.
#[derive(Debug, Serialize)]
pub(super) struct Plan {
    node: String,
    name: String,
    /// The disk's id; null: the whole node.
    disk: Option<String>,
    path: Option<String>,
    /// Whether it is being drained already.
    draining: bool,
    /// Why the drain would be refused without --force; of a node that is down, also with it.
    refusals: Vec<String>,
    warnings: Vec<String>,
    /// What would leave. Estimated, if fewer blocks were looked at.
    leaving: Amount,
    looked_at_blocks: u64,
    /// Of this, what would be copied from where it is.
    copied: Amount,
    /// What would be rebuilt from the rest of its stripes.
    rebuilt: Amount,
    /// What no other node can take now.
    waiting: Amount,
    /// Blocks of which there are further copies: their nodes are found when their turn comes.
    unplanned: Amount,
    /// Stripes of these blocks that lack a block, which is rebuilt first.
    lacking_stripes: u64,
    nodes: Vec<Node>,
    /// The link that needs longest, at measured rates; null: nothing would move.
    busiest: Option<Link>,
    /// The limit on repair that is in force; null: none.
    limit: Option<String>,
    /// The link that needs longest under the limit.
    limited: Option<Link>,
}

#[derive(Debug, Serialize)]
struct Amount {
    blocks: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Node {
    node: String,
    name: String,
    size_bytes: u64,
    used_bytes: u64,
    after_bytes: u64,
    /// Of blocks that it would get.
    gets_bytes: u64,
    sends_bytes: u64,
    /// Also what it only needs to rebuild blocks.
    receives_bytes: u64,
}

/// A link, and the time that it needs: the drain takes at least that long.
#[derive(Debug, Serialize)]
struct Link {
    /// The node; null: it is the link of a rack.
    node: Option<String>,
    rack: Option<String>,
    /// uplink, downlink or disks.
    link: &'static str,
    bytes: u64,
    seconds: f64,
}

impl From<Option<api::JobAmount>> for Amount {
    fn from(it: Option<api::JobAmount>) -> Self {
        let api::JobAmount { blocks, bytes } = it.unwrap_or_default();
        Self { blocks, bytes }
    }
}

impl From<api::BusiestLink> for Link {
    fn from(it: api::BusiestLink) -> Self {
        let some = |text: String| (!text.is_empty()).then_some(text);
        let link = match (it.disks, it.sends) {
            (true, _) => "disks",
            (_, true) => "uplink",
            _ => "downlink",
        };
        Self { node: some(it.name), rack: some(it.rack), link, bytes: it.bytes, seconds: it.seconds }
    }
}

impl From<api::DrainPlan> for Plan {
    fn from(it: api::DrainPlan) -> Self {
        let some = |text: String| (!text.is_empty()).then_some(text);
        let api::Draining { node, name, disk, path, .. } = it.draining.unwrap_or_default();
        let of_node = |it: api::NodeForecast| Node {
            node: NodeId(it.node).to_string(),
            name: it.name,
            size_bytes: it.size_bytes,
            used_bytes: it.used_bytes,
            after_bytes: it.after_bytes,
            gets_bytes: it.gets_bytes,
            sends_bytes: it.sends_bytes,
            receives_bytes: it.receives_bytes,
        };
        Self {
            node: NodeId(node).to_string(),
            name,
            disk: some(disk),
            path: some(path),
            draining: it.on,
            refusals: it.refusals,
            warnings: it.warnings,
            leaving: it.leaving.into(),
            looked_at_blocks: it.looked_at,
            copied: it.copied.into(),
            rebuilt: it.rebuilt.into(),
            waiting: it.waiting.into(),
            unplanned: it.unplanned.into(),
            lacking_stripes: it.lacking_stripes,
            nodes: it.nodes.into_iter().map(of_node).collect(),
            busiest: it.busiest.map(Link::from),
            limit: some(it.limit),
            limited: it.limited.map(Link::from),
        }
    }
}

impl Amount {
    fn text(&self) -> String {
        format!("{} ({})", counted(self.blocks, "block"), human_bytes(self.bytes))
    }
}

impl Link {
    fn time(&self) -> String {
        match self.seconds {
            short if short < 120.0 => format!("{short:.1} s"),
            long => duration((long * 1_000.0) as u64),
        }
    }

    fn name(&self) -> String {
        match (&self.node, &self.rack) {
            (Some(node), _) => format!("the {} of {node}", self.link),
            (None, rack) => format!("the {} of rack {}", self.link, rack.as_deref().unwrap_or_default()),
        }
    }
}

impl Plan {
    pub(super) fn text(&self) -> String {
        let what = Draining::name_of(&self.name, self.path.as_deref());
        let mut text = match (self.leaving.blocks, &self.refusals[..]) {
            (0, []) => format!("{what} has no block that would move\n"),
            (0, _) => String::new(),
            _ => self.moves(&what),
        };
        let mut line = |line: String| text += &format!("{line}\n");
        if self.waiting.blocks > 0 {
            let on_node = match self.path {
                Some(_) => "they go to other disks of the node where these have room, or stay until another node can take them",
                None => "they stay until another node can take them",
            };
            line(format!("{} would find no other node: {on_node}", self.waiting.text()));
        }
        if self.unplanned.blocks > 0 {
            line(format!("{} with further copies find their nodes when their turn comes", self.unplanned.text()));
        }
        if self.lacking_stripes > 0 {
            line(format!("other blocks of {} are lost, and are rebuilt first", counted(self.lacking_stripes, "stripe")));
        }
        if self.looked_at_blocks < self.leaving.blocks {
            line(format!("estimated from the first {}", counted(self.looked_at_blocks, "block")));
        }
        if self.draining {
            line(format!("{what} is being drained already"));
        }
        self.refusals.iter().for_each(|why| line(format!("a drain would be refused: {why}")));
        self.warnings.iter().for_each(|why| line(format!("a drain would warn: {why}")));
        text.trim_end().to_owned()
    }

    /// What would move, and how long that takes.
    fn moves(&self, what: &str) -> String {
        let (leaving, copied, rebuilt) = (self.leaving.text(), self.copied.text(), self.rebuilt.text());
        let mut text =
            format!("{leaving} would leave {what}: {copied} copied from there, {rebuilt} rebuilt from other nodes\n\n");
        let full = |bytes: u64, of: &Node| format!("{:.1} %", bytes as f64 * 100.0 / of.size_bytes.max(1) as f64);
        let row = |it: &Node| {
            let [size, now, after, gets, sends, receives] =
                [it.size_bytes, it.used_bytes, it.after_bytes, it.gets_bytes, it.sends_bytes, it.receives_bytes].map(human_bytes);
            [it.name.clone(), size, now, full(it.used_bytes, it), after, full(it.after_bytes, it), gets, sends, receives]
        };
        let heading = ["node", "size", "now", "full", "after", "full", "gets", "sends", "receives"];
        let _ = writeln!(text, "{}\n", table(heading, &[1, 2, 3, 4, 5, 6, 7, 8], self.nodes.iter().map(row)));
        if let Some(link) = &self.busiest {
            let (time, name, bytes) = (link.time(), link.name(), human_bytes(link.bytes));
            let what = if link.link == "disks" { "it waits most for" } else { "the busiest link is" };
            let _ = writeln!(text, "it takes {time} or more at the measured rates: {what} {name} ({bytes})");
        }
        if let (Some(link), Some(limit)) = (&self.limited, &self.limit) {
            let _ = writeln!(text, "under the limit on repair ({limit}) it takes {} or more: {}", link.time(), link.name());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(blocks: u64, bytes: u64) -> Option<api::JobAmount> {
        Some(api::JobAmount { blocks, bytes })
    }

    fn link(seconds: f64) -> api::BusiestLink {
        api::BusiestLink { name: "far".into(), sends: true, bytes: 300, seconds, ..api::BusiestLink::default() }
    }

    fn plan() -> api::DrainPlan {
        let node = |name: &str, used_bytes, after_bytes| api::NodeForecast {
            name: name.into(),
            size_bytes: 1_000,
            used_bytes,
            after_bytes,
            gets_bytes: 300,
            sends_bytes: 90,
            ..api::NodeForecast::default()
        };
        api::DrainPlan {
            draining: Some(api::Draining { node: 3, name: "far".into(), ..api::Draining::default() }),
            leaving: amount(3, 300),
            copied: amount(1, 100),
            rebuilt: amount(2, 200),
            looked_at: 3,
            nodes: vec![node("far", 300, 0), node("near", 100, 400)],
            busiest: Some(link(1.25)),
            limit: "50%".into(),
            limited: Some(link(150.0)),
            ..api::DrainPlan::default()
        }
    }

    #[test]
    fn a_plan_says_what_moves_how_where_and_for_how_long() {
        let text = Plan::from(plan()).text();
        for part in [
            "3 blocks (300 B) would leave far: 1 block (100 B) copied from there, 2 blocks (200 B) rebuilt from other nodes\n",
            "near  1000 B  100 B  10.0 %  400 B  40.0 %  300 B   90 B       0 B\n",
            "it takes 1.2 s or more at the measured rates: the busiest link is the uplink of far (300 B)\n",
            "under the limit on repair (50%) it takes 2 min or more: the uplink of far",
        ] {
            assert!(text.contains(part), "not '{part}':\n{text}");
        }
        let disks = api::BusiestLink { disks: true, ..link(9.0) };
        let slow = Plan::from(api::DrainPlan { busiest: Some(disks), ..plan() }).text();
        assert!(
            slow.contains("it takes 9.0 s or more at the measured rates: it waits most for the disks of far (300 B)\n"),
            "{slow}"
        );
        assert!(!text.contains("refused") && !text.contains("estimated") && !text.contains("already"), "{text}");
    }

    #[test]
    fn a_plan_says_what_stands_against_it() {
        let draining = Some(api::Draining { name: "far".into(), path: "/d".into(), ..api::Draining::default() });
        let (refusals, warnings) = (vec!["add nodes first".to_owned()], vec!["a rack is crowded".to_owned()]);
        let (waiting, unplanned) = (amount(1, 10), amount(2, 20));
        let found = api::DrainPlan {
            draining: draining.clone(),
            refusals,
            warnings,
            waiting,
            unplanned,
            lacking_stripes: 1,
            looked_at: 2,
            on: true,
            ..plan()
        };
        let text = Plan::from(found).text();
        for part in [
            "would leave /d of far",
            "1 block (10 B) would find no other node: they go to other disks of the node",
            "2 blocks (20 B) with further copies",
            "other blocks of 1 stripe are lost",
            "estimated from the first 2 blocks",
            "/d of far is being drained already",
            "a drain would be refused: add nodes first",
            "a drain would warn: a rack is crowded",
        ] {
            assert!(text.contains(part), "not '{part}':\n{text}");
        }
        let empty = Plan::from(api::DrainPlan { draining, ..api::DrainPlan::default() }).text();
        assert_eq!(empty, "/d of far has no block that would move");
    }
}
