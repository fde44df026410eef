//! The servers at which a client may find its space, and the order and pauses in which it tries them.
//!
//! Addresses are texts here: the host knows how to reach them. The invariant: between two pauses each address
//! is tried once at most, whatever servers tell of each other, and all are tried before the first pause. A
//! server that did not answer, because it did not lead yet, is tried once more for each other that tells
//! that it leads.

use tercel_wire::frame::ONE_HOST;
use tercel_wire::id::SpaceId;

use super::Client;
use crate::random::Random;

/// The addresses that a client knows.
#[derive(Debug)]
pub struct Servers {
    /// The servers that the program named.
    named: Vec<String>,
    /// The servers that the last one told of, the most promising first: at most as many as a message names.
    learned: Vec<String>,
    /// The servers that were tried since the last pause.
    tried: Vec<String>,
    /// The tried servers that sent the client on.
    sent_on: Vec<String>,
    /// The one that welcomed the client last, until another sends it on.
    home: String,
    /// The next to try, before all others.
    again: Option<String>,
    /// The capabilities of the connection: those that this client offers until it is welcomed, those that the
    /// server has granted from then on.
    pub(super) capabilities: u32,
    /// Set once one of those tried since the last pause has taken a connection.
    is_any_there: bool,
    /// Why none did before that pause.
    unreachable: Option<String>,
    pauses: Pauses,
    /// Greetings that were answered by nonsense, until a server welcomes the client.
    strangers: u32,
    /// The words of the server that turned the client away last, until one welcomes it.
    pub(super) turned_away: Option<String>,
    /// The last that answered denied the client its rights: another attempt does not change that.
    pub(super) is_denied: bool,
    /// Servers of no group that were met since a member was, and the space of each.
    alone: Vec<(String, SpaceId)>,
    /// Any member will do, and the first that was named is the best.
    pub(super) reads_anywhere: bool,
}

/// Pauses between attempts. They grow, and each is cut by up to half at random: the clients of a server that
/// ends must not all come back at the same moments.
#[derive(Debug)]
pub struct Pauses {
    /// The longest that the next one can be.
    longest_us: u64,
    random: Random,
}

impl Pauses {
    /// Begins without a pause.
    pub fn new(seed: u64) -> Pauses {
        Pauses { longest_us: 0, random: Random::new(seed) }
    }

    /// The next attempt comes at once.
    pub fn reset(&mut self) {
        self.longest_us = 0;
    }

    /// The next pause, where the longest are at first and in the end this long.
    pub fn take_us(&mut self, (first_us, last_us): (u64, u64)) -> u64 {
        let longest_us = self.longest_us;
        self.longest_us = (2 * longest_us).clamp(first_us, last_us);
        longest_us - self.random.below(longest_us / 2 + 1)
    }
}

impl Servers {
    /// Begins with the addresses that were named.
    pub fn new(named: Vec<String>, seed: u64) -> Servers {
        Servers {
            capabilities: 0,
            named,
            learned: Vec::new(),
            tried: Vec::new(),
            sent_on: Vec::new(),
            home: String::new(),
            again: None,
            is_any_there: false,
            unreachable: None,
            pauses: Pauses::new(seed),
            strangers: 0,
            turned_away: None,
            is_denied: false,
            alone: Vec::new(),
            reads_anywhere: false,
        }
    }

    /// A server does not serve clients, and has told of those that may, the leader first.
    pub fn sent_on(&mut self, servers: Vec<String>) {
        let home = std::mem::take(&mut self.home);
        // It welcomed the client before, and is no better at once.
        if self.tried.is_empty() && !home.is_empty() {
            self.tried.push(home);
        }
        self.sent_on.extend(self.tried.last().cloned());
        let leader = servers.first().filter(|at| !self.sent_on.contains(at));
        self.tried.retain(|at| Some(at) != leader);
        self.learn(servers);
    }

    /// A server has told of its group.
    pub(super) fn learn(&mut self, servers: Vec<String>) {
        if !servers.is_empty() {
            self.learned = servers;
        }
    }

    /// The client was welcomed: if it loses this server, the others are tried first.
    pub(super) fn found(&mut self) {
        self.home = self.tried.last().cloned().unwrap_or_default();
        self.forget_tried();
        self.unreachable = None;
        self.strangers = 0;
        self.alone.clear();
        self.turned_away = None;
        self.is_denied = false;
    }

    /// Checks that a server of this space, which tells of these members, may be the one that was named. One
    /// that is of no group may not be where others are named that are not the same.
    ///
    /// # Errors
    /// Its address.
    pub(super) fn check_alone(&mut self, space: SpaceId, members: &[String]) -> Result<(), String> {
        if !members.is_empty() || self.named.len() < 2 {
            return Ok(());
        }
        let at = self.tried.last().cloned().unwrap_or_default();
        self.alone.retain(|(other, _)| *other != at && self.named.contains(other));
        self.alone.push((at.clone(), space));
        let is_everywhere = self.named.iter().all(|at| self.alone.contains(&(at.clone(), space)));
        is_everywhere.then_some(()).ok_or(at)
    }

