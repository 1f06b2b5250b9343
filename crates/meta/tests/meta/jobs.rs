//! Jobs, and the migration of their schema.

use crate::{
    common::{node_of, open, prepare},
    copies::{BACK_TO_SCHEMA_5, BACK_TO_SCHEMA_8, BACK_TO_SCHEMA_9},
    leftovers_at, new_put,
};
use std::path::Path;
use weft_meta::*;
use weft_types::{
    Amount, BlockState, Epoch, Estimated, HelperSelect, Home, JOB_ERROR_BYTES_MAX, JobId, JobProgress, JobRecord, JobState,
    JobWork, LEFT_BLOCKS_MAX, LEFT_REASON_BYTES_MAX, LeftBlock, NodeId, NodeRepair, NodeState, Prefer, Scrub, ScrubPlace,
    ScrubRecord, StripeLayout, StripeRecord,
};

fn repair(node: u32) -> JobWork {
    JobWork::RepairNode(NodeRepair {
        node: NodeId(node),
        select: HelperSelect::Random,
        prefer: Prefer::Time,
        to: vec![NodeId(4), NodeId(5)],
        scheme: "pipeline".into(),
        concurrency: 3,
        slice_len: 8192,
        force: true,
    })
}

fn progress(done: u64, last_error: &str) -> JobProgress {
    let amount = |blocks: u64| Amount { blocks, bytes: 10 * blocks };
    let left_blocks = vec![LeftBlock { object: "b/k".into(), stripe: 7, index: 3, reason: "too much is lost".into() }];
    let half = Some(Estimated { made_ms: 120, remaining_ms: 7_000 * done });
    let (total, done, left) = (amount(9), amount(done), amount(1));
    JobProgress {
        total,
        done,
        left,
        left_blocks,
        last_error: last_error.into(),
        moved_bytes: 4 * done.bytes,
        quarter: None,
        half,
    }
}

fn fresh(path: &Path) -> SqliteMeta {
    open(&path.join("metadata.sqlite"))
}

#[tokio::test]
async fn a_job_keeps_what_it_is_told_through_all_that_may_become_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let meta = fresh(dir.path());
    let epoch = prepare(&meta).await;
    let begun = meta.create_job(epoch, repair(2), 100).await.unwrap();
    assert_eq!((begun.id, begun.state, begun.work.kind()), (JobId(1), JobState::Running, "repair-node"));
    assert_eq!((begun.work.clone(), begun.progress.clone(), begun.created_ms), (repair(2), JobProgress::default(), 100));
    meta.set_job_progress(epoch, begun.id, progress(4, "object b/k: a disk"), 150).await.unwrap();
    meta.set_job_state(epoch, begun.id, JobState::Paused, None, 200).await.unwrap();
    drop(meta);

    let meta = fresh(dir.path());
    let found = meta.job(begun.id).await.unwrap();
    let expected = JobRecord { state: JobState::Paused, progress: progress(4, "object b/k: a disk"), changed_ms: 200, ..begun };
    assert_eq!(found, expected);
    assert_eq!(meta.jobs().await.unwrap(), [expected]);
    let ended = meta.set_job_state(epoch, begun.id, JobState::Running, None, 250).await.unwrap();
    assert_eq!((ended.state, ended.progress.done.blocks), (JobState::Running, 4));
    let done = meta.set_job_state(epoch, begun.id, JobState::Done, Some(progress(8, "")), 300).await.unwrap();
    assert_eq!((done.clone(), done.progress), (meta.job(begun.id).await.unwrap(), progress(8, "")));
    // Work that was running when a job ended still counts.
    assert_eq!(meta.set_job_progress(epoch, begun.id, progress(9, ""), 310).await.unwrap().state, JobState::Done);

    // The most sent bytes that a job counts.
    let most = JobProgress { moved_bytes: i64::MAX.unsigned_abs(), ..progress(9, "") };
    meta.set_job_progress(epoch, begun.id, most.clone(), 320).await.unwrap();
    assert_eq!(meta.job(begun.id).await.unwrap().progress, most);

    // An error's text is cut between two characters.
    let long = "ä".repeat(JOB_ERROR_BYTES_MAX);
    meta.set_job_progress(epoch, begun.id, progress(9, &format!("a{long}")), 320).await.unwrap();
    let kept = meta.job(begun.id).await.unwrap().progress.last_error;
    assert_eq!((kept.len(), kept.ends_with('ä')), (JOB_ERROR_BYTES_MAX - 1, true));
    // So are the list of blocks left out and its reasons.
    let left = |stripe| LeftBlock { object: "b/k".into(), stripe, index: 0, reason: long.clone() };
    let many = JobProgress { left_blocks: (0..100).map(left).collect(), ..progress(9, "") };
    meta.set_job_progress(epoch, begun.id, many, 330).await.unwrap();
    let kept = meta.job(begun.id).await.unwrap().progress.left_blocks;
    assert_eq!(kept.iter().map(|left| left.stripe).collect::<Vec<_>>(), (0..LEFT_BLOCKS_MAX as u64).collect::<Vec<_>>());
    assert!(kept.iter().all(|left| left.reason.len() == LEFT_REASON_BYTES_MAX));
}

