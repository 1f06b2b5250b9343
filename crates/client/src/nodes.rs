//! Takes nodes and disks out of service, and removes those that are gone for good.

use crate::Client;
use std::time::Duration;
use weft_proto::v1::{DepartureReply, DrainPlan, DrainReply, DrainRequest, ForgetDiskRequest, RemoveNodeRequest};
use weft_types::{NodeId, Result};

/// How long the coordinator may take to explain a drain: it schedules some ten thousands of blocks.
const EXPLAINED_WITHIN: Duration = Duration::from_secs(300);

impl Client {
    /// Begins (`on`) or ends the drain of a node or, with its id, of one of its disks; `None` only asks how far it is. A drained node or disk
    /// gets no new blocks, and the cluster moves those that it has. `force`: also if some of them have no other home yet.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// let node = weft_types::NodeId(3);
    /// client.drain(node, "", Some(true), false).await?;
    /// println!("{:?} is left", client.drain(node, "", None, false).await?.draining);
    /// # Ok(()) }
    /// ```
    pub async fn drain(&self, node: NodeId, disk: &str, on: Option<bool>, force: bool) -> Result<DrainReply> {
        let request = DrainRequest { node: node.0, disk: disk.to_owned(), on, force, retire: false };
        self.shared().calls.once(request, |mut client, request| async move { client.drain(request).await }).await
    }

    /// Drains a disk for good, by its id: when nothing is left of it and its agent no longer lists it, it is forgotten. The blocks of one that
    /// failed are rebuilt. `force`: also if some of its blocks have no other home yet. [`Self::drain`] says how far it is, and ends it.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// client.retire_disk(weft_types::NodeId(3), "101112131415161718191a1b1c1d1e1f", false).await?;
    /// # Ok(()) }
    /// ```
    pub async fn retire_disk(&self, node: NodeId, disk: &str, force: bool) -> Result<DrainReply> {
        let request = DrainRequest { node: node.0, disk: disk.to_owned(), on: Some(true), force, retire: true };
        self.shared().calls.once(request, |mut client, request| async move { client.drain(request).await }).await
    }

    /// What the drain of a node or, with its id, of one of its disks would do now. Nothing is begun.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// println!("{:?} would leave", client.explain_drain(weft_types::NodeId(3), "").await?.leaving);
    /// # Ok(()) }
    /// ```
    pub async fn explain_drain(&self, node: NodeId, disk: &str) -> Result<DrainPlan> {
        let request = DrainRequest { node: node.0, disk: disk.to_owned(), on: None, force: false, retire: false };
        let calls = &self.shared().calls;
        calls
            .ask_within(EXPLAINED_WITHIN, request, |mut client, request| async move { client.explain_drain(request).await })
            .await
    }

    /// Removes a node that is down and holds nothing. Its agent cannot come back under its number.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// println!("{} is removed", client.remove_node(weft_types::NodeId(3)).await?.name);
    /// # Ok(()) }
    /// ```
    pub async fn remove_node(&self, node: NodeId) -> Result<DepartureReply> {
        let request = RemoveNodeRequest { node: node.0 };
        self.shared().calls.once(request, |mut client, request| async move { client.remove_node(request).await }).await
    }

    /// Removes a disk that its node no longer lists and that holds nothing; `disk` is its id.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// let node = weft_types::NodeId(3);
    /// client.forget_disk(node, "101112131415161718191a1b1c1d1e1f").await?;
    /// # Ok(()) }
    /// ```
    pub async fn forget_disk(&self, node: NodeId, disk: &str) -> Result<DepartureReply> {
        let request = ForgetDiskRequest { node: node.0, disk: disk.to_owned() };
        self.shared().calls.once(request, |mut client, request| async move { client.forget_disk(request).await }).await
    }
}
