//! The format of the log, seen from outside: what was written is read back, a crash cuts no more than what no
//! sync confirmed, and damage is never taken for a crash.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::convert::Infallible;
use tercel_wire::id::{EntryId, LogPosition, SpaceId, Stamp, ViewId};
use tercel_wire::log::cut::{Segments, erase, tail_above};
use tercel_wire::log::{
    Chain, End, Flaw, Kind, Last, LogId, LogOffset, MARK_BYTES, RECORD_BYTES_MAX, RecordTooLong, Runs,
    SEGMENT_HEADER_BYTES, STABLE_ALONE, Scanner, SegmentHeader, Tail, Writer, add_run, begin_record,
    encode_record, finish_record, marks, runs_before, stable,
};

const LOG: LogId = LogId { space: SpaceId(0x0123_4567_89ab_cdef), salt: 0xfeed_face_cafe_f00d };

/// The files of a log, in memory.
#[derive(Clone)]
struct Image {
    segments: BTreeMap<u64, Vec<u8>>,
    segment_bytes: u32,
    writer: Writer,
    /// The view of the next record to append.
    view: ViewId,
    /// The stable position of the next mark.
    stable: LogPosition,
}

/// The unit in which a disk writes: fewer bytes than any record has.
const SECTOR: usize = 32;

/// A disk that remembers what it was like at every sync.
struct Steps {
    segments: BTreeMap<u64, Vec<u8>>,
    unsynced: bool,
    states: Vec<BTreeMap<u64, Vec<u8>>>,
}

impl Segments for Steps {
    type Error = Infallible;

    fn read(&mut self, number: u64) -> Result<Vec<u8>, Infallible> {
        Ok(self.segments[&number].clone())
    }

    fn zero(&mut self, at: LogOffset, bytes: usize) -> Result<(), Infallible> {
        self.segments.get_mut(&at.segment).unwrap()[at.byte as usize..][..bytes].fill(0);
        self.unsynced = true;
        Ok(())
    }

    fn sync(&mut self, _: u64) -> Result<(), Infallible> {
        self.states.push(self.segments.clone());
        self.unsynced = false;
        Ok(())
    }
}

/// A record, as it was written or found.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    kind: Kind,
    view: ViewId,
    stamp: Stamp,
    position: LogPosition,
    payload: Vec<u8>,
}

impl Entry {
    /// The record that the tests write at `position`: everything but its view and its size follows from that.
    /// Stamps skip numbers.
    fn at(position: LogPosition, view: ViewId, size: usize) -> Entry {
        let n = position.0;
        let payload = (0..size).map(|i| (n as usize * 31 + i + 1) as u8).collect();
        Entry { kind: Kind::new(1 + (n % 7) as u8).unwrap(), view, stamp: Stamp(3 * n), position, payload }
    }
}

type Entries = Vec<Entry>;

const HEADER: usize = SEGMENT_HEADER_BYTES;
const VIEW: ViewId = ViewId::new(1, 0xabcd);
const LATER: ViewId = ViewId::new(3, 0x1234);

impl Image {
    fn new(segment_bytes: u32) -> Image {
        let mut first = vec![0; segment_bytes as usize];
        let header = SegmentHeader::first(LOG, Stamp::ZERO, segment_bytes);
        first[..HEADER].copy_from_slice(&header.encode());
        let segments = BTreeMap::from([(1, first)]);
        let End::Clean(tail) = scan(&segments).1 else { panic!("a new log is clean") };
        let writer = Writer::new(LOG, tail, segment_bytes, segment_bytes);
        Image { segments, segment_bytes, writer, view: VIEW, stable: STABLE_ALONE }
    }

    /// Writes records of these sizes as one batch.
    fn batch(&mut self, sizes: &[usize]) {
        self.append(sizes, true);
    }

    /// The same; without a mark if what was placed before has not been synced.
    fn append(&mut self, sizes: &[usize], mark: bool) {
        let mut last = self.writer.tail().last;
        let mut records = Vec::new();
        for &size in sizes {
            last.position = last.position.next();
            let Entry { kind, view, stamp, payload, .. } = Entry::at(last.position, self.view, size);
            encode_record(&mut records, &mut last.chain, kind, view, stamp, &payload).unwrap();
        }
        let (segments, bytes) = (&mut self.segments, self.segment_bytes as usize);
        self.writer
            .place(&records, mark.then_some(self.stable), |at, piece| {
                let segment = segments.entry(at.segment).or_insert_with(|| vec![0; bytes]);
                segment[at.byte as usize..][..piece.len()].copy_from_slice(piece);
            })
            .unwrap();
    }

    fn scan(&self) -> (Entries, End) {
        scan(&self.segments)
    }

