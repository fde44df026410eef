//! The decisions of one view's leader, and all that it knows alone.
//!
//! A leader judges operations against everything that it ordered before, finds places, and orders entries.
//! Its knowledge beyond ordered state is one value, made when the view's own entry is visible and dropped
//! when the view ends. So nothing leaks from view to view: each part is rebuilt from ordered state, or ends
//! with the view. The invariant: nothing that was ordered is answered before it is visible.
//!
//! | module | what it decides |
//! |---|---|
//! | [`commit`] | whether a transaction may commit, and what keeps one waiting |
//! | [`place`] | where new versions go |
//! | [`large`], [`stage`] | large transactions, a slice at a time |
//! | [`own`], [`free`] | large values: whose they are, and the end of what was released |
//! | [`collect`], [`marks`] | the end of what no root reaches |
//! | [`census`], [`growth`] | how the room of pages is used, and how long there will be any |
//! | [`grant`] | pages to make objects in, and sessions that are over |
//! | [`define`] | classes |
//! | [`access`] | rights, and which client is whose |
//! | [`across`], [`role`], [`consult`] | transactions over several spaces, and what others are asked |
//! | [`turns`] | the order of clients that have lost over an object |
//! | [`rejected`] | operations that were answered "not executed" |

mod absent;
mod access;
mod across;
mod body;
mod census;
mod collect;
mod commit;
mod consult;
mod contended;
mod define;
mod depend;
mod free;
mod grant;
mod growth;
mod large;
mod marks;
mod own;
mod place;
mod rejected;
mod role;
mod stage;
mod turns;
mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;

use tercel_wire::id::{ClassId, ClientId, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::message::{Decision, Leased, Outcome, Refusal};
use tercel_wire::vector::Vector;

use crate::consult::Consult;
use crate::effect::{Conn, LogRoom, ServerConfig, ServerStats, SpaceWarning};
use crate::mutant::{Rule, dropped};
use crate::order::quorum::members::Members;
use crate::order::{self, Sealed, Sequencer};
use crate::pages::Pages;
use crate::replica::Replica;
use crate::replica::entry::Entry;
use crate::rights::Seats;
use crate::table::{Map, Set};
use crate::time::Now;

use absent::Absent;
use across::Across;
use collect::Collecting;
pub(crate) use contended::Losses;
use define::Defining;
use depend::Depending;
use free::Freeing;
use grant::Granting;
use growth::Growth;
use large::Large;
use place::{Fill, Overflow};
use rejected::RejectedOps;
use waiting::Waiting;

pub(crate) use access::{called, name_of};
pub(crate) use body::{Body, Ran};
pub(crate) use growth::Outlook;
pub(crate) use role::Role;

/// The parts of a server that its leader works on.
#[derive(Debug)]
pub(crate) struct Work {
    pub now: Now,
    pub space: SpaceId,
    pub config: ServerConfig,
    pub replica: Replica,
    pub pages: Pages,
    pub sequencer: Box<dyn Sequencer>,
    /// Outputs of the sequencer that the server has not done yet.
    pub said: Vec<order::Output>,
    /// Answers of the leader that the sessions have not sent yet.
    pub replies: Vec<Reply>,
    pub stats: ServerStats,
    /// Set while commits are refused for want of room.
    pub disk_full: bool,
    /// The principal of each connection, and its rights.
    pub seats: Seats,
}

/// The connection and the call of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    pub conn: Conn,
    pub call: u64,
}

/// An answer of the leader.
#[derive(Debug, PartialEq)]
pub(crate) enum Reply {
    Verdict(Asked, OpId, Outcome),
    Refused(Asked, Refusal, String),
    /// The client broke the protocol: its session ends.
    Expel(Conn, String),
    Granted(Asked, Leased),
    Defined(Asked, ClassId),
    Depends(Asked, Vector),
    /// Rights are as they were asked to be, and that is visible.
    Accessed(Asked),
    /// A part is settled, and that is visible.
    Settled(Asked),
    Decided(Asked, Decision, Vector),
    /// A question that another space is to be asked.
    Consult(Consult),
}

const NO_SPACE: &str = "this server is an application's and keeps no space: connect to the server of one, and call the services here";

impl Work {
    pub(crate) fn new(
        now: Now,
        space: SpaceId,
        config: ServerConfig,
        replica: Replica,
        pages: Pages,
        sequencer: Box<dyn Sequencer>,
    ) -> Work {
        let (said, replies, stats, seats) = Default::default();
        Work { now, space, config, replica, pages, sequencer, said, replies, stats, disk_full: false, seats }
    }

