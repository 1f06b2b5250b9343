//! Plans in files: versioned JSON that users can read and edit.

use crate::{Cost, Job, Plan, cost};
use serde::{Deserialize, Serialize};
use weft_types::{Error, Party, Result};

/// The format version that is written, and the newest that is read. In version 1, each lane contained its positions,
/// which are now in the binding.
pub const FORMAT_VERSION: u32 = 2;
const POSITIONS_IN_LANES: u32 = 1;

/// The most bytes of a plan's file.
pub const JSON_BYTES_MAX: usize = 64 << 20;

/// Lines are broken at about this many characters.
const LINE_CHARS: usize = 120;

/// A plan with its job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// The format's version: [`FORMAT_VERSION`].
    pub weft_plan: u32,
    /// The plan.
    pub plan: Plan,
    /// The job that it answers.
    pub job: Job,
    /// Its cost; for readers only, and ignored when the file is read.
    #[serde(default)]
    pub cost: Option<Cost>,
    /// The schemes that were compared, the chosen one first; for readers only. Empty: there was no choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub considered: Vec<Considered>,
}

/// A scheme that could have done the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Considered {
    /// Its name.
    pub scheme: String,
    /// Bytes over the network.
    pub moved_bytes: u64,
    /// Bytes read from blocks.
    pub read_bytes: u64,
    /// The predicted time, seconds.
    pub seconds: f64,
    /// Its chains or cycles, if any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<ChosenPath>,
}

/// A chosen chain or cycle of helpers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChosenPath {
    /// The helpers in order, followed by the requestor.
    pub parties: Vec<Party>,
    /// Its slowest link.
    pub bottleneck: (Party, Party),
    /// The rate of that link, bytes a second; 0 if it has none.
    pub bytes_per_s: f64,
    /// Whether it is known that no better path exists. `None`: none was searched for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<bool>,
}

/// A plan, its job and the compared schemes, as JSON for [`from_json`].
pub fn to_json(plan: &Plan, job: &Job, considered: &[Considered]) -> Result<String> {
    let considered = considered.to_vec();
    let saved = Saved { weft_plan: FORMAT_VERSION, plan: plan.clone(), job: job.clone(), cost: cost(plan).ok(), considered };
    let compact = serde_json::to_string(&saved).map_err(|error| Error::fatal(format!("cannot write the plan: {error}")))?;
    Ok(break_lines(&compact))
}

/// Reads a saved plan. Its content is not trusted: verify it.
// Inline, it is compiled where it is used: commands are compiled for size, and this crate for speed.
#[inline]
pub fn from_json(text: &str) -> Result<Saved> {
    #[derive(Deserialize)]
    struct Version {
        weft_plan: u32,
    }
    if text.len() > JSON_BYTES_MAX {
        return Err(Error::invalid(format!("the file is too large for a plan: at most {JSON_BYTES_MAX} bytes are read")));
    }
    let wrong = |error: serde_json::Error| Error::invalid(format!("not a saved plan: {error}"));
    let Version { weft_plan } = serde_json::from_str(text).map_err(wrong)?;
    match weft_plan {
        FORMAT_VERSION => serde_json::from_str(text).map_err(wrong),
        POSITIONS_IN_LANES => {
            let mut saved: serde_json::Value = serde_json::from_str(text).map_err(wrong)?;
            let lanes = saved.pointer_mut("/plan/shape/lanes").and_then(serde_json::Value::as_array_mut);
            let spans = lanes.into_iter().flatten().map(|lane| lane["span"].take()).collect();
            if let Some(binding) = saved.pointer_mut("/plan/binding").and_then(serde_json::Value::as_object_mut) {
                binding.insert("spans".into(), spans);
            }
            // From text once more: reading a plan from a value would be further code.
            let saved: Saved = serde_json::from_str(&saved.to_string()).map_err(wrong)?;
            Ok(Saved { weft_plan: FORMAT_VERSION, ..saved })
        }
        newer => Err(Error::invalid(format!("the plan has format {newer}, but this weft reads formats up to {FORMAT_VERSION}"))),
    }
}

/// Breaks compact JSON into lines: what fits on a line stays on one; long lists of short elements fill their lines.
fn break_lines(json: &str) -> String {
    let ends = ends(json.as_bytes());
    let mut out = String::with_capacity(json.len() * 5 / 4);
    let (mut at, mut depth, mut line_start) = (0, 0, 0);
    // For each open list or object: whether its elements fill lines.
    let mut fills: Vec<bool> = Vec::new();
    let bytes = json.as_bytes();
    while at < bytes.len() {
        let room = |out: &String| LINE_CHARS.saturating_sub(out.len() - line_start);
        let end = ends[at].max(at + 1);
        match bytes[at] {
            b'{' | b'[' if end - at > room(&out) => {
                out.push(bytes[at] as char);
                depth += 1;
                fills.push(bytes[at] == b'[' && bytes.get(at + 1) != Some(&b'{'));
                line_start = new_line(&mut out, depth);
                at += 1;
            }
            b'}' | b']' => {
                depth -= 1;
                fills.pop();
                line_start = new_line(&mut out, depth);
                out.push(bytes[at] as char);
                at += 1;
            }
            b',' => {
                out.push(',');
                let next_len = element_len(bytes, &ends, at + 1);
                if fills.last() == Some(&true) && next_len + 2 < room(&out) {
                    out.push(' ');
                } else {
                    line_start = new_line(&mut out, depth);
                }
                at += 1;
            }
            b':' => {
                out.push_str(": ");
                at += 1;
            }
            // A string, or a list or object that fits.
            _ => {
                out.push_str(&json[at..end]);
                at = end;
            }
        }
    }
    out.push('\n');
    out
}

fn new_line(out: &mut String, depth: usize) -> usize {
    out.push('\n');
    let start = out.len();
    out.extend(std::iter::repeat_n("  ", depth));
    start
}

/// The length of the list element that begins at `from`.
fn element_len(bytes: &[u8], ends: &[usize], from: usize) -> usize {
    let mut at = from;
    while at < bytes.len() && !matches!(bytes[at], b',' | b']' | b'}') {
        at = ends[at].max(at + 1);
    }
    at - from
}

/// For each byte where a string, list or object begins: its end (exclusive); zero elsewhere.
fn ends(json: &[u8]) -> Vec<usize> {
    let mut ends = vec![0; json.len()];
    let mut open = Vec::new();
    let mut at = 0;
    while at < json.len() {
        match json[at] {
            b'{' | b'[' => open.push(at),
            b'}' | b']' => {
                if let Some(start) = open.pop() {
                    ends[start] = at + 1;
                }
            }
            b'"' => {
                let start = at;
                at += 1;
                while at < json.len() && json[at] != b'"' {
                    at += if json[at] == b'\\' { 2 } else { 1 };
                }
                ends[start] = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_and_mean_the_same() {
        let long: Vec<(u32, u32, u8)> = (0..100).map(|i| (i, i + 1, 7)).collect();
        let value = serde_json::json!({
            "short": [1, 2, {"a": "b, ]\"}:"}], "terms": long, "empty": [], "nothing": {},
            "objects": (0..20).map(|i| serde_json::json!({"index": i, "name": "something longer"})).collect::<Vec<_>>(),
        });
        let text = break_lines(&value.to_string());
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value, "{text}");
        assert!(text.lines().all(|line| line.len() <= LINE_CHARS + 2), "{text}");
        assert!(text.lines().count() < 50, "{text}");
    }
}
