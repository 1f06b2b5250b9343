//! One stripe of a conversion is written by an agent: the one that has the most of its bytes itself, and if that fails, another one.

use super::{Work, object::may_help, same, waits::Waits};
use crate::{delegations::Delegation, jobs::Control, members::Session};
use futures::{Stream, StreamExt as _};
use rand::Rng;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};
use tokio::{
    sync::SemaphorePermit,
    time::{Instant, timeout},
};
use tonic::{Request, Status, Streaming};
use weft_control::view::{Standing, View};
use weft_meta::{MetaError, ObjectRecord, UploadRecord};
use weft_proto::{
    from_status,
    rpc::{self, CONVERSIONS_PER_AGENT_MAX, END_STRIPE_TIMEOUT},
    status::decode_error,
    v1::{ConvertEvent, ConvertProgress, ConvertStripeRequest, convert_event::Event},
};
use weft_types::{Error, JobState, NodeId, Party, Reaction, Result, Span, StripeLayout, StripeRecord, UploadId};

/// The pause before those are asked again that could not do it; each next one is twice as long, up to the last.
pub(super) const PAUSE_FIRST: Duration = Duration::from_millis(250);
const PAUSE_LAST: Duration = Duration::from_secs(8);
/// How often it is looked whether there is space.
const SPACE_LOOK: Duration = Duration::from_secs(1);
/// Who is no farther after this time is not waited for, and not before so many stalls could have been found and mended. Who has sent all is
/// waited for as long as any writer waits for the end of its stripe.
const STILL_MIN: Duration = Duration::from_secs(60);
const STILL_STALLS: u32 = 6;

/// A stripe that is to be written, and what it is made of.
struct Order<'a> {
    object: &'a ObjectRecord,
    upload: &'a UploadRecord,
    number: u64,
    /// Bytes of the object.
    data: Span,
    from_stripe: u64,
    stripes: u32,
}

