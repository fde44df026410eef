//! Suite `ring`: messages in one order among three members, beside what bare datagrams take.
//!
//! The members are three threads of this process with their programs' threads, at addresses of this host; for
//! the row about a member's end the third one is a process. What a network does is not shown.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tercel::ring::{Delivery, Level, Ring, RingConfig, make_key};
use tercel_term::process::OwnProcess;

use super::blocks::{BLOCK, alternate, median, percentile, timed};
use super::report::{Machine, Report, Row};
use super::scratch::Scratch;
use super::{COMMIT, Options};

/// Makes this program the third member, with its directory as the value; the first line of what the child
/// says is that it is ready.
pub const ROLE: &str = "TERCEL_BENCH_RING";

const MEMBERS: u64 = 3;

/// Bytes of a message, of a token as a bare datagram, and of the packets that the messages go in.
const MESSAGE_BYTES: usize = 1_024;
const TOKEN_BYTES: usize = 96;
const PACKET_BYTES: usize = 8_900;

/// Changes the number of a process into that of the addresses of its sealed ring.
const OF_SEALED: u32 = 0x80_0000;

/// Messages of each member in a block of throughput.
const MESSAGES: usize = 10_000;

/// Packets that a bare sender has under way: as many bytes as the window of a ring, by three.
const UNDER_WAY: u64 = 4;

const PATIENCE: Duration = Duration::from_secs(20);

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options) -> Result<Report, String> {
    let scratch = Scratch::new(options.dir.as_deref(), "ring")?;
    let rounds = if options.quick { 7 } else { 21 };
    let mut rows = Vec::new();
    for (name, level) in [("agreed", Level::Agreed), ("safe", Level::Safe)] {
        options.say(name);
        rows.push(latency(&scratch.join(name), name, level, rounds)?);
    }
    options.say("sealed");
    rows.push(sealed(&scratch.join("sealed"), rounds)?);
    options.say("throughput");
    rows.push(throughput(&scratch.join("throughput"), rounds)?);
    for (name, is_idle) in [("ring.exit.1ms", false), ("ring.exit.idle", true)] {
        options.say(name);
        rows.push(exit(&scratch.join(name), name, is_idle, rounds)?);
    }
    Ok(Report { suite: "ring", commit: COMMIT, machine: Machine::here("three members"), rows })
}

/// Addresses of this host that belong to a process, by its number.
fn members(process: u32) -> Vec<(u64, SocketAddr)> {
    let [c, b, a, _] = process.to_le_bytes();
    let at = |n| SocketAddr::from((Ipv4Addr::new(127, a + 1, b, c), 7_200 + n));
    (1..=MEMBERS as u16).map(|n| (n.into(), at(n))).collect()
}

fn join(me: u64, dir: &Path, process: u32) -> Result<Ring, String> {
    std::fs::create_dir_all(dir).map_err(failed)?;
    Ring::join(config(me, dir, process)).map_err(failed)
}

fn config(me: u64, dir: &Path, process: u32) -> RingConfig {
    RingConfig::new(me, members(process), dir.join(format!("{me}.ring")))
}

fn next(ring: &Ring) -> Result<Delivery, String> {
    ring.next_within(PATIENCE).map_err(failed)?.ok_or_else(|| format!("nothing is delivered in {PATIENCE:?}"))
}

/// Takes what a member is given, and does nothing with it.
fn take(ring: &Ring, over: &AtomicBool) {
    let mut goes_on = true;
    while goes_on && !over.load(Ordering::Relaxed) {
        goes_on = ring.next_within(Duration::from_millis(50)).is_ok();
    }
}

/// Waits for a regular configuration of so many.
fn until_there_are(ring: &Ring, count: usize) -> Result<(), String> {
    loop {
        match next(ring)? {
            Delivery::Configuration(it) if it.members.len() == count && !it.is_transitional => return Ok(()),
            _ => {}
        }
    }
}

fn all_in(dir: &Path) -> Result<Vec<Ring>, String> {
    let rings: Vec<Ring> =
        (1..=MEMBERS).map(|me| join(me, dir, std::process::id())).collect::<Result<_, _>>()?;
    rings.iter().try_for_each(|ring| until_there_are(ring, MEMBERS as usize))?;
    Ok(rings)
}

