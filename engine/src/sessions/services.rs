//! Calls of services: what is kept of each client's, and where they run.
//!
//! A client has a table from its first binding on. It outlives the client's connections, for a while: a
//! client that comes back sends what has no answer once more, and finds there what became of it. What is not
//! slow runs where it arrives; the rest is handed to the host and comes back ([`Effect::Run`],
//! [`crate::effect::Input::Ran`]). The invariant: a call that was taken is answered once it has come to its
//! end, on the connection that its client has then.

use std::collections::VecDeque;
use std::sync::Arc;

use tercel_wire::access::Principal;
use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{CallId, ClientId, Stamp};
use tercel_wire::interface::Mode;
use tercel_wire::message::{Cancel, OBJECT_SLOT, Refusal, Request, Response, ResponseEnd};
use tercel_wire::payload::InPlace;

use super::health::DRAINING;
use super::versions::Versions;
use super::{Cx, Sessions};
use crate::effect::Effect;
use crate::leader::{Asked, Work};
use crate::limits;
use crate::rights::Rights;
use crate::rpc::served::{Cancelled, Served};
use crate::rpc::{Context, Job, JobDone, JobId, ReplyBody, Services, Taken, Taking, put, serve, serve_named};
use crate::table::Placed;
use crate::time::Now;

/// The calls of all clients.
#[derive(Debug, Default)]
pub(super) struct Serving {
    /// The versions of interfaces that connections have bound, those of objects as well.
    pub(super) versions: Versions,
    clients: Placed<ClientId, OfClient>,
    /// Clients without a connection, and when they are forgotten. Some of them may have come back, or have
    /// gone again since.
    absent: VecDeque<(Now, ClientId)>,
    /// The last table.
    last: u32,
    /// Calls that the host has, and bytes of what they take.
    jobs: usize,
    job_bytes: usize,
    /// Calls with streams, of all clients.
    streaming: usize,
    /// Bytes of responses that are kept.
    kept_bytes: usize,
}

#[derive(Debug, Default)]
struct OfClient {
    table: u32,
    /// The principal of the client, and the rights of that when a call was judged last.
    who: Arc<Principal>,
    rights: Option<Arc<Rights>>,
    served: Served,
    /// The client's calls that the host has.
    jobs: usize,
    /// The calls with streams, whose client is there.
    streaming: Vec<StreamingCall>,
    /// When the client is forgotten; none while it has a connection.
    over: Option<Now>,
}

/// A call with streams.
#[derive(Debug)]
struct StreamingCall {
    id: CallId,
    /// Set if the procedure has used the space.
    uses_space: bool,
}

impl OfClient {
    fn streaming(&self, id: CallId) -> Option<&StreamingCall> {
        self.streaming.iter().find(|call| call.id == id)
    }
}

impl Serving {
    /// Without calls. Its tables are counted from this number on.
    pub(super) fn new(last: u32) -> Serving {
        Serving { last, ..Serving::default() }
    }

    /// The number of the table of a client, which is made if there is none.
    pub(super) fn table(&mut self, client: ClientId, who: Option<&Arc<Principal>>) -> u32 {
        let last = &mut self.last;
        let of = self.clients.get_or_insert_with(client, || {
            *last = last.wrapping_add(1);
            OfClient { table: *last, ..OfClient::default() }
        });
        of.who = who.cloned().unwrap_or_default();
        of.table
    }

    /// The principal of a client with a table.
    pub(super) fn owner(&self, client: ClientId) -> Option<&Principal> {
        self.clients.get(client).map(|of| &*of.who)
    }

    /// The client has a connection, of this principal.
    pub(super) fn came_back(&mut self, client: ClientId, who: Option<&Arc<Principal>>) {
        if let Some(of) = self.clients.get_mut(client) {
            (of.who, of.rights) = (who.cloned().unwrap_or_default(), None);
            of.over = None;
        }
    }

    /// The rights of a client are to be looked up again.
    pub(super) fn look_again(&mut self, client: ClientId) {
        if let Some(of) = self.clients.get_mut(client) {
            of.rights = None;
        }
    }

