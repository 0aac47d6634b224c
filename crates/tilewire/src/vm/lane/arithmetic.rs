//! Arithmetic, comparison and selection over a strip.

use super::super::code::Kind;
use super::super::level::Level;
use super::super::machine::{Handler, Inst, Machine};
use super::super::scalar_op::{Add, Binary, Compare, Div, Exp, Log, Mul, Sub, Tanh, Unary};
use super::super::scalar_op::{by_binary, by_compare, by_type, by_unary};
use super::{LaneOp, get, handler_for, map1, map2, put, stream, wide_handler_for};
use crate::ir::scalar::{Element, Float};
use crate::ir::{BinaryOp, CompareOp, Type, UnaryOp};
use std::marker::PhantomData;

/// Handler of `LUnary`.
pub(crate) fn unary(op: UnaryOp, ty: Type, level: Level) -> Handler {
    // 512-bit vectors pay off only if arithmetic far outweighs memory: they lower the clock, for all other code too.
    match op {
        UnaryOp::Exp => by_type!(float ty, T => wide_handler_for::<UnaryLanes<Exp, T>>(level)),
        UnaryOp::Log => by_type!(float ty, T => wide_handler_for::<UnaryLanes<Log, T>>(level)),
        UnaryOp::Tanh => by_type!(float ty, T => wide_handler_for::<UnaryLanes<Tanh, T>>(level)),
        _ => by_unary!(op, ty, (O, T) => handler_for::<UnaryLanes<O, T>>(level)),
    }
}

/// Handler of `LBinary`.
pub(crate) fn binary(op: BinaryOp, ty: Type, kind: Kind, level: Level) -> Handler {
    match kind {
        Kind::Lane => by_binary!(op, ty, (O, T) => handler_for::<BinaryLanes<O, T>>(level)),
        Kind::Uniform => by_binary!(op, ty, (O, T) => handler_for::<BinaryUniform<O, T>>(level)),
        // Scales are nearly always f32. The lowering expands other groups into lanes.
        Kind::Group => {
            assert_eq!(ty, Type::F32, "the lowering groups f32 only");
            match op {
                BinaryOp::Mul => handler_for::<BinaryGroups<Mul, f32>>(level),
                BinaryOp::Div => handler_for::<BinaryGroups<Div, f32>>(level),
                BinaryOp::Add => handler_for::<BinaryGroups<Add, f32>>(level),
                BinaryOp::Sub => handler_for::<BinaryGroups<Sub, f32>>(level),
                _ => unreachable!("the lowering groups mul, div, add and sub only"),
            }
        }
    }
}

/// True if [`binary`] has a handler with a group on the right.
pub(crate) fn has_group_form(op: BinaryOp, ty: Type) -> bool {
    ty == Type::F32 && matches!(op, BinaryOp::Mul | BinaryOp::Div | BinaryOp::Add | BinaryOp::Sub)
}

/// Handler of `LCompare`.
pub(crate) fn compare(op: CompareOp, ty: Type, kind: Kind, level: Level) -> Handler {
    match kind {
        Kind::Lane => by_compare!(op, ty, (O, T) => handler_for::<CompareLanes<O, T>>(level)),
        Kind::Uniform => by_compare!(op, ty, (O, T) => handler_for::<CompareUniform<O, T>>(level)),
        Kind::Group => unreachable!("the lowering expands groups before comparisons"),
    }
}

/// Handler of `LSelect` for elements of `size` bytes.
pub(crate) fn select(size: u8, level: Level) -> Handler {
    match size {
        1 => handler_for::<Select<u8>>(level),
        2 => handler_for::<Select<u16>>(level),
        4 => handler_for::<Select<u32>>(level),
        _ => handler_for::<Select<u64>>(level),
    }
}

/// Handler of `LFma`.
pub(crate) fn fma(ty: Type, level: Level) -> Handler {
    by_type!(float ty, T => handler_for::<Fma<T>>(level))
}

/// True if arithmetic of a type has streaming loops. Most large tensors have this type, and other types get no such
/// code.
pub(crate) const fn streams(ty: Type) -> bool {
    matches!(ty, Type::F32)
}

