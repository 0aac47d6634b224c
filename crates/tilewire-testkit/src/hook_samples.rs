//! Every hook of the library as a kernel of one rank, with its expected output, which plain loops over the scalar
//! definitions compute.

use crate::programs::data::element;
use crate::random::Random;
use tilewire::hooks::{self, Accumulates, Compose, Quantised};
use tilewire::ir::scalar::{Arithmetic, Element, Float, Integer, Number, dynamic};
use tilewire::ir::{BinaryOp, Type};
use tilewire::{Arg, Bf16, F8E4M3, F8E5M2, F16, Memory, Scalar, Tensor, Traced, map};

/// A kernel, its output, and the expected bits of the elements.
pub struct Sample {
    pub name: String,
    pub traced: Traced,
    pub out: Memory,
    pub ty: Type,
    pub expected: Vec<u64>,
}

impl Sample {
    fn new<T: Element>(name: impl Into<String>, traced: Traced, out: &Tensor<T>, expected: Vec<T>) -> Sample {
        let bits = expected.iter().map(|x| x.to_bits()).collect();
        Sample { name: name.into(), traced, out: out.memory().clone(), ty: T::TYPE, expected: bits }
    }

    /// The parameter that is the output.
    pub fn param(&self) -> usize {
        let is_out = |arg: &Arg| matches!(arg, Arg::Buffer(banks) if banks[0].start() == self.out.start());
        self.traced.args.iter().position(is_out).expect("the kernel has an output")
    }

    /// The first fault in the bytes of an output, if there is one.
    pub fn fault(&self, bytes: &[u8]) -> Option<String> {
        let size = self.ty.size();
        assert_eq!(bytes.len(), self.expected.len() * size, "{}", self.name);
        let bits = |k: usize| (0..size).fold(0, |bits, b| bits | u64::from(bytes[k * size + b]) << (8 * b));
        let same =
            |k: usize| dynamic::canonical_nan(self.ty, bits(k)) == dynamic::canonical_nan(self.ty, self.expected[k]);
        let wrong = (0..self.expected.len()).find(|&k| !same(k))?;
        Some(format!("{}: element {wrong} is {:#x}, must be {:#x}", self.name, bits(wrong), self.expected[wrong]))
    }
}

/// All samples.
pub fn all() -> Vec<Sample> {
    let mut all = places();
    all.extend(numbers());
    all.extend(activations());
    all.extend(quantised());
    all.extend(composed());
    all
}

/// Elements of all kinds: zeros, infinities, NaN, denormals, the largest and smallest integers.
fn mixed<T: Element>(len: usize, seed: u64) -> Tensor<T> {
    let mut random = Random::new(seed);
    Tensor::from_fn(len, |_| T::from_bits(element(T::TYPE, &mut random)))
}

/// Numbers of ordinary size.
fn ordinary<T: Element>(len: usize, seed: u64) -> Tensor<T> {
    let mut random = Random::new(seed);
    Tensor::from_fn(len, |_| from_f32((random.below_u64(4001) as f32 - 2000.0) / 333.0))
}

fn as_f32<T: Element>(x: T) -> f32 {
    f32::from_bits(dynamic::cast(T::TYPE, Type::F32, x.to_bits()) as u32)
}

fn from_f32<T: Element>(x: f32) -> T {
    cast(x)
}

fn cast<A: Element, B: Element>(x: A) -> B {
    B::from_bits(if A::TYPE == B::TYPE { x.to_bits() } else { dynamic::cast(A::TYPE, B::TYPE, x.to_bits()) })
}

macro_rules! for_types {
    ($f:ident $args:tt: $($ty:ty)*) => { vec![$($f::<$ty> $args),*] };
}

// ---- places -------------------------------------------------------------------------------------------------------

fn places() -> Vec<Sample> {
    let mut all = for_types!(copied(33): bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 F16 Bf16 F8E4M3 F8E5M2);
    all.extend(for_types!(transposed(5, 27): i8 Bf16 f32 f64));
    all.extend(for_types!(transposed(1, 9): u16 f32));
    all.extend(for_types!(permuted(): u8 Bf16 f32 i64));
    all.extend([gathered::<f32, i32>(), gathered::<u8, u8>(), gathered::<f64, i64>()]);
    all.extend([scattered::<f32, i32>(), scattered::<F16, u16>()]);
    all.extend(for_types!(masked(): bool i32 f32 Bf16 F8E5M2));
    all
}

