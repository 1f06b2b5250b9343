//! Records read back as they were written; other bytes are refused.

use super::*;

fn block(index: u8) -> BlockId {
    BlockId { stripe: StripeId(300), index, copy: 0, generation: 2 }
}

fn id(counter: u64) -> UpdateId {
    UpdateId { session: Session { number: 7, ends_at_ms: 1 << 40 }, counter, lead: 1 }
}

fn record() -> Arc<Record> {
    let part = |stream| Part {
        stream,
        number: 200 + u64::from(stream),
        incarnation: Incarnation { generation: 2, opened: 300, starts: 3 },
        span: Span::new(5, 500),
    };
    Arc::new(Record { id: id(9), term: 4, participants: (0..6).map(block).collect(), parts: vec![part(1), part(3)] })
}

fn known(counter: u64, at_ms: u64) -> Known {
    Known { id: id(counter), outcome: Outcome::Committed, at_ms }
}

/// A record of every kind.
fn samples() -> Vec<Stored> {
    let piece = |start, len| Arc::new(Piece { start, bytes: (0..len).map(|at| (at * 7) as u8).collect() });
    let deltas = Deltas {
        generator_hash: 0xfeed_beef,
        pieces: Pieces::from([(1, piece(5, 300)), (3, piece(17, 1))]),
        unit_changes: BTreeMap::from([((1, 0), 77), ((3, 3), u32::MAX)]),
    };
    let page = |number, len: u32| {
        let bytes: Vec<u8> = (0..len).map(|at| (at / 3) as u8).collect();
        PageImage { number, crc: crc32c(&bytes), bytes }
    };
    let delta = |number| Delta { stream: 1, number, id: id(number) };
    let batch = Batch {
        applied: [(1, 8), (3, 2)].into(),
        merged: vec![(Span::new(0, 9), vec![delta(7), delta(8)]), (Span::new(20, 30), vec![delta(8)])],
    };
    let entries = [
        Entry::Opened { term: 4, members: (0..6).map(block).collect() },
        Entry::Term(5),
        Entry::Fence { stream: 3, incarnation: Incarnation { generation: 1, opened: 1, starts: 9 } },
        Entry::Refused(record()),
        Entry::Watermark { stream: 1, term: 4, number: 1 << 50 },
        Entry::Known(vec![known(3, 12), Known { outcome: Outcome::Aborted, ..known(4, 13) }]),
        Entry::Known(Vec::new()),
        Entry::Floor { session: id(0).session, counter: 6 },
        Entry::Fenced,
        Entry::Joining([(0, 3), (2, 1 << 40)].into()),
        Entry::Rebuilt([(1, 4)].into()),
    ];
    let held = Entry::Held { record: record(), crcs: [(1, 11), (3, 33)].into() };
    let others = [Stored::Entry(held, Some(deltas)), Stored::Images(batch, 3), Stored::Pages(vec![page(0, 4096), page(9, 100)])];
    entries.into_iter().map(|entry| Stored::Entry(entry, None)).chain(others).collect()
}

#[test]
fn records_read_back() {
    for stored in samples() {
        let bytes = stored.encode().unwrap();
        assert_eq!(Stored::decode(&bytes).unwrap(), stored);
    }
}

#[test]
fn records_of_the_first_version_stay_readable() {
    // The bytes of a record that was written once: if they cannot be read, journals cannot.
    let written = [1, 7, 1, 7, 128, 128, 128, 128, 128, 32, 12, 2, 3, 1, 1, 0, 4, 1, 1, 200, 1];
    let known = Entry::Known(vec![known(3, 12), known(4, 212)]);
    assert_eq!(Stored::decode(&written).unwrap(), Stored::Entry(known, None));
}

/// `docs/formats.md` says how many updates a second a journal sustains.
#[test]
fn outcomes_are_short() {
    let session = |number: u64| Session { number: number << 60, ends_at_ms: 1_700_000_000_000 };
    let outcome = |at: u64, sessions: u64| {
        let id = UpdateId { session: session(at % sessions), counter: 1_000_000 + at, lead: 9 };
        Known { id, outcome: Outcome::Committed, at_ms: 1_700_000_000_000 + at * 500 }
    };
    let bytes = |sessions| {
        let all: Vec<Known> = (0..Known::MAX as u64).map(|at| outcome(at, sessions)).collect();
        Stored::Entry(Entry::Known(all), None).encode().unwrap().len() / Known::MAX
    };
    assert!(bytes(1) <= 9 && bytes(16) <= 10 && bytes(256) <= 32, "{} {} {}", bytes(1), bytes(16), bytes(256));
}

#[test]
fn a_record_that_was_cut_or_extended_is_refused() {
    for stored in samples() {
        let bytes = stored.encode().unwrap();
        for len in 0..bytes.len() {
            assert!(Stored::decode(&bytes[..len]).is_err(), "{stored:?} cut to {len}");
        }
        assert!(Stored::decode(&[&bytes[..], &[0]].concat()).is_err(), "{stored:?} extended");
    }
}

#[test]
fn any_change_of_a_record_is_decoded_without_a_panic() {
    for stored in samples() {
        let bytes = stored.encode().unwrap();
        for at in 0..bytes.len().min(200) {
            for value in [0, 1, 0x7f, 0x80, 0xff, bytes[at] ^ 1] {
                let mut changed = bytes.clone();
                changed[at] = value;
                fuzz_record(&changed);
            }
        }
    }
}

#[test]
fn a_newer_version_is_told_from_damage() {
    let error = Stored::decode(&[2, 0]).unwrap_err();
    assert_eq!(error.reaction, weft_types::Reaction::Fatal, "{error}");
}

#[test]
fn pages_with_other_bytes_are_refused() {
    let Some(pages @ Stored::Pages(_)) = samples().pop() else { panic!("pages") };
    let mut bytes = pages.encode().unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    assert!(Stored::decode(&bytes).is_err());
}
