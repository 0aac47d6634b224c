//! Tensors and scalars: the memory behind a kernel's arguments.
//!
//! In: host data or foreign memory. Out: [`Memory`] handles that the hook language turns into parameters and the
//! engines into addresses. Invariants: a handle keeps its memory alive; a thread's own bytes are touched on that thread
//! alone (`access.rs`). Knows the element types; must not know kernels or engines.

mod access;
#[cfg(feature = "ndarray")]
mod array;
mod block;
#[cfg(feature = "dlpack")]
pub mod dlpack;
mod foreign;
mod grid;
mod memory;
mod memory_left;
mod reach;
mod ring;
mod rows;
mod strided;

pub use access::{AccessError, bytes_of};
pub(crate) use access::{HomeThread, copy_bytes, overwrite};
pub(crate) use block::Block;
pub use foreign::Foreign;
pub(crate) use grid::Grid;
pub use grid::{Axis, ShapeError};
pub(crate) use memory::Guard;
pub use memory::{Between, DeviceBytes, Memory, MixedBanks};
pub use memory_left::{MemoryLeft, NoMemory, Shortage};
pub use reach::ReachableFrom;
pub(crate) use ring::push;
pub use ring::{BadEntry, Queue, Ring};
// Element types and purposes of memory, for folders that see tensors but no kernels.
pub(crate) use crate::ir::NoticeKind;
#[doc(no_inline)]
pub(crate) use crate::ir::matching::COUNT_SHIFT;
#[cfg(test)]
pub(crate) use crate::ir::ring::WORDS;
pub(crate) use crate::ir::ring::{Posted, PostedNotice, PostedSpan};
pub use crate::ir::{Part, Purpose, Type, scalar::Element};

use crate::ir::scalar::AnyBits;
use memory::Access;
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// An array of elements, shared by every clone of the handle: one-dimensional, or rows and columns with a distance
/// between rows.
///
/// Host code reads and writes its elements on the thread that made it. A launch from this thread has returned before
/// the next line runs, so host access needs no lock. Elements on a device are copied. Methods that return no error
/// panic if such a copy fails; those that begin with `try_` return the error.
///
/// ```
/// use tilewire::Tensor;
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0]);
/// let same = x.clone();
/// same.set(0, 10.0);
/// assert_eq!(x.to_vec(), [10.0, 2.0, 3.0]);
/// ```
///
/// Rows and columns are views of the same memory. A collective takes them as they are:
/// ```
/// use tilewire::Tensor;
/// let matrix = Tensor::from_fn(12, |i| i as f32).reshape(3, 4)?;
/// let middle = matrix.columns(1..3);
/// assert_eq!(middle.to_vec(), [1.0, 2.0, 5.0, 6.0, 9.0, 10.0]);
/// assert_eq!((middle.shape(), middle.row_stride(), middle.is_contiguous()), ([3, 2], 4, false));
/// # Ok::<(), tilewire::tensor::ShapeError>(())
/// ```
///
/// It stays on its thread; its [`memory`](Tensor::memory) need not:
/// ```compile_fail,E0277
/// let x = tilewire::Tensor::<f32>::zeros(4);
/// std::thread::scope(|threads| _ = threads.spawn(|| x.get(0))); // not `Sync`
/// ```
/// ```compile_fail,E0277
/// let x = tilewire::Tensor::<f32>::zeros(4);
/// std::thread::spawn(move || x.get(0)); // not `Send`
/// ```
pub struct Tensor<T> {
    memory: Memory,
    grid: Grid,
    name: Option<Rc<str>>,
    element: PhantomData<T>,
    /// Neither `Send` nor `Sync`: plain host access relies on that (`access.rs`).
    on_this_thread: PhantomData<*const ()>,
}

/// A tensor whose element type is a value. Collectives use it below their builders.
#[derive(Clone)]
pub(crate) struct AnyTensor {
    memory: Memory,
    grid: Grid,
    ty: Type,
    name: Option<Rc<str>>,
}

