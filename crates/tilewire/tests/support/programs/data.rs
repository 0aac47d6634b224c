//! Random numbers, and elements that look for trouble.

use tilewire::ir::Type;
use tilewire::ir::scalar::dynamic;

/// SplitMix64: a seed names a program for ever.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n`.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// A permutation of `0..n`.
    pub fn permutation(&mut self, n: u64) -> Vec<u64> {
        let mut all: Vec<u64> = (0..n).collect();
        for i in (1..all.len()).rev() {
            all.swap(i, self.below(i as u64 + 1) as usize);
        }
        all
    }
}

/// The bits of an element of a type: half of the time a special value, a quarter a small number, else any bits.
pub fn element(ty: Type, random: &mut Random) -> u64 {
    let mask = if ty.bits() == 64 { u64::MAX } else { (1 << ty.bits()) - 1 };
    if ty == Type::Bool {
        return random.below(2);
    }
    match random.below(4) {
        0 | 1 if ty.is_float() => special_float(ty, random),
        0 | 1 => {
            let top = 1 << (ty.bits() - 1);
            random.pick(&[0, 1, 2, top, top - 1, top + 1, mask, mask - 1, u64::from(ty.bits())]) & mask
        }
        2 if ty.is_float() => {
            // A fraction, so that the roundings differ.
            let number = (random.below(257) as f64 - 128.0) / random.pick(&[1.0, 2.0, 8.0, 64.0]);
            dynamic::cast(Type::F64, ty, number.to_bits())
        }
        2 => (random.below(33) as i64 - 16) as u64 & mask,
        _ => random.next() & mask,
    }
}

/// NaNs, infinities, zeros, denormals, extremes.
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

/// `len` elements as little-endian bytes. A bool byte may be any, for the reader to normalise.
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

/// `len` small numbers, fractions among them where the type has some, as little-endian bytes.
pub fn numbers(ty: Type, len: u64, random: &mut Random) -> Vec<u8> {
    let number = |_| {
        let bits = dynamic::cast(Type::F64, ty, small(random).to_bits());
        bits.to_le_bytes().into_iter().take(ty.size())
    };
    (0..len).flat_map(number).collect()
}

/// A number from -4 to 4.
pub fn small(random: &mut Random) -> f64 {
    (random.below(257) as f64 - 128.0) / 32.0
}

/// Indices as little-endian bytes of an integer type that holds them.
pub fn indices(ty: Type, all: &[u64]) -> Vec<u8> {
    all.iter().flat_map(|i| i.to_le_bytes()[..ty.size()].to_vec()).collect()
}
