//! A class as a space's catalogue stores it: owned, with offsets, able to check a record, to find its
//! references and to convert it to another version of the same class.
//!
//! [`Layout::check`] is the door through which every record from outside comes: after it, every descriptor
//! lies inside the body, variable parts stand in order and do not overlap, nothing but zero padding stands
//! behind the last one, texts are UTF-8, truth values are 0 or 1 and every reference is in stored form.
//! Readers may then rely on all of it.

use thiserror::Error;

use crate::cursor::{DecodeError, Put, Reader, le16, le32};
use crate::id::Oref;
use crate::record::{HEADER_BYTES, OBJECT_BYTES_MIN};
use crate::schema::{Scalar, Schema, TAG};

mod fit;
mod shape;

pub use fit::Misfit;
pub use shape::Shape;
use shape::{Behind, Change};

/// A field and where it begins in the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldLayout {
    /// The name of the field.
    pub name: String,
    /// The type of the field.
    pub shape: Shape,
    /// The offset of the field in the fixed part.
    pub at: usize,
}

/// A class or a nested record, with everything that can be computed once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    name: String,
    fields: Vec<FieldLayout>,
    size: usize,
    align: usize,
    /// Offsets of the references of the fixed part.
    refs: Vec<u16>,
    /// Set if records consist of their fixed part alone.
    fixed: bool,
    /// Set if every bit pattern is valid, outside of references.
    plain: bool,
}

/// A record that breaks its layout: the maker of its bytes must act.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RecordError {
    /// Shorter than the fixed part.
    #[error("a record of class `{class}` has {found} bytes where its fixed part alone has {expected}")]
    Short {
        /// The class.
        class: String,
        /// Bytes found.
        found: usize,
        /// Bytes of the fixed part.
        expected: usize,
    },
    /// Longer or shorter than its parts and their padding.
    #[error(
        "a record of class `{class}` has {found} bytes where its parts and their padding have {expected}"
    )]
    Length {
        /// The class.
        class: String,
        /// Bytes found.
        found: usize,
        /// Bytes of the parts, padded.
        expected: usize,
    },
    /// Padding that is not zero.
    #[error("the padding behind the last part of a record of class `{class}` is not zero")]
    Padding {
        /// The class.
        class: String,
    },
    /// A field that cannot be what it is.
    #[error("field `{field}` of class `{class}`: {what}")]
    Field {
        /// The class.
        class: String,
        /// The field.
        field: String,
        /// The rule that the bytes break.
        what: &'static str,
    },
    /// An enum other than the stored enum with variants appended.
    #[error(
        "field `{field}` of class `{class}`: variant `{variant}` is gone, elsewhere or of other fields, and an enum only gains \
         variants behind those that it has"
    )]
    Variant {
        /// The class.
        class: String,
        /// The field.
        field: String,
        /// The stored variant that is not what it was.
        variant: String,
    },
}

/// A list or record nested deeper than this is refused, so checking needs a bounded stack.
pub const DEPTH_MAX: usize = 4;
/// Fields of a class: keeps a catalogue entry far below a page.
pub const FIELDS_MAX: usize = 256;
/// Bytes of a name of a class or field.
pub const NAME_BYTES_MAX: usize = 128;
/// The offset in a descriptor that means "none".
pub const NONE_AT: u16 = u16::MAX;
/// The length in a descriptor that means "in a tree of chunks": at the offset stand a reference and the true
/// length.
pub const SPILLED: u16 = u16::MAX;

/// A variable part, found through its descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Var {
    /// There is none.
    None,
    /// The value stands in the body: where its first byte is, and how many elements it has.
    Here {
        /// Offset in the body.
        at: usize,
        /// Elements (bytes, for texts).
        len: usize,
    },
    /// The value stands in a tree of chunks.
    Spilled {
        /// Where in the body the reference to the tree stands.
        at: usize,
        /// Elements (bytes, for texts).
        len: usize,
    },
}

