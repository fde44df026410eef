//! Finding the one byte that is wrong under a CRC-32.
//!
//! A checksum that does not fit differs from the right one by a pattern that follows from the error alone, not from the
//! data. For an error within one byte that pattern can be run backwards through the polynomial, so all places and
//! values that explain it are found in one pass. Whether to believe one is for the caller: a single wrong *bit* below
//! [`BITS_BYTES_MAX`] is told apart with certainty from every other error of one or two bits, because the code has a
//! Hamming distance of 4 there (Koopman, *32-Bit Cyclic Redundancy Codes for Internet Applications*, DSN 2002); a wrong
//! byte needs other evidence.

/// A byte that would explain a wrong checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteError {
    /// Its offset.
    pub at: usize,
    /// What to exclusive-or it with.
    pub xor: u8,
}

impl ByteError {
    /// Whether one bit is wrong and not more.
    pub fn is_bit(&self) -> bool {
        self.xor.is_power_of_two()
    }

    /// Corrects, or spoils again.
    pub fn apply(&self, bytes: &mut [u8]) {
        if let Some(byte) = bytes.get_mut(self.at) {
            *byte ^= self.xor;
        }
    }
}

/// Up to so many bytes, data and checksum together, a CRC-32 has Hamming distance 4: 91,607 bits of data.
pub const BITS_BYTES_MAX: usize = 11 << 10;

/// All single bytes among `len` that explain why their checksum differs by `syndrome` from the stored one; the last
/// first. Offsets count from the first byte that the checksum covers.
pub(crate) fn in_data(len: usize, syndrome: u32) -> Vec<ByteError> {
    let mut found = Vec::new();
    let mut pattern = syndrome;
    for at in (0..len).rev() {
        if pattern == 0 {
            break;
        }
        let byte = FIRST[(pattern >> 24) as usize];
        if TABLE[byte as usize] == pattern {
            found.push(ByteError { at, xor: byte });
        }
        pattern = ((pattern ^ TABLE[byte as usize]) << 8) | byte as u32;
    }
    found
}

/// The byte of the stored checksum, at `at`, that explains the syndrome if one does.
pub(crate) fn in_checksum(at: usize, syndrome: u32) -> Option<ByteError> {
    let bytes = syndrome.to_le_bytes();
    let mut wrong = bytes.iter().enumerate().filter(|(_, b)| **b != 0);
    let (i, xor) = wrong.next()?;
    wrong.next().is_none().then_some(ByteError { at: at + i, xor: *xor })
}

/// What the polynomial makes of a byte.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (mut v, mut bit) = (i as u32, 0);
        while bit < 8 {
            v = if v & 1 == 1 { (v >> 1) ^ 0xedb8_8320 } else { v >> 1 };
            bit += 1;
        }
        table[i] = v;
        i += 1;
    }
    table
};

/// The byte whose entry in the table begins with this one; every byte begins one entry.
const FIRST: [u8; 256] = {
    let mut first = [0; 256];
    let mut i = 0;
    while i < 256 {
        first[(TABLE[i] >> 24) as usize] = i as u8;
        i += 1;
    }
    first
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_byte_is_found_from_the_checksum_alone() {
        let data: Vec<u8> = (0..300u32).map(|i| (i * 7 % 251) as u8).collect();
        let right = crc32fast::hash(&data);
        for at in 0..data.len() {
            for xor in [1u8, 0x80, 0xff, 0x3c] {
                let mut bad = data.clone();
                bad[at] ^= xor;
                let found = in_data(bad.len(), crc32fast::hash(&bad) ^ right);
                assert_eq!(found, [ByteError { at, xor }]);
            }
        }
    }

    #[test]
    fn a_wrong_byte_of_the_checksum_itself_is_found_and_two_are_not() {
        assert_eq!(in_checksum(12, 0x0000_4100), Some(ByteError { at: 13, xor: 0x41 }));
        assert_eq!(in_checksum(12, 0x0001_4100), None);
        assert_eq!(in_checksum(12, 0), None);
    }
}
