//! A call of a service that arrives at a server: looked up, run or handed on, answered, kept.
//!
//! This is all that happens to a call which is not slow, whatever it arrived by: a host with a faster way than messages keeps a
//! [`Served`] for each client of its own and calls [`serve`].

use tercel_wire::id::CallId;
use tercel_wire::message::{Request, ResponseEnd, Unbegun};

use super::served::{Arrival, Served};
use super::services::{NO_METHOD, put};
use super::{Context, Services};

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The body of its response was appended.
    Answered,
    /// There is nothing to be said: it runs still, is a copy of an earlier one, or is never answered.
    Silent,
    /// It is new, and is to run on a thread of its own: then [`Served::runs`] and, in the end, [`Served::end`]. One that has no slot is
    /// just run.
    Slow,
    /// Its client has broken the protocol.
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
    let method = (request.interface, request.method);
    let mode = services.mode(request.interface, request.method);
    let Some(slot) = request.slot else {
        let is_new = served.arrive_told(request.seq);
        let Some(mode) = mode.filter(|mode| is_new && mode.is_one_way()) else { return Taken::Silent };
        if mode.is_slow() {
            return Taken::Slow;
        }
        let from = out.len();
        services.run(CallId { slot: 0, seq: request.seq }, method, request.payload, cx, out);
        out.truncate(from);
        return Taken::Silent;
    };
    let id = CallId { slot, seq: request.seq };
    match served.arrive(id) {
        Arrival::New => {}
        Arrival::Running | Arrival::Old => return Taken::Silent,
        Arrival::Kept(body) => {
            out.extend_from_slice(body);
            return Taken::Answered;
        }
        Arrival::Forgotten => {
            put(id, ResponseEnd::Forgotten, out);
            return Taken::Answered;
        }
        Arrival::Broken => return Taken::Broken,
    }
    let from = out.len();
    match mode.filter(|mode| !mode.is_one_way()) {
        Some(mode) if mode.is_slow() => return Taken::Slow,
        Some(_) => _ = services.run(id, method, request.payload, cx, out),
        None => put(id, ResponseEnd::Refused(Unbegun::Schema, NO_METHOD), out),
    }
    served.end(id, &out[from..]);
    Taken::Answered
}