impl AnyTensor {
    pub(crate) fn zeros(ty: Type, len: usize) -> AnyTensor {
        AnyTensor { memory: Memory::zeroed(len * ty.size()), grid: Grid::flat(len), ty, name: None }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn len(&self) -> usize {
        self.grid.len()
    }

    /// Its rows and columns.
    pub(crate) fn grid(&self) -> Grid {
        self.grid
    }

    pub(crate) fn ty(&self) -> Type {
        self.ty
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// As [`Tensor::slice`].
    pub(crate) fn slice(&self, range: Range<usize>) -> AnyTensor {
        self.at(self.grid.sliced(&range))
    }

    /// Neighbouring rows or columns.
    pub(crate) fn part(&self, axis: Axis, range: &Range<usize>) -> AnyTensor {
        self.at(self.grid.part(axis, range))
    }

    /// The same rows and columns in other memory, which must have as many bytes.
    pub(crate) fn moved_to(&self, memory: Memory) -> AnyTensor {
        AnyTensor { memory, ..self.clone() }
    }

    fn at(&self, (first, grid): (usize, Grid)) -> AnyTensor {
        AnyTensor { memory: grid.memory(&self.memory, first, self.ty.size()), grid, ..self.clone() }
    }
}

impl<T: Element> From<&Tensor<T>> for AnyTensor {
    fn from(tensor: &Tensor<T>) -> Self {
        let Tensor { memory, grid, name, .. } = tensor.clone();
        AnyTensor { memory, grid, ty: T::TYPE, name }
    }
}

impl<T: Element> Tensor<T> {
    /// All zeros.
    ///
    /// # Panics
    /// If there is not enough memory. [`try_zeros`](Tensor::try_zeros) returns an error instead, before the system
    /// kills the process.
    pub fn zeros(len: usize) -> Self {
        let bytes = len.checked_mul(size_of::<T>()).expect("tensor fits the address space");
        Tensor::whole(Memory::zeroed(bytes), len)
    }

    /// All zeros, if the machine and the control group of this process have that much memory left.
    ///
    /// ```
    /// use tilewire::Tensor;
    /// assert_eq!(Tensor::<f32>::try_zeros(3)?.to_vec(), [0.0; 3]);
    /// let error = Tensor::<f32>::try_zeros(1 << 50).unwrap_err();
    /// assert!(error.to_string().contains("no memory for a tensor of 4503599627370496 bytes"));
    /// # Ok::<(), tilewire::tensor::NoMemory>(())
    /// ```
    pub fn try_zeros(len: usize) -> Result<Self, NoMemory> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(NoMemory { bytes: usize::MAX, shortage: None })?;
        Ok(Tensor::whole(Memory::try_zeroed(bytes)?, len))
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
        (0..len).for_each(|i| tensor.set(i, f(i)));
        tensor
    }

    /// Foreign memory; `keep` is dropped with the last handle.
    ///
    /// # Safety
    /// `start` must be aligned for `T`, and `len` elements from it must be valid (initialised, readable, writable)
    /// until `keep` is dropped. While a handle exists, no other thread may touch them. While tilewire runs a kernel
    /// that has them, nobody else may.
    pub unsafe fn from_raw(start: NonNull<T>, len: usize, keep: Arc<dyn Any + Send + Sync>) -> Self {
        assert!(start.is_aligned(), "tensor start {start:p} is not aligned for {}", T::TYPE);
        let bytes = len.checked_mul(size_of::<T>()).expect("tensor fits the address space");
        // SAFETY: the caller promises what `foreign` requires.
        let memory = unsafe { Memory::foreign(start.cast(), bytes, keep) };
        Tensor::whole(memory, len)
    }

    /// A tensor over the start of a transport's memory, on a device or in the host's reach. Host access to memory
    /// shared with peers is atomic per element, so an element being written is either the old or the new one. Host
    /// access to device memory copies, and waits for everything this thread has launched there.
    ///
    /// # Panics
    /// If the memory is another thread's own, too small, or not aligned for `T`.
    pub(crate) fn over(memory: Memory, len: usize) -> Self {
        let bytes = len.checked_mul(size_of::<T>()).expect("tensor fits the address space");
        assert!(memory.start().cast::<T>().is_aligned(), "{memory:?} is not aligned for {}", T::TYPE);
        // A user's own transport may return a handle that came from elsewhere.
        assert!(memory.home().is_none_or(HomeThread::is_here), "{memory:?} is another thread's own");
        Tensor::whole(memory.part(0, bytes), len)
    }

    /// Elements `range` of this tensor, sharing its memory, in one dimension. Of a tensor with gaps between its rows,
    /// the range may be whole rows or a part of one.
    ///
    /// # Panics
    /// If the range does not lie inside, or crosses a gap.
    pub fn slice(&self, range: Range<usize>) -> Self {
        self.at(self.grid.sliced(&range))
    }

    /// A tensor over memory that is not another thread's own.
    fn whole(memory: Memory, len: usize) -> Self {
        let grid = Grid::flat(len);
        Tensor { memory, grid, name: None, element: PhantomData, on_this_thread: PhantomData }
    }

    /// The elements of a part of its rows and columns, with the place of the first one.
    fn at(&self, (first, grid): (usize, Grid)) -> Self {
        Tensor { memory: grid.memory(&self.memory, first, size_of::<T>()), grid, ..self.clone() }
    }

    /// This handle with a name, for messages and for the text of a kernel whose hook captures the tensor.
    ///
    /// ```
    /// use tilewire::{Tensor, map, prelude::*};
    /// let (out, inp) = (Tensor::<f32>::zeros(64), Tensor::<f32>::zeros(64));
    /// let bias = Tensor::<f32>::zeros(8).named("bias");
    /// let short = map(&out, &inp).produce(|c| c.input.flat().load(c.pos()) + bias.at(c.pos())).run();
    /// assert!(short.unwrap_err().to_string().contains("leaves bias, which has 8"));
    /// ```
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Its name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.grid.len()
    }

