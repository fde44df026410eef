//! A server lends itself to the transactions inside of it: [`Source`] over the rooms that have the answers.

use std::sync::Arc;

use tercel_wire::id::{ClassId, OpId, Oref, PageId, Stamp};
use tercel_wire::layout::Layout;
use tercel_wire::message::{Leased, Outcome};
use tercel_wire::token::Token;

use crate::effect::Effects;
use crate::error::Error;
use crate::server::{End, Server};
use crate::time::Now;
use crate::txn::local::{Image, Session, Source};
use crate::txn::{Hold, Ticket};

impl Server {
    /// Has transactions inside of this server do one step, over its state as it is now. What they want done is appended to
    /// `out`, as by [`Server::handle`].
    pub fn inside<R>(&mut self, now: Now, out: &mut Effects, step: impl FnOnce(&mut dyn Source) -> R) -> R {
        self.now = self.now.max(now);
        let result = step(&mut Lent { server: self, out });
        self.go_on(out);
        result
    }

    /// Rises whenever a step that had to wait may go on. Another server begins anew.
    pub fn inside_news(&self) -> u64 {
        self.sessions.inside_news()
    }
}

/// A server for the time of one step.
pub(super) struct Lent<'a> {
    server: &'a mut Server,
    out: &'a mut Effects,
}

impl<'a> Lent<'a> {
    /// One after which the server does not go on: for what orders nothing.
    pub(super) fn new(server: &'a mut Server, out: &'a mut Effects) -> Lent<'a> {
        Lent { server, out }
    }
}

impl Source for Lent<'_> {
    fn session(&mut self) -> Result<Session, Error> {
        if self.server.end != End::Working {
            return Err(deposed());
        }
        self.server.sessions(self.out, |s, cx| s.inside_session(cx))
    }

    fn visible(&self) -> Stamp {
        self.server.visible()
    }

    fn ask(&mut self) -> u64 {
        self.server.sessions(self.out, |s, cx| s.inside_ask(cx))
    }

    fn echoed(&self) -> Option<u64> {
        self.server.sessions.inside_echoed()
    }

    fn holds(&mut self, token: Token) -> Result<bool, Error> {
        self.server.sessions(self.out, |s, cx| s.holds(token, cx))
    }

    fn changes(&mut self, since: Stamp, see: &mut dyn FnMut(Oref)) -> bool {
        self.server.sessions(self.out, |s, cx| s.inside_changes(since, see, cx))
    }

    fn image(&mut self, page: PageId) -> Image {
        // What others have committed since is not known here.
        if self.server.end != End::Working {
            return Image::Failed(deposed());
        }
        self.server.sessions(self.out, |s, cx| s.inside_image(page, cx))
    }

    fn class(&mut self, id: ClassId) -> Option<Arc<Layout>> {
        self.server.sessions(self.out, |s, cx| s.inside_class(id, cx))
    }

    fn define(&mut self, layout: &Layout) -> Option<Result<ClassId, Error>> {
        self.server.sessions(self.out, |s, cx| s.inside_define(layout, cx))
    }

    fn grant(&mut self, count: u16, done: &[(PageId, u16)]) -> Option<Result<Leased, Error>> {
        self.server.sessions(self.out, |s, cx| s.inside_grant(count, done, cx))
    }

    fn submit(&mut self, op: OpId, effects: &[u8]) -> Option<Result<(), Error>> {
        if self.server.end != End::Working {
            return Some(Err(deposed()));
        }
        self.server.sessions(self.out, |s, cx| s.inside_submit(op, effects, cx))
    }

    fn submit_call(
        &mut self,
        ticket: Ticket,
        reply: &[u8],
        effects: &[u8],
        holds: &[Arc<Hold>],
    ) -> Option<Result<bool, Error>> {
        if self.server.end != End::Working {
            return Some(Err(deposed()));
        }
        let (reply, holds) = (reply.to_vec(), holds.to_vec());
        Some(Ok(self.server.sessions(self.out, |s, cx| s.call_wrote(ticket, reply, (effects, holds), cx))))
    }

    fn outcome(&mut self, op: OpId) -> Option<Outcome> {
        self.server.sessions(self.out, |s, _| s.inside_outcome(op))
    }
}

/// Another server is about to be recovered.
fn deposed() -> Error {
    Error::Unavailable("this server does not lead any more: try again".into())
}
