//! Tensors over existing memory, in place.
//!
//! ```text
//!                     freed by                                  other users meanwhile
//!   Tensor::foreign   the keep-alive, when it is dropped        as the caller promises (unsafe)
//!   From<Vec<T>>      the vector, with the last handle          none
//!   Tensor::lend      its owner                                 none until the closure ends; then no handle works
//! ```

use super::grid::{Grid, ShapeError};
use super::memory::{DeviceBytes, Memory};
use super::reach::ReachableFrom;
use super::{AnyBits, Tensor};
use crate::ir::scalar::Element;
use std::any::Any;
use std::error::Error;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// The address of the first foreign element.
#[derive(Clone)]
#[non_exhaustive]
pub enum Foreign<T> {
    /// In memory of the host.
    Host(NonNull<T>),
    /// In pinned memory of the host that kernels of devices reach by the same address. Host access to it is atomic, as
    /// kernels may write it at any time.
    Pinned {
        /// Its address on both sides.
        start: NonNull<T>,
        /// The devices.
        devices: Vec<u32>,
    },
    /// In memory of a device, which the host does not reach.
    Device {
        /// The address on the device.
        address: u64,
        /// The number of the device.
        device: u32,
        /// The copies for host access, from `cuda::Device::copies`.
        copies: Arc<dyn DeviceBytes>,
    },
}

/// The copies for foreign device memory, together with the object that keeps the memory alive.
struct KeptCopies {
    copies: Arc<dyn DeviceBytes>,
    _keep: Arc<dyn Any + Send + Sync>,
}

