//! The interface of the engine to its shell: where slices come from and where they go.

use async_trait::async_trait;
use bytes::BytesMut;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use weft_plan::{Sink, Source, TaskLane, TaskStage};
use weft_types::{Error, Result, Rows, Span};

/// Opens a stage's sources and sinks. The shell (an agent, a client, a simulation) implements it.
#[async_trait]
pub trait Ports: Send + Sync {
    /// Opens a source. The engine asks it for the lane's slices in order, each once.
    async fn source(&self, lane: &TaskLane, stage: &TaskStage, source: &Source) -> Result<Box<dyn SliceSource>>;

    /// Opens a sink (never a `Check`: the engine does those itself). The engine gives it the lane's slices in order,
    /// each once.
    async fn sink(&self, lane: &TaskLane, stage: &TaskStage, sink: &Sink) -> Result<Box<dyn SliceSink>>;

    /// Memory of `len` initialised bytes for rows that a stage computes, if their takers hold them for long; `None`: the
    /// stage reuses memory of its own.
    fn room(&self, _len: usize) -> Option<BytesMut> {
        None
    }
}

/// Whether a port is held back by tasks of an earlier class. The port sets it; observers of its stage read it.
#[derive(Debug, Clone, Default)]
pub struct Hold(Arc<AtomicUsize>);

/// Marks a port as held back until it is dropped.
#[derive(Debug)]
pub struct HeldBack(Hold);

impl Hold {
    /// Marks the port as held back until the returned value is dropped.
    pub fn begin(&self) -> HeldBack {
        self.0.fetch_add(1, Relaxed);
        HeldBack(self.clone())
    }

    /// Whether the port is held back.
    pub fn is_held_back(&self) -> bool {
        self.0.load(Relaxed) > 0
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

/// Supplies a stage with slices.
#[async_trait]
pub trait SliceSource: Send {
    /// The hold through which the port reports that it is held back; `None` if it never is.
    fn hold(&self) -> Option<Hold> {
        None
    }

    /// The source's sub-blocks at the positions of `slice`, one after another: `width × slice.len()` bytes.
    async fn next(&mut self, slice: Span) -> Result<Rows>;

    /// Waits until the party's own rate limits, such as those of its disk or processor, admit the `bytes` that `next`
    /// has just returned. This time is charged to the party and not to the sender.
    async fn pay(&mut self, _bytes: usize) {}

    /// Called after the last slice. Succeeds if the source has ended cleanly (a link has received its End). Nothing is
    /// finished or committed downstream before all sources have.
    async fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Takes a stage's results.
#[async_trait]
pub trait SliceSink: Send {
    /// Like [`SliceSource::hold`].
    fn hold(&self) -> Option<Hold> {
        None
    }

    /// Takes the sink's sub-blocks at the positions of `slice`, one after another: `width × slice.len()` bytes.
    async fn put(&mut self, slice: Span, rows: Rows) -> Result<()>;

    /// Called after the last slice. When it returns, everything is on its way (a link has sent its End) or durable (a
    /// store has committed).
    async fn finish(&mut self) -> Result<()>;

    /// Called instead of [`finish`](Self::finish) when the stage has failed, before the sink is dropped. A link passes
    /// the reason on to its receiver.
    fn fail(&mut self, _why: &Error) {}
}
