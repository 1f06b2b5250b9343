//! Metadata that were restored from an older copy, while stripes were opened, updated, settled and closed since.

use crate::{
    updates::{Cluster, IDLE_MS, opened},
    updating::{Step, checksum},
};
use std::path::Path;
use weft_meta::TermState;
use weft_proto::v1;
use weft_types::{BlockState, Reaction, Seq};

impl Cluster {
    pub(crate) async fn restore(&mut self, copy: &Path) {
        self.world.restore(copy).await;
        self.meta = opened(&self.world);
        self.until_up(6).await;
    }

    /// An agent tells that a block is open, and these metadata do not know it.
    async fn tell_of(&self, index: u8) {
        let (epoch, mut member) = (self.world.coordinator().epoch(), self.world.bare_member().await);
        let blocks = vec![postcard::to_allocvec(&self.block(index)).unwrap()];
        let asked = v1::FindOpenStripesRequest { node: u32::from(index) + 1, epoch, blocks, open: true };
        assert_eq!(member.find_open_stripes(asked).await.unwrap().into_inner().stripes, []);
    }

    /// The stripe is settled with so many updates, all blocks are good and closed, and it can be opened again.
    async fn check(&self, (term, updates): (u64, u64)) {
        self.world.until("it is closed", async |_| self.state().await == Some(TermState::Closed)).await;
        let record = self.record().await;
        assert_eq!(record.seq, Seq::new(term, vec![updates, 0, 0, 0]));
        assert_eq!(record.checksums, (0..6).map(|index| vec![checksum(index, updates)]).collect::<Vec<_>>());
        assert_eq!((self.states().await, self.open_blocks()), (vec![BlockState::Ok; 6], 0));
        self.read().await.unwrap();
        let sealed = self.open().await.unwrap();
        assert!(sealed.term > term && sealed.members == self.blocks(0..6), "{sealed:?}");
        assert_eq!(sealed.vector.get(&0).copied().unwrap_or(0), updates);
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_in_which_a_stripe_is_open_learns_that_it_was_settled() {
    for reads in [true, false] {
        let mut cluster = Cluster::new(6).await;
        cluster.open().await.unwrap();
        let copy = cluster.world.back_up();
        cluster.update(3);
        cluster.read().await.unwrap();
        // One block was not closed.
        cluster.agents[3].asked().updating.blocks.values_mut().for_each(|it| it.term = Some(2));
        cluster.restore(&copy).await;
        assert_eq!(cluster.state().await, Some(TermState::Open));
        if reads {
            cluster.read().await.unwrap();
        } else {
            tokio::time::sleep(std::time::Duration::from_millis(IDLE_MS)).await;
        }
        cluster.check((2, 3)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_in_which_a_stripe_is_open_learns_that_it_was_settled_and_opened_again() {
    let mut cluster = Cluster::new(6).await;
    cluster.open().await.unwrap();
    let copy = cluster.world.back_up();
    cluster.update(3);
    cluster.read().await.unwrap();
    cluster.open().await.unwrap();
    cluster.update(5);
    cluster.restore(&copy).await;
    cluster.read().await.unwrap();
    cluster.check((4, 5)).await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_in_which_a_stripe_was_being_opened_learns_that_it_was_settled() {
    let mut cluster = Cluster::new(6).await;
    cluster.agents[4].asked().updating.busy = true;
    cluster.open().await.unwrap_err();
    let copy = cluster.world.back_up();
    cluster.agents[4].asked().updating.busy = false;
    cluster.open().await.unwrap();
    cluster.update(1);
    cluster.read().await.unwrap();
    cluster.restore(&copy).await;
    assert_eq!(cluster.state().await, Some(TermState::Opening));
    cluster.read().await.unwrap();
    cluster.check((2, 1)).await;
}

/// What asks for the stripe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    Read,
    Write,
    /// Its agents, when they register with the coordinator.
    Agents,
}

#[tokio::test(start_paused = true)]
async fn a_copy_from_before_a_stripe_was_opened_learns_that_it_is_open() {
    for first in [First::Read, First::Write, First::Agents] {
        let mut cluster = Cluster::new(6).await;
        let copy = cluster.world.back_up();
        cluster.open().await.unwrap();
        cluster.update(2);
        cluster.restore(&copy).await;
        assert_eq!(cluster.term().await, None);
        match first {
            First::Read => drop(cluster.read().await.unwrap()),
            First::Write => {
                // It must not go on in the term of the old leases.
                let error = cluster.open().await.unwrap_err();
                assert!(error.reaction == Reaction::Retry && error.message.contains("after this copy"), "{error}");
            }
            First::Agents => cluster.tell_of(2).await,
        }
        cluster.check((2, 2)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_from_before_a_stripe_was_opened_learns_that_it_was_settled() {
    for writes in [false, true] {
        let mut cluster = Cluster::new(6).await;
        let copy = cluster.world.back_up();
        cluster.open().await.unwrap();
        cluster.update(2);
        cluster.read().await.unwrap();
        cluster.restore(&copy).await;
        assert_eq!((cluster.term().await, cluster.record().await.seq), (None, Seq::default()));
        if writes {
            cluster.open().await.unwrap_err();
        } else {
            cluster.read().await.unwrap();
        }
        cluster.check((2, 2)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_from_before_a_stripe_was_opened_in_part_opens_the_rest() {
    let mut cluster = Cluster::new(6).await;
    let copy = cluster.world.back_up();
    cluster.agents[2..].iter().for_each(|agent| agent.asked().updating.hangs_at = Some(Step::Open));
    let (mut bare, asked) = (cluster.world.bare_client().await, cluster.asked());
    let opening = tokio::spawn(async move { bare.open_for_updates(asked).await });
    cluster.world.until("two have opened it", async |_| cluster.open_blocks() == 2).await;
    cluster.restore(&copy).await;
    opening.abort();
    cluster.agents.iter().for_each(|agent| agent.asked().updating.hangs_at = None);
    cluster.read().await.unwrap();
    cluster.check((2, 0)).await;
}

/// The copy says that the stripe is settled and one block is not closed. That block's node does not come back.
#[tokio::test(start_paused = true)]
async fn a_copy_in_which_a_block_is_not_closed_learns_that_the_stripe_was_opened_again() {
    for (first, settles) in
        [(First::Read, false), (First::Read, true), (First::Write, false), (First::Write, true), (First::Agents, false)]
    {
        let mut cluster = Cluster::new(6).await;
        cluster.open().await.unwrap();
        cluster.agents[5].asked().updating.hangs_at = Some(Step::Close);
        cluster.read().await.unwrap();
        let term = cluster.term().await.unwrap();
        assert_eq!((term.state, term.term.unaware), (TermState::Settled, [cluster.block(5)].into()));
        let copy = cluster.world.back_up();
        cluster.agents[5].asked().updating.hangs_at = None;
        cluster.world.until("it is closed", async |_| cluster.state().await == Some(TermState::Closed)).await;
        cluster.open().await.unwrap();
        cluster.update(3);
        if settles {
            cluster.read().await.unwrap();
        }
        drop(cluster.agents.remove(5));
        cluster.world.restore(&copy).await;
        cluster.meta = opened(&cluster.world);
        cluster.until_up(5).await;
        match first {
            First::Read => drop(cluster.read().await.unwrap()),
            First::Write => drop(cluster.open().await.unwrap_err()),
            First::Agents => {
                cluster.tell_of(2).await;
                // Nothing demands it, so it waits for the node that is away.
                tokio::time::sleep(std::time::Duration::from_secs(150)).await;
            }
        }
        cluster.world.until("it is settled", async |_| cluster.record().await.seq.counts() == [3, 0, 0, 0]).await;
        let record = cluster.record().await;
        assert_eq!(record.seq.term(), 4, "{first:?}");
        assert_eq!(record.checksums_of(1), Some(&[checksum(1, 3)][..]));
        assert_eq!(cluster.open().await.unwrap().members, cluster.blocks(0..5), "{first:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stripe_whose_content_is_not_proved_is_not_read_and_nothing_is_given_up() {
    let mut cluster = Cluster::new(6).await;
    cluster.open().await.unwrap();
    let copy = cluster.world.back_up();
    cluster.update(3);
    cluster.read().await.unwrap();
    cluster.agents[..3].iter().for_each(|agent| agent.asked().updating.hangs_at = Some(Step::Inspect));
    cluster.restore(&copy).await;
    let error = cluster.read().await.unwrap_err();
    assert!(error.reaction == Reaction::Unavailable && error.message.contains("3 of 6 blocks have answered"), "{error}");
    assert_eq!(cluster.states().await, [BlockState::Ok; 6]);
    cluster.agents[..3].iter().for_each(|agent| agent.asked().updating.hangs_at = None);
    cluster.read().await.unwrap();
    cluster.check((2, 3)).await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_of_an_earlier_version_counts_as_ready_and_proves_nothing() {
    let mut cluster = Cluster::new(6).await;
    cluster.agents.iter().for_each(|agent| agent.asked().updating.is_old = true);
    cluster.open().await.unwrap();
    assert_eq!(cluster.calls(Step::Ready), [1; 6]);
    let copy = cluster.world.back_up();
    cluster.update(1);
    cluster.read().await.unwrap();
    cluster.restore(&copy).await;
    let error = cluster.read().await.unwrap_err();
    assert!(error.reaction == Reaction::Unavailable && error.message.contains("too many of its blocks"), "{error}");
    cluster.agents.iter().for_each(|agent| agent.asked().updating.is_old = false);
    cluster.read().await.unwrap();
    cluster.check((2, 1)).await;
}
