//! A record of one class made into one of another.

use super::{EncodeError, Encoder};
use crate::id::Oref;
use crate::layout::{FieldLayout, Layout, Shape, Var, var};
use crate::schema::Scalar;

/// Writes field by field what `from` says into a record of class `to`: equal fields are copied, widened ones
/// widened, new ones left empty, dropped ones left out. Fails with `NoVariant` where `to` only
/// [reads](Layout::reads) the other and does not know a variant. `body` was checked and its references are
/// stored. With `skip`, that field of `to` is left for the caller.
pub fn convert(
    from: &Layout,
    body: &[u8],
    to: &Layout,
    e: &mut Encoder<'_>,
    mut at_place: impl FnMut(&FieldLayout, &mut Encoder<'_>) -> bool,
) {
    for p in to.fields() {
        if at_place(p, e) {
            continue;
        }
        match from.field(&p.name) {
            Some(q) => copy_value(&q.shape, body, q.at, &p.shape, e, p.at),
            None => empty_value(&p.shape, e, p.at),
        }
    }
}

fn empty_value(shape: &Shape, e: &mut Encoder<'_>, at: usize) {
    match shape {
        Shape::Option(t) if t.has_none() && !matches!(**t, Shape::Ref(_)) => e.put_none(at),
        Shape::Record(r) => r.fields().iter().for_each(|p| empty_value(&p.shape, e, at + p.at)),
        // The first variant, whose number is 0.
        Shape::Enum(r) => r.fields().iter().take(2).for_each(|p| empty_value(&p.shape, e, at + p.at)),
        _ => {}
    }
}

fn copy_value(old: &Shape, body: &[u8], from: usize, new: &Shape, e: &mut Encoder<'_>, to: usize) {
    match (old, new) {
        (Shape::Scalar(a), Shape::Scalar(b)) if a != b => copy_widened(*a, &body[from..], *b, e, to),
        (Shape::Scalar(_) | Shape::Array(..) | Shape::Ref(_) | Shape::Far(_), _) => {
            e.set(to, &body[from..from + old.size().min(new.size())]);
        }
        (Shape::Text | Shape::Bytes, _) => match var(body, from) {
            Var::None => e.put_none(to),
            Var::Here { at, len } => e.put_bytes(to, &body[at..at + len]),
            Var::Spilled { at, len } => copy_tree(body, at, len, e, to),
        },
        (Shape::List(a), Shape::List(b)) => match var(body, from) {
            Var::None => e.put_none(to),
            Var::Spilled { at, len } => copy_tree(body, at, len, e, to),
            Var::Here { at, len } => {
                let Some(block) = e.put_block(to, len, b.size(), b.align()) else { return };
                for i in 0..len {
                    copy_value(a, body, at + i * a.size(), b, e, block + i * b.size());
                }
            }
        },
        (Shape::Record(a), Shape::Record(b)) => {
            for p in b.fields() {
                match a.field(&p.name) {
                    Some(q) => copy_value(&q.shape, body, from + q.at, &p.shape, e, to + p.at),
                    None => empty_value(&p.shape, e, to + p.at),
                }
            }
        }
        (Shape::Enum(a), Shape::Enum(b)) => {
            let Some((tag, was)) = a.variant(body, from) else { return };
            let Some((_, is)) = b.variant(&[tag], 0) else {
                return e.fail(EncodeError::NoVariant(format!("`{}` of `{}`", was.name, a.name()).into()));
            };
            e.set(to, &[tag]);
            copy_value(&was.shape, body, from + was.at, &is.shape, e, to + is.at);
        }
        (Shape::Option(a), Shape::Option(b)) if a.has_none() => copy_value(a, body, from, b, e, to),
        (Shape::Option(a), Shape::Option(b)) => {
            if body[from] == 1 {
                e.set(to, &[1]);
                copy_value(a, body, from + a.align(), b, e, to + b.align());
            }
        }
        // Layout::accepts lets no other pair through.
        _ => empty_value(new, e, to),
    }
}

fn copy_tree(body: &[u8], at: usize, len: usize, e: &mut Encoder<'_>, to: usize) {
    if let Some(root) = Oref::from_raw(crate::cursor::le32(body, at)) {
        e.put_tree(to, root, len as u32);
    }
}

fn copy_widened(old: Scalar, bytes: &[u8], new: Scalar, e: &mut Encoder<'_>, to: usize) {
    if let (Scalar::F32, Scalar::F64) = (old, new) {
        let v = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        return e.set(to, &(v as f64).to_le_bytes());
    }
    let mut wide = [0u8; 8];
    wide[..old.size()].copy_from_slice(&bytes[..old.size()]);
    let signed = matches!(old, Scalar::I8 | Scalar::I16 | Scalar::I32 | Scalar::I64);
    if signed && bytes[old.size() - 1] & 0x80 != 0 {
        wide[old.size()..].fill(0xff);
    }
    e.set(to, &wide[..new.size()]);
}
