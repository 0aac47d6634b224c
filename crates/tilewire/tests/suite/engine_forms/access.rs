//! How elements are loaded and stored: pointers, gathers, masks, strides, broadcasts, indices from data.

use crate::engine_forms::{Bench, SIZES, agree, assert_forms, form};
use tilewire::hook::Traced;
use tilewire::ir::scalar::{Element, Integer, Number};
use tilewire::ir::{Order, Scope};
use tilewire::{Bf16, F8E4M3, F16, Scalar, Tensor, kernel};
use tilewire_testkit::random::Random;

/// `y[i] = x[i] + x[i]`.
fn twice<T: Number>(bench: &Bench, n: usize) -> Traced {
    let (x, y, len) = (bench.trouble::<T>(n), bench.output::<T>(n), Scalar::new(n as i64));
    kernel("twice", |k| {
        let (x, y) = (k.input(&x), k.output(&y));
        k.main(|r| r.each(&len, |i| y.store(i, x.load(i) + x.load(i))));
    })
    .expect("traces")
}

#[test]
fn a_load_and_a_store_of_arithmetic_are_pointers() {
    form(&["Bind "], &["CopyOut", "Load", "AffineIndex"], twice::<f64>);
    form(&["Bind "], &["CopyOut", "Load", "AffineIndex"], twice::<i8>);
    form(&["Bind ", "BindStore "], &["CopyOut", "Load", "AffineIndex"], twice::<f32>);
    form(&["Bind "], &["CopyOut", "Load", "AffineIndex"], twice::<Bf16>);
    form(&["Bind "], &["CopyOut", "Load", "AffineIndex"], twice::<u16>);
}

#[test]
fn a_plain_copy_is_one_instruction() {
    fn copy<T: Element>(bench: &Bench, n: usize) -> Traced {
        let (x, y, len) = (bench.trouble::<T>(n), bench.output::<T>(n), Scalar::new(n as i64));
        kernel("copy", |k| {
            let (x, y) = (k.input(&x), k.output(&y));
            k.main(|r| r.each(&len, |i| y.store(i, x.load(i))));
        })
        .expect("traces")
    }
    form(&["CopyRow"], &["Bind ", "EachBegin"], copy::<f32>);
    form(&["CopyRow"], &["Bind ", "EachBegin"], copy::<F8E4M3>);
    form(&["CopyRow"], &["Bind ", "EachBegin"], copy::<F16>);
    form(&["CopyRow"], &["Bind ", "EachBegin"], copy::<u64>);
    form(&["LCast(U8, Bool)", "CopyOut(1)"], &["Bind "], copy::<bool>);
}

#[test]
fn a_bool_of_any_byte_is_read_as_true() {
    for n in SIZES {
        agree(|bench| {
            let bytes = bench.from_fn(n, |i| [0u8, 1, 2, 0x80, 0xff][i % 5]);
            let (y, z, len) = (bench.output::<f32>(n), bench.output::<bool>(n), Scalar::new(n as i64));
            // SAFETY: the bytes live as long as `keep`; a bool tensor is read through its bits.
            let x = unsafe {
                let keep = std::sync::Arc::new(bytes.memory().clone());
                Tensor::<bool>::from_raw(bytes.memory().start().cast(), n, keep)
            };
            kernel("bools", |k| {
                let (x, y, z) = (k.input(&x), k.output(&y), k.output(&z));
                k.main(|r| {
                    r.each(&len, |i| {
                        y.store(i, x.load(i).select(2.5f32, -1.0f32));
                        z.store(i, !x.load(i));
                    });
                });
            })
            .expect("traces")
        });
    }
}

fn permuted<T: Element, I: Integer>(bench: &Bench, n: usize, scatter: bool, number: fn(u64) -> I) -> Traced {
    let order = Random::new(n as u64).permutation(n as u64);
    let index = bench.shifted(1, n, |i| number(order[i]));
    let (x, y, len) = (bench.trouble::<T>(n), bench.output::<T>(n), Scalar::new(n as i64));
    kernel("permute", |k| {
        let (x, y, index) = (k.input(&x), k.output(&y), k.input(&index));
        k.main(|r| {
            r.each(&len, |i| match scatter {
                true => y.store(index.load(i), x.load(i)),
                false => y.store(i, x.load(index.load(i))),
            });
        });
    })
    .expect("traces")
}

#[test]
fn a_load_by_index_is_a_gather_straight_to_its_store() {
    form(&["Gather(4, I32)"], &["CopyOut", "LCast"], |b, n| permuted::<f32, i32>(b, n, false, |i| i as i32));
    form(&["Gather(4, I64)"], &["CopyOut"], |b, n| permuted::<f32, i64>(b, n, false, |i| i as i64));
    form(&["Gather(1, I32)"], &["CopyOut"], |b, n| permuted::<u8, i32>(b, n, false, |i| i as i32));
    form(&["Gather(2, I64)"], &["CopyOut"], |b, n| permuted::<Bf16, i64>(b, n, false, |i| i as i64));
    form(&["Gather(8, I32)"], &["CopyOut"], |b, n| permuted::<f64, i32>(b, n, false, |i| i as i32));
    form(&["Gather(8, I64)", "LCast(U16, I64)"], &[], |b, n| permuted::<f64, u16>(b, n, false, |i| i as u16));
    form(&["Gather(1, I32)", "LCast(U8, Bool)"], &[], |b, n| permuted::<bool, i32>(b, n, false, |i| i as i32));
}

