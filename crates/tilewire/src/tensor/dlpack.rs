//! DLPack: exchanges tensors with other libraries of this process, in place.
//!
//! The structures are those of DLPack 1.x (`dlpack.h`) and the unversioned form that older libraries still exchange. A
//! *capsule* is a pointer to a `DLManagedTensorVersioned` or a `DLManagedTensor`. Its consumer calls the deleter once.

use super::foreign::Foreign;
use super::grid::{Grid, ShapeError};
use super::memory::DeviceBytes;
use super::{Memory, Tensor, Type};
use crate::ir::scalar::Element;
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// A kind of device and its number.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDevice {
    /// The kind: 1 is the host, 2 is CUDA, 3 is pinned host memory of CUDA. Other kinds are refused.
    pub device_type: i32,
    /// The number of the device.
    pub device_id: i32,
}

/// An element type.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDataType {
    /// The kind of number.
    pub code: u8,
    /// The size of the number in bits.
    pub bits: u8,
    /// The numbers in an element. Only 1 is accepted.
    pub lanes: u16,
}

/// A tensor's memory and shape.
#[repr(C)]
#[derive(Debug)]
pub struct DLTensor {
    /// The memory.
    pub data: *mut c_void,
    /// The device of the memory.
    pub device: DLDevice,
    /// The number of axes.
    pub ndim: i32,
    /// The element type.
    pub dtype: DLDataType,
    /// The extents.
    pub shape: *mut i64,
    /// The distances between neighbours on each axis, in elements; null if there are no gaps.
    pub strides: *mut i64,
    /// The distance of the first element from `data`, in bytes.
    pub byte_offset: u64,
}

/// A managed tensor in the unversioned form.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// The producer's.
    pub manager_ctx: *mut c_void,
    /// Frees the structure and what it keeps.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// A version of the format.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLPackVersion {
    /// Consumers refuse another major version.
    pub major: u32,
    /// Later minor versions add only things that a consumer may ignore.
    pub minor: u32,
}

/// A managed tensor in the versioned form.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// The version of the format that the producer used.
    pub version: DLPackVersion,
    /// The producer's.
    pub manager_ctx: *mut c_void,
    /// Frees the structure and what it keeps.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// Bit 0 is set if the memory may only be read.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

/// The version that this crate writes.
const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 1 };
const READ_ONLY: u64 = 1;
const HOST: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;

/// The reason why a capsule cannot become a tensor, or a tensor cannot become a capsule.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DlpackError {
    /// The elements have another type.
    #[non_exhaustive]
    Type {
        /// The capsule's type: code, bits and lanes.
        is: (u8, u8, u16),
        /// The requested type.
        must: Type,
    },
    /// The memory is on a kind of device that tilewire does not use.
    #[non_exhaustive]
    Device {
        /// The kind of device, as DLPack numbers it.
        device_type: i32,
        /// The number of the device.
        device_id: i32,
    },
    /// The memory is on a device, and the caller passed no copies for host access.
    #[non_exhaustive]
    NoCopies {
        /// The number of the device.
        device: i32,
    },
    /// The capsule has a version of the format that this crate does not know.
    #[non_exhaustive]
    Version {
        /// The major number of the version.
        major: u32,
    },
    /// The memory may only be read.
    ReadOnly,
    /// An extent is negative, or a pointer is null that must not be.
    Malformed,
    /// The shape cannot become rows and columns.
    Shape(ShapeError),
    /// The tensor is lent for the time of a closure, so it cannot become a capsule.
    Lent,
}

errors! {
    enum DlpackError {
        Type { is: (code, bits, lanes), must } =>
            "the DLPack tensor has type code {code}, {bits} bits, {lanes} lanes, not {must}: convert it first, or ask for \
             its own type",
        Device { device_type, device_id } =>
            "the DLPack tensor is on device type {device_type}, number {device_id}: only the host (1), CUDA (2) and \
             CUDA's pinned host memory (3) can be used; copy it there",
        NoCopies { device } =>
            "the DLPack tensor is on CUDA device {device}: pass Some(Device::open({device})?.copies()), which host access \
             needs",
        Version { major } => "the DLPack tensor has version {major}: only version 1 is supported",
        ReadOnly => "the DLPack tensor is read-only, and a tilewire tensor must be writable: copy it first",
        Malformed => "the DLPack tensor has a negative extent, or no shape or data: report it to the library that made \
             it",
        Shape(error) => "{error}",
        Lent => "a tensor that Tensor::lend has lent cannot become a DLPack tensor: copy it first",
    }
    source { Shape(error) => Some(error) }
    from { ShapeError => Shape }
}

