//! Inputs and effects: the values that pass between a server and its host.
//!
//! Everything that a view's effects ask for names the view into which the replica was recovered; an answer
//! that names another is of a predecessor, and is dropped.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use tercel_wire::access::Principal;
use tercel_wire::frame::{self, Header, Kind};
use tercel_wire::id::{ClientId, EntryId, LogPosition, MemberId, OpId, PageId, Stamp, ViewId};
use tercel_wire::message::{Challenge, Join, Refusal, Right};

use crate::consult::{Consult, Consulted};
use crate::limits;
use crate::order::quorum::members::{Electorate, Members};
use crate::order::quorum::remembered::Started;
use crate::order::{Found, Sealed};
use crate::replica::saved::Saved;
use crate::rpc::streams::{Said, Violation};
use crate::rpc::{Job, JobDone, JobId, Offers, Services};
use crate::time::{Times, in_words};

/// A connection, named by the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn(pub u64);

/// The bit in the names of connections that a server asks for. Hosts do not name theirs so.
const UPSTREAM_BIT: u64 = 1 << 62;

impl Conn {
    /// The name of a connection to the leader.
    pub(crate) fn upstream(number: u64) -> Conn {
        Conn(UPSTREAM_BIT | number)
    }

    /// Says whether it is one that [`Effect::Connect`] asked for.
    pub fn is_upstream(self) -> bool {
        self.0 & UPSTREAM_BIT != 0 && self.0 >> 63 == 0
    }
}

/// The connection that the server's own session would have. No host gives it to another.
pub(crate) const INSIDE: Conn = Conn(u64::MAX);

/// The host's knowledge of the other end of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Who {
    /// The connection leaves no host.
    pub is_one_host: bool,
    /// The other end is of the server's own process, which may do everything.
    pub is_own_process: bool,
    /// The user of the process at the other end of a Unix socket.
    pub uid: Option<u32>,
    /// The name that the other end has proven to the host: a client's or a member's.
    pub name: Option<Principal>,
}

impl Who {
    /// The principal: the proven name, else the user.
    pub fn principal(&self) -> Principal {
        self.name.clone().or(self.uid.map(Principal::Uid)).unwrap_or_default()
    }
}

/// Settings of one process.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Bytes of modified objects held in memory. A quarter of it starts installing; at all of it commits wait
    /// for that, and answer `Full` when half as much is waiting. Larger means fewer page writes, a longer log
    /// and a longer recovery.
    pub mob_bytes: usize,
    /// Bytes of pages cached. Larger means fewer reads of the store.
    pub cache_bytes: usize,
    /// Silence after which a client is asked, in milliseconds; twice that ends its session.
    pub keepalive_ms: u32,
    /// Pages that one session may be subscribed to; beyond it the server asks for pages back. Each costs some
    /// 50 bytes.
    pub subscriptions_max: usize,
    /// Pages that all sessions together may be subscribed to; beyond it the server asks the session that has
    /// most for pages back.
    pub subscriptions_all_max: usize,
    /// The number of the first view that this history of the space may have: of a space that was restored
    /// from a backup, one that the history it was taken from never comes to. A client of another view has
    /// seen commits that are not here.
    pub view_first: u32,
    /// When what no root reaches is collected.
    pub collect: CollectConfig,
    /// The methods that are run here.
    pub methods: Offers,
    /// The services that are offered here.
    pub services: Services,
    /// Calls of slow procedures that the host has at once, running and waiting; one more is refused. Half of
    /// them may be one client's.
    pub jobs_max: usize,
    /// For a server without a space, which offers services and refuses what would write: a number of its
    /// process, so that its clients, which take such servers for one, tell their tables of calls apart.
    pub application: Option<u32>,
    /// The events that belong into the audit of the host: [`Effect::Audit`] tells of them.
    pub audits: Audits,
}

