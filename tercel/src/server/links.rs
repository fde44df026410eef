//! Links to servers of other spaces, which carry the machine's questions about transactions over several.
//!
//! Each peer has a thread and, while it is in use, a client of its own. So a peer that cannot be reached
//! holds up neither another one nor the loop. The space of a peer is known once it was reached: a question
//! about a space that no peer is known to serve goes to all peers that were not reached yet. The machine has
//! few questions out at once, and so bounds what waits here.
//!
//! The invariant: the machine is answered once, whether the question went to one peer or to several. If a
//! thread ends early, the machine asks again.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tercel_engine::Error;
use tercel_engine::server::{Consult, Consulted};
use tercel_engine::txn::{Home, Port, Step};
use tercel_events::Handle;
use tercel_lock::unpoison;
use tercel_wire::id::{SpaceId, Stamp, ViewId};

use super::Post;
use super::store::post;
use crate::address::Addresses;
use crate::tls::Tls;

/// A server of another space, or the members of its group, and how a client of it is made. It comes from
/// [`Addresses`].
#[derive(Debug, Clone)]
pub struct Peer {
    pub(crate) at: Addresses,
    pub(crate) connect: fn(&Addresses) -> Result<Box<dyn Link>, Error>,
}

/// A client of a peer.
pub(crate) trait Link {
    /// The way to its machine.
    fn port(&self) -> Result<&dyn Port, Error>;
}

/// The peers of a server: servers of other spaces.
pub(super) struct Links {
    peers: Vec<Linked>,
    handle: Handle<Post>,
}

struct Linked {
    peer: Peer,
    /// The space that it served when it was reached last; 0 before.
    space: Arc<AtomicU64>,
    /// It begins with the first question and ends when the sender is dropped.
    thread: Option<(Sender<Arc<Question>>, JoinHandle<()>)>,
}

impl Links {
    /// Connects with a certificate to those that have no other.
    pub(super) fn new(mut peers: Vec<Peer>, tls: Option<&Tls>, handle: Handle<Post>) -> Links {
        for peer in &mut peers {
            if let (None, Some(tls)) = (peer.at.tls(), tls) {
                peer.at = peer.at.clone().with_tls(tls.clone());
            }
        }
        let peers = peers.into_iter().map(|peer| Linked { peer, space: Arc::default(), thread: None });
        Links { peers: peers.collect(), handle }
    }

    /// Begins to carry what the machine says to another space; the answer is posted.
    ///
    /// # Errors
    /// A sentence for the operator if there is no peer to carry it to. Nothing is posted then.
    pub(super) fn consult(&mut self, view: ViewId, consult: &Consult) -> Result<(), String> {
        let (space, mut whys) = (consult.space(), Vec::new());
        let served: Vec<u64> = self.peers.iter().map(|peer| peer.space.load(Ordering::Relaxed)).collect();
        let asked = if served.contains(&space.0) { space.0 } else { 0 };
        let mut senders = Vec::new();
        for (peer, served) in self.peers.iter_mut().zip(served) {
            if served != asked {
                // One that was not reached is not asked where another one is known to serve the space.
                whys.extend((served != 0).then(|| format!("{} serves {served:x}", peer.peer.at)));
                continue;
            }
            match peer.sender() {
                Ok(sender) => senders.push(sender),
                Err(e) => whys.push(format!("{}: {e}", peer.peer.at)),
            }
        }
        if senders.is_empty() {
            return Err(unreached(space, &whys));
        }
        let left = Mutex::new((senders.len(), whys));
        let question =
            Arc::new(Question { view, consult: consult.clone(), left, handle: self.handle.clone() });
        senders.iter().for_each(|to| _ = to.send(question.clone()));
        Ok(())
    }
}

/// Says that a space is not reached, why, and what its operator does.
fn unreached(space: SpaceId, whys: &[String]) -> String {
    let whys = if whys.is_empty() { "this server has no peers".into() } else { whys.join("; ") };
    format!(
        "space {:x} is not reached: {whys}; start a server of it, and this one with `--peer ADDRESS` of that one",
        space.0
    )
}

