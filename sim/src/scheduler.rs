//! Threads of user code, of which only one runs at a time.
//!
//! The thread that holds the baton runs. A thread that has to wait runs the world itself until a thread's
//! turn comes. It passes the baton to another thread, or goes on without a switch if the turn is its own. The
//! invariant: everything that a thread does between two waits is one step, and the order of the steps comes
//! from the seed alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread::Thread;

use tercel_heap::OneAtATime;
use tercel_lock::unpoison;

use crate::world::World;

/// The fence of the caches in a world, whose readers pay for none of their own, as in production.
#[allow(unsafe_code, reason = "that one thread runs at a time is this file's own invariant")]
pub(crate) fn fence() -> OneAtATime {
    // SAFETY: threads use a world's caches only while they hold the baton, which one gives with a release and
    // the next takes with an acquire (`give`, `await_turn`); before the first turn and after the last there
    // is one thread, which spawns the others and joins them.
    unsafe { OneAtATime::new() }
}

/// A thread of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Actor(pub usize);

/// A world, and the turns of the threads that pass the baton in it.
pub(crate) struct ActorScheduler {
    world: Mutex<World>,
    turns: Vec<ActorTurn>,
}

#[derive(Default)]
struct ActorTurn {
    is_on: AtomicBool,
    thread: OnceLock<Thread>,
}

impl ActorScheduler {
    /// A scheduler with places for so many threads.
    pub(crate) fn new(world: World, actors: usize) -> ActorScheduler {
        ActorScheduler {
            world: Mutex::new(world),
            turns: (0..actors).map(|_| ActorTurn::default()).collect(),
        }
    }

    /// The world, for the thread that holds the baton.
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        unpoison(self.world.lock())
    }

    /// The world, when all is over.
    pub(crate) fn into_world(self) -> World {
        unpoison(self.world.into_inner())
    }

    /// Registers the thread; to be called on the actor's own thread, before its first turn.
    pub(crate) fn register(&self, me: Actor) {
        let _ = self.turns[me.0].thread.set(std::thread::current());
    }

    /// Says whether the actor's thread has come.
    pub(crate) fn is_registered(&self, actor: Actor) -> bool {
        self.turns[actor.0].thread.get().is_some()
    }

    /// Waits for the first turn.
    pub(crate) fn await_turn(&self, me: Actor) {
        while !self.turns[me.0].is_on.swap(false, Ordering::Acquire) {
            std::thread::park();
        }
    }

    /// Lets the world go on until it is this actor's turn again. What it waits for was said to the world
    /// before.
    pub(crate) fn pass(&self, me: Actor) {
        let next = self.world().next_turn();
        if next != me {
            self.give(next);
            self.await_turn(me);
        }
    }

    /// Leaves the scheduler and gives the baton to the next thread.
    pub(crate) fn leave(&self) {
        let next = self.world().next_turn();
        self.give(next);
    }

    /// Waits for so long.
    pub(crate) fn sleep(&self, me: Actor, us: u64) {
        self.world().sleep(me, us);
        self.pass(me);
    }

    fn give(&self, next: Actor) {
        let turn = &self.turns[next.0];
        turn.is_on.store(true, Ordering::Release);
        if let Some(thread) = turn.thread.get() {
            thread.unpark();
        }
    }
}
