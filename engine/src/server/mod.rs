//! The server's half of the engine: a machine that orders commits, keeps pages and tells clients what changed.
//!
//! Its doors: [`Recovery::finish`] (a server begins with what was recovered), [`Server::handle`] with effects appended
//! to a buffer that the caller owns, [`Server::deadline`], getters. It does no input or output: reading a page, writing
//! the log and installing pages are effects that come back as inputs.
//!
//! The invariant is *durable before visible*: a commit is ordered and judged at once, against everything ordered before
//! it, but no reply, page, stream or watermark shows it until the log is synced up to it.

mod backup;
mod commit;
mod fetch;
mod install;
mod large;
mod place;
mod reads;
mod recover;
mod session;
mod spent;
mod stage;
mod stream;

use std::collections::VecDeque;
use std::sync::Arc;

use tercel_wire::frame::{self, Header, Kind};
use tercel_wire::id::{ClientId, OpId, Oref, PageId, SpaceId, Stamp};
use tercel_wire::message::{Outcome, Reason, Refused, Verdict};

use crate::limits;
use crate::mutant::{self, Rule, dropped};
use crate::order::{Delivery, Ordering, Solo};
use crate::store::entry::Entry;
use crate::store::image::{Found, Images};
use crate::store::mob::Mob;
use crate::store::state::State;
use crate::table::{Map, Set};
use crate::time::Now;

use backup::Backup;
use commit::Parked;
use install::Installing;
use large::Large;
use reads::Reads;
use session::{Defining, Leasing, Leaving, Session};
use spent::Spent;

pub use recover::{Recovery, RecoveryError};

/// A connection, named by who runs the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn(pub u64);

/// What one process may choose.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Bytes of modified objects held in memory. A quarter of it starts installing; at all of it commits wait for that,
    /// and answer `Full` when half as much is waiting. Larger means fewer page writes, a longer log and a longer
    /// recovery.
    pub mob_bytes: usize,
    /// Bytes of pages cached. Larger means fewer reads of the store.
    pub cache_bytes: usize,
    /// Silence after which a client is asked, in milliseconds; twice that ends its session.
    pub keepalive_ms: u32,
    /// Pages that one session may be subscribed to; beyond it the server asks for pages back. Each costs some 50 bytes.
    pub subscriptions_max: usize,
    /// The number of the first view that this history of the space may have: of a space that was restored from a backup, one that the
    /// history it was taken from never comes to. A client that speaks of other views has seen commits that are not here.
    pub view_first: u32,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            mob_bytes: 256 << 20,
            cache_bytes: 64 << 20,
            keepalive_ms: limits::KEEPALIVE_MS,
            subscriptions_max: limits::SUBSCRIPTIONS_MAX,
            view_first: 0,
        }
    }
}

/// Something that happened to a server.
#[derive(Debug)]
pub enum Input<'a> {
    /// A client connected.
    Connected(Conn),
    /// A frame arrived, checked.
    Frame(Conn, Header, &'a [u8]),
    /// The client shows that it is there, though what it says is not read now: it takes what it is sent.
    Alive(Conn),
    /// The connection is gone.
    Disconnected(Conn),
    /// The log is on disk up to this stamp.
    Synced(Stamp),
    /// A page was read: its bytes (checked), or none if the store has no such page.
    Read(PageId, Result<Option<Vec<u8>>, String>),
    /// What [`Effect::Install`] asked for is stored.
    Installed,
    /// What [`Effect::Pin`] asked for is done, or why it cannot be.
    Pinned(u64, Result<(), String>),
    /// What [`Effect::ReadPinned`] asked for: those of the pages that exist, in their order.
    PinnedRead(u64, Result<Vec<(PageId, Vec<u8>)>, String>),
    /// The disk is full, or no longer.
    DiskFull(bool),
    /// How much room the log has left of what it may take. To be said again after every truncation while it is not
    /// [`LogRoom::Free`].
    LogRoom(LogRoom),
    /// Time passed.
    Time,
}

/// How much room the log has, of what it may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogRoom {
    /// Enough.
    Free,
    /// It is longer than it should be: it is made shorter.
    Tight,
    /// It must not become longer: commits wait until it is shorter, and are answered `Full` when too many wait.
    Full,
}

