//! Acknowledged commits stay: each is in the log if there is one, at its place, and no later view of the
//! space shows an older version than the last acknowledged version.
//!
//! Gray, Reuter: *Transaction Processing*, 1993, chapter 10 (the D of ACID).

use crate::history::Outcome;
use crate::index::Index;
use crate::verdict::{Property, Violation};

/// Finds each acknowledged commit that the log or a later view does not hold.
pub fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut bad = |transactions, text| found.push(Violation::new(Property::Durable, transactions, text));
    if index.history.log.is_some() {
        for (i, t) in index.transactions().filter(|(_, t)| !t.is_read_only()) {
            let Outcome::Committed(stamp) = t.outcome else { continue };
            // A commit whose operation the history does not name is known by its place.
            let (entry, name) = match &t.op {
                Some(op) => (index.logged(op), format!("operation {op}")),
                None => (index.logged_at(stamp), "a commit".into()),
            };
            match entry {
                None => bad(vec![i], format!("{name} was acknowledged at {stamp} and is lost")),
                Some(entry) if entry.stamp != stamp => {
                    bad(vec![i], format!("{name} was acknowledged at {stamp} and is at {}", entry.stamp));
                }
                Some(entry) if !t.writes.iter().all(|w| entry.writes.contains(w)) => {
                    bad(vec![i], format!("{name} of {stamp} is in the log with other effects"));
                }
                Some(_) => {}
            }
        }
    }
    for view in &index.history.views {
        for read in &view.objects {
            let last = index.versions(read.object).last();
            let (Some((stamp, value)), Some(born)) = (last, index.born(read.object, read.value)) else {
                continue;
            };
            if born < *stamp {
                let writer = index.writer(read.object, *value).into_iter().collect();
                let (object, seen) = (read.object.0, read.value.0);
                let text = format!(
                    "{} has {seen} (of {born}) in object {object}, although {} was committed at {stamp}",
                    view.viewer, value.0
                );
                bad(writer, text);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::history::test::{history, r, t, view, w};
    use crate::{Index, Logged};

    #[test]
    fn the_last_acknowledged_version_is_there_in_the_end() {
        let mut h = history([t(1).writes([w(1, 10)]).at(4), t(1).writes([w(1, 11)]).at(5)]);
        h.views = vec![view([r(1, 11)])];
        assert_eq!(super::check(&Index::new(&h)), []);
        h.views = vec![view([r(1, 10)])];
        assert_eq!(super::check(&Index::new(&h)).len(), 1);
    }

    #[test]
    fn an_unknown_one_may_have_come_last() {
        let mut h = history([t(1).writes([w(1, 10)]).at(4), t(1).writes([w(1, 11)]).unknown()]);
        for value in [10, 11] {
            h.views = vec![view([r(1, value)])];
            assert_eq!(super::check(&Index::new(&h)), []);
        }
    }

    #[test]
    fn the_log_has_it_where_it_was_said_to_be() {
        let mut h = history([t(1).writes([w(1, 10)]).op("a").at(4)]);
        let entry = |stamp, value| Logged { stamp, op: "a".into(), writes: vec![w(1, value)] };
        let logs = [(vec![entry(4, 10)], 0), (vec![entry(5, 10)], 1), (vec![entry(4, 9)], 1), (vec![], 1)];
        for (log, wrong) in logs.clone() {
            h.log = Some(log);
            assert_eq!(super::check(&Index::new(&h)).len(), wrong);
        }
        // The same of one whose operation the history does not name.
        h.transactions[0].op = None;
        for (log, wrong) in logs {
            h.log = Some(log);
            assert_eq!(super::check(&Index::new(&h)).len(), wrong);
        }
    }
}
