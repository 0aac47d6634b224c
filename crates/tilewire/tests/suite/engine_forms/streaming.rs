//! Stores around the cache: the same bytes at any alignment, and no change beside the destination.

use crate::engine_forms::{Bench, agree_from, assert_forms};
use tilewire::hook::{Traced, Value, View};
use tilewire::{Bf16, F8E4M3, F16, Scalar, Tensor, kernel};

const SIZES: [usize; 9] = [0, 1, 15, 16, 63, 64, 65, 1000, 10_000];

struct Data {
    a: Tensor<f32>,
    b: Tensor<f32>,
    bf16: Tensor<Bf16>,
    f8: Tensor<F8E4M3>,
    f16: Tensor<F16>,
    scales: Tensor<f32>,
}

struct Views<'t> {
    a: View<'t, f32>,
    b: View<'t, f32>,
    bf16: View<'t, Bf16>,
    f8: View<'t, F8E4M3>,
    f16: View<'t, F16>,
    scales: View<'t, f32>,
}

type Body = for<'t> fn(&Views<'t>, Value<'t, i64>) -> Value<'t, f32>;

fn streamed(bench: &Bench, n: usize, shift: usize, body: Body) -> Traced {
    let data = Data {
        a: bench.trouble(n),
        b: bench.numbers(n),
        bf16: bench.trouble(n),
        f8: bench.trouble(n),
        f16: bench.trouble(n),
        scales: bench.numbers(n.div_ceil(32)),
    };
    let y = bench.shifted(shift, n, |i| i as f32);
    let len = Scalar::new(n as i64);
    kernel("streamed", |k| {
        let views = Views {
            a: k.input(&data.a),
            b: k.input(&data.b),
            bf16: k.input(&data.bf16),
            f8: k.input(&data.f8),
            f16: k.input(&data.f16),
            scales: k.input(&data.scales),
        };
        let y = k.output(&y);
        k.main(|r| r.each(&len, |i| y.store(i, body(&views, i))));
    })
    .expect("traces")
}

#[test]
fn a_streamed_result_has_the_same_bytes_at_every_alignment() {
    let bodies: [(&str, Body); 8] = [
        ("LUnary(Neg, F32)", |v, i| -v.a.load(i)),
        ("LUnary(Sqrt, F32)", |v, i| v.a.load(i).sqrt()),
        ("LUnary(Exp, F32)", |v, i| v.b.load(i).exp()),
        ("LBinary(Add, F32, Lane)", |v, i| v.a.load(i) + v.b.load(i)),
        ("LBinary(Mul, F32, Uniform)", |v, i| v.a.load(i) * 1.5),
        ("LBinary(Mul, F32, Group)", |v, i| v.b.load(i) * v.scales.load(i / 32)),
        ("LBinaryWiden(Add, BF16)", |v, i| v.b.load(i) + v.bf16.load(i).cast::<f32>()),
        ("LBinaryWiden(Mul, F8E4M3)", |v, i| v.b.load(i) * v.f8.load(i).cast::<f32>()),
    ];
    for (op, body) in bodies {
        for n in SIZES {
            for shift in [0, 1, 7, 15] {
                let text = agree_from(1, |bench| streamed(bench, n, shift, body));
                assert_forms(&text, &["BindStore ", op], &["CopyOut"]);
            }
        }
    }
}

#[test]
fn ops_without_a_streaming_loop_still_write_their_destination() {
    let bodies: [(&str, Body); 4] = [
        ("LFma(F32)", |v, i| v.a.load(i).fma(v.b.load(i), 1.0)),
        ("LCast(F16, F32)", |v, i| v.f16.load(i).cast::<f32>()),
        ("LSelect(4)", |v, i| v.b.load(i).gt(0.0).select(v.a.load(i), v.b.load(i))),
        ("LBinary(Sub, F32, Lane)", |v, i| (v.a.load(i) + 1.0) - (v.b.load(i) * 3.0)),
    ];
    for (op, body) in bodies {
        for n in SIZES {
            for shift in [0, 5] {
                let text = agree_from(1, |bench| streamed(bench, n, shift, body));
                assert_forms(&text, &[op], &[]);
            }
        }
    }
}

#[test]
fn two_streams_and_a_value_used_after_it_was_streamed_agree() {
    for n in SIZES {
        agree_from(1, |bench| {
            let (x, y, z) = (bench.numbers(n), bench.shifted(3, n, |_| 0f32), bench.shifted(9, n, |_| 0f32));
            let len = Scalar::new(n as i64);
            kernel("two", |k| {
                let (x, y, z) = (k.input(&x), k.output(&y), k.output(&z));
                k.main(|r| {
                    r.each(&len, |i| {
                        let half = x.load(i) * 0.5;
                        y.store(i, half);
                        z.store(i, half + 1.0);
                    });
                });
            })
            .expect("traces")
        });
    }
}

