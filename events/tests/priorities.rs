//! Priorities of sources, on both backends.

mod rig;

use std::io::Write;
use std::time::Instant;

use rig::{PATIENCE, Rig, tcp_pair};
use tercel_events::{Backend, Config, Priority};

/// Tells a story on both backends.
fn on_both(story: fn(Rig)) {
    for backend in [Backend::Epoll, Backend::Uring] {
        rig::tell(backend, Config::small(), story);
    }
}

#[test]
fn sources_report_in_order_of_priorities() {
    on_both(|mut rig| {
        let levels = [Priority::Low, Priority::Usual, Priority::High, Priority::Urgent];
        let mut nears = Vec::new();
        for key in 0..8 {
            let (mut near, far) = tcp_pair();
            near.write_all(b"x").unwrap();
            let token = rig.queue.declare_stream(far, key).unwrap();
            assert!(rig.queue.set_priority(token, levels[key as usize % 4]));
            nears.push((near, token));
        }
        let mut keys = Vec::new();
        while keys.len() < 8 {
            rig.each(8, |_, event| keys.push(event.key));
        }
        assert_eq!(keys.iter().map(|key| key % 4).collect::<Vec<_>>(), [3, 3, 2, 2, 1, 1, 0, 0]);
        // A slot's next tenant has the usual one.
        let (_, last) = nears.pop().unwrap();
        assert!(rig.queue.revoke(last) && !rig.queue.set_priority(last, Priority::Urgent));
    });
}

#[test]
fn busy_urgent_stream_lets_low_ones_through() {
    on_both(|mut rig| {
        let (mut near, far) = tcp_pair();
        let busy = rig.queue.declare_stream(far, 1).unwrap();
        rig.queue.set_priority(busy, Priority::Urgent);
        let (mut other, other_far) = tcp_pair();
        other.write_all(b"me too").unwrap();
        let low = rig.queue.declare_stream(other_far, 2).unwrap();
        rig.queue.set_priority(low, Priority::Low);
        // It is ready at each turn.
        near.set_nonblocking(true).unwrap();
        let (mut before, end) = (0, Instant::now() + PATIENCE);
        loop {
            _ = near.write(&[0; 4096]);
            let event = rig.next();
            if event.key == 2 {
                break;
            }
            before += 1;
            assert!(before <= 40 && Instant::now() < end, "{before} events came before");
        }
    });
}
