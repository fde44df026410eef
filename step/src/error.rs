//! The reason for which a file is refused.

use thiserror::Error;

/// A place in a file that breaks the form: the author of the file must act.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct ParseError {
    /// The line, counted from 1; LF, CR LF and CR end one.
    pub line: u64,
    /// The reason, as a sentence without its full stop.
    pub reason: String,
}

/// A reason at a place in a statement.
#[derive(Debug)]
pub(crate) struct Fault {
    /// The offset in the statement.
    pub(crate) at: usize,
    pub(crate) reason: String,
}

impl Fault {
    #[cold]
    pub(crate) fn new(at: usize, reason: impl Into<String>) -> Fault {
        Fault { at, reason: reason.into() }
    }
}