impl Work<'_> {
    /// Has a stripe written, whose turn it is: when this returns, it has ended.
    pub(super) async fn written<'a>(
        &'a self,
        object: &ObjectRecord,
        upload: &UploadRecord,
        (number, data): (u64, Span),
        mut turn: SemaphorePermit<'a>,
    ) -> Result<()> {
        let shared = self.shared;
        let old_len = object.layout.block_len.saturating_mul(shared.code(&object.code)?.k() as u64).max(1);
        let from_stripe = data.start / old_len;
        let stripes = u32::try_from(data.end.div_ceil(old_len) - from_stripe).map_err(Error::fatal)?;
        let order = Order { object, upload, number, data, from_stripe, stripes };
        let old = shared.meta.stripes(object.version, from_stripe, stripes).await;
        let old = old.map_err(|error| shared.meta_error(error))?.items;
        let (mut tried, mut is_first_round, mut attempts, mut pause) = (BTreeSet::new(), true, 0, PAUSE_FIRST);
        let mut waits = Waits::new(self.control);
        loop {
            turn = self.until_room(upload.id, data.len(), turn, &mut waits).await?;
            let view = shared.members.view();
            if view.up_count() == 0 {
                return Err(Error::retry("no node is up that could write the stripe"));
            }
            let Some(worker) = self.choose(&near(&old, data, &view), &tried) else {
                // All the others were tried, or do as much as they take.
                (tried, is_first_round) = (BTreeSet::new(), false);
                wait(&mut pause).await;
                continue;
            };
            let moving = Moving { control: self.control, number: self.numbers.fetch_add(1, Ordering::Relaxed) };
            let sent = self.delegation(worker, &order, &moving, &waits).await;
            let has_read = moving.bytes() > 0;
            drop(moving);
            // Of who failed only the answer may have been lost; and nobody is believed without a look.
            if let Some(new) = self.ended(upload.id, number).await? {
                return match same::differing(&old, &new) {
                    None => {
                        let node = shared.members.name(worker);
                        tracing::info!(job = %self.job, object = %object.name, stripe = number, %node, "a stripe was converted");
                        Ok(())
                    }
                    Some(Span { start, end }) => {
                        shared.members.suspect(worker);
                        Err(Error::corrupt(format!("bytes {start} to {end} were written with another checksum than they had"))
                            .party(Party::Node(worker)))
                    }
                };
            }
            let error = sent.err().unwrap_or_else(|| Error::replan("it said that the stripe has ended, and it has not"));
            // Who is busy or was not there has not failed: however long that takes, the job says so and goes on.
            let has_failed = error.reaction != Reaction::Retry;
            attempts += u32::from(has_failed);
            if !may_help(&error) || attempts > shared.config.resumes_max {
                return Err(error);
            }
            let (job, name) = (self.job, &object.name);
            let node = shared.members.name(worker);
            // Who waits for days does not say so again and again.
            if has_failed || is_first_round {
                tracing::warn!(%job, object = %name, stripe = number, %node, %error, "another node is asked");
            } else {
                tracing::debug!(%job, object = %name, stripe = number, %node, %error, "another node is asked");
            }
            tried.insert(worker);
            if !has_failed {
                let why = Error { object: None, ..error };
                waits.tell(&format!("{node}, to write stripe {number} of {name}: {why}"));
                // Who was busy at once has cost nothing; the next one would read all of it again.
                if has_read {
                    wait(&mut pause).await;
                }
            }
        }
    }

    /// Waits until there is space for a new stripe of so many bytes, and it is its turn. What waits has not begun: not while the job is
    /// paused, either. Only one object waits: what has been written of others is given up, for it may be just their space that is lacking.
    /// Who waits leaves its turn to them: they come to know of it only here.
    async fn until_room<'a>(
        &'a self,
        upload: UploadId,
        data_len: u64,
        turn: SemaphorePermit<'a>,
        waits: &mut Waits<'_>,
    ) -> Result<SemaphorePermit<'a>> {
        let (target, mut state) = (self.target, self.state.clone());
        let (k, m) = (target.code.k() as u32, target.code.m() as u32);
        let stripe = StripeLayout { layout: target.layout, k, m, data_len };
        let has_room = || self.shared.without_capacity(&target.wanted(&stripe)).map(drop);
        let (mut queue, mut turn) = (None, Some(turn));
        loop {
            match has_room() {
                Err(lacking) if lacking.reaction == Reaction::Retry => {
                    if queue.is_none() {
                        queue = Some(self.room.wait(upload).ok_or_else(|| lacking.clone())?);
                        tracing::warn!(job = %self.job, error = %lacking, "a stripe waits");
                    }
                    waits.tell(&lacking.message);
                    drop(turn.take());
                }
                Err(error) => return Err(error),
                Ok(()) => match turn.take() {
                    Some(turn) => {
                        // What else the stripe waits for, it waits for still.
                        if queue.is_some() {
                            waits.over();
                        }
                        return Ok(turn);
                    }
                    None => {
                        waits.over();
                        turn = Some(self.turn().await?);
                        continue;
                    }
                },
            }
            tokio::time::sleep(SPACE_LOOK).await;
            // An error means that nobody is left who could say anything: it ends with them.
            let _nobody = state.wait_for(|state| *state != JobState::Paused).await;
        }
    }

    /// Who has the most of it, and of those who have as much the one that does the least; nobody who does all that it takes.
    fn choose(&self, near: &BTreeMap<NodeId, u64>, tried: &BTreeSet<NodeId>) -> Option<NodeId> {
        let view = self.shared.members.view();
        let load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rng = self.shared.rng();
        let candidates = view.nodes.values().filter(|node| node.up && !tried.contains(&node.id));
        let loaded = candidates.map(|node| (node, load.get(&node.id).copied().unwrap_or(0)));
        let ranked = loaded.filter(|(_, load)| *load < CONVERSIONS_PER_AGENT_MAX).map(|(node, load)| {
            let bytes = near.get(&node.id).copied().unwrap_or(0);
            ((node.is_suspect(), Reverse(bytes), load, rng.random::<u32>()), node.id)
        });
        ranked.min().map(|(_, node)| node)
    }

    /// The stripe, if it has ended.
    async fn ended(&self, upload: UploadId, number: u64) -> Result<Option<StripeRecord>> {
        match self.shared.meta.upload_stripe(upload, number).await {
            Ok(stripe) => Ok(Some(stripe).filter(|stripe| stripe.ended)),
            Err(MetaError::NotFound(_)) => Ok(None),
            Err(error) => Err(self.shared.meta_error(error)),
        }
    }

    /// Sends a node to write the stripe, and looks on. Who says nothing for as long as a stall takes is not waited for.
    async fn delegation(&self, node: NodeId, order: &Order<'_>, moving: &Moving<'_>, waits: &Waits<'_>) -> Result<()> {
        let shared = self.shared;
        let gone = || Error::retry(format!("{} went down", shared.members.name(node))).party(Party::Node(node));
        let session = shared.members.session(node).ok_or_else(gone)?;
        let _busy = Busy::new(self, node);
        moving.set(0);
        let number = shared.draw_seed();
        let delegation = Delegation {
            node,
            agent: session.record.name.clone(),
            object: order.object.name.clone(),
            version: order.object.version,
            upload: order.upload.id,
            number: order.number,
        };
        let _under_way = shared.delegations.begin(number, delegation);
        let broken = |error: Error| {
            shared.members.suspect(node);
            error.party(Party::Node(node))
        };
        let events = self.send(session, number, order).await?;
        let silence = Duration::from_millis(shared.config.stall_ms.into());
        let len = order.data.len();
        let told = |bytes: u64| {
            if bytes > 0 {
                waits.over();
            }
            moving.set(bytes.min(len));
        };
        match followed(events, len, silence, told).await {
            Ok(()) => Ok(()),
            Err(Unfinished::Failed(error)) => Err(error),
            Err(Unfinished::Broken(why)) => Err(broken(Error::replan(why))),
        }
    }

    async fn send(&self, session: Session, delegation: u64, order: &Order<'_>) -> Result<Streaming<ConvertEvent>> {
        let shared = self.shared;
        let request = ConvertStripeRequest {
            epoch: shared.epoch.0,
            delegation,
            bucket: order.object.name.bucket.clone(),
            key: order.object.name.key.clone(),
            version: order.object.version.0,
            from_stripe: order.from_stripe,
            stripes: order.stripes,
            start: order.data.start,
            end: order.data.end,
            upload: order.upload.id.0,
            number: order.number,
            reserve_bytes: shared.config.disk_reserve.0,
            free_percent: shared.config.conversion_free_percent,
            put_key: order.upload.new.key.0,
        };
        let mut agent = rpc::agent_client(session.channel);
        // It takes as long as it takes: no deadline.
        match timeout(shared.call_timeout(), agent.convert_stripe(Request::new(request))).await {
            Ok(answer) => answer.map(|answer| answer.into_inner()).map_err(|status| from_status(&status)),
            Err(_) => Err(Error::retry("no answer in time")),
        }
    }
}

