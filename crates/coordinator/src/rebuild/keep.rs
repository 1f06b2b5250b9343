//! Asks a node to keep what is right of a block that was left out of updates in place.

use super::Rebuilder;
use std::time::Duration;
use tonic::Code;
use weft_control::{
    Time,
    rebuild::{self, Kept},
    view::View,
};
use weft_proto::{from_status, rpc, v1};
use weft_types::{BlockId, Error, Party, Result, Span};

/// How long nodes copy blocks of one stripe: it is not opened for updates meanwhile, and an opening waits for 5 s. A plan brings what is missing then.
pub(super) const WITHIN: Duration = Duration::from_secs(4);
/// How long a node may take in addition, to open the block and make it durable.
const TIMEOUT: Duration = Duration::from_secs(10);

impl Rebuilder<'_> {
    /// Forgets what is known of a block. If that fails, the next rebuild finds out again.
    pub(super) async fn forget_kept(self, request: &rebuild::Request, index: u8) {
        let (shared, stripe) = (self.shared, &request.stripe);
        if let Err(error) = shared.meta.forget_kept(shared.epoch, stripe.id, stripe.seq.term(), index).await {
            let error = shared.meta_error(error);
            tracing::warn!(object = %request.object, stripe = %stripe.id, index, %error, "cannot forget what is known of a block");
        }
    }

    /// What the home of a block that is being written has kept of an earlier generation until then. After an error, that is unknown.
    pub(super) async fn keep(
        self,
        machine: &rebuild::Rebuild,
        block: BlockId,
        units: &[Option<u32>],
        view: &View,
        until: Time,
    ) -> Result<Kept> {
        let (shared, request) = (self.shared, machine.request());
        let new = machine.arriving().iter().find(|new| new.block == block);
        let new = new.ok_or_else(|| Error::fatal("internal error: a block that is not written is kept").block(block))?;
        let (node, copying) = (new.home.node, until.since(shared.started.now()));
        if copying.is_zero() {
            return Ok(Kept::default());
        }
        let session = shared.members.session(node);
        let session = session.ok_or_else(|| Error::replan("it went down").party(Party::Node(node)).block(block))?;
        let (units, checksums) = (0u32..).zip(units).filter_map(|(unit, known)| Some((unit, (*known)?))).unzip();
        let asked = v1::KeepBlockRequest {
            epoch: shared.epoch.0,
            registration: session.link_key.id().to_vec(),
            store: Some(self.order(request, new, view)?.spec()?),
            units,
            checksums,
            within_ms: copying.as_millis() as u64,
        };
        let len = request.stripe.layout.block_len(block.index.into());
        let within = copying + TIMEOUT;
        let mut agent = rpc::agent_client(session.channel);
        let reply = match tokio::time::timeout(within, agent.keep_block(rpc::with_deadline(asked, within))).await {
            Ok(Ok(reply)) => reply.into_inner(),
            // It is of an earlier version.
            Ok(Err(status)) if status.code() == Code::Unimplemented => v1::KeepBlockReply::default(),
            Ok(Err(status)) => return Err(from_status(&status)),
            Err(_) => {
                // So the next rebuilds do not wait for it.
                shared.members.suspect(node);
                return Err(Error::retry("no answer in time"));
            }
        };
        let v1::KeepBlockReply { arrived, kept_bytes, checksums } = reply;
        if kept_bytes > 0 {
            let (object, name) = (&request.object, &session.record.name);
            tracing::info!(%object, %block, node = %name, kept_bytes, len, "a node keeps what is right of a block");
        }
        let arrived = arrived.iter().filter(|it| it.start < it.end).map(|it| Span::new(it.start, it.end)).collect();
        Ok(Kept { arrived, checksums: (!checksums.is_empty()).then_some(checksums) })
    }
}
