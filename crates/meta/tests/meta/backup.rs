//! Copies of a database that is in use.

use crate::common::open;
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};
use weft_meta::{Meta, MetaError, Result, backup};
use weft_types::ClusterId;

async fn buckets(file: &Path) -> Vec<String> {
    open(file).buckets().await.unwrap().into_iter().map(|bucket| bucket.name).collect()
}

#[tokio::test]
async fn a_copy_is_one_state_of_a_database_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let [from, to] = ["metadata.sqlite", "copy.sqlite"].map(|name| dir.path().join(name));
    let meta = open(&from);
    let epoch = meta.become_leader().await.unwrap();
    let name = |number: u32| format!("bucket-{number:04}");
    for number in 0..100 {
        meta.create_bucket(epoch, &name(number), None, 1).await.unwrap();
    }
    // A leader continues to write during the backup.
    let (source, target) = (from.clone(), to.clone());
    let copying = std::thread::spawn(move || backup(&source, &target));
    let mut written = 100;
    while !copying.is_finished() || written < 110 {
        meta.create_bucket(epoch, &name(written), None, 1).await.unwrap();
        written += 1;
    }
    let (cluster, totals) = copying.join().unwrap().unwrap();
    assert_eq!((cluster.id, cluster.epoch, totals.objects), (ClusterId(7), epoch, 0));
    assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4, "the database with its two files, and the copy");

    let copied = buckets(&to).await;
    assert!((100..=written as usize).contains(&copied.len()), "{}", copied.len());
    assert_eq!(copied, (0..copied.len() as u32).map(name).collect::<Vec<_>>());
    assert_eq!(open(&to).become_leader().await.unwrap().0, epoch.0 + 1, "the copy cannot be used as a database");
    meta.create_bucket(epoch, "after", None, 1).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_copied_is_named_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let [from, to] = ["metadata.sqlite", "copy.sqlite"].map(|name| dir.path().join(name));
    assert!(matches!(backup(&from, &to), Err(MetaError::NotFound(message)) if message.contains("metadata.sqlite")));
    drop(open(&from));
    fs::write(&to, "kept").unwrap();
    assert!(matches!(backup(&from, &to), Err(MetaError::Refused(message)) if message.contains("copy.sqlite")));
    assert_eq!(fs::read(&to).unwrap(), b"kept");
    fs::remove_file(&to).unwrap();

    // A page is damaged.
    let mut bytes = fs::read(&from).unwrap();
    let end = bytes.len();
    bytes[4096..end].fill(0xff);
    fs::write(&from, bytes).unwrap();
    assert!(matches!(backup(&from, &to), Err(MetaError::Storage(_))));
    assert!(
        matches!(backup(&from, &dir.path().join("no/such/dir")), Err(MetaError::NotFound(message)) if message.contains("no/such"))
    );
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("copy")), "{left:?}");
}

/// The names of a directory's files except those of the database.
fn others(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.starts_with("metadata.sqlite")).collect()
}

#[tokio::test]
async fn of_backups_to_the_same_name_one_succeeds() {
    for round in 0..8 {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["metadata.sqlite", "copy.sqlite"].map(|name| dir.path().join(name));
        let meta = open(&from);
        let epoch = meta.become_leader().await.unwrap();
        meta.create_bucket(epoch, "b", None, 1).await.unwrap();
        let begin = std::sync::Barrier::new(4);
        let done: Vec<_> = std::thread::scope(|scope| {
            let both = [(); 4].map(|()| {
                scope.spawn(|| {
                    begin.wait();
                    backup(&from, &to)
                })
            });
            both.map(|one| one.join().unwrap()).into()
        });
        assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1, "round {round}: {done:?}");
        let refused =
            |done: &Result<_, MetaError>| matches!(done, Err(MetaError::Refused(message)) if message.contains("copy.sqlite"));
        assert_eq!(done.iter().filter(|done| refused(done)).count(), 3, "round {round}: {done:?}");
        assert_eq!(others(dir.path()), ["copy.sqlite"], "round {round}");
        assert_eq!(buckets(&to).await, ["b"], "round {round}");
    }
}

#[tokio::test]
async fn a_backup_writes_to_no_existing_file() {
    let dir = tempfile::tempdir().unwrap();
    let [from, to, victim, planted] =
        ["metadata.sqlite", "copy.sqlite", "victim", ".copy.sqlite.new"].map(|name| dir.path().join(name));
    drop(open(&from));
    fs::write(&victim, "kept").unwrap();
    std::os::unix::fs::symlink(&victim, &planted).unwrap();
    backup(&from, &to).unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"kept");
    assert!(fs::symlink_metadata(&planted).unwrap().is_symlink(), "the backup removed a file that is not its own");
    assert!(fs::symlink_metadata(&to).unwrap().is_file());
    // A dangling link exists, too.
    fs::remove_file(&to).unwrap();
    std::os::unix::fs::symlink(dir.path().join("nothing"), &to).unwrap();
    assert!(matches!(backup(&from, &to), Err(MetaError::Refused(message)) if message.contains("copy.sqlite")));
    assert!(!dir.path().join("nothing").exists());
    assert_eq!(others(dir.path()).len(), 3);
}
