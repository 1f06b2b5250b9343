//! Opens a ring: finds its end, and tells a batch that was torn from damage.
//!
//! One batch is written at a time, and the next only when it is durable. So the batch with the highest number may be torn, and all
//! others are whole. A crash leaves each sector as it was before or as it was to be. So:
//!
//! - The newest batch is torn if a sector of it is whole and belongs to something older. It was never durable, and no caller was told so:
//!   recovery drops all of it. The batch before it must then be whole.
//! - Else, a sector with a wrong checksum in it is damage: it may have been durable.
//! - Any other irregularity from the tail to the newest batch is damage: it was durable.
//! - If the page behind the newest batch has a damaged sector, it may have been a later batch: damage, too.
//!
//! Each sector names its batch and the batch before. So a single sector that survives of a batch tells that it began, and which batch
//! was durable then. What is neither live nor next is not judged, as it is overwritten before it is read.

use super::frames::{self, BatchHead, Head, released_positions};
use super::index::Index;
use super::ring_file::{RingFile, damaged};
use super::sectors::{CONTENT, PAGE, SECTOR, Tag, contents};
use weft_types::Result;

/// More pages than any batch has.
pub(super) const BATCH_PAGES_MAX: u32 = (72 << 20) / PAGE as u32;
/// Higher than any number, place or position that is ever reached.
const END: u64 = 1 << 60;

/// What a ring contains.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) index: Index,
    /// The number of the newest durable batch; 0: there is none.
    pub(super) last_number: u64,
    /// Higher than that of any batch of which a sector may exist.
    pub(super) next_number: u64,
    /// The tail that the newest durable batch names.
    pub(super) tail: u64,
    /// The next position.
    pub(super) next_position: u64,
}

/// Reads the whole ring once, and what is live a second time.
pub(super) fn recover(ring: &RingFile) -> Result<Found> {
    let mut newest: Option<(u64, Tag)> = None;
    let mut is_damaged_at_start = false;
    ring.scan(0, ring.ring_bytes, |sector, tag| match tag {
        Some((tag, _)) => {
            if tag.number > newest.map_or(0, |(_, newest)| newest.number) {
                newest = Some((sector, tag));
            }
        }
        None => is_damaged_at_start |= sector < (PAGE / SECTOR) as u64,
    });
    let Some((sector, tag)) = newest else {
        // The first batch is written at the start.
        return if is_damaged_at_start { Err(damaged("its beginning is unreadable")) } else { Ok(empty(1)) };
    };
    let start = before(ring, sector, u64::from(tag.index));
    let durable = tag.number.checked_sub(u64::from(tag.behind)).filter(|_| tag.number < END);
    let durable = durable.ok_or_else(|| damaged("its last batch has an impossible number"))?;
    let next_number = tag.number + 1;
    let (last, start, last_number) = match batch_at(ring, start, tag.number)? {
        Whole::Yes(head) => (head, start, tag.number),
        Whole::Torn if durable == 0 => return Ok(empty(next_number)),
        Whole::Torn => {
            let start = start_of_batch_before(ring, start, durable)?;
            match batch_at(ring, start, durable)? {
                Whole::Yes(head) => (head, start, durable),
                Whole::Torn => return Err(damaged("a durable batch is incomplete")),
            }
        }
    };
    if last_number == tag.number {
        let mut is_damaged_behind = false;
        ring.scan(start + u64::from(last.pages) * PAGE as u64, PAGE as u64, |_, tag| is_damaged_behind |= tag.is_none());
        if is_damaged_behind {
            return Err(damaged("the page behind its last batch is unreadable"));
        }
    }
    let is_in_place = last.at < END && last.at % ring.ring_bytes == start % ring.ring_bytes;
    let is_in_ring = last.tail <= last.at && last.at - last.tail <= ring.ring_bytes;
    if !is_in_place || !is_in_ring || !(1..END).contains(&last.next_position) {
        return Err(damaged("its last batch contradicts its place"));
    }
    let mut found =
        Found { index: Index::default(), last_number, next_number, tail: last.tail, next_position: last.next_position };
    walk(ring, &mut found, &last)?;
    Ok(found)
}

fn empty(next_number: u64) -> Found {
    Found { next_number, next_position: 1, ..Found::default() }
}

