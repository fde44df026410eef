//! The end of a member: when the others see it, and what a client notices.
//!
//! A client commits one small change after the other. Each success has a time; the longest time between two
//! of them behind the end of a member is what the client noticed, and the longest in as long a time before is
//! what it notices anyway.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tercel::{Addresses, Bytes, Client, ClientConfig, Error, Object, Ref};
use tercel_lock::unpoison;
use tercel_term::hosts::{Hosts, Link};
use tercel_term::members::Members;

use super::super::blocks::{Pairs, median, percentile};
use super::super::report::Row;
use super::super::scratch::Scratch;
use super::{MEMBERS, Options, failed, must, relay};

/// The object that is changed.
#[derive(Object)]
struct Counter {
    value: u64,
    padding: [u8; 48],
}

/// An object that makes servers large.
#[derive(Object)]
struct Ballast {
    bytes: Bytes,
}

/// The end of a member.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Kill,
    Stop,
    /// Its host's link loses all packets.
    Cut,
}

/// `group.detect.exit`: from the kill of a leader to the end of its connections at the others.
pub fn detect(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    let limits = [(8, (1.0, 1.0), (3.0, 3.0)), (256, (3.0, 3.0), (6.0, 6.0))];
    limits
        .into_iter()
        .map(|(mib, p50, p90)| {
            let (tell, ended) = mpsc::channel();
            let dir = scratch.join(&format!("detect of {mib}"));
            let front = |at: &tercel::Address| relay::start(at, &tell);
            let members = Members::start_behind(&dir, MEMBERS, &SERVE, front)?;
            let mut members = fill(members, mib)?;
            let mut times = Vec::new();
            for _ in 0..kills(options) {
                let leader = members.settled()?;
                caught_up(&members.addresses()?)?;
                while ended.try_recv().is_ok() {}
                let killed = members.kill(leader)?;
                for _ in 1..MEMBERS {
                    times.push(ms(seen(&ended)?.saturating_duration_since(killed)));
                }
                members.start_one(leader)?;
            }
            let row = row(&format!("group.detect.exit.{mib}m"), times, [p50, p90]);
            Ok(with_size(row, &mut members))
        })
        .collect()
}

