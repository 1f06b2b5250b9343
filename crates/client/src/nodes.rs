//! Removes nodes and disks that are gone for good.

use crate::Client;
use weft_proto::v1::{DepartureReply, ForgetDiskRequest, RemoveNodeRequest};
use weft_types::{NodeId, Result};

impl Client {
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
