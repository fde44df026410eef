//! Turns at objects that many clients change: a client that lost is refused when it can win.
//!
//! A transaction that has lost runs again, and in vain until the change that it lost to is visible. So its
//! refusal waits for that. Those that have lost over the same object get theirs one after the other, and each
//! has the object to itself for a moment: the others are not refused all at once, to lose again but for one.
//!
//! The invariant: a turn decides the order of refusals, never what is committed. A turn ends by itself, so
//! a client that does not come back costs the others a moment.

use std::collections::{BTreeMap, VecDeque};

use tercel_wire::id::{ClientId, OpId, Oref};
use tercel_wire::message::{Refusal, Write};

use super::contended::Losses;
use super::{Asked, Leader, Work};
use crate::effect::Conn;
use crate::limits;
use crate::time::Now;

/// The objects that transactions have lost over.
#[derive(Debug, Default)]
pub(super) struct Turns {
    rows: BTreeMap<Oref, Row>,
    /// Refusals that wait, of all of them.
    waiting: usize,
    /// Turns that have ended without a commit.
    ended: u64,
}

/// An object, the transactions that have lost over it, and whose turn it is until when.
#[derive(Debug, Default)]
struct Row {
    losers: VecDeque<Loser>,
    turn: Option<(ClientId, Now)>,
    /// Clients that have let their turn pass, as one that does not run again: they do without the next one.
    missed: Vec<ClientId>,
}

/// A transaction that is refused when its turn comes, or then.
#[derive(Debug)]
struct Loser {
    asked: Asked,
    op: OpId,
    until: Now,
}

impl Row {
    fn is_over(&self) -> bool {
        self.losers.is_empty() && self.turn.is_none()
    }
}

impl Turns {
    /// The object, among those that are written, at which it is another client's turn.
    pub(super) fn of_another(&self, client: ClientId, writes: &[Write<'_>], now: Now) -> Option<Oref> {
        if self.rows.is_empty() {
            return None;
        }
        let is_of_another = |row: &Row| row.turn.is_some_and(|(of, until)| of != client && now < until);
        writes.iter().map(|w| w.oref).find(|oref| self.rows.get(oref).is_some_and(is_of_another))
    }

    /// A transaction of a client is ordered: its turns have done their work.
    pub(super) fn taken(&mut self, client: ClientId) {
        for row in self.rows.values_mut() {
            row.turn.take_if(|(of, _)| *of == client);
        }
    }

    /// A connection of a client is gone.
    pub(super) fn left(&mut self, client: ClientId, conn: Conn) {
        if self.rows.is_empty() {
            return;
        }
        for row in self.rows.values_mut() {
            row.losers.retain(|loser| loser.asked.conn != conn);
            self.ended += u64::from(row.turn.take_if(|(of, _)| *of == client).is_some());
            row.missed.retain(|of| *of != client);
        }
        self.tidy();
    }

    /// When the next turn or wait is over.
    pub(super) fn deadline(&self) -> Option<Now> {
        let of_row = |row: &Row| {
            let turn = row.turn.map(|(_, until)| until);
            turn.into_iter().chain(row.losers.front().map(|loser| loser.until)).min()
        };
        self.rows.values().filter_map(of_row).min()
    }

    fn tidy(&mut self) {
        self.rows.retain(|_, row| !row.is_over());
        self.waiting = self.rows.values().map(|row| row.losers.len()).sum();
    }
}

impl Leader {
    /// The number of turns that have ended without a commit: what waited for one may go on.
    pub(crate) fn turns_ended(&self) -> u64 {
        self.waiting.turns.ended
    }

    /// The objects over which most transactions were refused, the most first.
    pub(crate) fn most_contended(&self, count: usize) -> Vec<Losses> {
        self.waiting.contended.most(count)
    }

    /// Says whether clients wait for an object over which they have lost, or have a turn at it.
    pub(crate) fn is_waited_for(&self, oref: Oref) -> bool {
        self.waiting.turns.rows.contains_key(&oref)
    }

    /// A transaction has lost over an object. It is refused at once, unless what it lost to is not visible
    /// yet, or others have lost before it.
    pub(super) fn lose(&mut self, asked: Asked, op: OpId, over: Oref, work: &mut Work) {
        self.waiting.contended.lost(Refusal::Conflict(over), work);
        let row = self.waiting.turns.rows.get(&over);
        let waits = row.is_some() || self.is_in_flight(over);
        if !waits || self.waiting.turns.waiting >= limits::LOSERS_MAX {
            return self.not_executed(asked, op, Refusal::Conflict(over), work);
        }
        self.spend(op);
        let until = work.now.plus_us(limits::HELD_US);
        self.waiting.turns.waiting += 1;
        self.waiting.turns.rows.entry(over).or_default().losers.push_back(Loser { asked, op, until });
    }

    /// Refuses clients whose turn has come, and clients that have waited for too long.
    pub(super) fn next_turns(&mut self, work: &mut Work) {
        if self.waiting.turns.rows.is_empty() {
            return;
        }
        let now = work.now;
        let mut rows = std::mem::take(&mut self.waiting.turns.rows);
        for (oref, row) in &mut rows {
            if let Some((client, _)) = row.turn.take_if(|(_, until)| now >= *until) {
                row.missed.push(client);
                self.waiting.turns.ended += 1;
            }
            while let Some(loser) = row.losers.pop_front_if(|loser| now >= loser.until) {
                work.verdict(loser.asked, loser.op, Err(Refusal::Conflict(*oref)));
            }
            let is_in_flight = self.is_in_flight(*oref);
            while row.turn.is_none()
                && !is_in_flight
                && let Some(Loser { asked, op, .. }) = row.losers.pop_front()
            {
                work.verdict(asked, op, Err(Refusal::Conflict(*oref)));
                let missed = row.missed.iter().position(|client| *client == op.client);
                match missed {
                    Some(at) => drop(row.missed.swap_remove(at)),
                    None => row.turn = Some((op.client, now.plus_us(limits::TURN_US))),
                }
            }
        }
        self.waiting.turns.rows = rows;
        self.waiting.turns.tidy();
    }
}
