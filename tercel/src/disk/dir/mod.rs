//! The data directory: the process that has it open, its format, its space.
//!
//! A directory has the file `creating` while it is created. Only then is a creation begun again, from
//! nothing. A directory that lost its `format` is damaged. A directory that never had a `format` and has
//! other files is not ours.
//!
//! The invariant: while a [`DataDir`] exists, no other one, in any process, has the same directory.
//! Everything in it is reached below its descriptor: where its path leads later changes nothing.

use super::held::HeldDir;
use super::log::sync_dir;
use super::pages::RedbPages;
use super::secret::Secret;
use super::votes::{Votes, is_of_member, mark_removed};
use super::{DiskError, log};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use tercel_engine::order::quorum::members::Members;
use tercel_wire::id::{EntryId, MemberId, SpaceId, Stamp, ViewId};

/// The file that makes a directory a backup: its manifest.
pub(crate) const BACKUP_NAME: &str = "backup.toml";

/// Says whether the directory is that of a member of a group.
pub fn is_member(path: &Path) -> bool {
    HeldDir::open(path).is_ok_and(|dir| is_of_member(&dir))
}

/// Says whether a directory is a finished backup.
pub fn is_backup(dir: &Path) -> bool {
    dir.join(BACKUP_NAME).exists()
}

/// An open data directory.
#[derive(Debug)]
pub struct DataDir {
    held: HeldDir,
    space: Space,
    created: bool,
    _lock: Lock,
}

/// A locked file, let go of when this is dropped, however an opening ends.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing would not do while a child process that was just forked still has a copy of the descriptor.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// The fixed properties of a space, from its creation on. The file `space.toml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    /// The name of the space among all spaces, drawn at random.
    pub id: SpaceId,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// The day of its creation, UTC, as `YYYY-MM-DD`. For people.
    pub created: String,
    /// The number of the first view of this history of the space; 0 unless it was restored from a backup.
    pub view_first: u32,
}

/// The purpose for which a directory is created. An unfinished creation can be begun again only for the same
/// purpose: a server that took an unfinished restore for a new space would serve it empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A new space.
    Space,
    /// A backup of one.
    Backup,
    /// A space made from a backup.
    Restore,
    /// A member's copy of its group's space, to be adopted.
    Copy,
}

impl Purpose {
    /// Returns the content of the file `creating`.
    fn text(self) -> &'static str {
        match self {
            Purpose::Space => "",
            Purpose::Backup => "a backup\n",
            Purpose::Restore => "a restore\n",
            Purpose::Copy => "a copy\n",
        }
    }

    /// The command that can go on with an unfinished creation.
    fn command(self) -> &'static str {
        match self {
            Purpose::Space | Purpose::Copy => "tercel serve",
            Purpose::Backup => "tercel backup",
            Purpose::Restore => "tercel restore",
        }
    }

    fn read(dir: &HeldDir) -> Result<Purpose, DiskError> {
        let text = dir.read_small(CREATING_NAME)?;
        let all = [Purpose::Space, Purpose::Backup, Purpose::Restore, Purpose::Copy];
        let found = all.into_iter().find(|p| p.text() == text);
        let what = || format!("it says {text:?} instead of what is created");
        found.ok_or_else(|| damaged(&dir.file(CREATING_NAME), what()))
    }
}

/// The parameters for a data directory that does not exist yet.
#[derive(Debug, Clone)]
pub struct NewSpace {
    /// The name of the space; drawn at random if there is none.
    pub id: Option<SpaceId>,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Bytes of the log's first segment; [`LogConfig::segment_bytes`](super::log::LogConfig::segment_bytes).
    pub segment_bytes: u32,
}

impl DataDir {
    /// Opens the data directory `path`, creating it as `new` says if it does not exist or is empty.
    pub fn open(path: &Path, new: &NewSpace) -> Result<DataDir, DiskError> {
        if !path.join(FORMAT_NAME).exists() {
            refuse_making(path)?;
        }
        make_dir(path)?;
        let held = HeldDir::open(path)?;
        refuse_foreign(&held)?;
        refuse_strange(&held)?;
        let lock = lock(&held)?;
        let created = is_uncreated(&held, Purpose::Space)?;
        if created {
            let space = Space {
                id: new.id.map_or_else(|| random_u64(path).map(SpaceId), Ok)?,
                page_bytes: new.page_bytes,
                created: today(),
                view_first: 0,
            };
            create(&held, Purpose::Space, &space, log::behind(Stamp::ZERO), new.segment_bytes, || {
                Ok::<(), DiskError>(())
            })?;
        } else {
            check_format(&held)?;
            remove_left_by_repairs(&held)?;
            move_adopted(&held)?;
            DataDir::drop_copy(path)?;
        }
        let space = Space::read(&held)?;
        Ok(DataDir { held, space, created, _lock: lock })
    }

