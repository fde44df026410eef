//! Clients and origins on one event queue, and the exchanges between them.
//!
//! An exchange waits for one side, the client or the origin; both have a deadline, moved by whatever
//! comes, and the deadline of the side that is waited for ends the exchange. A side whose bytes the other
//! does not take is ignored for a while: it keeps its place in the queue, and its bytes stay in the
//! kernel.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType};
use tercel_events::{Event, EventQueue, Kind, Priority, Token, Watch};

use crate::http::{self, Asked, Body, Refusal, Request};
use crate::slab::Slab;

/// Bounds of a proxy.
#[derive(Debug, Clone)]
pub struct Config {
    pub clients_max: usize,
    /// Events of a batch.
    pub array_max: usize,
    /// Time for which a connection may be silent between two requests.
    pub idle: Duration,
    /// Time in which the head of a request must be whole.
    pub head: Duration,
    /// Time in which something must come in an exchange.
    pub exchange: Duration,
    /// The same in a tunnel.
    pub tunnel: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            clients_max: 8_192,
            array_max: 64,
            idle: Duration::from_secs(60),
            head: Duration::from_secs(10),
            exchange: Duration::from_secs(30),
            tunnel: Duration::from_secs(300),
        }
    }
}

/// A proxy, for the thread that opened it.
pub struct Proxy {
    queue: EventQueue,
    batch: Vec<Event>,
    listener: Token,
    config: Config,
    clients: Slab<Client>,
    origins: Slab<Origin>,
    /// Connections to origins that no exchange has.
    kept: HashMap<SocketAddr, Vec<usize>>,
    kept_count: usize,
    now: Instant,
}

/// A side of an exchange.
struct Side {
    token: Token,
    /// Received and not yet used.
    input: Vec<u8>,
    body: Body,
    /// Set while the bytes of the side stay in the kernel.
    paused: bool,
    /// Set once the peer sends no more.
    ended: bool,
    /// Nothing more is sent to its peer once what is queued has left.
    ending: bool,
}

struct Client {
    side: Side,
    stage: Stage,
    asked: Asked,
    origin: Option<usize>,
    /// The request, to be sent again if a kept connection turns out to be closed.
    again: Option<Vec<u8>>,
    /// A part of the answer has left.
    answered: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The next request has not begun, or its head is not whole.
    Head,
    /// The body comes.
    Body,
    /// The request is whole; the answer is not.
    Answer,
    Tunnel,
    /// The last bytes are on their way to it.
    Closing,
}

struct Origin {
    side: Side,
    address: SocketAddr,
    step: Step,
    client: usize,
    /// The connection has served before.
    reused: bool,
    keeps: bool,
    /// A tunnel's watch over its connecting.
    watch: Option<Token>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Kept,
    Connecting,
    Head,
    Body,
    Tunnel,
}

impl Proxy {
    /// Listens.
    pub fn open(listener: TcpListener, config: Config) -> io::Result<Proxy> {
        let sources_max = 3 * config.clients_max + KEPT_MAX + 1;
        // Each time that all queued bytes have left is told.
        let of_queue = tercel_events::Config {
            sources_max,
            buffer_bytes: BUFFER_BYTES,
            write_mark_bytes: 0,
            ..tercel_events::Config::default()
        };
        let mut queue = EventQueue::open(of_queue).map_err(io::Error::other)?;
        rustix::net::listen(&listener, BACKLOG)?;
        let listener = queue.declare_listener(listener, 0).map_err(io::Error::other)?;
        // Connections that are served come before new ones: a flood of those is shed at the door.
        queue.set_priority(listener, Priority::Low);
        Ok(Proxy {
            queue,
            batch: Vec::new(),
            listener,
            config,
            clients: Slab::new(),
            origins: Slab::new(),
            kept: HashMap::new(),
            kept_count: 0,
            now: Instant::now(),
        })
    }

