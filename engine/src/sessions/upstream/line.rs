//! The line: this member's own session at the leader, which all of its readers share.
//!
//! Questions how far the space is go over it, one for all that have come. It acknowledges what the last of
//! the readers has acknowledged, so that the leader gives no place out again that one of them may know. The
//! invariant: it is there, or being made, as long as there are readers.

use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{ClientId, Stamp};
use tercel_wire::message::{FromServer, Refusal};

use super::{Stage, greet, keepalive_us, say};
use crate::effect::{Conn, Effect};
use crate::random::Random;
use crate::sessions::{Cx, Sessions};
use crate::time::Now;

/// The line to the leader.
#[derive(Debug, Default)]
pub(in crate::sessions) struct Line {
    conn: Option<Conn>,
    stage: Stage,
    /// When the question was sent that has no answer yet, or the leader showed that it lives since.
    asked: Option<Now>,
    /// When the leader has answered last; before the first answer, when the line was first wanted.
    heard: Option<Now>,
    sent: Now,
    told: Stamp,
    /// The leader has said that the space is nearly full.
    pub nearly_full: bool,
}

impl Line {
    pub(super) fn is(&self, conn: Conn) -> bool {
        self.conn == Some(conn)
    }

    pub(super) fn conn(&self) -> Option<Conn> {
        self.conn
    }

    /// Says whether it is of use.
    pub(in crate::sessions) fn is_up(&self) -> bool {
        self.stage == Stage::Up
    }

    /// Microseconds since the leader's last word; none while nobody reads here.
    pub(in crate::sessions) fn silent_us(&self, now: Now) -> Option<u64> {
        self.heard.map(|heard| now.since_us(heard))
    }

    /// The sentence of a member that does not reach its leader.
    pub(in crate::sessions) fn cut_off(&self, now: Now) -> String {
        let seconds = self.silent_us(now).unwrap_or(0) as f64 / 1e6;
        format!(
            "this member follows and is cut off from its leader, whose last word is {seconds:.1} s old: read what is stale \
             from it, or name other members"
        )
    }
}

impl Sessions {
    /// Says whether this member follows and has not heard of its leader for a keepalive.
    pub(in crate::sessions) fn is_cut_off(&self, cx: &Cx) -> bool {
        let silent_us = self.upstreams.line.silent_us(cx.work.now);
        cx.leader.is_none() && silent_us.is_some_and(|us| us > keepalive_us(cx))
    }

    /// A client reads here: the line is wanted.
    pub(in crate::sessions) fn want_line(&mut self, cx: &mut Cx) {
        let line = &mut self.upstreams.line;
        line.heard.get_or_insert(cx.work.now);
        if line.conn.is_some() {
            return;
        }
        let Some(leader) = cx.work.sequencer.leader() else { return };
        let address = leader.address.clone();
        let conn = self.upstreams.name();
        let line = &mut self.upstreams.line;
        (line.conn, line.stage, line.asked, line.sent) = (Some(conn), Stage::Dialing, None, cx.work.now);
        cx.out.push(Effect::Connect(conn, address));
    }

    pub(super) fn line_reached(&mut self, conn: Conn, cx: &mut Cx) {
        let acked = self.least_acked(cx);
        let line = &mut self.upstreams.line;
        (line.stage, line.told, line.sent) = (Stage::Greeting, acked, cx.work.now);
        // Drawn anew for each line: what an earlier one was does not matter.
        let me = cx.work.sequencer.status().map_or(0, |group| group.me.0);
        let client = ClientId(Random::new(me ^ cx.work.now.0.rotate_left(32) ^ conn.0).next_u64());
        greet(conn, client, 1, acked, cx);
    }

