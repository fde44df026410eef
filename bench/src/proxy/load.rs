//! Both ends of a proxy under load: an origin that answers at once, and clients that ask through the proxy.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use tercel_events::{Config, Event, EventQueue, Kind};

use super::failed;

/// Bytes of an answer's body, as in the paper.
const BODY_BYTES: usize = 1_024;

/// Answers every request alike, until this process is ended.
pub fn serve_origin() -> Result<(), String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    println!("listening on {}", listener.local_addr().map_err(failed)?);
    let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY_BYTES}\r\n\r\n").into_bytes();
    answer.resize(answer.len() + BODY_BYTES, b'x');
    let mut queue = EventQueue::<()>::open(Config::default()).map_err(failed)?;
    queue.declare_listener(listener, 0).map_err(failed)?;
    let mut batch = Vec::new();
    loop {
        queue.get_next_events(&mut batch, 64, None).map_err(failed)?;
        for event in batch.drain(..) {
            match event.kind {
                // A connection has one request at a time, which fits a segment: its last bytes are its end.
                Kind::Received(bytes) if bytes.ends_with(b"\r\n\r\n") => {
                    let mut reply = queue.spare_buffer();
                    reply.extend_from_slice(&answer);
                    let _ = queue.send(event.token, reply);
                }
                Kind::EndOfStream => {
                    queue.revoke(event.token);
                }
                _ => {}
            }
        }
    }
}

/// Connections through a proxy to an origin.
pub struct Load {
    queue: EventQueue,
    batch: Vec<Event>,
    streams: Vec<Stream>,
    request: Vec<u8>,
    answer_bytes: usize,
}

struct Stream {
    token: tercel_events::Token,
    /// Bytes of the answer that are to come; none while it is idle.
    left: usize,
    begun: Instant,
}

/// The results of a block: answers a second, and the microseconds of each.
pub struct Done {
    pub rate: f64,
    pub times: Vec<f64>,
}

impl Load {
    /// Connects so often, and asks once to learn the length of an answer.
    pub fn connect(proxy: &str, origin: &str, connections: usize) -> Result<Load, String> {
        let request = format!("GET http://{origin}/ HTTP/1.1\r\nHost: {origin}\r\n\r\n").into_bytes();
        let mut first = TcpStream::connect(proxy).map_err(failed)?;
        first.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        first.write_all(&request).map_err(failed)?;
        let mut answer = Vec::new();
        let end = loop {
            let mut room = [0; 4_096];
            let n = first.read(&mut room).map_err(|e| format!("the proxy does not answer: {e}"))?;
            answer.extend_from_slice(&room[..n]);
            if let Some(head) = answer.windows(4).position(|four| four == b"\r\n\r\n") {
                break head + 4 + BODY_BYTES;
            }
            if n == 0 {
                return Err("the proxy closed the connection without an answer".into());
            }
        };
        if !answer.starts_with(b"HTTP/1.1 200 ") {
            return Err(format!("the proxy answers {:?}", String::from_utf8_lossy(&answer)));
        }
        let mut queue = EventQueue::open(Config::default()).map_err(failed)?;
        let mut streams = Vec::new();
        for n in 0..connections {
            let stream = TcpStream::connect(proxy).map_err(failed)?;
            let token = queue.declare_stream(stream, n as u64).map_err(failed)?;
            streams.push(Stream { token, left: 0, begun: Instant::now() });
        }
        Ok(Load { queue, batch: Vec::new(), streams, request, answer_bytes: end })
    }

    /// Asks for a while: on each connection again as soon as its answer is there, or so often a second in all
    /// whether or not answers are there. A request that no connection is free for waits, and its waiting
    /// counts.
    pub fn run(&mut self, time: Duration, rate: Option<f64>) -> Result<Done, String> {
        let every = rate.map(|rate| Duration::from_secs_f64(1.0 / rate));
        let begin = Instant::now();
        let (end, mut next) = (begin + time, begin);
        let mut idle: Vec<usize> = (0..self.streams.len()).collect();
        let mut due = VecDeque::new();
        let mut times = Vec::new();
        loop {
            let now = Instant::now();
            match every {
                Some(every) => {
                    while next <= now && next < end {
                        due.push_back(next);
                        next += every;
                    }
                }
                None if now < end => due.extend((due.len()..idle.len()).map(|_| now)),
                None => due.clear(),
            }
            while !due.is_empty()
                && let Some(number) = idle.pop()
            {
                let stream = &mut self.streams[number];
                stream.begun = due.pop_front().unwrap_or(now);
                stream.left = self.answer_bytes;
                let mut request = self.queue.spare_buffer();
                request.extend_from_slice(&self.request);
                self.queue.send(stream.token, request).map_err(failed)?;
            }
            // Those still under way at the end are waited for; their answers count as the others' do.
            if now >= end && due.is_empty() && idle.len() == self.streams.len() {
                let rate = times.len() as f64 / begin.elapsed().as_secs_f64();
                return Ok(Done { rate, times });
            }
            if now >= end + PATIENCE {
                return Err("the proxy has not answered all requests".into());
            }
            let until = if every.is_some() && next < end { next } else { now + PATIENCE };
            self.queue.get_next_events(&mut self.batch, 64, Some(until)).map_err(failed)?;
            let now = Instant::now();
            for event in self.batch.drain(..) {
                let number = event.key as usize;
                let Kind::Received(bytes) = event.kind else {
                    return Err(format!("a connection to the proxy: {:?}", event.kind));
                };
                let stream = &mut self.streams[number];
                stream.left =
                    stream.left.checked_sub(bytes.len()).ok_or("an answer of the proxy is too long")?;
                if stream.left == 0 {
                    times.push((now - stream.begun).as_secs_f64() * 1e6);
                    idle.push(number);
                }
            }
        }
    }
}

/// Longer than an answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
