//! The named kernels: for `tilewire emit`, for the benchmarks, and as templates to copy from.
//!
//! | kernel | shows |
//! |---|---|
//! | [`copy`] | the smallest kernel: inputs, outputs, `each` |
//! | [`scale`] | a hook on a [`map`], and a number that launches read without recompiling |
//! | [`accumulate`] | updating in place, and a cast between element types |
//! | [`quantise`] | a reduction over groups of neighbours, and a masked store |
//! | [`gather`] | an index that comes from memory |
//! | [`transpose`] | chunks with rows and columns |
//! | [`rmsnorm`] | a tensor captured by the closure becomes an input |
//! | [`message`] | two roles, a ring of staging slots, `signal` and `wait` |
//!
//! Each takes the tensors it works on and returns a traced kernel, which `vm::Prepared` compiles.

use tilewire::ir::scalar::Element;
use tilewire::prelude::*;
use tilewire::{Memory, RunError, Traced};

/// Neighbouring elements that share a scale in [`quantise`].
pub const GROUP: usize = 128;
/// The largest finite f8e4m3.
const F8_MAX: f32 = 448.0;
/// Elements of a row in [`rmsnorm`].
const ROW: usize = 256;
/// Elements that travel together in [`message`].
const TILE: usize = 256;
/// Tiles in flight in [`message`].
const DEPTH: usize = 2;

/// `out[i] = inp[i]`.
pub fn copy<T: Element>(out: &Tensor<T>, inp: &Tensor<T>) -> Result<Traced, RunError> {
    Ok(kernel("copy", |k| {
        let (x, y) = (k.input(inp).named("x"), k.output(out).named("y"));
        k.main(|r| r.each(x.len(), |i| y.store(i, x.load(i))));
    })?)
}

/// `out[i] = inp[i] * factor`, the factor read at every launch.
pub fn scale(out: &Tensor<f32>, inp: &Tensor<f32>, factor: &Scalar<f32>) -> Result<Traced, RunError> {
    map(out, inp).produce(|c| c.input.load(c.pos()) * factor).trace()
}

/// `sum[i] += addend[i]`: the work of a reduction for every tile that arrives.
pub fn accumulate(sum: &Tensor<f32>, addend: &Tensor<Bf16>) -> Result<Traced, RunError> {
    Ok(kernel("accumulate", |k| {
        let (sum, x) = (k.inout(sum).named("sum"), k.input(addend).named("addend"));
        k.main(|r| r.each(sum.len(), |i| sum.store(i, sum.load(i) + x.load(i).cast::<f32>())));
    })?)
}

/// Each group of 128 as f8e4m3 with one scale: `scale = max|x| / 448` (1 if all are 0), `out = x * (1 / scale)`.
pub fn quantise(out: &Tensor<F8E4M3>, scales: &Tensor<f32>, inp: &Tensor<f32>) -> Result<Traced, RunError> {
    Ok(kernel("quantise", |k| {
        let (x, q, scales) = (k.input(inp).named("x"), k.output(out).named("q"), k.output(scales).named("scales"));
        k.main(|r| {
            r.each(x.len(), |i| {
                let value = x.load(i);
                let most = value.abs().group_max(GROUP as u32);
                let scale: Value<f32> = most.eq(0.0).select(1.0, most / F8_MAX);
                q.store(i, (value * scale.rcp()).cast::<F8E4M3>());
                // Every element of a group has the same scale; the first one writes it.
                scales.store_if((i % GROUP as i64).eq(0), i / GROUP as i64, scale);
            });
        });
    })?)
}

/// `out[i] = inp[index[i]]`; an index out of bounds is an error of the launch.
pub fn gather(out: &Tensor<f32>, inp: &Tensor<f32>, index: &Tensor<i32>) -> Result<Traced, RunError> {
    Ok(kernel("gather", |k| {
        let (x, index, y) = (k.input(inp).named("x"), k.input(index).named("index"), k.output(out).named("y"));
        k.main(|r| r.each(y.len(), |i| y.store(i, x.load(index.load(i)))));
    })?)
}

/// `inp` of `rows` x `cols`, transposed.
pub fn transpose(out: &Tensor<f32>, inp: &Tensor<f32>, rows: usize, cols: usize) -> Result<Traced, RunError> {
    map(out, inp).chunk_shape(rows, cols).output_shape(cols, rows).produce(|c| c.input.at(c.col(), c.row())).trace()
}

/// Every row of 256 divided by its root mean square, times a weight.
pub fn rmsnorm(out: &Tensor<f32>, inp: &Tensor<f32>, weight: &Tensor<f32>) -> Result<Traced, RunError> {
    map(out, inp)
        .produce(|c| {
            let x = c.input.load(c.pos());
            let mean = (x * x).group_sum(ROW as u32) * (1.0 / ROW as f32);
            x * (mean + 1e-6).rsqrt() * weight.at(c.pos() % ROW as i64)
        })
        .trace()
}