fn copied<T: Element>(len: usize) -> Sample {
    let (out, inp) = (Tensor::<T>::zeros(len), mixed::<T>(len, 1));
    let traced = map(&out, &inp).produce(hooks::copy()).trace().unwrap();
    Sample::new(format!("copy {}", T::TYPE), traced, &out, inp.to_vec())
}

fn transposed<T: Element>(rows: usize, cols: usize) -> Sample {
    let (out, inp) = (Tensor::<T>::zeros(rows * cols), mixed::<T>(rows * cols, 2));
    let traced =
        map(&out, &inp).chunk_shape(rows, cols).output_shape(cols, rows).produce(hooks::transpose()).trace().unwrap();
    let expected = (0..rows * cols).map(|k| inp.get(k % rows * cols + k / rows)).collect();
    Sample::new(format!("transpose {rows} x {cols} {}", T::TYPE), traced, &out, expected)
}

/// `[3, 4, 5, 2]` by `[2, 0, 3, 1]`, against four nested loops.
fn permuted<T: Element>() -> Sample {
    let (out, inp) = (Tensor::<T>::zeros(120), mixed::<T>(120, 3));
    let traced = map(&out, &inp).produce(hooks::permute([3, 4, 5, 2], [2, 0, 3, 1])).trace().unwrap();
    let mut expected = Vec::new();
    for c in 0..5 {
        for a in 0..3 {
            for d in 0..2 {
                expected.extend((0..4).map(|b| inp.get(((a * 4 + b) * 5 + c) * 2 + d)));
            }
        }
    }
    Sample::new(format!("permute {}", T::TYPE), traced, &out, expected)
}

fn gathered<T: Element, I: Integer>() -> Sample {
    let (out, inp) = (Tensor::<T>::zeros(201), mixed::<T>(100, 4));
    let mut random = Random::new(5);
    let index = Tensor::from_fn(201, |_| I::from_bits(random.below_u64(100)));
    let traced = map(&out, &inp).produce(hooks::gather_by(&index)).trace().unwrap();
    let expected = index.to_vec().into_iter().map(|i| inp.get(i.to_bits() as usize)).collect();
    Sample::new(format!("gather {} by {}", T::TYPE, I::TYPE), traced, &out, expected)
}

fn scattered<T: Element, I: Integer>() -> Sample {
    let (out, inp) = (Tensor::<T>::zeros(99), mixed::<T>(99, 6));
    let places = Random::new(7).permutation(99);
    let index = Tensor::from_fn(99, |i| I::from_bits(places[i]));
    let traced = map(&out, &inp).consume(hooks::scatter_by(&index)).trace().unwrap();
    let mut expected = vec![T::default(); 99];
    (0..99).for_each(|i| expected[places[i] as usize] = inp.get(i));
    Sample::new(format!("scatter {} by {}", T::TYPE, I::TYPE), traced, &out, expected)
}

/// A causal mask on the send leg, and every third element kept back on the receive leg.
fn masked<T: Element + hooks::Operand<T>>() -> Sample {
    let (out, inp) = (mixed::<T>(77, 8), mixed::<T>(77, 9));
    let before = out.to_vec();
    let other = mixed::<T>(1, 10).get(0);
    let traced = map(&out, &inp)
        .chunk_shape(7, 11)
        .produce(hooks::mask(|c| c.col().le(c.row()), other))
        .consume(hooks::keep(|c| (c.pos() % 3).ne(0)))
        .trace()
        .unwrap();
    let sent = |k: usize| if k % 11 <= k / 11 { inp.get(k) } else { other };
    let expected = (0..77).map(|k| if k % 3 != 0 { sent(k) } else { before[k] }).collect();
    Sample::new(format!("mask and keep {}", T::TYPE), traced, &out, expected)
}

// ---- numbers ------------------------------------------------------------------------------------------------------