/// The type as DLPack names it.
fn dtype(ty: Type) -> DLDataType {
    let code = match ty {
        Type::I8 | Type::I16 | Type::I32 | Type::I64 => 0,
        Type::U8 | Type::U16 | Type::U32 | Type::U64 => 1,
        Type::F16 | Type::F32 | Type::F64 => 2,
        Type::BF16 => 4,
        Type::Bool => 6,
        Type::F8E4M3 => 10,
        Type::F8E5M2 => 12,
    };
    DLDataType { code, bits: 8 * ty.size() as u8, lanes: 1 }
}

/// The strides of a tensor without gaps, which DLPack may leave out.
fn row_major(shape: &[usize]) -> Result<Vec<isize>, DlpackError> {
    let (mut strides, mut next) = (vec![0; shape.len()], 1usize);
    let too_large = || ShapeError::TooLarge { shape: shape.to_vec() };
    for (stride, &extent) in strides.iter_mut().zip(shape).rev() {
        *stride = isize::try_from(next).map_err(|_| too_large())?;
        next = next.checked_mul(extent).ok_or_else(too_large)?;
    }
    Ok(strides)
}

/// A capsule of either form that this side owns. Dropping it runs the deleter.
enum Capsule {
    Plain(NonNull<DLManagedTensor>),
    Versioned(NonNull<DLManagedTensorVersioned>),
}

// SAFETY: DLPack allows consumers to call the deleter from any thread, and nothing else is done with the pointer.
unsafe impl Send for Capsule {}
// SAFETY: a shared reference to it gives nothing.
unsafe impl Sync for Capsule {}

impl Drop for Capsule {
    fn drop(&mut self) {
        // SAFETY: the capsule is valid until its deleter runs, which happens here, once.
        unsafe {
            match self {
                Capsule::Plain(it) => it.as_ref().deleter.into_iter().for_each(|deleter| deleter(it.as_ptr())),
                Capsule::Versioned(it) => it.as_ref().deleter.into_iter().for_each(|deleter| deleter(it.as_ptr())),
            }
        }
    }
}

impl<T: Element> Tensor<T> {
    /// Takes a versioned capsule, in place. Its deleter runs after the last use of the memory, or immediately if the
    /// capsule is refused. Device memory needs `copies`, from `cuda::Device::copies`.
    /// Memory that may only be read is refused. CUDA's pinned memory of the host is taken as [`Foreign::Pinned`].
    ///
    /// # Safety
    /// `capsule` must be a valid DLPack tensor that no other code consumes. The requirements of [`Tensor::foreign`]
    /// must hold until the deleter is called.
    pub unsafe fn from_dlpack(
        capsule: NonNull<DLManagedTensorVersioned>,
        copies: Option<Arc<dyn DeviceBytes>>,
    ) -> Result<Self, DlpackError> {
        let owned = Capsule::Versioned(capsule);
        // SAFETY: the capsule is valid, and `owned` keeps it.
        let it = unsafe { capsule.as_ref() };
        if it.version.major != VERSION.major {
            return Err(DlpackError::Version { major: it.version.major });
        }
        if it.flags & READ_ONLY != 0 {
            return Err(DlpackError::ReadOnly);
        }
        // SAFETY: the caller's promise.
        unsafe { Self::of_dlpack(&it.dl_tensor, owned, copies) }
    }

    /// As [`from_dlpack`](Tensor::from_dlpack), for a capsule without a version.
    ///
    /// # Safety
    /// As for [`from_dlpack`](Tensor::from_dlpack).
    pub unsafe fn from_dlpack_unversioned(
        capsule: NonNull<DLManagedTensor>,
        copies: Option<Arc<dyn DeviceBytes>>,
    ) -> Result<Self, DlpackError> {
        let owned = Capsule::Plain(capsule);
        // SAFETY: the capsule is valid, and `owned` keeps it.
        unsafe { Self::of_dlpack(&capsule.as_ref().dl_tensor, owned, copies) }
    }

