//! What the cluster does by itself about lost blocks: a part of `weft status`, and the output of `weft repair auto`.

use serde::Serialize;
use std::fmt::Write as _;
use weft_client::api;
use weft_types::{NodeId, counted, human_bytes};

/// The most silent nodes that get a line of their own.
const LINES_MAX: usize = 6;

/// The repair without a person at one moment.
#[derive(Debug, Serialize)]
pub(super) struct Healing {
    /// off, stopped, working, waiting (some stripes cannot be rebuilt yet) or idle.
    state: &'static str,
    /// Whether lost blocks are rebuilt without a person.
    on: bool,
    /// Why nothing is rebuilt now; null: it is not stopped.
    stopped: Option<String>,
    /// Why no silent node is declared lost without a person; null: there is no such reason.
    guard: Option<String>,
    /// Nodes that are down and not lost yet.
    silent_nodes: Vec<Silent>,
    /// Stripes that are being rebuilt or will be next.
    stripes_left: u64,
    stripes_under_way: u32,
    /// Stripes and blocks that were rebuilt since there was last nothing to do.
    stripes_done: u64,
    blocks_done: u64,
    bytes_done: u64,
    /// The remaining time at the rate so far, or at the limit if that is longer; null: unknown.
    remaining_ms: Option<u64>,
    /// The limit that holds repair back now; null: none does.
    limit: Option<String>,
    /// Stripes that could not be rebuilt yet.
    waiting: Vec<Waiting>,
    /// Nodes that came back after they were lost or away for long, while their blocks are being checked.
    returned_nodes: Vec<Returned>,
    /// Complete stripes with more blocks in a rack than they can lose. Blocks of them are moved while nothing else is lost.
    crowded_stripes: u64,
}

#[derive(Debug, Serialize)]
struct Silent {
    id: String,
    name: String,
    /// When it is declared lost; 0: only the guard prevents it.
    lost_in_ms: u64,
}

#[derive(Debug, Serialize)]
struct Returned {
    id: String,
    name: String,
    /// As far as known.
    blocks: u64,
    checked: u64,
    /// Of those, the ones that are missing or not what was written; they are rebuilt.
    bad: u64,
}

#[derive(Debug, Serialize)]
struct Waiting {
    /// nodes, space, checksums or retry.
    wait: String,
    stripes: u64,
    /// Why the first of them could not be rebuilt.
    why: String,
}

impl From<api::Healing> for Healing {
    fn from(it: api::Healing) -> Self {
        let some = |text: String| (!text.is_empty()).then_some(text);
        let silent = |it: api::SilentNode| Silent { id: NodeId(it.node).to_string(), name: it.name, lost_in_ms: it.lost_in_ms };
        let returned = |it: api::ReturnedNode| Returned {
            id: NodeId(it.node).to_string(),
            name: it.name,
            blocks: it.blocks,
            checked: it.checked,
            bad: it.bad,
        };
        let waiting = |it: api::WaitingStripes| Waiting { wait: it.wait, stripes: it.stripes, why: it.why };
        let (stopped, done) = (some(it.stopped), it.done.unwrap_or_default());
        let state = match (it.on, &stopped) {
            (false, _) => "off",
            (true, Some(_)) => "stopped",
            (true, None) if it.stripes_left > 0 => "working",
            (true, None) if !it.waiting.is_empty() => "waiting",
            (true, None) => "idle",
        };
        Self {
            state,
            on: it.on,
            stopped,
            guard: some(it.guard),
            silent_nodes: it.silent.into_iter().map(silent).collect(),
            stripes_left: it.stripes_left,
            stripes_under_way: it.stripes_under_way,
            stripes_done: it.stripes_done,
            blocks_done: done.blocks,
            bytes_done: done.bytes,
            remaining_ms: it.remaining_ms,
            limit: some(it.limit),
            waiting: it.waiting.into_iter().map(waiting).collect(),
            returned_nodes: it.returned.into_iter().map(returned).collect(),
            crowded_stripes: it.crowded_stripes,
        }
    }
}

impl Healing {
    /// A few lines, each with its end.
    pub(super) fn text(&self) -> String {
        let mut text = format!("repair: {}\n", self.headline());
        if let Some(guard) = &self.guard {
            let _ = writeln!(text, "repair: {guard}");
        }
        if self.on && self.stopped.is_none() && self.guard.is_none() {
            for node in self.silent_nodes.iter().take(LINES_MAX) {
                let _ = writeln!(text, "repair: {} is lost in {}, unless it comes back", node.name, duration(node.lost_in_ms));
            }
        }
        for Returned { name, blocks, checked, bad, .. } in self.returned_nodes.iter().take(LINES_MAX) {
            let bad = if *bad == 0 { String::new() } else { format!(", {bad} missing or wrong") };
            let _ = writeln!(text, "repair: {name} came back, {checked} of {} checked{bad}", counted(*blocks, "block"));
        }
        for line in self.held_back() {
            let _ = writeln!(text, "{line}");
        }
        if self.crowded_stripes > 0 {
            let (stripes, verb) =
                (counted(self.crowded_stripes, "stripe"), if self.crowded_stripes == 1 { "has" } else { "have" });
            let _ = writeln!(text, "repair: {stripes} {verb} too many blocks in one rack; they move when other racks have room");
        }
        text
    }

    /// How long what is left takes, if that is known.
    pub(super) fn remaining_ms(&self) -> Option<u64> {
        self.remaining_ms
    }

