//! Beginning a transaction: whether the state at hand is new enough for it.

use std::collections::VecDeque;

use tercel_wire::id::{Stamp, ViewId};
use tercel_wire::message::{Ping, Pong};
use tercel_wire::token::Token;

use super::across::Ends;
use super::pending::{Asked, TOKENS_MAX};
use super::{Client, LinkState};
use crate::error::{Bound, Error};
use crate::mutant::{Rule, dropped};
use crate::time::Now;
use crate::txn::{Across, Allowed, Begin, Begun, Echoes, HeldUp};

/// Questions to the server about its progress and its history, and the answers.
#[derive(Debug, Default)]
pub(super) struct Questions {
    pub echoes: Echoes,
    pub tokens: Tokens,
    pub ends: Ends,
    /// A transaction waits for the echo to one that is under way.
    is_waited_for: bool,
    /// The server has shown that it lives since one was asked that is under way, and could not echo it: a
    /// part of a transaction over several spaces waits to be settled.
    is_held_up: bool,
    /// Why the last question was refused, until one is echoed: the server is cut off from its leader.
    pub refused: Option<Error>,
}

impl Questions {
    /// Says whether a transaction waits for an echo that is to come. Until a part of a transaction over
    /// several spaces is settled, the server shows at each question that it lives.
    pub(super) fn is_owed(&self) -> bool {
        self.is_waited_for && !self.echoes.is_idle()
    }

    /// The server lives, and has nothing to say.
    pub(super) fn shown_life(&mut self) {
        self.is_held_up = !self.echoes.is_idle();
    }

    /// The connection is new, or a question was answered.
    pub(super) fn answered(&mut self, refused: Option<Error>) {
        (self.refused, self.is_waited_for, self.is_held_up) = (refused, false, false);
    }
}

/// Tokens of other views: what the server said of them.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// By view, the highest stamp that is of the space's history.
    known: VecDeque<(ViewId, Stamp)>,
    /// Tokens of another history, with the server's words.
    refused: VecDeque<(Token, String)>,
}

/// Questions under way at which the keepalive asks no more. Those of transactions are fewer, see
/// [`Echoes::may_ask`]; a server that goes on talking and echoes none is asked once a keepalive.
pub(super) const QUESTIONS_MAX: usize = 32;

fn push<T>(list: &mut VecDeque<T>, item: T) {
    if list.len() >= TOKENS_MAX {
        list.pop_front();
    }
    list.push_back(item);
}

impl Tokens {
    /// The echo to the question about a token is here: it is of the space's history.
    fn confirmed(&mut self, token: Token) {
        push(&mut self.known, (token.view, token.stamp));
    }

    /// A token is of another history, in the server's words.
    pub(super) fn refused(&mut self, token: Token, text: String) {
        push(&mut self.refused, (token, text));
    }

    #[cfg(test)]
    pub(super) fn refused_for_test(&self, token: Token) -> bool {
        self.refused.iter().any(|(of, _)| *of == token)
    }

    fn is_known(&self, token: &Token) -> bool {
        self.known.iter().any(|(view, stamp)| *view == token.view && token.stamp <= *stamp)
    }
}

/// The verdict on the cached state for a transaction that is to begin.
enum Judged {
    /// New enough: everything acknowledged before this moment is in it, if there is one that is known.
    Enough(Option<Now>),
    /// A question must be asked, or its answer must come.
    TooOld,
}

impl Client {
    /// Begins a transaction's reading; `None` while the state at hand is too old for it.
    pub(crate) fn begin(&mut self, now: Now, begin: &mut Begin) -> Option<Result<Begun, Error>> {
        let as_of = match self.may_begin(now, begin)? {
            Ok(as_of) => as_of,
            Err(e) => return Some(Err(e)),
        };
        let scope = self.reader.scope().ok_or(Error::Full(Bound::Transactions));
        Some(scope.map(|scope| {
            let token = self.token(scope.snapshot());
            Begun {
                scope,
                bytes_max: self.peer.transaction_bytes_max,
                as_of,
                token,
                held: begin.held.clone(),
            }
        }))
    }

    /// Everything acknowledged before this moment, if there is one that is known, is in the state at hand;
    /// `None` while that is too old.
    pub(crate) fn may_begin(&mut self, now: Now, begin: &mut Begin) -> Option<Result<Option<Now>, Error>> {
        match self.judge(now, begin) {
            Err(e) => Some(Err(e)),
            Ok(Judged::TooOld) => {
                self.questions.is_waited_for = true;
                self.outage(now, begin).map(Err)
            }
            Ok(Judged::Enough(as_of)) => Some(Ok(as_of)),
        }
    }

    /// A stamp of this client's view, to pass on.
    pub(crate) fn token(&self, stamp: Stamp) -> Token {
        Token { space: self.history.space, view: self.history.view, stamp }
    }