/// When what no root reaches is collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectConfig {
    /// Set if a collection begins by itself; else only a client's request begins one.
    pub is_automatic: bool,
    /// Time for which unreachable objects stay before they are freed, in milliseconds: programs may still
    /// hold references to them.
    pub grace_ms: u64,
    /// A collection begins once there are so many objects and chunks of large values more than the last one
    /// left, and so many in a hundred of those.
    pub made_min: u64,
    /// See `made_min`.
    pub made_percent: u8,
}

impl Default for CollectConfig {
    fn default() -> CollectConfig {
        CollectConfig { is_automatic: true, grace_ms: 600_000, made_min: 100_000, made_percent: 50 }
    }
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            mob_bytes: 256 << 20,
            cache_bytes: 64 << 20,
            keepalive_ms: limits::KEEPALIVE_MS,
            subscriptions_max: limits::SUBSCRIPTIONS_MAX,
            subscriptions_all_max: limits::SUBSCRIPTIONS_ALL_MAX,
            view_first: 0,
            collect: CollectConfig::default(),
            methods: Offers::default(),
            services: Services::default(),
            jobs_max: limits::JOBS_MAX,
            application: None,
            audits: Audits::Nothing,
        }
    }
}

/// The reasons why a page could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// The bytes of the page are damaged: a repair or a backup is needed.
    #[error("{0}")]
    Damaged(String),
    /// The system or the store refuses to read, which tells nothing about the bytes: the operator looks at
    /// the machine.
    #[error("{0}")]
    Refused(String),
}

impl Unread {
    /// The reason that a request for the page is refused with.
    pub(crate) fn refusal(&self) -> Refusal {
        match self {
            Unread::Damaged(_) => Refusal::Corrupt,
            Unread::Refused(_) => Refusal::Unavailable,
        }
    }

    /// The text of the failure and the operator's next step.
    pub(crate) fn with_next_step(&self) -> String {
        match self {
            Unread::Damaged(why) => format!("{why}; `tercel check --repair` restores what the log holds"),
            Unread::Refused(why) => format!("{why}; nothing is known to be damaged"),
        }
    }
}

/// The bytes that prove that one end of a connection has the secret of a group.
pub type Proof = [u8; 32];

