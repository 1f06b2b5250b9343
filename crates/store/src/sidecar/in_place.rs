//! Version 3 of the sidecar, for blocks that are updated in place: an update writes only what it changes.
//!
//! The file is a head, which never changes, and sectors of 512 bytes, each with its own checksum and the number of the update that wrote
//! it. First two slots of 8 sectors for the state: which updates the block contains, and how long it is. Then the page checksums, 124 in
//! a sector. An update writes the sectors of page checksums that change, and its state into the slot that does not hold the current one,
//! all under one number, and then syncs the file once. Its state says how many sectors of page checksums it writes.
//!
//! A crash leaves each sector old or new, so after it either all that an update wrote is there, or it is seen to be interrupted, and
//! the other slot holds the state before. The next update first clears the state of the interrupted one, and syncs that: otherwise it
//! would look complete as soon as a later number appears. As the payload is synced first, a complete update in the sidecar is complete in
//! the payload, too. A sector whose checksum is wrong was not torn but is damaged, and the sidecar with it.

use super::{CRC_LEN, DescriptionV1, HEAD_LEN, MAGIC, Sidecar, as_corrupt, check_meta, newer, split_u32, wrong};
use crate::block_store::Patch;
use crate::coverage::{unit_of, units_of};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use weft_types::{BlockMeta, CHECKSUM_UNIT_LEN, Error, PAGE_LEN, Result, Seq, Span, crc32c};

const VERSION: u32 = 3;
const SECTOR: usize = 512;
/// The unit in which the page cache writes.
const CACHE_PAGE: usize = 4096;
/// Number, place, checksum.
const TRAILER: usize = 8 + 4 + 4;
const CONTENT: usize = SECTOR - TRAILER;
const SUMS: usize = CONTENT / 4;
/// Enough for the counts of 255 data blocks.
const SLOT_SECTORS: usize = CACHE_PAGE / SECTOR;
const SLOTS: usize = 2;

/// A sidecar as it was read: of any version, and perhaps with an update that was interrupted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loaded {
    pub(crate) sidecar: Sidecar,
    in_place: Option<InPlace>,
}

/// What is known of a file of version 3.
#[derive(Debug, Clone, PartialEq, Eq)]
struct InPlace {
    /// Where the slots begin in the file.
    head_len: usize,
    /// The slot with the current state.
    slot: usize,
    /// The update that wrote it.
    number: u64,
    /// The highest number in the file.
    last_number: u64,
    /// The number of each sector of page checksums.
    numbers: Vec<u64>,
}

/// What an update has to write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Writes {
    /// The file is as it must be.
    Nothing,
    /// A new file: the old one was of another version.
    Replace(Vec<u8>),
    /// Bytes at offsets of the file.
    At {
        /// What is written and synced before the rest: the end of an update that was interrupted.
        first: Option<(u64, Vec<u8>)>,
        /// The rest, in ascending order.
        then: Vec<(u64, Vec<u8>)>,
    },
}

impl Writes {
    /// How many bytes are written.
    pub(crate) fn bytes(&self) -> u64 {
        let len = |(_, bytes): &(u64, Vec<u8>)| bytes.len() as u64;
        match self {
            Self::Nothing => 0,
            Self::Replace(bytes) => bytes.len() as u64,
            Self::At { first, then } => first.iter().chain(then).map(len).sum(),
        }
    }
}

/// The state of a block, in postcard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    /// How many sectors of page checksums the update wrote.
    changed: u64,
    /// The block's updates.
    seq: Seq,
    /// Bytes of the object in the stripe.
    data_len: u64,
}

