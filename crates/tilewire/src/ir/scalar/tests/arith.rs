//! The edges of arithmetic, each against the sentence in `op.rs` that defines it.

use super::Random;
use crate::ir::Type;
use crate::ir::scalar::{Arithmetic, Bf16, F8E4M3, F8E5M2, F16, Float, Integer, dynamic};

#[test]
fn integer_division_is_total() {
    fn check<T: Integer + PartialEq>(least: T, minus_one: T) {
        let (zero, seven) = (T::from_bits(0), T::from_bits(7));
        assert_eq!(seven.div(zero), zero);
        assert_eq!(seven.rem(zero), seven);
        assert_eq!(least.div(minus_one), least);
        assert_eq!(least.rem(minus_one), zero);
        assert_eq!(seven.div(T::from_bits(2)), T::from_bits(3));
        assert_eq!(seven.neg().rem(T::from_bits(4)), T::from_bits(3).neg());
    }
    check(i8::MIN, -1);
    check(i16::MIN, -1);
    check(i32::MIN, -1);
    check(i64::MIN, -1);
    assert_eq!((Arithmetic::div(7u8, 0), Integer::rem(7u8, 0), Arithmetic::div(200u8, 255)), (0, 7, 0));
    assert_eq!((Arithmetic::div(u64::MAX, 2), Integer::rem(u64::MAX, 10)), (u64::MAX / 2, 5));
    assert_eq!((Arithmetic::div(-7i32, 2), Integer::rem(-7i32, 2)), (-3, -1));
}

#[test]
fn integers_wrap() {
    assert_eq!(Arithmetic::add(i8::MAX, 1), i8::MIN);
    assert_eq!(Arithmetic::sub(0u16, 1), u16::MAX);
    assert_eq!(Arithmetic::mul(i64::MAX, 2), -2);
    assert_eq!((Arithmetic::neg(i32::MIN), Arithmetic::abs(i32::MIN)), (i32::MIN, i32::MIN));
    assert_eq!((Arithmetic::neg(1u8), Arithmetic::abs(200u8)), (255, 200));
    assert_eq!((Arithmetic::min(-1i8, 1), Arithmetic::max(-1i8, 1)), (-1, 1));
    assert_eq!((Arithmetic::min(255u8, 1), Arithmetic::max(255u8, 1)), (1, 255));
}

#[test]
fn shifts_beyond_the_width_give_the_fill() {
    fn check<T: Integer + PartialEq>() {
        let width = u64::from(T::TYPE.bits());
        let (zero, one, ones) = (T::from_bits(0), T::from_bits(1), T::from_bits(u64::MAX));
        let fill = if T::TYPE.is_signed_int() { ones } else { zero };
        let top = one.shl(T::from_bits(width - 1));
        assert_eq!(top.to_bits(), 1 << (width - 1));
        assert_eq!(top.shr(T::from_bits(width - 1)), if T::TYPE.is_signed_int() { ones } else { one });
        // The last two are negative in a signed type: read as unsigned they are large.
        for amount in [width, width + 1, 2 * width - 1, 100, u64::MAX, 1 << (width - 1)] {
            assert_eq!(ones.shl(T::from_bits(amount)), zero, "{} << {amount}", T::TYPE);
            assert_eq!(ones.shr(T::from_bits(amount)), fill, "{} >> {amount}", T::TYPE);
            assert_eq!(one.shr(T::from_bits(amount)), zero, "{} >> {amount}", T::TYPE);
        }
        assert_eq!(ones.shl(zero), ones);
    }
    check::<i8>();
    check::<i16>();
    check::<i32>();
    check::<i64>();
    check::<u8>();
    check::<u16>();
    check::<u32>();
    check::<u64>();
    // An amount that is 0 modulo 2^32 but not 0.
    assert_eq!((Integer::shl(1u64, 1 << 32), Integer::shr(u64::MAX, 1 << 32)), (0, 0));
}

#[test]
fn the_high_half_of_products() {
    assert_eq!(Integer::mul_hi(-1i64, 1), -1);
    assert_eq!(Integer::mul_hi(i64::MIN, i64::MIN), 1 << 62);
    assert_eq!(Integer::mul_hi(u64::MAX, u64::MAX), u64::MAX - 1);
    assert_eq!(Integer::mul_hi(i32::MIN, -1), 0);
    for a in 0..=255u8 {
        for b in 0..=255u8 {
            assert_eq!(Integer::mul_hi(a, b), (u32::from(a) * u32::from(b) / 256) as u8);
            let (a, b) = (a as i8, b as i8);
            assert_eq!(Integer::mul_hi(a, b), (i32::from(a) * i32::from(b)).div_euclid(256) as i8);
        }
    }
    assert_eq!((Integer::and(6u8, 3), Integer::or(6u8, 3), Integer::xor(6u8, 3), Integer::not(6u8)), (2, 7, 5, 249));
}

/// Minimum and maximum as a table: NaN loses, then by value, then `-0` before `+0`.
fn check_order<T: Float>(a: T, b: T, value: impl Fn(T) -> f64) {
    let (x, y) = (value(a), value(b));
    let (low, high) = (Arithmetic::min(a, b).to_bits(), Arithmetic::max(a, b).to_bits());
    let (a_bits, b_bits) = (a.to_bits(), b.to_bits());
    match (x.is_nan(), y.is_nan()) {
        (true, true) => assert!([a_bits, b_bits].contains(&low) && [a_bits, b_bits].contains(&high)),
        (true, false) => assert_eq!((low, high), (b_bits, b_bits), "{a:?} {b:?}"),
        (false, true) => assert_eq!((low, high), (a_bits, a_bits), "{a:?} {b:?}"),
        (false, false) => {
            let ordered = if x.total_cmp(&y).is_le() { (a_bits, b_bits) } else { (b_bits, a_bits) };
            assert_eq!((low, high), ordered, "{a:?} {b:?}");
        }
    }
    assert_eq!(a.equal(b), x == y);
    assert_eq!(a.less(b), x < y);
    assert_eq!(a.less_equal(b), x <= y);
}

