//! A server's process: a table of the engine's for each client, and threads that run slow calls.
//!
//! It never sends a response by itself for a second time: a call that comes again is answered as it was. A
//! message of a table that is not here, because an earlier server had it or the client was forgotten, is
//! refused whatever it says. The invariant: what a table has is of the client process that it was made for.

use std::collections::BTreeMap;

use tercel_engine::rpc::served::{Cancelled, Served};
use tercel_engine::rpc::slots::Table;
use tercel_engine::rpc::streams::Said;
use tercel_engine::rpc::{Context, Job, JobDone, JobId, Services, Taken, put, serve};
use tercel_engine::time::Now;
use tercel_wire::frame::{self, Header, Kind};
use tercel_wire::id::{CallId, ClientId, Stamp, ViewId};
use tercel_wire::interface::Fit;
use tercel_wire::message::{
    Bind, Bound, Cancel, Credit, InputEnd, Item, Pong, Refusal, Refused, Request, Response, ResponseEnd,
};

use super::link::{At, Datagram, End, Event, Links, Way, header};
use crate::slow::{Next, SlowCall};

/// A server.
pub(super) struct ServerHost {
    pub view: ViewId,
    services: Services,
    clients: BTreeMap<ClientId, OfClient>,
    last_table: u32,
    jobs: BTreeMap<u64, Work>,
    last_job: u64,
    /// Jobs that threads run.
    running: usize,
}

#[derive(Default)]
struct OfClient {
    table: u32,
    served: Served,
    /// Its calls with streams that are under way, by their jobs.
    streaming: BTreeMap<CallId, u64>,
}

/// A slow call.
struct Work {
    job: Job,
    /// Where its answer goes.
    way: Way,
    /// Its streams, if it has some.
    slow: Option<SlowCall>,
    /// The ticket of its begin.
    ticket: Option<usize>,
}

impl ServerHost {
    pub(super) fn new(view: ViewId, links: &Links) -> ServerHost {
        ServerHost {
            view,
            services: links.oracle.notes.services(),
            clients: BTreeMap::new(),
            last_table: 0,
            jobs: BTreeMap::new(),
            last_job: 0,
            running: 0,
        }
    }

    /// Says whether no call is under way.
    pub(super) fn is_at_rest(&self) -> bool {
        self.jobs.is_empty() && self.clients.values().all(|of| of.streaming.is_empty())
    }

    fn at(&self, us: u64, at: At, links: &mut Links) {
        links.after(us, Event::Server(self.view.number, at));
    }

    fn send(&self, kind: Kind, way: Way, table: u32, body: &[u8], links: &mut Links) {
        let header = Header { stamp: links.space, ..header(kind, Table { view: self.view, number: table }) };
        links.send(End::Client, way, header, body);
    }

    /// Sends the response to a call; what it says is certain from now on.
    fn respond(&self, way: Way, table: u32, body: &[u8], links: &mut Links) {
        if let Ok(Response { slot, seq, end: end @ ResponseEnd::Refused(..) }) = Response::decode(body)
            && end != ResponseEnd::FORGOTTEN
        {
            links.oracle.never(
                way.client,
                CallId { slot, seq },
                "the server has said that it never would be",
            );
        }
        self.send(Kind::Response, way, table, body, links);
    }

