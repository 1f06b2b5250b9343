//! The wire over real sockets on this machine: frames, links, TLS, the control plane, pooled connections.

mod control;
mod frames;
mod generated;
mod links;
mod pooled;
mod secured;
mod tasks;
mod updates;

use std::{path::Path, sync::Arc};
use weft_proto::{
    Accepted, Direction, FrameStream, Hello, Incoming, LinkToken, Net, Peer, Security, TcpNet,
    certs::{Authority, CertificateFiles},
};
use weft_types::{ClusterId, NodeId, Party, PlanId};

/// A cluster's authority, and its directory.
struct Cluster {
    dir: tempfile::TempDir,
    authority: Authority,
}

impl Cluster {
    fn new(number: u128) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(dir.path(), ClusterId(number)).unwrap();
        Self { dir, authority }
    }

    fn security(&self, peer: &Peer) -> Security {
        Security::load(&self.authority.issue(self.dir.path(), peer).unwrap()).unwrap()
    }

    fn files(&self, peer: &Peer) -> CertificateFiles {
        CertificateFiles::in_dir(self.path(), peer)
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

fn agent(name: &str) -> Peer {
    Peer::Agent(name.to_string())
}

fn net() -> Arc<dyn Net> {
    Arc::new(TcpNet::default())
}

/// Listens and returns the accepted connections.
async fn listen(security: Security) -> (String, Incoming) {
    let listener = net().listen("127.0.0.1:0").await.unwrap();
    let address = listener.local_address().unwrap();
    (address, Incoming::start(listener, security))
}

/// Both ends of a connection from a client to the agent `a`.
async fn connection(security: Option<&Cluster>) -> (FrameStream, FrameStream) {
    let security_of = |peer: &Peer| security.map_or(Security::Insecure, |cluster| cluster.security(peer));
    let (address, mut incoming) = listen(security_of(&agent("a"))).await;
    let dialing = security_of(&Peer::Client);
    let network = net();
    let expected = agent("a");
    let (dialled, accepted) = tokio::join!(dialing.dial(network.as_ref(), &address, &expected), incoming.next());
    let Accepted { stream, .. } = accepted.unwrap();
    (FrameStream::new(dialled.unwrap()), FrameStream::new(stream))
}

fn hello(link: u32) -> Hello {
    Hello {
        cluster: ClusterId(1),
        plan: PlanId(2),
        link,
        from: Party::Client(3),
        to: Party::Node(NodeId(4)),
        direction: Direction::Push,
        token: LinkToken([5; 32]),
    }
}
