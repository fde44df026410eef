//! A thousand clients at work, all of them in one thread that never waits for any of them.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use tercel::tools::wire::frame::{self, Header, Kind};
use tercel::tools::wire::id::{OpId, Oref, PageId};
use tercel::tools::wire::message::{Commit, CommitEffects, Stream, Verdict, Write};

use super::super::blocks::percentile;
use super::raw::Raw;

/// Connects as many clients as there are objects, and has each change its own and fetch a page: as standard
/// input says, for so many seconds, every so many microseconds one of them or, for 0, each as soon as its
/// last is answered.
pub fn work(address: &str, pages: u32, object: &[u8], orefs: &[Oref]) -> Result<(), String> {
    let _ = rustix::process::nice(NICE);
    tercel_term::process::raise_descriptors();
    let mut crowd = Crowd::connect(address, pages, object, orefs).map_err(|e| e.to_string())?;
    println!("listening on nothing");
    for line in io::stdin().lines().map_while(Result::ok) {
        let mut numbers = line.split(' ').map(|n| n.parse::<u64>().unwrap_or(0));
        let (seconds, every) = (numbers.next().unwrap_or(1), numbers.next().unwrap_or(0));
        let said = crowd.run(Duration::from_secs(seconds), every).map_err(|e| e.to_string())?;
        println!("{said}");
    }
    Ok(())
}

struct Crowd {
    clients: Vec<Worker>,
    by_fd: HashMap<u64, usize>,
    epoll: std::os::fd::OwnedFd,
    pages: u32,
    object: Vec<u8>,
    commits: Vec<f64>,
    fetches: Vec<f64>,
}

struct Worker {
    raw: Raw,
    oref: Oref,
    seq: u64,
    asked: u32,
    /// When what is not answered was sent: commits, in order, and fetches.
    committing: Option<Instant>,
    fetching: Option<Instant>,
}

