//! Reading a log back: records in order, and what kind of end they come to.

use super::*;

/// Walks the segments of a log, the oldest first, and finds its end.
///
/// It may begin at any segment, provided that the records before are known to be durable: the record that
/// spans into the first segment is passed over unread. Hand every segment to [`Scanner::segment`], take the
/// records out of the reader that it returns until there are none, and when there is no further segment ask
/// [`Scanner::finish`]. Segments behind the end are handed in like the others: what is in them decides
/// between a torn tail and damage.
#[derive(Debug)]
pub struct Scanner {
    space: SpaceId,
    /// The log, and the number of the next segment; `None` before the first.
    under_way: Option<(LogId, u64)>,
    /// The end so far. While `spanning` holds the start of a record, that record begins here.
    tail: Tail,
    /// The record that began in an earlier segment, as far as it was read; or the zeros at a segment's end
    /// that were too few for a mark.
    spanning: Vec<u8>,
    /// The first mark in the bytes of `spanning`: evidence in case it is no record after all.
    mark_spanned: Option<LogOffset>,
    /// A record was found to begin somewhere. Until then the scan is inside one whose beginning it was not
    /// given.
    anchored: bool,
    stopped: Option<Stopped>,
}

/// Where a scan that found something bad stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// The defect.
    pub flaw: Flaw,
    /// Up to where everything was good.
    pub tail: Tail,
    /// The place that was examined: a record's segment and offset, or offset 0 for a segment's header.
    pub at: LogOffset,
}

/// Why and with what evidence a scan went no further.
#[derive(Debug)]
struct Stopped {
    flaw: Flaw,
    at: LogOffset,
    /// Something other than zeros was found from the tail on.
    dirty: bool,
    /// A valid mark after the tail.
    mark: Option<LogOffset>,
}

impl Scanner {
    /// For the log of `space`.
    pub fn new(space: SpaceId) -> Scanner {
        Scanner {
            space,
            under_way: None,
            tail: Tail {
                offset: LogOffset { segment: 0, byte: 0 },
                last: Last {
                    chain: Chain(0),
                    stamp: Stamp::ZERO,
                    view: ViewId::NONE,
                    position: LogPosition::ZERO,
                },
                synced: LogOffset { segment: 0, byte: 0 },
            },
            spanning: Vec::new(),
            mark_spanned: None,
            anchored: false,
            stopped: None,
        }
    }

    /// Goes on with the segment `number`, whose file holds `bytes`. A file that is too short counts as if
    /// zeros followed.
    ///
    /// # Panics
    ///
    /// If segments do not come in the order of their numbers, without a gap.
    pub fn segment<'a>(&'a mut self, number: u64, bytes: &'a [u8]) -> SegmentReader<'a> {
        let header = SegmentHeader::decode(bytes);
        let entered = match self.under_way {
            None => self.enter_first(number, header),
            Some((log, expected)) => {
                assert_eq!(number, expected, "segments are scanned in order");
                self.under_way = Some((log, number + 1));
                match self.stopped {
                    None => self.enter_next(log, number, header),
                    Some(_) => {
                        self.gather(number, bytes, 0, 0);
                        Ok((0, 0))
                    }
                }
            }
        };
        let (offset, end) = entered.unwrap_or_else(|flaw| {
            self.stop(flaw, number, bytes, 0);
            (0, 0)
        });
        SegmentReader { scanner: self, number, bytes, offset, end, spanned_out: false }
    }

    /// Goes on in the segment that was handed over last, from the last record taken on. `bytes` are the
    /// segment's, of which only those behind that record matter; the whole segment has `segment_bytes`.
    ///
    /// # Panics
    ///
    /// If no segment was handed over.
    pub fn resume<'a>(&'a mut self, bytes: &'a [u8], segment_bytes: u32) -> SegmentReader<'a> {
        let (_, next) = self.under_way.expect("a segment was handed over");
        let Tail { offset: LogOffset { segment, byte }, .. } = self.tail;
        let offset = if segment == next - 1 { byte as usize } else { SEGMENT_HEADER_BYTES };
        let end = if self.stopped.is_some() { 0 } else { segment_bytes as usize };
        SegmentReader { scanner: self, number: next - 1, bytes, offset, end, spanned_out: false }
    }

