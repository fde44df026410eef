//! The thread of a ring: packets and messages in, outputs of the machine carried out in their order.
//!
//! A member has a connected socket for each other one, so that the system says when that one's process is
//! gone. All packets that have come are handed in before a token among them is answered.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_reuseport;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, connect, socket_with};
use tercel_datagram::Packets;
use tercel_engine::time::Now;
use tercel_events::DatagramSocket;
use tercel_ring as machine;
use tercel_ring::members::{Place, Set};
use tercel_ring::{Input, Output};

use super::keys::Keys;
use super::number::Numbers;
use super::seal::Seals;
use super::{
    Configuration, Delivery, MESSAGE_BYTES, Message, RingConfig, RingError, Shared, bytes_of, group,
    patience, settings,
};
use crate::datagrams::{self, DATAGRAM_BYTES};
use crate::panics;

/// The ring's side.
pub(super) struct Run {
    ids: Vec<u64>,
    peers: Vec<Peer>,
    /// The seals of packets, if the ring has a key, and room for what is opened.
    seals: Option<(Box<Seals>, Vec<u8>)>,
    machine: machine::Ring,
    numbers: Numbers,
    shared: Arc<Shared>,
    began: Instant,
    out: Vec<Output>,
    deliveries: Vec<Delivery>,
    buffer: Box<[u8]>,
    /// The program has taken too little, since then.
    full_since: Option<Instant>,
    /// Turns in which packets came since the machine was told that there are no more.
    undrained: u32,
    /// One that takes too little for so long stops all members, so its member leaves.
    patience: Duration,
    /// The program leaves, and what it has sent is to be at the others by then.
    leave_by: Option<Instant>,
}

/// Another member.
struct Peer {
    place: Place,
    socket: DatagramSocket,
    /// Packets; of a ring with a key, as they are to be sealed.
    out: Packets<()>,
    /// Packets as they are sent, where those are sealed.
    sealed: Packets<()>,
    /// Set if the member's process has no socket where it should be.
    is_gone: bool,
}

/// Receives of one socket before others have their turn; more is more than all members send in a rotation.
const RECEIVES_MAX: usize = 64;

/// A member that leaves sends for so long what waits.
const LEAVE_PATIENCE: Duration = Duration::from_secs(1);

/// Turns with packets after which time goes on all the same.
const UNDRAINED_MAX: u32 = 64;

/// Messages that are handed to the machine at once.
const SUBMITS_MAX: usize = 1_024;

impl Run {
    /// Opens the file and the sockets.
    pub(super) fn new(
        config: &RingConfig,
        members: Vec<(u64, SocketAddr)>,
        me: Place,
        shared: Arc<Shared>,
    ) -> Result<Run, RingError> {
        let (numbers, remembered) = Numbers::open(&config.file)?;
        let from = members[usize::from(me.0)].1;
        see_free(from)?;
        let mut peers = Vec::new();
        for (place, (_, to)) in (0..).map(Place).zip(&members).filter(|(place, _)| *place != me) {
            let to = *to;
            let socket = connected(from, to).map_err(|error| RingError::Socket { from, to, error })?;
            let socket = datagrams::prepare(socket);
            let (out, sealed) = (Packets::default(), Packets::default());
            peers.push(Peer { place, socket, out, sealed, is_gone: false });
        }
        let places = peers.iter().map(|peer| peer.place);
        let open = |key| Seals::new(Keys::open(key)?, group(&members), me, places);
        let seals = config.key.as_deref().map(open).transpose()?.map(|it| (Box::new(it), Vec::new()));
        let mut out = Vec::new();
        let settings = settings(config, &members, me);
        Ok(Run {
            machine: machine::Ring::new(settings, remembered, Now(0), &mut out),
            ids: members.iter().map(|(id, _)| *id).collect(),
            peers,
            seals,
            numbers,
            shared,
            began: Instant::now(),
            out,
            deliveries: Vec::new(),
            buffer: vec![0; DATAGRAM_BYTES].into(),
            full_since: None,
            undrained: 0,
            patience: patience(config),
            leave_by: None,
        })
    }

