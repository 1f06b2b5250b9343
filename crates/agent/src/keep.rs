//! Keeps what is right of a block that was left out of updates in place: the coordinator tells the checksums that still hold, and what has them is copied
//! from earlier generations to the new one. A plan then brings the rest. An earlier generation may be of any age, damaged, or still open for updates:
//! only bytes with the right checksum are copied.

use crate::{
    disks::Disks,
    line::Passage,
    node::Node,
    partial::{Claim, Partials},
    throttle::Throttles,
    wire,
};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, timeout_at};
use weft_engine::classes::{Demand, FRAME_BYTES_MAX};
use weft_plan::Precedence;
use weft_proto::{
    DiskMode,
    v1::{KeepBlockReply, KeepBlockRequest, SpanMessage},
};
use weft_store::{BlockReader, BlockStore};
use weft_types::{BlockId, BlockMeta, CHECKSUM_UNIT_LEN, ClusterId, Error, PlanId, Result, Span, crc32c};

/// How many generations before the new one are looked for: each attempt of a rebuild takes one.
const EARLIER_MAX: usize = 64;
/// The most earlier generations that are read.
const SOURCES_MAX: usize = 4;
/// The longest time for which a call copies.
const WITHIN_MAX: Duration = Duration::from_secs(60);
/// The precedence at the disk.
const OF: Precedence = Precedence::REBUILD;
/// No plan has this number.
const KEEPING: PlanId = PlanId(0);

/// What is to be kept.
#[derive(Debug)]
struct Asked {
    /// The new generation.
    meta: BlockMeta,
    disk: String,
    expected_checksums: Option<Vec<u32>>,
    /// Its units that are known: their bytes and checksums.
    units: Vec<(Span, u32)>,
    /// For how long they are copied.
    within: Duration,
}

/// An earlier generation.
struct Source {
    reader: Arc<dyn BlockReader>,
    passage: Passage,
}

/// A block that is copied in part.
struct Keeping {
    sources: Vec<Source>,
    claim: Arc<Claim>,
    /// What was missing at the beginning.
    missing: Vec<Span>,
    at: At,
}

/// How disks are used.
struct At {
    /// At the disk of the new generation.
    passage: Passage,
    throttles: Throttles,
    mode: DiskMode,
}

/// Copies what is right of earlier generations of a block to its new one.
pub(crate) async fn keep(node: &Arc<Node>, request: KeepBlockRequest) -> Result<KeepBlockReply> {
    let registration = node.registration()?;
    if request.registration != registration.link_key.id() {
        return Err(Error::retry("the call is for another registration of this node"));
    }
    node.obey(request.epoch).await?;
    let asked = Asked::decode(request, registration.cluster)?;
    let until = Instant::now() + asked.within;
    let (disks, opening, mode) = (node.disks()?, Arc::clone(node), node.seams.disk_mode);
    let begin = move || -> Result<_> {
        let sources = sources(&disks, &asked.meta);
        if sources.is_empty() {
            return Ok(None);
        }
        let (disk, store) = disks.by_id(&asked.disk).map_err(|error| error.block(asked.meta.id))?;
        let memory_bytes = CHECKSUM_UNIT_LEN + FRAME_BYTES_MAX;
        let permit = opening.admission.admit(OF, Demand { memory_bytes, connections: 0, blocks: [(disk, 1)].into() })?;
        let at = At { passage: Passage::new(disks.line(disk), OF), throttles: opening.throttles.clone(), mode };
        let keeping = Keeping::begin(sources, &opening.partials, (disk, store.as_ref()), &asked.meta, at)?;
        opening.state.note_stripe(asked.meta.id.stripe.0);
        Ok(Some((keeping, permit, asked)))
    };
    let Some((keeping, _permit, asked)) = mode.run(begin).await? else { return Ok(KeepBlockReply::default()) };
    let kept_bytes = keeping.copy_all(&asked.units, until).await?;
    let claim = keeping.claim;
    let reply = mode.run(move || end(&claim, asked.expected_checksums.as_deref())).await?;
    Ok(KeepBlockReply { kept_bytes, ..reply })
}

