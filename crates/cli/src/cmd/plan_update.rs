//! `weft plan update`: plans updates in place for given links, without a cluster.

use super::explain;
use crate::offline::{block_id, holder, prove};
use clap::Args;
use std::path::{Path, PathBuf};
use weft_cli::{exit::Exit, files::io_error, matrix::Matrix, output::Output};
use weft_codes::SharedCode;
use weft_plan::{Class, Considered, Job, Network, Plan, Takes};
use weft_schemes::{
    AUTO, Kind, Named as _, Request, Run, Scheme, Select, check_name, choose, choose_of,
    path::{Selector, Tabu},
    update::{Pipeline, overwrite},
    update_slice_size,
};
use weft_types::{AutoSize, ByteSize, Error, Layout, PlanId, Result, human_bytes};

/// Plan an update in place of data blocks: who sends the change to whom, and how long it takes
///
/// Each block of the stripe is on a node of its own, block 0 on n1. The nodes of the changed blocks send the change (new XOR old) to
/// the nodes of all blocks that depend on it. The plan is proved, but nothing runs: `weft write --scheme` sends
/// changes in these ways.
///
/// Schemes: `star` and `tree` send whole changes, each node to one other after another. `concurrent-star` sends to all nodes at the
/// same time. `pipeline` sends slices along a path of racks, and in each rack down a chain of its nodes. `chain` sends slices along
/// a path of nodes. `auto` takes the scheme with the shortest predicted time.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft plan update --code 'rs(9,3)' --block 0
  weft plan update --code 'rs(9,3)' --block 0 --links regions.csv --scheme pipeline --path worst
  weft plan update --code 'lrc(6,2,2)' --block 0,5 --json | weft plan show - --dot | dot -Tsvg > plan.svg

LINKS
  FILE has a row for each sender and a column for each receiver, in Mbit/s, as for `weft testbed up --matrix`:
    from/to,California,Ohio
    California,998.2,183.0
    Ohio,91.55,999.0
  Its names are places, to which nodes are assigned in turn. Each place is a rack.

EXIT CODES
  0 done   2 unknown code, scheme or block, or invalid links   3 no FILE")]
pub(super) struct Update {
    /// Code: `rs(k,m)`; `weft code info` lists all codes
    #[arg(long, value_name = "SPEC")]
    code: String,
    /// Data blocks that change, as a whole
    #[arg(long, value_name = "INDEX", value_delimiter = ',', required = true)]
    block: Vec<u8>,
    /// Bytes of a block: a multiple of the code's sub-blocks
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    block_size: ByteSize,
    /// Scheme, or `auto`
    #[arg(long, value_name = "NAME", default_value = AUTO)]
    scheme: String,
    /// Order of the racks: `best`, `preferred` (as the nodes), `random`; only of a pipeline: `tabu`, `worst`
    #[arg(long, value_name = "ORDER", default_value = "best")]
    path: String,
    /// From which a random path and a tabu search are drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Bytes of a block in a slice, or `auto`: by the path's links
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    slice_size: AutoSize,
    /// Bytes per second up and down at each node [default: 125 MB, 1 Gbit/s]
    #[arg(long, value_name = "SIZE")]
    bandwidth: Option<ByteSize>,
    /// Rates between places
    #[arg(long, value_name = "FILE")]
    links: Option<PathBuf>,
}

/// The time of a slice besides its bytes: a few system calls and wake-ups at both ends.
const SLICE_OVERHEAD_S: f64 = 20e-6;
/// The slices for which the path is chosen that then determines their length.
const FIRST_SLICE: u64 = 64 << 10;

