//! Resources that tasks of all classes share: a disk, the uplink, the downlink, or a rate limit. Foreground tasks pass at once; lower
//! classes take turns. [`weft_engine::classes::Turns`] decides whose turn it is; here tasks wait for it.

use crate::{meter::CLASSES, throttle::Bucket};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};
use weft_engine::{
    Hold,
    classes::{FRAME_BYTES_MAX, Ticket, Turns, frame_bytes},
};
use weft_plan::{Class, Precedence};
use weft_types::{ByteSize, PAGE_LEN, Span};

/// How often a waiting task checks whether another class holds it back, so that its reports stay true.
const LOOK: Duration = Duration::from_millis(100);

/// The least time that a frame is charged when a buffer may have absorbed it.
const FRAME_TIME_MIN: Duration = Duration::from_millis(1);

/// A disk, the uplink, the downlink, or a rate limit.
#[derive(Debug)]
pub(crate) struct Line {
    queue: Mutex<Queue>,
    begin: Instant,
    rate: Option<Bucket>,
    /// Rate limits of some classes, which may change. Their bytes pass these limits first, in order.
    bounds: RwLock<BTreeMap<Bound, Arc<Line>>>,
    /// The time that tasks have waited for [`Bound::BelowForeground`], microseconds.
    limited_us: AtomicU64,
    /// The time that tasks have waited for their turns, microseconds, by class.
    waited_us: [AtomicU64; CLASSES.len()],
}

/// The classes of a rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bound {
    /// One class.
    Of(Class),
    /// All classes but foreground together.
    BelowForeground,
}

impl Bound {
    fn is_of(self, class: Class) -> bool {
        self == Self::Of(class) || self == Self::BelowForeground && class != Class::Foreground
    }
}

#[derive(Debug, Default)]
struct Queue {
    turns: Turns,
    waiting: BTreeMap<Ticket, Arc<Notify>>,
}

/// Passes the slices of one port through a line.
#[derive(Debug, Clone)]
pub(crate) struct Passage {
    line: Arc<Line>,
    pub(crate) of: Precedence,
    /// Records when the port is held back.
    pub(crate) hold: Hold,
}

/// A turn. It ends when it is dropped.
pub(crate) struct Turn<'a> {
    line: &'a Line,
    of: Precedence,
    ticket: Ticket,
    /// When the turn was taken; `None` if it never was.
    since: Option<Instant>,
    /// How long it took, if that is known better than by the clock.
    took: Option<Duration>,
}

impl Line {
    /// A line with this rate limit, in bytes a second, or with none.
    pub(crate) fn new(rate: Option<ByteSize>) -> Arc<Self> {
        let (queue, begin, bounds) = (Mutex::default(), Instant::now(), RwLock::default());
        let (limited_us, waited_us) = (AtomicU64::default(), Default::default());
        Arc::new(Self { queue, begin, rate: rate.map(Bucket::new), bounds, limited_us, waited_us })
    }

    /// Sets a rate limit, in bytes a second; `None` removes it. A change counts for tasks that wait, too.
    pub(crate) fn bound(&self, bound: Bound, rate: Option<ByteSize>) {
        let mut bounds = self.bounds.write().unwrap_or_else(PoisonError::into_inner);
        let known = bounds.get(&bound).and_then(|line| line.rate.as_ref());
        match (known, rate) {
            (Some(known), Some(rate)) => known.set_rate(rate),
            (None, Some(rate)) => drop(bounds.insert(bound, Self::new(Some(rate)))),
            (Some(known), None) => {
                known.set_rate(ByteSize(u64::MAX));
                bounds.remove(&bound);
            }
            (None, None) => {}
        }
    }

    /// The rate limits that a class passes before the line itself.
    fn bounds_of(&self, class: Class) -> Vec<(Bound, Arc<Self>)> {
        let bounds = self.bounds.read().unwrap_or_else(PoisonError::into_inner);
        let of_class = bounds.iter().filter(|(bound, _)| bound.is_of(class));
        of_class.map(|(bound, line)| (*bound, Arc::clone(line))).collect()
    }

