//! Nodes, policies, buckets, lists, and foreign databases.

use crate::{
    commit_at,
    common::{mark_corrupt, node_of, open, prepare},
    copies::{BACK_TO_SCHEMA_5, BACK_TO_SCHEMA_8, BACK_TO_SCHEMA_9, BACK_TO_SCHEMA_10, BACK_TO_SCHEMA_11},
    leftovers_at, new_put,
};
use weft_meta::*;
use weft_types::{
    Ack, BlockId, BlockState, ClusterId, DiskNumber, Epoch, FailureDomain, Home, NodeId, NodeState, ObjectName, PutKey,
    RepairLimit, Seq, Span, StripeId, StripeLayout, StripeRecord, UpdatesInPlace, UploadId,
};

pub(crate) async fn fresh() -> (tempfile::TempDir, SqliteMeta, Epoch) {
    let dir = tempfile::tempdir().unwrap();
    let meta = open(&dir.path().join("metadata.sqlite"));
    let epoch = prepare(&meta).await;
    (dir, meta, epoch)
}

/// The first stripe of a put, ended with one checksum for each of three blocks.
async fn ended_stripe(meta: &SqliteMeta, epoch: Epoch, upload: UploadId, layout: StripeLayout, homes: &[Home]) -> StripeId {
    let new = NewStripe { number: 0, layout, homes: homes.to_vec() };
    let stripe = meta.allocate_stripes(epoch, upload, vec![new], leftovers_at(1)).await.unwrap()[0].id;
    let blocks = homes.iter().map(|home| (1, *home, BlockState::Ok)).collect();
    let end = EndStripe { upload, stripe, blocks, checksums: checksums(), garbage_not_before_ms: 1 };
    meta.end_stripe(epoch, end, None).await.unwrap();
    stripe
}

fn checksums() -> Vec<Vec<u32>> {
    vec![vec![1], vec![2], vec![3]]
}

#[tokio::test]
async fn a_cluster_keeps_its_identity_and_its_epochs_only_grow() {
    let (dir, meta, epoch) = fresh().await;
    drop(meta);
    let other = NewCluster { id: ClusterId(8), incarnation: 10, policies: vec![], created_ms: 2, auto_repair: true };
    let path = dir.path().join("metadata.sqlite");
    let meta = SqliteMeta::open(&path, MetaMode::Pool, &other).unwrap();
    let cluster = meta.cluster().await.unwrap();
    assert_eq!((cluster.id, cluster.incarnation), (ClusterId(7), format!("{:032x}", 9)), "there was a cluster already");
    assert_eq!(meta.become_leader().await.unwrap(), Epoch(epoch.0 + 1));
    assert_eq!(meta.policies().await.unwrap().len(), 1);
}

#[tokio::test]
async fn only_transactions_that_changed_something_count_as_commits() {
    let (_dir, meta, epoch) = fresh().await;
    let before = meta.commits();
    meta.create_bucket(epoch, "c", None, 1).await.unwrap();
    meta.clone().remove_bucket(epoch, "c").await.unwrap();
    assert_eq!(meta.commits(), before + 2);
    meta.buckets().await.unwrap();
    meta.create_bucket(epoch, "b", None, 1).await.unwrap_err();
    meta.create_bucket(Epoch(epoch.0 + 1), "c", None, 1).await.unwrap_err();
    assert_eq!(meta.expire_repairs(epoch, 1).await.unwrap(), 0);
    assert_eq!(meta.commits(), before + 2, "changes without an effect were counted");
}