/// Reads the live batches, the oldest first.
fn walk(ring: &RingFile, found: &mut Found, last: &BatchHead) -> Result<()> {
    let (mut at, mut number) = (last.tail, None);
    let end = last.at + u64::from(last.pages) * PAGE as u64;
    found.index.head = at;
    while at < end {
        let wrong = || damaged(format!("the batch at {at} is not what was written"));
        let tag = first_tag(ring, at).ok_or_else(wrong)?;
        if number.is_some_and(|number| tag.number.checked_sub(u64::from(tag.behind)) != Some(number)) {
            return Err(wrong());
        }
        let Whole::Yes(head) = batch_at(ring, at, tag.number)? else { return Err(wrong()) };
        if head.at != at || (tag.number == found.last_number) != (at == last.at) {
            return Err(wrong());
        }
        let mut sectors = vec![0; head.pages as usize * PAGE];
        ring.read(at, &mut sectors).map_err(|_| wrong())?;
        add(&mut found.index, &head, &contents(&sectors)).map_err(|()| wrong())?;
        number = Some(tag.number);
        at += u64::from(head.pages) * PAGE as u64;
    }
    if at == end { Ok(()) } else { Err(damaged("its batches do not end where the last one does")) }
}

/// Adds the records of a batch to the index, and takes out those that it releases.
fn add(index: &mut Index, head: &BatchHead, stream: &[u8]) -> Result<(), ()> {
    let (mut offset, mut records, mut released) = (0, Vec::new(), Vec::new());
    while let Some(frame) = frames::read(&stream[offset..])? {
        match frame.head {
            Head::Batch(_) if offset == 0 => {}
            Head::Batch(_) => return Err(()),
            Head::Released(differences) => released.extend(released_positions(differences)),
            Head::Record(record) => {
                let len = u32::try_from(frame.len).map_err(|_| ())?;
                match index.get(record.position) {
                    _ if !(1..head.next_position).contains(&record.position) => return Err(()),
                    None => index.append(record.position, record.block(), len),
                    Some(live) if (live.block, live.len) == (record.block(), len) => {}
                    Some(_) => return Err(()),
                }
                records.push((record.position, offset as u32));
            }
        }
        offset += frame.len;
    }
    index.durable(head.at, head.pages, &records);
    for position in released {
        index.release(position);
        index.forget(position);
    }
    Ok(())
}

/// Whether a batch is whole.
enum Whole {
    Yes(BatchHead),
    /// A sector of it was not written.
    Torn,
}

/// Checks all sectors of the batch of this number.
fn batch_at(ring: &RingFile, start: u64, number: u64) -> Result<Whole> {
    let unreadable = || damaged(format!("a sector of batch {number} is unreadable"));
    let mut first = None;
    ring.scan(start, SECTOR as u64, |_, tag| {
        first = tag.map(|(tag, content)| (tag, frames::read(content).ok().flatten().map(|frame| frame.head)));
    });
    let (tag, head) = first.ok_or_else(unreadable)?;
    if tag.number != number {
        return if tag.number < number { Ok(Whole::Torn) } else { Err(unreadable()) };
    }
    let Some(Head::Batch(head)) = head else { return Err(damaged(format!("batch {number} has no head"))) };
    let len = u64::from(head.pages) * PAGE as u64;
    if len == 0 || len > ring.ring_bytes || head.pages > BATCH_PAGES_MAX {
        return Err(damaged(format!("batch {number} has an impossible length")));
    }
    let (mut is_torn, mut is_damaged) = (false, false);
    ring.scan(start, len, |index, found| match found {
        None => is_damaged = true,
        Some((found, _)) if found.number == number && u64::from(found.index) == index && found.behind == tag.behind => {}
        Some(_) => is_torn = true,
    });
    match (is_torn, is_damaged) {
        (true, _) => Ok(Whole::Torn),
        (false, true) => Err(unreadable()),
        (false, false) => Ok(Whole::Yes(head)),
    }
}

/// Batches follow each other, so the sector before a batch is the last of the one before.
fn start_of_batch_before(ring: &RingFile, start: u64, number: u64) -> Result<u64> {
    let last = before(ring, start / SECTOR as u64, 1);
    match first_tag(ring, last) {
        Some(tag) if tag.number == number => Ok(before(ring, last / SECTOR as u64, u64::from(tag.index))),
        _ => Err(damaged(format!("the end of batch {number} is unreadable"))),
    }
}

fn first_tag(ring: &RingFile, at: u64) -> Option<Tag> {
    let mut found = None;
    ring.scan(at, SECTOR as u64, |_, tag| found = tag.map(|(tag, _)| tag));
    found
}

/// Where the sector begins that is so many sectors before another.
fn before(ring: &RingFile, sector: u64, sectors: u64) -> u64 {
    (sector % ring.sectors() + ring.sectors() - sectors % ring.sectors()) % ring.sectors() * SECTOR as u64
}

const _: () = assert!(CONTENT > 2 * frames::FRAME_EXTRA_MAX);

#[cfg(test)]
mod tests;
