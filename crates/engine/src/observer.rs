//! Shows what each stage of a running task waits for. The cause of a stall is the party that waits for no peer.

use crate::Hold;
use futures::FutureExt as _;
use std::{
    fmt,
    future::Future,
    sync::{
        OnceLock,
        atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
    },
};
use weft_plan::{Sink, Source, Task};
use weft_types::{Party, StageTimes};

/// Observes one task. The engine has no clock: the caller passes the time with [`advance`](Self::advance), in ticks of
/// its choice.
pub struct Observer {
    tick: AtomicU64,
    clock: Option<Clock>,
    stages: Vec<StageWatch>,
}

/// Microseconds since a fixed point.
type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// What a stage spends time on; the values index its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Part {
    Read,
    Wait,
    Combine,
    Send,
    Write,
}

const PARTS: usize = 5;

/// A waiting stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// The lane's number in the plan.
    pub lane: u16,
    /// The stage's number in the lane.
    pub stage: u16,
    /// The port that it waits for.
    pub port: Port,
    /// The party at the other end of that port. `None`: the party's own disk, reader or writer, or a rate limit of its
    /// own.
    pub peer: Option<Party>,
    /// The tick at which the wait began.
    pub since: u64,
    /// Whether it waits for tasks of an earlier class at the party's own disk or uplink, and not for the other end.
    pub held_back: bool,
}

/// A port of a stage, by its index among the stage's sources or sinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Port {
    /// An input.
    Source(usize),
    /// An output.
    Sink(usize),
}

impl Observer {
    /// For a task that has not started.
    pub fn new(task: &Task) -> Self {
        let watch = |lane, stage: &weft_plan::TaskStage| {
            let peer = |link: u16| task.links.iter().find(|l| l.lane == lane && l.link == link).map(|l| l.peer);
            let sources = stage.sources.iter().map(|source| match source {
                Source::Link(link) => PortWatch::new(peer(*link), Part::Wait),
                Source::Block { .. } | Source::Input { .. } => PortWatch::new(None, Part::Read),
            });
            let sinks = stage.sinks.iter().map(|sink| match sink {
                Sink::Link(link) => PortWatch::new(peer(*link), Part::Send),
                Sink::Store { .. } | Sink::Patch { .. } | Sink::Output { .. } | Sink::Check { .. } => {
                    PortWatch::new(None, Part::Write)
                }
            });
            StageWatch {
                lane,
                stage: stage.stage,
                sources: sources.collect(),
                sinks: sinks.collect(),
                positions_done: AtomicU64::new(0),
                last: AtomicU8::new(Part::Combine as u8),
                spent: Default::default(),
            }
        };
        let stages = task.lanes.iter().flat_map(|lane| lane.stages.iter().map(|stage| watch(lane.lane, stage))).collect();
        Self { tick: AtomicU64::new(0), clock: None, stages }
    }

    /// For a task that has not started. With a clock, in microseconds, it also measures what stages spend their time
    /// on.
    pub fn timed(task: &Task, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { clock: Some(Box::new(clock)), ..Self::new(task) }
    }

    /// How long each stage has spent on what, in the order of lanes and stages; all zero without a clock.
    pub fn times(&self) -> Vec<StageTimes> {
        self.stages.iter().map(StageWatch::times).collect()
    }

    /// Sets the current tick.
    pub fn advance(&self, tick: u64) {
        self.tick.store(tick, Relaxed);
    }

    /// The current waits, in the order of lanes, stages and ports. A stage may wait for several ports at once.
    pub fn waiting(&self) -> Vec<Waiting> {
        self.stages.iter().flat_map(StageWatch::waiting).collect()
    }

    /// The positions that all stages have done so far, in total.
    pub fn positions_done(&self) -> u64 {
        self.stages.iter().map(StageWatch::positions_done).sum()
    }

    pub(crate) fn stage(&self, number: usize) -> Option<WatchedStage<'_>> {
        self.stages.get(number).map(|stage| WatchedStage { tick: &self.tick, clock: self.clock.as_ref(), stage })
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("tick", &self.tick).field("stages", &self.stages).finish_non_exhaustive()
    }
}

/// A stage's view of its observer.
#[derive(Clone, Copy)]
pub(crate) struct WatchedStage<'a> {
    tick: &'a AtomicU64,
    clock: Option<&'a Clock>,
    stage: &'a StageWatch,
}

