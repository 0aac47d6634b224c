//! The float types of 8 and 16 bits: to `f32`, where all arithmetic on them happens, and back. Results have the bits of
//! `ir/scalar/narrow.rs`; without conversion instructions its code is written out.

use super::text::{Hex, Reg, Text};
use crate::ir::Type;

const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0x7f80_0000;
const QUIET_NAN: u32 = 0x7fc0_0000;

/// The same number as an f32, exactly. An f32 is returned as it is.
pub(super) fn to_f32(t: &mut Text, ty: Type, x: Reg) -> Reg {
    match ty {
        Type::BF16 => t.r("shl.b32", &[&x, &16]),
        Type::F16 => {
            let half = t.h("cvt.u16.u32", &[&x]);
            t.r("cvt.f32.f16", &[&half])
        }
        Type::F8E4M3 | Type::F8E5M2 if t.target.has_fp8() => {
            // Every f8 is a half, so the way through halves is exact.
            let pair = t.h("cvt.u16.u32", &[&x]);
            let op = if ty == Type::F8E4M3 { "cvt.rn.f16x2.e4m3x2" } else { "cvt.rn.f16x2.e5m2x2" };
            let halves = t.r(op, &[&pair]);
            let half = t.h("cvt.u16.u32", &[&halves]);
            t.r("cvt.f32.f16", &[&half])
        }
        Type::F8E4M3 => widen(t, x, Format { mantissa: 3, bias: 7, limit: 448.0 }, |t, magnitude, widened| {
            let nan = t.p("setp.eq.u32", &[&magnitude, &0x7f]);
            t.r("selp.b32", &[&QUIET_NAN, &widened, &nan])
        }),
        Type::F8E5M2 => widen(t, x, Format { mantissa: 2, bias: 15, limit: 57344.0 }, |t, magnitude, widened| {
            let shifted = t.r("shl.b32", &[&magnitude, &21]);
            let special = t.r("or.b32", &[&shifted, &INFINITY]);
            let is_special = t.p("setp.ge.u32", &[&magnitude, &0x7c]);
            t.r("selp.b32", &[&special, &widened, &is_special])
        }),
        _ => x,
    }
}

/// The nearest number of the type to an f32, ties to even; f8 saturates. An f32 is returned as it is.
pub(super) fn from_f32(t: &mut Text, ty: Type, x: Reg) -> Reg {
    match ty {
        Type::BF16 => {
            let half = t.h("cvt.rn.bf16.f32", &[&x]);
            t.r("cvt.u32.u16", &[&half])
        }
        Type::F16 => {
            let half = t.h("cvt.rn.f16.f32", &[&x]);
            t.r("cvt.u32.u16", &[&half])
        }
        Type::F8E4M3 | Type::F8E5M2 if t.target.has_fp8() => {
            let op = if ty == Type::F8E4M3 { "cvt.rn.satfinite.e4m3x2.f32" } else { "cvt.rn.satfinite.e5m2x2.f32" };
            let zero = t.r_const(0);
            let pair = t.h(op, &[&zero, &x]);
            t.r("cvt.u32.u16", &[&pair])
        }
        Type::F8E4M3 => round(t, x, Format { mantissa: 3, bias: 7, limit: 448.0 }),
        Type::F8E5M2 => round(t, x, Format { mantissa: 2, bias: 15, limit: 57344.0 }),
        _ => x,
    }
}

/// Converts elements packed in words to f32s, two at a time, if there is an instruction for it.
pub(super) fn words_to_f32(t: &mut Text, ty: Type, words: &[Reg]) -> Option<Vec<Reg>> {
    let widen: fn(&mut Text, Type, Reg) -> Vec<Reg> = match ty {
        // The low half moves up, the high half is there already.
        Type::BF16 => |t, _, word| vec![t.r("shl.b32", &[&word, &16]), t.r("and.b32", &[&word, &Hex(0xffff_0000)])],
        Type::F16 => |t, _, word| halves_to_f32(t, word),
        Type::F8E4M3 | Type::F8E5M2 if t.target.has_fp8() => |t, ty, word| {
            let op = if ty == Type::F8E4M3 { "cvt.rn.f16x2.e4m3x2" } else { "cvt.rn.f16x2.e5m2x2" };
            let pairs = t.halves(word);
            pairs
                .into_iter()
                .flat_map(|pair| {
                    let halves = t.r(op, &[&pair]);
                    halves_to_f32(t, halves)
                })
                .collect()
        },
        _ => return None,
    };
    Some(words.iter().flat_map(|&word| widen(t, ty, word)).collect())
}

fn halves_to_f32(t: &mut Text, word: Reg) -> Vec<Reg> {
    t.halves(word).into_iter().map(|half| t.r("cvt.f32.f16", &[&half])).collect()
}

/// The inverse: f32s, enough to fill words, as packed elements.
pub(super) fn words_from_f32(t: &mut Text, ty: Type, x: &[Reg]) -> Option<Vec<Reg>> {
    let op = match ty {
        Type::BF16 => "cvt.rn.bf16x2.f32",
        Type::F16 => "cvt.rn.f16x2.f32",
        Type::F8E4M3 if t.target.has_fp8() => "cvt.rn.satfinite.e4m3x2.f32",
        Type::F8E5M2 if t.target.has_fp8() => "cvt.rn.satfinite.e5m2x2.f32",
        _ => return None,
    };
    // The first operand is the upper element.
    let word = |x: &[Reg]| match *x {
        [a, b] => t.r(op, &[&b, &a]),
        [a, b, c, d] => {
            let (low, high) = (t.h(op, &[&b, &a]), t.h(op, &[&d, &c]));
            t.r("mov.b32", &[&format_args!("{{{low}, {high}}}")])
        }
        _ => unreachable!("a word of elements"),
    };
    Some(x.chunks(4 / ty.size()).map(word).collect())
}

