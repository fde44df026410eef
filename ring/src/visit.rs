//! A visit of the token: what others want again, new packets, the own row, the own wishes, and on it goes.
//!
//! The token leaves before the last packets of a burst (Babay and Amir's accelerated ring), so a packet is
//! asked for only if the token has counted it a visit ago. Every number that a member writes is about itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use tercel_machine::mutant::{Rule, dropped};
use tercel_machine::time::Now;

use super::members::{Place, RingId, Set};
use super::packet::{Beacon, DATA_HEAD_BYTES, Data, Holds, Packet, REQUESTS_MAX, Token};
use super::store::{KEPT_MAX, OUTSTANDING_MAX};
use super::{Config, Level, NEVER, Output, Ring, State};

/// A ring in which nothing has changed for so many rotations is idle.
const IDLE_ROTATIONS: u8 = 2;

/// Times that the pause doubles before a token is sent again.
const RESEND_DOUBLES_MAX: u32 = 7;

/// Times that a token may be lost before a member is left out to which a packet finds no way.
const SILENCES_OF_A_LINK: u64 = 3;

/// A member's side of the token.
#[derive(Debug)]
pub(super) struct Tokens {
    /// The token that has come, and is answered when all packets before it are read.
    pub(super) arrived: Option<Packet<'static>>,
    /// The last pass that this member has seen or made.
    pub(super) hop: u64,
    /// The token as it was sent, its receiver, and how often the pause has doubled.
    sent: Option<(Place, Arc<Vec<u8>>, u32)>,
    /// The token as it left the last time.
    before: Option<Token>,
    /// The token, while it is held.
    held: Option<Token>,
    /// A member wants it before it is held.
    is_wanted: bool,
    /// Bytes that this member sent at the last visit, and had waiting.
    last_sent: u32,
    last_backlog: u32,
    /// Packets that this member sent again at the last visit.
    again: BTreeSet<u64>,
    /// Members of other rings that all of this one would let in.
    pub(super) open: Set,
    /// The least row, and since when it has been that.
    least: (u64, Now),
    pub(super) lost_at: Now,
    pub(super) resend_at: Now,
    pub(super) hold_until: Now,
    pub(super) beacon_at: Now,
    pub(super) cancel_at: Now,
}

impl Tokens {
    pub(super) fn new() -> Tokens {
        Tokens {
            arrived: None,
            hop: 0,
            sent: None,
            before: None,
            held: None,
            is_wanted: false,
            last_sent: 0,
            last_backlog: 0,
            again: BTreeSet::new(),
            open: Set::default(),
            least: (0, NEVER),
            lost_at: NEVER,
            resend_at: NEVER,
            hold_until: NEVER,
            beacon_at: NEVER,
            cancel_at: NEVER,
        }
    }

    /// A packet of the current ring has come: if it was numbered later, the token has arrived.
    pub(super) fn heard(&mut self, number: u64) {
        if self.before.as_ref().is_some_and(|before| number > before.number) {
            self.resend_at = NEVER;
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.before.as_ref().is_some_and(|before| before.idle + 1 >= IDLE_ROTATIONS)
    }
}

impl Ring {
    /// A token has come.
    pub(super) fn take_token(&mut self, token: Token) {
        let epoch = match (&self.next, self.state) {
            (Some(next), State::Recovery) => &next.epoch,
            (_, State::Operational) => &self.current,
            _ => return,
        };
        let is_mine = (epoch.id, epoch.members) == (token.ring, token.members)
            && self.is_turn(token.members, token.hop);
        let is_whole = token.number <= epoch.safe.max(epoch.row) + KEPT_MAX;
        if is_mine && is_whole && token.hop > self.tokens.hop {
            self.tokens.arrived = Some(Packet::Token(token));
        }
    }

    /// Says whether a pass leads to this member.
    pub(super) fn is_turn(&self, members: Set, hop: u64) -> bool {
        hop % members.count().max(1) as u64 == members.rank(self.config.me) as u64
    }

