//! The blocks of an agent that stores nothing, as the coordinator opens them for updates: their terms and counts, and no content.

use std::collections::BTreeMap;
use weft_plan::TaskBlock;
use weft_proto::{decode_message, decode_sealed, encode_message, v1};
use weft_types::{BlockId, Cause, Error, Result, Seq};
use weft_update::{Message, Report, Sealed};

/// A call about an open block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Open,
    Seal,
    Sealed,
    Settle,
    Close,
}

/// The open blocks of an agent, and how it answers.
#[derive(Debug, Default)]
pub(crate) struct Updating {
    pub(crate) blocks: BTreeMap<BlockId, Block>,
    /// It does not answer calls of this step.
    pub(crate) hangs_at: Option<Step>,
    /// A task uses its blocks, so it does not open them.
    pub(crate) busy: bool,
    /// It never opens a block.
    pub(crate) refuses: bool,
    /// The calls that it received.
    pub(crate) calls: BTreeMap<Step, usize>,
    epoch: u64,
}

/// A block of rs(4,2).
#[derive(Debug, Default, Clone)]
pub(crate) struct Block {
    /// The term in which it is open.
    pub(crate) term: Option<u64>,
    /// Its sidecar's.
    pub(crate) seq: Seq,
    /// The updates of data block 0.
    pub(crate) updates: u64,
    sealed: Sealed,
}

/// The checksum of a block that contains so many updates.
pub(crate) fn checksum(index: u8, updates: u64) -> u32 {
    1000 * updates as u32 + u32::from(index)
}

fn block(bytes: &[u8]) -> BlockId {
    postcard::from_bytes(bytes).unwrap()
}

impl Updating {
    pub(crate) fn came(&mut self, step: Step, epoch: u64) {
        *self.calls.entry(step).or_default() += 1;
        self.epoch = self.epoch.max(epoch);
    }

    pub(crate) fn obeys(&self, epoch: u64) -> Result<()> {
        if epoch == self.epoch { Ok(()) } else { Err(Error::invalid("another coordinator leads")) }
    }

    pub(crate) fn count(&self, step: Step) -> usize {
        self.calls.get(&step).copied().unwrap_or(0)
    }

    /// Refuses a task that reads an open block.
    pub(crate) fn task(&self, reads: &[TaskBlock]) -> Result<()> {
        let is_open = |read: &&TaskBlock| self.blocks.get(&read.id).is_some_and(|block| block.term.is_some());
        match reads.iter().find(is_open) {
            Some(read) => Err(Error::retry("the block is open for updates").block(read.id).cause(Cause::OpenForUpdates)),
            None => Ok(()),
        }
    }

    pub(crate) fn open(&mut self, request: &v1::OpenBlockRequest) -> Result<v1::OpenBlockReply> {
        if self.busy {
            return Err(Error::retry("a task uses the block"));
        }
        if self.refuses {
            return Err(Error::invalid("it has no journal"));
        }
        let sealed = decode_sealed(&request.stripe.as_ref().unwrap().sealed).unwrap();
        assert!(sealed.members.contains(&block(&request.block)));
        let it = self.blocks.entry(block(&request.block)).or_default();
        assert!(it.term.is_none_or(|term| term == sealed.term), "it is open in term {:?}", it.term);
        assert!(it.seq.term() < sealed.term, "{it:?}");
        assert_eq!(it.seq.counts().first().copied().unwrap_or(0), sealed.vector.get(&0).copied().unwrap_or(0));
        (it.term, it.sealed) = (Some(sealed.term), sealed);
        Ok(v1::OpenBlockReply {})
    }

    pub(crate) fn seal(&mut self, request: &v1::SealBlockRequest) -> Result<v1::SealBlockReply> {
        let it = self.blocks.get_mut(&block(&request.block)).filter(|it| it.term.is_some());
        let it = it.ok_or_else(|| Error::not_found("the block is not open"))?;
        let answer = match decode_message(&request.message).unwrap() {
            Message::Seal { term } => {
                assert!(it.term <= Some(term));
                it.term = Some(term);
                Message::SealReported { term, report: Report { numbers: [(0, it.updates)].into(), ..Report::default() } }
            }
            Message::Sealed(sealed) => {
                assert_eq!(decode_sealed(&request.stripe.as_ref().unwrap().sealed).unwrap(), *sealed);
                it.sealed = (*sealed).clone();
                Message::SealKnown { term: sealed.term }
            }
            other => panic!("the coordinator sent {other:?}"),
        };
        Ok(v1::SealBlockReply { message: encode_message(&answer).unwrap() })
    }

    pub(crate) fn settle(&mut self, request: &v1::SettleBlockRequest) -> Result<v1::SettleBlockReply> {
        let id = block(&request.block);
        let it = self.blocks.get_mut(&id).unwrap();
        assert_eq!((it.term, it.sealed.term), (Some(request.term), request.term));
        let count = |stream: u8| it.sealed.vector.get(&stream).copied().unwrap_or(0);
        (it.seq, it.updates) = (Seq::new(request.term, (0..4).map(count).collect()), count(0));
        let seq = v1::Seq { term: it.seq.term(), counts: it.seq.counts().to_vec() };
        Ok(v1::SettleBlockReply { seq: Some(seq), checksums: vec![checksum(id.index, it.updates)] })
    }

    pub(crate) fn close(&mut self, request: &v1::CloseBlockRequest) -> Result<v1::CloseBlockReply> {
        if let Some(it) = self.blocks.get_mut(&block(&request.block)).filter(|it| it.term <= Some(request.term)) {
            assert_eq!(it.seq.term(), request.term, "it is not settled");
            it.term = None;
        }
        Ok(v1::CloseBlockReply {})
    }
}
