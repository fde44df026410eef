//! A stream of bytes, cut into frames.

use std::borrow::Cow;

use crate::frame::{BODY_BYTES_MAX, FRAME_BYTES, FrameError, Header, split};
use crate::spare::Spare;

/// A frame that was taken out: its header and its body.
pub type Taken<'a> = (Header, Cow<'a, [u8]>);

/// Cuts a stream of bytes into frames; keeps at most one incomplete frame.
///
/// The body of a large frame that comes in pieces is gathered by itself, and can be moved out. Its checksum
/// is worked out piece by piece, while each is in the processor's cache.
#[derive(Debug, Default)]
pub struct Deframer {
    /// Received bytes; the uncut ones begin at `from`. With a large frame under way, all of them follow that
    /// frame.
    buffer: Vec<u8>,
    from: usize,
    /// By itself, for few connections have one at a time.
    large: Option<Box<Large>>,
    /// The body of the last large frame. Its memory is for the next one.
    given: Vec<u8>,
    spare: Spare,
    spare_given: Spare,
}

// A server has one for each of its connections, most of which are idle.
const _: () = assert!(size_of::<Deframer>() <= 72);

/// A large frame under way.
#[derive(Debug)]
struct Large {
    header: Header,
    body: Vec<u8>,
    sum: crc32fast::Hasher,
}

impl Large {
    /// A large frame with this header, in memory that was used before.
    fn begin(header: Header, mut body: Vec<u8>) -> Large {
        body.clear();
        Large { header, body, sum: crc32fast::Hasher::new() }
    }

    fn missing(&self) -> usize {
        self.header.body_bytes as usize - self.body.len()
    }

    /// Takes the bytes that belong to the frame; returns the bytes after it.
    fn push<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (its, behind) = bytes.split_at(bytes.len().min(self.missing()));
        self.make_room(its.len());
        self.body.extend_from_slice(its);
        self.add(its.len());
        behind
    }

    /// Takes as much memory as is allowed once so many bytes more are there.
    fn make_room(&mut self, bytes: usize) {
        let allowed = (CLAIM * (FRAME_BYTES + self.body.len() + bytes)).min(self.header.body_bytes as usize);
        if self.body.capacity() < allowed {
            self.body.reserve_exact(allowed - self.body.len());
        }
    }

    /// Adds the last bytes, so many, to the checksum.
    fn add(&mut self, bytes: usize) {
        if self.header.body_sum.is_some() {
            self.sum.update(&self.body[self.body.len() - bytes..]);
        }
    }

    /// The whole of it.
    fn end(self) -> Result<(Header, Vec<u8>), FrameError> {
        match self.header.body_sum {
            Some(sum) if sum != self.sum.finalize() => Err(FrameError::BodySum),
            _ => Ok((self.header, self.body)),
        }
    }
}

impl Deframer {
    /// Adds bytes that arrived.
    pub fn push(&mut self, mut bytes: &[u8]) {
        if let Some(large) = &mut self.large {
            bytes = large.push(bytes);
            if bytes.is_empty() {
                return;
            }
        }
        if self.from == self.buffer.len() {
            self.buffer.clear();
            self.from = 0;
        } else if self.from > BODY_BYTES_MAX {
            self.buffer.drain(..self.from);
            self.buffer.shrink_to(KEPT_BYTES);
            self.from = 0;
        }
        if self.is_empty()
            && let Some(header) = large(bytes)
        {
            return self.begin_large(header, &bytes[FRAME_BYTES..]);
        }
        self.buffer.extend_from_slice(bytes);
        if self.large.is_none()
            && let Some(header) = large(&self.buffer[self.from..])
        {
            let buffer = std::mem::take(&mut self.buffer);
            self.begin_large(header, &buffer[self.from + FRAME_BYTES..]);
            self.buffer = buffer;
            self.buffer.clear();
            self.buffer.shrink_to(KEPT_BYTES);
            self.from = 0;
        }
    }

    /// Says whether a large frame is under way.
    pub fn is_amid_large(&self) -> bool {
        self.large.is_some()
    }

    /// Has the rest of a large frame under way received to where it is gathered: `receive` appends at most so
    /// many bytes as it is told, `bytes_max` or fewer, some of which may follow the frame. Says whether as
    /// many came: if not, no more is there yet.
    pub fn receive(&mut self, bytes_max: usize, receive: impl FnOnce(&mut Vec<u8>, usize)) -> bool {
        let Some(large) = self.large.as_mut().filter(|large| large.missing() > 0) else { return false };
        let (missing, before) = (large.missing(), large.body.len());
        large.make_room(0);
        let room = bytes_max.min(large.body.capacity() - before);
        if room == 0 {
            return false;
        }
        receive(&mut large.body, room);
        let came = large.body.len() - before;
        self.buffer.extend(large.body.drain(large.body.len() - came.saturating_sub(missing)..));
        large.add(came.min(missing));
        came >= room
    }

