//! Decodes agents' events into the values of decisions. Undecodable parts are left out.

use weft_control::run::{Stored, TaskEvent};
use weft_proto::{status::decode_error, v1};
use weft_types::{BlockId, NodeId, Party, Span, StageTimes};

/// An event of `node`; `None` if it does not affect its plan.
pub(super) fn event(node: NodeId, event: v1::task_event::Event) -> Option<TaskEvent> {
    Some(match event {
        v1::task_event::Event::Started(_) => return None,
        v1::task_event::Event::Progress(told) => {
            let party = |bytes: &[u8]| match bytes {
                [] => Some(Party::Node(node)),
                bytes => postcard::from_bytes(bytes).ok(),
            };
            let (held_back, waiting): (Vec<_>, Vec<_>) = told.waiting.iter().partition(|wait| wait.held_back);
            let waiting = waiting.iter().filter_map(|wait| Some((party(&wait.party)?, wait.since_ms))).collect();
            TaskEvent::Progress {
                moved_bytes: told.bytes_moved,
                received_bytes: told.bytes_received,
                waiting,
                held_back: !held_back.is_empty(),
            }
        }
        v1::task_event::Event::Done(done) => TaskEvent::Done {
            stored: stored(done.stored),
            traffic: done.traffic.unwrap_or_default().into(),
            stages: done.stages.iter().filter_map(stage).collect(),
        },
        v1::task_event::Event::Failed(failed) => {
            let arrived = |it: v1::ArrivedBlock| {
                let spans = it.spans.iter().map(|span| Span::new(span.start, span.end)).collect();
                Some((block(&it.id)?, spans))
            };
            let corrupt = |it: &v1::CorruptBlock| {
                Some((block(&it.block)?, Span::new(it.first_byte, it.first_byte.saturating_add(it.len_bytes))))
            };
            TaskEvent::Failed {
                stored: stored(failed.stored),
                arrived: failed.arrived.into_iter().filter_map(arrived).collect(),
                corrupt: failed.corrupt.iter().filter_map(corrupt).collect(),
                traffic: failed.traffic.unwrap_or_default().into(),
                errors: failed.errors.iter().filter_map(|bytes| decode_error(bytes)).collect(),
            }
        }
    })
}

fn stored(blocks: Vec<v1::StoredBlock>) -> Vec<(BlockId, Stored)> {
    let stored = |it: v1::StoredBlock| Some((block(&it.id)?, Stored { len: it.len, checksums: it.checksums }));
    blocks.into_iter().filter_map(stored).collect()
}

fn block(bytes: &[u8]) -> Option<BlockId> {
    postcard::from_bytes(bytes).ok()
}

/// A stage of a plan. Values beyond what a plan can have are cut.
fn stage(times: &v1::StageTimes) -> Option<StageTimes> {
    let v1::StageTimes { lane, stage, read_us, wait_us, combine_us, send_us, write_us } = *times;
    let (lane, stage) = (u16::try_from(lane).ok()?, u16::try_from(stage).ok()?);
    Some(StageTimes { lane, stage, read_us, wait_us, combine_us, send_us, write_us })
}
