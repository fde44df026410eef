//! Every interleaving of the races between threads that share a connection, and tasks that wait for it, with
//! the very functions that they call.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tercel-lock --test loom`. Each race is told once in the
//! order that the threads keep; a model with another one shows that it would be caught. A thread that sleeps
//! and is never woken is what loom calls a deadlock: no wait of a model ends by its time.
#![cfg(loom)]
#![allow(dead_code, reason = "the models do not call every function")]

#[path = "../src/baton.rs"]
mod baton;
#[path = "../src/sync.rs"]
mod sync;
#[path = "../src/tasks.rs"]
mod tasks;

use std::sync::LockResult;
use std::task::{Wake, Waker};
use std::time::Duration;

use baton::{Sent, Threads};
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use tasks::{Tasks, Turns};

fn unpoison<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The state: answers that have come, by their callers, and messages that are posted.
#[derive(Default)]
struct State {
    came: [bool; 2],
    posted: u32,
}

/// The threads of a client, and its connection: the reader has the number of answers that it has read, the
/// sender the messages that it was given and those that it has sent.
struct Client {
    threads: Threads<State, usize, (u32, u32)>,
    tasks: Tasks,
    /// Ends a sleep of the resident thread, also one that has yet to begin.
    bell: Mutex<bool>,
    steps: AtomicU64,
}

impl Client {
    fn new() -> Arc<Client> {
        let threads = Threads::new(State::default(), 0, (0, 0));
        let tasks = Tasks::default();
        Arc::new(Client { threads, tasks, bell: Mutex::new(false), steps: AtomicU64::new(0) })
    }

    /// Reads the next answer. They are there, in the order of their callers.
    fn read(&self, read: &mut usize) {
        let mut state = self.threads.state();
        if let Some(came) = state.came.get_mut(*read) {
            (*came, *read) = (true, *read + 1);
            self.threads.happen(&state);
        }
    }

    /// Waits for an answer, as `Shared::drive_until_done` does.
    fn call(&self, caller: usize) {
        loop {
            let seen = {
                let state = self.threads.state();
                if state.came[caller] {
                    return;
                }
                self.threads.happened()
            };
            self.threads.wait((seen, Duration::MAX), true, |read| self.read(read), || self.ring());
        }
    }

    fn ring(&self) {
        *self.bell.lock().unwrap() = true;
    }

    /// Sleeps with the baton. Loom cannot end a model whose threads are stuck with a lock, so a sleep fails
    /// where all other threads have ended or sleep themselves.
    fn sleep(&self) {
        for _ in 0..2 {
            if *self.bell.lock().unwrap() {
                return;
            }
            thread::yield_now();
        }
        assert!(*self.bell.lock().unwrap(), "the driver is never woken");
    }

    fn post(&self) {
        self.threads.state().posted += 1;
    }

    /// Does nothing, in any order with those of other threads: loom takes no other turn while a lock is held
    /// between whose ends nothing is shared.
    fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Sends what is posted, as `Shared::flush` does.
    fn send(&self, times_max: u32) -> Sent {
        let take = |state: &mut sync::MutexGuard<'_, State>, out: &mut (u32, u32)| {
            out.0 = std::mem::take(&mut state.posted);
        };
        let is_posted = |state: &mut State| state.posted > 0;
        self.threads.send(self.threads.state(), times_max, is_posted, take, |out| out.1 += out.0)
    }

    fn sent(&self) -> u32 {
        self.threads.try_send().unwrap().1
    }
}

/// Runs two threads in every interleaving, and behind them `end`.
fn model(one: fn(&Client), other: fn(&Client), end: fn(&Client)) {
    loom::model(move || {
        let client = Client::new();
        let beside = client.clone();
        let beside = thread::spawn(move || one(&beside));
        other(&client);
        beside.join().unwrap();
        end(&client);
    });
}

#[test]
fn each_caller_gets_its_answer() {
    model(|client| client.call(0), |client| client.call(1), |_| {});
}

