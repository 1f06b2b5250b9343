//! Repairs: the coordinator and the agents run them; the client starts and watches them.

use crate::Client;
use std::time::Duration;
use tonic::Streaming;
use weft_proto::{
    from_status,
    v1::{CoolReply, ObjectName, RepairEvent, RepairObjectRequest},
};
use weft_types::{AutoSize, NodeId, Result};

/// Dropping copies takes one transaction per stripe of an object.
const COOL_TIMEOUT: Duration = Duration::from_secs(600);

/// A slice's length as encoded in requests; None leaves it to the coordinator.
pub(crate) fn slice_len(len: Option<AutoSize>) -> u64 {
    if let Some(AutoSize::Bytes(size)) = len { size.0 } else { 0 }
}

/// What to repair, and how.
///
/// ```
/// # use weft_client::RepairOptions;
/// let options = RepairOptions { blocks: vec![3], scheme: "pipeline".into(), ..RepairOptions::default() };
/// ```
#[derive(Debug, Clone, Default)]
pub struct RepairOptions {
    /// The indexes of blocks in their stripe, which are rebuilt together; empty: all lost blocks.
    pub blocks: Vec<u8>,
    /// The scheme; empty: the coordinator's choice.
    pub scheme: String,
    /// The nodes for the rebuilt blocks, each for one block of a stripe; empty: the coordinator chooses.
    pub to: Vec<NodeId>,
    /// Bytes of a slice; `None`: the coordinator's setting.
    pub slice_len: Option<AutoSize>,
    /// The helpers and their order: `best`, `ordered`, `preferred` or `random`; empty: `best`.
    pub select: String,
    /// The number of disjoint paths for each lost block; 0: the number predicted to be fastest.
    pub paths: u32,
    /// Only make and return the plans.
    pub explain: bool,
    /// Return each plan when it starts, without `explain` too.
    pub plans: bool,
    /// Repair data blocks only, and create missing copies: this many copies of each, including the coded one; 0: as many as the bucket's
    /// policy says. `None`: repair all lost blocks.
    pub heat: Option<u32>,
}

/// The events of a repair.
pub struct Repair {
    events: Streaming<RepairEvent>,
    /// None: a node repair.
    object: Option<String>,
}

impl Client {
    /// Rebuilds lost blocks of an object.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// # use weft_client::RepairOptions;
    /// let mut repair = client.repair("photos", "cat.jpg", &RepairOptions::default()).await?;
    /// while let Some(event) = repair.next().await? {
    ///     println!("{event:?}");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn repair(&self, bucket: &str, key: &str, options: &RepairOptions) -> Result<Repair> {
        let object = format!("{bucket}/{key}");
        let request = RepairObjectRequest {
            bucket: bucket.into(),
            key: key.into(),
            blocks: options.blocks.iter().map(|index| u32::from(*index)).collect(),
            scheme: options.scheme.clone(),
            to_nodes: options.to.iter().map(|node| node.0).collect(),
            explain: options.explain,
            plans: options.plans,
            slice_len: slice_len(options.slice_len),
            slice_auto: options.slice_len == Some(AutoSize::Auto),
            select: options.select.clone(),
            paths: options.paths,
            heat: options.heat.is_some(),
            replicas: options.heat.unwrap_or(0),
        };
        let begun = self.shared().calls.stream(request, |mut client, request| async move { client.repair_object(request).await });
        let events = begun.await.map_err(|error| error.object(&object))?;
        Ok(Repair { events, object: Some(object) })
    }
}

impl Client {
    /// Drops all copies of an object's blocks except one of each; returns their number. [`Client::repair`] with
    /// [`RepairOptions::heat`] creates them again.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// println!("{} bytes will be free", client.cool("photos", "cat.jpg").await?.bytes);
    /// # Ok(()) }
    /// ```
    pub async fn cool(&self, bucket: &str, key: &str) -> Result<CoolReply> {
        let request = ObjectName { bucket: bucket.into(), key: key.into() };
        let cooled = self
            .shared()
            .calls
            .within(COOL_TIMEOUT, request, |mut client, request| async move { client.cool_object(request).await });
        cooled.await.map_err(|error| error.object(format_args!("{bucket}/{key}")))
    }
}

impl Repair {
    pub(crate) fn of_node(events: Streaming<RepairEvent>) -> Self {
        Self { events, object: None }
    }

    /// The next event; `None`: the repair is done. Dropping the repair does not stop it.
    pub async fn next(&mut self) -> Result<Option<RepairEvent>> {
        self.events.message().await.map_err(|status| match &self.object {
            Some(object) => from_status(&status).object(object),
            None => from_status(&status),
        })
    }
}
