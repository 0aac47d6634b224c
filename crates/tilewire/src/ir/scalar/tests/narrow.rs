//! The narrow formats against their definition: a value is `(-1)^sign * 2^(e - bias) * 1.m`, a rounding is a search
//! among all representable values.

use super::Random;
use crate::ir::scalar::{Bf16, F8E4M3, F8E5M2, F16};

/// A narrow format by its definition, and the conversions under test.
pub(super) struct Format {
    pub name: &'static str,
    mantissa: u32,
    exponent: u32,
    saturates: bool,
    infinity: bool,
    pub from_f32: fn(f32) -> u64,
    pub from_f64: fn(f64) -> u64,
    to_f32: fn(u64) -> f32,
}

macro_rules! format {
    ($name:ident, $bits:ident, $exponent:literal, $mantissa:literal, $saturates:literal, $infinity:literal) => {
        Format {
            name: stringify!($name),
            mantissa: $mantissa,
            exponent: $exponent,
            saturates: $saturates,
            infinity: $infinity,
            from_f32: |x| u64::from($name::from_f32(x).to_bits()),
            from_f64: |x| u64::from($name::from_f64(x).to_bits()),
            to_f32: |x| $name::from_bits(x as $bits).to_f32(),
        }
    };
}

pub(super) const FORMATS: [Format; 4] = [
    format!(F16, u16, 5, 10, false, true),
    format!(Bf16, u16, 8, 7, false, true),
    format!(F8E4M3, u8, 4, 3, true, false),
    format!(F8E5M2, u8, 5, 2, true, true),
];

impl Format {
    fn sign(&self) -> u64 {
        1 << (self.exponent + self.mantissa)
    }

    /// The value of a pattern by definition, in f64.
    fn define(&self, bits: u64) -> f64 {
        let sign = if bits & self.sign() != 0 { -1.0 } else { 1.0 };
        let top = (1 << self.exponent) - 1;
        let exponent = (bits >> self.mantissa & top) as i32;
        let mantissa = bits & ((1 << self.mantissa) - 1);
        let fraction = mantissa as f64 / f64::from(1 << self.mantissa);
        let bias = (1 << (self.exponent - 1)) - 1;
        if self.infinity && exponent == top as i32 {
            return if mantissa == 0 { sign * f64::INFINITY } else { f64::NAN };
        }
        if !self.infinity && bits & (self.sign() - 1) == self.sign() - 1 {
            return f64::NAN;
        }
        if exponent == 0 {
            sign * fraction * 2f64.powi(1 - bias)
        } else {
            sign * (1.0 + fraction) * 2f64.powi(exponent - bias)
        }
    }

    /// All finite values that are not negative, in the order of their bits.
    pub fn finite(&self) -> Vec<f64> {
        (0..self.sign()).map(|bits| self.define(bits)).take_while(|x| x.is_finite()).collect()
    }

    /// The bits of the nearest value, ties to even, by a search among all of them. The argument is given only by how a
    /// value `compare`s to its magnitude, so it need not be a float.
    fn nearest(&self, finite: &[f64], negative: bool, compare: impl Fn(f64) -> std::cmp::Ordering) -> u64 {
        use std::cmp::Ordering::*;
        let last = finite.len() - 1;
        // Number of values ≤ the argument, minus one.
        let below = finite.partition_point(|&value| compare(value) != Greater) - 1;
        let magnitude = if below == last {
            // The midpoint to the next value, if there were one more.
            let middle = finite[last] + (finite[last] - finite[last - 1]) / 2.0;
            if self.saturates || compare(middle) == Greater { last } else { last + 1 }
        } else {
            match compare((finite[below] + finite[below + 1]) / 2.0) {
                Less => below + 1,
                Greater => below,
                Equal => below + below % 2,
            }
        };
        magnitude as u64 | if negative { self.sign() } else { 0 }
    }

    pub fn nearest_f64(&self, finite: &[f64], x: f64) -> u64 {
        self.nearest(finite, x.is_sign_negative(), |value| value.partial_cmp(&x.abs()).unwrap())
    }

    /// For integers beyond 2^53: compares the integral part as an integer, then the rest.
    pub fn nearest_integer(&self, finite: &[f64], x: i128) -> u64 {
        self.nearest(finite, x < 0, |value| {
            if value >= 2f64.powi(70) {
                return std::cmp::Ordering::Greater;
            }
            let floor = value.floor();
            (floor as i128).cmp(&x.abs()).then(value.partial_cmp(&floor).unwrap())
        })
    }
}

#[test]
fn every_pattern_widens_to_its_definition() {
    for format in &FORMATS {
        for bits in 0..format.sign() * 2 {
            let (got, want) = ((format.to_f32)(bits), format.define(bits));
            if want.is_nan() {
                assert!(got.is_nan(), "{} {bits:#x}: {got}", format.name);
            } else {
                assert_eq!(f64::from(got).to_bits(), want.to_bits(), "{} {bits:#x}: {got} {want}", format.name);
            }
        }
    }
}