    /// Where and why the scan went no further, if it did.
    pub fn stopped(&self) -> Option<Stop> {
        let Stopped { flaw, at, .. } = self.stopped.as_ref()?;
        Some(Stop { flaw: *flaw, tail: self.tail, at: *at })
    }

    /// Up to where everything is good so far.
    pub fn tail(&self) -> Tail {
        self.tail
    }

    /// There is no further segment: a record that would go on in one is where the scan stops.
    pub fn close(&mut self) {
        if !self.spanning.is_empty() && self.stopped.is_none() {
            let LogOffset { segment, byte } = self.tail.offset;
            let flaw = if self.spans() { Flaw::Ends } else { Flaw::Record };
            self.stop(flaw, segment, &[], byte as usize);
        }
    }

    /// The end of the log, after the last segment.
    pub fn finish(mut self) -> End {
        if self.under_way.is_none() {
            return End::Damage { offset: self.tail.offset, flaw: Flaw::Header };
        }
        self.close();
        match self.stopped {
            None => End::Clean(self.tail),
            Some(Stopped { flaw, mark, .. }) if mark.is_some() || flaw.is_final() => {
                End::Damage { offset: self.tail.offset, flaw }
            }
            Some(Stopped { dirty: true, .. }) => End::Torn(self.tail),
            Some(Stopped { dirty: false, .. }) => End::Clean(self.tail),
        }
    }

    /// The oldest segment: its header says where and from which chain to start. It was synced when the log
    /// was created or the segment before it was removed, so nothing excuses a bad one.
    fn enter_first(
        &mut self,
        number: u64,
        header: Result<SegmentHeader, Flaw>,
    ) -> Result<(usize, usize), Flaw> {
        self.tail.offset = LogOffset { segment: number, byte: 0 };
        self.under_way = Some((LogId { space: self.space, salt: 0 }, number + 1));
        let header = header.map_err(|flaw| if flaw == Flaw::Header { Flaw::FirstHeader } else { flaw })?;
        if header.log.space != self.space {
            return Err(Flaw::OtherLog);
        }
        if header.number != number {
            return Err(Flaw::FirstHeader);
        }
        self.under_way = Some((header.log, number + 1));
        self.anchored = header.first_record < header.bytes;
        self.tail = Tail {
            offset: LogOffset { segment: number, byte: header.first_record },
            last: header.before,
            synced: LogOffset { segment: number, byte: SEGMENT_HEADER_BYTES as u32 },
        };
        Ok((header.first_record as usize, header.bytes as usize))
    }

    /// A further segment: its header must agree with where the scan stands.
    fn enter_next(
        &mut self,
        log: LogId,
        number: u64,
        header: Result<SegmentHeader, Flaw>,
    ) -> Result<(usize, usize), Flaw> {
        let header = header?;
        if header.log != log {
            return Err(Flaw::OtherLog);
        }
        let begins_here =
            header.first_record as usize == SEGMENT_HEADER_BYTES && header.before == self.tail.last;
        if begins_here && self.spanning.len() < MARK_BYTES && !self.spans() {
            self.spanning.clear();
        }
        let continues = match self.spanning.first_chunk() {
            Some(crc) => self.begins_behind_spanning(&header.before, Chain(u32::from_le_bytes(*crc))),
            None => header.before == self.tail.last,
        };
        let first_record = if self.anchored {
            (SEGMENT_HEADER_BYTES + self.spanning_missing()?).min(header.bytes as usize)
        } else {
            header.first_record as usize
        };
        let agrees = header.number == number && continues && header.first_record as usize == first_record;
        if !agrees {
            return Err(Flaw::Header);
        }
        if !self.spanning.is_empty() {
            return Ok((SEGMENT_HEADER_BYTES, header.bytes as usize));
        }
        self.anchored = header.first_record < header.bytes;
        self.tail.offset = LogOffset { segment: number, byte: header.first_record };
        Ok((header.first_record as usize, header.bytes as usize))
    }

    /// Says whether `before`, from a segment's header, can be the record that spans into that segment and has
    /// the checksum `chain`.
    fn begins_behind_spanning(&self, before: &Last, chain: Chain) -> bool {
        let last = &self.tail.last;
        before.chain == chain
            && before.position == last.position.next()
            && before.stamp >= last.stamp
            && before.view.may_follow(last.view)
    }

    /// A record, rather than zeros, is gathered.
    fn spans(&self) -> bool {
        self.spanning.iter().any(|&b| b != 0)
    }