    /// Its rows and columns.
    pub(crate) fn grid(&self) -> Grid {
        self.grid
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `i`.
    ///
    /// # Panics
    /// If there is no such element, or a copy from a device fails.
    pub fn get(&self, i: usize) -> T {
        copied(self.try_get(i))
    }

    /// As [`get`](Tensor::get), but returns the error if a copy from a device fails.
    ///
    /// # Panics
    /// If there is no such element.
    pub fn try_get(&self, i: usize) -> Result<T, AccessError> {
        assert!(i < self.len(), "element {i} of a tensor of {}", self.len());
        access::here(&self.memory)?;
        match self.memory.access() {
            // SAFETY: the element is inside, in memory of this thread.
            Access::Own(_) => Ok(unsafe { self.read_own(i) }),
            // SAFETY: the element is inside, in shared memory.
            Access::Shared => Ok(unsafe { self.read_shared(i) }),
            Access::Device(_) => Ok(element(&bytes_of(self.slice(i..i + 1).memory())?)),
        }
    }

    /// Sets element `i`.
    ///
    /// # Panics
    /// If there is no such element, or a copy to a device fails.
    pub fn set(&self, i: usize, value: T) {
        copied(self.try_set(i, value));
    }

    /// As [`set`](Tensor::set), but returns the error if a copy to a device fails.
    ///
    /// # Panics
    /// If there is no such element.
    pub fn try_set(&self, i: usize, value: T) -> Result<(), AccessError> {
        assert!(i < self.len(), "element {i} of a tensor of {}", self.len());
        self.written()?;
        match self.memory.access() {
            // SAFETY: the element is inside and aligned for T. Nobody holds a reference to it: `cells` returns `Cell`s,
            // which allow writes through other handles of this thread. Tensors never leave this thread. Kernels run on
            // the memory in calls of this thread, and those of peers only while this thread is in such a call
            // (`access`).
            Access::Own(_) => unsafe { self.start().add(self.grid.place(i)).write(value) },
            // SAFETY: the element is inside, in shared memory.
            Access::Shared => unsafe { self.write_shared(i, value.to_bits()) },
            Access::Device(_) => return self.slice(i..i + 1).try_write([value].into_iter()),
        }
        Ok(())
    }

    /// Sets every element.
    ///
    /// # Panics
    /// If a copy to a device fails.
    pub fn fill(&self, value: T) {
        copied(self.try_fill(value));
    }

    /// As [`fill`](Tensor::fill), but returns the error if a copy to a device fails.
    pub fn try_fill(&self, value: T) -> Result<(), AccessError> {
        self.try_write(std::iter::repeat_n(value, self.len()))
    }

    /// A copy of all elements.
    ///
    /// # Panics
    /// If a copy from a device fails.
    pub fn to_vec(&self) -> Vec<T> {
        copied(self.try_to_vec())
    }

    /// As [`to_vec`](Tensor::to_vec), but returns the error if a copy from a device fails.
    pub fn try_to_vec(&self) -> Result<Vec<T>, AccessError> {
        access::here(&self.memory)?;
        match self.memory.access() {
            // SAFETY: every element is inside, in memory of this thread.
            Access::Own(_) => Ok((0..self.len()).map(|i| unsafe { self.read_own(i) }).collect()),
            // SAFETY: every element is inside, in shared memory.
            Access::Shared => Ok((0..self.len()).map(|i| unsafe { self.read_shared(i) }).collect()),
            Access::Device(_) => {
                let row: Vec<T> = bytes_of(&self.memory)?.chunks_exact(size_of::<T>()).map(element).collect();
                Ok(if self.grid.is_expanded() { row.repeat(self.grid.rows) } else { row })
            }
        }
    }

    /// Overwrites all elements.
    ///
    /// # Panics
    /// If the lengths differ, or a copy to a device fails.
    pub fn copy_from(&self, data: &[T]) {
        copied(self.try_copy_from(data));
    }

    /// As [`copy_from`](Tensor::copy_from), but returns the error if a copy to a device fails.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn try_copy_from(&self, data: &[T]) -> Result<(), AccessError> {
        assert_eq!(data.len(), self.len(), "copy of {} elements into a tensor of {}", data.len(), self.len());
        self.written()?;
        if let Access::Own(_) = self.memory.access()
            && self.is_contiguous()
        {
            // SAFETY: as in `try_set`, for every element: the lengths are equal. Foreign memory may overlap `data`.
            unsafe { std::ptr::copy(data.as_ptr(), self.start(), self.len()) };
            return Ok(());
        }
        self.try_write(data.iter().copied())
    }