    /// The rate that results for a class: the lowest of all its limits here.
    pub(crate) fn rate(&self, class: Class) -> Option<ByteSize> {
        let bounds = self.bounds_of(class);
        let all = bounds.iter().filter_map(|(_, line)| line.rate.as_ref()).chain(&self.rate);
        all.map(Bucket::rate).min()
    }

    /// The time that tasks have waited for the limit of all classes below foreground.
    pub(crate) fn limited(&self) -> Duration {
        Duration::from_micros(self.limited_us.load(Relaxed))
    }

    /// The time that tasks of a class have waited for their turns.
    pub(crate) fn waited(&self, class: Class) -> Duration {
        Duration::from_micros(self.waited_us[class as usize].load(Relaxed))
    }

    /// How many turns tasks have or wait for.
    pub(crate) fn asked(&self) -> usize {
        self.lock().turns.asked()
    }

    /// How many turns tasks have asked for so far, also those that have ended.
    pub(crate) fn asked_so_far(&self) -> u64 {
        self.lock().turns.asked_so_far()
    }

    async fn turn(&self, of: Precedence, hold: &Hold) -> Turn<'_> {
        let (mut turn, come) = self.ask(of);
        let mut waits_since = None;
        while let Some((look_at, held_back)) = self.look(&turn) {
            waits_since.get_or_insert_with(Instant::now);
            let _held_back = held_back.then(|| hold.begin());
            let _looked = timeout_at(look_at, come.notified()).await.is_ok();
        }
        let now = Instant::now();
        if let Some(since) = waits_since {
            self.waited_us[of.class as usize].fetch_add((now - since).as_micros() as u64, Relaxed);
        }
        turn.since = Some(now);
        turn
    }

    fn ask(&self, of: Precedence) -> (Turn<'_>, Arc<Notify>) {
        let come = Arc::default();
        let mut queue = self.lock();
        let ticket = queue.turns.ask(of, self.begin.elapsed());
        if !queue.turns.has(ticket) {
            queue.waiting.insert(ticket, Arc::clone(&come));
        }
        drop(queue);
        (Turn { line: self, of, ticket, since: None, took: None }, come)
    }

    /// When a waiting task must check again, and whether an earlier class holds it back. `None` if its turn has come.
    fn look(&self, turn: &Turn<'_>) -> Option<(Instant, bool)> {
        let at = Instant::now();
        let now = at - self.begin;
        let mut queue = self.lock();
        if queue.grant(now) {
            queue.wake_first();
        }
        if queue.turns.has(turn.ticket) {
            queue.waiting.remove(&turn.ticket);
            return None;
        }
        let wake_at = queue.turns.wake_at(now).filter(|_| queue.turns.first().contains(&Some(turn.ticket)));
        let look_at = wake_at.map_or(at + LOOK, |wake_at| (self.begin + wake_at).min(at + LOOK));
        Some((look_at, queue.turns.is_held_back(turn.of, now)))
    }

    async fn pay(&self, bytes: u64) {
        if let Some(rate) = &self.rate {
            rate.take(bytes).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Wakes the tasks whose turn has come. Returns whether there are any.
    fn grant(&mut self, now: Duration) -> bool {
        let granted = self.turns.grant(now);
        granted.iter().filter_map(|ticket| self.waiting.get(ticket)).for_each(|come| come.notify_one());
        !granted.is_empty()
    }

    /// Wakes the first task of each class, because the time at which its turn comes may have changed.
    fn wake_first(&self) {
        let first = self.turns.first().into_iter().flatten();
        first.filter_map(|ticket| self.waiting.get(&ticket)).for_each(|come| come.notify_one());
    }
}

impl Turn<'_> {
    /// Ends the turn after `bytes` have passed. With a rate limit, the turn is charged their cost at that rate. Without
    /// one, a buffer may have absorbed the bytes long before the disk or the network takes them, so a least time is
    /// charged.
    pub(crate) fn passed(mut self, bytes: u64) {
        let least = FRAME_TIME_MIN.mul_f64(bytes.min(FRAME_BYTES_MAX) as f64 / FRAME_BYTES_MAX as f64);
        let elapsed = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        self.took = Some(self.line.rate.as_ref().map_or(elapsed.max(least), |rate| rate.cost(bytes)));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        // A turn that was granted and never taken took no time.
        let took = self.took.or(self.since.map(|since| now - since)).unwrap_or_default();
        let mut queue = self.line.lock();
        queue.waiting.remove(&self.ticket);
        let now = now - self.line.begin;
        queue.turns.end(self.of, self.ticket, took, now);
        queue.grant(now);
        queue.wake_first();
    }
}

