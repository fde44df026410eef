//! Written values are read back, and nothing makes the decoder panic.

use std::borrow::Cow;

use proptest::collection::vec;
use proptest::prelude::*;
use tercel_step::{Body, Decoder, Limits, Record, Step, Value, write_file, write_instance};

const KEYWORDS: [&str; 4] = ["A", "CARTESIAN_POINT", "_X9", "!OWN"];
const NAMES: [&str; 3] = ["T", "UNSPECIFIED", "_A1"];

fn value() -> impl Strategy<Value = Value<'static>> {
    let leaf = prop_oneof![
        Just(Value::Omitted),
        Just(Value::Derived),
        any::<i64>().prop_map(Value::Integer),
        any::<f64>().prop_filter("finite", |real| real.is_finite()).prop_map(Value::Real),
        ".{0,12}".prop_map(|text| Value::Text(Cow::Owned(text))),
        vec(any::<char>(), 0..8).prop_map(|text| Value::Text(Cow::Owned(text.into_iter().collect()))),
        prop::sample::select(&NAMES[..]).prop_map(Value::Enumeration),
        prop::sample::select(&["0", "0AF", "3F"][..]).prop_map(Value::Binary),
        any::<u64>().prop_map(Value::Reference),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        let typed = (prop::sample::select(&KEYWORDS[..]), inner.clone())
            .prop_map(|(keyword, value)| Value::Typed(keyword, Box::new(value)));
        prop_oneof![vec(inner, 0..5).prop_map(Value::List), typed]
    })
}

fn record() -> impl Strategy<Value = Record<'static>> {
    (prop::sample::select(&KEYWORDS[..]), vec(value(), 0..5))
        .prop_map(|(keyword, parameters)| Record { keyword, parameters })
}

fn body() -> impl Strategy<Value = Body<'static>> {
    prop_oneof![3 => record().prop_map(Body::Simple), 1 => vec(record(), 1..4).prop_map(Body::Complex)]
}

/// Feeds the text in pieces of so many bytes and compares its instances with the expected ones.
fn read_back(text: &str, bytes: usize, expected: &[(u64, Body<'_>)]) {
    let mut decoder = Decoder::new(Limits::default());
    let mut pieces = text.as_bytes().chunks(bytes);
    let mut expected = expected.iter();
    loop {
        match decoder.step().unwrap() {
            Step::More => match pieces.next() {
                Some(piece) => decoder.feed(piece),
                None => decoder.end(),
            },
            Step::Instance(found) => {
                let (id, body) = expected.next().expect("an instance that was written");
                assert_eq!((found.id, &found.body), (*id, body));
            }
            Step::End => break,
            Step::Header(_) | Step::Data(_) => {}
        }
    }
    assert_eq!(expected.next(), None);
}

proptest! {
    #[test]
    fn written_instances_are_read_back(
        instances in vec((any::<u64>(), body()), 0..8),
        bytes in 1usize..200,
        name in ".{0,20}",
        end in prop::sample::select(&["", "\n", "\r\n", "\r", " /* ;' */ "][..]),
    ) {
        let mut text = String::new();
        for (id, body) in &instances {
            write_instance(*id, body, &mut text);
            text.push_str(end);
        }
        read_back(&write_file(&name, "X", &text), bytes, &instances);
    }

    #[test]
    fn damaged_files_are_refused_or_read(
        instances in vec((any::<u64>(), body()), 0..4),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut text = String::new();
        instances.iter().for_each(|(id, body)| write_instance(*id, body, &mut text));
        let mut bytes = write_file("n", "X", &text).into_bytes();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let mut decoder = Decoder::default();
        decoder.feed(&bytes);
        decoder.end();
        // The lines of an error are those of the file.
        let lines = bytes.iter().filter(|b| matches!(b, b'\n' | b'\r')).count() as u64 + 1;
        loop {
            match decoder.step() {
                Ok(Step::End) => break,
                Ok(Step::More) => panic!("more is wanted after the end"),
                Ok(_) => {}
                Err(error) => {
                    assert!((1..=lines).contains(&error.line), "{error}");
                    break;
                }
            }
        }
    }
}
