//! Frames that a scope holds until it ends, and views that are counted beyond that.

use crate::common::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use tercel_heap::*;
use tercel_machine::random::Random;
use tercel_wire::id::{ClassId, Oref, PageId, SpaceId, Stamp};
use tercel_wire::layout::{Layout, Var};
use tercel_wire::page::{Page, PageBuilder};
use tercel_wire::record::{Class, Encoder, NoSpill};
use tercel_wire::schema::Schema;

/// Pages of one object each, far more than the cache has frames.
const PAGES: u32 = 200;

fn world() -> World {
    world_of(small(Policy::Hac(HacParams::default())))
}

fn world_of(config: Config) -> World {
    let mut w = World::new(config);
    for p in 1..=PAGES {
        w.server.put(oref(p, 0), Kept::Plain, Node::new(p.into(), "", oref(p % PAGES + 1, 0), &[]));
    }
    w
}

fn is_cached(w: &World, page: u32) -> bool {
    w.writer.is_cached(PageId::new(page).unwrap())
}

/// Reads through `pages`, each in a transaction of its own.
fn pass(w: &mut World, pages: std::ops::RangeInclusive<u32>) {
    let mut scope = w.reader.scope().unwrap();
    for p in pages {
        w.get(&scope, oref(p, 0)).unwrap();
        scope.reset();
    }
}

#[test]
fn held_frame_stays_until_its_scope_ends() {
    let mut w = world();
    let mut scope = w.reader.scope().unwrap();
    drop(w.get(&scope, oref(1, 0)).unwrap());
    pass(&mut w, 2..=PAGES);
    assert!(w.writer.stats().taken > 100 && is_cached(&w, 1));
    assert_eq!(w.read_set(&scope), BTreeSet::from([oref(1, 0)]));
    scope.reset();
    pass(&mut w, 2..=PAGES);
    assert!(!is_cached(&w, 1));
    w.writer.verify().unwrap();
}

#[test]
fn scope_that_misses_in_a_full_cache_counts() {
    let mut w = world();
    pass(&mut w, 1..=PAGES);
    let scope = w.reader.scope().unwrap();
    let first = w.get(&scope, oref(1, 0)).unwrap();
    pass(&mut w, 2..=PAGES);
    assert!(is_cached(&w, 1), "a view pins it");
    drop(first);
    pass(&mut w, 2..=PAGES);
    assert!(!is_cached(&w, 1), "no view pins it");
    w.writer.verify().unwrap();
}

#[test]
fn counting_by_hand_lets_go_behind_a_scan() {
    let mut w = world();
    let scope = w.reader.scope().unwrap();
    scope.count_views();
    drop(w.get(&scope, oref(1, 0)).unwrap());
    pass(&mut w, 2..=PAGES);
    assert!(!is_cached(&w, 1) && scope.has_moved(oref(1, 0)));
}

/// Scopes that hold all that they may leave half of the cache to others, and all get through.
#[test]
fn scopes_together_hold_half_of_the_cache() {
    let mut w = world();
    let frames = w.writer.stats().frames;
    pass(&mut w, 1..=frames / 2);
    let scopes: Vec<Scope> = (0..3).map(|_| w.reader.scope().unwrap()).collect();
    let cached: Vec<u32> = (1..=frames / 2).filter(|&p| is_cached(&w, p)).collect();
    // Each holds others, all that there are together.
    for (scope, pages) in scopes.iter().zip(cached.chunks(cached.len().div_ceil(3))) {
        pages.iter().for_each(|&p| drop(w.get(scope, oref(p, 0)).unwrap()));
    }
    pass(&mut w, 1..=PAGES);
    let held = cached.iter().filter(|&&p| is_cached(&w, p)).count();
    let in_use = (frames - w.writer.stats().frames_withheld) as usize;
    assert!(held >= (in_use - 16) / 2 && held > 3, "{held} of {in_use} are held");
    for scope in &scopes {
        let mut v = w.get(scope, oref(1, 0)).unwrap();
        for _ in 0..PAGES {
            v = w.follow(scope, &v, NEXT).unwrap().unwrap();
        }
    }
    w.writer.verify().unwrap();
    drop(scopes);
    pass(&mut w, 100..=PAGES);
    assert!(!cached.iter().any(|&p| is_cached(&w, p)), "grants and holds end with their scopes");
}

