//! `weft repair limit`: the limit on repairs, moves, conversions and scrubs.

use super::healing::duration;
use clap::Args;
use serde::Serialize;
use weft_cli::{duration::parse, exit::Exit, output::Output, session::Session, target};
use weft_client::api;
use weft_types::{ByteSize, Error, NodeId, RepairLimit, Result, counted, human_bytes};

/// The most nodes that are named.
const NAMED_MAX: usize = 6;

/// Show or set the limit on repairs, moves, conversions and scrubs together
///
/// The limit holds at each disk, each uplink and each downlink of every node, for all traffic below foreground together. Reads, also those
/// that rebuild data, and writes are never held back by it. It is in force within two seconds at all nodes that can be reached, also for
/// what runs already, and it survives restarts. A node that cannot be reached keeps the limit that it had until it answers. The limits in
/// settings files still hold: the lower one counts.
///
/// A rate is in bytes a second, 256KiB/s or more. A share is of the measured rate of each link (`weft link ls`) and disk
/// (`weft node disk ls --json`). A link without a measured rate gets the median of the others, or 1 Gbit/s if none was measured. All disks of a
/// node get the share of the slowest one that was measured, where those on one file system share its rate; if none was, a share does not
/// limit them. A deadline becomes a rate, which the coordinator recomputes twice a second; after the deadline there is no limit.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft repair limit
  weft repair limit 100MiB/s
  weft repair limit 50%
  weft repair limit --deadline 2h
  weft repair limit none
  weft repair limit --json | jq '.nodes[] | {name, lines}'

EXIT CODES
  0 shown, or set: the output names nodes that have not confirmed it yet   2 not a limit   3 no cluster   4 no coordinator")]
pub(super) struct RepairLimitArgs {
    /// A rate (100MiB/s), a share of the measured rate of each link and disk (50%), or none [default: show the limit]
    #[arg(value_name = "RATE|SHARE|none", allow_hyphen_values = true, conflicts_with = "deadline", value_parser = limit)]
    limit: Option<RepairLimit>,
    /// Finish the work of now within this time, such as 2h or 90m
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = deadline)]
    deadline: Option<u64>,
}

fn limit(text: &str) -> Result<RepairLimit, String> {
    let limit = text.parse()?;
    let said = || format!("'{text}' is not a limit: set a deadline with --deadline 2h");
    if matches!(limit, RepairLimit::Until(_)) { Err(said()) } else { Ok(limit) }
}

/// A deadline, in milliseconds from now.
fn deadline(text: &str) -> Result<u64, String> {
    let past = || format!("the deadline {text} is not in the future: write, for example, 2h or 90m");
    let within = match text.strip_prefix('-') {
        Some(ago) => parse(ago).and_then(|_| Err(past())),
        None => parse(text),
    }?;
    u64::try_from(within.as_millis()).ok().filter(|ms| *ms > 0).ok_or_else(past)
}

/// The limit at one moment.
#[derive(Debug, Serialize)]
struct Report {
    /// none, rate, share or deadline.
    kind: &'static str,
    /// Of a rate, or as it follows from a deadline now; null: none.
    bytes_per_s: Option<u64>,
    percent: Option<u32>,
    deadline_in_ms: Option<u64>,
    /// Whether all nodes that are up have confirmed it.
    in_force: bool,
    /// Whether it holds back tasks now.
    holds_back: bool,
    /// The least remaining time of all work at the limit; null: nothing is left, or there is no limit.
    remaining_ms: Option<u64>,
    nodes: Vec<Node>,
}

#[derive(Debug, Serialize)]
struct Node {
    id: String,
    name: String,
    /// confirmed, pending, refused or down.
    state: String,
    /// Why it has not confirmed; null: it has, or it is down.
    why: Option<String>,
    lines: Vec<Line>,
}

/// A disk or a direction of a node's link.
#[derive(Debug, Serialize)]
struct Line {
    /// uplink, downlink, or the path of a disk.
    line: String,
    /// The lowest of all limits on repairs here; null: none.
    bytes_per_s: Option<u64>,
    /// Its rate; null: not measured.
    measured_bytes_per_s: Option<u64>,
}

impl RepairLimitArgs {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let asked = match (self.limit, self.deadline) {
            (None, None) => None,
            (Some(limit), _) => Some(message(limit)?),
            (None, Some(ms)) => Some(api::RepairLimit { deadline_in_ms: Some(ms), ..api::RepairLimit::default() }),
        };
        let reply = Session::with(options, async |session| match asked {
            Some(limit) => session.client.set_repair_limit(limit).await,
            None => session.client.repair_limit().await,
        })?;
        output.result(&Report::from(reply), Report::text).map(|()| Exit::Ok)
    }
}

fn message(limit: RepairLimit) -> Result<api::RepairLimit> {
    match limit {
        RepairLimit::None => Ok(api::RepairLimit::default()),
        RepairLimit::Rate(rate) => Ok(api::RepairLimit { bytes_per_s: Some(rate.0), ..api::RepairLimit::default() }),
        RepairLimit::Percent(percent) => Ok(api::RepairLimit { percent: Some(percent), ..api::RepairLimit::default() }),
        RepairLimit::Until(_) => Err(Error::invalid("set a deadline with --deadline")),
    }
}

