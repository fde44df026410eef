//! Starting a server: lock the directory, open the pages, replay the log, listen.

use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use tercel_engine::limits;
use tercel_engine::order::quorum::{Config as Order, Quorum};
use tercel_engine::rpc::{Offers, Services};
use tercel_engine::schedule::Bounds;
use tercel_engine::server::{
    Audits, Checkpoint, CollectConfig, Effect, Effects, Input, LogEnds, Membership, Recovery,
    Server as Machine, ServerConfig as MachineConfig,
};
use tercel_engine::time::{Now, micros};
use tercel_events::{Config as EventsConfig, EventQueue, Watch};
use tercel_wire::class::ROOT_HEAD;
use tercel_wire::id::{LogPosition, SpaceId, Stamp, ViewId, Written};
use tercel_wire::log::Record;
use tercel_wire::page::{PAGE_BYTES, Page};

use super::application::{self, Scratch};
use super::audit::{AuditLog, Auditing};
use super::datagrams::Datagrams;
use super::door::Door;
use super::group::Group;
use super::journal::Journal;
use super::links::{Links, Peer};
use super::reading::{Reading, sealed};
use super::records::Records;
use super::run::{DATAGRAMS_KEY, DOOR_KEY, LISTENER_KEY, Loop};
use super::shared::Channels;
use super::sockets::Sockets;
use super::store::Store;
use super::warnings::Board;
use super::{Network, Post, Server, ServerConfig, ServerError};
use crate::address::{Address, Listening};
use crate::disk::DiskError;
use crate::disk::dir::{DataDir, MAKING_NAME, NewSpace, is_backup, random_u64, refuse_making};
use crate::disk::held::HeldDir;
use crate::disk::log::{Log, LogConfig, LogThread, Opened as LogOpened};
use crate::disk::pages::{PageRead, PageStore, checkpoint, stored_upto};
use crate::disk::votes::Votes;
use crate::once::once_method;
use crate::proving::Prover;
use crate::sharing::SharedMemory;
use crate::stream::Connector;

/// The findings of recovery in the directory.
#[derive(Debug, Clone, Default)]
pub struct Recovered {
    /// Set if the directory was created.
    pub created: bool,
    /// Log records replayed.
    pub replayed: u64,
    /// Set if the log ended in an unfinished write, which recovery cut. The server had confirmed that write
    /// to no client.
    pub torn: bool,
    /// The duration of recovery.
    pub took: Duration,
    /// The last commit.
    pub stamp: Stamp,
}

/// The open parts of a recovered directory.
pub(crate) struct Opened {
    pub dir: DataDir,
    pub pages: Box<dyn PageStore>,
    pub machine: Machine,
    /// Its votes, if it is a member of a group, and what a replica is recovered with.
    pub member: Option<(Votes, (MachineConfig, u64))>,
    /// The end that is proven to members and operators, if it has a secret.
    pub prover: Option<Prover>,
    pub log: Log,
    pub applied: Stamp,
    pub recovered: Recovered,
    /// The first effects that the machine wants done.
    pub out: Effects,
    pub bounds: Bounds,
    /// Threads for slow procedures.
    pub workers: usize,
    /// Servers of other spaces.
    pub peers: Vec<Peer>,
    /// The clients that may hand over channels.
    pub shared_memory: SharedMemory,
    pub network: Network,
    /// The audit, if one is kept.
    pub audit: Option<AuditLog>,
}

/// An error on the way through the log: of the disk, or of what the records mean.
pub(super) enum ReplayError {
    Disk(DiskError),
    Recovery(tercel_engine::server::RecoveryError),
}

impl From<DiskError> for ReplayError {
    fn from(e: DiskError) -> ReplayError {
        ReplayError::Disk(e)
    }
}

impl From<ReplayError> for ServerError {
    fn from(e: ReplayError) -> ServerError {
        match e {
            ReplayError::Disk(e) => ServerError::Disk(e),
            ReplayError::Recovery(e) => ServerError::Recovery(e),
        }
    }
}

