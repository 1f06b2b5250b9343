//! Checks all stripes in the background, one after another, so that each is checked within the period: the shell around
//! [`weft_control::scrub`], which decides.
//!
//! How far it is, is in the metadata, so the next coordinator continues. What the last one had not recorded is checked again.

pub(crate) mod report;
pub(crate) mod state;
pub(crate) mod stripe;
pub(crate) mod walk;

use crate::shared::Shared;
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use walk::{Item, Walk};
use weft_control::{
    Time,
    retries::Retries,
    scrub::{End, Left, Outcome, Pace, Progress, Ticket, concurrency, left_bytes},
};
use weft_types::{Result, Scrub, ScrubPlace, StripeId};

/// How often to look what is due.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How often the progress is recorded.
const WRITE_INTERVAL: Duration = Duration::from_secs(10);
/// How often the stock is looked up.
const STOCK_INTERVAL: Duration = Duration::from_secs(10);

/// The first and the last pause before a stripe is tried again: what is busy is so for seconds, and a disk may be away for days.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(12 * 3600));

/// All stripes.
const ALL: Scrub = Scrub { bucket: None, key: None, node: None, concurrency: 0 };

/// The end of a check: without a ticket it was not the first one of the stripe in this pass.
type Done = (Option<Ticket>, StripeId, Outcome);

/// Checks for as long as it runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    let period_ms = shared.config.scrub_period_ms;
    shared.until_nodes_are_back().await;
    loop {
        match shared.meta.scrub(None).await {
            Ok(record) => {
                *shared.scrub.progress() = Progress::new(record);
                break;
            }
            Err(error) => warn(&shared, &shared.meta_error(error).message),
        }
        tokio::time::sleep(WRITE_INTERVAL).await;
    }
    // The last passes are still shown.
    if period_ms > 0 {
        Background::new(&shared, period_ms).work().await;
    }
}

fn warn(shared: &Shared, why: &str) {
    if let Some(left_out) = shared.failures.admit("scrub", why) {
        tracing::warn!(why, left_out, "cannot check all stripes yet");
    }
}

/// The scrub in the background.
struct Background<'a> {
    shared: &'a Arc<Shared>,
    period_ms: u64,
    walk: Walk<'a>,
    /// The next stripe of the walk.
    next: Option<Item>,
    /// Whether the walk has reached its end.
    is_through: bool,
    pace: Pace,
    /// Stripes that could not be checked.
    retries: Retries<StripeId>,
    repeated: BTreeSet<StripeId>,
    under_way: FuturesUnordered<BoxFuture<'a, Done>>,
    /// The bytes and the stripes of all objects, and when they were looked up.
    stock: (u64, u64, Option<Time>),
    written_at: Time,
    is_dirty: bool,
    /// Whether something was found since.
    has_found: bool,
}

impl<'a> Background<'a> {
    fn new(shared: &'a Arc<Shared>, period_ms: u64) -> Self {
        let (place, mut pace) = (shared.scrub.progress().record().place.clone(), Pace::default());
        pace.begin_pass(shared.started.now());
        Self {
            shared,
            period_ms,
            walk: Walk::new(shared, &ALL, &place),
            next: None,
            is_through: false,
            pace,
            retries: Retries::default(),
            repeated: BTreeSet::new(),
            under_way: FuturesUnordered::new(),
            stock: (0, 0, None),
            written_at: shared.started.now(),
            is_dirty: false,
            has_found: false,
        }
    }

    async fn work(mut self) {
        loop {
            if let Err(error) = self.step().await {
                warn(self.shared, &error.message);
            }
            let wake_at = self.shared.started.instant(self.wake_at());
            tokio::select! {
                biased;
                Some(done) = self.under_way.next() => self.ended(done),
                () = tokio::time::sleep_until(wake_at) => {}
            }
        }
    }

    /// When to look again what is due.
    fn wake_at(&self) -> Time {
        let latest = self.shared.started.now() + LOOK_INTERVAL;
        match &self.next {
            Some(next) if self.has_room() && self.shared.scrub.progress().may_begin() => {
                self.pace.at(&next.blocks, self.left()).min(latest)
            }
            _ => latest,
        }
    }

    fn has_room(&self) -> bool {
        self.under_way.len() < concurrency(&self.shared.members.view())
    }

    /// Does what is due.
    async fn step(&mut self) -> Result<()> {
        let (now, now_ms) = (self.shared.started.now(), self.shared.now_ms());
        if self.has_found || self.is_dirty && now.since(self.written_at) >= WRITE_INTERVAL {
            self.write().await?;
        }
        let (next_pass_ms, may_end) = {
            let progress = self.shared.scrub.progress();
            (progress.next_pass_ms(self.period_ms, now_ms), self.is_through && progress.may_end(self.period_ms, now_ms))
        };
        self.look_up_stock(now).await?;
        let (_, stripes, _) = self.stock;
        match next_pass_ms {
            Some(at_ms) if now_ms < at_ms || stripes == 0 => return Ok(()),
            Some(_) => self.begin_pass(now_ms).await?,
            None if may_end && self.under_way.is_empty() => return self.end_pass(now_ms).await,
            None => {}
        }
        self.begin_what_is_due().await
    }

