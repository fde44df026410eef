//! Connections: greeting, silence, loss, and every frame that arrives.

use std::borrow::Cow;

use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{self, APPLICATION, BODY_BYTES_MAX, FrameError, Header, Kind};
use tercel_wire::id::{Stamp, ViewId};
use tercel_wire::message::{FromServer, Hello, OnBehalf, Refusal, Refused, Resume, Via, Welcome};
use tercel_wire::vector::{VECTOR_MAX, Vector};

use super::begin::{QUESTIONS_MAX, Tokens};
use super::{Client, LinkState};
use crate::error::Error;
use crate::mutant::{Rule, dropped};
use crate::rpc::slots::LARGE_BYTES;
use crate::time::Now;

impl Client {
    pub(super) fn connected(&mut self, now: Now) {
        self.server_reached();
        self.questions.answered(None);
        self.peer.connection += 1;
        self.peer.link = LinkState::Greeting;
        self.peer.last_heard = now;
        self.peer.deframer = Deframer::default();
        self.peer.out.clear();
        self.history.told = Vector::default();
        self.stats.connections += 1;
        let resume = (self.history.view != ViewId::NONE).then(|| Resume {
            view: self.history.view,
            watermark: self.reader.watermark(),
            heard: self.history.heard,
            pages: match dropped(Rule::ResumeWithoutPages) {
                true => Vec::new(),
                false => self.fetches.subscriptions(),
            },
        });
        // A cache of more pages than a message can name begins anew; view and watermark are said in any case,
        // for they show the server whether this client is of its history at all.
        self.peer.begins_anew = resume.as_ref().is_some_and(|r| r.pages.len() > RESUMED_PAGES_MAX);
        let resume =
            resume.map(|r| if self.peer.begins_anew { Resume { pages: Vec::new(), ..r } } else { r });
        let hello = Hello {
            connection: self.peer.connection,
            space: self.config.space,
            resume,
            via: self.peer.servers.reads_anywhere.then_some(Via::Any),
            ..Hello::new(self.id)
        };
        let mut body = Vec::new();
        if let Some(who) = self.config.on_behalf_of.clone() {
            OnBehalf { who }.encode(&mut body);
            self.say(Kind::OnBehalf, &body);
            body.clear();
        }
        hello.encode(&mut body);
        self.say(Kind::Hello, &body);
    }

    pub(super) fn disconnected(&mut self, why: String) {
        if !matches!(self.peer.link, LinkState::Refused(_)) {
            self.peer.link = LinkState::Down(why);
        }
        self.peer.out.clear();
        // Replies to the old connection will not come, or must not count if they do.
        self.lose_pending();
        // What was true of the connection alone.
        self.fetches.end_connection();
        self.leases.end_connection();
        self.classes.read_again();
        self.tools.raw.end_connection();
        self.peer.calls.end_connection();
        self.requests.abandon();
    }

    pub(super) fn tick(&mut self, now: Now) {
        if !self.peer.link.is_connected() {
            return;
        }
        if self.seems_silent(now) {
            self.peer.silences += 1;
            return self.disconnected("the server has been silent for too long".into());
        }
        // Even while messages arrive: a server that sends all the time must receive messages from us, too.
        if self.peer.link == LinkState::Up && now >= self.ask_at() {
            self.keep_alive(now);
        }
    }

    /// Shows the server that this client lives: by a question, unless it has left too many without an echo.
    fn keep_alive(&mut self, now: Now) {
        if self.questions.echoes.under_way() < QUESTIONS_MAX {
            self.ask(now, None);
        } else {
            self.peer.last_asked = now;
            self.say(Kind::Ack, &[]);
        }
    }

    /// Notes that the server took bytes. Unsent bytes make questions wait too, so this is as good as an
    /// answer.
    pub(super) fn taken(&mut self, now: Now) {
        if self.peer.link.is_connected() {
            self.peer.last_heard = now;
        }
    }

    pub(super) fn receive(&mut self, now: Now, bytes: &[u8]) {
        if !self.peer.link.is_connected() {
            return;
        }
        self.peer.last_heard = now;
        let mut deframer = std::mem::take(&mut self.peer.deframer);
        if let Err(e) = self.frames(bytes, &mut deframer) {
            return self.fail(e);
        }
        if !self.peer.link.is_connected() {
            return;
        }
        self.peer.deframer = deframer;
        self.unsubscribe();
    }

    /// Takes in every whole frame, as long as there is a connection; the deframer keeps what is left.
    fn frames(&mut self, mut bytes: &[u8], deframer: &mut Deframer) -> Result<(), Error> {
        let broken = |e: FrameError| Error::Unavailable(e.to_string());
        if deframer.is_empty() {
            while let Some((header, body, rest)) = frame::split(bytes).map_err(broken)? {
                let body = match header.kind == Kind::Response && body.len() >= LARGE_BYTES {
                    true => Cow::Owned(deframer.copy(body)),
                    false => Cow::Borrowed(body),
                };
                self.frame(&header, body)?;
                if !self.peer.link.is_connected() {
                    return Ok(());
                }
                bytes = rest;
            }
            if bytes.is_empty() {
                deframer.relax_in_time();
                return Ok(());
            }
        }
        deframer.push(bytes);
        while let Some((header, body)) = deframer.take_frame().map_err(broken)? {
            let unused = self.frame(&header, body)?;
            unused.into_iter().for_each(|body| deframer.give_back(body));
            if !self.peer.link.is_connected() {
                return Ok(());
            }
        }
        deframer.relax_in_time();
        Ok(())
    }

