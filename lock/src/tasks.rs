//! Tasks of asynchronous runtimes that wait for something of a client, or for their turn.
//!
//! A task never blocks its thread. What it lacks is asked for, its waker is kept here, and whichever thread
//! takes in what arrives wakes it; while no thread waits, that is the resident thread. No runtime is known
//! here, only `std::task`: pauses and ends are kept by the client's own clock.
//!
//! The invariant: a waker for something that is to come is kept under the lock of the state in which it was
//! found missing, so nothing can come between the look and the wait. Wakers are taken under that lock, and
//! woken behind it: a waker may own its task, which is dropped with it and uses the client once more.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering};
use crate::unpoison;

/// Tasks that a new one is looked for among: thousands may wait at once.
const LOOKED_AT: usize = 32;

/// The tasks that wait. Times are microseconds of the client's clock.
#[derive(Default)]
pub struct Tasks {
    waiting: Mutex<AllWaiting>,
    /// The number of waiting tasks, so that nobody takes the lock for nothing.
    count: AtomicUsize,
}

#[derive(Default)]
struct AllWaiting {
    /// Tasks that wait for anything, or for a time.
    others: Vec<Waiting>,
    /// By watch, the task that waits for its news.
    watching: HashMap<u64, Waiting>,
}

impl AllWaiting {
    fn len(&self) -> usize {
        self.others.len() + self.watching.len()
    }
}

struct Waiting {
    waker: Waker,
    /// When it is woken if nothing has come, in microseconds of the client's clock.
    due_us: u64,
    /// Nothing but the time wakes it.
    is_pause: bool,
}

impl Tasks {
    /// Has a task woken by whatever happens next, or at this moment.
    pub fn wait(&self, waker: &Waker, due_us: u64) {
        self.keep(Waiting { waker: waker.clone(), due_us, is_pause: false });
    }

    /// Has a task woken by news of a watch, or at this moment. A watch has one task that waits: the waker of
    /// the one before is given, to be dropped behind the lock of the state. It may own its task.
    #[must_use = "it is dropped behind the lock of the state"]
    pub fn wait_for_news(&self, watch: u64, waker: &Waker, due_us: u64) -> Option<Waker> {
        let new = Waiting { waker: waker.clone(), due_us, is_pause: false };
        let mut waiting = unpoison(self.waiting.lock());
        let old = waiting.watching.insert(watch, new);
        self.count.store(waiting.len(), Ordering::Release);
        old.map(|old| old.waker)
    }

    /// Has nobody woken by news of a watch any more.
    pub fn leave_watch(&self, watch: u64) {
        let mut waiting = unpoison(self.waiting.lock());
        let old = waiting.watching.remove(&watch);
        self.count.store(waiting.len(), Ordering::Release);
        drop(waiting);
        drop(old);
    }

    /// Has a task woken at this moment.
    pub fn pause(&self, waker: &Waker, due_us: u64) {
        self.keep(Waiting { waker: waker.clone(), due_us, is_pause: true });
    }

    fn keep(&self, new: Waiting) {
        let mut waiting = unpoison(self.waiting.lock());
        // One that is not found among the last is woken once more, for nothing.
        match waiting.others.iter_mut().rev().take(LOOKED_AT).find(|known| known.waker.will_wake(&new.waker))
        {
            // A task that waits for two things is woken by the first.
            Some(known) => {
                known.due_us = known.due_us.min(new.due_us);
                known.is_pause &= new.is_pause;
            }
            None => waiting.others.push(new),
        }
        self.count.store(waiting.len(), Ordering::Release);
    }

    /// Takes the tasks that something may have come for, which are to be woken: all that wait for anything,
    /// and those of the watches that have news; without a list, of all watches.
    pub fn take_happened(&self, news: Option<&[u64]>) -> Wakes {
        if self.count.load(Ordering::Acquire) == 0 {
            return Wakes::default();
        }
        let mut waiting = unpoison(self.waiting.lock());
        let AllWaiting { others, watching } = &mut *waiting;
        let mut taken: Vec<Waiting> = others.extract_if(.., |waiting| !waiting.is_pause).collect();
        match news {
            Some(news) => taken.extend(news.iter().filter_map(|watch| watching.remove(watch))),
            None => taken.extend(watching.drain().map(|(_, waiting)| waiting)),
        }
        self.count.store(waiting.len(), Ordering::Release);
        Wakes(taken)
    }

