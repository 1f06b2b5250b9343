//! Metadata that were restored from an older copy: what the blocks of a stripe say of updates that these metadata do not know.
//!
//! Terms rise with each opening and each seal, and a block is closed only once the metadata have recorded what it contains. So a block with a higher
//! term than is recorded proves that newer metadata existed. A block that is closed with the last seal of an open stripe may have lost its journal
//! after it had settled: then the seal goes on without it if the others suffice.

use super::{SettledBlock, can_rebuild};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_codes::SharedCode;
use weft_types::{BlockId, Error, Result, Seq, StripeRecord};
use weft_update::{Sealed, StripeTerm};

/// What a node says of its block of a stripe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inspected {
    /// It is not open, and contains this.
    Closed(SettledBlock),
    /// It is open for updates, or settled and not closed.
    Open(OpenBlock),
}

/// An open block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenBlock {
    /// The highest term that it obeys.
    pub term: u64,
    /// The highest term whose members it knows.
    pub known: u64,
    /// The stripe's blocks in the known term.
    pub members: Vec<BlockId>,
    /// A seal went on without it.
    pub is_fenced: bool,
    /// What it contains if it is settled.
    pub settled: Option<SettledBlock>,
}

/// The blocks of a stripe that have answered.
pub type Answers = BTreeMap<BlockId, Inspected>;

/// What the metadata say of a stripe's term.
#[derive(Debug, Clone, Copy)]
pub struct Recorded<'a> {
    /// Its term, if it is open or was a while ago.
    pub term: Option<&'a StripeTerm>,
    /// Whether it is open.
    pub is_open: bool,
}

/// What newer metadata must have said of a stripe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Newer {
    /// Its term. The members of its seal are the blocks that count.
    pub term: StripeTerm,
    /// What its blocks are.
    pub found: Found,
}

/// How the blocks of a stripe were found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Some are open, and no client can have updated them.
    Opening,
    /// Open, and perhaps sealed.
    Open,
    /// Settled in the term of the seal. The CRC32C of each MiB, by index.
    Settled(BTreeMap<u8, Vec<u32>>),
}

/// Whether a block has a term that the metadata do not know. One that is closed with the last seal of an open stripe may have lost its journal
/// after it had settled.
pub fn is_behind(stripe: &StripeRecord, recorded: Recorded<'_>, told: &Inspected) -> bool {
    let open = recorded.term.filter(|_| recorded.is_open);
    let of_stripe = stripe.seq.term();
    match told {
        Inspected::Closed(content) => content.seq.term() > open.map_or(0, |open| open.sealed.term).max(of_stripe),
        Inspected::Open(block) if block.is_fenced => false,
        Inspected::Open(block) => match open {
            Some(open) => block.known > open.sealed.term.max(of_stripe) || block.term > open.term.max(of_stripe),
            None => block.known > of_stripe,
        },
    }
}