    /// The token is here, and everything that came before it is read.
    pub(super) fn visit(&mut self, now: Now, mut token: Token, out: &mut Vec<Output>) {
        if self.state == State::Recovery && token.complete == token.members {
            self.install(now, out);
        }
        self.tokens.hop = token.hop;
        self.tokens.cancel_at = NEVER;
        token.sent_bytes = token.sent_bytes.saturating_sub(self.tokens.last_sent);
        token.backlog_bytes = token.backlog_bytes.saturating_sub(self.tokens.last_backlog);
        let room = self.allowance(&token);
        let again = self.send_again(&mut token, room, out);
        let fresh = self.number(&mut token, room.saturating_sub(again));
        let sent = again + fresh.iter().map(|packet| packet.len()).sum::<usize>();
        self.tokens.last_sent = sent as u32;
        self.tokens.last_backlog = self.waiting() as u32;
        token.sent_bytes = token.sent_bytes.saturating_add(self.tokens.last_sent);
        token.backlog_bytes = token.backlog_bytes.saturating_add(self.tokens.last_backlog);
        self.write_row(&mut token);
        self.write_links(now, &mut token, out);
        self.want_again(&mut token);
        if self.state == State::Recovery {
            self.say_recovered(&mut token);
        }
        let behind = self.behind(&fresh);
        let others = token.members.without(Set::one(self.config.me));
        let (ahead, behind) = fresh.split_at(fresh.len() - behind);
        let send = |packet: &Arc<Vec<u8>>| Output::Send(others, packet.clone());
        if !others.is_empty() {
            out.extend(ahead.iter().map(send));
        }
        self.pass_or_hold(now, token, out);
        if !others.is_empty() {
            out.extend(behind.iter().map(send));
        }
        self.deliver(out);
        self.let_go();
    }

    /// Bytes that may be sent at this visit. Shares follow what waits; there is always room for a packet.
    fn allowance(&self, token: &Token) -> usize {
        let config = &self.config;
        let waiting = self.waiting();
        let all = u64::from(token.backlog_bytes) + waiting as u64;
        let share = u64::from(config.window_bytes) * waiting as u64 / all.max(1);
        let left = config.window_bytes.saturating_sub(token.sent_bytes);
        left.min(config.visit_bytes).min(share as u32).max(config.packet_bytes as u32) as usize
    }

    /// Bytes that this member has to send.
    fn waiting(&self) -> usize {
        match &self.next {
            Some(next) => next.unsent.len() * self.config.packet_bytes,
            None => self.outbox.bytes(),
        }
    }

    /// Sends what is wanted and is here, to the members whose rows do not reach it. Gives the bytes. What all
    /// have by now is wanted no longer. A packet that was sent at the last visit, too, stays wanted: the link
    /// from here may be broken, and that of another member not.
    fn send_again(&mut self, token: &mut Token, room: usize, out: &mut Vec<Output>) -> usize {
        let before = std::mem::take(&mut self.tokens.again);
        let store = self.next.as_ref().map_or(&self.current.store, |next| &next.epoch.store);
        let least = token.rows.iter().min().copied().unwrap_or(0);
        let wanted = token.wanted.iter().flat_map(|(first, count)| *first..*first + u64::from(*count));
        let numbers = wanted.filter(|number| *number > least);
        let (mut sent, mut left) = (0, BTreeSet::new());
        for number in numbers.take(KEPT_MAX as usize) {
            match store.get(number) {
                Some(packet) if sent < room => {
                    sent += packet.len();
                    self.tokens.again.insert(number);
                    if before.contains(&number) && !dropped(Rule::AskedInVain) {
                        left.insert(number);
                    }
                    let rows = token.members.iter().zip(&token.rows);
                    let lack = rows.filter(|(place, row)| **row < number && *place != self.config.me);
                    out.push(Output::Send(lack.map(|(place, _)| place).collect(), packet.clone()));
                }
                _ => drop(left.insert(number)),
            }
        }
        token.wanted = ranges(&left);
        sent
    }

