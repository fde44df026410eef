//! Commits of a group beside a bare leader: a process that sends the bytes to two others, writes and syncs
//! them as those do, and answers once one of the two has them. And calls beside a server alone.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tercel::{
    Address, Addresses, Bytes, Called, Client, ClientConfig, Error, Obj, Object, Ref, Server, interface,
};
use tercel_term::members::Members;
use tercel_term::process::OwnProcess;

use super::super::blocks::{Pairs, alternate, median, percentile};
use super::super::commit::raw::{Caller, Mode};
use super::super::commit::shape::{self, Shape};
use super::super::commit::{bare, latencies, rate};
use super::super::report::Row;
use super::super::scratch::Scratch;
use super::{MEMBERS, Options, failed, must};

/// The environment variable that makes this program a server with the methods below: its directory and its
/// address, a line each.
pub const ROLE: &str = "TERCEL_BENCH_GROUP";

#[interface]
trait Keeping {
    /// Keeps other bytes, and gives those before.
    fn swap(&mut self, bytes: &[u8]) -> Bytes;
}

/// A KiB.
#[derive(Object)]
struct Kept {
    bytes: Bytes,
}

impl Keeping for Kept {
    fn swap(this: &Obj<Kept>, bytes: &[u8]) -> Called<Bytes> {
        let before = this.bytes()?.into_owned();
        this.edit()?.set_bytes(bytes)?;
        Ok(Bytes(before))
    }
}

/// A client and the object that it alone changes.
struct Committer {
    client: Client,
    kept: Ref<Kept>,
}

impl Committer {
    fn new(at: &Addresses) -> Result<Committer, String> {
        let config = ClientConfig { cache_bytes: 512 << 10, transactions_max: 2, ..ClientConfig::default() };
        let client = Client::connect_with(at.clone(), config).map_err(failed)?;
        let kept = client.run(|tx| tx.create(&Kept { bytes: Bytes(vec![7; CALL_BYTES]) })).map_err(failed)?;
        Ok(Committer { client, kept })
    }

    fn commit(&self) -> Result<(), String> {
        let body = |tx: &tercel::Tx<'_>| tx.get(self.kept)?.edit()?.set_bytes(&[5; KIB][..]);
        self.client.run(body).map_err(failed)
    }

    fn call(&self) -> Result<(), String> {
        let before = self
            .client
            .handle(self.kept)
            .remote()
            .swap(&[5; CALL_BYTES])
            .map_err(Error::from)
            .map_err(failed)?;
        if before.0.len() == CALL_BYTES { Ok(()) } else { Err("a call came back with other bytes".into()) }
    }
}

/// The group that is measured, and the bytes of one commit.
fn group(scratch: &Scratch, name: &str) -> Result<(Members, Shape), String> {
    let mut members = Members::start(&scratch.join(name), MEMBERS, &[])?;
    let leader = members.settled()?;
    let log = members.dir(leader).join("log");
    let server = members.server(leader).ok_or("the leader has gone")?;
    let shape = shape::measure(server, &log, |address, commits| {
        let committer = Committer::new(&address.clone().into())?;
        (0..commits).try_for_each(|_| committer.commit())?;
        Ok(committer)
    })?;
    Ok((members, shape))
}

/// A bare leader with its two followers.
fn bare_group(mode: Mode, scratch: &Scratch, name: &str, shape: &Shape) -> Result<[OwnProcess; 3], String> {
    let follower = |n: usize| bare(Mode::Follow, &[], &scratch.join(&format!("{name} {n}")), shape);
    let followers = [follower(1)?, follower(2)?];
    let all = followers.each_ref().map(OwnProcess::listens_on);
    let leader = bare(mode, &all, &scratch.join(&format!("{name} leader")), shape)?;
    let [first, second] = followers;
    Ok([leader, first, second])
}

/// `group.commit.one.1k`: the latency of one committer.
pub fn one(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    let (members, shape) = group(scratch, "one")?;
    let bare = bare_group(Mode::One, scratch, "bare one", &shape)?;
    let committer = Committer::new(&members.addresses()?)?;
    let mut wire = Caller::connect(bare[0].listens_on(), &shape)?;
    let mut all = Vec::new();
    let pairs = alternate(
        rounds(options),
        || latencies(|| wire.call()).map(|mut block| median(&mut block)),
        || block(&mut all, || committer.commit()),
    )?;
    Ok(vec![latency(
        "group.commit.one.1k",
        &pairs,
        "a bare leader and two followers",
        all,
        (1.5, 1.2),
        &shape.to_string(),
    )])
}

