//! The state of a put between its writer's calls: what it has learnt, what is allocated ahead, and which stripes are
//! being sent or ended. Calls may be repeated or late, because answers may be lost.

use super::Ahead;
use std::{collections::BTreeMap, mem, time::Duration};
use weft_types::{Epoch, Error, ObjectName, PlanId, Reaction, Result, StripeId, StripeLayout, StripeRecord, UploadId};

/// A first stripe of up to this many bytes is started with its put, if the writer requests it, because a round trip takes much of its time.
/// A larger one is planned a moment later, when concurrent puts are known.
const START_BYTES_MAX: u64 = 1 << 20;

/// How often within a lease a writer that keeps a put renews it.
const KEPT_PER_LEASE: u64 = 3;

/// The delays of a put that count: each of them doubles the time for which a node may delay it.
const HELD_UP_MAX: u32 = 3;

/// A put. `S`: the state of a stripe that is being sent; `A`: the answer to a call that ended a plan.
#[derive(Debug)]
pub struct Upload<S, A> {
    learnt: Learnt,
    ahead: Ahead,
    stripes: BTreeMap<u64, Stripe<S, A>>,
}

#[derive(Debug)]
enum Stripe<S, A> {
    Sending {
        plan: PlanId,
        sending: S,
        /// The plan whose end was answered with this one, and that answer.
        answer: Option<(PlanId, A)>,
    },
    /// Its blocks are being checked.
    Ending,
}

/// What earlier stripes of a put have shown, for the next ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Learnt {
    held_up: u32,
    simplest: bool,
    is_warned: bool,
}

/// Something that a put must take into account from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lesson {
    /// One of its plans was ended because a node delayed it.
    HeldUp,
    /// Some node has too little memory for any scheme but the simplest.
    Simplest,
    /// The warnings about its placement were reported.
    Warned,
}

/// The state of a plan that is to be ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Known<S, A> {
    /// It is running: end it.
    Now(S),
    /// It has ended with this answer.
    Again(A),
    /// Unknown here: the metadata may know more.
    Nothing,
}

/// The answer to the end of a stripe that is not being sent.
#[derive(Debug, PartialEq, Eq)]
pub enum EndedAlready {
    /// It has ended: a repetition after a lost answer is no error.
    Ended,
    /// The put may have been committed with it, as an object of this size: ask for the commit alone.
    Commit(u64),
    /// It was started under an earlier coordinator: it must be sent again.
    SendAgain(Error),
    /// The put does not exist.
    Gone,
}

impl Learnt {
    /// The number of delays that counts.
    pub fn held_up(self) -> u32 {
        self.held_up.min(HELD_UP_MAX)
    }

    /// Whether the writer sends every block itself.
    pub fn is_simplest(self) -> bool {
        self.simplest
    }

    /// Whether warnings about a conversion's placement exist that were not reported yet.
    pub fn warns(self, is_conversion: bool, warnings: &[String]) -> bool {
        is_conversion && !warnings.is_empty() && !self.is_warned
    }
}

impl<S, A: Clone> Upload<S, A> {
    /// A put of this size, if known: that of a put that began under an earlier coordinator is not.
    pub fn new(size: Option<u64>) -> Self {
        Self { learnt: Learnt::default(), ahead: Ahead::new(size), stripes: BTreeMap::new() }
    }

    /// What the put has learnt.
    pub fn learnt(&self) -> Learnt {
        self.learnt
    }

    /// Records a lesson.
    pub fn learn(&mut self, lesson: Lesson) {
        match lesson {
            Lesson::HeldUp => self.learnt.held_up = self.learnt.held_up.saturating_add(1),
            Lesson::Simplest => self.learnt.simplest = true,
            Lesson::Warned => self.learnt.is_warned = true,
        }
    }

    /// Its stripes that are allocated and not opened.
    pub fn ahead(&mut self) -> &mut Ahead {
        &mut self.ahead
    }

    /// Removes and returns the stripes that were never opened, so that the caller can release them.
    pub fn take_unopened(&mut self) -> Vec<StripeId> {
        mem::replace(&mut self.ahead, Ahead::new(None)).take_all()
    }

    /// Records the plan that sends a stripe. `answer`: the plan whose end was answered with it, and the answer. Returns
    /// the previous state, which must stop.
    pub fn sends(&mut self, number: u64, plan: PlanId, sending: S, answer: Option<(PlanId, A)>) -> Option<S> {
        stopped(self.stripes.insert(number, Stripe::Sending { plan, sending, answer }))
    }

    /// Removes a stripe that has ended or starts again. Returns its state, which must stop.
    pub fn leave(&mut self, number: u64) -> Option<S> {
        stopped(self.stripes.remove(&number))
    }

