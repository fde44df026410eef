//! The order of commits is an order in which they happened: one that was acknowledged before another began
//! comes first, and every one read what was so at its own place in the order.
//!
//! Only commits that write are promised this (read-only transactions are serializable and bound to their
//! session, but may lie in the past of others). Herlihy, Wing: *Linearizability*, TOPLAS 1990; Papadimitriou:
//! *The Serializability of Concurrent Database Updates*, JACM 1979 (strictness).

use crate::history::{Isolation, Outcome};
use crate::index::Index;
use crate::verdict::{Property, Violation};

/// Finds commits that are ordered against their times, and commits whose reads were not current at their
/// stamps.
pub fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    overlapping(index, &mut found);
    at_their_place(index, &mut found);
    found
}

fn overlapping(index: &Index<'_>, found: &mut Vec<Violation>) {
    let committed = |(i, t): &(usize, &crate::Transaction)| match t.outcome {
        Outcome::Committed(stamp) if !t.is_read_only() => Some((*i, stamp)),
        _ => None,
    };
    let all: Vec<(usize, u64)> = index.transactions().filter_map(|it| committed(&it)).collect();
    let of = |i: usize| &index.history.transactions[i];
    let (mut begun, mut ended) = (all.clone(), all);
    begun.sort_by_key(|(i, _)| of(*i).begin_us);
    ended.sort_by_key(|(i, _)| of(*i).end_us);
    let mut ended = ended.into_iter().peekable();
    let mut last: Option<(usize, u64)> = None;
    for (i, stamp) in begun {
        while let Some((e, s)) = ended.next_if(|(e, _)| of(*e).end_us < of(i).begin_us) {
            last = Some(last.filter(|(_, l)| *l >= s).unwrap_or((e, s)));
        }
        if let Some((e, s)) = last
            && s >= stamp
        {
            let text =
                format!("transaction {e} was acknowledged at {s} before {i} began, which is at {stamp}");
            found.push(Violation::new(Property::Strict, vec![e, i], text));
        }
    }
}

fn at_their_place(index: &Index<'_>, found: &mut Vec<Violation>) {
    for (i, t) in index.transactions() {
        let Some(stamp) = index.stamp(i).filter(|_| !t.is_read_only()) else { continue };
        for read in &t.reads {
            let writes = t.writes.iter().any(|w| w.object == read.object);
            if t.isolation == Isolation::Snapshot && !writes {
                continue;
            }
            let (born, _) = index.life(read.object, read.value);
            let between = index.versions(read.object).iter().find(|(s, _)| *s > born && *s < stamp);
            // A version of unknown place proves nothing.
            let known = index.born(read.object, read.value).is_some();
            if let (Some((s, value)), true) = (between, known) {
                let text = format!(
                    "transaction {i} at {stamp} read {} in object {}, which {} had replaced at {s}",
                    read.value.0, read.object.0, value.0
                );
                let other = index.writer(read.object, *value);
                found.push(Violation::new(Property::Strict, other.into_iter().chain([i]).collect(), text));
            } else if born >= stamp {
                let text = format!(
                    "transaction {i} at {stamp} read {} in object {}, which was not written before {born}",
                    read.value.0, read.object.0
                );
                found.push(Violation::new(Property::Strict, vec![i], text));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::history::test::{history, r, t, w};
    use crate::{Index, Isolation};

    #[test]
    fn earlier_ended_transaction_comes_first() {
        let h = history([t(1).writes([w(1, 10)]).begin(0).at(5), t(2).writes([w(2, 20)]).begin(100).at(6)]);
        assert_eq!(super::check(&Index::new(&h)), []);
        let h = history([t(1).writes([w(1, 10)]).begin(0).at(6), t(2).writes([w(2, 20)]).begin(100).at(5)]);
        assert_eq!(super::check(&Index::new(&h)).len(), 1);
        let h = history([t(1).writes([w(1, 10)]).begin(0).at(6), t(2).writes([w(2, 20)]).begin(1).at(5)]);
        assert_eq!(super::check(&Index::new(&h)), []);
    }

    #[test]
    fn a_commit_read_what_was_so_at_its_place() {
        let first = t(1).writes([w(1, 10)]).at(5);
        for (value, at, wrong) in [(10, 6, 0), (0, 6, 1), (0, 4, 0), (10, 4, 1)] {
            let h = history([first.clone(), t(2).reads([r(1, value)]).writes([w(2, 20)]).at(at)]);
            assert_eq!(super::check(&Index::new(&h)).len(), wrong, "{value} at {at}");
        }
    }

    #[test]
    fn snapshot_checks_only_writes() {
        let first = t(1).writes([w(1, 10)]).at(5);
        for (object, wrong) in [(2, 0), (1, 1)] {
            let mut second = t(2).reads([r(1, 0)]).writes([w(object, 20)]).at(6);
            second.0.isolation = Isolation::Snapshot;
            assert_eq!(super::check(&Index::new(&history([first.clone(), second]))).len(), wrong);
        }
    }
}
