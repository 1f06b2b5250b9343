//! Space for new stripes when there is too little. One object waits for space; other objects that lack space drop their
//! new stripes, because those may be what takes the space.

use std::{collections::BTreeSet, time::Duration};
use weft_types::{Error, Reaction, Result, UploadId};

/// The interval between checks for space.
pub const SPACE_LOOK: Duration = Duration::from_secs(1);

/// The objects that lack space.
#[derive(Debug, Default)]
pub struct Room {
    /// The object that waits, if any, and the number of its stripes that wait.
    waits: Option<(UploadId, usize)>,
    /// Objects that lacked space while another one waited.
    made_way: BTreeSet<UploadId>,
}

/// A stripe that needs space, and its turn among those that are written concurrently.
#[derive(Debug)]
pub struct Place {
    object: UploadId,
    waits: bool,
    has_turn: bool,
}

/// The next step of a stripe.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Report the wait, release the turn, and check again later, but not while the job is paused.
    Wait {
        /// What is lacking.
        lacking: Error,
        /// The wait begins now.
        is_first: bool,
    },
    /// Space is available. End the wait, take a turn, and check again.
    TakeTurn,
    /// Space is available, and the stripe has its turn.
    Begin {
        /// It had waited; its wait for space ends. Other waits of the stripe continue.
        waited: bool,
    },
    /// Do not wait.
    GiveUp(Error),
}

impl Room {
    /// Whether an object waits for space.
    pub fn is_awaited(&self) -> bool {
        self.waits.is_some()
    }

    /// Whether an object lacked space while another one waited.
    pub fn has_made_way(&self, object: UploadId) -> bool {
        self.made_way.contains(&object)
    }

    /// Records that a stripe of an object waits, unless another object waits already.
    fn enter(&mut self, of: UploadId) -> bool {
        let (object, stripes) = self.waits.get_or_insert((of, 0));
        if *object != of {
            self.made_way.insert(of);
            return false;
        }
        *stripes += 1;
        true
    }
}

impl Place {
    /// A stripe that has its turn.
    pub fn with_turn(object: UploadId) -> Self {
        Self { object, waits: false, has_turn: true }
    }

    /// The next step after a check for space.
    pub fn looked(&mut self, room: &mut Room, space: Result<()>) -> Step {
        match space {
            Err(lacking) if lacking.reaction == Reaction::Retry => {
                let is_first = !self.waits;
                if is_first && !room.enter(self.object) {
                    return Step::GiveUp(lacking);
                }
                (self.waits, self.has_turn) = (true, false);
                Step::Wait { lacking, is_first }
            }
            Err(error) => Step::GiveUp(error),
            Ok(()) if self.has_turn => Step::Begin { waited: self.waits },
            Ok(()) => {
                self.has_turn = true;
                Step::TakeTurn
            }
        }
    }

    /// Ends the wait, whatever the outcome.
    pub fn leave(&mut self, room: &mut Room) {
        if std::mem::take(&mut self.waits) {
            room.waits = room.waits.filter(|(_, stripes)| *stripes > 1).map(|(object, stripes)| (object, stripes - 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lacking() -> Result<()> {
        Err(Error::retry("waits for space"))
    }

    fn waits(is_first: bool) -> Step {
        Step::Wait { lacking: Error::retry("waits for space"), is_first }
    }

    #[test]
    fn one_object_waits_for_space() {
        let (mut room, one, other) = (Room::default(), UploadId(1), UploadId(2));
        let mut places = [one, one, other].map(Place::with_turn);
        let steps = places.each_mut().map(|place| place.looked(&mut room, lacking()));
        assert_eq!(
            steps,
            [waits(true), waits(true), Step::GiveUp(lacking().unwrap_err())],
            "its space may be what the first object needs"
        );
        places[0].leave(&mut room);
        assert!(room.is_awaited() && room.has_made_way(other) && !room.has_made_way(one));
        let mut again = Place::with_turn(other);
        assert!(matches!(again.looked(&mut room, lacking()), Step::GiveUp(_)), "another stripe of the first object still waits");
        again.leave(&mut room);
        places[1].leave(&mut room);
        assert!(!room.is_awaited());
        assert_eq!(again.looked(&mut room, lacking()), waits(true));
    }

    #[test]
    fn a_waiting_stripe_releases_its_turn_and_checks_again_with_a_new_one() {
        let (mut room, mut place) = (Room::default(), Place::with_turn(UploadId(1)));
        let spaces = [lacking(), lacking(), Ok(()), lacking(), Ok(()), Ok(())];
        let steps = spaces.map(|space| place.looked(&mut room, space));
        let expected = [waits(true), waits(false), Step::TakeTurn, waits(false), Step::TakeTurn, Step::Begin { waited: true }];
        assert_eq!(steps, expected);
        assert_eq!(Place::with_turn(UploadId(2)).looked(&mut room, Ok(())), Step::Begin { waited: false });
        let full = Error::unavailable("no disk is large enough");
        assert_eq!(place.looked(&mut room, Err(full.clone())), Step::GiveUp(full));
    }

    proptest! {
        #[test]
        fn in_any_order_one_object_waits_at_a_time_and_none_in_the_end(
            steps in proptest::collection::vec((0..6usize, any::<bool>(), any::<bool>()), 0..60),
        ) {
            let mut room = Room::default();
            let mut places: Vec<Place> = (0..6).map(|at| Place::with_turn(UploadId(at / 2))).collect();
            for (at, is_lacking, leaves) in steps {
                if leaves {
                    places[at].leave(&mut room);
                    places[at] = Place::with_turn(places[at].object);
                    continue;
                }
                let others = places.iter().any(|place| place.waits && place.object != places[at].object);
                let step = places[at].looked(&mut room, if is_lacking { lacking() } else { Ok(()) });
                prop_assert_eq!(matches!(step, Step::GiveUp(_)), is_lacking && others);
                let waiting: BTreeSet<_> = places.iter().filter(|place| place.waits).map(|place| place.object).collect();
                prop_assert!(waiting.len() <= 1);
                prop_assert_eq!(room.is_awaited(), !waiting.is_empty());
                let begins = matches!(step, Step::Begin { .. });
                prop_assert!(!begins || places[at].has_turn);
            }
            places.iter_mut().for_each(|place| place.leave(&mut room));
            prop_assert!(!room.is_awaited());
        }
    }
}
