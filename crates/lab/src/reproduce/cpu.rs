//! Figures 5 and 7 of "CPU: Cross-Rack-Aware Pipelining Update for Erasure-Coded Storage" (Wu, Du, Gong, Wu), §6.2 and
//! §6.3: how long an update takes from each region, and how much depends on its path, predicted from the plans and the
//! rates of the paper's Table 2. Nothing is sent. [`super::cpu_figures`] has the figures that are measured.

use super::report::{read_json, write_json};
use crate::{
    bench::{self, Machine},
    testbed::Matrix,
};
use serde::{Deserialize, Serialize};
use std::path::Path;
use weft_cli::table::columns;
use weft_plan::{Class, Network, predict, verify};
use weft_schemes::{
    Request, Run, Scheme, Select, code_view,
    path::{Selector, Tabu},
    plan,
    update::{Pipeline, Star, Tree, UpdateScheme, overwrite},
};
use weft_types::{BlockId, Error, Layout, NodeId, Party, PlanId, Result, StripeId};

/// The results, in the form of `weft bench`.
pub(crate) type Report = bench::Report<Asked, Row>;

pub(crate) const NAME: &str = "cpu";
pub(crate) const TITLE: &str =
    "CPU: Cross-Rack-Aware Pipelining Update for Erasure-Coded Storage (H. Wu, W. Du, P. Gong, D. O. Wu)";
/// The name of the figures, and of their files.
pub(crate) const FIGURES: &str = "5+7";
const FILE: &str = "cpu-regions.json";

/// The paper's Table 2.
const TABLE_2: &str = include_str!("table-2.csv");
/// The paper writes RS(12,9).
pub(super) const CODE: &str = "rs(9,3)";
const BLOCK_LEN: u64 = 32 << 20;
const SLICE_LEN: u64 = 64 << 10;
/// Random paths whose mean is shown; searches of which the worst is shown.
const DRAWS: u64 = 100;

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) seed: u64,
}

/// The predicted times of an update that starts in a region, seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) region: String,
    /// One parity after another.
    pub(crate) star_s: f64,
    /// In the order of Table 2.
    pub(crate) tree_s: f64,
    /// The tree that ends the soonest.
    pub(crate) best_tree_s: f64,
    /// The mean of random paths.
    pub(crate) random_s: f64,
    /// The path with the slowest link.
    pub(crate) worst_s: f64,
    /// The slowest path that a tabu search found.
    pub(crate) tabu_s: f64,
    /// The best path.
    pub(crate) best_s: f64,
}

/// Table 2 from each region: that region comes first.
pub(super) fn regions() -> Result<Vec<(String, Matrix)>> {
    let table = Matrix::parse(TABLE_2)?;
    let from = |source: usize| {
        let order: Vec<usize> = std::iter::once(source).chain((0..table.names.len()).filter(|at| *at != source)).collect();
        let rates = order.iter().map(|from| order.iter().map(|to| table.rates[*from][*to]).collect()).collect();
        (table.names[source].clone(), Matrix { names: order.iter().map(|at| table.names[*at].clone()).collect(), rates })
    };
    Ok((0..table.names.len()).map(from).collect())
}

/// Predicts all times.
pub(crate) fn run(asked: Asked) -> Result<Report> {
    let matrix = Matrix::parse(TABLE_2)?;
    let results = (0..matrix.names.len()).map(|source| row(&matrix, source, asked.seed)).collect::<Result<_>>()?;
    Ok(Report { machine: Machine::this(), settings: asked, results, warnings: Vec::new() })
}

