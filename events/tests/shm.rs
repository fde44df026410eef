//! A channel between two processes: this test's binary starts itself as the peer, whose standard input is the
//! socket.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tercel_events::shm::{
    Channel, Config, LINE_BYTES, Receiver, SendError, Sender, Spin, WaitError, Waited, pass,
};
use tercel_machine::random::Random;

/// Tells a child what it is to be.
const CHILD: &str = "TERCEL_TEST_SHM";

fn patience() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(60))
}

/// Starts this test again, as its own peer.
fn start(test: &str) -> (Child, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, test)
        .stdin(OwnedFd::from(far))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let seen = pass::peer_credentials(&near).unwrap();
    assert_eq!(seen.uid, rustix::process::geteuid().as_raw());
    (child, near)
}

/// The socket to the parent, if this process is the peer that `test` started.
fn socket_of_child(test: &str) -> Option<UnixStream> {
    (std::env::var(CHILD).ok()? == test)
        .then(|| UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap()))
}

fn make(config: Config, socket: &UnixStream) -> (Sender, Receiver) {
    let (mut channel, memory) = Channel::create(config).unwrap();
    pass::send(socket, b"shm", &[memory.as_fd()]).unwrap();
    channel.watch_peer(socket).unwrap();
    channel.split()
}

fn open(socket: &UnixStream) -> (Sender, Receiver) {
    let mut header = [0; 3];
    let [memory] = pass::receive(socket, &mut header).unwrap();
    assert_eq!(&header, b"shm");
    let mut channel = Channel::open(memory).unwrap();
    channel.watch_peer(socket).unwrap();
    channel.split()
}

/// The messages that both ends know: a line, and often a block, most of them small.
struct Messages {
    random: Random,
    block_max: u64,
}

impl Messages {
    fn next(&mut self) -> ([u8; LINE_BYTES], Option<Vec<u8>>) {
        let line = std::array::from_fn(|_| self.random.below(256) as u8);
        let block = (self.random.below(2) == 0).then(|| {
            let most = if self.random.below(100) == 0 { self.block_max } else { 300 };
            let (bytes, seed) = (self.random.below(most + 1) as usize, self.random.below(256) as usize);
            (0..bytes).map(|at| (seed + at * 7) as u8).collect()
        });
        (line, block)
    }
}

