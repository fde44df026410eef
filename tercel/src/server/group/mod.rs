//! Groups of servers: a space on several machines, of which one leads.
//!
//! A commit is acknowledged once the disks of a quorum of the members have it: with three members, any one
//! may be lost. [`form`] makes the directories of a new group; each is then served as any directory is, and
//! clients connect to any of them: `Client::connect("a:7117")`.
//!
//! Here is a server's place in its group, as its host keeps it: connections to the other members, and its
//! votes. A member sends over connections that it made itself, and receives over those that others made to
//! its listener: so the end of another's process is seen behind the last that it said.
//!
//! | module | its noun |
//! |---|---|
//! | `saving` | the thread that saves promises |
//! | `operate` | the operator's requests to a group, and joining one |
//! | `rescue` | a new group of one directory, where a quorum is lost for good |
//! | `copying` | taking a copy of the space where the log no longer reaches back |
//! | `life` | signs of life of a leader whose loop is busy |
//! | `dial` | a connection to another member, made anew whenever it ends |

mod copying;
mod dial;
mod life;
mod operate;
mod rescue;
mod saving;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use tercel_engine::order::quorum::members::{Member, Members};
use tercel_engine::order::quorum::packet::led_view;
use tercel_engine::order::quorum::remembered::Started;
use tercel_engine::server::{Conn, ServerConfig};
use tercel_events::{Handle, Token};
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{self, Header, Kind};
pub use tercel_wire::id::MemberId;
use tercel_wire::id::{LogPosition, SpaceId, Stamp, ViewId};
use tercel_wire::message::Refused;

use crate::address::Address;
use crate::disk::dir::{DataDir, Purpose, Space, random_u64};
use crate::disk::held::HeldDir;
use crate::disk::log::{self, LogConfig};
use crate::disk::pages::PageRead;
use crate::disk::secret::Secret;
use crate::disk::votes::{Promised, Votes};
use crate::proving::Prover;
use crate::server::sockets::Sockets;
use crate::server::{Post, ServerError, reading};
use crate::stream::Connector;
use copying::Copying;
use dial::Dialer;
pub(super) use dial::end_if_unanswered;
use life::Life;
pub use operate::{Change, Listed, change, health_of, join, members, secret, status_of};
pub use rescue::{Ends, log_ends, rescue};
use rescue::{Whole, open};
use saving::{Saver, ToSave};

/// The other members of the group, and how they are reached.
pub(crate) struct Group {
    me: MemberId,
    space: SpaceId,
    how: (Prover, Connector),
    peers: BTreeMap<MemberId, Peer>,
    saver: Saver,
    copying: Copying,
    log: HeldDir,
    config: ServerConfig,
    /// A replica is to be recovered up to there, once the disk has that.
    due: Option<LogPosition>,
    handle: Handle<Post>,
    /// The connections to the leader, for clients that read here.
    upstreams: HashMap<Token, Conn>,
    /// Has a clone for each of them that is being made.
    dials: Arc<()>,
    life: Arc<Life>,
}

struct Peer {
    address: String,
    dialer: Dialer,
    /// The connection, while there is one, and what came over it in part: words of refusal.
    stream: Option<Token>,
    deframer: Deframer,
}

impl Group {
    /// Nobody is connected yet.
    pub(crate) fn start(
        (votes, how): (Votes, (Prover, Connector)),
        space: SpaceId,
        (dir, log): (&Path, HeldDir),
        (config, silence_us): (ServerConfig, u64),
        handle: Handle<Post>,
    ) -> std::io::Result<Group> {
        let found = votes.remembered();
        let (group, me) = (found.group, found.me);
        let saver = Saver::start(votes, handle.clone())?;
        let copying = Copying::new(dir, space, (group, me), (how.0.as_operator(), how.1.clone()));
        let peers = BTreeMap::new();
        let (upstreams, dials) = (HashMap::new(), Arc::default());
        Ok(Group {
            me,
            space,
            how,
            peers,
            saver,
            copying,
            log,
            config,
            due: None,
            handle,
            upstreams,
            dials,
            life: Arc::new(Life::new(silence_us)),
        })
    }

