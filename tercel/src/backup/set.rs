//! Backups of several spaces that fit each other, and the spaces made of them.
//!
//! Each server begins a backup when it is asked, so their stamps are of different moments. Beside each
//! backup goes the log behind it, read on until a moment at which all backups had begun. What was stable at
//! that moment fits; so there is a latest cut that fits behind all of the backups
//! ([`tercel_engine::replica::cut`]), and each log ends there. No server waits for another one.
//!
//! A transaction over several of the spaces may be prepared in some at the cut and decided in none, or
//! decided and not settled everywhere. The set knows how each ended: a restore settles them, so nobody has
//! to.
//!
//! The invariant: a set is one when `set.toml` is there, which is written last.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tercel_engine::replica::Replica;
use tercel_engine::replica::cut::{Extent, ends_at, latest};
use tercel_wire::id::{SpaceId, Stamp};
use tercel_wire::message::Settle;

use super::receive::{Begun, Follower, Remote, Way};
use super::restore::{read_manifest, restore, state_of, tail_of};
use super::staged::{Begun as Staging, Report, Staged};
use super::tail::Tail;
use super::{BackupError, Progress, Restored, Taken, is_backup};
use crate::address::Addresses;
use crate::client::{ClientConfig, embedded_with};
use crate::disk::DiskError;
use crate::disk::dir::{FORMAT_NAME, Looked, PAGES_NAME, read_small, today, write_whole};
use crate::disk::pages::RedbPages;
use crate::server::ServerConfig;
use crate::tools;

/// The name of the file that makes a directory a set of backups.
const SET_NAME: &str = "set.toml";

/// The name of the file that is there while a set is taken.
const TAKING_NAME: &str = "set.unfinished";

const FORMAT: u64 = 1;

/// The longest pause between two looks at whether a connection must be kept alive: a server's shortest
/// silence is twice 100 ms.
const KEEP: Duration = Duration::from_millis(25);

/// Says whether a directory is a set of backups that fit each other, as [`backup_set`] makes it.
pub fn is_set(dir: &Path) -> bool {
    dir.join(SET_NAME).exists()
}

/// A backup of each of several spaces, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetTaken {
    /// The backups, in the order of the names that were given.
    pub spaces: Vec<(String, Taken)>,
}

/// The spaces made of a set, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetRestored {
    /// The spaces.
    pub spaces: Vec<(String, Restored)>,
    /// Parts of transactions that the restore has settled.
    pub settled: usize,
    /// The misfits, a sentence each: parts of transactions that spaces decide which are not in the set.
    pub misfits: Vec<String>,
}

/// Takes backups of several spaces that fit each other, while their servers work. `dir` gets a directory
/// for each, by name. It must be empty or new, or hold an unfinished set, which is begun again.
///
/// # Errors
/// See [`BackupError`]. What was begun stays and is known as unfinished.
pub fn backup_set(
    named: &[(String, Addresses)],
    dir: &Path,
    mut progress: impl FnMut(Progress),
) -> Result<SetTaken, BackupError> {
    check_names(named)?;
    begin(dir)?;
    let begun_at = Instant::now();
    // The logs are read from before the backups' stamps on.
    let followers = all_at_once(named, |(_, at)| {
        let remote = Remote::new(at.clone(), Way { by_memory: crate::SharedMemory::Off, spin: None });
        Ok((Follower::new(&remote, 0)?, remote))
    })?;
    let ids: BTreeSet<SpaceId> = followers.iter().map(|(follower, _)| follower.space.id).collect();
    if ids.len() < followers.len() {
        return Err(BackupError::Set("two of the names are of one space: name each space once".into()));
    }
    let jobs = followers.into_iter().map(|(follower, remote)| (remote, follower)).collect();
    let begun = beside(jobs, |remote| Begun::new(&remote), Begun::keep_alive, Follower::keep_alive)?;
    // All backups have begun: what is stable from now on is behind each of them.
    let jobs = begun.into_iter().map(|(begun, follower)| (follower, begun)).collect();
    let read = |mut follower: Follower| follower.read_upto_now();
    let tails = beside(jobs, read, |_| Ok(()), Begun::keep_alive)?;
    let with_state = |(tail, begun): (Tail, Begun)| Ok((begun.state()?, tail, begun));
    let mut with_logs = tails.into_iter().map(with_state).collect::<Result<Vec<_>, BackupError>>()?;
    let extents: Vec<_> =
        with_logs.iter().map(|(state, tail, begun)| extent(begun.space.id, state, tail)).collect();
    let cut = latest(&extents).map_err(|why| BackupError::Lost(why.to_string()))?;
    for ((_, tail, _), upto) in with_logs.iter_mut().zip(&cut) {
        tail.entries.retain(|entry| entry.stamp <= *upto);
    }
    let jobs = named.iter().map(|(name, _)| dir.join(name)).zip(with_logs).collect::<Vec<_>>();
    let taken = take_all(jobs, &mut progress)?;
    let took = begun_at.elapsed();
    let named =
        named.iter().map(|(name, _)| name.clone()).zip(taken.into_iter().map(|t| Taken { took, ..t }));
    let spaces: Vec<_> = named.collect();
    finish(dir, &spaces)?;
    Ok(SetTaken { spaces })
}

