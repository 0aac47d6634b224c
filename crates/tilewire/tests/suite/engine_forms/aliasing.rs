//! Tensors that share memory. A load stays a pointer only if no store can change its bytes too early.

use crate::engine_forms::{Bench, SIZES, agree, count, form};
use tilewire::hook::Traced;
use tilewire::{Bf16, Scalar, Tensor, kernel};

#[test]
fn an_update_in_place_is_pointers_on_both_sides() {
    form(&["Bind "], &["CopyOut", "LoadTile"], |bench, n| {
        let (x, len) = (bench.trouble::<f32>(n), Scalar::new(n as i64));
        kernel("negate", |k| {
            let x = k.inout(&x);
            k.main(|r| r.each(&len, |i| x.store(i, -x.load(i))));
        })
        .expect("traces")
    });
    // The same bytes under two names.
    form(&["Bind "], &["CopyOut", "LoadTile"], |bench, n| {
        let (x, len) = (bench.numbers(n), Scalar::new(n as i64));
        let same = x.slice(0..n);
        kernel("add", |k| {
            let (x, same) = (k.inout(&x), k.input(&same));
            k.main(|r| r.each(&len, |i| x.store(i, x.load(i) + same.load(i) * same.load(i))));
        })
        .expect("traces")
    });
}

#[test]
fn a_value_used_after_the_store_over_its_source_was_copied_first() {
    form(&["LoadTile(4)"], &[], |bench, n| {
        let (x, y, len) = (bench.numbers(n), bench.output::<f32>(n), Scalar::new(n as i64));
        kernel("swap", |k| {
            let (x, y) = (k.inout(&x), k.output(&y));
            k.main(|r| {
                r.each(&len, |i| {
                    let before = x.load(i);
                    x.store(i, before * 2.0);
                    y.store(i, before + x.load(i));
                });
            });
        })
        .expect("traces")
    });
}

#[test]
fn two_tensors_may_be_exchanged_element_by_element() {
    for n in SIZES {
        agree(|bench| {
            let (x, y, len) = (bench.trouble::<u64>(n), bench.output::<u64>(n), Scalar::new(n as i64));
            kernel("exchange", |k| {
                let (x, y) = (k.inout(&x), k.inout(&y));
                k.main(|r| {
                    r.each(&len, |i| {
                        let (a, b) = (x.load(i), y.load(i));
                        x.store(i, b);
                        y.store(i, a);
                    });
                });
            })
            .expect("traces")
        });
    }
}

/// `y[i] = f(x[i], …)`, where x and y are `shift` elements apart in one memory, without a race: a strip reads even
/// elements and writes odd ones.
fn interleaved(bench: &Bench, n: usize, shift: usize) -> Traced {
    let both = bench.numbers(2 * n + shift);
    let (x, y) = (both.slice(0..2 * n), both.slice(shift..2 * n + shift));
    let len = Scalar::new(n as i64);
    kernel("interleaved", |k| {
        let (x, y) = (k.input(&x), k.inout(&y));
        k.main(|r| r.each(&len, |i| y.store(i * 2, x.load(i * 2) * 3.0 + 1.0)));
    })
    .expect("traces")
}

#[test]
fn neighbours_in_one_memory_do_not_disturb_each_other() {
    for shift in [0, 1, 3, 7] {
        form(&["LoadStrided(4)", "StoreStrided(4)"], &[], |bench, n| interleaved(bench, n, shift));
    }
}

#[test]
fn halves_of_one_tensor_under_two_names_are_recognised_as_apart() {
    form(&["Bind ", "BindStore "], &["CopyOut"], |bench, n| {
        // Two tensors of no elements at one address would be one parameter.
        let n = n.max(1);
        let both = bench.numbers(2 * n);
        let (x, y, len) = (both.slice(0..n), both.slice(n..2 * n), Scalar::new(n as i64));
        kernel("halves", |k| {
            let (x, y) = (k.input(&x), k.output(&y));
            k.main(|r| r.each(&len, |i| y.store(i, x.load(i) + 1.0)));
        })
        .expect("traces")
    });
}

