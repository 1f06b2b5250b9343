//! Measures a figure on one testbed, whose links are reshaped where the figure says so.

use super::{Asked, Disks, Figure, Links, Paper, Point, Recovery, Report, Scale, Setup, Shows, Updating, Writing, run_updates};
use crate::{
    bench::{
        IdleMeter, Machine, Outcome, Sample,
        in_place::journal_bytes,
        median,
        node::{Layout, LostNode},
        put::{self, Data},
        repair::{Case, Subject, measure, probe},
        writer::{self, Writers},
    },
    testbed::{Limit, LinkRate, Settings, Testbed, scratch::file_system},
};
use std::{collections::BTreeMap, io::IsTerminal as _};
use tokio::time::Instant;
use weft_cli::session::Session;
use weft_coordinator::CoordinatorConfig;
use weft_types::{ByteSize, Error, Result, UPDATE_BYTES_MAX};

const MIB: f64 = 1048576.0;
/// The percentages of puts that are shown for distributions.
pub(crate) const SHARES: &[usize] = &[10, 25, 50, 75, 90, 100];
/// Warm-up objects are smaller than measured ones by this factor.
const LITTLE: u64 = 16;

/// How a figure is run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) scale: Scale,
    pub(crate) runs: usize,
    pub(crate) seed: u64,
    pub(crate) quiet: bool,
}

/// Reports progress.
pub(super) struct Steps {
    what: String,
    quiet: bool,
    steps: usize,
    step: usize,
    /// Estimated work in total, and the part that is done, in any unit.
    weight: f64,
    weight_done: f64,
    begun: Instant,
}

/// The testbed of a figure at the start. If racks have links of their own, the figure sets all rates.
pub(crate) fn settings(figure: &Figure, link: LinkRate, insecure: bool) -> Result<Settings> {
    let Figure { nodes, racks, .. } = *figure;
    let slow = figure.slow.iter().map(|slow| slow.parse().map_err(Error::invalid)).collect::<Result<_>>()?;
    let link = (racks == 1).then_some(link);
    Ok(Settings { nodes, racks, link, rack_link: None, outside_link: None, limits: Vec::new(), insecure, slow, matrix: None })
}

/// No stall detection: figures show how long schemes take, and repairs that share the link of one requestor can look stalled.
pub(crate) fn adjust(config: &mut CoordinatorConfig) {
    (config.repair_stall_ms, config.stall_ms) = (0, 25_000);
}

/// Measures all points of a figure.
pub(crate) async fn run(
    paper: &Paper,
    figure: &Figure,
    options: Options,
    session: &Session,
    testbed: &mut Testbed,
) -> Result<Report> {
    let setups = (figure.setups)(options.scale)?;
    let is = |links: fn(&Links) -> bool| setups.iter().any(|setup| links(&setup.links));
    let (of_nodes, of_puts) = (is(|links| matches!(links, Links::Node(_))), is(|links| matches!(links, Links::Written(_))));
    let of_updates = is_of_updates(&setups);
    if of_updates && is(|links| matches!(links, Links::Updated(Updating { places: None, .. }))) {
        testbed.reshape(|it| it.link = Some(options.scale.link))?;
    }
    if of_puts {
        testbed.reshape(|it| it.outside_link = it.link)?;
    }
    let disks = match of_updates {
        true => {
            let journal = journal_bytes(options.scale.block_len);
            Some(Disks { file_system: file_system(testbed.dir())?, journal, sync_ms: 0.0 })
        }
        false => None,
    };
    let asked = Asked {
        paper: paper.name.to_owned(),
        figure: figure.name.to_owned(),
        block_size: ByteSize(options.scale.block_len),
        runs: options.runs,
        quick: options.scale.quick,
        seed: options.seed,
        link: Some(options.scale.link).filter(|link| link.to_string() != figure.link),
        disks,
        testbed: testbed.settings().clone(),
    };
    let mut steps = Steps::begin(format!("figure {}", figure.name), &setups, options);
    let mut warnings = Vec::new();
    let mut results = match (of_nodes, of_puts) {
        (true, _) => of_node(&setups, options, session, testbed, &mut steps, &mut warnings).await?,
        (_, true) => of_put(&setups, options, session, testbed, &mut steps).await?,
        _ if of_updates => run_updates::run(&setups, options, session, testbed, &mut steps).await?,
        _ => of_block(&setups, options, session, testbed, &mut steps).await?,
    };
    steps.end();
    figure.arrange(&mut results);
    Ok(Report { machine: Machine::this(), settings: asked, results, warnings })
}

/// Whether a figure measures updates in place: then its disks must not be in memory.
pub(crate) fn is_of_updates(setups: &[Setup]) -> bool {
    setups.iter().any(|setup| matches!(setup.links, Links::Updated(_)))
}