    /// Removes all stripes. Returns their states, which must stop.
    pub fn leave_all(&mut self) -> Vec<S> {
        mem::take(&mut self.stripes).into_values().filter_map(|stripe| stopped(Some(stripe))).collect()
    }

    /// Takes the stripe that `plan` sent, to end it.
    pub fn begin_end(&mut self, number: u64, plan: PlanId) -> Result<Known<S, A>> {
        let other = || Error::replan(format!("stripe {number} is now sent by another plan than {plan}"));
        let Some(stripe) = self.stripes.get_mut(&number) else { return Ok(Known::Nothing) };
        match stripe {
            Stripe::Sending { plan: now, .. } if *now == plan => {
                let sending = stopped(Some(mem::replace(stripe, Stripe::Ending)));
                sending.map(Known::Now).ok_or_else(other)
            }
            Stripe::Sending { answer: Some((ended, answer)), .. } if *ended == plan => Ok(Known::Again(answer.clone())),
            Stripe::Sending { .. } | Stripe::Ending => Err(other()),
        }
    }

    /// Whether a plan is over, because its stripe has ended or started under an earlier coordinator; and the state, if
    /// it is this plan's.
    pub fn is_over(&self, number: u64, plan: PlanId, is_finished: impl Fn(&S) -> bool) -> (bool, Option<&S>) {
        match self.stripes.get(&number) {
            Some(Stripe::Sending { plan: now, sending, .. }) if *now == plan => (is_finished(sending), Some(sending)),
            Some(Stripe::Sending { .. } | Stripe::Ending) => (false, None),
            None => (true, None),
        }
    }

    /// Whether a stripe of it is being sent or ended.
    pub fn is_active(&self, is_finished: impl Fn(&S) -> bool) -> bool {
        self.stripes.values().any(|stripe| match stripe {
            Stripe::Sending { sending, .. } => !is_finished(sending),
            Stripe::Ending => true,
        })
    }
}

fn stopped<S, A>(stripe: Option<Stripe<S, A>>) -> Option<S> {
    match stripe {
        Some(Stripe::Sending { sending, .. }) => Some(sending),
        Some(Stripe::Ending) | None => None,
    }
}

/// Whether a call renews a put's lease, milliseconds: after a quarter of it. Writers that keep a put call three times
/// within it, and a short put needs no renewal.
pub fn is_lease_due(expires_ms: u64, now_ms: u64, lease_ms: u64) -> bool {
    expires_ms.saturating_sub(now_ms) < lease_ms / 4 * 3
}

/// The interval at which the coordinator itself renews the lease of a conversion's put.
pub fn kept_after(lease_ms: u64) -> Duration {
    Duration::from_millis(lease_ms / KEPT_PER_LEASE)
}

/// Whether this error of a lease's renewal means that the put is gone. After any other error the next renewal may
/// succeed.
pub fn is_gone(error: &Error) -> bool {
    error.reaction == Reaction::NotFound
}

/// Whether a coordinator that has led for this long aborts puts with expired leases. No lease can be renewed while
/// there is no coordinator; before the first coordinator there are no puts.
pub fn leases_end(led_for: Duration, lease_ms: u64, epoch: Epoch) -> bool {
    led_for >= Duration::from_millis(lease_ms) || epoch.0 <= 1
}

/// The layout of a put's first stripe, as far as its size is known; 0 means unknown.
pub fn first_stripe(full: StripeLayout, size_hint: u64) -> StripeLayout {
    match size_hint {
        0 => full,
        size => StripeLayout { data_len: size.min(full.data_len), ..full },
    }
}

/// Whether a first stripe is started with its put.
pub fn starts_at_once(is_asked: bool, size_hint: u64, first: &StripeLayout) -> bool {
    is_asked && size_hint > 0 && first.data_len <= START_BYTES_MAX
}

/// The size of the object, if the put is committed with a stripe. A put that may end early is committed by a separate
/// call, which first checks that missing blocks can be rebuilt.
pub(super) fn commits_with(asked: Option<u64>, missing_max: u32) -> Option<u64> {
    asked.filter(|_| missing_max == 0)
}

/// The answer to the end of a stripe that is not being sent, from the metadata. `commit_size`: the put was to be
/// committed with it.
pub fn ended_already(upload: UploadId, number: u64, found: Option<&StripeRecord>, commit_size: Option<u64>) -> EndedAlready {
    match (found, commit_size) {
        (Some(stripe), _) if stripe.ended => EndedAlready::Ended,
        (Some(_), _) => {
            let message = format!("stripe {number} of put {upload} is no longer being sent: send it again");
            EndedAlready::SendAgain(Error::replan(message))
        }
        (None, Some(size)) => EndedAlready::Commit(size),
        (None, None) => EndedAlready::Gone,
    }
}