#[test]
fn a_shifted_overlap_is_read_before_it_is_written_by_the_same_each() {
    // Element i reads x[i] and writes x[i + n], through names that overlap. Only the indices show that this is no race.
    for n in SIZES {
        for shift in [1, 2, 5] {
            agree(|bench| {
                let both = bench.numbers(2 * n + shift);
                let (x, y) = (both.slice(0..n + shift), both.slice(shift..2 * n + shift));
                let len = Scalar::new(n as i64);
                kernel("shifted", |k| {
                    let (x, y) = (k.input(&x), k.inout(&y));
                    k.main(|r| {
                        r.each(&len, |i| {
                            let a = x.load(i);
                            y.store(i + n as i64, a * 2.0);
                            // It reads what it wrote, through the first name of the second half.
                            y.store(i + n as i64, y.load(i + n as i64) + a);
                        });
                    });
                })
                .expect("traces")
            });
        }
    }
}

#[test]
fn narrow_and_wide_names_of_one_memory_do_not_mix() {
    // The bf16 result of element i lies where nobody but element i reads: bytes 4 i .. 4 i + 2.
    for n in SIZES {
        agree(|bench| {
            let (x, len) = (bench.numbers(n), Scalar::new(n as i64));
            // SAFETY: the memory of `x`, which `keep` holds; every bit pattern is a bf16.
            let y = unsafe {
                let keep = std::sync::Arc::new(x.memory().clone());
                Tensor::<Bf16>::from_raw(x.memory().start().cast(), 2 * n, keep)
            };
            kernel("narrow in place", |k| {
                let (x, y) = (k.input(&x), k.inout(&y));
                k.main(|r| r.each(&len, |i| y.store(i * 2, (x.load(i) * 0.5).cast::<Bf16>())));
            })
            .expect("traces")
        });
    }
}

#[test]
fn a_value_stored_twice_is_computed_once() {
    for n in SIZES {
        let text = agree(|bench| {
            let (x, y, z) = (bench.numbers(n), bench.output::<f32>(n), bench.output::<f32>(n));
            let len = Scalar::new(n as i64);
            kernel("twice", |k| {
                let (x, y, z) = (k.input(&x), k.output(&y), k.output(&z));
                k.main(|r| {
                    r.each(&len, |i| {
                        let sum = x.load(i) + 1.0;
                        y.store(i, sum);
                        z.store(i, sum);
                    });
                });
            })
            .expect("traces")
        });
        assert_eq!((count(&text, "LBinary"), count(&text, "CopyOut(4)")), (1, 1), "{text}");
    }
}

#[test]
fn a_destination_that_is_read_in_between_is_written_at_the_store() {
    // y is read between the value's definition and its store, so the store must not happen early.
    form(&["CopyOut(4)"], &[], |bench, n| {
        let (x, y, z) = (bench.numbers(n), bench.numbers(n), bench.output::<f32>(n));
        let len = Scalar::new(n as i64);
        kernel("between", |k| {
            let (x, y, z) = (k.input(&x), k.inout(&y), k.output(&z));
            k.main(|r| {
                r.each(&len, |i| {
                    let sum = x.load(i) + 1.0;
                    z.store(i, y.load(i) * 2.0);
                    y.store(i, sum);
                });
            });
        })
        .expect("traces")
    });
}

#[test]
fn overlapping_banks_are_told_by_their_addresses() {
    for n in SIZES {
        agree(|bench| {
            let both = bench.numbers(3 * n);
            let bank = |k: usize| both.slice(k * n..(k + 1) * n).memory().clone();
            let (first, second) = ([bank(0), bank(1)], [bank(1), bank(2)]);
            let len = Scalar::new(n as i64);
            kernel("banks", |k| {
                let x = k.buffer::<f32>("x", &first, tilewire::ir::Access::In);
                let y = k.buffer::<f32>("y", &second, tilewire::ir::Access::InOut);
                k.main(|r| {
                    r.each(&len, |i| {
                        let before = x.bank(1).load(i);
                        y.bank(0).store(i, before + x.bank(0).load(i));
                        y.bank(1).store(i, before);
                    });
                });
            })
            .expect("traces")
        });
    }
}
