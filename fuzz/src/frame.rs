//! Streams of bytes as a connection gives them.

use std::fmt::Debug;

use arbitrary::{Arbitrary, Unstructured};
use tercel_wire::cursor::DecodeError;
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{FRAME_BYTES, Header, Kind, WIRE_VERSION, encode};
use tercel_wire::layout::Layout;
use tercel_wire::message::*;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Whether checksums and lengths are made right, so that what stands behind them is reached.
    mended: bool,
    cuts: [u16; 3],
    bytes: &'a [u8],
}

/// Cuts the stream at three places, and reads every body as every message.
pub fn run(data: &[u8]) {
    let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(data)) else { return };
    read_as_anything(input.bytes);
    let mut stream = input.bytes.to_vec();
    if input.mended {
        mend(&mut stream);
    }
    let mut cuts = input.cuts.map(|c| usize::from(c).min(stream.len()));
    cuts.sort_unstable();
    let pieces =
        [&stream[..cuts[0]], &stream[cuts[0]..cuts[1]], &stream[cuts[1]..cuts[2]], &stream[cuts[2]..]];
    let whole = frames([&stream[..]].into_iter());
    assert_eq!(frames(pieces.into_iter()), whole, "frames depend on how they arrive");
    // Behind one that is large, and gathered by itself.
    let mut behind = Vec::new();
    encode(Header::new(Kind::Ping, 0), &[7; LARGE], &mut behind);
    behind.extend_from_slice(&stream);
    let first = frames(behind.chunks(LARGE / 2 + usize::from(input.cuts[0])));
    assert!(first.0.first().is_some_and(|(_, body)| body.len() == LARGE));
    assert_eq!((&first.0[1..], first.1), (&whole.0[..], whole.1), "frames behind a large one");
    whole.0.iter().for_each(|(_, body)| read_as_anything(body));
}

/// Of a frame that comes in several pieces, each enough for its room.
const LARGE: usize = 200_000;

type Frames = (Vec<(u8, Vec<u8>)>, bool);

/// Kinds and bodies, and whether the stream broke.
fn frames<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Frames {
    let (mut deframer, mut found) = (Deframer::default(), Vec::new());
    for piece in pieces {
        deframer.push(piece);
        loop {
            match deframer.take_frame() {
                Ok(Some((header, body))) => found.push((header.kind as u8, body.into_owned())),
                Ok(None) => break,
                Err(_) => return (found, true),
            }
        }
        deframer.relax();
    }
    (found, false)
}

/// Makes magic, version, length and checksums of the frames right.
fn mend(stream: &mut [u8]) {
    let mut at = 0;
    while let Some(head) = stream.get_mut(at..at + FRAME_BYTES) {
        head[..4].copy_from_slice(b"TRCL");
        head[4..6].copy_from_slice(&WIRE_VERSION.to_le_bytes());
        let body = u32::from(head[8]);
        head[8..12].copy_from_slice(&body.to_le_bytes());
        let end = at + FRAME_BYTES + body as usize;
        let sum = stream.get(at + FRAME_BYTES..end).map_or(0, crc32fast::hash);
        stream[at + 12..at + 16].copy_from_slice(&sum.to_le_bytes());
        let sum = crc32fast::hash(&stream[at..at + FRAME_BYTES - 4]);
        stream[at + FRAME_BYTES - 4..at + FRAME_BYTES].copy_from_slice(&sum.to_le_bytes());
        at = end;
    }
}

/// Decodes as every message; what can be read says the same when it is written and read again.
pub fn read_as_anything(b: &[u8]) {
    fn again<T: Debug + PartialEq>(
        read: Result<T, DecodeError>,
        write: impl Fn(&T, &mut Vec<u8>),
        same: impl Fn(&[u8], &T) -> bool,
    ) {
        if let Ok(message) = read {
            let mut out = Vec::new();
            write(&message, &mut out);
            assert!(same(&out, &message), "{message:?} is not read as it was written");
        }
    }
    again(Hello::decode(b), Hello::encode, |o, m| Hello::decode(o).as_ref() == Ok(m));
    again(Welcome::decode(b), Welcome::encode, |o, m| Welcome::decode(o).as_ref() == Ok(m));
    again(Fetch::decode(b), Fetch::encode, |o, m| Fetch::decode(o).as_ref() == Ok(m));
    again(PageReply::decode(b), PageReply::encode, |o, m| PageReply::decode(o).as_ref() == Ok(m));
    again(Unsubscribe::decode(b), Unsubscribe::encode, |o, m| Unsubscribe::decode(o).as_ref() == Ok(m));
    again(Part::decode(b), Part::encode, |o, m| Part::decode(o).as_ref() == Ok(m));
    again(Commit::decode(b), Commit::encode, |o, m| Commit::decode(o).as_ref() == Ok(m));
    again(CommitEffects::decode(b), CommitEffects::encode, |o, m| CommitEffects::decode(o).as_ref() == Ok(m));
    again(Ping::decode(b), Ping::encode, |o, m| Ping::decode(o).as_ref() == Ok(m));
    again(Pong::decode(b), Pong::encode, |o, m| Pong::decode(o).as_ref() == Ok(m));
    again(Health::decode(b), Health::encode, |o, m| Health::decode(o).as_ref() == Ok(m));
    again(Resolve::decode(b), Resolve::encode, |o, m| Resolve::decode(o).as_ref() == Ok(m));
    again(Verdict::decode(b), Verdict::encode, |o, m| Verdict::decode(o).as_ref() == Ok(m));
    again(Stream::decode(b), Stream::encode, |o, m| Stream::decode(o).as_ref() == Ok(m));
    again(Lease::decode(b), Lease::encode, |o, m| Lease::decode(o).as_ref() == Ok(m));
    again(Leased::decode(b), Leased::encode, |o, m| Leased::decode(o).as_ref() == Ok(m));
    again(Classes::decode(b), Classes::encode, |o, m| Classes::decode(o).as_ref() == Ok(m));
    again(Refused::decode(b), Refused::encode, |o, m| Refused::decode(o).as_ref() == Ok(m));
    again(BackupBegun::decode(b), BackupBegun::encode, |o, m| BackupBegun::decode(o).as_ref() == Ok(m));
    again(BackupPart::decode(b), BackupPart::encode, |o, m| BackupPart::decode(o).as_ref() == Ok(m));
    again(Bind::decode(b), Bind::encode, |o, m| Bind::decode(o).as_ref() == Ok(m));
    again(Bound::decode(b), Bound::encode, |o, m| Bound::decode(o).as_ref() == Ok(m));
    again(Call::decode(b), Call::encode, |o, m| Call::decode(o).as_ref() == Ok(m));
    again(Answer::decode(b), Answer::encode, |o, m| Answer::decode(o).as_ref() == Ok(m));
    again(Request::decode(b), Request::encode, |o, m| Request::decode(o).as_ref() == Ok(m));
    again(Cancel::decode(b), Cancel::encode, |o, m| Cancel::decode(o).as_ref() == Ok(m));
    again(Item::decode(b), Item::encode, |o, m| Item::decode(o).as_ref() == Ok(m));
    again(Credit::decode(b), Credit::encode, |o, m| Credit::decode(o).as_ref() == Ok(m));
    again(InputEnd::decode(b), InputEnd::encode, |o, m| InputEnd::decode(o).as_ref() == Ok(m));
    again(Response::decode(b), Response::encode, |o, m| Response::decode(o).as_ref() == Ok(m));
    again(Layout::decode(b), Layout::encode, |o, m| Layout::decode(o).as_ref() == Ok(m));
}