    /// A message has come.
    pub(super) fn receive(&mut self, datagram: &Datagram, links: &mut Links) {
        let way = datagram.way;
        let Ok(Some((header, body, _))) = frame::split(&datagram.frame) else {
            return links.oracle.blame("a message of a client cannot be read".into());
        };
        if header.kind == Kind::Bind {
            return self.bind(way, header.call, body, links);
        }
        let named = (header.view, header.call);
        let table = self.clients.get(&way.client).map(|of| of.table);
        let is_its = table.is_some_and(|table| named == (self.view, table.into()));
        let is_believed = is_its || table.is_some() && links.plan.believes_all();
        if !is_believed {
            let mut body = Vec::new();
            let text = "the server has another table".into();
            Refused { reason: Refusal::History, text, servers: Vec::new() }.encode(&mut body);
            // The table that is not here.
            let refused = Header { view: header.view, ..Header::new(Kind::Refused, header.call) };
            return links.send(End::Client, Way { pipe: None, ..way }, refused, &body);
        }
        let heard = match header.kind {
            Kind::Request => Request::decode(body).map(|request| self.request(way, &header, &request, links)),
            Kind::Cancel => Cancel::decode(body).map(|cancel| self.cancel(way, cancel, links)),
            Kind::InputItem => Item::decode(body).map(|item| {
                let said = Said::Item(item.ordinal, item.payload.to_vec());
                self.hear(way.client, CallId { slot: item.slot, seq: item.seq }, said, links);
            }),
            Kind::InputEnd => InputEnd::decode(body).map(|end| {
                self.hear(way.client, CallId { slot: end.slot, seq: end.seq }, Said::End(end.items), links);
            }),
            Kind::OutputCredit => Credit::decode(body).map(|credit| {
                let id = CallId { slot: credit.slot, seq: credit.seq };
                self.hear(way.client, id, Said::Credit(credit.bytes), links);
            }),
            _ => {
                let mut body = Vec::new();
                Pong { nearly_full: false, held: None }.encode(&mut body);
                self.send(Kind::Pong, way, table.unwrap_or(0), &body, links);
                Ok(())
            }
        };
        if let Err(e) = heard {
            links.oracle.blame(format!("a message of a client cannot be decoded: {e}"));
        }
    }

    fn bind(&mut self, way: Way, bind: u64, body: &[u8], links: &mut Links) {
        let Ok(asked) = Bind::decode(body) else {
            return links.oracle.blame("a binding cannot be decoded".into());
        };
        let Some((number, interface)) = self.services.find(&asked.interface.name) else { return };
        // Both ends of these worlds are of one build.
        let numbers = interface.fit(&asked.interface).into_iter().map(|fit| match fit {
            Fit::Same(number) => Some(number.into()),
            Fit::Converts(_) | Fit::Refused(_) => None,
        });
        let Some(methods) = numbers.collect() else { return };
        let last = &mut self.last_table;
        let of = self.clients.entry(way.client).or_insert_with(|| {
            *last += 1;
            OfClient { table: *last, ..OfClient::default() }
        });
        let mut body = Vec::new();
        Bound { interface: Some(number), methods, table: Some(of.table) }.encode(&mut body);
        links.send(End::Client, way, Header { view: self.view, ..Header::new(Kind::Bound, bind) }, &body);
    }

    fn request(&mut self, way: Way, header: &Header, request: &Request<'_>, links: &mut Links) {
        let now = Now(links.time);
        let until = Some(header.deadline_us).filter(|us| *us > 0).map(|us| now.plus_us(us.into()));
        let Some(of) = self.clients.get_mut(&way.client) else { return };
        let table = of.table;
        let (context, mut body) = (Context::inline(way.client, now, until), Vec::new());
        match serve(&mut of.served, &self.services, request, &context, &mut body) {
            Taken::Answered => self.respond(way, table, &body, links),
            Taken::Silent => {}
            Taken::Slow => self.take_slow(way, table, request, until, links),
            Taken::Broken => {
                links.oracle.blame("an honest client uses a slot whose call has no answer".into());
            }
        }
    }

    fn take_slow(
        &mut self,
        way: Way,
        table: u32,
        request: &Request<'_>,
        until: Option<Now>,
        links: &mut Links,
    ) {
        let call = request.slot.map(|slot| CallId { slot, seq: request.seq });
        let (Some(id), Some(of)) = (call, self.clients.get_mut(&way.client)) else { return };
        if self.jobs.len() >= links.plan.jobs_max {
            return self.refuse(way, table, id, Refusal::FULL, links);
        }
        let name = JobId { client: way.client, table, call };
        let job = Job::new(name, self.services.clone(), request, until);
        of.served.runs(id, job.flag());
        self.last_job += 1;
        let number = self.last_job;
        let slow = job.streams().is_any().then(|| SlowCall::new(job.clone()));
        let us = links.random.below(WAIT_US_MAX);
        if slow.is_some() {
            of.streaming.insert(id, number);
            self.at(us, At::Streams(number), links);
        } else {
            self.at(us, At::Begins(number), links);
        }
        self.jobs.insert(number, Work { job, way, slow, ticket: None });
    }

