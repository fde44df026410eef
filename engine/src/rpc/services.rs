//! The services that a server offers, and how a procedure of one is run.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tercel_wire::access::Principal;
use tercel_wire::id::{CallId, ClientId, Stamp};
use tercel_wire::interface::{Fit, Interface, InterfaceSchema, Method, Mode};
use tercel_wire::lent::SharedBody;
use tercel_wire::message::{Refusal, Request, Response, ResponseEnd};
use tercel_wire::payload::{InPlace, Payload};
use tercel_wire::said;

use super::streams::Directions;
use super::versions::{RunProcedure, Version};
use super::{CallKey, Context, Ended, Given, ItemPort, ReplyBody};
use crate::error::Error;
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::time::Now;
use crate::txn::Port;

/// The interface that `#[service]` makes of a trait. For derived code.
#[doc(hidden)]
pub trait ServiceInterface {
    /// The procedures of the service.
    const SCHEMA: &'static InterfaceSchema;
    /// Which procedures take [`LentBytes`](tercel_wire::lent::LentBytes), by their numbers.
    const LENT: &'static [bool] = &[];
}

/// A service with what implements it, for a server to offer. `#[service]` makes it of an implementation:
/// `Clock::serve(MyClock)`. Cheap to clone; clones are one implementation.
#[derive(Clone)]
pub struct Service {
    schema: &'static InterfaceSchema,
    run: Arc<RunProcedure>,
    /// By the number of a procedure: set if it takes bytes that are lent.
    lent: Arc<[bool]>,
    keeps_replies: bool,
}

impl Service {
    /// For derived code.
    #[doc(hidden)]
    pub fn new<S: ?Sized + ServiceInterface>(
        run: impl Fn(&Context<'_>, usize, &Given<'_>, &mut ReplyBody<'_>) -> Result<Ended, Error>
        + Send
        + Sync
        + 'static,
    ) -> Service {
        Service { schema: S::SCHEMA, run: Arc::new(run), lent: S::LENT.into(), keeps_replies: true }
    }

    /// The same, of whose calls the server keeps no replies, unless they run on a thread of their own. For
    /// measurements of what keeping them costs, and for nothing else: a call is begun at most once as before,
    /// but it is `Unknown` to a caller that has lost the answer with its connection, whatever the call came
    /// to.
    #[doc(hidden)]
    pub fn without_replies(self) -> Service {
        Service { keeps_replies: false, ..self }
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service {}", self.schema.name)
    }
}

/// All services that a server offers, by number, and behind them the versions of their callers. Cheap to
/// clone.
#[derive(Debug, Clone, Default)]
pub struct Services {
    all: Arc<Vec<(Arc<Interface>, Service)>>,
    /// The number of services without versions.
    own: usize,
}

impl Services {
    /// Adds one more service. The last of equal names counts. Versions come later.
    pub fn with(&self, service: Service) -> Services {
        let interface = Interface::of_service(service.schema);
        let mut all = Vec::clone(&self.all);
        all.retain(|(i, _)| i.name != interface.name);
        all.push((Arc::new(interface), service));
        Services { own: all.len(), all: Arc::new(all) }
    }

    /// The service of a name, with its number.
    pub fn find(&self, name: &str) -> Option<(u16, &Arc<Interface>)> {
        let at = self.interfaces().position(|i| i.name == name)?;
        Some((u16::try_from(at).ok()?, &self.all[at].0))
    }

    /// Has a version of a service stand under the next number.
    pub(crate) fn add_version(&mut self, of: u16, version: Version, stands: Interface) {
        let Service { schema, run, lent, keeps_replies } = self.all[usize::from(of)].1.clone();
        let is_lent = |method| match version.fit(method) {
            Some(Fit::Same(number)) => lent.get(usize::from(*number)).is_some_and(|lent| *lent),
            _ => false,
        };
        let lent = (0..stands.methods.len()).map(is_lent).collect();
        let stands = Arc::new(stands);
        let run = version.serve(stands.clone(), run);
        // Calls that are under way have the tables of before; a copy of those shares all that is large.
        Arc::make_mut(&mut self.all).push((stands, Service { schema, run, lent, keeps_replies }));
    }