/// Something that happened to a server.
#[derive(Debug)]
pub enum Input<'a> {
    /// A client connected, and the host knows this of it.
    Connected(Conn, Who),
    /// A frame arrived, checked.
    Frame(Conn, Header, &'a [u8]),
    /// The client shows that it is there, though what it says is not read now: it takes what it is sent.
    Alive(Conn),
    /// The connection is gone.
    Disconnected(Conn),
    /// The connection that [`Effect::Connect`] asked for is there; if it cannot be made, it is gone.
    Reached(Conn),
    /// The host has no room for the connection's bytes: its client receives the reason, and the connection
    /// ends.
    NoRoom(Conn, &'static str),
    /// The answer to [`Effect::Challenge`]: what the host says, and the proof that it expects. None if it has
    /// no secret.
    Challenged(Conn, Option<(Challenge, Proof)>),
    /// The answer to [`Effect::SaveStart`]: it is durable.
    StartSaved(MemberId, Started),
    /// A connection to another member was made, and both ends have proven themselves: the start of the other
    /// one, and starts of its directory that others may know, as in [`tercel_wire::message::Opening`].
    Answered(MemberId, Started, Vec<(u64, u64)>),
    /// Another member says this on the connection that was made to it.
    Heard(MemberId, &'a [u8]),
    /// The answer to [`Effect::Vouch`]: set if it is so.
    Vouched(Conn, bool),
    /// Another member of the group says this, on a connection on which it has proven itself to the host.
    Packet(MemberId, &'a [u8]),
    /// It refuses this one, or has no part for it in the group: with this sentence.
    RefusedBy(MemberId, String),
    /// The process of another member has ended, or seems to have.
    Gone(MemberId),
    /// A copy of the space is whole: it was asked for in this view, and its log ends with this entry.
    Copied(ViewId, EntryId),
    /// This member is to lead instead.
    MoveLead(MemberId),
    /// The log is on disk up to this position, as it was after so many cuts ([`Effect::Cut`]).
    Written(u32, LogPosition),
    /// The promise with this number, and every earlier one, is durable ([`Effect::Save`]).
    Saved(u64),
    /// The answer to [`Effect::ReadLog`] from this position on.
    FoundLog(LogPosition, Found),
    /// A page was read: its bytes, or none if the store has no such page.
    Read(ViewId, PageId, Result<Option<Vec<u8>>, Unread>),
    /// The store has completed [`Effect::Install`].
    Installed(ViewId),
    /// The host has done [`Effect::Pin`], or gives the reason why it cannot be done.
    Pinned(ViewId, u64, Result<(), String>),
    /// The result of [`Effect::ReadPinned`]: those of the pages that exist, in their order.
    PinnedRead(ViewId, u64, Result<Vec<(PageId, Vec<u8>)>, String>),
    /// A call that [`Effect::Run`] asked for has come to its end.
    Ran(ViewId, JobDone),
    /// A call that runs sends an item, or says how much of its items it has consumed.
    Says(ViewId, JobId, Said),
    /// The answer to [`Effect::Consult`].
    Consulted(ViewId, Consult, Consulted),
    /// The caller has broken the protocol by a message on a stream of this call.
    Violated(ViewId, JobId, Violation),
    /// The host is about to stop: no new call is begun, and those that are under way come to their end.
    Drain,
    /// The disk is full, or no longer.
    DiskFull(bool),
    /// The room that the log has left of its allowance. Reported again after every truncation while it is not
    /// [`LogRoom::Free`].
    LogRoom(LogRoom),
    /// Time passed.
    Time,
}

/// Levels of room that the log has left of its allowance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogRoom {
    /// Enough.
    Free,
    /// The log is longer than it should be: it is made shorter.
    Tight,
    /// It must not become longer: commits wait until it is shorter, and are answered `Full` when too many
    /// wait.
    Full,
}

/// Actions that a server asks its host for.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send these bytes.
    Send(Conn, Vec<u8>),
    /// Close the connection once what was sent is out.
    Close(Conn),
    /// A connection says that it is of a member or an operator: draw a nonce, and tell what proves it. The
    /// host answers with [`Input::Challenged`].
    Challenge(Conn, Join),
    /// Remember durably that a member has begun with this start, unless a higher one is known. The host
    /// answers with [`Input::StartSaved`].
    SaveStart(MemberId, Started),
    /// See whether the other end of the connection is a process on this host, of the superuser or of the user
    /// that the server runs as. The host answers with [`Input::Vouched`].
    Vouch(Conn),
    /// Connect to the server at this address, under this name.
    Connect(Conn, String),
    /// Send this to another member of the group.
    Packet(MemberId, Arc<Vec<u8>>),
    /// Append this record to the log, at this position; sync when nothing else is waiting.
    Append(LogPosition, Sealed),
    /// Erase, durably, all records of the log above this position, those that wait to be written included.
    /// Nothing is appended before that is done. The host counts cuts from 1 since its process began: a batch
    /// of the log has the number of cuts that were made before it, and [`Input::Written`] names that. A cut
    /// that is done is reported by [`Input::Written`], too, unless a deeper one is to follow
    /// ([`crate::order::log_queue`]).
    Cut(LogPosition),
    /// Remember durably, with this number, that this view is promised, and this electorate.
    Save(u64, ViewId, Option<Electorate>),
    /// Read entries of the log from this position on, up to so many bytes.
    ReadLog(LogPosition, usize),
    /// Other members need the log from this position on, whatever [`Effect::Truncate`] says.
    KeepFrom(LogPosition),
    /// Run this call on a thread of its own.
    Run(ViewId, Job),
    /// The client of this call, which was to run, says this on its streams.
    Hear(ViewId, JobId, Said),
    /// The client of this call is gone, or waits no longer: whatever waits at its streams is notified.
    EndStreams(JobId),
    /// Ask another space, or tell it. The host answers with [`Input::Consulted`], in any case.
    Consult(ViewId, Consult),
    /// Read this page.
    Read(ViewId, PageId),
    /// Store these pages and, if there is one, the checkpoint, all in one step.
    Install {
        /// For the answer.
        view: ViewId,
        /// The fate of each page.
        pages: Vec<PageUpdate>,
        /// The pages are as of this stamp. All entries up to it are stable, and a member that begins again
        /// must know that: its log may not say so yet.
        upto: Stamp,
        /// The state that recovery will start from.
        checkpoint: Option<Checkpoint>,
    },
    /// Keep the pages as they are after the installs asked for so far, under this number, until
    /// [`Effect::Unpin`]. Numbers only go up; one is kept at a time.
    Pin(ViewId, u64),
    /// Read pages of what is kept.
    ReadPinned {
        /// For the answer.
        view: ViewId,
        /// Under which number.
        pin: u64,
        /// The first page.
        from: PageId,
        /// The number of page ids.
        count: u32,
    },
    /// The pages kept under this number, or to be kept, are no longer needed.
    Unpin(u64),
    /// Entries below this stamp are no longer needed.
    Truncate(Stamp),
    /// The log has everything again that it may have lost: that is to be remembered durably.
    Sure,
    /// The log of this view's leader, at this address, no longer has what this member lacks: the host takes a
    /// copy of the space from there into a place of its own, unless a copy is under way.
    /// [`Input::Copied`] tells its end.
    Copy(ViewId, String),
    /// The copy is this member's from now on: once this is durable, the process ends, and the next one opens
    /// the copy's pages and log in place of its own.
    Adopt,
    /// These are the members of the group now: the host connects to each.
    Members(Members),
    /// The connection is of this member, which has proven itself: what it sends comes before what clients
    /// send, and waits for nothing.
    Joined(Conn, MemberId),
    /// Calls that come over datagrams of this connection are of the session's client, as long as the session
    /// lasts or until it names another one.
    Datagrams(Conn, u64),
    /// The leader was deposed. The host lets what the reader and the installer are doing come to its end,
    /// recovers a replica from checkpoint and log, of all entries up to this position and of none after it,
    /// once its own disk has those, and hands it to [`crate::server::Server::rejoin`]. Meanwhile the order
    /// goes on.
    Recover(LogPosition),
    /// Something that belongs in the audit.
    Audit(Audited),
    /// The server cannot go on.
    Stop(String),
}

/// An event of an audit: which principal did it, and as which client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audited {
    pub who: Arc<Principal>,
    /// The client; none before a greeting.
    pub client: Option<ClientId>,
    pub what: Audit,
}

