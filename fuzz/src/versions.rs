//! Descriptions of callers that were built at another time, and payloads that are converted for them.

use arbitrary::{Result, Unstructured};
use tercel_wire::cursor::Reader;
use tercel_wire::interface::{Fit, Interface, Method};
use tercel_wire::layout::{Layout, NONE_AT, SPILLED, Shape, padded};
use tercel_wire::payload::Payload;
use tercel_wire::said;

use crate::shapes;

/// Reads a description and compares it, or converts a payload that the bytes describe.
pub fn run(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    match first % 2 {
        0 => compare(rest),
        _ => {
            let _ = try_run(&mut Unstructured::new(rest));
        }
    }
}

/// A description is refused, or written back as it was read, and compared with itself and with one method of
/// it changed.
fn compare(data: &[u8]) {
    let Ok(caller) = Interface::decode(&mut Reader::new(data)) else { return };
    let mut bytes = Vec::new();
    caller.encode(&mut bytes);
    assert!(data.starts_with(&bytes), "a description is written back as it was read");
    let mut names: Vec<&str> = caller.methods.iter().map(|m| &*m.name).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() == caller.methods.len() {
        let same = (0..caller.methods.len()).map(|at| Fit::Same(at as u16));
        assert_eq!(caller.fit(&caller), same.collect::<Vec<_>>());
    }
    let (Some(first), Some(last)) = (caller.methods.first(), caller.methods.last()) else { return };
    let mut other = caller.clone();
    other.methods = vec![Method { takes: last.gives.clone(), gives: first.takes.clone(), ..first.clone() }];
    for (server, caller) in [(&caller, &other), (&other, &caller)] {
        assert_eq!(server.fit(caller).len(), caller.methods.len());
    }
}

fn try_run(u: &mut Unstructured<'_>) -> Result<()> {
    let old = shapes::layout(u, 3)?;
    let new = shapes::changed_deeply(u, &old)?;
    if old.admissible().is_err() || new.admissible().is_err() {
        return Ok(());
    }
    let bytes = payload(u, &old)?;
    let Ok(given) = Payload::decode(&bytes, &old) else { return Ok(()) };
    let said_of = |layout: &Layout, payload: &Payload<'_>| {
        let mut said = Vec::new();
        said::put(layout, payload, usize::MAX, &mut said).map(|()| said)
    };
    let converted = |payload: &Payload<'_>, from: &Layout, to: &Layout| {
        let mut out = Vec::new();
        payload.convert(from, to, BYTES_MAX, &mut out).map(|()| out)
    };
    // A payload that is converted to its own layout says the same.
    if let Ok(again) = converted(&given, &old, &old) {
        let again = Payload::decode(&again, &old).expect("a payload converted to its own layout");
        assert_eq!(said_of(&old, &again), said_of(&old, &given));
    }
    if new.fits(&old).is_ok()
        && let Ok(after) = converted(&given, &old, &new)
    {
        let after = Payload::decode(&after, &new).expect("a payload converted to a layout that fits");
        let says = said_of(&new, &after).expect("its parts are whole");
        // Fields that were added say nothing, so that it says the same back in its own layout, but for those
        // that were dropped.
        if old.fits(&new).is_ok()
            && let Ok(back) = converted(&after, &new, &old)
        {
            let back = Payload::decode(&back, &old).expect("a payload converted back");
            assert_eq!(said_of(&old, &back), Ok(says));
        }
    }
    Ok(())
}

/// A payload of a layout, mostly whole: random bytes in the place of its numbers, and what stands beside them
/// after that. Every large part is named once.
fn payload(u: &mut Unstructured<'_>, layout: &Layout) -> Result<Vec<u8>> {
    let mut record = vec![0; layout.size()];
    let mut parts = Vec::new();
    fill(u, layout, &mut record, 0, &mut parts)?;
    record.resize(padded(record.len()), 0);
    if layout.has_numbers_alone() {
        record.truncate(if layout.size() == 0 { 0 } else { record.len() });
        return Ok(record);
    }
    let mut bytes = (record.len() as u32).to_le_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend(record);
    bytes.extend(parts);
    Ok(bytes)
}