    /// Overwrites all elements with `len` new ones, on a device in one copy.
    fn try_write(&self, elements: impl Iterator<Item = T>) -> Result<(), AccessError> {
        self.written()?;
        match self.memory.access() {
            Access::Own(_) => (0..self.len()).zip(elements).for_each(|(i, x)| {
                // SAFETY: as in `try_set`: `zip` ends with the tensor.
                unsafe { self.start().add(self.grid.place(i)).write(x) }
            }),
            Access::Shared => {
                // SAFETY: every element is inside, in shared memory: `zip` ends with the tensor.
                (0..self.len()).zip(elements).for_each(|(i, x)| unsafe { self.write_shared(i, x.to_bits()) })
            }
            Access::Device(device) => {
                let mut bytes = Vec::with_capacity(self.memory.covered());
                elements.for_each(|x| bytes.extend_from_slice(&x.to_bits().to_le_bytes()[..size_of::<T>()]));
                access::write_to_device(&self.memory, &**device, &bytes)?;
            }
        }
        Ok(())
    }

    /// Refuses to write one element through several places, or memory that its owner has taken back.
    fn written(&self) -> Result<(), AccessError> {
        access::here(&self.memory)?;
        match self.grid.is_expanded() {
            true => Err(AccessError::Expanded { rows: self.grid.rows }),
            false => Ok(()),
        }
    }

    /// The elements in place, for host code: a cell can be read and written through any handle. Not for `bool`, since
    /// not every byte is a valid one.
    ///
    /// # Panics
    /// For a tensor in a window, allocated or registered, which peers may write at any time, or on a device: use
    /// [`get`](Tensor::get) or [`to_vec`](Tensor::to_vec). For one that was [lent](Tensor::lend). For one whose rows
    /// have gaps or repeat: take one of its [`rows`](Tensor::rows).
    pub fn cells(&self) -> &[Cell<T>]
    where
        T: AnyBits,
    {
        assert!(
            self.is_contiguous(),
            "{self:?} has no cells: its rows are not neighbours; use the cells of rows(k..k + 1)"
        );
        // The cells could outlive the loan.
        assert!(!self.memory.is_lent(), "a tensor that was lent has no cells: use get, set or to_vec");
        // Memory with cells never becomes shared: see `Memory::share` and `transport::loans`.
        self.memory.note_cells();
        match self.memory.access() {
            // SAFETY: `memory` holds `len` initialised elements (zeroed, or promised by `from_raw`), aligned for T, and
            // any bytes are valid elements. The handle keeps them alive for the borrow. `Cell<T>` has T's layout and
            // allows writes through other handles of this thread. A reference to cells cannot leave this thread either.
            // Kernels run on the memory in calls of this thread, and those of peers only while this thread is in such a
            // call: memory with cells is never exposed (`transport::loans`).
            Access::Own(_) => unsafe { std::slice::from_raw_parts(self.start().cast::<Cell<T>>(), self.len()) },
            Access::Shared if self.memory.is_exposed() => {
                panic!("{self:?} has no cells: a launch failed, and a peer may still use the tensor; drop it")
            }
            Access::Shared => panic!("a window has no cells, since peers may write it: use get, set or to_vec"),
            Access::Device(_) => panic!("a tensor on a device has no cells: use get, set or to_vec"),
        }
    }

