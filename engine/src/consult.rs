//! Questions of a space's server to the servers of other spaces, and their answers.

use tercel_wire::id::{OpId, SpaceId, Stamp};
use tercel_wire::message::{Decision, Settle};
use tercel_wire::vector::Vector;

/// A question or a message to another space, about a transaction over both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Consult {
    /// A participant asks the coordinator what became of a transaction that it has prepared.
    Inquire {
        /// The space that decides it.
        coordinator: SpaceId,
        /// The transaction.
        of: OpId,
        /// The stamp of the prepare here.
        prepared: Stamp,
    },
    /// The coordinator tells a participant the end of a transaction, until its part is settled.
    Settle {
        /// The space that has prepared a part.
        participant: SpaceId,
        /// The end.
        settle: Settle,
    },
}

impl Consult {
    /// The space that is asked.
    pub fn space(&self) -> SpaceId {
        match self {
            Consult::Inquire { coordinator, .. } => *coordinator,
            Consult::Settle { participant, .. } => *participant,
        }
    }
}

/// The answer of another space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Consulted {
    /// The end of the transaction, and of a committed one what it depends on.
    Decided(Decision, Vector),
    /// The part is settled.
    Settled,
    /// The space was not reached, or refused: with a sentence.
    Failed(String),
}
