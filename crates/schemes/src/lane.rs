//! Builds one lane: stages are added one by one, and links get their ends when they are used.

use std::mem;
use weft_gf::{Factored, SparseMatrix};
use weft_plan::{Lane, Link, Sink, Source, Stage};
use weft_types::{Error, Result};

/// A lane under construction.
#[derive(Debug, Default)]
pub struct LaneBuilder {
    stages: Vec<Stage>,
    links: Vec<Link>,
}

/// A party that wants rows of a sum, and what it does with them.
#[derive(Debug, Clone)]
pub struct Requestor {
    /// Its vertex.
    pub vertex: u16,
    /// The rows that it needs, each once.
    pub rows: Vec<usize>,
    /// Its sinks.
    pub sinks: Vec<Sink>,
    /// What each sink gets: one row for each of its sub-blocks, one column for each of `rows`.
    pub spread: SparseMatrix,
}

/// A party's share of a sum.
#[derive(Debug)]
pub(crate) struct Share {
    /// Its rows: one column for each row of the sum.
    pub(crate) rows: SparseMatrix,
    /// Its sinks, if it does not go over a link.
    pub(crate) sinks: Option<Vec<Sink>>,
}

impl Requestor {
    /// The requestor's share of a sum, at a stage of `vertex`.
    pub(crate) fn share(&self, vertex: u16, rows: &SparseMatrix) -> Share {
        match self.vertex == vertex {
            true => Share { rows: self.spread.times_sparse(rows), sinks: Some(self.sinks.clone()) },
            false => Share { rows: rows.clone(), sinks: None },
        }
    }
}

impl LaneBuilder {
    /// A new link of `width` sub-blocks, to be used once as a sink and once as a source.
    pub fn link(&mut self, width: usize) -> u16 {
        // The number of links is checked when the lane is finished; a wrapped number does no harm before.
        self.links.push(Link { from: u16::MAX, to: u16::MAX, width: width as u32, rank: 0 });
        (self.links.len() - 1) as u16
    }

    /// Sets the rank of each link, by its number.
    pub fn rank(&mut self, of: impl Fn(usize) -> u32) {
        self.links.iter_mut().enumerate().for_each(|(at, link)| link.rank = of(at));
    }

    /// Adds a stage.
    pub fn stage(&mut self, vertex: u16, sources: Vec<Source>, matrix: impl Into<Factored>, sinks: Vec<Sink>) {
        let number = self.stages.len() as u16;
        for source in &sources {
            if let Source::Link(link) = source {
                self.links[usize::from(*link)].to = number;
            }
        }
        for sink in &sinks {
            if let Sink::Link(link) = sink {
                self.links[usize::from(*link)].from = number;
            }
        }
        self.stages.push(Stage { vertex, sources, matrix: matrix.into(), sinks });
    }

    /// Adds a stage that computes shares of a sum, and returns a link for each share of another party. `sum` has one
    /// column for each sub-block of `sources`.
    pub(crate) fn share_out(
        &mut self,
        vertex: u16,
        sources: Vec<Source>,
        sum: &Factored,
        shares: Vec<Share>,
    ) -> Vec<Option<u16>> {
        let (mut given, mut sinks, mut links) = (SparseMatrix::zero(0, sum.rows()), Vec::new(), Vec::new());
        for share in shares {
            given = given.stack(&share.rows);
            let link = share.sinks.is_none().then(|| self.link(share.rows.rows()));
            sinks.extend(link.map(Sink::Link));
            sinks.extend(share.sinks.unwrap_or_default());
            links.push(link);
        }
        self.stage(vertex, sources, sum.then(&given), sinks);
        links
    }

    /// Adds a stage that computes rows of a sum, and a stage for each requestor at another party. `sum` has one column
    /// for each sub-block of `sources`; a requestor at `vertex` needs no link.
    pub fn deliver(&mut self, vertex: u16, sources: Vec<Source>, sum: &Factored, requestors: &[Requestor]) {
        let all = SparseMatrix::identity(sum.rows());
        let shares = requestors.iter().map(|requestor| requestor.share(vertex, &all.select_rows(&requestor.rows))).collect();
        for (requestor, link) in requestors.iter().zip(self.share_out(vertex, sources, sum, shares)) {
            if let Some(link) = link {
                self.receive(requestor, vec![Source::Link(link)]);
            }
        }
    }

    /// Adds the stage of a requestor that receives its rows.
    pub(crate) fn receive(&mut self, requestor: &Requestor, sources: Vec<Source>) {
        self.stage(requestor.vertex, sources, requestor.spread.clone(), requestor.sinks.clone());
    }

    /// Finishes the lane.
    pub fn finish(&mut self, window: u32) -> Result<Lane> {
        let (stages, links) = (mem::take(&mut self.stages), mem::take(&mut self.links));
        if stages.len().max(links.len()) > usize::from(u16::MAX) {
            return Err(Error::invalid(format!("the lane has too many stages ({}) or links ({})", stages.len(), links.len())));
        }
        Ok(Lane { first: 0, step: 1, window, stages: stages.into(), links: links.into() })
    }
}
