//! The calls of methods that wait, and which of them is run next.
//!
//! A call that was given up is due again when the state is another one, which any client's commit makes it.
//! The host runs a bounded number of due calls in one go, and then serves other connections. Three rules
//! decide on the order:
//!
//! - Connections take turns: one call of each, then around again, from where the last go ended. A client with
//!   many calls costs another one call for each of its own.
//! - Of one connection, what was not tried in the last state goes before what was. A new state makes no
//!   connection and no call begin again at its first one, so that the last ones are reached while states
//!   change faster than all calls can be run.
//! - Of calls that need the visible state, and find it changed by others that are on their way, only the
//!   first that is run in a state gets through. So one call is run first in every state until it has ended,
//!   and then the oldest of the next connection.
//!
//! The invariant: a call stands in exactly one of its connection's two queues, and [`Calls::due`] has the
//! connections with due calls.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use tercel_wire::id::{OpId, Oref, PageId, Stamp};

use crate::effect::Conn;
use crate::leader::Asked;
use crate::limits;
use crate::time::Now;
use crate::txn::Ticket;

/// The calls of all sessions.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    waiting: BTreeMap<Ticket, Arc<Waiting>>,
    bytes: usize,
    last: Ticket,
    /// The waiting calls of each connection that has any.
    conns: BTreeMap<Conn, OfConn>,
    /// The connections with calls that are due.
    due: BTreeSet<Conn>,
    /// The state in which the others were tried.
    tried: (u64, Stamp),
    /// The connection that had the last turn.
    turn: Option<Conn>,
    /// The call that is run first in each state, and its connection.
    first: Option<(Conn, Ticket)>,
    /// The connection of that call, while it is to be run first in this state.
    begins: Option<Conn>,
    missed: Missed,
}

/// The pages that each call has missed since an attempt last found all of its pages at hand. A call that
/// misses more pages than find room at once never finds all of them. Attempts are no measure of that: many
/// are made while one page is read.
#[derive(Debug, Default)]
struct Missed {
    by_call: BTreeMap<Ticket, BTreeSet<PageId>>,
    count: usize,
}

impl Missed {
    fn forget(&mut self, ticket: Ticket) {
        self.count -= self.by_call.remove(&ticket).map_or(0, |pages| pages.len());
    }
}

/// The calls of one connection, each queue in the order of their last attempts.
#[derive(Debug, Default)]
struct OfConn {
    bytes: usize,
    /// To be run, or to be run anew.
    due: VecDeque<Ticket>,
    /// Given up in this state.
    tried: VecDeque<Ticket>,
}

/// A call that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(super) asked: Asked,
    pub op: OpId,
    /// A checksum of its bytes.
    pub(super) digest: u32,
    pub interface: u16,
    pub method: u16,
    pub target: Oref,
    pub read_at: Stamp,
    /// When its caller waits no longer.
    pub until: Option<Now>,
    /// The key under which it has one effect, or nothing.
    pub key: Vec<u8>,
    pub payload: Vec<u8>,
}

/// The bytes that a call counts against the bounds.
fn cost(payload_bytes: usize) -> usize {
    payload_bytes + limits::CALL_ENTRY_BYTES
}

/// The next connection after this one, or the first.
fn behind<'a, I: Iterator<Item = &'a Conn>>(
    conn: Option<Conn>,
    from: impl Fn(Option<Conn>) -> I,
) -> Option<Conn> {
    from(conn).next().or_else(|| from(None).next()).copied()
}

fn range(conn: Option<Conn>) -> (std::ops::Bound<Conn>, std::ops::Bound<Conn>) {
    (conn.map_or(Unbounded, Excluded), Unbounded)
}

impl OfConn {
    fn len(&self) -> usize {
        self.due.len() + self.tried.len()
    }

    fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.due.iter().chain(&self.tried).copied()
    }

    /// Takes a call out. The one that was run last, which most often ends, is found at once.
    fn remove(&mut self, ticket: Ticket) {
        for queue in [&mut self.tried, &mut self.due] {
            if let Some(at) = queue.iter().rposition(|t| *t == ticket) {
                queue.remove(at);
                return;
            }
        }
    }
}