#[tokio::test]
async fn states_follow_each_other_as_they_may_and_a_node_has_one_job() {
    use JobState::*;
    let dir = tempfile::tempdir().unwrap();
    let meta = fresh(dir.path());
    let epoch = prepare(&meta).await;
    let mut node = 0;
    for (from, may) in [
        (Running, &[Paused, Done, Failed, Cancelled][..]),
        (Paused, &[Running, Cancelled][..]),
        (Done, &[]),
        (Failed, &[]),
        (Cancelled, &[]),
    ] {
        for to in [Running, Paused, Done, Failed, Cancelled] {
            node += 1;
            let job = meta.create_job(epoch, repair(node), 1).await.unwrap().id;
            if from != Running {
                meta.set_job_state(epoch, job, from, None, 2).await.unwrap();
            }
            let became = meta.set_job_state(epoch, job, to, None, 3).await;
            assert_eq!(became.is_ok(), may.contains(&to), "{from:?} to {to:?}: {became:?}");
            if let Err(error) = became {
                assert!(matches!(&error, MetaError::Refused(said) if said.contains(from.name())), "{error}");
            }
            let again = meta.create_job(epoch, repair(node), 4).await;
            let ended = meta.job(job).await.unwrap().state.has_ended();
            assert_eq!(again.is_ok(), ended, "{from:?} to {to:?}");
            if let Err(error) = again {
                assert!(error.to_string().contains(&format!("weft job show {job}")), "{error}");
            }
        }
    }
    assert!(matches!(meta.job(JobId(999)).await, Err(MetaError::NotFound(said)) if said.contains("weft job ls")));
    assert!(matches!(meta.set_job_progress(epoch, JobId(999), progress(1, ""), 1).await, Err(MetaError::NotFound(_))));
    meta.become_leader().await.unwrap();
    let stale = |error: MetaError| matches!(error, MetaError::StaleLeader { .. });
    assert!(stale(meta.create_job(epoch, repair(99), 1).await.unwrap_err()));
    assert!(stale(meta.set_job_state(epoch, JobId(1), Running, None, 1).await.unwrap_err()));
    assert!(stale(meta.set_job_progress(epoch, JobId(1), progress(1, ""), 1).await.unwrap_err()));
}

