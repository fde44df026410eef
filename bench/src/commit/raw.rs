//! The bare server: bytes in, bytes to the disk, bytes out, and nothing between.
//!
//! Alone with one connection it blocks on that connection. With many it asks epoll for the connections that
//! have sent, writes the bytes of all of them at once, syncs once, and answers all of them.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::event::epoll;

use super::followers::{Followers, follow};
use super::shape::Shape;

/// The environment variable that says what to do.
pub const ROLE: &str = "TERCEL_BENCH_SERVER";

/// The number of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One at a time.
    One,
    /// Many.
    Batch,
    /// One, of a bare leader: see [`follow`].
    Follow,
}

/// The value of [`ROLE`] for such a server; with followers it waits for one of them, too.
pub fn role(mode: Mode, followers: &[&str], file: &Path, shape: &Shape) -> OsString {
    let name = match mode {
        Mode::One => "one",
        Mode::Batch => "batch",
        Mode::Follow => "follow",
    };
    let words: Vec<&str> = [name].into_iter().chain(followers.iter().copied()).collect();
    let mut role =
        format!("{} {} {} {} ", words.join(","), shape.request, shape.log, shape.reply).into_bytes();
    role.extend_from_slice(file.as_os_str().as_bytes());
    OsString::from_vec(role)
}

type Role = (Mode, Vec<String>, Shape, PathBuf);

fn parse(role: &OsStr) -> Option<Role> {
    let mut words = role.as_bytes().splitn(5, |&b| b == b' ');
    let mut names = std::str::from_utf8(words.next()?).ok()?.split(',').map(String::from);
    let mode = match names.next()?.as_str() {
        "one" => Mode::One,
        "batch" => Mode::Batch,
        "follow" => Mode::Follow,
        _ => return None,
    };
    let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok().filter(|&n| n > 0);
    let shape = Shape { request: number()?, log: number()?, reply: number()? };
    Some((mode, names.collect(), shape, PathBuf::from(OsStr::from_bytes(words.next()?))))
}

/// Serves until standard input ends.
///
/// # Errors
/// A sentence: what failed.
pub fn serve(role: &OsStr) -> Result<(), String> {
    let (mode, followers, shape, path) =
        parse(role).ok_or_else(|| format!("{ROLE} is for this program's own use"))?;
    std::thread::spawn(|| {
        // The process that started this one has ended, or wants it to end.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let mut log = RawLog::create(&path, shape.log).map_err(|e| format!("{}: {e}", path.display()))?;
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| e.to_string())?;
    println!("listening on {}", listener.local_addr().map_err(|e| e.to_string())?);
    let mut followers = Followers::connect(&followers).map_err(|e| e.to_string())?;
    let mut durable = |count: usize| {
        followers.send(log.records(count))?;
        log.commit(count)?;
        followers.wait_for_one()
    };
    match mode {
        Mode::One => one(&listener, durable, &shape),
        Mode::Batch => batch(&listener, durable, &shape),
        Mode::Follow => follow(&listener, &mut durable, shape.log),
    }
    .map_err(|e| e.to_string())
}

/// A file of zeros, written from front to back again and again.
struct RawLog {
    file: File,
    at: u64,
    record_bytes: usize,
    /// As many records as were ever written at once.
    records: Vec<u8>,
}

impl RawLog {
    fn create(path: &Path, record_bytes: usize) -> io::Result<RawLog> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        let zeros = vec![0; 1 << 20];
        for at in (0..LOG_BYTES).step_by(zeros.len()) {
            file.write_all_at(&zeros, at)?;
        }
        file.sync_all()?;
        Ok(RawLog { file, at: 0, record_bytes, records: Vec::new() })
    }

    /// So many records.
    fn records(&mut self, count: usize) -> &[u8] {
        let bytes = self.record_bytes * count;
        if self.records.len() < bytes {
            self.records.resize(bytes, 7);
        }
        &self.records[..bytes]
    }

    /// Makes `count` records durable: one write, one sync.
    fn commit(&mut self, count: usize) -> io::Result<()> {
        let bytes = self.records(count).len();
        if self.at + bytes as u64 > LOG_BYTES {
            self.at = 0;
        }
        self.file.write_all_at(&self.records[..bytes], self.at)?;
        self.at += bytes as u64;
        self.file.sync_data()
    }
}

fn one(
    listener: &TcpListener,
    mut durable: impl FnMut(usize) -> io::Result<()>,
    shape: &Shape,
) -> io::Result<()> {
    let (mut request, reply) = (vec![0; shape.request], vec![0; shape.reply]);
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        while stream.read_exact(&mut request).is_ok() {
            durable(1)?;
            stream.write_all(&reply)?;
        }
    }
}

