//! Buffers shared by the sides of one contest, hand-written loops and kernels alike, so that none gets luckier pages.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use tilewire::Tensor;
use tilewire::ir::scalar::Number;

/// A slice of `T`, aligned to at least 64 bytes, that is also a [`Tensor`]. Clones are the same memory.
pub struct Buffer<T>(Rc<RefCell<Tensor<T>>>);

impl<T: Number> Buffer<T> {
    /// A buffer of `len` elements, element k being `fill(k)`; every page is touched.
    pub fn new(len: usize, fill: impl FnMut(usize) -> T) -> Buffer<T> {
        Buffer(Rc::new(RefCell::new(Tensor::from_fn(len, fill))))
    }

    /// The elements, to read or write; panics if another side still holds them. No kernel may run in the meantime.
    pub fn slice(&self) -> RefMut<'_, [T]> {
        RefMut::map(self.0.borrow_mut(), |tensor| {
            let start = tensor.memory().start().cast::<T>();
            // SAFETY: the tensor has that many initialised elements there and outlives the borrow. The RefCell allows
            // one such borrow at a time, and sides of a contest take turns, so no kernel touches the elements during
            // it.
            unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), tensor.len()) }
        })
    }

    /// The same memory for a kernel, whose element type may be another of the same size: to a hand-written loop `u16`
    /// are the bits of bf16.
    pub fn tensor<U: Number>(&self) -> Tensor<U> {
        const { assert!(size_of::<T>() == size_of::<U>(), "the element sizes differ") };
        let own = self.0.borrow().clone();
        let (start, len) = (own.memory().start().cast::<U>(), own.len());
        // SAFETY: the memory is aligned to 64 bytes and holds `len` elements; every bit pattern is a value of a number
        // type. The clone keeps it alive, and sides take turns.
        unsafe { Tensor::from_raw(start, len, Arc::new(own.memory().clone())) }
    }
}

impl<T> Clone for Buffer<T> {
    fn clone(&self) -> Buffer<T> {
        Buffer(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewire::Bf16;

    #[test]
    fn a_buffer_is_aligned_filled_and_shared() {
        let buffer = Buffer::new(100, |k| k as u16);
        assert!((buffer.slice().as_ptr() as usize).is_multiple_of(64));
        assert_eq!(buffer.slice().len(), 100);
        assert_eq!(buffer.slice()[99], 99);
        buffer.clone().slice()[0] = 7;
        assert_eq!(buffer.slice()[0], 7);
        let tensor = buffer.tensor::<Bf16>();
        tensor.set(1, Bf16::from_bits(0x3f80));
        assert_eq!((tensor.len(), buffer.slice()[1]), (100, 0x3f80));
    }
}
