//! Even fill: the shell around [`weft_control::leveling`], which decides. Blocks are copied from fuller disks to emptier ones, several stripes
//! at a time; an old block serves until the new one is committed.
//!
//! Each pass plans its moves from the metadata, so the job stores no list of them. The job skips a stripe that a put, a conversion or a
//! removal has changed since the plan.

use super::{
    Control,
    gate::Gate,
    runner::{Passes, Runner},
};
use crate::{
    limit::Longest,
    pages::{Pages, STRIPES_PER_PAGE},
    rebuild::{Told, owner::Of, shares::Shares},
    shared::Shared,
    updates::settle,
    validate,
};
use futures::stream;
use std::{
    collections::BTreeSet,
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tonic::async_trait;
use weft_control::{
    health::BadBlocks,
    job::{Again, Counted, Passed},
    leveling::{Level, Leveling, Move, Moves, Stored, Sum, Tolerances},
    options::RepairOptions,
    rebuild::{Answers, Destination, Lost, Needed, Rebuilt, Request},
    schedule::{Load, Place, STRIPES_PER_NODE},
    view::View,
};
use weft_meta::MetaError;
use weft_proto::v1;
use weft_schemes::{Kind, simplest};
use weft_types::{Amount, Balance, Error, Home, JobWork, LeftBlock, NodeId, Owner, Reaction, Result, StripeRecord};

/// The reason if moves are left that no attempt reported.
const LEFT_UNSAID: &str = "blocks came or went during the job: run it again";

/// A running job.
pub(super) struct BalanceJob {
    shared: Arc<Shared>,
    balance: Balance,
    shares: Shares,
    /// The moves of the next pass.
    moves: Vec<Moves>,
    /// Whether there are more.
    is_cut: bool,
}

/// Creates the job.
pub(crate) async fn begin(shared: &Arc<Shared>, asked: &v1::BalanceRequest) -> Result<v1::Job> {
    let balance = validate::jobs::balance(asked)?;
    shared.until_nodes_are_back().await;
    super::begin(shared, JobWork::Balance(balance)).await
}

/// What such a job would do now.
pub(crate) async fn explain(shared: &Arc<Shared>, asked: &v1::BalanceRequest) -> Result<v1::BalancePlan> {
    validate::jobs::balance(asked)?;
    let _turn = shared.jobs.explain_turn()?;
    shared.until_nodes_are_back().await;
    let leveling = planned(shared).await?;
    let view = shared.members.view();
    let network = shared.network_of_helpers();
    let loads = leveling.loads(&network);
    let Longest { free, limit, limited } = Longest::of(shared, &loads, &network);
    let disk = |level: &Level| {
        let v1::DiskName { node, name, disk, path } = disk_name(&view, level.home);
        let (capacity_bytes, bytes, after_bytes) = (level.capacity_bytes, level.bytes, leveling.after(level));
        v1::DiskLevel { node, name, disk, path, capacity_bytes, bytes, after_bytes }
    };
    let node = |(place, load): (&Place, &Load)| match place {
        // Moves between disks of a node take no link.
        Place::Node(node) if load.busier() > 0 => {
            let (name, Load { up: sends_bytes, down: receives_bytes, .. }) = (view.name(*node), *load);
            Some(v1::NodeTraffic { node: node.0, name, sends_bytes, receives_bytes })
        }
        _ => None,
    };
    let (sums, further_moves) = leveling.sums();
    let moves = |sum: &Sum| v1::DiskMoves {
        from: Some(disk_name(&view, sum.from)),
        to: Some(disk_name(&view, sum.to)),
        blocks: sum.amount.blocks,
        bytes: sum.amount.bytes,
    };
    let (blocks, bytes) = leveling.amount();
    Ok(v1::BalancePlan {
        disks: leveling.levels().iter().map(disk).collect(),
        nodes: loads.iter().filter_map(node).collect(),
        blocks,
        bytes,
        least_bytes: leveling.least_bytes(),
        seconds: free.map_or(0.0, |link| link.seconds),
        limit,
        limited_seconds: limited.map_or(0.0, |link| link.seconds),
        moves: sums.iter().map(moves).collect(),
        further_moves,
    })
}

fn disk_name(view: &View, home: Home) -> v1::DiskName {
    let disk = view.disk(home);
    v1::DiskName {
        node: home.node.0,
        name: view.name(home.node),
        disk: disk.map(|disk| disk.id.to_string()).unwrap_or_default(),
        path: disk.map(|disk| disk.path.to_string()).unwrap_or_default(),
    }
}

/// The moves that make the fill even, from all stripes.
async fn planned(shared: &Shared) -> Result<Leveling> {
    let mut stored = Stored::default();
    for (home, garbage) in shared.meta.garbage_per_disk().await.map_err(|error| shared.meta_error(error))? {
        stored.add_garbage(home, garbage.bytes);
    }
    let mut stripes = all_stripes();
    while let Some(stripe) = next(shared, &mut stripes).await? {
        stored.add(&stripe);
    }
    let mut tolerances = Tolerances::new();
    for code in shared.codes_in_use().await? {
        let least = tolerances.entry((code.k() as u32, code.m() as u32)).or_insert(usize::MAX);
        *least = code.tolerance().min(*least);
    }
    let view = shared.members.view();
    let mut leveling = Leveling::new(&stored, tolerances, &view);
    let mut stripes = all_stripes();
    while !leveling.is_over()
        && let Some(stripe) = next(shared, &mut stripes).await?
    {
        leveling.stripe(&stripe, &view);
    }
    Ok(leveling)
}

type StripePages = Pages<Option<weft_types::StripeId>, StripeRecord>;

fn all_stripes() -> StripePages {
    Pages::new(None, |stripe| Some(stripe.id))
}

async fn next(shared: &Shared, stripes: &mut StripePages) -> Result<Option<StripeRecord>> {
    let next = stripes.next(|after| shared.meta.object_stripes(after, STRIPES_PER_PAGE)).await;
    next.map_err(|error| shared.meta_error(error))
}

impl BalanceJob {
    pub(super) fn new(shared: &Arc<Shared>, balance: Balance) -> Self {
        Self { shared: Arc::clone(shared), balance, shares: shared.jobs.shares(), moves: Vec::new(), is_cut: false }
    }

    /// The most stripes at a time: as many as the nodes that get blocks can take, or as an operator says. Links may carry fewer.
    fn concurrency(&self, moves: &[Moves]) -> usize {
        let targets: BTreeSet<NodeId> = moves.iter().flat_map(|moves| &moves.blocks).map(|it| it.to.node).collect();
        match self.balance.concurrency {
            0 => STRIPES_PER_NODE * targets.len().max(1),
            asked => asked as usize,
        }
    }

    /// Moves blocks of a stripe. Those that are no longer where they were, and those of a stripe that lacks one, stay.
    async fn stripe(&self, control: &Control, moves: &Moves) -> Result<Option<(Of, Rebuilt)>> {
        let shared = &self.shared;
        let _claim = shared.claims.claim(moves.stripe).await;
        settle::if_open(shared, moves.stripe).await?;
        let found = async {
            let stripe = shared.meta.stripe(moves.stripe).await?;
            let of = Of::owner(shared.meta.as_ref(), stripe.owner).await?;
            Ok::<_, MetaError>((stripe, of))
        };
        let (stripe, of) = match found.await {
            Err(MetaError::NotFound(_)) => return Ok(None),
            found => found.map_err(|error| shared.meta_error(error))?,
        };
        let view = shared.members.view();
        let still = |it: &&Move| stripe.find(it.index, it.copy).is_some_and(|placed| placed.home == it.from);
        let blocks: Vec<&Move> = moves.blocks.iter().filter(still).collect();
        let is_whole = matches!(stripe.owner, Owner::Object(_)) && BadBlocks::of(&stripe, &view).is_none();
        if blocks.is_empty() || !is_whole {
            return Ok(None);
        }
        let lost = blocks.iter().map(|it| Lost::of(&stripe, it.index, it.copy)).collect();
        let (scheme, kept) = (simplest(Kind::Move)?.name(), shared.kept_for_repair(&view, shared.code(&of.code)?.n()));
        let change = |request: Request| Request {
            options: RepairOptions { scheme: scheme.into(), ..request.options },
            to: Destination::Homes(blocks.iter().map(|it| it.to).collect()),
            // Only repair uses the room that is kept for it.
            kept,
            needed: Needed::ToSpread,
            answers: Answers::default(),
            ..request
        };
        let tell = |told: Told<'_>| {
            if let Told::Moved(bytes) = told {
                control.live().job.moved(bytes);
            }
        };
        let rebuilt = of.rebuild(shared, (stripe, lost), &self.shares, change, tell).await?;
        Ok(Some((of, rebuilt)))
    }

    /// The same without blocks that could not be moved because they are gone.
    async fn stripe_as_it_is(&self, control: &Control, moves: &Moves) -> Result<Option<(Of, Rebuilt)>> {
        let moved = self.stripe(control, moves).await;
        let is_left = match &moved {
            Ok(Some((_, rebuilt))) => !rebuilt.left.is_empty(),
            Ok(None) => false,
            Err(_) => true,
        };
        if !is_left || !self.is_gone(moves).await {
            return moved;
        }
        match moved {
            // Some were committed before that.
            Ok(Some((of, rebuilt))) if !rebuilt.blocks.is_empty() => Ok(Some((of, Rebuilt { left: Vec::new(), ..rebuilt }))),
            _ => Ok(None),
        }
    }

    /// Whether none of these blocks is where it was, because the object was removed, overwritten or converted; false if that cannot be looked up.
    async fn is_gone(&self, moves: &Moves) -> bool {
        match self.shared.meta.stripe(moves.stripe).await {
            Ok(stripe) => {
                let is_there = |it: &Move| stripe.find(it.index, it.copy).is_some_and(|placed| placed.home == it.from);
                !moves.blocks.iter().any(is_there)
            }
            Err(error) => matches!(error, MetaError::NotFound(_)),
        }
    }
}