fn row(matrix: &Matrix, source: usize, seed: u64) -> Result<Row> {
    let whole = |scheme: &dyn UpdateScheme, select| seconds(matrix, source, scheme, select, BLOCK_LEN);
    let along = |path| seconds(matrix, source, &Pipeline { path: Some(path) }, Select::Best, SLICE_LEN);
    let draws = || (0..DRAWS).map(|draw| seed.wrapping_add(draw));
    let random = draws().map(|seed| along(Selector::Random { seed })).collect::<Result<Vec<f64>>>()?;
    let tabu = draws().map(|seed| along(Selector::Tabu(Tabu { seed, ..Tabu::default() }))).collect::<Result<Vec<f64>>>()?;
    Ok(Row {
        region: matrix.names[source].clone(),
        star_s: whole(&Star { concurrent: false }, Select::AsPreferred)?,
        tree_s: whole(&Tree, Select::AsPreferred)?,
        best_tree_s: whole(&Tree, Select::Best)?,
        random_s: random.iter().sum::<f64>() / random.len() as f64,
        worst_s: along(Selector::Worst)?,
        tabu_s: tabu.into_iter().fold(0.0, f64::max),
        best_s: along(Selector::Exact)?,
    })
}

/// The predicted time of an update of a block in a region, with one parity in each of the others.
fn seconds(matrix: &Matrix, source: usize, scheme: &dyn UpdateScheme, select: Select, slice_len: u64) -> Result<f64> {
    let code = weft_codes::parse(CODE).map_err(Error::fatal)?;
    let holder = |index: u8| Party::Node(NodeId(u32::from(index)));
    let block = |index: u8| BlockId { stripe: StripeId(1), index, copy: 0, generation: 1 };
    let layout = Layout::new(BLOCK_LEN, BLOCK_LEN, 1)?;
    let job = overwrite(code.as_ref(), layout, &[(0, 0)], |index| (holder(index), block(index)));
    let mut places = vec![(holder(0), source)];
    let others = (0..matrix.names.len()).filter(|place| *place != source);
    places.extend((code.k() as u8..code.n() as u8).map(holder).zip(others));
    let mut network = Network::uniform(f64::INFINITY);
    for (from, at) in &places {
        network.racks.insert(*from, matrix.names[*at].clone());
        for (to, place) in places.iter().filter(|(to, _)| to != from) {
            network.pair_bytes_per_s.insert((*from, *to), matrix.rates[*at][*place].bits_per_s() / 8.0);
        }
    }
    let stripe = layout.full_stripe(code.k() as u32, code.m() as u32);
    let run = Run::new(PlanId(1), 0, Class::Foreground, slice_len);
    let request = Request { network: &network, select, ..Request::new(code.as_ref(), stripe, &job, run) };
    let plan = plan(&request, Scheme::Update(scheme))?;
    verify(&plan, code_view(code.as_ref(), &code.spec()), &job)?;
    Ok(predict(&plan, &network)?)
}

const HEADING: [&str; 8] =
    ["region", "star", "tree", "best tree", "worst path", "random path (mean)", "path by tabu search", "best path"];
const ABOUT: &str = "Predicts the time of an update of one block of rs(9,3) with 32 MiB from each region, with one parity in each of the \
    others and the rates of the paper's Table 2. **Nothing is measured** for these numbers. Star and tree send whole \
    blocks, each node to one other after another; paths send slices of 64 KiB. The tree takes the regions in the order of the table; the \
    best tree is the one that ends the soonest. Random paths are 100; of 100 tabu searches, the worst is shown.";
const DIFFERS: &str = "The paper's bandwidths changed during its measurements, and Table 2 is one of them. It does not say in which order \
    its tree takes the regions.";