    /// Says whether [`DataDir::open`] would make a new space there, as far as that is visible without
    /// opening.
    pub fn is_absent(path: &Path) -> bool {
        let is_uncreated = |dir| is_uncreated(&dir, Purpose::Space).unwrap_or(false);
        !path.exists() || HeldDir::open(path).is_ok_and(is_uncreated)
    }

    /// Sees that [`DataDir::create_copy`] would find nothing else there.
    pub(crate) fn see_vacant(path: &Path, purpose: Purpose) -> Result<(), DiskError> {
        if !path.exists() {
            return Ok(());
        }
        let held = HeldDir::open(path)?;
        refuse_foreign(&held)?;
        match is_uncreated(&held, purpose)? {
            true => Ok(()),
            false => Err(DiskError::Occupied { dir: path.into() }),
        }
    }

    /// The place of a copy of the space that the directory's member takes.
    pub(crate) fn copy_of(path: &Path) -> PathBuf {
        path.join(COPY_NAME)
    }

    /// Removes what there is of a copy that was not adopted.
    pub(crate) fn drop_copy(path: &Path) -> Result<(), DiskError> {
        let copy = DataDir::copy_of(path);
        match fs::remove_dir_all(&copy) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(DiskError::io("remove", &copy)(error))
            }
            _ => Ok(()),
        }
    }

    /// Makes the copy, which is whole, the one that the next opening moves in. A member that is not sure of
    /// its log is not sure of the copy either: it may have acknowledged more.
    pub(crate) fn adopt_copy(&self) -> Result<(), DiskError> {
        log::pass_doubt_on(&self.log_dir()?, &self.held.below(COPY_NAME, false)?.below(LOG_NAME, false)?)?;
        self.held.rename(COPY_NAME, ADOPTED_NAME)?;
        self.held.sync()
    }

    /// Creates the directory `path` for a copy of a space, with an empty log behind an entry and its stamp.
    /// `fill` gets the file of the page store, without pages, and fills it; the directory counts as created
    /// only then. What an earlier attempt for the same purpose has left is begun again.
    pub fn create_copy<E: From<DiskError>>(
        path: &Path,
        purpose: Purpose,
        space: &Space,
        before: (Stamp, EntryId),
        segment_bytes: u32,
        fill: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<DataDir, E> {
        make_dir(path)?;
        let held = HeldDir::open(path)?;
        refuse_foreign(&held)?;
        let lock = lock(&held)?;
        if !is_uncreated(&held, purpose)? {
            return Err(DiskError::Occupied { dir: path.into() }.into());
        }
        create(&held, purpose, space, before, segment_bytes, || fill(&held.file(PAGES_NAME)))?;
        Ok(DataDir { held, space: space.clone(), created: true, _lock: lock })
    }

    /// The space in it.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Says whether this opening created the space.
    pub fn is_new(&self) -> bool {
        self.created
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        self.held.path()
    }

    /// Opens the directory of the log's segments.
    pub fn log_dir(&self) -> Result<HeldDir, DiskError> {
        match self.held.has(LOG_NAME) {
            true => self.held.below(LOG_NAME, false),
            // A log without its directory has lost all of its segments.
            false => Err(log::missing(&self.held.file(LOG_NAME), 1)),
        }
    }

    /// Says whether it is of a member of a group.
    pub(crate) fn is_member(&self) -> bool {
        is_of_member(&self.held)
    }

    /// The member was removed from its group. What cannot be noted is found out by the next process anew.
    pub(crate) fn was_removed(&self) {
        let _ = mark_removed(&self.held);
    }

    /// The secret of its group, if it has one.
    ///
    /// # Errors
    /// If the file cannot be read, or is no secret.
    pub(crate) fn secret(&self) -> Result<Option<Secret>, DiskError> {
        Secret::of(&self.held)
    }

    /// Gives it the secret of its group.
    pub(crate) fn give_secret(&self, secret: &Secret) -> Result<(), DiskError> {
        secret.write(&self.held)
    }

    /// Opens the file of votes of a member whose log ends in a view, and counts the start.
    ///
    /// # Errors
    /// If the file does not say what was promised: the member must not vote.
    pub(crate) fn votes(&self, log: ViewId, process: u64) -> Result<Votes, DiskError> {
        Votes::open(&self.held, log, process)
    }

    /// Makes it that of a member of a group, with these members.
    pub(crate) fn become_member(&self, group: u64, me: MemberId, members: Members) -> Result<(), DiskError> {
        Votes::create(&self.held, group, (me, self.space.promised()), members)
    }

    /// Makes it that of the only member of another group, which begins another history of the space with
    /// this view.
    pub(crate) fn begin_history(
        &self,
        group: u64,
        me: MemberId,
        members: Members,
        view_first: u32,
    ) -> Result<(), DiskError> {
        let space = Space { view_first, ..self.space.clone() };
        Votes::create(&self.held, group, (me, space.promised()), members)?;
        self.held.write_whole(SPACE_NAME, &space.text())
    }

    /// Opens the page store.
    pub fn pages(&self) -> Result<RedbPages, DiskError> {
        RedbPages::open_in(&self.held, Path::new(PAGES_NAME), self.space.page_bytes)
    }

    /// The file of the page store.
    pub fn pages_file(&self) -> PathBuf {
        self.held.file(PAGES_NAME)
    }
}

