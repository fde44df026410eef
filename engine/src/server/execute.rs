//! The methods of calls, run here: each in a transaction over this server's own state, without waiting.
//!
//! A method runs where it stands, in the middle of what the host does. What it needs and is not at hand, a
//! page or an answer of the order, it does not wait for: the attempt is given up, and the method is run anew
//! once there is news. So does one that met a commit which is not visible yet. What it wrote is ordered as
//! the operation of its caller, with what it returns. The host is held up for a bounded number of attempts;
//! whose call is next is decided by [`crate::sessions::call_queue`].

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tercel_wire::access::Principal;
use tercel_wire::id::{CallId, ClientId, Stamp};
use tercel_wire::interface::Method;
use tercel_wire::message::{OBJECT_SLOT, Refusal, Request, Response, ResponseEnd};
use tercel_wire::payload::Payload;
use tercel_wire::record::{Any, Ref};
use tercel_wire::said;

use super::inside::Inside;
use super::{Local, Server};
use crate::effect::Effects;
use crate::error::{Bound, Error};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::rpc::{self, CallKey, Given, KeptResult, Runs};
use crate::sessions::call_queue::Waiting;
use crate::sessions::calls::Ended;
use crate::time::Now;
use crate::txn::{Home, Options, Port, Step, Ticket, Tx};

impl Server {
    /// Says whether there are calls to be run, or to be run anew. The host does not sleep before they are.
    pub fn has_calls(&self) -> bool {
        self.sessions.calls.has_due(self.call_state())
    }

    /// While this does not change, a call that was given up would be given up again.
    fn call_state(&self) -> (u64, Stamp) {
        let turns_ended = self.cx.leader.as_ref().map_or(0, |leader| leader.turns_ended());
        (self.inside_news().wrapping_add(turns_ended), self.visible())
    }

    /// Runs calls that are due, [`limits::CALLS_AT_ONCE`] at most: if [`Server::has_calls`] says that there
    /// are more, the host calls it again once it has served other connections. `local` is the state of the
    /// transactions inside of this server; what is to be done is appended to `out`, as by [`Server::handle`].
    pub fn run_calls(&mut self, now: Now, local: &mut Local, out: &mut Effects) {
        self.with_effects(out, |server| {
            server.cx.work.now = server.cx.work.now.max(now);
            server.sessions.calls.renew(server.call_state());
            for _ in 0..limits::calls_at_once() {
                let Some((ticket, call)) = server.sessions.calls.next() else { break };
                server.run_call(now, ticket, &call, local);
            }
            server.go_on();
        });
    }

    /// Runs a method that only reads, if all that it needs is at hand, and appends the body of the response.
    pub(super) fn run_reading(
        &mut self,
        now: Now,
        client: ClientId,
        request: &Request<'_>,
        local: &mut Local,
        response: &mut Vec<u8>,
    ) {
        let id = CallId { slot: OBJECT_SLOT, seq: request.seq };
        let from = response.len();
        // The result is written where it is sent from.
        Response::put_returned(id, response);
        let head = response.len();
        let port = Inline::new((self, local), (client, now), false);
        let ended = read(&port, request, response);
        let Inline { at, waits, .. } = port;
        let (server, _) = at.into_inner();
        if waits.get() || ended.is_none() {
            // What it waits for is asked for.
            server.go_on();
        }
        match ended {
            Some((ended, stamp)) if response.len() - head <= limits::CALL_MAX => {
                if ended == rpc::Ended::Failed {
                    Response::put_failed(&mut response[from..]);
                }
                Response::put_stamp(&mut response[from..], stamp);
                server.sessions(|s, cx| s.has_read(client, cx));
            }
            _ => {
                response.truncate(from);
                rpc::put(id, ResponseEnd::Refused(Refusal::Elsewhere, ""), response);
            }
        }
    }

