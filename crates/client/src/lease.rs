//! The lease of a put, kept alive while its data arrives slowly.

use crate::calls::Calls;
use std::time::Duration;
use weft_proto::v1::KeepPutRequest;
use weft_types::{PutKey, Reaction};

/// The shortest interval between two keep-alive calls of a put.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Renews a put's lease three times in its length.
pub(crate) async fn keep(calls: Calls, (upload, key): (u64, PutKey), lease_ms: u32) {
    // The length of the lease is unknown: nothing to renew.
    if lease_ms == 0 {
        return;
    }
    let pause = Duration::from_millis(u64::from(lease_ms) / 3).max(PAUSE_MIN);
    loop {
        tokio::time::sleep(pause).await;
        let request = KeepPutRequest { upload, put_key: key.to_bytes(), ..KeepPutRequest::default() };
        match calls.once(request, |mut client, request| async move { client.keep_put(request).await }).await {
            Err(error) if error.reaction == Reaction::NotFound => return,
            Err(error) => tracing::debug!(%error, "a keep-alive call of a put failed"),
            Ok(_) => {}
        }
    }
}
