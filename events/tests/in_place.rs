//! More of a stream, received to where it is read, on both backends and where the queue looks before it
//! sleeps.

mod rig;

use std::io::Write;
use std::net::Shutdown;
use std::time::Instant;

use rig::{PATIENCE, Rig, pattern, reset, tcp_pair, tell};
use tercel_events::{Backend, CloseReason, Config, EventQueue, Kind, Readiness, Token};

fn tell_all(story: fn(Rig)) {
    for (backend, spin_us) in [(Backend::Uring, 0), (Backend::Epoll, 0), (Backend::Epoll, 200)] {
        tell(backend, Config { spin_us, buffer_bytes: 8 << 10, ..Config::small() }, story);
    }
}

#[test]
fn more_is_received_to_where_it_is_read() {
    tell_all(more);
}

#[test]
fn failed_receive_of_more_closes_the_stream() {
    tell_all(failure);
}

/// Waits until the kernel has something of a stream, or its end.
fn await_more(rig: &Rig, token: Token, is_end: bool) {
    let begun = Instant::now();
    let is_there = |is: Readiness| if is_end { is.hung_up } else { is.readable };
    while !is_there(rig.queue.readiness(token).unwrap()) {
        assert!(begun.elapsed() < PATIENCE, "nothing came");
    }
}

fn more(mut rig: Rig) {
    let (mut near, far) = tcp_pair();
    let token = rig.queue.declare_stream(far, 0).unwrap();
    let more = |queue: &mut EventQueue<u64>, bytes_max| {
        let mut into = Vec::with_capacity(1_000);
        queue.receive_more(token, &mut into, bytes_max);
        into
    };
    near.write_all(b"one ").unwrap();
    assert!(matches!(rig.next().kind, Kind::Received(bytes) if &bytes[..] == b"one "));
    // A short receive takes all that has come.
    near.write_all(b"two ").unwrap();
    await_more(&rig, token, false);
    assert_eq!(more(&mut rig.queue, usize::MAX), b"two ");
    rig.expect_silence();
    // Behind a full one the rest is reported.
    near.write_all(b"three four").unwrap();
    await_more(&rig, token, false);
    assert_eq!(more(&mut rig.queue, 6), b"three ");
    assert!(matches!(rig.next().kind, Kind::Received(bytes) if &bytes[..] == b"four"));
    // Nothing is lost where nothing is received.
    rig.queue.pause(token);
    near.write_all(b"five").unwrap();
    await_more(&rig, token, false);
    assert_eq!(more(&mut rig.queue, usize::MAX), b"");
    rig.queue.resume(token);
    assert_eq!(more(&mut rig.queue, 0), b"");
    assert!(matches!(rig.next().kind, Kind::Received(bytes) if &bytes[..] == b"five"));
    // The end is reported behind the last bytes, and but once.
    let last = pattern(1, rig.config.buffer_bytes + 900);
    near.write_all(&last).unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    await_more(&rig, token, true);
    assert!(matches!(rig.next().kind, Kind::Received(bytes) if last.starts_with(&bytes)));
    assert_eq!(more(&mut rig.queue, usize::MAX), &last[rig.config.buffer_bytes..]);
    assert_eq!(more(&mut rig.queue, usize::MAX), b"");
    rig.expect_end(token);
    assert_eq!(more(&mut rig.queue, usize::MAX), b"");
    rig.expect_silence();
}

fn failure(mut rig: Rig) {
    let (near, far) = tcp_pair();
    let token = rig.queue.declare_stream(far, 0).unwrap();
    reset(near);
    await_more(&rig, token, false);
    rig.queue.receive_more(token, &mut Vec::with_capacity(9), usize::MAX);
    assert!(matches!(rig.next().kind, Kind::Closed(CloseReason::Reset)));
    rig.expect_silence();
}
