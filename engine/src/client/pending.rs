//! Pending calls: the requests of this connection that wait for a reply which repeats the number of their
//! call.
//!
//! A request is entered with what it asks for ([`Asked`]), and its reply takes it out and goes to the part
//! that asked. The invariant: a part believes that something of its is being asked for as long as that is in
//! the table and no longer, so none waits for what will not come. No part knows the number of a call, but for
//! the questions, whose name it is. A call leaves the table in four ways:
//!
//! - *a reply* that fits what was asked. One that does not, in its kind or in the page that it names, is a
//!   violation of the protocol and ends the connection.
//! - *a refusal*, which goes to the one that asked;
//! - *a later echo*: the server joins the questions of a connection, and the echo to one answers all before
//!   it. One about a token stays: a member that follows answers others itself, and has the leader answer
//!   that, so its answer may be behind. The answer to a later one about a token answers it;
//! - *the end of the connection*: [`Client::lose_pending`] empties the table and notifies each part of its
//!   lost requests.
//!
//! A reply to a call that is not here is dropped, once its body has been found well-formed. On one connection
//! an honest server sends one such reply: it refuses a commit whose page is damaged, and says beside that
//! what became of the operation. Calls are numbered over all connections, so a reply of an earlier one would
//! find nothing, either.
//!
//! Other requests are not answered by the number of their call. Operations (commits, calls of methods,
//! questions about an outcome) and calls of services outlive the connection: they keep their slots, and are
//! answered by slot and sequence ([`super::ops`], [`super::services`]). The answer to a greeting, the stream
//! and the end of a connection have no call. A notification to the server ([`Client::say`]) has no answer.
//!
//! Bounds, of the entries of each kind:
//!
//! | asked for | at most | kept by |
//! |---|---|---|
//! | pages, for the cache and past it | the credit that the server granted when it welcomed the client | `Client::has_credit` |
//! | questions how far the space is | `begin::QUESTIONS_MAX` | the keepalive, which asks without need |
//! | questions about tokens that a later echo left | `TOKENS_MAX` | `Pending::joined` |
//! | bindings | one of each interface | `calls::BoundTo::Asked` |
//! | definitions | one of each class of the program | `Classes`, by name |
//! | settlements and inquiries | `across::ENDS_MAX` | `Client::consult` |
//! | stamps up to which all is to be settled | `across::SETTLED_MAX` | `Across::settled_from` |
//! | what is [`Single`] | one of each | `Pending::has` |

use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{PageId, Stamp};
use tercel_wire::message::{Awaited, FromServer};
use tercel_wire::token::Token;

use super::Client;
use crate::consult::Consulted;
use crate::error::Error;
use crate::mutant::{Rule, dropped};
use crate::table::Map;
use crate::time::Now;
use crate::txn::HeldUp;
use crate::txn::ThroughKey;

/// The subject of a request.
#[derive(Debug)]
pub(super) enum Asked {
    /// A page for the cache, by this fetch; one that names a stamp may be answered with Unchanged.
    Page { page: PageId, fetch: u64, has_stamp: bool },
    /// A page past the cache, by this fetch.
    RawPage { page: PageId, fetch: u64 },
    /// The progress of the space, and whether a token is of its history.
    Question(Option<Token>),
    /// The numbers by which the methods of an interface are called.
    Bind(Box<ThroughKey>),
    /// A class of this name.
    Define(&'static str),
    /// The settlement of a transaction over several spaces.
    Settle,
    /// The end of one.
    Inquire,
    /// The question whether all prepares up to a stamp are settled.
    AwaitSettled(Stamp, Awaited),
    /// Something of which one is asked for at a time.
    Single(Single),
}

/// Requests of which at most one per kind is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Single {
    /// Pages to make objects in.
    Lease,
    /// The classes of the space.
    Catalogue,
    /// The interfaces of the server.
    Interfaces,
    /// The server's status.
    Status,
    /// A collection, or what it would free.
    Collection,
    /// The health of the server.
    Health,
    /// The request that the space rest on what was seen of others.
    Depend,
}

