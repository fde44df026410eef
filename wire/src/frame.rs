//! The header before every message: 64 bytes, one cache line.
//!
//! ```text
//!  0  magic "TRCL"     4   what makes a stranger's bytes recognisable at once
//!  4  version          2   of this header and of the bodies
//!  6  kind             1   see [`crate::message`]
//!  7  flags            1   bit 0: the body's checksum is given
//!  8  body bytes       4   at most [`Kind::body_bytes_max`]
//! 12  body checksum    4   CRC-32, or 0 (a page carries its own; see [`ONE_HOST`])
//! 16  call             8   chosen by the requester, repeated in the reply; 0 for a message without a request
//! 24  stamp            8   the stamp a reply is valid at; the stamp a request needs
//! 32  ack              8   the watermark of the sender
//! 40  view             4   the number of the view that the sender speaks to, or speaks from
//! 44  deadline         4   microseconds left to the caller; 0 is none
//! 48  capabilities     4   features that the sender has (in hello and welcome: negotiated)
//! 52  credit           2   requests that the receiver may have under way at once
//! 54  context groups   2   entries of a causal context at the head of the body; 0 in this version
//! 56  incarnation      4   of that view
//! 60  checksum         4   CRC-32 of the 60 bytes before
//! ```

use std::sync::LazyLock;

use thiserror::Error;

use crate::cursor::{le16, le32, le64};
use crate::id::{Stamp, ViewId};
pub use crate::message::Kind;

/// Bytes of the header.
pub const FRAME_BYTES: usize = 64;
/// The largest body of most messages. Larger transactions are sent in parts, so a receiver's buffer is
/// bounded.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// The largest body of a call, and of what it came to: 64 MiB of values, and what stands beside them.
pub const CALL_BODY_BYTES_MAX: usize = (64 << 20) + (64 << 10);
/// The version that this build speaks.
pub const WIRE_VERSION: u16 = 4;
/// The oldest version that this build understands.
pub const WIRE_VERSION_MIN: u16 = 4;

/// The capability of both ends of a connection that leaves no host: calls and answers whose bodies have
/// [`UNSUMMED_BYTES`] or more go without a checksum. A client offers it in its Hello, a server grants it in
/// the Welcome; without both, every body has its checksum.
pub const ONE_HOST: u32 = 1;
/// A Welcome says by this bit that the server keeps no space, so it may be named with others like it.
pub const APPLICATION: u32 = 2;
/// The least bytes of a body for which [`ONE_HOST`] saves more than it is worth to send.
pub const UNSUMMED_BYTES: usize = 16 << 10;

const MAGIC: u32 = u32::from_le_bytes(*b"TRCL");
const FLAG_BODY_SUM: u8 = 1;
const SUM_AT: usize = 60;

impl Kind {
    /// The largest body of such a message.
    pub const fn body_bytes_max(self) -> usize {
        match self {
            Kind::Request | Kind::Response | Kind::Packet => CALL_BODY_BYTES_MAX,
            _ => BODY_BYTES_MAX,
        }
    }
}

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The kind of message that the body holds.
    pub kind: Kind,
    /// Bytes of the body.
    pub body_bytes: u32,
    /// CRC-32 of the body, if the sender gave one.
    pub body_sum: Option<u32>,
    /// Ties a reply to its request.
    pub call: u64,
    /// Valid at, or needed.
    pub stamp: Stamp,
    /// The sender's watermark.
    pub ack: Stamp,
    /// The view spoken to, or from.
    pub view: ViewId,
    /// Time left to the caller, in microseconds; 0 is no limit.
    pub deadline_us: u32,
    /// Features.
    pub capabilities: u32,
    /// Requests allowed under way.
    pub credit: u16,
}

