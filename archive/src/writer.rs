//! The writer: a thread that reads a server's log and puts it into a store, and now and then a base.
//!
//! It is behind the commit. What it holds in memory is one object at a time; what it has not come to yet is
//! in the server's log, which is kept for it within the log's bound. While the store is away, it tries
//! again and again; if the log's bound is reached meanwhile, the entries between are a gap, and a new base
//! follows.
//!
//! The invariant: an object counts once the head names it, and the head is only ever swapped against the
//! one that this writer wrote last. So of two writers of a view one goes on, and the other one stops by name
//! until its server leads a later view. Of the writers of a group's members that of the leader writes, and
//! the others wait.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering as Cmp;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tercel::backup::BackupError;
use tercel::backup::stream::{ArchiveState, LogReader, Tap};
use tercel::tools::engine::order::Sealed;
use tercel::tools::engine::replica::Replica;
use tercel::tools::engine::replica::saved::Saved;
use tercel::tools::wire::message::Refusal;
use tercel::{Stamp, ViewId};
use thiserror::Error;

use crate::catalogue::{ArchiveError, Catalogue};
use crate::config::{Config, now_ms};
use crate::head::{
    Base, Gap, HEAD, Head, History, LastEntry, Run, base_begin, hex, log_name, piece_name, unhex,
};
use crate::memory::Memory;
use crate::object::{Digest, Kind, Object, digest_of, put_entry};
use crate::pieces::{PIECE_BYTES, Pieces, put_log};
use crate::reading::{Kept, Open, Reading, Samples};
use crate::store::{Store, StoreError};

/// The state of a writer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// The last stamp in the archive.
    pub stamp: u64,
    /// Everything up to this moment is in the archive, in milliseconds since 1970.
    pub upto_ms: u64,
    /// Log objects that this writer has put.
    pub objects: u64,
    /// Bytes that it has put, compressed.
    pub bytes: u64,
    /// Bases that it has put.
    pub bases: u64,
    /// Gaps that it has noticed.
    pub gaps: u64,
    /// Other histories than that of the archive, which it has begun there.
    pub histories: u64,
    /// Why it leaves the archive to another writer for now: its server does not lead.
    pub waits: Option<String>,
    /// Why it does not get on now, and since when, in milliseconds since 1970.
    pub trouble: Option<(u64, String)>,
    /// Why it has ended. If another writer of its view has the archive, it goes on when its server leads a
    /// later view.
    pub ended: Option<String>,
}

/// Why a writer does not get on.
#[derive(Debug, Error)]
pub(crate) enum Stopped {
    /// The store fails: the writer tries again.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The server fails: the writer tries again.
    #[error("{}", of_server(.0))]
    Server(#[from] BackupError),
    /// The log no longer has what is to be read next: a gap is noted.
    #[error("{BOUND_REACHED}")]
    Behind,
    /// Its server does not lead: the leader's writer archives, and this one tries again.
    #[error("{0}")]
    Follows(String),
    /// The server of another writer has led a later view. This one tries again, for its own server may lead
    /// again. If its server leads all the time, two servers have the space.
    #[error("{0}")]
    Overtaken(String),
    /// Another writer of this view has the archive. This one goes on when its server leads a later view.
    #[error("{1}")]
    Displaced(ViewId, String),
    /// The writer has nothing to do here any more.
    #[error("{0}")]
    Fenced(String),
    /// The writer was told to stop.
    #[error("it is to stop")]
    Asked,
}

/// A thread that archives a server.
pub struct Writer {
    status: Arc<Mutex<Status>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Begins to archive. A store that cannot be reached now is tried again.
    ///
    /// # Errors
    /// If the store refuses, or has a damaged head, unless this server had its archive there; if it has the
    /// archive of another space: with the name of its writer.
    pub fn start(
        tap: Tap,
        space: tercel::SpaceId,
        store: Arc<dyn Store>,
        config: Config,
    ) -> Result<Writer, StoreError> {
        let memory = Memory::read(config.memory.as_deref(), &store.url());
        match Head::read(&*store) {
            Ok(Some((head, _))) => refuse_other(&head, space, &*store).map_err(|why| {
                StoreError::Refused { store: store.url(), what: "the archive".into(), why: why.to_string() }
            })?,
            Ok(None) | Err(StoreError::Failed { .. }) => {}
            // The place is away, perhaps, and another is at its name. A damaged archive is told, and keeps no
            // space from being served.
            Err(StoreError::Refused { .. } | StoreError::Damaged { .. }) if memory.has_one() => {}
            Err(error) => return Err(error),
        }
        let known = Status { upto_ms: memory.upto_ms(), ..Status::default() };
        let (status, stop) = (Arc::new(Mutex::new(known)), Arc::<AtomicBool>::default());
        let mut writing = Writing {
            tap,
            space,
            store,
            owner: drawn(&config.name),
            memory: RefCell::new(memory),
            samples: RefCell::default(),
            config,
            status: status.clone(),
            stop: stop.clone(),
            is_behind: Cell::new(false),
        };
        let begun = std::thread::Builder::new().name("tercel-archive".into()).spawn(move || writing.run());
        let failed = |why: std::io::Error| StoreError::Failed {
            store: "archive".into(),
            what: "beginning".into(),
            why: why.to_string(),
        };
        Ok(Writer { status, stop, thread: Some(begun.map_err(failed)?) })
    }

