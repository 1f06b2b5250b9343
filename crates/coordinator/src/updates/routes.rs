//! The routes of updates in place: how their deltas travel from the node of a data block to those that patch a block. Clients get them with their
//! leases. [`weft_control::planning`] makes them.

use super::{
    append,
    open::{named, open_record},
    tell::node_of,
};
use crate::{compute::compute, shared::Shared};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::time::Instant;
use weft_codes::SharedCode;
use weft_control::{
    options::UpdateWay,
    planning::{UpdateRoute, Updating, Weighed, weigh_update},
    updates::members,
};
use weft_plan::Class;
use weft_proto::{
    ROUTES_SINCE,
    updates::{Hop, Route},
    v1,
};
use weft_types::{BlockId, Error, Reaction, Result, StripeRecord};

/// What a client chose; without a choice, everything is left open.
pub(super) fn way(asked: Option<&v1::UpdateWay>) -> Result<UpdateWay> {
    let asked = asked.cloned().unwrap_or_default();
    UpdateWay::parse(&asked.scheme, &asked.path, asked.seed, asked.slice_len)
}

/// How long a lease waits for its routes. Without them, deltas go straight to each node, and the next lease has them.
const ROUTES_WITHIN: Duration = Duration::from_millis(100);
/// How long routes of one stripe are planned; and how long a lease waits for them if the client has named a scheme. The updates of data blocks whose
/// turn has not come by then go straight.
const PLANNED_WITHIN: Duration = Duration::from_secs(5);

/// The routes for updates of an open stripe with these members. There may be none, and then deltas go straight to each node. A client that says
/// nothing about the way knows no routes.
pub(super) async fn routes(
    shared: &Arc<Shared>,
    code: &SharedCode,
    (stripe, members): (&StripeRecord, &[BlockId]),
    way: Option<&UpdateWay>,
) -> Vec<v1::UpdateRoute> {
    let Some(way) = way.filter(|way| !way.is_straight() && unable(shared, stripe, members).is_none()) else {
        return Vec::new();
    };
    let id = stripe.id;
    // Updates need no routes.
    let failed = move |index: u8, error: &Error| {
        tracing::warn!(stripe = %id, index, %error, "cannot plan how updates of a block travel: they go straight to each node");
    };
    let routes = match with(shared, (stripe, members), way, |updating| updating.known_routes(code)) {
        Some(routes) => routes,
        None => {
            let within = if way.is_left_open() { ROUTES_WITHIN } else { PLANNED_WITHIN };
            let (planning, code, stripe, members, way) =
                (Arc::clone(shared), code.clone(), stripe.clone(), members.to_vec(), way.clone());
            let plan = move || {
                let until = Instant::now() + PLANNED_WITHIN;
                with(&planning, (&stripe, &members), &way, |updating| {
                    // Another stripe on the same nodes may have come first.
                    updating.known_routes(&code).unwrap_or_else(|| updating.routes(&code, || Instant::now() >= until, failed))
                })
            };
            shared.updates.planners.plan(within, plan).await.unwrap_or_default()
        }
    };
    let encoded = |route: UpdateRoute| {
        let index = route.index;
        encoded(route).inspect_err(|error| failed(index, error)).ok()
    };
    routes.into_iter().filter_map(encoded).collect()
}

