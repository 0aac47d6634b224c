//! Two dimensions: rows that follow each other, rectangles that are transposed in registers, short rows.

use crate::engine_forms::{Bench, agree, agree_from, assert_forms};
use tilewire::hook::Traced;
use tilewire::ir::scalar::Element;
use tilewire::ir::scalar::Number;
use tilewire::{Bf16, F8E4M3, F16, kernel};

/// Rows and columns: empty, one, less than a register, odd, more than a tile.
const SHAPES: [(usize, usize); 11] =
    [(0, 5), (5, 0), (1, 1), (3, 2), (7, 31), (31, 7), (16, 16), (33, 65), (64, 64), (100, 129), (2, 4097)];

fn transposed<T: Element>(bench: &Bench, rows: usize, cols: usize) -> Traced {
    let (x, y) = (bench.trouble::<T>(rows * cols), bench.output::<T>(rows * cols));
    kernel("transpose", |k| {
        let (x, y) = (k.input(&x).shape(cols, rows), k.output(&y).shape(rows, cols));
        k.main(|r| r.each2(rows, cols, |row, col| y.store(row, col, x.at(col, row))));
    })
    .expect("traces")
}

#[test]
fn a_transpose_is_one_move_of_tiles() {
    fn check<T: Element>() {
        for (rows, cols) in SHAPES {
            let text = agree(|bench| transposed::<T>(bench, rows, cols));
            // One row or column is a copy; nothing is nothing.
            if rows > 1 && cols > 1 {
                assert_forms(&text, &[&format!("MoveTile({})", T::TYPE.size())], &["LoadTile", "StoreTile"]);
            }
        }
    }
    check::<F8E4M3>();
    check::<F16>();
    check::<f32>();
    check::<f64>();
}

#[test]
fn a_transposed_load_with_arithmetic_goes_through_a_tile() {
    fn check<T: Number>() {
        for (rows, cols) in SHAPES {
            let text = agree(|bench| {
                let (x, y) = (bench.trouble::<T>(rows * cols), bench.output::<T>(rows * cols));
                kernel("load", |k| {
                    let (x, y) = (k.input(&x).shape(cols, rows), k.output(&y).shape(rows, cols));
                    k.main(|r| r.each2(rows, cols, |row, col| y.store(row, col, x.at(col, row) + y.at(row, col))));
                })
                .expect("traces")
            });
            if rows > 1 && cols > 1 {
                let size = T::TYPE.size();
                assert_forms(&text, &[&format!("LoadTile({size})"), &format!("StoreTile({size})")], &["MoveTile"]);
            }
        }
    }
    check::<i8>();
    check::<Bf16>();
    check::<f32>();
    check::<u64>();
}

#[test]
fn a_transposed_store_with_arithmetic_goes_through_a_tile() {
    for (rows, cols) in SHAPES {
        let text = agree(|bench| {
            let (x, y) = (bench.trouble::<f32>(rows * cols), bench.output::<f32>(rows * cols));
            kernel("store", |k| {
                let (x, y) = (k.input(&x).shape(rows, cols), k.output(&y).shape(cols, rows));
                k.main(|r| {
                    r.each2(rows, cols, |row, col| {
                        let weight = (row * 3 + col).cast::<f32>();
                        y.store(col, row, x.at(row, col) * weight);
                    });
                });
            })
            .expect("traces")
        });
        if rows > 1 && cols > 1 {
            assert_forms(&text, &["Iota", "LoadTile(4)", "StoreTile(4)"], &["Scatter"]);
        }
    }
}

#[test]
fn a_transposed_store_of_a_load_is_one_move_too() {
    for (rows, cols) in SHAPES {
        let text = agree(|bench| {
            let (x, y) = (bench.trouble::<u16>(rows * cols), bench.output::<u16>(rows * cols));
            kernel("store", |k| {
                let (x, y) = (k.input(&x).shape(rows, cols), k.output(&y).shape(cols, rows));
                k.main(|r| r.each2(rows, cols, |row, col| y.store(col, row, x.at(row, col))));
            })
            .expect("traces")
        });
        if rows > 1 && cols > 1 {
            assert_forms(&text, &["MoveTile(2)"], &[]);
        }
    }
}

#[test]
fn rows_that_follow_each_other_are_one_long_row() {
    for (rows, cols) in SHAPES {
        let text = agree(|bench| {
            let (x, y) = (bench.trouble::<f32>(rows * cols), bench.output::<f32>(rows * cols));
            kernel("flat", |k| {
                let (x, y) = (k.input(&x).shape(rows, cols), k.output(&y).shape(rows, cols));
                k.main(|r| r.each2(rows, cols, |row, col| y.store(row, col, x.at(row, col).sqrt())));
            })
            .expect("traces")
        });
        assert_forms(&text, &[], &["LoadTile", "StoreTile", "MoveTile", "CopyOut", "LoadStrided"]);
    }
}

#[test]
fn short_rows_with_gaps_are_packed_into_tiles() {
    for cols in [1usize, 2, 3, 15, 33, 63, 64, 70] {
        for rows in [1usize, 2, 31, 200] {
            let stride = cols + 5;
            let text = agree(|bench| {
                let (x, y) = (bench.trouble::<f32>(rows * stride), bench.output::<f32>(rows * stride));
                kernel("short", |k| {
                    let x = k.input(&x).shape_strided(rows, cols, stride);
                    let y = k.output(&y).shape_strided(rows, cols, stride);
                    k.main(|r| r.each2(rows, cols, |row, col| y.store(row, col, -x.at(row, col))));
                })
                .expect("traces")
            });
            if rows > 1 && (2..64).contains(&cols) {
                assert_forms(&text, &["LoadTile(4)", "StoreTile(4)"], &["Bind"]);
            }
        }
    }
}