/// `out = inp`, tile by tile from one role to another through a ring of two slots:
///
/// ```text
///   send      wait credit ▶ put tile ▶ signal tail ┐      credit: tiles the receiver is done with
///   receive                            wait tail ◀─┘ get tile ▶ signal credit
/// ```
///
/// Slots only grow, and this kernel counts from 0: launch it once.
pub fn message(out: &Tensor<f32>, inp: &Tensor<f32>) -> Result<Traced, RunError> {
    let staging = [Memory::zeroed(DEPTH * TILE * size_of::<f32>())];
    let (tail, credit) = ([Memory::zeroed(64)], [Memory::zeroed(64)]);
    Ok(kernel("message", |k| {
        let (x, y) = (k.input(inp).named("x"), k.output(out).named("y"));
        let staging = k.region("staging", &staging);
        let (tail, credit) = (k.slots("tail", &tail, 64), k.slots("credit", &credit, 64));
        let tiles = x.len() / TILE;
        k.role("send", 4).run(|r| {
            r.for_(0..tiles, |step| {
                // The slot was used DEPTH tiles ago.
                r.wait(credit.slot(0, 0), (step + 1 - DEPTH as i64).max(0));
                r.each(TILE, |i| staging.put(0, byte(step, i), x.load(step * TILE as i64 + i)));
                r.signal(tail.slot(0, 0), step + 1);
            });
        });
        k.role("receive", 4).run(|r| {
            r.for_(0..tiles, |step| {
                r.wait(tail.slot(0, 0), step + 1);
                r.each(TILE, |i| y.store(step * TILE as i64 + i, staging.get::<f32>(0, byte(step, i))));
                r.signal_credit(credit.slot(0, 0), step + 1);
            });
        });
    })?)
}

/// The place of element `i` of a tile in the ring.
fn byte<'t>(step: Value<'t, i64>, i: Value<'t, i64>) -> Value<'t, i64> {
    (step % DEPTH as i64 * TILE as i64 + i) * size_of::<f32>() as i64
}

/// A kernel of `tilewire emit`.
#[derive(Debug)]
pub struct Named {
    /// Its name.
    pub name: &'static str,
    /// A description in one line.
    pub what: &'static str,
    /// Traces it for tensors of `count` elements, a multiple of 1024; the result keeps them alive.
    pub build: fn(count: usize) -> Result<Traced, RunError>,
}

impl PartialEq for Named {
    fn eq(&self, other: &Named) -> bool {
        self.name == other.name
    }
}

impl Eq for Named {}

/// All named kernels.
pub static NAMED: [Named; 8] = [
    Named { name: "copy", what: "y = x", build: |n| copy(&f32s(n), &f32s(n)) },
    Named {
        name: "scale",
        what: "y = x * s, s read at launch",
        build: |n| scale(&f32s(n), &f32s(n), &Scalar::new(1.0)),
    },
    Named { name: "accumulate", what: "f32 += bf16", build: |n| accumulate(&f32s(n), &Tensor::zeros(n)) },
    Named {
        name: "quantise",
        what: "f32 to f8e4m3, a scale for every 128",
        build: |n| quantise(&Tensor::zeros(n), &f32s(n / GROUP), &f32s(n)),
    },
    Named { name: "gather", what: "y = x[index]", build: |n| gather(&f32s(n), &f32s(n), &Tensor::zeros(n)) },
    Named { name: "transpose", what: "y = xᵀ, 32 columns", build: |n| transpose(&f32s(n), &f32s(n), n / 32, 32) },
    Named {
        name: "rmsnorm",
        what: "rows over their root mean square",
        build: |n| rmsnorm(&f32s(n), &f32s(n), &f32s(ROW)),
    },
    Named {
        name: "message",
        what: "tiles from one role to another, signalled",
        build: |n| message(&f32s(n), &f32s(n)),
    },
];

/// The kernel of that name, or a message that lists all of them.
pub fn named(name: &str) -> Result<&'static Named, String> {
    let known = || NAMED.iter().map(|k| format!("  {:<12}{}", k.name, k.what)).collect::<Vec<_>>().join("\n");
    NAMED.iter().find(|k| k.name == name).ok_or_else(|| match name {
        "" => format!("name a kernel; there are\n{}", known()),
        _ => format!("there is no kernel '{name}'; there are\n{}", known()),
    })
}

fn f32s(count: usize) -> Tensor<f32> {
    Tensor::zeros(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewire::vm::Prepared;

    fn run(traced: Result<Traced, RunError>) {
        let traced = traced.unwrap();
        Prepared::new(&traced.kernel, &traced.args).unwrap().run().unwrap();
    }

    fn ramp(count: usize) -> Tensor<f32> {
        Tensor::from_fn(count, |k| (k % 251) as f32 - 125.5)
    }

    #[test]
    fn every_named_kernel_builds_and_prepares() {
        for Named { name, build, .. } in &NAMED {
            let traced = build(1024).unwrap_or_else(|error| panic!("{name}: {error}"));
            Prepared::new(&traced.kernel, &traced.args).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        assert!(named("nothing").err().unwrap().contains("rmsnorm"));
    }

    #[test]
    fn a_message_arrives_however_many_tiles_it_has() {
        for tiles in [1, 2, 3, 10] {
            let (x, y) = (ramp(tiles * TILE), f32s(tiles * TILE));
            run(message(&y, &x));
            assert_eq!(y.to_vec(), x.to_vec());
        }
    }

    #[test]
    fn rows_are_normalised() {
        let (x, y, weight) = (ramp(4 * ROW), f32s(4 * ROW), Tensor::from_fn(ROW, |k| k as f32));
        run(rmsnorm(&y, &x, &weight));
        for (row, out) in x.to_vec().chunks(ROW).zip(y.to_vec().chunks(ROW)) {
            let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / ROW as f64;
            for (k, (&x, &y)) in row.iter().zip(out).enumerate() {
                let want = f64::from(x) / (mean + 1e-6).sqrt() * k as f64;
                assert!((f64::from(y) - want).abs() <= want.abs() * 1e-5, "{k}: {y} for {want}");
            }
        }
    }
}
