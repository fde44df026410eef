//! `tercel archive`, and the writer of `tercel serve --archive`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;
use tercel::backup::BackupError;
use tercel::backup::stream::{Staged, Tap, check_names, see_vacant};
use tercel::{Address, Server, ServerConfig, Stamp};
use tercel_archive::access::Access;
use tercel_archive::catalogue::{ArchiveError, Catalogue};
use tercel_archive::config::Config;
use tercel_archive::copy::copy;
use tercel_archive::memory::{MEMORY, archived_upto, remembers};
use tercel_archive::moment::{read_time, time_text};
use tercel_archive::restore::{Outlook, Until, outlook, outlook_set, restore, restore_set};
use tercel_archive::store::{Store, StoreError};
use tercel_archive::take::take;
use tercel_archive::writer::{Status, Writer};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::{ProgressBar, THINGS, Term, count, say, tell, tidy};

use crate::args::{self, Archive};
use crate::backup::{size, unfinished};

pub fn run(args: &Archive, term: &Term) -> Outcome {
    match args {
        Archive::List(args) => list(args),
        Archive::Verify(args) => verify(args, term),
        Archive::Restore(args) if args.spaces.is_empty() => restore_one(args, term),
        Archive::Restore(args) => restore_several(args, term),
        Archive::Copy(args) => copy_to(args, term),
        Archive::Take(args) => take_for(args, term),
    }
}

fn failed(error: ArchiveError) -> Failure {
    let code = match &error {
        ArchiveError::Nothing(_) | ArchiveError::NotThere(_) => 1,
        ArchiveError::Object { .. } => 3,
        ArchiveError::Store(error) => code_of(error),
        ArchiveError::Backup(BackupError::Set(_)) => 2,
        ArchiveError::Backup(_) => 1,
    };
    Failure::of_sentence(&error.to_string()).code(code)
}

/// The exit code: somebody must change something, or an object is damaged, or the same command may succeed
/// later.
fn code_of(error: &StoreError) -> u8 {
    match error {
        StoreError::Url { .. } | StoreError::Refused { .. } => 2,
        StoreError::Damaged { .. } => 3,
        StoreError::Failed { .. } => 75,
    }
}

fn existing(url: &str, access: &Access) -> Result<Arc<dyn Store>, Failure> {
    tercel_archive::existing(url, access).map_err(refused)
}

fn access(credentials: Option<&Path>) -> Access {
    Access { credentials: credentials.map(Path::to_path_buf), ..Access::of_environment() }
}

fn access_of(keys: &args::Keys) -> Access {
    access(keys.credentials.as_deref())
}

fn refused(error: StoreError) -> Failure {
    Failure::of_sentence(&error.to_string()).code(code_of(&error))
}

fn list(args: &args::ArchiveList) -> Outcome {
    let store = existing(&args.archive, &access_of(&args.keys))?;
    let head = Catalogue::open(&*store).map_err(failed)?.head;
    if args.json {
        say!("{}", serde_json::to_string(&head).unwrap_or_default());
        return Ok(ExitCode::SUCCESS);
    }
    say!("space {}, written by {} in view {}", head.space, head.writer, head.view.0);
    // A number says little where there is one history only.
    let of = |history: u32| match head.histories.is_empty() {
        true => String::new(),
        false => format!(" of history {history}"),
    };
    for base in &head.bases {
        say!(
            "base  {}  commit {}{}, {}, {}",
            time_text(base.ms),
            base.stamp,
            of(base.history),
            count(base.pages, "page", "pages"),
            size(base.bytes)
        );
    }
    for run in &head.runs {
        let (last, bytes) = (time_text(run.last_ms), size(run.bytes));
        say!("log   {last}  commits {} to {}{}, {bytes}", run.first, run.last, of(run.history));
    }
    for gap in &head.gaps {
        say!(
            "gap   {}  commits behind {} and before {}{}: {}",
            time_text(gap.ms),
            gap.after,
            gap.upto,
            of(gap.history),
            gap.why
        );
    }
    for (history, number) in head.histories.iter().zip(1..) {
        say!(
            "history {number}  {}  goes on behind commit {} of history {}; what that has behind it is restored by moments \
             before this one",
            time_text(history.ms),
            history.after,
            history.of
        );
    }
    say!("up to {}", time_text(head.upto_ms));
    Ok(ExitCode::SUCCESS)
}

