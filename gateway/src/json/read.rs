//! Reading JSON as it is written: a name that stands twice in an object is two fields, for the reader of the
//! fields to refuse. [`serde_json::Value`] would keep the last without a word.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use tercel::tools::wire::datum::Datum;

/// A value as it is written.
pub struct Written(pub Datum);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Written, D::Error> {
        from.deserialize_any(Reader).map(Written)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Datum;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Datum, E> {
        Ok(Datum::Null)
    }

    fn visit_bool<E>(self, is: bool) -> Result<Datum, E> {
        Ok(Datum::Bool(is))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Datum, E> {
        Ok(Datum::Int(n.into()))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Datum, E> {
        Ok(Datum::Int(n.into()))
    }

    fn visit_f64<E>(self, x: f64) -> Result<Datum, E> {
        Ok(Datum::Float(x))
    }

    fn visit_str<E>(self, text: &str) -> Result<Datum, E> {
        Ok(Datum::Text(text.into()))
    }

    fn visit_string<E>(self, text: String) -> Result<Datum, E> {
        Ok(Datum::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Datum, A::Error> {
        let mut values = Vec::new();
        while let Some(Written(value)) = from.next_element()? {
            values.push(value);
        }
        Ok(Datum::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Datum, A::Error> {
        let mut fields = Vec::new();
        while let Some((name, Written(value))) = from.next_entry()? {
            fields.push((name, value));
        }
        Ok(Datum::Map(fields))
    }
}