    /// The lines about what holds the work back, if anything does. `lacking`: how many stripes lack blocks; others of theirs do not move
    /// meanwhile.
    pub(super) fn obstacles(&self, lacking: u64) -> Vec<String> {
        let mut lines = Vec::new();
        let says = self.state == "stopped" || lacking > 0;
        lines.extend(self.stopped.iter().chain(&self.guard).filter(|_| says).map(|why| format!("repair: {why}")));
        if lacking > 0 {
            let (stripes, verb) = (counted(lacking, "stripe"), if lacking == 1 { "lacks" } else { "lack" });
            lines.push(format!(
                "repair: {stripes} {verb} blocks, and others of theirs move when these are repaired (`weft check`)"
            ));
        }
        lines.extend(self.held_back());
        lines
    }

    fn held_back(&self) -> Vec<String> {
        let limit = |limit: &String| format!("repair: held back by its limit, {limit} (`weft repair limit` changes it)");
        let waits = |Waiting { wait, stripes, why }: &Waiting| {
            let verb = if *stripes == 1 { "waits" } else { "wait" };
            let what = match wait.as_str() {
                "nodes" => "nodes: start nodes that are down, or add some",
                "space" => "space: add disks or nodes, or remove objects",
                "checksums" => "another attempt within an hour: what is rebuilt differs from the recorded checksums",
                _ => "another attempt",
            };
            format!("repair: {} {verb} for {what} ({why})", counted(*stripes, "stripe"))
        };
        self.limit.iter().map(limit).chain(self.waiting.iter().map(waits)).collect()
    }

    fn headline(&self) -> String {
        match (self.state, &self.stopped) {
            ("off" | "stopped", Some(why)) => why.clone(),
            ("working", _) => self.progress(),
            ("waiting", _) => "waits".to_owned(),
            // An older coordinator says nothing about it.
            ("off", None) => "off".to_owned(),
            _ => "automatic, nothing to do".to_owned(),
        }
    }

    fn progress(&self) -> String {
        let left = self.remaining_ms.map(|left| format!(", about {} remaining", duration(left))).unwrap_or_default();
        let (stripes, under_way) = (counted(self.stripes_left, "stripe"), self.stripes_under_way);
        let done = format!("{} ({})", counted(self.blocks_done, "block"), human_bytes(self.bytes_done));
        format!("{stripes} left, {under_way} in progress; {done} rebuilt or moved{left}")
    }
}

/// A duration as text.
pub(super) fn duration(milliseconds: u64) -> String {
    match milliseconds / 1_000 {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds @ 120..=7_199 => format!("{} min", seconds / 60),
        seconds @ 7_200..=172_799 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(change: impl FnOnce(&mut api::Healing)) -> (&'static str, String) {
        let mut healing = api::Healing { on: true, ..api::Healing::default() };
        change(&mut healing);
        let healing = Healing::from(healing);
        (healing.state, healing.text())
    }

    #[test]
    fn it_says_what_is_done_until_when_and_what_waits_for_what() {
        assert_eq!(shown(|_| {}), ("idle", "repair: automatic, nothing to do\n".into()));
        let off = shown(|it| (it.on, it.stopped) = (false, "it is turned off".into()));
        assert_eq!(off, ("off", "repair: it is turned off\n".into()));
        let (state, text) = shown(|it| {
            (it.stripes_left, it.stripes_under_way, it.remaining_ms) = (12, 3, Some(150_000));
            it.done = Some(api::JobAmount { blocks: 1, bytes: 1 << 20 });
            it.silent = vec![api::SilentNode { node: 3, name: "node-03".into(), lost_in_ms: 61_000 }];
        });
        assert_eq!(state, "working");
        assert_eq!(
            text,
            "repair: 12 stripes left, 3 in progress; 1 block (1.0 MiB) rebuilt or moved, about 2 min remaining\n\
             repair: node-03 is lost in 61 s, unless it comes back\n"
        );
        let (_, text) = shown(|it| (it.stripes_left, it.limit) = (3, "100MiB/s".into()));
        assert!(text.contains("repair: held back by its limit, 100MiB/s (`weft repair limit` changes it)\n"), "{text}");
        let (state, text) = shown(|it| {
            it.guard = "3 of 9 nodes are silent".into();
            it.waiting = vec![api::WaitingStripes { wait: "nodes".into(), stripes: 1, why: "no node is left".into() }];
        });
        assert_eq!(state, "waiting");
        assert!(text.contains("\nrepair: 3 of 9 nodes are silent\n"), "{text}");
        let (_, wrong) = shown(|it| {
            it.waiting = vec![api::WaitingStripes { wait: "checksums".into(), stripes: 2, why: "b/k: it is wrong".into() }];
        });
        let says = "repair: 2 stripes wait for another attempt within an hour: what is rebuilt differs from the recorded checksums \
                    (b/k: it is wrong)\n";
        assert!(wrong.ends_with(says), "{wrong}");
        let back = api::ReturnedNode { name: "node-04".into(), blocks: 80, checked: 20, bad: 1, ..api::ReturnedNode::default() };
        let (_, returned) = shown(|it| it.returned = vec![back]);
        assert!(returned.ends_with("repair: node-04 came back, 20 of 80 blocks checked, 1 missing or wrong\n"), "{returned}");
        let (_, crowded) = shown(|it| it.crowded_stripes = 2);
        let says = "repair: 2 stripes have too many blocks in one rack; they move when other racks have room\n";
        assert!(crowded.ends_with(says), "{crowded}");
        assert!(text.contains("1 stripe waits for nodes: start nodes that are down, or add some (no node is left)\n"), "{text}");
    }
}