fn verify(args: &args::ArchiveList, term: &Term) -> Outcome {
    let store = existing(&args.archive, &access_of(&args.keys))?;
    let bar = term.bar(0, THINGS, "reading objects");
    let verified = Catalogue::open(&*store).and_then(|archive| archive.verify(|done| bar.set_position(done)));
    bar.finish_and_clear();
    let verified = verified.map_err(failed)?;
    if args.json {
        let (objects, entries, wrong) = (verified.objects, verified.entries, &verified.wrong);
        say!(
            "{}",
            json!({ "objects": objects, "entries": entries, "wrong": wrong, "unnamed": verified.unnamed })
        );
    } else {
        verified.wrong.iter().for_each(|wrong| tell!("{} {wrong}", term.bold("damaged:")));
        tell!(
            "{}, {} of the log read; {} wrong",
            count(verified.objects, "object", "objects"),
            count(verified.entries, "entry", "entries"),
            verified.wrong.len()
        );
    }
    Ok(if verified.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

fn until(args: &args::ArchiveRestore) -> Result<Until, Failure> {
    match (&args.until, args.until_stamp) {
        (Some(text), _) => read_time(text).map(Until::Moment).ok_or_else(|| {
            Failure::new(format!("`{text}` is no moment"))
                .next("give one such as 2026-11-27T14:05:30, in UTC")
                .code(2)
        }),
        (None, Some(stamp)) => Ok(Until::Stamp(Stamp(stamp))),
        (None, None) => Ok(Until::End),
    }
}

fn tell_outlook(name: &str, outlook: &Outlook) {
    let Outlook { plan, entries, bytes } = outlook;
    tell!(
        "{name}up to commit {}, from the base of commit {} ({}), with {} behind it; {} to read",
        plan.upto,
        plan.base.stamp,
        time_text(plan.base.ms),
        count(*entries, "entry", "entries"),
        size(*bytes)
    );
}

fn tell_damaged(damaged: &[String], term: &Term) {
    damaged.iter().for_each(|why| tell!("{} {why}; an earlier base is taken", term.red("damaged:")));
}

fn vacant(seen: Result<(), BackupError>) -> Result<(), Failure> {
    seen.map_err(|why| failed(why.into()))
}

fn show(bar: &ProgressBar) -> impl FnMut(&'static str, u64, u64) {
    |what, done, total| {
        bar.set_message(what);
        bar.set_length(total);
        bar.set_position(done);
    }
}

fn restore_one(args: &args::ArchiveRestore, term: &Term) -> Outcome {
    let store = existing(args.archive.as_deref().unwrap_or_default(), &access_of(&args.keys))?;
    let archive = Catalogue::open(&*store).map_err(failed)?;
    let until = until(args)?;
    vacant(see_vacant(&args.data))?;
    let data = args.data.clone();
    tidy::on_signals(move || unfinished("restore", &data))?;
    let bar = term.bar(0, THINGS, "starting");
    let looked = outlook(&archive, until, &mut show(&bar));
    bar.finish_and_clear();
    let (outlook, misfits) = looked.map_err(failed)?;
    tell_damaged(&outlook.plan.damaged, term);
    misfits.iter().for_each(|misfit| tell!("{} {misfit}", term.bold("alone:")));
    if args.dry_run {
        tell_outlook("", &outlook);
        return Ok(ExitCode::SUCCESS);
    }
    let bar = term.bar(0, THINGS, "starting");
    let restored = restore(&archive, until, &args.data, &mut show(&bar));
    bar.finish_and_clear();
    let restored = restored.map_err(failed)?;
    tell!(
        "{} up to commit {}, with {} behind the base; `tercel serve --data {}` serves it",
        term.green("restored"),
        restored.stamp,
        count(restored.entries, "entry", "entries"),
        args.data.display()
    );
    Ok(ExitCode::SUCCESS)
}

fn restore_several(args: &args::ArchiveRestore, term: &Term) -> Outcome {
    let mut named = Vec::new();
    for space in &args.spaces {
        let (name, url) = space.split_once('=').ok_or_else(|| {
            Failure::new(format!("`{space}` names no space")).next("say --spaces NAME=URL").code(2)
        })?;
        named.push((name.to_string(), url));
    }
    check_names(&named).map_err(|why| Failure::of_sentence(&why.to_string()).code(2))?;
    let access = access_of(&args.keys);
    let stores = named.into_iter().map(|(name, url)| Ok((name, existing(url, &access)?)));
    let stores = stores.collect::<Result<Vec<_>, Failure>>()?;
    let archives = stores.iter().map(|(name, store)| Ok((name.clone(), Catalogue::open(&**store)?)));
    let archives = archives.collect::<Result<Vec<_>, ArchiveError>>().map_err(failed)?;
    let until = until(args)?;
    if args.dry_run {
        let names: Vec<&str> = archives.iter().map(|(name, _)| name.as_str()).collect();
        vacant(Staged::see_vacant(&args.data, &names))?;
        let bar = term.bar(0, THINGS, "starting");
        let looked = outlook_set(&archives, until, &mut show(&bar));
        bar.finish_and_clear();
        let (outlooks, misfits) = looked.map_err(failed)?;
        outlooks.iter().for_each(|outlook| tell_damaged(&outlook.plan.damaged, term));
        let named = archives.iter().zip(&outlooks);
        named.for_each(|((name, _), outlook)| tell_outlook(&format!("{name}: "), outlook));
        misfits.iter().for_each(|misfit| tell!("{} {misfit}", term.bold("next:")));
        return Ok(ExitCode::SUCCESS);
    }
    let data = args.data.clone();
    tidy::on_signals(move || unfinished("restore", &data))?;
    let bar = term.bar(0, THINGS, "starting");
    let restored = restore_set(&archives, until, &args.data, &mut show(&bar));
    bar.finish_and_clear();
    let restored = restored.map_err(failed)?;
    for (name, of) in &restored.spaces {
        tell_damaged(&of.damaged, term);
        let data = args.data.join(name);
        tell!(
            "{} {name} up to commit {}; `tercel serve --data {}` serves it",
            term.green("restored"),
            of.stamp,
            data.display()
        );
    }
    if restored.settled > 0 {
        tell!(
            "{} of transactions over several of them settled",
            count(restored.settled as u64, "part", "parts")
        );
    }
    restored.misfits.iter().for_each(|misfit| tell!("{} {misfit}", term.bold("next:")));
    Ok(ExitCode::SUCCESS)
}

fn copy_to(args: &args::ArchiveCopy, term: &Term) -> Outcome {
    let access = access_of(&args.keys);
    let from = existing(&args.from, &access)?;
    let to = tercel_archive::open(&args.to, &access).map_err(refused)?;
    let bar = term.bar(0, THINGS, "copying");
    let copied = copy(&*from, &*to, |done| bar.set_position(done));
    bar.finish_and_clear();
    let copied = copied.map_err(failed)?;
    tell!("{} {}", term.green("copied"), count(copied.written, "object", "objects"));
    copied.mended.iter().for_each(|name| tell!("{} {name} had decayed in the copy", term.green("mended:")));
    copied.wrong.iter().for_each(|wrong| tell!("{} {wrong}", term.red("left out:")));
    Ok(if copied.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn take_for(args: &args::ArchiveTake, term: &Term) -> Outcome {
    let store = existing(&args.archive, &access_of(&args.keys))?;
    let (mut server, tap) = match (&args.server, &args.data) {
        (at, None) => (None, Tap::to(at.clone().unwrap_or_else(|| Address::default_tcp().into()))),
        (_, Some(data)) => {
            let server = Server::start(ServerConfig { create: false, ..ServerConfig::new(data) })?;
            let tap = Tap::of(&server);
            (Some(server), tap)
        }
    };
    let reader = tap.log(0)?;
    let (space, view) = (reader.space(), reader.view());
    drop(reader);
    server.take().map_or(Ok(()), Server::stop)?;
    let name = format!("`tercel archive take` for view {}", view.number);
    take(&*store, space, view, &name).map_err(failed)?;
    tell!("{} {}; the server's writer goes on with the next commit", term.green("taken"), store.url());
    Ok(ExitCode::SUCCESS)
}

/// The position in a server's log that its archive has come to.
pub fn archived_log(data: &Path, store: &dyn Store) -> Option<u64> {
    archived_upto(&data.join(MEMORY), &store.url())
}

/// The archive of a server, being written.
pub struct Archiving {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Archiving {
    /// Opens the place of an archive: what is wrong with it is told before a server starts.
    pub fn place(url: &str, credentials: Option<&Path>, data: &Path) -> Result<Arc<dyn Store>, Failure> {
        let access = access(credentials);
        let opened = tercel_archive::open(url, &access);
        match (opened, tercel_archive::existing(url, &access)) {
            // It was there, and is away, perhaps: the writer tries again, and begins no other one.
            (Err(_), Ok(store)) if remembers(&data.join(MEMORY), &store.url()) => Ok(store),
            (opened, _) => opened.map_err(refused),
        }
    }

    /// Begins to archive a server, and tells of what goes wrong.
    pub fn begin(
        server: &Server,
        data: &Path,
        store: Arc<dyn Store>,
        every: Duration,
        tell: fn(&str),
    ) -> Result<Archiving, StoreError> {
        let config = Config { every, memory: Some(data.join(MEMORY)), ..Config::default() };
        let writer = Writer::start(Tap::of(server), server.space(), store, config)?;
        let is_over = Arc::<AtomicBool>::default();
        let over = is_over.clone();
        let thread = std::thread::spawn(move || watch(writer, &over, tell));
        Ok(Archiving { is_over, thread: Some(thread) })
    }
}

impl Drop for Archiving {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Tells of trouble when it begins and ends, of gaps, and of the end.
fn watch(writer: Writer, is_over: &AtomicBool, tell: fn(&str)) {
    let mut before = Status::default();
    while !is_over.load(Ordering::SeqCst) {
        let now = writer.status();
        match (&before.trouble, &now.trouble) {
            (None, Some((_, why))) => {
                tell(&format!("warning: the archive does not get on, and is tried again: {why}"))
            }
            (Some(_), None) if now.waits.is_none() => tell("the archive gets on again"),
            _ if before.ended.is_some() && now.ended.is_none() => tell("the archive is tried again"),
            _ => {}
        }
        if now.histories > before.histories {
            tell(
                "the archive had another history of the space: this one goes on there with a base of its own; \
                 `tercel archive list` shows both",
            );
        }
        if now.gaps > before.gaps {
            tell(
                "warning: the archive has a gap: the log no longer had all that it lacked; a new base follows",
            );
        }
        if before.ended.is_none()
            && let Some(why) = &now.ended
        {
            tell(&format!("warning: nothing is archived any more: {why}"));
        }
        before = now;
        std::thread::park_timeout(Duration::from_secs(1));
    }
    drop(writer.stop());
}
