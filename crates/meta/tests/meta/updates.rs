//! Stripes that are open for updates: what each transaction changes, and what it refuses.

use crate::{
    commit_at,
    common::{Model, dump, garbage_of, mark_corrupt, open, prepare},
    copies::BACK_TO_SCHEMA_21,
    leftovers_at,
    moved::{follow, taking},
    new_put,
};
use std::collections::{BTreeMap, BTreeSet};
use weft_meta::*;
use weft_types::{
    Ack, BlockId, BlockState, DiskNumber, Epoch, GarbageReason, Home, NodeId, NodeState, ObjectName, Seq, Span, StripeId,
    StripeLayout, StripeRecord, UploadId,
};
use weft_update::{Outcome, Sealed, Session, StripeTerm, UpdateId};

const LATER_MS: u64 = 7_000;

struct World {
    dir: tempfile::TempDir,
    meta: SqliteMeta,
    epoch: Epoch,
    version: UploadId,
    stripe: StripeId,
}

fn home(node: u32) -> Home {
    Home { node: NodeId(node), disk: DiskNumber(node) }
}

fn name() -> ObjectName {
    ObjectName { bucket: "b".into(), key: "k".into() }
}

/// The checksums of a block that contains so many updates.
fn sums(index: u8, updates: u32) -> Vec<u32> {
    vec![100 * updates + u32::from(index)]
}

impl World {
    /// A stripe of rs(2,2) on nodes 1 to 4, with further copies of its data on nodes 5 and 6 if there are to be two.
    async fn new(replicas: u8) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let meta = open(&dir.path().join("metadata.sqlite"));
        let epoch = prepare(&meta).await;
        let (version, stripe) = written(&meta, epoch, replicas, None).await;
        meta.commit_put(epoch, version, commit_at(2 << 20, 5)).await.unwrap();
        Self { dir, meta, epoch, version, stripe }
    }

    fn block(&self, index: u8) -> BlockId {
        BlockId { stripe: self.stripe, index, copy: 0, generation: 1 }
    }

    async fn record(&self) -> StripeRecord {
        self.meta.stripe(self.stripe).await.unwrap()
    }

    async fn term(&self) -> TermRecord {
        self.meta.stripe_term(self.stripe).await.unwrap().unwrap()
    }

    fn ask(&self, members: &[BlockId]) -> OpenStripe {
        OpenStripe {
            stripe: self.stripe,
            before: None,
            members: members.to_vec(),
            now_ms: 5,
            garbage_not_before_ms: LATER_MS,
            grows_to: None,
        }
    }

    /// Opens the stripe with these of its blocks, and marks it open.
    async fn open_with(&self, members: &[BlockId]) -> TermRecord {
        let before = self.meta.stripe_term(self.stripe).await.unwrap().map(|found| found.term);
        let opened = self.meta.open_stripe(self.epoch, OpenStripe { before, ..self.ask(members) }).await.unwrap();
        self.meta.mark_open(self.epoch, self.stripe, opened.term.term).await.unwrap();
        self.term().await
    }

    async fn save(&self, before: &StripeTerm, term: StripeTerm) -> Result<()> {
        self.meta.save_term(self.epoch, self.stripe, before.clone(), term, LATER_MS).await
    }

    /// A complete seal with these members and so many updates of block 0.
    async fn seal(&self, members: &[BlockId], updates: u64) -> StripeTerm {
        let before = self.term().await.term;
        let begun = StripeTerm { term: before.term + 1, ..before.clone() };
        self.save(&before, begun.clone()).await.unwrap();
        let sealed =
            Sealed { term: begun.term, members: members.to_vec(), vector: [(0, updates)].into(), ..(*before.sealed).clone() };
        let sealed = StripeTerm { sealed: sealed.into(), unaware: members.iter().copied().collect(), ..begun.clone() };
        self.save(&begun, sealed.clone()).await.unwrap();
        sealed
    }

    fn settled(&self, term: &StripeTerm, updates: u32) -> SettleStripe {
        let checksums = term.sealed.members.iter().map(|block| (block.index, sums(block.index, updates))).collect();
        SettleStripe { stripe: self.stripe, term: term.term, checksums, now_ms: 50 }
    }

    async fn settle(&self, term: &StripeTerm, updates: u32) -> StripeRecord {
        self.meta.settle_stripe(self.epoch, self.settled(term, updates)).await.unwrap()
    }

    async fn all(&self) -> (Model, Vec<TermRecord>) {
        (dump(&self.meta).await, self.meta.stripe_terms(None, 100).await.unwrap().items)
    }

    /// Fails unless this is a conflict and nothing has changed.
    async fn conflicts<T: std::fmt::Debug>(&self, before: &(Model, Vec<TermRecord>), result: Result<T>, said: &str) {
        let error = result.unwrap_err();
        assert!(matches!(&error, MetaError::Conflict(why) if why.contains(said)), "{said}: {error}");
        assert!(self.all().await == *before, "{said}: it changed something");
    }
}

