//! The page of all figures that a directory has results of: `docs/reproduce.md`.

use super::{
    Figure, PAPERS, Paper, Report,
    burst::{Faster, faster},
    cpu, cpu_figures, cpu_table, repairboost,
    report::{Beside, beside, command, read, scale},
    tables::tables,
};
use std::{fs, path::Path};
use weft_cli::files::io_error;
use weft_types::Result;

/// The page's file.
pub(crate) const NAME: &str = "reproduce.md";
/// What the page begins with.
const INTRODUCTION: &str = include_str!("page.md");

/// Writes the page of all figures that `dir` has, measured now or before, beside them.
pub(crate) fn write_page(dir: &Path) -> Result<()> {
    let path = dir.join(NAME);
    fs::write(&path, page(dir, "")?).map_err(|error| io_error(&path, "write", &error))
}

/// The page of all figures that `dir` has. Its links to files begin with `to`: the way from the page to `dir`.
pub(super) fn page(dir: &Path, to: &str) -> Result<String> {
    let mut page = INTRODUCTION.to_owned();
    for paper in PAPERS {
        let sections = sections(paper, dir, to)?;
        page.push_str(&of_paper(paper, &sections));
    }
    if let Some(report) = repairboost::read(dir)? {
        page.push_str(&repairboost::section(&report, to));
    }
    let mut of_cpu = sections(&cpu_figures::PAPER, dir, to)?;
    if let Some(report) = cpu_table::read(dir)? {
        of_cpu.push_str(&cpu_table::section(&report, to));
    }
    if let Some(report) = cpu::read(dir)? {
        of_cpu.push_str(&cpu::section(&report, to));
    }
    page.push_str(&of_paper(&cpu_figures::PAPER, &of_cpu));
    Ok(page)
}

/// The figures of a paper that `dir` has.
fn sections(paper: &Paper, dir: &Path, to: &str) -> Result<String> {
    let mut sections = String::new();
    for figure in paper.figures {
        if let Some(report) = read(paper, figure, dir)? {
            sections.push_str(&section(paper, figure, &report, to)?);
        }
    }
    Ok(sections)
}

/// Sections with their paper's heading, if there are any.
fn of_paper(paper: &Paper, sections: &str) -> String {
    if sections.is_empty() { String::new() } else { format!("\n## {}: {}\n{sections}", paper.name, paper.title) }
}

pub(super) fn section(paper: &Paper, figure: &Figure, report: &Report, to: &str) -> Result<String> {
    let Figure { name, title, about, differs, .. } = figure;
    let stem = figure.stem(paper);
    let command = command(paper, figure, report);
    let claims = beside(figure, report);
    let rows = claims.iter().map(|Beside { text, paper, ours, links }| format!("| {text} | {paper} | {ours} | {links} |\n"));
    let rows: String = rows.collect();
    let warnings: String = report.warnings.iter().map(|warning| format!("\nWarning: {warning}.\n")).collect();
    let differs = if differs.is_empty() { String::new() } else { format!("\n{differs}\n") };
    let (scale, machine) = (scale(paper, report), &report.machine);
    let files: Vec<String> = ["csv", "json", "png"].map(|ending| format!("[{stem}.{ending}]({to}{stem}.{ending})")).into();
    let (files, tables, faster) = (files.join(", "), tables(figure, report)?, too_fast(figure, report)?);
    Ok(format!(
        "\n### Figure {name}: {title}\n\n{about}\n\n```text\n{command}\n```\n\n\
         ![{title}]({to}{stem}.svg)\n\n| | paper | here | link bound |\n| --- | --: | --: | --: |\n\
         {rows}{tables}{differs}{faster}{warnings}\n\
         {scale}; {machine}. All points: {files}.\n"
    ))
}

/// Names the points that are faster than their link bound.
fn too_fast(figure: &Figure, report: &Report) -> Result<String> {
    let all = faster(figure, report)?;
    let one = |it: &Faster| {
        let ms = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
        let burst = it.burst_s.map_or_else(|| "unknown".to_owned(), ms);
        format!("{} by {:.1} % ({} of at most {burst})", it.label, it.part * 100.0, ms(it.saved_s))
    };
    let all: Vec<String> = all.iter().map(one).collect();
    if all.is_empty() {
        return Ok(String::new());
    }
    Ok(format!("\nFaster than the link bound, by the shapers' bursts: {}.\n", all.join("; ")))
}