#[tokio::test]
async fn jobs_that_ended_long_ago_are_forgotten_and_their_numbers_are_nobody_elses() {
    let dir = tempfile::tempdir().unwrap();
    let meta = fresh(dir.path());
    let epoch = prepare(&meta).await;
    let long = meta.create_job(epoch, repair(1), 1).await.unwrap().id;
    let paused = meta.create_job(epoch, repair(2), 1).await.unwrap().id;
    meta.set_job_state(epoch, paused, JobState::Paused, None, 1).await.unwrap();
    for at in 0..u64::from(ENDED_JOBS_MAX) + 5 {
        let job = meta.create_job(epoch, repair(3), at).await.unwrap().id;
        meta.set_job_state(epoch, job, JobState::Failed, None, at).await.unwrap();
    }
    // It was created first and ends last, so it is kept.
    meta.set_job_state(epoch, long, JobState::Done, None, 1_000).await.unwrap();
    let jobs = meta.jobs().await.unwrap();
    assert_eq!(jobs.len(), ENDED_JOBS_MAX as usize + 1);
    assert_eq!((jobs[0].id, jobs[1].id, jobs[2].id), (long, paused, JobId(2 + 5 + 2)), "the oldest were not pruned");
    let last = jobs.last().unwrap().id;
    assert_eq!(meta.create_job(epoch, repair(3), 1).await.unwrap().id, JobId(last.0 + 1));
}

#[tokio::test]
async fn how_far_scrubs_are_is_kept_and_goes_with_their_jobs() {
    let dir = tempfile::tempdir().unwrap();
    let meta = fresh(dir.path());
    let epoch = prepare(&meta).await;
    assert_eq!(meta.scrub(None).await.unwrap(), ScrubRecord::default());
    let scrub = |bucket: &str| JobWork::Scrub(Scrub { bucket: Some(bucket.into()), key: None, node: None, concurrency: 0 });
    let job = meta.create_job(epoch, scrub("a"), 1).await.unwrap().id;
    assert!(meta.create_job(epoch, scrub("a"), 1).await.is_err(), "the same stripes at the same time");
    let other = meta.create_job(epoch, scrub("b"), 1).await.unwrap().id;
    let far = |stripe| ScrubRecord { place: ScrubPlace { key: "k".into(), stripe }, ..ScrubRecord::default() };
    for (of, stripe) in [(None, 3), (Some(job), 4), (Some(other), 5), (None, 6)] {
        meta.set_scrub(epoch, of, far(stripe)).await.unwrap();
    }
    drop(meta);
    let meta = fresh(dir.path());
    for (of, stripe) in [(None, 6), (Some(job), 4), (Some(other), 5)] {
        assert_eq!(meta.scrub(of).await.unwrap(), far(stripe));
    }
    meta.set_job_state(epoch, job, JobState::Done, None, 2).await.unwrap();
    assert_eq!(meta.scrub(Some(job)).await.unwrap(), far(4), "it is still shown");
    for at in 10..u64::from(ENDED_JOBS_MAX) + 10 {
        let ended = meta.create_job(epoch, repair(3), at).await.unwrap().id;
        meta.set_job_state(epoch, ended, JobState::Failed, None, at).await.unwrap();
    }
    meta.set_scrub(epoch, Some(job), far(7)).await.unwrap();
    assert_eq!(meta.scrub(Some(job)).await.unwrap(), ScrubRecord::default(), "the job was dropped");
    assert_eq!(meta.scrub(Some(other)).await.unwrap(), far(5));
    assert_eq!(meta.scrub(None).await.unwrap(), far(6));
}

#[tokio::test]
async fn a_job_of_version_3_names_nothing_that_is_left_and_keeps_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let meta = fresh(dir.path());
    let epoch = prepare(&meta).await;
    let job = meta.create_job(epoch, repair(2), 100).await.unwrap().id;
    let before = meta.set_job_progress(epoch, job, progress(4, "a disk"), 150).await.unwrap();
    drop(meta);
    let sql = "DROP TABLE incomplete; ALTER TABLE jobs DROP COLUMN left_list; UPDATE schema_version SET version = 3;";
    let sql = format!("{BACK_TO_SCHEMA_9}{BACK_TO_SCHEMA_8}{BACK_TO_SCHEMA_5}{sql}");
    rusqlite::Connection::open(dir.path().join("metadata.sqlite")).unwrap().execute_batch(&sql).unwrap();
    let meta = fresh(dir.path());
    let progress = JobProgress { left_blocks: Vec::new(), moved_bytes: 0, half: None, ..progress(4, "a disk") };
    assert_eq!(meta.job(job).await.unwrap(), JobRecord { progress, ..before });
}

