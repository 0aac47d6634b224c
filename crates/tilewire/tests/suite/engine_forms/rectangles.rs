//! Columns of one matrix. If their bytes interleave without meeting, each may be bound as if they were apart. If they
//! meet, their order is kept.

use crate::engine_forms::{Bench, SIZES, agree, agree_from, form};
use std::ops::Range;
use tilewire::hook::Traced;
use tilewire::ir::scalar::Number;
use tilewire::{Bf16, F16, Tensor, kernel};

/// A matrix with about `n` elements in 70 columns. Rows of fewer than 64 columns are moved in tiles, which are never
/// bound.
fn rows(n: usize) -> usize {
    (n / 70).max(2)
}

fn numbers(group: usize, i: usize) -> f32 {
    (i % 251) as f32 - 100.0 * group as f32
}

/// `y = f(x)` for two groups of columns of one matrix.
fn pair(bench: &Bench, n: usize, stride: usize, x: Range<usize>, y: Range<usize>) -> Traced {
    let groups = bench.columns((rows(n), stride), &[x, y], numbers);
    kernel("columns", |k| {
        let (x, y) = (k.input(&groups[0]).matrix(), k.output(&groups[1]).matrix());
        k.main(|r| r.each2(y.rows(), y.cols(), |row, col| y.store(row, col, x.at(row, col) * 3.0 + 1.0)));
    })
    .expect("traces")
}

#[test]
fn interleaved_columns_are_bound_as_if_they_were_apart() {
    // Neighbouring columns, columns with a gap between them, with a gap at the end, and with the output first.
    for (stride, x, y) in
        [(140, 0..70, 70..140), (240, 1..71, 100..170), (240, 30..100, 170..240), (160, 90..160, 0..70)]
    {
        form(&["Bind ", "BindStore "], &["CopyOut", "LoadTile"], |bench, n| {
            pair(bench, n, stride, x.clone(), y.clone())
        });
    }
}

#[test]
fn columns_that_meet_are_not_bound() {
    // x has columns 0..100 and y has columns `by`... The kernel reads the first `by` columns, and stores them to the
    // columns of y that x lacks, or has only in part. No element reads what another writes, but only the indices show
    // it.
    for by in [70, 99] {
        for n in SIZES {
            let text = agree(|bench| {
                let whole = bench.columns((rows(n), 240), std::slice::from_ref(&(2..202)), numbers).remove(0);
                let (x, y) = (whole.columns(0..100), whole.columns(by..by + 100));
                kernel("meet", |k| {
                    let (x, y) = (k.input(&x).matrix(), k.inout(&y).matrix());
                    k.main(|r| {
                        r.each2(y.rows(), 65, |row, col| {
                            let a = x.at(row, col);
                            y.store(row, col + 30, a * 2.0);
                            // It reads what it wrote, and keeps the first value, which must therefore have been copied.
                            y.store(row, col + 30, y.at(row, col + 30) + a);
                        });
                    });
                })
                .expect("traces")
            });
            assert!(text.contains("LoadTile"), "{text}");
        }
    }
}

#[test]
fn an_update_of_columns_in_place_is_pointers_on_both_sides() {
    form(&["Bind "], &["CopyOut", "LoadTile"], |bench, n| {
        let x = bench.columns((rows(n), 140), std::slice::from_ref(&(5..106)), numbers).remove(0);
        kernel("negate", |k| {
            let x = k.inout(&x).matrix();
            k.main(|r| r.each2(x.rows(), x.cols(), |row, col| x.store(row, col, -x.at(row, col))));
        })
        .expect("traces")
    });
    // The same columns under two names, and a third name for their neighbours.
    form(&["Bind "], &["CopyOut"], |bench, n| {
        let groups = bench.columns((rows(n), 240), &[0..112, 112..224], numbers);
        let same = groups[0].columns(0..112);
        kernel("add", |k| {
            let (x, same, other) =
                (k.inout(&groups[0]).matrix(), k.input(&same).matrix(), k.input(&groups[1]).matrix());
            k.main(|r| {
                r.each2(x.rows(), x.cols(), |row, col| {
                    x.store(row, col, x.at(row, col) + same.at(row, col) * other.at(row, col));
                })
            });
        })
        .expect("traces")
    });
}

#[test]
fn columns_are_exchanged_element_by_element() {
    for n in SIZES {
        for stream_from in [0, usize::MAX] {
            agree_from(stream_from, |bench| {
                let groups = bench.columns((rows(n), 179), &[3..84, 84..165], |k, i| (1000 * k + i) as u64);
                kernel("exchange", |k| {
                    let (x, y) = (k.inout(&groups[0]).matrix(), k.inout(&groups[1]).matrix());
                    k.main(|r| {
                        r.each2(x.rows(), x.cols(), |row, col| {
                            let (a, b) = (x.at(row, col), y.at(row, col));
                            x.store(row, col, b);
                            y.store(row, col, a);
                        })
                    });
                })
                .expect("traces")
            });
        }
    }
}

