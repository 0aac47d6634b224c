//! Conversions over a strip, alone and fused with the op beside them.

use super::super::code::Kind;
use super::super::level::Level;
use super::super::machine::{Handler, Inst, Machine};
use super::super::scalar_op::{Add, Binary, Div, Max, Min, Mul, Sub, by_type};
use super::{LaneOp, get, handler_for, map1, map2, narrow_handler_for, stream};
use crate::ir::scalar::{Bf16, CastTo, Element, F8E4M3, F8E5M2, F16};
use crate::ir::{BinaryOp, Type};
use std::marker::PhantomData;

/// Handler of `LCast`.
pub(crate) fn cast(from: Type, to: Type, level: Level) -> Handler {
    match (from, to) {
        (Type::Bool, Type::Bool) => narrow_handler_for::<Cast<bool, bool>>(level),
        (Type::Bool, _) => by_type!(number to, T => narrow_handler_for::<Cast<bool, T>>(level)),
        (_, Type::Bool) => by_type!(number from, F => narrow_handler_for::<Cast<F, bool>>(level)),
        // The conversions kernels are made of get every level.
        (Type::F32, _) => by_type!(number to, T => handler_for::<Cast<f32, T>>(level)),
        (_, Type::F32) => by_type!(number from, F => handler_for::<Cast<F, f32>>(level)),
        _ => by_type!(number from, F => by_type!(number to, T => narrow_handler_for::<Cast<F, T>>(level))),
    }
}

/// Whether [`widen`] has a handler.
pub(crate) fn has_widen_form(op: BinaryOp, from: Type) -> bool {
    matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Max | BinaryOp::Min)
        && matches!(from, Type::BF16 | Type::F16 | Type::F8E4M3 | Type::F8E5M2)
}

/// Handler of `LBinaryWiden`: `f32 op f32(narrow)` without a pass of its own for the conversion.
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

/// Whether [`narrow`] has a handler.
pub(crate) fn has_narrow_form(op: BinaryOp, to: Type) -> bool {
    matches!(op, BinaryOp::Mul | BinaryOp::Div | BinaryOp::Add)
        && matches!(to, Type::BF16 | Type::F16 | Type::F8E4M3 | Type::F8E5M2 | Type::I8)
}

/// Handler of `LBinaryNarrow`: `narrow(f32 op f32)`: scale and quantise in one pass.
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
    fn of_kind<O: Binary<f32> + 'static, T: Element>(kind: Kind, level: Level) -> Handler
    where
        f32: CastTo<T>,
    {
        match kind {
            Kind::Lane => handler_for::<NarrowLanes<O, T>>(level),
            Kind::Uniform => handler_for::<NarrowUniform<O, T>>(level),
            Kind::Group => handler_for::<NarrowGroups<O, T>>(level),
        }
    }
    match op {
        BinaryOp::Mul => with::<Mul>(to, kind, level),
        BinaryOp::Div => with::<Div>(to, kind, level),
        BinaryOp::Add => with::<Add>(to, kind, level),
        other => unreachable!("the lowering does not narrow {other:?}"),
    }
}

struct Cast<F, T>(PhantomData<(F, T)>);
struct Widen<O, F>(PhantomData<(O, F)>);
struct NarrowLanes<O, T>(PhantomData<(O, T)>);
struct NarrowUniform<O, T>(PhantomData<(O, T)>);
struct NarrowGroups<O, T>(PhantomData<(O, T)>);

// SAFETY, for every `unsafe` in this file: as in `arithmetic`: verified operands, lanes of the op's element size with at least
// `counts[d]` elements.

impl<F: CastTo<T>, T: Element> LaneOp for Cast<F, T> {
    #[inline(always)]
    unsafe fn run(m: &mut Machine, pc: *const Inst) -> *const Inst {
        // SAFETY: see above. A bool is read as a byte first: a tensor may hold any byte, and any but 0 is true.
        unsafe {
            let i = *pc;
            let (dst, src, n) = (m.lane(i.a), m.lane(i.b), m.counts[i.d as usize]);
            if F::TYPE == Type::Bool {
                map1(dst.cast::<T>(), src, n, |x: u8| F::from_bits(x as u64).cast());
            } else if F::TYPE == Type::U8 && T::TYPE == Type::Bool {
                map1(dst, src, n, |x: u8| (x != 0) as u8);
            } else {
                map1(dst.cast::<T>(), src.cast::<F>(), n, |x: F| x.cast());
            }
            pc.add(1)
        }
    }
}

impl<O: Binary<f32>, F: CastTo<f32>> LaneOp for Widen<O, F> {
    #[inline(always)]
    unsafe fn run(m: &mut Machine, pc: *const Inst) -> *const Inst {
        // SAFETY: see above.
        unsafe {
            let i = *pc;
            let (dst, a, b) = (m.lane(i.a).cast::<f32>(), m.lane(i.b).cast::<f32>(), m.lane(i.c).cast::<F>());
            let n = m.counts[i.d as usize];
            if m.streams_to(i.a) {
                stream(dst, a, n, |k| O::apply(get(a, k), get(b, k).cast()));
            } else {
                map2(dst, a, b, n, |a, b: F| O::apply(a, b.cast()));
            }
            pc.add(1)
        }
    }
}

impl<O: Binary<f32>, T: Element> LaneOp for NarrowLanes<O, T>
where
    f32: CastTo<T>,
{
    #[inline(always)]
    unsafe fn run(m: &mut Machine, pc: *const Inst) -> *const Inst {
        // SAFETY: see above.
        unsafe {
            let i = *pc;
            let (dst, a, b) = (m.lane(i.a).cast::<T>(), m.lane(i.b).cast::<f32>(), m.lane(i.c).cast::<f32>());
            map2(dst, a, b, m.counts[i.d as usize], |a, b| O::apply(a, b).cast());
            pc.add(1)
        }
    }
}

impl<O: Binary<f32>, T: Element> LaneOp for NarrowUniform<O, T>
where
    f32: CastTo<T>,
{
    #[inline(always)]
    unsafe fn run(m: &mut Machine, pc: *const Inst) -> *const Inst {
        // SAFETY: see above.
        unsafe {
            let i = *pc;
            let b = f32::from_bits(m.reg(i.c) as u32);
            map1(m.lane(i.a).cast::<T>(), m.lane(i.b).cast::<f32>(), m.counts[i.d as usize], |a| O::apply(a, b).cast());
            pc.add(1)
        }
    }
}

impl<O: Binary<f32>, T: Element> LaneOp for NarrowGroups<O, T>
where
    f32: CastTo<T>,
{
    #[inline(always)]
    unsafe fn run(m: &mut Machine, pc: *const Inst) -> *const Inst {
        // SAFETY: see above; the group lane has one element per `e` elements, rounded up.
        unsafe {
            let i = *pc;
            let (dst, a, b) = (m.lane(i.a).cast::<T>(), m.lane(i.b).cast::<f32>(), m.lane(i.c).cast::<f32>());
            let (n, size) = (m.counts[i.d as usize], i.e as usize);
            let (mut start, mut group) = (0, 0);
            while start < n {
                let b = get(b, group);
                map1(dst.add(start), a.add(start), size.min(n - start), |a| O::apply(a, b).cast());
                start += size;
                group += 1;
            }
            pc.add(1)
        }
    }
}
