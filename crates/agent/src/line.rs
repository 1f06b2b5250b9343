//! What tasks of all classes share: a disk, the uplink, and bounds on what they do a second. Foreground tasks pass at once; lower classes
//! take turns. Whose turn it is, is decided in [`weft_engine::classes::Turns`]; here tasks wait for it.

use crate::throttle::Bucket;
use async_trait::async_trait;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
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
use weft_proto::Uplink;
use weft_types::{ByteSize, PAGE_LEN, Span};

/// A task that waits looks this often whether it is held back by another class, so that what it reports is true.
const LOOK: Duration = Duration::from_millis(100);

/// What a frame counts for at least where a buffer may have taken it.
const FRAME_TIME_MIN: Duration = Duration::from_millis(1);

/// A disk, the uplink, or a bound.
#[derive(Debug)]
pub(crate) struct Line {
    queue: Mutex<Queue>,
    begin: Instant,
    rate: Option<Bucket>,
    /// Bounds of classes, which change: what a class sends passes its own first.
    classes: RwLock<BTreeMap<Class, Arc<Line>>>,
}

#[derive(Debug, Default)]
struct Queue {
    turns: Turns,
    waiting: BTreeMap<Ticket, Arc<Notify>>,
}

/// How the slices of one port pass a line.
#[derive(Debug, Clone)]
pub(crate) struct Passage {
    line: Arc<Line>,
    pub(crate) of: Precedence,
    /// Says when the port is held back.
    pub(crate) hold: Hold,
}

/// A turn. It ends when it is dropped.
pub(crate) struct Turn<'a> {
    line: &'a Line,
    of: Precedence,
    ticket: Ticket,
    /// When it was taken. None: it was not.
    since: Option<Instant>,
    /// How long it took, if that is known better than by the clock.
    took: Option<Duration>,
}

impl Line {
    /// So many bytes a second pass it, where it is bounded.
    pub(crate) fn new(rate: Option<ByteSize>) -> Arc<Self> {
        let (queue, begin, classes) = (Mutex::default(), Instant::now(), RwLock::default());
        Arc::new(Self { queue, begin, rate: rate.map(Bucket::new), classes })
    }

    /// So many bytes a second of a class pass it from now on; none: that is not bounded.
    pub(crate) fn bound_class(&self, class: Class, rate: Option<ByteSize>) {
        let mut classes = self.classes.write().unwrap_or_else(PoisonError::into_inner);
        let known = classes.get(&class).and_then(|line| line.rate.as_ref());
        match rate {
            // Who waits there has its turn there.
            Some(rate) if known.is_some_and(|known| known.is_of(rate)) => {}
            Some(rate) => drop(classes.insert(class, Self::new(Some(rate)))),
            None => drop(classes.remove(&class)),
        }
    }

    fn of_class(&self, class: Class) -> Option<Arc<Self>> {
        self.classes.read().unwrap_or_else(PoisonError::into_inner).get(&class).map(Arc::clone)
    }

    async fn turn(&self, of: Precedence, hold: &Hold) -> Turn<'_> {
        let (mut turn, come) = self.ask(of);
        while let Some((look_at, held_back)) = self.look(&turn) {
            let _held_back = held_back.then(|| hold.begin());
            let _looked = timeout_at(look_at, come.notified()).await.is_ok();
        }
        turn.since = Some(Instant::now());
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

    /// When one that waits is to look again, and whether an earlier class holds it back. None: its turn has come.
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
    /// Wakes those whose turn has come, and tells whether there are any.
    fn grant(&mut self, now: Duration) -> bool {
        let granted = self.turns.grant(now);
        granted.iter().filter_map(|ticket| self.waiting.get(ticket)).for_each(|come| come.notify_one());
        !granted.is_empty()
    }

    /// Those that are first of their classes look when their turn may come by itself: that has changed.
    fn wake_first(&self) {
        let first = self.turns.first().into_iter().flatten();
        first.filter_map(|ticket| self.waiting.get(&ticket)).for_each(|come| come.notify_one());
    }
}

