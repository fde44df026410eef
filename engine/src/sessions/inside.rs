//! The server's own session: that of the transactions inside of it.
//!
//! It asks the leader as any client does, without frames: what is answered is kept here until the transaction that asked
//! takes it. It has no connection that could be cut, so it lasts as long as the view; another view is another session. The
//! invariant: each question has one answer, and each answer raises [`Inside::news`], for those that wait.

use std::sync::Arc;

use tercel_wire::id::{ClassId, ClientId, OpId, PageId, Stamp, ViewId};
use tercel_wire::layout::Layout;
use tercel_wire::message::{Lease, Leased, Outcome, Reason};

use super::{Cx, Sessions};
use crate::effect::Conn;
use crate::error::{Bound, Error};
use crate::leader::{Asked, Body, Reply};
use crate::limits;
use crate::pages::image::CachedImage;
use crate::pages::reads::Waiter;
use crate::random::Random;
use crate::table::{Map, Set};
use crate::txn::local::{Image, Session};

/// The connection that the session would have. No host gives it to another.
pub(super) const CONN: Conn = Conn(u64::MAX);

/// Questions about classes whose answers no transaction has taken yet.
const DEFINING_MAX: usize = 64;

/// Pages that could not be read, until a transaction that wants one hears of it.
const UNREAD_MAX: usize = 64;

/// The session's questions under way, and the answers that no transaction has taken yet.
#[derive(Debug, Default)]
pub(crate) struct Inside {
    session: Option<Session>,
    /// Sessions of this server that ended before their view did: a fault of this program.
    broken: u64,
    /// The last call.
    call: u64,
    /// Grants that were heard of.
    granted: u64,
    granting: Question<Leased>,
    defining: Vec<(Layout, Question<ClassId>)>,
    /// Operations without an answer.
    under_way: Set<OpId>,
    answers: Map<OpId, Outcome>,
    /// Pages that are being read, and those that could not be.
    reading: Set<PageId>,
    unread: Map<PageId, String>,
    /// The last page that a transaction missed, until [`Sessions::inside_missed`] takes it.
    missed: Option<PageId>,
    /// The last question whether this server leads that was answered.
    echoed: Option<u64>,
    news: u64,
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
        self.echoed = self.echoed.max(Some(number));
        self.news += 1;
    }

    pub(super) fn echoed(&self) -> Option<u64> {
        self.echoed
    }

    /// An operation is visible.
    pub(super) fn committed(&mut self, op: OpId, stamp: Stamp) {
        self.answer(op, Outcome::Committed(stamp));
    }

    fn answer(&mut self, op: OpId, outcome: Outcome) {
        if self.under_way.remove(&op) {
            self.answers.insert(op, outcome);
            self.news += 1;
        }
    }

    pub(super) fn page_read(&mut self, page: PageId, failed: Option<&str>) {
        self.reading.remove(&page);
        self.news += 1;
        if let Some(why) = failed {
            if self.unread.len() >= UNREAD_MAX {
                self.unread.clear();
            }
            self.unread.insert(page, why.to_owned());
        }
    }

    /// Takes what the leader answers this session; gives back what it answers others, and the end of this one.
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
                let error = refused(reason, text);
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
        let (reading, echoed) = (std::mem::take(&mut self.reading), self.echoed);
        *self = Inside { broken, call, news, reading, echoed, ..Inside::default() };
        client
    }
}

