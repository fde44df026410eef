//! The code that `#[derive(Object)]` and `#[derive(Record)]` make of a struct, seen by a crate that hosts it.
#![deny(missing_docs, warnings)]

mod host;

use host::__private::{Error, Object as _, Record as _, Stored};
use host::{body, edit, view};
use tercel_derive::{Object, Record};
use tercel_heap::{TypeIndex, Typed};
use tercel_wire::id::Oref;
use tercel_wire::layout::Layout;
use tercel_wire::record::{Any, Class, List, Ref, Text, Value};
use tercel_wire::schema::{Field, Scalar, Schema, Type};

/// A part of a machine.
#[derive(Debug, Clone, PartialEq, Object)]
#[object(crate = "crate::host")]
pub struct Part {
    /// Its number.
    id: u8,
    next: Ref<Self>,
    name: Text,
    size: Option<Size>,
    uses: List<Ref<Machine>>,
    tag: Option<Ref<Any>>,
}

/// A size in units.
#[derive(Debug, Clone, PartialEq, Record)]
#[object(crate = "crate::host")]
pub struct Size {
    unit: u8,
    wide: u32,
    high: i64,
}

/// The other end of a circle of references.
#[derive(Debug, Clone, PartialEq, Object)]
#[object(name = "shop.Machine", crate = "crate::host")]
struct Machine {
    parts: List<Ref<Part>>,
}

fn part() -> Part {
    Part {
        id: 7,
        next: Ref::new(Oref::from_raw(5 << 9).unwrap()),
        name: "gear".into(),
        size: Some(Size { unit: 1, wide: 640, high: -480 }),
        uses: List(vec![Ref::new(Oref::from_raw(6 << 9).unwrap()), Ref::NULL]),
        tag: None,
    }
}

#[test]
fn the_schema_names_the_fields_in_order() {
    const SIZE: Schema = Size::SCHEMA;
    let fields = [
        Field { name: "id", ty: Type::Scalar(Scalar::U8) },
        Field { name: "next", ty: Type::Ref("Part") },
        Field { name: "name", ty: Type::Text },
        Field { name: "size", ty: Type::Option(&Type::Record(&SIZE)) },
        Field { name: "uses", ty: Type::List(&Type::Ref("shop.Machine")) },
        Field { name: "tag", ty: Type::Option(&Type::Ref("")) },
    ];
    assert_eq!(Part::SCHEMA.name, "Part");
    assert_eq!(Part::SCHEMA.fields, fields);
    assert_eq!(Machine::SCHEMA.name, "shop.Machine");
    assert_eq!(SIZE.name, "Size");
}

#[test]
fn a_compiled_class_is_one_that_a_catalogue_accepts() {
    for schema in [Part::SCHEMA, Machine::SCHEMA, Odd::SCHEMA, Wide::SCHEMA] {
        assert_eq!(Layout::of(&schema).admissible(), Ok(()));
    }
}

#[test]
fn an_object_that_is_stored_and_loaded_is_the_same() {
    let body = body(&part());
    Layout::of(&Part::SCHEMA).check(&body).unwrap();
    assert_eq!(Part::load(&Stored { body: &body }), Ok(part()));
}

#[test]
fn damage_in_a_field_is_the_error_of_the_load() {
    let mut body = body(&part());
    body[Part::SCHEMA.offset(2)..][..2].copy_from_slice(&u16::MAX.to_le_bytes());
    assert_eq!(Part::load(&Stored { body: &body }), Err(Error));
}

#[test]
fn a_view_reads_each_field_at_its_place() {
    let body = body(&part());
    let view = view::<Part>(&body);
    assert_eq!(view.id(), 7);
    assert_eq!(view.next(), part().next);
    assert_eq!(view.name(), Ok("gear"));
    assert_eq!(view.size(), part().size);
    assert_eq!(view.uses(), Ok(part().uses.0));
    assert_eq!(view.tag(), None);
    assert_eq!(Part::raw(&view).stored().body, body);
}

#[test]
fn a_setter_says_which_field_and_where() {
    let mut sets = vec![];
    let part = edit::<Part>(&mut sets);
    part.set_id(9).unwrap();
    part.set_name("wheel").unwrap();
    part.set_next(Ref::NULL).unwrap();
    part.set_uses(vec![]).unwrap();
    part.set_size(None).unwrap();
    part.push_uses(Ref::NULL).unwrap();
    let places: Vec<_> = sets.iter().map(|(field, at, _)| (*field, *at)).collect();
    assert_eq!(places, [0, 2, 1, 4, 3, 4].map(|i| (i, Part::SCHEMA.offset(i))));
    assert_eq!(sets[0].2, [9, 0, 0, 0]);
    assert_eq!(sets[1].2, *b"\x04\0\x05\0wheel\0\0\0");
}