/// An uncommitted put or conversion of one stripe of rs(2,2).
async fn written(meta: &SqliteMeta, epoch: Epoch, replicas: u8, replaces: Option<UploadId>) -> (UploadId, StripeId) {
    let new = NewUpload { code: "rs(2,2)".into(), ack: Ack { missing_max: 1 }, replicas, replaces, ..new_put() };
    let layout = StripeLayout { layout: new.layout, k: 2, m: 2, data_len: 2 << 20 };
    let homes: Vec<Home> = (1..=4 + 2 * u32::from(replicas - 1)).map(home).collect();
    let stripe = NewStripe { number: 0, layout, homes: homes.clone() };
    let (upload, stripes) = meta.begin_put(epoch, new, vec![stripe]).await.unwrap();
    let blocks = homes.iter().map(|home| (1, *home, BlockState::Ok)).collect();
    let checksums = (0..4).map(|index| sums(index, 0)).collect();
    let end = EndStripe { upload: upload.id, stripe: stripes[0].id, blocks, checksums, garbage_not_before_ms: 1 };
    meta.end_stripe(epoch, end, None).await.unwrap();
    (upload.id, stripes[0].id)
}

#[tokio::test]
async fn a_stripe_is_opened_sealed_settled_closed_and_opened_again() {
    let world = World::new(1).await;
    let all: Vec<BlockId> = (0..4).map(|index| world.block(index)).collect();
    assert_eq!(world.meta.stripe_term(world.stripe).await.unwrap(), None);
    let opening = world.meta.open_stripe(world.epoch, world.ask(&all)).await.unwrap();
    let sealed = Sealed { term: 1, members: all.clone(), ..Sealed::default() };
    let term = StripeTerm { term: 1, sealed: sealed.into(), unaware: BTreeSet::new() };
    assert_eq!(opening, TermRecord { stripe: world.stripe, state: TermState::Opening, term, settled_ms: 0, grows_to: None });
    world.meta.mark_open(world.epoch, world.stripe, 1).await.unwrap();
    world.meta.mark_open(world.epoch, world.stripe, 1).await.unwrap();
    assert_eq!(world.term().await, TermRecord { state: TermState::Open, ..opening });

    let id = UpdateId { session: Session { number: 1, ends_at_ms: 60 }, counter: 2, lead: 0 };
    let sealed = world.seal(&all, 3).await;
    let (outcomes, floors) = ([(id, Outcome::Committed)].into(), [(id.session, 1)].into());
    let told = Sealed { outcomes, floors, ..(*sealed.sealed).clone() };
    let term = StripeTerm { sealed: told.into(), ..sealed.clone() };
    world.save(&sealed, term.clone()).await.unwrap();
    let before = world.record().await;
    let settled = world.settle(&term, 3).await;
    assert_eq!(settled.seq, Seq::new(2, vec![3, 0]));
    assert_eq!(settled.checksums, (0..4).map(|index| sums(index, 3)).collect::<Vec<_>>());
    assert_eq!(settled, StripeRecord { seq: settled.seq.clone(), checksums: settled.checksums.clone(), ..before });
    assert_eq!(world.record().await, settled);
    let record = world.term().await;
    assert_eq!((record.state, record.settled_ms), (TermState::Settled, 50));
    assert_eq!(record.term.unaware, all.iter().copied().collect());

    let closed = |term, blocks: &[BlockId]| world.meta.blocks_closed(world.epoch, world.stripe, term, blocks.to_vec());
    assert!(!closed(1, &all).await.unwrap() && world.term().await == record, "another term");
    assert!(closed(2, &all[..3]).await.unwrap());
    assert_eq!(world.meta.forget_terms(world.epoch, 1_000).await.unwrap(), 0);
    let ask = OpenStripe { before: Some(world.term().await.term), ..world.ask(&all) };
    let before = world.all().await;
    world.conflicts(&before, world.meta.open_stripe(world.epoch, ask.clone()).await, "not closed").await;
    assert!(!closed(2, &all[3..]).await.unwrap());
    assert_eq!(world.term().await.state, TermState::Closed);

    // What clients may ask again is handed on.
    let before = Some(world.term().await.term);
    let again = world.meta.open_stripe(world.epoch, OpenStripe { before, ..ask }).await.unwrap();
    let sealed = &again.term.sealed;
    assert_eq!((again.term.term, sealed.term, &sealed.vector), (3, 3, &[(0, 3)].into()));
    assert_eq!((sealed.outcomes.len(), sealed.floors.len(), again.term.unaware.len()), (1, 1, 0));
}

