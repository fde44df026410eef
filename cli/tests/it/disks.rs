//! A member whose disk hangs or is full, while clients commit: calls of that one process are delayed or made
//! to fail.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tercel::{Addresses, Bytes, Client, Object, Ref};
use tercel_testkit::ends::Ends;

use crate::common::{Serving, err, free, in_one_line, lags, leader, out, tercel, until};

/// The object that the client changes.
#[derive(Object)]
struct Tally {
    commits: u64,
}

/// Three members, of which the first that leads is met.
struct Group {
    ats: [String; 3],
    data: Vec<String>,
    servers: Vec<Serving>,
    _dir: tempfile::TempDir,
}

impl Group {
    fn start() -> Group {
        let dir = tempfile::tempdir().unwrap();
        let ats = [free(), free(), free()];
        let data: Vec<String> =
            ["a", "b", "c"].map(|name| dir.path().join(name).display().to_string()).into();
        let pairs: Vec<String> = data.iter().zip(&ats).map(|(data, at)| format!("{data}={at}")).collect();
        let form: Vec<&str> = ["group", "form"].into_iter().chain(pairs.iter().map(String::as_str)).collect();
        out(&tercel(&form));
        let start = |(data, at): (&String, &String)| Serving::start_with(data, &["--listen", at]);
        let servers = data.iter().zip(&ats).map(start).collect();
        Group { ats, data, servers, _dir: dir }
    }

    fn all(&self) -> String {
        self.ats.join(",")
    }

    fn leader(&self) -> usize {
        let at = leader(&self.all());
        self.ats.iter().position(|one| *one == at).unwrap()
    }
}

/// Injects a fault into all threads of a process until it is dropped.
struct Faulty(Child);