/// A data directory that is only looked at. Its lock keeps it from being opened meanwhile.
#[derive(Debug)]
pub(crate) struct Looked {
    /// The version in its `format`, checked against this build's.
    pub format: Result<(), DiskError>,
    /// The content of `space.toml`.
    pub space: Result<Space, DiskError>,
    /// None where no lock can be had: on read-only media without one, or where it is another user's.
    _lock: Option<Lock>,
}

impl Looked {
    /// Locks the directory and reads its small files; changes nothing but the lock.
    pub(crate) fn at(path: &Path) -> Result<Looked, DiskError> {
        // A directory that lost its `format` still has the rest. A directory with an interrupted creation
        // holds nothing.
        let not_ours = || DiskError::NotOurs { dir: path.into() };
        if !path.exists() {
            return Err(not_ours());
        }
        let held = HeldDir::open(path)?;
        let is_without_format = holds_space(&held) && !held.has(CREATING_NAME);
        if !held.has(FORMAT_NAME) && !is_without_format {
            return Err(not_ours());
        }
        refuse_strange(&held)?;
        if held.has(ADOPTED_NAME) {
            let command = Purpose::Copy.command();
            return Err(DiskError::Unfinished { dir: path.into(), command });
        }
        let lock = lock_to_look(&held)?;
        Ok(Looked { format: check_format(&held), space: Space::read(&held), _lock: lock })
    }
}

/// Writes a directory's `format` anew.
pub(crate) fn write_format(path: &Path) -> Result<(), DiskError> {
    write_format_in(&HeldDir::open(path)?)
}

fn write_format_in(dir: &HeldDir) -> Result<(), DiskError> {
    dir.write_whole(FORMAT_NAME, &format!("tercel data, format {FORMAT_VERSION}\n"))
}

impl Space {
    /// The view that a member promises when it begins: those of a space that was restored are behind those of
    /// the history that it was taken from.
    pub(crate) fn promised(&self) -> ViewId {
        ViewId::new(self.view_first.saturating_sub(1), 0)
    }

    /// Writes the `space.toml` of a directory anew.
    pub(crate) fn write(&self, path: &Path) -> Result<(), DiskError> {
        write_whole(&path.join(SPACE_NAME), &self.text())
    }

