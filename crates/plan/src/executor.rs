//! The reference executor: runs one slice through one lane. The caller supplies inputs and outputs: bytes in
//! [`crate::eval()`], rows of the generator in [`crate::verify()`]. So what is verified is what runs.

use crate::{Lane, Place, Plan, Refusal, Rule, Sink, Source, limits};
use weft_gf::{Combination, Factored};

/// The inputs and outputs of stages other than links. Rows are consecutive, each of `row_len` bytes.
pub(crate) trait Ends {
    /// The caller's error type.
    type Error;
    /// Fills `rows` from a source.
    fn read(&mut self, stage: usize, source: &Source, row_len: usize, rows: &mut [u8]) -> Result<(), Self::Error>;
    /// Takes the rows of a sink.
    fn emit(&mut self, stage: usize, sink: &Sink, row_len: usize, rows: &[u8]) -> Result<(), Self::Error>;
    /// Observes all inputs of a stage.
    fn observe(&mut self, _stage: usize, _sources: &[Vec<u8>]) {}
}

/// A lane that is ready to run.
pub(crate) struct Executor<'a> {
    lane: &'a Lane,
    order: Vec<usize>,
    kernels: Vec<Combination>,
    wires: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl<'a> Executor<'a> {
    /// Checks what running the lane relies on, and prepares it.
    pub(crate) fn new(plan: &'a Plan, number: usize) -> Result<Self, Refusal> {
        let lane = &plan.shape.lanes[number];
        let order = check_lane(plan, number)?;
        let kernels = lane.stages.iter().map(|stage| Combination::factored(&stage.matrix)).collect();
        Ok(Self { lane, order, kernels, wires: vec![Vec::new(); lane.links.len()], spare: Vec::new() })
    }

    /// The stages in an order in which each comes after those that it receives from.
    pub(crate) fn order(&self) -> &[usize] {
        &self.order
    }

    /// Runs one slice of `row_len` positions.
    pub(crate) fn run<E: Ends>(&mut self, row_len: usize, ends: &mut E) -> Result<(), E::Error> {
        if row_len == 0 {
            return Ok(());
        }
        for at in 0..self.order.len() {
            let number = self.order[at];
            let stage = &self.lane.stages[number];
            let mut sources = Vec::with_capacity(stage.sources.len());
            for source in &stage.sources {
                sources.push(match source {
                    Source::Link(link) => std::mem::take(&mut self.wires[usize::from(*link)]),
                    _ => {
                        let mut rows = self.buffer(self.lane.source_width(source) * row_len);
                        ends.read(number, source, row_len, &mut rows)?;
                        rows
                    }
                });
            }
            ends.observe(number, &sources);
            let mut sinks: Vec<Vec<u8>> =
                stage.sinks.iter().map(|sink| self.buffer(self.lane.sink_width(sink) * row_len)).collect();
            let src: Vec<&[u8]> = sources.iter().flat_map(|rows| rows.chunks_exact(row_len)).collect();
            let mut dst: Vec<&mut [u8]> = sinks.iter_mut().flat_map(|rows| rows.chunks_exact_mut(row_len)).collect();
            self.kernels[number].apply(&src, &mut dst);
            self.spare.extend(sources);
            for (sink, rows) in stage.sinks.iter().zip(sinks) {
                if let Sink::Link(link) = sink {
                    self.wires[usize::from(*link)] = rows;
                } else {
                    ends.emit(number, sink, row_len, &rows)?;
                    self.spare.push(rows);
                }
            }
        }
        Ok(())
    }

    fn buffer(&mut self, len: usize) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.resize(len, 0);
        buffer
    }
}

