//! The descriptor limit of the process. The one test has a process of its own, because all threads of a
//! process share the limit.

mod rig;

use std::net::TcpStream;
use std::time::{Duration, Instant};

use rig::{PATIENCE, Rig, tell};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tercel_events::{Backend, Config, Kind, ListenerState, Token};

#[test]
fn a_listener_rests_at_the_descriptor_limit_and_resumes_by_itself() {
    for backend in [Backend::Uring, Backend::Epoll] {
        let config = Config { accept_retry_ms: 30, ..Config::small() };
        tell(backend, config, at_the_limit);
    }
}

fn at_the_limit(mut rig: Rig) {
    let (listener, address) = rig.tcp_listener();
    let mut clients: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
    let before = getrlimit(Resource::Nofile);
    // Two of the five fit: the lowest free number and the one after it.
    let lowest = rustix::io::dup(rig.queue.fd(listener).unwrap()).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&lowest) as u64;
    drop(lowest);
    let tight = Rlimit { current: Some(number + 2), maximum: before.maximum };
    setrlimit(Resource::Nofile, tight).unwrap();
    let first = rig.accept();
    let second = rig.accept();
    rig.expect_silence();
    assert_eq!(rig.queue.listener_state(listener), ListenerState::PausedByLimit);
    let looks = rig.queue.counters().looks;
    rig.turn(Duration::from_millis(100));
    assert!(rig.queue.counters().looks - looks < 20, "a resting listener must not spin");
    assert!(rig.queue.counters().accepts_paused >= 1);

    // The others are served meanwhile.
    std::io::Write::write_all(&mut clients[0], b"still served").unwrap();
    assert!(matches!(rig.next().kind, Kind::Received(_)));

    // A source that closes makes room at once.
    assert!(rig.queue.revoke(first));
    let third = accept_soon(&mut rig);

    // Room made elsewhere in the process is found by the timer.
    setrlimit(Resource::Nofile, before).unwrap();
    let fourth = accept_soon(&mut rig);
    let fifth = accept_soon(&mut rig);
    assert_eq!(rig.queue.listener_state(listener), ListenerState::Open);
    for token in [second, third, fourth, fifth] {
        assert!(rig.queue.revoke(token));
    }
}

/// The next accepted stream; the listener's own timer may need some turns.
fn accept_soon(rig: &mut Rig) -> Token {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < PATIENCE);
        if let Kind::Accepted { stream, .. } = rig.next().kind {
            return stream;
        }
    }
}
