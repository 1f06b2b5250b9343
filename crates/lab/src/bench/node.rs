//! Measures the recovery of a whole node on shaped links: the same blocks, rebuilt repeatedly on one or more requestors.
//!
//! The requestors hold no other blocks. Between runs the blocks are moved back to their home over fast links, so every run starts from
//! the same state. The measured time is that of the coordinator's job, by the coordinator's clock.

use super::{
    IdleMeter, Sample,
    repair::{Case, store_stripe},
    until_nodes,
};
use crate::testbed::{LinkRate, Settings, Testbed};
use std::collections::BTreeMap;
use weft_cli::{local::Signal, seed, session::Session};
use weft_client::{
    RepairNodeOptions,
    api::{Job, repair_event::Event},
};
use weft_types::{AutoSize, Error, NodeId, Party, Result};

/// More stripes than this mean that something is wrong.
const STRIPES_MAX: usize = 256;
/// Blocks that are moved back at the same time.
const BROUGHT_TOGETHER: u32 = 8;

/// The placement of the stored blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout<'a> {
    pub(crate) code: &'a str,
    pub(crate) block_len: u64,
    /// The first nodes hold blocks; all others are requestors.
    pub(crate) holders: u32,
    /// Blocks that the lost node held.
    pub(crate) lost: usize,
}

/// The node to recover.
#[derive(Debug)]
pub(crate) struct LostNode {
    node: NodeId,
    blocks: usize,
    block_len: u64,
    /// The objects, of one stripe each.
    keys: Vec<String>,
    requestors: Vec<NodeId>,
}

impl LostNode {
    /// Stores stripes, while the requestors are down, until one node has enough blocks: that is the lost one.
    pub(crate) async fn store(session: &Session, testbed: &mut Testbed, layout: Layout<'_>, seed: u64) -> Result<Self> {
        let cluster = testbed.cluster()?;
        let away = cluster.nodes().get(layout.holders as usize..).unwrap_or_default();
        for name in away {
            cluster.signal(name, Signal::Term)?;
        }
        until_nodes(session, away, |node| node.state != "up").await?;
        let link = testbed.settings().link;
        set_links(testbed, None)?;
        let (mut keys, mut held): (_, BTreeMap<u32, usize>) = (Vec::new(), BTreeMap::new());
        // The prefix avoids other objects: the cluster may be in use.
        let run = seed::seed()?;
        let node = loop {
            if let Some((node, _)) = held.iter().find(|(_, blocks)| **blocks >= layout.lost) {
                break NodeId(*node);
            }
            if keys.len() == STRIPES_MAX {
                return Err(Error::fatal(format!("no node has {} blocks of {STRIPES_MAX} stripes", layout.lost)));
            }
            let key = format!("node-{run:016x}/{}", keys.len());
            let blocks = store_stripe(session, &key, layout.code, layout.block_len, seed ^ keys.len() as u64, true).await?;
            blocks.iter().for_each(|block| *held.entry(block.node).or_default() += 1);
            keys.push(key);
        };
        set_links(testbed, link)?;
        away.iter().try_for_each(|name| cluster.start(name))?;
        until_nodes(session, away, |node| node.state == "up").await?;
        let requestors = session.find_nodes(away).await?;
        Ok(Self { node, blocks: layout.lost, block_len: layout.block_len, keys, requestors })
    }

    /// Nodes that can receive blocks.
    pub(crate) fn requestors(&self) -> usize {
        self.requestors.len()
    }

    /// What a recovery rebuilds.
    pub(crate) fn rebuilt_bytes(&self) -> u64 {
        self.blocks as u64 * self.block_len
    }

