//! `weft code info`: the properties and costs of a code.

use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use weft_cli::{exit::Exit, output::Output};
use weft_types::{ByteSize, CELL_BYTES_USUAL, Error, Result, SUB_BLOCK_BYTES_GOOD, counted, usual_cell_len};

/// Show what a code recovers and costs, compared with Reed-Solomon of the same k and m; without SPEC, list all codes
///
/// A code that is not MDS recovers only some of the losses beyond its tolerance. They are counted by deciding all patterns of lost
/// blocks, or a sample of them if there are too many; the output says which.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft code info
  weft code info 'rs(10,4)'
  weft code info 'clay(10,4)' --cell-size 4MiB
  weft code info 'lrc(12,4,4)' --json

EXIT CODES
  0 done   2 no such code, or a cell size that does not fit it")]
pub(super) struct Info {
    /// Bytes of a cell, to see how long its sub-blocks are [default: the cell size that a cluster would choose]
    #[arg(long, value_name = "SIZE", requires = "spec")]
    cell_size: Option<ByteSize>,
    /// Code: `rs(k,m)`, or an HDFS name such as `RS-6-3-1024k`
    spec: Option<String>,
}

/// [`weft_codes::CodeInfo`] in printable form.
#[derive(Debug, Serialize)]
struct InfoReport {
    code: String,
    k: usize,
    m: usize,
    alpha: usize,
    overhead: f64,
    tolerance: usize,
    distance: usize,
    /// Whether the code recovers any m lost blocks (MDS).
    mds: bool,
    /// A smallest set of at most m blocks whose loss the code does not recover; none if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    fatal: Option<Vec<u8>>,
    /// What is recovered of losses beyond the tolerance, by the number of lost blocks; empty for MDS codes.
    beyond_tolerance: Vec<InfoLosses>,
    generator_hash: String,
    cell_size: u64,
    sub_block_size: u64,
    warnings: Vec<String>,
    blocks: Vec<InfoBlock>,
    /// The average over all blocks.
    average: Repaired,
    /// The same value for Reed-Solomon with the same k and m.
    reed_solomon: Repaired,
}

/// [`weft_codes::Losses`] in printable form.
#[derive(Debug, Serialize)]
struct InfoLosses {
    lost: usize,
    /// All ways to lose so many blocks; none if there are more than 2^64.
    #[serde(skip_serializing_if = "Option::is_none")]
    patterns: Option<u64>,
    /// The patterns that were decided: all of them, or a sample.
    tried: u64,
    recovered: u64,
    /// `recovered` as part of `tried`.
    share: f64,
    /// Whether all patterns were decided.
    exact: bool,
    /// The seed of the sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
}

#[derive(Debug, Serialize)]
struct InfoBlock {
    index: u8,
    helpers: Vec<u8>,
    blocks_read: f64,
    blocks_moved: f64,
}

#[derive(Debug, Serialize)]
struct Repaired {
    blocks_read: f64,
    blocks_moved: f64,
}

#[derive(Debug, Serialize)]
struct FamilyReport {
    name: &'static str,
    usage: &'static str,
    summary: &'static str,
}

/// A warning if sub-blocks of these cells are too short for efficient disk reads.
pub(super) fn short_sub_blocks(spec: &str, cell_len: u64) -> Option<String> {
    let alpha = weft_codes::parse(spec).ok()?.alpha() as u64;
    let sub_len = cell_len.checked_div(alpha)?;
    (alpha > 1 && sub_len < SUB_BLOCK_BYTES_GOOD).then(|| {
        let [cell, sub, good] = [cell_len, sub_len, SUB_BLOCK_BYTES_GOOD].map(ByteSize);
        let usual = ByteSize(usual_cell_len(CELL_BYTES_USUAL, alpha as u32));
        format!(
            "a cell of {cell} has {alpha} sub-blocks of {sub}: sub-blocks below {good} make repairs slow; use cells of {usual}"
        )
    })
}

impl Info {
    pub(super) fn run(self, output: Output) -> Result<Exit> {
        let Some(spec) = self.spec else {
            let family = |it: &weft_codes::Family| FamilyReport { name: it.name, usage: it.usage, summary: it.summary };
            let families: Vec<FamilyReport> = weft_codes::FAMILIES.iter().map(family).collect();
            return output.result(&families, |families| families_text(families)).map(|()| Exit::Ok);
        };
        let (code, spelled) = weft_codes::parse_policy(&spec).map_err(Error::invalid)?;
        let info = weft_codes::info(code.as_ref()).map_err(Error::fatal)?;
        let usual = usual_cell_len(CELL_BYTES_USUAL, info.alpha as u32);
        let cell_len = self.cell_size.map(|size| size.0).or(spelled).unwrap_or(usual);
        if cell_len == 0 || !cell_len.is_multiple_of(info.alpha as u64) {
            let (code, cell, alpha) = (info.spec, ByteSize(cell_len), info.alpha);
            return Err(Error::invalid(format!(
                "a cell of {cell} does not fit {code}: the cell size must be a multiple of its {alpha} sub-blocks"
            )));
        }
        let hash = format!("{:016x}", weft_codes::generator_hash(code.as_ref()));
        let report = InfoReport::new(info, &weft_codes::losses(code.as_ref()), hash, cell_len);
        output.result_with(&report, &report.warnings, info_text).map(|()| Exit::Ok)
    }
}

