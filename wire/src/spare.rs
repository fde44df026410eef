//! Buffers that are used again.

/// How long a buffer has been larger than it had to be. Memory that is given back after each use is asked for again for the next:
/// of a mebibyte the kernel then fills every page anew.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spare {
    /// Uses since the last that needed more than is always kept.
    uses: u32,
}

/// Uses for which memory is kept that none of them needs.
const USES_MAX: u32 = 64;

impl Spare {
    /// Empties a buffer that was used, and gives its memory back but for so many bytes if it has long not been needed.
    pub fn empty(&mut self, buffer: &mut Vec<u8>, kept_bytes: usize) {
        let needed = buffer.len() > kept_bytes;
        buffer.clear();
        if needed || buffer.capacity() <= kept_bytes {
            self.uses = 0;
            return;
        }
        self.uses += 1;
        if self.uses >= USES_MAX {
            buffer.shrink_to(kept_bytes);
            self.uses = 0;
        }
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
}
