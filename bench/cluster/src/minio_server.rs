//! A MinIO server on six directories of this machine, with its client.

use crate::{Result, Run, minio::BUCKET};
use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

pub const DRIVES: usize = 6;
pub const DATA_DRIVES: usize = 4;
const ADDRESS: &str = "127.0.0.1:19871";
const READY_WITHIN: Duration = Duration::from_secs(10);

/// A MinIO server. Dropping it stops it.
pub struct Minio<'a> {
    run: &'a Run,
    client: PathBuf,
    dir: PathBuf,
    child: Child,
}

impl<'a> Minio<'a> {
    pub fn start(run: &'a Run, server: &Path, client: PathBuf) -> Result<Self> {
        let dir = run.dir.join("minio");
        let drives: Vec<PathBuf> = (1..=DRIVES).map(|number| drive(&dir, number)).collect();
        drives.iter().try_for_each(fs::create_dir_all)?;
        let mut command = Command::new(server);
        command.args(["server", "--quiet", "--address", ADDRESS]).args(&drives);
        // MinIO accepts directories of one file system as drives only for tests.
        command.envs([("MINIO_CI_CD", "1"), ("MINIO_STORAGE_CLASS_STANDARD", "EC:2"), ("MINIO_BROWSER", "off")]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let minio = Self { run, client, dir, child };
        let mut waited = Duration::ZERO;
        while minio.client(&["make-bucket"]).is_err() {
            if waited >= READY_WITHIN {
                return Err("MinIO did not become ready".into());
            }
            thread::sleep(Duration::from_millis(500));
            waited += Duration::from_millis(500);
        }
        Ok(minio)
    }

    /// Its client with `words`.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.client);
        command.arg(ADDRESS).args(words);
        command
    }

    /// What its client prints.
    pub fn client(&self, words: &[&str]) -> Result<String> {
        Ok(self.run.finish(self.command(words))?.output)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Removes replaced data from its drives at once. MinIO itself does so every five minutes, in any turn.
    pub fn empty_trash(&self) -> Result<()> {
        for number in 1..=DRIVES {
            // A removed drive has none, and a new drive has no such directory yet.
            let Ok(entries) = fs::read_dir(drive(&self.dir, number).join(".minio.sys/tmp/.trash")) else { continue };
            for entry in entries {
                let entry = entry?;
                let removed = match entry.file_type()?.is_dir() {
                    true => fs::remove_dir_all(entry.path()),
                    false => fs::remove_file(entry.path()),
                };
                match removed {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Removes a drive that holds a data shard of an object, and returns its number.
    pub fn lose_data_drive(&self, key: &str) -> Result<usize> {
        let mut shards = Vec::with_capacity(DRIVES);
        for number in 1..=DRIVES {
            let path = drive(&self.dir, number).join(BUCKET).join(key).join("xl.meta");
            let meta = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            shards.push(shard(&meta).ok_or_else(|| format!("{} names no shard", path.display()))?);
        }
        let mut sorted = shards.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(1..=DRIVES) {
            return Err(format!("the drives hold the shards {shards:?} of {key}, and not each of {DRIVES} once").into());
        }
        let lost = 1 + shards.iter().position(|shard| *shard <= DATA_DRIVES).ok_or("no drive holds data")?;
        fs::rename(drive(&self.dir, lost), self.dir.join("gone"))?;
        Ok(lost)
    }
}

impl Drop for Minio<'_> {
    fn drop(&mut self) {
        if self.child.kill().and_then(|()| self.child.wait()).is_err() {
            eprintln!("weft-measure: MinIO, process {}, was not stopped", self.child.id());
        }
    }
}

fn drive(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("drive{number}"))
}

/// The number of the shard that a drive holds, from 1, as its xl.meta states it; data shards come first. The file is a MessagePack map:
/// the key is followed by a small number, which is one byte.
fn shard(meta: &[u8]) -> Option<usize> {
    const KEY: &[u8] = b"\xa7EcIndex";
    let at = meta.windows(KEY.len()).rposition(|bytes| bytes == KEY)?;
    meta.get(at + KEY.len()).map(|number| usize::from(*number))
}
