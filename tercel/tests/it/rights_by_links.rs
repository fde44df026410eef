//! Every kind of message by every role, by each link to one server: Unix socket, TCP, shared memory, a line
//! of that, and datagrams.
//!
//! The test's process is of the server's own user, which the host vouches for: it may operate and grant.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tercel::access::{Principal, grant, list};
use tercel::tools::wire::frame::Kind;
use tercel::tools::wire::id::{ClassId, ClientId, OpId, Oref, PageId, Stamp, ViewId};
use tercel::tools::wire::interface::Interface;
use tercel::tools::wire::message::{
    Bind, Commit, CommitEffects, Datagrams, Defined, Lease, Leased, Refusal, Request, Response, ResponseEnd,
    Write as Written,
};
use tercel::{Address, Called, Context, Obj, Object, Ref, Server, interface, service};
use tercel_datagram::{Caller, News, Packets};
use tercel_engine::rpc::Offers;
use tercel_engine::time::Now;
use tercel_testkit::hand::{layout, object};
use tercel_testkit::requests::{Asked as AskedOf, ROLES, Requests, denial, right};
use tercel_testkit::stranger::Stranger;

use crate::common::memory::Memory;

#[service]
trait Asked {
    fn count(&self) -> u64;
}

/// Counts the calls that ran.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicU64>);

