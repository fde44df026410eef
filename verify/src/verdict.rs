//! The findings of a checker.

use std::fmt;

use serde::Serialize;

/// The properties that a history must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Property {
    /// [`crate::clean`]
    Clean,
    /// [`crate::once`]
    Once,
    /// [`crate::durable`]
    Durable,
    /// [`crate::whole`]
    Whole,
    /// [`crate::session`]
    Session,
    /// [`crate::strict`]
    Strict,
    /// [`crate::serializable`]
    Serializable,
    /// [`crate::converged`]
    Converged,
}

/// Something that must not have happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The property that was broken.
    pub property: Property,
    /// A sentence that describes the violation.
    pub text: String,
    /// The transactions that took part: places in the history's list.
    pub transactions: Vec<usize>,
}

impl Violation {
    pub(crate) fn new(property: Property, transactions: Vec<usize>, text: String) -> Violation {
        Violation { property, text, transactions }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.property, self.text)?;
        if !self.transactions.is_empty() {
            write!(f, " (transactions")?;
            self.transactions.iter().try_for_each(|t| write!(f, " {t}"))?;
            write!(f, ")")?;
        }
        Ok(())
    }
}
