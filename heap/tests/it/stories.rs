//! Stories of a reader, one behaviour at a time.

use crate::common::*;
use tercel_heap::*;
use tercel_wire::id::{ClassId, Oref, PageId, SpaceId, Stamp};
use tercel_wire::layout::Var;
use tercel_wire::page::{Page, PageBuilder};
use tercel_wire::record::Ref;

fn hac() -> World {
    let mut w = World::new(small(Policy::Hac(HacParams::default())));
    w.verify_each = true;
    w
}

/// Two pages: 1.0 -> 1.1 -> 2.0, with kids.
fn chain() -> World {
    let mut w = hac();
    w.server.put(
        oref(1, 0),
        Kept::Plain,
        Node::new(10, "ten", oref(1, 1), &[oref(1, 1), Oref::NULL, oref(2, 0)]),
    );
    w.server.put(oref(1, 1), Kept::Plain, Node::new(11, "eleven", oref(2, 0), &[]));
    w.server.put(oref(2, 0), Kept::Plain, Node::new(20, "zwölf", Oref::NULL, &[oref(1, 0)]));
    w
}

#[test]
fn references_are_followed_within_a_page_and_across() {
    let mut w = chain();
    let scope = w.reader.scope().unwrap();
    let a = w.get(&scope, oref(1, 0)).unwrap();
    let b = w.follow(&scope, &a, NEXT).unwrap().unwrap();
    let c = w.follow(&scope, &b, NEXT).unwrap().unwrap();
    assert_eq!((a.fixed::<u64>(ID), b.fixed::<u64>(ID), c.fixed::<u64>(ID)), (10, 11, 20));
    assert_eq!((a.oref(), b.oref(), c.oref()), (oref(1, 0), oref(1, 1), oref(2, 0)));
    assert_eq!(c.text_at(NAME), Some("zwölf"));
    assert!(w.follow(&scope, &c, NEXT).unwrap().is_none());
    let Var::Here { at, len: 3 } = a.var(KIDS) else { panic!() };
    assert_eq!(w.follow(&scope, &a, at + 8).unwrap().unwrap().oref(), oref(2, 0));
    assert!(w.follow(&scope, &a, at + 4).unwrap().is_none());
    // Swizzled, the same way is a hit, by element as well.
    assert!(matches!(scope.follow::<Node>(&a, NEXT), Lookup::Hit(_)));
    assert!(matches!(a.items(KIDS).nth::<Node>(2), Some(Lookup::Hit(_))));
    assert!(a.items(KIDS).nth::<Node>(3).is_none());
    assert_eq!(a.word(NEXT).0, oref(1, 1));
    assert_eq!(b.word(NEXT).0, oref(2, 0));
    assert_eq!(w.fetches.len(), 2);
    assert_eq!(w.read_set(&scope), [oref(1, 0), oref(1, 1), oref(2, 0)].into());
}

#[test]
fn an_object_comes_out_as_it_was_stored() {
    let mut w = chain();
    let scope = w.reader.scope().unwrap();
    let a = w.get(&scope, oref(1, 0)).unwrap();
    w.follow(&scope, &a, NEXT).unwrap();
    w.follow(&scope, &a, a.var_at(KIDS, 8)).unwrap();
    assert_eq!(a.to_stored(), w.server.at(oref(1, 0), Stamp(0)).object());
}

trait VarAt {
    fn var_at(&self, part: usize, add: usize) -> usize;
}
impl VarAt for View<'_, Node> {
    fn var_at(&self, part: usize, add: usize) -> usize {
        let Var::Here { at, .. } = self.var(part) else { panic!() };
        at + add
    }
}

#[test]
fn a_hit_after_an_invalidation_is_slow_and_the_recheck_tells_which() {
    let mut w = chain();
    let (s, t) = (w.reader.scope().unwrap(), w.reader.scope().unwrap());
    let a = w.get(&s, oref(1, 0)).unwrap();
    w.get(&t, oref(2, 0)).unwrap();
    w.commit(&[(oref(1, 0), Node::new(99, "new", Oref::NULL, &[]))]);
    assert!(matches!(s.get(Ref::<Node>::with_hint(oref(2, 0), 1)), Lookup::Slow));
    assert_eq!(w.writer.recheck(&s), Err(Doomed));
    assert_eq!((w.writer.recheck(&t), t.snapshot(), s.snapshot()), (Ok(()), Stamp(1), Stamp(0)));
    // The view still shows what it showed.
    assert_eq!(a.fixed::<u64>(ID), 10);
    assert!(s.doomed() && !t.doomed());
}

