//! The body of a response while it is made, and where what is large of it goes.

use std::fmt;

use tercel_wire::payload::{PartSink, PayloadSchema};
use tercel_wire::record::Encoder;

use crate::error::Error;
use crate::limits;

/// Memory that both ends of a connection share: what is large of a response is written there, where its
/// reader finds it. For hosts.
pub trait SharedRoom {
    /// Takes a body that begins with `begins`; so many bytes follow, which `fill` writes. Says whether it
    /// did: if there is no room, `fill` was not called.
    fn take(&mut self, begins: &[u8], bytes: usize, fill: &mut dyn FnMut(&mut PartSink<'_>)) -> bool;
}

/// The body of a response.
///
/// The invariant: if some of it was written into shared room, that is all that follows the bytes here, and
/// the room has taken those bytes as they are.
pub struct ReplyBody<'a> {
    bytes: &'a mut Vec<u8>,
    room: Option<&'a mut dyn SharedRoom>,
    /// Bytes that were written into the room.
    behind: usize,
}

impl<'a> ReplyBody<'a> {
    /// A body of which everything is appended to these bytes.
    pub fn new(bytes: &'a mut Vec<u8>) -> ReplyBody<'a> {
        ReplyBody { bytes, room: None, behind: 0 }
    }

    /// A body whose large parts go into a room that both ends share. There are no bytes before it.
    pub fn in_room(bytes: &'a mut Vec<u8>, room: &'a mut dyn SharedRoom) -> ReplyBody<'a> {
        bytes.clear();
        ReplyBody { bytes, room: Some(room), behind: 0 }
    }

    /// The number of bytes that were written into the room, after those that are here.
    pub fn behind(&self) -> usize {
        self.behind
    }

    pub fn bytes(&mut self) -> &mut Vec<u8> {
        self.bytes
    }

    /// The number of bytes, here and in the room.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() + self.behind
    }

    /// Takes back everything after the first so many bytes.
    pub(super) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
        self.behind = 0;
    }

    /// Appends what a procedure gives. Large parts go into the room, unless the response is to be kept.
    pub(super) fn put(
        &mut self,
        gives: &PayloadSchema,
        mut put: impl FnMut(&mut Encoder<'_>),
    ) -> Result<(), Error> {
        let from = self.bytes.len();
        let left = gives.encode_head(&mut put, self.bytes)?;
        if left == 0 {
            return Ok(());
        }
        let is_kept = self.bytes.len() + left <= limits::KEPT_BYTES_MAX;
        let is_too_large = self.bytes.len() - from + left > limits::CALL_MAX;
        let room = self.room.take().filter(|_| !is_kept && !is_too_large);
        let mut fill = |sink: &mut PartSink<'_>| gives.encode_rest(&mut put, sink);
        if room.is_some_and(|room| room.take(self.bytes, left, &mut fill)) {
            self.behind = left;
            return Ok(());
        }
        let end = self.bytes.len() + left;
        self.bytes.reserve_exact(left);
        fill(&mut |bytes| self.bytes.extend_from_slice(bytes));
        // Of a value that is another at the second look the reader finds that its parts do not fit.
        self.bytes.resize(end, 0);
        Ok(())
    }
}

