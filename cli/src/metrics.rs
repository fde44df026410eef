//! Counters for Prometheus: at each scrape the server's status, in Prometheus' words.
//!
//! The server is asked as by any client that has no session, so a scrape costs what `tercel stat` costs, and
//! nothing while nobody scrapes. A connection has a thread of its own and a bounded time, so that one that
//! says nothing keeps no scrape waiting.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tercel::{Addresses, Tls};
use tercel_gateway::exposition::Exposition;
use tercel_gateway::status::{scraped, scraped_certificate};
use tercel_term::fail::Failure;

/// The door at which scrapes come.
pub struct Metrics(TcpListener);

impl Metrics {
    /// Takes an address of its own.
    ///
    /// # Errors
    /// If it is no HOST:PORT, other machines reach it and that was not allowed, or it cannot be taken.
    pub fn bind(at: &str, is_remote_allowed: bool) -> Result<Metrics, Failure> {
        let failed =
            |e: io::Error| Failure::new(format!("--metrics {at}: {e}")).next("name HOST:PORT that is free");
        let listener = TcpListener::bind(at).map_err(failed)?;
        if !listener.local_addr().map_err(failed)?.ip().is_loopback() && !is_remote_allowed {
            let text = format!("--metrics {at}: other machines can reach it, and nothing is encrypted");
            return Err(Failure::new(text).next("name a loopback address, or say --allow-plain-remote"));
        }
        Ok(Metrics(listener))
    }

    /// Answers scrapes about the server at `of` from now on, on a thread of its own.
    ///
    /// # Errors
    /// If the system refuses the thread.
    pub fn serve(self, of: Addresses, tls: Option<Tls>) -> io::Result<()> {
        let (Metrics(listener), of) = (self, Arc::new((of, tls)));
        thread::Builder::new().name("tercel-metrics".into()).spawn(move || {
            let mut peers = Peers::default();
            for stream in listener.incoming() {
                // Descriptors or threads may have run out.
                if stream.and_then(|stream| peers.take(stream, &of)).is_err() {
                    thread::sleep(PAUSE);
                }
            }
        })?;
        Ok(())
    }
}

/// The connections that are being answered, the oldest first.
#[derive(Default)]
struct Peers(VecDeque<(TcpStream, JoinHandle<()>)>);

impl Peers {
    /// Answers one more. If there are too many, the oldest ends: it had more time than any other.
    fn take(&mut self, stream: TcpStream, of: &Arc<(Addresses, Option<Tls>)>) -> io::Result<()> {
        let Peers(all) = self;
        all.retain(|(_, thread)| !thread.is_finished());
        if all.len() >= AT_ONCE_MAX
            && let Some((oldest, thread)) = all.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
            let _ = thread.join();
        }
        let (kept, mut stream, of) = (stream.try_clone()?, stream, of.clone());
        let thread = thread::Builder::new().name("tercel-scrape".into()).spawn(move || {
            // A peer that is gone is answered by nobody. The connection is kept by another descriptor, too.
            let _ = answer(&mut stream, &of);
            let _ = stream.shutdown(Shutdown::Both);
        })?;
        all.push_back((kept, thread));
        Ok(())
    }
}

/// Answers one request, then closes.
fn answer(stream: &mut TcpStream, of: &(Addresses, Option<Tls>)) -> io::Result<()> {
    let head = head(stream)?;
    let mut words = head.split(' ');
    let (status, kind, body) = match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) => {
            let form = Exposition::accepted(&accepts(&head));
            match scrape(of) {
                Ok(body) => ("200 OK", form.content_type(), form.of(body)),
                Err(why) => ("503 Service Unavailable", PLAIN, why),
            }
        }
        (Some("GET"), Some(_)) => ("404 Not Found", PLAIN, "counters are at /metrics\n".into()),
        _ => ("405 Method Not Allowed", PLAIN, "only GET is answered\n".into()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())
}

/// The types of answers that a request takes, as its head says.
fn accepts(head: &str) -> String {
    let fields = head.lines().filter_map(|line| line.split_once(':'));
    let accepts =
        fields.filter(|(name, _)| name.eq_ignore_ascii_case("accept")).map(|(_, kinds)| kinds.trim());
    accepts.collect::<Vec<_>>().join(",")
}

/// The head of a request, which is there within a bounded time and room.
fn head(stream: &mut TcpStream) -> io::Result<String> {
    let (end, mut head, mut buffer) = (Instant::now() + PATIENCE, Vec::new(), [0; 1024]);
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > HEAD_BYTES_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => head.extend_from_slice(&buffer[..n]),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// The server's status as OpenMetrics. With a certificate that has ended the server lets in nobody, this
/// process included: then there is the row that says so, and no other.
fn scrape((of, tls): &(Addresses, Option<Tls>)) -> Result<String, String> {
    let status = tercel::group::status_of(of.clone(), PATIENCE);
    let days = tls.as_ref().map(|tls| tls.status().days_left).filter(|days| *days < 0);
    let scraped = match (&status, days) {
        (Ok(status), _) => scraped(Some(status), |_| ()),
        (Err(_), Some(days)) => scraped_certificate(days),
        (Err(e), None) => return Err(format!("{e}\n")),
    };
    scraped.map_err(|e| format!("{e}\n"))
}

const PLAIN: &str = "text/plain; charset=utf-8";

/// Time for a request to come, for the server to answer, and for the scraper to take it.
const PATIENCE: Duration = Duration::from_secs(2);
/// The pause after a connection that could not be taken.
const PAUSE: Duration = Duration::from_millis(100);
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Connections that are answered at once: scrapers are few.
const AT_ONCE_MAX: usize = 16;