    /// The state of the writer.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts what it holds, and ends. The server may then be stopped; until it is, it keeps its log for the
    /// archive, within its bound.
    pub fn stop(mut self) -> Status {
        self.end();
        self.status()
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end();
    }
}

/// A number that no other writer draws, whatever the name.
pub(crate) fn drawn(name: &str) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one((name, now_ms()))
}

pub(crate) fn refuse_other(head: &Head, space: tercel::SpaceId, store: &dyn Store) -> Result<(), Stopped> {
    match head.space() == space {
        true => Ok(()),
        false => Err(Stopped::Fenced(format!(
            "{} has the archive of space {}, written by {}: give space {:x} another place",
            store.url(),
            head.space,
            head.writer,
            space.0
        ))),
    }
}

/// The things that the thread works with.
struct Writing {
    tap: Tap,
    space: tercel::SpaceId,
    store: Arc<dyn Store>,
    owner: u64,
    config: Config,
    status: Arc<Mutex<Status>>,
    stop: Arc<AtomicBool>,
    /// The log's bound was reached before a reader of this had come so far.
    is_behind: Cell<bool>,
    /// The archive, if it was there and this server's.
    memory: RefCell<Memory>,
    samples: RefCell<Samples>,
}

impl Writing {
    fn run(&mut self) {
        let mut left = None;
        while !self.is_to_stop() {
            match self.session(&mut left) {
                Ok(()) | Err(Stopped::Asked) => return,
                Err(Stopped::Behind) => self.is_behind.set(true),
                Err(Stopped::Fenced(why)) => {
                    self.tap.hold(None);
                    return self.tell(|status| status.ended = Some(why));
                }
                Err(Stopped::Displaced(view, why)) => {
                    self.tap.hold(None);
                    self.tell(|status| status.ended = Some(why));
                    if self.is_deposed_from(view) {
                        self.tell(|status| status.ended = None);
                    }
                }
                Err(Stopped::Follows(why)) => {
                    self.hold_for_leader();
                    self.tell(|status| (status.waits, status.trouble) = (Some(why), None));
                    self.pause(AGAIN);
                }
                Err(why) => {
                    if matches!(why, Stopped::Overtaken(_)) {
                        self.tap.hold(None);
                    }
                    let now = (self.config.clock)();
                    if matches!(why, Stopped::Store(_))
                        && let Ok(reader) = self.tap.log(0)
                    {
                        // Moments in between can be restored once the store is back.
                        self.samples.borrow_mut().add(now, reader.stable_stamp());
                    }
                    let why = why.to_string();
                    self.tell(|status| {
                        let since = status.trouble.take().map_or(now, |(since, _)| since);
                        status.trouble = Some((since, why));
                    });
                    self.pause(AGAIN);
                }
            }
        }
    }

