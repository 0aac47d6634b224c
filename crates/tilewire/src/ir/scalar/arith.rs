//! The ops of one, two and three operands on elements, as defined at [`UnaryOp`](crate::ir::UnaryOp) and
//! [`BinaryOp`](crate::ir::BinaryOp).
//!
//! Beware of the inherent methods of Rust's own types: on a value known to be an `f32`, `x.min(y)` and `x.exp()` call
//! the standard library, whose `-0` and last bits differ. In code that is not generic over these traits, write
//! `Arithmetic::min(x, y)` and `Float::exp(x)`.

use super::element::Element;
use super::math::{self, Plain};
use super::narrow::{Bf16, F8E4M3, F8E5M2, F16};

/// An integer or a float: a bound for hooks. It has the functions of [`Arithmetic`] and brings none of them into scope,
/// so that Rust's own numbers keep their methods where it is imported.
///
/// ```
/// use tilewire::ir::scalar::Number;
/// assert_eq!(3i32.max(4), 4);
/// fn larger<T: Number>(a: T, b: T) -> T {
///     a.max(b)
/// }
/// assert_eq!(larger(f32::NAN, 1.0), 1.0);
/// ```
pub trait Number: Arithmetic {}

impl<T: Arithmetic> Number for T {}

/// Arithmetic that all integers and floats share. Import it to name a function; bounds say [`Number`].
///
/// ```
/// use tilewire::ir::scalar::Arithmetic;
/// assert_eq!(Arithmetic::div(7i32, 0), 0);
/// assert_eq!(Arithmetic::min(f32::NAN, 1.0), 1.0);
/// ```
pub trait Arithmetic: Element {
    /// Sum; integers wrap.
    fn add(self, b: Self) -> Self;
    /// Difference; integers wrap.
    fn sub(self, b: Self) -> Self;
    /// Product; integers wrap.
    fn mul(self, b: Self) -> Self;
    /// Quotient; integers truncate, `x / 0 = 0`, `MIN / -1 = MIN`.
    fn div(self, b: Self) -> Self;
    /// Smaller; NaN loses, `-0 < +0`.
    fn min(self, b: Self) -> Self;
    /// Larger; NaN loses, `-0 < +0`.
    fn max(self, b: Self) -> Self;
    /// Negation; integers wrap, floats flip the sign bit.
    fn neg(self) -> Self;
    /// Absolute value; integers wrap, floats clear the sign bit.
    fn abs(self) -> Self;
    /// `a == b`; false with NaN.
    fn equal(self, b: Self) -> bool;
    /// `a < b`; false with NaN.
    fn less(self, b: Self) -> bool;
    /// `a <= b`; false with NaN.
    fn less_equal(self, b: Self) -> bool;
}

/// Arithmetic of integers only.
pub trait Integer: Number {
    /// Remainder with the sign of the dividend; `x % 0 = x`, `MIN % -1 = 0`.
    fn rem(self, b: Self) -> Self;
    /// High half of the double-width product.
    fn mul_hi(self, b: Self) -> Self;
    /// Bitwise and.
    fn and(self, b: Self) -> Self;
    /// Bitwise or.
    fn or(self, b: Self) -> Self;
    /// Bitwise exclusive or.
    fn xor(self, b: Self) -> Self;
    /// Left shift; an amount (read as unsigned) of the width or more yields 0.
    fn shl(self, b: Self) -> Self;
    /// Right shift, arithmetic if signed; an amount (read as unsigned) of the width or more yields the sign fill or 0.
    fn shr(self, b: Self) -> Self;
    /// Bitwise not.
    fn not(self) -> Self;
}

