//! Receiving a backup: greeting, asking for part after part, writing them down.
//!
//! One thread speaks to the server and another writes, so that a slow disk here does not look like silence
//! there. The data between them is bounded: the server is asked for more only when there is room.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tercel_engine::client::Servers;
use tercel_engine::order::Sealed;
use tercel_engine::order::quorum::packet::entries;
use tercel_engine::replica::Replica;
use tercel_engine::replica::saved::Saved;
use tercel_wire::cursor::{DecodeError, Reader, le32};
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{self, Header, Kind};
use tercel_wire::id::{ClientId, PageId, Stamp, ViewId};
use tercel_wire::message::{
    BackupBegun, BackupPart, FollowLog, Hello, LogFollowed, Refusal, Refused, Welcome,
};
use tercel_wire::page::{PAGE_BYTES, Page};

use super::fill::Filler;
use super::manifest::Manifest;
use super::tail::{self, Tail};
use super::{BackupError, Progress, Taken};
use crate::client::connection::ServerConnection;
use crate::disk::DiskError;
use crate::disk::dir::{DataDir, Purpose, Space, random_u64, today};
use crate::disk::log::LogConfig;

use crate::client::connection::CONNECTING;
pub(super) use crate::client::connection::{Remote, Way};

/// Takes a backup over a connection.
pub(super) fn receive(
    remote: &Remote,
    dir: &Path,
    mut progress: impl FnMut(Progress),
) -> Result<Taken, BackupError> {
    let begun_at = Instant::now();
    let begun = Begun::new(remote)?;
    let taken = begun.take(dir, &Tail::default(), &mut progress)?;
    Ok(Taken { took: begun_at.elapsed(), ..taken })
}

/// A backup that a server has begun: its stamp is fixed, and its state is here.
pub(super) struct Begun {
    connection: BackupConnection,
    pub(super) space: Space,
    begun: BackupBegun,
    state: Saved,
}

impl Begun {
    pub(super) fn new(remote: &Remote) -> Result<Begun, BackupError> {
        let (mut connection, space) = BackupConnection::to_leader(remote)?;
        let begun = connection.begin()?;
        let state = connection.take_state(&begun)?;
        Ok(Begun { connection, space, begun, state })
    }

    /// The state that pages and state are of.
    pub(super) fn state(&self) -> Result<Replica, BackupError> {
        Replica::restored(&self.state).map_err(|e| BackupError::Lost(format!("the state it sent: {e}")))
    }

    pub(super) fn stamp(&self) -> Stamp {
        self.begun.stamp
    }

    /// Shows the server that this lives, if it was silent for a while.
    pub(super) fn keep_alive(&mut self) -> Result<(), BackupError> {
        self.connection.keep_alive()
    }

    pub(super) fn state_bytes(&self) -> Vec<u8> {
        self.state.to_bytes()
    }