/// Streamed bytes may not be read again before a fence. So two stores of one value share the bytes in strip memory.
#[test]
fn a_value_that_is_stored_twice_is_streamed_from_strip_memory() {
    let twice = |bench: &Bench, n: usize, overlap: bool, sum: bool| {
        let (x, y) = (bench.numbers(n), bench.shifted(3, n + 8, |_| 0f32));
        let (y, z) =
            if overlap { (y.slice(0..n), y.slice(8..n + 8)) } else { (y.slice(0..n), bench.shifted(9, n, |_| 0f32)) };
        kernel("twice", |k| {
            let (x, y, z) = (k.input(&x), k.output(&y), k.output(&z));
            k.main(|r| {
                r.each(n as i64, |i| {
                    let half = x.load(i) * 0.5;
                    y.store(i, half);
                    z.store(i, if sum { half + 1.0 } else { half });
                });
            });
        })
        .expect("traces")
    };
    for n in SIZES.into_iter().filter(|&n| n > 1) {
        let text = agree_from(1, |bench| twice(bench, n, false, false));
        assert_forms(&text, &["StreamOut(4)"], &["BindStore ", "CopyOut"]);
        let text = agree_from(usize::MAX, |bench| twice(bench, n, false, false));
        assert_forms(&text, &["CopyOut(4)"], &["BindStore ", "StreamOut"]);
        // A reader that is not a store. The first store is not streamed, because its value is read.
        let text = agree_from(1, |bench| twice(bench, n, false, true));
        assert_forms(&text, &["Bind "], &["StreamOut"]);
    }
    // If the two overlap, the result depends on the order of elements. So only the absence of streaming is checked.
    let traced = twice(&Bench::default(), 64, true, false);
    let settings = tilewire::vm::Settings {
        stores: tilewire::vm::StorePolicy { from: 1, ..Default::default() },
        ..Default::default()
    };
    let op = tilewire::vm::Prepared::with(&traced.kernel, &traced.args, settings).unwrap();
    assert_forms(&op.disassembly(), &[], &["StreamOut", "BindStore "]);
}

/// The sent and the kept data, of the same tensor or of two. Each goes through the cache or around it.
#[test]
fn two_copies_go_in_turns() {
    for (n, first, second) in SIZES.into_iter().flat_map(|n| [(n, 0, 0), (n, 0, 16), (n, 3, 9), (n, 1, 0)]) {
        for (stream_from, same) in [(1, true), (1, false), (usize::MAX, true), (usize::MAX, false)] {
            let text = agree_from(stream_from, |bench| {
                let (x, y) = (bench.trouble::<f32>(n), bench.shifted(first, n, |_| 0f32));
                let other = bench.numbers(n);
                let (z, len) = (bench.shifted(second, n, |_| 0f32), Scalar::new(n as i64));
                kernel("kept", |k| {
                    let (x, other, y, z) = (k.input(&x), k.input(&other), k.output(&y), k.output(&z));
                    k.main(|r| {
                        r.each(&len, |i| {
                            y.store(i, x.load(i));
                            z.store(i, if same { x.load(i) } else { other.load(i) });
                        });
                    });
                })
                .expect("traces")
            });
            assert_forms(&text, &["CopyTwoRows"], &["EachBegin"]);
        }
    }
}

#[test]
fn two_copies_that_meet_or_differ_in_size_do_not_go_in_turns() {
    for n in SIZES {
        for (stream_from, meet) in [(1, true), (1, false), (usize::MAX, true), (usize::MAX, false)] {
            let text = agree_from(stream_from, |bench| {
                let (x, wide) = (bench.trouble::<f32>(n), bench.trouble::<f64>(n));
                let (y, z) = (bench.output::<f32>(n), bench.output::<f32>(n));
                let (wider, len) = (bench.output::<f64>(n), Scalar::new(n as i64));
                kernel("met", |k| {
                    let (x, wide, y, z) = (k.input(&x), k.input(&wide), k.inout(&y), k.output(&z));
                    let wider = k.output(&wider);
                    k.main(|r| {
                        r.each(&len, |i| {
                            y.store(i, x.load(i));
                            if meet { z.store(i, y.load(i)) } else { wider.store(i, wide.load(i)) }
                        });
                    });
                })
                .expect("traces")
            });
            assert_forms(&text, &["EachBegin"], &["CopyTwoRows"]);
        }
    }
}

#[test]
fn what_the_each_reads_is_never_streamed() {
    for n in SIZES {
        let text = agree_from(1, |bench| {
            let (x, len) = (bench.numbers(n), Scalar::new(n as i64));
            kernel("in place", |k| {
                let x = k.inout(&x);
                k.main(|r| r.each(&len, |i| x.store(i, x.load(i) + 1.0)));
            })
            .expect("traces")
        });
        assert_forms(&text, &["Bind "], &["BindStore"]);
    }
}

#[test]
fn copies_and_transposes_are_streamed_with_the_same_bytes() {
    for (rows, cols, shift) in [(1, 1, 0), (33, 65, 0), (64, 64, 0), (64, 128, 16), (100, 129, 3), (256, 64, 0)] {
        agree_from(1, |bench| {
            let (x, len) = (bench.from_fn(rows * cols, |i| i as f32), rows * cols);
            let (y, z) = (bench.shifted(shift, len, |_| 0f32), bench.shifted(shift, len, |_| 0f32));
            kernel("moves", |k| {
                let (x, y, z) = (k.input(&x), k.output(&y), k.output(&z));
                k.main(|r| {
                    let (from, to) = (x.shape(cols, rows), y.shape(rows, cols));
                    r.each2(rows, cols, |row, col| to.store(row, col, from.at(col, row)));
                    r.each(len, |i| z.store(i, x.load(i)));
                });
            })
            .expect("traces")
        });
    }
}

#[test]
fn a_bulk_copy_moves_any_count_from_and_to_anywhere() {
    for n in SIZES {
        for (from, to) in [(0, 0), (1, 0), (3, 17)] {
            agree_from(1, |bench| {
                let (x, y) = (bench.numbers(n + from), bench.shifted(2, n + to, |_| 0f32));
                let count = Scalar::new(n as i64);
                kernel("bulk", |k| {
                    let (x, y) = (k.input(&x), k.output(&y));
                    k.main(|r| {
                        r.bulk_copy(y.part(to, n), x.part(from, n), &count);
                        r.bulk_wait(0, tilewire::ir::BulkDone::Complete);
                    });
                })
                .expect("traces")
            });
        }
    }
}