/// Kinds of events of an audit. No argument of a call is among them, and no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Audit {
    /// A client has greeted.
    Connected,
    /// A message was refused: with this sentence, which names what is lacking.
    Refused(String),
    Granted(Right),
    Revoked(Right),
    /// A class of this name.
    Defined(String),
    Backup,
    /// A request that operators and members make.
    Operated(Kind),
    /// An operator has ended the part that was prepared at a stamp, whatever its space decides. Told to every
    /// host, also to one without an audit.
    Settled {
        /// The transaction.
        of: OpId,
        /// The stamp of the prepare.
        prepared: Stamp,
        /// Set if the part is committed.
        is_committed: bool,
    },
    /// A method or procedure, as `INTERFACE.METHOD`.
    Called(String),
}

/// The events that a host puts into an audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Audits {
    /// No event.
    #[default]
    Nothing,
    /// Every event but calls.
    Events,
    /// Every event, calls too: no call takes the shortest way.
    Calls,
}

/// A page with checksum and stamp as it is to be stored; none if nothing is in it any more, and it is to be
/// deleted.
pub type PageUpdate = (PageId, Option<Arc<Vec<u8>>>);

/// Stores what a server wants stored where a host keeps pages in memory.
pub fn store(updates: Vec<PageUpdate>, pages: &mut BTreeMap<PageId, Arc<Vec<u8>>>) {
    for (page, bytes) in updates {
        match bytes {
            Some(bytes) => _ = pages.insert(page, bytes),
            None => _ = pages.remove(&page),
        }
    }
}