impl Passage {
    pub(crate) fn new(line: &Arc<Line>, of: Precedence) -> Self {
        Self { line: Arc::clone(line), of, hold: Hold::default() }
    }

    /// Uses the hold of a port that also passes other lines, so that any of them can mark the port as held back.
    pub(crate) fn of_port(self, hold: Hold) -> Self {
        Self { hold, ..self }
    }

    /// Waits for a turn. Bytes that are not paid for within it are charged by the turn's duration.
    pub(crate) async fn turn(&self) -> Turn<'_> {
        self.line.turn(self.of, &self.hold).await
    }

    /// Waits until `bytes` have passed, frame by frame. The bytes must be ready: a turn never waits for a peer.
    pub(crate) async fn pass(&self, bytes: u64) {
        let mut left = bytes;
        while left > 0 {
            let frame = frame_bytes(self.of.class, left);
            self.pass_bounds(frame).await;
            let turn = self.turn().await;
            self.line.pay(frame).await;
            turn.passed(frame);
            left -= frame;
        }
    }

    /// Waits until the rate limits of the class let a frame pass, and then for a turn.
    pub(crate) async fn turn_of(&self, frame: u64) -> Turn<'_> {
        self.pass_bounds(frame).await;
        self.turn().await
    }

    /// Waits until the rate limits of the class let a frame pass. This wait counts as held back.
    async fn pass_bounds(&self, frame: u64) {
        for (bound, line) in self.line.bounds_of(self.of.class) {
            let (begin, _held_back) = (Instant::now(), self.hold.begin());
            let turn = line.turn(self.of, &self.hold).await;
            line.pay(frame).await;
            turn.passed(frame);
            if bound == Bound::BelowForeground {
                let waited_us = begin.elapsed().as_micros() as u64;
                self.line.limited_us.fetch_add(waited_us, Relaxed);
            }
        }
    }

    /// Waits until `bytes`, within a turn already taken, are paid for.
    pub(crate) async fn pay(&self, bytes: u64) {
        self.line.pay(bytes).await;
    }

    /// Passes `bytes` that a link has received, if a rate limit applies: lower classes wait, and meanwhile count as held
    /// back, because the peer is not the cause. Foreground never waits, because its bytes have used the link already; lower
    /// classes give way to it.
    pub(crate) async fn received(&self, bytes: u64) {
        if !self.is_bounded() {
            return;
        }
        if self.of.class == Class::Foreground {
            self.turn().await.passed(bytes);
        } else {
            let _held_back = self.hold.begin();
            self.pass(bytes).await;
        }
    }

    /// Whether a rate limit applies.
    pub(crate) fn is_bounded(&self) -> bool {
        self.line.rate(self.of.class).is_some()
    }
}

