//! The connections in shared memory, as the loop has them.
//!
//! Those in use are *hot*: the loop looks at them itself, for about as long as it would take to be woken.
//! When that finds nothing they are asked to ring, and the loop sleeps in its event queue.

use std::time::{Duration, Instant};

use tercel_engine::rpc::{ReplyBody, SharedRoom};
use tercel_engine::server::Conn;
use tercel_events::Token;
use tercel_events::shm::{Corrupt, Receiver, Sender, Spin};
use tercel_wire::frame::{self, Header, Kind};
use tercel_wire::id::ClientId;
use tercel_wire::payload::PartSink;
use tercel_wire::spare::Spare;

use crate::channel::{self, Arrived, End, InLine, Large, Room, Written};

/// A connection in shared memory.
pub(super) struct SharedPeer {
    pub conn: Conn,
    /// The socket by which the client rings, and which ends with it.
    pub stream: Token,
    sender: Sender,
    receiver: Receiver,
    /// Bytes that found no room, and the count of those among them that have left.
    unsent: Vec<u8>,
    left: usize,
    /// Bytes taken from the channel that belong to the stream, or that are to be served as if they did.
    pending: Vec<u8>,
    /// The client, once it has greeted.
    client: Option<Known>,
    /// The client is of the server's own user: what it writes is read in place where a procedure asks for
    /// that.
    is_own: bool,
    /// Set while arrivals stay in the channel.
    is_paused: bool,
    /// The client wrote what it never writes: the next take reports that.
    is_broken: bool,
    /// The client has ended, and so often what it sent before is still looked for.
    ends_in: Option<u32>,
}

/// A client that has greeted.
#[derive(Debug)]
pub(super) struct Known {
    pub client: ClientId,
    /// The place at which the machine last found it.
    pub place: usize,
}

/// The fate of bytes to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// The client takes it.
    Gone,
    /// So many bytes wait for room.
    Waits(usize),
}

impl SharedPeer {
    pub(super) fn new(conn: Conn, stream: Token, halves: (Sender, Receiver), is_own: bool) -> SharedPeer {
        let (sender, receiver) = halves;
        SharedPeer {
            conn,
            stream,
            sender,
            receiver,
            unsent: Vec::new(),
            left: 0,
            pending: Vec::new(),
            client: None,
            is_own,
            is_paused: false,
            is_broken: false,
            ends_in: None,
        }
    }

    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent.len() - self.left
    }

    /// Says whether the client ended while it was paused for unsent bytes: it will never take them.
    fn is_dead(&self) -> bool {
        self.is_paused && self.ends_in.is_some() && self.unsent_bytes() > 0
    }

    /// Says whether the peer needs work though its client sends nothing.
    fn is_due(&self) -> bool {
        !self.pending.is_empty() || self.ends_in.is_some() || self.is_broken
    }

    /// Serves the next message, if it is a call in a line, and sends the response; `body` is room for that.
    /// Says whether that was done, or something else is to be taken; none if nothing is there. A long call is
    /// served where the client has written it, if the client is of the server's own user; otherwise a copy of
    /// it. What is large of the response is written where the client reads it.
    #[inline]
    fn serve_next(
        &mut self,
        calls: &mut impl Calls,
        room: &mut Room,
        body: &mut Vec<u8>,
    ) -> Result<Option<bool>, Corrupt> {
        let SharedPeer { sender, receiver, pending, client, is_own, .. } = self;
        let mut block = BlockRoom { sender: Some(sender), written: None };
        let mut out = ReplyBody::in_room(body, &mut block);
        let to_serve = match End::Server.next_in_place(receiver, room, pending)? {
            Arrived::Nothing => return Ok(None),
            Arrived::Piece => return Ok(Some(false)),
            Arrived::Call(call) => Some(call),
            Arrived::Large(large) => {
                let of = client.as_mut().filter(|_| *is_own && large.is_worth_it());
                match of.is_some_and(|of| calls.serve_in_place(of, &large, &mut out)) {
                    true => None,
                    false => Some(large.copied()?),
                }
            }
        };
        if let Some(call) = to_serve
            && !client.as_mut().is_some_and(|of| calls.serve(of, call, &mut out))
        {
            End::Server.put_frame(call, pending);
            return Ok(Some(false));
        }
        let behind = out.behind();
        match block.written.filter(|_| behind > 0) {
            // Room was found for it, and the stream is empty.
            Some(written) => written.send().map(|_| Some(true)),
            None => self.respond(body).map(|()| Some(true)),
        }
    }

    /// Sends the body of a response: beside the stream if nothing of that is to go before it.
    fn respond(&mut self, body: &[u8]) -> Result<(), Corrupt> {
        let is_next = body.len() <= channel::CALL_BODY_BYTES && self.unsent_bytes() == 0;
        if is_next
            && let Some((head, rest)) = body.split_first_chunk()
            && End::Server.send(&mut self.sender, 0, head, rest)?
        {
            return Ok(());
        }
        frame::encode(Header::new(Kind::Response, 0), body, &mut self.unsent);
        self.flush().map(|_| ())
    }

    /// Sends what waits, as far as there is room; asks for a ring if there is not enough.
    fn flush(&mut self) -> Result<Sent, Corrupt> {
        while self.unsent_bytes() > 0 {
            self.left += channel::offer(&mut self.sender, &self.unsent[self.left..])?;
            let rest = self.unsent_bytes();
            if rest > 0 && !self.sender.ask_for_room(Some(channel::room_for(rest)))? {
                return Ok(Sent::Waits(rest));
            }
        }
        self.unsent.clear();
        self.unsent.shrink_to(KEPT_BYTES);
        self.left = 0;
        Ok(Sent::Gone)
    }
}