impl WatchedStage<'_> {
    /// Waits for `future`, visibly to the observer.
    pub(crate) async fn wait<T>(&self, port: Port, future: impl Future<Output = T>) -> T {
        self.wait_for(port, false, future).await
    }

    /// Waits at a port for the party itself, and not for the other end.
    pub(crate) async fn wait_for_itself<T>(&self, port: Port, future: impl Future<Output = T>) -> T {
        self.wait_for(port, true, future).await
    }

    async fn wait_for<T>(&self, port: Port, itself: bool, future: impl Future<Output = T>) -> T {
        let Some(watch) = self.port(port) else { return future.await };
        // Also cleared when the wait is dropped.
        let _waiting = WaitGuard::begin(watch, self.tick.load(Relaxed), itself);
        if itself {
            // A wait for a rate limit is charged as arithmetic; a limit that causes no wait is charged nothing.
            let mut future = std::pin::pin!(future);
            if let Some(done) = future.as_mut().now_or_never() {
                return done;
            }
            let done = future.await;
            self.stage.last.store(Part::Combine as u8, Relaxed);
            return done;
        }
        let done = future.await;
        self.stage.last.store(watch.part as u8, Relaxed);
        done
    }

    /// Records that a port is open, and the hold through which it reports that it is held back.
    pub(crate) fn opened(&self, port: Port, hold: Option<Hold>) {
        if let (Some(watch), Some(hold)) = (self.port(port), hold) {
            let _once = watch.hold.set(hold);
        }
    }

    fn port(&self, port: Port) -> Option<&PortWatch> {
        match port {
            Port::Source(number) => self.stage.sources.get(number),
            Port::Sink(number) => self.stage.sinks.get(number),
        }
    }

    /// Charges the time of all ports of one side together: as long as the slowest of them.
    pub(crate) async fn spend<T>(&self, future: impl Future<Output = T>) -> T {
        let Some(clock) = self.clock else { return future.await };
        let begin = clock();
        let done = future.await;
        self.add_spent(self.stage.last.load(Relaxed), begin, clock());
        done
    }

    /// Charges the time of a computation, which waits for nothing.
    pub(crate) fn combine<T>(&self, work: impl FnOnce() -> T) -> T {
        let Some(clock) = self.clock else { return work() };
        let begin = clock();
        let done = work();
        self.add_spent(Part::Combine as u8, begin, clock());
        done
    }

    fn add_spent(&self, part: u8, begin_us: u64, end_us: u64) {
        if let Some(spent) = self.stage.spent.get(usize::from(part)) {
            spent.fetch_add(end_us.saturating_sub(begin_us), Relaxed);
        }
    }

    pub(crate) fn add_done(&self, positions: u64) {
        self.stage.positions_done.fetch_add(positions, Relaxed);
    }

    pub(crate) fn positions_done(&self) -> u64 {
        self.stage.positions_done()
    }
}

#[derive(Debug)]
struct StageWatch {
    lane: u16,
    stage: u16,
    sources: Vec<PortWatch>,
    sinks: Vec<PortWatch>,
    positions_done: AtomicU64,
    /// The kind of the port that was used last.
    last: AtomicU8,
    /// Microseconds, by kind.
    spent: [AtomicU64; PARTS],
}

impl StageWatch {
    fn times(&self) -> StageTimes {
        let [read_us, wait_us, combine_us, send_us, write_us] = std::array::from_fn(|part| self.spent[part].load(Relaxed));
        StageTimes { lane: self.lane, stage: self.stage, read_us, wait_us, combine_us, send_us, write_us }
    }

    fn waiting(&self) -> Vec<Waiting> {
        let sources = self.sources.iter().enumerate().map(|(number, watch)| (Port::Source(number), watch));
        let sinks = self.sinks.iter().enumerate().map(|(number, watch)| (Port::Sink(number), watch));
        let waits =
            sources.chain(sinks).filter_map(|(port, watch)| watch.waits().map(|(peer, since)| (port, watch, peer, since)));
        let waiting = |(port, watch, peer, since): (_, &PortWatch, _, _)| {
            let held_back = watch.hold.get().is_some_and(Hold::is_held_back);
            Waiting { lane: self.lane, stage: self.stage, port, peer, since, held_back }
        };
        waits.map(waiting).collect()
    }

    fn positions_done(&self) -> u64 {
        self.positions_done.load(Relaxed)
    }
}