    /// Bytes that the spanning record still needs.
    fn spanning_missing(&self) -> Result<usize, Flaw> {
        if self.spanning.is_empty() {
            return Ok(0);
        }
        // Records and segments are multiples of 8 bytes, so the length is always in the first piece.
        let payload = le32(&self.spanning, RECORD_LEN_AT) as usize;
        if payload > RECORD_BYTES_MAX {
            return Err(Flaw::Record);
        }
        Ok(record_bytes(payload).saturating_sub(self.spanning.len()))
    }

    /// Takes what stands from `offset` to `end` in segment `number` as a further part of the spanning record.
    fn span(&mut self, number: u64, bytes: &[u8], offset: usize, end: usize) {
        let have = end.min(bytes.len());
        if self.mark_spanned.is_none() {
            self.mark_spanned = self.evidence(number, &bytes[..have], offset);
        }
        let whole = self.spanning.len() + (end - offset);
        self.spanning.extend_from_slice(bytes.get(offset..have).unwrap_or_default());
        self.spanning.resize(whole, 0);
    }

    /// Ends the walk at the tail. `bytes` from `offset` on are the first evidence.
    fn stop(&mut self, flaw: Flaw, number: u64, bytes: &[u8], offset: usize) {
        // A mark that comes first in its segment was written together with the segment's header and says
        // nothing about it.
        let dirty = self.spans();
        let evidence = if offset == 0 && !dirty { SEGMENT_HEADER_BYTES + ALIGN } else { offset };
        self.spanning = Vec::new();
        let at = LogOffset { segment: number, byte: offset as u32 };
        self.stopped = Some(Stopped { flaw, at, dirty, mark: self.mark_spanned.take() });
        self.gather(number, bytes, offset, evidence);
    }

    /// Looks after the tail for anything that is not zero from `offset` on, and for a mark from `evidence`
    /// on.
    fn gather(&mut self, number: u64, bytes: &[u8], offset: usize, evidence: usize) {
        let rest = bytes.get(offset..).unwrap_or_default();
        let mark = self.evidence(number, bytes, evidence);
        if let Some(stopped) = &mut self.stopped {
            stopped.dirty |= rest.iter().any(|&b| b != 0);
            stopped.mark = stopped.mark.or(mark);
        }
    }

    /// The first mark from `offset` on that proves what the tail leads to to have been synced. One of an
    /// older view does not: it is left over from records that were cut off before the last good one was
    /// written.
    fn evidence(&self, number: u64, bytes: &[u8], offset: usize) -> Option<LogOffset> {
        let (log, _) = self.under_way?;
        let view = self.tail.last.view;
        marks(log, number, bytes, offset).find(|m| m.before.view.may_follow(view)).map(|mark| mark.offset)
    }
}

/// A mark: everything before it was synced, and the scan of a log may begin at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Where it is.
    pub offset: LogOffset,
    /// The record before it, which the next record follows.
    pub before: Last,
    /// Everything up to here is stable; at most the record before it.
    pub stable: LogPosition,
}

impl Mark {
    /// The mark that `bytes` begin with, at byte `at` of segment `number`.
    fn read(log: LogId, number: u64, at: usize, bytes: &[u8]) -> Option<Mark> {
        let mark = bytes.get(..MARK_BYTES)?;
        let is_valid = mark[RECORD_KIND_AT..RECORD_HEADER_BYTES] == MARK_TAG
            && le32(mark, RECORD_LEN_AT) == MARK_PAYLOAD_BYTES
            && le32(mark, MARK_OFFSET_AT) as usize == at
            && le32(mark, RECORD_CRC_AT) == crc_from(log.seed(number), &mark[RECORD_LEN_AT..]);
        let before = Last {
            chain: Chain(le32(mark, MARK_CHAIN_AT)),
            stamp: Stamp(le64(mark, RECORD_STAMP_AT)),
            view: view_at(mark, RECORD_VIEW_AT),
            position: LogPosition(le64(mark, MARK_POSITION_AT)),
        };
        let stable = LogPosition(le64(mark, MARK_STABLE_AT));
        let offset = LogOffset { segment: number, byte: at as u32 };
        (is_valid && stable <= before.position).then_some(Mark { offset, before, stable })
    }
}