#[tokio::test]
async fn closed_rows_are_forgotten_after_a_while_and_the_term_still_rises() {
    let world = World::new(1).await;
    let all: Vec<BlockId> = (0..4).map(|index| world.block(index)).collect();
    world.open_with(&all).await;
    let term = world.seal(&all, 1).await;
    world.settle(&term, 1).await;
    world.meta.blocks_closed(world.epoch, world.stripe, term.term, all.clone()).await.unwrap();
    assert_eq!(world.meta.forget_terms(world.epoch, 49).await.unwrap(), 0);
    assert_eq!(world.meta.forget_terms(world.epoch, 50).await.unwrap(), 1);
    assert_eq!(world.meta.stripe_term(world.stripe).await.unwrap(), None);
    let opened = world.open_with(&all).await;
    assert_eq!((opened.term.term, &opened.term.sealed.vector), (3, &[(0, 1)].into()));
}

#[tokio::test]
async fn blocks_that_do_not_take_part_are_fenced_and_what_they_become_is_accepted() {
    let world = World::new(1).await;
    let members: Vec<BlockId> = (0..3).map(|index| world.block(index)).collect();
    let spare =
        NewRepair { stripe: world.stripe, index: 3, copy: 0, home: home(7), upload: None, term: None, expires_ms: 1 << 40 };
    let rebuilding = world.meta.allocate_repair(world.epoch, spare).await.unwrap();
    world.open_with(&members).await;
    let record = world.record().await;
    let fenced = record.blocks[&3];
    assert_eq!(
        (fenced.state, fenced.generation, fenced.generation_high_water, fenced.home),
        (BlockState::Missing, 3, 3, home(4))
    );
    assert!(!record.incomplete && record.blocks[&0].generation == 1);
    let garbage = garbage_of(&world.meta, NodeId(4), u64::MAX >> 1).await;
    let (old, reason, bytes) = (world.block(3), GarbageReason::Repaired, Some(1 << 20));
    assert_eq!(garbage, [GarbageBlock { block: old, home: home(4), reason, bytes, not_before_ms: LATER_MS }]);
    assert!(!world.meta.mark_block(world.epoch, old, BlockState::Ok).await.unwrap());
    let error = world.meta.commit_repair(world.epoch, rebuilding, 1, sums(3, 0), LATER_MS).await.unwrap_err();
    assert!(error.to_string().contains("no longer allocated"), "{error}");

    // A second block is lost during the updates.
    let term = world.seal(&members[..2], 1).await;
    assert_eq!(world.record().await.blocks[&2].state, BlockState::Missing);
    let record = world.settle(&term, 1).await;
    assert_eq!(record.checksums, [sums(0, 1), sums(1, 1), vec![], vec![]]);
    assert_eq!((record.checksums_of(1), record.checksums_of(2)), (Some(&sums(1, 1)[..]), None));
    // Whatever a node has of its old generation, it is not this.
    for generation in [1, 2, 3] {
        let block = BlockId { generation, ..old };
        assert!(!world.meta.mark_block(world.epoch, block, BlockState::Missing).await.unwrap());
        assert!(generation == 3 || !world.meta.mark_block(world.epoch, block, BlockState::Ok).await.unwrap());
    }
    let rebuilt = world.meta.allocate_repair(world.epoch, spare).await.unwrap();
    let whole = world.meta.commit_repair(world.epoch, rebuilt, 3, vec![1, 2], LATER_MS).await.unwrap_err();
    assert!(matches!(&whole, MetaError::Refused(said) if said.contains("checksums")), "too many: {whole}");
    let record = world.meta.commit_repair(world.epoch, rebuilt, 3, sums(3, 1), LATER_MS).await.unwrap();
    assert_eq!((record.checksums_of(3), record.blocks[&3].state), (Some(&sums(3, 1)[..]), BlockState::Ok));
    assert_eq!(world.record().await, record);
    // From then on they are known.
    let again = world.meta.allocate_repair(world.epoch, NewRepair { home: home(4), ..spare }).await.unwrap();
    let error = world.meta.commit_repair(world.epoch, again, rebuilt.generation, sums(3, 9), LATER_MS).await.unwrap_err();
    assert!(matches!(error, MetaError::Refused(_)));
}

