//! Links to servers of other spaces, for transactions over several: what the machine wants to ask or tell
//! there is carried by clients.
//!
//! Each peer has a thread and, while it is in use, a client of its own. So a peer that cannot be reached holds
//! up neither another one nor the loop. The space of a peer is known once it was reached: a question about
//! a space that no peer is known to serve goes to all peers that were not reached yet.
//!
//! The invariant: the machine is answered once, whether the question went to one peer or to several. If a
//! thread ends early, the machine asks again.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tercel_engine::Error;
use tercel_engine::server::{Consult, Consulted};
use tercel_engine::txn::{Home, Port, Step};
use tercel_events::Handle;
use tercel_lock::unpoison;
use tercel_wire::id::{SpaceId, Stamp, ViewId};

use super::Post;
use super::store::post;
use crate::address::Addresses;

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
    space: Arc<Space>,
    /// Its thread, which begins with the first question and ends when this is dropped.
    to: Option<Sender<Arc<Question>>>,
}

/// The space that a peer served when it was reached last; 0 before.
type Space = AtomicU64;

impl Links {
    pub(super) fn new(peers: Vec<Peer>, handle: Handle<Post>) -> Links {
        let peers = peers.into_iter().map(|peer| Linked { peer, space: Arc::default(), to: None }).collect();
        Links { peers, handle }
    }

    /// Begins to carry what the machine says to another space; the answer is posted.
    ///
    /// # Errors
    /// A sentence for the operator if there is no peer to carry it to. Nothing is posted then.
    pub(super) fn consult(&mut self, view: ViewId, consult: &Consult) -> Result<(), String> {
        let space = consult.space();
        let is_at = |peer: &Linked, space: u64| peer.space.load(Ordering::Relaxed) == space;
        let known = self.peers.iter().any(|peer| is_at(peer, space.0));
        let asked = if known { space.0 } else { 0 };
        let senders: Vec<_> =
            self.peers.iter_mut().filter(|peer| is_at(peer, asked)).filter_map(Linked::sender).collect();
        if senders.is_empty() {
            let others = self
                .peers
                .iter()
                .map(|peer| format!("{} serves {:x}", peer.peer.at, peer.space.load(Ordering::Relaxed)));
            return Err(unreached(space, others));
        }
        let question = Arc::new(Question {
            view,
            consult: consult.clone(),
            left: Mutex::new((senders.len(), Vec::new())),
            handle: self.handle.clone(),
        });
        senders.iter().for_each(|to| _ = to.send(question.clone()));
        Ok(())
    }
}

/// Says that a space is not reached, why, and what its operator does.
fn unreached(space: SpaceId, why: impl Iterator<Item = String>) -> String {
    let why: Vec<String> = why.collect();
    let why = if why.is_empty() { "this server has no peers".into() } else { why.join("; ") };
    format!(
        "space {:x} is not reached: {why}; start a server of it, and this one with `--peer ADDRESS` of that one",
        space.0
    )
}

impl Linked {
    /// The way to its thread; none if the system refuses the thread.
    fn sender(&mut self) -> Option<Sender<Arc<Question>>> {
        if self.to.is_none() {
            let (to, questions) = channel();
            let mut carrier = Carrier { peer: self.peer.clone(), space: self.space.clone() };
            let spawned =
                thread::Builder::new().name("tercel-link".into()).spawn(move || carrier.run(&questions));
            self.to = spawned.is_ok().then_some(to);
        }
        self.to.clone()
    }
}

/// What is to be said to another space, with all peers that may serve it.
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
        let mut left = unpoison(self.left.lock());
        left.1.push(format!("{at}: {why}"));
        match left.0 {
            0 => {}
            1 => {
                let whys = std::mem::take(&mut left.1);
                drop(left);
                let space = self.consult.space();
                self.answer(Consulted::Failed(unreached(space, whys.into_iter())));
            }
            _ => left.0 -= 1,
        }
    }
}

/// The thread of a peer.
struct Carrier {
    peer: Peer,
    space: Arc<Space>,
}

impl Carrier {
    /// Carries questions until the server has stopped.
    fn run(&mut self, questions: &Receiver<Arc<Question>>) {
        let mut link = None;
        loop {
            let first = match link {
                Some(_) => questions.recv_timeout(DISUSE_MAX),
                None => questions.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            link = match first {
                Ok(first) => {
                    let all = [first].into_iter().chain(questions.try_iter()).collect();
                    self.carry(link, all)
                }
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Carries questions, all at once, and waits a bounded time for the answers. Gives the client back if it
    /// can be used again.
    fn carry(&self, link: Option<Box<dyn Link>>, questions: Vec<Arc<Question>>) -> Option<Box<dyn Link>> {
        let at = &self.peer.at;
        let reached = link.map_or_else(|| (self.peer.connect)(at), Ok);
        let reached = reached.and_then(|link| Ok((space_of(link.port()?)?, link)));
        let (space, link) = match reached {
            Ok(reached) => reached,
            Err(e) => {
                // Another server may come to be there.
                self.space.store(0, Ordering::Relaxed);
                questions.iter().for_each(|question| question.give_up(at, &e));
                return None;
            }
        };
        self.space.store(space.0, Ordering::Relaxed);
        let is_here = |question: &Arc<Question>| question.consult.space() == space;
        let (here, elsewhere): (Vec<_>, Vec<_>) = questions.into_iter().partition(is_here);
        let other = format!("it serves {:x}", space.0);
        elsewhere.iter().for_each(|question| question.give_up(at, &other));
        let asking = here.iter().map(|question| Asking { question, call: None }).collect();
        match ask(&*link, asking) {
            Ok(()) => Some(link),
            // Connected anew, it may be another server.
            Err((e, unanswered)) => {
                unanswered.iter().for_each(|asking| asking.question.give_up(at, &e));
                None
            }
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

/// A question under way, with its call once it is sent.
struct Asking<'a> {
    question: &'a Question,
    call: Option<u64>,
}

/// Sends what is to be said to the space of a client, or looks for the answer.
///
/// # Errors
/// As that of a commit.
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

/// Asks until all are answered.
///
/// # Errors
/// Why some were not, with those.
fn ask<'a>(link: &dyn Link, mut asking: Vec<Asking<'a>>) -> Result<(), (Error, Vec<Asking<'a>>)> {
    let asked = link.port().and_then(|port| {
        port.drive(Some(port.now().plus(ANSWER_MAX)), &mut |home, _| {
            asking.retain_mut(|Asking { question, call }| match step(home, &question.consult, call) {
                Some(answer) => {
                    let space = question.consult.space().0;
                    let failed = |e| Consulted::Failed(format!("space {space:x} refuses: {e}"));
                    question.answer(answer.unwrap_or_else(failed));
                    false
                }
                None => true,
            });
            if asking.is_empty() { Step::Done } else { Step::Wait }
        })
    });
    asked.map_err(|e| (e, asking))
}

/// The wait for a peer's answers. The machine asks again later.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(5);
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
        let mut links = Links::new(peers.into(), queue.handle());

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
        let mut links = Links { peers: links.peers.drain(..1).collect(), ..links };
        let why = links.consult(view, &consult).unwrap_err();
        assert!(why.contains(&format!("{other} serves {:x}", server.space().0)), "{why}");
        server.stop().unwrap();
    }
}
