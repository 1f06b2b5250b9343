//! How jobs end if their state cannot be written, or if they are cancelled while their last stripes are under way.

use crate::world::{World, data};
use rusqlite::Connection;
use std::time::Duration;
use weft_client::{JobChange, PutOptions, RepairNodeOptions, api::Job};
use weft_meta::MetaMode;
use weft_types::NodeId;

impl World {
    /// Waits until a job has ended.
    pub(crate) async fn ended(&self, job: u64) -> Job {
        self.until("the job has ended", async |world| {
            !matches!(world.client.job(job).await.unwrap().state.as_str(), "running" | "paused")
        })
        .await;
        self.client.job(job).await.unwrap()
    }

    /// A second connection to the metadata, besides the coordinator's.
    fn metadata(&self) -> Connection {
        let connection = Connection::open(self.metadata_file()).unwrap();
        connection.busy_timeout(Duration::from_secs(5)).unwrap();
        connection
    }
}

/// Blocks: (total, done, left).
fn amounts(job: &Job) -> (u64, u64, u64) {
    let blocks = |amount: &Option<weft_client::api::JobAmount>| amount.map_or(0, |amount| amount.blocks);
    (blocks(&job.total), blocks(&job.done), blocks(&job.left))
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_state_cannot_be_written_goes_on_until_it_can() {
    let mut world = World::new(7, 7).await;
    for key in 0..3 {
        world.put(&format!("k{key}"), &data(1 << 20, key)).await.unwrap();
    }
    let lost = world.holder("k0", 0).await;
    let held = world.block_files(lost).len() as u64;
    world.kill(lost);
    world.until("one node is down", async |world| world.up().await.len() == 6).await;
    let metadata = world.metadata();
    let full = "CREATE TRIGGER full BEFORE UPDATE OF state ON jobs WHEN NEW.state IN ('done', 'paused')
                BEGIN SELECT RAISE(ABORT, 'there is no space'); END";
    metadata.execute_batch(full).unwrap();
    let job = world.client.repair_node(NodeId(lost), &RepairNodeOptions::default()).await.unwrap().id;
    world.until("all blocks are rebuilt", async |world| amounts(&world.client.job(job).await.unwrap()) == (held, held, 0)).await;
    let error = world.client.change_job(job, JobChange::Pause).await.unwrap_err();
    assert!(error.message.contains("no space"), "{error}");
    // By now the job has tried more than once to write its end.
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(world.client.job(job).await.unwrap().state, "running", "an end that is not written does not count");
    metadata.execute_batch("DROP TRIGGER full").unwrap();
    let ended = world.ended(job).await;
    assert_eq!((ended.state.as_str(), amounts(&ended)), ("done", (held, held, 0)), "{}", ended.last_error);
}

#[tokio::test(start_paused = true)]
async fn only_so_many_repairs_are_explained_at_the_same_time_and_none_without_a_reader() {
    let mut world = World::made(7, 7, MetaMode::InlineAfter(Duration::from_millis(20)), |_| {}).await;
    for key in 0..20 {
        world.put(&format!("k{key}"), &data(16 << 10, key)).await.unwrap();
    }
    let lost = world.holder("k0", 0).await;
    world.kill(lost);
    world.until_down(lost).await;
    let mut bare = world.bare_client().await;
    let asked = weft_client::api::RepairNodeRequest { node: lost, ..Default::default() };
    let first = bare.explain_repair_node(asked.clone()).await.unwrap();
    let mut second = bare.explain_repair_node(asked.clone()).await.unwrap().into_inner();
    let refused = bare.explain_repair_node(asked.clone()).await.unwrap_err();
    let says = "2 other repairs or moves are being explained";
    assert!(refused.message().contains(says), "{refused:?}");
    let refused = bare.explain_balance(weft_client::api::BalanceRequest::default()).await.unwrap_err();
    assert!(refused.message().contains(says), "a balance reads all stripes: {refused:?}");
    drop(first);
    tokio::time::sleep(Duration::from_millis(10)).await;
    let mut third = bare.explain_repair_node(asked.clone()).await.expect("the first one has no reader any more").into_inner();
    for stream in [&mut second, &mut third] {
        let mut plans = 0;
        while let Some(event) = stream.message().await.unwrap() {
            plans += usize::from(matches!(event.event, Some(weft_client::api::repair_event::Event::Plan(_))));
        }
        assert!(plans > 5, "{plans}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_job_writes_the_results_of_stripes_under_way() {
    let mut world = World::new(3, 1).await;
    let options = PutOptions { code: "rs(2,1)".into(), block_len: 4 << 20, ..PutOptions::default() };
    let bytes = data(16 << 20, 31);
    world.client.put("b", "k", bytes.as_slice(), &options).await.unwrap();
    world.start_agent(4).await;
    world.until("the node is up", async |world| world.up().await.contains(&4)).await;
    world.kill(1);
    world.until("one node is down", async |world| world.up().await == [2, 3, 4]).await;
    world.slow_down_agents().await;
    // In the first round another stripe remains, which the job does not begin; in the second none remains.
    for (concurrency, amounts_then) in [(1, (2, 1, 0)), (2, (1, 1, 0))] {
        let options = RepairNodeOptions { concurrency, scheme: "pipeline".into(), ..RepairNodeOptions::default() };
        let job = world.client.repair_node(NodeId(1), &options).await.unwrap().id;
        world.until("the stripe has begun", async |world| world.client.job(job).await.unwrap().stripes_under_way == 1).await;
        let told = world.client.change_job(job, JobChange::Cancel).await.unwrap();
        assert_eq!((told.state.as_str(), told.stripes_under_way, amounts(&told).1), ("cancelled", 1, 0));
        let metadata = world.metadata();
        let written = || -> (String, u64) {
            let sql = "SELECT state, done_blocks FROM jobs WHERE id = ?1";
            metadata.query_row(sql, [job], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
        };
        world.until("its end is written", async |_| written() == ("cancelled".to_owned(), 1)).await;
        world.restart_coordinator().await;
        let ended = world.client.job(job).await.unwrap();
        assert_eq!((ended.state.as_str(), ended.stripes_under_way, amounts(&ended)), ("cancelled", 0, amounts_then));
        world.until("all nodes are up again", async |world| world.up().await == [2, 3, 4]).await;
    }
    assert_eq!(world.not_ok("k").await, []);
    assert!(world.get("k", "").await.unwrap().0 == bytes);
}

/// The bound on the errors of the remaining time at a quarter and at half of a job over constant links, thousandths.
const ETA_ERROR_MAX: i32 = 250;

/// A job that repairs a node over slow links, and how many blocks that had.
async fn slow_repair() -> (World, u64, u64) {
    let mut world = World::new(7, 7).await;
    let options = PutOptions { code: "rs(4,2)".into(), block_len: 256 << 10, cell_len: 64 << 10, ..PutOptions::default() };
    for key in 0..48 {
        world.client.put("b", &format!("k{key}"), &data(1 << 20, key)[..], &options).await.unwrap();
    }
    let lost = world.holder("k0", 0).await;
    let held = world.block_files(lost).len() as u64;
    world.kill(lost);
    world.until_down(lost).await;
    // 16 KiB every 5 ms over each link.
    world.slow_down_agents().await;
    let options = RepairNodeOptions { concurrency: 2, scheme: "pipeline".into(), ..RepairNodeOptions::default() };
    let job = world.client.repair_node(NodeId(lost), &options).await.unwrap().id;
    (world, job, held)
}

#[tokio::test(start_paused = true)]
async fn a_job_shows_its_remaining_time_what_it_has_moved_and_what_is_at_risk() {
    let (mut world, job, held) = slow_repair().await;
    let half = async |world: &World| {
        let job = world.client.job(job).await.unwrap();
        assert_eq!(job.state, "running", "it was not seen at half of its work");
        let is_shown = job.remaining_ms.is_some_and(|left| left > 0) && job.stripes_at_risk == Some(0);
        2 * amounts(&job).1 >= held && is_shown && job.moved_bytes >= Some(held << 19)
    };
    world.until("half of it is done", half).await;
    // It runs already: its estimates stay.
    world.client.change_job(job, JobChange::Resume).await.unwrap();
    let ended = world.ended(job).await;
    assert_eq!((ended.state.as_str(), amounts(&ended)), ("done", (held, held, 0)), "{}", ended.last_error);
    assert_eq!((ended.remaining_ms, ended.stripes_at_risk), (None, None));
    // A chain of four sends a block four times.
    let least = held << 20;
    assert!((least..=least + least / 10).contains(&ended.moved_bytes.unwrap()), "{:?}, and {least} at least", ended.moved_bytes);
    let errors = [ended.eta_error_at_quarter, ended.eta_error_at_half];
    println!("errors of the remaining time at a quarter and at half of {held} blocks, thousandths: {errors:?}");
    assert!(errors.iter().all(|error| error.is_some_and(|error| error.abs() <= ETA_ERROR_MAX)), "{errors:?}");
    world.restart_coordinator().await;
    let kept = world.client.job(job).await.unwrap();
    assert_eq!((kept.moved_bytes, [kept.eta_error_at_quarter, kept.eta_error_at_half]), (ended.moved_bytes, errors));
}

#[tokio::test(start_paused = true)]
async fn a_pause_drops_the_estimates_also_if_it_is_shorter_than_a_repair() {
    let (world, job, held) = slow_repair().await;
    let is_half = async |world: &World| 2 * amounts(&world.client.job(job).await.unwrap()).1 > held;
    world.until("more than half of it is done", is_half).await;
    world.client.change_job(job, JobChange::Pause).await.unwrap();
    world.client.change_job(job, JobChange::Resume).await.unwrap();
    let ended = world.ended(job).await;
    assert_eq!((ended.state.as_str(), ended.eta_error_at_quarter, ended.eta_error_at_half), ("done", None, None));
}

#[tokio::test(start_paused = true)]
async fn blocks_of_objects_that_are_removed_during_a_repair_are_no_failures() {
    let (world, job, held) = slow_repair().await;
    world.until("blocks are rebuilt", async |world| world.client.job(job).await.unwrap().stripes_under_way > 0).await;
    for key in 0..48 {
        world.client.remove("b", &format!("k{key}")).await.unwrap();
    }
    let ended = world.ended(job).await;
    let (_, done, left) = amounts(&ended);
    assert_eq!((ended.state.as_str(), left, ended.last_error.as_str()), ("done", 0, ""));
    assert!(done < held, "{done} of {held}");
}
