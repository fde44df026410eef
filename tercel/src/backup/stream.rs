//! A server's state and log as they come, for what keeps them elsewhere, such as an archive; and a space made
//! of them.

use std::path::Path;

use tercel_engine::order::Sealed;
use tercel_engine::replica::Replica;
use tercel_engine::replica::saved::Saved;
use tercel_wire::cursor::le32;
use tercel_wire::id::{LogPosition, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::message::Settle;
use tercel_wire::page::{PAGE_BYTES, Page};

use super::BackupError;
use super::fill::Filler;
use super::receive::{Begun, Follower, Remote, Way};
use super::set;
use super::tail::{Appender, Tail};
use crate::address::Addresses;
use crate::disk::dir::{DataDir, Purpose, Space, today, view_apart};
use crate::disk::log::LogConfig;
use crate::server::{Server, hold_log, tell_archive};

pub use super::staged::{Begun as Staging, Report, Staged};
pub use tercel_engine::server::ArchiveState;

/// The way to a server whose state and log are taken.
pub struct Tap(Remote);

impl Tap {
    /// A server in this process.
    pub fn of(server: &Server) -> Tap {
        Tap(Remote::Memory(server.handle()))
    }

    /// The server at an address, or the leader of a group.
    pub fn to(at: Addresses) -> Tap {
        Tap(Remote::new(at, Way { by_memory: crate::SharedMemory::Off, spin: None }))
    }

    /// Begins to read the log behind a position, or with 0 so that a base which is taken from now on can be
    /// gone on with. The log is kept from there on, within its bound, while this is read.
    ///
    /// # Errors
    /// `Refused` as too old if the log begins later, and as of another history if it ends before.
    pub fn log(&self, after: u64) -> Result<LogReader, BackupError> {
        Follower::new(&self.0, after).map(LogReader)
    }

    /// Tells the server, if it is one of this process, how its archive stands: everything up to a moment is
    /// there, in milliseconds since 1970. It is in the server's status and health from then on.
    pub fn tell(&self, state: ArchiveState, upto_ms: u64) {
        if let Remote::Memory(server) = &self.0 {
            tell_archive(server, state, upto_ms);
        }
    }

    /// Has the server, if it is one of this process, keep its log from a position on, within its bound, also
    /// while nothing reads it; with none no more. For a server that starts,
    /// [`ServerConfig::log_held_from`](crate::ServerConfig) is that.
    pub fn hold(&self, from: Option<u64>) {
        if let Remote::Memory(server) = &self.0 {
            hold_log(server, LogPosition(from.unwrap_or(u64::MAX)));
        }
    }

    /// Begins to take a base: the state now, and the pages as of it.
    ///
    /// # Errors
    /// As [`backup`](super::backup).
    pub fn base(&self) -> Result<Base, BackupError> {
        Begun::new(&self.0).map(Base)
    }
}

/// A reader of a server's log.
pub struct LogReader(Follower);

impl LogReader {
    /// The space.
    pub fn space(&self) -> SpaceId {
        self.0.space.id
    }

    /// The view that the server leads.
    pub fn view(&self) -> ViewId {
        self.0.begun.view
    }

    /// The position behind which it began, and the last stable position then.
    pub fn began(&self) -> (u64, u64) {
        (self.0.begun.position, self.0.begun.stable)
    }

    /// The last stable stamp when it began.
    pub fn stable_stamp(&self) -> Stamp {
        self.0.begun.stamp
    }

    /// The next stable entries, in order; none if none came for a second.
    ///
    /// # Errors
    /// As [`Tap::log`], and if the server is lost.
    pub fn next_entries(&mut self) -> Result<Vec<Sealed>, BackupError> {
        self.0.next()
    }

    /// Shows the server now and then that the reader lives, while it does something else.
    ///
    /// # Errors
    /// If the server is lost.
    pub fn keep_alive(&mut self) -> Result<(), BackupError> {
        self.0.keep_alive_alone()
    }
}

/// A base that a server has begun.
pub struct Base(Begun);

impl Base {
    /// The stamp that it is as of.
    pub fn stamp(&self) -> Stamp {
        self.0.stamp()
    }

    /// The ordered state, as bytes.
    pub fn state(&self) -> Vec<u8> {
        self.0.state_bytes()
    }

    /// Gives all pages, some whole ones at a time, and their number.
    ///
    /// # Errors
    /// As [`backup`](super::backup), and what `each` fails with.
    pub fn pages<E: From<BackupError>>(mut self, each: impl FnMut(&[u8]) -> Result<(), E>) -> Result<u64, E> {
        self.0.pages(each)
    }
}

/// The parts that a space is made of: a base, and the log behind it.
pub struct Parts<'a, E> {
    /// The space.
    pub space: SpaceId,
    /// The stamp of the base.
    pub base: Stamp,
    /// The ordered state of the space, as bytes.
    pub state: &'a [u8],
    /// The first entry of the log, if there is any.
    pub first: Option<Stamp>,
    /// The number of the highest view that the space is known to have had.
    pub view: u32,
    /// Gives all pages, some whole ones at a time, in the order of their ids.
    #[expect(clippy::type_complexity, reason = "a closure that is called with a closure")]
    pub pages: &'a mut dyn FnMut(&mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E>,
    /// Gives all entries, some at a time.
    #[expect(clippy::type_complexity, reason = "a closure that is called with a closure")]
    pub entries: &'a mut dyn FnMut(&mut dyn FnMut(&[Sealed]) -> Result<(), E>) -> Result<(), E>,
}