#[async_trait]
impl Passes for BalanceJob {
    fn show(&self, shown: &mut v1::Job) {
        shown.balance = Some(v1::BalanceRequest { concurrency: self.balance.concurrency });
    }

    fn left_unsaid(&self) -> &'static str {
        LEFT_UNSAID
    }

    async fn count(&mut self) -> Result<Counted> {
        let leveling = planned(&self.shared).await?;
        let (blocks, bytes) = leveling.amount();
        self.is_cut = leveling.is_cut();
        self.moves = leveling.into_moves();
        let to_do = Amount { blocks, bytes };
        Ok(Counted { to_do, there: to_do })
    }

    async fn pass(&mut self, runner: &mut Runner<'_>) -> Result<(Passed, Again)> {
        let moves = mem::take(&mut self.moves);
        let (work, control, concurrency) = (&*self, runner.control, self.concurrency(&moves));
        let skipped = &AtomicU64::new(0);
        let done_before = control.live().job.progress().done.blocks;
        let gate = &Gate::of_all(moves.into_iter().map(|moves| {
            let lines = moves.lines();
            (moves, lines)
        }));
        let all = stream::unfold((), |()| async { gate.next().await.map(|next| (Ok(next), ())) });
        let stripe = |(ticket, moves): (_, Moves)| async move {
            control.live().moving.insert(moves.stripe.0, 0);
            let moved = work.stripe_as_it_is(control, &moves).await;
            if matches!(moved, Ok(None)) {
                skipped.fetch_add(moves.blocks.len() as u64, Relaxed);
            }
            gate.ended(ticket);
            control.live().moving.remove(&moves.stripe.0);
            take(&work.shared, control, &moves, moved)
        };
        let (passed, again) = runner.all(concurrency, all, || false, stripe).await?;
        // The moves that were not planned yet are no failures.
        let again = if work.is_cut { again.max(Again::MadeWay) } else { again };
        let done = control.live().job.progress().done.blocks.saturating_sub(done_before);
        Ok((passed, again.after_skips(skipped.load(Relaxed), done)))
    }
}

