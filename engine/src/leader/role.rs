//! The role of this space in a transaction over several.

use tercel_wire::id::{OpId, SpaceId};
use tercel_wire::message::Prepared;
use tercel_wire::vector::Vector;

/// The role of this space in a transaction over several, beside the part that is judged here.
#[derive(Debug, Clone)]
pub(crate) enum Role {
    /// A part is prepared for a transaction that another space decides.
    Participant {
        of: OpId,
        coordinator: SpaceId,
        /// States that this space would rest on.
        seen: Vector,
    },
    /// The transaction is decided here.
    Coordinator { parts: Vec<Prepared>, seen: Vector },
}