fn send_all(sender: &mut Sender, mut messages: Messages, count: u32) {
    for _ in 0..count {
        let (line, block) = messages.next();
        let room = block.as_ref().map(Vec::len);
        loop {
            match sender.send(&line, block.as_deref()) {
                Ok(()) => break,
                Err(SendError::Full) => {
                    assert_eq!(sender.wait_for_room(room, patience()).unwrap(), Waited::Ready);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn receive_all(receiver: &mut Receiver, mut messages: Messages, count: u32) {
    let mut spin = Spin::new();
    let mut received = Vec::new();
    for number in 0..count {
        let (line, block) = messages.next();
        assert_eq!(receiver.wait(&mut spin, patience()).unwrap(), Waited::Ready);
        let message = receiver.receive().unwrap().unwrap();
        assert_eq!(message.line(), &line, "message {number}");
        received.clear();
        let copied = message.block.as_ref().map(|block| block.copy_to(&mut received));
        assert!(copied.map(|()| &received) == block.as_ref(), "block of message {number}");
    }
}

#[test]
fn two_processes_exchange_random_messages() {
    const TEST: &str = "two_processes_exchange_random_messages";
    const COUNT: u32 = 100_000;
    let config = Config { lines: 16, block_bytes: 64 << 10 };
    let messages = |seed| Messages { random: Random::new(seed), block_max: 60_000 };
    let exchange = |(mut sender, mut receiver): (Sender, Receiver), mine: u64, theirs: u64| {
        let out = std::thread::spawn(move || send_all(&mut sender, messages(mine), COUNT));
        receive_all(&mut receiver, messages(theirs), COUNT);
        out.join().unwrap();
    };
    if let Some(socket) = socket_of_child(TEST) {
        exchange(open(&socket), 2, 1);
        // The other end hears of this process's end, and would take it for a failure before its last message.
        let _ = (&socket).read(&mut [0]);
        return;
    }
    let (mut child, socket) = start(TEST);
    exchange(make(config, &socket), 1, 2);
    drop(socket);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_killed_peer_wakes_its_sleepers() {
    const TEST: &str = "a_killed_peer_wakes_its_sleepers";
    if let Some(socket) = socket_of_child(TEST) {
        // Sends without end, and is killed in the midst of it.
        let (mut sender, _receiver) = open(&socket);
        loop {
            if sender.send(&[1; LINE_BYTES], Some(&[2; 5_000])) == Err(SendError::Full) {
                sender.wait_for_room(Some(5_000), patience()).unwrap();
            }
        }
    }
    for messages in [1, 1_000, 20_000] {
        let (mut child, socket) = start(TEST);
        let (mut sender, mut receiver) = make(Config::default(), &socket);
        for _ in 0..messages {
            assert_eq!(receiver.wait(&mut Spin::new(), patience()).unwrap(), Waited::Ready);
            assert_eq!(receiver.receive().unwrap().unwrap().line(), &[1; LINE_BYTES]);
        }
        let blocked = std::thread::spawn(move || {
            while sender.send(&[3; LINE_BYTES], None).is_ok() {}
            sender.wait_for_room(None, patience()).unwrap()
        });
        child.kill().unwrap();
        child.wait().unwrap();
        // What it had sent is whole; then comes the end, without a deadline.
        let end = loop {
            match receiver.wait(&mut Spin::new(), None).unwrap() {
                Waited::Ready => {
                    let message = receiver.receive().unwrap().unwrap();
                    assert_eq!(message.line(), &[1; LINE_BYTES]);
                    let mut block = Vec::new();
                    message.block.unwrap().copy_to(&mut block);
                    assert!(block == [2; 5_000]);
                }
                end => break end,
            }
        };
        assert_eq!(end, Waited::PeerGone);
        assert_eq!(blocked.join().unwrap(), Waited::PeerGone);
    }
}

/// Where this process has mapped a file.
fn mapped_at(inode: u64) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_file = |line: &&str| line.split_whitespace().nth(4) == Some(&inode.to_string());
    let range = maps.lines().find(of_file).unwrap().split('-').next().unwrap();
    u64::from_str_radix(range, 16).unwrap()
}

/// The peer behaves, but scribbles over the memory while messages flow.
#[test]
fn a_hostile_process_does_no_harm() {
    const TEST: &str = "a_hostile_process_does_no_harm";
    if let Some(mut socket) = socket_of_child(TEST) {
        let [memory]: [OwnedFd; 1] = pass::receive(&socket, &mut [0; 3]).unwrap();
        let file = std::fs::File::from(memory.try_clone().unwrap());
        let (bytes, inode) = (file.metadata().unwrap().len(), file.metadata().unwrap().ino());
        let (mut sender, _receiver) = Channel::open(memory).unwrap().split();
        // The file itself takes no writes once both ends have mapped it.
        assert!(file.write_all_at(&[1], 0).is_err());
        let begin = mapped_at(inode);
        let file = std::fs::File::options().write(true).open("/proc/self/mem").unwrap();
        let mut random = Random::new(std::process::id().into());
        let until = Instant::now() + Duration::from_millis(50);
        while Instant::now() < until {
            let _ = sender.send(&[1; LINE_BYTES], Some(&[2; 100]));
            // The first lines are the most interesting ones.
            let reach = bytes >> (random.below(3) * 4);
            let at = random.below(reach) & !7;
            let word = (random.below(u64::MAX) >> random.below(64)).to_le_bytes();
            file.write_all_at(&word, begin + at).unwrap();
            (0..random.below(2_000)).for_each(|_| std::hint::spin_loop());
        }
        let _ = socket.write_all(&[1]);
        return;
    }
    let mut noticed = 0;
    for round in 0..12 {
        let (mut child, socket) = start(TEST);
        let (mut sender, mut receiver) =
            make(Config { lines: 4 << (round % 4), block_bytes: 4_096 }, &socket);
        let mut spin = Spin::new();
        loop {
            let soon = Some(Instant::now() + Duration::from_millis(2));
            let sent = sender.send(&[4; LINE_BYTES], Some(&[5; 50]));
            let waited = receiver.wait(&mut spin, soon);
            let received = receiver.receive().map(|message| {
                let mut copy = Vec::new();
                message.and_then(|message| message.block).map(|block| block.copy_to(&mut copy))
            });
            match (sent, waited, received) {
                (_, Ok(Waited::PeerGone), _) => break,
                // What a host would do then.
                (Err(SendError::Corrupt(_)), _, _) | (_, Err(WaitError::Corrupt(_)), _) | (_, _, Err(_)) => {
                    noticed += 1;
                    break;
                }
                (_, Err(WaitError::Os(error)), _) => panic!("{error}"),
                _ => {}
            }
        }
        // It says that it came to its end.
        (&socket).read_exact(&mut [0]).unwrap();
        assert!(child.wait().unwrap().success());
    }
    assert!(noticed > 0, "nothing was noticed");
}
