//! A record of one class made into one of another.

use super::{EncodeError, Encoder, NoSpill};
use crate::cursor::le32;
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
            Some(q) => copy_value(&q.shape, &mut Source::of_object(body), q.at, &p.shape, e, p.at),
            None => empty_value(&p.shape, e, p.at),
        }
    }
}

/// The large parts beside a record, by the words that name them.
pub(crate) type Parts<'a> = &'a dyn Fn(Oref) -> Option<&'a [u8]>;

/// [`convert`] for the record of a payload, whose large parts are converted with it. `to`
/// [fits](Layout::fits) `from`. Fails with `TooLong` where lists would have more than `bytes_max`, and with
/// `NoPart` where a part is not as long as the record says.
pub(crate) fn convert_parts<'a>(
    from: &Layout,
    (body, parts): (&'a [u8], Parts<'a>),
    to: &Layout,
    e: &mut Encoder<'_>,
    bytes_max: usize,
) {
    let mut source = Source { body, parts: Some(parts), left: bytes_max };
    for p in to.fields() {
        match from.field(&p.name) {
            Some(q) => copy_value(&q.shape, &mut source, q.at, &p.shape, e, p.at),
            None => empty_value(&p.shape, e, p.at),
        }
    }
}

/// The record that is converted.
struct Source<'a> {
    body: &'a [u8],
    /// The large parts beside it; none of an object, whose trees of chunks stay as they are.
    parts: Option<Parts<'a>>,
    /// Bytes that the elements of lists may still have.
    left: usize,
}

impl<'a> Source<'a> {
    fn of_object(body: &'a [u8]) -> Source<'a> {
        Source { body, parts: None, left: usize::MAX }
    }

    /// The part of so many bytes that the word at `at` names.
    fn part(&self, parts: Parts<'a>, at: usize, bytes: usize) -> Option<&'a [u8]> {
        parts(Oref::from_raw(le32(self.body, at))?).filter(|part| part.len() == bytes)
    }

    /// A large text or byte string.
    fn copy_bytes(&self, at: usize, len: usize, e: &mut Encoder<'_>, to: usize) {
        match self.parts {
            None => copy_tree(self.body, at, len, e, to),
            Some(parts) => match self.part(parts, at, len) {
                Some(part) => e.put_bytes(to, part),
                None => e.fail(EncodeError::NoPart),
            },
        }
    }

    /// A large list. The elements of one that is not of references are numbers alone.
    fn copy_list(&mut self, (a, b): (&Shape, &Shape), at: usize, len: usize, e: &mut Encoder<'_>, to: usize) {
        let Some(parts) = self.parts else { return copy_tree(self.body, at, len, e, to) };
        let part = self.part(parts, at, len.saturating_mul(a.size()));
        let Some(part) = part else { return e.fail(EncodeError::NoPart) };
        let mut elements = Source { body: part, parts: None, left: self.left };
        elements.copy_elements((a, b), 0, len, e, to);
        self.left = elements.left;
    }

    /// The elements of a list that begin at `at`.
    fn copy_elements(
        &mut self,
        (a, b): (&Shape, &Shape),
        at: usize,
        len: usize,
        e: &mut Encoder<'_>,
        to: usize,
    ) {
        let bytes = len.saturating_mul(b.size());
        let Some(left) = self.left.checked_sub(bytes) else { return e.fail(EncodeError::TooLong) };
        self.left = left;
        if !e.spills(bytes) || !b.spills() {
            let Some(block) = e.put_block(to, len, b.size(), b.align()) else { return };
            for i in 0..len {
                copy_value(a, self, at + i * a.size(), b, e, block + i * b.size());
            }
            return;
        }
        if let Shape::Ref(_) = b {
            let words = self.body[at..][..4 * len].chunks_exact(4).map(|word| Oref::from_raw(le32(word, 0)));
            return match words.collect::<Option<Vec<Oref>>>() {
                Some(orefs) => e.put_spilled(to, len, |spill| spill.refs(&orefs)),
                None => e.fail(EncodeError::NoPart),
            };
        }
        let mut none = NoSpill;
        let mut plain = Encoder::new(bytes, &mut none);
        for i in 0..len {
            copy_value(a, self, at + i * a.size(), b, &mut plain, i * b.size());
        }
        match plain.finish_bytes() {
            Ok(body) => e.put_spilled(to, len, |spill| spill.bytes(&body)),
            Err(wrong) => e.fail(wrong),
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

fn copy_value(
    old: &Shape,
    source: &mut Source<'_>,
    from: usize,
    new: &Shape,
    e: &mut Encoder<'_>,
    to: usize,
) {
    let body = source.body;
    match (old, new) {
        (Shape::Scalar(a), Shape::Scalar(b)) if a != b => copy_widened(*a, &body[from..], *b, e, to),
        (Shape::Scalar(_) | Shape::Array(..) | Shape::Ref(_) | Shape::Far(_), _) => {
            e.set(to, &body[from..from + old.size().min(new.size())]);
        }
        (Shape::Text | Shape::Bytes, _) => match var(body, from) {
            Var::None => e.put_none(to),
            Var::Here { at, len } => e.put_bytes(to, &body[at..at + len]),
            Var::Spilled { at, len } => source.copy_bytes(at, len, e, to),
        },
        (Shape::List(a), Shape::List(b)) => match var(body, from) {
            Var::None => e.put_none(to),
            Var::Spilled { at, len } => source.copy_list((a, b), at, len, e, to),
            Var::Here { at, len } if source.parts.is_some() => source.copy_elements((a, b), at, len, e, to),
            Var::Here { at, len } => {
                let Some(block) = e.put_block(to, len, b.size(), b.align()) else { return };
                for i in 0..len {
                    copy_value(a, source, at + i * a.size(), b, e, block + i * b.size());
                }
            }
        },
        (Shape::Record(a), Shape::Record(b)) => {
            for p in b.fields() {
                match a.field(&p.name) {
                    Some(q) => copy_value(&q.shape, source, from + q.at, &p.shape, e, to + p.at),
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
            copy_value(&was.shape, source, from + was.at, &is.shape, e, to + is.at);
        }
        (Shape::Option(a), Shape::Option(b)) if a.has_none() => copy_value(a, source, from, b, e, to),
        (Shape::Option(a), Shape::Option(b)) => {
            if body[from] == 1 {
                e.set(to, &[1]);
                copy_value(a, source, from + a.align(), b, e, to + b.align());
            }
        }
        // Layout::accepts lets no other pair through.
        _ => empty_value(new, e, to),
    }
}

fn copy_tree(body: &[u8], at: usize, len: usize, e: &mut Encoder<'_>, to: usize) {
    if let Some(root) = Oref::from_raw(le32(body, at)) {
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
