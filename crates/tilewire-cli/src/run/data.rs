//! The sent data, and a plain computation of the expected result.

use super::case::Case;
use super::hook::{Hook, axes, gathered_from, norm_row, scattered_to, square};
use super::library::{EPSILON, Sample};
use tilewire::ir::scalar::{Arithmetic, Element, Float, dynamic};
use tilewire::ir::{BinaryOp, Type};
use tilewire::{Bf16, F8E4M3};
use tilewire_testkit::random::mixed;

/// Neighbours that share a scale when quantised.
pub const GROUP: usize = 32;
/// The bits of an output before it is written.
pub const POISON: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// The data of one rank in one launch.
#[derive(Clone, Copy, Debug)]
pub struct Data {
    case: Case,
    key: u64,
}

impl Data {
    /// The data that `rank` sends in this turn.
    pub fn new(case: Case, seed: u64, turn: u64, rank: usize) -> Data {
        Data { case, key: mixed(mixed(mixed(seed) ^ turn) ^ rank as u64) }
    }

    /// The input. Arbitrary bits, including NaNs, since moves keep them; numbers of ordinary size if the hook needs
    /// them.
    ///
    /// A random word is split into as many elements as fit: a full `verify` makes hundreds of gigabytes.
    pub fn sent<T: Element>(&self) -> Vec<T> {
        let (len, room) = (self.case.len * self.case.hook.inputs(), size_of::<u64>() / size_of::<T>());
        let word = |i: usize| mixed(self.key.wrapping_add(i as u64));
        if self.case.hook.is_of_floats() {
            // Quantised numbers may be larger than an exponential function accepts.
            let step = if self.case.hook.group(len) == Some(GROUP) { 0.125 } else { 0.0005 };
            return (0..len).map(|i| number(((word(i) % 20_001) as f32 - 10_000.0) * step)).collect();
        }
        let mut all = Vec::with_capacity(len + room);
        for i in 0..len.div_ceil(room) {
            // A byte of a `bool` is true unless it is 0, so only one bit of it is random: otherwise hardly any would be
            // false.
            let bits = if T::TYPE == Type::Bool { word(i) & 0x0101_0101_0101_0101 } else { word(i) };
            all.extend((0..room).map(|k| T::from_bits(bits >> (k * 8 * size_of::<T>()))));
        }
        all.truncate(len);
        all
    }

    /// The received value of every position, in the output's type, as the receiver makes it from the payload.
    pub fn arrives<In: Sample, Out: Sample>(&self) -> Vec<Out> {
        let (sent, len) = (self.sent::<In>(), self.case.len);
        let (rows, cols) = square(len);
        let same = |x: In| Out::from_bits(x.to_bits());
        match self.case.hook {
            Hook::Copy | Hook::Scatter | Hook::Accumulate | Hook::Keep => sent.into_iter().map(same).collect(),
            Hook::Scale => sent.into_iter().map(|x| same(x.times(factor()))).collect(),
            Hook::Cast => sent.into_iter().map(cast::<In, Out>).collect(),
            Hook::Narrow => sent.into_iter().map(|x| cast::<Bf16, Out>(cast(x))).collect(),
            Hook::Transpose => {
                let column = |col: usize| (0..rows).map(move |row| row * cols + col);
                (0..cols).flat_map(column).map(|i| same(sent[i])).collect()
            }
            Hook::Permute => {
                let [planes, rows, cols] = axes(len);
                let mut all = Vec::with_capacity(len);
                for col in 0..cols {
                    for plane in 0..planes {
                        all.extend((0..rows).map(|row| same(sent[(plane * rows + row) * cols + col])));
                    }
                }
                all
            }
            Hook::Gather => (0..len).map(|pos| same(sent[gathered_from(len, pos)])).collect(),
            Hook::Mask => (0..len).map(|pos| if pos % 5 == 0 { factor() } else { same(sent[pos]) }).collect(),
            Hook::Compose => sent.into_iter().rev().map(|x| same(x.plus(x))).collect(),
            Hook::Quantise => quantised::<In, Out, F8E4M3>(&sent, F8E4M3::MAX),
            Hook::QuantiseI8 => quantised::<In, Out, i8>(&sent, i8::MAX),
            Hook::BiasGelu => {
                let biases: Vec<In> = (0..cols).map(|col| number(bias_of(col))).collect();
                let gelu = |(i, &x): (usize, &In)| number(gelu(wide(x.plus(biases[i % cols]))));
                sent.iter().enumerate().map(gelu).collect()
            }
            Hook::Swiglu => {
                let pairs = sent.chunks(2 * cols.max(1)).flat_map(|row| row[..cols].iter().zip(&row[cols..]));
                pairs.map(|(&gate, &up)| number(silu(wide(gate)) * wide(up))).collect()
            }
            Hook::RmsNorm => sent.chunks(norm_row(len)).flat_map(|row| normed::<In, Out>(row)).collect(),
        }
    }

