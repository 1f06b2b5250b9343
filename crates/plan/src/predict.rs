//! Predicts how long a plan takes on a network of given bandwidths, by sending its slices one by one over virtual links.
//!
//! A party has one uplink and one downlink, each of which serves one slice after another. A pair of parties may have a line of its own between them, and
//! so may the ways out of a rack and into it. A stage continues when the next slice of each of its inputs has arrived and there is room for its outputs.
//! If several links have a slice ready for one uplink, their ranks decide; real links share it, and lanes that take turns keep in step. In a plan
//! whose parties send in turn ([`crate::Shape::in_turn`]), a party sends nothing until its last slice has arrived. Disks and computation take no time:
//! in a single plan, the network dominates.

use crate::cost::check;
use crate::{Plan, Refusal, Rule, Sink, Source};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use weft_types::Party;

/// The most slices that are simulated, over all links. Larger plans are simulated in part, twice, and the rest is
/// extrapolated.
const TRANSFERS_MAX: u64 = 1 << 18;
/// The most pairs of ports of one stage, over all stages.
const LOOKS_MAX: u64 = 1 << 24;

/// The rate between the processes of one machine, all together, bytes a second: two processors, with encryption.
const HOST_BYTES_PER_S: f64 = 1e9;

/// Bandwidths between parties.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// The upload and download rate of parties that are not listed below, bytes a second.
    pub link_bytes_per_s: f64,
    /// Parties' upload rates.
    pub up_bytes_per_s: BTreeMap<Party, f64>,
    /// Parties' download rates.
    pub down_bytes_per_s: BTreeMap<Party, f64>,
    /// The rates between two parties, where they are lower.
    pub pair_bytes_per_s: BTreeMap<(Party, Party), f64>,
    /// The rack of a party. A party without a rack, or in the rack of the link's other end, does not use a rack's line.
    pub racks: BTreeMap<Party, String>,
    /// The rate out of a rack, where known: all of its parties share it.
    pub rack_up_bytes_per_s: BTreeMap<String, f64>,
    /// The rate into a rack, likewise.
    pub rack_down_bytes_per_s: BTreeMap<String, f64>,
    /// What the disks of a party together read and write, where known. Schedules of many repairs count it, [`predict`] does not.
    pub disk_bytes_per_s: BTreeMap<Party, f64>,
    /// The machine of a party, where it matters. Transfers within a machine use no link, but a rate that all of its
    /// parties share; its parties also share its uplink and downlink.
    pub hosts: BTreeMap<Party, String>,
    /// Concurrent transfers of others over parties' lines (see [`Network::line_of`]).
    pub busy: BTreeMap<Party, Busy>,
    /// The time of each slice at its sender besides its bytes, seconds: system calls, framing, wake-ups. Zero until
    /// measured.
    pub slice_overhead_s: f64,
}

/// Bytes over the lines of a party.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Moved {
    /// Up.
    pub up_bytes: f64,
    /// Down.
    pub down_bytes: f64,
}

/// Others' transfers over the lines of a party.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Busy {
    /// Transfers that users wait for, in total: they are assumed to end when the plan does, so all of them delay it.
    pub waited_for: Moved,
    /// Each transfer without a waiting user: it takes a share of the lines, however much it moves.
    pub background: Vec<Moved>,
}

impl Busy {
    /// The part of it that delays a plan that moves this much.
    pub fn beside(&self, own: Moved) -> Moved {
        let mut all = self.waited_for;
        for other in &self.background {
            all += Moved { up_bytes: other.up_bytes.min(own.up_bytes), down_bytes: other.down_bytes.min(own.down_bytes) };
        }
        all
    }
}

impl std::ops::AddAssign for Moved {
    fn add_assign(&mut self, other: Self) {
        self.up_bytes += other.up_bytes;
        self.down_bytes += other.down_bytes;
    }
}