/// What must be recorded of a stripe whose blocks have terms that the metadata do not know; `None` if they have not. Fails if the blocks that
/// have answered do not tell what the whole stripe contains.
pub fn behind(code: &SharedCode, stripe: &StripeRecord, recorded: Recorded<'_>, told: &Answers) -> Result<Option<Newer>> {
    let open: BTreeMap<BlockId, &OpenBlock> = told.iter().filter_map(|(block, told)| Some((*block, told.open()?))).collect();
    let of_record = recorded.term.map_or(0, |term| term.term);
    let highest = open.values().map(|open| open.term).chain([of_record, stripe.seq.term()]).max().unwrap_or(0);
    let closed = told.values().filter_map(Inspected::closed).map(|content| content.seq.term()).max().unwrap_or(0);
    let known = open.values().map(|open| open.known).max().unwrap_or(0);
    let was_closed = || closed > stripe.seq.term() && closed >= known && !may_go_on(code, stripe, &open, told, closed);
    if !told.values().any(|told| is_behind(stripe, recorded, told)) && !was_closed() {
        return Ok(None);
    }
    // The first block is closed when all have settled in its term. Open blocks are updated or sealed, unless all of them have settled, too.
    let is_settled = closed >= known || open.values().all(|open| open.known < known || open.settled.is_some());
    if is_settled {
        return settled(code, stripe, recorded, (closed.max(known), highest), told).map(Some);
    }
    let of_known = |open: &&OpenBlock| open.known == known;
    let members: BTreeSet<BlockId> =
        open.values().copied().filter(of_known).flat_map(|open| open.members.iter().copied()).collect();
    let is_open: Vec<BlockId> = open.keys().copied().filter(|block| members.contains(block)).collect();
    let term = |members: Vec<BlockId>, seq: &Seq, unaware| {
        let sealed = sealed(recorded, known, members, seq);
        StripeTerm { term: highest, sealed: Arc::new(sealed), unaware }
    };
    if can_rebuild(code, stripe, &is_open, &BTreeSet::new()) {
        // The next seal hears the highest numbers from them. Until then, no client gets a lease.
        let unaware = is_open.iter().copied().collect();
        return Ok(Some(Newer { term: term(is_open, &stripe.seq, unaware), found: Found::Open }));
    }
    let before: BTreeMap<BlockId, &Seq> = told
        .iter()
        .filter(|(block, _)| members.contains(block))
        .filter_map(|(block, told)| Some((*block, &told.closed()?.seq)))
        .collect();
    // More blocks were not opened than can have been lost since: no client got a lease, and all contain what they had before.
    let members: Vec<BlockId> = members.into_iter().collect();
    let was_opened = can_rebuild(code, stripe, &members, &before.keys().copied().collect());
    let all: BTreeSet<BlockId> = is_open.iter().chain(before.keys()).copied().collect();
    let all: Vec<BlockId> = all.into_iter().collect();
    match before.values().next() {
        Some(seq) if !was_opened && before.values().all(|it| it == seq) && can_rebuild(code, stripe, &all, &BTreeSet::new()) => {
            Ok(Some(Newer { term: term(all, seq, BTreeSet::new()), found: Found::Opening }))
        }
        _ => Err(too_few(stripe, is_open.len(), known)),
    }
}

/// Whether the stripe can be settled without the blocks that are closed with this term: they may have lost their journals after they had settled.
/// Not if all others have settled with the same content, or are too few to rebuild the stripe.
fn may_go_on(code: &SharedCode, stripe: &StripeRecord, open: &BTreeMap<BlockId, &OpenBlock>, told: &Answers, term: u64) -> bool {
    let closed = told.values().filter_map(Inspected::closed).find(|content| content.seq.term() == term);
    let is_same = |open: &&OpenBlock| open.settled.as_ref().map(|settled| &settled.seq) == closed.map(|closed| &closed.seq);
    let blocks: Vec<BlockId> = open.keys().copied().collect();
    !open.values().all(is_same) && can_rebuild(code, stripe, &blocks, &BTreeSet::new())
}

/// What a seal must have decided. The outcomes and floors that are recorded stay known: a client may repeat its request.
fn sealed(recorded: Recorded<'_>, term: u64, members: Vec<BlockId>, seq: &Seq) -> Sealed {
    let vector = (0..=u8::MAX).zip(seq.counts().iter().copied()).filter(|(_, count)| *count > 0).collect();
    let (outcomes, floors) =
        recorded.term.map(|record| (record.sealed.outcomes.clone(), record.sealed.floors.clone())).unwrap_or_default();
    Sealed { term, members, outcomes, vector, floors }
}

