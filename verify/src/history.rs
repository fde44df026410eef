//! A history in plain data: the input of every checker, and its form as JSON.
//!
//! Versions are named by values. The recorder of a history gives every write a value that no other write of
//! the history has, and keeps it in the object. So a read names the write that it saw. The invariant that the
//! recorder owes: values are unique, and one clock gives `begin_us` and `end_us` for all sessions.

use std::fmt;

use serde::{Deserialize, Serialize};

/// All that was seen of a space.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Where it comes from: a seed, a command line.
    #[serde(default)]
    pub about: String,
    /// In any order.
    pub transactions: Vec<Transaction>,
    /// Everything that the space ordered and made durable, in order, if the recorder knows it: then nothing
    /// else happened.
    #[serde(default)]
    pub log: Option<Vec<Logged>>,
    /// The views of the parts of the space when all was quiet again.
    #[serde(default)]
    pub views: Vec<View>,
}

/// An object, by any number that is its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Object(pub u64);

/// A version of an object: the number that its writer put there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Value(pub u64);

impl Value {
    /// The version before the history's first write, even if there was no object.
    pub const INITIAL: Value = Value(0);
}

/// A thread of a program, which runs transactions one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Session(pub u32);

/// A process, whose sessions share one cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Process(pub u32);

/// One attempt: what is run again after a conflict is another transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// The session that ran it.
    pub session: Session,
    /// The process that ran it.
    pub process: Process,
    /// When it began, in microseconds.
    pub begin_us: u64,
    /// When its end was known to the session.
    pub end_us: u64,
    /// The isolation that it was promised.
    #[serde(default)]
    pub isolation: Isolation,
    /// Its reads, without reads of its own writes.
    pub reads: Vec<Read>,
    /// Its writes: the last value of each object.
    pub writes: Vec<Write>,
    /// The end of the transaction.
    pub outcome: Outcome,
    /// The operation's name, if it was sent to the server.
    #[serde(default)]
    pub op: Option<String>,
    /// The request, which must be executed once; all attempts at it share this number.
    #[serde(default)]
    pub request: Option<u64>,
}

/// The isolation that a transaction was promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Isolation {
    /// As if transactions ran one after the other.
    #[default]
    Serializable,
    /// One state is read; what others change in it meanwhile matters only where it is written.
    Snapshot,
}

/// The end of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Acknowledged at this place in the order; one that wrote nothing names the state that it read.
    Committed(u64),
    /// It did not happen, and never will.
    Aborted,
    /// The session was not told the outcome.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    pub object: Object,
    /// It saw this version.
    pub value: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    pub object: Object,
    /// It made this version.
    pub value: Value,
}

/// A commit as the log has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logged {
    /// Its place in the order.
    pub stamp: u64,
    /// The operation.
    pub op: String,
    pub writes: Vec<Write>,
}

/// The objects of one part of the space when nothing happened any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The name of the part that said it.
    pub viewer: String,
    /// The kind of that part.
    pub kind: Kind,
    /// The versions that it gave, each object once.
    pub objects: Vec<Read>,
}

/// A part of a space that can be asked for objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// The server, through a client that had nothing cached.
    Server,
    /// A client's cache.
    Cache,
    /// The stored pages.
    Pages,
    /// The log, replayed from its beginning.
    Log,
}

/// A text that is no history.
#[derive(Debug)]
pub struct BadHistory(serde_json::Error);

impl fmt::Display for BadHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this is not a history: {}", self.0)
    }
}

impl std::error::Error for BadHistory {}

impl History {
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers, texts and lists are always JSON")
    }

    /// From JSON.
    ///
    /// # Errors
    /// Fails if the text is not JSON, or not a history: its writer must act.
    pub fn from_json(text: &str) -> Result<History, BadHistory> {
        serde_json::from_str(text).map_err(BadHistory)
    }
}

impl Transaction {
    /// Says whether it wrote nothing.
    pub fn is_read_only(&self) -> bool {
        self.writes.is_empty()
    }
}

#[cfg(test)]
pub(crate) mod test {
    //! Short words for histories written by hand.
    use super::*;

    #[derive(Clone)]
    pub(crate) struct T(pub Transaction);

    pub(crate) fn t(session: u32) -> T {
        T(Transaction {
            session: Session(session),
            process: Process(session),
            begin_us: 0,
            end_us: 5,
            isolation: Isolation::Serializable,
            reads: vec![],
            writes: vec![],
            outcome: Outcome::Unknown,
            op: None,
            request: None,
        })
    }

    impl T {
        pub(crate) fn reads(mut self, reads: impl Into<Vec<Read>>) -> T {
            self.0.reads = reads.into();
            self
        }

        pub(crate) fn writes(mut self, writes: impl Into<Vec<Write>>) -> T {
            self.0.writes = writes.into();
            self
        }

        pub(crate) fn begin(mut self, us: u64) -> T {
            (self.0.begin_us, self.0.end_us) = (us, us + 5);
            self
        }

        pub(crate) fn op(mut self, op: &str) -> T {
            self.0.op = Some(op.into());
            self
        }

        pub(crate) fn request(mut self, request: u64) -> T {
            self.0.request = Some(request);
            self
        }

        pub(crate) fn at(mut self, stamp: u64) -> T {
            self.0.outcome = Outcome::Committed(stamp);
            self
        }

        pub(crate) fn aborted(mut self) -> T {
            self.0.outcome = Outcome::Aborted;
            self
        }

        pub(crate) fn unknown(self) -> T {
            self
        }
    }

    pub(crate) fn r(object: u64, value: u64) -> Read {
        Read { object: Object(object), value: Value(value) }
    }

    pub(crate) fn w(object: u64, value: u64) -> Write {
        Write { object: Object(object), value: Value(value) }
    }

    pub(crate) fn view(objects: impl Into<Vec<Read>>) -> View {
        View { viewer: "server".into(), kind: Kind::Server, objects: objects.into() }
    }

    pub(crate) fn history(transactions: impl IntoIterator<Item = T>) -> History {
        History { transactions: transactions.into_iter().map(|t| t.0).collect(), ..History::default() }
    }

    #[test]
    fn a_history_comes_back_from_json() {
        let mut h = history([t(1).reads([r(1, 0)]).writes([w(1, 10)]).op("a").request(4).at(1)]);
        h.views = vec![view([r(1, 10)])];
        h.log = Some(vec![Logged { stamp: 1, op: "a".into(), writes: vec![w(1, 10)] }]);
        assert_eq!(History::from_json(&h.to_json()).unwrap(), h);
        assert!(History::from_json("{\"transactions\":7}").is_err());
    }
}