    /// Waits until the deadline and handles a batch.
    pub fn turn(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        let mut batch = std::mem::take(&mut self.batch);
        self.queue.get_next_events(&mut batch, self.config.array_max, deadline)?;
        self.now = Instant::now();
        let handled = batch.drain(..).try_for_each(|event| self.handle(event));
        self.batch = batch;
        handled
    }

    fn handle(&mut self, event: Event) -> io::Result<()> {
        let place = (event.key / 2) as usize;
        if event.token == self.listener {
            return self.accepted(event.kind);
        }
        // An event of this batch may be of a source that an earlier one has ended.
        if event.key.is_multiple_of(2) {
            if self.clients.get(place).is_some_and(|client| client.side.token == event.token) {
                self.of_client(place, event.kind);
            }
        } else if let Some(origin) = self.origins.get_mut(place) {
            if origin.side.token == event.token {
                self.of_origin(place, event.kind);
            } else if origin.watch == Some(event.token) {
                origin.watch = None;
                self.queue.revoke(event.token);
                self.establish(place);
            }
        }
        Ok(())
    }

    fn accepted(&mut self, kind: Kind) -> io::Result<()> {
        match kind {
            Kind::Accepted { stream, .. } => {
                let side = Side::new(stream);
                let stage = Stage::Head;
                let asked = Asked::default();
                let client = Client { side, stage, asked, origin: None, again: None, answered: false };
                let place = self.clients.insert(client);
                self.queue.set_key(stream, place as u64 * 2);
                self.queue.set_deadline(stream, self.now + self.config.idle);
                if self.clients.len() >= self.config.clients_max {
                    self.queue.pause(self.listener);
                }
                Ok(())
            }
            Kind::Closed(reason) => Err(io::Error::other(reason.to_string())),
            _ => Ok(()),
        }
    }

    fn of_client(&mut self, place: usize, kind: Kind) {
        let Some(client) = self.clients.get_mut(place) else { return };
        match kind {
            // A client that was told the end has nothing more to say.
            Kind::Received(_) if client.stage == Stage::Closing => {}
            Kind::Received(bytes) => {
                client.side.fill(&mut self.queue, &bytes);
                drop(bytes);
                self.touch(place);
                self.go_on(place);
            }
            Kind::EndOfStream => self.client_ended(place),
            Kind::Drained => {
                client.side.drained(&mut self.queue);
                if client.stage == Stage::Closing {
                    self.queue.set_deadline(client.side.token, self.now + LINGER);
                }
                if let Some(origin) = client.origin.and_then(|origin| self.origins.get_mut(origin)) {
                    origin.side.resume(&mut self.queue);
                    self.touch(place);
                }
            }
            Kind::Timer => self.client_is_late(place),
            Kind::Closed(_) => self.drop_client(place),
            _ => {}
        }
    }

    fn of_origin(&mut self, place: usize, kind: Kind) {
        let Some(origin) = self.origins.get_mut(place) else { return };
        let client = origin.client;
        match kind {
            // Nothing was asked.
            Kind::Received(_) if origin.step == Step::Kept => self.drop_origin(place),
            Kind::Received(bytes) => {
                origin.side.fill(&mut self.queue, &bytes);
                drop(bytes);
                self.touch(client);
                self.answer(place);
            }
            Kind::EndOfStream => self.origin_ended(place, true),
            Kind::Closed(_) => self.origin_ended(place, false),
            Kind::Drained => {
                origin.side.drained(&mut self.queue);
                if origin.step == Step::Kept {
                    return;
                }
                if let Some(client) = self.clients.get_mut(client)
                    && matches!(client.stage, Stage::Body | Stage::Tunnel)
                {
                    client.side.resume(&mut self.queue);
                }
                self.touch(client);
            }
            Kind::Timer => self.origin_is_late(place),
            _ => {}
        }
    }

