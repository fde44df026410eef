//! Values by themselves, as bytes: what stands in an object that does not know their type.
//!
//! A value is the body of a record with that one field, without padding. It has no references: the bytes that
//! it becomes are not looked through for any.

use std::borrow::Cow;
use std::marker::PhantomData;

use tercel_wire::layout::{Layout, Shape, padded};
use tercel_wire::page::OBJECT_BYTES_MAX;
use tercel_wire::record::{EncodeError, Encoder, NoSpill};

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
        let ty = F::FIELD_TYPE;
        let fields = vec![(String::from("value"), Shape::of(&ty))];
        let layout = (!ty.is_numbers()).then(|| Layout::new(String::from("value"), fields));
        ValueReader { layout, value: PhantomData }
    }
}

impl<F: Field> ValueReader<F> {
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
