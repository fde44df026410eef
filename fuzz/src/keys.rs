//! Keys of maps: any bytes are read or refused, and the order of keys is that of their bytes.

use std::cmp::{Ordering, Reverse};
use std::fmt::Debug;

use arbitrary::{Result, Unstructured};
use tercel_collections::Key;
use tercel_collections::key::show;
use tercel_wire::record::{Bytes, Text};

/// Reads keys from the bytes as they are, and compares keys that they describe.
pub fn run(data: &[u8]) {
    any::<(bool, char)>(data);
    any::<f64>(data);
    any::<Text>(data);
    any::<(Option<Text>, i16)>(data);
    any::<(u8, Reverse<Bytes>, Option<Reverse<Text>>, Text)>(data);
    if let Some((shape, key)) =
        data.split_first().and_then(|(n, rest)| rest.split_at_checked((n & 31).into()))
    {
        let _ = show(shape, key);
    }
    let _ = compare(&mut Unstructured::new(data));
}

/// A key has one form: what is read is written as it was.
fn any<K: Key>(data: &[u8]) {
    if let Ok(key) = K::decode(data) {
        assert_eq!(bytes(&key), data, "{key:?}");
        assert!(show(K::SHAPE.as_bytes(), data).is_some());
    }
}

fn bytes<K: Key>(key: &K) -> Vec<u8> {
    K::encode(key.arg()).as_ref().to_vec()
}

fn compare(u: &mut Unstructured<'_>) -> Result<()> {
    type Parts = (String, i64, Option<Vec<u8>>, u128, bool, char, f32);
    let (a, b): (Parts, Parts) = (u.arbitrary()?, u.arbitrary()?);
    in_order(&a.6, &b.6, a.6.total_cmp(&b.6));
    let key = |p: &Parts| (Text(p.0.clone()), p.1, Reverse(p.2.clone().map(Bytes)), p.3);
    of_ord(key(&a), key(&b));
    let key = |p: &Parts| (Reverse((Text(p.0.clone()), p.4)), p.5, p.2.clone().map(Bytes));
    of_ord(key(&a), key(&b));
    Ok(())
}

fn of_ord<K: Key + Ord>(a: K, b: K) {
    in_order(&a, &b, a.cmp(&b));
}

fn in_order<K: Key + Debug>(a: &K, b: &K, expected: Ordering) {
    assert_eq!(bytes(a).cmp(&bytes(b)), expected, "{a:?} {b:?}");
    for key in [a, b] {
        let read = K::decode(&bytes(key)).expect("a key that was written");
        assert_eq!(bytes(&read), bytes(key));
    }
}
