//! The blocks of an agent that stores nothing, as the coordinator opens them for updates: their terms and counts, and no content.

use std::collections::BTreeMap;
use weft_plan::TaskBlock;
use weft_proto::{decode_message, decode_sealed, encode_message, v1};
use weft_types::{BlockId, Cause, Error, Result, Seq};
use weft_update::{Message, Report, Sealed};

/// A call about an open block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Ready,
    Inspect,
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
    /// Its disk has no room for a journal.
    pub(crate) full: bool,
    /// The journal of its disk is being created.
    pub(crate) creates: bool,
    /// Its disk does not have the blocks.
    pub(crate) lost: bool,
    /// The most bytes of an update that its journal takes; 0: it does not tell.
    pub(crate) update_bytes_max: u64,
    /// It is of a version that does not tell of its blocks.
    pub(crate) is_old: bool,
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
    /// The bytes of the object in the stripe, as it was told; 0: nothing.
    pub(crate) data_len: u64,
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

    /// Refuses a task with other checksums than those of a block that was updated.
    pub(crate) fn compare(&self, block: BlockId, recorded: &[u32]) -> Result<()> {
        let is_right =
            recorded.is_empty() || self.blocks.get(&block).is_none_or(|it| recorded == [checksum(block.index, it.updates)]);
        if is_right { Ok(()) } else { Err(Error::corrupt("it has other checksums than are recorded").block(block)) }
    }

    /// What a block contains.
    pub(crate) fn checksum_of(&self, block: BlockId) -> u32 {
        checksum(block.index, self.blocks.get(&block).map_or(0, |it| it.updates))
    }

    /// Refuses what a real agent refuses.
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
        if let Some(term) = it.term {
            if it.sealed.term == sealed.term {
                return Ok(v1::OpenBlockReply {});
            }
            if sealed.term <= term {
                return Err(Error::invalid(format!("it was open in term {term} already")));
            }
        }
        if sealed.term <= it.seq.term() {
            return Err(Error::invalid(format!("it contains the updates of term {}", it.seq.term())));
        }
        if it.seq.counts().first().copied().unwrap_or(0) != sealed.vector.get(&0).copied().unwrap_or(0) {
            return Err(Error::corrupt("it is stale"));
        }
        (it.term, it.sealed, it.data_len) = (Some(sealed.term), sealed, request.data_len.max(it.data_len));
        Ok(v1::OpenBlockReply {})
    }

    pub(crate) fn inspect(&self, request: &v1::InspectBlockRequest) -> Result<v1::InspectBlockReply> {
        if request.ready && self.full {
            return Err(Error::unavailable("disk /d of n has no room for its journal of 256MiB").cause(Cause::NoSpace));
        }
        if request.ready && self.creates {
            return Err(Error::retry("the journal of the disk is being created"));
        }
        let id = block(&request.block);
        if self.lost {
            return Err(Error::not_found("it is on none of the disks").block(id));
        }
        let it = self.blocks.get(&id).cloned().unwrap_or_default();
        let members = it.sealed.members.iter().map(|member| postcard::to_allocvec(member).unwrap()).collect();
        let open = it.term.map(|term| v1::OpenTerm { term, known: it.sealed.term, members, fenced: false });
        let is_settled = it.term.is_none_or(|term| it.seq.term() == term);
        let seq = v1::Seq { term: it.seq.term(), counts: it.seq.counts().to_vec() };
        let content = v1::SettleBlockReply { seq: Some(seq), checksums: vec![checksum(id.index, it.updates)] };
        let content = is_settled.then_some(content);
        Ok(v1::InspectBlockReply { open, content, update_bytes_max: self.update_bytes_max, data_len: it.data_len })
    }

    pub(crate) fn seal(&mut self, request: &v1::SealBlockRequest) -> Result<v1::SealBlockReply> {
        let it = self.blocks.get_mut(&block(&request.block)).filter(|it| it.term.is_some());
        let it = it.ok_or_else(|| Error::not_found("the block is not open for updates"))?;
        let answer = match decode_message(&request.message).unwrap() {
            Message::Seal { term } => {
                if it.sealed.term >= term {
                    return Err(Error::invalid(format!("it knows what the seal of term {} has decided", it.sealed.term)));
                }
                it.term = it.term.max(Some(term));
                Message::SealReported { term, report: Report { numbers: [(0, it.updates)].into(), ..Report::default() } }
            }
            Message::Sealed(sealed) => {
                assert_eq!(decode_sealed(&request.stripe.as_ref().unwrap().sealed).unwrap(), *sealed);
                if !sealed.members.contains(&block(&request.block)) {
                    return Err(Error::invalid("the seal went on without it"));
                }
                it.sealed = (*sealed).clone();
                Message::SealKnown { term: sealed.term }
            }
            other => panic!("the coordinator sent {other:?}"),
        };
        Ok(v1::SealBlockReply { message: encode_message(&answer).unwrap() })
    }

    pub(crate) fn settle(&mut self, request: &v1::SettleBlockRequest) -> Result<v1::SettleBlockReply> {
        let id = block(&request.block);
        let it = self.blocks.entry(id).or_default();
        let known = it.sealed.term;
        match it.term {
            None if it.seq.term() != request.term => return Err(Error::not_found("the block is not open for updates")),
            Some(_) if known > request.term => return Err(Error::invalid(format!("it is open in term {known}"))),
            Some(_) if known < request.term => return Err(Error::retry("the block has not answered within 10s")),
            _ => {}
        }
        if it.term.is_some() {
            let count = |stream: u8| it.sealed.vector.get(&stream).copied().unwrap_or(0);
            (it.seq, it.updates) = (Seq::new(request.term, (0..4).map(count).collect()), count(0));
        }
        let seq = v1::Seq { term: it.seq.term(), counts: it.seq.counts().to_vec() };
        Ok(v1::SettleBlockReply { seq: Some(seq), checksums: vec![checksum(id.index, it.updates)] })
    }

    pub(crate) fn close(&mut self, request: &v1::CloseBlockRequest) -> Result<v1::CloseBlockReply> {
        if let Some(it) = self.blocks.get_mut(&block(&request.block)).filter(|it| it.term <= Some(request.term)) {
            if it.term.is_some() && it.seq.term() != request.term {
                return Err(Error::invalid(format!("it is not settled in term {}", request.term)));
            }
            it.term = None;
        }
        Ok(v1::CloseBlockReply {})
    }
}
