//! The bytes of an archive's objects: pieces of the log, and pieces of bases.
//!
//! ```text
//!  0  magic      8   `tercelar`
//!  8  version    2   1
//! 10  kind       2   1 log, 2 state, 3 pages
//! 12  raw        4   bytes of the contents before they were compressed
//! 16  space      8
//! 24  before    32   the digest of the object before in its chain; zeros if it is the first
//! 56  first      8   of a log object: the stamp and the position of its first entry, the stamp and the
//! 64  position   8   position of its last one; of a piece of a base: the base's stamp, the piece's
//! 72  last       8   number from 0, and zeros
//! 80  end        8
//! 88  times      4   how many, then of each: milliseconds since 1970, and the last stamp read then
//! 92  ..
//!     contents       lz4, one block
//!     digest    32   SHA-256 of all bytes before
//! ```
//!
//! The contents of a log object are entries, one behind the other: stamp 8, view (number 4, incarnation 4),
//! kind 1, bytes of the payload 4, payload. An object is believed if its digest is right, and its chain is.

use sha2::{Digest as _, Sha256};
use tercel::tools::engine::order::Sealed;
use tercel::{SpaceId, Stamp, ViewId};
use thiserror::Error;

/// A digest: SHA-256.
pub type Digest = [u8; 32];

/// The contents of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Entries of the log.
    Log,
    /// A piece of a base's ordered state.
    State,
    /// Whole pages of a base.
    Pages,
}

/// An object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// The kind of the contents.
    pub kind: Kind,
    /// The space.
    pub space: SpaceId,
    /// The digest of the object before.
    pub before: Digest,
    /// The stamp of the first entry, or of the base.
    pub first: Stamp,
    /// The position of the first entry, or the number of the piece.
    pub position: u64,
    /// The stamp of the last entry.
    pub last: Stamp,
    /// The position of the last entry.
    pub end: u64,
    /// Moments, in milliseconds since 1970, each with the last stamp that had been read.
    pub times: Vec<(u64, Stamp)>,
    /// The contents.
    pub contents: Vec<u8>,
}

/// An object that is not one, or not the one that belongs there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Damage {
    /// The object has other bytes than were written.
    #[error("its bytes are not those that were written")]
    Bytes,
    /// The object is of a later build.
    #[error("it is of a later version; use the build that wrote it")]
    Version,
    /// The object is another one than the chain has there.
    #[error("it does not continue the object before it")]
    Chain,
}

const MAGIC: &[u8; 8] = b"tercelar";
const VERSION: u16 = 1;
const HEAD_BYTES: usize = 92;
const DIGEST_BYTES: usize = 32;

/// Contents are at most so large: what a writer holds, with room for one entry.
const CONTENTS_BYTES_MAX: usize = 80 << 20;

impl Object {
    /// Its bytes, and the digest that they end with.
    #[must_use]
    pub fn encode(&self) -> (Vec<u8>, Digest) {
        let mut out = Vec::with_capacity(HEAD_BYTES + self.contents.len() / 2 + DIGEST_BYTES);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let kind: u16 = match self.kind {
            Kind::Log => 1,
            Kind::State => 2,
            Kind::Pages => 3,
        };
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&(self.contents.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.space.0.to_le_bytes());
        out.extend_from_slice(&self.before);
        for n in [self.first.0, self.position, self.last.0, self.end] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.extend_from_slice(&(self.times.len() as u32).to_le_bytes());
        for (ms, stamp) in &self.times {
            out.extend_from_slice(&ms.to_le_bytes());
            out.extend_from_slice(&stamp.0.to_le_bytes());
        }
        out.extend_from_slice(&lz4_flex::block::compress(&self.contents));
        let digest: Digest = Sha256::digest(&out).into();
        out.extend_from_slice(&digest);
        (out, digest)
    }