    /// Cuts the log above `position`. Gives the segments as they were before and at every sync.
    fn cut_above(&mut self, position: LogPosition) -> Vec<BTreeMap<u64, Vec<u8>>> {
        let last = *self.segments.keys().last().unwrap();
        let begins = |bytes: &[u8]| SegmentHeader::decode(bytes).is_ok_and(|h| h.before.position < position);
        let first = self.segments.iter().rev().find(|(_, bytes)| begins(bytes)).map_or(1, |(n, _)| *n);
        let mut disk =
            Steps { segments: self.segments.clone(), unsynced: false, states: vec![self.segments.clone()] };
        let tail = tail_above(LOG.space, position, (first, last), &mut disk).unwrap().unwrap();
        erase(LOG, tail.offset, last, &mut disk).unwrap();
        assert!(!disk.unsynced);
        self.segments = disk.segments;
        self.go_on_at(tail);
        disk.states
    }

    /// As an opening does: zeros behind the tail, and the next record belongs there.
    fn repair(&mut self) -> Tail {
        let (End::Clean(tail) | End::Torn(tail)) = self.scan().1 else { panic!("damaged") };
        for (number, bytes) in self.segments.range_mut(tail.offset.segment..) {
            let begin = if *number == tail.offset.segment { tail.offset.byte as usize } else { 0 };
            bytes[begin..].fill(0);
        }
        self.go_on_at(tail);
        tail
    }

    fn go_on_at(&mut self, tail: Tail) {
        self.writer = Writer::new(LOG, tail, self.segment_bytes, self.segment_bytes);
    }

    /// Puts back some sectors of what changed since `before`.
    fn lose(&mut self, before: &BTreeMap<u64, Vec<u8>>, lost: &[bool]) {
        let mut lost = lost.iter().cycle();
        for (number, bytes) in &mut self.segments {
            let zeros = vec![0; bytes.len()];
            let old = before.get(number).unwrap_or(&zeros);
            for (new, old) in bytes.chunks_mut(SECTOR).zip(old.chunks(SECTOR)).filter(|(new, old)| new != old)
            {
                if *lost.next().unwrap() {
                    new.copy_from_slice(old);
                }
            }
        }
    }

    /// Every byte of the image, in order.
    fn offsets(&self) -> impl Iterator<Item = LogOffset> + use<> {
        let sizes: Vec<(u64, u32)> = self.segments.iter().map(|(&n, b)| (n, b.len() as u32)).collect();
        sizes.into_iter().flat_map(|(segment, n)| (0..n).map(move |byte| LogOffset { segment, byte }))
    }

    fn byte(&mut self, at: LogOffset) -> &mut u8 {
        &mut self.segments.get_mut(&at.segment).unwrap()[at.byte as usize]
    }
}

/// The kind of records whose kind does not matter.
fn kind() -> Kind {
    Kind::new(1).unwrap()
}

/// The records of these sizes, all of them in the first view.
fn expected(sizes: &[usize]) -> Entries {
    sizes.iter().zip(1..).map(|(&size, n)| Entry::at(LogPosition(n), VIEW, size)).collect()
}

fn scan(segments: &BTreeMap<u64, Vec<u8>>) -> (Entries, End) {
    scan_of(LOG.space, segments)
}

fn scan_of(space: SpaceId, segments: &BTreeMap<u64, Vec<u8>>) -> (Entries, End) {
    let mut scanner = Scanner::new(space);
    let mut found = Vec::new();
    for (&number, bytes) in segments {
        let mut reader = scanner.segment(number, bytes);
        while let Some(record) = reader.next() {
            let (kind, view, stamp, position) = (record.kind, record.view, record.stamp, record.position);
            found.push(Entry { kind, view, stamp, position, payload: record.payload.to_vec() });
        }
    }
    (found, scanner.finish())
}

/// The runs of a log without prepared segments, and the segments that were read for those before the last.
fn runs_of(segments: &BTreeMap<u64, Vec<u8>>) -> Result<(Runs, Vec<u64>), u64> {
    let headers: Vec<_> = segments.values().map(|bytes| SegmentHeader::decode(bytes).unwrap()).collect();
    let mut read = Vec::new();
    let Ok(runs) = runs_before(&headers, |number| {
        read.push(number);
        Ok::<_, Infallible>(segments[&number].clone())
    });
    let (mut runs, last) = (runs?, headers.last().unwrap());
    let rest = scan(&segments.range(last.number..).map(|(n, bytes)| (*n, bytes.clone())).collect()).0;
    for Entry { view, position, .. } in rest {
        add_run(&mut runs, EntryId { view, position });
    }
    Ok((runs, read))
}

