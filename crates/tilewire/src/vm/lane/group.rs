//! Reductions and prefix sums over groups of adjacent elements of a strip, and ops that spread values over elements.

use super::super::level::Level;
use super::super::machine::{Handler, Inst, Machine};
use super::super::scalar_op::by_type;
use super::{LaneOp, get, handler_for, map1, put};
use crate::ir::scalar::{Arithmetic, Element, Number};
use crate::ir::{GroupOp, Type};
use std::marker::PhantomData;

/// Handler of `LGroup`.
pub(crate) fn reduce(op: GroupOp, ty: Type, level: Level) -> Handler {
    match op {
        GroupOp::Max => by_type!(number ty, T => handler_for::<Reduce<Largest, T>>(level)),
        GroupOp::Min => by_type!(number ty, T => handler_for::<Reduce<Smallest, T>>(level)),
        GroupOp::Sum => by_type!(number ty, T => handler_for::<Reduce<Sum, T>>(level)),
        GroupOp::Scan => unreachable!("the lowering emits LScan"),
    }
}

/// Handler of `LGroupMaxAbs`.
pub(crate) fn max_abs(ty: Type, level: Level) -> Handler {
    assert_eq!(ty, Type::F32, "the lowering fuses max and abs of f32 only");
    match level {
        Level::Baseline => handler_for::<Reduce<LargestAbs, f32>>(level),
        #[cfg(target_arch = "x86_64")]
        _ => max_abs_avx2,
        #[cfg(not(target_arch = "x86_64"))]
        _ => handler_for::<Reduce<LargestAbs, f32>>(level),
    }
}

/// Handler of `LScan`.
pub(crate) fn scan(ty: Type, level: Level) -> Handler {
    by_type!(number ty, T => handler_for::<Scan<T>>(level))
}

/// Handler of `Fill` for elements of `size` bytes.
pub(crate) fn fill(size: u8, level: Level) -> Handler {
    match size {
        1 => handler_for::<Fill<u8>>(level),
        2 => handler_for::<Fill<u16>>(level),
        4 => handler_for::<Fill<u32>>(level),
        _ => handler_for::<Fill<u64>>(level),
    }
}

/// Handler of `Expand` for elements of `size` bytes.
pub(crate) fn expand(size: u8, level: Level) -> Handler {
    match size {
        1 => handler_for::<Expand<u8>>(level),
        2 => handler_for::<Expand<u16>>(level),
        4 => handler_for::<Expand<u32>>(level),
        _ => handler_for::<Expand<u64>>(level),
    }
}

/// How the elements of one group are reduced to one value.
trait Fold<T> {
    /// # Safety
    /// `x` is valid for reads of `n` ≥ 1 elements.
    unsafe fn fold(x: *const T, n: usize) -> T;
}

struct Largest;
struct Smallest;
struct LargestAbs;
struct Sum;
struct Reduce<F, T>(PhantomData<(F, T)>);
struct Scan<T>(PhantomData<T>);
struct Fill<W>(PhantomData<W>);
struct Expand<W>(PhantomData<W>);

impl<T: Number> Fold<T> for Largest {
    #[inline(always)]
    unsafe fn fold(x: *const T, n: usize) -> T {
        // SAFETY: the caller's promise. Max is associative and commutative, so any order gives the same bits.
        unsafe { fold_in_columns(n, |k| get(x, k), Arithmetic::max) }
    }
}

impl<T: Number> Fold<T> for Smallest {
    #[inline(always)]
    unsafe fn fold(x: *const T, n: usize) -> T {
        // SAFETY: as for the largest.
        unsafe { fold_in_columns(n, |k| get(x, k), Arithmetic::min) }
    }
}

impl Fold<f32> for LargestAbs {
    #[inline(always)]
    unsafe fn fold(x: *const f32, n: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { fold_in_columns(n, |k| Arithmetic::abs(get(x, k)), Arithmetic::max) }
    }
}