    /// A greeting was answered by nonsense. Gives how many were.
    pub(super) fn met_stranger(&mut self) -> u32 {
        self.strangers += 1;
        self.strangers
    }

    /// The server has refused the identity of the client and takes another: it is tried next, because a
    /// greeting elsewhere, whatever comes of it, makes the new identity one that may have been forgotten,
    /// too.
    pub(super) fn try_again(&mut self) {
        let home = std::mem::take(&mut self.home);
        self.again = self.tried.pop().or((!home.is_empty()).then_some(home));
        self.forget_tried();
    }

    fn forget_tried(&mut self) {
        self.tried.clear();
        self.sent_on.clear();
    }

    fn untried(&self) -> Option<&String> {
        if self.reads_anywhere {
            return self.named.iter().chain(&self.learned).find(|at| !self.tried.contains(at));
        }
        let mut all = self.learned.iter().chain(&self.named).filter(|at| !self.tried.contains(at));
        all.clone().find(|at| **at != self.home).or_else(|| all.next())
    }

    /// The next address to try, and the pause before that, in microseconds.
    pub fn try_next(&mut self) -> (String, u64) {
        let mut pause_us = 0;
        // A connection that was made and ended before it was of use begins a round, too.
        if self.tried.is_empty() || self.untried().is_none() {
            self.forget_tried();
            self.is_any_there = false;
            let is_group = self.learned.len() > 1 || self.named.len() > 1;
            pause_us = self.pauses.take_us(match is_group {
                _ if self.is_denied => PAUSES_OF_DENIED_US,
                true => PAUSES_OF_GROUP_US,
                false => PAUSES_US,
            });
        }
        let next = self.again.take().or_else(|| self.untried().cloned()).unwrap_or_default();
        self.tried.push(next.clone());
        (next, pause_us)
    }
}

impl Client {
    /// These are the addresses at which its server may be found.
    pub fn set_servers(&mut self, named: Vec<String>) {
        self.peer.servers.named = named;
    }

    /// The next connection stays within this host, or does not.
    pub fn set_one_host(&mut self, is_one_host: bool) {
        self.peer.servers.capabilities = if is_one_host { ONE_HOST } else { 0 };
    }

    /// The client reads at any member of a group, at the first of those that were named if it can.
    pub fn reads_anywhere(&mut self) {
        self.peer.servers.reads_anywhere = true;
    }

    /// The address to connect to next, and the pause before that, in microseconds.
    pub fn next_server(&mut self) -> (String, u64) {
        self.peer.servers.try_next()
    }

    /// The server that was to be tried cannot be connected to.
    pub fn server_unreachable(&mut self, why: String) {
        if !self.peer.servers.is_any_there && self.peer.servers.untried().is_none() {
            self.peer.servers.unreachable = Some(why);
        }
    }

    /// Why no server could be connected to, when all had been tried the last time.
    pub fn unreachable(&self) -> Option<&str> {
        self.peer.servers.unreachable.as_deref()
    }

    /// Says whether there are several servers, of which another may be of more use than one that is slow.
    pub fn knows_several(&self) -> bool {
        self.peer.servers.learned.len() > 1 || self.peer.servers.named.len() > 1
    }

    /// The connection is of use: if it ends, the next one is made at once.
    pub fn settled(&mut self) {
        self.peer.servers.pauses.reset();
    }

    /// A connection was made.
    pub(super) fn server_reached(&mut self) {
        self.peer.servers.is_any_there = true;
        self.peer.servers.unreachable = None;
    }
}

/// The longest pauses at first and in the end, of a client of one server.
pub const PAUSES_US: (u64, u64) = (5_000, 320_000);

/// The same for a group. A change of its view takes some round trips and syncs, and at its members each
/// greeting waits for that.
const PAUSES_OF_GROUP_US: (u64, u64) = (2_000, 50_000);

/// The same for a client that lacks rights: one may be granted to it, and nobody waits for each attempt.
const PAUSES_OF_DENIED_US: (u64, u64) = (20_000, 2_000_000);

#[cfg(test)]
mod tests {
    use super::*;

    fn of(named: &[&str]) -> Servers {
        Servers::new(all(named), 7)
    }

    fn all(of: &[&str]) -> Vec<String> {
        of.iter().map(|at| at.to_string()).collect()
    }

