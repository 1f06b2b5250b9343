//! Balanced assignments: the paper's Algorithm 1, and our own by maximum flow.

use super::{
    flow::{Arc, Flow},
    racks,
    repair::{Assignment, Candidates, Load, Part, Repair},
    speeds::{Direction, Speeds},
};
use std::{cmp::Reverse, collections::BTreeSet};

/// A network with more arcs than this between parts and nodes is thinned out.
const ARCS_MAX: usize = 1_000_000;

/// In a thinned network each part keeps at least this many more candidates than it needs.
const SPARE_CANDIDATES: usize = 8;

/// The most changes of place that are tried at the end, in all and for each vertex.
const TRIES_MAX: usize = 8_000;
const TRIES_PER_VERTEX: usize = 8;

/// The most further moves that one move may need.
const FOLLOWING_MAX: u32 = 2;

/// Stands for the node of a vertex that has none yet.
const NOBODY: u32 = u32::MAX;

/// Assignments that are not complete yet, and the loads so far.
struct Draft<'a> {
    repairs: &'a [Repair],
    loads: Vec<Load>,
    chosen: Vec<Assignment>,
}

impl<'a> Draft<'a> {
    fn new(repairs: &'a [Repair], loads: &[Load]) -> Self {
        let nobody = |repair: &Repair| repair.parts.iter().map(|part| vec![NOBODY; part.vertices.len()]).collect();
        Self { repairs, loads: loads.to_vec(), chosen: repairs.iter().map(nobody).collect() }
    }

    fn vertices(&self) -> impl Iterator<Item = (Place, Load)> + use<'a> {
        let repairs = self.repairs;
        repairs.iter().enumerate().flat_map(|(repair, it)| {
            it.parts.iter().enumerate().flat_map(move |(part, it)| {
                it.vertices.iter().enumerate().map(move |(vertex, load)| (Place { repair, part, vertex }, *load))
            })
        })
    }

    fn part(&self, place: Place) -> &'a Part {
        &self.repairs[place.repair].parts[place.part]
    }

    /// The candidates of a part that have no other vertex of the repair.
    fn free(&self, place: Place) -> impl Iterator<Item = u32> {
        let taken = &self.chosen[place.repair];
        self.part(place).candidates.all(self.loads.len()).filter(|node| !taken.iter().flatten().any(|it| it == node))
    }

    /// The time of the busiest link.
    fn busiest(&self, speeds: &Speeds) -> u64 {
        self.loads.iter().enumerate().map(|(node, load)| speeds.busier(node, load)).max().unwrap_or(0)
    }

    fn node(&self, place: Place) -> u32 {
        self.chosen[place.repair][place.part][place.vertex]
    }

    fn take(&mut self, place: Place, node: u32) {
        let load = self.part(place).vertices[place.vertex];
        self.loads[node as usize] += load;
        self.chosen[place.repair][place.part][place.vertex] = node;
    }
}

/// A vertex of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    repair: usize,
    part: usize,
    vertex: usize,
}

/// The paper's Algorithm 1: intermediate vertices in descending order of what they receive, then roots, then leaves.
/// Each takes the node that has received least so far, leaves the one that has sent least; ties go to the lowest
/// number. `loads`: what the nodes carry already.
///
/// `None` if a repair needs more nodes than it can choose from.
pub fn algorithm_1(repairs: &[Repair], loads: &[Load]) -> Option<Vec<Assignment>> {
    let mut draft = Draft::new(repairs, loads);
    let mut all: Vec<(Place, Load)> = draft.vertices().collect();
    // The sort is stable: equal ones stay in the order of repairs and vertices.
    let phase = |load: &Load| match (load.up, load.down) {
        (_, 0) => 2,
        (0, _) => 1,
        _ => 0,
    };
    all.sort_by_key(|(_, load)| (phase(load), Reverse(load.down)));
    for (place, load) in all {
        let direction = if load.down == 0 { Direction::Up } else { Direction::Down };
        let least = draft.free(place).min_by_key(|node| (direction.of(&draft.loads[*node as usize]), *node))?;
        draft.take(place, least);
    }
    Some(draft.chosen)
}

