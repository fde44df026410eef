//! Packets: a header of 32 bytes, then what the kind says. Bytes of a peer are checked here, once.
//!
//! ```text
//!  0  magic "TD"       2   makes a stranger's bytes recognisable at once
//!  2  version, kind    2
//!  4  stamp            4   the sender's clock in microseconds, to be returned
//!  8  echo             4   the newest stamp of the receiver, and the time since it came; 0 is none
//! 12  below            2   so many exchanges before this one are the oldest that the caller still wants
//! 14  flags            2   bit 0: a report is asked for
//! 16  incarnation      8   the caller's connection, drawn at random
//! 24  exchange         8   a request, and what answers it
//! ```

use tercel_wire::cursor::{DecodeError, Put, Reader};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 32;
/// Bytes before the piece of a message: the header, the length of the message, the place of the piece.
pub const PIECE_AT: usize = HEADER_BYTES + 8;
/// The most ranges in a report.
pub const RANGES_MAX: usize = 64;
/// The most exchanges of a connection between the oldest that the caller wants and the newest.
pub const WINDOW: u64 = 64;

const MAGIC: u16 = u16::from_le_bytes(*b"TD");
const VERSION: u8 = 1;
const FLAG_ASKS: u16 = 1;

/// The header of a packet, without its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// The sender's clock, to be returned.
    pub stamp: u32,
    /// The newest stamp of the receiver, and the microseconds since that came; 0 is none.
    pub echo: u32,
    /// So many exchanges before this one are the oldest that the caller still wants.
    pub below: u16,
    /// Set if a report is asked for.
    pub asks: bool,
    /// The connection, drawn by the caller.
    pub incarnation: u64,
    /// A request, and what answers it. The first is 1.
    pub exchange: u64,
}

impl Head {
    /// The oldest exchange that the caller still wants.
    pub fn oldest(&self) -> u64 {
        self.exchange.saturating_sub(u64::from(self.below))
    }
}

/// The rest of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body<'a> {
    /// A caller wants a connection. Without a cookie it is sent one; it is as large as the answer.
    Open {
        /// From [`Body::Cookie`]; 0 is none.
        cookie: u64,
    },
    /// Proof, when it comes back, that packets to that address reach the caller.
    Cookie {
        /// Names caller and address; nothing is remembered.
        cookie: u64,
    },
    /// The connection is there.
    Opened,
    /// The connection is not, or no longer: the server keeps nothing of it.
    Unknown,
    /// A piece of a message: of a request from the caller, of an answer to it.
    Piece {
        /// Bytes of the message.
        total: u32,
        /// The place of the piece in it.
        at: u32,
        /// The piece.
        bytes: &'a [u8],
    },
    /// The parts of a message that have come, from its receiver.
    Report(Report),
    /// The request is whole and is executed.
    Busy,
    /// Tries whether a packet of this size passes: zeros fill it.
    Probe {
        /// Bytes of the packet.
        size: u16,
    },
    /// The answer to a probe: the packet passed.
    Probed {
        /// Bytes of the packet.
        size: u16,
    },
}

/// The parts of a message that have come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Reports of one receiver are counted: an older one says nothing.
    pub number: u32,
    /// The sender may send up to there.
    pub granted: u32,
    /// The end of what has come.
    pub end: u32,
    /// The gaps before that end, in order, each with its own end.
    pub missing: Vec<(u32, u32)>,
}

impl Report {
    /// Says whether a message of so many bytes is whole.
    pub fn is_whole(&self, total: u32) -> bool {
        self.end == total && self.missing.is_empty()
    }
}

/// Appends a packet.
pub fn encode(head: &Head, body: &Body<'_>, out: &mut Vec<u8>) {
    let kind = match body {
        Body::Open { .. } => 1,
        Body::Cookie { .. } => 2,
        Body::Opened => 3,
        Body::Unknown => 4,
        Body::Piece { .. } => 5,
        Body::Report(_) => 6,
        Body::Busy => 7,
        Body::Probe { .. } => 8,
        Body::Probed { .. } => 9,
    };
    let begin = out.len();
    out.put_u16(MAGIC);
    out.put_u8(VERSION);
    out.put_u8(kind);
    out.put_u32(head.stamp);
    out.put_u32(head.echo);
    out.put_u16(head.below);
    out.put_u16(if head.asks { FLAG_ASKS } else { 0 });
    out.put_u64(head.incarnation);
    out.put_u64(head.exchange);
    match body {
        Body::Open { cookie } | Body::Cookie { cookie } => out.put_u64(*cookie),
        Body::Opened | Body::Unknown | Body::Busy => {}
        Body::Piece { total, at, bytes } => {
            out.put_u32(*total);
            out.put_u32(*at);
            out.extend_from_slice(bytes);
        }
        Body::Report(report) => {
            out.put_u32(report.number);
            out.put_u32(report.granted);
            out.put_u32(report.end);
            out.put_u32(report.missing.len() as u32);
            for (from, to) in &report.missing {
                out.put_u32(*from);
                out.put_u32(*to);
            }
        }
        Body::Probe { size } => {
            out.put_u16(*size);
            out.resize(begin + usize::from(*size).max(HEADER_BYTES + 2), 0);
        }
        Body::Probed { size } => out.put_u16(*size),
    }
}