/// A header that cannot be read. The peer must act; the connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Not ours.
    #[error("the peer does not speak Tercel: its first bytes are `{}`", .0.to_le_bytes().escape_ascii())]
    Magic(u32),
    /// Damaged on the way.
    #[error("the checksum of a frame's header does not match")]
    HeaderSum,
    /// Damaged on the way.
    #[error("the checksum of a message does not match")]
    BodySum,
    /// Too new or too old.
    #[error(
        "the peer speaks version {0} of the protocol and this build speaks {WIRE_VERSION_MIN} to {WIRE_VERSION}: upgrade the older side"
    )]
    Version(u16),
    /// A claim that no honest sender makes.
    #[error("a message claims {0} bytes and {1} is the limit")]
    TooLarge(u32, usize),
}

impl Header {
    /// A header with everything optional left 0.
    pub fn new(kind: Kind, call: u64) -> Header {
        Header {
            kind,
            body_bytes: 0,
            body_sum: None,
            call,
            stamp: Stamp::ZERO,
            ack: Stamp::ZERO,
            view: ViewId::NONE,
            deadline_us: 0,
            capabilities: 0,
            credit: 0,
        }
    }

    /// Says whether a body of so many bytes goes with a checksum.
    pub fn is_summed(&self, bytes: usize) -> bool {
        let is_call = matches!(self.kind, Kind::Request | Kind::Response);
        let stays = is_call && self.capabilities & ONE_HOST != 0 && bytes >= UNSUMMED_BYTES;
        self.kind != Kind::Page && bytes > 0 && !stays
    }

