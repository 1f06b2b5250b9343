//! The stripes that a scrub checks, in order, from a place on.

use crate::{
    pages::{Pages, STRIPES_PER_PAGE, Stripes},
    shared::Shared,
};
use weft_meta::{MetaError, ObjectRecord};
use weft_types::{Home, NodeId, ObjectName, Result, Scrub, ScrubPlace, StripeId, StripeRecord};

/// Objects that are looked up together.
const OBJECTS_PER_PAGE: u32 = 256;

/// A stripe, and the place behind it.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) stripe: StripeId,
    pub(crate) behind: ScrubPlace,
    /// Its blocks: where each is, and its length.
    pub(crate) blocks: Vec<(Home, u64)>,
}

impl Item {
    pub(crate) fn new(stripe: &StripeRecord, behind: ScrubPlace) -> Self {
        let block = |(index, placed): (u8, &weft_types::PlacedBlock)| (placed.home, stripe.layout.block_len(index.into()));
        Self { stripe: stripe.id, behind, blocks: stripe.all().map(block).collect() }
    }

    /// The bytes of all its blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// A walk over stripes.
pub(crate) struct Walk<'a> {
    shared: &'a Shared,
    of: Of<'a>,
}

enum Of<'a> {
    /// All stripes by their numbers, the longest stored first; of a node, those with a block there.
    All(Pages<Option<StripeId>, StripeRecord>, Option<NodeId>),
    Objects(Objects<'a>),
}

/// The stripes of objects of a bucket.
struct Objects<'a> {
    bucket: String,
    /// The object that comes first, and the number of its first stripe.
    first: Option<(String, u64)>,
    /// Whether others follow it.
    all: bool,
    pages: Pages<String, ObjectRecord>,
    now: Option<(String, Stripes<'a>)>,
}

impl<'a> Walk<'a> {
    /// From a place on.
    pub(crate) fn new(shared: &'a Shared, scrub: &Scrub, place: &ScrubPlace) -> Self {
        let Some(bucket) = &scrub.bucket else {
            let after = (place.stripe > 0).then_some(StripeId(place.stripe));
            return Self { shared, of: Of::All(Pages::new(after, |stripe| Some(stripe.id)), scrub.node) };
        };
        let first = match &scrub.key {
            Some(key) => Some((key.clone(), place.stripe)),
            None => Some((place.key.clone(), place.stripe)).filter(|(key, _)| !key.is_empty()),
        };
        let pages = Pages::new(place.key.clone(), |object: &ObjectRecord| object.name.key.clone());
        Self { shared, of: Of::Objects(Objects { bucket: bucket.clone(), first, all: scrub.key.is_none(), pages, now: None }) }
    }

    /// The next stripe.
    pub(crate) async fn next(&mut self) -> Result<Option<Item>> {
        match &mut self.of {
            Of::Objects(objects) => objects.next(self.shared).await,
            Of::All(pages, node) => loop {
                let meta = &self.shared.meta;
                let next = pages.next(|after| meta.object_stripes(after, STRIPES_PER_PAGE)).await;
                let Some(stripe) = next.map_err(|error| self.shared.meta_error(error))? else { return Ok(None) };
                if node.is_none_or(|node| stripe.all().any(|(_, placed)| placed.home.node == node)) {
                    let behind = ScrubPlace { key: String::new(), stripe: stripe.id.0 };
                    return Ok(Some(Item::new(&stripe, behind)));
                }
            },
        }
    }
}

impl<'a> Objects<'a> {
    async fn next(&mut self, shared: &'a Shared) -> Result<Option<Item>> {
        loop {
            if let Some((key, stripes)) = &mut self.now
                && let Some(stripe) = stripes.next().await?
            {
                let behind = ScrubPlace { key: key.clone(), stripe: stripe.number.saturating_add(1) };
                return Ok(Some(Item::new(&stripe, behind)));
            }
            self.now = None;
            let Some((object, from)) = self.next_object(shared).await.map_err(|error| shared.meta_error(error))? else {
                return Ok(None);
            };
            self.now = Some((object.name.key, Stripes::of_object(shared, object.version, from)));
        }
    }

    /// The next object, and the number of its first stripe.
    async fn next_object(&mut self, shared: &Shared) -> Result<Option<(ObjectRecord, u64)>, MetaError> {
        if let Some((key, from)) = self.first.clone() {
            let found = shared.meta.object(&ObjectName { bucket: self.bucket.clone(), key }).await;
            match found {
                Ok(object) => {
                    self.first = None;
                    return Ok(Some((object, from)));
                }
                // It was removed.
                Err(MetaError::NotFound(_)) => self.first = None,
                Err(error) => return Err(error),
            }
        }
        if !self.all {
            return Ok(None);
        }
        let (meta, bucket) = (&shared.meta, &self.bucket);
        let next = self.pages.next(|after| async move { meta.objects(bucket, "", &after, OBJECTS_PER_PAGE).await }).await;
        match next {
            Ok(object) => Ok(object.map(|object| (object, 0))),
            Err(MetaError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
