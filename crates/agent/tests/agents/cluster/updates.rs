//! Updates of a stripe on real agents: the test plays the coordinator and the client.

use super::{CLUSTER, Cluster, Stripe, coordinator::Opened as Homes, node};
use futures::future::join_all;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::task::JoinHandle;
use weft_gf::Combination;
use weft_proto::{
    LinkToken, Peer, UpdateRights, crc32c, decode_message, encode_message, from_status,
    updates::{Part, Route, UpdateClient, UpdateRequest},
    v1::{self, CloseBlockRequest, OpenBlockRequest, SealBlockRequest, SettleBlockRequest},
};
use weft_types::{BlockId, Error, NodeId, Party, Reaction, Result};
use weft_update::{Message, Seal, Sealed, Session, StripeTerm, Told, UpdateId, Vector, seal};

/// A stripe that is updated. Block i is at node i+1.
pub(crate) struct Updated<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) stripe: Stripe,
    /// What the metadata would have.
    pub(crate) term: StripeTerm,
    pub(crate) session: Session,
    clients: BTreeMap<NodeId, Arc<UpdateClient>>,
    counter: u64,
}

pub(crate) fn node_of(block: BlockId) -> NodeId {
    let Party::Node(node) = node(block.index) else { panic!("a node holds each block") };
    node
}

impl<'a> Updated<'a> {
    /// Writes the stripe, and does not open it.
    pub(crate) async fn write(cluster: &'a Cluster, stripe: Stripe) -> Self {
        cluster.write(&stripe).await;
        let members = (0..stripe.blocks.len() as u8).map(|index| stripe.block(index, 1)).collect();
        let session = Session { number: 7, ends_at_ms: cluster.coordinator.now_ms() + 600_000 };
        Self { cluster, stripe, term: StripeTerm::new(members), session, clients: BTreeMap::new(), counter: 0 }
    }

    /// Continues with a stripe that was opened, as it was written.
    pub(crate) fn resume(cluster: &'a Cluster, stripe: Stripe, term: StripeTerm, session: Session, counter: u64) -> Self {
        Self { cluster, stripe, term, session, clients: BTreeMap::new(), counter }
    }

    /// Writes a stripe and opens all its blocks.
    pub(crate) async fn start(cluster: &'a Cluster, stripe: Stripe) -> Self {
        let mut it = Self::write(cluster, stripe).await;
        it.open().await;
        it
    }

    pub(crate) fn members(&self) -> Vec<BlockId> {
        self.term.sealed.members.clone()
    }

    /// Opens all members in the next term, with the vector of the last one.
    pub(crate) async fn open(&mut self) {
        self.announce();
        let open = async |block| {
            for _ in 0..20 {
                match self.open_block(block).await {
                    // A journal is being created.
                    Err(error) if error.reaction == Reaction::Retry => {}
                    opened => return opened.unwrap(),
                }
            }
            panic!("{block} is not opened");
        };
        join_all(self.members().into_iter().map(open)).await;
    }

    /// The next term is that of an open stripe, but no block is open.
    pub(crate) fn announce(&mut self) {
        let sealed = Sealed { term: self.term.term + 1, ..(*self.term.sealed).clone() };
        self.term = StripeTerm { term: sealed.term, sealed: Arc::new(sealed), unaware: BTreeSet::new() };
        self.publish();
    }

    /// Lets agents find what they must know.
    fn publish(&self) {
        let homes = self.members().into_iter().map(|block| (block, node_of(block))).collect();
        self.cluster.coordinator.publish(Homes { sealed: (*self.term.sealed).clone(), homes });
    }

    fn described(&self) -> Option<v1::OpenStripe> {
        self.cluster.coordinator.open_stripe(self.stripe.id)
    }

    pub(crate) async fn open_block(&self, block: BlockId) -> Result<()> {
        let request = OpenBlockRequest {
            epoch: self.cluster.coordinator.epoch(),
            block: encode(&block),
            stripe: self.described(),
            data_len: 0,
        };
        let opened = self.cluster.call(node_of(block)).await.open_block(request).await;
        opened.map(drop).map_err(|status| from_status(&status))
    }

    pub(crate) async fn inspect(&self, block: BlockId, ready: bool) -> Result<v1::InspectBlockReply> {
        let request = v1::InspectBlockRequest { epoch: self.cluster.coordinator.epoch(), block: encode(&block), ready };
        let told = self.cluster.call(node_of(block)).await.inspect_block(request).await;
        told.map(tonic::Response::into_inner).map_err(|status| from_status(&status))
    }