/// Room for the large parts of one response: a block in the memory that the client reads.
struct BlockRoom<'s> {
    sender: Option<&'s mut Sender>,
    written: Option<Written<'s>>,
}

impl SharedRoom for BlockRoom<'_> {
    fn take(&mut self, begins: &[u8], bytes: usize, fill: &mut dyn FnMut(&mut PartSink<'_>)) -> bool {
        let Some(sender) = self.sender.take() else { return false };
        // A client that wrote what it never writes is found out by the next send.
        self.written = End::Server.write(sender, 0, (begins, &[]), bytes, fill).unwrap_or(None);
        self.written.is_some()
    }
}

/// The handler of calls of services.
pub(super) trait Calls {
    /// The client of a connection, once it has greeted.
    fn client_of(&self, conn: Conn) -> Option<ClientId>;

    /// Appends the body of the response to a call; or says that it is to come as a message.
    fn serve(&mut self, of: &mut Known, call: InLine<'_>, out: &mut ReplyBody<'_>) -> bool;

    /// The same of a call that is still in memory which its client may write. If it cannot be served so,
    /// nothing has changed.
    fn serve_in_place(&mut self, of: &mut Known, large: &Large<'_, '_>, out: &mut ReplyBody<'_>) -> bool;
}

/// A ring and its blocks are taken in fewer.
const TAKES_BEHIND_END: u32 = 64;

/// Bytes of an emptied buffer that are kept.
const KEPT_BYTES: usize = 64 << 10;

/// All of them.
pub(super) struct Channels {
    peers: Vec<Option<SharedPeer>>,
    hot: Vec<usize>,
    /// A request, and the body of its response, while it is made.
    room: Room,
    body: Vec<u8>,
    spare: Spare,
    spin: Spin,
    /// Set if the budget is not given, but follows from where the clients may run.
    chooses_spin: bool,
    /// Since when none is hot.
    slept: Option<Instant>,
}

impl Channels {
    /// None yet; `spin` is how long the loop looks at them, if that is said.
    pub(super) fn new(spin: Option<Duration>) -> Channels {
        let chooses_spin = spin.is_none();
        let spin = spin.map_or_else(Spin::new, Spin::of);
        Channels {
            peers: Vec::new(),
            hot: Vec::new(),
            room: Room::default(),
            body: Vec::new(),
            spare: Spare::default(),
            spin,
            chooses_spin,
            slept: None,
        }
    }

