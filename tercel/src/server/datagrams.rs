//! Calls over datagrams, at the server.
//!
//! A connection of datagrams counts once a session has named it, over TCP. Packets of others are dropped and
//! leave nothing; so are those that the session's keys have not sealed, if the session is sealed. A call runs
//! as one in a line of shared memory does; one that cannot is to come as a message.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use rustix::net::RecvFlags;
use tercel_datagram::packet::connection;
use tercel_datagram::seal::{CALL_SEAL_BYTES, Seal};
use tercel_datagram::{Answerer, Asked, Limits, Packets};
use tercel_engine::limits;
use tercel_engine::rpc::ReplyBody;
use tercel_engine::schedule::Turns;
use tercel_engine::server::Conn;
use tercel_engine::time::Now;
use tercel_events::DatagramSocket;
use tercel_wire::cursor::le32;
use tercel_wire::id::ClientId;

use super::shared::{Calls, Known};
use crate::channel::InLine;
use crate::datagrams::{self, BODY_AT, BY_MESSAGE, DATAGRAM_BYTES};

/// The sockets for datagrams of a server.
pub(super) struct Datagrams {
    sockets: Vec<Socket>,
    /// The sessions that have named a connection, by its name.
    named: HashMap<u64, Named>,
    /// The names that a session has given, so that no two seals have one secret.
    given: HashMap<Conn, HashSet<u64>>,
    buffer: Box<[u8]>,
    /// Room for a packet that is opened.
    opened: Vec<u8>,
}

/// A connection of datagrams that a session has named.
struct Named {
    conn: Conn,
    client: Known,
    /// The seal of its packets, if the session is sealed.
    seal: Option<Box<Seal>>,
}

struct Socket {
    socket: DatagramSocket,
    answerer: Answerer,
    out: Packets<SocketAddr>,
    /// Packets as they are sent, where those are sealed.
    sealed: Packets<SocketAddr>,
    asked: Vec<Asked>,
    /// More may have come than was taken.
    is_ready: bool,
}

/// Names of a session, at most. A client gives another one after datagrams have failed for five seconds.
const NAMES_MAX: usize = 4_096;

/// Silence after which a connection gives its place to another, in microseconds.
const IDLE_US: u64 = 10_000_000;

impl Datagrams {
    /// The server's, of sockets that are bound. The packets of sessions are sealed, if those are.
    pub(super) fn new(sockets: Vec<UdpSocket>, seals: bool) -> Datagrams {
        let sockets = sockets.into_iter().map(|socket| {
            let socket = datagrams::prepare(socket);
            let limits = Limits {
                connections: limits::DATAGRAM_CONNECTIONS_MAX,
                request_bytes: limits::DATAGRAM_CALL_MAX as u32,
                pending_bytes: limits::DATAGRAM_PENDING_BYTES_MAX,
                answer_bytes: limits::CALL_MAX,
                seal_bytes: if seals { CALL_SEAL_BYTES as u16 } else { 0 },
                idle_us: IDLE_US,
            };
            let keys = RandomState::new();
            let cookie = move |from: SocketAddr, connection: u64| keys.hash_one((from, connection));
            let answerer = Answerer::new(limits, Box::new(cookie));
            let (out, sealed, asked) = (Packets::default(), Packets::default(), Vec::new());
            Socket { socket, answerer, out, sealed, asked, is_ready: true }
        });
        let sockets: Vec<Socket> = sockets.collect();
        let buffer = if sockets.is_empty() { Box::default() } else { vec![0; DATAGRAM_BYTES].into() };
        Datagrams { sockets, named: HashMap::new(), given: HashMap::new(), buffer, opened: Vec::new() }
    }

    /// Copies of the sockets, to be watched.
    pub(super) fn watched(&self) -> io::Result<Vec<UdpSocket>> {
        self.sockets.iter().map(|at| at.socket.socket().try_clone()).collect()
    }

    /// A session's client names its connection, whose packets are sealed if there is a seal. A name that
    /// another session has taken is no secret.
    pub(super) fn name(
        &mut self,
        (conn, client): (Conn, ClientId),
        connection: u64,
        seal: Option<Box<Seal>>,
    ) {
        if self.sockets.is_empty() || self.named.contains_key(&connection) {
            return;
        }
        let given = self.given.entry(conn).or_default();
        if given.len() >= NAMES_MAX || !given.insert(connection) {
            return;
        }
        self.forget_names(conn);
        self.named.insert(connection, Named { conn, client: Known { client, place: 0 }, seal });
    }