    /// Leaves a version without procedures.
    pub(crate) fn empty_version(&mut self, at: u16) {
        let nothing: Arc<RunProcedure> =
            Arc::new(|_, _, _, _| Err(super::no_method("a version that is gone")));
        if let Some((interface, service)) = Arc::make_mut(&mut self.all).get_mut(usize::from(at)) {
            let Interface { name, class, .. } = &**interface;
            *interface =
                Arc::new(Interface { name: name.clone(), class: class.clone(), methods: Vec::new() });
            *service = Service { schema: service.schema, run: nothing, lent: [].into(), keeps_replies: true };
        }
    }

    /// The number of all, versions included.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// A procedure, by the numbers of its service and of itself; none if there is no such.
    #[inline]
    pub fn procedure(&self, interface: u16, method: u16) -> Option<Procedure<'_>> {
        let (interface, service) = self.all.get(interface as usize)?;
        let of = interface.methods.get(method as usize)?;
        Some(Procedure { of, number: method, run: &*service.run, keeps_reply: service.keeps_replies })
    }

    /// Lends what a request takes to its procedure, where it lies in the shared body of the request; `copied`
    /// is how that body begins, of which the request was decoded. None if it is to be copied first: the
    /// procedure asks for no bytes that may change, or takes something else beside them that is no number.
    pub fn lend<'a>(
        &self,
        request: &Request<'a>,
        copied: &[u8],
        (body, bytes): (&SharedBody<'a>, usize),
    ) -> Option<InPlace<'a>> {
        let (interface, service) = self.all.get(request.interface as usize)?;
        let of = interface.methods.get(request.method as usize)?;
        let is_lent = service.lent.get(request.method as usize).is_some_and(|lent| *lent);
        let at = copied.len() - request.payload.len();
        if is_lent { InPlace::lend(request.payload, (at, bytes), body, &of.takes) } else { None }
    }

    /// Which streams a procedure has.
    pub fn streams(&self, interface: u16, method: u16) -> Directions {
        let methods = self.all.get(interface as usize).map(|(interface, _)| &interface.methods);
        methods.and_then(|all| all.get(method as usize)).map_or_else(Directions::default, Directions::of)
    }

    /// All of them.
    pub fn interfaces(&self) -> impl ExactSizeIterator<Item = &Interface> {
        self.with_versions().take(self.own)
    }

    /// All of them and the versions of their callers, by number.
    pub(crate) fn with_versions(&self) -> impl ExactSizeIterator<Item = &Interface> {
        self.all.iter().map(|(interface, _)| &**interface)
    }
}

/// The arguments for a procedure.
#[derive(Debug, Clone, Copy)]
pub enum Taking<'a> {
    /// A payload, which is not checked yet.
    Payload(&'a [u8]),
    /// A payload that is read where the peer wrote it.
    InPlace(&'a InPlace<'a>),
}

/// A procedure that a server offers.
#[derive(Clone, Copy)]
pub struct Procedure<'a> {
    of: &'a Method,
    number: u16,
    run: &'a RunProcedure,
    keeps_reply: bool,
}

