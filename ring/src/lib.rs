//! A ring: messages of up to sixteen members, delivered to all of them in one order (Totem; Amir, Moser,
//! Melliar-Smith, Agarwal and Ciarfella, 1995).
//!
//! A token goes from member to member, and its holder numbers what it sends. *Agreed* delivery waits for all
//! lower numbers, *safe* delivery also for every member to have the message: each writes into the token, in a
//! row of its own, up to where it has everything. When a member is gone, the others gather, form a ring of a
//! higher number, and give each other what some of them lack of the ring before. Members that go together
//! from one configuration to the next deliver the same messages before it (extended virtual synchrony).
//!
//! Nothing here is durable but the number of a ring, so that none is used twice. A configuration is *primary*
//! if it has most of the configured members: no two disjoint configurations are primary, but a member that
//! was away is not told what it missed. Programs that need that keep a log, or a space.
//!
//! | file | its noun |
//! |---|---|
//! | [`members`] | places, sets of members, names of rings |
//! | [`packet`] | packets, and their checks |
//! | [`pack`] | messages into packets, and back |
//! | [`store`] | the packets of one ring |
//! | `visit` | a visit of the token: sending, rows, requests, windows, holding |
//! | `links` | links to members of other rings, and who is let in |
//! | `gather` | looking for members, and forming a ring of those that agree |
//! | `recover` | what the ring before still owes, and the change of configuration |
#![forbid(unsafe_code)]

mod gather;
mod links;
pub mod members;
pub mod pack;
pub mod packet;
mod recover;
pub mod store;
#[cfg(test)]
mod tests;
mod visit;

use std::sync::Arc;

use tercel_machine::mutant::{Rule, dropped};
use tercel_machine::time::Now;

use gather::Gather;
use links::Links;
use members::{Place, RingId, Set};
use pack::{Outbox, Pieces};
use packet::{Data, Head, Holds, Join, Packet};
use recover::Next;
use store::{Store, UNDELIVERED_MAX};
use visit::Tokens;

/// The settings of a ring. All members have the same but `me`.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// The place of this member.
    pub me: Place,
    /// The number of configured members, 2 to 16.
    pub members: usize,
    /// The group's name, which follows from the list of members.
    pub group: u64,
    /// Bytes of the largest packet.
    pub packet_bytes: usize,
    /// Bytes that all together send in a rotation: more fills the buffers of receivers, which then lose.
    pub window_bytes: u32,
    /// Bytes that one member sends in a visit of the token: more makes others wait.
    pub visit_bytes: u32,
    /// Bytes of a visit that are sent behind the token, at most half: more is asked for again in vain.
    pub behind_bytes: u32,
    /// The token is lost if it has not come for so long. It is longer than `hold_us`.
    pub lost_us: u64,
    /// A token is sent again if nothing shows that it has arrived.
    pub resend_us: u64,
    /// The leader holds the token of an idle ring for so long.
    pub hold_us: u64,
    /// A member that looks for others says so again.
    pub join_us: u64,
    /// A member that has not agreed for so long counts as failed.
    pub consensus_us: u64,
    /// A ring that lacks members tells them that it is there.
    pub beacon_us: u64,
    /// A member whose program takes nothing for so long is left out. One that asks for the same packet is
    /// after three times `lost_us`.
    pub stuck_us: u64,
    /// A process that is woken so much later than it asked for judges nobody by what ran out meanwhile.
    pub pause_us: u64,
}

impl Config {
    /// Usual settings: a member that is silent is noticed after half a second.
    pub fn new(me: Place, members: usize, group: u64, packet_bytes: usize) -> Config {
        Config {
            me,
            members,
            group,
            packet_bytes,
            // Half of what the kernel gives to a socket by default, with what it adds to packets.
            window_bytes: 96 << 10,
            visit_bytes: 48 << 10,
            behind_bytes: 24 << 10,
            lost_us: 300_000,
            // Longer than a thread usually waits for a core.
            resend_us: 2_000,
            hold_us: 100_000,
            join_us: 20_000,
            consensus_us: 200_000,
            beacon_us: 200_000,
            stuck_us: 10_000_000,
            pause_us: 20_000,
        }
    }
}

