//! The client's half of the engine: a machine that keeps a cache true to one server.
//!
//! Its doors: [`Client::new`], [`Client::handle`] for what happened, [`Client::outgoing`] for the bytes to
//! send, [`Client::deadline`]. Transactions call the rest under the client's lock and wait by being called
//! again.
//!
//! The invariant is the watermark's: everything up to `W` that concerns a cached object has been applied
//! here, flags first, then `W`, then new bytes. A reply is installed only when `W` has reached the stamp it
//! is valid at, and only if it answers a pending fetch of this connection.

mod across;
mod begin;
mod calls;
mod classes;
mod connect;
mod fetch;
mod home;
mod lease;
mod locate;
mod ops;
mod pending;
mod raw;
mod servers;
mod services;
mod stream;
mod streaming;
mod watches;

use tercel_heap::{Reader, Scope, Writer};
use tercel_wire::access::Principal;
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{self, Header, Kind};
use tercel_wire::id::{ClientId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::interface::Interface;
use tercel_wire::message::{Collect, Health};
use tercel_wire::vector::Vector;

use crate::error::{Bound, Error};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::random::Random;
use crate::time::Now;

use begin::Questions;
use calls::Calls;
use classes::Classes;
use fetch::Fetches;
use lease::Leases;
use ops::Ops;
use pending::{Asked, Pending, Single};
use services::Requests;
use watches::Watches;

pub use classes::Catalogue;
pub use servers::{PAUSES_US, Pauses, Servers};

/// Settings of a client.
#[derive(Debug, Clone, Default)]
pub struct ClientConfig {
    /// The space it expects; 0 is any.
    pub space: SpaceId,
    /// The principal for which it speaks; none is its own.
    pub on_behalf_of: Option<Principal>,
}

/// Something that happened to a client.
#[derive(Debug)]
pub enum Input<'a> {
    /// A connection to the server is there.
    Connected,
    /// The connection is gone, for this reason.
    Disconnected(String),
    /// Bytes arrived on it.
    Bytes(&'a [u8]),
    /// The server has taken bytes that had to wait for it, or has sent some that the host reads itself.
    Taken,
    /// Time passed, and what arrived on the connection up to now was taken in: silence is judged by it.
    Time,
}

/// Counters of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// Pages asked for.
    pub fetches: u64,
    /// Pages that came.
    pub pages: u64,
    /// Pages that did not have to come, because the copy that is here was found unchanged.
    pub unchanged: u64,
    /// Objects that others changed while they were cached here.
    pub invalidations: u64,
    /// Transactions sent.
    pub commits: u64,
    /// Connections made.
    pub connections: u64,
    /// Questions how far the space is.
    pub questions: u64,
    /// Set if the space had few pages left, or none within a week at its present rate, by the server's last
    /// report. The report is some seconds old at most, while connected. `tercel stat` shows more.
    pub nearly_full: bool,
}

/// Progress of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LinkState {
    /// No connection; the reason for which the last one ended.
    Down(String),
    /// Hello is sent.
    Greeting,
    /// Welcome has come, from another history than the cache was of: its catalogue must agree.
    Checking,
    /// Welcome has come.
    Up,
    /// The server will not have us.
    Refused(Error),
}

impl LinkState {
    /// Says whether there is a connection, ready or not.
    fn is_connected(&self) -> bool {
        matches!(self, LinkState::Greeting | LinkState::Checking | LinkState::Up)
    }
}

/// A machine that keeps a cache true to one server.
pub struct Client {
    config: ClientConfig,
    reader: Reader,
    writer: Writer,
    id: ClientId,
    peer: Peer,
    history: History,
    questions: Questions,
    fetches: Fetches,
    ops: Ops,
    requests: Requests,
    leases: Leases,
    classes: Classes,
    watches: Watches,
    tools: Tools,
    /// Always empty, unless a rule is dropped.
    flags_late: Vec<Oref>,
    stats: ClientStats,
}

