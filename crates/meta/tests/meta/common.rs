//! A model of the metadata in memory, and operations that run on both the model and the database.

use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use std::{collections::BTreeMap, path::Path};
use weft_meta::*;
use weft_types::{
    Ack, Amount, BlockId, BlockState, CORRUPT_RANGES_MAX, ClusterId, DiskNumber, Epoch, FailureDomain, GarbageReason, Home,
    Layout, NodeId, ObjectName, Owner, PlacedBlock, PutKey, Seq, Span, StripeId, StripeLayout, StripeRecord, UpdatesInPlace,
    UploadId,
};

const BLOCK_LEN: u64 = 1 << 20;
const STRIPE_LEN: u64 = 2 * BLOCK_LEN;
const NODES: u32 = 7;
const LATER_MS: u64 = 1_000;

/// A cluster in its initial state.
pub(crate) fn open(path: &Path) -> SqliteMeta {
    let policy = PolicyRecord {
        name: "default".into(),
        code: "rs(2,1)".into(),
        block_len: BLOCK_LEN,
        cell_len: BLOCK_LEN,
        failure_domain: FailureDomain::Rack,
        ack: Ack { missing_max: 1 },
        replicas: 1,
        updates: UpdatesInPlace::Allowed,
        is_default: true,
    };
    let new = NewCluster { id: ClusterId(7), incarnation: 9, policies: vec![policy], created_ms: 1, auto_repair: true };
    SqliteMeta::open(path, MetaMode::Inline, &new).unwrap()
}

/// Creates the nodes and the bucket that the operations use.
pub(crate) async fn prepare(meta: &dyn Meta) -> Epoch {
    let epoch = meta.become_leader().await.unwrap();
    for node in 1..=NODES {
        meta.register_node(epoch, node_of(node), 1).await.unwrap();
    }
    meta.create_bucket(epoch, "b", None, 1).await.unwrap();
    epoch
}

/// A node with one disk.
pub(crate) fn node_of(number: u32) -> NewNode {
    NewNode {
        id: None,
        name: format!("node-{number}"),
        rack: format!("r{}", number % 2),
        zone: "z".into(),
        data_address: format!("127.0.0.1:{}", 1000 + number),
        control_address: format!("127.0.0.1:{}", 2000 + number),
        disks: vec![NewDisk {
            id: format!("disk-{number}"),
            path: "/d".into(),
            total_bytes: 1 << 40,
            failed: false,
            taken_from: None,
        }],
    }
}

/// An operation.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Lead,
    Begin(NewUpload, Vec<NewStripe>),
    Extend(UploadId, u64),
    /// The last of these stripes were never opened and are given up.
    Stripes(UploadId, Vec<NewStripe>, Vec<StripeId>),
    /// Optionally with the put's commit, as an object of this many bytes.
    End(EndStripe, Option<u64>),
    Commit(UploadId, u64, Vec<StripeId>),
    Abort(UploadId, Vec<StripeId>),
    Remove(ObjectName),
    /// In order, until so many stripes are removed; names of no object are skipped.
    RemoveSome(Vec<ObjectName>, u64),
    Allocate(NewRepair),
    DropCopies(StripeId, Vec<BlockId>),
    CommitRepair {
        block: BlockId,
        old: u32,
        checksums: Vec<u32>,
    },
    AbortRepair(BlockId),
    ExtendRepairs(Vec<BlockId>, u64),
    Expire(u64),
    Mark(BlockId, BlockState),
    MarkCorrupt(BlockId, Vec<Span>),
    Forget(NodeId, Vec<BlockId>),
}

/// The metadata according to the interface's contract.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Model {
    pub(crate) epoch: u64,
    pub(crate) uploads_high_water: u64,
    pub(crate) stripes_high_water: u64,
    pub(crate) uploads: BTreeMap<UploadId, UploadRecord>,
    pub(crate) objects: BTreeMap<ObjectName, ObjectRecord>,
    pub(crate) stripes: BTreeMap<StripeId, StripeRecord>,
    pub(crate) allocations: BTreeMap<BlockId, Allocation>,
    pub(crate) garbage: BTreeMap<(NodeId, BlockId), GarbageBlock>,
    /// The epoch and the last stripe when the database was opened.
    pub(crate) opened: (u64, u64),
}

/// Marks bytes of a block as corrupt. Returns whether anything changed.
pub(crate) async fn mark_corrupt(meta: &dyn Meta, epoch: Epoch, block: BlockId, bytes: Vec<Span>) -> Result<bool> {
    Ok(meta.mark_found(epoch, block, Bad::Corrupt(bytes), None).await? == Marked::Changed)
}

