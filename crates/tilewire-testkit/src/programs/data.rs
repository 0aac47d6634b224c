//! Initial data for tests, with many special values.

use crate::random::Random;
use tilewire::ir::Type;
use tilewire::ir::scalar::dynamic;

/// The bits of an element of a type: half of the time a special value, a quarter a small number, else any bits.
pub fn element(ty: Type, random: &mut Random) -> u64 {
    let mask = if ty.bits() == 64 { u64::MAX } else { (1 << ty.bits()) - 1 };
    if ty == Type::Bool {
        return random.below_u64(2);
    }
    match random.below_u64(4) {
        0 | 1 if ty.is_float() => special_float(ty, random),
        0 | 1 => {
            let top = 1 << (ty.bits() - 1);
            random.pick(&[0, 1, 2, top, top - 1, top + 1, mask, mask - 1, u64::from(ty.bits())]) & mask
        }
        2 if ty.is_float() => {
            // A fraction makes the rounding modes differ.
            let number = (random.below_u64(257) as f64 - 128.0) / random.pick(&[1.0, 2.0, 8.0, 64.0]);
            dynamic::cast(Type::F64, ty, number.to_bits())
        }
        2 => (random.below_u64(33) as i64 - 16) as u64 & mask,
        _ => random.next() & mask,
    }
}

/// A special value: NaN, infinity, zero, denormal or extreme.
fn special_float(ty: Type, random: &mut Random) -> u64 {
    let (bits, mantissa) = match ty {
        Type::F16 => (16, 10),
        Type::BF16 => (16, 7),
        Type::F32 => (32, 23),
        Type::F64 => (64, 52),
        Type::F8E4M3 => (8, 3),
        Type::F8E5M2 => (8, 2),
        _ => unreachable!("not a float"),
    };
    let sign = 1u64 << (bits - 1);
    let exponent = (sign - 1) >> mantissa << mantissa; // all ones: infinity (of f8e4m3: 256)
    let one = (exponent >> 1) & exponent;
    let positive = random.pick(&[
        0,
        0,
        1,                              // smallest denormal
        (1 << mantissa) - 1,            // largest denormal
        1 << mantissa,                  // smallest normal
        exponent,                       // infinity
        exponent - 1,                   // largest finite
        exponent + 1,                   // a signalling NaN
        exponent | 1 << (mantissa - 1), // a quiet NaN
        sign - 1,                       // all ones
        one,
        one + 1,
    ]);
    positive | if random.once_in(2) { sign } else { 0 }
}

/// `len` elements as little-endian bytes. A bool may be any byte, which the reader must normalise.
pub fn elements(ty: Type, len: u64, random: &mut Random) -> Vec<u8> {
    let mut out = Vec::with_capacity(len as usize * ty.size());
    for _ in 0..len {
        let bits = match ty {
            Type::Bool => random.pick(&[0, 0, 0, 1, 1, 2, 0x80, 0xff]),
            _ => element(ty, random),
        };
        out.extend_from_slice(&bits.to_le_bytes()[..ty.size()]);
    }
    out
}

/// `len` small numbers as little-endian bytes, including fractions if the type has them.
pub fn numbers(ty: Type, len: u64, random: &mut Random) -> Vec<u8> {
    let number = |_| {
        let bits = dynamic::cast(Type::F64, ty, small(random).to_bits());
        bits.to_le_bytes().into_iter().take(ty.size())
    };
    (0..len).flat_map(number).collect()
}

/// A number from -4 to 4.
pub fn small(random: &mut Random) -> f64 {
    (random.below_u64(257) as f64 - 128.0) / 32.0
}

/// Indices as little-endian bytes of an integer type that holds them.
pub fn indices(ty: Type, all: &[u64]) -> Vec<u8> {
    all.iter().flat_map(|i| i.to_le_bytes()[..ty.size()].to_vec()).collect()
}
