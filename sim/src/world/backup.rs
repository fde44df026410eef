//! Backups: in some worlds a backup client takes one after the other, whatever happens, and checks each.
//!
//! The backup client is no client of the workload and its link is never cut: only faults of the server strike it. A backup must be
//! equal to the log's state at the stamp that the server named. That stamp must be durable when the server names it.

use std::collections::BTreeMap;

use tercel_engine::random::Random;
use tercel_engine::server::{Conn, Input, Recovery, ServerConfig};
use tercel_wire::cursor::le32;
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{Header, Kind, WIRE_VERSION, WIRE_VERSION_MIN};
use tercel_wire::id::{ClientId, PageId, SpaceId, Stamp};
use tercel_wire::message::{BackupBegun, BackupPart, Hello};
use tercel_wire::page::{PAGE_BYTES, Page};

use super::{Event, Phase, SPACE, World};
use crate::rule::{drop_here, keep_here};

/// Takes backups in this world, if it has a source of random numbers.
#[derive(Default)]
pub(super) struct BackupClient {
    random: Option<Random>,
    begun: u64,
    under_way: Option<Backup>,
}

/// A backup under way.
struct Backup {
    conn: Conn,
    /// The life of the server that it is of.
    life: u32,
    call: u64,
    asked: usize,
    deframer: Deframer,
    head: Option<BackupBegun>,
    state: Vec<u8>,
    pages: BTreeMap<PageId, Vec<u8>>,
    sent: Option<u64>,
    is_refused: bool,
}

impl BackupClient {
    /// Whether a connection is its own; what was sent there is then kept.
    pub(super) fn takes(&mut self, conn: Conn, bytes: &[u8]) -> bool {
        match self.under_way.as_mut().filter(|b| b.conn == conn) {
            Some(b) => b.deframer.push(bytes),
            None => return false,
        }
        true
    }
}

