//! Measures repairs of one block on shaped links: the same block, rebuilt repeatedly by each scheme in turn.
//!
//! The block moves back and forth between its home and a spare node. So the requestor never holds a block of the stripe, and every run
//! has the same helpers. The measured time covers the whole command: planning, moving, checking, storing, committing.

use super::{IdleMeter, Outcome, Sample, median};
use crate::testbed::{Settings, Testbed};
use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};
use std::{
    collections::BTreeMap,
    io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, ReadBuf},
    time::Instant,
};
use weft_cli::{progress::Progress, seed, session::Session};
use weft_client::{PutOptions, RepairOptions, api, api::repair_event::Event};
use weft_types::{AutoSize, ByteSize, Error, NodeId, Party, Result};

/// The bucket of the objects that are measured.
const BUCKET: &str = "bench";
/// The page size of a disk: blocks consist of whole pages.
const PAGE: u64 = 4096;

/// What is measured.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// Its name in the results.
    pub(crate) label: String,
    pub(crate) scheme: String,
    pub(crate) slice_len: AutoSize,
    pub(crate) select: String,
    pub(crate) paths: u32,
}

/// The object whose blocks are rebuilt.
#[derive(Debug)]
pub(crate) struct Subject {
    key: String,
    /// Its key.
    kind: String,
    /// The blocks that are rebuilt.
    blocks: Vec<u8>,
    /// Names by node id.
    names: BTreeMap<u32, String>,
    /// The nodes that hold them.
    homes: Vec<NodeId>,
    /// Their next nodes.
    spares: Vec<NodeId>,
}

impl Case {
    /// `pipeline`, `pipeline@1MiB`, or `ppr@block`; the default slice is `slice_len`. PPR runs block by block, as in its paper, and also in
    /// slices.
    pub(crate) fn parse(text: &str, slice_len: AutoSize, block_len: u64) -> Result<Vec<Self>> {
        let block = AutoSize::Bytes(ByteSize(block_len));
        let case = |label: &str, scheme: &str, slice_len| Self {
            label: label.to_owned(),
            scheme: scheme.to_owned(),
            slice_len,
            select: String::new(),
            paths: 1,
        };
        Ok(match text.split_once('@') {
            None if text == "ppr" => vec![case("ppr", "ppr", block), case("ppr-sliced", "ppr", slice_len)],
            None => vec![case(text, text, slice_len)],
            Some((scheme, "block")) => vec![case(text, scheme, block)],
            Some((scheme, slice)) => vec![case(text, scheme, slice.parse().map_err(Error::invalid)?)],
        })
    }
}

impl Case {
    /// A copy of the block, so the next case begins in the same state.
    fn back() -> Self {
        let slice_len = AutoSize::Bytes(ByteSize(256 << 10));
        Self { label: String::new(), scheme: "direct".to_owned(), slice_len, select: String::new(), paths: 1 }
    }
}

impl Subject {
    /// Stores an object of one stripe.
    pub(crate) async fn store(
        session: &Session,
        code: &str,
        block_len: u64,
        blocks: &[u8],
        seed: u64,
        quiet: bool,
    ) -> Result<Self> {
        // A name of this run's own: the cluster may be in use.
        let (kind, run) = (kind(code, block_len), seed::seed()?);
        let key = format!("repair-{run:016x}/{kind}");
        let parsed = weft_codes::parse(code).map_err(Error::invalid)?;
        if let Some(block) = blocks.iter().find(|block| usize::from(**block) >= parsed.n()) {
            return Err(Error::invalid(format!("there is no block {block}: {code} has blocks 0 to {}", parsed.n() - 1)));
        }
        store_stripe(session, &key, code, block_len, seed, quiet).await?;
        let (blocks, names) = (blocks.to_vec(), BTreeMap::new());
        let mut subject = Self { key, kind, blocks, names, homes: Vec::new(), spares: Vec::new() };
        match subject.refresh(session).await {
            Ok(()) => Ok(subject),
            Err(error) => {
                subject.remove(session).await?;
                Err(error)
            }
        }
    }

