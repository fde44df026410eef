//! The seal of a ring's packets, from each member to each other one.
//!
//! ```text
//!  0  magic "TR", version 1   3
//!  3  place of the sender     1
//!  4  name of the key         4
//!  8  number                  8
//! 16  salt                   16   drawn by the sender's process
//!     kind                    1   sealed from here on: 0 a packet of the ring, 1 a challenge, 2 its answer
//!     packet, or nonce        .
//!     tag                    16
//! ```
//!
//! The key of a direction follows from the file's key, the salt, the list of members and both places (HMAC
//! with SHA-256). Packets under a salt that the receiver does not know count for nothing: they are of a
//! process that has just begun, or were recorded of one that is gone. The receiver draws a nonce and sends
//! it; a salt under which that nonce comes back is of a process that lives, and counts from then on.

use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tercel_datagram::Packets;
use tercel_datagram::seal::{KEY_BYTES, Opener, Sealer, TAG_BYTES};
use tercel_ring::members::Place;

use super::RingError;
use super::keys::{Key, KeyName, Keys};
use crate::disk::DiskError;
use crate::disk::secret::random_bytes;

/// Bytes that the seal adds to a packet of the ring.
pub(super) const SEAL_BYTES: usize = HEAD_BYTES + 1 + TAG_BYTES;

const HEAD_BYTES: usize = 32;
const MAGIC: [u8; 3] = [b'T', b'R', 1];
const SALT_BYTES: usize = 16;
const NONCE_BYTES: usize = 16;

const PACKET: u8 = 0;
const CHALLENGE: u8 = 1;
const ANSWER: u8 = 2;

/// A challenge is sent again after this, if packets under an unknown salt go on to come.
const CHALLENGE_AGAIN: Duration = Duration::from_millis(5);

/// An answer that took longer may be of a process that has ended since.
const CHALLENGE_LASTS: Duration = Duration::from_secs(1);

/// Time between two looks at the file.
const LOOK: Duration = Duration::from_secs(1);

/// The same while packets come whose key is not known.
const LOOK_ANEW: Duration = Duration::from_millis(50);

/// Time between two complaints about a member, or about the file.
const COMPLAINT: Duration = Duration::from_secs(10);

/// The seals of a member, towards each other one.
pub(super) struct Seals {
    keys: Keys,
    group: u64,
    me: Place,
    salt: [u8; SALT_BYTES],
    peers: Vec<PeerSeal>,
    looked: Instant,
    /// The last complaint about the file.
    warned: Option<Instant>,
}

struct PeerSeal {
    place: Place,
    sealer: Sealer,
    /// The packets of the peer's process that has proven to live.
    known: Option<Known>,
    challenge: Option<Challenge>,
    complained: Option<Instant>,
}

/// A nonce that is to come back, when it was drawn, and when it was said last.
#[derive(Clone, Copy)]
struct Challenge {
    nonce: [u8; NONCE_BYTES],
    drawn: Instant,
    said: Instant,
}

struct Known {
    salt: [u8; SALT_BYTES],
    key: KeyName,
    opener: Opener,
}

impl Seals {
    /// The seals by a file of keys, of a member of a list, towards the others in this order.
    pub(super) fn new(
        keys: Keys,
        group: u64,
        me: Place,
        peers: impl Iterator<Item = Place>,
    ) -> Result<Seals, RingError> {
        let salt = draw(&keys)?;
        let sealer = |to| Sealer::new(&direction(keys.first(), &salt, group, (me, to)));
        let peers = peers.map(|place| PeerSeal {
            place,
            sealer: sealer(place),
            known: None,
            challenge: None,
            complained: None,
        });
        let peers = peers.collect();
        Ok(Seals { keys, group, me, salt, peers, looked: Instant::now(), warned: None })
    }

