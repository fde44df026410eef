//! Reading and writing bodies field by field, little-endian, with every length checked before it is used.

use thiserror::Error;

/// A body that is not what its kind promises. The peer must act, or the owner of the bytes if they were
/// damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Fewer bytes than the fields need.
    #[error("the message ends in the middle of a field")]
    Truncated,
    /// More bytes than the fields use.
    #[error("the message has bytes after its last field")]
    Trailing,
    /// A field whose value has no meaning.
    #[error("the field `{0}` has a value that means nothing")]
    BadField(&'static str),
    /// A list that claims more elements than the message can hold.
    #[error("the list `{0}` claims more elements than the message has bytes for")]
    TooMany(&'static str),
}

/// Takes fields off the front of a body.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Over a body.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// The next `n` bytes.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A count of elements of at least `bytes_each` bytes: refused when what is left cannot hold them, so
    /// nothing is ever allocated on a peer's word.
    pub fn count(&mut self, bytes_each: usize, field: &'static str) -> Result<usize, DecodeError> {
        let n = self.u32()? as usize;
        if n > self.rest.len() / bytes_each.max(1) {
            return Err(DecodeError::TooMany(field));
        }
        Ok(n)
    }

    /// A length in four bytes, then as many bytes.
    pub fn bytes(&mut self, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let n = self.count(1, field)?;
        self.take(n)
    }

    /// A length in four bytes, then as many bytes of UTF-8.
    pub fn str(&mut self, field: &'static str) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.bytes(field)?).map_err(|_| DecodeError::BadField(field))
    }

    /// The bytes that no read has consumed.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Succeeds if nothing is left.
    pub fn end(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }
}

/// Puts fields at the end of a buffer. A trait, so that a message is written where it will be sent from.
pub trait Put {
    /// Appends a byte.
    fn put_u8(&mut self, v: u8);
    /// Appends two bytes.
    fn put_u16(&mut self, v: u16);
    /// Appends four bytes.
    fn put_u32(&mut self, v: u32);
    /// Appends eight bytes.
    fn put_u64(&mut self, v: u64);
    /// Appends a length in four bytes, then the bytes.
    fn put_bytes(&mut self, v: &[u8]);
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, v: u8) {
        self.push(v);
    }

    fn put_u16(&mut self, v: u16) {
        self.extend_from_slice(&v.to_le_bytes());
    }

    fn put_u32(&mut self, v: u32) {
        self.extend_from_slice(&v.to_le_bytes());
    }

    fn put_u64(&mut self, v: u64) {
        self.extend_from_slice(&v.to_le_bytes());
    }

    fn put_bytes(&mut self, v: &[u8]) {
        let len = u32::try_from(v.len()).expect("a field of a message is far below 4 GiB");
        self.put_u32(len);
        self.extend_from_slice(v);
    }
}

/// A text as it is told to a peer, cut: an error may quote what it was given, and a message is bounded.
pub fn told(text: &str) -> &[u8] {
    let end = (0..=TOLD_BYTES_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text.as_bytes()[..end.unwrap_or(0)]
}

/// Bytes of a text that are told to a peer.
pub const TOLD_BYTES_MAX: usize = 16 << 10;

/// Two bytes at `at`. Panics if they are not there: for bytes that were checked.
#[inline]
pub fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*chunk(bytes, at))
}

/// Four bytes at `at`. Panics if they are not there: for bytes that were checked.
#[inline]
pub fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*chunk(bytes, at))
}

/// Eight bytes at `at`. Panics if they are not there: for bytes that were checked.
#[inline]
pub fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*chunk(bytes, at))
}

/// One check for all of them.
#[inline]
fn chunk<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("bytes that were checked to be there")
}