/// The ordered state and where in the log to start replaying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The last entry that the state contains.
    pub applied: Stamp,
    /// The first entry whose writes may be missing from the stored pages.
    pub replay_from: Stamp,
    /// The state. What is to be stored has the rows of counts that changed since the last checkpoint that is
    /// stored; what is recovered from has all of them.
    pub state: Saved,
}

impl Checkpoint {
    /// Merges this over `older`, for recovery once this is stored: rows absent here stay as they are.
    pub fn over(mut self, older: Option<Checkpoint>) -> Checkpoint {
        let mut rows: BTreeMap<u32, _> = older.into_iter().flat_map(|c| c.state.rows).collect();
        rows.extend(self.state.rows);
        self.state.rows = rows.into_iter().collect();
        self
    }
}

/// Where a server's effects go: owned and emptied by the caller.
#[derive(Debug, Default)]
pub struct Effects {
    /// In order.
    pub list: Vec<Effect>,
    /// The empty buffer of the next message: one that was sent, if the host has such.
    pub spare: Vec<u8>,
}

impl Effects {
    pub(crate) fn push(&mut self, effect: Effect) {
        self.list.push(effect);
    }

    /// Appends a frame to what is sent to a connection in this batch; its body in two parts, so that a page
    /// is copied once, to where it is sent from.
    pub(crate) fn send(&mut self, conn: Conn, header: Header, body: [&[u8]; 2]) {
        if let Some(Effect::Send(last, bytes)) = self.list.last_mut()
            && *last == conn
        {
            return frame::encode_parts(header, body, bytes);
        }
        let mut bytes = std::mem::take(&mut self.spare);
        frame::encode_parts(header, body, &mut bytes);
        self.push(Effect::Send(conn, bytes));
    }

    /// The same, of a body that `write` appends where it is sent from, if it says that there is one; gives
    /// what it says.
    pub(crate) fn send_if(
        &mut self,
        conn: Conn,
        header: Header,
        write: impl FnOnce(&mut Vec<u8>) -> bool,
    ) -> bool {
        if let Some(Effect::Send(last, bytes)) = self.list.last_mut()
            && *last == conn
        {
            return frame::encode_if(header, write, bytes);
        }
        let mut bytes = std::mem::take(&mut self.spare);
        let is_sent = frame::encode_if(header, write, &mut bytes);
        match is_sent {
            true => self.push(Effect::Send(conn, bytes)),
            false => self.spare = bytes,
        }
        is_sent
    }
}

/// Warnings of a server while there is time to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceWarning {
    /// Few of the space's pages are left.
    FewPages {
        /// The number of pages left.
        left: u32,
    },
    /// At the rate of the last hour no page is left after so many seconds.
    FullSoon {
        /// Seconds until the space is full at this rate.
        seconds: u64,
    },
    /// A view of the group began by a rescue, or with members whose logs had ended in damage: commits that
    /// were acknowledged before may be lost. It is told for a minute.
    MayBeLost {
        /// The number of the view.
        view: u32,
    },
}

