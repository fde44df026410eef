//! A stamp that may be passed on: between clients, processes and machines.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::cursor::{DecodeError, Reader};
use crate::id::{SpaceId, Stamp, ViewId};

/// Bytes of a [`Token`].
pub const TOKEN_BYTES: usize = 24;

/// A state of one space: a stamp, and the space and the view that it is of.
///
/// A stamp alone means nothing in another space, nor in the same one after it was put back to an earlier
/// state. With the view a server knows whether the stamp is of its history.
///
/// As text it is `SPACE.NUMBER.INCARNATION.STAMP` in hexadecimal digits; as bytes it is 24 long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// The space.
    pub space: SpaceId,
    /// A view of its history in which the stamp was visible.
    pub view: ViewId,
    /// The state: everything up to this stamp.
    pub stamp: Stamp,
}

/// The text is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a token is four hexadecimal numbers with points between them: SPACE.NUMBER.INCARNATION.STAMP")]
pub struct TokenError;

impl Token {
    /// The bytes: four numbers, little-endian.
    pub fn to_bytes(self) -> [u8; TOKEN_BYTES] {
        let mut out = [0; TOKEN_BYTES];
        out[..8].copy_from_slice(&self.space.0.to_le_bytes());
        out[8..12].copy_from_slice(&self.view.number.to_le_bytes());
        out[12..16].copy_from_slice(&self.view.incarnation.to_le_bytes());
        out[16..].copy_from_slice(&self.stamp.0.to_le_bytes());
        out
    }

    /// Reads [`Token::to_bytes`].
    ///
    /// # Errors
    /// If there are not exactly 24 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Token, DecodeError> {
        let mut r = Reader::new(bytes);
        let token = Token::decode(&mut r)?;
        r.end()?;
        Ok(token)
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_bytes());
    }

    /// Reads one.
    ///
    /// # Errors
    /// If the bytes end before it does.
    pub fn decode(r: &mut Reader<'_>) -> Result<Token, DecodeError> {
        Ok(Token { space: SpaceId(r.u64()?), view: ViewId::decode(r)?, stamp: Stamp(r.u64()?) })
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Token { space, view, stamp } = self;
        write!(f, "{:x}.{:x}.{:x}.{:x}", space.0, view.number, view.incarnation, stamp.0)
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Token, TokenError> {
        let mut parts = text.split('.');
        let mut next = |digits_max: usize| {
            let part = parts.next().filter(|p| (1..=digits_max).contains(&p.len())).ok_or(TokenError)?;
            let is_hex = part.bytes().all(|b| b.is_ascii_hexdigit());
            is_hex.then(|| u64::from_str_radix(part, 16)).ok_or(TokenError)?.map_err(|_| TokenError)
        };
        let (space, number, incarnation, stamp) = (next(16)?, next(8)?, next(8)?, next(16)?);
        match parts.next() {
            Some(_) => Err(TokenError),
            None => Ok(Token {
                space: SpaceId(space),
                view: ViewId::new(number as u32, incarnation as u32),
                stamp: Stamp(stamp),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_comes_back_from_text_and_from_bytes() {
        let token = Token { space: SpaceId(0xa1), view: ViewId::new(3, 0xbeef), stamp: Stamp(500) };
        assert_eq!(token.to_string(), "a1.3.beef.1f4");
        assert_eq!("a1.3.beef.1f4".parse(), Ok(token));
        assert_eq!(Token::from_bytes(&token.to_bytes()), Ok(token));
    }

    #[test]
    fn text_that_is_no_token_is_refused() {
        for text in
            ["", ".", "1.2.3", "1.2.3.4.5", "1.2.3.", "1.2.123456789.4", "+1.2.3.4", "1.2.3.x", "1..3.4"]
        {
            assert_eq!(text.parse::<Token>(), Err(TokenError), "{text}");
        }
        let most =
            Token { space: SpaceId(u64::MAX), view: ViewId::new(u32::MAX, u32::MAX), stamp: Stamp(u64::MAX) };
        assert_eq!(most.to_string().parse(), Ok(most));
    }

    #[test]
    fn bytes_of_another_length_are_refused() {
        assert!(Token::from_bytes(&[0; TOKEN_BYTES - 1]).is_err());
        assert!(Token::from_bytes(&[0; TOKEN_BYTES + 1]).is_err());
    }
}
