//! Measures the recovery of a whole node on shaped links: the same blocks, rebuilt repeatedly on one or more requestors.
//!
//! Either all nodes hold blocks, and get the lost ones, or some requestors hold none and get them all. Between runs the blocks are
//! copied back to their home over fast links, so every run starts from the same state. The measured time is that of the coordinator's
//! job, by the coordinator's clock.

use super::{
    IdleMeter, Sample,
    repair::{Case, store_stripe},
    until_nodes,
};
use crate::testbed::{LinkRate, Settings, Testbed};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use std::collections::BTreeMap;
use weft_cli::{local::Signal, seed, session::Session};
use weft_client::{
    RepairNodeOptions, RepairOptions,
    api::{Job, repair_event::Event},
};
use weft_control::schedule::Starting;
use weft_types::{AutoSize, Error, HelperSelect, NodeId, Result};

/// More stripes than this mean that something is wrong.
pub(crate) const STRIPES_MAX: usize = 1024;
/// Blocks that are copied back at the same time.
const BROUGHT_TOGETHER: usize = 8;
/// The most stripes that a repair may be asked to run at the same time.
const CONCURRENCY_MAX: usize = 64;

/// The placement of the stored blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout<'a> {
    pub(crate) code: &'a str,
    pub(crate) block_len: u64,
    /// The first nodes hold blocks; all others are requestors. If all hold blocks, all are requestors, too.
    pub(crate) holders: u32,
    /// Blocks that the lost node held.
    pub(crate) lost: usize,
}

/// The node to recover.
#[derive(Debug)]
pub(crate) struct LostNode {
    node: NodeId,
    block_len: u64,
    /// The objects, of one stripe each.
    keys: Vec<String>,
    /// The blocks of the node.
    held: Vec<Held>,
    requestors: Vec<NodeId>,
}

/// A block, and the node that holds it before and after each run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    /// Its object, of one stripe.
    pub(crate) key: String,
    pub(crate) index: u8,
    pub(crate) home: NodeId,
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
        let shaped = make_fast(testbed)?;
        let (mut keys, mut held): (_, BTreeMap<u32, Vec<Held>>) = (Vec::new(), BTreeMap::new());
        // The prefix avoids other objects: the cluster may be in use.
        let run = seed::seed()?;
        let node = loop {
            if let Some((node, _)) = held.iter().find(|(_, blocks)| blocks.len() >= layout.lost) {
                break NodeId(*node);
            }
            if keys.len() == STRIPES_MAX {
                return Err(Error::fatal(format!("no node has {} blocks of {STRIPES_MAX} stripes", layout.lost)));
            }
            let key = format!("node-{run:016x}/{}", keys.len());
            let blocks = store_stripe(session, &key, layout.code, layout.block_len, seed ^ keys.len() as u64, true).await?;
            for block in blocks {
                let it = Held { key: key.clone(), index: block.index as u8, home: NodeId(block.node) };
                held.entry(block.node).or_default().push(it);
            }
            keys.push(key);
        };
        testbed.reshape(|it| *it = shaped)?;
        away.iter().try_for_each(|name| cluster.start(name))?;
        until_nodes(session, away, |node| node.state == "up").await?;
        let requestors = session.find_nodes(away).await?;
        let held = held.remove(&node.0).unwrap_or_default();
        Ok(Self { node, block_len: layout.block_len, keys, held, requestors })
    }

    /// Nodes that can receive blocks.
    pub(crate) fn requestors(&self) -> usize {
        self.requestors.len()
    }

    /// What a recovery rebuilds.
    pub(crate) fn rebuilt_bytes(&self) -> u64 {
        self.held.len() as u64 * self.block_len
    }

    /// Rebuilds all blocks of the node on that many requestors (0: on any nodes) and copies them back. Unless the links decide how
    /// many, as many as possible are rebuilt at the same time.
    pub(crate) async fn rebuild(
        &self,
        session: &Session,
        testbed: &mut Testbed,
        case: &Case,
        requestors: usize,
    ) -> Result<Recovered> {
        let to = self.requestors.get(..requestors);
        let to = to.ok_or_else(|| Error::invalid(format!("there are not {requestors} requestors")))?;
        let by_links = HelperSelect::ALL.into_iter().any(|it| it.name() == case.select && Starting::of(it).by_links());
        let blocks = self.held.len();
        let slice_len = match case.slice_len {
            AutoSize::Bytes(size) => size.0,
            AutoSize::Auto => 0,
        };
        let options = RepairNodeOptions {
            select: case.select.clone(),
            to: to.to_vec(),
            scheme: case.scheme.clone(),
            concurrency: if by_links { 0 } else { blocks.min(CONCURRENCY_MAX) as u32 },
            slice_len,
            force: true,
            prefer: String::new(),
        };
        let load = Load::of(session, self.node, &options).await?;
        let (before, idle) = (testbed.carried()?, IdleMeter::begin());
        let seconds = self.recover(session, &options).await?;
        let cpu_idle = idle.share();
        let busiest_s = testbed.busiest_s(&testbed.carried_since(before)?);
        let rate = testbed.settings().link.map(LinkRate::goodput_bytes_per_s);
        let most = self.bring_back(session, testbed).await?;
        Ok(Recovered {
            sample: Sample { seconds, bytes_moved: load.moved_bytes, cpu_idle },
            bound_s: rate.map(|rate| load.busiest_bytes as f64 / rate),
            least_s: rate.map(|rate| load.bound_bytes as f64 / rate),
            busiest_s,
            most,
        })
    }

    /// Rebuilds all blocks of the node; returns the seconds.
    pub(crate) async fn recover(&self, session: &Session, options: &RepairNodeOptions) -> Result<f64> {
        let begun = session.client.repair_node(self.node, options).await?;
        let job = ended(session, self.node, &begun).await?;
        let (done, blocks) = (done_blocks(&job), self.held.len());
        if done != blocks as u64 {
            return Err(Error::fatal(format!("{done} blocks of node {} were rebuilt instead of {blocks}", self.node)));
        }
        // The coordinator's timestamps: an observer sees the end later.
        Ok(job.changed_ms.saturating_sub(job.created_ms) as f64 / 1e3)
    }

    /// The stored objects.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.keys.clone()
    }

    /// Copies every block back to its home; returns how many the node with most of them had.
    pub(crate) async fn bring_back(&self, session: &Session, testbed: &mut Testbed) -> Result<usize> {
        bring_back(session, testbed, &self.held).await
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
    /// The least time that the links allow for the plans with which it would begin.
    pub(crate) bound_s: Option<f64>,
    /// The least time that the links allow for any plans of the same scheme.
    pub(crate) least_s: Option<f64>,
    /// How long the busiest link needs at least for the bytes that it carried.
    pub(crate) busiest_s: Option<f64>,
    /// Blocks that the busiest requestor received.
    pub(crate) most: usize,
}