    async fn begin_pass(&mut self, now_ms: u64) -> Result<()> {
        self.shared.scrub.progress().begin_pass(now_ms);
        (self.walk, self.next, self.is_through) = (Walk::new(self.shared, &ALL, &ScrubPlace::default()), None, false);
        self.pace.begin_pass(self.shared.started.now());
        self.retries = Retries::default();
        tracing::info!("begins to check all stripes");
        self.write().await
    }

    async fn end_pass(&mut self, now_ms: u64) -> Result<()> {
        let last = {
            let mut progress = self.shared.scrub.progress();
            progress.end_pass(now_ms);
            progress.record().last.clone().unwrap_or_default()
        };
        let tally = last.tally;
        tracing::info!(
            stripes = tally.stripes,
            blocks = tally.blocks,
            bytes = tally.bytes,
            wrong_blocks = tally.wrong_blocks,
            inconsistent_stripes = tally.inconsistent_stripes,
            not_checked_stripes = tally.skipped_stripes,
            away_blocks = tally.away_blocks,
            "checked all stripes"
        );
        self.write().await
    }

    async fn look_up_stock(&mut self, now: Time) -> Result<()> {
        let (_, _, at) = self.stock;
        if at.is_some_and(|at| now.since(at) < STOCK_INTERVAL) {
            return Ok(());
        }
        let totals = self.shared.meta.totals_by_code().await.map_err(|error| self.shared.meta_error(error))?;
        let (mut bytes, mut stripes) = (0u64, 0);
        for (code, of) in totals {
            let code = self.shared.code(&code)?;
            bytes = bytes.saturating_add((of.data_bytes as f64 * code.n() as f64 / code.k().max(1) as f64) as u64);
            stripes += of.stripes;
        }
        self.stock = (bytes, stripes, Some(now));
        Ok(())
    }

    /// Begins to check stripes, as many at the same time as the cluster allows.
    async fn begin_what_is_due(&mut self) -> Result<()> {
        while self.has_room() {
            let now = self.shared.started.now();
            if let Some(stripe) = self.due_again(now)
                && self.has_begun_again(stripe, now).await?
            {
                continue;
            }
            if !self.shared.scrub.progress().may_begin() {
                return Ok(());
            }
            if self.next.is_none() && !self.is_through {
                self.next = self.walk.next().await?;
                self.is_through = self.next.is_none();
            }
            let left = self.left();
            let Some(next) = self.next.take_if(|next| self.pace.at(&next.blocks, left) <= now) else { return Ok(()) };
            self.pace.began(&next.blocks, self.shared.config.scrub_disk_bytes_per_s.0, now);
            let ticket = self.shared.scrub.progress().begin(next.behind);
            self.begin(Some(ticket), next.stripe);
        }
        Ok(())
    }

    /// Begins to check a stripe again, if its disks may read now.
    async fn has_begun_again(&mut self, id: StripeId, now: Time) -> Result<bool> {
        let found = self.shared.meta.find_stripes(vec![id]).await.map_err(|error| self.shared.meta_error(error))?;
        // One that is gone is found to be so.
        let blocks = found.first().map(|stripe| Item::new(stripe, ScrubPlace::default()).blocks).unwrap_or_default();
        if self.pace.disks_at(&blocks) > now {
            return Ok(false);
        }
        self.pace.read(&blocks, self.shared.config.scrub_disk_bytes_per_s.0, now);
        self.repeated.insert(id);
        self.begin(None, id);
        Ok(true)
    }

    /// A stripe that could not be checked and is tried again now.
    fn due_again(&self, now: Time) -> Option<StripeId> {
        let progress = self.shared.scrub.progress();
        let mut again = progress.record().again.iter().copied();
        again.find(|stripe| self.retries.is_due(stripe, now) && !self.repeated.contains(stripe))
    }

    fn left(&self) -> Left {
        let (bytes, stripes, _) = self.stock;
        let progress = self.shared.scrub.progress();
        let record = progress.record();
        let bytes = left_bytes(bytes, stripes, &record.tally);
        let stripes = stripes.saturating_sub(record.tally.stripes);
        Left::of(bytes, stripes, (record.began_ms, self.period_ms), self.shared.now_ms())
    }

    fn begin(&mut self, ticket: Option<Ticket>, stripe: StripeId) {
        let shared = self.shared;
        self.under_way.push(async move { (ticket, stripe, stripe::check(shared, stripe).await) }.boxed());
    }

    fn ended(&mut self, (ticket, stripe, outcome): Done) {
        self.is_dirty = true;
        self.repeated.remove(&stripe);
        report::log(self.shared, &outcome);
        match &outcome.end {
            End::Again(error) => {
                self.retries.failed_within(stripe, String::new(), RETRY_PAUSES, self.shared.started.now());
                warn(self.shared, &error.to_string());
            }
            End::Checked | End::Gone => self.retries.done(&stripe),
        }
        let mut progress = self.shared.scrub.progress();
        let found = match ticket {
            Some(ticket) => progress.ended(&ticket, stripe, &outcome),
            None => progress.repeated(stripe, &outcome),
        };
        self.has_found |= found > 0;
    }

    async fn write(&mut self) -> Result<()> {
        let record = self.shared.scrub.progress().record().clone();
        (self.written_at, self.is_dirty, self.has_found) = (self.shared.started.now(), false, false);
        let written = self.shared.meta.set_scrub(self.shared.epoch, None, record).await;
        written.map_err(|error| {
            self.is_dirty = true;
            self.shared.meta_error(error)
        })
    }
}