#[test]
fn a_hit_that_came_too_late_leaves_no_trace() {
    let mut w = chain();
    let scope = w.reader.scope().unwrap();
    let other = w.reader.scope().unwrap();
    let hint = w.get(&other, oref(1, 0)).unwrap().token().1;
    let first = Ref::<Node>::with_hint(oref(1, 0), hint);
    w.get(&scope, oref(1, 1)).unwrap();
    w.commit(&[(oref(2, 0), Node::new(21, "", Oref::NULL, &[]))]);
    // The object did not change, but only the writer can say that it belongs to one state with what was read
    // before.
    for _ in 0..2 {
        assert!(matches!(scope.get(first), Lookup::Slow), "what was not read at first is not read now");
    }
    assert_eq!(w.read_set(&scope), [oref(1, 1)].into());
    w.writer.recheck(&scope).unwrap();
    assert!(matches!(scope.get(first), Lookup::Hit(_)));
}

#[test]
fn a_refetched_page_serves_new_readers_and_leaves_old_views_alone() {
    let mut w = chain();
    let mut scope = w.reader.scope().unwrap();
    {
        let a = w.get(&scope, oref(1, 0)).unwrap();
        w.follow(&scope, &a, NEXT).unwrap();
        w.commit(&[(oref(1, 1), Node::new(111, "new", oref(2, 0), &[]))]);
        let other = w.reader.scope().unwrap();
        let fresh = w.get(&other, oref(1, 1)).unwrap();
        assert_eq!(fresh.fixed::<u64>(ID), 111);
        assert_eq!(a.fixed::<u64>(ID), 10);
        // A scope that has read the obsolete neighbour goes on reading that copy, and gets nothing newer
        // beside it.
        assert_eq!(w.follow(&scope, &a, NEXT).unwrap().unwrap().fixed::<u64>(ID), 11);
        assert_eq!(w.get(&scope, oref(2, 0)).unwrap_err(), Stop::Doomed);
    }
    scope.reset();
    let a = w.get(&scope, oref(1, 0)).unwrap();
    assert_eq!(w.follow(&scope, &a, NEXT).unwrap().unwrap().fixed::<u64>(ID), 111);
    w.writer.verify().unwrap();
}

#[test]
fn a_word_of_a_superseded_frame_is_led_to_the_new_copy() {
    let mut w = chain();
    let scope = w.reader.scope().unwrap();
    let a = w.get(&scope, oref(1, 0)).unwrap();
    {
        let other = w.reader.scope().unwrap();
        let a = w.get(&other, oref(1, 0)).unwrap();
        w.follow(&other, &a, NEXT).unwrap().unwrap();
    }
    // The neighbour was swizzled by another scope; this one has not read it, so it may have the new one.
    w.commit(&[(oref(1, 1), Node::new(111, "new", oref(2, 0), &[]))]);
    let b = w.follow(&scope, &a, NEXT).unwrap().unwrap();
    assert_eq!((b.fixed::<u64>(ID), scope.snapshot()), (111, Stamp(1)));
    assert!(matches!(scope.follow::<Node>(&a, NEXT), Lookup::Hit(_)));
    w.writer.verify().unwrap();
}

#[test]
fn slots_flagged_since_the_fetch_are_stale() {
    let mut w = chain();
    let bytes = w.server.page(PageId::new(1).unwrap());
    w.commit(&[(oref(1, 1), Node::new(111, "new", Oref::NULL, &[]))]);
    let page = Page::parse(&bytes, PageId::new(1).unwrap()).unwrap();
    w.writer.install(&page, Stamp(0), &[1]).unwrap();
    let scope = w.reader.scope().unwrap();
    let key = TypeKey::of::<Node>();
    assert!(matches!(w.writer.lookup(&scope, oref(1, 0), Stamp::MAX, key), Resolved::Ready { .. }));
    assert_eq!(
        w.writer.lookup(&scope, oref(1, 1), Stamp::MAX, key),
        Resolved::Stale { page: PageId::new(1).unwrap() }
    );
    assert_eq!(
        w.writer.lookup(&scope, oref(1, 7), Stamp::MAX, key),
        Resolved::Empty { page: PageId::new(1).unwrap() }
    );
    assert_eq!(
        w.writer.lookup(&scope, oref(9, 7), Stamp::MAX, key),
        Resolved::Miss { page: PageId::new(9).unwrap() }
    );
}