    /// # Safety
    /// `it` must be the tensor in `owned`, as [`from_dlpack`](Tensor::from_dlpack) requires.
    unsafe fn of_dlpack(
        it: &DLTensor,
        owned: Capsule,
        copies: Option<Arc<dyn DeviceBytes>>,
    ) -> Result<Self, DlpackError> {
        let DLDevice { device_type, device_id } = it.device;
        if it.dtype != dtype(T::TYPE) {
            return Err(DlpackError::Type { is: (it.dtype.code, it.dtype.bits, it.dtype.lanes), must: T::TYPE });
        }
        let axes = usize::try_from(it.ndim).map_err(|_| DlpackError::Malformed)?;
        if axes > 0 && it.shape.is_null() {
            return Err(DlpackError::Malformed);
        }
        // SAFETY: a valid tensor has `ndim` extents, and as many strides if it has any.
        let numbers = |start: *mut i64| (0..axes).map(move |k| unsafe { start.add(k).read() });
        let shape: Result<Vec<usize>, _> = numbers(it.shape).map(usize::try_from).collect();
        let shape = shape.map_err(|_| DlpackError::Malformed)?;
        // Before any product: extents beside a zero may be anything.
        if shape.contains(&0) {
            return Ok(Tensor::zeros(0));
        }
        let strides: Vec<isize> = match it.strides.is_null() {
            false => numbers(it.strides).map(|stride| stride as isize).collect(),
            true => row_major(&shape)?,
        };
        let address = (it.data as u64).wrapping_add(it.byte_offset);
        let device = |id: i32| u32::try_from(id).map_err(|_| DlpackError::Device { device_type, device_id: id });
        let start = NonNull::new(it.data.cast::<u8>().wrapping_add(it.byte_offset as usize).cast::<T>());
        let at = match (device_type, start) {
            (_, None) => return Err(DlpackError::Malformed),
            (HOST, Some(start)) => Foreign::Host(start),
            (CUDA_HOST, Some(start)) => Foreign::Pinned { start, devices: vec![device(device_id)?] },
            (CUDA, Some(_)) => {
                let copies = copies.ok_or(DlpackError::NoCopies { device: device_id })?;
                Foreign::Device { address, device: device(device_id)?, copies }
            }
            _ => return Err(DlpackError::Device { device_type, device_id }),
        };
        // SAFETY: the caller's promise: the elements are valid until the capsule's deleter runs.
        Ok(unsafe { Tensor::foreign(at, &shape, &strides, Arc::new(owned)) }?)
    }

    /// Makes a capsule of this tensor, for a consumer in this process. The capsule keeps the memory alive until the
    /// consumer calls the deleter. Dropping the box instead leaks the memory.
    ///
    /// # Safety
    /// The consumer must follow the rules of [`Tensor::foreign`] for these elements. It must use them on this thread
    /// only, or at times when neither a kernel of this library nor host code uses them.
    pub unsafe fn to_dlpack(&self) -> Result<Box<DLManagedTensorVersioned>, DlpackError> {
        let (dl_tensor, manager_ctx) = Exported::of(self)?;
        let deleter: unsafe extern "C" fn(_) = free_versioned;
        Ok(Box::new(DLManagedTensorVersioned {
            version: VERSION,
            manager_ctx,
            deleter: Some(deleter),
            flags: 0,
            dl_tensor,
        }))
    }

    /// As [`to_dlpack`](Tensor::to_dlpack), without a version.
    ///
    /// # Safety
    /// As for [`to_dlpack`](Tensor::to_dlpack).
    pub unsafe fn to_dlpack_unversioned(&self) -> Result<Box<DLManagedTensor>, DlpackError> {
        let (dl_tensor, manager_ctx) = Exported::of(self)?;
        Ok(Box::new(DLManagedTensor { dl_tensor, manager_ctx, deleter: Some(free_plain) }))
    }
}