/// Each change gets its own answer, also within a shared transaction, and reads see what was answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_many_callers_at_once_are_all_made_or_refused() {
    let (dir, meta, _) = fresh().await;
    drop(meta);
    let new = NewCluster { id: ClusterId(7), incarnation: 9, policies: vec![], created_ms: 1, auto_repair: true };
    let meta = SqliteMeta::open(&dir.path().join("metadata.sqlite"), MetaMode::Pool, &new).unwrap();
    let epoch = meta.become_leader().await.unwrap();
    let before = meta.commits();
    let create = |number: u32| {
        let meta = meta.clone();
        // Each name is requested twice.
        let name = format!("bucket-{}", number / 2);
        tokio::spawn(async move {
            let made = meta.create_bucket(epoch, &name, None, 1).await;
            assert!(meta.bucket(&name).await.is_ok() || made.is_err(), "{name} was created and cannot be read");
            made.is_ok()
        })
    };
    let tasks: Vec<_> = (0..200).map(create).collect();
    let mut made = 0;
    for task in tasks {
        made += usize::from(task.await.unwrap());
    }
    assert_eq!((made, meta.buckets().await.unwrap().len(), meta.commits() - before), (100, 101, 100));
}

#[tokio::test]
async fn a_newer_schema_is_refused_by_name() {
    let (dir, meta, _) = fresh().await;
    drop(meta);
    let path = dir.path().join("metadata.sqlite");
    rusqlite::Connection::open(&path).unwrap().execute("UPDATE schema_version SET version = 99", []).unwrap();
    let new = NewCluster { id: ClusterId(7), incarnation: 9, policies: vec![], created_ms: 1, auto_repair: true };
    let error = SqliteMeta::open(&path, MetaMode::Inline, &new).unwrap_err();
    assert_eq!(error, MetaError::NewerSchema { found: 99, known: 23 });
    assert!(error.to_string().contains("schema 99"), "{error}");
    std::fs::write(&path, vec![7; 10_000]).unwrap();
    assert!(matches!(SqliteMeta::open(&path, MetaMode::Inline, &new), Err(MetaError::Storage(_))));
}

