//! The files and directories of [`SimFiles`](super::SimFiles): what memory has, and what the disk has.

use crate::files::Open;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::path::{Component, Path};
use weft_types::Span;

const SECTOR: usize = 512;
const ROOT: usize = 0;

pub(super) struct World {
    nodes: Vec<Node>,
    /// Changes of names that are not durable, in order.
    changes: Vec<Change>,
    random: u64,
    pub(super) capacity: u64,
    /// Bytes of all files.
    pub(super) stored: u64,
}

enum Node {
    File(File),
    Dir(Dir),
}

#[derive(Default)]
struct File {
    /// What reads return.
    memory: Vec<u8>,
    /// What survives.
    disk: Vec<u8>,
    /// The sectors that a sync writes.
    dirty: BTreeSet<usize>,
    is_locked: bool,
}

#[derive(Default)]
struct Dir {
    memory: BTreeMap<OsString, usize>,
    disk: BTreeMap<OsString, usize>,
}

/// A creation, rename, link or removal: what names mean afterwards. It is durable as a whole, or not at all.
struct Change(Vec<(usize, OsString, Option<usize>)>);

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let nodes = vec![Node::Dir(Dir::default())];
        Self { nodes, changes: Vec::new(), random: seed, capacity: 1 << 40, stored: 0 }
    }

    pub(super) fn open(&mut self, path: &Path, how: Open) -> io::Result<usize> {
        let node = match self.find(path) {
            Ok(node) => node,
            Err(error) if error.kind() == ErrorKind::NotFound && matches!(how, Open::CreateOrKeep | Open::CreateEmpty) => {
                let (dir, name) = self.parent(path)?;
                self.nodes.push(Node::File(File::default()));
                let node = self.nodes.len() - 1;
                self.change(vec![(dir, name, Some(node))])?;
                node
            }
            Err(error) => return Err(error),
        };
        self.file(node)?;
        if how == Open::CreateEmpty {
            self.set_len(node, 0)?;
        }
        Ok(node)
    }

    pub(super) fn create_dir(&mut self, path: &Path) -> io::Result<()> {
        if self.exists(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let (dir, name) = self.parent(path)?;
        self.nodes.push(Node::Dir(Dir::default()));
        self.change(vec![(dir, name, Some(self.nodes.len() - 1))])
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let node = self.find(from)?;
        let ((from_dir, from_name), (to_dir, to_name)) = (self.parent(from)?, self.parent(to)?);
        self.change(vec![(from_dir, from_name, None), (to_dir, to_name, Some(node))])
    }

    pub(super) fn hard_link(&mut self, file: &Path, name: &Path) -> io::Result<()> {
        let node = self.find(file)?;
        if self.exists(name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let (dir, name) = self.parent(name)?;
        self.change(vec![(dir, name, Some(node))])
    }

    pub(super) fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        let node = self.find(path)?;
        self.file(node)?;
        let (dir, name) = self.parent(path)?;
        self.change(vec![(dir, name, None)])
    }

    pub(super) fn remove_dir(&mut self, path: &Path) -> io::Result<()> {
        let node = self.find(path)?;
        if !self.dir(node)?.memory.is_empty() {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        let (dir, name) = self.parent(path)?;
        self.change(vec![(dir, name, None)])
    }

    pub(super) fn names(&mut self, dir: &Path) -> io::Result<Vec<OsString>> {
        let node = self.find(dir)?;
        Ok(self.dir(node)?.memory.keys().cloned().collect())
    }

    pub(super) fn exists(&mut self, path: &Path) -> bool {
        self.find(path).is_ok()
    }

    pub(super) fn is_dir(&mut self, path: &Path) -> bool {
        self.find(path).and_then(|node| self.dir(node).map(drop)).is_ok()
    }

    pub(super) fn len(&self, node: usize) -> u64 {
        match self.nodes.get(node) {
            Some(Node::File(file)) => file.memory.len() as u64,
            _ => 0,
        }
    }

    pub(super) fn read(&mut self, node: usize, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let file = self.file(node)?;
        let there = usize::try_from(offset).ok().and_then(|start| file.memory.get(start..start.checked_add(buf.len())?));
        buf.copy_from_slice(there.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    pub(super) fn write(&mut self, node: usize, bytes: &[u8], offset: u64) -> io::Result<()> {
        let end = offset + bytes.len() as u64;
        if end > self.len(node) {
            self.set_len(node, end)?;
        }
        let file = self.file(node)?;
        let start = offset as usize;
        file.memory[start..start + bytes.len()].copy_from_slice(bytes);
        file.dirty.extend(start / SECTOR..(start + bytes.len()).div_ceil(SECTOR));
        Ok(())
    }

    pub(super) fn set_len(&mut self, node: usize, len: u64) -> io::Result<()> {
        let stored = self.stored - self.len(node) + len;
        if len > self.len(node) && stored > self.capacity {
            return Err(ErrorKind::StorageFull.into());
        }
        self.stored = stored;
        let file = self.file(node)?;
        let before = file.memory.len();
        file.memory.resize(len as usize, 0);
        // What is cut off reads as zeros if the file is extended again.
        let changed = before.min(len as usize) / SECTOR..before.max(len as usize).div_ceil(SECTOR);
        file.dirty.extend(changed.filter(|sector| sector * SECTOR < file.disk.len()));
        Ok(())
    }

    pub(super) fn sync(&mut self, node: usize) {
        if let Ok(file) = self.file(node) {
            for sector in std::mem::take(&mut file.dirty) {
                file.store(sector);
            }
            file.disk.resize(file.memory.len(), 0);
        }
    }

    /// Some sectors were written. Memory keeps the others, and no sync will write them.
    pub(super) fn fail_sync(&mut self, node: usize) {
        let Ok(file) = self.file(node) else { return };
        for sector in std::mem::take(&mut file.dirty) {
            if self.coin()
                && let Ok(file) = self.file(node)
            {
                file.store(sector);
            }
        }
    }

    pub(super) fn drop_cache(&mut self, node: usize, part: Span) {
        if let Ok(file) = self.file(node) {
            let end = file.memory.len().min(file.disk.len()).min(part.end as usize);
            for sector in part.start as usize / SECTOR..end.div_ceil(SECTOR) {
                if !file.dirty.contains(&sector) {
                    let range = sector * SECTOR..((sector + 1) * SECTOR).min(file.memory.len()).min(file.disk.len());
                    file.memory[range.clone()].copy_from_slice(&file.disk[range]);
                }
            }
        }
    }

    /// Makes the changes durable that concern a directory.
    pub(super) fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let node = self.find(path)?;
        self.dir(node)?;
        self.settle(|_, change| change.0.iter().any(|(dir, _, _)| *dir == node));
        Ok(())
    }

    pub(super) fn sync_all(&mut self) {
        self.settle(|_, _| true);
        (0..self.nodes.len()).for_each(|node| self.sync(node));
    }

    /// Decides what has survived, and forgets the rest.
    pub(super) fn lose_power(&mut self) {
        self.settle(|world, _| world.coin());
        self.changes.clear();
        self.stored = 0;
        for node in 0..self.nodes.len() {
            if let Ok(dir) = self.dir(node) {
                dir.memory = dir.disk.clone();
                continue;
            }
            let Ok(file) = self.file(node) else { continue };
            let (old_len, new_len) = (file.disk.len(), file.memory.len());
            for sector in std::mem::take(&mut file.dirty) {
                if self.coin()
                    && let Ok(file) = self.file(node)
                {
                    file.store(sector);
                }
            }
            let between = old_len.min(new_len).next_multiple_of(SECTOR).min(old_len.max(new_len));
            let len = [old_len, new_len, between][(self.draw() % 3) as usize];
            if let Ok(file) = self.file(node) {
                file.disk.resize(len, 0);
                (file.memory, file.is_locked) = (file.disk.clone(), false);
            }
            self.stored += len as u64;
        }
    }

    pub(super) fn try_lock(&mut self, node: usize) -> bool {
        self.file(node).is_ok_and(|file| !std::mem::replace(&mut file.is_locked, true))
    }

    pub(super) fn unlock(&mut self, node: usize) {
        if let Ok(file) = self.file(node) {
            file.is_locked = false;
        }
    }

    pub(super) fn unlock_all(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.unlock(node));
    }

    pub(super) fn flip_bit(&mut self, path: &Path, bit: u64) -> io::Result<()> {
        let node = self.find(path)?;
        let file = self.file(node)?;
        for bytes in [&mut file.memory, &mut file.disk] {
            *bytes.get_mut((bit / 8) as usize).ok_or(ErrorKind::UnexpectedEof)? ^= 1 << (bit % 8);
        }
        Ok(())
    }

    /// Changes names in memory.
    fn change(&mut self, change: Vec<(usize, OsString, Option<usize>)>) -> io::Result<()> {
        for (dir, name, node) in &change {
            set(&mut self.dir(*dir)?.memory, name, *node);
        }
        self.changes.push(Change(change));
        Ok(())
    }

    /// Makes the chosen changes durable, in order. An earlier change of the same name no longer counts.
    fn settle(&mut self, mut choose: impl FnMut(&mut Self, &Change) -> bool) {
        let mut left: Vec<Change> = Vec::new();
        for change in std::mem::take(&mut self.changes) {
            if !choose(self, &change) {
                left.push(change);
                continue;
            }
            for (dir, name, node) in change.0 {
                left.iter_mut().for_each(|earlier| earlier.0.retain(|(other, of, _)| (*other, of) != (dir, &name)));
                if let Ok(dir) = self.dir(dir) {
                    set(&mut dir.disk, &name, node);
                }
            }
        }
        self.changes = left;
    }

    fn find(&mut self, path: &Path) -> io::Result<usize> {
        let mut node = ROOT;
        for component in path.components() {
            if let Component::Normal(name) = component {
                node = *self.dir(node)?.memory.get(name).ok_or(ErrorKind::NotFound)?;
            }
        }
        Ok(node)
    }

    fn parent(&mut self, path: &Path) -> io::Result<(usize, OsString)> {
        let name = path.file_name().map(OsStr::to_owned).ok_or(ErrorKind::InvalidInput)?;
        let dir = self.find(path.parent().ok_or(ErrorKind::InvalidInput)?)?;
        self.dir(dir)?;
        Ok((dir, name))
    }

    fn file(&mut self, node: usize) -> io::Result<&mut File> {
        match self.nodes.get_mut(node) {
            Some(Node::File(file)) => Ok(file),
            _ => Err(ErrorKind::IsADirectory.into()),
        }
    }

    fn dir(&mut self, node: usize) -> io::Result<&mut Dir> {
        match self.nodes.get_mut(node) {
            Some(Node::Dir(dir)) => Ok(dir),
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn coin(&mut self) -> bool {
        self.draw() & 1 == 0
    }

    /// splitmix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl File {
    /// Copies a sector from memory to the disk. Behind the end in memory there are zeros.
    fn store(&mut self, sector: usize) {
        let (start, end) = (sector * SECTOR, (sector + 1) * SECTOR);
        let there = self.memory.get(start.min(self.memory.len())..end.min(self.memory.len())).unwrap_or_default();
        if self.disk.len() < start + there.len() {
            self.disk.resize(start + there.len(), 0);
        }
        let stop = end.min(self.disk.len());
        if start < stop {
            self.disk[start..stop].fill(0);
            self.disk[start..start + there.len()].copy_from_slice(there);
        }
    }
}

fn set(names: &mut BTreeMap<OsString, usize>, name: &OsStr, node: Option<usize>) {
    match node {
        Some(node) => _ = names.insert(name.to_owned(), node),
        None => _ = names.remove(name),
    }
}