    /// The client has no connection any more.
    pub(super) fn left(&mut self, client: ClientId, now: Now) {
        let Some(of) = self.clients.get_mut(client) else { return };
        let over = now.plus_us(limits::SERVED_ABSENT_US);
        of.over = Some(over);
        self.absent.push_back((over, client));
        if self.absent.len() > limits::SERVED_ABSENT_MAX {
            self.forget_first();
        }
    }

    /// Says whether a call is under way whose streams still are.
    pub(super) fn is_streaming(&self, id: JobId) -> bool {
        let of = self.clients.get(id.client).filter(|of| of.table == id.table);
        of.zip(id.call).is_some_and(|(of, id)| of.streaming(id).is_some())
    }

    /// The name of a call with streams; none if there is no such.
    pub(super) fn streaming(&self, client: ClientId, slot: u16, seq: u64) -> Option<JobId> {
        let of = self.clients.get(client)?;
        let id = CallId { slot, seq };
        of.streaming(id).map(|_| JobId { client, table: of.table, call: Some(id) })
    }

    /// The procedure of a call with streams uses the space.
    pub(super) fn uses_space(&mut self, id: JobId) {
        let of = self.clients.get_mut(id.client).filter(|of| of.table == id.table);
        let calls = of.into_iter().flat_map(|of| of.streaming.iter_mut());
        calls.filter(|call| Some(call.id) == id.call).for_each(|call| call.uses_space = true);
    }

    /// Says whether the procedure of a call with streams has used the space.
    pub(super) fn has_used_space(&self, id: JobId) -> bool {
        let of = self.clients.get(id.client).filter(|of| of.table == id.table);
        of.zip(id.call).and_then(|(of, id)| of.streaming(id)).is_some_and(|call| call.uses_space)
    }

    /// A call has no streams any more; whether it had.
    pub(super) fn end_streaming(&mut self, id: JobId) -> bool {
        let of = self.clients.get_mut(id.client).filter(|of| of.table == id.table);
        let Some((of, id)) = of.zip(id.call) else { return false };
        let at = of.streaming.iter().position(|streaming| streaming.id == id);
        let had = at.map(|at| of.streaming.swap_remove(at)).is_some();
        self.streaming -= usize::from(had);
        had
    }

    /// The connection of a client is gone, and its streams with it: the calls that had some are cancelled.
    /// Gives their names.
    pub(super) fn end_streams(&mut self, client: ClientId) -> Vec<JobId> {
        let Some(of) = self.clients.get_mut(client) else { return Vec::new() };
        let ended = std::mem::take(&mut of.streaming);
        self.streaming -= ended.len();
        for call in &ended {
            of.served.cancel(call.id);
        }
        ended.into_iter().map(|call| JobId { client, table: of.table, call: Some(call.id) }).collect()
    }

    /// Calls that the host has.
    pub(super) fn jobs(&self) -> usize {
        self.jobs
    }

    fn forget_first(&mut self) {
        if let Some((over, client)) = self.absent.pop_front()
            && self.clients.get(client).is_some_and(|of| of.over == Some(over))
        {
            self.forget(client);
        }
    }

    /// Forgets a client, and notifies the calls that run for it.
    pub(super) fn forget(&mut self, client: ClientId) {
        if let Some(of) = self.clients.remove(client) {
            of.served.cancel_all();
            self.streaming -= of.streaming.len();
            self.kept_bytes -= of.served.kept_bytes();
        }
    }

    /// Keeps the body of a response. Says whether its call is known.
    fn end(&mut self, client: ClientId, table: u32, id: CallId, body: &[u8]) -> bool {
        let Some(of) = self.clients.get_mut(client).filter(|of| of.table == table) else { return false };
        let before = of.served.kept_bytes();
        let is_its = of.served.end(id, body);
        self.kept_bytes = self.kept_bytes - before + of.served.kept_bytes();
        self.make_room(client);
        is_its
    }

    /// Lets go of what is kept of a client if it has become too much of all.
    fn make_room(&mut self, client: ClientId) {
        if self.kept_bytes > limits::KEPT_ALL_BYTES_MAX
            && let Some(of) = self.clients.get_mut(client)
        {
            self.kept_bytes -= of.served.kept_bytes();
            of.served.shrink();
        }
    }

