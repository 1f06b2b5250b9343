//! The faults of a run, and what each does to whom.

use super::{AGENTS, COORDINATOR};
use rand::{Rng, rngs::StdRng};
use std::time::Duration;
use weft_tests::{Deed, Illness, Roles, agent_name};

/// By how much clocks are set.
pub(super) const FORWARD_MS: i64 = 86_400_000;
const BACK_MS: i64 = -15_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    KillHelper,
    KillDestination,
    KillCoordinator,
    StallHelper,
    StallDestination,
    StallCoordinator,
    SlowHelper,
    SlowDestination,
    /// The disk of a destination is full.
    Full,
    /// It fails.
    Broken,
    /// A helper returns other bytes than were written.
    Lying,
    /// A destination writes other bytes than it got.
    Spoiling,
    /// A bit flips on a disk of a helper.
    Rot,
    /// Nothing passes from a helper to a destination.
    OneWay,
    /// The node that is emptied or filled is lost.
    Victim,
    /// Another node is lost.
    Second,
    /// Two other nodes are lost.
    Third,
    /// The first lost node comes back.
    Returns,
    /// Three of nine nodes restart.
    Restarts,
    ClockForward,
    ClockBack,
    /// The coordinator restarts with another time.
    RestartForward,
    RestartBack,
    /// An operator ends the work.
    Cancel,
}

use Fault::{
    Broken, Cancel, ClockBack, ClockForward, Full, KillCoordinator, KillDestination, KillHelper, Lying, OneWay, RestartBack,
    RestartForward, Restarts, Returns, Rot, Second, SlowDestination, SlowHelper, Spoiling, StallCoordinator, StallDestination,
    StallHelper, Third, Victim,
};

pub(super) const PAIRS: [(Fault, Fault); 25] = [
    (KillHelper, KillDestination),
    (KillCoordinator, KillHelper),
    (KillDestination, KillCoordinator),
    (Lying, KillDestination),
    (Lying, KillCoordinator),
    (Lying, Second),
    (Spoiling, KillHelper),
    (Spoiling, Full),
    (Full, KillDestination),
    (Broken, Second),
    (Broken, StallHelper),
    (StallHelper, StallDestination),
    (StallCoordinator, KillDestination),
    (SlowHelper, SlowDestination),
    (SlowDestination, OneWay),
    (OneWay, KillHelper),
    (Third, KillCoordinator),
    (Returns, Second),
    (Restarts, RestartForward),
    (RestartBack, StallHelper),
    (ClockForward, ClockBack),
    (Cancel, KillCoordinator),
    (Victim, KillCoordinator),
    (Victim, Broken),
    (Rot, KillCoordinator),
];

/// What happens, and when.
pub(super) fn deeds(fault: Fault, roles: &Roles, victim: &str, rng: &mut StdRng) -> Vec<(Duration, Deed)> {
    let mut others: Vec<String> = (1..=AGENTS).map(agent_name).filter(|agent| agent != victim).collect();
    let mut other = || others.remove(rng.random_range(0..others.len()));
    let helper = roles.helper.clone().unwrap_or_else(&mut other);
    let destination = roles.destination.clone().unwrap_or_else(&mut other);
    let (second, third, fourth) = (other(), other(), other());
    let coordinator = || COORDINATOR.to_owned();
    let mut within = |from_ms: u64, to_ms: u64| Duration::from_millis(rng.random_range(from_ms..to_ms));
    let at_once = |deed: Deed| (Duration::ZERO, deed);
    let mut restarts =
        |host: String, to_ms: u64| vec![at_once(Deed::Kill(host.clone())), (within(500, to_ms), Deed::Start(host))];
    match fault {
        KillHelper => restarts(helper, 8_000),
        KillDestination => restarts(destination, 8_000),
        KillCoordinator => restarts(coordinator(), 4_000),
        Restarts => [second, third, fourth].into_iter().flat_map(|agent| restarts(agent, 5_000)).collect(),
        RestartForward | RestartBack => {
            let ahead_ms = if fault == RestartForward { FORWARD_MS } else { BACK_MS };
            let clock = (Duration::from_millis(1), Deed::SetClock(coordinator(), ahead_ms));
            restarts(coordinator(), 4_000).into_iter().chain([clock]).collect()
        }
        StallHelper | StallDestination | StallCoordinator => {
            let host = match fault {
                StallHelper => helper,
                StallDestination => destination,
                _ => coordinator(),
            };
            vec![at_once(Deed::Stall(host.clone())), (within(1_000, 12_000), Deed::GoOn(host))]
        }
        SlowHelper | SlowDestination => {
            let host = if fault == SlowHelper { helper } else { destination };
            vec![at_once(Deed::Slow(host.clone(), 400)), (Duration::from_secs(20), Deed::Slow(host, 0))]
        }
        Full => vec![at_once(Deed::Ail(destination, Illness::Full))],
        Broken => vec![at_once(Deed::Ail(destination, Illness::Broken))],
        Lying => vec![at_once(Deed::Ail(helper, Illness::Lying))],
        Spoiling => vec![at_once(Deed::Ail(destination, Illness::Spoiling))],
        OneWay => {
            let to = if destination == helper { second } else { destination };
            let heal = Deed::Heal(helper.clone(), to.clone());
            vec![at_once(Deed::CutOneWay(helper, to)), (Duration::from_secs(20), heal)]
        }
        Rot => vec![at_once(Deed::Rot(helper, None))],
        Victim => vec![at_once(Deed::PowerOff(victim.to_owned()))],
        Second => vec![at_once(Deed::PowerOff(second))],
        Third => vec![at_once(Deed::PowerOff(second)), (within(100, 2_000), Deed::PowerOff(third))],
        Returns => vec![at_once(Deed::Start(victim.to_owned()))],
        Cancel => Vec::new(),
        ClockForward => vec![at_once(Deed::SetClock(coordinator(), FORWARD_MS))],
        ClockBack => vec![at_once(Deed::SetClock(coordinator(), BACK_MS))],
    }
}
