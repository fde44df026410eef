//! Spaces made of archives: alone up to a moment or a stamp, or several up to the latest cut that fits.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use tercel::backup::BackupError;
use tercel::backup::stream::{
    Parts, Report, Staged, Staging, assemble, check_names, ends_of, misfits_of, settle_ends,
};
use tercel::tools::engine::order::Sealed;
use tercel::tools::engine::replica::Replica;
use tercel::tools::engine::replica::cut::{Extent, ends_at, is_of_several, latest};
use tercel::tools::engine::replica::saved::Saved;
use tercel::{SpaceId, Stamp};

use crate::catalogue::{ArchiveError, Catalogue};
use crate::head::{Base, Head, Run};
use crate::moment::time_text;
use crate::object::Kind;

/// Up to where a space is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// All that had been archived at a moment, in milliseconds since 1970.
    Moment(u64),
    /// A commit.
    Stamp(Stamp),
    /// All that is there.
    End,
}

/// The result of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The last commit.
    pub stamp: Stamp,
    /// The commit of the base that it begins with.
    pub base: Stamp,
    /// Entries of the log that follow it.
    pub entries: u64,
    /// The number of the new history's first view; 0 if nothing was made.
    pub view_first: u32,
    /// Younger bases that are damaged, so that an earlier one was taken, a sentence each.
    pub damaged: Vec<String>,
}

/// Tells how far a restore is: a step, and how much is done of how much.
pub type Progress<'a> = &'a mut dyn FnMut(&'static str, u64, u64);

/// The part of an archive that is restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The base.
    pub base: Base,
    /// Everything up to this stamp.
    pub upto: Stamp,
    /// Younger bases that are damaged, a sentence each.
    pub damaged: Vec<String>,
}

impl Plan {
    /// Goes round a damaged base, if that is what failed, by an earlier one and more of the log.
    fn goes_round(&mut self, catalogue: &Catalogue<'_>, failed: &ArchiveError) -> bool {
        let ArchiveError::Object { store, name, why, .. } = failed else { return false };
        let Some(base) = earlier(catalogue, &self.base).filter(|_| name.starts_with("base/")) else {
            return false;
        };
        self.base = base;
        self.damaged.push(format!("{name} in {store}: {why}"));
        true
    }
}

/// Finds what is restored: the base, and the last stamp.
///
/// # Errors
/// If it is not in the archive.
pub fn plan(catalogue: &Catalogue<'_>, until: Until) -> Result<Plan, ArchiveError> {
    let head = &catalogue.head;
    let newest = head.history();
    let end = head.end_of(newest);
    let (history, upto) = match until {
        Until::End => (newest, end),
        Until::Moment(ms) => catalogue.stamp_at(ms)?.ok_or_else(|| {
            let begins = head.bases.first().map_or(0, |base| base.ms);
            ArchiveError::NotThere(format!(
                "the archive begins at {}: name a later moment",
                time_text(begins)
            ))
        })?,
        Until::Stamp(stamp) if stamp > end => {
            let text = format!("the archive ends with commit {end}: name one up to that");
            return Err(ArchiveError::NotThere(text));
        }
        Until::Stamp(stamp) => (newest, stamp),
    };
    if let Some(gap) = head.gap_at(history, upto) {
        return Err(ArchiveError::NotThere(format!(
            "commit {upto} is in a gap: the archive has no commits behind {} and before {} ({}); name one outside of that",
            gap.after, gap.upto, gap.why
        )));
    }
    if let Until::Moment(ms) = until
        && let Some((gap, from, to)) = head.gap_during(history, upto, ms)
    {
        let to = if to == u64::MAX { "now".into() } else { time_text(to) };
        return Err(ArchiveError::NotThere(format!(
            "{} is in a gap: the archive has no commits that were made between {} and {to} ({}); name a moment outside of that",
            time_text(ms),
            time_text(from),
            gap.why
        )));
    }
    let base = head.base_for(history, upto).cloned().ok_or_else(|| {
        let begins = head.bases.first().map_or(0, |base| base.stamp);
        ArchiveError::NotThere(format!("the archive begins with commit {begins}: name one from there on"))
    })?;
    Ok(Plan { base, upto, damaged: Vec::new() })
}

