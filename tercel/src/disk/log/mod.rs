//! The log of a server on disk: segment files that are written once, in order, and synced.
//!
//! [`Log`] appends and syncs for one thread. [`LogThread`] is that thread. [`tercel_wire::log`] says what the
//! bytes mean, the engine says what the records mean.
//!
//! Segments are filled with zeros and synced before they are used, so that a commit changes no metadata and
//! its `fdatasync` is one write to the device. The next segment is prepared in the background.
//!
//! The invariant: every later [`Log::open`] yields a record that [`Log::sync`] returned for, until
//! [`Log::truncate_below`] lets it go or [`Log::cut_above`] erases it. After an error of writing or syncing,
//! the log promises nothing more and refuses everything: the kernel may have dropped the bytes and reported
//! it once.

mod cut;
mod file;
mod open;
mod preparer;
mod reader;
mod salvage;
mod spares;
mod thread;

pub(crate) use open::{LogEnds, behind, create_in, ends, missing, pass_doubt_on};
pub use open::{Opened, create};
pub use reader::{LogReader, ReadUpto};
pub use salvage::{Damage, LogSalvage, Run, begins_behind, space_of};
pub use thread::{LogDone, LogState, LogThread, QUEUED_BATCHES_MAX, QUEUED_BYTES_MAX};

pub(crate) use self::file::sync_dir;
use self::file::{Segment, SegmentFile, Wrap};
use self::preparer::SegmentPreparer;
use super::DiskError;
use super::held::HeldDir;
use std::collections::VecDeque;
use tercel_wire::id::{LogPosition, Stamp};
use tercel_wire::log::{LogOffset, SegmentHeader, Tail, Writer};

/// The options of a server for its log.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// Bytes of a new segment. Larger ones are prepared less often, smaller ones give space back sooner. From
    /// [`SEGMENT_BYTES_MIN`](tercel_wire::log::SEGMENT_BYTES_MIN) to
    /// [`SEGMENT_BYTES_MAX`](tercel_wire::log::SEGMENT_BYTES_MAX), a multiple of 8.
    pub segment_bytes: u32,
    /// The size above which [`Log::over_cap`] says so. The log goes on; the component that keeps it long must
    /// let go.
    pub bytes_max: u64,
    /// Kept from there on when it is opened: [`Log::hold_from`].
    pub held_from: LogPosition,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig { segment_bytes: SEGMENT_BYTES, bytes_max: BYTES_MAX, held_from: LogPosition(u64::MAX) }
    }
}

/// The segment files of a log. Dropped without [`Log::close`], what was not synced may be lost, as in a
/// crash.
pub struct Log {
    dir: HeldDir,
    config: LogConfig,
    writer: Writer,
    files: Files,
    /// Everything appended has been synced, so that the next batch may begin with a mark.
    synced: bool,
    /// Stable up to here, as the next mark says.
    stable: LogPosition,
    keep: Keep,
    poisoned: Option<String>,
}

impl Log {
    /// Appends `records`, which were encoded on [`Log::tail`]'s chain. They are durable when [`Log::sync`]
    /// returns.
    ///
    /// Waits only if the records need more segments than are prepared ([`Log::room_bytes`]). If one cannot be
    /// prepared, or the answer is [`DiskError::NotChained`], the log is as it was; a failed write poisons it.
    pub fn append(&mut self, records: &[u8]) -> Result<(), DiskError> {
        self.refuse_if_poisoned()?;
        if records.is_empty() {
            return Ok(());
        }
        while self.room_bytes() < records.len() as u64 {
            self.files.take_prepared()?;
        }
        self.place(records)
    }

    fn place(&mut self, records: &[u8]) -> Result<(), DiskError> {
        let mark = self.synced.then_some(self.stable);
        let placed = self.writer.place(records, mark, |at, bytes| self.files.put(at, bytes));
        placed.map_err(|flaw| DiskError::NotChained { flaw })?;
        self.synced = false;
        let written = self.files.outcome();
        self.poison_on_error(written)
    }

