//! The shape of a class, as a constant of a program. `#[derive(Object)]` writes the constant, and the
//! compiler computes with it.
//!
//! A record has a fixed part: its fields in order of declaration, each at the next multiple of its alignment
//! (never more than 4). After it come the variable parts, which the fixed part names by offset and length.
//! Offsets count from the body's first byte, which follows the object's 4-byte header.

use std::fmt;

/// A number or a truth value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names of Rust's own types")]
pub enum Scalar {
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
    Bool,
}

/// The type as programs write it.
impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

impl Scalar {
    /// All of them. The place of each, counted from 0, is its code.
    pub const ALL: [Scalar; 11] = [
        Scalar::U8,
        Scalar::U16,
        Scalar::U32,
        Scalar::U64,
        Scalar::I8,
        Scalar::I16,
        Scalar::I32,
        Scalar::I64,
        Scalar::F32,
        Scalar::F64,
        Scalar::Bool,
    ];

    /// Bytes it takes.
    pub const fn size(self) -> usize {
        match self {
            Scalar::U8 | Scalar::I8 | Scalar::Bool => 1,
            Scalar::U16 | Scalar::I16 => 2,
            Scalar::U32 | Scalar::I32 | Scalar::F32 => 4,
            Scalar::U64 | Scalar::I64 | Scalar::F64 => 8,
        }
    }
}

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// A number or a truth value.
    Scalar(Scalar),
    /// A fixed number of them.
    Array(Scalar, u16),
    /// UTF-8 of any length.
    Text,
    /// Bytes of any length.
    Bytes,
    /// A reference to an object of the named class; of any class if the name is empty.
    Ref(&'static str),
    /// A reference to an object of another space, of the named class; of any class if the name is empty.
    Far(&'static str),
    /// Any number of elements of one type.
    List(&'static Type),
    /// A value or none.
    Option(&'static Type),
    /// A small record inside this one.
    Record(&'static Schema),
    /// One of several small records: the first field is [`TAG`], and each other one a record with the fields
    /// of a variant. All of them have their places, so that a reference never stands where another variant
    /// has a number; those of the variants that a value is not of are zero.
    Enum(&'static Schema),
}

/// The first field of an enum: the position of the value's variant among the others, from 0.
pub const TAG: Field = Field { name: "", ty: Type::Scalar(Scalar::U8) };

/// A field of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The name of the field in the program and in the catalogue.
    pub name: &'static str,
    /// The type of the field.
    pub ty: Type,
}

/// A class or a nested record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schema {
    /// The class's name, unique in a space.
    pub name: &'static str,
    /// The fields of the record, in order.
    pub fields: &'static [Field],
}

/// Bytes of a far reference: space, view and stamp, and the place there.
pub const FAR_BYTES: usize = 28;

/// Bytes of the descriptor that stands for a variable part: offset and length, two bytes each.
pub const DESCRIPTOR_BYTES: usize = 4;

impl Type {
    /// Bytes in the fixed part.
    pub const fn size(&self) -> usize {
        match self {
            Type::Scalar(s) => s.size(),
            Type::Array(s, n) => s.size() * *n as usize,
            Type::Text | Type::Bytes | Type::List(_) => DESCRIPTOR_BYTES,
            Type::Ref(_) => 4,
            Type::Far(_) => FAR_BYTES,
            // None needs a byte of its own where no value means it; the byte is padded to the value's
            // alignment.
            Type::Option(t) => t.size() + if t.has_none() { 0 } else { t.align() },
            Type::Record(r) | Type::Enum(r) => r.size(),
        }
    }

    /// The alignment of the offset: 1, 2 or 4.
    pub const fn align(&self) -> usize {
        match self {
            Type::Scalar(s) | Type::Array(s, _) => {
                if s.size() > 4 {
                    4
                } else {
                    s.size()
                }
            }
            Type::Text | Type::Bytes | Type::List(_) => 2,
            Type::Ref(_) | Type::Far(_) => 4,
            Type::Option(t) => t.align(),
            Type::Record(r) | Type::Enum(r) => r.align(),
        }
    }

    /// Says whether one of its own bit patterns can mean "none": a null reference, a descriptor at offset
    /// 65,535.
    pub const fn has_none(&self) -> bool {
        matches!(self, Type::Text | Type::Bytes | Type::List(_) | Type::Ref(_))
    }

    /// Says whether values of the type have no variable part.
    pub const fn is_fixed(&self) -> bool {
        match self {
            Type::Scalar(_) | Type::Array(..) | Type::Ref(_) | Type::Far(_) => true,
            Type::Text | Type::Bytes | Type::List(_) => false,
            Type::Option(t) => t.is_fixed(),
            Type::Record(r) | Type::Enum(r) => {
                let mut i = 0;
                while i < r.fields.len() {
                    if !r.fields[i].ty.is_fixed() {
                        return false;
                    }
                    i += 1;
                }
                true
            }
        }
    }

    /// Says whether values consist of their own bytes alone, and contain no reference.
    pub const fn is_numbers(&self) -> bool {
        match self {
            Type::Scalar(_) | Type::Array(..) | Type::Far(_) => true,
            Type::Text | Type::Bytes | Type::List(_) | Type::Ref(_) => false,
            Type::Option(t) => t.is_numbers(),
            Type::Record(r) | Type::Enum(r) => r.has_numbers_alone(),
        }
    }

    /// Says whether a list of such elements may leave the record for a tree of chunks. Bytes may, and
    /// references may. A mixture of both may not, nor elements with parts of their own.
    pub const fn spills(&self) -> bool {
        matches!(self, Type::Ref(_)) || self.is_numbers()
    }
}

impl Schema {
    /// Says whether records consist of their fixed part alone, without references.
    pub const fn has_numbers_alone(&self) -> bool {
        let mut i = 0;
        while i < self.fields.len() {
            if !self.fields[i].ty.is_numbers() {
                return false;
            }
            i += 1;
        }
        true
    }

    /// Bytes of the fixed part.
    pub const fn size(&self) -> usize {
        let end = self.offset(self.fields.len());
        let align = self.align();
        end.div_ceil(align) * align
    }

    /// The greatest alignment of its fields.
    pub const fn align(&self) -> usize {
        let (mut i, mut align) = (0usize, 1usize);
        while i < self.fields.len() {
            let a = self.fields[i].ty.align();
            if a > align {
                align = a;
            }
            i += 1;
        }
        align
    }

    /// Where the field begins; with the number of fields, where the last one ends.
    pub const fn offset(&self, field: usize) -> usize {
        let (mut i, mut at) = (0usize, 0usize);
        while i < self.fields.len() {
            let align = self.fields[i].ty.align();
            at = at.div_ceil(align) * align;
            if i == field {
                return at;
            }
            at += self.fields[i].ty.size();
            i += 1;
        }
        at
    }

    /// Returns the offset of a field of an enum's variant; both are counted from 0.
    pub const fn offset_in(&self, variant: usize, field: usize) -> usize {
        match &self.fields[variant + 1].ty {
            Type::Record(fields) => self.offset(variant + 1) + fields.offset(field),
            _ => panic!("the fields of a variant are a record"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_at_their_alignment() {
        const INNER: Schema = Schema {
            name: "I",
            fields: &[
                Field { name: "a", ty: Type::Scalar(Scalar::U8) },
                Field { name: "b", ty: Type::Scalar(Scalar::U16) },
            ],
        };
        const S: Schema = Schema {
            name: "S",
            fields: &[
                Field { name: "a", ty: Type::Scalar(Scalar::U8) },
                Field { name: "b", ty: Type::Scalar(Scalar::I64) },
                Field { name: "c", ty: Type::Option(&Type::Scalar(Scalar::U32)) },
                Field { name: "d", ty: Type::Option(&Type::Ref("S")) },
                Field { name: "e", ty: Type::Record(&INNER) },
                Field { name: "f", ty: Type::Text },
            ],
        };
        let at: Vec<usize> = (0..6).map(|i| S.offset(i)).collect();
        assert_eq!(at, [0, 4, 12, 20, 24, 28]);
        assert_eq!((S.size(), S.align(), INNER.size()), (32, 4, 4));
    }

    #[test]
    fn variants_stand_one_behind_the_other() {
        const NONE: Schema = Schema { name: "None", fields: &[] };
        const NUMBERS: Schema = Schema {
            name: "Numbers",
            fields: &[
                Field { name: "0", ty: Type::Scalar(Scalar::U8) },
                Field { name: "1", ty: Type::Scalar(Scalar::U32) },
            ],
        };
        const POINTER: Schema = Schema { name: "Pointer", fields: &[Field { name: "0", ty: Type::Ref("") }] };
        const E: Schema = Schema {
            name: "E",
            fields: &[
                TAG,
                Field { name: "None", ty: Type::Record(&NONE) },
                Field { name: "Numbers", ty: Type::Record(&NUMBERS) },
                Field { name: "Pointer", ty: Type::Record(&POINTER) },
            ],
        };
        const PLAIN: Schema =
            Schema { name: "P", fields: &[TAG, Field { name: "None", ty: Type::Record(&NONE) }] };
        assert_eq!((E.offset_in(1, 0), E.offset_in(1, 1), E.offset_in(2, 0)), (4, 8, 12));
        assert_eq!((E.size(), Type::Enum(&E).align()), (16, 4));
        assert_eq!((PLAIN.size(), Type::Enum(&PLAIN).align()), (1, 1));
    }
}
