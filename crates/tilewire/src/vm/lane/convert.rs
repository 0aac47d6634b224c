//! Conversions over a strip, alone or fused with an adjacent op.
// The packed blocks are x86 code.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_mut))]

use super::super::code::Kind;
use super::super::level::Level;
use super::super::machine::{Handler, Inst, Machine};
use super::super::scalar_op::{Add, Binary, Div, Max, Min, Mul, Sub, by_type};
use super::{LaneOp, get, handler_for, map1, map2, put, stream, wide_handler_for};
use crate::ir::scalar::{Bf16, CastTo, Element, F8E4M3, F8E5M2, F16};
use crate::ir::{BinaryOp, Type};
use std::marker::PhantomData;

/// Handler of `LCast`.
pub(crate) fn cast(from: Type, to: Type, level: Level) -> Handler {
    match (from, to) {
        (Type::Bool, Type::Bool) => handler_for::<Cast<bool, bool>>(level),
        (Type::Bool, _) => by_type!(number to, T => handler_for::<Cast<bool, T>>(level)),
        (_, Type::Bool) => by_type!(number from, F => handler_for::<Cast<F, bool>>(level)),
        (Type::F32, Type::F8E4M3) => handler_for::<CastNarrow<F8E4M3>>(level),
        (Type::F32, Type::F8E5M2) => handler_for::<CastNarrow<F8E5M2>>(level),
        _ => by_type!(number from, F => by_type!(number to, T => handler_for::<Cast<F, T>>(level))),
    }
}

/// True if [`widen`] has a handler.
pub(crate) fn has_widen_form(op: BinaryOp, from: Type) -> bool {
    matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Max | BinaryOp::Min)
        && matches!(from, Type::BF16 | Type::F16 | Type::F8E4M3 | Type::F8E5M2)
}

/// Handler of `LBinaryWiden`: `f32 op f32(narrow)` without a separate pass for the conversion.
pub(crate) fn widen(op: BinaryOp, from: Type, level: Level) -> Handler {
    fn with<O: Binary<f32> + 'static>(from: Type, level: Level) -> Handler {
        match from {
            Type::BF16 => handler_for::<Widen<O, Bf16>>(level),
            Type::F16 => handler_for::<Widen<O, F16>>(level),
            Type::F8E4M3 => handler_for::<Widen<O, F8E4M3>>(level),
            Type::F8E5M2 => handler_for::<Widen<O, F8E5M2>>(level),
            other => unreachable!("the lowering widens narrow floats only, not {other}"),
        }
    }
    match op {
        BinaryOp::Add => with::<Add>(from, level),
        BinaryOp::Sub => with::<Sub>(from, level),
        BinaryOp::Mul => with::<Mul>(from, level),
        BinaryOp::Max => with::<Max>(from, level),
        BinaryOp::Min => with::<Min>(from, level),
        other => unreachable!("the lowering does not widen into {other:?}"),
    }
}

/// True if [`narrow`] has a handler.
pub(crate) fn has_narrow_form(op: BinaryOp, to: Type) -> bool {
    matches!(op, BinaryOp::Mul | BinaryOp::Div | BinaryOp::Add)
        && matches!(to, Type::BF16 | Type::F16 | Type::F8E4M3 | Type::F8E5M2 | Type::I8)
}