/// A statement of the paper, and the predicted range over all regions.
fn claims(report: &Report) -> Vec<[String; 3]> {
    let range = |of: fn(&Row) -> f64| {
        let all: Vec<f64> = report.results.iter().map(|row| of(row) * 100.0).collect();
        let (least, most) =
            (all.iter().copied().fold(f64::INFINITY, f64::min), all.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        format!("{least:.1}-{most:.1} %")
    };
    let slower: Vec<&str> = report.results.iter().filter(|row| row.worst_s > row.tree_s).map(|row| row.region.as_str()).collect();
    let slower = if slower.is_empty() { "in no region".to_owned() } else { slower.join(", ") };
    let claim = |text: &str, paper: &str, here: String| [text.to_owned(), paper.to_owned(), here];
    vec![
        claim("path by tabu search less than star", "50.1-66.7 %", range(|row| 1.0 - row.tabu_s / row.star_s)),
        claim("path by tabu search less than tree", "32.2-65.6 %", range(|row| 1.0 - row.tabu_s / row.tree_s)),
        claim("path by tabu search less than random path", "15.0-45.4 %", range(|row| 1.0 - row.tabu_s / row.random_s)),
        claim("best path less than best tree", "-", range(|row| 1.0 - row.best_s / row.best_tree_s)),
        claim("regions where the worst path loses to the tree", "some, such as Canada", slower),
    ]
}

fn cells(row: &Row) -> Vec<String> {
    let Row { region, star_s, tree_s, best_tree_s, random_s, worst_s, tabu_s, best_s } = row;
    let times = [star_s, tree_s, best_tree_s, worst_s, random_s, tabu_s, best_s].map(|time| format!("{time:.2} s"));
    [vec![region.clone()], times.to_vec()].concat()
}

/// The command that predicts it again in the same way.
fn command(report: &Report) -> String {
    let Asked { seed } = report.settings;
    let seed = if seed == super::SEED { String::new() } else { format!(" --seed {seed}") };
    format!("weft reproduce {NAME} --figure {FIGURES}{seed}")
}

/// For a person.
pub(crate) fn text(report: &Report) -> String {
    let times = columns(HEADING, &[1, 2, 3, 4, 5, 6, 7], report.results.iter().map(cells));
    let claims = columns(["", "paper", "predicted"], &[1, 2], claims(report));
    let command = command(report);
    format!("figures 5 and 7 of {NAME}, predicted: nothing is measured\n{command}\n\n{times}\n\n{claims}")
}

/// The part of the page.
pub(super) fn section(report: &Report, to: &str) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let times: String = report.results.iter().map(|row| line(&cells(row))).collect();
    let claims: String = claims(report).iter().map(|claim| line(claim)).collect();
    let heading = line(&HEADING.map(str::to_owned));
    format!(
        "\n### Figures 5 and 7: Update across regions, predicted\n\n{ABOUT}\n\n```text\n{command}\n```\n\n{heading}| --- |{}\n\
         {times}\n| | paper | predicted |\n| --- | --: | --: |\n{claims}\n{DIFFERS} All numbers: [{FILE}]({to}{FILE}).\n",
        " --: |".repeat(HEADING.len() - 1),
        command = command(report),
    )
}

/// Writes the results into `dir`.
pub(crate) fn write(report: &Report, dir: &Path) -> Result<()> {
    write_json(report, dir, FILE)
}

/// The results, if `dir` has them.
pub(crate) fn read(dir: &Path) -> Result<Option<Report>> {
    read_json(dir, FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_region_comes_first_once() {
        let all = regions().unwrap();
        let first: Vec<&str> =
            all.iter().map(|(region, matrix)| (matrix.names[0] == *region).then_some(region.as_str()).unwrap()).collect();
        assert_eq!(first, ["California", "Ohio", "Oregon", "Canada"]);
        let (_, from_canada) = &all[3];
        assert_eq!(from_canada.names, ["Canada", "California", "Ohio", "Oregon"]);
        assert_eq!(
            [&from_canada.rates[0][1], &from_canada.rates[1][0], &from_canada.rates[2][3]].map(ToString::to_string),
            ["69.5mbit", "47.15mbit", "72.1mbit"]
        );
    }

    /// The docs show what these plans are predicted to take.
    #[test]
    fn the_docs_have_the_predictions_of_these_plans() {
        let report = run(Asked { seed: super::super::SEED }).unwrap();
        for row in &report.results {
            assert!(row.best_s <= row.tabu_s && row.tabu_s <= row.random_s && row.random_s <= row.worst_s, "{row:?}");
            assert!(row.best_tree_s <= row.tree_s && row.tree_s < row.star_s, "{row:?}");
        }
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/figures");
        if std::env::var_os("WEFT_BLESS").is_some() {
            write(&report, &dir).unwrap();
        }
        let kept = read(&dir).unwrap().unwrap();
        assert_eq!((kept.settings, &kept.results), (report.settings, &report.results), "run `make bless`");
        assert!(section(&kept, "figures/").contains("| California |") && text(&kept).contains("15.0-45.4 %"));
    }
}
