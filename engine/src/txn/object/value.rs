//! Values by themselves, as bytes: what stands in an object that does not know their type.
//!
//! A value is the body of a record with that one field, without padding. It has no references: the bytes that
//! it becomes are not looked through for any.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use tercel_wire::layout::{Layout, Shape, padded};
use tercel_wire::page::OBJECT_BYTES_MAX;
use tercel_wire::record::{EncodeError, Encoder, NoSpill, convert};

use super::{Field, Stored};
use crate::error::{Bound, Error};
use crate::txn::Tx;

/// The value as bytes, at most `bytes_max`. For collections.
///
/// # Errors
/// `Full` if it has more.
pub fn encode_value<F: Field>(value: &F, bytes_max: usize) -> Result<Vec<u8>, Error> {
    let mut whole = NoSpill;
    let mut e = Encoder::new(const { F::FIELD_TYPE.size() }, &mut whole).spill_above(OBJECT_BYTES_MAX);
    value.put_field(&mut e, 0);
    let too_large = |bytes| Error::Full(Bound::Value { bytes, bytes_max });
    match e.finish_bytes() {
        Ok(bytes) if bytes.len() <= bytes_max => Ok(bytes),
        Ok(bytes) => Err(too_large(bytes.len())),
        Err(EncodeError::TooLarge(bytes)) => Err(too_large(bytes)),
        Err(EncodeError::PartTooLarge) => Err(too_large(OBJECT_BYTES_MAX + 1)),
        Err(e) => Err(e.into()),
    }
}

/// Reads values of one type. For collections.
pub struct ValueReader<F> {
    /// The layout that checks the bytes; none where any of the right number are a value.
    layout: Option<Layout>,
    value: PhantomData<fn() -> F>,
}

impl<F: Field> Default for ValueReader<F> {
    fn default() -> Self {
        let layout = (!F::FIELD_TYPE.is_numbers()).then(layout_of::<F>);
        ValueReader { layout, value: PhantomData }
    }
}

/// The layout of the record that a value is the only field of.
fn layout_of<F: Field>() -> Layout {
    Layout::new("value".into(), vec![("value".into(), Shape::of(&F::FIELD_TYPE))])
}

impl<F: Field> ValueReader<F> {
    /// The words on the layout of the values, for a reader of another version.
    pub fn words(&self) -> Vec<u8> {
        let mut words = Vec::new();
        layout_of::<F>().encode(&mut words);
        words
    }

    /// The value of bytes that a program of another version may have written; without words on their layout
    /// they are of this one.
    ///
    /// # Errors
    /// As [`ValueReader::read`]; `Failed` if that version cannot become this one: the value is there, and
    /// this program cannot read it.
    pub fn read_version(&self, tx: &Tx<'_>, bytes: &[u8], words: &[u8]) -> Result<F, Error> {
        if words.is_empty() || *words == self.words()[..] {
            return self.read(tx, bytes);
        }
        let damaged = || Error::Corrupt("a value that was kept is not one of its type".into());
        let from = Layout::decode(words).map_err(|_| damaged())?;
        let mut body = bytes.to_vec();
        body.resize(padded(bytes.len()), 0);
        from.check(&body).map_err(|_| damaged())?;
        let to = layout_of::<F>();
        let other = |why: &dyn fmt::Display| {
            Error::Failed(format!("a value that was kept is of another version: {why}"))
        };
        to.fits(&from).map_err(|misfit| other(&misfit))?;
        let mut whole = NoSpill;
        let mut e = Encoder::new(to.size(), &mut whole).spill_above(OBJECT_BYTES_MAX);
        convert(&from, &body, &to, &mut e, |_, _| false);
        self.read(tx, &e.finish_bytes().map_err(|e| other(&e))?)
    }

    /// The value of these bytes.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are none; `Schema` if they are of a variant that this program does not know.
    pub fn read(&self, tx: &Tx<'_>, bytes: &[u8]) -> Result<F, Error> {
        let damaged = || Error::Corrupt("a value in a node of a map is not one of its type".into());
        let body = match &self.layout {
            None if bytes.len() == const { F::FIELD_TYPE.size() } => Cow::Borrowed(bytes),
            None => return Err(damaged()),
            Some(layout) => {
                let mut body = bytes.to_vec();
                body.resize(padded(bytes.len()), 0);
                layout.check(&body).map_err(|_| damaged())?;
                Cow::Owned(body)
            }
        };
        F::load(&Stored { body, parts: tx }, 0)
    }
}