    fn read(dir: &HeldDir) -> Result<Space, DiskError> {
        let (text, path) = (dir.read_small(SPACE_NAME)?, &dir.file(SPACE_NAME));
        // Directories made by the first builds have no sum.
        if let Some((summed, sum)) = text.rsplit_once("sum = ")
            && sum.trim_end() != format!("\"{:08x}\"", crc32fast::hash(summed.as_bytes()))
        {
            return Err(damaged(path, "its sum does not match".into()));
        }
        let field = |name: &str| {
            let pairs = text.lines().filter_map(|line| line.split_once('='));
            let value = pairs.map(|(key, value)| (key.trim(), value.trim())).find(|&(key, _)| key == name);
            let missing = || damaged(path, format!("the line `{name} = ...` is missing"));
            value.map(|(_, value)| value.to_owned()).ok_or_else(missing)
        };
        let bad = |name: &str| damaged(path, format!("the value of `{name}` is not one"));
        let quoted = |name: &str| {
            let value = field(name)?;
            value
                .strip_prefix('"')
                .and_then(|v| v.strip_suffix('"'))
                .map(str::to_owned)
                .ok_or_else(|| bad(name))
        };
        Ok(Space {
            id: SpaceId(u64::from_str_radix(&quoted("space")?, 16).map_err(|_| bad("space"))?),
            page_bytes: field("page_bytes")?.parse().map_err(|_| bad("page_bytes"))?,
            created: quoted("created")?,
            view_first: match field("view_first") {
                Ok(first) => first.parse().map_err(|_| bad("view_first"))?,
                // A space that was never restored has no such line.
                Err(_) => 0,
            },
        })
    }

    fn text(&self) -> String {
        let Space { id, page_bytes, created, view_first } = self;
        let restored = match view_first {
            0 => String::new(),
            first => format!("view_first = {first}\n"),
        };
        let text = format!(
            "# Fixed when the space was created. Not a configuration: changing it makes the data unreadable.\n\
             space = \"{:016x}\"\npage_bytes = {page_bytes}\ncreated = \"{created}\"\n{restored}",
            id.0
        );
        let sum = crc32fast::hash(text.as_bytes());
        format!("{text}sum = \"{sum:08x}\"\n")
    }
}

/// The number of the first view of another history of a space than the one that has come to `view`; `None` if
/// there is none left.
pub(crate) fn view_apart(dir: &Path, view: u32) -> Result<Option<u32>, DiskError> {
    let jump = LIVES_MAX + (random_u64(dir)? % u64::from(JUMP_MAX)) as u32;
    // Every life of a server takes one, and they must not run out.
    Ok(view.checked_add(jump).filter(|first| *first < u32::MAX - LIVES_MAX))
}

/// Starts that the old server may still see without coming to views of the new history: one a minute for a
/// month.
const LIVES_MAX: u32 = 1 << 16;

/// The largest distance between the beginnings of two histories. Two restores of one backup that each see a
/// thousand lives meet once in eight thousand times. A space can be restored from a backup of a restored
/// space some five hundred times.
const JUMP_MAX: u32 = 1 << 24;

/// Makes a directory that is its user's alone, and what is missing above it, durably.
fn make_dir(path: &Path) -> Result<(), DiskError> {
    make_dir_for(path, 0o700)
}

fn make_dir_for(path: &Path, mode: u32) -> Result<(), DiskError> {
    let Some(parent) = path.parent().filter(|_| !path.exists()) else { return Ok(()) };
    // A relative path of one part has the parent "", which is the current directory.
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    make_dir_for(parent, 0o777)?;
    match fs::DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(DiskError::io("create", path)(error))
        }
        _ => sync_dir(parent),
    }
}

/// Refuses a new space where an unfinished restore of several would put one, or where it makes one.
pub(crate) fn refuse_making(path: &Path) -> Result<(), DiskError> {
    let Some(parent) = path.parent() else { return Ok(()) };
    let data = match parent.file_name() {
        Some(name) if name == MAKING_NAME => parent.parent(),
        _ => Some(parent).filter(|parent| parent.join(MAKING_NAME).exists()),
    };
    data.map_or(Ok(()), |data| {
        Err(DiskError::Unfinished { dir: data.into(), command: "tercel restore` or `tercel archive restore" })
    })
}

/// Removes what an interrupted repair made beside a log that is still there. A later repair must not take it
/// for that log when the log has gone on.
fn remove_left_by_repairs(dir: &HeldDir) -> Result<(), DiskError> {
    if !dir.has(LOG_NAME) || !dir.has(LOG_MADE_NAME) {
        return Ok(());
    }
    let made = dir.below(LOG_MADE_NAME, false)?;
    made.names()?.iter().try_for_each(|name| made.remove(name))?;
    dir.remove_dir(LOG_MADE_NAME)
}

