//! The seal of packets: each is encrypted and authenticated alone, so that any may be lost or late.
//!
//! ```text
//!  0  the head's own    8   magic, version, and what the owner of the head says
//!  8  number            8   counts the packets of a key: no two have the same, so no nonce is used twice
//! 16  the head's own    .   readable, and authenticated with the packet
//!     packet            .   by AES-256-GCM
//!     tag              16
//! ```
//!
//! A receiver takes each number once. It remembers the newest 1,024 and takes none that is older (as does
//! RFC 4303, section 3.4.3). The invariant: bytes that were not sealed with the key change nothing here.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use tercel_machine::mutant::{Rule, dropped};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// Bytes of the tag behind a sealed packet.
pub const TAG_BYTES: usize = 16;

/// Bytes that the seal of a call's packet adds.
pub const CALL_SEAL_BYTES: usize = CALL_HEAD_BYTES + TAG_BYTES;

const CALL_HEAD_BYTES: usize = 24;
const CALL_MAGIC: [u8; 3] = [b'T', b'D', 2];

/// The place of the number in a head.
const NUMBER_AT: usize = 8;
const NUMBER_BYTES: usize = 8;

/// Seals the packets of one sender.
pub struct Sealer {
    key: LessSafeKey,
    next: u64,
}

/// Opens the packets of one sender.
pub struct Opener {
    key: LessSafeKey,
    window: Window,
}

/// The numbers that have come: the newest, and of the [`WINDOW`] up to it each by a bit.
struct Window {
    newest: u64,
    came: [u64; WINDOW as usize / 64],
}

/// Numbers that are remembered. A packet that is overtaken by more is lost.
const WINDOW: u64 = 1_024;

/// The seal of a connection of calls, at one of its ends.
pub struct Seal {
    head: [u8; CALL_HEAD_BYTES],
    sealer: Sealer,
    opener: Opener,
}

impl Seal {
    /// The seal of the end that calls, by a secret that both ends have of this connection and nobody else
    /// has: the key of the caller's packets, then that of the answerer's.
    pub fn of_caller(connection: u64, secret: &[u8; 2 * KEY_BYTES]) -> Seal {
        let (callers, answerers) = halves(secret);
        Seal::new(connection, callers, answerers)
    }

    /// The seal of the end that is called.
    pub fn of_answerer(connection: u64, secret: &[u8; 2 * KEY_BYTES]) -> Seal {
        let (callers, answerers) = halves(secret);
        Seal::new(connection, answerers, callers)
    }

    fn new(connection: u64, own: [u8; KEY_BYTES], others: [u8; KEY_BYTES]) -> Seal {
        let mut head = [0; CALL_HEAD_BYTES];
        head[..CALL_MAGIC.len()].copy_from_slice(&CALL_MAGIC);
        // Where a plain packet has it.
        head[16..].copy_from_slice(&connection.to_le_bytes());
        Seal { head, sealer: Sealer::new(&own), opener: Opener::new(&others) }
    }

    /// Appends a packet, sealed.
    pub fn seal(&mut self, packet: &[u8], out: &mut Vec<u8>) {
        self.sealer.seal(self.head, packet, out);
    }

    /// Opens a packet into `room`; none if the other end has not sealed it, or it has come before.
    pub fn open<'r>(&mut self, sealed: &[u8], room: &'r mut Vec<u8>) -> Option<&'r [u8]> {
        sealed.starts_with(&CALL_MAGIC).then_some(())?;
        self.opener.open::<CALL_HEAD_BYTES>(sealed, room)
    }
}

impl Sealer {
    /// A sender's. A key is used by one sealer, ever.
    pub fn new(key: &[u8; KEY_BYTES]) -> Sealer {
        Sealer { key: aead(key), next: 1 }
    }

    /// Appends a packet, sealed, behind its head.
    pub fn seal<const HEAD: usize>(&mut self, mut head: [u8; HEAD], packet: &[u8], out: &mut Vec<u8>) {
        let number = self.next;
        self.next += 1;
        head[NUMBER_AT..NUMBER_AT + NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
        let begin = out.len();
        out.reserve(HEAD + packet.len() + TAG_BYTES);
        out.extend_from_slice(&head);
        out.extend_from_slice(packet);
        let packet = &mut out[begin + HEAD..];
        match self.key.seal_in_place_separate_tag(nonce(number), Aad::from(head), packet) {
            Ok(tag) => out.extend_from_slice(tag.as_ref()),
            // A packet of gigabytes, which nobody sends, is never sent in plain words.
            Err(_) => out.truncate(begin),
        }
    }
}

impl Opener {
    /// The opener of a sender's packets.
    pub fn new(key: &[u8; KEY_BYTES]) -> Opener {
        Opener { key: aead(key), window: Window { newest: 0, came: [0; WINDOW as usize / 64] } }
    }

