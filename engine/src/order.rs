//! Ordering: one trait, spoken to in tickets.
//!
//! What is submitted is a request; what comes back says at which stamp it stands in the order and, later, up to which
//! stamp the order is safe. The verdict on a request is computed from the ordered prefix by whoever asked, the same at
//! every replica.

use std::collections::VecDeque;

use tercel_wire::id::Stamp;

/// Names a submitted request until it is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// How safe an ordered request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// All members agree on its place.
    Agreed,
    /// It is in the memory of every member.
    Memory,
    /// It is on disk wherever it must be.
    Disk,
}

/// What an ordering engine reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The request stands at this stamp.
    Ordered(Ticket, Stamp),
    /// Everything up to this stamp is this safe.
    Safe(Stamp, Level),
    /// The request will not be ordered; it may be submitted again.
    Lost(Ticket),
}

/// An ordering engine.
pub trait Ordering {
    /// Asks for a place in the order.
    fn submit(&mut self) -> Ticket;
    /// The log up to this stamp is on this node's disk.
    fn synced(&mut self, stamp: Stamp);
    /// The next report.
    fn poll(&mut self) -> Option<Delivery>;
}

/// One node: every request is ordered at once, and safe once this node's disk has it.
#[derive(Debug)]
pub struct Solo {
    last: Stamp,
    tickets: u64,
    reports: VecDeque<Delivery>,
}

impl Solo {
    /// Goes on after `last`.
    pub fn new(last: Stamp) -> Solo {
        Solo { last, tickets: 0, reports: VecDeque::new() }
    }
}

impl Ordering for Solo {
    fn submit(&mut self) -> Ticket {
        self.tickets += 1;
        self.last = self.last.next();
        let ticket = Ticket(self.tickets);
        self.reports.push_back(Delivery::Ordered(ticket, self.last));
        ticket
    }

    fn synced(&mut self, stamp: Stamp) {
        self.reports.push_back(Delivery::Safe(stamp, Level::Disk));
    }

    fn poll(&mut self) -> Option<Delivery> {
        self.reports.pop_front()
    }
}