impl Asked for Counted {
    fn count(&self, _: &Context<'_>) -> Called<u64> {
        Ok(self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

/// The class of [`layout`].
#[derive(Object)]
struct C {
    n: u32,
}

#[interface]
trait Counts {
    fn count(&mut self) -> u32;
    #[read]
    fn counted(&self) -> u32;
}

impl Counts for C {
    fn count(this: &Obj<C>) -> Called<u32> {
        let n = this.n();
        this.edit()?.set_n(n + 1)?;
        Ok(n)
    }

    fn counted(this: &Obj<C>) -> Called<u32> {
        Ok(this.n())
    }
}

trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

/// A link to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Unix,
    Tcp,
    Memory,
}

/// A server with an object in a page, and a principal with one role.
struct Place {
    _dir: TempDir,
    server: Server,
    socket: PathBuf,
    counted: Counted,
    view: ViewId,
    class: ClassId,
    page: PageId,
    /// A state with the object and the rights.
    visible: Stamp,
    /// The principal of the link that is tried.
    who: Principal,
}

/// All that may change: the space's last state, places granted, rights, calls that ran, and the object.
type State = (u64, u64, usize, u64, u32);

impl Place {
    fn new(link: Link, role: &str) -> Place {
        let dir = tempfile::tempdir().unwrap();
        let (socket, counted) = (dir.path().join("socket"), Counted::default());
        let builder = Server::builder(dir.path().join("space")).listen(Address::Unix(socket.clone()));
        let builder = builder.listen("127.0.0.1:0").listen("udp:127.0.0.1:0").methods(C::METHODS);
        let server = builder.service(Asked::serve(counted.clone())).start().unwrap();
        let who = match link {
            Link::Tcp => Principal::Anyone,
            Link::Unix | Link::Memory => Principal::Uid(rustix::process::geteuid().as_raw()),
        };
        let (view, class, page, visible) = (ViewId::NONE, ClassId(0), PageId::MAX, Stamp::ZERO);
        let mut place = Place { _dir: dir, server, socket, counted, view, class, page, visible, who };
        place.fill();
        for (who, role) in [(right().who, right().role), (place.who.clone(), role.parse().unwrap())] {
            grant(&Address::Unix(place.socket.clone()).into(), None, &who, &role).unwrap();
        }
        place.visible = Stamp(place.state().0);
        place
    }

    /// Makes the object. No right is judged yet.
    fn fill(&mut self) {
        let mut stranger = self.greet(Link::Unix, 5);
        stranger.send(Kind::Define, |out| layout("C").encode(out));
        self.class = Defined::decode(&stranger.read_to(Kind::Defined)).unwrap().class;
        stranger.send(Kind::Lease, |out| Lease { seq: 1, pages: 1, done: vec![] }.encode(out));
        self.page = Leased::decode(&stranger.read_to(Kind::Leased)).unwrap().pages[0];
        self.view = stranger.view;
        let (object, oref) = (object(self.class, 1), Oref::new(self.page, 0).unwrap());
        let (mut bytes, op) = (Vec::new(), OpId { client: ClientId(5), slot: 0, seq: 1, view: self.view });
        let writes = vec![Written { oref, new: true, object: &object }];
        CommitEffects { base: Stamp(self.stat(["visible", "commits"])[0]), reads: vec![], writes }
            .encode(&mut bytes);
        stranger.send(Kind::Commit, |out| Commit { op, parts: 0, bytes: &bytes }.encode(out));
        let is_there = |place: &Place| place.object().is_some();
        crate::common::await_that("the object is there", || is_there(self));
    }

    fn object(&self) -> Option<u32> {
        let oref = Oref::new(self.page, 0).unwrap();
        self.server.run(|tx| Ok(tx.get(Ref::<C>::new(oref))?.n())).ok()
    }

    fn connect(&self, link: Link) -> Box<dyn Stream> {
        let time = Some(Duration::from_secs(10));
        match link {
            Link::Memory => Box::new(Memory::connect(&self.socket)),
            Link::Unix => {
                let stream = UnixStream::connect(&self.socket).unwrap();
                stream.set_read_timeout(time).unwrap();
                Box::new(stream)
            }
            Link::Tcp => {
                let Address::Tcp(at) = &self.server.addresses()[1] else { panic!("no TCP") };
                let stream = TcpStream::connect(at).unwrap();
                stream.set_read_timeout(time).unwrap();
                Box::new(stream)
            }
        }
    }

    fn greet(&self, link: Link, client: u64) -> Stranger<Box<dyn Stream>> {
        Stranger::greet(self.connect(link), client)
    }

    fn stat(&self, names: [&str; 2]) -> [u64; 2] {
        let mut stranger = Stranger::new(self.connect(Link::Unix));
        stranger.send(Kind::Stat, |_| ());
        let text = String::from_utf8(stranger.read_to(Kind::Status)).unwrap();
        names.map(|name| {
            let (_, value) = text.split_once(&format!("\"{name}\":")).unwrap();
            value.split([',', '}']).next().unwrap().parse().unwrap()
        })
    }

    fn state(&self) -> State {
        let [visible, granted] = self.stat(["visible", "pages_granted"]);
        let rights = list(&Address::Unix(self.socket.clone()).into(), None).unwrap();
        let ran = self.counted.0.load(Ordering::SeqCst);
        (visible, granted, rights.all.len(), ran, self.object().unwrap())
    }

    fn requests(&self, client: u64) -> Requests {
        Requests {
            client: ClientId(client),
            view: self.view,
            visible: self.visible,
            class: self.class,
            page: self.page,
            service: Interface::of_service(<dyn Asked as tercel::__private::ServiceInterface>::SCHEMA),
            of_objects: Offers::default().with(C::METHODS).interfaces().next().unwrap().clone(),
            revoked: right(),
        }
    }
}

/// Messages of which the host is asked whether it vouches for the other end: others may be answered before.
fn is_vouched_for(kind: Kind) -> bool {
    let kinds = [Kind::Stat, Kind::Access, Kind::Regroup, Kind::Collect, Kind::Depend, Kind::Transfer];
    kinds.contains(&kind)
}

/// Sends a message behind a greeting, and a question that is always answered. Gives the denial, if one came;
/// the connection may have ended.
fn denied(stranger: &mut Stranger<Box<dyn Stream>>, asked: &AskedOf) -> Option<String> {
    let call = stranger.send(asked.kind, |out| out.extend(&asked.body));
    let ping = stranger.send(Kind::Ping, |_| ());
    let (mut denied, mut is_answered, mut has_pong) = (None, !is_vouched_for(asked.kind), false);
    while !(is_answered && has_pong) {
        let Some((header, body)) = stranger.next_message() else { break };
        denied = denied.or_else(|| denial(header.kind, &body));
        is_answered |= header.call == call;
        has_pong |= header.call == ping;
    }
    denied
}

fn table_by(link: Link) {
    for role in ROLES {
        let place = Place::new(link, role);
        let before = place.state();
        // Refusals end no session.
        let mut stranger = place.greet(link, 6);
        let all = place.requests(6).all();
        let (served, refused): (Vec<_>, Vec<_>) =
            all.into_iter().enumerate().partition(|(_, asked)| asked.is_for(role, true));
        for (i, asked) in refused {
            let denied = denied(&mut stranger, &asked);
            let text = denied.unwrap_or_else(|| panic!("{role} {:?} {i} is served", asked.kind));
            asked.check_words(&place.who.to_string(), &text);
        }
        assert_eq!(place.state(), before, "{role}: something changed");
        for (i, _) in served {
            let client = 100 + i as u64;
            let asked = place.requests(client).all().swap_remove(i);
            let denied = denied(&mut place.greet(link, client), &asked);
            assert_eq!(denied, None, "{role} {:?} {i}", asked.kind);
        }
    }
}

#[test]
fn unix_sockets_judge_every_kind_of_message() {
    table_by(Link::Unix);
}

#[test]
fn tcp_judges_every_kind_of_message() {
    table_by(Link::Tcp);
}

#[test]
fn shared_memory_judges_every_kind_of_message() {
    table_by(Link::Memory);
}

/// The calls of the table, and the role that each needs.
fn calls(place: &Place, client: u64) -> [(Request<'static>, &'static str); 3] {
    let [service, writing, reading] = place.requests(client).calls();
    let reading = Request { method: 1, ..reading };
    [(service, "call Asked"), (writing, "call Counts"), (reading, "call Counts")]
}

/// Says whether a call was let pass. A refusal must name the role, of one that calls something else with the
/// method.
fn is_let_pass(place: &Place, body: &[u8], (role, needed): (&str, &str)) -> bool {
    match Response::decode(body).unwrap().end {
        // A method that does not find all it reads in memory is to come again, as an operation.
        ResponseEnd::Returned(..) | ResponseEnd::Refused(Refusal::Elsewhere, _) => true,
        ResponseEnd::Refused(reason, text) => {
            assert_eq!(reason, Refusal::Denied, "{text}");
            let lacking = if role.starts_with("call ") { format!("{needed}.count") } else { "call`".into() };
            let words = format!("{} lacks the role `{lacking}", place.who);
            assert!(text.contains(&words), "{text}");
            false
        }
        end => panic!("{end:?}"),
    }
}

#[test]
fn lines_judge_every_call() {
    for role in ROLES {
        let place = Place::new(Link::Memory, role);
        for i in 0..3 {
            let before = place.state();
            let mut stranger = Stranger::greet(Memory::connect(&place.socket), 200 + i);
            // It binds what it may: the call comes in a line all the same.
            for interface in [place.requests(6).service, place.requests(6).of_objects] {
                stranger.send(Kind::Bind, |out| Bind { interface }.encode(out));
            }
            let (request, needed) = calls(&place, 200 + i)[i as usize];
            // What writes names a view beside, for which a line has no room.
            if role == needed && i == 1 {
                continue;
            }
            stranger.stream.line(&request).unwrap();
            let body = stranger.read_to(Kind::Response);
            assert_eq!(is_let_pass(&place, &body, (role, needed)), role == needed, "{role} {i}");
            if role != needed {
                assert_eq!(place.state(), before, "{role} {i}: something changed");
            }
        }
    }
}

/// A caller by datagrams.
struct ByDatagram {
    socket: UdpSocket,
    caller: Caller,
    out: Packets<()>,
    begun: Instant,
}

impl ByDatagram {
    /// One whose session names it.
    fn new(place: &Place, seed: u64, session: &mut Stranger<Box<dyn Stream>>) -> ByDatagram {
        let Address::Udp(at) = &place.server.addresses()[2] else { panic!("no datagrams") };
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(at).unwrap();
        let mut out = Packets::default();
        let caller = Caller::new(Now(0), seed, 0, &mut out);
        let connection = caller.incarnation();
        session.send(Kind::Datagrams, |body| Datagrams { connection }.encode(body));
        session.send(Kind::Ping, |_| ());
        session.read_to(Kind::Pong);
        ByDatagram { socket, caller, out, begun: Instant::now() }
    }

    fn send(&mut self) {
        self.out.iter().for_each(|(_, packet)| _ = self.socket.send(packet).unwrap());
        self.out.clear();
    }

    /// Sends a request.
    fn call(&mut self, request: &Request<'_>) {
        // It has no deadline.
        let mut bytes = vec![0; 4];
        request.encode(&mut bytes);
        let now = Now(self.begun.elapsed().as_micros() as u64);
        self.caller.call(now, Arc::new(bytes), &mut self.out).unwrap();
        self.send();
    }

    /// Takes the packets that are there, or waits for the answer.
    fn answer(&mut self, waits: bool) -> Option<Vec<u8>> {
        self.socket.set_nonblocking(!waits).unwrap();
        self.socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let (mut packet, end) = (vec![0; 1 << 16], Instant::now() + Duration::from_secs(10));
        loop {
            let (mut news, now) = (Vec::new(), Now(self.begun.elapsed().as_micros() as u64));
            match self.socket.recv(&mut packet) {
                Ok(n) => self.caller.packet(now, &packet[..n], &mut self.out, &mut news),
                Err(_) if !waits => return None,
                Err(_) => {
                    assert!(Instant::now() < end, "no datagram comes");
                    self.caller.time(now, &mut self.out, &mut news);
                }
            }
            self.send();
            let answer = news.into_iter().find_map(|news| match news {
                News::Answered(_, answer) => Some(answer),
                _ => None,
            });
            if answer.is_some() {
                return answer;
            }
        }
    }
}

/// The answer to a call that is to come as a message.
const BY_MESSAGE: [u8; 1] = [0];

#[test]
fn datagrams_judge_every_call() {
    for role in ROLES {
        // The principal is `anyone`; another one's calls show that the packets before were taken.
        let place = Place::new(Link::Tcp, role);
        let own = Principal::Uid(rustix::process::geteuid().as_raw());
        let servers = Address::Unix(place.socket.clone()).into();
        grant(&servers, None, &own, &"call Asked".parse().unwrap()).unwrap();
        for i in 0..3 {
            let before = place.state();
            let mut session = place.greet(Link::Tcp, 300 + i);
            for interface in [place.requests(6).service, place.requests(6).of_objects] {
                session.send(Kind::Bind, |out| Bind { interface }.encode(out));
            }
            let mut by_datagram = ByDatagram::new(&place, 2 * i + 1, &mut session);
            let (request, needed) = calls(&place, 300 + i)[i as usize];
            by_datagram.call(&request);
            // A client that may call nothing names no connection either, so its packets are nobody's.
            let answer = if role.starts_with("call ") {
                by_datagram.answer(true).unwrap()
            } else {
                let mut others = place.greet(Link::Unix, 400 + i);
                let interface = place.requests(6).service;
                others.send(Kind::Bind, |out| Bind { interface }.encode(out));
                let mut other = ByDatagram::new(&place, 2 * i + 2, &mut others);
                other.call(&calls(&place, 400 + i)[0].0);
                let returned = other.answer(true).unwrap();
                assert!(is_let_pass(&place, &returned, (role, "call Asked")), "{role}: {returned:?}");
                assert_eq!(by_datagram.answer(false), None, "{role}: a packet is answered");
                // That call ran, and no other.
                let (visible, granted, rights, ran, n) = place.state();
                assert_eq!((visible, granted, rights, ran - 1, n), before, "{role}: something changed");
                place.counted.0.fetch_sub(1, Ordering::SeqCst);
                BY_MESSAGE.to_vec()
            };
            // A method that writes is a message anyhow.
            let is_message = role != needed || i == 1;
            assert_eq!(answer == BY_MESSAGE, is_message, "{role} {i}: {answer:?}");
            let body = match is_message {
                false => answer,
                true => {
                    session.send(Kind::Request, |out| request.encode(out));
                    session.read_to(Kind::Response)
                }
            };
            assert_eq!(is_let_pass(&place, &body, (role, needed)), role == needed, "{role} {i}");
            if role != needed {
                assert_eq!(place.state(), before, "{role} {i}: something changed");
            }
        }
    }
}
