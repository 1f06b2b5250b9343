//! Many objects: listings with folders, and removals of several at once.

use crate::world::{World, data};
use weft_client::{ListOptions, Listed, REMOVED_MAX, api};
use weft_proto::{from_status, status::decode_error};
use weft_types::Reaction;

fn name(bucket: &str, key: &str) -> api::ObjectName {
    api::ObjectName { bucket: bucket.into(), key: key.into() }
}

#[tokio::test(start_paused = true)]
async fn removals_of_many_have_a_result_each_and_free_all_blocks() {
    let world = World::new(6, 3).await;
    for key in 0..5 {
        world.put(&format!("k{key}"), &data(1000 + key, key as u64)).await.unwrap();
    }
    let mut bare = world.bare_client().await;
    let long = "k".repeat(2000);
    let names = vec![
        name("b", "k0"),
        name("b", "a\nb"),
        name("B/", "k"),
        name("b", &long),
        name("b", ""),
        name("c", "k"),
        name("b", "k3"),
    ];
    let mut ask = async |names: Vec<api::ObjectName>, dry_run| {
        let reply = bare.remove_objects(api::RemoveObjectsRequest { names, dry_run }).await;
        reply.map(|reply| reply.into_inner().objects).map_err(|status| from_status(&status))
    };
    let commits = world.client.status().await.unwrap().commits;
    let mut said = Vec::new();
    for dry_run in [true, false] {
        let objects = ask(names.clone(), dry_run).await.unwrap();
        assert_eq!(objects.len(), names.len());
        let sizes: Vec<u64> = objects.iter().map(|object| object.size).collect();
        assert_eq!(sizes, [1000, 0, 0, 0, 0, 0, 1003]);
        assert!(objects[0].version > 0 && objects[0].error.is_empty() && objects[6].error.is_empty());
        let errors = objects[1..6].iter().map(|object| decode_error(&object.error).unwrap());
        said = errors.map(|error| (error.reaction, error.message)).collect();
        assert_eq!(world.rows("objects"), if dry_run { 5 } else { 3 });
    }
    assert_eq!(world.client.status().await.unwrap().commits - commits, 1, "both objects go in one transaction");
    for ((reaction, message), (expected, part)) in said.iter().zip([
        (Reaction::InvalidInput, "control characters"),
        (Reaction::InvalidInput, "is not a valid name for a bucket"),
        (Reaction::InvalidInput, "1 to 1024 bytes, not 2000"),
        (Reaction::InvalidInput, "1 to 1024 bytes, not 0"),
        (Reaction::NotFound, "there is no bucket c"),
    ]) {
        assert!(*reaction == expected && message.contains(part), "{part} is not in: {message}");
    }

    assert!(ask(Vec::new(), false).await.unwrap().is_empty());
    let many = vec![name("b", "k"); REMOVED_MAX + 1];
    let error = ask(many, false).await.unwrap_err();
    assert!(error.reaction == Reaction::InvalidInput && error.message.contains("at most 1000 objects, not 1001"), "{error}");
    // What does not exist is not found, also if an earlier call removed it and its answer was lost.
    let again = ask(vec![name("b", "k0"); REMOVED_MAX], false).await.unwrap();
    assert!(again.len() == REMOVED_MAX && again.iter().all(|object| !object.error.is_empty()));
    let rest: Vec<api::ObjectName> = ["k1", "k2", "k4"].map(|key| name("b", key)).to_vec();
    assert!(ask(rest, false).await.unwrap().iter().all(|object| object.error.is_empty()));
    world.until("all blocks are removed", async |world| world.block_count(1..=6) == 0).await;
    world.client.remove_bucket("b").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_transaction_removes_a_bounded_number_of_objects() {
    let world = World::new(6, 3).await;
    let names: Vec<(String, String)> = (0..300).map(|number| ("b".to_owned(), format!("k{number}"))).collect();
    for (_, key) in &names {
        world.put(key, &[]).await.unwrap();
    }
    let commits = world.client.status().await.unwrap().commits;
    let results = world.client.remove_many(&names, false).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(world.client.status().await.unwrap().commits - commits, 2, "300 objects, 256 in each transaction");
    assert_eq!(world.rows("objects"), 0);
}

#[tokio::test(start_paused = true)]
async fn listings_have_folders_and_limits() {
    let world = World::new(6, 3).await;
    for key in ["2024/a", "2024/b/c", "2025/a", "cat"] {
        world.put(key, &data(10, 1)).await.unwrap();
    }
    let list = async |prefix: &str, delimiter: &str, after: &str, limit| {
        let (prefix, delimiter, after) = (prefix.into(), delimiter.into(), after.into());
        let mut listing = world.client.list_with("b", &ListOptions { prefix, delimiter, after, limit });
        let mut names = Vec::new();
        while let Some(items) = listing.next_items().await.unwrap() {
            names.extend(items.iter().map(|item| match item {
                Listed::Object(object) => format!("{} of {}", object.key, object.size),
                Listed::Folder(folder) => folder.clone(),
            }));
        }
        (names.join(" "), listing.has_more())
    };
    assert_eq!(list("", "/", "", None).await, ("2024/ 2025/ cat of 10".into(), false));
    assert_eq!(list("", "/", "", Some(2)).await, ("2024/ 2025/".into(), true));
    assert_eq!(list("", "/", "2025/", Some(2)).await, ("cat of 10".into(), false));
    assert_eq!(list("2024/", "/", "", None).await, ("2024/a of 10 2024/b/".into(), false));
    assert_eq!(list("2024", "", "", Some(2)).await, ("2024/a of 10 2024/b/c of 10".into(), false));
    assert_eq!(list("", "", "", Some(0)).await, (String::new(), true));
    assert_eq!(world.client.has_bucket("b").await, Ok(true));
    assert_eq!(world.client.has_bucket("B/").await, Ok(false));
    assert_eq!(world.client.has_bucket("c").await, Ok(false));
}
