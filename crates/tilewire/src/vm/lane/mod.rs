//! Lane ops: loops over a strip of elements, compiled once per instruction-set level.
//!
//! A [`LaneOp`] is written once, in plain Rust, generic over element type and scalar function. [`handler_for`] wraps it
//! in a function for each [`Level`], so that the compiler vectorises the same loop for SSE2 and AVX2, and heavy
//! arithmetic for AVX-512 too. Elements are read and written through raw, possibly unaligned pointers. Two lanes of an
//! op may be bound to the same tensor (`x += y` in place), which references would forbid.

/// A [`LaneOp`] that cannot fail: its generics, its type, and its body for the machine `m` and the instruction `i`.
macro_rules! lane_op {
    ([$($generics:tt)*] $op:ty $(where $bound:ty: $trait:path)? = |$m:ident, $i:ident| $body:block) => {
        impl<$($generics)*> LaneOp for $op
        $(where $bound: $trait)?
        {
            #[inline(always)]
            unsafe fn run<const AVX2: bool>($m: &mut Machine, pc: *const Inst) -> *const Inst {
                // SAFETY: operands are registers, lanes and counts of a verified program, and the verifier checked that
                // each lane's elements have the op's size. A lane points to at least `counts[d]` elements: for strip
                // memory the verifier checked this, for tensors the bounds check of the `Bind` that set the pointer for
                // this strip. A group lane has one element per `e` of them, rounded up, and a group at least one.
                unsafe {
                    let $i = *pc;
                    $body
                    pc.add(1)
                }
            }
        }
    };
}

pub(crate) mod arithmetic;
pub(crate) mod convert;
pub(crate) mod group;
pub(crate) mod memory;
pub(crate) mod packet;
pub(crate) mod rows;

use super::level::Level;
use super::machine::{Handler, Inst, Machine};

/// The body of a lane handler.
pub(crate) trait LaneOp {
    /// Runs over the current strip and returns the next instruction. `AVX2` is true if this instance is compiled for
    /// AVX2, for the few ops that use its instructions by name.
    ///
    /// # Safety
    /// `pc` is an instruction of the verified program that `m` runs, with the operands that this op's opcode states.
    /// With `AVX2`, the processor supports AVX2.
    unsafe fn run<const AVX2: bool>(m: &mut Machine, pc: *const Inst) -> *const Inst;
}

/// The handler of an op at a level, with vectors of at most 256 bits.
///
/// 512-bit vectors lower the processor's clock for a while, which slows all code that follows (docs/decisions/0007). So
/// only [`wide_handler_for`] uses them.
pub(crate) fn handler_for<K: LaneOp>(level: Level) -> Handler {
    match level {
        Level::Baseline => baseline::<K>,
        #[cfg(target_arch = "x86_64")]
        _ => avx2::<K>,
        #[cfg(not(target_arch = "x86_64"))]
        _ => baseline::<K>,
    }
}

/// The handler of a purely arithmetic op: vectors of up to 512 bits.
pub(crate) fn wide_handler_for<K: LaneOp>(level: Level) -> Handler {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::<K>,
        _ => handler_for::<K>(level),
    }
}

unsafe fn baseline<K: LaneOp>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: the caller's promise is the callee's.
    unsafe { K::run::<false>(m, pc) }
}

/// # Safety
/// As [`LaneOp::run`], and the processor has the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
unsafe fn avx2<K: LaneOp>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: the caller's promise is the callee's.
    unsafe { K::run::<true>(m, pc) }
}

/// # Safety
/// As [`LaneOp::run`], and the processor has the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn avx512<K: LaneOp>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: the caller's promise is the callee's.
    unsafe { K::run::<true>(m, pc) }
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

/// `dst[i] = f(a[i])`. In place (`dst == a`) has its own loop: the compiler's overlap check would choose scalar code.
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

/// `dst[i] = f(i)`, bypassing the cache. Whole lines are computed in registers and written with non-temporal stores,
/// the ends with ordinary ones. `source` is the memory that `f` reads in order. It is prefetched, because the
/// hardware's prefetcher loses track between the stores. `f` must not read from `dst`: the lowering streams only to
/// memory that the `each` does not load.
///
/// # Safety
/// `dst` is valid for `n` elements, and `f` may be called for each of 0..n.
#[inline(always)]
pub(crate) unsafe fn stream<D: Copy, A>(dst: *mut D, source: *const A, n: usize, f: impl Fn(usize) -> D) {
    const LINE: usize = 64;
    /// Lines computed before they are stored: enough loads in flight to cover the memory latency.
    const LINES: usize = 4;
    let per_line = LINE / size_of::<D>();
    let (misaligned, odd) = (dst as usize % LINE, dst as usize % size_of::<D>());
    // SAFETY: the caller's promise; `to_line` writes `per_line` elements each time, which the loop keeps inside `n`.
    unsafe {
        // If no element starts at a line boundary, nothing can be streamed.
        let head = if odd != 0 { n } else { ((LINE - misaligned) % LINE / size_of::<D>()).min(n) };
        (0..head).for_each(|i| put(dst, i, f(i)));
        let mut at = head;
        while at + LINES * per_line <= n {
            let mut lines = [Line([0; LINE]); LINES];
            let elements = lines.as_mut_ptr().cast::<D>();
            fetch_ahead(source.wrapping_add(at).cast(), LINES * per_line * size_of::<A>());
            for k in 0..LINES * per_line {
                put(elements, k, f(at + k));
            }
            for (k, line) in lines.iter().enumerate() {
                to_line(dst.add(at + k * per_line).cast(), line);
            }
            at += LINES * per_line;
        }
        (at..n).for_each(|i| put(dst, i, f(i)));
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Prefetches `bytes` bytes that lie 2 KiB after `from`; any address is allowed.
#[inline(always)]
fn fetch_ahead(from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch of any address affects only the cache.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(2048 + line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, bytes);
}

/// # Safety
/// `dst` is valid for 64 bytes and aligned to 64.
#[inline(always)]
unsafe fn to_line(dst: *mut u8, line: &Line) {
    // SAFETY: the caller's promise; every x86-64 processor has these instructions.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        for k in 0..4 {
            use std::arch::x86_64::{_mm_load_si128, _mm_stream_si128};
            _mm_stream_si128(dst.add(16 * k).cast(), _mm_load_si128(line.0.as_ptr().add(16 * k).cast()));
        }
        #[cfg(not(target_arch = "x86_64"))]
        dst.cast::<[u8; 64]>().write(line.0);
    }
}