    /// The peer broke the protocol: no further byte of this connection counts.
    fn fail(&mut self, e: Error) {
        let first = self.peer.link == LinkState::Greeting && self.history.view == ViewId::NONE;
        self.disconnected(e.clone().words());
        if first {
            // The peer at that address has never been our server: trying it again would not help, but another
            // may be one.
            if !self.peer.has_others || self.peer.servers.met_stranger() >= crate::limits::STRANGERS_MAX {
                self.peer.link = LinkState::Refused(e);
            }
        }
    }

    /// Takes in a frame. Gives its body if that was moved here and is not kept.
    fn frame(&mut self, header: &Header, body: Cow<'_, [u8]>) -> Result<Option<Vec<u8>>, Error> {
        let broken = |e| Error::Unavailable(format!("the server broke the protocol: {e}"));
        let unused = match header.kind {
            Kind::Response => {
                self.responded(body).map_err(broken)?;
                None
            }
            _ => {
                self.short_frame(header, &body)?;
                match body {
                    Cow::Owned(body) => Some(body),
                    Cow::Borrowed(_) => None,
                }
            }
        };
        // What is said before the welcome is of a view that this client does not know yet.
        if matches!(self.peer.link, LinkState::Checking | LinkState::Up) {
            self.history.heard = self.history.heard.max(header.stamp);
        }
        Ok(unused)
    }

    /// Takes in a frame whose body is not kept as it is.
    fn short_frame(&mut self, header: &Header, body: &[u8]) -> Result<(), Error> {
        let broken = |e| Error::Unavailable(format!("the server broke the protocol: {e}"));
        match FromServer::decode(header.kind, body).map_err(|e| broken(e.to_string()))? {
            FromServer::Welcome(welcome) => {
                self.peer.servers.capabilities &= header.capabilities;
                self.welcome(welcome, header.capabilities & APPLICATION != 0);
            }
            FromServer::Stream(stream) => self.stream(stream)?,
            FromServer::Verdict(verdict) => self.verdict(verdict),
            FromServer::Dependencies(dependencies) if header.call == 0 => {
                if !self.rests_on(&dependencies.on) {
                    return Err(broken("it rests on more spaces than it can".into()));
                }
            }
            FromServer::Addresses(addresses) => self.peer.servers.learn(addresses.servers),
            FromServer::OutputItem(item) => self.stream_item(header.stamp, item)?,
            FromServer::InputCredit(credit) => self.stream_credit(credit)?,
            FromServer::Response(_) => self.responded(body.into()).map_err(|e| broken(e.to_string()))?,
            FromServer::Refused(refused) => self.refused(header.call, refused)?,
            reply @ (FromServer::Page(_)
            | FromServer::Unchanged(_)
            | FromServer::Leased(_)
            | FromServer::Classes(_)
            | FromServer::Defined(_)
            | FromServer::Bound(_)
            | FromServer::Dependencies(_)
            | FromServer::Offered(_)
            | FromServer::Pong(_)
            | FromServer::Status(_)
            | FromServer::Health(_)
            | FromServer::Settled(_)
            | FromServer::Decided(_)
            | FromServer::SettledUpto(_)) => self.reply(header, reply)?,
            // Only tools ask for these, and by themselves.
            FromServer::BackupBegun(_)
            | FromServer::BackupPart(_)
            | FromServer::TransferBegun(_)
            | FromServer::Grouped(_)
            | FromServer::LogFollowed(_)
            | FromServer::Accessed(_)
            | FromServer::Challenge(_)
            | FromServer::Proven(_) => {
                return Err(broken(format!("it sent {:?}, which was not asked for", header.kind)));
            }
        }
        Ok(())
    }

    /// Takes in what the space rests on, by the server's word. Says whether a space can rest on so much.
    pub(super) fn rests_on(&mut self, on: &Vector) -> bool {
        if self.peer.link == LinkState::Greeting {
            self.history.told.join(on);
            return self.history.told.len() <= VECTOR_MAX;
        }
        self.history.dependencies.join(on);
        // The space rests on some of these no longer: the next greeting says which are left.
        if self.history.dependencies.len() > VECTOR_MAX {
            self.disconnected("the space has forgotten that it rests on another one".into());
        }
        true
    }

