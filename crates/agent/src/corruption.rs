//! Corruption that was found and not yet reported to the coordinator, which decides what happens to the block.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use weft_proto::v1;
use weft_types::{BlockId, Error, PAGE_LEN, Span};

/// Findings since the last successful heartbeat: runs of corrupt bytes, by block and first byte.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    untold: Mutex<BTreeMap<(BlockId, u64), Finding>>,
    /// Corrupt pages found since the agent started.
    pages: AtomicU64,
}

#[derive(Debug, Clone)]
struct Finding {
    bytes: Span,
    message: String,
}

/// The most runs that are remembered; further ones are found again by later reads.
const FINDINGS_MAX: usize = 4096;
/// The most runs in one heartbeat; the coordinator accepts no more.
const REPORTED_MAX: usize = 1024;

impl Findings {
    /// Records that these bytes of a block are corrupt.
    pub(crate) fn add(&self, block: BlockId, bytes: Span, error: &Error) {
        tracing::error!(%block, first_byte = bytes.start, end = bytes.end, %error, "found a corrupt block");
        self.pages.fetch_add(bytes.len().div_ceil(PAGE_LEN), Relaxed);
        let mut findings = self.lock();
        if findings.len() < FINDINGS_MAX {
            findings.entry((block, bytes.start)).or_insert_with(|| Finding { bytes, message: error.message.clone() });
        }
    }

    /// The findings for the next heartbeat; the rest waits for the one after it.
    pub(crate) fn report(&self) -> Vec<v1::CorruptBlock> {
        let findings = self.lock();
        let report = |((block, _), finding): (&(BlockId, u64), &Finding)| v1::CorruptBlock {
            block: crate::wire::encode(block),
            first_byte: finding.bytes.start,
            len_bytes: finding.bytes.len(),
            message: finding.message.clone(),
        };
        findings.iter().take(REPORTED_MAX).map(report).collect()
    }

    /// Forgets findings that the coordinator has received.
    pub(crate) fn told(&self, report: &[v1::CorruptBlock]) {
        let mut findings = self.lock();
        for told in report {
            if let Ok(block) = crate::wire::decode::<BlockId>("block", &told.block) {
                findings.remove(&(block, told.first_byte));
            }
        }
    }

    /// Whether the coordinator has not heard of all findings in a block.
    pub(crate) fn is_untold(&self, block: BlockId) -> bool {
        self.lock().range((block, 0)..=(block, u64::MAX)).next().is_some()
    }

    /// Corrupt pages found since the agent started; a page that another task finds again counts again.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(BlockId, u64), Finding>> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::StripeId;

    #[test]
    fn findings_beyond_one_heartbeat_are_reported_by_the_next() {
        let findings = Findings::default();
        for stripe in 0..1500 {
            let block = BlockId { stripe: StripeId(stripe), index: 0, copy: 0, generation: 1 };
            findings.add(block, Span::new(0, 4096), &Error::corrupt("its checksum"));
        }
        assert_eq!(findings.pages(), 1500);
        let first = findings.report();
        assert_eq!(first.len(), REPORTED_MAX);
        findings.told(&first);
        let second = findings.report();
        assert_eq!(second.len(), 1500 - REPORTED_MAX);
        assert!(second.iter().all(|told| !first.contains(told)));
        findings.told(&second);
        assert_eq!(findings.report(), []);
    }
}