    /// The header as bytes.
    pub fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut b = [0u8; FRAME_BYTES];
        b[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        b[4..6].copy_from_slice(&WIRE_VERSION.to_le_bytes());
        b[6] = self.kind.number();
        b[7] = if self.body_sum.is_some() { FLAG_BODY_SUM } else { 0 };
        b[8..12].copy_from_slice(&self.body_bytes.to_le_bytes());
        b[12..16].copy_from_slice(&self.body_sum.unwrap_or(0).to_le_bytes());
        b[16..24].copy_from_slice(&self.call.to_le_bytes());
        b[24..32].copy_from_slice(&self.stamp.0.to_le_bytes());
        b[32..40].copy_from_slice(&self.ack.0.to_le_bytes());
        b[40..44].copy_from_slice(&self.view.number.to_le_bytes());
        b[44..48].copy_from_slice(&self.deadline_us.to_le_bytes());
        b[48..52].copy_from_slice(&self.capabilities.to_le_bytes());
        b[52..54].copy_from_slice(&self.credit.to_le_bytes());
        b[56..60].copy_from_slice(&self.view.incarnation.to_le_bytes());
        let sum = sum_of(&b[..SUM_AT]);
        b[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        b
    }

    /// Reads and checks one.
    pub fn decode(b: &[u8; FRAME_BYTES]) -> Result<Header, FrameError> {
        if le32(b, 0) != MAGIC {
            return Err(FrameError::Magic(le32(b, 0)));
        }
        if le32(b, SUM_AT) != sum_of(&b[..SUM_AT]) {
            return Err(FrameError::HeaderSum);
        }
        let version = le16(b, 4);
        if !(WIRE_VERSION_MIN..=WIRE_VERSION).contains(&version) {
            return Err(FrameError::Version(version));
        }
        let (kind, body_bytes) = (Kind::of(b[6]), le32(b, 8));
        if body_bytes as usize > kind.body_bytes_max() {
            return Err(FrameError::TooLarge(body_bytes, kind.body_bytes_max()));
        }
        Ok(Header {
            kind,
            body_bytes,
            body_sum: (b[7] & FLAG_BODY_SUM != 0).then(|| le32(b, 12)),
            call: le64(b, 16),
            stamp: Stamp(le64(b, 24)),
            ack: Stamp(le64(b, 32)),
            view: ViewId::new(le32(b, 40), le32(b, 56)),
            deadline_us: le32(b, 44),
            capabilities: le32(b, 48),
            credit: le16(b, 52),
        })
    }
}

/// The CRC-32 of bytes. The hasher asks the processor once, which takes as long as the sum of a header.
fn sum_of(bytes: &[u8]) -> u32 {
    static EMPTY: LazyLock<crc32fast::Hasher> = LazyLock::new(crc32fast::Hasher::new);
    let mut sum = EMPTY.clone();
    sum.update(bytes);
    sum.finalize()
}

/// Appends header and body, with the body's checksum where [`Header::is_summed`].
///
/// # Panics
/// If the body is above [`Kind::body_bytes_max`]: senders cut large messages before.
pub fn encode(header: Header, body: &[u8], out: &mut Vec<u8>) {
    encode_parts(header, [body, &[]], out);
}

/// The same, of a body in two parts: a large part need not be copied after the rest first.
///
/// # Panics
/// As [`encode`].
pub fn encode_parts(mut header: Header, body: [&[u8]; 2], out: &mut Vec<u8>) {
    let bytes = body[0].len() + body[1].len();
    assert!(bytes <= header.kind.body_bytes_max(), "a message of {bytes} bytes was not cut");
    header.body_bytes = bytes as u32;
    header.body_sum = header.is_summed(bytes).then(|| {
        let mut sum = crc32fast::Hasher::new();
        body.iter().for_each(|part| sum.update(part));
        sum.finalize()
    });
    out.reserve(FRAME_BYTES + bytes);
    out.extend_from_slice(&header.encode());
    body.iter().for_each(|part| out.extend_from_slice(part));
}

/// The same, of a body of so many bytes, which `write` appends: what is large is written where it is sent
/// from. Of a value that is another than it was when its bytes were counted, some are left out or zeros
/// added.
///
/// # Panics
/// As [`encode`], and if `write` does; then nothing is appended.
pub fn encode_with(header: Header, bytes: usize, write: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    assert!(bytes <= header.kind.body_bytes_max(), "a message of {bytes} bytes was not cut");
    out.reserve(FRAME_BYTES + bytes);
    let end = out.len() + FRAME_BYTES + bytes;
    let write = |out: &mut Vec<u8>| {
        write(out);
        out.resize(end, 0);
        true
    };
    encode_if(header, write, out);
}

/// The same, of a body that is as long as what `write` appends. If that says that there is no message after
/// all, nothing is appended; gives what it says.
///
/// # Panics
/// As [`encode`], and if `write` does; then nothing is appended.
pub fn encode_if(mut header: Header, write: impl FnOnce(&mut Vec<u8>) -> bool, out: &mut Vec<u8>) -> bool {
    let from = out.len();
    out.extend_from_slice(&[0; FRAME_BYTES]);
    let mut half = Half { out, from };
    if !write(half.out) {
        return false;
    }
    let (head, body) = half.out[from..].split_at_mut(FRAME_BYTES);
    let bytes = body.len();
    assert!(bytes <= header.kind.body_bytes_max(), "a message of {bytes} bytes was not cut");
    header.body_bytes = bytes as u32;
    header.body_sum = header.is_summed(bytes).then(|| sum_of(body));
    head.copy_from_slice(&header.encode());
    half.from = half.out.len();
    true
}

/// Appends the header of a body that is not in one place and goes without a checksum, whose bytes the caller
/// sends behind it.
///
/// # Panics
/// As [`encode`], and if the body is to have a checksum.
pub fn encode_head(header: Header, bytes: usize, out: &mut Vec<u8>) {
    assert!(bytes <= header.kind.body_bytes_max(), "a message of {bytes} bytes was not cut");
    assert!(!header.is_summed(bytes), "the body has a checksum");
    out.extend_from_slice(&Header { body_bytes: bytes as u32, body_sum: None, ..header }.encode());
}

/// A frame that is being written; what there is of it is taken back if that ends early.
struct Half<'a> {
    out: &'a mut Vec<u8>,
    from: usize,
}

impl Drop for Half<'_> {
    fn drop(&mut self) {
        self.out.truncate(self.from);
    }
}

