//! A library that Python opens with `ctypes`. It makes tensors, and gives and takes them as DLPack capsules. The test
//! `numpy::` of the suite runs it, with `round_trip.py`.

use std::any::Any;
use std::ffi::{CString, c_char, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tilewire::tensor::Foreign;
use tilewire::tensor::dlpack::{DLManagedTensor, DLManagedTensorVersioned, DlpackError};
use tilewire::{Tensor, map};

/// The counter that `freed` returns.
static FREED: AtomicU32 = AtomicU32::new(0);

/// Numbers whose drops are counted.
struct Counted(Box<[AtomicU32]>);

impl Drop for Counted {
    fn drop(&mut self) {
        FREED.fetch_add(1, Ordering::SeqCst);
    }
}

/// Columns `first..first + cols` of a matrix of `rows` rows `stride` apart, whose element `i` is `i`.
#[unsafe(no_mangle)]
pub extern "C" fn tensor_new(rows: usize, cols: usize, stride: usize, first: usize) -> *mut Tensor<f32> {
    assert!(first + cols <= stride, "columns of the matrix");
    let numbers = (0..rows * stride).map(|i| AtomicU32::new((i as f32).to_bits())).collect();
    let keep = Arc::new(Counted(numbers));
    let start = NonNull::from(&*keep.0).cast::<f32>();
    // SAFETY: `keep` keeps the numbers, which only this tensor and those who get it use, on Python's one thread.
    let at = unsafe { start.add(first) };
    let keep: Arc<dyn Any + Send + Sync> = keep;
    // SAFETY: as above; the columns lie inside.
    let tensor = unsafe { Tensor::foreign(Foreign::Host(at), &[rows, cols], &[stride as isize, 1], keep) };
    Box::into_raw(Box::new(tensor.expect("rows and columns")))
}

/// # Safety
/// `tensor` is one of this library's.
unsafe fn tensor<'t>(tensor: *const Tensor<f32>) -> &'t Tensor<f32> {
    // SAFETY: the caller's promise.
    unsafe { &*tensor }
}

/// # Safety
/// `it` is one of this library's tensors, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensor_free(it: *mut Tensor<f32>) {
    // SAFETY: it was boxed here.
    drop(unsafe { Box::from_raw(it) });
}

/// Rows, columns or row stride.
///
/// # Safety
/// `it` is one of this library's tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensor_extent(it: *const Tensor<f32>, which: usize) -> usize {
    // SAFETY: the caller's promise.
    let it = unsafe { tensor(it) };
    let [rows, cols] = it.shape();
    [rows, cols, it.row_stride()][which]
}

/// # Safety
/// `it` is one of this library's tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensor_get(it: *const Tensor<f32>, i: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { tensor(it) }.get(i)
}

/// Adds a number to every element, by a kernel.
///
/// # Safety
/// `it` is one of this library's tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensor_add(it: *const Tensor<f32>, number: f32) -> bool {
    // SAFETY: the caller's promise.
    let it = unsafe { tensor(it) };
    map(it, it).produce(move |c| c.input.load(c.pos()) + number).run().is_ok()
}

/// The number of times that memory made by `tensor_new` was freed.
#[unsafe(no_mangle)]
pub extern "C" fn freed() -> u32 {
    FREED.load(Ordering::SeqCst)
}

/// A capsule's content, versioned or not.
///
/// # Safety
/// `it` is one of this library's tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensor_give(it: *const Tensor<f32>, versioned: bool) -> *mut c_void {
    // SAFETY: the caller's promise. Python has one thread, and no kernel runs while it does.
    unsafe {
        match versioned {
            true => tensor(it).to_dlpack().map_or(null_mut(), |capsule| Box::into_raw(capsule).cast()),
            false => tensor(it).to_dlpack_unversioned().map_or(null_mut(), |capsule| Box::into_raw(capsule).cast()),
        }
    }
}

/// Frees what `tensor_give` gave, if no library has taken it.
///
/// # Safety
/// `capsule` is a valid content of a capsule, of this form, that nobody else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn capsule_free(capsule: *mut c_void, versioned: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        if versioned {
            let capsule = capsule.cast::<DLManagedTensorVersioned>();
            (*capsule).deleter.into_iter().for_each(|deleter| deleter(capsule));
        } else {
            let capsule = capsule.cast::<DLManagedTensor>();
            (*capsule).deleter.into_iter().for_each(|deleter| deleter(capsule));
        }
    }
}

/// Takes the content of a capsule. If it is refused, returns null and puts the reason into `why`, for `why_free`.
///
/// # Safety
/// `capsule` is a valid content of a capsule, of this form, that nobody else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensor_take(
    capsule: *mut c_void,
    versioned: bool,
    why: *mut *const c_char,
) -> *mut Tensor<f32> {
    let taken = match NonNull::new(capsule) {
        None => Err(DlpackError::Malformed),
        // SAFETY: the caller's promise.
        Some(capsule) if versioned => unsafe { Tensor::from_dlpack(capsule.cast(), None) },
        // SAFETY: the caller's promise.
        Some(capsule) => unsafe { Tensor::from_dlpack_unversioned(capsule.cast(), None) },
    };
    let (tensor, reason) = match taken {
        Ok(tensor) => (Box::into_raw(Box::new(tensor)), null()),
        Err(error) => (null_mut(), CString::new(error.to_string()).expect("a text").into_raw().cast_const()),
    };
    // SAFETY: the caller gives a place for it.
    unsafe { why.write(reason) };
    tensor
}

/// # Safety
/// `why` comes from `tensor_take`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn why_free(why: *mut c_char) {
    if !why.is_null() {
        // SAFETY: it was made there.
        drop(unsafe { CString::from_raw(why) });
    }
}
