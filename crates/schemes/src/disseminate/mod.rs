//! Writes of new data: the writer has data blocks, and nodes store what the code makes of them.

mod direct;

use crate::{
    LaneBuilder, Request, Requestor,
    region::{self, Delivery, Region},
    request::Vertices,
};
use weft_codes::SubBlock;
use weft_gf::Factored;
use weft_plan::{Lane, Plan, Source};
use weft_types::{Error, Party, Result};

/// Every scheme for writes, in the order in which they are shown.
pub const SCHEMES: &[&dyn WriteScheme] = &[&direct::Direct];

/// A way to bring new blocks to the nodes that store them.
pub trait WriteScheme: std::fmt::Debug + Sync {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// What it does, in a line.
    fn summary(&self) -> &'static str;

    /// Adds the stages that bring every receiver its rows.
    fn build(&self, write: &Write, lane: &mut LaneBuilder);
}

/// What a scheme is given: what the writer has, what that makes, and who needs it.
#[derive(Debug)]
pub struct Write {
    /// The writer's vertex.
    pub writer: u16,
    /// The data that it puts in.
    pub inputs: Vec<Source>,
    /// One row for each sub-block that somebody stores, one column for each that is put in.
    pub rows: Factored,
    /// Who stores which rows.
    pub receivers: Vec<Requestor>,
}

/// The scheme of that name.
pub fn by_name(name: &str) -> Result<&'static dyn WriteScheme> {
    let known = || SCHEMES.iter().map(|scheme| scheme.name()).collect::<Vec<_>>().join(", ");
    let found = SCHEMES.iter().copied().find(|scheme| scheme.name() == name);
    found.ok_or_else(|| Error::invalid(format!("there is no write scheme '{name}'; there are: {}", known())))
}

/// A plan for a job that wants blocks of new data stored. All inputs are one party's.
pub fn plan_write(request: &Request<'_>, scheme: &dyn WriteScheme) -> Result<Plan> {
    request.check()?;
    let writer = request.job.inputs.first().ok_or_else(|| Error::invalid("nobody puts in any data"))?.party;
    if let Some(other) = request.job.inputs.iter().find(|input| input.party != writer) {
        return Err(Error::invalid("all new data must come from one writer").party(other.party));
    }
    let (mut vertices, mut lanes) = (Vertices::default(), Vec::new());
    for region in region::cut(request.job, request.prefer)? {
        lanes.push(vec![lane(request, scheme, writer, &region, &mut vertices)?]);
    }
    request.plan(vertices, lanes)
}

fn lane(
    request: &Request<'_>,
    scheme: &dyn WriteScheme,
    writer: Party,
    region: &Region,
    vertices: &mut Vertices,
) -> Result<Lane> {
    let deliveries: Vec<&Delivery> = region.deliveries.iter().collect();
    let wanted = region::wanted(&deliveries);
    let (inputs, rows) = rows(request, &wanted)?;
    let writer = vertices.of(writer)?;
    let receivers = region::requestors(&deliveries, &wanted, vertices)?;
    let mut lane = LaneBuilder::default();
    scheme.build(&Write { writer, inputs, rows, receivers }, &mut lane);
    lane.finish(region.span, request.run.window)
}

/// What is wanted of the data and of the parities that it makes, over those data sub-blocks that it needs, which must be put in.
fn rows(request: &Request<'_>, wanted: &[SubBlock]) -> Result<(Vec<Source>, Factored)> {
    let alpha = request.code.alpha();
    let rows: Vec<usize> = wanted.iter().map(|row| usize::from(row.index) * alpha + usize::from(row.sub_block)).collect();
    let rows = request.code.encode().after_sources().select_rows(&rows);
    let cols = rows.sources_used();
    let mut inputs: Vec<Source> = Vec::new();
    for col in &cols {
        let (needed, sub_block) = ((col / alpha) as u8, (col % alpha) as u16);
        match inputs.last_mut() {
            Some(Source::Input { index, sub_blocks, .. }) if *index == needed => sub_blocks.push(sub_block),
            _ => inputs.push(Source::Input { index: needed, sub_blocks: vec![sub_block], delta: false }),
        }
        if !request.job.inputs.iter().any(|input| input.index == needed) {
            return Err(Error::invalid(format!("data block {needed} is needed and not put in")));
        }
    }
    Ok((inputs, rows.select_cols(&cols)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_unknown_scheme_is_told_which_there_are() {
        assert_eq!(super::by_name("direct").unwrap().name(), "direct");
        assert_eq!(super::by_name("x").unwrap_err().to_string(), "there is no write scheme 'x'; there are: direct");
    }
}
