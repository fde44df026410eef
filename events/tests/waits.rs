//! Waits and declarations of several sources, on both backends and where the queue looks before it sleeps.

mod rig;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rig::{PATIENCE, Rig, tcp_pair, tell};
use rustix::event::EventfdFlags;
use tercel_events::{Backend, Config, DeclareError, Kind, Wanted, Watch};

fn tell_all(story: fn(Rig)) {
    for (backend, spin_us) in [(Backend::Uring, 0), (Backend::Epoll, 0), (Backend::Epoll, 200)] {
        tell(backend, Config { spin_us, ..Config::small() }, story);
    }
}

#[test]
fn long_waits_share_one_timer() {
    tell_all(long_waits);
}

#[test]
fn sources_are_declared_all_or_none() {
    tell_all(sources_of_one_call);
}

fn long_waits(mut rig: Rig) {
    let (mut near, far) = tcp_pair();
    rig.queue.declare_stream(far, 5).unwrap();
    let timers_set = |rig: &Rig| rig.queue.counters().timers_set;
    // Deadlines that move later with the time: the first of them has the kernel's timer set.
    for _ in 0..200 {
        near.write_all(b"x").unwrap();
        assert!(matches!(rig.next().kind, Kind::Received(_)));
    }
    assert_eq!(timers_set(&rig), 1);
    // One that is earlier has it set anew.
    let begin = Instant::now();
    assert_eq!(rig.turn(Duration::from_millis(20)), 0);
    assert!((Duration::from_millis(20)..PATIENCE / 2).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    assert_eq!(timers_set(&rig), 2);
    // A timer that was set for an earlier wait ends no later one.
    near.write_all(b"x").unwrap();
    assert_eq!(rig.turn(Duration::from_millis(10)), 1);
    let begin = Instant::now();
    assert_eq!(rig.turn(Duration::from_millis(40)), 0);
    assert!((Duration::from_millis(40)..PATIENCE / 2).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    // A source's own deadline is kept by the same timer.
    let timer = rig.queue.declare_timer(Instant::now() + Duration::from_millis(20), 3).unwrap();
    assert_eq!(rig.next().token, timer);
}

fn sources_of_one_call(mut rig: Rig) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let ((mut near, far), (read, write)) = (tcp_pair(), rustix::pipe::pipe().unwrap());
    let wanted = [
        (listener.into(), Wanted::Listener, 1),
        (far.into(), Wanted::Stream, 2),
        (read, Wanted::Ready(Watch::Read), 3),
    ];
    let tokens = rig.queue.declare_all(wanted).unwrap();
    near.write_all(b"x").unwrap();
    let _client = TcpStream::connect(address).unwrap();
    rustix::io::write(&write, b"x").unwrap();
    let mut told = [(); 3].map(|()| rig.next()).map(|event| (event.key, event.token));
    told.sort_unstable_by_key(|(key, _)| *key);
    assert_eq!(told, [(1, tokens[0]), (2, tokens[1]), (3, tokens[2])]);
    // The last of these finds no room.
    let room = rig.config.sources_max - rig.queue.sources();
    let bell = || (rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap(), Wanted::Ready(Watch::Read), 4);
    let before = rig.queue.sources();
    let refused = rig.queue.declare_all((0..=room).map(|_| bell()));
    assert!(matches!(refused, Err(DeclareError::Full)), "{refused:?}");
    assert_eq!(rig.queue.sources(), before);
    assert_eq!(rig.queue.declare_all((0..room).map(|_| bell())).unwrap().len(), room);
}