/// Splits a slice of `sub_blocks` sub-blocks into the parts that pass a disk at once: frames, of whole checksum pages.
pub(crate) fn parts(slice: Span, sub_blocks: usize, of: Precedence) -> impl Iterator<Item = Span> {
    let width = (sub_blocks as u64).max(1);
    let frame = frame_bytes(of.class, slice.len().saturating_mul(width)) / width;
    let len = if frame < slice.len() { (frame / PAGE_LEN * PAGE_LEN).max(PAGE_LEN) } else { slice.len().max(1) };
    (slice.start..slice.end).step_by(len as usize).map(move |start| Span::new(start, (start + len).min(slice.end)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, future::join_all};
    use weft_engine::classes::TURNS_MAX;

    const KIB: u64 = 1 << 10;

    fn passage(line: &Arc<Line>, class: Class) -> Passage {
        Passage::new(line, Precedence::of(class))
    }

    /// Bytes that repairs pass while a reader takes slices with pauses between them, and the longest wait of the reader
    /// beyond its own time.
    #[tokio::test(start_paused = true)]
    async fn a_reader_waits_for_at_most_two_frames_and_repairs_get_their_share() {
        let line = Line::new(Some(ByteSize(50 << 20)));
        let (frame, slice) = (line.rate.as_ref().unwrap().cost(FRAME_BYTES_MAX), 64 * KIB);
        let passed = Arc::new(Mutex::new(0));
        let repairs: Vec<_> = (0..8)
            .map(|_| {
                let (repair, passed) = (passage(&line, Class::Repair), Arc::clone(&passed));
                tokio::spawn(async move {
                    loop {
                        repair.pass(1 << 20).await;
                        *passed.lock().unwrap() += 1 << 20;
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let alone: u64 = std::mem::take(&mut *passed.lock().unwrap());
        assert!(alone > 45 << 20, "nothing holds repairs back, but only {alone} bytes passed");
        let (reader, begin, mut longest) = (passage(&line, Class::Foreground), Instant::now(), Duration::ZERO);
        while begin.elapsed() < Duration::from_secs(10) {
            let asked = Instant::now();
            reader.pass(slice).await;
            longest = longest.max(asked.elapsed());
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
        let most = frame * TURNS_MAX as u32 + line.rate.as_ref().unwrap().cost(slice) + Duration::from_millis(2);
        assert!(longest <= most, "{longest:?} of {most:?}");
        let beside = *passed.lock().unwrap() as f64 / (500u64 << 20) as f64;
        assert!((0.04..0.15).contains(&beside), "{beside:.3} of the line");
        repairs.iter().for_each(|repair| repair.abort());
    }

    #[tokio::test(start_paused = true)]
    async fn a_class_obeys_its_own_rate_limit_while_it_is_set() {
        let line = Line::new(None);
        let [reader, repair, scrub] = [Class::Foreground, Class::Repair, Class::Scrub].map(|class| passage(&line, class));
        let seconds = async |passage: &Passage| {
            let begin = Instant::now();
            passage.pass(4 << 20).await;
            begin.elapsed().as_secs_f64()
        };
        line.bound(Bound::Of(Class::Repair), Some(ByteSize(1 << 20)));
        assert!((3.7..4.1).contains(&seconds(&repair).await), "repairs do not keep their own rate");
        let mut waits = Box::pin(repair.pass(4 << 20));
        assert!(waits.as_mut().now_or_never().is_none() && repair.hold.is_held_back() && repair.is_bounded());
        assert!(seconds(&reader).await < 0.1 && seconds(&scrub).await < 0.5);
        drop(waits);
        line.bound(Bound::Of(Class::Repair), None);
        assert!(seconds(&repair).await < 0.5 && !repair.is_bounded());
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_below_foreground_is_shared_and_the_lowest_limit_counts() {
        let line = Line::new(Some(ByteSize(64 << 20)));
        let [reader, repair, scrub] = [Class::Foreground, Class::Repair, Class::Scrub].map(|class| passage(&line, class));
        let limit = |mib: Option<u64>| line.bound(Bound::BelowForeground, mib.map(|mib| ByteSize(mib << 20)));
        limit(Some(4));
        assert_eq!(
            [Class::Foreground, Class::Repair].map(|class| line.rate(class)),
            [64, 4].map(|mib| Some(ByteSize(mib << 20)))
        );
        let begin = Instant::now();
        let both = async { futures::join!(repair.pass(8 << 20), scrub.pass(8 << 20)) };
        let reads = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let begin = Instant::now();
            reader.pass(4 << 20).await;
            begin.elapsed()
        };
        let (_, read) = futures::join!(both, reads);
        let took = begin.elapsed().as_secs_f64();
        assert!((3.8..4.2).contains(&took), "{took} s");
        assert!(read < Duration::from_millis(80), "a reader waited for the limit: {read:?}");
        assert!(line.limited() > Duration::from_secs(3), "{:?}", line.limited());
        line.bound(Bound::Of(Class::Repair), Some(ByteSize(1 << 20)));
        assert_eq!(line.rate(Class::Repair), Some(ByteSize(1 << 20)));
        line.bound(Bound::Of(Class::Repair), None);
        limit(Some(100));
        assert_eq!(line.rate(Class::Repair), Some(ByteSize(64 << 20)), "the line's own");
    }

    #[tokio::test(start_paused = true)]
    async fn many_tasks_that_wait_for_a_low_limit_go_on_at_once_when_it_is_raised() {
        let line = Line::new(None);
        line.bound(Bound::BelowForeground, Some(ByteSize(256 << 10)));
        let tasks: Vec<_> = (0..32)
            .map(|_| {
                let repair = passage(&line, Class::Repair);
                tokio::spawn(async move { repair.pass(FRAME_BYTES_MAX).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let begin = Instant::now();
        line.bound(Bound::BelowForeground, None);
        join_all(tasks).await;
        assert!(begin.elapsed() < Duration::from_millis(100), "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn received_bytes_wait_in_lower_classes_only_and_only_where_a_limit_applies() {
        let seconds = async |passage: &Passage| {
            let begin = Instant::now();
            passage.received(4 << 20).await;
            begin.elapsed().as_secs_f64()
        };
        let classes = |line: &Arc<Line>| [Class::Foreground, Class::Repair].map(|class| passage(line, class));
        let [write, repair] = classes(&Line::new(None));
        assert_eq!((seconds(&write).await, seconds(&repair).await), (0.0, 0.0));
        let [write, repair] = classes(&Line::new(Some(ByteSize(1 << 20))));
        assert!(seconds(&write).await < 0.1);
        let mut waits = Box::pin(repair.received(4 << 20));
        assert!(waits.as_mut().now_or_never().is_none() && repair.hold.is_held_back());
        drop(waits);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!((3.7..4.1).contains(&seconds(&repair).await) && !repair.hold.is_held_back());
    }

    #[tokio::test(start_paused = true)]
    async fn waits_for_a_turn_are_counted_by_class() {
        let line = Line::new(None);
        let [reader, repair] = [Class::Foreground, Class::Repair].map(|class| passage(&line, class));
        repair.pass(FRAME_BYTES_MAX).await;
        assert_eq!(line.waited(Class::Repair), Duration::ZERO);
        let reads = reader.turn().await;
        let waiting = tokio::spawn(async move { repair.turn().await.passed(1) });
        tokio::time::sleep(Duration::from_secs(2)).await;
        reads.passed(4 * KIB);
        waiting.await.unwrap();
        // It gets its share of the time before the reader has ended.
        let waited = line.waited(Class::Repair);
        assert!(waited >= Duration::from_millis(10) && waited < Duration::from_secs(2), "{waited:?}");
        assert_eq!(line.waited(Class::Foreground), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_task_reports_that_it_is_held_back_and_a_dropped_one_releases_its_turn() {
        let line = Line::new(None);
        let [reader, repair, other] = [Class::Foreground, Class::Repair, Class::Repair].map(|class| passage(&line, class));
        repair.pass(FRAME_BYTES_MAX).await;
        let reads = reader.turn().await;
        let mut waits = Box::pin(repair.turn());
        assert!(waits.as_mut().now_or_never().is_none() && repair.hold.is_held_back());
        drop(waits);
        assert!(!repair.hold.is_held_back());
        reads.passed(4 * KIB);
        let all = join_all([repair.turn(), other.turn()]).await;
        let mut third = Box::pin(repair.turn());
        assert!(third.as_mut().now_or_never().is_none());
        assert!(!repair.hold.is_held_back(), "a wait for its own class counts as held back");
        drop(all);
        third.await.passed(1);
        assert!(line.lock().waiting.is_empty());
    }
}
