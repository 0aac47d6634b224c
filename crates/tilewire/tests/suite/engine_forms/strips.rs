//! Work that is longer than one strip, and strip memory that several `each`es and several values share.

use crate::engine_forms::{SIZES, agree, assert_forms, form};
use tilewire::{Scalar, kernel};

#[test]
fn uniforms_are_spread_once_and_are_there_in_every_strip() {
    form(&["Fill(4)", "LSelect(4)"], &[], |bench, n| {
        let (x, y, len) = (bench.numbers(n), bench.output::<f32>(n), Scalar::new(n as i64));
        let (low, high) = (Scalar::new(-7.5f32), Scalar::new(11.0f32));
        kernel("fill", |k| {
            let (x, y) = (k.input(&x), k.output(&y));
            k.main(|r| {
                r.each(&len, |i| {
                    let x = x.load(i);
                    let picked = x.gt(0.0).select(&low, &high);
                    y.store(i, picked.fma(x, &high) + x.lt(-50.0).select(1.0f32, &low));
                });
            });
        })
        .expect("traces")
    });
    for n in SIZES {
        let text = agree(|bench| {
            let (y, len, x) = (bench.output::<u16>(n), Scalar::new(n as i64), Scalar::new(0xabcdu16));
            kernel("constant", |k| {
                let y = k.output(&y);
                k.main(|r| r.each(&len, |i| y.store(i, r.scalar(&x))));
            })
            .expect("traces")
        });
        assert_forms(&text, &["Fill(2)", "CopyOut(2)"], &[]);
    }
}

#[test]
fn an_index_as_data_goes_on_from_strip_to_strip() {
    form(&["Iota"], &[], |bench, n| {
        let (y, z, len) = (bench.output::<i64>(n), bench.output::<f32>(n), Scalar::new(n as i64));
        kernel("iota", |k| {
            let (y, z) = (k.output(&y), k.output(&z));
            k.main(|r| {
                r.each(&len, |i| {
                    y.store(i, i * i - 5);
                    z.store(i, i.cast::<f32>() * 0.5);
                });
            });
        })
        .expect("traces")
    });
}

#[test]
fn rows_and_columns_as_data_are_those_of_the_element() {
    for (rows, cols) in [(1, 1), (3, 5), (65, 64), (2, 5000), (5000, 2), (70, 130)] {
        let text = agree(|bench| {
            let (y, z) = (bench.output::<i64>(rows * cols), bench.output::<i64>(rows * cols));
            kernel("axes", |k| {
                let (y, z) = (k.output(&y).shape(rows, cols), k.output(&z).shape(cols, rows));
                k.main(|r| {
                    r.each2(rows, cols, |row, col| {
                        y.store(row, col, row * 10_000 + col);
                        z.store(col, row, col * 3 - row);
                    });
                });
            })
            .expect("traces")
        });
        if rows > 1 && cols > 1 {
            assert_forms(&text, &["Iota"], &[]);
        }
    }
}

#[test]
fn eaches_that_share_strip_memory_do_not_see_each_other() {
    form(&["EachBegin"], &[], |bench, n| {
        let (x, w) = (bench.numbers(n), bench.trouble::<i64>(n));
        let (y, z) = (bench.output::<f32>(n), bench.output::<i64>(n));
        let (len, factor) = (Scalar::new(n as i64), Scalar::new(3.25f32));
        kernel("eaches", |k| {
            let (x, w, y, z) = (k.input(&x), k.input(&w), k.output(&y), k.output(&z));
            k.main(|r| {
                // The sizes of elements, the lengths of strips and the fills differ each time.
                r.each(&len, |i| {
                    let a = x.load(i).gt(1.0).select(&factor, x.load(i));
                    y.store(i, a * (a + 1.0) - a.group_sum(4));
                });
                r.each(&len, |i| {
                    let a = w.load(i);
                    z.store(i, (a.lt(i)).select(a ^ i, a - (a >> 3)) + (a & 0xff) * (i + 1));
                });
                r.for_(0..3, |turn| {
                    r.each(&len, |i| {
                        let a = y.load(i);
                        y.store(i, a.ge(turn.cast::<f32>()).select(a + &factor, a * 0.5));
                    });
                });
            });
        })
        .expect("traces")
    });
}

#[test]
fn more_values_than_fit_a_strip_make_it_shorter_not_wrong() {
    for n in [0, 1, 255, 256, 257, 5000] {
        agree(|bench| {
            let (x, y, len) = (bench.trouble::<u64>(n), bench.output::<u64>(n), Scalar::new(n as i64));
            kernel("many", |k| {
                let (x, y) = (k.input(&x), k.output(&y));
                k.main(|r| {
                    r.each(&len, |i| {
                        let x = x.load(i);
                        let all: Vec<_> = (0..40u64).map(|k| (x >> k) ^ (x * (2 * k + 1))).collect();
                        let sum = all.iter().rev().fold(x, |sum, &part| (sum << 1u64) ^ part);
                        y.store(i, all.into_iter().fold(sum, |sum, part| sum + part));
                    });
                });
            })
            .expect("traces")
        });
    }
}

#[test]
fn scratch_lives_from_each_to_each() {
    for n in SIZES {
        agree(|bench| {
            let (x, y) = (bench.numbers(n), bench.output::<f32>(n));
            kernel("scratch", |k| {
                let (x, y) = (k.input(&x), k.output(&y));
                k.main(|r| {
                    let (a, b) = (r.scratch::<f32>(n.max(1)), r.scratch::<u8>(n.max(1)));
                    r.each(n, |i| {
                        a.store(i, x.load(i) * 2.0);
                        b.store(i, i.cast::<u8>());
                    });
                    r.each(n, |i| y.store(i, a.load((n as i64 - 1) - i) + b.load(i).cast::<f32>()));
                });
            })
            .expect("traces")
        });
    }
}

#[test]
fn an_each_of_a_negative_extent_does_nothing() {
    for extent in [0i64, -1, i64::MIN] {
        agree(|bench| {
            let (y, len, rows) = (bench.output::<f32>(8), Scalar::new(extent), Scalar::new(2i64));
            kernel("negative", |k| {
                let y = k.output(&y);
                k.main(|r| {
                    r.each(&len, |i| y.store(i, 1.0));
                    r.each2(&rows, &len, |row, col| y.store(row + col, 2.0));
                    r.each2(&len, &len, |row, col| y.store(row * 4 + col, 3.0));
                });
            })
            .expect("traces")
        });
    }
}
