//! A relay between a client and a server, over every kind of connection, that can be cut at any moment.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use tercel::{Address, Server};
use tercel_events::shm::{Channel, Config, LINE_BYTES, Receiver, SendError, Sender, Spin, Waited, pass};

/// The functions that end each connection by shutting down both of its sockets.
type Ends = Arc<Mutex<Vec<Box<dyn Fn() + Send>>>>;

trait Socket: Read + Write + Send + Sized + 'static {
    fn twin(&self) -> Self;
    fn end(&self);
}

impl Socket for TcpStream {
    fn twin(&self) -> TcpStream {
        self.try_clone().unwrap()
    }

    fn end(&self) {
        _ = self.shutdown(Shutdown::Both);
    }
}

impl Socket for UnixStream {
    fn twin(&self) -> UnixStream {
        self.try_clone().unwrap()
    }

    fn end(&self) {
        _ = self.shutdown(Shutdown::Both);
    }
}

/// The relay. Its threads end with the process.
pub struct Relay {
    /// Where clients find it.
    pub address: Address,
    ends: Ends,
    /// The server's words pass while this can be had.
    gate: Gate,
}

type Gate = Arc<Mutex<()>>;

impl Relay {
    /// One for sockets, of TCP or of Unix as the server has them.
    pub fn of_sockets(server: &Server) -> Relay {
        let (ends, gate) = (Ends::default(), Gate::default());
        let (all, at) = (ends.clone(), gate.clone());
        let address = match server.addresses()[0].clone() {
            Address::Unix(target) => {
                let path = target.with_extension("relay");
                let listener = UnixListener::bind(&path).unwrap();
                thread::spawn(move || {
                    let arrivals = listener.incoming();
                    arrivals.for_each(|here| {
                        copy((&all, &at), here.unwrap(), UnixStream::connect(&target).unwrap());
                    });
                });
                Address::Unix(path)
            }
            target => {
                let (listener, target) = (TcpListener::bind("127.0.0.1:0").unwrap(), target.to_string());
                let address = listener.local_addr().unwrap().to_string();
                thread::spawn(move || {
                    let arrivals = listener.incoming();
                    arrivals.for_each(|here| {
                        copy((&all, &at), here.unwrap(), TcpStream::connect(&target).unwrap());
                    });
                });
                Address::Tcp(address)
            }
        };
        Relay { address, ends, gate }
    }

    /// One for shared memory of a server at a Unix socket.
    pub fn of_memory(server: &Server) -> Relay {
        let Address::Unix(target) = server.addresses()[0].clone() else { panic!("the server has no socket") };
        let path = target.with_extension("relay");
        let listener = UnixListener::bind(&path).unwrap();
        let ends = Ends::default();
        let all = ends.clone();
        thread::spawn(move || {
            for here in listener.incoming() {
                let ((client_end, client), (server_end, server)) = (accept(here.unwrap()), knock(&target));
                note(&all, &client_end, &server_end);
                let ((to_client, from_client), (to_server, from_server)) = (client.split(), server.split());
                let ends = (client_end.twin(), server_end.twin());
                thread::spawn(move || forward(from_client, to_server, ends));
                thread::spawn(move || forward(from_server, to_client, (client_end, server_end)));
            }
        });
        Relay { address: Address::Unix(path), ends, gate: Gate::default() }
    }

    /// Holds what the server says over sockets until this is dropped.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().unwrap()
    }

    /// Cuts all connections. New ones are made as before.
    pub fn cut(&self) {
        self.ends.lock().unwrap().drain(..).for_each(|end| end());
    }
}

fn note<S: Socket>(ends: &Ends, here: &S, there: &S) {
    let (here, there) = (here.twin(), there.twin());
    ends.lock().unwrap().push(Box::new(move || {
        here.end();
        there.end();
    }));
}

/// Copies bytes both ways.
fn copy<S: Socket>((ends, gate): (&Ends, &Gate), here: S, there: S) {
    note(ends, &here, &there);
    let (mut from, mut to) = (here.twin(), there.twin());
    thread::spawn(move || _ = std::io::copy(&mut from, &mut to));
    let (mut from, mut to, gate) = (there, here, gate.clone());
    thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            drop(gate.lock().unwrap());
            if to.write_all(&bytes[..n]).is_err() {
                break;
            }
        }
        to.end();
    });
}

/// Takes the channel of a client.
pub fn accept(socket: UnixStream) -> (UnixStream, Channel) {
    let [memory] = pass::receive(&socket, &mut [0; 8]).unwrap();
    let mut channel = Channel::open(memory).unwrap();
    (&socket).write_all(&[1]).unwrap();
    channel.watch_peer(&socket).unwrap();
    (socket, channel)
}

/// Hands a channel to a server.
pub fn knock(path: &Path) -> (UnixStream, Channel) {
    let socket = UnixStream::connect(path).unwrap();
    let (mut channel, memory) = Channel::create(Config::default()).unwrap();
    pass::send(&socket, b"TRCLSHM3", &[memory.as_fd()]).unwrap();
    (&socket).read_exact(&mut [0]).unwrap();
    channel.watch_peer(&socket).unwrap();
    channel.ring_by_socket();
    (socket, channel)
}

/// The sleep of a relay: clients ring by their sockets, which it does not read.
pub const NAP: Duration = Duration::from_millis(1);

/// Shared memory as this process has mapped it, to be written all over: the file takes no writes once both
/// ends have it.
pub struct Mapped {
    memory: File,
    begin: u64,
    pub bytes: u64,
}

impl Mapped {
    /// The memory of a channel that no other end in this process has mapped.
    pub fn of(memory: OwnedFd) -> Mapped {
        let file = File::from(memory).metadata().unwrap();
        let (maps, inode) = (std::fs::read_to_string("/proc/self/maps").unwrap(), file.ino().to_string());
        let begins = maps.lines().find(|line| line.split_whitespace().nth(4) == Some(&inode)).unwrap();
        let begin = u64::from_str_radix(begins.split('-').next().unwrap(), 16).unwrap();
        let memory = File::options().write(true).open("/proc/self/mem").unwrap();
        Mapped { memory, begin, bytes: file.len() }
    }

    pub fn write_at(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, self.begin + at).unwrap();
    }
}

/// Forwards messages until either end is gone; then both are.
fn forward(mut from: Receiver, mut to: Sender, ends: (UnixStream, UnixStream)) {
    let mut spin = Spin::new();
    while let Ok(waited) = from.wait(&mut spin, Some(Instant::now() + NAP)) {
        if waited == Waited::PeerGone || forward_some(&mut from, &mut to).is_none() {
            break;
        }
    }
    ends.0.end();
    ends.1.end();
}

/// Forwards what is there; none if either end has broken off.
fn forward_some(from: &mut Receiver, to: &mut Sender) -> Option<()> {
    let mut block = Vec::new();
    while let Some(message) = from.receive().ok()? {
        let line: [u8; LINE_BYTES] = *message.line();
        block.clear();
        let has_block = message.block.as_ref().map(|bytes| bytes.copy_to(&mut block)).is_some();
        drop(message);
        let end = Instant::now() + Duration::from_secs(5);
        while let Err(e) = to.send(&line, has_block.then_some(&block)) {
            if e != SendError::Full || Instant::now() > end {
                return None;
            }
            thread::yield_now();
        }
    }
    Some(())
}
