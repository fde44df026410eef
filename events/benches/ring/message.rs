//! Requests and replies, and the check that every byte of them arrives in its place.
//!
//! A request names its length, its number, what is asked, and the length of the reply; a reply its length and its
//! number. What follows the head is a piece of one fixed pattern, chosen by the number, so either end checks a
//! message by one comparison of memory. A byte that is lost, doubled or of another message ends the process.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

pub const REQUEST_HEAD: usize = 16;
pub const REPLY_HEAD: usize = 8;
/// No message is longer; a longer claim is a broken stream.
pub const BYTES_MAX: usize = 65_536;

/// What a request asks for.
const ECHO: u32 = 0;
const REPORT: u32 = 1;

static PATTERN: [u8; BYTES_MAX + 256] = {
    let mut pattern = [0; BYTES_MAX + 256];
    let mut at = 0;
    while at < pattern.len() {
        // No multiple of any buffer's size is a period of the pattern.
        pattern[at] = ((at * 7 + at / 251) % 253) as u8;
        at += 1;
    }
    pattern
};

fn body(number: u32, bytes: usize) -> &'static [u8] {
    let begin = (number % 251) as usize;
    &PATTERN[begin..begin + bytes]
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Appends one request.
pub fn put_request(out: &mut Vec<u8>, number: u32, bytes: usize, reply_bytes: usize) {
    put_head(out, number, ECHO, bytes, reply_bytes);
    out.extend_from_slice(body(number, bytes - REQUEST_HEAD));
}

/// Appends a request for the server's account.
pub fn put_report(out: &mut Vec<u8>, number: u32) {
    put_head(out, number, REPORT, REQUEST_HEAD, REPLY_HEAD + Counts::BYTES);
}

fn put_head(out: &mut Vec<u8>, number: u32, asked: u32, bytes: usize, reply_bytes: usize) {
    for field in [bytes as u32, number, asked, reply_bytes as u32] {
        out.extend_from_slice(&field.to_le_bytes());
    }
}

/// Checks one whole reply.
pub fn check_reply(reply: &[u8], number: u32) {
    check_reply_head(reply, number);
    assert!(reply[REPLY_HEAD..] == *body(number, reply.len() - REPLY_HEAD), "reply {number} has other bytes");
}

fn check_reply_head(reply: &[u8], number: u32) {
    assert_eq!(word(reply, 0) as usize, reply.len(), "the length of reply {number}");
    assert_eq!(word(reply, 4), number, "the number of a reply");
}

/// What a server has done since it began.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Time of the processor that its thread has taken.
    pub cpu_ns: u64,
    pub messages: u64,
    /// Rounds of its loop.
    pub turns: u64,
    /// System calls.
    pub calls: u64,
    /// Receives that ended because every provided buffer was in use.
    pub buffers_out: u64,
    /// Sends of which the socket took a part, or nothing.
    pub sends_short: u64,
    /// Receives that were cancelled because their connection had become cold.
    pub cooled: u64,
}

impl Counts {
    const FIELDS: usize = 7;
    pub const BYTES: usize = Self::FIELDS * 8;

    fn fields(&mut self) -> [&mut u64; Self::FIELDS] {
        let Counts { cpu_ns, messages, turns, calls, buffers_out, sends_short, cooled } = self;
        [cpu_ns, messages, turns, calls, buffers_out, sends_short, cooled]
    }

    fn put(mut self, out: &mut Vec<u8>) {
        self.cpu_ns = thread_cpu_ns();
        self.fields().iter().for_each(|field| out.extend_from_slice(&field.to_le_bytes()));
    }

    /// Reads the account out of a reply.
    pub fn of_reply(reply: &[u8], number: u32) -> Counts {
        check_reply_head(reply, number);
        let mut counts = Counts::default();
        for (field, bytes) in counts.fields().into_iter().zip(reply[REPLY_HEAD..].chunks_exact(8)) {
            *field = u64::from_le_bytes(bytes.try_into().unwrap());
        }
        counts
    }

    /// What was done since `before`.
    pub fn since(mut self, mut before: Counts) -> Counts {
        for (now, before) in self.fields().into_iter().zip(before.fields()) {
            *now -= *before;
        }
        self
    }
}

/// Time of the processor that the calling thread has taken.
pub fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The server's half of one connection: bytes in, checked requests, replies out.
pub struct Dialogue {
    /// The beginning of a request whose rest has not come.
    partial: Vec<u8>,
    /// The number of the next request.
    number: u32,
    /// Replies that have not left.
    pub out: Vec<u8>,
    /// What a request takes the server beside receiving and sending.
    work: Duration,
}

impl Dialogue {
    pub fn new(work: Duration) -> Self {
        Dialogue { partial: Vec::new(), number: 0, out: Vec::new(), work }
    }

    /// Takes in what was received, wherever it was cut, and appends the replies.
    pub fn take(&mut self, bytes: &[u8], counts: &mut Counts) {
        if self.partial.is_empty() {
            let used = self.answer(bytes, counts);
            self.partial.extend_from_slice(&bytes[used..]);
        } else {
            let mut partial = std::mem::take(&mut self.partial);
            partial.extend_from_slice(bytes);
            let used = self.answer(&partial, counts);
            partial.drain(..used);
            self.partial = partial;
        }
    }

    /// Whether the connection may end here: no request is incomplete.
    pub fn is_complete(&self) -> bool {
        self.partial.is_empty()
    }

    /// Answers every whole request, and says how many bytes those are.
    fn answer(&mut self, bytes: &[u8], counts: &mut Counts) -> usize {
        let mut used = 0;
        while let Some(request) = whole(&bytes[used..]) {
            let (number, asked, reply_bytes) =
                (word(request, 4), word(request, 8), word(request, 12) as usize);
            assert_eq!(number, self.number, "the number of a request");
            let carried = &request[REQUEST_HEAD..];
            assert!(*carried == *body(number, carried.len()), "request {number} has other bytes");
            self.out.extend_from_slice(&(reply_bytes as u32).to_le_bytes());
            self.out.extend_from_slice(&number.to_le_bytes());
            match asked {
                REPORT => counts.put(&mut self.out),
                _ => self.out.extend_from_slice(body(number, reply_bytes - REPLY_HEAD)),
            }
            if !self.work.is_zero() {
                let begin = Instant::now();
                while begin.elapsed() < self.work {
                    std::hint::spin_loop();
                }
            }
            self.number = number.wrapping_add(1);
            counts.messages += 1;
            used += request.len();
        }
        used
    }
}

/// The first request, if all of it is there.
fn whole(bytes: &[u8]) -> Option<&[u8]> {
    if bytes.len() < REQUEST_HEAD {
        return None;
    }
    let length = word(bytes, 0) as usize;
    assert!((REQUEST_HEAD..=BYTES_MAX).contains(&length), "a request of {length} bytes");
    bytes.get(..length)
}