    /// Makes everything appended durable (`fdatasync`). Any error poisons the log.
    pub fn sync(&mut self) -> Result<(), DiskError> {
        self.refuse_if_poisoned()?;
        if !self.synced {
            let synced = self.files.sync();
            self.poison_on_error(synced)?;
            self.synced = true;
            // What is kept for others may have become too much.
            self.let_go();
            self.files.top_up();
        }
        Ok(())
    }

    /// Lets go, in the background, of whole segments of which every record is below `stamp`, unless they are
    /// kept for others. Does nothing while something appended is not synced: the header that will be the
    /// oldest must be durable first.
    pub fn truncate_below(&mut self, stamp: Stamp) {
        if self.synced && self.poisoned.is_none() {
            self.keep.stamp = self.keep.stamp.max(stamp);
            self.let_go();
            self.files.look_for_room();
        }
    }

    /// Keeps segments with records from `position` on for other members, although [`Log::truncate_below`]
    /// would let them go. The oldest go nevertheless while all segments take more than half of
    /// [`LogConfig::bytes_max`], or the disk is full.
    pub fn keep_from(&mut self, position: LogPosition) {
        self.keep.position = position;
        self.let_go();
    }

    /// Keeps segments with records from `position` on for an archive, as [`Log::keep_from`] does for others.
    pub fn hold_from(&mut self, position: LogPosition) {
        self.keep.held = position;
        self.let_go();
    }

    fn let_go(&mut self) {
        if self.synced && self.poisoned.is_none() {
            let bytes_max = if self.is_short() { 0 } else { self.config.bytes_max / 2 };
            self.files.let_go(self.keep, bytes_max);
        }
    }

    /// Everything up to `position` is stable: the next mark says so. For a member of a group; the log of a
    /// server that is alone says it of everything that is synced.
    pub fn stable_upto(&mut self, position: LogPosition) {
        self.stable = self.stable.max(position);
    }

    /// The log has everything again that it may have lost ([`Opened::is_sure`]).
    ///
    /// # Errors
    /// If that cannot be made durable: the next opening is not sure either.
    pub fn sure(&mut self) -> Result<(), DiskError> {
        open::note_sure(&self.dir)
    }

    /// The place of the next record, with the chain on which it is encoded.
    pub fn tail(&self) -> Tail {
        self.writer.tail()
    }

    /// Bytes of records that can be appended without waiting for a segment to be prepared.
    pub fn room_bytes(&self) -> u64 {
        self.writer.room_bytes(self.files.prepared.len() as u64)
    }

    /// The next segment could not be prepared because the disk is full. Truncating tries again; so does a
    /// batch that needs the segment.
    pub fn is_short(&self) -> bool {
        self.files.preparer.is_short()
    }

    /// Bytes of all segments, prepared ones included.
    pub fn bytes(&self) -> u64 {
        self.files.bytes()
    }

    /// Bytes of segments that are kept for other members alone ([`Log::keep_from`]).
    pub fn bytes_for_others(&self) -> u64 {
        self.files.spared(self.keep).map(|segment| segment.bytes as u64).sum()
    }

    /// Says whether the segments take more bytes than the configured maximum. No segment is then kept for
    /// others alone.
    pub fn over_cap(&self) -> bool {
        self.bytes() > self.config.bytes_max
    }

    /// Says whether the segments exceed the maximum by a quarter, so that asking for less no longer helps.
    pub fn far_over_cap(&self) -> bool {
        self.bytes() > self.config.bytes_max + self.config.bytes_max / 4
    }

    /// Says whether a failure has ended the log's service.
    pub(super) fn is_poisoned(&self) -> bool {
        self.poisoned.is_some()
    }

    /// Ends its service. The first cause stays.
    pub(super) fn poison(&mut self, cause: &str) {
        self.poisoned.get_or_insert_with(|| cause.into());
    }

