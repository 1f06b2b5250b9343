//! The ways by which updates travel, as the coordinator plans them: a benchmark must measure the scheme that it names.

use serde::Serialize;
use weft_client::api;
use weft_schemes::AUTO;
use weft_types::{Error, Result};

/// The scheme by which changes go straight to all nodes, without a route.
pub(super) const STRAIGHT: &str = "concurrent-star";

/// How the changes of an update travel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Way {
    /// The stripe, from 0.
    pub(super) stripe: usize,
    /// The block that changes.
    pub(super) block: u32,
    /// The node of the client, which is that of the block.
    pub(super) client: String,
    /// As planned.
    pub(super) scheme: String,
    /// Each node sends to one other after another.
    pub(super) in_turn: bool,
    /// Bytes that are sent at once.
    pub(super) slice_size: u64,
    /// From this length on, updates take this way.
    pub(super) from_bytes: Option<u64>,
    /// From node to node.
    pub(super) hops: Vec<[String; 2]>,
}

impl Way {
    /// As the coordinator explains it. `node`: the node of the block with an index.
    pub(super) fn of(it: &api::ExplainedUpdate, (stripe, client): (usize, &str), node: impl Fn(u32) -> String) -> Result<Self> {
        let json = std::str::from_utf8(&it.plan).map_err(|_| Error::fatal("the coordinator's plan is not text"))?;
        let considered = if json.is_empty() { Vec::new() } else { weft_plan::from_json(json)?.considered };
        let at = |block: Option<&api::UpdatedBlock>| block.map(|block| node(block.index)).unwrap_or_default();
        Ok(Self {
            stripe,
            block: it.index,
            client: client.to_owned(),
            scheme: considered.first().map(|chosen| chosen.scheme.clone()).unwrap_or_default(),
            in_turn: it.in_turn,
            slice_size: it.slice_len,
            from_bytes: it.from_bytes,
            hops: it.hops.iter().map(|hop| [at(hop.from.as_ref()), at(hop.to.as_ref())]).collect(),
        })
    }

    /// Fails if an update of so many bytes does not take the scheme that is asked for. To one dependent block there is one way only, and `auto`
    /// takes what it likes. `no_routes`: why the stripe has no routes, if it has none.
    pub(super) fn check(&self, asked: &str, dependents: usize, bytes: u64, no_routes: &str) -> Result<()> {
        let expected = if dependents < 2 { STRAIGHT } else { asked };
        let Self { stripe, block, scheme, .. } = self;
        let wrong = |why: String| {
            Err(Error::unavailable(format!("updates of block {block} of stripe {stripe} would not be sent by {expected}: {why}")))
        };
        if expected == STRAIGHT {
            return if scheme == STRAIGHT { Ok(()) } else { wrong(format!("{scheme} is planned")) };
        }
        if !no_routes.is_empty() {
            return wrong(no_routes.to_owned());
        }
        if expected == AUTO {
            return Ok(());
        }
        if self.from_bytes.is_none_or(|from| from > bytes) {
            return wrong("no route is planned".to_owned());
        }
        if scheme == expected { Ok(()) } else { wrong(format!("{scheme} is planned")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_is_measured_only_if_it_is_used() {
        let way = |scheme: &str, from_bytes: Option<u64>| Way {
            stripe: 0,
            block: 1,
            client: "node-02".to_owned(),
            scheme: scheme.to_owned(),
            in_turn: false,
            slice_size: 4096,
            from_bytes,
            hops: vec![["node-02".to_owned(), "node-05".to_owned()]],
        };
        let says = |way: &Way, asked: &str, dependents: usize, no_routes: &str| {
            way.check(asked, dependents, 4096, no_routes).map_err(|error| error.message)
        };
        assert_eq!(says(&way("tree", Some(0)), "tree", 3, ""), Ok(()));
        assert_eq!(says(&way(STRAIGHT, None), STRAIGHT, 3, ""), Ok(()));
        assert_eq!(says(&way(STRAIGHT, None), "tree", 1, ""), Ok(()), "there is one way to one block");
        assert_eq!(says(&way(STRAIGHT, None), AUTO, 3, ""), Ok(()));
        for (way, asked, no_routes, why) in [
            (way(STRAIGHT, None), "tree", "", "no route is planned"),
            (way("tree", Some(8192)), "tree", "", "no route is planned"),
            (way("star", Some(0)), "tree", "", "star is planned"),
            (way("tree", Some(0)), STRAIGHT, "", "tree is planned"),
            (way(STRAIGHT, None), "tree", "node-03 is down", "node-03 is down"),
            (way(STRAIGHT, None), AUTO, "node-03 is down", "node-03 is down"),
        ] {
            let told = says(&way, asked, 3, no_routes).unwrap_err();
            assert!(told.contains(why), "{told}");
        }
    }
}