#[test]
fn rows_with_gaps_that_are_only_copied_are_one_move() {
    fn check<T: Element>() {
        for (rows, cols) in [(0, 70), (1, 64), (2, 5), (9, 64), (40, 129), (3, 5000)] {
            // From a wider matrix into a wider one; one row for all rows; upside down; into columns that follow each
            // other, and back.
            for (from, down, to) in [(cols + 3, 1, cols + 9), (0, 1, cols), (cols + 1, -1, cols), (cols, 1, cols + 64)]
            {
                for stream_from in [1, usize::MAX] {
                    let text = agree_from(stream_from, |bench| {
                        let (x, y) = (bench.trouble::<T>(rows * from + cols), bench.output::<T>(rows * to + cols));
                        kernel("rows", |k| {
                            let (x, y) = (k.input(&x), k.output(&y));
                            k.main(|r| {
                                r.each2(rows, cols, |row, col| {
                                    let line = if down == 1 { row } else { rows as i64 - 1 - row };
                                    y.store(row * to as i64 + col, x.load(line * from as i64 + col));
                                });
                            });
                        })
                        .expect("traces")
                    });
                    if rows > 1 {
                        assert_forms(&text, &[&format!("MoveTile({})", T::TYPE.size())], &["Bind", "CopyOut"]);
                    }
                }
            }
        }
    }
    check::<u8>();
    check::<Bf16>();
    check::<f32>();
    check::<u64>();
}

#[test]
fn rows_of_two_tensors_are_two_moves_and_what_is_copied_twice_is_none() {
    let (rows, cols) = (40i64, 90i64);
    let strided = |twice: bool| {
        agree(|bench| {
            let (x, z) = (bench.trouble::<f32>(40 * 95), bench.trouble::<u16>(40 * 95));
            let (y, w, v) = (bench.output::<f32>(40 * 90), bench.output::<u16>(40 * 90), bench.output::<f32>(40 * 90));
            kernel("two", |k| {
                let (x, z, y, w, v) = (k.input(&x), k.input(&z), k.output(&y), k.output(&w), k.output(&v));
                k.main(|r| {
                    r.each2(rows, cols, |row, col| {
                        let loaded = x.load(row * 95 + col);
                        y.store(row * cols + col, loaded);
                        if twice {
                            v.store(row * cols + col, loaded);
                        }
                        w.store(row * cols + col, z.load(row * 95 + col));
                    });
                });
            })
            .expect("traces")
        })
    };
    assert_forms(&strided(false), &["MoveTile(4)", "MoveTile(2)"], &["CopyOut"]);
    assert_forms(&strided(true), &[], &["MoveTile"]);
}

#[test]
fn rows_that_are_copied_within_one_tensor_are_not_one_move() {
    // Each row moves down by one: the last elements of one row and the first of the next share memory of one name.
    let text = agree(|bench| {
        let x = bench.trouble::<u32>(8 * 100);
        kernel("down", |k| {
            let x = k.inout(&x);
            k.main(|r| r.each2(3, 70, |row, col| x.store(row * 100 + 400 + col, x.load(row * 100 + col))));
        })
        .expect("traces")
    });
    assert_forms(&text, &[], &["MoveTile"]);
}

#[test]
fn rows_that_overlap_another_name_of_their_memory_are_not_moved_through_registers() {
    // y is x, transposed in place. There is no race, because the `each` that writes comes after all reads.
    for n in [1usize, 2, 9, 40] {
        let text = agree(|bench| {
            let (x, scratch) = (bench.trouble::<u32>(n * n), n * n);
            kernel("in place", |k| {
                let x = k.inout(&x).shape(n, n);
                k.main(|r| {
                    let copy = r.scratch::<u32>(scratch).shape(n, n);
                    r.each2(n, n, |row, col| copy.store(row, col, x.at(row, col)));
                    r.each2(n, n, |row, col| x.store(row, col, copy.at(col, row)));
                });
            })
            .expect("traces")
        });
        if n > 1 {
            assert_forms(&text, &["MoveTile(4)"], &[]);
        }
    }
}

#[test]
fn backwards_and_broadcast_axes_are_walked_as_written() {
    for (rows, cols) in SHAPES.into_iter().filter(|&(rows, cols)| rows * cols > 0) {
        agree(|bench| {
            let (x, y) = (bench.trouble::<f32>(rows * cols), bench.output::<f32>(rows * cols));
            let (per_row, per_col) = (bench.numbers(rows), bench.numbers(cols));
            kernel("axes", |k| {
                let (x, y) = (k.input(&x).shape(rows, cols), k.output(&y).shape(rows, cols));
                let (per_row, per_col) = (k.input(&per_row), k.input(&per_col));
                k.main(|r| {
                    r.each2(rows, cols, |row, col| {
                        let flipped = x.at(rows as i64 - 1 - row, cols as i64 - 1 - col);
                        y.store(row, col, flipped * per_row.load(row) + per_col.load(col));
                    });
                });
            })
            .expect("traces")
        });
    }
}