impl Crowd {
    fn connect(address: &str, pages: u32, object: &[u8], orefs: &[Oref]) -> io::Result<Crowd> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut crowd = Crowd {
            clients: Vec::new(),
            by_fd: HashMap::new(),
            epoll,
            pages,
            object: object.to_vec(),
            commits: Vec::new(),
            fetches: Vec::new(),
        };
        for (i, oref) in orefs.iter().enumerate() {
            let raw = Raw::connect(address, (1 << 50) + i as u64)?;
            raw.stream.set_nonblocking(true)?;
            let fd = raw.stream.as_raw_fd() as u64;
            epoll::add(&crowd.epoll, &raw.stream, epoll::EventData::new_u64(fd), epoll::EventFlags::IN)?;
            crowd.by_fd.insert(fd, i);
            crowd.clients.push(Worker {
                raw,
                oref: *oref,
                seq: 0,
                asked: 0,
                committing: None,
                fetching: None,
            });
        }
        Ok(crowd)
    }

    /// Runs the clients and gives a report: operations a second, and of commits and of fetches the median and
    /// the 99th percentile, in microseconds.
    fn run(&mut self, time: Duration, every_us: u64) -> io::Result<String> {
        self.commits.clear();
        self.fetches.clear();
        let begin = Instant::now();
        let (mut next, mut skipped) = (0u64, 0u64);
        if every_us == 0 {
            for i in 0..self.clients.len() {
                self.commit(i)?;
            }
        }
        loop {
            let now = Instant::now();
            let is_over = now >= begin + time;
            let busy = self.clients.iter().any(|w| w.committing.is_some() || w.fetching.is_some());
            if is_over && (!busy || now >= begin + time + PATIENCE) {
                break;
            }
            let mut timeout = Duration::from_millis(20);
            if every_us > 0 && !is_over {
                let mut due = begin + Duration::from_micros(next * every_us);
                while due <= now {
                    let (i, round) = (next as usize % self.clients.len(), next as usize / self.clients.len());
                    skipped += u64::from(!self.begin(i, round % 2 == 0)?);
                    next += 1;
                    due = begin + Duration::from_micros(next * every_us);
                }
                timeout = due - now;
            }
            self.receive(timeout, every_us == 0 && !is_over)?;
        }
        let seconds = begin.elapsed().as_secs_f64();
        let rate = (self.commits.len() + self.fetches.len()) as f64 / seconds;
        let mut said = format!("{rate} {} {skipped}", self.commits.len() + self.fetches.len());
        for times in [&mut self.commits, &mut self.fetches] {
            times.sort_unstable_by(f64::total_cmp);
            said.push_str(&format!(" {} {}", percentile(times, 0.5), percentile(times, 0.99)));
        }
        Ok(said)
    }

    /// Has a client begin something; not if what it began before is not done.
    fn begin(&mut self, i: usize, commit: bool) -> io::Result<bool> {
        let idle = match commit {
            true => self.clients[i].committing.is_none(),
            false => self.clients[i].fetching.is_none(),
        };
        match (idle, commit) {
            (false, _) => Ok(false),
            (true, true) => self.commit(i).map(|()| true),
            (true, false) => self.fetch(i).map(|()| true),
        }
    }

    fn commit(&mut self, i: usize) -> io::Result<()> {
        let w = &mut self.clients[i];
        w.seq += 1;
        let op = OpId { client: w.raw.id, slot: 0, seq: w.seq, view: w.raw.view };
        self.object[4] = w.seq as u8;
        let write = Write { oref: w.oref, new: false, object: &self.object };
        let (mut effects, mut body, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        CommitEffects { base: w.raw.visible, reads: vec![w.oref], writes: vec![write] }.encode(&mut effects);
        Commit { op, parts: 0, bytes: &effects }.encode(&mut body);
        frame::encode(Header::new(Kind::Commit, 1), &body, &mut bytes);
        w.committing = Some(Instant::now());
        w.raw.send(&bytes)
    }

    fn fetch(&mut self, i: usize) -> io::Result<()> {
        let w = &mut self.clients[i];
        w.asked = w.asked.wrapping_add(1);
        let page = (i as u32).wrapping_mul(7919).wrapping_add(w.asked.wrapping_mul(104_729)) % self.pages;
        let mut bytes = Vec::new();
        w.raw.fetch(PageId::new(2 + page).expect("a page"), &mut bytes);
        w.fetching = Some(Instant::now());
        w.raw.send(&bytes)
    }

    fn receive(&mut self, timeout: Duration, go_on: bool) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout))?;
        for event in &events {
            let i = self.by_fd[&event.data.u64()];
            let w = &mut self.clients[i];
            let (mut committed, mut fetched) = (false, false);
            w.raw.receive(|header, body| {
                match header.kind {
                    Kind::Page => fetched = true,
                    Kind::Stream => {
                        let stream = Stream::decode(body).map_err(io::Error::other)?;
                        committed |= stream.changes.iter().any(|c| c.own.is_some());
                    }
                    Kind::Verdict => {
                        let verdict = Verdict::decode(body).map_err(io::Error::other)?;
                        match verdict.outcome {
                            Ok(_) => committed = true,
                            other => {
                                return Err(io::Error::other(format!("a commit was answered {other:?}")));
                            }
                        }
                    }
                    _ => {}
                }
                Ok(())
            })?;
            if committed && let Some(begun) = w.committing.take() {
                self.commits.push(begun.elapsed().as_secs_f64() * 1e6);
                if go_on {
                    self.fetch(i)?;
                }
            }
            let w = &mut self.clients[i];
            if fetched && let Some(begun) = w.fetching.take() {
                self.fetches.push(begun.elapsed().as_secs_f64() * 1e6);
                if go_on {
                    self.commit(i)?;
                }
            }
        }
        Ok(())
    }
}

/// Below the server, which is what is measured.
const NICE: i32 = 5;
/// Time that operations under way at the end may take.
const PATIENCE: Duration = Duration::from_secs(10);
const EVENTS_MAX: usize = 256;