impl Asked {
    /// The message that asks for it.
    fn kind(&self) -> Kind {
        match self {
            Asked::Page { .. } | Asked::RawPage { .. } => Kind::Fetch,
            Asked::Question(_) => Kind::Ping,
            Asked::Bind(_) => Kind::Bind,
            Asked::Define(_) => Kind::Define,
            Asked::Settle => Kind::Settle,
            Asked::Inquire => Kind::Inquire,
            Asked::AwaitSettled(..) => Kind::AwaitSettled,
            Asked::Single(Single::Lease) => Kind::Lease,
            Asked::Single(Single::Catalogue) => Kind::Catalogue,
            Asked::Single(Single::Interfaces) => Kind::Interfaces,
            Asked::Single(Single::Status) => Kind::Stat,
            Asked::Single(Single::Collection) => Kind::Collect,
            Asked::Single(Single::Health) => Kind::AskHealth,
            Asked::Single(Single::Depend) => Kind::Depend,
        }
    }

    /// The error for an answer of this kind to this request; `named` is the page that the answer names.
    fn violation(&self, kind: Kind, named: Option<PageId>) -> Error {
        let asked = match self {
            Asked::Page { page, .. } | Asked::RawPage { page, .. } => Some(*page),
            _ => None,
        };
        Error::Unavailable(match (asked, named) {
            (Some(asked), Some(page)) if kind == Kind::Unchanged && asked == page => {
                format!("the server says that page {page} has not changed, which it was not asked")
            }
            (Some(_), Some(page)) => {
                format!("the server answered a fetch with page {page}, which is another")
            }
            _ => format!("the server broke the protocol: it answered {:?} with {kind:?}", self.kind()),
        })
    }
}

/// The pending calls of a client.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// The number of the last message, whether or not it has an answer.
    last: u64,
    by_call: Map<u64, Asked>,
    /// Which of those that are asked for once at a time are in the table.
    single: [bool; Single::Depend as usize + 1],
}

impl Pending {
    /// Says whether an answer is to come that is not only a sign of life. Questions count where a transaction
    /// waits for them, see [`super::begin::Questions::is_owed`].
    pub(super) fn is_owed(&self) -> bool {
        // No transaction waits for the answer to a settlement that it has brought.
        !self.by_call.values().all(|asked| matches!(asked, Asked::Question(_) | Asked::Settle))
    }

    /// The number of the next message.
    pub(super) fn next_call(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The number of the last message.
    pub(super) fn last_call(&self) -> u64 {
        self.last
    }

    /// Says whether such a request is under way.
    pub(super) fn has(&self, single: Single) -> bool {
        self.single[single as usize]
    }

    /// The number of requests of some kind that are under way.
    pub(super) fn count(&self, is_it: impl Fn(&Asked) -> bool) -> usize {
        self.by_call.values().filter(|asked| is_it(asked)).count()
    }

    fn enter(&mut self, call: u64, asked: Asked) {
        if let Asked::Single(single) = asked {
            debug_assert!(!self.has(single), "{single:?} is asked for once at a time");
            self.single[single as usize] = true;
        }
        self.by_call.insert(call, asked);
    }

    /// Takes out what a call asked for, if it is pending.
    pub(super) fn take(&mut self, call: u64) -> Option<Asked> {
        let asked = self.by_call.remove(&call)?;
        if let Asked::Single(single) = asked {
            self.single[single as usize] = false;
        }
        Some(asked)
    }

    /// A later question was answered, and with it this one, unless it is about a token.
    pub(super) fn joined(&mut self, call: u64) {
        let is_about = |asked: &Asked| matches!(asked, Asked::Question(Some(_)));
        if !self.by_call.get(&call).is_some_and(is_about)
            || self.by_call.values().filter(|asked| is_about(asked)).count() > TOKENS_MAX
        {
            self.by_call.remove(&call);
        }
    }

    /// A question about a token was answered: so are all before it.
    pub(super) fn token_came(&mut self, call: u64) {
        self.by_call.retain(|of, asked| *of > call || !matches!(asked, Asked::Question(Some(_))));
    }

    /// The call of the only one of those that ask for this.
    #[cfg(test)]
    pub(super) fn call_of(&self, is_it: impl Fn(&Asked) -> bool) -> Option<u64> {
        let mut calls = self.by_call.iter().filter(|(_, asked)| is_it(asked)).map(|(call, _)| *call);
        calls.next().filter(|_| calls.next().is_none())
    }

    /// Takes out everything. The table is given back when it is empty, for its memory.
    fn take_all(&mut self) -> Map<u64, Asked> {
        self.single = Default::default();
        std::mem::take(&mut self.by_call)
    }
}

/// The page that a reply names, if it names one, and the fetch.
fn names(reply: &FromServer<'_>) -> Option<(PageId, u64)> {
    match reply {
        FromServer::Page(reply) => Some((reply.page, reply.fetch)),
        FromServer::Unchanged(reply) => Some((reply.page, reply.fetch)),
        _ => None,
    }
}

/// Entries of each list of tokens: the oldest is dropped, and asked for again if it is needed.
pub(super) const TOKENS_MAX: usize = 32;

impl Client {
    /// Sends a request, which is pending from now on. Gives its call.
    pub(super) fn request(&mut self, asked: Asked, body: &[u8]) -> u64 {
        let call = self.say(asked.kind(), body);
        self.peer.pending.enter(call, asked);
        call
    }