#[tokio::test]
async fn what_updates_have_not_changed_of_a_block_that_was_left_out_stays_known() {
    let world = World::new(1).await;
    let members: Vec<BlockId> = (0..3).map(|index| world.block(index)).collect();
    world.open_with(&members).await;
    let term = world.seal(&members, 1).await;
    let record = world.settle(&term, 0).await;
    let known = [Some(sums(3, 0)[0])];
    assert_eq!((record.checksums_of(3), record.kept_of(3, 0)), (None, Some(&known[..])));
    assert_eq!(world.record().await, record);
    assert!(record.may_keep(world.block(3), NodeId(4)), "its old file is needed");
    assert!(!record.may_keep(world.block(3), NodeId(3)) && !record.may_keep(world.block(2), NodeId(3)));
    let own = NewRepair { stripe: world.stripe, index: 3, copy: 0, home: home(4), upload: None, term: None, expires_ms: 1 << 40 };
    let (block, old) = (world.meta.allocate_repair(world.epoch, own).await.unwrap(), record.blocks[&3].generation);
    let error = world.meta.commit_repair(world.epoch, block, old, sums(3, 1), LATER_MS).await.unwrap_err();
    assert!(matches!(&error, MetaError::Refused(said) if said.contains("checksums")), "{error}");
    let whole = world.meta.commit_repair(world.epoch, block, old, sums(3, 0), LATER_MS).await.unwrap();
    assert_eq!((whole.checksums_of(3), whole.kept.len()), (Some(&sums(3, 0)[..]), 0));
    assert_eq!(world.record().await, whole);
    assert!(!whole.may_keep(world.block(3), NodeId(4)), "it is rebuilt");

    // An update of the same MiB.
    world.meta.blocks_closed(world.epoch, world.stripe, term.term, members.clone()).await.unwrap();
    world.open_with(&members).await;
    let term = world.seal(&members, 2).await;
    assert_eq!(world.settle(&term, 2).await.kept_of(3, 0), None);
}

#[tokio::test]
async fn a_block_is_not_rebuilt_by_what_was_known_before_the_stripe_was_updated_again() {
    let world = World::new(1).await;
    let members: Vec<BlockId> = (0..3).map(|index| world.block(index)).collect();
    world.open_with(&members).await;
    let term = world.seal(&members, 1).await;
    let before = world.settle(&term, 0).await;
    assert!(before.kept_of(3, 0).is_some());
    world.meta.blocks_closed(world.epoch, world.stripe, term.term, members.clone()).await.unwrap();
    world.open_with(&members).await;
    let term = world.seal(&members, 2).await;
    let now = world.settle(&term, 2).await;
    assert_eq!(now.kept_of(3, 0), None);

    let planned = |of: &StripeRecord| NewRepair {
        stripe: world.stripe,
        index: 3,
        copy: 0,
        home: home(4),
        upload: None,
        term: Some(of.seq.term()),
        expires_ms: 1 << 40,
    };
    let stale = world.meta.allocate_repair(world.epoch, planned(&before)).await.unwrap_err();
    assert!(matches!(&stale, MetaError::Conflict(said) if said.contains("was updated since")), "{stale}");
    // An update after the allocation gives it up.
    let block = world.meta.allocate_repair(world.epoch, planned(&now)).await.unwrap();
    world.meta.blocks_closed(world.epoch, world.stripe, term.term, members.clone()).await.unwrap();
    world.open_with(&members).await;
    let term = world.seal(&members, 3).await;
    let old = world.settle(&term, 3).await.blocks[&3].generation;
    let late = world.meta.commit_repair(world.epoch, block, old, sums(3, 2), LATER_MS).await.unwrap_err();
    assert!(late.to_string().contains("no longer allocated"), "{late}");
}

#[tokio::test]
async fn what_is_known_of_a_block_is_forgotten_only_for_the_term_that_recorded_it() {
    let world = World::new(1).await;
    let members: Vec<BlockId> = (0..3).map(|index| world.block(index)).collect();
    world.open_with(&members).await;
    let term = world.seal(&members, 1).await;
    let record = world.settle(&term, 0).await;
    let planned = record.seq.term();
    assert!(!world.meta.forget_kept(world.epoch, world.stripe, planned + 1, 3).await.unwrap());
    assert!(!world.meta.forget_kept(world.epoch, world.stripe, planned, 2).await.unwrap());
    assert_eq!(world.record().await, record);
    assert!(world.meta.forget_kept(world.epoch, world.stripe, planned, 3).await.unwrap());
    assert_eq!(world.record().await, StripeRecord { kept: BTreeMap::new(), ..record.clone() });
    let (index, term) = (3, Some(planned));
    let own = NewRepair { stripe: world.stripe, index, copy: 0, home: home(4), upload: None, term, expires_ms: 1 << 40 };
    let block = world.meta.allocate_repair(world.epoch, own).await.unwrap();
    let old = record.blocks[&3].generation;
    let whole = world.meta.commit_repair(world.epoch, block, old, sums(3, 1), LATER_MS).await.unwrap();
    assert_eq!(whole.checksums_of(3), Some(&sums(3, 1)[..]));
}

