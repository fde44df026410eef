//! An operation is executed once at most, however often it was sent, asked for and run again.
//!
//! Birrell, Nelson: *Implementing Remote Procedure Calls*, TOCS 1984; Lee et al.: *Implementing
//! Linearizability at Large Scale and Low Latency* (RIFL), SOSP 2015.

use std::collections::BTreeMap;

use crate::history::Outcome;
use crate::index::Index;
use crate::verdict::{Property, Violation};

/// Finds each operation or request that was executed twice, or executed although it was reported as aborted.
pub fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut bad = |transactions, text| found.push(Violation::new(Property::Once, transactions, text));
    let mut executed: BTreeMap<&str, u64> = BTreeMap::new();
    for entry in index.history.log.iter().flatten() {
        if let Some(first) = executed.insert(&entry.op, entry.stamp) {
            bad(vec![], format!("operation {} is executed at {first} and at {}", entry.op, entry.stamp));
        }
    }
    let mut done: BTreeMap<u64, usize> = BTreeMap::new();
    for (i, t) in index.transactions() {
        let was_logged = t.op.as_deref().and_then(|op| index.logged(op));
        if let (Outcome::Aborted, Some(entry)) = (t.outcome, was_logged) {
            bad(
                vec![i],
                format!("operation {} was said not to be executed, and is, at {}", entry.op, entry.stamp),
            );
        }
        if !t.is_read_only()
            && index.has_effect(i)
            && let Some(first) = t.request.and_then(|request| done.insert(request, i))
        {
            bad(vec![first, i], format!("request {} is executed twice", t.request.unwrap_or(0)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::history::test::{history, t, w};
    use crate::{Index, Logged};

    #[test]
    fn attempts_that_failed_do_not_count() {
        let h = history([
            t(1).writes([w(1, 10)]).request(1).aborted(),
            t(1).writes([w(1, 11)]).request(1).unknown(),
            t(1).writes([w(1, 12)]).request(1).at(5),
        ]);
        assert_eq!(super::check(&Index::new(&h)), []);
    }

    #[test]
    fn two_attempts_that_both_happened_are_one_too_many() {
        let h = history([t(1).writes([w(1, 10)]).request(1).at(4), t(1).writes([w(1, 12)]).request(1).at(5)]);
        assert_eq!(super::check(&Index::new(&h)).len(), 1);
    }

    #[test]
    fn the_log_has_an_operation_once_and_none_that_was_refused() {
        let mut h = history([t(1).writes([w(1, 10)]).op("a").aborted()]);
        let entry = |stamp| Logged { stamp, op: "a".into(), writes: vec![w(1, 10)] };
        h.log = Some(vec![]);
        assert_eq!(super::check(&Index::new(&h)), []);
        h.log = Some(vec![entry(3)]);
        assert_eq!(super::check(&Index::new(&h)).len(), 1);
        h.log = Some(vec![entry(3), entry(4)]);
        assert_eq!(super::check(&Index::new(&h)).len(), 2);
    }
}
