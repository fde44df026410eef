//! A transaction as a part of one over several spaces: it is sent under an operation that was reserved, and
//! what came of that is waited for later, so that several spaces are at work at once.

use tercel_wire::id::{OpId, SpaceId, Stamp};
use tercel_wire::message::{Prepared, Settle};
use tercel_wire::token::Token;
use tercel_wire::vector::Vector;

use super::commit::{Parcel, Sending, found};
use super::{Across, Begin, Freshness, Home, Isolation, Options, Port, SentPart, Step, Tx};
use crate::error::Error;
use crate::limits;
use crate::time::Now;

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
        let given = self.port.drive(None, &mut |home, _| {
            home.across().into_iter().for_each(|across| across.unreserve(op));
            Step::Done
        });
        // A home that is closed keeps nothing that could be given back.
        given.ok();
    }

    /// Sends it to be prepared, and does not wait for the outcome.
    pub(crate) fn send_prepare(
        &self,
        op: OpId,
        of: OpId,
        coordinator: SpaceId,
        seen: &Vector,
    ) -> Result<(), Error> {
        self.send_part(op, seen, |across, part| across.prepare(part, of, coordinator))
    }

    /// Sends it as the coordinator's part, and does not wait for the outcome.
    pub(crate) fn send_decide(&self, op: OpId, others: &[Prepared], seen: &Vector) -> Result<(), Error> {
        self.send_part(op, seen, |across, part| across.decide(part, others))
    }

    fn send_part(
        &self,
        op: OpId,
        seen: &Vector,
        send: impl Fn(&mut dyn Across, &mut SentPart<'_>) -> Option<Result<(), Error>>,
    ) -> Result<(), Error> {
        let mut sending = Sending::default();
        self.ask(|home, now| {
            self.send(home, now, &mut sending, |home, Parcel { base, local_writes, effects }| {
                if effects.len() > limits::PART_BYTES {
                    return Some(Err(too_large(effects.len())));
                }
                let mut part = SentPart { op, base: *base, local_writes, effects, seen };
                across(home, |across| send(across, &mut part))
            })
        })
    }

    /// Waits for what became of it: the state that it made, or was prepared at.
    pub(crate) fn sent(&self, op: OpId) -> Result<Token, Error> {
        let mut answer = None;
        let driven = self.port.drive(self.until, &mut |home, _| {
            answer = self.answer(home, op);
            if answer.is_some() { Step::Done } else { Step::Wait }
        });
        self.end(op, driven, answer)
    }

    /// Finds out what became of it after an answer did not come.
    pub(crate) fn found(&self, op: OpId) -> Result<Token, Error> {
        found(self.port, self.until, op)
    }

    /// Notifies its space of the end of the transaction, and waits for nothing: where that does not arrive,
    /// the servers find it out.
    pub(crate) fn settle(&self, settle: &Settle) {
        let told = self.port.drive(None, &mut |home, _| {
            if let Some(across) = home.across() {
                drop(across.settle(settle));
                if settle.seen.is_some() {
                    // The next transaction that begins here will want to know.
                    drop(across.settled_from(settle.prepared));
                }
            }
            Step::Done
        });
        told.ok();
    }
}

/// Waits until the client of a space shows a state in which no prepare up to a stamp waits for its
/// settlement. Gives a stamp from which on that is so. Fails with `OtherHistory` if `seen`, the state that
/// has the prepare, is of a history that the space has lost.
pub(crate) fn settled_from(
    port: &dyn Port,
    until: Option<Now>,
    upto: Stamp,
    seen: Token,
) -> Result<Stamp, Error> {
    let stale = Options { freshness: Freshness::Stale, at_least: Some(seen), ..Options::default() };
    let (mut end, mut begin) = (None, Begin::new(&stale));
    let driven = port.drive(until, &mut |home, now| {
        end = across(home, |across| across.settled_from(upto));
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
        driven => driven.and(end.unwrap_or(Ok(Stamp::ZERO))),
    }
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