impl Network {
    /// The same rate for all parties.
    pub const fn uniform(link_bytes_per_s: f64) -> Self {
        Self {
            link_bytes_per_s,
            up_bytes_per_s: BTreeMap::new(),
            down_bytes_per_s: BTreeMap::new(),
            pair_bytes_per_s: BTreeMap::new(),
            racks: BTreeMap::new(),
            rack_up_bytes_per_s: BTreeMap::new(),
            rack_down_bytes_per_s: BTreeMap::new(),
            disk_bytes_per_s: BTreeMap::new(),
            hosts: BTreeMap::new(),
            busy: BTreeMap::new(),
            slice_overhead_s: 0.0,
        }
    }

    /// A party's upload rate.
    pub fn up(&self, party: Party) -> f64 {
        self.up_bytes_per_s.get(&party).copied().unwrap_or(self.link_bytes_per_s)
    }

    /// A party's download rate.
    pub fn down(&self, party: Party) -> f64 {
        self.down_bytes_per_s.get(&party).copied().unwrap_or(self.link_bytes_per_s)
    }

    /// The racks that a transfer leaves and enters, if it crosses racks.
    pub fn crosses(&self, from: Party, to: Party) -> (Option<&str>, Option<&str>) {
        let rack = |party: &Party| self.racks.get(party).map(String::as_str);
        let (from, to) = (rack(&from), rack(&to));
        if from == to { (None, None) } else { (from, to) }
    }

    /// The party whose uplink and downlink a party uses: the first node on its machine or, if there is none, one client
    /// that stands for all on that machine.
    pub fn line_of(&self, party: Party) -> Party {
        let Some(own) = self.hosts.get(&party) else { return party };
        let first = self.hosts.iter().find(|(_, host)| *host == own).map(|(first, _)| *first);
        first.filter(|first| matches!(first, Party::Node(_))).unwrap_or_else(|| Party::Client(stable_number(own)))
    }

    /// The machine of both parties, if they share one.
    pub fn host_of_both(&self, from: Party, to: Party) -> Option<&str> {
        self.hosts.get(&from).filter(|host| self.hosts.get(&to) == Some(host)).map(String::as_str)
    }

    /// The rate from one party to another without other transfers, bytes a second.
    pub fn between(&self, from: Party, to: Party) -> f64 {
        let (from_line, to_line) = (self.line_of(from), self.line_of(to));
        let (leaves, enters) = self.crosses(from_line, to_line);
        let lines = [
            self.pair_bytes_per_s.get(&(from_line, to_line)),
            leaves.and_then(|rack| self.rack_up_bytes_per_s.get(rack)),
            enters.and_then(|rack| self.rack_down_bytes_per_s.get(rack)),
        ];
        lines.into_iter().flatten().copied().fold(self.up(from_line).min(self.down(to_line)), f64::min)
    }
}