#[test]
#[should_panic(expected = "watermark")]
fn a_page_newer_than_the_watermark_is_refused() {
    let mut w = chain();
    let bytes = w.server.page(PageId::new(1).unwrap());
    let _ = w.writer.install(&Page::parse(&bytes, PageId::new(1).unwrap()).unwrap(), Stamp(5), &[]);
}

#[test]
fn an_own_version_is_read_without_a_fetch() {
    let mut w = chain();
    let scope = w.reader.scope().unwrap();
    w.get(&scope, oref(1, 0)).unwrap();
    drop(scope);
    let new = Node::new(77, "own", oref(2, 0), &[oref(1, 1)]);
    w.commit(&[(oref(1, 0), new.clone())]);
    w.writer.install_own(oref(1, 0), &new.object(), Stamp::ZERO).unwrap();
    w.writer.verify().unwrap();
    let scope = w.reader.scope().unwrap();
    let v = w.get(&scope, oref(1, 0)).unwrap();
    assert_eq!((Node::read(&v), v.oref(), w.fetches.len()), (new, oref(1, 0), 1));
}

#[test]
fn an_older_record_is_converted_and_its_unknown_fields_survive_a_write() {
    let mut w = hac();
    let node = Node::new(7, "old one", oref(1, 1), &[oref(1, 1)]);
    w.server.put(oref(1, 0), Kept::Old, node.clone());
    w.server.put(oref(1, 1), Kept::Plain, Node::new(8, "", oref(1, 0), &[]));
    let scope = w.reader.scope().unwrap();
    let v = w.get(&scope, oref(1, 0)).unwrap();
    assert_eq!((Node::read(&v), v.oref()), (node.clone(), oref(1, 0)));
    assert_eq!(v.to_stored(), node.object());
    assert_eq!(v.behind(), Some(node.old_object("hidden")));
    // Neighbours reach it by its handle, never by its place in the page.
    let b = w.follow(&scope, &v, NEXT).unwrap().unwrap();
    assert_eq!(w.follow(&scope, &b, NEXT).unwrap().unwrap().oref(), oref(1, 0));
    let write_set = WriteSet::new(&scope);
    write_set.put(oref(1, 0), &v.to_stored(), TypeKey::of::<Node>(), v.behind()).unwrap();
    write_set.patch(oref(1, 0), ID, &9u64.to_le_bytes()).unwrap();
    // The old record cannot hold the wider number, so the new class is written.
    assert_eq!(
        write_set.record(oref(1, 0)),
        Some(Node::new(9, "old one", oref(1, 1), &[oref(1, 1)]).object())
    );
    w.writer.verify().unwrap();
}

#[test]
fn a_moved_object_is_read_under_its_home_reference() {
    let mut w = hac();
    w.server.put(oref(1, 0), Kept::Moved(oref(2, 5)), Node::new(1, "grown", oref(1, 1), &[]));
    w.server.put(oref(1, 1), Kept::Plain, Node::new(2, "stays", oref(1, 0), &[]));
    let scope = w.reader.scope().unwrap();
    let v = w.get(&scope, oref(1, 0)).unwrap();
    assert_eq!((v.fixed::<u64>(ID), v.oref()), (1, oref(1, 0)));
    let b = w.follow(&scope, &v, NEXT).unwrap().unwrap();
    assert_eq!(w.follow(&scope, &b, NEXT).unwrap().unwrap().oref(), oref(1, 0));
    assert_eq!(w.read_set(&scope), [oref(1, 0), oref(1, 1)].into());
    w.writer.verify().unwrap();
    // An invalidation that names the place is as good as one that names the home.
    drop((v, b));
    w.server.now = Stamp(1);
    w.writer.flag(oref(2, 5));
    w.writer.advance(Stamp(1));
    assert_eq!(w.writer.recheck(&scope), Err(Doomed));
}

