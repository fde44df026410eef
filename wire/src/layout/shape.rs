//! The type of a field as it is stored: how large it is, and which other type may stand in its place.

use std::fmt;

use super::Layout;
use crate::schema::{FAR_BYTES, Field, Scalar, Schema, TAG, Type};

/// The type of a field, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants of schema::Type, explained there")]
pub enum Shape {
    Scalar(Scalar),
    Array(Scalar, u16),
    Text,
    Bytes,
    Ref(String),
    Far(String),
    List(Box<Shape>),
    Option(Box<Shape>),
    Record(Box<Layout>),
    Enum(Box<Layout>),
}

/// Why a field is not what it was.
pub(super) enum Change<'a> {
    /// By its type.
    Type,
    /// By this variant of the stored type.
    Variant(&'a str),
}

/// Permission for the other side of a comparison to have variants after the last one of this side.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Behind {
    Allowed,
    Refused,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Scalar(s) => s.fmt(f),
            Shape::Array(s, n) => write!(f, "[{s}; {n}]"),
            Shape::Text => f.write_str("Text"),
            Shape::Bytes => f.write_str("Bytes"),
            Shape::Ref(class) if class.is_empty() => f.write_str("Ref<Any>"),
            Shape::Ref(class) => write!(f, "Ref<{class}>"),
            Shape::Far(class) if class.is_empty() => f.write_str("Far<Any>"),
            Shape::Far(class) => write!(f, "Far<{class}>"),
            Shape::List(element) => write!(f, "List<{element}>"),
            Shape::Option(value) => write!(f, "Option<{value}>"),
            Shape::Record(record) | Shape::Enum(record) => f.write_str(record.name()),
        }
    }
}

impl Layout {
    /// The layout as the constant that a program would have. It stays in memory as long as the process: for
    /// a few classes, each once.
    pub fn leak(&self) -> Schema {
        let fields = self.fields.iter();
        let fields = fields.map(|p| Field { name: p.name.clone().leak(), ty: p.shape.leak() });
        Schema { name: self.name.clone().leak(), fields: fields.collect::<Vec<_>>().leak() }
    }
}

impl Shape {
    /// The shape of a type of this program.
    pub fn of(ty: &Type) -> Shape {
        match ty {
            Type::Scalar(s) => Shape::Scalar(*s),
            Type::Array(s, n) => Shape::Array(*s, *n),
            Type::Text => Shape::Text,
            Type::Bytes => Shape::Bytes,
            Type::Ref(name) => Shape::Ref((*name).into()),
            Type::Far(name) => Shape::Far((*name).into()),
            Type::List(t) => Shape::List(Box::new(Shape::of(t))),
            Type::Option(t) => Shape::Option(Box::new(Shape::of(t))),
            Type::Record(s) => Shape::Record(Box::new(Layout::of(s))),
            Type::Enum(s) => Shape::Enum(Box::new(Layout::of(s))),
        }
    }

