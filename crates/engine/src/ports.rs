//! What the shell around the engine provides: where slices come from and where they go.

use async_trait::async_trait;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use weft_plan::{Sink, Source, TaskLane, TaskStage};
use weft_types::{Result, Rows, Span};

/// Makes the ends of a stage's sources and sinks. The shell (an agent, a client, a simulation) implements it.
#[async_trait]
pub trait Ports: Send + Sync {
    /// Opens a source. It will be asked for the lane's slices in order, each once.
    async fn source(&self, lane: &TaskLane, stage: &TaskStage, source: &Source) -> Result<Box<dyn SliceSource>>;

    /// Opens a sink (never a `Check`: the engine checks those itself). It will be given the lane's slices in order, each once.
    async fn sink(&self, lane: &TaskLane, stage: &TaskStage, sink: &Sink) -> Result<Box<dyn SliceSink>>;
}

/// Whether a port is held back by tasks of an earlier class. The port says so; observers of its stage see it.
#[derive(Debug, Clone, Default)]
pub struct Hold(Arc<AtomicUsize>);

/// While this lives, something of the port is held back.
#[derive(Debug)]
pub struct HeldBack(Hold);

impl Hold {
    /// From now on, until what is returned is dropped.
    pub fn begin(&self) -> HeldBack {
        self.0.fetch_add(1, Relaxed);
        HeldBack(self.clone())
    }

    /// Whether it is.
    pub fn is_held_back(&self) -> bool {
        self.0.load(Relaxed) > 0
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

/// Gives a stage its slices.
#[async_trait]
pub trait SliceSource: Send {
    /// Where the port says that it is held back; nowhere, if it never is.
    fn hold(&self) -> Option<Hold> {
        None
    }

    /// The sub-blocks of the source at the positions of `slice`, one after another: `width × slice.len()` bytes.
    async fn next(&mut self, slice: Span) -> Result<Rows>;

    /// Waits until bounds of the party's own, as those of its disk or processor are, let it go on with so many bytes, which `next`
    /// has just given. That time is the party's, and no fault of whoever sent them.
    async fn pay(&mut self, _bytes: usize) {}

    /// After the last slice: the source has ended as it should (a link has got its End). Nothing is finished or committed
    /// downstream before all sources have.
    async fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Takes a stage's results.
#[async_trait]
pub trait SliceSink: Send {
    /// As [`SliceSource::hold`].
    fn hold(&self) -> Option<Hold> {
        None
    }

    /// Takes the sub-blocks of the sink at the positions of `slice`: `width × slice.len()` bytes, one after another.
    async fn put(&mut self, slice: Span, rows: Rows) -> Result<()>;

    /// After the last slice: everything given is on its way (a link has sent its End) or durable (a store has committed).
    async fn finish(&mut self) -> Result<()>;
}
