//! Whether a node or disk can be drained: whether the blocks that leave it have other homes.
//!
//! The blocks themselves are moved by the healer, one stripe after the other ([`crate::healer`]).

mod forecast;

pub use forecast::Forecast;

use crate::{crowding::Racks, members::MemberStatus, view::View};
use weft_codes::SharedCode;
use weft_types::{DiskRecord, Error, Result, counted, human_bytes};

/// A node or, with `disk`, one of its disks, which is to be drained.
#[derive(Debug, Clone, Copy)]
pub struct Drain<'a> {
    /// The node.
    pub node: &'a MemberStatus,
    /// The disk; `None`: the whole node.
    pub disk: Option<&'a DiskRecord>,
    /// Bytes that must stay free on a disk.
    pub reserve_bytes: u64,
    /// Whether any policy spreads stripes over racks.
    pub by_rack: bool,
    /// On how many nodes the widest stripe is whose data have copies; 0: none have.
    pub copies_on: usize,
}

/// What speaks against a drain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Obstacles {
    /// Why it is refused. Of a node that is up, `force` overrides them.
    pub refusals: Vec<String>,
    /// What a person should know.
    pub warnings: Vec<String>,
}

impl Drain<'_> {
    /// Checks that the blocks have other homes: enough nodes, and enough space. `codes`: those of which there are objects.
    /// Returns warnings; if `force`, what is lacking is only warned of.
    ///
    /// Whether each single stripe has a home is found out when its turn comes: one that has none waits for nodes.
    pub fn check(self, view: &View, codes: &[SharedCode], force: bool) -> Result<Vec<String>> {
        let name = &self.node.record.name;
        if let Some(down) = self.is_down() {
            return Err(Error::unavailable(down));
        }
        let Obstacles { refusals, mut warnings } = self.obstacles(view, codes);
        match refusals.first().filter(|_| !force) {
            Some(lacking) => Err(Error::unavailable(format!(
                "{lacking}; use --force to start the drain anyway: blocks without another home stay on {name} until there is one"
            ))),
            None => {
                warnings.splice(0..0, refusals);
                Ok(warnings)
            }
        }
    }

    /// All that speaks against it.
    pub fn obstacles(self, view: &View, codes: &[SharedCode]) -> Obstacles {
        if let Some(down) = self.is_down() {
            return Obstacles { refusals: vec![down], warnings: Vec::new() };
        }
        let after = self.after(view);
        let lacking = [self.lacks_nodes(&after, codes), self.lacks_space(view, &after)];
        let refusals: Vec<String> = lacking.into_iter().flatten().collect();
        let crowds = if refusals.is_empty() { self.crowds_racks(view, &after, codes) } else { None };
        let warnings = crowds.into_iter().chain(self.lacks_nodes_for_copies(&after)).collect();
        Obstacles { refusals, warnings }
    }

    fn is_down(self) -> Option<String> {
        let name = &self.node.record.name;
        (!self.node.up).then(|| {
            format!(
                "{name} is down, so its blocks cannot be copied: start its agent, or let `weft repair node {name}` rebuild them on other nodes"
            )
        })
    }

    /// The nodes once it is being drained.
    pub fn after(self, view: &View) -> View {
        let mut after = view.clone();
        let disks = after.nodes.get_mut(&self.node.record.id).into_iter().flat_map(|node| &mut node.disks);
        disks.filter(|disk| self.disk.is_none_or(|only| only.number == disk.number)).for_each(|disk| disk.draining = true);
        after
    }

    fn lacks_nodes(self, after: &View, codes: &[SharedCode]) -> Option<String> {
        // Those that are only down come back.
        let (left, name) = (Racks::of(after).nodes(), &self.node.record.name);
        let widest = codes.iter().max_by_key(|code| code.n()).filter(|code| code.n() > left)?;
        Some(format!(
            "{} puts the blocks of a stripe on {} different nodes, and without {name} only {left} can keep blocks: add nodes first",
            widest.spec(),
            widest.n(),
        ))
    }

    /// Only a warning: the other blocks can move.
    fn lacks_nodes_for_copies(self, after: &View) -> Option<String> {
        let (left, name) = (Racks::of(after).nodes(), &self.node.record.name);
        (self.copies_on > left).then(|| {
            format!(
                "stripes and the copies of their data are on up to {} different nodes, and without {name} only {left} can keep blocks: of \
                 stripes with that many copies, blocks stay on {name} until there are more nodes",
                self.copies_on
            )
        })
    }

    /// Compares the space that is used there with the free space elsewhere. Where disks share a file system with others, it is not known what
    /// uses the space.
    fn lacks_space(self, view: &View, after: &View) -> Option<String> {
        let here = view.node(self.node.record.id)?;
        let leaving = here.disks.iter().filter(|disk| !disk.failed && self.disk.is_none_or(|only| only.number == disk.number));
        let mut used = 0u64;
        for disk in leaving {
            let shares = |other: &&crate::view::DiskView| disk.file_system != 0 && other.file_system == disk.file_system;
            if view.nodes.values().flat_map(|node| &node.disks).filter(shares).count() > 1 {
                return None;
            }
            used = used.saturating_add(disk.total_bytes.saturating_sub(disk.free_bytes));
        }
        let free = after
            .usable_disks()
            .into_iter()
            .map(|(_, disk, sharers)| disk.free_bytes.saturating_sub(self.reserve_bytes) / sharers);
        let free: u64 = free.fold(0, u64::saturating_add);
        (free < used).then(|| {
            let (used, free) = (human_bytes(used), human_bytes(free));
            format!("about {used} must move, and other disks have {free} free: add nodes or disks first")
        })
    }

    /// Warns if racks could keep the stripes of a code before, and cannot afterwards.
    fn crowds_racks(self, view: &View, after: &View, codes: &[SharedCode]) -> Option<String> {
        let (before, after) = (Racks::of(view), Racks::of(after));
        let crowded = |code: &&SharedCode| before.fit(code.n(), code.tolerance()) && !after.fit(code.n(), code.tolerance());
        let code = codes.iter().filter(|_| self.by_rack).find(crowded)?;
        Some(format!(
            "with the nodes that are left, some rack must keep more than {} of a stripe of {}: the loss of that rack loses data",
            counted(code.tolerance() as u64, "block"),
            code.spec()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{self, member};
    use weft_types::{DiskNumber, NodeId, Reaction};

    fn codes(specs: &[&str]) -> Vec<SharedCode> {
        specs.iter().map(|spec| weft_codes::parse(spec).unwrap()).collect()
    }

    /// Drains the last of some nodes, each in a rack of its own unless `racks` says otherwise.
    fn check(view: &View, specs: &[&str], force: bool) -> Result<Vec<String>> {
        let last = *view.nodes.keys().last().unwrap();
        let status = MemberStatus { up: view.nodes[&last].up, ..member(last.0, "", None) };
        Drain { node: &status, disk: None, reserve_bytes: 10, by_rack: true, copies_on: 0 }.check(view, &codes(specs), force)
    }

    fn view(nodes: u32) -> View {
        let mut view = fixtures::view(nodes, &[]);
        view.nodes.values_mut().for_each(|node| node.rack = format!("r{}", node.id.0).into());
        view
    }

    #[test]
    fn a_node_is_drained_if_its_blocks_have_other_homes() {
        assert_eq!(check(&view(7), &["rs(4,2)", "rs(2,1)"], false), Ok(vec![]));
        let error = check(&view(6), &["rs(2,1)", "rs(4,2)"], false).unwrap_err();
        assert_eq!(error.reaction, Reaction::Unavailable);
        let says = "rs(4,2) puts the blocks of a stripe on 6 different nodes, and without node-6 only 5 can keep blocks";
        assert!(error.message.contains(says) && error.message.contains("--force"), "{error}");
        assert_eq!(check(&view(6), &["rs(2,1)"], false), Ok(vec![]), "a code without objects needs no nodes");
        assert!(check(&view(6), &["rs(4,2)"], true).unwrap()[0].contains(says));
        let status = member(6, "", None);
        let obstacles = Drain { node: &status, disk: None, reserve_bytes: 10, by_rack: true, copies_on: 0 }
            .obstacles(&view(6), &codes(&["rs(4,2)"]));
        assert!(obstacles.refusals.len() == 1 && obstacles.refusals[0].contains(says) && obstacles.warnings.is_empty());
        let mut down = view(7);
        down.nodes.get_mut(&NodeId(3)).unwrap().up = false;
        assert_eq!(check(&down, &["rs(4,2)"], false), Ok(vec![]), "a node that is only down comes back");
        down.nodes.get_mut(&NodeId(3)).unwrap().lost = true;
        assert!(check(&down, &["rs(4,2)"], false).is_err());
        down.nodes.get_mut(&NodeId(7)).unwrap().up = false;
        assert!(check(&down, &["rs(2,1)"], true).unwrap_err().message.contains("`weft repair node node-7`"));
    }

    #[test]
    fn too_few_other_nodes_for_copies_are_warned_of() {
        let status = member(7, "", None);
        let warned = |copies_on| {
            let drain = Drain { node: &status, disk: None, reserve_bytes: 10, by_rack: true, copies_on };
            drain.check(&view(7), &codes(&["rs(2,2)"]), false).unwrap()
        };
        assert_eq!(warned(6), Vec::<String>::new());
        let says = "stripes and the copies of their data are on up to 7 different nodes, and without node-7 only 6 can keep";
        assert!(warned(7).len() == 1 && warned(7)[0].starts_with(says), "{:?}", warned(7));
    }

    #[test]
    fn what_must_move_must_fit_elsewhere() {
        let mut full = view(4);
        full.nodes.values_mut().for_each(|node| (node.disks[0].total_bytes, node.disks[0].free_bytes) = (1_000, 200));
        let error = check(&full, &["rs(2,1)"], false).unwrap_err();
        assert!(error.message.starts_with("about 800 B must move, and other disks have 570 B free: add nodes"), "{error}");
        full.nodes.values_mut().for_each(|node| node.disks[0].file_system = 7);
        assert_eq!(check(&full, &["rs(2,1)"], false), Ok(vec![]), "what uses a shared file system is not known");
    }

    #[test]
    fn a_drain_that_crowds_racks_is_warned_of() {
        let mut racks = view(7);
        racks.nodes.values_mut().zip(["a", "a", "b", "b", "c", "c", "d"]).for_each(|(node, rack)| node.rack = rack.into());
        assert_eq!(check(&racks, &["rs(4,2)"], false), Ok(vec![]));
        racks.nodes.values_mut().zip(["a", "a", "a", "b", "b", "b", "c"]).for_each(|(node, rack)| node.rack = rack.into());
        assert_eq!(check(&racks, &["rs(4,2)"], false), Ok(vec![]), "they were crowded before");
        racks.nodes.values_mut().zip(["a", "a", "a", "b", "b", "c", "c"]).for_each(|(node, rack)| node.rack = rack.into());
        let warned = check(&racks, &["rs(4,2)"], false).unwrap();
        assert!(warned[0].contains("more than 2 blocks of a stripe of rs(4,2)"), "{warned:?}");
    }

    #[test]
    fn a_disk_leaves_its_node_in_service() {
        let mut view = view(6);
        let disks = &mut view.nodes.get_mut(&NodeId(6)).unwrap().disks;
        disks.push(crate::view::DiskView { number: DiskNumber(60), ..disks[0].clone() });
        let mut status = member(6, "", None);
        let disk = |number| DiskRecord {
            number: DiskNumber(number),
            id: "d".into(),
            path: "/d".into(),
            total_bytes: 1,
            failed: false,
            draining: false,
            kept: false,
            retired: false,
            moved_to: None,
        };
        status.record.disks = vec![disk(6), disk(60)];
        let drain = Drain { node: &status, disk: Some(&status.record.disks[1]), reserve_bytes: 0, by_rack: true, copies_on: 0 };
        assert_eq!(drain.check(&view, &codes(&["rs(4,2)"]), false), Ok(vec![]));
        assert!(Drain { disk: None, ..drain }.check(&view, &codes(&["rs(4,2)"]), false).is_err());
    }
}
