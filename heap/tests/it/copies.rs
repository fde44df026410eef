//! A heap without frames: what a scope reads is copied into it.

use std::sync::Arc;

use crate::common::*;
use tercel_heap::{Copied, Copier, Lookup, Scope, TypeKey, View, WriteSet};
use tercel_machine::random::Random;
use tercel_wire::id::{ClassId, Oref, Stamp};
use tercel_wire::layout::Layout;
use tercel_wire::record::{Class, Encoder, NoSpill, Ref, Text, Value};
use tercel_wire::schema::{Field, Schema, Type};

const ROOM: usize = 64 << 10;

/// A heap that reads nodes of both versions.
fn copier(bytes: usize) -> Copier {
    let mut c = Copier::new(2, bytes);
    c.define(NODE, Arc::new(Layout::of(&Node::SCHEMA)));
    c.define(OTHER, Arc::new(Layout::of(&Other::SCHEMA)));
    c.define(OLD, Arc::new(Layout::of(&OLD_SCHEMA)));
    c.define(WIDE, Arc::new(Layout::of(&WIDE_SCHEMA)));
    c.bind(TypeKey::of::<Node>(), NODE).unwrap();
    c.bind_converted(TypeKey::of::<Node>(), WIDE).unwrap();
    c.bind_converted(TypeKey::of::<Node>(), OLD).unwrap();
    c
}

/// A node with a number that the program does not know.
const WIDE: ClassId = ClassId(19);
const WIDE_SCHEMA: Schema = Schema {
    name: "Node",
    fields: &[
        Field { name: "id", ty: u64::TYPE },
        Field { name: "name", ty: Text::TYPE },
        Field { name: "next", ty: Type::Ref("Node") },
        Field { name: "kids", ty: Type::List(&Type::Ref("Node")) },
        Field { name: "secret", ty: u64::TYPE },
    ],
};

fn wide(id: u64) -> Vec<u8> {
    let mut no = NoSpill;
    let mut e = Encoder::new(WIDE_SCHEMA.size(), &mut no);
    id.put(&mut e, WIDE_SCHEMA.offset(0));
    42u64.put(&mut e, WIDE_SCHEMA.offset(4));
    e.finish(WIDE).unwrap()
}

/// A node as it was before it had a name.
const NAMELESS: ClassId = ClassId(20);
const NAMELESS_SCHEMA: Schema = Schema { name: "Node", fields: &[Field { name: "id", ty: u64::TYPE }] };

#[test]
fn older_version_that_lacks_a_field_is_written_as_the_program_has_it() {
    let mut c = copier(ROOM);
    c.define(NAMELESS, Arc::new(Layout::of(&NAMELESS_SCHEMA)));
    c.bind_converted(TypeKey::of::<Node>(), NAMELESS).unwrap();
    let scope = c.scope(Stamp(1)).unwrap();
    let at = oref(1, 0);
    let record = [&NAMELESS.0.to_le_bytes()[..], &[0; 2], &7u64.to_le_bytes()].concat();
    assert_eq!(keep(&c, &scope, at, &record), Copied::Ready);
    let v = view(&scope, at);
    let write_set = WriteSet::new(&scope);
    let named = Node::new(7, "seven", oref(2, 7), &[]);
    write_set.put(at, &named.object(), TypeKey::of::<Node>(), v.behind()).unwrap();
    assert_eq!(write_set.record(at), Some(named.object()));
}

fn keep(c: &Copier, scope: &Scope, at: Oref, object: &[u8]) -> Copied {
    c.keep(scope, at, object, Stamp::ZERO, TypeKey::of::<Node>())
}

fn node(id: u64) -> Node {
    Node::new(id, "zwölf", oref(2, 7), &[oref(3, 1), Oref::NULL])
}

fn view(scope: &Scope, at: Oref) -> View<'_, Node> {
    scope.copy(at, Stamp::MAX).expect("a copy")
}

#[test]
fn copy_is_not_found_by_a_reference_older_than_its_page() {
    let c = copier(ROOM);
    let scope = c.scope(Stamp(5)).unwrap();
    let at = oref(1, 0);
    let kept = c.keep(&scope, at, &node(12).object(), Stamp(4), TypeKey::of::<Node>());
    assert_eq!(kept, Copied::Ready);
    assert!(scope.copy::<Node>(at, Stamp(3)).is_none() && scope.copy::<Node>(at, Stamp(4)).is_some());
    assert!(scope.may_be_reborn(Stamp(3)) && !scope.may_be_reborn(Stamp(4)));
}

