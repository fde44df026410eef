//! A client without a cache: frames as they are, so that a thousand of them, or one that misbehaves, cost
//! this side little.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use tercel::tools::wire::deframer::Deframer;
use tercel::tools::wire::frame::{self, Header, Kind};
use tercel::tools::wire::id::{ClientId, PageId, Stamp};
use tercel::tools::wire::message::{Fetch, Hello};

/// A connection to the server that sends and receives plain frames.
pub struct Raw {
    pub stream: TcpStream,
    deframer: Deframer,
    buffer: Vec<u8>,
    /// The newest commit that the server has reported as visible.
    pub visible: Stamp,
    /// The server's life.
    pub view: tercel::tools::wire::id::ViewId,
    pub id: ClientId,
    fetches: u64,
}

impl Raw {
    /// Connects and is welcomed.
    pub fn connect(address: &str, id: u64) -> io::Result<Raw> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut raw = Raw {
            stream,
            deframer: Deframer::default(),
            buffer: vec![0; RECEIVE_BYTES],
            visible: Stamp::ZERO,
            view: Default::default(),
            id: ClientId(id),
            fetches: 0,
        };
        let mut bytes = Vec::new();
        hello(raw.id, &mut bytes);
        raw.stream.write_all(&bytes)?;
        let refused = || io::Error::new(ErrorKind::ConnectionRefused, "the server does not welcome it");
        raw.receive(|header, _| if header.kind == Kind::Welcome { Ok(()) } else { Err(refused()) })?;
        Ok(raw)
    }

    /// Appends a request for a page.
    pub fn fetch(&mut self, page: PageId, out: &mut Vec<u8>) {
        self.fetches += 1;
        fetch(page, self.fetches, out);
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Receives once and hands over every frame that has become whole. Says how many there were; none if
    /// there is nothing and the socket does not block.
    pub fn receive(&mut self, mut take: impl FnMut(&Header, &[u8]) -> io::Result<()>) -> io::Result<usize> {
        match self.stream.read(&mut self.buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => self.deframer.push(&self.buffer[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(e) => return Err(e),
        }
        let mut frames = 0;
        let wrong = |e| io::Error::new(ErrorKind::InvalidData, e);
        while let Some((header, body)) = self.deframer.next_frame().map_err(wrong)? {
            frames += 1;
            self.visible = self.visible.max(header.ack);
            self.view = header.view;
            take(&header, body)?;
        }
        self.deframer.relax();
        Ok(frames)
    }
}

/// A greeting.
pub fn hello(client: ClientId, out: &mut Vec<u8>) {
    let mut body = Vec::new();
    Hello::new(client).encode(&mut body);
    frame::encode(Header::new(Kind::Hello, 1), &body, out);
}

/// A request for a page.
pub fn fetch(page: PageId, fetch: u64, out: &mut Vec<u8>) {
    let mut body = Vec::with_capacity(8);
    Fetch { page, fetch, since: None }.encode(&mut body);
    frame::encode(Header::new(Kind::Fetch, fetch), &body, out);
}

/// Several pages at once.
const RECEIVE_BYTES: usize = 64 << 10;