/// As [`scan`], but each segment is handed over in pieces, without what lies before the next record.
fn scan_by_pieces(segments: &BTreeMap<u64, Vec<u8>>) -> Entries {
    let mut scanner = Scanner::new(LOG.space);
    let mut found: Entries = Vec::new();
    for (&number, bytes) in segments {
        drop(scanner.segment(number, &bytes[..HEADER]));
        let (mut needs, mut announced) = (HEADER, None);
        loop {
            let LogOffset { segment, byte } = scanner.tail().offset;
            let mut piece = bytes[..needs].to_vec();
            piece[..if segment == number { needs.min(byte as usize) } else { 0 }].fill(0);
            let mut reader = scanner.resume(&piece, bytes.len() as u32);
            let ahead = reader.ahead();
            announced = ahead.payload_bytes.or(announced);
            if ahead.needs > needs {
                needs = ahead.needs;
                continue;
            }
            let Some(record) = reader.next() else { break };
            assert!(announced.is_none_or(|bytes| bytes == record.payload.len()));
            announced = None;
            let (kind, view, stamp, position) = (record.kind, record.view, record.stamp, record.position);
            found.push(Entry { kind, view, stamp, position, payload: record.payload.to_vec() });
        }
    }
    found
}

/// Batches by the views in which they are written, and the sizes of their records.
fn batches() -> impl Strategy<Value = Vec<(bool, Vec<usize>)>> {
    prop::collection::vec((any::<bool>(), prop::collection::vec(0_usize..400, 0..4)), 1..8)
}

/// A log of these batches, each synced before the next. `true` begins a view.
fn in_views(segment_bytes: u32, batches: &[(bool, Vec<usize>)]) -> (Image, Entries) {
    let (mut image, mut records) = (Image::new(segment_bytes), Vec::new());
    for (n, (is_new, sizes)) in (2..).zip(batches) {
        if *is_new {
            image.view = ViewId::new(n, 5 * n);
        }
        image.batch(sizes);
        for size in sizes {
            records.push(Entry::at(LogPosition(records.len() as u64 + 1), image.view, *size));
        }
    }
    (image, records)
}

/// Two batches that were synced, and one of a later view that may not have been; records span segments.
fn three_batches() -> (Image, Entries, usize) {
    let sizes: [&[usize]; 3] = [&[10, 300, 0], &[40, 5], &[33, 410, 8, 1]];
    let mut image = Image::new(256);
    sizes[..2].iter().for_each(|batch| image.batch(batch));
    (image.view, image.stable) = (LATER, LogPosition(4));
    image.batch(sizes[2]);
    let mut records = expected(&sizes.concat());
    records[5..].iter_mut().for_each(|record| record.view = LATER);
    (image, records, 5)
}

#[test]
fn the_bytes_are_those_of_version_3() {
    let (image, records, _) = three_batches();
    let written: Vec<u8> = image.segments.values().flatten().copied().collect();
    let golden = include_bytes!("../golden/log_v3.bin");
    assert!(written == golden, "the log's format changed: give it a new version");

    let segments = golden.chunks(256).zip(1..).map(|(bytes, number)| (number, bytes.to_vec())).collect();
    let (found, end) = scan(&segments);
    assert_eq!(found, records);
    assert_eq!(end, End::Clean(image.writer.tail()));
}

#[test]
fn a_scan_may_begin_at_any_segment() {
    let (image, records, _) = three_batches();
    for first in 2..=image.segments.len() as u64 {
        let kept: BTreeMap<u64, Vec<u8>> =
            image.segments.range(first..).map(|(&n, bytes)| (n, bytes.clone())).collect();
        let (found, end) = scan(&kept);
        assert_eq!(found, records[records.len() - found.len()..]);
        let End::Clean(tail) = end else { panic!("{end:?}") };
        assert_eq!((tail.offset, tail.last), (image.writer.tail().offset, image.writer.tail().last));
        let header = SegmentHeader::decode(&kept[&first]).unwrap();
        let missing = &records[..records.len() - found.len()];
        let before = missing.last().map(|r| (r.stamp, r.view, r.position));
        assert_eq!(before, Some((header.before.stamp, header.before.view, header.before.position)));
    }
}

#[test]
fn a_log_cut_at_any_byte_of_its_last_batch_keeps_what_was_synced() {
    let (image, records, synced) = three_batches();
    let mark = image.writer.tail().synced;
    for at in image.offsets().filter(|&at| at >= mark) {
        let mut cut = image.clone();
        // Segments are there, in full, before anything is written into them.
        for (_, bytes) in cut.segments.range_mut(at.segment + 1..) {
            bytes.fill(0);
        }
        cut.segments.get_mut(&at.segment).unwrap()[at.byte as usize..].fill(0);
        let (found, end) = cut.scan();
        assert_eq!(found, records[..found.len()], "cut at {at}");
        assert!(found.len() >= synced, "cut at {at}");
        let (End::Clean(tail) | End::Torn(tail)) = end else { panic!("cut at {at}: {end:?}") };
        // What fills a record up to a multiple of 8 is zeros in any case.
        let end = LogOffset { byte: at.byte.next_multiple_of(8), ..at };
        assert!(tail.offset <= end && tail.last.position.0 == found.len() as u64, "cut at {at}: {tail:?}");
    }
}

