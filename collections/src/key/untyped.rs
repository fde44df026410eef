//! Keys without their type: made of the fields of stored rows and of values that a user writes, and read as
//! values. For tools.
//!
//! All go by the description that the nodes of a map carry. The invariant: the bytes are those that the typed
//! key has.

use std::fmt::Display;
use std::str::FromStr;

use tercel_wire::datum::Datum;
use tercel_wire::layout::{Layout, Shape as Type, Var, var};
use tercel_wire::record::{Bytes, Text};
use tercel_wire::schema::Scalar;

use super::{BadKey, Form, Key, put_bytes, shape, show};

/// Appends the key that fields of a stored record make: one, or several as a tuple. Fails if they are of
/// other types than the description says.
pub fn put_fields(
    shape: &mut &[u8],
    layout: &Layout,
    body: &[u8],
    fields: &[usize],
    form: Form,
    to: &mut Vec<u8>,
) -> Result<(), BadKey> {
    if fields.len() > 1 {
        tuple(shape, fields.len())?;
    }
    for (i, field) in fields.iter().enumerate() {
        let form = if i + 1 == fields.len() { form } else { Form::Inner };
        let p = layout.fields().get(*field).ok_or(BadKey)?;
        put_field(shape, &p.shape, body, p.at, form, to)?;
    }
    Ok(())
}

/// Goes behind the code of a tuple of so many parts.
pub fn tuple(shape: &mut &[u8], parts: usize) -> Result<(), BadKey> {
    match shape.split_first() {
        Some((code, behind)) if usize::from(*code) == usize::from(shape::TUPLE) + parts => {
            *shape = behind;
            Ok(())
        }
        _ => Err(BadKey),
    }
}

/// The numbers that fields have, by their codes.
macro_rules! numbers {
    ($do:ident) => {
        $do! { U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32, I64 i64, F32 f32, F64 f64 }
    };
}

fn put_field(
    shape: &mut &[u8],
    ty: &Type,
    body: &[u8],
    at: usize,
    form: Form,
    to: &mut Vec<u8>,
) -> Result<(), BadKey> {
    // A struct with `#[derive(Key)]` is the key that its field is.
    if let Type::Record(of) = ty {
        let [only] = of.fields() else { return Err(BadKey) };
        return put_field(shape, &only.shape, body, at + only.at, form, to);
    }
    let (&code, behind) = shape.split_first().ok_or(BadKey)?;
    *shape = behind;
    macro_rules! put {
        ($($scalar:ident $t:ty),*) => {
            match (code, ty) {
                $((shape::$scalar, Type::Scalar(Scalar::$scalar)) => {
                    let bytes = body.get(at..).and_then(|rest| rest.first_chunk()).ok_or(BadKey)?;
                    <$t>::put(<$t>::from_le_bytes(*bytes), form, to);
                })*
                (shape::BOOL, Type::Scalar(Scalar::Bool)) => bool::put(body[at] != 0, form, to),
                (shape::TEXT, Type::Text) | (shape::BYTES, Type::Bytes) => match var(body, at) {
                    Var::None => put_bytes(&[], form, to),
                    Var::Here { at, len } => put_bytes(&body[at..at + len], form, to),
                    // Longer than a key can be, which its check says.
                    Var::Spilled { len, .. } => to.resize(to.len() + len.min(usize::from(u16::MAX)), 0),
                },
                (shape::ARRAY, Type::Array(Scalar::U8, n)) => {
                    let (of, behind) = shape.split_first_chunk().ok_or(BadKey)?;
                    *shape = behind;
                    if u16::from_le_bytes(*of) != *n {
                        return Err(BadKey);
                    }
                    to.extend_from_slice(&body[at..at + usize::from(*n)]);
                }
                (shape::OPTION, Type::Option(of)) => {
                    let (is_none, at) = match of.has_none() {
                        true => (var(body, at) == Var::None, at),
                        false => (body[at] == 0, at + of.align()),
                    };
                    to.push(u8::from(!is_none));
                    if is_none {
                        return show::skip(shape);
                    }
                    put_field(shape, of, body, at, form, to)?;
                }
                _ => return Err(BadKey),
            }
        };
    }
    numbers!(put);
    Ok(())
}