    /// Looks up the holders of the blocks, and their next nodes.
    pub(crate) async fn refresh(&mut self, session: &Session) -> Result<()> {
        let nodes = session.client.status().await?.nodes;
        self.names = nodes.iter().map(|node| (node.id, node.name.clone())).collect();
        let object = session.client.stat(BUCKET, &self.key).await?;
        let blocks = object.stripes.first().map(|stripe| stripe.blocks.as_slice()).unwrap_or_default();
        let home = |index: &u8| blocks.iter().find(|it| it.index == u32::from(*index)).map(|it| NodeId(it.node));
        let none = || Error::fatal("the stored object has no such block");
        self.homes = self.blocks.iter().map(|index| home(index).ok_or_else(none)).collect::<Result<_>>()?;
        let is_spare = |node: &&api::Node| node.state == "up" && !blocks.iter().any(|block| block.node == node.id);
        self.spares = nodes.iter().filter(is_spare).map(|node| NodeId(node.id)).take(self.blocks.len()).collect();
        if self.spares.len() < self.blocks.len() {
            return Err(Error::invalid("every node holds a block of the stripe: the requestor needs one more node"));
        }
        Ok(())
    }

    /// From now on, blocks at this place are rebuilt on another node of the same place.
    pub(crate) async fn settle(&mut self, session: &Session, is_there: impl Fn(&str) -> bool) -> Result<()> {
        let nodes = session.client.status().await?.nodes;
        let object = session.client.stat(BUCKET, &self.key).await?;
        let blocks = object.stripes.first().map(|stripe| stripe.blocks.as_slice()).unwrap_or_default();
        let holds = |node: &&api::Node| blocks.iter().find(|block| block.node == node.id);
        let there = || nodes.iter().filter(|node| node.state == "up" && is_there(&node.name));
        let home = there().find_map(|node| Some((node.id, holds(&node)?.index)));
        let spare = there().find(|node| holds(node).is_none()).map(|node| node.id);
        let none = || Error::invalid("no place has both a block and a node without one: use more nodes");
        let ((home, block), spare) = home.zip(spare).ok_or_else(none)?;
        (self.blocks, self.homes, self.spares) = (vec![block as u8], vec![NodeId(home)], vec![NodeId(spare)]);
        Ok(())
    }

    /// The names of the nodes between which the blocks move.
    pub(crate) fn requestors(&self) -> Vec<String> {
        self.homes.iter().chain(&self.spares).map(|node| self.name(*node)).collect()
    }

    /// Whether the object has such blocks.
    pub(crate) fn is_of(&self, code: &str, block_len: u64) -> bool {
        self.kind == kind(code, block_len)
    }

    pub(crate) fn bucket() -> &'static str {
        BUCKET
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The name of a node.
    pub(crate) fn name(&self, node: NodeId) -> String {
        self.names.get(&node.0).cloned().unwrap_or_default()
    }

    /// The repair of a case, to the spare node, or to a node that the coordinator chooses.
    pub(crate) fn options(&self, case: &Case, onto_spare: bool) -> RepairOptions {
        RepairOptions {
            blocks: self.blocks.clone(),
            scheme: case.scheme.clone(),
            to: if onto_spare { self.spares.clone() } else { Vec::new() },
            slice_len: Some(case.slice_len),
            select: case.select.clone(),
            paths: case.paths,
            explain: false,
            plans: true,
            heat: None,
        }
    }

    /// Removes the object.
    pub(crate) async fn remove(self, session: &Session) -> Result<()> {
        session.client.remove(BUCKET, &self.key).await
    }

