//! A group of servers of this run's own, each a process of this program: started, killed, stopped, and asked
//! which one leads. A group of one is a server alone.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tercel::group::{Change, MemberId, change, form, health_of, inspect, join, members, secret, status_of};
use tercel::{Address, Addresses, Error, HealthState, Tls};

use crate::disk::SlowDisk;
use crate::fail::Failure;
use crate::hosts::Hosts;
use crate::process::OwnProcess;

/// The members, in the order of their places.
pub struct Members {
    places: Vec<(PathBuf, Address)>,
    servers: Vec<Option<OwnProcess>>,
    more: Vec<String>,
    hosts: Option<Hosts>,
    /// The directory of their certificates, and the client's among them by which they are asked.
    certificates: Option<(PathBuf, Tls)>,
}

impl Members {
    /// Takes the directories of `n` members in `dir`, which it makes if there are none, and starts a server
    /// on each. `more` goes to the end of each command line.
    ///
    /// # Errors
    /// If directories cannot be made or a server does not start.
    pub fn start(dir: &Path, n: usize, more: &[&str]) -> Result<Members, Failure> {
        Members::start_behind(dir, n, more, |address| Ok(address.clone()))
    }

    /// The same with members that reach each other where `front` says, which is told where one listens.
    ///
    /// # Errors
    /// As [`Members::start`], and what `front` gives.
    pub fn start_behind(
        dir: &Path,
        n: usize,
        more: &[&str],
        front: impl FnMut(&Address) -> Result<Address, Failure>,
    ) -> Result<Members, Failure> {
        Members::begin(Members::form(dir, n, loopback(), front)?, more)
    }

    /// The same on hosts of this run's own.
    ///
    /// # Errors
    /// As [`Members::start`].
    pub fn start_on(hosts: Hosts, dir: &Path, n: usize, more: &[&str]) -> Result<Members, Failure> {
        let members = Members::form(dir, n, |i| hosts.address(i), |address| Ok(address.clone()))?;
        let more: Vec<&str> = more.iter().copied().chain(["--allow-plain-remote"]).collect();
        Members::begin(Members { hosts: Some(hosts), ..members }, &more)
    }

    /// The same with TLS, on hosts of this run's own or without. The directory of certificates has one of
    /// each member by the name of its directory, and `client` for those that ask it.
    ///
    /// # Errors
    /// As [`Members::start`], and if the client's certificate cannot be read.
    pub fn start_secured(
        hosts: Option<Hosts>,
        certificates: &Path,
        dir: &Path,
        n: usize,
        more: &[&str],
    ) -> Result<Members, Failure> {
        let (any, front) = (loopback(), |address: &Address| Ok(address.clone()));
        let members =
            Members::form(dir, n, |i| hosts.as_ref().map_or(any(i), |hosts| hosts.address(i)), front)?;
        let tls = Tls::open(certificates.join("client")).map_err(|e| Failure::new(e.to_string()))?;
        let certificates = Some((certificates.to_path_buf(), tls));
        Members::begin(Members { hosts, certificates, ..members }, more)
    }

    fn begin(mut members: Members, more: &[&str]) -> Result<Members, Failure> {
        members.more = more.iter().map(|word| word.to_string()).collect();
        (0..members.len()).try_for_each(|i| members.start_one(i))?;
        Ok(members)
    }