    /// Forgets clients that were without a connection for too long. If much is kept, what is kept of the
    /// others that have none is let go of.
    pub(super) fn tick(&mut self, now: Now) {
        while self.absent.front().is_some_and(|(over, _)| *over <= now) {
            self.forget_first();
        }
        if self.kept_bytes > limits::KEPT_ALL_BYTES_MAX / 2 {
            for of in self.clients.values_mut().filter(|of| of.over.is_some()) {
                self.kept_bytes -= of.served.kept_bytes();
                of.served.shrink();
            }
        }
    }
}

impl Sessions {
    /// A client calls a procedure.
    pub(super) fn request(
        &mut self,
        asked: Asked,
        client: ClientId,
        header: &Header,
        request: &Request<'_>,
        cx: &mut Cx,
    ) {
        if request.object.is_some() {
            // It was to run where it arrived, and has arrived otherwise.
            let id = CallId { slot: OBJECT_SLOT, seq: request.seq };
            return respond(asked, id, ResponseEnd::Refused(Refusal::Elsewhere, ""), cx);
        }
        if request.slot.is_some_and(|slot| slot >= limits::credit()) {
            return self.expel(asked.conn, "a call takes a slot that its client was not granted", cx);
        }
        if cx.condition.is_draining() && self.refuse_new(asked, client, request, cx) {
            return;
        }
        let until = Some(header.deadline_us).filter(|us| *us > 0).map(|us| cx.work.now.plus_us(us.into()));
        // Granted by the greeting: a client may name what it was not granted.
        let granted = self.all.get(&asked.conn).map_or(0, |session| session.capabilities);
        let capabilities = header.capabilities & granted;
        let Serving { clients, kept_bytes, .. } = &mut self.serving;
        let Some(of) = clients.get_mut(client) else {
            return self.expel(asked.conn, "a service is bound before it is called", cx);
        };
        let (table, before) = (of.table, of.served.kept_bytes());
        let who = of.who.clone();
        let context = Context::inline(client, cx.work.now, until).by(&who);
        let header = cx.header_at(cx.work.pages.visible(), Kind::Response, asked.call);
        let header = Header { capabilities, ..header };
        let mut taken = Taken::Silent;
        // The response is written where it is sent from.
        cx.out.send_if(asked.conn, header, |out| {
            taken = serve(&mut of.served, &cx.work.config.services, request, &context, out);
            taken == Taken::Answered
        });
        *kept_bytes = *kept_bytes - before + of.served.kept_bytes();
        match taken {
            Taken::Answered | Taken::Silent => {}
            Taken::Slow => self.request_slow(asked, client, table, request, until, cx),
            Taken::Broken => self.expel(asked.conn, "a call takes a slot whose call has no answer", cx),
        }
        self.serving.make_room(client);
    }

    /// Refuses a call that was not here before, for the server is about to stop. Says whether it was such a
    /// call.
    fn refuse_new(&mut self, asked: Asked, client: ClientId, request: &Request<'_>, cx: &mut Cx) -> bool {
        let serving = &mut self.serving;
        let Some(of) = serving.clients.get_mut(client) else { return false };
        let Some(slot) = request.slot else {
            // It is never answered, as others that find no room.
            return true;
        };
        let (id, table, before) = (CallId { slot, seq: request.seq }, of.table, of.served.kept_bytes());
        if !of.served.is_new(id) {
            return false;
        }
        // The call before it is answered: what was kept of that is let go of.
        of.served.arrive(id);
        serving.kept_bytes = serving.kept_bytes - before + of.served.kept_bytes();
        self.refuse_request(asked, client, table, id, (Refusal::Unavailable, DRAINING), cx);
        true
    }