    fn refuse(&mut self, way: Way, table: u32, id: CallId, why: Refusal, links: &mut Links) {
        let mut body = Vec::new();
        put(id, ResponseEnd::Refused(why, ""), &mut body);
        if let Some(of) = self.clients.get_mut(&way.client) {
            of.served.end(id, &body);
        }
        self.respond(way, table, &body, links);
    }

    fn cancel(&mut self, way: Way, cancel: Cancel, links: &mut Links) {
        let id = CallId { slot: cancel.slot, seq: cancel.seq };
        let Some(of) = self.clients.get_mut(&way.client) else { return };
        let table = of.table;
        match of.served.cancel(id) {
            Cancelled::New => self.refuse(way, table, id, Refusal::Late, links),
            Cancelled::Told => self.tell_job(way.client, id, links),
            Cancelled::Kept(body) => {
                let body = body.to_vec();
                self.respond(way, table, &body, links);
            }
            Cancelled::Forgotten => {
                let mut body = Vec::new();
                put(id, ResponseEnd::FORGOTTEN, &mut body);
                self.respond(way, table, &body, links);
            }
            Cancelled::Old => {}
        }
    }

    /// The caller of a call that is here has given up: if it is not begun yet it never will be.
    fn tell_job(&mut self, client: ClientId, id: CallId, links: &mut Links) {
        let of =
            self.jobs.values_mut().find(|work| work.job.id.client == client && work.job.id.call == Some(id));
        let Some(work) = of else { return };
        work.slow.iter_mut().for_each(SlowCall::end);
        if work.ticket.is_none() {
            links.oracle.never(client, id, "its cancellation came first");
        }
        self.end_streaming(client, id);
    }

    fn end_streaming(&mut self, client: ClientId, id: CallId) {
        if let Some(of) = self.clients.get_mut(&client) {
            of.streaming.remove(&id);
        }
    }

    fn hear(&mut self, client: ClientId, id: CallId, said: Said, links: &mut Links) {
        let number = self.clients.get(&client).and_then(|of| of.streaming.get(&id).copied());
        let work = number.and_then(|number| self.jobs.get_mut(&number));
        let Some(slow) = work.and_then(|work| work.slow.as_mut()) else { return };
        if let Err(violation) = slow.hear(said) {
            links.oracle.blame(format!("an honest client breaks the protocol of streams: {}", violation.0));
        }
    }

    /// Something happens that was to happen here.
    pub(super) fn happens(&mut self, at: At, links: &mut Links) {
        match at {
            At::Begins(number) if self.running >= links.plan.workers => {
                let us = 1 + links.random.below(WAIT_US_MAX);
                self.at(us, At::Begins(number), links);
            }
            At::Begins(number) => {
                self.running += 1;
                if let Some(done) = self.run(number, links) {
                    let most = *links.random.pick(&WORK_US);
                    let us = links.random.below(most);
                    self.at(us, At::Ends(number, done), links);
                }
            }
            At::Ends(number, done) => {
                self.running -= 1;
                self.ran(number, done, links);
            }
            At::Streams(number) => self.go_on_streaming(number, links),
            At::Cut(address, pipe) => {
                let cut =
                    |work: &&Work| work.way.address == address && work.way.pipe.is_some_and(|l| l <= pipe);
                let lost = self.jobs.values().filter(cut).map(|work| work.job.id).collect::<Vec<_>>();
                for JobId { client, call, table } in lost {
                    let of = self.clients.get_mut(&client).filter(|of| of.table == table);
                    if let Some((of, id)) = of.zip(call) {
                        of.served.cancel(id);
                        self.tell_job(client, id, links);
                    }
                }
            }
        }
    }

