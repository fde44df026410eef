//! A node that is fed stable entries, and never leads: a learner of a group, or a copy that serves reads.
//!
//! It has a log of its own, like every node: the entries that it is fed are appended there, and stable once
//! this node's disk has them. So it restarts from its own checkpoint and log, whatever its feeder has let
//! go of, and never shows less than it did before. It reports to its feeder up to where its disk has
//! everything ([`acked`]), and receives the entries after that until it reports more. The invariant: entries
//! come in their order, each once, and none is left out.

use std::collections::VecDeque;
use std::sync::Arc;

use tercel_wire::cursor::{DecodeError, Put, Reader};
use tercel_wire::id::{LogPosition, MemberId, Stamp, ViewId};

use crate::{Input, Output, Sealed, Sequencer};
use tercel_machine::time::Now;

/// The sequencer of a node that is given stable entries and never leads.
#[derive(Debug)]
pub struct Follower {
    /// The last entry that it was fed, and its position in the log.
    last: Stamp,
    end: LogPosition,
    /// The last entry that this node's disk has, and those that it does not have yet.
    written: Stamp,
    unwritten: VecDeque<(LogPosition, Stamp)>,
    has_greeted: bool,
}

impl Follower {
    /// Goes on after a log whose last entry is `last`, at `end`.
    pub fn new(last: Stamp, end: LogPosition) -> Follower {
        Follower { last, end, written: last, unwritten: VecDeque::new(), has_greeted: false }
    }

    fn fed(&mut self, from: MemberId, before: Stamp, entry: Sealed, out: &mut Vec<Output>) {
        if entry.stamp <= self.written {
            // Its feeder does not know yet that it is here.
            return out.push(Output::Send(from, ack(self.written)));
        }
        // An entry that was lost on its way comes again.
        if before != self.last || entry.stamp <= before {
            return;
        }
        self.last = entry.stamp;
        self.end = self.end.next();
        self.unwritten.push_back((self.end, entry.stamp));
        out.push(Output::Append(self.end, entry));
    }

    fn written(&mut self, position: LogPosition, out: &mut Vec<Output>) {
        let mut last = None;
        while let Some(entry) = self.unwritten.pop_front_if(|(at, _)| *at <= position) {
            last = Some(entry);
        }
        if let Some((position, stamp)) = last {
            self.written = stamp;
            out.push(Output::Stable(position, stamp));
            out.push(Output::Send(FEEDER, ack(stamp)));
        }
    }
}

impl Sequencer for Follower {
    fn handle(&mut self, _: Now, input: Input<'_>, out: &mut Vec<Output>) {
        match input {
            Input::Packet(from, bytes) => {
                // The member that feeds this one sends damaged bytes again.
                if let Ok((before, entry)) = unpack(bytes) {
                    self.fed(from, before, entry, out);
                }
            }
            // Nothing cuts its log.
            Input::Written(_, position) => self.written(position, out),
            Input::Time if !std::mem::replace(&mut self.has_greeted, true) => {
                out.push(Output::Send(FEEDER, ack(self.written)));
            }
            Input::Submit(_)
            | Input::Saved(_)
            | Input::Found(..)
            | Input::Gone(_)
            | Input::Ready(_)
            | Input::MoveLead(_)
            | Input::Confirm(_)
            | Input::Time => {}
        }
    }

    fn deadline(&self) -> Option<Now> {
        None
    }
}

/// A packet that feeds a follower: a stable entry, and the stamp of the entry before it, so that none is
/// skipped.
pub fn packet(before: Stamp, entry: &Sealed) -> Vec<u8> {
    let mut out = Vec::with_capacity(29 + entry.payload.len());
    out.put_u64(before.0);
    out.put_u64(entry.stamp.0);
    entry.view.encode(&mut out);
    out.put_u8(entry.kind);
    out.put_bytes(&entry.payload);
    out
}

fn unpack(bytes: &[u8]) -> Result<(Stamp, Sealed), DecodeError> {
    let mut r = Reader::new(bytes);
    let (before, stamp, view, kind) = (Stamp(r.u64()?), Stamp(r.u64()?), ViewId::decode(&mut r)?, r.u8()?);
    let payload = Arc::new(r.bytes("payload")?.to_vec());
    r.end()?;
    Ok((before, Sealed { stamp, view, kind, payload }))
}

fn ack(written: Stamp) -> Arc<Vec<u8>> {
    Arc::new(written.0.to_le_bytes().to_vec())
}

/// Reads the report of a follower to its feeder: its disk has everything up to this stamp. `None` if it is
/// damaged.
pub fn acked(packet: &[u8]) -> Option<Stamp> {
    Some(Stamp(u64::from_le_bytes(packet.try_into().ok()?)))
}

/// Members from which a follower receives have no names yet.
pub const FEEDER: MemberId = MemberId(0);

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(view: u32, stamp: u64) -> Sealed {
        Sealed { stamp: Stamp(stamp), view: ViewId::new(view, 2), kind: 3, payload: Arc::new(vec![4, 5]) }
    }

    fn said(follower: &mut Follower, input: Input<'_>) -> Vec<Output> {
        let mut out = Vec::new();
        follower.handle(Now(0), input, &mut out);
        out
    }

    fn feed(follower: &mut Follower, before: u64, entry: &Sealed) -> Vec<Output> {
        said(follower, Input::Packet(FEEDER, &packet(Stamp(before), entry)))
    }

    fn append(position: u64, entry: Sealed) -> Output {
        Output::Append(LogPosition(position), entry)
    }

    fn says(written: u64) -> Output {
        Output::Send(FEEDER, ack(Stamp(written)))
    }

    #[test]
    fn entries_are_logged_in_order_once_and_none_is_left_out() {
        let f = &mut Follower::new(Stamp(3), LogPosition(2));
        assert_eq!(feed(f, 5, &entry(1, 6)), []);
        assert_eq!(feed(f, 3, &entry(1, 5)), [append(3, entry(1, 5))]);
        assert_eq!(feed(f, 3, &entry(1, 5)), []);
        assert_eq!(feed(f, 5, &entry(1, 6)), [append(4, entry(1, 6))]);
        assert_eq!(feed(f, 2, &entry(1, 3)), [says(3)]);
    }

    #[test]
    fn what_the_disk_has_is_stable_and_reported() {
        let f = &mut Follower::new(Stamp(0), LogPosition(0));
        for e in [entry(1, 1), entry(2, 2), entry(2, 3)] {
            feed(f, e.stamp.0 - 1, &e);
        }
        let written = |position| Input::Written(0, LogPosition(position));
        let stable = |n| [Output::Stable(LogPosition(n), Stamp(n)), says(n)];
        assert_eq!(said(f, written(2)), stable(2));
        assert_eq!(said(f, written(2)), []);
        assert_eq!(said(f, written(3)), stable(3));
    }

    #[test]
    fn a_follower_that_begins_says_up_to_where_its_log_goes() {
        let f = &mut Follower::new(Stamp(7), LogPosition(5));
        let [Output::Send(_, packet)] = &said(f, Input::Time)[..] else { panic!("it says nothing") };
        assert_eq!(acked(packet), Some(Stamp(7)));
        assert_eq!(acked(&packet[1..]), None);
        assert_eq!(said(f, Input::Time), []);
    }

    #[test]
    fn a_damaged_packet_is_nothing() {
        let bytes = packet(Stamp(0), &entry(1, 1));
        for cut in 0..bytes.len() {
            let f = &mut Follower::new(Stamp(0), LogPosition(0));
            assert_eq!(said(f, Input::Packet(FEEDER, &bytes[..cut])), []);
        }
    }
}