/// Appends the key that a value makes, in the forms of [`datum`](tercel_wire::datum); a number and a truth
/// value may be a text. Fails with what is wanted instead.
pub fn put_datum(shape: &mut &[u8], value: &Datum, form: Form, to: &mut Vec<u8>) -> Result<(), String> {
    let whole = *shape;
    let wanted = || {
        let name = super::shape_name(show::key_and_contents(whole).map_or(whole, |(one, _)| one))
            .unwrap_or_else(|| "a type that this version does not know".into());
        format!("a key of {name} is wanted")
    };
    let (&code, behind) = shape.split_first().ok_or_else(wanted)?;
    *shape = behind;
    macro_rules! put {
        ($($scalar:ident $t:ty),*) => {
            match (code, value) {
                $((shape::$scalar, _) => <$t>::put(number(value).ok_or_else(wanted)?, form, to),)*
                (shape::U128, _) => u128::put(number(value).ok_or_else(wanted)?, form, to),
                (shape::I128, _) => i128::put(number(value).ok_or_else(wanted)?, form, to),
                (shape::BOOL, Datum::Bool(is)) => bool::put(*is, form, to),
                (shape::BOOL, _) => bool::put(number(value).ok_or_else(wanted)?, form, to),
                (shape::CHAR, Datum::Text(text)) => char::put(text.parse().map_err(|_| wanted())?, form, to),
                (shape::TEXT, Datum::Text(text)) => Text::put(text, form, to),
                (shape::BYTES, Datum::Text(digits)) => Bytes::put(&unhex(digits).ok_or_else(wanted)?, form, to),
                (shape::ARRAY, Datum::Text(digits)) => {
                    let (n, behind) = shape.split_first_chunk().ok_or_else(wanted)?;
                    *shape = behind;
                    let bytes = unhex(digits).filter(|bytes| bytes.len() == usize::from(u16::from_le_bytes(*n)));
                    to.extend_from_slice(&bytes.ok_or_else(wanted)?);
                }
                (shape::OPTION, Datum::Null) => {
                    to.push(0);
                    show::skip(shape).map_err(|_| wanted())?;
                }
                (shape::OPTION, _) => {
                    to.push(1);
                    put_datum(shape, value, form, to)?;
                }
                (shape::REVERSE, _) => {
                    let at = to.len();
                    put_datum(shape, value, Form::Inner, to)?;
                    to[at..].iter_mut().for_each(|byte| *byte = !*byte);
                }
                (_, Datum::List(parts)) if usize::from(code) == usize::from(shape::TUPLE) + parts.len() => {
                    for (i, part) in parts.iter().enumerate() {
                        let form = if i + 1 == parts.len() { form } else { Form::Inner };
                        put_datum(shape, part, form, to)?;
                    }
                }
                _ => return Err(wanted()),
            }
        };
    }
    numbers!(put);
    Ok(())
}

fn number<N: FromStr>(value: &Datum) -> Option<N> {
    match value {
        Datum::Int(n) => n.to_string().parse().ok(),
        Datum::Float(x) => x.to_string().parse().ok(),
        Datum::Text(text) => text.parse().ok(),
        _ => None,
    }
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    let is_hex = digits.len().is_multiple_of(2) && digits.bytes().all(|b| b.is_ascii_hexdigit());
    let byte = |i: usize| u8::from_str_radix(&digits[i..i + 2], 16).ok();
    if is_hex { (0..digits.len()).step_by(2).map(byte).collect() } else { None }
}

/// A key as a value, by the description that the nodes of its map carry. None if the bytes are no such key.
/// The value makes the key again by [`put_datum`], but for a NaN.
pub fn to_datum(shape: &[u8], key: &[u8]) -> Option<Datum> {
    let (mut shape, mut rest) = (shape, key);
    let value = take(&mut shape, &mut rest, Form::Last).ok()?;
    rest.is_empty().then_some(value)
}

fn take(shape: &mut &[u8], key: &mut &[u8], form: Form) -> Result<Datum, BadKey> {
    let (&code, behind) = shape.split_first().ok_or(BadKey)?;
    *shape = behind;
    Ok(match code {
        shape::TEXT => Datum::Text(Text::take(key, form)?.0),
        shape::BYTES => hex(&Bytes::take(key, form)?.0),
        shape::U8 => Datum::Int(u8::take(key, form)?.into()),
        shape::U16 => Datum::Int(u16::take(key, form)?.into()),
        shape::U32 => Datum::Int(u32::take(key, form)?.into()),
        shape::U64 => Datum::Int(u64::take(key, form)?.into()),
        shape::I8 => Datum::Int(i8::take(key, form)?.into()),
        shape::I16 => Datum::Int(i16::take(key, form)?.into()),
        shape::I32 => Datum::Int(i32::take(key, form)?.into()),
        shape::I64 => Datum::Int(i64::take(key, form)?.into()),
        // No number of JSON is as long.
        shape::U128 => shown(u128::take(key, form)?),
        shape::I128 => shown(i128::take(key, form)?),
        shape::BOOL => Datum::Bool(bool::take(key, form)?),
        shape::CHAR => shown(char::take(key, form)?),
        shape::F32 => float(f32::take(key, form)?.into()),
        shape::F64 => float(f64::take(key, form)?),
        shape::ARRAY => {
            let (n, behind) = shape.split_first_chunk().ok_or(BadKey)?;
            *shape = behind;
            let (bytes, behind) = key.split_at_checked(usize::from(u16::from_le_bytes(*n))).ok_or(BadKey)?;
            *key = behind;
            hex(bytes)
        }
        shape::OPTION => match u8::take(key, form)? {
            0 => {
                show::skip(shape)?;
                Datum::Null
            }
            1 => take(shape, key, form)?,
            _ => return Err(BadKey),
        },
        shape::REVERSE => {
            let turned: Vec<u8> = key.iter().map(|byte| !byte).collect();
            let mut rest = &turned[..];
            let value = take(shape, &mut rest, Form::Inner)?;
            *key = &key[turned.len() - rest.len()..];
            value
        }
        _ => {
            let parts = code.checked_sub(shape::TUPLE).filter(|n| (2..=4).contains(n)).ok_or(BadKey)?;
            let parts = (1..=parts).map(|i| take(shape, key, if i == parts { form } else { Form::Inner }));
            Datum::List(parts.collect::<Result<_, _>>()?)
        }
    })
}

fn shown(value: impl Display) -> Datum {
    Datum::Text(value.to_string())
}

fn float(x: f64) -> Datum {
    if x.is_finite() { Datum::Float(x) } else { shown(x) }
}

fn hex(bytes: &[u8]) -> Datum {
    Datum::Text(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
