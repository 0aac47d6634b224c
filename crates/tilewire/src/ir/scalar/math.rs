//! exp, log and tanh as expansions into ops that are exact or correctly rounded everywhere, so that their results have
//! the same bits on every engine.
//!
//! Each expansion is written once, over an arithmetic [`FloatOps`]. With [`Plain`] it computes; with an arithmetic
//! whose numbers are IR values or registers it writes code. It is straight-line code (choices are selects). `f32` and
//! `f64` differ only in the constants of the [`Format`] and the number of terms.
//!
//! The polynomials are Taylor series, long enough that the truncation error is far below one unit in the last place, so
//! their coefficients need no table of magic numbers. The worst errors over all 32-bit floats are 1.06 ulp for exp,
//! 0.86 for log and 2.42 for tanh; `tests/math.rs` asserts them.

use std::marker::PhantomData;

/// An arithmetic: floats of one width, signed integers of the same width, and truth values.
///
/// Float ops round to nearest even, integers wrap. Methods take `&mut self` so that an arithmetic may write code.
#[allow(missing_docs)] // the names say it all
pub trait FloatOps {
    /// Floats.
    type F: Copy;
    /// Integers of the same width, two's complement.
    type I: Copy;
    /// Truth values.
    type B: Copy;
    /// Which floats these are.
    const FORMAT: Format;

