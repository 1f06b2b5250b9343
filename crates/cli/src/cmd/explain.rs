//! `--explain`: a plan, shown and not run.

use crate::{
    exit::Exit,
    output::{Output, print},
};
use weft_plan::{Job, Network, Plan};
use weft_types::Result;

/// Shows a plan: as text (with times, if a network is given), or with `--json` as it is saved.
pub(super) fn show(plan: &Plan, job: &Job, network: Option<&Network>, output: Output) -> Result<Exit> {
    let text = if output.json { weft_plan::to_json(plan, job)? } else { weft_plan::explain(plan, network)? };
    print(&text).map(|()| Exit::Ok)
}
