//! Facts about a log that a member of a group must know before it applies a record: up to where the log is
//! stable, and which view each record is of.
//!
//! Both are found without reading the whole log. The newest mark names the stable position. Views never fall,
//! so where two segments' headers name the same view, every record between them is of that view.

use super::*;

/// The last position of each view among the records of a log, the oldest view first.
pub type Runs = Vec<(ViewId, LogPosition)>;

/// Adds the record `last`, which no record of `runs` follows, and all others of its view before it.
pub fn add_run(runs: &mut Runs, last: EntryId) {
    match runs.last_mut().filter(|(view, _)| *view == last.view) {
        Some((_, position)) => *position = last.position,
        None => runs.push((last.view, last.position)),
    }
}

/// The runs of all records before `headers`' last one, in a log whose segments begin with `headers`, without
/// a gap. Reads only segments in which a view begins. Answers `Err` with the number of one that is damaged.
pub fn runs_before<E>(
    headers: &[SegmentHeader],
    mut read: impl FnMut(u64) -> Result<Vec<u8>, E>,
) -> Result<Result<Runs, u64>, E> {
    let mut runs = Runs::new();
    for pair in headers.windows(2) {
        let (header, next) = (&pair[0], &pair[1].before);
        if header.before.view != next.view {
            let bytes = read(header.number)?;
            let mut scanner = Scanner::new(header.log.space);
            let mut reader = scanner.segment(header.number, &bytes);
            while let Some(record) = reader.next() {
                add_run(&mut runs, record.id());
            }
            drop(reader);
            // One more record may begin here and end in a later segment.
            let last = scanner.tail().last;
            let is_whole = last == *next || last.position.next() == next.position;
            if scanner.stopped().is_some() || !is_whole {
                return Ok(Err(header.number));
            }
        }
        if next.position > headers[0].before.position {
            add_run(&mut runs, next.id());
        }
    }
    Ok(Ok(runs))
}

/// The stable position that the newest mark names, in segments `numbers`; zero if no mark is left. A mark
/// that is behind damage or was left over from a cut counts too: what it says of stable records stays true.
pub fn stable<E>(
    log: LogId,
    numbers: impl DoubleEndedIterator<Item = u64>,
    mut read: impl FnMut(u64) -> Result<Vec<u8>, E>,
) -> Result<LogPosition, E> {
    for number in numbers.rev() {
        if let Some(mark) = marks(log, number, &read(number)?, 0).next_back() {
            return Ok(mark.stable);
        }
    }
    Ok(LogPosition::ZERO)
}