    /// Reads the file of keys anew, if it is time.
    pub(super) fn look(&mut self, now: Instant) {
        if now.saturating_duration_since(self.looked) < LOOK {
            return;
        }
        self.looked = now;
        let before = self.keys.first().name;
        // A key that comes back would count its packets from one again under the same salt. Without a salt
        // that is new no other key is taken.
        let looked = draw(&self.keys).and_then(|drawn| Ok((drawn, self.keys.look()?)));
        let drawn = match looked {
            Ok((drawn, true)) => drawn,
            Ok((_, false)) => return,
            Err(why) => {
                if is_due(&mut self.warned, now) {
                    tracing::warn!("{why}; the keys that were read before count");
                }
                return;
            }
        };
        let Seals { keys, group, me, salt, peers, .. } = self;
        for peer in &mut *peers {
            peer.known.take_if(|known| keys.find(known.key).is_none());
        }
        if keys.first().name == before {
            return;
        }
        *salt = drawn;
        for peer in peers {
            peer.sealer = Sealer::new(&direction(keys.first(), salt, *group, (*me, peer.place)));
        }
    }

    /// Appends what is to be sealed of a packet of the ring.
    pub(super) fn put(packet: &[u8], out: &mut Vec<u8>) {
        out.push(PACKET);
        out.extend_from_slice(packet);
    }

    /// Appends it, sealed for a peer.
    pub(super) fn seal(&mut self, at: usize, packet: &[u8], out: &mut Vec<u8>) {
        let mut head = [0; HEAD_BYTES];
        head[..3].copy_from_slice(&MAGIC);
        head[3] = self.me.0;
        head[4..8].copy_from_slice(&self.keys.first().name);
        head[16..].copy_from_slice(&self.salt);
        self.peers[at].sealer.seal(head, packet, out);
    }

    /// Opens a datagram of a peer into `room`. Gives a packet of the ring; what is to be said of the seals is
    /// added to `out`.
    pub(super) fn open<'r>(
        &mut self,
        at: usize,
        datagram: &[u8],
        now: Instant,
        room: &'r mut Vec<u8>,
        out: &mut Packets<()>,
    ) -> Option<&'r [u8]> {
        let Seals { keys, group, me, peers, looked, .. } = self;
        let peer = &mut peers[at];
        let head = datagram.first_chunk::<HEAD_BYTES>()?;
        if !head.starts_with(&MAGIC) || head[3] != peer.place.0 {
            return None;
        }
        let (mut name, mut salt) = (KeyName::default(), [0; SALT_BYTES]);
        name.copy_from_slice(&head[4..8]);
        salt.copy_from_slice(&head[16..]);
        let Some(key) = keys.find(name) else {
            // The file may have it by now.
            *looked = (*looked).min(now.checked_sub(LOOK - LOOK_ANEW).unwrap_or(now));
            peer.complain(now, keys);
            return None;
        };
        let known = peer.known.as_mut().filter(|known| (known.salt, known.key) == (salt, name));
        let mut stranger = None;
        let is_known = known.is_some();
        let opener = match known {
            Some(known) => &mut known.opener,
            None => stranger.insert(Opener::new(&direction(key, &salt, *group, (peer.place, *me)))),
        };
        let (kind, said) = opener.open::<HEAD_BYTES>(datagram, room)?.split_first()?;
        match *kind {
            PACKET if is_known => return Some(said),
            PACKET => peer.challenge(now, out),
            CHALLENGE if said.len() == NONCE_BYTES => out.packet((), |out| {
                out.push(ANSWER);
                out.extend_from_slice(said);
            }),
            ANSWER if peer.challenge.is_some_and(|challenge| challenge.is_answered(now, said)) => {
                peer.challenge = None;
                if let Some(mut opener) = stranger {
                    // Packets that came under this salt before may be sent again.
                    opener.forget_older();
                    peer.known = Some(Known { salt, key: name, opener });
                }
            }
            _ => {}
        }
        None
    }
}

impl Challenge {
    fn is_answered(&self, now: Instant, said: &[u8]) -> bool {
        self.nonce == said && now.saturating_duration_since(self.drawn) < CHALLENGE_LASTS
    }
}

