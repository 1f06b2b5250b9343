//! Measures how the cluster rebuilds all blocks of nodes that were lost at the same time, or moves those of a node that is drained, on shaped
//! links, relative to the lower bound of the links.
//!
//! In each run the agents are killed, declared lost and, when all of them are, the cluster rebuilds their blocks without a command. Then
//! all objects are read back and compared, the agents are started again, and the blocks are copied back over fast links: so every run
//! starts from the same state. Nodes are declared lost at most two at a time, because the cluster takes more for the failure of something
//! else; nothing is rebuilt before the last one is lost. A drained node stays up, and its drain ends before its blocks are copied back.

use super::{
    IdleMeter, Sample,
    healing::{done, healing, until},
    node::{Held, Layout, STRIPES_MAX, bring_back, make_fast},
    repair::{Case, Subject, network, store_bytes},
};
use crate::testbed::{LinkRate, Testbed};
use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::time::Instant;
use weft_cli::{local::Signal, seed, session::Session};
use weft_client::{GetOptions, api};
use weft_codes::SharedCode;
use weft_control::{
    schedule::{Cluster, Open, Scheduler},
    view::{DiskView, NodeView, View},
};
use weft_schemes::Patterns;
use weft_types::{AutoSize, DiskNumber, Error, HelperSelect, NodeId, Prefer, Result};

/// The silence after which a node is lost: more than that after which it is down.
pub(crate) const LOST_AFTER: Duration = Duration::from_secs(3);
/// More silent nodes at the same time are not declared lost without a person.
const DECLARED_TOGETHER: usize = 2;
/// How often an object is read until all its blocks could be, and the pause between two reads.
const READS_MAX: usize = 60;
const READ_PAUSE: Duration = Duration::from_secs(1);
/// Coefficients that the cache of recipes keeps.
const TERMS_MAX: usize = 1 << 20;

/// How nodes lose their blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// The nodes are killed.
    Lost,
    /// The nodes are drained while they serve.
    Drained,
}

/// The nodes that are lost or drained together, and the stored objects.
#[derive(Debug)]
pub(crate) struct LostNodes {
    leaves: Leaves,
    code: SharedCode,
    block_len: u64,
    seed: u64,
    /// The lost nodes, and their names.
    nodes: Vec<(NodeId, String)>,
    /// The stored objects, of one stripe each: the blocks' indexes and nodes.
    objects: Vec<(String, Vec<(u8, NodeId)>)>,
    /// The blocks of the lost nodes.
    held: Vec<Held>,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Healed {
    pub(crate) sample: Sample,
    /// How long the busiest link needs at least for the bytes that it carried.
    pub(crate) busiest_s: Option<f64>,
}

impl LostNodes {
    /// Stores stripes until the `count` nodes with most blocks hold enough of them together: these are the ones to lose or to drain.
    pub(crate) async fn store(
        session: &Session,
        testbed: &mut Testbed,
        layout: Layout<'_>,
        (count, leaves): (usize, Leaves),
        seed: u64,
    ) -> Result<Self> {
        let code = weft_codes::parse(layout.code).map_err(Error::invalid)?;
        let names = names(session).await?;
        let shaped = make_fast(testbed)?;
        // The prefix avoids other objects.
        let run = seed::seed()?;
        let (mut objects, mut blocks_of): (Vec<(String, Vec<_>)>, BTreeMap<NodeId, usize>) = (Vec::new(), BTreeMap::new());
        let nodes = loop {
            let nodes = busiest(&blocks_of, count);
            if nodes.iter().map(|node| blocks_of[node]).sum::<usize>() >= layout.lost {
                break nodes;
            }
            let number = objects.len();
            if number == STRIPES_MAX {
                let blocks = layout.lost;
                return Err(Error::fatal(format!("no {count} nodes have {blocks} blocks of {STRIPES_MAX} stripes")));
            }
            let (key, data) = (format!("lost-{run:016x}/{number}"), data(code.k() as u64 * layout.block_len, seed, number));
            let placed = store_bytes(session, &key, layout.code, layout.block_len, data.as_slice(), true).await?;
            let blocks: Vec<(u8, NodeId)> = placed.iter().map(|block| (block.index as u8, NodeId(block.node))).collect();
            blocks.iter().for_each(|(_, node)| *blocks_of.entry(*node).or_default() += 1);
            objects.push((key, blocks));
        };
        testbed.reshape(|it| *it = shaped)?;
        let is_lost = |node: &NodeId| nodes.contains(node);
        let held = objects.iter().flat_map(|(key, blocks)| {
            let lost = blocks.iter().filter(|(_, node)| is_lost(node));
            lost.map(|(index, home)| Held { key: key.clone(), index: *index, home: *home })
        });
        let held = held.collect();
        let named = |node: NodeId| (node, names.get(&node.0).cloned().unwrap_or_else(|| node.to_string()));
        let nodes = nodes.into_iter().map(named).collect();
        Ok(Self { leaves, code, block_len: layout.block_len, seed, nodes, objects, held })
    }