    /// The constant nearest to `x`.
    fn float(&mut self, x: f64) -> Self::F;
    fn add(&mut self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(&mut self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(&mut self, a: Self::F, b: Self::F) -> Self::F;
    fn div(&mut self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(&mut self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a == b`; false with NaN.
    fn equal(&mut self, a: Self::F, b: Self::F) -> Self::B;
    /// `a < b`; false with NaN.
    fn less(&mut self, a: Self::F, b: Self::F) -> Self::B;
    /// `a` if the condition holds, otherwise `b`.
    fn select(&mut self, condition: Self::B, a: Self::F, b: Self::F) -> Self::F;
    /// The bits of a float.
    fn bits_of(&mut self, x: Self::F) -> Self::I;
    /// The float with these bits.
    fn float_of(&mut self, x: Self::I) -> Self::F;

    /// The constant `x`, cut to the width.
    fn integer(&mut self, x: i64) -> Self::I;
    fn integer_add(&mut self, a: Self::I, b: Self::I) -> Self::I;
    fn integer_sub(&mut self, a: Self::I, b: Self::I) -> Self::I;
    fn integer_and(&mut self, a: Self::I, b: Self::I) -> Self::I;
    fn integer_or(&mut self, a: Self::I, b: Self::I) -> Self::I;
    /// Left shift by less than the width.
    fn shift_left(&mut self, x: Self::I, amount: u32) -> Self::I;
    /// Arithmetic right shift by less than the width.
    fn shift_right(&mut self, x: Self::I, amount: u32) -> Self::I;
}

/// The parameters of a float format that the expansions need.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Bits of the mantissa, without the hidden one.
    pub mantissa: u32,
    /// Exponent bias.
    pub bias: i64,
    /// The sign bit.
    pub sign: i64,
    /// The upper part of ln 2, short enough that its product with any exponent is exact.
    pub ln2_high: f64,
    /// ln 2 minus the upper part.
    pub ln2_low: f64,
    /// Below this `e^x` rounds to 0.
    pub exp_least: f64,
    /// Above this `e^x` is infinite.
    pub exp_most: f64,
    /// Above this `tanh(x)` rounds to 1.
    pub tanh_most: f64,
    /// Degree of the series of `e^r`, |r| ≤ ln 2 / 2.
    pub exp_degree: usize,
    /// Terms of the series of the logarithm after the first.
    pub log_terms: usize,
    /// Smallest normal number.
    pub smallest_normal: f64,
}

impl Format {
    /// Single precision. The truncated terms: `r^8/8!` is 2^-27 of the result for exp, `z^5/11` is 2^-28 for log.
    pub const F32: Format = Format {
        mantissa: 23,
        bias: 127,
        sign: i32::MIN as i64,
        ln2_high: 0.693_145_751_953_125, // 15 bits, exponents have 8
        ln2_low: 1.428_606_820_309_417_2e-6,
        exp_least: -104.0,
        exp_most: 89.0,
        tanh_most: 10.0,
        exp_degree: 7,
        log_terms: 4,
        smallest_normal: f32::MIN_POSITIVE as f64,
    };

    /// Double precision. The truncated terms: `r^14/14!` is 2^-57 of the result for exp, `z^11/23` is 2^-60 for log.
    pub const F64: Format = Format {
        mantissa: 52,
        bias: 1023,
        sign: i64::MIN,
        ln2_high: 6.931_471_803_691_238e-1, // 32 bits, exponents have 11
        ln2_low: 1.908_214_929_270_587_7e-10,
        exp_least: -746.0,
        exp_most: 710.0,
        tanh_most: 20.0,
        exp_degree: 13,
        log_terms: 10,
        smallest_normal: f64::MIN_POSITIVE,
    };

    /// `1.5 * 2^mantissa`: adding it leaves the nearest integer in the low bits of the sum.
    const fn rounder(&self) -> f64 {
        (3i64 << (self.mantissa - 1)) as f64
    }
}

/// `e^x`. `exp(-inf) = 0`, `exp(inf) = inf`; rounds gradually into denormals.
#[inline(always)]
pub fn exp<A: FloatOps>(a: &mut A, x: A::F) -> A::F {
    // Beyond these the result does not change, and the exponent stays small enough to be split in two. NaN stays NaN.
    let (least, most) = (a.float(A::FORMAT.exp_least), a.float(A::FORMAT.exp_most));
    let below = a.less(x, least);
    let x = a.select(below, least, x);
    let above = a.less(most, x);
    let x = a.select(above, most, x);

    let (exponent, fraction) = exp_reduced(a, x);
    let one = a.float(1.0);
    let power = a.add(fraction, one);

    // 2^exponent may be out of range although the product is not, so it is applied in halves. The first product is
    // exact; only the second rounds (into a denormal) or overflows.
    let half = a.shift_right(exponent, 1);
    let rest = a.integer_sub(exponent, half);
    let (half, rest) = (power_of_two(a, half), power_of_two(a, rest));
    let power = a.mul(power, half);
    a.mul(power, rest)
}

/// Natural logarithm. `log(±0) = -inf`, `log(inf) = inf`, negative → NaN.
#[inline(always)]
pub fn log<A: FloatOps>(a: &mut A, x: A::F) -> A::F {
    let format = A::FORMAT;
    let (zero, one, two) = (a.float(0.0), a.float(1.0), a.float(2.0));

    // Denormals are scaled to normal numbers; the exponent is corrected below.
    let lift = f64::from(format.mantissa + 1);
    let smallest = a.float(format.smallest_normal);
    let denormal = a.less(x, smallest);
    let scale = a.float((1u64 << (format.mantissa + 1)) as f64);
    let scaled = a.mul(x, scale);
    let normal = a.select(denormal, scaled, x);

    // x = 2^exponent * m with m in [sqrt(1/2), sqrt(2)).
    let root = a.float(std::f64::consts::FRAC_1_SQRT_2);
    let (bits, root) = (a.bits_of(normal), a.bits_of(root));
    let above_root = a.integer_sub(bits, root);
    let exponent = a.shift_right(above_root, format.mantissa);
    let exponent_bits = a.shift_left(exponent, format.mantissa);
    let m = a.integer_sub(bits, exponent_bits);
    let m = a.float_of(m);
    let exponent = small_integer(a, exponent);
    let lift = a.float(lift);
    let lowered = a.sub(exponent, lift);
    let exponent = a.select(denormal, lowered, exponent);

    // With f = m - 1 (exact) and s = f / (2 + f): log(m) = 2 atanh(s) = 2s + s*r, r = 2z/3 + 2z²/5 + …, z = s². Since
    // 2s = f - s*f, and s*f = f²/2 - s*f²/2, the leading term f carries no error.
    let f = a.sub(m, one);
    let denominator = a.add(two, f);
    let s = a.div(f, denominator);
    let z = a.mul(s, s);
    let mut r = a.float(2.0 / (2 * format.log_terms + 1) as f64);
    for k in (1..format.log_terms).rev() {
        let coefficient = a.float(2.0 / (2 * k + 1) as f64);
        r = a.fma(r, z, coefficient);
    }
    let r = a.mul(r, z);
    let half = a.float(0.5);
    let square = a.mul(f, f);
    let half_square = a.mul(square, half);

    // log(x) = exponent * ln2 + f - (f²/2 - s * (f²/2 + r)), smallest parts first.
    let (high, low) = (a.float(format.ln2_high), a.float(format.ln2_low));
    let low = a.mul(exponent, low);
    let sum = a.add(half_square, r);
    let small = a.fma(s, sum, low);
    let small = a.sub(half_square, small);
    let log_m = a.sub(f, small);
    let result = a.fma(exponent, high, log_m);

    // Infinity and NaN are their own logarithm.
    let (infinity, nan) = (a.float(f64::INFINITY), a.float(f64::NAN));
    let minus_infinity = a.float(f64::NEG_INFINITY);
    let finite = a.less(x, infinity);
    let result = a.select(finite, result, x);
    let is_zero = a.equal(x, zero);
    let result = a.select(is_zero, minus_infinity, result);
    let negative = a.less(x, zero);
    a.select(negative, nan, result)
}

/// Hyperbolic tangent. `tanh(±inf) = ±1`, `tanh(-0) = -0`.
#[inline(always)]
pub fn tanh<A: FloatOps>(a: &mut A, x: A::F) -> A::F {
    let sign = a.integer(A::FORMAT.sign);
    let not_sign = a.integer(!A::FORMAT.sign);
    let bits = a.bits_of(x);
    let sign = a.integer_and(bits, sign);
    let magnitude = a.integer_and(bits, not_sign);
    let magnitude = a.float_of(magnitude);
    let most = a.float(A::FORMAT.tanh_most);
    let above = a.less(most, magnitude);
    let magnitude = a.select(above, most, magnitude);

    // tanh(x) = t / (t + 2) with t = e^2x - 1 = 2^exponent * fraction + (2^exponent - 1). For small x the exponent is 0
    // and t is the fraction, so nothing cancels.
    let (one, two) = (a.float(1.0), a.float(2.0));
    let doubled = a.add(magnitude, magnitude);
    let (exponent, fraction) = exp_reduced(a, doubled);
    let power = power_of_two(a, exponent);
    let less_one = a.sub(power, one);
    let t = a.fma(power, fraction, less_one);
    let denominator = a.add(t, two);
    let result = a.div(t, denominator);

    let bits = a.bits_of(result);
    let bits = a.integer_or(bits, sign);
    a.float_of(bits)
}

/// Splits `e^x = 2^exponent * (1 + fraction)`, |fraction| < 0.42. The fraction is accurate relative to itself.
#[inline(always)]
fn exp_reduced<A: FloatOps>(a: &mut A, x: A::F) -> (A::I, A::F) {
    let format = A::FORMAT;
    let rounder = a.float(format.rounder());
    let log2_e = a.float(std::f64::consts::LOG2_E);
    let shifted = a.fma(x, log2_e, rounder);
    let rounded = a.sub(shifted, rounder);
    let (shifted, rounder) = (a.bits_of(shifted), a.bits_of(rounder));
    let exponent = a.integer_sub(shifted, rounder);

    // r = x - exponent * ln2; the first step is exact because the upper part of ln2 is short.
    let (high, low) = (a.float(-format.ln2_high), a.float(-format.ln2_low));
    let r = a.fma(rounded, high, x);
    let r = a.fma(rounded, low, r);

    // e^r - 1 = r + r² * (1/2! + r/3! + r²/4! + …)
    let mut series = a.float(INVERSE_FACTORIAL[format.exp_degree]);
    for k in (2..format.exp_degree).rev() {
        let coefficient = a.float(INVERSE_FACTORIAL[k]);
        series = a.fma(series, r, coefficient);
    }
    let square = a.mul(r, r);
    let fraction = a.fma(series, square, r);
    (exponent, fraction)
}

/// `1 / k!`
const INVERSE_FACTORIAL: [f64; 14] = {
    let mut table = [1.0; 14];
    let (mut k, mut factorial) = (1, 1u64);
    while k < table.len() {
        factorial *= k as u64;
        table[k] = 1.0 / factorial as f64;
        k += 1;
    }
    table
};

/// `2^n` for an exponent in the range of normal numbers.
#[inline(always)]
fn power_of_two<A: FloatOps>(a: &mut A, n: A::I) -> A::F {
    let bias = a.integer(A::FORMAT.bias);
    let biased = a.integer_add(n, bias);
    let bits = a.shift_left(biased, A::FORMAT.mantissa);
    a.float_of(bits)
}

/// A small integer as a float: placed in the low bits of the rounder, which is then subtracted.
#[inline(always)]
fn small_integer<A: FloatOps>(a: &mut A, n: A::I) -> A::F {
    let rounder = a.float(A::FORMAT.rounder());
    let bits = a.bits_of(rounder);
    let bits = a.integer_add(bits, n);
    let shifted = a.float_of(bits);
    a.sub(shifted, rounder)
}

/// The arithmetic that computes: Rust's own floats. Implemented for `f32` and `f64`.
#[derive(Clone, Copy, Default, Debug)]
pub struct Plain<T>(PhantomData<T>);

impl<T> Plain<T> {
    /// The arithmetic; it has no state.
    #[inline(always)]
    pub const fn new() -> Self {
        Plain(PhantomData)
    }
}

macro_rules! method {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(&mut self, $($arg: $ty),*) -> $out { $body }
    )*};
}

macro_rules! plain {
    ($($float:ident, $integer:ident, $unsigned:ident, $format:ident;)*) => {$(
        impl FloatOps for Plain<$float> {
            type F = $float;
            type I = $integer;
            type B = bool;
            const FORMAT: Format = Format::$format;

            method! {
                float(x: f64) -> $float = x as $float;
                add(a: $float, b: $float) -> $float = a + b;
                sub(a: $float, b: $float) -> $float = a - b;
                mul(a: $float, b: $float) -> $float = a * b;
                div(a: $float, b: $float) -> $float = a / b;
                fma(a: $float, b: $float, c: $float) -> $float = a.mul_add(b, c);
                equal(a: $float, b: $float) -> bool = a == b;
                less(a: $float, b: $float) -> bool = a < b;
                select(condition: bool, a: $float, b: $float) -> $float = if condition { a } else { b };
                bits_of(x: $float) -> $integer = x.to_bits() as $integer;
                float_of(x: $integer) -> $float = $float::from_bits(x as $unsigned);
                integer(x: i64) -> $integer = x as $integer;
                integer_add(a: $integer, b: $integer) -> $integer = a.wrapping_add(b);
                integer_sub(a: $integer, b: $integer) -> $integer = a.wrapping_sub(b);
                integer_and(a: $integer, b: $integer) -> $integer = a & b;
                integer_or(a: $integer, b: $integer) -> $integer = a | b;
                shift_left(x: $integer, amount: u32) -> $integer = x << amount;
                shift_right(x: $integer, amount: u32) -> $integer = x >> amount;
            }
        }
    )*};
}

plain! {
    f32, i32, u32, F32;
    f64, i64, u64, F64;
}