#[tokio::test]
async fn a_copy_keeps_the_checksums_of_its_block_known() {
    let world = World::new(2).await;
    let copy = |index| BlockId { copy: 1, ..world.block(index) };
    let members = [copy(0), world.block(1), copy(1), world.block(2), world.block(3)];
    world.open_with(&members).await;
    let record = world.record().await;
    let lost = record.find(0, 0).unwrap();
    assert_eq!((lost.state, lost.generation), (BlockState::Missing, 2));
    assert_eq!(
        record.find(0, 1).map(|placed| (placed.state, placed.generation, placed.generation_high_water)),
        Some((BlockState::Ok, 1, 2))
    );
    let term = world.seal(&members, 2).await;
    let record = world.settle(&term, 2).await;
    assert_eq!(record.checksums, (0..4).map(|index| sums(index, 2)).collect::<Vec<_>>());
}

#[tokio::test]
async fn nothing_else_changes_a_stripe_that_is_open() {
    let world = World::new(2).await;
    let all: Vec<BlockId> = world.record().await.all().map(|(index, placed)| world.record_id(index, placed.copy)).collect();
    let begun = world.meta.open_stripe(world.epoch, world.ask(&all)).await.unwrap();
    for is_marked in [false, true] {
        if is_marked {
            world.meta.mark_open(world.epoch, world.stripe, begun.term.term).await.unwrap();
        }
        let before = world.all().await;
        let (meta, epoch) = (&world.meta, world.epoch);
        let repair =
            NewRepair { stripe: world.stripe, index: 3, copy: 0, home: home(7), upload: None, term: None, expires_ms: 1 << 40 };
        world.conflicts(&before, meta.allocate_repair(epoch, repair).await, "open for updates").await;
        let kept = (0..4).map(|index| world.block(index)).collect();
        world.conflicts(&before, meta.drop_copies(epoch, world.stripe, kept, LATER_MS).await, "open for updates").await;
        assert!(!meta.mark_block(epoch, world.block(1), BlockState::Missing).await.unwrap());
        assert!(!mark_corrupt(meta, epoch, world.block(1), vec![Span::new(0, 4096)]).await.unwrap());
        assert!(world.all().await == before, "a report changed an open stripe");
        let ask = OpenStripe { before: Some(begun.term.clone()), ..world.ask(&all) };
        world.conflicts(&before, meta.open_stripe(epoch, ask).await, "open already").await;
    }
    // The object can be removed, and its row goes with it.
    world.meta.remove_object(world.epoch, &name(), LATER_MS).await.unwrap();
    assert_eq!(world.meta.stripe_terms(None, 10).await.unwrap().items, []);
    assert_eq!(garbage_of(&world.meta, NodeId(1), u64::MAX >> 1).await.len(), 1);
}

#[tokio::test]
async fn a_finding_counts_for_the_content_that_its_plan_had() {
    let world = World::new(1).await;
    let all: Vec<BlockId> = (0..4).map(|index| world.block(index)).collect();
    let (meta, epoch) = (&world.meta, world.epoch);
    let found = async |bad: Bad, planned: &Seq| meta.mark_found(epoch, all[1], bad, Some(planned.clone())).await.unwrap();
    let (corrupt, missing) = (|| Bad::Corrupt(vec![Span::new(0, 4096)]), Bad::Lost(BlockState::Missing));
    let old = world.record().await.seq;
    world.open_with(&all).await;
    let before = world.all().await;
    for bad in [corrupt(), missing.clone()] {
        assert_eq!(found(bad, &old).await, Marked::Open);
    }
    assert!(world.all().await == before);
    let sealed = world.seal(&all, 3).await;
    let new = world.settle(&sealed, 3).await.seq;
    let before = world.all().await;
    for bad in [corrupt(), missing.clone()] {
        assert_eq!(found(bad, &old).await, Marked::Updated, "it is about an earlier content");
    }
    assert!(world.all().await == before);
    assert_eq!((found(corrupt(), &new).await, found(corrupt(), &new).await), (Marked::Changed, Marked::Unchanged));
    assert_eq!(world.record().await.corrupt_of(1, 0), [Span::new(0, 4096)]);
    assert_eq!(found(missing, &new).await, Marked::Changed);
    let gone = meta.mark_found(epoch, BlockId { stripe: StripeId(99), ..all[1] }, corrupt(), Some(new)).await;
    assert_eq!(gone.unwrap(), Marked::Unchanged);
}