/// Measures repairs of one block.
async fn of_block(
    setups: &[Setup],
    options: Options,
    session: &Session,
    testbed: &mut Testbed,
    steps: &mut Steps,
) -> Result<Vec<Point>> {
    let mut results = Vec::new();
    let mut stored: Option<Subject> = None;
    for setup in setups {
        let same = stored.take_if(|subject| subject.is_of(&setup.code, setup.block_len));
        let mut subject = match same {
            Some(subject) => subject,
            None => {
                if let Some(other) = stored.take() {
                    other.remove(session).await?;
                }
                store(session, testbed, setup, options).await?
            }
        };
        shape(session, testbed, &mut subject, &setup.links, options.quiet).await?;
        let cases: Vec<Case> = setup.cases.iter().map(|(_, case)| case.clone()).collect();
        let mut says = |run: usize, at: usize| {
            let case = &setup.cases[at];
            steps.next(case.0.as_deref(), &case.1, run, options.runs, weight(setup, &case.1));
        };
        // Figures give both requestors the same links.
        let outcomes = measure(session, Some(testbed), &mut subject, &cases, options.runs, false, &mut says).await?;
        let point = |((x, _), outcome): (&(Option<String>, Case), _)| Point { x: x.clone(), rate_mib_s: None, outcome };
        results.extend(setup.cases.iter().zip(outcomes).map(point));
        stored = Some(subject);
    }
    if let Some(subject) = stored {
        subject.remove(session).await?;
    }
    Ok(results)
}

/// Measures recoveries of the same node, on increasing numbers of requestors.
async fn of_node(
    setups: &[Setup],
    options: Options,
    session: &Session,
    testbed: &mut Testbed,
    steps: &mut Steps,
    warnings: &mut Vec<String>,
) -> Result<Vec<Point>> {
    let (mut results, mut stored): (Vec<Point>, Option<LostNode>) = (Vec::new(), None);
    for setup in setups {
        let Links::Node(Recovery { holders, requestors, lost }) = setup.links else {
            return Err(Error::fatal("the figure mixes node recoveries and block repairs"));
        };
        let node = match stored.take() {
            Some(node) => node,
            None => {
                let layout = Layout { code: &setup.code, block_len: setup.block_len, holders, lost };
                let node = LostNode::store(session, testbed, layout, options.seed).await?;
                // Warm-up: the first run opens connections and is not counted.
                if let Some((_, first)) = setup.cases.first() {
                    node.rebuild(session, testbed, first, node.requestors()).await?;
                }
                steps.begun = Instant::now();
                node
            }
        };
        let mut measured: Vec<(Vec<Sample>, Vec<f64>)> = vec![Default::default(); setup.cases.len()];
        for run in 0..options.runs {
            for ((x, case), (samples, bounds)) in setup.cases.iter().zip(&mut measured) {
                steps.next(x.as_deref(), case, run, options.runs, weight(setup, case));
                let recovered = node.rebuild(session, testbed, case, requestors).await?;
                samples.push(recovered.sample);
                bounds.extend(recovered.bound_s);
                if recovered.most > lost.div_ceil(requestors) {
                    let (label, most) = (&case.label, recovered.most);
                    warnings.push(format!("{label}: one of {requestors} requestors got {most} of {lost} blocks"));
                }
            }
        }
        for ((x, case), (samples, bounds)) in setup.cases.iter().zip(measured) {
            let outcome = Outcome::of(case.label.clone(), &samples, median(&bounds));
            let rate_mib_s = Some(node.rebuilt_bytes() as f64 / MIB / outcome.median_s);
            results.push(Point { x: x.clone(), rate_mib_s, outcome });
        }
        stored = Some(node);
    }
    if let Some(node) = stored {
        node.remove(session).await?;
    }
    Ok(results)
}