/// Bytes of a body whose parts have `used`: the object is a multiple of 4 and has at least
/// [`OBJECT_BYTES_MIN`].
pub const fn padded(used: usize) -> usize {
    let body = used.next_multiple_of(4);
    let body_min = OBJECT_BYTES_MIN - HEADER_BYTES;
    if body < body_min { body_min } else { body }
}

/// The numbers of a checked body that say where its references are.
///
/// A walk over the references reads nothing else. So it also goes through the body of a cached object, whose
/// references change meanwhile.
pub trait Body {
    /// The byte at `at`: the mark of an optional value.
    fn u8(&self, at: usize) -> u8;
    /// The number at `at`: one half of a descriptor.
    fn u16(&self, at: usize) -> u16;
}

impl Body for [u8] {
    fn u8(&self, at: usize) -> u8 {
        self[at]
    }

    fn u16(&self, at: usize) -> u16 {
        le16(self, at)
    }
}

/// Reads a descriptor of a checked body.
pub fn var(body: &[u8], at: usize) -> Var {
    let (off, len) = (le16(body, at), le16(body, at + 2));
    match (off, len) {
        (NONE_AT, _) => Var::None,
        (off, SPILLED) => Var::Spilled { at: off as usize, len: le32(body, off as usize + 4) as usize },
        (off, len) => Var::Here { at: off as usize, len: len as usize },
    }
}

/// The type as programs write it.
impl Layout {
    /// The layout of a class of this program.
    pub fn of(schema: &Schema) -> Layout {
        let fields = schema.fields.iter().map(|f| (f.name.into(), Shape::of(&f.ty))).collect();
        Layout::new(schema.name.into(), fields)
    }

    /// Computes offsets. Sound only for what [`Layout::admissible`] accepts, if it comes from outside.
    pub fn new(name: String, fields: Vec<(String, Shape)>) -> Layout {
        let (mut at, mut align) = (0usize, 1);
        let mut laid_out = Vec::with_capacity(fields.len());
        let mut refs = Vec::new();
        let (mut fixed, mut plain) = (true, true);
        for (name, shape) in fields {
            let a = shape.align();
            at = at.next_multiple_of(a);
            align = align.max(a);
            fixed &= shape.is_fixed();
            plain &= shape.is_plain();
            shape.fixed_refs(at, &mut refs);
            let size = shape.size();
            laid_out.push(FieldLayout { name, shape, at });
            at = at.saturating_add(size);
        }
        Layout { name, fields: laid_out, size: at.next_multiple_of(align), align, refs, fixed, plain }
    }

