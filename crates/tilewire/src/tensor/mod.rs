//! Tensors and scalars: the memory a kernel's arguments name.
//!
//! In: host data or foreign memory. Out: [`Memory`] handles that the hook language turns into parameters and the engines into
//! addresses. Invariant: a handle keeps its memory alive. Knows the element types; must not know kernels or engines.

mod block;
mod memory;
mod memory_left;

pub(crate) use block::Block;
pub use memory::{Between, DeviceBytes, Memory, MixedBanks};
pub use memory_left::{MemoryLeft, NoMemory, Shortage};
// What a tensor's elements are and what memory is for, for folders that see tensors but no kernels.
#[doc(no_inline)]
pub use crate::ir::{Part, Purpose, Type, scalar::Element};

use crate::ir::scalar::AnyBits;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

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
    name: Option<Rc<str>>,
    element: PhantomData<T>,
}

/// A tensor whose element type is a value: what collectives work with below their builders.
#[derive(Clone)]
pub(crate) struct AnyTensor {
    memory: Memory,
    len: usize,
    ty: Type,
    name: Option<Rc<str>>,
}

impl AnyTensor {
    pub(crate) fn zeros(ty: Type, len: usize) -> AnyTensor {
        AnyTensor { memory: Memory::zeroed(len * ty.size()), len, ty, name: None }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn ty(&self) -> Type {
        self.ty
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// As [`Tensor::slice`].
    pub(crate) fn slice(&self, range: Range<usize>) -> AnyTensor {
        assert!(range.start <= range.end && range.end <= self.len, "slice {range:?} of {} elements", self.len);
        let size = self.ty.size();
        let memory = self.memory.part(range.start * size, range.len() * size);
        AnyTensor { memory, len: range.len(), ..self.clone() }
    }
}

impl<T: Element> From<&Tensor<T>> for AnyTensor {
    fn from(tensor: &Tensor<T>) -> Self {
        let Tensor { memory, len, name, .. } = tensor.clone();
        AnyTensor { memory, len, ty: T::TYPE, name }
    }
}

impl<T: Element> Tensor<T> {
    /// All zeros.
    ///
    /// # Panics
    /// When there is no memory; [`try_zeros`](Tensor::try_zeros) says so without, before the system ends the process for it.
    pub fn zeros(len: usize) -> Self {
        let bytes = len.checked_mul(size_of::<T>()).expect("tensor fits the address space");
        Tensor::whole(Memory::zeroed(bytes), len)
    }

    /// All zeros, where the machine and the control group of this process have that much memory left.
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
        Tensor::whole(memory, len)
    }

    /// A tensor in memory of a device, whose bytes are elements: the elements at its start. Host access copies, and waits for what
    /// this thread has launched on the device.
    ///
    /// # Panics
    /// When the memory is not on a device, too small, or not aligned for `T`.
    pub(crate) fn on_device(memory: Memory, len: usize) -> Self {
        let bytes = len.checked_mul(size_of::<T>()).expect("tensor fits the address space");
        assert!(memory.device().is_some() && memory.start().cast::<T>().is_aligned(), "{memory:?} is no device memory");
        Tensor::whole(memory.part(0, bytes), len)
    }

    /// A tensor over memory of a transport, on a device or the host's: the elements at its start. Host access to memory that is shared with
    /// peers is atomic, element by element, so an element that a peer writes meanwhile is the old or the new one.
    ///
    /// # Panics
    /// When the memory is too small, or not aligned for `T`.
    pub(crate) fn over(memory: Memory, len: usize) -> Self {
        let bytes = len.checked_mul(size_of::<T>()).expect("tensor fits the address space");
        assert!(memory.start().cast::<T>().is_aligned(), "{memory:?} is not aligned for {}", T::TYPE);
        Tensor::whole(memory.part(0, bytes), len)
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
        Tensor { memory, len: range.len(), ..self.clone() }
    }

    fn whole(memory: Memory, len: usize) -> Self {
        Tensor { memory, len, name: None, element: PhantomData }
    }

    /// This handle with a name, for messages and for the text of a kernel: that of a tensor which a hook captures.
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

    /// Its name, where it has one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Element `i`.
    ///
    /// # Panics
    /// When there is no such element.
    pub fn get(&self, i: usize) -> T {
        assert!(i < self.len, "element {i} of a tensor of {}", self.len);
        // SAFETY: the element is inside.
        unsafe { self.read(i) }
    }

    /// Sets element `i`.
    ///
    /// # Panics
    /// When there is no such element.
    pub fn set(&self, i: usize, value: T) {
        assert!(i < self.len, "element {i} of a tensor of {}", self.len);
        if self.memory.device().is_some() {
            let size = size_of::<T>();
            return self.memory.write_device(i * size, &value.to_bits().to_le_bytes()[..size]);
        }
        if self.memory.is_shared() {
            // SAFETY: the element is inside.
            return unsafe { self.write_shared(i, value.to_bits()) };
        }
        // SAFETY: the element is inside and aligned for T. Nobody holds a reference to it: `cells` gives `Cell`s, which
        // allow writes through other handles of this thread; handles never leave the thread, and kernels run only
        // inside calls made on this thread.
        unsafe { self.start().add(i).write(value) }
    }

    /// Sets every element.
    pub fn fill(&self, value: T) {
        if self.memory.device().is_some() {
            return self.write_device(std::iter::repeat_n(value, self.len));
        }
        if self.memory.is_shared() {
            // SAFETY: every element is inside.
            return (0..self.len).for_each(|i| unsafe { self.write_shared(i, value.to_bits()) });
        }
        // SAFETY: as in `set`, for every element.
        (0..self.len).for_each(|i| unsafe { self.start().add(i).write(value) });
    }

    /// A copy of all elements.
    pub fn to_vec(&self) -> Vec<T> {
        if self.memory.device().is_some() {
            return self.memory.read().chunks_exact(size_of::<T>()).map(element).collect();
        }
        if self.memory.is_shared() {
            // SAFETY: every element is inside, and the memory is shared.
            return (0..self.len).map(|i| unsafe { self.read_shared(i) }).collect();
        }
        // SAFETY: every element is inside, and the memory is this rank's alone.
        (0..self.len).map(|i| unsafe { self.read_own(i) }).collect()
    }

    /// Overwrites all elements.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy_from(&self, data: &[T]) {
        assert_eq!(data.len(), self.len, "copy of {} elements into a tensor of {}", data.len(), self.len);
        if self.memory.device().is_some() {
            return self.write_device(data.iter().copied());
        }
        if self.memory.is_shared() {
            // SAFETY: every element is inside: the lengths are equal.
            return data.iter().enumerate().for_each(|(i, x)| unsafe { self.write_shared(i, x.to_bits()) });
        }
        // SAFETY: as in `set`, for every element: the lengths are equal. Foreign memory may be where `data` is.
        unsafe { std::ptr::copy(data.as_ptr(), self.start(), self.len) }
    }