    /// Rebuilds the block once; returns the time and the plan.
    pub(crate) async fn rebuild(&mut self, session: &Session, case: &Case) -> Result<(Sample, Vec<u8>)> {
        let options = self.options(case, true);
        let (idle, begun) = (IdleMeter::begin(), Instant::now());
        let mut repair = session.client.repair(BUCKET, &self.key, &options).await?;
        let (mut plan, mut done) = (Vec::new(), None);
        while let Some(event) = repair.next().await? {
            match event.event {
                Some(Event::Plan(it)) if plan.is_empty() => plan = it.plan,
                Some(Event::Done(it)) => done = Some((it, begun.elapsed().as_secs_f64())),
                _ => {}
            }
        }
        let (done, seconds) =
            done.ok_or_else(|| Error::retry("the connection to the coordinator ended before the repair did"))?;
        if done.blocks.len() != self.blocks.len() || !done.left.is_empty() {
            return Err(Error::fatal(format!("blocks {:?} were not rebuilt", self.blocks)));
        }
        std::mem::swap(&mut self.homes, &mut self.spares);
        let bytes_moved = done.traffic.map_or(0, |traffic| traffic.sent_bytes);
        Ok((Sample { seconds, bytes_moved, cpu_idle: idle.share() }, plan))
    }

    /// The least time that the links allow for a plan.
    pub(crate) fn bound_s(&self, plan: &[u8], settings: &Settings) -> Result<Option<f64>> {
        let Ok(saved) = weft_plan::from_json(&String::from_utf8_lossy(plan)) else { return Ok(None) };
        let network = network(settings, &self.names)?;
        Ok(Some(weft_plan::predict(&saved.plan, &network)?).filter(|seconds| seconds.is_finite()))
    }
}

/// The testbed's network for predictions; the nodes' names by id.
pub(crate) fn network(settings: &Settings, names: &BTreeMap<u32, String>) -> Result<weft_plan::Network> {
    let shaping = settings.shaping()?;
    let mut network = weft_plan::Network::uniform(f64::MAX);
    let mut party = vec![None; settings.nodes as usize];
    for (id, name) in names {
        let number = settings.number(name)? as usize;
        let node = Party::Node(NodeId(*id));
        party[number] = Some(node);
        let set = |of: &mut BTreeMap<Party, f64>, rates: &[Option<crate::testbed::LinkRate>]| {
            rates.get(number).copied().flatten().map(|rate| of.insert(node, rate.goodput_bytes_per_s()));
        };
        set(&mut network.up_bytes_per_s, &shaping.up);
        set(&mut network.down_bytes_per_s, &shaping.down);
    }
    if let Some(rate) = shaping.rack.map(crate::testbed::LinkRate::goodput_bytes_per_s) {
        let rack = |number: usize| format!("rack-{}", number as u32 % settings.racks + 1);
        let stands = (0..).zip(&party).filter_map(|(number, party)| Some(((*party)?, rack(number))));
        network.racks = stands.collect();
        let lines: BTreeMap<String, f64> = network.racks.values().map(|rack| (rack.clone(), rate)).collect();
        (network.rack_up_bytes_per_s, network.rack_down_bytes_per_s) = (lines.clone(), lines);
    }
    let at = |number: u32| party.get(number as usize).copied().flatten();
    for (from, to, rate) in &shaping.pairs {
        at(*from).zip(at(*to)).map(|pair| network.pair_bytes_per_s.insert(pair, rate.goodput_bytes_per_s()));
    }
    Ok(network)
}

/// Lets the coordinator measure the links, so its plans use them.
pub(crate) async fn probe(session: &Session, quiet: bool) -> Result<()> {
    let mut probe = session.client.probe_links(&[], &[]).await?;
    let (mut total, mut probed) = (0, 0u32);
    while let Some(event) = probe.next().await? {
        total = event.total.max(total);
        if event.link.is_some() {
            probed += 1;
        } else if let Some(error) = weft_proto::status::decode_error(&event.error) {
            return Err(error);
        }
        if !quiet && probed.is_multiple_of(32) {
            eprintln!("measuring links: {probed} of {total}");
        }
    }
    Ok(())
}