/// Runs an operation on the database, as the leader of `epoch`.
pub(crate) async fn apply(meta: &dyn Meta, epoch: Epoch, op: &Op) -> Result<()> {
    match op.clone() {
        Op::Lead => meta.become_leader().await.map(drop),
        Op::Begin(new, stripes) => meta.begin_put(epoch, new, stripes).await.map(drop),
        Op::Extend(upload, expires_ms) => meta.extend_upload(epoch, upload, expires_ms).await,
        Op::Stripes(upload, new, unopened) => meta.allocate_stripes(epoch, upload, new, leftovers(unopened)).await.map(drop),
        Op::End(end, size) => meta.end_stripe(epoch, end, size.map(|size| commit(size, Vec::new()))).await.map(drop),
        Op::Commit(upload, size, unopened) => meta.commit_put(epoch, upload, commit(size, unopened)).await.map(drop),
        Op::Abort(upload, unopened) => meta.abort_put(epoch, upload, leftovers(unopened)).await,
        Op::Remove(name) => meta.remove_object(epoch, &name, LATER_MS).await.map(drop),
        Op::RemoveSome(names, stripes_max) => meta.remove_objects(epoch, names, stripes_max, LATER_MS).await.map(drop),
        Op::Allocate(new) => meta.allocate_repair(epoch, new).await.map(drop),
        Op::CommitRepair { block, old, checksums } => meta.commit_repair(epoch, block, old, checksums, LATER_MS).await.map(drop),
        Op::DropCopies(stripe, keep) => meta.drop_copies(epoch, stripe, keep, LATER_MS).await.map(drop),
        Op::AbortRepair(block) => meta.abort_repair(epoch, block, LATER_MS).await,
        Op::ExtendRepairs(blocks, expires_ms) => meta.extend_repairs(epoch, blocks, expires_ms).await,
        Op::Expire(now_ms) => meta.expire_repairs(epoch, now_ms).await.map(drop),
        Op::Mark(block, state) => meta.mark_block(epoch, block, state).await.map(drop),
        Op::MarkCorrupt(block, bytes) => mark_corrupt(meta, epoch, block, bytes).await.map(drop),
        Op::Forget(node, blocks) => meta.forget_garbage(epoch, node, blocks).await,
    }
}

fn leftovers(unopened: Vec<StripeId>) -> Leftovers {
    Leftovers { unopened, garbage_not_before_ms: LATER_MS }
}

fn commit(size: u64, unopened: Vec<StripeId>) -> CommitPut {
    CommitPut { size, now_ms: 5, leftovers: leftovers(unopened) }
}

/// Reads everything back, and checks the index from disks to stripes against the stripes.
pub(crate) async fn dump(meta: &dyn Meta) -> Model {
    let cluster = meta.cluster().await.unwrap();
    let mut model = Model { epoch: cluster.epoch.0, stripes_high_water: cluster.stripes_high_water, ..Model::default() };
    for upload in meta.expired_uploads(i64::MAX as u64, 1000).await.unwrap() {
        for number in 0..4 {
            if let Ok(stripe) = meta.upload_stripe(upload.id, number).await {
                model.stripes.insert(stripe.id, stripe);
            }
        }
        model.uploads.insert(upload.id, upload);
    }
    for object in meta.objects("b", "", "", 1000).await.unwrap().items {
        for stripe in meta.stripes(object.version, 0, 1000).await.unwrap().items {
            model.stripes.insert(stripe.id, stripe);
        }
        model.objects.insert(object.name.clone(), object);
    }
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = meta.incomplete_stripes(after, 2).await.unwrap();
        after = page.items.last().map(|stripe| stripe.id);
        listed.extend(page.items);
        if !page.more {
            break;
        }
    }
    assert_eq!(listed, model.stripes.values().filter(|stripe| stripe.incomplete).cloned().collect::<Vec<_>>());
    let owners = model.stripes.values().map(|stripe| stripe.owner).chain([Owner::Object(UploadId(999))]);
    for owner in owners.collect::<Vec<_>>() {
        let mut own: Vec<_> = listed.iter().filter(|stripe| stripe.owner == owner && stripe.number > 0).cloned().collect();
        own.sort_by_key(|stripe| stripe.number);
        let more = own.len() > 1;
        own.truncate(1);
        assert_eq!(meta.incomplete_of(owner, 1, 1).await.unwrap(), Page { items: own, more });
    }
    for allocation in meta.allocations().await.unwrap() {
        model.allocations.insert(allocation.block, allocation);
    }
    for node in 1..=NODES {
        for garbage in garbage_of(meta, NodeId(node), i64::MAX as u64).await {
            model.garbage.insert((NodeId(node), garbage.block), garbage);
        }
        let home = Home { node: NodeId(node), disk: DiskNumber(node) };
        let indexed = meta.blocks_on(home, None, 10_000).await.unwrap().items;
        let ended = model.stripes.values().filter(|stripe| stripe.ended);
        let placed: Vec<BlockId> = ended
            .flat_map(|stripe| stripe.all().filter(|(_, placed)| placed.home == home).map(|(i, placed)| stripe.id_of(i, placed)))
            .collect();
        assert_eq!(indexed, placed, "the index of {home:?}");
    }
    check_totals(meta, &model).await;
    check_orphans(meta, &model).await;
    model
}