    /// The blocks that each run rebuilds.
    pub(crate) fn blocks(&self) -> usize {
        self.held.len()
    }

    /// Likewise.
    pub(crate) fn held(&self) -> &[Held] {
        &self.held
    }

    /// Their bytes.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.blocks() as u64 * self.block_len
    }

    /// The stored objects.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.objects.iter().map(|(key, _)| key.clone()).collect()
    }

    /// How many stripes lose one block, two, and so on.
    pub(crate) fn stripes(&self) -> Vec<usize> {
        let lost = |blocks: &[(u8, NodeId)]| blocks.iter().filter(|(_, node)| self.is_lost(*node)).count();
        let lost: Vec<usize> = self.objects.iter().map(|(_, blocks)| lost(blocks)).collect();
        (1..=self.nodes.len()).map(|blocks| lost.iter().filter(|it| **it == blocks).count()).collect()
    }

    fn is_lost(&self, node: NodeId) -> bool {
        self.nodes.iter().any(|(lost, _)| *lost == node)
    }

    fn names(&self) -> Vec<&str> {
        self.nodes.iter().map(|(_, name)| name.as_str()).collect()
    }

    /// The least time that the links need for one repair of each stripe by the scheme, whichever nodes are selected. For a drain: with any
    /// share of copies.
    pub(crate) async fn bound_s(&self, session: &Session, testbed: &Testbed, case: &Case) -> Result<Option<f64>> {
        let settings = testbed.settings();
        let Some(rate) = settings.link.map(LinkRate::goodput_bytes_per_s) else { return Ok(None) };
        let nodes = session.client.status().await?.nodes;
        let view = self.view_without_lost(&nodes);
        let network = network(settings, &nodes.iter().map(|node| (node.id, node.name.clone())).collect())?;
        let patterns = Patterns::new(TERMS_MAX);
        let cluster = Cluster { view: &view, network: &network, patterns: &patterns };
        let slice_len = if let AutoSize::Bytes(size) = case.slice_len { size.0 } else { 0 };
        let open: Vec<Open> = self.objects.iter().filter_map(|(_, blocks)| self.open(blocks, slice_len)).collect();
        let mut scheduler = Scheduler::new(HelperSelect::Boost, Prefer::default(), &case.scheme).summarized();
        if self.leaves == Leaves::Drained {
            return Ok(Some(scheduler.least(&open, &cluster) / rate));
        }
        let scheduled = scheduler.batch(&open, &cluster, &mut StdRng::seed_from_u64(self.seed));
        if scheduled.iter().any(Option::is_none) {
            return Err(Error::fatal(format!("{} cannot rebuild the blocks of every stripe", case.scheme)));
        }
        let bound = scheduler.summary(scheduler.carried().clone(), &cluster).bound;
        Ok(Some(bound as f64 / rate))
    }

    /// What a schedule may choose for a stripe, if it loses blocks.
    fn open(&self, blocks: &[(u8, NodeId)], slice_len: u64) -> Option<Open> {
        let (lost, mut available): (Vec<_>, Vec<_>) = blocks.iter().copied().partition(|(_, node)| self.is_lost(*node));
        available.sort_unstable();
        (!lost.is_empty()).then(|| Open {
            code: self.code.clone(),
            lost: lost.iter().map(|(index, _)| *index).collect::<BTreeSet<u8>>().into_iter().collect(),
            block_len: self.block_len,
            held: available.iter().map(|(_, node)| *node).collect(),
            never: lost.iter().map(|(_, node)| *node).collect(),
            copies: if self.leaves == Leaves::Drained { lost } else { Vec::new() },
            available,
            rack_max: Some(self.code.tolerance()),
            named: false,
            in_blocks: slice_len >= self.block_len,
            reserve_bytes: 0,
        })
    }

    /// The nodes as the cluster sees them when these are lost or drained.
    fn view_without_lost(&self, nodes: &[api::Node]) -> View {
        let node = |it: &api::Node| {
            let id = NodeId(it.id);
            let (is_lost, is_drained) = match self.leaves {
                Leaves::Lost => (self.is_lost(id), false),
                Leaves::Drained => (false, self.is_lost(id)),
            };
            let disk = |(number, disk): (u32, &api::Disk)| DiskView {
                number: DiskNumber(number),
                id: disk.id.as_str().into(),
                path: disk.path.as_str().into(),
                total_bytes: disk.total_bytes,
                free_bytes: disk.free_bytes,
                file_system: disk.file_system,
                failed: disk.failed,
                draining: disk.draining || is_drained,
                blocks: disk.blocks,
                bytes_per_s: disk.bytes_per_s,
            };
            let disks = (0..).zip(&it.disks).map(disk).collect();
            let (name, rack) = (it.name.as_str().into(), it.rack.as_str().into());
            (id, NodeView { id, name, rack, up: !is_lost, lost: is_lost, suspect_for: Duration::ZERO, disks })
        };
        View { nodes: nodes.iter().map(node).collect(), ..View::default() }
    }

    /// Loses or drains the nodes, waits until the cluster has rebuilt or moved their blocks, checks all objects, and brings nodes and blocks
    /// back.
    pub(crate) async fn run(&self, session: &Session, testbed: &mut Testbed) -> Result<Healed> {
        if self.leaves == Leaves::Lost {
            self.lose(session, testbed).await?;
        }
        let before = testbed.carried()?;
        let (seconds, cpu_idle) = self.heal(session).await?;
        let carried = testbed.carried_since(before)?;
        if self.leaves == Leaves::Lost {
            session.client.set_auto_repair(false).await?;
        }
        self.check(session, testbed).await?;
        match self.leaves {
            Leaves::Lost => {
                let cluster = testbed.cluster()?;
                self.names().into_iter().try_for_each(|name| cluster.start(name))?;
            }
            Leaves::Drained => self.drain(session, false).await?,
        }
        bring_back(session, testbed, &self.held).await?;
        let sample = Sample { seconds, bytes_moved: carried.iter().map(|it| it.up).sum(), cpu_idle };
        Ok(Healed { sample, busiest_s: testbed.busiest_s(&carried) })
    }

    /// Kills the agents, and waits until their nodes are lost and the cluster has counted their blocks. Nothing is rebuilt.
    async fn lose(&self, session: &Session, testbed: &Testbed) -> Result<()> {
        let cluster = testbed.cluster()?;
        session.client.set_auto_repair(false).await?;
        for group in self.nodes.chunks(DECLARED_TOGETHER) {
            group.iter().try_for_each(|(_, name)| cluster.signal(name, Signal::Kill))?;
            let is_due = |node: NodeId, healing: &api::Healing| {
                healing.silent.iter().any(|silent| silent.node == node.0 && silent.lost_in_ms == 0)
            };
            let are_due = |health: &api::HealthReply| {
                health.healing.as_ref().is_some_and(|healing| group.iter().all(|(node, _)| is_due(*node, healing)))
            };
            until(session, "the killed nodes have been silent for long enough", are_due).await?;
            // It declares them lost at once, but looks for work only now and then.
            session.client.set_auto_repair(true).await?;
            session.client.set_auto_repair(false).await?;
            let names: Vec<&str> = group.iter().map(|(_, name)| name.as_str()).collect();
            self.require_lost(session, &names).await?;
        }
        let blocks = self.blocks() as u64;
        let is_counted = |health: &api::HealthReply| {
            !health.counting && health.bad_blocks.is_some_and(|bad| bad.on_lost_nodes == blocks && bad.on_down_nodes == 0)
        };
        let health = until(session, "the blocks of the lost nodes are counted", is_counted).await?;
        match healing(&health).stripes_under_way {
            0 => Ok(()),
            _ => Err(Error::retry("the cluster began to rebuild blocks before all nodes were lost: try again")),
        }
    }

    async fn require_lost(&self, session: &Session, names: &[&str]) -> Result<()> {
        let nodes = session.client.status().await?.nodes;
        let is_lost = |name: &str| nodes.iter().any(|node| node.name == name && node.state == "lost");
        let Some(name) = names.iter().find(|name| !is_lost(name)) else { return Ok(()) };
        let guard = healing(&session.client.health().await?).guard;
        let why = if guard.is_empty() { String::new() } else { format!(": {guard}") };
        Err(Error::fatal(format!("the cluster did not declare {name} lost{why}")))
    }

    /// Begins or ends the drain of the nodes.
    pub(crate) async fn drain(&self, session: &Session, on: bool) -> Result<()> {
        for (node, _) in &self.nodes {
            session.client.drain(*node, "", Some(on), false).await?;
        }
        Ok(())
    }

    /// Lets the cluster rebuild or move the blocks. Returns the seconds from the first rebuild or move under way until all blocks are elsewhere
    /// and recorded, and how idle the processors were.
    pub(crate) async fn heal(&self, session: &Session) -> Result<(f64, f64)> {
        let blocks = self.blocks() as u64;
        let mut counted = Counted { last: done(&session.client.health().await?).blocks, rebuilt: 0 };
        match self.leaves {
            Leaves::Lost => session.client.set_auto_repair(true).await?,
            Leaves::Drained => self.drain(session, true).await?,
        };
        until(session, "the cluster rebuilds blocks", |health| healing(health).stripes_under_way > 0).await?;
        let (begun, idle) = (Instant::now(), IdleMeter::begin());
        until(session, "all blocks are rebuilt", |health| counted.count(done(health).blocks) >= blocks).await?;
        let (seconds, cpu_idle) = (begun.elapsed().as_secs_f64(), idle.share());
        match counted.rebuilt {
            rebuilt if rebuilt == blocks => Ok((seconds, cpu_idle)),
            rebuilt => Err(Error::fatal(format!("{rebuilt} blocks were rebuilt instead of {blocks}"))),
        }
    }

    /// Reads all objects over fast links and compares them with what was stored. Every block must be on a node that is up.
    async fn check(&self, session: &Session, testbed: &mut Testbed) -> Result<()> {
        let shaped = make_fast(testbed)?;
        let bucket = Subject::bucket();
        for (number, (key, blocks)) in self.objects.iter().enumerate() {
            let wrong = |what: String| Error::corrupt(what).object(format!("{bucket}/{key}"));
            let object = session.client.stat(bucket, key).await?;
            let placed = object.stripes.first().map(|stripe| stripe.blocks.as_slice()).unwrap_or_default();
            let good = placed.iter().filter(|block| block.state == "ok" && !self.is_lost(NodeId(block.node)));
            let homes: BTreeSet<u32> = good.map(|block| block.node).collect();
            if homes.len() != blocks.len() {
                return Err(wrong(format!("{} of {} blocks are good and on nodes of their own", homes.len(), blocks.len())));
            }
            self.read(session, key, number).await.map_err(|error| wrong(error.message))?;
        }
        testbed.reshape(|it| *it = shaped)
    }

    /// Reads an object until no block had to be rebuilt for it, so the stored ones were read: a node that failed in a plan is avoided for
    /// a moment. What is read must always be right.
    async fn read(&self, session: &Session, key: &str, number: usize) -> Result<()> {
        let expected = data(self.code.k() as u64 * self.block_len, self.seed, number);
        let mut why = String::new();
        for _ in 0..READS_MAX {
            let mut back = Vec::with_capacity(expected.len());
            let got = session.client.get(Subject::bucket(), key, &mut back, &GetOptions::default()).await?;
            if back != expected {
                return Err(Error::corrupt("the object is not what was stored"));
            }
            if got.rebuilt.is_empty() {
                return Ok(());
            }
            why = got.errors.first().map_or_else(|| "a node is avoided".to_owned(), ToString::to_string);
            tokio::time::sleep(READ_PAUSE).await;
        }
        Err(Error::corrupt(format!("a block of the object cannot be read: {why}")))
    }

    /// Removes the stored objects.
    pub(crate) async fn remove(self, session: &Session) -> Result<()> {
        for (key, _) in &self.objects {
            session.client.remove(Subject::bucket(), key).await?;
        }
        Ok(())
    }
}