/// The valid marks from byte `from` on in segment `number`, whose file holds `bytes`.
pub fn marks(
    log: LogId,
    number: u64,
    bytes: &[u8],
    from: usize,
) -> impl DoubleEndedIterator<Item = Mark> + use<'_> {
    let places = (from.next_multiple_of(ALIGN)..bytes.len()).step_by(ALIGN);
    places.filter_map(move |at| Mark::read(log, number, at, &bytes[at..]))
}

/// The records of one segment, and of one that ends in it.
#[derive(Debug)]
pub struct SegmentReader<'a> {
    scanner: &'a mut Scanner,
    number: u64,
    bytes: &'a [u8],
    /// Where the next record begins or the spanning one goes on.
    offset: usize,
    /// Where the segment ends.
    end: usize,
    /// The spanning record was handed out and can go.
    spanned_out: bool,
}

/// The next record of a segment that is read piece by piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ahead {
    /// Bytes from the segment's beginning that [`SegmentReader::next`] takes for granted.
    pub needs: usize,
    /// Bytes of its payload. `None` if its header is not among the bytes given, or the record began in an
    /// earlier segment.
    pub payload_bytes: Option<usize>,
}

/// A record that was found: its payload is in the segment from an offset on, or in what the scanner gathered.
struct LocatedRecord {
    head: Head,
    offset: LogOffset,
    spanning: bool,
}

impl SegmentReader<'_> {
    /// The next record; `None` when the segment, or the log, has no more. (No iterator: a record borrows the
    /// reader.)
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Record<'_>> {
        let LocatedRecord { head, offset, spanning } = self.advance()?;
        let record = if spanning { &self.scanner.spanning } else { &self.bytes[offset.byte as usize..] };
        let payload = &record[RECORD_HEADER_BYTES..][..head.payload_bytes];
        let position = self.scanner.tail.last.position;
        Some(Record { kind: Kind(head.kind), view: head.view, stamp: head.stamp, position, payload, offset })
    }

    /// Looks at the next record, as far as this segment has it.
    pub fn ahead(&self) -> Ahead {
        if let Ok(missing @ 1..) = self.scanner.spanning_missing() {
            return Ahead { needs: self.end.min(self.offset + missing), payload_bytes: None };
        }
        let mut at = self.offset;
        // Marks stand before records. A segment's last bytes may be zeros, too few for a mark.
        while at + MARK_BYTES <= self.end {
            let Some(head) = self.bytes.get(at..at + RECORD_HEADER_BYTES).map(Head::read) else {
                return Ahead { needs: at + RECORD_HEADER_BYTES, payload_bytes: None };
            };
            let next = at + head.record_bytes();
            if head.kind != KIND_MARK {
                return Ahead { needs: next.min(self.end), payload_bytes: Some(head.payload_bytes) };
            }
            at = next;
        }
        let begin = self.bytes.get(at..at + ALIGN).filter(|_| at < self.end);
        let payload_bytes = begin.map(|begin| le32(begin, RECORD_LEN_AT) as usize);
        Ahead { needs: self.end, payload_bytes }
    }

    /// Says whether `position` is that of the last record read, or of the record before the first one that
    /// begins here.
    pub(super) fn is_behind(&self, position: LogPosition) -> bool {
        let Scanner { anchored, stopped, tail, .. } = &*self.scanner;
        *anchored && stopped.is_none() && tail.last.position == position
    }

    fn advance(&mut self) -> Option<LocatedRecord> {
        self.drop_spanned();
        while self.offset < self.end {
            let step = if self.scanner.spanning.is_empty() { self.in_place() } else { self.continued() };
            match step {
                Ok(None) => {}
                Ok(found) => return found,
                Err(flaw) => {
                    self.end = 0;
                    self.scanner.stop(flaw, self.number, self.bytes, self.offset);
                }
            }
        }
        None
    }

    /// Reads the record at the offset; `None` for a mark, or for a record that continues in the next segment.
    fn in_place(&mut self) -> Result<Option<LocatedRecord>, Flaw> {
        let (start, room) = (self.offset, self.end - self.offset);
        let rest = self.bytes.get(start..).unwrap_or_default();
        let zeros = room < MARK_BYTES && rest.iter().take(room).all(|&b| b == 0);
        if zeros || room < RECORD_HEADER_BYTES {
            return self.leave_open();
        }
        let head = Head::parse(rest).ok_or(Flaw::Record)?;
        if head.kind == KIND_MARK {
            return self.pass_mark(rest);
        }
        if head.record_bytes() > room {
            return self.leave_open();
        }
        let record = rest.get(..head.record_bytes()).ok_or(Flaw::Record)?;
        head.check(record, &self.scanner.tail.last)?;
        self.moved(start + record.len(), Some(head));
        let offset = LogOffset { segment: self.number, byte: start as u32 };
        Ok(Some(LocatedRecord { head, offset, spanning: false }))
    }

    fn pass_mark(&mut self, bytes: &[u8]) -> Result<Option<LocatedRecord>, Flaw> {
        let (log, _) = self.scanner.under_way.ok_or(Flaw::Record)?;
        let mark = Mark::read(log, self.number, self.offset, bytes).ok_or(Flaw::Record)?;
        if mark.before != self.scanner.tail.last || self.offset + MARK_BYTES > self.end {
            return Err(Flaw::Record);
        }
        self.scanner.tail.synced = mark.offset;
        self.moved(self.offset + MARK_BYTES, None);
        Ok(None)
    }

    /// Keeps the rest of the segment as the beginning of a record.
    fn leave_open(&mut self) -> Result<Option<LocatedRecord>, Flaw> {
        self.scanner.span(self.number, self.bytes, self.offset, self.end);
        self.offset = self.end;
        Ok(None)
    }

    /// Goes on with the record that began in an earlier segment.
    fn continued(&mut self) -> Result<Option<LocatedRecord>, Flaw> {
        let missing = self.scanner.spanning_missing()?;
        let piece_end = self.offset + missing.min(self.end - self.offset);
        if self.bytes.len() < piece_end {
            return Err(Flaw::Record);
        }
        self.scanner.span(self.number, self.bytes, self.offset, piece_end);
        if piece_end - self.offset < missing {
            self.offset = piece_end;
            return Ok(None);
        }
        let head = Head::parse(&self.scanner.spanning).ok_or(Flaw::Record)?;
        head.check(&self.scanner.spanning, &self.scanner.tail.last)?;
        let offset = self.scanner.tail.offset;
        self.moved(piece_end, Some(head));
        self.spanned_out = true;
        Ok(Some(LocatedRecord { head, offset, spanning: true }))
    }

    /// Moves the tail past a record or a mark.
    fn moved(&mut self, offset: usize, head: Option<Head>) {
        self.offset = offset;
        let tail = &mut self.scanner.tail;
        tail.offset = LogOffset { segment: self.number, byte: offset as u32 };
        if let Some(head) = head {
            tail.last = tail.last.then(&head);
        }
    }

    fn drop_spanned(&mut self) {
        if std::mem::take(&mut self.spanned_out) {
            self.scanner.spanning = Vec::new();
            self.scanner.mark_spanned = None;
        }
    }
}