    /// Gives all pages, a part at a time, and their number.
    pub(super) fn pages<E: From<BackupError>>(
        &mut self,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<u64, E> {
        let connection = &mut self.connection;
        loop {
            connection.ask(Kind::BackupNext, &[])?;
            let part = connection
                .await_frame(Kind::BackupPart, |body| BackupPart::decode(body).map(ReceivedPart::of))?;
            match part {
                ReceivedPart::State(_) => {
                    return Err(BackupError::Lost("it sent more than it had said".into()).into());
                }
                ReceivedPart::Pages { pages, .. } => each(&pages)?,
                ReceivedPart::End(pages) => return Ok(pages),
            }
        }
    }

    /// Takes the pages, and makes the backup, up to the end of the log that follows.
    pub(super) fn take(
        self,
        dir: &Path,
        tail: &Tail,
        progress: &mut impl FnMut(Progress),
    ) -> Result<Taken, BackupError> {
        let Begun { mut connection, space, begun, state } = self;
        let segment_bytes = LogConfig::default().segment_bytes;
        let mut taken = None;
        let fill = |pages: &Path| -> Result<(), BackupError> {
            let filler = connection.take_all(&begun, Filler::open(pages)?, progress)?;
            progress(Progress { what: "writing", done: 1, total: 1 });
            let base = filler.finish(begun.stamp, tail.first(), &state)?;
            tail::append(dir, space.id, &tail.entries)?;
            let stamp = tail.entries.last().map_or(begun.stamp, |last| last.stamp);
            let manifest = Manifest { stamp: stamp.0, log: tail.entries.len() as u64, ..base };
            manifest.write(dir)?;
            taken = Some(Taken {
                stamp,
                pages: manifest.pages,
                bytes: manifest.pages * PAGE_BYTES as u64 + manifest.state_bytes,
                took: Duration::ZERO,
            });
            Ok(())
        };
        let before = tail.before(begun.stamp);
        DataDir::create_copy(dir, Purpose::Backup, &space, before, segment_bytes, fill)?;
        taken.ok_or_else(|| BackupError::Lost("nothing came".into()))
    }
}

/// A connection that reads a server's log.
pub(super) struct Follower {
    connection: BackupConnection,
    pub(super) space: Space,
    /// The server's view, and that of the last entry that was read.
    view: ViewId,
    before: ViewId,
    pub(super) begun: LogFollowed,
}

impl Follower {
    /// Begins behind a position, or with 0 behind what is stable.
    pub(super) fn new(remote: &Remote, after: u64) -> Result<Follower, BackupError> {
        let (mut connection, space) = BackupConnection::to_leader(remote)?;
        let mut body = Vec::new();
        FollowLog { after }.encode(&mut body);
        connection.ask(Kind::FollowLog, &body)?;
        let begun = connection.await_frame(Kind::LogFollowed, LogFollowed::decode)?;
        Ok(Follower { connection, space, view: begun.view, before: ViewId::NONE, begun })
    }

    /// Shows the server that this lives, if it was silent for a while.
    pub(super) fn keep_alive(&mut self) -> Result<(), BackupError> {
        self.connection.keep_alive()
    }

    /// Shows the server that this lives, if it was silent for a while, and takes its answer. Nothing else may
    /// be asked for.
    pub(super) fn keep_alive_alone(&mut self) -> Result<(), BackupError> {
        if self.connection.said.elapsed() < self.connection.keepalive / 2 {
            return Ok(());
        }
        self.connection.ask(Kind::Ping, &[])?;
        self.connection.await_frame(Kind::Pong, |_| Ok(()))
    }

    /// The next entries that are stable; none if none came for a second.
    pub(super) fn next(&mut self) -> Result<Vec<Sealed>, BackupError> {
        self.connection.ask(Kind::LogNext, &[])?;
        let (view, before) = (self.view, self.before);
        let read = self.connection.await_frame(Kind::BackupPart, |body| match BackupPart::decode(body)? {
            BackupPart::Log(bytes) => entries(&mut Reader::new(bytes), view, before),
            _ => Err(DecodeError::BadField("part")),
        })?;
        self.before = read.last().map_or(before, |last| last.view);
        Ok(read)
    }

