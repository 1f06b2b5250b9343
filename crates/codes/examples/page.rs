//! Writes docs/codes.md, the operator's page of all codes, to standard output. The measured speeds come in as the JSON that
//! bench/compare prints; all else comes from the codes themselves. `make codes` runs both.
//!
//! The tests compare the committed page with the code: generated with the page's own speeds, it must be the same.

use serde_json::Value;
use std::{error::Error, fmt::Write, io};
use weft_codes::{BlockInfo, CodeInfo, FAMILIES, Family};
use weft_types::{ByteSize, CELL_BYTES_USUAL, usual_cell_len};

/// How a row of a code, and the line that names the machine, begin.
const ROW_START: &str = "| `";
const MACHINE_START: &str = "Measured on ";

/// A code of the table, and what was measured of it.
#[derive(Debug, PartialEq)]
struct Row {
    spec: String,
    /// Of encoding, decoding and repair, to rs(10,4): the last columns.
    speeds: [String; 3],
}

fn main() -> Result<(), Box<dyn Error>> {
    let report: Value = serde_json::from_reader(io::stdin())?;
    print!("{}", page(&machine(&report)?, &rows(&report)?)?);
    Ok(())
}

fn page(machine: &str, rows: &[Row]) -> Result<String, Box<dyn Error>> {
    let mut page = String::from(
        "# Codes\n\n\
         <!-- Written by `make codes`: change crates/codes/examples/page.rs instead. -->\n\n\
         This page helps you to choose the code of a policy (`weft policy create --code`). A code turns k data blocks into n blocks \
         on n nodes. `weft code info CODE` shows what any other code costs, in any size, \
         and what a code that is not MDS recovers of losses beyond its tolerance.\n\n\
         ## Choose a code\n\n",
    );
    for family in FAMILIES {
        writeln!(page, "- `{}` — {}. {}", family.name, summary(family), family.advice)?;
    }
    page.push_str(
        "\n## Costs\n\n\
         - **overhead**: stored bytes for each byte of data. **tolerance**: the number of blocks that can be lost, in any \
         combination. **distance**: the smallest number of blocks in which two stripes differ, one more than the tolerance.\n\
         - **α**: the sub-blocks of a cell. A repair reads and moves only some of them, so they must not be too short for disks. \
         **cell**: the default cell of a cluster, at least 1 MiB and at least 64 KiB for each sub-block.\n\
         - **moved** and **read**: what helpers send and what they read from disk to repair one block, in blocks. The average over \
         all blocks of a stripe; the worst case in brackets if it differs. A copy takes 1.\n\
         - **encode**, **decode** (as many lost blocks as the code tolerates) and **repair** (the first block): the speed on one core \
         relative to `rs(10,4)`, with the same cell in the same run. Higher is faster. Encoding and decoding count the data; \
         repair counts the rebuilt block.\n\n\
         | code | overhead | tolerance | distance | α | moved | read | cell | encode | decode | repair |\n\
         | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n",
    );
    for row in rows {
        let code = weft_codes::parse(&row.spec)?;
        writeln!(page, "{} {} |", columns(&weft_codes::info(code.as_ref())?), row.speeds.join(" | "))?;
    }
    write!(page, "\n{MACHINE_START}{machine}\n")?;
    Ok(page)
}

/// The summary as part of a sentence.
fn summary(family: &Family) -> &'static str {
    family.summary.trim_end_matches('.')
}

/// The part of a row that needs no measurement.
fn columns(info: &CodeInfo) -> String {
    let CodeInfo { spec, overhead, tolerance, distance, alpha, blocks, .. } = info;
    let (moved, read) =
        (average_and_worst(blocks, |block| block.blocks_moved), average_and_worst(blocks, |block| block.blocks_read));
    let cell = ByteSize(usual_cell_len(CELL_BYTES_USUAL, *alpha as u32));
    format!("{ROW_START}{spec}` | {overhead:.2} | {tolerance} | {distance} | {alpha} | {moved} | {read} | {cell} |")
}

fn average_and_worst(blocks: &[BlockInfo], cost: impl Fn(&BlockInfo) -> f64) -> String {
    let worst = blocks.iter().map(&cost).fold(0.0, f64::max);
    let average = blocks.iter().map(&cost).sum::<f64>() / blocks.len().max(1) as f64;
    if worst - average < 0.005 { format!("{average:.2}") } else { format!("{average:.2} ({worst:.2})") }
}

