//! Buffers that are used again.

/// The number of uses since a buffer last needed its extra memory. Memory given back after each use is
/// requested again for the next, and the kernel then fills every page of a mebibyte anew. One `Spare` counts
/// for a buffer, or for two that take turns.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spare {
    /// Uses since the last that needed more than is always kept.
    uses: u32,
}

/// Uses for which memory is kept that none of them needs.
const USES_MAX: u32 = 64;

/// More than this is never kept: what the largest message needs, and its buffer may have grown to.
const BYTES_MAX: usize = 2 << 20;

impl Spare {
    /// Empties a buffer that was used, and gives its memory back but for so many bytes if that is very large
    /// or has long not been needed.
    pub fn empty(&mut self, buffer: &mut Vec<u8>, kept_bytes: usize) {
        let is_needed = buffer.len() > kept_bytes;
        buffer.clear();
        self.uses = if is_needed { 0 } else { self.uses.saturating_add(1) };
        // A small buffer says nothing of the one that it takes turns with: it counts as a use all the same.
        let is_large = buffer.capacity() > kept_bytes;
        if is_large && (self.uses >= USES_MAX || buffer.capacity() > BYTES_MAX) {
            buffer.shrink_to(kept_bytes);
        }
    }

    /// A buffer was used that this one is not told of.
    pub fn is_needed(&mut self) {
        self.uses = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_needed_stays_and_other_goes() {
        let (mut spare, mut buffer) = (Spare::default(), Vec::new());
        for use_ in 0..3 * USES_MAX {
            buffer.resize(if use_ % (USES_MAX - 1) == 0 { 1_000 } else { 10 }, 0);
            spare.empty(&mut buffer, 100);
            assert!(buffer.is_empty() && buffer.capacity() >= 1_000, "use {use_}");
        }
        for _ in 0..USES_MAX {
            buffer.resize(10, 0);
            spare.empty(&mut buffer, 100);
        }
        assert!((10..=100).contains(&buffer.capacity()), "{}", buffer.capacity());
    }

    #[test]
    fn two_buffers_that_take_turns_give_back_what_one_of_them_needed_once() {
        let (mut spare, mut here, mut there) = (Spare::default(), vec![0; 1_000], Vec::new());
        for _ in 0..2 * USES_MAX {
            spare.empty(&mut here, 100);
            std::mem::swap(&mut here, &mut there);
            here.resize(10, 0);
        }
        assert!(here.capacity().max(there.capacity()) <= 100, "{} {}", here.capacity(), there.capacity());
    }

    #[test]
    fn very_large_memory_is_given_back_at_once() {
        let (mut spare, mut buffer) = (Spare::default(), vec![0; BYTES_MAX + 1]);
        spare.empty(&mut buffer, 100);
        assert!(buffer.capacity() <= 100);
        // So is that of a buffer that was needed for something, and cut since.
        buffer = Vec::with_capacity(BYTES_MAX + 1);
        buffer.push(1);
        spare.empty(&mut buffer, 100);
        assert!(buffer.capacity() <= 100);
    }
}
