//! A transaction as a part of one over several spaces: it is sent under an operation that was reserved, and
//! what came of that is waited for later, so that several spaces are at work at once.

use std::sync::Arc;

use tercel_wire::id::{OpId, Oref, SpaceId, Stamp};
use tercel_wire::message::{Prepared, Refusal, Settle};
use tercel_wire::page::class_of;
use tercel_wire::token::Token;
use tercel_wire::vector::Vector;

use super::commit::{Parcel, Sending, found, in_words, verdict};
use super::held::SettledFrom;
use super::{Across, Begin, Freshness, Hold, Home, Isolation, Options, Port, SentPart, Step, Tx};
use crate::error::Error;
use crate::limits;
use crate::time::Now;

/// A transaction as a part of one over several spaces, apart from what it has read: nothing of it is needed
/// any more but the way to its home.
pub(crate) struct Part {
    op: OpId,
    /// The bytes to send, until they are sent.
    parcel: Parcel,
    until: Option<Now>,
    made: Vec<Oref>,
    holds: Vec<Arc<Hold>>,
    /// The classes of the objects that it writes.
    classes: Vec<(Oref, &'static str)>,
    has_written: bool,
}

impl Tx<'_> {
    /// Says whether its space has a part in the end of a transaction: it was written, or what was read of it
    /// must hold.
    pub(crate) fn has_part(&self) -> Result<bool, Error> {
        if self.has_written() {
            return Ok(true);
        }
        let mut reads = Vec::new();
        self.ask(|home, _| {
            home.read_set(&self.scope, &mut reads);
            Some(Ok(()))
        })?;
        Ok(self.isolation != Isolation::Snapshot && (!reads.is_empty() || self.scope.doomed()))
    }

    /// Takes the slot of its operation.
    pub(crate) fn reserve_slot(&self) -> Result<OpId, Error> {
        self.ask(|home, _| across(home, |across| across.reserve()))
    }

    /// Gives the slot back.
    pub(crate) fn unreserve(&self, op: OpId) {
        unreserve(self.port, op);
    }

    /// The part that is to be sent under an operation that was reserved.
    pub(crate) fn as_part(&self, op: OpId) -> Result<Part, Error> {
        let mut sending = Sending::default();
        self.ask(|home, now| {
            self.send(home, now, &mut sending, |_, parcel| {
                let bytes = parcel.effects.len();
                Some(if bytes > limits::PART_BYTES { Err(too_large(bytes)) } else { Ok(()) })
            })
        })?;
        let parcel = sending.parcel.ok_or(Error::Conflict(None))?;
        let known = self.classes.borrow();
        let name_of = |class| known.iter().find(|(_, known)| known.class == class).map(|(name, _)| *name);
        let writes = parcel.local_writes.iter();
        let classes = writes.filter_map(|write| Some((write.oref, name_of(class_of(&write.object))?)));
        Ok(Part {
            op,
            until: self.until,
            made: self.made.borrow().keys().copied().collect(),
            holds: self.taken.borrow().holds.clone(),
            classes: classes.collect(),
            has_written: self.has_written(),
            parcel,
        })
    }
}

impl Part {
    /// The operation.
    pub(crate) fn op(&self) -> OpId {
        self.op
    }

    /// Says whether it makes or changes anything.
    pub(crate) fn has_written(&self) -> bool {
        self.has_written
    }

    /// Sends it to be prepared, and does not wait for the outcome.
    pub(crate) fn send_prepare(
        &mut self,
        port: &dyn Port,
        of: OpId,
        coordinator: SpaceId,
        seen: &Vector,
    ) -> Result<(), Error> {
        self.send(port, seen, |across, part| across.prepare(part, of, coordinator))
    }

    /// Sends it as the coordinator's part, and does not wait for the outcome.
    pub(crate) fn send_decide(
        &mut self,
        port: &dyn Port,
        others: &[Prepared],
        seen: &Vector,
    ) -> Result<(), Error> {
        self.send(port, seen, |across, part| across.decide(part, others))
    }