    /// Takes in a reply to a pending call.
    ///
    /// # Errors
    /// If it does not answer what was asked: the call is pending until the connection has ended for that.
    pub(super) fn reply(&mut self, header: &Header, reply: FromServer<'_>) -> Result<(), Error> {
        let (call, at) = (header.call, header.stamp);
        let Some(asked) = self.peer.pending.take(call) else { return Ok(()) };
        let named = names(&reply);
        match (asked, reply) {
            (Asked::Page { page, fetch, .. }, FromServer::Page(reply)) if named == Some((page, fetch)) => {
                self.page_came(page, at, reply.bytes)?;
            }
            (Asked::Page { page, fetch, has_stamp: true }, FromServer::Unchanged(_))
                if named == Some((page, fetch)) =>
            {
                self.unchanged(page, at);
            }
            (Asked::RawPage { page, fetch }, FromServer::Page(reply)) if named == Some((page, fetch)) => {
                self.raw_page_came(page, fetch, reply.bytes);
            }
            (Asked::Question(token), FromServer::Pong(pong)) => {
                let server_at = u64::from(header.deadline_us) | u64::from(header.capabilities) << 32;
                let server_at = dropped(Rule::BoundedByServerClock).then_some(Now(server_at));
                self.echoed(call, at, token, pong, server_at);
            }
            (Asked::Bind(key), FromServer::Bound(bound)) => self.bound(&key, bound),
            (Asked::Define(name), FromServer::Defined(_)) => self.classes.defined(name),
            (Asked::Settle, FromServer::Settled(_)) => {
                self.questions.ends.answered(call, Ok(Consulted::Settled));
            }
            (Asked::Inquire, FromServer::Decided(decided)) => {
                let decided = Consulted::Decided(decided.decision, decided.seen);
                self.questions.ends.answered(call, Ok(decided));
            }
            (Asked::AwaitSettled(one, Awaited::One), FromServer::SettledUpto(_)) => {
                self.questions.ends.one_settled(one, at);
            }
            (Asked::AwaitSettled(upto, _), FromServer::SettledUpto(settled)) => {
                let held = settled.held.map(|held| HeldUp::new(held, self.peer.keepalive_us));
                self.questions.ends.settled(upto, at, held);
            }
            (Asked::Single(Single::Lease), FromServer::Leased(leased)) => self.leases.granted(leased),
            (Asked::Single(Single::Catalogue), FromServer::Classes(classes)) => self.catalogue_came(classes),
            (Asked::Single(Single::Interfaces), FromServer::Offered(offered)) => {
                self.tools.interfaces = Some(Ok(offered.interfaces));
            }
            (Asked::Single(Single::Status), FromServer::Status(status)) => {
                self.tools.status = Some(Ok(status.json.to_vec()));
            }
            (Asked::Single(Single::Collection), FromServer::Status(status)) => {
                self.tools.collection = Some(Ok(status.json.to_vec()));
            }
            (Asked::Single(Single::Health), FromServer::Health(health)) => {
                self.tools.health = Some((call, Ok(health)));
            }
            (Asked::Single(Single::Depend), FromServer::Dependencies(dependencies)) => {
                self.history.ordered.join(&dependencies.on);
                for space in dependencies.on.forgotten() {
                    self.history.dependencies.remove(space);
                    self.history.ordered.remove(space);
                }
                self.rests_on(&dependencies.on);
                if dependencies.on.forgotten().next().is_some() {
                    self.tools.forgotten = Some(dependencies.on);
                }
            }
            (asked, _) => {
                let violation = asked.violation(header.kind, named.map(|(page, _)| page));
                // The part that asked is notified of it as of all requests of the connection.
                self.peer.pending.enter(call, asked);
                return Err(violation);
            }
        }
        Ok(())
    }

