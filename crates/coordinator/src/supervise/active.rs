//! Which links run at each node, over all plans.

use crate::{shared::Shared, sign::SignedTask};
use std::{collections::BTreeMap, sync::Arc};
use weft_control::run::Ends;
use weft_types::NodeId;

/// The links of a plan count as running until this is dropped.
pub(super) struct Active {
    shared: Arc<Shared>,
    ends: Vec<(NodeId, Ends)>,
}

impl Active {
    /// For a plan with these tasks.
    pub(super) fn begin(shared: &Arc<Shared>, tasks: &BTreeMap<NodeId, SignedTask>) -> Self {
        let ends: Vec<(NodeId, Ends)> = tasks.iter().map(|(node, task)| (*node, task.ends)).collect();
        let mut activity = shared.activity();
        ends.iter().for_each(|(node, ends)| activity.begin(*node, *ends));
        drop(activity);
        Self { shared: Arc::clone(shared), ends }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        let mut activity = self.shared.activity();
        self.ends.iter().for_each(|(node, ends)| activity.end(*node, *ends));
    }
}
