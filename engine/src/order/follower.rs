//! A node that is given what is stable, and never leads: a learner of a group, or a copy that serves reads.

use tercel_wire::cursor::{DecodeError, Put, Reader};
use tercel_wire::id::{Stamp, ViewId};

use super::{Input, NodeId, Output, Sealed, Sequencer};
use crate::time::Now;

/// See the module.
#[derive(Debug)]
pub struct Follower {
    /// The last entry that was given on.
    last: Stamp,
}

impl Follower {
    /// Goes on behind `last`.
    pub fn new(last: Stamp) -> Follower {
        Follower { last }
    }

    /// The last entry that it has given on; what is fed next begins behind it.
    pub fn last(&self) -> Stamp {
        self.last
    }
}

impl Sequencer for Follower {
    fn handle(&mut self, _: Now, input: Input<'_>, out: &mut Vec<Output>) {
        // What is damaged on its way is sent again by the member that feeds this one.
        if let Input::Packet(_, bytes) = input
            && let Ok((before, entry)) = unpack(bytes)
            && before == self.last
            && entry.stamp > before
        {
            self.last = entry.stamp;
            out.push(Output::Entry(entry));
        }
    }

    fn deadline(&self) -> Option<Now> {
        None
    }
}

/// A packet that feeds a follower: a stable entry, and the stamp of the entry before it, so that none is skipped.
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
    let payload = r.bytes("payload")?.to_vec();
    r.end()?;
    Ok((before, Sealed { stamp, view, kind, payload }))
}

/// Members that a follower hears from have no names yet.
pub const FEEDER: NodeId = NodeId(0);

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(stamp: u64) -> Sealed {
        Sealed { stamp: Stamp(stamp), view: ViewId::new(1, 2), kind: 3, payload: vec![4, 5] }
    }

    #[test]
    fn entries_come_in_order_once_and_none_is_skipped() {
        let mut follower = Follower::new(Stamp(3));
        let mut feed = |before, stamp: u64| {
            let mut out = Vec::new();
            follower.handle(Now(0), Input::Packet(FEEDER, &packet(Stamp(before), &entry(stamp))), &mut out);
            out
        };
        assert_eq!(feed(5, 6), []);
        assert_eq!(feed(3, 5), [Output::Entry(entry(5))]);
        assert_eq!(feed(3, 5), []);
        assert_eq!(feed(5, 6), [Output::Entry(entry(6))]);
    }

    #[test]
    fn a_damaged_packet_is_nothing() {
        let bytes = packet(Stamp(0), &entry(1));
        for cut in 0..bytes.len() {
            let mut out = Vec::new();
            Follower::new(Stamp(0)).handle(Now(0), Input::Packet(FEEDER, &bytes[..cut]), &mut out);
            assert_eq!(out, []);
        }
    }
}
