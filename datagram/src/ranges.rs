//! Parts of a message that have come.

/// Ranges of bytes, apart and in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    /// Adds a range. Gives the bytes that are new; none if it would leave more than `most` ranges.
    pub(crate) fn add(&mut self, from: u32, to: u32, most: usize) -> Option<u32> {
        // All that it touches become one.
        let first = self.0.partition_point(|(_, end)| *end < from);
        let last = self.0.partition_point(|(begin, _)| *begin <= to);
        if first == last && self.0.len() >= most {
            return None;
        }
        let touched = &self.0[first..last];
        let before: u32 = touched.iter().map(|(begin, end)| end - begin).sum();
        let begin = touched.first().map_or(from, |(begin, _)| from.min(*begin));
        let end = touched.last().map_or(to, |(_, end)| to.max(*end));
        self.0.splice(first..last, [(begin, end)]);
        Some(end - begin - before)
    }

    /// The end of the part that begins at 0.
    pub(crate) fn prefix(&self) -> u32 {
        self.0.first().filter(|(begin, _)| *begin == 0).map_or(0, |(_, end)| *end)
    }

    /// The gaps before the end, at most so many, and the end up to which these are all.
    pub(crate) fn missing(&self, most: usize) -> (Vec<(u32, u32)>, u32) {
        let mut missing = Vec::new();
        let mut last = 0;
        for (begin, end) in &self.0 {
            if *begin > last {
                if missing.len() == most {
                    return (missing, last);
                }
                missing.push((last, *begin));
            }
            last = *end;
        }
        (missing, last)
    }
}

#[cfg(test)]
mod tests {
    use tercel_machine::random::Random;

    use super::*;

    #[test]
    fn ranges_are_those_of_a_bitmap() {
        let mut random = Random::new(3);
        for _ in 0..200 {
            let (mut ranges, mut bitmap) = (Ranges::default(), [false; 60]);
            for _ in 0..random.below(20) {
                let from = random.index(60);
                let to = from + 1 + random.index(60 - from);
                let new = bitmap[from..to].iter().filter(|has| !**has).count();
                assert_eq!(ranges.add(from as u32, to as u32, 64), Some(new as u32));
                bitmap[from..to].fill(true);
                let end = bitmap.iter().rposition(|has| *has).map_or(0, |last| last + 1);
                assert_eq!(ranges.prefix(), bitmap.iter().take_while(|has| **has).count() as u32);
                let (missing, upto) = ranges.missing(64);
                assert_eq!(upto as usize, end);
                let lacks = |at: usize| missing.iter().any(|(a, b)| (*a as usize..*b as usize).contains(&at));
                assert!((0..end).all(|at| lacks(at) != bitmap[at]));
            }
        }
    }

    #[test]
    fn more_ranges_than_allowed_are_refused() {
        let mut ranges = Ranges::default();
        assert_eq!((ranges.add(0, 1, 2), ranges.add(4, 5, 2), ranges.add(8, 9, 2)), (Some(1), Some(1), None));
        assert_eq!(ranges.add(1, 4, 2), Some(3));
        assert_eq!(ranges.add(8, 9, 2), Some(1));
    }
}