impl Asked {
    fn decode(request: KeepBlockRequest, cluster: ClusterId) -> Result<Self> {
        let within = Duration::from_millis(request.within_ms).min(WITHIN_MAX);
        let store = request.store.unwrap_or_default();
        let meta: BlockMeta = wire::decode("block's description", &store.meta)?;
        let (id, len) = (meta.id, meta.len());
        let units_max = meta.stripe.checksum_units(id.index.into());
        let is_known = |units: &[u32]| units.len() as u64 == units_max;
        let is_right = request.units.is_sorted_by(|one, next| one < next)
            && request.units.last().is_none_or(|last| u64::from(*last) < units_max)
            && request.units.len() == request.checksums.len();
        if meta.cluster != cluster || !is_right || !(store.expected_checksums.is_empty() || is_known(&store.expected_checksums)) {
            return Err(Error::invalid("the call to keep what is right of a block does not fit the block").block(id));
        }
        let bytes = |unit: u32| {
            let start = u64::from(unit) * CHECKSUM_UNIT_LEN;
            Span::new(start, (start + CHECKSUM_UNIT_LEN).min(len))
        };
        let units = request.units.iter().zip(request.checksums).map(|(unit, checksum)| (bytes(*unit), checksum)).collect();
        let expected_checksums = Some(store.expected_checksums).filter(|units| !units.is_empty());
        Ok(Self { meta, disk: store.disk, expected_checksums, units, within })
    }
}

/// The earlier generations of a block that can be opened, the latest first.
fn sources(disks: &Disks, meta: &BlockMeta) -> Vec<Source> {
    let earlier = (1..meta.id.generation).rev().take(EARLIER_MAX);
    let opened = earlier.filter_map(|generation| disks.open_block(BlockId { generation, ..meta.id }).ok());
    let is_like_it = |(_, reader): &(usize, Arc<dyn BlockReader>)| {
        let earlier = reader.meta();
        let code = |it: &BlockMeta| (it.generator_hash, it.stripe.layout, it.stripe.k, it.stripe.m);
        earlier.code == meta.code && code(earlier) == code(meta)
    };
    let source = |(disk, reader)| Source { reader, passage: Passage::new(disks.line(disk), OF) };
    opened.filter(is_like_it).take(SOURCES_MAX).map(source).collect()
}

impl Keeping {
    /// May block.
    fn begin(
        sources: Vec<Source>,
        partials: &Arc<Partials>,
        (disk, store): (usize, &dyn BlockStore),
        meta: &BlockMeta,
        at: At,
    ) -> Result<Self> {
        let claim = Arc::new(partials.claim(KEEPING, disk, store, meta)?);
        let missing = claim.missing();
        Ok(Self { sources, claim, missing, at })
    }

    /// Copies these units, as far as that is done by then; returns the bytes of those that were copied. A limit on repair may leave little time.
    async fn copy_all(&self, units: &[(Span, u32)], until: Instant) -> Result<u64> {
        let mut kept_bytes = 0;
        let copying = async {
            for (unit, checksum) in units {
                kept_bytes += if self.copy(*unit, *checksum).await? { unit.len() } else { 0 };
            }
            Ok::<(), Error>(())
        };
        // A write that is under way then writes right bytes, or is refused because the claim was released.
        timeout_at(until, copying).await.unwrap_or(Ok(()))?;
        Ok(kept_bytes)
    }

    /// Copies a unit from a source in which it has this checksum. Returns whether there is one.
    async fn copy(&self, unit: Span, checksum: u32) -> Result<bool> {
        if !self.missing.iter().any(|hole| hole.contains(unit)) {
            return Ok(false);
        }
        for source in &self.sources {
            if let Some(bytes) = self.read(source, unit).await?
                && crc32c(&bytes) == checksum
            {
                return self.write(unit, bytes).await.map(|()| true);
            }
        }
        Ok(false)
    }

    /// The bytes of a unit, if they can be read.
    async fn read(&self, source: &Source, unit: Span) -> Result<Option<Vec<u8>>> {
        let mut read = Vec::with_capacity(unit.len() as usize);
        for frame in frames(unit) {
            let (turn, reader) = (source.passage.turn_of(frame.len()).await, Arc::clone(&source.reader));
            let read_frame = move || {
                let mut bytes = vec![0; frame.len() as usize];
                Ok(reader.read_at(frame.start, &mut bytes).ok().map(|_| bytes))
            };
            let bytes = self.at.mode.run(read_frame).await?;
            turn.passed(frame.len());
            self.at.throttles.read_from_disk(OF, frame.len()).await;
            let Some(bytes) = bytes else { return Ok(None) };
            read.extend(bytes);
        }
        Ok(Some(read))
    }

