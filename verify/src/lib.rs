//! Checkers of histories: histories in, verdicts out.
//!
//! A [`History`] says what the clients of a space saw and did: which versions each transaction read and
//! wrote, when, and how it ended. It may come from a simulation, which also knows the log, or from real
//! processes, which do not. Not here: how a history is made, and anything about the engine. The checkers know
//! no engine and trust none.
//!
//! The invariant: a checker never blames a history that a correct space could have produced. What is not
//! known counts for the space: a timeout is *unknown*, never *not done*, and a version without a known place
//! in the order excuses whatever depends on that place.
//!
//! | module | property | source |
//! |---|---|---|
//! | [`serializable`] | transactions look as if they ran one after the other | Adya, Liskov, O'Neil, ICDE 2000 (PL-3) |
//! | [`strict`] | commits are ordered as they happened | Herlihy, Wing, TOPLAS 1990; Papadimitriou, JACM 1979 |
//! | [`whole`] | no transaction, not even one that aborts, sees a mixture | Guerraoui, Kapałka, PPoPP 2008 (opacity) |
//! | [`clean`] | no transaction sees a value that was aborted or never written | Adya et al. (G1a, G1b) |
//! | [`session`] | a session sees its own commits and never goes back | Terry et al., PDIS 1994 |
//! | [`durable`] | acknowledged commits stay | Gray, Reuter 1993, chapter 10 |
//! | [`once`] | an operation is executed once at most | Birrell, Nelson, TOCS 1984; Lee et al. (RIFL), SOSP 2015 |
//! | [`converged`] | in the end all caches say what the server says, and the pages what the log says | Gray, Reuter, chapter 11 |
//!
//! ```
//! use tercel_verify::{History, Isolation, Object, Outcome, Process, Read, Session, Transaction, Value, Write};
//!
//! let t = |session, begin_us, read, write, outcome| Transaction {
//!     session: Session(session),
//!     process: Process(session),
//!     begin_us,
//!     end_us: begin_us + 5,
//!     isolation: Isolation::Serializable,
//!     reads: vec![Read { object: Object(7), value: Value(read) }],
//!     writes: vec![Write { object: Object(7), value: Value(write) }],
//!     outcome,
//!     op: None,
//!     request: None,
//! };
//! let mut history = History::default();
//! history.transactions.push(t(1, 0, 0, 100, Outcome::Committed(1)));
//! history.transactions.push(t(2, 10, 100, 200, Outcome::Committed(2)));
//! assert_eq!(tercel_verify::check(&history), []);
//! // A third one did not see the second, and changed the object all the same.
//! history.transactions.push(t(3, 20, 100, 300, Outcome::Committed(3)));
//! assert!(!tercel_verify::check(&history).is_empty());
//! ```
#![forbid(unsafe_code)]

pub mod clean;
pub mod converged;
pub mod durable;
mod history;
mod index;
pub mod once;
pub mod serializable;
pub mod session;
pub mod strict;
mod verdict;
pub mod whole;

pub use history::{
    BadHistory, History, Isolation, Kind, Logged, Object, Outcome, Process, Read, Session, Transaction,
    Value, View, Write,
};
pub use index::Index;
pub use verdict::{Property, Violation};

/// Checks every property. An empty answer means that nothing is wrong with the history.
pub fn check(history: &History) -> Vec<Violation> {
    check_each(history, |_| ())
}

/// [`check`], which says which property is next: a long history takes a while.
pub fn check_each(history: &History, mut next: impl FnMut(Property)) -> Vec<Violation> {
    let index = Index::new(history);
    let mut found = Vec::new();
    for (property, check) in CHECKS {
        next(property);
        found.extend(check(&index));
    }
    found
}

/// The number of properties.
pub const PROPERTIES: usize = CHECKS.len();

type Check = fn(&Index<'_>) -> Vec<Violation>;

const CHECKS: [(Property, Check); 8] = [
    (Property::Clean, clean::check),
    (Property::Once, once::check),
    (Property::Durable, durable::check),
    (Property::Whole, whole::check),
    (Property::Session, session::check),
    (Property::Strict, strict::check),
    (Property::Serializable, serializable::check),
    (Property::Converged, converged::check),
];
