//! Building one lane: stages are added one by one, and links find their ends by being used.

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
    /// What it delivers and stores.
    pub sinks: Vec<Sink>,
    /// What goes to the sinks: one row for each sub-block of them, one column for each of `rows`.
    pub spread: SparseMatrix,
}

/// Somebody's share of a sum.
#[derive(Debug)]
pub(crate) struct Share {
    /// What it is made of: one column for each row of the sum.
    pub(crate) rows: SparseMatrix,
    /// Where it goes, if it does not go over a link.
    pub(crate) sinks: Option<Vec<Sink>>,
}

impl Requestor {
    /// Its share of a sum of which it wants `rows`, at a stage of that vertex.
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
        // The number of links is checked when the lane is finished: until then a wrapped number does no harm.
        self.links.push(Link { from: u16::MAX, to: u16::MAX, width: width as u32, rank: 0 });
        (self.links.len() - 1) as u16
    }

    /// Says which rank each link has, by its number.
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

    /// Adds a stage that makes shares of a sum, and gives the link of each share that is somebody else's.
    /// `sum` has one column for each sub-block of `sources`.
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

    /// Adds a stage that makes rows of a sum, and a stage for each requestor that is somewhere else.
    /// `sum` has one column for each sub-block of `sources`; a requestor that is at `vertex` itself needs no link.
    pub fn deliver(&mut self, vertex: u16, sources: Vec<Source>, sum: &Factored, requestors: &[Requestor]) {
        let all = SparseMatrix::identity(sum.rows());
        let shares = requestors.iter().map(|requestor| requestor.share(vertex, &all.select_rows(&requestor.rows))).collect();
        for (requestor, link) in requestors.iter().zip(self.share_out(vertex, sources, sum, shares)) {
            if let Some(link) = link {
                self.receive(requestor, vec![Source::Link(link)]);
            }
        }
    }

    /// Adds the stage of a requestor that gets its rows.
    pub(crate) fn receive(&mut self, requestor: &Requestor, sources: Vec<Source>) {
        self.stage(requestor.vertex, sources, requestor.spread.clone(), requestor.sinks.clone());
    }

    /// The lane.
    pub fn finish(&mut self, window: u32) -> Result<Lane> {
        let (stages, links) = (mem::take(&mut self.stages), mem::take(&mut self.links));
        if stages.len().max(links.len()) > usize::from(u16::MAX) {
            return Err(Error::invalid(format!("a lane of {} stages and {} links is too large", stages.len(), links.len())));
        }
        Ok(Lane { first: 0, step: 1, window, stages: stages.into(), links: links.into() })
    }
}