/// Measures puts.
async fn of_put(
    setups: &[Setup],
    options: Options,
    session: &Session,
    testbed: &Testbed,
    steps: &mut Steps,
) -> Result<Vec<Point>> {
    put::make_bucket(session).await?;
    let (mut results, mut writers) = (Vec::new(), Writers::default());
    for setup in setups {
        let Links::Written(Writing { size, writers: count, replicas, shows }) = setup.links else {
            return Err(Error::fatal("the figure mixes puts and repairs"));
        };
        if writers.len() != count as usize {
            writers = writer::on_nodes(Some(testbed), count).await?;
        }
        let data = Data::make(&setup.code, ByteSize(size), options.seed)?.copied(replicas);
        // Warm-up: the first run opens connections and caches plans, and is not counted; little data is enough.
        let little = Data::make(&setup.code, ByteSize(size.div_ceil(LITTLE)), options.seed)?.copied(replicas);
        let cases: Vec<Case> = setup.cases.iter().map(|(_, case)| case.clone()).collect();
        let mut bounds = Vec::new();
        for case in &cases {
            put::put(session, &writers, &little, case).await?;
            // Nothing predicts the time of concurrent plans.
            bounds.push(if count == 0 { data.predicted_s(session, testbed.settings(), case).await? } else { None });
        }
        let mut says = |run: usize, at: usize| {
            let (x, case) = &setup.cases[at];
            steps.next(x.as_deref(), case, run, options.runs, weight(setup, case));
        };
        if shows == Shows::Parts {
            results.extend(of_parts(session, &data, &setup.cases, options.runs).await?);
            results.extend(setup.cases.first().and_then(|(_, case)| of_link(case, testbed, size)));
        }
        let samples = put::measure(session, &writers, &data, &cases, options.runs, &mut says).await?;
        if shows == Shows::Spread {
            let spread = |((_, case), samples): (&(Option<String>, Case), Vec<Sample>)| spread(case, samples);
            results.extend(setup.cases.iter().zip(samples).flat_map(spread));
            continue;
        }
        let outcomes = put::outcomes(&cases, &samples, &bounds);
        let point = |((x, _), outcome): (&(Option<String>, Case), _)| Point { x: x.clone(), rate_mib_s: None, outcome };
        results.extend(setup.cases.iter().zip(outcomes).map(point));
    }
    Ok(results)
}

/// The time that this percentage of puts takes at most.
fn spread(case: &Case, mut samples: Vec<Sample>) -> Vec<Point> {
    samples.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let longest = |percent: &usize| {
        let at = (samples.len() * percent).div_ceil(100).saturating_sub(1);
        let outcome = Outcome::of(case.label.clone(), samples.get(at..=at)?, None);
        Some(Point { x: Some(format!("{percent} %")), rate_mib_s: None, outcome })
    };
    SHARES.iter().filter_map(longest).collect()
}

/// The time of each party's part of a put: reading, arithmetic and storing, without the network.
async fn of_parts(session: &Session, data: &Data, cases: &[(Option<String>, Case)], runs: usize) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    for (_, case) in cases {
        let mut levels: BTreeMap<u32, Vec<Sample>> = BTreeMap::new();
        for _ in 0..runs {
            let idle = IdleMeter::begin();
            let mut busiest: BTreeMap<u32, f64> = BTreeMap::new();
            for stage in put::stages(session, &[], data, std::slice::from_ref(case)).await? {
                let own = busiest.entry(stage.level).or_default();
                *own = own.max(stage.read_s + stage.combine_s + stage.write_s);
            }
            let cpu_idle = idle.share();
            for (level, seconds) in busiest {
                levels.entry(level).or_default().push(Sample { seconds, bytes_moved: 0, cpu_idle });
            }
        }
        for (level, samples) in levels {
            let place = if level == 0 { "writer".to_owned() } else { format!("level {level}") };
            points.push(Point { x: Some(place), rate_mib_s: None, outcome: Outcome::of(case.label.clone(), &samples, None) });
        }
    }
    Ok(points)
}

/// The time of the data on the writer's link, computed from its configured rate.
fn of_link(case: &Case, testbed: &Testbed, size: u64) -> Option<Point> {
    let seconds = put::bound_s(Some(testbed), size)?;
    let sample = Sample { seconds, bytes_moved: size, cpu_idle: 1.0 };
    Some(Point { x: Some("link".into()), rate_mib_s: None, outcome: Outcome::of(case.label.clone(), &[sample], None) })
}

/// Stores the objects to repair, over fast links.
async fn store(session: &Session, testbed: &mut Testbed, setup: &Setup, options: Options) -> Result<Subject> {
    let link = (!matches!(setup.links, Links::Places(..))).then_some(options.scale.link);
    testbed.reshape(|it| *it = Settings { link, limits: Vec::new(), matrix: None, ..it.clone() })?;
    Subject::store(session, &setup.code, setup.block_len, &[0], options.seed, true).await
}

/// Shapes the links of the figure, and moves the requestor to its place.
async fn shape(session: &Session, testbed: &mut Testbed, subject: &mut Subject, links: &Links, quiet: bool) -> Result<()> {
    match links {
        Links::Even | Links::Node(_) | Links::Written(_) | Links::Updated(_) => testbed.reshape(|it| it.limits.clear()),
        Links::Edge(rate) => {
            let nodes = testbed.settings().nodes;
            let name = |number: u32| format!("node-{number:02}");
            let to = subject.requestors();
            let pairs = to.iter().flat_map(|to| (1..=nodes).map(move |from| (name(from), to.clone())));
            let limits = pairs
                .filter(|(from, to)| from != to)
                .map(|(from, to)| Limit { from: Some(from), to: Some(to), rate: *rate })
                .collect();
            testbed.reshape(|it| it.limits = limits)
        }
        Links::Places(matrix, place) => {
            // Regions are measured one after another: measurements stay valid as long as the matrix.
            if testbed.settings().matrix.as_ref() != Some(matrix) {
                testbed.reshape(|it| *it = Settings { link: None, ..it.clone() }.with_matrix(matrix.clone()))?;
                probe(session, quiet).await?;
            }
            let settings = testbed.settings();
            let is_there = |name: &str| settings.number(name).is_ok_and(|number| (number % settings.racks) as usize == *place);
            subject.settle(session, is_there).await
        }
    }
}

