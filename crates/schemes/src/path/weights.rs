//! The weights of the links that a path can use.

/// The weights of the links between candidates, and from each to the requestor.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    pub(super) count: usize,
    /// The weight of the link from i to j, at i·count + j.
    pub(super) links: Vec<f64>,
    pub(super) ends: Vec<f64>,
    /// The rack of each candidate, as a number, and the requestor's at the end; a party without a rack has a number of
    /// its own.
    pub(super) racks: Vec<usize>,
}

impl Weights {
    /// Links of weight zero between this many candidates, in the order of preference and without racks.
    pub fn new(candidates: usize) -> Self {
        let (links, ends) = (vec![0.0; candidates * candidates], vec![0.0; candidates]);
        Self { count: candidates, links, ends, racks: (0..=candidates).collect() }
    }

    /// The number of candidates.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Sets the weight of the link from one candidate to another. NaN counts as infinite.
    pub fn set_link(&mut self, from: usize, to: usize, weight: f64) {
        self.links[from * self.count + to] = sane(weight);
    }

    /// Sets the weight of the link from a candidate to the requestor.
    pub fn set_end(&mut self, from: usize, weight: f64) {
        self.ends[from] = sane(weight);
    }

    /// Adds a candidate's own weight (its disk or processor), which applies to all its links.
    pub fn slow_down(&mut self, candidate: usize, weight: f64) {
        let weight = sane(weight);
        self.ends[candidate] = self.ends[candidate].max(weight);
        let row = candidate * self.count;
        self.links[row..row + self.count].iter_mut().for_each(|link| *link = link.max(weight));
    }

    /// Sets the racks of the candidates and, at the end, of the requestor.
    pub fn set_racks<T: PartialEq>(&mut self, racks: &[Option<T>]) {
        for (at, rack) in racks.iter().enumerate().take(self.count + 1) {
            let same = racks[..at].iter().position(|other| rack.is_some() && other == rack);
            self.racks[at] = same.unwrap_or(at);
        }
    }

    /// Whether some candidates share a rack with each other or the requestor, and some do not. Otherwise the order does
    /// not affect rack crossings.
    pub(super) fn has_racks(&self) -> bool {
        let is_alone = |(at, rack): (usize, &usize)| at == *rack;
        !self.racks.iter().enumerate().all(is_alone) && self.racks.iter().any(|rack| *rack != 0)
    }

    /// The weight of the link from one candidate to another.
    pub fn link(&self, from: usize, to: usize) -> f64 {
        self.links[from * self.count + to]
    }

    /// The weight of the link from a candidate to the requestor.
    pub fn end(&self, from: usize) -> f64 {
        self.ends[from]
    }

    /// The largest weight of a chain through these candidates to the requestor.
    pub fn chain(&self, order: &[usize]) -> f64 {
        let links = order.windows(2).map(|pair| self.link(pair[0], pair[1]));
        links.chain(order.last().map(|last| self.end(*last))).fold(0.0, f64::max)
    }

    /// The largest weight of a cycle of these candidates and of their links to the requestor, except the slowest of
    /// those.
    pub fn cycle(&self, order: &[usize]) -> f64 {
        let next = order.iter().cycle().skip(1);
        let links = order.iter().zip(next).filter(|(from, to)| from != to).map(|(from, to)| self.link(*from, *to));
        let mut ends: Vec<f64> = order.iter().map(|from| self.end(*from)).collect();
        ends.sort_unstable_by(f64::total_cmp);
        ends.pop();
        links.chain(ends).fold(0.0, f64::max)
    }

    /// The links of a chain that cross racks.
    pub fn crossings(&self, order: &[usize]) -> usize {
        let racks = order.iter().map(|at| self.racks[*at]).chain([self.racks[self.count]]);
        racks.clone().zip(racks.skip(1)).filter(|(from, to)| from != to).count()
    }

    /// Sets the weight of the link that leads onward from one candidate to another, for a path away from the requestor.
    pub fn set_onward(&mut self, from: usize, to: usize, weight: f64) {
        self.set_link(to, from, weight);
    }

    /// Compares chains by their largest weight, and then by the sum of weights.
    pub(super) fn key(&self, order: &[usize]) -> (f64, f64) {
        let links = order.windows(2).map(|pair| self.link(pair[0], pair[1]));
        let weights = links.chain(order.last().map(|last| self.end(*last)));
        weights.fold((0.0, 0.0), |(most, sum): (f64, f64), weight| (most.max(weight), sum + weight))
    }
}

fn sane(weight: f64) -> f64 {
    if weight.is_nan() { f64::INFINITY } else { weight.max(0.0) }
}