impl Calls {
    /// Says whether there are calls to be run in this state.
    pub(crate) fn has_due(&self, state: (u64, Stamp)) -> bool {
        !self.due.is_empty() || (!self.waiting.is_empty() && self.tried != state)
    }

    /// Calls are run in this state from now on. If it is another one, all are due.
    pub(crate) fn renew(&mut self, state: (u64, Stamp)) {
        if self.tried == state {
            return;
        }
        self.tried = state;
        self.conns.values_mut().for_each(|of| of.due.append(&mut of.tried));
        self.due = self.conns.keys().copied().collect();
        if self.first.is_none_or(|(_, ticket)| !self.waiting.contains_key(&ticket)) {
            let conn = behind(self.first.map(|(conn, _)| conn), |conn| {
                self.conns.range(range(conn)).map(|(conn, _)| conn)
            });
            self.first = conn.and_then(|conn| Some((conn, self.conns[&conn].tickets().min()?)));
        }
        self.begins = self.first.map(|(conn, _)| conn);
        if let Some((conn, ticket)) = self.first
            && let Some(of) = self.conns.get_mut(&conn)
        {
            of.remove(ticket);
            of.due.push_front(ticket);
        }
    }

    /// The call that is to be run next. It is not due any more in this state.
    pub(crate) fn next(&mut self) -> Option<(Ticket, Arc<Waiting>)> {
        let conn = match self.begins.take().filter(|conn| self.due.contains(conn)) {
            Some(conn) => conn,
            None => {
                self.turn = Some(behind(self.turn, |conn| self.due.range(range(conn)))?);
                self.turn?
            }
        };
        let of = self.conns.get_mut(&conn)?;
        let ticket = of.due.pop_front()?;
        of.tried.push_back(ticket);
        if of.due.is_empty() {
            self.due.remove(&conn);
        }
        Some((ticket, self.get(ticket)?))
    }

    /// Notes that an attempt was given up for want of a page. Gives how many pages the call has missed, as
    /// far as that is known.
    pub(crate) fn has_missed(&mut self, ticket: Ticket, page: PageId) -> usize {
        let is_first = self.first.is_some_and(|(_, first)| first == ticket);
        // Each call becomes the first, so every call that wants too many is found.
        let is_known = is_first || self.missed.count < limits::CALL_PAGES_MISSED_MAX;
        // An attempt may end the connection, and with it the call.
        if !is_known || !self.waiting.contains_key(&ticket) {
            return 0;
        }
        let pages = self.missed.by_call.entry(ticket).or_default();
        self.missed.count += usize::from(pages.insert(page));
        pages.len()
    }

    /// Notes that an attempt has found all of its pages at hand.
    pub(crate) fn has_missed_none(&mut self, ticket: Ticket) {
        self.missed.forget(ticket);
    }

    /// The number of waiting calls, of all connections.
    pub(super) fn count(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn get(&self, ticket: Ticket) -> Option<Arc<Waiting>> {
        self.waiting.get(&ticket).cloned()
    }

    /// Says whether one more call of the connection, with so many bytes, may wait here. The bounds are the
    /// requests granted to its client, the bytes of one connection, and those of all.
    pub(super) fn has_room(&self, conn: Conn, payload_bytes: usize) -> bool {
        let (count, bytes) = self.conns.get(&conn).map_or((0, 0), |of| (of.len(), of.bytes));
        let more = cost(payload_bytes);
        count < limits::credit() as usize
            && bytes + more <= limits::CALL_CONN_BYTES_MAX
            && self.bytes + more <= limits::CALL_BYTES_MAX
    }

    /// Takes a call in: it is due.
    pub(super) fn put(&mut self, call: Waiting) {
        let (conn, cost) = (call.asked.conn, cost(call.payload.len()));
        self.last += 1;
        self.bytes += cost;
        let of = self.conns.entry(conn).or_default();
        of.bytes += cost;
        of.due.push_back(self.last);
        self.due.insert(conn);
        self.waiting.insert(self.last, Arc::new(call));
    }

    /// Takes a call out.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Arc<Waiting>> {
        let call = self.waiting.remove(&ticket)?;
        self.missed.forget(ticket);
        let (conn, cost) = (call.asked.conn, cost(call.payload.len()));
        self.bytes -= cost;
        if let Some(of) = self.conns.get_mut(&conn) {
            of.bytes -= cost;
            of.remove(ticket);
            if of.due.is_empty() {
                self.due.remove(&conn);
            }
            if of.len() == 0 {
                self.conns.remove(&conn);
            }
        }
        Some(call)
    }

