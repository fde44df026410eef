//! Calls by a socket, the shorter way: a caller that finds the connection free sends its request itself, and
//! reads the answer where it was received.
//!
//! The machine is left out of a call that returns at once, alone on the connection. Whatever else arrives
//! goes to the machine, and the call with it, under its name. The invariant: a thread reads an answer itself
//! only where a message begins (`Reader::is_amid`), and the machine hears of all that is not that answer.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use tercel_engine::txn::{ExpressAsked, ExpressCall, Expressed};
use tercel_wire::frame::{self, FRAME_BYTES, Header, Kind};
use tercel_wire::id::{CallId, Stamp};
use tercel_wire::message::{HEAD_BYTES, Response, ResponseEnd};

use super::connection::{READ_MAX, RECEIVE_BYTES, ServerConnection, or_nothing};
use super::drive::{Reader, SENDER_BYTES_MAX, Shared};
use super::express::Calls;

impl Shared {
    /// Calls by a socket, and waits for the answer for as long as one receive may take.
    #[inline(never)]
    pub(super) fn call_by_socket(
        &self,
        (conn, header): (&Arc<ServerConnection>, &Header),
        reader: &mut Reader,
        (calls, at): (&mut Calls, usize),
        (asked, call): (&ExpressAsked, &mut dyn ExpressCall),
    ) -> Expressed {
        let called = self.send_and_receive((conn, header), reader, (calls, at), (asked, call));
        // However it went, what a large call needed is not kept for small ones.
        calls.spare.empty(&mut reader.buffer, RECEIVE_BYTES);
        if calls.body.capacity() > SENDER_BYTES_MAX {
            calls.body_spare.empty(&mut calls.body, SENDER_BYTES_MAX);
        }
        called
    }

    #[inline(always)]
    fn send_and_receive(
        &self,
        (conn, header): (&Arc<ServerConnection>, &Header),
        reader: &mut Reader,
        (calls, at): (&mut Calls, usize),
        (asked, call): (&ExpressAsked, &mut dyn ExpressCall),
    ) -> Expressed {
        let Some((id, head, left_us, rest)) = self.name_call((calls, at), &mut 0, (asked, call)) else {
            return Expressed::No;
        };
        let header = Header { deadline_us: left_us, ..*header };
        let bytes = HEAD_BYTES + calls.body.len() + rest;
        (reader.has_read, reader.slow_since) = (false, None);
        let is_sent = self.send_request(conn, reader, |out, reader| {
            if rest >= PART_BYTES_MIN && !header.is_summed(bytes) {
                out.reserve(FRAME_BYTES + bytes - rest);
                frame::encode_head(header, bytes, out);
                out.extend_from_slice(&head);
                out.extend_from_slice(&calls.body);
                return self.send_in_place(conn, reader, out, (rest, call));
            }
            let put = |out: &mut Vec<u8>| {
                out.extend_from_slice(&head);
                out.extend_from_slice(&calls.body);
                if rest > 0 {
                    call.put_rest(&mut |bytes| out.extend_from_slice(bytes));
                }
            };
            frame::encode_with(header, bytes, put, out);
            self.send(conn, out, Some(reader))
        });
        if !is_sent {
            return Expressed::No;
        }
        self.count_express();
        if reader.has_read {
            // More came while the request was sent: perhaps the answer, or a part of it.
            return self.give_over((calls, at), id, (reader.slowly(), false));
        }
        let received = conn.wait_and_receive_once(READ_MAX, &mut reader.buffer);
        let received = received.and_then(|came| self.receive_rest(conn, reader).map(|()| came));
        if let (Ok(true), Some(end)) = (&received, returned(&reader.buffer, id))
            && self.heard_beside(conn, &end, &mut calls.acknowledged)
        {
            call.answered(&calls.bound[at].binding.interface, end);
            return Expressed::Answered;
        }
        // The clock was not read for a quick call. A wait that ended early counts as none: the call may take
        // so much longer, and is not given up too soon.
        let waited = match received {
            Ok(false) if reader.slow_since.is_none() => READ_MAX,
            _ => reader.slowly(),
        };
        self.read(conn, reader, or_nothing(received));
        self.give_over((calls, at), id, (waited, false))
    }