/// The data that a capsule of this crate keeps alive.
struct Exported {
    _memory: Memory,
    shape: [i64; 2],
    strides: [i64; 2],
}

impl Exported {
    /// The structure, and the data that it points to and keeps. A tensor of one row becomes one axis.
    fn of<T: Element>(tensor: &Tensor<T>) -> Result<(DLTensor, *mut c_void), DlpackError> {
        let (memory, Grid { rows, cols, stride }) = (tensor.memory().clone(), tensor.grid());
        if memory.is_lent() {
            return Err(DlpackError::Lent);
        }
        let [shape, strides] = [[rows, cols], [stride, 1]].map(|pair| pair.map(|number| number as i64));
        let device = match memory.reachable_from().device_only() {
            Some(device) => DLDevice { device_type: CUDA, device_id: device as i32 },
            None => DLDevice { device_type: HOST, device_id: 0 },
        };
        let (data, first) = (memory.start().as_ptr().cast(), usize::from(rows == 1));
        let kept = Box::into_raw(Box::new(Exported { _memory: memory, shape, strides }));
        // SAFETY: `kept` was just boxed, and `first` is 0 or 1.
        let [shape, strides] = unsafe { [&raw mut (*kept).shape, &raw mut (*kept).strides] }
            .map(|pair| pair.cast::<i64>().wrapping_add(first));
        let (ndim, dtype) = (2 - first as i32, dtype(T::TYPE));
        Ok((DLTensor { data, device, ndim, dtype, shape, strides, byte_offset: 0 }, kept.cast()))
    }
}

/// # Safety
/// `it` is a capsule made by `to_dlpack`, and this is called once.
unsafe extern "C" fn free_versioned(it: *mut DLManagedTensorVersioned) {
    // SAFETY: both were boxed by `to_dlpack`.
    unsafe { drop(Box::from_raw((*it).manager_ctx.cast::<Exported>())) };
    // SAFETY: as above.
    unsafe { drop(Box::from_raw(it)) };
}

/// # Safety
/// `it` is a capsule made by `to_dlpack_unversioned`, and this is called once.
unsafe extern "C" fn free_plain(it: *mut DLManagedTensor) {
    // SAFETY: both were boxed by `to_dlpack_unversioned`.
    unsafe { drop(Box::from_raw((*it).manager_ctx.cast::<Exported>())) };
    // SAFETY: as above.
    unsafe { drop(Box::from_raw(it)) };
}

