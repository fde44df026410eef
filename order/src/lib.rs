//! The sequencer's shape: entries in, their order and its safety out.
//!
//! A leader gives each entry a stamp and submits it. The sequencer says where in the log it stands
//! ([`Output::Append`]), when it is as safe as it was asked to be ([`Output::Stable`]), and which node leads.
//! An entry that is not stable yet is *tentative*: a deposed leader forgets it, and the next view says which
//! of these entries were kept. A lost entry gets no answer.
//!
//! Position in the log and stamp are two types: positions are dense and the sequencer's, stamps rise and are
//! the leader's. Every sequencer is a machine: [`Sequencer::handle`] with outputs appended to a buffer of the
//! caller's, [`Sequencer::deadline`]; time and seeds are arguments.
//!
//! | module | its engine |
//! |---|---|
//! | [`solo`] | one node: it always leads, and what its disk has is stable |
//! | [`delayed`] | for the simulator: stability lags and stalls, leaders are deposed, some of a suffix survives |
//! | [`follower`] | a node that is given what is stable, logs it and never leads |

pub mod delayed;
pub mod follower;
pub mod solo;

use tercel_wire::id::{LogPosition, Stamp, ViewId};

use tercel_machine::time::Now;

/// Levels of safety of an ordered entry. Each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// All members agree on its place.
    Agreed,
    /// It is in the memory of as many members as must have it.
    Memory,
    /// It is on the disks of as many members as must have it.
    Disk,
}

/// A member of a group, named by its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// An entry's bytes, and its place among its leader's entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    pub stamp: Stamp,
    /// The view in which it was ordered first.
    pub view: ViewId,
    /// The kind of log record.
    pub kind: u8,
    /// The record's payload.
    pub payload: Vec<u8>,
}

/// Something that happened to a sequencer.
#[derive(Debug)]
pub enum Input<'a> {
    /// The leader of `entry.view` orders an entry, which becomes visible once it is stable at `level`.
    Submit {
        entry: Sealed,
        /// The level of safety that it needs.
        level: Level,
    },
    /// Another member says this.
    Packet(NodeId, &'a [u8]),
    /// This node's disk has the log up to there, as that view wrote it.
    Written(ViewId, LogPosition),
    /// Another member's process has ended, or seems to have.
    Gone(NodeId),
    /// Does this node still lead? The answer counts from after the question.
    Confirm(u64),
    /// Time passed.
    Time,
}

/// Outputs of a sequencer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this to another member.
    Send(NodeId, Vec<u8>),
    /// Append this record to the log, at this position, for this view.
    Append(LogPosition, ViewId, Sealed),
    /// Erase, durably, what the log has above this position; nothing is appended before that is done.
    Cut(LogPosition),
    /// Apply this entry: it is stable, and on this node's disk. For followers.
    Entry(Sealed),
    /// Every entry up to this stamp is as safe as this.
    Stable(Stamp, Level),
    /// The node still led when this question came; everything up to the stamp was ordered before.
    Confirmed(u64, Stamp),
    /// This node leads from now on, in this view.
    Leading(ViewId),
    /// It no longer does. What this view had ordered and not made stable may be lost.
    Deposed(ViewId),
}

/// An engine that puts entries in an order.
pub trait Sequencer: Send + std::fmt::Debug {
    /// Takes in what happened and appends what it says.
    fn handle(&mut self, now: Now, input: Input<'_>, out: &mut Vec<Output>);
    /// The next moment at which it needs the time.
    fn deadline(&self) -> Option<Now>;
}
