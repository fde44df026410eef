//! The way in which a view's object is kept in its place: by the view's scope, which holds the frame until
//! it ends, or by a count that the view itself has raised.
//!
//! The two are told apart by a bit of one pointer, so that a view held by its scope costs no access of
//! memory, neither when it is made nor when it is dropped.

use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::protocol::{pin_again, unpin};
use crate::scope_slot::{Cell, Marks};
use crate::sync::AtomicU64;

/// Where the marks of the held frame begin, or, with [`COUNTED`], the cell whose pins count the view.
#[derive(Clone, Copy)]
pub(crate) struct Hold<'s> {
    at: NonNull<u8>,
    cell: PhantomData<&'s Cell>,
}

/// In an address: it is that of a cell.
const COUNTED: usize = 1;

const _: () = assert!(align_of::<Cell>() > COUNTED && align_of::<AtomicU64>() > COUNTED);

impl<'s> Hold<'s> {
    /// The hold on an object whose frame, with these marks, the scope holds.
    #[inline(always)]
    pub(crate) fn by_scope(marks: Marks<'s>) -> Hold<'s> {
        Hold { at: marks.first.cast(), cell: PhantomData }
    }

    /// That of an object outside of the arena that lives as long as the scope. No word of it leads to a mark.
    pub(crate) fn by_owner() -> Hold<'s> {
        Hold { at: NonNull::<AtomicU64>::dangling().cast(), cell: PhantomData }
    }

    /// Takes over a pin.
    #[inline(always)]
    pub(crate) fn counted(cell: &'s Cell) -> Hold<'s> {
        Hold { at: NonNull::from(cell).cast().map_addr(|a| a | COUNTED), cell: PhantomData }
    }

    /// The marks of the object's frame.
    ///
    /// # Safety
    /// The scope holds the frame: this was made by [`Hold::by_scope`].
    #[inline(always)]
    pub(crate) unsafe fn marks(self) -> Marks<'s> {
        debug_assert!(self.at.addr().get() & COUNTED == 0, "the scope holds the frame");
        // SAFETY: as the caller promises.
        unsafe { Marks::new(self.at.cast()) }
    }

    /// For one more view of the same object.
    #[inline(always)]
    pub(crate) fn again(self) -> Hold<'s> {
        if let Some(cell) = self.cell() {
            pin_again(&cell.pins);
        }
        self
    }

    /// Gives the view's pin back, if it has one.
    #[inline(always)]
    pub(crate) fn leave(self) {
        if let Some(cell) = self.cell() {
            unpin(&cell.pins);
        }
    }

    #[inline(always)]
    fn cell(self) -> Option<&'s Cell> {
        if self.at.addr().get() & COUNTED == 0 {
            return None;
        }
        let cell = self.at.as_ptr().map_addr(|a| a & !COUNTED).cast::<Cell>();
        // SAFETY: the address was made of a reference to a cell, which lives for `'s`.
        Some(unsafe { &*cell })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::is_pinned;

    #[test]
    fn only_counted_holds_leave_pins() {
        let cell = Cell::default();
        Hold::by_owner().again().leave();
        pin_again(&cell.pins);
        let counted = Hold::counted(&cell);
        counted.again().leave();
        assert!(is_pinned(&cell.pins));
        counted.leave();
        assert!(!is_pinned(&cell.pins));
    }
}