    /// Overwrites all elements of a tensor on a device, in one copy.
    fn write_device(&self, elements: impl Iterator<Item = T>) {
        let mut bytes = Vec::with_capacity(self.memory.bytes());
        elements.for_each(|x| bytes.extend_from_slice(&x.to_bits().to_le_bytes()[..size_of::<T>()]));
        self.memory.write_device(0, &bytes);
    }

    /// The elements in place, for host code: a cell can be read and written through any handle. Not for `bool`, of which not every byte
    /// is a value.
    ///
    /// # Panics
    /// For a tensor in a window, which peers may write at any time, or on a device: use [`get`](Tensor::get) or [`to_vec`](Tensor::to_vec).
    pub fn cells(&self) -> &[Cell<T>]
    where
        T: AnyBits,
    {
        assert!(!self.memory.is_shared(), "a window has no cells, since peers may write it: use get, set or to_vec");
        assert!(self.memory.device().is_none(), "a tensor on a device has no cells: use get, set or to_vec");
        // SAFETY: `memory` holds `len` initialised elements (zeroed, or promised by `from_raw`), aligned for T, and any bytes
        // are elements; the handle keeps them alive for the borrow. `Cell<T>` has T's layout and allows writes through
        // other handles of this thread; handles never leave the thread, and kernels run only inside calls made on it.
        unsafe { std::slice::from_raw_parts(self.start().cast::<Cell<T>>(), self.len) }
    }

    fn start(&self) -> *mut T {
        self.memory.start().as_ptr().cast()
    }

    /// Element `i`, from its bits: a kernel may have left any byte where a `bool` is.
    ///
    /// # Safety
    /// There is such an element.
    unsafe fn read(&self, i: usize) -> T {
        if self.memory.device().is_some() {
            let size = size_of::<T>();
            return element(&self.memory.part(i * size, size).read());
        }
        // SAFETY: the element is inside, and of the one kind or the other.
        unsafe { if self.memory.is_shared() { self.read_shared(i) } else { self.read_own(i) } }
    }

    /// Element `i` of a tensor in memory that nobody else writes.
    ///
    /// # Safety
    /// There is such an element, in memory of the host that is not shared.
    unsafe fn read_own(&self, i: usize) -> T {
        let at = self.start().wrapping_add(i);
        // SAFETY: the element is inside, initialised and aligned, and read as an integer of its size.
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
    /// There is such an element, in shared memory.
    unsafe fn read_shared(&self, i: usize) -> T {
        let at = self.start().wrapping_add(i);
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
    /// There is such an element.
    unsafe fn write_shared(&self, i: usize, bits: u64) {
        let at = self.start().wrapping_add(i);
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

/// The element of these bytes.
fn element<T: Element>(bytes: &[u8]) -> T {
    let mut bits = [0; 8];
    bits[..bytes.len()].copy_from_slice(bytes);
    T::from_bits(u64::from_le_bytes(bits))
}

impl<T> Clone for Tensor<T> {
    fn clone(&self) -> Self {
        Tensor { memory: self.memory.clone(), len: self.len, name: self.name.clone(), element: PhantomData }
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