#[test]
fn copied_object_reads_as_it_was_stored() {
    let c = copier(ROOM);
    let scope = c.scope(Stamp(5)).unwrap();
    let at = oref(1, 0);
    assert!(scope.copy::<Node>(at, Stamp::MAX).is_none());
    assert_eq!(keep(&c, &scope, at, &node(12).object()), Copied::Ready);
    let v = view(&scope, at);
    assert_eq!(Node::read(&v), node(12));
    assert_eq!((v.to_stored(), v.behind(), v.token()), (node(12).object(), None, (at, 0)));
    assert_eq!((scope.snapshot(), v.is_private()), (Stamp(5), true));
    // No hit ends well here, with whatever hint.
    for hint in [0, 1, 1 << 31, u32::MAX] {
        assert!(matches!(scope.get(Ref::<Node>::with_hint(at, hint)), Lookup::Slow));
    }
    assert!(matches!(scope.follow::<Node>(&v, NEXT), Lookup::Slow));
    assert!(matches!(v.items(KIDS).nth::<Node>(0), Some(Lookup::Slow)));
    assert!(matches!(v.items(KIDS).nth::<Node>(1), Some(Lookup::Null)));
}

#[test]
fn first_copy_stays_and_its_views_with_it() {
    let c = copier(ROOM);
    let mut scope = c.scope(Stamp(1)).unwrap();
    keep(&c, &scope, oref(1, 0), &node(1).object());
    let before = view(&scope, oref(1, 0));
    assert_eq!(keep(&c, &scope, oref(1, 0), &node(2).object()), Copied::Ready);
    (0..200).for_each(|i| _ = keep(&c, &scope, oref(2, i), &node(i as u64).object()));
    assert_eq!((before.fixed::<u64>(ID), view(&scope, oref(1, 0)).fixed::<u64>(ID)), (1, 1));
    drop(before);
    scope.reset();
    assert!(scope.copy::<Node>(oref(1, 0), Stamp::MAX).is_none());
    keep(&c, &scope, oref(1, 0), &node(2).object());
    assert_eq!(view(&scope, oref(1, 0)).fixed::<u64>(ID), 2);
}

#[test]
fn older_version_is_converted_and_its_unknown_field_survives_a_change() {
    let c = copier(ROOM);
    let scope = c.scope(Stamp(1)).unwrap();
    let (at, old) = (oref(1, 0), node(7).old_object("secret"));
    assert_eq!(keep(&c, &scope, at, &old), Copied::Ready);
    let v = view(&scope, at);
    assert_eq!((Node::read(&v), v.behind()), (node(7), Some(old.clone())));
    // A version that can hold all that this program writes is written back as what it was.
    let (at, wide) = (oref(1, 1), wide(7));
    keep(&c, &scope, at, &wide);
    let v = view(&scope, at);
    let write_set = WriteSet::new(&scope);
    write_set.put(at, &v.to_stored(), TypeKey::of::<Node>(), v.behind()).unwrap();
    write_set.patch(at, ID, &9u64.to_le_bytes()).unwrap();
    assert_eq!(write_set.record(at), Some(self::wide(9)));
    assert_eq!(Node::read(&v).id, 7);
}

#[test]
fn wrong_type_is_refused_and_not_read() {
    let c = copier(ROOM);
    let scope = c.scope(Stamp(1)).unwrap();
    let at = oref(1, 0);
    let mut other = node(1).object();
    other[..2].copy_from_slice(&OTHER.0.to_le_bytes());
    assert_eq!(keep(&c, &scope, at, &other), Copied::Unbound { class: OTHER });
    let mut damaged = node(1).object();
    damaged.truncate(8);
    assert!(matches!(keep(&c, &scope, at, &damaged), Copied::Damaged(_)));
    assert!(matches!(keep(&c, &scope, at, &[0; 3]), Copied::Damaged(_)));
    let mut swizzled = node(1).object();
    swizzled[4 + NEXT + 3] |= 0x80;
    assert!(matches!(keep(&c, &scope, at, &swizzled), Copied::Damaged(_)));
    let other = TypeKey::of::<Other>();
    assert_eq!(c.keep(&scope, at, &node(1).object(), Stamp::ZERO, other), Copied::WrongClass { found: NODE });
    let mut read = Vec::new();
    c.read_set(&scope, &mut read);
    assert_eq!(read, []);
    // Once it is here, it is of one type.
    keep(&c, &scope, at, &node(1).object());
    assert_eq!(c.keep(&scope, at, &node(1).object(), Stamp::ZERO, other), Copied::WrongClass { found: NODE });
    assert!(scope.copy::<Other>(at, Stamp::MAX).is_none());
}

#[test]
fn read_set_has_what_was_there_and_what_was_not() {
    let c = copier(ROOM);
    let (scope, beside) = (c.scope(Stamp(1)).unwrap(), c.scope(Stamp(2)).unwrap());
    assert!(c.scope(Stamp(2)).is_none(), "two may be open");
    for at in [oref(3, 0), oref(1, 1), oref(3, 0)] {
        keep(&c, &scope, at, &node(1).object());
    }
    assert!(c.keep_absent(&scope, oref(2, 0)) && c.keep_absent(&scope, oref(2, 0)));
    let mut read = vec![oref(9, 9)];
    c.read_set(&scope, &mut read);
    assert_eq!(read, [oref(9, 9), oref(1, 1), oref(2, 0), oref(3, 0)]);
    assert!(c.has_read(&scope, oref(2, 0)) && !c.has_read(&beside, oref(2, 0)));
    assert!(c.has_read_nothing(&beside) && !c.has_read_nothing(&scope));
    c.adopt(&scope, Stamp(4));
    c.doom(&beside);
    assert_eq!((scope.snapshot(), scope.doomed(), beside.doomed()), (Stamp(4), false, true));
    drop(beside);
    assert!(!c.scope(Stamp(5)).unwrap().doomed());
}

