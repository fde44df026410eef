//! The required freshness of the state that a transaction reads, and the questions that prove it.
//!
//! A home asks "how far is the space?" and counts from the moment at which it asked: the echo names a stamp
//! that was visible at some moment between question and echo, so a cache that has reached the stamp holds all
//! that was acknowledged before the question. No other clock is trusted. A question counts only once the
//! sequencer has confirmed it: the echo of a leader that was deposed, and does not know it yet, says nothing
//! about the space.
//!
//! The invariant of [`Echoes`]: everything that was acknowledged before the youngest echoed question was
//! asked is in the state that the home shows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tercel_heap::Scope;
use tercel_wire::id::Stamp;
use tercel_wire::token::Token;

use super::held::HeldUp;
use super::{Isolation, Options};
use crate::error::Error;
use crate::mutant::{Rule, dropped};
use crate::time::{Now, micros};

/// The greatest age of the state that a transaction reads. Every choice gives one consistent state with every
/// commit that the same home knew of before.
///
/// The age counts from the moment at which this home asked the server how far the space is, by a clock that
/// also runs while the machine sleeps. It is the most that the state can lack; most often it lacks much less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Freshness {
    /// At most two keepalives old, four seconds unless the server was configured otherwise. Beginning waits
    /// for nothing while the server answers, and fails with `Unavailable` when it has not answered for so
    /// long.
    #[default]
    Recent,
    /// At most this old. A transaction that begins on an older state waits for an answer of the server. With
    /// zero it sees all that was acknowledged to any client before it began.
    Bounded(Duration),
    /// As old as the cache is: reads of cached objects go on as long as the server is gone. An object that is
    /// not cached still waits for the server.
    Stale,
}

/// A transaction that is to begin: what it demands of the state, kept between the calls of one begin.
#[derive(Debug, Clone)]
pub struct Begin {
    /// The state must hold all that was acknowledged before the begin.
    strict: bool,
    freshness: Freshness,
    at_least: Option<Token>,
    /// Set if it waits for a server that has been gone for two keepalives.
    patient: bool,
    /// The first question that was asked after the begin.
    question: Option<u64>,
    /// The call that asked whether the token is of the space's history.
    pub(crate) token_call: Option<u64>,
    /// The server's words on why it could not say how far the space is, when it was asked last.
    pub(crate) told: Option<Error>,
    /// Set if it looks at its end whether it has read what is held; else it begins once nothing is.
    looks_at_end: bool,
    /// The parts that were not settled in the state that it was allowed.
    pub(crate) held: Option<Arc<HeldUp>>,
    /// The begin of its wait for them.
    pub(crate) held_since: Option<Now>,
    /// Others of which it looks as well.
    also: Vec<Arc<HeldUp>>,
}

impl Begin {
    /// A begin that was asked for by these choices.
    pub fn new(options: &Options) -> Begin {
        Begin {
            strict: options.isolation == Isolation::Strict,
            freshness: options.freshness,
            at_least: options.at_least,
            patient: options.timeout.is_some(),
            question: None,
            token_call: None,
            told: None,
            looks_at_end: false,
            held: None,
            held_since: None,
            also: Vec::new(),
        }
    }

    /// The state that it must contain, if one was named.
    pub(crate) fn at_least(&self) -> Option<Token> {
        self.at_least
    }

    /// The same, of one whose reads count for nothing before its end: it looks there whether it has read what
    /// an unsettled part writes.
    #[must_use]
    pub(crate) fn looking_at_end(self) -> Begin {
        Begin { looks_at_end: true, ..self }
    }

    /// The same, which looks as well at these parts.
    #[must_use]
    pub(crate) fn with(self, also: Vec<Arc<HeldUp>>) -> Begin {
        Begin { also, ..self }
    }

    /// Takes those parts, for the transaction that has begun.
    pub(super) fn take_also(&mut self) -> Vec<Arc<HeldUp>> {
        std::mem::take(&mut self.also)
    }

    /// Says whether it looks at its end whether it has read what is held.
    pub(crate) fn looks_at_end(&self) -> bool {
        self.looks_at_end
    }

    /// The same, which must contain this state instead.
    pub(crate) fn holding(self, at_least: Option<Token>) -> Begin {
        Begin { at_least, ..self }
    }

    /// Says whether it waits for a server that has been gone for long.
    pub(crate) fn is_patient(&self) -> bool {
        self.patient
    }

    /// Why it has not begun in time.
    pub(crate) fn is_late(&self) -> Error {
        if let Some(told) = &self.told {
            return told.clone();
        }
        Error::Unavailable(match self.at_least {
            Some(token) => format!("the server did not show state {token} in time: it may be far behind"),
            None => "the server did not say in time how new its state is".into(),
        })
    }

    /// Says whether any consistent state will do, however old.
    pub(crate) fn takes_stale(&self) -> bool {
        !self.strict && self.freshness == Freshness::Stale
    }

    /// The age that the state may have whenever it was asked for; none if only a question will do that is
    /// asked after the begin.
    fn age_max_us(&self, recent_us: u64) -> Option<u64> {
        match self.freshness {
            _ if self.strict => None,
            Freshness::Recent => Some(recent_us),
            Freshness::Bounded(age) => Some(micros(age)),
            Freshness::Stale => Some(u64::MAX),
        }
    }