    /// The reason for which nothing can be written now, with words for who asks; none if something can.
    pub(crate) fn refuses_writes(&self) -> Option<(Refusal, &'static str)> {
        match self.config.application {
            Some(_) => Some((Refusal::Misused, NO_SPACE)),
            None if self.disk_full => Some((Refusal::FULL, "the server's disk: make room there")),
            None => None,
        }
    }

    /// Tells the sequencer something.
    pub(crate) fn sequence(&mut self, input: order::Input<'_>) {
        self.sequencer.handle(self.now, input, &mut self.said);
    }

    fn verdict(&mut self, asked: Asked, op: OpId, outcome: Outcome) {
        self.replies.push(Reply::Verdict(asked, op, outcome));
    }

    fn refuse(&mut self, asked: Asked, reason: Refusal, text: impl Into<String>) {
        self.replies.push(Reply::Refused(asked, reason, text.into()));
    }

    fn expel(&mut self, conn: Conn, text: impl Into<String>) {
        self.replies.push(Reply::Expel(conn, text.into()));
    }

    fn log_is_full(&self) -> bool {
        self.pages.installer.log_room == LogRoom::Full
    }
}

/// Classes, vectors and a change of the members that are ordered and not visible yet, with the requests that
/// wait for them, by stamp.
#[derive(Debug, Default)]
struct Ordered {
    classes: VecDeque<Defining>,
    vectors: VecDeque<Depending>,
    rights: VecDeque<(Stamp, Asked)>,
    regrouping: Option<(Stamp, Asked)>,
}

/// The leader of one view: all that it knows beyond ordered state.
#[derive(Debug)]
pub(crate) struct Leader {
    view: ViewId,
    /// Entries that are ordered and not yet visible, in the order of their stamps.
    flights: VecDeque<Flight>,
    rejected: RejectedOps,
    /// Commits that wait for something.
    waiting: Waiting,
    /// The large transaction that is worked on, and the bytes of the last one, which are given back a piece
    /// at a time.
    large: Option<Box<Large>>,
    spare: Vec<u8>,
    reclaiming: Reclaiming,
    /// Granted pages as they fill.
    fills: Map<PageId, Fill>,
    /// The page that takes objects which outgrew their own.
    overflow: Option<Overflow>,
    promises: Promises,
    ordered: Ordered,
    granting: VecDeque<Granting>,
    /// Ends of sessions that are ordered and not yet visible.
    ending: VecDeque<(Stamp, ClientId)>,
    across: Across,
    /// Clients with a session.
    present: Map<ClientId, Present>,
    /// Clients with grants and no session, and when their sessions are over.
    absent: Absent,
}

/// An entry that is ordered and not yet visible.
#[derive(Debug, Clone)]
pub(crate) struct Flight {
    pub stamp: Stamp,
    pub op: Option<OpId>,
    /// The operation is a call of a method: its answer is what that returned.
    pub is_call: bool,
    /// The references that it changed, as readers know them.
    pub changed: Arc<[Oref]>,
}

/// The end of what is of no use any more.
#[derive(Debug)]
struct Reclaiming {
    freeing: Freeing,
    collecting: Collecting,
}

/// Pages that were never given out: the first that was neither ordered nor promised, and those below that
/// were promised for nothing.
#[derive(Debug)]
struct Promises {
    next_page: u32,
    in_vain: Vec<PageId>,
    growth: Growth,
}

/// A session that has not acknowledged something.
#[derive(Debug)]
pub(crate) struct Behind {
    pub conn: Conn,
    pub client: ClientId,
    /// Up to where it has acknowledged everything.
    pub acked: Stamp,
}

/// A client with a session.
#[derive(Debug, Clone, Copy)]
struct Present {
    conn: Conn,
    /// The highest stamp that it has acknowledged.
    acked: Stamp,
}

