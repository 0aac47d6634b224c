//! For every form that the lowering can choose, there is a kernel whose bytecode has that form. Its result equals the
//! reference evaluator's at every instruction-set level, for sizes around the lengths of vectors and strips. This file
//! holds the builder of kernels and the comparisons.

mod access;
mod aliasing;
mod fusion;
mod groups;
mod rectangles;
mod regions;
mod streaming;
mod strips;
mod tiles;

use std::cell::RefCell;
use std::ops::Range;
use tilewire::check::{self, Options};
use tilewire::hook::Traced;
use tilewire::ir::Param;
use tilewire::ir::scalar::{Element, dynamic};
use tilewire::tensor::bytes_of;
use tilewire::vm::{Level, Prepared, Settings, StorePolicy};
use tilewire::{Memory, Tensor};
use tilewire_testkit::programs::data;
use tilewire_testkit::random::Random;

/// Nothing, less than a vector, a vector and a little more, a strip and a little more.
pub const SIZES: [usize; 8] = [0, 1, 7, 31, 64, 100, 4097, 10_000];

/// The bytes around every tensor.
const GUARD: u8 = 0xcc;
const MARGIN: usize = 128;

/// A memory, its parts that tensors cover, and the filler of the rest.
type Whole = (Memory, Vec<Range<usize>>, u8);

/// The memory of one kernel's tensors, each with guard bytes around it.
#[derive(Default)]
pub struct Bench {
    /// Every allocation, the bytes of it that belong to tensors, and the value of the others.
    whole: RefCell<Vec<Whole>>,
}

impl Bench {
    /// A tensor of `f(0), f(1), …` that starts `shift` elements after a line of the cache.
    pub fn shifted<T: Element>(&self, shift: usize, len: usize, f: impl FnMut(usize) -> T) -> Tensor<T> {
        let margin = MARGIN / size_of::<T>();
        let whole = Tensor::<T>::zeros(margin + shift + len + margin);
        let guard = T::from_bits(u64::from_ne_bytes([GUARD; 8]));
        whole.fill(guard);
        let tensor = whole.slice(margin + shift..margin + shift + len);
        tensor.copy_from(&(0..len).map(f).collect::<Vec<_>>());
        let start = (margin + shift) * size_of::<T>();
        // A guard byte of a bool is 1.
        let (inside, byte) = (start..start + len * size_of::<T>(), guard.to_bits() as u8);
        self.whole.borrow_mut().push((whole.memory().clone(), vec![inside], byte));
        tensor
    }

    /// For each of `cols`, these columns of a matrix of `rows` rows that are `stride` elements apart. Elements are
    /// `f(group, position)`. All other columns are guards.
    pub fn columns<T: Element>(
        &self,
        (rows, stride): (usize, usize),
        cols: &[Range<usize>],
        f: impl Fn(usize, usize) -> T,
    ) -> Vec<Tensor<T>> {
        let (margin, size) = (MARGIN / size_of::<T>(), size_of::<T>());
        let whole = Tensor::<T>::zeros(margin + rows * stride + margin);
        let guard = T::from_bits(u64::from_ne_bytes([GUARD; 8]));
        whole.fill(guard);
        let matrix = whole.slice(margin..margin + rows * stride).reshape(rows, stride).expect("a shape of the slice");
        let row = |cols: &Range<usize>, row: usize| {
            let first = margin + row * stride;
            (first + cols.start) * size..(first + cols.end) * size
        };
        let inside = cols.iter().flat_map(|cols| (0..rows).map(|r| row(cols, r))).collect();
        self.whole.borrow_mut().push((whole.memory().clone(), inside, guard.to_bits() as u8));
        let group = |(k, cols): (usize, &Range<usize>)| {
            let tensor = matrix.columns(cols.clone());
            tensor.copy_from(&(0..tensor.len()).map(|i| f(k, i)).collect::<Vec<_>>());
            tensor
        };
        cols.iter().enumerate().map(group).collect()
    }

    /// A tensor of `f(0), f(1), …`.
    #[expect(clippy::wrong_self_convention)] // the name that `Tensor` has for it
    pub fn from_fn<T: Element>(&self, len: usize, f: impl FnMut(usize) -> T) -> Tensor<T> {
        self.shifted(0, len, f)
    }

    /// Elements with difficult values: NaNs, infinities, denormals, extremes.
    pub fn trouble<T: Element>(&self, len: usize) -> Tensor<T> {
        let mut random = Random::new(len as u64 + 17);
        self.shifted(1, len, |_| T::from_bits(data::element(T::TYPE, &mut random)))
    }

    /// Ordinary numbers.
    pub fn numbers(&self, len: usize) -> Tensor<f32> {
        let mut random = Random::new(len as u64 + 3);
        self.shifted(1, len, |_| (random.below_u64(4001) as f32 - 2000.0) / 16.0)
    }

    /// Memory to be written.
    pub fn output<T: Element>(&self, len: usize) -> Tensor<T> {
        self.shifted(1, len, |i| T::from_bits(i as u64 & 1))
    }