fn numbers() -> Vec<Sample> {
    let mut all = for_types!(scaled(): i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 F16 Bf16 F8E4M3 F8E5M2);
    all.extend(for_types!(scaled_by_rows(): i32 f32 Bf16 f64));
    all.extend(for_types!(biased(): u8 i64 f32 F16));
    all.push(scaled_plainly());
    all.extend([casted::<f32, Bf16>(), casted::<f32, F8E4M3>(), casted::<f64, F16>(), casted::<i64, f32>()]);
    all.extend([casted::<F8E5M2, f32>(), casted::<Bf16, i8>(), casted::<f32, u16>(), casted::<bool, f64>()]);
    all.extend([accumulated::<f32, f32>(), accumulated::<f32, Bf16>(), accumulated::<Bf16, Bf16>()]);
    all.extend([accumulated::<Bf16, f32>(), accumulated::<F16, F8E4M3>(), accumulated::<f64, f32>()]);
    all.extend([accumulated::<i32, i32>(), accumulated::<u8, u8>(), accumulated::<i64, i16>()]);
    all
}

/// Scales by a scalar, which is read at launch.
fn scaled<T: Number>() -> Sample {
    let (out, inp) = (Tensor::<T>::zeros(129), mixed::<T>(129, 11));
    let factor = Scalar::new(ordinary::<T>(1, 12).get(0));
    let traced = map(&out, &inp).produce(hooks::scale(&factor)).trace().unwrap();
    let expected = inp.to_vec().into_iter().map(|x| Arithmetic::mul(x, factor.get())).collect();
    Sample::new(format!("scale {} by a scalar", T::TYPE), traced, &out, expected)
}

fn scaled_by_rows<T: Number>() -> Sample {
    let (out, inp, factors) = (Tensor::<T>::zeros(65), mixed::<T>(65, 13), mixed::<T>(5, 14));
    let shaped = map(&out, &inp).chunk_shape(5, 13);
    let traced = shaped.produce(hooks::scale(hooks::per_row(&factors))).trace().unwrap();
    let expected = (0..65).map(|k| Arithmetic::mul(inp.get(k), factors.get(k / 13))).collect();
    Sample::new(format!("scale {} by rows", T::TYPE), traced, &out, expected)
}

/// Scales a float that Rust does not have by a plain number.
fn scaled_plainly() -> Sample {
    let (out, inp) = (Tensor::<Bf16>::zeros(31), mixed::<Bf16>(31, 15));
    let traced = map(&out, &inp).produce(hooks::scale(1.7)).trace().unwrap();
    let expected = inp.to_vec().into_iter().map(|x| Arithmetic::mul(x, Bf16::from_f32(1.7))).collect();
    Sample::new("scale bf16 by 1.7", traced, &out, expected)
}

/// Adds a bias by columns, and then one by elements.
fn biased<T: Number>() -> Sample {
    let (out, inp) = (Tensor::<T>::zeros(65), mixed::<T>(65, 16));
    let (columns, rest) = (mixed::<T>(13, 17), mixed::<T>(65, 18));
    let shaped = map(&out, &inp).chunk_shape(5, 13);
    let by_column = hooks::bias(hooks::per_col(&columns));
    let traced = shaped.produce(by_column.then_at(|c, x| x + hooks::Operand::value(&hooks::per_element(&rest), c)));
    let expected =
        (0..65).map(|k| Arithmetic::add(Arithmetic::add(inp.get(k), columns.get(k % 13)), rest.get(k))).collect();
    Sample::new(format!("bias {}", T::TYPE), traced.trace().unwrap(), &out, expected)
}

/// Casts on the send leg.
fn casted<A: Element, B: Element>() -> Sample {
    let (out, inp) = (Tensor::<B>::zeros(130), mixed::<A>(130, 19));
    let traced = map(&out, &inp).produce(hooks::cast()).trace().unwrap();
    let expected = inp.to_vec().into_iter().map(cast::<A, B>).collect();
    Sample::new(format!("cast {} to {}", A::TYPE, B::TYPE), traced, &out, expected)
}

fn accumulated<Out: Accumulates, T: Number>() -> Sample {
    let (out, inp) = (mixed::<Out>(131, 20), mixed::<T>(131, 21));
    let before = out.to_vec();
    let traced = map(&out, &inp).consume(hooks::accumulate()).trace().unwrap();
    let sum = |k: usize| {
        let (a, b) = (cast::<Out, Out::Sum>(before[k]), cast::<T, Out::Sum>(inp.get(k)));
        cast::<Out::Sum, Out>(Arithmetic::add(a, b))
    };
    let expected = (0..131).map(sum).collect();
    Sample::new(format!("accumulate {} into {}", T::TYPE, Out::TYPE), traced, &out, expected)
}

// ---- activations --------------------------------------------------------------------------------------------------