/// The expected time of a run relative to others: bytes over its busiest link. Used for the remaining time only.
pub(super) fn weight(setup: &Setup, case: &Case) -> f64 {
    let (k, n) = weft_codes::parse(&setup.code).map_or((1, 1), |code| (code.k(), code.n()));
    let blocks = match case.scheme.as_str() {
        "conventional" => k as f64,
        "ppr" => ((k + 1) as f64).log2().ceil(),
        _ => 1.0,
    };
    let blocks = match &setup.links {
        // The requestors share what one repair receives, the helpers what all send.
        Links::Node(Recovery { holders, requestors, lost }) => {
            let (lost, helpers) = (*lost as f64, f64::from(*holders) - 1.0);
            (blocks * lost / *requestors as f64).max(k as f64 * lost / helpers)
        }
        // From the writer: all blocks, or only the data.
        Links::Written(_) => (if case.scheme == "direct" { n } else { k }) as f64,
        Links::Updated(Updating { blocks, stripes, .. }) => run_updates::weight(&setup.code, case) * (blocks * stripes) as f64,
        _ => blocks,
    };
    blocks * setup.block_len as f64
}

impl Steps {
    fn begin(what: String, setups: &[Setup], options: Options) -> Self {
        let runs = options.runs;
        let steps = setups.iter().map(|setup| setup.cases.len() * runs).sum();
        let weights = setups.iter().flat_map(|setup| setup.cases.iter().map(|(_, case)| weight(setup, case)));
        let weight = weights.sum::<f64>() * runs as f64;
        Self { what, quiet: options.quiet, steps, step: 0, weight, weight_done: 0.0, begun: Instant::now() }
    }

    /// The next run begins, with this weight.
    pub(super) fn next(&mut self, x: Option<&str>, case: &Case, run: usize, runs: usize, weight: f64) {
        self.step += 1;
        let (what, step, steps) = (&self.what, self.step, self.steps);
        let place = x.map(|x| format!(" at {x}")).unwrap_or_default();
        let left = self.left_s().map(|left| format!(", about {left:.0} s left")).unwrap_or_default();
        self.weight_done += weight;
        let line = format!("{what}, {step} of {steps}: {}{place}, run {} of {runs}{left}", case.label, run + 1);
        match (self.quiet, std::io::stderr().is_terminal()) {
            (true, _) => {}
            (false, true) => eprint!("\r\x1b[K{line}"),
            (false, false) => eprintln!("{line}"),
        }
    }

    /// Unknown before the first run ends.
    fn left_s(&self) -> Option<f64> {
        let seconds = self.begun.elapsed().as_secs_f64();
        (self.weight_done > 0.0).then(|| seconds / self.weight_done * (self.weight - self.weight_done))
    }

    fn end(&self) {
        if !self.quiet && std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }
}

/// Sizes are multiples of it.
const MULTIPLE: u64 = 8 << 10;

/// Whether the updates of a figure are short enough: then [`check`] has passed.
pub(crate) fn check_updates(figure: &Figure, options: Options) -> Result<()> {
    let setups = (figure.setups)(options.scale)?;
    let updates = setups.iter().filter(|setup| matches!(setup.links, Links::Updated(_)));
    match updates.map(|setup| setup.block_len).max() {
        Some(longest) if longest > UPDATE_BYTES_MAX => {
            let [size, least, most] = [longest, MULTIPLE, UPDATE_BYTES_MAX].map(ByteSize);
            let name = figure.name;
            Err(Error::invalid(format!("updates of {size} are too long for figure {name}: the range is {least} to {most}")))
        }
        _ => Ok(()),
    }
}

/// Whether a figure can be run with these settings.
pub(crate) fn check(options: Options) -> Result<()> {
    let size = ByteSize(options.scale.block_len);
    if size.0 == 0 || !size.0.is_multiple_of(MULTIPLE) {
        return Err(Error::invalid(format!("the size {size} is not a multiple of {}", ByteSize(MULTIPLE))));
    }
    match options.runs {
        0 => Err(Error::invalid("--runs must be at least 1")),
        _ => Ok(()),
    }
}
