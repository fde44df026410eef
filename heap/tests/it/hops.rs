//! The cost of a hot hop, beside a plain pointer. Measured, not asserted:
//! `cargo test --release -p tercel-heap --test it hops:: -- --ignored --nocapture`

use crate::common::*;
use std::cell::Cell;
use std::hint::black_box;
use std::time::Instant;
use tercel_heap::*;
use tercel_machine::random::Random;
use tercel_wire::id::Oref;
use tercel_wire::layout::Var;

struct Membarrier;

// SAFETY: the expedited private command is a full barrier on every running thread of the process.
unsafe impl Fence for Membarrier {
    fn heavy(&self) {
        use rustix::thread::{MembarrierCommand, membarrier};
        membarrier(MembarrierCommand::PrivateExpedited).expect("registered at the start");
    }

    fn is_process_wide(&self) -> bool {
        true
    }
}

/// A ring through `pages` pages of `slots` objects, in a random order of places.
fn ring(pages: u32, slots: u16) -> (World, Vec<Oref>) {
    use rustix::thread::{MembarrierCommand, membarrier};
    membarrier(MembarrierCommand::RegisterPrivateExpedited).expect("the system has a process-wide fence");
    let config = Config { budget_bytes: 64 << 20, ..Config::default() };
    let memory = Boxed::new(arena_bytes(&config).unwrap());
    let (reader, mut writer) = heap(config, Box::new(memory), Box::new(Membarrier)).unwrap();
    defined(&mut writer);
    let mut w = World { server: Server::default(), reader, writer, fetches: vec![], verify_each: false };
    let mut all: Vec<Oref> = (1..=pages).flat_map(|p| (0..slots).map(move |s| oref(p, s))).collect();
    let mut rng = Random::new(1);
    for i in (1..all.len()).rev() {
        all.swap(i, rng.below(i as u64 + 1) as usize);
    }
    for i in 0..all.len() {
        w.server.put(all[i], Kept::Plain, Node::new(i as u64, "", all[(i + 1) % all.len()], &[]));
    }
    (w, all)
}

fn hops(name: &str, pages: u32, slots: u16) {
    let (mut w, all) = ring(pages, slots);
    let scope = w.reader.scope().unwrap();
    let mut v = w.get(&scope, all[0]).unwrap();
    for _ in 0..2 * all.len() {
        v = w.follow(&scope, &v, NEXT).unwrap().unwrap();
    }
    let n = 4_000_000;
    let ours = best(|| {
        let mut sum = 0u64;
        for _ in 0..n {
            let Lookup::Hit(next) = scope.follow::<Node>(&v, NEXT) else { panic!("every hop is hot") };
            sum += next.fixed::<u64>(ID);
            v = next;
        }
        black_box(sum);
    });
    let native = native(all.len(), n);
    println!(
        "{name:24} {:6.2} ns a hop, native {:5.2}, more {:5.2}",
        ours / n as f64,
        native / n as f64,
        (ours - native) / n as f64
    );
}

struct Plain {
    id: u64,
    next: Cell<Option<&'static Plain>>,
}

fn native(len: usize, n: usize) -> f64 {
    let nodes: Vec<Plain> = (0..len).map(|i| Plain { id: i as u64, next: Cell::new(None) }).collect();
    // Leaked, so that plain references can lead around.
    let nodes: &'static [Plain] = nodes.leak();
    let mut order: Vec<usize> = (0..len).collect();
    let mut rng = Random::new(1);
    for i in (1..len).rev() {
        order.swap(i, rng.below(i as u64 + 1) as usize);
    }
    for i in 0..len {
        nodes[order[i]].next.set(Some(&nodes[order[(i + 1) % len]]));
    }
    let mut at = &nodes[0];
    best(|| {
        let mut sum = 0u64;
        for _ in 0..n {
            sum += at.id;
            at = black_box(at).next.get().expect("the ring leads on for ever");
        }
        black_box(sum);
    })
}

/// Nanoseconds, the least of seven runs.
fn best(mut f: impl FnMut()) -> f64 {
    (0..7)
        .map(|_| {
            let t = Instant::now();
            f();
            t.elapsed().as_nanos() as f64
        })
        .fold(f64::MAX, f64::min)
}

/// Measures a traversal of parts: each has three connections, which stand after it and lead to parts of its
/// page or, where `far`, of the next one too.
fn parts(name: &str, pages: u32, far: bool) {
    const PARTS: u32 = 20;
    let (mut w, _) = ring(1, 1);
    let total = pages * PARTS;
    let part = |n: u32| oref(2 + n / PARTS, (n % PARTS * 4) as u16);
    let mut rng = Random::new(2);
    for n in 0..total {
        let page = n / PARTS;
        let ends = (1..4).map(|i| {
            let target = match i {
                1 => page * PARTS + (n + 1) % PARTS,
                _ => page * PARTS + rng.below(u64::from(PARTS)) as u32,
            };
            if far && i == 3 { (target + PARTS) % total } else { target }
        });
        let ends: Vec<u32> = ends.collect();
        let connection = |i: usize| oref(2 + page, (n % PARTS * 4) as u16 + 1 + i as u16);
        for (i, &end) in ends.iter().enumerate() {
            w.server.put(connection(i), Kept::Plain, Node::new(0, "", part(end), &[]));
        }
        let connections: Vec<Oref> = (0..3).map(connection).collect();
        w.server.put(part(n), Kept::Plain, Node::new(u64::from(n), "", Oref::NULL, &connections));
    }
    let scope = w.reader.scope().unwrap();
    let all: Vec<View<'_, Node>> = (0..total).map(|n| w.get(&scope, part(n)).unwrap()).collect();
    for part in &all {
        for i in 0..3 {
            let Var::Here { at, .. } = part.var(KIDS) else { panic!("a short list") };
            let connection = w.follow(&scope, part, at + 4 * i).unwrap().unwrap();
            w.follow(&scope, &connection, NEXT).unwrap().unwrap();
        }
    }
    let visits = best(|| {
        let mut sum = 0u64;
        for part in &all {
            let mut items = part.items(KIDS);
            while let Some(step) = items.follow::<Node>() {
                let Lookup::Hit(connection) = step else { panic!("every hop is hot") };
                let Lookup::Hit(end) = scope.follow::<Node>(&connection, NEXT) else {
                    panic!("every hop is hot")
                };
                sum += end.fixed::<u64>(ID);
            }
        }
        black_box(sum);
    });
    println!("{name:24} {:6.2} ns a part of three connections", visits / f64::from(total));
}

#[test]
fn a_ring_leads_around_through_frames_and_through_handles() {
    for (pages, slots) in [(1, 64), (64, 1), (8, 8)] {
        let (mut w, all) = ring(pages, slots);
        let scope = w.reader.scope().unwrap();
        let mut v = w.get(&scope, all[0]).unwrap();
        for _ in 0..all.len() {
            v = w.follow(&scope, &v, NEXT).unwrap().unwrap();
        }
        for i in 0..all.len() {
            assert_eq!(v.fixed::<u64>(ID), i as u64);
            let Lookup::Hit(next) = scope.follow::<Node>(&v, NEXT) else { panic!("every hop is hot") };
            v = next;
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn a_hop_beside_a_pointer() {
    hops("same frame, 64 objects", 1, 64);
    hops("handles, 64 pages", 64, 1);
    hops("mostly handles, 4,000", 100, 40);
    parts("parts, same frame", 40, false);
    parts("parts, every sixth far", 40, true);
}
