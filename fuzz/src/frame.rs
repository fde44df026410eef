//! Streams of bytes as a connection gives them.

use arbitrary::{Arbitrary, Unstructured};
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{FRAME_BYTES, Header, Kind, WIRE_VERSION, encode};
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
    assert_eq!(frames_in_place(&behind, 1_000 + usize::from(input.cuts[1])), first, "received in place");
    whole.0.iter().for_each(|(_, body)| read_as_anything(body));
}

/// Bytes of a frame that comes in several pieces, each enough for its room.
const LARGE: usize = 200_000;

type Frames = (Vec<(u8, Vec<u8>)>, bool);

/// Kinds and bodies, and whether the stream broke.
fn frames<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Frames {
    let (mut deframer, mut found) = (Deframer::default(), Vec::new());
    for piece in pieces {
        deframer.push(piece);
        if !take(&mut deframer, &mut found) {
            return (found, true);
        }
        deframer.relax();
    }
    (found, false)
}

/// The same, if the rest of a large frame is received in place, at most so many bytes at once.
fn frames_in_place(mut bytes: &[u8], bytes_max: usize) -> Frames {
    let (mut deframer, mut found) = (Deframer::default(), Vec::new());
    while let Some(pushed) = bytes.split_off(..bytes.len().min(LARGE / 2)).filter(|pushed| !pushed.is_empty())
    {
        deframer.push(pushed);
        let mut receive = |into: &mut Vec<u8>, most: usize| {
            into.extend_from_slice(bytes.split_off(..bytes.len().min(most)).unwrap_or_default());
        };
        while deframer.receive(bytes_max, &mut receive) {}
        if !take(&mut deframer, &mut found) {
            return (found, true);
        }
    }
    (found, false)
}

/// Takes the whole frames. Says whether the stream goes on.
fn take(deframer: &mut Deframer, found: &mut Vec<(u8, Vec<u8>)>) -> bool {
    loop {
        match deframer.take_frame() {
            Ok(Some((header, body))) => found.push((header.kind.number(), body.into_owned())),
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
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
    for kind in Kind::ALL {
        let mut out = Vec::new();
        if let Ok(message) = FromClient::decode(*kind, b) {
            message.encode(&mut out);
            assert_eq!(FromClient::decode(*kind, &out), Ok(message), "it is not read as it was written");
        } else if let Ok(message) = FromServer::decode(*kind, b) {
            message.encode(&mut out);
            assert_eq!(FromServer::decode(*kind, &out), Ok(message), "it is not read as it was written");
        }
    }
    if let Ok(effects) = CommitEffects::decode(b) {
        let mut out = Vec::new();
        effects.encode(&mut out);
        assert_eq!(CommitEffects::decode(&out), Ok(effects));
    }
}