/// The connection that a packet names, if it may be one.
pub fn connection(bytes: &[u8]) -> Option<u64> {
    bytes.get(16..24)?.try_into().map(u64::from_le_bytes).ok()
}

/// Reads a packet.
///
/// # Errors
/// If the bytes are none.
pub fn decode(bytes: &[u8]) -> Result<(Head, Body<'_>), DecodeError> {
    let r = &mut Reader::new(bytes);
    if r.u16()? != MAGIC {
        return Err(DecodeError::BadField("magic"));
    }
    if r.u8()? != VERSION {
        return Err(DecodeError::BadField("version"));
    }
    let kind = r.u8()?;
    let (stamp, echo, below, flags) = (r.u32()?, r.u32()?, r.u16()?, r.u16()?);
    if flags > FLAG_ASKS {
        return Err(DecodeError::BadField("flags"));
    }
    let (incarnation, exchange) = (r.u64()?, r.u64()?);
    let head = Head { stamp, echo, below, asks: flags == FLAG_ASKS, incarnation, exchange };
    let body = match kind {
        1 => Body::Open { cookie: r.u64()? },
        2 => Body::Cookie { cookie: r.u64()? },
        3 => Body::Opened,
        4 => Body::Unknown,
        5 => {
            let (total, at) = (r.u32()?, r.u32()?);
            let bytes = r.rest();
            let fits = u64::from(at) + bytes.len() as u64 <= u64::from(total);
            if bytes.is_empty() || !fits {
                return Err(DecodeError::BadField("piece"));
            }
            return Ok((head, Body::Piece { total, at, bytes }));
        }
        6 => Body::Report(decode_report(r)?),
        7 => Body::Busy,
        8 => {
            let size = r.u16()?;
            if usize::from(size) != bytes.len() {
                return Err(DecodeError::BadField("size"));
            }
            return Ok((head, Body::Probe { size }));
        }
        9 => Body::Probed { size: r.u16()? },
        _ => return Err(DecodeError::BadField("kind")),
    };
    r.end()?;
    Ok((head, body))
}

fn decode_report(r: &mut Reader<'_>) -> Result<Report, DecodeError> {
    let (number, granted, end) = (r.u32()?, r.u32()?, r.u32()?);
    let count = r.count(8, "missing")?;
    if count > RANGES_MAX {
        return Err(DecodeError::TooMany("missing"));
    }
    let mut missing = Vec::with_capacity(count);
    let mut last = 0;
    for i in 0..count {
        let (from, to) = (r.u32()?, r.u32()?);
        // In order, apart, and before the end.
        if from >= to || to > end || i > 0 && from <= last {
            return Err(DecodeError::BadField("missing"));
        }
        last = to;
        missing.push((from, to));
    }
    Ok(Report { number, granted, end, missing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_comes_back_and_no_prefix_does() {
        let head = Head { stamp: 7, echo: 8, below: 3, asks: true, incarnation: 9, exchange: 10 };
        let report = Report { number: 1, granted: 90, end: 80, missing: vec![(0, 10), (20, 30)] };
        let bodies = [
            Body::Open { cookie: 4 },
            Body::Cookie { cookie: 4 },
            Body::Opened,
            Body::Unknown,
            Body::Piece { total: 100, at: 90, bytes: &[5; 10] },
            Body::Report(report),
            Body::Busy,
            Body::Probe { size: 60 },
            Body::Probed { size: 60 },
        ];
        for body in bodies {
            let mut bytes = Vec::new();
            encode(&head, &body, &mut bytes);
            assert_eq!(decode(&bytes), Ok((head, body.clone())));
            assert_eq!(connection(&bytes), Some(head.incarnation));
            let whole = if matches!(body, Body::Piece { .. }) { PIECE_AT } else { bytes.len() - 1 };
            assert!((0..=whole).all(|cut| decode(&bytes[..cut]).is_err()), "{body:?}");
        }
    }

    #[test]
    fn reports_whose_ranges_overlap_are_refused() {
        for missing in [vec![(5, 5)], vec![(0, 10), (10, 12)], vec![(0, 90)], vec![(9, 10), (3, 4)]] {
            let mut bytes = Vec::new();
            let report = Report { number: 1, granted: 90, end: 80, missing };
            encode(&Head::default(), &Body::Report(report.clone()), &mut bytes);
            assert!(decode(&bytes).is_err(), "{report:?}");
        }
    }
}
