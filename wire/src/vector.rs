//! Vectors of stamps, one a space: all that a session has seen, or all that the commits of a space rest on.
//!
//! One space has one order, and several have none. A vector ties them: a state of one space that covers a
//! vector's entry of it holds everything that the entry stands for.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::cursor::{DecodeError, Put, Reader};
use crate::id::{SpaceId, Stamp, ViewId};
use crate::token::Token;

/// Spaces in one vector, at most.
pub const VECTOR_MAX: usize = 64;

/// The part of a vector that is of one space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seen {
    /// A view of the space's history in which the stamps were visible.
    pub view: ViewId,
    /// Everything up to this stamp was seen.
    pub at: Stamp,
    /// The prepare of a transaction over several spaces that is known to be committed: a state that does not
    /// have its effects yet is too old. Zero while a transaction writes one space only.
    pub done: Stamp,
}

/// Stamps of spaces. Joining takes the larger of each.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Vector {
    entries: BTreeMap<SpaceId, Seen>,
}

impl Seen {
    /// Everything up to a stamp.
    pub fn at(view: ViewId, at: Stamp) -> Seen {
        Seen { view, at, done: Stamp::ZERO }
    }

    /// Nothing: in a list of dependencies it takes a space off.
    pub const NOTHING: Seen = Seen { view: ViewId::NONE, at: Stamp::ZERO, done: Stamp::ZERO };

    /// Says whether whoever has seen this has seen the other, too.
    pub fn covers(&self, other: &Seen) -> bool {
        self.at >= other.at && self.done >= other.done
    }

    /// The state of this space that is at least to be read.
    pub fn token(&self, space: SpaceId) -> Token {
        Token { space, view: self.view, stamp: self.least() }
    }

    fn least(&self) -> Stamp {
        self.at.max(self.done)
    }

    /// Both, as one. The view is that of the later stamp: should the space have been put back to before it,
    /// it shows that.
    #[must_use]
    fn join(self, other: Seen) -> Seen {
        let later = (self.least(), self.view).max((other.least(), other.view));
        Seen { view: later.1, at: self.at.max(other.at), done: self.done.max(other.done) }
    }
}

impl From<Token> for Vector {
    fn from(token: Token) -> Vector {
        Vector::of(token)
    }
}

impl Vector {
    /// A vector of a single state.
    pub fn of(token: Token) -> Vector {
        let mut vector = Vector::default();
        vector.add(token.space, Seen::at(token.view, token.stamp));
        vector
    }

    /// The request to rest on a space no longer. No other vector has such an entry, for nothing that was seen
    /// is left out.
    pub fn forgetting(space: SpaceId) -> Vector {
        Vector { entries: [(space, Seen::NOTHING)].into() }
    }

    /// The spaces that it asks to rest on no longer.
    pub fn forgotten(&self) -> impl Iterator<Item = SpaceId> {
        self.entries.iter().filter(|(_, seen)| **seen == Seen::NOTHING).map(|(space, _)| *space)
    }

    /// Takes a space off.
    pub fn remove(&mut self, space: SpaceId) {
        self.entries.remove(&space);
    }

