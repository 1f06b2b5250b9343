//! Listings of a bucket, compared with a naive model: all keys in memory.

use crate::{commit_at, new_put, records::fresh};
use proptest::prelude::*;
use std::collections::BTreeSet;
use weft_meta::{Listed, Listing, Meta, NewUpload, SqliteMeta};
use weft_types::{Epoch, ObjectName};

/// Few letters, so that keys share beginnings: the delimiter, its neighbours in the order, and the edges of Unicode.
const LETTERS: [char; 9] = ['a', 'b', '/', '.', '0', 'é', '\u{d7ff}', '\u{e000}', '\u{10ffff}'];

async fn store(meta: &SqliteMeta, epoch: Epoch, bucket: &str, key: &str) {
    let new = NewUpload { name: ObjectName { bucket: bucket.into(), key: key.into() }, ..new_put() };
    let upload = meta.begin_put(epoch, new, vec![]).await.unwrap().0;
    meta.commit_put(epoch, upload.id, commit_at(0, 1)).await.unwrap();
}

/// What the listing says: keys, and folders with a mark.
fn named(items: &[Listed]) -> Vec<String> {
    let name = |item: &Listed| match item {
        Listed::Object(object) => object.name.key.clone(),
        Listed::Folder(folder) => format!("folder {folder}"),
    };
    items.iter().map(name).collect()
}

/// All of a listing at once, from all keys.
fn naive(keys: &BTreeSet<String>, query: &Listing) -> Vec<String> {
    let mut items: Vec<(String, String)> = Vec::new();
    for key in keys {
        let Some(rest) = key.strip_prefix(query.prefix.as_str()) else { continue };
        let parts = (!query.delimiter.is_empty()).then(|| rest.split_once(query.delimiter.as_str())).flatten();
        let (name, said) = match parts {
            Some((first, _)) => {
                let folder = format!("{}{first}{}", query.prefix, query.delimiter);
                // Its objects come after the folder in the order; a listing that goes on behind one of them tells the folder again.
                if *key <= query.after || folder == query.after {
                    continue;
                }
                (folder.clone(), format!("folder {folder}"))
            }
            None if *key <= query.after => continue,
            None => (key.clone(), key.clone()),
        };
        if items.last().is_none_or(|(last, _)| *last != name) {
            items.push((name, said));
        }
    }
    items.into_iter().map(|(_, said)| said).collect()
}

fn text(len: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(&LETTERS[..]), 0..=len).prop_map(String::from_iter)
}

fn query() -> impl Strategy<Value = Listing> {
    let delimiter = prop::sample::select(&["", "/", "/", "//", "a/", "\u{10ffff}"][..]);
    (text(2), delimiter, text(3), 1u32..5).prop_map(|(prefix, delimiter, after, limit)| Listing {
        prefix,
        delimiter: delimiter.into(),
        after,
        limit,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn listings_are_those_of_all_keys_in_order(keys in prop::collection::btree_set(text(4), 0..25), queries in prop::collection::vec(query(), 40)) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(compare(keys, queries));
    }
}

async fn compare(mut keys: BTreeSet<String>, queries: Vec<Listing>) {
    keys.remove("");
    let (_dir, meta, epoch) = fresh().await;
    // Keys of buckets whose names are before and behind are not part of it.
    for bucket in ["a", "c"] {
        meta.create_bucket(epoch, bucket, None, 1).await.unwrap();
        store(&meta, epoch, bucket, "a/other").await;
    }
    for key in &keys {
        store(&meta, epoch, "b", key).await;
    }
    for query in queries {
        let expected = naive(&keys, &query);
        let first = meta.listing("b", query.clone()).await.unwrap();
        let limit = query.limit as usize;
        assert_eq!(named(&first.items), expected[..limit.min(expected.len())], "{query:?} of {keys:?}");
        assert_eq!(first.more, expected.len() > limit, "{query:?} of {keys:?}");
        assert_eq!(pages(&meta, query.clone()).await, expected, "{query:?} of {keys:?}");
    }
}

/// All of a listing, page by page.
async fn pages(meta: &SqliteMeta, mut query: Listing) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let page = meta.listing("b", query.clone()).await.unwrap();
        all.extend(named(&page.items));
        match page.items.last() {
            Some(Listed::Object(object)) if page.more => query.after.clone_from(&object.name.key),
            Some(Listed::Folder(folder)) if page.more => query.after.clone_from(folder),
            _ => return all,
        }
    }
}

#[tokio::test]
async fn folders_stand_for_what_is_in_them() {
    let (_dir, meta, epoch) = fresh().await;
    for key in ["a", "a/1", "a/2/x", "a0", "b/", "b/1", "ä/1"] {
        store(&meta, epoch, "b", key).await;
    }
    let list = async |prefix: &str, after: &str, limit| {
        let query = Listing { prefix: prefix.into(), delimiter: "/".into(), after: after.into(), limit };
        let page = meta.listing("b", query).await.unwrap();
        (named(&page.items).join(" "), page.more)
    };
    assert_eq!(list("", "", 10).await, ("a folder a/ a0 folder b/ folder ä/".into(), false));
    assert_eq!(list("", "", 2).await, ("a folder a/".into(), true));
    assert_eq!(list("", "a/", 2).await, ("a0 folder b/".into(), true));
    assert_eq!(list("", "a/1", 1).await, ("folder a/".into(), true), "an object of it follows");
    assert_eq!(list("a/", "", 10).await, ("a/1 folder a/2/".into(), false));
    assert_eq!(list("b/", "", 10).await, ("b/ b/1".into(), false));
    assert_eq!(list("", "ä/", 10).await, (String::new(), false));
    assert!(meta.listing("nobody", Listing { limit: 1, ..Listing::default() }).await.is_err());
}
