//! The null round trip between two processes: a channel in shared memory against the bare means under it.
//!
//! Spinning, the limit is one atomic word bounced in one cache line each way, for blocks with plain copies of
//! the bytes; sleeping, one eventfd written and read each way. The peers are processes that wait in turn, one
//! at a time; blocks of round trips alternate between the contenders in changing order, so that the machine's
//! moods fall on all alike. Reported are the first tenth and the median over blocks of the time of a trip,
//! and the ratio to the limit of the same round with the 95 % interval of its median.
//!
//! `cargo bench -p tercel-events --bench shm`, with `-- spinning` for a part

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::thread::CpuSet;
use tercel_events::shm::{Channel, Config, LINE_BYTES, Receiver, Sender, Spin, Waited, pass};

const BLOCKS: usize = 200;
const WARM: usize = 10;
/// Bytes of a block, both ways: a page.
const BLOCK: usize = 8_192;
/// Bytes of the bare contenders' memory: the words, and room for a block each way.
const RAW: usize = 4_096 + 2 * BLOCK;
const PEER: &str = "TERCEL_BENCH_PEER";

fn main() {
    if let Ok(kind) = std::env::var(PEER) {
        return peer(&kind);
    }
    pin(0);
    for cpu in [1, 0] {
        let place = if cpu == 0 { "one CPU" } else { "two CPUs" };
        if cpu == 1 {
            report(&format!("spinning, {place}"), 5_000, &["raw-spin", "spin"], cpu);
            report(&format!("spinning with {BLOCK} bytes, {place}"), 1_000, &["raw-block", "block"], cpu);
        }
        report(&format!("sleeping, {place}"), 100, &["raw-sleep", "sleep"], cpu);
    }
}

/// Runs the contenders against peers on this CPU; the first is the limit.
fn report(title: &str, trips: usize, names: &[&str], cpu: usize) {
    // Cargo adds arguments of its own.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if !wanted.is_empty() && !wanted.iter().any(|word| title.contains(word.as_str())) {
        return;
    }
    let mut contenders: Vec<Contender> = names.iter().map(|name| Contender::start(name, cpu)).collect();
    let mut blocks: Vec<Vec<f64>> = vec![Vec::new(); names.len()];
    for block in 0..BLOCKS + WARM {
        let mut block_ns = vec![0.0; names.len()];
        for turn in 0..names.len() {
            let turn = if block % 2 == 0 { turn } else { names.len() - 1 - turn };
            let number = (turn + block / 2) % names.len();
            block_ns[number] = contenders[number].block(trips);
        }
        if block >= WARM {
            blocks.iter_mut().zip(block_ns).for_each(|(all, ns)| all.push(ns));
        }
    }
    println!("{title}, {BLOCKS} blocks of {trips}");
    for (number, name) in names.iter().enumerate() {
        let mut ns = blocks[number].clone();
        let mut ratios: Vec<f64> =
            blocks[number].iter().zip(&blocks[0]).map(|(ours, raw)| ours / raw).collect();
        ns.sort_by(f64::total_cmp);
        ratios.sort_by(f64::total_cmp);
        let (middle, spread) = (BLOCKS / 2, (BLOCKS as f64).sqrt() as usize);
        println!(
            "  {name:<10} p10 {:8.1} p50 {:8.1} ns   ratio {:.3} [{:.3}, {:.3}]",
            ns[BLOCKS / 10],
            ns[middle],
            ratios[middle],
            ratios[middle - spread],
            ratios[middle + spread],
        );
    }
}

/// One contender: its peer, and this end of what is between them.
struct Contender {
    peer: Child,
    socket: UnixStream,
    end: End,
}

impl Contender {
    fn start(name: &str, cpu: usize) -> Contender {
        let (socket, theirs) = UnixStream::pair().unwrap();
        let peer = Command::new(std::env::current_exe().unwrap())
            .env(PEER, format!("{name} {cpu}"))
            .stdin(OwnedFd::from(theirs))
            .spawn()
            .unwrap();
        let end = match name {
            "raw-spin" | "raw-block" | "raw-sleep" => {
                let flags = rustix::fs::MemfdFlags::CLOEXEC;
                let memory = rustix::fs::memfd_create(c"bench", flags).unwrap();
                rustix::fs::ftruncate(&memory, RAW as u64).unwrap();
                let bells =
                    [0; 2].map(|_| rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap());
                pass::send(&socket, &[1], &[memory.as_fd(), bells[0].as_fd(), bells[1].as_fd()]).unwrap();
                raw(name, memory, bells)
            }
            _ => {
                let (mut channel, memory) = Channel::create(Config::default()).unwrap();
                pass::send(&socket, &[1], &[memory.as_fd()]).unwrap();
                channel.watch_peer(&socket).unwrap();
                ours(name, channel)
            }
        };
        Contender { peer, socket, end }
    }

    /// Nanoseconds of a trip. The peer is told how many there are, and sleeps before and after.
    fn block(&mut self, trips: usize) -> f64 {
        self.socket.write_all(&(trips as u32).to_le_bytes()).unwrap();
        self.socket.read_exact(&mut [0]).unwrap();
        let begin = Instant::now();
        for _ in 0..trips {
            self.end.send();
            self.end.receive();
        }
        begin.elapsed().as_secs_f64() * 1e9 / trips as f64
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let _ = self.peer.kill();
        let _ = self.peer.wait();
    }
}