/// Which machine, and how.
fn machine(report: &Value) -> Result<String, Box<dyn Error>> {
    let text = |value: &Value| value.as_str().map(str::to_owned).ok_or("the report names no machine");
    let machine = &report["machine"];
    let (cpu, kernel) = (text(&machine["cpu"])?, text(&machine["kernel"])?);
    let (cores, rounds) = (machine["cores"].as_u64().unwrap_or(0), report["codes_rounds"].as_u64().unwrap_or(0));
    // The reference's own row is as good as any.
    let rs = report["codes"].as_array().and_then(|codes| codes.iter().rfind(|code| code["spec"] == "rs(10,4)"));
    let rs = &rs.ok_or("the report has no rs(10,4)")?["speeds"];
    let [encode, decode, repair] = ["encode", "decode", "repair"].map(|task| rs[task].as_f64().unwrap_or(f64::NAN));
    Ok(format!(
        "one core of {cores}, {cpu}, kernel {kernel}, medians of {rounds} rounds, cells of about 1 MiB. `rs(10,4)` itself, GiB/s: \
         {encode:.0} encoding, {decode:.0} decoding, {repair:.1} repairing."
    ))
}

/// The codes of the report, each once: the last of its rows is the one with cells of 1 MiB or as much as it needs.
fn rows(report: &Value) -> Result<Vec<Row>, Box<dyn Error>> {
    let measured = report["codes"].as_array().ok_or("the report has no codes")?;
    let mut rows: Vec<Row> = Vec::new();
    for code in measured {
        let spec = code["spec"].as_str().ok_or("a code without a name")?.to_owned();
        let ratio = |task: &str| {
            let [own, rs] = ["speeds", "rs_10_4"].map(|whose| code[whose][task].as_f64().unwrap_or(f64::NAN));
            format!("{:.2}", own / rs)
        };
        let speeds = ["encode", "decode", "repair"].map(ratio);
        rows.retain(|row| row.spec != spec);
        rows.push(Row { spec, speeds });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows and the machine of a page.
    fn read_back(page: &str) -> (String, Vec<Row>) {
        let machine = page.lines().find_map(|line| line.strip_prefix(MACHINE_START)).unwrap().to_owned();
        let row = |line: &str| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let spec = cells[0].trim_matches('`').to_owned();
            Row { spec, speeds: cells[8..].iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>().try_into().unwrap() }
        };
        (machine, page.lines().filter(|line| line.starts_with(ROW_START)).map(row).collect())
    }

    #[test]
    fn the_committed_page_matches_the_codes() {
        let committed = include_str!("../../../docs/codes.md");
        let (machine, rows) = read_back(committed);
        for (ours, theirs) in page(&machine, &rows).unwrap().lines().zip(committed.lines()) {
            assert_eq!(ours, theirs, "docs/codes.md is out of date: make codes");
        }
        assert_eq!(page(&machine, &rows).unwrap(), committed);
        assert!(rows.iter().flat_map(|row| &row.speeds).all(|speed| speed.parse::<f64>().unwrap() > 0.0));
    }

    #[test]
    fn every_family_is_explained_and_in_the_table() {
        let (_, rows) = read_back(include_str!("../../../docs/codes.md"));
        for family in FAMILIES {
            assert!(!family.advice.is_empty() && !family.measured.is_empty(), "{} lacks advice or sizes", family.name);
        }
        let measured: Vec<&str> = FAMILIES.iter().flat_map(|family| family.measured).copied().collect();
        let shown: Vec<&str> = rows.iter().map(|row| row.spec.as_str()).collect();
        assert_eq!(shown, measured, "docs/codes.md is out of date: make codes");
    }

    #[test]
    fn the_longest_cell_counts_and_ratios_are_to_the_reference() {
        let row = |encode: f64| {
            serde_json::json!({"spec": "xor(2)", "speeds": {"encode": encode, "decode": 3.0, "repair": 1.0},
                "rs_10_4": {"encode": 2.0, "decode": 2.0, "repair": 2.0}})
        };
        let report = serde_json::json!({"codes": [row(9.0), row(1.0)]});
        let speeds = ["0.50", "1.50", "0.50"].map(str::to_owned);
        assert_eq!(rows(&report).unwrap(), [Row { spec: "xor(2)".into(), speeds }]);
    }
}
