//! Plans that check whether the blocks of a stripe are consistent.

use super::{Planned, holds, readable, sub_blocks, verified, wrong};
use crate::{
    known::{Known, Provable},
    view::View,
};
use std::sync::Arc;
use weft_codes::SharedCode;
use weft_plan::{Job, Network, Rule, Want, WantKind};
use weft_schemes::{Kind, Request, Run, check_rows, plan, simplest};
use weft_types::{Error, Party, Result, StripeRecord};

/// How much of a stripe's redundancy is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// One combination of the parity checks, drawn from the seed, which finds any single wrong block: every node of the chain but the
    /// last sends one block length. Several wrong blocks are found too, at each wrong position with a probability of about 255/256.
    Routine {
        /// The same seed draws the same combination, so the stripes of one pass share their shapes.
        seed: u64,
    },
    /// All parity checks: what passes is a stripe of the code. Every node but the last sends one block length for each block more than the
    /// code needs.
    Full,
}

/// How a stripe is checked.
#[derive(Debug, Clone, Copy)]
pub struct Checking<'a> {
    /// How much of its redundancy.
    pub depth: Depth,
    /// Blocks that are left out. If the others are consistent without one block, and not with it, that block is wrong.
    pub left_out: &'a [u8],
    /// The known network.
    pub network: &'a Network,
    /// The caches.
    pub known: &'a Known,
}

/// A plan that checks whether a stripe's blocks are consistent: all that can be read and have no known corrupt range, but for those left
/// out. Their nodes form a chain in the order of the blocks' indexes, and the last node checks the sum.
///
/// [`Unavailable`](weft_types::Reaction::Unavailable) if too few blocks are left for a check, or if its matrices are too large to be proved.
/// That takes long to find out, so it is remembered.
pub fn check(code: &SharedCode, stripe: &StripeRecord, view: &View, checking: &Checking<'_>, run: Run) -> Result<Planned> {
    let Checking { depth, left_out, network, known } = *checking;
    let code = &known.shortened(code, stripe.dimension());
    let stored = code.stored();
    let is_checked = |index: &u8| stored.contains(index) && !left_out.contains(index) && stripe.corrupt_bytes(*index).is_empty();
    let checked: Vec<u8> = readable(stripe, view).good.into_iter().filter(is_checked).collect();
    let last = checked.last().and_then(|index| stripe.home_of(*index));
    let last = last.ok_or_else(|| Error::unavailable("nothing can be checked: no block can be read now"))?;
    let span = stripe.layout.coded_span();
    let provable = Provable {
        code: code.spec(),
        dimension: code.dimension(),
        checked: checked.clone(),
        seed: if let Depth::Routine { seed } = depth { Some(seed) } else { None },
        span,
        slice_len: run.slice_len,
        window: run.window,
    };
    let unprovable = |why: &str| Error::unavailable(format!("no check of these blocks of {} can be proved: {why}", code.spec()));
    if let Some(why) = known.unprovable.get(&provable, |_| true) {
        return Err(unprovable(&why));
    }
    let (sub_blocks, seed) = match depth {
        Depth::Routine { seed } => (sub_blocks(code), seed),
        Depth::Full => ((0..=u16::MAX).take(check_rows(code.as_ref(), &checked).max(1)).collect(), 0),
    };
    let party = Party::Node(last.node);
    let want = Want { kind: WantKind::Check, party, index: 0, sub_blocks, span };
    let job = Job { holds: holds(stripe, &checked), wants: vec![want], ..Job::default() };
    let patterns = Some(&known.patterns);
    let request = Request { seq: &stripe.seq, network, seed, patterns, ..Request::new(code.as_ref(), stripe.layout, &job, run) };
    let plan = plan(&request, simplest(Kind::Check)?)?;
    verified(plan, job, code, (network, known)).map_err(|refusal| match refusal.rule {
        Rule::Limits => {
            let why: Arc<str> = refusal.to_string().into();
            known.unprovable.put(provable, Arc::clone(&why), 1);
            unprovable(&why)
        }
        _ => wrong(&refusal),
    })
}
