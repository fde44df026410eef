//! The parts of a backup, each asked for by itself.
//!
//! A client asks for a part only when it can take that part, so neither end keeps more than the parts under
//! way.

use crate::cursor::{DecodeError, Put, Reader};
use crate::frame::BODY_BYTES_MAX;
use crate::page::PAGE_BYTES;

impl Copy for super::BackupBegun {}
impl Copy for super::TransferBegun {}

/// The answer to `BackupNext`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupPart<'a> {
    /// The next piece of the ordered state.
    State(&'a [u8]),
    /// The next pages, in the order of their ids.
    Pages {
        /// Pages below this one have all been sent.
        upto: u32,
        /// Whole pages, one after the other, unchecked; each names itself.
        pages: &'a [u8],
    },
    /// The next entries of the log, as the order encodes them: for a member of the group.
    Log(&'a [u8]),
    /// The end of the backup.
    End {
        /// Pages sent.
        pages: u64,
    },
}

/// Pages that one part may have: they and its head fit a message.
pub const BACKUP_PAGES_MAX: usize = (BODY_BYTES_MAX - 8) / PAGE_BYTES;

const STATE: u8 = 0;
const PAGES: u8 = 1;
const END: u8 = 2;
const LOG: u8 = 3;

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
            BackupPart::Log(entries) => {
                out.put_u8(LOG);
                out.extend_from_slice(entries);
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
            LOG => Ok(BackupPart::Log(r.rest())),
            END => {
                let pages = r.u64()?;
                r.end()?;
                Ok(BackupPart::End { pages })
            }
            _ => Err(DecodeError::BadField("part of a backup")),
        }
    }
}
