//! Conversions between all pairs of types, as `Op::Cast` defines them. Each rounds once:
//!
//! - an integer goes to a narrow float through a wider float that holds it exactly, or, for 64 bits, holds it *rounded
//!   to odd*, which the second rounding cannot mistake for a tie;
//! - `f64` goes to a narrow float through an `f32` rounded to odd;
//! - narrow floats are exact in `f32`, so everything from them starts there.

use super::element::Element;
use super::narrow::{Bf16, F8E4M3, F8E5M2, F16};

/// Conversion to `U` with the rounding, wrapping and saturation of `Op::Cast`; implemented for every pair of types.
///
/// ```
/// use tilewire::ir::scalar::{Bf16, CastTo, F8E4M3};
/// let x: F8E4M3 = 1000i32.cast();
/// assert_eq!(x.to_f32(), 448.0);
/// let y: i8 = Bf16::from_f32(-300.0).cast();
/// assert_eq!(y, -128);
/// ```
pub trait CastTo<U>: Element {
    /// Converts.
    fn cast(self) -> U;
}

/// `impl CastTo<to> for from` for a list of targets; `Out` is the target in the body.
macro_rules! cast {
    ($from:ident => $($to:ident)*: |$x:ident| $body:expr) => {$(
        impl CastTo<$to> for $from {
            #[inline(always)]
            fn cast(self) -> $to {
                #[allow(dead_code)] // not every body names it
                type Out = $to;
                let $x = self;
                $body
            }
        }
    )*};
}

/// From integers; `exactly` returns a float that rounds to any narrow float as the integer itself would.
macro_rules! from_integers {
    ($($from:ident: $narrow:ident by $exactly:expr;)*) => {$(
        cast!($from => bool: |x| x != 0);
        cast!($from => i8 i16 i32 i64 u8 u16 u32 u64 f32 f64: |x| x as Out);
        cast!($from => F16 Bf16 F8E4M3 F8E5M2: |x| Out::$narrow($exactly(x)));
    )*};
}

from_integers! {
    i8: from_f32 by f32::from;
    u8: from_f32 by f32::from;
    i16: from_f32 by f32::from;
    u16: from_f32 by f32::from;
    i32: from_f64 by f64::from;
    u32: from_f64 by f64::from;
    i64: from_f64 by signed_to_odd;
    u64: from_f64 by unsigned_to_odd;
}

cast!(bool => bool: |x| x);
cast!(bool => i8 i16 i32 i64 u8 u16 u32 u64: |x| Out::from(x));
cast!(bool => f32 f64 F16 Bf16 F8E4M3 F8E5M2: |x| <u8 as CastTo<Out>>::cast(u8::from(x)));

// Rust's `as` from float to integer truncates, saturates and maps NaN to 0, exactly as `Op::Cast` does.
cast!(f32 => bool: |x| x != 0.0);
cast!(f32 => i8 i16 i32 i64 u8 u16 u32 u64 f32 f64: |x| x as Out);
cast!(f32 => F16 Bf16 F8E4M3 F8E5M2: |x| Out::from_f32(x));

cast!(f64 => bool: |x| x != 0.0);
cast!(f64 => i8 i16 i32 i64 u8 u16 u32 u64 f32 f64: |x| x as Out);
cast!(f64 => F16 Bf16 F8E4M3 F8E5M2: |x| Out::from_f64(x));

/// From one narrow float to itself (the bits stay), to the other narrow ones and to everything else.
macro_rules! from_narrow {
    ($($from:ident, others $($other:ident)*;)*) => {$(
        cast!($from => $from: |x| x);
        cast!($from => $($other)*: |x| Out::from_f32(x.to_f32()));
        cast!($from => bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64: |x| <f32 as CastTo<Out>>::cast(x.to_f32()));
    )*};
}

from_narrow! {
    F16, others Bf16 F8E4M3 F8E5M2;
    Bf16, others F16 F8E4M3 F8E5M2;
    F8E4M3, others F16 Bf16 F8E5M2;
    F8E5M2, others F16 Bf16 F8E4M3;
}

/// The integer as an `f64` if it fits in 53 bits, otherwise cut to 53 bits with the last one set if anything was lost.
#[inline(always)]
fn unsigned_to_odd(x: u64) -> f64 {
    let lost = x & 0x7ff;
    let cut = (x - lost) | u64::from(lost != 0) << 11;
    let exact = if x >> 53 == 0 { x } else { cut };
    exact as f64
}

#[inline(always)]
fn signed_to_odd(x: i64) -> f64 {
    let magnitude = unsigned_to_odd(x.unsigned_abs());
    if x < 0 { -magnitude } else { magnitude }
}