    /// Adds a connection of a process; its number here.
    pub(super) fn add(&mut self, peer: SharedPeer, pid: i32) -> usize {
        if self.chooses_spin && !self.spin.watches_the_clock() {
            self.spin = Spin::beside(pid);
        }
        let free = self.peers.iter().position(Option::is_none).unwrap_or(self.peers.len());
        if free == self.peers.len() {
            self.peers.push(None);
        }
        self.peers[free] = Some(peer);
        self.heat(free);
        free
    }

    /// Counts the channels.
    pub(super) fn count(&self) -> usize {
        self.peers.iter().flatten().count()
    }

    pub(super) fn get(&self, at: usize) -> Option<&SharedPeer> {
        self.peers.get(at)?.as_ref()
    }

    fn get_mut(&mut self, at: usize) -> Option<&mut SharedPeer> {
        self.peers.get_mut(at)?.as_mut()
    }

    /// Takes a connection out. What it has sent stays for the client to read.
    pub(super) fn remove(&mut self, at: usize) -> Option<SharedPeer> {
        self.hot.retain(|hot| *hot != at);
        let mut peer = self.peers.get_mut(at)?.take()?;
        // The client may be about to read why.
        let _ = peer.flush();
        Some(peer)
    }

    /// Looks at it from now on, until there is nothing.
    pub(super) fn heat(&mut self, at: usize) {
        if !self.hot.contains(&at) {
            self.hot.push(at);
        }
        if let Some(since) = self.slept.take() {
            self.spin.slept(since.elapsed());
        }
    }

    /// A connection's client has rung: for a message, or for room. Says whether nothing waits for room now.
    ///
    /// # Errors
    /// The client wrote what it never writes.
    pub(super) fn rung(&mut self, at: usize) -> Result<bool, Corrupt> {
        self.heat(at);
        let Some(peer) = self.get_mut(at) else { return Ok(false) };
        Ok(peer.flush()? == Sent::Gone)
    }

    /// Sends, in the order of the calls.
    ///
    /// # Errors
    /// The client wrote what it never writes.
    pub(super) fn send(&mut self, at: usize, bytes: &[u8]) -> Result<Sent, Corrupt> {
        let Some(peer) = self.get_mut(at) else { return Ok(Sent::Gone) };
        let taken = match peer.unsent_bytes() {
            0 => channel::offer(&mut peer.sender, bytes)?,
            _ => 0,
        };
        if taken == bytes.len() {
            return Ok(Sent::Gone);
        }
        // The front is moved away when it is as long as the rest: each byte is moved once or twice.
        if peer.left >= peer.unsent_bytes() {
            peer.unsent.drain(..std::mem::take(&mut peer.left));
        }
        peer.unsent.extend_from_slice(&bytes[taken..]);
        peer.flush()
    }

    /// Appends what a connection has sent.
    ///
    /// # Errors
    /// The client wrote what it never writes.
    pub(super) fn take(&mut self, at: usize, into: &mut Vec<u8>) -> Result<(), Corrupt> {
        let Some(peer) = self.get_mut(at).filter(|peer| !peer.is_paused) else { return Ok(()) };
        into.append(&mut peer.pending);
        if peer.is_broken {
            return Err(Corrupt);
        }
        End::Server.take(&mut peer.receiver, into)
    }

    /// Serves the calls in lines that connections have sent, as far as nothing else came before them: each
    /// connection's in turn, and `calls_max` in all. Gives the number of calls that were served, and says
    /// whether something else is to be taken.
    #[inline(never)]
    pub(super) fn serve(&mut self, calls_max: u32, calls: &mut impl Calls) -> (u32, bool) {
        let Channels { peers, hot, room, body, spare, .. } = self;
        let mut served = 0;
        // Another one begins the next time.
        if hot.len() > 1 {
            hot.rotate_left(1);
        }
        for at in hot.iter() {
            let Some(peer) = peers.get_mut(*at).and_then(Option::as_mut).filter(|peer| !peer.is_paused)
            else {
                continue;
            };
            // A client that does not take its answers is held up as those on sockets are.
            if peer.is_due() || peer.unsent_bytes() > 0 {
                return (served, true);
            }
            if peer.client.is_none() {
                peer.client = calls.client_of(peer.conn).map(|client| Known { client, place: 0 });
            }
            while served < calls_max {
                match peer.serve_next(calls, room, body) {
                    Ok(Some(true)) => {}
                    Ok(Some(false)) => return (served, true),
                    Ok(None) => break,
                    Err(Corrupt) => {
                        peer.is_broken = true;
                        return (served, true);
                    }
                }
                served += 1;
                spare.empty(body, KEPT_BYTES);
                if peer.unsent_bytes() > 0 {
                    return (served, true);
                }
            }
        }
        (served, false)
    }

