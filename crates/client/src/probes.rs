//! The bandwidth of links between nodes: the coordinator measures it; the client shows it.

use crate::Client;
use tonic::Streaming;
use weft_proto::{
    from_status,
    v1::{ListLinksReply, ListLinksRequest, ProbeEvent, ProbeLinksRequest},
};
use weft_types::{NodeId, Result};

/// Links that are being measured, one event per link.
pub struct LinkProbe {
    events: Streaming<ProbeEvent>,
}

impl Client {
    /// The bandwidth of links between nodes, bytes per second, as measured since the coordinator's start.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// for link in client.links().await?.links {
    ///     println!("n{} to n{}: {} MB/s", link.from, link.to, link.bytes_per_s / 1e6);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn links(&self) -> Result<ListLinksReply> {
        let asked = ListLinksRequest {};
        self.shared().calls.ask(asked, |mut client, request| async move { client.list_links(request).await }).await
    }

    /// Measures the links from some nodes to others; an empty list stands for all nodes that are up. A link takes up to half a second, a
    /// very slow one two seconds. Dropping the result ends the measurement.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// # use weft_types::NodeId;
    /// let mut probe = client.probe_links(&[NodeId(3)], &[]).await?;
    /// while let Some(event) = probe.next().await? {
    ///     println!("{event:?}");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn probe_links(&self, from: &[NodeId], to: &[NodeId]) -> Result<LinkProbe> {
        let numbers = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect();
        let request = ProbeLinksRequest { from: numbers(from), to: numbers(to) };
        let begun = self.shared().calls.stream(request, |mut client, request| async move { client.probe_links(request).await });
        Ok(LinkProbe { events: begun.await? })
    }
}

impl LinkProbe {
    /// The next link that was measured, or that could not be; `None` at the end. The first event only has the number of links.
    pub async fn next(&mut self) -> Result<Option<ProbeEvent>> {
        self.events.message().await.map_err(|status| from_status(&status))
    }
}
