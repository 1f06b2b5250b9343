//! A block of 64 MiB through the store, beside a plain file: written in slices and synced, read in slices from the page cache.
//! Prints medians of interleaved rounds and their ratio. `cargo bench -p weft-store [-- DIR]`; DIR is where to write.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weft_store::{BlockStore, LocalStore, NewDisk, conformance};
use weft_types::{ClusterId, Layout};

const LEN: u64 = 64 << 20;
const SLICE: usize = 256 << 10;
const ROUNDS: u64 = 9;
const CLUSTER: ClusterId = ClusterId(1);

fn main() {
    let root = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(root).expect("a directory to write to");
    let store = LocalStore::open(&dir.path().join("disk"), CLUSTER, NewDisk { disk_id: 1, created_ms: 0 }).expect("a disk");
    let bytes = conformance::pattern(LEN);
    let plain = dir.path().join("plain");
    let mut buf = vec![0; SLICE];
    // Plain write, store write, plain read, store read.
    let mut times: [Vec<Duration>; 4] = Default::default();
    for round in 0..=ROUNDS {
        let mut meta = conformance::block(CLUSTER, 1, 1);
        meta.stripe.layout = Layout { block_len: LEN, cell_len: LEN, alpha: 1 };
        meta.stripe.data_len = LEN;
        let took = [
            time(|| {
                let file = File::create(&plain).expect("create");
                for (offset, slice) in slices(&bytes) {
                    file.write_all_at(slice, offset).expect("write");
                }
                file.sync_all().expect("sync");
            }),
            time(|| {
                let mut writer = store.create(&meta).expect("create");
                for (offset, slice) in slices(&bytes) {
                    writer.write_at(offset, slice).expect("write");
                }
                writer.finish(None).expect("finish");
            }),
            time(|| {
                let file = File::open(&plain).expect("open");
                for (offset, _) in slices(&bytes) {
                    file.read_exact_at(&mut buf, offset).expect("read");
                }
            }),
            time(|| {
                let reader = store.open(meta.id).expect("open");
                for (offset, _) in slices(&bytes) {
                    reader.read_at(offset, &mut buf).expect("read");
                }
            }),
        ];
        std::fs::remove_file(&plain).expect("remove");
        store.remove(meta.id).expect("remove");
        // The first round warms up.
        if round > 0 {
            times.iter_mut().zip(took).for_each(|(times, took)| times.push(took));
        }
    }
    let [plain_write, store_write, plain_read, store_read] = times.map(|mut times| {
        times.sort_unstable();
        LEN as f64 / f64::from(1 << 30) / times[times.len() / 2].as_secs_f64()
    });
    println!("64 MiB in slices of 256 KiB, GiB/s        plain file   store   ratio");
    println!("write, synced                             {plain_write:10.2}{store_write:8.2}{:8.2}", store_write / plain_write);
    println!("read from the page cache, checked         {plain_read:10.2}{store_read:8.2}{:8.2}", store_read / plain_read);
}

fn slices(bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    (0..).step_by(SLICE).zip(bytes.chunks(SLICE))
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}
