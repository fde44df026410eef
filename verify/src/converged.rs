//! When nothing happens any more, all parts agree: each cache with the server, the server and the pages with
//! the log.
//!
//! For the caches this is what convergence means (Saito, Shapiro: *Optimistic Replication*, ACM Computing
//! Surveys 2005); for log and pages, that redo is complete (Gray, Reuter: *Transaction Processing*, 1993,
//! chapter 11).

use std::collections::BTreeMap;

use crate::history::{Kind, Object, Value, View};
use crate::index::Index;
use crate::verdict::{Property, Violation};

/// Finds each view that differs from the server's or the log's, and each last write that the log's view
/// misses.
pub fn check(index: &Index<'_>) -> Vec<Violation> {
    let views = &index.history.views;
    let mut found = Vec::new();
    let first = |kind| views.iter().find(|v| v.kind == kind);
    for (kind, reference) in
        [(Kind::Cache, Kind::Server), (Kind::Pages, Kind::Log), (Kind::Server, Kind::Log)]
    {
        let Some(reference) = first(reference) else { continue };
        views.iter().filter(|v| v.kind == kind).for_each(|view| compare(view, reference, &mut found));
    }
    if let Some(replayed) = first(Kind::Log) {
        last_values(index, replayed, &mut found);
    }
    found
}

fn compare(view: &View, reference: &View, found: &mut Vec<Violation>) {
    let reference_values: BTreeMap<Object, Value> =
        reference.objects.iter().map(|r| (r.object, r.value)).collect();
    for read in &view.objects {
        match reference_values.get(&read.object) {
            Some(value) if *value != read.value => {
                let text = format!(
                    "{} says {} in object {}, {} says {}",
                    view.viewer, read.value.0, read.object.0, reference.viewer, value.0
                );
                found.push(Violation::new(Property::Converged, vec![], text));
            }
            Some(_) => {}
            // A log may be asked for fewer objects than a server.
            None if view.kind == Kind::Server => {}
            None => {
                let text =
                    format!("{} has object {}, {} has not", view.viewer, read.object.0, reference.viewer);
                found.push(Violation::new(Property::Converged, vec![], text));
            }
        }
    }
}

/// Compares the replayed objects with the last writes of the commits.
fn last_values(index: &Index<'_>, replayed: &View, found: &mut Vec<Violation>) {
    for read in &replayed.objects {
        let last = index.versions(read.object).last();
        if let Some((stamp, value)) = last
            && *value != read.value
            && index.born(read.object, read.value).is_some_and(|born| born <= *stamp)
        {
            let text = format!(
                "{} says {} in object {}, whose last version is {} of {stamp}",
                replayed.viewer, read.value.0, read.object.0, value.0
            );
            found.push(Violation::new(Property::Converged, vec![], text));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::history::test::{history, r, t, view, w};
    use crate::{Index, Kind};

    #[test]
    fn caches_say_what_the_server_says_and_pages_what_the_log_says() {
        for (kind, reference) in [(Kind::Cache, Kind::Server), (Kind::Pages, Kind::Log)] {
            let mut h = history([]);
            for (value, wrong) in [(10, 0), (11, 1)] {
                let (mut a, mut b) = (view([r(1, value)]), view([r(1, 10), r(2, 20)]));
                (a.kind, b.kind) = (kind, reference);
                h.views = vec![a, b];
                assert_eq!(super::check(&Index::new(&h)).len(), wrong);
            }
        }
    }

    #[test]
    fn a_replay_gives_the_last_version() {
        let mut h = history([t(1).writes([w(1, 10)]).at(1), t(1).writes([w(1, 11)]).at(2)]);
        for (value, wrong) in [(11, 0), (10, 1)] {
            let mut v = view([r(1, value)]);
            v.kind = Kind::Log;
            h.views = vec![v];
            assert_eq!(super::check(&Index::new(&h)).len(), wrong);
        }
    }
}