    /// The age from which a question should be under way, so that the next begin need not wait, if there is
    /// such an age.
    fn age_to_ask_us(&self, recent_us: u64) -> Option<u64> {
        match self.freshness {
            Freshness::Stale => None,
            // Each keepalive has a question of its own; this one is for a home that sends none.
            Freshness::Recent => self.age_max_us(recent_us).map(|us| us / 4 * 3),
            Freshness::Bounded(_) => self.age_max_us(recent_us).map(|us| us / 2),
        }
    }
}

/// The read side of a transaction that has begun.
pub struct Begun {
    /// The scope that it reads through.
    pub scope: Scope,
    /// Bytes that it may write.
    pub bytes_max: usize,
    /// Everything acknowledged before this moment is in its state. None if no server has said how far the
    /// space was.
    pub as_of: Option<Now>,
    /// The state, to pass on.
    pub token: Token,
    /// The parts that are not settled in it, if what they write counts at the end.
    pub held: Option<Arc<HeldUp>>,
}

/// The state that a transaction reads, and its age.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsOf {
    /// The state.
    pub token: Token,
    /// Everything that was acknowledged longer ago than this is in it: [`Duration::MAX`] for what a stale
    /// transaction reads at a member that is cut off, if no server has said how far the space was.
    pub age: Duration,
}

/// The decision that the echoes so far allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// To begin: everything acknowledged before this moment is in the state. Whether it is time to ask anew
    /// all the same.
    Yes { as_of: Now, ask: bool },
    /// Not yet: a question is needed that was asked later.
    NotYet,
}

/// Questions under way at once. One may have been sent just before a transaction began, so that one needs
/// another; those that begin while two are under way share the next.
const QUESTIONS_MAX: usize = 2;

/// The questions that were asked, and the youngest echo.
#[derive(Debug, Default)]
pub(crate) struct Echoes {
    /// The number of the last question.
    asked: u64,
    under_way: VecDeque<Question>,
    echo: Option<Question>,
    /// The parts that the echo named, and when the last question was asked whose echo named none.
    held: Option<Arc<HeldUp>>,
    unheld: Option<Now>,
}

/// A question: its number, the call that carries it, and when it was asked.
#[derive(Debug, Clone, Copy)]
struct Question {
    number: u64,
    call: u64,
    at: Now,
}

impl Echoes {
    /// Says whether one more question may be asked now.
    pub(crate) fn may_ask(&self) -> bool {
        self.under_way.len() < QUESTIONS_MAX
    }

    /// Questions without an answer.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Says whether no answer is on its way.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Says whether the answer to this call is on its way.
    pub(crate) fn waits_for(&self, call: u64) -> bool {
        self.under_way.iter().any(|q| q.call == call)
    }

    /// A question is sent by this call.
    pub(crate) fn asked(&mut self, call: u64, at: Now) {
        self.asked += 1;
        self.under_way.push_back(Question { number: self.asked, call, at });
    }

    /// The echo to `call` is here; it named `stamp`, and the home has reached `watermark`. Echoes come in the
    /// order of their questions, but for those that were joined: a later one answers all before it.
    pub(crate) fn heard(&mut self, call: u64, stamp: Stamp, watermark: Stamp, held: Option<HeldUp>) {
        let Some(i) = self.under_way.iter().position(|q| q.call == call) else { return };
        let question = self.under_way.drain(..=i).next_back();
        if stamp <= watermark {
            (self.echo, self.held) = (question, held.map(Arc::new));
            if self.held.is_none() {
                self.unheld = question.map(|question| question.at);
            }
        }
    }

    /// The parts that the youngest echo named, which were not settled in its state.
    pub(crate) fn held(&self) -> Option<&Arc<HeldUp>> {
        self.held.as_ref()
    }

    /// The moment before which everything acknowledged is in the state, also what an unsettled part writes.
    pub(crate) fn unheld(&self) -> Option<Now> {
        self.unheld
    }

    /// The echo to `call` is here, and names a moment by the server's clock: a rule dropped on purpose.
    pub(crate) fn heard_by_mistake(&mut self, call: u64, at: Now) {
        self.under_way.iter_mut().filter(|q| q.call == call).for_each(|q| q.at = at);
    }