/// Since when a stage waits for a port, and for which side.
#[derive(Debug)]
struct PortWatch {
    peer: Option<Party>,
    part: Part,
    /// Twice the tick plus one, and one more if it waits for the party itself; 0 if it does not wait.
    since: AtomicU64,
    /// Set when the port is open, if it can be held back.
    hold: OnceLock<Hold>,
}

impl PortWatch {
    fn new(peer: Option<Party>, part: Part) -> Self {
        Self { peer, part, since: AtomicU64::new(0), hold: OnceLock::new() }
    }

    fn waits(&self) -> Option<(Option<Party>, u64)> {
        let since = self.since.load(Relaxed);
        let tick = (since / 2).checked_sub(1)?;
        Some((self.peer.filter(|_| since.is_multiple_of(2)), tick))
    }
}

struct WaitGuard<'a>(&'a PortWatch);

impl<'a> WaitGuard<'a> {
    fn begin(watch: &'a PortWatch, tick: u64, itself: bool) -> Self {
        watch.since.store(tick.saturating_add(1).saturating_mul(2) | u64::from(itself), Relaxed);
        Self(watch)
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.since.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ports, SliceSink, SliceSource, run_observed};
    use async_trait::async_trait;
    use futures::{FutureExt, future::pending};
    use std::sync::Arc;
    use weft_gf::SparseMatrix;
    use weft_plan::{Class, TaskLane, TaskLink, TaskStage};
    use weft_types::{Layout, NodeId, PlanId, Result, Rows, Seq, Span};

    const PEER: Party = Party::Node(NodeId(2));

    /// One stage of lane 3, with link 9 to or from the peer.
    fn task(source: Source, sink: Sink) -> Task {
        let sends = matches!(sink, Sink::Link(_));
        let matrix = weft_gf::Factored::from(SparseMatrix::identity(1));
        let stage = TaskStage { stage: 4, sources: vec![source], matrix, sinks: vec![sink] };
        Task {
            plan: PlanId(1),
            epoch: 1,
            class: Class::Foreground,
            priority: 0,
            party: Party::Node(NodeId(1)),
            layout: Layout::new(64, 64, 1).unwrap(),
            seq: Seq::default(),
            slice_len: 8,
            lanes: vec![TaskLane { lane: 3, span: Span::new(0, 64), first: 0, step: 1, window: 1, stages: vec![stage] }],
            blocks: Vec::new(),
            stores: Vec::new(),
            links: vec![TaskLink { lane: 3, link: 9, width: 1, peer: PEER, sends }],
        }
    }

    #[test]
    fn a_wait_is_seen_with_its_peer_and_its_beginning_until_it_is_over() {
        let observer = Observer::new(&task(Source::Block { index: 0, sub_blocks: vec![0] }, Sink::Link(9)));
        let watch = observer.stage(0).unwrap();
        observer.advance(70);
        let mut wait = Box::pin(watch.wait(Port::Sink(0), pending::<()>()));
        assert_eq!(observer.waiting(), [], "a stage that was not polled waits");
        assert!(wait.as_mut().now_or_never().is_none());
        observer.advance(90);
        let port = Port::Sink(0);
        assert_eq!(observer.waiting(), [Waiting { lane: 3, stage: 4, port, peer: Some(PEER), since: 70, held_back: false }]);
        drop(wait);
        assert_eq!(observer.waiting(), []);

        let mut wait = Box::pin(watch.wait(Port::Source(0), pending::<()>()));
        assert!(wait.as_mut().now_or_never().is_none());
        assert_eq!(observer.waiting()[0].peer, None, "its own disk is not a peer");
    }

    /// Slices arrive at once or never, and payment may never end; sinks take everything.
    #[derive(Clone, Copy)]
    struct Slices {
        come: bool,
    }

    #[async_trait]
    impl Ports for Slices {
        async fn source(&self, _: &TaskLane, _: &TaskStage, _: &Source) -> Result<Box<dyn SliceSource>> {
            Ok(Box::new(*self))
        }

        async fn sink(&self, _: &TaskLane, _: &TaskStage, _: &Sink) -> Result<Box<dyn SliceSink>> {
            Ok(Box::new(*self))
        }
    }

    #[async_trait]
    impl SliceSource for Slices {
        async fn next(&mut self, slice: Span) -> Result<Rows> {
            if self.come { Ok(vec![0; slice.len() as usize].into()) } else { pending().await }
        }

