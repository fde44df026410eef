//! Streams of calls of services, between a client's connection and the host that runs its calls.
//!
//! The host has the windows ([`crate::rpc::streams`]). The machine knows which calls have streams and passes
//! on what either end says. The invariant: nothing is passed on to or from a call whose connection is gone,
//! or which has been cancelled; such a call is notified ([`Effect::EndStreams`]).

use tercel_wire::frame::Kind;
use tercel_wire::id::{ClientId, Stamp};
use tercel_wire::message::{Credit, InputEnd, Item};

use super::{Cx, Sessions};
use crate::effect::{Conn, Effect};
use crate::rpc::JobId;
use crate::rpc::streams::{Said, Violation};

impl Sessions {
    /// A client sends an item.
    pub(super) fn item(&mut self, client: ClientId, item: &Item<'_>, cx: &mut Cx) {
        if let Some(id) = self.serving.streaming(client, item.slot, item.seq) {
            hear(id, Said::Item(item.ordinal, item.payload.to_vec()), cx);
        }
    }

    /// A client has sent all items of a stream.
    pub(super) fn input_end(&mut self, client: ClientId, end: InputEnd, cx: &mut Cx) {
        if let Some(id) = self.serving.streaming(client, end.slot, end.seq) {
            hear(id, Said::End(end.items), cx);
        }
    }

    /// A client has consumed items.
    pub(super) fn credit(&mut self, client: ClientId, credit: Credit, cx: &mut Cx) {
        if let Some(id) = self.serving.streaming(client, credit.slot, credit.seq) {
            hear(id, Said::Credit(credit.bytes), cx);
        }
    }

    /// A call that runs sends an item, or has consumed some.
    pub(crate) fn says(&mut self, id: JobId, said: Said, cx: &mut Cx) {
        let Some(call) = id.call.filter(|_| self.serving.is_streaming(id)) else { return };
        let Some(conn) = self.clients.get(&id.client).copied() else { return };
        let (slot, seq, mut body) = (call.slot, call.seq, Vec::new());
        match said {
            Said::Item(ordinal, payload) => {
                Item { slot, seq, ordinal, payload: &payload }.encode(&mut body);
                self.send_item(conn, id, &body, cx);
            }
            Said::Credit(bytes) => {
                Credit { slot, seq, bytes }.encode(&mut body);
                cx.reply(conn, Kind::InputCredit, 0, &body);
            }
            Said::UsesSpace => self.serving.uses_space(id),
            // The response says so.
            Said::End(_) => {}
        }
    }

    /// Sends an item. One of a procedure that has used the space names the stamp that its caller reads from
    /// then on.
    fn send_item(&mut self, conn: Conn, id: JobId, body: &[u8], cx: &mut Cx) {
        if !self.serving.has_used_space(id) {
            return cx.reply_at(Stamp::ZERO, conn, Kind::OutputItem, 0, [body, &[]]);
        }
        // The caller must not wait for what it may read.
        self.stream_to(conn, cx);
        cx.reply(conn, Kind::OutputItem, 0, body);
    }

    /// A client has broken the protocol on the stream of a call.
    pub(crate) fn violated(&mut self, id: JobId, violation: Violation, cx: &mut Cx) {
        let conn = self.clients.get(&id.client).copied();
        if let Some(conn) = conn.filter(|_| self.serving.is_streaming(id)) {
            self.expel(conn, violation.0, cx);
        }
    }

    /// A call was cancelled: whatever waits at its streams is notified.
    pub(super) fn end_streams(&mut self, id: JobId, cx: &mut Cx) {
        if self.serving.end_streaming(id) {
            cx.out.push(Effect::EndStreams(id));
        }
    }

    /// The connection of a client is gone, and the streams of its calls with it.
    pub(super) fn end_streams_of(&mut self, client: ClientId, cx: &mut Cx) {
        for id in self.serving.end_streams(client) {
            cx.out.push(Effect::EndStreams(id));
        }
    }
}

fn hear(id: JobId, said: Said, cx: &mut Cx) {
    cx.out.push(Effect::Hear(cx.joined, id, said));
}