impl Leader {
    /// A view begins, with its own entry as the last that the replica has applied.
    pub(crate) fn begin(view: ViewId, work: &Work) -> Leader {
        let (now, config, replica) = (work.now, &work.config, &work.replica);
        let over = now.plus_us(session_us(config));
        Leader {
            view,
            flights: VecDeque::new(),
            rejected: RejectedOps::default(),
            waiting: Waiting::default(),
            large: None,
            spare: Vec::new(),
            reclaiming: Reclaiming {
                freeing: Freeing::default(),
                collecting: Collecting::new(config.collect, replica.places.collected()),
            },
            fills: Map::default(),
            overflow: None,
            promises: Promises {
                next_page: 0,
                in_vain: Vec::new(),
                growth: Growth::new(now, (&replica.places).into()),
            },
            ordered: Ordered::default(),
            granting: VecDeque::new(),
            ending: VecDeque::new(),
            across: Across::new(now, replica),
            present: Map::default(),
            // A client with grants keeps its session until it has had time to connect.
            absent: Absent::all(replica.places.clients(), over),
        }
    }

    pub(crate) fn view(&self) -> ViewId {
        self.view
    }

    /// Orders an entry: applies it, tentatively, and submits it. `of` is its operation, and says whether that
    /// is a call.
    fn order(&mut self, entry: &Entry<'_>, of: Option<(OpId, bool)>, work: &mut Work) -> Stamp {
        let stamp = work.replica.stamp.next();
        let applied = work.replica.apply(stamp, self.view, entry, &mut work.pages.mob);
        let applied = applied.expect("a leader orders what follows from its own state");
        work.stats.ordered += 1;
        self.promises.growth.applied(work.now, (&work.replica.places).into());
        if let Some(first) = applied.pieces_from {
            work.pages.installer.commits_pieces(first, stamp);
        }
        if dropped(Rule::FetchUnsynced) {
            work.pages.changed_by_mistake(&applied.changed);
        }
        let payload = Arc::new(entry.encode());
        let sealed = Sealed { stamp, view: self.view, kind: entry.kind(), payload };
        let (op, is_call) = of.map_or((None, false), |(op, is_call)| (Some(op), is_call));
        self.flights.push_back(Flight { stamp, op, is_call, changed: applied.changed.into() });
        work.sequence(order::Input::Submit(sealed));
        stamp
    }

    /// Orders another list of members.
    pub(crate) fn regroup(&mut self, asked: Asked, members: Members, work: &mut Work) {
        let stamp = self.order(&Entry::Members(members), None, work);
        self.ordered.regrouping = Some((stamp, asked));
    }

    /// Takes the change of the members that is visible now.
    pub(crate) fn regrouped_upto(&mut self, visible: Stamp) -> Option<Asked> {
        self.ordered.regrouping.take_if(|(stamp, _)| *stamp <= visible).map(|(_, asked)| asked)
    }

    /// The entries that are visible, now that everything up to a stamp is stable, in order.
    pub(crate) fn stable(&mut self, stamp: Stamp) -> Vec<Flight> {
        let stable = self.flights.partition_point(|flight| flight.stamp <= stamp);
        self.flights.drain(..stable).collect()
    }

    /// All entries, though they are not stable: a rule dropped on purpose.
    pub(crate) fn show_by_mistake(&mut self) -> Vec<Flight> {
        self.flights.drain(..).collect()
    }

    /// Handles the advance of the visible stamp: replies about classes and grants, and steps of collections.
    pub(crate) fn shown(&mut self, visible: Stamp, work: &mut Work) {
        self.defined_upto(visible, work);
        self.depended_upto(visible, work);
        self.accessed_upto(visible, work);
        self.granted_upto(visible, work);
        self.collected_upto(visible);
        self.settled_upto(visible, work);
        self.next_turns(work);
    }

    /// A client has a session from now on.
    pub(crate) fn arrived(&mut self, client: ClientId, conn: Conn, acked: Stamp) {
        self.absent.remove(client);
        self.present.insert(client, Present { conn, acked });
    }

    /// A client acknowledges everything up to a stamp: nothing that it has under way is older.
    pub(crate) fn acknowledged(&mut self, client: ClientId, acked: Stamp) {
        if let Some(present) = self.present.get_mut(&client) {
            present.acked = present.acked.max(acked);
        }
    }

    /// The sessions that have not acknowledged a stamp, by connection.
    pub(crate) fn behind(&self, stamp: Stamp) -> Vec<Behind> {
        let behind = self.present.iter().filter(|(_, present)| present.acked < stamp);
        let mut behind: Vec<Behind> =
            behind.map(|(client, p)| Behind { conn: p.conn, client: *client, acked: p.acked }).collect();
        behind.sort_unstable_by_key(|behind| behind.conn);
        behind
    }

