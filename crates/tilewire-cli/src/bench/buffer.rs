//! Buffers that start at a cache line, shared by the sides of one contest so that none gets luckier pages.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;

const LINE: usize = 64;

/// A slice of `T` aligned to 64 bytes. Clones are the same memory.
#[derive(Clone)]
pub struct Buffer<T>(Rc<Storage<T>>);

struct Storage<T> {
    cells: RefCell<Vec<T>>,
    start: usize,
    len: usize,
}

impl<T: Copy + Default> Buffer<T> {
    /// A buffer of `len` elements, element k being `fill(k)`; every page is touched.
    pub fn new(len: usize, mut fill: impl FnMut(usize) -> T) -> Buffer<T> {
        // A vector aligned to its elements, with room to begin at the next line.
        let mut cells = vec![T::default(); len + LINE / size_of::<T>()];
        let start = cells.as_ptr().align_offset(LINE);
        cells[start..start + len].iter_mut().enumerate().for_each(|(k, cell)| *cell = fill(k));
        Buffer(Rc::new(Storage { cells: RefCell::new(cells), start, len }))
    }

    /// The elements, to read or write; panics if another side still holds them.
    pub fn slice(&self) -> RefMut<'_, [T]> {
        RefMut::map(self.0.cells.borrow_mut(), |cells| &mut cells[self.0.start..self.0.start + self.0.len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_filled_and_shared() {
        let buffer = Buffer::new(100, |k| k as u16);
        assert!((buffer.slice().as_ptr() as usize).is_multiple_of(LINE));
        assert_eq!(buffer.slice().len(), 100);
        assert_eq!(buffer.slice()[99], 99);
        buffer.clone().slice()[0] = 7;
        assert_eq!(buffer.slice()[0], 7);
    }
}
