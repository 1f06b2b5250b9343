//! Reads of blocks that are open for updates, on real agents: the last version, all or nothing of an update, and nothing from a block that was left out
//! of its stripe.

use crate::cluster::{
    Cluster, Options, Stripe,
    updates::{Updated, node_of, part},
};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_agent::Limits;
use weft_proto::{
    LinkToken,
    updates::{Found, OPEN_READ_BYTES_MAX, OpenRead, Part, ReadRefusal},
};
use weft_types::{ByteSize, Result, Span};
use weft_update::Version;

const MIB: u64 = 1 << 20;

fn options() -> Options {
    let limits = Limits { update_journal: ByteSize(8 << 20), ..Limits::default() };
    Options { limits, ..Options::agents(3) }
}

fn small() -> Stripe {
    Stripe::new(1, "rs(2,1)", 2 * MIB, 4 * MIB)
}

impl Updated<'_> {
    /// A read of a data block that the coordinator permits in the current term.
    fn open_read(&self, index: u8, start: u64, len: u64) -> OpenRead {
        let (block, term) = (self.stripe.block(index, 1), self.term.term);
        let mut read = OpenRead {
            block,
            term,
            ends_at_ms: self.session.ends_at_ms,
            token: LinkToken([0; 32]),
            range: Span::new(start, start + len),
            since: None,
            must_confirm: true,
        };
        self.sign(&mut read);
        read
    }

    fn sign(&self, read: &mut OpenRead) {
        let key = self.cluster.coordinator.member(node_of(read.block)).unwrap().key;
        read.token = key.issue_read(&read.rights());
    }

    async fn read(&mut self, read: OpenRead) -> Result<(Found, Vec<u8>)> {
        self.client(node_of(read.block)).await.read(read).await
    }

    /// What a data block contains in a range, by the test.
    fn expected(&self, index: u8, start: usize, len: usize) -> &[u8] {
        &self.stripe.blocks[usize::from(index)][start..start + len]
    }
}

fn version(found: &Found) -> Version {
    match found {
        Found::Served { version, .. } => version.clone(),
        other => panic!("not served: {other:?}"),
    }
}

