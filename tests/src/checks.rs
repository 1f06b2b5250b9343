//! Invariants that must hold after any scenario. The checks know only the answers that clients got.

use crate::{Failure, cluster::CLUSTER};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};
use weft_client::{Client, GetOptions, api::ObjectReply};
use weft_store::{BlockStore, LocalStore, NewDisk, verify};
use weft_types::{BlockId, Reaction, StripeId};

/// The answers that clients got, by key.
#[derive(Debug, Clone, Default)]
pub struct Acknowledged {
    /// Objects that are durable.
    pub objects: BTreeMap<String, Vec<u8>>,
    /// Puts with an unknown outcome: either all of the new object is there, or the previous one.
    pub unknown: BTreeMap<String, Vec<u8>>,
}

impl Acknowledged {
    /// Whether an object with this key may have these bytes.
    fn allows(&self, key: &str, bytes: &[u8]) -> bool {
        [&self.objects, &self.unknown].iter().any(|objects| objects.get(key).is_some_and(|expected| expected == bytes))
    }
}

/// Reads every object by `scheme` and compares it with what was put. Returns how many blocks were rebuilt for that.
pub async fn check_readable(client: &Client, bucket: &str, known: &Acknowledged, scheme: &str) -> Result<usize, Failure> {
    let mut rebuilt = 0;
    for key in known.objects.keys() {
        let mut bytes = Vec::new();
        let options = GetOptions { scheme: scheme.into(), ..GetOptions::default() };
        let got = client.get(bucket, key, &mut bytes, &options).await;
        let got =
            got.map_err(|error| Failure(format!("{bucket}/{key} was acknowledged but cannot be read by {scheme}: {error}")))?;
        if !known.allows(key, &bytes) {
            return Err(Failure(format!("{bucket}/{key}, read by {scheme}, has other bytes than were put")));
        }
        rebuilt += got.rebuilt.len();
    }
    Ok(rebuilt)
}

/// Visible objects must be the acknowledged ones; a put with an unknown outcome is visible completely or not at all.
pub async fn check_visible(client: &Client, bucket: &str, known: &Acknowledged) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    let mut listing = client.list(bucket, "");
    while let Some(page) = listing.next_page().await? {
        seen.extend(page.into_iter().map(|object| object.key));
    }
    for key in known.objects.keys() {
        if !seen.contains(key) {
            return Err(Failure(format!("{bucket}/{key} was acknowledged but is not listed")));
        }
    }
    for key in seen.iter().filter(|key| !known.objects.contains_key(*key)) {
        let mut bytes = Vec::new();
        match client.get(bucket, key, &mut bytes, &GetOptions::default()).await {
            Ok(_) if known.allows(key, &bytes) => {}
            Ok(_) => return Err(Failure(format!("{bucket}/{key} is visible, but its put was not acknowledged"))),
            Err(error) if error.reaction == Reaction::NotFound => {}
            Err(error) => return Err(Failure(format!("{bucket}/{key} is visible but cannot be read: {error}"))),
        }
    }
    Ok(())
}

/// Every stripe must be at full strength: all blocks good, no two of them on one node.
pub async fn check_apart(client: &Client, bucket: &str, known: &Acknowledged) -> Result<(), Failure> {
    for key in known.objects.keys() {
        for stripe in client.stat(bucket, key).await?.stripes {
            let blocks = || stripe.blocks.iter().chain(&stripe.copies);
            if let Some(bad) = blocks().find(|block| block.state != "ok") {
                return Err(Failure(format!("block {} of stripe {} of {key} is {}", bad.index, stripe.id, bad.state)));
            }
            let nodes: BTreeSet<u32> = blocks().map(|block| block.node).collect();
            if nodes.len() < blocks().count() {
                return Err(Failure(format!("stripe {} of {key} has two blocks on one node", stripe.id)));
            }
        }
    }
    Ok(())
}