/// Assigns vertices so that the busiest link carries as little as possible.
///
/// First all vertices that receive, those that receive most first, then the leaves. Each class of equal vertices is a
/// bipartite b-matching between parts and nodes, solved by maximum flow: nodes may carry a little more in each step,
/// until every vertex has one. So of each class the largest load is the least possible, given the classes before. A
/// class does not know what those before it send; at last, vertices of the busiest nodes change places where that helps.
/// Where uplinks are the bottleneck, that can miss the optimum, so the helpers are then also chosen by what they send and
/// read before the classes are assigned among them, and the better assignment is taken.
///
/// `loads`: what the nodes carry already, followed by what the racks carry. `speeds`: what their links and disks can carry; if these differ,
/// the function balances times instead of bytes. A vertex needs room in its direction and, where they are limited, at the disks. If the links
/// of racks are limited, the function also moves vertices to relieve those links.
///
/// `None` if a repair needs more nodes than it can choose from.
pub fn balance(repairs: &[Repair], loads: &[Load], speeds: &Speeds) -> Option<Vec<Assignment>> {
    let of_nodes = &loads[..speeds.nodes()];
    let mut draft = in_classes(repairs, of_nodes, speeds)?;
    // Where links of racks are limited, vertices move for their sake below, so fewer helpers could be worse.
    if !Relief::new(&mut draft, speeds).run()
        && !speeds.racks().are_limited()
        && let Some(narrowed) = with_least_sent(repairs, of_nodes, speeds)
        && let Some(Draft { loads, chosen, .. }) = in_classes(&narrowed, of_nodes, speeds)
    {
        let mut other = Draft { repairs, loads, chosen };
        Relief::new(&mut other, speeds).run();
        if other.busiest(speeds) < draft.busiest(speeds) {
            draft = other;
        }
    }
    if speeds.racks().are_limited() {
        racks::even_out(repairs, &mut draft.chosen, loads, speeds);
    }
    Some(draft.chosen)
}

/// Assigns one class of vertices after the other: those that receive, and then the leaves.
fn in_classes<'a>(repairs: &'a [Repair], loads: &[Load], speeds: &Speeds) -> Option<Draft<'a>> {
    let mut draft = Draft::new(repairs, loads);
    // Those that receive come first: leaves receive 0.
    let classes: BTreeSet<Reverse<(u64, u64, u64)>> =
        draft.vertices().map(|(_, load)| speeds.seen(load)).map(|load| Reverse((load.down, load.up, load.disk))).collect();
    let mut classes = classes.into_iter().map(|Reverse((down, up, disk))| Load { up, down, disk });
    classes.all(|load| matched(&mut draft, load, speeds)).then_some(draft)
}

/// The same repairs, with only those helpers to choose from with which the busiest uplink, and the busiest disks, carry least. `None` if no
/// part has a choice.
fn with_least_sent(repairs: &[Repair], loads: &[Load], speeds: &Speeds) -> Option<Vec<Repair>> {
    let sends = |part: &Part| part.vertices.iter().any(|load| load.up > 0);
    let has_choice = |part: &Part| part.candidates.count(speeds.nodes()) > part.vertices.len();
    if !repairs.iter().flat_map(|repair| &repair.parts).any(|part| sends(part) && has_choice(part)) {
        return None;
    }
    let sending = |part: &Part| {
        let vertices = part.vertices.iter().filter(|load| load.up > 0).map(|load| Load { down: 0, ..*load }).collect();
        Part { vertices, candidates: part.candidates.clone() }
    };
    let senders: Vec<Repair> =
        repairs.iter().map(|repair| Repair { parts: repair.parts.iter().map(sending).collect(), edges: Vec::new() }).collect();
    let chosen = in_classes(&senders, loads, speeds)?.chosen;
    let narrowed = |(part, mut chosen): (&Part, Vec<u32>)| {
        chosen.sort_unstable();
        let candidates = if chosen.len() == part.vertices.len() { Candidates::These(chosen) } else { part.candidates.clone() };
        Part { vertices: part.vertices.clone(), candidates }
    };
    let narrowed = |(repair, chosen): (&Repair, Assignment)| Repair {
        parts: repair.parts.iter().zip(chosen).map(narrowed).collect(),
        edges: Vec::new(),
    };
    Some(repairs.iter().zip(chosen).map(narrowed).collect())
}