    /// Reads on up to what is visible now, or further. Bounded: a backup's tail is held in memory.
    pub(super) fn read_upto_now(&mut self) -> Result<Tail, BackupError> {
        self.connection.ask(Kind::Ping, &[])?;
        let (header, ()) = self.connection.await_message(Kind::Pong, |_| Ok(()))?;
        let mut tail = Tail::default();
        let mut bytes = 0;
        let mut stamp = Stamp(self.begun.stamp.0.saturating_sub(self.begun.stable - self.begun.position));
        while stamp < header.stamp {
            let more = self.next()?;
            bytes += more.iter().map(|entry| entry.payload.len() + 64).sum::<usize>();
            if bytes > TAIL_BYTES_MAX {
                let text = format!(
                    "more than {} MiB were written while the backups of all spaces began: try again when there is less to do",
                    TAIL_BYTES_MAX >> 20
                );
                return Err(BackupError::Refused(Refused {
                    reason: Refusal::FULL,
                    text,
                    servers: Vec::new(),
                }));
            }
            stamp = more.last().map_or(stamp, |last| last.stamp);
            tail.entries.extend(more);
        }
        Ok(tail)
    }
}

/// Bytes of the log of one space that a backup of several holds in memory: what is written in the time in
/// which the slowest of the servers begins its backup.
const TAIL_BYTES_MAX: usize = 256 << 20;

/// The connection to the server.
struct BackupConnection {
    conn: ServerConnection,
    deframer: Deframer,
    buffer: Vec<u8>,
    call: u64,
    /// The last stamp that the server told of. Nothing is cached here, so all of it is acknowledged: pages
    /// that return wait for that, and a server ends a session that does not acknowledge.
    told: Stamp,
    /// The moments of the last arrival and of the last question.
    heard: Instant,
    said: Instant,
    keepalive: Duration,
}

/// Parts asked for at once: one is on its way while the next is read.
const ASKED_MAX: usize = 2;
const _: () = assert!(ASKED_MAX <= tercel_engine::limits::BACKUP_ASKED_MAX);

/// Parts between the thread that receives and the one that writes: 8 MB, half of what is stored at once.
const QUEUED_MAX: usize = 64;

/// The longest silence of a server before the backup fails. A busy server still answers questions about its
/// health.
const SILENCE_MAX: Duration = Duration::from_secs(30);

impl BackupConnection {
    /// A session with the first of the servers that serves clients, and what its space is.
    fn to_leader(remote: &Remote) -> Result<(BackupConnection, Space), BackupError> {
        let mut servers = Servers::new(remote.names(), 0);
        let mut failed = None;
        loop {
            let (at, pause_us) = servers.try_next();
            if let Some(failed) = failed.take_if(|_| pause_us > 0) {
                return Err(failed);
            }
            let opened = BackupConnection::open(remote, &at);
            match opened.and_then(|mut connection| connection.greet().map(|space| (connection, space))) {
                Err(BackupError::Refused(refused)) if refused.reason == Refusal::NotLeader => {
                    servers.sent_on(refused.servers.clone());
                    failed = Some(BackupError::Refused(refused));
                }
                Err(error @ BackupError::Unreachable { .. }) => _ = failed.get_or_insert(error),
                done => return done,
            }
        }
    }

    fn open(remote: &Remote, at: &str) -> Result<BackupConnection, BackupError> {
        let unreachable = |why| BackupError::Unreachable { server: remote.describe(), why };
        let conn = remote.connect(at, CONNECTING).map_err(unreachable)?;
        let now = Instant::now();
        Ok(BackupConnection {
            conn,
            deframer: Deframer::default(),
            buffer: Vec::new(),
            call: 0,
            told: Stamp::ZERO,
            heard: now,
            said: now,
            keepalive: Duration::from_secs(2),
        })
    }

    /// Becomes a session; gives what the space is, as its copy will say it.
    fn greet(&mut self) -> Result<Space, BackupError> {
        let mut body = Vec::new();
        Hello::new(ClientId(random_u64(Path::new("a client"))?)).encode(&mut body);
        self.ask(Kind::Hello, &body)?;
        let welcome = self.await_frame(Kind::Welcome, Welcome::decode)?;
        if welcome.page_bytes as usize != PAGE_BYTES {
            let text = format!(
                "its pages have {} bytes, and this build's {PAGE_BYTES}: use its own build",
                welcome.page_bytes
            );
            return Err(BackupError::Refused(Refused { reason: Refusal::Schema, text, servers: Vec::new() }));
        }
        self.keepalive = Duration::from_millis(welcome.keepalive_ms.into());
        Ok(Space { id: welcome.space, page_bytes: PAGE_BYTES as u32, created: today(), view_first: 0 })
    }

    fn begin(&mut self) -> Result<BackupBegun, BackupError> {
        self.ask(Kind::Backup, &[])?;
        self.await_frame(Kind::BackupBegun, BackupBegun::decode)
    }