/// Makes a space in `data` of what an archive has, up to a moment or a commit. Its history is another one.
///
/// # Errors
/// If it is not in the archive, or an object is damaged, or a file cannot be written.
pub fn restore(
    catalogue: &Catalogue<'_>,
    until: Until,
    data: &Path,
    progress: Progress<'_>,
) -> Result<Restored, ArchiveError> {
    let plan = plan(catalogue, until)?;
    make(catalogue, &plan, data, progress)
}

/// Makes a space of the plan's base or, where that is damaged, of an earlier one and more of the log.
fn make(
    catalogue: &Catalogue<'_>,
    plan: &Plan,
    data: &Path,
    progress: Progress<'_>,
) -> Result<Restored, ArchiveError> {
    let mut plan = plan.clone();
    loop {
        let made = make_of(catalogue, &plan, data, progress);
        if !made.as_ref().is_err_and(|failed| plan.goes_round(catalogue, failed)) {
            return made;
        }
    }
}

/// The base before another one of its history, with no gap between.
fn earlier(catalogue: &Catalogue<'_>, base: &Base) -> Option<Base> {
    let before = catalogue.head.base_for(base.history, Stamp(base.stamp.checked_sub(1)?))?;
    (before.history == base.history).then(|| before.clone())
}

fn make_of(
    catalogue: &Catalogue<'_>,
    plan: &Plan,
    data: &Path,
    progress: Progress<'_>,
) -> Result<Restored, ArchiveError> {
    let Plan { base, upto, damaged } = plan;
    let state = catalogue.state_of(base)?;
    // Without entries behind the base nothing is replayed.
    let first = (*upto > Stamp(base.stamp)).then_some(Stamp(base.first));
    let (count, last) = (RefCell::new(0), RefCell::new(Stamp(base.stamp)));
    let progress = RefCell::new(progress);
    let mut pages = |each: &mut dyn FnMut(&[u8]) -> Result<(), ArchiveError>| {
        let mut done = 0;
        catalogue.pieces(base, |piece| {
            done += 1;
            (progress.borrow_mut())("pages", done, base.pieces);
            if piece.kind == Kind::Pages { each(&piece.contents) } else { Ok(()) }
        })
    };
    let mut entries = |each: &mut dyn FnMut(&[Sealed]) -> Result<(), ArchiveError>| {
        let Some(first) = first else { return Ok(()) };
        entries_of(catalogue, base.history, first, *upto, &mut |some| {
            *count.borrow_mut() += some.len() as u64;
            if let Some(entry) = some.last() {
                *last.borrow_mut() = entry.stamp;
                let (done, total) = (entry.stamp.0 - first.0, upto.0 - first.0);
                (progress.borrow_mut())("log", done, total);
            }
            each(some)
        })
    };
    let parts = Parts {
        space: catalogue.head.space(),
        base: Stamp(base.stamp),
        state: &state,
        first,
        view: view_max(&catalogue.head),
        pages: &mut pages,
        entries: &mut entries,
    };
    let view_first = assemble(data, parts)?;
    let stamp = (*last.borrow()).max(Stamp(base.stamp));
    let entries = *count.borrow();
    Ok(Restored { stamp, base: Stamp(base.stamp), entries, view_first, damaged: damaged.clone() })
}

/// The number of the highest view that an archive knows.
fn view_max(head: &Head) -> u32 {
    let runs = head.runs.iter().map(|run| run.view.0);
    let bases = head.bases.iter().map(|base| base.view);
    runs.chain(bases).chain([head.view.0]).max().unwrap_or(0)
}

