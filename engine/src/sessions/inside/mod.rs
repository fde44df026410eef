//! The server's own session: that of the transactions inside of it.
//!
//! It asks the leader as any client does, without frames; an answer is kept here until the transaction that
//! asked takes it. No connection of it can be cut, so it lasts as long as the view; another view is another
//! session. The invariant: each question has one answer, and each answer raises [`Inside::news`], for those
//! that wait.

mod ops;

use std::sync::Arc;

use tercel_wire::id::{ClassId, ClientId, OpId, Oref, PageId, Stamp, ViewId};
use tercel_wire::layout::Layout;
use tercel_wire::message::{Lease, Leased, Outcome};
use tercel_wire::vector::Vector;

use super::{Cx, Sessions};
use crate::effect::{Conn, INSIDE, Unread};
use crate::error::{Bound, Error};
use crate::leader::{Asked, Body, Reply};
use crate::limits;
use crate::pages::Pages;
use crate::pages::image::CachedImage;
use crate::pages::reads::Waiter;
use crate::random::Random;
use crate::table::{Map, Set};
use crate::time::Now;
use crate::txn::{Echoes, Places};
use ops::Ops;

/// The connection that the session would have.
pub(super) const CONN: Conn = INSIDE;

/// Questions about classes whose answers no transaction has taken yet.
const DEFINING_MAX: usize = 64;

/// Pages that could not be read, until a transaction that wants one receives the error.
const UNREAD_MAX: usize = 64;

/// The session's questions under way, and the answers that no transaction has taken yet.
#[derive(Debug, Default)]
pub(crate) struct Inside {
    session: Option<Session>,
    /// Sessions of this server that ended before their view did: a fault of this program.
    broken: u64,
    /// The last call.
    call: u64,
    /// Grants whose notice has arrived.
    granted: u64,
    granting: Question<Leased>,
    /// Grants that doubled the number of pages to ask for next.
    doublings: u32,
    pub(crate) places: Places,
    pub(crate) echoes: Echoes,
    defining: Vec<(Layout, Question<ClassId>)>,
    pub(crate) ops: Ops,
    /// Pages that are being read, and those that could not be.
    reading: Set<PageId>,
    unread: Map<PageId, Unread>,
    /// The last page that a transaction missed, until [`Sessions::inside_missed`] takes it.
    missed: Option<PageId>,
    news: u64,
}

/// The name under which transactions inside of a server are submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Session {
    pub client: ClientId,
    /// The view that it began in.
    pub view: ViewId,
}

/// A page, if it is at hand.
#[derive(Debug)]
pub(crate) enum Image {
    /// The bytes of the page; none if nothing that is visible was ever written to it.
    Here(Option<Arc<Vec<u8>>>),
    /// The page is being read.
    Missing,
    /// The page cannot be had.
    Failed(Error),
}

/// A question that takes time.
#[derive(Debug, Default)]
enum Question<T> {
    #[default]
    Unasked,
    /// By that call.
    Asked(u64),
    Answered(Result<T, Error>),
}

impl<T> Question<T> {
    fn is_asked_by(&self, call: u64) -> bool {
        matches!(self, Question::Asked(asked) if *asked == call)
    }