    /// The leader says something on the line.
    pub(super) fn line_hears(&mut self, header: &Header, message: FromServer<'_>, cx: &mut Cx) {
        let line = &mut self.upstreams.line;
        match message {
            FromServer::Welcome(welcome) if welcome.view != cx.work.replica.view() => self.drop_line(cx),
            FromServer::Welcome(welcome) => {
                (line.stage, line.heard) = (Stage::Up, Some(cx.work.now));
                if !welcome.resumed {
                    // A reader may know a place that was given out again, and it is not known here which.
                    let text = "places that the client may know have been given out again: connect again";
                    for conn in self.readers() {
                        self.turn_away(conn, Refusal::Unavailable, text, cx);
                    }
                }
                self.confirm(cx);
            }
            FromServer::Pong(pong) => {
                (line.asked, line.heard, line.nearly_full) = (None, Some(cx.work.now), pong.nearly_full);
                self.confirmed(header.call, header.stamp, cx);
            }
            FromServer::Refused(_) if header.call == 0 => self.drop_line(cx),
            FromServer::Refused(refused) => {
                (line.asked, line.heard) = (None, Some(cx.work.now));
                self.refuse_questions(&refused.text, cx);
                self.confirm(cx);
            }
            // A stream that goes nowhere: the leader lives, and cannot say yet how far the space is.
            FromServer::Stream(stream) if line.stage == Stage::Up && stream.from == stream.to => {
                line.heard = Some(cx.work.now);
                if line.asked.is_some() {
                    line.asked = Some(cx.work.now);
                    self.show_life_to_waiting(cx);
                }
            }
            _ => {}
        }
    }

    /// Asks the leader how far the space is, by this number.
    pub(in crate::sessions) fn ask_line(&mut self, number: u64, cx: &mut Cx) {
        let Some(conn) = self.upstreams.line.conn else { return };
        let acked = self.tells(cx);
        self.upstreams.line.asked.get_or_insert(cx.work.now);
        say(conn, Kind::Ping, number, acked, cx);
    }

    /// The stamp that the leader is told now.
    fn tells(&mut self, cx: &Cx) -> Stamp {
        let acked = self.least_acked(cx);
        let line = &mut self.upstreams.line;
        (line.sent, line.told) = (cx.work.now, line.told.max(acked));
        acked
    }

    fn drop_line(&mut self, cx: &mut Cx) {
        self.upstreams.line.conn.into_iter().for_each(|conn| cx.close(conn));
        self.line_lost(cx);
    }

    /// The line is gone: questions wait for the next one, which is made after a moment.
    pub(super) fn line_lost(&mut self, cx: &mut Cx) {
        let line = &mut self.upstreams.line;
        (line.conn, line.stage, line.asked, line.sent) = (None, Stage::Wanted, None, cx.work.now);
        self.echoing.ask_again();
    }

    /// Nobody reads here any more.
    pub(super) fn end_line(&mut self, cx: &mut Cx) {
        if let Some(conn) = self.upstreams.line.conn {
            if self.upstreams.line.is_up() {
                say(conn, Kind::Bye, 0, Stamp::ZERO, cx);
            }
            cx.close(conn);
            // This member may lead by now, and its own sequencer answer them.
            self.echoing.ask_again();
        }
        self.upstreams.line = Line::default();
    }

    pub(super) fn tick_line(&mut self, cx: &mut Cx) {
        if self.clients.is_empty() {
            return;
        }
        self.want_line(cx);
        let (half_us, line) = (keepalive_us(cx) / 2, &self.upstreams.line);
        let told = line.told;
        let is_time = cx.work.now.since_us(line.sent) >= half_us / 2;
        let waits_us = line.asked.map(|asked| cx.work.now.since_us(asked));
        match line.stage {
            Stage::Dialing | Stage::Greeting if cx.work.now.since_us(line.sent) > 4 * half_us => {
                self.drop_line(cx)
            }
            Stage::Wanted | Stage::Dialing | Stage::Greeting => {}
            Stage::Up if waits_us.is_some_and(|us| us > 4 * half_us) => self.drop_line(cx),
            Stage::Up if waits_us.is_none() && line.silent_us(cx.work.now) >= Some(half_us) => {
                self.ask_line(0, cx)
            }
            // The question before waits for a settlement there. This one shows whether the leader lives.
            Stage::Up if waits_us.is_some() && is_time => self.ask_line(self.number(), cx),
            Stage::Up => {
                let is_waited = cx.work.replica.places.last_return().is_some_and(|at| at > told);
                if is_waited && self.least_acked(cx) > told {
                    let acked = self.tells(cx);
                    self.upstreams.line.conn.into_iter().for_each(|conn| say(conn, Kind::Ack, 0, acked, cx));
                }
            }
        }
        if self.is_cut_off(cx) {
            let text = self.upstreams.line.cut_off(cx.work.now);
            self.refuse_questions(&text, cx);
        }
    }
}
