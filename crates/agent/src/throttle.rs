//! Rate limits for a node's tasks, so that a repair does not overload a disk that other programs need.
//!
//! A task pays for a slice when it is ready: after a read, after a write, or before a send. A task that waits to pay
//! holds no more than that slice, and pays for nothing while it waits for a peer. Foreground tasks pay before others.

use crate::{
    config::Throttle,
    line::{Line, Passage},
};
use async_trait::async_trait;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, sleep_until};
use weft_engine::{Hold, SliceSink, SliceSource};
use weft_plan::{Class, Precedence};
use weft_types::{ByteSize, ClassLimits, Error, Result, Rows, Span};

/// The burst size. The time that a burst stands for is limited from above and below, because timers are precise to
/// about 1 ms; unused credit beyond it is lost.
const CREDIT_BYTES: u64 = 256 << 10;
const CREDIT_MAX: Duration = Duration::from_millis(100);
const CREDIT_MIN: Duration = Duration::from_millis(5);

/// Limits the bytes a second, first come, first served.
#[derive(Debug)]
pub(crate) struct Bucket {
    bytes_per_s: f64,
    credit: Duration,
    /// When everything taken so far is paid.
    paid_at: Mutex<Instant>,
}

impl Bucket {
    pub(crate) fn new(rate: ByteSize) -> Self {
        let bytes_per_s = rate.0 as f64;
        let credit = Duration::try_from_secs_f64(CREDIT_BYTES as f64 / bytes_per_s).unwrap_or(CREDIT_MAX);
        Self { bytes_per_s, credit: credit.clamp(CREDIT_MIN, CREDIT_MAX), paid_at: Mutex::new(Instant::now()) }
    }

    /// Waits until `bytes`, none of which has passed yet, are paid. A dropped wait pays nothing.
    pub(crate) async fn take(&self, bytes: u64) {
        let mut due = Due { bucket: self, bytes };
        sleep_until(self.charge(bytes)).await;
        due.bytes = 0;
    }

    /// The time at which `bytes` more will be paid.
    fn charge(&self, bytes: u64) -> Instant {
        let now = Instant::now();
        let mut paid_at = self.paid_at();
        let begin = now.checked_sub(self.credit).map_or(*paid_at, |credit| credit.max(*paid_at));
        *paid_at = begin.checked_add(self.cost(bytes)).unwrap_or(begin);
        *paid_at
    }

    pub(crate) fn is_of(&self, rate: ByteSize) -> bool {
        self.bytes_per_s == rate.0 as f64
    }

    pub(crate) fn cost(&self, bytes: u64) -> Duration {
        Duration::try_from_secs_f64(bytes as f64 / self.bytes_per_s).unwrap_or(Duration::MAX)
    }

    fn paid_at(&self) -> MutexGuard<'_, Instant> {
        // A poisoned lock is safe to use: each change is one assignment.
        self.paid_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that were charged and have not passed. Dropping it returns them.
struct Due<'a> {
    bucket: &'a Bucket,
    bytes: u64,
}

impl Drop for Due<'_> {
    fn drop(&mut self) {
        let mut paid_at = self.bucket.paid_at();
        *paid_at = paid_at.checked_sub(self.bucket.cost(self.bytes)).unwrap_or(*paid_at);
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
            line.bound_class(Class::Repair, cluster.repair_bytes_per_s);
            line.bound_class(Class::Scrub, cluster.scrub_bytes_per_s);
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
        for (from_disk, combined, seconds) in [(true, true, 4.0), (true, false, 4.0), (false, true, 2.0), (false, false, 0.1)] {
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