/// The vertices of a part that have the same load.
struct Group {
    places: Vec<Place>,
    candidates: Vec<u32>,
    arcs: Vec<Arc>,
}

/// Assigns all vertices with this load, as far as the speeds tell loads apart. Returns whether all have a node.
fn matched(draft: &mut Draft<'_>, load: Load, speeds: &Speeds) -> bool {
    let direction = if load.down > 0 { Direction::Down } else { Direction::Up };
    let mut groups: Vec<Group> = Vec::new();
    for (place, _) in draft.vertices().filter(|(_, it)| speeds.seen(*it) == load) {
        match groups.last_mut().filter(|group| (group.places[0].repair, group.places[0].part) == (place.repair, place.part)) {
            Some(group) => group.places.push(place),
            None => groups.push(Group { places: vec![place], candidates: draft.free(place).collect(), arcs: Vec::new() }),
        }
    }
    let carried = draft.loads.clone();
    let disk = Some((Direction::Disk, load.disk)).filter(|(_, bytes)| *bytes > 0);
    let needs: Vec<(Direction, u64)> = [(direction, direction.of(&load).max(1))].into_iter().chain(disk).collect();
    // The time of a node with so many more of these vertices.
    let time = |node: usize, more: u64| {
        let time = |(at, size): &(Direction, u64)| speeds.time(*at, node, at.of(&carried[node]) + more * size);
        needs.iter().map(time).max().unwrap_or(0)
    };
    let times: Vec<u64> = (0..carried.len()).map(|node| time(node, 0)).collect();
    thin_out(&mut groups, &times);
    // Levels are those of these nodes: one that can take nothing, such as the lost one, never fills up.
    let mut is_reached = vec![false; carried.len()];
    groups.iter().flat_map(|group| &group.candidates).for_each(|node| is_reached[*node as usize] = true);
    let reached: Vec<usize> = (0..carried.len()).filter(|node| is_reached[*node]).collect();
    let (first, nodes, size) = (1 + groups.len(), carried.len(), direction.of(&load).max(1));
    let mut flow = Flow::new(first + nodes + 1);
    for (at, group) in (1..).zip(&mut groups) {
        flow.arc(0, at, group.places.len() as u64);
        group.arcs = group.candidates.iter().map(|node| flow.arc(at, first + *node as usize, 1)).collect();
    }
    let links: Vec<Arc> = (first..first + nodes).map(|node| flow.arc(node, first + nodes, 0)).collect();
    let wanted: u64 = groups.iter().map(|group| group.places.len() as u64).sum();
    let room = |level: u64, node: usize| {
        let room = |(at, size): &(Direction, u64)| speeds.bytes(*at, node, level).saturating_sub(at.of(&carried[node])) / size;
        needs.iter().map(room).min().unwrap_or(0)
    };
    let least = reached.iter().map(|node| times[*node]).min().unwrap_or(0);
    let largest = needs.iter().map(|(_, size)| *size).max().unwrap_or(1);
    let most = least.saturating_add(speeds.time_max(wanted.saturating_mul(largest)));
    let all_rooms = |level: u64| reached.iter().map(|node| room(level, *node)).fold(0, u64::saturating_add);
    // The lowest level at which the nodes together have room. Half of the way at a time, so that all fill evenly.
    let lowest = first_that(least, most, |level| all_rooms(level) >= wanted);
    let half_way = |level: u64| if lowest - level > size { level + (lowest - level) / 2 } else { lowest };
    let mut level = half_way(least);
    let (mut rooms, mut placed) = (vec![0; nodes], 0);
    while placed < wanted {
        for node in reached.iter().copied() {
            let wider = room(level, node);
            flow.widen(links[node], wider - rooms[node]);
            rooms[node] = wider;
        }
        placed += flow.fill();
        if reached.iter().all(|node| rooms[*node] >= wanted) {
            break;
        }
        // The next level at which a node has room for one more.
        let next = |node: usize| time(node, rooms[node] + 1);
        level = if level < lowest { half_way(level) } else { reached.iter().copied().map(next).min().unwrap_or(level) };
    }
    for group in &groups {
        let chosen = group.candidates.iter().zip(&group.arcs).filter(|(_, arc)| flow.carried(**arc) > 0);
        for (place, (node, _)) in group.places.iter().zip(chosen) {
            draft.take(*place, *node);
        }
    }
    placed == wanted
}

