//! Failures of a call: by the method's own decision, or for want of something that it needed.

use std::convert::Infallible;
use std::fmt;

use crate::error::Error;
use crate::object::Record;

/// The result of a method, as its caller gets it.
pub type Called<T, E = Infallible> = Result<T, Failure<E>>;

/// Why a call gave no result. Nothing that the method wrote is kept.
///
/// By `?` a method passes on any [`Error`], and its own error, which is a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure<E = Infallible> {
    /// The method has failed by its own decision.
    Method(E),
    /// The method could not be run, or did not come to its end.
    Space(Error),
}

impl<E> Failure<E> {
    /// The method's own error; none if it did not come to that.
    pub fn method(self) -> Option<E> {
        match self {
            Failure::Method(e) => Some(e),
            Failure::Space(_) => None,
        }
    }
}

impl<E> From<Error> for Failure<E> {
    fn from(e: Error) -> Failure<E> {
        Failure::Space(e)
    }
}

impl<E: Record> From<E> for Failure<E> {
    fn from(e: E) -> Failure<E> {
        Failure::Method(e)
    }
}

impl<E: fmt::Debug> fmt::Display for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Method(e) => write!(f, "the method has failed: {e:?}"),
            Failure::Space(e) => e.fmt(f),
        }
    }
}

impl<E: fmt::Debug> std::error::Error for Failure<E> {}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Method(never) => match never {},
            Failure::Space(e) => e,
        }
    }
}