impl fmt::Debug for ReplyBody<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyBody")
            .field("bytes", &self.bytes.len())
            .field("behind", &self.behind)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tercel_wire::id::{CallId, ClientId};
    use tercel_wire::interface::{InterfaceSchema, MethodSchema, Mode};
    use tercel_wire::layout::Layout;
    use tercel_wire::message::{Response, ResponseEnd};
    use tercel_wire::payload::Payload;
    use tercel_wire::schema::{Field, Schema, Type};

    use super::*;
    use crate::rpc::served::Served;
    use crate::rpc::{
        Context, Failure, Service, ServiceInterface, Services, Taken, Taking, finish_in, serve_named,
    };
    use crate::time::Now;

    /// Gives as many bytes as its number says.
    struct Gives;

    const NOTHING: Schema = Schema { name: "nothing", fields: &[] };
    const BYTES: Schema = Schema { name: "bytes", fields: &[Field { name: "bytes", ty: Type::Bytes }] };

    const fn method(name: &'static str) -> MethodSchema {
        MethodSchema {
            name,
            reads: false,
            mode: Mode::Plain,
            takes: PayloadSchema::of(NOTHING),
            gives: PayloadSchema::of(BYTES),
            fails: PayloadSchema::of(BYTES),
            input: NOTHING,
            output: NOTHING,
        }
    }

    impl ServiceInterface for Gives {
        const SCHEMA: &'static InterfaceSchema = &InterfaceSchema {
            name: "Gives",
            methods: &[method("gives"), method("fails"), method("panics")],
        };
    }

    /// Room that has some, or none.
    struct Room {
        bytes_max: usize,
        /// The body that it took.
        body: Vec<u8>,
        asked: usize,
    }

    impl SharedRoom for Room {
        fn take(&mut self, begins: &[u8], bytes: usize, fill: &mut dyn FnMut(&mut PartSink<'_>)) -> bool {
            self.asked += 1;
            if bytes > self.bytes_max {
                return false;
            }
            self.body = begins.to_vec();
            fill(&mut |bytes| self.body.extend_from_slice(bytes));
            assert_eq!(self.body.len(), begins.len() + bytes);
            true
        }
    }

    fn services(bytes: usize) -> Services {
        let schema = &Gives::SCHEMA.methods;
        Services::default().with(Service::new::<Gives>(move |_, method, _, out| {
            let value = vec![7_u8; bytes];
            let called = match method {
                1 => Err(Failure::Method(value)),
                _ => Ok(value),
            };
            let ended = finish_in(
                called,
                &schema[method],
                |value, e| e.put_bytes(BYTES.offset(0), value),
                |value, e| e.put_bytes(BYTES.offset(0), value),
                out,
            );
            assert!(method != 2, "on purpose");
            ended
        }))
    }

    /// Serves a call twice: the body as its reader finds it, how often the room was asked, and the response
    /// to the second call.
    fn serve_twice(bytes: usize, bytes_max: usize, method: u16) -> (Vec<u8>, usize, Vec<u8>) {
        let (services, mut served) = (services(bytes), Served::default());
        let cx = Context::inline(ClientId(1), Now(0), None);
        let mut room = Room { bytes_max, body: Vec::new(), asked: 0 };
        let mut call = || {
            let mut body = vec![9; 3];
            let mut out = ReplyBody::in_room(&mut body, &mut room);
            let procedure = services.procedure(0, method);
            let id = CallId { slot: 0, seq: 1 };
            let taken = serve_named(&mut served, procedure, id, Taking::Payload(&[]), &cx, &mut out);
            assert_eq!(taken, Taken::Answered);
            match out.behind() {
                0 => body,
                _ => std::mem::take(&mut room.body),
            }
        };
        let (first, again) = (call(), call());
        (first, room.asked, again)
    }

    #[test]
    fn large_result_goes_into_the_room_and_is_read_as_any() {
        let layout = Layout::of(&BYTES);
        for bytes in [0, 5, 2_000, 20_000, limits::KEPT_BYTES_MAX - 100, limits::KEPT_BYTES_MAX, 900_000] {
            for bytes_max in [0, 1 << 20] {
                let (body, asked, again) = serve_twice(bytes, bytes_max, 0);
                let is_large = bytes >= limits::KEPT_BYTES_MAX;
                assert_eq!(asked, usize::from(is_large), "{bytes}");
                let ResponseEnd::Returned(_, payload) = Response::decode(&body).unwrap().end else {
                    panic!("{bytes}: {body:?}")
                };
                let payload = Payload::decode(payload, &layout).unwrap();
                assert!(payload.bytes(BYTES.offset(0)).unwrap() == vec![7; bytes]);
                match is_large {
                    true => assert_eq!(Response::decode(&again).unwrap().end, ResponseEnd::FORGOTTEN),
                    false => assert!(again == body, "{bytes}"),
                }
            }
        }
    }

    #[test]
    fn result_that_is_too_large_or_fails_or_ends_in_a_panic_is_not_in_the_room() {
        for (bytes, method) in [(limits::CALL_MAX, 0), (900_000, 1), (900_000, 2)] {
            let (body, asked, again) = serve_twice(bytes, 1 << 20, method);
            let end = Response::decode(&body).unwrap().end;
            match method {
                1 => assert!(matches!(end, ResponseEnd::Failed(..))),
                _ => assert!(matches!(end, ResponseEnd::Broken(..)), "{end:?}"),
            }
            assert_eq!(asked, usize::from(method == 2), "method {method}");
            assert!(again == body || Response::decode(&again).unwrap().end == ResponseEnd::FORGOTTEN);
        }
    }
}