    /// Appends what is stored of it: names and types; the rest follows from them.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_bytes(self.name.as_bytes());
        out.put_u32(self.fields.len() as u32);
        for p in &self.fields {
            out.put_bytes(p.name.as_bytes());
            encode_shape(&p.shape, out);
        }
    }

    /// Reads one that came from a disk or a peer and checks its bounds.
    pub fn decode(bytes: &[u8]) -> Result<Layout, DecodeError> {
        let mut r = Reader::new(bytes);
        let layout = decode_layout(&mut r, 0)?;
        r.end()?;
        layout.admissible().map_err(|_| DecodeError::BadField("layout"))?;
        Ok(layout)
    }

    /// Checks that a definition from outside keeps the bounds on names, number of fields, depth and size.
    pub fn admissible(&self) -> Result<(), &'static str> {
        self.admissible_fields(&self.fields)
    }

    /// [`Layout::admissible`] of an enum.
    fn admissible_enum(&self) -> Result<(), &'static str> {
        let [tag, variants @ ..] = &self.fields[..] else { return Err(NO_VARIANT) };
        let is_variant = |p: &FieldLayout| matches!(&p.shape, Shape::Record(fields) if fields.name == p.name);
        if variants.is_empty() || tag.shape != Shape::of(&TAG.ty) || !variants.iter().all(is_variant) {
            return Err(NO_VARIANT);
        }
        self.admissible_fields(variants)
    }

    fn admissible_fields(&self, places: &[FieldLayout]) -> Result<(), &'static str> {
        let names_ok =
            |n: &str| !n.is_empty() && n.len() <= NAME_BYTES_MAX && n.chars().all(|c| !c.is_control());
        if !names_ok(&self.name) || places.iter().any(|p| !names_ok(&p.name)) {
            return Err("a name of a class or field has 1 to 128 bytes and no control characters");
        }
        if self.fields.len() > FIELDS_MAX {
            return Err("a class has at most 256 fields");
        }
        if self.depth() > DEPTH_MAX {
            return Err("lists, options and records nest at most 4 deep");
        }
        if self.size > crate::page::OBJECT_BYTES_MAX - HEADER_BYTES {
            return Err("the fixed part of a class must fit into a page");
        }
        for (i, p) in places.iter().enumerate() {
            if places[..i].iter().any(|q| q.name == p.name) {
                return Err("two fields of a class have the same name");
            }
            admissible_shape(&p.shape)?;
        }
        Ok(())
    }

    /// Returns the depth to which its fields nest.
    fn depth(&self) -> usize {
        self.fields.iter().map(|p| p.shape.depth()).max().unwrap_or(0)
    }

    /// Finds the variant of a checked value of an enum, with its position; none if this layout has no such
    /// variant.
    pub fn variant(&self, body: &[u8], at: usize) -> Option<(u8, &FieldLayout)> {
        let tag = body[at];
        Some((tag, self.fields.get(tag as usize + 1)?))
    }

    /// The class's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The fields in order.
    pub fn fields(&self) -> &[FieldLayout] {
        &self.fields
    }

    /// Bytes of the fixed part.
    pub fn size(&self) -> usize {
        self.size
    }

    /// See [`Schema::has_numbers_alone`](crate::schema::Schema::has_numbers_alone).
    pub fn has_numbers_alone(&self) -> bool {
        self.fixed && self.refs.is_empty()
    }

    /// Checks a whole body, padding included, whose references are in stored form. Readers rely on bodies
    /// that pass.
    ///
    /// The length must be exactly that of the parts, padded: a cache keeps objects side by side and finds the
    /// next one by what the one before says of itself.
    #[inline]
    pub fn check(&self, body: &[u8]) -> Result<(), RecordError> {
        // Any bytes are such numbers.
        let is_any = self.fixed && self.plain && self.refs.is_empty() && padded(self.size) == self.size;
        if is_any && body.len() == self.size { Ok(()) } else { self.check_closely(body) }
    }

    fn check_closely(&self, body: &[u8]) -> Result<(), RecordError> {
        if body.len() < self.size {
            return Err(RecordError::Short {
                class: self.name.clone(),
                found: body.len(),
                expected: self.size,
            });
        }
        for &at in &self.refs {
            if Oref::from_raw(le32(body, at as usize)).is_none() {
                return Err(self.field_error(at as usize, "a reference is not in stored form"));
            }
        }
        let mut end = self.size;
        if !(self.fixed && self.plain) {
            self.check_record(body, 0, &mut end)?;
        }
        self.check_end(body, end)
    }

    /// Checks the bytes after the parts, which end at `end`.
    fn check_end(&self, body: &[u8], end: usize) -> Result<(), RecordError> {
        let (class, found, expected) = (&self.name, body.len(), padded(end));
        if found != expected {
            return Err(RecordError::Length { class: class.clone(), found, expected });
        }
        match body[end..].iter().all(|&b| b == 0) {
            true => Ok(()),
            false => Err(RecordError::Padding { class: class.clone() }),
        }
    }

    fn field_error(&self, at: usize, what: &'static str) -> RecordError {
        let field = self.fields.iter().rev().find(|p| p.at <= at).map_or("", |p| &p.name);
        RecordError::Field { class: self.name.clone(), field: field.into(), what }
    }

    fn check_record(&self, body: &[u8], base: usize, end: &mut usize) -> Result<(), RecordError> {
        for p in &self.fields {
            check_value(&p.shape, body, base + p.at, end).map_err(|what| RecordError::Field {
                class: self.name.clone(),
                field: p.name.clone(),
                what,
            })?;
        }
        Ok(())
    }

    /// Calls `f` with the offset of every reference of a checked body, those to chunk trees included. The
    /// words themselves are not read: in a cache they change.
    pub fn refs<B: Body + ?Sized>(&self, body: &B, mut f: impl FnMut(usize)) {
        for &at in &self.refs {
            f(at as usize);
        }
        if !self.fixed {
            self.refs_of_vars(body, 0, &mut f);
        }
    }

    /// The offsets of the references in the fixed part.
    pub fn fixed_refs(&self) -> &[u16] {
        &self.refs
    }

    fn refs_of_vars<B: Body + ?Sized>(&self, body: &B, base: usize, f: &mut dyn FnMut(usize)) {
        for p in &self.fields {
            refs_of_var(&p.shape, body, base + p.at, f);
        }
    }

    /// Says whether its records may own trees of chunks.
    pub fn may_own(&self) -> bool {
        !self.fixed
    }

    /// Calls `f` with the root of every tree of chunks that a checked body in stored form owns.
    pub fn trees(&self, body: &[u8], mut f: impl FnMut(Oref)) {
        if !self.fixed {
            self.trees_of_vars(body, 0, &mut f);
        }
    }

    fn trees_of_vars(&self, body: &[u8], base: usize, f: &mut dyn FnMut(Oref)) {
        self.fields.iter().for_each(|p| trees_of_var(&p.shape, body, base + p.at, f));
    }

    /// Bytes of a checked body that count: its fixed part and everything its descriptors name. The body has
    /// as many and the padding of [`padded`].
    pub fn used(&self, body: &[u8]) -> usize {
        let mut end = self.size;
        if !self.fixed {
            for p in &self.fields {
                end = end.max(var_end(&p.shape, body, p.at));
            }
        }
        end
    }

    /// Checks that every record of `other` can become a record of this layout. Fields may be added, dropped
    /// and widened, and variants may be appended to enums. The error names the field, and the variant.
    pub fn accepts(&self, other: &Layout) -> Result<(), RecordError> {
        self.accepts_fields(other, Behind::Refused)
    }

    /// Checks that a program with this layout can read records of `other`. The rules are those of
    /// [`Layout::accepts`], but `other` may have unknown variants. A record with an unknown variant cannot be
    /// converted.
    pub fn reads(&self, other: &Layout) -> Result<(), RecordError> {
        self.accepts_fields(other, Behind::Allowed)
    }

    fn accepts_fields(&self, other: &Layout, behind: Behind) -> Result<(), RecordError> {
        for p in &self.fields {
            let Some(q) = other.field(&p.name) else { continue };
            let (class, field) = (|| self.name.clone(), || p.name.clone());
            p.shape.accepts(&q.shape, behind).map_err(|change| match change {
                Change::Type => RecordError::Field {
                    class: class(),
                    field: field(),
                    what: "its type changed to one that cannot hold every old value",
                },
                Change::Variant(v) => {
                    RecordError::Variant { class: class(), field: field(), variant: v.into() }
                }
            })?;
        }
        Ok(())
    }

    /// The field of that name.
    pub fn field(&self, name: &str) -> Option<&FieldLayout> {
        self.fields.iter().find(|p| p.name == name)
    }
}

