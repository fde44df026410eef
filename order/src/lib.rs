//! The order of a space's entries: entries in, their places and their safety out.
//!
//! A leader gives each entry a stamp and submits it. The sequencer says where in the log it stands
//! ([`Output::Append`]), when it is stable ([`Output::Stable`]), and when this node leads
//! ([`Output::Leading`]). An entry that is not stable yet is *tentative*: a deposed leader forgets it, and
//! the next view says which of these entries were kept. A lost entry gets no answer.
//!
//! At a node that does not lead, [`Output::Append`] also hands over an entry that is kept and not yet to be
//! applied, and [`Output::Stable`] releases it. At a node that begins to lead, everything that its log keeps
//! beyond what is stable becomes stable with the entry by which its view begins: no entry of an earlier view
//! is ever applied tentatively.
//!
//! Position in the log and stamp are two types: positions are dense and the sequencer's, stamps rise and are
//! the leader's. Stamps are used again over views: a stamp names one entry only within one log.
//!
//! Every sequencer is a machine: [`Sequencer::handle`] with outputs appended to a buffer of the caller's,
//! [`Sequencer::deadline`]; time and seeds are arguments.
//!
//! | module | its engine |
//! |---|---|
//! | [`solo`] | one node: it always leads, and an entry on its disk is stable |
//! | [`quorum`] | a group of servers: an entry is stable once a quorum's disks have it |
//!
//! [`log_queue`] is the way of entries from a sequencer to its log, the same in hosts and worlds.
#![forbid(unsafe_code)]

pub mod log_queue;
pub mod quorum;
pub mod solo;

use std::sync::Arc;

use quorum::Status;
use quorum::members::{Electorate, Member, Members};
use tercel_machine::time::Now;
use tercel_wire::id::{EntryId, LogPosition, MemberId, Stamp, ViewId};

/// The kind of the record that names the members of a group: the one kind whose payload a sequencer reads.
pub const KIND_MEMBERS: u8 = 15;

/// An entry's bytes, and its place among its leader's entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The place of the entry in the commit order.
    pub stamp: Stamp,
    /// The view in which it was ordered first.
    pub view: ViewId,
    /// The kind of log record.
    pub kind: u8,
    /// The record's payload, shared by the log and the packets to other members.
    pub payload: Arc<Vec<u8>>,
}

/// Something that happened to a sequencer.
#[derive(Debug)]
pub enum Input<'a> {
    /// The leader of `entry.view` orders an entry.
    Submit(Sealed),
    /// Another member says this.
    Packet(MemberId, &'a [u8]),
    /// This node's disk has the log up to a position, as it was after so many cuts ([`Output::Cut`]). A
    /// report from before a cut does not vouch for what refilled the position; another follows the cut.
    Written(u32, LogPosition),
    /// The promise and the electorate with this number ([`Output::Save`]), and earlier ones, are durable.
    Saved(u64),
    /// The answer to [`Output::Read`] from that position on.
    Found(LogPosition, Found),
    /// Another member's process has ended, or seems to have.
    Gone(MemberId),
    /// The server beside it can lead, or cannot: it is being recovered.
    Ready(bool),
    /// This member is to lead instead. If it has not come about in a while, this node leads on.
    MoveLead(MemberId),
    /// This one leads no longer; it may lead again at once.
    StandDown,
    /// Does this node still lead? The answer proves leadership at a moment after this input.
    Confirm(u64),
    /// Time passed.
    Time,
}

/// The findings in the own log from a position on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Entries from that position on, as many as were asked for, but at least one.
    Entries(Vec<Sealed>),
    /// The log begins later.
    BeginsLater,
    /// The entry is not on the disk now: the log is to be cut, or was while it was read.
    NotNow,
}

impl Found {
    /// The entries, if some were found.
    pub fn entries(&self) -> &[Sealed] {
        if let Found::Entries(entries) = self { entries } else { &[] }
    }
}

/// Outputs of a sequencer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this to another member.
    Send(MemberId, Arc<Vec<u8>>),
    /// Remember durably that this view is promised, and this electorate, and answer [`Input::Saved`] with the
    /// number.
    Save(u64, ViewId, Option<Electorate>),
    /// Append this record to the log, at this position. At a node that does not lead it is kept beside, and
    /// applied once it is stable.
    Append(LogPosition, Sealed),
    /// Erase, durably, what the log has above this position; nothing is appended before that is done. Cuts
    /// are counted from 1 since the process began, for [`Input::Written`].
    Cut(LogPosition),
    /// Read entries of the own log from this position on, up to so many bytes, for [`Input::Found`].
    Read(LogPosition, usize),
    /// Every entry up to this position is stable. The stamp is of the entry at the position.
    Stable(LogPosition, Stamp),
    /// The node still led after this question came; everything up to the stamp was stable then.
    Confirmed(u64, Stamp),
    /// This node leads from now on: the view's own entry is to be submitted at once.
    Leading(Lead),
    /// It no longer does. What this view had ordered and not made stable may be lost. The leader's server is
    /// recovered, and hears what is stable, or that it leads, from its first [`Input::Time`] on.
    Deposed(ViewId),
    /// The log has everything again that it may have lost when it ended in damage.
    Sure,
    /// These are the members from now on, or again.
    Members(Members),
    /// Other members no longer need the log before this position.
    KeepFrom(LogPosition),
    /// The leader's log no longer has what this one lacks, which takes a copy of the space instead. It is
    /// said again with each of the leader's heartbeats, with its view and where it is reached.
    Lost(ViewId, String),
    /// The leader of the view, this member, has other entries from this position on than are stable here: a
    /// member was put back from an older copy, and the group lacks what it had acknowledged. This one takes
    /// nothing of that leader.
    Contradicted(MemberId, ViewId, LogPosition),
}

/// The beginning of a view, at its leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lead {
    /// The view.
    pub view: ViewId,
    /// The last entry of the log, which the view keeps; zero if there is none.
    pub kept: Stamp,
    /// Set if entries that were stable may be lost: members answered whose logs end in damage.
    pub is_unsure: bool,
}

/// An engine that puts entries in an order.
pub trait Sequencer: Send + std::fmt::Debug {
    /// The other member that leads, as far as this one knows; none while one is sought.
    fn leader(&self) -> Option<&Member> {
        None
    }
    /// Says whether the other member that leads was heard as lately as it is when all is well.
    fn is_heard(&self, _now: Now) -> bool {
        true
    }
    /// The time since a leader was heard, in microseconds; none while one is heard, or it leads itself.
    fn unled_us(&self, _now: Now) -> Option<u64> {
        None
    }
    /// The state of the group, for people; none of a sequencer that is alone.
    fn status(&self) -> Option<Status> {
        None
    }
    /// The newest list of the group's members; none of a sequencer that is alone.
    fn members(&self) -> Option<&Members> {
        None
    }
    /// Everything up to here is stable, as far as it knows; only of a sequencer that may be deposed.
    fn stable(&self) -> LogPosition {
        LogPosition::ZERO
    }
    /// The stable entry of this stamp, if the log has had it since the process began. Between the two, stamps
    /// have risen by one from entry to entry.
    fn entry_of(&self, _stamp: Stamp) -> Option<EntryId> {
        None
    }
    /// The entries of its log after that, in order.
    fn tentative(&self) -> Vec<Sealed> {
        Vec::new()
    }
    /// Takes in what happened and appends what it says.
    fn handle(&mut self, now: Now, input: Input<'_>, out: &mut Vec<Output>);
    /// The next moment at which it needs the time.
    fn deadline(&self) -> Option<Now>;
}
