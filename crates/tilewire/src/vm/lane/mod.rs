//! Lane ops: loops over a strip of elements, compiled once per instruction-set level.
//!
//! A [`LaneOp`] is written once, in plain Rust, generic over element type and scalar function; [`handler_for`] wraps it in a function for
//! each [`Level`] so that the compiler vectorises the same loop for SSE2, AVX2 and AVX-512. Elements are read and written
//! through raw, possibly unaligned pointers: a lane may be bound to a tensor that another lane of the same op is bound to
//! as well (`x += y` in place), which references would forbid.

pub(crate) mod arithmetic;
pub(crate) mod convert;
pub(crate) mod group;
pub(crate) mod memory;
pub(crate) mod packet;

use super::level::Level;
use super::machine::{Handler, Inst, Machine};

/// The body of a lane handler.
pub(crate) trait LaneOp {
    /// Runs over the current strip and gives the next instruction.
    ///
    /// # Safety
    /// `pc` is an instruction of the verified program `m` runs, with the operands this op's opcode states.
    unsafe fn run(m: &mut Machine, pc: *const Inst) -> *const Inst;
}

/// The handler of an op at a level.
pub(crate) fn handler_for<K: LaneOp>(level: Level) -> Handler {
    match level {
        Level::Baseline => baseline::<K>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::<K>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::<K>,
        #[cfg(not(target_arch = "x86_64"))]
        _ => baseline::<K>,
    }
}

/// The handler of an op that gains nothing from 512-bit vectors (rare types, memory-bound moves): the AVX-512 copy is left out,
/// which keeps the build short.
pub(crate) fn narrow_handler_for<K: LaneOp>(level: Level) -> Handler {
    match level {
        Level::Baseline => baseline::<K>,
        #[cfg(target_arch = "x86_64")]
        _ => avx2::<K>,
        #[cfg(not(target_arch = "x86_64"))]
        _ => baseline::<K>,
    }
}

unsafe fn baseline<K: LaneOp>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: the caller's promise is the callee's.
    unsafe { K::run(m, pc) }
}

/// # Safety
/// As [`LaneOp::run`], and the processor has the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
unsafe fn avx2<K: LaneOp>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: the caller's promise is the callee's.
    unsafe { K::run(m, pc) }
}

/// # Safety
/// As [`LaneOp::run`], and the processor has the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn avx512<K: LaneOp>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: the caller's promise is the callee's.
    unsafe { K::run(m, pc) }
}

/// Reads element `i`.
///
/// # Safety
/// `p` is valid for reads of `i + 1` elements; any alignment.
#[inline(always)]
pub(crate) unsafe fn get<T: Copy>(p: *const T, i: usize) -> T {
    // SAFETY: the caller's promise.
    unsafe { p.add(i).read_unaligned() }
}

/// Writes element `i`.
///
/// # Safety
/// `p` is valid for writes of `i + 1` elements; any alignment.
#[inline(always)]
pub(crate) unsafe fn put<T: Copy>(p: *mut T, i: usize, x: T) {
    // SAFETY: the caller's promise.
    unsafe { p.add(i).write_unaligned(x) }
}

/// `dst[i] = f(a[i])`. Where `dst` is `a`, the loop says so: the compiler's overlap check would choose scalar code.
///
/// # Safety
/// All pointers are valid for `n` elements.
#[inline(always)]
pub(crate) unsafe fn map1<A: Copy, D: Copy>(dst: *mut D, a: *const A, n: usize, f: impl Fn(A) -> D) {
    // SAFETY: the caller's promise.
    unsafe {
        if size_of::<A>() == size_of::<D>() && std::ptr::eq(dst.cast::<u8>(), a.cast::<u8>()) {
            for i in 0..n {
                put(dst, i, f(get(dst.cast_const().cast::<A>(), i)));
            }
        } else {
            for i in 0..n {
                put(dst, i, f(get(a, i)));
            }
        }
    }
}

/// `dst[i] = f(a[i], b[i])`.
///
/// # Safety
/// All pointers are valid for `n` elements.
#[inline(always)]
pub(crate) unsafe fn map2<A: Copy, B: Copy, D: Copy>(
    dst: *mut D,
    a: *const A,
    b: *const B,
    n: usize,
    f: impl Fn(A, B) -> D,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if size_of::<A>() == size_of::<D>() && std::ptr::eq(dst.cast::<u8>(), a.cast::<u8>()) {
            for i in 0..n {
                put(dst, i, f(get(dst.cast_const().cast::<A>(), i), get(b, i)));
            }
        } else if size_of::<B>() == size_of::<D>() && std::ptr::eq(dst.cast::<u8>(), b.cast::<u8>()) {
            for i in 0..n {
                put(dst, i, f(get(a, i), get(dst.cast_const().cast::<B>(), i)));
            }
        } else {
            for i in 0..n {
                put(dst, i, f(get(a, i), get(b, i)));
            }
        }
    }
}
