//! The head of a copy that goes on: it keeps what the archive has removed as old.

use crate::head::{Base, Gap, Head, Run};

/// The reason of a gap in a copy.
const REMOVED: &str = "the archive had removed it as old before this copy went on";

/// The head of a copy with the head `there` that has all objects of `archive` too, which has gone on from it.
pub(crate) fn merged(there: &Head, archive: &Head) -> Head {
    let mut whole = archive.clone();
    let mut runs: Vec<Run> = Vec::new();
    for old in &there.runs {
        match whole.runs.iter_mut().find(|run| goes_on(old, run)) {
            Some(run) => put_before(old, run),
            None if archive.runs.iter().any(|run| covers(run, old)) => {}
            None => runs.push(old.clone()),
        }
    }
    let of_before = |base: &&Base| !archive.bases.contains(base);
    whole.bases = there.bases.iter().filter(of_before).chain(&archive.bases).cloned().collect();
    let of_before = |gap: &&Gap| gap.upto != 0 && !archive.gaps.contains(gap);
    let mut lost = lost_between(there, archive);
    lost.retain(|gap| !there.gaps.iter().any(|old| (old.after, old.history) == (gap.after, gap.history)));
    whole.gaps = there.gaps.iter().filter(of_before).chain(&lost).chain(&archive.gaps).cloned().collect();
    runs.append(&mut whole.runs);
    Head { runs, ..whole }
}

fn is_of_one(one: &Run, other: &Run) -> bool {
    (one.view, one.history) == (other.view, other.history)
}

/// Says whether a run has lost its first objects since it was `old`, and what is left goes on there.
fn goes_on(old: &Run, run: &Run) -> bool {
    let is_behind = run.position > old.position && run.position <= old.position_end();
    let is_next = run.position == old.position_end() + 1 && run.before == old.digest;
    is_of_one(old, run) && (is_behind || is_next) && run.position_end() >= old.position_end()
}

fn covers(run: &Run, old: &Run) -> bool {
    is_of_one(old, run) && run.position <= old.position && run.position_end() >= old.position_end()
}

/// Has a run begin where `old` did.
fn put_before(old: &Run, run: &mut Run) {
    let end = run.position_end();
    // As near as the head knows it: objects are of about the same size.
    let new = u128::from(run.bytes) * u128::from(end - old.position_end()) / u128::from(run.count.max(1));
    run.bytes = old.bytes + new as u64;
    (run.first, run.position) = (old.first, old.position);
    run.before.clone_from(&old.before);
    run.count = end + 1 - run.position;
}

/// The gaps between a copy and what an archive still has.
fn lost_between(there: &Head, archive: &Head) -> Vec<Gap> {
    let Some(base) = archive.bases.first() else { return Vec::new() };
    let last =
        |history: u32| there.runs.iter().filter(|run| run.history == history).map(|run| run.last).max();
    // An older history was there once, up to where the next one began.
    let older = archive.histories.iter().filter(|next| next.of < base.history).filter_map(|next| {
        let after = last(next.of).filter(|last| *last < next.after)?;
        let from_ms = Some(there.upto_ms);
        Some(Gap { after, upto: next.after + 1, ms: base.ms, from_ms, why: REMOVED.into(), history: next.of })
    });
    older.chain(lost_of_history(there, archive, base)).collect()
}

fn lost_of_history(there: &Head, archive: &Head, base: &Base) -> Option<Gap> {
    let is_of_history = |run: &&Run| run.history == base.history;
    let old = there.runs.iter().filter(is_of_history).max_by_key(|run| run.position_end());
    // Behind a base that the log had not come to yet, entries are missing, too.
    let after = old.map_or(there.end_of(base.history).0, |old| old.last);
    let is_known = there.bases.iter().any(|old| old == base);
    let mut left = archive.runs.iter().filter(is_of_history);
    let is_whole = match &old {
        Some(old) => left.any(|run| run.position <= old.position_end() + 1),
        None => after + 1 >= base.first,
    };
    let is_one = after > 0 && !is_known && !is_whole && after < base.stamp;
    let (from_ms, history) = (Some(there.upto_ms), base.history);
    is_one.then(|| Gap { after, upto: base.stamp, ms: base.ms, from_ms, why: REMOVED.into(), history })
}

#[cfg(test)]
mod tests {
    use tercel::{SpaceId, Stamp, ViewId};

    use super::*;
    use crate::head::History;

    fn run(history: u32, first: u64, last: u64, before: &str, digest: &str) -> Run {
        let (view, position, count) = ((1, history), first, last + 1 - first);
        let (before, digest) = (before.into(), digest.into());
        Run { view, first, position, last, last_ms: 0, before, digest, bytes: 10 * count, count, history }
    }

    fn base(history: u32, stamp: u64) -> Base {
        let (first, ms, view) = (stamp + 1, stamp, 1);
        Base { stamp, first, ms, pieces: 2, pages: 2, bytes: 9, view, digest: String::new(), history }
    }

    fn head(runs: &[Run], bases: &[Base], histories: &[History]) -> Head {
        let new = Head::new(SpaceId(7), 1, "a test", ViewId::new(1, 0));
        Head { runs: runs.into(), bases: bases.into(), histories: histories.into(), ..new }
    }

    #[test]
    fn run_that_lost_its_beginning_has_it_again() {
        let there = head(&[run(0, 1, 100, "", "a")], &[base(0, 0)], &[]);
        // The log goes on in the object behind the copy's last one, or in one that the copy has.
        for cut in [run(0, 101, 140, "a", "b"), run(0, 61, 140, "x", "b")] {
            let merged = merged(&there, &head(&[cut], &[base(0, 100)], &[]));
            assert_eq!(merged.runs, [Run { bytes: 1_400, ..run(0, 1, 140, "", "b") }]);
            assert_eq!((merged.bases.len(), merged.gaps.len()), (2, 0));
        }
    }

    #[test]
    fn entries_that_no_copy_saw_are_gaps() {
        // Behind a base that the log had not come to, and in a history that has gone by since.
        let there = head(&[run(0, 1, 100, "", "a")], &[base(0, 0), base(0, 105)], &[]);
        let archive = head(&[run(0, 121, 140, "z", "b")], &[base(0, 130)], &[]);
        let whole = merged(&there, &archive);
        let gaps =
            |head: &Head| head.gaps.iter().map(|gap| (gap.history, gap.after, gap.upto)).collect::<Vec<_>>();
        assert_eq!(gaps(&whole), [(0, 100, 130)]);
        assert!(whole.gap_at(0, Stamp(102)).is_some() && whole.base_for(0, Stamp(140)).is_some());

        let next = History { of: 0, after: 150, ms: 151 };
        let archive = head(&[run(1, 152, 160, "", "c")], &[base(1, 151)], &[next]);
        let there = head(&[run(0, 1, 100, "", "a")], &[base(0, 0)], &[]);
        let whole = merged(&there, &archive);
        assert_eq!(gaps(&whole), [(0, 100, 151)]);
        assert!(whole.gap_at(0, Stamp(120)).is_some() && whole.base_for(0, Stamp(100)).is_some());
        // Copied again, it is the same.
        assert_eq!(merged(&whole, &archive), whole);
    }
}