/// A scope reads all that is cached by hits, keeps no view, and then misses as often as there are pages.
fn miss_after_hits(w: &mut World) {
    let scope = w.reader.scope().unwrap();
    for p in (1..=PAGES).filter(|&p| is_cached(w, p)).collect::<Vec<_>>() {
        let fetches = w.fetches.len();
        drop(w.get(&scope, oref(p, 0)).unwrap());
        assert_eq!(w.fetches.len(), fetches, "a hit");
    }
    for p in 1..=PAGES {
        drop(w.get(&scope, oref(p, 0)).unwrap());
    }
    w.writer.verify().unwrap();
}

#[test]
fn holds_leave_frames_beside_those_withheld() {
    // Marks of many scopes take most of the frames, and stay with their slots.
    let mut w = world_of(Config { budget_bytes: 360 << 10, scopes_max: 64, ..Config::default() });
    let scopes: Vec<Scope> = (0..64).map_while(|_| w.reader.scope()).collect();
    for scope in &scopes {
        scope.count_views();
        let stats = w.writer.stats();
        if stats.frames_withheld <= stats.frames / 2 {
            drop(w.get(scope, oref(1, 0)).unwrap());
        }
    }
    drop(scopes);
    pass(&mut w, 1..=PAGES);
    let stats = w.writer.stats();
    assert!(stats.frames >= 20 && stats.frames_withheld > stats.frames / 2, "{stats:?}");
    miss_after_hits(&mut w);
}

#[test]
fn smallest_cache_goes_on_after_hits() {
    let (budget_bytes, scopes_max) = (BUDGET_BYTES_MIN, SCOPES_MAX);
    let mut w = world_of(Config { budget_bytes, scopes_max, ..Config::default() });
    assert!(w.writer.stats().frames < 12);
    pass(&mut w, 1..=PAGES);
    // A frame of single objects, which is not taken either.
    let object = w.server.at(oref(1, 0), Stamp(0)).object();
    w.writer.install_own(oref(1, 0), &object, Stamp::ZERO).unwrap();
    miss_after_hits(&mut w);
}

#[test]
fn tables_leave_the_frames_that_scopes_hold() {
    let mut w = world_of(Config { budget_bytes: 360 << 10, scopes_max: 64, ..Config::default() });
    pass(&mut w, 1..=PAGES);
    let holder = w.reader.scope().unwrap();
    let cached: Vec<u32> = (1..=PAGES).filter(|&p| is_cached(&w, p)).collect();
    cached.iter().for_each(|&p| drop(w.get(&holder, oref(p, 0)).unwrap()));
    let scopes: Vec<Scope> = (0..63).map_while(|_| w.reader.scope()).collect();
    let is_full = scopes.iter().any(|scope| {
        scope.count_views();
        (1..=10).any(|p| w.get(scope, oref(p, 0)).is_err())
    });
    let stats = w.writer.stats();
    let held = cached.iter().filter(|&&p| is_cached(&w, p)).count() as u32;
    assert!(is_full && stats.frames_withheld > 4 && held > 4, "{held} {stats:?}");
    assert!(stats.frames - stats.frames_withheld >= held + 6, "{held} {stats:?}");
    (1..=PAGES).for_each(|p| drop(w.get(&holder, oref(p, 0)).unwrap()));
    w.writer.verify().unwrap();
}

/// A view made before the scope counts, and one made after it, of one frame.
#[test]
fn view_of_before_stays_when_the_scope_counts() {
    let mut w = world();
    let scope = w.reader.scope().unwrap();
    let before = w.get(&scope, oref(1, 0)).unwrap();
    scope.count_views();
    let after = w.get(&scope, oref(1, 0)).unwrap();
    let next = w.follow(&scope, &before, NEXT).unwrap().unwrap();
    drop((after.clone(), after));
    pass(&mut w, 3..=PAGES);
    assert!(is_cached(&w, 1) && is_cached(&w, 2));
    drop(next);
    pass(&mut w, 3..=PAGES);
    assert!(is_cached(&w, 1) && !is_cached(&w, 2));
    assert_eq!(before.fixed::<u64>(ID), 1);
}

