//! The file with the keys of a ring: a line each, the first of which seals. All of them open.
//!
//! So a key is changed while the members run: a new line is added behind the first at all members, then it is
//! made the first at all of them, then the old one is removed.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tercel_datagram::seal::KEY_BYTES;

use super::RingError;
use crate::disk::secret::random_bytes;

/// The keys of a file.
pub(super) struct Keys {
    path: PathBuf,
    text: String,
    keys: Vec<Key>,
}

/// A key, and its name in packets.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub name: KeyName,
    pub bytes: [u8; KEY_BYTES],
}

/// The first bytes of a key's hash.
pub(super) type KeyName = [u8; 4];

/// Begins a line.
const FORM: &str = "tercel-ring-key-1 ";

/// Keys of a file: the one that seals, and one that comes or goes.
const KEYS_MAX: usize = 2;

const FILE_BYTES_MAX: u64 = 4 << 10;

/// Makes a file with a new key, which only its owner may read: it is brought to all members, by a way that
/// nobody else reads.
///
/// # Errors
/// If the file is there, or cannot be written.
pub fn make_key(file: impl AsRef<Path>) -> Result<(), RingError> {
    let path = file.as_ref();
    let key = random_bytes(path)?;
    let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let open = File::options().write(true).create_new(true).mode(0o600).open(path);
    let written = open.and_then(|mut file| {
        file.write_all(format!("{FORM}{digits}\n").as_bytes())?;
        file.sync_all()
    });
    written.map_err(|error| wrong(path, format!("cannot be made: {error}")))
}

impl Keys {
    /// Reads a file.
    pub(super) fn open(path: &Path) -> Result<Keys, RingError> {
        // The program may go to another directory.
        let path = std::path::absolute(path).map_err(|error| wrong(path, error.to_string()))?;
        let text = read(&path)?;
        let keys = parse(&path, &text)?;
        Ok(Keys { path, text, keys })
    }

    /// Reads the file anew. Says whether its keys are others now.
    ///
    /// # Errors
    /// If it cannot be read or has no key: the keys are as they were.
    pub(super) fn look(&mut self) -> Result<bool, RingError> {
        let text = read(&self.path)?;
        if text == self.text {
            return Ok(false);
        }
        let keys = parse(&self.path, &text)?;
        self.text = text;
        Ok(std::mem::replace(&mut self.keys, keys) != self.keys)
    }

    /// The key that seals.
    pub(super) fn first(&self) -> &Key {
        &self.keys[0]
    }

    /// The key of a name.
    pub(super) fn find(&self, name: KeyName) -> Option<&Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

fn read(path: &Path) -> Result<String, RingError> {
    let failed = |error: std::io::Error| wrong(path, format!("cannot be read: {error}"));
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(wrong(path, "may be read by other users: `chmod 600` it".into()));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

fn parse(path: &Path, text: &str) -> Result<Vec<Key>, RingError> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let keys: Option<Vec<Key>> = lines.map(|line| parse_line(line.trim())).collect();
    match keys {
        Some(keys) if (1..=KEYS_MAX).contains(&keys.len()) => Ok(keys),
        Some(_) => Err(wrong(path, "has no key, or more than two".into())),
        None => Err(wrong(path, "has a line that is no key; `tercel::ring::make_key` makes them".into())),
    }
}

fn parse_line(line: &str) -> Option<Key> {
    let digits = line.strip_prefix(FORM)?.as_bytes();
    let pairs = digits.as_chunks::<2>();
    if !pairs.1.is_empty() || pairs.0.len() != KEY_BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = [0; KEY_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(pairs.0) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    let hash = Sha256::digest(bytes);
    let mut name = KeyName::default();
    name.copy_from_slice(&hash[..size_of::<KeyName>()]);
    Some(Key { name, bytes })
}

fn wrong(path: &Path, why: String) -> RingError {
    RingError::Key { file: path.into(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_keys_is_private_and_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        make_key(&path).unwrap();
        let mut keys = Keys::open(&path).unwrap();
        assert!(make_key(&path).unwrap_err().to_string().contains("cannot be made"));
        assert!(!keys.look().unwrap());
        let first = std::fs::read_to_string(&path).unwrap();
        let other = dir.path().join("other");
        make_key(&other).unwrap();
        let second = std::fs::read_to_string(&other).unwrap();
        std::fs::write(&path, format!("{first}{second}")).unwrap();
        let name = keys.first().name;
        assert!(keys.look().unwrap() && keys.first().name == name);
        std::fs::write(&path, format!("{second}\n{first}")).unwrap();
        assert!(keys.look().unwrap() && keys.first().name != name && keys.find(name).is_some());
        for text in ["", "tercel-ring-key-1 12\n", &second[1..], &format!("{first}{second}{first}")] {
            std::fs::write(&path, text).unwrap();
            let error = keys.look().unwrap_err().to_string();
            assert!(error.contains("key"), "{text}: {error}");
        }
        // The keys that were read before count.
        assert!(keys.find(name).is_some());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let error = Keys::open(&path).err().unwrap().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }
}