    /// # Panics
    /// If a byte beside a tensor has changed.
    fn check(&self, what: &str) {
        for (memory, inside, guard) in self.whole.borrow().iter() {
            let is_outside = |k: &usize| !inside.iter().any(|inside| inside.contains(k));
            let outside = bytes_of(memory).unwrap().into_iter().enumerate().filter(|(k, _)| is_outside(k));
            for (k, byte) in outside {
                assert_eq!(byte, *guard, "{what}: byte {k} beside the tensor at {inside:?} was written");
            }
        }
    }
}

/// The bytes of every parameter, with all NaNs made equal.
fn comparable(traced: &Traced, mut results: Vec<Vec<Vec<u8>>>) -> Vec<Vec<Vec<u8>>> {
    for (param, banks) in traced.kernel.params.values().zip(&mut results) {
        let Param::Buffer { ty, .. } = param else { continue };
        let elements = banks.iter_mut().flat_map(|bank| bank.chunks_exact_mut(ty.size()));
        for bytes in elements.filter(|_| ty.is_float()) {
            let mut bits = [0; 8];
            bits[..bytes.len()].copy_from_slice(bytes);
            let bits = dynamic::canonical_nan(*ty, u64::from_le_bytes(bits));
            bytes.copy_from_slice(&bits.to_le_bytes()[..bytes.len()]);
        }
    }
    results
}

fn results_of(traced: &Traced) -> Vec<Vec<Vec<u8>>> {
    let banks = traced.args.iter().map(|arg| match arg {
        tilewire::Arg::Buffer(banks) | tilewire::Arg::Slots(banks) => {
            banks.iter().map(|bank| bytes_of(bank).unwrap()).collect()
        }
        tilewire::Arg::Scalar(memory) => vec![bytes_of(memory).unwrap()],
        _ => Vec::new(),
    });
    banks.collect()
}

/// Runs the kernel in the evaluator, and on the engine at every level, each time with fresh tensors. Compares the
/// results and returns the bytecode.
#[track_caller]
pub fn agree_from(stream_from: usize, make: impl Fn(&Bench) -> Traced) -> String {
    let traced = make(&Bench::default());
    let expected = check::evaluate(&traced.kernel, &traced.args, (0, 1), Options::default());
    let expected = expected.unwrap_or_else(|e| panic!("the evaluator refused: {e}\n{}", traced.kernel));
    let expected = comparable(&traced, expected);
    let mut text = String::new();
    for level in Level::available() {
        let bench = Bench::default();
        let traced = make(&bench);
        let stores = StorePolicy { from: stream_from, ..StorePolicy::default() };
        let settings = Settings { level, stores, ..Settings::default() };
        let mut op = Prepared::with(&traced.kernel, &traced.args, settings).expect("the engine takes it");
        text = op.disassembly();
        op.run().unwrap_or_else(|e| panic!("the launch failed: {e}\n{}\n{text}", traced.kernel));
        let got = comparable(&traced, results_of(&traced));
        for (p, (got, expected)) in got.iter().zip(&expected).enumerate() {
            for (bank, (got, expected)) in got.iter().zip(expected).enumerate() {
                let at = (0..expected.len().max(got.len())).find(|&k| got.get(k) != expected.get(k));
                if let Some(k) = at {
                    let end = (k + 8).min(got.len());
                    panic!(
                        "parameter {p} bank {bank} byte {k} of {} at {level:?}: {:02x?} instead of {:02x?}\n{}\n{text}",
                        expected.len(),
                        &got[k..end],
                        &expected[k..end],
                        traced.kernel
                    );
                }
            }
        }
        bench.check(&format!("{level:?}\n{text}"));
    }
    text
}

/// [`agree_from`] without streaming.
#[track_caller]
pub fn agree(make: impl Fn(&Bench) -> Traced) -> String {
    agree_from(usize::MAX, make)
}

/// Asserts that the bytecode has the first opcodes and lacks the second.
#[track_caller]
pub fn assert_forms(text: &str, has: &[&str], lacks: &[&str]) {
    for word in has {
        assert!(opcodes(text).any(|op| op.starts_with(word)), "no {word} in\n{text}");
    }
    for word in lacks {
        assert!(!opcodes(text).any(|op| op.starts_with(word)), "{word} in\n{text}");
    }
}

/// Asserts at every size that the kernel agrees with the evaluator, and that its bytecode has the first opcodes and
/// lacks the second.
#[track_caller]
pub fn form(has: &[&str], lacks: &[&str], make: impl Fn(&Bench, usize) -> Traced) {
    for n in SIZES {
        assert_forms(&agree(|bench| make(bench, n)), has, lacks);
    }
}

/// The lines of a disassembly without their numbers.
fn opcodes(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(|line| line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start())
}

/// The number of times that an opcode is in the bytecode.
pub fn count(text: &str, word: &str) -> usize {
    opcodes(text).filter(|op| op.starts_with(word)).count()
}

#[test]
fn the_guard_around_tensors_finds_a_byte_beside_one() {
    let bench = Bench::default();
    let tensor = bench.from_fn(4, |i| i as u8);
    bench.check("untouched");
    tensor.set(3, GUARD + 1);
    bench.check("written inside");
    bench.whole.borrow_mut()[0].1[0].end -= 1;
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bench.check("beside"))).is_err());
}
