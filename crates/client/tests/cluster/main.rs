//! Puts and gets over real sockets, with the real plans and the real engine: agents that keep their blocks in memory and fail on
//! command, and a coordinator that makes plans and remembers its calls.

mod agents;
mod coordinator;
mod gets;
mod open_reads;
mod puts;
mod updates;

use agents::Agents;
use coordinator::Coordinator;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{sync::Arc, time::Duration};
use weft_client::{Client, ClientConfig, DiskMode, Limits};
use weft_proto::{Net, Peer, Security, TcpNet, certs::Authority, rpc};
use weft_types::ClusterId;

pub(crate) const CLUSTER: ClusterId = ClusterId(0xc1);

/// A cluster of eight agents, and a client of it.
pub(crate) struct World {
    pub(crate) agents: Arc<Agents>,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) client: Client,
    /// The client's.
    pub(crate) config: ClientConfig,
    pub(crate) coordinator_address: String,
    pub(crate) dir: tempfile::TempDir,
}

impl World {
    pub(crate) async fn insecure() -> Self {
        Self::start(|_| Security::Insecure, tempfile::tempdir().unwrap()).await
    }

    pub(crate) async fn secured() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(dir.path(), CLUSTER).unwrap();
        let path = dir.path().to_path_buf();
        Self::start(move |peer| Security::load(&authority.issue(&path, peer).unwrap()).unwrap(), dir).await
    }

    async fn start(security: impl Fn(&Peer) -> Security, dir: tempfile::TempDir) -> Self {
        let agents = Agents::start(8, &security).await;
        let coordinator = Arc::new(Coordinator::new(agents.clone()));
        let listener = TcpNet::default().listen("127.0.0.1:0").await.unwrap();
        let address = listener.local_address().unwrap();
        let services = rpc::Services::new().with(weft_proto::v1::weft_server::WeftServer::from_arc(coordinator.clone()));
        tokio::spawn(rpc::serve(services, listener, security(&Peer::Coordinator), std::future::pending()));
        let limits = Limits {
            stripe_memory_bytes_max: 1 << 20,
            window_bytes_max: 1 << 20,
            patience: Duration::from_secs(3),
            ..Limits::default()
        };
        let config = ClientConfig {
            disk_mode: DiskMode::Pool,
            spool_dir: dir.path().to_path_buf(),
            seed: 1,
            cluster: Some(CLUSTER),
            limits,
            ..ClientConfig::new([address.clone()], security(&Peer::Client))
        };
        let client = Client::connect(config.clone()).await.unwrap();
        Self { agents, coordinator, client, config, coordinator_address: address, dir }
    }

    /// The names of the files in the world's directory, except certificates.
    pub(crate) fn files(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.ends_with(".pem")).collect()
    }
}

pub(crate) fn random_bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill(&mut bytes[..]);
    bytes
}