    /// Space may have become free: the next segment is prepared if it could not be.
    pub(super) fn hope(&mut self) {
        self.files.preparer.hope();
        self.files.top_up();
    }

    /// The directory of the segments.
    pub fn dir(&self) -> &HeldDir {
        &self.dir
    }

    /// Syncs, and ends with a mark. By that mark, the next opening distinguishes damage of the last batch
    /// from a crash.
    pub fn close(mut self) -> Result<(), DiskError> {
        self.end_with_mark()
    }

    /// Syncs, and writes a mark if [`Log::wants_mark`].
    fn end_with_mark(&mut self) -> Result<(), DiskError> {
        self.sync()?;
        if self.wants_mark() {
            self.place(&[])?;
            self.sync()?;
        }
        Ok(())
    }

    /// Says whether no mark stands at the tail, and there is room for one.
    fn wants_mark(&self) -> bool {
        let Tail { offset, synced, .. } = self.writer.tail();
        synced != after_mark_at(offset) && self.room_bytes() > 0
    }

    fn refuse_if_poisoned(&mut self) -> Result<(), DiskError> {
        self.files.take_ready();
        if let Some(cause) = self.files.preparer.panicked() {
            self.poisoned.get_or_insert_with(|| cause.into());
        }
        self.poisoned.as_ref().map_or(Ok(()), |cause| Err(DiskError::Poisoned { cause: cause.clone() }))
    }

    fn poison_on_error(&mut self, result: Result<(), DiskError>) -> Result<(), DiskError> {
        if let Err(error) = &result {
            self.poisoned = Some(error.to_string());
        }
        result
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("dir", &self.dir.path())
            .field("tail", &self.writer.tail())
            .finish_non_exhaustive()
    }
}

/// The place of a mark that ends at `offset`, if one does.
fn after_mark_at(offset: LogOffset) -> LogOffset {
    LogOffset { byte: offset.byte.saturating_sub(tercel_wire::log::MARK_BYTES as u32), ..offset }
}

/// Where the log begins to be needed.
#[derive(Debug, Clone, Copy)]
struct Keep {
    /// By this server.
    stamp: Stamp,
    /// By other members, and readers.
    position: LogPosition,
    /// By an archive, also while nothing reads for it.
    held: LogPosition,
}

/// The open files and what waits to be written to them.
struct Files {
    /// The segments in use, the tail's last.
    used: VecDeque<Used>,
    /// The tail's.
    current: Segment,
    /// Written to since the last sync, before the current one.
    behind: Vec<Segment>,
    prepared: VecDeque<Segment>,
    preparer: SegmentPreparer,
    wrap: Wrap,
    /// Bytes of the current batch that belong at `unwritten_at` of the current segment: one write for all.
    unwritten: Vec<u8>,
    unwritten_at: u64,
    failed: Option<DiskError>,
}

/// A segment that has records.
#[derive(Debug, Clone, Copy)]
struct Used {
    number: u64,
    /// The stamp in its header: all earlier segments' records have at most this one.
    stamp: Stamp,
    /// The position in its header: of the last record that begins in an earlier segment.
    before: LogPosition,
    bytes: u32,
}

impl Used {
    fn of(header: &SegmentHeader) -> Used {
        let SegmentHeader { number, before, bytes, .. } = *header;
        Used { number, stamp: before.stamp, before: before.position, bytes }
    }
}

impl Files {
    /// Takes `bytes` that belong at `at`, the next place in order. Errors wait for [`Files::outcome`].
    fn put(&mut self, at: LogOffset, bytes: &[u8]) {
        if self.failed.is_none()
            && let Err(error) = self.try_put(at, bytes)
        {
            self.failed = Some(error);
        }
    }

    fn try_put(&mut self, at: LogOffset, bytes: &[u8]) -> Result<(), DiskError> {
        if at.segment != self.current.number {
            self.roll(bytes)?;
        }
        if self.unwritten.len() + bytes.len() > UNWRITTEN_BYTES_MAX {
            self.flush()?;
        }
        if bytes.len() > UNWRITTEN_BYTES_MAX {
            return self.current.write_at(bytes, at.byte as u64);
        }
        if self.unwritten.is_empty() {
            self.unwritten_at = at.byte as u64;
        }
        self.unwritten.extend_from_slice(bytes);
        Ok(())
    }

