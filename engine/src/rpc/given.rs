//! Arguments and results of methods: bytes of a message, read where they are.

use std::borrow::Cow;
use std::convert::Infallible;

use tercel_wire::cursor::{DecodeError, le32};
use tercel_wire::id::{Oref, Stamp};
use tercel_wire::interface::MethodSchema;
use tercel_wire::lent::{Lending, LentBytes};
use tercel_wire::payload::Payload;
use tercel_wire::record::Encoder;

use super::{Called, Ended, Failure, ReplyBody};
use crate::error::Error;
use crate::object::{Field, Parts, Stored};

/// The arguments or the result of a method. For derived code.
#[derive(Debug, Clone, Copy)]
pub struct Given<'a>(Payload<'a>);

impl<'a> Given<'a> {
    /// Wraps the contents of a payload, checked. For hosts.
    pub fn new(payload: Payload<'a>) -> Given<'a> {
        Given(payload)
    }

    /// The payload.
    pub(super) fn payload(&self) -> &Payload<'a> {
        &self.0
    }

    /// The text that begins at `at`, in place.
    ///
    /// # Errors
    /// `Corrupt` if it is not UTF-8.
    pub fn text(&self, at: usize) -> Result<&'a str, Error> {
        std::str::from_utf8(self.bytes(at)?)
            .map_err(|_| Error::Corrupt("a text of a call is not UTF-8".into()))
    }

    /// The byte string that begins at `at`, in place.
    ///
    /// # Errors
    /// `Corrupt` if it is not there.
    pub fn bytes(&self, at: usize) -> Result<&'a [u8], Error> {
        self.0.bytes(at).map_err(damaged)
    }

    /// The byte string that begins at `at`, wherever it lies.
    ///
    /// # Errors
    /// `Corrupt` if it is not there.
    pub fn lent(&self, at: usize) -> Result<LentBytes<'a>, Error> {
        self.0.lent(at).map_err(damaged)
    }

    /// The value that begins at `at`.
    ///
    /// # Errors
    /// `Corrupt` if a part of it is not there, `Schema` if it is of a variant that this program does not
    /// know.
    pub fn value<F: Field>(&self, at: usize) -> Result<F, Error> {
        F::load(&Stored { body: Cow::Borrowed(self.0.record()), parts: &self.0 }, at)
    }
}

/// Writes a text or byte string, which need not be owned. For derived code.
pub fn put_bytes(bytes: impl AsRef<[u8]>, e: &mut Encoder<'_>, at: usize) {
    e.put_bytes(at, bytes.as_ref());
}

/// Writes a byte string that is lent. For derived code.
pub fn put_lending(lending: Lending<'_>, e: &mut Encoder<'_>, at: usize) {
    e.put_lending(at, lending);
}

/// Writes what a method came to. For derived code.
///
/// # Errors
/// The error that kept the method from its end; `Full` if its result is too large.
pub fn finish<R, E>(
    called: Called<R, E>,
    method: &'static MethodSchema,
    put_gives: impl Fn(&R, &mut Encoder<'_>),
    put_fails: impl Fn(&E, &mut Encoder<'_>),
    out: &mut Vec<u8>,
) -> Result<Ended, Error> {
    match called {
        Ok(gives) => {
            method.gives.encode(|e| put_gives(&gives, e), out)?;
            Ok(Ended::Returned)
        }
        Err(Failure::Method(fails)) => {
            method.fails.encode(|e| put_fails(&fails, e), out)?;
            Ok(Ended::Failed)
        }
        Err(Failure::Space(e)) => Err(e),
    }
}

/// Writes what a procedure of a service came to. For derived code.
///
/// # Errors
/// As [`finish`].
pub fn finish_in<R, E>(
    called: Called<R, E>,
    method: &'static MethodSchema,
    put_gives: impl Fn(&R, &mut Encoder<'_>),
    put_fails: impl Fn(&E, &mut Encoder<'_>),
    out: &mut ReplyBody<'_>,
) -> Result<Ended, Error> {
    match called {
        Ok(gives) => {
            out.put(&method.gives, |e| put_gives(&gives, e))?;
            Ok(Ended::Returned)
        }
        Err(failed) => finish(Err::<R, _>(failed), method, put_gives, put_fails, out.bytes()),
    }
}

/// The error of a method that has none. For derived code.
///
/// # Errors
/// `Corrupt`: no server sends it.
pub fn never(_: &Given<'_>) -> Result<Infallible, Error> {
    Err(Error::Corrupt("a call has failed with an error that its method does not have".into()))
}

/// There is no method of that number. For derived code.
pub fn no_method(interface: &str) -> Error {
    Error::Schema(format!("interface `{interface}` has no such method"))
}

/// A message whose bytes are not what its layout promises.
pub(super) fn damaged(e: DecodeError) -> Error {
    Error::Corrupt(format!("a call's arguments or result: {e}"))
}

impl Parts for Payload<'_> {
    fn tree(&self, root: Oref, len: usize) -> Result<Vec<u8>, Error> {
        let part = self.part(root).filter(|part| part.len() == len);
        part.map(<[u8]>::to_vec).ok_or_else(|| damaged(DecodeError::BadField("parts")))
    }

    fn ref_tree(&self, root: Oref, out: &mut Vec<Oref>) -> Result<(), Error> {
        let part = self.part(root).ok_or_else(|| damaged(DecodeError::BadField("parts")))?;
        for word in part.chunks_exact(4) {
            out.push(
                Oref::from_raw(le32(word, 0)).ok_or_else(|| damaged(DecodeError::BadField("reference")))?,
            );
        }
        Ok(())
    }

    fn stamp_of(&self, oref: Oref) -> Stamp {
        Payload::stamp_of(self, oref)
    }
}
