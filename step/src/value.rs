//! Values, records, and instances, as they stand in a file.
//!
//! Texts are without their escapes. All else that is text in the file is lent from the statement.

use std::borrow::Cow;

/// A parameter.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// `$`: an optional parameter that has no value.
    Omitted,
    /// `*`: a parameter that a subtype derives.
    Derived,
    /// A whole number.
    Integer(i64),
    /// A number with a point; never infinite.
    Real(f64),
    /// A string.
    Text(Cow<'a, str>),
    /// `.NAME.`, without its points; `T`, `F` and `U` are the logical values.
    Enumeration(&'a str),
    /// `"0A1"`: a digit that counts the unused bits of the next one, from 0 to 3, then hexadecimal digits.
    Binary(&'a str),
    /// `#12`: an instance of the same file, before or after.
    Reference(u64),
    /// `(..)`.
    List(Vec<Value<'a>>),
    /// `LENGTH_MEASURE(3.)`: a value with its type.
    Typed(&'a str, Box<Value<'a>>),
}

/// A keyword and its parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Record<'a> {
    /// The name of an entity; with `!` before it, one that the author of the file has defined.
    pub keyword: &'a str,
    /// The parameters in order.
    pub parameters: Vec<Value<'a>>,
}

/// The records of an instance.
#[derive(Debug, Clone, PartialEq)]
pub enum Body<'a> {
    /// `#1=A(..);`.
    Simple(Record<'a>),
    /// `#1=(A(..)B(..));`: one record for each entity that the instance is of.
    Complex(Vec<Record<'a>>),
}

/// An instance of a data section.
#[derive(Debug, Clone, PartialEq)]
pub struct Instance<'a> {
    /// The number behind `#`, which is the instance's in this file.
    pub id: u64,
    /// The line on which its statement begins.
    pub line: u64,
    /// The entities and their parameters.
    pub body: Body<'a>,
}

impl<'a> Body<'a> {
    /// The records: one, unless the instance is complex.
    pub fn records(&self) -> &[Record<'a>] {
        match self {
            Body::Simple(record) => std::slice::from_ref(record),
            Body::Complex(records) => records,
        }
    }
}
