//! Connections to the agents of blocks that are open for updates.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError},
};
use tokio::sync::Mutex;
use weft_proto::{Net, Security, updates::UpdateClient};
use weft_types::{ClusterId, Result};

/// One connection to each agent, for all writes of a client and its reads of open stripes. By address and name of the agent.
pub(crate) struct UpdateLinks {
    net: Arc<dyn Net>,
    security: Security,
    cluster: ClusterId,
    links: StdMutex<BTreeMap<(String, String), Arc<Link>>>,
}

type Link = Mutex<Option<Arc<UpdateClient>>>;

impl UpdateLinks {
    pub(crate) fn new(net: Arc<dyn Net>, security: Security, cluster: ClusterId) -> Self {
        Self { net, security, cluster, links: StdMutex::default() }
    }

    /// The connection to an agent; a new one if there is none that works.
    pub(crate) async fn connect(&self, address: &str, name: &str) -> Result<Arc<UpdateClient>> {
        let slot = self.lock().entry((address.to_owned(), name.to_owned())).or_default().clone();
        let mut link = slot.lock().await;
        if let Some(client) = link.as_ref().filter(|client| !client.is_broken()) {
            return Ok(client.clone());
        }
        let dialled = UpdateClient::dial(self.net.as_ref(), &self.security, address, name, self.cluster).await;
        Ok(link.insert(Arc::new(dialled?)).clone())
    }

    /// Forgets connections that do not work, for example to addresses that are not used any more.
    pub(crate) fn forget_broken(&self) {
        self.lock().retain(|_, link| {
            // Locked: it is being dialled.
            link.try_lock().map_or(true, |link| link.as_ref().is_some_and(|client| !client.is_broken()))
        });
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, String), Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