/// Lets go of the baton by its bare lock, with `look` before that.
fn read_and_let_go(client: &Client, look: fn(&Client) -> bool) {
    if let Ok(baton) = client.threads.baton.try_lock() {
        let is_waited_for = look(client);
        drop(baton);
        if is_waited_for {
            client.threads.happen(&client.threads.state());
        }
    }
}

/// Reads without waiting, as `Shared::look` does, and finds nothing.
fn look(client: &Client) {
    let baton = client.threads.take_baton();
    client.step();
    client.threads.waiting();
    drop(baton);
}

#[test]
fn thread_that_reads_for_itself_hands_over() {
    model(look, |client| client.call(0), |_| {});
}

#[test]
#[should_panic]
fn hand_over_without_a_look_would_be_caught() {
    let read = |client: &Client| read_and_let_go(client, |client| client.threads.waiting() > 9);
    model(read, |client| client.call(0), |_| {});
}

#[test]
#[should_panic]
fn look_before_the_hand_over_would_be_caught() {
    model(
        |client| read_and_let_go(client, |client| client.threads.waiting() > 0),
        |client| client.call(0),
        |_| {},
    );
}

/// Waits as `Threads::wait` does, in another order.
#[test]
#[should_panic]
fn wait_that_is_counted_late_would_be_caught() {
    let call = |client: &Client| {
        let seen = client.threads.happened();
        client.step();
        if let Some(mut baton) = client.threads.take_baton() {
            return client.read(&mut baton);
        }
        client.threads.waiting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Where it would sleep.
        for _ in 0..2 {
            drop(client.threads.state());
            if client.threads.happened() != seen {
                return;
            }
            thread::yield_now();
        }
        panic!("it is never woken");
    };
    model(look, call, |_| {});
}

/// Sleeps on the connection once, as the driver does.
fn doze(client: &Client) {
    client.threads.doze(|state| state.posted == 0 && !state.came[0], |_| client.sleep());
}

#[test]
fn dozing_driver_gives_the_baton_to_a_caller() {
    model(doze, |client| client.call(0), |_| {});
}

/// Sleeps as `Threads::doze` does, without the mark before the look.
#[test]
#[should_panic]
fn driver_that_marks_late_would_be_caught() {
    let doze = |client: &Client| {
        let Ok(baton) = client.threads.baton.try_lock() else { return };
        if client.threads.waiting() == 0 {
            client.threads.is_dozing.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            client.sleep();
        }
        client.threads.is_dozing.store(false, Ordering::Relaxed);
        drop(baton);
        client.threads.happen(&client.threads.state());
    };
    model(doze, |client| client.call(0), |_| {});
}

#[test]
fn message_left_unsent_wakes_the_driver() {
    let leave = |client: &Client| {
        client.post();
        if client.threads.must_wake() {
            client.ring();
        }
    };
    model(leave, doze, |_| {});
}

#[test]
#[should_panic]
fn message_posted_after_the_look_would_be_caught() {
    let leave = |client: &Client| {
        let must_wake = client.threads.must_wake();
        client.post();
        if must_wake {
            client.ring();
        }
    };
    model(leave, doze, |_| {});
}

fn post_and_send(client: &Client) {
    client.post();
    client.send(2);
}

#[test]
fn message_posted_beside_a_send_is_sent() {
    model(post_and_send, post_and_send, |client| {
        assert_eq!(client.sent(), 2);
        assert!(!client.threads.is_sending());
    });
}

#[test]
fn send_with_more_posted_says_so() {
    let one = |client: &Client| {
        client.post();
        // The driver goes on where others have posted more.
        while client.send(1) == Sent::Some {}
    };
    model(one, one, |client| assert_eq!(client.sent(), 2));
}

