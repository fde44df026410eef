//! The streams of a call that is under way: items in order, in windows of bytes.
//!
//! A call has at most one stream each way, and each end has the sending half of one and the receiving half of
//! the other. The sender counts what it has sent, and stops when its window is full. The receiver keeps what
//! has arrived until it is consumed, and says from time to time how much that is. Both are structs without
//! messages, threads and time: a client's machine has them for its calls, and the host of a server for those
//! that it runs.
//!
//! The invariant: what a [`Receiving`] keeps is at most a window, or an item after a step of one; a peer that
//! sends more is found out before it is kept.

use std::collections::VecDeque;

use tercel_wire::frame::BODY_BYTES_MAX;
use tercel_wire::id::Stamp;
use tercel_wire::interface::Method;
use tercel_wire::message::ITEM_BYTES;

use crate::limits;
use crate::mutant::{Rule, dropped};

/// Which streams a call has, as its procedure sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Directions {
    /// Set if the call takes items.
    pub input: bool,
    /// Set if the call gives items.
    pub output: bool,
}

impl Directions {
    /// The directions of a procedure.
    pub fn of(method: &Method) -> Directions {
        Directions { input: method.has_input(), output: method.has_output() }
    }

    /// Says whether there is any.
    pub fn is_any(self) -> bool {
        self.input || self.output
    }
}

/// Messages of the other end about the streams of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// An item, with its ordinal.
    Item(u64, Vec<u8>),
    /// So many bytes were consumed of all that was sent to it.
    Credit(u64),
    /// There were so many items, and there will be no more.
    End(u64),
    /// The procedure uses the space: its caller reads nothing older after each item from now on. A host says
    /// so to its machine; no message has it.
    UsesSpace,
}

/// A breach of the protocol by the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation(pub &'static str);

/// One end of the streams of a call.
#[derive(Debug, Default)]
pub struct Streams {
    /// The stream to the other end.
    pub sending: Option<Sending>,
    /// The one from there.
    pub receiving: Option<Receiving>,
}

impl Streams {
    /// The streams of a call at its server.
    pub fn of_server(has: Directions) -> Streams {
        Streams { sending: has.output.then(Sending::default), receiving: has.input.then(Receiving::default) }
    }

    /// The streams of a call at its client.
    pub fn of_client(has: Directions) -> Streams {
        Streams::of_server(Directions { input: has.output, output: has.input })
    }

    /// Takes in what the other end says.
    ///
    /// # Errors
    /// If no honest peer says that.
    pub fn hear(&mut self, said: Said) -> Result<(), Violation> {
        self.hear_at(Stamp::ZERO, said)
    }

    /// The same of what was sent at a stamp: [`Receiving::next_stamped`] gives it with the item.
    ///
    /// # Errors
    /// As [`Streams::hear`].
    pub fn hear_at(&mut self, stamp: Stamp, said: Said) -> Result<(), Violation> {
        match (said, &mut self.sending, &mut self.receiving) {
            (Said::Item(ordinal, item), _, Some(receiving)) => receiving.arrive(ordinal, item, stamp),
            (Said::End(items), _, Some(receiving)) => receiving.end(items),
            (Said::Credit(bytes), Some(sending), _) => sending.credit(bytes),
            _ => Err(Violation("a call has no stream in that direction")),
        }
    }

    /// A number that grows whenever the other end sends an item, consumes one or ends its stream.
    pub fn moved(&self) -> u64 {
        let sending = self.sending.as_ref().map_or(0, |sending| sending.consumed);
        let receiving = self.receiving.as_ref().map_or(0, |r| r.received + u64::from(r.is_ended()));
        sending + receiving
    }
}

/// The bytes that an item counts in its window.
fn counted(item: usize) -> u64 {
    (item + ITEM_BYTES) as u64
}

/// Says whether a window with so many unconsumed bytes has room for an item.
fn has_room(unconsumed: u64, item: u64) -> bool {
    unconsumed < limits::window_step_bytes() as u64 || unconsumed + item <= limits::window_bytes() as u64
}

/// The sending half of a stream.
#[derive(Debug, Default)]
pub struct Sending {
    items: u64,
    sent: u64,
    consumed: u64,
    is_ended: bool,
}

