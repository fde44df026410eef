//! Segments of a log: written by a script, damaged by a script, and read.

use std::collections::BTreeMap;

use arbitrary::{Result, Unstructured};
use tercel_wire::id::{LogPosition, SpaceId, Stamp, ViewId};
use tercel_wire::log::{
    End, Kind, Last, LogId, LogOffset, SEGMENT_HEADER_BYTES, STABLE_ALONE, Scanner, SegmentHeader, Writer,
    encode_record,
};

const LOG: LogId = LogId { space: SpaceId(7), salt: 0xfeed_face_cafe_f00d };

type Segments = BTreeMap<u64, Vec<u8>>;
/// Kind, stamp, view, position and payload of every record.
type ScannedRecords = Vec<(u8, Stamp, ViewId, LogPosition, Vec<u8>)>;

/// Scans the bytes as a log, then plays them as a script that writes, damages and reads a log.
pub fn run(data: &[u8]) {
    raw(data);
    let _ = script(&mut Unstructured::new(data));
}

/// Bytes as they come, with and without a header before them.
fn raw(data: &[u8]) {
    let header = SegmentHeader::first(LOG, Stamp::ZERO, 512).encode();
    let with_header = [&header[..], data].concat();
    for bytes in [data, &with_header] {
        scan(&bytes.chunks(512).zip(1..).map(|(b, n)| (n, b.to_vec())).collect());
    }
}

fn script(u: &mut Unstructured<'_>) -> Result<()> {
    let segment_bytes = 8 * u.int_in_range(32u32..=100)?;
    let mut first = vec![0; segment_bytes as usize];
    first[..SEGMENT_HEADER_BYTES]
        .copy_from_slice(&SegmentHeader::first(LOG, Stamp::ZERO, segment_bytes).encode());
    let mut segments = Segments::from([(1, first)]);
    let End::Clean(tail) = scan(&segments).1 else { panic!("a new log is clean") };
    let mut writer = Writer::new(LOG, tail, segment_bytes, segment_bytes);
    let mut written = ScannedRecords::new();
    // Records that a mark says were synced.
    let mut synced = 0;
    for _ in 0..u.int_in_range(1..=6)? {
        let mut last = writer.tail().last;
        let before = written.len();
        let mut records = Vec::new();
        for _ in 0..u.int_in_range(0..=4)? {
            record(u, &mut records, &mut last, &mut written)?;
        }
        let mark = u.ratio(3, 4)?;
        if mark && !records.is_empty() {
            synced = before;
        }
        let place = |at: LogOffset, piece: &[u8]| {
            let segment = segments.entry(at.segment).or_insert_with(|| vec![0; segment_bytes as usize]);
            segment[at.byte as usize..][..piece.len()].copy_from_slice(piece);
        };
        writer.place(&records, mark.then_some(STABLE_ALONE), place).expect("records of the chain");
    }
    assert_eq!(scan(&segments), (written.clone(), End::Clean(writer.tail())));

    // The next segment is there before it is needed.
    segments.insert(segments.len() as u64 + 1, vec![0; segment_bytes as usize]);
    let whole = segments.clone();
    let mut mark = writer.tail().synced;
    if mark.byte as usize == SEGMENT_HEADER_BYTES && mark.segment > 1 {
        // A mark that comes first in its segment came with the segment's header, but for the first, which
        // was synced when the log was made.
        mark.byte = 0;
    }
    for _ in 0..u.int_in_range(0..=4)? {
        let segment = u.int_in_range(1..=segments.len() as u64)?;
        let bytes = segments.get_mut(&segment).expect("segments are numbered without gaps");
        let offset = u.choose_index(bytes.len())?;
        bytes[offset] = u.arbitrary()?;
    }
    // Bytes before the last mark were synced; the mark itself and the bytes behind it may not have been.
    let (mut before, mut behind) = (false, false);
    for (&segment, bytes) in &whole {
        for (offset, byte) in (0..).zip(bytes) {
            let changed = segments[&segment][offset as usize] != *byte;
            let at = LogOffset { segment, byte: offset };
            before |= changed && at < mark;
            behind |= changed && at >= mark;
        }
    }
    let (found, end) = scan(&segments);
    assert_eq!(found, written[..found.len()], "something that was never written");
    match (before, behind) {
        (false, false) => assert!(matches!(end, End::Clean(_)), "{end:?}"),
        (false, true) => {
            assert!(matches!(end, End::Torn(_)), "a torn end was taken for something else: {end:?}");
            assert!(found.len() >= synced, "what was synced is gone without a word");
        }
        (true, false) => assert!(matches!(end, End::Damage { .. }), "damage was not noticed: {end:?}"),
        // Without its mark, damage cannot be told from a torn end.
        (true, true) => assert!(!matches!(end, End::Clean(_)), "damage was not noticed"),
    }
    Ok(())
}

fn record(
    u: &mut Unstructured<'_>,
    records: &mut Vec<u8>,
    last: &mut Last,
    written: &mut ScannedRecords,
) -> Result<()> {
    let kind = Kind::new(u.int_in_range(1..=254)?).expect("a kind for the owner");
    let mut payload = vec![u.arbitrary()?; u.int_in_range(0..=400)?];
    if u.arbitrary()? {
        let few = u.bytes(u.len().min(40).min(payload.len()))?;
        payload[..few.len()].copy_from_slice(few);
    }
    last.stamp = Stamp(last.stamp.0 + u.int_in_range(0..=3)?);
    if u.ratio(1, 4)? {
        last.view = ViewId::new(last.view.number + u.int_in_range(1..=2)?, u.arbitrary()?);
    }
    last.position = last.position.next();
    encode_record(records, &mut last.chain, kind, last.view, last.stamp, &payload).expect("a small record");
    written.push((kind.get(), last.stamp, last.view, last.position, payload));
    Ok(())
}

fn scan(segments: &Segments) -> (ScannedRecords, End) {
    let mut scanner = Scanner::new(LOG.space);
    let mut found = Vec::new();
    for (&number, bytes) in segments {
        let mut reader = scanner.segment(number, bytes);
        while let Some(record) = reader.next() {
            let (kind, payload) = (record.kind.get(), record.payload.to_vec());
            found.push((kind, record.stamp, record.view, record.position, payload));
        }
    }
    (found, scanner.finish())
}