    /// A session has ended.
    pub(super) fn forget(&mut self, conn: Conn) {
        self.given.remove(&conn);
        self.forget_names(conn);
    }

    fn forget_names(&mut self, conn: Conn) {
        let Datagrams { sockets, named, .. } = self;
        named.retain(|connection, of| {
            if of.conn == conn {
                sockets.iter_mut().for_each(|at| at.answerer.forget(*connection));
            }
            of.conn != conn
        });
    }

    /// Packets have come to a socket.
    pub(super) fn is_readable(&mut self, at: usize) {
        if let Some(at) = self.sockets.get_mut(at) {
            at.is_ready = true;
        }
    }

    /// Says whether packets may be there.
    pub(super) fn is_ready(&self) -> bool {
        self.sockets.iter().any(|at| at.is_ready)
    }

    /// Takes packets that have come, as far as their turn goes, and serves the calls that are whole.
    pub(super) fn serve(&mut self, turns: &mut Turns, clock: impl Fn() -> Now, calls: &mut dyn Calls) {
        if !self.is_ready() {
            return;
        }
        let Datagrams { sockets, named, buffer, opened, .. } = self;
        let now = clock();
        turns.begin_datagrams(now, sockets.len());
        while let Some(at) = turns.next_socket(|at| sockets[at].is_ready, &clock) {
            let at = &mut sockets[at];
            match datagrams::receive(&at.socket, RecvFlags::DONTWAIT, buffer) {
                Ok(Some(came)) => {
                    let Some(from) = came.from() else { continue };
                    for packet in came.packets() {
                        if let Some(packet) = named_packet(named, packet, opened) {
                            at.answerer.packet(now, from, packet, &mut at.out, &mut at.asked);
                        }
                    }
                    at.answer(now, named, calls);
                }
                Ok(None) => at.is_ready = false,
                // It reports a packet that was sent before, which its receiver did not take.
                Err(_) => {}
            }
        }
    }
}

/// A packet of a connection that a session has named, opened if it is sealed.
fn named_packet<'r>(
    named: &mut HashMap<u64, Named>,
    packet: &'r [u8],
    room: &'r mut Vec<u8>,
) -> Option<&'r [u8]> {
    let name = connection(packet)?;
    match &mut named.get_mut(&name)?.seal {
        None => Some(packet),
        // Who may use one connection may not speak in another.
        Some(seal) => seal.open(packet, room).filter(|packet| connection(packet) == Some(name)),
    }
}