/// `group.commit.group64`: the rate of 64 committers.
pub fn many(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    let (members, shape) = group(scratch, "many")?;
    let bare = bare_group(Mode::Batch, scratch, "bare many", &shape)?;
    let at = members.addresses()?;
    let committers = (0..COMMITTERS).map(|_| Committer::new(&at)).collect::<Result<Vec<_>, _>>()?;
    let mut callers = (0..COMMITTERS)
        .map(|_| Caller::connect(bare[0].listens_on(), &shape))
        .collect::<Result<Vec<_>, _>>()?;
    let time = if options.quick { Duration::from_millis(400) } else { Duration::from_secs(1) };
    let mut commits = 0.0;
    let pairs = alternate(
        if options.quick { 8 } else { 20 },
        || rate(time, callers.iter_mut().map(|caller| || caller.call())),
        || {
            let rate = rate(time, committers.iter().map(|committer| || committer.commit()))?;
            commits += rate * time.as_secs_f64();
            Ok::<_, String>(rate)
        },
    )?;
    let ratio = pairs.ratio().median;
    let held = if ratio >= 0.55 { "held" } else { "missed" };
    let note = format!("ratio must be at least 0.55 (stretch 0.8): {held}; {shape}");
    let limit = "the same leader, which batches 64";
    Ok(vec![Row::compared("group.commit.group64", "commits/s", &pairs, limit, commits as u64).note(note)])
}

/// `group.call.1k`: a method that writes, by the same at a server alone; nothing waits for a disk.
pub fn call(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    let memory = Path::new("/dev/shm");
    let in_memory = memory.is_dir().then(|| Scratch::new(Some(memory), "group")).transpose()?;
    let scratch = in_memory.as_ref().unwrap_or(scratch);
    // Their addresses are of the same kind as those of other groups here.
    let places = Members::places(&scratch.join("members"), MEMBERS)?;
    let of: Vec<(&Path, Address)> = places.iter().map(|(dir, at)| (dir.as_path(), at.clone())).collect();
    tercel::group::form(&of).map_err(failed)?;
    let alone = Members::places(&scratch.join("alone"), 1)?;
    let servers =
        places.iter().chain(&alone).map(|(dir, at)| serve(dir, at)).collect::<Result<Vec<_>, _>>()?;
    let all: Vec<String> = of.iter().map(|(_, at)| at.to_string()).collect();
    let grouped = Committer::new(&all.join(",").parse().map_err(|e: tercel::AddressError| e.to_string())?)?;
    let single = Committer::new(&alone[0].1.clone().into())?;
    let mut all = Vec::new();
    let pairs = alternate(
        rounds(options),
        || latencies(|| single.call()).map(|mut block| median(&mut block)),
        || block(&mut all, || grouped.call()),
    )?;
    drop(servers);
    let note = "1,000 bytes there and back, the most that a method which writes may return; data in memory";
    Ok(vec![latency("group.call.1k", &pairs, "the same call at a server alone", all, (2.2, 1.6), note)])
}

fn serve(dir: &Path, at: &Address) -> Result<OwnProcess, String> {
    let mut role = format!("{at}\n").into_bytes();
    role.extend_from_slice(dir.as_os_str().as_bytes());
    Ok(OwnProcess::role(&["bench", "group"], ROLE, OsString::from_vec(role))?)
}

/// Serves until standard input ends.
///
/// # Errors
/// A sentence: what failed.
pub fn child(role: &OsStr) -> Result<(), String> {
    let mut parts = role.as_bytes().splitn(2, |b| *b == b'\n');
    let at = parts.next().and_then(|at| std::str::from_utf8(at).ok()).ok_or("the role names no address")?;
    let dir = PathBuf::from(OsStr::from_bytes(parts.next().ok_or("the role names no directory")?));
    let server = Server::builder(dir).listen(at).methods(Kept::METHODS).start().map_err(failed)?;
    println!("listening on {at}");
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    server.stop().map_err(failed)
}

/// The median of a block of ours, in microseconds.
fn block(all: &mut Vec<f64>, operation: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    let mut block = latencies(operation)?;
    all.extend_from_slice(&block);
    Ok(median(&mut block))
}

fn latency(
    id: &str,
    pairs: &Pairs,
    limit: &str,
    mut all: Vec<f64>,
    (most, stretch): (f64, f64),
    about: &str,
) -> Row {
    all.sort_unstable_by(f64::total_cmp);
    let note = format!("ratio {}; {about}", must(pairs.ratio().median, most, stretch));
    let row = Row::compared(id, "us", pairs, limit, all.len() as u64).note(note);
    Row { p99: Some(percentile(&all, 0.99)), ..row }
}

fn rounds(options: &Options) -> usize {
    if options.quick { 15 } else { 60 }
}

const KIB: usize = 1 << 10;
/// A result of a method that writes is kept with its writes: a KiB at most, with its head.
const CALL_BYTES: usize = 1_000;
const COMMITTERS: usize = 64;