/// Checks what running a lane relies on: ends of links, widths, matrices, no cycle. Returns the stages in topological
/// order.
pub(crate) fn check_lane(plan: &Plan, number: usize) -> Result<Vec<usize>, Refusal> {
    let lane = &plan.shape.lanes[number];
    let in_lane = |rule, message: String| Refusal::new(rule, message).at(Place::lane(number));
    if lane.stages.is_empty() {
        return Err(in_lane(Rule::Lane, "no stage".into()));
    }
    for (at, link) in lane.links.iter().enumerate() {
        let (Some(from), Some(to)) = (lane.stages.get(usize::from(link.from)), lane.stages.get(usize::from(link.to))) else {
            return Err(in_lane(Rule::Links, format!("link {at} begins or ends at a stage that does not exist")));
        };
        if from.vertex == to.vertex {
            return Err(in_lane(Rule::Links, format!("link {at} goes from a party to itself")));
        }
        if link.width == 0 || link.width as usize > limits::PORT_WIDTH_MAX {
            let message = format!("link {at} carries {} sub-blocks; 1 to {} are possible", link.width, limits::PORT_WIDTH_MAX);
            return Err(in_lane(Rule::Shape, message));
        }
    }
    check_links(plan, number)?;
    for (at, stage) in lane.stages.iter().enumerate() {
        let rows = stage.sinks.iter().map(|sink| lane.sink_width(sink)).sum();
        let cols = stage.sources.iter().map(|source| lane.source_width(source)).sum();
        check_matrix(&stage.matrix, rows, cols)
            .map_err(|message| Refusal::new(Rule::Shape, message).at(Place::stage(plan, number, at)))?;
    }
    order(lane).ok_or_else(|| in_lane(Rule::Cycle, "its links form a cycle".into()))
}

/// Checks that a matrix has the shape of its stage's ports, and is not empty.
pub(crate) fn check_matrix(matrix: &Factored, rows: usize, cols: usize) -> Result<(), String> {
    if rows == 0 || cols == 0 {
        return Err(format!("the stage has no {}", if rows == 0 { "sink" } else { "source" }));
    }
    if (matrix.rows(), matrix.cols()) != (rows, cols) {
        let (is_rows, is_cols) = (matrix.rows(), matrix.cols());
        return Err(format!(
            "the matrix is {is_rows}×{is_cols}, but the stage's sinks take {rows} sub-blocks and its sources give {cols}"
        ));
    }
    Ok(())
}

/// Checks that every link is used once as a sink, where it begins, and once as a source, where it ends.
fn check_links(plan: &Plan, number: usize) -> Result<(), Refusal> {
    let lane = &plan.shape.lanes[number];
    let (mut begun, mut ended) = (vec![0u32; lane.links.len()], vec![0u32; lane.links.len()]);
    for (at, stage) in lane.stages.iter().enumerate() {
        let wrong = |link: u16, what: &str| {
            Refusal::new(Rule::Links, format!("link {link} {what} there")).at(Place::stage(plan, number, at))
        };
        for source in &stage.sources {
            let Source::Link(link) = source else { continue };
            let end = lane.links.get(usize::from(*link)).ok_or_else(|| wrong(*link, "is received, but does not exist:"))?;
            if usize::from(end.to) != at {
                return Err(wrong(*link, "is received, but does not end"));
            }
            ended[usize::from(*link)] += 1;
        }
        for sink in &stage.sinks {
            let Sink::Link(link) = sink else { continue };
            let end = lane.links.get(usize::from(*link)).ok_or_else(|| wrong(*link, "is sent, but does not exist:"))?;
            if usize::from(end.from) != at {
                return Err(wrong(*link, "is sent, but does not begin"));
            }
            begun[usize::from(*link)] += 1;
        }
    }
    for (at, link) in lane.links.iter().enumerate() {
        for (count, stage, what) in [(begun[at], link.from, "sent"), (ended[at], link.to, "received")] {
            if count != 1 {
                let message = format!("link {at} is {what} {count} times; it must be once");
                return Err(Refusal::new(Rule::Links, message).at(Place::stage(plan, number, usize::from(stage))));
            }
        }
    }
    Ok(())
}

/// The stages in topological order, the lowest number first; `None` if there is a cycle. The ends of links must exist.
fn order(lane: &Lane) -> Option<Vec<usize>> {
    let mut waits = vec![0usize; lane.stages.len()];
    let mut next = vec![Vec::new(); lane.stages.len()];
    for link in &lane.links {
        waits[usize::from(link.to)] += 1;
        next[usize::from(link.from)].push(usize::from(link.to));
    }
    let mut ready: std::collections::BTreeSet<usize> = (0..waits.len()).filter(|stage| waits[*stage] == 0).collect();
    let mut order = Vec::with_capacity(waits.len());
    while let Some(stage) = ready.pop_first() {
        order.push(stage);
        for to in &next[stage] {
            waits[*to] -= 1;
            if waits[*to] == 0 {
                ready.insert(*to);
            }
        }
    }
    (order.len() == waits.len()).then_some(order)
}
