//! Where a sandbox refuses rings: a real filter of system calls, in a child process, for filters are never
//! taken off.

mod rig;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use rig::Rig;
use rustix::io::Errno;
use seccompiler::{SeccompAction, SeccompFilter, apply_filter};
use tercel_events::{Backend, Config, EventQueue, OpenError};

/// The number of `io_uring_setup`, the same on every architecture.
const IO_URING_SETUP: i64 = 425;
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

fn confined(errno: i32) {
    let filter = SeccompFilter::new(
        BTreeMap::from([(IO_URING_SETUP, vec![])]),
        SeccompAction::Allow,
        SeccompAction::Errno(errno as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: seccompiler::BpfProgram = filter.unwrap().try_into().unwrap();
    apply_filter(&program).unwrap();

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
