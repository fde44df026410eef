//! Reading records of a log by position while the log's thread goes on appending, for members that lag and
//! for recovery within a process.
//!
//! A [`LogReader`] shares nothing with the [`Log`](super::Log) but the files. It reads what its caller knows
//! to be written, in pieces, and keeps its place between calls. The invariant: a record is given only if it
//! is chained to the one before it. So whatever happens to the files meanwhile, a reader gives no wrong
//! bytes: it says that the log begins later, or fails.

use super::file::{segment_name, segment_path};
use super::open::numbers;
use crate::disk::DiskError;
use crate::disk::held::HeldDir;
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use tercel_wire::id::{LogPosition, SpaceId};
use tercel_wire::log::{Flaw, Record, SEGMENT_HEADER_BYTES, Scanner, SegmentHeader};

/// Reads a log from a position on.
#[derive(Debug)]
pub struct LogReader {
    dir: HeldDir,
    space: SpaceId,
    place: Option<Place>,
    /// Bytes of a segment, at their own offsets; those before the place are of no use.
    bytes: Vec<u8>,
}

/// Where a reader goes on: behind the last record that it gave.
#[derive(Debug)]
struct Place {
    scanner: Scanner,
    header: SegmentHeader,
}

/// The result of a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadUpto {
    /// The records up to this one were given.
    Position(LogPosition),
    /// None was given: the log begins with a later record.
    BeginsLater,
}

/// Why a reading went no further.
enum Broken {
    Disk(DiskError),
    /// The bytes of this segment do not continue what was read, or it is gone.
    Changed(u64, Flaw),
}

impl LogReader {
    /// Reads the log of `space` whose segments are in `dir`.
    pub fn new(dir: HeldDir, space: SpaceId) -> LogReader {
        LogReader { dir, space, place: None, bytes: Vec::new() }
    }

    /// Gives the records from `from` on to `each`, in order, none after `upto`: the first, and more while all
    /// payloads have at most `bytes_max` bytes together. The caller knows that the record at `upto` has been
    /// written, and lets nothing up to there be cut meanwhile.
    ///
    /// A reading that begins where the last one ended goes on there.
    ///
    /// # Errors
    /// [`DiskError::Damaged`] if the record at `from` cannot be read, also because it was cut.
    pub fn read(
        &mut self,
        from: LogPosition,
        upto: LogPosition,
        bytes_max: usize,
        mut each: impl FnMut(Record<'_>),
    ) -> Result<ReadUpto, DiskError> {
        let mut given = None;
        loop {
            self.place.take_if(|place| place.scanner.tail().last.position.next() != from);
            let was_kept = self.place.is_some();
            let read = self.try_read((from, upto), bytes_max, &mut |record| {
                given = Some(record.position);
                each(record);
            });
            let (number, flaw) = match (read, given) {
                (Ok(read), _) => return Ok(read),
                (Err(Broken::Disk(error)), _) => return Err(error),
                // The next reading says why it cannot go on.
                (Err(Broken::Changed(..)), Some(last)) => return Ok(ReadUpto::Position(last)),
                (Err(Broken::Changed(number, flaw)), None) => (number, flaw),
            };
            if self.begins()?.is_none_or(|begins| from <= begins) {
                return Ok(ReadUpto::BeginsLater);
            }
            // A cut since the last reading may have left the place in another history.
            if !was_kept {
                let file = segment_path(self.dir.path(), number);
                let what = format!("the record at position {from} cannot be read: {flaw}");
                return Err(DiskError::Damaged { file, position: None, what });
            }
        }
    }

    fn try_read(
        &mut self,
        (from, upto): (LogPosition, LogPosition),
        bytes_max: usize,
        each: &mut dyn FnMut(Record<'_>),
    ) -> Result<ReadUpto, Broken> {
        let (Place { mut scanner, mut header }, mut file) = match self.place.take() {
            Some(place) => {
                let file = self.open(place.header.number)?;
                (place, file)
            }
            None => {
                let Some(number) = self.find(from)? else { return Ok(ReadUpto::BeginsLater) };
                let mut scanner = Scanner::new(self.space);
                let (file, header) = self.enter(&mut scanner, number)?;
                (Place { scanner, header }, file)
            }
        };
        // Bytes of the segment that are in hand, from the place on.
        let mut known = 0;
        let mut given = None;
        while scanner.tail().last.position < upto {
            let at = scanner.tail().offset;
            let mut reader = scanner.resume(&self.bytes[..known], header.bytes);
            let ahead = reader.ahead();
            if let (Some(given), Some(next)) = (given, ahead.payload_bytes)
                && given + next > bytes_max
            {
                break;
            }
            if ahead.needs > known {
                drop(reader);
                let place = if at.segment == header.number { at.byte as usize } else { SEGMENT_HEADER_BYTES };
                let begin = known.max(place);
                let end = ahead.needs.max(begin + bytes_max.clamp(READ_BYTES_MIN, READ_BYTES_MAX));
                known = end.min(header.bytes as usize);
                self.fill(&file, header.number, begin, known)?;
                continue;
            }
            if let Some(record) = reader.next() {
                if record.position >= from {
                    given = Some(given.unwrap_or(0) + record.payload.len());
                    each(record);
                }
                continue;
            }
            drop(reader);
            match scanner.stopped() {
                Some(stop) => return Err(Broken::Changed(header.number, stop.flaw)),
                None => (file, header) = self.enter(&mut scanner, header.number + 1)?,
            }
            known = 0;
        }
        let position = scanner.tail().last.position;
        self.place = Some(Place { scanner, header });
        Ok(ReadUpto::Position(position))
    }

    /// Opens segment `number`, and has the scanner go on to it.
    fn enter(&mut self, scanner: &mut Scanner, number: u64) -> Result<(File, SegmentHeader), Broken> {
        let file = self.open(number)?;
        self.fill(&file, number, 0, SEGMENT_HEADER_BYTES)?;
        let head = &self.bytes[..SEGMENT_HEADER_BYTES];
        drop(scanner.segment(number, head));
        match (scanner.stopped(), SegmentHeader::decode(head)) {
            (None, Ok(header)) => Ok((file, header)),
            (Some(stop), _) => Err(Broken::Changed(number, stop.flaw)),
            (None, Err(flaw)) => Err(Broken::Changed(number, flaw)),
        }
    }

    fn open(&self, number: u64) -> Result<File, Broken> {
        self.dir.open_file(segment_name(number), OFlags::RDONLY).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Broken::Changed(number, Flaw::Ends),
            _ => Broken::Disk(DiskError::io("open", &segment_path(self.dir.path(), number))(error)),
        })
    }