#[test]
fn a_record_that_goes_on_in_a_segment_that_is_not_there_is_damage() {
    let (image, ..) = three_batches();
    let spans = |image: &Image, segment: u64| {
        let mut cut = image.clone();
        cut.segments.retain(|&n, _| n <= segment);
        cut.scan().1
    };
    let last = image.writer.tail().offset.segment;
    let ends = (1..last).map(|segment| spans(&image, segment));
    assert!(ends.clone().any(|end| matches!(end, End::Damage { flaw: Flaw::Ends, .. })));
    assert!(!matches!(spans(&image, last), End::Damage { .. }));
}

#[test]
fn any_flipped_bit_before_the_last_mark_is_damage_and_behind_it_a_torn_tail() {
    let (mut image, records, synced) = three_batches();
    let tail = image.writer.tail();
    let offsets: Vec<LogOffset> = image.offsets().collect();
    // The next segment is there, and empty.
    let bytes = image.segments[&tail.offset.segment].len();
    image.segments.insert(tail.offset.segment + 1, vec![0; bytes]);
    for at in offsets {
        for bit in 0..8 {
            *image.byte(at) ^= 1 << bit;
            let (found, end) = image.scan();
            assert_eq!(found, records[..found.len()], "flipped {at}");
            match end {
                End::Damage { offset, .. } => {
                    assert!(offset <= at && at < tail.synced, "flipped {at}: {end:?}")
                }
                End::Torn(_) => assert!(at >= tail.synced && found.len() >= synced, "flipped {at}: {end:?}"),
                End::Clean(_) => panic!("flipped {at}: nothing noticed"),
            }
            *image.byte(at) ^= 1 << bit;
        }
    }
}

#[test]
fn a_spanning_record_with_a_damaged_length_hides_no_mark() {
    // The length grows so far that the record seems to reach beyond everything that was synced behind it.
    let mut image = Image::new(4096);
    (0..20).for_each(|_| image.batch(&[500]));
    let LogOffset { segment, byte } = LogOffset { segment: 1, byte: (HEADER + MARK_BYTES) as u32 };
    image.segments.get_mut(&segment).unwrap()[byte as usize + 6] = 1;
    let (found, end) = image.scan();
    assert!(found.is_empty());
    assert!(matches!(end, End::Damage { offset, .. } if offset == LogOffset { segment, byte }), "{end:?}");
}

#[test]
fn a_damaged_segment_header_before_a_mark_is_damage_even_in_the_last_segment() {
    let mut image = Image::new(512);
    (0..3).for_each(|_| image.batch(&[100, 60]));
    assert_eq!(image.writer.tail().offset.segment, 2);
    assert!(image.writer.tail().synced > LogOffset { segment: 2, byte: HEADER as u32 });
    image.byte(LogOffset { segment: 2, byte: 30 }).clone_from(&0x55);
    assert!(matches!(image.scan().1, End::Damage { flaw: Flaw::Header, .. }));
}

#[test]
fn bytes_left_by_an_earlier_record_in_the_same_place_are_not_taken() {
    // The last batch was torn in its first record and cut without clearing what followed; a new record of the
    // same size then took the place of the torn one.
    let mut image = Image::new(4096);
    image.batch(&[40]);
    let before = image.clone();
    image.batch(&[40, 40]);
    let stale = image.segments[&1].clone();

    let mut image = before;
    let Tail { mut last, offset, .. } = image.writer.tail();
    let mut record = Vec::new();
    encode_record(&mut record, &mut last.chain, kind(), VIEW, last.stamp.next(), &[9; 40]).unwrap();
    image.segments.insert(1, stale);
    let place = offset.byte as usize + MARK_BYTES;
    image.segments.get_mut(&1).unwrap()[place..][..record.len()].copy_from_slice(&record);

    let (found, end) = image.scan();
    assert_eq!(found.last().unwrap().payload, [9; 40]);
    assert_eq!(found.len(), 2);
    assert!(matches!(end, End::Torn(tail) if tail.last.chain == last.chain));
}

