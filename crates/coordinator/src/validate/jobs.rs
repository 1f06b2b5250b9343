//! Checks requests for jobs: repairs of nodes, and conversions.

use super::{NAME_BYTES_MAX, name, object};
use crate::config::CoordinatorConfig;
use std::collections::BTreeSet;
use weft_control::{
    node_repair::usual_concurrency,
    options::SLICE_BYTES_MAX,
    schedule::{Assigning, STREAMS_MAX},
};
use weft_proto::v1;
use weft_schemes::Kind;
use weft_types::{Balance, ByteSize, Conversion, Error, HelperSelect, NodeId, NodeRepair, PAGE_LEN, Prefer, Result, Scrub};

/// The most stripes of a job that can be asked for at the same time: more would take memory on many nodes and time from
/// readers.
const JOB_CONCURRENCY_MAX: u32 = 64;
// So the chains of a scrub need no other limit on streams.
const _: () = assert!(JOB_CONCURRENCY_MAX as u64 <= STREAMS_MAX);
/// The default for concurrent stripes of a conversion: each is moved whole, and no user waits for it.
const CONVERSION_CONCURRENCY: u32 = 2;
/// The most requestors that can be named.
const TO_NODES_MAX: usize = 1024;

/// Parses a request to make the fill of disks even.
pub(crate) fn balance(asked: &v1::BalanceRequest) -> Result<Balance> {
    let concurrency = asked.concurrency;
    if concurrency > JOB_CONCURRENCY_MAX {
        return Err(Error::invalid(format!(
            "blocks of 1 to {JOB_CONCURRENCY_MAX} stripes can be moved at once, not {concurrency}"
        )));
    }
    Ok(Balance { concurrency })
}

/// Parses a request to check stripes.
pub(crate) fn scrub(asked: &v1::ScrubRequest) -> Result<Scrub> {
    let v1::ScrubRequest { bucket, key, node, concurrency } = asked;
    match (bucket.is_empty(), key.is_empty()) {
        (true, true) => {}
        (_, true) => name("bucket", bucket)?,
        _ => drop(object(bucket, key)?),
    }
    if !bucket.is_empty() && *node > 0 {
        return Err(Error::invalid("either stripes of a bucket or those of a node can be checked: name only one of them"));
    }
    if *concurrency > JOB_CONCURRENCY_MAX {
        return Err(Error::invalid(format!("1 to {JOB_CONCURRENCY_MAX} stripes can be checked at once, not {concurrency}")));
    }
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let node = Some(NodeId(*node)).filter(|node| node.0 > 0);
    Ok(Scrub { bucket: some(bucket), key: some(key), node, concurrency: *concurrency })
}

/// Parses a request to repair a node, with the settings as defaults.
pub(crate) fn repair_node(asked: &v1::RepairNodeRequest, config: &CoordinatorConfig) -> Result<NodeRepair> {
    let scheme = if asked.scheme.is_empty() { &config.scheme } else { &asked.scheme };
    weft_schemes::check_name(Kind::Repair, scheme)?;
    if !weft_schemes::rebuilds(scheme) {
        return Err(Error::invalid(format!(
            "the scheme '{scheme}' only copies existing blocks, but the blocks of this node are lost: choose another scheme, which also \
             copies blocks that have a copy"
        )));
    }
    let select = helper_select(&asked.select)?;
    let concurrency = if asked.concurrency == 0 { usual_concurrency(select) } else { asked.concurrency };
    if concurrency > JOB_CONCURRENCY_MAX {
        return Err(Error::invalid(format!("1 to {JOB_CONCURRENCY_MAX} stripes can be repaired at once, not {concurrency}")));
    }
    let prefer = prefer(&asked.prefer)?;
    if prefer != Prefer::default() && Assigning::of(select) == Assigning::Alone {
        let (select, prefer) = (select.name(), prefer.name());
        return Err(Error::invalid(format!(
            "'{select}' chooses each stripe's nodes when its turn comes, so the schemes of a job cannot be chosen by {prefer}: use \
             another way to select, such as boost"
        )));
    }
    let slice_len = asked.slice_len;
    if !slice_len.is_multiple_of(PAGE_LEN) || slice_len > SLICE_BYTES_MAX {
        let (asked, page, most) = (ByteSize(slice_len), ByteSize(PAGE_LEN), ByteSize(SLICE_BYTES_MAX));
        return Err(Error::invalid(format!("a slice of {asked} is invalid: it must be a multiple of {page}, at most {most}")));
    }
    if asked.to_nodes.len() > TO_NODES_MAX {
        return Err(Error::invalid(format!("at most {TO_NODES_MAX} nodes can be named, not {}", asked.to_nodes.len())));
    }
    if asked.to_nodes.contains(&asked.node) {
        return Err(Error::invalid("the node's blocks cannot go to the node itself: name other nodes"));
    }
    let to: BTreeSet<NodeId> = asked.to_nodes.iter().copied().map(NodeId).collect();
    Ok(NodeRepair {
        node: NodeId(asked.node),
        select,
        prefer,
        to: to.into_iter().collect(),
        scheme: scheme.clone(),
        concurrency,
        slice_len,
        force: asked.force,
    })
}

