//! A session sees its own commits, and never goes back to an older state than it has seen.
//!
//! Terry et al.: *Session Guarantees for Weakly Consistent Replicated Data*, PDIS 1994 (read your writes,
//! monotonic reads; with one order of commits the other two follow).

use std::collections::BTreeMap;

use crate::history::{Outcome, Session};
use crate::index::Index;
use crate::verdict::{Property, Violation};

/// The newest state that a session has seen, and the transaction that has seen it.
#[derive(Clone, Copy, Default)]
struct Seen {
    stamp: u64,
    transaction: usize,
}

/// Finds each transaction that saw an older state than its session had seen before.
pub fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut sessions: BTreeMap<Session, Vec<usize>> = BTreeMap::new();
    index.transactions().for_each(|(i, t)| sessions.entry(t.session).or_default().push(i));
    let mut found = Vec::new();
    for (session, mut all) in sessions {
        all.sort_by_key(|i| (index.history.transactions[*i].begin_us, *i));
        let mut seen = Seen::default();
        // An outcome that a session learned only later, by asking for a timed-out operation, counts from then
        // on.
        let mut ended: Vec<(u64, Seen)> = Vec::new();
        for i in all {
            let t = &index.history.transactions[i];
            ended.retain(|(end_us, reached)| {
                let is_past = *end_us <= t.begin_us;
                if is_past && reached.stamp > seen.stamp {
                    seen = *reached;
                }
                !is_past
            });
            ended.push((t.end_us, follow(index, session, i, seen, &mut found)));
        }
    }
    found
}

/// Checks one transaction of a session that has seen so much; gives what has been seen once it has ended.
fn follow(index: &Index<'_>, session: Session, i: usize, seen: Seen, found: &mut Vec<Violation>) -> Seen {
    let t = &index.history.transactions[i];
    let mut reached = 0;
    for read in &t.reads {
        let (born, gone) = index.life(read.object, read.value);
        reached = reached.max(born);
        if gone <= seen.stamp {
            let text = format!(
                "session {} has seen state {} and then reads {} in object {}, which was replaced at {gone}",
                session.0, seen.stamp, read.value.0, read.object.0
            );
            found.push(Violation::new(Property::Session, vec![seen.transaction, i], text));
        }
    }
    if let Outcome::Committed(stamp) = t.outcome {
        if stamp < seen.stamp {
            let text = format!("session {} goes back from state {} to {stamp}", session.0, seen.stamp);
            found.push(Violation::new(Property::Session, vec![seen.transaction, i], text));
        }
        reached = reached.max(stamp);
    }
    Seen { stamp: reached, transaction: i }
}

#[cfg(test)]
mod tests {
    use crate::Index;
    use crate::history::test::{history, r, t, w};

    #[test]
    fn a_session_sees_its_own_commit_and_another_may_not_yet() {
        let own = t(1).writes([w(1, 10)]).at(5);
        for (session, wrong) in [(1, 1), (2, 0)] {
            let late = t(session).reads([r(1, 0)]).begin(10).aborted();
            assert_eq!(super::check(&Index::new(&history([own.clone(), late]))).len(), wrong);
        }
    }

    #[test]
    fn a_timeout_that_turns_out_to_be_a_commit_counts_from_then_on() {
        for (end_us, wrong) in [(5, 1), (30, 0)] {
            let mut own = t(1).writes([w(1, 10)]).at(5);
            own.0.end_us = end_us;
            let next = t(1).reads([r(1, 0)]).begin(10).at(4);
            assert_eq!(super::check(&Index::new(&history([own, next]))).len(), 2 * wrong);
        }
    }

    #[test]
    fn a_session_does_not_go_back() {
        let writes = [t(1).writes([w(1, 10)]).at(5), t(1).writes([w(2, 20)]).at(6)];
        let new = t(2).reads([r(2, 20)]).begin(10).at(6);
        for (again, wrong) in
            [(t(2).reads([r(1, 10)]).at(7), 0), (t(2).reads([r(1, 0)]).aborted(), 1), (t(2).at(5), 1)]
        {
            let h = history(writes.iter().cloned().chain([new.clone(), again.begin(20)]));
            assert_eq!(super::check(&Index::new(&h)).len(), wrong);
        }
    }
}
