//! References that programs kept, and pages that were given out again since: a hit compares the two, and so
//! does the slow way.

use tercel_heap::{HacParams, Lookup, Policy, Resolved, Scope, TypeKey};
use tercel_wire::id::{Oref, PageId, SpaceId, Stamp};
use tercel_wire::page::{Page, PageBuilder};
use tercel_wire::record::Ref;

use crate::common::{Kept, Node, World, oref, small};

/// A cache with pages 1 and 2, born at these stamps, at watermark 20.
fn world(births: [u64; 2]) -> World {
    let mut w = World::new(small(Policy::Hac(HacParams::default())));
    for page in [1, 2] {
        for slot in 0..3 {
            let node = Node::new(u64::from(10 * page) + u64::from(slot), "a node", Oref::NULL, &[]);
            w.server.put(oref(page, slot), Kept::Plain, node);
        }
    }
    w.writer.advance(Stamp(20));
    for (page, birth) in [1, 2].into_iter().zip(births) {
        fetch(&mut w, page, birth);
    }
    w
}

fn fetch(w: &mut World, page: u32, birth: u64) {
    let id = PageId::new(page).unwrap();
    let bytes = w.server.page(id);
    let mut b = PageBuilder::new(Vec::new(), id, SpaceId(1)).born(Stamp(birth));
    Page::parse(&bytes, id).unwrap().objects().for_each(|(slot, object)| assert!(b.push(slot, object)));
    let bytes = b.finish(Stamp(birth));
    w.writer.install(&Page::parse(&bytes, id).unwrap(), Stamp(birth), &[]).unwrap();
    w.writer.verify().unwrap();
}

fn lookup(w: &mut World, scope: &Scope, o: Oref, stamp: u64) -> Resolved {
    w.writer.lookup(scope, o, Stamp(stamp), TypeKey::of::<Node>())
}

/// Says whether a reference that was read at `stamp` hits, with any hint that ever led to the object.
fn hits(scope: &Scope, o: Oref, hint: u32, stamp: u64) -> bool {
    let hits = [0, hint].map(|hint| {
        let r = Ref::<Node>::with_hint(o, hint).read_at(Stamp(stamp));
        matches!(scope.get(r), Lookup::Hit(_))
    });
    assert_eq!(hits[0], hits[1]);
    hits[0]
}

#[test]
fn reference_older_than_its_page_never_hits_at_home() {
    let mut w = world([5, 0]);
    let scope = w.reader.scope().unwrap();
    for slot in 0..3 {
        let at = oref(1, slot);
        let Resolved::Ready { .. } = lookup(&mut w, &scope, at, 5) else { panic!() };
        let Lookup::Hit(view) = scope.get(Ref::<Node>::new(at)) else { panic!() };
        let (_, hint) = view.token();
        assert_eq!(
            [0, 4, 5, 6, u64::MAX].map(|stamp| hits(&scope, at, hint, stamp)),
            [false, false, true, true, true]
        );
        assert_eq!(lookup(&mut w, &scope, at, 4), Resolved::Reborn);
    }
    // A page that was never given out again is reached by any reference.
    let Resolved::Ready { .. } = lookup(&mut w, &scope, oref(2, 0), 0) else { panic!() };
    let Lookup::Hit(view) = scope.get(Ref::<Node>::new(oref(2, 0))) else { panic!() };
    let (_, hint) = view.token();
    assert!(hits(&scope, oref(2, 0), hint, 0));
}

#[test]
fn page_that_is_fetched_again_has_its_new_birth() {
    let mut w = world([5, 0]);
    let at = oref(1, 0);
    let scope = w.reader.scope().unwrap();
    let Resolved::Ready { hint } = lookup(&mut w, &scope, at, 7) else { panic!() };
    assert!(hits(&scope, at, hint, 7));
    drop(scope);
    w.writer.flag(at);
    fetch(&mut w, 1, 9);
    let scope = w.reader.scope().unwrap();
    assert!(!hits(&scope, at, hint, 7));
    assert_eq!(lookup(&mut w, &scope, at, 8), Resolved::Reborn);
    let Resolved::Ready { hint } = lookup(&mut w, &scope, at, 9) else { panic!() };
    assert!(hits(&scope, at, hint, 9) && !hits(&scope, at, hint, 8));
}