/// All blocks with the same term and counts contain the same updates: a block gets them when it has applied all that the seal has decided.
fn settled(
    code: &SharedCode,
    stripe: &StripeRecord,
    recorded: Recorded<'_>,
    (term, highest): (u64, u64),
    told: &Answers,
) -> Result<Newer> {
    let of_term = |content: &&SettledBlock| content.seq.term() == term;
    let contents = told.iter().filter_map(|(block, told)| Some((*block, told.content().filter(of_term)?)));
    let (mut members, mut checksums, mut seq): (Vec<BlockId>, BTreeMap<u8, Vec<u32>>, Option<&Seq>) = Default::default();
    for (block, content) in contents {
        if **seq.get_or_insert(&content.seq) != content.seq {
            let message =
                format!("blocks of stripe {} contain different updates of term {term}: put the object again", stripe.number);
            return Err(Error::unavailable(message));
        }
        let is_whole = content.checksums.len() as u64 == stripe.layout.checksum_units(block.index.into());
        let recorded = checksums.entry(block.index).or_insert_with(|| content.checksums.clone());
        if is_whole && *recorded == content.checksums {
            members.push(block);
        }
    }
    checksums.retain(|index, _| members.iter().any(|block| block.index == *index));
    let Some(seq) = seq.filter(|_| can_rebuild(code, stripe, &members, &BTreeSet::new())) else {
        return Err(too_few(stripe, members.len(), term));
    };
    let unaware = members.iter().copied().collect();
    let sealed = sealed(recorded, term, members, seq);
    let term = StripeTerm { term: highest.max(term), sealed: Arc::new(sealed), unaware };
    Ok(Newer { term, found: Found::Settled(checksums) })
}

fn too_few(stripe: &StripeRecord, have: usize, term: u64) -> Error {
    let (number, all) = (stripe.number, stripe.blocks.len());
    Error::unavailable(format!(
        "stripe {number} was updated in place after this copy of the metadata was made: {have} of {all} blocks have answered that contain \
         the updates of term {term}, and the others cannot be rebuilt from these"
    ))
}

impl Inspected {
    /// The block, if it is open and still one of the stripe.
    fn open(&self) -> Option<&OpenBlock> {
        match self {
            Self::Open(open) if !open.is_fenced => Some(open),
            _ => None,
        }
    }

    fn closed(&self) -> Option<&SettledBlock> {
        if let Self::Closed(content) = self { Some(content) } else { None }
    }

