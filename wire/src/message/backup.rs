//! The bodies of a backup: what it is of, and its parts, each asked for by itself.
//!
//! `Backup` and `BackupNext` have no body. A client asks for a part only when it can take that part, so neither end keeps
//! more than the parts under way.

use crate::cursor::{DecodeError, Put, Reader};
use crate::frame::BODY_BYTES_MAX;
use crate::id::{PageId, Stamp, ViewId};
use crate::page::PAGE_BYTES;

/// The answer to `Backup`: from now on parts can be asked for, all of them of one stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackupBegun {
    /// Every commit up to this stamp is in it, and none after.
    pub stamp: Stamp,
    /// The view in which it was begun.
    pub view: ViewId,
    /// The first page that nothing can be in; pages below it may be missing.
    pub pages_end: u32,
    /// Bytes of the ordered state, which come before the pages.
    pub state_bytes: u32,
}

impl BackupBegun {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.stamp.0);
        self.view.encode(out);
        out.put_u32(self.pages_end);
        out.put_u32(self.state_bytes);
    }

    /// Reads it.
    pub fn decode(body: &[u8]) -> Result<BackupBegun, DecodeError> {
        let mut r = Reader::new(body);
        let b = BackupBegun {
            stamp: Stamp(r.u64()?),
            view: ViewId::decode(&mut r)?,
            pages_end: r.u32()?,
            state_bytes: r.u32()?,
        };
        r.end()?;
        if b.pages_end > PageId::MAX.get() + 1 {
            return Err(DecodeError::BadField("pages end"));
        }
        Ok(b)
    }
}

/// The answer to `BackupNext`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupPart<'a> {
    /// The next piece of the ordered state.
    State(&'a [u8]),
    /// The next pages, in the order of their ids.
    Pages {
        /// Pages below this one have all been sent.
        upto: u32,
        /// One whole page after the other, unchecked; each names itself.
        pages: &'a [u8],
    },
    /// That was all of it.
    End {
        /// How many pages were sent.
        pages: u64,
    },
}

/// Pages that one part may have: they and its head fit a message.
pub const BACKUP_PAGES_MAX: usize = (BODY_BYTES_MAX - 8) / PAGE_BYTES;

const STATE: u8 = 0;
const PAGES: u8 = 1;
const END: u8 = 2;

impl<'a> BackupPart<'a> {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            BackupPart::State(bytes) => {
                out.put_u8(STATE);
                out.extend_from_slice(bytes);
            }
            BackupPart::Pages { upto, pages } => {
                out.put_u8(PAGES);
                out.put_u32(*upto);
                out.extend_from_slice(pages);
            }
            BackupPart::End { pages } => {
                out.put_u8(END);
                out.put_u64(*pages);
            }
        }
    }

    /// Reads it.
    pub fn decode(body: &'a [u8]) -> Result<BackupPart<'a>, DecodeError> {
        let mut r = Reader::new(body);
        match r.u8()? {
            STATE => Ok(BackupPart::State(r.rest())),
            PAGES => {
                let (upto, pages) = (r.u32()?, r.rest());
                if pages.len() % PAGE_BYTES != 0 {
                    return Err(DecodeError::BadField("pages"));
                }
                Ok(BackupPart::Pages { upto, pages })
            }
            END => {
                let pages = r.u64()?;
                r.end()?;
                Ok(BackupPart::End { pages })
            }
            _ => Err(DecodeError::BadField("part of a backup")),
        }
    }
}