    /// Says whether the cached state is new enough. Asks the server if that helps.
    fn judge(&mut self, now: Now, begin: &mut Begin) -> Result<Judged, Error> {
        if let Some(refusal) = self.refusal().filter(|_| !begin.takes_stale()) {
            return Err(refusal.clone());
        }
        // Before the first welcome, and after one of another history, nothing is cached that could be read.
        if self.history.view == ViewId::NONE || self.peer.link == LinkState::Checking {
            return Ok(Judged::TooOld);
        }
        let holds_token = match begin.at_least() {
            Some(token) => self.holds(now, token, begin)?,
            None => true,
        };
        let recent_us = 2 * self.peer.keepalive_us;
        let holds = holds_token && self.reader.watermark() >= self.history.acknowledged;
        match self.questions.echoes.allow(begin, now, recent_us) {
            Allowed::Yes { as_of, ask } => {
                if ask && self.questions.echoes.is_idle() {
                    self.ask(now, None);
                }
                if !holds || self.is_held_up(now, begin)? {
                    return Ok(Judged::TooOld);
                }
                // A stale one reads also what a part holds, and does not look.
                let as_of = if begin.takes_stale() { self.questions.echoes.unheld() } else { Some(as_of) };
                Ok(Judged::Enough(as_of))
            }
            // It has heard how far the space was from none, and its server, which is cut off or waits for a
            // settlement, cannot say.
            Allowed::NotYet
                if holds
                    && begin.takes_stale()
                    && (self.questions.refused.is_some() || self.questions.is_held_up) =>
            {
                Ok(Judged::Enough(None))
            }
            Allowed::NotYet => {
                if !self.questions.echoes.is_asked_for(begin, now, recent_us)
                    && self.questions.echoes.may_ask()
                {
                    self.ask(now, None);
                }
                Ok(Judged::TooOld)
            }
        }
    }

    /// Says whether it waits for parts that are not settled. One that looks at its end whether it has read
    /// what they write does not.
    ///
    /// # Errors
    /// If it has waited for a keepalive, and has no time of its own.
    fn is_held_up(&mut self, now: Now, begin: &mut Begin) -> Result<bool, Error> {
        begin.held = self.questions.echoes.held().filter(|_| !begin.takes_stale()).cloned();
        let Some(held) = begin.held.clone().filter(|_| !begin.looks_at_end()) else { return Ok(false) };
        match Across::settled_from(self, held.upto) {
            Some(settled) => settled.map(|_| false),
            None => {
                let since = *begin.held_since.get_or_insert(now);
                let is_late = !begin.is_patient() && now.since_us(since) > held.patience_us;
                if is_late { Err(held.is_late()) } else { Ok(true) }
            }
        }
    }

    /// Says whether the cached state contains the token's state. If not, asks the server for its progress; if
    /// the token's history is not known, asks about that as well.
    fn holds(&mut self, now: Now, token: Token, begin: &mut Begin) -> Result<bool, Error> {
        if token.space != self.history.space {
            return Err(Error::OtherHistory(format!(
                "the token is of space {:x}, and this is space {:x}",
                token.space.0, self.history.space.0
            )));
        }
        let is_of_history = token.view == self.history.view
            || self.questions.tokens.is_known(&token)
            || dropped(Rule::AtLeastOfAnyHistory);
        if let Some((_, text)) = self.questions.tokens.refused.iter().find(|(t, _)| *t == token) {
            return Err(Error::OtherHistory(text.clone()));
        }
        let has_it = self.reader.watermark() >= token.stamp || dropped(Rule::TokenNotWaitedFor);
        if is_of_history && has_it {
            return Ok(true);
        }
        let is_asked = begin.token_call.is_some_and(|call| self.questions.echoes.waits_for(call));
        if !is_asked && self.peer.link == LinkState::Up && self.questions.echoes.may_ask() {
            begin.token_call = Some(self.ask(now, (!is_of_history).then_some(token)));
        }
        Ok(false)
    }

    /// Asks the server how far the space is, and whether a token is of its history. Returns the call; 0
    /// without a connection.
    pub(super) fn ask(&mut self, now: Now, of: Option<Token>) -> u64 {
        if self.peer.link != LinkState::Up {
            return 0;
        }
        let mut body = Vec::new();
        Ping { of }.encode(&mut body);
        let call = self.request(Asked::Question(of), &body);
        self.peer.last_asked = now;
        self.stats.questions += 1;
        self.questions.echoes.asked(call, now);
        call
    }

    /// The server has answered a question, and with it those before, after everything that was visible when
    /// it was asked.
    pub(super) fn echoed(
        &mut self,
        call: u64,
        stamp: Stamp,
        token: Option<Token>,
        pong: Pong,
        server_at: Option<Now>,
    ) {
        if let Some(at) = server_at {
            self.questions.echoes.heard_by_mistake(call, at);
        }
        self.stats.nearly_full = pong.nearly_full;
        if let Some(token) = token {
            self.questions.tokens.confirmed(token);
            self.peer.pending.token_came(call);
        }
        for joined in self.questions.echoes.before(call) {
            self.peer.pending.joined(joined);
        }
        self.questions.answered(None);
        let held = pong.held.map(|held| HeldUp::new(held, self.peer.keepalive_us));
        self.questions.echoes.heard(call, stamp, self.reader.watermark(), held);
    }

    /// The server cannot say how far the space is, to this question and those before.
    pub(super) fn not_echoed(&mut self, call: u64, error: Error) {
        let before: Vec<u64> = self.questions.echoes.before(call).collect();
        for call in before.into_iter().chain([call]) {
            self.peer.pending.joined(call);
            self.questions.echoes.lost(call);
        }
        self.questions.answered(Some(error));
    }

    /// Why a transaction cannot begin before the connection is there again, if that has been gone for two
    /// keepalives. One with a time of its own waits for it.
    fn outage(&self, now: Now, begin: &mut Begin) -> Option<Error> {
        begin.told.clone_from(&self.questions.refused);
        if let Some(refused) = self.questions.refused.as_ref().filter(|_| !begin.is_patient()) {
            return Some(refused.clone());
        }
        let since = self.peer.down_since.filter(|_| !begin.is_patient())?;
        (now.since_us(since) > 2 * self.peer.keepalive_us).then(|| Error::Unavailable(self.why_unavailable()))
    }
}