/// Opens and recovers; the machine leads in its next view, whose own entry is on disk. A server of an
/// application keeps no space.
pub(super) fn open(config: &ServerConfig, application: Option<&str>) -> Result<Opened, ServerError> {
    let begun = Instant::now();
    config.check()?;
    if is_backup(&config.dir) {
        return Err(ServerError::Backup(config.dir.clone()));
    }
    // The restore itself serves what it makes, to settle parts of transactions, and creates nothing.
    if config.create && config.dir.parent().is_some_and(|parent| parent.ends_with(MAKING_NAME)) {
        refuse_making(&config.dir)?;
    }
    if !config.create && DataDir::is_absent(&config.dir) {
        return Err(ServerError::NoSpace(config.dir.clone()));
    }
    let mut log_config = LogConfig { bytes_max: config.log_bytes_max, ..LogConfig::default() };
    log_config.held_from = config.log_held_from.map_or(log_config.held_from, LogPosition);
    if application.is_some() {
        log_config.segment_bytes = application::SEGMENT_BYTES;
    }
    let id = application.map(application::space);
    let new = NewSpace { id, page_bytes: PAGE_BYTES as u32, segment_bytes: log_config.segment_bytes };
    let dir = DataDir::open(&config.dir, &new)?;
    if dir.is_member() && config.listen.is_empty() {
        return Err(ServerError::Member(config.dir.clone()));
    }
    let open_audit = |of: &Auditing| AuditLog::open(&of.file).map_err(DiskError::io("open", &of.file));
    let audit = config.audit.as_ref().map(open_audit).transpose()?;
    let secret = dir.secret()?;
    if dir.is_member() && secret.is_none() {
        return Err(ServerError::NoSecret(config.dir.clone()));
    }
    let space = dir.space().id;
    let pages = dir.pages()?;
    let applied = pages.applied_stamp()?;
    let checkpoint = checkpoint(&pages)?;
    let mut first = Vec::new();
    if pages.read(ROOT_HEAD.page(), &mut first)?
        && Page::parse(&first, ROOT_HEAD.page()).is_ok_and(|page| page.space_low() != space.0 as u32)
    {
        let what = "it is of another space than the directory; put the directory's own back".into();
        return Err(DiskError::Damaged { file: dir.pages_file(), position: None, what }.into());
    }
    let keyed = Offers::keeping(once_method);
    let machine_config = MachineConfig {
        mob_bytes: config.mob_bytes,
        cache_bytes: config.cache_bytes,
        view_first: dir.space().view_first,
        subscriptions_max: config.subscriptions_max,
        keepalive_ms: millis(config.keepalive.max(KEEPALIVE_MIN)),
        collect: CollectConfig {
            is_automatic: config.collect.percent > 0,
            grace_ms: millis(config.collect.grace.min(COLLECT_GRACE_MAX)).into(),
            made_percent: config.collect.percent,
            ..CollectConfig::default()
        },
        methods: config.methods.iter().fold(keyed, |offers, methods| offers.with(*methods)),
        services: config.services.iter().fold(Services::default(), |all, service| all.with(service.clone())),
        jobs_max: limits::JOBS_MAX + config.workers,
        application: application.map(|_| application::tables_from(&config.dir)).transpose()?,
        audits: config.audit.as_ref().map_or(Audits::Nothing, Auditing::audits),
        ..MachineConfig::default()
    };
    // Any page may be in the store after a crash, so every one is looked for there before it counts as new.
    let stored_end = if dir.is_new() { 0 } else { tercel_wire::id::PageId::MAX.get() };
    let mut recovery = Recovery::new(machine_config.clone(), space, checkpoint.as_ref(), stored_end)?;
    let log_dir = dir.log_dir()?;
    let (mut out, begun_with) = (Effects::default(), random_u64(&config.dir)?);
    let (log, opened, machine, votes) = match dir.is_member() {
        true => {
            let upto = stored_upto(&pages)?;
            let (log, opened) = replay_member(&log_dir, (space, log_config), upto, &mut recovery)?;
            whole(&log, &opened, &recovery, checkpoint.as_ref())?;
            let order = Order { silence_us: micros(config.silence), ..Order::default() };
            let of_group = (order, begun_with);
            let (machine, votes) = member(&dir, &log, &opened, recovery, of_group, &mut out)?;
            (log, opened, machine, Some(votes))
        }
        false => {
            let from = recovery.replay_from();
            let (mut log, opened) = Log::open(&log_dir, space, log_config, from, |record| {
                let Record { view, stamp, kind, payload, .. } = record;
                recovery.replay(view, stamp, kind.get(), payload).map_err(ReplayError::Recovery)
            })?;
            whole(&log, &opened, &recovery, checkpoint.as_ref())?;
            let end = log.tail().last.position;
            // Clients take all servers of an application for one, whose view is always the same.
            let incarnation = application.map_or(begun_with as u32, |_| application::INCARNATION);
            let mut machine = recovery.finish(Now(0), incarnation, end, &mut out)?;
            append(&mut log, &mut out)?;
            log.sync()?;
            // If there was much to replay, this already begins to install it.
            machine.handle(Now(0), Input::Written(0, log.tail().last.position), &mut out);
            (log, opened, machine, None)
        }
    };
    let recovered = Recovered {
        created: dir.is_new(),
        replayed: opened.replayed,
        torn: opened.cut.is_some(),
        took: begun.elapsed(),
        stamp: machine.visible(),
    };
    let prover = match (secret, &votes) {
        (Some(secret), Some(votes)) => {
            let found = votes.remembered();
            Some(Prover::member(secret, space, found))
        }
        (secret, _) => secret.map(Prover::operator),
    };
    Ok(Opened {
        dir,
        pages: Box::new(pages),
        machine,
        member: votes.map(|votes| (votes, (machine_config, micros(config.silence)))),
        prover,
        log,
        applied,
        recovered,
        out,
        bounds: Bounds::default(),
        workers: config.workers,
        peers: config.peers.clone(),
        shared_memory: config.shared_memory,
        network: config.network.clone(),
        audit,
    })
}