fn batch(
    listener: &TcpListener,
    mut durable: impl FnMut(usize) -> io::Result<()>,
    shape: &Shape,
) -> io::Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    listener.set_nonblocking(true)?;
    epoll::add(&epoll, listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    let mut events = Vec::with_capacity(EVENTS_MAX);
    let mut streams: HashMap<u64, (TcpStream, usize)> = HashMap::new();
    let (mut buffer, reply) = (vec![0; 64 << 10], vec![0; shape.reply]);
    let mut answers = Vec::new();
    loop {
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let key = event.data.u64();
            if key == LISTENER {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                let key = stream.as_raw_fd() as u64;
                epoll::add(&epoll, &stream, epoll::EventData::new_u64(key), epoll::EventFlags::IN)?;
                streams.insert(key, (stream, 0));
                continue;
            }
            let Some((stream, have)) = streams.get_mut(&key) else { continue };
            match stream.read(&mut buffer) {
                Ok(0) => drop(streams.remove(&key)),
                Ok(n) => {
                    *have += n;
                    let whole = *have / shape.request;
                    *have %= shape.request;
                    answers.extend(std::iter::repeat_n(key, whole));
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(_) => drop(streams.remove(&key)),
            }
        }
        if answers.is_empty() {
            continue;
        }
        durable(answers.len())?;
        for key in answers.drain(..) {
            if let Some((stream, _)) = streams.get_mut(&key) {
                stream.write_all(&reply)?;
            }
        }
    }
}

/// Calls a bare server.
pub struct Caller {
    stream: TcpStream,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Caller {
    /// Connects.
    ///
    /// # Errors
    /// A sentence: why not.
    pub fn connect(address: &str, shape: &Shape) -> Result<Caller, String> {
        let stream = TcpStream::connect(address).map_err(|e| format!("{address}: {e}"))?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        Ok(Caller { stream, request: vec![1; shape.request], reply: vec![0; shape.reply] })
    }

    /// One request and its reply.
    ///
    /// # Errors
    /// A sentence: what failed.
    pub fn call(&mut self) -> Result<(), String> {
        let mut call = || {
            self.stream.write_all(&self.request)?;
            self.stream.read_exact(&mut self.reply)
        };
        call().map_err(|e: std::io::Error| format!("the bare server: {e}"))
    }
}

/// Where the file begins anew: many times what a run writes between two turns of its blocks.
const LOG_BYTES: u64 = 16 << 20;

/// More than there are connections.
const EVENTS_MAX: usize = 128;

/// No descriptor is that large.
const LISTENER: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_read_as_it_was_written() {
        let shape = Shape { request: 200, log: 150, reply: 300 };
        let path = Path::new("/tmp/a directory/raw");
        let all = ["127.0.0.1:1".to_string(), "127.0.0.1:2".to_string()];
        let role = role(Mode::Batch, &[&all[0], &all[1]], path, &shape);
        assert_eq!(parse(&role), Some((Mode::Batch, all.to_vec(), shape, path.to_path_buf())));
        assert_eq!(parse(OsStr::new("one 0 1 1 /x")), None);
        assert_eq!(parse(OsStr::new("serve")), None);
    }

    #[test]
    fn each_server_answers_and_writes_as_told() {
        let shape = Shape { request: 100, log: 5, reply: 30 };
        for mode in [Mode::One, Mode::Batch] {
            let dir = tempfile::tempdir().unwrap();
            let paths = ["leader", "follower"].map(|name| dir.path().join(name));
            let [log, theirs] = paths.each_ref().map(|path| RawLog::create(path, shape.log).unwrap());
            let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
            let [address, follower] = listeners.each_ref().map(|l| l.local_addr().unwrap().to_string());
            let [leads, follows] = listeners;
            std::thread::spawn(move || {
                let mut theirs = theirs;
                follow(&follows, &mut |count| theirs.commit(count), shape.log)
            });
            std::thread::spawn(move || {
                let (mut log, mut followers) = (log, Followers::connect(&[follower]).unwrap());
                let durable = |count| {
                    followers.send(log.records(count))?;
                    log.commit(count)?;
                    followers.wait_for_one()
                };
                match mode {
                    Mode::One => one(&leads, durable, &shape),
                    _ => batch(&leads, durable, &shape),
                }
            });
            let mut caller = Caller::connect(&address, &shape).unwrap();
            for _ in 0..3 {
                caller.call().unwrap();
            }
            for path in &paths {
                let bytes = std::fs::read(path).unwrap();
                assert_eq!(bytes.iter().filter(|&&b| b != 0).count(), 15, "{}", path.display());
            }
        }
    }
}
