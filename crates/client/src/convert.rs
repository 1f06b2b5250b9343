//! Conversions: rewrites a stripe of an object in another code, on an agent that the coordinator has chosen.

use crate::{
    Client, ClientConfig, GetOptions, Limits,
    client::Shared,
    get::{Get, Written},
    progress::{Progress, ProgressFn},
    put::{Put, Stripe},
    stripe_data::{Spool, StripeData},
};
use async_trait::async_trait;
use std::sync::Arc;
use weft_proto::{
    Conversion, ConversionLimits, Converter,
    v1::{ConvertStripeRequest, ObjectReply, StatObjectRequest},
};
use weft_types::{Error, PutKey, Result};

/// Converts stripes by a get and a put; agents are started with one. Lost blocks of the old stripe are rebuilt during the read.
///
/// ```
/// # use std::sync::Arc;
/// let converter: Arc<dyn weft_proto::Converter> = Arc::new(weft_client::StripeConverter);
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct StripeConverter;

/// Bytes that are read ahead of the spool.
const PIPE_BYTES: usize = 1 << 20;

#[async_trait]
impl Converter for StripeConverter {
    async fn convert(&self, conversion: Conversion) -> Result<()> {
        let Conversion { asked, cluster, coordinators, security, net, node_link, seed, disk_mode, spool_dir, limits, progress } =
            conversion;
        let (limits, delegation, node_link) = (client_limits(&limits), Some(asked.delegation), Some(node_link));
        let config = ClientConfig {
            coordinators,
            security,
            cluster,
            net,
            seed,
            disk_mode,
            spool_dir,
            reads_open_stripes: false,
            limits,
            delegation,
            node_link,
        };
        let client = Client::connect(config).await?;
        let converted = convert(client.shared(), &asked, &ProgressFn::new(move |it| progress(it.done_bytes))).await;
        client.close().await;
        converted
    }
}

fn client_limits(limits: &ConversionLimits) -> Limits {
    let ConversionLimits { stripe_memory_bytes_max, window_bytes_max, patience } = *limits;
    Limits { stripe_memory_bytes_max, window_bytes_max, patience, ..Limits::default() }
}

/// Progress counts half of each byte when it is read, and half when it is sent.
async fn convert(shared: &Arc<Shared>, asked: &ConvertStripeRequest, progress: &ProgressFn) -> Result<()> {
    let object = format!("{}/{}", asked.bucket, asked.key);
    let place = |error: Error| if error.object.is_some() { error } else { error.object(&object) };
    let len = asked.end.saturating_sub(asked.start);
    let data = read(shared, asked, first_half(progress), len).await.map_err(place)?;
    // The put needs none of the buffers kept for the next read, and the agent has admitted the larger of the two only.
    shared.forget_memory();
    let put = Put::of_another(
        shared,
        object.clone(),
        (asked.upload, PutKey::from_bytes(&asked.put_key)),
        len,
        &second_half(progress, len / 2),
    );
    put.stripe(Stripe { number: asked.number, data, is_last: false }).await.map(drop).map_err(place)
}

/// Fetches the bytes to memory or to the spool.
async fn read(shared: &Arc<Shared>, asked: &ConvertStripeRequest, progress: ProgressFn, len: u64) -> Result<StripeData> {
    let options = GetOptions { range: Some((asked.start..asked.end).into()), progress, ..GetOptions::default() };
    let get = Get::of(shared, stat(shared, asked).await?, asked.from_stripe, &options)?;
    // Each end is dropped by its user, so the other end does not wait for it.
    let (writer, mut reader) = tokio::io::duplex(PIPE_BYTES);
    let hand_out = async move { get.hand_out(&mut Written(writer), &mut 0).await };
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

/// The object with the stripes that hold the bytes.
async fn stat(shared: &Arc<Shared>, asked: &ConvertStripeRequest) -> Result<ObjectReply> {
    let mut object: Option<ObjectReply> = None;
    loop {
        let known = object.as_ref().map_or(0, |object| object.stripes.len() as u64);
        let request = StatObjectRequest {
            bucket: asked.bucket.clone(),
            key: asked.key.clone(),
            from_stripe: asked.from_stripe + known,
            stripes_max: asked.stripes.saturating_sub(known as u32),
            read: None,
        };
        let page = shared.calls.ask(request, |mut client, request| async move { client.stat_object(request).await });
        let page = page.await?;
        if page.version != asked.version {
            return Err(Error::not_found("the object was overwritten during its conversion"));
        }
        let is_empty = page.stripes.is_empty();
        let object = match object.as_mut() {
            Some(object) => {
                object.stripes.extend(page.stripes);
                object
            }
            None => object.insert(page),
        };
        if object.stripes.len() >= asked.stripes as usize || is_empty {
            return Ok(object.clone());
        }
    }
}

/// Reports half of what is read …
fn first_half(progress: &ProgressFn) -> ProgressFn {
    let told = progress.clone();
    ProgressFn::new(move |progress: Progress| told.tell(Progress { done_bytes: progress.done_bytes / 2, ..progress }))
}

/// … and the other half of what is sent: everything, once all is sent.
fn second_half(progress: &ProgressFn, first: u64) -> ProgressFn {
    let told = progress.clone();
    ProgressFn::new(move |progress: Progress| {
        told.tell(Progress { done_bytes: first + progress.done_bytes.div_ceil(2), ..progress });
    })
}
