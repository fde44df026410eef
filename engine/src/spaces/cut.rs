//! A cut: a transaction in each of several spaces, in states that go together.
//!
//! The invariant of [`Cut::judge`]: each state covers what the others rest on, so that no effect is read
//! without its cause.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tercel_wire::far::Far;
use tercel_wire::id::Stamp;
use tercel_wire::token::Token;
use tercel_wire::vector::Vector;

use super::{Session, Within, writes};
use crate::error::Error;
use crate::mutant::{Rule, dropped};
use crate::object::{Obj, Object};
use crate::txn::{Begin, Isolation, Options, Tx};

/// States of several spaces that go together: no effect is in one of them whose cause is missing in another.
/// Each is that of a transaction, and [`Session::run`] commits these as one.
pub struct Cut<'a> {
    pub(super) session: &'a Session<'a>,
    pub(super) within: Within<'a>,
    pub(super) may_write: bool,
    /// The states that it needs at least.
    pub(super) needs: RefCell<Vector>,
    pub(super) transactions: Vec<OnceCell<Tx<'a>>>,
    /// By space: the state that was read whose dependencies are among the needs.
    pub(super) noted: Vec<Cell<Option<Stamp>>>,
    /// The changes in all spaces: a part of the body that fails may have written any.
    pub(super) changes: Arc<AtomicU64>,
}

/// Times that the states of a cut are moved on until they go together: each may rest on more of the others.
const MOVES_MAX: usize = 4;