impl Backup {
    /// Takes in what has arrived. Says what is wrong with it.
    fn hear(&mut self, promised: Stamp) -> Result<(), String> {
        while let Some((header, body)) = self.deframer.next_frame().map_err(|e| e.to_string())? {
            match header.kind {
                Kind::BackupBegun => {
                    let head = BackupBegun::decode(body).map_err(|e| e.to_string())?;
                    if head.stamp > promised {
                        return Err(format!("it is of {}, and only {promised} is durable", head.stamp));
                    }
                    self.head = Some(head);
                }
                Kind::BackupPart => {
                    self.asked -= 1;
                    match BackupPart::decode(body).map_err(|e| e.to_string())? {
                        BackupPart::State(piece) => self.state.extend_from_slice(piece),
                        BackupPart::Pages { pages, .. } => {
                            for bytes in pages.chunks(PAGE_BYTES) {
                                let id = PageId::new(le32(bytes, 4)).ok_or("a page is none")?;
                                self.pages.insert(id, bytes.to_vec());
                            }
                        }
                        BackupPart::End { pages } => self.sent = Some(pages),
                    }
                }
                Kind::Refused => self.is_refused = true,
                _ => {}
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.sent.is_some() || self.is_refused
    }
}

impl World {
    /// In one world of four there is a backup client, and in each in which one is needed.
    pub(super) fn begin_backups(&mut self) {
        let is_needed = self.plan.rule.is_some_and(|rule| rule.is_of_backups());
        if is_needed || self.plan.seed.is_multiple_of(WORLDS_PER_TAKER) {
            self.backup_client.random = Some(Random::new(self.plan.seed ^ 0xbac0_0000_0000_0000));
            self.at(self.time, Event::Backup);
        }
    }

    /// The backup client's turn.
    pub(super) fn backup_turn(&mut self) {
        if !matches!(self.phase, Phase::Safety | Phase::Healed) || self.backup_client.begun > BACKUPS_MAX {
            return self.leave_backup();
        }
        let life = self.server.life;
        let is_up = self.server.is_up();
        self.backup_client.under_way =
            self.backup_client.under_way.take().filter(|b| is_up && b.life == life);
        match self.backup_client.under_way.as_mut() {
            None if is_up => self.begin_backup(),
            None => {}
            Some(b) => match b.hear(self.oracle.promised) {
                Err(why) => self.blame(format!("a backup: {why}")),
                Ok(()) if b.is_over() => self.end_backup(),
                Ok(()) if b.asked < ASKED_MAX => {
                    b.asked += 1;
                    self.say_to_server(Kind::BackupNext, &[]);
                }
                Ok(()) => {}
            },
        }
        let pause = if self.backup_client.under_way.is_some() { STEP_US_MAX } else { PAUSE_US_MAX };
        let us = self.backup_client.random.as_mut().map_or(0, |r| r.below(pause));
        self.at(self.time + us, Event::Backup);
    }

    fn begin_backup(&mut self) {
        self.backup_client.begun += 1;
        let n = self.backup_client.begun;
        let conn = Conn(1 << 40 | n);
        self.backup_client.under_way = Some(Backup {
            conn,
            life: self.server.life,
            call: 0,
            asked: 0,
            deframer: Deframer::default(),
            head: None,
            state: Vec::new(),
            pages: BTreeMap::new(),
            sent: None,
            is_refused: false,
        });
        self.server_takes(Input::Connected(conn));
        let hello = Hello {
            client: ClientId(1 << 40 | n),
            connection: 1,
            version_min: WIRE_VERSION_MIN,
            version_max: WIRE_VERSION,
            space: SpaceId(0),
            resume: None,
        };
        let mut body = Vec::new();
        hello.encode(&mut body);
        self.say_to_server(Kind::Hello, &body);
        self.say_to_server(Kind::Backup, &[]);
    }

    fn say_to_server(&mut self, kind: Kind, body: &[u8]) {
        let Some(b) = &mut self.backup_client.under_way else { return };
        b.call += 1;
        let header = Header { body_bytes: body.len() as u32, ..Header::new(kind, b.call) };
        let conn = b.conn;
        self.server_takes(Input::Frame(conn, header, body));
    }

    /// Drops the backup under way, because the server has forgotten its connections.
    pub(super) fn forget_backup(&mut self) {
        self.backup_client.under_way = None;
    }

    fn leave_backup(&mut self) {
        if let Some(b) = self.backup_client.under_way.take() {
            self.server_takes(Input::Disconnected(b.conn));
        }
    }

    fn end_backup(&mut self) {
        let Some(b) = self.backup_client.under_way.take() else { return };
        self.server_takes(Input::Disconnected(b.conn));
        if b.sent.is_none() {
            return;
        }
        // The comparison must see the true state, so no rule is dropped meanwhile.
        keep_here();
        let compared = self.compare(&b);
        drop_here(self.plan.rule, self.plan.small);
        match compared {
            Ok(()) => self.record.counts.backups += 1,
            Err(why) => self.blame(format!("a backup: {why}")),
        }
    }

    /// The whole log up to the stamp, replayed, must give what was taken.
    fn compare(&self, b: &Backup) -> Result<(), String> {
        let head = b.head.ok_or("it ended before it began")?;
        let mut recovery =
            Recovery::new(ServerConfig::default(), SPACE, None, 0).map_err(|e| e.to_string())?;
        for e in self.oracle.promised().take_while(|e| e.stamp <= head.stamp) {
            recovery.replay(e.view, e.stamp, e.kind, &e.payload).map_err(|e| e.to_string())?;
        }
        let (state, mob) = recovery.into_parts();
        if state.encode() != b.state {
            return Err(format!("its state is not that of {}", head.stamp));
        }
        // Objects that a large transaction has placed, but that are not ordered yet, belong to no stamp.
        let laid = |id: &PageId| mob.merge_page(*id, None, head.stamp, SPACE, Vec::new());
        let has_objects = |id: &PageId| {
            laid(id).is_some_and(|due| Page::parse(&due, *id).is_ok_and(|p| p.objects().next().is_some()))
        };
        let due = mob.page_ids().into_iter().filter(|page| mob.is_installable(*page, head.stamp));
        let due = due.filter(has_objects);
        if !b.pages.keys().copied().eq(due) || b.sent != Some(b.pages.len() as u64) {
            return Err(format!("it has other pages than there were at {}", head.stamp));
        }
        for (id, bytes) in &b.pages {
            let due = laid(id).ok_or("a page is too full")?;
            match (Page::parse(&due, *id), Page::parse(bytes, *id)) {
                (Ok(due), Ok(taken)) if due.objects().eq(taken.objects()) && due.stamp() == taken.stamp() => {
                }
                _ => return Err(format!("its page {id} is not that of {}", head.stamp)),
            }
        }
        Ok(())
    }
}

/// Most worlds go without: a backup takes its share of the events.
const WORLDS_PER_TAKER: u64 = 4;
/// Each is compared with the whole log.
const BACKUPS_MAX: u64 = 12;
/// Parts asked for at once.
const ASKED_MAX: usize = 2;
/// Between two looks at what came, at most; and between two backups.
const STEP_US_MAX: u64 = 4_000;
const PAUSE_US_MAX: u64 = 100_000;