impl Linked {
    /// The way to its thread, which is begun if need be.
    fn sender(&mut self) -> std::io::Result<Sender<Arc<Question>>> {
        if let Some((to, thread)) = &self.thread
            && !thread.is_finished()
        {
            return Ok(to.clone());
        }
        let (to, questions) = channel();
        let (peer, space) = (self.peer.clone(), self.space.clone());
        let thread = thread::Builder::new().name("tercel-link".into());
        let thread = thread.spawn(move || carry_all(&peer, &space, &questions))?;
        self.thread = Some((to.clone(), thread));
        Ok(to)
    }
}

/// A message to another space, with all peers that may serve it.
struct Question {
    view: ViewId,
    consult: Consult,
    /// The peers that have not ended with it yet, none once it is answered, and why others could not.
    left: Mutex<(usize, Vec<String>)>,
    handle: Handle<Post>,
}

impl Question {
    /// The other space has answered, or its server has said that it cannot.
    fn answer(&self, consulted: Consulted) {
        if std::mem::take(&mut unpoison(self.left.lock()).0) > 0 {
            post(&self.handle, Post::Consulted(self.view, self.consult.clone(), consulted));
        }
    }

    /// A peer could not carry it. The last one answers for all.
    fn give_up(&self, at: &Addresses, why: &dyn Display) {
        let whys = {
            let (left, whys) = &mut *unpoison(self.left.lock());
            whys.push(format!("{at}: {why}"));
            if *left > 1 {
                *left -= 1;
                return;
            }
            std::mem::take(whys)
        };
        self.answer(Consulted::Failed(unreached(self.consult.space(), &whys)));
    }
}