    /// These are the members now: connects to those that are new, or are elsewhere now.
    pub(crate) fn members(&mut self, members: &Members, queue: &mut Sockets) -> std::io::Result<()> {
        let me = self.me;
        let is_same = |peer: &Peer, id: &MemberId| {
            members.get(*id).is_some_and(|member| member.address == peer.address)
        };
        for (_, gone) in self.peers.extract_if(.., |id, peer| !is_same(peer, id)) {
            // It may be told yet that it is removed.
            gone.stream.map(|stream| queue.finish(stream));
        }
        for member in members.iter().filter(|member| member.id != me) {
            // One that cannot be reached so is told of where it was added.
            let Ok(address) = member.address.parse() else { continue };
            if !self.peers.contains_key(&member.id) {
                let of = (self.how.0.clone(), self.how.1.clone(), self.life.clone());
                let dialer = Dialer::start(member.id, address, of, self.handle.clone())?;
                let (address, deframer) = (member.address.clone(), Deframer::default());
                let peer = Peer { address, dialer, stream: None, deframer };
                self.peers.insert(member.id, peer);
            }
        }
        Ok(())
    }

    /// A member is connected.
    pub(crate) fn dialed(&mut self, to: MemberId, stream: Token, queue: &mut Sockets) {
        match self.peers.get_mut(&to) {
            Some(peer) => {
                peer.deframer = Deframer::default();
                if let Some(old) = peer.stream.replace(stream) {
                    queue.revoke(old);
                }
            }
            None => _ = queue.revoke(stream),
        }
    }

    /// Takes what a member says over the connection to it: refusals, and packets of one that does not know
    /// yet where this one is. Gives the last refusal, and the packets.
    pub(crate) fn heard(&mut self, stream: Token, bytes: &[u8]) -> Option<Heard> {
        let (id, peer) = self.peers.iter_mut().find(|(_, peer)| peer.stream == Some(stream))?;
        peer.deframer.push(bytes);
        let (mut last, mut packets) = (None, Vec::new());
        while let Ok(Some((header, body))) = peer.deframer.next_frame() {
            match header.kind {
                Kind::Refused => last = Refused::decode(body).ok().map(|refused| refused.text).or(last),
                Kind::Packet => packets.push(body.to_vec()),
                _ => {}
            }
        }
        Some((*id, last, packets))
    }

    /// Says whether a stream is the connection to a member.
    pub(crate) fn is_to_member(&self, stream: Token) -> bool {
        self.peers.values().any(|peer| peer.stream == Some(stream))
    }

    /// A connection has ended. Gives the member to which it was one.
    pub(crate) fn ended(&mut self, stream: Token) -> Option<MemberId> {
        let (member, peer) = self.peers.iter_mut().find(|(_, peer)| peer.stream == Some(stream))?;
        peer.stream = None;
        peer.dialer.again();
        Some(*member)
    }

    /// Sends a packet to a member, if it is connected and takes what it is sent. A packet that is lost is
    /// made up for by the order.
    pub(crate) fn send(&mut self, to: MemberId, packet: &Arc<Vec<u8>>, queue: &mut Sockets) {
        if let Some(view) = led_view(packet) {
            self.life.says(view);
        }
        let Some(stream) = self.peers.get(&to).and_then(|peer| peer.stream) else { return };
        if queue.unsent_bytes(stream).is_some_and(|unsent| unsent > UNSENT_BYTES_MAX) {
            return;
        }
        let mut bytes = queue.spare_buffer();
        frame::encode(Header::new(Kind::Packet, 0), packet, &mut bytes);
        let _ = queue.send(stream, bytes);
    }

    /// The loop begins or ends a piece of its work.
    pub(crate) fn progress(&self, leads: bool) {
        if self.life.progress(leads) {
            self.peers.values().for_each(|peer| peer.dialer.look());
        }
    }

    /// A connection cannot be used: another is made after a while.
    pub(crate) fn lost(&self, to: MemberId) {
        if let Some(peer) = self.peers.get(&to) {
            peer.dialer.again();
        }
    }