impl Procedure<'_> {
    /// The way in which it is run.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.of.mode
    }

    /// Says whether the results of its calls are kept.
    #[inline]
    pub(super) fn keeps_reply(&self) -> bool {
        self.keeps_reply
    }

    /// Runs it here and now, and appends the body of its response. Gives whether it was begun.
    ///
    /// A panic of the procedure is caught, and answered.
    #[inline]
    pub fn run(&self, id: CallId, taking: Taking<'_>, cx: &Context<'_>, out: &mut ReplyBody<'_>) -> bool {
        let decoded = match taking {
            Taking::Payload(payload) => Payload::decode(payload, &self.of.takes),
            Taking::InPlace(lent) => Ok(lent.payload()),
        };
        let given = match decoded {
            Ok(given) => Given::new(given),
            Err(e) => {
                let text = format!("what `{}` is to take: {e}", self.of.name);
                put(id, ResponseEnd::Refused(Refusal::Corrupt, &text), out.bytes());
                return false;
            }
        };
        let from = out.bytes().len();
        // The result is written where it is sent from.
        Response::put_returned(id, out.bytes());
        let head = out.bytes().len();
        let ran = catch_unwind(AssertUnwindSafe(|| (self.run)(cx, self.number.into(), &given, out)));
        match ran {
            Ok(Ok(_)) if out.len() - head > limits::CALL_MAX => {}
            Ok(Ok(Ended::Returned)) => return true,
            Ok(Ok(Ended::Failed)) => {
                Response::put_failed(&mut out.bytes()[from..head]);
                return true;
            }
            _ => {}
        }
        self.put_broken(id, ran.ok(), (from, head), out)
    }

    /// Says in place of what it gave that it did not come to its end. Gives whether it was begun.
    #[cold]
    fn put_broken(
        &self,
        id: CallId,
        ran: Option<Result<Ended, Error>>,
        (from, head): (usize, usize),
        out: &mut ReplyBody<'_>,
    ) -> bool {
        let name = &self.of.name;
        if let Some(Ok(Ended::NotBegun)) = ran {
            let why = String::from_utf8_lossy(&out.bytes()[head..]).into_owned();
            out.truncate(from);
            put(id, ResponseEnd::Refused(Refusal::Schema, &why), out.bytes());
            return false;
        }
        if let Some(Err(e)) = &ran
            && self.of.mode == Mode::Once
        {
            // What was kept was kept with its key, so the caller is told whether to call again.
            out.truncate(from);
            put(id, ResponseEnd::Refused(e.refusal(), &e.what()), out.bytes());
            return true;
        }
        let broken = match ran {
            Some(Ok(_)) => {
                let gives = out.len() - head;
                format!("`{name}` gives {gives} bytes, and a result has {} at most, 64 MiB", limits::CALL_MAX)
            }
            // The client says that the call has failed.
            Some(Err(Error::Failed(what))) => what,
            Some(Err(e)) => e.to_string(),
            None => format!("`{name}` has panicked at the server"),
        };
        // An encoding that panicked may have left some of it.
        out.truncate(from);
        put(id, ResponseEnd::Broken(Stamp::ZERO, &broken), out.bytes());
        true
    }
}

/// Appends the body of a response.
pub fn put(id: CallId, end: ResponseEnd<'_>, out: &mut Vec<u8>) {
    Response { slot: id.slot, seq: id.seq, end }.encode(out);
}

/// The message for a client that calls a procedure which is not there.
pub(super) const NO_METHOD: &str = "the server has no such procedure: bind the service anew";

/// Names a call that runs on a thread of its own, over all clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobId {
    pub client: ClientId,
    /// The number of the table that the call is in.
    pub table: u32,
    /// The call; none if it is never answered.
    pub call: Option<CallId>,
}

/// A call that is to run on a thread of its own.
#[derive(Debug, Clone)]
pub struct Job {
    /// For the answer.
    pub id: JobId,
    who: Arc<Principal>,
    services: Services,
    method: (u16, u16),
    key: Vec<u8>,
    payload: Vec<u8>,
    /// When its caller waits no longer, by the server's clock.
    until: Option<Now>,
    is_cancelled: Arc<AtomicBool>,
}

impl PartialEq for Job {
    fn eq(&self, other: &Job) -> bool {
        self.id == other.id
    }
}

impl Eq for Job {}

/// A job that has come to its end.
#[derive(Debug, PartialEq, Eq)]
pub struct JobDone {
    /// Which.
    pub id: JobId,
    /// Bytes of what it took.
    pub taken_bytes: usize,
    /// The body of the response.
    pub body: Vec<u8>,
    /// Set if it was begun, and used the space.
    pub has_touched: bool,
}