#[test]
fn own_version_is_not_found_by_an_older_reference() {
    let mut w = world([0, 0]);
    let at = oref(3, 0);
    w.writer.install_own(at, &Node::new(30, "own", Oref::NULL, &[]).object(), Stamp(12)).unwrap();
    let scope = w.reader.scope().unwrap();
    assert_eq!(lookup(&mut w, &scope, at, 11), Resolved::Reborn);
    let Resolved::Ready { hint } = lookup(&mut w, &scope, at, 12) else { panic!() };
    assert!(hits(&scope, at, hint, 12) && !hits(&scope, at, hint, 11));
}

#[test]
fn page_that_was_read_before_an_own_version_does_not_take_its_birth_back() {
    let mut w = world([0, 5]);
    let at = oref(1, 0);
    w.writer.flag(at);
    w.writer.install_own(at, &Node::new(30, "own", Oref::NULL, &[]).object(), Stamp(12)).unwrap();
    let id = PageId::new(1).unwrap();
    let bytes = w.server.page(id);
    w.writer.install(&Page::parse(&bytes, id).unwrap(), Stamp(11), &[0]).unwrap();
    let scope = w.reader.scope().unwrap();
    assert_eq!(lookup(&mut w, &scope, at, 11), Resolved::Reborn);
    let Resolved::Ready { hint } = lookup(&mut w, &scope, at, 12) else { panic!() };
    assert!(hits(&scope, at, hint, 12) && !hits(&scope, at, hint, 11));
}

#[test]
fn copy_outside_its_page_is_found_the_slow_way_once_a_younger_page_was_here() {
    let mut w = world([0, 0]);
    let at = oref(1, 0);
    w.writer.flag(at);
    w.writer.install_own(at, &Node::new(10, "own", Oref::NULL, &[]).object(), Stamp::ZERO).unwrap();
    let scope = w.reader.scope().unwrap();
    let Resolved::Ready { hint } = lookup(&mut w, &scope, at, 3) else { panic!() };
    assert!(hits(&scope, at, hint, 3));
    fetch(&mut w, 2, 9);
    assert!(!hits(&scope, at, hint, 3) && scope.may_be_reborn(Stamp(3)));
    // The writer knows that it was another page.
    let Resolved::Ready { hint } = lookup(&mut w, &scope, at, 3) else { panic!() };
    assert!(hits(&scope, at, hint, 9) && hits(&scope, at, hint, u64::MAX));
}

#[test]
fn births_of_another_history_count_for_nothing() {
    let mut w = world([15, 0]);
    w.writer.begin_history(Stamp(8));
    let scope = w.reader.scope().unwrap();
    assert!(!scope.may_be_reborn(Stamp(3)));
    assert!(!hits(&scope, oref(1, 0), 0, 3));
    assert_eq!(lookup(&mut w, &scope, oref(1, 0), 3), Resolved::Stale { page: PageId::new(1).unwrap() });
    fetch(&mut w, 1, 2);
    let Resolved::Ready { hint } = lookup(&mut w, &scope, oref(1, 0), 3) else { panic!() };
    assert!(hits(&scope, oref(1, 0), hint, 3));
}

/// The rule is what keeps the reference away.
#[cfg(tercel_mutants)]
#[test]
fn without_the_rule_an_older_reference_hits() {
    use tercel_machine::mutant::{Rule, drop_rule};
    let mut w = world([5, 0]);
    let scope = w.reader.scope().unwrap();
    drop_rule(Some(Rule::TokenWithoutBirth));
    let found = lookup(&mut w, &scope, oref(1, 0), 4);
    let hit = matches!(found, Resolved::Ready { hint } if hits(&scope, oref(1, 0), hint, 4));
    drop_rule(None);
    assert!(hit, "{found:?}");
}