#[test]
fn an_object_of_another_type_is_no_hit() {
    let mut w = chain();
    let scope = w.reader.scope().unwrap();
    let v = w.get(&scope, oref(1, 0)).unwrap();
    let hint = match w.writer.lookup(&scope, oref(1, 0), Stamp::MAX, TypeKey::of::<Node>()) {
        Resolved::Ready { hint } => hint,
        other => panic!("{other:?}"),
    };
    assert!(matches!(scope.get(Ref::<Other>::with_hint(oref(1, 0), hint)), Lookup::Slow));
    assert_eq!(
        w.writer.lookup(&scope, oref(1, 0), Stamp::MAX, TypeKey::of::<Other>()),
        Resolved::WrongClass { found: NODE }
    );
    assert_eq!(
        w.writer.resolve(&scope, &v.ref_view(NEXT), TypeKey::of::<Other>()),
        Resolved::WrongClass { found: NODE }
    );
}

#[test]
fn hints_are_only_hints() {
    let mut w = chain();
    let scope = w.reader.scope().unwrap();
    w.get(&scope, oref(1, 0)).unwrap();
    for hint in [0, 1, 2, 77, 1 << 29, u32::MAX] {
        if let Lookup::Hit(v) = scope.get(Ref::<Node>::with_hint(oref(1, 0), hint)) {
            assert_eq!(v.oref(), oref(1, 0));
        }
        assert!(!matches!(scope.get(Ref::<Node>::with_hint(oref(2, 0), hint)), Lookup::Hit(_)));
    }
}

fn page_of(objects: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut b = PageBuilder::new(Vec::new(), PageId::new(3).unwrap(), SpaceId(1));
    objects.iter().for_each(|(s, o)| assert!(b.push(*s, o)));
    b.finish(Stamp(0))
}

#[test]
fn a_damaged_record_is_found_at_its_first_touch() {
    let mut w = hac();
    let good = Node::new(1, "x", Oref::NULL, &[]).object();
    let mut swizzled = good.clone();
    swizzled[4 + NEXT..8 + NEXT].copy_from_slice(&0xc000_0040u32.to_le_bytes());
    let mut flagged = good.clone();
    flagged[2] = 0xff;
    let mut unknown = good.clone();
    unknown[0] = 99;
    let bytes = page_of(&[(0, good.clone()), (1, swizzled), (2, flagged), (3, unknown)]);
    let page = Page::parse(&bytes, PageId::new(3).unwrap()).unwrap();
    w.writer.install(&page, Stamp(0), &[]).unwrap();
    let scope = w.reader.scope().unwrap();
    let key = TypeKey::of::<Node>();
    assert!(matches!(w.writer.lookup(&scope, oref(3, 1), Stamp::MAX, key), Resolved::Damaged(_)));
    // Flags that came with a page are ignored.
    assert!(matches!(w.writer.lookup(&scope, oref(3, 2), Stamp::MAX, key), Resolved::Ready { .. }));
    assert_eq!(
        w.writer.lookup(&scope, oref(3, 3), Stamp::MAX, key),
        Resolved::Unbound { class: ClassId(99) }
    );
}

#[test]
fn a_page_whose_objects_overlap_is_refused() {
    let mut w = hac();
    let mut bytes = page_of(&[(0, vec![0; 16]), (1, vec![0; 16])]);
    let at = tercel_wire::page::PAGE_BYTES - 8;
    bytes[at..at + 2].copy_from_slice(&44u16.to_le_bytes());
    bytes[at + 2..at + 4].copy_from_slice(&12u16.to_le_bytes());
    let page = Page::trusted(&bytes, PageId::new(3).unwrap()).unwrap();
    assert!(matches!(w.writer.install(&page, Stamp(0), &[]), Err(InstallError::Overlap { .. })));
    w.writer.verify().unwrap();
}

#[test]
#[should_panic(expected = "not a reference")]
fn a_number_cannot_be_followed() {
    let mut w = chain();
    let scope = w.reader.scope().unwrap();
    let v = w.get(&scope, oref(1, 0)).unwrap();
    let _ = scope.follow::<Node>(&v, ID);
}

#[test]
#[should_panic(expected = "plain bytes")]
fn a_reference_cannot_be_read_as_bytes() {
    let mut w = chain();
    let scope = w.reader.scope().unwrap();
    w.get(&scope, oref(1, 0)).unwrap().bytes(NEXT, 4);
}