    /// Reads one, and the digest that it ends with.
    ///
    /// # Errors
    /// If the bytes are not those of an object.
    pub fn decode(bytes: &[u8]) -> Result<(Object, Digest), Damage> {
        let (body, digest) = bytes.split_last_chunk::<DIGEST_BYTES>().ok_or(Damage::Bytes)?;
        if body.len() < HEAD_BYTES || Digest::from(Sha256::digest(body)) != *digest || &body[..8] != MAGIC {
            return Err(Damage::Bytes);
        }
        if u16_at(body, 8) != VERSION {
            return Err(Damage::Version);
        }
        let kind = match u16_at(body, 10) {
            1 => Kind::Log,
            2 => Kind::State,
            3 => Kind::Pages,
            _ => return Err(Damage::Version),
        };
        let (raw, count) = (u32_at(body, 12) as usize, u32_at(body, 88) as usize);
        let contents_at = count.checked_mul(16).and_then(|n| n.checked_add(HEAD_BYTES));
        let contents_at = contents_at.filter(|at| *at <= body.len()).ok_or(Damage::Bytes)?;
        if raw > CONTENTS_BYTES_MAX {
            return Err(Damage::Bytes);
        }
        let contents = lz4_flex::block::decompress(&body[contents_at..], raw).map_err(|_| Damage::Bytes)?;
        if contents.len() != raw {
            return Err(Damage::Bytes);
        }
        let times = body[HEAD_BYTES..contents_at].chunks_exact(16);
        let mut before = [0; DIGEST_BYTES];
        before.copy_from_slice(&body[24..56]);
        let object = Object {
            kind,
            space: SpaceId(u64_at(body, 16)),
            before,
            first: Stamp(u64_at(body, 56)),
            position: u64_at(body, 64),
            last: Stamp(u64_at(body, 72)),
            end: u64_at(body, 80),
            times: times.map(|time| (u64_at(time, 0), Stamp(u64_at(time, 8)))).collect(),
            contents,
        };
        Ok((object, *digest))
    }

    /// The entries of a log object.
    ///
    /// # Errors
    /// If the contents are no entries, or not those that the head names.
    pub fn entries(&self) -> Result<Vec<Sealed>, Damage> {
        let (mut entries, mut rest) = (Vec::new(), &self.contents[..]);
        while !rest.is_empty() {
            if rest.len() < ENTRY_HEAD_BYTES {
                return Err(Damage::Bytes);
            }
            let (head, after) = rest.split_at(ENTRY_HEAD_BYTES);
            let length = u32_at(head, 17) as usize;
            if after.len() < length {
                return Err(Damage::Bytes);
            }
            let (payload, after) = after.split_at(length);
            entries.push(Sealed {
                stamp: Stamp(u64_at(head, 0)),
                view: ViewId::new(u32_at(head, 8), u32_at(head, 12)),
                kind: head[16],
                payload: payload.to_vec().into(),
            });
            rest = after;
        }
        let ends = entries.first().zip(entries.last());
        let is_named = ends.is_some_and(|(first, last)| (first.stamp, last.stamp) == (self.first, self.last))
            && self.end + 1 == self.position + entries.len() as u64;
        if is_named { Ok(entries) } else { Err(Damage::Bytes) }
    }
}

/// Appends an entry to the contents of a log object.
pub fn put_entry(entry: &Sealed, out: &mut Vec<u8>) {
    out.extend_from_slice(&entry.stamp.0.to_le_bytes());
    out.extend_from_slice(&entry.view.number.to_le_bytes());
    out.extend_from_slice(&entry.view.incarnation.to_le_bytes());
    out.push(entry.kind);
    out.extend_from_slice(&(entry.payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&entry.payload);
}

/// The digest of an entry, by which a writer sees that a log is the one that it has archived.
#[must_use]
pub fn digest_of(entry: &Sealed) -> Digest {
    let mut bytes = Vec::new();
    put_entry(entry, &mut bytes);
    Sha256::digest(&bytes).into()
}

const ENTRY_HEAD_BYTES: usize = 21;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Object {
        let entry = |stamp| Sealed {
            stamp: Stamp(stamp),
            view: ViewId::new(3, 4),
            kind: 7,
            payload: vec![5; 300].into(),
        };
        let mut contents = Vec::new();
        [8, 9].iter().for_each(|stamp| put_entry(&entry(*stamp), &mut contents));
        Object {
            kind: Kind::Log,
            space: SpaceId(1),
            before: [2; 32],
            first: Stamp(8),
            position: 18,
            last: Stamp(9),
            end: 19,
            times: vec![(1_000, Stamp(8)), (2_000, Stamp(9))],
            contents,
        }
    }

    #[test]
    fn object_is_read_as_it_was_written() {
        let (bytes, digest) = object().encode();
        assert_eq!(Object::decode(&bytes), Ok((object(), digest)));
        assert_eq!(object().entries().unwrap().len(), 2);
    }

    #[test]
    fn every_flipped_byte_is_found() {
        let (bytes, _) = object().encode();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x40;
            assert!(Object::decode(&flipped).is_err(), "byte {at}");
        }
        for length in 0..bytes.len() {
            assert!(Object::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
    }
}