/// The nodes with most blocks, those with the lowest ids among equals.
fn busiest(blocks_of: &BTreeMap<NodeId, usize>, count: usize) -> Vec<NodeId> {
    let mut nodes: Vec<(NodeId, usize)> = blocks_of.iter().map(|(node, blocks)| (*node, *blocks)).collect();
    nodes.sort_by_key(|(node, blocks)| (Reverse(*blocks), *node));
    nodes.into_iter().take(count).map(|(node, _)| node).collect()
}

/// The bytes of an object.
fn data(len: u64, seed: u64, number: usize) -> Vec<u8> {
    let mut data = vec![0; len as usize];
    StdRng::seed_from_u64(seed ^ ((number as u64) << 32)).fill_bytes(&mut data);
    data
}

async fn names(session: &Session) -> Result<BTreeMap<u32, String>> {
    Ok(session.client.status().await?.nodes.into_iter().map(|node| (node.id, node.name)).collect())
}

/// Counts rebuilt blocks by the cluster's own count, which begins at 0 again when it has work again.
#[derive(Debug)]
struct Counted {
    last: u64,
    rebuilt: u64,
}

impl Counted {
    /// Takes the cluster's count; returns how many blocks were rebuilt since the beginning.
    fn count(&mut self, done: u64) -> u64 {
        self.rebuilt += done.checked_sub(self.last).unwrap_or(done);
        self.last = done;
        self.rebuilt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_with_most_blocks_are_lost() {
        let blocks_of = [(1, 4), (2, 6), (3, 5), (4, 5)].map(|(node, blocks)| (NodeId(node), blocks)).into();
        assert_eq!(busiest(&blocks_of, 2), [NodeId(2), NodeId(3)]);
        assert_eq!(busiest(&blocks_of, 9).len(), 4);
        assert_eq!(busiest(&BTreeMap::new(), 2), []);
    }

    fn lost() -> LostNodes {
        let on = |nodes: [u32; 3]| (0..).zip(nodes).map(|(index, node)| (index, NodeId(node))).collect::<Vec<(u8, NodeId)>>();
        let objects = [on([1, 2, 3]), on([2, 4, 3]), on([5, 6, 4]), on([5, 1, 2])].map(|blocks| (String::new(), blocks));
        let nodes = [(NodeId(1), "node-01".to_owned()), (NodeId(2), "node-02".to_owned())].into();
        let code = weft_codes::parse("rs(2,1)").unwrap();
        LostNodes { leaves: Leaves::Lost, code, block_len: 4096, seed: 1, nodes, objects: objects.into(), held: Vec::new() }
    }

    #[test]
    fn a_stripe_is_open_with_all_its_losses() {
        let lost = lost();
        assert_eq!(lost.stripes(), [1, 2]);
        let open: Vec<Option<Open>> = lost.objects.iter().map(|(_, blocks)| lost.open(blocks, 1024)).collect();
        let shown: Vec<_> = open.iter().map(|it| it.as_ref().map(|it| (it.lost.clone(), it.available.clone()))).collect();
        assert_eq!(
            shown,
            [
                Some((vec![0, 1], vec![(2, NodeId(3))])),
                Some((vec![0], vec![(1, NodeId(4)), (2, NodeId(3))])),
                None,
                Some((vec![1, 2], vec![(0, NodeId(5))])),
            ]
        );
        assert!(open.iter().flatten().all(|it| !it.in_blocks) && lost.open(&lost.objects[0].1, 4096).unwrap().in_blocks);
    }

    #[test]
    fn what_is_drained_can_be_copied_and_goes_to_others() {
        let drained = LostNodes { leaves: Leaves::Drained, ..lost() };
        let open = drained.open(&drained.objects[1].1, 1024).unwrap();
        assert_eq!((open.copies, open.lost), (vec![(0, NodeId(2))], vec![0]));
        assert_eq!((open.never, open.held), ([NodeId(2)].into(), vec![NodeId(4), NodeId(3)]));
        let disk = api::Disk { total_bytes: 1, ..api::Disk::default() };
        let node = |id| api::Node { id, disks: vec![disk.clone()], ..api::Node::default() };
        let nodes: Vec<api::Node> = (1..=3).map(node).collect();
        let takes = |lost: &LostNodes| {
            lost.view_without_lost(&nodes).nodes.values().map(|it| (it.up, it.takes_blocks())).collect::<Vec<_>>()
        };
        assert_eq!(takes(&drained), [(true, false), (true, false), (true, true)]);
        assert_eq!(takes(&lost())[..2], [(false, true), (false, true)], "they are down");
    }

    #[test]
    fn blocks_are_counted_also_if_the_cluster_begins_again() {
        let mut counted = Counted { last: 9, rebuilt: 0 };
        assert_eq!([9, 10, 0, 3, 5].map(|done| counted.count(done)), [0, 1, 1, 4, 6]);
    }

    #[test]
    fn objects_differ() {
        assert_eq!(data(64, 7, 1), data(64, 7, 1));
        assert!(data(64, 7, 1) != data(64, 7, 2) && data(64, 7, 1) != data(64, 8, 1));
    }
}
