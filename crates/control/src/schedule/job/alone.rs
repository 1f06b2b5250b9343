//! Repairs that find their nodes alone: no schedule gives them any, but their number is limited by the links that they probably take.

use super::{
    super::{Assigning, Line, baseline},
    Cluster, Open, Scheduler,
};
use rand::RngCore;
use std::{collections::BTreeMap, mem};

impl Scheduler {
    /// For repairs that find their nodes alone: the links that each takes, as if its nodes were drawn at random. On average they carry as
    /// many streams as the actual ones. Empty for all others.
    pub fn likely_lines(&mut self, batch: &[Open], cluster: &Cluster<'_>, rng: &mut dyn RngCore) -> Vec<Vec<Line>> {
        if self.assigning != Assigning::Alone {
            return vec![Vec::new(); batch.len()];
        }
        let mut random = Self {
            assigning: Assigning::Random,
            prefer: self.prefer,
            scheme: self.scheme.clone(),
            carried: BTreeMap::new(),
            stamps: baseline::Stamps::default(),
            known: mem::take(&mut self.known),
            told: None,
        };
        let drawn = random.batch(batch, cluster, rng);
        self.known = random.known;
        drawn.into_iter().map(|it| it.map(|it| it.lines).unwrap_or_default()).collect()
    }
}
