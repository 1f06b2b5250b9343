//! Removals of several objects in one transaction. That they do what single removals do is compared in `model`.

use crate::{commit_at, new_put, records::fresh};
use weft_meta::{Meta, MetaError, NewUpload};
use weft_types::{Epoch, ObjectName};

fn name(key: &str) -> ObjectName {
    ObjectName { bucket: "b".into(), key: key.into() }
}

#[tokio::test]
async fn a_batch_has_a_result_for_each_name_and_one_commit() {
    let (_dir, meta, epoch) = fresh().await;
    for key in ["a", "b", "c", "d"] {
        let upload = meta.begin_put(epoch, NewUpload { name: name(key), ..new_put() }, vec![]).await.unwrap().0;
        meta.commit_put(epoch, upload.id, commit_at(0, 1)).await.unwrap();
    }
    let before = meta.commits();
    let names = ["a", "nobody", "b", "a"].map(name).to_vec();
    let results = meta.remove_objects(epoch, names, 100, 1).await.unwrap();
    let said: Vec<Option<&str>> = results.iter().map(|it| it.as_ref().ok().map(|object| object.name.key.as_str())).collect();
    assert_eq!(said, [Some("a"), None, Some("b"), None]);
    assert!(results.iter().flat_map(|it| it.as_ref().err()).all(|error| matches!(error, MetaError::NotFound(_))), "{results:?}");
    assert_eq!(meta.commits() - before, 1);

    // It ends with the object that reaches the limit, and never before the first.
    for stripes_max in [0, 1] {
        let names = [name("nobody"), name(if stripes_max == 0 { "c" } else { "d" }), name("nobody")].to_vec();
        assert_eq!(meta.remove_objects(epoch, names, stripes_max, 1).await.unwrap().len(), 2);
    }
    assert_eq!(meta.objects("b", "", "", 10).await.unwrap().items, []);
    assert!(matches!(meta.remove_objects(Epoch(epoch.0 + 1), vec![], 1, 1).await, Err(MetaError::StaleLeader { .. })));
}