    /// Takes all parts behind the state; gives the store with all pages.
    fn take_all(
        &mut self,
        begun: &BackupBegun,
        filler: Filler,
        progress: &mut impl FnMut(Progress),
    ) -> Result<Filler, BackupError> {
        std::thread::scope(|scope| {
            let (parts, to_write) = channel();
            let (tell, written) = channel();
            let writer = scope.spawn(move || write(filler, &to_write, &tell));
            let taken = self.take_parts(begun, parts, &written, progress);
            let filled =
                writer.join().map_err(|_| BackupError::Lost("the thread that writes panicked".into()))?;
            // A write that failed is why the rest was not taken.
            let (pages, filler) = filled?;
            let sent = taken?;
            if sent != pages {
                return Err(BackupError::Lost(format!("it sent {sent} pages and {pages} came")));
            }
            Ok(filler)
        })
    }

    /// Takes the ordered state, which comes first.
    fn take_state(&mut self, begun: &BackupBegun) -> Result<Saved, BackupError> {
        let mut state = Vec::with_capacity(begun.state_bytes.min(STATE_BYTES_EXPECTED) as usize);
        while state.len() < begun.state_bytes as usize {
            self.ask(Kind::BackupNext, &[])?;
            let part =
                self.await_frame(Kind::BackupPart, |body| BackupPart::decode(body).map(ReceivedPart::of))?;
            match part {
                ReceivedPart::State(piece) if !piece.is_empty() => state.extend_from_slice(&piece),
                _ => break,
            }
        }
        // The state is what makes the pages a space: it is looked at before it is believed.
        let is_of_backup = |s: &Replica| s.stamp == begun.stamp && s.view() == begun.view;
        let saved = Saved::parse(&state)
            .ok()
            .filter(|saved| Replica::restored(saved).is_ok_and(|s| is_of_backup(&s)))
            .filter(|_| state.len() == begun.state_bytes as usize);
        saved.ok_or_else(|| BackupError::Lost("the state it sent is not one".into()))
    }

    /// Gives how many pages the server says it sent.
    fn take_parts(
        &mut self,
        begun: &BackupBegun,
        parts: Sender<Vec<u8>>,
        written: &Receiver<()>,
        progress: &mut impl FnMut(Progress),
    ) -> Result<u64, BackupError> {
        let (mut asked, mut queued) = (0, 0);
        let total = u64::from(begun.pages_end.saturating_sub(1));
        loop {
            while asked < ASKED_MAX {
                self.ask(Kind::BackupNext, &[])?;
                asked += 1;
            }
            let part =
                self.await_frame(Kind::BackupPart, |body| BackupPart::decode(body).map(ReceivedPart::of))?;
            asked -= 1;
            match part {
                ReceivedPart::State(_) => {
                    return Err(BackupError::Lost("it sent more than it had said".into()));
                }
                ReceivedPart::Pages { upto, pages } => {
                    queued += 1;
                    if parts.send(pages).is_err() {
                        return Err(BackupError::Lost("nothing can be written any more".into()));
                    }
                    progress(Progress { what: "receiving", done: u64::from(upto.saturating_sub(1)), total });
                }
                ReceivedPart::End(pages) => {
                    let _ = self.ask(Kind::Bye, &[]);
                    return Ok(pages);
                }
            }
            queued -= written.try_iter().count();
            while queued >= QUEUED_MAX {
                match written.recv_timeout(self.keepalive / 2) {
                    Ok(()) => queued -= 1,
                    Err(RecvTimeoutError::Timeout) => self.keep_alive()?,
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(BackupError::Lost("nothing can be written any more".into()));
                    }
                }
            }
        }
    }

    fn ask(&mut self, kind: Kind, body: &[u8]) -> Result<(), BackupError> {
        self.call += 1;
        let mut bytes = Vec::new();
        let header = Header { ack: self.told, ..Header::new(kind, self.call) };
        frame::encode(header, body, &mut bytes);
        self.said = Instant::now();
        self.conn.send(&bytes).map_err(|e| BackupError::Lost(e.to_string()))
    }