#[test]
fn minimum_maximum_and_order() {
    for a in 0..=255 {
        for b in 0..=255 {
            check_order(F8E4M3::from_bits(a), F8E4M3::from_bits(b), |x| x.to_f32().into());
            check_order(F8E5M2::from_bits(a), F8E5M2::from_bits(b), |x| x.to_f32().into());
        }
    }
    let mut random = Random::new(6);
    let edges = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3e38, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN];
    for a in edges {
        for b in edges {
            check_order(a, b, f64::from);
            check_order(f64::from(a), f64::from(b), |x| x);
            check_order(F16::from_f32(a), F16::from_f32(b), |x| x.to_f32().into());
            check_order(Bf16::from_f32(a), Bf16::from_f32(b), |x| x.to_f32().into());
        }
    }
    for _ in 0..200_000 {
        let (a, b) = (random.next(), random.next());
        check_order(F16::from_bits(a as u16), F16::from_bits(b as u16), |x| x.to_f32().into());
        check_order(Bf16::from_bits(a as u16), Bf16::from_bits(b as u16), |x| x.to_f32().into());
        check_order(f32::from_bits(a as u32), f32::from_bits(b as u32), f64::from);
    }
}

#[test]
fn sign_ops_touch_only_the_sign() {
    let mut random = Random::new(7);
    for ty in Type::ALL.into_iter().filter(|ty| ty.is_float()) {
        let sign = 1 << (ty.bits() - 1);
        let special = [0, sign, sign - 1, u64::MAX >> (64 - ty.bits())];
        for bits in special.into_iter().chain((0..1000).map(|_| random.next() >> (64 - ty.bits()))) {
            assert_eq!(dynamic::unary(crate::ir::UnaryOp::Neg, ty, bits), bits ^ sign, "{ty}");
            assert_eq!(dynamic::unary(crate::ir::UnaryOp::Abs, ty, bits), bits & !sign, "{ty}");
        }
    }
}

#[test]
fn narrow_arithmetic_rounds_the_single_precision_result() {
    let half = F16::from_f32;
    assert_eq!(half(2048.0).add(half(1.0)).to_f32(), 2048.0);
    assert_eq!(half(2048.0).add(half(3.0)).to_f32(), 2052.0);
    assert_eq!(half(60000.0).mul(half(2.0)).to_bits(), 0x7c00);
    assert_eq!(half(1.0).div(half(3.0)).to_f32(), 0.333_251_95);
    assert_eq!(half(1.0).div(half(0.0)).to_bits(), 0x7c00);
    assert_eq!(half(60000.0).fma(half(2.0), half(-60000.0)).to_f32(), 60000.0);
    assert_eq!(F8E4M3::from_f32(448.0).add(F8E4M3::from_f32(448.0)).to_f32(), 448.0);
    assert_eq!(F8E4M3::from_f32(0.0).rcp().to_f32(), 448.0);
    assert_eq!(F8E5M2::from_f32(-57344.0).mul(F8E5M2::from_f32(2.0)).to_bits(), 0xfb);
    assert!(Bf16::from_f32(-1.0).sqrt().is_nan());
    assert_eq!(Bf16::from_bits(0x8000).sqrt().to_bits(), 0x8000);
    assert_eq!(Bf16::from_f32(4.0).rsqrt().to_f32(), 0.5);
    assert_eq!(Bf16::from_f32(1.0).sub(Bf16::from_f32(0.001)).to_f32(), 1.0);
}

#[test]
fn fma_rounds_once() {
    let x = 1.0 + f32::EPSILON;
    assert_eq!(Float::fma(x, x, -(x * x)), f32::EPSILON * f32::EPSILON);
    let x = 1.0 + f64::EPSILON;
    assert_eq!(Float::fma(x, x, -(x * x)), f64::EPSILON * f64::EPSILON);
    assert_eq!(Float::fma(f32::MAX, 2.0, -f32::MAX), f32::MAX);
}

#[test]
fn rounding_to_integral_values() {
    let cases = [
        // x, floor, ceil, trunc, round to even
        (2.5f32, 2.0, 3.0, 2.0, 2.0),
        (-2.5, -3.0, -2.0, -2.0, -2.0),
        (3.5, 3.0, 4.0, 3.0, 4.0),
        (-0.5, -1.0, -0.0, -0.0, -0.0),
        (0.3, 0.0, 1.0, 0.0, 0.0),
        (-0.0, -0.0, -0.0, -0.0, -0.0),
        (f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY),
    ];
    for (x, floor, ceil, trunc, even) in cases {
        let single = [Float::floor(x), Float::ceil(x), Float::trunc(x), Float::round_even(x)];
        assert_eq!(single.map(f32::to_bits), [floor, ceil, trunc, even].map(f32::to_bits), "{x}");
        let half = F16::from_f32(x);
        let narrow = [half.floor(), half.ceil(), half.trunc(), half.round_even()];
        assert_eq!(narrow.map(|y| y.to_f32().to_bits()), [floor, ceil, trunc, even].map(f32::to_bits), "{x}");
        let double = [Float::floor(f64::from(x)), Float::round_even(f64::from(x))];
        assert_eq!(double.map(f64::to_bits), [floor, even].map(|y| f64::from(y).to_bits()), "{x}");
    }
}