/// Makes a space in `data`, which must be empty or new, or hold an unfinished restore. Its history is another
/// one. Gives the number of its first view.
///
/// # Errors
/// If the parts are none of a space, or a file cannot be written; what `pages` and `entries` fail with. What
/// was begun stays and is known as unfinished.
pub fn assemble<E: From<BackupError>>(data: &Path, parts: Parts<'_, E>) -> Result<u32, E> {
    let Parts { space, base, state, first, view, pages, entries } = parts;
    let wrong = |what: String| E::from(BackupError::Damaged { dir: data.into(), what });
    let saved = Saved::parse(state).map_err(|e| wrong(format!("the state: {e}")))?;
    let replica = Replica::restored(&saved).map_err(|e| wrong(format!("the state: {e}")))?;
    if replica.stamp != base {
        return Err(wrong(format!("the state is as of commit {}, not {base}", replica.stamp)));
    }
    let view = view.max(replica.view().number);
    let none_left = || wrong("the space was restored so often that it has no views left".into());
    let apart = view_apart(data, view).map_err(BackupError::from)?;
    let view_first = apart.ok_or_else(none_left)?;
    let space = Space { id: space, page_bytes: PAGE_BYTES as u32, created: today(), view_first };
    let before = Tail::before_first(first, base);
    let fill = |file: &Path| -> Result<(), Outer<E>> {
        let mut filler = Filler::open(file).map_err(BackupError::from).map_err(E::from).map_err(Outer)?;
        pages(&mut |whole| {
            for bytes in whole.chunks(PAGE_BYTES) {
                let id = bytes.get(4..8).and_then(|_| PageId::new(le32(bytes, 4)));
                let id = id.filter(|id| Page::parse(bytes, *id).is_ok());
                let id = id.ok_or_else(|| wrong("a page is damaged".into()))?;
                filler.page(id, bytes.to_vec()).map_err(BackupError::from)?;
            }
            Ok(())
        })
        .map_err(Outer)?;
        filler.finish(base, first, &saved).map_err(BackupError::from).map_err(E::from).map_err(Outer)?;
        let appender = Appender::open(data, space.id).map_err(BackupError::from);
        let mut appender = appender.map_err(E::from).map_err(Outer)?;
        entries(&mut |some| Ok(appender.append(some).map_err(BackupError::from)?)).map_err(Outer)?;
        appender.finish().map_err(BackupError::from).map_err(E::from).map_err(Outer)
    };
    let segment_bytes = LogConfig::default().segment_bytes;
    DataDir::create_copy(data, Purpose::Restore, &space, before, segment_bytes, fill)
        .map_err(|Outer(error)| error)?;
    Ok(view_first)
}

/// The ends of the parts that a space of several has prepared, by the states of all at one cut; and what they
/// do not know, a sentence each.
pub fn ends_of(name: &str, of: usize, all: &[(SpaceId, Replica)]) -> (Vec<Settle>, Vec<String>) {
    set::ends(name, of, all)
}

/// The misfits of a state that is restored alone, a sentence each, which name from what it would be restored
/// together with the others.
pub fn misfits_of(state: &Replica, together: &str) -> Vec<String> {
    set::misfits_of(state, together)
}

/// Sees that a space can be restored into a directory. Nothing is changed.
///
/// # Errors
/// If something else is there, as [`assemble`] says.
pub fn see_vacant(data: &Path) -> Result<(), BackupError> {
    Ok(DataDir::see_vacant(data, Purpose::Restore)?)
}

/// Sees that names of spaces can be those of directories, each of its own.
///
/// # Errors
/// `Set` with the name that cannot.
pub fn check_names<T>(named: &[(String, T)]) -> Result<(), BackupError> {
    set::check_names(named)
}

/// Settles parts in a directory that is served by nobody.
///
/// # Errors
/// If it cannot be served, or a part cannot be settled.
pub fn settle_ends(dir: &Path, ends: Vec<Settle>) -> Result<(), BackupError> {
    set::settle(dir, ends)
}

/// An error of the caller, which a file's error becomes, too.
struct Outer<E>(E);

impl<E: From<BackupError>> From<crate::DiskError> for Outer<E> {
    fn from(error: crate::DiskError) -> Outer<E> {
        Outer(E::from(BackupError::from(error)))
    }
}
