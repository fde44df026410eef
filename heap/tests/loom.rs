//! Every interleaving of the races, with the very functions that the cache calls.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tercel-heap --test loom`. Each race is told once in the
//! order that the cache keeps; where an order is what keeps it, a model with another one shows that it would
//! be caught.
#![cfg(loom)]
#![allow(dead_code, reason = "the models do not call every step")]

#[path = "../src/protocol.rs"]
mod protocol;
#[path = "../src/sync.rs"]
mod sync;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;
use protocol::*;

/// A frame with one entry into it.
struct Frame {
    pins: AtomicU32,
    entry: AtomicU32,
    /// The bytes under test: loom reports a read beside a write.
    bytes: UnsafeCell<u32>,
}

impl Frame {
    fn new() -> Frame {
        Frame { pins: AtomicU32::new(0), entry: AtomicU32::new(5), bytes: UnsafeCell::new(50) }
    }

    fn read(&self) {
        let seen = load(&self.entry);
        if seen == 0 || seen & BUSY != 0 || !pin(&self.pins, &self.entry, seen, true) {
            return;
        }
        let expected = if seen == 5 { 50 } else { 60 };
        // SAFETY: pinned, so the writer leaves the frame alone; that is what the model tests.
        self.bytes.with(|b| assert_eq!(unsafe { *b }, expected));
        unpin(&self.pins);
    }

    fn reuse(&self) {
        publish(&self.entry, 0);
        // SAFETY: no reader pins the frame and no entry leads there; that is what the model tests.
        self.bytes.with_mut(|b| unsafe { *b = 60 });
        publish(&self.entry, 6);
    }
}

#[test]
fn a_pinned_frame_is_not_evicted() {
    loom::model(|| {
        let f = Arc::new(Frame::new());
        let reader = {
            let f = f.clone();
            thread::spawn(move || {
                f.read();
                f.read();
            })
        };
        close(&f.entry);
        fence(Ordering::SeqCst);
        if is_pinned(&f.pins) {
            publish(&f.entry, 5);
        } else {
            f.reuse();
        }
        reader.join().unwrap();
    });
}

#[test]
#[should_panic]
fn asking_for_pins_before_closing_would_be_caught() {
    loom::model(|| {
        let f = Arc::new(Frame::new());
        let reader = {
            let f = f.clone();
            thread::spawn(move || f.read())
        };
        if !is_pinned(&f.pins) {
            close(&f.entry);
            fence(Ordering::SeqCst);
            f.reuse();
        }
        reader.join().unwrap();
    });
}

/// A frame that two entries lead into: what a scope holds by the one, it reads by the other.
struct HeldFrame {
    first: Frame,
    second: AtomicU32,
}

impl HeldFrame {
    /// A first touch, which looks at its entry again or does not; then a hit by the other entry, with no pin
    /// and no second look, before the scope ends or after it.
    fn read(&self, looks_again: bool, ends_late: bool) {
        let Frame { pins, entry, bytes } = &self.first;
        let seen = load(entry);
        if seen == 0 || seen & BUSY != 0 {
            return;
        }
        match looks_again {
            true if !pin(pins, entry, seen, true) => return,
            true => {}
            false => pin_again(pins),
        }
        if !ends_late {
            release(pins);
        }
        let seen = load(&self.second);
        if seen != 0 && seen & BUSY == 0 {
            let expected = if seen == 5 { 50 } else { 60 };
            // SAFETY: the scope holds the frame, so the writer leaves it alone; that is what the model tests.
            bytes.with(|b| assert_eq!(unsafe { *b }, expected));
        }
        release(pins);
    }

    fn evict(&self) {
        let Frame { pins, entry, .. } = &self.first;
        close(entry);
        close(&self.second);
        fence(Ordering::SeqCst);
        if is_pinned(pins) {
            publish(&self.second, 5);
            publish(entry, 5);
        } else {
            publish(&self.second, 0);
            self.first.reuse();
            publish(&self.second, 6);
        }
    }
}

fn held(looks_again: bool, ends_late: bool, scopes: usize) {
    loom::model(move || {
        let f = Arc::new(HeldFrame { first: Frame::new(), second: AtomicU32::new(5) });
        let reader = {
            let f = f.clone();
            thread::spawn(move || (0..scopes).for_each(|_| f.read(looks_again, ends_late)))
        };
        f.evict();
        reader.join().unwrap();
    });
}

#[test]
fn held_frame_is_read_without_another_pin() {
    held(true, true, 2);
}

#[test]
#[should_panic]
fn holding_without_a_second_look_would_be_caught() {
    held(false, true, 1);
}

#[test]
#[should_panic]
fn reading_after_the_release_would_be_caught() {
    held(true, false, 1);
}

