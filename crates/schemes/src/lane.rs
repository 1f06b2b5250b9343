//! Building one lane: stages are added one by one, and links find their ends by being used.

use std::mem;
use weft_gf::{Factored, SparseMatrix};
use weft_plan::{Lane, Link, Sink, Source, Stage};
use weft_types::{Error, Result, Span};

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

    /// Adds a stage that makes rows of a sum, and a stage for each requestor that is somewhere else.
    /// `sum` has one column for each sub-block of `sources`; a requestor that is at `vertex` itself needs no link.
    pub fn deliver(&mut self, vertex: u16, sources: Vec<Source>, sum: &Factored, requestors: &[Requestor]) {
        let mut given = SparseMatrix::zero(0, sum.rows());
        let all = SparseMatrix::identity(sum.rows());
        let (mut sinks, mut others) = (Vec::new(), Vec::new());
        for requestor in requestors {
            let rows = all.select_rows(&requestor.rows);
            if requestor.vertex == vertex {
                given = given.stack(&requestor.spread.times_sparse(&rows));
                sinks.extend(requestor.sinks.iter().cloned());
            } else {
                let link = self.link(rows.rows());
                given = given.stack(&rows);
                sinks.push(Sink::Link(link));
                others.push((requestor, link));
            }
        }
        self.stage(vertex, sources, sum.then(&given), sinks);
        for (requestor, link) in others {
            self.stage(requestor.vertex, vec![Source::Link(link)], requestor.spread.clone(), requestor.sinks.clone());
        }
    }

    /// The lane.
    pub fn finish(&mut self, span: Span, window: u32) -> Result<Lane> {
        let (stages, links) = (mem::take(&mut self.stages), mem::take(&mut self.links));
        if stages.len().max(links.len()) > usize::from(u16::MAX) {
            return Err(Error::invalid(format!("a lane of {} stages and {} links is too large", stages.len(), links.len())));
        }
        Ok(Lane { span, first: 0, step: 1, window, stages, links })
    }
}