    /// What it contains, if nothing changes that.
    fn content(&self) -> Option<&SettledBlock> {
        self.closed().or_else(|| self.open()?.settled.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::stripe;
    use weft_types::Reaction;
    use weft_update::Session;

    fn block(index: u8) -> BlockId {
        BlockId { stripe: stripe().id, index, copy: 0, generation: 1 }
    }

    fn all() -> Vec<BlockId> {
        (0..6).map(block).collect()
    }

    fn content(index: u8, term: u64, updates: u64) -> SettledBlock {
        let counts = if term == 0 { Vec::new() } else { vec![updates, 0, 0, 0] };
        SettledBlock { seq: Seq::new(term, counts), checksums: vec![100 * updates as u32 + u32::from(index)] }
    }

    fn closed(index: u8, term: u64, updates: u64) -> Inspected {
        Inspected::Closed(content(index, term, updates))
    }

    fn open(term: u64, known: u64) -> Inspected {
        Inspected::Open(OpenBlock { term, known, members: all(), is_fenced: false, settled: None })
    }

    fn settled_open(index: u8, term: u64, updates: u64) -> Inspected {
        let settled = Some(content(index, term, updates));
        Inspected::Open(OpenBlock { term, known: term, members: all(), is_fenced: false, settled })
    }

    fn record(term: u64, sealed: u64) -> StripeTerm {
        let sealed = Sealed { term: sealed, members: all(), ..Sealed::default() };
        StripeTerm { term, sealed: Arc::new(sealed), unaware: BTreeSet::new() }
    }

    fn told(make: impl Fn(u8) -> Option<Inspected>) -> Answers {
        (0..6).filter_map(|index| Some((block(index), make(index)?))).collect()
    }

    fn judge(recorded: Option<&StripeTerm>, is_open: bool, told: &Answers) -> Result<Option<Newer>> {
        let code = weft_codes::parse("rs(4,2)").unwrap();
        behind(&code, &stripe(), Recorded { term: recorded, is_open }, told)
    }

    #[test]
    fn blocks_of_current_metadata_prove_nothing() {
        let opened = record(1, 1);
        let sealing = record(2, 1);
        for (case, recorded, is_open, told) in [
            ("never opened", None, false, told(|index| Some(closed(index, 0, 0)))),
            ("open", Some(&opened), true, told(|_| Some(open(1, 1)))),
            ("a seal is under way", Some(&sealing), true, told(|index| Some(open(1 + u64::from(index % 2), 1)))),
            (
                "it lost its journal",
                Some(&opened),
                true,
                told(|index| Some(if index == 0 { closed(0, 0, 0) } else { open(1, 1) })),
            ),
            ("settled, and not recorded", Some(&record(2, 2)), true, told(|index| Some(settled_open(index, 2, 3)))),
        ] {
            assert_eq!(judge(recorded, is_open, &told), Ok(None), "{case}");
        }
        let fenced = OpenBlock { term: 9, known: 9, members: all(), is_fenced: true, settled: None };
        assert_eq!(judge(None, false, &[(block(0), Inspected::Open(fenced))].into()), Ok(None), "it counts no more");
    }

    #[test]
    fn a_block_that_lost_its_journal_after_it_settled_proves_nothing() {
        for (case, recorded, others) in [
            ("the next seal has begun", record(5, 4), open(5, 4)),
            ("the seal has not reached them", record(5, 4), open(4, 4)),
            ("the next seal is recorded", record(5, 5), open(5, 5)),
            ("another one has more updates", record(4, 4), settled_open(3, 4, 8)),
        ] {
            for lost in 1..3 {
                let told = told(|index| Some(if index < lost { closed(index, 4, 7) } else { others.clone() }));
                assert_eq!(judge(Some(&recorded), true, &told), Ok(None), "{case}, {lost} blocks");
            }
        }
        // A copy from between the seal and its end: then all were settled and closed.
        let all_closed = told(|index| Some(closed(index, 4, 7)));
        let one_left = told(|index| Some(if index == 5 { settled_open(5, 4, 7) } else { closed(index, 4, 7) }));
        let one_older = told(|index| Some(if index == 5 { closed(5, 0, 0) } else { closed(index, 4, 7) }));
        let few_open = told(|index| Some(if index < 2 { open(5, 4) } else { closed(index, 4, 7) }));
        for (told, count) in [(all_closed, 6), (one_left, 6), (one_older, 5), (few_open, 4)] {
            let newer = judge(Some(&record(5, 4)), true, &told).unwrap().unwrap();
            assert!(matches!(newer.found, Found::Settled(_)), "{newer:?}");
            assert_eq!((newer.term.term, newer.term.sealed.term, newer.term.sealed.members.len()), (5, 4, count));
        }
    }

    #[test]
    fn recorded_outcomes_stay_known() {
        let session = Session { number: 3, ends_at_ms: 9 };
        let sealed = Sealed { floors: [(session, 2)].into(), ..(*record(1, 1).sealed).clone() };
        let recorded = StripeTerm { sealed: Arc::new(sealed), ..record(1, 1) };
        for told in [told(|index| Some(closed(index, 4, 7))), told(|_| Some(open(3, 3)))] {
            let newer = judge(Some(&recorded), true, &told).unwrap().unwrap();
            assert_eq!(newer.term.sealed.floors, recorded.sealed.floors);
        }
    }

    #[test]
    fn blocks_that_were_settled_since_say_what_the_stripe_contains() {
        let opened = record(1, 1);
        for (case, told) in [
            ("all are closed", told(|index| Some(closed(index, 4, 7)))),
            ("some are not closed", told(|index| Some(if index < 3 { closed(index, 4, 7) } else { settled_open(index, 4, 7) }))),
            ("none is closed", told(|index| Some(settled_open(index, 4, 7)))),
        ] {
            let newer = judge(Some(&opened), true, &told).unwrap().unwrap();
            let sums = (0..6).map(|index| (index, vec![700 + u32::from(index)])).collect();
            assert_eq!(newer.found, Found::Settled(sums), "{case}");
            let sealed = Sealed { term: 4, members: all(), vector: [(0, 7)].into(), ..Sealed::default() };
            assert_eq!((newer.term.term, &*newer.term.sealed), (4, &sealed), "{case}");
            assert_eq!(newer.term.unaware, all().into_iter().collect(), "{case}");
        }
        // A term that these metadata have given out themselves is not given again.
        assert_eq!(judge(Some(&record(6, 1)), true, &told(|index| Some(closed(index, 4, 7)))).unwrap().unwrap().term.term, 6);
    }

    #[test]
    fn what_is_older_or_differs_is_left_out_and_too_few_prove_nothing() {
        let mixed = |stale: u8| told(|index| Some(if index < stale { closed(index, 2, 5) } else { closed(index, 4, 7) }));
        let newer = judge(None, false, &mixed(2)).unwrap().unwrap();
        assert_eq!(newer.term.sealed.members, (2..6).map(block).collect::<Vec<_>>());
        let error = judge(None, false, &mixed(3)).unwrap_err();
        assert!(error.reaction == Reaction::Unavailable && error.message.contains("3 of 6 blocks"), "{error}");
        assert!(judge(None, false, &told(|index| (index < 3).then(|| closed(index, 4, 7)))).is_err());
        let contradict = told(|index| Some(closed(index, 4, 7 + u64::from(index == 5))));
        assert!(judge(None, false, &contradict).unwrap_err().message.contains("different updates"));
        let mut cut = told(|index| Some(closed(index, 4, 7)));
        let Some(Inspected::Closed(of_first)) = cut.get_mut(&block(0)) else { unreachable!() };
        of_first.checksums.clear();
        let newer = judge(None, false, &cut).unwrap().unwrap();
        assert!(!newer.term.sealed.members.contains(&block(0)));
        assert!(matches!(newer.found, Found::Settled(sums) if sums.keys().copied().eq(1..6)));
    }

    #[test]
    fn blocks_that_were_opened_since_are_sealed_again() {
        // One has not been opened, or has lost its journal: then an update may be missing in it.
        for closes in [None, Some(5)] {
            let told =
                told(|index| Some(if closes == Some(index) { closed(index, 0, 0) } else { open(3 + u64::from(index == 1), 3) }));
            let newer = judge(Some(&record(1, 1)), true, &told).unwrap().unwrap();
            let members: Vec<BlockId> = (0..6).filter(|index| closes != Some(*index)).map(block).collect();
            assert_eq!((newer.found, newer.term.term, newer.term.sealed.term), (Found::Open, 4, 3));
            assert_eq!((&newer.term.sealed.members, newer.term.unaware.len()), (&members, members.len()), "it takes updates");
        }
        // A block that does not know the last seal was not fenced by it.
        let known = |index: u8| Some(if index == 0 { open(3, 2) } else { open(3, 3) });
        assert_eq!(judge(None, false, &told(known)).unwrap().unwrap().term.sealed.members, all());
        // One that is no member of the last seal.
        let without = |index: u8| match open(3, 3) {
            Inspected::Open(open) if index > 0 => {
                Some(Inspected::Open(OpenBlock { members: (1..6).map(block).collect(), ..open }))
            }
            _ => Some(self::open(2, 2)),
        };
        assert_eq!(
            judge(None, false, &told(without)).unwrap().unwrap().term.sealed.members,
            (1..6).map(block).collect::<Vec<_>>()
        );
    }

    #[test]
    fn an_opening_that_reached_few_blocks_goes_on() {
        let few = told(|index| Some(if index < 2 { open(1, 1) } else { closed(index, 0, 0) }));
        let newer = judge(None, false, &few).unwrap().unwrap();
        assert_eq!((newer.found, newer.term.term, &newer.term.sealed.members), (Found::Opening, 1, &all()));
        assert!(newer.term.unaware.is_empty() && newer.term.sealed.vector.is_empty());
        let later = told(|index| Some(if index < 3 { open(5, 5) } else { closed(index, 4, 7) }));
        let newer = judge(None, false, &later).unwrap().unwrap();
        assert_eq!((newer.found, &newer.term.sealed.vector), (Found::Opening, &[(0, 7)].into()));
        // Those that are silent may have been opened, too, and updated: then the ones that are closed have lost that.
        let silent = told(|index| (index < 4).then(|| if index < 3 { open(1, 1) } else { closed(index, 0, 0) }));
        assert!(judge(None, false, &silent).is_err());
    }
}