/// Stores an object of one stripe; returns the places of its blocks.
pub(crate) async fn store_stripe(
    session: &Session,
    key: &str,
    code: &str,
    block_len: u64,
    seed: u64,
    quiet: bool,
) -> Result<Vec<api::PlacedBlock>> {
    let k = weft_codes::parse(code).map_err(Error::invalid)?.k() as u64;
    let data = Noise { random: StdRng::seed_from_u64(seed), left: k * block_len };
    store_bytes(session, key, code, block_len, data, quiet).await
}

/// Stores these bytes, which fill one stripe, as an object; returns the places of its blocks.
pub(crate) async fn store_bytes(
    session: &Session,
    key: &str,
    code: &str,
    block_len: u64,
    data: impl AsyncRead + Unpin + Send,
    quiet: bool,
) -> Result<Vec<api::PlacedBlock>> {
    let parsed = weft_codes::parse(code).map_err(Error::invalid)?;
    let (k, alpha) = (parsed.k() as u64, parsed.alpha() as u64);
    if !block_len.is_multiple_of(PAGE * alpha) {
        return Err(Error::invalid(format!("the block size for {code} must be a multiple of {}", ByteSize(PAGE * alpha))));
    }
    if !session.client.buckets().await?.iter().any(|bucket| bucket.name == BUCKET) {
        session.client.create_bucket(BUCKET, "").await?;
    }
    let progress = Progress::new("storing", k * block_len, quiet);
    let shown = progress.clone();
    let options = PutOptions {
        code: code.to_owned(),
        block_len,
        cell_len: block_len,
        progress: weft_client::ProgressFn::new(move |it| shown.set(it.done_bytes, it.total_bytes)),
        ..PutOptions::default()
    };
    session.client.put(BUCKET, key, data, &options).await?;
    progress.finish();
    let object = session.client.stat(BUCKET, key).await?;
    Ok(object.stripes.into_iter().next().map(|stripe| stripe.blocks).unwrap_or_default())
}

fn kind(code: &str, block_len: u64) -> String {
    format!("{code} {}", ByteSize(block_len))
}

/// Runs all cases in turn, `runs` times each, and returns the outcomes; calls `says` before each run. If the links differ, an uncounted
/// copy moves the block back each time, so all cases have the same requestor.
pub(crate) async fn measure(
    session: &Session,
    testbed: Option<&Testbed>,
    subject: &mut Subject,
    cases: &[Case],
    runs: usize,
    uneven: bool,
    says: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Outcome>> {
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); cases.len()];
    let mut bounds: Vec<Vec<f64>> = vec![Vec::new(); cases.len()];
    // Warm-up: the first run opens connections and is not counted.
    if let Some(first) = cases.first() {
        subject.rebuild(session, first).await?;
        subject.rebuild(session, first).await?;
    }
    let back = Case::back();
    for run in 0..runs {
        // The order of cases rotates.
        for at in (0..cases.len()).map(|at| (at + run) % cases.len()) {
            says(run, at);
            let (sample, plan) = subject.rebuild(session, &cases[at]).await?;
            if let Some(testbed) = testbed {
                bounds[at].extend(subject.bound_s(&plan, testbed.settings())?);
            }
            samples[at].push(sample);
            if uneven {
                subject.rebuild(session, &back).await?;
            }
        }
    }
    let outcomes = cases.iter().zip(&samples).zip(&bounds);
    Ok(outcomes.map(|((case, samples), bounds)| Outcome::of(case.label.clone(), samples, median(bounds))).collect())
}

/// Random bytes that depend only on the seed.
struct Noise {
    random: StdRng,
    left: u64,
}

impl AsyncRead for Noise {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let len = usize::try_from(self.left).unwrap_or(usize::MAX).min(buf.remaining());
        self.random.fill_bytes(buf.initialize_unfilled_to(len));
        buf.advance(len);
        self.left -= len as u64;
        Poll::Ready(Ok(()))
    }
}
