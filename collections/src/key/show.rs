//! Keys without their type, as a program would write them: for messages, and for tools.

use std::fmt::Display;

use tercel_wire::record::{Bytes, Text};

use super::{BadKey, Form, Key, shape};

/// Writes a key out, by the description that the nodes of its map carry. None if the bytes are no such key.
pub fn show(shape: &[u8], key: &[u8]) -> Option<String> {
    let (mut shape, mut rest, mut out) = (shape, key, String::new());
    part(&mut shape, &mut rest, Form::Last, &mut out).ok()?;
    rest.is_empty().then_some(out)
}

fn part(shape: &mut &[u8], key: &mut &[u8], form: Form, out: &mut String) -> Result<(), BadKey> {
    let (&code, behind) = shape.split_first().ok_or(BadKey)?;
    *shape = behind;
    match code {
        shape::TEXT => *out += &format!("{:?}", Text::take(key, form)?.0),
        shape::BYTES => hex(&Bytes::take(key, form)?.0, out),
        shape::U8 => number::<u8>(key, out)?,
        shape::U16 => number::<u16>(key, out)?,
        shape::U32 => number::<u32>(key, out)?,
        shape::U64 => number::<u64>(key, out)?,
        shape::U128 => number::<u128>(key, out)?,
        shape::I8 => number::<i8>(key, out)?,
        shape::I16 => number::<i16>(key, out)?,
        shape::I32 => number::<i32>(key, out)?,
        shape::I64 => number::<i64>(key, out)?,
        shape::I128 => number::<i128>(key, out)?,
        shape::BOOL => number::<bool>(key, out)?,
        shape::F32 => number::<f32>(key, out)?,
        shape::F64 => number::<f64>(key, out)?,
        shape::CHAR => *out += &format!("{:?}", char::take(key, form)?),
        shape::ARRAY => {
            let (n, behind) = shape.split_first_chunk().ok_or(BadKey)?;
            *shape = behind;
            let (bytes, behind) = key.split_at_checked(usize::from(u16::from_le_bytes(*n))).ok_or(BadKey)?;
            *key = behind;
            hex(bytes, out);
        }
        shape::OPTION => match u8::take(key, form)? {
            0 => {
                // What would have followed has a description all the same.
                skip(shape)?;
                *out += "None";
            }
            1 => wrapped("Some(", shape, key, form, out)?,
            _ => return Err(BadKey),
        },
        shape::REVERSE => {
            let turned: Vec<u8> = key.iter().map(|byte| !byte).collect();
            let mut rest = &turned[..];
            wrapped("Reverse(", shape, &mut rest, Form::Inner, out)?;
            *key = &key[turned.len() - rest.len()..];
        }
        _ => {
            let parts = code.checked_sub(shape::TUPLE).filter(|n| (2..=4).contains(n)).ok_or(BadKey)?;
            for i in 1..=parts {
                *out += if i == 1 { "(" } else { ", " };
                part(shape, key, if i == parts { form } else { Form::Inner }, out)?;
            }
            *out += ")";
        }
    }
    Ok(())
}

fn wrapped(
    begin: &str,
    shape: &mut &[u8],
    key: &mut &[u8],
    form: Form,
    out: &mut String,
) -> Result<(), BadKey> {
    *out += begin;
    part(shape, key, form, out)?;
    *out += ")";
    Ok(())
}

fn number<K: Key + Display>(key: &mut &[u8], out: &mut String) -> Result<(), BadKey> {
    *out += &K::take(key, Form::Inner)?.to_string();
    Ok(())
}

fn hex(bytes: &[u8], out: &mut String) {
    *out += "0x";
    bytes.iter().for_each(|byte| *out += &format!("{byte:02x}"));
}

/// Parts the description of a map into that of its keys and the rest, which says what they name.
pub fn key_and_contents(shape: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut rest = shape;
    skip(&mut rest).ok()?;
    shape.split_at_checked(shape.len() - rest.len())
}

/// The types that a description says, as a program writes them. None if this version does not know it.
pub fn shape_name(shape: &[u8]) -> Option<String> {
    key_and_contents(shape)?;
    shape::Shape::read(shape).map(|shape| shape.to_string())
}

/// Goes behind the description of one type.
pub(super) fn skip(shape: &mut &[u8]) -> Result<(), BadKey> {
    let (&code, behind) = shape.split_first().ok_or(BadKey)?;
    *shape = behind;
    match code {
        1..=16 => Ok(()),
        shape::ARRAY => shape.get(2..).map(|behind| *shape = behind).ok_or(BadKey),
        shape::OPTION | shape::REVERSE => skip(shape),
        34..=36 => (0..code - shape::TUPLE).try_for_each(|_| skip(shape)),
        _ => Err(BadKey),
    }
}