#[tokio::test]
async fn what_blocks_say_of_newer_metadata_is_recorded() {
    let world = World::new(1).await;
    let all: Vec<BlockId> = (0..4).map(|index| world.block(index)).collect();
    let (meta, epoch) = (&world.meta, world.epoch);
    let term = |term: u64, sealed: u64, members: &[BlockId]| {
        let sealed = Sealed { term: sealed, members: members.to_vec(), vector: [(0, 7)].into(), ..Sealed::default() };
        StripeTerm { term, sealed: sealed.into(), unaware: members.iter().copied().collect() }
    };
    let adopt = |before: Option<StripeTerm>, term: StripeTerm, state: Adopted| AdoptStripe {
        stripe: world.stripe,
        before,
        term,
        state,
        data_len: 0,
        garbage_not_before_ms: LATER_MS,
    };
    // Open, in a later term than these metadata know.
    let opened = world.open_with(&all).await.term;
    let begun = OpenStripe { before: Some(opened.clone()), ..world.ask(&all) };
    let before = world.all().await;
    for (wrong, said) in [
        (adopt(None, term(5, 4, &all), Adopted::Open), "another term"),
        (adopt(Some(opened.clone()), term(0, 4, &all), Adopted::Open), "another term"),
        (adopt(Some(opened.clone()), term(5, 0, &all), Adopted::Open), "another term"),
        (adopt(Some(opened.clone()), term(5, 4, &[BlockId { generation: 9, ..all[0] }]), Adopted::Open), "have changed"),
        (adopt(Some(opened.clone()), term(5, 4, &[]), Adopted::Open), "have changed"),
    ] {
        world.conflicts(&before, meta.adopt_stripe(epoch, wrong).await, said).await;
    }
    let newer = term(5, 4, &all[..3]);
    meta.adopt_stripe(epoch, adopt(Some(opened), newer.clone(), Adopted::Open)).await.unwrap();
    let record = world.term().await;
    assert_eq!((record.state, &record.term, record.takes_updates()), (TermState::Open, &newer, false));
    assert_eq!(world.record().await.blocks[&3].state, BlockState::Missing, "it was not fenced");
    let before = world.all().await;
    world.conflicts(&before, meta.open_stripe(epoch, begun).await, "open already").await;
    // Settled since.
    let settled =
        |indexes: &[u8]| Adopted::Settled { checksums: indexes.iter().map(|it| (*it, sums(*it, 9))).collect(), now_ms: 60 };
    let last = term(8, 8, &all[..3]);
    let wrong = meta.adopt_stripe(epoch, adopt(Some(newer.clone()), last.clone(), settled(&[0, 1]))).await;
    assert!(matches!(wrong, Err(MetaError::Refused(_))), "{wrong:?}");
    meta.adopt_stripe(epoch, adopt(Some(newer), last.clone(), settled(&[0, 1, 2]))).await.unwrap();
    let (record, stripe) = (world.term().await, world.record().await);
    assert_eq!((record.state, record.term, record.settled_ms), (TermState::Settled, last, 60));
    assert_eq!(
        (stripe.seq, stripe.checksums[..4].to_vec()),
        (Seq::new(8, vec![7, 0]), vec![sums(0, 9), sums(1, 9), sums(2, 9), vec![]])
    );
    assert!(!meta.blocks_closed(epoch, world.stripe, 8, all.clone()).await.unwrap());
    // Being opened, after all that.
    let next = StripeTerm { unaware: BTreeSet::new(), ..term(9, 9, &all[..3]) };
    let closed = world.term().await.term;
    meta.adopt_stripe(epoch, adopt(Some(closed), next.clone(), Adopted::Opening)).await.unwrap();
    assert_eq!((world.term().await.state, world.term().await.term), (TermState::Opening, next));
}

impl World {
    fn record_id(&self, index: u8, copy: u8) -> BlockId {
        BlockId { copy, ..self.block(index) }
    }
}

