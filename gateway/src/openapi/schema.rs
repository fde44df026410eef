//! Types of the space and of methods, as JSON schemas.

use serde_json::{Map, Value, json};
use tercel::tools::wire::layout::{Layout, Shape};
use tercel::tools::wire::schema::Scalar;

use crate::json::interfaces::Named;

/// A named type, by its name.
pub fn schema(of: Named<'_>) -> (String, Value) {
    let schema = if of.is_enum { variants(of.variants()) } else { record(of.layout) };
    (schema_name(of.layout.name()), schema)
}

/// A record: optional fields may be left out.
pub fn record(layout: &Layout) -> Value {
    let properties: Map<String, Value> =
        layout.fields().iter().map(|f| (f.name.clone(), shape(&f.shape))).collect();
    json!({ "type": "object", "required": required(layout), "properties": properties })
}

/// The fields that no record goes without.
pub fn required(layout: &Layout) -> Vec<&str> {
    let all = layout.fields().iter().filter(|f| !matches!(f.shape, Shape::Option(_)));
    all.map(|f| f.name.as_str()).collect()
}

/// An enum: a variant is its name, or an object of its name and its value.
fn variants<'a>(all: impl Iterator<Item = (&'a str, Option<&'a Layout>)>) -> Value {
    let all: Vec<_> = all.map(|(name, of)| (name, of.filter(|of| !of.fields().is_empty()))).collect();
    if all.iter().all(|(_, of)| of.is_none()) {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        return json!({ "type": "string", "enum": names });
    }
    let all = all.into_iter().map(|(name, of)| match of {
        None => json!({ "type": "string", "enum": [name] }),
        Some(of) => {
            let value = match of.fields() {
                [only] if only.name == "0" => shape(&only.shape),
                _ => record(of),
            };
            json!({ "type": "object", "required": [name], "properties": { name: value } })
        }
    });
    json!({ "oneOf": all.collect::<Vec<_>>() })
}

/// A value of a type.
pub fn shape(of: &Shape) -> Value {
    match of {
        Shape::Scalar(s) => scalar(*s),
        Shape::Array(s, n) => json!({ "type": "array", "items": scalar(*s), "minItems": n, "maxItems": n }),
        Shape::Text => json!({ "type": "string" }),
        Shape::Bytes => json!({ "type": "string", "description": "two hexadecimal digits a byte" }),
        Shape::Ref(class) => {
            let of = if class.is_empty() { "any object" } else { class };
            json!({ "type": ["string", "null"], "description": format!("PAGE.SLOT of {of}") })
        }
        Shape::Far(_) => json!({ "type": ["string", "null"], "description": "a reference with its space" }),
        Shape::List(of) => json!({ "type": "array", "items": shape(of) }),
        Shape::Option(of) => json!({ "oneOf": [{ "type": "null" }, shape(of)] }),
        Shape::Record(of) | Shape::Enum(of) => {
            json!({ "$ref": format!("#/components/schemas/{}", schema_name(of.name())) })
        }
    }
}

/// A number says how many bits it has: without that, generated clients take 32.
fn scalar(of: Scalar) -> Value {
    let integer = |format: &str, min: i64, max: u64| json!({ "type": "integer", "format": format, "minimum": min, "maximum": max });
    match of {
        Scalar::Bool => json!({ "type": "boolean" }),
        Scalar::F32 => json!({ "type": "number", "format": "float" }),
        Scalar::F64 => json!({ "type": "number", "format": "double" }),
        Scalar::U8 => integer("int32", 0, u8::MAX.into()),
        Scalar::U16 => integer("int32", 0, u16::MAX.into()),
        Scalar::U32 => integer("int64", 0, u32::MAX.into()),
        Scalar::U64 => {
            let mut of = integer("int64", 0, u64::MAX);
            // As generators know it that have a type for this.
            of["x-unsigned"] = true.into();
            of
        }
        Scalar::I8 => integer("int32", i8::MIN.into(), i8::MAX as u64),
        Scalar::I16 => integer("int32", i16::MIN.into(), i16::MAX as u64),
        Scalar::I32 => integer("int32", i32::MIN.into(), i32::MAX as u64),
        Scalar::I64 => integer("int64", i64::MIN, i64::MAX as u64),
    }
}

/// A name as components have it: letters, digits, dots, dashes and underscores.
pub fn schema_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect()
}