impl Sending {
    /// The ordinal of an item of so many bytes, which is to be sent now; none if the window has no room for
    /// it.
    pub fn send(&mut self, item: usize) -> Option<u64> {
        if !self.has_room(item) {
            return None;
        }
        self.items += 1;
        self.sent += counted(item);
        Some(self.items)
    }

    /// Says whether the window has room for an item of so many bytes now.
    pub fn has_room(&self, item: usize) -> bool {
        has_room(self.sent - self.consumed, counted(item)) || dropped(Rule::WindowIgnored)
    }

    /// Says whether so large an item can be sent at all.
    pub fn is_sendable(item: usize) -> bool {
        item <= limits::ITEM_MAX
    }

    /// The stream ends: how many items there were, once.
    pub fn end(&mut self) -> Option<u64> {
        (!std::mem::replace(&mut self.is_ended, true)).then_some(self.items)
    }

    /// Says whether it was ended.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Bytes that were sent and are not consumed, as far as is known, as they are counted in the window.
    pub fn unconsumed_bytes(&self) -> usize {
        (self.sent - self.consumed) as usize
    }

    fn credit(&mut self, consumed: u64) -> Result<(), Violation> {
        if consumed > self.sent {
            return Err(Violation("more of a stream is said to be consumed than was sent"));
        }
        // Copies of older ones may come late.
        let known = if dropped(Rule::OlderCreditBelieved) { 0 } else { self.consumed };
        self.consumed = known.max(consumed);
        Ok(())
    }
}

/// The receiving half of a stream.
#[derive(Debug, Default)]
pub struct Receiving {
    /// Each with the stamp that it was sent at.
    items: VecDeque<(Vec<u8>, Stamp)>,
    /// Items that have arrived, and how many there are in all, if that is known.
    arrived: u64,
    all: Option<u64>,
    received: u64,
    consumed: u64,
    /// The last credit reported to the sender.
    said: u64,
}

impl Receiving {
    fn arrive(&mut self, ordinal: u64, item: Vec<u8>, stamp: Stamp) -> Result<(), Violation> {
        if ordinal <= self.arrived {
            return Ok(());
        }
        if ordinal > self.arrived + 1 {
            return Err(Violation("an item of a stream is missing"));
        }
        if self.all.is_some() {
            return Err(Violation("an item comes behind the end of its stream"));
        }
        let counted = counted(item.len());
        if !has_room(self.received - self.said, counted) {
            return Err(Violation("a stream exceeds its window"));
        }
        self.arrived += 1;
        self.received += counted;
        self.items.push_back((item, stamp));
        Ok(())
    }

    fn end(&mut self, items: u64) -> Result<(), Violation> {
        if items != self.arrived || self.all.is_some_and(|all| all != items) {
            return Err(Violation("a stream ends before its items have come"));
        }
        self.all = Some(items);
        Ok(())
    }

    /// Consumes the next item.
    pub fn next_item(&mut self) -> Option<Vec<u8>> {
        self.next_stamped().map(|(item, _)| item)
    }

    /// The same, with the stamp that the item was sent at.
    pub fn next_stamped(&mut self) -> Option<(Vec<u8>, Stamp)> {
        let (item, stamp) = self.items.pop_front()?;
        self.consumed += counted(item.len());
        Some((item, stamp))
    }

    /// The credit to report to the sender: the bytes consumed, if enough more than at the last report.
    pub fn credit(&mut self) -> Option<u64> {
        let is_due = self.consumed - self.said >= limits::window_step_bytes() as u64 && !self.is_ended();
        is_due.then(|| {
            self.said = self.consumed;
            self.said
        })
    }

    /// Says whether all items have arrived.
    pub fn is_ended(&self) -> bool {
        self.all.is_some()
    }

    /// Bytes that are kept, as they are counted in the window.
    pub fn kept_bytes(&self) -> usize {
        (self.received - self.consumed) as usize
    }
}