    /// Connects to the leader, for clients that read here.
    ///
    /// # Errors
    /// If it cannot begin to now.
    pub(crate) fn connect(&self, conn: Conn, leader: String) -> std::io::Result<()> {
        let (prover, connector) = (self.how.0.as_operator(), self.how.1.clone());
        dial::connect_once(conn, (leader, prover, connector), self.handle.clone(), &self.dials)
    }

    /// The name of a connection to the leader.
    pub(crate) fn upstream(&self, stream: Token) -> Option<Conn> {
        self.upstreams.get(&stream).copied()
    }

    pub(crate) fn upstream_began(&mut self, stream: Token, conn: Conn) {
        self.upstreams.insert(stream, conn);
    }

    pub(crate) fn upstream_ended(&mut self, stream: Token) {
        self.upstreams.remove(&stream);
    }

    /// A replica is to be recovered up to a position.
    pub(crate) fn recover(&mut self, upto: LogPosition) {
        self.due = Some(upto);
    }

    /// The work of recovering a replica, once the log is written as far as that needs; it is done where pages
    /// are installed, behind what was asked for before.
    pub(crate) fn recovery_due(&mut self, written: LogPosition) -> Option<Recovering> {
        let upto = self.due.take_if(|upto| *upto <= written)?;
        let (log, config, handle) = (self.log.clone(), self.config.clone(), self.handle.clone());
        let space = self.space;
        Some(Box::new(move |pages| {
            let recovered = reading::recover(pages, (log, space), config, upto);
            super::store::post(&handle, Post::Recovered(recovered));
        }))
    }

    /// Takes a copy of the space from the leader of a view.
    pub(crate) fn copy(&mut self, view: ViewId, leader: &str) -> std::io::Result<()> {
        self.copying.begin(view, leader, &self.handle)
    }

    /// The copy that was made is not adopted.
    pub(crate) fn copy_is_over(&mut self) -> std::io::Result<()> {
        self.copying.is_over()
    }

    /// Remembers a promise and an electorate.
    pub(crate) fn save(&self, number: u64, promised: Promised) {
        self.saver.save(ToSave::Promise(number, promised));
    }

    /// Remembers that another member has taken this one's start.
    pub(crate) fn save_taken(&self) {
        self.saver.save(ToSave::Taken);
    }

    /// Remembers the start of another member.
    pub(crate) fn save_start(&self, member: MemberId, started: Started) {
        self.saver.save(ToSave::Start(member, started));
    }
}

/// A member, its last words of refusal, and packets.
pub(crate) type Heard = (MemberId, Option<String>, Vec<Vec<u8>>);

/// The work of recovering a replica from the pages.
pub(crate) type Recovering = Box<dyn FnOnce(&dyn PageRead) + Send>;

/// Bytes on their way to a member that does not read them: what comes beyond is not sent.
const UNSENT_BYTES_MAX: usize = 32 << 20;

/// Makes a directory, new or of a server that was alone, the first member of a new group. It is reached at
/// `address` by clients and by members that join. One that was interrupted goes on.
///
/// # Errors
/// If the directory cannot be opened, is in use, or is a member's.
pub fn init(dir: &Path, address: &Address) -> Result<MemberId, ServerError> {
    address.is_for_others()?;
    let held = open(dir)?;
    let begun = begun(dir, &held)?;
    if held.secret()?.is_none() {
        held.give_secret(&Secret::draw(dir)?)?;
    }
    let (me, members) = match begun {
        Some(begun) => begun,
        None => {
            let (group, me) = (random_u64(dir)?, MemberId(random_u64(dir)?));
            let member = Member { id: me, votes: true, address: address.to_string() };
            let too_long = || ServerError::Stopped("its address is too long".into());
            let members = Members::new(vec![member]).ok_or_else(too_long)?;
            held.become_member(group, me, members.clone())?;
            (me, members)
        }
    };
    if members.get(me).is_none_or(|member| member.address != address.to_string()) {
        return Err(ServerError::Member(dir.into()));
    }
    // A space that was restored from a group's has the members of that in its state.
    let whole = Whole::recover(&held)?;
    if whole.recovery.members().is_some_and(|list| *list != members) {
        let number = held.space().view_first.max(whole.recovery.view().number.saturating_add(1));
        whole.go_on(ViewId::new(number, random_u64(dir)? as u32), false, &members)?;
    }
    Ok(me)
}

