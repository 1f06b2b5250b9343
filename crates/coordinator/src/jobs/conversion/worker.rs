//! One stripe of a conversion, written by an agent: the shell around [`weft_control::conversion::stripe`], which
//! decides.

use super::{Work, lock, waits::Waits};
use crate::{delegations::Delegation, jobs::Control, members::Session, updates::settle};
use futures::{Stream, StreamExt as _};
use std::{
    sync::{Mutex, atomic::Ordering},
    time::Duration,
};
use tokio::{
    sync::SemaphorePermit,
    time::{Instant, timeout},
};
use tonic::{Status, Streaming};
use weft_control::{
    Time,
    conversion::{
        follow::Followed,
        room::{Place, Room, SPACE_LOOK, Step},
        stripe::{Action, Event, Request, StripeWrite, Tried, World},
    },
};
use weft_meta::{MetaError, ObjectRecord, UploadRecord};
use weft_proto::{
    from_status,
    rpc::{self, END_STRIPE_TIMEOUT},
    status::decode_error,
    v1::{ConvertEvent, ConvertProgress, ConvertStripeRequest, convert_event},
};
use weft_types::{Error, JobState, NodeId, Party, Result, Span, StripeLayout, StripeRecord, UploadId};

/// A stripe to write, and its sources.
struct Order<'a> {
    object: &'a ObjectRecord,
    upload: &'a UploadRecord,
    number: u64,
    /// The object's bytes.
    data: Span,
    from_stripe: u64,
    stripes: u32,
}

impl Work<'_> {
    /// Has an agent write a stripe whose turn has come; when this returns, the stripe has ended.
    pub(super) async fn written<'a>(
        &'a self,
        object: &ObjectRecord,
        upload: &UploadRecord,
        (number, data): (u64, Span),
        turn: SemaphorePermit<'a>,
    ) -> Result<()> {
        let shared = self.shared;
        let old_len = object.layout.block_len.saturating_mul(shared.code(&object.code)?.k() as u64).max(1);
        let from_stripe = data.start / old_len;
        let stripes = u32::try_from(data.end.div_ceil(old_len) - from_stripe).map_err(Error::fatal)?;
        let mut turn = Some(turn);
        let order = Order { object, upload, number, data, from_stripe, stripes };
        let mut old = self.old(&order).await?;
        let mut was_open = false;
        for stripe in &old {
            was_open |= settle::if_open(shared, stripe.id).await?;
        }
        if was_open {
            // The checksums that the new stripe is compared with.
            old = self.old(&order).await?;
        }
        let request = Request { object: object.name.clone(), number, data, old, failures_max: shared.config.resumes_max };
        let (mut write, mut event, waits) = (StripeWrite::new(request), Event::Begin, Waits::new(self.control));
        loop {
            let mut answer = None;
            for action in self.decide(&mut write, event) {
                match action {
                    Action::WaitForRoom => {
                        let room = self.until_room(upload.id, data.len(), turn.take(), &waits).await;
                        answer = Some(Event::HasRoom(room.map(|has_turn| turn = has_turn)));
                    }
                    Action::Delegate(node) => {
                        let tried = self.tried(node, &order, &waits).await;
                        answer = Some(Event::Tried(Box::new(tried)));
                    }
                    Action::Suspect(node) => shared.members.suspect(node),
                    Action::Another { node, error, is_news } => self.log_another(&order, node, &error, is_news),
                    Action::Tell(what) => waits.tell(&what),
                    Action::Wait(pause) => {
                        tokio::time::sleep(pause).await;
                        answer = Some(Event::Woken);
                    }
                    Action::End(Ok(node)) => {
                        let node = shared.members.name(node);
                        tracing::info!(job = %self.job, object = %object.name, stripe = number, %node, "converted a stripe");
                        return Ok(());
                    }
                    Action::End(Err(error)) => return Err(error),
                }
            }
            event = answer.ok_or_else(|| Error::fatal("internal error: a stripe of a conversion waits for nothing"))?;
        }
    }

    fn decide(&self, write: &mut StripeWrite, event: Event) -> Vec<Action> {
        let (view, writers) = (self.shared.members.view(), lock(&self.writers));
        write.on(event, &mut World { view: &view, writers: &writers, rng: &mut *self.shared.rng() })
    }

    fn log_another(&self, order: &Order<'_>, node: NodeId, error: &Error, is_news: bool) {
        let (job, name, stripe, node) = (self.job, &order.object.name, order.number, self.shared.members.name(node));
        if is_news {
            tracing::warn!(%job, object = %name, stripe, %node, %error, "cannot convert a stripe on this node, trying another");
        } else {
            tracing::debug!(%job, object = %name, stripe, %node, %error, "cannot convert a stripe on this node, trying another");
        }
    }

    /// Has a node write the stripe, and checks whether the stripe has ended.
    async fn tried(&self, node: NodeId, order: &Order<'_>, waits: &Waits<'_>) -> Tried {
        let moving = Moving { control: self.control, number: self.numbers.fetch_add(1, Ordering::Relaxed) };
        let told = self.delegation(node, order, &moving, waits).await;
        let has_read = moving.bytes() > 0;
        drop(moving);
        let mut ended = self.ended(order.upload.id, order.number).await;
        let mut updated = Vec::new();
        if let Ok(Some(_)) = &ended {
            match self.old(order).await {
                Ok(old) => updated = old.into_iter().map(|old| (old.id, old.seq)).collect(),
                Err(error) => ended = Err(error),
            }
        }
        Tried { told, has_read, ended, updated }
    }

    /// The stripes that contain the data now.
    async fn old(&self, order: &Order<'_>) -> Result<Vec<StripeRecord>> {
        let page = self.shared.meta.stripes(order.object.version, order.from_stripe, order.stripes).await;
        Ok(page.map_err(|error| self.shared.meta_error(error))?.items)
    }

    /// Waits until there is space for a new stripe of this size and it has its turn. A waiting stripe has not started. It yields its turn
    /// to stripes of other objects, which learn only here that an object waits.
    async fn until_room<'a>(
        &'a self,
        upload: UploadId,
        data_len: u64,
        mut turn: Option<SemaphorePermit<'a>>,
        waits: &Waits<'_>,
    ) -> Result<Option<SemaphorePermit<'a>>> {
        let (target, mut state) = (self.target, self.state.clone());
        let (k, m) = (target.code.k() as u32, target.code.m() as u32);
        let stripe = StripeLayout { layout: target.layout, k, m, data_len };
        let mut place = InRoom { room: &self.room, place: Place::with_turn(upload) };
        loop {
            match place.looked(self.shared.without_capacity(&target.wanted(&stripe)).map(drop)) {
                Step::Wait { lacking, is_first } => {
                    if is_first {
                        tracing::warn!(job = %self.job, error = %lacking, "a stripe waits for space");
                    }
                    waits.tell(&lacking.message);
                    drop(turn.take());
                }
                Step::TakeTurn => {
                    waits.over();
                    turn = Some(self.turn().await?);
                    continue;
                }
                Step::Begin { waited } => {
                    if waited {
                        waits.over();
                    }
                    return Ok(turn);
                }
                Step::GiveUp(error) => return Err(error),
            }
            tokio::time::sleep(SPACE_LOOK).await;
            // An error means that the sender is gone, and with it the job.
            let _nobody = state.wait_for(|state| *state != JobState::Paused).await;
        }
    }

    /// The stripe, if it has ended.
    async fn ended(&self, upload: UploadId, number: u64) -> Result<Option<StripeRecord>> {
        match self.shared.meta.upload_stripe(upload, number).await {
            Ok(stripe) => Ok(Some(stripe).filter(|stripe| stripe.ended)),
            Err(MetaError::NotFound(_)) => Ok(None),
            Err(error) => Err(self.shared.meta_error(error)),
        }
    }

    /// Delegates the stripe to a node, and follows its progress. Gives up after a stall without a report.
    async fn delegation(&self, node: NodeId, order: &Order<'_>, moving: &Moving<'_>, waits: &Waits<'_>) -> Result<()> {
        let shared = self.shared;
        let gone = || Error::retry(format!("{} went down", shared.members.name(node))).party(Party::Node(node));
        let session = shared.members.session(node).ok_or_else(gone)?;
        let _busy = Busy::new(self, node);
        moving.set(0);
        let number = shared.draw_seed();
        let delegation = Delegation {
            node,
            agent: session.record.name.to_string(),
            object: order.object.name.clone(),
            version: order.object.version,
            upload: order.upload.id,
            number: order.number,
        };
        let _under_way = shared.delegations.begin(number, delegation);
        let broken = |error: Error| {
            shared.members.suspect_because(node, &error.message);
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
            put_key: order.upload.new.key.to_bytes(),
        };
        let mut agent = rpc::agent_client(session.channel);
        // Only the start of the stream has a deadline, because a conversion can take any time.
        shared.answer(agent.convert_stripe(tonic::Request::new(request))).await
    }
}