/// The connection to the server: how far it is, and the bytes of both directions.
struct Peer {
    link: LinkState,
    /// Which of the client's connections it is.
    connection: u64,
    /// Since when it has not been up.
    down_since: Option<Now>,
    /// Why the server turned this client away, until it is welcomed.
    refusal: Option<Error>,
    /// Set if the greeting could not name all cached pages, so that none of them may be kept.
    begins_anew: bool,
    keepalive_us: u64,
    /// There are other servers to try, and so many were given up in this view because they were silent.
    has_others: bool,
    silences: u32,
    /// Bytes that one transaction may have there.
    transaction_bytes_max: usize,
    last_heard: Now,
    last_asked: Now,
    pending: Pending,
    deframer: Deframer,
    out: Vec<u8>,
    calls: Calls,
    servers: Servers,
}

/// The stamps that the client has received, and their history.
struct History {
    space: SpaceId,
    /// The view of the last welcome.
    view: ViewId,
    /// The last commit of this client that was acknowledged.
    acknowledged: Stamp,
    /// The highest stamp in any frame.
    heard: Stamp,
    /// The server's history is another than what is cached here is of.
    is_foreign: bool,
    /// States of other spaces on which the space rests, at the watermark or later.
    dependencies: Vector,
    /// The stamps that the server has told since this client greets it.
    told: Vector,
    /// The stamps that the space rests on for good, unless its operator has it forget one.
    ordered: Vector,
}

/// Answers that only tools ask for, and that were not taken yet.
#[derive(Default)]
struct Tools {
    raw: raw::Raw,
    /// The interfaces that the server has.
    interfaces: Option<Result<Vec<Interface>, Error>>,
    status: Option<Result<Vec<u8>, Error>>,
    collection: Option<Result<Vec<u8>, Error>>,
    /// The last answer, with the call that it is to.
    health: Option<(u64, Result<Health, Error>)>,
    /// The vector that the space was last asked to rest on, and the last that was refused.
    depending: Vector,
    depend_refused: Option<(Vector, Error)>,
    /// The vector with the spaces that this one was last made to forget.
    forgotten: Option<Vector>,
}

impl Client {
    /// A client with an empty cache, not connected. The seed gives its identity, so it must be random in
    /// production.
    pub fn new(config: ClientConfig, seed: u64, reader: Reader, mut writer: Writer) -> Client {
        let classes = Classes::new(&mut writer);
        Client {
            history: History {
                space: config.space,
                view: ViewId::NONE,
                acknowledged: Stamp::ZERO,
                heard: Stamp::ZERO,
                is_foreign: false,
                dependencies: Vector::default(),
                told: Vector::default(),
                ordered: Vector::default(),
            },
            config,
            reader,
            writer,
            id: ClientId(Random::new(seed).next_u64()),
            peer: Peer {
                link: LinkState::Down("not connected yet".into()),
                connection: 0,
                down_since: None,
                refusal: None,
                begins_anew: false,
                keepalive_us: limits::KEEPALIVE_MS as u64 * 1000,
                has_others: false,
                silences: 0,
                transaction_bytes_max: limits::TRANSACTION_BYTES_MAX,
                last_heard: Now(0),
                last_asked: Now(0),
                pending: Pending::default(),
                deframer: Deframer::default(),
                out: Vec::new(),
                calls: Calls::default(),
                servers: Servers::new(Vec::new(), !seed),
            },
            questions: Questions::default(),
            fetches: Fetches::default(),
            ops: Ops::new(),
            requests: Requests::default(),
            leases: Leases::default(),
            classes,
            watches: Watches::default(),
            tools: Tools::default(),
            flags_late: Vec::new(),
            stats: ClientStats::default(),
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Now, input: Input<'_>) {
        for oref in std::mem::take(&mut self.flags_late) {
            self.writer.flag(oref);
        }
        match input {
            Input::Connected => self.connected(now),
            Input::Disconnected(why) => self.disconnected(why),
            Input::Bytes(bytes) => self.receive(now, bytes),
            Input::Taken => self.taken(now),
            Input::Time => self.tick(now),
        }
        self.note_link(now);
    }

    /// Notes since when there has been no use in the connection. When it is of use again, the server is asked
    /// at once how far it is, for transactions wait for that.
    fn note_link(&mut self, now: Now) {
        match &self.peer.link {
            LinkState::Up => {
                self.peer.refusal = None;
                if self.peer.down_since.take().is_some() {
                    self.ask(now, None);
                }
                return;
            }
            LinkState::Refused(e) => {
                self.peer.refusal = Some(e.clone());
                self.peer.servers.is_denied = matches!(e, Error::Denied(_));
            }
            LinkState::Down(_) | LinkState::Greeting | LinkState::Checking => {}
        }
        self.peer.down_since.get_or_insert(now);
    }

    /// Microseconds for which there has been no connection that is of use; none if there is one, or if a
    /// server has refused it.
    pub fn down_us(&self, now: Now) -> Option<u64> {
        let is_refused = matches!(self.peer.link, LinkState::Refused(_));
        self.peer.down_since.filter(|_| !is_refused).map(|since| now.since_us(since))
    }

    /// Bytes to send, in order; the caller takes them away.
    pub fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.peer.out
    }