/// Replays the log of a member as far as it is known to be stable, and keeps the rest. `upto` is what the
/// page store says of that.
pub(super) fn replay_member(
    dir: &HeldDir,
    (space, config): (SpaceId, LogConfig),
    upto: Stamp,
    recovery: &mut Recovery,
) -> Result<(Log, LogOpened), ReplayError> {
    let from = recovery.replay_from();
    Log::open_member(dir, space, config, from, upto, |record, is_stable| {
        if !is_stable {
            recovery.keep(sealed(record));
            return Ok(());
        }
        let Record { view, stamp, kind, payload, .. } = record;
        recovery.replay(view, stamp, kind.get(), payload).map_err(ReplayError::Recovery)
    })
}

/// Refuses a log that lacks what the pages have.
pub(super) fn whole(
    log: &Log,
    opened: &LogOpened,
    recovery: &Recovery,
    checkpoint: Option<&Checkpoint>,
) -> Result<(), ServerError> {
    recovery.begins_behind(opened.after)?;
    let ends = log.tail().last.stamp;
    if let Some(checkpoint) = checkpoint.filter(|checkpoint| ends < checkpoint.applied) {
        let what = format!("it ends with commit {ends}, and the pages are up to {}", checkpoint.applied);
        return Err(DiskError::Damaged { file: log.dir().path().into(), position: None, what }.into());
    }
    Ok(())
}

/// A member of a group begins: it leads when others have voted for it.
fn member(
    dir: &DataDir,
    log: &Log,
    opened: &LogOpened,
    recovery: Recovery,
    (config, seed): (Order, u64),
    out: &mut Effects,
) -> Result<(Machine, Votes), ServerError> {
    let last = log.tail().last;
    let votes = dir.votes(last.view, random_u64(dir.path())?)?;
    let remembered = votes.remembered();
    let (me, group, start) = (remembered.me, remembered.group, remembered.start);
    if remembered.promised.number.max(last.view.number) >= ViewId::NUMBER_MAX {
        let text = format!(
            "the views of {} are used up, as by a packet of a stranger to a build before this one, so no member can lead: stop \
             the others, and run `tercel group rescue --data {}` on the directory whose log ends last",
            dir.path().display(),
            dir.path().display()
        );
        return Err(ServerError::Stopped(text));
    }
    let is_listed = remembered.members.get(me).is_some();
    let LogOpened { begins, runs, stable, is_sure, .. } = opened;
    let ends = LogEnds { begins: *begins, runs, stable: *stable, is_sure: *is_sure };
    let order = recovery.start(remembered, ends);
    let mut order = Quorum::new(config, order, seed, Now(0));
    order.joined(remembered.members.clone());
    let joined = ViewId::new(recovery.view().number, start as u32);
    let end = Written { cuts: 0, position: last.position };
    let mut machine = recovery.finish_with(Now(0), Box::new(order), joined, end, out)?;
    machine.set_membership(match is_listed {
        true => Membership::new(group, me).with_starts(&remembered.starts),
        false => Membership::joined(group, me).with_starts(&remembered.starts),
    });
    Ok((machine, votes))
}