    /// True if the output matters before a launch.
    pub fn accumulates(&self) -> bool {
        self.case.hook == Hook::Accumulate
    }

    /// True if every bit is defined.
    pub fn is_exact(&self) -> bool {
        !self.case.hook.computes()
    }

    /// The output before a launch.
    pub fn before<Out: Element>(&self) -> Vec<Out> {
        // Values to add to must be meaningful; otherwise the output is poison.
        let of = |i: usize| if self.accumulates() { number((i % 7) as f32) } else { Out::from_bits(POISON) };
        (0..self.case.len).map(of).collect()
    }

    /// The output after a launch in which `arrived` arrived, in the order of positions.
    pub fn stored<Out: Sample>(&self, arrived: Vec<Out>) -> Vec<Out> {
        let len = self.case.len;
        match self.case.hook {
            Hook::Scatter => {
                let mut all = self.before::<Out>();
                arrived.into_iter().enumerate().for_each(|(pos, x)| all[scattered_to(len, pos)] = x);
                all
            }
            Hook::Keep => {
                let kept = |(pos, (before, x))| if pos % 3 == 0 { before } else { x };
                self.before().into_iter().zip(arrived).enumerate().map(kept).collect()
            }
            Hook::Accumulate => self.before().into_iter().zip(arrived).map(|(a, b)| sum(a, b)).collect(),
            _ => arrived,
        }
    }

    /// The first difference between an output and its expected content after `arrived` arrived: the position and the
    /// expected bits.
    pub fn differs<Out: Sample>(&self, out: &[Out], arrived: Vec<Out>, exact: bool) -> Option<(usize, u64)> {
        assert_eq!(out.len(), self.case.len);
        let must = self.stored(arrived);
        let wrong = out.iter().zip(&must).position(|(&is, &must)| !agree(exact, is, must))?;
        Some((wrong, must[wrong].to_bits()))
    }
}

/// A number converted to a type; floats and integers round as casts do.
pub fn number<T: Element>(x: f32) -> T {
    cast(x)
}

/// The factor of scaling, and the substitute of masks: exact in every type.
pub fn factor<T: Element>() -> T {
    number(3.0)
}

/// The bias of a column.
pub fn bias_of(col: usize) -> f32 {
    (col % 13) as f32 * 0.25 - 1.5
}

/// The weight of a column.
pub fn weight_of(col: usize) -> f32 {
    (col % 11) as f32 * 0.5 - 2.0
}

fn cast<A: Element, B: Element>(x: A) -> B {
    B::from_bits(if A::TYPE == B::TYPE { x.to_bits() } else { dynamic::cast(A::TYPE, B::TYPE, x.to_bits()) })
}

fn wide<T: Element>(x: T) -> f32 {
    cast(x)
}

/// The sum, in f32 for narrow floats.
fn sum<T: Element>(a: T, b: T) -> T {
    let wide = if T::TYPE.is_float() && T::TYPE.size() < 4 { Type::F32 } else { T::TYPE };
    let widened = |x: T| if wide == T::TYPE { x.to_bits() } else { dynamic::cast(T::TYPE, wide, x.to_bits()) };
    let sum = dynamic::binary(BinaryOp::Add, wide, widened(a), widened(b));
    T::from_bits(if wide == T::TYPE { sum } else { dynamic::cast(wide, T::TYPE, sum) })
}

/// Quantised with a scale for each group, and back.
fn quantised<In: Element, Out: Element, Q: Element>(sent: &[In], largest: Q) -> Vec<Out> {
    let group = |xs: &[In]| {
        let most = xs.iter().fold(0.0f32, |most, &x| Arithmetic::max(most, wide(x).abs()));
        let scale = Arithmetic::max(most * (1.0 / wide(largest)), f32::MIN_POSITIVE);
        let payload = move |x: In| {
            let x = wide(x) * (1.0 / scale);
            number::<Q>(if Q::TYPE.is_float() { x } else { x.round_ties_even() })
        };
        xs.iter().map(move |&x| number(wide(payload(x)) * scale)).collect::<Vec<Out>>()
    };
    sent.chunks(GROUP).flat_map(group).collect()
}

fn gelu(x: f32) -> f32 {
    let inner = (x + x * x * x * 0.044715) * std::f32::consts::FRAC_2_PI.sqrt();
    x * 0.5 * (Float::tanh(inner) + 1.0)
}