/// Waits until the leader hears every member, and none lacks more than what is under way.
pub(super) fn caught_up(at: &Addresses) -> Result<(), String> {
    let end = Instant::now() + WAIT_MAX;
    let client = connect(at)?;
    let lags = || -> Option<Vec<u64>> {
        let group = client.server_status().ok()?.group?;
        group.members.iter().map(|member| member.lag).collect()
    };
    while !lags().is_some_and(|lags| lags.len() == MEMBERS && lags.iter().all(|lag| *lag <= LAG_MAX)) {
        if Instant::now() > end {
            return Err("a member that was started again does not catch up".into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn seen(ended: &Receiver<Instant>) -> Result<Instant, String> {
    ended.recv_timeout(Duration::from_secs(5)).map_err(|_| "no member saw the end of the leader".into())
}

/// `group.failover.exit`: the longest time between two successes of a client when the leader is killed.
pub fn failover_exit(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    let (rounds, row) = (kills(options), "group.failover.exit");
    let (gaps, mut members) = gaps(&scratch.join(row), 256, rounds, (End::Kill, true))?;
    let gaps = gaps.pairs.into_iter().map(|(_, gap)| gap).collect();
    let row = self::row(row, gaps, [(20.0, 8.0), (60.0, 20.0)]);
    Ok(vec![with_size(row, &mut members)])
}

/// `group.failover.stop`: the same when it is stopped.
pub fn failover_stop(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    let row = "group.failover.stop";
    let (gaps, _) = gaps(&scratch.join(row), 8, kills(options).div_ceil(4), (End::Stop, true))?;
    let gaps = gaps.pairs.into_iter().map(|(_, gap)| gap).collect();
    let most = DEADLINE_MS + 20.0;
    Ok(vec![self::row(row, gaps, [(most, most), (most, most)])])
}

/// `group.failover.slow_disk`: the same when the leader is killed and every sync of every member takes 5 to
/// 200 ms longer, by the time of ten syncs and 300 ms.
pub fn failover_slow_disk(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    let row = "group.failover.slow_disk";
    let mut members = Members::start(&scratch.join(row), MEMBERS, &SERVE)?;
    let longer = if options.quick { vec![5, 75, 200] } else { DELAYS_MS.to_vec() };
    let (mut shares, mut worst, rounds) = (Vec::new(), (0.0, 0), if options.quick { 1 } else { 5 });
    for (delay, _) in longer.iter().flat_map(|delay| (0..rounds).map(move |round| (*delay, round))) {
        let leader = members.settled()?;
        caught_up(&members.addresses()?)?;
        let slow = (0..MEMBERS).map(|i| members.slow_disk(i, Duration::from_millis(delay)));
        let slow = match slow.collect::<Result<Vec<_>, _>>() {
            Ok(slow) => slow,
            Err(e) => {
                eprintln!("{row} is left out: {}", e.what);
                return Ok(Vec::new());
            }
        };
        let committer = Committer::start(&members.addresses()?)?;
        committer.waits_for(Instant::now(), (Duration::ZERO, FEW))?;
        let killed = members.kill(leader)?;
        committer.waits_for(killed, (Duration::ZERO, FEW))?;
        let gap = committer.longest(killed, Instant::now());
        let share = gap / (SYNCS * delay as f64 + 300.0);
        if share > worst.0 {
            worst = (share, delay);
        }
        shares.push((share, gap));
        drop((committer, slow));
        members.start_one(leader)?;
    }
    let held = shares.iter().filter(|(share, _)| *share <= 1.0).count();
    let note = format!(
        "the longest of {} gaps of a client by the time of {SYNCS} syncs and 300 ms; {held} were within it; syncs took 5 to 200 \
         ms longer, {} in the worst case",
        shares.len(),
        worst.1
    );
    Ok(vec![Row::new(row, worst.0, "ratio", shares.len() as u64).note(note)])
}

/// `group.failover.cut`: the same when the link of its host is cut.
pub fn failover_cut(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    let row = "group.failover.cut";
    let measure = || -> Result<Vec<Row>, String> {
        let hosts = match Hosts::new(MEMBERS) {
            Ok(hosts) => hosts,
            Err(e) => {
                eprintln!("{row} is left out: {}", e.what);
                return Ok(Vec::new());
            }
        };
        let members = Members::start_on(hosts, &scratch.join(row), MEMBERS, &SERVE)?;
        let (gaps, _) = gaps_of(members, 8, kills(options).div_ceil(4), (End::Cut, true))?;
        let gaps = gaps.pairs.into_iter().map(|(_, gap)| gap).collect();
        let most = DEADLINE_MS + 20.0;
        Ok(vec![self::row(row, gaps, [(most, most), (most, most)])])
    };
    // A thread that is on one of the hosts stays there.
    let measured = thread::scope(|scope| scope.spawn(measure).join());
    measured.map_err(|_| "the thread that measures a cut panicked")?
}

/// `group.gap.follower.exit`: the same when a follower is killed, by the longest time before that.
pub fn follower_exit(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    follower(options, scratch, "group.gap.follower.exit", End::Kill)
}

/// `group.gap.follower.stop`: the same when it is stopped.
pub fn follower_stop(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    follower(options, scratch, "group.gap.follower.stop", End::Stop)
}

fn follower(options: &Options, scratch: &Scratch, row: &str, end: End) -> Result<Vec<Row>, String> {
    let n = kills(options);
    let (gaps, _) = gaps(&scratch.join(row), 8, n, (end, false))?;
    let mut quiet: Vec<f64> = gaps.pairs.iter().map(|(quiet, _)| *quiet).collect();
    quiet.sort_unstable_by(f64::total_cmp);
    let p99 = percentile(&quiet, 0.99);
    let beyond = gaps.pairs.iter().filter(|(_, gap)| *gap > p99).count();
    let note = format!("{beyond} of {n} gaps are beyond {p99:.2} ms, the p99 of quiet times: must be 0");
    Ok(vec![Row::compared(row, "ms", &gaps, "the same time before", n as u64).note(note)])
}

/// `group.false_suspicions`: views that begin beside busy threads, where no member ends.
pub fn false_suspicions(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    let seconds = if options.quick { 10 } else { options.quiet_seconds };
    let members = Members::start(&scratch.join("quiet"), MEMBERS, &SERVE)?;
    members.settled()?;
    let before = view(&members)?;
    let is_over = AtomicBool::new(false);
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..BURNERS {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        thread::sleep(Duration::from_secs(seconds));
        is_over.store(true, Ordering::Relaxed);
    });
    let views = view(&members)? - before;
    let note = format!(
        "views that began in {:.0} s beside {BURNERS} busy threads: must be 0",
        begun.elapsed().as_secs_f64()
    );
    Ok(vec![Row::new("group.false_suspicions", views as f64, "views", seconds).note(note)])
}

fn view(members: &Members) -> Result<u64, String> {
    Ok(connect(&members.addresses()?)?.server_status().map_err(failed)?.view)
}

/// Ends the leader, or a follower, again and again beside a client. Gives for each the longest gap in quiet
/// and behind the end, in milliseconds.
fn gaps(dir: &Path, mib: usize, rounds: usize, end: (End, bool)) -> Result<(Pairs, Members), String> {
    gaps_of(Members::start(dir, MEMBERS, &SERVE)?, mib, rounds, end)
}

fn gaps_of(
    members: Members,
    mib: usize,
    rounds: usize,
    (end, leads): (End, bool),
) -> Result<(Pairs, Members), String> {
    let mut members = fill(members, mib)?;
    let committer = Committer::start(&members.addresses()?)?;
    let mut gaps = Pairs::default();
    for round in 0..rounds {
        let leader = members.settled()?;
        let met = if leads { leader } else { (leader + 1 + round % (MEMBERS - 1)) % MEMBERS };
        let quiet = Instant::now();
        committer.waits_for(quiet, (WINDOW, SUCCESSES))?;
        let ended = match end {
            End::Kill => members.kill(met)?,
            End::Stop => {
                let ended = Instant::now();
                members.freeze(met, true);
                ended
            }
            End::Cut => {
                set(&members, met, Link::Cut)?;
                Instant::now()
            }
        };
        committer.waits_for(ended, (WINDOW, SUCCESSES))?;
        gaps.pairs.push((committer.longest(quiet, ended), committer.longest(ended, Instant::now())));
        match end {
            End::Kill => members.start_one(met)?,
            End::Stop => members.freeze(met, false),
            End::Cut => set(&members, met, Link::Whole)?,
        }
    }
    drop(committer);
    Ok((gaps, members))
}

pub(super) fn set(members: &Members, met: usize, link: Link) -> Result<(), String> {
    Ok(members.hosts().map_or(Ok(()), |hosts| hosts.set(met, link))?)
}

/// A client that commits all the time.
struct Committer {
    stop: Arc<AtomicBool>,
    successes: Arc<Mutex<Vec<Instant>>>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl Committer {
    fn start(at: &Addresses) -> Result<Committer, String> {
        let client = connect(at)?;
        let counter: Ref<Counter> =
            client.run(|tx| tx.create(&Counter { value: 0, padding: [7; 48] })).map_err(failed)?;
        let (stop, successes) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (over, done) = (stop.clone(), successes.clone());
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                client.run(|tx| {
                    let counter = tx.get(counter)?;
                    counter.edit()?.set_value(counter.value() + 1)
                })?;
                unpoison(done.lock()).push(Instant::now());
            }
            Ok(())
        });
        Ok(Committer { stop, successes, thread: Some(thread) })
    }

    /// Waits so long from a moment on, and then for a number of successes since.
    fn waits_for(&self, since: Instant, (window, successes): (Duration, usize)) -> Result<(), String> {
        let end = Instant::now() + WAIT_MAX;
        while since.elapsed() < window || self.count(since) < successes {
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) || Instant::now() > end {
                return Err("a client beside members that end has failed, or goes on no more".into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn count(&self, since: Instant) -> usize {
        unpoison(self.successes.lock()).iter().rev().take_while(|at| **at > since).count()
    }

    /// The longest time between two successes of which the later is between two moments, in milliseconds.
    fn longest(&self, from: Instant, to: Instant) -> f64 {
        let successes = unpoison(self.successes.lock());
        let within = successes.windows(2).filter(|pair| pair[1] > from && pair[1] <= to);
        within.map(|pair| ms(pair[1] - pair[0])).fold(0.0, f64::max)
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(super) fn connect(at: &Addresses) -> Result<Client, String> {
    let config = ClientConfig { cache_bytes: 1 << 20, transactions_max: 2, ..ClientConfig::default() };
    Client::connect_with(at.clone(), config).map_err(failed)
}

/// Makes each server as large as that, in memory.
pub(super) fn fill(mut members: Members, mib: usize) -> Result<Members, String> {
    members.settled()?;
    let client = connect(&members.addresses()?)?;
    while resident_mib(&mut members) < mib as u64 {
        let more = |tx: &tercel::Tx<'_>| {
            (0..BALLAST_OBJECTS)
                .try_for_each(|_| tx.create(&Ballast { bytes: Bytes(vec![0x5a; BALLAST_BYTES]) }).map(drop))
        };
        client.run(more).map_err(failed)?;
    }
    Ok(members)
}

/// Resident bytes of the smallest member, in MiB.
fn resident_mib(members: &mut Members) -> u64 {
    let of = |id: u32| -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().strip_suffix(" kB")?.parse().ok()
    };
    let ids: Vec<u32> = (0..members.len()).filter_map(|i| members.server(i).map(|s| s.id())).collect();
    ids.into_iter().map(|id| of(id).unwrap_or(0) >> 10).min().unwrap_or(0)
}

fn with_size(row: Row, members: &mut Members) -> Row {
    let size = resident_mib(members);
    let note = row.note.clone().unwrap_or_default();
    row.note(format!("{note}; the smallest member has {size} MiB resident in the end"))
}

/// A row of times, each beside what its median and p90 must be, and would better be.
fn row(id: &str, mut times: Vec<f64>, [p50, p90]: [(f64, f64); 2]) -> Row {
    let middle = median(&mut times);
    let high = percentile(&times, 0.9);
    let most = times.last().copied().unwrap_or(0.0);
    let note = format!(
        "p50 {middle:.2} ms, {}; p90 {high:.2} ms, {}; at most {most:.1} ms",
        must(middle, p50.0, p50.1),
        must(high, p90.0, p90.1)
    );
    Row { p99: Some(percentile(&times, 0.99)), ..Row::new(id, middle, "ms", times.len() as u64) }.note(note)
}

pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn kills(options: &Options) -> usize {
    if options.quick { KILLS_QUICK } else { KILLS }
}

/// Nothing is installed: a server that is started again is as large as before.
pub(super) const SERVE: [&str; 2] = ["--mob", "1G"];

/// The silence after which a leader is suspected.
const DEADLINE_MS: f64 = 150.0;

const KILLS: usize = 100;
const KILLS_QUICK: usize = 10;

/// The time before the end of a member, and behind it, in which gaps count.
const WINDOW: Duration = Duration::from_millis(300);
/// Successes in such a time, so that there are gaps.
const SUCCESSES: usize = 20;
/// Successes that tell that a group goes on whose disks take their time.
const FEW: usize = 3;
/// Syncs that an election and the commit after it may take, and how much longer each takes.
const SYNCS: f64 = 10.0;
const DELAYS_MS: [u64; 4] = [5, 20, 75, 200];
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Entries that a member may lack and count as caught up.
const LAG_MAX: u64 = 1_000;

const BURNERS: usize = 8;

const BALLAST_OBJECTS: usize = 200;
const BALLAST_BYTES: usize = 3_000;