#[test]
fn scope_is_full_at_its_bound_and_keeps_what_it_has() {
    let c = copier(ROOM);
    let scope = c.scope(Stamp(1)).unwrap();
    let large = Node { name: Text("x".repeat(900)), ..node(1) }.object();
    let kept = (0..).take_while(|i| keep(&c, &scope, oref(1, *i), &large) == Copied::Ready).count();
    let bytes = kept * large.len();
    assert!(bytes <= ROOM && bytes > ROOM - 2 * large.len() - kept * 200, "{kept} copies");
    assert_eq!(keep(&c, &scope, oref(5, 0), &large), Copied::Full);
    assert_eq!(keep(&c, &scope, oref(1, 0), &large), Copied::Ready, "what is here needs no room");
    let absent = (0..500u16).filter(|i| c.keep_absent(&scope, oref(6, *i))).count();
    assert!(absent < 500 && c.keep_absent(&scope, oref(6, 0)) == (absent > 0));
    // The bound is each scope's own.
    assert_eq!(keep(&c, &c.scope(Stamp(1)).unwrap(), oref(5, 0), &large), Copied::Ready);
}

#[test]
#[should_panic(expected = "a scope of this heap")]
fn scope_of_another_heap_is_refused() {
    let scope = copier(ROOM).scope(Stamp(1)).unwrap();
    keep(&copier(ROOM), &scope, oref(1, 0), &node(1).object());
}

#[test]
fn random_reads_are_those_of_a_map() {
    let mut rng = Random::new(11);
    let c = copier(1 << 20);
    let scope = c.scope(Stamp(1)).unwrap();
    let mut model = std::collections::BTreeMap::new();
    let mut views = Vec::new();
    for i in 0..3_000u64 {
        let at = oref(1 + rng.below(8) as u32, rng.below(64) as u16);
        let n =
            Node::new(i & 0xffff, &"é".repeat(rng.below(40) as usize), at, &vec![at; rng.below(9) as usize]);
        let object = if rng.below(3) == 0 { n.old_object("?") } else { n.object() };
        assert_eq!(keep(&c, &scope, at, &object), Copied::Ready);
        model.entry(at).or_insert(n);
        views.push((at, view(&scope, at)));
        if rng.below(4) == 0 {
            views.swap_remove(rng.below(views.len() as u64) as usize);
        }
    }
    assert!(views.iter().all(|(at, v)| (Node::read(v), v.oref()) == (model[at].clone(), *at)));
    let mut read = Vec::new();
    c.read_set(&scope, &mut read);
    assert!(read.iter().eq(model.keys()));
}

#[test]
fn class_that_was_never_defined_is_not_bound() {
    let mut c = Copier::new(0, 0);
    assert!(c.bind(TypeKey::of::<Node>(), ClassId(99)).is_err());
    assert!(c.bind_converted(TypeKey::of::<Node>(), OLD).is_err());
    // At least one scope, with no room at all.
    let scope = c.scope(Stamp(0)).unwrap();
    assert!(!c.keep_absent(&scope, oref(1, 0)));
}

/// Memory is used again by the next scope: nothing of what was in it is found, whatever was read by how many.
#[test]
fn next_scope_finds_nothing_of_the_last() {
    let c = copier(1 << 20);
    let place = |n: u64| oref(1 + (n / 100) as u32, (n % 100) as u16);
    for (round, objects) in [1, 300, 2, 0, 65, 3].into_iter().enumerate() {
        let (mut scope, other) = (c.scope(Stamp(1)).unwrap(), c.scope(Stamp(1)).unwrap());
        for again in 0..2 {
            assert!(c.has_read_nothing(&scope) && (0..300).all(|n| !c.has_read(&scope, place(n))));
            let nodes: Vec<Node> = (0..objects)
                .map(|n| {
                    // Of another length each round, so that what is left of an earlier one would show.
                    let name = "n".repeat((n as usize * 7 + 31 * round + again) % 900);
                    Node::new(n, &name, oref(2, 7), &[])
                })
                .collect();
            for node in &nodes {
                assert_eq!(keep(&c, &scope, place(node.id), &node.object()), Copied::Ready);
            }
            assert!(c.keep_absent(&scope, oref(9, 9)) && c.has_read_nothing(&other));
            for node in &nodes {
                assert_eq!(Node::read(&view(&scope, place(node.id))), *node, "round {round}");
            }
            scope.reset();
        }
    }
}