/// Why a stripe was not written.
#[derive(Debug)]
enum Unfinished {
    /// The node says so.
    Failed(Error),
    /// The node does not do what it should.
    Broken(String),
}

/// Listens until the stripe is written: not to who says nothing for as long as a stall takes, nor to who says again and again that
/// it is no farther. `len`: how far it is when all was sent.
async fn followed(
    mut events: impl Stream<Item = Result<ConvertEvent, Status>> + Unpin,
    len: u64,
    silence: Duration,
    told: impl Fn(u64),
) -> Result<(), Unfinished> {
    let still = STILL_MIN.max(silence * STILL_STALLS);
    let (mut far, mut since) = (0, Instant::now());
    loop {
        let event = timeout(silence, events.next()).await;
        let event = event.map_err(|_| Unfinished::Broken(format!("it said nothing for {silence:?}")))?;
        let event = event.transpose().map_err(|status| match decode_error(status.details()) {
            Some(error) => Unfinished::Failed(error),
            // The node did not say this: the connection broke.
            None => Unfinished::Broken(from_status(&status).message),
        })?;
        match event.and_then(|event| event.event) {
            Some(Event::Progress(ConvertProgress { bytes })) if bytes == far => {
                let still = if far < len { still } else { still.max(END_STRIPE_TIMEOUT) };
                if since.elapsed() >= still {
                    return Err(Unfinished::Broken(format!("it stood still for {still:?}")));
                }
            }
            Some(Event::Progress(ConvertProgress { bytes })) => {
                (far, since) = (bytes, Instant::now());
                told(bytes);
            }
            Some(Event::Done(_)) => return Ok(()),
            None => return Err(Unfinished::Broken("it went away".to_owned())),
        }
    }
}

