//! Derive macros for the classes of Tercel.
//!
//! A class is a struct. [`Object`] makes it one whose values can be stored, with a type that reads its
//! objects field by field where they are and a type that changes them; [`Record`] makes a struct or an enum a
//! field of such a class. What may be stored and where it stands follows from the struct alone and is settled
//! when the program is compiled: a class that compiles is never refused later for its form.
//!
//! The code that is written here refers to one crate, which offers a hidden module `__private`: `tercel`,
//! unless the struct says otherwise.
//!
//! | module | its noun or verb |
//! |---|---|
//! | `input` | the struct as its author wrote it, and what can be wrong with it |
//! | `advise` | what to write instead of a type that cannot be stored |
//! | `schema` | the schema, and the assertions about it |
//! | `object` | the code of a class |
//! | `table` | the code of a class of rows |
//! | `record` | the code of a nested record |
//! | `method` | the methods of an interface and the procedures of a service |
//! | `stream` | the streams of a procedure |
//! | `key` | the code of a key |
//! | `interface` | the code of an interface |
//! | `service` | the code of a service |
#![deny(missing_docs)]
#![forbid(unsafe_code)]

/// As [`quote::quote`], but the variables in it are the macro's own: an argument or a field may have the name
/// of any.
macro_rules! quote_own {
    ($($code:tt)*) => { ::quote::quote_spanned!(::proc_macro2::Span::mixed_site()=> $($code)*) };
}
use quote_own as quote;

mod advise;
mod input;
mod interface;
mod key;
mod method;
mod object;
mod record;
mod schema;
mod service;
mod stream;
mod table;

use proc_macro::TokenStream;
use syn::{Data, DeriveInput, parse_macro_input};

use crate::input::{Enum, Input, Kind};
use crate::method::{Of, Options, Trait};

/// Makes a struct with named fields a class of objects.
///
/// ```text
/// use tercel::{List, Object, Record, Ref, Text};
///
/// /// A part of a machine.
/// #[derive(Object)]
/// #[object(name = "shop.Part")]
/// pub struct Part {
///     /// The number on its box.
///     id: u32,
///     name: Text,
///     size: Option<Size>,
///     made_of: List<Ref<Part>>,
/// }
///
/// #[derive(Record)]
/// pub struct Size {
///     wide_mm: u32,
///     high_mm: u32,
/// }
/// ```
///
/// Beside the struct this makes two types of the same visibility:
///
/// ```text
/// pub struct PartView<'t>(..);
/// impl<'t> PartView<'t> {
///     /// The number on its box.
///     pub fn id(&self) -> u32;
///     pub fn name(&self) -> Result<Cow<'_, str>, Error>;
///     ..
/// }
///
/// pub struct PartMut<'t>(..);
/// impl<'t> PartMut<'t> {
///     pub fn reference(&self) -> Ref<Part>;
///     pub fn set_id(&self, value: u32) -> Result<(), Error>;
///     pub fn set_name(&self, value: impl Into<Text>) -> Result<(), Error>;
///     pub fn push_made_of(&self, value: Ref<Part>) -> Result<(), Error>;
///     ..
/// }
/// ```
///
/// An accessor can be called wherever the struct can be named, or its field if that reaches further, and
/// bears the field's documentation. A setter takes anything that becomes a `Text`, `Bytes` or `List`; of any
/// other type it takes the value itself, so that `set_id(7)`, `set_size(None)` and `set_next(Ref::NULL)` need
/// no further word.
///
/// A field whose type is written `List<..>` also has a method that puts one element behind the others:
/// `push_` and the field's name as it is written, `push_made_of(part)`. Like a setter of a list it writes the
/// whole list anew.
///
/// Editors are shared: `let part = tx.edit(part)?;` is enough to call any number of setters on it.
///
/// # Attributes
///
/// `#[object(name = "...")]` is the name of the class in the space, of 1 to 128 bytes; without it, the
/// struct's. `#[object(crate = "...")]` is the path of the crate that the code refers to; without it,
/// `::tercel`.
///
/// # Tables
///
/// `#[table(key = id, index(event, price), unique(email))]` makes the objects rows of tables: the class gets
/// a constant for each index, `Part::BY_EVENT_PRICE` and `Part::BY_EMAIL`, and a type `PartEdit` with the
/// setters of rows, which a table gives. `PartMut` has none for the fields of the key or of an index, so that
/// no index can be forgotten. A key of several fields is `key = (event, seat)`; keys and indexes have one to
/// four, each of a type that can be a key.
///
/// # Limits
///
/// A class has 1 to 256 fields, no parameters, and no field called `clone`, `deref`, `edit`, `into`,
/// `reference`, `to_owned`, `to_value` or `try_into`: another method would be called in the accessor's stead.
/// Beside a field `id` there is none called `set_id`, and beside a list `uses` none called `push_uses`. A
/// field whose name is a keyword is written `r#type` and called `type` in the space.
///
/// A field is a number, a `bool`, an array of one of them with at least one element, `Text`, `Bytes`,
/// `Ref<T>`, `List<T>`, `Option<T>` or a struct or enum with [`Record`](macro@Record). Lists, options and
/// records nest at most 4 deep, and an option holds no option. The fixed part, where texts, byte strings,
/// lists and references have 4 bytes each, has at most 8,016 bytes.
#[proc_macro_derive(Object, attributes(object, table))]
pub fn derive_object(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let attrs = input.attrs.clone();
    let code = Input::parse(input, Kind::Object).and_then(|input| {
        let rows = table::Table::parse(&attrs, &input.members)?;
        Ok(object::object(&input, rows.as_ref()))
    });
    code.unwrap_or_else(|e| e.into_compile_error()).into()
}