    /// Wakes the tasks whose time has come, and gives the time until the next one's.
    pub fn wake_due(&self, now_us: u64) -> Duration {
        if self.count.load(Ordering::Acquire) == 0 {
            return Duration::MAX;
        }
        self.take_due(now_us).wake();
        let next = {
            let waiting = unpoison(self.waiting.lock());
            waiting.others.iter().chain(waiting.watching.values()).map(|waiting| waiting.due_us).min()
        };
        next.map_or(Duration::MAX, |due_us| Duration::from_micros(due_us.saturating_sub(now_us)))
    }

    fn take_due(&self, now_us: u64) -> Wakes {
        let mut waiting = unpoison(self.waiting.lock());
        let AllWaiting { others, watching } = &mut *waiting;
        let mut taken: Vec<Waiting> = others.extract_if(.., |waiting| waiting.due_us <= now_us).collect();
        taken.extend(watching.extract_if(|_, waiting| waiting.due_us <= now_us).map(|(_, waiting)| waiting));
        self.count.store(waiting.len(), Ordering::Release);
        Wakes(taken)
    }
}

/// Tasks that are to be woken.
#[must_use = "a task that is not woken waits for ever"]
#[derive(Default)]
pub struct Wakes(Vec<Waiting>);

impl Wakes {
    /// Says whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Wakes them.
    pub fn wake(self) {
        self.0.into_iter().for_each(|waiting| wake(waiting.waker));
    }
}

/// Wakes a task. A waker that panics has told so, and ends none of the threads that wake.
fn wake(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}

/// The queues of runs that others were in the way of: by object, the longest waiting first. Runs that lose
/// over one object again and again would otherwise undo each other's work; one after the other, each commits.
pub struct Turns<K> {
    queues: Mutex<HashMap<K, VecDeque<Arc<Ticket>>>>,
}

/// The place of a run in a queue.
#[derive(Default)]
struct Ticket {
    waker: Mutex<Option<Waker>>,
    is_first: AtomicBool,
}

/// A place in a queue, until it is dropped.
pub struct Turn<'a, K: Copy + Eq + Hash> {
    turns: &'a Turns<K>,
    object: K,
    ticket: Arc<Ticket>,
    place: usize,
}

impl<K> Default for Turns<K> {
    fn default() -> Turns<K> {
        Turns { queues: Mutex::new(HashMap::new()) }
    }
}

impl<K: Copy + Eq + Hash> Turns<K> {
    /// Takes the last place in the queue of an object.
    pub fn enter(&self, object: K) -> Turn<'_, K> {
        let ticket = Arc::new(Ticket::default());
        let mut queues = unpoison(self.queues.lock());
        let queue = queues.entry(object).or_default();
        queue.push_back(ticket.clone());
        ticket.is_first.store(queue.len() == 1, Ordering::Release);
        Turn { turns: self, object, ticket, place: queue.len() }
    }
}

impl<K: Copy + Eq + Hash> Turn<'_, K> {
    /// The object that the queue is of.
    pub fn object(&self) -> K {
        self.object
    }

    /// The place in the queue when it was entered, from 1 on.
    pub fn place(&self) -> usize {
        self.place
    }

    /// Says whether it is this run's turn; else has the task woken when it is.
    pub fn is_here(&self, waker: &Waker) -> bool {
        // The waker is there before the look, so a turn that comes between wakes it.
        *unpoison(self.ticket.waker.lock()) = Some(waker.clone());
        self.ticket.is_first.load(Ordering::Acquire)
    }
}

