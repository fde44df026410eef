//! Large arrays of zeros that cost memory only where they are touched.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::ptr::NonNull;

use crate::sync::{AtomicU32, AtomicU64};

/// A type whose value may be all zeros.
///
/// # Safety
/// Bytes of zeros are a value of the type, and the type has a size.
pub(crate) unsafe trait Zero {}

// SAFETY: an integer.
unsafe impl Zero for AtomicU32 {}
// SAFETY: an integer.
unsafe impl Zero for AtomicU64 {}

/// `n` values of zeros. Asked from the allocator as such, so that the system gives pages when they are first
/// written.
pub(crate) fn zeroed<T: Zero>(n: usize) -> Box<[T]> {
    if n == 0 {
        return Box::new([]);
    }
    let layout = Layout::array::<T>(n).expect("arrays of a cache fit into memory");
    // SAFETY: the layout has a size: `n` is not 0 and `T` has one.
    let Some(first) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
    let all = NonNull::slice_from_raw_parts(first.cast::<T>(), n);
    // SAFETY: the memory was just allocated for exactly this slice, and zeros are values of `T`.
    unsafe { Box::from_raw(all.as_ptr()) }
}
