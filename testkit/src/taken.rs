//! A backup, or a copy for a member, as its taker has it so far, and whether it is what the log says.

use std::collections::BTreeMap;
use std::sync::Arc;

use tercel_engine::order::Sealed;
use tercel_engine::order::quorum::packet::entries;
use tercel_engine::replica::saved::Saved;
use tercel_engine::server::{Checkpoint, Recovery, ServerConfig};
use tercel_wire::cursor::{Reader, le32};
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::Kind;
use tercel_wire::id::{ClientId, EntryId, LogPosition, PageId, Stamp};
use tercel_wire::log::LogId;
use tercel_wire::message::{BackupBegun, BackupPart, Hello, Refused, TransferBegun};
use tercel_wire::page::{PAGE_BYTES, Page};

use crate::SPACE;
use crate::node::disk::Disk;
use crate::node::log::Log;

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
    /// The server's message that a copy for a member has begun, once it has come.
    pub transfer: Option<TransferBegun>,
    deframer: Deframer,
    state: Vec<u8>,
    entries: Vec<Sealed>,
    pages: BTreeMap<PageId, Vec<u8>>,
}

impl Taken {
    /// The greeting of a taker.
    pub fn hello(client: u64) -> Vec<u8> {
        let mut body = Vec::new();
        Hello::new(ClientId(client)).encode(&mut body);
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
                Kind::TransferBegun => {
                    self.transfer = Some(TransferBegun::decode(body).map_err(|e| e.to_string())?);
                }
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
                        BackupPart::Log(bytes) => {
                            let of = self.transfer.ok_or("a backup has no log")?;
                            let before = self.entries.last().map_or(of.before_view, |last| last.view);
                            let came = entries(&mut Reader::new(bytes), of.view, before);
                            self.entries.extend(came.map_err(|e| e.to_string())?);
                        }
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

    /// Makes of a whole copy the disk of a member. Gives with it the entries of its log, and the last one.
    ///
    /// # Errors
    /// In what it is not whole.
    pub fn made(&self, log: LogId, segment_bytes: u32) -> Result<(Disk, &[Sealed], EntryId), String> {
        let of = self.transfer.ok_or("it ended before it began")?;
        let (stamp, view) = (Stamp(of.replay_from.0 - 1), of.before_view);
        let before = EntryId { view, position: LogPosition(of.before) };
        let is_next = |(i, e): (usize, &Sealed)| e.stamp.0 == of.replay_from.0 + i as u64;
        let end = self.entries.last().map_or(stamp, |last| last.stamp);
        if !self.entries.iter().enumerate().all(is_next) || end != of.stamp {
            return Err(format!("its log is not that of {} to {}", of.replay_from, of.stamp));
        }
        let state = Saved::parse(&self.state).map_err(|e| e.to_string())?;
        if self.ended != Some(self.pages.len() as u64) || self.state.len() != of.state_bytes as usize {
            return Err("it has not all that was sent".into());
        }
        let mut disk = Disk::default();
        Log::create_behind(&mut disk, log, (stamp, before), segment_bytes);
        let mut made = Log::open(&mut disk, log.space, Stamp(u64::MAX), segment_bytes)?.log;
        let (records, last) = made.encode(&self.entries);
        made.append(&mut disk, &records)?;
        made.stable = last.position;
        made.close(&mut disk);
        disk.pages = self.pages.iter().map(|(page, bytes)| (*page, Arc::new(bytes.clone()))).collect();
        disk.checkpoint = Some(Checkpoint { applied: of.stamp, replay_from: of.replay_from, state });
        Ok((disk, &self.entries, last.id()))
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
        if !is_named
            || state.encode() != self.state
            || self.state.len() as u64 != u64::from(begun.state_bytes)
        {
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