    /// The next moment at which it needs the time.
    pub fn deadline(&self) -> Option<Now> {
        match self.peer.link {
            LinkState::Up => Some(self.ask_at().min(self.silent_at())),
            LinkState::Greeting | LinkState::Checking => Some(self.silent_at()),
            LinkState::Down(_) | LinkState::Refused(_) => None,
        }
    }

    /// Says whether the server was silent for so long that [`Input::Time`] would end the connection.
    pub fn seems_silent(&self, now: Now) -> bool {
        self.peer.link.is_connected() && now >= self.silent_at()
    }

    /// Its server may have told of other ones to try. A reader that named its copy alone stays with that.
    pub fn note_others(&mut self) {
        self.peer.has_others |= self.knows_several() && !self.peer.servers.reads_anywhere;
    }

    /// There are other servers to try: one that owes an answer is given up soon.
    pub fn has_others(&mut self) {
        self.peer.has_others = true;
    }

    /// When the server is asked for a sign of life.
    fn ask_at(&self) -> Now {
        self.peer.last_asked.plus_us(self.owed_haste_us().unwrap_or(self.peer.keepalive_us))
    }

    /// When the server is given up, if nothing is heard.
    fn silent_at(&self) -> Now {
        let Peer { link, last_asked, last_heard, keepalive_us, .. } = &self.peer;
        let haste = match link {
            // It was asked since: a server answers from its memory.
            LinkState::Up if last_asked > last_heard => self.owed_haste_us().map(|us| last_asked.plus_us(us)),
            LinkState::Greeting => self.haste_us(limits::GREETED_US).map(|us| last_heard.plus_us(us)),
            LinkState::Checking => self.haste_us(limits::HASTE_US).map(|us| last_heard.plus_us(us)),
            _ => None,
        };
        let in_time = last_heard.plus_us(2 * keepalive_us + 1);
        haste.map_or(in_time, |haste| haste.min(in_time))
    }

    /// The time that a server has for a sign of life while it owes an answer.
    fn owed_haste_us(&self) -> Option<u64> {
        let owes = || self.ops.is_owed() || self.peer.pending.is_owed() || self.questions.is_owed();
        self.haste_us(limits::HASTE_US).filter(|_| owes())
    }

    /// The time that a server has for an answer where others can be tried; twice as long after each that was
    /// given up in vain.
    fn haste_us(&self, first_us: u64) -> Option<u64> {
        let haste_us = first_us << self.peer.silences.min(limits::HASTE_DOUBLINGS);
        self.peer.has_others.then(|| haste_us.min(self.peer.keepalive_us))
    }

    /// Says whether a connection should be made (again). A client that found another history at the address
    /// tries on, for the right server may come back, and so does one that lacks rights, which may be granted.
    /// A client refused for another reason would only be refused again.
    pub fn wants_connection(&self) -> bool {
        let may_pass = |error: &Error| matches!(error, Error::OtherHistory(_) | Error::Denied(_));
        match &self.peer.link {
            LinkState::Down(_) => true,
            LinkState::Refused(error) => may_pass(error),
            _ => false,
        }
    }

    /// Why the server turned this client away, if it did when it was asked last.
    pub fn refusal(&self) -> Option<&Error> {
        self.peer.refusal.as_ref()
    }