    /// Runs until the program leaves or something fails.
    pub(super) fn run(mut self) {
        let shared = self.shared.clone();
        let run = std::panic::AssertUnwindSafe(|| {
            loop {
                if let Err(why) = self.turn() {
                    break why;
                }
            }
        });
        let why = std::panic::catch_unwind(run).unwrap_or_else(|panic| {
            format!("its thread panicked: {}; this is a defect, please report it", panics::text(&*panic))
        });
        // A program that is told of the end may join anew at once.
        drop(self);
        shared.end(why);
    }

    /// Waits, takes what has come, and carries out what follows.
    fn turn(&mut self) -> Result<(), String> {
        self.carry_out()?;
        let ready = self.wait().map_err(|e| format!("its sockets cannot be waited for: {e}"))?;
        for (at, _) in ready.iter().enumerate().filter(|(_, is_ready)| **is_ready) {
            self.receive(at);
        }
        self.take_messages()?;
        if let Some((seals, _)) = &mut self.seals {
            seals.look(Instant::now());
        }
        let now = self.now();
        for at in 0..self.peers.len() {
            if std::mem::take(&mut self.peers[at].is_gone) {
                self.machine.handle(now, Input::Gone(self.peers[at].place), &mut self.out);
            }
        }
        // A packet sent before the token may have come to another socket since that was looked at.
        self.undrained = if ready.contains(&true) { (self.undrained + 1) % UNDRAINED_MAX } else { 0 };
        if self.undrained == 0 {
            self.machine.handle(now, Input::Drained, &mut self.out);
        }
        Ok(())
    }

    fn now(&self) -> Now {
        Now(1 + self.began.elapsed().as_micros() as u64)
    }

    /// Waits for a packet, the program, or a time. Gives the sockets with packets.
    fn wait(&self) -> io::Result<Vec<bool>> {
        let left_us = self.machine.deadline().since_us(self.now());
        let leave_us =
            self.leave_by.map(|by| by.saturating_duration_since(Instant::now()).as_micros() as u64 + 1);
        let left_us = left_us.min(leave_us.unwrap_or(u64::MAX));
        let left_us = if self.undrained > 0 { 0 } else { left_us };
        let left =
            Timespec { tv_sec: (left_us / 1_000_000) as i64, tv_nsec: (left_us % 1_000_000) as i64 * 1_000 };
        let mut fds: Vec<PollFd<'_>> =
            self.peers.iter().map(|peer| PollFd::new(peer.socket.socket(), PollFlags::IN)).collect();
        fds.push(PollFd::from_borrowed_fd(self.shared.wake.as_fd(), PollFlags::IN));
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        if !fds[self.peers.len()].revents().is_empty() {
            // Another one to come sets it again.
            let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
        }
        Ok(fds[..self.peers.len()].iter().map(|fd| !fd.revents().is_empty()).collect())
    }

    /// Hands in what a peer has sent.
    fn receive(&mut self, at: usize) {
        for _ in 0..RECEIVES_MAX {
            let now = self.now();
            let peer = &mut self.peers[at];
            match datagrams::receive(&peer.socket, RecvFlags::DONTWAIT, &mut self.buffer) {
                Ok(Some(came)) => {
                    for packet in came.packets() {
                        let packet = match &mut self.seals {
                            None => Some(packet),
                            Some((seals, room)) => {
                                seals.open(at, packet, Instant::now(), room, &mut peer.out)
                            }
                        };
                        if let Some(packet) = packet {
                            self.machine.handle(now, Input::Packet(peer.place, packet), &mut self.out);
                        }
                    }
                }
                Ok(None) => return,
                Err(e) => peer.is_gone |= e.kind() == io::ErrorKind::ConnectionRefused,
            }
        }
    }