/// Moves vertices away from the busiest nodes.
struct Relief<'a, 'b> {
    draft: &'b mut Draft<'a>,
    speeds: &'b Speeds,
    /// The vertices of each node.
    held: Vec<Vec<Place>>,
    /// Changes that may still be tried.
    tries: usize,
}

impl<'a, 'b> Relief<'a, 'b> {
    fn new(draft: &'b mut Draft<'a>, speeds: &'b Speeds) -> Self {
        let mut held = vec![Vec::new(); draft.loads.len()];
        for (place, _) in draft.vertices() {
            held[draft.node(place) as usize].push(place);
        }
        let tries = TRIES_MAX.min(TRIES_PER_VERTEX * held.iter().map(Vec::len).sum::<usize>());
        Self { draft, speeds, held, tries }
    }

    /// The time of a node's busier link.
    fn busier(&self, node: usize) -> u64 {
        self.speeds.busier(node, &self.draft.loads[node])
    }

    /// About what no change can undercut: the time in which the links of all nodes that carry anything together carry
    /// everything, in steps of the smallest vertex.
    fn least(&self) -> u64 {
        let speeds = self.speeds;
        let nodes: Vec<usize> = (0..self.draft.loads.len()).filter(|node| self.busier(*node) > 0).collect();
        let least = |direction: Direction| {
            let total: u64 = self.draft.loads.iter().map(|load| direction.of(load)).sum();
            let bytes = |time: u64| nodes.iter().map(move |node| speeds.bytes(direction, *node, time));
            let together = |time: u64| bytes(time).fold(0, u64::saturating_add);
            let step = self.draft.vertices().map(|(_, load)| direction.of(&load)).filter(|load| *load > 0).min();
            first_that(0, speeds.time_max(total), |time| together(time) >= total) + step.unwrap_or(1) - 1
        };
        speeds.directions().map(least).max().unwrap_or(0)
    }

    /// Relieves the busiest node, again and again, until none can be relieved. Returns whether no change can undercut what
    /// the busiest one carries then.
    fn run(mut self) -> bool {
        let least = self.least();
        loop {
            let nodes = 0..self.draft.loads.len();
            let Some(busiest) = nodes.max_by_key(|node| (self.busier(*node), Reverse(*node))) else { return true };
            let limit = self.busier(busiest);
            if limit <= least {
                return true;
            }
            if !(0..=FOLLOWING_MAX).any(|following| self.relieve(busiest as u32, limit, following)) {
                return false;
            }
        }
    }

    /// Moves a vertex of a node, so that the node carries less than `limit`: to a node without a vertex of the repair,
    /// or in exchange for another vertex of its part. The other node must stay below the limit, too; for that, so many
    /// moves may follow. Returns whether there was such a move; otherwise nothing has changed.
    fn relieve(&mut self, node: u32, limit: u64, following: u32) -> bool {
        for place in self.held[node as usize].clone() {
            let part = self.draft.part(place);
            let vertex = part.vertices[place.vertex];
            let others = (0..part.vertices.len()).map(|vertex| Place { vertex, ..place });
            let differs = |load: Load| self.speeds.seen(load) != self.speeds.seen(vertex);
            let others = others.filter(|other| differs(part.vertices[other.vertex]));
            let options: Vec<(u32, Option<Place>)> =
                self.draft.free(place).map(|to| (to, None)).chain(others.map(|it| (self.draft.node(it), Some(it)))).collect();
            for (to, back) in options {
                let Some(left) = self.tries.checked_sub(1) else { return false };
                self.tries = left;
                self.exchange(place, node, to, back);
                let (relieved, fits) = (self.busier(node as usize) < limit, self.busier(to as usize) < limit);
                if relieved && (fits || following > 0 && self.relieve(to, limit, following - 1)) {
                    return true;
                }
                self.exchange(place, to, node, back);
            }
        }
        false
    }