#[test]
fn an_editor_knows_its_reference() {
    let mut sets = vec![];
    assert_eq!(edit::<Part>(&mut sets).reference().oref(), Oref::from_raw(77 << 9).unwrap());
}

#[test]
fn each_class_has_its_own_number() {
    let index = |i: &'static TypeIndex| std::ptr::from_ref(i);
    assert_ne!(index(Part::index()), index(Machine::index()));
    assert_eq!(index(Part::index()), index(Part::index()));
}

#[test]
fn a_nested_record_is_read_and_written_where_it_stands() {
    let size = Size { unit: 2, wide: 3, high: 4 };
    assert_eq!(<Size as Value>::TYPE, Type::Record(&Size::SCHEMA));
    let body = body(&Outer { before: 1, size: size.clone() });
    assert_eq!(Size::load_fields(&Stored { body: &body }, 4), Ok(size.clone()));
    assert_eq!(view::<Outer>(&body).size(), Ok(size));
}

/// Lists of records, one in the other.
#[derive(Debug, Clone, PartialEq, Object)]
#[object(crate = "crate::host")]
struct Bill {
    date: u16,
    lines: List<Line>,
}

#[derive(Debug, Clone, PartialEq, Record)]
#[object(crate = "crate::host")]
struct Line {
    what: Text,
    part: Ref<Part>,
    sizes: List<Size>,
}

#[test]
fn a_list_of_records_is_a_list_in_the_schema_and_comes_back_from_the_bytes() {
    const LINE: Schema = Line::SCHEMA;
    assert_eq!(Bill::SCHEMA.fields[1].ty, Type::List(&Type::Record(&LINE)));
    let size = |n| Size { unit: n, wide: 2, high: -3 };
    let lines = vec![
        Line { what: "gear".into(), part: Ref::NULL, sizes: List(vec![size(1), size(2)]) },
        Line { what: "".into(), part: part().next, sizes: List::default() },
    ];
    let bill = Bill { date: 7, lines: List(lines.clone()) };
    let bytes = body(&bill);
    Layout::of(&Bill::SCHEMA).check(&bytes).unwrap();
    assert_eq!(view::<Bill>(&bytes).lines().to_vec(), Ok(lines.clone()));
    assert_eq!(Bill::load(&Stored { body: &bytes }), Ok(bill));

    let mut sets = vec![];
    edit::<Bill>(&mut sets).set_lines(lines).unwrap();
    assert_eq!((sets[0].0, sets[0].1), (1, Bill::SCHEMA.offset(1)));
}

#[test]
fn a_pushed_element_is_made_of_what_a_setter_would_take() {
    #[derive(Object)]
    #[object(crate = "crate::host")]
    struct Tagged {
        tags: List<Text>,
    }
    let mut sets = vec![];
    edit::<Tagged>(&mut sets).push_tags("red").unwrap();
    assert!(sets[0].2.ends_with(b"red\0"), "{sets:?}");
}

/// Something that is one of several.
#[derive(Debug, Clone, PartialEq, Record)]
#[object(crate = "crate::host", name = "shop.State")]
enum State {
    /// It is on the shelf.
    New,
    Built(Ref<Machine>, u8),
    r#Gone {
        at: u32,
        e: Option<Ref<Machine>>,
        value: Text,
    },
}

#[derive(Debug, Clone, PartialEq, Object)]
#[object(crate = "crate::host")]
struct Tracked {
    before: u8,
    state: State,
    were: List<State>,
}

#[test]
fn the_schema_of_an_enum_names_variants_and_their_fields() {
    let names = |schema: &Schema| schema.fields.iter().map(|f| f.name).collect::<Vec<_>>();
    assert_eq!((State::SCHEMA.name, names(&State::SCHEMA)), ("shop.State", vec!["", "New", "Built", "Gone"]));
    let of: Vec<_> = State::SCHEMA.fields[1..]
        .iter()
        .map(|f| match f.ty {
            Type::Record(fields) => (fields.name, names(fields)),
            _ => panic!("{f:?}"),
        })
        .collect();
    assert_eq!(of, [("New", vec![]), ("Built", vec!["0", "1"]), ("Gone", vec!["at", "e", "value"])]);
    assert_eq!(Layout::of(&Tracked::SCHEMA).admissible(), Ok(()));
}

#[test]
fn each_variant_comes_back_from_the_bytes() {
    let to = Ref::new(Oref::from_raw(6 << 9).unwrap());
    let states = [
        State::New,
        State::Built(to, 7),
        State::Gone { at: 9, e: None, value: "lost".into() },
        State::Gone { at: 0, e: Some(to), value: "".into() },
    ];
    for state in &states {
        let tracked = Tracked { before: 1, state: state.clone(), were: List(states.to_vec()) };
        let bytes = body(&tracked);
        Layout::of(&Tracked::SCHEMA).check(&bytes).unwrap();
        assert_eq!(Tracked::load(&Stored { body: &bytes }), Ok(tracked));
        assert_eq!(view::<Tracked>(&bytes).state().as_ref(), Ok(state));
        assert_eq!(view::<Tracked>(&bytes).were().to_vec(), Ok(states.to_vec()));
    }
}