    /// Opens no packet any more whose number is below the newest that has come.
    pub fn forget_older(&mut self) {
        self.window.came.fill(u64::MAX);
    }

    /// Opens a packet into `room`; none if the sender has not sealed it, or it has come before.
    pub fn open<'r, const HEAD: usize>(&mut self, sealed: &[u8], room: &'r mut Vec<u8>) -> Option<&'r [u8]> {
        let (head, packet) = sealed.split_first_chunk::<HEAD>()?;
        let (_, number) = head.split_at_checked(NUMBER_AT)?;
        let number = u64::from_le_bytes(*number.first_chunk()?);
        if !self.window.is_new(number) {
            return None;
        }
        if dropped(Rule::WindowMovedUnopened) {
            self.window.note(number);
        }
        room.clear();
        room.extend_from_slice(packet);
        let opened = self.key.open_in_place(nonce(number), Aad::from(head), room).ok()?;
        self.window.note(number);
        Some(opened)
    }
}

impl Window {
    fn is_new(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        match self.newest.checked_sub(number) {
            None => true,
            Some(age) => age < WINDOW && self.came[word] & bit == 0 && number != 0,
        }
    }

    /// A number has come.
    fn note(&mut self, number: u64) {
        if number > self.newest {
            if number - self.newest >= WINDOW {
                self.came.fill(0);
            } else {
                (self.newest + 1..number).map(place).for_each(|(word, bit)| self.came[word] &= !bit);
            }
            self.newest = number;
        }
        let (word, bit) = place(number);
        self.came[word] |= bit;
    }
}

fn halves(secret: &[u8; 2 * KEY_BYTES]) -> ([u8; KEY_BYTES], [u8; KEY_BYTES]) {
    let (mut first, mut second) = ([0; KEY_BYTES], [0; KEY_BYTES]);
    first.copy_from_slice(&secret[..KEY_BYTES]);
    second.copy_from_slice(&secret[KEY_BYTES..]);
    (first, second)
}

/// The word and the bit of a number.
fn place(number: u64) -> (usize, u64) {
    let at = number % WINDOW;
    ((at / 64) as usize, 1 << (at % 64))
}

fn aead(key: &[u8; KEY_BYTES]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("a key of the length that the cipher takes"))
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use tercel_machine::random::Random;

    use super::*;

    fn ends() -> (Seal, Seal) {
        let secret: [u8; 2 * KEY_BYTES] = std::array::from_fn(|at| at as u8);
        (Seal::of_caller(7, &secret), Seal::of_answerer(7, &secret))
    }

    fn sealed(by: &mut Seal, packet: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        by.seal(packet, &mut out);
        out
    }

    #[test]
    fn changed_bytes_and_prefixes_open_nothing() {
        let (mut caller, mut answerer) = ends();
        let (sealed, mut room) = (sealed(&mut caller, b"a packet"), Vec::new());
        assert_eq!(sealed.len(), 8 + CALL_SEAL_BYTES);
        assert_eq!(crate::packet::connection(&sealed), Some(7));
        for at in 0..sealed.len() {
            assert!(answerer.open(&sealed[..at], &mut room).is_none(), "{at} bytes are opened");
            for bit in 0..8 {
                let mut changed = sealed.clone();
                changed[at] ^= 1 << bit;
                assert!(answerer.open(&changed, &mut room).is_none(), "bit {bit} of byte {at}");
            }
        }
        // It would not open what it has sealed itself.
        assert!(caller.open(&sealed, &mut room).is_none());
        assert_eq!(answerer.open(&sealed, &mut room), Some(&b"a packet"[..]));
        assert!(answerer.open(&sealed, &mut room).is_none(), "it is opened again");
    }

    #[test]
    fn each_packet_opens_once_in_any_order() {
        let (mut caller, mut answerer) = ends();
        let packets: Vec<Vec<u8>> = (0..5_000_u32).map(|n| sealed(&mut caller, &n.to_le_bytes())).collect();
        let (mut random, mut room, mut opened) = (Random::new(3), Vec::new(), 0);
        let mut came = vec![false; packets.len()];
        let mut newest = 0;
        for _ in 0..20_000 {
            // Mostly near to the newest, now and then far back.
            let back = if random.below(10) == 0 { random.below(3_000) } else { random.below(100) };
            let at = match random.below(2) {
                0 => newest + random.below(3),
                _ => newest.saturating_sub(back),
            };
            let at = at.min(4_999) as usize;
            let is_opened = answerer.open(&packets[at], &mut room).is_some();
            let is_old = at as u64 + WINDOW <= newest;
            assert_eq!(is_opened, !came[at] && !is_old, "packet {at} behind {newest}");
            came[at] |= is_opened;
            opened += usize::from(is_opened);
            newest = newest.max(at as u64);
        }
        assert!(opened > 1_000, "{opened}");
    }
}
