//! Laying records out over segments: which bytes belong where.

use super::*;

/// Places encoded records at the tail of a log, with the marks and segment headers that belong between them.
///
/// It writes nothing itself: it names an offset and bytes, and the owner of the files writes them there.
#[derive(Debug, Clone)]
pub struct Writer {
    log: LogId,
    tail: Tail,
    /// Bytes of the tail's segment.
    tail_segment_bytes: u32,
    /// Bytes of the segments to come.
    segment_bytes: u32,
}

impl Writer {
    /// Goes on at `tail`, in a segment of `tail_segment_bytes`; further segments have `segment_bytes`.
    ///
    /// # Panics
    ///
    /// If `segment_bytes` is not a multiple of 8 between [`SEGMENT_BYTES_MIN`] and [`SEGMENT_BYTES_MAX`].
    pub fn new(log: LogId, tail: Tail, tail_segment_bytes: u32, segment_bytes: u32) -> Writer {
        assert!((SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes));
        assert!(segment_bytes.is_multiple_of(ALIGN as u32));
        Writer { log, tail, tail_segment_bytes, segment_bytes }
    }

    /// Which log it is.
    pub fn log(&self) -> LogId {
        self.log
    }

    /// Where the next record belongs, and what it is chained to.
    pub fn tail(&self) -> Tail {
        self.tail
    }

    /// Bytes of records that the tail's segment and `segments` further ones surely hold.
    pub fn room_bytes(&self, segments: u64) -> u64 {
        let here = self.tail_segment_bytes - self.tail.offset.byte;
        let body = self.segment_bytes as u64 - SEGMENT_HEADER_BYTES as u64;
        // A mark, and the bytes that are passed over because they are too few for one.
        (here as u64 + segments * body).saturating_sub(2 * MARK_BYTES as u64)
    }

    /// Places `records`, which [`encode_record`](super::encode_record) encoded on the tail's chain, and
    /// moves the tail past them. With `mark`, everything placed before has been synced, and everything up to
    /// that position is stable. A mark is then placed first, in the next segment if this one has no room for
    /// it. Its stable position is at most that of the record before it, so [`STABLE_ALONE`] stands for that
    /// record.
    ///
    /// Nothing is placed if the records do not fit the chain: they could never be read back.
    pub fn place(
        &mut self,
        records: &[u8],
        mark: Option<LogPosition>,
        mut each: impl FnMut(LogOffset, &[u8]),
    ) -> Result<(), Flaw> {
        let rolled = self.rolled(if mark.is_some() { MARK_BYTES } else { 1 });
        let offset = rolled.map_or(self.tail.offset, |header| LogOffset {
            segment: header.number,
            byte: SEGMENT_HEADER_BYTES as u32,
        });
        let end = rolled.map_or(self.tail_segment_bytes, |header| header.bytes);
        let first = offset.byte as usize + if mark.is_some() { MARK_BYTES } else { 0 };
        let (headers, last) = self.headers(records, offset.segment, end as usize - first)?;

        if let Some(header) = rolled {
            each(LogOffset { segment: header.number, byte: 0 }, &header.encode());
        }
        if let Some(stable) = mark {
            let mut bytes = Vec::with_capacity(MARK_BYTES);
            encode_mark(&mut bytes, self.log, offset, &self.tail.last, stable);
            each(offset, &bytes);
            self.tail.synced = offset;
        }
        let mut at = LogOffset { segment: offset.segment, byte: first as u32 };
        let (mut rest, mut segment_end) = (records, end);
        for header in headers {
            let (piece, later) = rest.split_at((segment_end - at.byte) as usize);
            if !piece.is_empty() {
                each(at, piece);
            }
            each(LogOffset { segment: header.number, byte: 0 }, &header.encode());
            at = LogOffset { segment: header.number, byte: SEGMENT_HEADER_BYTES as u32 };
            (rest, segment_end) = (later, header.bytes);
        }
        if !rest.is_empty() {
            each(at, rest);
        }
        at.byte += rest.len() as u32;
        self.tail = Tail { offset: at, last, synced: self.tail.synced };
        self.tail_segment_bytes = segment_end;
        Ok(())
    }

    /// The header of the next segment, if the tail's has less than `bytes` left.
    fn rolled(&self, bytes: usize) -> Option<SegmentHeader> {
        let Tail { offset, last, .. } = self.tail;
        let left = (self.tail_segment_bytes - offset.byte) as usize;
        (left < bytes).then(|| self.header(offset.segment + 1, last, 0))
    }

    /// The header of a segment whose body begins with `spanned` bytes of an earlier record, which is
    /// `before`.
    fn header(&self, number: u64, before: Last, spanned: usize) -> SegmentHeader {
        let first_record = (SEGMENT_HEADER_BYTES + spanned) as u32;
        SegmentHeader { log: self.log, number, before, bytes: self.segment_bytes, first_record }
    }

    /// Checks the records and gives the headers of all segments after `segment` that they reach into, with
    /// the last record. In `segment` itself they get `room` bytes.
    fn headers(&self, records: &[u8], segment: u64, room: usize) -> Result<(Vec<SegmentHeader>, Last), Flaw> {
        let body = self.segment_bytes as usize - SEGMENT_HEADER_BYTES;
        let mut last = self.tail.last;
        let mut headers: Vec<SegmentHeader> = Vec::new();
        let mut cut = room;
        if room == 0 && !records.is_empty() {
            // A mark took the last bytes: the first record begins in the next segment.
            headers.push(self.header(segment + 1, last, 0));
            cut = body;
        }
        for record in EncodedRecords::new(records, last) {
            let record = record?;
            last = record.last;
            while record.end >= cut && cut < records.len() {
                let number = segment + 1 + headers.len() as u64;
                headers.push(self.header(number, last, (record.end - cut).min(body)));
                cut += body;
            }
        }
        Ok((headers, last))
    }
}