/// Parses a request to convert.
pub(crate) fn conversion(asked: &v1::ConvertRequest) -> Result<Conversion> {
    name("policy", &asked.policy)?;
    match asked.key.is_empty() {
        true => name("bucket", &asked.bucket)?,
        false => drop(object(&asked.bucket, &asked.key)?),
    }
    let concurrency = if asked.concurrency == 0 { CONVERSION_CONCURRENCY } else { asked.concurrency };
    if concurrency > JOB_CONCURRENCY_MAX {
        return Err(Error::invalid(format!("1 to {JOB_CONCURRENCY_MAX} stripes can be converted at once, not {concurrency}")));
    }
    let key = (!asked.key.is_empty()).then(|| asked.key.clone());
    let (bucket, policy) = (asked.bucket.clone(), asked.policy.clone());
    Ok(Conversion { bucket, key, policy, concurrency, bytes_per_s: asked.bytes_per_s })
}

fn helper_select(text: &str) -> Result<HelperSelect> {
    let [usual, ..] = HelperSelect::ALL;
    let found = HelperSelect::ALL.into_iter().find(|select| select.name() == text);
    found.or(text.is_empty().then_some(usual)).ok_or_else(|| {
        let shown: String = text.chars().take(NAME_BYTES_MAX).flat_map(char::escape_default).collect();
        let known = HelperSelect::ALL.map(HelperSelect::name).join(", ");
        Error::invalid(format!("'{shown}' does not select helpers: use one of {known}"))
    })
}

