//! The streams of a call as its procedure has them: items that it gives or takes, and questions that its
//! caller answers.
//!
//! Each operation may wait, on the thread that runs the procedure; how, is the host's. It fails once the
//! caller has given up, is gone, or its time is over: then the procedure should come to its end.

use std::cell::Cell;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use tercel_wire::layout::Layout;
use tercel_wire::payload::{Payload, PayloadSchema};
use tercel_wire::record::Encoder;
use tercel_wire::schema::{self, Scalar, Schema, Type};

use super::given::damaged;
use super::streams::Sending;
use super::{Context, Given};
use crate::error::{Bound, Error};
use crate::object::Field;

/// The host's part in the streams of a call that it runs.
pub trait ItemPort: Send + Sync {
    /// Sends an item, once its window has room.
    ///
    /// # Errors
    /// `Unavailable` if the caller has given up or is gone, `Timeout` if its time is over.
    fn send(&self, item: Vec<u8>) -> Result<(), Error>;

    /// Waits for an item, and consumes it; none at the end.
    ///
    /// # Errors
    /// As [`ItemPort::send`].
    fn next(&self) -> Result<Option<Vec<u8>>, Error>;

    /// The procedure uses the space from now on: the caller reads nothing older after an item that is sent
    /// later.
    fn uses_space(&self) {}
}

/// Marks a type for use by one thread: items are sent in the order of their ordinals.
type OneThread = PhantomData<Rc<()>>;

/// The stream that a procedure gives, beside its result. In the declaration of a service:
/// `out: &Output<Price>`.
pub struct Output<T> {
    port: Arc<dyn ItemPort>,
    of: PhantomData<fn(T)>,
    here: OneThread,
}

impl<T: Field> Output<T> {
    /// The stream of a call. For derived code.
    #[doc(hidden)]
    pub fn new(cx: &Context<'_>) -> Result<Output<T>, Error> {
        Ok(Output { port: cx.items()?, of: PhantomData, here: PhantomData })
    }

    /// Sends an item. Waits while the caller has as much that it has not consumed as the window takes.
    ///
    /// # Errors
    /// `Unavailable` if the caller has given up or is gone, and `Timeout` if its time is over: the procedure
    /// should come to its end. `Full` if the item is larger than a message.
    pub fn send(&self, item: &T) -> Result<(), Error> {
        self.port.send(put_item(item)?)
    }
}

/// The stream that a procedure takes. In the declaration of a service: `lines: &Input<Line>`.
pub struct Input<T> {
    port: Arc<dyn ItemPort>,
    layout: Layout,
    of: PhantomData<fn() -> T>,
    here: OneThread,
}

impl<T: Field> Input<T> {
    /// The stream of a call. For derived code.
    #[doc(hidden)]
    pub fn new(cx: &Context<'_>) -> Result<Input<T>, Error> {
        let layout = Layout::of(&Plain::<T>::SCHEMA);
        Ok(Input { port: cx.items()?, layout, of: PhantomData, here: PhantomData })
    }

    /// Waits for the next item; none at the end. What is not read when the procedure returns is dropped.
    ///
    /// # Errors
    /// As [`Output::send`]; `Corrupt` or `Schema` if the item cannot be read.
    pub fn next(&self) -> Result<Option<T>, Error> {
        let Some(bytes) = self.port.next()? else { return Ok(None) };
        read_item(&bytes, &self.layout).map(Some)
    }
}

/// Questions that the caller of a procedure answers, while it waits in its call. In the declaration of a
/// service: `ask: &Callback<Question, Answer>`.
pub struct Callback<Q, A> {
    port: Arc<dyn ItemPort>,
    layout: Layout,
    /// Questions so far.
    asked: Cell<u64>,
    of: PhantomData<fn(Q) -> A>,
    here: OneThread,
}

impl<Q: Field, A: Field> Callback<Q, A> {
    /// The callback of a call. For derived code.
    #[doc(hidden)]
    pub fn new(cx: &Context<'_>) -> Result<Callback<Q, A>, Error> {
        let layout = Layout::of(&Numbered::<A>::SCHEMA);
        let (port, asked) = (cx.items()?, Cell::new(0));
        Ok(Callback { port, layout, asked, of: PhantomData, here: PhantomData })
    }

    /// Asks the caller, and waits for its answer.
    ///
    /// # Errors
    /// As [`Output::send`] and [`Input::next`].
    pub fn ask(&self, question: &Q) -> Result<A, Error> {
        let number = self.asked.get() + 1;
        self.asked.set(number);
        self.port.send(put_numbered(number, question)?)?;
        let answer = self.port.next()?.ok_or_else(unanswered)?;
        match read_numbered(&answer, &self.layout)? {
            (answered, answer) if answered == number => Ok(answer),
            _ => Err(unanswered()),
        }
    }
}

fn unanswered() -> Error {
    Error::Corrupt("the caller has not answered the question that it was asked".into())
}

/// Items of a stream of `T`.
pub struct Plain<T>(PhantomData<T>);

impl<T: Field> Plain<T> {
    /// The schema of the items.
    pub const SCHEMA: Schema =
        Schema { name: "item", fields: &[schema::Field { name: "item", ty: T::FIELD_TYPE }] };
}

/// Questions, or answers, each with the number of the question.
pub struct Numbered<T>(PhantomData<T>);

impl<T: Field> Numbered<T> {
    /// The schema of the items.
    pub const SCHEMA: Schema = Schema {
        name: "numbered",
        fields: &[
            schema::Field { name: "number", ty: Type::Scalar(Scalar::U64) },
            schema::Field { name: "item", ty: T::FIELD_TYPE },
        ],
    };
}

/// An item as it is sent.
pub(super) fn put_item<T: Field>(item: &T) -> Result<Vec<u8>, Error> {
    put(const { &PayloadSchema::of(Plain::<T>::SCHEMA) }, |e| {
        item.put_field(e, const { Plain::<T>::SCHEMA.offset(0) })
    })
}

/// An item of a layout.
pub(super) fn read_item<T: Field>(bytes: &[u8], layout: &Layout) -> Result<T, Error> {
    read(bytes, layout)?.value(const { Plain::<T>::SCHEMA.offset(0) })
}

/// A question or an answer as it is sent.
pub(super) fn put_numbered<T: Field>(number: u64, item: &T) -> Result<Vec<u8>, Error> {
    put(const { &PayloadSchema::of(Numbered::<T>::SCHEMA) }, |e| {
        number.put_field(e, const { Numbered::<T>::SCHEMA.offset(0) });
        item.put_field(e, const { Numbered::<T>::SCHEMA.offset(1) });
    })
}

/// A question or an answer, with its number.
pub(super) fn read_numbered<T: Field>(bytes: &[u8], layout: &Layout) -> Result<(u64, T), Error> {
    let given = read(bytes, layout)?;
    let number = given.value(const { Numbered::<T>::SCHEMA.offset(0) })?;
    Ok((number, given.value(const { Numbered::<T>::SCHEMA.offset(1) })?))
}

fn put(schema: &PayloadSchema, fields: impl FnMut(&mut Encoder<'_>)) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    schema.encode(fields, &mut bytes)?;
    match Sending::is_sendable(bytes.len()) {
        true => Ok(bytes),
        false => Err(Error::Full(Bound::Call { bytes: bytes.len() })),
    }
}

fn read<'a>(bytes: &'a [u8], layout: &Layout) -> Result<Given<'a>, Error> {
    Payload::decode(bytes, layout).map(Given::new).map_err(damaged)
}
