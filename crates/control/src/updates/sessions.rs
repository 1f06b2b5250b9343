//! The sessions of clients that update in place.

use std::collections::BTreeMap;
use weft_types::{Error, Result};
use weft_update::Session;

/// How long a session lasts, milliseconds.
pub const SESSION_MS: u64 = 300_000;
/// The most sessions at a time.
const SESSIONS_MAX: usize = 65_536;

/// The sessions that this coordinator has given out and that have not ended: number and end.
#[derive(Debug, Default)]
pub struct Sessions(BTreeMap<u64, u64>);

impl Sessions {
    /// The session that a client asks for, if it was given out here and has not ended; otherwise a new one, whose number is drawn. An update is requested
    /// again under its own session until that ends; when to begin a new one, the client decides.
    pub fn lease(&mut self, asked: Option<Session>, now_ms: u64, mut draw: impl FnMut() -> u64) -> Result<Session> {
        let is_known = |session: &Session| self.0.get(&session.number) == Some(&session.ends_at_ms);
        let lasts = |session: &Session| session.ends_at_ms > now_ms;
        if let Some(session) = asked.filter(is_known).filter(lasts) {
            return Ok(session);
        }
        if self.0.len() >= SESSIONS_MAX {
            self.0.retain(|_, ends_at_ms| *ends_at_ms > now_ms);
        }
        if self.0.len() >= SESSIONS_MAX {
            return Err(Error::retry(format!("{SESSIONS_MAX} clients update objects at the same time: no more are accepted")));
        }
        let ends_at_ms = now_ms.saturating_add(SESSION_MS);
        loop {
            let number = draw();
            if number != 0 && !self.0.contains_key(&number) {
                self.0.insert(number, ends_at_ms);
                return Ok(Session { number, ends_at_ms });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_keeps_its_session_until_it_ends_and_cannot_take_another() {
        let mut sessions = Sessions::default();
        let mut numbers = [0, 7, 7, 8, 9, 10].into_iter();
        let mut lease = |asked, now_ms| sessions.lease(asked, now_ms, || numbers.next().unwrap()).unwrap();
        let first = lease(None, 1_000);
        assert_eq!(first, Session { number: 7, ends_at_ms: 301_000 }, "not 0");
        let other = lease(None, 1_000);
        assert_eq!(other.number, 8, "not one that is in use");
        assert_eq!(lease(Some(first), 300_999), first, "an update is requested again until its session ends");
        assert_eq!(lease(Some(first), 301_000), Session { number: 9, ends_at_ms: 601_000 });
        let forged = Session { ends_at_ms: 999_000, ..first };
        assert_eq!(lease(Some(forged), 1_000).number, 10);
    }

    #[test]
    fn the_number_of_sessions_is_bounded() {
        let (mut sessions, mut number) = (Sessions::default(), 0);
        let mut lease = |now_ms| {
            sessions.lease(None, now_ms, || {
                number += 1;
                number
            })
        };
        for _ in 0..SESSIONS_MAX {
            lease(1).unwrap();
        }
        assert!(lease(SESSION_MS).is_err());
        lease(SESSION_MS + 1).unwrap();
    }
}
