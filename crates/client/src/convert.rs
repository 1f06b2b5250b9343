//! Conversions: a stripe of an object is written anew in another code, by an agent that the coordinator has sent.

use crate::{
    Client, GetOptions,
    client::Shared,
    get::Get,
    progress::{Progress, ProgressFn},
    put::{Put, Stripe},
    stripe_data::{Spool, StripeData},
};
use std::{ops::Range, sync::Arc};
use weft_proto::v1::{ObjectReply, StatObjectRequest};
use weft_types::{Error, PutKey, Result};

/// A stripe that is written anew: which bytes of which version of an object, and which stripe of which put they become.
#[derive(Debug, Clone)]
pub struct StripeConversion {
    /// The object's bucket.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// Its version.
    pub version: u64,
    /// The number of the first of its stripes that have the bytes …
    pub from_stripe: u64,
    /// … and how many of them there are.
    pub stripes: u32,
    /// The bytes, of the object.
    pub range: Range<u64>,
    /// The put, which the coordinator has begun and ends.
    pub upload: u64,
    /// Its key.
    pub put_key: PutKey,
    /// The number of the new stripe.
    pub number: u64,
    /// Is told of progress: half of each byte is done when it was read, half when it was sent.
    pub progress: ProgressFn,
}

/// What has been read and is not spooled yet, bytes.
const PIPE_BYTES: usize = 1 << 20;

impl Client {
    /// Writes a stripe anew. What is lost of the old one is rebuilt on the way; the new one has ended when this returns. For whoever has
    /// a [`delegation`](crate::ClientConfig::delegation) to do so.
    pub async fn convert_stripe(&self, conversion: &StripeConversion) -> Result<()> {
        let object = format!("{}/{}", conversion.bucket, conversion.key);
        let place = |error: Error| if error.object.is_some() { error } else { error.object(&object) };
        let len = conversion.range.end.saturating_sub(conversion.range.start);
        let data = read(self.shared(), conversion, len).await.map_err(place)?;
        let upload = (conversion.upload, conversion.put_key);
        let put = Put::of_another(self.shared(), object.clone(), upload, len, &second_half(conversion, len / 2));
        put.stripe(Stripe { number: conversion.number, data, is_last: false }).await.map(drop).map_err(place)
    }
}

/// Fetches the bytes to memory or to the spool.
async fn read(shared: &Arc<Shared>, conversion: &StripeConversion, len: u64) -> Result<StripeData> {
    let options = GetOptions { range: Some(conversion.range.clone()), progress: first_half(conversion), ..GetOptions::default() };
    let get = Get::of(shared, stat(shared, conversion).await?, conversion.from_stripe, &options)?;
    // Each end is dropped by the one who has it, so that the other does not wait for him in vain.
    let (mut writer, mut reader) = tokio::io::duplex(PIPE_BYTES);
    let hand_out = async move { get.hand_out(&mut writer, &mut 0).await };
    let (spool, memory_bytes_max) = (Spool::of(shared), shared.config.limits.stripe_memory_bytes_max);
    let take = async move { StripeData::read(&mut reader, len, memory_bytes_max, &spool).await };
    let (handed_out, data) = tokio::join!(hand_out, take);
    let data = data?;
    handed_out?;
    match data.len == len {
        true => Ok(data),
        false => Err(Error::fatal(format!("{} of {len} bytes were read", data.len))),
    }
}

/// The object with the stripes that have the bytes.
async fn stat(shared: &Arc<Shared>, conversion: &StripeConversion) -> Result<ObjectReply> {
    let mut object: Option<ObjectReply> = None;
    loop {
        let known = object.as_ref().map_or(0, |object| object.stripes.len() as u64);
        let request = StatObjectRequest {
            bucket: conversion.bucket.clone(),
            key: conversion.key.clone(),
            from_stripe: conversion.from_stripe + known,
            stripes_max: conversion.stripes.saturating_sub(known as u32),
        };
        let asked = shared.calls.ask(request, |mut client, request| async move { client.stat_object(request).await });
        let page = asked.await?;
        if page.version != conversion.version {
            return Err(Error::not_found("it was overwritten while it was converted"));
        }
        let is_empty = page.stripes.is_empty();
        let object = match object.as_mut() {
            Some(object) => {
                object.stripes.extend(page.stripes);
                object
            }
            None => object.insert(page),
        };
        if object.stripes.len() >= conversion.stripes as usize || is_empty {
            return Ok(object.clone());
        }
    }
}

/// Tells of half of what is read …
fn first_half(conversion: &StripeConversion) -> ProgressFn {
    let told = conversion.progress.clone();
    ProgressFn::new(move |progress: Progress| told.tell(Progress { done_bytes: progress.done_bytes / 2, ..progress }))
}

/// … and of the other half of what is sent: of all, when all was sent.
fn second_half(conversion: &StripeConversion, first: u64) -> ProgressFn {
    let told = conversion.progress.clone();
    ProgressFn::new(move |progress: Progress| {
        told.tell(Progress { done_bytes: first + progress.done_bytes.div_ceil(2), ..progress });
    })
}
