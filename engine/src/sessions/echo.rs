//! Questions how far the space is: asked of the sequencer together, echoed to each that asked.
//!
//! Everything that was acknowledged before a question came is visible here, if this node still leads: only
//! the sequencer knows that. It is asked once for all questions that have come; those that come meanwhile
//! wait for the next time. A member that follows asks its leader over the line ([`super::upstream`]) instead,
//! and echoes once it has the stamp that the leader names. The invariant: an echo is sent after the stream up
//! to what was visible when the sequencer was asked.

use std::collections::BTreeSet;

use tercel_wire::frame::Kind;
use tercel_wire::id::Stamp;
use tercel_wire::message::{Ping, Pong, Refusal};
use tercel_wire::token::Token;

use super::upstream::keepalive_us;
use super::{Cx, Sessions, inside};
use crate::effect::Conn;
use crate::error::Error;
use crate::leader::Asked;
use crate::mutant::{Rule, dropped};
use crate::order;
use crate::time::Now;

/// The questions that wait.
#[derive(Debug, Default)]
pub(super) struct Echoing {
    /// The number of the last confirmation that the sequencer was asked for.
    number: u64,
    /// Set if the question only shows that this node still leads, while an answer to one before waits.
    is_checking: bool,
    /// The requests that the answer will answer.
    under_way: Vec<Asked>,
    /// Requests that came since: one a connection, for the echo of a later question answers all before it.
    next: Vec<Asked>,
    /// The sequencer has confirmed that this node leads, then; echoes wait until this stamp is visible.
    confirmed: Option<(Stamp, Now)>,
    /// Questions of transactions inside of this server, confirmed: they wait until no prepare up to the stamp
    /// is unsettled.
    inside: Vec<(Stamp, u64)>,
    /// Other questions, which wait until no prepare up to a stamp is unsettled: by stamp, connection and
    /// call. Each connection has at most [`AWAITING_MAX`](crate::limits::AWAITING_MAX).
    pub awaiting: BTreeSet<(Stamp, Conn, u64)>,
    /// The same, which are answered once the stamp is visible, with what is not settled. They count as those.
    pub naming: BTreeSet<(Stamp, Conn, u64)>,
    /// The same, which wait for the part that was prepared at the stamp.
    pub awaiting_one: BTreeSet<(Stamp, Conn, u64)>,
}

impl Echoing {
    /// No answer comes to those under way: they are among the next.
    pub(super) fn ask_again(&mut self) {
        (self.confirmed, self.is_checking) = (None, false);
        for asked in self.under_way.drain(..) {
            if self.next.iter().all(|later| later.conn != asked.conn) {
                self.next.push(asked);
            }
        }
    }
}