        async fn pay(&mut self, _: usize) {
            pending().await
        }
    }

    #[async_trait]
    impl SliceSink for Slices {
        async fn put(&mut self, _: Span, _: Rows) -> Result<()> {
            Ok(())
        }

        async fn finish(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_wait_for_an_own_rate_limit_names_no_peer() {
        let task = task(Source::Link(9), Sink::Store { index: 0, sub_blocks: vec![0] });
        for (come, peer) in [(false, Some(PEER)), (true, None)] {
            let (observer, slices) = (Observer::new(&task), Slices { come });
            observer.advance(5);
            let mut running = Box::pin(run_observed(&task, &slices, &observer));
            assert!(running.as_mut().now_or_never().is_none());
            assert_eq!(
                observer.waiting(),
                [Waiting { lane: 3, stage: 4, port: Port::Source(0), peer, since: 5, held_back: false }]
            );
        }
    }

    #[test]
    fn a_held_back_port_is_reported_while_it_is_held_back() {
        let observer = Observer::new(&task(Source::Link(9), Sink::Store { index: 0, sub_blocks: vec![0] }));
        let (watch, hold) = (observer.stage(0).unwrap(), Hold::default());
        watch.opened(Port::Sink(0), Some(hold.clone()));
        let held_back = hold.begin();
        assert_eq!(observer.waiting(), [], "no stage waits for it");
        let mut wait = Box::pin(watch.wait(Port::Sink(0), pending::<()>()));
        assert!(wait.as_mut().now_or_never().is_none());
        assert!(observer.waiting()[0].held_back);
        drop(held_back);
        assert!(!observer.waiting()[0].held_back, "now it waits for its disk");
    }

    /// Slices take 100 µs to arrive and 1000 µs to be taken.
    #[derive(Clone)]
    struct Slow(Arc<AtomicU64>);

    #[async_trait]
    impl Ports for Slow {
        async fn source(&self, _: &TaskLane, _: &TaskStage, _: &Source) -> Result<Box<dyn SliceSource>> {
            Ok(Box::new(self.clone()))
        }

        async fn sink(&self, _: &TaskLane, _: &TaskStage, _: &Sink) -> Result<Box<dyn SliceSink>> {
            Ok(Box::new(self.clone()))
        }
    }

    #[async_trait]
    impl SliceSource for Slow {
        async fn next(&mut self, slice: Span) -> Result<Rows> {
            self.0.fetch_add(100, Relaxed);
            Ok(vec![0; slice.len() as usize].into())
        }
    }

    #[async_trait]
    impl SliceSink for Slow {
        async fn put(&mut self, _: Span, _: Rows) -> Result<()> {
            self.0.fetch_add(1000, Relaxed);
            Ok(())
        }

        async fn finish(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn with_a_clock_the_time_of_a_stage_is_measured() {
        let block = || Source::Block { index: 0, sub_blocks: vec![0] };
        let store = || Sink::Store { index: 0, sub_blocks: vec![0] };
        for (source, sink) in [(block(), Sink::Link(9)), (Source::Link(9), store())] {
            let task = task(source.clone(), sink.clone());
            let now = Arc::new(AtomicU64::new(0));
            let clock = Arc::clone(&now);
            // Each reading of the clock takes 1 µs.
            let observer = Observer::timed(&task, move || clock.fetch_add(1, Relaxed) + 1);
            run_observed(&task, &Slow(now), &observer).now_or_never().unwrap().into_result().unwrap();
            let StageTimes { lane, stage, read_us, wait_us, combine_us, send_us, write_us } = observer.times()[0];
            assert_eq!((lane, stage, combine_us), (3, 4, 8), "eight slices");
            let (input, output) = if source == block() { (read_us, send_us) } else { (wait_us, write_us) };
            assert_eq!(read_us + wait_us + send_us + write_us, input + output, "the other ports do not exist");
            assert!((8 * 100..8 * 100 + 20).contains(&input) && (8 * 1000..8 * 1000 + 20).contains(&output), "{input}, {output}");
            let untimed = Observer::new(&task);
            run_observed(&task, &Slow(Arc::default()), &untimed).now_or_never().unwrap().into_result().unwrap();
            assert_eq!(untimed.times(), [StageTimes { lane, stage, ..StageTimes::default() }]);
        }
    }
}