impl Socket {
    /// Runs the calls that have come, and sends what is to be sent.
    fn answer(&mut self, now: Now, named: &mut HashMap<u64, Named>, calls: &mut dyn Calls) {
        let Socket { socket, answerer, out, sealed, asked, .. } = self;
        for asked in asked.drain(..) {
            let Asked::Request(connection, exchange, request) = asked else { continue };
            let mut body = Vec::new();
            let is_served = match (named.get_mut(&connection), request.get(BODY_AT..)) {
                (Some(Named { client, .. }), Some(rest)) => {
                    let call = InLine { left_us: le32(&request, 0), body: rest };
                    calls.serve(client, call, &mut ReplyBody::new(&mut body))
                }
                _ => false,
            };
            if !is_served {
                body = BY_MESSAGE.to_vec();
            }
            answerer.answer(now, connection, exchange, Arc::new(body), out);
        }
        for (to, packet) in out.iter() {
            let of = connection(packet).and_then(|name| named.get_mut(&name));
            sealed.packet(*to, |bytes| match of {
                Some(Named { seal: Some(seal), .. }) => seal.seal(packet, bytes),
                Some(Named { seal: None, .. }) => bytes.extend_from_slice(packet),
                // Nobody's packet is sent in plain words.
                None => {}
            });
        }
        out.clear();
        datagrams::send(socket, sealed, |to| Some(*to));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tercel_datagram::packet::{Body, Head, Report, encode};
    use tercel_datagram::{Caller, News};
    use tercel_machine::random::Random;

    use super::*;
    use crate::channel::Large;

    /// Answers each call with the number of calls so far.
    #[derive(Default)]
    struct Counted(u32);

    impl Calls for Counted {
        fn client_of(&self, _: Conn) -> Option<ClientId> {
            None
        }

        fn serve(&mut self, _: &mut Known, _: InLine<'_>, out: &mut ReplyBody<'_>) -> bool {
            self.0 += 1;
            out.bytes().extend(self.0.to_le_bytes());
            true
        }

        fn serve_in_place(&mut self, _: &mut Known, _: &Large<'_, '_>, _: &mut ReplyBody<'_>) -> bool {
            false
        }
    }

    /// A server, and a client of it whose packets are recorded.
    struct World {
        server: Datagrams,
        turns: Turns,
        counted: Counted,
        client: UdpSocket,
        caller: Caller,
        out: Packets<()>,
        recorded: Vec<Vec<u8>>,
        now: Now,
    }

    impl World {
        fn serve(&mut self) {
            self.server.is_readable(0);
            while self.server.is_ready() {
                let now = self.now;
                self.server.serve(&mut self.turns, || now, &mut self.counted);
            }
        }

        /// Makes a call, and gives what it was answered.
        fn call(&mut self) -> Vec<u8> {
            self.caller.call(self.now, Arc::new(vec![3; 40]), &mut self.out).unwrap();
            let mut news = Vec::new();
            loop {
                for (_, packet) in std::mem::take(&mut self.out).iter() {
                    self.recorded.push(packet.to_vec());
                    self.client.send(packet).unwrap();
                }
                self.serve();
                let mut came = [0; 2_000];
                while let Ok(bytes) = self.client.recv(&mut came) {
                    self.caller.packet(self.now, &came[..bytes], &mut self.out, &mut news);
                }
                self.now = self.now.plus_us(1_000);
                self.caller.time(self.now, &mut self.out, &mut news);
                assert!(!news.contains(&News::Lost), "the connection is lost");
                if let Some(News::Answered(_, answer)) =
                    news.drain(..).find(|news| matches!(news, News::Answered(..)))
                {
                    return answer;
                }
            }
        }
    }

    #[test]
    fn hundred_thousand_strangers_leave_no_state() {
        const STRANGERS: u32 = 100_000;
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = socket.local_addr().unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(at).unwrap();
        client.set_nonblocking(true).unwrap();
        let (mut server, mut out) = (Datagrams::new(vec![socket], false), Packets::default());
        let caller = Caller::new(Now(1), 7, 0, &mut out);
        let name = caller.incarnation();
        server.name((Conn(1), ClientId(5)), name, None);
        let (turns, counted, recorded) = (Turns::default(), Counted::default(), Vec::new());
        let mut world = World { server, turns, counted, client, caller, out, recorded, now: Now(1) };
        let (mut random, mut calls) = (Random::new(1), 0_u32);
        for n in 0..STRANGERS {
            if n % 1_000 == 0 {
                calls += 1;
                assert_eq!(world.call(), calls.to_le_bytes(), "before stranger {n}");
            }
            // Each has an address of its own.
            let address = Ipv4Addr::new(127, 1 + (n >> 16) as u8, (n >> 8) as u8, n as u8);
            let stranger = UdpSocket::bind((address, 0)).unwrap();
            let mut packet = vec![0; random.index(100)];
            packet.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
            let report = Report { number: n, granted: u32::MAX, end: 1 << 30, missing: vec![(0, 1 << 29)] };
            let head = Head { incarnation: name, exchange: calls.into(), ..Head::default() };
            let forged = (head, Body::Report(report));
            match n % 5 {
                0 => packet.clone_from(random.pick(&world.recorded)),
                1 | 2 => {
                    packet.clear();
                    encode(&forged.0, &forged.1, &mut packet);
                }
                3 => {
                    packet.clear();
                    let unnamed = Head { incarnation: random.next_u64(), ..Head::default() };
                    encode(&unnamed, &Body::Open { cookie: random.next_u64() }, &mut packet);
                }
                _ => {}
            }
            // A packet with the client's own address forged comes from its socket here.
            let from = if n % 5 == 2 { world.client.try_clone().unwrap() } else { stranger };
            from.send_to(&packet, at).unwrap();
            if n % 100 == 0 {
                world.serve();
            }
        }
        world.serve();
        assert_eq!(world.call(), (calls + 1).to_le_bytes());
        assert_eq!(world.server.sockets[0].answerer.connections(), 1);
        assert_eq!((world.server.named.len(), world.counted.0), (1, calls + 1));
    }
}