#[tokio::test]
async fn only_a_complete_stripe_of_an_object_with_good_blocks_is_opened() {
    let world = World::new(1).await;
    let all: Vec<BlockId> = (0..4).map(|index| world.block(index)).collect();
    let (meta, epoch) = (&world.meta, world.epoch);
    let (upload, unowned) = written(meta, epoch, 1, None).await;
    let before = world.all().await;
    let ask = OpenStripe { stripe: unowned, ..world.ask(&all) };
    world.conflicts(&before, meta.open_stripe(epoch, ask).await, "not part of an object").await;
    world.conflicts(&before, meta.open_stripe(epoch, world.ask(&[])).await, "have changed").await;
    let old = BlockId { generation: 2, ..all[0] };
    world.conflicts(&before, meta.open_stripe(epoch, world.ask(&[old, all[1]])).await, "have changed").await;
    let stale = OpenStripe { before: Some(StripeTerm::new(all.clone())), ..world.ask(&all) };
    world.conflicts(&before, meta.open_stripe(epoch, stale).await, "term has changed").await;
    let gone = meta.open_stripe(epoch, OpenStripe { stripe: StripeId(99), ..world.ask(&all) }).await;
    assert!(matches!(gone, Err(MetaError::NotFound(_))));
    meta.abort_put(epoch, upload, leftovers_at(1)).await.unwrap();
    mark_corrupt(meta, epoch, all[2], vec![Span::new(0, 4096)]).await.unwrap();
    let before = world.all().await;
    world.conflicts(&before, meta.open_stripe(epoch, world.ask(&all)).await, "have changed").await;
    let members = [all[0], all[1], all[3]];
    world.open_with(&members).await;
    assert_eq!(world.record().await.corrupt, BTreeMap::new());
}

#[tokio::test]
async fn each_step_needs_the_one_before_and_the_stored_term() {
    let world = World::new(1).await;
    let all: Vec<BlockId> = (0..4).map(|index| world.block(index)).collect();
    let (meta, epoch) = (&world.meta, world.epoch);
    let none = StripeTerm::new(all.clone());
    let before = world.all().await;
    world.conflicts(&before, meta.mark_open(epoch, world.stripe, 1).await, "not open").await;
    world.conflicts(&before, world.save(&none, none.clone()).await, "not open").await;
    world.conflicts(&before, meta.settle_stripe(epoch, world.settled(&none, 0)).await, "not open").await;

    let opened = world.open_with(&all).await.term;
    let begun = StripeTerm { term: 2, ..opened.clone() };
    world.save(&opened, begun.clone()).await.unwrap();
    let before = world.all().await;
    // Another coordinator, or this one's earlier attempt, has read an older term.
    world.conflicts(&before, world.save(&opened, begun.clone()).await, "another term").await;
    world.conflicts(&before, meta.mark_open(epoch, world.stripe, 2).await, "another term").await;
    for term in [1, 2] {
        let settle = SettleStripe { term, ..world.settled(&opened, 0) };
        world.conflicts(&before, meta.settle_stripe(epoch, settle).await, "another term").await;
    }
    let sealed = Sealed { term: 2, ..(*begun.sealed).clone() };
    let sealed = StripeTerm { sealed: sealed.into(), ..begun.clone() };
    world.save(&begun, sealed.clone()).await.unwrap();
    let before = world.all().await;
    let mut lacking = world.settled(&sealed, 0);
    lacking.checksums.remove(&3);
    let mut long = world.settled(&sealed, 0);
    long.checksums.insert(3, vec![1, 2]);
    for wrong in [lacking, long] {
        assert!(matches!(meta.settle_stripe(epoch, wrong).await, Err(MetaError::Refused(_))));
        assert!(world.all().await == before, "a settle that was refused changed something");
    }
    world.settle(&sealed, 0).await;
    let before = world.all().await;
    world.conflicts(&before, meta.settle_stripe(epoch, world.settled(&sealed, 0)).await, "not open").await;
}

#[tokio::test]
async fn an_opening_that_no_block_has_seen_is_cancelled_and_its_term_is_not_used_again() {
    let world = World::new(1).await;
    let all: Vec<BlockId> = (0..4).map(|index| world.block(index)).collect();
    let (meta, epoch) = (&world.meta, world.epoch);
    meta.open_stripe(epoch, world.ask(&all)).await.unwrap();
    let before = world.all().await;
    world.conflicts(&before, meta.cancel_opening(epoch, world.stripe, 2, 60).await, "another term").await;
    let stripe = world.record().await;
    meta.cancel_opening(epoch, world.stripe, 1, 60).await.unwrap();
    assert_eq!((world.record().await, world.term().await.state), (stripe, TermState::Closed));
    let opened = world.open_with(&all).await;
    assert_eq!((opened.term.term, opened.state), (2, TermState::Open));
    let before = world.all().await;
    world.conflicts(&before, meta.cancel_opening(epoch, world.stripe, 2, 60).await, "another term").await;
}

