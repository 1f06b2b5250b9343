use super::*;
use std::collections::BTreeSet;
use std::io::ErrorKind;

fn create(files: &SimFiles, path: &str) -> Box<dyn FileHandle> {
    files.open(Path::new(path), Open::CreateEmpty).unwrap()
}

fn content(files: &SimFiles, path: &str) -> Option<Vec<u8>> {
    let file = files.open(Path::new(path), Open::Read).ok()?;
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    Some(bytes)
}

/// What is seen after a crash, over many seeds.
fn outcomes<T: Ord>(work: impl Fn(&SimFiles), see: impl Fn(&SimFiles) -> T) -> BTreeSet<T> {
    let outcome = |seed| {
        let files = SimFiles::new(seed);
        work(&files);
        files.restart();
        see(&files)
    };
    (0..64).map(outcome).collect()
}

#[test]
fn a_name_survives_from_the_sync_of_its_directory_on_and_content_from_that_of_the_file() {
    let write = |sync_file: bool, sync_dir: bool| {
        let seen = outcomes(
            |files| {
                let file = create(files, "/a");
                file.write_all_at(b"new", 0).unwrap();
                if sync_file {
                    file.sync_data().unwrap();
                }
                if sync_dir {
                    files.sync_dir(Path::new("/")).unwrap();
                }
            },
            |files| content(files, "/a"),
        );
        seen.into_iter().collect::<Vec<_>>()
    };
    let (empty, zeros, new) = (Some(vec![]), Some(vec![0; 3]), Some(b"new".to_vec()));
    assert_eq!(write(true, true), std::slice::from_ref(&new));
    assert_eq!(write(true, false), [None, new.clone()], "the name may be lost");
    assert_eq!(write(false, true), [empty.clone(), zeros.clone(), new.clone()]);
    assert_eq!(write(false, false), [None, empty, zeros, new]);
}

#[test]
fn an_overwrite_is_torn_between_sectors_only() {
    let seen = outcomes(
        |files| {
            let file = create(files, "/a");
            file.write_all_at(&[1; 3 * 512], 0).unwrap();
            file.sync_all().unwrap();
            files.sync_dir(Path::new("/")).unwrap();
            file.write_all_at(&[2; 1024], 256).unwrap();
        },
        |files| content(files, "/a").unwrap(),
    );
    assert_eq!(seen.len(), 8, "each of three sectors is old or new");
    for bytes in seen {
        assert_eq!((bytes.len(), bytes[0], bytes[1535]), (1536, 1, 1));
        assert!(bytes[512..1024].iter().all(|byte| *byte == bytes[512]), "a sector is torn");
    }
}

#[test]
fn a_rename_happens_as_a_whole_or_not_and_either_directory_makes_it_durable() {
    let rename = |synced: Option<&'static str>| {
        outcomes(
            |files| {
                for dir in ["/from", "/to"] {
                    files.create_dir(Path::new(dir)).unwrap();
                }
                create(files, "/from/a");
                for dir in ["/", "/from", "/to"] {
                    files.sync_dir(Path::new(dir)).unwrap();
                }
                files.rename(Path::new("/from/a"), Path::new("/to/b")).unwrap();
                synced.into_iter().for_each(|dir| files.sync_dir(Path::new(dir)).unwrap());
            },
            |files| ["/from/a", "/to/b"].map(|path| files.exists(Path::new(path)).unwrap()),
        )
    };
    assert_eq!(rename(None), BTreeSet::from([[true, false], [false, true]]));
    assert_eq!(rename(Some("/from")), BTreeSet::from([[false, true]]));
    assert_eq!(rename(Some("/to")), BTreeSet::from([[false, true]]));
}

#[test]
fn a_synced_name_does_not_change_back() {
    let seen = outcomes(
        |files| {
            files.create_dir(Path::new("/d")).unwrap();
            files.sync_dir(Path::new("/")).unwrap();
            create(files, "/d/a");
            files.rename(Path::new("/d/a"), Path::new("/b")).unwrap();
            files.sync_dir(Path::new("/")).unwrap();
        },
        |files| ["/d/a", "/b"].map(|path| files.exists(Path::new(path)).unwrap()),
    );
    assert_eq!(seen, BTreeSet::from([[false, true]]), "the creation came first");
}

#[test]
fn a_failed_sync_loses_what_it_did_not_write_and_no_later_sync_saves_it() {
    let seen = outcomes(
        |files| {
            let file = create(files, "/a");
            file.write_all_at(&[1; 1024], 0).unwrap();
            file.sync_all().unwrap();
            files.sync_dir(Path::new("/")).unwrap();
            file.write_all_at(&[2; 1024], 0).unwrap();
            files.inject(|call| (call.op == FileOp::Sync).then(|| io::Error::from_raw_os_error(5)));
            assert!(file.sync_data().is_err());
            files.inject(|_| None);
            file.sync_data().unwrap();
            assert_eq!(content(files, "/a").unwrap(), [2; 1024], "memory still has it");
        },
        |files| content(files, "/a").unwrap()[..].chunks(512).map(|sector| sector[0]).collect::<Vec<_>>(),
    );
    assert_eq!(seen.len(), 4);
}

#[test]
fn calls_fail_from_the_crash_on_and_a_kill_loses_nothing() {
    let files = SimFiles::new(1);
    let file = create(&files, "/a");
    files.crash_after(1);
    file.write_all_at(b"x", 0).unwrap();
    assert!(file.write_all_at(b"y", 0).is_err() && files.is_crashed());
    assert!(files.exists(Path::new("/a")).is_err());
    files.restart();
    assert!(file.write_all_at(b"z", 0).is_err(), "it was opened before the crash");
    let file = create(&files, "/b");
    file.write_all_at(b"x", 0).unwrap();
    assert!(file.try_lock().unwrap() && !file.try_lock().unwrap());
    files.kill();
    assert!(file.len().is_err());
    assert_eq!(content(&files, "/b").unwrap(), b"x");
    assert!(files.open(Path::new("/b"), Open::Write).unwrap().try_lock().unwrap());
}

#[test]
fn a_full_file_system_refuses_more() {
    let files = SimFiles::new(1);
    files.set_capacity(1000);
    let file = create(&files, "/a");
    file.allocate(1000).unwrap();
    assert_eq!(file.write_all_at(b"x", 1000).unwrap_err().kind(), ErrorKind::StorageFull);
    file.write_all_at(b"x", 999).unwrap();
    assert_eq!(files.space(Path::new("/")).unwrap().free_bytes, 0);
    file.set_len(10).unwrap();
    assert_eq!(files.space(Path::new("/")).unwrap().free_bytes, 990);
}
