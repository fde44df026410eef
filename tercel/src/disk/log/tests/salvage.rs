//! The findings of a salvage in a damaged log, which stays as it is.

use super::*;
use tercel_wire::log::RECORD_HEADER_BYTES;

fn salvaged(dir: &Path) -> (LogSalvage, Vec<Vec<u64>>) {
    let salvage = LogSalvage::take(dir, SPACE).unwrap();
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

/// The mark that a clean close ends with: no later byte shows that it was there.
const MARK: usize = super::MARK as usize;

#[test]
fn salvage_goes_on_at_next_mark_behind_damage() {
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
    assert_eq!(salvage.runs[1].after, Stamp(1));
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