    /// Asks for what this member lacks of what was numbered before the last visit.
    fn want_again(&self, token: &mut Token) {
        let Some(before) = self.tokens.before.as_ref().filter(|before| before.ring == token.ring) else {
            return;
        };
        let store = self.next.as_ref().map_or(&self.current.store, |next| &next.epoch.store);
        if store.whole() >= before.number {
            return;
        }
        let wanted = token.wanted.iter().flat_map(|(first, count)| *first..*first + u64::from(*count));
        let all = wanted.take(KEPT_MAX as usize).chain(store.missing(before.number)).collect();
        token.wanted = ranges(&all);
    }

    /// Gives numbers to packets, as many as have room, and keeps them. They are still to be sent.
    fn number(&mut self, token: &mut Token, room: usize) -> Vec<Arc<Vec<u8>>> {
        let (mut packets, mut left) = (Vec::new(), room);
        let least = token.rows.iter().min().copied().unwrap_or(0);
        while left > 0 && token.number < least + OUTSTANDING_MAX {
            let Some((holds, body)) = self.next_body() else { break };
            if holds == Holds::Recovered && dropped(Rule::RecoveredNotWrapped) {
                packets.push(Arc::new(body));
                continue;
            }
            token.number += 1;
            let data = Data { ring: token.ring, number: token.number, holds, body: &body };
            let packet = self.encode(&Packet::Data(data));
            let epoch = self.next.as_mut().map_or(&mut self.current, |next| &mut next.epoch);
            epoch.store.insert(token.number, packet.clone());
            epoch.placed = token.number;
            if holds == Holds::Recovered {
                token.recovered = token.number;
            }
            left = left.saturating_sub(packet.len());
            packets.push(packet);
        }
        packets
    }

    /// The next body to send: of the ring before while there is one, else of messages.
    fn next_body(&mut self) -> Option<(Holds, Vec<u8>)> {
        if self.next.is_some() {
            return self.next_unsent().map(|packet| (Holds::Recovered, packet.to_vec()));
        }
        // A packet fits into one of the next ring, with another head.
        let room = self.config.packet_bytes - 2 * DATA_HEAD_BYTES;
        self.outbox.pack(room).map(|(level, body)| match level {
            Level::Agreed => (Holds::Agreed, body),
            Level::Safe => (Holds::Safe, body),
        })
    }

    /// The number of packets that are sent behind the token: none of a small burst, which all wait for.
    fn behind(&self, fresh: &[Arc<Vec<u8>>]) -> usize {
        let mut left = self.config.behind_bytes as usize;
        let fits = |packet: &&Arc<Vec<u8>>| {
            let fits = packet.len() <= left;
            left = left.saturating_sub(packet.len());
            fits
        };
        fresh.iter().rev().take(fresh.len() / 2).take_while(fits).count()
    }

    /// Writes the own row, and reads how far all have come.
    fn write_row(&mut self, token: &mut Token) {
        self.pass_over_recovered();
        let epoch = self.next.as_mut().map_or(&mut self.current, |next| &mut next.epoch);
        let rank = token.members.rank(self.config.me);
        token.rows[rank] = epoch.next_row();
        if dropped(Rule::RowOfAnother) {
            let count = token.rows.len();
            token.rows[(rank + 1) % count] = token.rows[rank];
        }
        epoch.safe = epoch.safe.max(token.rows.iter().min().copied().unwrap_or(0));
    }

    /// Writes the own links, and reads whom all would let in.
    fn write_links(&mut self, now: Now, token: &mut Token, out: &mut Vec<Output>) {
        token.links[token.members.rank(self.config.me)] = self.links.both_ways(now).without(token.members);
        let strangers = Set::first_of(self.config.members).without(token.members);
        let open = token.links.iter().fold(strangers, |open, links| open.common(*links));
        let before = std::mem::replace(&mut self.tokens.open, open);
        if self.state == State::Operational && !open.is_in(before) {
            self.beacon(now, out);
        }
    }

