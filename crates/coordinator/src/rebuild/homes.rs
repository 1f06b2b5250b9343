//! Where rebuilt blocks go.

use super::Rebuild;
use crate::placement;
use rand::{SeedableRng, rngs::StdRng};
use std::collections::BTreeSet;
use weft_meta::Home;
use weft_types::{Error, NodeId, Reaction, Result};

impl Rebuild<'_> {
    pub(super) fn choose_homes(&self) -> Result<Vec<Home>> {
        let Some(to) = self.to else { return self.place(self.lost.len(), &BTreeSet::new()) };
        let view = self.shared.members.view();
        let name = self.shared.members.name(to);
        let node = view.node(to).ok_or_else(|| Error::not_found(format!("there is no node {to}: `weft node ls` lists them")))?;
        if !node.up {
            return Err(Error::invalid(format!("{name} is down: nothing can be rebuilt there")));
        }
        if self.lost.len() > 1 {
            let count = self.lost.len();
            return Err(Error::invalid(format!(
                "{count} blocks of stripe {} are lost, and a node takes one",
                self.stripe.number
            )));
        }
        if let Some(index) = self.kept().find(|(_, node)| *node == to).map(|(index, _)| index) {
            let number = self.stripe.number;
            return Err(Error::invalid(format!("{name} holds block {index} of stripe {number} already, and a node takes one")));
        }
        let bytes = self.bytes_needed();
        let disk = placement::disk_for(node, bytes);
        let disk =
            disk.ok_or_else(|| Error::invalid(format!("no disk of {name} has {} left", weft_types::human_bytes(bytes))))?;
        Ok(vec![Home { node: to, disk: disk.number }])
    }

    pub(super) fn place(&self, count: usize, avoid: &BTreeSet<NodeId>) -> Result<Vec<Home>> {
        let view = self.shared.members.view();
        let held: Vec<NodeId> = self.kept().map(|(_, node)| node).collect();
        let spec = self.code.spec();
        // Elsewhere, if there is an elsewhere: else a node may get its own lost block back, in a new generation.
        let elsewhere: BTreeSet<NodeId> = avoid.iter().chain(&self.avoid).copied().chain(self.lost_nodes()).collect();
        let anywhere: BTreeSet<NodeId> = avoid.union(&self.avoid).copied().collect();
        let ask = placement::Ask {
            code: &spec,
            count,
            tolerance: self.code.tolerance(),
            failure_domain: self.failure_domain,
            held: &held,
            avoid: &elsewhere,
            bytes: self.bytes_needed(),
        };
        // Drawn from the stripe: what is explained is what is done, as long as the nodes are as they were.
        let mut rng = StdRng::seed_from_u64(self.stripe.id.0);
        let placed = placement::place(&view, &ask, &mut rng)
            .or_else(|_| placement::place(&view, &placement::Ask { avoid: &anywhere, ..ask }, &mut rng))
            .map_err(|error| Error { reaction: Reaction::Unavailable, ..error })
            .map_err(|error| self.shared.lacking_nodes(error).object(self.object))?;
        for warning in &placed.warnings {
            tracing::warn!(object = %self.object, stripe = %self.stripe.id, "{warning}");
        }
        Ok(placed.homes)
    }

    /// The blocks that stay, and where they are.
    fn kept(&self) -> impl Iterator<Item = (u8, NodeId)> + '_ {
        let blocks = (0..=u8::MAX).zip(&self.stripe.blocks);
        blocks.filter(|(index, _)| !self.is_lost(*index)).map(|(index, placed)| (index, placed.home.node))
    }

    fn lost_nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        let blocks = (0..=u8::MAX).zip(&self.stripe.blocks);
        blocks.filter(|(index, _)| self.is_lost(*index)).map(|(_, placed)| placed.home.node)
    }

    pub(super) fn is_lost(&self, index: u8) -> bool {
        self.lost.iter().any(|lost| lost.index == index)
    }

    fn bytes_needed(&self) -> u64 {
        self.stripe.layout.block_len(0).saturating_add(self.shared.config.disk_reserve.0)
    }
}