    /// Takes messages of the program, as far as there is room.
    fn take_messages(&mut self) -> Result<(), String> {
        let now = self.now();
        let mut queues = self.shared.lock();
        if queues.is_leaving {
            // Nobody takes them.
            queues.deliveries.clear();
            queues.delivered_bytes = 0;
        }
        let (is_leaving, is_empty) = (queues.is_leaving, queues.sent.is_empty());
        let is_full = queues.is_full();
        for _ in 0..SUBMITS_MAX {
            if !queues.sent.front().is_some_and(|(_, message)| self.machine.has_room(message.len())) {
                break;
            }
            let Some((level, message)) = queues.sent.pop_front() else { break };
            queues.sent_bytes -= message.len() + MESSAGE_BYTES;
            self.machine.handle(now, Input::Submit(level, message), &mut self.out);
        }
        drop(queues);
        self.shared.went.notify_all();
        if is_leaving {
            let by = *self.leave_by.get_or_insert_with(|| Instant::now() + LEAVE_PATIENCE);
            if is_empty && self.machine.is_settled() || Instant::now() > by {
                self.machine.leave(&mut self.out);
                self.carry_out()?;
                return Err("the program has left it".into());
            }
        }
        if is_full != self.full_since.is_some() {
            self.full_since = is_full.then(Instant::now);
            self.machine.handle(now, Input::Full(is_full), &mut self.out);
        }
        if self.full_since.is_some_and(|since| since.elapsed() > self.patience) {
            return Err(format!("its program has left 8 MB of deliveries untaken for {:?}", self.patience));
        }
        Ok(())
    }

    /// Carries out what the machine says. A token goes out behind what is before it, at once.
    fn carry_out(&mut self) -> Result<(), String> {
        for output in std::mem::take(&mut self.out) {
            match output {
                Output::Send(to, bytes) => self.send(to, &bytes),
                Output::Remember(number) => self.numbers.remember(number).map_err(|e| e.to_string())?,
                Output::Message(message) => {
                    let machine::Message { from, level, bytes } = message;
                    let from = self.ids[usize::from(from.0)];
                    self.deliveries.push(Delivery::Message(Message { from, level, bytes }));
                }
                Output::Configuration(it) => {
                    let members = it.members.iter().map(|place| self.ids[usize::from(place.0)]).collect();
                    let (is_primary, is_transitional) = (it.is_primary, it.is_transitional);
                    let it = Configuration { members, is_primary, is_transitional };
                    self.deliveries.push(Delivery::Configuration(it));
                }
            }
        }
        self.flush();
        if !self.deliveries.is_empty() {
            let mut queues = self.shared.lock();
            queues.delivered_bytes += self.deliveries.iter().map(bytes_of).sum::<usize>();
            queues.deliveries.extend(self.deliveries.drain(..));
            drop(queues);
            self.shared.came.notify_all();
        }
        Ok(())
    }

    fn send(&mut self, to: Set, bytes: &[u8]) {
        let is_for_one = to.count() == 1;
        if is_for_one {
            self.flush();
        }
        for peer in self.peers.iter_mut().filter(|peer| to.has(peer.place)) {
            peer.out.packet((), |out| match self.seals {
                Some(_) => Seals::put(bytes, out),
                None => out.extend_from_slice(bytes),
            });
        }
        if is_for_one {
            self.flush();
        }
    }

    /// Sends what is there. What the system does not take counts as lost.
    fn flush(&mut self) {
        for (at, peer) in self.peers.iter_mut().enumerate().filter(|(_, peer)| !peer.out.is_empty()) {
            if let Some((seals, _)) = &mut self.seals {
                for (_, packet) in peer.out.iter() {
                    peer.sealed.packet((), |out| seals.seal(at, packet, out));
                }
                std::mem::swap(&mut peer.out, &mut peer.sealed);
                peer.sealed.clear();
            }
            for (_, run, size) in peer.out.runs(|size| peer.socket.at_once(size)) {
                let refused = |e: &io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
                // The error is of a packet before; these were not taken for it.
                if peer.socket.send(run, size, None).is_err_and(|e| refused(&e)) {
                    peer.is_gone = true;
                    let _ = peer.socket.send(run, size, None);
                }
            }
            peer.out.clear();
        }
    }
}

/// Sees that no other process has a member's address, which those to come share among themselves.
fn see_free(from: SocketAddr) -> Result<(), RingError> {
    match socket(from).and_then(|socket| Ok(bind(&socket, &from)?)) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => Err(RingError::InUse(from.to_string())),
        seen => seen.map_err(|error| RingError::Socket { from, to: from, error }),
    }
}

fn socket(of: SocketAddr) -> io::Result<OwnedFd> {
    let family = if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?)
}

/// A socket between two addresses. Others of this member have the same address of their own.
fn connected(from: SocketAddr, to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = socket(from)?;
    set_socket_reuseport(&socket, true)?;
    bind(&socket, &from)?;
    connect(&socket, &to)?;
    Ok(socket.into())
}