impl<K: Copy + Eq + Hash> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        let mut queues = unpoison(self.turns.queues.lock());
        let Some(queue) = queues.get_mut(&self.object) else { return };
        queue.retain(|ticket| !Arc::ptr_eq(ticket, &self.ticket));
        let next = queue.front().cloned();
        if next.is_none() {
            queues.remove(&self.object);
        }
        drop(queues);
        let Some(next) = next else { return };
        next.is_first.store(true, Ordering::Release);
        let waker = unpoison(next.waker.lock()).take();
        waker.into_iter().for_each(wake);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn wakers<const N: usize>() -> [(Arc<Woken>, Waker); N] {
        std::array::from_fn(|_| {
            let woken = Arc::new(Woken::default());
            (woken.clone(), woken.into())
        })
    }

    #[test]
    fn pauses_end_by_the_time_alone() {
        let (tasks, [(one, waits), (other, pauses)]) = (Tasks::default(), wakers());
        tasks.wait(&waits, 500);
        tasks.wait(&waits, 400);
        tasks.pause(&pauses, 300);
        tasks.take_happened(Some(&[])).wake();
        assert_eq!((one.0.load(Ordering::SeqCst), other.0.load(Ordering::SeqCst)), (1, 0));
        assert_eq!(tasks.wake_due(299), Duration::from_micros(1));
        tasks.wait(&waits, 400);
        assert_eq!(tasks.wake_due(300), Duration::from_micros(100));
        assert_eq!(tasks.wake_due(400), Duration::MAX);
        assert_eq!((one.0.load(Ordering::SeqCst), other.0.load(Ordering::SeqCst)), (2, 1));
    }

    /// A waker that panics, as one of a careless executor.
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker's own fault");
        }
    }

    #[test]
    fn waker_that_panics_keeps_no_other_from_waking() {
        let (tasks, [(woken, waker)]) = (Tasks::default(), wakers());
        tasks.wait(&Waker::from(Arc::new(Panics)), 100);
        tasks.wait(&waker, 100);
        tasks.take_happened(Some(&[])).wake();
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn task_of_two_waits_wakes_first() {
        let (tasks, [(woken, waker)]) = (Tasks::default(), wakers());
        tasks.wait(&waker, 100);
        tasks.pause(&waker, 900);
        assert_eq!(tasks.wake_due(50), Duration::from_micros(50));
        tasks.take_happened(Some(&[])).wake();
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        tasks.pause(&waker, 900);
        tasks.wait(&waker, 2_000);
        tasks.wake_due(900);
        assert_eq!(woken.0.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn watching_task_is_woken_by_its_own_news() {
        let (tasks, [(one, a), (other, b), (third, c)]) = (Tasks::default(), wakers());
        for (watch, waker, due_us) in [(1, &a, 500), (2, &b, 400), (3, &c, 900)] {
            assert!(tasks.wait_for_news(watch, waker, due_us).is_none());
        }
        let woken = || [&one, &other, &third].map(|woken| woken.0.load(Ordering::SeqCst));
        tasks.take_happened(Some(&[])).wake();
        assert_eq!(woken(), [0, 0, 0]);
        tasks.take_happened(Some(&[1, 7])).wake();
        assert_eq!(woken(), [1, 0, 0]);
        assert_eq!(tasks.wake_due(400), Duration::from_micros(500));
        assert_eq!(woken(), [1, 1, 0]);
        // No news can come any more.
        tasks.take_happened(None).wake();
        assert_eq!(woken(), [1, 1, 1]);
        assert!(tasks.wait_for_news(1, &a, 500).is_none());
        assert!(tasks.wait_for_news(1, &b, 500).is_some_and(|old| old.will_wake(&a)));
        tasks.leave_watch(1);
        assert_eq!(tasks.wake_due(1_000), Duration::MAX);
        assert_eq!(woken(), [1, 1, 1]);
    }

    #[test]
    fn turns_come_in_the_order_of_their_queue() {
        let (turns, [(_, a), (second, b), (third, c)]) = (Turns::default(), wakers());
        let [first, next, last] = [(); 3].map(|()| turns.enter(7));
        assert!(first.is_here(&a) && !next.is_here(&b) && !last.is_here(&c));
        // One that gives up in the middle holds up nobody.
        drop(next);
        drop(first);
        assert!(last.is_here(&c));
        assert_eq!((second.0.load(Ordering::SeqCst), third.0.load(Ordering::SeqCst)), (0, 1));
        drop(last);
        assert!(unpoison(turns.queues.lock()).is_empty());
    }
}