/// Handler of `LBinaryNarrow`, `narrow(f32 op f32)`: scales and quantises in one pass.
pub(crate) fn narrow(op: BinaryOp, to: Type, kind: Kind, level: Level) -> Handler {
    fn with<O: Binary<f32> + 'static>(to: Type, kind: Kind, level: Level) -> Handler {
        match to {
            Type::BF16 => of_kind::<O, Bf16>(kind, level),
            Type::F16 => of_kind::<O, F16>(kind, level),
            Type::F8E4M3 => of_kind::<O, F8E4M3>(kind, level),
            Type::F8E5M2 => of_kind::<O, F8E5M2>(kind, level),
            Type::I8 => of_kind::<O, i8>(kind, level),
            other => unreachable!("the lowering does not narrow into {other}"),
        }
    }
    fn of_kind<O: Binary<f32> + 'static, T: Narrow>(kind: Kind, level: Level) -> Handler
    where
        f32: CastTo<T>,
    {
        match kind {
            Kind::Lane => handler_for::<NarrowLanes<O, T>>(level),
            Kind::Uniform => wide_handler_for::<NarrowUniform<O, T>>(level),
            Kind::Group => wide_handler_for::<NarrowGroups<O, T>>(level),
        }
    }
    match op {
        BinaryOp::Mul => with::<Mul>(to, kind, level),
        BinaryOp::Div => with::<Div>(to, kind, level),
        BinaryOp::Add => with::<Add>(to, kind, level),
        other => unreachable!("the lowering does not narrow {other:?}"),
    }
}

/// A type that f32 narrows to.
trait Narrow: Element {
    /// True if the conversion has a short form.
    const SHORT: bool = false;
    /// The short form: the element's bits in a word, or for NaN a word with the top bit set.
    fn code_of_number(_: f32) -> u32 {
        0
    }
}

impl Narrow for Bf16 {}
impl Narrow for F16 {}
impl Narrow for i8 {}
impl Narrow for F8E4M3 {
    const SHORT: bool = true;
    #[inline(always)]
    fn code_of_number(x: f32) -> u32 {
        F8E4M3::code_of_number(x)
    }
}
impl Narrow for F8E5M2 {
    const SHORT: bool = true;
    #[inline(always)]
    fn code_of_number(x: f32) -> u32 {
        F8E5M2::code_of_number(x)
    }
}

/// `dst[i] = narrow(f(i))`. Bytes are computed on the assumption that there is no NaN, which their words reveal
/// afterwards. They stay 32 bits wide until a block of them is packed. Together this saves a third of the instructions
/// of the compiler's own loop.
///
/// # Safety
/// `dst` is valid for `n` elements, and `f` reads none of them; `f` may be called for each of 0..n; with `AVX2` the
/// processor supports AVX2.
#[inline(always)]
unsafe fn narrow_all<T: Narrow, const AVX2: bool>(dst: *mut T, n: usize, f: impl Fn(usize) -> f32)
where
    f32: CastTo<T>,
{
    let mut at = 0;
    // SAFETY: the caller's promise; a block is written only if BLOCK elements are left.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if T::SHORT {
            use std::arch::x86_64::*;
            // Bytes in 32 bits: no pack saturates, except for NaN, whose word stays negative through the first pack.
            if AVX2 {
                const BLOCK: usize = 32;
                let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
                let mut all = _mm256_setzero_si256();
                while at + BLOCK <= n {
                    let mut codes = [0u32; BLOCK];
                    for (k, code) in codes.iter_mut().enumerate() {
                        *code = T::code_of_number(f(at + k));
                    }
                    let part = |k: usize| _mm256_loadu_si256(codes.as_ptr().add(8 * k).cast());
                    let (low, high) = (_mm256_packs_epi32(part(0), part(1)), _mm256_packs_epi32(part(2), part(3)));
                    all = _mm256_or_si256(all, _mm256_or_si256(low, high));
                    let bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
                    _mm256_storeu_si256(dst.add(at).cast(), bytes);
                    at += BLOCK;
                }
                if _mm256_movemask_epi8(all) & 0xaaaa_aaaa_u32 as i32 != 0 {
                    at = 0;
                }
            } else {
                const BLOCK: usize = 16;
                let mut all = _mm_setzero_si128();
                while at + BLOCK <= n {
                    let mut codes = [0u32; BLOCK];
                    for (k, code) in codes.iter_mut().enumerate() {
                        *code = T::code_of_number(f(at + k));
                    }
                    let part = |k: usize| _mm_loadu_si128(codes.as_ptr().add(4 * k).cast());
                    let (low, high) = (_mm_packs_epi32(part(0), part(1)), _mm_packs_epi32(part(2), part(3)));
                    all = _mm_or_si128(all, _mm_or_si128(low, high));
                    _mm_storeu_si128(dst.add(at).cast(), _mm_packus_epi16(low, high));
                    at += BLOCK;
                }
                if _mm_movemask_epi8(all) & 0xaaaa != 0 {
                    at = 0;
                }
            }
        }
        for i in at..n {
            put(dst, i, f(i).cast());
        }
    }
}