    /// Lets packets go that all members have.
    fn let_go(&mut self) {
        let epoch = self.next.as_mut().map_or(&mut self.current, |next| &mut next.epoch);
        epoch.store.release(epoch.safe.min(epoch.delivered));
    }

    /// The leader holds the token of an idle ring.
    fn pass_or_hold(&mut self, now: Now, mut token: Token, out: &mut Vec<Output>) {
        let is_leader = token.members.first() == Some(self.config.me);
        let is_quiet = self.state == State::Operational
            && token.wanted.is_empty()
            && self.tokens.before.as_ref().is_some_and(|before| {
                (before.ring, before.number) == (token.ring, token.number)
                    && (&before.rows, &before.links) == (&token.rows, &token.links)
            });
        token.idle = match (is_quiet && !self.tokens.is_wanted, is_leader) {
            (false, _) => 0,
            (true, true) => token.idle.saturating_add(1).min(IDLE_ROTATIONS),
            (true, false) => token.idle,
        };
        let stuck = self.stuck(now, &token);
        if !stuck.is_empty() {
            return self.gather(now, token.members, stuck, out);
        }
        self.tokens.is_wanted = false;
        if is_leader && token.idle >= IDLE_ROTATIONS {
            self.tokens.before = Some(token.clone());
            self.tokens.held = Some(token);
            self.tokens.hold_until = now.plus_us(self.config.hold_us);
            (self.tokens.resend_at, self.tokens.lost_at) = (NEVER, NEVER);
        } else {
            self.pass_token(now, token, out);
        }
    }

    fn pass_token(&mut self, now: Now, mut token: Token, out: &mut Vec<Output>) {
        self.tokens.hold_until = NEVER;
        token.hop += 1;
        self.tokens.before = Some(token.clone());
        self.pass(now, token.members, Packet::Token(token), out);
    }

    /// Sends a token on, and keeps it until something shows that it has arrived.
    pub(super) fn pass(&mut self, now: Now, members: Set, token: Packet<'static>, out: &mut Vec<Output>) {
        // A ring that does not come about is given up as a member that does not agree is.
        let Config { lost_us, consensus_us, .. } = self.config;
        let patience_us = if self.state == State::Commit { consensus_us } else { lost_us };
        self.tokens.lost_at = now.plus_us(patience_us);
        let to = members.after(self.config.me).unwrap_or(self.config.me);
        if to == self.config.me {
            self.tokens.arrived = Some(token);
            return;
        }
        let bytes = self.encode(&token);
        out.push(Output::Send(Set::one(to), bytes.clone()));
        self.tokens.sent = Some((to, bytes, 0));
        let held = if self.tokens.is_idle() { self.config.hold_us } else { 0 };
        self.tokens.resend_at = now.plus_us(held + self.config.resend_us);
    }

    /// Other members that have lacked the same packet for too long.
    fn stuck(&mut self, now: Now, token: &Token) -> Set {
        let least = token.rows.iter().min().copied().unwrap_or(0);
        let has_all = self.tokens.before.as_ref().is_none_or(|before| least >= before.number);
        if has_all || self.tokens.least.0 != least || self.tokens.least.1 == NEVER {
            self.tokens.least = (least, now);
        }
        self.lag(now, token, 1)
    }

    /// Other members that had lacked the same packet for half of what is too long when the token left.
    pub(super) fn lagged(&self, now: Now) -> Set {
        self.tokens.before.as_ref().map_or(Set::default(), |before| self.lag(now, before, 2))
    }

    fn lag(&self, now: Now, token: &Token, part: u64) -> Set {
        let (least, since) = self.tokens.least;
        let is_wanted =
            |(first, count): &(u64, u16)| (*first..*first + u64::from(*count)).contains(&(least + 1));
        // A member that does not ask has all of it, and a program that does not take it.
        let patience_us = match token.wanted.iter().any(is_wanted) {
            true => self.config.stuck_us.min(SILENCES_OF_A_LINK * self.config.lost_us),
            false => self.config.stuck_us,
        };
        if now.since_us(since) <= patience_us / part {
            return Set::default();
        }
        let rows = token.members.iter().zip(&token.rows);
        let stuck: Set = rows.filter(|(_, row)| **row <= least).map(|(place, _)| place).collect();
        stuck.without(Set::one(self.config.me))
    }

