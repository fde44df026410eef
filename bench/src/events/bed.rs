//! The two loops that are compared, and the sockets that both watch in turn.
//!
//! A loop watches duplicates of the same sockets for the time of a block and lets go of them after it. So
//! each block has the sockets in common with its pair, and draws anew where the kernel keeps its watches.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::net::{RecvFlags, recv};
use tercel_events::{Backend, Config, Event, EventQueue, Kind, Token, Wanted, Watch};

use super::failed;
use crate::blocks::median;

/// Bytes of a message.
const MESSAGE: [u8; 64] = [7; 64];

/// Connected pairs: one end speaks, the other is watched.
pub struct Bed {
    near: Vec<TcpStream>,
    pub far: Vec<TcpStream>,
}

impl Bed {
    pub fn new(pairs: usize) -> Result<Bed, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let mut bed = Bed { near: Vec::new(), far: Vec::new() };
        for _ in 0..pairs {
            let near = TcpStream::connect(address).map_err(failed)?;
            near.set_nodelay(true).map_err(failed)?;
            bed.near.push(near);
            bed.far.push(listener.accept().map_err(failed)?.0);
        }
        Ok(bed)
    }

    /// Sends a message to each of these.
    pub fn speak(&mut self, to: impl IntoIterator<Item = u64>) -> Result<(), String> {
        to.into_iter().try_for_each(|n| self.near[n as usize].write_all(&MESSAGE).map_err(failed))
    }
}

/// A loop that waits for events and receives what has come.
pub trait Loop {
    /// Watches a socket from now on, by the next number: for its bytes, or for its readiness alone.
    fn declare(&mut self, socket: OwnedFd, receives: bool) -> Result<(), String>;
    /// The same of several, for their bytes' readiness alone; in one call where the loop has such.
    fn declare_together(&mut self, sockets: Vec<OwnedFd>) -> Result<(), String> {
        sockets.into_iter().try_for_each(|socket| self.declare(socket, false))
    }
    /// Waits once and takes at most `array_max` events. `taken` has then the numbers of their sockets.
    fn take(&mut self, array_max: usize, taken: &mut Vec<u64>) -> Result<(), String>;
    /// Lets go of the sockets, and closes them.
    fn revoke_all(&mut self) -> Result<(), String>;
}

/// The loop by hand: edge-triggered epoll and one `recv` an event.
pub struct ByHand {
    epoll: OwnedFd,
    sockets: Vec<OwnedFd>,
    events: Vec<epoll::Event>,
    room: Vec<u8>,
}

impl ByHand {
    pub fn new() -> Result<ByHand, String> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        Ok(ByHand { epoll, sockets: Vec::new(), events: Vec::new(), room: vec![0; 64 << 10] })
    }
}

impl Loop for ByHand {
    fn declare(&mut self, socket: OwnedFd, _receives: bool) -> Result<(), String> {
        let data = epoll::EventData::new_u64(self.sockets.len() as u64);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &socket, data, flags).map_err(failed)?;
        self.sockets.push(socket);
        Ok(())
    }

    fn take(&mut self, array_max: usize, taken: &mut Vec<u64>) -> Result<(), String> {
        taken.clear();
        self.events.clear();
        // Room is what the kernel fills.
        if self.events.capacity() != array_max {
            self.events = Vec::with_capacity(array_max);
        }
        epoll::wait(&self.epoll, spare_capacity(&mut self.events), None).map_err(failed)?;
        for event in &self.events {
            let number = event.data.u64();
            recv(&self.sockets[number as usize], &mut self.room[..], RecvFlags::DONTWAIT).map_err(failed)?;
            taken.push(number);
        }
        Ok(())
    }

    fn revoke_all(&mut self) -> Result<(), String> {
        self.sockets.drain(..).try_for_each(|socket| epoll::delete(&self.epoll, &socket).map_err(failed))
    }
}

/// The loop over an event queue.
pub struct ByQueue {
    pub queue: EventQueue,
    batch: Vec<Event>,
    sockets: Vec<Token>,
}

impl ByQueue {
    /// A queue on that backend, or the default one; none where the backend cannot be had.
    pub fn new(backend: Option<Backend>, sources_max: usize) -> Result<ByQueue, String> {
        let config = Config { backend, sources_max, ..Config::default() };
        let queue = EventQueue::open(config).map_err(failed)?;
        if backend.is_some_and(|backend| backend != queue.backend()) {
            return Err(format!("TERCEL_EVENTS asks for {}", queue.backend()));
        }
        Ok(ByQueue { queue, batch: Vec::new(), sockets: Vec::new() })
    }