/// Moves pages and log of a copy that was adopted to their places. After a crash the next opening goes on
/// with what is still in the copy.
fn move_adopted(dir: &HeldDir) -> Result<(), DiskError> {
    if !dir.has(ADOPTED_NAME) {
        return Ok(());
    }
    let copy = dir.below(ADOPTED_NAME, false)?;
    // The name is written last and removed last: without it this is no whole copy, and takes nothing's place.
    if !copy.has(FORMAT_NAME) && (copy.has(PAGES_NAME) || copy.has(LOG_NAME)) {
        let partial = dir.file(ADOPTED_NAME);
        return fs::remove_dir_all(&partial).map_err(DiskError::io("remove", &partial));
    }
    if copy.has(PAGES_NAME) {
        dir.take_in(&copy, PAGES_NAME)?;
    }
    if copy.has(LOG_NAME) {
        if dir.has(LOG_NAME) {
            let old = dir.below(LOG_NAME, false)?;
            old.names()?.iter().try_for_each(|name| old.remove(name))?;
            dir.remove_dir(LOG_NAME)?;
        }
        dir.take_in(&copy, LOG_NAME)?;
    }
    dir.sync()?;
    copy.names()?.iter().try_for_each(|name| copy.remove(name))?;
    dir.remove_dir(ADOPTED_NAME)?;
    dir.sync()
}

/// Refuses a directory that has files but none of ours, with `NotOurs`. It belongs to another program, and a
/// mistyped path must not fill it.
fn refuse_foreign(dir: &HeldDir) -> Result<(), DiskError> {
    if dir.has(LOCK_NAME) || dir.has(FORMAT_NAME) || holds_space(dir) || dir.names()?.is_empty() {
        return Ok(());
    }
    Err(DiskError::NotOurs { dir: dir.path().into() })
}

/// Says whether the directory has files of a space, though its `format` may be gone.
fn holds_space(dir: &HeldDir) -> bool {
    dir.has(SPACE_NAME) || (dir.has(PAGES_NAME) && dir.has(LOG_NAME))
}

/// Refuses a file or directory that has a name of ours and is of another kind, with `Strange`. Another
/// program or the operator put it there: neither opening nor repairing could say what is meant.
fn refuse_strange(dir: &HeldDir) -> Result<(), DiskError> {
    for (name, wanted) in [(LOG_NAME, "a directory"), (PAGES_NAME, "a file")] {
        if dir.is_dir(name).is_some_and(|is_dir| is_dir != (wanted == "a directory")) {
            return Err(DiskError::Strange { path: dir.file(name), wanted });
        }
    }
    Ok(())
}

/// Says whether the directory holds nothing that a creation for this purpose could destroy.
fn is_uncreated(dir: &HeldDir, purpose: Purpose) -> Result<bool, DiskError> {
    if dir.has(FORMAT_NAME) {
        return Ok(false);
    }
    if dir.has(CREATING_NAME) {
        return match Purpose::read(dir)? {
            begun if begun == purpose => Ok(true),
            begun => Err(DiskError::Unfinished { dir: dir.path().into(), command: begun.command() }),
        };
    }
    match dir.names()?.iter().all(|name| name == LOCK_NAME || name == CREATING_TEMPORARY_NAME) {
        true => Ok(true),
        false => Err(damaged(&dir.file(FORMAT_NAME), "it is missing".into())),
    }
}

impl DataDir {
    /// Sees whether no process has the directory.
    ///
    /// # Errors
    /// `Locked` if one has; if it is no directory or cannot be looked at.
    pub fn see_free(path: &Path) -> Result<(), DiskError> {
        lock_to_look(&HeldDir::open(path)?).map(drop)
    }
}

/// Takes the lock to look at a directory, as far as that needs no write.
fn lock_to_look(dir: &HeldDir) -> Result<Option<Lock>, DiskError> {
    let may_not = |kind| matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem);
    match lock(dir) {
        Err(DiskError::Io { source, .. }) if may_not(source.kind()) => {}
        locked => return locked.map(Some),
    }
    match dir.open_file(LOCK_NAME, OFlags::RDONLY) {
        Ok(file) => take(file, dir).map(Some),
        // On read-only media no server can be at work, and of another user's lock nothing can be known.
        Err(error) if may_not(error.kind()) || error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(DiskError::io("open", &dir.file(LOCK_NAME))(error)),
    }
}