    /// Runs a procedure whose request came by a shorter way, if it is to be run where it arrived, and appends
    /// the body of the response. If not, nothing has changed: it is to come as a message. What it takes is
    /// that of the request, if it is not lent.
    #[inline]
    pub(crate) fn express(
        &mut self,
        (client, place): (ClientId, &mut usize),
        (now, until): (Now, Option<Now>),
        request: &Request<'_>,
        (services, lent): (&Services, Option<&InPlace<'_>>),
        out: &mut ReplyBody<'_>,
    ) -> bool {
        let Some(slot) = request.slot.filter(|slot| *slot < limits::credit()) else { return false };
        let procedure = services.procedure(request.interface, request.method);
        let Some(procedure) = procedure.filter(|p| p.mode() == Mode::Plain) else { return false };
        let Some(OfClient { who, served, .. }) = self.serving.clients.get_at(client, place) else {
            return false;
        };
        let before = served.kept_bytes();
        let id = CallId { slot, seq: request.seq };
        let context = Context::inline(client, now, until).by(who);
        let taking = lent.map_or(Taking::Payload(request.payload), Taking::InPlace);
        let taken = serve_named(served, Some(procedure), id, taking, &context, out);
        let after = served.kept_bytes();
        self.serving.kept_bytes = self.serving.kept_bytes - before + after;
        if after > before {
            self.serving.make_room(client);
        }
        taken == Taken::Answered
    }

    /// Says whether a request that came by a shorter way may be served, if rights are judged. If not, it is
    /// to come as a message, and is refused by that.
    pub(crate) fn may_express(
        &mut self,
        (client, place): (ClientId, &mut usize),
        request: &Request<'_>,
        work: &mut Work,
    ) -> bool {
        let (interface, method) = (request.interface, request.method);
        let Some(of) = self.serving.clients.get_at(client, place).filter(|_| request.object.is_none()) else {
            let Some(conn) = self.clients.get(&client) else { return false };
            let rights = work.seats.rights(*conn, &work.replica, &work.config);
            return rights.is_some_and(|rights| rights.calls_method(interface, method));
        };
        if !of.rights.as_ref().is_some_and(|rights| rights.is_of(&work.replica)) {
            let conn = self.clients.get(&client);
            of.rights = conn.and_then(|conn| work.seats.rights(*conn, &work.replica, &work.config)).cloned();
        }
        of.rights.as_ref().is_some_and(|rights| rights.calls_service(interface, method))
    }

    /// A client may not call a procedure.
    pub(super) fn deny_service(
        &mut self,
        asked: Asked,
        client: ClientId,
        id: CallId,
        text: &str,
        cx: &mut Cx,
    ) {
        let Some(of) = self.serving.clients.get_mut(client) else {
            return respond(asked, id, ResponseEnd::Refused(Refusal::Denied, text), cx);
        };
        if of.served.is_new(id) {
            // The call before it is answered: what was kept of that is let go of.
            let (table, before) = (of.table, of.served.kept_bytes());
            of.served.arrive(id);
            self.serving.kept_bytes = self.serving.kept_bytes - before + of.served.kept_bytes();
            return self.refuse_request(asked, client, table, id, (Refusal::Denied, text), cx);
        }
        respond(asked, id, ResponseEnd::Refused(Refusal::Denied, text), cx);
    }

    /// A client calls a slow procedure. What is never answered is not run if there is no room for it.
    fn request_slow(
        &mut self,
        asked: Asked,
        client: ClientId,
        table: u32,
        request: &Request<'_>,
        until: Option<Now>,
        cx: &mut Cx,
    ) {
        let call = request.slot.map(|slot| CallId { slot, seq: request.seq });
        let job = self.job(JobId { client, table, call }, request, until, cx);
        match (job, call) {
            (Some(job), call) => {
                let of = call.and_then(|_| self.serving.clients.get_mut(client));
                for (of, id) in of.into_iter().zip(call) {
                    of.served.runs(id, job.flag());
                    if job.streams().is_any() {
                        of.streaming.push(StreamingCall { id, uses_space: false });
                        self.serving.streaming += 1;
                    }
                }
                cx.out.push(Effect::Run(cx.joined, job));
            }
            (None, Some(id)) => self.refuse_request(asked, client, table, id, (Refusal::FULL, BUSY), cx),
            (None, None) => {}
        }
    }

    /// A call for the host to run; none if it has as many as it takes.
    fn job(&mut self, id: JobId, request: &Request<'_>, until: Option<Now>, cx: &Cx) -> Option<Job> {
        let serving = &mut self.serving;
        let bytes = serving.job_bytes + request.payload.len();
        let is_full =
            serving.jobs >= cx.work.config.jobs_max || (bytes > limits::CALL_BYTES_MAX && serving.jobs > 0);
        let of = serving.clients.get_mut(id.client)?;
        // Some are left for other clients, and for calls without streams.
        let half = cx.work.config.jobs_max.div_ceil(2);
        let has_streams = cx.work.config.services.streams(request.interface, request.method).is_any();
        let is_streaming_full =
            has_streams && (of.streaming.len() >= limits::STREAMING_MAX || serving.streaming >= half);
        if is_full || is_streaming_full || of.jobs >= half {
            return None;
        }
        of.jobs += 1;
        (serving.jobs, serving.job_bytes) = (serving.jobs + 1, bytes);
        let job = Job::new(id, cx.work.config.services.clone(), request, until);
        Some(job.by(of.who.clone()))
    }

    /// A call that the host was to run has come to its end.
    pub(crate) fn ran(&mut self, done: JobDone, cx: &mut Cx) {
        let serving = &mut self.serving;
        (serving.jobs, serving.job_bytes) = (serving.jobs - 1, serving.job_bytes - done.taken_bytes);
        serving.end_streaming(done.id);
        let JobDone { id: JobId { client, table, call }, mut body, has_touched, .. } = done;
        if let Some(of) = serving.clients.get_mut(client).filter(|of| of.table == table) {
            of.jobs -= 1;
        }
        let Some(id) = call else { return };
        let stamp = if has_touched { cx.work.pages.visible() } else { Stamp::ZERO };
        Response::put_stamp(&mut body, stamp);
        if !serving.end(client, table, id, &body) {
            return;
        }
        let Some(conn) = self.clients.get(&client).copied() else { return };
        cx.reply(conn, Kind::Response, 0, &body);
        if stamp > Stamp::ZERO {
            // What its client reads from now on is not older than what the procedure did: it must not wait
            // for that.
            self.stream_to(conn, cx);
        }
    }

    /// The caller of a call waits no longer.
    pub(super) fn cancel(&mut self, asked: Asked, client: ClientId, cancel: Cancel, cx: &mut Cx) {
        let id = CallId { slot: cancel.slot, seq: cancel.seq };
        let Some(of) = self.serving.clients.get_mut(client) else { return };
        let (table, before) = (of.table, of.served.kept_bytes());
        match of.served.cancel(id) {
            Cancelled::New => {
                self.serving.kept_bytes = self.serving.kept_bytes - before + of.served.kept_bytes();
                self.refuse_request(asked, client, table, id, (Refusal::Late, ""), cx);
            }
            Cancelled::Told => self.end_streams(JobId { client, table, call: Some(id) }, cx),
            Cancelled::Old => {}
            Cancelled::Kept(body) => cx.reply(asked.conn, Kind::Response, asked.call, body),
            Cancelled::Forgotten => respond(asked, id, ResponseEnd::FORGOTTEN, cx),
        }
    }

    /// A call is not begun, and never will be.
    fn refuse_request(
        &mut self,
        asked: Asked,
        client: ClientId,
        table: u32,
        id: CallId,
        (why, text): (Refusal, &str),
        cx: &mut Cx,
    ) {
        let mut body = Vec::new();
        put(id, ResponseEnd::Refused(why, text), &mut body);
        self.serving.end(client, table, id, &body);
        cx.reply(asked.conn, Kind::Response, asked.call, &body);
    }
}

pub(super) fn respond(asked: Asked, id: CallId, end: ResponseEnd<'_>, cx: &mut Cx) {
    let mut body = Vec::new();
    put(id, end, &mut body);
    cx.reply(asked.conn, Kind::Response, asked.call, &body);
}

const BUSY: &str = "the server has as many slow calls under way as it takes, of this client or of all: call later, or let its operator \
     raise `workers`";