    /// Moves the deadlines of both sides of an exchange: something has come.
    fn touch(&mut self, place: usize) {
        let Some(client) = self.clients.get(place) else { return };
        let Some(origin) = client.origin.and_then(|origin| self.origins.get(origin)) else { return };
        let time = if client.stage == Stage::Tunnel { self.config.tunnel } else { self.config.exchange };
        for token in [client.side.token, origin.side.token] {
            self.queue.set_deadline(token, self.now + time);
        }
    }

    /// Uses what a client has sent.
    fn go_on(&mut self, place: usize) {
        while let Some(client) = self.clients.get_mut(place)
            && !client.side.input.is_empty()
        {
            match client.stage {
                Stage::Head => match http::request(&client.side.input) {
                    Ok(Some(request)) => {
                        client.side.split(request.bytes);
                        self.begin(place, request);
                    }
                    Ok(None) if client.side.ended => break,
                    Ok(None) => {
                        // From its first byte on, however slowly the others come.
                        if !std::mem::replace(&mut client.answered, true) {
                            self.queue.set_deadline(client.side.token, self.now + self.config.head);
                        }
                        return;
                    }
                    Err(refusal) => return self.refuse(place, refusal),
                },
                Stage::Body => {
                    let Some((bytes, is_over)) = client.side.body.take(&client.side.input) else {
                        return self.refuse(place, Refusal(400, "the body of the request is malformed"));
                    };
                    let part = client.side.split(bytes);
                    if is_over {
                        client.stage = Stage::Answer;
                        client.side.pause(&mut self.queue);
                    }
                    self.pass_to_origin(place, part);
                }
                Stage::Tunnel => {
                    let part = std::mem::take(&mut client.side.input);
                    self.pass_to_origin(place, part);
                }
                Stage::Answer | Stage::Closing => return,
            }
        }
        if let Some(client) = self.clients.get(place)
            && client.side.ended
            && matches!(client.stage, Stage::Head | Stage::Body)
        {
            self.refuse(place, Refusal(400, EARLY_END));
        }
    }

    fn pass_to_origin(&mut self, place: usize, part: Vec<u8>) {
        let Some(client) = self.clients.get_mut(place) else { return };
        let Some(origin) = client.origin.and_then(|origin| self.origins.get(origin)) else { return };
        if !pass(&mut self.queue, part, origin.side.token, &mut client.side) {
            self.cut(place);
        }
    }

    fn pass_to_client(&mut self, origin: usize, part: Vec<u8>) {
        let Some(Origin { side, client: place, .. }) = self.origins.get_mut(origin) else { return };
        let (Some(client), place) = (self.clients.get(*place), *place) else { return };
        if !pass(&mut self.queue, part, client.side.token, side) {
            self.cut(place);
        }
    }

    /// Begins an exchange.
    fn begin(&mut self, place: usize, request: Request) {
        let default = (!request.tunnel).then_some(80);
        let Some(address) = resolve(&request.authority, default) else {
            return self
                .refuse(place, Refusal(502, "no names are resolved here: ask for an IP address and a port"));
        };
        let kept = if request.tunnel { None } else { self.take_kept(address, place) };
        let step = if request.tunnel { Step::Connecting } else { Step::Head };
        let again = (kept.is_some() && request.repeatable).then(|| request.forward.clone());
        let origin = match kept.map_or_else(|| self.connect(address, place, step), Ok) {
            Ok(origin) => origin,
            Err(refusal) => return self.refuse(place, refusal),
        };
        let Some(client) = self.clients.get_mut(place) else { return };
        (client.origin, client.again, client.asked, client.answered) =
            (Some(origin), again, request.asked, false);
        client.side.body = request.body;
        client.stage = if request.body.is_empty() { Stage::Answer } else { Stage::Body };
        if client.stage == Stage::Answer {
            // The next request, and early bytes for a tunnel, wait until it is their turn.
            client.side.pause(&mut self.queue);
        }
        self.touch(place);
        if request.tunnel {
            self.establish(origin);
        } else {
            self.pass_to_origin(place, request.forward);
        }
    }

