//! What must hold: in every state, and once everything that is left to do has been done.

use super::explore::{ABORTED, COMMITTED, Explorer, SEEN, Verdict, World};
use super::local::{DAMAGE_SHIFT, Facts, Step, Version};
use std::sync::Arc;

/// How often everything is delivered until nothing may change any more.
const PASSES_MAX: usize = 60;

/// In every state: nobody is told two things, and the blocks that count do not contradict each other or what clients know.
pub(super) fn check(explorer: &mut Explorer<'_>, world: &World) -> Verdict<()> {
    let setup = explorer.setup;
    let (mut committed, mut aborted) = explorer.recorded(world);
    let members: Vec<usize> = (0..setup.nodes()).filter(|at| explorer.is_member(world, *at)).collect();
    let all: Vec<Arc<Facts>> = members.iter().map(|at| explorer.facts(world, *at)).collect();
    let versions = || all.iter().flat_map(|facts| &facts.versions);
    for version in versions() {
        let is_other =
            |other: &Version| (other.stream, other.number) == (version.stream, version.number) && other.pages != version.pages;
        if let Some(other) = versions().find(|other| is_other(other)) {
            return Err(format!("two blocks serve different contents of one version: {version:?}, {other:?}"));
        }
    }
    for (at, facts) in members.into_iter().zip(&all) {
        // Its node computes the second one's delta from what the first one leaves.
        if facts.is_active && setup.overlap(facts.undecided, at) {
            return Err(format!("two updates of one range are under way at node {at}"));
        }
        committed |= facts.committed;
        aborted |= facts.aborted;
    }
    let acknowledged = setup.updates_told(world.told, COMMITTED | SEEN);
    let refused = setup.updates_told(world.told, ABORTED);
    for (both, what) in [
        (acknowledged & refused, "a client is told two things, or reads what another is told to be aborted"),
        (committed & aborted, "a mixed stripe"),
        (acknowledged & aborted, "acknowledged, and aborted at a block that counts"),
        (refused & committed, "told to be aborted, and committed at a block that counts"),
    ] {
        if both != 0 {
            return Err(format!("{what} ({both:b})"));
        }
    }
    Ok(())
}

/// Without further faults, everything comes to an end: all that is sent arrives, everybody asks, seals are completed, everything is applied, and
/// clients repeat their requests. Then all blocks that count contain the same updates: those that were acknowledged, and none that was refused.
/// That must hold if all messages that were ever sent arrive, and also if all earlier ones are lost: a node that needs an answer asks again.
pub(super) fn settle(explorer: &mut Explorer<'_>, world: &World) -> Verdict<()> {
    settle_from(explorer, world)?;
    let mut lost = *world;
    lost.sent = explorer.start().sent;
    settle_from(explorer, &lost).map_err(|what| format!("if all that is on its way is lost: {what}"))
}

fn settle_from(explorer: &mut Explorer<'_>, world: &World) -> Verdict<()> {
    let setup = explorer.setup;
    let mut world = *world;
    world.left = super::explore::Budget::default();
    run(explorer, &mut world)?;
    if explorer.can_reopen(&world) {
        explorer.reopen(&mut world)?;
        run(explorer, &mut world)?;
    }
    for update in 0..setup.updates.len() {
        for at in (0..setup.nodes()).filter(|at| setup.orders(*at, setup.leader_of(update) as u8)) {
            world = explorer.take(&world, at, Step::Request(update as u8))?;
        }
    }
    run(explorer, &mut world)?;
    check(explorer, &world).map_err(|what| format!("in the end: {what}"))?;
    let members: Vec<usize> = (0..setup.nodes()).filter(|at| explorer.is_member(&world, *at)).collect();
    for at in &members {
        let facts = explorer.facts(&world, *at);
        if facts.undecided != 0 || !facts.is_idle || facts.is_fenced || facts.is_joining || facts.untrimmed != 0 {
            return Err(format!("node {at} does not come to an end: {facts:?}"));
        }
    }
    for update in 0..setup.updates.len() {
        // A repeated request may be told to be too late; then it has no other end.
        if world.told >> (4 * update) & 7 == 0 && setup.are_all_members(&members, update) {
            return Err(format!("the client of update {update} is told nothing"));
        }
    }
    contents(explorer, &world, &members)
}

fn run(explorer: &mut Explorer<'_>, world: &mut World) -> Verdict<()> {
    let nodes = explorer.setup.nodes();
    for _ in 0..PASSES_MAX {
        let before = *world;
        explorer.open_all(world)?;
        for at in 0..=nodes {
            for message in explorer.messages_to(world, at) {
                *world = explorer.take(world, at, Step::Deliver(message))?;
            }
            explorer.send_again(world, at)?;
        }
        for at in 0..nodes {
            for step in explorer.rebuilds(world, at).into_iter().chain([Step::Apply]) {
                *world = explorer.take(world, at, step)?;
            }
        }
        let seal = explorer.seal(world);
        if seal.is_under_way() {
            for at in 0..nodes {
                *world = explorer.take(world, nodes, Step::LeaseEnded(at as u8))?;
            }
        } else if seal.stripe().is_open() {
            *world = explorer.take(world, nodes, Step::Seal(0))?;
        }
        if *world == before && explorer.seal(world).is_under_way() {
            // Too many stayed away; they are back.
            *world = explorer.take(world, nodes, Step::Seal(0))?;
        }
        if *world == before {
            return Ok(());
        }
    }
    Err("it does not come to an end".into())
}

/// Every page of every block that counts contains exactly the updates that are committed.
fn contents(explorer: &Explorer<'_>, world: &World, members: &[usize]) -> Verdict<()> {
    let setup = explorer.setup;
    for update in 0..setup.updates.len() {
        let mut is_there = None;
        for at in members {
            for write in setup.updates[update].iter().filter(|write| setup.depends(*at, write.stream)) {
                let bit = setup.bit(setup.id(update as u8), write.stream);
                for (number, page) in explorer.node(world, *at).pages().iter().enumerate() {
                    let is_in = (write.span.start..write.span.end).contains(&(number as u64));
                    if page >> DAMAGE_SHIFT != 0 {
                        return Err(format!("node {at} contains a damaged delta"));
                    }
                    if !is_in && page & bit != 0 {
                        return Err(format!("update {update} is outside its range at node {at}"));
                    }
                    if is_in && *is_there.get_or_insert(page & bit != 0) != (page & bit != 0) {
                        return Err(format!("update {update} is in some pages and not in others: a mixed stripe"));
                    }
                }
            }
        }
        let told = |what: u32| world.told >> (4 * update) & what != 0;
        match is_there {
            Some(false) if told(COMMITTED | SEEN) => return Err(format!("the acknowledged update {update} is lost")),
            Some(true) if told(ABORTED) => return Err(format!("update {update} appears, although it was told to be aborted")),
            _ => {}
        }
    }
    Ok(())
}
