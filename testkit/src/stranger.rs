//! A peer that writes a client's messages itself, over any stream of bytes: for what no honest client says.
//!
//! The invariant: a stranger sends what the test says and nothing else. It reads frames whole, and keeps what
//! follows a frame for the next read.

use std::io::{ErrorKind, Read, Write};

use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{Header, Kind, encode};
use tercel_wire::id::{ClientId, ViewId};
use tercel_wire::interface::{Interface, InterfaceSchema};
use tercel_wire::message::{Bind, Bound, Hello, Item, Request};

/// One end of a connection to a server.
pub struct Stranger<S> {
    /// The connection, for bytes that are no messages.
    pub stream: S,
    /// The view of the newest message.
    pub view: ViewId,
    deframer: Deframer,
    next_call: u64,
}

/// A service as a server has bound it.
pub struct BoundService {
    interface: Interface,
    bound: Bound,
}

impl BoundService {
    /// The number of a procedure.
    ///
    /// # Panics
    /// If the service has no such procedure.
    pub fn method(&self, name: &str) -> u16 {
        let at = self.interface.methods.iter().position(|m| m.name == name);
        self.bound.methods[at.unwrap_or_else(|| panic!("the service has no procedure `{name}`"))].number
    }

    /// A call of a procedure in a slot.
    pub fn request<'a>(&self, method: &str, (slot, seq): (u16, u64), payload: &'a [u8]) -> Request<'a> {
        let (method, interface) = (self.method(method), self.bound.interface.expect("it is bound"));
        Request { slot: Some(slot), seq, again: false, interface, method, object: None, key: &[], payload }
    }
}

impl<S: Read + Write> Stranger<S> {
    /// One that has said nothing yet.
    pub fn new(stream: S) -> Stranger<S> {
        Stranger { stream, view: ViewId::NONE, deframer: Deframer::default(), next_call: 0 }
    }

    /// One that the server has welcomed as this client.
    pub fn greet(stream: S, client: u64) -> Stranger<S> {
        let mut stranger = Stranger::new(stream);
        stranger.send(Kind::Hello, |out| Hello::new(ClientId(client)).encode(out));
        stranger.read_to(Kind::Welcome);
        stranger
    }

    /// Sends a message, and gives the number of its call. A server that has ended the connection takes no
    /// more, which is no failure.
    pub fn send(&mut self, kind: Kind, body: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let (mut bytes, mut frame) = (Vec::new(), Vec::new());
        body(&mut bytes);
        self.next_call += 1;
        let header = Header { view: self.view, ..Header::new(kind, self.next_call) };
        encode(header, &bytes, &mut frame);
        _ = self.stream.write_all(&frame);
        self.next_call
    }

    /// The next message; none at the end of the connection.
    ///
    /// # Panics
    /// If the server sends what is no frame, or nothing for the time that the stream gives it.
    pub fn next_message(&mut self) -> Option<(Header, Vec<u8>)> {
        let mut buffer = [0; 4096];
        loop {
            if let Some((header, body)) = self.deframer.next_frame().expect("a server sends frames") {
                self.view = header.view;
                return Some((header, body.to_vec()));
            }
            match self.stream.read(&mut buffer) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => panic!("the server is silent"),
                Ok(0) | Err(_) => return None,
                Ok(read) => self.deframer.push(&buffer[..read]),
            }
        }
    }

    /// Reads up to a message of a kind, and gives its body.
    ///
    /// # Panics
    /// If the connection ends before.
    pub fn read_to(&mut self, kind: Kind) -> Vec<u8> {
        loop {
            let (header, body) =
                self.next_message().unwrap_or_else(|| panic!("the server has not sent {kind:?}"));
            if header.kind == kind {
                return body;
            }
        }
    }

    /// Binds a service.
    ///
    /// # Panics
    /// If the server does not offer it.
    pub fn bind(&mut self, schema: &'static InterfaceSchema) -> BoundService {
        let interface = Interface::of_service(schema);
        self.send(Kind::Bind, |out| Bind { interface: interface.clone() }.encode(out));
        let bound = Bound::decode(&self.read_to(Kind::Bound)).expect("a server sends messages");
        assert!(bound.interface.is_some(), "the server does not offer `{}`", interface.name);
        BoundService { interface, bound }
    }

    /// Calls a procedure by a message.
    pub fn call(&mut self, request: &Request<'_>) {
        self.send(Kind::Request, |out| request.encode(out));
    }

    /// Sends an item of the stream to a procedure.
    pub fn item(&mut self, (slot, seq): (u16, u64), ordinal: u64, payload: &[u8]) {
        self.send(Kind::InputItem, |out| Item { slot, seq, ordinal, payload }.encode(out));
    }
}