/// The promise of a message's delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Every message before it in the order has been delivered.
    Agreed,
    /// Also, every member of the configuration has it, and delivers it unless it fails.
    Safe,
}

/// Something that happened to a ring.
#[derive(Debug)]
pub enum Input<'a> {
    /// Another member sends this.
    Packet(Place, &'a [u8]),
    /// The program sends a message, for which [`Ring::has_room`].
    Submit(Level, Vec<u8>),
    /// Another member's process has ended, or seems to have.
    Gone(Place),
    /// The program has no room for messages, or has some again.
    Full(bool),
    /// All packets that have come are handed in, and it is so late.
    Drained,
}

/// Outputs of a ring. The host carries them out in order, and ends if one cannot be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send a packet to these members.
    Send(Set, Arc<Vec<u8>>),
    /// Remember durably that ring numbers up to this one may be in use, before anything else is done.
    Remember(u64),
    /// Deliver a message.
    Message(Message),
    /// Messages from here on are of this configuration.
    Configuration(Configuration),
}

/// A message, delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The member that sent it.
    pub from: Place,
    /// The level at which it was sent. In a transitional configuration, safe is among its members.
    pub level: Level,
    /// The bytes of the message.
    pub bytes: Vec<u8>,
}

/// The members among which messages are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Configuration {
    /// The ring. A transitional configuration has the ring whose last messages it delivers.
    pub ring: RingId,
    /// The members.
    pub members: Set,
    /// Set if most of the configured members are in it; never of a transitional configuration.
    pub is_primary: bool,
    /// Set between two rings: the members are those of the ring before that are in the next one too.
    pub is_transitional: bool,
}

/// The state of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The member looks for members.
    Gather,
    /// A ring is being formed.
    Commit,
    /// Members of the new ring give each other what they lack of their old ones.
    Recovery,
    /// Messages are ordered.
    Operational,
}

/// A member of a ring.
#[derive(Debug)]
pub struct Ring {
    config: Config,
    state: State,
    /// The ring whose messages are delivered.
    current: Epoch,
    /// The ring that is being formed.
    next: Option<Next>,
    outbox: Outbox,
    pieces: Pieces,
    gather: Gather,
    links: Links,
    numbers: Numbers,
    tokens: Tokens,
    /// Since when the program has had no room.
    full_since: Option<Now>,
    /// The next moment at which it wanted to be woken.
    asked: Now,
    /// Set once this process has slept: packets are older than they look until all of them are read.
    is_late: bool,
}

/// A ring as one member knows it.
#[derive(Debug)]
struct Epoch {
    id: RingId,
    members: Set,
    store: Store,
    /// The number of the last packet that was delivered.
    delivered: u64,
    /// The last number that this member gave to a packet.
    placed: u64,
    /// Every member has everything up to here.
    safe: u64,
    /// The own row.
    row: u64,
    /// Members whose messages are delivered beyond a gap: others may have done so, as promised to them.
    owed: Set,
}

/// Numbers of rings.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    /// The highest that this member has heard of.
    known: u64,
    /// The highest that it has agreed to.
    taken: u64,
    /// Numbers up to this one are remembered as used.
    remembered: u64,
}

/// Numbers are remembered in blocks, so that a change of members does not wait for the disk.
const NUMBERS_AT_ONCE: u64 = 64;

/// More rings than there are in the absence of a member.
const NUMBERS_AHEAD_MAX: u64 = 1 << 32;

/// A moment that does not come.
const NEVER: Now = Now(u64::MAX);