#[test]
fn moves_between_columns_of_every_width_leave_the_guards_alone() {
    fn check<T: Number>() {
        for cols in [1, 2, 7, 16, 33, 130] {
            for rows in [1, 2, 31, 64] {
                for stream_from in [0, usize::MAX] {
                    agree_from(stream_from, |bench| {
                        let element = |k: usize, i: usize| T::from_bits((7 * k + i) as u64 & 0x3f);
                        let groups =
                            bench.columns((rows, 2 * cols + 3), &[1..cols + 1, cols + 2..2 * cols + 2], element);
                        kernel("move", |k| {
                            let (x, y) = (k.input(&groups[0]).matrix(), k.output(&groups[1]).matrix());
                            k.main(|r| r.each2(y.rows(), y.cols(), |row, col| y.store(row, col, x.at(row, col))));
                        })
                        .expect("traces")
                    });
                }
            }
        }
    }
    check::<i8>();
    check::<Bf16>();
    check::<f32>();
    check::<u64>();
}

#[test]
fn positions_and_transposes_of_columns_find_their_elements() {
    for (rows, cols) in [(1, 1), (3, 2), (31, 7), (64, 65)] {
        agree(|bench| {
            let groups = bench.columns((rows, cols + 9), std::slice::from_ref(&(4..cols + 4)), |_, i| {
                F16::from_bits(i as u16 & 0x3ff)
            });
            let (y, z) = (bench.output::<F16>(rows * cols), bench.output::<F16>(rows * cols));
            kernel("positions", |k| {
                let (x, y, z) = (k.input(&groups[0]), k.output(&y), k.output(&z).shape(cols, rows));
                k.main(|r| {
                    // By position, which divides, and by a row and a column that are swapped.
                    r.each(y.len(), |i| y.store(i, x.load(i)));
                    r.each2(z.rows(), z.cols(), |row, col| z.store(row, col, x.matrix().at(col, row)));
                });
            })
            .expect("traces")
        });
    }
}

#[test]
fn a_column_beyond_the_last_is_out_of_bounds_and_not_the_gap() {
    let matrix = Tensor::<u32>::zeros(8 * 10).reshape(8, 10).unwrap();
    let (x, y) = (matrix.columns(2..6), Tensor::<u32>::zeros(8));
    for by in [1, 4, -3] {
        let traced = kernel("beyond", |k| {
            let (x, y) = (k.input(&x).matrix(), k.output(&y));
            k.main(|r| r.each(y.len(), |i| y.store(i, x.at(i, i % 4 + by))));
        })
        .expect("traces");
        let error = tilewire::prepare(&traced).unwrap().run().unwrap_err().to_string();
        assert!(error.contains("-1") && error.contains("rectangles.rs"), "{error}");
    }
    // Tracing refuses an index that is known not to be a column, and a shape other than the tensor's.
    let constant = kernel("constant", |k| {
        let (x, y) = (k.input(&x).matrix(), k.output(&y));
        k.main(|r| r.each(y.len(), |i| y.store(i, x.at(i, 4))));
    });
    assert!(constant.unwrap_err().to_string().contains("index 4 is outside a view of 4"));
    let shaped = kernel("shaped", |k| {
        let (x, y) = (k.input(&x).shape(4, 8), k.output(&y).shape(4, 2));
        k.main(|r| r.each2(4, 2, |row, col| y.store(row, col, x.at(row, col))));
    });
    assert!(shaped.unwrap_err().to_string().contains("can be shaped as [8, 4] only"));
}

#[test]
fn an_expanded_tensor_is_read_in_every_row_and_never_written() {
    let (row, y) = (Tensor::from_fn(5, |i| i as f32), Tensor::<f32>::zeros(20));
    let bias = row.strided(4, 5, 0).unwrap();
    let traced = kernel("bias", |k| {
        let (bias, y) = (k.input(&bias), k.output(&y));
        k.main(|r| {
            r.each2(4, 5, |row, col| y.shape(4, 5).store(row, col, bias.matrix().at(row, col)));
            r.each(20, |i| y.store(i, bias.load(i) + y.load(i)));
        });
    })
    .unwrap();
    tilewire::prepare(&traced).unwrap().run().unwrap();
    assert_eq!(y.to_vec(), (0..20).map(|i| 2.0 * (i % 5) as f32).collect::<Vec<_>>());
    let written = kernel("written", |k| {
        let bias = k.output(&bias);
        k.main(|r| r.each(20, |i| bias.store(i, 1.0f32)));
    });
    let error = written.unwrap_err().to_string();
    assert!(error.contains("row stride 0") && error.contains("rectangles.rs"), "{error}");
}