/// Makes a struct with named fields, or an enum, a record that can be a field of an object.
///
/// ```text
/// #[derive(Record)]
/// pub struct Size {
///     wide_mm: u32,
///     high_mm: u32,
/// }
/// ```
///
/// It stands inside its object, in the bytes of its fields, and is read and written whole: its accessor gives
/// `Result<Size, Error>`, the error being that of a part of it that had to be fetched. Something that is
/// changed by itself, shared or large is better an [`Object`](macro@Object) behind a `Ref`.
///
/// It can also be the element of a list, `List<Size>`, which is read whole as well and gone through as a list
/// of references is: `for size in part.sizes() { size?.. }`, or `part.sizes().to_vec()?`. A list of records
/// that hold nothing but numbers may have any length; one of records with references, texts or lists in them
/// has at most 1,024 bytes.
///
/// # Enums
///
/// ```text
/// #[derive(Record)]
/// pub enum Owner {
///     Nobody,
///     Person(Ref<Person>),
///     Group { of: List<Ref<Person>>, since: u64 },
/// }
/// ```
///
/// A value is stored with the position of its variant and the fields of that one; discriminants such as `= 7`
/// play no part. An enum whose variants have no fields takes a byte. Else it takes the sum of its variants,
/// for each has a place of its own: what is large is better behind a `Ref`, which takes 4 bytes, or in a text
/// or list.
///
/// Variants may be added behind the others, at most 255 in all. A variant that is gone, renamed, elsewhere or
/// of other fields is refused with its name. An object with a variant that a program does not have cannot be
/// read there: `Error::Schema` names the variant. What an older object does not have reads as the first
/// variant.
///
/// # Limits
///
/// The attributes and limits are the same as for [`Object`](macro@Object), except that a field may have any
/// name, because there are no accessors. A struct that is a class as well says so, `#[object(class)]`: maps
/// lead to its objects, while they hold other records themselves. A record cannot contain itself, not even in
/// a list.
#[proc_macro_derive(Record, attributes(object))]
pub fn derive_record(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let code = match &input.data {
        Data::Enum(data) => Enum::parse(&input, data).map(|input| record::record_of_enum(&input)),
        _ => Input::parse(input, Kind::Record).map(|input| record::record(&input)),
    };
    code.unwrap_or_else(|e| e.into_compile_error()).into()
}

