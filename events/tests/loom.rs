//! Every interleaving of the races between the two ends of a channel, with the very functions that they call.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tercel-events --test loom`. Each race is told once in the
//! order that the ends keep; where an order is what keeps it, a model with another one shows that it would be
//! caught. A thread that sleeps without a ring to come is what loom calls a deadlock.
#![cfg(loom)]
#![allow(dead_code, reason = "the models do not call every step")]

#[path = "../src/shm/protocol.rs"]
mod protocol;
#[path = "../src/sync.rs"]
mod sync;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use protocol::*;

/// A bell as one sleeper hears it: rings merge, and one that comes before the sleep ends it.
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    fn new() -> Bell {
        Bell { rung: Mutex::new(false), heard: Condvar::new() }
    }

    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.heard.notify_one();
    }

    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.heard.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// One direction with one line, whose sequence word counts the messages, and the bells of both ends.
struct Lane {
    line: AtomicU64,
    payload: AtomicU64,
    position: AtomicU64,
    asleep: AtomicU64,
    starved: AtomicU64,
    consumer_bell: Bell,
    producer_bell: Bell,
    /// Stands for the content of a line and a block: loom reports a write that races with a read.
    bytes: UnsafeCell<u64>,
}

impl Lane {
    fn new() -> Lane {
        Lane {
            line: AtomicU64::new(0),
            payload: AtomicU64::new(0),
            position: AtomicU64::new(0),
            asleep: AtomicU64::new(AWAKE),
            starved: AtomicU64::new(AWAKE),
            consumer_bell: Bell::new(),
            producer_bell: Bell::new(),
            bytes: UnsafeCell::new(0),
        }
    }

    fn send(&self, number: u64) {
        self.payload.store(number * 10, Ordering::Relaxed);
        publish(&self.line, number);
        if call(&self.asleep).unwrap() {
            self.consumer_bell.ring();
        }
    }

    /// Sleeps until the message with this number is there, as `Receiver::wait` does.
    fn wait(&self, number: u64) {
        loop {
            doze(&self.asleep);
            if look(&self.line) >= number {
                break;
            }
            self.consumer_bell.sleep();
        }
        awake(&self.asleep);
        assert!(self.payload.load(Ordering::Relaxed) >= number * 10);
    }

    fn tell(&self, position: u64) {
        publish(&self.position, position);
        if call(&self.starved).unwrap() {
            self.producer_bell.ring();
        }
    }

    /// Sleeps until the consumer has read so far, as `Sender::wait_for_room` does.
    fn wait_for_room(&self, position: u64) {
        if look(&self.position) >= position {
            return;
        }
        loop {
            doze(&self.starved);
            if look(&self.position) >= position {
                break;
            }
            self.producer_bell.sleep();
        }
        awake(&self.starved);
    }
}

#[test]
fn no_message_sleeps_through() {
    loom::model(|| {
        let lane = Arc::new(Lane::new());
        let producer = {
            let lane = lane.clone();
            thread::spawn(move || {
                lane.send(1);
                lane.send(2);
            })
        };
        lane.wait(1);
        lane.wait(2);
        producer.join().unwrap();
    });
}

#[test]
fn no_room_sleeps_through() {
    loom::model(|| {
        let lane = Arc::new(Lane::new());
        let consumer = {
            let lane = lane.clone();
            thread::spawn(move || {
                lane.tell(1);
                lane.tell(2);
            })
        };
        lane.wait_for_room(1);
        lane.wait_for_room(2);
        consumer.join().unwrap();
    });
}

/// A ring of one line: each end waits for the other in turn.
#[test]
fn two_ends_that_wait_for_each_other_both_go_on() {
    loom::model(|| {
        let lane = Arc::new(Lane::new());
        let consumer = {
            let lane = lane.clone();
            thread::spawn(move || {
                lane.wait(1);
                lane.tell(1);
            })
        };
        lane.send(1);
        lane.wait_for_room(1);
        consumer.join().unwrap();
    });
}