impl Ring {
    /// A member whose process begins, and the highest number that it has remembered; 0 if it never began.
    pub fn new(config: Config, remembered: u64, now: Now, out: &mut Vec<Output>) -> Ring {
        assert!((2..=members::MEMBERS_MAX).contains(&config.members), "a ring has 2 to 16 members");
        assert!(usize::from(config.me.0) < config.members, "this one is a member");
        assert!(
            config.hold_us < config.lost_us && config.packet_bytes >= packet::BYTES_MIN,
            "times and sizes fit"
        );
        let mut ring = Ring {
            config,
            state: State::Gather,
            current: Epoch::new(RingId::NONE, Set::one(config.me)),
            next: None,
            outbox: Outbox::default(),
            pieces: Pieces::default(),
            gather: Gather::default(),
            links: Links::default(),
            numbers: Numbers { known: remembered, taken: remembered, remembered },
            tokens: Tokens::new(),
            full_since: None,
            asked: NEVER,
            is_late: false,
        };
        ring.gather(now, Set::default(), Set::default(), out);
        ring
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Says whether a message of so many bytes can be submitted.
    pub fn has_room(&self, bytes: usize) -> bool {
        bytes <= pack::MESSAGE_MAX && self.outbox.has_room(bytes)
    }

    /// Takes in what happened and appends what it says.
    pub fn handle(&mut self, now: Now, input: Input<'_>, out: &mut Vec<Output>) {
        if now > self.asked.plus_us(self.config.pause_us) {
            self.slept(now);
        }
        match input {
            Input::Packet(from, bytes) => self.packet(now, from, bytes, out),
            Input::Submit(level, message) => {
                self.outbox.push(level, message);
                self.want_token(now, out);
            }
            Input::Gone(place) => self.gone(now, place, out),
            Input::Full(is_full) => {
                self.full_since = is_full.then_some(now);
                if !is_full {
                    self.deliver(out);
                    self.want_token(now, out);
                    if self.rests() {
                        self.gather(now, self.current.members, Set::default(), out);
                    }
                }
            }
            Input::Drained => self.drained(now, out),
        }
        self.asked = self.deadline().max(now);
    }

    /// Says whether all members have what was submitted.
    pub fn is_settled(&self) -> bool {
        self.outbox.is_empty() && self.next.is_none() && self.current.safe >= self.current.placed
    }

    /// Tells the others that this member's process ends, as far as a packet that may be lost does.
    pub fn leave(&self, out: &mut Vec<Output>) {
        let (heard, failed) = (self.current.members, Set::one(self.config.me));
        self.say(Join { heard, failed, hears: Set::default(), number: self.numbers.known }, out);
    }

    /// The next moment at which it needs [`Input::Drained`].
    pub fn deadline(&self) -> Now {
        if self.tokens.arrived.is_some() {
            return Now(0);
        }
        let Tokens { lost_at, resend_at, hold_until, beacon_at, cancel_at, .. } = self.tokens;
        match self.state {
            State::Gather => self.gather.join_at.min(self.gather.consensus_at),
            State::Commit | State::Recovery => lost_at.min(resend_at),
            State::Operational => lost_at.min(resend_at).min(hold_until).min(beacon_at).min(cancel_at),
        }
    }

    /// A pause: what ran out meanwhile begins anew, since others' packets may wait in the socket.
    fn slept(&mut self, now: Now) {
        self.is_late = true;
        if self.tokens.lost_at != NEVER {
            self.tokens.lost_at = self.tokens.lost_at.max(now.plus_us(self.config.lost_us));
        }
        self.gather.consensus_at = self.gather.consensus_at.max(now.plus_us(self.config.consensus_us));
    }

    fn packet(&mut self, now: Now, from: Place, bytes: &[u8], out: &mut Vec<Output>) {
        let Ok((head, packet)) = packet::decode(bytes, self.config.group, self.config.members) else {
            return;
        };
        let is_new = self.hear(now, from);
        // Data is sent again by others than its sender; the rest is not.
        let is_own = head.from == from;
        match packet {
            Packet::Data(data) => self.data(head.from, &data, bytes, out),
            _ if !is_own || from == self.config.me => {}
            Packet::Token(token) => self.take_token(token),
            Packet::Commit(commit) => self.take_commit(from, commit),
            Packet::Join(join) => self.take_join(now, from, join, out),
            Packet::Cancel(ring) => self.take_cancel(ring),
            Packet::Beacon(beacon) => self.take_beacon(now, from, beacon, is_new, out),
        }
    }

    fn data(&mut self, origin: Place, data: &Data<'_>, bytes: &[u8], out: &mut Vec<Output>) {
        match &mut self.next {
            Some(next) if next.epoch.id == data.ring => {
                let epoch = &mut next.epoch;
                if epoch.members.has(origin) && epoch.store.insert(data.number, Arc::new(bytes.to_vec())) {
                    self.recovered(data);
                }
            }
            // A packet of the old ring that comes outside of the recovery would be known to this member alone.
            Some(_) if !dropped(Rule::RecoveredNotWrapped) => {}
            _ if self.current.id == data.ring => {
                let epoch = &mut self.current;
                if epoch.members.has(origin) && epoch.store.insert(data.number, Arc::new(bytes.to_vec())) {
                    self.tokens.heard(data.number);
                    self.deliver(out);
                }
            }
            // Packets of the ring before may be late. Beacons tell that there is another ring.
            _ => {}
        }
    }

    fn drained(&mut self, now: Now, out: &mut Vec<Output>) {
        self.is_late = false;
        match self.tokens.arrived.take() {
            Some(Packet::Token(token)) => self.visit(now, token, out),
            Some(Packet::Commit(commit)) => self.form_further(now, commit, out),
            _ => {}
        }
        match self.state {
            State::Gather => self.time_in_gather(now, out),
            _ => self.time_in_ring(now, out),
        }
    }

    /// Delivers what may be delivered of the current ring.
    fn deliver(&mut self, out: &mut Vec<Output>) {
        if !matches!(self.state, State::Gather | State::Operational) {
            return;
        }
        while self.full_since.is_none() && self.deliver_next(out) {}
    }

    /// Delivers the next packet of the current ring, if it is there and may be delivered in its
    /// configuration.
    fn deliver_next(&mut self, out: &mut Vec<Output>) -> bool {
        let number = self.current.delivered + 1;
        let Some(bytes) = self.current.store.get(number).cloned() else { return false };
        let (head, data) = self.stored(&bytes);
        let is_safe = number <= self.current.safe || dropped(Rule::SafeWhenAgreed);
        if data.holds == Holds::Safe && !is_safe {
            return false;
        }
        self.current.delivered = number;
        self.emit(head.from, &data, out);
        true
    }

    /// Gives the program the messages that end in a packet.
    fn emit(&mut self, from: Place, data: &Data<'_>, out: &mut Vec<Output>) {
        let level = match data.holds {
            Holds::Agreed => Level::Agreed,
            Holds::Safe => Level::Safe,
            Holds::Recovered => return,
        };
        self.pieces.take(from, data.body, |bytes| out.push(Output::Message(Message { from, level, bytes })));
    }

    /// Reads a packet of the store, which was read before it was put there.
    fn stored<'a>(&self, bytes: &'a [u8]) -> (Head, Data<'a>) {
        match packet::decode(bytes, self.config.group, self.config.members) {
            Ok((head, Packet::Data(data))) => (head, data),
            _ => unreachable!("only data is stored"),
        }
    }

