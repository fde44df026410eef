//! Committed transactions look as if they had run one after the other: the graph of transactions that must
//! come before others has no cycle.
//!
//! Adya, Liskov, O'Neil: *Generalized Isolation Level Definitions*, ICDE 2000, PL-3 (no G0, G1c, G2);
//! Bernstein, Hadzilacos, Goodman: *Concurrency Control and Recovery in Database Systems*, 1987, chapter 5
//! (the version-order graph). Versions are ordered by the stamps of their writers. A version of unknown stamp
//! stands behind the version that its writer read, and before the version that overwrote it.

use std::collections::BTreeMap;

use crate::history::{Isolation, Object, Outcome, Value};
use crate::index::Index;
use crate::verdict::{Property, Violation};

/// Finds a cycle in the order of the transactions.
pub fn check(index: &Index<'_>) -> Vec<Violation> {
    let graph = Graph::new(index);
    let Some(cycle) = graph.cycle() else { return Vec::new() };
    let mut text = String::from("these must each come before the next:");
    for (n, t) in cycle.iter().enumerate() {
        let next = cycle[(n + 1) % cycle.len()];
        text.push_str(&format!(" {t} ({})", graph.why(*t, next)));
    }
    vec![Violation::new(Property::Serializable, cycle, text)]
}

/// Why one transaction must come before another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edge {
    /// The other read what it wrote.
    WriteRead(Object),
    /// The other replaced what it wrote.
    WriteWrite(Object),
    /// The other replaced what it read.
    ReadWrite(Object),
}

struct Graph {
    edges: Vec<Vec<(usize, Edge)>>,
}

impl Graph {
    fn new(index: &Index<'_>) -> Graph {
        let mut graph = Graph { edges: vec![Vec::new(); index.history.transactions.len()] };
        let next = successors(index);
        for (i, t) in index.transactions() {
            if !index.has_effect(i) || t.outcome == Outcome::Aborted {
                continue;
            }
            for read in &t.reads {
                let written = t.writes.iter().any(|w| w.object == read.object);
                if let Some(writer) = index.writer(read.object, read.value) {
                    graph.add(writer, i, Edge::WriteRead(read.object));
                }
                if t.isolation == Isolation::Snapshot && !written {
                    continue;
                }
                for later in next.get(&(read.object, read.value)).into_iter().flatten() {
                    graph.add(i, *later, Edge::ReadWrite(read.object));
                }
            }
            for w in &t.writes {
                for later in next.get(&(w.object, w.value)).into_iter().flatten() {
                    graph.add(i, *later, Edge::WriteWrite(w.object));
                }
            }
        }
        graph
    }

    fn add(&mut self, from: usize, to: usize, edge: Edge) {
        if from != to {
            self.edges[from].push((to, edge));
        }
    }

    /// Some cycle, if there is one: a walk in depth, without recursion, since histories are long.
    fn cycle(&self) -> Option<Vec<usize>> {
        #[derive(Clone, Copy, PartialEq)]
        enum Visit {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Visit::New; self.edges.len()];
        for root in 0..self.edges.len() {
            if marks[root] != Visit::New {
                continue;
            }
            let mut path = vec![(root, 0)];
            marks[root] = Visit::Open;
            while let Some((at, next)) = path.last_mut() {
                let Some((to, _)) = self.edges[*at].get(*next) else {
                    marks[*at] = Visit::Done;
                    path.pop();
                    continue;
                };
                *next += 1;
                match marks[*to] {
                    Visit::Done => {}
                    Visit::Open => {
                        let from = path.iter().position(|(t, _)| t == to).unwrap_or(0);
                        return Some(self.shortened(path[from..].iter().map(|(t, _)| *t).collect()));
                    }
                    Visit::New => {
                        marks[*to] = Visit::Open;
                        path.push((*to, 0));
                    }
                }
            }
        }
        None
    }

    /// The shortest cycle through the first of these, found in breadth: what a walk in depth finds may be a
    /// tour.
    fn shortened(&self, cycle: Vec<usize>) -> Vec<usize> {
        let root = cycle[0];
        let mut before: BTreeMap<usize, usize> = BTreeMap::new();
        let mut todo = std::collections::VecDeque::from([root]);
        while let Some(at) = todo.pop_front() {
            for (to, _) in &self.edges[at] {
                if *to == root {
                    let mut path = vec![at];
                    while let Some(p) = before.get(path.last().unwrap_or(&root)) {
                        path.push(*p);
                    }
                    path.reverse();
                    return path;
                }
                if *to != root && !before.contains_key(to) {
                    before.insert(*to, at);
                    todo.push_back(*to);
                }
            }
        }
        cycle
    }

