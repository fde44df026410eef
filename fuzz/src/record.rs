//! A class and a record that may be one of its.

use arbitrary::{Result, Unstructured};
use tercel_wire::cursor::le32;
use tercel_wire::id::{ClassId, Oref};
use tercel_wire::layout::{Layout, RecordError, padded};
use tercel_wire::page::OBJECT_BYTES_MAX;
use tercel_wire::record::{EncodeError, Encoder, HEADER_BYTES, Spill, convert};

use crate::shapes;

/// Checks a record that the bytes describe, uses it, and converts it to a changed class.
pub fn run(data: &[u8]) {
    let _ = try_run(&mut Unstructured::new(data));
}

fn try_run(u: &mut Unstructured<'_>) -> Result<()> {
    let old = shapes::layout(u, 3)?;
    let new = shapes::changed(u, &old)?;
    if old.admissible().is_err() || new.admissible().is_err() {
        return Ok(());
    }
    let mut body = u.bytes(u.len().min(OBJECT_BYTES_MAX - HEADER_BYTES))?;
    // Where nothing but the length is wrong, the right one is named, and random bytes seldom have it.
    if let Err(RecordError::Length { expected, .. }) = old.check(body)
        && expected < body.len()
    {
        body = &body[..expected];
    }
    if old.check(body).is_err() {
        return Ok(());
    }
    use_it(&old, body);
    // The same again must say the same: what a write of one field does to the others.
    if let Some(again) = converted(&old, body, &old) {
        old.check(&again).expect("a record converted to its own class");
        let (before, after) = (said(&old, body), said(&old, &again));
        // A reference in the place of an optional record that is absent means nothing, and goes.
        assert!(before.len() == after.len() && before.iter().zip(&after).all(|(b, a)| b == a || *a == 0));
        assert_eq!(
            converted(&old, &again, &old),
            Some(again),
            "the first time made all that can be made of it"
        );
    }
    if new.accepts(&old).is_ok()
        && let Some(after) = converted(&old, body, &new)
    {
        new.check(&after).expect("a record converted to a class that accepts it");
        use_it(&new, &after);
    }
    Ok(())
}

/// Uses a checked record as every caller does.
fn use_it(layout: &Layout, body: &[u8]) {
    assert_eq!(padded(layout.used(body)), body.len());
    let mut seen = Vec::new();
    layout.refs(body, |at| {
        assert!(at % 4 == 0, "a reference stands at a multiple of its size");
        assert!(Oref::from_raw(le32(body, at)).is_some(), "a reference that the check let pass");
        seen.push(at);
    });
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), all, "a reference is told of once");
}

/// The references of a record in order: of all it says, what is easily compared.
fn said(layout: &Layout, body: &[u8]) -> Vec<u32> {
    let mut words = Vec::new();
    layout.refs(body, |at| words.push(le32(body, at)));
    words
}

fn converted(from: &Layout, body: &[u8], to: &Layout) -> Option<Vec<u8>> {
    let mut trees = Trees;
    let mut e = Encoder::new(to.size(), &mut trees);
    convert(from, body, to, &mut e, |_, _| false);
    // Too large, at most.
    let mut object = e.finish(ClassId(16)).ok()?;
    object.drain(..HEADER_BYTES);
    Some(object)
}

/// Stores nothing and says where.
struct Trees;

impl Spill for Trees {
    fn bytes(&mut self, _: &[u8]) -> std::result::Result<Oref, EncodeError> {
        Ok(Oref::from_raw(5 << 9).expect("a reference"))
    }
    fn refs(&mut self, _: &[Oref]) -> std::result::Result<Oref, EncodeError> {
        Ok(Oref::from_raw(6 << 9).expect("a reference"))
    }
}
