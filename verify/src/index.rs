//! Look-ups in a history: the writer of a version, its time, and the version after it.
//!
//! The invariant: an interval that [`Index::life`] gives is never shorter than the version's real life. Where
//! a place in the order is not known the bound is left open.

use std::collections::BTreeMap;

use crate::history::{History, Logged, Object, Outcome, Transaction, Value};

/// The look-up tables of one history.
pub struct Index<'h> {
    pub history: &'h History,
    /// By transaction, its place in the order, if it committed and that is known.
    stamps: Vec<Option<u64>>,
    /// By transaction, whether it must have taken effect.
    effects: Vec<bool>,
    /// The transaction that wrote each version.
    writers: BTreeMap<(Object, Value), usize>,
    /// The versions of an object whose stamps are known, in order.
    versions: BTreeMap<Object, Vec<(u64, Value)>>,
    /// The log, by operation.
    logged: BTreeMap<&'h str, &'h Logged>,
    /// The log, by place in the order.
    logged_at: BTreeMap<u64, &'h Logged>,
    /// Versions that only the log knows a writer of.
    strangers: BTreeMap<(Object, Value), u64>,
}

impl<'h> Index<'h> {
    /// Looks through the history once.
    pub fn new(history: &'h History) -> Index<'h> {
        let logged: BTreeMap<&str, &Logged> =
            history.log.iter().flatten().map(|entry| (entry.op.as_str(), entry)).collect();
        let mut index = Index {
            history,
            stamps: vec![None; history.transactions.len()],
            effects: vec![false; history.transactions.len()],
            writers: BTreeMap::new(),
            versions: BTreeMap::new(),
            logged,
            logged_at: history.log.iter().flatten().map(|entry| (entry.stamp, entry)).collect(),
            strangers: BTreeMap::new(),
        };
        index.place();
        index.see();
        index.order();
        index
    }

    fn place(&mut self) {
        for (i, t) in self.history.transactions.iter().enumerate() {
            let logged = t.op.as_deref().and_then(|op| self.logged.get(op)).map(|entry| entry.stamp);
            self.stamps[i] = match t.outcome {
                Outcome::Committed(stamp) => Some(stamp),
                Outcome::Unknown => logged,
                Outcome::Aborted => None,
            };
            self.effects[i] = self.stamps[i].is_some();
            for w in &t.writes {
                self.writers.entry((w.object, w.value)).or_insert(i);
            }
        }
        for entry in self.history.log.iter().flatten() {
            for w in &entry.writes {
                if !self.writers.contains_key(&(w.object, w.value)) {
                    self.strangers.insert((w.object, w.value), entry.stamp);
                }
            }
        }
    }

    /// Marks a transaction of unknown outcome as effective if a read or a view saw one of its writes.
    fn see(&mut self) {
        let views = self.history.views.iter().flat_map(|v| &v.objects);
        let reads = self.history.transactions.iter().flat_map(|t| &t.reads);
        for read in reads.chain(views) {
            if let Some(i) = self.writers.get(&(read.object, read.value))
                && self.history.transactions[*i].outcome == Outcome::Unknown
            {
                self.effects[*i] = true;
            }
        }
    }

    fn order(&mut self) {
        let known = self.history.transactions.iter().zip(&self.stamps);
        for (t, stamp) in known.filter_map(|(t, s)| Some((t, (*s)?))) {
            for w in &t.writes {
                self.versions.entry(w.object).or_default().push((stamp, w.value));
            }
        }
        for ((object, value), stamp) in &self.strangers {
            self.versions.entry(*object).or_default().push((*stamp, *value));
        }
        self.versions.values_mut().for_each(|v| v.sort_unstable());
    }

    /// A transaction's place in the order, if it committed and that is known.
    pub fn stamp(&self, transaction: usize) -> Option<u64> {
        self.stamps[transaction]
    }

    /// Says whether a transaction has committed, as was reported or can be seen.
    pub fn has_effect(&self, transaction: usize) -> bool {
        self.effects[transaction]
    }

    /// Says whether the log is known and does not have what the transaction wrote.
    pub fn is_lost(&self, transaction: usize) -> bool {
        let t = &self.history.transactions[transaction];
        self.history.log.as_ref().is_some_and(|log| match &t.op {
            Some(op) => !self.logged.contains_key(op.as_str()),
            // Values are unique, so an entry with any of them is the transaction's.
            None => !log.iter().any(|entry| t.writes.iter().any(|w| entry.writes.contains(w))),
        })
    }

    /// Gives the transaction that wrote a version.
    pub fn writer(&self, object: Object, value: Value) -> Option<usize> {
        self.writers.get(&(object, value)).copied()
    }

    /// Says whether the version exists: it is the initial one, a transaction wrote it, or only the log names
    /// its write.
    pub fn is_written(&self, object: Object, value: Value) -> bool {
        value == Value::INITIAL
            || self.writers.contains_key(&(object, value))
            || self.strangers.contains_key(&(object, value))
    }

    /// The log's entry of an operation.
    pub fn logged(&self, op: &str) -> Option<&'h Logged> {
        self.logged.get(op).copied()
    }

    /// The log's entry at a place in the order.
    pub fn logged_at(&self, stamp: u64) -> Option<&'h Logged> {
        self.logged_at.get(&stamp).copied()
    }

    /// The versions of an object whose place is known, in order.
    pub fn versions(&self, object: Object) -> &[(u64, Value)] {
        self.versions.get(&object).map_or(&[], |v| v.as_slice())
    }

    /// The objects that were written.
    pub fn objects(&self) -> impl Iterator<Item = Object> + '_ {
        self.versions.keys().copied()
    }

    /// The stamp that made a version: 0 for the initial one, none if it is not known.
    pub fn born(&self, object: Object, value: Value) -> Option<u64> {
        if value == Value::INITIAL {
            return Some(0);
        }
        match self.writer(object, value) {
            Some(i) => self.stamps[i],
            None => self.strangers.get(&(object, value)).copied(),
        }
    }

    /// From which stamp on a version was the object's, and the first at which it was not any more.
    pub fn life(&self, object: Object, value: Value) -> (u64, u64) {
        let Some(born) = self.born(object, value) else { return (0, u64::MAX) };
        let next = self.versions(object).iter().find(|(stamp, _)| *stamp > born).map(|(stamp, _)| *stamp);
        (born, next.unwrap_or(u64::MAX))
    }

    /// The transactions with their places in the list.
    pub fn transactions(&self) -> impl Iterator<Item = (usize, &'h Transaction)> + '_ {
        self.history.transactions.iter().enumerate()
    }
}
