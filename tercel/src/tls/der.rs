//! The end of a certificate's time, read from its bytes.
//!
//! The library that verifies chains keeps it to itself, and an operator wants to know how many days are left.
//! The invariant: bytes that are no certificate give none, never a panic.

/// The moment at which a certificate ends, in seconds since 1970.
pub(super) fn not_after(certificate: &[u8]) -> Option<i64> {
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (signed, _) = element(certificate, SEQUENCE)?;
    // Version, if there is one, serial number, algorithm and issuer stand before the time.
    let mut rest = match signed.first()? {
        0xa0 => any(signed)?.2,
        _ => signed,
    };
    for _ in 0..3 {
        rest = any(rest)?.2;
    }
    let (time, _) = element(rest, SEQUENCE)?;
    let (_, _, end) = any(time)?;
    let (tag, end, _) = any(end)?;
    moment(tag, end)
}

/// The content of the first element, if it has this tag, and the bytes behind it.
fn element(bytes: &[u8], wanted: u8) -> Option<(&[u8], &[u8])> {
    let (tag, content, rest) = any(bytes)?;
    (tag == wanted).then_some((content, rest))
}

/// The tag and the content of the first element, and the bytes behind it.
fn any(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, bytes) = bytes.split_first()?;
    let (&first, bytes) = bytes.split_first()?;
    let (length, bytes) = match first {
        0..=0x7f => (usize::from(first), bytes),
        0x81..=0x83 => {
            let (length, bytes) = bytes.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), bytes)
        }
        _ => return None,
    };
    let (content, rest) = bytes.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// A moment as `YYMMDDHHMMSSZ`, or with four digits of the year.
fn moment(tag: u8, text: &[u8]) -> Option<i64> {
    let digits = text.strip_suffix(b"Z")?;
    let number = |digits: &[u8]| {
        digits
            .iter()
            .try_fold(0, |sum, digit| digit.is_ascii_digit().then(|| sum * 10 + i64::from(digit - b'0')))
    };
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year = number(&digits[..2])?;
            (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (number(&digits[..4])?, &digits[4..]),
        _ => return None,
    };
    let part = |at: usize| number(&rest[at..at + 2]);
    let (month, day) = (part(0)?, part(2)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    Some(days(year, month, day) * 86_400 + part(4)? * 3_600 + part(6)? * 60 + part(8)?)
}

/// Days from 1970 to a date. A year is counted from March on, so that a leap day is its last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year - 719_468
}

const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_counted_from_1970() {
        assert_eq!(moment(UTC_TIME, b"700101000000Z"), Some(0));
        assert_eq!(moment(GENERALIZED_TIME, b"20000229235959Z"), Some(951_868_799));
        assert_eq!(moment(UTC_TIME, b"491231235959Z"), Some(2_524_607_999));
        assert_eq!(moment(GENERALIZED_TIME, b"21000301000000Z"), Some(4_107_542_400));
        for (tag, wrong) in [
            (UTC_TIME, &b"7001010000Z"[..]),
            (UTC_TIME, b"700101000000"),
            (UTC_TIME, b"70010100000aZ"),
            (UTC_TIME, b"701301000000Z"),
            (SEQUENCE, b"700101000000Z"),
        ] {
            assert_eq!(moment(tag, wrong), None);
        }
    }

    #[test]
    fn cut_and_changed_certificates_end_nowhere_or_somewhere() {
        let params = rcgen::CertificateParams::default();
        let key = rcgen::KeyPair::generate().unwrap();
        let whole = params.self_signed(&key).unwrap().der().to_vec();
        assert_eq!(not_after(&whole), Some(67_090_118_400), "the year 4096");
        (0..whole.len()).for_each(|end| assert_eq!(not_after(&whole[..end]), None));
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x85;
            let _ = not_after(&changed);
        }
    }
}