/// Who waits for space.
#[derive(Debug, Default)]
pub(super) struct Room(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    /// The object that waits, if one does, and how many of its stripes.
    waits: Option<(UploadId, usize)>,
    /// Those that were not to wait beside another one.
    made_way: BTreeSet<UploadId>,
}

/// A stripe waits for space until this is dropped.
pub(super) struct WaitsForRoom<'a>(&'a Room);

impl Room {
    /// Whether an object waits.
    pub(super) fn is_awaited(&self) -> bool {
        self.lock().waits.is_some()
    }

    /// Whether an object lacked space while another one waited.
    pub(super) fn has_made_way(&self, object: UploadId) -> bool {
        self.lock().made_way.contains(&object)
    }

    /// A stripe of an object waits, unless one of another object does.
    fn wait(&self, of: UploadId) -> Option<WaitsForRoom<'_>> {
        let mut queue = self.lock();
        let (object, stripes) = queue.waits.get_or_insert((of, 0));
        if *object != of {
            queue.made_way.insert(of);
            return None;
        }
        *stripes += 1;
        Some(WaitsForRoom(self))
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WaitsForRoom<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.waits = queue.waits.filter(|(_, stripes)| *stripes > 1).map(|(object, stripes)| (object, stripes - 1));
    }
}

/// Pauses, the longer the more often it did.
pub(super) async fn wait(pause: &mut Duration) {
    tokio::time::sleep(*pause).await;
    *pause = (*pause * 2).min(PAUSE_LAST);
}

/// How many of these bytes of an object each node can read itself.
fn near(old: &[StripeRecord], data: Span, view: &View) -> BTreeMap<NodeId, u64> {
    let mut near = BTreeMap::new();
    for stripe in old {
        let first = stripe.object_offset();
        let part = data.intersect(Span::new(first, first + stripe.layout.data_len));
        if part.is_empty() {
            continue;
        }
        let within = Span::new(part.start - first, part.end - first);
        for (index, placed) in stripe.all() {
            // Of one data block every block is a copy.
            let bytes = match (stripe.layout.k, u32::from(index)) {
                (1, _) => part.len(),
                (k, index) if index < k => stripe.layout.block_range(index, within).len(),
                _ => 0,
            };
            if bytes > 0 && view.standing_of(stripe, index, placed) == Standing::Good {
                *near.entry(placed.home.node).or_default() += bytes;
            }
        }
    }
    near
}

/// A node that is writing a stripe.
struct Busy<'a> {
    work: &'a Work<'a>,
    node: NodeId,
}

impl<'a> Busy<'a> {
    fn new(work: &'a Work<'a>, node: NodeId) -> Self {
        *work.load.lock().unwrap_or_else(PoisonError::into_inner).entry(node).or_default() += 1;
        Self { work, node }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut load = self.work.load.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = load.get_mut(&self.node) {
            *count -= 1;
        }
    }
}

/// A stripe that is under way.
struct Moving<'a> {
    control: &'a Control,
    number: u64,
}

impl Moving<'_> {
    fn set(&self, bytes: u64) {
        self.control.live().moving.insert(self.number, bytes);
    }

    fn bytes(&self) -> u64 {
        self.control.live().moving.get(&self.number).copied().unwrap_or(0)
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.control.live().moving.remove(&self.number);
    }
}

#[cfg(test)]
mod tests;