fn extent<'a>(space: SpaceId, state: &'a Replica, tail: &'a Tail) -> Extent<'a> {
    Extent { space, state, log: &tail.entries }
}

/// Takes the pages of all backups at the same time.
fn take_all(
    jobs: Vec<(PathBuf, (Replica, Tail, Begun))>,
    progress: &mut impl FnMut(Progress),
) -> Result<Vec<Taken>, BackupError> {
    let mut told = vec![Progress { what: "starting", done: 0, total: 0 }; jobs.len()];
    std::thread::scope(|scope| {
        let (tell, heard) = channel();
        let take = |(i, (dir, (_, tail, begun))): (usize, (PathBuf, (Replica, Tail, Begun)))| {
            let tell = tell.clone();
            // The receiver is there until all have ended.
            scope.spawn(move || begun.take(&dir, &tail, &mut |p| _ = tell.send((i, p))))
        };
        let threads: Vec<_> = jobs.into_iter().enumerate().map(take).collect();
        drop(tell);
        for (i, of) in heard {
            told[i] = of;
            let sum = |f: fn(&Progress) -> u64| told.iter().map(f).sum();
            progress(Progress { what: of.what, done: sum(|p| p.done), total: sum(|p| p.total) });
        }
        threads.into_iter().map(joined).collect()
    })
}

/// Does the same with each, each on a thread of its own, and ends when all have ended.
fn all_at_once<T: Send, R: Send>(
    each: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> Result<R, BackupError> + Sync,
) -> Result<Vec<R>, BackupError> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = each.into_iter().map(|one| scope.spawn(move || work(one))).collect();
        threads.into_iter().map(joined).collect()
    })
}