#[test]
#[should_panic]
fn right_that_outlasts_the_state_would_be_caught() {
    let send = |client: &Client| {
        client.post();
        client.step();
        let Some(mut out) = client.threads.try_send() else { return };
        loop {
            let posted = std::mem::take(&mut client.threads.state().posted);
            out.1 += posted;
            // The state is let go of, and the right yet to be.
            client.step();
            if posted == 0 {
                return;
            }
        }
    };
    model(send, send, |client| assert_eq!(client.sent(), 2));
}

#[test]
fn message_follows_those_its_thread_has_left() {
    let passes = |client: &Client| {
        client.post();
        let sent = client.send(2);
        // A line may go now only if nothing of this thread is to be sent before it.
        if sent == Sent::ByOther && !client.threads.is_sending() {
            assert_eq!(client.threads.state().posted, 0);
        }
    };
    model(post_and_send, passes, |_| {});
}

/// A task's waker, and its thread's sleep until it is called.
#[derive(Default)]
struct Woken(Mutex<bool>, Condvar);

impl Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }
}

impl Woken {
    fn sleep(&self) {
        let mut is_woken = self.0.lock().unwrap();
        while !std::mem::take(&mut *is_woken) {
            is_woken = self.1.wait(is_woken).unwrap();
        }
    }
}

/// Takes in an answer, as `Shared::happen` does.
fn arrive(client: &Client) {
    let mut state = client.threads.state();
    state.came[0] = true;
    client.threads.happen(&state);
    client.tasks.take_happened(None).wake();
}

/// Polls until the answer is here; `register` keeps the waker, with the state's lock or without.
fn poll(client: &Client, register: impl Fn(sync::MutexGuard<'_, State>, &Waker)) {
    let woken = std::sync::Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    loop {
        let state = client.threads.state();
        if state.came[0] {
            return;
        }
        register(state, &waker);
        woken.sleep();
    }
}

#[test]
fn task_is_woken_by_what_it_waits_for() {
    let wait = |client: &Client| {
        poll(client, |state, waker| {
            client.tasks.wait(waker, u64::MAX);
            drop(state);
        });
    };
    model(arrive, wait, |_| {});
}

#[test]
#[should_panic(expected = "deadlock")]
fn waker_kept_behind_the_lock_would_be_caught() {
    let wait = |client: &Client| {
        poll(client, |state, waker| {
            drop(state);
            client.tasks.wait(waker, u64::MAX);
        });
    };
    model(arrive, wait, |_| {});
}

/// Sleeps as the driver does, unless a task's time comes first.
fn doze_until_due(client: &Client) {
    client.threads.doze(
        |_| true,
        |_| {
            if client.tasks.wake_due(0) == Duration::MAX {
                client.sleep();
            }
        },
    );
}

/// Has a task paused, as `Shared::pause_task` does; `see` says whether the driver is seen to sleep.
fn pause(client: &Client, see: impl Fn() -> bool) {
    let waker = Waker::from(std::sync::Arc::new(Woken::default()));
    client.tasks.pause(&waker, 9);
    if see() {
        client.ring();
    }
}

#[test]
fn pause_ends_a_longer_sleep_of_the_driver() {
    let pause = |client: &Client| {
        pause(client, || {
            fence(Ordering::SeqCst);
            client.threads.must_wake()
        });
    };
    model(pause, doze_until_due, |_| {});
}

#[test]
#[should_panic]
fn pause_without_a_fence_would_be_caught() {
    let pause = |client: &Client| pause(client, || client.threads.must_wake());
    model(pause, doze_until_due, |_| {});
}

#[test]
fn turn_that_comes_beside_a_look_wakes() {
    loom::model(|| {
        let turns = Arc::new(Turns::default());
        let beside = turns.clone();
        let first = turns.enter(7);
        let other = thread::spawn(move || {
            let woken = std::sync::Arc::new(Woken::default());
            let waker = Waker::from(woken.clone());
            let turn = beside.enter(7);
            while !turn.is_here(&waker) {
                woken.sleep();
            }
        });
        drop(first);
        other.join().unwrap();
    });
}