/// What the plans of a recovery move.
#[derive(Debug, Default)]
struct Load {
    moved_bytes: u64,
    /// On the busiest link, in bytes that the fastest link of a node carries in the same time.
    busiest_bytes: u64,
    /// What no choice of nodes can undercut there.
    bound_bytes: u64,
}

impl Load {
    /// For the plans with which the recovery would begin.
    async fn of(session: &Session, node: NodeId, options: &RepairNodeOptions) -> Result<Self> {
        let mut load = Self::default();
        let mut plans = session.client.explain_repair_node(node, options).await?;
        while let Some(event) = plans.next().await? {
            match event.event {
                Some(Event::Plan(it)) => {
                    let saved = weft_plan::from_json(&String::from_utf8_lossy(&it.plan))?;
                    load.moved_bytes += weft_plan::cost(&saved.plan)?.moved_bytes();
                }
                Some(Event::Schedule(it)) => (load.busiest_bytes, load.bound_bytes) = (it.busiest_bytes, it.bound_bytes),
                _ => {}
            }
        }
        Ok(load)
    }
}

/// Copies blocks back to their homes over fast links; returns how many the node with most of them had.
pub(crate) async fn bring_back(session: &Session, testbed: &mut Testbed, held: &[Held]) -> Result<usize> {
    let shaped = make_fast(testbed)?;
    // Full links delay heartbeats, too: what is on a node that counts as down cannot be copied.
    until_nodes(session, testbed.cluster()?.nodes(), |node| node.state == "up").await?;
    let one = |held: &Held| bring_one(session, held.clone());
    let from: Vec<u32> = stream::iter(held.iter().map(one)).buffer_unordered(BROUGHT_TOGETHER).try_collect().await?;
    testbed.reshape(|it| *it = shaped)?;
    let mut most: BTreeMap<u32, usize> = BTreeMap::new();
    from.into_iter().for_each(|node| *most.entry(node).or_default() += 1);
    Ok(most.into_values().max().unwrap_or(0))
}

/// Copies one block back; returns the node where it was.
async fn bring_one(session: &Session, Held { key, index, home }: Held) -> Result<u32> {
    let bucket = super::repair::Subject::bucket();
    let object = session.client.stat(bucket, &key).await?;
    let blocks = object.stripes.first().map(|stripe| stripe.blocks.as_slice()).unwrap_or_default();
    let from = blocks.iter().find(|block| block.index == u32::from(index)).map(|block| block.node);
    let from = from.ok_or_else(|| Error::fatal(format!("{key} has no block {index}")))?;
    if NodeId(from) == home {
        return Err(Error::fatal(format!("block {index} of {key} was not rebuilt on another node")));
    }
    let options =
        RepairOptions { blocks: vec![index], scheme: super::DIRECT.to_owned(), to: vec![home], ..RepairOptions::default() };
    let mut repair = session.client.repair(bucket, &key, &options).await?;
    while let Some(event) = repair.next().await? {
        if let Some(Event::Done(done)) = event.event {
            return match done.blocks.len() {
                1 => Ok(from),
                _ => Err(Error::fatal(format!("block {index} of {key} was not copied back to {home}"))),
            };
        }
    }
    Err(Error::retry("the connection to the coordinator ended before the copy did"))
}

/// Takes the limits off all links; returns the settings as they were.
pub(crate) fn make_fast(testbed: &mut Testbed) -> Result<Settings> {
    let shaped = testbed.settings().clone();
    testbed.reshape(|it| *it = Settings { link: None, rack_link: None, limits: Vec::new(), matrix: None, ..it.clone() })?;
    Ok(shaped)
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