#[test]
fn word_of_one_type_hits_for_no_other() {
    let mut w = world();
    // Within the frame, and through a handle.
    w.server.put(oref(1, 0), Kept::Plain, Node::new(1, "", oref(1, 1), &[oref(2, 0)]));
    w.server.put(oref(1, 1), Kept::Plain, Node::new(11, "", Oref::NULL, &[]));
    let scope = w.reader.scope().unwrap();
    let v = w.get(&scope, oref(1, 0)).unwrap();
    let Var::Here { at, len: 1 } = v.var(KIDS) else { panic!() };
    for at in [NEXT, at] {
        w.follow(&scope, &v, at).unwrap().unwrap();
        assert!(matches!(scope.follow::<Node>(&v, at), Lookup::Hit(_)));
        assert!(matches!(scope.follow::<Other>(&v, at), Lookup::Slow));
        let found = w.writer.resolve(&scope, &v.ref_view(at), TypeKey::of::<Other>());
        assert_eq!(found, Resolved::WrongClass { found: NODE });
        assert!(matches!(scope.follow::<Other>(&v, at), Lookup::Slow));
    }
}

/// Types for more numbers than entries can name.
struct Numbered<const N: usize>;

/// Makes each class its own type: `Typed` is not for generic classes.
macro_rules! numbered {
    ($($n:literal)*) => {$(
        const _: () = {
            impl Class for Numbered<$n> {
                const SCHEMA: Schema = Schema { name: "Numbered", fields: &[] };
                fn encode(&self, _: &mut Encoder<'_>) {}
            }
            tercel_heap::typed!(Numbered<$n>);
            ();
        };
    )*
        const KEYS: &[fn() -> TypeKey] = &[$(TypeKey::of::<Numbered<$n>>),*];
    };
}
numbered!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);

/// Goes twice from a node along a handle to another, and along one to a `T`, neither of another type.
fn follow_handles(config: Config) {
    let mut w = world_of(config);
    w.server.put(oref(1, 0), Kept::Plain, Node::new(1, "", oref(2, 0), &[oref(3, 0)]));
    for _ in 0..2 {
        let scope = w.reader.scope().unwrap();
        let v = w.get(&scope, oref(1, 0)).unwrap();
        for _ in 0..2 {
            assert_eq!(w.follow(&scope, &v, NEXT).unwrap().unwrap().fixed::<u64>(ID), 2);
            assert!(matches!(scope.follow::<Other>(&v, NEXT), Lookup::Slow));
        }
        w.writer.verify().unwrap();
    }
}

#[test]
fn handle_leads_to_unnamed_type() {
    // Whatever number a node has, among these is one that an entry names and one that none does.
    let mut w = world_of(Config { budget_bytes: 4 << 20, ..Config::default() });
    let keys: Vec<TypeKey> = KEYS.iter().map(|key| key()).collect();
    for (key, class) in keys.iter().zip(200..) {
        let (class, page) = (ClassId(class), PageId::new(class.into()).unwrap());
        w.writer.define(class, Arc::new(Layout::of(key.schema())));
        w.writer.bind(*key, class).unwrap();
        let mut b = PageBuilder::new(Vec::new(), page, SpaceId(1));
        let mut no = NoSpill;
        assert!(b.push(0, &Encoder::new(0, &mut no).finish(class).unwrap()));
        let bytes = b.finish(Stamp(0));
        w.writer.install(&Page::parse(&bytes, page).unwrap(), Stamp(0), &[]).unwrap();
        let holder = Node::new(1, "", Oref::new(page, 0).unwrap(), &[]);
        w.server.put(oref(u32::from(class.0) + 100, 0), Kept::Plain, holder);
    }
    w.writer.verify().unwrap();
    let scope = w.reader.scope().unwrap();
    let holders: Vec<_> = (300..316).map(|p| w.get(&scope, oref(p, 0)).unwrap()).collect();
    for (v, key) in holders.iter().zip(&keys) {
        assert_eq!(
            w.writer.resolve(&scope, &v.ref_view(NEXT), *key),
            Resolved::Ready { hint: v.word(NEXT).1 }
        );
    }
    w.writer.verify().unwrap();
    for _ in 0..2 {
        let hits = |i: usize| {
            let at = |v: &View<'_, Node>| {
                [
                    matches!(scope.follow::<Numbered<0>>(v, NEXT), Lookup::Hit(_)),
                    matches!(scope.follow::<Numbered<15>>(v, NEXT), Lookup::Hit(_)),
                    matches!(scope.follow::<Node>(v, NEXT), Lookup::Hit(_)),
                ]
            };
            at(&holders[i])
        };
        assert_eq!((hits(0), hits(1), hits(15)), ([true, false, false], [false; 3], [false, true, false]));
    }
}