/// The blocks that a node may remove at that time, for any reason.
pub(crate) async fn garbage_of(meta: &dyn Meta, node: NodeId, now_ms: u64) -> Vec<GarbageBlock> {
    let mut all = Vec::new();
    for reason in GarbageReason::ALL {
        let mut after = None;
        loop {
            // Small pages, to test their order.
            let page = meta.garbage(node, reason, now_ms, after, 3).await.unwrap();
            after = page.items.last().map(|it| (it.not_before_ms, it.block));
            all.extend(page.items);
            if !page.more {
                break;
            }
        }
    }
    all
}

/// The totals are the sums of the listed garbage.
async fn check_totals(meta: &dyn Meta, model: &Model) {
    let mut totals: BTreeMap<(Home, GarbageReason), GarbageTotal> = BTreeMap::new();
    for GarbageBlock { home, reason, bytes, not_before_ms, .. } in model.garbage.values().copied() {
        let (first_ms, last_ms) = (u64::MAX, 0);
        let none = GarbageTotal { home, reason, blocks: 0, bytes: 0, unmeasured_blocks: 0, first_ms, last_ms };
        let total = totals.entry((home, reason)).or_insert(none);
        total.blocks += 1;
        total.bytes += bytes.unwrap_or(0);
        total.unmeasured_blocks += u64::from(bytes.is_none());
        total.first_ms = total.first_ms.min(not_before_ms);
        total.last_ms = total.last_ms.max(not_before_ms);
    }
    let mut amounts: BTreeMap<Home, Amount> = BTreeMap::new();
    for GarbageBlock { home, bytes, .. } in model.garbage.values() {
        amounts.entry(*home).or_default().add(bytes.unwrap_or(0));
    }
    assert_eq!(meta.garbage_per_disk().await.unwrap(), Vec::from_iter(amounts));
    let mut told = meta.garbage_totals().await.unwrap();
    told.sort_by_key(|total| (total.home, total.reason));
    assert_eq!(told, totals.into_values().collect::<Vec<_>>());
}

impl Model {
    /// Removes what `dump` cannot see.
    pub(crate) fn visible(&self) -> Self {
        Self { uploads_high_water: 0, opened: (0, 0), ..self.clone() }
    }

    fn given_up(&self, is_earlier: bool) -> GarbageReason {
        if is_earlier { GarbageReason::Unexpected } else { GarbageReason::GivenUp }
    }

    fn give_up_stripe(&mut self, stripe: &StripeRecord) {
        let reason = self.given_up(stripe.id.0 <= self.opened.1);
        self.drop_stripe(stripe, reason);
    }

    /// Runs an operation on the model; `None` if it must fail.
    pub(crate) fn apply(&mut self, op: &Op) -> Option<()> {
        match op {
            Op::Lead => self.epoch += 1,
            Op::Begin(new, stripes) => {
                self.uploads_high_water += 1;
                let id = UploadId(self.uploads_high_water);
                self.uploads.insert(id, UploadRecord { id, new: new.clone() });
                stripes.iter().try_for_each(|new| self.allocate_stripe(id, new))?;
            }
            Op::Extend(id, expires_ms) => {
                let upload = self.uploads.get_mut(id)?;
                upload.new.expires_ms = upload.new.expires_ms.max(*expires_ms);
            }
            Op::Stripes(id, stripes, unopened) => {
                self.forget_unopened(*id, unopened)?;
                self.uploads.get(id)?;
                stripes.iter().try_for_each(|new| self.allocate_stripe(*id, new))?;
            }
            Op::End(end, size) => {
                self.end(end)?;
                size.map_or(Some(()), |size| self.commit(end.upload, size))?;
            }
            Op::Commit(id, size, unopened) => {
                self.forget_unopened(*id, unopened)?;
                self.commit(*id, *size)?;
            }
            Op::Abort(id, unopened) => {
                self.forget_unopened(*id, unopened)?;
                self.uploads.remove(id)?;
                let own: Vec<StripeRecord> =
                    self.stripes.values().filter(|stripe| stripe.owner == Owner::Upload(*id)).cloned().collect();
                own.iter().for_each(|stripe| self.give_up_stripe(stripe));
            }
            Op::Remove(name) => {
                let object = self.objects.remove(name)?;
                self.drop_stripes(Owner::Object(object.version), GarbageReason::Removed);
            }
            Op::RemoveSome(names, stripes_max) => {
                let mut stripes = 0;
                for name in names.iter() {
                    if stripes >= *stripes_max {
                        break;
                    }
                    if let Some(object) = self.objects.remove(name) {
                        stripes += object.stripes.max(1);
                        self.drop_stripes(Owner::Object(object.version), GarbageReason::Removed);
                    }
                }
            }
            Op::Allocate(new) => self.allocate(new)?,
            Op::CommitRepair { block, old, checksums } => self.commit_repair(*block, *old, checksums)?,
            Op::DropCopies(stripe, keep) => self.drop_copies(*stripe, keep)?,
            Op::AbortRepair(block) => {
                if let Some(allocation) = self.allocations.remove(block) {
                    self.give_up(&allocation, LATER_MS);
                }
            }
            Op::ExtendRepairs(blocks, expires_ms) => {
                let of_repairs = self.allocations.values_mut().filter(|a| a.upload.is_none() && blocks.contains(&a.block));
                of_repairs.for_each(|a| a.expires_ms = a.expires_ms.max(*expires_ms));
            }
            Op::Expire(now_ms) => {
                let epoch = Epoch(self.epoch);
                let old = |a: &Allocation| a.upload.is_none() && (a.expires_ms <= *now_ms || a.epoch < epoch);
                let expired: Vec<Allocation> = self.allocations.values().filter(|a| old(a)).copied().collect();
                for allocation in expired {
                    self.allocations.remove(&allocation.block);
                    self.give_up(&allocation, allocation.expires_ms);
                }
            }
            Op::Mark(block, state) => {
                let stripe = self.stripes.get_mut(&block.stripe).filter(|stripe| stripe.ended);
                let placed = stripe.and_then(|stripe| stripe.find_mut(block.index, block.copy));
                if let Some(placed) = placed.filter(|placed| placed.generation == block.generation) {
                    placed.state = *state;
                    let stripe = self.stripes.get_mut(&block.stripe)?;
                    stripe.corrupt.remove(&(block.index, block.copy));
                    stripe.incomplete &= stripe.lacks_any();
                }
            }
            Op::MarkCorrupt(block, bytes) => self.mark_corrupt(*block, bytes)?,
            Op::Forget(node, blocks) => self.garbage.retain(|(at, block), _| at != node || !blocks.contains(block)),
        }
        Some(())
    }

