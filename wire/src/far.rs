//! References to objects of other spaces.
//!
//! A [`Far`] is a value: 28 bytes that a record of any space may hold, that a program may print, compare and
//! send. It holds nothing alive by itself; the space that the object is in keeps it for as long as it is
//! *exported* there.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use thiserror::Error;

use crate::id::{Oref, SpaceId, Stamp, ViewId};
use crate::record::{Encoder, Fixed, Target, Value};
use crate::schema::{FAR_BYTES, Type};
use crate::token::{TOKEN_BYTES, Token};

const _: () = assert!(FAR_BYTES == TOKEN_BYTES + 4);

/// A reference to an object of class `T` that a space exports: the space, the state in which it was exported,
/// and its place there. Two are equal if they are of the same export. An object that was withdrawn and
/// exported again has another one.
///
/// As text it is `SPACE.NUMBER.INCARNATION.STAMP@PAGE.SLOT`: a token in hexadecimal digits, and a reference.
pub struct Far<T> {
    token: Token,
    oref: Oref,
    class: PhantomData<fn() -> T>,
}

/// The text is no far reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "a far reference is SPACE.NUMBER.INCARNATION.STAMP@PAGE.SLOT, with four hexadecimal numbers before the @"
)]
pub struct BadFar;

impl<T> Far<T> {
    /// Names no object of no space. Fields that were added to a class later hold it.
    pub const NULL: Far<T> = Far {
        token: Token { space: SpaceId(0), view: ViewId { number: 0, incarnation: 0 }, stamp: Stamp::ZERO },
        oref: Oref::NULL,
        class: PhantomData,
    };

    /// The object at a place, as exported by a transaction that began in this state.
    pub fn new(token: Token, oref: Oref) -> Far<T> {
        Far { token, oref, class: PhantomData }
    }

    /// Reads one at `at` of a checked body.
    pub fn read(body: &[u8], at: usize) -> Far<T> {
        let (token, place) = body[at..at + FAR_BYTES].split_at(TOKEN_BYTES);
        // Any bytes are one. Those in which no place stands name nothing.
        let oref = Oref::from_raw(crate::cursor::le32(place, 0)).unwrap_or_default();
        Token::from_bytes(token).map_or(Far::NULL, |token| Far::new(token, oref))
    }

    /// The space.
    pub fn space(self) -> SpaceId {
        self.token.space
    }

    /// The state in which it was exported.
    pub fn token(self) -> Token {
        self.token
    }

    /// The place in its space.
    pub fn oref(self) -> Oref {
        self.oref
    }

    /// Says whether it names nothing.
    pub fn is_null(self) -> bool {
        self.oref.is_null()
    }

    /// The same reference, expecting another class.
    pub fn cast<U>(self) -> Far<U> {
        Far::new(self.token, self.oref)
    }

    fn key(&self) -> (u64, u32, u32, u64, u32) {
        let Token { space, view, stamp } = self.token;
        (space.0, view.number, view.incarnation, stamp.0, self.oref.raw())
    }
}

impl<T> Clone for Far<T> {
    fn clone(&self) -> Far<T> {
        *self
    }
}
impl<T> Copy for Far<T> {}
impl<T> Default for Far<T> {
    fn default() -> Far<T> {
        Far::NULL
    }
}
impl<T> PartialEq for Far<T> {
    fn eq(&self, other: &Far<T>) -> bool {
        self.key() == other.key()
    }
}
impl<T> Eq for Far<T> {}
impl<T> PartialOrd for Far<T> {
    fn partial_cmp(&self, other: &Far<T>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Far<T> {
    fn cmp(&self, other: &Far<T>) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}
impl<T> std::hash::Hash for Far<T> {
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        self.key().hash(h);
    }
}
impl<T> fmt::Debug for Far<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Far({self})")
    }
}

impl<T> fmt::Display for Far<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_null() { f.write_str("null") } else { write!(f, "{}@{}", self.token, self.oref) }
    }
}

impl<T> FromStr for Far<T> {
    type Err = BadFar;

    fn from_str(text: &str) -> Result<Far<T>, BadFar> {
        let (token, oref) = text.split_once('@').ok_or(BadFar)?;
        Ok(Far::new(token.parse().map_err(|_| BadFar)?, oref.parse().map_err(|_| BadFar)?))
    }
}

impl<T: Target> Value for Far<T> {
    const TYPE: Type = Type::Far(T::NAME);
    fn put(&self, e: &mut Encoder<'_>, at: usize) {
        e.set(at, &self.to_bytes());
    }
}

impl<T: Target> Fixed for Far<T> {
    type Bytes = [u8; FAR_BYTES];

    fn from_bytes(bytes: [u8; FAR_BYTES]) -> Far<T> {
        Far::read(&bytes, 0)
    }

    fn to_bytes(self) -> [u8; FAR_BYTES] {
        let mut out = [0; FAR_BYTES];
        out[..TOKEN_BYTES].copy_from_slice(&self.token.to_bytes());
        out[TOKEN_BYTES..].copy_from_slice(&self.oref.raw().to_le_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Any;

    #[test]
    fn far_reference_comes_back_from_text_and_bytes() {
        let token = Token { space: SpaceId(0xa1), view: ViewId::new(3, 0xbeef), stamp: Stamp(500) };
        let far = Far::<Any>::new(token, "12.7".parse().unwrap());
        assert_eq!(far.to_string(), "a1.3.beef.1f4@12.7");
        assert_eq!("a1.3.beef.1f4@12.7".parse(), Ok(far));
        assert_eq!(Far::from_bytes(far.to_bytes()), far);
        let other = Far::new(Token { stamp: Stamp(501), ..token }, far.oref());
        assert!(far != other && far < other && !far.is_null());
    }

    #[test]
    fn text_and_bytes_that_name_nothing_are_told() {
        for text in ["", "null", "@", "1.2.3.4", "1.2.3.4@", "1.2.3.4@0.0", "1.2.3@4.5", "1.2.3.4@5.6@7"] {
            assert_eq!(text.parse::<Far<Any>>(), Err(BadFar), "{text}");
        }
        assert!(Far::<Any>::from_bytes([0; FAR_BYTES]) == Far::NULL && Far::<Any>::NULL.is_null());
        // A handle of a cache is no place.
        assert!(Far::<Any>::from_bytes([0xff; FAR_BYTES]).is_null());
    }
}
