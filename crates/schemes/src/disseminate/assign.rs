//! Which node gets which block, where nodes are unlike each other (*Mist*, §5).

use super::{AUTO, Load, by_name};
use weft_codes::Code;
use weft_plan::Moved;
use weft_types::{Error, Result};

/// A node that could get any of the blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Products of a byte and a coefficient that it adds up in a second; infinite, if nothing is known.
    pub products_per_s: f64,
    /// What it can send, bytes a second.
    pub up_bytes_per_s: f64,
    /// What it can receive, bytes a second.
    pub down_bytes_per_s: f64,
    /// What others move over its lines meanwhile, in blocks.
    pub busy: Moved,
    /// It stands on the writer's machine: what it would compute from what others send, the writer gives it.
    pub is_near: bool,
}

impl Candidate {
    /// One of whom nothing is known.
    pub const UNKNOWN: Self = Self {
        products_per_s: f64::INFINITY,
        up_bytes_per_s: f64::INFINITY,
        down_bytes_per_s: f64::INFINITY,
        busy: Moved { up_bytes: 0.0, down_bytes: 0.0 },
        is_near: false,
    };

    /// Seconds that a load takes it for each byte of a block: as long as what takes longest, for all goes on at once.
    fn seconds(&self, load: &Load, is_data: bool) -> f64 {
        // What the writer gives it goes over no link; only what it passes on does.
        let blocks_in = if self.is_near { 0.0 } else { load.blocks_in };
        if self.is_near && !is_data {
            return 0.0;
        }
        let share = |amount: f64, others: f64, rate: f64| if amount == 0.0 { 0.0 } else { (amount + others) / rate };
        let up = share(load.blocks_out, self.busy.up_bytes, self.up_bytes_per_s);
        let down = share(blocks_in, self.busy.down_bytes, self.down_bytes_per_s);
        up.max(down).max(share(load.work(), 0.0, self.products_per_s))
    }
}

/// For each block of a code the candidate that should get it, by its number: as many candidates as blocks, each once.
///
/// The paper's rule first: who computes fastest gets what takes most work, and so on down; of equally fast ones, who can send
/// most gets what sends most. It knows of no links, so two change places as long as that makes the slower of them quicker,
/// the slowest of all first. Racks' lines are not looked at: which racks there are is chosen before.
pub fn assign(code: &dyn Code, scheme: &str, candidates: &[Candidate]) -> Result<Vec<usize>> {
    if candidates.len() != code.n() {
        let message = format!("{} has {} blocks, and {} nodes shall get them", code.spec(), code.n(), candidates.len());
        return Err(Error::invalid(message));
    }
    let loads = by_name(if scheme == AUTO { "mist" } else { scheme })?.loads(code);
    // Where all do the same they stay as they were placed.
    let alike = loads.windows(2).all(|pair| pair[0] == pair[1]);
    Ok(if alike { (0..loads.len()).collect() } else { match_up(&loads, code.k(), candidates) })
}

/// For each load the candidate; the first k are those of data blocks.
fn match_up(loads: &[Load], k: usize, candidates: &[Candidate]) -> Vec<usize> {
    let (mut hardest, mut best): (Vec<usize>, Vec<usize>) = ((0..loads.len()).collect(), (0..candidates.len()).collect());
    let hard = |at: usize| (loads[at].work(), loads[at].blocks_out);
    let good = |at: usize| (candidates[at].products_per_s, candidates[at].up_bytes_per_s);
    let descending = |a: (f64, f64), b: (f64, f64)| b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1));
    hardest.sort_by(|a, b| descending(hard(*a), hard(*b)));
    best.sort_by(|a, b| descending(good(*a), good(*b)));
    let mut chosen = vec![0; loads.len()];
    hardest.iter().zip(best).for_each(|(load, candidate)| chosen[*load] = candidate);
    // Each exchange makes the slower of two quicker, the slowest of all first.
    for _ in 0..loads.len() * loads.len() {
        let seconds = |load: usize, of: usize| candidates[chosen[of]].seconds(&loads[load], load < k);
        let mut slowest: Vec<usize> = (0..loads.len()).collect();
        slowest.sort_by(|a, b| seconds(*b, *b).total_cmp(&seconds(*a, *a)).then(a.cmp(b)));
        let exchange = |slow: usize| {
            let exchanged = |other: usize| seconds(slow, other).max(seconds(other, slow));
            let best = (0..loads.len()).min_by(|a, b| exchanged(*a).total_cmp(&exchanged(*b)))?;
            (exchanged(best) < seconds(slow, slow)).then_some((slow, best))
        };
        match slowest.iter().copied().find_map(exchange) {
            Some((slow, other)) => chosen.swap(slow, other),
            None => break,
        }
    }
    chosen
}