    fn take_kept(&mut self, address: SocketAddr, client: usize) -> Option<usize> {
        let kept = self.kept.get_mut(&address)?;
        let place = kept.pop()?;
        if kept.is_empty() {
            self.kept.remove(&address);
        }
        self.kept_count -= 1;
        let origin = self.origins.get_mut(place)?;
        (origin.step, origin.client, origin.reused) = (Step::Head, client, true);
        Some(place)
    }

    fn connect(&mut self, address: SocketAddr, client: usize, step: Step) -> Result<usize, Refusal> {
        let socket = connecting(address).map_err(|e| match e {
            Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => Refusal(503, "the proxy is full"),
            _ => Refusal(502, "the origin cannot be reached"),
        })?;
        let key = self.origins.next() as u64 * 2 + 1;
        let token = self.queue.declare_stream(socket, key).map_err(|_| Refusal(503, "the proxy is full"))?;
        let side = Side::new(token);
        Ok(self.origins.insert(Origin {
            side,
            address,
            step,
            client,
            reused: false,
            keeps: false,
            watch: None,
        }))
    }

    /// Opens a tunnel if its connection is there; else watches for that, once.
    fn establish(&mut self, place: usize) {
        let Some(origin) = self.origins.get_mut(place) else { return };
        let state = self.queue.readiness(origin.side.token).unwrap_or_default();
        // The origin's stream reports its own failure.
        if origin.step != Step::Connecting || state.hung_up {
            return;
        }
        let client = origin.client;
        if state.writable {
            origin.step = Step::Tunnel;
            self.pass_to_client(place, b"HTTP/1.1 200 Connection established\r\n\r\n".to_vec());
            if let Some(client) = self.clients.get_mut(client) {
                (client.stage, client.answered) = (Stage::Tunnel, true);
                client.side.resume(&mut self.queue);
            }
            self.touch(client);
            self.go_on(client);
            // It may have ended its side while the connection was made.
            let has_ended =
                self.clients.get(client).is_some_and(|c| c.stage == Stage::Tunnel && c.side.ended);
            if let Some(origin) = self.origins.get_mut(place).filter(|_| has_ended) {
                origin.side.end(&mut self.queue);
            }
            return;
        }
        let key = place as u64 * 2 + 1;
        let fd = self.queue.fd(origin.side.token).map(|fd| fd.try_clone_to_owned());
        origin.watch = match fd {
            Some(Ok(fd)) => self.queue.declare_fd(fd, Watch::Write, key).ok(),
            _ => None,
        };
        if origin.watch.is_none() {
            self.refuse(client, Refusal(503, "the proxy is full"));
        }
    }

    /// Uses what an origin has sent.
    fn answer(&mut self, place: usize) {
        while let Some(origin) = self.origins.get_mut(place)
            && !origin.side.input.is_empty()
        {
            let Some(client) = self.clients.get_mut(origin.client) else { return };
            match origin.step {
                Step::Head => match http::answer(&origin.side.input, client.asked) {
                    Ok(Some(answer)) => {
                        origin.side.split(answer.bytes);
                        client.again = None;
                        if answer.is_interim {
                            if !client.asked.is_old {
                                self.pass_to_client(place, answer.forward);
                            }
                            continue;
                        }
                        (client.answered, client.asked.keeps) = (true, answer.client_keeps);
                        (origin.keeps, origin.side.body, origin.step) =
                            (answer.keeps, answer.body, Step::Body);
                        self.pass_to_client(place, answer.forward);
                        if answer.body.is_empty() {
                            return self.finish(place);
                        }
                    }
                    Ok(None) => return,
                    Err(refusal) => {
                        let client = origin.client;
                        return self.refuse(client, refusal);
                    }
                },
                Step::Body => {
                    let client = origin.client;
                    let Some((bytes, is_over)) = origin.side.body.take(&origin.side.input) else {
                        return self.cut(client);
                    };
                    let part = origin.side.split(bytes);
                    self.pass_to_client(place, part);
                    if is_over {
                        return self.finish(place);
                    }
                }
                Step::Tunnel => {
                    let part = std::mem::take(&mut origin.side.input);
                    self.pass_to_client(place, part);
                }
                Step::Kept | Step::Connecting => return,
            }
        }
    }