    pub(crate) async fn seal_block(&self, block: BlockId, message: &Message) -> Result<Message> {
        let request = SealBlockRequest {
            epoch: self.cluster.coordinator.epoch(),
            block: encode(&block),
            message: encode_message(message)?,
            stripe: matches!(message, Message::Sealed(_)).then(|| self.described()).flatten(),
        };
        let answer = self.cluster.call(node_of(block)).await.seal_block(request).await;
        decode_message(&answer.map_err(|status| from_status(&status))?.into_inner().message)
    }

    pub(crate) async fn settle_block(&self, block: BlockId) -> Result<v1::SettleBlockReply> {
        let (epoch, term) = (self.cluster.coordinator.epoch(), self.term.term);
        let request = SettleBlockRequest { epoch, block: encode(&block), term };
        let settled = self.cluster.call(node_of(block)).await.settle_block(request).await;
        settled.map(tonic::Response::into_inner).map_err(|status| from_status(&status))
    }

    pub(crate) async fn close_block(&self, block: BlockId) -> Result<()> {
        let (epoch, term) = (self.cluster.coordinator.epoch(), self.term.term);
        let request = CloseBlockRequest { epoch, block: encode(&block), term };
        let closed = self.cluster.call(node_of(block)).await.close_block(request).await;
        closed.map(drop).map_err(|status| from_status(&status))
    }

    /// Seals the term without some of the blocks, until all others know it.
    pub(crate) async fn seal(&mut self, absent: &[BlockId]) {
        let m = self.stripe.code.m();
        let can_rebuild = move |absent: &BTreeSet<BlockId>| absent.len() <= m;
        let mut machine = Seal::new(self.term.clone());
        let mut events = vec![seal::Event::Begin { absent: absent.iter().copied().collect() }];
        events.extend(absent.iter().map(|block| seal::Event::LeaseEnded(*block)));
        for _ in 0..50 {
            let mut sent = Vec::new();
            while let Some(event) = (!events.is_empty()).then(|| events.remove(0)) {
                for action in machine.on(event, &can_rebuild) {
                    match action {
                        seal::Action::Save(term) => {
                            self.term = term;
                            self.publish();
                            events.push(seal::Event::Saved);
                        }
                        seal::Action::Send { to, message } => sent.push((to, message)),
                    }
                }
            }
            if !machine.is_under_way() && self.term.unaware.is_empty() {
                return;
            }
            let asked = sent.iter().map(async |(to, message)| (*to, self.seal_block(*to, message).await));
            for (from, answer) in join_all(asked).await {
                let message = answer.unwrap();
                events.push(seal::Event::Received { from, message });
            }
            events.push(seal::Event::Remind);
        }
        panic!("the seal does not end");
    }

    /// Seals, settles all blocks that are left, and returns what they contain.
    pub(crate) async fn settle(&mut self, absent: &[BlockId]) -> BTreeMap<BlockId, v1::SettleBlockReply> {
        self.seal(absent).await;
        let settled = join_all(self.members().into_iter().map(async |block| (block, self.settle_block(block).await.unwrap())));
        let settled: BTreeMap<_, _> = settled.await.into_iter().collect();
        let vector = &self.term.sealed.vector;
        for (block, reply) in &settled {
            let seq = reply.seq.as_ref().unwrap();
            let counts: Vector =
                (0..).zip(&seq.counts).map(|(stream, count)| (stream, *count)).filter(|(_, count)| *count > 0).collect();
            assert_eq!(
                (seq.term, &counts),
                (self.term.term, &vector.clone().into_iter().filter(|(_, n)| *n > 0).collect()),
                "{block}"
            );
        }
        settled
    }

    /// Closes all members.
    pub(crate) async fn close(&self) {
        for closed in join_all(self.members().into_iter().map(|block| self.close_block(block))).await {
            closed.unwrap();
        }
    }

    /// Checks payload and checksums of settled blocks against what the updates should have made of them.
    pub(crate) fn check(&self, settled: &BTreeMap<BlockId, v1::SettleBlockReply>) {
        for (block, reply) in settled {
            let expected = &self.stripe.blocks[usize::from(block.index)];
            let file = self.cluster.payload(node_of(*block), *block).unwrap();
            assert!(std::fs::read(file).unwrap() == *expected, "{block} contains other bytes");
            let units: Vec<u32> = expected.chunks(1 << 20).map(crc32c).collect();
            assert_eq!(reply.checksums, units, "{block}");
        }
    }

