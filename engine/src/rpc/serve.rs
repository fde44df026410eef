//! A call of a service that arrives at a server: looked up, run or handed on, answered, kept.
//!
//! This is all that happens to a call which is not slow, whatever it arrived by: a host with a faster way
//! than messages keeps a [`Served`] for each client of its own and calls [`serve`].

use tercel_wire::id::{CallId, Stamp};
use tercel_wire::message::{Refusal, Request, ResponseEnd};

use super::served::{Arrival, Served};
use super::services::{NO_METHOD, put};
use super::{Context, Procedure, ReplyBody, Services, Taking};
use crate::mutant::{Rule, dropped};

/// The fate of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The body of its response was appended.
    Answered,
    /// There is nothing to be said: it runs still, is a copy of an earlier one, or is never answered.
    Silent,
    /// It is new, and is to run on a thread of its own: then [`Served::runs`] and, in the end,
    /// [`Served::end`]. One that has no slot is just run.
    Slow,
    /// The client has broken the protocol.
    Broken,
}

/// Takes in a call. What is new and not slow runs here and now.
pub fn serve(
    served: &mut Served,
    services: &Services,
    request: &Request<'_>,
    cx: &Context<'_>,
    out: &mut Vec<u8>,
) -> Taken {
    let procedure = services.procedure(request.interface, request.method);
    match request.slot {
        Some(slot) => {
            let taking = Taking::Payload(request.payload);
            let id = CallId { slot, seq: request.seq };
            serve_named(served, procedure, id, taking, cx, &mut ReplyBody::new(out))
        }
        None => serve_told(served, procedure, request, cx, out),
    }
}

/// Takes in a call that is never answered.
fn serve_told(
    served: &mut Served,
    procedure: Option<Procedure<'_>>,
    request: &Request<'_>,
    cx: &Context<'_>,
    out: &mut Vec<u8>,
) -> Taken {
    let is_new = served.arrive_told(request.seq);
    let Some(procedure) = procedure.filter(|p| is_new && p.mode().is_one_way()) else {
        return Taken::Silent;
    };
    if procedure.mode().is_slow() {
        return Taken::Slow;
    }
    let from = out.len();
    let taking = Taking::Payload(request.payload);
    procedure.run(CallId { slot: 0, seq: request.seq }, taking, cx, &mut ReplyBody::new(out));
    out.truncate(from);
    Taken::Silent
}

/// Takes in a call that has a name, of a procedure that was looked up.
#[inline]
pub fn serve_named(
    served: &mut Served,
    procedure: Option<Procedure<'_>>,
    id: CallId,
    taking: Taking<'_>,
    cx: &Context<'_>,
    out: &mut ReplyBody<'_>,
) -> Taken {
    match served.arrive(id) {
        Arrival::New => {}
        Arrival::Running if dropped(Rule::RunningAnswered) => {
            put(id, ResponseEnd::Returned(Stamp::ZERO, &[]), out.bytes());
            return Taken::Answered;
        }
        Arrival::Running | Arrival::Old => return Taken::Silent,
        Arrival::Kept(body) => {
            out.bytes().extend_from_slice(body);
            return Taken::Answered;
        }
        Arrival::Forgotten => {
            put(id, ResponseEnd::FORGOTTEN, out.bytes());
            return Taken::Answered;
        }
        Arrival::Broken => return Taken::Broken,
    }
    let from = out.bytes().len();
    match procedure.filter(|p| !p.mode().is_one_way()) {
        Some(procedure) if procedure.mode().is_slow() => return Taken::Slow,
        Some(procedure) => {
            procedure.run(id, taking, cx, out);
            // What went into shared room is too large to be kept.
            if out.behind() > 0 || !procedure.keeps_reply() {
                served.end_unkept(id);
                return Taken::Answered;
            }
        }
        None => put(id, ResponseEnd::Refused(Refusal::Schema, NO_METHOD), out.bytes()),
    }
    served.end(id, &out.bytes()[from..]);
    Taken::Answered
}