#[test]
fn a_recycled_segment_with_its_old_contents_is_only_a_torn_tail() {
    let mut image = Image::new(512);
    (0..6).for_each(|_| image.batch(&[70, 70]));
    let (found, _) = image.scan();
    let last = *image.segments.keys().last().unwrap();
    let recycled = image.segments[&(last - 1)].clone();
    image.segments.insert(last + 1, recycled);
    let (found_after, end) = image.scan();
    assert_eq!(found_after, found);
    assert_eq!(end, End::Torn(image.writer.tail()));
}

#[test]
fn a_segment_of_another_log_or_a_newer_version_is_refused() {
    let (mut image, ..) = three_batches();
    let mut header = SegmentHeader::decode(&image.segments[&2]).unwrap();
    header.log.salt += 1;
    image.segments.get_mut(&2).unwrap()[..HEADER].copy_from_slice(&header.encode());
    assert!(matches!(image.scan().1, End::Damage { flaw: Flaw::OtherLog, .. }));

    let first = image.segments.get_mut(&1).unwrap();
    first[8] = 4;
    let crc = crc32fast::hash(&first[..HEADER - 4]);
    first[HEADER - 4..HEADER].copy_from_slice(&crc.to_le_bytes());
    assert!(matches!(image.scan().1, End::Damage { flaw: Flaw::Version { found: 4 }, .. }));
}

#[test]
fn records_that_do_not_follow_the_last_one_are_not_placed() {
    let mut image = Image::new(4096);
    image.batch(&[40]);
    image.view = LATER;
    image.batch(&[40]);
    let tail = image.writer.tail();
    let mut refuses = |mut chain: Chain, view: ViewId, stamp: Stamp, flaw: Flaw| {
        let mut records = Vec::new();
        encode_record(&mut records, &mut chain, kind(), view, stamp, b"no").unwrap();
        assert_eq!(image.writer.place(&records, Some(STABLE_ALONE), |_, _| panic!("placed")), Err(flaw));
    };
    let (chain, next) = (tail.last.chain, tail.last.stamp.next());
    refuses(Chain::start(LOG), LATER, next, Flaw::Record);
    refuses(chain, LATER, Stamp::ZERO, Flaw::Stamp);
    refuses(chain, ViewId::new(LATER.number - 1, LATER.incarnation), next, Flaw::View);
    refuses(chain, ViewId::new(LATER.number, LATER.incarnation + 1), next, Flaw::View);
    assert_eq!(image.writer.tail(), tail);
}

#[test]
fn newest_mark_names_the_stable_position() {
    let mut image = Image::new(256);
    let found =
        |image: &Image| stable(LOG, image.segments.keys().copied(), |n| Ok(image.segments[&n].clone()));
    assert_eq!(found(&image), Ok::<_, Infallible>(LogPosition::ZERO));
    image.batch(&[10, 10, 10]);
    image.batch(&[10]);
    assert_eq!(found(&image), Ok(LogPosition(3)));
    image.stable = LogPosition(2);
    // No mark stands in the segments that it fills.
    image.batch(&[900]);
    assert_eq!(found(&image), Ok(LogPosition(2)));
    let named =
        |n: u64| marks(LOG, n, &image.segments[&n], 0).map(|mark| (mark.before.position, mark.stable));
    let named: Vec<(u64, u64)> =
        image.segments.keys().flat_map(|n| named(*n)).map(|(before, stable)| (before.0, stable.0)).collect();
    assert_eq!(named, [(0, 0), (3, 3), (4, 2)]);
}

#[test]
fn damaged_segment_where_view_begins_has_no_runs() {
    let mut image = Image::new(512);
    (0..4).for_each(|_| image.batch(&[100]));
    image.view = LATER;
    (0..9).for_each(|_| image.batch(&[100]));
    let (_, read) = runs_of(&image.segments).unwrap();
    let [_, number] = read[..] else { panic!("{read:?}") };
    *image.byte(LogOffset { segment: number, byte: 400 }) ^= 1;
    assert_eq!(runs_of(&image.segments), Err(number));
}

#[test]
fn a_marks_view_decides_whether_it_is_evidence() {
    // A batch of two records, the second of which is bad; behind it stands a mark that another batch left
    // there.
    let mut image = Image::new(4096);
    image.batch(&[40]);
    let mut batch = image.clone();
    batch.view = LATER;
    batch.batch(&[40, 40]);
    let stale = |view: ViewId| {
        let mut stale = image.clone();
        stale.view = view;
        stale.batch(&[40, 40, 40]);
        stale.batch(&[]);
        let mark = stale.writer.tail().synced;
        let bytes = stale.segments[&mark.segment][mark.byte as usize..][..MARK_BYTES].to_vec();
        let mut image = batch.clone();
        image.segments.get_mut(&mark.segment).unwrap()[mark.byte as usize..][..MARK_BYTES]
            .copy_from_slice(&bytes);
        *image.byte(LogOffset { byte: batch.writer.tail().offset.byte - 5, ..mark }) ^= 1;
        image.scan()
    };
    for view in [VIEW, ViewId::new(2, 0), ViewId::new(LATER.number, 99)] {
        let (found, end) = stale(view);
        let End::Torn(tail) = end else { panic!("{view:?}: {end:?}") };
        let last = (tail.last.view, tail.last.position);
        assert_eq!((found.len(), last), (2, (LATER, LogPosition(2))), "{view:?}");
    }
    for view in [LATER, ViewId::new(LATER.number + 1, 0)] {
        assert!(matches!(stale(view).1, End::Damage { flaw: Flaw::Record, .. }), "{view:?}");
    }
}