    /// The questions under way that were sent before the one by this call: its echo answers them, too.
    pub(crate) fn before(&self, call: u64) -> impl Iterator<Item = u64> + '_ {
        let is_here = self.waits_for(call);
        self.under_way.iter().map(|q| q.call).take_while(move |earlier| is_here && *earlier != call)
    }

    /// The question by this call will not be answered.
    pub(crate) fn lost(&mut self, call: u64) {
        self.under_way.retain(|q| q.call != call);
    }

    /// Forgets questions and echo: they are of another history.
    pub(crate) fn forget(&mut self) {
        self.under_way.clear();
        (self.echo, self.held, self.unheld) = (None, None, None);
    }

    /// Says whether a transaction may begin on the state that the home shows. `recent_us` is the age that
    /// [`Freshness::Recent`] allows.
    pub(crate) fn allow(&self, begin: &mut Begin, now: Now, recent_us: u64) -> Allowed {
        // By number, for a question of the same microsecond may have been asked before the begin.
        let first = *begin.question.get_or_insert(self.asked + 1);
        let Some(echo) = self.echo else { return Allowed::NotYet };
        // The age is rounded up to whole microseconds.
        let age_us = now.since_us(echo.at).saturating_add(1);
        let is_young = begin.age_max_us(recent_us).is_some_and(|max_us| age_us <= max_us);
        if !is_young && echo.number < first && !(begin.strict && dropped(Rule::StrictBelievesEarlier)) {
            return Allowed::NotYet;
        }
        Allowed::Yes { as_of: echo.at, ask: begin.age_to_ask_us(recent_us).is_some_and(|ask| age_us > ask) }
    }

    /// Says whether the answer to a question under way will let the transaction begin.
    pub(crate) fn is_asked_for(&self, begin: &Begin, now: Now, recent_us: u64) -> bool {
        let is_young =
            |q: &Question| begin.age_max_us(recent_us).is_some_and(|max| now.since_us(q.at) < max / 2);
        self.under_way.iter().any(|q| begin.question.is_some_and(|first| q.number >= first) || is_young(q))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECENT_US: u64 = 4_000_000;

    fn begin(isolation: Isolation, freshness: Freshness) -> Begin {
        Begin::new(&Options { isolation, freshness, ..Options::default() })
    }

    fn bounded(us: u64) -> Begin {
        begin(Isolation::Serializable, Freshness::Bounded(Duration::from_micros(us)))
    }

    /// Asked at 1,000 by call 7 and answered.
    fn echoed() -> Echoes {
        let mut echoes = Echoes::default();
        echoes.asked(7, Now(1_000));
        echoes.heard(7, Stamp(5), Stamp(5), None);
        echoes
    }

    fn allows(echoes: &Echoes, begin: &mut Begin, now: u64) -> bool {
        matches!(echoes.allow(begin, Now(now), RECENT_US), Allowed::Yes { .. })
    }

    #[test]
    fn age_counts_from_the_question() {
        let echoes = echoed();
        assert!(allows(&echoes, &mut bounded(500), 1_499));
        assert!(!allows(&echoes, &mut bounded(500), 1_500));
        assert!(allows(&echoes, &mut begin(Isolation::Serializable, Freshness::Recent), RECENT_US + 999));
        assert!(!allows(&echoes, &mut begin(Isolation::Serializable, Freshness::Recent), RECENT_US + 1_000));
        assert!(allows(&echoes, &mut begin(Isolation::Serializable, Freshness::Stale), u64::MAX));
    }

    #[test]
    fn strict_needs_a_question_asked_after_the_begin() {
        let mut echoes = echoed();
        for mut begin in [begin(Isolation::Strict, Freshness::Stale), bounded(0)] {
            echoes.asked(8, Now(2_000));
            assert!(!allows(&echoes, &mut begin, 2_000));
            echoes.heard(8, Stamp(6), Stamp(6), None);
            assert!(!allows(&echoes, &mut begin, 2_000), "the question was asked before the begin");
            assert!(!echoes.is_asked_for(&begin, Now(2_000), RECENT_US));
            echoes.asked(9, Now(2_000));
            assert!(echoes.is_asked_for(&begin, Now(2_000), RECENT_US));
            echoes.heard(9, Stamp(6), Stamp(6), None);
            assert!(allows(&echoes, &mut begin, 2_000));
        }
    }

    #[test]
    fn bound_below_a_round_trip_is_met_by_a_question_asked_after_the_begin() {
        let (mut echoes, mut begin) = (echoed(), bounded(1));
        assert!(!allows(&echoes, &mut begin, 5_000));
        echoes.asked(8, Now(5_000));
        echoes.heard(8, Stamp(5), Stamp(5), None);
        assert!(allows(&echoes, &mut begin, 5_100));
        assert!(!allows(&echoes, &mut bounded(1), 5_100));
    }

    #[test]
    fn echo_beyond_the_watermark_does_not_count() {
        let mut echoes = Echoes::default();
        echoes.asked(7, Now(1_000));
        echoes.heard(7, Stamp(6), Stamp(5), None);
        assert!(!allows(&echoes, &mut begin(Isolation::Serializable, Freshness::Stale), 1_001));
    }

    #[test]
    fn later_echo_answers_the_questions_before_it() {
        let mut echoes = Echoes::default();
        echoes.asked(7, Now(1_000));
        echoes.asked(8, Now(2_000));
        assert!(!echoes.may_ask());
        echoes.heard(8, Stamp(5), Stamp(5), None);
        assert!(echoes.may_ask() && echoes.is_idle());
        echoes.heard(7, Stamp(5), Stamp(5), None);
        let allowed = echoes.allow(&mut bounded(10_000), Now(2_500), RECENT_US);
        assert_eq!(allowed, Allowed::Yes { as_of: Now(2_000), ask: false });
    }
}