/// What a refusal means to a transaction.
fn refused(reason: Reason, text: String) -> Error {
    match reason {
        Reason::Schema => Error::Schema(text),
        Reason::Corrupt => Error::Corrupt(text),
        Reason::Full => Error::Full(Bound::Server(text.into())),
        Reason::OtherHistory => Error::OtherHistory(text),
        Reason::Unsupported => Error::Unsupported(text),
        Reason::Protocol | Reason::Unavailable | Reason::Evicted | Reason::History => {
            Error::Unavailable(text)
        }
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
    pub(crate) fn inside_session(&mut self, cx: &mut Cx<'_>) -> Result<Session, Error> {
        let visible = cx.pages.visible();
        let ready = cx.leader.as_mut().filter(|leader| leader.is_ready(visible));
        let leader =
            ready.ok_or_else(|| Error::Unavailable("this server does not lead: try again".into()))?;
        let view = leader.view();
        if let Some(session) = self.inside.session.filter(|s| s.view == view) {
            return Ok(session);
        }
        let session = Session { space: cx.space, client: client_of(view, self.inside.broken), view };
        // Its transactions read the state as it is. What they name in a page that has returned they have read before, and it
        // has changed since: so the session holds no page back.
        leader.arrived(session.client, CONN, Stamp(u64::MAX));
        self.inside.session = Some(session);
        Ok(session)
    }

    /// Asks the sequencer whether this server still leads, for its own session.
    pub(crate) fn inside_ask(&mut self, cx: &mut Cx<'_>) -> u64 {
        let asked = self.inside.asked();
        self.question(asked, cx);
        asked.call
    }

    pub(crate) fn inside_echoed(&self) -> Option<u64> {
        self.inside.echoed()
    }

    /// The leader has ended the server's own session: the next transaction begins another. Its places return as those of
    /// any client that left do.
    pub(super) fn expel_inside(&mut self, cx: &mut Cx<'_>) {
        if let Some(client) = self.inside.end() {
            self.lead(cx, |leader, work| leader.left(client, CONN, work));
        }
    }

    /// See [`crate::txn::local::Source::changes`].
    pub(crate) fn inside_changes(
        &self,
        since: Stamp,
        see: &mut dyn FnMut(tercel_wire::id::Oref),
        cx: &Cx<'_>,
    ) -> bool {
        if since > cx.pages.visible() || !self.horizon.reaches(since) {
            return false;
        }
        self.horizon.since(since).for_each(|(_, changed)| changed.iter().for_each(|oref| see(*oref)));
        true
    }

    /// See [`crate::txn::local::Source::image`].
    pub(crate) fn inside_image(&mut self, page: PageId, cx: &mut Cx<'_>) -> Image {
        match cx.pages.image(page) {
            CachedImage::Current(bytes) | CachedImage::Stale(bytes) => Image::Here(bytes),
            CachedImage::Missing => {
                if let Some(why) = self.inside.unread.remove(&page) {
                    return Image::Failed(Error::Corrupt(why));
                }
                self.inside.missed = Some(page);
                if self.inside.reading.insert(page) {
                    cx.pages.reads.wait(page, Waiter::Inside(CONN, page));
                }
                Image::Missing
            }
        }
    }

    /// Takes the last page that a transaction missed.
    pub(crate) fn inside_missed(&mut self) -> Option<PageId> {
        self.inside.missed.take()
    }

    /// See [`crate::txn::local::Source::class`].
    pub(crate) fn inside_class(&self, id: ClassId, cx: &Cx<'_>) -> Option<Arc<Layout>> {
        cx.replica.catalogue.class(id).map(|layout| Arc::new(layout.clone()))
    }

    /// See [`crate::txn::local::Source::define`].
    pub(crate) fn inside_define(
        &mut self,
        layout: &Layout,
        cx: &mut Cx<'_>,
    ) -> Option<Result<ClassId, Error>> {
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

    /// See [`crate::txn::local::Source::grant`].
    pub(crate) fn inside_grant(
        &mut self,
        count: u16,
        done: &[(PageId, u16)],
        cx: &mut Cx<'_>,
    ) -> Option<Result<Leased, Error>> {
        let session = match self.inside_session(cx) {
            Ok(session) => session,
            Err(e) => return Some(Err(e)),
        };
        if matches!(self.inside.granting, Question::Unasked) {
            let asked = self.inside.asked();
            self.inside.granting = Question::Asked(asked.call);
            let lease = Lease { seq: self.inside.granted + 1, pages: count, done: done.to_vec() };
            self.lead(cx, |leader, work| leader.grant(asked, session.client, lease, work));
        }
        self.inside.granting.take()
    }

    /// See [`crate::txn::local::Source::submit`].
    pub(crate) fn inside_submit(
        &mut self,
        op: OpId,
        effects: &[u8],
        cx: &mut Cx<'_>,
    ) -> Option<Result<(), Error>> {
        if !self.inside.is(op.client) {
            return Some(Err(Error::Unavailable(
                "the session of the transaction is over: run it again".into(),
            )));
        }
        if self.inside.under_way.len() >= limits::CREDIT as usize {
            return None;
        }
        self.inside.under_way.insert(op);
        let asked = self.inside.asked();
        let body = Body::new(Vec::new(), crc32fast::Hasher::new(), effects);
        self.lead(cx, |leader, work| leader.commit(asked, op, body, work));
        Some(Ok(()))
    }

    /// See [`crate::txn::local::Source::outcome`].
    pub(crate) fn inside_outcome(&mut self, op: OpId) -> Option<Outcome> {
        self.inside.answers.remove(&op)
    }

    pub(crate) fn inside_news(&self) -> u64 {
        self.inside.news()
    }
}