    /// There is something to send: a token that is held is to go on.
    pub(super) fn want_token(&mut self, now: Now, out: &mut Vec<Output>) {
        if self.state != State::Operational {
            return;
        }
        if self.tokens.held.is_some() {
            return self.end_hold();
        }
        let Some(leader) = self.current.members.first() else { return };
        if leader != self.config.me && self.tokens.is_idle() && self.tokens.cancel_at == NEVER {
            self.cancel(now, leader, out);
        }
    }

    fn cancel(&mut self, now: Now, leader: Place, out: &mut Vec<Output>) {
        out.push(Output::Send(Set::one(leader), self.encode(&Packet::Cancel(self.current.id))));
        self.tokens.cancel_at = now.plus_us(self.config.resend_us);
    }

    /// A member has something to send.
    pub(super) fn take_cancel(&mut self, ring: RingId) {
        if self.current.id != ring || self.state != State::Operational || dropped(Rule::HoldIgnoresMessage) {
            return;
        }
        self.tokens.is_wanted = true;
        if self.tokens.held.is_some() {
            self.end_hold();
        }
    }

    /// The token that is held comes as from before: it is visited again, and passed on.
    fn end_hold(&mut self) {
        self.tokens.is_wanted = true;
        self.tokens.hold_until = NEVER;
        self.tokens.arrived = self.tokens.held.take().map(Packet::Token);
    }

    /// Times of a ring that has a token.
    pub(super) fn time_in_ring(&mut self, now: Now, out: &mut Vec<Output>) {
        if now >= self.tokens.lost_at {
            let members = self.next.as_ref().map_or(self.current.members, |next| next.epoch.members);
            return self.gather(now, members, Set::default(), out);
        }
        if now >= self.tokens.resend_at {
            self.tokens.resend_at = NEVER;
            if let Some((to, bytes, times)) = self.tokens.sent.as_mut() {
                *times = (*times + 1).min(RESEND_DOUBLES_MAX);
                self.tokens.resend_at = now.plus_us(self.config.resend_us << *times);
                out.push(Output::Send(Set::one(*to), bytes.clone()));
            }
        }
        if self.state != State::Operational {
            return;
        }
        if now >= self.tokens.hold_until
            && let Some(token) = self.tokens.held.take()
        {
            self.pass_token(now, token, out);
        }
        if now >= self.tokens.cancel_at
            && let Some(leader) = self.current.members.first()
        {
            self.cancel(now, leader, out);
        }
        if now >= self.tokens.beacon_at {
            self.beacon(now, out);
        }
    }

    /// Tells members that are not in the ring that it is there.
    pub(super) fn beacon(&mut self, now: Now, out: &mut Vec<Output>) {
        let absent = Set::first_of(self.config.members).without(self.current.members);
        self.tokens.beacon_at = if absent.is_empty() { NEVER } else { now.plus_us(self.config.beacon_us) };
        self.beacon_to(now, absent, out);
    }

    pub(super) fn beacon_to(&self, now: Now, to: Set, out: &mut Vec<Output>) {
        if !to.is_empty() {
            let (ring, hears, open) = (self.current.id, self.links.heard(now), self.tokens.open);
            out.push(Output::Send(to, self.encode(&Packet::Beacon(Beacon { ring, hears, open }))));
        }
    }
}

/// Numbers as ranges, the first of them.
fn ranges(numbers: &BTreeSet<u64>) -> Vec<(u64, u16)> {
    let mut ranges: Vec<(u64, u16)> = Vec::new();
    for number in numbers {
        let is_full = ranges.len() == REQUESTS_MAX;
        match ranges.last_mut() {
            Some((first, count)) if *first + u64::from(*count) == *number && *count < u16::MAX => *count += 1,
            _ if is_full => break,
            _ => ranges.push((*number, 1)),
        }
    }
    ranges
}