    /// The entries, by space.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (SpaceId, Seen)> {
        self.entries.iter().map(|(space, seen)| (*space, *seen))
    }

    /// Says whether nothing was seen of any space.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The number of spaces.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The part of one space.
    pub fn get(&self, space: SpaceId) -> Option<Seen> {
        self.entries.get(&space).copied()
    }

    /// The state that is at least to be read of a space.
    pub fn token(&self, space: SpaceId) -> Option<Token> {
        self.get(space).map(|seen| seen.token(space))
    }

    /// Joins what was seen of one space.
    pub fn add(&mut self, space: SpaceId, seen: Seen) {
        if seen == Seen::NOTHING {
            return;
        }
        self.entries.entry(space).and_modify(|mine| *mine = mine.join(seen)).or_insert(seen);
    }

    /// Joins all of another.
    pub fn join(&mut self, other: &Vector) {
        other.iter().for_each(|(space, seen)| self.add(space, seen));
    }

    /// Takes off all that is not in another.
    pub fn keep_covered(&mut self, by: &Vector) {
        self.entries.retain(|space, seen| by.get(*space).is_some_and(|other| other.covers(seen)));
    }

    /// All but what is of one space.
    #[must_use]
    pub fn without(mut self, space: SpaceId) -> Vector {
        self.remove(space);
        self
    }

    /// Says whether all of another is in this one.
    pub fn covers(&self, other: &Vector) -> bool {
        other.iter().all(|(space, seen)| self.get(space).is_some_and(|mine| mine.covers(&seen)))
    }

    /// Appends it: the number of entries, and of each the space, the view, the stamps. Numbers that are small
    /// mostly are of as many bytes as they need, seven bits in each.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(self.entries.len() as u8);
        for (space, seen) in self.iter() {
            out.put_u64(space.0);
            put_varint(seen.view.number.into(), out);
            out.put_u32(seen.view.incarnation);
            put_varint(seen.at.0, out);
            put_varint(seen.done.0, out);
        }
    }

    /// The vector as bytes alone.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 + 20 * self.len());
        self.encode(&mut out);
        out
    }

    /// Reads one.
    ///
    /// # Errors
    /// If the bytes end before it does, it has more than [`VECTOR_MAX`] entries, or they are not in order.
    pub fn decode(r: &mut Reader<'_>) -> Result<Vector, DecodeError> {
        let count = r.u8()?;
        if usize::from(count) > VECTOR_MAX {
            return Err(DecodeError::TooMany("spaces"));
        }
        let mut vector = Vector::default();
        for _ in 0..count {
            let space = SpaceId(r.u64()?);
            let number = u32::try_from(varint(r)?).map_err(|_| DecodeError::BadField("view"))?;
            let view = ViewId::new(number, r.u32()?);
            let seen = Seen { view, at: Stamp(varint(r)?), done: Stamp(varint(r)?) };
            if seen.at > Stamp::LAST || seen.done > Stamp::LAST {
                return Err(DecodeError::BadField("stamp"));
            }
            if vector.entries.last_key_value().is_some_and(|(last, _)| *last >= space) {
                return Err(DecodeError::BadField("space"));
            }
            vector.entries.insert(space, seen);
        }
        Ok(vector)
    }

    /// Reads [`Vector::to_bytes`].
    ///
    /// # Errors
    /// As [`Vector::decode`], and if there are more bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Vector, DecodeError> {
        let mut r = Reader::new(bytes);
        let vector = Vector::decode(&mut r)?;
        r.end()?;
        Ok(vector)
    }
}

fn put_varint(mut n: u64, out: &mut Vec<u8>) {
    while n >= 0x80 {
        out.put_u8(n as u8 | 0x80);
        n >>= 7;
    }
    out.put_u8(n as u8);
}

fn varint(r: &mut Reader<'_>) -> Result<u64, DecodeError> {
    let mut n = 0;
    for shift in (0..64).step_by(7) {
        let byte = r.u8()?;
        n |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            // One value has one form: neither zeros in front nor bits beyond the last.
            let is_shortest = (byte > 0 || shift == 0) && (shift < 63 || byte == 1);
            return if is_shortest { Ok(n) } else { Err(DecodeError::BadField("number")) };
        }
    }
    Err(DecodeError::BadField("number"))
}

/// As text: tokens with commas between them, a fifth number in those of which a prepare is known.
impl fmt::Display for Vector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (space, seen)) in self.iter().enumerate() {
            let token = Token { space, view: seen.view, stamp: seen.at };
            write!(f, "{}{token}", if i == 0 { "" } else { "," })?;
            if seen.done > Stamp::ZERO {
                write!(f, ".{:x}", seen.done.0)?;
            }
        }
        Ok(())
    }
}

/// The text is no vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a session's token is up to 64 tokens with commas between them: SPACE.NUMBER.INCARNATION.STAMP,...")]
pub struct VectorError;

impl FromStr for Vector {
    type Err = VectorError;