    /// What an update that is committed makes of the stripe.
    pub(crate) fn apply(&mut self, parts: &[Part]) {
        for Part { stream, start, bytes } in parts {
            let block = &mut self.stripe.blocks[usize::from(*stream)];
            block[*start as usize..*start as usize + bytes.len()].copy_from_slice(bytes);
        }
        let (code, k) = (&self.stripe.code, self.stripe.code.k());
        let data: Vec<Vec<u8>> = self.stripe.blocks[..k].to_vec();
        let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut rows: Vec<&mut [u8]> = self.stripe.blocks.iter_mut().map(Vec::as_mut_slice).collect();
        Combination::new(code.generator()).apply(&sources, &mut rows);
    }

    /// The next update's id.
    pub(crate) fn next_id(&mut self, lead: u8) -> UpdateId {
        self.counter += 1;
        UpdateId { session: self.session, counter: self.counter, lead }
    }

    pub(crate) fn token(&self, block: BlockId, id: UpdateId) -> LinkToken {
        let Session { number, ends_at_ms } = id.session;
        let rights = UpdateRights { block, term: self.term.term, session: number, ends_at_ms };
        self.cluster.coordinator.member(node_of(block)).unwrap().key.issue_update(&rights)
    }

    pub(crate) fn request(&self, id: UpdateId, parts: Vec<Part>) -> UpdateRequest {
        let block = self.stripe.block(id.lead, 1);
        UpdateRequest { block, id, term: self.term.term, token: self.token(block, id), parts, route: None }
    }

    /// Requests an update over a route. Its answer comes from the task.
    pub(crate) async fn start_routed(&mut self, parts: &[Part], route: Route) -> (UpdateId, JoinHandle<Result<Told>>) {
        let id = self.next_id(parts[0].stream);
        let request = UpdateRequest { route: Some(route), ..self.request(id, parts.to_vec()) };
        let client = self.client(node_of(request.block)).await;
        (id, tokio::spawn(async move { client.request(request).await }))
    }

    /// A connection to a node.
    pub(crate) async fn client(&mut self, node: NodeId) -> Arc<UpdateClient> {
        if self.clients.get(&node).is_none_or(|client| client.is_broken()) {
            let member = self.cluster.coordinator.member(node).unwrap().request;
            let (net, security) = (Arc::clone(&self.cluster.options.net), self.cluster.security(&Peer::Client));
            let client = UpdateClient::dial(net.as_ref(), &security, &member.data_address, &member.name, CLUSTER).await;
            self.clients.insert(node, Arc::new(client.unwrap()));
        }
        Arc::clone(&self.clients[&node])
    }

    /// Requests an update under this id once.
    pub(crate) async fn ask(&mut self, id: UpdateId, parts: &[Part]) -> Result<Told> {
        let request = self.request(id, parts.to_vec());
        let client = self.client(node_of(request.block)).await;
        let late = |_| Error::retry("no answer in time");
        tokio::time::timeout(Duration::from_secs(3), client.request(request)).await.map_err(late)?
    }

    /// Requests an update until it is committed.
    pub(crate) async fn commit(&mut self, parts: Vec<Part>) {
        let id = self.next_id(parts[0].stream);
        self.finish(id, &parts).await;
    }

    /// Repeats a request until it is committed.
    pub(crate) async fn finish(&mut self, id: UpdateId, parts: &[Part]) {
        let mut last = None;
        for _ in 0..200 {
            match self.ask(id, parts).await {
                Ok(Told::Committed) => return self.apply(parts),
                Ok(Told::NotRun(_)) | Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                told => last = Some(told),
            }
            assert_eq!(last, None, "the update was not committed");
        }
        panic!("the update does not end");
    }
}

/// Bytes at a place of a data block.
pub(crate) fn part(stream: u8, start: u64, len: usize, seed: u8) -> Part {
    Part { stream, start, bytes: (0..len).map(|at| (at * 31 + at / 251) as u8 ^ seed).collect() }
}

fn encode(block: &BlockId) -> Vec<u8> {
    postcard::to_allocvec(block).unwrap()
}
