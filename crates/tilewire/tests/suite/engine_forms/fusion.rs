//! Pairs of ops in one pass: widen and compute, compute and narrow. A fused pair has the bits of its two ops.

use crate::engine_forms::{Bench, SIZES, agree, assert_forms, form};
use tilewire::hook::{Traced, Value};
use tilewire::ir::scalar::{Element, Number};
use tilewire::{Bf16, F8E4M3, F8E5M2, F16, Scalar, Tensor, kernel};
use tilewire_testkit::random::Random;

type Pair = for<'t> fn(Value<'t, f32>, Value<'t, f32>) -> Value<'t, f32>;

/// `y[i] = op(x[i], f32(narrow[i]))`.
fn widened<T: Number>(bench: &Bench, n: usize, op: Pair) -> Traced {
    let (x, narrow, y) = (bench.trouble::<f32>(n), bench.trouble::<T>(n), bench.output::<f32>(n));
    let len = Scalar::new(n as i64);
    kernel("widen", |k| {
        let (x, narrow, y) = (k.input(&x), k.input(&narrow), k.output(&y));
        k.main(|r| r.each(&len, |i| y.store(i, op(x.load(i), narrow.load(i).cast::<f32>()))));
    })
    .expect("traces")
}

fn every_widening<T: Number>() {
    let ops: [(&str, Pair); 9] = [
        ("Add", |a, b| a + b),
        ("Sub", |a, b| a - b),
        ("Mul", |a, b| a * b),
        ("Max", |a, b| a.max(b)),
        ("Min", |a, b| a.min(b)),
        ("Add", |a, b| b + a),
        ("Mul", |a, b| b * a),
        ("Max", |a, b| b.max(a)),
        ("Min", |a, b| b.min(a)),
    ];
    for (name, op) in ops {
        let fused = format!("LBinaryWiden({name}, {:?})", T::TYPE);
        form(&[&fused], &["LCast", "LBinary("], |bench, n| widened::<T>(bench, n, op));
    }
    // If the op does not commute, a narrow value on its left is widened first.
    let plain = format!("LCast({:?}, F32)", T::TYPE);
    form(&[&plain, "LBinary(Sub"], &["LBinaryWiden"], |bench, n| widened::<T>(bench, n, |a, b| b - a));
}

#[test]
fn bf16_is_widened_within_the_op_that_uses_it() {
    every_widening::<Bf16>();
}

#[test]
fn f16_is_widened_within_the_op_that_uses_it() {
    every_widening::<F16>();
}

#[test]
fn f8_is_widened_within_the_op_that_uses_it() {
    every_widening::<F8E4M3>();
    every_widening::<F8E5M2>();
}

#[test]
fn a_sum_of_two_narrow_values_widens_one_of_them_in_the_sum() {
    form(&["LBinaryWiden(Add, BF16)", "LCast(F16, F32)"], &[], |bench, n| {
        let (x, z, y) = (bench.trouble::<F16>(n), bench.trouble::<Bf16>(n), bench.output::<f32>(n));
        let len = Scalar::new(n as i64);
        kernel("two", |k| {
            let (x, z, y) = (k.input(&x), k.input(&z), k.output(&y));
            k.main(|r| r.each(&len, |i| y.store(i, x.load(i).cast::<f32>() + z.load(i).cast::<f32>())));
        })
        .expect("traces")
    });
}

#[test]
fn an_accumulation_in_place_widens_what_it_adds() {
    form(&["LBinaryWiden(Add, BF16)"], &["CopyOut", "LoadTile"], |bench, n| {
        let (x, sum, len) = (bench.trouble::<Bf16>(n), bench.numbers(n), Scalar::new(n as i64));
        kernel("accumulate", |k| {
            let (x, sum) = (k.input(&x), k.inout(&sum));
            k.main(|r| r.each(&len, |i| sum.store(i, sum.load(i) + x.load(i).cast::<f32>())));
        })
        .expect("traces")
    });
}

/// The kind of data that is narrowed. The engine assumes that there is no NaN, and repeats its work if there was one.
#[derive(Clone, Copy, Debug)]
enum Look {
    Numbers,
    /// A NaN or an infinity in a few places: most blocks have none.
    Sparse,
    Trouble,
}

fn looking(bench: &Bench, n: usize, look: Look) -> Tensor<f32> {
    let x = match look {
        Look::Trouble => bench.trouble::<f32>(n),
        _ => bench.numbers(n),
    };
    if let Look::Sparse = look {
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN, f32::MAX, f32::MIN_POSITIVE / 2.0, -0.0];
        let mut random = Random::new(n as u64);
        for k in 0..n.div_ceil(64) {
            x.set((k * 64 + random.below_u64(64) as usize).min(n - 1), special[k % special.len()]);
        }
    }
    x
}

#[derive(Clone, Copy, Debug)]
enum Second {
    Uniform(f32),
    Lane,
    Group(u32),
}