    /// Holds the log from the end of the leader's archive on: if the leader ends amid what it has not
    /// archived yet, this server may lead next. While the place is away, all behind what was seen last is
    /// held.
    fn hold_for_leader(&self) {
        // Another archive may be at the place while this one's is away.
        if let Ok(Some((head, _))) = Head::read(&*self.store)
            && head.space() == self.space
            && let Head { last: Some(last), upto_ms, .. } = head
        {
            self.memory.borrow_mut().set(&self.store.url(), Some(&last), upto_ms);
            self.tap.hold(Some(last.position));
        }
    }

    /// Waits until the server leads the view no more. Says no if the writer is to stop before that.
    fn is_deposed_from(&self, view: ViewId) -> bool {
        while !self.is_to_stop() {
            match self.tap.log(0) {
                Ok(reader) if reader.view() != view => return true,
                Err(BackupError::Refused(refused)) if refused.reason == Refusal::NotLeader => return true,
                // A server that does not answer now may lead the view still.
                Ok(_) | Err(_) => self.pause(AGAIN),
            }
        }
        false
    }

    fn is_to_stop(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn pause(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end && !self.is_to_stop() {
            std::thread::sleep(Duration::from_millis(10).min(time));
        }
    }

    fn tell(&self, f: impl FnOnce(&mut Status)) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        f(&mut status);
        let Status { upto_ms, trouble, waits, ended, .. } = &*status;
        let state = match (ended, waits, trouble) {
            (Some(_), ..) => ArchiveState::Ended,
            (_, Some(_), _) => ArchiveState::Waits,
            (.., Some(_)) => ArchiveState::Stuck,
            _ => ArchiveState::Writes,
        };
        self.tap.tell(state, *upto_ms);
    }

    /// Archives until it does not get on. A session that the store ends leaves what it has read to the next
    /// one.
    fn session(&self, left: &mut Option<Reading>) -> Result<(), Stopped> {
        let mut reading = left.take();
        let archived = self.archive(&mut reading);
        if matches!(archived, Err(Stopped::Store(_))) {
            *left = reading;
        }
        archived
    }

    fn archive(&self, reading: &mut Option<Reading>) -> Result<(), Stopped> {
        // The log is kept from there on, also while the place of the archive is away.
        let last = self.memory.borrow().last().filter(|_| reading.is_none()).cloned();
        if let Some(last) = last {
            let now = (self.config.clock)().max(self.memory.borrow().upto_ms());
            *reading = self.reading_behind(last, now)?.ok();
        }
        let of_before = reading.as_ref().map(|reading| {
            let reader = reading.reader.lock();
            (reader.space(), reader.view())
        });
        let (fresh, space, view) = match of_before {
            Some((space, view)) => (None, space, view),
            None => {
                let reader = self.fresh()?;
                let (space, view) = (reader.space(), reader.view());
                (Some(reader), space, view)
            }
        };
        let mut claimed = self.claim(space, view)?;
        // One that does not fit holds the log until another one does.
        let mut before = reading.take();
        if before.as_ref().is_some_and(|before| before.fits(claimed.head.last.as_ref())) {
            *reading = before.take().and_then(|reading| reading.behind(claimed.head.last.as_ref()));
        }
        let reading = match reading {
            Some(reading) => reading,
            None => {
                let reader = fresh.map_or_else(|| self.fresh(), Ok)?;
                let begun = match self.go_on(&mut claimed, reader)? {
                    Some(begun) => begun,
                    None => self.begin_anew(&mut claimed)?,
                };
                reading.insert(begun)
            }
        };
        drop(before);
        self.follow(&mut claimed, reading)
    }

    /// A reader that begins now: a base that is taken behind it can be gone on with.
    fn fresh(&self) -> Result<LogReader, Stopped> {
        self.tap.log(0).map_err(of_reader)
    }

