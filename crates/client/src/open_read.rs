//! Reads of a stripe that is open for updates, at the nodes of its data blocks. The stripe stays open: docs/adr/0020-reads-of-open-stripes.md argues
//! why the bytes are those of one moment ([`Rounds`]). Whatever does not go as it should is no failure: then the stripe is settled, and read.

use crate::{client::Shared, fetch::StripePlace};
use bytes::Bytes;
use futures::future::try_join_all;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::{Instant, timeout_at};
use weft_proto::{
    LinkToken,
    updates::{Found, OPEN_READS_BYTES_MAX, OPEN_READS_MAX, OpenRead, ReadRefusal, pieces_of},
    v1::ReadAtNodes,
};
use weft_types::{BlockId, Error, Result, Span};
use weft_update::{Rounds, RoundsEnd, Version};

/// How the data blocks of an open stripe are read at their nodes.
pub(crate) struct AtNodes {
    term: u64,
    ends_at_ms: u64,
    /// By index.
    homes: BTreeMap<u32, Home>,
}

struct Home {
    block: BlockId,
    name: String,
    address: String,
    token: LinkToken,
}

/// A part of a block, and what is known of it.
struct Piece<'a> {
    home: &'a Home,
    range: Span,
    bytes: Bytes,
}

/// Bytes of a data block: its index, and their offset in it.
pub(crate) type Arrived = (u32, u64, Bytes);

/// How long the agents have for the answers of all rounds. One of them waits for others for a second at most.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// Whether a read of so many bytes may be answered like this.
pub(crate) fn is_short(missing: &BTreeMap<u32, Vec<Span>>) -> bool {
    let bytes: u64 = missing.values().flatten().map(|span| span.len()).sum();
    bytes <= OPEN_READS_BYTES_MAX
}

impl AtNodes {
    /// What the coordinator answered.
    pub(crate) fn new(reply: ReadAtNodes) -> Result<Self> {
        let mut homes = BTreeMap::new();
        for at in reply.blocks {
            let invalid = |_| Error::fatal("the coordinator sent an invalid block of an open stripe");
            let block: BlockId = postcard::from_bytes(&at.block).map_err(invalid)?;
            let token = LinkToken::from_slice(&at.token)?;
            homes.insert(u32::from(block.index), Home { block, name: at.name, address: at.address, token });
        }
        Ok(Self { term: reply.term, ends_at_ms: reply.ends_at_ms, homes })
    }

    /// Reads these ranges of data blocks, as they are at one moment.
    pub(crate) async fn read(
        &self,
        shared: &Shared,
        stripe: &StripePlace,
        ranges: &BTreeMap<u32, Vec<Span>>,
    ) -> Result<Vec<Arrived>> {
        let mut pieces = Vec::new();
        for (index, spans) in ranges {
            let home = self.homes.get(index).filter(|home| home.block.stripe == stripe.id);
            let home = home.ok_or_else(|| Error::fatal("the coordinator did not name the node of a block of an open stripe"))?;
            let ranges = spans.iter().flat_map(|span| pieces_of(*span));
            pieces.extend(ranges.map(|range| Piece { home, range, bytes: Bytes::new() }));
        }
        if pieces.len() > OPEN_READS_MAX {
            return Err(Error::fatal("a read of an open stripe has too many parts"));
        }
        let (mut rounds, until) = (Rounds::new(pieces.len()), Instant::now() + ANSWERS_WITHIN);
        loop {
            let must_confirm = rounds.must_confirm();
            let asked = pieces.iter().enumerate();
            let asked = asked.map(|(at, piece)| self.ask(shared, piece, rounds.since(at), must_confirm, until));
            let answers = try_join_all(asked).await?;
            let mut versions = Vec::with_capacity(pieces.len());
            for (piece, (version, bytes)) in pieces.iter_mut().zip(answers) {
                if let Some(bytes) = bytes {
                    piece.bytes = bytes;
                }
                versions.push(version);
            }
            match rounds.ended(versions) {
                RoundsEnd::Done => break,
                RoundsEnd::Again => {}
                RoundsEnd::Vain => return Err(Error::retry("the bytes are overwritten faster than they can be read together")),
            }
        }
        Ok(pieces.into_iter().map(|piece| (u32::from(piece.home.block.index), piece.range.start, piece.bytes)).collect())
    }

    /// The version of a piece, and its bytes unless they are known. After `until`, the answer is too late.
    async fn ask(
        &self,
        shared: &Shared,
        piece: &Piece<'_>,
        since: Option<&Version>,
        must_confirm: bool,
        until: Instant,
    ) -> Result<(Version, Option<Bytes>)> {
        let Home { block, name, address, token } = piece.home;
        let read = OpenRead {
            block: *block,
            term: self.term,
            ends_at_ms: self.ends_at_ms,
            token: *token,
            range: piece.range,
            since: since.cloned(),
            must_confirm,
        };
        let asked = async { shared.updates.connect(address, name).await?.read(read).await };
        let late = |_| Error::retry(format!("agent {name} does not answer in time")).block(*block);
        let refused = |why: &str| Error::retry(format!("agent {name}: {why}")).block(*block);
        match timeout_at(until, asked).await.map_err(late)?? {
            (Found::Served { version, .. }, bytes) => Ok((version, Some(bytes.into()))),
            (Found::Unchanged, _) => match since {
                Some(version) => Ok((version.clone(), None)),
                None => Err(refused("it says that bytes are unchanged that were not read")),
            },
            (Found::Refused(why), _) => Err(refused(reason(why))),
        }
    }
}

fn reason(refusal: ReadRefusal) -> &'static str {
    match refusal {
        ReadRefusal::Closed => "the block is not open in this term any more",
        ReadRefusal::Undecided => "the outcome of an update was not known in time, or the term not confirmed",
        ReadRefusal::Busy => "it has too much to do",
        ReadRefusal::Invalid => "the right to read has ended",
        ReadRefusal::Unreadable => "the block cannot be read",
    }
}
