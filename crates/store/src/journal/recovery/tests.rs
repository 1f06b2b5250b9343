use crate::files::{Files, Open};
use crate::journal::sectors::{SECTOR, Sealer, Tag};
use crate::journal::{Journal, NewJournal, RING_BYTES_MIN, RingJournal};
use crate::journal_conformance::block;
use crate::local::{NoSteps, device::Device};
use crate::sim_files::SimFiles;
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;
use weft_types::{Reaction, Result};

const NONCE: u128 = 5;
const RING_AT: u64 = 4096;

fn open(files: &SimFiles) -> Result<RingJournal> {
    let device = Arc::new(Device::new(Arc::new(files.clone()), Arc::new(NoSteps), "/".into()));
    let new = NewJournal { ring_bytes: RING_BYTES_MIN, nonce: NONCE };
    RingJournal::open(Arc::new(()), &device, Path::new("/journal"), new, 1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Changed sectors with a checksum that is right, so that they reach the decoder: they are refused, or mean something.
    #[test]
    fn sealed_changes_never_panic(
        changes in proptest::collection::vec((0u64..40, 0usize..60, any::<u8>()), 0..4),
        tag in proptest::option::of((0u64..40, prop_oneof![0u64..9, Just(u64::MAX)], prop_oneof![0u32..9, Just(u32::MAX)], 0u32..30)),
    ) {
        let files = SimFiles::new(1);
        let journal = open(&files).unwrap();
        for len in [10, 700, 4000, 5000] {
            let position = journal.append(block(len as u64), &vec![1; len], None).unwrap();
            journal.sync(position).unwrap();
            if len == 700 {
                journal.release(&[position]);
            }
        }
        drop(journal);
        let sealer = Sealer::new(NONCE);
        let file = files.open(Path::new("/journal"), Open::Write).unwrap();
        let change = |number: u64, change: &mut dyn FnMut(&mut [u8], Tag) -> Tag| {
            let (mut sector, at) = (vec![0; SECTOR], RING_AT + number * SECTOR as u64);
            file.read_exact_at(&mut sector, at).unwrap();
            let tag = sealer.open(&sector).unwrap();
            let tag = change(&mut sector, tag);
            sealer.seal(&mut sector, tag);
            file.write_all_at(&sector, at).unwrap();
        };
        for (number, at, value) in changes {
            change(number, &mut |sector, tag| {
                sector[at] = value;
                tag
            });
        }
        if let Some((sector, number, behind, index)) = tag {
            change(sector, &mut |_, _| Tag { number, behind, index });
        }
        match open(&files) {
            Ok(journal) => {
                if let Err(error) = journal.replay(&mut |_, _, _| Ok(())) {
                    prop_assert_eq!(error.reaction, Reaction::Corrupt);
                }
                let position = journal.append(block(1), &[1], None).unwrap();
                journal.sync(position).unwrap();
            }
            Err(error) => prop_assert_eq!(error.reaction, Reaction::Corrupt),
        }
    }
}
