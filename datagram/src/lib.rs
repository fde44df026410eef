//! Calls over datagrams, by the exchange of Peregrine (Johnson and Zwaenepoel 1993): a request and its answer
//! are a packet each, if they fit. The answer acknowledges the request; the next request acknowledges the
//! answer. A larger message is a blast: its packets leave back to back, one report names what is missing, and
//! that alone is sent again.
//!
//! Whoever waits asks again. A caller has timers, with growing pauses; a server has none for its calls: it
//! answers a question with what has come, with *busy* while it executes, with the answer, or with *unknown*
//! if it keeps nothing of the connection. A request is handed up once in the life of a connection; over
//! connections the tables above decide ([`Caller`] and [`Answerer`] know no calls, only bytes).
//!
//! A source address is believed once a cookie that was sent there came back, and before that the server
//! remembers nothing and sends no more than it got.
//!
//! | module | its noun |
//! |---|---|
//! | [`packet`] | the bytes |
//! | `caller`, `answerer` | the two ends |
//! | `message`, `ranges` | messages in pieces |
//! | [`path`] | the round trip, the window, the size of packets |
//! | [`seal`] | packets that nobody else reads or makes |
#![forbid(unsafe_code)]

mod answerer;
mod caller;
mod message;
pub mod packet;
pub mod path;
mod ranges;
pub mod seal;
#[cfg(test)]
mod tests;

pub use answerer::{Answerer, Asked, Limits};
pub use caller::{Caller, News};

/// Packets to send, in one buffer: those of one size and one address that follow each other can be one
/// system call.
#[derive(Debug)]
pub struct Packets<A> {
    bytes: Vec<u8>,
    ends: Vec<(usize, A)>,
}

impl<A> Default for Packets<A> {
    fn default() -> Packets<A> {
        Packets { bytes: Vec::new(), ends: Vec::new() }
    }
}

impl<A> Packets<A> {
    /// Adds a packet, whose bytes a function appends.
    pub fn packet(&mut self, to: A, put: impl FnOnce(&mut Vec<u8>)) {
        put(&mut self.bytes);
        self.ends.push((self.bytes.len(), to));
    }

    /// The packets, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&A, &[u8])> {
        let begins = std::iter::once(0).chain(self.ends.iter().map(|(end, _)| *end));
        begins.zip(&self.ends).map(|(begin, (end, to))| (to, &self.bytes[begin..*end]))
    }

    /// The packets in runs, each with its address and the size of its packets: they follow each other to one
    /// address and are of one size, but the last may be smaller. `most` gives the packets of a size that a
    /// run has at most.
    pub fn runs(&self, most: impl Fn(usize) -> usize) -> impl Iterator<Item = (&A, &[u8], usize)>
    where
        A: PartialEq,
    {
        let mut packets = self.iter().peekable();
        let mut begin = 0;
        std::iter::from_fn(move || {
            let (to, first) = packets.next()?;
            let (size, mut end, mut count, mut last) = (first.len(), begin + first.len(), 1, first.len());
            while count < most(size)
                && last == size
                && let Some((_, more)) = packets.next_if(|(of, more)| *of == to && more.len() <= size)
            {
                (last, end, count) = (more.len(), end + more.len(), count + 1);
            }
            let run = &self.bytes[std::mem::replace(&mut begin, end)..end];
            Some((to, run, size))
        })
    }

    /// Says whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Forgets them, and keeps their memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}