impl Display for SpaceWarning {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            SpaceWarning::FewPages { left } => {
                let percent = f64::from(*left) * 100.0 / f64::from(PageId::MAX.get());
                write!(f, "{percent:.1} % of the space's 4,194,303 pages are left")?;
            }
            SpaceWarning::FullSoon { seconds } => {
                let time = in_words(*seconds);
                write!(
                    f,
                    "at the rate of the last hour all of the space's 4,194,303 pages are used in {time}"
                )?;
            }
            SpaceWarning::MayBeLost { view } => {
                return write!(
                    f,
                    "view {view} of the group began by `tercel group rescue`, or with members whose logs had ended in damage: commits \
             that were acknowledged before it may be lost; look at what is there, or restore a backup"
                );
            }
        }
        f.write_str(
            "; when none is left, nothing new finds a place: unlink what is not needed and run `tercel gc`, or let a program copy \
             what is still needed into another space before",
        )
    }
}

/// Counters of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerStats {
    pub ordered: u64,
    pub commits: u64,
    pub conflicts: u64,
    pub fetches: u64,
    pub fetches_unchanged: u64,
    pub page_reads: u64,
    pub pages_installed: u64,
    pub invalidations: u64,
    pub revocations: u64,
    pub forwards: u64,
    pub freed: u64,
    pub collected: u64,
    pub prepares: u64,
    pub settled: u64,
}

/// Counters of the process around a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostStats {
    /// Times that accepting rested because descriptors or sources had run out.
    pub accepts_paused: u64,
    /// Bytes of the log's segments.
    pub log_bytes: u64,
    /// Set if the disk has no room for the log or the pages.
    pub disk_full: bool,
    /// The times of the log's syncs.
    pub syncs: Times,
    /// Connections that were ended because all together had received in part, or not taken, too much.
    pub ended_for_room: u64,
    pub network: NetworkState,
    /// The archive, and the milliseconds up to now that it lacks, if it has anything.
    pub archive: Option<(ArchiveState, Option<u64>)>,
}

/// The state of an archive, as its writer tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveState {
    /// The archive is behind the commits by about the time for which entries are gathered.
    Writes,
    /// The server does not lead: another member's writer archives.
    Waits,
    /// The archive does not get on, and its writer tries again.
    Stuck,
    /// Nothing is archived any more.
    Ended,
}

impl ArchiveState {
    /// The warning for an operator about an archive that lacks so much.
    pub(crate) fn warning(self, lag_ms: Option<u64>) -> Option<String> {
        let lacks = lag_ms.map_or("all".into(), |ms| format!("the last {} s", ms / 1_000));
        let then = match self {
            ArchiveState::Writes | ArchiveState::Waits => return None,
            ArchiveState::Stuck => "does not get on",
            ArchiveState::Ended => "is not written any more",
        };
        Some(format!("the archive lacks {lacks} and {then}: the server's log says why"))
    }
}

/// The protection of connections from other machines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetworkState {
    /// Whole days until the server's certificate ends; none without one.
    pub days_left: Option<i64>,
    /// Set if the files of the certificate have changed, and are wrong.
    pub is_outdated: bool,
    /// Set if other machines may connect in plain words.
    pub is_plain: bool,
}

impl NetworkState {
    /// Warnings for an operator, a sentence each.
    pub(crate) fn warnings(self) -> Vec<String> {
        let ends = match self.days_left {
            Some(..0) => Some("the server's certificate has ended".into()),
            Some(days @ 0..DAYS_LEFT_MIN) => Some(format!("the server's certificate ends in {days} days")),
            _ => None,
        };
        let ends = ends.map(|ends| format!("{ends}: run `tercel cert renew`"));
        let outdated = "the files of the server's certificate have changed and do not count: `tercel cert show` and the log \
                        say why";
        let plain = "other machines may connect in plain words, so what they say can be read and changed on its way: give them \
                     certificates (`tercel cert`), and leave out --allow-plain-remote";
        let all = [self.is_outdated.then(|| outdated.into()), self.is_plain.then(|| plain.into())];
        ends.into_iter().chain(all.into_iter().flatten()).collect()
    }
}

/// Days before its end at which a certificate is warned of: a weekend, and some days to see to it.
const DAYS_LEFT_MIN: i64 = 7;
