//! No transaction sees an aborted value, a value that was never written, or a value that its own writer
//! replaced.
//!
//! Adya, Liskov, O'Neil: *Generalized Isolation Level Definitions*, ICDE 2000, phenomena G1a (aborted read)
//! and G1b (intermediate read). A history records only last values as writes, so an intermediate value counts
//! as never written.

use crate::history::{Outcome, Read};
use crate::index::Index;
use crate::verdict::{Property, Violation};

/// Finds each read of a value that was aborted, was never written or never became durable.
pub fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (i, t) in index.transactions() {
        found.extend(
            t.reads.iter().filter_map(|read| judge(index, &format!("transaction {i}"), Some(i), read)),
        );
    }
    for view in &index.history.views {
        found.extend(view.objects.iter().filter_map(|read| judge(index, &view.viewer, None, read)));
    }
    found
}

fn judge(index: &Index<'_>, viewer: &str, reader: Option<usize>, read: &Read) -> Option<Violation> {
    let (object, value) = (read.object.0, read.value.0);
    let (writer, text) = match index.writer(read.object, read.value) {
        None if index.is_written(read.object, read.value) => return None,
        None => (None, format!("{viewer} sees {value} in object {object}, which no transaction wrote")),
        Some(w) if index.history.transactions[w].outcome == Outcome::Aborted => {
            (Some(w), format!("{viewer} sees {value} in object {object}, which was aborted"))
        }
        Some(w) if index.is_lost(w) => {
            (Some(w), format!("{viewer} sees {value} in object {object}, which never became durable"))
        }
        Some(_) => return None,
    };
    Some(Violation::new(Property::Clean, reader.into_iter().chain(writer).collect(), text))
}

#[cfg(test)]
mod tests {
    use crate::Property::Clean;
    use crate::history::test::{history, r, t, w};

    #[test]
    fn what_was_committed_may_be_read() {
        let h = history([
            t(1).writes([w(1, 10)]).at(5),
            t(2).reads([r(1, 10)]).at(5),
            t(3).reads([r(2, 0)]).at(5),
        ]);
        assert_eq!(super::check(&crate::Index::new(&h)), []);
    }

    #[test]
    fn what_was_aborted_or_never_written_may_not() {
        for bad in [t(2).reads([r(1, 10)]).at(5), t(2).reads([r(1, 99)]).aborted()] {
            let h = history([t(1).writes([w(1, 10)]).aborted(), bad]);
            let found = super::check(&crate::Index::new(&h));
            assert_eq!(found.iter().map(|v| v.property).collect::<Vec<_>>(), [Clean]);
        }
    }

    #[test]
    fn what_the_log_does_not_have_was_shown_too_early() {
        let writer = t(1).writes([w(1, 10)]);
        // Whether or not the history names the operation.
        for writer in [writer.clone().op("a").unknown(), writer.clone().unknown(), writer.at(3)] {
            let mut h = history([writer, t(2).reads([r(1, 10)]).aborted()]);
            h.log = Some(vec![]);
            assert_eq!(super::check(&crate::Index::new(&h)).len(), 1);
            h.log = Some(vec![crate::Logged { stamp: 3, op: "a".into(), writes: vec![w(1, 10)] }]);
            assert_eq!(super::check(&crate::Index::new(&h)), []);
        }
    }

    #[test]
    fn a_timeout_may_have_happened() {
        let h = history([t(1).writes([w(1, 10)]).unknown(), t(2).reads([r(1, 10)]).at(5)]);
        assert_eq!(crate::check(&h), []);
    }
}