    fn welcome(&mut self, w: Welcome, is_application: bool) {
        if self.peer.link != LinkState::Greeting {
            return;
        }
        if self.config.space.0 != 0 && w.space != self.config.space {
            let why = format!(
                "the server has space {:x}, and space {:x} was asked for",
                w.space.0, self.config.space.0
            );
            self.peer.link = LinkState::Refused(Error::OtherHistory(why));
            return;
        }
        if self.history.view != ViewId::NONE && w.space != self.history.space {
            let why = format!(
                "another space is served there now: {:x}, {:x} before",
                w.space.0, self.history.space.0
            );
            self.peer.link = LinkState::Refused(Error::OtherHistory(why));
            return;
        }
        if w.page_bytes as usize != tercel_wire::page::PAGE_BYTES {
            let what = format!("the space's pages have {} bytes, this build's have 8064", w.page_bytes);
            self.peer.link = LinkState::Refused(Error::Schema(what));
            return;
        }
        let is_behind = w.watermark < self.reader.watermark() && !dropped(Rule::BehindWelcomed);
        if is_behind && !self.history.is_foreign {
            self.peer.link = LinkState::Down("the server is behind what this client has heard of".into());
            return;
        }
        let alone = self.peer.servers.check_alone(w.space, &w.servers);
        let is_first = self.history.view == ViewId::NONE;
        if let Some(at) = alone.err().filter(|_| is_first && !is_application) {
            // It may be a member whose directory was lost: what is written there goes to another space.
            let why = format!(
                "{at} is served by a server of no group, and was named with others; name it alone, or serve it with --join"
            );
            self.peer.servers.turned_away = Some(why.clone());
            return self.disconnected(why);
        }
        self.history.space = w.space;
        self.config.space = w.space;
        if !w.places {
            self.leases.drop_all();
        }
        if std::mem::take(&mut self.history.is_foreign) {
            self.writer.begin_history(w.watermark);
            self.fetches.forget_history();
            self.watches.lose_all();
        } else if !w.resumed || self.peer.begins_anew {
            // Nothing says what changed meanwhile: every copy is flagged, those in open read sets included,
            // before the watermark moves.
            if !dropped(Rule::NothingFlaggedAtNewStart) {
                self.writer.flag_all();
            }
            self.fetches.forget(|page| self.writer.is_cached(page));
            self.watches.lose_all();
            if w.watermark > self.reader.watermark() {
                self.writer.advance(w.watermark);
            }
        }
        if self.history.view != w.view {
            self.peer.silences = 0;
        }
        self.peer.servers.learn(w.servers);
        self.peer.servers.found();
        self.history.view = w.view;
        // All that the space rests on was told before, and what was not told is forgotten there.
        self.history.dependencies = std::mem::take(&mut self.history.told);
        self.history.ordered.keep_covered(&self.history.dependencies);
        self.peer.keepalive_us = w.keepalive_ms as u64 * 1000;
        self.requests.slots.set_credit(w.credit);
        self.fetches.set_credit(w.credit);
        self.ops.set_credit(w.credit);
        self.ops.call_bytes.grant(w.credit_bytes as usize);
        self.requests.slots.grant_bytes(w.credit_bytes as usize);
        self.peer.transaction_bytes_max = w.transaction_bytes_max as usize;
        self.peer.link = if self.classes.is_foreign() { LinkState::Checking } else { LinkState::Up };
        if self.peer.link == LinkState::Checking {
            self.classes.read_again();
            self.catalogue();
        }
        for op in self.ops.unanswered() {
            self.ask_outcome(op);
        }
    }

    /// Goes on under another identity: nothing is known of the operations of the one before, and its places
    /// are lost.
    fn begin_as_another(&mut self, why: String) {
        let mut random = crate::random::Random::new(self.id.0);
        self.id = tercel_wire::id::ClientId(random.next_u64());
        self.peer.connection = 0;
        self.ops.evicted();
        self.leases.drop_all();
        self.peer.servers.try_again();
        self.disconnected(why);
    }

    fn refused(&mut self, call: u64, r: Refused) -> Result<(), Error> {
        let error = Error::refused(r.reason, &r.text);
        match r.reason {
            // The server has forgotten this client's operations: it comes back as another one.
            Refusal::Evicted => self.begin_as_another(r.text),
            // The changes that it received never happened there: none of them counts any more.
            Refusal::History => {
                (self.history.view, self.history.is_foreign) = (ViewId::NONE, true);
                (self.history.heard, self.history.acknowledged) = (Stamp::ZERO, Stamp::ZERO);
                (self.history.dependencies, self.history.ordered) = Default::default();
                self.questions.echoes.forget();
                self.questions.tokens = Tokens::default();
                self.questions.ends.forget();
                self.classes.forget();
                self.ops.forget();
                self.watches.end(&Error::OtherHistory(r.text.clone()));
                self.begin_as_another(r.text);
            }
            // Without a call it is the connection that is refused.
            _ if call != 0 => return self.refused_call(call, error),
            Refusal::Unavailable | Refusal::Full(_) | Refusal::NotLeader => {
                if r.reason == Refusal::NotLeader {
                    self.peer.servers.sent_on(r.servers);
                }
                let why = error.words();
                self.peer.servers.turned_away = Some(why.clone());
                self.disconnected(why);
            }
            _ => self.peer.link = LinkState::Refused(error),
        }
        Ok(())
    }
}

/// Pages that a greeting can name: each takes twelve bytes, and the rest of it is below 64.
const RESUMED_PAGES_MAX: usize = (BODY_BYTES_MAX - 64) / 12;
