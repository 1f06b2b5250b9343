//! Reads of open stripes at the nodes of their data blocks, against agents that answer as told.

use crate::{World, agents::Agents, random_bytes};
use std::collections::{BTreeMap, VecDeque};
use weft_client::{GetOptions, PutOptions};
use weft_proto::{
    crc32c,
    updates::{Found, OpenRead, Part, ReadRefusal},
    v1::{ReadAtNode, ReadAtNodes},
};
use weft_types::{BlockId, NodeId};
use weft_update::Version;

const BLOCK_LEN: usize = 256 << 10;

/// What happens to a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The block is overwritten just before it is served.
    Changed,
    Refused(ReadRefusal),
    WrongChecksum,
    OtherRange,
    Broken,
}

/// The stripes that are open, and what their nodes answer.
#[derive(Default)]
pub(crate) struct OpenReads {
    /// 0: none is open.
    term: u64,
    versions: BTreeMap<BlockId, u64>,
    /// None: as it should be.
    answers: VecDeque<Option<Answer>>,
    asked: Vec<OpenRead>,
}

/// The coordinator's part. `homes`: the blocks that are read, and their nodes. It settles the stripe otherwise.
pub(crate) fn at_nodes(agents: &Agents, homes: &[(NodeId, BlockId)], is_wanted: bool) -> Option<ReadAtNodes> {
    let mut state = agents.open_reads.lock().unwrap();
    if !is_wanted || state.term == 0 {
        state.term = 0;
        return None;
    }
    let at = |(node, block): &(NodeId, BlockId)| {
        let (node, block) = (agents.node(*node), postcard::to_stdvec(block).unwrap());
        ReadAtNode { block, name: node.name.clone(), address: node.address.clone(), token: vec![7; 32] }
    };
    Some(ReadAtNodes { term: state.term, ends_at_ms: 99, blocks: homes.iter().map(at).collect() })
}

/// An agent's answer; `None`: the connection breaks.
pub(crate) fn serve(agents: &Agents, node: NodeId, read: OpenRead) -> Option<(Found, Option<Part>)> {
    let mut state = agents.open_reads.lock().unwrap();
    assert_eq!((read.term, read.ends_at_ms, read.token.0), (3, 99, [7; 32]));
    state.asked.push(read.clone());
    let answer = state.answers.pop_front().flatten();
    let mut blocks = agents.blocks.lock().unwrap();
    let content = blocks.get_mut(&(node, read.block)).unwrap();
    let mut range = read.range;
    match answer {
        Some(Answer::Changed) => {
            *state.versions.entry(read.block).or_default() += 1;
            content.iter_mut().for_each(|byte| *byte ^= 0x55);
        }
        Some(Answer::Refused(why)) => return Some((Found::Refused(why), None)),
        Some(Answer::Broken) => return None,
        Some(Answer::OtherRange) => (range.start, range.end) = (range.start + 1, range.end + 1),
        Some(Answer::WrongChecksum) | None => {}
    }
    let numbers = (1..=state.versions.get(&read.block).copied().unwrap_or(0)).collect();
    let version = Version { term: read.term, trimmed: 0, numbers };
    if read.since.as_ref() == Some(&version) {
        return Some((Found::Unchanged, None));
    }
    let bytes = content[range.start as usize..range.end as usize].to_vec();
    let crc = crc32c(&bytes) ^ u32::from(answer == Some(Answer::WrongChecksum));
    Some((Found::Served { version, crc }, Some(Part { stream: read.block.index, start: range.start, bytes: bytes.into() })))
}

impl World {
    /// An object of one stripe, three data blocks of which have bytes, open for updates.
    async fn open() -> (Self, Vec<u8>) {
        let world = Self::insecure().await;
        let bytes = random_bytes(700 << 10, 3);
        let options = PutOptions { block_len: BLOCK_LEN as u64, ..PutOptions::default() };
        world.client.put("b", "k", &bytes[..], &options).await.unwrap();
        world.agents.open_reads.lock().unwrap().term = 3;
        world.coordinator.calls();
        (world, bytes)
    }

