//! The demonstration of a group: members are killed amid commits, and nothing is lost.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tercel::{Addresses, Client, ClientConfig, Error, Ref};
use tercel_packages::model::Counter;
use tercel_term::fail::Failure;
use tercel_term::members::Members;
use tercel_term::{Term, tell, thousands};

/// Commits before a member is killed, and behind it.
const COMMITS: usize = 500;
/// A client goes on within a second; on a busy machine later.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Serves a space from several processes, and kills two of them one after the other.
pub fn run(dir: &Path, replicas: usize, term: &Term) -> Result<(), Failure> {
    let mut members = Members::start(dir, replicas, &[])?;
    let all: Vec<String> = (0..replicas)
        .filter_map(|i| Some(format!("{} at {}", members.server(i)?.id(), members.address(i))))
        .collect();
    let leader = members.settled()?;
    let quorum = replicas / 2 + 1;
    tell!(
        "{} {replicas} servers of one space: processes {}; a commit is acknowledged once {quorum} of {replicas} have it on disk",
        term.bold("group"),
        all.join(", ")
    );
    let client = connect(&members.addresses()?)?;
    let counter: Ref<Counter> = client.run(|tx| {
        let counter = tx.create(&Counter { value: 0 })?;
        tx.set_root("counter", counter)?;
        Ok(counter)
    })?;
    let commits = Commits::default();
    thread::scope(|scope| {
        let stream = scope.spawn(|| commits.make(&client, counter));
        let ended = scenes(&mut members, leader, &commits, term);
        commits.stop.store(true, Ordering::Relaxed);
        match stream.join() {
            Ok(made) => ended.and(made.map_err(Failure::from)),
            Err(_) => Err(Failure::new("the committing thread panicked")),
        }
    })?;
    // Another client, with nothing cached, asks the group itself.
    let found = connect(&members.addresses()?)?.run(|tx| Ok(tx.get(counter)?.value()))?;
    let acknowledged = commits.count() as u64;
    let line = format!("acknowledged {}, found {}", thousands(acknowledged), thousands(found));
    tell!("  {}", if acknowledged == found { term.green(&line) } else { term.red(&line) });
    if acknowledged != found {
        return Err(Failure::new("commits were lost or made twice"));
    }
    tell!(
        "  the servers are processes of one machine: this shows the end of a process, and not the loss of a machine or its disk"
    );
    members.stop()
}

fn scenes(members: &mut Members, leader: usize, commits: &Commits, term: &Term) -> Result<(), Failure> {
    commits.wait_for(COMMITS)?;
    tell!("{} one after the other, {:.2} ms each (median)", term.bold("commits"), commits.median_ms());
    kill(members, leader, commits, term, "killed with SIGKILL amid commits")?;
    let begun = Instant::now();
    members.start_one(leader)?;
    let next = members.settled()?;
    tell!(
        "{} the killed server is started again and takes what it missed from the others ({:.0} ms until it follows)",
        term.bold("back"),
        begun.elapsed().as_secs_f64() * 1e3
    );
    kill(members, next, commits, term, "killed too: every commit now needs the one that came back")
}

/// Kills the leader, and waits until the client has gone on for a while.
fn kill(
    members: &mut Members,
    leader: usize,
    commits: &Commits,
    term: &Term,
    words: &str,
) -> Result<(), Failure> {
    let process = members.server(leader).map_or(0, |server| server.id());
    let killed = members.kill(leader)?;
    commits.wait_for(commits.count() + COMMITS)?;
    tell!(
        "{} the leader, process {process}, {words}; the client waited {:.0} ms and went on with another leader",
        term.bold("kill"),
        commits.longest_since(killed).as_secs_f64() * 1e3
    );
    Ok(())
}

fn connect(at: &Addresses) -> Result<Client, Failure> {
    let config = ClientConfig { cache_bytes: 4 << 20, ..ClientConfig::default() };
    Ok(Client::connect_with(at.clone(), config)?)
}

/// The commits of one client, each at the moment of its acknowledgement.
#[derive(Default)]
struct Commits {
    stop: AtomicBool,
    failed: AtomicBool,
    made: Mutex<Vec<Instant>>,
}

impl Commits {
    /// Commits until told to stop.
    fn make(&self, client: &Client, counter: Ref<Counter>) -> Result<(), Error> {
        while !self.stop.load(Ordering::Relaxed) {
            let made = client.run(|tx| {
                let counter = tx.get(counter)?;
                counter.edit()?.set_value(counter.value() + 1)
            });
            if made.is_err() {
                self.failed.store(true, Ordering::Relaxed);
            }
            made?;
            self.made.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
        }
        Ok(())
    }

    fn with<R>(&self, look: impl FnOnce(&[Instant]) -> R) -> R {
        look(&self.made.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count(&self) -> usize {
        self.with(<[_]>::len)
    }

    fn wait_for(&self, count: usize) -> Result<(), Failure> {
        let end = Instant::now() + WAIT_MAX;
        while self.count() < count {
            if self.failed.load(Ordering::Relaxed) || Instant::now() > end {
                return Err(Failure::new("the client of the group does not go on"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn median_ms(&self) -> f64 {
        let mut times: Vec<Duration> =
            self.with(|made| made.windows(2).map(|pair| pair[1] - pair[0]).collect());
        times.sort_unstable();
        times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    }

    /// The longest time between two commits of which the later is behind a moment.
    fn longest_since(&self, since: Instant) -> Duration {
        self.with(|made| {
            let behind = made.windows(2).filter(|pair| pair[1] > since);
            behind.map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
        })
    }
}
