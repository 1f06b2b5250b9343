//! One update, from its first request until its outcome is known.

use super::{
    WriteLog, Writer,
    course::{Course, Heard, Next, Repeat},
    lease::{Failed, Home, Lease, Slot},
    patience::{sent_bytes, travel_time},
    request,
    split::parts,
    target::Target,
};
use bytes::Bytes;
use std::sync::Arc;
use tokio::time::{Instant, sleep, timeout_at};
use weft_proto::{LinkToken, updates::Part};
use weft_types::{Error, Reaction, Result, Span};
use weft_update::UpdateId;

/// Why an update did not end well.
enum Ended {
    /// The object has another version, and the update was not run.
    Moved(Error),
    Failed(Error),
}

/// An update that is under way.
struct Running<'a> {
    writer: &'a Writer,
    slot: &'a Slot,
    /// In the stripe's data.
    data: Span,
    bytes: &'a Bytes,
    until: Instant,
    course: Course,
    id: Option<UpdateId>,
    failed: Option<Failed>,
    /// For the next pause.
    attempt: u32,
}

impl Writer {
    /// Writes a range of the object, one update after the other. Returns the number of updates.
    pub(super) async fn write_span(&self, span: Span, bytes: Bytes, log: &WriteLog) -> Result<u64> {
        let (mut left, mut updates, mut moves) = (span, 0, 0);
        while !left.is_empty() {
            let target = self.target();
            let (slot, update) = target.first_update(left, self.update_bytes)?;
            let new = bytes.slice((update.start - span.start) as usize..(update.end - span.start) as usize);
            match self.update(slot, update, &new, log).await {
                Ok(()) => {
                    log.done(update);
                    (left.start, updates) = (update.end, updates + 1);
                }
                Err(Ended::Moved(error)) if self.is_append => return Err(error),
                Err(Ended::Moved(error)) => {
                    moves += 1;
                    if moves > self.shared.config.limits.attempts_max {
                        return Err(error);
                    }
                    self.find_again(&target).await?;
                    self.unless_same(&target, error)?;
                }
                Err(Ended::Failed(error)) => return Err(error),
            }
        }
        Ok(updates)
    }

    /// The error of a stripe that was not found, if the object is still the same version.
    fn unless_same(&self, before: &Target, error: Error) -> Result<()> {
        if self.target().version == before.version { Err(error) } else { Ok(()) }
    }

    /// Runs one update. The log has it as in doubt as long as it may have an effect.
    async fn update(&self, slot: &Slot, update: Span, bytes: &Bytes, log: &WriteLog) -> Result<(), Ended> {
        let offset = slot.stripe.offset;
        let data = Span::new(update.start - offset, update.end - offset);
        let travels = travel_time(sent_bytes(update.len(), slot.stripe.layout.m));
        let (until, course) = (Instant::now() + self.deadline, Course::new(update.len(), travels));
        let mut running = Running { writer: self, slot, data, bytes, until, course, id: None, failed: None, attempt: 0 };
        loop {
            let lease = match running.lease().await {
                Ok(Some(lease)) => lease,
                Ok(None) => continue,
                Err(ended) => return Err(ended),
            };
            if !running.course.is_in_doubt() {
                lease.check_len(update.len()).map_err(Ended::Failed)?;
            }
            log.begun(update);
            let next = running.request(&lease).await;
            if !running.course.is_in_doubt() && next != Next::Done {
                log.not_run(update);
            }
            match next {
                Next::Done => return Ok(()),
                Next::Fail(error) | Next::Doubt(error) => return Err(Ended::Failed(error)),
                Next::Repeat(repeat) => running.repeat(lease, repeat).await?,
            }
        }
    }
}

impl Running<'_> {
    /// A lease under which the update may be requested now; `None`: ask again.
    async fn lease(&mut self) -> Result<Option<Arc<Lease>>, Ended> {
        let session = self.id.map(|id| id.session);
        let leasing = self.slot.lease(self.writer, session, self.failed.as_ref());
        let lease = match timeout_at(self.until, leasing).await {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) if matches!(error.reaction, Reaction::Retry | Reaction::Replan) => {
                self.course.not_opened(error);
                self.pause().await?;
                return Ok(None);
            }
            Ok(Err(error)) if error.reaction == Reaction::NotFound && !self.course.is_in_doubt() => {
                return Err(Ended::Moved(error));
            }
            Ok(Err(error)) => return Err(Ended::Failed(error)),
            Err(_) => return Err(self.too_long()),
        };
        self.failed = None;
        if session.is_some_and(|session| session != lease.session) || !lease.lasts() {
            self.course.session_ends().map_err(Ended::Failed)?;
            self.id = None;
        }
        if !lease.lasts() {
            self.failed = Some((lease, 0));
            self.pause().await?;
            return Ok(None);
        }
        Ok(Some(lease))
    }

    /// Requests it once.
    async fn request(&mut self, lease: &Arc<Lease>) -> Next {
        let begun = self.until - self.writer.deadline;
        let parts = parts(&self.slot.stripe.layout, self.data, self.bytes);
        self.course.requested(lease.term, begun.elapsed());
        let heard = match lead(lease, &parts) {
            Ok((home, token)) => {
                let id = *self.id.get_or_insert_with(|| lease.new_id(home.block.index));
                let sent = sent_bytes(self.data.len(), self.slot.stripe.layout.m);
                request::request(&self.writer.shared.updates, (lease, home), token, (id, sent), parts, self.until).await
            }
            Err(not_sent) => not_sent,
        };
        self.course.heard(heard, begun.elapsed())
    }

    async fn repeat(&mut self, lease: Arc<Lease>, repeat: Repeat) -> Result<(), Ended> {
        if repeat.new_id {
            self.id = None;
        }
        self.failed = repeat.reopen.map(|term| (lease, term));
        if Instant::now() >= self.until {
            return Err(self.too_long());
        }
        if repeat.pause { self.pause().await } else { Ok(()) }
    }

    async fn pause(&mut self) -> Result<(), Ended> {
        let pause = self.writer.shared.random.pause(self.attempt);
        self.attempt += 1;
        if Instant::now() + pause >= self.until {
            return Err(self.too_long());
        }
        sleep(pause).await;
        Ok(())
    }

    fn too_long(&self) -> Ended {
        Ended::Failed(self.course.too_long(self.writer.deadline))
    }
}

/// The home of the block that leads an update of these parts, and the right to request it.
fn lead<'a>(lease: &'a Lease, parts: &[Part]) -> Result<(&'a Home, LinkToken), Heard> {
    let mut homes = Vec::new();
    for part in parts {
        homes.push(lease.home(part.stream).ok_or(Heard::Lost(part.stream))?);
    }
    let home = *homes.first().ok_or_else(|| Heard::Refused(Error::fatal("an update without bytes")))?;
    let down = || Heard::NotSent(Error::retry(format!("agent {} is not up", home.name)).block(home.block));
    Ok((home, home.token.ok_or_else(down)?))
}