impl From<api::RepairLimitReply> for Report {
    fn from(it: api::RepairLimitReply) -> Self {
        let api::RepairLimit { bytes_per_s, percent, deadline_in_ms } = it.limit.unwrap_or_default();
        let line = |it: api::LimitedLine| Line {
            line: it.line,
            bytes_per_s: it.bytes_per_s,
            measured_bytes_per_s: it.measured_bytes_per_s,
        };
        let node = |it: api::LimitedNode| Node {
            id: NodeId(it.node).to_string(),
            name: it.name,
            state: it.state,
            why: Some(it.why).filter(|why| !why.is_empty()),
            lines: it.lines.into_iter().map(line).collect(),
        };
        let nodes: Vec<Node> = it.nodes.into_iter().map(node).collect();
        Self {
            kind: match (bytes_per_s, percent, deadline_in_ms) {
                (Some(_), ..) => "rate",
                (_, Some(_), _) => "share",
                (.., Some(_)) => "deadline",
                _ => "none",
            },
            bytes_per_s: bytes_per_s.or(it.deadline_bytes_per_s),
            percent,
            deadline_in_ms,
            in_force: nodes.iter().all(|node| ["confirmed", "down"].contains(&&*node.state)),
            holds_back: it.holds_back,
            remaining_ms: it.remaining_ms,
            nodes,
        }
    }
}

impl Report {
    fn text(&self) -> String {
        let mut lines = vec![format!("repair limit: {}", self.what())];
        let (down, up): (Vec<&Node>, Vec<&Node>) = self.nodes.iter().partition(|node| node.state == "down");
        let open: Vec<&Node> = up.iter().filter(|node| node.state != "confirmed").copied().collect();
        if open.is_empty() {
            lines.push(format!("in force at all {} that are up", counted(up.len() as u64, "node")));
        } else {
            let of = counted(up.len() as u64, "node");
            lines.push(format!("not confirmed by {} of {of} that are up, which may keep the limit that they had:", open.len()));
            let named = |node: &&Node| format!("  {}: {}", node.name, node.why.as_deref().unwrap_or("no answer yet"));
            lines.extend(open.iter().take(NAMED_MAX).map(named));
            if open.len() > NAMED_MAX {
                lines.push(format!("  and {} more", open.len() - NAMED_MAX));
            }
        }
        if !down.is_empty() && self.kind != "none" {
            let (nodes, verb) = (counted(down.len() as u64, "node"), if down.len() == 1 { "is" } else { "are" });
            lines.push(format!("{nodes} {verb} down, and will get it before any work"));
        }
        if let Some(left) = self.remaining_ms.filter(|_| self.kind != "none") {
            let held = if self.holds_back { "it holds back what runs now; " } else { "" };
            lines.push(format!("{held}the work of now takes {} or longer at this limit", duration(left)));
        }
        lines.join("\n")
    }

    fn what(&self) -> String {
        let everywhere = "at each disk, uplink and downlink";
        let rate = self.bytes_per_s;
        match (self.percent, self.deadline_in_ms, rate) {
            (Some(percent), ..) => format!("{percent}% of the measured rate of each uplink, downlink and disk"),
            (None, Some(0), _) => "none, because the deadline has passed".to_owned(),
            (None, Some(ms), Some(rate)) => {
                format!("{}/s {everywhere} now, to finish in {}", human_bytes(rate), duration(ms))
            }
            (None, None, Some(rate)) => format!("{}/s {everywhere}", ByteSize(rate)),
            _ => "none".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, state: &str, why: &str) -> api::LimitedNode {
        api::LimitedNode { name: name.into(), state: state.into(), why: why.into(), ..api::LimitedNode::default() }
    }

    #[test]
    fn it_says_what_holds_where_and_who_has_not_confirmed() {
        let mut reply = api::RepairLimitReply {
            nodes: vec![
                node("node-01", "confirmed", ""),
                node("node-02", "pending", "no answer within 1s"),
                node("n", "down", ""),
            ],
            ..api::RepairLimitReply::default()
        };
        let shown = |reply: &api::RepairLimitReply| {
            let report = Report::from(reply.clone());
            (report.kind, report.in_force, report.text())
        };
        let (kind, in_force, text) = shown(&reply);
        assert_eq!((kind, in_force), ("none", false));
        assert!(text.starts_with("repair limit: none\nnot confirmed by 1 of 2 nodes"), "{text}");
        assert!(text.ends_with("node-02: no answer within 1s"), "{text}");
        reply.nodes[1].state = "confirmed".into();
        reply.limit = Some(api::RepairLimit { bytes_per_s: Some(100 << 20), ..api::RepairLimit::default() });
        (reply.holds_back, reply.remaining_ms) = (true, Some(600_000));
        let (kind, in_force, text) = shown(&reply);
        assert_eq!((kind, in_force), ("rate", true));
        assert_eq!(
            text,
            "repair limit: 100MiB/s at each disk, uplink and downlink\nin force at all 2 nodes that are up\n1 node is down, and will get it \
             before any work\nit holds back what runs now; the work of now takes 10 min or longer at this limit"
        );
        reply.limit = Some(api::RepairLimit { deadline_in_ms: Some(7_200_000), ..api::RepairLimit::default() });
        reply.deadline_bytes_per_s = Some(3 << 20);
        assert!(shown(&reply).2.starts_with("repair limit: 3.0 MiB/s at each disk, uplink and downlink now, to finish in 2 h\n"));
        reply.limit = Some(api::RepairLimit { percent: Some(50), ..api::RepairLimit::default() });
        assert!(shown(&reply).2.starts_with("repair limit: 50% of the measured rate"));
    }

    #[test]
    fn deadlines_are_in_the_future_and_limits_have_units() {
        assert_eq!(deadline("90m"), Ok(5_400_000));
        for text in ["0s", "-1h"] {
            assert!(deadline(text).unwrap_err().contains(&format!("the deadline {text} is not in the future")));
        }
        assert!(deadline("soon").unwrap_err().contains("not a duration"));
        assert!(limit("until 1700000000000").unwrap_err().contains("--deadline 2h"));
        assert!(limit("150%").unwrap_err().contains("use 1% to 100%"));
    }
}