    /// The connection is gone: so are its calls.
    pub(super) fn drop_conn(&mut self, conn: Conn) {
        let Some(of) = self.conns.remove(&conn) else { return };
        self.due.remove(&conn);
        self.bytes -= of.bytes;
        for ticket in of.tickets() {
            self.waiting.remove(&ticket);
            self.missed.forget(ticket);
        }
    }

    /// The operation, of the connection's client, is not to be begun any more.
    pub(super) fn drop_op(&mut self, conn: Conn, op: OpId) {
        let tickets: Vec<Ticket> = self.of_op(conn, op).collect();
        tickets.into_iter().for_each(|ticket| _ = self.take(ticket));
    }

    /// Says whether the operation is a waiting call of the connection.
    pub(super) fn waits(&self, conn: Conn, op: OpId) -> bool {
        self.of_op(conn, op).next().is_some()
    }

    fn of_op(&self, conn: Conn, op: OpId) -> impl Iterator<Item = Ticket> {
        let tickets = self.conns.get(&conn).into_iter().flat_map(OfConn::tickets);
        tickets.filter(move |ticket| self.waiting.get(ticket).is_some_and(|call| call.op == op))
    }
}

#[cfg(test)]
mod tests {
    use tercel_wire::id::{ClientId, ViewId};

    use super::*;

    fn put(calls: &mut Calls, conn: u64, seq: u64, bytes: usize) {
        let op = OpId { client: ClientId(conn), slot: 0, seq, view: ViewId::NONE };
        calls.put(Waiting {
            asked: Asked { conn: Conn(conn), call: seq },
            op,
            digest: 0,
            interface: 0,
            method: 0,
            target: Oref::NULL,
            read_at: Stamp::ZERO,
            until: None,
            key: Vec::new(),
            payload: vec![0; bytes],
        });
    }

    fn next(calls: &mut Calls) -> Option<(u64, u64)> {
        calls.next().map(|(_, call)| (call.op.client.0, call.op.seq))
    }

    /// So many, of which none ends.
    fn some(calls: &mut Calls, n: usize) -> Vec<(u64, u64)> {
        (0..n).map_while(|_| next(calls)).collect()
    }

    fn all(calls: &mut Calls) -> Vec<(u64, u64)> {
        some(calls, usize::MAX)
    }

    #[test]
    fn connections_take_turns_and_each_call_has_one_in_a_state() {
        let mut calls = Calls::default();
        (1..=3).for_each(|seq| put(&mut calls, 1, seq, 0));
        put(&mut calls, 2, 1, 0);
        calls.renew((1, Stamp(1)));
        assert_eq!(all(&mut calls), [(1, 1), (1, 2), (2, 1), (1, 3)]);
        assert!(
            !calls.has_due((1, Stamp(1))) && calls.has_due((1, Stamp(2))) && calls.has_due((2, Stamp(1)))
        );
        // What comes is due, and what was tried is not.
        put(&mut calls, 3, 1, 0);
        calls.renew((1, Stamp(1)));
        assert_eq!(all(&mut calls), [(3, 1)]);
    }

    #[test]
    fn all_are_reached_while_the_state_changes_after_each_two() {
        let mut calls = Calls::default();
        for conn in 1..=5 {
            (1..=4).for_each(|seq| put(&mut calls, conn, seq, 0));
        }
        let mut run = BTreeSet::new();
        for stamp in 1..=20 {
            calls.renew((0, Stamp(stamp)));
            run.extend(some(&mut calls, 2));
        }
        assert_eq!(run.len(), 20, "one of two is the first of its state, the other another one each time");
    }