/// What a server wants done.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send these bytes.
    Send(Conn, Vec<u8>),
    /// Close the connection once what was sent is out.
    Close(Conn),
    /// Append this record to the log; sync when nothing else is waiting.
    Log {
        /// Its place in the order.
        stamp: Stamp,
        /// The entry's kind.
        kind: u8,
        /// The entry.
        payload: Vec<u8>,
    },
    /// Read this page.
    Read(PageId),
    /// Store these pages and, if there is one, the checkpoint, all in one step.
    Install {
        /// Pages with checksum and stamp.
        pages: Vec<(PageId, Arc<Vec<u8>>)>,
        /// What recovery will start from.
        checkpoint: Option<Checkpoint>,
    },
    /// Keep the pages as they are after the installs asked for so far, under this number, until [`Effect::Unpin`]. Numbers
    /// only go up; one is kept at a time.
    Pin(u64),
    /// Read pages of what is kept.
    ReadPinned {
        /// Under which number.
        pin: u64,
        /// The first page.
        from: PageId,
        /// How many page ids.
        count: u32,
    },
    /// What is kept under this number, or will be, is no longer needed.
    Unpin(u64),
    /// Entries below this stamp are no longer needed.
    Truncate(Stamp),
    /// The server cannot go on.
    Stop(String),
}

/// The ordered state and where in the log to start replaying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The last entry that the state contains.
    pub applied: Stamp,
    /// The first entry whose writes may be missing from the stored pages.
    pub replay_from: Stamp,
    /// The state, encoded.
    pub state: Vec<u8>,
}

/// Where a server's effects go: owned and emptied by the caller.
#[derive(Debug, Default)]
pub struct Effects {
    /// In order.
    pub list: Vec<Effect>,
}

impl Effects {
    fn push(&mut self, effect: Effect) {
        self.list.push(effect);
    }

    /// Appends a frame to what is sent to a connection in this batch.
    fn send(&mut self, conn: Conn, header: Header, body: &[u8]) {
        if let Some(Effect::Send(last, bytes)) = self.list.last_mut()
            && *last == conn
        {
            return frame::encode(header, body, bytes);
        }
        let mut bytes = Vec::with_capacity(frame::FRAME_BYTES + body.len());
        frame::encode(header, body, &mut bytes);
        self.push(Effect::Send(conn, bytes));
    }
}

/// Counters of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named for what they count")]
pub struct ServerStats {
    pub ordered: u64,
    pub commits: u64,
    pub conflicts: u64,
    pub fetches: u64,
    pub page_reads: u64,
    pub pages_installed: u64,
    pub invalidations: u64,
    pub revocations: u64,
    pub forwards: u64,
}

/// Counters of the process around a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostStats {
    /// Times that accepting rested because descriptors or sources had run out.
    pub accepts_paused: u64,
    /// Bytes of the log's segments.
    pub log_bytes: u64,
    /// Whether the disk has no room for the log or the pages.
    pub disk_full: bool,
}

/// Writes of a large transaction that the index of recent ones takes in in one go: a hundred microseconds or two.
const TAKEN_IN_AT_ONCE: usize = 500;

/// A commit that is ordered and not yet visible.
struct Flight {
    stamp: Stamp,
    op: Option<OpId>,
    changed: Arc<[Oref]>,
}

