use super::*;
use weft_types::StripeId;

const MIB: u64 = 1 << 20;
const AFTER: Duration = Duration::from_secs(600);
const NONE: [u32; 0] = [];

/// Operations of 1 MiB, one at a time, of so many milliseconds each.
fn each(operations: u64, ms: u64) -> Service {
    let taken = Duration::from_millis(operations * ms);
    Service { operations, bytes: operations * MIB, busy: taken, taken }
}

struct Disks {
    health: DiskHealth,
    served: BTreeMap<DiskNumber, Served>,
    now: Time,
}

impl Disks {
    /// Disks from number 1 on, with so many milliseconds a read.
    fn reading(ms: &[u64]) -> Self {
        let read = |(number, ms): (u32, &u64)| (DiskNumber(number), Served { reads: each(200, *ms), ..Served::default() });
        Self { health: DiskHealth::default(), served: (1..).zip(ms).map(read).collect(), now: Time::default() }
    }

    fn set(&mut self, disk: u32, reads: Service) {
        self.served.get_mut(&DiskNumber(disk)).unwrap().reads = reads;
    }

    /// Judges every 10 s for this long. Returns the disks whose trouble changed.
    fn pass(&mut self, time: Duration) -> Vec<u32> {
        let (end, mut changed) = (self.now + time, Vec::new());
        while self.now < end {
            changed.extend(self.health.judge(&self.served, AFTER, self.now).iter().map(|disk| disk.0));
            self.now = self.now + Duration::from_secs(10);
        }
        changed
    }

    fn trouble(&self, disk: u32) -> Option<Trouble> {
        self.health.of(DiskNumber(disk)).map(|it| it.trouble)
    }

    fn slow(&self) -> Vec<u32> {
        self.served.keys().map(|disk| disk.0).filter(|disk| self.trouble(*disk).is_some()).collect()
    }
}

#[test]
fn a_disk_that_is_much_slower_than_the_others_for_long_is_slow_until_it_is_as_fast_for_as_long() {
    let mut disks = Disks::reading(&[9, 100, 10, 12, 11]);
    assert_eq!(disks.pass(AFTER), NONE, "not yet");
    assert_eq!(disks.pass(Duration::from_secs(10)), [2]);
    let why = &disks.health.of(DiskNumber(2)).unwrap().why;
    assert_eq!(why, "it read 10.0 MiB/s, 100 ms each read; usual on 4 other disks: 90.9 MiB/s, 11 ms");
    disks.set(2, each(200, 30));
    assert_eq!(disks.pass(AFTER * 3), NONE, "neither slow nor as usual");
    disks.set(2, Service::default());
    assert_eq!(disks.pass(AFTER * 3), NONE, "nothing is known of it now");
    disks.set(2, each(200, 12));
    assert_eq!(disks.pass(AFTER), NONE);
    disks.set(2, each(200, 100));
    disks.pass(Duration::from_secs(10));
    disks.set(2, each(200, 12));
    assert_eq!(disks.pass(AFTER), NONE, "it was slow meanwhile");
    assert_eq!(disks.pass(Duration::from_secs(10)), [2]);
    assert_eq!(disks.slow(), NONE);
}

#[test]
fn a_disk_that_is_slow_now_and_then_is_not_accused() {
    let mut disks = Disks::reading(&[10, 10, 10, 10, 10]);
    for _ in 0..10 {
        for ms in [100, 20] {
            disks.set(3, each(200, ms));
            assert_eq!(disks.pass(AFTER - Duration::from_secs(10)), NONE);
        }
    }
}

#[test]
fn the_load_of_a_disk_is_not_its_fault() {
    let busy = |operations, bytes, busy_ms, taken_ms| Service {
        operations,
        bytes,
        busy: Duration::from_millis(busy_ms),
        taken: Duration::from_millis(taken_ms),
    };
    for (what, reads) in [
        ("many at a time take long and move much", busy(200, 200 * MIB, 2_000, 40_000)),
        ("small ones move little and are short", busy(200, 200 * 4096, 2_000, 2_000)),
        ("large ones take long", busy(20, 2_000 * MIB, 20_000, 20_000)),
        ("few operations say nothing", each(OPERATIONS_MIN - 1, 1_000)),
        ("a disk that is hardly used delays nothing", each(OPERATIONS_MIN, 60)),
        ("a disk without figures is not known", Service::default()),
        ("three times as slow is not slow", each(200, 30)),
    ] {
        let mut disks = Disks::reading(&[10; 6]);
        disks.set(4, reads);
        assert_eq!(disks.pass(AFTER * 2), NONE, "{what}");
    }
}

