//! No transaction sees a mixture of two states, whether it commits or not: there is a moment at which all
//! that it read was so, and one that wrote nothing read the state that it names.
//!
//! Guerraoui, Kapałka: *On the Correctness of Transactional Memory*, PPoPP 2008 (opacity).

use crate::history::Outcome;
use crate::index::Index;
use crate::verdict::{Property, Violation};

/// Finds each transaction that saw a mixture of two states, or another state than it names.
pub fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (i, t) in index.transactions() {
        let mut seen = std::collections::BTreeMap::new();
        let twice = t.reads.iter().find(|read| *seen.entry(read.object).or_insert(read.value) != read.value);
        if let Some(read) = twice {
            let text = format!("transaction {i} sees two versions of object {}", read.object.0);
            found.push(Violation::new(Property::Whole, vec![i], text));
            continue;
        }
        let mut from = (0, None);
        let mut to = (u64::MAX, None);
        for read in &t.reads {
            let (born, gone) = index.life(read.object, read.value);
            if born > from.0 {
                from = (born, Some(read.object.0));
            }
            if gone < to.0 {
                to = (gone, Some(read.object.0));
            }
        }
        let by = |object: Option<u64>| object.map_or_else(String::new, |o| format!(" by object {o}"));
        if from.0 >= to.0 {
            let text = format!(
                "transaction {i} sees what began at {}{} with what ended at {}{}",
                from.0,
                by(from.1),
                to.0,
                by(to.1)
            );
            found.push(Violation::new(Property::Whole, vec![i], text));
            continue;
        }
        if let (true, Outcome::Committed(at)) = (t.is_read_only(), t.outcome)
            && !(from.0 <= at && at < to.0)
        {
            let text = format!(
                "transaction {i} names the state {at} and sees one of {}{} to {}{}",
                from.0,
                by(from.1),
                to.0,
                by(to.1)
            );
            found.push(Violation::new(Property::Whole, vec![i], text));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::Index;
    use crate::history::test::{history, r, t, w};

    #[test]
    fn one_state_is_fine_and_a_mixture_is_not() {
        let both = t(1).writes([w(1, 10), w(2, 20)]).at(5);
        for (reads, wrong) in [
            ([r(1, 10), r(2, 20)], 0),
            ([r(1, 0), r(2, 0)], 0),
            ([r(1, 10), r(2, 0)], 1),
            ([r(1, 0), r(1, 10)], 1),
        ] {
            let h = history([both.clone(), t(2).reads(reads).aborted()]);
            assert_eq!(super::check(&Index::new(&h)).len(), wrong, "{reads:?}");
        }
    }

    #[test]
    fn a_reader_names_the_state_that_it_read() {
        let two = [t(1).writes([w(1, 10)]).at(5), t(1).writes([w(1, 11)]).at(8)];
        for (at, wrong) in [(5, 0), (7, 0), (8, 1), (4, 1)] {
            let h = history(two.iter().cloned().chain([t(2).reads([r(1, 10)]).at(at)]));
            assert_eq!(super::check(&Index::new(&h)).len(), wrong, "at {at}");
        }
    }
}
