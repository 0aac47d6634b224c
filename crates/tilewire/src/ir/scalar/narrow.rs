//! The float types Rust does not have, and their conversions from and to the wider ones.
//!
//! ```text
//!            sign exponent mantissa   bias   largest   after the largest
//!   F16        1      5       10       15     65504     infinity, NaNs
//!   Bf16       1      8        7      127     3.39e38   infinity, NaNs       (the upper half of an f32)
//!   F8E4M3     1      4        3        7       448     one NaN, no infinity (the "fn" variant)
//!   F8E5M2     1      5        2       15     57344     infinity, NaNs       (conversions into it saturate)
//! ```
//!
//! Each conversion computes the answer for normal and for denormal numbers and selects one, so loops over it vectorise.

use std::fmt;

macro_rules! narrow_float {
    ($(#[$doc:meta])* $name:ident, $bits:ident, largest non-NaN magnitude: $top:literal, largest number: $max:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default)]
        #[repr(transparent)]
        pub struct $name($bits);

        impl $name {
            pub(super) const SIGN: $bits = 1 << ($bits::BITS - 1);
            /// Magnitudes (bits without the sign) above this are NaN.
            pub(super) const TOP: $bits = $top;

            /// The largest number.
            pub const MAX: Self = Self($max);

            /// The number with these bits.
            #[inline(always)]
            pub const fn from_bits(bits: $bits) -> Self {
                Self(bits)
            }

            /// The bits of the number.
            #[inline(always)]
            pub const fn to_bits(self) -> $bits {
                self.0
            }

            /// Nearest number to an `f64`, ties to even, rounded once.
            #[inline(always)]
            pub fn from_f64(x: f64) -> Self {
                Self::from_f32(round_to_odd(x))
            }

            /// True for a NaN.
            #[inline(always)]
            pub const fn is_nan(self) -> bool {
                self.0 & !Self::SIGN > Self::TOP
            }
        }

        /// Compares as floats: `-0` equals `+0`, a NaN equals nothing.
        impl PartialEq for $name {
            #[inline(always)]
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        /// Compares as floats: a NaN is unordered.
        impl PartialOrd for $name {
            #[inline(always)]
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                self.to_f32().partial_cmp(&other.to_f32())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.to_f32().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:#x} = {})", stringify!($name), self.0, self.to_f32())
            }
        }
    };
}

narrow_float! {
    /// IEEE half precision: 5 exponent bits, 10 mantissa bits. Overflow gives infinity.
    F16, u16, largest non-NaN magnitude: 0x7c00, largest number: 0x7bff
}
narrow_float! {
    /// "Brain" float: the upper half of an `f32`. Overflow gives infinity.
    Bf16, u16, largest non-NaN magnitude: 0x7f80, largest number: 0x7f7f
}
narrow_float! {
    /// Eight bits with 4 exponent and 3 mantissa bits, the "fn" variant: largest 448, NaN is `0x7f` and `0xff`, no
    /// infinity. Conversion saturates to ±448.
    F8E4M3, u8, largest non-NaN magnitude: 0x7e, largest number: 0x7e
}
narrow_float! {
    /// Eight bits with 5 exponent and 2 mantissa bits. Infinity exists as an encoding, but conversion saturates to
    /// ±57344, infinity included.
    F8E5M2, u8, largest non-NaN magnitude: 0x7c, largest number: 0x7b
}

impl F16 {
    /// Nearest half to an `f32`, ties to even; beyond 65519 infinity.
    #[inline(always)]
    pub fn from_f32(x: f32) -> Self {
        let (sign, magnitude) = split(x);
        // 65536 rounds to the bits that follow the largest finite half: infinity.
        let rounded = round_magnitude::<10, 15>(magnitude, 65536.0);
        let rounded = if magnitude > INFINITY { 0x7e00 } else { rounded };
        Self((sign >> 16 | rounded) as u16)
    }

    /// The same number as an `f32`, exactly.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        let magnitude = u32::from(self.0 & !Self::SIGN);
        let widened = widen_magnitude::<10, 15>(magnitude);
        let widened = if magnitude >= 0x7c00 { INFINITY | magnitude << 13 } else { widened };
        f32::from_bits(u32::from(self.0 & Self::SIGN) << 16 | widened)
    }
}

impl Bf16 {
    /// Nearest bf16 to an `f32`, ties to even; overflow gives infinity.
    #[inline(always)]
    pub fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        // The carry of the rounding propagates into the exponent, and from the largest finite number into infinity.
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        // A NaN keeps its upper payload and is made quiet, so that it cannot become infinity.
        let quiet = bits >> 16 | 0x40;
        Self(if bits & !SIGN > INFINITY { quiet } else { rounded } as u16)
    }

    /// The same number as an `f32`, exactly.
    #[inline(always)]
    pub const fn to_f32(self) -> f32 {
        f32::from_bits((self.0 as u32) << 16)
    }
}

impl F8E4M3 {
    /// Nearest value to an `f32`, ties to even, saturating at ±448.
    #[inline(always)]
    pub fn from_f32(x: f32) -> Self {
        let code = Self::code_of_number(x);
        Self(if x.is_nan() { x.to_bits() >> 24 | 0x7f } else { code } as u8)
    }