/// Gives the entries of a history from one stamp to another, without gaps.
fn entries_of(
    catalogue: &Catalogue<'_>,
    history: u32,
    first: Stamp,
    upto: Stamp,
    each: &mut dyn FnMut(&[Sealed]) -> Result<(), ArchiveError>,
) -> Result<(), ArchiveError> {
    let (mut end, mut reached): (Option<u64>, _) = (None, None);
    catalogue.log(history, first, upto, |object, entries| {
        let missing = |position: u64| {
            ArchiveError::NotThere(format!(
                "entries before position {position}, of commits before {}, are missing in the archive: name a commit that a younger \
                 base reaches",
                object.first
            ))
        };
        match end {
            Some(end) if object.position != end + 1 => return Err(missing(object.position)),
            None if object.first > first => return Err(missing(object.position)),
            _ => (end, reached) = (Some(object.end), Some(object.last)),
        }
        let from = entries.partition_point(|entry| entry.stamp < first);
        let to = entries.partition_point(|entry| entry.stamp <= upto);
        if from < to { each(&entries[from..to]) } else { Ok(()) }
    })?;
    // A log that ends before the wanted stamp has to go on behind it: stamps are left out.
    let goes_on = |run: &Run| {
        let is_next = end.is_some_and(|end| run.position == end + 1);
        // Within a run, the walk has seen that nothing is missing.
        run.history == history && (run.first > upto.0 && is_next || run.first <= upto.0 && run.last > upto.0)
    };
    let reached = reached.unwrap_or(Stamp(first.0.saturating_sub(1)));
    match reached >= upto || catalogue.head.runs.iter().any(goes_on) {
        true => Ok(()),
        false => Err(ArchiveError::NotThere(format!(
            "commits behind {reached} and up to {upto} are missing in the archive, and no gap says so: name a commit up to \
             {reached}, or one that a younger base reaches"
        ))),
    }
}

/// Several spaces, made of their archives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetRestored {
    /// The spaces, in the order of the names that were given.
    pub spaces: Vec<(String, Restored)>,
    /// Parts of transactions that the restore has settled.
    pub settled: usize,
    /// The misfits, a sentence each.
    pub misfits: Vec<String>,
}