fn fill(
    u: &mut Unstructured<'_>,
    layout: &Layout,
    record: &mut Vec<u8>,
    at: usize,
    parts: &mut Vec<u8>,
) -> Result<()> {
    layout.fields().iter().try_for_each(|p| value(u, &p.shape, record, at + p.at, parts))
}

fn value(
    u: &mut Unstructured<'_>,
    shape: &Shape,
    record: &mut Vec<u8>,
    at: usize,
    parts: &mut Vec<u8>,
) -> Result<()> {
    match shape {
        Shape::Scalar(_) | Shape::Array(..) => {
            let bytes = u.bytes(shape.size().min(u.len()))?;
            record[at..at + bytes.len()].copy_from_slice(bytes);
            // Whatever the number is, a truth value is one of two.
            let is_bool = format!("{shape}").contains("bool");
            record[at..at + shape.size()].iter_mut().filter(|_| is_bool).for_each(|byte| *byte &= 1);
        }
        Shape::Far(_) => record[at] = u.arbitrary()?,
        Shape::Ref(_) => {
            record[at..at + 4].copy_from_slice(&(512 * u.int_in_range(0..=3_u32)?).to_le_bytes())
        }
        Shape::Text | Shape::Bytes => {
            let len = u.int_in_range(0..=9)?;
            list(record, at, len, 1, 1, parts, u.ratio(1, 8)?);
        }
        Shape::List(t) => {
            let len = u.int_in_range(0..=4)?;
            let is_large = t.spills() && u.ratio(1, 4)?;
            let from = list(record, at, len, t.size(), t.align(), parts, is_large);
            let Some(from) = from else { return Ok(()) };
            for i in 0..len {
                value(u, t, record, from + i * t.size(), parts)?;
            }
        }
        Shape::Option(t) if t.has_none() && !matches!(**t, Shape::Ref(_)) => match u.arbitrary()? {
            true => value(u, t, record, at, parts)?,
            false => record[at..at + 2].copy_from_slice(&NONE_AT.to_le_bytes()),
        },
        Shape::Option(t) if t.has_none() => value(u, t, record, at, parts)?,
        Shape::Option(t) => {
            record[at] = u.arbitrary::<bool>()?.into();
            if record[at] == 1 {
                value(u, t, record, at + t.align(), parts)?;
            }
        }
        Shape::Record(layout) => fill(u, layout, record, at, parts)?,
        Shape::Enum(layout) => {
            let last = layout.fields().len().saturating_sub(2);
            let tag = u.int_in_range(0..=last)?;
            record[at] = tag as u8;
            if let Some(p) = layout.fields().get(tag + 1) {
                value(u, &p.shape, record, at + p.at, parts)?;
            }
        }
    }
    Ok(())
}

/// Writes a descriptor, and makes room for the elements; gives where they begin, if that is in the record.
fn list(
    record: &mut Vec<u8>,
    at: usize,
    len: usize,
    size: usize,
    align: usize,
    parts: &mut Vec<u8>,
    is_large: bool,
) -> Option<usize> {
    if len == 0 {
        return None;
    }
    let from = record.len().next_multiple_of(if is_large { 4 } else { align });
    record.resize(from + if is_large { 8 } else { len * size }, 0);
    record[at..at + 2].copy_from_slice(&(from as u16).to_le_bytes());
    let count = if is_large { SPILLED } else { len as u16 };
    record[at + 2..at + 4].copy_from_slice(&count.to_le_bytes());
    if !is_large {
        return Some(from);
    }
    // The word of a part: its first byte in words, from 1 on, above nine bits.
    let word = ((parts.len() / 4 + 1) as u32) << 9;
    record[from..from + 4].copy_from_slice(&word.to_le_bytes());
    record[from + 4..from + 8].copy_from_slice(&(len as u32).to_le_bytes());
    parts.extend(((len * size) as u32).to_le_bytes());
    parts.resize((parts.len() + len * size).next_multiple_of(4), 0);
    None
}

/// Bytes that the lists of a converted payload may have.
const BYTES_MAX: usize = 1 << 20;
