//! The transactions of updates in place, by the interface's names.

use super::{SqliteMeta, blocks, terms};
use crate::{AdoptStripe, Bad, Marked, OpenStripe, Page, Result, SettleStripe, TermRecord, UpdateMeta};
use async_trait::async_trait;
use weft_types::{BlockId, Epoch, Seq, StripeId, StripeRecord};
use weft_update::StripeTerm;

#[async_trait]
impl UpdateMeta for SqliteMeta {
    async fn stripe_term(&self, stripe: StripeId) -> Result<Option<TermRecord>> {
        self.read(move |tx| terms::find(tx, stripe)).await
    }

    async fn stripe_terms(&self, after: Option<StripeId>, limit: u32) -> Result<Page<TermRecord>> {
        self.read(move |tx| terms::list(tx, after, limit)).await
    }

    async fn open_stripe(&self, epoch: Epoch, open: OpenStripe) -> Result<TermRecord> {
        self.write(epoch, move |tx| terms::begin(tx, open)).await
    }

    async fn mark_open(&self, epoch: Epoch, stripe: StripeId, term: u64) -> Result<()> {
        self.write(epoch, move |tx| terms::mark_open(tx, stripe, term)).await
    }

    async fn cancel_opening(&self, epoch: Epoch, stripe: StripeId, term: u64, now_ms: u64) -> Result<()> {
        self.write(epoch, move |tx| terms::cancel(tx, stripe, term, now_ms)).await
    }

    async fn save_term(
        &self,
        epoch: Epoch,
        stripe: StripeId,
        before: StripeTerm,
        term: StripeTerm,
        garbage_not_before_ms: u64,
    ) -> Result<()> {
        self.write(epoch, move |tx| terms::save(tx, stripe, &before, term, garbage_not_before_ms)).await
    }

    async fn settle_stripe(&self, epoch: Epoch, settle: SettleStripe) -> Result<StripeRecord> {
        self.write(epoch, move |tx| terms::end(tx, settle)).await
    }

    async fn adopt_stripe(&self, epoch: Epoch, adopt: AdoptStripe) -> Result<()> {
        self.write(epoch, move |tx| terms::adopt(tx, adopt)).await
    }

    async fn blocks_closed(&self, epoch: Epoch, stripe: StripeId, term: u64, blocks: Vec<BlockId>) -> Result<bool> {
        self.write(epoch, move |tx| terms::closed(tx, stripe, term, &blocks)).await
    }

    async fn forget_kept(&self, epoch: Epoch, stripe: StripeId, term: u64, index: u8) -> Result<bool> {
        self.write(epoch, move |tx| blocks::forget_kept(tx, stripe, term, index)).await
    }

    async fn mark_found(&self, epoch: Epoch, block: BlockId, bad: Bad, planned: Option<Seq>) -> Result<Marked> {
        self.write(epoch, move |tx| blocks::mark_found(tx, block, bad, planned.as_ref())).await
    }

    async fn forget_terms(&self, epoch: Epoch, settled_ms: u64) -> Result<u64> {
        self.write(epoch, move |tx| terms::forget_closed(tx, settled_ms)).await
    }
}