    /// Ends an exchange whose answer is whole. Both connections go on if both sides want that.
    fn finish(&mut self, place: usize) {
        let Some(origin) = self.origins.get_mut(place) else { return };
        let (number, address) = (origin.client, origin.address);
        let Some(client) = self.clients.get_mut(number) else { return };
        client.origin = None;
        let is_whole = client.stage == Stage::Answer;
        if is_whole && origin.keeps && origin.side.input.is_empty() && self.kept_count < KEPT_MAX {
            origin.step = Step::Kept;
            origin.side.resume(&mut self.queue);
            self.queue.set_deadline(origin.side.token, self.now + self.config.idle);
            self.kept.entry(address).or_default().push(place);
            self.kept_count += 1;
        } else {
            self.drop_origin(place);
        }
        let Some(client) = self.clients.get_mut(number) else { return };
        if !is_whole || !client.asked.keeps || client.side.ended && client.side.input.is_empty() {
            return self.close(number);
        }
        (client.stage, client.answered) = (Stage::Head, false);
        client.side.resume(&mut self.queue);
        self.queue.set_deadline(client.side.token, self.now + self.config.idle);
        self.go_on(number);
    }

    fn client_ended(&mut self, place: usize) {
        let Some(client) = self.clients.get_mut(place) else { return };
        client.side.ended = true;
        match client.stage {
            Stage::Head if client.side.input.is_empty() => self.let_go(place),
            Stage::Head | Stage::Body => self.refuse(place, Refusal(400, EARLY_END)),
            Stage::Answer => {}
            Stage::Closing => self.let_go(place),
            Stage::Tunnel => {
                let Some(origin) = client.origin.and_then(|origin| self.origins.get_mut(origin)) else {
                    return;
                };
                match origin.side.ended {
                    true => self.let_go(place),
                    false => origin.side.end(&mut self.queue),
                }
            }
        }
    }

    fn origin_ended(&mut self, place: usize, cleanly: bool) {
        let Some(origin) = self.origins.get_mut(place) else { return };
        let number = origin.client;
        origin.side.ended = true;
        match origin.step {
            Step::Kept => self.drop_origin(place),
            Step::Head => self.ask_again(place),
            Step::Connecting => self.refuse(number, Refusal(502, "the origin cannot be reached")),
            Step::Body if cleanly && origin.side.body == Body::UntilClose => self.finish(place),
            Step::Tunnel if cleanly => {
                let Some(client) = self.clients.get_mut(number) else { return };
                match client.side.ended {
                    true => self.let_go(number),
                    false => client.side.end(&mut self.queue),
                }
            }
            Step::Body | Step::Tunnel => self.cut(number),
        }
    }

    /// An origin has closed before it answered. Over a kept connection it may have done so before it saw the
    /// request, which is then sent once more, over a new one.
    fn ask_again(&mut self, place: usize) {
        let Some(Origin { address, client: number, side, .. }) = self.origins.get(place) else { return };
        let (address, number, has_begun) = (*address, *number, !side.input.is_empty());
        let again = self.clients.get_mut(number).and_then(|client| client.again.take());
        let Some(request) = again.filter(|_| !has_begun) else {
            return self.refuse(number, Refusal(502, "the origin closed the connection without an answer"));
        };
        self.drop_origin(place);
        match self.connect(address, number, Step::Head) {
            Ok(origin) => {
                if let Some(client) = self.clients.get_mut(number) {
                    client.origin = Some(origin);
                }
                self.touch(number);
                self.pass_to_origin(number, request);
            }
            Err(refusal) => self.refuse(number, refusal),
        }
    }

