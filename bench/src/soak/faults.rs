//! The kills and stops of servers, and the cuts of their links, one after the other, while clients work.
//!
//! A server alone is started again at once. A member of a group is away for half of the time between two
//! faults, so that the others go on without it, and then takes what it missed.

use std::fmt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use tercel_term::Term;
use tercel_term::fail::Failure;
use tercel_term::hosts::Link;
use tercel_term::members::Members;

use super::{BAR, Done, Shared, client};
use crate::args;

/// A fault and its time.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    pub kind: Kind,
    /// Set if it met the member that led.
    pub leads: bool,
    pub begun_us: u64,
    /// The server listened again, or could go on.
    pub over_us: u64,
    /// Bytes of the server's log when it began.
    pub log_bytes: u64,
}

/// Times from one fault to the next.
#[derive(Clone, Copy)]
pub struct Every {
    pub fault: Duration,
    pub replace: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// SIGKILL.
    Kill,
    /// SIGSTOP, and SIGCONT when it is over.
    Stop,
    /// The link of its host loses packets, or lets few pass.
    Link(Link),
    /// Each sync of its disk takes so many milliseconds longer.
    SlowDisk(u64),
    /// SIGKILL, its directory is wiped, and a new member is made to vote at its place; set if that took a
    /// copy of the space.
    Replace(bool),
}

impl Fault {
    pub fn ms(&self) -> f64 {
        (self.over_us - self.begun_us) as f64 / 1e3
    }

    /// Says whether a time between two moments has to do with it.
    pub fn meets(&self, from_us: u64, to_us: u64) -> bool {
        from_us < self.over_us + AFTERMATH_US && self.begun_us < to_us
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            Kind::Kill => "killed",
            Kind::Stop => "stopped",
            Kind::Link(Link::CutIn) => "cut, one way in",
            Kind::Link(Link::CutOut) => "cut, one way out",
            Kind::Link(Link::Slow) => "behind a slow link",
            Kind::Link(_) => "cut",
            Kind::SlowDisk(_) => "with a slow disk",
            Kind::Replace(_) => "replaced",
        };
        write!(f, "{} {what}", if self.leads { "leader" } else { "follower" })
    }
}

/// Lets the clients work, with a fault every so often, and leaves servers that work. Gives the faults, and
/// what the servers did before they were killed.
pub fn make(
    args: &args::Soak,
    every: Every,
    shared: &Shared,
    members: &mut Members,
    term: &Term,
) -> Result<(Vec<Fault>, Done), Failure> {
    let bar = term.bar(args.seconds, BAR, "soak");
    let end = Duration::from_secs(args.seconds);
    let (mut faults, mut done) = (Vec::<Fault>::new(), Done::default());
    let (addresses, mut next) = (members.addresses()?, every);
    let is_possible = |(kind, _): &(Kind, bool)| match kind {
        Kind::Link(_) => members.hosts().is_some(),
        Kind::SlowDisk(_) => args.slow_disks,
        _ => true,
    };
    let turns: Vec<(Kind, bool)> = TURNS.into_iter().filter(is_possible).collect();
    while shared.begun.elapsed() < end {
        let due = next.fault.min(next.replace);
        let until = due.min(end).saturating_sub(shared.begun.elapsed());
        thread::sleep(until.min(BAR_STEP));
        bar.set_position(shared.begun.elapsed().as_secs());
        if shared.begun.elapsed() < due {
            continue;
        }
        // A server that does not answer now may have done something; it is only not counted.
        done = done + client(&addresses).map_or(Done::default(), |client| Done::by(&client));
        let is_replace = |fault: &&Fault| matches!(fault.kind, Kind::Replace(_));
        let (replaced, others) = (faults.iter().filter(is_replace).count(), faults.len());
        let others = others - replaced;
        let (kind, leads, turn) = if next.replace == due {
            next.replace += every.replace;
            (Kind::Replace(false), replaced.is_multiple_of(2), replaced / 2)
        } else {
            next.fault += every.fault;
            let (kind, leads) = turns[others % turns.len()];
            if members.len() == 1 { (Kind::Kill, true, 0) } else { (kind, leads, others / turns.len()) }
        };
        let leader = members.leader();
        let followers: Vec<usize> = (0..members.len()).filter(|i| Some(*i) != leader).collect();
        let met = match leader {
            Some(leader) if leads => leader,
            _ => followers[turn % followers.len()],
        };
        let away = if members.len() == 1 { Duration::ZERO } else { every.fault / 2 };
        let leads = leader == Some(met);
        faults.push(one((kind, leads), met, away, shared, members)?);
    }
    if members.len() > 1 {
        members.settled()?;
    }
    bar.finish_and_clear();
    Ok((faults, done))
}

fn one(
    (kind, leads): (Kind, bool),
    met: usize,
    away: Duration,
    shared: &Shared,
    members: &mut Members,
) -> Result<Fault, Failure> {
    let (log_bytes, begun_us) = (log_bytes(members.dir(met)), shared.now_us());
    if let Kind::Replace(_) = kind {
        // A quorum needs all others while one is replaced.
        members.settled()?;
        let kind = Kind::Replace(members.replace(met)?.is_copied);
        return Ok(Fault { kind, leads, begun_us, over_us: shared.now_us(), log_bytes });
    }
    let mut slow = None;
    match kind {
        Kind::Kill => drop(members.kill(met)?),
        Kind::Stop => members.freeze(met, true),
        Kind::Link(link) => set(members, met, link)?,
        Kind::SlowDisk(ms) => slow = Some(members.slow_disk(met, Duration::from_millis(ms))?),
        Kind::Replace(_) => {}
    }
    thread::sleep(away);
    match kind {
        Kind::Kill => members.start_one(met)?,
        Kind::Stop => members.freeze(met, false),
        Kind::Link(_) => set(members, met, Link::Whole)?,
        Kind::SlowDisk(_) => drop(slow),
        Kind::Replace(_) => {}
    }
    Ok(Fault { kind, leads, begun_us, over_us: shared.now_us(), log_bytes })
}

fn set(members: &Members, met: usize, link: Link) -> Result<(), Failure> {
    members.hosts().map_or(Ok(()), |hosts| hosts.set(met, link))
}

/// Bytes of the log's segments.
fn log_bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir.join("log")).into_iter().flatten().flatten();
    let segments = files.filter(|f| f.path().extension().is_some_and(|extension| extension == "tlog"));
    segments.filter_map(|f| f.metadata().ok()).map(|m| m.len()).sum()
}

/// The faults of a group, by turns; set if the leader is met. Links are of members on hosts of their own, and
/// disks are slowed where that is asked for.
const TURNS: [(Kind, bool); 15] = [
    (Kind::Kill, true),
    (Kind::SlowDisk(75), true),
    (Kind::Link(Link::Cut), true),
    (Kind::Stop, true),
    (Kind::Link(Link::CutIn), true),
    (Kind::Kill, false),
    (Kind::Link(Link::CutOut), true),
    (Kind::Stop, false),
    (Kind::Link(Link::Slow), true),
    (Kind::SlowDisk(200), false),
    (Kind::Link(Link::Cut), false),
    (Kind::Link(Link::CutIn), false),
    (Kind::Link(Link::CutOut), false),
    (Kind::SlowDisk(20), true),
    (Kind::Link(Link::Slow), false),
];

/// Time between two moves of the bar.
const BAR_STEP: Duration = Duration::from_millis(500);

/// A member that is back may cost the others something for a while.
const AFTERMATH_US: u64 = 200_000;
