//! Large transactions in the log: pieces, entries among others', and an entry that commits them.
//!
//! What the pieces say put together is what one record of a commit would have said. A piece changes nothing; so what was
//! staged and not committed, because the server's life ended, never happened. One transaction is staged at a time. The
//! invariant: a commit is of all its pieces, in order and without a gap, or it is an error.

use tercel_wire::cursor::DecodeError;
use tercel_wire::id::{OpId, Stamp};
use tercel_wire::log::RECORD_BYTES_MAX;

use super::entry::{Entry, kind};

/// Gathers pieces while a log is read.
#[derive(Debug, Default)]
pub struct Staged {
    op: Option<OpId>,
    bytes: Vec<u8>,
    first: Option<Stamp>,
}

impl Staged {
    /// The first piece of the transaction that was staged last.
    pub fn first(&self) -> Option<Stamp> {
        self.first
    }

    /// Reads the next record of a log: as [`Entry::decode`], but that what commits staged pieces is the
    /// [`Entry::Commit`] that they make up.
    ///
    /// # Errors
    /// If the record is damaged, or commits pieces that are not all there.
    pub fn entry<'a>(
        &'a mut self,
        stamp: Stamp,
        kind: u8,
        payload: &'a [u8],
    ) -> Result<Entry<'a>, DecodeError> {
        let entry = Entry::decode(kind, payload)?;
        match entry {
            Entry::Stage { op, at, bytes } => self.piece(stamp, op, at as usize, bytes),
            // A new life knows nothing of what its predecessor was about to commit.
            Entry::View(_) => self.forget(),
            Entry::CommitStaged { op, bytes } => {
                if self.op.take() != Some(op) || self.bytes.len() != bytes as usize {
                    return Err(DecodeError::BadField("pieces"));
                }
                return match Entry::decode(kind::COMMIT, &self.bytes)? {
                    Entry::Commit(c) if c.op == op => Ok(Entry::Commit(c)),
                    _ => Err(DecodeError::BadField("operation")),
                };
            }
            _ => {}
        }
        Ok(entry)
    }

    /// A piece that does not continue the one before is of a transaction that nobody needs: its beginning was let go of,
    /// or it was never committed.
    fn piece(&mut self, stamp: Stamp, op: OpId, at: usize, bytes: &[u8]) {
        if at == 0 {
            self.forget();
            (self.op, self.first) = (Some(op), Some(stamp));
        }
        if self.op == Some(op) && at == self.bytes.len() && at + bytes.len() <= RECORD_BYTES_MAX {
            self.bytes.extend_from_slice(bytes);
        } else {
            self.forget();
        }
    }

    fn forget(&mut self) {
        *self = Staged::default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::Logged;
    use super::*;
    use tercel_wire::id::{ClientId, Oref, ViewId};
    use tercel_wire::message::{Effects, Write};

    fn op(seq: u64) -> OpId {
        OpId { client: ClientId(1), slot: 2, seq, view: ViewId::new(4, 0) }
    }

    fn commit(seq: u64) -> Entry<'static> {
        let oref = Oref::from_raw(5 << 9).unwrap();
        let writes = vec![Write { oref, new: false, object: &[16, 0, 0, 0, 1, 2, 3, 4] }];
        let effects = Effects { base: Stamp(4), reads: vec![oref], writes };
        Entry::Commit(Logged { op: op(seq), effects, placements: vec![(0, oref)] })
    }

    type Record = (u8, Vec<u8>);

    /// A transaction in pieces of so many bytes, and what commits it.
    fn staged(seq: u64, piece: usize) -> (Vec<Record>, Record) {
        let whole = commit(seq).encode();
        let pieces = whole.chunks(piece).enumerate().map(|(i, bytes)| {
            let entry = Entry::Stage { op: op(seq), at: (i * piece) as u32, bytes };
            (entry.kind(), entry.encode())
        });
        let end = Entry::CommitStaged { op: op(seq), bytes: whole.len() as u32 };
        (pieces.collect(), (end.kind(), end.encode()))
    }

    fn read(staged: &mut Staged, records: &[Record]) {
        records.iter().for_each(|(kind, payload)| _ = staged.entry(Stamp(1), *kind, payload).unwrap());
    }

    #[test]
    fn pieces_make_up_the_commit_that_was_staged_whatever_stands_between_them() {
        for piece in [1, 7, 30, 1_000] {
            let (pieces, (kind, payload)) = staged(3, piece);
            let mut reader = Staged::default();
            for record in &pieces {
                read(&mut reader, std::slice::from_ref(record));
                let between = commit(9);
                assert_eq!(reader.entry(Stamp(1), between.kind(), &between.encode()), Ok(between));
            }
            assert_eq!(reader.entry(Stamp(1), kind, &payload), Ok(commit(3)));
            // It was committed once.
            assert!(reader.entry(Stamp(1), kind, &payload).is_err());
        }
    }

    #[test]
    fn a_commit_whose_pieces_are_not_all_there_is_an_error() {
        let (pieces, (kind, payload)) = staged(3, 7);
        for missing in 0..pieces.len() {
            let mut some = pieces.clone();
            some.remove(missing);
            let mut reader = Staged::default();
            read(&mut reader, &some);
            assert_eq!(
                reader.entry(Stamp(1), kind, &payload),
                Err(DecodeError::BadField("pieces")),
                "{missing}"
            );
        }
        let mut reader = Staged::default();
        read(&mut reader, &staged(4, 7).0);
        assert!(reader.entry(Stamp(1), kind, &payload).is_err(), "pieces of another");
    }

    #[test]
    fn what_was_staged_in_an_earlier_life_or_before_another_is_forgotten() {
        let (pieces, (kind, payload)) = staged(3, 7);
        let view = Entry::View(ViewId::new(5, 1));
        for between in [vec![(view.kind(), view.encode())], staged(4, 7).0] {
            let mut reader = Staged::default();
            read(&mut reader, &pieces);
            read(&mut reader, &between);
            assert!(reader.entry(Stamp(1), kind, &payload).is_err());
            read(&mut reader, &pieces);
            assert_eq!(reader.entry(Stamp(1), kind, &payload), Ok(commit(3)));
        }
    }
}