/// A frame, header and body, and the bytes after it.
pub type Framed<'a> = (Header, &'a [u8], &'a [u8]);

/// Reads the frame that `bytes` begin with: header, body and the bytes after it; none if it is not whole yet.
///
/// # Errors
/// As [`Header::decode`], or of a body that its checksum contradicts.
pub fn split(bytes: &[u8]) -> Result<Option<Framed<'_>>, FrameError> {
    let Some((head, behind)) = bytes.split_first_chunk::<FRAME_BYTES>() else { return Ok(None) };
    let header = Header::decode(head)?;
    let Some((body, rest)) = behind.split_at_checked(header.body_bytes as usize) else { return Ok(None) };
    if header.body_sum.is_some_and(|sum| sum != sum_of(body)) {
        return Err(FrameError::BodySum);
    }
    Ok(Some((header, body, rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_frames_are_read_where_they_lie() {
        let mut bytes = Vec::new();
        encode(Header::new(Kind::Fetch, 3), b"abc", &mut bytes);
        encode(Header::new(Kind::Ping, 4), b"", &mut bytes);
        let (header, body, rest) = split(&bytes).unwrap().unwrap();
        assert_eq!((header.call, body), (3, &b"abc"[..]));
        let (header, body, rest) = split(rest).unwrap().unwrap();
        assert_eq!((header.call, body, rest), (4, &b""[..], &b""[..]));
        assert_eq!(split(&bytes[..FRAME_BYTES + 2]), Ok(None));
    }

    #[test]
    fn large_calls_of_one_host_alone_are_unsummed() {
        const LARGE: usize = UNSUMMED_BYTES;
        for (kind, capabilities, bytes, is_summed) in [
            (Kind::Request, ONE_HOST, LARGE, false),
            (Kind::Response, ONE_HOST, LARGE, false),
            (Kind::Request, ONE_HOST, LARGE - 1, true),
            (Kind::Request, !ONE_HOST, LARGE, true),
            (Kind::Commit, ONE_HOST, LARGE, true),
        ] {
            let (header, body) = (Header { capabilities, ..Header::new(kind, 9) }, vec![7; bytes]);
            let (mut encoded, mut written) = (Vec::new(), Vec::new());
            encode(header, &body, &mut encoded);
            encode_with(header, bytes, |out| out.extend_from_slice(&body), &mut written);
            assert_eq!(encoded, written);
            if !is_summed {
                written.clear();
                encode_head(header, bytes, &mut written);
                assert_eq!(encoded[..FRAME_BYTES], written);
            }
            assert_eq!(split(&encoded).unwrap().map(|(_, body, _)| body), Some(&body[..]));
            *encoded.last_mut().unwrap() ^= 1;
            assert_eq!(split(&encoded).is_err(), is_summed, "{kind:?} of {bytes} bytes");
        }
    }

    #[test]
    fn body_that_is_written_in_its_frame_is_framed_as_any() {
        let header = Header::new(Kind::Request, 9);
        let (mut plain, mut written) = (vec![1], vec![1]);
        encode(header, b"abcdef", &mut plain);
        encode_with(header, 6, |out| out.extend_from_slice(b"abcdef"), &mut written);
        assert_eq!(plain, written);
        // Of a body that is another than was counted, as many bytes as were.
        for (bytes, expected) in [(&b"abcdefgh"[..], &b"abcdef"[..]), (b"abc", b"abc\0\0\0")] {
            let mut out = Vec::new();
            encode_with(header, 6, |out| out.extend_from_slice(bytes), &mut out);
            assert_eq!(split(&out).unwrap().map(|(_, body, rest)| (body, rest)), Some((expected, &b""[..])));
        }
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            encode_with(
                header,
                6,
                |out| {
                    out.push(7);
                    panic!("on purpose")
                },
                &mut written,
            );
        }));
        assert!(panics.is_err());
        assert_eq!(plain, written);
    }
}
