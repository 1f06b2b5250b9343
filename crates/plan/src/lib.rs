//! The plan: a verified description of which party reads, combines and forwards what. Plain data; no socket, no clock,
//! no code.
//!
//! [`verify()`] proves by algebra that a [`Plan`] does what its [`Job`] wants; [`eval()`] runs it in memory; [`cut`]
//! gives each party its [`Task`].

mod cache;
mod code_view;
mod cost;
mod data;
mod eval;
mod executor;
mod explain;
pub mod limits;
mod predict;
mod refusal;
mod save;
mod shared;
mod slices;
mod task;
mod verify;

pub use cache::{Cache, Counts};
pub use code_view::CodeView;
pub use cost::{Cost, PartyCost, cost, transfers};
pub use data::{
    Binding, BoundBlock, Change, Class, Hold, Input, Job, Lane, Link, Plan, Precedence, Shape, Sink, Slices, Source, Stage, Want,
    WantKind,
};
pub use eval::{Data, Memory, eval};
pub use explain::{Takes, explain, explain_with, human_time, to_dot};
pub use predict::{Busy, Moved, Network, moved, predict};
pub use refusal::{Place, Refusal, Rule};
pub use save::{ChosenPath, Considered, FORMAT_VERSION, JSON_BYTES_MAX, Saved, from_json, to_json};
pub use shared::Shared;
pub use slices::SliceSet;
pub use task::{Task, TaskBlock, TaskLane, TaskLink, TaskStage, cell_bytes, check_for_agents, cut, link_id};
pub use verify::{ProofKey, Proofs, verify};