    /// Archives what is read.
    fn follow(&self, claimed: &mut Claimed, reading: &mut Reading) -> Result<(), Stopped> {
        let Reading { reader, open } = reading;
        loop {
            let is_last = self.is_to_stop();
            if open.is_due(&self.config) || (is_last && !open.entries.is_empty()) {
                self.put(claimed, open)?;
            }
            if is_last {
                return Ok(());
            }
            if claimed.base_is_due(&self.config) {
                let first = first_needed(&self.tap.log(0)?);
                self.base(claimed, first, false)?;
                self.remove_old(claimed)?;
            }
            let entries = match self.read(reader) {
                Err(lost) if !open.entries.is_empty() => {
                    // The server may be stopping: what was read of it is not lost with it.
                    self.put(claimed, open)?;
                    return Err(lost);
                }
                entries => entries?,
            };
            let now = claimed.now(&self.config);
            if entries.is_empty() {
                self.idle(claimed, open, now)?;
            } else if entries.iter().map(|e| e.payload.len()).sum::<usize>() < FEW_BYTES {
                open.take(entries, now, &mut self.samples.borrow_mut());
                // Many small readings would take the server's time from commits.
                self.pause(PAUSE.min(self.config.every));
            } else {
                open.take(entries, now, &mut self.samples.borrow_mut());
            }
        }
    }

    fn read(&self, reader: &Kept) -> Result<Vec<Sealed>, Stopped> {
        reader.lock().next_entries().map_err(|error| match error {
            BackupError::Refused(refused) if refused.reason == Refusal::TooOld => Stopped::Behind,
            error => error.into(),
        })
    }

    /// Makes the archive this writer's.
    fn claim(&self, space: tercel::SpaceId, view: ViewId) -> Result<Claimed, Stopped> {
        let (mut head, old) = match Head::read(&*self.store)? {
            // Perhaps of a place that is not mounted. Another archive there would hide that.
            None if self.memory.borrow().has_one() => return Err(Stopped::Store(self.gone())),
            None => (Head::new(space, self.owner, &self.config.name, view), None),
            Some((head, bytes)) => (head, Some(bytes)),
        };
        refuse_other(&head, space, &*self.store)?;
        if head.ceiling.is_some_and(|ceiling| view.number > ceiling) {
            return Err(Stopped::Overtaken(format!(
                "{} was taken for another history of the space, by {}: give this one a place of its own, or run `tercel archive \
                 take` for its server",
                self.store.url(),
                head.writer
            )));
        }
        let theirs = ViewId::new(head.view.0, head.view.1);
        if theirs.number > view.number || (theirs.number == view.number && theirs != view) {
            return Err(self.fenced(&head, view));
        }
        head.owner = format!("{:016x}", self.owner);
        head.writer.clone_from(&self.config.name);
        head.view = (view.number, view.incarnation);
        head.taken = false;
        let mut claimed = Claimed { head, bytes: old };
        self.swap(&mut claimed)?;
        Ok(claimed)
    }

    /// Another writer has the archive. That of a later view is another member's: this one goes on with the
    /// archive when its own server leads again. That of an earlier view wrote once more while this one came.
    fn fenced(&self, head: &Head, view: ViewId) -> Stopped {
        let theirs = format!("{} is written by {}, in view {}", self.store.url(), head.writer, head.view.0);
        match head.view.0.cmp(&view.number) {
            Cmp::Greater => Stopped::Overtaken(format!(
                "{theirs}: this writer goes on when its server leads a later one; if its server leads already, another \
                 copy of the space is served or was: stop it, and give the archive back by `tercel archive take URL --server ADDR`"
            )),
            Cmp::Equal => Stopped::Displaced(
                view,
                format!("{theirs}: this writer stops until its server leads a later view"),
            ),
            Cmp::Less => Stopped::Store(self.changed()),
        }
    }

    /// Writes the head, unless another writer has.
    fn swap(&self, claimed: &mut Claimed) -> Result<(), Stopped> {
        let new = claimed.head.to_bytes();
        if self.store.swap(HEAD, claimed.bytes.as_deref(), &new)? {
            claimed.bytes = Some(new);
            let Head { last, upto_ms, .. } = &claimed.head;
            self.memory.borrow_mut().set(&self.store.url(), last.as_ref(), *upto_ms);
            self.tap.hold(last.as_ref().map(|last| last.position));
            self.told(claimed);
            return Ok(());
        }
        match Head::read(&*self.store)? {
            // A swap that seemed to fail was done.
            Some((_, bytes)) if bytes == new => {
                claimed.bytes = Some(new);
                Ok(())
            }
            // It was taken for this writer's server, before that knew of a younger view.
            Some((head, _)) if head.taken && head.view == claimed.head.view => Err(self.changed().into()),
            Some((head, _)) if head.owner != claimed.head.owner => {
                let (number, incarnation) = claimed.head.view;
                Err(self.fenced(&head, ViewId::new(number, incarnation)))
            }
            // One of this writer's own that seemed to fail: it claims the archive again.
            _ => Err(self.changed().into()),
        }
    }