/// Makes a struct of one field a key of maps and indexes, in the order and the form of that field.
///
/// ```text
/// #[derive(Key, Debug, Clone, PartialEq)]
/// struct SeatId(u32);
///
/// seats.get(tx, &SeatId(7))?;
/// ```
///
/// A struct whose field has a name can derive [`Record`](macro@Record) as well, and be a field of an object.
///
/// # Limits
///
/// The struct has no parameters, and implements `Clone` and `Debug`. `#[object(crate = "...")]` is the path
/// of the crate that the code refers to; without it, `::tercel`.
#[proc_macro_derive(Key, attributes(object))]
pub fn derive_key(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    key::key(&input).unwrap_or_else(|e| e.into_compile_error()).into()
}

/// Makes a trait an interface: methods that objects of a class have, called on the cached copy or at a server
/// by the same line.
///
/// ```text
/// use tercel::{Called, Obj, Object, Record, interface};
///
/// #[interface]
/// pub trait Account {
///     /// What is in it.
///     #[read]
///     fn balance(&self) -> i64;
///     /// Puts money in, or takes it out; gives what is in it then.
///     fn deposit(&mut self, cents: i64) -> Result<i64, Overdrawn>;
/// }
///
/// #[derive(Object)]
/// pub struct Purse {
///     cents: i64,
/// }
///
/// #[derive(Record, Debug, PartialEq)]
/// pub struct Overdrawn {
///     short: i64,
/// }
///
/// impl Account for Purse {
///     fn balance(this: &Obj<Purse>) -> Called<i64> {
///         Ok(this.cents())
///     }
///
///     fn deposit(this: &Obj<Purse>, cents: i64) -> Called<i64, Overdrawn> {
///         let after = this.cents() + cents;
///         if after < 0 {
///             return Err(Overdrawn { short: -after }.into());
///         }
///         this.edit()?.set_cents(after)?;
///         Ok(after)
///     }
/// }
/// ```
///
/// An implementation is given the object in the receiver's place: it belongs to the transaction that the
/// method is. Beside the trait this makes one for callers, `AccountCalls`, with the methods as they were
/// declared, each giving `Called<.., ..>`:
///
/// ```text
/// let purse = client.handle(purse);   // CallPolicy::Auto: where it is cheapest
/// purse.deposit(500)?;
/// println!("{}", purse.balance()?);
/// ```
///
/// A server runs the methods of the classes that it was given:
/// `Server::builder(dir).methods(Purse::METHODS)`.
///
/// # Attributes
///
/// `#[interface(name = "...")]` is the name by which both ends know it; without it, the trait's.
/// `#[interface(crate = "...")]` is the path of the crate that the code refers to; without it, `::tercel`. A
/// method that only reads is declared `#[read]` and takes `&self`; any other takes `&mut self`.
///
/// A method that is `#[internal]` is for other methods alone, which call it as `Account::settle(&this, ..)`.
/// No handle has it, no server tells of it, and no message of a client or gateway calls it. A program that
/// links the implementation can call it in a transaction of its own, as it can write the fields: rights keep
/// a program from that, and not this attribute.
///
/// A method can have `#[cfg(..)]`: where the condition does not hold, the interface is as if it were not
/// written. Two programs that differ in it are two builds of the interface, as if a method had been added.
///
/// # Limits
///
/// An interface has 1 to 256 methods and no parameters. An argument is `&str` or `&[u8]`, read where it
/// arrived, or a value of a type that a field can have and that can be cloned. A result is such a value, or a
/// `Result` of one and a type with [`Record`](macro@Record). All arguments of a call together have at most 64
/// MiB; what a method gives that writes, at most 1,024 bytes.
#[proc_macro_attribute]
pub fn interface(options: TokenStream, item: TokenStream) -> TokenStream {
    expand(options, item, Of::Objects, interface::expand)
}