impl Faulty {
    /// None, with the reason printed, where processes cannot be traced.
    fn begin(process: u32, fault: &[&str]) -> Option<Faulty> {
        let log = tempfile::NamedTempFile::new().unwrap();
        let strace = Command::new("strace")
            .args(["-f", "-qq", "-o"])
            .arg(log.path())
            .args(fault)
            .args(["-p", &process.to_string()])
            .stderr(Stdio::null())
            .spawn();
        let mut strace = match strace {
            Ok(strace) => strace,
            Err(e) => {
                println!("left out: strace cannot be run: {e}");
                return None;
            }
        };
        // It has met the first call.
        until(|| {
            let has_met = std::fs::metadata(log.path()).unwrap().len() > 0;
            (has_met || strace.try_wait().unwrap().is_some()).then_some(())
        });
        if strace.try_wait().unwrap().is_some() {
            println!("left out: strace cannot attach to another process");
            return None;
        }
        Some(Faulty(strace))
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        // By SIGTERM it lets go of the process.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// Commits beside a fault at the leader or at a follower, and sees afterwards that each commit is there once,
/// and that every directory is sound. Gives the longest time between two successes.
fn commits_beside(fault: &[&str], is_leader: bool) -> Option<Duration> {
    let group = Group::start();
    let all: Addresses = group.all().parse().unwrap();
    let (is_over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let gap = thread::scope(|scope| {
        let ends = Ends(&is_over);
        let client = scope.spawn(|| {
            let client = Client::connect_with(all.clone(), Default::default()).unwrap();
            let tally: Ref<Tally> = client.run(|tx| tx.create(&Tally { commits: 0 })).unwrap();
            let (mut gap, mut last) = (Duration::ZERO, Instant::now());
            while !is_over.load(Ordering::Relaxed) {
                let add = |tx: &tercel::Tx<'_>| {
                    let tally = tx.get(tally)?;
                    tally.edit()?.set_commits(tally.commits() + 1)
                };
                client.run(add).unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                gap = gap.max(last.elapsed());
                last = Instant::now();
            }
            assert_eq!(client.run(|tx| Ok(tx.get(tally)?.commits())).unwrap(), count.load(Ordering::Relaxed));
            gap
        });
        let reaches = |n: u64| until(|| (count.load(Ordering::Relaxed) >= n).then_some(()));
        reaches(100);
        let leader = group.leader();
        let met = if is_leader { leader } else { (leader + 1) % 3 };
        let faulty = Faulty::begin(group.servers[met].0.id(), fault);
        let is_met = faulty.is_some();
        if is_met {
            reaches(count.load(Ordering::Relaxed) + 500);
            if is_leader {
                until(|| (group.leader() != met).then_some(()));
            }
            drop(faulty);
            reaches(count.load(Ordering::Relaxed) + 100);
            until(|| lags(&group.all()).filter(|lags| lags.iter().all(|lag| *lag <= 100)));
        }
        drop(ends);
        let gap = client.join().unwrap();
        is_met.then_some(gap)
    })?;
    let Group { data, servers, _dir, .. } = group;
    drop(servers);
    for data in &data {
        out(&tercel(&["check", "--data", data]));
    }
    println!("longest gap: {gap:?}");
    Some(gap)
}

const HANGS: [&str; 4] = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=3s"];

#[test]
fn leader_whose_disk_hangs_is_followed_by_another() {
    let gap = commits_beside(&HANGS, true);
    assert!(gap.is_none_or(|gap| gap < Duration::from_secs(3)), "{gap:?}");
}

#[test]
fn follower_whose_disk_hangs_delays_nobody() {
    let gap = commits_beside(&HANGS, false);
    assert!(gap.is_none_or(|gap| gap < Duration::from_secs(1)), "{gap:?}");
}

/// A value that fills disks.
#[derive(Object)]
struct Ballast {
    bytes: Bytes,
}

/// A group of which one member, the leader or a follower, has a small disk. Commits go on when that is full.
fn commits_beyond_a_small_disk(is_leader: bool) {
    let dir = tempfile::tempdir().unwrap();
    let mounted = dir.path().join("small").display().to_string();
    std::fs::create_dir(&mounted).unwrap();
    let ats = [free(), free(), free()];
    // The member that begins the group leads it.
    let small = usize::from(!is_leader);
    let data: Vec<String> = (0..3)
        .map(|i| {
            if i == small {
                format!("{mounted}/m")
            } else {
                dir.path().join(format!("{i}")).display().to_string()
            }
        })
        .collect();
    let secret = dir.path().join("secret").display().to_string();
    let serve = |i: usize, more: &[&str]| {
        let words = [&["serve", "--data", &data[i], "--listen", &ats[i]], more].concat();
        let mut command = Command::new("unshare");
        let tercel = env!("CARGO_BIN_EXE_tercel");
        let mount = format!(
            "mount -t tmpfs -o size=320m small {mounted} && {} exec \"$@\"",
            if is_leader {
                // The others do not see what is mounted there.
                let init = format!("\"$1\" group init --data {0} --advertise {1} >&2", data[i], ats[i]);
                format!("{init} && cp {}/secret {secret} &&", data[i])
            } else {
                String::new()
            }
        );
        command.args(["-Urm", "sh", "-c", &mount, "sh", tercel]).args(words);
        command
    };
    let is_possible =
        Command::new("unshare").args(["-Urm", "mount", "-t", "tmpfs", "small", &mounted]).status();
    if !is_possible.is_ok_and(|status| status.success()) {
        return println!("left out: no file system can be mounted in a namespace of its own");
    }
    let mut servers = Vec::new();
    for i in 0..3 {
        let join = ["--join", &ats[0], "--secret", &secret];
        if i == 0 && !is_leader {
            out(&tercel(&["group", "init", "--data", &data[0], "--advertise", &ats[0]]));
            std::fs::copy(format!("{}/secret", data[0]), &secret).unwrap();
        }
        let more: &[&str] = if i == 0 { &[] } else { &join };
        servers.push(match i == small {
            true => Serving::of(serve(i, more), usize::from(i > 0)),
            false if i == 0 => Serving::start_with(&data[0], &["--listen", &ats[0]]),
            false => Serving::joins(&data[i], &["--listen", &ats[i], "--join", &ats[0], "--secret", &secret]),
        });
        if i > 0 {
            until(|| tercel(&["group", "add", &ats[i], "--server", &ats[0]]).status.success().then_some(()));
        }
    }
    let all = ats.join(",");
    assert_eq!(leader(&all), ats[0]);
    let client = Client::connect_with(all.parse::<Addresses>().unwrap(), Default::default()).unwrap();
    let (mut gap, mut kept) = (Duration::ZERO, Vec::new());
    for n in 0..400_usize {
        let begun = Instant::now();
        let bytes = Bytes(vec![n as u8; 1 << 20]);
        kept.push(client.run(|tx| tx.create(&Ballast { bytes: bytes.clone() })).unwrap());
        gap = gap.max(begun.elapsed());
    }
    println!("longest commit: {gap:?}");
    assert!(gap < Duration::from_secs(10), "{gap:?}");
    if is_leader {
        assert_ne!(leader(&all), ats[0]);
    }
    // It says so itself, and ends when it is told to.
    let said = tercel(&["health", "--server", &ats[small]]);
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("the disk is full"), "{said}");
    let moved = tercel(&["group", "move-leader", &ats[small], "--server", &all]);
    let refused = in_one_line(&err(&moved));
    assert!(refused.contains("is full") && refused.contains("make room"), "{refused}");
    let (begun, member) = (Instant::now(), &mut servers[small].0);
    out(&Command::new("kill").arg(member.id().to_string()).output().unwrap());
    assert!(member.wait().unwrap().success());
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    for (n, kept) in kept.iter().enumerate() {
        assert_eq!(client.run(|tx| Ok(tx.get(*kept)?.bytes()?[0])).unwrap(), n as u8);
    }
}

#[test]
fn leader_whose_disk_fills_is_followed_by_another() {
    commits_beyond_a_small_disk(true);
}

#[test]
fn follower_whose_disk_fills_delays_nobody() {
    commits_beyond_a_small_disk(false);
}