/// `y[i] = narrow(op(x[i], second))`.
fn narrowed<T: Element>(bench: &Bench, n: usize, look: Look, second: Second, op: Pair) -> Traced {
    let (x, y, len) = (looking(bench, n, look), bench.output::<T>(n), Scalar::new(n as i64));
    let (other, scale) = (looking(bench, n, look), Scalar::new(if let Second::Uniform(s) = second { s } else { 1.0 }));
    let groups = if let Second::Group(size) = second { n.div_ceil(size as usize) } else { 0 };
    let scales = bench.from_fn(groups, |i| if i % 9 == 8 { f32::NAN } else { 0.25 + i as f32 / 8.0 });
    kernel("narrow", |k| {
        let (x, y) = (k.input(&x), k.output(&y));
        let (other, scales) = (k.input(&other), k.input(&scales));
        k.main(|r| {
            r.each(&len, |i| {
                let second = match second {
                    Second::Uniform(_) => r.scalar(&scale),
                    Second::Lane => other.load(i),
                    Second::Group(size) => scales.load(i / i64::from(size)),
                };
                y.store(i, op(x.load(i), second).cast::<T>());
            });
        });
    })
    .expect("traces")
}

fn every_narrowing<T: Element>() {
    let ops: [(&str, Pair); 3] = [("Mul", |a, b| a * b), ("Div", |a, b| a / b), ("Add", |a, b| a + b)];
    let looks = [Look::Numbers, Look::Sparse, Look::Trouble];
    for (name, op) in ops {
        for (kind, seconds) in [
            ("Uniform", &[Second::Uniform(0.75), Second::Uniform(f32::NAN), Second::Uniform(0.0)][..]),
            ("Lane", &[Second::Lane]),
            ("Group", &[Second::Group(2), Second::Group(7), Second::Group(16), Second::Group(128), Second::Group(130)]),
        ] {
            let fused = format!("LBinaryNarrow({name}, {:?}, {kind})", T::TYPE);
            for (turn, &second) in seconds.iter().enumerate() {
                // Compares all values within a strip and a little more, and one value at the other sizes.
                for n in SIZES {
                    let looks = if n == 100 || n == 4097 { &looks[..] } else { &looks[turn % 3..][..1] };
                    for &look in looks {
                        let text = agree(|bench| narrowed::<T>(bench, n, look, second, op));
                        assert_forms(&text, &[&fused], &["LCast", "Expand"]);
                    }
                }
            }
        }
    }
}

#[test]
fn f8e4m3_is_narrowed_within_the_op_before_it() {
    every_narrowing::<F8E4M3>();
}

#[test]
fn f8e5m2_is_narrowed_within_the_op_before_it() {
    every_narrowing::<F8E5M2>();
}

#[test]
fn bf16_is_narrowed_within_the_op_before_it() {
    every_narrowing::<Bf16>();
}

#[test]
fn f16_is_narrowed_within_the_op_before_it() {
    every_narrowing::<F16>();
}

#[test]
fn i8_is_narrowed_within_the_op_before_it() {
    every_narrowing::<i8>();
}

#[test]
fn a_cast_alone_to_f8_redoes_what_a_nan_spoilt() {
    fn cast<T: Element>(bench: &Bench, n: usize, look: Look) -> Traced {
        let (x, y, len) = (looking(bench, n, look), bench.output::<T>(n), Scalar::new(n as i64));
        kernel("cast", |k| {
            let (x, y) = (k.input(&x), k.output(&y));
            k.main(|r| r.each(&len, |i| y.store(i, x.load(i).cast::<T>())));
        })
        .expect("traces")
    }
    for look in [Look::Numbers, Look::Sparse, Look::Trouble] {
        form(&["LCast(F32, F8E4M3)"], &["CopyOut"], |bench, n| cast::<F8E4M3>(bench, n, look));
        form(&["LCast(F32, F8E5M2)"], &["CopyOut"], |bench, n| cast::<F8E5M2>(bench, n, look));
    }
}

#[test]
fn a_nan_at_every_position_of_a_block_is_found() {
    for at in 0..40 {
        agree(|bench| {
            let (x, y) = (bench.from_fn(40, |i| if i == at { f32::NAN } else { i as f32 * 20.0 }), bench.output(40));
            kernel("position", |k| {
                let (x, y) = (k.input(&x), k.output(&y));
                k.main(|r| r.each(40, |i| y.store(i, (x.load(i) * 0.5).cast::<F8E4M3>())));
            })
            .expect("traces")
        });
    }
}

#[test]
fn a_sum_that_is_also_used_whole_is_not_narrowed_away() {
    form(&["LBinary(Mul", "LCast(F32, BF16)"], &["LBinaryNarrow"], |bench, n| {
        let (x, y, z) = (bench.numbers(n), bench.output::<Bf16>(n), bench.output::<f32>(n));
        let len = Scalar::new(n as i64);
        kernel("both", |k| {
            let (x, y, z) = (k.input(&x), k.output(&y), k.output(&z));
            k.main(|r| {
                r.each(&len, |i| {
                    let product = x.load(i) * 0.3;
                    y.store(i, product.cast::<Bf16>());
                    z.store(i, product);
                });
            });
        })
        .expect("traces")
    });
}