    /// The type of this shape. What it names stays in memory as long as the process.
    fn leak(&self) -> Type {
        fn kept<T>(value: T) -> &'static T {
            Box::leak(Box::new(value))
        }
        match self {
            Shape::Scalar(s) => Type::Scalar(*s),
            Shape::Array(s, n) => Type::Array(*s, *n),
            Shape::Text => Type::Text,
            Shape::Bytes => Type::Bytes,
            Shape::Ref(name) => Type::Ref(name.clone().leak()),
            Shape::Far(name) => Type::Far(name.clone().leak()),
            Shape::List(of) => Type::List(kept(of.leak())),
            Shape::Option(of) => Type::Option(kept(of.leak())),
            Shape::Record(of) => Type::Record(kept(of.leak())),
            Shape::Enum(of) => Type::Enum(kept(of.leak())),
        }
    }

    /// An enum of these variants, each with the name and the fields of a layout.
    pub fn variants(name: String, variants: Vec<Layout>) -> Shape {
        let tag = (TAG.name.into(), Shape::of(&TAG.ty));
        let variants = variants.into_iter().map(|v| (v.name.clone(), Shape::Record(Box::new(v))));
        Shape::Enum(Box::new(Layout::new(name, [tag].into_iter().chain(variants).collect())))
    }

    /// Bytes in the fixed part. See [`Type::size`].
    pub fn size(&self) -> usize {
        match self {
            Shape::Scalar(s) => s.size(),
            Shape::Array(s, n) => s.size() * *n as usize,
            Shape::Text | Shape::Bytes | Shape::List(_) | Shape::Ref(_) => 4,
            Shape::Far(_) => FAR_BYTES,
            Shape::Option(t) => t.size() + if t.has_none() { 0 } else { t.align() },
            Shape::Record(r) | Shape::Enum(r) => r.size,
        }
    }

    /// See [`Type::align`].
    pub fn align(&self) -> usize {
        match self {
            Shape::Scalar(s) | Shape::Array(s, _) => s.size().min(4),
            Shape::Text | Shape::Bytes | Shape::List(_) => 2,
            Shape::Ref(_) | Shape::Far(_) => 4,
            Shape::Option(t) => t.align(),
            Shape::Record(r) | Shape::Enum(r) => r.align,
        }
    }

    /// See [`Type::has_none`].
    pub fn has_none(&self) -> bool {
        matches!(self, Shape::Text | Shape::Bytes | Shape::List(_) | Shape::Ref(_))
    }

    /// See [`Type::is_fixed`].
    pub(super) fn is_fixed(&self) -> bool {
        match self {
            Shape::Scalar(_) | Shape::Array(..) | Shape::Ref(_) | Shape::Far(_) => true,
            Shape::Text | Shape::Bytes | Shape::List(_) => false,
            Shape::Option(t) => t.is_fixed(),
            Shape::Record(r) | Shape::Enum(r) => r.fixed,
        }
    }

    pub(super) fn is_plain(&self) -> bool {
        match self {
            Shape::Scalar(s) | Shape::Array(s, _) => *s != Scalar::Bool,
            Shape::Ref(_) | Shape::Far(_) => true,
            Shape::Record(r) => r.plain,
            Shape::Option(t) => matches!(**t, Shape::Ref(_)),
            Shape::Text | Shape::Bytes | Shape::List(_) | Shape::Enum(_) => false,
        }
    }

    pub(super) fn fixed_refs(&self, at: usize, out: &mut Vec<u16>) {
        match self {
            Shape::Ref(_) => out.push(at as u16),
            Shape::Option(t) => t.fixed_refs(at + if t.has_none() { 0 } else { t.align() }, out),
            Shape::Record(r) | Shape::Enum(r) => {
                out.extend(r.refs.iter().map(|&o| (at as u16).wrapping_add(o)))
            }
            _ => {}
        }
    }

    /// See [`Type::spills`].
    pub fn spills(&self) -> bool {
        matches!(self, Shape::Ref(_)) || self.is_numbers()
    }

    /// See [`Type::is_numbers`].
    fn is_numbers(&self) -> bool {
        match self {
            Shape::Scalar(_) | Shape::Array(..) | Shape::Far(_) => true,
            Shape::Text | Shape::Bytes | Shape::List(_) | Shape::Ref(_) => false,
            Shape::Option(t) => t.is_numbers(),
            Shape::Record(r) | Shape::Enum(r) => r.fixed && r.refs.is_empty(),
        }
    }

    pub(super) fn depth(&self) -> usize {
        match self {
            Shape::List(t) | Shape::Option(t) => 1 + t.depth(),
            Shape::Record(r) => 1 + r.depth(),
            // Its variants are records, and count.
            Shape::Enum(r) => r.depth(),
            _ => 0,
        }
    }

    pub(super) fn accepts<'a>(&self, older: &'a Shape, behind: Behind) -> Result<(), Change<'a>> {
        match (self, older) {
            (Shape::Scalar(new), Shape::Scalar(old)) if widens(*old, *new) => Ok(()),
            (Shape::Ref(new), Shape::Ref(_)) | (Shape::Far(new), Shape::Far(_)) if new.is_empty() => Ok(()),
            (Shape::Option(new), Shape::Option(old)) => new.accepts(old, behind),
            (new, old) => new.same(old, behind),
        }
    }

    /// Checks that both shapes are the same, except for variants at the end of enums.
    pub(super) fn same<'a>(&self, older: &'a Shape, behind: Behind) -> Result<(), Change<'a>> {
        match (self, older) {
            (Shape::Enum(new), Shape::Enum(old)) => {
                let mut fields = new.fields.iter();
                for q in &old.fields {
                    match fields.next() {
                        None if behind == Behind::Allowed => break,
                        Some(p) if p.name == q.name => {
                            p.shape.same(&q.shape, behind).map_err(|c| c.or(&q.name))?;
                        }
                        _ => return Err(Change::Variant(&q.name)),
                    }
                }
                if new.name == old.name { Ok(()) } else { Err(Change::Type) }
            }
            (Shape::Record(new), Shape::Record(old)) => {
                let names = |l: &'a Layout| l.fields.iter().map(|p| &p.name);
                if new.name != old.name || !new.fields.iter().map(|p| &p.name).eq(names(old)) {
                    return Err(Change::Type);
                }
                new.fields.iter().zip(&old.fields).try_for_each(|(p, q)| p.shape.same(&q.shape, behind))
            }
            (Shape::Option(new), Shape::Option(old)) => new.same(old, behind),
            // The bytes of a long list are not gone through, so they must mean the same.
            (Shape::List(new), Shape::List(old)) if new.size() == old.size() || !old.spills() => {
                new.same(old, behind)
            }
            (new, old) if new == old => Ok(()),
            _ => Err(Change::Type),
        }
    }
}

impl<'a> Change<'a> {
    /// The change as one of this variant, if it is not one of a variant within.
    fn or(self, variant: &'a str) -> Change<'a> {
        match self {
            Change::Type => Change::Variant(variant),
            within => within,
        }
    }
}

/// Says whether every value of `old` is a value of `new`.
pub(super) fn widens(old: Scalar, new: Scalar) -> bool {
    use Scalar::*;
    old == new
        || matches!(
            (old, new),
            (U8, U16 | U32 | U64 | I16 | I32 | I64)
                | (U16, U32 | U64 | I32 | I64)
                | (U32, U64 | I64)
                | (I8, I16 | I32 | I64)
                | (I16, I32 | I64)
                | (I32, I64)
                | (F32, F64)
        )
}