fn activations() -> Vec<Sample> {
    let mut all = for_types!(bias_gelu(): f32 Bf16 F16);
    all.extend(for_types!(silus(): f32 F16 f64));
    all.extend(for_types!(swiglus(): f32 Bf16));
    all.extend([norm::<f32, f32>(7, 16), norm::<Bf16, f32>(3, 50), norm::<F16, F16>(2, 33), norm::<f32, Bf16>(1, 1)]);
    all
}

fn gelu(x: f32) -> f32 {
    let inner = (x + x * x * x * 0.044715) * std::f32::consts::FRAC_2_PI.sqrt();
    x * 0.5 * (Float::tanh(inner) + 1.0)
}

fn silu(x: f32) -> f32 {
    x / (Float::exp(-x) + 1.0)
}

fn bias_gelu<T: Float>() -> Sample {
    let (out, inp, bias) = (Tensor::<T>::zeros(6 * 21), ordinary::<T>(6 * 21, 22), ordinary::<T>(21, 23));
    let hook = hooks::bias(hooks::per_col(&bias)).then(hooks::gelu);
    let traced = map(&out, &inp).chunk_shape(6, 21).produce(hook).trace().unwrap();
    let expected = (0..126).map(|k| from_f32(gelu(as_f32(Arithmetic::add(inp.get(k), bias.get(k % 21)))))).collect();
    Sample::new(format!("bias and gelu {}", T::TYPE), traced, &out, expected)
}

fn silus<T: Float>() -> Sample {
    let (out, inp) = (Tensor::<T>::zeros(200), mixed::<T>(200, 24));
    let traced = map(&out, &inp).produce(hooks::copy().then(hooks::silu)).trace().unwrap();
    let expected = inp.to_vec().into_iter().map(|x| from_f32(silu(as_f32(x)))).collect();
    Sample::new(format!("silu {}", T::TYPE), traced, &out, expected)
}

fn swiglus<T: Float>() -> Sample {
    let (rows, cols) = (3, 17);
    let (out, inp) = (Tensor::<T>::zeros(rows * cols), ordinary::<T>(2 * rows * cols, 25));
    let traced = map(&out, &inp).chunk_shape(rows, 2 * cols).output_shape(rows, cols).produce(hooks::swiglu());
    let at = |k: usize, side: usize| as_f32(inp.get(k / cols * 2 * cols + side * cols + k % cols));
    let expected = (0..rows * cols).map(|k| from_f32(silu(at(k, 0)) * at(k, 1))).collect();
    Sample::new(format!("swiglu {}", T::TYPE), traced.trace().unwrap(), &out, expected)
}

fn norm<T: Float, W: Float>(rows: usize, cols: usize) -> Sample {
    let (out, inp, weight) = (Tensor::<T>::zeros(rows * cols), ordinary::<T>(rows * cols, 26), ordinary::<W>(cols, 27));
    let traced = map(&out, &inp).produce(hooks::rms_norm(&weight, 1e-5)).trace().unwrap();
    let mut expected = Vec::new();
    for row in inp.to_vec().chunks(cols) {
        let mean = pairwise(row.iter().map(|&x| as_f32(x) * as_f32(x)).collect()) / cols as f32;
        let factor = Float::rsqrt(mean + 1e-5);
        expected
            .extend(row.iter().enumerate().map(|(k, &x)| from_f32::<T>(as_f32(x) * factor * as_f32(weight.get(k)))));
    }
    Sample::new(format!("rms_norm {rows} x {cols} {} by {}", T::TYPE, W::TYPE), traced, &out, expected)
}

/// Neighbours are added in pairs first. An odd last element moves up a level.
fn pairwise(mut level: Vec<f32>) -> f32 {
    while level.len() > 1 {
        level = level.chunks(2).map(|pair| if pair.len() == 2 { pair[0] + pair[1] } else { pair[0] }).collect();
    }
    level[0]
}

// ---- quantised ----------------------------------------------------------------------------------------------------

fn quantised() -> Vec<Sample> {
    vec![
        quantise::<f32, f32, _>(F8E4M3::MAX, 32, 256),
        quantise::<f32, f32, _>(F8E5M2::MAX, 128, 300),
        quantise::<f32, Bf16, _>(i8::MAX, 16, 130),
        quantise::<Bf16, Bf16, _>(F8E4M3::MAX, 128, 257),
        quantise::<F16, f64, _>(7i8, 5, 43),
        quantise::<f64, f32, _>(F8E4M3::MAX, 1, 40),
    ]
}