#[tokio::test]
async fn a_leader_that_was_replaced_changes_no_term() {
    let world = World::new(1).await;
    let all: Vec<BlockId> = (0..4).map(|index| world.block(index)).collect();
    let term = world.open_with(&all).await.term;
    let (meta, old) = (&world.meta, world.epoch);
    let now = meta.become_leader().await.unwrap();
    let before = world.all().await;
    let stale = |result: Result<()>| assert!(matches!(result, Err(MetaError::StaleLeader { .. })), "{result:?}");
    stale(meta.open_stripe(old, world.ask(&all)).await.map(drop));
    stale(meta.mark_open(old, world.stripe, 1).await);
    stale(world.save(&term, StripeTerm { term: 2, ..term.clone() }).await);
    stale(meta.settle_stripe(old, world.settled(&term, 0)).await.map(drop));
    stale(meta.blocks_closed(old, world.stripe, 1, all.clone()).await.map(drop));
    stale(meta.forget_terms(old, 1 << 40).await.map(drop));
    assert!(world.all().await == before);
    meta.settle_stripe(now, world.settled(&term, 0)).await.unwrap();
}

#[tokio::test]
async fn a_conversion_that_may_have_read_before_an_update_is_not_committed() {
    let world = World::new(1).await;
    let (meta, epoch) = (&world.meta, world.epoch);
    let all: Vec<BlockId> = (0..4).map(|index| world.block(index)).collect();
    let convert = || async { written(meta, epoch, 1, Some(world.version)).await.0 };
    let first = convert().await;
    let term = world.open_with(&all).await.term;
    let before = world.all().await;
    let commit = |upload| meta.commit_put(epoch, upload, commit_at(2 << 20, 9));
    world.conflicts(&before, commit(first).await, "updated in place during its conversion").await;
    meta.abort_put(epoch, first, leftovers_at(9)).await.unwrap();
    // One that begins while it is open reads it settled, and nothing is updated after that without opening it again.
    let second = convert().await;
    world.settle(&term, 0).await;
    let object = commit(second).await.unwrap();
    assert_eq!((object.version, object.written), (second, world.version));
    assert_eq!(meta.stripe_terms(None, 10).await.unwrap().items, [], "the old version's stripe is gone");
}

#[tokio::test]
async fn terms_are_listed_in_pages_and_a_database_of_schema_18_has_none() {
    let world = World::new(1).await;
    let all: Vec<BlockId> = (0..4).map(|index| world.block(index)).collect();
    let converting = written(&world.meta, world.epoch, 1, Some(world.version)).await.0;
    world.open_with(&all).await;
    let page = world.meta.stripe_terms(None, 1).await.unwrap();
    assert_eq!((page.items.len(), page.more), (1, false));
    assert_eq!(world.meta.stripe_terms(Some(world.stripe), 1).await.unwrap().items, []);
    let before = world.record().await;
    let World { dir, meta, epoch, stripe, .. } = world;
    drop(meta);
    let path = dir.path().join("metadata.sqlite");
    let sql = "DROP TABLE stripe_terms; ALTER TABLE objects DROP COLUMN append; ALTER TABLE objects DROP COLUMN append_until_ms;
        ALTER TABLE objects DROP COLUMN append_ended; ALTER TABLE policies DROP COLUMN updates;
        ALTER TABLE objects DROP COLUMN updates; ALTER TABLE uploads DROP COLUMN updates;
        DROP INDEX disks_moved; ALTER TABLE disks DROP COLUMN moved_to; UPDATE schema_version SET version = 18";
    rusqlite::Connection::open(&path).unwrap().execute_batch(&format!("{BACK_TO_SCHEMA_21}{sql}")).unwrap();
    let meta = open(&path);
    assert_eq!(meta.stripe_terms(None, 10).await.unwrap().items, []);
    assert_eq!(meta.stripe(stripe).await.unwrap(), before);
    // What a conversion of that time has read has not been updated.
    meta.commit_put(epoch, converting, commit_at(2 << 20, 9)).await.unwrap();
}

#[tokio::test]
async fn a_block_follows_its_disk_to_another_node_only_when_its_stripe_is_not_open() {
    let world = World::new(1).await;
    let all: Vec<BlockId> = (0..4).map(|index| world.block(index)).collect();
    world.open_with(&all).await;
    world.meta.set_node_state(world.epoch, NodeId(1), NodeState::Down, 1).await.unwrap();
    world.meta.register_node(world.epoch, taking(7, 1, home(1)), 9).await.unwrap();
    assert_eq!((follow(&world.meta, world.epoch, 1).await.stayed, world.record().await.blocks[&0].home), (1, home(1)));
    // Its journal, with all of its updates, has come with the disk.
    let sealed = world.seal(&all, 1).await;
    world.settle(&sealed, 1).await;
    let before = world.record().await;
    assert!(follow(&world.meta, world.epoch, 1).await.complete);
    let mut expected = before;
    expected.find_mut(0, 0).unwrap().home = Home { node: NodeId(7), disk: DiskNumber(8) };
    assert_eq!(world.record().await, expected);
    assert_eq!(world.term().await.state, TermState::Settled);
}