/// One message at a time by a member that does not hold the token of an idle ring, until it has its own.
fn latency(dir: &Path, name: &str, level: Level, rounds: usize) -> Result<Row, String> {
    let rings = all_in(dir)?;
    let (over, mut all) = (AtomicBool::new(false), Vec::new());
    let circle = Circle::new()?;
    let pairs = std::thread::scope(|scope| {
        for ring in [&rings[0], &rings[2]] {
            scope.spawn(|| take(ring, &over));
        }
        for at in [1, 2] {
            let (circle, over) = (&circle, &over);
            scope.spawn(move || while !over.load(Ordering::Relaxed) && circle.pass(at) {});
        }
        let message = [7; MESSAGE_BYTES];
        let ours = || {
            let mut times = timed(|| {
                rings[1].send(&message, level).map_err(failed)?;
                next(&rings[1])
            })?;
            all.extend_from_slice(&times);
            Ok(median(&mut times))
        };
        let bare = || timed(|| circle.round()).map(|mut times| median(&mut times));
        let pairs = alternate(rounds, bare, ours);
        over.store(true, Ordering::Relaxed);
        circle.stop();
        pairs
    })?;
    all.sort_unstable_by(f64::total_cmp);
    let row = Row::compared(format!("ring.{name}.1k"), "us", &pairs, "bare.token.round", all.len() as u64);
    Ok(Row { p99: Some(percentile(&all, 0.99)), ..row }.note(
        "send to own delivery, one at a time, ring of three threads; the limit is a datagram once round three \
         threads; Totem (1998): below 3 ms at 2,000 messages a second",
    ))
}

/// The latency of a message in a ring with a key, by that in one without.
fn sealed(dir: &Path, rounds: usize) -> Result<Row, String> {
    let plain = all_in(&dir.join("plain"))?;
    let dir = dir.join("sealed");
    std::fs::create_dir_all(&dir).map_err(failed)?;
    let key = dir.join("key");
    make_key(&key).map_err(failed)?;
    let join = |me| {
        let config = config(me, &dir, std::process::id() ^ OF_SEALED);
        Ring::join(RingConfig { key: Some(key.clone()), ..config }).map_err(failed)
    };
    let sealed: Vec<Ring> = (1..=MEMBERS).map(join).collect::<Result<_, _>>()?;
    sealed.iter().try_for_each(|ring| until_there_are(ring, MEMBERS as usize))?;
    let (over, message) = (AtomicBool::new(false), [7; MESSAGE_BYTES]);
    let of = |rings: &[Ring]| {
        let mut times = timed(|| {
            rings[1].send(&message, Level::Agreed).map_err(failed)?;
            next(&rings[1])
        })?;
        Ok::<f64, String>(median(&mut times))
    };
    let pairs = std::thread::scope(|scope| {
        for ring in [&plain[0], &plain[2], &sealed[0], &sealed[2]] {
            scope.spawn(|| take(ring, &over));
        }
        let pairs = alternate(rounds, || of(&plain), || of(&sealed));
        over.store(true, Ordering::Relaxed);
        pairs
    })?;
    let row = Row::compared("ring.sealed.1k", "us", &pairs, "plain", (rounds * BLOCK) as u64);
    Ok(row.note("send to own delivery, agreed, one at a time, of a ring whose packets are sealed"))
}

/// Three sockets between which a datagram goes round.
struct Circle {
    sockets: Vec<UdpSocket>,
    to: Vec<SocketAddr>,
}

impl Circle {
    fn new() -> Result<Circle, String> {
        let bind = |_| UdpSocket::bind("127.0.0.1:0").map_err(failed);
        let sockets: Vec<UdpSocket> = (0..MEMBERS).map(bind).collect::<Result<_, _>>()?;
        let to = sockets.iter().map(|it| it.local_addr().map_err(failed)).collect::<Result<_, _>>()?;
        Ok(Circle { sockets, to })
    }

    fn send(&self, from: usize, bytes: &[u8]) -> bool {
        self.sockets[from].send_to(bytes, self.to[(from + 1) % self.to.len()]).is_ok()
    }

    /// Passes one datagram on. An empty one is the last.
    fn pass(&self, at: usize) -> bool {
        let mut bytes = [0; TOKEN_BYTES];
        self.sockets[at].recv(&mut bytes).is_ok_and(|n| self.send(at, &bytes[..n]) && n > 0)
    }

    fn round(&self) -> Result<(), String> {
        self.send(0, &[0; TOKEN_BYTES]);
        self.sockets[0].recv(&mut [0; TOKEN_BYTES]).map(drop).map_err(failed)
    }

    fn stop(&self) {
        self.send(0, &[]);
    }
}