impl<'a> Cut<'a> {
    /// The transaction in the space of a name, begun with its first use.
    ///
    /// # Errors
    /// `Invalid` if the session has no space of that name, and as [`Tx::begin`].
    pub fn space(&self, name: &str) -> Result<&Tx<'a>, Error> {
        self.at(self.session.number(name)?)
    }

    /// The object that a far reference names, in the state of its space that this cut reads.
    ///
    /// # Errors
    /// As [`Session::space_of`], [`Cut::space`] and [`Tx::get_far`].
    pub fn get_far<T: Object>(&self, far: Far<T>) -> Result<Obj<'_, T>, Error> {
        self.at(self.session.number_of(far)?)?.get_far(far)
    }

    pub(super) fn at(&self, at: usize) -> Result<&Tx<'a>, Error> {
        let cell = &self.transactions[at];
        if cell.get().is_none() {
            let id = self.session.id(at, &self.within)?;
            // The spaces that were read before may rest on this one, and on more of it if their states moved.
            self.join_needs()?;
            let (need, at_least) = (self.needs.borrow().get(id), self.needs.borrow().token(id));
            let (_, held) = self.session.settled_from(at, (id, need), &self.within)?;
            let is_first = self.transactions.iter().all(|tx| tx.get().is_none());
            let tx = self.session.begin(at, self.within.left(at_least), is_first)?;
            held.into_iter().for_each(|held| tx.also_held(held));
            tx.count_together(self.changes.clone());
            _ = cell.set(tx);
            // At once: the state has no part in what its space rests on later.
            self.join_needs()?;
        }
        cell.get().ok_or(Error::Conflict(None))
    }

    /// The states that were read, by space, each with its transaction's.
    pub(super) fn tokens(&self) -> Result<Vec<(usize, Token)>, Error> {
        let open = self.transactions.iter().enumerate().filter_map(|(at, cell)| Some((at, cell.get()?)));
        open.map(|(at, tx)| Ok((at, tx.state()?))).collect()
    }

    /// Joins what the spaces rest on in the states that were read, of those that are new or have moved.
    fn join_needs(&self) -> Result<(), Error> {
        for (at, token) in self.tokens()? {
            if self.noted[at].get() != Some(token.stamp) {
                let on = self.session.dependencies(at, token.stamp, &self.within)?;
                self.needs.borrow_mut().join(&on);
                self.noted[at].set(Some(token.stamp));
            }
        }
        Ok(())
    }

    /// Says whether something that was read has changed since.
    pub(super) fn is_stale(&self) -> Result<bool, Error> {
        let mut open = self.transactions.iter().filter_map(OnceCell::get);
        open.try_fold(false, |is_stale, tx| Ok(is_stale || tx.is_stale()?))
    }

    /// Says whether what an unsettled part writes was read: a space that is written would refuse it.
    pub(super) fn is_held_up(&self) -> Result<bool, Error> {
        let mut open = self.transactions.iter().filter_map(OnceCell::get);
        open.try_fold(false, |is_held_up, tx| Ok(is_held_up || tx.is_held_up()?))
    }

    /// Says whether an error of the body counts in current states alone.
    pub(super) fn is_to_be_current(&self) -> bool {
        self.transactions.iter().filter_map(OnceCell::get).any(Tx::is_to_be_current)
    }

    pub(super) fn has_written(&self) -> bool {
        self.transactions.iter().filter_map(OnceCell::get).any(Tx::has_written)
    }

    /// The states that were read, and whether each covers what the others rest on. One that does not is moved
    /// on to one that does, if what was read is the same there.
    pub(super) fn judge(&self) -> Result<(Vec<(usize, Token)>, bool), Error> {
        if !self.may_write && self.has_written() {
            return Err(writes("a cut over several spaces"));
        }
        for _ in 0..MOVES_MAX {
            self.join_needs()?;
            let (tokens, needs) = (self.tokens()?, self.needs.borrow());
            if dropped(Rule::CutNotChecked) {
                return Ok((tokens, true));
            }
            let mut late = Vec::new();
            for (at, token) in &tokens {
                let need = needs.get(token.space);
                if need.is_some_and(|need| token.stamp < need.at.max(need.done)) {
                    late.push(*at);
                    continue;
                }
                let (from, held) = self.session.settled_from(*at, (token.space, need), &self.within)?;
                if from > token.stamp {
                    late.push(*at);
                } else if let (Some(tx), Some(held)) = (self.transactions[*at].get(), held) {
                    tx.also_held(held);
                }
            }
            if late.is_empty() {
                tokens.iter().try_for_each(|(at, token)| self.is_of_history(*at, *token, &needs))?;
                return Ok((tokens, true));
            }
            for at in late {
                if !self.move_on(at, &needs)? {
                    return Ok((tokens, false));
                }
            }
        }
        Ok((self.tokens()?, false))
    }

    /// Has a transaction read a state that covers what is needed, if all that it read is the same there.
    fn move_on(&self, at: usize, needs: &Vector) -> Result<bool, Error> {
        let (Some(tx), Some(id)) = (self.transactions[at].get(), self.session.ids.borrow()[at]) else {
            return Ok(true);
        };
        let (_, held) = self.session.settled_from(at, (id, needs.get(id)), &self.within)?;
        held.into_iter().for_each(|held| tx.also_held(held));
        let options = Options { isolation: Isolation::default(), ..self.within.left(needs.token(id)) };
        tx.holds_since(&mut Begin::new(&options).looking_at_end())
    }

    /// Says whether all that was read is of one moment, if that is asked for: whether each space says, asked
    /// after all was read, that what was read there is current. All are asked before one is waited for.
    pub(super) fn is_of_one_moment(&self, tokens: &[(usize, Token)]) -> Result<bool, Error> {
        let open: Vec<_> = self.transactions.iter().filter_map(OnceCell::get).collect();
        let is_asked_for = self.within.options.isolation == Isolation::Strict && open.len() > 1;
        if !is_asked_for || dropped(Rule::CutNotConfirmed) {
            return Ok(true);
        }
        let mut begins = match self.session.tasks.as_ref().and_then(|kept| kept.asked_in(tokens)) {
            Some(asked) => asked,
            None => {
                let begin = Begin::new(&self.within.left(None)).looking_at_end();
                let mut begins = vec![begin; open.len()];
                open.iter().zip(&mut begins).try_for_each(|(tx, begin)| tx.send_question(begin))?;
                begins
            }
        };
        let mut asked = open.iter().zip(&mut begins);
        let holds = asked.try_fold(true, |holds, (tx, begin)| Ok(holds && tx.holds_since(begin)?));
        if let Some(kept) = self.session.tasks.as_ref().filter(|_| self.session.has_missed()) {
            kept.ask_in(tokens, begins);
        }
        holds
    }

    /// Fails with `OtherHistory` if a state is needed that its space was put back from.
    fn is_of_history(&self, at: usize, token: Token, needs: &Vector) -> Result<(), Error> {
        let need = needs.token(token.space).filter(|need| need.view != token.view);
        let Some(at_least) = need else { return Ok(()) };
        let port = self.session.port(at);
        Tx::begin(port, self.within.left(Some(at_least))).map(|_| ())
    }
}