    fn run_call(&mut self, now: Now, ticket: Ticket, call: &Waiting, local: &mut Local) {
        if call.until.is_some_and(|until| now >= until) && !dropped(Rule::BeginsPastDeadline) {
            return self.call_ended(ticket, Ended::Refused(Error::Timeout));
        }
        let offers = self.cx.work.config.methods.clone();
        let runs = match offers.runs(call.interface, call.method) {
            Ok(runs) => runs,
            // The version of its caller was let go of while the call waited.
            Err(e) => return self.call_ended(ticket, Ended::Refused(e)),
        };
        let method = runs.method;
        let (mut taken, mut said) = (Vec::new(), Vec::new());
        let given = match arguments(&runs, call, (&mut taken, &mut said)) {
            Ok(given) => given,
            Err(e) => return self.call_ended(ticket, Ended::Refused(e)),
        };
        let once = match (&call.key[..], offers.once(), method.reads) {
            ([], ..) => None,
            (_, Some(once), false) => Some(once),
            (_, None, _) => {
                let text = "a call with a key: this server keeps no keys of methods".into();
                return self.call_ended(ticket, Ended::Refused(Error::Invalid(text)));
            }
            (.., true) => return self.call_ended(ticket, Ended::Refused(rpc::takes_no_key(&method.name))),
        };
        // An object on its way is read there first: others that would change it need not wait for the disk.
        let is_in_flight = self.cx.work.pages.is_on_its_way(call.target);
        // Clients that have lost over it are told when it is visible, which it would never be.
        let leader = self.cx.leader.as_ref().filter(|_| !method.reads);
        let may_be_ahead = leader.is_some_and(|leader| !leader.is_waited_for(call.target));
        for is_ahead in [is_in_flight, !is_in_flight].into_iter().filter(|ahead| may_be_ahead || !ahead) {
            // The last page that another transaction missed is not this call's.
            self.sessions.inside.take_missed();
            let port =
                Inline { is_ahead, ..Inline::new((&mut *self, &mut *local), (call.op.client, now), true) };
            let target = Ref::<Any>::new(call.target).read_at(call.read_at);
            let attempt = attempt(&port, ticket, call, |tx, reply| {
                let run = |reply: &mut Vec<u8>| (runs.run)(tx, runs.number, target, &given, reply);
                port.run(method, tx, || match once {
                    None => run_for(&runs, reply, run),
                    Some(once) => {
                        let request = [runs.interface.name.as_bytes(), method.name.as_bytes(), &said];
                        let key = CallKey { key: &call.key, request };
                        let once = |layout: &[u8], body: Body<'_>| once(tx, key, layout, body);
                        run_once(once, call, &runs, run, reply)
                    }
                })
            });
            let waits = port.waits.get();
            if !self.goes_on(ticket, attempt, waits, is_ahead) {
                return;
            }
        }
    }

    /// Takes the end of an attempt. Says whether the call is to be tried over the other state, too.
    fn goes_on(
        &mut self,
        ticket: Ticket,
        attempt: Result<Attempt, Error>,
        waits: bool,
        is_ahead: bool,
    ) -> bool {
        let missed = self.sessions.inside.take_missed().filter(|_| waits);
        let pages_missed = missed.map_or(0, |page| self.sessions.calls.has_missed(ticket, page));
        if !waits && !is_ahead {
            self.sessions.calls.has_missed_none(ticket);
        }
        match attempt {
            // More pages than find room at once: the first ones are gone again.
            _ if pages_missed > self.cx.work.pages.cached_max() => {
                let text = "a method that is run at the server reads what its page cache holds at once: let its operator \
                     raise cache_bytes, or call it with `local()`";
                self.call_ended(ticket, Ended::Refused(Error::Full(Bound::Server(text.into()))));
            }
            _ if waits => {}
            Ok(Attempt::Taken) => {}
            // It met what is on its way: what that comes to is news.
            Err(Error::Conflict(_)) => return true,
            // The state that it saw may never be: nobody is told.
            _ if is_ahead && !dropped(Rule::AheadShown) => return true,
            Ok(Attempt::Ended(ended)) => self.call_ended(ticket, ended),
            Err(e) => self.call_ended(ticket, Ended::Refused(e)),
        }
        false
    }

    fn call_ended(&mut self, ticket: Ticket, ended: Ended) {
        self.sessions(|s, cx| s.call_ended(ticket, ended, cx));
    }
}

/// The arguments of a call, as the method takes them here; of a call with a key also the object with what the
/// arguments say, for which the key stands.
///
/// # Errors
/// `Corrupt` if they are damaged; `Schema` if the caller is of a version whose arguments cannot be converted.
fn arguments<'a>(
    runs: &Runs<'_>,
    call: &'a Waiting,
    (taken, said): (&'a mut Vec<u8>, &mut Vec<u8>),
) -> Result<Given<'a>, Error> {
    let method = runs.method;
    let damaged = |e| Error::Corrupt(format!("what method `{}` is to take: {e}", method.name));
    let given = Payload::decode(&call.payload, &method.takes).map_err(damaged)?;
    if !call.key.is_empty() {
        said.extend_from_slice(&call.target.raw().to_le_bytes());
        let unsaid = |why| Error::Schema(format!("what method `{}` is to take: {why}", method.name));
        said::put(&method.takes, &given, limits::CALL_MAX, said).map_err(unsaid)?;
    }
    taken_by(runs, given, taken)
}

