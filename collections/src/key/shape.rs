//! The description of a map's keys, and of values in its nodes, as its nodes carry it.
//!
//! A code for each type, before the codes of the types that it is made of: `(u32, Reverse<Text>)` is 34, 6,
//! 19, 1.

use std::fmt;

use tercel_wire::layout::Shape as WireShape;
use tercel_wire::schema::{Scalar, Schema, Type};

pub(super) const TEXT: u8 = 1;
pub(super) const BYTES: u8 = 2;
pub(super) const U64: u8 = 3;
pub(super) const U8: u8 = 4;
pub(super) const U16: u8 = 5;
pub(super) const U32: u8 = 6;
pub(super) const U128: u8 = 7;
pub(super) const I8: u8 = 8;
pub(super) const I16: u8 = 9;
pub(super) const I32: u8 = 10;
pub(super) const I64: u8 = 11;
pub(super) const I128: u8 = 12;
pub(super) const BOOL: u8 = 13;
pub(super) const CHAR: u8 = 14;
pub(super) const F32: u8 = 15;
pub(super) const F64: u8 = 16;
/// The code of an array; the number of its elements follows in two bytes.
pub(super) const ARRAY: u8 = 17;
pub(super) const OPTION: u8 = 18;
pub(super) const REVERSE: u8 = 19;
/// The code of a tuple, less the number of its parts, 2 to 4.
pub(super) const TUPLE: u8 = 32;
/// The mark of a set, behind the code of its keys.
pub const SET: u8 = 64;
/// The mark of a map whose values stand in the nodes, between the code of its keys and the values' type.
pub const VALUES: u8 = 65;
/// A type of values that is no type of keys, then four bytes that are others for another type.
const OTHER: u8 = 66;

/// Names of the types without parts, by their codes.
const NAMES: [&str; 17] = [
    "", "text", "bytes", "u64", "u8", "u16", "u32", "u128", "i8", "i16", "i32", "i64", "i128", "bool",
    "char", "f32", "f64",
];

/// Bytes of a description at most.
pub const SHAPE_BYTES_MAX: usize = 32;

/// The description of a map's keys, and of values in its nodes.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    len: usize,
    bytes: [u8; SHAPE_BYTES_MAX],
}

impl Shape {
    pub(super) const fn new(code: u8) -> Shape {
        let mut bytes = [0; SHAPE_BYTES_MAX];
        bytes[0] = code;
        Shape { len: 1, bytes }
    }

    pub(super) const fn array(n: usize) -> Shape {
        assert!(n <= u16::MAX as usize, "an array in a key has at most 65,535 elements");
        Shape::new(ARRAY).then(Shape::new(n as u8)).then(Shape::new((n >> 8) as u8))
    }

    pub(super) const fn tuple(parts: usize) -> Shape {
        Shape::new(TUPLE + parts as u8)
    }

    /// The same with another behind.
    #[must_use]
    pub const fn then(self, other: Shape) -> Shape {
        let mut both = self;
        assert!(self.len + other.len <= SHAPE_BYTES_MAX, "a key is made of fewer parts");
        let mut i = 0;
        while i < other.len {
            both.bytes[both.len] = other.bytes[i];
            both.len += 1;
            i += 1;
        }
        both
    }

    /// The description of a set of such keys.
    #[must_use]
    pub const fn set(self) -> Shape {
        self.then(Shape::new(SET))
    }

    /// The shape of a map from such keys to values of the type, which stand in its nodes.
    #[must_use]
    pub const fn values(self, ty: &Type) -> Shape {
        self.then(Shape::new(VALUES)).then(Shape::of_value(ty))
    }

    const fn of_value(ty: &Type) -> Shape {
        match ty {
            Type::Scalar(scalar) => Shape::new(match scalar {
                Scalar::U8 => U8,
                Scalar::U16 => U16,
                Scalar::U32 => U32,
                Scalar::U64 => U64,
                Scalar::I8 => I8,
                Scalar::I16 => I16,
                Scalar::I32 => I32,
                Scalar::I64 => I64,
                Scalar::F32 => F32,
                Scalar::F64 => F64,
                Scalar::Bool => BOOL,
            }),
            Type::Text => Shape::new(TEXT),
            Type::Bytes => Shape::new(BYTES),
            other => {
                let digest = digest(other, 0x811c_9dc5);
                let mut shape = Shape::new(OTHER);
                let mut i = 0;
                while i < 4 {
                    shape = shape.then(Shape::new((digest >> (8 * i)) as u8));
                    i += 1;
                }
                shape
            }
        }
    }