fn quantise<In: Float, Out: Float, Q: Quantised>(largest: Q, group: usize, len: usize) -> Sample {
    let (out, inp) = (Tensor::<Out>::zeros(len), ordinary::<In>(len, 28));
    // One group of zeros, one with a NaN, and one of tiny numbers.
    (0..group.min(len)).for_each(|k| inp.set(k, In::default()));
    if len > 3 * group {
        inp.set(group, from_f32(f32::NAN));
        (2 * group..3 * group).for_each(|k| inp.set(k, from_f32(f32::from_bits(k as u32 * 77))));
    }
    let hooks = map(&out, &inp).produce2(hooks::quantise(largest, group)).consume(hooks::dequantise());
    let traced = hooks.trace().unwrap();
    let expected = quantised_and_back(&inp.to_vec(), largest, group);
    let name = format!("quantise {} as {} to {}, {group} of {len}", In::TYPE, Q::TYPE, Out::TYPE);
    Sample::new(name, traced, &out, expected)
}

/// The expected output of `quantise` and `dequantise`.
pub fn quantised_and_back<In: Element, Out: Element, Q: Element>(inp: &[In], largest: Q, group: usize) -> Vec<Out> {
    let mut expected = Vec::new();
    for group in inp.chunks(group) {
        let magnitudes = group.iter().map(|&x| as_f32(x).abs());
        let most = magnitudes.reduce(Arithmetic::max).unwrap();
        let scale = Arithmetic::max(most * (1.0 / as_f32(largest)), f32::MIN_POSITIVE);
        for &x in group {
            let x = as_f32(x) * (1.0 / scale);
            let x = if Q::TYPE.is_float() { x } else { Float::round_even(x) };
            expected.push(from_f32(as_f32(from_f32::<Q>(x)) * scale));
        }
    }
    expected
}

// ---- composed -----------------------------------------------------------------------------------------------------

fn composed() -> Vec<Sample> {
    let (out, inp) = (Tensor::<f32>::zeros(50), mixed::<f32>(50, 30));
    let reversed = hooks::gather(|c| 49 - c.pos()).then(|x| x.max(0.5) - 3.0);
    let traced = map(&out, &inp).produce(reversed).trace().unwrap();
    let bits = |op, a: f32, b: f32| {
        f32::from_bits(dynamic::binary(op, Type::F32, a.to_bits().into(), b.to_bits().into()) as u32)
    };
    let of = |x: f32| bits(BinaryOp::Sub, bits(BinaryOp::Max, x, 0.5), 3.0);
    let expected = (0..50).map(|k| of(inp.get(49 - k))).collect();
    let gathered = Sample::new("gather then", traced, &out, expected);

    // The values are sent as bf16, and stored as f32 at another place.
    let (out, inp) = (Tensor::<f32>::zeros(48), ordinary::<f32>(48, 31));
    let narrow = hooks::transpose().then(|x| x.cast::<Bf16>());
    let traced =
        map(&out, &inp).chunk_shape(6, 8).output_shape(8, 6).produce(narrow).consume(hooks::store()).trace().unwrap();
    let expected = (0..48).map(|k| Bf16::from_f32(inp.get(k % 6 * 8 + k / 6)).to_f32()).collect();
    let narrowed = Sample::new("transpose then bf16, stored", traced, &out, expected);

    let (out, inp) = (Tensor::<f32>::zeros(48), ordinary::<f32>(48, 32));
    let squeezed =
        map(&out, &inp).chunk_shape(6, 8).output_shape(8, 6).produce2(hooks::transpose().quantised(i8::MAX, 6));
    let traced = squeezed.consume(hooks::dequantise()).trace().unwrap();
    let moved: Vec<f32> = (0..48).map(|k| inp.get(k % 6 * 8 + k / 6)).collect();
    let expected = quantised_and_back(&moved, i8::MAX, 6);
    let squeezed = Sample::new("transpose, quantised", traced, &out, expected);

    let (out, inp) = (Tensor::<i32>::zeros(40), mixed::<i32>(40, 33));
    let traced = map(&out, &inp).consume(hooks::scatter(|c| (c.pos() + 7) % 40)).trace().unwrap();
    let expected = (0..40).map(|k| inp.get((k + 33) % 40)).collect();
    vec![gathered, narrowed, squeezed, Sample::new("scatter by a closure", traced, &out, expected)]
}
