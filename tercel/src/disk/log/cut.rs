//! Cutting the end off an open log. The order in which it is erased, and why, is [`tercel_wire::log::cut`]'s
//! business.
//!
//! The segments after the cut are then full of zeros, as prepared ones are, and used as such. Segments beyond
//! the next ones are let go, the last segment first, so that a crash leaves no gap.

use super::file::{Segment, Wrap, ZEROS_BYTES, segment_name};
use super::{Files, Log, PREPARED_AHEAD, Used};
use crate::disk::DiskError;
use crate::disk::held::HeldDir;
use std::io::Read;
use tercel_wire::id::LogPosition;
use tercel_wire::log::cut::{Segments, erase, tail_above};
use tercel_wire::log::{LogOffset, Writer};

impl Log {
    /// Erases every record above `position`, durably. Afterwards the log ends with the record at `position`,
    /// as if no later record had been written and the log had been closed; records of a later view may
    /// follow. Does nothing if the log ends at or before `position`.
    ///
    /// After a crash in the middle, the log opens with the records up to `position` and perhaps the first of
    /// the later records: cut it again. To cut a log before it is replayed, open it with
    /// [`Stamp`](tercel_wire::id::Stamp) `u64::MAX`, which replays nothing, cut it, close it, and open it
    /// again.
    ///
    /// # Errors
    /// [`DiskError::CutTooLow`] if records above `position` were truncated already, and
    /// [`DiskError::Damaged`] if the record at `position` cannot be read: the log is as it was. A failed
    /// write or sync poisons the log.
    pub fn cut_above(&mut self, position: LogPosition) -> Result<(), DiskError> {
        self.sync()?;
        if position >= self.tail().last.position {
            return Ok(());
        }
        let used = &self.files.used;
        let first = used.iter().rfind(|segment| segment.before < position).or(used.front());
        let first = first.filter(|segment| segment.before <= position);
        let first = first.ok_or_else(|| {
            let begins = used.front().map_or(position, |oldest| oldest.before);
            DiskError::CutTooLow { dir: self.dir.path().into(), position, begins }
        })?;
        let (log, last) = (self.writer.log(), self.files.current.number);
        let mut disk = Disk { dir: self.dir.clone(), wrap: self.files.wrap, open: None };
        let tail = tail_above(log.space, position, (first.number, last), &mut disk)?.ok_or_else(|| {
            let what = format!("the record at position {position}, behind which to cut, cannot be read");
            DiskError::Damaged { file: self.dir.file(segment_name(first.number)), position: None, what }
        })?;
        let cut = erase(log, tail.offset, last, &mut disk);
        self.poison_on_error(cut)?;
        let reopened = self.files.end_with(tail.offset.segment, self.config.segment_bytes, &mut disk);
        self.poison_on_error(reopened)?;
        self.writer = Writer::new(log, tail, self.files.current.bytes, self.config.segment_bytes);
        self.end_with_mark()?;
        self.files.top_up();
        Ok(())
    }
}

impl Files {
    /// Makes `number` the segment in use; all later segments have been erased.
    fn end_with(&mut self, number: u64, segment_bytes: u32, disk: &mut Disk) -> Result<(), DiskError> {
        if self.preparer.is_preparing() {
            // The segment would come to stand after a gap. A failed preparation is tried again when it is
            // needed.
            self.prepared.extend(self.preparer.wait().ok());
        }
        while let Some(&Used { number: last, bytes, .. }) = self.used.back()
            && last > number
        {
            self.used.pop_back();
            self.prepared.push_front(disk.segment(last, bytes)?);
        }
        if let Some(&Used { bytes, .. }) = self.used.back() {
            self.current = disk.segment(number, bytes)?;
        }
        let fits = self.prepared.iter().take_while(|segment| segment.bytes == segment_bytes).count();
        for gone in self.prepared.drain(fits.min(PREPARED_AHEAD)..).rev() {
            self.preparer.remove(gone.number);
        }
        Ok(())
    }
}

/// The segment files of a log, the one in hand open.
struct Disk {
    dir: HeldDir,
    wrap: Wrap,
    open: Option<Segment>,
}

impl Disk {
    fn segment(&self, number: u64, bytes: u32) -> Result<Segment, DiskError> {
        let name = segment_name(number);
        Ok(Segment { number, bytes, path: self.dir.file(&name), file: (self.wrap)(self.dir.edit(&name)?) })
    }

    fn in_hand(&mut self, number: u64) -> Result<&Segment, DiskError> {
        let segment = match self.open.take() {
            Some(segment) if segment.number == number => segment,
            // How many bytes it has makes no difference to what is written into it.
            _ => self.segment(number, 0)?,
        };
        Ok(self.open.insert(segment))
    }
}

impl Segments for Disk {
    type Error = DiskError;

    fn read(&mut self, number: u64) -> Result<Vec<u8>, DiskError> {
        let (name, mut bytes) = (segment_name(number), Vec::new());
        let read = self.dir.read(&name)?.read_to_end(&mut bytes);
        read.map_err(DiskError::io("read", &self.dir.file(&name))).map(|_| bytes)
    }

    fn zero(&mut self, at: LogOffset, bytes: usize) -> Result<(), DiskError> {
        let zeros = vec![0; bytes.min(ZEROS_BYTES)];
        let segment = self.in_hand(at.segment)?;
        for done in (0..bytes).step_by(ZEROS_BYTES) {
            segment.write_at(&zeros[..ZEROS_BYTES.min(bytes - done)], at.byte as u64 + done as u64)?;
        }
        Ok(())
    }

    fn sync(&mut self, number: u64) -> Result<(), DiskError> {
        self.in_hand(number)?.sync()
    }
}