impl Update {
    pub(super) fn run(self, output: Output) -> Result<Exit> {
        check_name(Kind::Update, &self.scheme)?;
        let code = weft_codes::parse(&self.code).map_err(Error::invalid)?;
        let layout = Layout::new(self.block_size.0, self.block_size.0, code.alpha() as u32)?;
        let job = self.job(&code, layout)?;
        let network = self.network(&code)?;
        let slice_len = match self.slice_size {
            AutoSize::Bytes(size) => size.0,
            AutoSize::Auto => {
                let (_, considered) = self.plan(&code, layout, &job, &network, FIRST_SLICE)?;
                let path = considered.iter().flat_map(|considered| &considered.paths).map(|path| &path.parties).next();
                let links = path.map_or(&[][..], Vec::as_slice).windows(2).map(|pair| network.between(pair[0], pair[1]));
                update_slice_size(layout.block_len, &links.collect::<Vec<_>>(), SLICE_OVERHEAD_S)
            }
        };
        let (plan, considered) = self.plan(&code, layout, &job, &network, slice_len)?;
        // A refusal means that a scheme has a bug.
        prove(&plan, &code, &job).map_err(|refusal| Error::fatal(format!("the scheme's plan is refused: {refusal}")))?;
        let seconds = considered.first().map_or(0.0, |chosen| chosen.seconds);
        let one_block_s = self.links.is_none().then_some(layout.block_len as f64 / network.link_bytes_per_s);
        explain::show_made(&plan, &job, &considered, &Takes { seconds, on: self.links_text(&network), one_block_s }, output)
    }

    fn plan(
        &self,
        code: &SharedCode,
        layout: Layout,
        job: &Job,
        network: &Network,
        slice_len: u64,
    ) -> Result<(Plan, Vec<Considered>)> {
        let stripe = layout.full_stripe(code.k() as u32, code.m() as u32);
        let slice_positions = (slice_len / code.alpha() as u64).clamp(1, layout.positions());
        let run = Run::new(PlanId(1), 0, Class::Foreground, slice_positions).of_sub_blocks(code.alpha() as u32);
        let request = Request { network, ..Request::new(code.as_ref(), stripe, job, run) };
        let selector = match self.path.as_str() {
            "tabu" => Selector::Tabu(Tabu { seed: self.seed, ..Tabu::default() }),
            "worst" => Selector::Worst,
            "best" | "preferred" | "random" => {
                let select = Select::parse(&self.path, || self.seed)?;
                return choose(&Request { select, ..request }, &self.scheme);
            }
            other => {
                return Err(Error::invalid(format!(
                    "'{other}' is no order of racks: use best, preferred, random, tabu or worst"
                )));
            }
        };
        let pipeline = Pipeline { path: Some(selector) };
        if ![AUTO, pipeline.name()].contains(&self.scheme.as_str()) {
            let message = format!("--path {} is only for --scheme {}", self.path, pipeline.name());
            return Err(Error::invalid(message));
        }
        choose_of(&request, [Scheme::Update(&pipeline)])
    }

    /// The blocks change as a whole; each is put in by its node.
    fn job(&self, code: &SharedCode, layout: Layout) -> Result<Job> {
        if let Some(index) = self.block.iter().find(|index| usize::from(**index) >= code.k()) {
            let message = format!("block {index} cannot change: the data blocks of {} are 0 to {}", code.spec(), code.k() - 1);
            return Err(Error::invalid(message));
        }
        let all = |index: &u8| {
            let index = *index;
            (0..code.alpha() as u16).map(move |sub_block| (index, sub_block))
        };
        let changed: Vec<(u8, u16)> = self.block.iter().flat_map(all).collect();
        Ok(overwrite(code.as_ref(), layout, &changed, |index| (holder(index), block_id(index))))
    }

    fn network(&self, code: &SharedCode) -> Result<Network> {
        let node = self.bandwidth.map_or(explain::LINK_BYTES_PER_S, |rate| rate.0 as f64);
        let mut network = Network { slice_overhead_s: SLICE_OVERHEAD_S, ..Network::uniform(node) };
        let Some(path) = &self.links else { return Ok(network) };
        let Matrix { names, rates } = read(path)?;
        let place = |index: u8| usize::from(index) % names.len();
        for from in 0..code.n() as u8 {
            network.racks.insert(holder(from), names[place(from)].clone());
            for to in (0..code.n() as u8).filter(|to| *to != from) {
                let rate = rates[place(from)][place(to)].bits_per_s() / 8.0;
                network.pair_bytes_per_s.insert((holder(from), holder(to)), rate);
            }
        }
        Ok(network)
    }

    fn links_text(&self, network: &Network) -> String {
        match &self.links {
            Some(path) => format!("the links of {}", path.display()),
            None => format!("links of {}/s", human_bytes(network.link_bytes_per_s as u64)),
        }
    }
}

fn read(path: &Path) -> Result<Matrix> {
    let text = std::fs::read_to_string(path).map_err(|error| io_error(path, "read", &error))?;
    Matrix::parse(&text).map_err(|error| Error::invalid(format!("{}: {}", path.display(), error.message)))
}