#[test]
fn slow_is_told_only_by_comparison() {
    for (what, ms) in [
        ("all are equally slow", &[500; 8][..]),
        ("too few others are known", &[10, 10, 500]),
        ("two of eight are of another kind", &[10, 10, 10, 500, 500, 10, 10, 10]),
        ("half are of another kind", &[10, 10, 10, 500, 500, 500]),
    ] {
        let mut disks = Disks::reading(ms);
        assert_eq!(disks.pass(AFTER * 2), NONE, "{what}");
    }
    let mut many = [10; 30];
    (many[3], many[7]) = (100, 100);
    assert_eq!(Disks::reading(&many).pass(AFTER * 2), [4, 8], "among many, several may be slow");
    // Reads are no measure of syncs.
    let mut disks = Disks::reading(&[10; 5]);
    disks.served.insert(DiskNumber(9), Served { syncs: each(200, 500), ..Served::default() });
    assert_eq!(disks.pass(AFTER * 2), NONE);
    for number in 1..=5 {
        disks.served.get_mut(&DiskNumber(number)).unwrap().syncs = each(200, 20);
    }
    assert_eq!(disks.pass(AFTER * 2), [9]);
    assert!(disks.health.of(DiskNumber(9)).unwrap().why.starts_with("it synced 2.0 MiB/s, 500 ms each sync"));
    let mut off = Disks::reading(&[10, 10, 10, 10, 500]);
    for _ in 0..100 {
        assert_eq!(off.health.judge(&off.served, Duration::ZERO, off.now).len(), 0);
        off.now = off.now + AFTER;
    }
}

#[test]
fn a_disk_with_many_bad_blocks_in_a_day_is_failing() {
    let mut disks = Disks::reading(&[10; 5]);
    let block = |stripe| BlockId { stripe: StripeId(stripe), index: 0, copy: 0, generation: 1 };
    for stripe in 0..BAD_BLOCKS_MAX as u64 {
        for _ in 0..5 {
            disks.health.note_bad(DiskNumber(2), block(stripe), disks.now);
        }
    }
    assert_eq!(disks.pass(Duration::from_secs(10)), NONE, "each block counts once");
    disks.health.note_bad(DiskNumber(2), block(100), disks.now);
    assert_eq!(disks.pass(Duration::from_secs(10)), [2]);
    let ailment = disks.health.of(DiskNumber(2)).unwrap();
    assert_eq!(ailment.trouble, Trouble::Failing);
    assert_eq!(ailment.why, "9 of its blocks were found corrupt or unreadable within a day");
    disks.set(2, each(200, 500));
    disks.pass(AFTER * 2);
    assert_eq!(disks.trouble(2), Some(Trouble::Failing), "that is worse than slow");
    for stripe in 200..400 {
        disks.health.note_bad(DiskNumber(2), block(stripe), disks.now);
    }
    assert_eq!(disks.health.0[&DiskNumber(2)].bad.len(), REMEMBERED_BLOCKS_MAX);
    disks.now = disks.now + BAD_FOR;
    assert_eq!(disks.pass(Duration::from_secs(10)), [2]);
    assert_eq!(disks.trouble(2), Some(Trouble::Slow), "only that is left after a day");
    disks.served.remove(&DiskNumber(2));
    disks.pass(Duration::from_secs(10));
    assert!(!disks.health.0.contains_key(&DiskNumber(2)), "a disk that is gone is forgotten");
}

#[test]
fn one_disk_is_drained_at_a_time_and_only_if_nothing_speaks_against_it() {
    use DrainFailingDisks as Policy;
    let calm = Surroundings { drains: false, at_risk: false, stopped: false };
    let slow = Candidate { trouble: Trouble::Slow, draining: false, kept: false, has_blocks: true, up: true };
    let failing = Candidate { trouble: Trouble::Failing, ..slow };
    let disks = [(1, slow), (2, failing), (3, slow), (4, failing)];
    assert_eq!(to_drain(Policy::Off, disks, calm), NONE);
    assert_eq!(to_drain(Policy::Failing, disks, calm), [2, 4]);
    assert_eq!(to_drain(Policy::Slow, disks, calm), [2, 4, 1, 3], "the worst first");
    assert_eq!(to_drain(Policy::Slow, disks, Surroundings { drains: true, ..calm }), NONE, "one after the other");
    assert_eq!(to_drain(Policy::Slow, disks, Surroundings { at_risk: true, ..calm }), NONE, "lost blocks first");
    assert_eq!(to_drain(Policy::Slow, disks, Surroundings { stopped: true, ..calm }), NONE, "a person said so");
    for not in [
        Candidate { draining: true, ..failing },
        Candidate { kept: true, ..failing },
        Candidate { has_blocks: false, ..failing },
        Candidate { up: false, ..failing },
    ] {
        assert_eq!(to_drain(Policy::Slow, [(1, not)], calm), NONE, "{not:?}");
    }
}
