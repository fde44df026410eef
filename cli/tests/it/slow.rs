//! A group whose disks take their time: each sync of its members is delayed by a library that is loaded
//! before them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tercel::group::health_of;
use tercel::{Address, HealthState};

use crate::common::{Serving, free, leader, out, tercel, until};

/// Sleeps in each sync for as many milliseconds as a file says.
const SLOW: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int delayed(const char *name, int fd) {
    char text[16] = "0";
    int file = open(getenv("SYNC_MS"), O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t bytes = read(file, text, sizeof text - 1);
        text[bytes > 0 ? bytes : 0] = 0;
        close(file);
    }
    long ms = atol(text);
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, 0);
    return ((int (*)(int))dlsym(RTLD_NEXT, name))(fd);
}

int fdatasync(int fd) { return delayed("fdatasync", fd); }
int fsync(int fd) { return delayed("fsync", fd); }
"#;

/// Compiles the library. None, with the reason printed, where nothing can be compiled.
fn library(dir: &Path) -> Option<PathBuf> {
    let (source, library) = (dir.join("slow.c"), dir.join("slow.so"));
    std::fs::write(&source, SLOW).unwrap();
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).output();
    match compiled {
        Ok(output) if output.status.success() => return Some(library),
        Ok(output) => println!("left out: cc fails: {}", String::from_utf8_lossy(&output.stderr)),
        Err(e) => println!("left out: cc cannot be run: {e}"),
    }
    None
}

/// Three members with such disks.
struct Group {
    servers: Vec<Option<Serving>>,
    ats: [String; 3],
    library: PathBuf,
    dir: tempfile::TempDir,
}

impl Group {
    fn start() -> Option<Group> {
        let dir = tempfile::tempdir().unwrap();
        let library = library(dir.path())?;
        let ats = [free(), free(), free()];
        let group = Group { dir, library, ats, servers: Vec::new() };
        group.delay_syncs(Duration::ZERO);
        let pairs: Vec<String> = (0..3).map(|i| format!("{}={}", group.data(i), group.ats[i])).collect();
        let form: Vec<&str> = ["group", "form"].into_iter().chain(pairs.iter().map(String::as_str)).collect();
        out(&tercel(&form));
        let servers = (0..3).map(|i| Some(group.serve(i))).collect();
        Some(Group { servers, ..group })
    }

    fn data(&self, i: usize) -> String {
        self.dir.path().join(i.to_string()).display().to_string()
    }

    /// From now on each sync takes so much longer.
    fn delay_syncs(&self, time: Duration) {
        std::fs::write(self.dir.path().join("ms"), time.as_millis().to_string()).unwrap();
    }

    fn serve(&self, i: usize) -> Serving {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tercel"));
        command.args(["serve", "--data", &self.data(i), "--listen", &self.ats[i]]);
        command.env("LD_PRELOAD", &self.library).env("SYNC_MS", self.dir.path().join("ms"));
        Serving::of(command, 0)
    }

    /// Kills the leader. Gives the time until another one has begun to lead.
    fn replaces_leader(&mut self) -> Duration {
        let leader = leader(&self.ats.join(","));
        let killed = self.ats.iter().position(|at| *at == leader).unwrap();
        let others: Vec<Address> =
            self.ats.iter().filter(|at| **at != leader).map(|at| at.parse().unwrap()).collect();
        let begun = Instant::now();
        drop(self.servers[killed].take());
        until(|| {
            std::thread::sleep(Duration::from_millis(1));
            let state =
                |at: &Address| health_of(at, Duration::from_millis(500)).ok().map(|health| health.state);
            others.iter().find(|at| state(at) == Some(HealthState::Serving))
        });
        let after = begun.elapsed();
        self.servers[killed] = Some(self.serve(killed));
        after
    }
}

/// Under `TERCEL_TEST_ELECTIONS=5`, on a host that does nothing else, all elections are held to the bound;
/// beside other tests, the quicker one of two.
#[test]
fn slow_disks_elect_within_ten_syncs() {
    let Some(mut group) = Group::start() else { return };
    let times = std::env::var("TERCEL_TEST_ELECTIONS").ok().and_then(|n| n.parse().ok());
    let (mut said, mut late) = (String::new(), 0);
    for ms in [5, 20, 75, 200] {
        let sync = Duration::from_millis(ms);
        group.delay_syncs(sync);
        let after: Vec<_> = (0..times.unwrap_or(2)).map(|_| group.replaces_leader()).collect();
        let is_late = |after: &&Duration| **after > 10 * sync + Duration::from_millis(300);
        let count = after.iter().filter(is_late).count();
        late += if times.is_some() || count == after.len() { count } else { 0 };
        let after: Vec<String> = after.iter().map(|after| after.as_millis().to_string()).collect();
        write!(said, " {ms}: {};", after.join(" ")).unwrap();
    }
    println!("elected after ms, by the ms of a sync:{said}");
    assert_eq!(late, 0, "elected after ms, by the ms of a sync:{said}");
}