/// A fixed number for a name (FNV-1a).
fn stable_number(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The bytes of a plan over each line, except transfers within a machine.
pub fn moved(plan: &Plan, network: &Network) -> Result<BTreeMap<Party, Moved>, Refusal> {
    let parties: Vec<(Party, Party)> = plan.binding.parties.iter().map(|party| (*party, network.line_of(*party))).collect();
    let mut lines: BTreeMap<Party, Moved> = BTreeMap::new();
    for (number, lane) in plan.shape.lanes.iter().enumerate() {
        let positions = plan.slice_set(number).positions() as f64;
        let at = |stage: u16| parties.get(usize::from(lane.stages.get(usize::from(stage))?.vertex)).copied();
        for link in &lane.links {
            let (Some((from, from_line)), Some((to, to_line))) = (at(link.from), at(link.to)) else {
                return Err(Refusal::new(Rule::Links, format!("lane {number} has a link with an end without a party")));
            };
            let bytes = positions * f64::from(link.width);
            if network.host_of_both(from, to).is_none() {
                lines.entry(from_line).or_default().up_bytes += bytes;
                lines.entry(to_line).or_default().down_bytes += bytes;
            }
        }
    }
    Ok(lines)
}

/// The time of the busiest of a plan's lines, seconds, including others' transfers.
fn busiest_s(moved: &BTreeMap<Party, Moved>, network: &Network) -> f64 {
    let seconds = |bytes: f64, others: f64, rate: f64| if bytes > 0.0 { (bytes + others) / rate } else { 0.0 };
    let line = |(party, moved): (&Party, &Moved)| {
        let others = network.busy.get(party).map(|busy| busy.beside(*moved)).unwrap_or_default();
        let up_s = seconds(moved.up_bytes, others.up_bytes, network.up(*party));
        up_s.max(seconds(moved.down_bytes, others.down_bytes, network.down(*party)))
    };
    moved.iter().map(line).fold(0.0, f64::max)
}

/// The time of a plan, in seconds; infinite if bytes cross a line without bandwidth. If others use its lines, all of
/// them are assumed to end together: a plan that is fast at the expense of many others is not predicted to be fast.
pub fn predict(plan: &Plan, network: &Network) -> Result<f64, Refusal> {
    let alone_s = predict_alone(plan, network)?;
    Ok(if network.busy.is_empty() { alone_s } else { alone_s.max(busiest_s(&moved(plan, network)?, network)) })
}

fn predict_alone(plan: &Plan, network: &Network) -> Result<f64, Refusal> {
    check(plan)?;
    let transfers = |share: f64| -> (u64, Vec<u64>) {
        let counts = (0..plan.shape.lanes.len()).map(|number| {
            let all = plan.slice_set(number).count();
            ((all as f64 * share).ceil() as u64).clamp(all.min(1), all)
        });
        let counts: Vec<u64> = counts.collect();
        let sent = counts.iter().zip(&plan.shape.lanes).map(|(count, lane)| count.saturating_mul(lane.links.len() as u64));
        (sent.fold(0, u64::saturating_add), counts)
    };
    // At each arrival, the stages involved examine all their links.
    let degree = |stage: &crate::Stage| (stage.sources.len() + stage.sinks.len()) as u64;
    let looks = plan.shape.lanes.iter().flat_map(|lane| &lane.stages).map(|stage| degree(stage).saturating_pow(2));
    if looks.fold(0, u64::saturating_add) > LOOKS_MAX {
        return Err(Refusal::new(Rule::Limits, "the plan has too many links for a prediction"));
    }
    let (all, counts) = transfers(1.0);
    if all <= TRANSFERS_MAX {
        return Ok(Run::new(plan, network, counts).run());
    }
    let share = TRANSFERS_MAX as f64 / all as f64;
    let ((more, more_counts), (less, less_counts)) = (transfers(share), transfers(share / 2.0));
    let (slow, fast) = (Run::new(plan, network, more_counts).run(), Run::new(plan, network, less_counts).run());
    let per_transfer = if more > less { (slow - fast) / (more - less) as f64 } else { slow / more as f64 };
    Ok(if slow.is_finite() { slow + per_transfer * (all - more) as f64 } else { slow })
}

/// An event. At the same time, slices arrive before lines choose what to send.
#[derive(Debug, Clone, Copy)]
struct Event {
    at: f64,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A link's slice has arrived.
    Arrives { link: usize },
    /// A party's uplink is free, and links wait for it.
    Frees { line: usize },
}

impl Event {
    fn key(&self) -> What {
        self.what
    }
}

/// A link that waits for its party's uplink. Of slices that are ready at the same time, the lowest due time goes first
/// (see [`crate::Link::rank`]), then the earliest slice. This order is only for predictions; lanes that keep in step at
/// each party come close to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    due: u64,
    slice: u64,
    link: usize,
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.total_cmp(&other.at).then(self.key().cmp(&other.key()))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

/// A line that serves one slice after another.
#[derive(Debug, Default)]
struct Line {
    seconds_per_byte: f64,
    free_at: f64,
    /// For an uplink: the links that wait.
    waiting: BinaryHeap<Reverse<Waiting>>,
    /// Whether its next choice is scheduled.
    is_called: bool,
}

impl Line {
    fn new(bytes_per_s: f64) -> Self {
        // NaN counts as no bandwidth, too.
        let seconds_per_byte = if bytes_per_s > 0.0 { bytes_per_s.recip() } else { f64::INFINITY };
        Self { seconds_per_byte, ..Self::default() }
    }

    /// Serves this many bytes from `from` on; returns when it begins and ends.
    fn serve(&mut self, from: f64, bytes: f64, more_s: f64) -> (f64, f64) {
        let start = self.free_at.max(from);
        self.free_at = start + bytes * self.seconds_per_byte + more_s;
        (start, self.free_at)
    }
}

struct LinkState {
    /// Whether its sender sends nothing else until a slice has arrived.
    in_turn: bool,
    rank: u32,
    step: u64,
    from: usize,
    to: usize,
    up: usize,
    /// The pair's line, the racks' lines, and the receiver's downlink.
    others: Vec<usize>,
    slice_bytes: f64,
    last_bytes: f64,
    sent: u64,
    sending: bool,
}

struct StageState {
    ins: Vec<usize>,
    outs: Vec<usize>,
    window: u64,
    slices: u64,
    done: u64,
}

struct Run<'a> {
    network: &'a Network,
    links: Vec<LinkState>,
    stages: Vec<StageState>,
    lines: Vec<Line>,
    events: BinaryHeap<Reverse<Event>>,
}

