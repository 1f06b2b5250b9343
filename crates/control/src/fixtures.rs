//! A stripe and its nodes, for tests.

use crate::{
    Time,
    members::MemberStatus,
    view::{DiskView, NodeView, View},
};
use std::{collections::BTreeMap, time::Duration};
use weft_types::{
    BlockState, DiskNumber, Home, Layout, NodeId, NodeRecord, NodeState, Owner, PlacedBlock, Seq, StripeId, StripeLayout,
    StripeRecord, UploadId,
};

/// The length of a block of [`stripe`].
pub(crate) const BLOCK_LEN: u64 = 64 << 10;

/// The only disk of a node.
pub(crate) fn home(node: u32) -> Home {
    Home { node: NodeId(node), disk: DiskNumber(node) }
}

/// Nodes without racks; those in `down` are down.
pub(crate) fn view(nodes: u32, down: &[u32]) -> View {
    let node = |id: u32| {
        let disk = DiskView {
            number: DiskNumber(id),
            id: format!("disk-{id}").into(),
            path: "/d".into(),
            total_bytes: 1 << 40,
            free_bytes: 1 << 39,
            file_system: 0,
            failed: false,
            draining: false,
            blocks: 0,
            bytes_per_s: 0,
        };
        let (name, rack, up) = (format!("node-{id}").into(), "".into(), !down.contains(&id));
        (NodeId(id), NodeView { id: NodeId(id), name, rack, up, lost: false, suspect_for: Duration::ZERO, disks: vec![disk] })
    };
    View { nodes: (1..=nodes).map(node).collect(), now: Time::default(), ..View::default() }
}

/// A stripe of rs(4,2) with blocks on nodes 1 to 6; block `index` has the checksum `10 + index`.
pub(crate) fn stripe() -> StripeRecord {
    let layout = StripeLayout { layout: Layout::new(BLOCK_LEN, 4096, 1).unwrap(), k: 4, m: 2, data_len: 4 * BLOCK_LEN };
    let placed = |id| PlacedBlock { generation: 1, generation_high_water: 1, home: home(id), state: BlockState::Ok, copy: 0 };
    StripeRecord {
        id: StripeId(7),
        owner: Owner::Object(UploadId(3)),
        number: 0,
        layout,
        ended: true,
        seq: Seq::default(),
        blocks: (0..=u8::MAX).zip((1..=6).map(placed)).collect(),
        copies: Vec::new(),
        checksums: (0..6).map(|index| vec![10 + index]).collect(),
        kept: BTreeMap::new(),
        corrupt: BTreeMap::new(),
        incomplete: false,
    }
}

/// A node in a rack: up, or silent for some seconds and in this state.
pub(crate) fn member(id: u32, rack: &str, silent: Option<(NodeState, u64)>) -> MemberStatus {
    let (state, silent_s) = silent.unwrap_or((NodeState::Up, 0));
    let record = NodeRecord {
        id: NodeId(id),
        name: format!("node-{id}").into(),
        rack: rack.into(),
        zone: String::new(),
        data_address: String::new(),
        control_address: String::new(),
        state,
        since_ms: 0,
        came_back: false,
        draining: false,
        disks: Vec::new(),
    };
    MemberStatus {
        record,
        up: silent.is_none(),
        silent_for: Duration::from_secs(silent_s),
        state_for: if state == NodeState::Up { Duration::from_secs(1_000_000) } else { Duration::from_secs(silent_s) },
        disks: BTreeMap::new(),
        coding_bytes_per_s: 0,
        fsyncs: 0,
        suspect_for: std::time::Duration::ZERO,
        suspect: None,
    }
}
