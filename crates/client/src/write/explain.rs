//! What a write would do.

use super::target::Target;
use weft_proto::v1::{ExplainUpdateRequest, ExplainedUpdate, ObjectReply, UpdateWay};
use weft_types::{Span, StripeId};

/// What a write would do.
#[derive(Debug, Clone)]
pub struct WritePlan {
    /// The object.
    pub object: ObjectReply,
    /// Its bytes that would be written.
    pub bytes: Span,
    /// The stripes with these bytes.
    pub stripes: Vec<PlannedStripe>,
}

/// What a write would do in one stripe.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedStripe {
    /// Its number in the object, from 0.
    pub number: u64,
    /// The stripe.
    pub stripe: StripeId,
    /// The bytes of the object in it that would be written.
    pub bytes: Span,
    /// The updates, each of which is atomic.
    pub updates: u64,
    /// The bytes of the longest of them.
    pub longest: u64,
    /// The data blocks that would change, in the order of their indexes.
    pub blocks: Vec<PlannedBlock>,
    /// How the deltas of the longest update would travel: for each block whose node leads updates.
    pub ways: Vec<ExplainedUpdate>,
}

/// What a write would do in one data block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedBlock {
    /// Its index.
    pub index: u8,
    /// Its bytes that would be written.
    pub bytes: Span,
    /// Whether its node leads some of the updates.
    pub leads: bool,
    /// The bytes of it that its own node does not get from the client, but from the node that leads the update.
    pub forwarded_bytes: u64,
}

impl WritePlan {
    pub(super) fn new(object: ObjectReply, target: &Target, bytes: Span, update_bytes: u64) -> Self {
        let mut stripes: Vec<PlannedStripe> = Vec::new();
        let mut left = bytes;
        while !left.is_empty() {
            let Ok((slot, update)) = target.first_update(left, update_bytes) else { break };
            let (layout, offset) = (slot.stripe.layout, slot.stripe.offset);
            left.start = update.end;
            if stripes.last().is_none_or(|last| last.number != slot.stripe.number) {
                let (number, stripe) = (slot.stripe.number, slot.stripe.id);
                stripes.push(PlannedStripe {
                    number,
                    stripe,
                    bytes: Span::new(update.start, update.start),
                    updates: 0,
                    longest: 0,
                    blocks: Vec::new(),
                    ways: Vec::new(),
                });
            }
            let Some(planned) = stripes.last_mut() else { break };
            planned.updates += 1;
            planned.longest = planned.longest.max(update.len());
            planned.bytes.end = update.end;
            let ranges = layout.data_ranges(Span::new(update.start - offset, update.end - offset));
            for (at, (index, bytes)) in ranges.enumerate() {
                planned.add(index as u8, bytes, if at == 0 { 0 } else { bytes.len() });
            }
        }
        Self { object, bytes, stripes }
    }

    /// The questions how the changes would travel, one for each stripe.
    pub(super) fn asked(&self, way: &UpdateWay) -> impl Iterator<Item = ExplainUpdateRequest> {
        let ObjectReply { bucket, key, version, .. } = &self.object;
        self.stripes.iter().map(move |stripe| ExplainUpdateRequest {
            bucket: bucket.clone(),
            key: key.clone(),
            version: *version,
            number: stripe.number,
            way: Some(way.clone()),
            bytes: stripe.longest,
            indexes: stripe.blocks.iter().filter(|block| block.leads).map(|block| block.index.into()).collect(),
        })
    }

    /// The number of updates.
    pub fn updates(&self) -> u64 {
        self.stripes.iter().map(|stripe| stripe.updates).sum()
    }
}

impl PlannedStripe {
    fn add(&mut self, index: u8, bytes: Span, forwarded_bytes: u64) {
        match self.blocks.iter_mut().find(|block| block.index == index) {
            Some(block) => {
                block.leads |= forwarded_bytes == 0;
                block.bytes = Span::new(block.bytes.start.min(bytes.start), block.bytes.end.max(bytes.end));
                block.forwarded_bytes += forwarded_bytes;
            }
            None => {
                self.blocks.push(PlannedBlock { index, bytes, leads: forwarded_bytes == 0, forwarded_bytes });
                self.blocks.sort_by_key(|block| block.index);
            }
        }
    }
}