struct Cast<F, T>(PhantomData<(F, T)>);
struct CastNarrow<T>(PhantomData<T>);
struct Widen<O, F>(PhantomData<(O, F)>);
struct NarrowLanes<O, T>(PhantomData<(O, T)>);
struct NarrowUniform<O, T>(PhantomData<(O, T)>);
struct NarrowGroups<O, T>(PhantomData<(O, T)>);

// A bool is read as a byte first: a tensor may hold any byte, and every nonzero byte is true.
lane_op!([F: CastTo<T>, T: Element] Cast<F, T> = |m, i| {
    let (dst, src, n) = (m.lane(i.a), m.lane(i.b), m.counts[i.d as usize]);
    if F::TYPE == Type::Bool {
        map1(dst.cast::<T>(), src, n, |x: u8| F::from_bits(x as u64).cast());
    } else if F::TYPE == Type::U8 && T::TYPE == Type::Bool {
        map1(dst, src, n, |x: u8| (x != 0) as u8);
    } else {
        let (dst, src) = (dst.cast::<T>(), src.cast::<F>());
        map1(dst, src, n, |x: F| x.cast());
    }
});

lane_op!([T: Narrow] CastNarrow<T> where f32: CastTo<T> = |m, i| {
    let (dst, x) = (m.lane(i.a).cast::<T>(), m.lane(i.b).cast::<f32>());
    narrow_all::<T, AVX2>(dst, m.counts[i.d as usize], |k| get(x, k));
});

lane_op!([O: Binary<f32>, F: CastTo<f32>] Widen<O, F> = |m, i| {
    let (dst, a, b) = (m.lane(i.a).cast::<f32>(), m.lane(i.b).cast::<f32>(), m.lane(i.c).cast::<F>());
    let n = m.counts[i.d as usize];
    if m.streams_to(i.a) {
        stream(dst, a, n, |k| O::apply(get(a, k), get(b, k).cast()));
    } else {
        map2(dst, a, b, n, |a, b: F| O::apply(a, b.cast()));
    }
});

lane_op!([O: Binary<f32>, T: Narrow] NarrowLanes<O, T> where f32: CastTo<T> = |m, i| {
    let (dst, a, b) = (m.lane(i.a).cast::<T>(), m.lane(i.b).cast::<f32>(), m.lane(i.c).cast::<f32>());
    narrow_all::<T, AVX2>(dst, m.counts[i.d as usize], |k| O::apply(get(a, k), get(b, k)));
});

lane_op!([O: Binary<f32>, T: Narrow] NarrowUniform<O, T> where f32: CastTo<T> = |m, i| {
    let b = f32::from_bits(m.reg(i.c) as u32);
    let (dst, a) = (m.lane(i.a).cast::<T>(), m.lane(i.b).cast::<f32>());
    narrow_all::<T, AVX2>(dst, m.counts[i.d as usize], |k| O::apply(get(a, k), b));
});

lane_op!([O: Binary<f32>, T: Narrow] NarrowGroups<O, T> where f32: CastTo<T> = |m, i| {
    let (dst, a, b) = (m.lane(i.a).cast::<T>(), m.lane(i.b).cast::<f32>(), m.lane(i.c).cast::<f32>());
    let (n, size) = (m.counts[i.d as usize], i.e as usize);
    let (mut start, mut group) = (0, 0);
    while start < n {
        let b = get(b, group);
        let (dst, a) = (dst.add(start), a.add(start));
        narrow_all::<T, AVX2>(dst, size.min(n - start), |k| O::apply(get(a, k), b));
        start += size;
        group += 1;
    }
});