#[test]
fn a_store_by_index_is_a_scatter() {
    form(&["Scatter(4)"], &["CopyOut"], |b, n| permuted::<f32, i64>(b, n, true, |i| i as i64));
    form(&["Scatter(1)", "LCast(I32, I64)"], &[], |b, n| permuted::<i8, i32>(b, n, true, |i| i as i32));
    form(&["Scatter(2)"], &[], |b, n| permuted::<F16, u32>(b, n, true, |i| i as u32));
    form(&["Scatter(8)"], &[], |b, n| permuted::<u64, i64>(b, n, true, |i| i as i64));
}

#[test]
fn an_index_table_may_be_what_the_gather_overwrites() {
    form(&["Gather(8, I64)"], &[], |bench, n| {
        let order = Random::new(n as u64).permutation(n as u64);
        let (x, y) = (bench.trouble::<i64>(n), bench.from_fn(n, |i| order[i] as i64));
        let len = Scalar::new(n as i64);
        kernel("through", |k| {
            let (x, y) = (k.input(&x), k.inout(&y));
            k.main(|r| r.each(&len, |i| y.store(i, x.load(y.load(i)))));
        })
        .expect("traces")
    });
}

#[test]
fn a_masked_access_touches_only_what_its_mask_allows() {
    fn masked<T: Number>(bench: &Bench, n: usize) -> Traced {
        let (x, y, len) = (bench.trouble::<T>(n), bench.output::<T>(n), Scalar::new(n as i64));
        kernel("masked", |k| {
            let (x, y) = (k.input(&x), k.output(&y));
            k.main(|r| {
                // Intentionally beyond both ends of the tensors.
                r.each(r.scalar(&len) + 20, |i| {
                    let inside = i.ge(5).and((i - 5).lt(&len));
                    let z = x.load_if(inside, i - 5, T::from_bits(1));
                    y.store_if(inside.and((i & 3).ne(2)), i - 5, z + z);
                });
            });
        })
        .expect("traces")
    }
    let forms = |size: u8| [format!("GatherMasked({size})"), format!("ScatterMasked({size})"), "AffineIndex".into()];
    let check = |size, make: fn(&Bench, usize) -> Traced| {
        let has = forms(size);
        form(&has.each_ref().map(|s| s.as_str()), &["CopyOut"], make);
    };
    check(1, masked::<i8>);
    check(2, masked::<F16>);
    check(4, masked::<f32>);
    check(8, masked::<u64>);
}

#[test]
fn strides_go_forwards_backwards_and_by_a_scalar() {
    fn strided<T: Number>(bench: &Bench, n: usize, stride: i64, known: bool) -> Traced {
        let room = n * stride.unsigned_abs() as usize;
        let (x, y) = (bench.trouble::<T>(room), bench.output::<T>(room));
        let (len, by) = (Scalar::new(n as i64), Scalar::new(stride));
        let first = if stride < 0 { room as i64 - 1 } else { 0 };
        kernel("strided", |k| {
            let (x, y) = (k.input(&x), k.output(&y));
            k.main(|r| {
                r.each(&len, |i| {
                    let at = if known { i * stride + first } else { i * &by + first };
                    y.store(at, x.load(at) + T::from_bits(1));
                });
            });
        })
        .expect("traces")
    }
    for (stride, known) in [(3, true), (-1, true), (-2, true), (2, false), (1, false), (-3, false)] {
        form(&["LoadStrided(4)", "StoreStrided(4)"], &["Scatter"], |b, n| strided::<f32>(b, n, stride, known));
    }
    form(&["LoadStrided(1)", "StoreStrided(1)"], &[], |b, n| strided::<i8>(b, n, 5, true));
    form(&["LoadStrided(2)", "StoreStrided(2)"], &[], |b, n| strided::<u16>(b, n, -5, true));
    form(&["LoadStrided(8)", "StoreStrided(8)"], &[], |b, n| strided::<f64>(b, n, 2, false));
}

#[test]
fn one_place_for_all_elements_is_read_once_a_strip() {
    form(&["LoadStrided(4)"], &["Gather"], |bench, n| {
        let (x, y, len) = (bench.trouble::<i32>(3), bench.output::<i32>(n), Scalar::new(n as i64));
        let (at, standing) = (Scalar::new(2i64), 0i64);
        kernel("broadcast", |k| {
            let (x, y) = (k.input(&x), k.output(&y));
            k.main(|r| r.each(&len, |i| y.store(i, x.load(r.scalar(&at) + i * standing) + i.cast::<i32>())));
        })
        .expect("traces")
    });
}

#[test]
fn atomics_of_elements_are_counted_each_once() {
    for n in SIZES {
        let text = agree(|bench| {
            let (sums, seen) = (bench.from_fn(7, |i| i as u32), bench.from_fn(2, |i| i as u64));
            let len = Scalar::new(n as i64);
            kernel("count", |k| {
                let (sums, seen) = (k.inout(&sums), k.inout(&seen));
                k.main(|r| {
                    r.each(&len, |i| {
                        sums.atomic_add(i % 7, i.cast::<u32>(), Order::Relaxed, Scope::Device);
                        seen.atomic_add_if((i & 2).eq(0), (i & 1) + (i & 2) * 100, 1u64, Order::AcqRel, Scope::System);
                    });
                });
            })
            .expect("traces")
        });
        assert_forms(&text, &["AtomicLanes(4)", "AtomicLanes(8)"], &[]);
    }
}