    /// Takes in the refusal of a call.
    ///
    /// # Errors
    /// If it is of what no server refuses.
    pub(super) fn refused_call(&mut self, call: u64, error: Error) -> Result<(), Error> {
        // One that is not pending is of a commit, and a verdict says the same.
        let Some(asked) = self.peer.pending.take(call) else {
            if let Error::Denied(text) = error {
                // A verdict has no words.
                self.ops.denied = text;
            }
            return Ok(());
        };
        let error = match error {
            Error::Unsupported(text) => Error::Unsupported(format!("{:?}, for {text}", asked.kind())),
            error => error,
        };
        match asked {
            Asked::Page { page, .. } => self.fetches.refused(page, error),
            Asked::RawPage { fetch, .. } => self.tools.raw.came(fetch, Err(error)),
            // The server cannot say anything now, nothing about a token either.
            Asked::Question(_) if matches!(error, Error::Unavailable(_)) => self.not_echoed(call, error),
            Asked::Question(Some(token)) => {
                self.questions.echoes.lost(call);
                self.questions.tokens.refused(token, error.to_string());
            }
            Asked::Question(None) => self.not_echoed(call, error),
            Asked::Bind(key) => self.peer.calls.refused(&key, error),
            Asked::Define(name) => self.classes.refused(name, error),
            Asked::Settle | Asked::Inquire => self.questions.ends.answered(call, Err(error)),
            Asked::AwaitSettled(upto, _) => self.questions.ends.not_settled(upto, error),
            Asked::Single(Single::Lease) => self.leases.refused(error),
            Asked::Single(Single::Interfaces) => self.tools.interfaces = Some(Err(error)),
            Asked::Single(Single::Status) => self.tools.status = Some(Err(error)),
            Asked::Single(Single::Collection) => self.tools.collection = Some(Err(error)),
            Asked::Single(Single::Health) => self.tools.health = Some((call, Err(error))),
            Asked::Single(Single::Depend) => {
                self.tools.depend_refused = Some((std::mem::take(&mut self.tools.depending), error));
            }
            Asked::Single(Single::Catalogue) => self.catalogue_refused(error),
        }
        Ok(())
    }

    /// The connection is gone, and with it the replies to all calls that were pending: the door through which
    /// every part is notified of its lost requests.
    pub(super) fn lose_pending(&mut self) {
        let mut lost = self.peer.pending.take_all();
        for (call, asked) in lost.drain() {
            match asked {
                Asked::Page { page, .. } => self.fetches.lost_request(page),
                Asked::RawPage { fetch, .. } => self.tools.raw.lost(fetch),
                Asked::Question(_) => self.questions.echoes.lost(call),
                Asked::Bind(key) => self.peer.calls.lost(&key),
                Asked::Define(name) => self.classes.lost(name),
                Asked::Settle | Asked::Inquire => {
                    let lost = Error::Unavailable("the connection was lost".into());
                    self.questions.ends.answered(call, Err(lost));
                }
                // That they are asked for stands here alone.
                Asked::AwaitSettled(..) | Asked::Single(_) => {}
            }
        }
        self.peer.pending.by_call = lost;
    }
}

#[cfg(test)]
mod tests {
    use tercel_wire::frame::split;
    use tercel_wire::id::{ClassId, OpId, SpaceId, ViewId};
    use tercel_wire::interface::InterfaceSchema;
    use tercel_wire::message::{
        Bound, Classes, Decided, Decision, Defined, Dependencies, Health, HealthState, Leased, PageReply,
        Pong, Refusal, Refused, Settle, Unchanged,
    };
    use tercel_wire::vector::Vector;

