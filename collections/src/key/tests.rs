use std::cmp::{Ordering, Reverse};
use std::fmt::Debug;

use proptest::prelude::*;
use tercel_wire::datum::Datum;

use super::*;

fn bytes<K: Key>(key: &K) -> Vec<u8> {
    K::encode(key.arg()).as_ref().to_vec()
}

/// Checks both forms of two keys whose order is known.
fn assert_in_order<K: Key>(a: &K, b: &K, expected: Ordering) {
    assert_eq!(bytes(a).cmp(&bytes(b)), expected, "{a:?} {b:?}");
    let [x, y] = [a, b].map(|key| {
        let mut bytes = Vec::new();
        K::put(key.arg(), Form::Inner, &mut bytes);
        bytes
    });
    assert_eq!(x.cmp(&y), expected, "{a:?} {b:?}");
    assert!(expected.is_eq() || !(x.starts_with(&y) || y.starts_with(&x)), "one ends before the other");
    for key in [a, b] {
        assert_eq!(bytes(&K::decode(&bytes(key)).unwrap()), bytes(key));
        let mut inner = Vec::new();
        K::put(key.arg(), Form::Inner, &mut inner);
        inner.extend([7, 7]);
        let mut rest = &inner[..];
        let read = K::take(&mut rest, Form::Inner).unwrap();
        assert_eq!((bytes(&read), rest), (bytes(key), &[7, 7][..]));
    }
}

fn ordered<K: Key + Ord>(a: K, b: K) {
    assert_in_order(&a, &b, a.cmp(&b));
}

/// A text of few characters, a zero among them.
fn text() -> impl Strategy<Value = Text> {
    prop::collection::vec(prop::sample::select(vec!['\0', '\u{1}', 'a', 'ÿ', '\u{10ffff}']), 0..5)
        .prop_map(|chars| Text(chars.into_iter().collect()))
}

/// Bytes that have a meaning in an inner part.
fn string() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(prop::sample::select(vec![0, 1, 0xfe, 0xff]), 0..5).prop_map(Bytes)
}

proptest! {
    #[test]
    fn unsigned_numbers_are_in_order(a: (u8, u16, u32, u64, u128), b: (u8, u16, u32, u64, u128)) {
        ordered(a.0, b.0);
        ordered(a.1, b.1);
        ordered(a.2, b.2);
        ordered(a.3, b.3);
        ordered(a.4, b.4);
    }

    #[test]
    fn signed_numbers_are_in_order(a: (i8, i16, i32, i64, i128), b: (i8, i16, i32, i64, i128)) {
        ordered(a.0, b.0);
        ordered(a.1, b.1);
        ordered(a.2, b.2);
        ordered(a.3, b.3);
        ordered(a.4, b.4);
    }
}

proptest! {
    #[test]
    fn truths_characters_and_arrays_are_in_order(a: (bool, char, [u8; 3]), b: (bool, char, [u8; 3])) {
        ordered(a.0, b.0);
        ordered(a.1, b.1);
        ordered(a.2, b.2);
        ordered(a, b);
    }

    #[test]
    fn floats_are_in_total_order(a: (u32, u64), b: (u32, u64)) {
        let (x, y) = (f32::from_bits(a.0), f32::from_bits(b.0));
        assert_in_order(&x, &y, x.total_cmp(&y));
        let (x, y) = (f64::from_bits(a.1), f64::from_bits(b.1));
        assert_in_order(&x, &y, x.total_cmp(&y));
    }

    #[test]
    fn texts_and_strings_are_in_order(a in (text(), string()), b in (text(), string())) {
        ordered(a.0.clone(), b.0.clone());
        ordered(a.1.clone(), b.1.clone());
        ordered(Reverse(a.0), Reverse(b.0));
        ordered(Reverse(Some(a.1)), Reverse(Some(b.1)));
    }

    #[test]
    fn tuples_are_in_the_order_of_parts(
        a in (text(), any::<i8>(), string(), text()),
        b in (text(), any::<i8>(), string(), text()),
    ) {
        ordered((a.0.clone(), a.1), (b.0.clone(), b.1));
        ordered((a.1, Reverse(a.0.clone()), a.2.clone()), (b.1, Reverse(b.0.clone()), b.2.clone()));
        ordered((a.2.clone(), (a.3.clone(), a.1)), (b.2.clone(), (b.3.clone(), b.1)));
        ordered(a, b);
    }

    #[test]
    fn options_begin_with_none(a: Option<i16>, b: Option<i16>, c in prop::option::of(text())) {
        ordered(a, b);
        ordered((c.clone(), a), (c.clone(), b));
        ordered((a, c.clone()), (b, c));
    }

    #[test]
    fn prefix_finds_what_begins_with_it(a in (text(), 0..3u8, text()), b in (text(), 0..3u8, text())) {
        type K = (Text, u8, Text);
        let mut one = Vec::new();
        Prefix::<K>::put_prefix((&*a.0,), &mut one);
        prop_assert_eq!(bytes(&b).starts_with(&one), a.0 == b.0);
        let mut two = Vec::new();
        Prefix::<K>::put_prefix((&*a.0, a.1), &mut two);
        prop_assert_eq!(bytes(&b).starts_with(&two), (&a.0, a.1) == (&b.0, b.1));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(prop::sample::select(vec![0, 1, 2, 65, 0xfe, 0xff]), 0..40)) {
        any_is_read_or_refused(&bytes);
    }
}

/// A key that is read from bytes is written as they are: none has two forms.
fn reads_as_written<K: Key>(from: &[u8]) {
    if let Ok(key) = K::decode(from) {
        assert_eq!(bytes(&key), from, "{key:?}");
    }
}