/// Every place at which a segment's end can meet a batch's beginning.
#[test]
fn a_batch_is_guarded_by_the_mark_of_the_next_wherever_its_segment_ends() {
    for size in (0..200).step_by(8) {
        let mut image = Image::new(256);
        image.batch(&[size]);
        let guarded = image.writer.tail().offset;
        image.batch(&[40]);
        assert_eq!(image.scan(), (expected(&[size, 40]), End::Clean(image.writer.tail())));
        for at in image.offsets().filter(|&at| at < guarded) {
            *image.byte(at) ^= 4;
            let (found, end) = image.scan();
            assert!(
                found.is_empty() && matches!(end, End::Damage { .. }),
                "size {size}, flipped {at}: {end:?}"
            );
            *image.byte(at) ^= 4;
        }
    }
}

#[test]
fn a_record_above_the_maximum_is_taken_back() {
    let (mut out, mut chain) = (b"before".to_vec(), Chain::start(LOG));
    let begun = begin_record(&mut out);
    let bytes = RECORD_BYTES_MAX + 1;
    out.resize(out.len() + bytes, 0);
    let refused = finish_record(&mut out, begun, &mut chain, kind(), VIEW, Stamp(1));
    assert_eq!(refused, Err(RecordTooLong { bytes }));
    assert_eq!((out.as_slice(), chain), (&b"before"[..], Chain::start(LOG)));
}

/// Records, marks and headers with each field at its bound, behind a log that is at its end: the reader takes
/// what the writer wrote.
#[test]
fn highest_values_of_records_are_read_back() {
    let highest = ViewId::new(ViewId::NUMBER_MAX, u32::MAX);
    let log = LogId { space: SpaceId(u64::MAX), salt: u64::MAX };
    let position = LogPosition(u64::MAX - 8);
    let stamp = Stamp(Stamp::LAST.0 - 1);
    let before =
        Last { chain: Chain::start(log), stamp, view: ViewId::new(ViewId::NUMBER_MAX - 1, 9), position };
    let (number, bytes) = (u64::MAX - 8, 1 << 10);
    let header = SegmentHeader { log, number, before, bytes, first_record: SEGMENT_HEADER_BYTES as u32 };
    assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
    let begin = LogOffset { segment: number, byte: SEGMENT_HEADER_BYTES as u32 };
    let tail = Tail { offset: begin, last: before, synced: begin };
    let mut writer = Writer::new(log, tail, bytes, bytes);
    let (mut records, mut chain) = (Vec::new(), before.chain);
    // Each reaches into another segment.
    let payload = vec![u8::MAX; 1_500];
    let kind = Kind::new(u8::MAX - 1).unwrap();
    for _ in 0..2 {
        encode_record(&mut records, &mut chain, kind, highest, Stamp::LAST, &payload).unwrap();
    }
    let mut segments = BTreeMap::from([(number, vec![0; bytes as usize])]);
    segments.get_mut(&number).unwrap()[..SEGMENT_HEADER_BYTES].copy_from_slice(&header.encode());
    let mut place = |writer: &mut Writer, records: &[u8]| {
        let put = |at: LogOffset, piece: &[u8]| {
            let segment = segments.entry(at.segment).or_insert_with(|| vec![0; bytes as usize]);
            segment[at.byte as usize..][..piece.len()].copy_from_slice(piece);
        };
        writer.place(records, Some(STABLE_ALONE), put).unwrap();
    };
    place(&mut writer, &records);
    // A mark alone, whose position is the last record's.
    place(&mut writer, &[]);
    let (found, end) = scan_of(log.space, &segments);
    assert_eq!(found.len(), 2);
    for (i, entry) in found.iter().enumerate() {
        let at = LogPosition(position.0 + 1 + i as u64);
        assert_eq!((entry.kind, entry.view, entry.stamp, entry.position), (kind, highest, Stamp::LAST, at));
        assert_eq!(entry.payload, payload);
    }
    assert_eq!(end, End::Clean(writer.tail()));
}