    fn start(&self) -> *mut T {
        self.memory.start().as_ptr().cast()
    }

    /// Element `i` of a tensor in this thread's own memory, from its bits: a kernel may have left any byte in place of
    /// a `bool`.
    ///
    /// # Safety
    /// There must be such an element, in this thread's own memory.
    unsafe fn read_own(&self, i: usize) -> T {
        let at = self.start().wrapping_add(self.grid.place(i));
        // SAFETY: the element is inside, initialised and aligned, and read as an integer of its size; nobody writes it
        // now, as in `try_set`.
        T::from_bits(unsafe {
            match size_of::<T>() {
                1 => u64::from(at.cast::<u8>().read()),
                2 => u64::from(at.cast::<u16>().read()),
                4 => u64::from(at.cast::<u32>().read()),
                _ => at.cast::<u64>().read(),
            }
        })
    }

    /// Element `i` of a tensor in shared memory.
    ///
    /// # Safety
    /// There must be such an element, in shared memory.
    unsafe fn read_shared(&self, i: usize) -> T {
        let at = self.start().wrapping_add(self.grid.place(i));
        // SAFETY: the element is inside, initialised and aligned; peers' writes meet an atomic load, and nobody holds a
        // reference (`cells` refuses shared memory).
        T::from_bits(unsafe {
            match size_of::<T>() {
                1 => u64::from(AtomicU8::from_ptr(at.cast()).load(Relaxed)),
                2 => u64::from(AtomicU16::from_ptr(at.cast()).load(Relaxed)),
                4 => u64::from(AtomicU32::from_ptr(at.cast()).load(Relaxed)),
                _ => AtomicU64::from_ptr(at.cast()).load(Relaxed),
            }
        })
    }

    /// Sets the bits of element `i` of a tensor in shared memory.
    ///
    /// # Safety
    /// There must be such an element, in shared memory.
    unsafe fn write_shared(&self, i: usize, bits: u64) {
        let at = self.start().wrapping_add(self.grid.place(i));
        // SAFETY: as in `read_shared`.
        unsafe {
            match size_of::<T>() {
                1 => AtomicU8::from_ptr(at.cast()).store(bits as u8, Relaxed),
                2 => AtomicU16::from_ptr(at.cast()).store(bits as u16, Relaxed),
                4 => AtomicU32::from_ptr(at.cast()).store(bits as u32, Relaxed),
                _ => AtomicU64::from_ptr(at.cast()).store(bits, Relaxed),
            }
        }
    }

    /// The memory behind it.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}

/// The result of a copy, for methods that panic if it failed.
fn copied<R>(result: Result<R, AccessError>) -> R {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// The element with these bytes.
fn element<T: Element>(bytes: &[u8]) -> T {
    let mut bits = [0; 8];
    bits[..bytes.len()].copy_from_slice(bytes);
    T::from_bits(u64::from_le_bytes(bits))
}

impl<T> Clone for Tensor<T> {
    fn clone(&self) -> Self {
        let (memory, name) = (self.memory.clone(), self.name.clone());
        Tensor { memory, grid: self.grid, name, element: PhantomData, on_this_thread: PhantomData }
    }
}

impl<T: Element> fmt::Debug for Tensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.grid {
            Grid { rows: 1, cols, .. } => write!(f, "Tensor<{}>[{cols}]", T::TYPE),
            Grid { rows, cols, stride } if stride == cols => write!(f, "Tensor<{}>[{rows}, {cols}]", T::TYPE),
            Grid { rows, cols, stride } => write!(f, "Tensor<{}>[{rows}, {cols}], rows {stride} apart", T::TYPE),
        }
    }
}

/// A number that a kernel reads when a launch starts. Changing it never recompiles.
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
    /// A scalar with an initial value.
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

/// What a launch binds to one parameter of a kernel. Arguments are in parameter order.
#[derive(Clone, Debug)]
pub enum Arg {
    /// One memory per bank.
    Buffer(Vec<Memory>),
    /// The element that holds a scalar.
    Scalar(Memory),
    /// One memory per bank of slots.
    Slots(Vec<Memory>),
    /// The descriptor ring of a network proxy.
    Queue(Queue),
}

#[cfg(test)]
mod tests;