/// Does the same with the first of each pair, each on a thread of its own. What came of those that have
/// ended, and the second of each pair, are kept alive until all have ended: a server ends a connection that
/// says nothing.
fn beside<A: Send, B: Send, R: Send>(
    pairs: Vec<(A, B)>,
    work: impl Fn(A) -> Result<R, BackupError> + Sync,
    keep_first: impl Fn(&mut R) -> Result<(), BackupError> + Sync,
    keep_second: impl Fn(&mut B) -> Result<(), BackupError> + Sync,
) -> Result<Vec<(R, B)>, BackupError> {
    let (left, changed) = (Mutex::new(pairs.len()), Condvar::new());
    let wait = |keep: &mut dyn FnMut() -> Result<(), BackupError>| {
        let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
        while *left > 0 {
            keep()?;
            left = changed.wait_timeout(left, KEEP).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok::<(), BackupError>(())
    };
    let end = || {
        *left.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        changed.notify_all();
    };
    let (work, wait, end) = (&work, &wait, &end);
    let (keep_first, keep_second) = (&keep_first, &keep_second);
    std::thread::scope(|scope| {
        let spawn = |(first, mut second): (A, B)| {
            let working = scope.spawn(move || {
                let done = work(first);
                end();
                let mut done = done?;
                wait(&mut || keep_first(&mut done)).map(|()| done)
            });
            let kept = scope.spawn(move || wait(&mut || keep_second(&mut second)).map(|()| second));
            (working, kept)
        };
        let threads: Vec<_> = pairs.into_iter().map(spawn).collect();
        let both = |(working, kept)| Ok((joined(working)?, joined(kept)?));
        threads.into_iter().map(both).collect()
    })
}

fn joined<R>(thread: std::thread::ScopedJoinHandle<'_, Result<R, BackupError>>) -> Result<R, BackupError> {
    thread.join().map_err(|_| BackupError::Lost("a thread of the backup panicked".into()))?
}

/// Sees that names are directories' names, each of its own.
///
/// # Errors
/// `Set` with the name that is not.
pub(super) fn check_names<T>(named: &[(String, T)]) -> Result<(), BackupError> {
    let is_fine = |name: &str| {
        !name.is_empty()
            && name.len() <= 64
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
    };
    let mut names = BTreeSet::new();
    for (name, _) in named {
        if !is_fine(name) {
            return Err(BackupError::Set(format!(
                "`{name}` is no name of a space: use letters, digits, `-` and `_`"
            )));
        }
        if !names.insert(name) {
            let text = format!("`{name}` is given twice: each space needs a name of its own");
            return Err(BackupError::Set(text));
        }
    }
    match named.is_empty() {
        true => Err(BackupError::Set("each space needs a name of its own".into())),
        false => Ok(()),
    }
}

/// Begins a set in a directory, or begins an unfinished one again.
fn begin(dir: &Path) -> Result<(), BackupError> {
    if is_set(dir) || dir.join(FORMAT_NAME).exists() {
        return Err(DiskError::Occupied { dir: dir.into() }.into());
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut inside = std::fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path()));
    if dir.join(TAKING_NAME).exists() {
        // Whole backups of an attempt that did not come to its end. Unfinished ones are begun again.
        for path in inside {
            let path = path?;
            if is_backup(&path) && path.join(FORMAT_NAME).exists() {
                std::fs::remove_dir_all(&path)?;
            }
        }
        return Ok(());
    }
    if inside.next().is_some() {
        return Err(DiskError::Occupied { dir: dir.into() }.into());
    }
    write_whole(&dir.join(TAKING_NAME), "# A set of backups is being taken.\n")?;
    Ok(())
}

fn finish(dir: &Path, spaces: &[(String, Taken)]) -> Result<(), BackupError> {
    let mut text = String::from(
        "# Backups of several spaces that fit each other. `tercel restore` makes spaces of all of them.\n",
    );
    let _ = write!(text, "format = {FORMAT}\ntaken = \"{}\"\n", today());
    for (name, taken) in spaces {
        let _ = writeln!(text, "space.{name} = {}", taken.stamp);
    }
    write_whole(&dir.join(SET_NAME), &text)?;
    std::fs::remove_file(dir.join(TAKING_NAME))?;
    Ok(())
}

/// The names in a set, with their stamps.
fn names(set: &Path) -> Result<Vec<(String, Stamp)>, BackupError> {
    let damaged = |what: String| BackupError::Damaged { dir: set.into(), what };
    let text = read_small(&set.join(SET_NAME))?;
    let mut spaces = Vec::new();
    let mut format = None;
    for (key, value) in text.lines().filter_map(|line| line.split_once(" = ")) {
        if key == "format" {
            format = value.parse().ok();
        }
        if let Some(name) = key.strip_prefix("space.") {
            let stamp = value.parse().map_err(|_| damaged(format!("set.toml: `{key}` is no stamp")))?;
            spaces.push((name.to_string(), Stamp(stamp)));
        }
    }
    match format {
        Some(FORMAT) if !spaces.is_empty() => Ok(spaces),
        Some(found) if found > FORMAT => {
            let (file, known) = (set.join(SET_NAME), FORMAT as u16);
            Err(DiskError::NewerFormat { file, found: found.min(u16::MAX.into()) as u16, known }.into())
        }
        _ => Err(damaged("set.toml names no spaces".into())),
    }
}

