//! Measures the cost of failures in the middle of a repair: a helper or the requestor is killed or stopped, at each place of the chain in
//! turn, and blocks are damaged.

use super::{
    IdleMeter, Outcome, Sample,
    repair::{Case, Subject},
    until_nodes,
};
use crate::testbed::Testbed;
use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::Instant;
use weft_cli::{
    files::io_error,
    local::{LocalCluster, Signal},
    session::Session,
};
use weft_client::{RepairOptions, api::repair_event::Event};
use weft_plan::{Plan, Sink, Source};
use weft_types::{BlockId, Error, NodeId, Party, Result};

/// A fault: what fails, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// The process is killed.
    Kill(Place),
    /// The process is stopped; its connections stay open.
    Stop(Place),
    /// One bit in the middle of its block is flipped.
    Flip(Place),
    /// The second half of its block is missing.
    Truncate(Place),
}

/// A place in the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A helper; the first is 1.
    Helper(usize),
    /// The node that gets the block.
    Requestor,
}

impl Fault {
    /// Its name in the results.
    pub(crate) fn label(self) -> String {
        let place = |place| match place {
            Place::Helper(number) => format!("helper {number}"),
            Place::Requestor => "requestor".to_owned(),
        };
        match self {
            Self::None => "undisturbed".to_owned(),
            Self::Kill(at) => format!("{} killed", place(at)),
            Self::Stop(at) => format!("{} stalls", place(at)),
            Self::Flip(at) => format!("{}: a flipped bit", place(at)),
            Self::Truncate(at) => format!("{}: block cut short", place(at)),
        }
    }

    fn place(self) -> Option<Place> {
        match self {
            Self::None => None,
            Self::Kill(at) | Self::Stop(at) | Self::Flip(at) | Self::Truncate(at) => Some(at),
        }
    }
}

/// The nodes that take part in a plan of one chain.
struct Chain {
    /// From first to last.
    helpers: Vec<(NodeId, BlockId)>,
    requestor: NodeId,
}

impl Chain {
    fn of(plan: &Plan) -> Result<Self> {
        let lane = plan.shape.lanes.first().ok_or_else(|| Error::fatal("the plan has no lanes"))?;
        let node = |vertex: u16| match plan.binding.parties.get(usize::from(vertex)) {
            Some(Party::Node(node)) => Ok(*node),
            _ => Err(Error::fatal("a client takes part in the repair")),
        };
        let (mut helpers, mut requestor) = (Vec::new(), None);
        // Follow the links, starting at the stage without inputs.
        let receives = |source: &Source| matches!(source, Source::Link(_));
        let mut at = lane.stages.iter().position(|stage| !stage.sources.iter().any(receives));
        while let Some(stage) = at.and_then(|at| lane.stages.get(at)).filter(|_| helpers.len() <= lane.stages.len()) {
            let block = plan.binding.blocks.iter().find(|block| block.vertex == stage.vertex);
            if let Some(block) = block {
                helpers.push((node(stage.vertex)?, block.id));
            }
            if stage.sinks.iter().any(|sink| matches!(sink, Sink::Store { .. })) {
                requestor = Some(node(stage.vertex)?);
            }
            at = stage.sinks.iter().find_map(|sink| match sink {
                Sink::Link(link) => lane.links.get(usize::from(*link)).map(|link| usize::from(link.to)),
                _ => None,
            });
        }
        let requestor = requestor.ok_or_else(|| Error::fatal("the repair stores nothing"))?;
        Ok(Self { helpers, requestor })
    }
}

/// Repairs once with a fault half-way, then undoes the fault. Also returns how often the repair continued around it.
pub(crate) async fn run(
    session: &Session,
    testbed: &Testbed,
    subject: &mut Subject,
    case: &Case,
    fault: Fault,
) -> Result<(Sample, u32)> {
    let cluster = testbed.cluster()?;
    // A requestor that dies is replaced, unless it was named.
    let named = fault.place() != Some(Place::Requestor);
    let chain = preview(session, subject, case, named).await?;
    let victim = match fault.place() {
        None => None,
        Some(Place::Requestor) => Some((chain.requestor, None)),
        Some(Place::Helper(number)) => {
            let helper = number.checked_sub(1).and_then(|at| chain.helpers.get(at)).copied();
            let (node, block) = helper.ok_or_else(|| Error::invalid(format!("there is no helper {number} in the chain")))?;
            Some((node, Some(block)))
        }
    };
    let name = victim.map(|(node, _)| subject.name(node)).unwrap_or_default();
    let block = victim.and_then(|(_, block)| block);
    if let (Fault::Flip(_) | Fault::Truncate(_), Some(block)) = (fault, block) {
        damage(&block_file(&cluster, &name, block)?, fault)?;
    }
    let (idle, begun) = (IdleMeter::begin(), Instant::now());
    let mut repair = session.client.repair(Subject::bucket(), subject.key(), &subject.options(case, named)).await?;
    let (mut done, mut struck) = (None, false);
    while let Some(event) = repair.next().await? {
        match event.event {
            Some(Event::Progress(it)) if !struck && it.total_bytes > 0 && it.done_bytes * 2 >= it.total_bytes => {
                struck = true;
                match fault {
                    Fault::Kill(_) => cluster.signal(&name, Signal::Kill)?,
                    Fault::Stop(_) => cluster.signal(&name, Signal::Stop)?,
                    Fault::None | Fault::Flip(_) | Fault::Truncate(_) => {}
                }
            }
            Some(Event::Done(it)) => done = Some((it, begun.elapsed().as_secs_f64())),
            _ => {}
        }
    }
    let (done, seconds) = done.ok_or_else(|| Error::retry("the connection to the coordinator ended before the repair did"))?;
    let cpu_idle = idle.share();
    mend(session, &cluster, fault, &name).await?;
    if done.blocks.is_empty() || !done.left.is_empty() {
        return Err(Error::fatal(format!("{}: the block was not rebuilt", fault.label())));
    }
    if !struck && matches!(fault, Fault::Kill(_) | Fault::Stop(_)) {
        return Err(Error::fatal(format!(
            "{}: the repair ended before it reported half of its progress: use larger blocks",
            fault.label()
        )));
    }
    subject.refresh(session).await?;
    let bytes_moved = done.traffic.map_or(0, |traffic| traffic.sent_bytes);
    Ok((Sample { seconds, bytes_moved, cpu_idle }, done.resumed))
}