impl InfoReport {
    fn new(info: weft_codes::CodeInfo, losses: &[weft_codes::Losses], generator_hash: String, cell_len: u64) -> Self {
        let block = |block: weft_codes::BlockInfo| InfoBlock {
            index: block.index,
            helpers: block.helpers,
            blocks_read: block.blocks_read,
            blocks_moved: block.blocks_moved,
        };
        let blocks: Vec<InfoBlock> = info.blocks.into_iter().map(block).collect();
        let average = |of: fn(&InfoBlock) -> f64| blocks.iter().map(of).sum::<f64>() / blocks.len() as f64;
        let average = Repaired { blocks_read: average(|it| it.blocks_read), blocks_moved: average(|it| it.blocks_moved) };
        Self {
            warnings: short_sub_blocks(&info.spec, cell_len).into_iter().collect(),
            code: info.spec,
            k: info.k,
            m: info.m,
            alpha: info.alpha,
            overhead: info.overhead,
            tolerance: info.tolerance,
            distance: info.distance,
            mds: info.tolerance == info.m,
            fatal: info.fatal,
            beyond_tolerance: losses.iter().map(InfoLosses::of).collect(),
            generator_hash,
            cell_size: cell_len,
            sub_block_size: cell_len / info.alpha as u64,
            blocks,
            average,
            reed_solomon: Repaired { blocks_read: info.k as f64, blocks_moved: info.k as f64 },
        }
    }
}

impl InfoLosses {
    fn of(it: &weft_codes::Losses) -> Self {
        let weft_codes::Losses { lost, patterns, tried, recovered, seed } = *it;
        let share = recovered as f64 / tried.max(1) as f64;
        Self { lost, patterns, tried, recovered, share, exact: seed.is_none(), seed }
    }

    /// `5 lost: 88.6 % (13,733 of 15,504)`.
    fn text(&self) -> String {
        let Self { lost, tried, recovered, share, .. } = self;
        let sampled = self.seed.map(|seed| format!(" of a sample, seed {seed}")).unwrap_or_default();
        let percent = percent(*share, *recovered == *tried);
        format!("{percent} of the losses of {lost} blocks ({recovered} of {tried} patterns{sampled})")
    }
}

/// Rounded to a tenth, but never to all of them if one is missing.
fn percent(share: f64, is_all: bool) -> String {
    if is_all { "100 %".to_owned() } else { format!("{:.1} %", (share * 1000.0).round().min(999.0) / 10.0) }
}

fn families_text(families: &[FamilyReport]) -> String {
    let family = |it: &FamilyReport| format!("{}\n  {}\n  spec: {}\n", it.name, it.summary, it.usage);
    let all: Vec<String> = families.iter().map(family).collect();
    format!("{}\n`weft code info SPEC` shows the cost of a code", all.join("\n"))
}

fn info_text(it: &InfoReport) -> String {
    let mut text = String::new();
    let rs = format!("rs({},{})", it.k, it.m);
    let _ = writeln!(
        text,
        "{}: {} data and {} parity blocks, {} per cell",
        it.code,
        it.k,
        it.m,
        counted(it.alpha as u64, "sub-block")
    );
    let _ = writeln!(text, "stores      {:.2} bytes per byte of data", it.overhead);
    let _ = writeln!(text, "recovers    any {} lost (distance {})", counted(it.tolerance as u64, "block"), it.distance);
    if !it.mds {
        let _ = write!(text, "            not any {}, unlike {rs}: the code is not MDS", it.m);
        let _ = match &it.fatal {
            Some(fatal) => writeln!(text, "; for example, it does not recover blocks {}", list(fatal)),
            None => writeln!(text),
        };
    }
    for losses in &it.beyond_tolerance {
        let _ = writeln!(text, "            {}", losses.text());
    }
    let _ = writeln!(text, "generator   {}", it.generator_hash);
    let _ = match it.alpha {
        1 => writeln!(text, "cell        {}", ByteSize(it.cell_size)),
        _ => writeln!(text, "cell        {}: sub-blocks of {}", ByteSize(it.cell_size), ByteSize(it.sub_block_size)),
    };
    let _ = writeln!(text, "cost of rebuilding one block, in blocks:");
    // Consecutive blocks of the same cost share a line.
    let mut rest = it.blocks.as_slice();
    while let Some(first) = rest.first() {
        let cost = |block: &InfoBlock| (block.helpers.len(), block.blocks_read.to_bits(), block.blocks_moved.to_bits());
        let same = rest.iter().take_while(|block| cost(block) == cost(first)).count();
        let last = rest.get(same - 1).unwrap_or(first);
        let which = if same == 1 { format!("block {}", first.index) } else { format!("blocks {}-{}", first.index, last.index) };
        let (helpers, read, moved) = (counted(first.helpers.len() as u64, "helper"), first.blocks_read, first.blocks_moved);
        let _ = writeln!(text, "  {which:<14} {helpers:<11} reads {read:>5.2}   moves {moved:>5.2}");
        rest = &rest[same..];
    }
    let (read, moved, k) = (it.average.blocks_read, it.average.blocks_moved, it.k as f64);
    let _ = writeln!(text, "  {:<26} reads {read:>5.2}   moves {moved:>5.2}", "on average");
    let _ = write!(text, "  {:<26} reads {k:>5.2}   moves {k:>5.2}", format!("any block of {rs}"));
    text
}

fn list(indices: &[u8]) -> String {
    indices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
