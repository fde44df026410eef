//! The authority of a soak with TLS: it renews every certificate while the servers run, and is itself
//! replaced by another one.
//!
//! It is done by the commands of `tercel cert`, step by step as an operator does: a step begins when every
//! process has taken the files of the one before.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use tercel_term::fail::Failure;
use tercel_term::process::tercel;

use super::Shared;

/// An authority, and the certificates that it made.
pub struct Authority {
    dir: PathBuf,
    /// The names of all certificates: members, and the soak's clients.
    names: Vec<String>,
}

/// The changes of certificates so far.
#[derive(Clone, Copy, Default, Serialize)]
pub struct Renewed {
    pub certificates: u64,
    /// Times that the authority itself was replaced.
    pub authorities: u64,
}

impl Authority {
    /// An authority in `dir`, with a certificate for each of `members` and one for clients.
    pub fn new(dir: PathBuf, members: usize) -> Result<Authority, Failure> {
        if dir.exists() {
            std::fs::remove_dir_all(&dir)?;
        }
        std::fs::create_dir(&dir)?;
        let mut names: Vec<String> = (1..=members).map(|i| format!("member-{i}")).collect();
        names.push("client".into());
        let of = Authority { dir, names };
        of.make(0)?;
        let (ca, last) = (of.ca(0), of.names.len() - 1);
        for (i, name) in of.names.iter().enumerate() {
            let kind = if i == last { "client" } else { "member" };
            cert(&[
                kind.as_ref(),
                name.as_ref(),
                "--ca".as_ref(),
                &ca,
                "--out".as_ref(),
                &of.dir.join(name),
            ])?;
        }
        Ok(of)
    }

    /// The directory with one certificate each.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Renews certificates, and has another authority take over each time, until the work is over.
    pub fn renew_always(&self, shared: &Shared) -> Result<Renewed, Failure> {
        let mut done = Renewed::default();
        loop {
            let (old, new) = (done.authorities, done.authorities + 1);
            self.renew(old, &mut done)?;
            if !taken(shared) {
                return Ok(done);
            }
            self.make(new)?;
            self.trust(&[old, new])?;
            if !taken(shared) {
                return Ok(done);
            }
            self.renew(new, &mut done)?;
            if !taken(shared) {
                return Ok(done);
            }
            self.trust(&[new])?;
            done.authorities = new;
            if !taken(shared) {
                return Ok(done);
            }
        }
    }

    fn ca(&self, number: u64) -> PathBuf {
        self.dir.join(format!("ca-{number}"))
    }

    fn make(&self, number: u64) -> Result<(), Failure> {
        cert(&["init".as_ref(), &self.ca(number), "--group".as_ref(), "soak".as_ref()])
    }

    fn renew(&self, by: u64, done: &mut Renewed) -> Result<(), Failure> {
        for name in &self.names {
            cert(&["renew".as_ref(), &self.dir.join(name), "--ca".as_ref(), &self.ca(by)])?;
            done.certificates += 1;
        }
        Ok(())
    }

    /// Has everybody believe these authorities, and no other.
    fn trust(&self, authorities: &[u64]) -> Result<(), Failure> {
        let all = authorities.iter().map(|number| std::fs::read_to_string(self.ca(*number).join(FILE)));
        let bundle = all.collect::<Result<String, _>>()?;
        for name in &self.names {
            let file = self.dir.join(name).join(FILE);
            let new = file.with_extension("new");
            std::fs::write(&new, &bundle)?;
            std::fs::rename(&new, &file)?;
        }
        Ok(())
    }
}

/// The authority's certificate, and in a member's directory the ones that it believes.
const FILE: &str = "ca.crt";

/// Waits until every process has taken new files, which is within ten seconds. Says no if the work is over.
fn taken(shared: &Shared) -> bool {
    let end = Instant::now() + TAKEN_MAX;
    while Instant::now() < end {
        if shared.stop.load(Ordering::Acquire) {
            return false;
        }
        thread::sleep(LOOK_EVERY);
    }
    true
}

const TAKEN_MAX: Duration = Duration::from_secs(11);
const LOOK_EVERY: Duration = Duration::from_millis(100);

fn cert(args: &[&Path]) -> Result<(), Failure> {
    let done = Command::new(tercel()?).arg("cert").args(args).output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(Failure::new(format!("tercel cert: {}", String::from_utf8_lossy(&done.stderr)))),
    }
}
