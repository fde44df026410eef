//! Proofs over a connection: both ends show that they have the secret of a group, before anything counts.

use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use tercel_engine::order::quorum::remembered::Remembered;
use tercel_engine::server::{MEMBERS_VERSION, OPERATOR, Proof};
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{self, FRAME_BYTES, Header, Kind};
use tercel_wire::id::{MemberId, SpaceId};
use tercel_wire::message::{Challenge, Join, Opening, Prove, Refused};

use thiserror::Error;

use crate::disk::DiskError;
use crate::disk::secret::{End, Secret, random_bytes};
use crate::stream::Stream;

/// One end that has a secret: a member, a server that is alone, or an operator.
#[derive(Debug, Clone)]
pub(crate) struct Prover {
    secret: Secret,
    /// The words with which it opens a connection, but for the nonce.
    join: Join,
}

/// Why a connection is not open.
#[derive(Debug, Error)]
pub(crate) enum Unopened {
    /// The other end ended the connection, was silent, or said what is no answer.
    #[error("the connection is not proven: {0}")]
    Failed(io::Error),
    /// The other end refuses, or does not prove itself: with this sentence.
    #[error("{0}")]
    Refused(String),
}

impl From<io::Error> for Unopened {
    fn from(why: io::Error) -> Unopened {
        match why.kind() {
            // By its certificate, or because of this process's.
            io::ErrorKind::PermissionDenied => Unopened::Refused(why.to_string()),
            _ => Unopened::Failed(why),
        }
    }
}

impl Prover {
    /// A member of a group, whose process has begun.
    pub(crate) fn member(secret: Secret, space: SpaceId, found: &Remembered) -> Prover {
        let Remembered { group, me, start, own, .. } = found;
        let process = own.recent.last().map_or(0, |started| started.process);
        let opening = Opening { process, nonce: [0; 32], earlier: Some(found.earlier()) };
        Prover::new(secret, (*group, space), (*me, *start), opening)
    }

    fn new(
        secret: Secret,
        (group, space): (u64, SpaceId),
        (member, start): (MemberId, u64),
        opening: Opening,
    ) -> Prover {
        let (version, opening) = (MEMBERS_VERSION, Some(opening));
        Prover { secret, join: Join { group, space, member, start, version, opening } }
    }

    /// An operator, of whichever group has the secret.
    pub(crate) fn operator(secret: Secret) -> Prover {
        let opening = Opening { process: 0, nonce: [0; 32], earlier: None };
        Prover::new(secret, (0, SpaceId(0)), (OPERATOR, 0), opening)
    }

    /// The other side of it: an operator of the group, with the same secret.
    pub(crate) fn as_operator(&self) -> Prover {
        Prover::operator(self.secret.clone())
    }

    /// Answers a connection that opens with these words. Gives what to say, and the proof to expect.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub(crate) fn challenge(&self, join: &Join) -> Result<(Challenge, Proof), DiskError> {
        let Join { group, member, start, .. } = self.join;
        let nonce = random_bytes(Path::new("a connection"))?;
        let drawn = |opening: &Opening| Some((opening.process, opening.earlier.clone()?));
        let drawn = self.join.opening.as_ref().and_then(drawn);
        let mut challenge = Challenge { group, member, start, nonce, proof: [0; 32], drawn };
        challenge.proof = self.secret.prove(End::Answering, join, &challenge);
        let expected = self.secret.prove(End::Opening, join, &challenge);
        Ok((challenge, expected))
    }

    /// Opens a connection: proves itself, and sees that the other end is this member, or any. Nothing that
    /// comes behind the answer is read. Gives what the other end has said of itself.
    pub(crate) fn open(
        &self,
        stream: &mut Stream,
        to: Option<MemberId>,
        within: Duration,
    ) -> Result<Challenge, Unopened> {
        let end = Instant::now() + within;
        let nonce =
            random_bytes(Path::new("a connection")).map_err(|_| io::Error::other("no random numbers"))?;
        let opening = self.join.opening.as_ref().map(|opening| Opening { nonce, ..opening.clone() });
        let join = Join { opening, ..self.join.clone() };
        say(stream, Kind::Join, |body| join.encode(body))?;
        let challenge = answer(stream, Kind::Challenge, end)?;
        let challenge = Challenge::decode(&challenge).map_err(io::Error::other)?;
        if challenge.proof != self.secret.prove(End::Answering, &join, &challenge) {
            let text = "what answers there has another secret than this member's group, or none: no member of it listens \
                        there, or the file `secret` of one of both directories is another group's";
            return Err(Unopened::Refused(text.into()));
        }
        if to.is_some_and(|to| to != challenge.member) {
            let text = format!("member {} answers at its address", challenge.member);
            return Err(Unopened::Refused(text));
        }
        let prove = Prove { proof: self.secret.prove(End::Opening, &join, &challenge) };
        say(stream, Kind::Prove, |body| prove.encode(body))?;
        answer(stream, Kind::Proven, end).map(|_| challenge)
    }
}

