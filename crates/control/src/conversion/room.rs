//! Space for new stripes, where there is none: one object waits for it, and what has been written of others is given up, for it may be
//! just their space that is lacking.

use std::{collections::BTreeSet, time::Duration};
use weft_types::{Error, Reaction, Result, UploadId};

/// How often it is looked whether there is space.
pub const SPACE_LOOK: Duration = Duration::from_secs(1);

/// Who waits for space.
#[derive(Debug, Default)]
pub struct Room {
    /// The object that waits, if one does, and how many of its stripes.
    waits: Option<(UploadId, usize)>,
    /// Those that were not to wait beside another one.
    made_way: BTreeSet<UploadId>,
}

/// A stripe that needs space, and its turn among those that are written at the same time.
#[derive(Debug)]
pub struct Place {
    object: UploadId,
    waits: bool,
    has_turn: bool,
}

/// What a stripe does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// It says what it waits for, leaves its turn to others, and looks again later: not while the job is paused.
    Wait {
        /// What is lacking.
        lacking: Error,
        /// It begins to wait.
        is_first: bool,
    },
    /// There is space. It says that it waits no more, takes a turn again, and looks again.
    TakeTurn,
    /// There is space, and it is its turn.
    Begin {
        /// It has waited, and says that it does no more. What else the stripe waits for, it waits for still.
        waited: bool,
    },
    /// It does not wait.
    GiveUp(Error),
}

impl Room {
    /// Whether an object waits.
    pub fn is_awaited(&self) -> bool {
        self.waits.is_some()
    }

    /// Whether an object lacked space while another one waited.
    pub fn has_made_way(&self, object: UploadId) -> bool {
        self.made_way.contains(&object)
    }

    /// A stripe of an object waits, unless one of another object does.
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
    /// A stripe of an object has its turn.
    pub fn with_turn(object: UploadId) -> Self {
        Self { object, waits: false, has_turn: true }
    }

    /// It has looked for space: what it does then.
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

    /// It waits no more, whatever has become of it.
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
        assert_eq!(steps, [waits(true), waits(true), Step::GiveUp(lacking().unwrap_err())], "its space may be what is lacking");
        places[0].leave(&mut room);
        assert!(room.is_awaited() && room.has_made_way(other) && !room.has_made_way(one));
        let mut again = Place::with_turn(other);
        assert!(matches!(again.looked(&mut room, lacking()), Step::GiveUp(_)), "another stripe of the first waits still");
        again.leave(&mut room);
        places[1].leave(&mut room);
        assert!(!room.is_awaited());
        assert_eq!(again.looked(&mut room, lacking()), waits(true));
    }

    #[test]
    fn a_stripe_that_waits_leaves_its_turn_and_looks_again_when_it_has_one() {
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