    /// Waits for so many streams that the queue's listeners accept.
    pub fn accept(&mut self, count: usize) -> Result<(), String> {
        let mut accepted = 0;
        while accepted < count {
            let deadline = Instant::now() + super::PATIENCE;
            if self.queue.get_next_events(&mut self.batch, 64, Some(deadline)).map_err(failed)? == 0 {
                return Err(format!("only {accepted} of {count} connections came"));
            }
            accepted += self.batch.iter().filter(|e| matches!(e.kind, Kind::Accepted { .. })).count();
        }
        Ok(())
    }
}

impl Loop for ByQueue {
    fn declare(&mut self, socket: OwnedFd, receives: bool) -> Result<(), String> {
        let key = self.sockets.len() as u64;
        let token = match receives {
            true => self.queue.declare_stream(socket, key),
            false => self.queue.declare_fd(socket, Watch::Read, key),
        };
        self.sockets.push(token.map_err(failed)?);
        Ok(())
    }

    fn declare_together(&mut self, sockets: Vec<OwnedFd>) -> Result<(), String> {
        let keys = self.sockets.len() as u64..;
        let wanted = sockets.into_iter().zip(keys).map(|(fd, key)| (fd, Wanted::Ready(Watch::Read), key));
        self.sockets.extend(self.queue.declare_all(wanted).map_err(failed)?);
        Ok(())
    }

    fn take(&mut self, array_max: usize, taken: &mut Vec<u64>) -> Result<(), String> {
        taken.clear();
        self.queue.get_next_events(&mut self.batch, array_max, None).map_err(failed)?;
        for event in self.batch.drain(..) {
            match event.kind {
                Kind::Received(_) => taken.push(event.key),
                other => return Err(format!("a queue reports {other:?}")),
            }
        }
        Ok(())
    }

    fn revoke_all(&mut self) -> Result<(), String> {
        let revoked = self.sockets.drain(..).all(|token| self.queue.revoke(token));
        revoked.then_some(()).ok_or_else(|| "a queue has lost a socket".into())
    }
}

/// Watches duplicates of all sockets of a bed.
pub fn declare_all(by: &mut dyn Loop, bed: &Bed) -> Result<(), String> {
    bed.far.iter().try_for_each(|far| by.declare(far.try_clone().map_err(failed)?.into(), true))
}

/// Nanoseconds of an event where the first `batch` sockets have each a message and all are taken at once: the
/// median of `looks`.
pub fn fresh(by: &mut dyn Loop, bed: &mut Bed, batch: usize, looks: usize) -> Result<f64, String> {
    declare_all(by, bed)?;
    let (mut times, mut taken) = (Vec::with_capacity(looks), Vec::with_capacity(batch));
    for look in 0..looks + WARM {
        bed.speak(0..batch as u64)?;
        let begin = Instant::now();
        let mut count = 0;
        while count < batch {
            by.take(batch, &mut taken)?;
            count += taken.len();
        }
        let took = begin.elapsed();
        if look >= WARM {
            times.push(took.as_nanos() as f64);
        }
    }
    by.revoke_all()?;
    Ok((median(&mut times) - clock_ns()) / batch as f64)
}

/// Nanoseconds of a wait that takes `array_max` events while all sockets of the bed have one, so that it
/// never blocks: the median of `calls`. What was taken comes again before the next.
pub fn saturated(by: &mut dyn Loop, bed: &mut Bed, array_max: usize, calls: usize) -> Result<f64, String> {
    declare_all(by, bed)?;
    let (mut times, mut taken) = (Vec::with_capacity(calls), Vec::with_capacity(array_max));
    bed.speak(0..bed.far.len() as u64)?;
    for call in 0..calls + WARM {
        let begin = Instant::now();
        by.take(array_max, &mut taken)?;
        let took = begin.elapsed();
        // A ring may have brought fewer.
        if call >= WARM && taken.len() == array_max {
            times.push(took.as_nanos() as f64);
        }
        bed.speak(taken.drain(..))?;
    }
    let mut left = bed.far.len();
    while left > 0 {
        by.take(bed.far.len(), &mut taken)?;
        left -= taken.len();
    }
    by.revoke_all()?;
    Ok(median(&mut times) - clock_ns())
}

/// Nanoseconds between two looks at the clock with nothing between them.
fn clock_ns() -> f64 {
    let mut times: Vec<f64> = (0..WARM).map(|_| Instant::now().elapsed().as_nanos() as f64).collect();
    median(&mut times)
}

/// Calls at the start of a block that are not counted.
const WARM: usize = 32;