    /// The clients of operations that have come and are not visible.
    pub(crate) fn working(&self) -> Set<ClientId> {
        let large = self.large.iter().map(|large| large.op);
        let ops = self.waiting.ops().chain(large).chain(self.flights.iter().filter_map(|flight| flight.op));
        ops.map(|op| op.client).collect()
    }

    /// A connection is gone, and with it its client's session, if it was the client's last.
    pub(crate) fn left(&mut self, client: ClientId, conn: Conn, work: &mut Work) {
        if let Some(Present { acked, .. }) = self.present.get(&client).copied().filter(|p| p.conn == conn) {
            self.present.remove(&client);
            if work.replica.places.has_grants(client) {
                self.absent.insert(client, work.now.plus_us(session_us(&work.config)), acked);
            }
            self.rejected.left(client);
            self.across.consulting.client_left(client, work.now, &work.replica);
        }
        self.waiting.turns.left(client, conn);
        self.waiting.drop_where(|w| w.asked.conn == conn);
        self.drop_large(|l| l.asked.conn == conn);
        self.ordered.vectors.retain(|depending| depending.asked.conn != conn);
        self.ordered.rights.retain(|(_, asked)| asked.conn != conn);
        self.across.left(conn);
        for defining in &mut self.ordered.classes {
            defining.asked.retain(|asked| asked.conn != conn);
        }
    }

    /// Says whether there is work that goes on in slices, which must not wait for anything to happen.
    pub(crate) fn has_work(&self, visible: Stamp, replica: &Replica) -> bool {
        !self.spare.is_empty()
            || !replica.recent.is_index_complete()
            || self.large_wants(visible, replica)
            || self.free_wants(visible, replica)
            || self.collect_wants(visible, &replica.places)
    }

    /// Goes on with what is worked on in slices.
    pub(crate) fn go_on(&mut self, work: &mut Work) {
        self.promises.growth.look(work.now, (&work.replica.places).into());
        self.go_on_large(work);
        self.go_on_freeing(work);
        self.go_on_collecting(work);
        self.go_on_across(work);
        self.next_turns(work);
        work.replica.recent.index_pending(crate::mutant::bound(TAKEN_IN_AT_ONCE, 1));
        self.throw_away();
    }

    /// When the next absent client's session is over.
    pub(crate) fn deadline(&self) -> Option<Now> {
        let others = self.reclaiming.collecting.deadline().into_iter().chain(self.across.deadline());
        let others = others.chain(self.waiting.turns.deadline());
        self.absent.next().into_iter().chain(others).min()
    }

    /// The time for which there will be room, at the rate of the last look.
    pub(crate) fn outlook(&self, now: Now, replica: &Replica) -> Outlook {
        self.promises.growth.outlook(now, (&replica.places).into())
    }

    /// The warning about the room of the space, if there is one.
    pub(crate) fn space_warning(&self) -> Option<SpaceWarning> {
        self.promises.growth.warning()
    }

    /// Says whether everything that was ordered is visible.
    pub(crate) fn is_all_visible(&self) -> bool {
        self.flights.is_empty()
    }

    /// Says whether no arrived transaction and no released tree remains to be ordered.
    pub(crate) fn is_idle(&self, replica: &Replica) -> bool {
        self.is_all_visible()
            && self.large.is_none()
            && self.waiting.is_empty()
            && replica.released.count() == 0
    }

    /// Says whether a transaction that has arrived waits to be ordered.
    pub(crate) fn has_waiting(&self) -> bool {
        self.large.is_some() || !self.waiting.is_empty()
    }

    /// Says whether a large transaction is worked on.
    pub(crate) fn has_large(&self) -> bool {
        self.large.is_some()
    }

    /// Says whether an entry that is ordered and not visible changes the object.
    fn is_in_flight(&self, oref: Oref) -> bool {
        self.flights.iter().any(|f| f.changed.contains(&oref))
    }

    fn is_present(&self, client: ClientId) -> bool {
        self.present.contains_key(&client)
    }
}

/// Time for which a session outlives its last connection, in microseconds: two keepalives.
fn session_us(config: &ServerConfig) -> u64 {
    2 * config.keepalive_ms as u64 * 1_000
}

/// Writes of a large transaction that the index of recent ones takes in in one go: a hundred microseconds or
/// two.
const TAKEN_IN_AT_ONCE: usize = 500;