/// The nodes that will take part.
async fn preview(session: &Session, subject: &Subject, case: &Case, named: bool) -> Result<Chain> {
    let options = RepairOptions { explain: true, ..subject.options(case, named) };
    let mut repair = session.client.repair(Subject::bucket(), subject.key(), &options).await?;
    let mut plan = None;
    while let Some(event) = repair.next().await? {
        if let Some(Event::Plan(it)) = event.event {
            plan = Some(weft_plan::from_json(&String::from_utf8_lossy(&it.plan))?.plan);
        }
    }
    Chain::of(&plan.ok_or_else(|| Error::fatal("the coordinator did not send the plan"))?)
}

/// Restarts the process that was killed or stopped, and rebuilds what was damaged.
async fn mend(session: &Session, cluster: &LocalCluster, fault: Fault, name: &str) -> Result<()> {
    match fault {
        Fault::None => return Ok(()),
        Fault::Kill(_) => cluster.start(name)?,
        Fault::Stop(_) => cluster.signal(name, Signal::Continue)?,
        Fault::Flip(_) | Fault::Truncate(_) => return Ok(()),
    }
    // Wait for a new heartbeat: a moment before it, the node can still count as up.
    tokio::time::sleep(Duration::from_secs(1)).await;
    until_nodes(session, &[name], |node| node.state == "up").await
}

/// The outcome of each fault, and how often its repair continued around it.
pub(crate) async fn measure(
    session: &Session,
    testbed: &Testbed,
    subject: &mut Subject,
    case: &Case,
    faults: &[Fault],
    runs: usize,
    quiet: bool,
) -> Result<Vec<(Outcome, u32)>> {
    subject.rebuild(session, case).await?;
    let mut outcomes = Vec::with_capacity(faults.len());
    for (at, fault) in faults.iter().enumerate() {
        let (mut samples, mut resumed) = (Vec::with_capacity(runs), 0);
        for _ in 0..runs {
            if !quiet {
                eprintln!("{} of {}: {}", at + 1, faults.len(), fault.label());
            }
            let (sample, times) = run(session, testbed, subject, case, *fault).await?;
            samples.push(sample);
            resumed = times.max(resumed);
            if matches!(fault, Fault::Flip(_) | Fault::Truncate(_)) {
                heal(session, subject).await?;
            }
        }
        outcomes.push((Outcome::of(fault.label(), &samples, None), resumed));
    }
    Ok(outcomes)
}

/// Rebuilds all lost or damaged blocks.
async fn heal(session: &Session, subject: &mut Subject) -> Result<()> {
    let mut repair = session.client.repair(Subject::bucket(), subject.key(), &RepairOptions::default()).await?;
    let mut healed = 0;
    while let Some(event) = repair.next().await? {
        if let Some(Event::Done(it)) = event.event {
            healed = it.blocks.len();
        }
    }
    if healed == 0 {
        return Err(Error::fatal("the damage of a block was not detected"));
    }
    subject.refresh(session).await
}

/// The file of a block at a node.
fn block_file(cluster: &LocalCluster, node: &str, block: BlockId) -> Result<PathBuf> {
    let (dir, name) = (cluster.dir().join("nodes").join(node), block.to_string());
    find(&dir, &name)?.ok_or_else(|| Error::not_found(format!("there is no block file {name} under {}", dir.display())))
}

fn find(dir: &Path, name: &str) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(dir).map_err(|error| io_error(dir, "read", &error))? {
        let path = entry.map_err(|error| io_error(dir, "read", &error))?.path();
        if path.is_dir() {
            if let Some(found) = find(&path, name)? {
                return Ok(Some(found));
            }
        } else if path.file_name().is_some_and(|file| file == name) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn damage(path: &Path, fault: Fault) -> Result<()> {
    let failed = |error: std::io::Error| io_error(path, "damage", &error);
    let file = File::options().read(true).write(true).open(path).map_err(failed)?;
    let middle = file.metadata().map_err(failed)?.len() / 2;
    if matches!(fault, Fault::Truncate(_)) {
        return file.set_len(middle).map_err(failed);
    }
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle).map_err(failed)?;
    file.write_all_at(&[byte[0] ^ 1], middle).map_err(failed)
}