#[test]
fn handle_leads_to_its_type_alone() {
    follow_handles(small(Policy::Hac(HacParams::default())));
}

/// A page with some of its bytes changed, half of them to words that look swizzled.
fn hostile(rng: &mut Random) -> Vec<u8> {
    let mut b = PageBuilder::new(Vec::new(), PageId::new(1).unwrap(), SpaceId(1));
    for slot in 0..20 {
        let any = |rng: &mut Random| oref(1 + rng.below(2) as u32, rng.below(24) as u16);
        let kids: Vec<Oref> = (0..rng.below(5)).map(|_| any(rng)).collect();
        let name = "n".repeat(rng.below(40) as usize);
        assert!(b.push(slot, &Node::new(slot.into(), &name, any(rng), &kids).object()));
    }
    let mut bytes = b.finish(Stamp(0));
    for _ in 0..1 + rng.below(6) {
        // Behind the header, which `install` takes as checked.
        let at = 32 + rng.below(bytes.len() as u64 / 4 - 8) as usize * 4;
        let word = match rng.below(2) {
            0 => (0b10 + rng.below(2) as u32) << 30 | rng.below(1 << 30) as u32,
            _ => rng.below(1 << 16) as u32,
        };
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The frame that all bytes of a view are in.
fn frame_of(v: &View<'_, Node>) -> usize {
    let mut parts = vec![v.bytes(ID, 8)];
    if let Some(text) = v.text_at(NAME) {
        parts.push(text.as_bytes());
    }
    let ends = parts.iter().filter(|p| !p.is_empty()).flat_map(|p| {
        let range = p.as_ptr_range();
        [range.start.addr(), range.end.addr() - 1]
    });
    let frames: BTreeSet<usize> = ends.map(|at| at / FRAME_BYTES).collect();
    assert_eq!(frames.len(), 1, "a view is within one frame");
    frames.into_iter().next().unwrap()
}

/// Run with the address sanitizer too (`.ci/sanitize`).
#[test]
fn hostile_pages_are_read_within_their_frames() {
    let (mut installed, mut refused, mut hops) = (0, 0, 0);
    for seed in 0..400 {
        let mut rng = Random::new(seed);
        let mut w = World::new(small(Policy::Hac(HacParams::default())));
        let bytes = hostile(&mut rng);
        let id = PageId::new(1).unwrap();
        let Ok(page) = Page::trusted(&bytes, id) else { continue };
        if w.writer.install(&page, Stamp(0), &[]).is_err() {
            continue;
        }
        installed += 1;
        let scope = w.reader.scope().unwrap();
        let key = TypeKey::of::<Node>();
        for _ in 0..2 {
            for slot in 0..24 {
                let o = oref(1, slot);
                let hint = match w.writer.lookup(&scope, o, Stamp::MAX, key) {
                    Resolved::Ready { hint } => hint,
                    _ => {
                        refused += 1;
                        continue;
                    }
                };
                let Lookup::Hit(v) = scope.get(tercel_wire::record::Ref::<Node>::with_hint(o, hint)) else {
                    continue;
                };
                let frame = frame_of(&v);
                let kids = match v.var(KIDS) {
                    Var::Here { at, len } => (0..len).map(|i| at + 4 * i).collect(),
                    _ => vec![],
                };
                for at in std::iter::once(NEXT).chain(kids) {
                    let _ = w.writer.resolve(&scope, &v.ref_view(at), key);
                    if let Lookup::Hit(to) = scope.follow::<Node>(&v, at) {
                        assert_eq!(frame_of(&to), frame, "only one page is here");
                        assert_eq!(to.oref(), v.word(at).0);
                        hops += 1;
                    }
                }
            }
        }
        w.writer.verify().unwrap();
    }
    assert!(installed > 100 && refused > 100 && hops > 1000, "{installed} {refused} {hops}");
}