impl fmt::Display for DLDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device type {}, number {}", self.device_type, self.device_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::scalar::Bf16;

    /// Hands a capsule to its consumer.
    fn given<C>(capsule: Box<C>) -> NonNull<C> {
        NonNull::new(Box::into_raw(capsule)).expect("a box")
    }

    #[test]
    fn a_strided_tensor_goes_out_and_comes_back_as_the_same_memory() {
        let matrix = Tensor::<Bf16>::from_fn(24, |i| Bf16::from_f32(i as f32)).reshape(4, 6).unwrap();
        let columns = matrix.columns(2..5);
        // SAFETY: this test alone uses the memory, on one thread.
        unsafe {
            let back = Tensor::<Bf16>::from_dlpack(given(columns.to_dlpack().unwrap()), None).unwrap();
            assert_eq!((back.shape(), back.row_stride()), ([4, 3], 6));
            assert!(back.memory().is(columns.memory()));
            back.set(0, Bf16::from_f32(99.0));
            assert_eq!(matrix.get(2), Bf16::from_f32(99.0));
            let plain = Tensor::<Bf16>::from_dlpack_unversioned(given(matrix.to_dlpack_unversioned().unwrap()), None);
            drop((matrix, columns));
            // The capsules keep the memory.
            assert_eq!((plain.unwrap().len(), back.get(1).to_f32()), (24, 3.0));
        }
    }

    #[test]
    fn pinned_memory_is_reached_from_the_host_and_its_device() {
        let x = Tensor::<f32>::from_fn(12, |i| i as f32).reshape(3, 4).unwrap().columns(1..3);
        // SAFETY: this test alone uses the memory, on one thread; there is no device that could.
        let back = unsafe {
            let mut capsule = x.to_dlpack().unwrap();
            capsule.dl_tensor.device = DLDevice { device_type: CUDA_HOST, device_id: 2 };
            Tensor::<f32>::from_dlpack(given(capsule), None).unwrap()
        };
        let reach = back.memory().reachable_from();
        assert!(reach.host && reach.is_device(2) && !reach.is_device(0) && back.memory().is_shared());
        back.set(3, 99.0);
        assert_eq!((x.to_vec(), back.shape()), (vec![1.0, 2.0, 5.0, 99.0, 9.0, 10.0], [3, 2]));
    }

    #[test]
    fn what_is_no_tensor_of_this_library_is_refused_and_freed() {
        // SAFETY: as above; the fields are changed to what another producer might write.
        unsafe {
            let refused = |change: &dyn Fn(&mut DLManagedTensorVersioned)| {
                let x = Tensor::<f32>::zeros(12).reshape(3, 4).unwrap();
                let mut capsule = x.to_dlpack().unwrap();
                change(&mut capsule);
                let error = Tensor::<f32>::from_dlpack(given(capsule), None).unwrap_err();
                error.to_string()
            };
            assert!(refused(&|it| it.dl_tensor.dtype.code = 0).contains("not f32"));
            assert!(refused(&|it| it.dl_tensor.device.device_type = 10).contains("device type 10"));
            assert!(refused(&|it| it.dl_tensor.device.device_type = CUDA).contains("copies()"));
            let no_device = DLDevice { device_type: CUDA_HOST, device_id: -1 };
            assert!(refused(&|it| it.dl_tensor.device = no_device).contains("number -1"));
            assert!(refused(&|it| it.version.major = 2).contains("version 2"));
            assert!(refused(&|it| it.flags = READ_ONLY).contains("read-only"));
            assert!(refused(&|it| it.dl_tensor.data = std::ptr::null_mut()).contains("no shape or data"));
            assert!(refused(&|it| *it.dl_tensor.shape = -3).contains("negative extent"));
            assert!(refused(&|it| *it.dl_tensor.strides = 2).contains("overlap"));
            assert!(refused(&|it| *it.dl_tensor.strides.add(1) = 2).contains("contiguous()"));
            assert!(refused(&|it| it.dl_tensor.byte_offset = 2).contains("must be a multiple of 4"));
            // Products that wrap to 0, with and without strides.
            let huge = |it: &mut DLManagedTensorVersioned| (0..2).for_each(|k| *it.dl_tensor.shape.add(k) = 1 << 40);
            let no_strides = |it: &mut DLManagedTensorVersioned| it.dl_tensor.strides = std::ptr::null_mut();
            assert!(refused(&huge).contains("[1099511627776, 1099511627776] has more elements"));
            let message = refused(&|it| {
                huge(it);
                no_strides(it);
            });
            assert!(message.contains("[1099511627776, 1099511627776] has more elements"), "{message}");
            // As many elements as fit, and more bytes.
            let message = refused(&|it| {
                (0..2).for_each(|k| *it.dl_tensor.shape.add(k) = [1 << 31, 1 << 32][k]);
                no_strides(it);
            });
            assert!(message.contains("address space"), "{message}");
        }
        // Beside an extent of 0 the others may be anything, and neither data nor strides are needed.
        // SAFETY: as above.
        unsafe {
            let mut empty = Tensor::<f32>::zeros(12).reshape(3, 4).unwrap().to_dlpack().unwrap();
            (*empty.dl_tensor.shape, *empty.dl_tensor.shape.add(1)) = (i64::MAX, 0);
            (empty.dl_tensor.strides, empty.dl_tensor.data) = (std::ptr::null_mut(), std::ptr::null_mut());
            assert_eq!(Tensor::<f32>::from_dlpack(given(empty), None).unwrap().len(), 0);
        }
        let mut lent = [1.0f32; 4];
        // SAFETY: it is refused.
        let error = Tensor::lend(&mut lent, |x| unsafe { x.to_dlpack().map(|_| ()) }.unwrap_err());
        assert_eq!(error, DlpackError::Lent);
    }
}