    fn begin_large(&mut self, header: Header, bytes: &[u8]) {
        let mut large = Large::begin(header, std::mem::take(&mut self.given));
        large.push(bytes);
        self.large = Some(Box::new(large));
    }

    /// The next whole frame, or none yet. After an error the stream cannot be read on.
    ///
    /// # Errors
    /// The defect: of the header, or of the body's checksum.
    pub fn next_frame(&mut self) -> Result<Option<(Header, &[u8])>, FrameError> {
        match self.next_large()? {
            Some((header, body)) => {
                self.given = body;
                Ok(Some((header, &self.given)))
            }
            None => self.next_small(),
        }
    }

    /// As [`Deframer::next_frame`]; a large body that came in pieces is moved out. A caller that no longer
    /// needs it calls [`Deframer::give_back`].
    ///
    /// # Errors
    /// As [`Deframer::next_frame`].
    pub fn take_frame(&mut self) -> Result<Option<Taken<'_>>, FrameError> {
        match self.next_large()? {
            Some((header, body)) => Ok(Some((header, Cow::Owned(body)))),
            None => Ok(self.next_small()?.map(|(header, body)| (header, Cow::Borrowed(body)))),
        }
    }

    /// A copy of a body, in the memory that is for the next large one.
    pub fn copy(&mut self, body: &[u8]) -> Vec<u8> {
        let mut copy = std::mem::take(&mut self.given);
        copy.clear();
        copy.reserve_exact(body.len());
        copy.extend_from_slice(body);
        copy
    }

    /// Gives a body back: its memory is for the next one.
    pub fn give_back(&mut self, body: Vec<u8>) {
        if body.capacity() <= BODY_BYTES_MAX {
            self.spare_given.is_needed();
            self.given = body;
        }
    }

    fn next_large(&mut self) -> Result<Option<(Header, Vec<u8>)>, FrameError> {
        self.large.take_if(|large| large.missing() == 0).map(|large| large.end()).transpose()
    }

    fn next_small(&mut self) -> Result<Option<(Header, &[u8])>, FrameError> {
        if self.large.is_some() {
            return Ok(None);
        }
        let Some((header, body, rest)) = split(&self.buffer[self.from..])? else { return Ok(None) };
        self.from = self.buffer.len() - rest.len();
        Ok(Some((header, body)))
    }

    /// Says whether no bytes are kept. The next arrival then begins a frame, and [`split`] can read that
    /// frame in place.
    pub fn is_empty(&self) -> bool {
        self.from == self.buffer.len() && self.large.is_none()
    }

    /// Bytes that it keeps, those of frames that were given out and not yet let go of among them.
    pub fn bytes(&self) -> usize {
        self.buffer.len() + self.large.as_ref().map_or(0, |large| large.body.len()) + self.given.len()
    }

    /// Gives memory back when a burst is over: for one of many.
    pub fn relax(&mut self) {
        if self.is_empty() {
            self.buffer = Vec::new();
            self.from = 0;
            self.given = Vec::new();
        }
    }

    /// The same once it has long not been needed: for one of few.
    pub fn relax_in_time(&mut self) {
        if self.is_empty() {
            self.spare.empty(&mut self.buffer, KEPT_BYTES);
            self.from = 0;
            self.spare_given.empty(&mut self.given, 0);
        }
    }
}

/// The header of a frame that is large, if it is not whole and enough of it is there.
fn large(bytes: &[u8]) -> Option<Header> {
    let (head, behind) = bytes.split_first_chunk().filter(|_| bytes.len() >= ALLOWED_FROM)?;
    Header::decode(head).ok().filter(|header| header.body_bytes as usize > behind.len())
}

/// Memory is taken on a peer's word, but at most so many times what it has sent: it may never send the rest.
const CLAIM: usize = 16;

/// Bytes with which a frame must begin to be gathered by itself.
const ALLOWED_FROM: usize = BODY_BYTES_MAX / CLAIM;