    use super::super::begin::QUESTIONS_MAX;
    use super::super::{Input, LinkState};
    use super::*;
    use crate::error::Bound as Limit;
    use crate::txn::{Across, Caller, Through};

    const PAGE: PageId = match PageId::new(7) {
        Some(page) => page,
        None => panic!("7 is a page"),
    };
    const OTHER: PageId = match PageId::new(8) {
        Some(page) => page,
        None => panic!("8 is a page"),
    };
    const TOKEN: Token = Token { space: SpaceId(1), view: ViewId::new(9, 9), stamp: Stamp(9) };
    const SERVICE: Through<'static> = Through::Own(&InterfaceSchema { name: "Clock", methods: &[] }, "");

    /// Asks for everything that can be asked for, and gives whether there is an answer to anything.
    fn ask(client: &mut Client, read: &mut Option<u64>) -> bool {
        let now = Now(1);
        client.fetch(PAGE, None);
        if client.questions.echoes.is_idle() {
            client.ask(now, Some(TOKEN));
        }
        let scope = client.reader.scope().unwrap();
        let answers = [
            client.raw_page(OTHER, read).is_some(),
            client.bind(SERVICE).is_some(),
            client.interfaces().is_some(),
            client.all_classes().is_some(),
            client.server_status(now).is_some(),
            client.begin_collection(now, true).is_some(),
            client.health(&mut None).is_some(),
            client.allocate(now, &scope, 64).is_some(),
            client.depend(&on()).is_some(),
            client.settled_from(Stamp(7)).is_some(),
        ];
        if client.peer.pending.count(|asked| matches!(asked, Asked::Settle | Asked::Inquire)) == 0 {
            let (of, coordinator) = (OpId::default(), SpaceId(2));
            _ = client.settle(&Settle { of, coordinator, prepared: Stamp(7), seen: None, view: None });
            _ = client.inquire(of);
        }
        if client.peer.pending.call_of(|asked| matches!(asked, Asked::Define(_))).is_none() {
            client.request(Asked::Define("C"), &[]);
        }
        answers.contains(&true)
    }

    /// A state of another space.
    fn on() -> Vector {
        Vector::of(Token { space: SpaceId(2), ..TOKEN })
    }

    fn asking() -> Client {
        let mut client = Client::connected_for_test();
        client.history.space = SpaceId(1);
        assert!(!ask(&mut client, &mut None));
        assert_eq!(client.peer.pending.by_call.len(), 15);
        client
    }

    /// Lists the pending calls by number, each with its request.
    fn calls(client: &Client) -> Vec<(String, u64)> {
        let by_call = &client.peer.pending.by_call;
        let mut calls: Vec<_> = by_call.iter().map(|(call, asked)| (format!("{asked:?}"), *call)).collect();
        calls.sort_unstable_by_key(|(_, call)| *call);
        calls
    }

