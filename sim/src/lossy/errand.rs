//! The service of this world: it notes each begin of a call, and gives it a ticket.
//!
//! The notes outlive servers, as the world does on which a service acts. The invariant: a ticket is given
//! once, by one begin.

use std::sync::{Arc, Mutex, MutexGuard};

use tercel_derive::{Record, service};
use tercel_engine::object::Field;
use tercel_engine::rpc::{Called, Context, Failure, Given, Input, Output, Plain, ServiceInterface, Services};
use tercel_lock::unpoison;
use tercel_wire::interface::{Interface, InterfaceSchema};
use tercel_wire::layout::Layout;
use tercel_wire::payload::{Payload, PayloadSchema};
use tercel_wire::record::Bytes;

/// The procedures. Each is told the number of its call.
#[service(crate = "tercel_engine")]
pub trait Errands {
    /// One that runs where it arrives.
    fn quick(&self, call: u64, fails: bool, bytes: u64) -> Result<Reply, Reply>;
    /// One that runs on a thread of its own.
    #[slow]
    fn slow(&self, call: u64, fails: bool, bytes: u64) -> Result<Reply, Reply>;
    /// One that is never answered.
    #[one_way]
    fn tell(&self, call: u64);
    /// One that gives its items back.
    #[slow]
    fn pass(&self, call: u64, items: &Input<Line>, back: &Output<Line>) -> Result<Reply, Reply>;
}

/// The result of a call, whether it fails or not.
#[derive(Record, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
pub struct Reply {
    /// The begin that gave it.
    ticket: u64,
    /// As much as it was asked for.
    padding: Bytes,
}

/// An item.
#[derive(Record, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
pub struct Line {
    /// Counts the items of the stream from 0.
    number: u64,
    /// As much as it pleases.
    padding: Bytes,
}

/// A procedure of [`Errands`], by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Procedure {
    Quick = 0,
    Slow = 1,
    Tell = 2,
    Pass = 3,
}

/// A call, as its caller wants it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Errand {
    pub procedure: Procedure,
    /// It is to fail by its own decision.
    pub fails: bool,
    /// Bytes of what it gives, or of each item.
    pub bytes: u64,
    /// Items of its stream.
    pub items: u64,
}

/// The schema of the service, as both ends know it.
pub(super) fn schema() -> &'static InterfaceSchema {
    <dyn Errands as ServiceInterface>::SCHEMA
}

impl Errand {
    /// The arguments that the procedure takes.
    pub(super) fn payload(&self, call: u64) -> Vec<u8> {
        let schema = &schema().methods[self.procedure as usize].takes;
        let takes = schema.record();
        let put = |e: &mut tercel_wire::record::Encoder<'_>| {
            call.put_field(e, takes.offset(0));
            if let Procedure::Quick | Procedure::Slow = self.procedure {
                self.fails.put_field(e, takes.offset(1));
                self.bytes.put_field(e, takes.offset(2));
            }
        };
        let mut out = Vec::new();
        schema.encode(put, &mut out).expect("numbers can be in a record");
        out
    }

    /// The ticket of what a call gave, or failed with.
    pub(super) fn ticket(&self, bytes: &[u8]) -> Result<u64, String> {
        let interface = Interface::of_service(schema());
        let layout = &interface.methods[self.procedure as usize].gives;
        let given = Payload::decode(bytes, layout).map(Given::new).map_err(|e| e.to_string())?;
        let reply: Reply = given
            .value(schema().methods[self.procedure as usize].gives.record().offset(0))
            .map_err(|e| e.to_string())?;
        Ok(reply.ticket)
    }
}

/// An item of a stream as it is sent.
pub(super) fn put_line(number: u64, bytes: u64) -> Vec<u8> {
    let line = Line { number, padding: Bytes(vec![number as u8; bytes as usize]) };
    let schema = const { PayloadSchema::of(Plain::<Line>::SCHEMA) };
    let mut out = Vec::new();
    schema
        .encode(|e| line.put_field(e, schema.record().offset(0)), &mut out)
        .expect("bytes can be in a record");
    out
}

/// The number of an item.
pub(super) fn number_of(item: &[u8]) -> Result<u64, String> {
    let schema = const { &Plain::<Line>::SCHEMA };
    let given = Payload::decode(item, &Layout::of(schema)).map(Given::new).map_err(|e| e.to_string())?;
    let line: Line = given.value(schema.offset(0)).map_err(|e| e.to_string())?;
    Ok(line.number)
}

/// Which calls were begun.
#[derive(Debug, Clone, Default)]
pub(super) struct Notes(Arc<Mutex<Vec<Begin>>>);

/// A begin: the ticket is its place in the notes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begin {
    pub call: u64,
    /// The procedure has come to its end.
    pub is_ended: bool,
}

impl Notes {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Begin>> {
        unpoison(self.0.lock())
    }

    /// The services of a server.
    pub(super) fn services(&self) -> Services {
        Services::default().with(Errands::serve(self.clone()))
    }

    fn begin(&self, call: u64, is_ended: bool) -> u64 {
        let mut begins = self.lock();
        begins.push(Begin { call, is_ended });
        begins.len() as u64 - 1
    }
}

fn reply(ticket: u64, fails: bool, bytes: u64) -> Called<Reply, Reply> {
    let reply = Reply { ticket, padding: Bytes(vec![7; bytes as usize]) };
    if fails { Err(Failure::Method(reply)) } else { Ok(reply) }
}

impl Errands for Notes {
    fn quick(&self, _: &Context<'_>, call: u64, fails: bool, bytes: u64) -> Called<Reply, Reply> {
        reply(self.begin(call, true), fails, bytes)
    }

    fn slow(&self, _: &Context<'_>, call: u64, fails: bool, bytes: u64) -> Called<Reply, Reply> {
        reply(self.begin(call, false), fails, bytes)
    }

    fn tell(&self, _: &Context<'_>, call: u64) {
        self.begin(call, true);
    }

    fn pass(
        &self,
        _: &Context<'_>,
        call: u64,
        items: &Input<Line>,
        back: &Output<Line>,
    ) -> Called<Reply, Reply> {
        let ticket = self.begin(call, false);
        while let Some(item) = items.next()? {
            back.send(&item)?;
        }
        reply(ticket, false, 0)
    }
}
