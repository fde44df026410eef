//! The bare server: bytes in, bytes to the disk, bytes out, and nothing between.
//!
//! Alone with one connection it blocks on that connection. With many it asks epoll for the connections that
//! have sent, writes the bytes of all of them at once, syncs once, and answers all of them.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::event::epoll;

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
}

/// The value of [`ROLE`] for such a server.
pub fn role(mode: Mode, file: &Path, shape: &Shape) -> OsString {
    let name = if mode == Mode::One { "one" } else { "batch" };
    let mut role = format!("{name} {} {} {} ", shape.request, shape.log, shape.reply).into_bytes();
    role.extend_from_slice(file.as_os_str().as_bytes());
    OsString::from_vec(role)
}

fn parse(role: &OsStr) -> Option<(Mode, Shape, PathBuf)> {
    let mut words = role.as_bytes().splitn(5, |&b| b == b' ');
    let mode = match words.next()? {
        b"one" => Mode::One,
        b"batch" => Mode::Batch,
        _ => return None,
    };
    let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok().filter(|&n| n > 0);
    let shape = Shape { request: number()?, log: number()?, reply: number()? };
    Some((mode, shape, PathBuf::from(OsStr::from_bytes(words.next()?))))
}

/// Serves until standard input ends.
///
/// # Errors
/// A sentence: what failed.
pub fn serve(role: &OsStr) -> Result<(), String> {
    let (mode, shape, path) = parse(role).ok_or_else(|| format!("{ROLE} is for this program's own use"))?;
    std::thread::spawn(|| {
        // The process that started this one has ended, or wants it to end.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let log = RawLog::create(&path, shape.log).map_err(|e| format!("{}: {e}", path.display()))?;
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| e.to_string())?;
    println!("listening on {}", listener.local_addr().map_err(|e| e.to_string())?);
    match mode {
        Mode::One => one(&listener, log, &shape),
        Mode::Batch => batch(&listener, log, &shape),
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
    fn create(path: &Path, record_bytes: usize) -> std::io::Result<RawLog> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        let zeros = vec![0; 1 << 20];
        for at in (0..LOG_BYTES).step_by(zeros.len()) {
            file.write_all_at(&zeros, at)?;
        }
        file.sync_all()?;
        Ok(RawLog { file, at: 0, record_bytes, records: Vec::new() })
    }

    /// Makes `count` records durable: one write, one sync.
    fn commit(&mut self, count: usize) -> std::io::Result<()> {
        let bytes = self.record_bytes * count;
        if self.records.len() < bytes {
            self.records.resize(bytes, 7);
        }
        if self.at + bytes as u64 > LOG_BYTES {
            self.at = 0;
        }
        self.file.write_all_at(&self.records[..bytes], self.at)?;
        self.at += bytes as u64;
        self.file.sync_data()
    }
}

fn one(listener: &TcpListener, mut log: RawLog, shape: &Shape) -> std::io::Result<()> {
    let (mut request, reply) = (vec![0; shape.request], vec![0; shape.reply]);
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        while stream.read_exact(&mut request).is_ok() {
            log.commit(1)?;
            stream.write_all(&reply)?;
        }
    }
}

fn batch(listener: &TcpListener, mut log: RawLog, shape: &Shape) -> std::io::Result<()> {
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
        log.commit(answers.len())?;
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
        assert_eq!(parse(&role(Mode::Batch, path, &shape)), Some((Mode::Batch, shape, path.to_path_buf())));
        assert_eq!(parse(OsStr::new("one 0 1 1 /x")), None);
        assert_eq!(parse(OsStr::new("serve")), None);
    }

    #[test]
    fn both_servers_answer_each_request_with_as_many_bytes_and_write_as_many() {
        let shape = Shape { request: 100, log: 5, reply: 30 };
        for mode in [Mode::One, Mode::Batch] {
            let dir = tempfile::tempdir().unwrap();
            let log = RawLog::create(&dir.path().join("log"), shape.log).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap().to_string();
            std::thread::spawn(move || match mode {
                Mode::One => one(&listener, log, &shape),
                Mode::Batch => batch(&listener, log, &shape),
            });
            let mut caller = Caller::connect(&address, &shape).unwrap();
            for _ in 0..3 {
                caller.call().unwrap();
            }
            let bytes = std::fs::read(dir.path().join("log")).unwrap();
            assert_eq!(bytes.iter().filter(|&&b| b != 0).count(), 15);
        }
    }
}