    fn bytes(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    /// A reply of each kind. The pages are answers to the only fetch for the cache, but for the last.
    fn replies() -> Vec<(Kind, Vec<u8>)> {
        let page = |page, fetch| bytes(|o| PageReply { page, fetch, bytes: &[] }.encode(o));
        let leased = Leased { seq: 1, birth: Stamp::ZERO, pages: vec![PAGE], holes: vec![] };
        let bound = Bound { interface: None, methods: vec![], table: None };
        let health = Health { state: HealthState::Serving, up_us: 0, calls: 0, reason: String::new() };
        vec![
            (Kind::Page, page(PAGE, 1)),
            (Kind::Unchanged, bytes(|o| Unchanged { page: PAGE, fetch: 1 }.encode(o))),
            (Kind::Leased, bytes(|o| leased.encode(o))),
            (Kind::Classes, bytes(|o| Classes { classes: vec![] }.encode(o))),
            (Kind::Defined, bytes(|o| Defined { class: ClassId(16) }.encode(o))),
            (Kind::Bound, bytes(|o| bound.encode(o))),
            (Kind::Offered, vec![]),
            (Kind::Pong, bytes(|o| Pong { nearly_full: false, held: None }.encode(o))),
            (Kind::Status, b"{}".to_vec()),
            (Kind::Health, bytes(|o| health.encode(o))),
            (Kind::Dependencies, bytes(|o| Dependencies { on: on() }.encode(o))),
            (Kind::Settled, vec![]),
            (Kind::Decided, bytes(|o| Decided { decision: Decision::Aborted, seen: on() }.encode(o))),
            (Kind::SettledUpto, vec![]),
            (Kind::Page, page(PAGE, 2)),
            (Kind::Page, page(OTHER, 1)),
        ]
    }

    fn refuse(client: &mut Client, call: u64) {
        let refused = Refused { reason: Refusal::FULL, text: "no".into(), servers: vec![] };
        client.told_for_test(Kind::Refused, call, |o| refused.encode(o));
    }

    #[test]
    fn reply_that_is_not_to_what_was_asked_ends_the_connection() {
        let mut fits = 0;
        for (asked, call) in calls(&asking()) {
            let answers = asking().peer.pending.by_call[&call].kind().answers();
            for (i, (kind, body)) in replies().into_iter().enumerate() {
                let mut client = asking();
                client.told_for_test(kind, call, |o| o.extend_from_slice(&body));
                if client.peer.link == LinkState::Up {
                    assert_eq!(client.peer.pending.by_call.len(), 14, "{asked} was answered with {kind:?}");
                    assert!(
                        answers.contains(&kind) && i < 14,
                        "{asked} was answered with {kind:?}, the {i}th"
                    );
                    fits += 1;
                } else {
                    assert!(client.peer.pending.by_call.is_empty(), "{asked} was answered with {kind:?}");
                    assert!(!client.fetches.is_under_way(PAGE));
                }
            }
        }
        assert_eq!(fits, 14);
    }

    #[test]
    fn refusal_reaches_the_one_that_asked_and_no_other() {
        for (asked, call) in calls(&asking()) {
            let mut client = asking();
            let mut read = client.tools.raw.only_for_test();
            let others: Vec<_> = calls(&client).into_iter().filter(|(_, c)| *c != call).collect();
            refuse(&mut client, call);
            assert_eq!((&client.peer.link, calls(&client)), (&LinkState::Up, others), "{asked}");
            let no = Some(Error::Full(Limit::Server("no".into())));
            let heard = match asked.split(['(', ' ']).next().unwrap() {
                "Page" => client.fetches.failed(PAGE, 1).cloned(),
                "RawPage" => client.raw_page(OTHER, &mut read).and_then(Result::err),
                "Bind" => client.bind(SERVICE).and_then(Result::err),
                "Define" => client.classes.take_refused_for_test("C"),
                // The token is refused from now on, and so is what needs it.
                "Question" => client.questions.tokens.refused_for_test(TOKEN).then(|| no.clone()).flatten(),
                _ if asked == "Single(Status)" => client.server_status(Now(1)).and_then(Result::err),
                _ if asked == "Single(Collection)" => {
                    client.begin_collection(Now(1), true).and_then(Result::err)
                }
                _ if asked == "Single(Health)" => client.health(&mut Some(0)).and_then(Result::err),
                _ if asked == "Single(Interfaces)" => client.interfaces().and_then(Result::err),
                _ if asked == "Single(Depend)" => client.depend(&on()).and_then(Result::err),
                "Settle" | "Inquire" => client.answered(call).and_then(Result::err),
                "AwaitSettled" => client.settled_from(Stamp(7)).and_then(Result::err),
                _ if asked == "Single(Lease)" => {
                    let scope = client.reader.scope().unwrap();
                    client.allocate(Now(1), &scope, 64).and_then(Result::err)
                }
                _ => {
                    // It is asked for again as long as there is one that waits.
                    assert!(!ask(&mut client, &mut read));
                    no.clone()
                }
            };
            assert_eq!(heard, no, "{asked}");
        }
    }

    #[test]
    fn request_that_an_older_server_lacks_fails_by_name() {
        let (mut client, mut since) = (Client::connected_for_test(), None);
        assert_eq!(client.health(&mut since), None);
        let refused =
            Refused { reason: Refusal::Unsupported, text: "no message of kind 25".into(), servers: vec![] };
        let call = client.peer.pending.last_call();
        client.told_for_test(Kind::Refused, call, |o| refused.encode(o));
        let Some(Err(e @ Error::Unsupported(_))) = client.health(&mut since) else { panic!("it waits") };
        let text = e.to_string();
        assert!(text.contains("older") && text.contains("AskHealth") && text.contains("kind 25"), "{text}");
        assert_eq!(client.peer.link, LinkState::Up);
    }

    #[test]
    fn refused_question_answers_those_before_it() {
        let mut client = Client::connected_for_test();
        client.ask(Now(1), None);
        let call = client.ask(Now(2), None);
        refuse(&mut client, call);
        assert!(!client.wants_close() && client.questions.echoes.is_idle());
        assert!(client.questions.refused.is_some() && !client.peer.pending.is_owed());
        // It is so until a question is echoed.
        let call = client.ask(Now(3), None);
        client.told_for_test(Kind::Pong, call, |o| Pong { nearly_full: false, held: None }.encode(o));
        assert!(client.questions.refused.is_none());
    }

    #[test]
    fn settlement_is_no_answer_that_is_owed() {
        let mut client = Client::connected_for_test();
        let (of, coordinator) = (OpId::default(), SpaceId(2));
        client
            .settle(&Settle { of, coordinator, prepared: Stamp(7), seen: None, view: None })
            .unwrap()
            .unwrap();
        assert!(!client.peer.pending.is_owed());
        client.inquire(of).unwrap().unwrap();
        assert!(client.peer.pending.is_owed());
    }

    #[test]
    fn dependencies_beyond_their_bound_are_heard_anew() {
        let mut client = Client::connected_for_test();
        let told = |client: &mut Client, spaces: std::ops::Range<u64>| {
            let mut on = Vector::default();
            spaces.for_each(|n| on.join(&Vector::of(Token { space: SpaceId(n), ..TOKEN })));
            client.told_for_test(Kind::Dependencies, 0, |o| Dependencies { on }.encode(o));
        };
        told(&mut client, 100..164);
        assert_eq!(client.peer.link, LinkState::Up);
        told(&mut client, 164..165);
        assert!(client.wants_connection());
        // A greeting tells all of them, and no space has more than the bound.
        client.handle(Now(2), Input::Connected);
        told(&mut client, 101..165);
        assert_eq!(client.peer.link, LinkState::Greeting);
        told(&mut client, 165..166);
        assert!(client.why_unavailable().contains("broke the protocol"));
    }

    #[test]
    fn refused_question_makes_room_for_another() {
        let mut client = Client::connected_for_test();
        let asked = [1, 2].map(|at| client.ask(Now(at), Some(TOKEN)));
        assert!(!client.questions.echoes.may_ask());
        refuse(&mut client, asked[0]);
        assert!(client.questions.echoes.may_ask() && client.questions.echoes.waits_for(asked[1]));
    }

    #[test]
    fn refusal_of_an_operation_is_left_to_its_verdict() {
        let mut client = asking();
        let op = client.submit(Now(1), Stamp::ZERO, &mut Vec::new(), b"").unwrap().unwrap();
        let before = calls(&client);
        let call = client.peer.pending.last;
        refuse(&mut client, call);
        assert_eq!((&client.peer.link, calls(&client)), (&LinkState::Up, before));
        assert_eq!(client.outcome(op), None);
    }

    #[test]
    fn nothing_is_pending_behind_the_end_of_a_connection_and_all_is_asked_for_again() {
        let (mut client, mut read) = (Client::connected_for_test(), None);
        client.history.space = SpaceId(1);
        ask(&mut client, &mut read);
        let before = calls(&client);
        client.handle(Now(2), Input::Disconnected("it was cut".into()));
        assert!(client.peer.pending.by_call.is_empty() && !client.peer.pending.single.contains(&true));
        assert!(!client.fetches.is_under_way(PAGE) && client.questions.echoes.is_idle());
        assert_eq!(client.tools.raw.under_way(), 0);
        client.peer.link = LinkState::Up;
        // Replies to the old connection are not to anything.
        for (_, call) in &before {
            for (kind, body) in replies() {
                client.told_for_test(kind, *call, |o| o.extend_from_slice(&body));
            }
            refuse(&mut client, *call);
        }
        assert_eq!(client.peer.link, LinkState::Up);
        assert!(!ask(&mut client, &mut read));
        assert_eq!(client.peer.pending.by_call.len(), before.len());
        assert!(calls(&client)[0].1 > before[before.len() - 1].1);
    }

    #[test]
    fn reply_that_was_not_asked_for_is_dropped_and_one_that_is_damaged_is_not() {
        for (kind, body) in replies() {
            let mut client = Client::connected_for_test();
            client.told_for_test(kind, 77, |o| o.extend_from_slice(&body));
            assert_eq!(client.peer.link, LinkState::Up, "{kind:?}");
            assert!(!client.catalogue(), "{kind:?}");
            if !matches!(kind, Kind::Status | Kind::Page) {
                client.told_for_test(kind, 77, |o| o.extend_from_slice(b"damage that is no message"));
                assert!(client.wants_close(), "{kind:?}");
            }
        }
    }

    #[test]
    fn echo_answers_the_questions_before_it() {
        let mut client = Client::connected_for_test();
        let asked = [1, 2, 3].map(|at| client.ask(Now(at), None));
        client.told_for_test(Kind::Pong, asked[1], |o| Pong { nearly_full: false, held: None }.encode(o));
        assert_eq!(client.peer.pending.by_call.keys().copied().collect::<Vec<_>>(), [asked[2]]);
        client.told_for_test(Kind::Pong, asked[0], |o| Pong { nearly_full: false, held: None }.encode(o));
        assert_eq!((&client.peer.link, client.questions.echoes.under_way()), (&LinkState::Up, 1));
    }

    #[test]
    fn token_refused_behind_a_later_echo_is_refused() {
        let mut client = Client::connected_for_test();
        let echo = |client: &mut Client, call| {
            client.told_for_test(Kind::Pong, call, |o| Pong { nearly_full: false, held: None }.encode(o));
        };
        let (about, plain) = (client.ask(Now(1), Some(TOKEN)), client.ask(Now(2), None));
        echo(&mut client, plain);
        assert!(client.questions.echoes.is_idle());
        refuse(&mut client, about);
        assert!(client.questions.tokens.refused_for_test(TOKEN) && client.peer.pending.by_call.is_empty());
        // Those that are never answered are bounded, and a later one answers them.
        for at in 3..200 {
            client.ask(Now(at), Some(TOKEN));
            let plain = client.ask(Now(at), None);
            echo(&mut client, plain);
        }
        assert_eq!(client.peer.pending.by_call.len(), TOKENS_MAX);
        let last = client.ask(Now(200), Some(TOKEN));
        echo(&mut client, last);
        assert!(client.peer.pending.by_call.is_empty());
    }

    #[test]
    fn server_that_echoes_nothing_is_asked_so_often_and_then_told_that_the_client_is_there() {
        let mut client = Client::connected_for_test();
        let mut said = Vec::new();
        for n in 1..=2 * QUESTIONS_MAX as u64 {
            let now = Now(n * client.peer.keepalive_us);
            client.handle(now, Input::Taken);
            client.handle(now, Input::Time);
            let sent = std::mem::take(client.outgoing());
            let (header, _, rest) = split(&sent).unwrap().unwrap();
            assert!(rest.is_empty());
            said.push(header.kind);
        }
        assert!(said[..QUESTIONS_MAX].iter().all(|kind| *kind == Kind::Ping));
        assert!(said[QUESTIONS_MAX..].iter().all(|kind| *kind == Kind::Ack));
        assert_eq!(client.peer.pending.by_call.len(), QUESTIONS_MAX);
    }
}
