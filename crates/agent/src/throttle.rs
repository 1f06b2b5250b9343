//! Rate limits for a node's tasks, so that a repair does not overload a disk that other programs need.
//!
//! A task pays for a slice when it is ready: after a read, after a write, or before a send. A task that waits to pay
//! holds no more than that slice, and pays for nothing while it waits for a peer. Foreground tasks pay before others.

use crate::{
    config::Throttle,
    line::{Bound, Line, Passage},
};
use async_trait::async_trait;
use std::{
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};
use weft_engine::{Hold, SliceSink, SliceSource};
use weft_plan::{Class, Precedence};
use weft_types::{ByteSize, ClassLimits, Error, Result, Rows, Span};

/// The burst size. The time that a burst stands for is limited from above and below, because timers are precise to
/// about 1 ms; unused credit beyond it is lost.
const CREDIT_BYTES: u64 = 64 << 10;
const CREDIT_MAX: Duration = Duration::from_millis(25);
const CREDIT_MIN: Duration = Duration::from_millis(5);
/// The longest wait that is computed at once.
const FAR: Duration = Duration::from_secs(365 * 86_400);

/// Limits the bytes a second, first come, first served. The rate may change while tasks wait.
#[derive(Debug)]
pub(crate) struct Bucket {
    account: Mutex<Account>,
    changed: Notify,
}

/// Bytes since the bucket was made.
#[derive(Debug)]
struct Account {
    rate: ByteSize,
    /// Bytes that have been paid for until the time `at`; more at the rate since then.
    paid: f64,
    at: Instant,
    /// Bytes that were taken, and credit that was lost.
    taken: f64,
}

impl Account {
    fn bytes_per_s(&self) -> f64 {
        self.rate.0 as f64
    }

    /// Brings the account up to date.
    fn settle(&mut self, now: Instant) {
        self.paid += self.bytes_per_s() * now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
    }

    fn credit_bytes(&self) -> f64 {
        let credit = Duration::try_from_secs_f64(CREDIT_BYTES as f64 / self.bytes_per_s()).unwrap_or(CREDIT_MAX);
        self.bytes_per_s() * credit.clamp(CREDIT_MIN, CREDIT_MAX).as_secs_f64()
    }

    /// When everything up to this byte is paid, at the current rate.
    fn paid_at(&self, byte: f64) -> Instant {
        let rest = Duration::try_from_secs_f64((byte - self.paid).max(0.0) / self.bytes_per_s()).unwrap_or(FAR);
        self.at + rest.min(FAR)
    }
}

impl Bucket {
    pub(crate) fn new(rate: ByteSize) -> Self {
        let account = Account { rate, paid: 0.0, at: Instant::now(), taken: 0.0 };
        Self { account: Mutex::new(account), changed: Notify::new() }
    }

    /// Changes the rate, also for tasks that wait.
    pub(crate) fn set_rate(&self, rate: ByteSize) {
        let mut account = self.account();
        if account.rate != rate {
            account.settle(Instant::now());
            account.rate = rate;
            drop(account);
            self.changed.notify_waiters();
        }
    }

    pub(crate) fn rate(&self) -> ByteSize {
        self.account().rate
    }

    /// Waits until `bytes`, none of which has passed yet, are paid. A dropped wait pays nothing.
    pub(crate) async fn take(&self, bytes: u64) {
        let mut due = Due { bucket: self, bytes };
        let byte = self.charge(bytes);
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let paid_at = self.account().paid_at(byte);
            if timeout_at(paid_at, changed).await.is_err() {
                break;
            }
        }
        due.bytes = 0;
    }

    /// Takes `bytes` more. Returns the byte up to which must be paid then.
    fn charge(&self, bytes: u64) -> f64 {
        let mut account = self.account();
        account.settle(Instant::now());
        account.taken = account.taken.max(account.paid - account.credit_bytes()) + bytes as f64;
        account.taken
    }

    pub(crate) fn cost(&self, bytes: u64) -> Duration {
        Duration::try_from_secs_f64(bytes as f64 / self.account().bytes_per_s()).unwrap_or(Duration::MAX)
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        // A poisoned lock is safe to use: it guards numbers only.
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that were charged and have not passed. Dropping it returns them.
struct Due<'a> {
    bucket: &'a Bucket,
    bytes: u64,
}