#[test]
#[should_panic(expected = "plain bytes")]
fn an_element_that_is_a_reference_cannot_be_read_as_a_number() {
    let mut w = chain();
    let scope = w.reader.scope().unwrap();
    let v = w.get(&scope, oref(1, 0)).unwrap();
    v.fixed::<u32>(v.var_at(KIDS, 0));
}

#[test]
fn private_copies_are_found_before_the_shared_one() {
    let mut w = chain();
    let scope = w.reader.scope().unwrap();
    let v = w.get(&scope, oref(1, 0)).unwrap();
    let b = w.get(&scope, oref(1, 1)).unwrap();
    let back = w.get(&scope, oref(2, 0)).unwrap();
    let to_first = back.var_at(KIDS, 0);
    w.follow(&scope, &back, to_first).unwrap();
    let write_set = WriteSet::new(&scope);
    write_set.put(oref(1, 0), &v.to_stored(), TypeKey::of::<Node>(), None).unwrap();
    scope.set_overlaid(true);
    // What was read before may have a private copy; the caller asks the write set.
    assert!(matches!(scope.follow::<Node>(&back, to_first), Lookup::Slow));
    let mine = write_set.view::<Node>(&scope, oref(1, 0)).unwrap();
    write_set.patch(oref(1, 0), ID, &1234u64.to_le_bytes()).unwrap();
    assert_eq!(mine.fixed::<u64>(ID), 10, "a view is not changed under its holder");
    let mine = write_set.view::<Node>(&scope, oref(1, 0)).unwrap();
    assert_eq!((mine.fixed::<u64>(ID), mine.oref(), mine.is_private()), (1234, oref(1, 0), true));
    assert_eq!(mine.word(NEXT).0, oref(1, 1));
    // Its references are stored, so they are looked up.
    assert!(matches!(scope.follow::<Node>(&mine, NEXT), Lookup::Slow));
    let found = w.writer.resolve(&scope, &mine.ref_view(NEXT), TypeKey::of::<Node>());
    assert!(matches!(found, Resolved::Ready { hint } if hint != 0));
    let Lookup::Hit(v) = scope.follow_clean::<Node>(&back.ref_view(to_first)) else { panic!() };
    assert_eq!(v.fixed::<u64>(ID), 10);
    assert_eq!(write_set.get(oref(1, 0)), Some(Node { id: 1234, ..Node::read(&v) }.object()));
    assert_eq!(write_set.orefs(), [oref(1, 0)]);
    assert!(write_set.view::<Other>(&scope, oref(1, 0)).is_none());
    assert!(write_set.patch(oref(1, 0), NEXT, &[0xff; 4]).is_err(), "a swizzled word is no stored reference");
    drop(b);
}

#[test]
fn replaced_versions_are_freed_when_their_views_are_gone() {
    let mut w = chain();
    let scope = w.reader.scope().unwrap();
    let v = w.get(&scope, oref(1, 0)).unwrap();
    let write_set = WriteSet::new(&scope);
    let bytes = v.to_stored();
    write_set.put(oref(1, 0), &bytes, TypeKey::of::<Node>(), None).unwrap();
    let view = write_set.view::<Node>(&scope, oref(1, 0)).unwrap();
    write_set.patch(oref(1, 0), ID, &1u64.to_le_bytes()).unwrap();
    assert_eq!(write_set.bytes_total(), 2 * bytes.len());
    drop(view);
    write_set.put(oref(1, 0), &bytes, TypeKey::of::<Node>(), None).unwrap();
    assert_eq!(write_set.bytes_total(), bytes.len());
}

#[test]
fn scopes_are_pooled_up_to_their_number() {
    let w = chain();
    let all: Vec<Scope> = (0..4).map(|_| w.reader.scope().unwrap()).collect();
    assert!(w.reader.scope().is_none());
    drop(all);
    assert!(w.reader.scope().is_some());
}

#[test]
fn a_page_is_reported_as_dropped_once_nothing_names_it() {
    let mut w = hac();
    for p in 1..=60 {
        w.server.put(oref(p, 0), Kept::Plain, Node::new(p as u64, "", Oref::NULL, &[]));
    }
    let scope = w.reader.scope().unwrap();
    w.get(&scope, oref(1, 0)).unwrap();
    let mut out = vec![];
    let mut reader = w.reader.scope().unwrap();
    for p in 2..=60 {
        w.get(&reader, oref(p, 0)).unwrap();
        reader.reset();
        w.writer.dropped(&mut out);
    }
    let first = PageId::new(1).unwrap();
    assert!(!out.contains(&first), "an open read set names it");
    assert!(!out.is_empty());
    assert_eq!(w.read_set(&scope), [oref(1, 0)].into());
    drop((scope, reader));
    let mut later = vec![];
    w.writer.flag_all();
    let scope = w.reader.scope().unwrap();
    for p in 2..=60 {
        w.get(&scope, oref(p, 0)).ok();
        w.writer.dropped(&mut later);
    }
    assert!(later.contains(&first));
    w.writer.verify().unwrap();
}