/// Counts what became of the blocks of a stripe. Returns whether another attempt may succeed.
fn take(shared: &Shared, control: &Control, moves: &Moves, moved: Result<Option<(Of, Rebuilt)>>) -> Again {
    let mut live = control.live();
    let (object, rebuilt, error) = match moved {
        // The stripe has changed since the plan. The next plan finds another one, and is no further attempt as long as more others succeed.
        Ok(None) => return Again::MadeWay,
        Ok(Some((of, rebuilt))) => {
            let why = rebuilt.left.first().map(|(_, why)| Error::unavailable(why));
            (of.name.to_string(), rebuilt, why)
        }
        Err(error) => (error.object.clone().unwrap_or_default(), Rebuilt::default(), Some(error)),
    };
    let mut again = Again::InVain;
    for it in &moves.blocks {
        if rebuilt.blocks.iter().any(|new| (new.block.index, new.block.copy) == (it.index, it.copy)) {
            live.job.done(it.bytes);
        } else if let Some(error) = &error {
            // Another plan finds other homes.
            let error = Error { reaction: Reaction::Retry, ..error.clone() };
            let left = |reason| LeftBlock { object: object.clone(), stripe: moves.number, index: it.index, reason };
            again = again.max(live.job.left(it.bytes, error, left));
        }
    }
    if let Some(error) = &error
        && let Some(left_out) = shared.failures.admit("moves to emptier disks", &error.message)
    {
        tracing::warn!(stripe = %moves.stripe, %error, left_out, "cannot move blocks to an emptier disk");
    }
    again
}