impl Loaded {
    /// Decodes a file of any version. Accepts any bytes and never panics.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let version = bytes.get(8..12).and_then(split_u32).map(|(version, _)| version);
        match version {
            Some(version @ VERSION..) if bytes.starts_with(&MAGIC) => match split_head(bytes) {
                Some((description, rest)) if version == VERSION => decode(description, rest, bytes.len() - rest.len()),
                Some(_) => Err(newer(version)),
                None => Ok(Self { sidecar: Sidecar::decode_whole(bytes)?, in_place: None }),
            },
            _ => Ok(Self { sidecar: Sidecar::decode_whole(bytes)?, in_place: None }),
        }
    }

    /// Whether the last update of the sidecar is incomplete.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.in_place.as_ref().is_some_and(|it| it.last_number > it.number)
    }

    /// Whether an interrupted update has written a checksum beside this page's, perhaps this page's.
    pub(crate) fn is_page_interrupted(&self, page: u64) -> bool {
        self.in_place.as_ref().is_some_and(|it| it.numbers.get(page as usize / SUMS).is_some_and(|number| *number > it.number))
    }

    /// The sidecar after a patch, and what has to be written. Refuses a patch that does not fit.
    pub(crate) fn patched(&self, patch: &Patch<'_>) -> Result<(Self, Writes)> {
        let before = &self.sidecar.meta;
        let before_len = before.stripe.data_len;
        let mut meta = BlockMeta { seq: patch.seq.clone(), ..before.clone() };
        meta.stripe.data_len = patch.data_len;
        check_meta(&meta)?;
        check_order(before, &meta)?;
        check_images(before.len(), meta.len(), patch)?;

        let mut pages = self.sidecar.pages.clone();
        pages.resize(meta.len().div_ceil(PAGE_LEN) as usize, 0);
        let mut changed = BTreeSet::new();
        for image in patch.images {
            for (page, bytes) in (image.offset / PAGE_LEN..).zip(image.bytes.chunks(PAGE_LEN as usize)) {
                pages[page as usize] = crc32c(bytes);
                changed.insert(page as usize);
            }
        }
        let sectors: BTreeSet<usize> = changed.iter().map(|page| page / SUMS).collect();
        let (sidecar, in_place) =
            (Sidecar { units: self.units_after(&changed, &pages, &meta), meta, pages }, self.in_place.as_ref());
        match in_place {
            None => {
                let (loaded, file) = Self::create(sidecar)?;
                Ok((loaded, Writes::Replace(file)))
            }
            // A patch that is repeated. If it were written again, and interrupted, nobody would repeat it once more.
            Some(_) if sidecar == self.sidecar && !self.is_interrupted() => Ok((self.clone(), Writes::Nothing)),
            // The new file appears as a whole, so a block is never seen half grown.
            Some(_) if patch.data_len > before_len && !self.is_interrupted() => {
                let (loaded, file) = Self::create(sidecar)?;
                Ok((loaded, Writes::Replace(file)))
            }
            Some(before) => update(before, sidecar, &sectors),
        }
    }

    fn units_after(&self, changed: &BTreeSet<usize>, pages: &[u32], meta: &BlockMeta) -> Vec<u32> {
        let mut units = self.sidecar.units.clone();
        units.resize(meta.len().div_ceil(CHECKSUM_UNIT_LEN) as usize, 0);
        let pages_per_unit = (CHECKSUM_UNIT_LEN / PAGE_LEN) as usize;
        for unit in changed.iter().map(|page| page / pages_per_unit).collect::<BTreeSet<_>>() {
            units[unit] = unit_of(pages, unit, meta.len());
        }
        units
    }

    /// A new file of version 3.
    fn create(sidecar: Sidecar) -> Result<(Self, Vec<u8>)> {
        let meta = &sidecar.meta;
        let description = postcard::to_stdvec(&DescriptionV1::from(meta))
            .map_err(|error| Error::fatal(format!("cannot encode the block's description: {error}")).block(meta.id))?;
        let mut file = Vec::new();
        file.extend(MAGIC);
        for number in [VERSION as usize, description.len(), 0, 0] {
            let number = u32::try_from(number).map_err(|_| Error::invalid("the description is too long").block(meta.id))?;
            file.extend(number.to_le_bytes());
        }
        file.extend(description);
        file.extend(crc32c(&file).to_le_bytes());
        file.resize(file.len().next_multiple_of(CACHE_PAGE), 0);
        let sectors = sidecar.pages.len().div_ceil(SUMS);
        let in_place = InPlace { head_len: file.len(), slot: 0, number: 1, last_number: 1, numbers: vec![1; sectors] };
        for index in 0..SLOTS * SLOT_SECTORS {
            file.extend(seal(&[], 0, index));
        }
        let state = encode_state(&sidecar, sectors as u64, 1, 0)?;
        file[in_place.head_len..in_place.head_len + state.len()].copy_from_slice(&state);
        file.extend((0..sectors).flat_map(|sector| encode_sums(&sidecar.pages, sector, 1)));
        Ok((Self { sidecar, in_place: Some(in_place) }, file))
    }
}