    /// Moves a vertex, and another one back.
    fn exchange(&mut self, place: Place, from: u32, to: u32, back: Option<Place>) {
        self.change(place, from, to);
        if let Some(back) = back {
            self.change(back, to, from);
        }
    }

    fn change(&mut self, place: Place, from: u32, to: u32) {
        self.held[from as usize].retain(|it| *it != place);
        self.held[to as usize].push(place);
        let vertex = self.draft.part(place).vertices[place.vertex];
        self.draft.loads[from as usize] -= vertex;
        self.draft.take(place, to);
    }
}

/// The least number from `low` to `high` that will do, if all larger ones do; `high` if none does.
fn first_that(mut low: u64, mut high: u64, will_do: impl Fn(u64) -> bool) -> u64 {
    while low < high {
        let middle = low + (high - low) / 2;
        if will_do(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

/// Bounds the arcs: of many candidates, each group keeps those that carry least. Among equal ones each group keeps
/// others, so that together they still reach all nodes.
fn thin_out(groups: &mut [Group], carried: &[u64]) {
    if groups.iter().map(|group| group.candidates.len()).sum::<usize>() <= ARCS_MAX {
        return;
    }
    for (number, group) in (0u64..).zip(groups) {
        let kept = group.places.len() + SPARE_CANDIDATES;
        if kept < group.candidates.len() {
            group.candidates.select_nth_unstable_by_key(kept, |node| (carried[*node as usize], scattered(number, *node)));
            group.candidates.truncate(kept);
            group.candidates.sort_unstable();
        }
    }
}

/// A number without pattern for a group and a node (the finalizer of SplitMix64: Steele et al., OOPSLA 2014).
fn scattered(group: u64, node: u32) -> u64 {
    let mixed = (group << 32 | u64::from(node)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// A lower bound of the time of the busiest link under any assignment, in bytes that the fastest link carries in it: the
/// least time in which the vertices, if they could be split among the candidates of their part, would fit. Of a part a
/// node carries at most its largest vertex. The busiest link may be one between racks, or a node's disks.
pub fn lower_bound(repairs: &[Repair], speeds: &Speeds) -> u64 {
    let of_nodes = speeds.directions().map(|direction| bound_of(repairs, speeds, direction)).max().unwrap_or(0);
    match speeds.racks().are_limited() {
        true => of_nodes.max(racks::bound(repairs, speeds)),
        false => of_nodes,
    }
}

fn bound_of(repairs: &[Repair], speeds: &Speeds, direction: Direction) -> u64 {
    let nodes = speeds.nodes();
    let parts: Vec<(&Part, u64, u64)> = repairs
        .iter()
        .flat_map(|repair| &repair.parts)
        .map(|part| {
            let of = |load: &Load| direction.of(load);
            (part, part.vertices.iter().map(of).sum(), part.vertices.iter().map(of).max().unwrap_or(0))
        })
        .collect();
    // In units of the largest common divisor: no load lies between. Between equal links no time lies between either.
    let unit = parts.iter().flat_map(|(part, ..)| &part.vertices).map(|load| direction.of(load)).fold(0, common_divisor).max(1);
    let total: u64 = parts.iter().map(|(_, sum, _)| sum / unit).sum();
    let step = if *speeds == Speeds::even(nodes) { unit } else { 1 };
    let room = |level: u64, node: usize| (speeds.bytes(direction, node, level * step) / unit).min(total);
    let together = |level: u64| (0..nodes).map(|node| room(level, node)).fold(0, u64::saturating_add);
    let most = speeds.time_max(total * unit).div_ceil(step);
    let mean = first_that(0, most, |level| together(level) >= total);
    if parts.iter().map(|(part, ..)| part.candidates.count(nodes)).sum::<usize>() > ARCS_MAX {
        return mean * step;
    }
    let first = 1 + parts.len();
    let fits = |level: u64| {
        let mut flow = Flow::new(first + nodes + 1);
        for (at, (part, sum, most)) in (1..).zip(&parts) {
            flow.arc(0, at, sum / unit);
            for node in part.candidates.all(nodes) {
                flow.arc(at, first + node as usize, most / unit);
            }
        }
        for node in 0..nodes {
            flow.arc(first + node, first + nodes, room(level, node));
        }
        flow.fill() == total
    };
    first_that(mean, most, fits) * step
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