/// The end of a backup: its space, and the state there.
struct Held {
    space: SpaceId,
    state: Replica,
}

impl Held {
    /// The state at the end of a backup.
    fn of(backup: &Path) -> Result<Held, BackupError> {
        let manifest = read_manifest(backup)?;
        let space = Looked::at(backup)?.space?;
        let pages = RedbPages::look(&backup.join(PAGES_NAME), space.page_bytes)?;
        let damaged = |what: String| BackupError::Damaged { dir: backup.into(), what };
        let (saved, _) = state_of(backup, &pages)?;
        let base = Replica::restored(&saved).map_err(|e| damaged(format!("its state: {e}")))?;
        let tail = tail_of(backup, space.id, &manifest)?;
        let extent = extent(space.id, &base, &tail);
        let state = ends_at(&extent, Stamp(manifest.stamp)).map_err(|e| damaged(e.to_string()))?;
        Ok(Held { space: space.id, state })
    }
}

/// Lists the misfits if a backup is restored alone, a sentence each: states of other spaces that the space
/// rests on, and parts of transactions that others decide.
///
/// # Errors
/// If it is no backup, or cannot be read.
pub fn misfits(backup: &Path) -> Result<Vec<String>, BackupError> {
    let Held { state, .. } = Held::of(backup)?;
    let one_set = "one set of backups (`tercel backup DIR --server a=ADDR --server b=ADDR`)";
    Ok(misfits_of(&state, one_set))
}

/// The misfits of a state that is restored alone, and from what it would be restored with the others.
pub(super) fn misfits_of(state: &Replica, together: &str) -> Vec<String> {
    let rests = state.dependencies.all();
    let rests = rests.iter().map(|(other, seen)| {
        let (at, other) = (seen.at.max(seen.done), other.0);
        format!(
            "it rests on commit {at} of space {other:x}: sessions over both are refused until that space has it; restore both \
             from {together}"
        )
    });
    let parts = state.prepares.iter().map(|(stamp, part)| {
        format!(
            "it holds a part of a transaction, prepared at {stamp}, that space {:x} decides: once it is served, end it by \
             `tercel settle --prepared {stamp}`",
            part.coordinator.0
        )
    });
    rests.chain(parts).collect()
}

/// Makes a space of each backup of a set, in a directory of its name within `data`, and settles what
/// transactions over several of them had left open. None is at its place before all are whole. What an
/// interrupted attempt has left is gone on with, or begun again.
///
/// # Errors
/// See [`BackupError`]. What was begun stays and is known as unfinished.
pub fn restore_set(
    set: &Path,
    data: &Path,
    mut progress: impl FnMut(Progress),
) -> Result<SetRestored, BackupError> {
    let names = names(set)?;
    super::refuse_within(data, set)?;
    let mut held = Vec::new();
    for (name, stamp) in &names {
        let of = Held::of(&set.join(name))?;
        if of.state.stamp != *stamp {
            let what = format!("{name} is of commit {}, and set.toml says {stamp}", of.state.stamp);
            return Err(BackupError::Damaged { dir: set.into(), what });
        }
        held.push(of);
    }
    let spaces: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
    let of: String = names.iter().map(|(name, stamp)| format!(" {name} {stamp}")).collect();
    let of = format!("{}{of}", set.canonicalize()?.display());
    let staged = match Staged::begin(data, &spaces, &of)? {
        Staging::Anew(staged) => staged,
        Staging::Finished(report) => return Ok(SetRestored::of(report)),
    };
    let mut spaces = Vec::new();
    for (name, _) in &names {
        let made = restore(&set.join(name), &staged.place().join(name), &mut progress)?;
        spaces.push((name.clone(), made));
    }
    let mut restored = SetRestored { spaces, settled: 0, misfits: Vec::new() };
    let states: Vec<_> = held.into_iter().map(|of| (of.space, of.state)).collect();
    for (i, (name, _)) in names.iter().enumerate() {
        let (ends, misfits) = ends(name, i, &states);
        restored.misfits.extend(misfits);
        progress(Progress { what: "settling", done: 0, total: ends.len() as u64 });
        restored.settled += ends.len();
        settle(&staged.place().join(name), ends)?;
    }
    staged.finish(&restored.report())?;
    Ok(restored)
}

