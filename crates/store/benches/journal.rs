//! The journal on a real disk, beside a bare overwrite of 4 KiB with fdatasync: how long an append takes until it is durable, how many
//! appends share a sync, and how long a full ring takes to be opened. And a patch of a block in place. `cargo bench -p weft-store --bench journal [-- DIR]`; DIR is where
//! to write.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weft_store::{
    BlockStore, Image, Journal, LocalStore, NewDisk, NewJournal, Patch, Position, RING_BYTES, RingJournal, conformance,
    journal_conformance,
};
use weft_types::{ClusterId, Layout, Seq};

const RECORD: usize = 4096;
const APPENDS: usize = 4000;
const NEW: NewDisk = NewDisk { disk_id: 1, created_ms: 0 };

fn main() {
    let root = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(root).expect("a directory to write to");
    let bare = overwrites(&dir.path().join("plain"));
    println!("4 KiB, until durable            p50 us   p99 us   appends/s   syncs/append   p50 / bare");
    println!(
        "bare overwrite, fdatasync     {:8}{:9}{:12.0}{:15.2}{:13.2}",
        us(bare[0]),
        us(bare[1]),
        1e6 / us(bare[0]) as f64,
        1.0,
        1.0
    );
    let disk = dir.path().join("disk");
    for depth in [1, 16, 64] {
        let journal = open(&disk);
        let start = now();
        let mut times: Vec<Duration> = std::thread::scope(|scope| {
            let appenders: Vec<_> = (0..depth)
                .map(|thread| {
                    scope.spawn({
                        let journal = &journal;
                        move || appends(journal, thread, APPENDS / depth as usize)
                    })
                })
                .collect();
            appenders.into_iter().flat_map(|appender| appender.join().expect("an appender")).collect()
        });
        let per_second = times.len() as f64 / start.elapsed().as_secs_f64();
        let counts = journal.counts();
        let syncs = counts.syncs as f64 / counts.appends as f64;
        let [p50, p99] = percentiles(&mut times);
        let ratio = us(p50) as f64 / us(bare[0]) as f64;
        println!("journal, {depth:2} at a time          {:8}{:9}{per_second:12.0}{syncs:15.2}{ratio:13.2}", us(p50), us(p99));
    }
    let [p50, p99] = patches(&dir.path().join("patched"));
    let ratio = us(p50) as f64 / us(bare[0]) as f64;
    println!("patch of a page in 64 MiB     {:8}{:9}{:12.0}{:15.2}{ratio:13.2}", us(p50), us(p99), 1e6 / us(p50) as f64, 2.0);
    let journal = open(&disk);
    let mut last = None;
    while let Ok(position) = journal.append(journal_conformance::block(1), &[7; RECORD], None) {
        last = Some(position);
    }
    if let Some(position) = last {
        journal.sync(position).expect("sync");
    }
    let fill = journal.fill();
    drop(journal);
    let start = now();
    let journal = open(&disk);
    let opened = start.elapsed();
    let (mut records, mut bytes) = (0u64, 0u64);
    let visit = &mut |_: Position, _, payload: &[u8]| {
        (records, bytes) = (records + 1, bytes + payload.len() as u64);
        Ok(())
    };
    journal.replay(visit).expect("replay");
    println!(
        "a ring of {} MiB, {:.0} % full, {records} records: opened in {:.2} s, replayed in {:.2} s more",
        RING_BYTES >> 20,
        fill * 100.0,
        opened.as_secs_f64(),
        (start.elapsed() - opened).as_secs_f64()
    );
}

/// Patches of one page of a block of 64 MiB: the median and the 99th percentile.
fn patches(disk: &Path) -> [Duration; 2] {
    let store = LocalStore::open(disk, ClusterId(1), NEW).expect("a disk");
    let mut meta = conformance::block(ClusterId(1), 1, 64 << 20);
    meta.stripe.layout = Layout { block_len: 64 << 20, cell_len: 64 << 20, alpha: 1 };
    let mut writer = store.create(&meta).expect("create");
    writer.write_at(0, &conformance::pattern(64 << 20)).expect("write");
    writer.finish(None).expect("finish");
    let reader = store.open(meta.id).expect("open");
    let patch = |count: usize| {
        let images = [Image { offset: (count * 37 % 16_384 * RECORD) as u64, bytes: &[count as u8; RECORD] }];
        let seq = Seq::new(1, vec![count as u64 + 1, 0]);
        let start = now();
        store.patch(&Patch { id: meta.id, images: &images, seq, data_len: 64 << 20 }).expect("patch");
        start.elapsed()
    };
    patch(0);
    let times = percentiles(&mut (1..APPENDS / 8).map(patch).collect::<Vec<_>>());
    reader.read_at(0, &mut [0; RECORD]).expect("read");
    times
}

fn open(disk: &Path) -> RingJournal {
    let store = LocalStore::open(disk, ClusterId(1), NEW).expect("a disk");
    store.open_journal(NewJournal { ring_bytes: RING_BYTES, nonce: 1 }).expect("a journal")
}

fn appends(journal: &RingJournal, thread: u64, count: usize) -> Vec<Duration> {
    let append = |_| {
        let start = now();
        let position = journal.append(journal_conformance::block(thread), &[thread as u8; RECORD], None).expect("append");
        journal.sync(position).expect("sync");
        let took = start.elapsed();
        journal.release(&[position]);
        took
    };
    (0..count).map(append).collect()
}

/// The median and the 99th percentile.
fn overwrites(path: &Path) -> [Duration; 2] {
    let file = File::options().read(true).write(true).create_new(true).open(path).expect("create");
    file.write_all_at(&vec![1; 64 << 20], 0).expect("write");
    file.sync_all().expect("sync");
    let overwrite = |at: usize| {
        let start = now();
        file.write_all_at(&[2; RECORD], (at * RECORD) as u64).expect("write");
        file.sync_data().expect("sync");
        start.elapsed()
    };
    percentiles(&mut (0..APPENDS / 2).map(overwrite).collect::<Vec<_>>())
}

fn percentiles(times: &mut [Duration]) -> [Duration; 2] {
    times.sort_unstable();
    [times[times.len() / 2], times[times.len() * 99 / 100]]
}

fn us(time: Duration) -> u128 {
    time.as_micros()
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}