/// A word that is swizzled while its holder is read, and the entry it then names, which named another object
/// before.
fn swizzle(first: impl Fn(&AtomicU32, &AtomicU32) + Send + Sync + 'static) {
    let first = std::sync::Arc::new(first);
    loom::model(move || {
        // The word is stored (1); the handle led to the place 7 of an object that is gone.
        let shared = Arc::new((AtomicU32::new(1), AtomicU32::new(7)));
        let reader = {
            let s = shared.clone();
            thread::spawn(move || {
                if load(&s.0) == 2 {
                    assert_eq!(load(&s.1), 8, "the handle leads to the object that the word names");
                }
            })
        };
        first(&shared.0, &shared.1);
        reader.join().unwrap();
    });
}

#[test]
fn a_swizzled_word_leads_to_its_object() {
    swizzle(|word, entry| {
        publish(entry, 0);
        publish(entry, 8);
        publish(word, 2);
    });
}

#[test]
#[should_panic]
fn swizzling_before_the_entry_leads_there_would_be_caught() {
    swizzle(|word, entry| {
        publish(entry, 0);
        publish(word, 2);
        publish(entry, 8);
    });
}

/// Two objects that one commit changes, and the way to the second.
struct Pair {
    w: AtomicU64,
    x: AtomicU8,
    y_old: AtomicU8,
    /// 0 leads nowhere, 1 to the old copy of the second, 2 to the new one.
    y_entry: AtomicU32,
}

impl Pair {
    fn new() -> Pair {
        Pair {
            w: AtomicU64::new(0),
            x: AtomicU8::new(VALID),
            y_old: AtomicU8::new(VALID),
            y_entry: AtomicU32::new(1),
        }
    }

    /// A hit at snapshot 0 on the first, then one on the second: which versions were read.
    fn read(&self) {
        if !usable(&self.x) || !unmoved(&self.w, 0) {
            return;
        }
        let copy = load(&self.y_entry);
        if copy == 0 || (copy == 1 && !usable(&self.y_old)) {
            return;
        }
        if unmoved(&self.w, 0) {
            assert_eq!(copy, 1, "the first as it was before the commit, the second as it was after");
        }
    }

    /// As [`Pair::read`], but on a changed watermark the first is tested again and the watermark adopted.
    fn read_rechecking(&self, watermark_first: bool) {
        if !usable(&self.x) || !unmoved(&self.w, 0) {
            return;
        }
        let copy = load(&self.y_entry);
        if copy == 1 && !usable(&self.y_old) {
            return;
        }
        let before = watermark(&self.w);
        let still = usable(&self.x);
        let snapshot = if watermark_first { before } else { watermark(&self.w) };
        if still && unmoved(&self.w, snapshot) {
            assert!(copy == 1 && snapshot == 0, "obsolete, and taken for current");
        }
    }
}

fn pair(writer: fn(&Pair), reader: fn(&Pair)) {
    loom::model(move || {
        let p = Arc::new(Pair::new());
        let thread = {
            let p = p.clone();
            thread::spawn(move || reader(&p))
        };
        writer(&p);
        thread.join().unwrap();
    });
}

fn flag_advance_install(p: &Pair) {
    set_flag(&p.x, INVALID);
    set_flag(&p.y_old, INVALID);
    advance(&p.w, 1);
    publish(&p.y_entry, 2);
}

#[test]
fn a_hit_sees_no_mixture_while_a_commit_is_applied() {
    pair(flag_advance_install, Pair::read);
}

#[test]
#[should_panic]
fn installing_before_the_watermark_would_be_caught() {
    pair(
        |p| {
            set_flag(&p.x, INVALID);
            publish(&p.y_entry, 2);
            set_flag(&p.y_old, INVALID);
            advance(&p.w, 1);
        },
        Pair::read,
    );
}

#[test]
fn a_fetched_page_is_not_read_beside_what_it_outdates() {
    pair(
        |p| {
            // The second was not cached at all: its page arrives with the commit in it.
            publish(&p.y_entry, 0);
            set_flag(&p.x, INVALID);
            advance(&p.w, 1);
            publish(&p.y_entry, 2);
        },
        Pair::read,
    );
}

#[test]
fn a_recheck_adopts_only_what_it_has_tested() {
    pair(flag_advance_install, |p| p.read_rechecking(true));
}

#[test]
#[should_panic]
fn a_watermark_that_runs_ahead_of_its_flags_would_be_caught() {
    pair(
        |p| {
            advance(&p.w, 1);
            set_flag(&p.x, INVALID);
            set_flag(&p.y_old, INVALID);
        },
        |p| p.read_rechecking(true),
    );
}

#[test]
#[should_panic]
fn adopting_a_watermark_loaded_after_the_test_would_be_caught() {
    pair(flag_advance_install, |p| p.read_rechecking(false));
}