struct UnaryLanes<O, T>(PhantomData<(O, T)>);
struct BinaryLanes<O, T>(PhantomData<(O, T)>);
struct BinaryUniform<O, T>(PhantomData<(O, T)>);
struct BinaryGroups<O, T>(PhantomData<(O, T)>);
struct CompareLanes<O, T>(PhantomData<(O, T)>);
struct CompareUniform<O, T>(PhantomData<(O, T)>);
struct Select<W>(PhantomData<W>);
struct Fma<T>(PhantomData<T>);

lane_op!([O: Unary<T>, T: Element] UnaryLanes<O, T> = |m, i| {
    let (dst, x, n) = (m.lane(i.a).cast::<T>(), m.lane(i.b).cast::<T>(), m.counts[i.d as usize]);
    if streams(T::TYPE) && m.streams_to(i.a) {
        stream(dst, x, n, |k| O::apply(get(x, k)));
    } else {
        map1(dst, x, n, |x| O::apply(x));
    }
});

lane_op!([O: Binary<T>, T: Element] BinaryLanes<O, T> = |m, i| {
    let (dst, a, b) = (m.lane(i.a).cast::<T>(), m.lane(i.b).cast::<T>(), m.lane(i.c).cast::<T>());
    let n = m.counts[i.d as usize];
    if streams(T::TYPE) && m.streams_to(i.a) {
        stream(dst, a, n, |k| O::apply(get(a, k), get(b, k)));
    } else {
        map2(dst, a, b, n, |a, b| O::apply(a, b));
    }
});

lane_op!([O: Binary<T>, T: Element] BinaryUniform<O, T> = |m, i| {
    let b = T::from_bits(m.reg(i.c));
    let (dst, a, n) = (m.lane(i.a).cast::<T>(), m.lane(i.b).cast::<T>(), m.counts[i.d as usize]);
    if streams(T::TYPE) && m.streams_to(i.a) {
        stream(dst, a, n, |k| O::apply(get(a, k), b));
    } else {
        map1(dst, a, n, |a| O::apply(a, b));
    }
});

lane_op!([O: Binary<T>, T: Element] BinaryGroups<O, T> = |m, i| {
    let (dst, a, b) = (m.lane(i.a).cast::<T>(), m.lane(i.b).cast::<T>(), m.lane(i.c).cast::<T>());
    let (n, size) = (m.counts[i.d as usize], i.e as usize);
    let (mut start, mut group) = (0, 0);
    while start < n {
        let b = get(b, group);
        map1(dst.add(start), a.add(start), size.min(n - start), |a| O::apply(a, b));
        start += size;
        group += 1;
    }
});

lane_op!([O: Compare<T>, T: Element] CompareLanes<O, T> = |m, i| {
    let (dst, a, b) = (m.lane(i.a), m.lane(i.b).cast::<T>(), m.lane(i.c).cast::<T>());
    map2(dst, a, b, m.counts[i.d as usize], |a, b| O::apply(a, b) as u8);
});

lane_op!([O: Compare<T>, T: Element] CompareUniform<O, T> = |m, i| {
    let b = T::from_bits(m.reg(i.c));
    map1(m.lane(i.a), m.lane(i.b).cast::<T>(), m.counts[i.d as usize], |a| O::apply(a, b) as u8);
});

lane_op!([W: Copy] Select<W> = |m, i| {
    let (dst, cond) = (m.lane(i.a).cast::<W>(), m.lane(i.b));
    let (a, b) = (m.lane(i.c).cast::<W>(), m.lane(i.e as u16).cast::<W>());
    for k in 0..m.counts[i.d as usize] {
        let (x, y) = (get(a, k), get(b, k));
        put(dst, k, if get(cond, k) != 0 { x } else { y });
    }
});

lane_op!([T: Float] Fma<T> = |m, i| {
    let (dst, c) = (m.lane(i.a).cast::<T>(), m.lane(i.e as u16).cast::<T>());
    let (a, b) = (m.lane(i.b).cast::<T>(), m.lane(i.c).cast::<T>());
    for k in 0..m.counts[i.d as usize] {
        put(dst, k, get(a, k).fma(get(b, k), get(c, k)));
    }
});
