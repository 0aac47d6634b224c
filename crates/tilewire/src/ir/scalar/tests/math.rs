//! exp, log and tanh against the standard library in double precision. Errors are in units in the last place.

use super::Random;
use crate::ir::scalar::math::{self, FloatOps, Format};
use crate::ir::scalar::{Bf16, F8E4M3, F16, Float, dynamic};
use crate::ir::{BinaryOp, CompareOp, Type};

/// A function under test, and the oracle.
type Case<T> = (&'static str, fn(T) -> T, fn(f64) -> f64, f64);

// The last number is the bound, which `Value::exp` and the guide state. Worst over all 32-bit floats: exp 1.059, log
// 0.854, tanh 2.419.
const SINGLE: [Case<f32>; 3] =
    [("exp", Float::exp, f64::exp, 1.06), ("log", Float::log, f64::ln, 0.86), ("tanh", Float::tanh, f64::tanh, 2.42)];

// Against a library that may itself be off by one.
const DOUBLE: [Case<f64>; 3] =
    [("exp", Float::exp, f64::exp, 2.0), ("log", Float::log, f64::ln, 2.0), ("tanh", Float::tanh, f64::tanh, 4.0)];

/// Distance of an f32 from the exact result, in units of the last place of the exact result.
fn error(got: f32, want: f64) -> f64 {
    let rounded = want as f32;
    if got.to_bits() == rounded.to_bits() || got.is_nan() && want.is_nan() {
        return 0.0;
    }
    if rounded.is_infinite() && got.is_finite() {
        // Just below the overflow threshold the largest number is as near.
        return (want.abs() - f64::from(got.abs())) / 2f64.powi(104);
    }
    let last_place = f64::from(rounded.abs().next_up()) - f64::from(rounded.abs());
    (f64::from(got) - want).abs() / last_place
}

/// Number of doubles between two.
fn distance(got: f64, want: f64) -> f64 {
    if got.is_nan() && want.is_nan() {
        return 0.0;
    }
    let order = |x: f64| (x.to_bits() as i64 ^ (x.to_bits() as i64 >> 63 & i64::MAX)) as i128;
    (order(got) - order(want)).unsigned_abs() as f64
}

/// Checks the three functions against their bounds on every `stride`-th 32-bit float.
fn check_singles(stride: usize) {
    let worst = SINGLE.map(|(name, function, oracle, _)| {
        let mut worst = (0.0, 0.0);
        for bits in (0..=u32::MAX).step_by(stride) {
            let x = f32::from_bits(bits);
            let error = error(function(x), oracle(f64::from(x)));
            // A NaN where there should be none, or none where there should be one, makes the error a NaN.
            let error = if error.is_nan() { f64::INFINITY } else { error };
            if error > worst.0 {
                worst = (error, x);
            }
        }
        println!("{name}: {:.3} at {:e}", worst.0, worst.1);
        worst
    });
    for ((name, _, _, bound), (error, x)) in SINGLE.iter().zip(worst) {
        assert!(error <= *bound, "{name}({x:e}) is off by {error} units in the last place");
    }
}

#[test]
fn single_precision_is_accurate_on_a_dense_sample() {
    check_singles(2039);
}

#[test]
#[ignore = "six minutes; run in release when an expansion changes"]
fn single_precision_is_accurate_everywhere() {
    check_singles(1);
}

#[test]
fn double_precision_is_accurate() {
    let mut random = Random::new(3);
    for (name, function, oracle, bound) in DOUBLE {
        let mut worst = (0.0, 0.0);
        for k in 0..600_000 {
            let unit = random.next() as f64 / 2f64.powi(64);
            let x = match k % 6 {
                0 => f64::from_bits(random.next()),
                1 => (unit - 0.5) * 1600.0,     // over the whole range of exp
                2 => -700.0 - unit * 50.0,      // where exp underflows gradually
                3 => (unit - 0.5) * 4.0,        // around zero
                4 => 1.0 + (unit - 0.5) * 0.02, // around the zero of log
                _ => (unit - 0.5) * 2f64.powi(-(k % 60)),
            };
            let distance = distance(function(x), oracle(x));
            if distance > worst.0 {
                worst = (distance, x);
            }
        }
        println!("{name}: {} at {:e}", worst.0, worst.1);
        assert!(worst.0 <= bound, "{name}({:e}) is off by {} units in the last place", worst.1, worst.0);
    }
}

/// The edges, for any float wide enough to name them.
fn specials<T: Float>(float: fn(f64) -> T) {
    let infinity = f64::INFINITY;
    let nan = float(f64::NAN);
    let same = |got: T, want: f64, what: &str| {
        assert_eq!(got.to_bits(), float(want).to_bits(), "{:?}: {what} = {got:?}, not {want}", T::TYPE);
    };
    let is_nan = |got: T| assert!(!got.equal(got), "{:?}: {got:?}", T::TYPE);
    same(float(-infinity).exp(), 0.0, "exp(-inf)");
    same(float(infinity).exp(), infinity, "exp(inf)");
    same(float(0.0).exp(), 1.0, "exp(0)");
    same(float(-0.0).exp(), 1.0, "exp(-0)");
    is_nan(nan.exp());
    same(float(0.0).log(), -infinity, "log(0)");
    same(float(-0.0).log(), -infinity, "log(-0)");
    same(float(infinity).log(), infinity, "log(inf)");
    same(float(1.0).log(), 0.0, "log(1)");
    is_nan(float(-1.0).log());
    is_nan(float(-1e-3).log());
    is_nan(float(-infinity).log());
    is_nan(nan.log());
    is_nan(nan.neg().log());
    same(float(infinity).tanh(), 1.0, "tanh(inf)");
    same(float(-infinity).tanh(), -1.0, "tanh(-inf)");
    same(float(0.0).tanh(), 0.0, "tanh(0)");
    same(float(-0.0).tanh(), -0.0, "tanh(-0)");
    is_nan(nan.tanh());
    for k in 0..100 {
        let x = float(0.11 * f64::from(k));
        assert_eq!(x.neg().tanh().to_bits(), x.tanh().neg().to_bits(), "tanh is odd, at {x:?}");
    }
}

#[test]
fn special_values_are_right() {
    specials::<f64>(|x| x);
    specials::<f32>(|x| x as f32);
    specials::<F16>(F16::from_f64);
    specials::<Bf16>(Bf16::from_f64);
}

#[test]
fn denormals_are_right() {
    // Results that are denormal, and the last that is not zero.
    assert_eq!(Float::exp(-87.5f32), (-87.5f64).exp() as f32);
    assert_eq!(Float::exp(-103.9f32), f32::from_bits(1));
    assert_eq!(Float::exp(-104.0f32), 0.0);
    assert_eq!(Float::exp(-745.1f64), f64::from_bits(1));
    assert_eq!(Float::exp(-746.0f64), 0.0);
    // The largest finite result.
    assert!(Float::exp(88.72283f32).is_finite() && Float::exp(88.7229f32).is_infinite());
    assert!(Float::exp(709.782f64).is_finite() && Float::exp(709.79f64).is_infinite());
    // Arguments that are denormal.
    assert_eq!(Float::log(f32::from_bits(1)), f64::from(f32::from_bits(1)).ln() as f32);
    assert!(distance(Float::log(f64::from_bits(1)), f64::from_bits(1).ln()) <= 1.0);
    for bits in [1, 2, 3, 0x1234, 0x7f_ffff] {
        assert_eq!(Float::tanh(f32::from_bits(bits)), f32::from_bits(bits));
        assert_eq!(Float::tanh(-f64::from_bits(bits.into())), -f64::from_bits(bits.into()));
    }
}

#[test]
fn narrow_types_round_the_single_precision_result() {
    for bits in 0..=u16::MAX {
        let x = F16::from_bits(bits);
        let (got, want) = (x.exp(), F16::from_f32(Float::exp(x.to_f32())));
        assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan());
    }
    // There is no infinity: 448 and -448 instead.
    assert_eq!(F8E4M3::from_f32(100.0).exp().to_bits(), 0x7e);
    assert_eq!(F8E4M3::from_f32(0.0).log().to_bits(), 0xfe);
}