/// Appends the log records among some effects, which are taken out.
fn append(log: &mut Log, out: &mut Effects) -> Result<(), ServerError> {
    let mut records = Records::new(log.tail().last);
    for effect in out.list.extract_if(.., |effect| matches!(effect, Effect::Append(..))) {
        if let Effect::Append(position, entry) = effect {
            records.add(position, entry).map_err(ServerError::Stopped)?;
        }
    }
    if let Some((bytes, _)) = records.take(Vec::new).map_err(ServerError::Stopped)? {
        log.append(&bytes)?;
    }
    Ok(())
}

/// Sees whether a server could start: its addresses are free, and so is its directory.
pub(super) fn rehearse(config: &ServerConfig) -> Result<(), ServerError> {
    check(config)?;
    if !DataDir::is_absent(&config.dir) {
        DataDir::see_free(&config.dir)?;
    }
    listen(config).map(drop)
}

fn check(config: &ServerConfig) -> Result<(), ServerError> {
    config.check()?;
    if let Some(tls) = config.network.tls.as_ref().filter(|tls| tls.identity().group().is_none()) {
        return Err(ServerError::NotMember(tls.dir().display().to_string()));
    }
    if config.network.allow_plain_remote {
        return Ok(());
    }
    let is_remote = |address: &&Address| config.network.tls.is_none() && !address.is_local();
    config.listen.iter().find(is_remote).map_or(Ok(()), |at| Err(ServerError::Remote(at.clone())))
}

pub(super) fn start(config: ServerConfig) -> Result<Server, ServerError> {
    start_as(config, None)
}

/// Starts a server that keeps no space.
pub(super) fn start_application(config: ServerConfig, name: &str) -> Result<Server, ServerError> {
    let scratch = Scratch::new()?;
    let mut server = start_as(ServerConfig { dir: scratch.path().into(), ..config }, Some(name))?;
    server.scratch = Some(scratch);
    Ok(server)
}

fn start_as(config: ServerConfig, application: Option<&str>) -> Result<Server, ServerError> {
    check(&config)?;
    // In a new directory the server makes nothing before it has its addresses, so that a taken port leaves no
    // files. An existing space is recovered first: a client that can connect finds it ready.
    let early = if DataDir::is_absent(&config.dir) { Some(listen(&config)?) } else { None };
    let opened = open(&config, application)?;
    let listening = match early {
        Some(early) => early,
        None => listen(&config)?,
    };
    launch(opened, listening, config.spin)
}

/// Runs what was opened on a thread of its own.
pub(super) fn launch(
    opened: Opened,
    listening: Vec<Listening>,
    spin: Option<Duration>,
) -> Result<Server, ServerError> {
    let addresses = listening.iter().map(|listening| listening.address.clone()).collect();
    let (space, recovered) = (opened.machine.space(), opened.recovered.clone());
    // The queue belongs to the thread that runs it, so it is opened there and its handle sent back.
    let (tell, told) = std::sync::mpsc::channel();
    let (board, warnings) = Board::new();
    let thread = std::thread::Builder::new().name("tercel-server".into()).spawn(move || {
        let prepared = prepare(opened, listening, spin, board);
        match prepared {
            Ok(mut running) => {
                let _ = tell.send(Ok((running.backend(), running.inside())));
                running.run()
            }
            Err(e) => {
                let _ = tell.send(Err(e));
                Ok(())
            }
        }
    })?;
    let (backend, inside) =
        told.recv().map_err(|_| ServerError::Stopped("its loop did not start".into()))??;
    Ok(Server {
        handle: inside.handle.clone(),
        inside,
        thread: Some(thread),
        addresses,
        backend,
        space,
        recovered,
        warnings,
        scratch: None,
    })
}

/// Listens everywhere, or nowhere.
pub(super) fn listen(config: &ServerConfig) -> Result<Vec<Listening>, ServerError> {
    let listened = config.listen.iter().map(|address| {
        let listening = address.listen(config.network.socket_mode);
        listening.map_err(|source| ServerError::Listen { address: address.clone(), source })
    });
    listened.collect()
}