fn silu(x: f32) -> f32 {
    x / (Float::exp(-x) + 1.0)
}

/// A row by its root mean square, weighted.
fn normed<In: Element, Out: Element>(row: &[In]) -> Vec<Out> {
    // Neighbours are summed first; an odd last one is carried up.
    let mut squares: Vec<f32> = row.iter().map(|&x| wide(x) * wide(x)).collect();
    while squares.len() > 1 {
        squares = squares.chunks(2).map(|pair| if pair.len() == 2 { pair[0] + pair[1] } else { pair[0] }).collect();
    }
    let factor = 1.0 / (squares[0] / row.len() as f32 + EPSILON).sqrt();
    row.iter().enumerate().map(|(k, &x)| number(wide(x) * factor * weight_of(k))).collect()
}

/// True if two elements are the same. For a NaN made by arithmetic only its being a NaN is defined: then it is not
/// `exact`.
pub fn agree<T: Element>(exact: bool, is: T, must: T) -> bool {
    let (is, must) = (is.to_bits(), must.to_bits());
    is == must || (!exact && dynamic::canonical_nan(T::TYPE, is) == dynamic::canonical_nan(T::TYPE, must))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewire::Knobs;

    fn data(dtype: Type, hook: Hook, len: usize, turn: u64) -> Data {
        Data::new(Case { dtype, hook, len, config: Knobs::default(), rounds: None }, 1, turn, 0)
    }

    #[test]
    fn half_of_the_bools_are_false() {
        let all: Vec<bool> = data(Type::Bool, Hook::Copy, 1000, 0).sent();
        assert!((400..600).contains(&all.iter().filter(|x| **x).count()));
    }

    #[test]
    fn every_length_is_a_part_of_the_longest_and_every_turn_has_its_own() {
        let sent = |len, turn| data(Type::U8, Hook::Copy, len, turn).sent::<u8>();
        let long = sent(100, 0);
        assert!((0..100).all(|len| sent(len, 0) == long[..len]));
        assert_ne!(sent(100, 1), long);
        // Neighbours of one word are not copies of each other.
        assert!((0..12).any(|w| long[8 * w] != long[8 * w + 1]));
    }

    #[test]
    fn one_wrong_element_is_found_where_it_is() {
        for hook in Hook::ALL {
            let data = data(Type::F32, hook, 120, 3);
            let mut out = data.stored::<f32>(data.arrives::<f32, f32>());
            let differs = |out: &[f32]| data.differs(out, data.arrives::<f32, f32>(), !hook.computes());
            assert_eq!((out.len(), differs(&out)), (120, None), "{hook:?}");
            let must = out[77];
            out[77] = 12345.0;
            assert_eq!(differs(&out), Some((77, u64::from(must.to_bits()))), "{hook:?}");
        }
    }

    /// Each once, computed by hand.
    #[test]
    fn hooks_do_what_their_names_say() {
        let arrives = |hook, len| {
            let data = data(Type::F32, hook, len, 0);
            (data.sent::<f32>(), data.stored::<f32>(data.arrives::<f32, f32>()))
        };
        let (x, y) = arrives(Hook::Transpose, 6);
        assert_eq!(bits(&y), bits(&[x[0], x[3], x[1], x[4], x[2], x[5]]));
        // Axes of 1, 2 and 2: the last one first.
        let (x, y) = arrives(Hook::Permute, 4);
        assert_eq!(bits(&y), bits(&[x[0], x[2], x[1], x[3]]));
        let (x, y) = arrives(Hook::Gather, 5);
        assert_eq!(bits(&y), bits(&[x[0], x[2], x[4], x[2], x[4]]));
        let (x, y) = arrives(Hook::Scatter, 3);
        assert_eq!(bits(&y), bits(&[x[1], x[2], x[0]]));
        let (x, y) = arrives(Hook::Swiglu, 2);
        assert_eq!((x.len(), y.len()), (4, 2));
        assert!((y[1] - x[1] / (1.0 + (-x[1]).exp()) * x[3]).abs() < 1e-4);
        let (x, y) = arrives(Hook::QuantiseI8, 64);
        assert!(x.iter().zip(&y).all(|(x, y)| (x - y).abs() <= 1250.0 / 127.0));
        let (x, y) = arrives(Hook::RmsNorm, 2);
        assert!((y[1] / y[0] - x[1] / x[0] * 0.75).abs() < 1e-3, "weights of -2 and -1.5");
    }

    fn bits(all: &[f32]) -> Vec<u32> {
        all.iter().map(|x| x.to_bits()).collect()
    }
}
