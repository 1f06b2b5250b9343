//! What an agent passes to its converter, and how it reports the converter's result.

use crate::cluster::{CLUSTER, Cluster, Options};
use async_trait::async_trait;
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};
use tokio::time::{sleep, timeout};
use weft_agent::{DiskMode, Limits};
use weft_proto::{
    Conversion, ConversionLimits, Converter, from_status,
    v1::{ConvertStripeRequest, convert_event::Event},
};
use weft_types::{ByteSize, Error, NodeId, Reaction, Result};

const MIB: u64 = 1 << 20;

/// A converter that converts nothing: it takes one second and records what it was given.
#[derive(Default)]
struct Slow {
    given: Mutex<Vec<Given>>,
}

/// What a conversion may use.
#[derive(Debug)]
struct Given {
    asked: ConvertStripeRequest,
    limits: ConversionLimits,
    spool_dir: PathBuf,
    /// Lives as long as the conversion.
    alive: Weak<()>,
}

#[async_trait]
impl Converter for Slow {
    async fn convert(&self, conversion: Conversion) -> Result<()> {
        let Conversion { asked, cluster, limits, spool_dir, disk_mode, progress, .. } = conversion;
        assert_eq!((cluster, disk_mode), (Some(CLUSTER), DiskMode::Inline));
        let alive = Arc::new(());
        let given = Given { asked: asked.clone(), limits, spool_dir, alive: Arc::downgrade(&alive) };
        self.given.lock().unwrap().push(given);
        sleep(Duration::from_millis(400)).await;
        progress(7);
        sleep(Duration::from_millis(600)).await;
        drop(alive);
        match asked.key.as_str() {
            "good" => Ok(()),
            _ => Err(Error::not_found("the object was overwritten").object("b/bad")),
        }
    }
}

async fn start() -> (Cluster, Arc<Slow>) {
    let slow = Arc::new(Slow::default());
    let limits = Limits { memory_budget: ByteSize(16 * MIB), ..Limits::default() };
    let converter: Arc<dyn Converter> = slow.clone();
    (Cluster::start(Options { limits, converter, ..Options::agents(1) }.simulated()).await, slow)
}

fn request(cluster: &Cluster, key: &str, bytes: u64) -> ConvertStripeRequest {
    let (epoch, bucket, key) = (cluster.coordinator.epoch(), "b".into(), key.into());
    ConvertStripeRequest { epoch, delegation: 11, bucket, key, stripes: 1, end: bytes, ..ConvertStripeRequest::default() }
}

#[tokio::test(start_paused = true)]
async fn a_converter_gets_its_share_of_the_memory_and_reports_progress() {
    let (cluster, slow) = start().await;
    for (key, bytes) in [("good", 512 << 10), ("bad", 3 * MIB)] {
        let asked = request(&cluster, key, bytes);
        let mut events = cluster.call(NodeId(1)).await.convert_stripe(asked.clone()).await.unwrap().into_inner();
        let (mut told, mut end) = (Vec::new(), None);
        while let Some(event) = events.message().await.map_err(|status| end = Some(from_status(&status))).unwrap_or_default() {
            match event.event.unwrap() {
                Event::Progress(progress) => told.push(progress.bytes),
                Event::Done(_) => assert_eq!(key, "good"),
            }
        }
        assert!(told.contains(&0) && told.last() == Some(&7), "{told:?}");
        let end = end.map(|error| (error.reaction, error.message.contains("the object was overwritten")));
        assert_eq!(end, (key == "bad").then_some((Reaction::NotFound, true)));
        let given = slow.given.lock().unwrap().pop().unwrap();
        assert_eq!(given.asked, asked);
        // Two concurrent conversions share half of the memory.
        assert_eq!((given.limits.stripe_memory_bytes_max as u64, given.limits.window_bytes_max), (MIB, MIB));
        assert!(given.spool_dir.starts_with(cluster.dir.path()), "{given:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_conversion_ends_and_frees_its_place_when_its_caller_disconnects() {
    let (cluster, slow) = start().await;
    let convert = async || cluster.call(NodeId(1)).await.convert_stripe(request(&cluster, "good", 1)).await;
    let (first, second) = (convert().await.unwrap(), convert().await.unwrap());
    assert_eq!(from_status(&convert().await.unwrap_err()).reaction, Reaction::Retry);
    drop(first);
    let again = async {
        while convert().await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_millis(900), again).await.unwrap();
    let given = std::mem::take(&mut *slow.given.lock().unwrap());
    let alive: Vec<_> = given.iter().map(|given| given.alive.upgrade().is_some()).collect();
    assert_eq!(alive[..2], [false, true]);
    drop(second);
}