    fn changed(&self) -> StoreError {
        let (what, why) = ("replacing head".into(), "it has changed".into());
        StoreError::Failed { store: self.store.url(), what, why }
    }

    fn gone(&self) -> StoreError {
        let what = "reading head".into();
        let memory = self.memory.borrow();
        let remove = memory.path().map_or(String::new(), |path| format!("remove {} and ", path.display()));
        let why = format!(
            "the archive was there and is gone: bring its place back, or {remove}restart the server to begin another one"
        );
        StoreError::Failed { store: self.store.url(), what, why }
    }

    fn told(&self, claimed: &Claimed) {
        let Head { upto_ms, last, .. } = &claimed.head;
        let (upto_ms, stamp) = (*upto_ms, last.as_ref().map_or(0, |last| last.stamp));
        self.tell(|status| {
            (status.upto_ms, status.stamp) = (upto_ms, stamp);
            (status.trouble, status.waits) = (None, None);
        });
    }

    /// Goes on behind what is archived, if the log still has that.
    fn go_on(&self, claimed: &mut Claimed, fresh: LogReader) -> Result<Option<Reading>, Stopped> {
        let Some(last) = claimed.head.last.clone() else { return Ok(None) };
        if claimed.head.bases.is_empty() {
            return Ok(None);
        }
        let gap = |claimed: &mut Claimed, reason| {
            let why = match reason {
                Refusal::OtherHistory => ANOTHER_HISTORY,
                _ if self.is_behind.take() => BOUND_REACHED,
                _ => NOT_KEPT,
            };
            self.gap(claimed, why).map(|()| None)
        };
        let reading = self.reading_behind(last, claimed.now(&self.config))?;
        drop(fresh);
        match reading {
            Ok(reading) => Ok(Some(reading)),
            Err(reason) => gap(claimed, reason),
        }
    }

    /// The reading of the log behind an archived entry, which is read once more, and compared; the reason if
    /// the log has it no more.
    fn reading_behind(&self, last: LastEntry, now_ms: u64) -> Result<Result<Reading, Refusal>, Stopped> {
        let reader = match self.tap.log(last.position.saturating_sub(1)) {
            Ok(began) => Kept::new(began),
            Err(BackupError::Refused(refused)) if is_gap(refused.reason) => return Ok(Err(refused.reason)),
            Err(error) => return Err(of_reader(error)),
        };
        let mut entries = match self.some_entries(&reader) {
            Err(Stopped::Behind) => return Ok(Err(Refusal::TooOld)),
            Err(Stopped::Server(BackupError::Refused(refused))) if is_gap(refused.reason) => {
                return Ok(Err(refused.reason));
            }
            entries => entries?,
        };
        let first = entries.remove(0);
        if first.stamp.0 != last.stamp || hex(&digest_of(&first)) != last.digest {
            return Ok(Err(Refusal::OtherHistory));
        }
        let mut open = Open::new(last);
        open.take(entries, now_ms, &mut self.samples.borrow_mut());
        Ok(Ok(Reading { reader, open }))
    }

    /// Notes that entries are missing: a base must follow.
    fn gap(&self, claimed: &mut Claimed, why: &str) -> Result<(), Stopped> {
        let ms = claimed.now(&self.config);
        let after = claimed.head.last.take().map_or(0, |last| last.stamp);
        let history = claimed.head.history();
        let from_ms = Some(claimed.head.upto_ms);
        claimed.head.gaps.push(Gap { after, upto: 0, ms, from_ms, why: why.into(), history });
        if why != ANOTHER_HISTORY {
            self.tell(|status| status.gaps += 1);
        }
        self.swap(claimed)
    }