/// The disks must contain exactly what the metadata says, intact unless known to be spoiled; and no block was ever quarantined as an
/// orphan. Unfinished puts and repairs from before a restart of the coordinator are quarantined as garbage.
pub fn check_disks(disks: &[PathBuf], objects: &[ObjectReply], spoiled: &BTreeSet<(PathBuf, BlockId)>) -> Result<(), Failure> {
    let mut placed: BTreeMap<String, BTreeSet<BlockId>> = BTreeMap::new();
    for stripe in objects.iter().flat_map(|object| &object.stripes) {
        for block in stripe.blocks.iter().chain(&stripe.copies) {
            if block.state != "ok" {
                return Err(Failure(format!("block {} of stripe {} is {}", block.index, stripe.id, block.state)));
            }
            let index = u8::try_from(block.index).map_err(|_| Failure(format!("a block {}", block.index)))?;
            let copy = u8::try_from(block.copy).map_err(|_| Failure(format!("a copy {}", block.copy)))?;
            let id = BlockId { stripe: StripeId(stripe.id), index, copy, generation: block.generation };
            placed.entry(block.disk.clone()).or_default().insert(id);
        }
    }
    let all: BTreeSet<BlockId> = placed.values().flatten().copied().collect();
    for dir in disks {
        let store = LocalStore::open(dir, CLUSTER, NewDisk { disk_id: 0, created_ms: 0 })?;
        let expected = placed.remove(&format!("{:032x}", store.disk_id())).unwrap_or_default();
        let found: BTreeSet<BlockId> = store.list()?.into_iter().collect();
        let names = |blocks: Vec<&BlockId>| blocks.iter().map(|id| id.to_string()).collect::<Vec<_>>().join(" ");
        let (stray, lost) = (names(found.difference(&expected).collect()), names(expected.difference(&found).collect()));
        if !stray.is_empty() || !lost.is_empty() {
            return Err(Failure(format!("{}: stray blocks [{stray}], missing blocks [{lost}]", place(dir))));
        }
        for id in found {
            if !verify(store.open(id)?.as_ref())?.is_empty() && !spoiled.contains(&(dir.clone(), id)) {
                return Err(Failure(format!("{}: block {id} is corrupt", place(dir))));
            }
        }
        for it in store.quarantine_places()?.into_iter().filter(|place| place.since_ms.is_some()) {
            let why = fs::read_to_string(dir.join("quarantine").join(&it.name).join("reason")).unwrap_or_default();
            if !why.contains("garbage") {
                return Err(Failure(format!("{}: {} was quarantined as an orphan: {why}", place(dir), it.name)));
            }
            if let Some(needed) = all.iter().find(|id| it.name.starts_with(&format!("{id}."))) {
                return Err(Failure(format!("{}: {needed} was quarantined, but an object needs it: {why}", place(dir))));
            }
        }
        check_files(dir, &store)?;
    }
    match placed.keys().next() {
        Some(disk) => Err(Failure(format!("there are blocks on disk {disk}, which does not exist"))),
        None => Ok(()),
    }
}

/// Two files for each block, and no partly written ones.
fn check_files(dir: &Path, store: &LocalStore) -> Result<(), Failure> {
    let cannot = |error: std::io::Error| Failure(format!("{}: {error}", place(dir)));
    if let Some(entry) = fs::read_dir(dir.join("tmp")).map_err(cannot)?.next() {
        return Err(Failure(format!("{}: {:?} was left behind", place(dir), entry.map_err(cannot)?.file_name())));
    }
    let mut files = BTreeSet::new();
    for group in fs::read_dir(dir.join("blocks")).map_err(cannot)? {
        for file in fs::read_dir(group.map_err(cannot)?.path()).map_err(cannot)? {
            files.insert(file.map_err(cannot)?.path());
        }
    }
    for id in store.list()? {
        files.remove(&store.payload_path(id));
        files.remove(&store.sidecar_path(id));
    }
    match files.first() {
        Some(file) => Err(Failure(format!("{} belongs to no block", place(file)))),
        None => Ok(()),
    }
}

/// A path without the directory of this run.
fn place(path: &Path) -> String {
    let parts: Vec<String> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let from = parts.iter().position(|part| part.starts_with("agent-")).unwrap_or(0);
    parts[from..].join("/")
}
