//! The object that is written, and its stripes.

use super::{lease::Slot, split::next_end};
use crate::{
    GetOptions,
    get::{is_same, stripes_of},
};
use std::sync::Arc;
use weft_proto::v1::ObjectReply;
use weft_types::{Error, Result, Span};

/// An object, in one version.
pub(crate) struct Target {
    pub(crate) bucket: String,
    pub(crate) key: String,
    pub(crate) version: u64,
    pub(crate) size: u64,
    /// As the metadata describe it, without its stripes.
    object: ObjectReply,
    /// In order.
    slots: Vec<Slot>,
}

impl Target {
    pub(crate) fn new(object: ObjectReply) -> Result<Self> {
        let size = object.size;
        Self::longer(object, 0, (0, size))
    }

    /// The object as it is up to `end`, where bytes are appended in its last stripe. `first` is the number of the first stripe that is known.
    pub(crate) fn longer(object: ObjectReply, first: u64, (append, end): (u64, u64)) -> Result<Self> {
        let mut places = stripes_of(&object, first, &GetOptions::default())?;
        if let Some(last) = places.last_mut().and_then(Arc::get_mut) {
            last.layout.data_len = end.saturating_sub(last.offset);
        }
        let last = places.len().saturating_sub(1);
        let number = |at: usize| if at == last { append } else { 0 };
        let slots = places.into_iter().enumerate().map(|(at, place)| Slot::new(place, number(at))).collect();
        let object = ObjectReply { stripes: Vec::new(), ..object };
        let (bucket, key) = (object.bucket.clone(), object.key.clone());
        Ok(Self { bucket, key, version: object.version, size: end, object, slots })
    }

    /// The object's current version, if its bytes are those of this one.
    pub(crate) fn after(&self, now: ObjectReply) -> Result<Self> {
        match now.version == self.version || is_same(&now, &self.object) {
            true => Self::new(now),
            false => Err(Error::not_found("the object was replaced during the write")),
        }
    }

    pub(crate) fn place(&self, error: Error) -> Error {
        error.object(format_args!("{}/{}", self.bucket, self.key))
    }

    /// `len` bytes of the object from `offset` on.
    pub(crate) fn span(&self, offset: u64, len: u64) -> Result<Span> {
        let span = Span::new(offset, offset.saturating_add(len));
        match span.end <= self.size && self.size > 0 {
            true => Ok(span),
            false => Err(self.place(self.beyond(span))),
        }
    }

    /// The error for bytes beyond the end.
    pub(crate) fn beyond(&self, span: Span) -> Error {
        let Some(last) = self.size.checked_sub(1) else {
            return Error::invalid("the object is empty, and a write in place cannot extend it: put it instead");
        };
        let asked = match span.len() {
            0 => format!("offset {}", span.start),
            _ => format!("bytes {}-{}", span.start, span.end - 1),
        };
        let size = self.size;
        let why = match span.start > size {
            true => "a write must not leave a gap",
            false => "this write does not append",
        };
        Error::invalid(format!("{asked} are beyond the end: the object's {size} bytes are 0-{last}, and {why}"))
    }

    /// The stripe with the byte `at` of the object.
    pub(crate) fn slot(&self, at: u64) -> Option<&Slot> {
        let after = self.slots.partition_point(|slot| slot.stripe.offset <= at);
        let slot = self.slots.get(after.checked_sub(1)?)?;
        (at < slot.stripe.offset + slot.stripe.layout.data_len).then_some(slot)
    }

    /// The first update of a range of the object that is not empty, of at most so many bytes, and its stripe.
    pub(crate) fn first_update(&self, span: Span, bytes_max: u64) -> Result<(&Slot, Span)> {
        let slot = self.slot(span.start).ok_or_else(|| self.beyond(span))?;
        let stripe = &slot.stripe;
        let rest = Span::new(span.start, span.end.min(stripe.offset + stripe.layout.data_len));
        let data = Span::new(rest.start - stripe.offset, rest.end - stripe.offset);
        let end = stripe.offset + next_end(&stripe.layout, data, bytes_max);
        Ok((slot, Span::new(span.start, end)))
    }
}