/// See the module.
pub struct Server {
    config: ServerConfig,
    space: SpaceId,
    order: Solo,
    /// After everything ordered.
    state: State,
    mob: Mob,
    images: Images,
    /// Everything up to here is durable and may be seen.
    visible: Stamp,
    flights: VecDeque<Flight>,
    /// Changes that are visible, for sessions that resume; from `recent_from` on.
    recent: VecDeque<(Stamp, Arc<[Oref]>)>,
    recent_orefs: usize,
    recent_from: Stamp,
    sessions: Map<Conn, Session>,
    /// Sessions that are subscribed to anything: those that must hear how far it is.
    listening: Set<Conn>,
    clients: Map<ClientId, Conn>,
    /// Who must hear of changes to a page.
    directory: Map<PageId, Vec<Conn>>,
    spent: Spent,
    /// Classes that are ordered and not yet durable.
    defining: VecDeque<Defining>,
    /// Places that are given out and not yet durably so: one request a session.
    leasing: VecDeque<Leasing>,
    /// Pages that are waited for.
    reads: Reads,
    parked: Map<u64, Parked>,
    parked_bytes: usize,
    parked_last: u64,
    /// Those of the parked that wait for room in the buffer of modified objects.
    stalled: Vec<u64>,
    /// The first pieces of staged transactions in the log and the entries that commit them, as far as recovery would
    /// replay them.
    staged: VecDeque<(Stamp, Stamp)>,
    /// The large transaction that is worked on.
    large: Option<Box<Large>>,
    /// The bytes of the last one, which are given back a piece at a time.
    spare: Vec<u8>,
    /// Those of the parked that wait for it, and whether they are to be tried again.
    behind: Vec<u64>,
    behind_due: bool,
    /// Sessions that are gone, as far as they are still known.
    leaving: VecDeque<Leaving>,
    /// Visible changes below which hidden versions must still be dropped, and how far that is.
    settling: VecDeque<(Arc<[Oref]>, usize)>,
    /// Bytes of transactions that are arriving in parts, of all sessions.
    staged_bytes: usize,
    lease_next: u32,
    overflow: Option<place::Overflow>,
    installing: Option<Installing>,
    /// Pages of the next batches.
    to_install: VecDeque<PageId>,
    batches_since_checkpoint: usize,
    /// When everybody had seen up to here, nothing could be installed.
    nothing_at: Option<Stamp>,
    /// The last entry that the stored checkpoint contains.
    checkpointed: Stamp,
    /// The first entry that recovery would replay.
    replay_from: Stamp,
    log_room: LogRoom,
    backup: Option<Backup>,
    /// Counts pins of the page store.
    pins: u64,
    /// What the process around it counts.
    host: HostStats,
    /// The highest page that the store may have.
    stored_end: u32,
    disk_full: bool,
    now: Now,
    /// When it last looked at the sessions that listen, and at all of them.
    ticked: Now,
    looked: Now,
    stats: ServerStats,
}

impl Server {
    /// Takes in what happened and appends what is to be done.
    pub fn handle(&mut self, now: Now, input: Input<'_>, out: &mut Effects) {
        self.now = now;
        match input {
            Input::Connected(conn) => self.connected(conn, out),
            Input::Frame(conn, header, body) => self.frame(conn, &header, body, out),
            Input::Alive(conn) => self.alive(conn),
            Input::Disconnected(conn) => self.disconnected(conn),
            Input::Synced(stamp) => {
                self.order.synced(stamp);
                self.deliver(out);
            }
            Input::Read(page, result) => self.page_read(page, result, out),
            Input::Installed => self.installed(out),
            Input::Pinned(pin, result) => self.pinned(pin, result, out),
            Input::PinnedRead(pin, result) => self.pinned_read(pin, result, out),
            Input::DiskFull(full) => self.disk_full = full,
            Input::LogRoom(room) => self.log_has(room, out),
            Input::Time => {
                if now >= self.ticked.plus_us(limits::HEARTBEAT_US) {
                    self.tick(out);
                }
                self.go_on_large(out);
                self.state.settle(mutant::bound(TAKEN_IN_AT_ONCE, 1));
                self.throw_away();
                self.settle();
                self.leave_some();
            }
        }
        self.go_on_behind(out);
        self.drive_backup(out);
        self.maybe_install(out);
        self.ask_reads(out);
    }

    /// When it next wants to hear of the time.
    pub fn deadline(&self) -> Option<Now> {
        // Work in slices goes on as soon as others have been heard.
        let is_behind = !self.settling.is_empty() || !self.leaving.is_empty() || !self.spare.is_empty();
        if is_behind || !self.state.is_settled() || self.large_wants() {
            return Some(self.now);
        }
        (!self.sessions.is_empty()).then(|| self.ticked.plus_us(limits::HEARTBEAT_US))
    }

    /// The space.
    pub fn space(&self) -> SpaceId {
        self.space
    }

    /// Everything up to here is durable and visible.
    pub fn visible(&self) -> Stamp {
        self.visible
    }

    /// The view that it leads.
    pub fn view(&self) -> tercel_wire::id::ViewId {
        self.state.view
    }