/// Sees that each archive has a name and a space of its own.
///
/// # Errors
/// `Set` with the name, or the two names of one space.
pub fn check_set(archives: &[(String, Catalogue<'_>)]) -> Result<(), ArchiveError> {
    check_names(archives)?;
    let mut names: BTreeMap<SpaceId, &str> = BTreeMap::new();
    for (name, catalogue) in archives {
        if let Some(other) = names.insert(catalogue.head.space(), name) {
            return Err(BackupError::Set(format!(
                "`{other}` and `{name}` are archives of one space, {}: name each space once",
                catalogue.head.space
            ))
            .into());
        }
    }
    Ok(())
}

/// The outlook of a restore: nothing was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    /// The base, and the last commit.
    pub plan: Plan,
    /// Entries of the log behind the base.
    pub entries: u64,
    /// Bytes of the base, compressed, and of these entries.
    pub bytes: u64,
}

/// Finds out what a restore of one space would make, and what of it would not fit other spaces: a sentence
/// each.
///
/// # Errors
/// As [`restore`], but for files.
pub fn outlook(
    catalogue: &Catalogue<'_>,
    until: Until,
    progress: Progress<'_>,
) -> Result<(Outlook, Vec<String>), ArchiveError> {
    let mut plan = plan(catalogue, until)?;
    let total = plan.upto.0.saturating_sub(plan.base.stamp);
    let loaded = load(catalogue, &mut plan, &mut |done| progress("looking at the log", done, total))?;
    let extent = Extent { space: catalogue.head.space(), state: &loaded.state, log: &loaded.log };
    let state = ends_at(&extent, plan.upto).map_err(|e| BackupError::Set(e.to_string()))?;
    let misfits =
        misfits_of(&state, "their archives (`tercel archive restore --spaces a=URL --spaces b=URL`)");
    Ok((loaded.outlook(plan), misfits))
}

/// Finds out what a restore of several spaces would make at their latest cut, and what of it would not fit.
///
/// # Errors
/// As [`restore_set`], but for files.
pub fn outlook_set(
    archives: &[(String, Catalogue<'_>)],
    until: Until,
    progress: Progress<'_>,
) -> Result<(Vec<Outlook>, Vec<String>), ArchiveError> {
    let cut = cut_set(archives, until, progress)?;
    let states = archives.iter().zip(&cut).map(|((_, catalogue), (plan, loaded))| {
        let extent = Extent { space: catalogue.head.space(), state: &loaded.state, log: &loaded.log };
        let state = ends_at(&extent, plan.upto).map_err(|e| BackupError::Set(e.to_string()))?;
        Ok((catalogue.head.space(), state))
    });
    let states = states.collect::<Result<Vec<_>, ArchiveError>>()?;
    let misfits = archives.iter().zip(0..).flat_map(|((name, _), i)| ends_of(name, i, &states).1).collect();
    Ok((cut.into_iter().map(|(plan, loaded)| loaded.outlook(plan)).collect(), misfits))
}

/// The part of a plan that has to do with other spaces.
struct Loaded {
    /// The state of the base.
    state: Replica,
    /// Entries of several spaces behind it, and the last one.
    log: Vec<Sealed>,
    /// Entries that were read, and bytes of them.
    entries: u64,
    bytes: u64,
}

impl Loaded {
    fn outlook(&self, plan: Plan) -> Outlook {
        // A cut may be before the end of what was read: then its entries are those up to its stamp, at most.
        let behind = match plan.upto.0 > plan.base.stamp {
            true => plan.upto.0.saturating_sub(plan.base.first) + 1,
            false => 0,
        };
        let bytes = plan.base.bytes + self.bytes;
        Outlook { plan, entries: self.entries.min(behind), bytes }
    }
}

/// Loads it from the plan's base or, where that is damaged, from an earlier one, which is the plan's then.
fn load(
    catalogue: &Catalogue<'_>,
    plan: &mut Plan,
    progress: &mut dyn FnMut(u64),
) -> Result<Loaded, ArchiveError> {
    loop {
        let loaded = load_of(catalogue, plan, progress);
        if !loaded.as_ref().is_err_and(|failed| plan.goes_round(catalogue, failed)) {
            return loaded;
        }
    }
}

fn load_of(
    catalogue: &Catalogue<'_>,
    plan: &Plan,
    progress: &mut dyn FnMut(u64),
) -> Result<Loaded, ArchiveError> {
    let Plan { base, upto, .. } = plan;
    let saved = Saved::parse(&catalogue.state_of(base)?).map_err(|_| unreadable(base))?;
    let state = Replica::restored(&saved).map_err(|_| unreadable(base))?;
    let (mut loaded, mut last) = (Loaded { state, log: Vec::new(), entries: 0, bytes: 0 }, None);
    if *upto > Stamp(base.stamp) {
        entries_of(catalogue, base.history, Stamp(base.first), *upto, &mut |some| {
            loaded.log.extend(some.iter().filter(|entry| is_of_several(entry)).cloned());
            loaded.entries += some.len() as u64;
            loaded.bytes += some.iter().map(|entry| entry.payload.len() as u64).sum::<u64>();
            last = some.last().cloned().or(last.take());
            progress(last.as_ref().map_or(0, |last: &Sealed| last.stamp.0.saturating_sub(base.stamp)));
            Ok(())
        })?;
    }
    let kept = loaded.log.last().map(|kept| kept.stamp);
    loaded.log.extend(last.filter(|last| kept.is_none_or(|kept| kept < last.stamp)));
    Ok(loaded)
}

type Cut = (Plan, Loaded);

fn cut_set(
    archives: &[(String, Catalogue<'_>)],
    until: Until,
    progress: Progress<'_>,
) -> Result<Vec<Cut>, ArchiveError> {
    check_set(archives)?;
    let mut spaces = Vec::new();
    for (_, catalogue) in archives {
        let plan = plan(catalogue, until)?;
        spaces.push((plan, catalogue));
    }
    loop {
        let mut loaded = Vec::new();
        let span = |plan: &Plan| plan.upto.0.saturating_sub(plan.base.stamp);
        let (mut before, total) = (0, spaces.iter().map(|(plan, _)| span(plan)).sum());
        for (plan, catalogue) in &mut spaces {
            let mut progress = |done| progress("looking for the cut", before + done, total);
            loaded.push(load(catalogue, plan, &mut progress)?);
            before += span(plan);
        }
        let extents: Vec<Extent<'_>> = spaces
            .iter()
            .zip(&loaded)
            .map(|((_, catalogue), Loaded { state, log, .. })| Extent {
                space: catalogue.head.space(),
                state,
                log,
            })
            .collect();
        match latest(&extents) {
            Ok(cut) => {
                let with = spaces.into_iter().zip(cut).map(|((plan, _), upto)| Plan { upto, ..plan });
                return Ok(with.zip(loaded).collect());
            }
            // Its base is too young for the others: an earlier one may do.
            Err(tercel::tools::engine::replica::cut::NoCut::Late { space, of, needs }) => {
                let late = spaces.iter_mut().find(|(_, catalogue)| catalogue.head.space() == space);
                let (plan, catalogue) =
                    late.ok_or_else(|| ArchiveError::NotThere("no space is late".into()))?;
                // The log between is of one history.
                plan.base = earlier(catalogue, &plan.base).ok_or_else(|| {
                    ArchiveError::NotThere(format!(
                        "the archive of space {:x} has no base that fits the others: it needs commit {needs} of space {:x}; \
                         name a later moment",
                        space.0, of.0
                    ))
                })?;
            }
            Err(other) => return Err(BackupError::Set(other.to_string()).into()),
        }
    }
}

fn unreadable(base: &Base) -> ArchiveError {
    ArchiveError::NotThere(format!("the state of the base of commit {} cannot be read", base.stamp))
}

/// Makes a space of each of several archives, in a directory of its name within `data`, at the latest cut
/// that fits up to a moment, and settles what transactions over several of them had left open. None is at its
/// place before all are whole. What an interrupted attempt has left is gone on with, or begun again.
///
/// # Errors
/// As [`restore`].
pub fn restore_set(
    archives: &[(String, Catalogue<'_>)],
    until: Until,
    data: &Path,
    progress: Progress<'_>,
) -> Result<SetRestored, ArchiveError> {
    let cut = cut_set(archives, until, progress)?;
    let names: Vec<&str> = archives.iter().map(|(name, _)| name.as_str()).collect();
    let space = |(name, catalogue): &(String, Catalogue<'_>)| format!("{name} {}, ", catalogue.head.space);
    let of: String = archives.iter().map(space).collect();
    let staged = match Staged::begin(data, &names, &format!("{of}{until:?}"))? {
        Staging::Anew(staged) => staged,
        Staging::Finished(report) => return Ok(SetRestored::of(report)),
    };
    let mut restored = SetRestored { spaces: Vec::new(), settled: 0, misfits: Vec::new() };
    let mut states = Vec::new();
    for ((name, catalogue), (plan, Loaded { state, log, .. })) in archives.iter().zip(&cut) {
        let made = make(catalogue, plan, &staged.place().join(name), progress)?;
        restored.spaces.push((name.clone(), made));
        let extent = Extent { space: catalogue.head.space(), state, log };
        states.push((
            catalogue.head.space(),
            ends_at(&extent, plan.upto).map_err(|e| BackupError::Set(e.to_string()))?,
        ));
    }
    for ((name, _), i) in archives.iter().zip(0..) {
        let (ends, misfits) = ends_of(name, i, &states);
        restored.misfits.extend(misfits);
        restored.settled += ends.len();
        settle_ends(&staged.place().join(name), ends)?;
    }
    staged.finish(&restored.report())?;
    Ok(restored)
}

impl SetRestored {
    fn report(&self) -> Report {
        let numbers = |of: &Restored| [of.stamp.0, of.base.0, of.entries, of.view_first.into()];
        let spaces = self.spaces.iter().map(|(name, of)| (name.clone(), numbers(of))).collect();
        Report { spaces, settled: self.settled, misfits: self.misfits.clone() }
    }

    fn of(report: Report) -> SetRestored {
        let space = |(name, [stamp, base, entries, view]): (String, [u64; 4])| {
            let (stamp, base, view_first) = (Stamp(stamp), Stamp(base), view as u32);
            (name, Restored { stamp, base, entries, view_first, damaged: Vec::new() })
        };
        let Report { spaces, settled, misfits } = report;
        SetRestored { spaces: spaces.into_iter().map(space).collect(), settled, misfits }
    }
}