/// Bytes that each of a deframer's few buffers always keeps.
const KEPT_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{CALL_BODY_BYTES_MAX, Kind, encode};
    use crate::id::Stamp;

    #[test]
    fn frames_survive_any_cut() {
        let mut bytes = Vec::new();
        encode(Header { stamp: Stamp(7), ..Header::new(Kind::Fetch, 3) }, b"abc", &mut bytes);
        encode(Header::new(Kind::Ping, 4), b"", &mut bytes);
        for cut in 0..bytes.len() {
            let mut d = Deframer::default();
            let mut got = Vec::new();
            for part in [&bytes[..cut], &bytes[cut..]] {
                d.push(part);
                while let Some((h, b)) = d.next_frame().unwrap() {
                    got.push((h.kind, h.call, h.stamp.0, b.to_vec()));
                }
            }
            assert_eq!(got, [(Kind::Fetch, 3, 7, b"abc".to_vec()), (Kind::Ping, 4, 0, vec![])]);
        }
    }

    /// Large and small frames in turn, as sockets bring them.
    #[test]
    fn large_frames_come_whole_whatever_the_pieces() {
        let body = |call: usize, len: usize| (0..len).map(|at| (at * 7 + call) as u8).collect::<Vec<_>>();
        let lens =
            [3, 300_000, 0, 200_000, ALLOWED_FROM, BODY_BYTES_MAX, 70_000, 1, ALLOWED_FROM - FRAME_BYTES, 9];
        let mut bytes = Vec::new();
        for (call, len) in lens.into_iter().enumerate() {
            encode(Header::new(Kind::Request, call as u64), &body(call, len), &mut bytes);
        }
        for piece in [1_000, ALLOWED_FROM - 1, ALLOWED_FROM, 100_000, 128 << 10, bytes.len()] {
            for moves in [false, true] {
                let (mut d, mut calls) = (Deframer::default(), 0);
                for part in bytes.chunks(piece) {
                    d.push(part);
                    loop {
                        let (header, body_there) = match moves {
                            true => match d.take_frame().unwrap() {
                                None => break,
                                Some((header, Cow::Borrowed(body))) => (header, body.to_vec()),
                                Some((header, Cow::Owned(body))) => {
                                    let copy = body.clone();
                                    d.give_back(body);
                                    (header, copy)
                                }
                            },
                            false => match d.next_frame().unwrap() {
                                None => break,
                                Some((header, body)) => (header, body.to_vec()),
                            },
                        };
                        assert_eq!(header.call, calls as u64);
                        assert!(body_there == body(calls, lens[calls]), "call {calls}, pieces of {piece}");
                        calls += 1;
                    }
                    d.relax_in_time();
                }
                assert!(d.is_empty() && calls == lens.len(), "{calls}, pieces of {piece}");
            }
        }
    }

    #[test]
    fn rest_of_large_frame_is_received_in_place() {
        let body = |call: usize, len: usize| (0..len).map(|at| (at * 7 + call) as u8).collect::<Vec<_>>();
        // A frame in memory that the one before it has left is followed by what the receive brings too much.
        let lens = [300_000, 200_000, 70, 100_000, BODY_BYTES_MAX, 9];
        let mut bytes = Vec::new();
        for (call, len) in lens.into_iter().enumerate() {
            encode(Header::new(Kind::Request, call as u64), &body(call, len), &mut bytes);
        }
        for (piece, bytes_max) in [(10_000, usize::MAX), (usize::MAX, 70_000), (usize::MAX, usize::MAX)] {
            let (mut d, mut at, mut calls) = (Deframer::default(), 0, 0);
            while calls < lens.len() {
                let pushed = (bytes.len() - at).min(2 * ALLOWED_FROM);
                d.push(&bytes[at..][..pushed]);
                at += pushed;
                let mut more = |into: &mut Vec<u8>, room: usize| {
                    assert!(room <= bytes_max.min(into.capacity() - into.len()));
                    let most = room.min(bytes.len() - at).min(piece);
                    into.extend_from_slice(&bytes[at..][..most]);
                    at += most;
                };
                while d.receive(bytes_max, &mut more) {}
                while let Some((header, got)) = d.next_frame().unwrap() {
                    assert!(
                        (header.call, got) == (calls as u64, &body(calls, lens[calls])[..]),
                        "call {calls}"
                    );
                    calls += 1;
                }
            }
        }
        *bytes.last_mut().unwrap() ^= 1;
        let mut d = Deframer::default();
        let large = bytes.len() - FRAME_BYTES - 9 - BODY_BYTES_MAX - FRAME_BYTES;
        bytes[large + 500_000] ^= 1;
        d.push(&bytes[large..][..ALLOWED_FROM]);
        assert!(d.receive(usize::MAX, |into, _| into.extend_from_slice(&bytes[large + ALLOWED_FROM..])));
        assert_eq!(d.next_frame(), Err(FrameError::BodySum));
    }

    #[test]
    fn damage_in_a_large_body_is_found_in_any_piece() {
        let mut bytes = Vec::new();
        encode(Header::new(Kind::Request, 1), &vec![7; 300_000], &mut bytes);
        for at in [FRAME_BYTES, ALLOWED_FROM, 150_000, bytes.len() - 1] {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            let mut d = Deframer::default();
            let found = bad.chunks(100_000).find_map(|part| {
                d.push(part);
                d.take_frame().map(|frame| frame.is_some()).map_or_else(Some, |_| None)
            });
            assert_eq!(found, Some(FrameError::BodySum), "byte {at}");
        }
    }

    #[test]
    fn a_claim_of_4_gb_is_refused_before_anything_is_kept() {
        let mut h = Header::new(Kind::Commit, 1);
        h.body_bytes = u32::MAX;
        let mut d = Deframer::default();
        d.push(&h.encode());
        assert_eq!(d.next_frame().unwrap_err(), FrameError::TooLarge(u32::MAX, BODY_BYTES_MAX));
        let mut long = h.encode().to_vec();
        long.resize(2 * ALLOWED_FROM, 0);
        let mut d = Deframer::default();
        d.push(&long);
        assert_eq!(d.next_frame().unwrap_err(), FrameError::TooLarge(u32::MAX, BODY_BYTES_MAX));
    }

    #[test]
    fn room_is_taken_for_a_claim_once_a_sixteenth_of_it_is_there() {
        let mut bytes = Vec::new();
        encode(Header::new(Kind::Commit, 1), &vec![7; BODY_BYTES_MAX], &mut bytes);
        let memory = |d: &Deframer| {
            let large = d.large.as_ref().map_or(0, |large| large.body.capacity());
            d.buffer.capacity() + large + d.given.capacity()
        };
        for (first, least, most) in [
            (FRAME_BYTES, 0, 1 << 10),
            (ALLOWED_FROM - 1, 0, 2 * ALLOWED_FROM),
            (ALLOWED_FROM, BODY_BYTES_MAX, BODY_BYTES_MAX + KEPT_BYTES),
        ] {
            let mut d = Deframer::default();
            let second = first / 2;
            d.push(&bytes[..second]);
            d.push(&bytes[second..first]);
            assert!((least..=most).contains(&memory(&d)), "{first}: {}", memory(&d));
            d.push(&bytes[first..]);
            assert_eq!(d.next_frame().unwrap().map(|(_, body)| body.len()), Some(BODY_BYTES_MAX));
            d.relax_in_time();
            assert!(d.is_empty() && memory(&d) >= BODY_BYTES_MAX);
            (0..100).for_each(|_| d.relax_in_time());
            assert!(memory(&d) <= KEPT_BYTES);
        }
    }

    #[test]
    fn claim_of_the_largest_call_takes_what_was_sent_sixteen_times() {
        let header = Header { body_bytes: CALL_BODY_BYTES_MAX as u32, ..Header::new(Kind::Request, 1) };
        let (mut d, mut sent) = (Deframer::default(), FRAME_BYTES);
        d.push(&header.encode());
        while sent < FRAME_BYTES + CALL_BODY_BYTES_MAX {
            let more = (100_000).min(FRAME_BYTES + CALL_BODY_BYTES_MAX - sent);
            d.push(&vec![0; more]);
            sent += more;
            let memory = d.buffer.capacity() + d.large.as_ref().map_or(0, |large| large.body.capacity());
            assert!(memory <= CLAIM * sent + KEPT_BYTES, "{sent}: {memory}");
        }
        assert_eq!(d.next_frame().unwrap().map(|(_, body)| body.len()), Some(CALL_BODY_BYTES_MAX));
    }

    #[test]
    fn strangers_and_damage_are_named() {
        let mut d = Deframer::default();
        d.push(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: someone or other\r\n\r\n");
        assert!(matches!(d.next_frame(), Err(FrameError::Magic(_))));
        let mut bytes = Vec::new();
        encode(Header::new(Kind::Ping, 4), b"xy", &mut bytes);
        for i in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[i] ^= 0x10;
            let mut d = Deframer::default();
            d.push(&bad);
            assert!(d.next_frame().is_err(), "byte {i}");
        }
    }
}
