//! Questions how far the space is: asked of the sequencer together, echoed to each that asked.
//!
//! Everything that was acknowledged before a question came is visible here, if this node still leads: only
//! the sequencer knows that. It is asked once for all questions that have come; those that come meanwhile
//! wait for the next time. The invariant: an echo is sent after the stream up to what was visible when the
//! sequencer was asked.

use tercel_wire::frame::Kind;
use tercel_wire::id::Stamp;
use tercel_wire::message::{Ping, Pong, Refusal};
use tercel_wire::token::Token;

use super::{Cx, Sessions, inside};
use crate::error::Error;
use crate::leader::Asked;
use crate::mutant::{Rule, dropped};
use crate::order;

/// The questions that wait.
#[derive(Debug, Default)]
pub(super) struct Echoing {
    /// The number of the last confirmation that the sequencer was asked for.
    number: u64,
    /// Those that its answer will answer.
    under_way: Vec<Asked>,
    /// Those that came since: one of each connection, for the echo of a later question answers all before it.
    next: Vec<Asked>,
    /// The sequencer has confirmed that this node leads; echoes wait until this stamp is visible.
    confirmed: Option<Stamp>,
}

impl Sessions {
    /// A client asks how far the space is.
    pub(super) fn ping(&mut self, asked: Asked, ping: Ping, cx: &mut Cx<'_>) {
        if let Some(token) = ping.of
            && let Err(e) = self.holds(token, cx)
        {
            return cx.refuse(asked, Refusal::OtherHistory, e.to_string());
        }
        self.question(asked, cx);
    }

    /// Says whether a token's state is visible.
    ///
    /// # Errors
    /// `OtherHistory` if it is of another space, or of another history of this one.
    pub(crate) fn holds(&self, token: Token, cx: &Cx<'_>) -> Result<bool, Error> {
        if token.space == cx.space && cx.is_overtaken(token.view) {
            return Ok(false);
        }
        if token.space != cx.space || cx.replica.views.contradict(token.view, token.stamp) {
            return Err(Error::OtherHistory(format!(
                "state {token} is not of this space's history: the token is of another space, of before a restore, or of one of \
                 the oldest views, which are forgotten"
            )));
        }
        Ok(token.stamp <= cx.pages.visible())
    }

    /// Notes a question, and asks the sequencer if it is not being asked.
    pub(super) fn question(&mut self, asked: Asked, cx: &mut Cx<'_>) {
        match self.echoing.next.iter_mut().find(|a| a.conn == asked.conn) {
            Some(earlier) => *earlier = asked,
            None => self.echoing.next.push(asked),
        }
        self.confirm(cx);
    }

    fn confirm(&mut self, cx: &mut Cx<'_>) {
        let echoing = &mut self.echoing;
        if !echoing.under_way.is_empty() || echoing.next.is_empty() || cx.leader.is_none() {
            return;
        }
        std::mem::swap(&mut echoing.under_way, &mut echoing.next);
        echoing.number += 1;
        cx.sequencer.handle(cx.now, order::Input::Confirm(echoing.number), cx.said);
    }

    /// The sequencer says that this node still led when it was asked, and that everything up to `stamp` was
    /// ordered before.
    pub(crate) fn confirmed(&mut self, number: u64, stamp: Stamp, cx: &mut Cx<'_>) {
        if number == self.echoing.number && !self.echoing.under_way.is_empty() {
            self.echoing.confirmed = Some(stamp);
            self.echo(cx);
        }
    }

    /// Echoes the questions whose stamp is visible.
    pub(super) fn echo(&mut self, cx: &mut Cx<'_>) {
        if self.echoing.confirmed.is_none_or(|stamp| stamp > cx.pages.visible()) {
            return;
        }
        self.echoing.confirmed = None;
        let nearly_full = cx.leader.as_ref().is_some_and(|leader| leader.space_warning().is_some());
        let mut body = Vec::new();
        Pong { nearly_full }.encode(&mut body);
        let mut answered = std::mem::take(&mut self.echoing.under_way);
        for asked in answered.drain(..) {
            if asked.conn == inside::CONN {
                self.inside.echo(asked.call);
                continue;
            }
            if !self.all.contains_key(&asked.conn) {
                continue;
            }
            self.stream_to(asked.conn, cx);
            let mut header = cx.header_at(cx.pages.visible(), Kind::Pong, asked.call);
            if dropped(Rule::BoundedByServerClock) {
                (header.deadline_us, header.capabilities) = (cx.now.0 as u32, (cx.now.0 >> 32) as u32);
            }
            cx.out.send(asked.conn, header, [&body, &[]]);
        }
        // The next questions find room at hand.
        self.echoing.under_way = answered;
        self.confirm(cx);
    }
}