    fn encode(&self, packet: &Packet<'_>) -> Arc<Vec<u8>> {
        Arc::new(packet.encode(Head { from: self.config.me, group: self.config.group }))
    }

    /// Another member knows a ring of this number. Says whether that can be: one far beyond what is known is
    /// not believed, so that there is always a next.
    fn know(&mut self, number: u64) -> bool {
        let can_be = number < (self.numbers.known + NUMBERS_AHEAD_MAX).min(packet::NUMBERS_MAX / 2);
        if can_be {
            self.numbers.known = self.numbers.known.max(number);
        }
        can_be
    }

    /// Agrees to a ring of this number: it is used once.
    fn take_number(&mut self, number: u64, out: &mut Vec<Output>) {
        self.numbers.taken = number;
        self.numbers.known = self.numbers.known.max(number);
        if number > self.numbers.remembered && !dropped(Rule::RingNumberReused) {
            self.numbers.remembered = number + NUMBERS_AT_ONCE;
            out.push(Output::Remember(self.numbers.remembered));
        }
    }
}

impl Epoch {
    fn new(id: RingId, members: Set) -> Epoch {
        let (store, owed) = Default::default();
        Epoch { id, members, store, delivered: 0, placed: 0, safe: 0, row: 0, owed }
    }

    /// The row to write: up to where everything is there, and not too far beyond what was delivered.
    fn next_row(&mut self) -> u64 {
        let whole = if dropped(Rule::RowBehindGap) { self.store.highest() } else { self.store.whole() };
        self.row = self.row.max(whole.min(self.delivered + UNDELIVERED_MAX));
        self.row
    }
}