    #[test]
    fn all_servers_are_tried_before_each_pause() {
        let mut servers = of(&["a"]);
        assert_eq!(servers.try_next(), ("a".into(), 0));
        // Each tells of another leader.
        servers.sent_on(all(&["b", "c", "a"]));
        assert_eq!(servers.try_next(), ("b".into(), 0));
        servers.sent_on(all(&["a", "c", "b"]));
        assert_eq!(servers.try_next(), ("c".into(), 0));
        servers.sent_on(all(&["b", "a", "c"]));
        for _ in 0..20 {
            let round: Vec<(String, u64)> = (0..3).map(|_| servers.try_next()).collect();
            assert!((1..=50_000).contains(&round[0].1), "{round:?}");
            assert_eq!((round[1].1, round[2].1), (0, 0), "{round:?}");
            assert_eq!([&round[0].0, &round[1].0, &round[2].0], ["b", "a", "c"]);
        }
    }

    #[test]
    fn server_that_began_to_lead_is_tried_again() {
        let mut servers = of(&["a", "b", "c"]);
        servers.tried.push("c".into());
        servers.found();
        // It waits for a leader in vain, and is that by the time that the next one tells.
        assert_eq!(servers.try_next().0, "a");
        assert_eq!(servers.try_next().0, "b");
        servers.sent_on(all(&["a", "b", "c"]));
        assert_eq!(servers.try_next(), ("a".into(), 0));
        servers.sent_on(all(&["b", "a", "c"]));
        assert_eq!(servers.try_next(), ("c".into(), 0), "two that send to each other are left");
    }

    #[test]
    fn client_without_rights_comes_back_seldom() {
        let mut servers = of(&["a", "b"]);
        servers.is_denied = true;
        let rounds: Vec<u64> = (0..40).map(|_| servers.try_next().1).step_by(2).collect();
        assert!(rounds.iter().sum::<u64>() >= 12_000_000 && rounds[19] <= 2_000_000, "{rounds:?}");
        servers.found();
        servers.pauses.reset();
        assert!((0..10).all(|_| servers.try_next().1 <= 50_000));
    }

    #[test]
    fn server_that_is_lost_is_tried_last() {
        let mut servers = of(&["a", "b"]);
        assert_eq!(servers.try_next().0, "a");
        servers.learn(all(&["a", "b", "c"]));
        servers.found();
        let next: Vec<String> = (0..3).map(|_| servers.try_next().0).collect();
        assert_eq!(next, ["b", "c", "a"]);
    }

    #[test]
    fn server_that_takes_another_identity_is_next() {
        let mut servers = of(&["a", "b"]);
        assert_eq!(servers.try_next().0, "a");
        servers.found();
        servers.learn(all(&["b", "a", "c"]));
        let next: Vec<String> = (0..3).map(|_| servers.try_next().0).collect();
        assert_eq!(next, ["b", "c", "a"]);
        servers.try_again();
        let next: Vec<String> = (0..3).map(|_| servers.try_next().0).collect();
        assert_eq!(next, ["a", "b", "c"]);
    }

    #[test]
    fn server_of_no_group_is_passed_over() {
        let mut servers = of(&["a", "b"]);
        assert_eq!(servers.try_next().0, "a");
        assert_eq!(servers.check_alone(SpaceId(7), &[]), Err("a".into()));
        assert_eq!(servers.try_next().0, "b");
        assert_eq!(servers.check_alone(SpaceId(8), &[]), Err("b".into()), "another space");
        assert_eq!(servers.check_alone(SpaceId(8), &all(&["b"])), Ok(()), "a member");
        assert_eq!(servers.try_next().0, "a");
        assert_eq!(servers.check_alone(SpaceId(8), &[]), Ok(()), "one server at both");
        assert_eq!(of(&["a"]).check_alone(SpaceId(7), &[]), Ok(()), "no other was named");
    }

    #[test]
    fn reader_tries_again_where_it_has_a_new_identity() {
        let mut servers = of(&["a", "b"]);
        servers.reads_anywhere = true;
        assert_eq!([servers.try_next().0, servers.try_next().0], ["a", "b"]);
        servers.try_again();
        let next: Vec<String> = (0..3).map(|_| servers.try_next().0).collect();
        assert_eq!(next, ["b", "a", "a"], "and then as ever");
    }

    #[test]
    fn reader_is_sent_on_from_its_home() {
        let mut servers = of(&["a", "b", "c"]);
        servers.reads_anywhere = true;
        assert_eq!(servers.try_next().0, "a");
        servers.found();
        servers.sent_on(all(&["c", "b", "a"]));
        let next: Vec<(String, u64)> = (0..2).map(|_| servers.try_next()).collect();
        assert_eq!(next, [("b".into(), 0), ("c".into(), 0)]);
    }

    #[test]
    fn newest_list_replaces_the_one_before() {
        let mut servers = of(&["a"]);
        for n in 0..100 {
            servers.learn((0..16).map(|i| format!("{n}:{i}")).collect());
            servers.try_next();
            servers.learn(Vec::new());
        }
        assert_eq!((servers.learned.len(), servers.named.len()), (16, 1));
        assert!(servers.learned.iter().all(|at| at.starts_with("99:")));
    }
}
