//! The order of versions, as Debian's policy (section 5.6.12) has it.
//!
//! A version is `[epoch:]upstream[-revision]`. The epoch is compared as a number, then upstream version and
//! revision part by part: a part that is no number by letters before other characters, and `~` before
//! everything, the end included; a number by value. Texts that are no version are ordered too, so a list may
//! say anything.

use std::cmp::Ordering;

/// Compares two versions.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (a_epoch, a_upstream, a_revision) = split(a);
    let (b_epoch, b_upstream, b_revision) = split(b);
    parts(a_epoch, b_epoch)
        .then_with(|| parts(a_upstream, b_upstream))
        .then_with(|| parts(a_revision, b_revision))
}

/// Epoch, upstream version and revision. What is absent is as 0.
fn split(version: &str) -> (&[u8], &[u8], &[u8]) {
    let (epoch, rest) = version.split_once(':').unwrap_or(("0", version));
    let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, "0"));
    (epoch.as_bytes(), upstream.as_bytes(), revision.as_bytes())
}

fn parts(mut a: &[u8], mut b: &[u8]) -> Ordering {
    while !a.is_empty() || !b.is_empty() {
        // The end of a text weighs as much as a digit: both end the part that is no number.
        while weight(a) != 0 || weight(b) != 0 {
            let order = weight(a).cmp(&weight(b));
            if order != Ordering::Equal {
                return order;
            }
            (a, b) = (&a[1..], &b[1..]);
        }
        let (a_number, b_number) = (number(&mut a), number(&mut b));
        let order = a_number.len().cmp(&b_number.len()).then_with(|| a_number.cmp(b_number));
        if order != Ordering::Equal {
            return order;
        }
    }
    Ordering::Equal
}

/// The weight of the first character.
fn weight(text: &[u8]) -> i32 {
    match text.first() {
        Some(b'~') => -1,
        None | Some(b'0'..=b'9') => 0,
        Some(&letter) if letter.is_ascii_alphabetic() => letter.into(),
        Some(&other) => i32::from(other) + 256,
    }
}

/// Takes the number at the beginning, and gives it without leading zeros: so it may have any number of
/// digits.
fn number<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let (digits, rest) = text.split_at(text.iter().take_while(|byte| byte.is_ascii_digit()).count());
    *text = rest;
    &digits[digits.iter().take_while(|&&byte| byte == b'0').count()..]
}

#[cfg(test)]
mod tests {
    use tercel_machine::random::Random;

    use super::*;

    /// In rising order; those of one line are equal.
    const RISING: [&[&str]; 20] = [
        &["~~"],
        &["~~a"],
        &["~"],
        &["", "0", "0:0-0", "00"],
        &["0-0.1"],
        &["1.0~beta1~svc"],
        &["1.0~beta1"],
        &["1.0", "1.0-0", "0:1.0", "1.00"],
        &["1.0-1~bpo11+1"],
        &["1.0-1", "1.0-01"],
        &["1.0-1+b1"],
        &["1.0-1.1"],
        &["1.0-10"],
        &["1.0a"],
        &["1.0+dfsg"],
        &["1.2-3-4"],
        &["1.10"],
        &["99999999999999999999998", "099999999999999999999998"],
        &["99999999999999999999999"],
        &["1:0.1"],
    ];

    fn rising() -> impl Iterator<Item = (usize, &'static str)> {
        RISING.iter().enumerate().flat_map(|(rank, equal)| equal.iter().map(move |version| (rank, *version)))
    }

    #[test]
    fn versions_are_in_debians_order() {
        for (a_rank, a) in rising() {
            for (b_rank, b) in rising() {
                assert_eq!(compare(a, b), a_rank.cmp(&b_rank), "{a:?} and {b:?}");
            }
        }
    }

    #[test]
    fn order_is_that_of_dpkg() {
        let dpkg = |a: &str, relation: &str, b: &str| {
            std::process::Command::new("dpkg").args(["--compare-versions", a, relation, b]).status()
        };
        if dpkg("1", "eq", "1").is_err() {
            return eprintln!("left out: dpkg is not here");
        }
        let mut random = Random::new(1);
        let mut version = || {
            let mut text = |of: &[u8], n: u64| -> String {
                (0..random.below(n)).map(|_| of[random.below(of.len() as u64) as usize] as char).collect()
            };
            let (epoch, upstream, revision) = (text(b"01", 3), text(b"0019aZ~.+-", 8), text(b"01b~+.", 4));
            let epoch = if epoch.is_empty() { epoch } else { epoch + ":" };
            // An empty revision is none of dpkg's.
            let revision = match revision.is_empty() {
                true => ["", "1"][usize::from(upstream.ends_with('-'))].into(),
                false => format!("-{revision}"),
            };
            format!("{epoch}1{upstream}{revision}")
        };
        for _ in 0..300 {
            let (a, b) = (version(), version());
            let relation = match compare(&a, &b) {
                Ordering::Less => "lt",
                Ordering::Equal => "eq",
                Ordering::Greater => "gt",
            };
            assert!(dpkg(&a, relation, &b).unwrap().success(), "not {a} {relation} {b}");
        }
    }
}