    fn forget_unopened(&mut self, id: UploadId, unopened: &[StripeId]) -> Option<()> {
        for stripe in unopened {
            let Some(found) = self.stripes.get(stripe) else { continue };
            (found.owner == Owner::Upload(id) && !found.ended).then_some(())?;
            self.stripes.remove(stripe);
            self.allocations.retain(|block, _| block.stripe != *stripe);
        }
        Some(())
    }

    fn allocate_stripe(&mut self, upload: UploadId, new: &NewStripe) -> Option<()> {
        let NewUpload { expires_ms, replicas, .. } = self.uploads.get(&upload)?.new;
        (new.homes.len() == homes_of(&new.layout, replicas)).then_some(())?;
        let owner = Owner::Upload(upload);
        let earlier = self.stripes.values().find(|stripe| stripe.owner == owner && stripe.number == new.number).cloned();
        if let Some(earlier) = earlier {
            (!earlier.ended).then_some(())?;
            self.give_up_stripe(&earlier);
        }
        self.stripes_high_water += 1;
        let id = StripeId(self.stripes_high_water);
        let place = |home: &Home, copy| PlacedBlock {
            generation: 1,
            generation_high_water: 1,
            home: *home,
            state: BlockState::Missing,
            copy,
        };
        let blocks: BTreeMap<u8, PlacedBlock> = new.layout.blocks().zip(new.homes.iter().map(|home| place(home, 0))).collect();
        let others = (0..).zip(&new.homes[blocks.len()..]);
        let copies: Vec<(u8, PlacedBlock)> = others.map(|(index, home)| (index, place(home, 1))).collect();
        let (number, layout) = (new.number, new.layout);
        self.stripes.insert(
            id,
            StripeRecord {
                id,
                owner,
                number,
                ended: false,
                seq: Seq::default(),
                layout,
                blocks,
                copies,
                checksums: vec![],
                kept: BTreeMap::new(),
                corrupt: BTreeMap::new(),
                incomplete: false,
            },
        );
        for (index, PlacedBlock { home, copy, .. }) in self.stripes[&id].all() {
            let block = BlockId { stripe: id, index, copy: *copy, generation: 1 };
            let allocation = Allocation { block, home: *home, upload: Some(upload), epoch: Epoch(self.epoch), expires_ms };
            self.allocations.insert(block, allocation);
        }
        Some(())
    }

    fn end(&mut self, end: &EndStripe) -> Option<()> {
        let stripe = self.stripes.get(&end.stripe)?;
        (stripe.owner == Owner::Upload(end.upload) && !stripe.ended).then_some(())?;
        (end.blocks.len() == stripe.all().count()).then_some(())?;
        let is_there = |index: u8| stripe.all().zip(&end.blocks).any(|((at, _), block)| at == index && block.2 == BlockState::Ok);
        (stripe.blocks.keys().filter(|index| !is_there(**index)).count() <= 1).then_some(())?;
        let id = |index: u8, copy, generation| BlockId { stripe: end.stripe, index, copy, generation };
        let all = stripe.all().zip(&end.blocks);
        let kept: Vec<BlockId> = all.map(|((index, placed), block)| id(index, placed.copy, block.0)).collect();
        for (block, (_, home, _)) in kept.iter().zip(&end.blocks) {
            (self.allocations.get(block)?.home == *home).then_some(())?;
        }
        self.release(end.stripe, &kept);
        let stripe = self.stripes.get_mut(&end.stripe)?;
        (stripe.ended, stripe.checksums) = (true, end.checksums.clone());
        for ((_, placed), (generation, home, state)) in stripe.all_mut().zip(&end.blocks) {
            *placed = PlacedBlock { generation: *generation, home: *home, state: *state, ..*placed };
        }
        stripe.incomplete = stripe.lacks_any();
        Some(())
    }

