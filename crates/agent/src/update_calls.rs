//! The coordinator's calls about blocks that are open for updates: inspect, open, seal, settle, close.

use crate::{
    disks::Disks,
    node::Node,
    updates::{Command, Told},
    wire,
};
use rand::Rng as _;
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;
use weft_proto::{
    decode_message, encode_message,
    v1::{
        CloseBlockReply, CloseBlockRequest, InspectBlockReply, InspectBlockRequest, OpenBlockReply, OpenBlockRequest, OpenTerm,
        SealBlockReply, SealBlockRequest, Seq, SettleBlockReply, SettleBlockRequest,
    },
};
use weft_types::{BlockId, BlockMeta, Error, Reaction, Result};
use weft_update::Message;
use weft_updater::SettledBlock;

/// A block that has not answered by then waits for something that may not come; the coordinator asks again.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Before the journals are opened, which precedes the registration, it is not known which blocks are open.
async fn begin(node: &Node, epoch: u64) -> Result<()> {
    node.registration()?;
    node.obey(epoch).await
}

/// Opens a block for updates, unless tasks read it.
pub(crate) async fn open(node: &Node, request: OpenBlockRequest) -> Result<OpenBlockReply> {
    begin(node, request.epoch).await?;
    let block: BlockId = wire::decode("block", &request.block)?;
    let told = Told::decode(&request.stripe.ok_or_else(|| Error::invalid("the request does not describe the stripe"))?)?;
    if !told.sealed.members.contains(&block) {
        return Err(Error::invalid("the stripe does not name this block").block(block));
    }
    let (disks, hub) = (node.disks()?, &node.updates.hub);
    let opening = hub.fence.open(block).await?;
    let disk = disk_of(node, &disks, block).await?;
    let queue =
        node.updates.queue(&disks, disk, node.draw(|random| random.random())).await.map_err(|error| error.block(block))?;
    // Its first messages must find their way.
    hub.homes.learn(&told);
    let (sealed, data_len) = (told.sealed.clone(), request.data_len);
    let opened = queue.ask(|reply| Command::Open { opening, sealed, data_len, reply }).await;
    match &opened {
        // Another block of the stripe may have been closed meanwhile: then they were forgotten.
        Ok(()) => hub.learn(&told),
        Err(_) => hub.forget_homes(told.stripe),
    }
    opened.map(|()| OpenBlockReply {})
}

/// The number of the disk that has a block.
async fn disk_of(node: &Node, disks: &Arc<Disks>, block: BlockId) -> Result<usize> {
    match node.updates.hub.fence.disk_of(block) {
        Some(disk) => Ok(disk),
        None => {
            let look = Arc::clone(disks);
            node.seams.disk_mode.run_boxed(move || look.open_block(block).map(|(disk, _)| disk)).await
        }
    }
}

/// Tells whether a block is open, and what it contains if nothing changes it. If it is asked to, makes the journal of the disk ready first.
pub(crate) async fn inspect(node: &Node, request: InspectBlockRequest) -> Result<InspectBlockReply> {
    begin(node, request.epoch).await?;
    let block: BlockId = wire::decode("block", &request.block)?;
    let disks = node.disks()?;
    let disk = disk_of(node, &disks, block).await?;
    let place = |error: Error| error.block(block);
    if request.ready {
        node.updates.queue(&disks, disk, node.draw(|random| random.random())).await.map_err(place)?;
    }
    // Of a disk whose journal is damaged, it is not known which blocks are open.
    node.updates.check(disk).map_err(place)?;
    let update_bytes_max = node.updates.hub.update_bytes_max(disk);
    match within(block, node.updates.hub.ask(block, |reply| Command::Inspect { block, reply })).await {
        Ok((open, content)) => {
            let members = open.members.iter().map(wire::encode).collect();
            let open = OpenTerm { term: open.obeyed, known: open.term, members, fenced: open.is_fenced };
            let look = move || disks.open_block(block).map(|(_, reader)| reader.meta().stripe.data_len);
            let data_len = node.seams.disk_mode.run_boxed(look).await?;
            Ok(InspectBlockReply { open: Some(open), content: content.map(told), update_bytes_max, data_len })
        }
        Err(error) if error.reaction == Reaction::NotFound => {
            let look = move || {
                let (_, reader) = disks.open_block(block)?;
                match reader.is_interrupted() {
                    true => {
                        Err(Error::corrupt("its last update was interrupted, and the journal does not contain it").block(block))
                    }
                    false => {
                        let BlockMeta { seq, stripe, .. } = reader.meta().clone();
                        Ok((SettledBlock { seq, units: reader.units().to_vec() }, stripe.data_len))
                    }
                }
            };
            let (content, data_len) = node.seams.disk_mode.run_boxed(look).await?;
            Ok(InspectBlockReply { open: None, content: Some(told(content)), update_bytes_max, data_len })
        }
        Err(error) => Err(error),
    }
}