    fn from_str(text: &str) -> Result<Vector, VectorError> {
        let mut vector = Vector::default();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (token, done) = match part.bytes().filter(|b| *b == b'.').count() {
                4 => part.rsplit_once('.').ok_or(VectorError)?,
                _ => (part, "0"),
            };
            let token: Token = token.parse().map_err(|_| VectorError)?;
            let is_hex = (1..=16).contains(&done.len()) && done.bytes().all(|b| b.is_ascii_hexdigit());
            let done = is_hex.then(|| u64::from_str_radix(done, 16)).ok_or(VectorError)?;
            let done = Stamp(done.map_err(|_| VectorError)?);
            if token.stamp > Stamp::LAST || done > Stamp::LAST {
                return Err(VectorError);
            }
            vector.add(token.space, Seen { done, ..Seen::at(token.view, token.stamp) });
        }
        if vector.len() > VECTOR_MAX { Err(VectorError) } else { Ok(vector) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(entries: &[(u64, u32, u64)]) -> Vector {
        let mut vector = Vector::default();
        for (space, view, at) in entries {
            vector.add(SpaceId(*space), Seen::at(ViewId::new(*view, 7), Stamp(*at)));
        }
        vector
    }

    #[test]
    fn joined_vector_covers_both_and_keeps_larger_stamps() {
        let (a, b) = (vector(&[(1, 1, 10), (2, 1, 5)]), vector(&[(2, 3, 4), (3, 1, 1)]));
        assert!(!a.covers(&b) && !b.covers(&a) && a.covers(&Vector::default()));
        let mut both = a.clone();
        both.join(&b);
        assert!(both.covers(&a) && both.covers(&b));
        assert_eq!(both, vector(&[(1, 1, 10), (2, 1, 5), (3, 1, 1)]));
        assert_eq!(both.token(SpaceId(1)).map(|t| t.stamp), Some(Stamp(10)));
        // A prepare that is known to be committed is a state to be read, too, and has a view.
        let mut done = a.clone();
        done.add(SpaceId(2), Seen { done: Stamp(7), ..Seen::at(ViewId::new(3, 7), Stamp::ZERO) });
        assert_eq!(done.get(SpaceId(2)).map(|seen| (seen.at, seen.done)), Some((Stamp(5), Stamp(7))));
        assert_eq!(done.token(SpaceId(2)).map(|t| (t.view, t.stamp)), Some((ViewId::new(3, 7), Stamp(7))));
        assert_eq!(both.without(SpaceId(2)), vector(&[(1, 1, 10), (3, 1, 1)]));
    }

    #[test]
    fn vector_comes_back_from_bytes_and_text() {
        let mut all = vector(&[(1, 1, 0), (2, 300, 1 << 40), (u64::MAX, u32::MAX, 1 << 62)]);
        all.add(SpaceId(2), Seen { done: Stamp(9), ..Seen::at(ViewId::new(1, 7), Stamp(1)) });
        for vector in [Vector::default(), all] {
            assert_eq!(Vector::from_bytes(&vector.to_bytes()), Ok(vector.clone()));
            assert_eq!(vector.to_string().parse(), Ok(vector));
        }
        assert_eq!("a1.3.beef.1f4.5".parse::<Vector>().unwrap().to_string(), "a1.3.beef.1f4.5");
    }

    #[test]
    fn five_spaces_take_at_most_a_hundred_bytes() {
        let five: Vec<_> = (0..5).map(|n| (u64::MAX - n, 40, 1_000_000_000)).collect();
        assert!(vector(&five).to_bytes().len() <= 100, "{}", vector(&five).to_bytes().len());
    }

    #[test]
    fn bytes_that_are_no_vector_are_refused() {
        let bytes = vector(&[(1, 1, 10), (2, 1, 5)]).to_bytes();
        for n in 0..bytes.len() {
            assert!(Vector::from_bytes(&bytes[..n]).is_err(), "{n}");
        }
        let swapped = [&bytes[..1], &bytes[16..], &bytes[1..16]].concat();
        assert_eq!(Vector::from_bytes(&swapped), Err(DecodeError::BadField("space")));
        let beyond = vector(&[(1, 1, (1 << 62) + 1)]).to_bytes();
        assert_eq!(Vector::from_bytes(&beyond), Err(DecodeError::BadField("stamp")));
        assert_eq!(Vector::from_bytes(&[65]), Err(DecodeError::TooMany("spaces")));
        for text in [",", "1.2.3", "1.2.3.4,", "1.2.3.4.5.6", "1.2.3.4.x"] {
            assert_eq!(text.parse::<Vector>(), Err(VectorError), "{text}");
        }
        // A number in more bytes than it needs, and one beyond 64 bits.
        assert!(varint(&mut Reader::new(&[0x80, 0])).is_err());
        assert!(varint(&mut Reader::new(&[&[0xff; 9][..], &[2]].concat())).is_err());
        assert_eq!(varint(&mut Reader::new(&[&[0xff; 9][..], &[1]].concat())), Ok(u64::MAX));
    }
}
