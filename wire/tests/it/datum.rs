//! Values by the layout alone: what fits comes back, what does not is refused, and nothing panics.

use proptest::collection::vec;
use proptest::prelude::*;
use tercel_wire::datum::{Datum, decode, encode};
use tercel_wire::layout::{Layout, Shape};
use tercel_wire::payload::Payload;
use tercel_wire::schema::Scalar;

use crate::decoders::{layout, mutated};

/// A value of a type, in the form in which it comes back.
fn fitting(shape: &Shape) -> BoxedStrategy<Datum> {
    let list = |t: &Shape, n| vec(fitting(t), n).prop_map(Datum::List).boxed();
    match shape {
        Shape::Scalar(s) => scalar(*s),
        Shape::Array(s, n) => list(&Shape::Scalar(*s), *n as usize..=*n as usize),
        Shape::Text => prop_oneof![4 => ".{0,9}", 1 => "[a-z]{1000,1100}"].prop_map(Datum::Text).boxed(),
        Shape::Bytes => "([0-9a-f]{2}){0,9}".prop_map(Datum::Text).boxed(),
        Shape::Ref(_) => {
            let there = (1u32..1 << 22, 0u16..512).prop_map(|(p, s)| Datum::Text(format!("{p}.{s}")));
            prop_oneof![there, Just(Datum::Null)].boxed()
        }
        Shape::Far(_) => {
            let there = (any::<u64>(), any::<u32>(), 1u32..1 << 22, 0u16..512);
            let there =
                there.prop_map(|(n, view, p, s)| Datum::Text(format!("{n:x}.{view:x}.7.{n:x}@{p}.{s}")));
            prop_oneof![there, Just(Datum::Null)].boxed()
        }
        // Long ones leave the record, where they may.
        Shape::List(t) if t.spills() && t.size() < 16 => {
            prop_oneof![3 => list(t, 0..=3), 1 => list(t, 1_030..=1_040)].boxed()
        }
        Shape::List(t) => list(t, 0..=2),
        Shape::Option(t) => prop_oneof![fitting(t), Just(Datum::Null)].boxed(),
        Shape::Record(layout) => record(layout),
        Shape::Enum(layout) => {
            let variants = layout.fields()[1..].iter().map(|p| {
                let (name, Shape::Record(fields)) = (p.name.clone(), &p.shape) else { panic!() };
                match fields.fields() {
                    [] => Just(Datum::Text(name)).boxed(),
                    _ => record(fields).prop_map(move |v| Datum::Map(vec![(name.clone(), v)])).boxed(),
                }
            });
            prop::strategy::Union::new(variants).boxed()
        }
    }
}

fn scalar(s: Scalar) -> BoxedStrategy<Datum> {
    let float = |x: f64| match x {
        x if x.is_finite() => Datum::Float(x),
        x if x.is_nan() => Datum::Text("NaN".into()),
        x => Datum::Text(if x > 0.0 { "inf" } else { "-inf" }.into()),
    };
    macro_rules! whole {
        ($t:ty) => {
            any::<$t>().prop_map(|n| Datum::Int(n.into())).boxed()
        };
    }
    match s {
        Scalar::U8 => whole!(u8),
        Scalar::U16 => whole!(u16),
        Scalar::U32 => whole!(u32),
        Scalar::U64 => whole!(u64),
        Scalar::I8 => whole!(i8),
        Scalar::I16 => whole!(i16),
        Scalar::I32 => whole!(i32),
        Scalar::I64 => whole!(i64),
        Scalar::F32 => prop::num::f32::ANY.prop_map(move |x| float(x.into())).boxed(),
        Scalar::F64 => prop::num::f64::ANY.prop_map(float).boxed(),
        Scalar::Bool => any::<bool>().prop_map(Datum::Bool).boxed(),
    }
}

fn record(layout: &Layout) -> BoxedStrategy<Datum> {
    let names: Vec<String> = layout.fields().iter().map(|p| p.name.clone()).collect();
    let values: Vec<_> = layout.fields().iter().map(|p| fitting(&p.shape)).collect();
    values.prop_map(move |values| Datum::Map(names.iter().cloned().zip(values).collect())).boxed()
}

/// Any value at all.
fn any_datum() -> impl Strategy<Value = Datum> {
    let leaf = prop_oneof![
        Just(Datum::Null),
        any::<bool>().prop_map(Datum::Bool),
        any::<i128>().prop_map(Datum::Int),
        (-3i128..300).prop_map(Datum::Int),
        prop::num::f64::ANY.prop_map(Datum::Float),
        "[0-9a-f.V]{0,4}".prop_map(Datum::Text),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Datum::List),
            vec(("[fV][0-3]", inner), 0..4).prop_map(Datum::Map),
        ]
    })
}

proptest! {
    #[test]
    fn fitting_value_comes_back(
        (layout, datum) in layout().prop_flat_map(|l| { let of = record(&l); (Just(l), of) })
    ) {
        let mut bytes = vec![1, 2, 3];
        match encode(&layout, &datum, &mut bytes) {
            Ok(()) => {
                let payload = Payload::decode(&bytes[3..], &layout).unwrap();
                prop_assert_eq!(decode(&layout, &payload), Ok(datum));
            }
            // Of a list that cannot leave its record, or a record above a page.
            Err(e) => {
                prop_assert!(e.what.contains("at most") || e.what.contains("a page holds"), "{}", e);
                prop_assert_eq!(bytes, vec![1, 2, 3]);
            }
        }
    }

    #[test]
    fn any_value_is_encoded_as_a_payload_or_refused(layout in layout(), datum in any_datum()) {
        let mut bytes = Vec::new();
        match encode(&layout, &datum, &mut bytes) {
            Ok(()) => {
                let payload = Payload::decode(&bytes, &layout).unwrap();
                prop_assert!(decode(&layout, &payload).is_ok());
            }
            Err(_) => prop_assert!(bytes.is_empty()),
        }
    }

    #[test]
    fn damaged_payload_is_read_or_refused(
        (layout, bytes) in layout().prop_flat_map(|l| {
            let of = record(&l).prop_flat_map({
                let l = l.clone();
                move |datum| {
                    let mut bytes = Vec::new();
                    encode(&l, &datum, &mut bytes).ok();
                    mutated(bytes)
                }
            });
            (Just(l), of)
        })
    ) {
        if let Ok(payload) = Payload::decode(&bytes, &layout) {
            decode(&layout, &payload).ok();
        }
    }
}