    /// A thread runs a job. What it does is done at once; its end comes later.
    fn run(&mut self, number: u64, links: &mut Links) -> Option<JobDone> {
        let work = self.jobs.get_mut(&number)?;
        let (now, before) = (Now(links.time), links.oracle.begins());
        let done = match &work.slow {
            None => work.job.run(now, None, None),
            Some(slow) => {
                let (job, items) = slow.to_run();
                job.run(now, None, Some(&items))
            }
        };
        work.ticket = (links.oracle.begins() > before).then_some(before);
        if work.ticket.is_some() && work.job.until().is_some_and(|until| until <= now) {
            links.oracle.blame("a procedure is begun although its caller waits no longer".into());
        }
        links.oracle.look();
        Some(done)
    }

    fn ran(&mut self, number: u64, done: JobDone, links: &mut Links) {
        let Some(work) = self.jobs.remove(&number) else { return };
        let (mut body, JobId { client, table, call }) = (done.body, done.id);
        if let Some(ticket) = work.ticket {
            links.oracle.ended(ticket);
            links.space = Stamp(links.space.0 + 1);
            Response::put_stamp(&mut body, links.space);
        }
        let Some((of, id)) = self.clients.get_mut(&client).filter(|of| of.table == table).zip(call) else {
            return;
        };
        of.streaming.remove(&id);
        if of.served.end(id, &body) {
            self.respond(work.way, table, &body, links);
        }
    }

    fn go_on_streaming(&mut self, number: u64, links: &mut Links) {
        let Some(work) = self.jobs.get_mut(&number) else { return };
        let (JobId { client, table, call }, way) = (work.job.id, work.way);
        let Some(slow) = work.slow.as_mut() else { return };
        if slow.until().is_some_and(|until| until.0 <= links.time) {
            slow.end();
        }
        match slow.next() {
            Next::Says(said) => {
                let of = self.clients.get(&client).filter(|of| of.table == table);
                if let Some((of, id)) = of.zip(call)
                    && of.streaming.contains_key(&id)
                {
                    let (kind, body) = encoded(id, said);
                    self.send(kind, way, table, &body, links);
                }
            }
            Next::Runs => {
                let done = self.run(number, links);
                let slow = self.jobs.get_mut(&number).and_then(|work| work.slow.as_mut());
                slow.zip(done).into_iter().for_each(|(slow, done)| slow.ran(done));
            }
            Next::Ends(done) => return self.ran(number, done, links),
            Next::Waits => {}
        }
        let us = links.random.below(STEP_US_MAX);
        self.at(us, At::Streams(number), links);
    }

    /// Forgets a client: its connection ended long ago.
    pub(super) fn forget(&mut self, client: ClientId) {
        if let Some(of) = self.clients.remove(&client) {
            of.served.cancel_all();
            for work in self.jobs.values_mut().filter(|work| work.job.id.client == client) {
                work.slow.iter_mut().for_each(SlowCall::end);
            }
        }
    }

    /// Lets go of the answers that are kept for a client.
    pub(super) fn shrink(&mut self, client: ClientId) {
        self.clients.get_mut(&client).into_iter().for_each(|of| of.served.shrink());
    }
}

/// Encodes the message that a procedure sends on its streams.
fn encoded(CallId { slot, seq }: CallId, said: Said) -> (Kind, Vec<u8>) {
    let mut body = Vec::new();
    let kind = match said {
        Said::Item(ordinal, payload) => {
            Item { slot, seq, ordinal, payload: &payload }.encode(&mut body);
            Kind::OutputItem
        }
        Said::Credit(bytes) => {
            Credit { slot, seq, bytes }.encode(&mut body);
            Kind::InputCredit
        }
        Said::End(items) => {
            InputEnd { slot, seq, items }.encode(&mut body);
            Kind::InputEnd
        }
        Said::UsesSpace => unreachable!("this world has no space"),
    };
    (kind, body)
}

/// Times of a call, in microseconds: its wait for a thread at most, its work at most, and a step of a stream
/// at most.
const WAIT_US_MAX: u64 = 3_000;
const WORK_US: [u64; 3] = [200, 2_000, 20_000];
const STEP_US_MAX: u64 = 300;
