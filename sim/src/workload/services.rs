//! Calls of a service, whose begins are counted: at most one for each call, and what its caller was told is
//! true.
//!
//! The tally outlives the processes of the server, as the world does on which a service acts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tercel_derive::{Record, service};
use tercel_engine::error::Error;
use tercel_engine::rpc::{Called, Context, Failure, Input, Output, ServiceHandle, Services};
use tercel_engine::txn::Port;
use tercel_lock::unpoison;
use tercel_wire::record::Bytes;

use super::actor::{HEALED_WAIT_US, Worker};

/// The procedures of the service.
#[service(crate = "tercel_engine")]
pub trait Counter {
    /// Counts the call, and gives its number.
    fn count(&self, call: u64, padding: &[u8]) -> Counted;
    /// The same, on a thread of its own; it fails if it is to.
    #[slow]
    fn count_slowly(&self, call: u64, fails: bool) -> Result<Counted, Failed>;
    /// The same, without an answer.
    #[one_way]
    fn count_only(&self, call: u64);
    /// The same; it may be run more than once.
    #[read]
    fn count_freely(&self, call: u64) -> Counted;
    /// Counts the call, gives its items back, and says how many there were.
    #[slow]
    fn count_items(&self, call: u64, items: &Input<Counted>, back: &Output<Counted>) -> u64;
}

/// The call was counted.
#[derive(Record, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
pub struct Counted {
    /// The number of the call.
    call: u64,
    /// As much as it pleases.
    padding: Bytes,
}

/// It was counted, and fails.
#[derive(Record, Debug, Clone, Copy, PartialEq)]
#[object(crate = "tercel_engine")]
pub struct Failed {
    /// The number of the call.
    call: u64,
}

/// The begins of each call, and the outcomes that callers received.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally(Arc<Mutex<Tallied>>);

#[derive(Debug, Default)]
struct Tallied {
    begun: BTreeMap<u64, u32>,
    told: Vec<(u64, Told)>,
    last: u64,
}

/// The outcome that a caller received for its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// It was executed.
    Executed,
    /// It was not begun, and never will be.
    NotBegun,
    /// Nothing for certain.
    Unknown,
}

impl Tally {
    fn lock(&self) -> MutexGuard<'_, Tallied> {
        unpoison(self.0.lock())
    }

    /// The services of the server.
    pub(crate) fn services(&self) -> Services {
        Services::default().with(Counter::serve(self.clone()))
    }

    /// Describes the mistakes, a sentence each: outcomes that the begins contradict.
    pub(crate) fn blames(&self) -> Vec<String> {
        let tallied = self.lock();
        let begun = |call: u64| tallied.begun.get(&call).copied().unwrap_or(0);
        let twice = tallied.begun.iter().filter(|(call, n)| !is_free(**call) && **n > 1);
        let twice = twice.map(|(call, n)| format!("call {call} of a service was begun {n} times"));
        let untrue = tallied.told.iter().filter_map(|(call, told)| match (told, begun(*call)) {
            (Told::Executed, 0) => Some(format!("call {call} of a service has returned, and was not begun")),
            (Told::NotBegun, n) if n > 0 => Some(format!(
                "call {call} of a service was begun, and its caller was told that it never would be"
            )),
            _ => None,
        });
        twice.chain(untrue).collect()
    }

    /// Calls that were executed, to the knowledge of their callers.
    pub(crate) fn executed(&self) -> u64 {
        self.lock().told.iter().filter(|(_, told)| *told == Told::Executed).count() as u64
    }

    /// The number of begins.
    pub(crate) fn begins(&self) -> u64 {
        self.lock().begun.values().map(|n| u64::from(*n)).sum()
    }

    fn begin(&self, call: u64) {
        *self.lock().begun.entry(call).or_default() += 1;
    }
}

/// Calls that may be begun more than once have numbers of their own.
fn is_free(call: u64) -> bool {
    call.is_multiple_of(4)
}

impl Counter for Tally {
    fn count(&self, _: &Context<'_>, call: u64, padding: &[u8]) -> Called<Counted> {
        self.begin(call);
        Ok(Counted { call, padding: Bytes(padding.to_vec()) })
    }

    fn count_slowly(&self, _: &Context<'_>, call: u64, fails: bool) -> Called<Counted, Failed> {
        self.begin(call);
        if fails { Err(Failed { call }.into()) } else { Ok(Counted { call, padding: Bytes::default() }) }
    }

    fn count_only(&self, _: &Context<'_>, call: u64) {
        self.begin(call);
    }