/// An arithmetic on bits whose every step is an op of the IR, by name, as an emitter does it.
struct ByOps;

impl ByOps {
    fn integer_op(&mut self, op: BinaryOp, a: u64, b: u64) -> u64 {
        dynamic::binary(op, Type::I32, a, b)
    }
}

impl FloatOps for ByOps {
    type F = u64;
    type I = u64;
    type B = bool;
    const FORMAT: Format = Format::F32;

    fn float(&mut self, x: f64) -> u64 {
        dynamic::cast(Type::F64, Type::F32, x.to_bits())
    }
    fn add(&mut self, a: u64, b: u64) -> u64 {
        dynamic::binary(BinaryOp::Add, Type::F32, a, b)
    }
    fn sub(&mut self, a: u64, b: u64) -> u64 {
        dynamic::binary(BinaryOp::Sub, Type::F32, a, b)
    }
    fn mul(&mut self, a: u64, b: u64) -> u64 {
        dynamic::binary(BinaryOp::Mul, Type::F32, a, b)
    }
    fn div(&mut self, a: u64, b: u64) -> u64 {
        dynamic::binary(BinaryOp::Div, Type::F32, a, b)
    }
    fn fma(&mut self, a: u64, b: u64, c: u64) -> u64 {
        dynamic::fma(Type::F32, a, b, c)
    }
    fn equal(&mut self, a: u64, b: u64) -> bool {
        dynamic::compare(CompareOp::Eq, Type::F32, a, b)
    }
    fn less(&mut self, a: u64, b: u64) -> bool {
        dynamic::compare(CompareOp::Lt, Type::F32, a, b)
    }
    fn select(&mut self, condition: bool, a: u64, b: u64) -> u64 {
        if condition { a } else { b }
    }
    fn bits_of(&mut self, x: u64) -> u64 {
        x
    }
    fn float_of(&mut self, x: u64) -> u64 {
        x
    }
    fn integer(&mut self, x: i64) -> u64 {
        dynamic::cast(Type::I64, Type::I32, x as u64)
    }
    fn integer_add(&mut self, a: u64, b: u64) -> u64 {
        self.integer_op(BinaryOp::Add, a, b)
    }
    fn integer_sub(&mut self, a: u64, b: u64) -> u64 {
        self.integer_op(BinaryOp::Sub, a, b)
    }
    fn integer_and(&mut self, a: u64, b: u64) -> u64 {
        self.integer_op(BinaryOp::And, a, b)
    }
    fn integer_or(&mut self, a: u64, b: u64) -> u64 {
        self.integer_op(BinaryOp::Or, a, b)
    }
    fn shift_left(&mut self, x: u64, amount: u32) -> u64 {
        self.integer_op(BinaryOp::Shl, x, amount.into())
    }
    fn shift_right(&mut self, x: u64, amount: u32) -> u64 {
        self.integer_op(BinaryOp::Shr, x, amount.into())
    }
}

#[test]
fn an_expansion_into_ops_gives_the_same_bits() {
    type Expansion = fn(&mut ByOps, u64) -> u64;
    let expansions: [Expansion; 3] = [math::exp, math::log, math::tanh];
    let edges = [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, -103.5, 88.7];
    let mut random = Random::new(8);
    let anywhere = (0..20_000).map(|_| f32::from_bits(random.next() as u32));
    for x in edges.into_iter().chain(anywhere) {
        for ((name, function, ..), expansion) in SINGLE.iter().zip(expansions) {
            let want = dynamic::canonical_nan(Type::F32, function(x).to_bits().into());
            let got = dynamic::canonical_nan(Type::F32, expansion(&mut ByOps, x.to_bits().into()));
            assert_eq!(got, want, "{name}({x:e})");
        }
    }
}