#[test]
fn a_value_of_no_variant_is_an_error_of_the_load() {
    let mut bytes = body(&Tracked { before: 1, state: State::New, were: List::new() });
    bytes[Tracked::SCHEMA.offset(1)] = 3;
    assert_eq!(view::<Tracked>(&bytes).state(), Err(Error));
}

#[test]
fn an_enum_without_data_takes_a_byte() {
    #[derive(Record)]
    #[object(crate = "crate::host")]
    #[allow(dead_code)]
    enum Role {
        Reader = 10,
        Writer = 20,
    }
    assert_eq!((<Role as Value>::TYPE.size(), <Option<Role> as Value>::TYPE.size()), (1, 2));
}

/// A record behind something.
#[derive(Object)]
#[object(crate = "crate::host")]
struct Outer {
    before: u8,
    size: Size,
}

/// Names that the expansion uses itself, or that Rust keeps.
#[derive(Debug, Clone, PartialEq, Object)]
#[object(crate = "crate::host")]
struct Odd {
    r#type: u8,
    view: u8,
    raw: u8,
    load: u8,
    value: u8,
    e: u8,
    stored: u8,
    wrong: u8,
    encode: u8,
    _low: u8,
    fit: [u8; Odd::FIT],
}

impl Odd {
    const FIT: usize = 3;
}

#[test]
fn a_field_may_have_almost_any_name() {
    let odd = Odd {
        r#type: 1,
        view: 2,
        raw: 3,
        load: 4,
        value: 5,
        e: 6,
        stored: 7,
        wrong: 8,
        encode: 9,
        _low: 10,
        fit: [11; 3],
    };
    let body = body(&odd);
    let view = view::<Odd>(&body);
    assert_eq!(Odd::SCHEMA.fields[0].name, "type");
    assert_eq!([view.r#type(), view.view(), view.raw(), view.load(), view.value()], [1, 2, 3, 4, 5]);
    assert_eq!([view.e(), view.stored(), view.wrong(), view.encode(), view._low()], [6, 7, 8, 9, 10]);
    assert_eq!(view.fit(), [11; 3]);
    let mut sets = vec![];
    edit::<Odd>(&mut sets).set_type(3).unwrap();
    assert_eq!(sets, [(0, 0, vec![3, 0, 0, 0])]);
}

/// The largest there can be.
#[derive(Object)]
#[object(crate = "crate::host")]
struct Wide {
    all: [u8; 8_016],
}

mod elsewhere {
    use super::host;
    use tercel_derive::Object;

    #[derive(Object)]
    #[object(crate = "super::host")]
    pub(super) struct Inner {
        private: u32,
    }

    #[derive(Object)]
    #[object(crate = "host")]
    struct Hidden {
        pub shown: u32,
    }

    pub(super) fn hidden() -> u32 {
        let body = host::body(&Hidden { shown: 3 });
        host::view::<Hidden>(&body).shown()
    }

    pub(super) fn inner() -> Inner {
        Inner { private: 4 }
    }
}

#[test]
fn accessors_reach_as_far_as_the_struct() {
    let body = body(&elsewhere::inner());
    assert_eq!(view::<elsewhere::Inner>(&body).private(), 4);
    assert_eq!(elsewhere::hidden(), 3);
}

#[test]
fn a_class_can_stand_in_a_function() {
    #[derive(Object)]
    #[object(crate = "crate::host")]
    struct Local {
        n: u16,
    }
    assert_eq!(view::<Local>(&body(&Local { n: 12 })).n(), 12);
}

macro_rules! pair {
    ($name:ident, $first:ident: $a:ty, $b:ty) => {
        #[derive(Object)]
        #[object(crate = "crate::host")]
        struct $name {
            $first: $a,
            second: Option<$b>,
        }
    };
}
pair!(Pair, first: Text, Ref<Pair>);

#[test]
fn a_macro_can_make_the_struct() {
    let body = body(&Pair { first: "a".into(), second: None });
    let view = view::<Pair>(&body);
    assert_eq!((view.first(), view.second()), (Ok("a"), None));
    let mut sets = vec![];
    edit::<Pair>(&mut sets).set_first("b").unwrap();
    assert_eq!(sets.len(), 1);
}

#[test]
fn one_struct_can_be_a_class_and_a_record() {
    #[derive(Debug, PartialEq, Object, Record)]
    #[object(crate = "crate::host", name = "Both", class)]
    struct Both {
        n: u16,
    }
    let body = body(&Both { n: 5 });
    assert_eq!(Both::load(&Stored { body: &body }), Both::load_fields(&Stored { body: &body }, 0));
    assert_eq!(<Both as Class>::SCHEMA, <Both as host::Record>::SCHEMA);
}