/// The only member of a group that was begun with the directory and never served; none if no group was.
///
/// # Errors
/// If the directory is another member's.
fn begun(dir: &Path, held: &DataDir) -> Result<Option<(MemberId, Members)>, ServerError> {
    if !held.is_member() {
        return Ok(None);
    }
    let found = Votes::look(&HeldDir::open(dir)?, ViewId::NONE)?;
    let is_alone = found.members.iter().all(|member| member.id == found.me);
    match is_alone && found.start == 0 {
        true => Ok(Some((found.me, found.members))),
        false => Err(ServerError::Member(dir.into())),
    }
}

/// A member as its own directory knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    /// The group.
    pub group: u64,
    /// The member.
    pub member: MemberId,
    /// The starts of its process so far.
    pub starts: u64,
    /// The view that it has promised to take part in: it takes part in no lower one.
    pub promised: u32,
    /// The members, by the newest list that it has remembered: identity, whether it votes, address.
    pub members: Vec<(MemberId, bool, String)>,
}

/// Reads what a member's directory remembers of its group, without opening its space.
///
/// # Errors
/// If the directory is no member's, or its file of votes is damaged.
pub fn inspect(dir: &Path) -> Result<Inspected, ServerError> {
    let found = Votes::look(&HeldDir::open(dir)?, ViewId::NONE)?;
    let of = |member: &Member| (member.id, member.votes, member.address.clone());
    Ok(Inspected {
        group: found.group,
        member: found.me,
        starts: found.start,
        promised: found.promised.number,
        members: match &found.electorate {
            Some(electorate) => electorate.newest().iter().map(of).collect(),
            None => found.members.iter().map(of).collect(),
        },
    })
}

/// Makes new directories, all of one space, the members of a new group, each reached at its address.
///
/// # Errors
/// As [`init`].
pub fn form(members: &[(&Path, Address)]) -> Result<(), ServerError> {
    members.iter().try_for_each(|(_, address)| address.is_for_others())?;
    let (first, _) = members.first().ok_or_else(|| ServerError::Stopped("a group has a member".into()))?;
    let group = random_u64(first)?;
    let ids = members.iter().map(|_| random_u64(first)).collect::<Result<Vec<_>, _>>()?;
    let list = ids.iter().zip(members).map(|(id, (_, address))| Member {
        id: MemberId(*id),
        votes: true,
        address: address.to_string(),
    });
    let list =
        Members::new(list.collect()).ok_or_else(|| ServerError::Stopped("they make no group".into()))?;
    let secret = Secret::draw(first)?;
    let space = {
        let held = open(first)?;
        if held.is_member() {
            return Err(ServerError::Member((*first).into()));
        }
        if Whole::recover(&held)?.begins > LogPosition::ZERO {
            let text = format!(
                "the log of {} does not go back to the beginning of the space, as after a restore, so others cannot begin \
                 with it: `tercel group init` makes it the first member, and empty directories join that",
                first.display()
            );
            return Err(ServerError::Join(text));
        }
        held.give_secret(&secret)?;
        held.become_member(group, MemberId(ids[0]), list.clone())?;
        held.space().clone()
    };
    for ((dir, _), id) in members.iter().zip(&ids).skip(1) {
        create_member(dir, &space, (group, MemberId(*id)), &list, &secret)?;
    }
    Ok(())
}

/// Makes a new directory of a member, with nothing of the space in it yet. Until it is a member's, it counts
/// as no directory at all.
fn create_member(
    dir: &Path,
    space: &Space,
    (group, me): (u64, MemberId),
    members: &Members,
    secret: &Secret,
) -> Result<(), ServerError> {
    let segment_bytes = LogConfig::default().segment_bytes;
    let me = (me, space.promised());
    let join = |_: &Path| {
        let held = HeldDir::open(dir)?;
        secret.write(&held)?;
        Votes::create(&held, group, me, members.clone())
    };
    DataDir::create_copy(dir, Purpose::Space, space, log::behind(Stamp::ZERO), segment_bytes, join)?;
    Ok(())
}

#[cfg(test)]
mod tests;