    /// Says whether the connection should be cut: the server broke the protocol or refused.
    pub fn wants_close(&self) -> bool {
        matches!(self.peer.link, LinkState::Down(_) | LinkState::Refused(_))
    }

    /// Says whether requests can be answered now; if not, why. `None` while a connection is being made.
    pub fn availability(&self) -> Option<Result<(), Error>> {
        match &self.peer.link {
            LinkState::Up => Some(Ok(())),
            _ => self.peer.refusal.clone().map(Err),
        }
    }

    /// Why there is no connection.
    pub fn why_unavailable(&self) -> String {
        match &self.peer.link {
            LinkState::Down(why) => why.clone(),
            LinkState::Refused(e) => e.to_string(),
            LinkState::Greeting | LinkState::Checking => {
                let none = || "the server does not answer the greeting".into();
                self.peer.servers.turned_away.clone().unwrap_or_else(none)
            }
            LinkState::Up => "the server does not answer".into(),
        }
    }

    /// The client's id, by which the server knows it.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// The space, once known.
    pub fn space(&self) -> SpaceId {
        self.history.space
    }

    /// The view that the server leads, once known.
    pub fn view(&self) -> ViewId {
        self.history.view
    }

    /// Counters.
    pub fn stats(&self) -> ClientStats {
        self.stats
    }

    /// Counters of the cache.
    pub fn cache_stats(&self) -> tercel_heap::Stats {
        self.writer.stats()
    }

