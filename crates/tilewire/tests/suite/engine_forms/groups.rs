//! Values that groups of neighbours share: reductions, scales, and the stores of a group's first element.

use crate::engine_forms::{Bench, SIZES, agree, assert_forms, form};
use tilewire::hook::{Traced, Value};
use tilewire::ir::scalar::Number;
use tilewire::{Bf16, F8E4M3, Scalar, kernel};

const GROUPS: [u32; 6] = [1, 2, 7, 31, 128, 130];

/// The largest magnitude of each group, stored by its first element. Some groups hold only NaNs, zeros or infinities.
fn largest(bench: &Bench, n: usize, size: u32) -> Traced {
    let groups = n.div_ceil(size as usize);
    let x = bench.trouble::<f32>(n);
    for i in 0..n {
        match i / size as usize % 8 {
            1 => x.set(i, if i % 2 == 0 { f32::NAN } else { -f32::NAN }),
            2 => x.set(i, -0.0),
            3 => x.set(i, if i % size as usize == size as usize / 2 { -3.5 } else { f32::NAN }),
            4 => x.set(i, if i % 3 == 0 { f32::NAN } else { -0.0 }),
            5 => x.set(i, -(i as f32)),
            6 if i % 50 == 0 => x.set(i, f32::NEG_INFINITY),
            _ => {}
        }
    }
    let (most, len) = (bench.output::<f32>(groups), Scalar::new(n as i64));
    kernel("largest", |k| {
        let (x, most) = (k.input(&x), k.output(&most));
        k.main(|r| {
            r.each(&len, |i| {
                let size = i64::from(size);
                most.store_if((i % size).eq(0), i / size, x.load(i).abs().group_max(size as u32));
            });
        });
    })
    .expect("traces")
}

#[test]
fn the_largest_magnitude_of_a_group_forgets_nans_and_signs() {
    for size in GROUPS {
        // A group of one element is that element. No group op is left.
        let (has, lacks) = if size > 1 { ("LGroupMaxAbs(F32)", "LUnary(Abs") } else { ("LUnary(Abs", "LGroupMaxAbs") };
        form(&[has], &[lacks, "LGroup("], |bench, n| largest(bench, n, size));
    }
}

#[test]
fn what_the_first_of_a_group_stores_is_one_copy_of_all_groups() {
    for size in GROUPS.into_iter().filter(|&size| size > 1) {
        form(&["CopyOut(4)"], &["ScatterMasked", "Expand", "AffineIndex"], |bench, n| largest(bench, n, size));
    }
}

type Reduce<T> = for<'t> fn(Value<'t, T>, u32) -> Value<'t, T>;

/// Every element gets its group's result, so the result is spread over the group again.
fn reduced<T: Number>(bench: &Bench, n: usize, size: u32, reduce: Reduce<T>) -> Traced {
    let (x, y, len) = (bench.trouble::<T>(n), bench.output::<T>(n), Scalar::new(n as i64));
    kernel("reduced", |k| {
        let (x, y) = (k.input(&x), k.output(&y));
        k.main(|r| r.each(&len, |i| y.store(i, reduce(x.load(i), size))));
    })
    .expect("traces")
}

#[test]
fn reductions_of_every_group_size_equal_their_definition() {
    for size in GROUPS.into_iter().filter(|&size| size > 1) {
        form(&["LGroup(Max, F32)"], &[], |b, n| reduced::<f32>(b, n, size, |x, size| x.group_max(size)));
        form(&["LGroup(Min, F32)"], &[], |b, n| reduced::<f32>(b, n, size, |x, size| x.group_min(size)));
        form(&["LGroup(Sum, F32)"], &[], |b, n| reduced::<f32>(b, n, size, |x, size| x.group_sum(size)));
        form(&["LGroup(Sum, U8)"], &[], |b, n| reduced::<u8>(b, n, size, |x, size| x.group_sum(size)));
        form(&["LScan(F32)"], &["Expand"], |b, n| reduced::<f32>(b, n, size, |x, size| x.group_scan(size)));
    }
    form(&[], &["LGroup", "LScan"], |b, n| reduced::<f32>(b, n, 1, |x, size| x.group_sum(size) + x.group_scan(size)));
    for size in [7, 128] {
        form(&["LGroup(Sum, F64)"], &["LGroupMaxAbs"], |b, n| reduced::<f64>(b, n, size, |x, size| x.group_sum(size)));
        form(&["LGroup(Max, BF16)"], &[], |b, n| reduced::<Bf16>(b, n, size, |x, size| x.abs().group_max(size)));
        form(&["LScan(I64)"], &[], |b, n| reduced::<i64>(b, n, size, |x, size| x.group_scan(size)));
    }
}

