//! What is sent, and a plain computation of what must arrive.

use super::case::{Case, Hook};
use tilewire::F8E4M3;
use tilewire::ir::scalar::{Element, dynamic};
use tilewire::ir::{BinaryOp, Type};

/// Neighbours that share a scale when quantised.
pub const GROUP: usize = 32;
/// The largest finite f8e4m3.
pub const F8_MAX: f32 = 448.0;
/// The bits of what stands in an output that nobody has written.
pub const POISON: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// Reproducible numbers: SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

fn mixed(x: u64) -> u64 {
    let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The data of one rank in one launch.
#[derive(Clone, Copy, Debug)]
pub struct Data {
    case: Case,
    key: u64,
}

impl Data {
    /// What `rank` sends in this turn.
    pub fn new(case: Case, seed: u64, turn: u64, rank: usize) -> Data {
        Data { case, key: mixed(mixed(mixed(seed) ^ turn) ^ rank as u64) }
    }

    /// The factor of `scale` in this turn: exact in every type.
    pub fn factor<T: Element>() -> T {
        T::from_bits(dynamic::cast(Type::I32, T::TYPE, 3))
    }

    /// Element `i` of the input.
    pub fn sent<T: Element>(&self, i: usize) -> T {
        let bits = mixed(self.key.wrapping_add(i as u64));
        match self.case.hook {
            // Any bits at all, NaNs included: moves keep them.
            Hook::Copy | Hook::Scale | Hook::Transpose => T::from_bits(bits),
            Hook::Quantise => {
                let x = (bits % 20_001) as f32 / 8.0 - 1250.0;
                T::from_bits(dynamic::cast(Type::F32, T::TYPE, Element::to_bits(x)))
            }
        }
    }

    /// The bits of all that must arrive, NaNs made by arithmetic in one form.
    pub fn arrives<T: Element>(&self) -> Vec<u64> {
        let len = self.case.len;
        let sent = |i| Element::to_bits(self.sent::<T>(i));
        match self.case.hook {
            Hook::Copy => (0..len).map(sent).collect(),
            Hook::Scale => {
                let factor = Element::to_bits(Self::factor::<T>());
                let product = |i| dynamic::binary(BinaryOp::Mul, T::TYPE, sent(i), factor);
                (0..len).map(|i| self.comparable(T::TYPE, product(i))).collect()
            }
            Hook::Transpose => {
                let (rows, cols) = self.case.shape();
                (0..len).map(|i| sent(i % rows * cols + i / rows)).collect()
            }
            Hook::Quantise => {
                let wide = |i| <f32 as Element>::from_bits(dynamic::cast(T::TYPE, Type::F32, sent(i)));
                let group = |first: usize| {
                    let xs: Vec<f32> = (first..len.min(first + GROUP)).map(wide).collect();
                    let scale = scale_of(xs.iter().fold(0.0, |most: f32, x| most.max(x.abs())));
                    xs.into_iter().map(move |x| F8E4M3::from_f32(x / scale).to_f32() * scale).collect::<Vec<_>>()
                };
                let arrived = (0..len).step_by(GROUP).flat_map(group);
                arrived.map(|x| dynamic::cast(Type::F32, T::TYPE, Element::to_bits(x))).collect()
            }
        }
    }

    /// Bits that are equal where the results are.
    pub fn comparable(&self, ty: Type, bits: u64) -> u64 {
        match self.case.hook {
            Hook::Scale => dynamic::canonical_nan(ty, bits),
            _ => bits,
        }
    }
}

/// The scale of a group whose largest magnitude is `most`.
fn scale_of(most: f32) -> f32 {
    if most == 0.0 { 1.0 } else { most / F8_MAX }
}
