//! Reads the bytes of a block and answers their checksums, so that the coordinator can compare them with those that it recorded. With the
//! precedence of a scrub: all else at the disk goes first.

use crate::{
    admission::Permit,
    block_source::OpenBlock,
    disks::Disks,
    line::Passage,
    node::Node,
    service::{DAMAGED, THERE, UNKNOWN, checked},
};
use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use weft_engine::classes::{Demand, FRAME_BYTES_MAX, frame_bytes};
use weft_plan::{Class, Precedence};
use weft_proto::v1::{CheckedBlock, ReadContent, SpanMessage};
use weft_types::{BlockId, CHECKSUM_UNIT_LEN, Error, Reaction, Result, Span, crc32c, crc32c_joined};

/// The most units that one call reads: the reader reserves memory for one frame only, but the caller waits.
const UNITS_MAX: u32 = 64;
/// The precedence of these reads.
const OF: Precedence = Precedence::of(Class::Scrub);

/// Checks a block and reads some of it.
pub(crate) async fn check(node: &Arc<Node>, disk: String, id: BlockId, asked: ReadContent) -> Result<CheckedBlock> {
    if !(1..=UNITS_MAX).contains(&asked.units_max) {
        return Err(Error::invalid(format!("{} units in one call: 1 to {UNITS_MAX} are possible", asked.units_max)));
    }
    let (disks, mode) = (node.disks()?, node.seams.disk_mode);
    let looked = Arc::clone(&disks);
    let look = move || {
        // What the page cache has says nothing about the disk.
        looked.forget_sidecar(id);
        Ok(checked(&looked, &disk, id))
    };
    let told = mode.run(look).await?;
    if told.state != THERE {
        return Ok(told);
    }
    let (opening, opened) = (Arc::clone(node), Arc::clone(&disks));
    let (block, _permit) = mode.run(move || open(&opening, &opened, id)).await?;
    let block = Arc::new(block);
    match read(node, &block, &asked).await {
        Ok(read) => Ok(CheckedBlock { read, ..told }),
        Err(error) => {
            let corrupt = block.corrupt.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let is_corrupt = error.reaction == Reaction::Corrupt && !corrupt.is_empty();
            let corrupt = corrupt.into_iter().map(|bytes| SpanMessage { start: bytes.start, end: bytes.end }).collect();
            let state = if is_corrupt { DAMAGED } else { UNKNOWN };
            Ok(CheckedBlock { state, why: error.message, corrupt, ..CheckedBlock::default() })
        }
    }
}

/// Opens the block, and reserves what its reading takes.
fn open(node: &Arc<Node>, disks: &Disks, id: BlockId) -> Result<(OpenBlock, Permit)> {
    let (disk, reader) = disks.open_block(id)?;
    let demand = Demand { memory_bytes: FRAME_BYTES_MAX, connections: 0, blocks: [(disk, 1)].into() };
    let permit = node.admission.admit(OF, demand)?;
    let block = OpenBlock {
        id,
        layout: reader.meta().stripe.layout,
        reader,
        traffic: Arc::new(node.meter.of(OF.class).traffic.of_task()),
        findings: Arc::clone(&node.findings),
        corrupt: Arc::default(),
        passage: Passage::new(disks.line(disk), OF),
        served: Arc::clone(&disks.served(disk).reads),
        buffers: Arc::clone(&node.buffers),
    };
    Ok((block, permit))
}

/// The checksums of whole units, from the first one asked for.
async fn read(node: &Arc<Node>, block: &Arc<OpenBlock>, asked: &ReadContent) -> Result<Vec<u32>> {
    let (len, begin, within) = (block.reader.meta().len(), Instant::now(), Duration::from_millis(asked.within_ms.into()));
    let first = u64::from(asked.first_unit);
    let mut read = Vec::new();
    let (forgets, units) = (Arc::clone(block), Span::new(first, first + u64::from(asked.units_max)));
    let forget = move || {
        let [start, end] = [units.start, units.end].map(|unit| unit.saturating_mul(CHECKSUM_UNIT_LEN).min(len));
        // What the page cache has says nothing about the disk.
        forgets.reader.forget_cached(Span::new(start, end));
        Ok(())
    };
    node.seams.disk_mode.run(forget).await?;
    for unit in first..first + u64::from(asked.units_max) {
        let start = unit.saturating_mul(CHECKSUM_UNIT_LEN);
        if start >= len || !read.is_empty() && begin.elapsed() >= within {
            break;
        }
        read.push(read_unit(node, block, Span::new(start, (start + CHECKSUM_UNIT_LEN).min(len))).await?);
    }
    Ok(read)
}

async fn read_unit(node: &Arc<Node>, block: &Arc<OpenBlock>, unit: Span) -> Result<u32> {
    let (mut at, mut checksum) = (unit.start, 0);
    while at < unit.end {
        let bytes = frame_bytes(OF.class, unit.end - at);
        let (turn, reading) = (block.passage.turn_of(bytes).await, Arc::clone(block));
        let read = move || {
            let mut buffer = vec![0; bytes as usize];
            reading.read_at(at, &mut buffer)?;
            Ok(crc32c(&buffer))
        };
        let of_frame = node.seams.disk_mode.run(read).await;
        drop(turn);
        block.traffic.read.add(bytes);
        node.throttles.read_from_disk(OF, bytes).await;
        checksum = crc32c_joined(checksum, of_frame?, bytes);
        at += bytes;
    }
    Ok(checksum)
}