fn admissible_shape(shape: &Shape) -> Result<(), &'static str> {
    match shape {
        Shape::Array(_, 0) => Err("an array has at least one element"),
        Shape::Record(r) => r.admissible(),
        Shape::Enum(r) => r.admissible_enum(),
        Shape::List(t) if t.size() == 0 => Err("a list's elements have at least one byte"),
        Shape::Option(t) if matches!(**t, Shape::Option(_)) => Err("an option of an option means nothing"),
        Shape::List(t) | Shape::Option(t) => admissible_shape(t),
        _ => Ok(()),
    }
}

fn scalar_code(s: Scalar) -> u8 {
    Scalar::ALL.iter().position(|&t| t == s).unwrap_or_default() as u8
}

fn encode_shape(shape: &Shape, out: &mut Vec<u8>) {
    match shape {
        Shape::Scalar(s) => out.extend([0, scalar_code(*s)]),
        Shape::Array(s, n) => {
            out.extend([1, scalar_code(*s)]);
            out.put_u16(*n);
        }
        Shape::Text => out.put_u8(2),
        Shape::Bytes => out.put_u8(3),
        Shape::Ref(name) => {
            out.put_u8(4);
            out.put_bytes(name.as_bytes());
        }
        Shape::List(t) => {
            out.put_u8(5);
            encode_shape(t, out);
        }
        Shape::Option(t) => {
            out.put_u8(6);
            encode_shape(t, out);
        }
        Shape::Record(r) => {
            out.put_u8(7);
            r.encode(out);
        }
        Shape::Enum(r) => {
            let variants = r.fields.iter().filter_map(|p| match &p.shape {
                Shape::Record(fields) => Some(fields),
                _ => None,
            });
            out.put_u8(8);
            out.put_bytes(r.name.as_bytes());
            out.put_u32(variants.clone().count() as u32);
            variants.for_each(|fields| fields.encode(out));
        }
        Shape::Far(name) => {
            out.put_u8(9);
            out.put_bytes(name.as_bytes());
        }
    }
}