    /// The client has ended: what it sent before is still taken.
    pub(super) fn ended(&mut self, at: usize) {
        if let Some(peer) = self.get_mut(at) {
            peer.ends_in.get_or_insert(TAKES_BEHIND_END);
            self.heat(at);
        }
    }

    /// After a take, or an empty one: says whether a client has ended and nothing of its stream is left.
    pub(super) fn is_over(&mut self, at: usize, is_empty: bool) -> bool {
        let Some(peer) = self.get_mut(at) else { return false };
        let is_dead = peer.is_dead();
        let Some(left) = peer.ends_in.as_mut().filter(|_| is_dead || !peer.is_paused) else { return false };
        *left = left.saturating_sub(1);
        is_empty || *left == 0
    }

    /// Leaves what arrives where it is, or no longer.
    pub(super) fn pause(&mut self, at: usize, pause: bool) {
        if let Some(peer) = self.get_mut(at) {
            peer.is_paused = pause;
            if !pause {
                self.heat(at);
            }
        }
    }

    /// The numbers of those that are looked at.
    pub(super) fn hot(&self) -> impl Iterator<Item = usize> + use<> {
        self.hot.clone().into_iter()
    }

    /// Says whether a client has sent something. The look is too short to need a clock.
    pub(super) fn look_shortly(&mut self) -> bool {
        let looks = self.looks_at_first();
        !self.hot.is_empty() && self.is_any_ready(looks)
    }

    /// Says whether a client has sent something. It looks for about as long as a sleep would cost, and not
    /// beyond `until`. After a vain look, all clients will ring.
    pub(super) fn look(&mut self, until: Option<Instant>) -> bool {
        if self.hot.is_empty() {
            return false;
        }
        let looks = self.looks_at_first();
        if self.is_any_ready(looks) {
            self.spin.found_at_once();
            return true;
        }
        let begun = Instant::now();
        let budget = Duration::from_nanos(self.spin.budget_ns());
        let end = until.map_or(begun + budget, |until| until.min(begun + budget));
        while Instant::now() < end {
            if self.is_any_ready(LOOKS) {
                self.spin.found(begun.elapsed());
                return true;
            }
        }
        self.doze(begun)
    }

    /// Asks all for rings; whether one has sent something meanwhile.
    pub(super) fn doze(&mut self, begun: Instant) -> bool {
        let peers = &mut self.peers;
        // What is damaged is found out when it is taken.
        self.hot.retain(|at| match peers.get_mut(*at).and_then(Option::as_mut) {
            Some(peer) if peer.is_paused => peer.is_dead(),
            Some(peer) => peer.is_due() || !peer.receiver.doze().unwrap_or(false),
            None => false,
        });
        if self.hot.is_empty() {
            self.slept = Some(begun);
        }
        !self.hot.is_empty()
    }

    /// One where looking does not pay.
    fn looks_at_first(&self) -> u32 {
        if self.spin.budget_ns() > 0 { LOOKS_AT_FIRST } else { 1 }
    }

    fn is_any_ready(&mut self, looks: u32) -> bool {
        let Channels { peers, hot, .. } = self;
        (0..looks).any(|look| {
            if look > 0 {
                std::hint::spin_loop();
            }
            hot.iter().any(|at| {
                let peer = peers.get_mut(*at).and_then(Option::as_mut);
                peer.is_some_and(|peer| match peer.is_paused {
                    true => peer.is_dead(),
                    false => peer.is_due() || peer.receiver.is_ready().unwrap_or(true),
                })
            })
        })
    }
}

/// Looks before the clock is asked, and between two questions.
const LOOKS_AT_FIRST: u32 = 64;
const LOOKS: u32 = 16;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use tercel_events::EventQueue;
    use tercel_events::shm::{Channel, Config};