/// Makes plans with what is known of the network.
fn with<T>(
    shared: &Shared,
    (stripe, members): (&StripeRecord, &[BlockId]),
    way: &UpdateWay,
    make: impl FnOnce(&Updating<'_>) -> T,
) -> T {
    let layout = &stripe.layout.layout;
    let run = shared.run(Class::Foreground.into(), layout, layout.cell_len);
    compute(|| make(&Updating { stripe, members, way, network: &shared.network(), known: &shared.known, run }))
}

/// Why these blocks' nodes cannot pass on what others send them: one of them runs an earlier version, or none is known.
fn unable(shared: &Shared, stripe: &StripeRecord, members: &[BlockId]) -> Option<String> {
    let why = |block: &BlockId| {
        let node = node_of(stripe, block);
        match node.and_then(|node| shared.members.session(node)) {
            Some(session) if session.protocol >= ROUTES_SINCE => None,
            Some(session) => Some(format!("agent {} is of an earlier version", session.record.name)),
            None => {
                Some(node.map_or_else(|| format!("{block} has no node"), |node| format!("{} is down", shared.members.name(node))))
            }
        }
    };
    members.iter().find_map(why)
}

fn encoded(route: UpdateRoute) -> Result<v1::UpdateRoute> {
    let UpdateRoute { index, scheme, hops, in_turn, slice_len, from_bytes } = route;
    let slice_len = u32::try_from(slice_len).unwrap_or(Route::SLICE_LEN_MAX).clamp(Route::SLICE_LEN_MIN, Route::SLICE_LEN_MAX);
    let route = Route { hops: hops.into_iter().map(|(from, to)| Hop { from, to }).collect(), in_turn, slice_len };
    let origin = route.hops.first().map(|hop| hop.from).ok_or_else(|| Error::fatal("internal error: a route without hops"))?;
    route.check(origin)?;
    let route = postcard::to_allocvec(&route).map_err(|error| Error::fatal(format!("cannot encode a route: {error}")))?;
    Ok(v1::UpdateRoute { index: index.into(), route, scheme, from_bytes })
}

/// The most data blocks of one question.
const BLOCKS_MAX: usize = 256;

/// How the deltas of updates of a stripe would travel. Opens nothing.
pub(crate) async fn explain(shared: &Shared, asked: v1::ExplainUpdateRequest) -> Result<v1::ExplainUpdateReply> {
    let way = way(asked.way.as_ref())?;
    if asked.indexes.len() > BLOCKS_MAX {
        return Err(Error::invalid(format!(
            "{} data blocks are too many for one request: at most {BLOCKS_MAX}",
            asked.indexes.len()
        )));
    }
    let (object, stripe) = named(shared, &asked.bucket, &asked.key, (asked.version, asked.number)).await?;
    append::require_allowed(shared, &object.name).await?;
    let place = |error: Error| error.object(&object.name);
    let code = shared.code(&object.code).map_err(place)?;
    let members = match open_record(shared, stripe.id).await.map_err(place)? {
        Some(record) => record.term.sealed.members.clone(),
        None => compute(|| members(&code, &stripe, &shared.members.view(), (&BTreeSet::new(), shared.config.write_min)))
            .map_err(place)?,
    };
    let of = (&stripe, &members[..]);
    let no_routes = unable(shared, &stripe, &members).unwrap_or_default();
    let explained = with(shared, of, &way, |updating| {
        let explained = asked.indexes.iter().map(|index| weighed(&code, updating, *index, asked.bytes, &no_routes));
        explained.collect::<Result<Vec<_>>>()
    });
    Ok(v1::ExplainUpdateReply { blocks: explained.map_err(place)? })
}

fn weighed(code: &SharedCode, updating: &Updating<'_>, index: u32, bytes: u64, no_routes: &str) -> Result<v1::ExplainedUpdate> {
    let block = u8::try_from(index).map_err(|_| Error::invalid(format!("there is no data block {index}")))?;
    let straight = UpdateWay::straight();
    let updating = if no_routes.is_empty() { *updating } else { Updating { way: &straight, ..*updating } };
    let weighed = match weigh_update(code, &updating, block, bytes) {
        // It has no node for now, or another one's is not known. The other blocks may have theirs.
        Err(error) if error.reaction == Reaction::Retry => {
            return Ok(v1::ExplainedUpdate { index, no_routes: error.message, ..v1::ExplainedUpdate::default() });
        }
        weighed => weighed?,
    };
    let Weighed { planned, hops, in_turn, slice_len, route } = weighed;
    let at = |block: BlockId| v1::UpdatedBlock {
        index: block.index.into(),
        copy: block.copy.into(),
        node: node_of(updating.stripe, &block).map_or(0, |node| node.0),
    };
    Ok(v1::ExplainedUpdate {
        index,
        hops: hops.into_iter().map(|(from, to)| v1::UpdateHop { from: Some(at(from)), to: Some(at(to)) }).collect(),
        in_turn,
        slice_len,
        from_bytes: route.map(|route| route.from_bytes),
        plan: planned.json()?,
        no_routes: no_routes.to_owned(),
    })
}
