//! The declaration of a table: its key, its indexes, and how a row makes their keys.

use std::fmt;

use tercel_engine::Error;
use tercel_engine::object::{Object, Stored};

use super::RowMut;
use crate::key::{Form, Key, KeyBytes};
use crate::map::items::Kind;

/// A class whose objects are rows of tables. Written by `#[derive(Object)]` with `#[table(...)]`; not meant
/// to be written by hand.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no class of rows",
    note = "declare its key and indexes: `#[table(key = id, index(event, price), unique(email))]` beside `#[derive(Object)]`"
)]
pub trait Row: Object {
    /// The key of a row: the type of one field, or a tuple of those of several.
    type Key: Key;

    /// The editor of a row: a setter for each field but those of the key.
    type Edit<'t>;

    /// The declaration.
    #[doc(hidden)]
    const TABLE: Declaration;

    /// A number that is another one for other declarations.
    #[doc(hidden)]
    const DIGEST: u64 = Self::TABLE.digest();

    /// The same of a table some of whose indexes are being built. For a build of this crate that knows of no
    /// such tables, it is that of another program.
    #[doc(hidden)]
    const DIGEST_BUILDING: u64 = mix(Self::DIGEST, BUILDING);

    /// Wraps.
    #[doc(hidden)]
    fn guard<'t>(row: RowMut<'t, Self>) -> Self::Edit<'t>;

    /// The row's key.
    fn key(&self) -> <Self::Key as Key>::Arg<'_>;

    /// Appends the key that the row has in an index.
    #[doc(hidden)]
    fn put_index(&self, index: usize, form: Form, to: &mut KeyBytes);

    /// Appends the key of a stored row.
    #[doc(hidden)]
    fn put_stored_key(stored: &Stored<'_>, form: Form, to: &mut KeyBytes) -> Result<(), Error>;

    /// Appends the key that a stored row has in an index.
    #[doc(hidden)]
    fn put_stored_index(
        stored: &Stored<'_>,
        index: usize,
        form: Form,
        to: &mut KeyBytes,
    ) -> Result<(), Error>;
}

/// The declaration of a class of rows. For derived code.
#[doc(hidden)]
pub struct Declaration {
    /// The name of the class.
    pub class: &'static str,
    /// The fields of the key.
    pub key: &'static str,
    /// The indexes.
    pub indexes: &'static [IndexDeclaration],
}

impl Declaration {
    /// FNV-1a of all names, each with its end.
    pub const fn digest(&self) -> u64 {
        let mut sum = mix(mix(0xcbf2_9ce4_8422_2325, self.class), self.key);
        let mut i = 0;
        while i < self.indexes.len() {
            sum = mix(sum, if self.indexes[i].is_unique { "unique" } else { "index" });
            sum = mix(sum, self.indexes[i].fields);
            i += 1;
        }
        sum
    }
}

const fn mix(mut sum: u64, name: &str) -> u64 {
    let (bytes, mut i) = (name.as_bytes(), 0);
    while i <= bytes.len() {
        let byte = if i < bytes.len() { bytes[i] } else { 0 };
        sum = (sum ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3);
        i += 1;
    }
    sum
}

/// An index that a class of rows declares. For derived code.
#[doc(hidden)]
pub struct IndexDeclaration {
    /// The fields of the index.
    pub fields: &'static str,
    /// Set if two rows cannot have the same key.
    pub is_unique: bool,
    kind: Kind,
}

impl IndexDeclaration {
    /// An index with keys of type `K`, of rows with keys of type `P`.
    pub const fn new<K: Key, P: Key>(fields: &'static str, is_unique: bool) -> IndexDeclaration {
        let kind = if is_unique { Kind::references::<K>() } else { Kind::references::<(K, P)>() };
        IndexDeclaration { fields, is_unique, kind }
    }

    /// The kind of its map.
    pub(crate) const fn kind(&'static self) -> &'static Kind {
        &self.kind
    }
}

/// The words that a table keeps of the index, behind `building ` while it is being built.
impl fmt::Display for IndexDeclaration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_unique { "unique " } else { "" }, self.fields)
    }
}

/// The words of an index without its state, and whether it is being built.
pub(super) fn state_of(words: &str) -> (&str, bool) {
    words.strip_prefix(BUILDING).map_or((words, false), |words| (words, true))
}

/// The key under which a row stands in an index.
pub(super) fn index_key<T: Row>(row: &T, i: usize) -> Vec<u8> {
    let mut key = Vec::with_capacity(USUAL_BYTES);
    if T::TABLE.indexes[i].is_unique {
        row.put_index(i, Form::Last, &mut key);
    } else {
        row.put_index(i, Form::Inner, &mut key);
        T::Key::put(row.key(), Form::Last, &mut key);
    }
    key
}

/// The same of a stored row.
pub(super) fn stored_index_key<T: Row>(stored: &Stored<'_>, i: usize) -> Result<Vec<u8>, Error> {
    let mut key = Vec::with_capacity(USUAL_BYTES);
    if T::TABLE.indexes[i].is_unique {
        T::put_stored_index(stored, i, Form::Last, &mut key)?;
    } else {
        T::put_stored_index(stored, i, Form::Inner, &mut key)?;
        T::put_stored_key(stored, Form::Last, &mut key)?;
    }
    Ok(key)
}

/// Stands before the words of an index that is being built: no field's name has a space, so tools of before
/// refuse the table.
pub(super) const BUILDING: &str = "building ";
/// Bytes that a key of an index has room for before it needs more.
const USUAL_BYTES: usize = 32;