    /// Says something if it was silent for so long that the server might think it gone.
    fn keep_alive(&mut self) -> Result<(), BackupError> {
        if self.said.elapsed() >= self.keepalive / 2 { self.ask(Kind::Ping, &[]) } else { Ok(()) }
    }

    /// Waits for a message of a kind. Others that are no refusals mean nothing here.
    fn await_frame<T>(
        &mut self,
        kind: Kind,
        read: impl Fn(&[u8]) -> Result<T, DecodeError>,
    ) -> Result<T, BackupError> {
        self.await_message(kind, read).map(|(_, body)| body)
    }

    /// As [`BackupConnection::await_frame`], with the header.
    fn await_message<T>(
        &mut self,
        kind: Kind,
        read: impl Fn(&[u8]) -> Result<T, DecodeError>,
    ) -> Result<(Header, T), BackupError> {
        let broken = |e: &dyn std::fmt::Display| BackupError::Lost(format!("it broke the protocol: {e}"));
        loop {
            while let Some((header, body)) = self.deframer.next_frame().map_err(|e| broken(&e))? {
                self.told = self.told.max(header.stamp);
                if header.kind == kind {
                    return read(body).map(|body| (header, body)).map_err(|e| broken(&e));
                }
                if header.kind == Kind::Refused {
                    let refused = Refused::decode(body).map_err(|e| broken(&e))?;
                    return Err(match refused.reason {
                        Refusal::Corrupt => BackupError::Unsound { what: refused.text, data: None },
                        _ => BackupError::Refused(refused),
                    });
                }
            }
            self.deframer.relax();
            self.keep_alive()?;
            let lost = |e: std::io::Error| BackupError::Lost(e.to_string());
            if self.conn.wait_and_receive(self.keepalive / 4, &mut self.buffer).map_err(lost)? {
                self.heard = Instant::now();
                self.deframer.push(&self.buffer);
            } else if self.heard.elapsed() > SILENCE_MAX {
                let text = format!("it has been silent for {} s", SILENCE_MAX.as_secs());
                return Err(BackupError::Lost(text));
            }
        }
    }
}

/// A part, out of the buffer that it arrived in.
enum ReceivedPart {
    State(Vec<u8>),
    Pages { upto: u32, pages: Vec<u8> },
    End(u64),
}

impl ReceivedPart {
    fn of(part: BackupPart<'_>) -> ReceivedPart {
        match part {
            BackupPart::State(bytes) => ReceivedPart::State(bytes.to_vec()),
            BackupPart::Pages { upto, pages } => ReceivedPart::Pages { upto, pages: pages.to_vec() },
            BackupPart::End { pages } => ReceivedPart::End(pages),
            // It is not asked for.
            BackupPart::Log(_) => ReceivedPart::State(Vec::new()),
        }
    }
}

/// Writes what comes until nothing comes any more; gives how many pages that were.
fn write(
    mut filler: Filler,
    parts: &Receiver<Vec<u8>>,
    tell: &Sender<()>,
) -> Result<(u64, Filler), BackupError> {
    let (mut pages, mut last) = (0, 0);
    while let Ok(part) = parts.recv() {
        for bytes in part.chunks(PAGE_BYTES) {
            let wrong = |what: String| BackupError::Lost(format!("it sent a page that is none: {what}"));
            let number = bytes.get(4..8).map_or(0, |_| le32(bytes, 4));
            let id = PageId::new(number)
                .filter(|_| number > last)
                .ok_or_else(|| wrong(format!("page {number}")))?;
            Page::parse(bytes, id).map_err(|e| wrong(e.to_string()))?;
            last = number;
            pages += 1;
            filler.page(id, bytes.to_vec()).map_err(|e: DiskError| BackupError::Disk(e))?;
        }
        // The receiving thread may have given up.
        let _ = tell.send(());
    }
    Ok((pages, filler))
}

/// Room for a state is made on the server's word up to this; a larger one grows as it comes.
const STATE_BYTES_EXPECTED: u32 = 16 << 20;