/// Arithmetic of floats only. The narrow ones compute in `f32` and round once at the end.
pub trait Float: Number {
    /// `self * b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// `1 / sqrt(x)` by a root and a division.
    fn rsqrt(self) -> Self;
    /// `1 / x`.
    fn rcp(self) -> Self;
    /// `e^x` by [`math::exp`].
    fn exp(self) -> Self;
    /// Natural logarithm by [`math::log`].
    fn log(self) -> Self;
    /// Hyperbolic tangent by [`math::tanh`].
    fn tanh(self) -> Self;
    /// Rounds towards −∞ to an integral value.
    fn floor(self) -> Self;
    /// Rounds towards +∞ to an integral value.
    fn ceil(self) -> Self;
    /// Rounds towards zero to an integral value.
    fn trunc(self) -> Self;
    /// Rounds to the nearest integral value, ties to even.
    fn round_even(self) -> Self;
}

/// Methods with one meaning in all the implementations of a group of types.
macro_rules! forward {
    ($($name:ident($a:ident $(, $b:ident)*) -> $out:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name($a $(, $b: Self)*) -> $out { $body }
    )*};
}

macro_rules! integer {
    ($($name:ident: unsigned $unsigned:ident, wide $wide:ident, absolute $absolute:ident, fill $fill:expr;)*) => {$(
        impl Arithmetic for $name {
            forward! {
                add(self, b) -> Self = self.wrapping_add(b);
                sub(self, b) -> Self = self.wrapping_sub(b);
                mul(self, b) -> Self = self.wrapping_mul(b);
                div(self, b) -> Self = if b == 0 { 0 } else { self.wrapping_div(b) };
                min(self, b) -> Self = if self < b { self } else { b };
                max(self, b) -> Self = if self > b { self } else { b };
                neg(self) -> Self = self.wrapping_neg();
                abs(self) -> Self = $absolute!(self);
                equal(self, b) -> bool = self == b;
                less(self, b) -> bool = self < b;
                less_equal(self, b) -> bool = self <= b;
            }
        }

        impl Integer for $name {
            forward! {
                rem(self, b) -> Self = if b == 0 { self } else { self.wrapping_rem(b) };
                mul_hi(self, b) -> Self = ((self as $wide * b as $wide) >> $name::BITS) as $name;
                and(self, b) -> Self = self & b;
                or(self, b) -> Self = self | b;
                xor(self, b) -> Self = self ^ b;
                shl(self, b) -> Self = {
                    let shifted = self.wrapping_shl(b as u32);
                    if b as $unsigned >= $name::BITS as $unsigned { 0 } else { shifted }
                };
                shr(self, b) -> Self = {
                    let fill: fn($name) -> $name = $fill;
                    let shifted = self.wrapping_shr(b as u32);
                    if b as $unsigned >= $name::BITS as $unsigned { fill(self) } else { shifted }
                };
                not(self) -> Self = !self;
            }
        }
    )*};
}

macro_rules! wrapping {
    ($x:expr) => {
        $x.wrapping_abs()
    };
}

macro_rules! identity {
    ($x:expr) => {
        $x
    };
}

integer! {
    i8: unsigned u8, wide i16, absolute wrapping, fill |x| x >> 7;
    i16: unsigned u16, wide i32, absolute wrapping, fill |x| x >> 15;
    i32: unsigned u32, wide i64, absolute wrapping, fill |x| x >> 31;
    i64: unsigned u64, wide i128, absolute wrapping, fill |x| x >> 63;
    u8: unsigned u8, wide u16, absolute identity, fill |_| 0;
    u16: unsigned u16, wide u32, absolute identity, fill |_| 0;
    u32: unsigned u32, wide u64, absolute identity, fill |_| 0;
    u64: unsigned u64, wide u128, absolute identity, fill |_| 0;
}

