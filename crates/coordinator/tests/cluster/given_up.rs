//! Puts that are given up, and what remains of them on agents and in the metadata.

use crate::{
    fake_agent::{FakeAgent, blocks_of},
    world::World,
};
use std::time::Duration;
use tokio::time::Instant;
use weft_client::api;
use weft_proto::{decode_task, from_status};
use weft_types::{BlockId, Error, Reaction};

async fn begin(bare: &mut Bare) -> (u64, [u8; 16]) {
    let request = api::BeginPutRequest {
        bucket: "b".into(),
        key: "k".into(),
        code: "rs(1,1)".into(),
        block_len: 4096,
        cell_len: 4096,
        ..api::BeginPutRequest::default()
    };
    let begun = bare.begin_put(request).await.unwrap().into_inner();
    (begun.upload, begun.put_key.try_into().unwrap())
}

type Bare = api::weft_client::WeftClient<tonic::transport::Channel>;

fn stripe((upload, put_key): (u64, [u8; 16]), number: u64) -> api::PutStripeRequest {
    api::PutStripeRequest { upload, number, data_len: 4096, options: None, put_key: put_key.to_vec() }
}

#[tokio::test(start_paused = true)]
async fn a_request_to_remove_a_block_says_how_long_it_may_still_be_opened() {
    let (attempts, call_ms) = (30, 700);
    let world = World::with(0, 1, |config| {
        (config.open_attempts_max, config.call_timeout_ms, config.stall_ms) = (attempts, call_ms, 800);
    })
    .await;
    let agents = [FakeAgent::start(&world, "one").await, FakeAgent::start(&world, "two").await];
    agents.iter().for_each(|agent| agent.asked().busy = true);
    let mut bare = world.bare_client().await;
    let (upload, put_key) = begin(&mut bare).await;
    let mut putting = bare.clone();
    let putting = tokio::spawn(async move { putting.put_stripe(stripe((upload, put_key), 0)).await });
    world.until("both agents are asked", async |_| agents.iter().all(|agent| agent.asked().opens > 1)).await;
    bare.abort_put(api::AbortPutRequest { upload, put_key: put_key.to_vec() }).await.unwrap();
    world
        .until("both agents are asked to remove blocks", async |_| agents.iter().all(|agent| !agent.asked().removals.is_empty()))
        .await;
    for agent in &agents {
        let told = agent.asked();
        assert!(told.removals[0].opening_ms >= u64::from(attempts) * call_ms, "{:?}", told.removals[0]);
        assert_eq!(told.removed()[0].len(), 1);
    }
    // The put's stripe is still being opened, and fails because the put no longer exists.
    assert!(!putting.is_finished(), "it was given up in the middle");
    agents.iter().for_each(|agent| agent.asked().busy = false);
    let error = from_status(&putting.await.unwrap().unwrap_err());
    assert_eq!(error.reaction, Reaction::NotFound, "{error}");
}

#[tokio::test(start_paused = true)]
async fn one_call_opens_and_starts_a_task_if_no_agent_connects_to_another() {
    let world = World::new(0, 1).await;
    let agents = [FakeAgent::start(&world, "one").await, FakeAgent::start(&world, "two").await];
    let mut bare = world.bare_client().await;
    let put = begin(&mut bare).await;
    let put_with = |number: u64, scheme: &str| {
        let options = Some(api::WriteScheme { scheme: scheme.into(), ..api::WriteScheme::default() });
        api::PutStripeRequest { options, ..stripe(put, number) }
    };
    let calls = || {
        [0, 1].map(|at| {
            let told = agents[at].asked();
            (told.opens, told.starts)
        })
    };
    bare.put_stripe(put_with(0, "direct")).await.unwrap();
    assert_eq!(calls(), [(1, 0); 2]);
    // One of them sends to the other, which expects it by then.
    bare.put_stripe(put_with(1, "mist")).await.unwrap();
    assert_eq!(calls(), [(2, 1); 2]);
}

