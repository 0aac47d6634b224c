//! Casts: integers to narrow floats against a search, the rest by example.

use super::Random;
use super::narrow::FORMATS;
use crate::ir::Type;
use crate::ir::scalar::{Bf16, CastTo, F8E4M3, F8E5M2, F16, dynamic};

const NARROW: [Type; 4] = [Type::F16, Type::BF16, Type::F8E4M3, Type::F8E5M2];

fn cast<T: CastTo<U>, U>(x: T) -> U {
    x.cast()
}

/// Integers near and at the ties of all formats, at all magnitudes.
fn integers() -> Vec<i128> {
    let mut random = Random::new(4);
    let mut list = vec![];
    // Leading digits as long as any mantissa (3 to 11 bits with the hidden one) and a little more.
    for kept in 2..=12 {
        let all = 1u128 << kept >> 1..1 << kept;
        let (first, last) = (all.clone().take(12), all.clone().rev().take(12));
        for high in first.chain(last) {
            for shift in 0..64 {
                let tie = high << shift | 1 << shift >> 1;
                list.extend([-2049, -2, -1, 0, 1, 2, 1025].map(|off| tie as i128 + off));
            }
        }
    }
    list.extend((0..20_000).map(|_| (random.next() >> (random.next() % 64)) as i128));
    let negative: Vec<_> = list.iter().map(|x| -x).collect();
    list.extend(negative);
    list
}

#[test]
fn integers_round_once_into_narrow_floats() {
    let integers = integers();
    for (format, to) in FORMATS.iter().zip(NARROW) {
        let finite = format.finite();
        let mut tried = 0;
        for &x in &integers {
            let want = format.nearest_integer(&finite, x);
            let mut check = |from: Type, fits: bool, bits: u64| {
                if fits {
                    tried += 1;
                    assert_eq!(dynamic::cast(from, to, bits), want, "{from} {x} to {}", format.name);
                }
            };
            let bits = x as u64;
            check(Type::I8, i8::try_from(x).is_ok(), bits & 0xff);
            check(Type::U8, u8::try_from(x).is_ok(), bits);
            check(Type::I16, i16::try_from(x).is_ok(), bits & 0xffff);
            check(Type::U16, u16::try_from(x).is_ok(), bits);
            check(Type::I32, i32::try_from(x).is_ok(), bits & 0xffff_ffff);
            check(Type::U32, u32::try_from(x).is_ok(), bits);
            check(Type::I64, i64::try_from(x).is_ok(), bits);
            check(Type::U64, u64::try_from(x).is_ok(), bits);
        }
        assert!(tried > 100_000, "{tried}");
    }
}

#[test]
fn rounding_twice_would_fail_here() {
    // 2^24 + 2^16 + 1 is just above a bf16 tie (128 + 0.5 units of 2^17); an f32 drops the 1 and ties to even.
    let x: i64 = (1 << 24) + (1 << 16) + 1;
    assert_eq!(cast::<_, Bf16>(x).to_bits(), 0x4b81);
    assert_eq!(Bf16::from_f32(x as f32).to_bits(), 0x4b80);
    // The same in f64, for integers of 64 bits.
    let x: u64 = (1 << 63) + (1 << 55) + 1;
    assert_eq!(cast::<_, Bf16>(x).to_bits(), 0x5f01);
    assert_eq!(Bf16::from_f64(x as f64).to_bits(), 0x5f00);
    let x = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
    assert_eq!(cast::<_, F16>(x).to_bits(), 0x3c01);
    assert_eq!(F16::from_f32(x as f32).to_bits(), 0x3c00);
}

#[test]
fn floats_truncate_and_saturate_into_integers() {
    assert_eq!(cast::<f32, i8>(-1.9), -1);
    assert_eq!(cast::<f32, i8>(-1000.0), i8::MIN);
    assert_eq!(cast::<f32, u8>(-1.0), 0);
    assert_eq!(cast::<f32, u64>(f32::INFINITY), u64::MAX);
    assert_eq!(cast::<f64, i32>(f64::NAN), 0);
    assert_eq!(cast::<f64, i64>(-1e300), i64::MIN);
    assert_eq!(cast::<_, i16>(F16::from_f32(f32::INFINITY)), i16::MAX);
    assert_eq!(cast::<_, u16>(F16::from_bits(0x7e00)), 0);
    assert_eq!(cast::<_, u8>(Bf16::from_f32(300.0)), 255);
    assert_eq!(cast::<_, i32>(F8E4M3::from_f32(-448.0)), -448);
}

#[test]
fn fp8_saturates_and_keeps_nan() {
    assert_eq!(cast::<u64, F8E5M2>(u64::MAX).to_bits(), 0x7b);
    assert_eq!(cast::<i64, F8E4M3>(i64::MIN).to_bits(), 0xfe);
    assert_eq!(cast::<f64, F8E4M3>(f64::NEG_INFINITY).to_bits(), 0xfe);
    assert_eq!(cast::<_, F8E4M3>(F16::from_bits(0x7c00)).to_bits(), 0x7e);
    assert!(cast::<_, F8E4M3>(F16::from_bits(0xfe00)).is_nan());
    // Infinity as an encoding stays in its own type and becomes infinity where the other type has one.
    let infinity = F8E5M2::from_bits(0x7c);
    assert_eq!(cast::<_, F8E5M2>(infinity).to_bits(), 0x7c);
    assert_eq!(cast::<_, F8E4M3>(infinity).to_bits(), 0x7e);
    assert_eq!(cast::<_, F16>(infinity).to_bits(), 0x7c00);
    assert_eq!(cast::<u64, F16>(u64::MAX).to_bits(), 0x7c00);
}

#[test]
fn integers_wrap_and_bools_are_zero_or_one() {
    assert_eq!(cast::<i32, i8>(0x1ff), -1);
    assert_eq!(cast::<i8, u64>(-1), u64::MAX);
    assert_eq!(cast::<u8, i8>(200), -56);
    assert_eq!(cast::<i64, f32>((1 << 24) + 1), 16_777_216.0);
    assert!(cast::<f32, bool>(f32::NAN) && cast::<f64, bool>(1e-320) && cast::<i8, bool>(-1));
    assert!(!cast::<f32, bool>(-0.0) && !cast::<u64, bool>(0) && !cast::<_, bool>(F16::from_bits(0x8000)));
    assert!(cast::<_, bool>(F8E4M3::from_bits(0xff)) && cast::<_, bool>(Bf16::from_bits(1)));
    assert_eq!((cast::<bool, i64>(true), cast::<bool, f64>(false)), (1, 0.0));
    assert_eq!(cast::<bool, F16>(true).to_bits(), 0x3c00);
}

#[test]
fn a_cast_to_the_same_type_keeps_every_bit() {
    let mut random = Random::new(5);
    for ty in Type::ALL.into_iter().filter(|&ty| ty != Type::Bool) {
        for _ in 0..70_000 {
            let bits = random.next() >> (64 - ty.bits());
            assert_eq!(dynamic::cast(ty, ty, bits), bits, "{ty}");
        }
    }
}