fn prefer(text: &str) -> Result<Prefer> {
    let [usual, ..] = Prefer::ALL;
    let found = Prefer::ALL.into_iter().find(|prefer| prefer.name() == text);
    found.or(text.is_empty().then_some(usual)).ok_or_else(|| {
        let shown: String = text.chars().take(NAME_BYTES_MAX).flat_map(char::escape_default).collect();
        Error::invalid(format!("'{shown}' is nothing to prefer: use one of {}", Prefer::ALL.map(Prefer::name).join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_of_nodes() {
        let config = CoordinatorConfig { scheme: "ppr".into(), ..CoordinatorConfig::default() };
        let asked = v1::RepairNodeRequest { node: 3, ..v1::RepairNodeRequest::default() };
        let usual = NodeRepair {
            node: NodeId(3),
            select: HelperSelect::Boost,
            prefer: Prefer::default(),
            to: vec![],
            scheme: "ppr".into(),
            concurrency: 0,
            slice_len: 0,
            force: false,
        };
        assert_eq!(repair_node(&asked, &config), Ok(usual.clone()));
        for (select, concurrency) in [(HelperSelect::Polling, 0), (HelperSelect::Lru, 4), (HelperSelect::Sequential, 1)] {
            let asked = v1::RepairNodeRequest { select: select.name().to_owned(), ..asked.clone() };
            assert_eq!(repair_node(&asked, &config), Ok(NodeRepair { select, concurrency, ..usual.clone() }));
        }
        let more = v1::RepairNodeRequest {
            select: "random".into(),
            to_nodes: vec![9, 4, 9],
            scheme: "pipeline".into(),
            concurrency: 64,
            slice_len: 4096,
            force: true,
            ..asked.clone()
        };
        let (select, to) = (HelperSelect::Random, vec![NodeId(4), NodeId(9)]);
        let (scheme, concurrency) = ("pipeline".into(), 64);
        assert_eq!(
            repair_node(&more, &config),
            Ok(NodeRepair { select, to, scheme, concurrency, slice_len: 4096, force: true, ..usual })
        );
        let refused = |wrong: v1::RepairNodeRequest, says: &str| {
            let message = repair_node(&wrong, &config).unwrap_err().message;
            assert!(message.contains(says), "{message}");
        };
        let asked = || asked.clone();
        refused(
            v1::RepairNodeRequest { select: "best\n".into(), ..asked() },
            "'best\\n' does not select helpers: use one of boost, balance, schedule, polling, sequential, lru, lru-stripe, random, index",
        );
        refused(v1::RepairNodeRequest { scheme: "pigeon".into(), ..asked() }, "pigeon");
        refused(v1::RepairNodeRequest { scheme: "direct".into(), ..asked() }, "blocks of this node are lost");
        refused(v1::RepairNodeRequest { prefer: "speed".into(), ..asked() }, "use one of whole, time, traffic");
        refused(
            v1::RepairNodeRequest { prefer: "traffic".into(), select: "lru".into(), ..asked() },
            "'lru' chooses each stripe's nodes when its turn comes",
        );
        refused(v1::RepairNodeRequest { concurrency: 65, ..asked() }, "1 to 64 stripes");
        refused(v1::RepairNodeRequest { slice_len: 5000, ..asked() }, "a multiple of 4KiB");
        refused(v1::RepairNodeRequest { slice_len: 65 << 20, ..asked() }, "at most 64MiB");
        refused(v1::RepairNodeRequest { to_nodes: vec![2, 3], ..asked() }, "cannot go to the node itself");
        refused(v1::RepairNodeRequest { to_nodes: (10..2000).collect(), ..asked() }, "at most 1024 nodes");
    }

    #[test]
    fn scrubs() {
        let asked = |bucket: &str, key: &str, node, concurrency| {
            scrub(&v1::ScrubRequest { bucket: bucket.into(), key: key.into(), node, concurrency })
        };
        let all = Scrub { bucket: None, key: None, node: None, concurrency: 0 };
        assert_eq!(asked("", "", 0, 0), Ok(all.clone()));
        assert_eq!(asked("", "", 3, 64), Ok(Scrub { node: Some(NodeId(3)), concurrency: 64, ..all.clone() }));
        assert_eq!(asked("b", "k/l", 0, 0), Ok(Scrub { bucket: Some("b".into()), key: Some("k/l".into()), ..all }));
        for (asked, says) in [
            (asked("b", "", 3, 0), "name only one of them"),
            (asked("", "", 0, 65), "1 to 64 stripes"),
            (asked("", "k", 0, 0), "bucket"),
        ] {
            let message = asked.unwrap_err().message;
            assert!(message.contains(says), "{message}");
        }
    }

    #[test]
    fn conversions() {
        let asked = |key: &str, concurrency| {
            let (bucket, key, policy) = ("photos".into(), key.into(), "cold".into());
            conversion(&v1::ConvertRequest { bucket, key, policy, concurrency, bytes_per_s: 7 })
        };
        let (bucket, policy) = ("photos".to_owned(), "cold".to_owned());
        let all = Conversion { bucket, key: None, policy, concurrency: CONVERSION_CONCURRENCY, bytes_per_s: 7 };
        assert_eq!(asked("", 0), Ok(all.clone()));
        assert_eq!(asked("a/b", 64), Ok(Conversion { key: Some("a/b".into()), concurrency: 64, ..all }));
        assert!(asked("", 65).unwrap_err().message.contains("1 to 64 stripes"));
        assert!(asked("a\n", 1).unwrap_err().message.contains("control characters"));
        assert!(conversion(&v1::ConvertRequest::default()).is_err());
    }
}