    fn client_is_late(&mut self, place: usize) {
        let Some(client) = self.clients.get(place) else { return };
        let origin = client.origin.and_then(|origin| self.origins.get(origin));
        match client.stage {
            Stage::Head if client.side.input.is_empty() => self.let_go(place),
            Stage::Body if !client.side.paused => {
                self.refuse(place, Refusal(408, "the request came too slowly"))
            }
            Stage::Head => self.refuse(place, Refusal(408, "the request came too slowly")),
            Stage::Body | Stage::Answer if origin.is_some_and(|origin| origin.side.paused) => self.cut(place),
            Stage::Body | Stage::Answer => {}
            Stage::Tunnel => self.cut(place),
            Stage::Closing => self.drop_client(place),
        }
    }

    fn origin_is_late(&mut self, place: usize) {
        let Some(origin) = self.origins.get(place) else { return };
        let number = origin.client;
        let waits_for_client = origin.side.paused
            || self.clients.get(number).is_some_and(|c| c.stage == Stage::Body && !c.side.paused);
        match origin.step {
            Step::Kept => self.drop_origin(place),
            Step::Tunnel => self.cut(number),
            _ if waits_for_client => {}
            _ => self.refuse(number, Refusal(504, "the origin took too long")),
        }
    }

    /// Ends a client's exchange with an answer of the proxy's own; if a part of another has left, by a reset.
    fn refuse(&mut self, place: usize, refusal: Refusal) {
        let Some(client) = self.clients.get_mut(place) else { return };
        if client.answered && client.stage != Stage::Head {
            return self.cut(place);
        }
        // If the stream is gone, its event follows.
        let _ = self.queue.send(client.side.token, http::refusal(refusal));
        self.close(place);
    }

    /// Tells a client the end, and takes what it still says for a while: a close before that would be a
    /// reset, which may overtake the answer.
    fn close(&mut self, place: usize) {
        let Some(client) = self.clients.get_mut(place) else { return };
        client.stage = Stage::Closing;
        let origin = client.origin.take();
        if client.side.ended {
            self.let_go(place);
        } else {
            client.side.end(&mut self.queue);
            client.side.resume(&mut self.queue);
            // A slow reader gets the time of an exchange for its last bytes.
            let time = if client.side.ending { self.config.exchange } else { LINGER };
            self.queue.set_deadline(client.side.token, self.now + time);
        }
        if let Some(origin) = origin {
            self.drop_origin(origin);
        }
    }

    /// Ends a client by a reset: it must not take a part of an answer for the whole.
    fn cut(&mut self, place: usize) {
        if let Some(fd) = self.clients.get(place).and_then(|client| self.queue.fd(client.side.token)) {
            let _ = rustix::net::sockopt::set_socket_linger(fd, Some(Duration::ZERO));
        }
        self.drop_client(place);
    }

    /// Forgets a client, and the origin of a tunnel, once what is queued to them has been sent.
    fn let_go(&mut self, place: usize) {
        let Some(client) = self.clients.get(place) else { return };
        let origin = client.origin.and_then(|origin| self.origins.get(origin));
        for side in [Some(&client.side), origin.map(|origin| &origin.side)].into_iter().flatten() {
            self.queue.finish(side.token);
        }
        self.drop_client(place);
    }

    fn drop_client(&mut self, place: usize) {
        let Some(client) = self.clients.remove(place) else { return };
        self.queue.revoke(client.side.token);
        if let Some(origin) = client.origin {
            self.drop_origin(origin);
        }
        if self.clients.len() + 1 == self.config.clients_max {
            self.queue.resume(self.listener);
        }
    }