/// The writes of an update of a file of version 3. `changed` are the sectors of page checksums.
fn update(before: &InPlace, sidecar: Sidecar, changed: &BTreeSet<usize>) -> Result<(Loaded, Writes)> {
    let id = sidecar.meta.id;
    let is_left_over = |(sector, number): (usize, &u64)| *number > before.number && !changed.contains(&sector);
    if before.numbers.iter().enumerate().any(is_left_over) {
        return Err(Error::invalid("an earlier patch was interrupted and is not part of this one: repeat it first").block(id));
    }
    let number = before
        .last_number
        .checked_add(1)
        .ok_or_else(|| Error::corrupt("the sidecar's count of updates is at its end").block(id))?;
    let slot = 1 - before.slot;
    let mut numbers = before.numbers.clone();
    numbers.resize(sidecar.pages.len().div_ceil(SUMS), number);
    for sector in changed {
        numbers[*sector] = number;
    }
    let slot_at = (before.head_len + slot * SLOT_SECTORS * SECTOR) as u64;
    let is_interrupted = before.last_number > before.number;
    let first = is_interrupted.then(|| (slot_at, seal(&[], 0, slot * SLOT_SECTORS).to_vec()));
    let mut writes = vec![(slot_at, encode_state(&sidecar, changed.len() as u64, number, slot)?)];
    let sums_at = before.head_len + SLOTS * SLOT_SECTORS * SECTOR;
    // One write for each page of the cache, even if sectors in between do not change: the kernel may write a page at any time, and must
    // not do so while a sector of it changes again.
    let per_page = CACHE_PAGE / SECTOR;
    for page in changed.iter().map(|sector| sector / per_page).collect::<BTreeSet<_>>() {
        let of_page = page * per_page..(page + 1) * per_page;
        let mut there = changed.range(of_page);
        let Some(first) = there.next() else { continue };
        let last = there.next_back().unwrap_or(first);
        let bytes = (*first..=*last).flat_map(|sector| encode_sums(&sidecar.pages, sector, numbers[sector]));
        writes.push(((sums_at + first * SECTOR) as u64, bytes.collect()));
    }
    let in_place = InPlace { head_len: before.head_len, slot, number, last_number: number, numbers };
    Ok((Loaded { sidecar, in_place: Some(in_place) }, Writes::At { first, then: writes }))
}

/// No update is taken back.
fn check_order(before: &BlockMeta, after: &BlockMeta) -> Result<()> {
    let count = |seq: &Seq, stream: usize| seq.counts().get(stream).copied().unwrap_or(0);
    let is_older = (0..before.seq.counts().len()).any(|stream| count(&after.seq, stream) < count(&before.seq, stream));
    if is_older || after.seq.term() < before.seq.term() {
        return Err(Error::invalid("the block contains later updates than the patch").block(before.id));
    }
    if after.stripe.data_len < before.stripe.data_len {
        return Err(Error::invalid("a patch cannot make the block shorter").block(before.id));
    }
    Ok(())
}