/// The nearest number of a narrow type to an f64, rounded once: through an f32 rounded to odd.
pub(super) fn from_f64(t: &mut Text, ty: Type, x: Reg) -> Reg {
    let nearest = t.r("cvt.rn.f32.f64", &[&x]);
    let back = t.d("cvt.f64.f32", &[&nearest]);
    let (size, size_back) = (t.d("abs.f64", &[&x]), t.d("abs.f64", &[&back]));
    let away = t.p("setp.gt.f64", &[&size_back, &size]);
    let inexact = t.p("setp.neu.f64", &[&back, &x]);
    let (away, inexact) = (t.r("selp.b32", &[&1, &0, &away]), t.r("selp.b32", &[&1, &0, &inexact]));
    let odd = t.r("sub.u32", &[&nearest, &away]);
    let odd = t.r("or.b32", &[&odd, &inexact]);
    from_f32(t, ty, odd)
}

/// Numbers as integers in the order of the floats, `-0` before `+0`; and a predicate for NaN.
pub(super) fn order(t: &mut Text, ty: Type, x: Reg) -> (Reg, Reg) {
    let top = match ty {
        Type::F16 => 0x7c00,
        Type::BF16 => 0x7f80,
        Type::F8E4M3 => 0x7e,
        _ => 0x7c,
    };
    let largest = (1u32 << (ty.bits() - 1)) - 1;
    let signed = t.r(if ty.size() == 1 { "cvt.s32.s8" } else { "cvt.s32.s16" }, &[&x]);
    let fill = t.r("shr.s32", &[&signed, &31]);
    let flip = t.r("and.b32", &[&fill, &largest]);
    let order = t.r("xor.b32", &[&signed, &flip]);
    let magnitude = t.r("and.b32", &[&x, &largest]);
    (order, t.p("setp.gt.u32", &[&magnitude, &top]))
}

/// A float format: mantissa bits, exponent bias, largest finite number.
#[derive(Clone, Copy)]
struct Format {
    mantissa: u32,
    bias: u32,
    limit: f32,
}

/// `widen_magnitude` of `ir/scalar/narrow.rs` for 8 bits; `special` replaces what is not finite.
fn widen(t: &mut Text, x: Reg, format: Format, special: impl FnOnce(&mut Text, Reg, Reg) -> Reg) -> Reg {
    let magnitude = t.r("and.b32", &[&x, &0x7f]);
    let shifted = t.r("shl.b32", &[&magnitude, &(23 - format.mantissa)]);
    let normal = t.r("add.u32", &[&shifted, &((127 - format.bias) << 23)]);
    let one = (128 - format.bias) << 23;
    let with_one = t.r("add.u32", &[&shifted, &one]);
    let one = t.r("mov.b32", &[&Hex(one.into())]);
    let denormal = t.r("sub.rn.f32", &[&with_one, &one]);
    let is_denormal = t.p("setp.lt.u32", &[&magnitude, &(1 << format.mantissa)]);
    let widened = t.r("selp.b32", &[&denormal, &normal, &is_denormal]);
    let widened = special(t, magnitude, widened);
    let sign = t.r("and.b32", &[&x, &0x80]);
    let sign = t.r("shl.b32", &[&sign, &24]);
    t.r("or.b32", &[&sign, &widened])
}

/// `round_magnitude` of `ir/scalar/narrow.rs` for 8 bits, with the sign and NaN.
fn round(t: &mut Text, x: Reg, format: Format) -> Reg {
    let cut = 23 - format.mantissa;
    let magnitude = t.r("and.b32", &[&x, &(!SIGN)]);
    let limit = t.r("mov.b32", &[&Hex(format.limit.to_bits().into())]);
    let beyond = t.p("setp.lt.f32", &[&limit, &magnitude]);
    let magnitude = t.r("selp.b32", &[&limit, &magnitude, &beyond]);
    let smallest_normal = (128 - format.bias) << 23;
    let exponent = t.r("and.b32", &[&magnitude, &INFINITY]);
    let exponent = t.r("max.u32", &[&exponent, &smallest_normal]);
    let rounder = t.r("add.u32", &[&exponent, &(cut << 23)]);
    let sum = t.r("add.rn.f32", &[&magnitude, &rounder]);
    let places = t.r("sub.u32", &[&sum, &rounder]);
    let before = t.r("shr.u32", &[&exponent, &cut]);
    let code = t.r("add.u32", &[&places, &before]);
    let code = t.r("sub.u32", &[&code, &(smallest_normal >> cut)]);
    let sign = t.r("shr.u32", &[&x, &24]);
    let sign = t.r("and.b32", &[&sign, &0x80]);
    let code = t.r("or.b32", &[&code, &sign]);
    let nan = t.p("setp.nan.f32", &[&x, &x]);
    let quiet = t.r("or.b32", &[&sign, &0x7f]);
    t.r("selp.b32", &[&quiet, &code, &nan])
}
