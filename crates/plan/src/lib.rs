//! The plan: a checked description of who reads, combines and forwards what. Plain data; no socket, no clock, no code.

mod data;
mod task;

pub use data::{
    Binding, BoundBlock, Change, Class, Hold, Input, Job, Lane, Link, Plan, Shape, Sink, Slices, Source, Stage, Want, WantKind,
};
pub use task::{Task, TaskBlock, TaskLane, TaskLink, TaskStage, cut, link_id};