fn check_images(len_before: u64, len: u64, patch: &Patch<'_>) -> Result<()> {
    let refuse = |what: String| Err(Error::invalid(what).block(patch.id));
    let mut spans = Vec::with_capacity(patch.images.len());
    let mut end_before = 0;
    for image in patch.images {
        let end = image.offset.saturating_add(image.bytes.len() as u64);
        let is_whole = image.offset.is_multiple_of(PAGE_LEN) && (end.is_multiple_of(PAGE_LEN) || end == len);
        if image.bytes.is_empty() || !is_whole || end > len || image.offset < end_before {
            return refuse(format!(
                "the image {}..{end} is not whole pages of a block of {len} bytes, behind the image before it",
                image.offset
            ));
        }
        spans.push(Span::new(image.offset, end));
        end_before = end;
    }
    let grown = Span::new(len_before / PAGE_LEN * PAGE_LEN, len);
    if len > len_before
        && let Some(gap) = grown.subtract(&Span::normalize(spans)).first()
    {
        return refuse(format!("the block grows to {len} bytes, but no image has bytes {}..{}", gap.start, gap.end));
    }
    Ok(())
}

/// The description in the head of a file of version 3 or a later one, and what follows the head. `None` if the head is damaged.
fn split_head(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (description_len, _) = split_u32(bytes.get(12..16)?)?;
    let end = HEAD_LEN.checked_add(description_len as usize)?;
    let crc = bytes.get(end..)?.first_chunk::<CRC_LEN>()?;
    if crc32c(&bytes[..end]) != u32::from_le_bytes(*crc) {
        return None;
    }
    let rest = bytes.get((end + CRC_LEN).next_multiple_of(CACHE_PAGE)..)?;
    Some((&bytes[HEAD_LEN..end], rest))
}

fn decode(description: &[u8], sectors: &[u8], head_len: usize) -> Result<Loaded> {
    let first: DescriptionV1 = postcard::from_bytes(description).map_err(|_| wrong("does not describe a block"))?;
    let meta = Option::<BlockMeta>::from(first).ok_or_else(|| wrong("does not describe a block"))?;
    let slots_len = SLOTS * SLOT_SECTORS * SECTOR;
    let (slots, sums) = sectors.split_at_checked(slots_len).ok_or_else(|| wrong("is too short"))?;
    let mut states = Vec::with_capacity(SLOTS);
    for (slot, sectors) in slots.chunks(SLOT_SECTORS * SECTOR).enumerate() {
        states.extend(decode_state(sectors, slot)?.map(|(number, state)| (number, slot, state)));
    }
    states.sort_by_key(|(number, _, _)| std::cmp::Reverse(*number));
    let mut states = states.into_iter();
    let newest = states.next().ok_or_else(|| wrong("has no state"))?;
    // A torn slot has no state, but its number is used: under the same number, its sectors would join those of another update.
    let in_slots = slots.chunks(SECTOR).enumerate().filter_map(|(index, sector)| open(sector, index)).map(|(number, _)| number);
    let used = in_slots.fold(newest.0, u64::max);
    let tops = sums.chunks(SECTOR).enumerate().filter_map(|(at, sector)| open(sector, SLOTS * SLOT_SECTORS + at));
    let (mut last_number, mut written) = (used, 0);
    for (number, _) in tops {
        last_number = last_number.max(number);
        written += u64::from(number == newest.0);
    }
    // If a later update has begun, this one was complete, or its state would be cleared.
    let is_complete = last_number > newest.0 || written == newest.2.changed;
    let (number, slot, state) = if is_complete { newest } else { states.next().ok_or_else(|| wrong("has no complete state"))? };
    let mut meta = BlockMeta { seq: state.seq, ..meta };
    meta.stripe.data_len = state.data_len;
    check_meta(&meta).map_err(as_corrupt)?;
    let pages = meta.len().div_ceil(PAGE_LEN) as usize;
    let damaged = || wrong("is damaged: a sector's checksum is wrong");
    if sums.len() / SECTOR < pages.div_ceil(SUMS) {
        return Err(damaged());
    }
    let (mut all, mut numbers) = (Vec::with_capacity(pages), Vec::new());
    for at in 0..pages.div_ceil(SUMS) {
        let sector = sums.get(at * SECTOR..(at + 1) * SECTOR).ok_or_else(damaged)?;
        let (number, content) = open(sector, SLOTS * SLOT_SECTORS + at).ok_or_else(damaged)?;
        numbers.push(number);
        all.extend(content.chunks_exact(4).map_while(split_u32).map(|(sum, _)| sum).take(pages - all.len()));
    }
    let units = units_of(&all, meta.len());
    let in_place = Some(InPlace { head_len, slot, number, last_number, numbers });
    Ok(Loaded { sidecar: Sidecar { meta, pages: all, units }, in_place })
}