    #[test]
    fn each_call_is_once_the_first_of_a_state_while_only_first_ones_end() {
        let mut calls = Calls::default();
        let mut seqs = BTreeMap::from([(1, 0), (2, 0), (3, 0)]);
        let mut ended = BTreeMap::<u64, usize>::new();
        let more = |calls: &mut Calls, seqs: &mut BTreeMap<u64, u64>, conn| {
            *seqs.get_mut(&conn).unwrap() += 1;
            put(calls, conn, seqs[&conn], 0);
        };
        for (conn, count) in [(1, 2), (2, 9), (3, 1)] {
            (0..count).for_each(|_| more(&mut calls, &mut seqs, conn));
        }
        let mut eldest = 0;
        for stamp in 1..=300 {
            // A client that was answered calls again, before the others were tried in this state or after.
            calls.renew((0, Stamp(stamp)));
            let (ticket, call) = calls.next().unwrap();
            calls.take(ticket);
            *ended.entry(call.op.client.0).or_default() += 1;
            eldest = eldest.max(calls.last - calls.waiting.first_key_value().map_or(calls.last, |(t, _)| *t));
            if stamp % 2 == 0 {
                all(&mut calls);
            }
            more(&mut calls, &mut seqs, call.op.client.0);
            if stamp % 3 == 0 {
                all(&mut calls);
            }
        }
        assert!(ended.values().all(|n| (99..=101).contains(n)), "{ended:?}");
        assert!(eldest <= 40, "{eldest}");
    }

    #[test]
    fn pages_that_a_call_missed_count_once_until_it_comes_to_its_end() {
        let page = |n| PageId::new(n).unwrap();
        let mut calls = Calls::default();
        (1..=3).for_each(|seq| put(&mut calls, seq, 1, 0));
        let missed = |calls: &mut Calls, pages: [u32; 3]| pages.map(|n| calls.has_missed(1, page(n)));
        assert_eq!(missed(&mut calls, [7, 7, 8]), [1, 1, 2]);
        assert_eq!(calls.has_missed(2, page(7)), 1);
        calls.has_missed_none(1);
        assert_eq!(missed(&mut calls, [8, 7, 8]), [1, 2, 2]);
        calls.has_missed(3, page(7));
        calls.take(1);
        calls.drop_conn(Conn(2));
        assert_eq!(calls.missed.count, 1);
        // Only of the first call more is known than there is room for.
        calls.missed.count = limits::CALL_PAGES_MISSED_MAX;
        assert_eq!(calls.has_missed(3, page(8)), 0);
        calls.renew((0, Stamp(1)));
        assert_eq!(calls.has_missed(3, page(8)), 2);
    }

    #[test]
    fn count_and_bytes_of_a_connection_are_bounded_and_come_back() {
        let mut calls = Calls::default();
        for seq in 0..u64::from(limits::CREDIT) {
            assert!(calls.has_room(Conn(1), 0));
            put(&mut calls, 1, seq, 0);
        }
        assert!(!calls.has_room(Conn(1), 0) && calls.has_room(Conn(2), 0));
        assert_eq!(calls.bytes, limits::CREDIT as usize * limits::CALL_ENTRY_BYTES, "empty ones count");
        // One connection takes its half, and others the rest.
        for conn in [2, 3, 4] {
            while calls.has_room(Conn(conn), limits::CALL_MAX) {
                put(&mut calls, conn, 1, limits::CALL_MAX);
            }
            assert!(calls.conns[&Conn(conn)].bytes <= limits::CALL_CONN_BYTES_MAX);
        }
        assert!(calls.bytes <= limits::CALL_BYTES_MAX && !calls.has_room(Conn(5), limits::CALL_MAX));
        calls.renew((0, Stamp(1)));
        some(&mut calls, 40);
        let op = calls.waiting[&1].op;
        assert!(calls.waits(Conn(1), op));
        calls.drop_op(Conn(1), op);
        assert!(!calls.waits(Conn(1), op) && calls.has_room(Conn(1), 0));
        (1..=4).for_each(|conn| calls.drop_conn(Conn(conn)));
        assert!(
            calls.waiting.is_empty() && calls.due.is_empty() && calls.conns.is_empty() && calls.bytes == 0
        );
        assert!(!calls.has_due((9, Stamp(9))) && next(&mut calls).is_none());
    }
}
