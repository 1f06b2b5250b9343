//! Disks that another node had: they are kept aside until the coordinator agrees that they are this node's, and then join.

use super::{Disks, JournalledDisk, Standing};
use std::collections::BTreeMap;

impl Disks {
    /// The coordinator's answer: the disks to keep aside, with the reasons, by id. Returns the numbers of those that may join now, and of those
    /// that are newly kept aside.
    pub(crate) fn sort(&self, aside: &BTreeMap<String, String>) -> (Vec<usize>, Vec<usize>) {
        let (mut joining, mut leaving) = (Vec::new(), Vec::new());
        for (number, disk) in self.0.iter().enumerate().filter(|(_, disk)| !disk.id().is_empty()) {
            let why = aside.get(disk.id());
            let mut standing = disk.standing();
            match why {
                Some(why) => {
                    let now = Standing::Aside(why.clone());
                    if *standing != now {
                        tracing::warn!(disk = %disk.path.display(), why, "keeps a disk aside: none of its blocks is served");
                        leaving.push(number);
                    }
                    *standing = now;
                }
                None if *standing == Standing::Ours || disk.open.get().is_none() => {}
                None => {
                    *standing = Standing::Joining;
                    joining.push(number);
                }
            }
        }
        (joining, leaving)
    }

    /// What updates in place need of a disk that joins.
    pub(crate) fn joining(&self, number: usize) -> Option<JournalledDisk> {
        let disk = &self.0[number];
        let open = disk.any_opened().ok()?;
        (*disk.standing() == Standing::Joining).then(|| open.journalled(&disk.path))
    }

    /// The id of a disk, by its number.
    pub(crate) fn id(&self, number: usize) -> &str {
        self.0[number].id()
    }

    /// The journal of a disk that joins is open: it serves from now on, unless it is kept aside again.
    pub(crate) fn joined(&self, number: usize) {
        let mut standing = self.0[number].standing();
        if *standing == Standing::Joining {
            *standing = Standing::Ours;
        }
    }
}