/// `LGroupMaxAbs` with AVX2. It is the first half of every quantisation, and the compiler turns the plain loop into a
/// chain of branches.
///
/// # Safety
/// As [`LaneOp::run`], and the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn max_abs_avx2(m: &mut Machine, pc: *const Inst) -> *const Inst {
    use std::arch::x86_64::*;
    const WIDTH: usize = 8;
    const ROW: usize = 4 * WIDTH;
    // SAFETY: as in `lane_op`; a vector is read only if ROW elements are left in the group.
    unsafe {
        let i = *pc;
        let (dst, x) = (m.lane(i.a).cast::<f32>(), m.lane(i.b).cast::<f32>().cast_const());
        let (n, size) = (m.counts[i.d as usize], i.e as usize);
        let magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fff_ffff));
        for (group, start) in (0..n).step_by(size).enumerate() {
            let (x, len) = (x.add(start), size.min(n - start));
            // `max(x, most)` returns `most` if x is NaN, so NaN loses. Magnitudes are never -0, so this implements
            // `max` fully.
            let mut most = [_mm256_setzero_ps(); 4];
            let mut at = 0;
            while at + ROW <= len {
                for (k, most) in most.iter_mut().enumerate() {
                    *most = _mm256_max_ps(_mm256_and_ps(_mm256_loadu_ps(x.add(at + k * WIDTH)), magnitude), *most);
                }
                at += ROW;
            }
            let [a, b, c, d] = most;
            let most = _mm256_max_ps(_mm256_max_ps(a, b), _mm256_max_ps(c, d));
            let most = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps::<1>(most));
            let most = _mm_max_ps(most, _mm_movehl_ps(most, most));
            let mut most = _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
            for k in at..len {
                let x = get(x, k).abs();
                most = if x > most { x } else { most };
            }
            // 0 also stands for "nothing yet". Only a group in which every element is NaN must return NaN.
            if most == 0.0 && (0..len).all(|k| get(x, k).is_nan()) {
                most = f32::NAN;
            }
            put(dst, group, most);
        }
        pc.add(1)
    }
}

impl<T: Number> Fold<T> for Sum {
    #[inline(always)]
    unsafe fn fold(x: *const T, n: usize) -> T {
        // SAFETY: the caller's promise.
        unsafe { pairwise_sum(x, n) }
    }
}

/// Folds `x(0), …, x(n - 1)`, n ≥ 1, into several independent accumulators, so that the compiler uses vectors, then
/// folds those.
#[inline(always)]
fn fold_in_columns<T: Copy>(n: usize, x: impl Fn(usize) -> T, f: impl Fn(T, T) -> T) -> T {
    const COLUMNS: usize = 32;
    let first = x(0);
    if n < 2 * COLUMNS {
        return (1..n).fold(first, |a, k| f(a, x(k)));
    }
    let mut columns = [first; COLUMNS];
    for (k, column) in columns.iter_mut().enumerate() {
        *column = x(k);
    }
    let whole = n - n % COLUMNS;
    for start in (COLUMNS..whole).step_by(COLUMNS) {
        for (k, column) in columns.iter_mut().enumerate() {
            *column = f(*column, x(start + k));
        }
    }
    let rest = (whole..n).fold(first, |a, k| f(a, x(k)));
    f(fold_halves(columns, &f), rest)
}

/// Folds a power-of-two number of values by halving. A sequential fold would wait for each result in turn.
#[inline(always)]
fn fold_halves<T: Copy, const N: usize>(mut x: [T; N], f: impl Fn(T, T) -> T) -> T {
    let mut half = N / 2;
    while half > 0 {
        for k in 0..half {
            x[k] = f(x[k], x[k + half]);
        }
        half /= 2;
    }
    x[0]
}

/// Sums in a tree that pairs neighbours first, level by level. The tree over n elements is the tree over the largest
/// power of two below n plus the tree over the rest, so blocks can be summed one after the other.
///
/// # Safety
/// `x` is valid for reads of `n` ≥ 1 elements.
#[inline(always)]
unsafe fn pairwise_sum<T: Number>(x: *const T, n: usize) -> T {
    const BLOCK: usize = 64;
    // Position k holds the sum of 2^k finished blocks. A carry is a pairing one level up, as in adding 1 to a binary
    // number.
    let mut pending = [T::default(); 64];
    let blocks = n / BLOCK;
    // SAFETY: the caller's promise.
    unsafe {
        for block in 0..blocks {
            let mut sum = block_sum(x.add(block * BLOCK), BLOCK);
            let mut level = 0;
            while block >> level & 1 == 1 {
                sum = pending[level].add(sum);
                level += 1;
            }
            pending[level] = sum;
        }
        let rest = n % BLOCK;
        // Join the pending levels from the smallest up, each to the left of the later sums.
        let mut total = if rest > 0 { Some(block_sum(x.add(blocks * BLOCK), rest)) } else { None };
        for (level, &left) in pending.iter().enumerate() {
            if blocks >> level & 1 == 1 {
                total = Some(match total {
                    Some(right) => left.add(right),
                    None => left,
                });
            }
        }
        total.unwrap_or_default()
    }
}