#[test]
fn pins_hold_frames_and_a_full_cache_says_so() {
    let mut w = hac();
    for p in 1..=200 {
        w.server.put(oref(p, 0), Kept::Plain, Node::new(p as u64, "", Oref::NULL, &[]));
    }
    let scope = w.reader.scope().unwrap();
    let mut views = vec![];
    let full = (1..=200).find_map(|p| match w.get(&scope, oref(p, 0)) {
        Ok(v) => {
            views.push(v);
            None
        }
        Err(stop) => Some(stop),
    });
    assert_eq!(full, Some(Stop::Full));
    assert!(views.iter().zip(1u64..).all(|(v, p)| v.fixed::<u64>(ID) == p));
    w.writer.verify().unwrap();
    views.clear();
    assert_eq!(w.get(&scope, oref(150, 0)).unwrap().fixed::<u64>(ID), 150);
}

/// A frame that is being closed takes nothing in: readers would come in by the new entry after the fence, and
/// the pins that they leave might not be seen before the frame is taken.
#[test]
fn an_object_does_not_go_home_into_a_frame_that_is_being_closed() {
    // Every frame is looked at in every epoch, and two go at a time.
    let hac = HacParams { k: 190, s: 0, ..HacParams::default() };
    let mut w = World::new(Config { budget_bytes: 1_400 << 10, ..small(Policy::Hac(hac)) });
    assert!((128..192).contains(&w.writer.stats().frames));
    let wide = "w".repeat(700);

    // A frame of own versions: one that lasts, and others that are obsolete soon. Another such frame is
    // begun, so that this one can be taken.
    let (kept, home) = (oref(1, 0), PageId::new(1).unwrap());
    let own: Vec<Oref> = (0..20).map(|p| oref(1 + p, 0)).collect();
    for (n, o) in (0u64..).zip(&own) {
        w.server.put(*o, Kept::Plain, Node::new(n, &wide, Oref::NULL, &[]));
        w.writer.install_own(*o, &w.server.at(*o, Stamp(0)).object(), Stamp::ZERO).unwrap();
    }
    assert!(w.writer.stats().frames_compacted >= 2);
    let obsolete: Vec<(Oref, Node)> =
        own[1..].iter().map(|o| (*o, Node::new(0, "", Oref::NULL, &[]))).collect();
    w.commit(&obsolete);

    // The home of the one that lasts is fetched for its neighbours, and worth a little more than that frame.
    for slot in 1..4 {
        w.server.put(oref(1, slot), Kept::Plain, Node::new(slot as u64, "", Oref::NULL, &[]));
    }
    let neighbours = w.reader.scope().unwrap();
    (1..3).for_each(|slot| drop(w.get(&neighbours, oref(1, slot)).unwrap()));
    drop(neighbours);
    assert!(w.writer.is_cached(home));

    // Everything else is worth less and pinned, so none of it is closed, and only these two are left.
    let scope = w.reader.scope().unwrap();
    let mut views = Vec::new();
    for page in 100..400 {
        for slot in 0..60 {
            w.server.put(oref(page, slot), Kept::Plain, Node::new(page as u64, "", Oref::NULL, &[]));
        }
        views.push(w.get(&scope, oref(page, 0)).unwrap());
        if w.writer.stats().taken > 0 {
            break;
        }
    }
    let stats = w.writer.stats();
    assert!(!w.writer.is_cached(home), "{stats:?}");
    assert_eq!((stats.fences, stats.pinned, stats.taken), (1, 0, 2));
    // It and the two neighbours were in use.
    assert_eq!((stats.returned_home, stats.kept), (0, 3));
    w.writer.verify().unwrap();
    let fetches = w.fetches.len();
    assert_eq!(w.get(&scope, kept).unwrap().fixed::<u64>(ID), 0);
    assert_eq!(w.fetches.len(), fetches, "it was kept");
}