impl Job {
    /// A call that [`serve`](super::serve()) took for a slow one. For hosts.
    pub fn new(id: JobId, services: Services, request: &Request<'_>, until: Option<Now>) -> Job {
        let method = (request.interface, request.method);
        let (key, payload) = (request.key.to_vec(), request.payload.to_vec());
        let (who, is_cancelled) = Default::default();
        Job { id, who, services, method, key, payload, until, is_cancelled }
    }

    /// The same, by this principal.
    pub(crate) fn by(self, who: Arc<Principal>) -> Job {
        Job { who, ..self }
    }

    /// The flag that notifies the call, and the thread that runs it, that its caller has given up.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.is_cancelled.clone()
    }

    /// When its caller waits no longer, by the server's clock.
    pub fn until(&self) -> Option<Now> {
        self.until
    }

    /// Which streams it has.
    pub fn streams(&self) -> Directions {
        self.services.streams(self.method.0, self.method.1)
    }

    /// Bytes of what it takes.
    pub fn payload_bytes(&self) -> usize {
        self.payload.len()
    }

    /// The key that its caller has given, with the request; none if it has given none. `said` takes what the
    /// arguments say.
    ///
    /// # Errors
    /// A sentence, if the arguments say too much.
    fn key<'s>(&'s self, said: &'s mut Vec<u8>) -> Result<Option<CallKey<'s>>, String> {
        let of = self.services.all.get(usize::from(self.method.0)).filter(|_| !self.key.is_empty());
        let method = of.and_then(|(interface, _)| interface.methods.get(usize::from(self.method.1)));
        let Some(((interface, _), method)) = of.zip(method) else { return Ok(None) };
        // Damaged arguments are refused before anybody asks for the key.
        let Ok(payload) = Payload::decode(&self.payload, &method.takes) else { return Ok(None) };
        said::put(&method.takes, &payload, limits::CALL_MAX, said)?;
        let request = [interface.name.as_bytes(), method.name.as_bytes(), &said[..]];
        Ok(Some(CallKey { key: &self.key, request }))
    }

    /// Runs it, on a thread of the host's. Begins nothing that is late or was cancelled. The port leads to
    /// the server's transactions, by the clock of the server; `items` to the streams of the call, if it has
    /// any.
    pub fn run(&self, now: Now, port: Option<&dyn Port>, items: Option<&Arc<dyn ItemPort>>) -> JobDone {
        let id = self.id.call.unwrap_or(CallId { slot: 0, seq: 1 });
        let mut body = Vec::new();
        let (mut has_touched, mut said) = (false, Vec::new());
        let is_cancelled = self.is_cancelled.load(Ordering::Relaxed) && !dropped(Rule::CancelledBegun);
        if is_cancelled || is_late(self.until, now) {
            put(id, ResponseEnd::Refused(Refusal::Late, ""), &mut body);
        } else {
            let cx = Context::slow(self.id.client, now, self.until, &self.is_cancelled, port, items);
            match (self.services.procedure(self.method.0, self.method.1), self.key(&mut said)) {
                (Some(procedure), Ok(key)) => {
                    let cx = cx.with_key(key).by(&self.who);
                    let mut out = ReplyBody::new(&mut body);
                    let is_begun = procedure.run(id, Taking::Payload(&self.payload), &cx, &mut out);
                    has_touched = is_begun && cx.has_touched();
                }
                (Some(procedure), Err(why)) => {
                    let why = format!("what `{}` is to take: {why}", procedure.of.name);
                    put(id, ResponseEnd::Refused(Refusal::Schema, &why), &mut body);
                }
                (None, _) => put(id, ResponseEnd::Refused(Refusal::Schema, NO_METHOD), &mut body),
            }
        }
        JobDone { id: self.id, taken_bytes: self.payload.len(), body, has_touched }
    }
}

/// Says whether a call's time is over.
fn is_late(until: Option<Now>, now: Now) -> bool {
    until.is_some_and(|until| now >= until) && !dropped(Rule::BeginsPastDeadline)
}
