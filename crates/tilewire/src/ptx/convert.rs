//! Conversions between all pairs of types, as `Op::Cast` and `Op::Bitcast` define them.

use super::narrow::{from_f32, from_f64, to_f32};
use super::text::{Reg, Text};
use crate::ir::Type;
use crate::ir::scalar::dynamic;

/// `x`, a value of type `from`, converted.
pub(super) fn cast(t: &mut Text, from: Type, to: Type, x: Reg) -> Reg {
    match (from, to) {
        _ if from == to => x,
        (Type::Bool, _) => {
            let one = dynamic::cast(Type::Bool, to, 1);
            let (one, zero) = (t.constant(to, one), t.constant(to, 0));
            t.op_select(to, x, one, zero)
        }
        (_, Type::Bool) => match from {
            Type::F32 => t.p("setp.neu.f32", &[&x, &"0f00000000"]),
            Type::F64 => t.p("setp.neu.f64", &[&x, &"0d0000000000000000"]),
            _ if from.is_float() => {
                let wide = to_f32(t, from, x);
                t.p("setp.neu.f32", &[&wide, &"0f00000000"])
            }
            _ if from.size() == 8 => t.p("setp.ne.u64", &[&x, &0]),
            _ => t.p("setp.ne.u32", &[&x, &0]),
        },
        _ if from.is_int() && to.is_int() => integer(t, from, to, x),
        _ if from.is_int() => integer_to_float(t, from, to, x),
        _ if to.is_int() => float_to_integer(t, from, to, x),
        (Type::F64, Type::F32) => t.r("cvt.rn.f32.f64", &[&x]),
        (Type::F64, _) => from_f64(t, to, x),
        (_, Type::F64) => {
            let wide = to_f32(t, from, x);
            t.d("cvt.f64.f32", &[&wide])
        }
        _ => {
            let wide = to_f32(t, from, x);
            from_f32(t, to, wide)
        }
    }
}

/// The same bits as another type of the same size.
pub(super) fn bitcast(t: &mut Text, to: Type, x: Reg) -> Reg {
    normal(t, bits_of(to), to, x)
}

/// The unsigned integer type of the same size.
pub(super) fn bits_of(ty: Type) -> Type {
    match ty.size() {
        1 => Type::U8,
        2 => Type::U16,
        4 => Type::U32,
        _ => Type::U64,
    }
}

/// Normalises a register whose low bits are an integer of type `to` into the form that registers of `to` have.
pub(super) fn normal(t: &mut Text, from: Type, to: Type, x: Reg) -> Reg {
    debug_assert_eq!(from.size(), to.size());
    match to {
        Type::I8 => t.r("cvt.s32.s8", &[&x]),
        Type::I16 => t.r("cvt.s32.s16", &[&x]),
        _ if to.size() == 1 => t.r("and.b32", &[&x, &0xff]),
        _ if to.size() == 2 => t.r("and.b32", &[&x, &0xffff]),
        _ => x,
    }
}

fn integer(t: &mut Text, from: Type, to: Type, x: Reg) -> Reg {
    match (from.size(), to.size()) {
        (8, 8) => x,
        (_, 8) if from.is_signed_int() => t.d("cvt.s64.s32", &[&x]),
        (_, 8) => t.d("cvt.u64.u32", &[&x]),
        (8, _) => {
            let low = t.r("cvt.u32.u64", &[&x]);
            normal(t, bits_of(to), to, low)
        }
        _ => normal(t, bits_of(to), to, x),
    }
}

fn integer_to_float(t: &mut Text, from: Type, to: Type, x: Reg) -> Reg {
    let kind = match (from.is_signed_int(), from.size() == 8) {
        (true, false) => "s32",
        (false, false) => "u32",
        (true, true) => "s64",
        (false, true) => "u64",
    };
    match to {
        Type::F32 => t.r(&format!("cvt.rn.f32.{kind}"), &[&x]),
        Type::F64 => t.d(&format!("cvt.rn.f64.{kind}"), &[&x]),
        // Exact in f32.
        _ if from.size() <= 2 => {
            let wide = t.r(&format!("cvt.rn.f32.{kind}"), &[&x]);
            from_f32(t, to, wide)
        }
        // Exact in f64.
        _ if from.size() == 4 => {
            let wide = t.d(&format!("cvt.rn.f64.{kind}"), &[&x]);
            from_f64(t, to, wide)
        }
        _ if from.is_signed_int() => {
            let negative = t.p("setp.lt.s64", &[&x, &0]);
            let minus = t.d("neg.s64", &[&x]);
            let magnitude = t.d("selp.b64", &[&minus, &x, &negative]);
            let odd = to_odd(t, magnitude);
            let minus = t.d("neg.f64", &[&odd]);
            let wide = t.d("selp.b64", &[&minus, &odd, &negative]);
            from_f64(t, to, wide)
        }
        _ => {
            let odd = to_odd(t, x);
            from_f64(t, to, odd)
        }
    }
}

/// `unsigned_to_odd` of `ir/scalar/cast.rs`.
fn to_odd(t: &mut Text, x: Reg) -> Reg {
    let lost = t.d("and.b64", &[&x, &0x7ff]);
    let cut = t.d("sub.u64", &[&x, &lost]);
    let inexact = t.p("setp.ne.u64", &[&lost, &0]);
    let odd = t.d("selp.b64", &[&(1 << 11), &0, &inexact]);
    let cut = t.d("or.b64", &[&cut, &odd]);
    let top = t.d("shr.u64", &[&x, &53]);
    let fits = t.p("setp.eq.u64", &[&top, &0]);
    let exact = t.d("selp.b64", &[&x, &cut, &fits]);
    t.d("cvt.rn.f64.u64", &[&exact])
}

/// Truncates, saturates, NaN → 0. The instruction clamps; its result for NaN depends on the types.
fn float_to_integer(t: &mut Text, from: Type, to: Type, x: Reg) -> Reg {
    let (x, kind) = if from == Type::F64 { (x, "f64") } else { (to_f32(t, from, x), "f32") };
    let nan = t.p(&format!("setp.nan.{kind}"), &[&x, &x]);
    let signed = to.is_signed_int();
    if to.size() == 8 {
        let whole = t.d(&format!("cvt.rzi.{}.{kind}", if signed { "s64" } else { "u64" }), &[&x]);
        return t.d("selp.b64", &[&0, &whole, &nan]);
    }
    let whole = t.r(&format!("cvt.rzi.{}.{kind}", if signed { "s32" } else { "u32" }), &[&x]);
    let whole = t.r("selp.b32", &[&0, &whole, &nan]);
    match (signed, to.size()) {
        (_, 4) => whole,
        (true, size) => {
            let most = (1i32 << (size * 8 - 1)) - 1;
            let below = t.r("min.s32", &[&whole, &most]);
            t.r("max.s32", &[&below, &(-most - 1)])
        }
        (false, size) => t.r("min.u32", &[&whole, &((1u32 << (size * 8)) - 1)]),
    }
}