#[tokio::test]
async fn a_file_of_version_2_gets_jobs_and_keeps_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metadata.sqlite");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch(include_str!("../../src/sqlite/schema_1.sql")).unwrap();
    connection.execute_batch(include_str!("../../src/sqlite/schema_2.sql")).unwrap();
    let rows = "
        CREATE TABLE schema_version (version INTEGER NOT NULL) STRICT;
        INSERT INTO schema_version VALUES (2);
        INSERT INTO cluster VALUES (1, '00000000000000000000000000000007', 'before', 3, 1, 1, 0, 0, 5);
        INSERT INTO nodes VALUES (1, 'node-1', 'r1', 'z', 'a', 'b', 0);
        INSERT INTO disks VALUES (1, 'disk-1', 1, '/d', 7, 0);";
    connection.execute_batch(rows).unwrap();
    drop(connection);

    let meta = open(&path);
    let cluster = meta.cluster().await.unwrap();
    assert_eq!((cluster.incarnation.as_str(), cluster.epoch), ("before", Epoch(3)));
    let nodes = meta.nodes().await.unwrap();
    assert_eq!((&*nodes[0].name, nodes[0].state, nodes[0].disks.len()), ("node-1", NodeState::Down, 1));
    assert_eq!(meta.jobs().await.unwrap(), []);
    assert_eq!(meta.create_job(Epoch(3), repair(1), 1).await.unwrap().id, JobId(1));
    drop(meta);
    let connection = rusqlite::Connection::open(&path).unwrap();
    assert_eq!(connection.query_row("SELECT version FROM schema_version", [], |row| row.get::<_, u32>(0)), Ok(23));
}

#[tokio::test]
async fn the_stripes_on_a_disk_come_in_pages_and_only_those_that_have_ended() {
    let dir = tempfile::tempdir().unwrap();
    let meta = fresh(dir.path());
    let epoch = prepare(&meta).await;
    let nodes = meta.nodes().await.unwrap();
    assert_eq!(*nodes[0].name, *node_of(1).name);
    let home = |node: usize| Home { node: nodes[node].id, disk: nodes[node].disks[0].number };
    let new = new_put();
    let layout = new.layout;
    let upload = meta.begin_put(epoch, new, vec![]).await.unwrap().0.id;
    let layout = StripeLayout { layout, k: 2, m: 1, data_len: 2 << 20 };
    let mut stripes = Vec::new();
    // Every other stripe has no block on the first node; the last stripe has not ended.
    for number in 0..8 {
        let homes = vec![home(1), home(2), home(if number % 2 == 0 { 0 } else { 3 })];
        let stripe = NewStripe { number, layout, homes: homes.clone() };
        let stripe = meta.allocate_stripes(epoch, upload, vec![stripe], leftovers_at(1)).await.unwrap().remove(0).id;
        if number < 7 {
            let blocks = homes.iter().map(|home| (1, *home, BlockState::Ok)).collect();
            let end = EndStripe { upload, stripe, blocks, checksums: vec![vec![1, 2]; 3], garbage_not_before_ms: 1 };
            meta.end_stripe(epoch, end, None).await.unwrap();
            stripes.push(stripe);
        }
    }
    let ids = |page: &Page<StripeRecord>| page.items.iter().map(|stripe| stripe.id).collect::<Vec<_>>();
    let first = meta.stripes_on(home(0), None, 3).await.unwrap();
    assert_eq!((ids(&first), first.more), (vec![stripes[0], stripes[2], stripes[4]], true));
    assert_eq!(first.items[0], meta.stripe(stripes[0]).await.unwrap());
    let rest = meta.stripes_on(home(0), Some(stripes[4]), 3).await.unwrap();
    assert_eq!((ids(&rest), rest.more), (vec![stripes[6]], false));
    assert_eq!(ids(&meta.stripes_on(home(4), None, 3).await.unwrap()), []);
}