    use super::*;
    use tercel_wire::message::HEAD_BYTES;

    /// Notes how calls come.
    #[derive(Default)]
    struct Noted {
        in_place: Vec<usize>,
        copied: Vec<usize>,
        takes_in_place: bool,
    }

    impl Calls for Noted {
        fn client_of(&self, _: Conn) -> Option<ClientId> {
            Some(ClientId(7))
        }

        fn serve(&mut self, _: &mut Known, call: InLine<'_>, _: &mut ReplyBody<'_>) -> bool {
            assert!(call.body.iter().all(|byte| *byte == 5));
            self.copied.push(call.body.len());
            true
        }

        fn serve_in_place(&mut self, _: &mut Known, large: &Large<'_, '_>, _: &mut ReplyBody<'_>) -> bool {
            let (body, bytes) = large.body();
            let mut head = [0; 12];
            assert_eq!(large.head(&mut head), [5; 12]);
            assert_eq!(large.left_us(), 9);
            // The part begins after its length.
            let part = body.lend(HEAD_BYTES + 4, bytes - HEAD_BYTES - 4).unwrap();
            assert!(part.is_in_place() && part.to_vec().iter().all(|byte| *byte == 5));
            self.in_place.push(bytes);
            self.takes_in_place
        }
    }

    /// A client of the server's own user, and its number among these channels.
    fn add(channels: &mut Channels, queue: &mut EventQueue<()>, is_own: bool) -> ((Sender, Receiver), usize) {
        let (here, memory) = Channel::create(Config::default()).unwrap();
        let halves = Channel::open(memory).unwrap().split();
        let stream = queue.declare_stream(UnixStream::pair().unwrap().0, 0).unwrap();
        let peer = SharedPeer::new(Conn(1), stream, halves, is_own);
        (here.split(), channels.add(peer, 0))
    }

    #[test]
    fn backpressured_client_that_has_ended_is_over_at_once() {
        let mut queue = EventQueue::<()>::open(tercel_events::Config::default()).unwrap();
        let mut channels = Channels::new(None);
        let (_client, at) = add(&mut channels, &mut queue, true);
        channels.pause(at, true);
        channels.ended(at);
        // One that waits for its turn is served yet.
        assert!(!channels.is_over(at, true));
        assert!(matches!(channels.send(at, &vec![0; 4 << 20]), Ok(Sent::Waits(_))));
        assert!(channels.doze(Instant::now()), "the loop sleeps, and nothing wakes it");
        assert_eq!(channels.hot().collect::<Vec<_>>(), [at]);
        assert!(channels.is_over(at, true));
    }

    #[test]
    fn long_call_is_served_in_place_only_of_a_client_of_the_same_user() {
        let mut queue = EventQueue::<()>::open(tercel_events::Config::default()).unwrap();
        for (is_own, takes_in_place) in [(true, true), (true, false), (false, true)] {
            let mut channels = Channels::new(None);
            let ((mut sender, _receiver), _) = add(&mut channels, &mut queue, is_own);
            let mut noted = Noted { takes_in_place, ..Noted::default() };
            let long = [16 << 10, (16 << 10) + 4, 500_000, 900_000, 900_000];
            for rest in long {
                let head = (&[5; HEAD_BYTES], &[][..]);
                let bytes = &mut |sink: &mut tercel_wire::payload::PartSink<'_>| sink(&vec![5; rest]);
                assert_eq!(End::Client.send_with(&mut sender, 9, head, rest, |sink| bytes(sink)), Ok(true));
                assert_eq!(channels.serve(16, &mut noted), (1, false));
            }
            let all = long.map(|rest| HEAD_BYTES + rest);
            let (expected_in_place, expected_copied) = match (is_own, takes_in_place) {
                (true, true) => (all.to_vec(), Vec::new()),
                (true, false) => (all.to_vec(), all.to_vec()),
                (false, _) => (Vec::new(), all.to_vec()),
            };
            assert_eq!((noted.in_place, noted.copied), (expected_in_place, expected_copied), "{is_own}");
        }
    }
}
