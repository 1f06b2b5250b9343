//! Drops copies when data has cooled down: the shell around [`weft_control::cool`], which decides what to keep.

use crate::{pages::Stripes, shared::Shared, updates::settle};
use std::sync::Arc;
use weft_codes::SharedCode;
use weft_control::{cool, view::View};
use weft_meta::{MetaError, ObjectRecord};
use weft_proto::v1;
use weft_types::{Error, FailureDomain, ObjectName, PlacedBlock, Result, StripeRecord};

/// How often a stripe is read again if other tasks change it.
const TRIES_MAX: usize = 4;

/// Drops all copies of an object's blocks but one of each. Each stripe is one transaction; an interrupted call can be
/// repeated.
///
/// The dropped copies may be in any state, and their nodes may be down.
pub(crate) async fn cool(shared: &Arc<Shared>, name: &ObjectName) -> Result<v1::CoolReply> {
    // A node that has not returned yet may hold a block to keep.
    shared.until_nodes_are_back().await;
    let object = shared.meta.object(name).await.map_err(|error| shared.meta_error(error))?;
    let (_, policy) = shared.meta.bucket(&name.bucket).await.map_err(|error| shared.meta_error(error))?;
    let code = shared.code(&object.code)?;
    let failure_domain = policy.failure_domain;
    let mut cooling = Cooling { shared, object, code, failure_domain, stripes: 0, reply: v1::CoolReply::default() };
    match cooling.run().await {
        Ok(()) => {
            tracing::info!(object = %name, blocks = cooling.reply.blocks, bytes = cooling.reply.bytes, "dropped copies");
            Ok(cooling.reply)
        }
        Err(error) => Err(cooling.with_what_was_done(error).object(name)),
    }
}

/// An object whose copies are dropped.
struct Cooling<'a> {
    shared: &'a Arc<Shared>,
    object: ObjectRecord,
    code: SharedCode,
    failure_domain: FailureDomain,
    /// Stripes of which copies were dropped.
    stripes: u64,
    reply: v1::CoolReply,
}

impl Cooling<'_> {
    async fn run(&mut self) -> Result<()> {
        let shared = self.shared;
        let mut stripes = Stripes::of_object(shared, self.object.version, 0);
        while let Some(stripe) = stripes.next().await? {
            self.stripe(stripe).await?;
        }
        // If the object was replaced, its stripes no longer exist.
        let now = shared.meta.object(&self.object.name).await.map_err(|error| shared.meta_error(error))?;
        if now.version != self.object.version {
            return Err(Error::replan(
                "the object was replaced while its copies were dropped: the new version still has its copies",
            ));
        }
        Ok(())
    }

    async fn stripe(&mut self, mut stripe: StripeRecord) -> Result<()> {
        let (shared, id, mut tries) = (self.shared, stripe.id, 0);
        while !stripe.copies.is_empty() {
            if settle::if_open(shared, id).await? {
                stripe = shared.meta.stripe(id).await.map_err(|error| shared.meta_error(error))?;
            }
            let view = shared.members.view();
            let is_still_sent = shared.puts.late_blocks.has_stripe(id);
            let kept = cool::keep(&view, &stripe, &self.object.name, is_still_sent)?;
            let keep = kept.iter().map(|(index, placed)| stripe.id_of(*index, placed)).collect();
            match shared.meta.drop_copies(shared.epoch, id, keep, shared.garbage_not_before_ms()).await {
                Ok(_) => {
                    self.count(&stripe);
                    self.warn(&view, &stripe, &kept);
                    return Ok(());
                }
                // A repair committed first, or a block was found bad.
                Err(MetaError::Conflict(_)) if tries < TRIES_MAX => tries += 1,
                Err(error) => return Err(shared.meta_error(error)),
            }
            stripe = shared.meta.stripe(id).await.map_err(|error| shared.meta_error(error))?;
        }
        Ok(())
    }

    fn count(&mut self, stripe: &StripeRecord) {
        self.stripes += 1;
        self.reply.blocks += stripe.copies.len() as u64;
        let bytes = stripe.copies.iter().map(|(index, _)| stripe.layout.block_len((*index).into()));
        self.reply.bytes = self.reply.bytes.saturating_add(bytes.sum());
    }

    /// Reports racks that keep too many blocks.
    fn warn(&mut self, view: &View, stripe: &StripeRecord, kept: &[(u8, &PlacedBlock)]) {
        let name = &self.object.name;
        for warning in cool::warnings(view, kept, name, &self.code, self.failure_domain) {
            tracing::warn!(object = %name, stripe = stripe.number, "{warning}");
            if !self.reply.warnings.contains(&warning) {
                self.reply.warnings.push(warning);
            }
        }
    }

    /// The error of a stripe, with the number of blocks dropped before it.
    fn with_what_was_done(&self, error: Error) -> Error {
        let (blocks, stripes) = (self.reply.blocks, self.stripes);
        if blocks == 0 {
            return error;
        }
        Error { message: format!("{}; {blocks} blocks of {stripes} stripes were dropped before", error.message), ..error }
    }
}