impl Drop for Due<'_> {
    fn drop(&mut self) {
        self.bucket.account().taken -= self.bytes as f64;
    }
}

/// The rate limits that all tasks of a node share, and the uplink and the downlink, limited or not.
#[derive(Debug, Clone)]
pub(crate) struct Throttles {
    disk: Option<Arc<Line>>,
    coding: Option<Arc<Line>>,
    pub(crate) uplink: Arc<Line>,
    pub(crate) downlink: Arc<Line>,
}

impl Throttles {
    pub(crate) fn new(said: &Throttle) -> Self {
        let line = |rate: Option<ByteSize>| rate.map(|rate| Line::new(Some(rate)));
        Self {
            disk: line(said.disk_bytes_per_s),
            coding: line(said.coding_bytes_per_s),
            uplink: Line::new(said.network_bytes_per_s),
            downlink: Line::new(said.network_bytes_per_s),
        }
    }

    /// Applies the cluster's limits on what lower classes send, and on what they receive.
    pub(crate) fn keep_within(&self, cluster: &ClassLimits) {
        for line in [&self.uplink, &self.downlink] {
            line.bound(Bound::Of(Class::Repair), cluster.repair_bytes_per_s);
            line.bound(Bound::Of(Class::Scrub), cluster.scrub_bytes_per_s);
        }
    }

    /// The rate limit of all disks together, if there is one.
    pub(crate) fn disk_rate(&self) -> Option<ByteSize> {
        self.disk.as_ref().and_then(|line| line.rate(Class::Repair))
    }

    /// Waits until bytes that were read from a disk are paid for.
    pub(crate) async fn read_from_disk(&self, of: Precedence, bytes: u64) {
        if let Some(line) = &self.disk {
            Passage::new(line, of).pass(bytes).await;
        }
    }

    /// Wraps a source of a stage. `from_disk`: the source is a disk. `combined`: the stage combines its input and does
    /// not just forward it.
    pub(crate) fn source(
        &self,
        source: Box<dyn SliceSource>,
        of: Precedence,
        from_disk: bool,
        combined: bool,
    ) -> Box<dyn SliceSource> {
        match self.toll(source.hold(), of, from_disk, combined) {
            Some(toll) => Box::new(Paid { port: source, toll }),
            None => source,
        }
    }

    /// Wraps a sink that is a disk.
    pub(crate) fn disk_sink(&self, sink: Box<dyn SliceSink>, of: Precedence) -> Box<dyn SliceSink> {
        match self.toll(sink.hold(), of, true, false) {
            Some(toll) => Box::new(Paid { port: sink, toll }),
            None => sink,
        }
    }

    /// The limits that a port pays to; `None` if none applies.
    fn toll(&self, hold: Option<Hold>, of: Precedence, disk: bool, coding: bool) -> Option<Toll> {
        let hold = hold.unwrap_or_default();
        let passage = |line: &Option<Arc<Line>>, is_due| {
            let line = line.as_ref().filter(|_| is_due)?;
            Some(Passage::new(line, of).of_port(hold.clone()))
        };
        let toll = Toll { disk: passage(&self.disk, disk), coding: passage(&self.coding, coding), hold: hold.clone() };
        Some(toll).filter(|toll| toll.disk.is_some() || toll.coding.is_some())
    }
}

/// A source or sink whose slices are paid for.
struct Paid<P> {
    port: P,
    toll: Toll,
}

/// The limits that a slice is paid to.
struct Toll {
    disk: Option<Passage>,
    coding: Option<Passage>,
    hold: Hold,
}

impl Toll {
    /// Pays to all of them at once: a disk and a processor work in parallel.
    async fn pay(&self, bytes: usize) {
        let pay = async |passage: &Option<Passage>| {
            if let Some(passage) = passage {
                passage.pass(bytes as u64).await;
            }
        };
        tokio::join!(pay(&self.disk), pay(&self.coding));
    }
}

#[async_trait]
impl SliceSource for Paid<Box<dyn SliceSource>> {
    fn hold(&self) -> Option<Hold> {
        Some(self.toll.hold.clone())
    }

    async fn next(&mut self, slice: Span) -> Result<Rows> {
        self.port.next(slice).await
    }