#[test]
fn every_number_survives_a_round_trip() {
    for format in &FORMATS {
        for bits in 0..format.sign() * 2 {
            let wide = (format.to_f32)(bits);
            let back = (format.from_f32)(wide);
            if wide.is_nan() {
                assert!((format.to_f32)(back).is_nan(), "{} {bits:#x}", format.name);
            } else if wide.is_infinite() && format.saturates {
                assert_eq!(back, bits - 1, "{} {bits:#x}", format.name);
            } else {
                assert_eq!(back, bits, "{} {bits:#x}", format.name);
            }
        }
    }
}

#[test]
fn f32_rounds_to_the_nearest_at_and_beside_every_middle() {
    for format in &FORMATS {
        let finite = format.finite();
        let last = finite[finite.len() - 1];
        let beyond = last + (last - finite[finite.len() - 2]);
        let neighbours = finite.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
        for middle in neighbours.chain([(last + beyond) / 2.0, beyond, last]) {
            let middle = middle as f32; // exact: one more bit
            for x in [middle, middle.next_up(), middle.next_down()] {
                for x in [x, -x] {
                    let want = format.nearest_f64(&finite, f64::from(x));
                    assert_eq!((format.from_f32)(x), want, "{} of {x:e} ({:#x})", format.name, x.to_bits());
                }
            }
        }
    }
}

#[test]
fn f32_rounds_to_the_nearest_anywhere() {
    let mut random = Random::new(1);
    for format in &FORMATS {
        let finite = format.finite();
        for k in 0..300_000 {
            // Half of them anywhere, half within the exponents of the narrow formats.
            let bits = random.next() as u32;
            let x = if k % 2 == 0 { bits } else { bits & 0x87ff_ffff | 0x3800_0000 };
            let x = f32::from_bits(x);
            if !x.is_nan() {
                let want = format.nearest_f64(&finite, f64::from(x));
                assert_eq!((format.from_f32)(x), want, "{} of {x:e}", format.name);
            }
        }
    }
}

#[test]
fn f64_rounds_once() {
    let mut random = Random::new(2);
    for format in &FORMATS {
        let finite = format.finite();
        let check = |x: f64| {
            let want = format.nearest_f64(&finite, x);
            assert_eq!((format.from_f64)(x), want, "{} of {x:e}", format.name);
        };
        // Just off a tie, by less than an f32 can represent: rounding twice fails here.
        for pair in finite.windows(2) {
            let middle = (pair[0] + pair[1]) / 2.0;
            for x in [middle, middle.next_up(), middle.next_down(), middle * (1.0 + 1e-10), middle * (1.0 - 1e-10)] {
                check(x);
                check(-x);
            }
        }
        for x in [0.0, -0.0, 1e-310, 1e-60, -1e-46, 3.5e38, 1e300, f64::MAX, f64::INFINITY, f64::NEG_INFINITY] {
            check(x);
        }
        for _ in 0..200_000 {
            let x = f64::from_bits(random.next() & 0x83ff_ffff_ffff_ffff | 0x3c00_0000_0000_0000);
            check(x);
        }
    }
}

#[test]
fn special_values_convert() {
    assert_eq!(F16::from_f32(65519.996).to_bits(), 0x7bff);
    assert_eq!(F16::from_f32(65520.0).to_bits(), 0x7c00);
    assert_eq!(F16::from_f32(f32::NEG_INFINITY).to_bits(), 0xfc00);
    assert_eq!(Bf16::from_f32(f32::MAX).to_bits(), 0x7f80);
    assert_eq!(Bf16::from_f32(f32::MIN_POSITIVE / 2.0).to_bits(), 0x0040);
    assert_eq!(F8E4M3::from_f32(f32::INFINITY).to_bits(), 0x7e);
    assert_eq!(F8E4M3::from_f32(-1e9).to_bits(), 0xfe);
    assert_eq!(F8E5M2::from_f32(f32::INFINITY).to_bits(), 0x7b);
    assert_eq!(F8E5M2::from_f32(-60000.0).to_bits(), 0xfb);
    // Quiet and signalling NaNs of both signs, with payloads in the upper or only in the lower bits.
    for bits in [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0xff80_0001, 0x7fff_ffff, 0xffff_ffff] {
        let nan = f32::from_bits(bits);
        assert!(F16::from_f32(nan).is_nan() && F16::from_f32(nan).to_f32().is_nan());
        assert!(Bf16::from_f32(nan).is_nan() && Bf16::from_f32(nan).to_f32().is_nan());
        assert!(F8E4M3::from_f32(nan).is_nan() && F8E4M3::from_f32(nan).to_f32().is_nan());
        assert!(F8E5M2::from_f32(nan).is_nan() && F8E5M2::from_f32(nan).to_f32().is_nan());
    }
    for bits in [0x7ff8_0000_0000_0000, 0xfff0_0000_0000_0001] {
        let nan = f64::from_bits(bits);
        assert!(F16::from_f64(nan).is_nan() && Bf16::from_f64(nan).is_nan());
        assert!(F8E4M3::from_f64(nan).is_nan() && F8E5M2::from_f64(nan).is_nan());
    }
    assert_eq!(F16::from_f32(1.5).to_string(), "1.5");
    assert_eq!(F16::from_bits(0x8000), F16::from_bits(0));
    assert_ne!(F8E4M3::from_bits(0x7f), F8E4M3::from_bits(0x7f));
    assert!(Bf16::from_f32(-1.0) < Bf16::from_f32(2.0));
}