macro_rules! wide_float {
    ($($name:ident),*) => {$(
        impl Arithmetic for $name {
            forward! {
                add(self, b) -> Self = self + b;
                sub(self, b) -> Self = self - b;
                mul(self, b) -> Self = self * b;
                div(self, b) -> Self = self / b;
                min(self, b) -> Self = {
                    let take = (self < b) | ((self == b) & self.is_sign_negative()) | b.is_nan();
                    if take { self } else { b }
                };
                max(self, b) -> Self = {
                    let take = (self > b) | ((self == b) & self.is_sign_positive()) | b.is_nan();
                    if take { self } else { b }
                };
                neg(self) -> Self = -self;
                abs(self) -> Self = $name::abs(self);
                equal(self, b) -> bool = self == b;
                less(self, b) -> bool = self < b;
                less_equal(self, b) -> bool = self <= b;
            }
        }

        impl Float for $name {
            forward! {
                fma(self, b, c) -> Self = self.mul_add(b, c);
                sqrt(self) -> Self = $name::sqrt(self);
                rsqrt(self) -> Self = 1.0 / $name::sqrt(self);
                rcp(self) -> Self = 1.0 / self;
                exp(self) -> Self = math::exp(&mut Plain::<$name>::new(), self);
                log(self) -> Self = math::log(&mut Plain::<$name>::new(), self);
                tanh(self) -> Self = math::tanh(&mut Plain::<$name>::new(), self);
                floor(self) -> Self = $name::floor(self);
                ceil(self) -> Self = $name::ceil(self);
                trunc(self) -> Self = $name::trunc(self);
                round_even(self) -> Self = self.round_ties_even();
            }
        }
    )*};
}

wide_float!(f32, f64);

macro_rules! narrow_float {
    ($($name:ident as $signed:ident),*) => {$(
        impl $name {
            /// Orders numbers as integers, `-0` before `+0`: negative ones get their magnitude inverted. Comparing
            /// these keeps min and max in narrow lanes and leaves the operands' bits unchanged.
            #[inline(always)]
            fn order(self) -> $signed {
                let bits = self.to_bits() as $signed;
                bits ^ ((bits >> ($signed::BITS - 1)) & $signed::MAX)
            }
        }

        impl Arithmetic for $name {
            forward! {
                add(self, b) -> Self = Self::from_f32(self.to_f32() + b.to_f32());
                sub(self, b) -> Self = Self::from_f32(self.to_f32() - b.to_f32());
                mul(self, b) -> Self = Self::from_f32(self.to_f32() * b.to_f32());
                div(self, b) -> Self = Self::from_f32(self.to_f32() / b.to_f32());
                min(self, b) -> Self = {
                    let take = ((self.order() < b.order()) & !self.is_nan()) | b.is_nan();
                    if take { self } else { b }
                };
                max(self, b) -> Self = {
                    let take = ((self.order() > b.order()) & !self.is_nan()) | b.is_nan();
                    if take { self } else { b }
                };
                neg(self) -> Self = Self::from_bits(self.to_bits() ^ Self::SIGN);
                abs(self) -> Self = Self::from_bits(self.to_bits() & !Self::SIGN);
                equal(self, b) -> bool = self.to_f32() == b.to_f32();
                less(self, b) -> bool = self.to_f32() < b.to_f32();
                less_equal(self, b) -> bool = self.to_f32() <= b.to_f32();
            }
        }

        impl Float for $name {
            forward! {
                fma(self, b, c) -> Self = Self::from_f32(self.to_f32().mul_add(b.to_f32(), c.to_f32()));
                sqrt(self) -> Self = Self::from_f32(Float::sqrt(self.to_f32()));
                rsqrt(self) -> Self = Self::from_f32(Float::rsqrt(self.to_f32()));
                rcp(self) -> Self = Self::from_f32(Float::rcp(self.to_f32()));
                exp(self) -> Self = Self::from_f32(Float::exp(self.to_f32()));
                log(self) -> Self = Self::from_f32(Float::log(self.to_f32()));
                tanh(self) -> Self = Self::from_f32(Float::tanh(self.to_f32()));
                floor(self) -> Self = Self::from_f32(Float::floor(self.to_f32()));
                ceil(self) -> Self = Self::from_f32(Float::ceil(self.to_f32()));
                trunc(self) -> Self = Self::from_f32(Float::trunc(self.to_f32()));
                round_even(self) -> Self = Self::from_f32(Float::round_even(self.to_f32()));
            }
        }
    )*};
}

narrow_float!(F16 as i16, Bf16 as i16, F8E4M3 as i8, F8E5M2 as i8);
