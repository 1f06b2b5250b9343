//! Lists and releases garbage: blocks that no object needs but that still take space on nodes.

use crate::Client;
use weft_proto::v1::{ListGarbageReply, ListGarbageRequest, ReleaseGarbageReply, ReleaseGarbageRequest};
use weft_types::{NodeId, Result};

impl Client {
    /// Garbage in the metadata and in the nodes' quarantines, by disk and reason: of one node, or of all.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// for garbage in client.garbage(None).await?.garbage {
    ///     println!("{}: {} blocks, {}", garbage.path, garbage.blocks, garbage.reason);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn garbage(&self, node: Option<NodeId>) -> Result<ListGarbageReply> {
        let request = ListGarbageRequest { node: node.map_or(0, |node| node.0) };
        self.shared().calls.ask(request, |mut client, request| async move { client.list_garbage(request).await }).await
    }

    /// Deletes some unexpected blocks from a node's quarantine; call it until none are left. With `unexpected`, garbage that the metadata
    /// records without a reason is then removed like other garbage.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// while client.release_garbage(weft_types::NodeId(3), false).await?.left_blocks > 0 {}
    /// # Ok(()) }
    /// ```
    pub async fn release_garbage(&self, node: NodeId, unexpected: bool) -> Result<ReleaseGarbageReply> {
        let request = ReleaseGarbageRequest { node: node.0, unexpected };
        self.shared().calls.ask(request, |mut client, request| async move { client.release_garbage(request).await }).await
    }
}