impl SetRestored {
    fn report(&self) -> Report {
        let numbers = |of: &Restored| [of.stamp.0, of.pages, of.bytes, of.view_first.into()];
        let spaces = self.spaces.iter().map(|(name, of)| (name.clone(), numbers(of))).collect();
        Report { spaces, settled: self.settled, misfits: self.misfits.clone() }
    }

    fn of(report: Report) -> SetRestored {
        let space = |(name, [stamp, pages, bytes, view]): (String, [u64; 4])| {
            let (stamp, view_first, took) = (Stamp(stamp), view as u32, Duration::ZERO);
            (name, Restored { stamp, pages, bytes, view_first, took })
        };
        let Report { spaces, settled, misfits } = report;
        SetRestored { spaces: spaces.into_iter().map(space).collect(), settled, misfits }
    }
}

/// The ends of the parts that a space has prepared, as the set knows them; and what it does not know.
pub(super) fn ends(name: &str, of: usize, all: &[(SpaceId, Replica)]) -> (Vec<Settle>, Vec<String>) {
    let (mut ends, mut misfits) = (Vec::new(), Vec::new());
    for (prepared, part) in all[of].1.prepares.iter() {
        let (of, coordinator) = (part.of, part.coordinator);
        let end = |seen| Settle { of, coordinator, prepared, seen, view: None };
        let decides = all.iter().find(|(space, _)| *space == coordinator);
        match decides.map(|(_, state)| (state.decisions.get(of), state)) {
            Some((Some((stamp, decided)), _)) => ends.push(end(Some(decided.seen_at(stamp, coordinator)))),
            // What is decided behind the cut has been seen by nothing in it.
            Some((None, state))
                if !state.views.may_miss_of(of.view) && !state.decisions.may_be_dropped(of) =>
            {
                ends.push(end(None));
            }
            _ => misfits.push(format!(
                "{name} holds a part of a transaction, prepared at {prepared}, that space {:x} decides, which the set does not \
                 know: once it is served, end it by `tercel settle --prepared {prepared}`",
                coordinator.0
            )),
        }
    }
    let is_here = |other: &SpaceId| all.iter().any(|(space, _)| space == other);
    for (other, seen) in all[of].1.dependencies.all().iter().filter(|(other, _)| !is_here(other)) {
        let at = seen.at.max(seen.done);
        misfits.push(format!(
            "{name} rests on commit {at} of space {:x}, which the set does not have: sessions over both are refused until that \
             space has it",
            other.0
        ));
    }
    (ends, misfits)
}

/// Settles parts in a directory that is served by nobody.
pub(super) fn settle(dir: &Path, ends: Vec<Settle>) -> Result<(), BackupError> {
    if ends.is_empty() {
        return Ok(());
    }
    let server = ServerConfig { create: false, ..ServerConfig::new(dir) };
    let settled = embedded_with(server, ClientConfig::default()).and_then(|client| {
        let settled = ends.into_iter().try_for_each(|end| tools::settle(&client, end));
        settled.and(client.close())
    });
    settled.map_err(|why| {
        let dir = dir.display();
        BackupError::Set(format!(
            "{dir} was restored, but a part of a transaction in it cannot be settled: {why}"
        ))
    })
}