    fn commit(&mut self, id: UploadId, size: u64) -> Option<()> {
        let new = self.uploads.get(&id)?.new.clone();
        let mut own: Vec<StripeRecord> =
            self.stripes.values().filter(|stripe| stripe.owner == Owner::Upload(id)).cloned().collect();
        own.sort_by_key(|stripe| stripe.number);
        // Allocations after the last stripe are given up.
        let mut bytes = 0;
        let mut unneeded = Vec::new();
        own.retain(|stripe| {
            let is_needed = stripe.ended || bytes != size;
            bytes += if is_needed { stripe.layout.data_len } else { 0 };
            unneeded.extend((!is_needed).then(|| stripe.clone()));
            is_needed
        });
        unneeded.iter().for_each(|stripe| self.give_up_stripe(stripe));
        let whole = own.iter().enumerate().all(|(at, stripe)| {
            stripe.number == at as u64 && stripe.ended && (at + 1 == own.len() || stripe.layout.data_len == STRIPE_LEN)
        });
        (whole && bytes == size).then_some(())?;
        let stripes = own.len() as u64;
        let before = self.objects.get(&new.name).cloned();
        if new.replaces.is_some() {
            (before.as_ref().map(|before| before.version) == new.replaces).then_some(())?;
            before.as_ref().is_some_and(|before| before.size == size).then_some(())?;
        }
        let mut written = id;
        if let Some(before) = before {
            match new.replaces {
                Some(_) => written = before.written,
                None => (before.written < id).then_some(())?,
            }
            self.objects.remove(&new.name);
            self.drop_stripes(Owner::Object(before.version), GarbageReason::Replaced);
        }
        self.uploads.remove(&id);
        for stripe in self.stripes.values_mut().filter(|stripe| stripe.owner == Owner::Upload(id)) {
            stripe.owner = Owner::Object(id);
        }
        let (name, code, layout) = (new.name, new.code, new.layout);
        self.objects
            .insert(name.clone(), ObjectRecord { name, version: id, written, size, code, layout, stripes, created_ms: 5 });
        Some(())
    }

    fn allocate(&mut self, new: &NewRepair) -> Option<()> {
        let epoch = Epoch(self.epoch);
        let stripe = self.stripes.get_mut(&new.stripe)?;
        let fits = match new.upload {
            Some(upload) => stripe.owner == Owner::Upload(upload) && !stripe.ended,
            None => stripe.ended,
        };
        fits.then_some(())?;
        let is_other = |id: BlockId, home: Home| {
            id.stripe == new.stripe && (id.index, id.copy) != (new.index, new.copy) && home.node == new.home.node
        };
        let mut on_the_way = self.allocations.values().map(|other| (other.block, other.home));
        let taken = is_taken(stripe, new.index, new.copy, new.home) || on_the_way.any(|(id, home)| is_other(id, home));
        (!taken).then_some(())?;
        let generation = stripe.blocks.get(&new.index)?.generation_high_water + 1;
        let own = stripe.all_mut().filter(|(index, _)| *index == new.index);
        own.for_each(|(_, placed)| placed.generation_high_water = generation);
        let block = BlockId { stripe: new.stripe, index: new.index, copy: new.copy, generation };
        let (home, upload, expires_ms) = (new.home, new.upload, new.expires_ms);
        self.allocations.insert(block, Allocation { block, home, upload, epoch, expires_ms });
        Some(())
    }

    fn mark_corrupt(&mut self, block: BlockId, bytes: &[Span]) -> Option<()> {
        let Some(stripe) = self.stripes.get_mut(&block.stripe).filter(|stripe| stripe.ended) else { return Some(()) };
        let known = stripe.corrupt.remove(&(block.index, block.copy));
        let Some(placed) = stripe.find_mut(block.index, block.copy) else { return Some(()) };
        let readable = placed.state == BlockState::Ok || known.is_some();
        if placed.generation != block.generation || !readable {
            stripe.corrupt.extend(known.map(|known| ((block.index, block.copy), known)));
            return Some(());
        }
        placed.state = BlockState::Corrupt;
        let all = Span::normalize(known.into_iter().flatten().chain(bytes.iter().copied()).collect());
        if all.len() <= CORRUPT_RANGES_MAX {
            stripe.corrupt.insert((block.index, block.copy), all);
        }
        Some(())
    }