    /// Begins with a base, and the log from then on.
    fn begin_anew(&self, claimed: &mut Claimed) -> Result<Reading, Stopped> {
        let begun = self.tap.log(0)?;
        let (first, position) = (first_needed(&begun), begun.began().0);
        // The entry before the first one is known from now on: whatever happens, this can be gone on with.
        let reader = Kept::new(self.tap.log(position.saturating_sub(1))?);
        drop(begun);
        let mut entries = self.some_entries(&reader)?;
        let before = entries.remove(0);
        let digest = hex(&digest_of(&before));
        let last = LastEntry { stamp: before.stamp.0, position, digest };
        claimed.head.last = Some(last.clone());
        let mut open = Open::new(last);
        open.take(entries, claimed.now(&self.config), &mut self.samples.borrow_mut());
        self.base(claimed, first, true)?;
        Ok(Reading { reader, open })
    }

    /// The next entries, at least one.
    fn some_entries(&self, reader: &Kept) -> Result<Vec<Sealed>, Stopped> {
        loop {
            let entries = self.read(reader)?;
            if !entries.is_empty() {
                return Ok(entries);
            }
            if self.is_to_stop() {
                return Err(Stopped::Asked);
            }
        }
    }

    /// The history that a base of a server begins, by its ordered state; none if it goes on with the newest.
    fn history_begun(&self, head: &Head, state: &[u8], ms: u64) -> Result<Option<History>, Stopped> {
        if head.bases.is_empty() {
            return Ok(None);
        }
        let lost = |why: &dyn std::fmt::Display| BackupError::Lost(format!("the state it sent: {why}"));
        let saved = Saved::parse(state).map_err(|e| lost(&e))?;
        let views = Replica::restored(&saved).map_err(|e| lost(&e))?.views;
        let catalogue = Catalogue::of(&*self.store, head.clone());
        let mut continues = (Stamp::ZERO, head.history());
        for history in (0..=head.history()).rev() {
            let shared = match catalogue.shared(history, &views) {
                Err(ArchiveError::Store(error)) => return Err(error.into()),
                // Nothing is known of an object that cannot be read.
                shared => shared.ok().flatten().unwrap_or(Stamp::ZERO),
            };
            if history == head.history() && shared > Stamp::ZERO && shared == head.end_of(history) {
                return Ok(None);
            }
            if shared > continues.0 {
                continues = (shared, history);
            }
        }
        let (after, of) = continues;
        Ok(Some(History { of, after: after.0, ms }))
    }

    /// Puts a base.
    fn base(&self, claimed: &mut Claimed, first: u64, begins_anew: bool) -> Result<(), Stopped> {
        let base = self.tap.base()?;
        let (stamp, space, ms) = (base.stamp(), claimed.head.space(), claimed.now(&self.config));
        let begun = match begins_anew {
            true => self.history_begun(&claimed.head, &base.state(), ms)?,
            false => None,
        };
        let mut pieces = Pieces {
            store: &*self.store,
            space,
            stamp,
            ms,
            count: 0,
            before: [0; 32],
            bytes: 0,
            slowest: Duration::ZERO,
        };
        let pages = self.put_pieces(base, &mut pieces);
        if pages.is_err() {
            // Nothing names them, and the next attempt's are others. A store that is away keeps nobody.
            let begun = Instant::now();
            let mut all = (0..pieces.count).take_while(|_| begun.elapsed() < REMOVING);
            all.all(|piece| self.store.remove(&piece_name(stamp.0, ms, piece)).is_ok());
        }
        let pages = pages?;
        let Pieces { count, before, bytes, .. } = pieces;
        let head = &mut claimed.head;
        let is_another = begun.is_some();
        head.histories.extend(begun);
        let base = Base {
            stamp: stamp.0,
            first: first.min(stamp.0 + 1),
            ms,
            pieces: count,
            pages,
            bytes,
            view: head.view.0,
            digest: hex(&before),
            history: head.history(),
        };
        let gaps = head.add_base(base);
        self.swap(claimed)?;
        self.tell(|status| {
            (status.bases, status.bytes) = (status.bases + 1, status.bytes + bytes);
            if is_another {
                (status.histories, status.gaps) = (status.histories + 1, status.gaps + gaps);
            }
        });
        Ok(())
    }