/// Why a stripe was not written.
#[derive(Debug)]
enum Unfinished {
    /// According to the node.
    Failed(Error),
    /// The node does not respond as it should.
    Broken(String),
}

/// Follows the events until the stripe is written. Gives up after a stall without a report, or after a long time without progress. `len` is
/// the progress when everything was sent.
async fn followed(
    mut events: impl Stream<Item = Result<ConvertEvent, Status>> + Unpin,
    len: u64,
    silence: Duration,
    told: impl Fn(u64),
) -> Result<(), Unfinished> {
    let begin = Instant::now();
    let now = || Time::after(begin.elapsed());
    let mut followed = Followed::new(len, silence, END_STRIPE_TIMEOUT, now());
    loop {
        let event = timeout(silence, events.next()).await;
        let event = event.map_err(|_| Unfinished::Broken(format!("it sent no report for {silence:?}")))?;
        let event = event.transpose().map_err(|status| match decode_error(status.details()) {
            Some(error) => Unfinished::Failed(error),
            // The node did not send this status: the connection broke.
            None => Unfinished::Broken(from_status(&status).message),
        })?;
        match event.and_then(|event| event.event) {
            Some(convert_event::Event::Progress(ConvertProgress { bytes })) => {
                if followed.told(bytes, now()).map_err(Unfinished::Broken)? {
                    told(bytes);
                }
            }
            Some(convert_event::Event::Done(_)) => return Ok(()),
            None => return Err(Unfinished::Broken("it disconnected".to_owned())),
        }
    }
}

/// A stripe that may wait for space. Dropping it ends its wait.
struct InRoom<'a> {
    room: &'a Mutex<Room>,
    place: Place,
}

impl InRoom<'_> {
    fn looked(&mut self, space: Result<()>) -> Step {
        self.place.looked(&mut lock(self.room), space)
    }
}

impl Drop for InRoom<'_> {
    fn drop(&mut self) {
        self.place.leave(&mut lock(self.room));
    }
}

/// A node that is writing a stripe.
struct Busy<'a> {
    work: &'a Work<'a>,
    node: NodeId,
}

impl<'a> Busy<'a> {
    fn new(work: &'a Work<'a>, node: NodeId) -> Self {
        lock(&work.writers).begins(node);
        Self { work, node }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        lock(&self.work.writers).ends(self.node);
    }
}

/// A stripe in progress.
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