    /// The cache's owner's side: for measuring.
    pub fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }

    pub(crate) fn recheck(&mut self, scope: &Scope) -> Result<(), Error> {
        match self.writer.recheck(scope) {
            Ok(()) => Ok(()),
            // Running again would read as much again.
            Err(_) if scope.overfull() => Err(Error::Full(Bound::Reads)),
            Err(_) if self.reads_too_many(scope) => Err(Error::Full(Bound::Subscriptions)),
            Err(_) => Err(Error::Conflict(None)),
        }
    }

    /// Says whether the server asked back a page that the transaction read, and the transaction read about as
    /// many pages as this client may have. Then another run would fail in the same way.
    fn reads_too_many(&mut self, scope: &Scope) -> bool {
        if self.fetches.has_given_back_none() {
            return false;
        }
        let mut read = Vec::new();
        self.writer.read_set(scope, &mut read);
        let mut pages: Vec<PageId> = read.iter().map(|oref| oref.page()).collect();
        pages.dedup();
        pages.iter().any(|page| self.fetches.has_given_back(*page))
            && pages.len() >= self.fetches.subscribed_count() / 4 * 3
    }

    /// The base of a commit: what its transaction read is of this state.
    pub(crate) fn base(&self, scope: &Scope) -> Stamp {
        if dropped(Rule::BaseIsWatermark) { self.reader.watermark() } else { scope.snapshot() }
    }

    pub(crate) fn read_set(&mut self, scope: &Scope, out: &mut Vec<Oref>) {
        self.writer.read_set(scope, out);
    }

    /// Asks the server how it is: JSON.
    pub fn server_status(&mut self, _now: Now) -> Option<Result<Vec<u8>, Error>> {
        let status = self.tools.status.take();
        if status.is_none() {
            self.ask_single(Single::Status, &[]);
        }
        status
    }

    /// Asks the server to collect what no root reaches, or to say what it would free: its status, JSON, with
    /// the number of the collection that will do it.
    pub fn begin_collection(&mut self, _now: Now, is_dry: bool) -> Option<Result<Vec<u8>, Error>> {
        let status = self.tools.collection.take();
        if status.is_none() {
            let mut body = Vec::new();
            Collect { is_dry }.encode(&mut body);
            self.ask_single(Single::Collection, &body);
        }
        status
    }

    /// Asks the server whether it serves. `since` is the caller's: none at first, and then what it was left
    /// to be. The answer is to a question that was sent later than that, for an older one says nothing of
    /// now.
    pub fn health(&mut self, since: &mut Option<u64>) -> Option<Result<Health, Error>> {
        let since = *since.get_or_insert(self.peer.pending.last_call());
        let health = self.tools.health.as_ref().filter(|(call, _)| *call > since);
        if health.is_none() && !self.peer.pending.has(Single::Health) {
            self.ask_single(Single::Health, &[]);
            return None;
        }
        health.map(|(_, health)| health.clone())
    }

    /// Has the space rest on states of other spaces, or forget some; `None` until it does.
    fn depend(&mut self, on: &Vector) -> Option<Result<(), Error>> {
        let is_done = match on.forgotten().next() {
            // The list known here may be behind, so only an answer counts.
            Some(_) => self.tools.forgotten.take_if(|forgotten| forgotten == on).is_some(),
            None => self.history.ordered.covers(on),
        };
        if is_done {
            return Some(Ok(()));
        }
        if let Some((_, refused)) = self.tools.depend_refused.take_if(|(asked, _)| asked == on) {
            return Some(Err(refused));
        }
        if let Err(e) = self.availability()? {
            return Some(Err(e));
        }
        if !self.peer.pending.has(Single::Depend) {
            self.tools.depending = on.clone();
            self.ask_single(Single::Depend, &on.to_bytes());
        }
        None
    }

    /// Asks for what is asked for once at a time, unless that is under way.
    fn ask_single(&mut self, single: Single, body: &[u8]) {
        if !self.peer.pending.has(single) && self.peer.link == LinkState::Up {
            self.request(Asked::Single(single), body);
        }
    }

    /// Up to here everything is applied, and nothing that this client has under way was judged before it.
    fn ack_stamp(&self) -> Stamp {
        self.ops.oldest_base().map_or(self.reader.watermark(), |base| base.min(self.reader.watermark()))
    }

    /// Sends a message whose answer, if it has one, does not name its call. Gives that. What is answered by
    /// its call is for [`Client::request`].
    fn say(&mut self, kind: Kind, body: &[u8]) -> u64 {
        self.say_parts(kind, [body, &[]], 0)
    }

    /// The same, of a body in two parts, for an answer within so many microseconds; 0 is no limit.
    fn say_parts(&mut self, kind: Kind, body: [&[u8]; 2], deadline_us: u32) -> u64 {
        self.send_leaving();
        self.send(kind, body, deadline_us)
    }

    /// The same, of a body of so many bytes, which `write` appends.
    fn say_with(
        &mut self,
        kind: Kind,
        bytes: usize,
        deadline_us: u32,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> u64 {
        self.send_leaving();
        let header = self.header(kind, deadline_us);
        frame::encode_with(header, bytes, write, &mut self.peer.out);
        header.call
    }

    fn send(&mut self, kind: Kind, body: [&[u8]; 2], deadline_us: u32) -> u64 {
        let header = self.header(kind, deadline_us);
        frame::encode_parts(header, body, &mut self.peer.out);
        header.call
    }

    fn header(&mut self, kind: Kind, deadline_us: u32) -> Header {
        let call = self.peer.pending.next_call();
        let (view, capabilities) = (self.history.view, self.peer.servers.capabilities);
        Header { ack: self.ack_stamp(), view, deadline_us, capabilities, ..Header::new(kind, call) }
    }

    /// Says good-bye, so that the server frees the session at once.
    pub fn bye(&mut self) {
        if self.peer.link == LinkState::Up {
            self.say(Kind::Bye, &[]);
        }
    }
}

#[cfg(test)]
impl Client {
    /// A client that has been welcomed and has nothing.
    pub(super) fn connected_for_test() -> Client {
        use tercel_heap::{Boxed, Config, SeqCst, arena_bytes, heap};
        let config = Config { budget_bytes: 512 << 10, ..Config::default() };
        let memory = Boxed::new(arena_bytes(&config).unwrap());
        let (reader, writer) = heap(config, Box::new(memory), Box::new(SeqCst)).unwrap();
        let mut client = Client::new(ClientConfig::default(), 1, reader, writer);
        client.peer.link = LinkState::Up;
        client.fetches.set_credit(limits::CREDIT);
        client.ops.set_credit(limits::CREDIT);
        client.ops.call_bytes.grant(limits::CALL_CREDIT_BYTES);
        client.requests.slots.grant_bytes(limits::CALL_CREDIT_BYTES);
        client
    }