/// The sectors of a state. A slot has 8; those that are not needed keep what they had.
fn encode_state(sidecar: &Sidecar, changed: u64, number: u64, slot: usize) -> Result<Vec<u8>> {
    let state = State { changed, seq: sidecar.meta.seq.clone(), data_len: sidecar.meta.stripe.data_len };
    let encoded = postcard::to_stdvec(&state)
        .ok()
        .filter(|encoded| encoded.len() + 4 <= SLOT_SECTORS * CONTENT)
        .ok_or_else(|| Error::fatal("cannot encode the block's state").block(sidecar.meta.id))?;
    let bytes = [&(encoded.len() as u32).to_le_bytes()[..], &encoded].concat();
    let sectors = (slot * SLOT_SECTORS..).zip(bytes.chunks(CONTENT));
    Ok(sectors.flat_map(|(index, content)| seal(content, number, index)).collect())
}

/// The state in a slot and its number; `None` if it is torn, or was never written.
fn decode_state(sectors: &[u8], slot: usize) -> Result<Option<(u64, State)>> {
    let damaged = || wrong("is damaged: the checksum of its state is wrong");
    let (mut bytes, mut of_slot) = (Vec::new(), Vec::new());
    for (index, sector) in (slot * SLOT_SECTORS..).zip(sectors.chunks(SECTOR)) {
        let (number, content) = open(sector, index).ok_or_else(damaged)?;
        of_slot.push(number);
        bytes.extend_from_slice(content);
    }
    let (len, rest) = split_u32(&bytes).ok_or_else(damaged)?;
    let needed = (len as usize).saturating_add(4).div_ceil(CONTENT);
    let number = of_slot[0];
    if number == 0 || needed > SLOT_SECTORS || of_slot[..needed].iter().any(|other| *other != number) {
        return Ok(None);
    }
    let state = rest.get(..len as usize).and_then(|bytes| postcard::from_bytes(bytes).ok());
    state.map(|state| Some((number, state))).ok_or_else(|| wrong("does not describe a block"))
}

fn encode_sums(pages: &[u32], sector: usize, number: u64) -> [u8; SECTOR] {
    let start = (sector * SUMS).min(pages.len());
    let sums = &pages[start..(start + SUMS).min(pages.len())];
    let content: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
    seal(&content, number, SLOTS * SLOT_SECTORS + sector)
}

/// A sector; `index` is its place behind the head.
fn seal(content: &[u8], number: u64, index: usize) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    sector[..content.len()].copy_from_slice(content);
    sector[CONTENT..CONTENT + 8].copy_from_slice(&number.to_le_bytes());
    sector[CONTENT + 8..CONTENT + 12].copy_from_slice(&(index as u32).to_le_bytes());
    let crc = crc32c(&sector[..CONTENT + 12]);
    sector[CONTENT + 12..].copy_from_slice(&crc.to_le_bytes());
    sector
}

/// The number and content of a sector; `None` if it is damaged.
fn open(sector: &[u8], index: usize) -> Option<(u64, &[u8])> {
    let (body, crc) = sector.split_last_chunk::<4>()?;
    let (rest, at) = body.split_last_chunk::<4>()?;
    let (content, number) = rest.split_last_chunk::<8>()?;
    let is_whole =
        content.len() == CONTENT && crc32c(body) == u32::from_le_bytes(*crc) && u32::from_le_bytes(*at) == index as u32;
    is_whole.then_some((u64::from_le_bytes(*number), content))
}
