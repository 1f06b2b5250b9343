//! The store in a directory, on the real file system.

use std::fs;
use std::path::Path;
use weft_store::{BlockStore, LocalStore, NewDisk, conformance, verify};
use weft_types::{ClusterId, Error, Reaction, Span};

const CLUSTER: ClusterId = ClusterId(0xc1);
const NEW: NewDisk = NewDisk { disk_id: 0xd15c, created_ms: 1_700_000_000_000 };

fn open(dir: &Path) -> LocalStore {
    LocalStore::open(dir, CLUSTER, NEW).unwrap()
}

fn refused(dir: &Path, cluster: ClusterId) -> Error {
    LocalStore::open(dir, cluster, NEW).err().expect("the directory was opened")
}

/// Puts a block and returns its bytes.
fn put(store: &LocalStore, stripe: u64, len: u64) -> (weft_types::BlockMeta, Vec<u8>) {
    let (meta, bytes) = (conformance::block(CLUSTER, stripe, len), conformance::pattern(len));
    let mut writer = store.create(&meta).unwrap();
    writer.write_at(0, &bytes).unwrap();
    writer.finish(None).unwrap();
    (meta, bytes)
}

#[test]
fn does_what_every_store_does() {
    let dir = tempfile::tempdir().unwrap();
    let mut number = 0;
    conformance::check(CLUSTER, || {
        number += 1;
        open(&dir.path().join(number.to_string()))
    });
}

#[test]
fn a_disk_keeps_its_identity_and_its_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let (meta, bytes) = put(&open(dir.path()), 4097, 10_000);
    let again = LocalStore::open(dir.path(), CLUSTER, NewDisk { disk_id: 1, created_ms: 1 }).unwrap();
    assert_eq!(again.disk_id(), NEW.disk_id);
    assert_eq!(again.recovered().blocks, 1);
    assert_eq!(again.list().unwrap(), [meta.id]);
    assert_eq!(fs::read(dir.path().join("blocks/001/s4097-b000-c0-g1")).unwrap(), bytes, "a payload is a plain file");
}

#[test]
fn a_directory_that_is_something_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.tex"), "x").unwrap();
    let error = refused(dir.path(), CLUSTER);
    assert_eq!(error.reaction, Reaction::InvalidInput);
    assert!(error.message.contains("thesis.tex"), "{error}");

    let disk = dir.path().join("disk1");
    drop(open(&disk));
    let error = refused(&disk, ClusterId(0xc2));
    assert_eq!(error.reaction, Reaction::InvalidInput);
    assert!(error.message.contains(&CLUSTER.to_string()) && error.message.contains(&ClusterId(0xc2).to_string()), "{error}");

    let label = fs::read_to_string(disk.join("disk")).unwrap();
    fs::write(disk.join("disk"), label.replace("weft-disk 1", "weft-disk 2")).unwrap();
    assert_eq!(refused(&disk, CLUSTER).reaction, Reaction::InvalidInput, "a newer format");
    for byte in 0..label.len() {
        let mut flipped = label.clone().into_bytes();
        flipped[byte] ^= 1;
        fs::write(disk.join("disk"), &flipped).unwrap();
        refused(&disk, CLUSTER);
    }
    fs::write(disk.join("disk"), label).unwrap();
    open(&disk);
}

#[test]
fn a_flipped_byte_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (meta, bytes) = put(&store, 1, 10_000);
    let path = store.payload_path(meta.id);
    for byte in [0, 4095, 4096, 8191, 8192, 9999] {
        let mut rotten = bytes.clone();
        rotten[byte] ^= 0x10;
        fs::write(&path, &rotten).unwrap();
        let page = Span::new(byte as u64 / 4096 * 4096, (byte as u64 / 4096 * 4096 + 4096).min(10_000));
        let reader = store.open(meta.id).unwrap();
        let error = reader.read_at(0, &mut vec![0; 10_000]).unwrap_err();
        assert_eq!((error.reaction, error.block), (Reaction::Corrupt, Some(meta.id)));
        assert!(error.message.contains(&format!("bytes {}..{}", page.start, page.end)), "{error}");
        assert!(reader.read_at(byte as u64, &mut [0]).is_err(), "a read of one byte checks its page");
        assert_eq!(verify(&*reader).unwrap(), [page]);
        for other in (0..10_000u64).step_by(4096).filter(|start| *start != page.start) {
            reader.read_at(other, &mut [0; 100]).unwrap();
        }
    }
    fs::write(&path, &bytes[..5000]).unwrap();
    let reader = store.open(meta.id).unwrap();
    let error = reader.read_at(4096, &mut [0; 10]).unwrap_err();
    assert_eq!(error.reaction, Reaction::Corrupt);
    assert!(error.message.contains("the file ends at 5000"), "{error}");
    assert_eq!(verify(&*reader).unwrap(), [Span::new(4096, 10_000)]);
}