    async fn pay(&mut self, bytes: usize) {
        self.toll.pay(bytes).await;
    }

    async fn finish(&mut self) -> Result<()> {
        self.port.finish().await
    }
}

#[async_trait]
impl SliceSink for Paid<Box<dyn SliceSink>> {
    fn hold(&self) -> Option<Hold> {
        Some(self.toll.hold.clone())
    }

    async fn put(&mut self, slice: Span, rows: Rows) -> Result<()> {
        let bytes = rows.len();
        self.port.put(slice, rows).await?;
        self.toll.pay(bytes).await;
        Ok(())
    }

    async fn finish(&mut self) -> Result<()> {
        self.port.finish().await
    }

    fn fail(&mut self, why: &Error) {
        self.port.fail(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::join_all;

    const MIB: u64 = 1 << 20;

    /// Returns as many zero bytes as positions are asked for.
    struct Zeros;

    #[async_trait]
    impl SliceSource for Zeros {
        async fn next(&mut self, slice: Span) -> Result<Rows> {
            Ok(vec![0; slice.len() as usize].into())
        }
    }

    fn about(elapsed: Duration, seconds: f64) {
        let least = seconds - CREDIT_MAX.as_secs_f64();
        assert!((least..seconds + 0.01).contains(&elapsed.as_secs_f64()), "took {elapsed:?}, expected {seconds} s");
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_holds_for_all_callers_together() {
        let (bucket, begin) = (Bucket::new(ByteSize(10 * MIB)), Instant::now());
        let takers = (0..4).map(async |_| {
            for _ in 0..40 {
                bucket.take(MIB / 16).await;
            }
        });
        join_all(takers).await;
        about(begin.elapsed(), 1.0);
        // An idle hour does not earn an hour's credit.
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let begin = Instant::now();
        bucket.take(10 * MIB).await;
        about(begin.elapsed(), 1.0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_is_charged_by_the_slower_of_its_own_limits_only() {
        let said = Throttle {
            disk_bytes_per_s: Some(ByteSize(MIB)),
            coding_bytes_per_s: Some(ByteSize(2 * MIB)),
            ..Throttle::default()
        };
        let of = Precedence::of(weft_plan::Class::Repair);
        for (from_disk, combined, seconds) in [(true, true, 4.0), (true, false, 4.0), (false, true, 2.0), (false, false, 0.0)] {
            let mut source = Throttles::new(&said).source(Box::new(Zeros), of, from_disk, combined);
            let begin = Instant::now();
            for _ in 0..64 {
                let before = Instant::now();
                let slice = source.next(Span::new(0, MIB / 16)).await.unwrap();
                assert_eq!(before, Instant::now(), "the wait for a peer was charged as our own time");
                source.pay(slice.len()).await;
            }
            about(begin.elapsed(), seconds);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_the_rate_counts_for_those_that_wait() {
        let (bucket, begin) = (Bucket::new(ByteSize(MIB)), Instant::now());
        let change = async {
            // A quarter is paid.
            tokio::time::sleep(Duration::from_secs(1)).await;
            bucket.set_rate(ByteSize(3 * MIB));
            tokio::time::sleep(Duration::from_millis(500)).await;
            bucket.set_rate(ByteSize(MIB / 2));
        };
        futures::join!(bucket.take(4 * MIB), change);
        about(begin.elapsed(), 1.5 + 3.0);
        let begin = Instant::now();
        bucket.take(MIB).await;
        about(begin.elapsed(), 2.0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_wait_returns_its_bytes() {
        let (bucket, begin) = (Bucket::new(ByteSize(MIB)), Instant::now());
        bucket.take(MIB).await;
        for _ in 0..10 {
            let given_up = tokio::time::timeout(Duration::from_millis(1), bucket.take(8 * MIB)).await;
            assert!(given_up.is_err(), "paying takes eight seconds");
        }
        bucket.take(MIB).await;
        about(begin.elapsed(), 2.0);
        // A later request is not served early.
        let (_, begin) = (bucket.take(MIB).await, Instant::now());
        let (given_up, ()) = futures::join!(tokio::time::timeout(Duration::from_millis(1), bucket.take(MIB)), bucket.take(MIB));
        assert!(given_up.is_err());
        about(begin.elapsed(), 2.0);
    }
}