#[test]
fn a_leaked_view_pins_only_until_its_scope_ends() {
    let mut w = hac();
    for p in 1..=100 {
        w.server.put(oref(p, 0), Kept::Plain, Node::new(p as u64, "", Oref::NULL, &[]));
    }
    let mut scope = w.reader.scope().unwrap();
    for p in 1..=100 {
        let full = w.get(&scope, oref(p, 0)).map(std::mem::forget).is_err();
        if full {
            scope.reset();
        }
    }
    scope.reset();
    assert!((1..=100).all(|p| w.get(&scope, oref(p, 0)).is_ok()));
}

#[test]
fn flagging_a_page_reaches_what_was_kept_elsewhere() {
    let mut w = chain();
    let scope = w.reader.scope().unwrap();
    w.get(&scope, oref(1, 0)).unwrap();
    w.get(&scope, oref(2, 0)).unwrap();
    let own = Node::new(5, "own", Oref::NULL, &[]);
    w.commit(&[(oref(2, 0), own.clone())]);
    w.writer.install_own(oref(2, 0), &own.object(), Stamp::ZERO).unwrap();
    w.writer.flag_page(PageId::new(2).unwrap());
    let later = w.reader.scope().unwrap();
    assert!(matches!(
        w.writer.lookup(&later, oref(2, 0), Stamp::MAX, TypeKey::of::<Node>()),
        Resolved::Stale { .. } | Resolved::Miss { .. }
    ));
    assert!(matches!(
        w.writer.lookup(&later, oref(1, 0), Stamp::MAX, TypeKey::of::<Node>()),
        Resolved::Ready { .. }
    ));
}

/// Fills the cache with other pages until `o` has no copy any more.
fn evict(w: &mut World, o: Oref) {
    let mut scope = w.reader.scope().unwrap();
    for p in 100..400 {
        if !w.server.kept.contains_key(&oref(p, 0)) {
            w.server.put(oref(p, 0), Kept::Plain, Node::new(p as u64, "", Oref::NULL, &[]));
        }
        w.get(&scope, oref(p, 0)).unwrap();
        scope.reset();
        if !w.writer.is_cached(o.page()) && w.writer.stats().frames_compacted == 0 {
            return;
        }
    }
    w.writer.verify().unwrap();
}

#[test]
fn what_was_read_and_evicted_still_dooms_when_it_changes() {
    let mut w = World::new(small(Policy::Lru));
    w.server.put(oref(1, 0), Kept::Plain, Node::new(1, "", Oref::NULL, &[]));
    w.server.put(oref(2, 0), Kept::Plain, Node::new(2, "", Oref::NULL, &[]));
    let (s, t) = (w.reader.scope().unwrap(), w.reader.scope().unwrap());
    w.get(&s, oref(1, 0)).unwrap();
    w.get(&t, oref(2, 0)).unwrap();
    evict(&mut w, oref(1, 0));
    assert!(!w.writer.is_cached(PageId::new(1).unwrap()) && s.has_moved(oref(1, 0)));
    assert_eq!(w.read_set(&s), [oref(1, 0)].into());
    w.commit(&[(oref(1, 0), Node::new(9, "", Oref::NULL, &[]))]);
    assert_eq!((w.writer.recheck(&s), w.writer.recheck(&t)), (Err(Doomed), Ok(())));
}

#[test]
fn a_change_reaches_the_copy_in_a_superseded_frame() {
    let mut w = chain();
    let scope = w.reader.scope().unwrap();
    let a = w.get(&scope, oref(1, 0)).unwrap();
    drop(w.follow(&scope, &a, NEXT).unwrap());
    let mut later = w.reader.scope().unwrap();
    // The page is fetched again although nothing in it changed: `a` stays in the old frame, valid.
    w.fetch(PageId::new(1).unwrap()).unwrap();
    let b = w.follow(&scope, &a, NEXT).unwrap().unwrap();
    assert_eq!(b.fixed::<u64>(ID), 11);
    w.commit(&[(oref(1, 1), Node::new(111, "new", Oref::NULL, &[]))]);
    assert_eq!(w.writer.recheck(&scope), Err(Doomed));
    later.reset();
    assert_eq!(w.get(&later, oref(1, 1)).unwrap().fixed::<u64>(ID), 111);
}