#[tokio::test(start_paused = true)]
async fn only_a_client_with_the_key_can_continue_a_put() {
    let world = World::new(2, 1).await;
    let mut bare = world.bare_client().await;
    let (upload, put_key) = begin(&mut bare).await;
    let (_, other) = begin(&mut bare).await;
    assert!(put_key != other && put_key[8..] != other[8..] && put_key[..8] != put_key[8..]);
    let refused = async |key: [u8; 16]| {
        let [mut a, mut b, mut c, mut d, mut e] = std::array::from_fn(|_| bare.clone());
        let end = api::EndStripeRequest { upload, put_key: key.to_vec(), ..api::EndStripeRequest::default() };
        let keep = api::KeepPutRequest { upload, put_key: key.to_vec(), ..api::KeepPutRequest::default() };
        [
            ("put", a.put_stripe(stripe((upload, key), 0)).await.err()),
            ("end", b.end_stripe(end).await.err()),
            ("keep", c.keep_put(keep).await.err()),
            ("commit", d.commit_put(api::CommitPutRequest { upload, size: 4096, put_key: key.to_vec() }).await.err()),
            ("abort", e.abort_put(api::AbortPutRequest { upload, put_key: key.to_vec() }).await.err()),
        ]
        .map(|(call, status)| (call, status.map(|status| from_status(&status))))
    };
    let is_about_the_key = |error: &Error| error.message.contains("not the key of put");
    let mut close = put_key;
    close[0] ^= 0x80;
    for wrong in [[0; 16], other, close] {
        for (call, error) in refused(wrong).await {
            let error = error.unwrap_or_else(|| panic!("{call} was accepted"));
            assert!(is_about_the_key(&error) && error.reaction == Reaction::InvalidInput, "{call}: {error}");
            let shown = format!("{:x}", u128::from_be_bytes(put_key));
            assert!(!error.to_string().contains(&shown), "{error}");
        }
    }
    for (call, error) in refused(put_key).await {
        assert!(!error.is_some_and(|error| is_about_the_key(&error)), "{call}");
    }
    let (upload, _) = begin(&mut bare).await;
    // A put of an earlier version has no key.
    let file = rusqlite::Connection::open(world.metadata_file()).unwrap();
    file.execute("UPDATE uploads SET put_key = x''", []).unwrap();
    bare.abort_put(api::AbortPutRequest { upload, put_key: Vec::new() }).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn garbage_is_forgotten_block_by_block_and_only_when_its_node_confirms() {
    let world = World::with(0, 1, |config| (config.stall_ms, config.call_timeout_ms) = (600, 550)).await;
    let agents = [FakeAgent::start(&world, "one").await, FakeAgent::start(&world, "two").await];
    let (one, two) = (&agents[0], &agents[1]);
    let mut bare = world.bare_client().await;
    let (upload, put_key) = begin(&mut bare).await;
    for number in 0..2 {
        bare.put_stripe(stripe((upload, put_key), number)).await.unwrap();
    }
    // The agent keeps all blocks until the test knows which ones it must remove.
    let any = |stripe: u64, index| BlockId { stripe: weft_types::StripeId(stripe), index, copy: 0, generation: 1 };
    let all: Vec<BlockId> = (1..=2).flat_map(|stripe| [any(stripe, 0), any(stripe, 1)]).collect();
    one.asked().keeps.extend(&all);
    bare.abort_put(api::AbortPutRequest { upload, put_key: put_key.to_vec() }).await.unwrap();
    world
        .until("both agents are asked to remove blocks", async |_| agents.iter().all(|agent| !agent.asked().removals.is_empty()))
        .await;
    let blocks = one.asked().removed()[0].clone();
    assert_eq!(blocks.len(), 2);
    // The other agent confirms blocks that are not its own and that it was not asked to remove: the coordinator ignores that.
    two.asked().says_gone = blocks.clone();
    let asked = one.asked().removals.len();
    world.until("the first agent is asked again", async |_| one.asked().removals.len() > asked + 1).await;
    assert!(one.asked().removed().iter().all(|asked| *asked == blocks), "{:?}", one.asked().removed());
    assert_eq!(two.asked().removals.len(), 1, "this agent has confirmed its removals");

    one.asked().keeps.remove(&blocks[0]);
    world.until("one block is removed", async |_| one.asked().removed().last().unwrap().len() == 1).await;
    assert_eq!(one.asked().removed().last().unwrap(), &blocks[1..]);
    one.asked().keeps.clear();
    let asked = one.asked().removals.len();
    world.until("the other block is removed", async |_| one.asked().removals.len() > asked).await;
    let asked = one.asked().removals.len();
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(one.asked().removals.len() <= asked + 1, "the agent is asked to remove a removed block");
}

/// The slow node keeps all of its garbage.
#[tokio::test(start_paused = true)]
async fn a_slow_node_does_not_delay_the_garbage_of_others_and_is_asked_for_all_of_its_own() {
    let world = World::new(0, 1).await;
    let agents = [FakeAgent::start(&world, "slow").await, FakeAgent::start(&world, "fast").await];
    let (slow, fast) = (&agents[0], &agents[1]);
    let file = rusqlite::Connection::open(world.metadata_file()).unwrap();
    let add_garbage = |node: u32, stripe: u64, reason: &str| -> BlockId {
        let sql = "INSERT INTO garbage (node, stripe, idx, copy, generation, disk, not_before_ms, reason)
                   VALUES (?1, ?2, 0, 0, 1, 1, 0, ?3)";
        file.execute(sql, (node, stripe, reason)).unwrap();
        BlockId { stripe: weft_types::StripeId(stripe), index: 0, copy: 0, generation: 1 }
    };
    (slow.asked().removes_for, fast.asked().removes_for) = (Duration::from_secs(1), Duration::ZERO);
    file.execute_batch("BEGIN").unwrap();
    let blocks: Vec<BlockId> = (1..=40 * 64).map(|stripe| add_garbage(1, stripe, "removed")).collect();
    slow.asked().keeps.extend(blocks.iter().copied());
    slow.asked().keeps.insert(add_garbage(1, 9_000, "repaired"));
    file.execute_batch("COMMIT").unwrap();
    world.until("the slow node is asked", async |_| !slow.asked().removals.is_empty()).await;

    let calls_of = |reason: &str| slow.asked().removals.iter().filter(|request| request.reason == reason).count();
    let since = Instant::now();
    add_garbage(2, 9_001, "removed");
    world.until("the garbage of the fast node is removed", async |_| !fast.asked().removals.is_empty()).await;
    assert!(calls_of("repaired") == 1 && calls_of("removed") < 20, "{:?} after {:?}", calls_of("removed"), since.elapsed());

    // A call without an answer ends a sweep too, and is repeated.
    slow.asked().removes_for = Duration::from_secs(2);
    let before = calls_of("removed");
    world.until("another call has begun", async |_| calls_of("removed") > before).await;
    slow.asked().removes_for = Duration::from_secs(1);
    tokio::time::sleep(Duration::from_secs(120)).await;
    let told = slow.asked();
    let mut asked: Vec<BlockId> = (told.removals.iter().filter(|request| request.reason == "removed"))
        .flat_map(|request| blocks_of(&request.blocks))
        .collect();
    assert_eq!(asked[64 * before..][..64], asked[64 * (before + 1)..][..64], "the call that was not answered is not repeated");
    asked.drain(64 * before..64 * (before + 1));
    assert!(
        asked.len() > blocks.len() && asked[..blocks.len()] == blocks,
        "a sweep asked again for what an earlier one had asked"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stripe_is_ended_only_by_the_plan_that_sends_it() {
    let world = World::new(2, 1).await;
    let mut bare = world.bare_client().await;
    let (upload, put_key) = begin(&mut bare).await;
    let mut plans = Vec::new();
    for _ in 0..2 {
        let reply = bare.put_stripe(stripe((upload, put_key), 0)).await.unwrap().into_inner();
        plans.push(decode_task(&reply.task.unwrap().task).unwrap().plan.0);
    }
    let end = |plan| api::EndStripeRequest { upload, plan, put_key: put_key.to_vec(), ..api::EndStripeRequest::default() };
    let late = from_status(&bare.end_stripe(end(plans[0])).await.unwrap_err());
    assert!(late.reaction == Reaction::Replan && late.message.contains("by another plan"), "{late}");
    // The plan that sends the stripe is still under way, and has sent nothing.
    let nothing = from_status(&bare.end_stripe(end(plans[1])).await.unwrap_err());
    assert!(nothing.message.contains("too few blocks"), "{nothing}");
    let ended = from_status(&bare.end_stripe(end(plans[1])).await.unwrap_err());
    assert!(ended.message.contains("no longer being sent"), "{ended}");
}

/// No data are sent, so agents only see that no writer connects, and the stripe goes to the same nodes again.
#[tokio::test(start_paused = true)]
async fn a_retried_call_names_the_same_blocks_to_send_again_a_bounded_number_of_times() {
    let change = |config: &mut weft_coordinator::CoordinatorConfig| {
        (config.stall_ms, config.call_timeout_ms, config.resumes_max) = (600, 550, 2);
    };
    let mut world = World::with(2, 1, change).await;
    let mut bare = world.bare_client().await;
    let (upload, put_key) = begin(&mut bare).await;
    let plan_of = |task: Option<api::ClientTask>| decode_task(&task.expect("nothing is to be sent").task).unwrap().plan.0;
    let sent: Vec<_> = (0..2).map(|index| api::BlockChecksums { index, checksums: vec![7], id: Vec::new() }).collect();
    let end = |plan| api::EndStripeRequest {
        upload,
        plan,
        put_key: put_key.to_vec(),
        sent: sent.clone(),
        ..api::EndStripeRequest::default()
    };
    let first = plan_of(bare.put_stripe(stripe((upload, put_key), 0)).await.unwrap().into_inner().task);
    let second = plan_of(bare.end_stripe(end(first)).await.unwrap().into_inner().again);
    assert_ne!(second, first);
    // The answer was lost.
    assert_eq!(plan_of(bare.end_stripe(end(first)).await.unwrap().into_inner().again), second);
    let third = plan_of(bare.end_stripe(end(second)).await.unwrap().into_inner().again);
    let old = from_status(&bare.end_stripe(end(first)).await.unwrap_err());
    assert!(old.reaction == Reaction::Replan && old.message.contains("by another plan"), "{old}");
    assert_eq!(world.allocations(), 2 + 2, "each block, and the data blocks two more times");
    let given_up = from_status(&bare.end_stripe(end(third)).await.unwrap_err());
    assert!(given_up.reaction == Reaction::Replan && given_up.message.contains("too few blocks"), "{given_up}");

    // A coordinator that crashes between two plans loses their state, so all blocks are sent again.
    let first = plan_of(bare.put_stripe(stripe((upload, put_key), 0)).await.unwrap().into_inner().task);
    let second = plan_of(bare.end_stripe(end(first)).await.unwrap().into_inner().again);
    world.restart_coordinator().await;
    world.until("both nodes are up again", async |world| world.up().await.len() == 2).await;
    let mut bare = world.bare_client().await;
    let gone = from_status(&bare.end_stripe(end(second)).await.unwrap_err());
    assert!(gone.reaction == Reaction::Replan && gone.message.contains("send it again"), "{gone}");
    plan_of(bare.put_stripe(stripe((upload, put_key), 0)).await.unwrap().into_inner().task);
    assert_eq!(world.allocations(), 2, "allocations of earlier plans are given up");
    bare.abort_put(api::AbortPutRequest { upload, put_key: put_key.to_vec() }).await.unwrap();
    world.until("nothing is left", async |world| world.allocations() == 0 && world.block_count(1..=2) == 0).await;
}
