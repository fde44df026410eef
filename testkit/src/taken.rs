//! A backup as its taker has it so far, and whether it is what the log says.

use std::collections::BTreeMap;

use tercel_engine::order::Sealed;
use tercel_engine::server::{Recovery, ServerConfig};
use tercel_wire::cursor::le32;
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{Kind, WIRE_VERSION, WIRE_VERSION_MIN};
use tercel_wire::id::{ClientId, PageId, SpaceId};
use tercel_wire::message::{BackupBegun, BackupPart, Hello, Refused};
use tercel_wire::page::{PAGE_BYTES, Page};

use crate::SPACE;

/// The messages that have come on the connection of a taker, read.
#[derive(Default)]
pub struct Taken {
    /// The server's message that the backup has begun, once it has come.
    pub begun: Option<BackupBegun>,
    /// Parts that were asked for and have not come.
    pub asked: usize,
    /// Pages that were sent, once that was all.
    pub ended: Option<u64>,
    /// Why there is no more of it.
    pub refused: Option<Refused>,
    /// The server's status, if it was asked for.
    pub status: String,
    deframer: Deframer,
    state: Vec<u8>,
    pages: BTreeMap<PageId, Vec<u8>>,
}

impl Taken {
    /// The greeting of a taker.
    pub fn hello(client: u64) -> Vec<u8> {
        let mut body = Vec::new();
        let hello = Hello {
            client: ClientId(client),
            connection: 1,
            version_min: WIRE_VERSION_MIN,
            version_max: WIRE_VERSION,
            space: SpaceId(0),
            resume: None,
            via: None,
        };
        hello.encode(&mut body);
        body
    }

    /// Keeps what has come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.deframer.push(bytes);
    }

    /// Takes in what has come.
    ///
    /// # Errors
    /// Handles the messages that have come; the error describes a mistake in them.
    pub fn hear(&mut self) -> Result<(), String> {
        while let Some((header, body)) = self.deframer.next_frame().map_err(|e| e.to_string())? {
            match header.kind {
                Kind::BackupBegun => self.begun = Some(BackupBegun::decode(body).map_err(|e| e.to_string())?),
                Kind::BackupPart => {
                    self.asked -= 1;
                    match BackupPart::decode(body).map_err(|e| e.to_string())? {
                        BackupPart::State(piece) => self.state.extend_from_slice(piece),
                        BackupPart::Pages { upto, pages } => {
                            for bytes in pages.chunks(PAGE_BYTES) {
                                let id = PageId::new(le32(bytes, 4)).ok_or("a page is none")?;
                                let last = self.pages.keys().next_back();
                                if id.get() >= upto || last.is_some_and(|last| *last >= id) {
                                    return Err(format!("page {id} comes out of its turn"));
                                }
                                self.pages.insert(id, bytes.to_vec());
                            }
                        }
                        BackupPart::Log(_) => return Err("a backup has no log".into()),
                        BackupPart::End { pages } => self.ended = Some(pages),
                    }
                }
                Kind::Refused => self.refused = Some(Refused::decode(body).map_err(|e| e.to_string())?),
                Kind::Status => self.status = String::from_utf8_lossy(body).into_owned(),
                _ => {}
            }
        }
        Ok(())
    }

    /// Says whether nothing more comes.
    pub fn is_over(&self) -> bool {
        self.ended.is_some() || self.refused.is_some()
    }

    /// Compares it with the whole log, which goes as far as its stamp or further.
    ///
    /// # Errors
    /// In what it is not what the log says.
    pub fn compare<'a>(&self, log: impl Iterator<Item = &'a Sealed>) -> Result<(), String> {
        let begun = self.begun.ok_or("it ended before it began")?;
        let mut recovery =
            Recovery::new(ServerConfig::default(), SPACE, None, 0).map_err(|e| e.to_string())?;
        for e in log.take_while(|e| e.stamp <= begun.stamp) {
            recovery.replay(e.view, e.stamp, e.kind, &e.payload).map_err(|e| e.to_string())?;
        }
        let (state, mob) = recovery.into_parts();
        let is_named = (state.stamp, state.view()) == (begun.stamp, begun.view);
        if !is_named || state.encode() != self.state || self.state.len() as u64 != begun.state_bytes.into() {
            return Err(format!("its state is not that of {}", begun.stamp));
        }
        // Objects that a large transaction has placed, but that are not ordered yet, belong to no stamp.
        let laid = |id: &PageId| mob.merge_page(*id, None, begun.stamp, SPACE, Vec::new());
        let has_objects = |id: &PageId| {
            laid(id).is_some_and(|due| Page::parse(&due, *id).is_ok_and(|p| p.objects().next().is_some()))
        };
        let due = mob.page_ids().into_iter().filter(|page| mob.is_installable(*page, begun.stamp));
        let due = due.filter(has_objects);
        if !self.pages.keys().copied().eq(due) || self.ended != Some(self.pages.len() as u64) {
            return Err(format!("it has other pages than there were at {}", begun.stamp));
        }
        for (id, bytes) in &self.pages {
            let due = laid(id).ok_or("a page is too full")?;
            match (Page::parse(&due, *id), Page::parse(bytes, *id)) {
                (Ok(due), Ok(taken)) if due.objects().eq(taken.objects()) && due.stamp() == taken.stamp() => {
                }
                _ => return Err(format!("its page {id} is not that of {}", begun.stamp)),
            }
        }
        Ok(())
    }
}
