//! Metadata records of one kind, in order: the shell around [`weft_control::walk`], which looks up a page at a time.

use crate::shared::Shared;
use std::collections::VecDeque;
use weft_control::{node_repair::Block, walk::Walk};
use weft_meta::Page;
use weft_types::{Home, Owner, Result, StripeId, StripeRecord, UploadId};

/// Stripes that are looked up together.
pub(crate) const STRIPES_PER_PAGE: u32 = 256;

/// A walk, and the items of the current page.
#[derive(Debug)]
pub(crate) struct Pages<K, T> {
    walk: Walk<K, T>,
    page: VecDeque<T>,
}

impl<K: Clone, T> Pages<K, T> {
    /// See [`Walk::new`].
    pub(crate) fn new(first: K, behind: fn(&T) -> K) -> Self {
        Self { walk: Walk::new(first, behind), page: VecDeque::new() }
    }

    /// The next item; `look_up` reads the page that begins at a key.
    pub(crate) async fn next<F, E>(&mut self, look_up: impl FnOnce(K) -> F) -> Result<Option<T>, E>
    where
        F: Future<Output = Result<Page<T>, E>>,
    {
        if self.page.is_empty()
            && let Some(from) = self.walk.next()
        {
            let page = look_up(from).await?;
            self.walk.came(&page.items, page.more);
            self.page = page.items.into();
        }
        Ok(self.page.pop_front())
    }
}

/// Stripes of an object or a put, by number.
pub(crate) struct Stripes<'a> {
    shared: &'a Shared,
    of: Of,
    pages: Pages<u64, StripeRecord>,
}

#[derive(Debug, Clone, Copy)]
enum Of {
    Object(UploadId),
    Incomplete(Owner),
}

impl<'a> Stripes<'a> {
    /// The stripes of an object's version, from `from` on.
    pub(crate) fn of_object(shared: &'a Shared, version: UploadId, from: u64) -> Self {
        Self::new(shared, Of::Object(version), from)
    }

    /// The incomplete stripes of an object or a running put.
    pub(crate) fn incomplete(shared: &'a Shared, owner: Owner) -> Self {
        Self::new(shared, Of::Incomplete(owner), 0)
    }

    fn new(shared: &'a Shared, of: Of, from: u64) -> Self {
        Self { shared, of, pages: Pages::new(from, |stripe| stripe.number.saturating_add(1)) }
    }

    /// The next stripe.
    pub(crate) async fn next(&mut self) -> Result<Option<StripeRecord>> {
        let (meta, of) = (&self.shared.meta, self.of);
        let look_up = |from| match of {
            Of::Object(version) => meta.stripes(version, from, STRIPES_PER_PAGE),
            Of::Incomplete(owner) => meta.incomplete_of(owner, from, STRIPES_PER_PAGE),
        };
        self.pages.next(look_up).await.map_err(|error| self.shared.meta_error(error))
    }
}

/// The blocks on disks, disk by disk.
pub(crate) struct BlocksOn<'a> {
    shared: &'a Shared,
    /// The last disk is the current one.
    homes: Vec<Home>,
    stripes: Pages<Option<StripeId>, StripeRecord>,
    /// The most that are still returned.
    left: usize,
}

impl<'a> BlocksOn<'a> {
    /// At most `blocks_max` blocks on these disks.
    pub(crate) fn new(shared: &'a Shared, homes: Vec<Home>, blocks_max: usize) -> Self {
        Self { shared, homes, stripes: stripes_on_a_disk(), left: blocks_max }
    }

    /// The next block, and its stripe.
    pub(crate) async fn next(&mut self) -> Result<Option<(StripeRecord, Block)>> {
        while self.left > 0
            && let Some(home) = self.homes.last().copied()
        {
            let stripe = self.stripes.next(|after| self.shared.meta.stripes_on(home, after, STRIPES_PER_PAGE)).await;
            let Some(stripe) = stripe.map_err(|error| self.shared.meta_error(error))? else {
                self.homes.pop();
                self.stripes = stripes_on_a_disk();
                continue;
            };
            if let Some(block) = Block::on(&stripe, home) {
                self.left -= 1;
                return Ok(Some((stripe, block)));
            }
        }
        Ok(None)
    }

    /// Whether there may be more than it returned.
    pub(crate) fn is_cut(&self) -> bool {
        self.left == 0 && !self.homes.is_empty()
    }
}

fn stripes_on_a_disk() -> Pages<Option<StripeId>, StripeRecord> {
    Pages::new(None, |stripe| Some(stripe.id))
}