impl Sessions {
    /// A client asks how far the space is.
    pub(super) fn ping(&mut self, asked: Asked, ping: Ping, cx: &mut Cx) {
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
    pub(crate) fn holds(&self, token: Token, cx: &Cx) -> Result<bool, Error> {
        if token.space == cx.work.space && cx.is_overtaken(token.view) {
            return Ok(false);
        }
        if token.space != cx.work.space || cx.work.replica.views.contradict(token.view, token.stamp) {
            return Err(Error::OtherHistory(format!(
                "state {token} is not of this space's history: the token is of another space, of before a restore, or of one of \
                 the oldest views, which are forgotten"
            )));
        }
        Ok(token.stamp <= cx.work.pages.visible())
    }

    /// Notes a question, and asks the sequencer if it is not being asked.
    pub(super) fn question(&mut self, asked: Asked, cx: &mut Cx) {
        match self.echoing.next.iter_mut().find(|a| a.conn == asked.conn) {
            Some(earlier) => *earlier = asked,
            None => self.echoing.next.push(asked),
        }
        self.confirm(cx);
        // Clients give up a silent server before a slow disk has what was ordered.
        if !self.echoing.next.iter().any(|next| next.conn == asked.conn) {
            return;
        }
        match cx.leader {
            Some(_) if !self.echoing.is_checking && self.echoing.confirmed.is_some() => {
                (self.echoing.number, self.echoing.is_checking) = (self.echoing.number + 1, true);
                cx.work.sequence(order::Input::Confirm(self.echoing.number));
            }
            Some(_) => {}
            None if self.is_cut_off(cx) => {}
            None => self.show_life(asked.conn, cx),
        }
    }

    pub(super) fn confirm(&mut self, cx: &mut Cx) {
        let may_ask = cx.leader.is_some() || self.upstreams.line.is_up();
        let echoing = &mut self.echoing;
        if !echoing.under_way.is_empty() || echoing.next.is_empty() || !may_ask {
            return;
        }
        std::mem::swap(&mut echoing.under_way, &mut echoing.next);
        (echoing.number, echoing.is_checking) = (echoing.number + 1, false);
        let number = echoing.number;
        match cx.leader {
            Some(_) => cx.work.sequence(order::Input::Confirm(number)),
            None => self.ask_line(number, cx),
        }
    }

    /// The leader is not reached, or cannot say how far the space is: tells all that ask. Those that ask
    /// again wait for the next time.
    pub(super) fn refuse_questions(&mut self, text: &str, cx: &mut Cx) {
        self.echoing.ask_again();
        for asked in self.echoing.next.extract_if(.., |asked| asked.conn != inside::CONN) {
            cx.refuse(asked, Refusal::Unavailable, text);
        }
    }

    /// Shows all clients that wait for an echo that this server lives, and does not know of another leader.
    pub(super) fn show_life_to_waiting(&mut self, cx: &mut Cx) {
        let waiting = self.echoing.under_way.iter().chain(&self.echoing.next);
        waiting.for_each(|asked| self.show_life(asked.conn, cx));
    }

    /// The number of the confirmation that is under way.
    pub(super) fn number(&self) -> u64 {
        self.echoing.number
    }

    /// The sequencer says that this node still led when it was asked, and that everything up to `stamp` was
    /// ordered before.
    pub(crate) fn confirmed(&mut self, number: u64, stamp: Stamp, cx: &mut Cx) {
        if number != self.echoing.number || self.echoing.under_way.is_empty() {
            return;
        }
        if !std::mem::take(&mut self.echoing.is_checking) {
            self.echoing.confirmed = Some((stamp, cx.work.now));
            self.echo(cx);
        }
        if self.echoing.confirmed.is_some() {
            self.show_life_to_waiting(cx);
        }
    }

    /// Sends on those that asked, if the state that the leader confirmed is not visible within a keepalive.
    pub(super) fn end_confirmed(&mut self, cx: &mut Cx) {
        let is_over = |(_, since): (Stamp, Now)| cx.work.now.since_us(since) > keepalive_us(cx);
        if !self.echoing.confirmed.is_some_and(is_over) {
            return;
        }
        if cx.leader.is_some() {
            return;
        }
        let is_client = |asked: &mut Asked| asked.conn != inside::CONN;
        let late: Vec<Asked> = self.echoing.under_way.extract_if(.., is_client).collect();
        self.echoing.ask_again();
        for asked in late {
            if self.all.contains_key(&asked.conn) {
                self.send_ahead(asked.conn, cx);
            }
        }
        self.confirm(cx);
    }

    /// Echoes the questions whose stamp is visible. A part that was prepared up to that and is not settled
    /// may have been acknowledged where it was decided: the echo names what it holds.
    pub(super) fn echo(&mut self, cx: &mut Cx) {
        self.echo_inside(cx);
        let visible = cx.work.pages.visible();
        let Some((stamp, _)) = self.echoing.confirmed.take_if(|(stamp, _)| *stamp <= visible) else { return };
        let nearly_full = match &cx.leader {
            Some(leader) => leader.space_warning().is_some(),
            None => self.upstreams.line.nearly_full,
        };
        let mut body = Vec::new();
        let held = cx.work.replica.prepares.held(stamp, visible);
        Pong { nearly_full, held }.encode(&mut body);
        let mut answered = std::mem::take(&mut self.echoing.under_way);
        for asked in answered.drain(..) {
            if asked.conn == inside::CONN {
                self.echoing.inside.push((stamp, asked.call));
                continue;
            }
            if !self.all.contains_key(&asked.conn) {
                continue;
            }
            self.stream_to(asked.conn, cx);
            let mut header = cx.header_at(cx.work.pages.visible(), Kind::Pong, asked.call);
            if dropped(Rule::BoundedByServerClock) {
                let now = cx.work.now.0;
                (header.deadline_us, header.capabilities) = (now as u32, (now >> 32) as u32);
            }
            cx.out.send(asked.conn, header, [&body, &[]]);
        }
        // The next questions find room at hand.
        self.echoing.under_way = answered;
        self.echo_inside(cx);
        self.confirm(cx);
    }

    /// Echoes the questions of transactions inside for which nothing is unsettled any more.
    fn echo_inside(&mut self, cx: &Cx) {
        let visible = cx.work.pages.visible();
        let is_settled = |(stamp, _): &mut (Stamp, u64)| cx.work.replica.prepares.is_settled(*stamp, visible);
        for (_, call) in self.echoing.inside.extract_if(.., is_settled) {
            self.inside.echo(call);
        }
    }
}