#[derive(PartialEq, Eq, Hash)]
enum LineOf<'n> {
    /// The turn of a party that sends over one link at a time.
    Turn(Party),
    Up(Party),
    Down(Party),
    Pair(Party, Party),
    RackUp(&'n str),
    RackDown(&'n str),
    Host(&'n str),
}

impl<'a> Run<'a> {
    fn new(plan: &Plan, network: &'a Network, counts: Vec<u64>) -> Self {
        let mut run = Self { network, links: vec![], stages: vec![], lines: vec![], events: BinaryHeap::new() };
        let mut known: HashMap<LineOf<'a>, usize> = HashMap::new();
        let line_of: Vec<Party> = plan.binding.parties.iter().map(|party| network.line_of(*party)).collect();
        for ((number, lane), count) in plan.shape.lanes.iter().enumerate().zip(counts) {
            let (first_stage, first_link) = (run.stages.len(), run.links.len());
            let slices = plan.slice_set(number);
            let full = slices.slice_len.min(slices.positions());
            let last = if count == slices.count() && count > 0 { slices.slice(count - 1).len() } else { full };
            for link in &lane.links {
                let (from, to) = (usize::from(link.from), usize::from(link.to));
                let vertex = |stage: usize| usize::from(lane.stages[stage].vertex);
                let (sender, receiver) = (plan.binding.parties[vertex(from)], plan.binding.parties[vertex(to)]);
                let (from_line, to_line) = (line_of[vertex(from)], line_of[vertex(to)]);
                let mut line = |of: LineOf<'a>, bytes_per_s: f64| {
                    *known.entry(of).or_insert_with(|| {
                        run.lines.push(Line::new(bytes_per_s));
                        run.lines.len() - 1
                    })
                };
                let (up, others) = match network.host_of_both(sender, receiver) {
                    Some(host) => (line(LineOf::Host(host), HOST_BYTES_PER_S), Vec::new()),
                    None => {
                        let (leaves, enters) = network.crosses(from_line, to_line);
                        let shared = [
                            network
                                .pair_bytes_per_s
                                .get(&(from_line, to_line))
                                .map(|rate| (LineOf::Pair(from_line, to_line), *rate)),
                            leaves.and_then(|rack| Some((LineOf::RackUp(rack), *network.rack_up_bytes_per_s.get(rack)?))),
                            enters.and_then(|rack| Some((LineOf::RackDown(rack), *network.rack_down_bytes_per_s.get(rack)?))),
                            Some((LineOf::Down(to_line), network.down(to_line))),
                        ];
                        let others = shared.into_iter().flatten().map(|(of, rate)| line(of, rate)).collect();
                        (line(LineOf::Up(from_line), network.up(from_line)), others)
                    }
                };
                let (up, others) = match plan.shape.in_turn {
                    true => (line(LineOf::Turn(sender), f64::INFINITY), [vec![up], others].concat()),
                    false => (up, others),
                };
                run.links.push(LinkState {
                    in_turn: plan.shape.in_turn,
                    rank: link.rank,
                    step: u64::from(lane.step),
                    from: first_stage + from,
                    to: first_stage + to,
                    up,
                    others,
                    slice_bytes: full as f64 * f64::from(link.width),
                    last_bytes: last as f64 * f64::from(link.width),
                    sent: 0,
                    sending: false,
                });
            }
            for stage in &lane.stages {
                let ins = stage.sources.iter().filter_map(|s| if let Source::Link(link) = s { Some(*link) } else { None });
                let outs = stage.sinks.iter().filter_map(|s| if let Sink::Link(link) = s { Some(*link) } else { None });
                run.stages.push(StageState {
                    ins: ins.map(|link| first_link + usize::from(link)).collect(),
                    outs: outs.map(|link| first_link + usize::from(link)).collect(),
                    window: u64::from(lane.window),
                    slices: count,
                    done: 0,
                });
            }
        }
        run
    }

    fn run(mut self) -> f64 {
        (0..self.stages.len()).for_each(|stage| self.wake(stage, 0.0));
        let mut now = 0.0f64;
        while let Some(Reverse(event)) = self.events.pop() {
            if !event.at.is_finite() {
                return f64::INFINITY;
            }
            match event.what {
                What::Arrives { link } => {
                    now = now.max(event.at);
                    self.arrive(link, event.at);
                }
                What::Frees { line } => self.send(line, event.at),
            }
        }
        now
    }

    /// Lets a stage continue as long as its inputs have arrived and there is room for its outputs.
    fn wake(&mut self, stage: usize, now: f64) {
        loop {
            let StageState { ins, outs, window, slices, done } = &self.stages[stage];
            let there = ins.iter().all(|link| self.links[*link].sent > *done);
            let room = outs.iter().all(|link| done - self.links[*link].sent <= *window);
            if done == slices || !there || !room {
                break;
            }
            self.stages[stage].done += 1;
        }
        for at in 0..self.stages[stage].outs.len() {
            self.ask(self.stages[stage].outs[at], now);
        }
        for at in 0..self.stages[stage].ins.len() {
            self.ask(self.stages[stage].ins[at], now);
        }
    }

    /// Requests the uplink for a link with a slice to send and a receiver with room for it.
    fn ask(&mut self, link: usize, now: f64) {
        let LinkState { rank, step, from, to, up, sent, sending, .. } = &mut self.links[link];
        let (from, to) = (&self.stages[*from], &self.stages[*to]);
        if !*sending && *sent < from.done && *sent - to.done <= to.window {
            *sending = true;
            self.lines[*up].waiting.push(Reverse(Waiting {
                due: sent.saturating_mul(*step) + u64::from(*rank),
                slice: *sent,
                link,
            }));
            let line = *up;
            self.call(line, now);
        }
    }

    /// A requested line chooses when it becomes free, and not before, because a more urgent link may request it.
    fn call(&mut self, line: usize, now: f64) {
        let Line { free_at, waiting, is_called, .. } = &mut self.lines[line];
        if !*is_called && !waiting.is_empty() {
            *is_called = true;
            self.events.push(Reverse(Event { at: free_at.max(now), what: What::Frees { line } }));
        }
    }

    fn send(&mut self, line: usize, now: f64) {
        self.lines[line].is_called = false;
        let Some(Reverse(Waiting { slice, link: number, .. })) = self.lines[line].waiting.pop() else { return };
        let link = &self.links[number];
        let is_last = slice + 1 == self.stages[link.from].slices;
        let bytes = if is_last { link.last_bytes } else { link.slice_bytes };
        let (start, mut end) = self.lines[line].serve(now, bytes, self.network.slice_overhead_s.max(0.0));
        for other in &link.others {
            end = self.lines[*other].serve(start, bytes, 0.0).1.max(end);
        }
        if link.in_turn {
            self.lines[line].free_at = end;
        }
        self.events.push(Reverse(Event { at: end, what: What::Arrives { link: number } }));
        self.call(line, now);
    }

    fn arrive(&mut self, link: usize, now: f64) {
        let LinkState { from, to, sent, sending, .. } = &mut self.links[link];
        (*sent, *sending) = (*sent + 1, false);
        let (from, to) = (*from, *to);
        self.wake(to, now);
        self.wake(from, now);
    }
}