fn decode_layout(r: &mut Reader<'_>, depth: usize) -> Result<Layout, DecodeError> {
    let name = r.str("class name")?.to_owned();
    let n = r.count(5, "fields")?;
    if n > FIELDS_MAX {
        return Err(DecodeError::TooMany("fields"));
    }
    let fields = (0..n)
        .map(|_| Ok((r.str("field name")?.to_owned(), decode_shape(r, depth)?)))
        .collect::<Result<_, DecodeError>>()?;
    Ok(Layout::new(name, fields))
}

fn decode_shape(r: &mut Reader<'_>, depth: usize) -> Result<Shape, DecodeError> {
    if depth > DEPTH_MAX {
        return Err(DecodeError::BadField("nesting"));
    }
    let scalar = |r: &mut Reader<'_>| {
        Scalar::ALL.get(r.u8()? as usize).copied().ok_or(DecodeError::BadField("scalar"))
    };
    Ok(match r.u8()? {
        0 => Shape::Scalar(scalar(r)?),
        1 => Shape::Array(scalar(r)?, r.u16()?),
        2 => Shape::Text,
        3 => Shape::Bytes,
        4 => Shape::Ref(r.str("class name")?.to_owned()),
        5 => Shape::List(Box::new(decode_shape(r, depth + 1)?)),
        6 => Shape::Option(Box::new(decode_shape(r, depth + 1)?)),
        7 => Shape::Record(Box::new(decode_layout(r, depth + 1)?)),
        8 => {
            let name = r.str("name of an enum")?.to_owned();
            let n = r.count(8, "variants")?;
            if n >= FIELDS_MAX {
                return Err(DecodeError::TooMany("variants"));
            }
            let variants = (0..n).map(|_| decode_layout(r, depth + 1)).collect::<Result<_, _>>()?;
            Shape::variants(name, variants)
        }
        9 => Shape::Far(r.str("class name")?.to_owned()),
        _ => return Err(DecodeError::BadField("type")),
    })
}

