//! Begins a balance when disks are nearly full while others have room: the shell around [`weft_control::pressure`], which decides.

use super::balance;
use crate::shared::Shared;
use std::{sync::Arc, time::Duration};
use weft_control::pressure::{Pressed, Pressure};
use weft_proto::v1;
use weft_types::Result;

/// How often to look.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

/// Looks for as long as it runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut pressure = Pressure::default();
    if !shared.config.auto_balance {
        return;
    }
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        if let Err(error) = look(&shared, &mut pressure).await
            && let Some(left_out) = shared.failures.admit("balance", &error.message)
        {
            tracing::warn!(%error, left_out, "cannot begin to move blocks from nearly full disks");
        }
    }
}

async fn look(shared: &Arc<Shared>, pressure: &mut Pressure) -> Result<()> {
    let (view, now) = (shared.members.view(), shared.started.now());
    // Of several codes, the one that leaves most free.
    let Some(n) = shared.codes_in_use().await?.iter().map(|code| code.n()).min() else { return Ok(()) };
    let kept = shared.kept_for_repair(&view, n);
    let Some(pressed) = pressure.pressed(&view, kept, shared.config.disk_reserve.0, now) else { return Ok(()) };
    // One that a person has begun, or paused, is left as it is.
    if super::shown(shared).iter().any(|job| job.kind == "balance") {
        return Ok(());
    }
    let job = balance::begin(shared, &v1::BalanceRequest::default()).await?;
    pressure.begun(now);
    let Pressed { node, path, left_percent, mean_percent } = pressed;
    let node = view.name(node);
    tracing::warn!(job = job.id, %node, path, left_percent, mean_percent, "a disk is nearly full: moving blocks to emptier disks");
    Ok(())
}
