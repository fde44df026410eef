//! Objects in compacted frames are walked by what they say of themselves, so what they say must be all there
//! is of them.

use std::sync::Arc;

use crate::common::*;
use tercel_heap::*;
use tercel_wire::class::built_in;
use tercel_wire::id::{ClassId, Oref, SpaceId, Stamp};
use tercel_wire::layout::Layout;
use tercel_wire::page::{OBJECT_BYTES_MAX, Page, PageBuilder};
use tercel_wire::record::*;
use tercel_wire::schema::Schema;

/// A class written by hand, without fields.
struct Empty;

tercel_heap::typed!(Empty);

impl Class for Empty {
    const SCHEMA: Schema = Schema { name: "Empty", fields: &[] };

    fn encode(&self, _: &mut Encoder<'_>) {}
}

const EMPTY: ClassId = ClassId(19);

fn world() -> World {
    let mut w = World::new(small(Policy::Hac(HacParams::default())));
    w.writer.define(EMPTY, Arc::new(Layout::of(&Empty::SCHEMA)));
    w.writer.bind(TypeKey::of::<Empty>(), EMPTY).unwrap();
    w
}

fn empty() -> Vec<u8> {
    let mut no = NoSpill;
    Encoder::new(Empty::SCHEMA.size(), &mut no).finish(EMPTY).unwrap()
}

/// A node with words behind it that would be taken for the next object of a frame: a handle, a header that
/// says valid.
fn hostile() -> Vec<u8> {
    let mut object = Node::new(1, "one", Oref::NULL, &[]).object();
    object.extend([0xff, 0xff, 0xff, 0x3f, 1, 0, 1, 0]);
    object.extend([0xff; 40]);
    object
}

#[test]
fn an_own_version_with_bytes_behind_its_parts_is_left_out() {
    let mut w = world();
    w.writer.install_own(oref(1, 0), &hostile(), Stamp::ZERO).unwrap();
    assert_eq!(w.writer.stats().installs_own, 0, "what stands behind a record is walked as an object");
    w.writer.verify().unwrap();
}

#[test]
fn a_page_object_with_bytes_behind_its_parts_is_refused_at_its_first_touch() {
    let mut w = world();
    let (at, page) = (oref(1, 0), oref(1, 0).page());
    let mut b = PageBuilder::new(Vec::new(), page, SpaceId(1));
    assert!(b.push(0, &hostile()));
    let bytes = b.finish(Stamp(0));
    w.writer.install(&Page::parse(&bytes, page).unwrap(), Stamp(0), &[]).unwrap();
    let scope = w.reader.scope().unwrap();
    let found = w.writer.lookup(&scope, at, Stamp::MAX, TypeKey::of::<Node>());
    assert!(matches!(found, Resolved::Damaged(_)), "{found:?}");
}

#[test]
fn an_own_version_larger_than_a_page_holds_is_left_out() {
    let mut w = world();
    // All of it is the text of a node, so that nothing but its size is wrong.
    let mut object = Node::new(1, "", Oref::NULL, &[]).object();
    let (from, len) = (object.len() - HEADER_BYTES, OBJECT_BYTES_MAX + 2_000);
    object.resize(object.len() + len, b'x');
    object[HEADER_BYTES + NAME..][..2].copy_from_slice(&(from as u16).to_le_bytes());
    object[HEADER_BYTES + NAME + 2..][..2].copy_from_slice(&(len as u16).to_le_bytes());
    w.writer.install_own(oref(1, 0), &object, Stamp::ZERO).unwrap();
    assert_eq!(
        w.writer.stats().installs_own,
        0,
        "{} bytes were put into a frame of {FRAME_BYTES}",
        object.len()
    );
    w.writer.verify().unwrap();
}

#[test]
fn objects_without_fields_are_walked_as_they_are_padded() {
    let mut w = world();
    let nodes = [oref(1, 1), oref(1, 3)];
    w.writer.install_own(oref(1, 0), &empty(), Stamp::ZERO).unwrap();
    w.writer.install_own(nodes[0], &Node::new(1, "one", Oref::NULL, &[]).object(), Stamp::ZERO).unwrap();
    w.writer.install_own(oref(1, 2), &empty(), Stamp::ZERO).unwrap();
    w.writer.install_own(nodes[1], &Node::new(3, "three", Oref::NULL, &[]).object(), Stamp::ZERO).unwrap();
    assert_eq!(w.writer.verify(), Ok(()));
    // Each object behind one without fields is found, so that it can be made obsolete with all others.
    w.writer.flag_all();
    let scope = w.reader.scope().unwrap();
    for o in nodes {
        let found = w.writer.lookup(&scope, o, Stamp::MAX, TypeKey::of::<Node>());
        assert!(matches!(found, Resolved::Miss { .. }), "{o} is still shown: {found:?}");
    }
}

#[test]
fn an_object_without_fields_comes_out_as_it_was_stored() {
    let mut w = world();
    w.writer.install_own(oref(1, 0), &empty(), Stamp::ZERO).unwrap();
    let scope = w.reader.scope().unwrap();
    let Resolved::Ready { hint } = w.writer.lookup(&scope, oref(1, 0), Stamp::MAX, TypeKey::of::<Empty>())
    else {
        panic!()
    };
    let Lookup::Hit(view) = scope.get(Ref::<Empty>::with_hint(oref(1, 0), hint)) else { panic!() };
    assert_eq!(view.to_stored(), empty());
}

#[test]
fn classes_of_tercel_itself_are_what_their_bytes_say() {
    for (_, layout) in built_in() {
        let zeros = vec![0; layout.size().next_multiple_of(4).max(4)];
        assert_eq!(layout.check(&zeros), Ok(()), "{}", layout.name());
        assert!(layout.check(&[&zeros[..], &[0; 4]].concat()).is_err(), "{}", layout.name());
    }
}
