//! `tercel serve`.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{self, SyncSender};
use std::time::Duration;

use tercel::check::{LOST_NAME, losses};
use tercel::group::inspect;
use tercel::{
    Address, Addresses, Auditing, Collecting, DiskError, Network, Server, ServerConfig, ServerError,
    SharedMemory, Tls,
};
use tercel_packages::model::{Mark, Marked};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::notify::{self, Watchdog};
use tercel_term::process::raise_descriptors;
use tercel_term::say;
use tercel_term::stop::Signals;
use tracing_subscriber::filter::LevelFilter;

use crate::archive::{Archiving, archived_log};
use crate::args;
use crate::invite;
use crate::metrics::Metrics;

pub fn run(args: &args::Serve, tls: Option<&Path>) -> Outcome {
    let invited = args.member.invite.as_deref().map(|file| {
        let dir = tls.ok_or_else(|| {
            Failure::new("an invitation has a certificate").next("say where with --tls DIR")
        })?;
        invite::take(file, dir, &args.data)
    });
    let invited = invited.transpose()?;
    let tls = match &invited {
        Some(invited) => Some(invited.tls.clone()),
        None => tls.map(args::open_tls).transpose()?,
    };
    let config = ServerConfig {
        listen: args.listen.clone(),
        network: Network {
            tls: tls.clone(),
            allow_plain_remote: args.allow_plain_remote,
            socket_mode: args.local.socket_mode,
        },
        mob_bytes: args.mob,
        cache_bytes: args.cache,
        subscriptions_max: args.subscriptions,
        keepalive: Duration::from_millis(args.keepalive.into()),
        silence: Duration::from_millis(args.member.silence.into()),
        collect: Collecting {
            grace: Duration::from_secs(args.collecting.gc_grace.into()),
            percent: args.collecting.gc_percent,
        },
        peers: args.peer.iter().cloned().map(Into::into).collect(),
        methods: vec![Mark::METHODS],
        shared_memory: match args.local.shared_memory {
            args::SharedMemory::Off => SharedMemory::Off,
            args::SharedMemory::SameUser => SharedMemory::SameUser,
            args::SharedMemory::AnyUser => SharedMemory::AnyUser,
        },
        audit: args.shown.audit.clone().map(|file| Auditing { file, calls: args.shown.audit_calls }),
        ..ServerConfig::new(&args.data)
    };
    write_events(args);
    let mut signals = Signals::take()?;
    raise_descriptors();
    let metrics = args.shown.metrics.as_ref().map(|at| Metrics::bind(at, args.allow_plain_remote));
    let mut metrics = metrics.transpose()?;
    let args::MemberOf { join, follow, advertise, secret, .. } = &args.member;
    let (join, secret) = match &invited {
        Some(invite::Taken { servers, secret, .. }) => (&Some(servers.clone()), secret),
        None => (join, secret),
    };
    if advertise.is_some() && join.is_none() && follow.is_none() {
        return Err(Failure::new("--advertise is of a member").next("name the group with --join or --follow"));
    }
    if secret.is_some() && join.is_none() && follow.is_none() {
        return Err(Failure::new("--secret is of a member").next("name the group with --join or --follow"));
    }
    if let Some(servers) = join.as_ref().or(follow.as_ref()) {
        let at = advertise.as_ref().or(args.listen.first());
        let at =
            at.ok_or_else(|| Failure::new("a member needs an address").next("name it with --advertise"))?;
        // A mistake is found before the group is told of it.
        Server::rehearse(&config).map_err(|e| not_started(e).in_directory(&args.data))?;
        let servers = of_tls(servers.clone(), tls.as_ref());
        let (data, at, secret) = (args.data.clone(), at.clone(), secret.clone());
        let join =
            move || tercel::group::join(&data, &servers, &at, secret.as_deref()).map(|member| (member, at));
        let Some(joined) = signals.unless_told(join)? else {
            say!("stopped before the group had an answer; the same command goes on with the joining");
            return Ok(ExitCode::SUCCESS);
        };
        let (member, at) = joined?;
        if let Some(secret) = invited.as_ref().and_then(|invited| invited.secret.as_ref()) {
            // The member's directory has it now.
            let _ = std::fs::remove_file(secret);
        }
        let part = if follow.is_some() { ", a copy for readers" } else { "" };
        say!("member {member} of the group, reached at {at}{part}");
    }
    let watchdog = Watchdog::start()?;
    let mut is_first = true;
    loop {
        // Taken before the others go: one that comes in between is not lost.
        let next = Signals::take()?;
        match serve(args, config.clone(), (signals, &mut metrics, &watchdog), is_first) {
            // Pages and log are those of the copy from now on.
            Err(Ended::Replaced) => note("a copy of the space was taken from the group, and is served now"),
            Err(Ended::Failed(failure)) => return Err(failure.in_directory(&args.data)),
            Ok(()) => break,
        }
        (signals, is_first) = (next, false);
    }
    say!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// These addresses, with the server's own certificate if it has one.
fn of_tls(at: Addresses, tls: Option<&Tls>) -> Addresses {
    match tls {
        Some(tls) => at.with_tls(tls.clone()),
        None => at,
    }
}

/// Writes the events of the server to standard error from now on.
fn write_events(args: &args::Serve) {
    let level = match args.shown.log_level {
        args::LogLevel::Off => return,
        args::LogLevel::Warn => LevelFilter::WARN,
        args::LogLevel::Info => LevelFilter::INFO,
        args::LogLevel::Debug => LevelFilter::DEBUG,
    };
    let (lines, to_write) = mpsc::sync_channel::<Vec<u8>>(EVENTS_WAITING_MAX);
    std::thread::spawn(move || to_write.iter().for_each(|line| _ = std::io::stderr().write_all(&line)));
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(move || Lines(lines.clone()))
        .with_target(false)
        .log_internal_errors(false);
    // Without one that writes, the server goes on as well.
    let _ = match args.shown.log_json {
        true => lines.json().try_init(),
        false => lines.with_ansi(false).try_init(),
    };
}

/// Hands each event to the thread that writes. Those that it cannot take are dropped: a reader that is stuck
/// or gone, or a disk that is full, must not hold up the server.
struct Lines(SyncSender<Vec<u8>>);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.try_send(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Events that wait to be written, a line each.
const EVENTS_WAITING_MAX: usize = 1_000;

/// Writes a line for people. Nobody may read it.
fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Why a server is over that was not told to stop.
enum Ended {
    Replaced,
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for Ended {
    fn from(why: E) -> Ended {
        Ended::Failed(why.into())
    }
}

/// Serves until the server has stopped.
fn serve(
    args: &args::Serve,
    config: ServerConfig,
    (signals, metrics, watchdog): (Signals, &mut Option<Metrics>, &Watchdog),
    is_first: bool,
) -> Result<(), Ended> {
    let tls = config.network.tls.clone();
    let archived = &args.archived;
    let place = |url| Archiving::place(url, archived.archive_credentials.as_deref(), &args.data);
    let place = archived.archive.as_deref().map(place).transpose()?;
    let log_held_from = place.as_deref().and_then(|store| archived_log(&args.data, store));
    let server = Server::start(ServerConfig { log_held_from, ..config }).map_err(not_started)?;
    let begin = |store| Archiving::begin(&server, &args.data, store, archived.archive_every, note);
    let archiving = place.map(begin);
    let archiving = archiving.transpose().map_err(|why| Failure::of_sentence(&why.to_string()))?;
    let recovered = server.recovered();
    let how = match (recovered.created, recovered.torn) {
        (true, _) => "a new space".to_string(),
        (false, torn) => format!(
            "{} log record{} replayed in {:.0} ms{}",
            recovered.replayed,
            if recovered.replayed == 1 { "" } else { "s" },
            recovered.took.as_secs_f64() * 1e3,
            if torn { ", an unfinished write was cut" } else { "" }
        ),
    };
    let at: Vec<String> = server.addresses().iter().map(|a| a.to_string()).collect();
    let (at, space) = (at.join(" "), server.space().0);
    let listening = format!("listening on {at} ({}, space {space:016x}, {how})", server.backend());
    match is_first {
        true => say!("{listening}"),
        // Its starter may have gone after the first line.
        false => note(&listening),
    }
    if let Some(metrics) = metrics.take() {
        let at = server.addresses().first().ok_or_else(|| Failure::new("it listens nowhere"))?;
        metrics.serve(of_tls(at.into(), tls.as_ref()), tls.clone())?;
    }
    watchdog.watch(Some(server.stopper()));
    notify::tell("READY=1");
    // One that has just told its address knows an older list.
    let has_told = args.member.join.is_some() || args.member.advertise.is_some();
    if let Some(text) = elsewhere(&args.data, server.addresses()).filter(|_| !has_told) {
        tracing::warn!("{text}");
    }
    if !losses(&args.data).map_err(ServerError::from)?.is_empty() {
        let lost = args.data.join(LOST_NAME);
        eprintln!(
            "warning: an earlier repair could not save everything; {} says what, remove it when that is dealt with",
            lost.display()
        );
    }
    let warnings = server.warnings();
    let teller = std::thread::spawn(|| warnings.for_each(|warning| note(&format!("warning: {warning}"))));
    if args.until_eof {
        let stopper = server.stopper();
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            stopper.stop();
        });
    }
    let result = signals.wait_for(server, Duration::from_secs(args.drain.into()));
    watchdog.watch(None);
    drop(archiving);
    let _ = teller.join();
    match result {
        Err(ServerError::Replaced) => Err(Ended::Replaced),
        result => Ok(result?),
    }
}

/// The warning of a member that listens at another port than others reach it at, if its group knows it so.
/// Something between may lead from the one to the other, so it is no error.
fn elsewhere(dir: &Path, listens: &[Address]) -> Option<String> {
    let found = inspect(dir).ok()?;
    let (.., reached) = found.members.iter().find(|(id, ..)| *id == found.member)?;
    let port = |at: &str| at.rsplit_once(':').map(|(_, port)| port.to_string());
    let known = port(reached).filter(|_| !reached.starts_with("unix:"))?;
    if listens.iter().any(|at| port(&at.to_string()).as_ref() == Some(&known)) {
        return None;
    }
    let listens: Vec<String> = listens.iter().map(Address::to_string).collect();
    Some(format!(
        "others reach this member at {reached}, and it listens at {}: unless something leads from there to here, listen there, or \
         tell the group another address with --join and --advertise",
        listens.join(" ")
    ))
}

/// Why it did not start. A command that opens a directory may ask its server instead; a second server must
/// have the directory.
fn not_started(e: ServerError) -> Failure {
    let ServerError::Disk(DiskError::Locked { dir, pid }) = &e else { return e.into() };
    let (holder, how) = match pid {
        Some(pid) => (format!("process {pid}"), format!("`kill {pid}`")),
        None => ("another process".into(), format!("`fuser {}` names it", dir.join("lock").display())),
    };
    Failure::new(format!("{} is in use by {holder}: a directory has one server at a time", dir.display()))
        .next(format!(
            "stop that process ({how}) and run the same command again, or name another directory with --data"
        ))
}