fn prepare(
    opened: Opened,
    listening: Vec<Listening>,
    spin: Option<Duration>,
    board: Board,
) -> Result<Loop, ServerError> {
    let queue: EventQueue<Post> = EventQueue::open(EventsConfig {
        spin_us: spin.unwrap_or_default().as_micros().try_into().unwrap_or(u64::MAX),
        write_bytes_max: SLOW_READER_BYTES,
        sources_max: sources_max(),
        linger_ms: limits::LINGER_US / 1_000,
        ..EventsConfig::default()
    })?;
    let (mut files, mut udp) = (Vec::new(), Vec::new());
    let Network { tls, allow_plain_remote, .. } = opened.network;
    let is_remote = allow_plain_remote && listening.iter().any(|listening| !listening.address.is_local());
    if is_remote {
        tracing::warn!(
            "other machines may connect in plain words: what they say can be read and changed on its way"
        );
    }
    let mut queue = Sockets::new(queue, tls.as_ref(), (allow_plain_remote, is_remote))?;
    for Listening { file, fd, datagrams, .. } in listening {
        let declared = match file {
            Some(_) => queue.declare_holding_listener(fd, DOOR_KEY),
            None if tls.is_some() => queue.declare_holding_listener(fd, LISTENER_KEY),
            None => queue.declare_listener(fd, LISTENER_KEY),
        };
        declared.map_err(|e| ServerError::Stopped(format!("cannot watch a listener: {e}")))?;
        files.extend(file);
        udp.extend(datagrams);
    }
    let datagrams = Datagrams::new(udp, tls.is_some());
    for (key, socket) in (DATAGRAMS_KEY..).zip(datagrams.watched()?) {
        let declared = queue.declare_fd(socket, Watch::Read, key);
        declared.map_err(|e| ServerError::Stopped(format!("cannot watch a socket: {e}")))?;
    }
    let handle = queue.handle();
    let last = opened.log.tail().last;
    let post = handle.clone();
    let log = LogThread::start(opened.log, move |done| super::store::post(&post, Post::from(done)))?;
    let log_dir = opened.dir.log_dir().map_err(ServerError::Disk)?;
    let reading = Reading::new(log_dir.clone(), opened.machine.space(), handle.clone());
    let member = opened.member.zip(opened.prover.clone()).map(|((votes, config), prover)| {
        let dirs = (opened.dir.path(), log_dir);
        let how = (prover, Connector::new(tls.clone()));
        Group::start((votes, how), opened.machine.space(), dirs, config, handle.clone())
    });
    let group = member.transpose()?;
    let links = Links::new(opened.peers, tls.as_ref(), handle.clone());
    let store = (Store::start(opened.pages, opened.applied, handle)?, group, links);
    let log = (log, last, reading);
    let decided = (opened.machine, opened.out);
    let by_memory = (Channels::new(spin), Door::new(opened.shared_memory));
    let bounds = (opened.bounds, opened.workers);
    let held = (opened.dir, files, opened.prover);
    let journal = Journal::new(board, opened.audit);
    Ok(Loop::new((queue, by_memory, datagrams), decided, log, store, held, bounds, journal))
}

/// As many clients as the events' default allows, if so many descriptors are left beside the server's own. If
/// clients took all of them, the log could open no segment and no client could commit.
fn sources_max() -> usize {
    let default = EventsConfig::default().sources_max;
    match getrlimit(Resource::Nofile).current {
        Some(limit) => (limit.saturating_sub(OWN_DESCRIPTORS) as usize).clamp(SOURCES_MIN, default),
        None => default,
    }
}

/// Descriptors of log, pages, directory, events and standard streams, several times over, for an embedding
/// process has some of its own.
const OWN_DESCRIPTORS: u64 = 64;

/// The least number of sources. If not even these descriptors are left, accepting meets the limit itself, and
/// rests.
const SOURCES_MIN: usize = 16;

/// Unsent bytes at which a client that does not read is cut off: 16 MiB beside the largest results of as many
/// calls as run at once by default.
pub(super) const SLOW_READER_BYTES: usize = (16 << 20) + 4 * limits::CALL_MAX;

/// Unsent bytes of a client at which the procedures of its calls with streams wait before they send more: far
/// below the bound at which the client is cut off, for the answers to its other calls, and several items as
/// large as a message.
pub(super) const ITEMS_UNSENT_MAX: usize = 4 << 20;

/// A longer one could hold up what is freed for ever.
const COLLECT_GRACE_MAX: Duration = Duration::from_secs(86_400);

/// A shorter keepalive would take a busy machine's pauses for silence.
const KEEPALIVE_MIN: Duration = Duration::from_millis(100);

fn millis(time: Duration) -> u32 {
    time.as_millis().try_into().unwrap_or(u32::MAX)
}