/// Like [`pairwise_sum`], for at most 64 elements.
///
/// # Safety
/// `x` is valid for reads of `n` elements, 1 ≤ n ≤ 64.
#[inline(always)]
unsafe fn block_sum<T: Number>(x: *const T, n: usize) -> T {
    let mut level = [T::default(); 64];
    // SAFETY: the caller's promise.
    unsafe {
        for (k, slot) in level.iter_mut().enumerate().take(n) {
            *slot = get(x, k);
        }
    }
    let mut n = n;
    while n > 1 {
        let pairs = n / 2;
        for k in 0..pairs {
            level[k] = level[2 * k].add(level[2 * k + 1]);
        }
        if n % 2 == 1 {
            level[pairs] = level[n - 1];
        }
        n = n.div_ceil(2);
    }
    level[0]
}

lane_op!([F: Fold<T>, T: Element] Reduce<F, T> = |m, i| {
    let (dst, x) = (m.lane(i.a).cast::<T>(), m.lane(i.b).cast::<T>());
    let (n, size) = (m.counts[i.d as usize], i.e as usize);
    let (mut start, mut group) = (0, 0);
    while start < n {
        put(dst, group, F::fold(x.add(start), size.min(n - start)));
        start += size;
        group += 1;
    }
});

lane_op!([T: Number] Scan<T> = |m, i| {
    let (dst, x) = (m.lane(i.a).cast::<T>(), m.lane(i.b).cast::<T>());
    let (n, size) = (m.counts[i.d as usize], i.e as usize);
    map1(dst, x, n, |x| x);
    for start in (0..n).step_by(size) {
        let group = dst.add(start);
        let len = size.min(n - start);
        let mut distance = 1;
        while distance < len {
            // Downwards, so that every sum reads the values of the previous step.
            for k in (distance..len).rev() {
                put(group, k, get(group.cast_const(), k - distance).add(get(group.cast_const(), k)));
            }
            distance *= 2;
        }
    }
});

// Fills run in the first strip, and no strip has more elements than its `counts[0]`; the verifier checked that the
// lane's strip memory holds a whole strip.
lane_op!([W: Copy] Fill<W> = |m, i| {
    let bits = m.reg(i.b);
    let x = std::ptr::from_ref(&bits).cast::<W>().read();
    let dst = m.lane(i.a).cast::<W>();
    for k in 0..m.counts[0] {
        put(dst, k, x);
    }
});

lane_op!([W: Copy] Expand<W> = |m, i| {
    let (dst, x) = (m.lane(i.a).cast::<W>(), m.lane(i.b).cast::<W>());
    let (n, size) = (m.counts[i.d as usize], i.e as usize);
    for start in (0..n).step_by(size) {
        let x = get(x, start / size);
        for k in start..n.min(start + size) {
            put(dst, k, x);
        }
    }
});

/// Handler of `Iota`.
pub(crate) fn iota(level: Level) -> Handler {
    handler_for::<Iota>(level)
}

struct Iota;

// A strip has tile_rows * tile_cols elements.
lane_op!([] Iota = |m, i| {
    let dst = m.lane(i.a).cast::<i64>();
    let (rows, cols) = (m.cursor.tile_rows as usize, m.cursor.tile_cols as usize);
    for row in 0..rows {
        let dst = dst.add(row * cols);
        if i.b == 0 {
            let index = (m.cursor.row as i64) + row as i64;
            (0..cols).for_each(|k| put(dst, k, index));
        } else {
            let first = m.cursor.col as i64;
            (0..cols).for_each(|k| put(dst, k, first + k as i64));
        }
    }
});