/// Messages a second that all three deliver, sent by all three at once.
fn throughput(dir: &Path, rounds: usize) -> Result<Row, String> {
    let rings = all_in(dir)?;
    let per_second = |begin: Instant| (MEMBERS as usize * MESSAGES) as f64 / begin.elapsed().as_secs_f64();
    let ours = || {
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let threads: Vec<_> = rings
                .iter()
                .map(|ring| {
                    scope.spawn(|| {
                        let message = [7; MESSAGE_BYTES];
                        (0..MESSAGES).try_for_each(|_| ring.send(&message, Level::Agreed).map_err(failed))
                    });
                    scope.spawn(|| (0..MEMBERS as usize * MESSAGES).try_for_each(|_| next(ring).map(drop)))
                })
                .collect();
            threads.into_iter().try_for_each(|it| it.join().map_err(|_| "a thread panicked".to_string())?)
        })?;
        Ok::<f64, String>(per_second(begin))
    };
    let bare = || {
        let begin = Instant::now();
        bare_packets(MESSAGES * MESSAGE_BYTES / PACKET_BYTES)?;
        Ok::<f64, String>(per_second(begin))
    };
    let pairs = alternate(rounds, bare, ours)?;
    let n = (rounds * MEMBERS as usize * MESSAGES) as u64;
    Ok(Row::compared("ring.throughput.1k", "1/s", &pairs, "bare.packets", n).note(
        "messages of 1 KiB by all three, delivered by all three; the limit sends as many bytes in packets of 8,900 to \
         two receivers each; Totem (1998): above 5,000 a second on a shared 100 Mbit/s network",
    ))
}

/// Each of three sends packets to both others, which count them; a few are under way.
fn bare_packets(count: usize) -> Result<(), String> {
    let circle = Circle::new()?;
    let came: Vec<AtomicU64> = (0..MEMBERS).map(|_| AtomicU64::new(0)).collect();
    let (circle, came) = (&circle, &came[..]);
    let wait = Some(Duration::from_millis(200));
    circle.sockets.iter().try_for_each(|it| it.set_read_timeout(wait)).map_err(failed)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..MEMBERS as usize)
            .map(|me| {
                scope.spawn(move || {
                    let packet = [7; PACKET_BYTES];
                    let others = [(me + 1) % 3, (me + 2) % 3];
                    for sent in 1..=count as u64 {
                        for to in others {
                            _ = circle.sockets[me].send_to(&packet, circle.to[to]);
                        }
                        // Each receives of two senders, which send as many.
                        while others
                            .iter()
                            .any(|to| came[*to].load(Ordering::Acquire) + 2 * UNDER_WAY < sent * 2)
                        {
                            std::thread::yield_now();
                        }
                    }
                });
                scope.spawn(move || {
                    let mut bytes = [0; PACKET_BYTES];
                    for _ in 0..2 * count {
                        // One that was lost counts too, late.
                        let _ = circle.sockets[me].recv(&mut bytes);
                        came[me].fetch_add(1, Ordering::Release);
                    }
                })
            })
            .collect();
        threads.into_iter().try_for_each(|it| it.join().map_err(|_| "a thread panicked".to_string()))
    })
}

/// From the kill of a member to the next configuration at another.
fn exit(dir: &Path, name: &str, is_idle: bool, rounds: usize) -> Result<Row, String> {
    let rings = [1, 2].map(|me| join(me, dir, std::process::id()));
    let [one, two] = [rings[0].as_ref()?, rings[1].as_ref()?];
    let over = AtomicBool::new(false);
    let times = std::thread::scope(|scope| {
        scope.spawn(|| take(two, &over));
        scope.spawn(|| {
            while !is_idle
                && !over.load(Ordering::Relaxed)
                && two.send(&[7; MESSAGE_BYTES], Level::Agreed).is_ok()
            {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let times = (0..rounds).map(|_| one_exit(one, dir)).collect::<Result<Vec<f64>, String>>();
        over.store(true, Ordering::Relaxed);
        times
    });
    let mut times = times?;
    let value = median(&mut times);
    let row = Row::new(name, value, "ms", times.len() as u64);
    let meanwhile = if is_idle { "the ring idle" } else { "a message each ms" };
    Ok(Row { p99: times.last().copied(), ..row }.note(format!(
        "SIGKILL of a member to the next configuration at another, {meanwhile}; p99 is the longest; Corosync 3.1 here: \
         about 2 s by default; the seed's slides: detection 3 ms, recovery 100 ms"
    )))
}

fn one_exit(one: &Ring, dir: &Path) -> Result<f64, String> {
    let role = format!("{} {}", std::process::id(), dir.display());
    let mut third = OwnProcess::role(&["bench", "ring"], ROLE, role)?;
    until_there_are(one, MEMBERS as usize)?;
    let begin = Instant::now();
    third.kill()?;
    until_there_are(one, 2)?;
    Ok(begin.elapsed().as_secs_f64() * 1e3)
}

/// The third member, until it is killed.
///
/// # Errors
/// A sentence: what failed.
pub fn child(role: &OsStr) -> Result<(), String> {
    let wrong = || format!("{ROLE} is for this program's own use");
    let (process, dir) = role.to_str().and_then(|role| role.split_once(' ')).ok_or_else(wrong)?;
    let ring = join(3, Path::new(dir), process.parse().map_err(|_| wrong())?)?;
    println!("listening on a ring");
    loop {
        next(&ring)?;
    }
}

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}