/// The thread of a peer: carries questions until the server has stopped.
fn carry_all(peer: &Peer, space: &AtomicU64, questions: &Receiver<Arc<Question>>) {
    let mut link = None;
    loop {
        let first = match link {
            Some(_) => questions.recv_timeout(DISUSE_MAX),
            None => questions.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        link = match first {
            Ok(first) => carry(peer, space, link, (first, questions)),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Carries questions, all at once, and waits a bounded time for the answers. Gives the client back if it can
/// be used again: connected anew, it may be another server.
fn carry(
    Peer { at, connect }: &Peer,
    space: &AtomicU64,
    link: Option<Box<dyn Link>>,
    (first, questions): (Arc<Question>, &Receiver<Arc<Question>>),
) -> Option<Box<dyn Link>> {
    let reached = link.map_or_else(|| connect(at), Ok).and_then(|link| Ok((space_of(link.port()?)?, link)));
    space.store(reached.as_ref().map_or(0, |(space, _)| space.0), Ordering::Relaxed);
    match reached {
        Ok((space, link)) => ask(&*link, (at, space), first, questions).then_some(link),
        Err(e) => {
            [first].into_iter().chain(questions.try_iter()).for_each(|question| question.give_up(at, &e));
            None
        }
    }
}

/// The space that a client is connected to.
fn space_of(port: &dyn Port) -> Result<SpaceId, Error> {
    let mut space = SpaceId(0);
    port.drive(None, &mut |home, _| {
        space = home.token(Stamp::ZERO).space;
        Step::Done
    })?;
    Ok(space)
}

/// A question that waits for its answer.
struct Asking {
    question: Arc<Question>,
    call: Option<u64>,
    /// When it is given up.
    until: Instant,
}

/// Asks until all are answered, those that come meanwhile as well: one may wait at its space for room or for
/// a page. Says whether all were.
fn ask(
    link: &dyn Link,
    (at, space): (&Addresses, SpaceId),
    first: Arc<Question>,
    questions: &Receiver<Arc<Question>>,
) -> bool {
    let mut asking: Vec<Asking> = Vec::new();
    let mut next = Some(first);
    loop {
        let until = Instant::now() + ANSWER_MAX;
        for question in next.take().into_iter().chain(questions.try_iter()) {
            match question.consult.space() == space {
                true => asking.push(Asking { question, call: None, until }),
                false => question.give_up(at, &format!("it serves {:x}", space.0)),
            }
        }
        let Some(first) = asking.first() else { return true };
        let (begun, until) = (Instant::now(), first.until);
        let asked = link.port().and_then(|port| {
            let left = until.saturating_duration_since(begun).min(LOOK);
            port.drive(Some(port.now().plus(left)), &mut |home, _| {
                asking.retain_mut(|Asking { question, call, .. }| {
                    let Some(answer) = step(home, &question.consult, call) else { return true };
                    let failed = |e| Consulted::Failed(format!("space {:x} refuses: {e}", space.0));
                    question.answer(answer.unwrap_or_else(failed));
                    false
                });
                if asking.is_empty() { Step::Done } else { Step::Wait }
            })
        });
        let Err(e) = asked else { continue };
        // A client that cannot wait at all says so at once.
        let is_broken = begun.elapsed() < LOOK / 2;
        if is_broken || Instant::now() >= until {
            asking.iter().for_each(|asking| asking.question.give_up(at, &e));
            return false;
        }
    }
}

/// Sends what is to be said to the space of a client, or looks for the answer.
///
/// # Errors
/// As of a commit.
pub(crate) fn step(
    home: &mut dyn Home,
    consult: &Consult,
    call: &mut Option<u64>,
) -> Option<Result<Consulted, Error>> {
    let across = home.across()?;
    if call.is_none() {
        let sent = match consult {
            Consult::Inquire { of, .. } => across.inquire(*of)?,
            Consult::Settle { settle, .. } => across.settle(settle)?,
        };
        match sent {
            Ok(sent) => *call = Some(sent),
            Err(e) => return Some(Err(e)),
        }
    }
    across.answered((*call)?)
}

/// The wait for a peer's answers. The machine asks again later.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The time after which a thread that waits for answers looks for other questions.
const LOOK: Duration = Duration::from_millis(5);
/// Time after which a connection that is not used is closed.
const DISUSE_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use tercel_events::{Config, EventQueue, Kind};
    use tercel_wire::id::{ClientId, OpId};

    use super::*;
    use crate::server::Server;

    fn answer(queue: &mut EventQueue<Post>) -> Consulted {
        let mut events = Vec::new();
        loop {
            queue.get_next_events(&mut events, 1, None).unwrap();
            if let Some(Kind::Posted(Post::Consulted(_, _, answer))) = events.pop().map(|event| event.kind) {
                return answer;
            }
        }
    }

    #[test]
    fn unreached_space_is_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let other = format!("unix:{}", dir.path().join("socket").display());
        let server = Server::builder(dir.path().join("space")).listen(other.as_str()).start().unwrap();
        let nobody = format!("unix:{}", dir.path().join("nobody").display());
        let mut queue = EventQueue::open(Config::default()).unwrap();
        let peers = [&other, &nobody].map(|at| at.parse::<Addresses>().unwrap().into());
        let mut links = Links::new(peers.into(), None, queue.handle());

        let view = ViewId::new(1, 1);
        let of = OpId { client: ClientId(1), slot: 0, seq: 1, view };
        let (coordinator, prepared) = (SpaceId(0xbeef), Stamp(1));
        let consult = Consult::Inquire { coordinator, of, prepared };
        links.consult(view, &consult).unwrap();
        let Consulted::Failed(why) = answer(&mut queue) else { panic!("nobody knows") };
        let serves = format!("{other}: it serves {:x}", server.space().0);
        for part in ["space beef is not reached", &serves, &nobody, "`--peer ADDRESS`"] {
            assert!(why.contains(part), "{part} is not in {why}");
        }

        // Of the one it is known now that it serves another space.
        links.peers.truncate(1);
        let why = links.consult(view, &consult).unwrap_err();
        assert!(why.contains(&format!("{other} serves {:x}", server.space().0)), "{why}");
        server.stop().unwrap();
    }
}