    /// Whether everything that was ordered is visible, no large transaction is on its way and nothing is being installed: a
    /// moment to stop at.
    pub fn is_quiet(&self) -> bool {
        self.is_all_visible() && self.large.is_none() && self.installing.is_none()
    }

    /// Whether everything that was ordered is visible, and so durable.
    pub fn is_all_visible(&self) -> bool {
        self.flights.is_empty()
    }

    /// Whether nothing more will be ordered of what has arrived, whoever still waits for it or does not.
    pub fn is_idle(&self) -> bool {
        self.is_all_visible() && self.large.is_none() && self.parked.is_empty()
    }

    /// Takes the counters that the process around it keeps, for the status it reports.
    pub fn set_host(&mut self, host: HostStats) {
        self.host = host;
    }

    /// Counters.
    pub fn stats(&self) -> ServerStats {
        self.stats
    }

    /// Orders an entry, applies it to the ordered state and asks for it to be logged.
    fn order(&mut self, entry: &Entry<'_>, op: Option<OpId>, out: &mut Effects) -> Stamp {
        let ticket = self.order.submit();
        let stamp = self.state.apply(entry);
        // One node orders at once; a group would come back to this point when the ticket is delivered.
        debug_assert_eq!(self.order.poll(), Some(Delivery::Ordered(ticket, stamp)));
        #[cfg(not(debug_assertions))]
        let _ = (ticket, self.order.poll());
        self.stats.ordered += 1;
        let changed = self.mob.apply(stamp, entry);
        if dropped(Rule::FetchUnsynced) {
            changed.iter().for_each(|oref| self.images.changed(oref.page()));
        }
        out.push(Effect::Log { stamp, kind: entry.kind(), payload: entry.encode() });
        self.flights.push_back(Flight { stamp, op, changed: changed.into() });
        if dropped(Rule::StreamUnsynced) {
            self.show(stamp, out);
        }
        stamp
    }

    /// The page as everybody may see it now.
    fn image(&mut self, page: PageId) -> Found {
        let base = match self.images.get(page) {
            Found::Current(bytes) => return Found::Current(bytes),
            Found::Stale(base) => base,
            Found::Missing if page.get() > self.stored_end => None,
            Found::Missing => return Found::Missing,
        };
        self.render(page, base)
    }

    /// Lays the visible modified objects over a page's bytes and keeps the result.
    fn render(&mut self, page: PageId, base: Option<Arc<Vec<u8>>>) -> Found {
        let parsed = match &base {
            Some(bytes) => tercel_wire::page::Page::trusted(bytes, page).ok(),
            None => None,
        };
        let touched = self.mob.patch(page).is_some();
        let upto = if dropped(Rule::FetchUnsynced) { self.state.stamp } else { self.visible };
        let image = match (&base, touched) {
            (None, false) => None,
            (Some(bytes), false) => Some(bytes.clone()),
            (_, true) => self.mob.overlay(page, parsed, upto, self.space, Vec::new()).map(Arc::new),
        };
        let image = image.filter(|bytes| {
            // A page of which nothing is visible yet does not exist for readers.
            tercel_wire::cursor::le16(bytes, 24) > 0
        });
        self.images.put(page, image.clone(), false);
        Found::Current(image)
    }

    fn reply(&self, conn: Conn, kind: Kind, call: u64, body: &[u8], out: &mut Effects) {
        let header = Header {
            stamp: self.visible,
            ack: self.visible,
            view: self.state.view,
            credit: limits::CREDIT,
            ..Header::new(kind, call)
        };
        out.send(conn, header, body);
    }

    fn refuse(&self, conn: Conn, call: u64, reason: Reason, text: impl Into<String>, out: &mut Effects) {
        let mut body = Vec::new();
        Refused { reason, text: text.into() }.encode(&mut body);
        self.reply(conn, Kind::Refused, call, &body, out);
    }

    fn verdict(&self, conn: Conn, call: u64, op: OpId, outcome: Outcome, out: &mut Effects) {
        let mut body = Vec::new();
        Verdict { op, outcome }.encode(&mut body);
        self.reply(conn, Kind::Verdict, call, &body, out);
    }
}
