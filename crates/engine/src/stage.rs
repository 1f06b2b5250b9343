//! One stage of a lane. For each slice: take from all sources, combine, give to all sinks.

use crate::{
    Port, Ports, SliceSink, SliceSource, StageOutcome, combiner::Combiner, observer::WatchedStage, pace::Step, run::Failures,
};
use futures::future::{join_all, try_join, try_join_all};
use weft_plan::{Sink, Source, Task, TaskLane, TaskStage, link_id};
use weft_types::{Cause, Error, Party, Result, Rows, Span};

/// A stage and everything that it needs to run.
pub(crate) struct StageRun<'a> {
    pub(crate) task: &'a Task,
    pub(crate) lane: &'a TaskLane,
    pub(crate) stage: &'a TaskStage,
    pub(crate) ports: &'a dyn Ports,
    pub(crate) watch: WatchedStage<'a>,
    pub(crate) step: Step<'a>,
    pub(crate) failures: &'a Failures,
}

/// A sink of the stage while it runs.
enum Outlet {
    Port(Box<dyn SliceSink>),
    Check,
    Dead,
}

/// The stage cannot continue. The cause was already recorded where it happened, so the records are in the order of
/// events. `None`: no sink is left.
struct Ended(Option<Error>);

impl StageRun<'_> {
    pub(crate) async fn run(self) -> StageOutcome {
        let finished = self.run_slices().await.is_ok();
        StageOutcome { lane: self.lane.lane, stage: self.stage.stage, positions_done: self.watch.positions_done(), finished }
    }

    async fn run_slices(&self) -> Result<(), Ended> {
        let combiner = self.combiner().map_err(|error| self.note_at(error, None, self.lane.span.start))?;
        let (mut sources, mut sinks) = self.watch.spend(try_join(self.open_sources(), self.open_sinks())).await?;
        let moved = self.move_slices(&combiner, &mut sources, &mut sinks).await;
        if let Err(Ended(Some(why))) = &moved {
            for sink in &mut sinks {
                if let Outlet::Port(port) = sink {
                    port.fail(why);
                }
            }
        }
        moved
    }

    async fn move_slices(
        &self,
        combiner: &Combiner,
        sources: &mut [Box<dyn SliceSource>],
        sinks: &mut [Outlet],
    ) -> Result<(), Ended> {
        for slice in self.lane.slices(self.task.slice_len) {
            self.step.turn().await;
            let inputs = self.watch.spend(self.take(sources, combiner, slice)).await?;
            let results = self.watch.combine(|| combiner.apply(&inputs, slice, |len| self.ports.room(len)));
            drop(inputs);
            self.watch.spend(self.give(sinks, results, slice)).await?;
            self.step.done();
            self.watch.add_done(slice.len());
        }
        try_join_all(sources.iter_mut().enumerate().map(|(number, source)| self.finish_source(number, source))).await?;
        self.watch.spend(self.finish(sinks)).await
    }

    fn combiner(&self) -> Result<Combiner> {
        let sources: Vec<usize> = self.stage.sources.iter().map(|source| self.source_width(source)).collect::<Result<_>>()?;
        let sinks: Vec<usize> = self.stage.sinks.iter().map(|sink| self.sink_width(sink)).collect::<Result<_>>()?;
        let widest = sources.iter().chain(&sinks).copied().max().unwrap_or(0);
        let bytes = usize::try_from(self.task.slice_len).ok().and_then(|len| len.checked_mul(widest));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(Error::invalid(format!("the plan's slices of {} positions are too large", self.task.slice_len)));
        }
        Combiner::new(&self.stage.matrix, &sources, &sinks, self.lane.window as usize + 1)
    }

    /// Opens all sources at the same time. All are needed.
    async fn open_sources(&self) -> Result<Vec<Box<dyn SliceSource>>, Ended> {
        try_join_all(self.stage.sources.iter().enumerate().map(|(number, source)| self.open_source(number, source))).await
    }

    async fn open_source(&self, number: usize, source: &Source) -> Result<Box<dyn SliceSource>, Ended> {
        let opened = self.watch.wait(Port::Source(number), self.ports.source(self.lane, self.stage, source)).await;
        let source = opened.map_err(|error| self.note(error, Port::Source(number), self.lane.span.start))?;
        self.watch.opened(Port::Source(number), source.hold());
        Ok(source)
    }

    /// Opens all sinks at the same time. One is enough.
    async fn open_sinks(&self) -> Result<Vec<Outlet>, Ended> {
        let outlets = join_all(self.stage.sinks.iter().enumerate().map(|(number, sink)| self.open_sink(number, sink))).await;
        any_alive(&outlets)?;
        Ok(outlets)
    }

    async fn open_sink(&self, number: usize, sink: &Sink) -> Outlet {
        if matches!(sink, Sink::Check { .. }) {
            return Outlet::Check;
        }
        match self.watch.wait(Port::Sink(number), self.ports.sink(self.lane, self.stage, sink)).await {
            Ok(port) => {
                self.watch.opened(Port::Sink(number), port.hold());
                Outlet::Port(port)
            }
            Err(error) => {
                self.note(error, Port::Sink(number), self.lane.span.start);
                Outlet::Dead
            }
        }
    }

    /// Takes the slice from all sources at the same time.
    async fn take(&self, sources: &mut [Box<dyn SliceSource>], combiner: &Combiner, slice: Span) -> Result<Vec<Rows>, Ended> {
        let take = sources.iter_mut().enumerate().map(|(number, source)| self.take_from(number, source, combiner, slice));
        try_join_all(take).await
    }

    async fn take_from(
        &self,
        number: usize,
        source: &mut Box<dyn SliceSource>,
        combiner: &Combiner,
        slice: Span,
    ) -> Result<Rows, Ended> {
        let taken = self.watch.wait(Port::Source(number), source.next(slice)).await;
        let checked = taken.and_then(|bytes| combiner.check(number, &bytes, slice).map(|()| bytes));
        let bytes = checked.map_err(|error| self.note(error, Port::Source(number), slice.start))?;
        self.watch.wait_for_itself(Port::Source(number), source.pay(bytes.len())).await;
        Ok(bytes)
    }

    /// Gives the results to all live sinks at the same time.
    async fn give(&self, sinks: &mut [Outlet], results: Vec<Rows>, slice: Span) -> Result<(), Ended> {
        // Check first: inconsistent data is sent to no sink.
        for (number, (sink, rows)) in sinks.iter().zip(&results).enumerate() {
            if matches!(sink, Outlet::Check) {
                check_zero(rows, slice).map_err(|error| self.note(error, Port::Sink(number), slice.start))?;
            }
        }
        let give = sinks.iter_mut().zip(results).enumerate();
        join_all(give.map(|(number, (sink, rows))| self.give_to(number, sink, rows, slice))).await;
        any_alive(sinks)
    }

    async fn give_to(&self, number: usize, sink: &mut Outlet, rows: Rows, slice: Span) {
        if let Outlet::Port(port) = sink
            && let Err(error) = self.watch.wait(Port::Sink(number), port.put(slice, rows)).await
        {
            self.note(error, Port::Sink(number), slice.start);
            *sink = Outlet::Dead;
        }
    }

    async fn finish_source(&self, number: usize, source: &mut Box<dyn SliceSource>) -> Result<(), Ended> {
        let finished = self.watch.wait(Port::Source(number), source.finish()).await;
        finished.map_err(|error| self.note(error, Port::Source(number), self.lane.span.end))
    }

    async fn finish(&self, sinks: &mut [Outlet]) -> Result<(), Ended> {
        join_all(sinks.iter_mut().enumerate().map(|(number, sink)| self.finish_sink(number, sink))).await;
        any_alive(sinks)
    }

    async fn finish_sink(&self, number: usize, sink: &mut Outlet) {
        if let Outlet::Port(port) = sink
            && let Err(error) = self.watch.wait(Port::Sink(number), port.finish()).await
        {
            self.note(error, Port::Sink(number), self.lane.span.end);
            *sink = Outlet::Dead;
        }
    }

    fn note(&self, error: Error, port: Port, position: u64) -> Ended {
        let link = match port {
            Port::Source(number) => self.stage.sources.get(number).and_then(|source| match source {
                Source::Link(link) => Some(*link),
                Source::Block { .. } | Source::Input { .. } => None,
            }),
            Port::Sink(number) => self.stage.sinks.get(number).and_then(|sink| match sink {
                Sink::Link(link) => Some(*link),
                Sink::Store { .. } | Sink::Patch { .. } | Sink::Output { .. } | Sink::Check { .. } => None,
            }),
        };
        self.note_at(error, link, position)
    }

    fn note_at(&self, error: Error, link: Option<u16>, position: u64) -> Ended {
        let error = self.place(error, link, position);
        self.failures.add(error.clone());
        Ended(Some(error))
    }

    /// Adds the place to an error that has none: the other end of the link, or this party.
    fn place(&self, mut error: Error, link: Option<u16>, position: u64) -> Error {
        if let Some(link) = link {
            error = error.link(link_id(self.lane.lane, link), position).party(self.peer(link));
        }
        error.position.get_or_insert(position);
        error.party(self.task.party)
    }

    fn peer(&self, link: u16) -> Party {
        self.link(link).map_or(self.task.party, |link| link.peer)
    }

    fn link(&self, link: u16) -> Option<&weft_plan::TaskLink> {
        self.task.links.iter().find(|l| l.lane == self.lane.lane && l.link == link)
    }

    fn link_width(&self, link: u16) -> Result<usize> {
        let link = self.link(link).ok_or_else(|| Error::invalid(format!("the task has no link {link}")))?;
        usize::try_from(link.width).map_err(|_| Error::invalid("the link is too wide"))
    }

    fn source_width(&self, source: &Source) -> Result<usize> {
        match source {
            Source::Block { sub_blocks, .. } | Source::Input { sub_blocks, .. } => Ok(sub_blocks.len()),
            Source::Link(link) => self.link_width(*link),
        }
    }

    fn sink_width(&self, sink: &Sink) -> Result<usize> {
        match sink {
            Sink::Store { sub_blocks, .. } | Sink::Patch { sub_blocks, .. } | Sink::Output { sub_blocks, .. } => {
                Ok(sub_blocks.len())
            }
            Sink::Link(link) => self.link_width(*link),
            Sink::Check { width } => usize::try_from(*width).map_err(|_| Error::invalid("the check is too wide")),
        }
    }
}

fn any_alive(sinks: &[Outlet]) -> Result<(), Ended> {
    if sinks.iter().any(|sink| !matches!(sink, Outlet::Dead)) { Ok(()) } else { Err(Ended(None)) }
}

/// Fails with the first position of the slice at which `rows` are not zero.
fn check_zero(rows: &[u8], slice: Span) -> Result<()> {
    let Some(at) = rows.iter().position(|byte| *byte != 0) else { return Ok(()) };
    let (row, within) = (at as u64 / slice.len().max(1), at as u64 % slice.len().max(1));
    let position = slice.start + within;
    let message = format!("the blocks are inconsistent: row {row} of the check is not zero at position {position}");
    Err(Error { position: Some(position), ..Error::corrupt(message).cause(Cause::Inconsistent) })
}
