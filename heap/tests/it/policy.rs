//! Replacement: the whole-page policy against an exact simulator, and the hybrid one against the whole-page
//! one.

use crate::common::*;
use tercel_heap::*;
use tercel_machine::random::Random;
use tercel_wire::id::{Oref, PageId, Stamp};
use tercel_wire::layout::Var;

/// Page accesses of a cache of `frames` pages that forgets the least recently used one.
fn simulate(trace: &[PageId], frames: usize) -> usize {
    let mut cached: Vec<PageId> = vec![];
    let mut fetches = 0;
    for page in trace {
        match cached.iter().position(|p| p == page) {
            Some(i) => {
                cached.remove(i);
            }
            None => {
                fetches += 1;
                if cached.len() == frames {
                    cached.remove(0);
                }
            }
        }
        cached.push(*page);
    }
    fetches
}

fn world(policy: Policy, pages: u32, slots: u16, charge_table: bool) -> World {
    let mut w = World::new(Config { budget_bytes: 64 * 8192, policy, charge_table, scopes_max: 2 });
    let mut rng = Random::new(5);
    for p in 1..=pages {
        for s in 0..slots {
            let far = oref(1 + rng.below(pages as u64) as u32, rng.below(slots as u64) as u16);
            let near = oref(p, (s + 1) % slots);
            w.server.put(oref(p, s), Kept::Plain, Node::new(0, "", far, &[near, far]));
        }
    }
    w
}

#[test]
fn whole_pages_are_forgotten_exactly_as_a_simulator_does() {
    for seed in 1..6 {
        let mut w = world(Policy::Lru, 200, 8, false);
        w.writer.trace(true);
        let mut rng = Random::new(seed);
        let frames = w.writer.stats().frames as usize;
        let mut scope = w.reader.scope().unwrap();
        for _ in 0..300 {
            {
                let mut at = oref(1 + (rng.below(14) * rng.below(14)) as u32, rng.below(8) as u16);
                for _ in 0..rng.below(12) {
                    // No view is kept over a miss: what pins protect, the simulator does not know.
                    let v = w.get(&scope, at).unwrap();
                    let Var::Here { at: kids, .. } = v.var(KIDS) else { panic!() };
                    let step = if rng.below(3) == 0 { NEXT } else { kids };
                    at = match scope.follow::<Node>(&v, step) {
                        Lookup::Hit(next) => next.oref(),
                        _ => v.word(step).0,
                    };
                }
            }
            scope.reset();
        }
        let trace = w.writer.trace(false);
        assert!(trace.len() > 1000);
        assert_eq!(w.fetches.len(), simulate(&trace, frames), "seed {seed}, {frames} frames");
        w.writer.verify().unwrap();
    }
}

/// Walks a badly clustered set again and again: on each page one object in twenty is used.
fn badly_clustered(policy: Policy, charge_table: bool) -> usize {
    let mut w = world(policy, 300, 20, charge_table);
    let mut rng = Random::new(9);
    let hot: Vec<Oref> = (1..=300).map(|p| oref(p, rng.below(20) as u16)).collect();
    let mut scope = w.reader.scope().unwrap();
    for round in 0..12 {
        if round == 6 {
            w.fetches.clear();
        }
        for _ in 0..300 {
            let o = *rng.pick(&hot);
            w.get(&scope, o).unwrap();
        }
        scope.reset();
    }
    w.writer.verify().unwrap();
    w.fetches.len()
}

#[test]
fn hac_keeps_used_objects_of_badly_clustered_pages() {
    let whole = badly_clustered(Policy::Lru, false);
    let hybrid = badly_clustered(Policy::Hac(HacParams::default()), false);
    let charged = badly_clustered(Policy::Hac(HacParams::default()), true);
    assert!(whole > 1000, "the whole-page cache is too small by far: {whole}");
    assert!(hybrid * 20 < whole, "{hybrid} of {whole}");
    assert!(charged * 10 < whole, "{charged} of {whole} with the table charged");
}

#[test]
fn well_clustered_pages_are_dropped_whole() {
    let mut w = world(Policy::Hac(HacParams::default()), 300, 20, false);
    let mut scope = w.reader.scope().unwrap();
    for _ in 0..3 {
        for p in 1..=300 {
            (0..20).for_each(|s| drop(w.get(&scope, oref(p, s)).unwrap()));
            scope.reset();
        }
    }
    let stats = w.writer.stats();
    assert!(stats.kept * 20 < stats.discarded, "{stats:?}");
}

#[test]
fn the_budget_holds_while_the_table_grows() {
    let mut w = World::new(Config { budget_bytes: 2 << 20, scopes_max: 2, ..Config::default() });
    for p in 1..=400 {
        for s in 0..100 {
            w.server.put(oref(p, s), Kept::Plain, Node::new(0, "", Oref::NULL, &[]));
        }
    }
    let pages: Vec<Vec<u8>> =
        (0..=400).map(|p| if p == 0 { vec![] } else { w.server.page(PageId::new(p).unwrap()) }).collect();
    let mut scope = w.reader.scope().unwrap();
    for p in 1..=400u32 {
        for s in 0..100 {
            loop {
                match w.writer.lookup(&scope, oref(p, s), Stamp::MAX, TypeKey::of::<Node>()) {
                    Resolved::Ready { hint } => {
                        let r = tercel_wire::record::Ref::<Node>::with_hint(oref(p, s), hint);
                        assert!(matches!(scope.get(r), Lookup::Hit(_)));
                        break;
                    }
                    Resolved::Miss { page } => {
                        w.writer.reserve().unwrap();
                        let bytes = &pages[page.get() as usize];
                        let page = tercel_wire::page::Page::trusted(bytes, page).unwrap();
                        w.writer.install(&page, w.server.now, &[]).unwrap();
                    }
                    other => panic!("{other:?}"),
                }
            }
            let stats = w.writer.stats();
            assert!(stats.charged_bytes <= stats.budget_bytes);
        }
        if p % 7 == 0 {
            scope.reset();
        }
    }
    w.writer.verify().unwrap();
    assert!(w.writer.stats().frames_withheld > 0);
}