    fn form(
        dir: &Path,
        n: usize,
        address: impl Fn(usize) -> Result<Address, Failure>,
        mut front: impl FnMut(&Address) -> Result<Address, Failure>,
    ) -> Result<Members, Failure> {
        let data = |i: usize| dir.join(format!("member-{}", i + 1));
        let mut places: Vec<(PathBuf, Address)> =
            (0..n).map(|i| Ok((data(i), address(i)?))).collect::<Result<_, Failure>>()?;
        if data(0).exists() && (data(n).exists() || !data(n - 1).exists()) {
            let other = format!("{} has not the directories of {n} members", dir.display());
            return Err(Failure::new(other).next("go on with as many members as it was made for"));
        }
        let listed = dir.join(ADDRESSES_NAME);
        if n > 1 && data(0).exists() {
            // A member that joined does not know of its place from its directory alone.
            let known = std::fs::read_to_string(listed)?;
            for ((_, address), at) in places.iter_mut().zip(known.lines()) {
                *address = at.parse().map_err(|e: tercel::AddressError| Failure::new(e.to_string()))?;
            }
        } else if n > 1 {
            let new = places.iter().map(|(dir, at)| Ok((dir.as_path(), front(at)?)));
            let new = new.collect::<Result<Vec<_>, Failure>>()?;
            form(&new)?;
            let lines: String = new.iter().map(|(_, at)| format!("{at}\n")).collect();
            std::fs::write(listed, lines)?;
        }
        let servers = places.iter().map(|_| None).collect();
        Ok(Members { servers, places, more: Vec::new(), hosts: None, certificates: None })
    }

    /// The directories and addresses of `n` servers in `dir`, of which nothing is there yet.
    ///
    /// # Errors
    /// Never: each address is one.
    pub fn places(dir: &Path, n: usize) -> Result<Vec<(PathBuf, Address)>, Failure> {
        let address = loopback();
        (0..n).map(|i| Ok((dir.join(format!("member-{}", i + 1)), address(i)?))).collect()
    }

    /// The number of members.
    #[expect(clippy::len_without_is_empty, reason = "a group has a member")]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// The directory of a member.
    pub fn dir(&self, i: usize) -> &Path {
        &self.places[i].0
    }

    /// The address of a member.
    pub fn address(&self, i: usize) -> &Address {
        &self.places[i].1
    }

    /// The addresses of all, as a client takes them.
    ///
    /// # Errors
    /// Never: each of them is one.
    pub fn addresses(&self) -> Result<Addresses, Failure> {
        self.asked(self.places.iter().map(|(_, at)| at))
    }

