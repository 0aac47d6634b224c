//! Tensors and scalars: the memory a kernel's arguments name.
//!
//! In: host data or foreign memory. Out: [`Memory`] handles that the hook language turns into parameters and the engines into
//! addresses. Invariant: a handle keeps its memory alive. Knows the element types; must not know kernels or engines.

mod memory;

pub use memory::Memory;

use crate::ir::scalar::Element;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;

/// A one-dimensional array of elements, shared by every clone of the handle.
///
/// ```
/// use tilewire::Tensor;
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0]);
/// let same = x.clone();
/// same.set(0, 10.0);
/// assert_eq!(x.to_vec(), [10.0, 2.0, 3.0]);
/// ```
pub struct Tensor<T> {
    memory: Memory,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Tensor<T> {
    /// All zeros.
    pub fn zeros(len: usize) -> Self {
        let bytes = len.checked_mul(size_of::<T>()).expect("tensor fits the address space");
        Tensor { memory: Memory::zeroed(bytes), len, element: PhantomData }
    }

    /// A copy of a slice.
    pub fn from_slice(data: &[T]) -> Self {
        let tensor = Tensor::zeros(data.len());
        tensor.copy_from(data);
        tensor
    }

    /// Element `i` is `f(i)`.
    pub fn from_fn(len: usize, mut f: impl FnMut(usize) -> T) -> Self {
        let tensor = Tensor::zeros(len);
        tensor.cells().iter().enumerate().for_each(|(i, cell)| cell.set(f(i)));
        tensor
    }

    /// Memory of somebody else; `keep` is dropped with the last handle.
    ///
    /// # Safety
    /// `start` must be aligned for `T` and `len` elements from it valid (initialised, readable, writable) until `keep` is
    /// dropped; while tilewire runs a kernel that has it nobody else may touch it, nor from another thread at any time
    /// a handle on this thread exists.
    pub unsafe fn from_raw(start: NonNull<T>, len: usize, keep: Rc<dyn std::any::Any>) -> Self {
        assert!(start.is_aligned(), "tensor start {start:p} is not aligned for {}", T::TYPE);
        let bytes = len.checked_mul(size_of::<T>()).expect("tensor fits the address space");
        // SAFETY: the caller promises what `foreign` asks.
        let memory = unsafe { Memory::foreign(start.cast(), bytes, keep) };
        Tensor { memory, len, element: PhantomData }
    }

    /// Elements `range` of this tensor; shares its memory.
    ///
    /// # Panics
    /// When the range does not lie inside.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "slice {range:?} of a tensor of {} elements",
            self.len
        );
        let size = size_of::<T>();
        let memory = self.memory.part(range.start * size, range.len() * size);
        Tensor { memory, len: range.len(), element: PhantomData }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements, for host code: a cell can be read and written through any handle.
    pub fn cells(&self) -> &[Cell<T>] {
        // SAFETY: `memory` holds `len` initialised elements (zeroed, or promised by `from_raw`), aligned for T; the handle keeps
        // them alive for the borrow. `Cell<T>` has T's layout and allows writes through other handles of this thread;
        // handles never leave the thread, and kernels run only inside calls made on this thread.
        unsafe { std::slice::from_raw_parts(self.memory.start().as_ptr().cast::<Cell<T>>(), self.len) }
    }

    /// Element `i`.
    pub fn get(&self, i: usize) -> T {
        self.cells()[i].get()
    }

    /// Sets element `i`.
    pub fn set(&self, i: usize, value: T) {
        self.cells()[i].set(value);
    }

    /// Sets every element.
    pub fn fill(&self, value: T) {
        self.cells().iter().for_each(|cell| cell.set(value));
    }

    /// A copy of all elements.
    pub fn to_vec(&self) -> Vec<T> {
        self.cells().iter().map(Cell::get).collect()
    }

    /// Overwrites all elements.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy_from(&self, data: &[T]) {
        assert_eq!(data.len(), self.len, "copy of {} elements into a tensor of {}", data.len(), self.len);
        self.cells().iter().zip(data).for_each(|(cell, &value)| cell.set(value));
    }

    /// The memory behind it.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl<T> Clone for Tensor<T> {
    fn clone(&self) -> Self {
        Tensor { memory: self.memory.clone(), len: self.len, element: PhantomData }
    }
}

impl<T: Element> fmt::Debug for Tensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor<{}>[{}]", T::TYPE, self.len)
    }
}

/// A number that a kernel reads when a launch starts: changing it never recompiles.
///
/// ```
/// use tilewire::Scalar;
/// let scale = Scalar::new(2.0f32);
/// scale.set(3.0);
/// assert_eq!(scale.get(), 3.0);
/// ```
#[derive(Clone, Debug)]
pub struct Scalar<T>(Tensor<T>)
where
    T: Element;

impl<T: Element> Scalar<T> {
    /// A scalar with a first value.
    pub fn new(value: T) -> Self {
        Scalar(Tensor::from_slice(&[value]))
    }

    /// The value the next launch will read.
    pub fn get(&self) -> T {
        self.0.get(0)
    }

    /// Changes the value for the next launch.
    pub fn set(&self, value: T) {
        self.0.set(0, value);
    }

    /// The memory behind it.
    pub fn memory(&self) -> &Memory {
        self.0.memory()
    }
}

/// What a launch binds to one parameter of a kernel, in the order of the parameters.
#[derive(Clone, Debug)]
pub enum Arg {
    /// One memory per bank.
    Buffer(Vec<Memory>),
    /// The element a scalar is read from.
    Scalar(Memory),
    /// One memory per bank of slots.
    Slots(Vec<Memory>),
    /// The descriptor ring of a network proxy.
    Queue(Memory),
}