/// The peer: answers as many trips as the socket asks for.
fn peer(kind: &str) {
    let (name, cpu) = kind.split_once(' ').unwrap();
    pin(cpu.parse().unwrap());
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let mut end = match name {
        "raw-spin" | "raw-block" | "raw-sleep" => {
            let [memory, first, second] = pass::receive(&socket, &mut [0]).unwrap();
            raw(name, memory, [second, first])
        }
        _ => {
            let [memory] = pass::receive(&socket, &mut [0]).unwrap();
            let mut channel = Channel::open(memory).unwrap();
            channel.watch_peer(&socket).unwrap();
            ours(name, channel)
        }
    };
    if let End::Word { mine, theirs, rooms, .. } = &mut end {
        std::mem::swap(mine, theirs);
        rooms.reverse();
    }
    let mut trips = [0; 4];
    while socket.read_exact(&mut trips).is_ok() {
        socket.write_all(&[1]).unwrap();
        for _ in 0..u32::from_le_bytes(trips) {
            end.receive();
            end.send();
        }
    }
}

enum End {
    Word {
        mine: &'static AtomicU64,
        theirs: &'static AtomicU64,
        count: u64,
        seen: u64,
        rooms: [*mut u8; 2],
        bytes: Vec<u8>,
    },
    Bells {
        ring: OwnedFd,
        hear: OwnedFd,
    },
    Ours(Box<Ours>),
}

struct Ours {
    sender: Sender,
    receiver: Receiver,
    spin: Spin,
    line: [u8; LINE_BYTES],
    /// The block sent with each line, if any.
    block: Option<Vec<u8>>,
}

impl End {
    #[inline]
    fn send(&mut self) {
        match self {
            End::Word { mine, count, rooms, bytes, .. } => {
                // SAFETY: the first room is this end's until the word is stored, and longer than a block.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), rooms[0], bytes.len()) };
                *count += 1;
                mine.store(*count, Ordering::Release);
            }
            End::Bells { ring, .. } => {
                rustix::io::write(&*ring, &ONE).unwrap();
            }
            End::Ours(ours) => {
                ours.sender.send(&ours.line, ours.block.as_deref()).unwrap();
            }
        }
    }

    #[inline]
    fn receive(&mut self) {
        match self {
            End::Word { theirs, seen, rooms, bytes, .. } => {
                *seen += 1;
                while theirs.load(Ordering::Acquire) != *seen {
                    // Without the hint the looks get in the way of the store, and a trip takes half as long
                    // again.
                    std::hint::spin_loop();
                }
                // SAFETY: the second room is this end's until it answers, and longer than a block.
                unsafe { std::ptr::copy_nonoverlapping(rooms[1], bytes.as_mut_ptr(), bytes.len()) };
            }
            End::Bells { hear, .. } => {
                rustix::io::read(&*hear, &mut [0; 8]).unwrap();
            }
            End::Ours(ours) => {
                let Ours { receiver, spin, line, block, .. } = &mut **ours;
                assert_eq!(receiver.wait(spin, None).unwrap(), Waited::Ready);
                let message = receiver.receive().unwrap().unwrap();
                assert_eq!(message.line()[59], line[59]);
                if let (Some(here), Some(there)) = (block, message.block) {
                    here.clear();
                    there.copy_to(here);
                }
            }
        }
    }
}

#[expect(clippy::host_endian_bytes, reason = "the kernel reads an eventfd's count in the host's order")]
const ONE: [u8; 8] = 1_u64.to_ne_bytes();

fn ours(name: &str, channel: Channel) -> End {
    let (sender, receiver) = channel.split();
    let spin = match name {
        "spin" | "block" => Spin::with_budget(Spin::DEFAULT_NS),
        _ => Spin::with_budget(0),
    };
    End::Ours(Box::new(Ours {
        sender,
        receiver,
        spin,
        line: [0; LINE_BYTES],
        block: (name == "block").then(|| vec![1; BLOCK]),
    }))
}

fn raw(name: &str, memory: OwnedFd, bells: [OwnedFd; 2]) -> End {
    if name == "raw-sleep" {
        let [ring, hear] = bells;
        return End::Bells { ring, hear };
    }
    let prot = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    let shared = rustix::mm::MapFlags::SHARED;
    // SAFETY: a fresh map of pages that the descriptor has, never unmapped.
    let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), RAW, prot, shared, &memory, 0) };
    let base = base.unwrap().cast::<[AtomicU64; 512]>();
    // SAFETY: the first page, aligned, and only ever reached as atomic words.
    let words = unsafe { &*base };
    // Two lines apart.
    let (mine, theirs) = (&words[0], &words[16]);
    let room = base.wrapping_add(1).cast::<u8>();
    let bytes = if name == "raw-block" { vec![1; BLOCK] } else { Vec::new() };
    End::Word { mine, theirs, count: 0, seen: 0, rooms: [room, room.wrapping_add(BLOCK)], bytes }
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}