impl PeerSeal {
    /// Asks whoever speaks there to show that it lives.
    fn challenge(&mut self, now: Instant, out: &mut Packets<()>) {
        let challenge =
            self.challenge.take_if(|it| now.saturating_duration_since(it.drawn) < CHALLENGE_LASTS);
        let nonce = match challenge.map_or_else(draw_nonce, |it| Ok(it.nonce)) {
            Ok(nonce) => nonce,
            // The next packet asks again.
            Err(_) => return,
        };
        let (drawn, said) = challenge.map_or((now, None), |it| (it.drawn, Some(it.said)));
        let is_due = said.is_none_or(|said| now.saturating_duration_since(said) >= CHALLENGE_AGAIN);
        let said = if is_due { now } else { said.unwrap_or(now) };
        self.challenge = Some(Challenge { nonce, drawn, said });
        if is_due {
            out.packet((), |out| {
                out.push(CHALLENGE);
                out.extend_from_slice(&nonce);
            });
        }
    }

    fn complain(&mut self, now: Instant, keys: &Keys) {
        if is_due(&mut self.complained, now) {
            let (place, file) = (self.place.0 + 1, keys.path().display());
            tracing::warn!(
                "member {place} of the list seals with a key that is not in {file}: bring it the same file"
            );
        }
    }
}

/// Says whether a complaint is due, and notes it.
fn is_due(last: &mut Option<Instant>, now: Instant) -> bool {
    let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= COMPLAINT);
    if is_due {
        *last = Some(now);
    }
    is_due
}

fn draw(keys: &Keys) -> Result<[u8; SALT_BYTES], RingError> {
    let mut salt = [0; SALT_BYTES];
    salt.copy_from_slice(&random_bytes(keys.path())?[..SALT_BYTES]);
    Ok(salt)
}

fn draw_nonce() -> Result<[u8; NONCE_BYTES], DiskError> {
    let mut nonce = [0; NONCE_BYTES];
    nonce.copy_from_slice(&random_bytes("a challenge".as_ref())?[..NONCE_BYTES]);
    Ok(nonce)
}