impl Drop for SegmentReader<'_> {
    /// A spanning record may be the last that is taken out of its segment.
    fn drop(&mut self) {
        self.drop_spanned();
    }
}

/// A record as a scan finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The kind of entry that the payload holds.
    pub kind: Kind,
    /// The view in which it was ordered; the view of the record before, or one with a higher number.
    pub view: ViewId,
    /// The record's place in the commit order; never below that of the record before.
    pub stamp: Stamp,
    /// The record's number in the log; one more than that of the record before.
    pub position: LogPosition,
    /// The payload that [`encode_record`] received.
    pub payload: &'a [u8],
    /// Where it begins.
    pub offset: LogOffset,
}

impl Record<'_> {
    /// The view and the position of the record.
    pub fn id(&self) -> EntryId {
        EntryId { view: self.view, position: self.position }
    }
}

/// Where records go on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// Where the next record belongs. At the end of its segment, the next segment's body.
    pub offset: LogOffset,
    /// The last record.
    pub last: Last,
    /// The place of the last mark: everything before the mark was synced, except the header of its segment if
    /// the mark directly follows that header.
    pub synced: LogOffset,
}

/// The end of a log, as a scan finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Zeros follow the last record.
    Clean(Tail),
    /// The bytes after the last record were written and never confirmed. They must be cut: replaced by zeros.
    Torn(Tail),
    /// A confirmed record cannot be read. The operator must restore the file or decide what to give up.
    Damage {
        /// Where the bad record begins.
        offset: LogOffset,
        /// The defect at that place.
        flaw: Flaw,
    },
}
