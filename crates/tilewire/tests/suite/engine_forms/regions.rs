//! Values of several types at byte offsets of a region, and the slot address of staging.

use crate::engine_forms::{Bench, SIZES, agree, assert_forms};
use tilewire::hook::Traced;
use tilewire::ir::scalar::Element;
use tilewire::{Bf16, F8E5M2, Scalar, kernel};

/// Puts x at byte `first` of bank `bank` of two, and gets it from there. Moves keep the bits.
fn through<T: Element>(bench: &Bench, n: usize, first: usize) -> Traced {
    let size = T::TYPE.size();
    let bytes = first * size + n * size + 24;
    let banks = [0, 1].map(|k| bench.shifted(8 * k, bytes, |i| i as u8).memory().clone());
    let (x, y, len) = (bench.trouble::<T>(n), bench.output::<T>(n), Scalar::new(n as i64));
    let bank = Scalar::new(1i32);
    kernel("through", |k| {
        let (x, y, region) = (k.input(&x), k.output(&y), k.region("staging", &banks));
        k.main(|r| {
            let start = (first * size) as i64;
            r.each(&len, |i| region.put(&bank, i * size as i64 + start, x.load(i)));
            r.each(&len, |i| y.store(i, region.get::<T>(&bank, i * size as i64 + start)));
        });
    })
    .expect("traces")
}

#[test]
fn values_of_every_size_pass_through_a_region_at_any_multiple_of_their_size() {
    for first in [0, 1, 3] {
        for n in SIZES {
            assert_forms(&agree(|b| through::<f32>(b, n, first)), &["CopyRow"], &["Scatter", "Gather"]);
            assert_forms(&agree(|b| through::<u8>(b, n, first)), &["CopyRow"], &[]);
            assert_forms(&agree(|b| through::<Bf16>(b, n, first)), &["CopyRow"], &[]);
            assert_forms(&agree(|b| through::<u64>(b, n, first)), &["CopyRow"], &[]);
            agree(|b| through::<bool>(b, n, first));
        }
    }
}

#[test]
fn one_region_holds_scales_and_payload_side_by_side() {
    for n in SIZES {
        agree(|bench| {
            let groups = n.div_ceil(32);
            let bank = [bench.from_fn(groups * 4 + n, |_| 0u8).memory().clone()];
            let (x, y, len) = (bench.numbers(n), bench.output::<f32>(n), Scalar::new(n as i64));
            kernel("frame", |k| {
                let (x, y, region) = (k.input(&x), k.output(&y), k.region("frame", &bank));
                k.main(|r| {
                    r.each(&len, |i| {
                        let scale = x.load(i).abs().group_max(32);
                        region.put_if((i % 32).eq(0), 0, (i / 32) * 4, scale);
                        region.put(0, i + groups as i64 * 4, (x.load(i) / scale).cast::<F8E5M2>());
                    });
                    r.each(&len, |i| {
                        let code = region.get::<F8E5M2>(0, i + groups as i64 * 4);
                        y.store(i, code.cast::<f32>() * region.get::<f32>(0, (i / 32) * 4));
                    });
                });
            })
            .expect("traces")
        });
    }
}

#[test]
fn masked_and_strided_values_of_a_region_are_addressed_by_bytes() {
    for n in SIZES {
        let text = agree(|bench| {
            let bank = [bench.shifted(8, n * 12 + 16, |i| (i * 7) as u8).memory().clone()];
            let (y, len) = (bench.output::<u32>(n), Scalar::new(n as i64));
            kernel("strided", |k| {
                let (y, region) = (k.output(&y), k.region("bytes", &bank));
                k.main(|r| {
                    r.each(&len, |i| {
                        let odd = (i & 1).eq(1);
                        // If the mask is off, the offset may be anything.
                        let x = region.get_if::<u32>(odd, 0, odd.select(i * 12, -5i64), 9u32);
                        y.store(i, x + region.get::<u16>(0, i * 12 + 6).cast::<u32>());
                    });
                    r.each(&len, |i| region.put(0, i * 12 + 8, i.cast::<u16>()));
                });
            })
            .expect("traces")
        });
        assert_forms(&text, &["GatherMasked(4)", "LoadStrided(2)", "StoreStrided(2)"], &[]);
    }
}

#[test]
fn the_address_of_a_staging_slot_is_one_instruction() {
    for n in SIZES {
        let text = agree(|bench| {
            let bank = [bench.from_fn(4 * 4 * n + 64, |_| 0u8).memory().clone()];
            let (x, len) = (bench.numbers(n), Scalar::new(n as i64));
            let (first, bytes) = (Scalar::new(16i64), Scalar::new(4 * n as i64));
            kernel("slots", |k| {
                let (x, region) = (k.input(&x), k.region("staging", &bank));
                k.main(|r| {
                    r.for_(0..4, |step| {
                        let start = r.scalar(&first) + step * &bytes;
                        r.each(&len, |i| region.put(0, start + i * 4, x.load(i) + step.cast::<f32>()));
                    });
                });
            })
            .expect("traces")
        });
        assert_forms(&text, &["UFma(I64)"], &["UBinary(Mul, I64)"]);
    }
}