    /// Puts the pieces of a base. Gives the number of its pages.
    fn put_pieces(
        &self,
        base: tercel::backup::stream::Base,
        pieces: &mut Pieces<'_>,
    ) -> Result<u64, Stopped> {
        for piece in base.state().chunks(PIECE_BYTES) {
            pieces.put(Kind::State, piece.to_vec())?;
        }
        let mut held = Vec::new();
        let pages = base.pages(|part| -> Result<(), Stopped> {
            if self.is_to_stop() {
                return Err(Stopped::Asked);
            }
            held.extend_from_slice(part);
            if held.len() >= PIECE_BYTES {
                pieces.put(Kind::Pages, std::mem::take(&mut held))?;
            }
            Ok(())
        });
        let pages = pages.map_err(|error| match &error {
            Stopped::Server(lost) => pieces.too_slow(lost).map_or(error, Stopped::Store),
            _ => error,
        })?;
        if !held.is_empty() {
            pieces.put(Kind::Pages, held)?;
        }
        Ok(pages)
    }

    /// Puts what is held as an object.
    fn put(&self, claimed: &mut Claimed, open: &mut Open) -> Result<(), Stopped> {
        let view = claimed.head.view;
        let head = &mut claimed.head;
        let history = head.history();
        let is_behind =
            |run: &Run| (run.view, run.history, run.position_end()) == (view, history, open.behind.position);
        let run = head.runs.last().filter(|run| is_behind(run));
        let before: Digest = head.runs.last().map_or([0; 32], |run| unhex(&run.digest));
        let is_new = run.is_none();
        let (Some(first), Some(last)) = (open.entries.first(), open.entries.last()) else { return Ok(()) };
        let (first, last) = (first.clone(), last.clone());
        let mut contents = Vec::with_capacity(open.bytes + 32 * open.entries.len());
        open.entries.iter().for_each(|entry| put_entry(entry, &mut contents));
        let count = open.entries.len() as u64;
        let object = Object {
            kind: Kind::Log,
            space: head.space(),
            before,
            first: first.stamp,
            position: open.behind.position + 1,
            last: last.stamp,
            end: open.behind.position + count,
            times: open.times.iter().map(|(ms, stamp)| (*ms, *stamp)).collect(),
            contents,
        };
        let name = log_name(view, first.stamp.0, last.stamp.0);
        let (bytes, digest) = put_log(&*self.store, &name, object)?;
        let ms = open.times.last_key_value().map_or(0, |(ms, _)| *ms);
        if is_new {
            head.runs.push(Run {
                view,
                first: first.stamp.0,
                position: open.behind.position + 1,
                last: 0,
                last_ms: 0,
                before: hex(&before),
                digest: String::new(),
                bytes: 0,
                count: 0,
                history,
            });
        }
        if let Some(run) = head.runs.last_mut() {
            (run.last, run.last_ms, run.digest) = (last.stamp.0, ms, hex(&digest));
            (run.bytes, run.count) = (run.bytes + bytes, run.count + count);
        }
        let end = open.end();
        head.last = Some(end.clone());
        head.upto_ms = head.upto_ms.max(ms);
        self.swap(claimed)?;
        *open = Open::new(end);
        self.tell(|status| (status.objects, status.bytes) = (status.objects + 1, status.bytes + bytes));
        Ok(())
    }

    /// Nothing was committed: that is told now and then, so that this moment can be gone back to.
    fn idle(&self, claimed: &mut Claimed, open: &Open, now: u64) -> Result<(), Stopped> {
        let every = self.config.every.as_millis() as u64;
        if !open.entries.is_empty() || now < claimed.head.upto_ms.saturating_add(every.max(1_000)) {
            return Ok(());
        }
        claimed.head.upto_ms = now;
        self.swap(claimed)
    }