    /// The number that stands for the shape in a stored map.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// A description that was read; none if it is too long.
    pub fn read(stored: &[u8]) -> Option<Shape> {
        let mut shape = Shape { len: stored.len(), bytes: [0; SHAPE_BYTES_MAX] };
        shape.bytes.get_mut(..stored.len())?.copy_from_slice(stored);
        Some(shape)
    }
}

/// The type of a value in a node, by its code; none of one that is no type of keys.
pub fn of_value_code(code: u8) -> Option<WireShape> {
    Some(WireShape::Scalar(match code {
        TEXT => return Some(WireShape::Text),
        BYTES => return Some(WireShape::Bytes),
        U8 => Scalar::U8,
        U16 => Scalar::U16,
        U32 => Scalar::U32,
        U64 => Scalar::U64,
        I8 => Scalar::I8,
        I16 => Scalar::I16,
        I32 => Scalar::I32,
        I64 => Scalar::I64,
        F32 => Scalar::F32,
        F64 => Scalar::F64,
        BOOL => Scalar::Bool,
        _ => return None,
    }))
}

/// Says whether keys of that shape have eight bytes.
pub const fn is_number(shape: Shape) -> bool {
    shape.len == 1 && matches!(shape.bytes[0], U64 | I64 | F64)
}

/// A number that is another one for another type, by FNV-1a.
const fn digest(ty: &Type, sum: u32) -> u32 {
    match ty {
        Type::Scalar(scalar) => mix(mix(sum, 0), *scalar as u8),
        Type::Array(scalar, n) => mix(mix(mix(mix(sum, 1), *scalar as u8), *n as u8), (*n >> 8) as u8),
        Type::Text => mix(sum, 2),
        Type::Bytes => mix(sum, 3),
        Type::Ref(_) => mix(sum, 4),
        Type::List(of) => digest(of, mix(sum, 5)),
        Type::Option(of) => digest(of, mix(sum, 6)),
        Type::Record(schema) => digest_fields(schema, mix(sum, 7)),
        Type::Enum(schema) => digest_fields(schema, mix(sum, 8)),
        Type::Far(_) => mix(sum, 9),
    }
}

const fn digest_fields(schema: &Schema, mut sum: u32) -> u32 {
    let mut i = 0;
    while i < schema.fields.len() {
        let name = schema.fields[i].name.as_bytes();
        let mut at = 0;
        while at < name.len() {
            sum = mix(sum, name[at]);
            at += 1;
        }
        sum = digest(&schema.fields[i].ty, mix(sum, 0xff));
        i += 1;
    }
    mix(sum, 0xfe)
}

const fn mix(sum: u32, byte: u8) -> u32 {
    (sum ^ byte as u32).wrapping_mul(0x0100_0193)
}

/// As a program writes the types, or nearly.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.as_bytes();
        name(&mut rest, f)?;
        match rest.split_first() {
            None => Ok(()),
            Some((&SET, [])) => f.write_str(" alone"),
            Some((&VALUES, mut rest)) => {
                f.write_str(" with values of ")?;
                name(&mut rest, f)
            }
            Some(_) => f.write_str(" and something unknown"),
        }
    }
}

/// Writes the name of the type whose description begins there.
fn name(rest: &mut &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Some((&code, behind)) = rest.split_first() else { return f.write_str("nothing") };
    *rest = behind;
    match code {
        ARRAY => {
            let Some((n, behind)) = rest.split_first_chunk() else { return f.write_str("an array") };
            *rest = behind;
            write!(f, "[u8; {}]", u16::from_le_bytes(*n))
        }
        OPTION | REVERSE => {
            f.write_str(if code == OPTION { "Option<" } else { "Reverse<" })?;
            name(rest, f)?;
            f.write_str(">")
        }
        OTHER => {
            *rest = rest.get(4..).unwrap_or_default();
            f.write_str("a record")
        }
        _ if (TUPLE + 2..=TUPLE + 4).contains(&code) => {
            for i in 0..code - TUPLE {
                f.write_str(if i == 0 { "(" } else { ", " })?;
                name(rest, f)?;
            }
            f.write_str(")")
        }
        _ => f.write_str(match NAMES.get(usize::from(code)) {
            Some(&name) if code > 0 => name,
            _ => "something unknown",
        }),
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