fn refused(why: ReadRefusal) -> Result<(Found, Vec<u8>)> {
    Ok((Found::Refused(why), Vec::new()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_is_read_while_it_is_updated_and_stays_open() {
    let cluster = Cluster::start(options()).await;
    let mut updated = Updated::start(&cluster, small()).await;
    for number in 0..20u8 {
        updated.commit(vec![part(number % 2, u64::from(number) * 3000, 4096, number)]).await;
        let (found, bytes) = updated.read(updated.open_read(number % 2, 0, MIB)).await.unwrap();
        assert!(bytes == updated.expected(number % 2, 0, MIB as usize), "update {number}");
        let again = OpenRead { since: Some(version(&found)), ..updated.open_read(number % 2, 0, MIB) };
        assert_eq!(updated.read(again).await, Ok((Found::Unchanged, Vec::new())));
    }
    // An update of another range changes nothing in this one.
    let (found, _) = updated.read(updated.open_read(0, MIB, 100)).await.unwrap();
    updated.commit(vec![part(0, 5, 10, 50)]).await;
    let again = OpenRead { since: Some(version(&found)), ..updated.open_read(0, MIB, 100) };
    assert_eq!(updated.read(again.clone()).await, Ok((Found::Unchanged, Vec::new())));
    updated.commit(vec![part(0, MIB + 99, 10, 51)]).await;
    let (changed, bytes) = updated.read(again).await.unwrap();
    assert!(version(&changed) != version(&found) && bytes == updated.expected(0, MIB as usize, 100));

    // When it is settled and closed, it is read as all others.
    let read = updated.open_read(0, 0, 1);
    let settled = updated.settle(&[]).await;
    updated.check(&settled);
    assert_eq!(updated.read(read.clone()).await, refused(ReadRefusal::Closed));
    updated.close().await;
    assert_eq!(updated.read(read.clone()).await, refused(ReadRefusal::Closed));
    updated.open().await;
    assert_eq!(updated.read(read).await, refused(ReadRefusal::Closed), "it is open in another term");
    assert!(updated.read(updated.open_read(0, 0, 1)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_coordinator_does_not_permit_is_not_read() {
    let cluster = Cluster::start(options()).await;
    let mut updated = Updated::start(&cluster, small()).await;
    let fine = updated.open_read(0, 0, 100);
    let signed = |mut read: OpenRead| {
        updated.sign(&mut read);
        read
    };
    let wrong = [
        ("another block's token", OpenRead { token: updated.open_read(1, 0, 1).token, ..fine.clone() }),
        ("another term than that of the token", OpenRead { term: 2, ..fine.clone() }),
        ("the right has ended", signed(OpenRead { ends_at_ms: 1, ..fine.clone() })),
        ("beyond the end", OpenRead { range: Span::new(2 * MIB - 1, 2 * MIB + 1), ..fine.clone() }),
        ("a parity", updated.open_read(2, 0, 1)),
    ];
    for (case, read) in wrong {
        assert_eq!(updated.read(read).await, refused(ReadRefusal::Invalid), "{case}");
    }
    assert!(updated.read(OpenRead { range: Span::new(0, OPEN_READ_BYTES_MAX + 1), ..fine.clone() }).await.is_err());
    let future = {
        let mut read = OpenRead { term: 9, ..fine.clone() };
        updated.sign(&mut read);
        read
    };
    assert_eq!(updated.read(future).await, refused(ReadRefusal::Closed));
    let (_, bytes) = updated.read(fine).await.unwrap();
    assert_eq!(bytes, updated.expected(0, 0, 100), "the connection and the block still serve");
    let settled = updated.settle(&[]).await;
    updated.check(&settled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_that_was_left_out_of_its_stripe_serves_nothing_although_it_does_not_know() {
    let cluster = Cluster::start(options()).await;
    let mut updated = Updated::start(&cluster, small()).await;
    updated.commit(vec![part(0, 0, 4096, 1)]).await;
    let read = updated.open_read(0, 0, 4096);
    assert!(updated.read(read.clone()).await.is_ok());
    // Its agent hears nothing of the seal.
    let left_out = updated.stripe.block(0, 1);
    updated.seal(&[left_out]).await;
    assert_eq!(updated.read(read.clone()).await, refused(ReadRefusal::Undecided));
    let (found, _) = updated.read(OpenRead { must_confirm: false, ..read }).await.unwrap();
    assert_eq!(version(&found).term, 1, "that is why a reader has the term confirmed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_waits_for_the_outcome_of_an_update_in_its_range() {
    let mut cluster = Cluster::start(options()).await;
    let (term, session) = {
        let updated = Updated::start(&cluster, small()).await;
        (updated.term.clone(), updated.session)
    };
    // Without the parity, no outcome is known. The node that leads the update has told nothing of it, and the other one may not say what it holds.
    cluster.kill_agent(3).await;
    let parts: Vec<Part> = vec![part(0, 0, 100, 1), part(1, 0, 100, 2)];
    let id = {
        let mut updated = Updated::resume(&cluster, small(), term.clone(), session, 0);
        let id = updated.next_id(0);
        let (client, request) = (updated.client(node_of(updated.stripe.block(0, 1))).await, updated.request(id, parts.clone()));
        let waiting = tokio::spawn(async move { client.request(request).await });
        let unconfirmed = |read: OpenRead| OpenRead { must_confirm: false, ..read };
        let mut is_held = false;
        for _ in 0..100 {
            sleep(Duration::from_millis(20)).await;
            let begin = Instant::now();
            if updated.read(unconfirmed(updated.open_read(1, 50, 100))).await == refused(ReadRefusal::Undecided) {
                is_held = begin.elapsed() >= Duration::from_millis(500);
                break;
            }
        }
        assert!(is_held, "the read did not wait");
        let (_, bytes) = updated.read(unconfirmed(updated.open_read(0, 50, 100))).await.unwrap();
        assert_eq!(bytes, updated.expected(0, 50, 100), "it comes before the update");
        let (_, bytes) = updated.read(unconfirmed(updated.open_read(1, 100, 100))).await.unwrap();
        assert_eq!(bytes, updated.expected(1, 100, 100), "nothing is under way in this range");
        assert_eq!(updated.read(updated.open_read(1, 100, 100)).await, refused(ReadRefusal::Undecided), "not confirmed");
        waiting.abort();
        id
    };
    cluster.start_agent(3).await;
    let mut updated = Updated::resume(&cluster, small(), term, session, 1);
    updated.finish(id, &parts).await;
    for index in 0..2 {
        let mut bytes = Vec::new();
        for _ in 0..20 {
            (_, bytes) = updated.read(updated.open_read(index, 50, 100)).await.unwrap();
            if !bytes.is_empty() {
                break;
            }
        }
        assert_eq!(bytes, updated.expected(index, 50, 100), "block {index}");
    }
    let settled = updated.settle(&[]).await;
    updated.check(&settled);
}