fn told(SettledBlock { seq, units }: SettledBlock) -> SettleBlockReply {
    SettleBlockReply { seq: Some(Seq { term: seq.term(), counts: seq.counts().to_vec() }), checksums: units }
}

/// Passes a message of a seal to a block.
pub(crate) async fn seal(node: &Node, request: SealBlockRequest) -> Result<SealBlockReply> {
    begin(node, request.epoch).await?;
    let block: BlockId = wire::decode("block", &request.block)?;
    let message = decode_message(&request.message)?;
    if !matches!(message, Message::Seal { .. } | Message::Sealed(_)) {
        return Err(Error::invalid("the message belongs to no seal").block(block));
    }
    if let Some(stripe) = &request.stripe {
        node.updates.hub.learn(&Told::decode(stripe)?);
    }
    let answer = within(block, node.updates.hub.ask(block, |reply| Command::Seal { block, message, reply })).await?;
    Ok(SealBlockReply { message: encode_message(&answer)? })
}

/// Applies all updates of a block that a seal has decided.
pub(crate) async fn settle(node: &Node, request: SettleBlockRequest) -> Result<SettleBlockReply> {
    begin(node, request.epoch).await?;
    let (block, term): (BlockId, _) = (wire::decode("block", &request.block)?, request.term);
    if term == 0 {
        return Err(Error::invalid("no block was opened in term 0").block(block));
    }
    let settled = within(block, node.updates.hub.ask(block, |reply| Command::Settle { block, term, reply })).await;
    match settled {
        Err(error) if error.reaction == Reaction::NotFound => closed(node, block, term).await?.ok_or(error).map(told),
        settled => settled.map(told),
    }
}

/// What a block contains that is not open, if it was settled in this term.
async fn closed(node: &Node, block: BlockId, term: u64) -> Result<Option<SettledBlock>> {
    let disks = node.disks()?;
    let look = move || {
        let (_, reader) = disks.open_block(block)?;
        let seq = reader.meta().seq.clone();
        let is_settled = seq.term() == term && !reader.is_interrupted();
        Ok(is_settled.then(|| SettledBlock { seq, units: reader.units().to_vec() }))
    };
    node.seams.disk_mode.run_boxed(look).await
}

/// Closes a settled block.
pub(crate) async fn close(node: &Node, request: CloseBlockRequest) -> Result<CloseBlockReply> {
    begin(node, request.epoch).await?;
    let (block, term): (BlockId, _) = (wire::decode("block", &request.block)?, request.term);
    let closed = within(block, node.updates.hub.ask(block, |reply| Command::Close { block, term, reply })).await;
    match closed {
        Err(error) if error.reaction == Reaction::NotFound => Ok(CloseBlockReply {}),
        closed => closed.map(|()| CloseBlockReply {}),
    }
}

async fn within<T>(block: BlockId, answer: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Error::retry(format!("the block has not answered within {ANSWER_WITHIN:?}")).block(block);
    timeout(ANSWER_WITHIN, answer).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
}