    /// Removes what is older than is kept: bases but for the newest that is old enough, and the log before
    /// it.
    fn remove_old(&self, claimed: &mut Claimed) -> Result<(), Stopped> {
        let now = claimed.now(&self.config);
        let oldest_ms = now.saturating_sub(self.config.keep.as_millis() as u64);
        let bases = &mut claimed.head.bases;
        let gone = bases.iter().rposition(|base| base.ms <= oldest_ms).unwrap_or(0);
        if gone == 0 {
            return Ok(());
        }
        let removed: Vec<Base> = bases.drain(..gone).collect();
        let (history, first) = bases.first().map_or((0, u64::MAX), |base| (base.history, base.first));
        let is_kept = |gap: &Gap| gap.history == history && (gap.upto == 0 || gap.upto >= first);
        claimed.head.gaps.retain(|gap| gap.history > history || is_kept(gap));
        let catalogue = Catalogue::of(&*self.store, claimed.head.clone());
        let old = catalogue.cut_before(history, first, &mut claimed.head)?;
        // What the head does not name counts for nothing, so it goes after that.
        self.swap(claimed)?;
        for base in removed {
            for name in self.store.list(&base_begin(base.stamp, base.ms))? {
                self.store.remove(&name)?;
            }
        }
        old.iter().try_for_each(|name| self.store.remove(name))?;
        Ok(())
    }
}

/// The sentence about a server that fails. The errors of backups speak of a command that is run again.
fn of_server(error: &BackupError) -> String {
    match error {
        BackupError::Lost(why) => format!("the connection to the server was lost ({why})"),
        BackupError::Refused(refused) => format!("the server: {}", refused.text),
        error => error.to_string(),
    }
}

/// The reason of a gap before another history.
const ANOTHER_HISTORY: &str = "the server's log is another history";

/// The reasons of gaps of one history.
const BOUND_REACHED: &str = "the log's bound was reached before the archive had all of it";
const NOT_KEPT: &str = "the log had gone on before this writer came: it is kept for an archive from its last entry on, within half of its bound";

/// The reason for which a reader of a server's log cannot begin.
fn of_reader(error: BackupError) -> Stopped {
    match error {
        BackupError::Refused(refused) if refused.reason == Refusal::NotLeader => {
            Stopped::Follows(refused.text)
        }
        error => error.into(),
    }
}

/// Says whether a server's refusal means that the log is not there to go on with.
fn is_gap(reason: Refusal) -> bool {
    matches!(reason, Refusal::TooOld | Refusal::OtherHistory)
}

/// The stamp of the first entry behind the place where a reader began: stamps rise by one within a view.
fn first_needed(reader: &LogReader) -> u64 {
    let (position, stable) = reader.began();
    reader.stable_stamp().0.saturating_sub(stable.saturating_sub(position)) + 1
}

/// The head as this writer wrote it last.
struct Claimed {
    head: Head,
    /// The bytes of the object in the store; none before there is one.
    bytes: Option<Vec<u8>>,
}

impl Claimed {
    /// The moment, which never goes back within an archive.
    fn now(&self, config: &Config) -> u64 {
        (config.clock)().max(self.head.upto_ms)
    }

    /// A base is due after its time, or when a restore would read four times as much of the log.
    fn base_is_due(&self, config: &Config) -> bool {
        let Some(base) = self.head.bases.last() else { return true };
        let runs = self.head.runs.iter().filter(|run| run.history == base.history && run.last > base.stamp);
        let log: u64 = runs.map(|run| run.bytes).sum();
        let is_old = self.now(config) >= base.ms.saturating_add(config.base_every.as_millis() as u64);
        let is_far = log > (4 * base.bytes).max(LOG_BYTES_MIN);
        (is_old || is_far) && self.head.last.as_ref().is_some_and(|last| last.stamp > base.stamp)
    }
}

/// Bytes of the log at which a base of few bytes is due.
const LOG_BYTES_MIN: u64 = 64 << 20;

/// The pause before a store that failed is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// The time in which pieces of a base that failed are removed.
const REMOVING: Duration = Duration::from_secs(2);

/// A reading of fewer bytes is followed by a pause.
const FEW_BYTES: usize = 64 << 10;
const PAUSE: Duration = Duration::from_millis(100);