impl Turn<'_> {
    /// So many bytes have passed. They took as long as they are paid for; without a bound, a buffer may have taken them long before
    /// the disk or the line does.
    pub(crate) fn passed(mut self, bytes: u64) {
        let least = FRAME_TIME_MIN.mul_f64(bytes.min(FRAME_BYTES_MAX) as f64 / FRAME_BYTES_MAX as f64);
        let elapsed = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        self.took = Some(self.line.rate.as_ref().map_or(elapsed.max(least), |rate| rate.cost(bytes)));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        // What was granted and not taken took nothing.
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

    /// Of a port that passes other lines too, and says by this that it is held back.
    pub(crate) fn of_port(self, hold: Hold) -> Self {
        Self { hold, ..self }
    }

    /// Waits for a turn. What is not paid in it counts by the time that it takes.
    pub(crate) async fn turn(&self) -> Turn<'_> {
        self.line.turn(self.of, &self.hold).await
    }

    /// Waits until so many bytes have passed, frame by frame. They are ready: no peer is waited for meanwhile.
    pub(crate) async fn pass(&self, bytes: u64) {
        let mut left = bytes;
        while left > 0 {
            let frame = frame_bytes(self.of.class, left);
            self.pass_class(frame).await;
            let turn = self.turn().await;
            self.line.pay(frame).await;
            turn.passed(frame);
            left -= frame;
        }
    }

    /// Waits until the bound of its class lets a frame pass: that is no fault of the port's.
    async fn pass_class(&self, frame: u64) {
        let Some(line) = self.line.of_class(self.of.class) else { return };
        let _held_back = self.hold.begin();
        let turn = line.turn(self.of, &self.hold).await;
        line.pay(frame).await;
        turn.passed(frame);
    }

    /// Waits until so many bytes, for which it is the turn, have passed.
    pub(crate) async fn pay(&self, bytes: u64) {
        self.line.pay(bytes).await;
    }

    /// Whether what passes is paid for.
    pub(crate) fn is_bounded(&self) -> bool {
        self.line.rate.is_some() || self.line.of_class(self.of.class).is_some()
    }
}

#[async_trait]
impl Uplink for Passage {
    async fn pass(&self, bytes: u64) {
        Self::pass(self, bytes).await;
    }

    fn is_held_back(&self) -> bool {
        self.hold.is_held_back()
    }
}

/// The parts of a slice of so many sub-blocks that pass a disk at once: frames, of whole checksum pages.
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

    /// What repairs pass while a reader takes its slices, with moments between them; what the reader waits at most, beside its own time.
    #[tokio::test(start_paused = true)]
    async fn a_reader_waits_for_two_frames_and_repairs_keep_their_part() {
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
        assert!(alone > 45 << 20, "nothing holds repairs back, and {alone} bytes pass");
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
    async fn a_class_is_bounded_by_itself_as_long_as_it_is() {
        let line = Line::new(None);
        let [reader, repair, scrub] = [Class::Foreground, Class::Repair, Class::Scrub].map(|class| passage(&line, class));
        let seconds = async |passage: &Passage| {
            let begin = Instant::now();
            passage.pass(4 << 20).await;
            begin.elapsed().as_secs_f64()
        };
        line.bound_class(Class::Repair, Some(ByteSize(1 << 20)));
        assert!((3.7..4.1).contains(&seconds(&repair).await), "four times a second's bytes");
        let mut waits = Box::pin(repair.pass(4 << 20));
        assert!(waits.as_mut().now_or_never().is_none() && repair.hold.is_held_back() && repair.is_bounded());
        assert!(seconds(&reader).await < 0.1 && seconds(&scrub).await < 0.5);
        drop(waits);
        line.bound_class(Class::Repair, None);
        assert!(seconds(&repair).await < 0.5 && !repair.is_bounded());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_says_that_it_is_held_back_and_one_that_gives_up_leaves_its_turn() {
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
        assert!(!repair.hold.is_held_back(), "it waits for its own class");
        drop(all);
        third.await.passed(1);
        assert!(line.lock().waiting.is_empty());
    }
}
