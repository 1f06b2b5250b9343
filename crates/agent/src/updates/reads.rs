//! Reads of blocks that are open for updates, at one disk: what is asked for, and what waits.
//!
//! A read that meets an update whose outcome is not known here waits until it is: it must see all of the update or nothing. It is tried again whenever the
//! thread of the disk has done something, because most of what the thread does are messages about updates.

use super::{Hub, meter::ReadEnd, queue::Reading};
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::updates::{Found, Part, ReadRefusal};
use weft_types::{BlockId, Reaction};
use weft_update::NotServed;
use weft_updater::{Read, Served, Updater};

/// The reads of one disk.
#[derive(Default)]
pub(crate) struct Reads {
    /// Numbers are not used again.
    next: u64,
    /// Those that the updater answers.
    asked: Vec<Waiting>,
    /// Those that are tried again.
    again: Vec<Waiting>,
}

struct Waiting {
    /// The updater's.
    number: u64,
    reading: Reading,
    until: Instant,
}

/// How long a read waits for the outcome of an update, or for the confirmation of the term. Its client can have the stripe settled.
const WAITS_MAX: Duration = Duration::from_secs(1);
/// The most reads of a disk that wait.
const READS_MAX: usize = 1024;
/// The most reads that are tried again in one step of the disk's thread.
const TRIED_MAX: usize = 64;
/// How long it tries: they read from the disk, and others wait.
const TRIED_FOR: Duration = Duration::from_millis(10);

impl Reads {
    /// A client's read.
    pub(crate) fn begin(&mut self, reading: Reading, updater: &mut Updater, hub: &Hub, now_ms: u64) {
        if self.asked.len() + self.again.len() >= READS_MAX {
            return refuse(reading, ReadRefusal::Busy, hub);
        }
        self.ask(Waiting { number: 0, reading, until: Instant::now() + WAITS_MAX }, updater, hub, now_ms);
    }

    fn ask(&mut self, mut waiting: Waiting, updater: &mut Updater, hub: &Hub, now_ms: u64) {
        let Reading { block, ref read, .. } = waiting.reading;
        if !is_open(&waiting.reading, updater) {
            return refuse(waiting.reading, ReadRefusal::Closed, hub);
        }
        let asked = Read { range: read.range, since: read.since.clone(), has_lease: !read.must_confirm };
        self.next += 1;
        waiting.number = self.next;
        self.asked.push(waiting);
        if let Err(error) = updater.read(block, self.next, asked, now_ms)
            && let Some(Waiting { reading, .. }) = self.take(self.next)
        {
            // It may have begun.
            let _closed = updater.abandon(block, self.next, now_ms);
            let why = match error.reaction {
                Reaction::InvalidInput => ReadRefusal::Invalid,
                Reaction::NotFound => ReadRefusal::Closed,
                Reaction::Retry => ReadRefusal::Busy,
                _ => ReadRefusal::Unreadable,
            };
            refuse(reading, why, hub);
        }
    }

    fn take(&mut self, number: u64) -> Option<Waiting> {
        let at = self.asked.iter().position(|waiting| waiting.number == number)?;
        Some(self.asked.swap_remove(at))
    }

    /// The updater has answered a read.
    pub(crate) fn served(&mut self, number: u64, result: Result<Served, NotServed>, updater: &Updater, hub: &Hub) {
        let Some(waiting) = self.take(number) else { return };
        let Reading { block, ref read, .. } = waiting.reading;
        match result {
            Ok(served) if served.version.term == read.term => {
                let Served { version, content } = served;
                let start = read.range.start;
                let (end, found, part) = match content {
                    Some(content) => {
                        let part = Part { stream: block.index, start, bytes: content.bytes.into() };
                        (ReadEnd::Served, Found::Served { version, crc: content.crc }, Some(part))
                    }
                    None => (ReadEnd::Unchanged, Found::Unchanged, None),
                };
                hub.meter.read(end);
                waiting.reading.answer.found(found, part);
            }
            Ok(_) => refuse(waiting.reading, ReadRefusal::Closed, hub),
            Err(NotServed::Unreadable) => refuse(waiting.reading, ReadRefusal::Unreadable, hub),
            Err(_) if !is_open(&waiting.reading, updater) => refuse(waiting.reading, ReadRefusal::Closed, hub),
            Err(_) if waiting.until <= Instant::now() => refuse(waiting.reading, ReadRefusal::Undecided, hub),
            Err(_) => self.again.push(waiting),
        }
    }

    /// Tries again what waits, those first that were not tried for longest, as far as that is quick. Returns whether anything waited.
    pub(crate) fn try_again(&mut self, updater: &mut Updater, hub: &Hub, now_ms: u64) -> bool {
        let has_any = !self.again.is_empty();
        let later = self.again.split_off(self.again.len().min(TRIED_MAX));
        let mut again = std::mem::replace(&mut self.again, later).into_iter();
        let begin = Instant::now();
        while begin.elapsed() < TRIED_FOR
            && let Some(waiting) = again.next()
        {
            self.ask(waiting, updater, hub, now_ms);
        }
        drop(self.again.splice(..0, again));
        has_any
    }

    /// From time to time: reads whose time is over, or whose client has gone, are given up.
    pub(crate) fn tidy(&mut self, updater: &mut Updater, hub: &Hub, now_ms: u64) {
        let now = Instant::now();
        let is_over = |waiting: &Waiting| waiting.until <= now || waiting.reading.answer.is_gone();
        for Waiting { number, reading, .. } in self.asked.extract_if(.., |waiting| is_over(waiting)) {
            // Of a block that is not open any more, nothing waits there.
            let _closed = updater.abandon(reading.block, number, now_ms);
            refuse(reading, ReadRefusal::Undecided, hub);
        }
        for Waiting { reading, .. } in self.again.extract_if(.., |waiting| is_over(waiting)) {
            refuse(reading, ReadRefusal::Undecided, hub);
        }
    }

    /// The block is lost, or closed.
    pub(crate) fn ended(&mut self, block: BlockId, hub: &Hub) {
        let is_its = |waiting: &Waiting| waiting.reading.block == block;
        let asked = self.asked.extract_if(.., |waiting| is_its(waiting));
        let all = asked.chain(self.again.extract_if(.., |waiting| is_its(waiting)));
        all.for_each(|waiting| refuse(waiting.reading, ReadRefusal::Closed, hub));
    }
}

/// Whether the block takes updates in the term in which it is read.
fn is_open(reading: &Reading, updater: &Updater) -> bool {
    let Reading { block, read, .. } = reading;
    let open = updater.open_block_of(*block);
    open.is_some_and(|open| open.term == read.term && open.obeyed == read.term && !open.is_settled && !open.is_fenced)
}

pub(super) fn refuse(Reading { answer, .. }: Reading, why: ReadRefusal, hub: &Hub) {
    hub.meter.read(ReadEnd::of(why));
    answer.found(Found::Refused(why), None);
}