/// The operators' page explains how to continue from an old copy: no number that was assigned after the copy is assigned again.
#[tokio::test]
async fn the_operators_statement_for_an_old_copy_raises_all_numbers() {
    let (dir, meta, epoch) = fresh().await;
    let path = dir.path().join("metadata.sqlite");
    let connection = rusqlite::Connection::open(&path).unwrap();
    let numbers = || -> Vec<(String, u64)> {
        let sql = "SELECT name FROM pragma_table_info('cluster') WHERE name = 'epoch' OR name LIKE '%_high_water'";
        let mut columns = connection.prepare(sql).unwrap();
        let names: Vec<String> = columns.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        let value = |name: &String| connection.query_row(&format!("SELECT {name} FROM cluster"), [], |row| row.get(0)).unwrap();
        names.into_iter().map(|name| (name.clone(), value(&name))).collect()
    };
    let before = numbers();
    let page = include_str!("../../../../docs/operations.md");
    let statement = page.split("```sql\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    connection.execute_batch(statement).unwrap();
    assert_eq!(before.len(), 5, "{before:?}");
    for ((name, before), (_, after)) in before.into_iter().zip(numbers()) {
        assert!(after >= before + 10_000, "{name}: {before}, {after}");
    }
    assert_eq!(meta.become_leader().await.unwrap(), Epoch(epoch.0 + 1_000_001));
}

/// What an earlier version wrote: schema 1, in which a corrupt block is corrupt as a whole.
#[tokio::test]
async fn an_older_schema_is_brought_up_to_date_and_keeps_what_it_says() {
    let (dir, meta, epoch) = fresh().await;
    let new = new_put();
    let layout = new.layout;
    let upload = meta.begin_put(epoch, new, vec![]).await.unwrap().0.id;
    let homes: Vec<Home> = (1..=3).map(|node| Home { node: NodeId(node), disk: DiskNumber(node) }).collect();
    let layout = StripeLayout { layout, k: 2, m: 1, data_len: 2 << 20 };
    let stripe = ended_stripe(&meta, epoch, upload, layout, &homes).await;
    let block = |index| BlockId { stripe, index, copy: 0, generation: 1 };
    assert!(meta.mark_block(epoch, block(0), BlockState::Corrupt).await.unwrap());
    // A late receipt describes an earlier state.
    assert!(!meta.mark_block(epoch, block(0), BlockState::Ok).await.unwrap());
    drop(meta);
    let path = dir.path().join("metadata.sqlite");
    let sql = "DROP TABLE jobs; DROP TABLE corrupt_bytes; DROP TABLE incomplete; UPDATE schema_version SET version = 1";
    rusqlite::Connection::open(&path)
        .unwrap()
        .execute_batch(&format!("{BACK_TO_SCHEMA_9}{BACK_TO_SCHEMA_8}{BACK_TO_SCHEMA_5}{sql}"))
        .unwrap();

    let meta = open(&path);
    let found = meta.stripe(stripe).await.unwrap();
    assert_eq!((found.blocks[&0].state, found.corrupt_bytes(0)), (BlockState::Corrupt, &[][..]));
    let bytes = vec![Span::new(0, 4096)];
    assert!(!mark_corrupt(&meta, epoch, block(0), bytes.clone()).await.unwrap(), "it stays corrupt as a whole");
    assert!(mark_corrupt(&meta, epoch, block(1), bytes.clone()).await.unwrap());
    assert!(!mark_corrupt(&meta, epoch, block(1), bytes.clone()).await.unwrap(), "these bytes were already known");
    assert_eq!(meta.stripe(stripe).await.unwrap().corrupt, [((1, 0), bytes)].into());
}

/// Schema 8 has one count for all updates of a stripe, which was always 0.
#[tokio::test]
async fn a_stripe_has_a_term_and_counts_and_one_of_schema_8_has_none() {
    let (dir, meta, epoch) = fresh().await;
    let new = new_put();
    let layout = new.layout;
    let upload = meta.begin_put(epoch, new, vec![]).await.unwrap().0.id;
    let homes: Vec<Home> = (1..=3).map(|node| Home { node: NodeId(node), disk: DiskNumber(node) }).collect();
    let layout = StripeLayout { layout, k: 2, m: 1, data_len: 2 << 20 };
    let stripe = ended_stripe(&meta, epoch, upload, layout, &homes).await;
    let before = meta.stripe(stripe).await.unwrap();
    assert_eq!(meta.upload(upload).await.unwrap().new.key, PutKey(7));
    drop(meta);
    let path = dir.path().join("metadata.sqlite");
    let change = |sql: &str| rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    change(BACK_TO_SCHEMA_10);
    let meta = open(&path);
    assert_eq!(meta.upload(upload).await.unwrap().new.key, PutKey(u128::from(u64::MAX - 1)), "a key of 64 bits");
    drop(meta);
    change(&format!("{BACK_TO_SCHEMA_9}{BACK_TO_SCHEMA_8}"));
    let meta = open(&path);
    assert_eq!(meta.stripe(stripe).await.unwrap(), before);
    assert!(before.seq.is_first());
    assert_eq!(meta.upload(upload).await.unwrap().new.key, PutKey::NONE);
    drop(meta);
    // The postcard of [300, 5].
    change("UPDATE stripes SET term = 7, counts = X'0102AC0205'");
    let meta = open(&path);
    assert_eq!(meta.stripe(stripe).await.unwrap(), StripeRecord { seq: Seq::new(7, vec![300, 5]), ..before.clone() });
    let block = BlockId { stripe, index: 0, copy: 0, generation: 1 };
    assert!(meta.mark_block(epoch, block, BlockState::Missing).await.unwrap());
    assert_eq!(meta.stripe(stripe).await.unwrap().seq, Seq::new(7, vec![300, 5]), "the counts stay when a block changes");
    drop(meta);
    change("UPDATE stripes SET counts = X'0902'");
    let error = open(&path).stripe(stripe).await.unwrap_err();
    assert!(error.to_string().contains("update counts has version 9"), "{error}");
}

#[tokio::test]
async fn a_node_keeps_its_name_and_its_disks() {
    let (_dir, meta, epoch) = fresh().await;
    let register = |node: NewNode| meta.register_node(epoch, node, 1_000);
    let again = register(NewNode { id: Some(NodeId(2)), rack: "r9".into(), ..node_of(2) }).await.unwrap();
    assert_eq!((again.id, &*again.rack, again.disks.len()), (NodeId(2), "r9", 1));
    assert_eq!(register(NewNode { id: None, ..node_of(2) }).await.unwrap().id, NodeId(2), "the name is enough");

    let wrong = |node: NewNode| async { register(node).await.unwrap_err().to_string() };
    let renamed = wrong(NewNode { id: Some(NodeId(2)), name: "new-name".into(), ..node_of(2) }).await;
    assert!(renamed.contains("n2 is named node-2"), "{renamed}");
    let taken = wrong(NewNode { id: Some(NodeId(2)), ..node_of(3) }).await;
    assert!(taken.contains("node-3 belongs to n3"), "{taken}");
    let stranger = wrong(NewNode { id: Some(NodeId(77)), name: "stranger".into(), ..node_of(2) }).await;
    assert!(stranger.contains("never registered"), "{stranger}");
    let stolen = wrong(NewNode { id: None, name: "thief".into(), ..node_of(3) }).await;
    let helps = stolen.contains("install the newest weft here, or put the disk back");
    assert!(stolen.contains("/d is the disk disk-3 of node-3 (n3)") && helps, "{stolen}");
    assert_eq!(meta.nodes().await.unwrap().len(), 7, "the failed registration left a partial record");

    let fresh_disk = NewDisk { id: "disk-x".into(), path: "/x".into(), total_bytes: 5, failed: false, taken_from: None };
    let node = register(NewNode { id: Some(NodeId(2)), disks: vec![fresh_disk], ..node_of(2) }).await.unwrap();
    let failed: Vec<bool> = node.disks.iter().map(|disk| disk.failed).collect();
    assert_eq!(failed, [true, false], "the disk that is not listed is failed");
    meta.set_disk_failed(epoch, node.disks[1].number, true).await.unwrap();
    assert!(meta.nodes().await.unwrap()[1].disks[1].failed);
}

#[tokio::test]
async fn the_states_of_nodes_and_since_when_outlive_the_coordinator() {
    let (dir, meta, epoch) = fresh().await;
    let of_2 = async |meta: &SqliteMeta| {
        let node = meta.nodes().await.unwrap().remove(1);
        (node.state, node.since_ms)
    };
    assert_eq!(of_2(&meta).await, (NodeState::Up, 1), "since its first registration");
    let set = |state, since_ms| meta.set_node_state(epoch, NodeId(2), state, since_ms);
    set(NodeState::Down, 500).await.unwrap();
    set(NodeState::Down, 900).await.unwrap();
    assert_eq!(of_2(&meta).await, (NodeState::Down, 500), "it was down already");
    set(NodeState::Lost, 1_000).await.unwrap();
    meta.set_auto_repair(epoch, false).await.unwrap();
    let limits = ["50%", "until 1700000000000", "none", "100MiB/s"].map(|text| text.parse::<RepairLimit>().unwrap());
    for limit in limits {
        meta.set_repair_limit(epoch, limit).await.unwrap();
        assert_eq!(meta.cluster().await.unwrap().repair_limit, limit);
    }
    assert!(matches!(meta.set_node_state(epoch, NodeId(9), NodeState::Up, 1).await, Err(MetaError::NotFound(_))));
    drop(meta);

    let path = dir.path().join("metadata.sqlite");
    let meta = open(&path);
    assert_eq!((of_2(&meta).await, meta.cluster().await.unwrap().auto_repair), ((NodeState::Lost, 1_000), false));
    assert_eq!(meta.cluster().await.unwrap().repair_limit, limits[3]);
    let (before, epoch, lost) = (epoch, meta.become_leader().await.unwrap(), NodeState::Lost);
    assert!(matches!(meta.set_repair_limit(before, limits[0]).await, Err(MetaError::StaleLeader { .. })));
    let again = |now_ms| meta.register_node(epoch, NewNode { id: Some(NodeId(2)), ..node_of(2) }, now_ms);
    assert_eq!(again(2_000).await.unwrap().since_ms, 2_000);
    assert_eq!(again(3_000).await.unwrap().since_ms, 2_000, "it was up already");
    meta.set_node_state(epoch, NodeId(2), lost, 4_000).await.unwrap();
    assert_eq!(of_2(&meta).await, (NodeState::Up, 2_000), "it registered meanwhile");
    // It was lost, and must be checked until it has been. Later it is down for a short and for a long time.
    let came_back = async |meta: &SqliteMeta| meta.nodes().await.unwrap()[1].came_back;
    assert!(came_back(&meta).await && !meta.nodes().await.unwrap()[0].came_back);
    let down_and_up = async |down_ms, up_ms| {
        meta.set_checked(epoch, NodeId(2)).await.unwrap();
        meta.set_node_state(epoch, NodeId(2), NodeState::Down, down_ms).await.unwrap();
        meta.set_node_state(epoch, NodeId(2), NodeState::Up, up_ms).await.unwrap();
        came_back(&meta).await
    };
    assert!(!down_and_up(5_000, 604_999).await && down_and_up(700_000, 1_300_000).await);
    drop(meta);
    assert!(came_back(&open(&path)).await, "the next coordinator knows it");
}

#[tokio::test]
async fn what_is_drained_is_known_to_the_next_coordinator_and_after_a_registration() {
    let (dir, meta, epoch) = fresh().await;
    let draining = async |meta: &SqliteMeta| {
        let nodes = meta.nodes().await.unwrap();
        (
            nodes.iter().map(|node| node.draining).collect::<Vec<_>>(),
            nodes[0].disks.iter().map(|disk| disk.draining).collect::<Vec<_>>(),
        )
    };
    let disks = meta.nodes().await.unwrap()[0].disks.iter().map(|disk| disk.number).collect::<Vec<_>>();
    meta.set_draining(epoch, NodeId(2), None, true).await.unwrap();
    meta.set_draining(epoch, NodeId(1), Some(disks[0]), true).await.unwrap();
    meta.register_node(epoch, NewNode { id: Some(NodeId(2)), ..node_of(2) }, 5).await.unwrap();
    let (nodes, of_disks) = draining(&meta).await;
    assert!(nodes[1] && nodes.iter().filter(|on| **on).count() == 1 && of_disks[0]);
    for (node, disk) in [(NodeId(99), None), (NodeId(2), Some(disks[0])), (NodeId(1), Some(DiskNumber(99)))] {
        assert!(matches!(meta.set_draining(epoch, node, disk, true).await, Err(MetaError::NotFound(_))));
    }
    drop(meta);
    let meta = open(&dir.path().join("metadata.sqlite"));
    assert_eq!(draining(&meta).await, (nodes, of_disks));
    let epoch = meta.become_leader().await.unwrap();
    meta.set_draining(epoch, NodeId(2), None, false).await.unwrap();
    meta.set_draining(epoch, NodeId(1), Some(disks[0]), false).await.unwrap();
    let (nodes, of_disks) = draining(&meta).await;
    assert!(nodes.into_iter().chain(of_disks).all(|on| !on));
    // That a person ended it is known as long as nobody begins another.
    let kept = async |meta: &SqliteMeta| meta.nodes().await.unwrap()[0].disks.iter().map(|disk| disk.kept).collect::<Vec<_>>();
    let is_kept = kept(&meta).await;
    assert!(is_kept[0] && is_kept.iter().filter(|kept| **kept).count() == 1);
    meta.set_draining(epoch, NodeId(1), Some(disks[0]), true).await.unwrap();
    assert!(!kept(&meta).await[0]);
    // A disk that is drained for good is so until that is ended.
    let home = |node| Home { node: NodeId(node), disk: disks[0] };
    assert!(matches!(meta.retire_disk(epoch, home(2)).await, Err(MetaError::NotFound(_))));
    let state = async |meta: &SqliteMeta| {
        let disk = meta.nodes().await.unwrap()[0].disks[0].clone();
        (disk.draining, disk.kept, disk.retired)
    };
    assert_eq!(state(&meta).await, (true, false, false));
    meta.retire_disk(epoch, home(1)).await.unwrap();
    meta.register_node(epoch, NewNode { id: Some(NodeId(1)), ..node_of(1) }, 6).await.unwrap();
    assert_eq!(state(&meta).await, (true, false, true));
    meta.set_draining(epoch, NodeId(1), Some(disks[0]), false).await.unwrap();
    assert_eq!(state(&meta).await, (false, true, false));
}

#[tokio::test]
async fn nodes_of_schema_11_count_from_the_migration_on() {
    let (dir, meta, epoch) = fresh().await;
    meta.set_node_state(epoch, NodeId(2), NodeState::Down, 5).await.unwrap();
    drop(meta);
    let path = dir.path().join("metadata.sqlite");
    rusqlite::Connection::open(&path).unwrap().execute_batch(BACK_TO_SCHEMA_11).unwrap();
    let meta = open(&path);
    let nodes = meta.nodes().await.unwrap();
    assert_eq!(nodes.iter().filter(|node| node.state == NodeState::Down).map(|node| node.id).collect::<Vec<_>>(), [NodeId(2)]);
    // 2020: whatever the clock of this machine says, it is later.
    assert!(nodes.iter().all(|node| node.since_ms > 1_577_836_800_000), "{nodes:?}");
    let cluster = meta.cluster().await.unwrap();
    assert!(cluster.auto_repair && cluster.repair_limit == RepairLimit::None);
}

#[tokio::test]
async fn policies_and_buckets() {
    let (_dir, meta, epoch) = fresh().await;
    let policy = |name: &str, is_default| PolicyRecord {
        name: name.into(),
        code: "rs(4,2)".into(),
        block_len: 4096,
        cell_len: 4096,
        failure_domain: FailureDomain::Node,
        ack: Ack { missing_max: 2 },
        replicas: 3,
        updates: UpdatesInPlace::Refused,
        is_default,
    };
    meta.create_policy(epoch, policy("wide", true)).await.unwrap();
    let refused = |result: Result<()>| result.unwrap_err().to_string();
    assert!(refused(meta.create_policy(epoch, policy("wide", false)).await).contains("already"));
    assert!(refused(meta.remove_policy(epoch, "wide").await).contains("is the default"));
    assert!(refused(meta.remove_policy(epoch, "default").await).contains("in use by the bucket b"));
    assert!(refused(meta.remove_policy(epoch, "none").await).contains("weft policy ls"));

    let bucket = meta.create_bucket(epoch, "c", None, 4).await.unwrap();
    assert_eq!(bucket.policy, "wide");
    assert_eq!(meta.bucket("c").await.unwrap().1, policy("wide", true));
    assert!(meta.create_bucket(epoch, "c", None, 4).await.unwrap_err().to_string().contains("already"));
    assert!(meta.bucket("nobody").await.unwrap_err().to_string().contains("weft bucket create nobody"));
    meta.set_default_policy(epoch, "default").await.unwrap();
    let defaults: Vec<bool> = meta.policies().await.unwrap().iter().map(|policy| policy.is_default).collect();
    assert_eq!(defaults, [true, false]);
    meta.remove_bucket(epoch, "c").await.unwrap();
    meta.remove_policy(epoch, "wide").await.unwrap();
    assert_eq!(meta.buckets().await.unwrap().len(), 1);

    let new = new_put();
    let upload = meta.begin_put(epoch, new, vec![]).await.unwrap().0;
    assert!(refused(meta.remove_bucket(epoch, "b").await).contains("puts into the bucket b are running"));
    meta.commit_put(epoch, upload.id, commit_at(0, 1)).await.unwrap();
    assert!(refused(meta.remove_bucket(epoch, "b").await).contains("holds 1 object: remove"));
}

#[tokio::test]
async fn lists_come_in_pages() {
    let (_dir, meta, epoch) = fresh().await;
    for key in ["a", "a/1", "a/2", "a/3", "b", "ä"] {
        let new = NewUpload { name: ObjectName { bucket: "b".into(), key: key.into() }, ..new_put() };
        let upload = meta.begin_put(epoch, new, vec![]).await.unwrap().0;
        meta.commit_put(epoch, upload.id, commit_at(0, 1)).await.unwrap();
    }
    let list = |prefix: &'static str, after: &'static str, limit| {
        let meta = meta.clone();
        async move {
            let page = meta.objects("b", prefix, after, limit).await.unwrap();
            (page.items.into_iter().map(|object| object.name.key).collect::<Vec<_>>().join(" "), page.more)
        }
    };
    assert_eq!(list("", "", 100).await, ("a a/1 a/2 a/3 b ä".into(), false));
    assert_eq!(list("a/", "", 2).await, ("a/1 a/2".into(), true));
    assert_eq!(list("a/", "a/2", 2).await, ("a/3".into(), false));
    assert_eq!(list("a", "a/3", 1).await, (String::new(), false));
    assert_eq!(list("c", "", 10).await, (String::new(), false));
    assert!(meta.objects("nobody", "", "", 1).await.is_err());
}

#[tokio::test]
async fn a_node_gets_one_block_of_a_stripe_whoever_rebuilds_them() {
    let (_dir, meta, epoch) = fresh().await;
    let new = new_put();
    let layout = new.layout;
    let upload = meta.begin_put(epoch, new, vec![]).await.unwrap().0.id;
    let home = |node| Home { node: NodeId(node), disk: DiskNumber(node) };
    let homes = vec![home(1), home(2), home(3)];
    let layout = StripeLayout { layout, k: 2, m: 1, data_len: 2 << 20 };
    let stripe = ended_stripe(&meta, epoch, upload, layout, &homes).await;
    meta.commit_put(epoch, upload, commit_at(2 << 20, 1)).await.unwrap();

    let ask = async |index, node| {
        let new = NewRepair { stripe, index, copy: 0, home: home(node), upload: None, term: None, expires_ms: 1000 };
        meta.allocate_repair(epoch, new).await
    };
    let conflict = |error: MetaError, says: &str| {
        assert!(matches!(&error, MetaError::Conflict(message) if message.contains(says)), "{error}");
    };
    conflict(ask(0, 2).await.unwrap_err(), "n2, which has block 1 of it");
    let first = ask(0, 4).await.unwrap();
    conflict(ask(1, 4).await.unwrap_err(), "n4, because block 0 of it is on its way");
    assert_eq!(ask(0, 4).await.unwrap().generation, 3, "the same block may be allocated twice");
    ask(1, 2).await.expect("the block's own node may be allocated again");
    meta.abort_repair(epoch, first, 1).await.unwrap();
    meta.abort_repair(epoch, BlockId { generation: 3, ..first }, 1).await.unwrap();
    let other = ask(1, 4).await.expect("the allocation was given up");
    meta.commit_repair(epoch, other, 1, checksums()[1].clone(), 1).await.unwrap();
    let nodes: Vec<u32> = meta.stripe(stripe).await.unwrap().blocks.values().map(|placed| placed.home.node.0).collect();
    assert_eq!(nodes, [1, 4, 3]);
    conflict(ask(0, 4).await.unwrap_err(), "n4, which has block 1 of it");
}