    async fn write(&self, unit: Span, bytes: Vec<u8>) -> Result<()> {
        let bytes: Arc<[u8]> = bytes.into();
        for frame in frames(unit) {
            let (turn, claim, bytes) = (self.at.passage.turn_of(frame.len()).await, Arc::clone(&self.claim), Arc::clone(&bytes));
            let within = (frame.start - unit.start) as usize..(frame.end - unit.start) as usize;
            self.at.mode.run(move || claim.write_at(frame.start, &bytes[within])).await?;
            turn.passed(frame.len());
        }
        Ok(())
    }
}

/// What is read or written in one turn.
fn frames(unit: Span) -> impl Iterator<Item = Span> {
    let frame = move |start: u64| Span::new(start, (start + FRAME_BYTES_MAX).min(unit.end));
    (unit.start..unit.end).step_by(FRAME_BYTES_MAX as usize).map(frame)
}

/// Leaves the block to the plan that brings the rest, or commits it if there is none. May block.
fn end(claim: &Claim, expected_checksums: Option<&[u32]>) -> Result<KeepBlockReply> {
    if let Some(receipt) = claim.commit(expected_checksums)? {
        return Ok(KeepBlockReply { checksums: receipt.units, ..KeepBlockReply::default() });
    }
    let arrived = claim.arrived().unwrap_or_default();
    claim.release();
    let arrived = arrived.into_iter().map(|span| SpanMessage { start: span.start, end: span.end }).collect();
    Ok(KeepBlockReply { arrived, ..KeepBlockReply::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, LocalDisks, Throttle, line::Line, state::Memory};
    use rand::{SeedableRng as _, rngs::StdRng};
    use std::os::unix::fs::FileExt as _;
    use weft_store::conformance;
    use weft_types::{ByteSize, Layout, Seq, StripeId, StripeLayout};

    const CLUSTER: ClusterId = ClusterId(3);
    const MIB: u64 = 1 << 20;
    const LEN: u64 = 4 * MIB - 100;

    fn meta(generation: u32) -> BlockMeta {
        BlockMeta {
            cluster: CLUSTER,
            id: BlockId { stripe: StripeId(1), index: 0, copy: 0, generation },
            object: "b/k".into(),
            version: 1,
            object_offset: 0,
            code: "none".into(),
            generator_hash: 0,
            stripe: StripeLayout { layout: Layout::new(4 * MIB, MIB, 1).unwrap(), k: 1, m: 1, data_len: LEN },
            seq: Seq::default(),
        }
    }

    #[tokio::test]
    async fn units_that_are_as_known_are_copied_from_an_earlier_generation_and_a_plan_brings_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let (paths, random) = ([dir.path().to_owned()], &mut StdRng::seed_from_u64(1));
        let disks = Disks::open(&paths, &Memory::default(), CLUSTER, &LocalDisks, random, 0).ok().unwrap();
        let id = disks.ids()[&dir.path().display().to_string()].clone();
        let (disk, store) = disks.by_id(&id).unwrap();
        let partials = Partials::new(&Limits::default());
        let begin = |meta: &BlockMeta| {
            let throttles = Throttles::new(&Throttle::default());
            let at = At { passage: Passage::new(&Line::new(None), OF), throttles, mode: DiskMode::Inline };
            Keeping::begin(sources(&disks, meta), &partials, (disk, store.as_ref()), meta, at).ok().unwrap()
        };
        let unit = |number: u64| Span::new(number * MIB, ((number + 1) * MIB).min(LEN));

        assert!(sources(&disks, &meta(4)).is_empty());
        let bytes = conformance::pattern(LEN);
        let mut writer = store.create(&meta(1)).unwrap();
        writer.write_at(0, &bytes).unwrap();
        let units = writer.finish(None).unwrap().units;
        let known = |number: u64| (unit(number), units[number as usize]);

        // All of it is as known.
        let keeping = begin(&meta(2));
        for (unit, checksum) in (0..4).map(known) {
            assert!(keeping.copy(unit, checksum).await.unwrap());
        }
        assert_eq!(end(&keeping.claim, None).unwrap().checksums, units);
        drop(keeping);
        assert!(store.remove(meta(2).id).unwrap());

        // One unit has changed, and another one is damaged.
        let mut shards = std::fs::read_dir(dir.path().join("blocks")).unwrap().map(|shard| shard.unwrap().path());
        let path = shards.find_map(|shard| Some(shard.join(meta(1).id.to_string())).filter(|path| path.exists())).unwrap();
        std::fs::File::options().write(true).open(path).unwrap().write_all_at(&[!bytes[2 * MIB as usize]], 2 * MIB).unwrap();
        let keeping = begin(&meta(4));
        for (asked, checksum, is_copied) in
            [(unit(0), units[0], true), (unit(1), units[1] ^ 1, false), (unit(2), units[2], false), (unit(3), units[3], true)]
        {
            assert_eq!(keeping.copy(asked, checksum).await.unwrap(), is_copied, "{asked:?}");
        }
        let reply = end(&keeping.claim, None).unwrap();
        let span = |start, end| SpanMessage { start, end };
        assert_eq!((reply.arrived, reply.checksums), (vec![span(0, MIB), span(3 * MIB, LEN)], vec![]));

        let rest = partials.claim(PlanId(5), disk, store.as_ref(), &meta(4)).ok().unwrap();
        drop(keeping);
        assert_eq!(rest.missing(), [Span::new(MIB, 3 * MIB)]);
        rest.write_at(MIB, &bytes[MIB as usize..3 * MIB as usize]).unwrap();
        assert_eq!(rest.commit(Some(&units)).unwrap().unwrap().units, units);
    }

    #[tokio::test]
    async fn what_a_limit_on_repair_has_let_pass_in_time_is_told_and_the_rest_is_left_to_a_plan() {
        let dir = tempfile::tempdir().unwrap();
        let (paths, random) = ([dir.path().to_owned()], &mut StdRng::seed_from_u64(1));
        let disks = Disks::open(&paths, &Memory::default(), CLUSTER, &LocalDisks, random, 0).ok().unwrap();
        let id = disks.ids()[&dir.path().display().to_string()].clone();
        let (disk, store) = disks.by_id(&id).unwrap();
        let bytes = conformance::pattern(LEN);
        let mut writer = store.create(&meta(1)).unwrap();
        writer.write_at(0, &bytes).unwrap();
        let units = writer.finish(None).unwrap().units;
        let known = |number: u64| (Span::new(number * MIB, ((number + 1) * MIB).min(LEN)), units[number as usize]);
        let (first, all) = ([known(0)], (0..4).map(known).collect::<Vec<_>>());

        let partials = Partials::new(&Limits::default());
        let at = At {
            passage: Passage::new(disks.line(disk), OF),
            throttles: Throttles::new(&Throttle::default()),
            mode: DiskMode::Inline,
        };
        let keeping = Keeping::begin(sources(&disks, &meta(2)), &partials, (disk, store.as_ref()), &meta(2), at).ok().unwrap();
        let minute = Duration::from_secs(60);
        assert_eq!(keeping.copy_all(&first, Instant::now() + minute).await, Ok(MIB));
        // From now on, a frame takes minutes.
        disks.limit(Some(ByteSize(1 << 10)));
        let (begin, within) = (Instant::now(), Duration::from_millis(200));
        assert_eq!(keeping.copy_all(&all, begin + within).await, Ok(0));
        assert!((within..minute).contains(&begin.elapsed()), "{:?}", begin.elapsed());
        let reply = end(&keeping.claim, None).unwrap();
        assert_eq!((reply.arrived, reply.checksums), (vec![SpanMessage { start: 0, end: MIB }], vec![]));
        drop(keeping);
        let rest = partials.claim(PlanId(5), disk, store.as_ref(), &meta(2)).ok().unwrap();
        assert_eq!(rest.missing(), [Span::new(MIB, LEN)]);
    }

    #[test]
    fn a_call_must_fit_its_block() {
        let decode = |units: &[u32], checksums: &[u32], expected: &[u32], cluster| {
            let store = weft_proto::v1::StoreSpec {
                meta: wire::encode(&meta(2)),
                expected_checksums: expected.to_vec(),
                disk: "d".into(),
            };
            let (units, checksums) = (units.to_vec(), checksums.to_vec());
            let request = KeepBlockRequest { store: Some(store), units, checksums, ..KeepBlockRequest::default() };
            Asked::decode(request, cluster)
        };
        let asked = decode(&[0, 3], &[7, 8], &[], CLUSTER).unwrap();
        assert_eq!(asked.units, [(Span::new(0, MIB), 7), (Span::new(3 * MIB, LEN), 8)]);
        assert!(decode(&[], &[], &[1, 2, 3, 4], CLUSTER).is_ok());
        for wrong in [
            decode(&[0, 4], &[7, 8], &[], CLUSTER),
            decode(&[3, 0], &[7, 8], &[], CLUSTER),
            decode(&[0, 0], &[7, 8], &[], CLUSTER),
            decode(&[0], &[7, 8], &[], CLUSTER),
            decode(&[0], &[7], &[1], CLUSTER),
            decode(&[0], &[7], &[], ClusterId(4)),
        ] {
            assert!(wrong.is_err());
        }
    }
}
