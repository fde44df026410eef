//! Objects without their types: read by the descriptions that a space keeps of its classes, for programs that
//! were built without these, such as viewers, exports, and bridges to other languages.
//!
//! ```
//! use tercel::dynamic::{self, Value};
//! use tercel::{Object, Ref, Text};
//!
//! #[derive(Object)]
//! struct Person {
//!     name: Text,
//!     friend: Ref<Person>,
//! }
//!
//! # let dir = std::env::temp_dir().join(format!("tercel-doc-dynamic-{}", std::process::id()));
//! let space = tercel::embedded(&dir)?;
//! space.run(|tx| {
//!     let bob = tx.create(&Person { name: "Bob".into(), friend: Ref::NULL })?;
//!     let ann = tx.create(&Person { name: "Ann".into(), friend: bob })?;
//!     tx.set_root("ann", ann)
//! })?;
//!
//! let person = &dynamic::classes(&space)?[0];
//! assert_eq!(person.fields[1], ("friend".to_string(), "Ref<Person>".to_string()));
//! space.run(|tx| {
//!     for (root, reference) in tx.roots()? {
//!         let object = dynamic::get(tx, reference)?;
//!         println!("{root} is a {}", object.class);
//!         let friend = dynamic::get(tx, object.reference_in("friend").expect("she has one"))?;
//!         assert_eq!(friend.field("name"), Some(&Value::Text("Bob".into())));
//!     }
//!     Ok(())
//! })?;
//! # space.close()?;
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! All reads are those of the transaction: they come from the cache, are of one state, and are certified as
//! those of typed programs are.

use tercel_collections::map::{MapNode, RawValue};
use tercel_collections::table::untyped::{Declared, Entries};
use tercel_engine::txn::{stored, stored_fields};
use tercel_wire::id::ClassId;
use tercel_wire::record::HEADER_BYTES;

use crate::{Any, Client, Error, Ref, Tx};

pub use tercel_collections::table::Cursor;
/// A value in one of the forms that JSON has. References are texts; bytes are texts of hexadecimal digits.
pub use tercel_wire::datum::Datum as Value;

/// A class as the space describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Class {
    /// The name, without the module.
    pub name: String,
    /// The name of each field, and its type as a program writes it.
    pub fields: Vec<(String, String)>,
}

/// An object, by the description of its class.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Object {
    /// The reference to it.
    pub reference: Ref<Any>,
    /// The name of its class.
    pub class: String,
    /// Its fields in order, as they were declared when it was written.
    pub fields: Vec<(String, Value)>,
}

impl Object {
    /// The value of a field; none if the class has no such field.
    pub fn field(&self, name: &str) -> Option<&Value> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    /// The reference that a field has; none if it has none.
    pub fn reference_in(&self, field: &str) -> Option<Ref<Any>> {
        self.field(field).and_then(reference)
    }
}

/// The reference that a value is: an element of a list, for example. None if it is not a reference, or null.
pub fn reference(value: &Value) -> Option<Ref<Any>> {
    match value {
        Value::Text(text) => text.parse().ok().map(Ref::new).filter(|r| !r.is_null()),
        _ => None,
    }
}

/// The entry of a map behind its key.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Entry {
    /// An object.
    Object(Ref<Any>),
    /// A value that stands in the map; of a record, which nothing describes, its bytes.
    Value(Value),
    /// Nothing: the map is a set.
    Nothing,
}

/// Some entries or rows, and the place where the others begin.
#[derive(Debug)]
#[non_exhaustive]
pub struct Page<T> {
    /// The entries, in the order of their keys.
    pub items: Vec<T>,
    /// The place behind them, which survives what is inserted or removed meanwhile; none if no more come.
    pub next: Option<Cursor>,
}

/// The classes that programs have used in the space, those of collections included; of a class that was
/// changed, each version, the oldest first.
///
/// # Errors
/// `Unavailable`, `Timeout`.
pub fn classes(client: &Client) -> Result<Vec<Class>, Error> {
    let all = client.ask(|machine| machine.all_classes())?;
    let class = |layout: &tercel_wire::layout::Layout| Class {
        name: layout.name().into(),
        fields: layout.fields().iter().map(|p| (p.name.clone(), p.shape.to_string())).collect(),
    };
    let of_programs = all.iter().filter(|(id, _)| id.0 >= ClassId::FIRST_USER.0);
    Ok(of_programs.map(|(_, layout)| class(layout)).collect())
}

/// An object.
///
/// # Errors
/// `NotFound` if the reference names nothing; `Corrupt` if the object is not what its class says; and as
/// [`Tx::get`].
pub fn get(tx: &Tx<'_>, what: Ref<Any>) -> Result<Object, Error> {
    find(tx, what)?.ok_or_else(|| Error::NotFound(format!("object {}", what.oref())))
}

/// An object; none if the reference names nothing.
///
/// # Errors
/// As [`get`].
pub fn find(tx: &Tx<'_>, what: Ref<Any>) -> Result<Option<Object>, Error> {
    let Some((layout, object)) = stored(tx, what.oref())? else { return Ok(None) };
    let fields = stored_fields(tx, &layout, &object[HEADER_BYTES..])?;
    Ok(Some(Object { reference: what, class: layout.name().into(), fields }))
}

/// The next entries of a map or set, `count` at most, behind the place where another page ended.
///
/// # Errors
/// `Schema` if the object is neither; `Corrupt` if it has keys that this version does not know; and as
/// [`Tx::get`].
pub fn entries(
    tx: &Tx<'_>,
    map: Ref<Any>,
    after: Option<&Cursor>,
    count: usize,
) -> Result<Page<(Value, Entry)>, Error> {
    let entries = Entries::of_map(tx, map.cast::<MapNode>())?;
    let page = entries.page(tx, after, count)?;
    let entry = |value| match value {
        RawValue::Reference(object) => Entry::Object(object),
        RawValue::Value(bytes) => Entry::Value(entries.value(&bytes)),
        RawValue::Nothing => Entry::Nothing,
    };
    let items = page.entries.into_iter().map(|(key, value)| (key, entry(value))).collect();
    Ok(Page { items, next: page.next })
}

/// The next rows of a table in the order of its key, `count` at most, behind the place where another page
/// ended.
///
/// # Errors
/// `Schema` if the object is no table; `Corrupt` if a row is not there; and as [`Tx::get`].
pub fn rows(
    tx: &Tx<'_>,
    table: Ref<Any>,
    after: Option<&Cursor>,
    count: usize,
) -> Result<Page<Object>, Error> {
    let declared = Declared::of(tx, table.cast())?;
    let page = entries(tx, Ref::new(declared.rows), after, count)?;
    let rows = page.items.iter().filter_map(|(_, entry)| match entry {
        Entry::Object(row) => Some(find(tx, *row).and_then(|row| {
            row.ok_or_else(|| Error::Corrupt(format!("a row of the table {} is missing", table.oref())))
        })),
        _ => None,
    });
    Ok(Page { items: rows.collect::<Result<_, _>>()?, next: page.next })
}