    fn commit_repair(&mut self, block: BlockId, old: u32, checksums: &[u32]) -> Option<()> {
        let home = self.allocations.get(&block)?.home;
        let stripe = self.stripes.get_mut(&block.stripe)?;
        (stripe.checksums.get(usize::from(block.index))? == checksums).then_some(())?;
        (!is_taken(stripe, block.index, block.copy, home)).then_some(())?;
        let high_water = stripe.blocks.get(&block.index)?.generation_high_water;
        let new = PlacedBlock {
            generation: block.generation,
            generation_high_water: high_water,
            home,
            state: BlockState::Ok,
            copy: block.copy,
        };
        let before = match stripe.find_mut(block.index, block.copy) {
            Some(placed) => {
                (placed.generation == old).then_some(())?;
                Some(std::mem::replace(placed, new))
            }
            None => {
                (old == 0).then_some(())?;
                stripe.copies.push((block.index, new));
                None
            }
        };
        in_order(stripe);
        let layout = stripe.layout;
        stripe.corrupt.remove(&(block.index, block.copy));
        stripe.incomplete &= stripe.lacks_any();
        self.allocations.remove(&block);
        if let Some(before) = before {
            self.add_garbage(block.stripe, block.index, &before, GarbageReason::Repaired, layout);
        }
        Some(())
    }

    fn drop_copies(&mut self, id: StripeId, keep: &[BlockId]) -> Option<()> {
        let stripe = self.stripes.get_mut(&id)?;
        matches!(stripe.owner, Owner::Object(_)).then_some(())?;
        let all: Vec<(BlockId, PlacedBlock)> =
            stripe.all().map(|(index, placed)| (stripe.id_of(index, placed), *placed)).collect();
        let one_of = |index: u8| {
            let mut of = all.iter().filter(|(block, _)| block.index == index && keep.contains(block));
            of.next().filter(|_| of.next().is_none()).map(|(_, placed)| (index, *placed))
        };
        let kept: BTreeMap<u8, PlacedBlock> = stripe.blocks.keys().map(|index| one_of(*index)).collect::<Option<_>>()?;
        // A copy may be dropped only if the kept ones are good.
        let is_whole = kept.values().all(|placed| placed.state == BlockState::Ok);
        (is_whole || stripe.copies.is_empty()).then_some(())?;
        let layout = stripe.layout;
        stripe.blocks = kept;
        stripe.copies.clear();
        stripe.incomplete &= stripe.lacks_any();
        for (block, placed) in all.into_iter().filter(|(block, _)| !keep.contains(block)) {
            self.stripes.get_mut(&id)?.corrupt.remove(&(block.index, block.copy));
            self.add_garbage(id, block.index, &placed, GarbageReason::Removed, layout);
        }
        Some(())
    }

    fn drop_stripes(&mut self, owner: Owner, reason: GarbageReason) {
        let owned: Vec<StripeRecord> = self.stripes.values().filter(|stripe| stripe.owner == owner).cloned().collect();
        owned.iter().for_each(|stripe| self.drop_stripe(stripe, reason));
    }

    fn drop_stripe(&mut self, stripe: &StripeRecord, reason: GarbageReason) {
        self.stripes.remove(&stripe.id);
        if stripe.ended {
            for (index, placed) in stripe.all() {
                self.add_garbage(stripe.id, index, placed, reason, stripe.layout);
            }
        }
        self.release(stripe.id, &[]);
    }

    fn release(&mut self, stripe: StripeId, kept: &[BlockId]) {
        let own = |a: &&Allocation| a.block.stripe == stripe && a.upload.is_some();
        let released: Vec<Allocation> = self.allocations.values().filter(own).copied().collect();
        for allocation in released {
            self.allocations.remove(&allocation.block);
            if !kept.contains(&allocation.block) {
                self.give_up(&allocation, LATER_MS);
            }
        }
    }

    fn add_garbage(&mut self, stripe: StripeId, index: u8, placed: &PlacedBlock, reason: GarbageReason, layout: StripeLayout) {
        let PlacedBlock { generation, home, copy, state, .. } = *placed;
        let block = BlockId { stripe, index, copy, generation };
        let bytes = (state != BlockState::Missing).then(|| layout.block_len(index.into()));
        let garbage = GarbageBlock { block, home, reason, bytes, not_before_ms: LATER_MS };
        self.garbage.entry((home.node, block)).or_insert(garbage);
    }

    fn give_up(&mut self, allocation: &Allocation, not_before_ms: u64) {
        let Allocation { block, home, epoch, .. } = *allocation;
        let reason = self.given_up(epoch.0 <= self.opened.0);
        let garbage = GarbageBlock { block, home, reason, bytes: None, not_before_ms };
        self.garbage.entry((home.node, block)).or_insert(garbage);
    }
}

/// The number of homes of a stripe with this many copies of its data.
fn homes_of(stripe: &StripeLayout, replicas: u8) -> usize {
    stripe.blocks().count() + stripe.data_blocks() as usize * usize::from(replicas - 1)
}

fn drawn_name(random: &mut StdRng) -> ObjectName {
    ObjectName { bucket: "b".into(), key: format!("k{}", random.random_range(0..4)) }
}

