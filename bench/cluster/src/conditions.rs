//! The conditions of the comparison with MinIO: without them, its figures mean nothing.

use crate::{
    Result, Run,
    minio::SMALL_READS,
    minio_server::{DATA_DRIVES, DRIVES, Minio},
    report::Condition,
};
use std::{fs, path::Path, process::Command};

/// What holds in all rounds.
pub fn of(run: &Run, minio: &Minio<'_>, server: &Path) -> Result<Vec<Condition>> {
    let mut weft = Command::new(&run.weft);
    weft.arg("--version");
    let minio_versions = minio.client(&["version", &server.to_string_lossy()])?;
    let fixed = [
        ("machine", machine()),
        ("drives", drives(&run.dir)),
        ("versions", format!("{}; {}", run.finish(weft)?.output.trim(), minio_versions.trim())),
        ("code", format!("{DATA_DRIVES} data and {} parity blocks or shards on both sides", DRIVES - DATA_DRIVES)),
        ("TLS", "MinIO: none, plain HTTP, no SHA-256 of the payload; weft: as each row says".into()),
        ("put", "acknowledged by MinIO after fdatasync, by weft after fsync of block, sidecar and directory".into()),
        ("get, discarded", "to /dev/null, from the page cache: an uncounted get comes first".into()),
        ("get, to a file", "both clients sync the file and its directory".into()),
        ("4 KiB reads", format!("one process; one object as warm-up, then {SMALL_READS} objects are put, and each is read once")),
        (
            "background work",
            "replaced data is removed at once on both sides, and each turn waits until the server is idle".into(),
        ),
    ];
    Ok(fixed.into_iter().map(|(name, text)| Condition { name: name.into(), text }).collect())
}

fn machine() -> String {
    let line = |path: &str, name: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("unknown").trim().to_owned()
    };
    let memory = line("/proc/meminfo", "MemTotal:");
    format!("Linux {}, {memory} of memory; servers and clients share all cores", line("/proc/sys/kernel/osrelease", ""))
}

/// Where all drives lie: MinIO's and weft's are directories of the same file system.
fn drives(dir: &Path) -> String {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mount = mounts.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (device, point, kind) = (words.next()?, words.next()?, words.next()?);
        dir.starts_with(point).then(|| (point.len(), format!("{kind} on {device}")))
    });
    let on = mount.max_by_key(|(len, _)| *len).map_or_else(|| "an unknown file system".to_owned(), |(_, on)| on);
    format!("{DRIVES} directories of each server in {} ({on}), one disk for all", dir.display())
}