    /// Receives the rest of a response that came in part: straight to where it is read. What does not come in
    /// time is left out, however slowly it comes: meanwhile no thread looks at anything else.
    fn receive_rest(&self, conn: &Arc<ServerConnection>, reader: &mut Reader) -> io::Result<()> {
        let received = &mut reader.buffer;
        let Some(head) = received.first_chunk::<FRAME_BYTES>() else { return Ok(()) };
        let Some(bytes) = missing(head, received.len()) else { return Ok(()) };
        let end = received.len() + bytes;
        let begun = Instant::now();
        reader.slow_since.get_or_insert(begun);
        while received.len() < end && begun.elapsed() < READ_MAX {
            match conn.receive_more(received, end - received.len()) {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.heard(conn);
        Ok(())
    }

    /// Sends what there is in `out`, and the parts of a request behind it, from where they are. Of a value
    /// that is another than it was when its bytes were counted, some are left out or zeros added.
    #[inline(never)]
    fn send_in_place(
        &self,
        conn: &Arc<ServerConnection>,
        reader: &mut Reader,
        out: &mut Vec<u8>,
        (mut left, call): (usize, &mut dyn ExpressCall),
    ) -> io::Result<()> {
        let mut half = Half { conn, out, is_sent: false };
        let mut sent = Ok(());
        call.put_rest(&mut |part| {
            let part = &part[..part.len().min(left)];
            left -= part.len();
            if part.len() < PART_BYTES_MIN {
                return half.out.extend_from_slice(part);
            }
            half.is_sent = true;
            if sent.is_ok() {
                sent = self.send_two(conn, reader, [half.out, part]);
            }
            half.out.clear();
        });
        half.is_sent = false;
        sent?;
        let bytes = half.out.len() + left;
        if bytes == 0 {
            return Ok(());
        }
        half.out.resize(bytes, 0);
        self.send_two(conn, reader, [half.out, &[]])
    }

    fn send_two(
        &self,
        conn: &Arc<ServerConnection>,
        reader: &mut Reader,
        parts: [&[u8]; 2],
    ) -> io::Result<()> {
        let mut taken = conn.offer_two(parts)?;
        for part in parts {
            let rest = &part[taken.min(part.len())..];
            taken = taken.saturating_sub(part.len());
            if !rest.is_empty() {
                self.send(conn, rest, Some(reader))?;
            }
        }
        Ok(())
    }

    /// Sends a request, with an empty buffer. Says whether it may have been sent: it was not if another
    /// thread sends.
    fn send_request(
        &self,
        conn: &Arc<ServerConnection>,
        reader: &mut Reader,
        send: impl FnOnce(&mut Vec<u8>, &mut Reader) -> io::Result<()>,
    ) -> bool {
        let Some(mut sender) = self.threads.try_send() else { return false };
        if self.threads.is_sending() {
            return false;
        }
        let (out, spare) = &mut *sender;
        let sent = send(out, reader);
        spare.empty(out, SENDER_BYTES_MAX);
        drop(sender);
        if let Err(e) = sent {
            self.lose(conn, e.to_string());
        }
        // Other threads have left to this one what they had to send meanwhile.
        self.flush(self.machine(), Some(reader));
        true
    }
}

/// A message of which a part may have been sent. If what the caller passes on panics, nothing of it is left,
/// and a connection on which it has begun is ended.
struct Half<'a> {
    conn: &'a ServerConnection,
    out: &'a mut Vec<u8>,
    is_sent: bool,
}

impl Drop for Half<'_> {
    fn drop(&mut self) {
        self.out.clear();
        if self.is_sent {
            self.conn.cut();
        }
    }
}

/// The least bytes of a part that are sent from where they are: those of fewer are copied sooner than the
/// kernel looks at one more part.
const PART_BYTES_MIN: usize = 16 << 10;

/// Reads the end of the call, if that is all that was received, and the call returned.
#[inline]
fn returned(received: &[u8], id: CallId) -> Option<ResponseEnd<'_>> {
    let (header, body, rest) = frame::split(received).ok()??;
    let (stamp, payload): (Stamp, _) = Response::returned(body, id)?;
    (header.kind == Kind::Response && rest.is_empty()).then_some(ResponseEnd::Returned(stamp, payload))
}

/// Counts the missing bytes of a response; none of any other message, and of one that is whole.
#[inline]
fn missing(head: &[u8; FRAME_BYTES], received: usize) -> Option<usize> {
    let bytes = FRAME_BYTES + tercel_wire::cursor::le32(head, 8) as usize;
    // Most are whole, which is seen without a checksum.
    let bytes = bytes.checked_sub(received).filter(|bytes| *bytes > 0)?;
    Header::decode(head).ok().filter(|header| header.kind == Kind::Response).map(|_| bytes)
}