/// A queue that sleeps elsewhere asks for the ring and leaves the flag standing.
#[test]
fn a_ring_that_was_asked_for_comes_though_others_came_before() {
    loom::model(|| {
        let lane = Arc::new(Lane::new());
        let producer = {
            let lane = lane.clone();
            thread::spawn(move || {
                lane.send(1);
                lane.send(2);
            })
        };
        let mut seen = 0;
        while seen < 2 {
            doze(&lane.asleep);
            let found = look(&lane.line);
            if found == seen {
                lane.consumer_bell.sleep();
            }
            seen = found;
        }
        producer.join().unwrap();
    });
}

/// One message against one fall into sleep: the consumer sees the message, or is rung for.
fn one_sees_the_other(producer: fn(&Lane) -> bool, consumer: fn(&Lane) -> bool) {
    loom::model(move || {
        let lane = Arc::new(Lane::new());
        let rings = {
            let lane = lane.clone();
            thread::spawn(move || producer(&lane))
        };
        let sees = consumer(&lane);
        assert!(rings.join().unwrap() || sees, "the consumer sleeps through the message");
    });
}

fn sends(lane: &Lane) -> bool {
    publish(&lane.line, 1);
    call(&lane.asleep).unwrap()
}

fn falls_asleep(lane: &Lane) -> bool {
    doze(&lane.asleep);
    look(&lane.line) == 1
}

#[test]
fn a_message_is_seen_or_rung_for() {
    one_sees_the_other(sends, falls_asleep);
}

#[test]
#[should_panic(expected = "sleeps through")]
fn sleeping_without_a_second_look_would_be_caught() {
    one_sees_the_other(sends, |lane| {
        let sees = look(&lane.line) == 1;
        doze(&lane.asleep);
        sees
    });
}

#[test]
#[should_panic(expected = "sleeps through")]
fn looking_at_the_flag_before_publishing_would_be_caught() {
    one_sees_the_other(
        |lane| {
            let rings = call(&lane.asleep).unwrap();
            publish(&lane.line, 1);
            rings
        },
        falls_asleep,
    );
}

#[test]
#[should_panic(expected = "sleeps through")]
fn a_send_without_the_fence_would_be_caught() {
    one_sees_the_other(
        |lane| {
            publish(&lane.line, 1);
            lane.asleep.load(Ordering::Relaxed) == ASLEEP
        },
        falls_asleep,
    );
}

#[test]
#[should_panic(expected = "sleeps through")]
fn a_sleep_without_the_fence_would_be_caught() {
    one_sees_the_other(sends, |lane| {
        lane.asleep.store(ASLEEP, Ordering::Relaxed);
        look(&lane.line) == 1
    });
}

/// A line is written, read, given back and written again: the two ends never touch it at once.
#[test]
fn a_line_is_not_written_while_it_is_read() {
    loom::model(|| {
        let lane = Arc::new(Lane::new());
        let consumer = {
            let lane = lane.clone();
            thread::spawn(move || {
                if look(&lane.line) == 1 {
                    // SAFETY: published and not yet given back; that is what the model tests.
                    lane.bytes.with(|bytes| assert_eq!(unsafe { *bytes }, 7));
                    publish(&lane.position, 1);
                }
            })
        };
        // SAFETY: not published yet; that is what the model tests.
        lane.bytes.with_mut(|bytes| unsafe { *bytes = 7 });
        publish(&lane.line, 1);
        if look(&lane.position) == 1 {
            // SAFETY: given back; that is what the model tests.
            lane.bytes.with_mut(|bytes| unsafe { *bytes = 8 });
        }
        consumer.join().unwrap();
    });
}

#[test]
#[should_panic]
fn a_line_published_without_its_bytes_would_be_caught() {
    loom::model(|| {
        let lane = Arc::new(Lane::new());
        let consumer = {
            let lane = lane.clone();
            thread::spawn(move || {
                if look(&lane.line) == 1 {
                    assert_eq!(lane.payload.load(Ordering::Relaxed), 10);
                }
            })
        };
        lane.line.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        lane.payload.store(10, Ordering::Relaxed);
        consumer.join().unwrap();
    });
}