    async fn get(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let options = GetOptions { range: Some((range.start as u64..range.end as u64).into()), ..GetOptions::default() };
        self.client.get("b", "k", &mut bytes, &options).await.unwrap();
        bytes
    }

    fn answer(&self, answers: &[Option<Answer>]) {
        self.agents.open_reads.lock().unwrap().answers = answers.iter().copied().collect();
    }

    fn asked(&self) -> Vec<OpenRead> {
        std::mem::take(&mut self.agents.open_reads.lock().unwrap().asked)
    }

    fn is_open(&self) -> bool {
        self.agents.open_reads.lock().unwrap().term != 0
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_of_one_block_takes_one_question_and_the_rest_two_rounds() {
    let (world, bytes) = World::open().await;
    assert!(world.get(5..2000).await == bytes[5..2000]);
    let asked = world.asked();
    assert!(asked.len() == 1 && asked[0].must_confirm && asked[0].since.is_none(), "{asked:?}");
    assert_eq!(world.coordinator.calls(), ["StatObject"], "the answer about the object says where its blocks are");

    assert!(world.get(0..bytes.len()).await == bytes);
    let asked = world.asked();
    let (first, second) = asked.split_at(asked.len() / 2);
    assert!(first.len() > 1 && first.iter().all(|read| !read.must_confirm && read.since.is_none()), "{first:?}");
    assert!(second.iter().all(|read| read.must_confirm && read.since.is_some()), "{second:?}");
    assert!(world.is_open());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changes_while_it_is_read_is_read_again() {
    let (world, bytes) = World::open().await;
    let changed = Some(Answer::Changed);
    world.answer(&[None, None, None, changed, None, None]);
    let got = world.get(0..bytes.len()).await;
    let (asked, blocks) = (world.asked(), bytes.chunks(BLOCK_LEN));
    assert_eq!(asked.len(), 9, "three rounds of three blocks");
    // One block is another one, as a whole.
    let is_other = |(got, before): (&[u8], &[u8])| got.iter().zip(before).all(|(got, before)| *got == before ^ 0x55);
    assert_eq!(got.chunks(BLOCK_LEN).zip(blocks.clone()).filter(|pair| is_other(*pair)).count(), 1);
    assert_eq!(got.chunks(BLOCK_LEN).zip(blocks).filter(|(got, before)| got == before).count(), 2);
    assert!(world.is_open());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_goes_wrong_the_stripe_is_settled_and_read() {
    for wrong in [
        Answer::Refused(ReadRefusal::Closed),
        Answer::Refused(ReadRefusal::Undecided),
        Answer::Refused(ReadRefusal::Busy),
        Answer::WrongChecksum,
        Answer::OtherRange,
        Answer::Broken,
    ] {
        let (world, bytes) = World::open().await;
        world.answer(&[Some(wrong)]);
        assert!(world.get(5..2000).await == bytes[5..2000], "{wrong:?}");
        assert!(!world.is_open(), "{wrong:?}");
        assert_eq!(world.coordinator.calls()[..2], ["StatObject", "ReadStripe"], "{wrong:?}");
    }
    // Bytes that change without an end are not read together either. Nothing is written to them once the stripe is settled.
    let (world, bytes) = World::open().await;
    world.answer(&[Some(Answer::Changed); 18]);
    assert!(world.get(0..bytes.len()).await == bytes, "each block was changed, and changed back, three times");
    assert_eq!((world.asked().len(), world.is_open()), (18, false));
    // A stripe that is opened later is read at its nodes again.
    let (world, bytes) = World::open().await;
    world.answer(&[Some(Answer::Broken)]);
    assert!(world.get(0..9).await == bytes[..9]);
    world.agents.open_reads.lock().unwrap().term = 3;
    assert!(world.get(0..9).await == bytes[..9] && world.is_open());
}
