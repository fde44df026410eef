//! Calls that the kernel refuses: a real filter of system calls. Filters are never taken off, so each holds
//! for a child process or a thread of the test's own.

mod rig;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::Command;
use std::thread;
use std::time::Instant;

use rig::{PATIENCE, Rig};
use rustix::io::Errno;
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, apply_filter,
};
use tercel_events::{Backend, Config, EventQueue, ListenerState, OpenError, Token};

/// The number of `io_uring_setup`, the same on every architecture.
const IO_URING_SETUP: i64 = 425;
/// The number of `epoll_ctl`: that of x86-64, and the one that newer architectures share.
const EPOLL_CTL: i64 = if cfg!(target_arch = "x86_64") { 233 } else { 21 };
const EPOLL_CTL_MOD: u64 = 3;
/// Tells a child which error its sandbox answers with.
const CHILD: &str = "TERCEL_TEST_SANDBOX";

#[test]
fn queue_whose_ring_is_refused_says_so_and_the_default_works() {
    if let Ok(errno) = std::env::var(CHILD) {
        return confined(errno.parse().unwrap());
    }
    // What containers answer, and what kernels without rings answer.
    for errno in [Errno::PERM, Errno::NOSYS] {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "queue_whose_ring_is_refused_says_so_and_the_default_works", "--nocapture"])
            .env(CHILD, errno.raw_os_error().to_string())
            .env_remove("TERCEL_EVENTS")
            .output()
            .unwrap();
        let said =
            String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success(), "{said}");
        assert!(said.contains(SAID), "the child did not come to its end: {said}");
    }
}

const SAID: &str = "confined, and served by epoll";

/// Has the kernel answer this thread's calls of one number, or those that meet a rule, with an error.
fn refuse(call: i64, rules: Vec<SeccompRule>, errno: Errno) {
    let filter = SeccompFilter::new(
        BTreeMap::from([(call, rules)]),
        SeccompAction::Allow,
        SeccompAction::Errno(errno.raw_os_error() as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: seccompiler::BpfProgram = filter.unwrap().try_into().unwrap();
    apply_filter(&program).unwrap();
}

fn confined(errno: i32) {
    refuse(IO_URING_SETUP, vec![], Errno::from_raw_os_error(errno));

    // Demanded, the ring is refused with the sandbox's own reason.
    let demanded = EventQueue::<u64>::open(Config { backend: Some(Backend::Uring), ..Config::small() });
    match demanded {
        Err(OpenError::RingRefused(e)) => assert_eq!(e.raw_os_error(), Some(errno)),
        other => panic!("{other:?}"),
    }

    // Left to itself the queue needs no ring.
    let config = Config::small();
    let queue = EventQueue::open(config.clone()).unwrap();
    assert_eq!(queue.backend(), Backend::Epoll);
    let mut rig = Rig { queue, batch: Vec::new(), config };
    let (_, address) = rig.tcp_listener();
    let mut client = TcpStream::connect(address).unwrap();
    rig.accept();
    client.write_all(b"from inside").unwrap();
    while rig.echo_once(1) == 0 {}
    // The queue sends when it is next asked for events.
    rig.turn(std::time::Duration::ZERO);
    let mut echoed = [0; 11];
    client.read_exact(&mut echoed).unwrap();
    assert_eq!(&echoed, b"from inside");
    println!("{SAID}");
}

#[test]
fn resting_listener_stays_where_watch_cannot_end() {
    with_resting_listener(|mut rig, address, first| {
        refuse_changes();
        let _client = UnixStream::connect_addr(address).unwrap();
        rig.expect_silence();
        rig.queue.revoke(first);
        rig.accept();
    });
}

#[test]
fn listener_kernel_cannot_watch_tries_again() {
    with_resting_listener(|mut rig, address, first| {
        // Hinted while it rests, it is watched no longer.
        let _client = UnixStream::connect_addr(address).unwrap();
        rig.expect_silence();
        refuse_changes();
        let pauses = rig.queue.counters().accepts_paused;
        rig.queue.revoke(first);
        rig.expect_silence();
        let timer = rig.queue.declare_timer(Instant::now() + PATIENCE, 0).unwrap();
        rig.queue.revoke(timer);
        rig.expect_silence();
        assert_eq!(rig.queue.counters().accepts_paused, pauses + 2);
    });
}

/// Runs a story in a thread of its own, for its filter. It is given the queue, the address of a listener that
/// rests for want of a source, and a stream whose end makes room. More connections wait.
fn with_resting_listener(story: fn(Rig, &SocketAddr, Token)) {
    let config = Config { sources_max: 2, accept_retry_ms: 600_000, ..Config::small() };
    let told = thread::spawn(move || match Rig::open(Backend::Epoll, config) {
        Err(reason) => eprintln!("skipped: {reason}"),
        Ok(mut rig) => {
            // A connection by such a socket has arrived once it is made.
            let name = format!("tercel-sandbox-{}-{:?}", std::process::id(), thread::current().id());
            let address = SocketAddr::from_abstract_name(name).unwrap();
            let listener = UnixListener::bind_addr(&address).unwrap();
            let listener = rig.queue.declare_listener(listener, 7).unwrap();
            let _clients: Vec<UnixStream> =
                (0..3).map(|_| UnixStream::connect_addr(&address).unwrap()).collect();
            let first = rig.accept();
            rig.expect_silence();
            assert_eq!(rig.queue.listener_state(listener), ListenerState::PausedByLimit);
            story(rig, &address, first);
        }
    });
    told.join().unwrap();
}

/// Has the kernel refuse this thread every change of a watch, as if it had no room.
fn refuse_changes() {
    let is_change = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, EPOLL_CTL_MOD);
    refuse(EPOLL_CTL, vec![SeccompRule::new(vec![is_change.unwrap()]).unwrap()], Errno::NOSPC);
}