    /// Reads the bytes of a segment from `begin` up to `end`.
    fn fill(&mut self, file: &File, number: u64, begin: usize, end: usize) -> Result<(), Broken> {
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        file.read_exact_at(&mut self.bytes[begin..end], begin as u64).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Broken::Changed(number, Flaw::Record),
            _ => Broken::Disk(DiskError::io("read", &segment_path(self.dir.path(), number))(error)),
        })
    }

    /// The number of the segment in which the record at `from` begins; none if the log begins later.
    fn find(&self, from: LogPosition) -> Result<Option<u64>, Broken> {
        let numbers = numbers(&self.dir).map_err(Broken::Disk)?;
        for number in numbers.into_iter().rev() {
            if self.header(number)?.is_some_and(|header| header.before.position < from) {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// The position before the first record of the log; none if no segment has a header.
    pub(crate) fn begins(&self) -> Result<Option<LogPosition>, DiskError> {
        for number in numbers(&self.dir)? {
            match self.header(number) {
                Ok(Some(header)) => return Ok(Some(header.before.position)),
                Err(Broken::Disk(error)) => return Err(error),
                Ok(None) | Err(Broken::Changed(..)) => {}
            }
        }
        Ok(None)
    }

    /// The header of a segment; none if it has no valid one, or is gone.
    fn header(&self, number: u64) -> Result<Option<SegmentHeader>, Broken> {
        let mut head = [0; SEGMENT_HEADER_BYTES];
        let read = self.open(number).map(|file| file.read_exact_at(&mut head, 0));
        match read {
            Err(Broken::Changed(..)) => return Ok(None),
            Err(error) => return Err(error),
            // A file that is too short has no header.
            Ok(_) => {}
        }
        let header = SegmentHeader::decode(&head).ok();
        Ok(header.filter(|header| header.number == number && header.log.space == self.space))
    }
}

/// Bytes read by one system call: as many as are asked for, but no fewer than a page of the kernel, and no
/// more than are soon processed.
const READ_BYTES_MIN: usize = 4 << 10;
const READ_BYTES_MAX: usize = 1 << 20;