/// Takes the lock and leaves our process id in its file. The kernel drops the lock when the process ends,
/// however it ends, so the file itself means nothing and stays.
fn lock(dir: &HeldDir) -> Result<Lock, DiskError> {
    let opened = dir.open_file(LOCK_NAME, OFlags::RDWR | OFlags::CREATE);
    // There may be no such file yet: it is the directory that refuses it.
    let file = opened.map_err(DiskError::io("make a lock file in", dir.path()))?;
    take(file, dir).and_then(|mut lock| {
        let written = lock.0.set_len(0).and_then(|()| writeln!(lock.0, "{}", std::process::id()));
        written.map(|()| lock).map_err(DiskError::io("write", &dir.file(LOCK_NAME)))
    })
}

/// Takes the lock on an open file.
fn take(file: File, dir: &HeldDir) -> Result<Lock, DiskError> {
    let path = dir.file(LOCK_NAME);
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let pid = dir.read_small(LOCK_NAME).ok().and_then(|text| text.trim().parse().ok());
            Err(DiskError::Locked { dir: dir.path().into(), pid })
        }
        Err(error) => Err(DiskError::io("lock", &path)(error.into())),
    }
}

fn create<E: From<DiskError>>(
    dir: &HeldDir,
    purpose: Purpose,
    space: &Space,
    before: (Stamp, EntryId),
    segment_bytes: u32,
    fill: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    dir.write_whole(CREATING_NAME, purpose.text())?;
    dir.write_whole(SPACE_NAME, &space.text())?;
    log::create_in(&dir.below(LOG_NAME, true)?, space.id, before, segment_bytes)?;
    RedbPages::create_in(dir, Path::new(PAGES_NAME), space.page_bytes)?;
    fill()?;
    dir.sync()?;
    write_format_in(dir)?;
    // One that stays means nothing beside a `format`.
    dir.remove(CREATING_NAME)?;
    Ok(())
}

fn check_format(dir: &HeldDir) -> Result<(), DiskError> {
    let (file, text) = (dir.file(FORMAT_NAME), dir.read_small(FORMAT_NAME)?);
    let found =
        text.strip_prefix("tercel data, format ").and_then(|version| version.trim().parse::<u16>().ok());
    match found {
        Some(FORMAT_VERSION) => Ok(()),
        Some(found) if found > FORMAT_VERSION => {
            Err(DiskError::NewerFormat { file, found, known: FORMAT_VERSION })
        }
        // The first one was 1.
        Some(found @ 1..) => Err(DiskError::OlderFormat { file, found, known: FORMAT_VERSION }),
        _ => Err(damaged(&file, format!("it says {text:?} instead of a format's version"))),
    }
}

/// Replaces a file whole: after a crash it has the old text or the new.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<(), DiskError> {
    let (dir, name) = HeldDir::around(path)?;
    dir.write_whole(name, text)
}

pub(crate) fn read_small(path: &Path) -> Result<String, DiskError> {
    let (dir, name) = HeldDir::around(path)?;
    dir.read_small(name)
}

fn damaged(file: &Path, what: String) -> DiskError {
    DiskError::Damaged { file: file.into(), position: None, what }
}

/// From the kernel, which waits for its pool if the machine has only just started.
pub(crate) fn random_u64(path: &Path) -> Result<u64, DiskError> {
    let mut bytes = [0; 8];
    let got = getrandom(&mut bytes[..], GetRandomFlags::empty());
    got.map_err(|error| DiskError::io("draw random numbers for", path)(error.into()))?;
    Ok(u64::from_le_bytes(bytes))
}

pub(crate) fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    tercel_engine::time::date_of_day(seconds / 86_400)
}

/// The version of the directory that this build writes and reads: its layout, the log, the page store.
pub const FORMAT_VERSION: u16 = 9;

const LOCK_NAME: &str = "lock";
/// The directory in which a restore makes several spaces, beside the places that they are moved to.
pub(crate) const MAKING_NAME: &str = "restore.unfinished";
pub(crate) const FORMAT_NAME: &str = "format";
const CREATING_NAME: &str = "creating";
/// The name of `creating` during its own creation.
const CREATING_TEMPORARY_NAME: &str = "creating.tmp";
pub(crate) const SPACE_NAME: &str = "space.toml";
pub(crate) const LOG_NAME: &str = "log";
/// The log that a repair makes, until it takes the log's place.
pub(crate) const LOG_MADE_NAME: &str = "log.repaired";
pub(crate) const PAGES_NAME: &str = "pages.redb";
/// A copy of the space that a member takes, and one that takes the place of its pages and log.
const COPY_NAME: &str = "copy";
const ADOPTED_NAME: &str = "copy.adopted";

#[cfg(test)]
mod tests;