    fn drop_origin(&mut self, place: usize) {
        let Some(origin) = self.origins.remove(place) else { return };
        self.queue.revoke(origin.side.token);
        if let Some(watch) = origin.watch {
            self.queue.revoke(watch);
        }
        if origin.step == Step::Kept
            && let Some(kept) = self.kept.get_mut(&origin.address)
        {
            kept.retain(|&other| other != place);
            self.kept_count -= 1;
            if kept.is_empty() {
                self.kept.remove(&origin.address);
            }
        }
    }
}

impl Side {
    fn new(token: Token) -> Side {
        let (input, body) = (Vec::new(), Body::Length(0));
        Side { token, input, body, paused: false, ended: false, ending: false }
    }

    fn fill(&mut self, queue: &mut EventQueue, bytes: &[u8]) {
        if self.input.is_empty() {
            self.input = queue.spare_buffer();
        }
        self.input.extend_from_slice(bytes);
    }

    /// Takes the first bytes of the input out of it. A side without input holds no memory.
    fn split(&mut self, bytes: usize) -> Vec<u8> {
        let rest = match bytes == self.input.len() {
            true => Vec::new(),
            false => self.input.split_off(bytes),
        };
        std::mem::replace(&mut self.input, rest)
    }

    fn pause(&mut self, queue: &mut EventQueue) {
        self.paused = true;
        queue.pause(self.token);
    }

    fn resume(&mut self, queue: &mut EventQueue) {
        if std::mem::take(&mut self.paused) {
            queue.resume(self.token);
        }
    }

    /// Says to the peer that nothing more comes, as soon as what is queued has left.
    fn end(&mut self, queue: &mut EventQueue) {
        queue.flush();
        self.ending = queue.unsent_bytes(self.token).is_some_and(|bytes| bytes > 0);
        if !self.ending
            && let Some(fd) = queue.fd(self.token)
        {
            let _ = rustix::net::shutdown(fd, Shutdown::Write);
        }
    }

    fn drained(&mut self, queue: &mut EventQueue) {
        if self.ending {
            self.end(queue);
        }
    }
}

/// Sends bytes on. The side that they come from is paused while the other does not take them. Says whether
/// the queue took them.
fn pass(queue: &mut EventQueue, bytes: Vec<u8>, to: Token, from: &mut Side) -> bool {
    // Where the stream is gone, its event follows.
    if let Err(tercel_events::SendError::Full(_)) = queue.send(to, bytes) {
        return false;
    }
    let is_full = |queue: &EventQueue| queue.unsent_bytes(to).is_some_and(|bytes| bytes > UNSENT_BYTES_MAX);
    if is_full(queue) {
        queue.flush();
        if is_full(queue) {
            from.pause(queue);
        }
    }
    true
}

/// The address that an authority names, if it does so without a search.
fn resolve(authority: &str, port: Option<u16>) -> Option<SocketAddr> {
    if let Ok(address) = authority.parse() {
        return Some(address);
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, digits)) if !digits.ends_with(']') => (host, digits.parse().ok()?),
        _ => (authority, port?),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let ip = match host.eq_ignore_ascii_case("localhost") {
        true => IpAddr::V4(Ipv4Addr::LOCALHOST),
        false => host.parse().ok()?,
    };
    Some(SocketAddr::new(ip, port))
}

/// A socket that has begun to connect.
fn connecting(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

const EARLY_END: &str = "the request ended too early";

/// Bytes that one side may owe the other before the one they come from is paused.
const UNSENT_BYTES_MAX: usize = 256 * 1024;

/// Bytes received at once: a small answer whole, and little memory for many that are on their way.
const BUFFER_BYTES: usize = 16 * 1024;

/// Connections to origins that wait for the next request, over all origins.
const KEPT_MAX: usize = 1_024;

const BACKLOG: i32 = 4_096;

/// Time for a client to close after its last answer.
const LINGER: Duration = Duration::from_secs(2);