fn check_value(shape: &Shape, body: &[u8], at: usize, end: &mut usize) -> Result<(), &'static str> {
    match shape {
        Shape::Scalar(Scalar::Bool) if body[at] > 1 => Err("a truth value is neither 0 nor 1"),
        Shape::Array(Scalar::Bool, n) if body[at..at + *n as usize].iter().any(|&b| b > 1) => {
            Err("a truth value is neither 0 nor 1")
        }
        Shape::Scalar(_) | Shape::Array(..) | Shape::Far(_) => Ok(()),
        Shape::Ref(_) if Oref::from_raw(le32(body, at)).is_none() => Err("a reference is not in stored form"),
        Shape::Ref(_) => Ok(()),
        Shape::Record(r) => r.fields.iter().try_for_each(|p| check_value(&p.shape, body, at + p.at, end)),
        Shape::Enum(r) => {
            let Some((_, variant)) = r.variant(body, at) else {
                return Err("it is of no variant of its enum");
            };
            r.fields[1..].iter().try_for_each(|p| {
                let bytes = &body[at + p.at..at + p.at + p.shape.size()];
                match std::ptr::eq(p, variant) {
                    true => check_value(&p.shape, body, at + p.at, end),
                    false if bytes.iter().all(|&b| b == 0) => Ok(()),
                    false => Err("the bytes of a variant that it is not of are not zero"),
                }
            })
        }
        Shape::Option(t) if t.has_none() => match **t {
            Shape::Ref(_) => check_value(t, body, at, end),
            _ if le16(body, at) == NONE_AT => Ok(()),
            _ => check_value(t, body, at, end),
        },
        Shape::Option(t) => match body[at] {
            0 => Ok(()),
            1 => check_value(t, body, at + t.align(), end),
            _ => Err("the mark of an optional value is neither 0 nor 1"),
        },
        Shape::Text => {
            let (from, len) = check_var(body, at, 1, 1, true, end)?;
            std::str::from_utf8(&body[from..from + len]).map_err(|_| "a text is not UTF-8")?;
            Ok(())
        }
        Shape::Bytes => check_var(body, at, 1, 1, true, end).map(|_| ()),
        Shape::List(t) => {
            let size = t.size();
            let (from, len) = check_var(body, at, size, t.align(), t.spills(), end)?;
            if matches!(**t, Shape::Scalar(s) if s != Scalar::Bool) {
                return Ok(());
            }
            (0..len).try_for_each(|i| check_value(t, body, from + i * size, end))
        }
    }
}

/// Checks a descriptor and moves `end` past the bytes that it names; gives first byte and elements (none when
/// spilled).
fn check_var(
    body: &[u8],
    at: usize,
    size: usize,
    align: usize,
    spills: bool,
    end: &mut usize,
) -> Result<(usize, usize), &'static str> {
    let (off, len) = (le16(body, at) as usize, le16(body, at + 2) as usize);
    if off == NONE_AT as usize {
        return Err("a part that must be there is marked as none");
    }
    if len == 0 {
        // Readers cut an empty part out of the body as they do any other, so it must not lie outside.
        return if off == 0 { Ok((0, 0)) } else { Err("an empty part is not where empty parts are") };
    }
    let spilled = len == SPILLED as usize;
    if spilled && !spills {
        return Err("a part that cannot be in chunks claims to be");
    }
    let (bytes, align) = if spilled { (8, 4) } else { (len * size, align) };
    if off < *end || off % align != 0 {
        return Err("a variable part overlaps another or is misplaced");
    }
    if off + bytes > body.len() {
        return Err("a variable part reaches beyond the record");
    }
    *end = off + bytes;
    if spilled {
        if Oref::from_raw(le32(body, off)).is_none_or(|r| r.is_null()) {
            return Err("the reference to a tree of chunks is not one");
        }
        return Ok((0, 0));
    }
    Ok((off, len))
}

