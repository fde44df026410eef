//! One question to a server, on a connection of its own and without a session: how it is, and its group.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use tercel_engine::Error;
use tercel_engine::client::Servers;
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{self, Header};
use tercel_wire::message::{FromClient, FromServer, Refusal, Refused};

use crate::address::{Address, Addresses};
use crate::proving::{Prover, Unopened};
use crate::stream::{Connector, Whom};
use crate::tls::Tls;

/// Why there is no answer.
pub(crate) enum Unanswered {
    /// The server cannot be reached, or does not answer as one.
    Away(String),
    Refused(Refused),
}

impl From<Unanswered> for Error {
    fn from(why: Unanswered) -> Error {
        match why {
            Unanswered::Refused(Refused { reason: Refusal::Denied, text, .. }) => Error::Denied(text),
            Unanswered::Refused(Refused { text, .. }) | Unanswered::Away(text) => Error::Unavailable(text),
        }
    }
}

/// Asks the server at an address, by TLS with a certificate. `read` takes what it wants of the answer. With a
/// secret, both ends prove before that they have it.
pub(crate) fn ask<R>(
    (at, tls): (&Address, Option<&Tls>),
    prover: Option<&Prover>,
    request: &FromClient<'_>,
    within: Duration,
    read: impl FnOnce(&Header, FromServer<'_>) -> Option<R>,
) -> Result<R, Unanswered> {
    let end = Instant::now() + within;
    let away = |why: io::Error| Unanswered::Away(format!("{at} does not answer: {why}"));
    let strange = || Unanswered::Away(format!("what answers at {at} is no server of this version"));
    let mut stream = Connector::new(tls.cloned()).connect(at, Whom::Server, within).map_err(away)?;
    if let Some(prover) = prover {
        prover.open(&mut stream, None, within).map_err(|why| match why {
            Unopened::Failed(why) => away(why),
            Unopened::Refused(text) => {
                Unanswered::Refused(Refused { reason: Refusal::Denied, text, servers: Vec::new() })
            }
        })?;
    }
    let (mut body, mut bytes) = (Vec::new(), Vec::new());
    request.encode(&mut body);
    frame::encode(Header::new(request.kind(), CALL), &body, &mut bytes);
    stream.write_all(&bytes).map_err(away)?;
    let (mut deframer, mut buffer) = (Deframer::default(), vec![0; 64 << 10]);
    loop {
        if let Some((header, body)) = deframer.next_frame().map_err(|_| strange())? {
            return match FromServer::decode(header.kind, body) {
                Ok(FromServer::Refused(refused)) => Err(Unanswered::Refused(refused)),
                Ok(answer) if header.call == CALL => read(&header, answer).ok_or_else(strange),
                _ => Err(strange()),
            };
        }
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(left).map_err(away)?;
        match stream.read(&mut buffer) {
            Ok(0) => return Err(away(io::ErrorKind::UnexpectedEof.into())),
            Ok(n) => deframer.push(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(away(io::ErrorKind::TimedOut.into()));
            }
            Err(error) => return Err(away(error)),
        }
    }
}

/// Asks the leader of a group, found by any of these addresses, again and again until it does not say *later*
/// or the time is over.
pub(crate) fn ask_leader<R>(
    servers: &Addresses,
    prover: Option<&Prover>,
    request: &FromClient<'_>,
    within: Duration,
    read: impl Fn(&Header, FromServer<'_>) -> Option<R>,
) -> Result<R, Error> {
    let end = Instant::now() + within;
    let mut known = Servers::new(servers.iter().map(Address::to_string).collect(), CALL);
    let mut failed = None;
    loop {
        let (at, pause_us) = known.try_next();
        let pause = Duration::from_micros(pause_us);
        if let Some(failed) = failed.take_if(|_| Instant::now() + pause >= end) {
            return Err(Error::from(failed));
        }
        std::thread::sleep(pause);
        // One that a server told of may be none.
        let Ok(address) = at.parse() else { continue };
        match ask((&address, servers.tls()), prover, request, ONE.max(within / 4), &read) {
            Err(Unanswered::Refused(refused)) => match refused.reason {
                Refusal::NotLeader | Refusal::Unavailable => {
                    known.sent_on(refused.servers.clone());
                    failed = Some(Unanswered::Refused(refused));
                }
                _ => return Err(Unanswered::Refused(refused).into()),
            },
            Err(away) => _ = failed.get_or_insert(away),
            Ok(answer) => return Ok(answer),
        }
    }
}

/// The longest wait for one server while there are others.
const ONE: Duration = Duration::from_millis(500);

/// The number of the one question of a connection.
const CALL: u64 = 1;
