//! What a salvage finds in a damaged log, which it leaves as it is.

use super::*;
use tercel_wire::log::RECORD_HEADER_BYTES;

fn salvaged(dir: &Path) -> (LogSalvage, Vec<Vec<u64>>) {
    let salvage = LogSalvage::take(dir, SPACE, &|kind, _| kind.get() == 1).unwrap();
    let runs = salvage.runs.iter().map(|run| {
        let mut stamps = Vec::new();
        salvage
            .read(run, &mut |record: tercel_wire::log::Record<'_>| {
                stamps.push(record.stamp.0);
                Ok::<(), DiskError>(())
            })
            .unwrap();
        assert_eq!((run.records, run.last.0), (stamps.len() as u64, *stamps.last().unwrap_or(&run.after.0)));
        stamps
    });
    let runs = runs.collect();
    (salvage, runs)
}

/// Batches of one record and of two, of which some span segments.
fn spanning_log() -> TempDir {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    for batch in [&[40][..], &[25, 3000], &[10, 2900], &[700]] {
        commit(&mut log, batch);
    }
    log.close().unwrap();
    dir
}

#[test]
fn a_salvage_reads_over_one_wrong_bit_wherever_it_is() {
    assert_read_over(0x10, |at, used| at < 200 || at % 37 == 0 || at > used - 70);
}

#[test]
fn a_salvage_reads_over_one_wrong_byte_wherever_it_is() {
    let most = |at: usize, used: usize| at < 400 || at.is_multiple_of(5) || at > used - 70;
    assert_read_over(0xff, most);
    assert_read_over(0x91, most);
}

/// Spoils bytes of a log one at a time, `at` some offsets of what is used of a segment, and expects all records.
fn assert_read_over(xor: u8, at: impl Fn(usize, usize) -> bool) {
    let dir = spanning_log();
    let end = open(dir.path()).0.tail().offset;
    assert!(end.segment > 1);
    for number in 1..=end.segment {
        let bytes = fs::read(segment(dir.path(), number)).unwrap().len();
        let used = if number == end.segment { end.byte as usize - MARK } else { bytes };
        for at in (0..used).filter(|place| at(*place, used)) {
            spoil(&segment(dir.path(), number), at as u64, xor);
            let before = fs::read(segment(dir.path(), number)).unwrap();
            let (salvage, runs) = salvaged(dir.path());
            assert_eq!(runs, [[1, 2, 3, 4, 5, 6]], "segment {number}, byte {at}: {salvage:?}");
            assert!(salvage.damage.len() == 1 && salvage.damage[0].mended.is_some(), "{salvage:?}");
            assert!(fs::read(segment(dir.path(), number)).unwrap() == before, "nothing is written");
            spoil(&segment(dir.path(), number), at as u64, xor);
        }
    }
    assert!(salvaged(dir.path()).0.damage.is_empty());
}

#[test]
fn a_wrong_byte_is_not_put_right_where_nothing_follows_or_what_comes_out_does_not_decode() {
    let dir = spanning_log();
    let end = open(dir.path()).0.tail().offset;
    let payload = (SEGMENT_HEADER_BYTES + MARK + RECORD_HEADER_BYTES + 9) as u64;
    spoil(&segment(dir.path(), 1), payload, 0x91);
    let refusing = LogSalvage::take(dir.path(), SPACE, &|_, _| false).unwrap();
    assert!(refusing.damage[0].mended.is_none() && refusing.runs.len() == 2, "{refusing:?}");
    let (salvage, _) = salvaged(dir.path());
    assert_eq!(salvage.damage[0].mended, Some(format!("one byte at {payload}")));
    // The mark that a clean close ends with is the only thing behind the last record; without it that is a torn tail.
    spoil(&segment(dir.path(), 1), payload, 0x91);
    let mark = end.byte as u64 - MARK as u64;
    (0..MARK as u64).for_each(|at| spoil(&segment(dir.path(), end.segment), mark + at, 0x55));
    spoil(&segment(dir.path(), end.segment), mark - 50, 0x91);
    let (salvage, runs) = salvaged(dir.path());
    assert!(salvage.torn.is_some() && salvage.damage.is_empty(), "{salvage:?}");
    assert_eq!(runs, [[1, 2, 3, 4, 5]]);
}

/// The mark that a clean close ends with: nothing behind it tells that it was there.
const MARK: usize = super::MARK as usize;

#[test]
fn a_salvage_goes_on_at_the_next_mark_behind_what_cannot_be_mended() {
    let dir = spanning_log();
    let whole = fs::read(segment(dir.path(), 1)).unwrap();
    // The payload of the first record, of several bits.
    let mut bad = whole.clone();
    let payload = SEGMENT_HEADER_BYTES + MARK + RECORD_HEADER_BYTES;
    (payload..payload + 36).step_by(9).for_each(|at| bad[at] ^= 0x77);
    fs::write(segment(dir.path(), 1), bad).unwrap();
    let (salvage, runs) = salvaged(dir.path());
    assert_eq!(runs, [vec![], vec![2, 3, 4, 5, 6]]);
    assert_eq!((salvage.damage.len(), salvage.damage[0].after, salvage.torn), (1, Stamp(0), None));
    assert!(salvage.damage[0].mended.is_none() && salvage.runs[1].after == Stamp(1));
}

#[test]
fn a_salvage_of_a_torn_log_says_where_and_cuts_nothing() {
    let dir = new_log();
    let (mut log, ..) = open(dir.path());
    commit(&mut log, &[40]);
    let at = log.tail().offset;
    log.append(&records(&mut log.tail(), &[25])).unwrap();
    log.sync().unwrap();
    drop(log);
    flip(&segment(dir.path(), 1), (at.byte as usize + MARK + 30) as u64);
    let before = fs::read(segment(dir.path(), 1)).unwrap();
    let (salvage, runs) = salvaged(dir.path());
    assert!(salvage.torn.is_some() && salvage.damage.is_empty(), "{salvage:?}");
    assert_eq!(runs, [[1]]);
    assert!(fs::read(segment(dir.path(), 1)).unwrap() == before);
}
