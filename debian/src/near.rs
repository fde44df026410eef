//! Names that may have been meant.
//!
//! For "no package `libss3`; did you mean libssl3?". Only spelling is looked at, and the answer depends on
//! the names alone, not on the order they come in.

use std::collections::BTreeSet;

/// At most `n` of `names` that look like `name`, the likeliest first.
///
/// A name is likely if few letters are wrong, missing, spare or swapped with their neighbour (about one in
/// three, at most four), or if it begins with `name` in full. Of equally many mistakes, a mistake further
/// from the beginning weighs less. Capitals are as small letters.
pub fn near<I>(name: &str, names: I, n: usize) -> Vec<String>
where
    I: IntoIterator<Item: AsRef<str>>,
{
    let typed = name.to_ascii_lowercase();
    let typed = &typed.as_bytes()[..typed.len().min(TYPED_BYTES_MAX)];
    let edits_max = (typed.len() / 3).clamp(1, EDITS_MAX);
    let mut rows = Rows::default();
    let mut best: BTreeSet<(Rank, String)> = BTreeSet::new();
    for other in names {
        let other = other.as_ref();
        let candidate = other.to_ascii_lowercase();
        let Some(rank) = rank(typed, candidate.as_bytes(), edits_max, &mut rows) else { continue };
        best.insert((rank, other.to_owned()));
        if best.len() > n {
            best.pop_last();
        }
    }
    best.into_iter().map(|(_, name)| name).collect()
}

/// The unlikeliness of a name; the first part weighs most.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// Twice the edits, less one if the beginning is right.
    cost: usize,
    length_apart: usize,
}

fn rank(typed: &[u8], candidate: &[u8], edits_max: usize, rows: &mut Rows) -> Option<Rank> {
    if typed.is_empty() || candidate.is_empty() {
        return None;
    }
    let length_apart = typed.len().abs_diff(candidate.len());
    let completes = typed.len() >= COMPLETED_BYTES_MIN && candidate.starts_with(typed);
    let edits = match rows.edits(typed, candidate, edits_max) {
        Some(edits) => edits,
        None if completes => edits_max,
        None => return None,
    };
    let prefix_bytes = typed.iter().zip(candidate).take_while(|(a, b)| a == b).count();
    let bonus = usize::from(edits > 0 && prefix_bytes * 2 >= typed.len());
    Some(Rank { cost: 2 * edits - bonus, length_apart })
}

/// Three rows of the table of distances, reused from name to name.
#[derive(Default)]
struct Rows {
    before: Vec<usize>,
    last: Vec<usize>,
    this: Vec<usize>,
}

impl Rows {
    /// Insertions, deletions, replacements and swaps of neighbours that lead from `a` to `b`, if at most
    /// `edits_max`. Only the band of the table within `edits_max` of its diagonal is filled: further out the
    /// distance is greater anyway.
    fn edits(&mut self, a: &[u8], b: &[u8], edits_max: usize) -> Option<usize> {
        if a.len().abs_diff(b.len()) > edits_max {
            return None;
        }
        let far = edits_max + 1;
        for row in [&mut self.before, &mut self.last, &mut self.this] {
            row.clear();
            row.resize(b.len() + 1, far);
        }
        for (j, edits) in self.last.iter_mut().enumerate().take(edits_max + 1) {
            *edits = j;
        }
        for i in 1..=a.len() {
            let (from, to) = (i.saturating_sub(edits_max), (i + edits_max).min(b.len()));
            self.this.fill(far);
            if from == 0 {
                self.this[0] = i;
            }
            let mut least = self.this[0];
            for j in from.max(1)..=to {
                let replaced = self.last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut edits = replaced.min(self.last[j] + 1).min(self.this[j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    edits = edits.min(self.before[j - 2] + 1);
                }
                self.this[j] = edits.min(far);
                least = least.min(edits);
            }
            // A swap reaches back two rows, so one hopeless row alone does not prove that all is lost.
            if least > edits_max && self.last.iter().all(|&edits| edits > edits_max) {
                return None;
            }
            std::mem::swap(&mut self.before, &mut self.last);
            std::mem::swap(&mut self.last, &mut self.this);
        }
        Some(self.last[b.len()]).filter(|&edits| edits <= edits_max)
    }
}

/// More mistakes than this and the name is another name.
const EDITS_MAX: usize = 4;

/// Names that begin as typed are offered from this length on; shorter beginnings fit half of all names.
const COMPLETED_BYTES_MIN: usize = 3;

/// Bytes of a typed name that matter: text beyond the longest possible name does not.
const TYPED_BYTES_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 8] = [
        "libssl3",
        "libssl-dev",
        "libssh2-1",
        "openssl",
        "python3",
        "python3-numpy",
        "python3-numpydoc",
        "zlib1g",
    ];

    /// The textbook recurrence with the whole table.
    fn edits_by_whole_table(a: &[u8], b: &[u8]) -> usize {
        let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
        for i in 0..=a.len() {
            for j in 0..=b.len() {
                if i == 0 || j == 0 {
                    table[i][j] = i + j;
                    continue;
                }
                let replaced = table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                table[i][j] = replaced.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    table[i][j] = table[i][j].min(table[i - 2][j - 2] + 1);
                }
            }
        }
        table[a.len()][b.len()]
    }

    #[test]
    fn the_band_agrees_with_the_whole_table() {
        // Every pair of words over two letters up to length five, and every width of the band.
        let words: Vec<Vec<u8>> = (0..=5_u32)
            .flat_map(|bytes| {
                (0..1_u32 << bytes)
                    .map(move |bits| (0..bytes).map(|i| b'a' + (bits >> i & 1) as u8).collect())
            })
            .collect();
        let mut rows = Rows::default();
        for a in &words {
            for b in &words {
                let whole = edits_by_whole_table(a, b);
                for edits_max in 1..=4 {
                    let expected = (whole <= edits_max).then_some(whole);
                    assert_eq!(rows.edits(a, b, edits_max), expected, "{a:?} {b:?} {edits_max}");
                }
            }
        }
    }

    #[test]
    fn a_slip_of_the_finger_is_forgiven() {
        assert_eq!(near("libss3", NAMES, 1), ["libssl3"]);
        assert_eq!(near("libsls3", NAMES, 1), ["libssl3"]);
        assert_eq!(near("LibSSL3", NAMES, 1), ["libssl3"]);
        assert_eq!(near("pyhton3", NAMES, 1), ["python3"]);
    }

    #[test]
    fn a_beginning_is_completed_shortest_first() {
        assert_eq!(near("python3-num", NAMES, 2), ["python3-numpy", "python3-numpydoc"]);
    }

    #[test]
    fn a_right_beginning_weighs_more() {
        assert_eq!(near("abcdef", ["xbcdef", "abcdex"], 2), ["abcdex", "xbcdef"]);
    }

    #[test]
    fn the_order_of_the_names_does_not_matter() {
        let backwards = NAMES.iter().rev().chain(&NAMES);
        assert_eq!(near("libssl", backwards, 3), near("libssl", NAMES, 3));
    }

    #[test]
    fn nothing_like_it_gives_nothing() {
        assert!(near("qqqqqqqq", NAMES, 5).is_empty());
        assert!(near("", NAMES, 5).is_empty());
        assert!(near("libssl3", NAMES, 0).is_empty());
    }
}