    /// The bits of [`from_f32`](Self::from_f32) in a word. NaN yields a word with the top bit set, so that a loop over
    /// many elements can detect NaNs together; it is a quarter shorter that way.
    #[inline(always)]
    pub(crate) fn code_of_number(x: f32) -> u32 {
        let (sign, magnitude) = split(x);
        sign >> 24 | round_magnitude::<3, 7>(magnitude, 448.0)
    }

    /// The same number as an `f32`, exactly.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        let magnitude = u32::from(self.0 & !Self::SIGN);
        let widened = widen_magnitude::<3, 7>(magnitude);
        let widened = if magnitude == 0x7f { QUIET_NAN } else { widened };
        f32::from_bits(u32::from(self.0 & Self::SIGN) << 24 | widened)
    }
}

impl F8E5M2 {
    /// Nearest value to an `f32`, ties to even, saturating at ±57344.
    #[inline(always)]
    pub fn from_f32(x: f32) -> Self {
        let code = Self::code_of_number(x);
        Self(if x.is_nan() { x.to_bits() >> 24 | 0x7f } else { code } as u8)
    }

    /// The bits of [`from_f32`](Self::from_f32) in a word. NaN yields a word with the top bit set, so that a loop over
    /// many elements can detect NaNs together; it is a quarter shorter that way.
    #[inline(always)]
    pub(crate) fn code_of_number(x: f32) -> u32 {
        let (sign, magnitude) = split(x);
        sign >> 24 | round_magnitude::<2, 15>(magnitude, 57344.0)
    }

    /// The same number as an `f32`, exactly.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        let magnitude = u32::from(self.0 & !Self::SIGN);
        let widened = widen_magnitude::<2, 15>(magnitude);
        let widened = if magnitude >= 0x7c { INFINITY | magnitude << 21 } else { widened };
        f32::from_bits(u32::from(self.0 & Self::SIGN) << 24 | widened)
    }
}

const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0x7f80_0000;
const QUIET_NAN: u32 = 0x7fc0_0000;

#[inline(always)]
fn split(x: f32) -> (u32, u32) {
    (x.to_bits() & SIGN, x.to_bits() & !SIGN)
}

/// Rounds the magnitude of an `f32` (its bits without the sign), clamped to `limit`, to a format with `MANTISSA`
/// mantissa bits and exponent bias `BIAS`. The top bit of the result is set exactly for NaN.
#[inline(always)]
fn round_magnitude<const MANTISSA: u32, const BIAS: u32>(magnitude: u32, limit: f32) -> u32 {
    // Compared in this order, NaN stays NaN. Its exponent makes a tiny `rounder`, and the sum is NaN again. Its bits
    // minus those of `rounder` (the sign bit, by the carry) have the top bit set.
    let magnitude = f32::from_bits(magnitude);
    let magnitude = if limit < magnitude { limit } else { magnitude }.to_bits();
    let smallest_normal = (127 + 1 - BIAS) << 23;

    // The last place of the result is worth 2^(e - MANTISSA), where e is the exponent, or that of the smallest normal
    // for a denormal result. Adding the power of two with that same last place makes the float adder round to it.
    let exponent = (magnitude & INFINITY).max(smallest_normal);
    let rounder = exponent + ((23 - MANTISSA) << 23);
    let places = (f32::from_bits(magnitude) + f32::from_bits(rounder)).to_bits().wrapping_sub(rounder);

    // A normal number has 2^MANTISSA places below it for each exponent from the smallest on. A carry from the rounding
    // propagates into the exponent, as it should.
    places + (exponent >> (23 - MANTISSA)) - (smallest_normal >> (23 - MANTISSA))
}

/// The `f32` magnitude of a finite magnitude in a format with `MANTISSA` mantissa bits and exponent bias `BIAS`.
#[inline(always)]
fn widen_magnitude<const MANTISSA: u32, const BIAS: u32>(magnitude: u32) -> u32 {
    let shifted = magnitude << (23 - MANTISSA);
    let normal = shifted + ((127 - BIAS) << 23);

    // A denormal is the fraction of a number whose leading one counts as zero: insert the one, then subtract it.
    let one = (127 + 1 - BIAS) << 23;
    let denormal = (f32::from_bits(shifted.wrapping_add(one)) - f32::from_bits(one)).to_bits();

    if magnitude < 1 << MANTISSA { denormal } else { normal }
}

/// `x` as an `f32`, exactly if possible, otherwise the neighbour of `x` whose last bit is 1.
///
/// Rounding such a result again, to a format at least two bits narrower, equals rounding `x` once: the odd last bit
/// means "and something more", so it cannot be mistaken for a tie.
#[inline(always)]
fn round_to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let back = f64::from(nearest);
    let away_from_zero = back.abs() > x.abs();
    let inexact = back != x;
    f32::from_bits((nearest.to_bits() - u32::from(away_from_zero)) | u32::from(inexact))
}