const _: () = assert!(limits::ITEM_MAX + 18 <= BODY_BYTES_MAX, "an item of any size fits into a message");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// More than a receiver ever keeps of items that have at most so many bytes.
    fn bound(item: usize) -> usize {
        limits::window_bytes().max(limits::window_step_bytes() + counted(item) as usize)
    }

    #[test]
    fn sender_stops_when_its_window_is_full() {
        let (mut sending, mut sent) = (Sending::default(), 0);
        while sending.send(1_000).is_some() {
            sent += counted(1_000);
        }
        assert!(
            sent <= limits::window_bytes() as u64 && sent + counted(1_000) > limits::window_bytes() as u64
        );
        sending.credit(sent / 2).unwrap();
        assert!(sending.send(1_000).is_some());
        // An older credit takes nothing back.
        sending.credit(1).unwrap();
        assert!(sending.send(1_000).is_some());
        assert!(sending.credit(u64::MAX).is_err());
    }

    #[test]
    fn item_as_large_as_a_message_passes_a_window_that_is_nearly_empty() {
        let (mut sending, mut receiving) = (Sending::default(), Receiving::default());
        for n in 1..=5 {
            assert_eq!(sending.send(limits::ITEM_MAX), Some(n));
            assert_eq!(sending.send(1), None);
            receiving.arrive(n, vec![0; limits::ITEM_MAX], Stamp::ZERO).unwrap();
            assert!(receiving.next_item().is_some());
            sending.credit(receiving.credit().unwrap()).unwrap();
        }
    }

    #[test]
    fn peer_that_breaks_the_protocol_is_found_out() {
        let mut receiving = Receiving::default();
        assert_eq!(
            receiving.arrive(2, vec![], Stamp::ZERO),
            Err(Violation("an item of a stream is missing"))
        );
        let mut n = 0;
        let too_much = loop {
            n += 1;
            if let Err(violation) = receiving.arrive(n, vec![0; 10_000], Stamp::ZERO) {
                break violation;
            }
        };
        assert_eq!(too_much, Violation("a stream exceeds its window"));
        assert!(receiving.kept_bytes() <= bound(10_000));
        assert!(receiving.end(n).is_err(), "an item has not come");
        receiving.end(n - 1).unwrap();
        assert!(receiving.arrive(n, vec![], Stamp::ZERO).is_err());
        assert_eq!(receiving.arrive(1, vec![], Stamp::ZERO), Ok(()), "a copy counts for nothing");
        let mut none = Streams::of_server(Directions { input: true, output: false });
        assert!(none.hear(Said::Credit(0)).is_err());
    }

    /// A sender and a receiver over a link that delays and doubles: every item comes once, in order; no more
    /// than a window is kept; and the sender always goes on.
    #[test]
    fn halves_agree_over_a_link_that_delays_and_doubles() {
        for seed in 0..60 {
            let mut random = Random::new(seed);
            let (mut sending, mut receiving) = (Sending::default(), Receiving::default());
            let (mut there, mut back) = (VecDeque::new(), VecDeque::new());
            let (mut sent, mut got, mut idle) = (Vec::new(), Vec::new(), 0);
            let largest = [100, 20_000, 300_000][random.below(3) as usize];
            let all = 200;
            while got.len() < all {
                let before = (sent.len(), got.len(), there.len(), back.len());
                match random.below(4) {
                    0 if sent.len() < all => {
                        let item = vec![sent.len() as u8; random.below(largest) as usize];
                        if let Some(ordinal) = sending.send(item.len()) {
                            there.push_back((ordinal, item.clone()));
                            if random.below(8) == 0 {
                                there.push_back((ordinal, item.clone()));
                            }
                            sent.push(item);
                        }
                    }
                    1 => {
                        if let Some((ordinal, item)) = there.pop_front() {
                            receiving.arrive(ordinal, item, Stamp::ZERO).unwrap();
                            assert!(receiving.kept_bytes() <= bound(largest as usize), "seed {seed}");
                        }
                    }
                    2 => {
                        got.extend(receiving.next_item());
                        back.extend(receiving.credit());
                    }
                    _ => back.pop_front().into_iter().for_each(|bytes| sending.credit(bytes).unwrap()),
                }
                let is_idle = before == (sent.len(), got.len(), there.len(), back.len());
                idle = if is_idle { idle + 1 } else { 0 };
                assert!(idle < 1_000, "seed {seed}: nothing goes on");
            }
            assert!(sent == got, "seed {seed}");
            receiving.end(sending.end().unwrap()).unwrap();
            assert!(receiving.is_ended() && sending.end().is_none());
        }
    }
}