    /// Goes on to the next segment, whose header is `header`.
    fn roll(&mut self, header: &[u8]) -> Result<(), DiskError> {
        self.flush()?;
        let header = SegmentHeader::decode(header).map_err(|flaw| DiskError::NotChained { flaw })?;
        let next = self.prepared.pop_front().expect("room was made before the records were placed");
        assert_eq!(next.number, header.number, "segments are prepared in order");
        self.used.push_back(Used::of(&header));
        self.behind.push(std::mem::replace(&mut self.current, next));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DiskError> {
        if !self.unwritten.is_empty() {
            self.current.write_at(&self.unwritten, self.unwritten_at)?;
            self.unwritten.clear();
        }
        Ok(())
    }

    fn outcome(&mut self) -> Result<(), DiskError> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn sync(&mut self) -> Result<(), DiskError> {
        self.flush()?;
        for segment in self.behind.drain(..) {
            segment.sync()?;
        }
        self.current.sync()
    }

    /// Waits for one more prepared segment.
    fn take_prepared(&mut self) -> Result<(), DiskError> {
        if !self.preparer.is_preparing() {
            self.preparer.prepare(self.number_next());
        }
        let segment = self.preparer.wait()?;
        self.prepared.push_back(segment);
        Ok(())
    }

    /// Takes what was prepared meanwhile and asks for more, without waiting. A failure is not repeated here:
    /// it will be met again, and reported, when the segment is needed.
    fn top_up(&mut self) {
        self.take_ready();
        if self.prepared.len() < PREPARED_AHEAD && self.preparer.may_prepare() {
            self.preparer.prepare(self.number_next());
        }
    }

    /// Takes what was prepared meanwhile.
    fn take_ready(&mut self) {
        while let Some(segment) = self.preparer.poll() {
            self.prepared.push_back(segment);
        }
    }

    fn number_next(&self) -> u64 {
        self.prepared.back().unwrap_or(&self.current).number + 1
    }

    /// The segments that this server does not need.
    fn spared(&self, keep: Keep) -> impl Iterator<Item = &Used> {
        let behind = self.used.iter().skip(1);
        self.used
            .iter()
            .zip(behind)
            .take_while(move |(_, next)| next.stamp < keep.stamp)
            .map(|(used, _)| used)
    }

    fn let_go(&mut self, keep: Keep, bytes_max: u64) {
        while let Some(next) = self.used.get(1)
            && next.stamp < keep.stamp
            && (next.before < keep.position.min(keep.held) || self.bytes() > bytes_max)
            && let Some(gone) = self.used.pop_front()
        {
            self.preparer.remove(gone.number);
        }
    }

    fn look_for_room(&mut self) {
        self.preparer.look_at_room();
        self.preparer.hope();
        self.top_up();
    }

    fn bytes(&self) -> u64 {
        let used: u64 = self.used.iter().map(|segment| segment.bytes as u64).sum();
        used + self.prepared.iter().map(|segment| segment.bytes as u64).sum::<u64>()
    }
}

/// Segments ready after the current one. One is enough for any batch below its size; a larger batch waits.
const PREPARED_AHEAD: usize = 1;

/// 16 MiB: preparing one takes some 40 ms of a disk's time, once every few thousand commits of a few KiB.
const SEGMENT_BYTES: u32 = 16 << 20;

/// 1 GiB: replaying it takes some seconds.
const BYTES_MAX: u64 = 1 << 30;

/// Up to here the parts of a batch are copied together to be one system call; above, copying costs more than
/// the call.
const UNWRITTEN_BYTES_MAX: usize = 256 << 10;

#[cfg(test)]
pub(crate) mod tests;