    fn why(&self, from: usize, to: usize) -> String {
        match self.edges[from].iter().find(|(t, _)| *t == to).map(|(_, e)| *e) {
            Some(Edge::WriteRead(o)) => format!("its write to object {} was read", o.0),
            Some(Edge::WriteWrite(o)) => format!("its write to object {} was replaced", o.0),
            Some(Edge::ReadWrite(o)) => format!("what it read of object {} was replaced", o.0),
            None => "it must".into(),
        }
    }
}

/// Maps each version to its replacers: the next writer in the order of stamps, and writers that read it,
/// where a place is unknown.
fn successors(index: &Index<'_>) -> BTreeMap<(Object, Value), Vec<usize>> {
    let mut next: BTreeMap<(Object, Value), Vec<usize>> = BTreeMap::new();
    for object in index.objects() {
        let mut before = Value::INITIAL;
        for (_, value) in index.versions(object) {
            // A version that only the log knows takes its place in the order, but its writer is in no cycle.
            if let Some(writer) = index.writer(object, *value) {
                next.entry((object, before)).or_default().push(writer);
            }
            before = *value;
        }
    }
    let unknown = index.transactions().filter(|(i, _)| index.has_effect(*i) && index.stamp(*i).is_none());
    for (i, t) in unknown {
        for w in &t.writes {
            if let Some(read) = t.reads.iter().find(|r| r.object == w.object) {
                next.entry((w.object, read.value)).or_default().push(i);
            }
        }
    }
    // A transaction that read a version of unknown place and replaced it comes behind it, wherever that is.
    for (i, t) in index.transactions().filter(|(i, _)| index.stamp(*i).is_some()) {
        for w in &t.writes {
            let read =
                t.reads.iter().find(|r| r.object == w.object && index.born(r.object, r.value).is_none());
            if let Some(read) = read {
                next.entry((w.object, read.value)).or_default().push(i);
            }
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use crate::history::test::{history, r, t, w};
    use crate::{Index, Isolation};

    #[test]
    fn one_after_the_other_is_fine() {
        let h = history([
            t(1).reads([r(1, 0)]).writes([w(1, 10)]).at(1),
            t(2).reads([r(1, 10), r(2, 0)]).writes([w(2, 20)]).at(2),
            t(3).reads([r(1, 10), r(2, 0)]).at(1),
        ]);
        assert_eq!(super::check(&Index::new(&h)), []);
    }

    #[test]
    fn write_skew_is_a_cycle_unless_it_was_asked_for() {
        for (isolation, wrong) in [(Isolation::Serializable, 1), (Isolation::Snapshot, 0)] {
            let mut two = [
                t(1).reads([r(1, 0), r(2, 0)]).writes([w(1, 10)]).at(1),
                t(2).reads([r(1, 0), r(2, 0)]).writes([w(2, 20)]).at(2),
            ];
            two.iter_mut().for_each(|t| t.0.isolation = isolation);
            assert_eq!(super::check(&Index::new(&history(two))).len(), wrong);
        }
    }

    #[test]
    fn a_lost_update_is_a_cycle_even_if_one_of_the_two_timed_out() {
        let h = history([
            t(1).reads([r(1, 0)]).writes([w(1, 10)]).unknown(),
            t(2).reads([r(1, 0)]).writes([w(1, 11)]).at(2),
        ]);
        assert_eq!(super::check(&Index::new(&h)), [], "the first need not have happened");
        let h = history([
            t(1).reads([r(1, 0)]).writes([w(1, 10)]).unknown(),
            t(2).reads([r(1, 0)]).writes([w(1, 11)]).at(2),
            t(3).reads([r(1, 10)]).at(1),
        ]);
        assert_eq!(super::check(&Index::new(&h)).len(), 1);
    }

    #[test]
    fn readers_that_disagree_on_the_order_are_a_cycle() {
        // Fekete, O'Neil, O'Neil: a read-only transaction anomaly.
        let h = history([
            t(1).reads([r(2, 0)]).writes([w(2, 20)]).at(2),
            t(2).reads([r(1, 0), r(2, 0)]).writes([w(1, 10)]).at(3),
            t(3).reads([r(1, 0), r(2, 20)]).at(2),
        ]);
        let found = super::check(&Index::new(&h));
        assert_eq!(found.len(), 1);
        assert!(found[0].text.contains("was replaced"), "{}", found[0]);
    }

    #[test]
    fn a_chain_through_an_unknown_one_is_in_order() {
        let h = history([
            t(1).reads([r(1, 0)]).writes([w(1, 10)]).at(1),
            t(2).reads([r(1, 10)]).writes([w(1, 11)]).unknown(),
            t(3).reads([r(1, 11)]).writes([w(1, 12)]).at(3),
        ]);
        assert_eq!(crate::check(&h), []);
    }
}