    fn send(
        &mut self,
        port: &dyn Port,
        seen: &Vector,
        send: impl Fn(&mut dyn Across, &mut SentPart<'_>) -> Option<Result<(), Error>>,
    ) -> Result<(), Error> {
        let Part { op, until, parcel: Parcel { base, local_writes, effects }, .. } = self;
        let mut sent = Err(Error::Timeout);
        port.drive(*until, &mut |home, now| {
            if until.is_some_and(|until| now >= until) {
                return Step::Done;
            }
            let mut part = SentPart { op: *op, base: *base, local_writes, effects, seen };
            match across(home, |across| send(across, &mut part)) {
                None => Step::Wait,
                Some(end) => {
                    sent = end;
                    Step::Done
                }
            }
        })?;
        sent
    }

    /// Waits for what became of it: the state that it made, or was prepared at. Once it is not waited for any
    /// longer, it is abandoned.
    pub(crate) fn sent(&self, port: &dyn Port) -> Result<Token, Error> {
        let mut answer = None;
        let driven = port.drive(self.until, &mut |home, _| {
            let Some(outcome) = home.outcome(self.op) else { return Step::Wait };
            if let Ok(_) | Err(Refusal::Unknown) = outcome {
                self.made.iter().for_each(|oref| home.filled(*oref));
            }
            answer = Some((outcome, home.token(Stamp::ZERO)));
            Step::Done
        });
        let (Ok(()), Some((outcome, of))) = (driven, answer) else { return Err(Error::unknown(self.op)) };
        let stamp = verdict(self.op, outcome).map_err(|e| self.with_class(in_words(port, e)))?;
        Ok(Token { stamp, ..of })
    }

    /// Waits for the outcome no longer: it is not known.
    pub(crate) fn abandon(&self, port: &dyn Port) {
        self.holds.iter().for_each(|hold| hold.keep());
        let abandoned = port.drive(None, &mut |home, _| {
            self.made.iter().for_each(|oref| home.filled(*oref));
            home.abandon(self.op);
            Step::Done
        });
        // A home that is closed keeps nothing that could be abandoned.
        abandoned.ok();
    }

    /// Gives the slot back.
    pub(crate) fn unreserve(&self, port: &dyn Port) {
        unreserve(port, self.op);
    }

    /// Finds out what became of it after an answer did not come.
    pub(crate) fn found(&self, port: &dyn Port) -> Result<Token, Error> {
        found(port, self.until, self.op)
    }

    /// Adds the class to a conflict over an object that this transaction wrote.
    fn with_class(&self, mut error: Error) -> Error {
        if let Error::Conflict(Some(over)) = &mut error {
            let of = self.classes.iter().find(|(oref, _)| *oref == over.object);
            over.class = of.map(|(_, name)| name.to_string());
        }
        error
    }
}

fn unreserve(port: &dyn Port, op: OpId) {
    let given = port.drive(None, &mut |home, _| {
        home.across().into_iter().for_each(|across| across.unreserve(op));
        Step::Done
    });
    // A home that is closed keeps nothing that could be given back.
    given.ok();
}

/// Notifies a space of the end of a transaction, and waits for nothing: where that does not arrive, the
/// servers find it out.
pub(crate) fn settle(port: &dyn Port, settle: &Settle) {
    let told = port.drive(None, &mut |home, _| {
        if let Some(across) = home.across() {
            drop(across.settle(settle));
            if settle.seen.is_some() {
                // The next transaction that begins here will want to know.
                drop(across.settled_or_named(settle.prepared));
                drop(across.one_settled_from(settle.prepared));
            }
        }
        Step::Done
    });
    told.ok();
}

/// Waits until the client of a space shows a state in which no prepare up to a stamp waits for its
/// settlement, but for parts that are named, if those may be. Gives a stamp from which on that is so, and
/// those parts. Fails with `OtherHistory` if `seen`, the state that has the prepare, is of a history that
/// the space has lost.
pub(crate) fn settled_from(
    port: &dyn Port,
    until: Option<Now>,
    (upto, is_named): (Stamp, bool),
    seen: Token,
) -> Result<SettledFrom, Error> {
    let stale = Options { freshness: Freshness::Stale, at_least: Some(seen), ..Options::default() };
    let (mut end, mut begin) = (None, Begin::new(&stale));
    let driven = port.drive(until, &mut |home, now| {
        end = across(home, |across| match is_named {
            true => across.settled_or_named(upto),
            false => across.settled_from(upto).map(|settled| settled.map(|from| (from, None))),
        });
        if end.is_none()
            && let Some(Err(e @ Error::OtherHistory(_))) = home.may_begin(now, &mut begin)
        {
            // Another history comes to that stamp late or never.
            end = Some(Err(e));
        }
        if end.is_some() { Step::Done } else { Step::Wait }
    });
    match driven {
        Err(Error::Timeout | Error::Unknown { .. }) => Err(Error::Unavailable(
            "a transaction over several spaces, of which the session has seen a part, was not settled in time in another"
                .into(),
        )),
        driven => driven.and(end.unwrap_or(Ok((Stamp::ZERO, None)))),
    }
}

/// Waits until a moment for the settlement of the part that was prepared at a stamp. Gives a stamp from which
/// on it is settled, if it is.
pub(crate) fn one_settled_from(port: &dyn Port, until: Now, prepared: Stamp) -> Option<Stamp> {
    let mut from = None;
    let driven = port.drive(Some(until), &mut |home, _| {
        from = across(home, |across| across.one_settled_from(prepared));
        if from.is_some() { Step::Done } else { Step::Wait }
    });
    // Without an answer the part may wait for long.
    driven.ok().and(from)?.ok()
}

fn across<R>(
    home: &mut dyn Home,
    step: impl FnOnce(&mut dyn Across) -> Option<Result<R, Error>>,
) -> Option<Result<R, Error>> {
    match home.across() {
        Some(across) => step(across),
        None => {
            let text = "this home takes no part in transactions over several spaces: run it at clients";
            Some(Err(Error::Invalid(text.into())))
        }
    }
}

fn too_large(bytes: usize) -> Error {
    Error::Invalid(format!(
        "a transaction over several spaces reads and writes at most {} KiB in each, and this one has {} in one of them: \
         write what is large in one space before, and refer to it",
        limits::PART_BYTES >> 10,
        bytes.div_ceil(1024)
    ))
}
