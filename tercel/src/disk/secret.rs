//! The secret of a group: 32 random bytes, as a line of text in a file of the directory of each member.
//!
//! It is never sent. One end of a connection proves to the other that it has the secret by a keyed hash
//! (HMAC-SHA-256) over all that both ends have said: a nonce of each, the group, both members and the starts
//! of their processes. The answering end proves itself first, and names another role than the opening end, so
//! that no proof can be sent back, or used on another connection.

use std::fmt::{self, Debug, Formatter};
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;
use tercel_engine::server::Proof;
use tercel_wire::message::{Challenge, Join};

use super::DiskError;
use super::held::HeldDir;
use crate::private::see_private;

/// The name of the file in a data directory.
pub(crate) const SECRET_NAME: &str = "secret";

/// The secret of a group.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret([u8; 32]);

impl Debug for Secret {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The end of a connection that proves itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The one that has connected.
    Opening,
    Answering,
}

impl Secret {
    /// Draws a new one, for a group whose first directory is this.
    pub(crate) fn draw(dir: &Path) -> Result<Secret, DiskError> {
        Ok(Secret(random_bytes(dir)?))
    }

    /// The secret in a directory, if there is one.
    ///
    /// # Errors
    /// If the file cannot be read, or is no secret.
    pub(crate) fn of(dir: &HeldDir) -> Result<Option<Secret>, DiskError> {
        match dir.has(SECRET_NAME) {
            true => {
                let file = dir.file(SECRET_NAME);
                see_private(&file);
                Secret::parse(&dir.read_small(SECRET_NAME)?, &file).map(Some)
            }
            false => Ok(None),
        }
    }

    /// The secret in a file.
    ///
    /// # Errors
    /// As [`Secret::of`].
    pub(crate) fn read(file: &Path) -> Result<Secret, DiskError> {
        let (dir, name) = HeldDir::around(file)?;
        see_private(file);
        Secret::parse(&dir.read_small(name)?, file)
    }

    /// Makes it that of a directory. No other user may read it.
    pub(crate) fn write(&self, dir: &HeldDir) -> Result<(), DiskError> {
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        dir.write_private(SECRET_NAME, &format!("{FORM}{digits}\n"))
    }

    fn parse(text: &str, file: &Path) -> Result<Secret, DiskError> {
        let damaged = || DiskError::NoSecret { file: file.into() };
        let digits = text.trim_end().strip_prefix(FORM).ok_or_else(damaged)?;
        if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(damaged());
        }
        let mut secret = [0; 32];
        for (byte, at) in secret.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| damaged())?;
        }
        Ok(Secret(secret))
    }

    /// The proof of one end of a connection that began with these words.
    pub(crate) fn prove(&self, end: End, join: &Join, challenge: &Challenge) -> Proof {
        let mut said = Vec::with_capacity(192);
        said.extend_from_slice(match end {
            End::Opening => b"tercel member opens\0\0",
            End::Answering => b"tercel member answers",
        });
        join.encode(&mut said);
        // Behind the others, and not a part of what it proves.
        Challenge { proof: [0; 32], ..challenge.clone() }.encode(&mut said);
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key may have any length");
        mac.update(&said);
        mac.finalize().into_bytes().into()
    }
}

/// Draws random bytes.
pub(crate) fn random_bytes(path: &Path) -> Result<[u8; 32], DiskError> {
    let mut bytes = [0; 32];
    let got = getrandom(&mut bytes[..], GetRandomFlags::empty());
    got.map_err(|error| DiskError::io("draw random numbers for", path)(error.into()))?;
    Ok(bytes)
}

/// Begins the line of a file.
const FORM: &str = "tercel-secret-1 ";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tercel_wire::id::{MemberId, SpaceId};
    use tercel_wire::message::Opening;

    use super::*;

    fn said() -> (Join, Challenge) {
        let opening = Some(Opening { process: 5, nonce: [6; 32], earlier: None });
        let join = Join { group: 1, space: SpaceId(2), member: MemberId(3), start: 4, version: 8, opening };
        let (nonce, proof) = ([7; 32], [0; 32]);
        (join, Challenge { group: 1, member: MemberId(8), start: 9, nonce, proof, drawn: None })
    }

    #[test]
    fn secret_comes_back_and_is_private() {
        let path = tempfile::tempdir().unwrap();
        let dir = HeldDir::open(path.path()).unwrap();
        assert_eq!(Secret::of(&dir).unwrap(), None);
        // Left behind by a crash, and readable.
        std::fs::write(path.path().join("secret.tmp"), "old").unwrap();
        let secret = Secret::draw(path.path()).unwrap();
        secret.write(&dir).unwrap();
        let file = path.path().join(SECRET_NAME);
        assert_eq!((Secret::of(&dir).unwrap(), Secret::read(&file).unwrap()), (Some(secret.clone()), secret));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn file_that_is_no_secret_is_refused() {
        let path = tempfile::tempdir().unwrap();
        let file = path.path().join(SECRET_NAME);
        for text in ["", "tercel-secret-1 00", "00", &format!("{FORM}{}", "é".repeat(32))] {
            std::fs::write(&file, text).unwrap();
            assert!(Secret::read(&file).unwrap_err().to_string().contains("no secret of a group"), "{text}");
        }
    }

    /// The hash of an independent implementation.
    #[test]
    fn proof_is_hmac_of_what_was_said() {
        let (join, challenge) = said();
        let proof = Secret([1; 32]).prove(End::Opening, &join, &challenge);
        let digits: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digits, "6a55dd5f1a1490988fbfc6a919153bc881e0fe109994680e82ec5ee9fbdac335");
    }

    #[test]
    fn proof_is_of_one_end_of_one_connection() {
        let (secret, (join, challenge)) = (Secret([1; 32]), said());
        let proof = secret.prove(End::Opening, &join, &challenge);
        let opening = Some(Opening { process: 5, nonce: [66; 32], earlier: None });
        for other in [
            Secret([2; 32]).prove(End::Opening, &join, &challenge),
            secret.prove(End::Answering, &join, &challenge),
            secret.prove(End::Opening, &Join { opening, ..join.clone() }, &challenge),
            secret.prove(End::Opening, &Join { member: MemberId(4), ..join.clone() }, &challenge),
            secret.prove(End::Opening, &Join { start: 5, ..join.clone() }, &challenge),
            secret.prove(End::Opening, &join, &Challenge { nonce: [8; 32], ..challenge.clone() }),
            secret.prove(End::Opening, &join, &Challenge { member: MemberId(9), ..challenge.clone() }),
        ] {
            assert_ne!(proof, other);
        }
    }
}
