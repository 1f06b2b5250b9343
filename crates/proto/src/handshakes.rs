//! Limits the concurrent TLS handshakes of a listener, so that no host can lock out the others. Pure: the caller closes the handshakes.

use crate::net::host;
use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
};

/// The most concurrent handshakes of one listener.
pub(crate) const HANDSHAKES_MAX: usize = 512;
/// The most concurrent handshakes of one host; many clients on one machine may start at the same time. For IPv6, of one /64, because one
/// site can use all of its addresses.
pub(crate) const HANDSHAKES_PER_HOST_MAX: usize = 128;

/// The handshakes in progress, the oldest first, each with the caller's key.
#[derive(Debug)]
pub(crate) struct Handshakes<K> {
    under_way: VecDeque<(K, String)>,
}

impl<K> Default for Handshakes<K> {
    fn default() -> Self {
        Self { under_way: VecDeque::new() }
    }
}

impl<K> Handshakes<K> {
    /// Admits a handshake with the peer at `address`; none is refused. Returns the handshake to close for it, if any: the oldest of the
    /// same host if that host has used its share; otherwise, if the listener is full, the oldest of the host with the most handshakes.
    pub(crate) fn begin(&mut self, key: K, address: &str) -> Option<K> {
        let host = source(address);
        let crowding = match self.of_host(&host) >= HANDSHAKES_PER_HOST_MAX {
            true => Some(host.clone()),
            false if self.under_way.len() >= HANDSHAKES_MAX => self.busiest(),
            false => None,
        };
        let oldest = crowding.and_then(|crowding| self.under_way.iter().position(|(_, host)| *host == crowding));
        let gives_way = oldest.and_then(|oldest| self.under_way.remove(oldest));
        self.under_way.push_back((key, host));
        gives_way.map(|(key, _)| key)
    }

    /// Removes a handshake that succeeded or failed. Does nothing if it was closed for another one.
    pub(crate) fn end(&mut self, is_it: impl Fn(&K) -> bool) {
        self.under_way.retain(|(key, _)| !is_it(key));
    }

    fn of_host(&self, host: &str) -> usize {
        self.under_way.iter().filter(|(_, other)| other == host).count()
    }

    /// The host with the most handshakes; if several have as many, the one whose oldest handshake is the oldest.
    fn busiest(&self) -> Option<String> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, host) in &self.under_way {
            *counts.entry(host).or_default() += 1;
        }
        let busiest = self.under_way.iter().rev().max_by_key(|(_, host)| counts.get(host.as_str()));
        busiest.map(|(_, host)| host.clone())
    }
}

/// The host, or IPv6 /64, whose share a peer's handshake counts against.
fn source(address: &str) -> String {
    let host = host(address);
    match host.parse() {
        Ok(IpAddr::V6(ip)) => format!("{:x?}", &ip.segments()[..4]),
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins one handshake for each address, numbered from 0. Returns the handshake that the last one displaced.
    fn last_of(addresses: impl IntoIterator<Item = String>) -> Option<usize> {
        let mut handshakes = Handshakes::default();
        addresses.into_iter().enumerate().map(|(number, address)| handshakes.begin(number, &address)).last().flatten()
    }

    fn from(host: &str, count: usize) -> impl Iterator<Item = String> {
        (0..count).map(move |port| format!("{host}:{}", 1000 + port))
    }

    #[test]
    fn the_host_with_too_many_handshakes_loses_its_oldest() {
        let (share, all) = (HANDSHAKES_PER_HOST_MAX, HANDSHAKES_MAX);
        let many = |count| (0..count).map(|host| format!("10.{}.{}.1:7", host / 256, host % 256));
        let six = |last: usize| (0..last).map(|host| format!("[fd00::{host:x}]:7"));
        let table = [
            ("the maximum of one host", last_of(from("a", share)), None),
            ("one more displaces the host's oldest", last_of(from("a", share + 1)), Some(0)),
            ("one of another host", last_of(from("a", share).chain(from("b", 1))), None),
            ("the host's oldest, not the oldest of all", last_of(from("b", 1).chain(from("a", share + 1))), Some(1)),
            ("a full listener", last_of(many(all)), None),
            ("one more displaces the oldest", last_of(many(all + 1)), Some(0)),
            ("the oldest of the busiest host", last_of(many(all - 2).chain(from("a", 2)).chain(from("b", 1))), Some(all - 2)),
            ("IPv6 by site", last_of(six(share + 1)), Some(0)),
            ("IPv4 in IPv6", last_of(from("10.0.0.1", share).chain(from("[::ffff:10.0.0.1]", 1))), Some(0)),
        ];
        for (case, gave_way, expected) in table {
            assert_eq!(gave_way, expected, "{case}");
        }
    }

    #[test]
    fn an_ended_handshake_takes_no_place() {
        let mut handshakes = Handshakes::default();
        for number in 0..10 * HANDSHAKES_MAX {
            assert_eq!(handshakes.begin(number, "a:1"), None);
            handshakes.end(|key| *key == number);
        }
        handshakes.end(|_| true);
        assert_eq!(handshakes.under_way.len(), 0);
    }
}