/// Draws the next operation: usually a valid one, sometimes an invalid one.
pub(crate) fn draw(model: &Model, random: &mut StdRng) -> Op {
    let uploads: Vec<UploadId> = model.uploads.keys().copied().chain([UploadId(999)]).collect();
    let upload = *uploads.choose(random).unwrap();
    let stripes: Vec<&StripeRecord> = model.stripes.values().collect();
    let objects: Vec<&ObjectRecord> = model.objects.values().collect();
    let mut nodes: Vec<u32> = (1..=NODES).collect();
    rand::seq::SliceRandom::shuffle(nodes.as_mut_slice(), random);
    let homes: Vec<Home> = nodes.iter().map(|n| Home { node: NodeId(*n), disk: DiskNumber(*n) }).collect();
    let layout = Layout { block_len: BLOCK_LEN, cell_len: BLOCK_LEN, alpha: 1 };
    let new_stripe = |number: u64, replicas: u8, random: &mut StdRng| {
        let data_len = if random.random() { STRIPE_LEN } else { random.random_range(1..=STRIPE_LEN) };
        let layout = StripeLayout { layout, k: 2, m: 1, data_len };
        NewStripe { number, layout, homes: homes[..homes_of(&layout, replicas)].to_vec() }
    };
    // Sometimes a stripe of another put, or one that has ended.
    let unopened = |random: &mut StdRng| {
        let fits = |stripe: &&&StripeRecord| stripe.owner == Owner::Upload(upload) && !stripe.ended;
        let any = random.random_ratio(1, 20);
        let given_up = stripes.iter().filter(|stripe| any || fits(stripe)).filter(|_| random.random_ratio(1, 3));
        given_up.map(|stripe| stripe.id).collect::<Vec<StripeId>>()
    };
    let own = || stripes.iter().filter(|stripe| stripe.owner == Owner::Upload(upload));
    let ended_len = || own().filter(|stripe| stripe.ended).map(|stripe| stripe.layout.data_len).sum::<u64>();
    match (random.random_range(0..100), stripes.choose(random)) {
        (0, _) => Op::Lead,
        (1..14, _) => {
            let new = NewUpload {
                name: ObjectName { bucket: "b".into(), key: format!("k{}", random.random_range(0..4)) },
                replaces: objects.choose(random).map(|object| object.version).filter(|_| random.random_ratio(1, 3)),
                code: "rs(2,1)".into(),
                layout,
                failure_domain: FailureDomain::Rack,
                ack: Ack { missing_max: 1 },
                replicas: random.random_range(1..3),
                created_ms: 3,
                expires_ms: random.random_range(100..200),
                key: PutKey(random.random()),
            };
            let first = (0..random.random_range(0..3)).map(|number| new_stripe(number, new.replicas, random)).collect();
            Op::Begin(new, first)
        }
        (14..17, _) => Op::Extend(upload, random.random_range(100..300)),
        (17..36, _) => {
            let replicas = model.uploads.get(&upload).map_or(1, |upload| upload.new.replicas);
            let from = random.random_range(0..3);
            let to = random.random_range(from + 1..=3);
            let new = (from..to).map(|number| new_stripe(number, replicas, random)).collect();
            Op::Stripes(upload, new, unopened(random))
        }
        (36..58, Some(stripe)) => {
            let size = random.random_ratio(1, 4).then(|| ended_len() + stripe.layout.data_len);
            Op::End(draw_end(model, stripe, upload, random), size)
        }
        (58..70, _) => {
            let size = ended_len() + u64::from(random.random_bool(0.1));
            Op::Commit(upload, size, unopened(random))
        }
        (70..73, _) => Op::Abort(upload, unopened(random)),
        (73, _) => Op::Remove(drawn_name(random)),
        (74..76, _) => {
            let names = (0..random.random_range(1..5)).map(|_| drawn_name(random)).collect();
            Op::RemoveSome(names, random.random_range(1..4))
        }
        (76..85, Some(stripe)) => {
            let upload = match stripe.owner {
                Owner::Upload(upload) if stripe.ended == random.random_bool(0.1) => Some(upload),
                _ => None,
            };
            let (index, expires_ms) = (random.random_range(0..4), random.random_range(100..300));
            let copy = if random.random_bool(0.6) { 0 } else { random.random_range(1..3) };
            Op::Allocate(NewRepair { stripe: stripe.id, index, copy, home: homes[0], upload, term: None, expires_ms })
        }
        (85..92, _) if !model.allocations.is_empty() => {
            let all: Vec<&Allocation> = model.allocations.values().collect();
            let block = all.choose(random).unwrap().block;
            if random.random_bool(0.2) {
                return Op::AbortRepair(block);
            }
            if random.random_bool(0.2) {
                return Op::ExtendRepairs(vec![block], random.random_range(100..300));
            }
            let stripe = model.stripes.get(&block.stripe);
            let old = stripe.and_then(|stripe| stripe.find(block.index, block.copy)).map_or(0, |placed| placed.generation);
            let checksums = stripe.and_then(|stripe| stripe.checksums.get(usize::from(block.index))).cloned().unwrap_or_default();
            let wrong = random.random_bool(0.1);
            Op::CommitRepair {
                block,
                old: old + u32::from(wrong),
                checksums: if random.random_bool(0.1) { vec![] } else { checksums },
            }
        }
        (92..93, _) => Op::Expire(random.random_range(100..300)),
        (93..95, Some(stripe)) => {
            let keep = stripe.blocks.keys().copied().map(|index| {
                let of: Vec<BlockId> =
                    stripe.all().filter(|(at, _)| *at == index).map(|(_, placed)| stripe.id_of(index, placed)).collect();
                *of.choose(random).unwrap()
            });
            let mut keep: Vec<BlockId> = keep.collect();
            if random.random_bool(0.2) {
                keep[0].generation += 1;
            }
            Op::DropCopies(stripe.id, keep)
        }
        (95..98, Some(stripe)) => {
            let all: Vec<BlockId> = stripe.all().map(|(index, placed)| stripe.id_of(index, placed)).collect();
            let block = *all.choose(random).unwrap();
            if random.random_bool(0.7) {
                // Sometimes more ranges than are kept.
                let page = |number: u64| Span::new(2 * number * 4096, (2 * number + 1) * 4096);
                let count = random.random_range(1..CORRUPT_RANGES_MAX as u64);
                let first = random.random_range(0..20);
                return Op::MarkCorrupt(block, (first..first + count).map(page).collect());
            }
            Op::Mark(block, if random.random() { BlockState::Corrupt } else { BlockState::Missing })
        }
        _ => {
            let node = NodeId(random.random_range(1..=NODES));
            let own = model.garbage.keys().filter(|(at, _)| *at == node).map(|(_, block)| *block);
            Op::Forget(node, own.take(3).collect())
        }
    }
}