    /// The answer, once.
    fn take(&mut self) -> Option<Result<T, Error>> {
        match std::mem::take(self) {
            Question::Answered(answer) => Some(answer),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl Inside {
    /// Rises with everything that a waiting transaction may have waited for.
    pub(crate) fn news(&self) -> u64 {
        self.news
    }

    pub(super) fn is_open(&self) -> bool {
        self.session.is_some()
    }

    pub(super) fn client(&self) -> Option<ClientId> {
        self.session.map(|session| session.client)
    }

    pub(super) fn is(&self, client: ClientId) -> bool {
        self.session.is_some_and(|s| s.client == client)
    }

    fn asked(&mut self) -> Asked {
        self.call += 1;
        Asked { conn: CONN, call: self.call }
    }

    /// The question of that number is answered.
    pub(super) fn echo(&mut self, number: u64) {
        // What was confirmed is visible.
        self.echoes.heard(number, Stamp::ZERO, Stamp::ZERO, None);
        self.news += 1;
    }

    /// An operation is visible.
    pub(super) fn committed(&mut self, op: OpId, stamp: Stamp) {
        self.answer(op, Ok(stamp));
    }

    fn answer(&mut self, op: OpId, outcome: Outcome) {
        if let Some(refuses_places) = self.ops.answer(op, outcome) {
            if refuses_places {
                self.places.turn_page();
            }
            self.news += 1;
        }
    }

    /// A page as it is at the visible stamp.
    pub(crate) fn image(&mut self, page: PageId, pages: &mut Pages) -> Image {
        match pages.image(page) {
            CachedImage::Current(bytes) | CachedImage::Stale(bytes) => Image::Here(bytes),
            CachedImage::Missing => {
                if let Some(why) = self.unread.remove(&page) {
                    return Image::Failed(Error::refused(why.refusal(), &why.to_string()));
                }
                self.missed = Some(page);
                if self.reading.insert(page) {
                    pages.reads.wait(page, Waiter::Inside(CONN, page));
                }
                Image::Missing
            }
        }
    }

    /// Takes the last page that a transaction missed.
    pub(crate) fn take_missed(&mut self) -> Option<PageId> {
        self.missed.take()
    }

    pub(super) fn page_read(&mut self, page: PageId, failed: Option<&Unread>) {
        self.reading.remove(&page);
        self.news += 1;
        if let Some(why) = failed {
            if self.unread.len() >= UNREAD_MAX {
                self.unread.clear();
            }
            self.unread.insert(page, why.clone());
        }
    }

    /// Takes what the leader answers this session; gives back what it answers others, and the end of this
    /// one.
    pub(super) fn hear(&mut self, reply: Reply) -> Option<Reply> {
        match reply {
            Reply::Verdict(Asked { conn: CONN, .. }, op, outcome) => self.answer(op, outcome),
            Reply::Granted(Asked { conn: CONN, call }, leased) => {
                if self.granting.is_asked_by(call) {
                    self.granted = leased.seq;
                    let none = leased.pages.is_empty().then(|| Error::Full(Bound::Pages));
                    self.granting = Question::Answered(none.map_or(Ok(leased), Err));
                }
            }
            Reply::Defined(Asked { conn: CONN, call }, id) => self.defined(call, Ok(id)),
            // An operation that is refused has a verdict beside.
            Reply::Refused(Asked { conn: CONN, call }, reason, text) => {
                let error = Error::refused(reason, &text);
                if self.granting.is_asked_by(call) {
                    self.granting = Question::Answered(Err(error));
                } else {
                    self.defined(call, Err(error));
                }
            }
            other => return Some(other),
        }
        self.news += 1;
        None
    }

    fn defined(&mut self, call: u64, answer: Result<ClassId, Error>) {
        if let Some((_, question)) = self.defining.iter_mut().find(|(_, q)| q.is_asked_by(call)) {
            *question = Question::Answered(answer);
        }
    }

    /// Ends the session: no request that is under way will be answered. Returns the session's client.
    fn end(&mut self) -> Option<ClientId> {
        let client = self.session.map(|session| session.client);
        let (broken, call, news) = (self.broken + 1, self.call, self.news + 1);
        let reading = std::mem::take(&mut self.reading);
        *self = Inside { broken, call, news, reading, ..Inside::default() };
        client
    }
}

/// The name of a session: no other view has it, and no client, for theirs are as random.
fn client_of(view: ViewId, broken: u64) -> ClientId {
    let seed = u64::from(view.number) << 32 | u64::from(view.incarnation);
    ClientId(Random::new(seed ^ broken.rotate_right(8)).next_u64())
}

impl Sessions {
    /// The session, begun if need be.
    ///
    /// # Errors
    /// `Unavailable` as long as this server does not lead.
    pub(crate) fn inside_session(&mut self, cx: &mut Cx) -> Result<Session, Error> {
        let leader = cx.leader.as_mut();
        let leader =
            leader.ok_or_else(|| Error::Unavailable("this server does not lead: try again".into()))?;
        let view = leader.view();
        if let Some(session) = self.inside.session {
            return Ok(session);
        }
        let session = Session { client: client_of(view, self.inside.broken), view };
        // Its transactions read the state as it is. What they name in a page that has returned they have read
        // before, and it has changed since: so the session holds no page back.
        leader.arrived(session.client, CONN, Stamp(u64::MAX));
        self.inside.session = Some(session);
        Ok(session)
    }

    /// The stamp from which on the space rests on a vector.
    ///
    /// # Errors
    /// `Full`; `Unavailable` as long as this server does not lead.
    pub(crate) fn inside_depend(&mut self, on: &Vector, cx: &mut Cx) -> Result<Stamp, Error> {
        let ordered = cx.lead(|leader, work| leader.order_dependencies(on, work));
        let ordered =
            ordered.ok_or_else(|| Error::Unavailable("this server does not lead: try again".into()))?;
        ordered.map_err(|(reason, text)| Error::refused(reason, &text))
    }

    /// Asks the sequencer whether this server still leads, for its own session.
    pub(crate) fn inside_ask(&mut self, now: Now, cx: &mut Cx) {
        let asked = self.inside.asked();
        self.inside.echoes.asked(asked.call, now);
        self.question(asked, cx);
    }

    /// The leader has ended the server's own session: the next transaction begins another. Its places return
    /// as those of any client that left do.
    pub(super) fn expel_inside(&mut self, cx: &mut Cx) {
        if let Some(client) = self.inside.end() {
            self.lead(cx, |leader, work| leader.left(client, CONN, work));
        }
    }

    /// Calls `see` with each object that a commit after `since` and up to `visible` wrote. `false` if not all
    /// of them are known any more.
    pub(crate) fn changes_since(&self, since: Stamp, visible: Stamp, mut see: impl FnMut(Oref)) -> bool {
        if since > visible || !self.horizon.reaches(since) {
            return false;
        }
        self.horizon.since(since).for_each(|(_, changed)| changed.iter().for_each(|oref| see(*oref)));
        true
    }

    /// The youngest class of this layout, defined and durable; `None` while it is being defined.
    ///
    /// # Errors
    /// `Schema` if the space's class of that name cannot become this one; `Full`.
    pub(crate) fn inside_define(&mut self, layout: &Layout, cx: &mut Cx) -> Option<Result<ClassId, Error>> {
        let asked = self.inside.defining.iter().position(|(l, _)| l == layout);
        if asked.is_none() {
            let asked = self.inside.asked();
            if self.inside.defining.len() >= DEFINING_MAX {
                self.inside.defining.retain(|(_, q)| !matches!(q, Question::Answered(_)));
            }
            self.inside.defining.push((layout.clone(), Question::Asked(asked.call)));
            self.lead(cx, |leader, work| leader.define(asked, layout.clone(), work));
        }
        let at = self.inside.defining.iter().position(|(l, _)| l == layout)?;
        let answer = self.inside.defining[at].1.take()?;
        self.inside.defining.swap_remove(at);
        Some(answer)
    }

    /// Grants the session empty pages, twice as many each time, and takes back those that it has filled;
    /// `None` while it is under way.
    ///
    /// # Errors
    /// `Full` if the space has no pages left.
    pub(crate) fn inside_grant(&mut self, cx: &mut Cx) -> Option<Result<(), Error>> {
        let inside = &mut self.inside;
        let client = inside.client()?;
        if matches!(inside.granting, Question::Unasked) {
            let asked = inside.asked();
            inside.granting = Question::Asked(asked.call);
            let pages = limits::LEASE_PAGES.min(1 << inside.doublings.min(15));
            let lease = Lease { seq: inside.granted + 1, pages, done: inside.places.give_back() };
            self.lead(cx, |leader, work| leader.grant(asked, client, lease, work));
        }
        Some(self.inside.granting.take()?.map(|leased| {
            self.inside.doublings += 1;
            self.inside.places.grant(leased);
        }))
    }

    /// Takes an operation of the session: `effects` is [`tercel_wire::message::CommitEffects`] as bytes,
    /// judged as those of any client. `None`, and nothing is taken, if there is no room for it now.
    pub(crate) fn inside_submit(
        &mut self,
        session: Session,
        makes: bool,
        effects: &[u8],
        cx: &mut Cx,
    ) -> Option<OpId> {
        let op = self.inside.ops.begin(session, makes)?;
        let asked = self.inside.asked();
        let body = Body::new(Vec::new(), crc32fast::Hasher::new(), effects);
        self.lead(cx, |leader, work| leader.commit(asked, op, body, work));
        Some(op)
    }
}