    /// Rebuilds all blocks of the node on that many requestors, all at the same time, and moves them back.
    pub(crate) async fn rebuild(
        &self,
        session: &Session,
        testbed: &mut Testbed,
        case: &Case,
        requestors: usize,
    ) -> Result<Recovered> {
        let to = self.requestors.get(..requestors).filter(|to| !to.is_empty());
        let to = to.ok_or_else(|| Error::invalid(format!("there are not {requestors} requestors")))?;
        let slice_len = match case.slice_len {
            AutoSize::Bytes(size) => size.0,
            AutoSize::Auto => 0,
        };
        let options = RepairNodeOptions {
            select: case.select.clone(),
            to: to.to_vec(),
            scheme: case.scheme.clone(),
            concurrency: self.blocks as u32,
            slice_len,
            force: true,
        };
        let load = Load::of(session, self.node, &options).await?;
        let idle = IdleMeter::begin();
        let begun = session.client.repair_node(self.node, &options).await?;
        let job = ended(session, self.node, &begun).await?;
        let cpu_idle = idle.share();
        let done = done_blocks(&job);
        if done != self.blocks as u64 {
            return Err(Error::fatal(format!("{done} blocks of node {} were rebuilt instead of {}", self.node, self.blocks)));
        }
        // The coordinator's timestamps: an observer sees the end later.
        let seconds = job.changed_ms.saturating_sub(job.created_ms) as f64 / 1e3;
        let bound_s = testbed.settings().link.map(|link| load.seconds(link.goodput_bytes_per_s()));
        let most = self.bring_back(session, testbed, to).await?;
        Ok(Recovered { sample: Sample { seconds, bytes_moved: load.moved_bytes, cpu_idle }, bound_s, most })
    }

    /// Moves every block back to its home; returns how many the busiest requestor had.
    async fn bring_back(&self, session: &Session, testbed: &mut Testbed, from: &[NodeId]) -> Result<usize> {
        let link = testbed.settings().link;
        set_links(testbed, None)?;
        let options = RepairNodeOptions {
            select: "lru".to_owned(),
            to: vec![self.node],
            scheme: "pipeline".to_owned(),
            concurrency: BROUGHT_TOGETHER,
            slice_len: 0,
            force: true,
        };
        let mut jobs = Vec::with_capacity(from.len());
        for node in from {
            jobs.push((*node, session.client.repair_node(*node, &options).await?));
        }
        let (mut brought, mut most) = (0, 0);
        for (node, job) in jobs {
            let blocks = done_blocks(&ended(session, node, &job).await?);
            (brought, most) = (brought + blocks, blocks.max(most));
        }
        if brought != self.blocks as u64 {
            return Err(Error::fatal(format!("only {brought} of {} blocks were moved back to {}", self.blocks, self.node)));
        }
        set_links(testbed, link)?;
        Ok(most as usize)
    }

    /// Removes the stored objects.
    pub(crate) async fn remove(self, session: &Session) -> Result<()> {
        for key in &self.keys {
            session.client.remove(super::repair::Subject::bucket(), key).await?;
        }
        Ok(())
    }
}

/// The result of a recovery.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) sample: Sample,
    /// The least time that the links allow.
    pub(crate) bound_s: Option<f64>,
    /// Blocks that the busiest requestor received.
    pub(crate) most: usize,
}

/// What each node sends and receives by the plans of a recovery.
#[derive(Debug, Default)]
struct Load {
    up: BTreeMap<Party, u64>,
    down: BTreeMap<Party, u64>,
    moved_bytes: u64,
}

impl Load {
    /// For the plans with which the recovery would begin.
    async fn of(session: &Session, node: NodeId, options: &RepairNodeOptions) -> Result<Self> {
        let mut load = Self::default();
        let mut plans = session.client.explain_repair_node(node, options).await?;
        while let Some(event) = plans.next().await? {
            if let Some(Event::Plan(it)) = event.event {
                let saved = weft_plan::from_json(&String::from_utf8_lossy(&it.plan))?;
                load.add(&weft_plan::cost(&saved.plan)?);
            }
        }
        Ok(load)
    }

    fn add(&mut self, cost: &weft_plan::Cost) {
        self.moved_bytes += cost.moved_bytes();
        for share in &cost.parties {
            *self.up.entry(share.party).or_default() += share.up_bytes;
            *self.down.entry(share.party).or_default() += share.down_bytes;
        }
    }

    /// The time of the busiest link, if all links have this rate.
    fn seconds(&self, bytes_per_s: f64) -> f64 {
        let most = self.up.values().chain(self.down.values()).max().copied().unwrap_or(0);
        most as f64 / bytes_per_s
    }
}

fn set_links(testbed: &mut Testbed, link: Option<LinkRate>) -> Result<()> {
    testbed.reshape(|it| *it = Settings { link, ..it.clone() })
}

fn done_blocks(job: &Job) -> u64 {
    job.done.map_or(0, |done| done.blocks)
}

/// Waits until a job is done.
async fn ended(session: &Session, node: NodeId, begun: &Job) -> Result<Job> {
    let job = session.client.wait_for_job(begun.id, |_| {}).await?;
    match job.state.as_str() {
        "done" => Ok(job),
        state => Err(Error::fatal(format!("the recovery of node {node} is {state}: {}", job.last_error))),
    }
}
