//! Copies beside coded data (*Mist*, §3.3): for how long a data block has several. They spread the load of reads, and are gone when
//! the data have cooled down.

use crate::{
    rebuild::Lost,
    shared::Shared,
    view::{Standing, View},
};
use weft_meta::{BlockState, MetaError, ObjectName, PlacedBlock, PolicyRecord, REPLICAS_MAX, StripeRecord};
use weft_proto::v1;
use weft_types::{Error, Result};

/// Stripes that are looked at together.
const STRIPES_PER_PAGE: u32 = 256;
/// How often a stripe is looked at again that others are changing.
const TRIES_MAX: usize = 4;

/// A number of copies of a data block, with the coded one, as it is asked for; 0: one.
pub(crate) fn replicas(asked: u32) -> Result<u8> {
    let replicas = u8::try_from(asked.max(1)).ok().filter(|replicas| *replicas <= REPLICAS_MAX);
    replicas
        .ok_or_else(|| Error::invalid(format!("{asked} copies of each data block are too many: at most {REPLICAS_MAX} are kept")))
}

/// How many different nodes a stripe takes with so many copies of its data.
pub(crate) fn nodes_needed(k: usize, n: usize, replicas: u8) -> usize {
    n + k * usize::from(replicas.saturating_sub(1))
}

/// A code, as messages name it.
pub(crate) fn described(code: &str, replicas: u8) -> String {
    if replicas < 2 { code.to_owned() } else { format!("{code} with {replicas} copies of its data") }
}

impl Shared {
    /// What there is to say of a new policy: whether the cluster has the nodes that copies take.
    pub(crate) fn policy_warnings(&self, policy: &PolicyRecord) -> Result<Vec<String>> {
        let code = self.code(&policy.code)?;
        let (needed, nodes) = (nodes_needed(code.k(), code.n(), policy.replicas), self.members.view().nodes.len());
        if policy.replicas < 2 || needed <= nodes {
            return Ok(Vec::new());
        }
        let what = described(&policy.code, policy.replicas);
        Ok(vec![format!(
            "{what} puts the blocks of a stripe on {needed} different nodes, and the cluster has {nodes}: add nodes first"
        )])
    }
}

/// How many copies there shall be where somebody asks for them; 0: what the policy says.
pub(crate) fn asked_to_heat(asked: u32, policy: &PolicyRecord) -> Result<u8> {
    let replicas = if asked == 0 { policy.replicas } else { replicas(asked)? };
    if replicas < 2 {
        let name = &policy.name;
        let message = format!("the policy {name} keeps one copy of everything: say how many there shall be, 2 or more");
        return Err(Error::invalid(message));
    }
    Ok(replicas)
}

/// Of what a stripe has lost, the data; and the copies that it lacks, so that there are so many of each data block.
pub(crate) fn lacking(stripe: &StripeRecord, mut lost: Vec<Lost>, replicas: u8) -> Vec<Lost> {
    let data = u8::try_from(stripe.layout.k).unwrap_or(u8::MAX);
    lost.retain(|lost| lost.index < data);
    for index in 0..data {
        let has = stripe.all().filter(|(at, _)| *at == index).count();
        let free = (0..REPLICAS_MAX).filter(|copy| stripe.find(index, *copy).is_none());
        lost.extend(free.take(usize::from(replicas).saturating_sub(has)).map(|copy| Lost::of(stripe, index, copy)));
    }
    lost
}

/// Drops all copies of an object's blocks but one of each: the one that stands best. Stripe by stripe, each in one transaction;
/// who is interrupted begins again. Where a copy cannot be told to be good or bad, since its node is away, nothing is dropped: what
/// would be left might be the worse, and all of it in one rack.
pub(crate) async fn cool(shared: &Shared, name: &ObjectName) -> Result<v1::CoolReply> {
    // Who has not come back yet may have the only copy that can be read.
    shared.until_nodes_are_back().await;
    let object = shared.meta.object(name).await.map_err(|error| shared.meta_error(error))?;
    let (mut from, mut reply) = (0, v1::CoolReply::default());
    loop {
        let page = shared.meta.stripes(object.version, from, STRIPES_PER_PAGE).await.map_err(|error| shared.meta_error(error))?;
        for stripe in page.items {
            from = stripe.number.saturating_add(1);
            cool_stripe(shared, stripe, &mut reply).await.map_err(|error| error.object(name))?;
        }
        if !page.more {
            tracing::info!(object = %name, blocks = reply.blocks, bytes = reply.bytes, "copies were dropped");
            return Ok(reply);
        }
    }
}

/// Something that is recorded as good and cannot be read now, of a block that has several copies.
fn away<'a>(view: &View, stripe: &'a StripeRecord) -> Option<(u8, &'a PlacedBlock, &'static str)> {
    let several = |index: u8| stripe.all().filter(|(at, _)| *at == index).count() > 1;
    stripe.all().filter(|(index, placed)| placed.state == BlockState::Ok && several(*index)).find_map(
        |(index, placed)| match view.standing_of(stripe, index, placed) {
            Standing::Lost(why) => Some((index, placed, why)),
            Standing::Good | Standing::Suspect => None,
        },
    )
}

async fn cool_stripe(shared: &Shared, mut stripe: StripeRecord, reply: &mut v1::CoolReply) -> Result<()> {
    let mut tries = 0;
    while !stripe.copies.is_empty() {
        let id = stripe.id;
        let is_suspect = |block, _| shared.members.is_suspect_block(block);
        let view = shared.members.view();
        if let Some((index, placed, why)) = away(&view, &stripe) {
            let (node, number) = (shared.members.name(placed.home.node), stripe.number);
            let what = if placed.copy == 0 { format!("block {index}") } else { format!("copy {} of block {index}", placed.copy) };
            return Err(Error::unavailable(format!(
                "{what} of stripe {number} is on {node}, and {why}: nothing of the stripe is dropped before it is back, or rebuilt"
            )));
        }
        // Without lots: of equally good ones the first stays.
        let best = view.serving(stripe, is_suspect, |_| 0);
        let keep = (0..=u8::MAX).zip(&best.blocks).map(|(index, placed)| best.id_of(index, placed)).collect();
        match shared.meta.drop_copies(shared.epoch, id, keep, shared.garbage_not_before_ms()).await {
            Ok(_) => {
                reply.blocks += best.copies.len() as u64;
                let bytes = best.copies.iter().map(|(index, _)| best.layout.block_len((*index).into()));
                reply.bytes = reply.bytes.saturating_add(bytes.sum());
                return Ok(());
            }
            // A repair was faster.
            Err(MetaError::Conflict(_)) if tries < TRIES_MAX => tries += 1,
            Err(error) => return Err(shared.meta_error(error)),
        }
        stripe = shared.meta.stripe(id).await.map_err(|error| shared.meta_error(error))?;
    }
    Ok(())
}