proptest! {
    #[test]
    fn what_was_written_is_read_back(
        segment_bytes in (32_u32..128).prop_map(|n| n * 8),
        batches in prop::collection::vec(prop::collection::vec(0_usize..900, 0..5), 0..12),
        synced in any::<u16>(),
    ) {
        let mut image = Image::new(segment_bytes);
        batches.iter().enumerate().for_each(|(i, batch)| image.append(batch, synced >> i & 1 == 1));
        let (found, end) = image.scan();
        prop_assert_eq!(found, expected(&batches.concat()));
        prop_assert_eq!(end, End::Clean(image.writer.tail()));
    }

    /// The kernel may have written any of the last batch's sectors when the power went, and not the others.
    #[test]
    fn any_set_of_sectors_of_an_unsynced_batch_keeps_what_was_synced(
        segment_bytes in (32_u32..128).prop_map(|n| n * 8),
        batches in prop::collection::vec(prop::collection::vec(0_usize..400, 1..4), 0..5),
        last in prop::collection::vec(0_usize..700, 1..5),
        lost in prop::collection::vec(any::<bool>(), 256),
    ) {
        let mut image = Image::new(segment_bytes);
        batches.iter().for_each(|batch| image.batch(batch));
        let before = image.clone();
        let (first, rest) = last.split_at(last.len() / 2);
        image.append(first, true);
        image.append(rest, false);
        let after = image.clone();
        image.lose(&before.segments, &lost);
        let (found, end) = image.scan();
        let all = expected(&[batches.concat(), last].concat());
        prop_assert!(found.len() >= batches.concat().len());
        prop_assert_eq!(&found[..], &all[..found.len()]);
        prop_assert!(!matches!(end, End::Damage { .. }), "{:?}", end);
        prop_assert!(after.segments == image.segments || found.len() < all.len());
    }

    #[test]
    fn views_are_known_though_few_segments_are_read(
        segment_bytes in (32_u32..128).prop_map(|n| n * 8),
        batches in batches(),
        first in any::<prop::sample::Index>(),
    ) {
        let (mut image, records) = in_views(segment_bytes, &batches);
        let first = 1 + first.index(image.segments.len()) as u64;
        image.segments.retain(|number, _| *number >= first);
        let headers: Vec<_> = image.segments.values().map(|b| SegmentHeader::decode(b).unwrap()).collect();
        let mut expected = Runs::new();
        for Entry { view, position, .. } in records {
            if position > headers[0].before.position {
                add_run(&mut expected, EntryId { view, position });
            }
        }
        let (runs, read) = runs_of(&image.segments).unwrap();
        prop_assert_eq!(runs, expected);
        let changes = headers.windows(2).filter(|pair| pair[0].before.view != pair[1].before.view);
        prop_assert_eq!(read, changes.map(|pair| pair[0].number).collect::<Vec<u64>>());
    }

    #[test]
    fn log_read_by_pieces_has_the_same_records(
        segment_bytes in (32_u32..128).prop_map(|n| n * 8),
        batches in prop::collection::vec(prop::collection::vec(0_usize..900, 0..5), 0..12),
        synced in any::<u16>(),
    ) {
        let mut image = Image::new(segment_bytes);
        batches.iter().enumerate().for_each(|(i, batch)| image.append(batch, synced >> i & 1 == 1));
        prop_assert_eq!(scan_by_pieces(&image.segments), expected(&batches.concat()));
    }

    #[test]
    fn a_log_cut_anywhere_is_as_if_what_was_cut_had_never_been_written(
        segment_bytes in (32_u32..128).prop_map(|n| n * 8),
        batches in batches(),
        at in any::<prop::sample::Index>(),
    ) {
        let (mut image, records) = in_views(segment_bytes, &batches);
        let kept = at.index(records.len() + 1);
        let whole = image.clone();
        image.cut_above(LogPosition(kept as u64));
        let (found, end) = image.scan();
        prop_assert_eq!(&found[..], &records[..kept]);
        let (Tail { offset, last, .. }, End::Clean(tail)) = (image.writer.tail(), end) else { panic!("{end:?}") };
        prop_assert_eq!((tail.offset, tail.last), (offset, last));

        let mut left = kept;
        let mut shorter = batches;
        for (_, sizes) in &mut shorter {
            sizes.truncate(left);
            left -= sizes.len();
        }
        // Of a batch of which nothing is left, neither the mark was written.
        while shorter.last().is_some_and(|(_, sizes)| sizes.is_empty()) {
            shorter.pop();
        }
        let (mut never, _) = in_views(segment_bytes, &shorter);
        for number in whole.segments.keys() {
            never.segments.entry(*number).or_insert_with(|| vec![0; segment_bytes as usize]);
        }
        prop_assert!(image.segments == never.segments);
    }

    #[test]
    fn a_crash_during_a_cut_leaves_the_prefix_and_perhaps_some_of_the_rest(
        segment_bytes in (32_u32..128).prop_map(|n| n * 8),
        batches in batches(),
        at in any::<prop::sample::Index>(),
        step in any::<prop::sample::Index>(),
        lost in prop::collection::vec(any::<bool>(), 1..64),
        next in prop::collection::vec(0_usize..400, 1..4),
    ) {
        let (mut image, records) = in_views(segment_bytes, &batches);
        let kept = at.index(records.len() + 1);
        let position = LogPosition(kept as u64);
        let mut cut = image.clone();
        let states = cut.cut_above(position);
        if let Some(steps) = states.len().checked_sub(2) {
            let step = step.index(steps + 1);
            image.segments.clone_from(&states[step + 1]);
            image.lose(&states[step], &lost);
        }
        let (found, end) = image.scan();
        prop_assert!(!matches!(end, End::Damage { .. }), "{:?}", end);
        prop_assert!(found.len() >= kept);
        prop_assert_eq!(&found[..], &records[..found.len()]);

        // The next opening clears what is torn, and the cut is repeated.
        image.repair();
        image.cut_above(position);
        prop_assert!(image.segments == cut.segments);

        // A later view goes on there, and its first write is torn.
        image.view = ViewId::new(99, 7);
        let before = image.segments.clone();
        image.batch(&next);
        let all = image.scan().0;
        prop_assert_eq!(all.len(), kept + next.len());
        image.lose(&before, &lost);
        let (found, end) = image.scan();
        prop_assert!(!matches!(end, End::Damage { .. }), "{:?}", end);
        prop_assert!(found.len() >= kept);
        prop_assert_eq!(&found[..], &all[..found.len()]);
    }

    /// A lying disk brings back the bytes that [`erase`] erased; a record of a later view stands before them.
    #[test]
    fn old_bytes_behind_a_later_view_are_neither_records_nor_evidence(
        segment_bytes in (32_u32..128).prop_map(|n| n * 8),
        batches in batches(),
        at in any::<prop::sample::Index>(),
        next in prop::collection::vec(0_usize..400, 1..4),
        lost in prop::collection::vec(any::<bool>(), 1..64),
    ) {
        let (mut image, records) = in_views(segment_bytes, &batches);
        let kept = at.index(records.len() + 1);
        let old = image.segments.clone();
        image.cut_above(LogPosition(kept as u64));
        image.view = ViewId::new(99, 7);
        // The first record is durable, the others are torn.
        image.batch(&next[..1]);
        let tail = image.writer.tail().offset;
        let durable = image.segments.clone();
        image.append(&next[1..], false);
        let all = image.scan().0;
        image.lose(&durable, &lost);
        for (number, bytes) in image.segments.range_mut(tail.segment..) {
            let begin = if *number == tail.segment { tail.byte as usize } else { 0 };
            let Some(old) = old.get(number) else { continue };
            for (new, old) in bytes[begin..].iter_mut().zip(&old[begin..]).filter(|(new, _)| **new == 0) {
                *new = *old;
            }
        }
        let (found, end) = image.scan();
        // Old bytes may read like a record that goes on in a segment that is not there, and that is refused.
        prop_assert!(!matches!(end, End::Damage { flaw, .. } if flaw != Flaw::Ends), "{:?}", end);
        prop_assert!(found.len() > kept);
        prop_assert_eq!(&found[..], &all[..found.len()]);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        segments in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 0..4),
        with_header in any::<bool>(),
    ) {
        let mut segments: BTreeMap<u64, Vec<u8>> = (1..).zip(segments).collect();
        if let (true, Some(first)) = (with_header, segments.get_mut(&1)) {
            first.splice(..first.len().min(HEADER), SegmentHeader::first(LOG, Stamp::ZERO, 512).encode());
        }
        scan(&segments);
    }

    #[test]
    fn mutated_segments_never_panic_and_yield_only_what_was_written(
        changes in prop::collection::vec((0_usize..3000, any::<u8>()), 1..6),
        length in 0_usize..300,
        shortened in 1_u64..8,
    ) {
        let (mut image, records, _) = three_batches();
        let offsets: Vec<LogOffset> = image.offsets().collect();
        for (at, byte) in changes {
            *image.byte(offsets[at % offsets.len()]) = byte;
        }
        if let Some(bytes) = image.segments.get_mut(&shortened) {
            bytes.truncate(length);
        }
        let (found, _) = image.scan();
        prop_assert_eq!(&found[..], &records[..found.len()]);
    }
}