/// The arguments as the method takes them here.
///
/// # Errors
/// As [`arguments`].
fn taken_by<'a>(runs: &Runs<'_>, given: Payload<'a>, taken: &'a mut Vec<u8>) -> Result<Given<'a>, Error> {
    let Some(converting) = &runs.converting else { return Ok(Given::new(given)) };
    *taken = converting.take(&given)?;
    let decoded = Payload::decode(taken, &converting.own.takes);
    Ok(Given::new(decoded.map_err(|e| Error::Corrupt(format!("what `{}` takes: {e}", runs.method.name)))?))
}

/// Runs a method, with what its caller reads appended.
fn run_for(
    runs: &Runs<'_>,
    reply: &mut Vec<u8>,
    run: impl FnOnce(&mut Vec<u8>) -> Result<rpc::Ended, Error>,
) -> Result<rpc::Ended, Error> {
    let Some(converting) = &runs.converting else { return run(reply) };
    let mut own = Vec::new();
    let ended = run(&mut own)?;
    converting.give(ended, &own, reply)?;
    Ok(ended)
}

/// The body of a call with a key.
type Body<'b> = &'b mut dyn FnMut() -> Result<Vec<u8>, Error>;

/// Runs a method under a key. What it returns is kept behind the object, which a repetition that cannot name
/// it any more learns so, with the layout that it has here: another version may read it. What it fails with
/// is given and not kept: it has changed nothing.
fn run_once(
    once: impl FnOnce(&[u8], Body<'_>) -> Result<KeptResult, Error>,
    call: &Waiting,
    runs: &Runs<'_>,
    mut run: impl FnMut(&mut Vec<u8>) -> Result<rpc::Ended, Error>,
    reply: &mut Vec<u8>,
) -> Result<rpc::Ended, Error> {
    let (object, mut failed) = (call.target.raw().to_le_bytes(), None);
    let own = runs.converting.as_ref().map_or(runs.method, |converting| converting.own);
    let mut layout = Vec::new();
    own.gives.encode(&mut layout);
    let kept = once(&layout, &mut || {
        let mut result = Vec::new();
        match run(&mut result)? {
            rpc::Ended::Returned if result.len() > limits::REPLY_BYTES_MAX => Err(too_large(&result, call)),
            rpc::Ended::Returned => Ok([&object[..], &result].concat()),
            ended => {
                failed = Some((ended, result));
                Err(Error::Failed("the method has failed".into()))
            }
        }
    });
    if let Some((ended, failure)) = failed {
        run_for(runs, reply, |reply| {
            reply.extend_from_slice(&failure);
            Ok(ended)
        })?;
        return Ok(ended);
    }
    let kept = kept?;
    let result = kept.result.get(object.len()..).unwrap_or_default();
    rpc::read_kept((&kept.layout, result), &runs.method.gives, reply).map_err(|e| {
        Error::Failed(format!("what `{}` has returned under this key: {}", runs.method.name, e.what()))
    })?;
    Ok(rpc::Ended::Returned)
}

/// The end of an attempt to run a method.
enum Attempt {
    /// The writes of the method are being ordered.
    Taken,
    /// The method ended with nothing to be ordered.
    Ended(Ended),
}

fn attempt(
    port: &Inline<'_>,
    ticket: Ticket,
    call: &Waiting,
    run: impl FnOnce(&Tx<'_>, &mut Vec<u8>) -> Result<rpc::Ended, Error>,
) -> Result<Attempt, Error> {
    let tx = Tx::begin(port, Options::default())?;
    let mut reply = Vec::new();
    let ended = run(&tx, &mut reply)?;
    let snapshot = tx.snapshot();
    if reply.len() > limits::CALL_MAX {
        return Err(Error::Invalid(format!(
            "method {} gives {} bytes, and a message takes {} at most: let it return a reference",
            call.method,
            reply.len(),
            limits::CALL_MAX
        )));
    }
    match ended {
        rpc::Ended::Failed => Ok(Attempt::Ended(Ended::Failed(snapshot, reply))),
        rpc::Ended::NotBegun => Err(Error::Schema(String::from_utf8_lossy(&reply).into_owned())),
        rpc::Ended::Returned if !tx.has_written() => Ok(Attempt::Ended(Ended::Returned(snapshot, reply))),
        rpc::Ended::Returned if reply.len() > limits::REPLY_BYTES_MAX => Err(too_large(&reply, call)),
        rpc::Ended::Returned => match tx.commit_call(ticket, &reply)? {
            true => Ok(Attempt::Taken),
            false => Err(Error::Conflict(None)),
        },
    }
}

fn too_large(reply: &[u8], call: &Waiting) -> Error {
    Error::Invalid(format!(
        "a method that writes returns at most {} bytes, which are kept with what it wrote, and this one {} (method {}): \
         let it return a reference",
        limits::REPLY_BYTES_MAX,
        reply.len(),
        call.method,
    ))
}

/// Runs a method that only reads, with what it gives appended: how it ended, and the state that it read. None
/// if it is to be run as an operation, which says why.
fn read(port: &Inline<'_>, request: &Request<'_>, reply: &mut Vec<u8>) -> Option<(rpc::Ended, Stamp)> {
    let (oref, read_at) = request.object?;
    let offers = port.at.borrow().0.cx.work.config.methods.clone();
    let runs = offers.runs(request.interface, request.method).ok().filter(|runs| runs.method.reads)?;
    let mut taken = Vec::new();
    let given =
        taken_by(&runs, Payload::decode(request.payload, &runs.method.takes).ok()?, &mut taken).ok()?;
    let target = Ref::<Any>::new(oref).read_at(read_at);
    let tx = Tx::begin(port, Options::default()).ok()?;
    let run = |reply: &mut Vec<u8>| (runs.run)(&tx, runs.number, target, &given, reply);
    let ended = port.run(runs.method, &tx, || run_for(&runs, reply, run)).ok()?;
    (!port.waits.get()).then(|| (ended, tx.snapshot()))
}

/// The server itself, for the transaction of one method. It does not wait.
struct Inline<'a> {
    at: RefCell<(&'a mut Server, &'a mut Local)>,
    /// The client whose call it is.
    client: ClientId,
    now: Now,
    /// Set if the server goes on after each step, because a step may order something.
    may_order: bool,
    /// Set if the method reads what is ordered and not visible yet.
    is_ahead: bool,
    /// The method needed something that is not at hand.
    waits: Cell<bool>,
    /// The server does a step, and has not come to its end.
    is_at_work: Cell<bool>,
}

impl<'a> Inline<'a> {
    fn new(
        at: (&'a mut Server, &'a mut Local),
        (client, now): (ClientId, Now),
        may_order: bool,
    ) -> Inline<'a> {
        let (waits, is_at_work) = (Cell::new(false), Cell::new(false));
        Inline { at: RefCell::new(at), client, now, may_order, is_ahead: false, waits, is_at_work }
    }

    /// Runs a method. A panic of it is caught, and said.
    fn run(
        &self,
        method: &Method,
        tx: &Tx<'_>,
        run: impl FnOnce() -> Result<rpc::Ended, Error>,
    ) -> Result<rpc::Ended, Error> {
        let ended = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(ended) => ended?,
            // The server itself has, in the middle of its work: it cannot go on.
            Err(panic) if self.is_at_work.get() => resume_unwind(panic),
            // Its transaction is given up, and the server serves others.
            Err(_) => {
                return Err(Error::Failed(format!("method `{}` has panicked at the server", method.name)));
            }
        };
        match method.reads && tx.has_written() {
            true => Err(rpc::has_written(&method.name)),
            false => Ok(ended),
        }
    }
}

impl Port for Inline<'_> {
    fn now(&self) -> Now {
        self.now
    }

    fn drive(&self, _: Option<Now>, step: &mut dyn FnMut(&mut dyn Home, Now) -> Step) -> Result<(), Error> {
        let mut at = self.at.borrow_mut();
        let (server, local) = &mut *at;
        self.is_at_work.set(true);
        let said = step(&mut Inside { server, local, is_ahead: self.is_ahead }, self.now);
        if self.may_order {
            server.go_on();
        }
        self.is_at_work.set(false);
        match said {
            Step::Done => Ok(()),
            Step::Wait | Step::WaitForNews(_) => {
                self.waits.set(true);
                Err(Error::Unavailable("what the method needs is not at hand: it is run anew".into()))
            }
        }
    }

    fn back_off(&self, _: u64) {}

    fn caller(&self) -> Option<Principal> {
        let at = self.at.borrow();
        let conn = at.0.sessions.conn_of(self.client);
        // One that is gone is nobody, and not the program itself.
        let who = conn.and_then(|conn| at.0.cx.work.seats.who(conn));
        Some(who.map_or(Principal::Anyone, |who| Principal::clone(who)))
    }
}