/// Makes a trait a service: procedures of a server, without an object, that clients call.
///
/// ```text
/// use tercel::{Called, Context, Record, service};
///
/// #[service]
/// pub trait Clock {
///     /// What time it is in a zone.
///     #[read]
///     fn now(&self, zone: &str) -> Result<Time, NoSuchZone>;
///     /// Works for a while.
///     #[slow]
///     fn report(&self, of: u64) -> Text;
///     /// Notes a line.
///     #[one_way]
///     fn log(&self, line: &str);
/// }
///
/// struct MyClock;
///
/// impl Clock for MyClock {
///     fn now(&self, _: &Context<'_>, zone: &str) -> Called<Time, NoSuchZone> { .. }
///     fn report(&self, cx: &Context<'_>, of: u64) -> Called<Text> { .. }
///     fn log(&self, _: &Context<'_>, line: &str) { .. }
/// }
/// ```
///
/// A server offers what implements it: `Server::builder(dir).service(Clock::serve(MyClock))`. Beside the
/// trait this makes one for callers, `ClockCalls`, with the procedures as they were declared, each giving
/// `Called<.., ..>`:
///
/// ```text
/// let clock = client.service::<dyn Clock>();
/// println!("{:?}", clock.now("Lisbon")?);
/// ```
///
/// # Attributes
///
/// `#[service(name = "...")]` and `#[service(crate = "...")]` are as those of [`macro@interface`]. A
/// procedure without an attribute is executed at most once, in the loop of the server, which it holds up.
/// `#[slow]`: it runs on a thread of the server's pool. `#[read]`: it may be executed more than once, and is
/// sent again where it is not known whether it was. `#[one_way]`: it gives nothing, and its caller does not
/// wait. `#[once]`: it runs on a thread of the server's pool, and its caller gives a key under which it has
/// one effect, so that a call that may have been executed is made again:
///
/// ```text
/// #[once]
/// fn pay(&self, from: u64, to: u64, cents: u64) -> u64;
///
/// fn pay(&self, cx: &Context<'_>, from: u64, to: u64, cents: u64) -> Called<u64> {
///     Ok(cx.run(|tx| tercel::once(tx, cx.key()?, || move_money(tx, from, to, cents)))?)
/// }
///
/// let left = client.service::<dyn Bank>().with_key("transfer 4711").pay(1, 2, 500)?;
/// ```
///
/// # Streams
///
/// A `#[slow]` procedure may have a stream each way, or a callback, which takes both:
///
/// ```text
/// #[slow]
/// fn prices(&self, from: u64, out: &Output<Price>) -> u64;
/// #[slow]
/// fn upload(&self, name: &str, lines: &Input<Line>) -> u64;
/// #[slow]
/// fn install(&self, package: &str, ask: &Callback<Question, Answer>) -> Result<u64, Broken>;
/// ```
///
/// Implementations have these arguments. Callers have a `Streaming` instead, and a function that answers:
///
/// ```text
/// let prices = feed.prices(7)?;
/// for price in prices.items() { .. }
/// let count = prices.finish()?;
/// let installed = feed.install("tercel", |question| Answer::Yes)?;
/// ```
///
/// The words `Output`, `Input` and `Callback` are those of the types' names: an argument is a stream by how
/// it is written.
///
/// An argument may be `LentBytes<'_>`: bytes that the implementation reads where they arrived, even if that
/// is memory which its caller may still write. Callers give `&[u8]`, `&Vec<u8>`, or a `Lending`. The word is
/// that of the type's name here, too.
///
/// ```text
/// fn store(&self, at: u64, block: LentBytes<'_>) -> u64;
///
/// let sum = archive.store(7, &block)?;
/// ```
///
/// # Limits
///
/// Those of [`macro@interface`], but that a result has at most 64 MiB. A service has no procedure called
/// `serve`. The trait for callers has a lifetime, `FeedCalls<'_>`, if a call of it gives a `Streaming`: that
/// belongs to the client, and may outlive the handle.
#[proc_macro_attribute]
pub fn service(options: TokenStream, item: TokenStream) -> TokenStream {
    expand(options, item, Of::Service, service::expand)
}

fn expand(
    options: TokenStream,
    item: TokenStream,
    of: Of,
    code: fn(&Trait) -> proc_macro2::TokenStream,
) -> TokenStream {
    let options = parse_macro_input!(options as Options);
    let item = parse_macro_input!(item as syn::ItemTrait);
    match Trait::parse(options, item, of) {
        Ok(parsed) => code(&parsed).into(),
        Err(e) => e.into_compile_error().into(),
    }
}