fn refs_of_var<B: Body + ?Sized>(shape: &Shape, body: &B, at: usize, f: &mut dyn FnMut(usize)) {
    let inner = match shape {
        Shape::Record(r) | Shape::Enum(r) if !r.fixed => return r.refs_of_vars(body, at, f),
        Shape::Option(t) if t.has_none() => return refs_of_var(t, body, at, f),
        Shape::Option(t) if body.u8(at) == 1 => return refs_of_var(t, body, at + t.align(), f),
        Shape::Text | Shape::Bytes => None,
        Shape::List(t) => Some(&**t),
        _ => return,
    };
    match (body.u16(at), body.u16(at + 2)) {
        (NONE_AT, _) => {}
        (at, SPILLED) => f(at as usize),
        (at, len) => {
            let Some(t) = inner else { return };
            (0..len as usize).for_each(|i| refs_of_element(t, body, at as usize + i * t.size(), f));
        }
    }
}

fn trees_of_var(shape: &Shape, body: &[u8], at: usize, f: &mut dyn FnMut(Oref)) {
    let inner = match shape {
        Shape::Record(r) | Shape::Enum(r) if !r.fixed => return r.trees_of_vars(body, at, f),
        Shape::Option(t) if t.has_none() => return trees_of_var(t, body, at, f),
        Shape::Option(t) if body[at] == 1 => return trees_of_var(t, body, at + t.align(), f),
        Shape::Text | Shape::Bytes => None,
        Shape::List(t) => Some(&**t).filter(|t| !t.is_fixed()),
        _ => return,
    };
    match var(body, at) {
        Var::None => {}
        Var::Spilled { at, .. } => Oref::from_raw(le32(body, at)).into_iter().for_each(f),
        Var::Here { at, len } => {
            let Some(t) = inner else { return };
            (0..len).for_each(|i| trees_of_var(t, body, at + i * t.size(), f));
        }
    }
}

/// All references of an element of a list, those of its own bytes included: no table lists these.
fn refs_of_element<B: Body + ?Sized>(shape: &Shape, body: &B, at: usize, f: &mut dyn FnMut(usize)) {
    own_refs_of_element(shape, body, at, f);
    refs_of_var(shape, body, at, f);
}

/// The references among an element's own bytes. Unlike in the fixed part, those of an absent value were not
/// checked.
fn own_refs_of_element<B: Body + ?Sized>(shape: &Shape, body: &B, at: usize, f: &mut dyn FnMut(usize)) {
    match shape {
        Shape::Ref(_) => f(at),
        Shape::Record(r) | Shape::Enum(r) => {
            r.fields.iter().for_each(|p| own_refs_of_element(&p.shape, body, at + p.at, f));
        }
        Shape::Option(t) if t.has_none() => own_refs_of_element(t, body, at, f),
        Shape::Option(t) if body.u8(at) == 1 => own_refs_of_element(t, body, at + t.align(), f),
        _ => {}
    }
}

fn var_end(shape: &Shape, body: &[u8], at: usize) -> usize {
    let (size, inner) = match shape {
        Shape::Record(r) | Shape::Enum(r) if !r.fixed => {
            return r.fields.iter().map(|p| var_end(&p.shape, body, at + p.at)).max().unwrap_or(0);
        }
        Shape::Option(t) if t.has_none() => return var_end(t, body, at),
        Shape::Option(t) if body[at] == 1 => return var_end(t, body, at + t.align()),
        Shape::Text | Shape::Bytes => (1, None),
        Shape::List(t) => (t.size(), Some(&**t)),
        _ => return 0,
    };
    match var(body, at) {
        Var::None | Var::Here { len: 0, .. } => 0,
        Var::Spilled { at, .. } => at + 8,
        Var::Here { at, len } => {
            let own = at + len * size;
            match inner {
                Some(t) if !t.is_fixed() => {
                    (0..len).map(|i| var_end(t, body, at + i * size)).max().unwrap_or(0).max(own)
                }
                _ => own,
            }
        }
    }
}

const NO_VARIANT: &str = "an enum has at least one variant, each with fields of its own";

#[cfg(test)]
mod tests;