#[test]
fn a_group_result_is_spread_where_an_op_needs_it_per_element() {
    for size in [2, 31, 130] {
        form(&["Expand(4)", "LCompare"], &[], |bench, n| {
            let (x, y, len) = (bench.numbers(n), bench.output::<f32>(n), Scalar::new(n as i64));
            kernel("above", |k| {
                let (x, y) = (k.input(&x), k.output(&y));
                k.main(|r| {
                    r.each(&len, |i| {
                        let most = x.load(i).group_max(size);
                        y.store(i, x.load(i).ge(most).select(most, 0.0f32));
                    });
                });
            })
            .expect("traces")
        });
    }
}

#[test]
fn a_scale_per_group_is_multiplied_without_being_spread() {
    for size in [2u32, 7, 31, 128, 130] {
        form(&["LBinary(Mul, F32, Group)", "Bind "], &["Expand", "CopyOut", "Gather"], |bench, n| {
            let (x, y, len) = (bench.numbers(n), bench.output::<f32>(n), Scalar::new(n as i64));
            let scales = bench.trouble::<f32>(n.div_ceil(size as usize));
            kernel("scale", |k| {
                let (x, y, scales) = (k.input(&x), k.output(&y), k.input(&scales));
                k.main(|r| r.each(&len, |i| y.store(i, x.load(i) * scales.load(i / i64::from(size)))));
            })
            .expect("traces")
        });
    }
}

#[test]
fn a_quantisation_is_one_pass_for_the_scale_and_one_for_the_bytes() {
    for size in [7u32, 31, 128, 130] {
        for n in SIZES {
            let text = agree(|bench| {
                let (x, y, len) = (bench.trouble::<f32>(n), bench.output::<F8E4M3>(n), Scalar::new(n as i64));
                let scales = bench.output::<f32>(n.div_ceil(size as usize));
                kernel("quantise", |k| {
                    let (x, y, scales) = (k.input(&x), k.output(&y), k.output(&scales));
                    k.main(|r| {
                        r.each(&len, |i| {
                            let scale = x.load(i).abs().group_max(size) / 448.0;
                            let number = i64::from(size);
                            scales.store_if((i % number).eq(0), i / number, scale);
                            y.store(i, (x.load(i) / scale).cast::<F8E4M3>());
                        });
                    });
                })
                .expect("traces")
            });
            assert_forms(&text, &["LGroupMaxAbs(F32)", "LBinaryNarrow(Div, F8E4M3, Group)", "CopyOut(4)"], &["Expand"]);
        }
    }
}

#[test]
fn groups_of_several_sizes_share_one_strip() {
    for n in SIZES {
        agree(|bench| {
            let (x, y, len) = (bench.trouble::<i32>(n), bench.output::<i32>(n), Scalar::new(n as i64));
            kernel("several", |k| {
                let (x, y) = (k.input(&x), k.output(&y));
                k.main(|r| {
                    r.each(&len, |i| {
                        let x = x.load(i);
                        y.store(i, x.group_sum(3) + x.group_max(7) * x.group_min(50) + x.group_scan(16));
                    });
                });
            })
            .expect("traces")
        });
    }
}

#[test]
fn groups_in_rows_start_anew_with_each_row() {
    for (rows, cols) in [(1, 1), (3, 7), (5, 100), (2, 4097), (40, 130)] {
        agree(|bench| {
            let (x, y) = (bench.trouble::<f32>(rows * cols), bench.output::<f32>(rows * cols));
            let most = bench.output::<f32>(rows * cols.div_ceil(32));
            kernel("rows", |k| {
                let (x, y) = (k.input(&x).shape(rows, cols), k.output(&y).shape(rows, cols));
                let most = k.output(&most).shape(rows, cols.div_ceil(32));
                k.main(|r| {
                    r.each2(rows, cols, |row, col| {
                        let scale = x.at(row, col).abs().group_max(32);
                        most.store_if((col % 32).eq(0), row, col / 32, scale);
                        y.store(row, col, x.at(row, col) * scale);
                    });
                });
            })
            .expect("traces")
        });
    }
}