    /// The server answers a call, or says something if that is 0.
    pub(super) fn told_for_test(&mut self, kind: Kind, call: u64, write: impl FnOnce(&mut Vec<u8>)) {
        let (mut body, mut frame) = (Vec::new(), Vec::new());
        write(&mut body);
        frame::encode(Header::new(kind, call), &body, &mut frame);
        self.handle(Now(1), Input::Bytes(&frame));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txn::{Across, Begin, Isolation, Options};

    /// A client that asks for something after a second in which nothing was said.
    fn asking() -> Client {
        let mut client = Client::connected_for_test();
        assert!(client.server_status(Now(1_000_000)).is_none());
        client
    }

    #[test]
    fn silent_server_among_several_is_given_up_soon() {
        let mut client = asking();
        client.has_others();
        assert!(!client.seems_silent(Now(1_000_000)), "it was not asked since");
        client.handle(Now(1_000_000), Input::Time);
        let due = Now(1_000_000 + limits::HASTE_US);
        assert_eq!(client.deadline(), Some(due));
        assert!(!client.seems_silent(Now(due.0 - 1)) && client.seems_silent(due));
        client.handle(due, Input::Time);
        assert!(client.wants_connection());
    }

    #[test]
    fn silent_server_is_kept_if_alone_or_idle() {
        let mut idle = Client::connected_for_test();
        idle.has_others();
        for mut client in [asking(), idle] {
            // A question of its own, just behind the last word, is not the one that a keepalive asks.
            client.ask(Now(100_000), None);
            client.handle(Now(2_100_000), Input::Time);
            assert!(!client.seems_silent(Now(4_000_000)) && client.seems_silent(Now(4_000_001)));
        }
    }

    #[test]
    fn server_that_owes_an_echo_is_given_up() {
        let strict = Options { isolation: Isolation::Strict, ..Options::default() };
        let mut client = Client::connected_for_test();
        client.history.view = ViewId::new(1, 1);
        client.has_others();
        assert!(client.may_begin(Now(1_000_000), &mut Begin::new(&strict)).is_none());
        let due = Now(1_000_000 + limits::HASTE_US);
        assert_eq!(client.deadline(), Some(due));
        client.handle(due, Input::Time);
        assert!(client.wants_connection());
    }

    #[test]
    fn server_that_owes_a_settlement_is_given_up() {
        let mut client = Client::connected_for_test();
        client.has_others();
        assert!(client.settled_from(Stamp(7)).is_none());
        client.handle(Now(1_000_000), Input::Time);
        assert_eq!(client.deadline(), Some(Now(1_000_000 + limits::HASTE_US)));
    }

    #[test]
    fn silent_member_is_given_up_by_client_that_was_told_of_others() {
        let mut client = asking();
        client.peer.servers.learn(vec!["a:1".into(), "b:1".into()]);
        client.note_others();
        client.handle(Now(1_000_000), Input::Time);
        assert_eq!(client.deadline(), Some(Now(1_000_000 + limits::HASTE_US)));
        // Welcomed, and its classes are read again.
        client.peer.link = LinkState::Checking;
        client.peer.last_heard = Now(1_000_000);
        assert!(client.seems_silent(Now(1_000_000 + limits::HASTE_US)));
    }

    #[test]
    fn one_of_several_may_be_no_server() {
        let tries = |has_others| {
            let mut client = Client::connected_for_test();
            client.peer.link = LinkState::Down("it begins".into());
            if has_others {
                client.has_others();
            }
            (0..).find(|_| {
                client.handle(Now(0), Input::Connected);
                client.handle(Now(0), Input::Bytes(&[b'x'; 64]));
                !client.wants_connection()
            })
        };
        assert_eq!((tries(false), tries(true)), (Some(0), Some(limits::STRANGERS_MAX as usize - 1)));
    }

    #[test]
    fn server_after_a_silent_one_has_more_time() {
        let mut client = asking();
        client.has_others();
        client.handle(Now(1_000_000), Input::Time);
        client.handle(Now(2_000_000), Input::Time);
        client.handle(Now(2_000_000), Input::Connected);
        assert!(!client.seems_silent(Now(2_000_000 + 2 * limits::GREETED_US - 1)));
        assert!(client.seems_silent(Now(2_000_000 + 2 * limits::GREETED_US)));
    }
}