/// The key of the packets from one member to another.
fn direction(key: &Key, salt: &[u8; SALT_BYTES], group: u64, (from, to): (Place, Place)) -> [u8; KEY_BYTES] {
    let mut mac = Hmac::<Sha256>::new_from_slice(&key.bytes).expect("a key may have any length");
    mac.update(b"tercel ring packets\0");
    mac.update(salt);
    mac.update(&group.to_le_bytes());
    mac.update(&[from.0, to.0]);
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::keys::make_key;
    use super::*;

    const GROUP: u64 = 7;

    fn member(key: &Path, me: u8, peer: u8) -> Seals {
        let keys = Keys::open(key).unwrap();
        Seals::new(keys, GROUP, Place(me), [Place(peer)].into_iter()).unwrap()
    }

    fn sealed(by: &mut Seals, packet: &[u8]) -> Vec<u8> {
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        Seals::put(packet, &mut plain);
        by.seal(0, &plain, &mut out);
        out
    }

    /// Hands a datagram in. Gives the packet of the ring, and what is said, sealed.
    fn came(at: &mut Seals, datagram: &[u8]) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
        let (mut room, mut out) = (Vec::new(), Packets::default());
        let packet = at.open(0, datagram, Instant::now(), &mut room, &mut out).map(<[u8]>::to_vec);
        let said = out.iter().map(|(_, plain)| {
            let mut out = Vec::new();
            at.seal(0, plain, &mut out);
            out
        });
        (packet, said.collect())
    }

    /// Exchanges what is said of the seals until nothing more is.
    fn settle(one: &mut Seals, other: &mut Seals, mut said: Vec<Vec<u8>>) {
        let mut ends = [one, other];
        while !said.is_empty() {
            said = said.iter().flat_map(|datagram| came(ends[0], datagram).1).collect();
            ends.swap(0, 1);
        }
    }

    #[test]
    fn process_counts_once_it_has_shown_life() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        make_key(&key).unwrap();
        let (mut one, mut two) = (member(&key, 0, 1), member(&key, 1, 0));
        let first = sealed(&mut one, b"first");
        assert_eq!(first.len(), 5 + SEAL_BYTES);
        let (packet, said) = came(&mut two, &first);
        assert_eq!((packet, said.len()), (None, 1));
        settle(&mut one, &mut two, said);
        let second = sealed(&mut one, b"second");
        assert_eq!(came(&mut two, &second), (Some(b"second".to_vec()), vec![]));
        assert_eq!(came(&mut two, &second).0, None, "it is taken again");
        // A new process in its place; what the old one said is recorded.
        let recorded = sealed(&mut one, b"recorded");
        let mut anew = member(&key, 0, 1);
        let (_, said) = came(&mut two, &sealed(&mut anew, b"a"));
        settle(&mut anew, &mut two, said);
        assert_eq!(came(&mut two, &sealed(&mut anew, b"b")).0, Some(b"b".to_vec()));
        let (packet, said) = came(&mut two, &recorded);
        assert_eq!((packet, said.len()), (None, 1));
        // The process that lives answers for itself, and not for the one that is gone.
        settle(&mut anew, &mut two, said);
        assert_eq!(came(&mut two, &sealed(&mut one, b"gone")).0, None);
        assert_eq!(came(&mut two, &sealed(&mut anew, b"c")).0, Some(b"c".to_vec()));
    }

    #[test]
    fn changed_and_misdirected_datagrams_count_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let [key, other] = ["key", "other"].map(|name| dir.path().join(name));
        [&key, &other].into_iter().for_each(|key| make_key(key).unwrap());
        let (mut one, mut two) = (member(&key, 0, 1), member(&key, 1, 0));
        let (_, said) = came(&mut two, &sealed(&mut one, b"first"));
        settle(&mut one, &mut two, said);
        let packet = sealed(&mut one, b"packet");
        for at in 0..packet.len() {
            let mut changed = packet.clone();
            changed[at] ^= 1;
            assert_eq!(came(&mut two, &changed).0, None, "byte {at}");
            assert_eq!(came(&mut two, &packet[..at]), (None, vec![]), "{at} bytes");
        }
        // Another list, another receiver, another key, and its own packet sent back.
        assert_eq!(came(&mut member(&key, 2, 0), &packet), (None, vec![]));
        let mut elsewhere = member(&key, 1, 0);
        elsewhere.group = 8;
        assert_eq!(came(&mut elsewhere, &packet), (None, vec![]));
        assert_eq!(came(&mut member(&other, 1, 0), &packet), (None, vec![]));
        assert_eq!(came(&mut one, &packet), (None, vec![]));
        assert_eq!(came(&mut two, &packet).0, Some(b"packet".to_vec()));
    }

    #[test]
    fn key_changes_in_three_steps_without_a_gap() {
        let dir = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| {
            make_key(dir.path().join(name)).unwrap();
            std::fs::read_to_string(dir.path().join(name)).unwrap()
        });
        let paths = ["one", "two"].map(|name| dir.path().join(name));
        paths.iter().for_each(|path| _ = std::fs::copy(dir.path().join("old"), path).unwrap());
        let (mut one, mut two) = (member(&paths[0], 0, 1), member(&paths[1], 1, 0));
        let mut later = Instant::now();
        let (_, said) = came(&mut two, &sealed(&mut one, b"first"));
        settle(&mut one, &mut two, said);
        for text in [format!("{old}{new}"), format!("{new}{old}"), new.clone()] {
            for path in &paths {
                std::fs::write(path, &text).unwrap();
                later += 2 * LOOK;
                // One of them has looked, the other has not yet.
                match path == &paths[0] {
                    true => one.look(later),
                    false => two.look(later),
                }
                let (packet, said) = came(&mut two, &sealed(&mut one, b"between"));
                if packet.is_none() {
                    settle(&mut one, &mut two, said);
                    assert_eq!(came(&mut two, &sealed(&mut one, b"again")).0, Some(b"again".to_vec()));
                }
            }
        }
        assert!(
            one.keys.first().name == two.keys.first().name && one.keys.find(one.keys.first().name).is_some()
        );
    }
}