impl DeviceBytes for KeptCopies {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.copies.read(address, out)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.copies.write(address, bytes)
    }

    fn read_rows(
        &self,
        address: u64,
        width: usize,
        stride: usize,
        out: &mut [u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.copies.read_rows(address, width, stride, out)
    }

    fn write_rows(
        &self,
        address: u64,
        width: usize,
        stride: usize,
        bytes: &[u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.copies.write_rows(address, width, stride, bytes)
    }
}

impl<T: Element> Tensor<T> {
    /// Makes a tensor over foreign memory of the host or of a device, in place. `shape` and `strides` are as for
    /// [`axes`](Tensor::axes). `keep` is dropped with the last handle, after the last launch that uses the memory.
    /// Tensors, prepared kernels and captured graphs hold handles.
    ///
    /// ```
    /// use std::ptr::NonNull;
    /// use std::sync::Arc;
    /// use tilewire::{Tensor, tensor::Foreign};
    /// // A matrix of another library with 3 rows of 5 elements. We use its middle three columns.
    /// let theirs: Arc<[std::sync::atomic::AtomicU32; 15]> = Arc::new(std::array::from_fn(|i| (i as u32).into()));
    /// let start = NonNull::from(&*theirs).cast::<u32>();
    /// // SAFETY: `theirs` keeps the elements alive, and no other code uses them here.
    /// let x = unsafe { Tensor::foreign(Foreign::Host(start.add(1)), &[3, 3], &[5, 1], theirs.clone())? };
    /// assert_eq!(x.to_vec(), [1, 2, 3, 6, 7, 8, 11, 12, 13]);
    /// # Ok::<(), tilewire::tensor::ShapeError>(())
    /// ```
    ///
    /// # Safety
    /// The elements that the shape names must be valid until `keep` is dropped: initialised, readable and, unless they
    /// are only ever used as inputs, writable. Elements in gaps between them are never touched. While a handle exists:
    /// - on the host, no other thread may touch the elements, and no reference to them may exist;
    /// - in pinned memory, kernels of all `devices` must be able to use the host's address, others may touch the
    ///   elements by atomic accesses only, and no reference to them may exist that is not atomic;
    /// - on a device, kernels of `device` must be able to use the addresses, `copies` must copy from and to them, and
    ///   the caller must order all other accesses with tilewire's launches.
    ///
    /// While tilewire runs a kernel that uses the elements, no other code may touch them.
    pub unsafe fn foreign(
        at: Foreign<T>,
        shape: &[usize],
        strides: &[isize],
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, ShapeError> {
        let grid = Grid::of_axes(shape, strides)?;
        let bytes = grid.bytes(size_of::<T>());
        let rows = bytes.ok_or_else(|| ShapeError::TooLarge { shape: shape.to_vec() })?;
        let address = match &at {
            Foreign::Host(start) | Foreign::Pinned { start, .. } => start.addr().get(),
            Foreign::Device { address, .. } => *address as usize,
        };
        if !address.is_multiple_of(size_of::<T>()) {
            return Err(ShapeError::Unaligned { address, align: size_of::<T>() });
        }
        // SAFETY: the caller promises what these functions require, for the bytes of these rows.
        let memory = unsafe {
            match at {
                Foreign::Host(start) => Memory::foreign_rows(start.cast(), rows, keep),
                Foreign::Pinned { start, devices } => {
                    Memory::shared_rows(start.cast(), rows, ReachableFrom { host: true, devices }, keep)
                }
                Foreign::Device { address, device, copies } => {
                    let start = NonNull::new(std::ptr::without_provenance_mut(address as usize));
                    let start = start.ok_or(ShapeError::Null { len: grid.len() })?;
                    let reach = ReachableFrom { host: false, devices: vec![device] };
                    Memory::on_device_rows(start, rows, reach, Arc::new(KeptCopies { copies, _keep: keep }))
                }
            }
        };
        Ok(Tensor { grid, ..Tensor::whole(memory, 0) })
    }

    /// Lends a slice to a closure as a tensor, in place. When the closure ends or panics, the tensor becomes void:
    /// every later access to the tensor, to a clone of it or by a kernel that was prepared with it is an error. Peers
    /// never get its address.
    ///
    /// ```
    /// use tilewire::{Tensor, map};
    /// let mut numbers = vec![1.0f32, 2.0, 3.0];
    /// let kept = Tensor::lend(&mut numbers, |x| {
    ///     map(x, x).produce(|c| c.input.load(c.pos()) * 10.0).run()?;
    ///     Ok::<_, tilewire::RunError>(x.clone())
    /// })?;
    /// assert_eq!(numbers, [10.0, 20.0, 30.0]);
    /// assert!(kept.try_get(0).unwrap_err().to_string().contains("was lent"));
    /// # Ok::<(), tilewire::RunError>(())
    /// ```
    pub fn lend<R>(data: &mut [T], body: impl FnOnce(&Tensor<T>) -> R) -> R
    where
        T: AnyBits,
    {
        let grid = Grid::flat(data.len());
        let start = NonNull::from(&mut *data).cast::<u8>();
        // SAFETY: the elements are borrowed exclusively until this returns, and `Lending` ends all use of the memory
        // before that. Any bytes are valid elements.
        unsafe { Tensor::lend_rows(start, grid, body) }
    }

    /// As [`lend`](Tensor::lend), for the elements of a grid.
    ///
    /// # Safety
    /// The elements must be valid for reads and writes during the call, and no other code may use them.
    pub(super) unsafe fn lend_rows<R>(start: NonNull<u8>, grid: Grid, body: impl FnOnce(&Tensor<T>) -> R) -> R {
        let rows = grid.bytes(size_of::<T>()).expect("elements that exist fit the address space");
        // SAFETY: the caller's promise; the guard voids the memory before the call ends.
        let memory = unsafe { Memory::lent_rows(start, rows) };
        let lending = Lending(memory.clone());
        let tensor = Tensor { grid, ..Tensor::whole(memory, 0) };
        let result = body(&tensor);
        drop(lending);
        result
    }
}

/// Voids lent memory when it is dropped.
struct Lending(Memory);

impl Drop for Lending {
    fn drop(&mut self) {
        self.0.end_lending();
    }
}

/// The elements of a vector, without a reference to them. Dropping it frees them.
struct Parts<T> {
    start: NonNull<T>,
    capacity: usize,
}

// SAFETY: it only frees the elements, and elements are plain numbers.
unsafe impl<T: Send> Send for Parts<T> {}
// SAFETY: a shared reference to it gives nothing.
unsafe impl<T: Send> Sync for Parts<T> {}

impl<T> Drop for Parts<T> {
    fn drop(&mut self) {
        // SAFETY: these are the parts of a vector that was taken apart, and they are put together only here. Elements
        // are plain numbers, so a length of 0 leaks nothing.
        drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), 0, self.capacity) });
    }
}

/// Takes the vector's elements without a copy.
///
/// ```
/// use tilewire::Tensor;
/// let x = Tensor::from(vec![1u8, 2, 3]);
/// x.set(0, 7);
/// assert_eq!(x.to_vec(), [7, 2, 3]);
/// ```
impl<T: Element> From<Vec<T>> for Tensor<T> {
    fn from(data: Vec<T>) -> Self {
        let mut data = ManuallyDrop::new(data);
        let (len, capacity) = (data.len(), data.capacity());
        let start = NonNull::new(data.as_mut_ptr()).expect("a vector's pointer is not null");
        let keep = Arc::new(Parts { start, capacity });
        // SAFETY: `keep` has the only pointer to these `len` elements, aligned and initialised, and frees them when it
        // is dropped. It holds no reference to them.
        unsafe { Tensor::from_raw(start, len, keep) }
    }
}