fn say(stream: &mut Stream, kind: Kind, encode: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
    let (mut body, mut bytes) = (Vec::new(), Vec::new());
    encode(&mut body);
    frame::encode(Header::new(kind, 0), &body, &mut bytes);
    stream.write_all(&bytes)
}

/// Reads a frame of this kind, and nothing behind it. Gives its body.
fn answer(stream: &mut Stream, kind: Kind, end: Instant) -> Result<Vec<u8>, Unopened> {
    let mut deframer = Deframer::default();
    let mut bytes = [0; ANSWER_BYTES_MAX];
    read(stream, &mut bytes[..FRAME_BYTES], end)?;
    let body_bytes = tercel_wire::cursor::le32(&bytes, BODY_BYTES_AT) as usize;
    let body = bytes.get_mut(FRAME_BYTES..).and_then(|room| room.get_mut(..body_bytes));
    read(stream, body.ok_or_else(|| io::Error::other("it says too much"))?, end)?;
    deframer.push(&bytes[..FRAME_BYTES + body_bytes]);
    match deframer.next_frame().map_err(io::Error::other)? {
        Some((header, body)) if header.kind == kind => Ok(body.to_vec()),
        Some((header, body)) if header.kind == Kind::Refused => {
            Err(Unopened::Refused(Refused::decode(body).map_err(io::Error::other)?.text))
        }
        _ => Err(io::Error::other("it answers something else").into()),
    }
}

/// Fills a buffer before a moment.
fn read(stream: &mut Stream, mut buffer: &mut [u8], end: Instant) -> io::Result<()> {
    while !buffer.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(left)?;
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => buffer = &mut buffer[n..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Where the header of a frame says how many bytes follow.
const BODY_BYTES_AT: usize = 8;

/// Bytes of the longest answer: a refusal has some sentences.
const ANSWER_BYTES_MAX: usize = 16 << 10;

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Answers a connection as a server with a secret does. Says whether the other end has proven itself.
    pub(crate) fn accept(prover: &Prover, stream: &mut Stream) -> bool {
        let end = Instant::now() + WITHIN;
        let Ok(join) = answer(stream, Kind::Join, end) else { return false };
        let (challenge, expected) = prover.challenge(&Join::decode(&join).unwrap()).unwrap();
        say(stream, Kind::Challenge, |body| challenge.encode(body)).unwrap();
        let proof = answer(stream, Kind::Prove, end).ok().map(|body| Prove::decode(&body).unwrap().proof);
        let is_proven = proof == Some(expected);
        if is_proven {
            say(stream, Kind::Proven, |_| {}).unwrap();
        }
        is_proven
    }

    fn pair() -> (Stream, Stream) {
        let (here, there) = UnixStream::pair().unwrap();
        (here.into(), there.into())
    }

    pub(crate) fn secret() -> Secret {
        Secret::draw(Path::new("a test")).unwrap()
    }

    fn member(secret: &Secret, id: u64) -> Prover {
        let opening = Opening { process: 11, nonce: [0; 32], earlier: None };
        Prover::new(secret.clone(), (7, SpaceId(1)), (MemberId(id), 3), opening)
    }

    /// One connects, and another answers, each as it knows itself.
    fn meet(from: &Prover, to: &Prover, expects: Option<u64>) -> (Result<(), Unopened>, bool) {
        let (mut here, mut there) = pair();
        std::thread::scope(|scope| {
            let answered = scope.spawn(move || accept(to, &mut there));
            let opened = from.open(&mut here, expects.map(MemberId), WITHIN).map(drop);
            drop(here);
            (opened, answered.join().unwrap())
        })
    }

    #[test]
    fn both_ends_prove_themselves() {
        let (one, other) = (secret(), secret());
        let (opened, is_proven) = meet(&member(&one, 1), &member(&one, 2), Some(2));
        assert!(opened.is_ok() && is_proven);
        let (opened, is_proven) = meet(&Prover::operator(one.clone()), &member(&one, 2), None);
        assert!(opened.is_ok() && is_proven);
        let (opened, is_proven) = meet(&member(&other, 1), &member(&one, 2), Some(2));
        assert!(opened.unwrap_err().to_string().contains("has another secret") && !is_proven);
        let (opened, is_proven) = meet(&member(&one, 1), &member(&one, 3), Some(2));
        assert!(opened.unwrap_err().to_string().contains("0000000000000003 answers") && !is_proven);
    }

    #[test]
    fn silent_end_is_not_waited_for() {
        let (mut here, _there) = pair();
        let opened = member(&secret(), 1).open(&mut here, None, Duration::from_millis(20));
        assert!(matches!(opened, Err(Unopened::Failed(_))));
    }

    const WITHIN: Duration = Duration::from_secs(10);
}