/// The error for a put that was committed, but whose blocks still on their way are unknown. The object is stored despite the error, so the
/// writer must not abort the put.
pub fn stored_all_the_same(object: &ObjectName, error: &Error) -> Error {
    let message = format!("the object is stored, but which of its blocks are still on their way is unknown: {}", error.message);
    Error::retry(message).object(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::stripe;
    use proptest::prelude::*;

    type Put = Upload<u32, &'static str>;

    fn begin_end(put: &mut Put, plan: u64) -> Result<Known<u32, &'static str>, Reaction> {
        put.begin_end(0, PlanId(plan)).map_err(|error| error.reaction)
    }

    #[test]
    fn an_end_whose_answer_was_lost_is_answered_again_until_the_next_plan_ends() {
        let mut put = Put::new(None);
        assert_eq!(begin_end(&mut put, 1), Ok(Known::Nothing));
        assert_eq!(put.sends(0, PlanId(1), 10, None), None);
        assert_eq!(begin_end(&mut put, 2), Err(Reaction::Replan), "the stripe has another plan");
        assert_eq!(begin_end(&mut put, 1), Ok(Known::Now(10)));
        assert_eq!(begin_end(&mut put, 1), Err(Reaction::Replan), "the stripe is being ended");
        assert_eq!(put.sends(0, PlanId(2), 20, Some((PlanId(1), "send again"))), None);
        assert_eq!(
            [begin_end(&mut put, 1), begin_end(&mut put, 1)],
            [Ok(Known::Again("send again")), Ok(Known::Again("send again"))]
        );
        assert_eq!(begin_end(&mut put, 2), Ok(Known::Now(20)));
        assert_eq!(begin_end(&mut put, 1), Err(Reaction::Replan));
        assert_eq!(put.leave(0), None);
        assert_eq!(begin_end(&mut put, 2), Ok(Known::Nothing), "the metadata knows it");
    }

    #[test]
    fn a_restarted_stripe_stops_its_earlier_plan() {
        let mut put = Put::new(None);
        put.sends(0, PlanId(1), 10, None);
        put.sends(3, PlanId(2), 20, None);
        assert_eq!([put.leave(0), put.leave(0)], [Some(10), None]);
        assert_eq!(put.sends(3, PlanId(3), 30, None), Some(20));
        begin_end(&mut put, 1).unwrap();
        assert_eq!((put.leave_all(), put.leave_all()), (vec![30], vec![]));
    }

    #[test]
    fn a_plan_is_over_if_its_agents_say_so_or_its_stripe_is_unknown() {
        let mut put = Put::new(None);
        put.sends(0, PlanId(1), 10, None);
        let is_finished = |sending: &u32| *sending == 20;
        assert_eq!(put.is_over(0, PlanId(1), is_finished), (false, Some(&10)));
        assert_eq!(put.is_over(0, PlanId(9), is_finished), (false, None), "another plan sends the stripe");
        assert_eq!(put.is_over(1, PlanId(1), is_finished), (true, None));
        assert!(put.is_active(is_finished));
        put.sends(0, PlanId(2), 20, None);
        assert_eq!(put.is_over(0, PlanId(2), is_finished), (true, Some(&20)));
        assert!(!put.is_active(is_finished));
        begin_end(&mut put, 2).unwrap();
        assert!(put.is_active(is_finished), "its blocks are being checked");
    }

    #[test]
    fn a_put_remembers_for_its_next_stripes() {
        let mut put = Put::new(None);
        let crowded = ["a rack has too many".to_owned()];
        let warns =
            |put: &Put| [(true, &crowded[..]), (true, &[]), (false, &crowded)].map(|(is, said)| put.learnt().warns(is, said));
        assert_eq!((put.learnt(), warns(&put)), (Learnt::default(), [true, false, false]));
        for times in 1..=5 {
            put.learn(Lesson::HeldUp);
            assert_eq!(put.learnt().held_up(), times.min(HELD_UP_MAX));
        }
        put.learn(Lesson::Warned);
        assert_eq!((warns(&put), put.learnt().is_simplest()), ([false; 3], false));
        put.learn(Lesson::Simplest);
        assert!(put.learnt().is_simplest());
    }

    #[test]
    fn stripes_that_were_not_opened_are_given_up_once() {
        let mut put = Put::new(Some(300));
        put.ahead().allocated((0..3).map(|number| StripeRecord { id: StripeId(number + 1), number, ..stripe() }).collect());
        assert!(put.ahead().take(0).is_some());
        assert_eq!((put.take_unopened(), put.take_unopened()), (vec![StripeId(2), StripeId(3)], vec![]));
        assert_eq!(put.ahead().take(1), None, "it must not be opened any more");
    }

    #[test]
    fn a_lease_is_renewed_once_a_quarter_of_it_is_over() {
        let due = |now| is_lease_due(1_000, now, 400);
        assert_eq!([600, 700, 701, 1_000, 9_999].map(due), [false, false, true, true, true]);
    }

    #[test]
    fn leases_end_only_after_a_coordinator_has_led_for_a_whole_lease() {
        let ends = |led_ms, epoch| leases_end(Duration::from_millis(led_ms), 600, Epoch(epoch));
        assert_eq!([ends(0, 1), ends(0, 2), ends(599, 2), ends(600, 2)], [true, false, false, true]);
    }

    #[test]
    fn a_put_that_is_kept_is_renewed_three_times_in_its_lease_until_it_is_gone() {
        for lease_ms in [12, 1_000, 600_000] {
            let after_ms = kept_after(lease_ms).as_millis() as u64;
            assert!(after_ms > 0 && 3 * after_ms <= lease_ms && is_lease_due(lease_ms, after_ms, lease_ms), "{lease_ms}");
        }
        let errors = [Error::not_found("no such put"), Error::retry("the metadata is unavailable"), Error::fatal("a disk")];
        assert_eq!(errors.each_ref().map(is_gone), [true, false, false]);
    }

    #[test]
    fn a_small_first_stripe_of_known_size_is_started_with_its_put() {
        let full = StripeLayout { data_len: 4 << 20, ..stripe().layout };
        let starts = |asked, size| starts_at_once(asked, size, &first_stripe(full, size));
        assert_eq!([starts(true, 0), starts(true, 1), starts(false, 1)], [false, true, false]);
        assert_eq!([starts(true, 1 << 20), starts(true, (1 << 20) + 1), starts(true, 9 << 20)], [true, false, false]);
        assert_eq!([0, 7, 9 << 20].map(|size| first_stripe(full, size).data_len), [4 << 20, 7, 4 << 20]);
    }

    #[test]
    fn a_put_is_committed_with_its_last_stripe_unless_it_may_end_early() {
        assert_eq!([commits_with(Some(9), 0), commits_with(Some(9), 1), commits_with(None, 0)], [Some(9), None, None]);
        let ended = |found: Option<bool>, size| {
            let found = found.map(|ended| StripeRecord { ended, ..stripe() });
            ended_already(UploadId(5), 3, found.as_ref(), size)
        };
        assert_eq!([ended(Some(true), None), ended(Some(true), Some(9))], [EndedAlready::Ended, EndedAlready::Ended]);
        assert_eq!([ended(None, Some(9)), ended(None, None)], [EndedAlready::Commit(9), EndedAlready::Gone]);
        let again = "stripe 3 of put 5 is no longer being sent: send it again";
        assert_eq!(ended(Some(false), Some(9)), EndedAlready::SendAgain(Error::replan(again)));
        let name = ObjectName { bucket: "b".into(), key: "k".into() };
        assert_eq!(stored_all_the_same(&name, &Error::fatal("x")).reaction, Reaction::Retry);
    }

    proptest! {
        #[test]
        fn in_any_order_each_sending_is_returned_once_and_one_end_runs_at_a_time(
            calls in proptest::collection::vec((0..4u8, 0..3u64, 0..8u64), 0..80),
        ) {
            let (mut put, mut next, mut ending) = (Put::new(None), 0u32, [false; 3]);
            let (mut out, mut answered) = (Vec::new(), [None; 3]);
            for (kind, number, back) in calls {
                let at = number as usize;
                // A recent plan, or a future one.
                let plan = PlanId(u64::from(next).saturating_sub(back));
                match kind {
                    0 => {
                        next += 1;
                        let answer = ending[at].then_some((PlanId(u64::from(next) - 1), "again"));
                        out.extend(put.sends(number, PlanId(next.into()), next, answer));
                        (ending[at], answered[at]) = (false, answer.map(|(plan, _)| plan));
                    }
                    1 => {
                        out.extend(put.leave(number));
                        (ending[at], answered[at]) = (false, None);
                    }
                    _ => match put.begin_end(number, plan) {
                        Ok(Known::Now(sending)) => {
                            prop_assert!(!ending[at] && u64::from(sending) == plan.0);
                            out.push(sending);
                            (ending[at], answered[at]) = (true, None);
                        }
                        Ok(Known::Again(_)) => prop_assert_eq!(answered[at], Some(plan)),
                        Ok(Known::Nothing) => prop_assert!(!ending[at]),
                        Err(error) => prop_assert_eq!(error.reaction, Reaction::Replan),
                    },
                }
            }
            out.extend(put.leave_all());
            out.sort_unstable();
            prop_assert_eq!(out, (1..=next).collect::<Vec<_>>());
        }
    }
}