    /// Addresses as this process asks them: with a client's certificate, if the members have certificates.
    ///
    /// # Errors
    /// Never: each of them is one.
    pub fn asked<'a>(&self, of: impl Iterator<Item = &'a Address>) -> Result<Addresses, Failure> {
        let all: Vec<String> = of.map(Address::to_string).collect();
        let all: Addresses =
            all.join(",").parse().map_err(|e: tercel::AddressError| Failure::new(e.to_string()))?;
        Ok(match &self.certificates {
            Some((_, tls)) => all.with_tls(tls.clone()),
            None => all,
        })
    }

    /// Asks a member whether it leads. None if it does not answer at once.
    fn leads(&self, i: usize) -> Option<bool> {
        let at = self.asked(std::iter::once(self.address(i))).ok()?;
        let health = health_of(at, ANSWER_MAX).ok()?;
        Some(!matches!(health.state, HealthState::NotLeading | HealthState::Following))
    }

    /// The process of a member that runs.
    pub fn server(&mut self, i: usize) -> Option<&mut OwnProcess> {
        self.servers[i].as_mut()
    }

    /// Starts a member that does not run, and waits until it listens.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_one(&mut self, i: usize) -> Result<(), Failure> {
        let (dir, address) = &self.places[i];
        let mut more = self.more.clone();
        if let (Some((certificates, _)), Some(name)) = (&self.certificates, dir.file_name()) {
            more.extend(["--tls".into(), certificates.join(name).display().to_string()]);
        }
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let hosts = self.hosts.as_ref();
        let begin = |program| match hosts {
            Some(hosts) => hosts.of(i).command(program),
            None => Command::new(program),
        };
        self.servers[i] = Some(OwnProcess::serve_by(begin, dir, Some(address), &more)?);
        Ok(())
    }

    /// Kills a member with SIGKILL. Gives the moment before.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn kill(&mut self, i: usize) -> Result<Instant, Failure> {
        let begun = Instant::now();
        self.servers[i].take().map_or(Ok(()), |mut server| server.kill())?;
        Ok(begun)
    }

    /// Ends a member with SIGTERM, waits until it has ended, and starts it again. Gives the time until it had
    /// ended.
    ///
    /// # Errors
    /// If it ends with an error, or does not start.
    pub fn restart(&mut self, i: usize) -> Result<Duration, Failure> {
        let begun = Instant::now();
        self.servers[i].take().map_or(Ok(()), OwnProcess::stop)?;
        let ended = begun.elapsed();
        self.start_one(i)?;
        Ok(ended)
    }

    /// Has all members end, one after the other, and start again with other words at the end of their command
    /// lines.
    ///
    /// # Errors
    /// If one ends with an error, or does not start.
    pub fn serve_with(&mut self, more: &[&str]) -> Result<(), Failure> {
        self.more = more.iter().map(|word| word.to_string()).collect();
        (0..self.len()).try_for_each(|i| self.restart(i).map(drop))
    }

    /// Takes a member out, lets a new one with an empty directory join at its place, and waits until that
    /// votes.
    ///
    /// # Errors
    /// If that does not come about within some minutes.
    pub fn replace(&mut self, i: usize) -> Result<Joined, Failure> {
        self.take_out(i)?;
        self.join(i)
    }

    /// Kills a member for good, wipes its directory, and takes it off the list.
    ///
    /// # Errors
    /// If that does not come about within some minutes.
    pub fn take_out(&mut self, i: usize) -> Result<(), Failure> {
        let old = inspect(self.dir(i))?.member;
        self.kill(i)?;
        std::fs::remove_dir_all(self.dir(i))?;
        let (others, secret) = (self.others(i)?, self.secret_beside(i)?);
        patiently(|| match members(&others)?.iter().any(|(id, ..)| *id == old) {
            true => change(&others, Change::Remove, &old.to_string(), Some(&secret)).map(drop),
            false => Ok(()),
        })
    }

    /// The file with the group's secret of another member.
    fn secret_beside(&self, i: usize) -> Result<PathBuf, Failure> {
        Ok(secret(self.dir((i + 1) % self.len()))?.0)
    }

    fn others(&self, i: usize) -> Result<Addresses, Failure> {
        self.asked((0..self.len()).filter(|at| *at != i).map(|at| self.address(at)))
    }

    /// Lets a new member join at a place of which the directory is empty, and waits until it votes.
    ///
    /// # Errors
    /// If that does not come about within some minutes.
    pub fn join(&mut self, i: usize) -> Result<Joined, Failure> {
        let (begun, others) = (Instant::now(), self.others(i)?);
        let secret = self.secret_beside(i)?;
        let (dir, address) = &self.places[i];
        let joined = || join(dir, &others, address, Some(&secret));
        let me = patiently(|| joined().map_err(|e| Error::Unavailable(e.to_string())))?;
        self.start_one(i)?;
        let mut is_copied = false;
        patiently(|| {
            let found =
                self.lag_of(me).ok_or_else(|| Error::Unavailable("the group does not know it".into()))?;
            is_copied |= found == Lag::Lost;
            match found {
                Lag::Entries(0..=LAG_MAX) => {
                    change(&others, Change::Vote, &me.to_string(), Some(&secret)).map(drop)
                }
                _ => Err(Error::Unavailable(format!("the member that joined lags: {found:?}"))),
            }
        })?;
        Ok(Joined { is_copied, took: begun.elapsed() })
    }

    /// The lag of a member, as the leader knows it.
    fn lag_of(&self, member: MemberId) -> Option<Lag> {
        let leader = self.asked(std::iter::once(self.address(self.leader()?))).ok()?;
        let status = status_of(leader, ANSWER_MAX).ok()?;
        let group = status.group?;
        let found = group.members.iter().find(|one| one.member == member.to_string())?;
        match found.lost {
            true => Some(Lag::Lost),
            false => found.lag.map(Lag::Entries),
        }
    }

    /// Stops all threads of a member, or lets them go on: it is there, and does nothing.
    pub fn freeze(&self, i: usize, is_frozen: bool) {
        let signal = if is_frozen { Signal::STOP } else { Signal::CONT };
        self.servers[i].iter().for_each(|server| server.signal(signal));
    }

    /// Holds up each sync of a member's disk by so much, until what this gives is dropped or the member ends.
    ///
    /// # Errors
    /// As [`SlowDisk::begin`].
    pub fn slow_disk(&self, i: usize, longer: Duration) -> Result<SlowDisk, Failure> {
        let Some(server) = &self.servers[i] else {
            return Err(Failure::new("a member that is away has no disk"));
        };
        SlowDisk::begin(server.id(), longer)
    }

    /// The hosts of the members, if they have some of their own.
    pub fn hosts(&self) -> Option<&Hosts> {
        self.hosts.as_ref()
    }

    /// The member that leads and can be reached, if one says so within a moment.
    pub fn leader(&self) -> Option<usize> {
        (0..self.len()).find(|i| self.servers[*i].is_some() && self.leads(*i) == Some(true))
    }

    /// Waits until a member leads and all the others run and answer.
    ///
    /// # Errors
    /// If that does not come about within half a minute.
    pub fn settled(&self) -> Result<usize, Failure> {
        let end = Instant::now() + SETTLED_MAX;
        while Instant::now() < end {
            let all: Vec<Option<bool>> = (0..self.len()).map(|i| self.leads(i)).collect();
            let leader = all.iter().position(|one| *one == Some(true));
            if let Some(leader) = leader.filter(|_| all.iter().all(Option::is_some)) {
                return Ok(leader);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Err(Failure::new("no member of the group leads, or one does not answer"))
    }

    /// Ends all of them with SIGTERM, and waits.
    ///
    /// # Errors
    /// If one ends with an error.
    pub fn stop(mut self) -> Result<(), Failure> {
        // The leader first: it finishes calls by the others' help. Those then need nothing of each other.
        if let Some(leader) = self.leader() {
            self.servers[leader].take().map_or(Ok(()), OwnProcess::stop)?;
        }
        self.servers.iter().flatten().for_each(|server| server.signal(Signal::TERM));
        self.servers.into_iter().flatten().try_for_each(OwnProcess::ended)
    }
}

/// A new member's way into its group.
#[derive(Debug, Clone, Copy)]
pub struct Joined {
    /// It took a copy of the space, for the log did not reach back.
    pub is_copied: bool,
    /// From its begin until it votes.
    pub took: Duration,
}

/// The state of a member's log beside the leader's.
#[derive(Debug, PartialEq, Eq)]
enum Lag {
    /// It lacks so many entries.
    Entries(u64),
    /// The leader's log does not reach back for it.
    Lost,
}

/// Asks a group again and again, until it does what it is asked for.
fn patiently<T>(mut ask: impl FnMut() -> Result<T, Error>) -> Result<T, Failure> {
    let end = Instant::now() + REPLACED_MAX;
    loop {
        match ask() {
            Err(Error::Unavailable(_) | Error::Timeout | Error::Unknown { .. }) if Instant::now() < end => {
                std::thread::sleep(ASK_EVERY);
            }
            answer => return Ok(answer?),
        }
    }
}

/// Addresses of this machine that no other group takes, and no connection: those begin at 127.0.0.1.
fn loopback() -> impl Fn(usize) -> Result<Address, Failure> {
    static GROUPS: AtomicU8 = AtomicU8::new(0);
    let [low, high, ..] = std::process::id().to_le_bytes();
    let group = GROUPS.fetch_add(1, Ordering::Relaxed) % 31;
    move |i| {
        let address = format!("127.{}.{low}.{}:7117", 1 + high % 250, 8 * usize::from(group) + i + 1);
        address.parse().map_err(|e: tercel::AddressError| Failure::new(e.to_string()))
    }
}

/// A server answers from its memory; one that is stopped does not.
const ANSWER_MAX: Duration = Duration::from_millis(200);
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Time between two questions to a group that does not do at once what it is asked for.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// Entries that a member may lack to be made to vote.
const LAG_MAX: u64 = 1_000;
/// Time for a step of a member's replacement: a copy of a large space takes a while.
const REPLACED_MAX: Duration = Duration::from_secs(180);
/// The file of the members' addresses, beside their directories.
const ADDRESSES_NAME: &str = "addresses";
/// A restart with the longest log takes a few seconds.
const SETTLED_MAX: Duration = Duration::from_secs(30);