#[test]
fn a_private_copy_is_asked_for_even_when_the_shared_one_was_fetched_anew() {
    let mut w = chain();
    let scope = w.reader.scope().unwrap();
    let back = w.get(&scope, oref(2, 0)).unwrap();
    let at = back.var_at(KIDS, 0);
    drop(w.follow(&scope, &back, at).unwrap());
    scope.set_overlaid(true);
    w.fetch(PageId::new(1).unwrap()).unwrap();
    assert!(matches!(
        w.writer.resolve(&scope, &back.ref_view(at), TypeKey::of::<Node>()),
        Resolved::Ready { .. }
    ));
    // The new copy has no mark of the first read, and yet the caller must look at its private copies.
    assert!(matches!(scope.follow::<Node>(&back, at), Lookup::Slow));
    assert!(matches!(scope.follow_clean::<Node>(&back.ref_view(at)), Lookup::Hit(_)));
}

#[test]
fn handles_come_back_while_a_scope_stays_open() {
    let mut w = World::new(small(Policy::Lru));
    for p in 1..=3000 {
        w.server.put(oref(p, 0), Kept::Plain, Node::new(p as u64, "", Oref::NULL, &[]));
    }
    let idle = w.reader.scope().unwrap();
    let before = w.writer.stats().table_bytes;
    for p in 1..=3000 {
        let scope = w.reader.scope().unwrap();
        w.get(&scope, oref(p, 0)).unwrap();
        w.writer.dropped(&mut vec![]);
    }
    let stats = w.writer.stats();
    assert!(stats.taken > 2000 && stats.table_bytes == before, "{stats:?}");
    drop(idle);
}

#[test]
fn unchanged_page_is_trusted_in_place_and_what_changed_in_it_is_not() {
    let mut w = World::new(small(Policy::Lru));
    let (a, b) = (oref(1, 0), oref(1, 1));
    w.server.put(a, Kept::Plain, Node::new(1, "a", b, &[]));
    w.server.put(b, Kept::Plain, Node::new(2, "b", a, &[]));
    let page = PageId::new(1).unwrap();
    let scope = w.reader.scope().unwrap();
    assert_eq!(Node::read(&w.get(&scope, a).unwrap()).id, 1);
    drop(scope);
    assert_eq!(w.writer.unsure_since(page), None);
    w.commit(&[(b, Node::new(3, "b", a, &[]))]);
    let heard = w.writer.watermark();
    w.writer.flag_page(page);
    assert_eq!((w.writer.unsure_of(a), w.writer.unsure_of(b)), (Some(heard), None));
    w.writer.advance(Stamp(heard.0 + 5));
    // Flagged a second time, it still is of the first stamp.
    w.writer.flag_all();
    assert_eq!(w.writer.unsure_since(page), Some(heard));
    let installs = w.writer.stats().installs;
    w.writer.trust(page, Stamp(heard.0 + 5));
    w.writer.verify().unwrap();
    let scope = w.reader.scope().unwrap();
    assert_eq!(Node::read(&w.get(&scope, a).unwrap()).id, 1);
    assert_eq!(w.writer.stats().installs, installs);
    let key = TypeKey::of::<Node>();
    assert_eq!(w.writer.lookup(&scope, b, Stamp::MAX, key), Resolved::Stale { page });
    drop(scope);
    // Of a history that is over nothing can be trusted.
    w.writer.flag_page(page);
    w.writer.begin_history(Stamp(1));
    assert_eq!((w.writer.unsure_since(page), w.writer.unsure_of(a)), (None, None));
}

#[test]
fn frame_without_a_copy_that_could_be_used_again_is_not_doubted() {
    let mut w = World::new(small(Policy::Lru));
    let (changed, same) = (oref(1, 0), oref(2, 0));
    for (n, object) in [changed, same].into_iter().enumerate() {
        w.server.put(object, Kept::Plain, Node::new(n as u64, "", Oref::NULL, &[]));
        let scope = w.reader.scope().unwrap();
        w.get(&scope, object).unwrap();
    }
    w.commit(&[(changed, Node::new(7, "", Oref::NULL, &[]))]);
    let heard = w.writer.watermark();
    w.writer.flag_all();
    let unsure = [changed, same].map(|object| w.writer.unsure_since(object.page()));
    assert_eq!(unsure, [None, Some(heard)]);
}