fn any_is_read_or_refused(from: &[u8]) {
    reads_as_written::<bool>(from);
    reads_as_written::<char>(from);
    reads_as_written::<f64>(from);
    reads_as_written::<Text>(from);
    reads_as_written::<Option<Reverse<Text>>>(from);
    reads_as_written::<(Bytes, i16)>(from);
    reads_as_written::<(u8, Option<Text>, Reverse<Bytes>, Text)>(from);
    if let Some(shape) = Shape::read(from) {
        assert!(!shape.to_string().is_empty());
    }
}

fn hex<K: Key + Debug>(key: K) -> String {
    bytes(&key).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_bytes_of_keys() {
    assert_eq!(hex(7u8), "07");
    assert_eq!(hex(0x0102u16), "0102");
    assert_eq!(hex(1u32), "00000001");
    assert_eq!(hex(1u64), "0000000000000001");
    assert_eq!(hex(1u128), "00000000000000000000000000000001");
    assert_eq!((hex(-1i8), hex(0i8), hex(1i8)), ("7f".into(), "80".into(), "81".into()));
    assert_eq!((hex(-2i16), hex(i32::MIN)), ("7ffe".into(), "00000000".into()));
    assert_eq!(
        (hex(-1i64), hex(1i128)),
        ("7fffffffffffffff".into(), "80000000000000000000000000000001".into())
    );
    assert_eq!((hex(true), hex('é')), ("01".into(), "000000e9".into()));
    assert_eq!((hex(1.0f32), hex(-1.0f32)), ("bf800000".into(), "407fffff".into()));
    assert_eq!((hex(0.0f64), hex(-0.0f64)), ("8000000000000000".into(), "7fffffffffffffff".into()));
    assert_eq!((hex([9u8, 8]), hex(Text::from("a\0"))), ("0908".into(), "6100".into()));
    assert_eq!((hex(None::<u8>), hex(Some(5u8))), ("00".into(), "0105".into()));
    assert_eq!(hex(Reverse(Text::from("a"))), "9effff");
    assert_eq!(hex((Text::from("a\0b"), 1u8)), "6100ff62000001");
    assert_eq!(hex((1u8, Bytes::from([0]))), "0100");
    assert_eq!(
        hex((Some(Text::from("x")), None::<u8>, Reverse(2u8), Text::from("end"))),
        "0178000000fd656e64"
    );
}

#[test]
fn golden_bytes_of_shapes() {
    let shape = |shape: Shape| (shape.as_bytes().to_vec(), shape.to_string());
    assert_eq!(shape(Text::SHAPE), (vec![1], "text".into()));
    assert_eq!(shape(Bytes::SHAPE.set()), (vec![2, 64], "bytes alone".into()));
    let values = <(u64, Reverse<[u8; 300]>)>::SHAPE.values(&tercel_wire::schema::Type::Text);
    assert_eq!(
        shape(values),
        (vec![34, 3, 19, 17, 44, 1, 65, 1], "(u64, Reverse<[u8; 300]>) with values of text".into())
    );
    let record = Option::<u8>::SHAPE.values(&<[u16; 2] as tercel_wire::record::Value>::TYPE);
    assert_eq!(
        shape(record),
        (vec![18, 4, 65, 66, 125, 116, 75, 238], "Option<u8> with values of a record".into())
    );
    let all = [
        (u8::SHAPE, 4),
        (u16::SHAPE, 5),
        (u32::SHAPE, 6),
        (u64::SHAPE, 3),
        (u128::SHAPE, 7),
        (i8::SHAPE, 8),
        (i16::SHAPE, 9),
        (i32::SHAPE, 10),
        (i64::SHAPE, 11),
        (i128::SHAPE, 12),
        (bool::SHAPE, 13),
        (char::SHAPE, 14),
        (f32::SHAPE, 15),
        (f64::SHAPE, 16),
    ];
    for (shape, code) in all {
        assert_eq!(shape.as_bytes(), [code]);
    }
}

#[test]
fn untyped_key_is_the_typed_one() {
    fn same<K: Key>(key: K, datum: Datum) {
        let mut bytes = Vec::new();
        K::put(key.arg(), Form::Last, &mut bytes);
        let shape = K::SHAPE;
        assert_eq!(to_datum(shape.as_bytes(), &bytes), Some(datum.clone()), "{key:?}");
        let (mut rest, mut made) = (shape.as_bytes(), Vec::new());
        put_datum(&mut rest, &datum, Form::Last, &mut made).unwrap();
        assert_eq!((made, rest), (bytes, &[][..]), "{key:?}");
    }
    let text = |text: &str| Datum::Text(text.into());
    same(-5_i8, Datum::Int(-5));
    same(u64::MAX, Datum::Int(u64::MAX.into()));
    same(i128::MIN, text(&i128::MIN.to_string()));
    same(true, Datum::Bool(true));
    same('ß', text("ß"));
    same(-0.5_f32, Datum::Float(-0.5));
    same(f64::NEG_INFINITY, text("-inf"));
    same(Text("a\0b".into()), text("a\0b"));
    same(Bytes(vec![0, 255]), text("00ff"));
    same([1_u8, 2], text("0102"));
    same(None::<(u8, u8)>, Datum::Null);
    same(Some(Text(String::new())), text(""));
    let parts = vec![text("a\0"), Datum::Int(7), Datum::Null];
    same((Text("a\0".into()), std::cmp::Reverse(7_u16), None::<Text>), Datum::List(parts));
    for (shape, datum) in
        [(u8::SHAPE, Datum::Int(256)), (<[u8; 2]>::SHAPE, text("01")), (char::SHAPE, text("ab"))]
    {
        assert!(put_datum(&mut shape.as_bytes(), &datum, Form::Last, &mut Vec::new()).is_err());
    }
    assert_eq!(to_datum(u16::SHAPE.as_bytes(), &[1]), None);
}