    fn count_freely(&self, _: &Context<'_>, call: u64) -> Called<Counted> {
        self.begin(call);
        Ok(Counted { call, padding: Bytes::default() })
    }

    fn count_items(
        &self,
        _: &Context<'_>,
        call: u64,
        items: &Input<Counted>,
        back: &Output<Counted>,
    ) -> Called<u64> {
        self.begin(call);
        let mut count = 0;
        while let Some(item) = items.next()? {
            back.send(&item)?;
            count += 1;
        }
        Ok(count)
    }
}

/// The use that a caller makes of a call's streams.
#[derive(Debug, Clone, Copy)]
struct Use {
    items: u64,
    bytes: u64,
    /// It drops the call behind so many items that it has read.
    drops_behind: u64,
}

impl Use {
    /// The call; gives its number if all is as it should be, and 0 if not.
    fn make(self, counter: &ServiceHandle<'_, dyn Counter>, call: u64) -> Result<u64, Error> {
        let item =
            |n: u64| Counted { call: n, padding: Bytes(vec![n as u8; (self.bytes * n % 3_000) as usize]) };
        let items = counter.count_items(call)?;
        for n in 0..self.items {
            items.send(&item(n))?;
        }
        items.close()?;
        for n in 0..self.items {
            if n == self.drops_behind {
                return Err(Error::unknown_call("it was dropped"));
            }
            match items.next()? {
                Some(back) if back != item(n) => return Ok(0),
                Some(_) => {}
                None => break,
            }
        }
        Ok(if items.finish()? == self.items { call } else { 0 })
    }
}

impl Worker<'_> {
    /// One call of a service.
    pub(super) fn request_by_service(&mut self) {
        let kind = self.below(5);
        let tally = self.port.scheduler.world().record.tally.clone();
        let call = {
            let mut tallied = tally.lock();
            tallied.last += 4;
            // Of a call with streams as of any that is made once.
            tallied.last + if kind == 4 { 1 } else { kind }
        };
        let (in_time, time_us) = (self.below(3) != 0, 100 + self.below(5_000));
        let (padding, fails) = (vec![7; self.below(3_000) as usize], self.below(4) == 0);
        let with = Use { items: self.below(20), bytes: self.below(400), drops_behind: self.below(60) };
        let ended = {
            let counter = ServiceHandle::<dyn Counter>::new(Ok(&self.port as &(dyn Port + Sync)), None);
            let counter = if in_time { counter } else { counter.within(Duration::from_micros(time_us)) };
            match kind {
                0 => counter.count_freely(call).map(|counted| counted.call),
                1 => counter.count(call, &padding).map(|counted| match counted.padding.0 == padding {
                    true => counted.call,
                    false => 0,
                }),
                2 => match counter.count_slowly(call, fails) {
                    Ok(counted) => Ok(counted.call),
                    Err(Failure::Method(failed)) => Ok(if fails { failed.call } else { 0 }),
                    Err(Failure::Space(e)) => Err(e.into()),
                },
                3 => counter.count_only(call).map(|()| call),
                _ => with.make(&counter, call).map_err(Failure::from),
            }
        };
        let told = match ended.map_err(Error::from) {
            Ok(other) if other != call => {
                self.port.scheduler.world().blame(format!("call {call} of a service gave {other}"));
                return;
            }
            // It is on its way.
            Ok(_) if kind == 3 => Told::Unknown,
            Ok(_) => Told::Executed,
            Err(Error::Unknown { op: None, .. }) => Told::Unknown,
            Err(_) if self.port.is_gone() => Told::Unknown,
            Err(e @ Error::Failed(_)) => {
                self.port.scheduler.world().blame(format!("call {call} of a service has broken off: {e}"));
                return;
            }
            Err(e) => {
                self.note_error(&e, 0, false);
                // What may be run twice may have been run before.
                if kind == 0 { Told::Unknown } else { Told::NotBegun }
            }
        };
        tally.lock().told.push((call, told));
    }

    /// Now that everything works a call finds a slot, and is answered.
    pub(super) fn finds_a_slot(&mut self) {
        if self.port.is_gone() {
            return;
        }
        self.port.patience_us = HEALED_WAIT_US;
        let counter = ServiceHandle::<dyn Counter>::new(Ok(&self.port as &(dyn Port + Sync)), None);
        let ended = counter.count_freely(0).map_err(Error::from);
        if let Err(Error::Timeout) = ended
            && !self.port.is_gone()
        {
            self.port.scheduler.world().blame("a call of a service waits for a slot for ever".into());
        }
    }
}