fn draw_end(model: &Model, stripe: &StripeRecord, upload: UploadId, random: &mut StdRng) -> EndStripe {
    let upload = match stripe.owner {
        Owner::Upload(owner) if random.random_bool(0.9) => owner,
        _ => upload,
    };
    let checksums = |index: u8| vec![stripe.id.0 as u32 * 10 + u32::from(index)];
    let block = |(index, placed): (u8, &PlacedBlock)| {
        let is_it = |id: BlockId| (id.stripe, id.index, id.copy) == (stripe.id, index, placed.copy);
        let mut of = model.allocations.values().filter(|a| is_it(a.block));
        let (generation, home) = of.next_back().map_or((1, placed.home), |a| (a.block.generation, a.home));
        let state = if random.random_bool(0.1) { BlockState::Missing } else { BlockState::Ok };
        (generation, home, state)
    };
    EndStripe {
        upload,
        stripe: stripe.id,
        blocks: stripe.all().map(block).collect(),
        checksums: (0..3).map(checksums).collect(),
        garbage_not_before_ms: LATER_MS,
    }
}

/// Whether the node has another block of the stripe.
fn is_taken(stripe: &StripeRecord, index: u8, copy: u8, home: Home) -> bool {
    stripe.all().any(|(other, placed)| (other, placed.copy) != (index, copy) && placed.home.node == home.node)
}

/// The first remaining copy of each block stands for it; the others follow in order.
fn in_order(stripe: &mut StripeRecord) {
    let mut all: Vec<(u8, PlacedBlock)> = stripe.all().map(|(index, placed)| (index, *placed)).collect();
    all.sort_by_key(|(index, placed)| (*index, placed.copy));
    (stripe.blocks, stripe.copies) = (BTreeMap::new(), Vec::new());
    for (index, placed) in all {
        match stripe.blocks.contains_key(&index) {
            true => stripe.copies.push((index, placed)),
            false => drop(stripe.blocks.insert(index, placed)),
        }
    }
}

/// Of all possible blocks, those that the model does not know.
async fn check_orphans(meta: &dyn Meta, model: &Model) {
    let last = model.stripes.keys().map(|stripe| stripe.0).max().unwrap_or(0) + 2;
    let blocks =
        |stripe| (0..9u8).map(move |at| BlockId { stripe: StripeId(stripe), index: at / 3, copy: at % 3, generation: 0 });
    let generations = |block: BlockId| (1..5).map(move |generation| BlockId { generation, ..block });
    let all: Vec<BlockId> = (1..last).flat_map(blocks).flat_map(generations).collect();
    for node in (1..=NODES).map(NodeId) {
        let counts = |id: &BlockId| {
            let stripe = model.stripes.get(&id.stripe).filter(|stripe| stripe.ended);
            stripe.is_some_and(|stripe| stripe.all().any(|(index, placed)| stripe.id_of(index, placed) == *id))
        };
        let allocated = |id: &BlockId| model.allocations.values().any(|allocation| allocation.block == *id);
        let known = |id: &BlockId| counts(id) || allocated(id) || model.garbage.contains_key(&(node, *id));
        let orphans: Vec<BlockId> = all.iter().filter(|id| !known(id)).copied().collect();
        assert_eq!(meta.orphans(node, all.clone()).await.unwrap(), orphans);
    }
}
